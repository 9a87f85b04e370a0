//! What running kubelets of several releases do when the client certificate or the CA file of their kubelet.conf is
//! replaced: the table in `docs/kubelets.md`, measured.
//!
//! They run side by side on the worker, with a containerd of their own and a Node object for each. Their API server is a
//! second one on the first node: its audit log names the certificate of each request, and its own certificate is replaced.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::network::address;
use crate::cluster::site::{CURRENT, FORMER};
use crate::cluster::{Cluster, shell};
use crate::machine::Machine;
use crate::time::let_pass;

const VERSIONS: [&str; 4] = ["v1.34.2", "v1.35.1", FORMER, CURRENT];
/// More than the five minutes after which client-go looks for other files.
const OBSERVED_SECONDS: u64 = 400;

const SERVER: &str = "cp1";
const WORKER: &str = "w1";
/// Unit and folder of the second API server, below /run/tests of the first node.
const SECOND: &str = "second-kube-apiserver";
const PORT: u16 = 7443;
const CONTAINERD: &str = "second-containerd";

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, userGroups: ['system:nodes']}, {level: None}]
";

pub(crate) fn replaced(cluster: &mut Cluster) {
    let former_ca = Ca {
        certificate: cluster.authorities.file("ca", "cert.pem"),
        key: cluster.authorities.file("ca", "key.pem"),
    };
    let new_ca = Ca::generate(&cluster.site.path("new-ca"));
    let server = Server::start(cluster, &former_ca);
    cluster.node(WORKER).done(&format!(
        "systemd-run --quiet --unit={CONTAINERD} nsenter --mount=/run/kubernetes-mounts/namespace containerd \
         --root /var/lib/containerd/second --state /run/{CONTAINERD} --address /run/{CONTAINERD}.sock"
    ));
    let mut kubelets = Vec::new();
    for version in VERSIONS {
        for rotates in [true, false] {
            let port = 11_250 + kubelets.len();
            kubelets.push(Kubelet::start(cluster, version, rotates, port, &former_ca));
        }
    }
    cluster.until("every kubelet sends requests", |cluster| {
        for one in &kubelets {
            one.assert_runs(cluster);
            if !one.has_used(&one.fingerprints, &server.audit_log(0)) {
                return Err(one.name.clone());
            }
        }
        Ok(())
    });

    for one in &mut kubelets {
        one.replace_pair(&former_ca);
    }
    let renewed = server.first_requests(&kubelets, |one| &one.fingerprints[1..], 0);

    let bundle = [&new_ca, &former_ca].map(|ca| fs::read_to_string(&ca.certificate).unwrap());
    for one in &kubelets {
        put(&one.dir.join("ca.crt"), &bundle.concat());
    }
    // The restart closes the open connections, whose requests are in the log by the time the server is ready.
    server.restart_with(cluster, &new_ca);
    let from = server.audit_log(0).len();
    let trusted = server.first_requests(&kubelets, |one| &one.fingerprints, from);

    println!(
        "    | kubelet | rotateCertificates | another pair in use after | another CA in use after |"
    );
    let after = |time: Option<Duration>| {
        time.map_or("never".to_owned(), |time| format!("{} s", time.as_secs()))
    };
    for ((one, renewed), trusted) in kubelets.iter().zip(&renewed).zip(&trusted) {
        one.assert_runs(cluster);
        println!(
            "    | {} | {} | {} | {} |",
            one.version,
            one.rotates,
            after(*renewed),
            after(*trusted)
        );
    }
    for ((one, renewed), trusted) in kubelets.iter().zip(&renewed).zip(&trusted) {
        assert_eq!(renewed.is_some(), !one.rotates, "{}", one.name);
        let reads_ca = [FORMER, CURRENT].contains(&one.version) && !one.rotates;
        assert_eq!(trusted.is_some(), reads_ca, "{}", one.name);
    }
    for one in &kubelets {
        let stop = format!("systemctl stop {}", one.name);
        cluster.node(WORKER).done(&stop);
        let delete = format!("delete node {}", one.name);
        cluster.kubectl(SERVER, &delete).unwrap();
    }
    for (node, unit) in [(WORKER, CONTAINERD), (SERVER, SECOND)] {
        let stop = format!("systemctl stop {unit}");
        cluster.node(node).done(&stop);
    }
}

/// Files of a CA on this machine.
struct Ca {
    certificate: PathBuf,
    key: PathBuf,
}

impl Ca {
    fn generate(dir: &Path) -> Self {
        fs::create_dir(dir).unwrap();
        let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.join(name));
        shell(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=new-ca \
             -keyout {} -out {} 2>&1",
            key.display(),
            certificate.display()
        ));
        Ca { certificate, key }
    }

    /// Issues a certificate for a day, and returns it and its key as PEM.
    fn issue(&self, subject: &str, extension: &str) -> [String; 2] {
        let dir = tempfile::tempdir().unwrap();
        shell(&format!(
            "cd {}
             openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '{subject}' -keyout key -out csr 2>&1
             echo '{extension}' >extensions
             openssl x509 -req -in csr -CA {} -CAkey {} -set_serial 0x$(openssl rand -hex 16) -days 1 -extfile extensions \
                 -out certificate 2>&1",
            dir.path().display(),
            self.certificate.display(),
            self.key.display()
        ));
        ["certificate", "key"].map(|name| fs::read_to_string(dir.path().join(name)).unwrap())
    }
}

/// The second kube-apiserver.
struct Server {
    /// The host's path of its folder.
    dir: PathBuf,
}

impl Server {
    /// Starts it with the flags of the node's first one, where the last value of a flag counts.
    fn start(cluster: &mut Cluster, ca: &Ca) -> Self {
        let program = cluster.site.program("kube-apiserver", CURRENT);
        let node = cluster.node(SERVER);
        let dir = node.machine.shared().join(SECOND);
        fs::create_dir(&dir).unwrap();
        fs::copy(program, dir.join("kube-apiserver")).unwrap();
        put(&dir.join("audit.yaml"), AUDIT_POLICY);
        put(&dir.join("audit.log"), "");
        let server = Server { dir };
        server.write_certificate(ca);
        let at = format!("/run/tests/{SECOND}");
        node.done(&format!(
            "systemd-run --quiet --unit={SECOND} {at}/kube-apiserver \
             $(sed -n 's/^    - --/--/p' /etc/kubernetes/manifests/kube-apiserver.yaml) --secure-port={PORT} \
             --tls-cert-file={at}/apiserver.crt --tls-private-key-file={at}/apiserver.key --endpoint-reconciler-type=none \
             --audit-policy-file={at}/audit.yaml --audit-log-path={at}/audit.log"
        ));
        wait_until_ready(cluster);
        server
    }

    fn write_certificate(&self, ca: &Ca) {
        let names = format!("subjectAltName=IP:{}", address(SERVER));
        let [certificate, key] = ca.issue("/CN=kube-apiserver", &names);
        put(&self.dir.join("apiserver.crt"), &certificate);
        put(&self.dir.join("apiserver.key"), &key);
    }

    fn restart_with(&self, cluster: &mut Cluster, ca: &Ca) {
        self.write_certificate(ca);
        cluster
            .node(SERVER)
            .done(&format!("systemctl restart {SECOND}"));
        wait_until_ready(cluster);
    }

    /// Returns the audit log from this byte on.
    fn audit_log(&self, from: usize) -> String {
        let log = fs::read(self.dir.join("audit.log")).unwrap();
        String::from_utf8_lossy(&log[from..]).into_owned()
    }

    /// Waits for [`OBSERVED_SECONDS`], and returns for each kubelet when it sent the first request with one of these
    /// certificates.
    fn first_requests(
        &self,
        kubelets: &[Kubelet],
        fingerprints: impl Fn(&Kubelet) -> &[String],
        from: usize,
    ) -> Vec<Option<Duration>> {
        let begin = Instant::now();
        let mut first = vec![None; kubelets.len()];
        for _ in 0..OBSERVED_SECONDS {
            let log = self.audit_log(from);
            for (one, first) in kubelets.iter().zip(&mut first) {
                if one.has_used(fingerprints(one), &log) {
                    first.get_or_insert(begin.elapsed());
                }
            }
            let_pass(Duration::from_secs(1));
        }
        first
    }
}

fn wait_until_ready(cluster: &mut Cluster) {
    let ready = format!(
        "python3 -c 'import ssl, urllib.request
urllib.request.urlopen(\"https://{}:{PORT}/readyz\", context=ssl._create_unverified_context())'",
        address(SERVER)
    );
    cluster.node(SERVER).machine.until(&ready);
}

/// A running kubelet.
struct Kubelet {
    /// Name of its unit and of its node.
    name: String,
    version: &'static str,
    /// Value of `rotateCertificates`.
    rotates: bool,
    /// The host's path of its folder.
    dir: PathBuf,
    /// Fingerprints of its client certificates in the order of their issuance.
    fingerprints: Vec<String>,
}

impl Kubelet {
    fn start(
        cluster: &mut Cluster,
        version: &'static str,
        rotates: bool,
        port: usize,
        ca: &Ca,
    ) -> Self {
        let name = match rotates {
            true => format!("rotating-kubelet-{version}"),
            false => format!("kubelet-{version}"),
        };
        let folders = cluster.node(WORKER).machine.dir().join("kubelet");
        let dir = folders.join(&name);
        fs::create_dir_all(dir.join("pki")).unwrap();
        let mut kubelet = Kubelet {
            name,
            version,
            rotates,
            dir,
            fingerprints: Vec::new(),
        };
        kubelet.replace_pair(ca);
        let name = &kubelet.name;
        // Without labels, so it is no node for a DaemonSet.
        let node = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: {name}}}, spec: {{unschedulable: true}}}}\n"
        );
        let file = kubelet.dir.join("node.yaml");
        put(&file, &node);
        let create = format!("create --filename {}", file.display());
        cluster.kubectl(SERVER, &create).unwrap();
        let at = format!("/var/lib/kubelet/{name}");
        let authority = fs::read_to_string(&ca.certificate).unwrap();
        put(&kubelet.dir.join("ca.crt"), &authority);
        put(
            &kubelet.dir.join("kubelet.conf"),
            &format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
                 clusters: [{{name: it, cluster: {{server: 'https://{}:{PORT}', certificate-authority: {at}/ca.crt}}}}]\n\
                 users: [{{name: it, user: {{client-certificate: {at}/pki/kubelet-client-current.pem, client-key: {at}/pki/kubelet-client-current.pem}}}}]\n\
                 contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n",
                address(SERVER)
            ),
        );
        put(
            &kubelet.dir.join("config.yaml"),
            &format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                 authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: false}}}}\n\
                 authorization: {{mode: AlwaysAllow}}\n\
                 cgroupDriver: cgroupfs\ncgroupsPerQOS: false\nenforceNodeAllocatable: []\n\
                 containerRuntimeEndpoint: unix:///run/{CONTAINERD}.sock\n\
                 failCgroupV1: false\nfailSwapOn: false\nhealthzPort: 0\nport: {port}\nregisterNode: false\n\
                 rotateCertificates: {rotates}\n"
            ),
        );
        let run = format!("kubelet-{version}");
        let program = cluster.site.program("kubelet", version);
        let machine = &mut cluster.node(WORKER).machine;
        let copy = machine.shared().join(&run);
        if !copy.exists() {
            fs::copy(program, copy).unwrap();
        }
        machine.done(&format!(
            "systemd-run --quiet --unit={name} nsenter --mount=/run/kubernetes-mounts/namespace /run/tests/{run} \
             --config {at}/config.yaml --kubeconfig {at}/kubelet.conf --root-dir {at} --cert-dir {at}/pki \
             --hostname-override {name}"
        ));
        kubelet
    }

    /// Writes a new client certificate with a new key as a kubelet does: into a new file, to which a link leads.
    fn replace_pair(&mut self, ca: &Ca) {
        let subject = format!("/O=system:nodes/CN=system:node:{}", self.name);
        let pair = ca.issue(&subject, "extendedKeyUsage=clientAuth");
        let pki = self.dir.join("pki");
        let file = format!("kubelet-client-{}.pem", self.fingerprints.len());
        put(&pki.join(&file), &pair.concat());
        let digest = format!(
            "openssl x509 -in {} -outform DER | sha256sum | cut -d' ' -f1",
            pki.join(&file).display()
        );
        self.fingerprints.push(shell(&digest).trim().to_owned());
        symlink(&file, pki.join("new")).unwrap();
        fs::rename(pki.join("new"), pki.join("kubelet-client-current.pem")).unwrap();
    }

    /// Returns whether it has sent a request with one of these certificates, by an audit log.
    fn has_used(&self, fingerprints: &[String], log: &str) -> bool {
        let user = format!("system:node:{}", self.name);
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let used: BTreeSet<_> = events
            .filter(|event| event["user"]["username"] == user.as_str())
            .filter_map(|event| {
                let id = &event["user"]["extra"]["authentication.kubernetes.io/credential-id"][0];
                Some(id.as_str()?.strip_prefix("X509SHA256=")?.to_owned())
            })
            .collect();
        fingerprints.iter().any(|one| used.contains(one))
    }

    fn assert_runs(&self, cluster: &mut Cluster) {
        let name = &self.name;
        cluster.node(WORKER).done(&format!(
            "systemctl is-active {name} || {{ journalctl --no-pager -n 30 -u {name}; false; }}"
        ));
    }
}

/// Replaces a file by a rename.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

//! `nodepki doctor` on nodes that the real kubeadm and nodepki created, sound and with each damage that it detects.
//!
//! A case is a shell script that runs in `/etc/kubernetes` of a copy, and the complete list of findings of severity
//! error and warning that must follow. If kubeadm judges the same fault, its verdict is compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use nodepki::commands::doctor::checks::{self, CHECKS, DiagnosisInputs, FindingSeverity};
use nodepki::kube::names::Authority;
use nodepki::store::NodeRoot;
use serde_json::Value;
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::golden::Case;
use crate::kubeadm::{self, Node as Kubeadm};
use crate::node::{INIT, JOIN, NODEPKI, Node, Ran, Snapshot};
use crate::servers::cluster::{Authorities, Cluster};
use crate::signing;
use crate::time::wait_until;

const KUBEADM_CONFIG: &str = include_str!("../golden/init/v1beta4-alg-ECDSA-P256/config.yaml");

/// Two control-plane nodes as kubeadm creates them, with CA keys and static pods and with different CAs, and the
/// kubelet.conf that the first one's CA issued for a node cp9.
struct KubeadmNodes {
    own: TempDir,
    other: TempDir,
    foreign_kubelet: TempDir,
}

fn kubeadm_nodes() -> &'static KubeadmNodes {
    static NODES: OnceLock<KubeadmNodes> = OnceLock::new();
    NODES.get_or_init(|| {
        let [own, other] = [(); 2].map(|()| {
            let tree = tempfile::tempdir().unwrap();
            for output in kubeadm::init(Kubeadm::new(tree.path()), KUBEADM_CONFIG) {
                Ran::from(output).done();
            }
            let phase = ["init", "phase", "control-plane", "all"];
            Ran::from(Kubeadm::new(tree.path()).run(KUBEADM_CONFIG, &phase)).done();
            tree
        });
        let foreign_kubelet = tempfile::tempdir().unwrap();
        kubeadm::copy_tree(own.path(), foreign_kubelet.path());
        fs::remove_file(foreign_kubelet.path().join("kubelet.conf")).unwrap();
        let config = KUBEADM_CONFIG.replace("name: cp1", "name: cp9");
        let phase = ["init", "phase", "kubeconfig", "kubelet"];
        Ran::from(Kubeadm::new(foreign_kubelet.path()).run(&config, &phase)).done();
        KubeadmNodes {
            own,
            other,
            foreign_kubelet,
        }
    })
}

/// A node's root in a temporary directory.
struct KubeadmNode(TempDir);

impl KubeadmNode {
    /// Copies the node that kubeadm created and runs the script `change` on it.
    fn after(change: &str) -> Self {
        let node = KubeadmNode(tempfile::tempdir().unwrap());
        fs::create_dir_all(node.etc_kubernetes()).unwrap();
        kubeadm::copy_tree(kubeadm_nodes().own.path(), &node.etc_kubernetes());
        let mut shell = Command::new("bash");
        shell
            .args(["-euc", change])
            .current_dir(node.etc_kubernetes())
            .env("ROOT", node.root())
            .env("OTHER", kubeadm_nodes().other.path())
            .env("FOREIGN", kubeadm_nodes().foreign_kubelet.path());
        assert!(shell.status().unwrap().success(), "{change}");
        node
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn etc_kubernetes(&self) -> PathBuf {
        self.root().join("etc/kubernetes")
    }

    fn doctor(&self, arguments: &[&str]) -> Diagnosis {
        Diagnosis::of(
            Command::new(NODEPKI)
                .arg("--root")
                .arg(self.root())
                .args(["doctor", "-o", "json"])
                .args(arguments),
        )
    }

    /// Runs `doctor` with the configuration that kubeadm had.
    fn configured_doctor(&self, config: &str) -> Diagnosis {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), config).unwrap();
        self.doctor(&["--kubeadm-config", file.path().to_str().unwrap()])
    }

    /// Runs `doctor` as a user who owns none of the files.
    fn doctor_as_other_user(&self) -> Diagnosis {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        // A copy of the binary, since other users may not have access to the build directory.
        let program = self.root().join("nodepki");
        // Another process copies it: a file that any process has open for writing cannot be executed.
        let copied = Command::new("cp").arg(NODEPKI).arg(&program).status();
        assert!(copied.unwrap().success());
        command.arg(&program).arg("--root").arg(self.root());
        Diagnosis::of(command.args(["doctor", "-o", "json"]))
    }

    /// Returns the findings at another time, from the library.
    fn at(&self, time: OffsetDateTime) -> BTreeSet<String> {
        let root = NodeRoot::open(self.root()).unwrap();
        let diagnosis = signing::run(checks::diagnose(&root, &DiagnosisInputs::default(), time));
        let findings = diagnosis.findings.iter();
        findings
            .filter(|finding| finding.severity != FindingSeverity::Info)
            .map(|finding| format!("{} {}", finding.severity.as_str(), finding.id))
            .collect()
    }
}

/// The findings of one run.
struct Diagnosis {
    ran: Ran,
    report: Value,
}

impl Diagnosis {
    #[track_caller]
    fn of(command: &mut Command) -> Self {
        let ran = Ran::of(command.env_remove("JOURNAL_STREAM"));
        let report: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}:\n{}", ran.said()));
        let diagnosis = Diagnosis { ran, report };
        let errors = diagnosis
            .errors_and_warnings()
            .iter()
            .any(|found| found.starts_with("error "));
        diagnosis.ran.ended(if errors { 65 } else { 0 });
        for finding in diagnosis.findings() {
            let check = CHECKS.iter().find(|check| finding["id"] == check.id);
            let check = check.unwrap_or_else(|| panic!("{finding} is not in the table"));
            let severities: Vec<&str> = check.severities.iter().map(|one| one.as_str()).collect();
            let severity = finding["severity"].as_str().unwrap();
            assert!(severities.contains(&severity), "{finding}");
            assert!(
                !finding["evidence"].as_array().unwrap().is_empty(),
                "{finding}"
            );
            assert!(!finding["fix"].as_str().unwrap().is_empty(), "{finding}");
        }
        assert!(!diagnosis.ran.said().contains("PRIVATE KEY"));
        diagnosis
    }

    fn findings(&self) -> &Vec<Value> {
        self.report["findings"].as_array().unwrap()
    }

    fn all(&self) -> BTreeSet<String> {
        let findings = self.findings().iter();
        findings
            .map(|finding| {
                let [severity, id] =
                    ["severity", "id"].map(|field| finding[field].as_str().unwrap());
                format!("{severity} {id}")
            })
            .collect()
    }

    /// Returns the errors and warnings, as in `error expired`.
    fn errors_and_warnings(&self) -> BTreeSet<String> {
        let mut all = self.all();
        all.retain(|found| !found.starts_with("info "));
        all
    }

    #[track_caller]
    fn exactly(&self, expected: &[&str], case: &str) {
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        assert!(
            self.errors_and_warnings() == expected,
            "{case}\nexpected {expected:?}, found {:?}\n{}",
            self.errors_and_warnings(),
            self.ran.said()
        );
    }

    /// Returns the evidence of a finding as one text.
    #[track_caller]
    fn evidence(&self, id: &str) -> String {
        let finding = self.findings().iter().find(|finding| finding["id"] == id);
        let finding = finding.unwrap_or_else(|| panic!("no {id}:\n{}", self.ran.said()));
        finding["evidence"].to_string()
    }
}

// ---- Sound nodes ----

#[test]
fn finds_nothing_on_node_of_kubeadm() {
    let node = KubeadmNode::after("true");
    let before = Snapshot::of(node.root());
    let found = node.doctor(&[]);
    found.exactly(&[], "without a configuration");
    assert_eq!(
        found.all(),
        [
            "admin-rbac",
            "ca-key-on-disk",
            "config-absent",
            "kubelet-client-rbac",
            "kubelet-embedded",
            "super-admin-left"
        ]
        .map(|id| format!("info {id}"))
        .into()
    );
    node.configured_doctor(KUBEADM_CONFIG)
        .exactly(&[], "with one");
    before.unchanged(&Snapshot::of(node.root()));
}

#[test]
fn finds_nothing_on_node_of_nodepki() {
    let node = Node::bootstrapped();
    let before = node.snapshot();
    let doctor = |arguments: &[&str]| {
        let mut command = node.command(["doctor", "-o", "json"]);
        Diagnosis::of(command.args(arguments))
    };
    doctor(&[]).exactly(&[], "without a configuration");
    let [settings, kubeadm] = ["config.yaml", "kubeadm.yaml"].map(|name| node.outside(name));
    let configured = [
        "--config",
        settings.to_str().unwrap(),
        "--kubeadm-config",
        kubeadm.to_str().unwrap(),
    ];
    let found = doctor(&configured);
    found.exactly(&[], "with one");
    assert!(
        !found.all().contains("info kubeadm-external-ca"),
        "{}",
        found.ran.said()
    );

    before.unchanged(&node.snapshot());

    // An authority with an external signer must not have its key here.
    fs::copy(
        node.ca().join("ca.key"),
        node.path("/etc/kubernetes/pki/ca.key"),
    )
    .unwrap();
    node.set_mode("/etc/kubernetes/pki/ca.key", 0o600);
    let found = doctor(&configured);
    found.exactly(
        &["error ca-key-on-disk"],
        "a CA key despite an external signer",
    );
    assert!(found.evidence("ca-key-on-disk").contains("the signer s"));
}

#[test]
fn finds_nothing_on_other_sound_nodes_of_nodepki() {
    let sixth = INIT.replace("192.0.2.11", "fd00::11").replace(
        "kind: ClusterConfiguration",
        "kind: ClusterConfiguration\nnetworking: {serviceSubnet: 'fd00:1::/112'}",
    );
    let external = "etcd: {external: {endpoints: ['https://192.0.2.30:2379'], caFile: /etc/kubernetes/pki/ca.crt, certFile: /etc/kubernetes/pki/apiserver-kubelet-client.crt, keyFile: /etc/kubernetes/pki/apiserver-kubelet-client.key}}\n";
    let older = INIT
        .replace("v1.37.2", "v1.28.15")
        .replace("v1beta4", "v1beta3");
    let older = older.replace("encryptionAlgorithm: ECDSA-P256\n", "");
    let first = Node::bootstrapped();
    for (what, kubeadm) in [
        ("IPv6", sixth),
        ("joined", JOIN.to_owned()),
        ("an external etcd", format!("{INIT}{external}")),
        ("1.28", older),
    ] {
        let node = Node::of(&kubeadm);
        for file in ["sa.key", "sa.pub"] {
            let path = format!("/etc/kubernetes/pki/{file}");
            node.write(&path, first.read(&path));
            node.set_mode(&path, if file == "sa.key" { 0o600 } else { 0o644 });
        }
        node.ask().done();
        if what == "an external etcd" {
            // This manifest distinguishes external etcd from a node whose etcd certificates do not exist yet.
            let pod = "spec: {containers: [{command: [kube-apiserver]}]}\n";
            node.write("/etc/kubernetes/manifests/kube-apiserver.yaml", pod);
            node.remove("/etc/kubernetes/super-admin.conf");
        }
        let kept = Diagnosis::of(&mut node.command(["doctor", "-o", "json"]));
        kept.exactly(&[], what);
        node.remove("/var/lib/nodepki/cluster-configuration.yaml");
        let bare = Diagnosis::of(&mut node.command(["doctor", "-o", "json"]));
        // Without a configuration this can be a first node.
        let expected: &[&str] = match what {
            "joined" => &["warning kubeadm-external-ca"],
            _ => &[],
        };
        bare.exactly(expected, what);
        let mut command = node.configured(["doctor", "-o", "json"]);
        Diagnosis::of(&mut command).exactly(&[], what);
    }
}

/// Before kubeadm has written a manifest, only the configuration shows that etcd is external.
#[test]
fn asks_for_no_certificate_of_an_external_etcd() {
    const PKI: &str = "/etc/kubernetes/pki";
    let node = Node::of(&format!(
        "{INIT}etcd: {{external: {{endpoints: ['https://192.0.2.30:2379'], caFile: {PKI}/etcd/ca.crt, certFile: {PKI}/apiserver-etcd-client.crt, keyFile: {PKI}/apiserver-etcd-client.key}}}}\n"
    ));
    let etcd = Node::bootstrapped();
    for file in [
        "etcd/ca.crt",
        "apiserver-etcd-client.crt",
        "apiserver-etcd-client.key",
    ] {
        let path = format!("{PKI}/{file}");
        node.write_secret(&path, etcd.read(&path));
    }
    node.ask().done();
    let mut doctor = node.configured(["doctor", "-o", "json"]);
    Diagnosis::of(&mut doctor).exactly(&[], "an external etcd");
    node.run(&["status"]).done().says_not("missing");
}

#[test]
fn reports_empty_node_as_info() {
    let empty = KubeadmNode(tempfile::tempdir().unwrap());
    // Nothing is mounted there.
    empty
        .doctor(&[])
        .exactly(&["error empty-node"], "no system");
    fs::create_dir(empty.root().join("etc")).unwrap();
    let found = empty.doctor(&[]);
    found.exactly(&[], "nothing");
    assert!(found.all().contains("info empty-node"));
    let table = Ran::of(
        Command::new(NODEPKI)
            .arg("--root")
            .arg(empty.root())
            .arg("doctor"),
    );
    assert_eq!(table.done().closing(), "2 info");
}

#[test]
fn prints_the_table_of_checks() {
    let listed = Ran::of(Command::new(NODEPKI).args(["doctor", "--list"]));
    let lines: Vec<&str> = listed.done().stdout.lines().collect();
    assert_eq!(lines.len(), CHECKS.len());
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len(), "an id occurs twice");
    for (line, check) in lines.iter().zip(CHECKS) {
        assert!(
            line.starts_with(check.id) && line.ends_with(check.meaning),
            "{line}"
        );
    }
    let json = Ran::of(Command::new(NODEPKI).args(["doctor", "--list", "-o", "json"]));
    let json: Value = serde_json::from_str(&json.done().stdout).unwrap();
    assert_eq!(json["kind"], "DoctorChecks");
    assert_eq!(json["items"].as_array().unwrap().len(), CHECKS.len());
}

// ---- Damaged nodes ----

#[test]
fn finds_each_damage_and_nothing_else() {
    const CREDENTIALS_BY_FILE: &str = "
        for part in certificate key; do
            sed -n \"s/.*client-$part-data: //p\" admin.conf | base64 -d >admin.$part
            sed -i \"s|client-$part-data:.*|client-$part: /etc/kubernetes/admin.$part|\" admin.conf
            chmod 600 admin.$part
        done";
    // In the files of `kubeconfig.credentials: file`.
    const OWN_FILES: &str = "
        mkdir pki/$name
        for part in certificate key; do
            file=pki/$name/client.$(echo $part | sed 's/certificate/crt/')
            sed -n \"s/.*client-$part-data: //p\" $name.conf | base64 -d >$file
            sed -i \"s|client-$part-data:.*|client-$part: /etc/kubernetes/$file|\" $name.conf
        done
        chmod 600 pki/$name/client.key";
    let own_files = |name: &str| format!("name={name}\n{OWN_FILES}");
    let [mounted, unmounted] = ["controller-manager", "scheduler"].map(own_files);
    for (change, expected) in [
        ("rm pki/apiserver.crt", &["error missing-certificate"][..]),
        ("rm pki/apiserver.key", &["error missing-key"]),
        ("rm pki/etcd/peer.*", &["error missing-certificate"]),
        ("echo hello >pki/apiserver.crt", &["error unreadable"]),
        (": >pki/front-proxy-client.key", &["error unreadable"]),
        ("echo hello >pki/etcd/ca.key", &["error unreadable"]),
        ("cp $OTHER/pki/apiserver.key pki/", &["error torn-pair"]),
        (
            "cp $OTHER/pki/ca.key pki/",
            &["error controller-manager-signer-files", "error torn-pair"],
        ),
        ("cp $OTHER/pki/apiserver.* pki/", &["error chain-broken"]),
        (
            "cp $OTHER/scheduler.conf .",
            &["error chain-broken", "error kubeconfig-authority"],
        ),
        (
            "cat $OTHER/pki/sa.key pki/ca.key >both",
            &["warning ca-key-copy"],
        ),
        (
            "echo 'a: [' >manifests/kube-scheduler.yaml; : >manifests/etcd.yaml",
            &["error manifest-unreadable"],
        ),
        (
            "echo 'spec: {containers: [{image: \"etcd:3.6.12-0\", command: [etcd, --client-crl-file=/x, \"--listen-client-http-urls=https://127.0.0.1:2382\"]}]}' >manifests/etcd.yaml",
            &["error etcd-revocation-ignored"],
        ),
        ("rm pki/sa.key", &["error sa-missing"]),
        ("rm pki/sa.pub", &["error sa-missing"]),
        ("cp $OTHER/pki/sa.pub pki/", &["error sa-pair"]),
        ("cat $OTHER/pki/sa.pub pki/sa.pub >x; mv x pki/sa.pub", &[]),
        // With an external etcd.
        ("rm -r pki/etcd pki/apiserver-etcd-client.*", &[]),
        // A worker.
        (
            "mv pki/ca.crt .; rm -r pki manifests admin.conf super-admin.conf controller-manager.conf scheduler.conf; mkdir pki; mv ca.crt pki/",
            &[],
        ),
        ("rm pki/front-proxy-ca.crt", &["error missing-authority"]),
        (": >controller-manager.conf", &["error kubeconfig-empty"]),
        (
            "rm scheduler.conf; mkdir scheduler.conf",
            &["error kubeconfig-is-a-directory"],
        ),
        ("rm scheduler.conf", &["error kubeconfig-missing"]),
        (
            "sed -i 's/^current-context:.*/current-context: other/' admin.conf",
            &["error kubeconfig-dangling"],
        ),
        ("echo ': [' >admin.conf", &["error unreadable"]),
        (
            "ca=$(grep certificate-authority-data $OTHER/admin.conf); sed -i \"s|.*certificate-authority-data.*|$ca|\" admin.conf",
            &["error kubeconfig-authority"],
        ),
        (
            "sed -i /certificate-authority-data/d admin.conf",
            &["error kubeconfig-authority"],
        ),
        (
            "sed -i /client-certificate-data/d admin.conf",
            &["error missing-certificate"],
        ),
        (
            "sed -i 's|server: .*|server: https://192.0.2.50:6443|' scheduler.conf",
            &["warning kubeconfig-server"],
        ),
        (CREDENTIALS_BY_FILE, &["warning kubeconfig-by-file"]),
        (&mounted, &[]),
        (&unmounted, &["error kubeconfig-by-file"]),
        (
            "cat $OTHER/pki/ca.crt >>pki/ca.crt",
            &["error controller-manager-signer-bundle"],
        ),
        (
            "cat $OTHER/pki/ca.crt pki/ca.crt >x; mv x pki/ca.crt",
            &[
                "error controller-manager-signer-bundle",
                "error controller-manager-signer-files",
                "error torn-pair",
                "warning first-certificate",
                "warning kubeconfig-authority",
            ],
        ),
        (
            "rm pki/ca.key",
            &[
                "error controller-manager-signer-files",
                "warning super-admin-left",
            ],
        ),
        (
            "sed -i 's/192.0.2.11:6443/192.0.2.99:6443/' manifests/kube-apiserver.yaml",
            &["error address-drift", "warning kubeconfig-server"],
        ),
        ("chmod 0644 pki/apiserver.key", &["error mode-too-open"]),
        ("chmod 0666 pki/ca.crt", &["error mode-too-open"]),
        ("chmod 0777 pki", &["error directory-exposed"]),
        ("chmod 1777 pki", &[]),
        ("chmod 0775 .", &["warning directory-exposed"]),
        ("chown 4242 .", &["error directory-exposed"]),
        ("chown 999 pki/etcd", &["warning directory-exposed"]),
        ("chown 4242 admin.conf", &["warning foreign-owner"]),
        ("chown 999 pki/apiserver.key", &[]),
        (
            "cd manifests && seq 10001 | xargs touch",
            &["warning too-many-files"],
        ),
        (
            "chmod 0640 pki/sa.key; chgrp 1234 pki/sa.key",
            &["warning mode-too-open"],
        ),
        (
            "mkdir -p tmp/kubeadm-backup/pki; cp pki/ca.key tmp/kubeadm-backup/pki/old.pem",
            &["warning ca-key-copy"],
        ),
        (
            "mkdir -p $ROOT/var/lib/nodepki/x; cp pki/etcd/ca.key $ROOT/var/lib/nodepki/x/y",
            &["warning ca-key-copy"],
        ),
        ("mv pki/front-proxy-ca.key pki.bak", &["error ca-key-copy"]),
        (
            "mkdir -p $ROOT/var/lib/nodepki; echo '{}' >$ROOT/var/lib/nodepki/journal.json",
            &["error unfinished-commit"],
        ),
        (
            "touch pki/.nodepki-new.apiserver.crt",
            &["warning stray-files"],
        ),
        ("rm kubelet.conf", &["warning kubelet-no-identity"]),
        ("rm kubelet.conf; touch bootstrap-kubelet.conf", &[]),
        (
            "rm kubelet.conf; mkdir -p $ROOT/var/lib/kubelet; touch $ROOT/var/lib/kubelet/config.yaml",
            &["error kubelet-no-identity"],
        ),
        ("cp $FOREIGN/kubelet.conf .", &["error kubelet-other-node"]),
        (
            "mkdir -p $ROOT/root/.kube; cp $OTHER/admin.conf $ROOT/root/.kube/config",
            &[],
        ),
    ] {
        KubeadmNode::after(change)
            .doctor(&[])
            .exactly(expected, change);
    }
}

/// Signs a certificate for the installed key with the CA key of the node, as a faulty signer would.
const SIGN: &str = "sign() { # CERTIFICATE SUBJECT EXTENSIONS…
    base=$1; ca=ca; case $base in etcd/*|apiserver-etcd*) ca=etcd/ca;; front*) ca=front-proxy-ca;; esac
    subject=$2; shift 2; printf '%s\\n' \"$@\" >ext
    openssl req -new -key pki/$base.key -subj \"$subject\" -out csr
    openssl x509 -req -in csr -CA pki/$ca.crt -CAkey pki/$ca.key -CAcreateserial -days 300 -extfile ext -out pki/$base.crt
    rm -f csr ext pki/*.srl pki/etcd/*.srl
    }
    embed() { # KUBECONFIG SUBJECT
    sed -n 's/.*client-key-data: //p' $1 | base64 -d >pki/x.key
    sign x \"$2\" keyUsage=digitalSignature,keyEncipherment extendedKeyUsage=clientAuth
    sed -i \"s|client-certificate-data:.*|client-certificate-data: $(base64 -w0 pki/x.crt)|\" $1; rm pki/x.*
    }
    SANS=DNS:cp1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:10.96.0.1,IP:192.0.2.11
";

#[test]
fn reports_errors_for_certificates_with_wrong_subject_usage_or_names() {
    const KEY_USAGE: &str = "keyUsage=digitalSignature,keyEncipherment";
    let apiserver = |usage: &str, extended: &str, sans: &str| {
        format!(
            "sign apiserver /CN=kube-apiserver keyUsage={usage} extendedKeyUsage={extended} subjectAltName={sans}"
        )
    };
    let sound = "digitalSignature,keyEncipherment";
    let masters = "/O=system:masters/CN=kube-apiserver-kubelet-client";
    let client = format!("{KEY_USAGE} extendedKeyUsage=clientAuth");
    for (change, bare, configured) in [
        (apiserver(sound, "serverAuth", "$SANS"), &[][..], &[][..]),
        (
            "embed scheduler.conf /O=system:masters/CN=system:kube-scheduler".to_owned(),
            &["error system-masters"],
            &["error system-masters"],
        ),
        (
            "embed kubelet.conf /O=system:nodes/O=system:masters/CN=system:node:cp1".to_owned(),
            &["error system-masters"],
            &["error system-masters"],
        ),
        (
            format!("sign front-proxy-client /O=system:masters/CN=front-proxy-client {client}"),
            &["error system-masters"],
            &["error system-masters"],
        ),
        // The subject of kubeadm before 1.29, which a renewal by kubeadm preserves.
        (
            format!("sign apiserver-kubelet-client {masters} {client}"),
            &[],
            &["warning system-masters"],
        ),
        (
            "embed controller-manager.conf /O=kubeadm:cluster-admins/CN=system:kube-controller-manager".to_owned(),
            &["error misplaced-certificate"],
            &["error misplaced-certificate"],
        ),
        (
            apiserver("digitalSignature,keyEncipherment,keyCertSign", "serverAuth", "$SANS"),
            &["error misplaced-certificate"],
            &["error misplaced-certificate"],
        ),
        (
            format!("{} basicConstraints=critical,CA:TRUE", apiserver(sound, "serverAuth", "$SANS")),
            &["error misplaced-certificate"],
            &["error misplaced-certificate"],
        ),
        (
            apiserver(sound, "clientAuth", "$SANS"),
            &["error misplaced-certificate"],
            &["error misplaced-certificate", "error not-as-configured"],
        ),
        (
            apiserver(sound, "serverAuth,clientAuth", "$SANS"),
            &[],
            &["error not-as-configured"],
        ),
        (
            apiserver("keyAgreement", "serverAuth", "$SANS"),
            &["error misplaced-certificate"],
            &["error misplaced-certificate"],
        ),
        (
            apiserver(sound, "serverAuth", "DNS:cp1"),
            &["error address-drift", "error misplaced-certificate"],
            &["error address-drift", "error misplaced-certificate", "error not-as-configured"],
        ),
        (
            apiserver(sound, "serverAuth", "${SANS/IP:10.96.0.1,/}"),
            &[],
            &["error not-as-configured"],
        ),
        (
            apiserver(sound, "serverAuth", "$SANS,DNS:extra.example.com"),
            &[],
            &["warning not-as-configured"],
        ),
    ] {
        let node = KubeadmNode::after(&format!("{SIGN}{change}"));
        node.doctor(&[]).exactly(bare, &change);
        node.configured_doctor(KUBEADM_CONFIG).exactly(configured, &change);
    }
}

#[test]
fn checks_certificates_that_the_kubelet_rotates() {
    const ROTATED: &str = "
        pki=$ROOT/var/lib/kubelet/pki; mkdir -p $pki
        newest=$pki/kubelet-client-2026-11-21-10-00-00.pem
        for part in certificate key; do
            sed -n \"s/.*client-$part-data: //p\" kubelet.conf | base64 -d >>$newest
            sed -i \"s|client-$part-data:.*|client-$part: /var/lib/kubelet/pki/kubelet-client-current.pem|\" kubelet.conf
        done
        chmod 600 $newest
        ln -s ${newest##*/} $pki/kubelet-client-current.pem";
    for (more, expected) in [
        ("", &[][..]),
        ("rm $newest", &["error kubelet-file-missing"]),
        (
            "rm $pki/kubelet-client-current.pem",
            &["error kubelet-file-missing"],
        ),
        (
            "mv $newest $pki/kubelet-client-current.pem",
            &["error kubelet-client-not-a-link"],
        ),
        (": >$newest", &["error unreadable"]),
        ("chmod 644 $newest", &["error mode-too-open"]),
        (
            "mv $newest $pki/other.pem; rm $pki/kubelet-client-current.pem; ln -s gone $pki/kubelet-client-current.pem",
            &["error kubelet-file-missing"],
        ),
    ] {
        let node = KubeadmNode::after(&format!("{ROTATED}\n{more}"));
        let found = node.doctor(&[]);
        found.exactly(expected, more);
        assert!(
            !found.all().contains("info kubelet-embedded"),
            "{}",
            found.ran.said()
        );
    }
}

#[test]
fn finds_kubelet_that_does_not_use_its_issued_certificates() {
    let embedded = KubeadmNode::after(
        "pki=$ROOT/var/lib/kubelet/pki; mkdir -p $pki
        for part in certificate key; do
            sed -n \"s/.*client-$part-data: //p\" kubelet.conf | base64 -d >>$pki/a.pem
        done
        chmod 600 $pki/a.pem; ln -s a.pem $pki/kubelet-client-current.pem",
    );
    let found = embedded.doctor(&[]);
    found.exactly(&[], "embedded in addition to the link");
    assert!(found.all().contains("info kubelet-embedded"));

    let node = Node::new();
    node.settings("kubelet: {serving: true}\n");
    node.ask().done();
    let doctor = |configuration: &str| {
        node.write("/var/lib/kubelet/config.yaml", configuration);
        Ran::of(&mut node.configured(["doctor"]))
    };
    for fine in [
        "kind: KubeletConfiguration\n",
        "serverTLSBootstrap: false\ntlsCertFile: /var/lib/kubelet/pki/kubelet.crt\n",
        "{",
    ] {
        doctor(fine).says_not("kubelet-serving-unused");
    }
    for (other, words) in [
        ("serverTLSBootstrap: true\n", "serverTLSBootstrap is true"),
        ("tlsCertFile: /etc/k.crt\n", "tlsCertFile is /etc/k.crt"),
    ] {
        doctor(other)
            .says("kubelet-serving-unused")
            .says(words)
            .says("kubeletconfiguration0+merge.yaml");
    }
}

#[test]
fn compares_files_with_the_configuration() {
    let sound = KubeadmNode::after("true");
    let with = |from: &str, to: &str| sound.configured_doctor(&KUBEADM_CONFIG.replace(from, to));
    let node = with("name: cp1", "name: cp2");
    node.exactly(
        &[
            "error kubelet-other-node",
            "error not-as-configured",
            "warning not-as-configured",
        ],
        "another node name",
    );
    let address = with("192.0.2.11", "192.0.2.12");
    address.exactly(
        &[
            "error not-as-configured",
            "warning address-drift",
            "warning kubeconfig-server",
            "warning not-as-configured",
        ],
        "another address",
    );
    let name = with(
        "  name: cp1\n",
        "  name: cp1\n  kubeletExtraArgs: [{name: hostname-override, value: other}]\n",
    );
    name.exactly(&["warning hostname-override"], "hostname-override");
    let unusable = with("192.0.2.11", "nowhere");
    unusable.exactly(&["error config-unusable"], "an address that is none");
    assert!(unusable.evidence("config-unusable").contains("nowhere"));
    let cluster = KUBEADM_CONFIG.find("---").unwrap();
    let joins = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {name: cp1}\n\
        discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'api.example.com:6443', unsafeSkipCAVerification: true}}\n\
        controlPlane: {localAPIEndpoint: {advertiseAddress: 192.0.2.11}}\n";
    assert!(KUBEADM_CONFIG[..cluster].contains("InitConfiguration"));
    let unknown = sound.configured_doctor(joins);
    unknown.exactly(&[], "a node that has not joined its cluster yet");
    assert!(
        unknown
            .evidence("config-absent")
            .contains("the ClusterConfiguration is not on this node")
    );
    let known = format!("{joins}{}", &KUBEADM_CONFIG[cluster..]);
    let known = known.replace(
        "kind: ClusterConfiguration",
        "kind: ClusterConfiguration\ncontrolPlaneEndpoint: 192.0.2.11:6443",
    );
    sound
        .configured_doctor(&known)
        .exactly(&[], "a node that joined");
    let absent = sound.doctor(&["--config", "/nowhere/config.yaml"]);
    absent.exactly(&["error config-unusable"], "settings that do not exist");

    let etcd = "etcd: {external: {endpoints: ['https://192.0.2.30:2379'], caFile: /etc/etcd/ca.crt, certFile: /etc/etcd/c.crt, keyFile: /etc/etcd/c.key}}";
    let external = KubeadmNode::after("rm -r pki/etcd pki/apiserver-etcd-client.*");
    let found = external.configured_doctor(&KUBEADM_CONFIG.replace(
        "kind: ClusterConfiguration",
        &format!("kind: ClusterConfiguration\n{etcd}"),
    ));
    found.exactly(&["error external-etcd"], "an etcd without its files");
    for file in ["ca.crt", "c.crt", "c.key"] {
        let path = format!("/etc/etcd/{file}");
        assert!(found.evidence("external-etcd").contains(&path));
    }

    let bare = KubeadmNode::after("rm -r pki/* *.conf manifests");
    bare.configured_doctor(KUBEADM_CONFIG).exactly(
        &[
            "error kubeconfig-missing",
            "error missing-certificate",
            "warning kubelet-no-identity",
        ],
        "a configuration only",
    );
}

#[test]
fn finds_authority_without_matching_pin() {
    let node = Node::bootstrapped();
    let unpinned = fs::read_to_string(node.outside("config.yaml")).unwrap();
    let pinned = |pin: [u8; 32]| {
        let pin: String = pin.iter().map(|byte| format!("{byte:02x}")).collect();
        let with = format!("etcd-ca: {{signer: s, trust: {{sha256: [\"{pin}\"]}}}}");
        node.write_settings(&unpinned.replace("etcd-ca: {signer: s}", &with));
        Diagnosis::of(&mut node.configured(["doctor", "-o", "json"]))
    };
    let authority = node.authority(Authority::EtcdCa);
    pinned(authority.bundle().first().public_key().sha256()).exactly(&[], "its own pin");
    let found = pinned([7; 32]);
    found.exactly(&["error authority-not-pinned"], "another pin");
    let file = "/etc/kubernetes/pki/etcd/ca.crt: ";
    assert!(found.evidence("authority-not-pinned").contains(file));
}

#[test]
fn accepts_configured_common_name_of_etcd() {
    let node = Node::new();
    node.settings("commonNames:\n  etcd-server: \"etcd-server.{node}\"\n");
    node.ask().done();
    node.remove("/var/lib/nodepki/cluster-configuration.yaml");
    let mut command = node.command(["doctor", "-o", "json"]);
    Diagnosis::of(&mut command).exactly(&[], "without a configuration");
}

#[test]
fn finds_expiring_and_expired_certificates() {
    let sound =
        KubeadmNode::after("mkdir -p $ROOT/root/.kube; cp admin.conf $ROOT/root/.kube/config");
    let now = OffsetDateTime::now_utc();
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
    let found = |expected: &[&str]| expected.iter().map(ToString::to_string).collect();
    assert_eq!(sound.at(now), found(&[]));
    assert_eq!(sound.at(now + days(350)), found(&["warning expiring"]));
    assert_eq!(
        sound.at(now + days(400)),
        found(&["error expired", "warning stale-copy"])
    );
    // Authorities expire too, and chains are not checked then.
    assert_eq!(
        sound.at(now + days(4000)),
        found(&["error expired", "warning stale-copy"])
    );
    assert_eq!(
        sound.at(now - days(1)),
        found(&["error clock-behind", "error not-yet-valid"])
    );
}

#[test]
fn reports_files_that_the_user_cannot_read() {
    let found = KubeadmNode::after("chmod 755 $ROOT").doctor_as_other_user();
    found.exactly(&["warning not-permitted"], "another user");
    assert!(found.evidence("not-permitted").contains("sa.key"));
}

#[test]
fn reports_no_ca_keys_in_an_unreadable_directory() {
    let node = KubeadmNode::after("rm pki/*ca.key pki/etcd/ca.key; chmod 700 pki; chmod 755 $ROOT");
    let found = node.doctor_as_other_user();
    found.exactly(&["warning not-permitted"], "another user");
    assert!(!found.all().contains("info ca-key-on-disk"));
}

// ---- Comparison with the real kubeadm ----

/// Compares whether doctor predicts that kubeadm init refuses with whether it does, on every golden state in which an
/// authority has no usable key, and on some more.
#[test]
fn agrees_with_kubeadm_on_external_authorities() {
    const KEYLESS: &str = "rm pki/ca.key; ";
    const ALL_KEYLESS: &str = "rm pki/ca.key pki/front-proxy-ca.key pki/etcd/ca.key; ";
    let golden: Vec<(String, String)> = Case::group("state")
        .into_iter()
        .filter(|case| {
            case.name.contains("/extca-")
                || case.name.ends_with("ca-key-encrypted")
                || case.name.ends_with("ca-key-ed25519")
        })
        .map(|case| {
            (
                case.expected["change"].as_str().unwrap().to_owned(),
                case.config,
            )
        })
        .collect();
    assert!(golden.len() > 12, "{golden:?}");
    let more = [
        (
            KEYLESS,
            "cat $OTHER/pki/ca.crt pki/ca.crt >x; mv x pki/ca.crt",
        ),
        (KEYLESS, "echo hello >pki/apiserver.key"),
        (KEYLESS, ": >pki/apiserver-kubelet-client.crt"),
        (KEYLESS, "cp $OTHER/pki/apiserver.key pki/"),
        (
            KEYLESS,
            "openssl pkcs8 -topk8 -nocrypt -in pki/apiserver.key -out x; mv x pki/apiserver.key",
        ),
        (KEYLESS, "cp $OTHER/scheduler.conf ."),
        (KEYLESS, ": >controller-manager.conf"),
        (KEYLESS, "echo ': [' >admin.conf"),
        (
            KEYLESS,
            "sed -i 's/^current-context:.*/current-context: other/' kubelet.conf",
        ),
        (
            KEYLESS,
            "sed -i 's|server: .*|server: https://192.0.2.50:6443|' scheduler.conf",
        ),
        (
            KEYLESS,
            "sed -i s/certificate-authority-data:.*/certificate-authority-data:/ scheduler.conf",
        ),
        (
            KEYLESS,
            "cat pki/ca.crt $OTHER/pki/ca.crt >x; data=$(base64 -w0 x); sed -i \"s|certificate-authority-data:.*|certificate-authority-data: $data|\" scheduler.conf",
        ),
        (
            KEYLESS,
            "cat $OTHER/pki/ca.crt pki/ca.crt >x; data=$(base64 -w0 x); sed -i \"s|certificate-authority-data:.*|certificate-authority-data: $data|\" scheduler.conf",
        ),
        (KEYLESS, "cp $OTHER/pki/ca.key pki/front-proxy-ca.key"),
        (KEYLESS, "rm pki/sa.key pki/sa.pub"),
        (ALL_KEYLESS, "rm pki/front-proxy-client.key"),
        (ALL_KEYLESS, "echo hello >pki/front-proxy-client.crt"),
        (ALL_KEYLESS, "cp $OTHER/pki/etcd/server.crt pki/etcd/"),
        (ALL_KEYLESS, "rm pki/apiserver-etcd-client.crt"),
        (ALL_KEYLESS, "rm pki/etcd/peer.key"),
        (
            ALL_KEYLESS,
            "cp $OTHER/pki/etcd/* pki/etcd/; rm pki/etcd/ca.key",
        ),
        (
            ALL_KEYLESS,
            "rm pki/apiserver-etcd-client.*; echo garbage >pki/etcd/ca.key",
        ),
        ("", "rm pki/front-proxy-ca.key pki/front-proxy-client.crt"),
    ];
    let more = more.map(|(first, then)| (format!("{first}{then}"), KUBEADM_CONFIG.to_owned()));
    let mut refused = 0;
    let mut wrong = Vec::new();
    for (change, config) in golden.into_iter().chain(more) {
        let node = KubeadmNode::after(&format!("rm -r manifests; {change}"));
        let found = node.configured_doctor(&config);
        let doctor_refuses = found
            .errors_and_warnings()
            .contains("error kubeadm-external-ca");
        let outputs = kubeadm::init(Kubeadm::new(&node.etc_kubernetes()), &config);
        let kubeadm_accepts = outputs.iter().all(|output| output.status.success());
        refused += usize::from(!kubeadm_accepts);
        if doctor_refuses == kubeadm_accepts {
            let said = outputs.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            wrong.push(format!(
                "{change}: kubeadm {}, doctor {:?}\n{}",
                if kubeadm_accepts {
                    "accepts"
                } else {
                    "refuses"
                },
                found.errors_and_warnings(),
                said.join("")
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(refused > 15, "{refused}");
}

/// A missing key of an etcd certificate stops `kubeadm certs renew`, not `kubeadm init`.
#[test]
fn agrees_with_kubeadm_on_renewal() {
    for (change, expected) in [
        ("rm pki/etcd/ca.key", &[][..]),
        (
            "rm pki/etcd/ca.key pki/etcd/peer.key",
            &["error missing-key", "warning kubeadm-renewal"],
        ),
    ] {
        let node = KubeadmNode::after(&format!("rm -r manifests; {change}"));
        let found = node.configured_doctor(KUBEADM_CONFIG);
        found.exactly(expected, change);
        let output =
            kubeadm::check_expiration(Kubeadm::new(&node.etc_kubernetes()), KUBEADM_CONFIG, "json");
        let doctor_refuses = found.all().contains("warning kubeadm-renewal");
        assert_eq!(
            output.status.success(),
            !doctor_refuses,
            "{change}: {output:?}"
        );
    }
}

/// Requirements of kubeadm init do not apply to a node that joins or on which kubeadm init has run.
#[test]
fn requires_kubeconfigs_on_first_node_only() {
    const CHANGE: &str = "rm pki/ca.key super-admin.conf";
    let before_init = KubeadmNode::after(&format!("{CHANGE}; rm -r manifests"));
    before_init.configured_doctor(KUBEADM_CONFIG).exactly(
        &["error kubeadm-external-ca", "error kubeconfig-missing"],
        "the first node",
    );
    before_init
        .doctor(&[])
        .exactly(&["warning kubeadm-external-ca"], "who knows");
    let after_init = KubeadmNode::after(&format!(
        "{CHANGE}; sed -i 's|\\(cluster-signing-[a-z]*-file\\)=.*|\\1=|' manifests/kube-controller-manager.yaml"
    ));
    let found = after_init.configured_doctor(KUBEADM_CONFIG);
    found.exactly(&[], "a first node that runs");
    assert!(found.all().contains("info kubeadm-external-ca"));
    assert!(found.all().contains("info controller-manager-no-signer"));
}

// ---- A real cluster ----

#[test]
fn checks_what_the_cluster_publishes() {
    const SUPER_ADMIN: &str = "/etc/kubernetes/super-admin.conf";
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let doctor = |kubeconfig: &str| {
        let mut command = node.command(NODEPKI);
        let arguments = [
            "--root",
            "/",
            "doctor",
            "-o",
            "json",
            "--kubeconfig",
            kubeconfig,
        ];
        Diagnosis::of(command.args(arguments))
    };
    let healthy = doctor(SUPER_ADMIN);
    // kubeadm init has finished, and super-admin.conf still exists.
    healthy.exactly(&["warning super-admin-left"], "a sound cluster");
    for asked in ["kubelet-client-rbac", "admin-rbac"] {
        assert!(
            !healthy.all().contains(&format!("info {asked}")),
            "{}",
            healthy.ran.said()
        );
    }

    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    for (binding, finding) in [
        (
            "kubeadm:apiserver-kubelet-client",
            "error kubelet-client-rbac",
        ),
        ("kubeadm:cluster-admins", "error admin-rbac"),
    ] {
        let (code, _) = cluster.admin().delete(&format!("{bindings}/{binding}"));
        assert_eq!(code, 200);
        wait_until(finding, || {
            doctor(SUPER_ADMIN).errors_and_warnings().contains(finding)
        });
    }
    let found = doctor(SUPER_ADMIN);
    found.exactly(
        &[
            "error admin-rbac",
            "error kubelet-client-rbac",
            "warning super-admin-left",
        ],
        "no role bindings",
    );
    // The manifests in the fixes create the missing role bindings.
    for finding in found.findings() {
        let fix = finding["fix"].as_str().unwrap();
        let Some((_, manifest)) = fix.split_once("administrator:\n") else {
            continue;
        };
        let object = nodepki::yaml::parse("fix", manifest).unwrap();
        let object = nodepki::yaml::to_json(&object[0]);
        let (code, answer) = cluster.admin().post(bindings, &object);
        assert_eq!(code, 201, "{answer}");
    }
    wait_until("the bindings are in force", || {
        doctor(SUPER_ADMIN).errors_and_warnings()
            == BTreeSet::from(["warning super-admin-left".to_owned()])
    });
    // Missing permissions are reported.
    let scheduler = doctor("/etc/kubernetes/scheduler.conf");
    assert!(
        scheduler
            .errors_and_warnings()
            .contains("warning cluster-refused"),
        "{}",
        scheduler.ran.said()
    );

    // A valid pair of another cluster.
    let [key, public] = ["sa.key", "sa.pub"].map(|name| {
        let path = node.path(&format!("/etc/kubernetes/pki/{name}"));
        let kept = fs::read(&path).unwrap();
        fs::copy(kubeadm_nodes().other.path().join("pki").join(name), &path).unwrap();
        (path, kept)
    });
    doctor(SUPER_ADMIN).exactly(
        &["error sa-divergence", "warning super-admin-left"],
        "another pair",
    );
    for (path, kept) in [key, public] {
        fs::write(path, kept).unwrap();
    }

    node.stop("kube-apiserver");
    let found = doctor(SUPER_ADMIN);
    found.exactly(
        &["error cluster-unreachable", "warning super-admin-left"],
        "an unreachable cluster",
    );
    doctor("/nowhere.conf").exactly(
        &["error cluster-unreachable", "warning super-admin-left"],
        "no kubeconfig",
    );
}

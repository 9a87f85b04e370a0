//! One command changes a CA, or the service-account key, on two control-plane nodes, whose daemons take the steps through the cluster's API.
//!
//! Everything is real except the kubelet, which [`StaticPods`] replaces, and the signer, whose CA the test exchanges when
//! the phase `activate` demands it.

mod long;
mod ml_dsa;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{Certificate, PrivateKey, certificates_of};
use serde_json::{Value, json};

use crate::authority::{KUBECONFIGS, new_key, self_signed, trusted_in};
use crate::join_control_plane::{prepare, prepare_beside, start_components};
use crate::node::Ran;
use crate::rotation_cluster::Daemon;
use crate::servers::bin;
use crate::servers::cluster::{Authorities, Cluster, ClusterNode, INIT, Programs};
use crate::servers::remote_signer::{PLUGIN, RemoteSigner};
use crate::servers::static_pods::StaticPods;
use crate::time::{eventually, let_pass, wait_until};

const SOCKET: &str = "/run/signer.sock";
const NEW_CA: &str = "/var/new.crt";

/// Two control-plane nodes with external authorities, and all that runs on them.
struct Pair {
    cluster: Cluster,
    second: ClusterNode,
    pods: [StaticPods; 2],
    signers: [RemoteSigner; 2],
}

impl Pair {
    fn start() -> Pair {
        Self::with_programs(Programs::Usual, INIT)
    }

    /// Starts a pair with these programs and this configuration of kubeadm. See [`Cluster::made_of`].
    fn with_programs(programs: Programs, config: &str) -> Pair {
        let cluster = Cluster::with_programs(programs, config, Authorities::External);
        let second = cluster.add_node("cp2", "192.0.2.12");
        prepare(&cluster, &second);
        start_components(&second);
        let admin = cluster.admin();
        second.register(&admin);
        drop(admin);
        cluster.first().write("/run/kubeadm/kubeadm.yaml", config);
        let nodes = [cluster.first(), &second];
        let signers =
            nodes.map(|node| RemoteSigner::start(&node.path(SOCKET), &cluster.authorities()));
        for node in nodes {
            node.write(
                "/etc/nodepki/config.yaml",
                &format!(
                    "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
authorities: {{ca: {{signer: remote}}, etcd-ca: {{signer: remote}}, front-proxy-ca: {{signer: remote}}}}
signers: {{remote: {{exec: {{command: /bin/bash, args: ['{PLUGIN}', {SOCKET}], timeout: 30s}}}}}}
authorityRotation: {{enabled: true}}
reload: {{hooks: [{{on: [kubelet], command: [/bin/true]}}]}}
"
                ),
            );
        }
        Pair {
            pods: nodes.map(StaticPods::of),
            signers,
            second,
            cluster,
        }
    }

    fn nodes(&self) -> [&ClusterNode; 2] {
        [self.cluster.first(), &self.second]
    }

    /// Runs `nodepki authority ARGUMENTS` on the first node.
    fn authority(&self, arguments: &[&str]) -> Ran {
        self.cluster
            .first()
            .nodepki(&[&["authority"], arguments].concat())
    }

    /// Starts a rotation to the created CA, once both nodes have reported that they have ended the one before.
    fn rotate(&self, authority: Authority, options: &[&str]) {
        let rotate = ["rotate", authority.as_str(), "--certificate", NEW_CA];
        let arguments = [&rotate[..], options].concat();
        wait_until("the rotation has started", || {
            self.authority(&arguments).code == Some(0)
        });
    }

    /// Asserts that the command of a rotation in progress changes nothing.
    fn accepts_again(&self, rotate: &[&str]) {
        wait_until("the same rotation is accepted again", || {
            let ran = self.authority(rotate);
            // While the API server restarts.
            if ran.code == Some(75) {
                return false;
            }
            ran.done().says("nothing to do");
            true
        });
    }

    /// Returns certificate and key of the CA with which the signer signs.
    fn signing(&self, authority: Authority) -> [String; 2] {
        ["crt", "key"].map(|kind| fs::read_to_string(self.signing_file(authority, kind)).unwrap())
    }

    fn signing_file(&self, authority: Authority, kind: &str) -> PathBuf {
        let base = self.cluster.authorities().join(authority.base_name());
        base.with_extension(kind)
    }

    fn switch_signer(&self, authority: Authority, [certificate, key]: &[String; 2]) {
        fs::write(self.signing_file(authority, "crt"), certificate).unwrap();
        fs::write(self.signing_file(authority, "key"), key).unwrap();
    }

    /// Creates a CA, and its certificate on the first node.
    fn create_ca(&self, authority: Authority) -> [String; 2] {
        self.create_ca_with(authority, new_key())
    }

    fn create_ca_with(&self, authority: Authority, key: PrivateKey) -> [String; 2] {
        let pem = key.to_pem().to_string();
        let certificate = self_signed(authority, key).bundle().to_pem();
        self.cluster.first().write(NEW_CA, &certificate);
        [certificate, pem]
    }

    /// Returns the rotation in the ConfigMap; `None` while the API server of the first node restarts. Not with curl, which
    /// sends no certificate under a CA with an ML-DSA key if its OpenSSL is older than 3.5.
    fn rotation(&self, subject: &str) -> Option<Value> {
        let ran = self.authority(&["watch", subject, "--once", "-o", "json"]);
        let mut shown: Value = serde_json::from_str(&ran.stdout).ok()?;
        Some(shown["items"].get_mut(0)?["rotation"].take())
    }

    fn wait_for_phase(&self, subject: &str, phase: &str, daemons: &[Daemon<'_>; 2]) {
        eventually(|| {
            let rotation = self.rotation(subject);
            match rotation.as_ref().map(|rotation| &rotation["phase"]) {
                Some(found) if found == phase => Ok(()),
                _ => Err(format!(
                    "no {phase}: {rotation:?}\n{}\n{}",
                    daemons[0].said(),
                    daemons[1].said()
                )),
            }
        });
    }

    /// Completes a rotation that has just started: switches the signer when the phase demands it.
    fn complete(&self, authority: Authority, new: &[String; 2], daemons: &mut [Daemon<'_>; 2]) {
        self.wait_for_phase(authority.as_str(), "activate", daemons);
        for node in self.nodes() {
            assert_eq!(bundle(node, authority).len(), 2, "{}", node.name());
        }
        self.switch_signer(authority, new);
        daemons.iter_mut().for_each(Daemon::reload);
        self.wait_for_phase(authority.as_str(), "done", daemons);
        self.assert_only(authority, &new[0]);
    }

    /// Asserts that both nodes trust only this CA and have all certificates under it.
    fn assert_only(&self, authority: Authority, certificate: &str) {
        let expected = certificates_of(certificate.as_bytes()).unwrap();
        for node in self.nodes() {
            assert_eq!(bundle(node, authority), expected, "{}", node.name());
            for name in KUBECONFIGS
                .into_iter()
                .filter(|_| authority == Authority::Ca)
            {
                let path = node.path("/etc/kubernetes").join(name.as_str());
                if path.exists() {
                    let text = fs::read_to_string(&path).unwrap();
                    assert_eq!(trusted_in(&text), expected, "{name} on {}", node.name());
                }
            }
            let of = |name: &CertName| name.authority() == authority && !name.is_kubeconfig();
            for name in CertName::KUBEADM.into_iter().filter(of) {
                let file = node.pki(name.base_name()).with_extension("crt");
                if file.exists() {
                    verify(&node.pki(&format!("{}.crt", authority.base_name())), &file);
                }
            }
        }
    }
}

fn bundle(node: &ClusterNode, authority: Authority) -> Vec<Certificate> {
    let file = node.pki(&format!("{}.crt", authority.base_name()));
    certificates_of(&fs::read(file).unwrap()).unwrap()
}

/// Verifies with OpenSSL 3.5, which has ML-DSA.
fn verify(ca: &Path, certificate: &Path) {
    let mut openssl = std::process::Command::new(bin("in-trixie"));
    for dir in [ca, certificate].map(|file| file.parent().unwrap()) {
        openssl.arg("--bind").args([dir, dir]);
    }
    openssl.args(["--", "openssl", "verify", "-CAfile"]);
    Ran::of(openssl.args([ca, certificate])).done();
}

/// The front proxy's CA restarts no component, so every scene takes seconds.
#[test]
fn is_undone_paused_and_continued_without_a_node() {
    const AUTHORITY: Authority = Authority::FrontProxyCa;
    let pair = &Pair::start();
    let mut daemons = pair.nodes().map(Daemon::start);
    let name = AUTHORITY.as_str();
    let old = pair.signing(AUTHORITY);
    pair.authority(&["pause", name])
        .ended(65)
        .says("front-proxy-ca: no rotation is in progress");

    // Before any certificate is under the new CA.
    pair.create_ca(AUTHORITY);
    pair.rotate(AUTHORITY, &[]);
    pair.wait_for_phase(name, "activate", &daemons);
    pair.cluster
        .first()
        .nodepki(&["authority", "stage", name, "--undo"])
        .ended(65)
        // The node's daemon may not have read the new phase yet.
        .says("on the whole cluster, and nodepki.service takes its steps on every node");
    pair.authority(&["undo", name]).done();
    pair.wait_for_phase(name, "undone", &daemons);
    pair.assert_only(AUTHORITY, &old[0]);

    // While certificates are under the new CA.
    let new = pair.create_ca(AUTHORITY);
    pair.rotate(AUTHORITY, &["--hold-before", "retire"]);
    pair.authority(&["pause", name]).done().says("paused");
    pair.authority(&["watch", "--once"])
        .ended(75)
        .says("waits: the rotation is paused");
    let phase = pair.rotation(name).unwrap()["phase"].clone();
    let_pass(Duration::from_secs(5));
    assert_eq!(pair.rotation(name).unwrap()["phase"], phase);
    pair.authority(&["resume", name]).done();
    pair.switch_signer(AUTHORITY, &new);
    wait_until("a certificate is under the new CA", || {
        let new = &certificates_of(new[0].as_bytes()).unwrap()[0];
        bundle(pair.cluster.first(), AUTHORITY)[0] == *new
    });
    pair.switch_signer(AUTHORITY, &old);
    pair.authority(&["undo", name]).done();
    daemons.iter_mut().for_each(Daemon::reload);
    pair.wait_for_phase(name, "undone", &daemons);
    pair.assert_only(AUTHORITY, &old[0]);

    // Without the second node, which completes the change later.
    let new = pair.create_ca(AUTHORITY);
    pair.rotate(AUTHORITY, &["--hold-before", "activate"]);
    daemons[1].stop();
    pair.authority(&["resume", name]).done();
    pair.switch_signer(AUTHORITY, &new);
    wait_until("the first node has proven the phase", || {
        let shown = pair.authority(&["watch", "--once"]);
        shown.code == Some(75)
            && shown.stdout.contains("waits: cp2: ")
            && !shown.stdout.contains("waits: cp1: ")
    });
    pair.authority(&["rotate", name, "--exclude", "cp9"])
        .ended(65)
        .says("the cluster has no node cp9");
    pair.authority(&["rotate", name, "--exclude", "cp2"]).done();
    daemons[1] = Daemon::start(pair.nodes()[1]);
    pair.wait_for_phase(name, "done", &daemons);
    wait_until("the second node has completed the change", || {
        bundle(pair.nodes()[1], AUTHORITY).len() == 1
    });
    pair.assert_only(AUTHORITY, &new[0]);
    daemons.iter_mut().for_each(Daemon::stop);
}

/// The joining node's user data contains the CA from before the change.
#[test]
fn joining_node_trusts_cas_of_phase() {
    const AUTHORITY: Authority = Authority::FrontProxyCa;
    let pair = &Pair::start();
    let mut daemons = pair.nodes().map(Daemon::start);
    let old = pair.signing(AUTHORITY);
    let new = pair.create_ca(AUTHORITY);
    pair.rotate(
        AUTHORITY,
        &["--hold-before", "activate", "--hold-before", "retire"],
    );
    let certificates = |pems: [&str; 2]| certificates_of(pems.concat().as_bytes()).unwrap();
    let joining = |name: &str, address: &str| {
        let node = pair.cluster.add_node(name, address);
        fs::create_dir_all(node.pki("")).unwrap();
        fs::write(node.pki("front-proxy-ca.crt"), &old[0]).unwrap();
        // The files are compared with those of the first node.
        prepare_beside(&pair.cluster, &node);
        node
    };
    wait_until("activate is held", || {
        let shown = pair.authority(&["watch", "--once"]).stdout;
        shown.contains("every node has proven the phase, and activate is held")
    });
    let third = joining("cp3", "192.0.2.13");
    assert_eq!(bundle(&third, AUTHORITY), certificates([&old[0], &new[0]]));

    pair.authority(&["resume", AUTHORITY.as_str()]).done();
    pair.wait_for_phase(AUTHORITY.as_str(), "activate", &daemons);
    pair.switch_signer(AUTHORITY, &new);
    daemons.iter_mut().for_each(Daemon::reload);
    wait_until("retire is held", || {
        let shown = pair.authority(&["watch", "--once"]).stdout;
        shown.contains("every node has proven the phase, and retire is held")
    });
    let fourth = joining("cp4", "192.0.2.14");
    assert_eq!(bundle(&fourth, AUTHORITY), certificates([&new[0], &old[0]]));
    let authority = fourth.path("/var/new.crt");
    fs::write(&authority, &new[0]).unwrap();
    verify(&authority, &fourth.pki("front-proxy-client.crt"));
    // The signer answers after the phase has changed.
    third.nodepki(&["bootstrap"]).done().says("phase activate");
    assert_eq!(bundle(&third, AUTHORITY), certificates([&new[0], &old[0]]));
    daemons.iter_mut().for_each(Daemon::stop);
}

/// Daemons that are killed at any moment continue with the files that they find.
#[test]
fn completes_although_daemons_are_killed() {
    const AUTHORITY: Authority = Authority::FrontProxyCa;
    let pair = &Pair::start();
    let mut daemons = pair.nodes().map(Daemon::start);
    let new = pair.create_ca(AUTHORITY);
    pair.rotate(AUTHORITY, &[]);
    let (begin, mut kills) = (Instant::now(), 0);
    let mut is_switched = false;
    eventually(|| {
        let Some(rotation) = pair.rotation(AUTHORITY.as_str()) else {
            return Err("the API server does not answer".to_owned());
        };
        if rotation["phase"] == "done" {
            return Ok(());
        }
        if rotation["phase"] == "activate" && !is_switched {
            pair.switch_signer(AUTHORITY, &new);
            is_switched = true;
        }
        // Longer and longer, so a step completes on a busy machine too.
        let_pass(Duration::from_millis(150 + 53 * kills));
        daemons[usize::from(kills % 2 == 1)].kill();
        kills += 1;
        Err(daemons[0].said())
    });
    println!("{kills} kills in {:.0?}", begin.elapsed());
    assert!(kills > 3);
    wait_until("both nodes have removed the old CA", || {
        pair.nodes()
            .iter()
            .all(|node| bundle(node, AUTHORITY).len() == 1)
    });
    pair.assert_only(AUTHORITY, &new[0]);
    daemons.iter_mut().for_each(Daemon::stop);
}

const NEW_KEY_SECRET: &str =
    "/api/v1/namespaces/kube-system/secrets/nodepki-service-account-rotation";

impl Pair {
    /// Gives both nodes the label of control-plane nodes, as kubeadm does.
    fn label(&self) {
        let admin = self.cluster.admin();
        let labels = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
        for node in self.nodes() {
            let path = format!("/api/v1/nodes/{}", node.name());
            let (status, labelled) = admin.send("PATCH", &path, Some(&labels));
            assert_eq!(status, 200, "{labelled}");
        }
    }

    /// Returns the new public key of the rotation.
    fn new_service_account_key(&self) -> String {
        let mut rotation = None;
        wait_until("the API server responds", || {
            rotation = self.rotation("sa");
            rotation.is_some()
        });
        rotation.unwrap()["new"]["certificate"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn servers(&self) -> [String; 2] {
        self.nodes()
            .map(|node| format!("https://{}:6443", node.address()))
    }

    /// Returns a token of each API server.
    fn tokens(&self) -> Vec<String> {
        let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
        let request =
            json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
        let issue = |server: &String| {
            let mut token = None;
            wait_until("the API server issues a token", || {
                let (_, issued) = self.cluster.admin().at(server).post(path, &request);
                token = issued["status"]["token"].as_str().map(str::to_owned);
                token.is_some()
            });
            token.unwrap()
        };
        self.servers().iter().map(issue).collect()
    }

    /// Asserts whether both API servers accept each of these tokens. Without rights its user gets 403.
    fn assert_accepted(&self, tokens: &[String], is_accepted: bool, when: &str) {
        let expected = if is_accepted { 403 } else { 401 };
        for server in self.servers() {
            for (index, token) in tokens.iter().enumerate() {
                let caller = self.cluster.first().bearer(&server, token);
                let mut found = (0, Value::Null);
                wait_until("the API server answers", || {
                    found = caller.get("/api/v1/namespaces");
                    matches!(found.0, 401 | 403)
                });
                assert_eq!(found.0, expected, "token {index} at {server}, {when}");
            }
        }
    }

    /// Returns the public keys of each node in the order of `sa.pub`, in PEM, after that of `sa.key`.
    fn service_account_keys(&self) -> [Vec<String>; 2] {
        self.nodes().map(|node| {
            let private = fs::read(node.pki("sa.key")).unwrap();
            let private = PrivateKey::from_pem(&private).unwrap();
            let public = fs::read_to_string(node.pki("sa.pub")).unwrap();
            let end = "-----END PUBLIC KEY-----\n";
            let blocks = public.split_inclusive(end).map(str::to_owned);
            std::iter::once(private.public_key().to_pem())
                .chain(blocks)
                .collect()
        })
    }

    /// Waits until both nodes have these keys, and asserts the number of keys in the JWKS of both API servers.
    fn wait_for_keys(&self, signing: &str, public: &[&str]) {
        let expected: Vec<&str> = std::iter::once(signing)
            .chain(public.iter().copied())
            .collect();
        wait_until("both nodes have the keys", || {
            self.service_account_keys()
                .iter()
                .all(|found| *found == expected)
        });
        for server in self.servers() {
            wait_until("the API server publishes the keys", || {
                let (_, set) = self.cluster.admin().at(&server).get("/openid/v1/jwks");
                set["keys"]
                    .as_array()
                    .is_some_and(|keys| keys.len() == public.len())
            });
        }
    }

    /// Waits until both nodes have proven that they sign with the other key.
    fn wait_for_token_wait(&self) {
        wait_until("the wait for tokens has begun", || {
            let rotation = self.rotation("sa");
            rotation.is_some_and(|rotation| rotation["tokenWait"].is_object())
        });
    }

    /// Waits until both nodes have deleted the private keys of a rotation that has ended.
    fn wait_until_cleared(&self) {
        wait_until("the keys of the rotation are removed", || {
            let files = self.nodes().map(|node| {
                node.path("/var/lib/nodepki/service-account-keys.json")
                    .exists()
            });
            files == [false, false] && self.cluster.admin().get(NEW_KEY_SECRET).0 == 404
        });
    }
}

#[test]
fn rotates_service_account_key_of_two_nodes() {
    let pair = &Pair::start();
    let mut daemons = pair.nodes().map(Daemon::start);
    // Long enough for all that is examined before the old key is dropped.
    let rotate = ["rotate", "sa", "--token-lifetime", "90s"];
    wait_until("the missing label is named", || {
        let ran = pair.authority(&rotate);
        ran.code == Some(65)
            && ran
                .said()
                .contains("is not labelled as a control-plane node")
    });
    pair.label();
    pair.authority(&["rotate", "sa", "--certificate", NEW_CA])
        .ended(64)
        .says("a service-account key has no certificate");
    pair.authority(&[
        "rotate",
        "ca",
        "--certificate",
        NEW_CA,
        "--token-lifetime",
        "1h",
    ])
    .ended(64)
    .says("only the rotation of sa waits for tokens");
    pair.authority(&["rotate", "ca"])
        .ended(64)
        .says("--certificate FILE is missing");
    let old = pair.service_account_keys()[0][0].clone();
    let before = pair.tokens();

    wait_until("the rotation has started", || {
        pair.authority(&rotate).code == Some(0)
    });
    pair.accepts_again(&rotate);
    wait_until("the Secret exists", || {
        let (status, secret) = pair.cluster.admin().get(NEW_KEY_SECRET);
        let entries = secret["data"].as_object().cloned().unwrap_or_default();
        for entry in entries.values() {
            let text = BASE64.decode(entry.as_str().unwrap()).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains("PRIVATE"));
        }
        status == 200 && entries.contains_key("cp2")
    });
    pair.wait_for_phase("sa", "activate", &daemons);
    let between = pair.tokens();
    let new = pair.new_service_account_key();
    pair.wait_for_keys(&new, &[&new, &old]);
    // kubeadm compares the pair in a cluster with external CAs.
    let certs = ["init", "phase", "certs", "sa"];
    pair.cluster.first().kubeadm(&certs, Some(INIT)).done();
    pair.wait_for_token_wait();
    let after = pair.tokens();
    let shown = pair.authority(&["watch", "--once", "-o", "json"]);
    crate::documents::verify("authority-rotation-sa", shown.ended(75));
    pair.authority(&["watch", "--once"])
        .ended(75)
        .says("tokens of the former one may be valid until 20");
    for tokens in [&before, &between, &after] {
        pair.assert_accepted(tokens, true, "in activate");
    }
    pair.wait_for_phase("sa", "done", &daemons);
    pair.wait_for_keys(&new, &[&new]);
    pair.assert_accepted(&before, false, "at the end");
    pair.assert_accepted(&after, true, "at the end");
    pair.wait_until_cleared();
    for (node, pods) in pair.nodes().into_iter().zip(&pair.pods) {
        for component in ["kube-apiserver", "kube-controller-manager"] {
            println!("{} {component}: {}", node.name(), pods.restarts(component));
        }
        assert_eq!(pods.restarts("etcd"), 0);
        assert_eq!(pods.restarts("kube-scheduler"), 0);
    }
    daemons.iter_mut().for_each(Daemon::stop);
}

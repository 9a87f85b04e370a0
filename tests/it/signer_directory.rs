//! `directory`: the content of the outbox, and the inbox files that are not accepted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nodepki::kube::names::CertName;
use nodepki::signer::directory::Directory;
use nodepki::signer::{Answer, FailureClass, Request, Signer, SignerKind, Ticket};
use nodepki::x509::{Csr, Subject};
use tempfile::TempDir;

use crate::log::logged;
use crate::node::{EVERYTHING, Node, Ran};
use crate::rig::{Denial, Rig};
use crate::signer_bad::verdict;
use crate::signing::{
    PlainDir, contains, denied, fails, issued, now, openssl, pending, request, run, settings, tree,
    write_authorities,
};

/// Signs a CSR of the outbox with `openssl x509 -req`, into the inbox.
pub(crate) fn sign_by_hand(drop: &Path, authorities: &Path, name: CertName) {
    sign_with(drop, authorities, name, &[]);
}

/// As [`sign_by_hand`], with further options of `openssl x509 -req`.
fn sign_with(drop: &Path, authorities: &Path, name: CertName, options: &[&str]) {
    let ca = authorities.join(name.authority().base_name());
    let (request, ca, key) = (
        drop.join(format!("outbox/{name}.csr")),
        ca.with_extension("crt"),
        ca.with_extension("key"),
    );
    let mut words = vec!["x509", "-req", "-copy_extensions", "copy", "-days", "365"];
    for (option, file) in [("-in", &request), ("-CA", &ca), ("-CAkey", &key)] {
        words.extend([option, file.to_str().unwrap()]);
    }
    words.extend(options);
    let signed = openssl(&words, b"");
    fs::write(drop.join(format!("inbox/{name}.crt")), signed).unwrap();
}

/// Files, with OpenSSL in the role of the administrator who signs.
pub(crate) struct DirectoryRig(TempDir);

impl DirectoryRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        DirectoryRig(dir)
    }

    fn drop(&self) -> PathBuf {
        self.0.path().join("drop")
    }
}

impl Rig for DirectoryRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Directory
    }

    fn settings(&self) -> String {
        settings(&format!("directory: {{path: {}}}", self.drop().display()))
    }

    fn scratch(&self) -> &Path {
        self.0.path()
    }

    fn approve(&self) {
        for name in CertName::KUBEADM {
            if self.drop().join(format!("outbox/{name}.csr")).exists() {
                sign_by_hand(&self.drop(), self.0.path(), name);
            }
        }
    }

    fn deny(&self, request: &Request) -> Option<Denial> {
        let signer = self.open(request.wanted.authority);
        run(signer.submit(request)).unwrap();
        let denied = self.drop().join(format!("inbox/{}.denied", request.name()));
        fs::write(denied, "not on a Friday\n").unwrap();
        Some(Denial {
            signer,
            ticket: None,
            reason: "not on a Friday",
        })
    }

    fn sent(&self) -> Vec<String> {
        let outbox = fs::read_dir(self.drop().join("outbox"));
        let mut sent: Vec<String> = outbox
            .into_iter()
            .flatten()
            .map(|file| file.unwrap().path().display().to_string())
            .filter(|path| path.ends_with(".csr"))
            .collect();
        sent.sort();
        sent
    }
}

struct Drop {
    dir: TempDir,
    signer: Directory,
}

impl Drop {
    fn new() -> Self {
        Self::trusting(Vec::new())
    }

    fn trusting(uids: Vec<u32>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let drop = dir.path().join("drop");
        let signer = Directory::new(&drop, Box::new(PlainDir(drop.clone())), uids);
        Drop { dir, signer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("drop").join(name)
    }

    fn submit(&self, request: &Request) -> Ticket {
        pending(run(self.signer.submit(request))).0
    }

    fn poll(&self, request: &Request) -> Answer {
        let ticket = Ticket::try_from(request.id.to_string()).unwrap();
        run(self.signer.poll(request, &ticket)).unwrap()
    }

    /// Returns why the inbox file is not accepted.
    #[track_caller]
    fn note(&self, request: &Request) -> String {
        pending(Ok(self.poll(request))).1
    }

    fn sign(&self, request: &Request) -> PathBuf {
        sign_by_hand(&self.path(""), self.dir.path(), request.name());
        self.path(&format!("inbox/{}.crt", request.name()))
    }

    fn issued(&self, request: &Request) -> Vec<u8> {
        issued(Ok(self.poll(request)))
    }
}

/// Signs all CSRs of the outbox like a CA whose policy puts attributes before those of the request.
fn sign_with_policy(drop: &Path, authorities: &Path, policy: &str) {
    for name in EVERYTHING {
        let json = fs::read(drop.join(format!("outbox/{name}.json"))).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let Subject {
            common_name,
            organizations,
        } = serde_json::from_value(json["subject"].clone()).unwrap();
        let organizations: String = organizations
            .iter()
            .map(|one| format!("/O={one}"))
            .collect();
        let subject = format!("{policy}{organizations}/CN={common_name}");
        sign_with(drop, authorities, name, &["-subj", &subject]);
    }
}

#[test]
fn accepts_only_further_attributes_that_no_component_reads() {
    let drop = Drop::new();
    let request = request(CertName::AdminConf);
    drop.submit(&request);
    let mut tolerant = request.wanted.clone();
    tolerant.tolerance.unread_attributes = true;
    let tolerant = Request::new(
        tolerant,
        request.csr.clone(),
        request.identity.clone(),
        now(),
    );
    let own = "/O=kubeadm:cluster-admins/CN=kubernetes-admin";
    let masters =
        "unexpected O \"system:masters\": Kubernetes would treat it as membership of that group";
    for (subject, refusal) in [
        (
            format!("/C=DE/ST=Berlin/L=Berlin/street=Am Tor 1/postalCode=10117{own}"),
            "",
        ),
        (
            format!("/DC=com/DC=example/OU=Platform/OU=Kubernetes{own}/serialNumber=7"),
            "",
        ),
        // More than one attribute in a relative distinguished name.
        (
            format!("/C=DE+L=Berlin{own}"),
            "unexpected subject attribute C=DE; unexpected subject attribute L=Berlin",
        ),
        (
            format!("{own}+OU=Platform"),
            "unexpected subject attribute OU=Platform",
        ),
        (
            format!("/C=DE/emailAddress=a@example.com{own}"),
            "unexpected subject attribute Email=a@example.com",
        ),
        (format!("/OU=Platform{own}/O=system:masters"), masters),
        (
            format!("/C=DE{own}/CN=admin"),
            "expected CN \"kubernetes-admin\", found \"kubernetes-admin, admin\"",
        ),
    ] {
        sign_with(
            &drop.path(""),
            drop.dir.path(),
            request.name(),
            &["-subj", &subject],
        );
        let answer = drop.issued(&request);
        let found = verdict(&tolerant, &answer, drop.dir.path());
        assert_eq!(found, refusal, "{subject}");
        let strict = verdict(&request, &answer, drop.dir.path());
        assert!(
            strict.contains("expected CN") || strict.contains("unexpected "),
            "{subject}: {strict}"
        );
    }
}

#[test]
fn installs_answers_with_attributes_of_ca_policy() {
    let node = Node::new();
    let drop = node.outside("drop");
    fs::create_dir(&drop).unwrap();
    node.bootstrap_by_drop(&drop).ended(75);
    sign_with_policy(&drop, &node.ca(), "/C=DE/L=Berlin/OU=Platform");
    let note = "its subject also has C, L, OU, which the signer added and no component of Kubernetes reads";
    node.bootstrap_by_drop(&drop)
        .done()
        .row_says("scheduler.conf", note)
        .row_says("etcd-peer", note);
    // Existing files are kept, in pairs as in kubeconfigs.
    let before = node.etc();
    node.plan()
        .done()
        .row_says("apiserver", "keep")
        .row_says("admin.conf", "keep")
        .row_says("admin.conf", note);
    node.bootstrap().done();
    before.unchanged(&node.etc());
    node.write_settings(&format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nverification: strict\n\
         signers: {{s: {{local: {{directory: {}}}}}}}\n",
        node.ca().display()
    ));
    Ran::of(&mut node.configured(["plan"]))
        .done()
        .row_says("apiserver", "unexpected subject attribute OU=Platform")
        .row_says("admin.conf", "unexpected subject attribute C=DE");
}

#[test]
fn refuses_attributes_of_ca_policy_in_strict_verification() {
    let node = Node::new();
    let drop = node.outside("drop");
    fs::create_dir(&drop).unwrap();
    node.write_settings(&format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nverification: strict\n\
         signers: {{s: {{directory: {{path: {}}}}}}}\n",
        drop.display()
    ));
    node.ask().ended(75);
    sign_with_policy(&drop, &node.ca(), "/OU=Platform");
    node.ask()
        .ended(65)
        .says("unexpected subject attribute OU=Platform");
    assert!(!node.path("/etc/kubernetes/admin.conf").exists());
}

/// Clusters that use one directory wait for each other.
#[test]
fn keeps_pending_request_of_another_cluster() {
    let node = Node::new();
    let drop = node.outside("drop");
    fs::create_dir(&drop).unwrap();
    let secrets = |cluster: &str| {
        let options = ["--show-secrets", "--wait", "0s", "--clock-wait", "0s"];
        let mut command = node.command(["capi", "secrets", cluster]);
        command.args(options).args(["--endpoint", "api:6443"]);
        command.arg("--ca-dir").arg(node.ca());
        command.arg(format!("--signer=directory:{}", drop.display()));
        Ran::of(&mut command)
    };
    secrets("prod").ended(75);
    let before = tree(&drop);
    let refusal = "outbox/admin.conf.json is a pending request of the cluster prod";
    secrets("dev").ended(78).says(refusal);
    assert_eq!(tree(&drop), before);
    for name in [CertName::AdminConf, CertName::ApiserverEtcdClient] {
        sign_by_hand(&drop, &node.ca(), name);
    }
    secrets("dev").ended(78).says(refusal);
    secrets("prod").done();
    secrets("dev").ended(75);
}

#[test]
fn describes_request_completely_in_outbox() {
    let drop = Drop::new();
    let request = request(CertName::Apiserver);
    drop.submit(&request);
    let csr = fs::read(drop.path("outbox/apiserver.csr")).unwrap();
    assert_eq!(Csr::from_pem(&csr).unwrap(), request.csr);
    openssl(&["req", "-verify", "-noout"], &csr);
    let json = fs::read(drop.path("outbox/apiserver.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let der = openssl(&["req", "-outform", "DER"], &csr);
    let digest = String::from_utf8(openssl(&["dgst", "-sha256", "-r"], &der)).unwrap();
    assert!(digest.starts_with(json["csrSha256"].as_str().unwrap()));
    assert_eq!(json["apiVersion"], "signer.nodepki.dev/v1");
    assert_eq!(json["kind"], "SignRequest");
    assert_eq!(json["slot"], "apiserver");
    assert_eq!(json["ca"], "ca");
    assert_eq!(json["node"], "cp1");
    assert_eq!(json["subject"]["commonName"], "kube-apiserver");
    assert_eq!(json["dnsNames"][1], "kubernetes");
    assert_eq!(json["ipAddresses"][1], "fd00::1");
    assert_eq!(json["usages"][1], "server auth");
    assert_eq!(json["durationSeconds"], 31_536_000);
    for name in ["apiserver.csr", "apiserver.json"] {
        let meta = fs::metadata(drop.path("outbox").join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o7777, 0o644);
    }
}

#[test]
fn leaves_files_of_repeated_request_untouched() {
    let drop = Drop::new();
    let request = request(CertName::Apiserver);
    drop.submit(&request);
    let stamp = |name: &str| {
        let meta = fs::metadata(drop.path(name)).unwrap();
        std::os::unix::fs::MetadataExt::ino(&meta)
    };
    let before = (
        tree(&drop.path("")),
        stamp("outbox/apiserver.csr"),
        stamp("outbox/apiserver.json"),
    );
    drop.submit(&request.again(2, now(), Some(now())));
    let after = (
        tree(&drop.path("")),
        stamp("outbox/apiserver.csr"),
        stamp("outbox/apiserver.json"),
    );
    assert_eq!(before, after);
}

#[test]
fn waits_for_partly_copied_answer() {
    let drop = Drop::new();
    let request = request(CertName::Apiserver);
    drop.submit(&request);
    let path = drop.sign(&request);
    let leaf = fs::read(&path).unwrap();
    let ca = fs::read(drop.dir.path().join("ca.crt")).unwrap();
    let whole = [leaf.clone(), ca].concat();
    for length in (0..whole.len()).step_by(37) {
        // A cut between two PEM blocks leaves a leaf without its chain, which only the verification detects.
        if (leaf.len() - 1..leaf.len() + 12).contains(&length) || length >= whole.len() - 1 {
            continue;
        }
        fs::write(&path, &whole[..length]).unwrap();
        let note = drop.note(&request);
        assert!(
            note.contains("apiserver.crt is not accepted"),
            "{length}: {note}"
        );
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(
        verdict(&request, &drop.issued(&request), drop.dir.path()),
        ""
    );
}

#[test]
fn rejects_file_of_wrong_type_owner_mode_or_size() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test needs root: run the tests as root"
    );
    let drop = Drop::trusting(vec![4343]);
    let request = request(CertName::KubeletConf);
    drop.submit(&request);
    let path = drop.sign(&request);
    let good = fs::read(&path).unwrap();
    let rejected = |part: &str| contains(&drop.note(&request), &[part]);

    fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
    rejected("every user may write it (mode 0646)");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();

    chown(&path, Some(4242), None).unwrap();
    rejected("belongs to user 4242");
    chown(&path, Some(4343), None).unwrap();
    drop.issued(&request);

    let elsewhere = drop.path("elsewhere.crt");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    rejected("symbolic link");
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    rejected("not a regular file");
    fs::remove_dir(&path).unwrap();

    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).unwrap();
    rejected("not a regular file");
    fs::remove_file(&path).unwrap();

    let mut large = good.clone();
    large.resize(300 << 10, b'\n');
    fs::write(&path, large).unwrap();
    rejected("larger than 262144 bytes");

    fs::write(&path, "not a certificate").unwrap();
    rejected("does not contain a certificate");

    fs::write(&path, good).unwrap();
    drop.issued(&request);
}

#[test]
fn reports_misnamed_answer_for_both_certificates() {
    let drop = Drop::new();
    let (server, peer) = (request(CertName::EtcdServer), request(CertName::EtcdPeer));
    drop.submit(&server);
    drop.submit(&peer);
    let answer = drop.sign(&peer);
    fs::rename(answer, drop.path("inbox/etcd-server.crt")).unwrap();
    let part = "it is etcd-peer's certificate; rename it to inbox/etcd-peer.crt";
    contains(&drop.note(&server), &[part]);
    let part = "inbox/etcd-server.crt is not accepted: it is etcd-peer's certificate";
    contains(&drop.note(&peer), &[part]);
}

#[test]
fn rejects_answer_to_earlier_request() {
    let drop = Drop::new();
    let (old, new) = (
        request(CertName::FrontProxyClient),
        request(CertName::FrontProxyClient),
    );
    drop.submit(&old);
    let path = drop.sign(&old);
    let bytes = fs::read(&path).unwrap();
    fs::write(drop.path("inbox/front-proxy-client.denied"), "no").unwrap();
    // The new request removes the files of the old one; a certificate signed from an old copy is reported.
    drop.submit(&new);
    assert!(!path.exists());
    assert!(!drop.path("inbox/front-proxy-client.denied").exists());
    fs::write(&path, bytes).unwrap();
    let note = drop.note(&new);
    assert!(note.contains("for another key"), "{note}");
    // The old ticket is no longer valid.
    let ticket = Ticket::try_from(old.id.to_string()).unwrap();
    assert_eq!(run(drop.signer.poll(&new, &ticket)).unwrap(), Answer::Gone);
    drop.sign(&new);
    assert_eq!(verdict(&new, &drop.issued(&new), drop.dir.path()), "");
}

#[test]
fn reports_denial_until_its_file_is_removed() {
    let drop = Drop::new();
    let request = request(CertName::AdminConf);
    drop.submit(&request);
    let path = drop.path("inbox/admin.conf.denied");
    fs::write(&path, "ask \x1b[31mme\n").unwrap();
    for answer in [
        drop.poll(&request),
        run(drop.signer.submit(&request)).unwrap(),
    ] {
        let reason = denied(Ok(answer));
        assert!(reason.starts_with("ask \\u{1b}[31mme ("), "{reason}");
        contains(&reason, &["inbox/admin.conf.denied; remove that file"]);
    }
    fs::remove_file(path).unwrap();
    drop.submit(&request);
}

#[test]
fn writes_outbox_again_after_it_was_cleared() {
    let drop = Drop::new();
    let request = request(CertName::Apiserver);
    let ticket = drop.submit(&request);
    fs::remove_file(drop.path("outbox/apiserver.csr")).unwrap();
    assert_eq!(drop.poll(&request), Answer::Gone);
    assert_eq!(
        run(drop.signer.recover(&request, Some(&ticket))).unwrap(),
        None
    );
    drop.submit(&request);
    // The CSR was removed after it was signed: the answer is accepted, because the ticket matches.
    drop.sign(&request);
    fs::remove_file(drop.path("outbox/apiserver.csr")).unwrap();
    drop.issued(&request);
    assert!(matches!(
        run(drop.signer.recover(&request, Some(&ticket))).unwrap(),
        Some(Answer::Issued(_))
    ));
}

#[test]
fn clears_only_own_files_when_settled() {
    let drop = Drop::new();
    let (one, two) = (request(CertName::Apiserver), request(CertName::EtcdPeer));
    drop.submit(&one);
    drop.submit(&two);
    drop.sign(&one);
    run(drop.signer.settled(&one.key())).unwrap();
    let left: Vec<_> = tree(&drop.path(""))
        .into_iter()
        .map(|(path, _)| path.strip_prefix(drop.path("")).unwrap().to_owned())
        .collect();
    assert_eq!(
        left,
        [
            Path::new("outbox/etcd-peer.csr"),
            Path::new("outbox/etcd-peer.json")
        ]
    );
}

#[test]
fn logs_rejected_file_once_for_each_version() {
    let drop = Drop::new();
    let request = request(CertName::Apiserver);
    drop.submit(&request);
    let ((), log) = logged(|| {
        let path = drop.path("inbox/apiserver.crt");
        fs::write(&path, "garbage").unwrap();
        for _ in 0..3 {
            assert!(drop.note(&request).contains("not accepted"));
        }
        fs::write(&path, "more garbage").unwrap();
        drop.note(&request);
    });
    assert_eq!(log.matches("WARN").count(), 2, "{log}");
}

#[test]
fn accepts_answer_in_every_encoding() {
    let drop = Drop::new();
    let request = request(CertName::EtcdPeer);
    drop.submit(&request);
    let path = drop.sign(&request);
    let file = path.to_str().unwrap().to_owned();
    let ca = drop.dir.path().join("etcd/ca.crt");
    let pem = fs::read(&path).unwrap();
    for args in [
        vec!["x509", "-outform", "DER", "-in", &file],
        vec![
            "crl2pkcs7",
            "-nocrl",
            "-certfile",
            &file,
            "-certfile",
            ca.to_str().unwrap(),
        ],
        vec!["crl2pkcs7", "-nocrl", "-certfile", &file, "-outform", "DER"],
        vec!["x509", "-text", "-in", &file],
    ] {
        let bytes = openssl(&args, b"");
        fs::write(&path, bytes).unwrap();
        let taken = drop.issued(&request);
        assert_eq!(verdict(&request, &taken, drop.dir.path()), "", "{args:?}");
        fs::write(&path, &pem).unwrap();
    }
}

#[test]
fn names_file_that_cannot_be_written() {
    struct Full(PlainDir);
    impl nodepki::signer::directory::DropDir for Full {
        fn make_dir(&self, name: &str, mode: u32) -> std::io::Result<()> {
            self.0.make_dir(name, mode)
        }
        fn write_atomic(&self, _: &str, _: &[u8], _: u32) -> std::io::Result<()> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn read(
            &self,
            name: &str,
            limit: u64,
        ) -> std::io::Result<Option<nodepki::signer::directory::Dropped>> {
            self.0.read(name, limit)
        }
        fn list(&self, name: &str, limit: usize) -> std::io::Result<Vec<String>> {
            self.0.list(name, limit)
        }
        fn remove(&self, name: &str) -> std::io::Result<()> {
            self.0.remove(name)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let files = Box::new(Full(PlainDir(dir.path().to_owned())));
    let signer = Directory::new(dir.path(), files, Vec::new());
    let result = run(signer.submit(&request(CertName::Apiserver)));
    let parts = ["outbox/apiserver.json could not be written", "not full"];
    fails(result, FailureClass::Config, &parts);
}

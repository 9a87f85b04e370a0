//! Revocation lists (CRLs) made by OpenSSL: which are installed, their effect on certificates, and that etcd obeys them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nodepki::kube::names::{Authority, CertName};
use nodepki::store::NodeRoot;
use nodepki::x509::{AuthorityCrls, Chain, CrlError, ListScope, RevocationList, TrustBundle};
use time::macros::datetime;

use crate::gateway::{Action, Gateway, Rule};
use crate::node::{Node, Ran};
use crate::servers::{self, Server};
use crate::signing::{HEAD, now, openssl, write_secret};
use crate::time::wait_until;

const PEM: &str = "/etc/kubernetes/pki/etcd/crl.pem";
const DER: &str = "/etc/kubernetes/pki/etcd/crl.der";
const DAY: &[&str] = &["-crldays", "1"];

/// A complete node whose signer publishes a CRL for etcd-ca.
struct Publisher(Node);

impl Publisher {
    fn new() -> Self {
        let node = Node::new();
        let publisher = Publisher(node);
        publisher.publish(&[]);
        publisher.0.ask().done();
        publisher
    }

    fn list(&self) -> PathBuf {
        self.0.outside("crl").join("etcd-ca")
    }

    /// Publishes a CRL that revokes these serial numbers (hexadecimal).
    fn publish(&self, serials: &[&str]) {
        fs::create_dir_all(self.0.outside("crl")).unwrap();
        fs::write(self.list(), self.make("etcd/ca", serials, DAY)).unwrap();
    }

    fn make(&self, base: &str, serials: &[&str], dates: &[&str]) -> Vec<u8> {
        self.make_with(base, serials, dates, "")
    }

    /// Makes a CRL with these lines in its issuing distribution point.
    fn make_with(&self, base: &str, serials: &[&str], dates: &[&str], point: &str) -> Vec<u8> {
        let extensions = match point {
            "" => String::new(),
            point => format!("issuingDistributionPoint = critical,@p\n[p]\n{point}"),
        };
        self.make_extended(base, serials, dates, &extensions)
    }

    /// Makes a CRL with these extensions.
    fn make_extended(
        &self,
        base: &str,
        serials: &[&str],
        dates: &[&str],
        extensions: &str,
    ) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let lines: String = serials
            .iter()
            .map(|serial| format!("R\t400101000000Z\t260101000000Z\t{serial}\tunknown\t/CN=x\n"))
            .collect();
        fs::write(dir.path().join("index.txt"), lines).unwrap();
        let mut config = format!(
            "[ca]\ndefault_ca = d\n[d]\ndatabase = {0}/index.txt\ndefault_md = sha256\ncrlnumber = {0}/number\n",
            dir.path().display()
        );
        // A CRL with a number has version 2, the only version that etcd 3.6 reads.
        fs::write(dir.path().join("number"), "01\n").unwrap();
        if !extensions.is_empty() {
            config.push_str("crl_extensions = e\n[e]\n");
            config.push_str(extensions);
        }
        let file = dir.path().join("ca.cnf");
        fs::write(&file, config).unwrap();
        let ca = self.0.ca().join(base);
        let (cert, key) = (ca.with_extension("crt"), ca.with_extension("key"));
        let mut arguments = vec!["ca", "-gencrl", "-config", file.to_str().unwrap()];
        arguments.extend(["-cert", cert.to_str().unwrap()]);
        arguments.extend(["-keyfile", key.to_str().unwrap()]);
        arguments.extend(dates);
        openssl(&arguments, b"")
    }

    fn crl(&self) -> Ran {
        self.crl_within("0s")
    }

    fn crl_within(&self, wait: &str) -> Ran {
        Ran::of(self.0.command(["crl", "--wait", wait]).args([
            "--config",
            self.0.outside("config.yaml").to_str().unwrap(),
            "--kubeadm-config",
            self.0.outside("kubeadm.yaml").to_str().unwrap(),
        ]))
    }

    fn serial(&self, name: CertName) -> String {
        let (chain, _) = self.0.leaf(name).unwrap();
        chain.leaf().serial().to_uppercase()
    }
}

#[test]
fn installs_crl_as_pem_and_der_once() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    publisher
        .crl()
        .done()
        .row_says("etcd/crl.pem", "written")
        .says_not("front-proxy-crl");
    for (file, form) in [(PEM, "PEM"), (DER, "DER")] {
        assert_eq!(node.mode(file), 0o644);
        let text = openssl(
            &[
                "crl",
                "-inform",
                form,
                "-in",
                node.path(file).to_str().unwrap(),
                "-noout",
                "-verify",
                "-issuer",
                "-CAfile",
                node.ca().join("etcd/ca.crt").to_str().unwrap(),
            ],
            b"",
        );
        assert!(String::from_utf8_lossy(&text).contains("etcd-ca"));
    }
    let before = node.snapshot();
    publisher.crl().done().row_says("etcd/crl.pem", "kept");
    before.unchanged(&node.snapshot());
}

#[test]
#[cfg(feature = "failpoints")]
fn finishes_interrupted_run_when_lists_are_current() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let mut command = node.configured(["crl", "--wait", "0s"]);
    // PEM is in place, DER is not.
    let killed = Ran::of(command.env("NODEPKI_FAILPOINT", "finish:rename-one:2"));
    assert_eq!(killed.signal, Some(9), "{}", killed.said());
    assert_ne!(node.path(PEM).exists(), node.path(DER).exists());
    publisher.crl().done().says("was completed");
    assert!(node.path(PEM).exists() && node.path(DER).exists());
    assert!(crate::store::leftovers(&node.root()).is_empty());
}

#[test]
fn refuses_crl_of_version_1() {
    let publisher = Publisher::new();
    let authority = publisher.0.ca().join("etcd/ca");
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("ca.cnf");
    let text = format!(
        "[ca]\ndefault_ca = d\n[d]\ndatabase = {}/index.txt\ndefault_md = sha256\n",
        dir.path().display()
    );
    fs::write(dir.path().join("index.txt"), "").unwrap();
    fs::write(&config, text).unwrap();
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let list = openssl(
        &[
            "ca",
            "-gencrl",
            "-crldays",
            "1",
            "-config",
            &path(config),
            "-cert",
            &path(authority.with_extension("crt")),
            "-keyfile",
            &path(authority.with_extension("key")),
        ],
        b"",
    );
    let error = RevocationList::read_all(&list).unwrap_err();
    assert!(
        error.to_string().contains("its version is not 2"),
        "{error}"
    );
}

#[test]
fn keeps_crl_if_new_one_is_stale_older_foreign_or_forged() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    publisher.publish(&["0ABC"]);
    publisher.crl().done().row_says("etcd/crl.pem", "1 revoked");
    let before = node.etc();
    let good = fs::read(publisher.list()).unwrap();
    let dated = |from: &str, until: &str| {
        let dates = ["-crl_lastupdate", from, "-crl_nextupdate", until];
        publisher.make("etcd/ca", &[], &dates)
    };
    let older = dated("20200101000000Z", "20990101000000Z");
    let future = dated("20980101000000Z", "20990101000000Z");
    let stale = publisher.make("etcd/ca", &[], &["-crl_nextupdate", "20260101000000Z"]);
    let foreign = publisher.make("front-proxy-ca", &[], DAY);
    let mut forged = RevocationList::read_all(&good).unwrap()[0].der().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let forged = openssl(&["crl", "-inform", "DER"], &forged);
    let truncated = good[..good.len() - 40].to_vec();
    for (list, words) in [
        (older, "the server returned an old list"),
        (
            stale,
            "is stale: a newer one was due at 2026-01-01T00:00:00Z",
        ),
        (future, "is dated in the future"),
        (foreign, "was not issued by a certificate of the authority"),
        (forged, "has an invalid signature"),
        (truncated, "damaged"),
        (b"<html>".to_vec(), "it does not contain a revocation list"),
    ] {
        fs::write(publisher.list(), list).unwrap();
        publisher.crl().ended(65).row_says("etcd/crl.pem", words);
        before.unchanged(&node.etc());
    }
    // If no CRL is published any more, the installed one stays.
    fs::remove_file(publisher.list()).unwrap();
    publisher.crl().done();
    before.unchanged(&node.etc());
}

/// The list was fetched before that of the other run.
#[test]
fn keeps_newer_crl_that_another_run_installs_meanwhile() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let newer = publisher.make("etcd/ca", &["0ABC"], DAY);
    let dates = [
        "-crl_lastupdate",
        "20260101000000Z",
        "-crl_nextupdate",
        "20990101000000Z",
    ];
    let older = publisher.make("etcd/ca", &[], &dates);
    fs::write(publisher.list(), older).unwrap();
    let before = node.exchanges().len();
    let root = NodeRoot::open(node.root()).unwrap();
    let lock = root.lock(Duration::ZERO, "another run").unwrap();
    let (ran, installed) = thread::scope(|scope| {
        let run = scope.spawn(|| publisher.crl_within("60s"));
        wait_until("the list is fetched", || {
            let exchanges = node.exchanges();
            let mut after = exchanges.iter().skip(before);
            after.any(|(verb, _, _)| verb == "trust")
        });
        node.write(PEM, &newer);
        let der = openssl(&["crl", "-outform", "DER"], &newer);
        node.write(DER, der);
        let installed = node.etc();
        drop(lock);
        (run.join().unwrap(), installed)
    });
    ran.done()
        .row_says("etcd/crl.pem", "kept")
        .row_says("etcd/crl.pem", "1 revoked");
    installed.unchanged(&node.etc());
}

/// A login would use up a credential of one use, and leave a token.
#[test]
fn fetches_crl_without_login_and_from_signers_that_publish_one() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let vault = Gateway::to(None);
    let list = publisher.make("etcd/ca", &[], DAY);
    vault.rule(Rule::on("GET", "/crl/pem").then(Action::body(200, list)));
    let secret = node.outside("secret");
    write_secret(&secret, "secret");
    let (secret, tls) = (secret.display(), vault.trusted());
    node.write_settings(&format!(
        "{HEAD}authorities: {{ca: {{signer: down}}, etcd-ca: {{signer: v}}, front-proxy-ca: {{signer: down}}}}\n\
         signers:\n  \
           down: {{est: {{url: 'https://127.0.0.1:1', auth: {{basic: {{user: cp1, passwordFile: {secret}}}}}, tls: {tls}}}}}\n  \
           v: {{vault: {{address: '{}', mount: 'pki/{{authority}}', auth: {{appRole: {{roleIDFile: {secret}, secretIDFile: {secret}}}}}, tls: {tls}}}}}\n",
        vault.url()
    ));
    publisher
        .crl()
        .done()
        .row_says("etcd/crl.pem", "written")
        .says_not("127.0.0.1:1");
    let asked: Vec<String> = vault.requests().into_iter().map(|one| one.path).collect();
    assert_eq!(asked, ["/v1/pki/etcd-ca/issuer/default/crl/pem"]);
}

#[test]
fn does_not_fetch_crl_of_unpinned_ca() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let settings = fs::read_to_string(node.outside("config.yaml")).unwrap();
    let pinned = format!(
        "etcd-ca: {{signer: s, trust: {{sha256: [\"{}\"]}}}}",
        "00".repeat(32)
    );
    fs::write(
        node.outside("config.yaml"),
        settings.replace("etcd-ca: {signer: s}", &pinned),
    )
    .unwrap();
    let before = node.etc();
    publisher
        .crl()
        .ended(65)
        .row_says("etcd/crl.pem", "authorities.etcd-ca.trust.sha256");
    before.unchanged(&node.etc());
}

#[test]
fn does_not_install_revoked_certificate() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let revoked = publisher.serial(CertName::EtcdServer);
    publisher.publish(&[&revoked]);
    // The CRL names the certificate: this is reported, and the next bootstrap replaces it with a new key.
    publisher.crl().done().says("run nodepki bootstrap");
    let old_key = node.key_in_place(CertName::EtcdServer);
    node.ask()
        .done()
        .row_says("etcd-server", "is revoked since 2026-01-01T00:00:00Z");
    assert_ne!(node.key_in_place(CertName::EtcdServer), old_key);
    node.assert_sound(&CertName::KUBEADM);

    // The signer returns the revoked certificate again.
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    node.remove("/etc/kubernetes/pki/etcd/peer.key");
    node.signer_does("etcd-peer", "pending");
    node.ask().ended(75);
    node.signer_behaves();
    let issued = node.outside("issued");
    let known: Vec<_> = fs::read_dir(&issued)
        .unwrap()
        .map(|one| one.unwrap().path())
        .collect();
    // The plug-in signs now, and its CRL already revokes that certificate.
    let ran = {
        let mut first = node.ask_command("0s");
        first.env("NODEPKI_FAILPOINT", "request:verified");
        Ran::of(&mut first)
    };
    if cfg!(feature = "failpoints") {
        assert_eq!(ran.signal, Some(9), "{}", ran.said());
        let new = fs::read_dir(&issued)
            .unwrap()
            .map(|one| one.unwrap().path())
            .find(|path| !known.contains(path))
            .unwrap();
        let chain = Chain::from_pem(&fs::read(new).unwrap()).unwrap();
        publisher.publish(&[&revoked, &chain.leaf().serial().to_uppercase()]);
        let before = node.etc();
        node.ask()
            .ended(65)
            .row_says("etcd-peer", "is revoked since");
        before.unchanged(&node.etc());
        // For a new key the signer issues a new certificate.
        node.ask().done();
        node.assert_sound(&CertName::KUBEADM);
    }
}

#[test]
fn installs_nothing_of_authority_without_its_crl() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    node.remove("/etc/kubernetes/pki/etcd/peer.key");
    fs::write(publisher.list(), "<html>").unwrap();
    let before = node.etc();
    node.ask()
        .ended(65)
        .row_says("etcd-peer", "revocation list");
    before.unchanged(&node.etc());
    let submitted = node.submissions();
    publisher.publish(&[]);
    node.ask().done();
    // The answer was stored.
    assert_eq!(node.submissions(), submitted);
}

/// A CRL that the `crl` command refuses is not used for installing certificates either.
#[test]
fn installs_nothing_under_crl_that_does_not_cover_it() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    node.remove("/etc/kubernetes/pki/etcd/peer.key");
    let dated = |from: &str, until: &str| {
        let dates = ["-crl_lastupdate", from, "-crl_nextupdate", until];
        publisher.make("etcd/ca", &[], &dates)
    };
    let with = |extensions: &str| publisher.make_extended("etcd/ca", &[], DAY, extensions);
    let before = node.etc();
    let mut submitted = None;
    for (list, code, words) in [
        (
            publisher.make("etcd/ca", &[], &["-crl_nextupdate", "20260101000000Z"]),
            69,
            "is stale: a newer one was due at 2026-01-01T00:00:00Z",
        ),
        (
            dated("20980101000000Z", "20990101000000Z"),
            69,
            "is dated in the future",
        ),
        (
            with("2.5.29.27 = critical,DER:02:01:01"),
            65,
            "is a delta list, which contains only the changes since another list",
        ),
        (with("2.5.29.27 = DER:02:01:01"), 65, "is a delta"),
        (
            with("2.5.29.28 = DER:30:05:81:01:FF"),
            65,
            "has the critical extension 2.5.29.28, which nodepki does not support",
        ),
        (
            publisher.make("front-proxy-ca", &[], DAY),
            65,
            "was not issued by a certificate of the authority",
        ),
        (
            b"<html>".to_vec(),
            65,
            "it does not contain a revocation list",
        ),
    ] {
        fs::write(publisher.list(), list).unwrap();
        node.ask().ended(code).row_says("etcd-peer", words);
        before.unchanged(&node.etc());
        let submissions = node.submissions();
        assert_eq!(*submitted.get_or_insert(submissions.clone()), submissions);
        publisher.crl().ended(65).row_says("etcd/crl.pem", words);
        before.unchanged(&node.etc());
    }
    publisher.publish(&[]);
    node.ask().done();
    // The answer was stored.
    assert_eq!(Some(node.submissions()), submitted);
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn installs_nothing_under_stale_crl_if_none_is_published() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    publisher.crl().done();
    let stale = publisher.make("etcd/ca", &[], &["-crl_nextupdate", "20260101000000Z"]);
    node.write(PEM, stale);
    fs::remove_file(publisher.list()).unwrap();
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    let before = node.etc();
    node.ask()
        .ended(69)
        .row_says("etcd-peer", "no longer publishes a revocation list");
    before.unchanged(&node.etc());
    publisher.publish(&[]);
    node.ask().done();
}

/// One of several CRLs covers the certificates that name its distribution point (RFC 5280, 6.3.3).
#[test]
fn tells_partial_crls_apart() {
    let publisher = Publisher(Node::new());
    let place = |number: u8| {
        let point = format!("fullname = URI:http://ca.example.com/{number}.crl\n");
        let pem = publisher.make_with("etcd/ca", &[], DAY, &point);
        RevocationList::read_all(&pem).unwrap()
    };
    let ca = publisher.0.ca().join("etcd/ca.crt");
    let trust = TrustBundle::from_pem(&fs::read(&ca).unwrap()).unwrap();
    let leaf = |extension: &str| {
        let dir = tempfile::tempdir().unwrap();
        let [key, csr, ext] = ["key", "csr", "ext"].map(|name| dir.path().join(name));
        let [key, csr, ext] = [&key, &csr, &ext].map(|path| path.to_str().unwrap());
        fs::write(ext, extension).unwrap();
        let new = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ];
        let mut request = vec![
            "req", "-new", "-subj", "/CN=leaf", "-keyout", key, "-out", csr,
        ];
        request.extend(new);
        openssl(&request, b"");
        let (ca, ca_key) = (ca.to_str().unwrap(), ca.with_extension("key"));
        let mut sign = vec!["x509", "-req", "-in", csr, "-CA", ca, "-set_serial", "7"];
        sign.extend(["-CAkey", ca_key.to_str().unwrap(), "-extfile", ext]);
        Chain::from_pem(&openssl(&sign, b"")).unwrap()
    };
    let second = leaf("crlDistributionPoints = URI:http://ca.example.com/2.crl\n");
    let lists = |lists| AuthorityCrls::verified(lists, &trust, &[]).unwrap();
    let gap = |lists: &AuthorityCrls| lists.gap(&second).unwrap().to_string();
    let other_part = gap(&lists(place(1)));
    assert!(
        other_part.contains(" is one of several parts, and none of those given covers CN=leaf"),
        "{other_part}"
    );
    assert!(lists(place(2)).gap(&second).is_none());
    assert!(lists([place(1), place(2)].concat()).gap(&second).is_none());
    // A certificate without a distribution point is covered by a CRL for all, and by none of several parts.
    let nowhere = leaf("basicConstraints = CA:FALSE\n");
    let parts = lists([place(1), place(2)].concat());
    assert!(parts.gap(&nowhere).is_some());
    let whole = RevocationList::read_all(&publisher.make("etcd/ca", &[], DAY)).unwrap();
    assert!(lists(whole).gap(&nowhere).is_none());
    // step-ca has one CRL, which names a distribution point that its certificates do not name.
    let only = lists(place(1));
    assert!(only.gap_in(ListScope::AllOfIssuer, &nowhere).is_none());
    assert!(only.gap_in(ListScope::AllOfIssuer, &second).is_some());
    // A CRL issued by another certificate of the authority does not cover it.
    let other = publisher.0.ca().join("ca.crt");
    let other = TrustBundle::from_pem(&fs::read(other).unwrap()).unwrap();
    let foreign = RevocationList::read_all(&publisher.make("ca", &[], DAY)).unwrap();
    let foreign = AuthorityCrls::verified(foreign, &other, &[]).unwrap();
    assert_eq!(
        gap(&foreign),
        "no list is from CN=etcd-ca, which issued CN=leaf"
    );
}

#[test]
fn writes_crl_of_leaves_first_and_accepts_intermediates_as_signers() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let trust = fs::read(node.ca().join("etcd/ca.crt")).unwrap();
    let trust = TrustBundle::from_pem(&trust).unwrap();
    let other = publisher.make("ca", &[], DAY);
    let own = publisher.make("etcd/ca", &["0A"], DAY);
    let both = [other.clone(), own].concat();
    let lists = RevocationList::read_all(&both).unwrap();
    assert_eq!(lists.len(), 2);
    let (chain, _) = node.leaf(CertName::EtcdServer).unwrap();
    let taken = AuthorityCrls::verified(lists, &trust, &[&chain]).unwrap();
    assert_eq!(taken.lists().len(), 1);
    assert_eq!(taken.lists()[0].issuer(), chain.leaf().issuer());
    assert!(taken.reason_not_to_install(None, now()).is_none());
    let late = datetime!(2099-01-01 00:00 UTC);
    assert!(matches!(
        taken.reason_not_to_install(None, late),
        Some(CrlError::Stale { .. })
    ));
    let foreign = RevocationList::read_all(&other).unwrap();
    assert!(matches!(
        AuthorityCrls::verified(foreign, &trust, &[&chain]),
        Err(CrlError::ForeignIssuer { .. })
    ));
}

/// etcd 3.5 reads the first CRL of a PEM file, and etcd 3.6 reads only DER; both refuse the revoked client.
#[test]
fn makes_etcd_refuse_revoked_client() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    let client = CertName::ApiserverEtcdClient;
    let health = CertName::EtcdHealthcheckClient;
    publisher.publish(&[&publisher.serial(client)]);
    publisher.crl().done();
    for file in [PEM, DER] {
        let (port, peer) = (servers::free_port(), servers::free_port());
        let url = format!("https://127.0.0.1:{port}");
        let peers = format!("http://127.0.0.1:{peer}");
        let pki = |name: &str| node.path("/etc/kubernetes/pki").join(name);
        let mut command = Command::new(servers::bin("etcd"));
        command
            .arg("--data-dir")
            .arg(node.outside(&format!("etcd-{port}")))
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .args(["--client-cert-auth", "--unsafe-no-fsync"])
            .arg("--cert-file")
            .arg(pki("etcd/server.crt"))
            .arg("--key-file")
            .arg(pki("etcd/server.key"))
            .arg("--trusted-ca-file")
            .arg(pki("etcd/ca.crt"))
            .arg("--client-crl-file")
            .arg(node.path(file));
        let mut etcd = Server::start(command, &node.outside("etcd.log"));
        let ask = |name: CertName| {
            let base = pki(name.base_name());
            let output = Command::new("curl")
                .args(["-sS", "--max-time", "5", "--cacert"])
                .arg(pki("etcd/ca.crt"))
                .arg("--cert")
                .arg(base.with_extension("crt"))
                .arg("--key")
                .arg(base.with_extension("key"))
                .arg(format!("{url}/health"))
                .output()
                .unwrap_or_else(|error| panic!("cannot run curl ({error}): apt-get install curl"));
            String::from_utf8_lossy(&output.stdout).contains("\"health\":\"true\"")
        };
        etcd.wait_until(|| ask(health));
        assert!(!ask(client), "{file}: the revoked client was served");
        assert!(etcd.said().contains("revoked"), "{}", etcd.said());
        assert!(ask(health));
    }
    let authority = node.authority(Authority::EtcdCa);
    assert_eq!(authority.bundle().certificates().len(), 1);
}

#[test]
fn accepts_distribution_point_and_refuses_restricted_scope() {
    let publisher = Publisher(Node::new());
    let read = |point: &str| {
        RevocationList::read_all(&publisher.make_with("etcd/ca", &["0a"], DAY, point))
    };
    let place = "fullname = URI:https://ca.example.com/1.0/crl\n";
    assert_eq!(read(place).unwrap()[0].len(), 1);
    assert_eq!(
        read(&format!("{place}onlyuser = TRUE\n")).unwrap()[0].len(),
        1
    );
    for narrower in [
        "onlyCA = TRUE\n",
        "onlyAA = TRUE\n",
        "indirectCRL = TRUE\n",
        "onlysomereasons = keyCompromise\n",
    ] {
        let error = read(&format!("{place}{narrower}")).unwrap_err().to_string();
        assert!(error.contains("2.5.29.28"), "{narrower}: {error}");
    }
}

/// A CRL is rarely backdated, and clocks differ by seconds.
#[test]
fn accepts_crl_from_clock_slightly_ahead() {
    let publisher = Publisher::new();
    let soon = now() + Duration::from_secs(60);
    let stamp = format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}Z",
        soon.year(),
        u8::from(soon.month()),
        soon.day(),
        soon.hour(),
        soon.minute(),
        soon.second()
    );
    let dates = [
        "-crl_lastupdate",
        &stamp,
        "-crl_nextupdate",
        "20990101000000Z",
    ];
    let list = publisher.make("etcd/ca", &[], &dates);
    fs::write(publisher.list(), list).unwrap();
    publisher.crl().done().row_says("etcd/crl.pem", "written");
}

#[test]
fn ignores_unreadable_crl_and_never_writes_one() {
    let publisher = Publisher::new();
    let node = &publisher.0;
    fs::write(node.path(PEM), vec![b'x'; 1024 * 1024 + 1]).unwrap();
    node.remove("/etc/kubernetes/pki/etcd/peer.crt");
    node.ask().done().says("is ignored");
}

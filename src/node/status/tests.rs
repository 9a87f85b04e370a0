use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use time::macros::datetime;
use time::{Duration, OffsetDateTime};

use super::*;
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::node::NodeState;
use crate::spec::tests::{INIT, JOIN, cluster, planned};
use crate::spec::{Choices, Layout};
use crate::store::{Durability, NodeRoot, RequestRecord};
use crate::table::TextStyle;
use crate::x509::{
    Certificate, CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans,
    Subject,
};

const NOW: OffsetDateTime = datetime!(2026-11-20 09:57:29 UTC);

const fn style(colour: bool) -> TextStyle {
    TextStyle {
        colour,
        width: None,
        cuts_tables: true,
    }
}

/// The table of a node without configured signers.
fn table(status: &NodeStatus, colour: bool) -> String {
    super::table(status, &BTreeMap::new(), style(colour))
}

fn tree(status: &NodeStatus, colour: bool) -> String {
    super::tree(status, style(colour))
}

const PKI: &str = "/etc/kubernetes/pki";
const DAYS: u64 = 24 * 60 * 60;

// ---- kubeadm's report ----

/// Recorded with `kubeadm certs check-expiration`; see `tests/golden/README.md`.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/check-expiration");

fn golden(file: &str) -> String {
    fs::read_to_string(Path::new(GOLDEN).join(file)).unwrap()
}

/// Returns a node with the tree of the recording.
fn golden_node() -> TestNode {
    let node = TestNode::empty();
    copy(
        &Path::new(GOLDEN).join("kubernetes"),
        &node.path("/etc/kubernetes"),
    );
    node
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), &to).unwrap();
            let secret = !to.to_str().unwrap().ends_with(".crt");
            let mode = if secret { 0o600 } else { 0o644 };
            fs::set_permissions(&to, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

#[test]
fn reproduces_report_of_kubeadm_byte_for_byte() {
    let status = golden_node().status();
    assert_eq!(kubeadm_table(&status), golden("table.txt"));
    assert_eq!(kubeadm_json(&status), golden("info.json"));
    assert!(kubeadm_notes(&status).is_empty());
    assert_eq!(status.worst(), RowState::Ok, "{}", table(&status, false));
}

/// Printed by kubeadm 1.36.2 for the same tree without these files.
#[test]
fn reports_missing_files_as_kubeadm_does() {
    let node = golden_node();
    for file in [
        "super-admin.conf",
        "pki/apiserver.crt",
        "scheduler.conf",
        "pki/front-proxy-ca.crt",
        "pki/front-proxy-ca.key",
        "pki/front-proxy-client.crt",
        "pki/front-proxy-client.key",
    ] {
        fs::remove_file(node.path("/etc/kubernetes").join(file)).unwrap();
    }
    let status = node.status();
    let table: Vec<String> = kubeadm_table(&status).lines().map(str::to_owned).collect();
    for line in [
        "CERTIFICATE                    EXPIRES                  RESIDUAL TIME   CERTIFICATE AUTHORITY   EXTERNALLY MANAGED",
        "admin.conf                     Nov 20, 2027 09:49 UTC   364d            ca                      no      ",
        "!MISSING! apiserver                                                                             ",
        "!MISSING! front-proxy-client                                                                    ",
        "!MISSING! super-admin.conf                                                                      ",
        "CERTIFICATE AUTHORITY      EXPIRES                  RESIDUAL TIME   EXTERNALLY MANAGED",
        "etcd-ca                    Nov 17, 2036 09:49 UTC   9y              no      ",
        "!MISSING! front-proxy-ca                                            ",
    ] {
        assert!(table.contains(&line.to_owned()), "{line:?} in {table:#?}");
    }
    assert_eq!(table.len(), 17);
    let missing = r#"        {
            "name": "apiserver",
            "expirationDate": null,
            "residualTime": 0,
            "externallyManaged": false,
            "missing": true
        },
"#;
    assert!(kubeadm_json(&status).contains(missing));
    let yaml = kubeadm_yaml(&status);
    let start = "\
apiVersion: output.kubeadm.k8s.io/v1alpha3
certificateAuthorities:
- expirationDate: \"2036-11-17T09:49:27Z\"
  externallyManaged: false
  missing: false
  name: ca
  residualTime: 315359518
";
    let end = "\
- expirationDate: null
  externallyManaged: false
  missing: true
  name: super-admin.conf
  residualTime: 0
kind: CertificateExpirationInfo
";
    let middle = "\
certificates:
- caName: ca
  expirationDate: \"2027-11-20T09:49:28Z\"
  externallyManaged: false
  missing: false
  name: admin.conf
  residualTime: 31535519
";
    assert!(
        yaml.starts_with(start) && yaml.contains(middle) && yaml.ends_with(end),
        "{yaml}"
    );
    // super-admin.conf is missing for kubeadm, but on most nodes it should be.
    assert!(status.certificate(CertName::SuperAdminConf).is_none());
    let notes = kubeadm_notes(&status);
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(
        notes.iter().all(|note| note.contains(" is missing: ")),
        "{notes:?}"
    );
}

/// kubeadm fails in this state, in which its report is needed most.
#[test]
fn reports_expired_leaf_of_ca_without_key() {
    let node = golden_node();
    for key in ["pki/ca.key", "pki/front-proxy-ca.key"] {
        fs::remove_file(node.path("/etc/kubernetes").join(key)).unwrap();
    }
    let status = node.status_at(NOW + Duration::days(400));
    let table = kubeadm_table(&status);
    for line in [
        "apiserver                  Nov 20, 2027 09:49 UTC   <invalid>       ca                      yes     \n",
        "etcd-server                Nov 20, 2027 09:49 UTC   <invalid>       etcd-ca                 no      \n",
        "front-proxy-client         Nov 20, 2027 09:49 UTC   <invalid>       front-proxy-ca          yes     \n",
        "ca                      Nov 17, 2036 09:49 UTC   8y              yes     \n",
    ] {
        assert!(table.contains(line), "{table}");
    }
    assert_eq!(status.worst(), RowState::Expired);
}

#[test]
fn omits_etcd_from_kubeadm_report_if_external() {
    let node = golden_node();
    fs::remove_dir_all(node.path("/etc/kubernetes/pki/etcd")).unwrap();
    let status = node.status();
    assert!(!kubeadm_table(&status).contains("etcd"));
    // The client certificate is there, so it is shown; its CA is elsewhere.
    let client = status.certificate(CertName::ApiserverEtcdClient).unwrap();
    assert_eq!((client.state, client.verified), (RowState::Ok, None));
    assert!(
        client.findings.remarks[0]
            .to_string()
            .contains("not verified: etcd-ca is not on this node")
    );
    assert!(status.certificate(CertName::EtcdServer).is_none());
    assert!(status.authority(Authority::EtcdCa).is_none());
    assert!(tree(&status, false).contains("etcd-ca"));
}

// ---- states ----

#[test]
fn reports_healthy_node_as_ok() {
    let node = TestNode::control_plane();
    let status = node.status();
    assert_eq!(status.worst(), RowState::Ok, "{}", table(&status, false));
    assert_eq!(status.role, NodeRole::ControlPlane);
    assert_eq!(status.certificates.len(), 11);
    let server = status.certificate(CertName::Apiserver).unwrap();
    assert_eq!(server.verified, Some(true));
    let facts = server.certificate.as_ref().unwrap();
    assert_eq!(facts.subject, "CN=apiserver");
    assert_eq!(
        facts.sans[..2],
        ["DNS:kubernetes", "DNS:kubernetes.default"]
    );
    assert_eq!(facts.sans[3..], ["IP:192.0.2.11", "IP:127.0.0.1"]);
    assert_eq!(facts.usages, ["server auth"]);
    assert_eq!(facts.key, "ECDSA-P256");
    assert_eq!(facts.issuer, "CN=kubernetes");
    assert_eq!(facts.residual_seconds, 365 * 24 * 60 * 60);
    let paths: Vec<_> = server.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/etc/kubernetes/pki/apiserver.crt",
            "/etc/kubernetes/pki/apiserver.key"
        ]
    );
    assert_eq!(server.files[1].access.unwrap().mode, 0o600);
    let admin = status.certificate(CertName::AdminConf).unwrap();
    let kubeconfig = admin.kubeconfig.as_ref().unwrap();
    assert_eq!(
        kubeconfig.server.as_deref(),
        Some("https://192.0.2.11:6443")
    );
    assert_eq!(kubeconfig.authority_is_first, Some(true));
    let ca = status.authority(Authority::Ca).unwrap();
    assert!(!ca.has_key);
    assert_eq!(
        ca.certificates[0].pin,
        format!("sha256:{}", hex(&node.ca.public_key().sha256()))
    );
    let pair = status.service_account.as_ref().unwrap();
    assert_eq!(pair.key_id.as_ref().unwrap().len(), 43);

    let table = table(&status, false);
    assert!(
        table.contains(
            "apiserver                 ok     installed  2027-11-20 09:57  365d       server auth               ECDSA-P256  ca\n    DNS:"
        ),
        "{table}"
    );
    assert!(table.lines().all(|line| !line.ends_with(' ')), "{table}");
    let tree = tree(&status, false);
    assert!(
        tree.contains(
            "├── apiserver                 ok  365d left  ECDSA-P256                    2027-11-20 09:57 UTC\n"
        ),
        "{tree}"
    );
    assert!(tree.contains("└── scheduler.conf "), "{tree}");
    let json: serde_json::Value = serde_json::from_str(&json(&status)).unwrap();
    assert_eq!(json["certificates"][0]["name"], "apiserver");
    assert_eq!(json["certificates"][0]["state"], "ok");
    assert_eq!(json["certificates"][0]["files"][1]["mode"], "0600");
    assert!(yaml(&status).contains("serviceAccount:\n"));
}

#[test]
fn reports_key_that_does_not_match() {
    let node = TestNode::control_plane();
    node.write("pki/apiserver.key", &key().to_pem());
    node.expect(
        CertName::Apiserver,
        RowState::Torn,
        "the key does not match the certificate",
    );
}

#[test]
fn reports_further_faults_of_expired_certificate() {
    let node = TestNode::control_plane();
    let status = node.status_at(NOW + Duration::days(368));
    let server = status.certificate(CertName::Apiserver).unwrap();
    assert_eq!(server.state, RowState::Expired);
    assert_eq!(
        server.findings.problems(),
        ["it expired at 2027-11-20 09:57 UTC, 3d ago"]
    );
    assert_eq!(server.verified, Some(true));
    let table = table(&status, false);
    assert!(
        table.contains(" expired  2027-11-20 09:57  -3d "),
        "{table}"
    );
    assert!(
        table.contains("\nexpired: it expired at 2027-11-20 09:57 UTC, 3d ago\n    apiserver, "),
        "{table}"
    );

    node.write("pki/apiserver.key", &key().to_pem());
    let status = node.status_at(NOW + Duration::days(368));
    let problems = &status
        .certificate(CertName::Apiserver)
        .unwrap()
        .findings
        .problems();
    assert_eq!(problems.len(), 2);
    assert!(problems[0].contains("expired") && problems[1].contains("does not match"));
}

#[test]
fn reports_expiring_and_not_yet_valid_certificates() {
    let node = TestNode::control_plane();
    let state = |now| {
        let status = node.status_at(now);
        status.certificate(CertName::Apiserver).unwrap().state
    };
    assert_eq!(state(NOW + Duration::days(335)), RowState::Ok);
    assert_eq!(state(NOW + Duration::days(336)), RowState::Expiring);
    assert_eq!(state(NOW - Duration::days(1)), RowState::NotYetValid);
    // Of a day, a third is eight hours.
    node.pair(&node.ca, "pki/apiserver", 1);
    assert_eq!(state(NOW + Duration::hours(15)), RowState::Ok);
    assert_eq!(state(NOW + Duration::hours(17)), RowState::Expiring);
}

#[test]
fn reports_ca_of_same_name_with_another_key() {
    let node = TestNode::control_plane();
    let other = authority("kubernetes");
    node.pair(&other, "pki/apiserver", 365);
    node.expect(
        CertName::Apiserver,
        RowState::Untrusted,
        "its issuer is CN=kubernetes, the anchor there is CN=kubernetes (certificate sha256:",
    );
    let words = node.problems(CertName::Apiserver);
    assert!(
        words.ends_with("; the name is the same, the key is not"),
        "{words}"
    );
    node.kubeconfig(&other, "scheduler.conf", &other);
    node.expect(
        CertName::SchedulerConf,
        RowState::Untrusted,
        "it does not trust the API server",
    );
    node.kubeconfig(&node.ca, "scheduler.conf", &other);
    node.expect(
        CertName::SchedulerConf,
        RowState::Untrusted,
        "its CA data is CN=kubernetes",
    );
}

#[test]
fn reports_ca_of_same_name_with_another_key_type() {
    let node = golden_node();
    // There the CA is RSA, here it is ECDSA.
    node.pair(&node.ca, "pki/apiserver", 365);
    let words = "ca.crt: its issuer is CN=kubernetes, the anchor there is CN=kubernetes (certificate sha256:";
    node.expect(CertName::Apiserver, RowState::Untrusted, words);
    let words = node.problems(CertName::Apiserver);
    assert!(!words.contains('{') && !words.contains('['), "{words}");
}

#[test]
fn distrusts_leaves_of_expired_authority() {
    let node = TestNode::control_plane();
    let status = node.status_at(NOW + Duration::days(3651));
    assert_eq!(
        status.authority(Authority::Ca).unwrap().state,
        RowState::Expired
    );
    let server = status.certificate(CertName::Apiserver).unwrap();
    assert!(
        server.findings.problems()[1].contains("authority's certificate CN=kubernetes expired at"),
        "{:?}",
        server.findings.problems()
    );
}

#[test]
fn reports_absent_and_unusable_authority() {
    let node = TestNode::control_plane();
    fs::remove_file(node.path("/etc/kubernetes/pki/ca.crt")).unwrap();
    let status = node.status();
    assert_eq!(
        status.authority(Authority::Ca).unwrap().state,
        RowState::Missing
    );
    node.expect(
        CertName::Apiserver,
        RowState::Untrusted,
        "it cannot be verified",
    );
    fs::copy(
        node.path("/etc/kubernetes/pki/apiserver.crt"),
        node.path("/etc/kubernetes/pki/ca.crt"),
    )
    .unwrap();
    let status = node.status();
    let ca = status.authority(Authority::Ca).unwrap();
    assert_eq!(ca.state, RowState::Unreadable);
    assert!(
        ca.findings.problems()[0].contains("is not a CA certificate"),
        "{:?}",
        ca.findings.problems()
    );
    assert_eq!(ca.certificates.len(), 1);
}

#[test]
fn reports_empty_files_directories_and_garbage() {
    let node = TestNode::control_plane();
    node.write("controller-manager.conf", "");
    node.expect(
        CertName::ControllerManagerConf,
        RowState::Unreadable,
        "controller-manager.conf is empty",
    );

    let conf = node.path("/etc/kubernetes/scheduler.conf");
    fs::remove_file(&conf).unwrap();
    fs::create_dir(&conf).unwrap();
    node.expect(
        CertName::SchedulerConf,
        RowState::Unreadable,
        "scheduler.conf is a directory",
    );
    assert!(
        node.row(CertName::SchedulerConf)
            .findings
            .remarks
            .is_empty()
    );

    node.write("pki/apiserver.crt", "hello");
    node.expect(
        CertName::Apiserver,
        RowState::Unreadable,
        "apiserver.crt is unreadable: ",
    );
    node.write("pki/front-proxy-client.key", "\u{1b}[2J");
    node.expect(
        CertName::FrontProxyClient,
        RowState::Unreadable,
        "front-proxy-client.key is unreadable: ",
    );
    node.write("admin.conf", "current-context: \"gone\\a\"\n");
    node.expect(
        CertName::AdminConf,
        RowState::Unreadable,
        "names context \"gone",
    );
    node.write("pki/etcd/ca.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    node.write("pki/sa.pub", "hello");
    let status = node.status();
    assert_eq!(
        status.authority(Authority::EtcdCa).unwrap().state,
        RowState::Unreadable
    );
    let pair = status.service_account.as_ref().unwrap();
    assert_eq!(pair.state, RowState::Unreadable);

    // Every renderer accepts these rows, and no control character reaches its output.
    for text in [
        table(&status, false),
        tree(&status, false),
        kubeadm_table(&status),
    ] {
        assert!(
            !text.contains(|c: char| c.is_control() && c != '\n'),
            "{text:?}"
        );
    }
    assert!(table(&status, true).contains("\u{1b}[31munreadable\u{1b}[0m"));
    assert!(!json(&status).is_empty() && !yaml(&status).is_empty());
    let report = kubeadm_table(&status);
    for name in [
        "controller-manager.conf",
        "scheduler.conf",
        "apiserver",
        "admin.conf",
        "etcd-ca",
    ] {
        assert!(report.contains(&format!("!MISSING! {name} ")), "{report}");
    }
    let notes = kubeadm_notes(&status).join("\n");
    assert!(notes.contains("scheduler.conf is unreadable: "), "{notes}");
}

#[test]
fn reports_certificates_directory_that_is_a_file() {
    let node = TestNode::empty();
    fs::create_dir_all(node.path("/etc/kubernetes")).unwrap();
    fs::write(node.path(PKI), "").unwrap();
    node.expect(
        CertName::Apiserver,
        RowState::Unreadable,
        "pki is not a directory",
    );
}

#[test]
fn reports_pair_with_one_file_missing() {
    let node = TestNode::control_plane();
    fs::remove_file(node.path("/etc/kubernetes/pki/apiserver.key")).unwrap();
    node.expect(
        CertName::Apiserver,
        RowState::Missing,
        "apiserver.key is missing",
    );
    fs::remove_file(node.path("/etc/kubernetes/pki/etcd/peer.crt")).unwrap();
    node.expect(CertName::EtcdPeer, RowState::Missing, "peer.crt is missing");
    assert!(node.row(CertName::EtcdPeer).certificate.is_none());
}

#[test]
fn reads_kubelet_conf_that_names_files() {
    let node = TestNode::control_plane();
    let pem = "/var/lib/kubelet/pki/kubelet-client-2026.pem";
    let link = "/var/lib/kubelet/pki/kubelet-client-current.pem";
    let data = BASE64.encode(node.ca.bundle().first().to_pem());
    node.write(
        "kubelet.conf",
        &format!(
            "clusters: [{{name: c, cluster: {{server: \"https://x\", certificate-authority-data: {data}}}}}]\n\
             contexts: [{{name: k, context: {{cluster: c, user: u}}}}]\n\
             current-context: k\n\
             users: [{{name: u, user: {{client-certificate: {link}, client-key: {link}}}}}]\n"
        ),
    );
    fs::create_dir_all(node.path("/var/lib/kubelet/pki")).unwrap();
    node.expect(
        CertName::KubeletConf,
        RowState::Missing,
        "kubelet-client-current.pem is missing",
    );

    // An absolute link, which must be resolved below the root.
    symlink(pem, node.path(link)).unwrap();
    node.expect(
        CertName::KubeletConf,
        RowState::Missing,
        "is a dangling symbolic link",
    );
    assert_eq!(node.row(CertName::KubeletConf).findings.faults.len(), 1);

    let (certificate, key) = issue(&node.ca, "kubelet", 365);
    fs::write(node.path(pem), certificate + &key).unwrap();
    fs::set_permissions(node.path(pem), fs::Permissions::from_mode(0o600)).unwrap();
    let row = node.row(CertName::KubeletConf);
    assert_eq!(row.state, RowState::Ok, "{:?}", row.findings.problems());
    assert!(row.kubeconfig.unwrap().by_file);
    assert_eq!(row.files.len(), 2);
    assert!(
        row.findings.remarks.is_empty(),
        "{:?}",
        row.findings.remarks
    );
}

#[test]
fn reports_keys_readable_by_every_user() {
    let node = TestNode::control_plane();
    let open = |file: &str| {
        let path = node.path("/etc/kubernetes").join(file);
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    };
    open("pki/apiserver.key");
    open("admin.conf");
    node.write("pki/ca.key", &key().to_pem());
    open("pki/ca.key");
    let words = "mode 0644: every user of this machine can read it";
    for name in [CertName::Apiserver, CertName::AdminConf] {
        let row = node.row(name);
        assert_eq!(row.state, RowState::Unsafe);
        assert!(
            row.findings.problems()[0].contains(words),
            "{:?}",
            row.findings.problems()
        );
    }
    let status = node.status();
    let ca = status.authority(Authority::Ca).unwrap();
    assert!(ca.has_key);
    assert_eq!(ca.state, RowState::Unsafe);
    assert!(
        ca.findings.problems()[0].contains(words),
        "{:?}",
        ca.findings.problems()
    );
    assert!(table(&status, false).contains("ECDSA-P256  on this node\n"));
}

#[test]
fn calls_certificate_unsafe_that_does_not_fit_its_place() {
    type Change = fn(&mut Profile);
    let masters: Change = |profile| profile.subject.organizations = vec!["system:masters".into()];
    let nothing: Change = |_| {};
    for (name, change, words) in [
        (CertName::Apiserver, nothing, ""),
        (
            CertName::Apiserver,
            masters,
            "unexpected O \"system:masters\"",
        ),
        (
            CertName::SchedulerConf,
            masters,
            "unexpected O \"system:masters\"",
        ),
        (
            CertName::KubeletConf,
            masters,
            "unexpected O \"system:masters\"",
        ),
        (
            CertName::EtcdPeer,
            masters,
            "unexpected O \"system:masters\"",
        ),
        // kubeadm before 1.29.
        (CertName::AdminConf, masters, ""),
        (CertName::ApiserverKubeletClient, masters, ""),
        (CertName::ApiserverEtcdClient, masters, ""),
        (
            CertName::ControllerManagerConf,
            |profile| profile.subject.organizations = vec!["kubeadm:cluster-admins".into()],
            "unexpected O \"kubeadm:cluster-admins\"",
        ),
        (
            CertName::ControllerManagerConf,
            |profile| profile.subject.common_name = "system:kube-scheduler".into(),
            "expected CN \"system:kube-controller-manager\"",
        ),
        (
            CertName::KubeletConf,
            |profile| profile.subject.organizations.clear(),
            "O \"system:nodes\" is missing",
        ),
        (
            CertName::KubeletConf,
            |profile| profile.subject.common_name = "cp1".into(),
            "expected CN \"system:node:NAME\"",
        ),
        (
            CertName::Apiserver,
            |profile| profile.sans = Sans::default(),
            "SAN DNS:kubernetes.default.svc is missing",
        ),
        (
            CertName::Apiserver,
            |profile| profile.sans.ips = vec!["192.0.2.99".parse().unwrap()],
            "SAN IP:192.0.2.11 is missing",
        ),
        (
            CertName::EtcdServer,
            |profile| profile.sans.ips.clear(),
            "SAN IP:127.0.0.1 is missing",
        ),
        (
            CertName::Apiserver,
            |profile| profile.usages = vec![ExtendedUsage::ClientAuth],
            "extended key usage server auth is missing",
        ),
        (
            CertName::FrontProxyClient,
            |profile| profile.usages = vec![ExtendedUsage::ServerAuth],
            "extended key usage client auth is missing",
        ),
    ] {
        let node = TestNode::control_plane();
        let made = authority(name.authority().common_name());
        let ca = match name.authority() {
            Authority::Ca => &node.ca,
            other => {
                let file = format!("pki/{}.crt", other.base_name());
                node.write(&file, &made.bundle().to_pem());
                &made
            }
        };
        let base = name.base_name().rsplit('/').next().unwrap();
        let mut profile = profile(base, 365);
        change(&mut profile);
        node.place(ca, name, &profile);
        let row = node.row(name);
        let problems = row.findings.problems().join("; ");
        match words {
            "" => assert_eq!(row.state, RowState::Ok, "{name}: {problems}"),
            words => {
                assert_eq!(row.state, RowState::Unsafe, "{name}: {problems}");
                assert!(problems.contains(words), "{name}: {problems}");
            }
        }
    }
}

#[test]
fn calls_leaf_unsafe_that_may_sign_certificates() {
    for (is_ca, words) in [
        (
            true,
            "it is a CA certificate, but a leaf certificate is required",
        ),
        (false, "unexpected key usage certificate sign on a leaf"),
    ] {
        let node = TestNode::control_plane();
        let key = key();
        let mut parameters = rcgen::CertificateParams::new(vec!["kubernetes".to_owned()]).unwrap();
        parameters.key_usages = vec![
            rcgen::KeyUsagePurpose::DigitalSignature,
            rcgen::KeyUsagePurpose::KeyCertSign,
        ];
        parameters.is_ca = if is_ca {
            rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained)
        } else {
            rcgen::IsCa::ExplicitNoCa
        };
        let leaf = parameters.self_signed(&key).unwrap();
        let leaf = Certificate::from_der(leaf.der()).unwrap();
        node.write("pki/apiserver.crt", &leaf.to_pem());
        node.write("pki/apiserver.key", &key.to_pem());
        let row = node.row(CertName::Apiserver);
        assert!(
            row.state >= RowState::Unsafe,
            "{:?}",
            row.findings.problems()
        );
        assert!(
            row.findings
                .problems()
                .iter()
                .any(|problem| problem == words),
            "{:?}",
            row.findings.problems()
        );
    }
}

#[test]
fn reports_faults_of_service_account_pair() {
    let node = TestNode::control_plane();
    let state = || {
        let pair = node.status().service_account.unwrap();
        (pair.state, pair.findings.problems().join("; "))
    };
    fs::remove_file(node.path("/etc/kubernetes/pki/sa.pub")).unwrap();
    let (found, words) = state();
    assert_eq!(found, RowState::Missing);
    assert!(
        words.ends_with("sa.pub is missing; it can be derived from sa.key"),
        "{words}"
    );
    node.write("pki/sa.pub", &key().public_key().to_pem());
    let (found, words) = state();
    assert_eq!(found, RowState::Torn);
    assert!(words.contains("are not a pair"), "{words}");
}

/// kid of a key whose tokens kube-apiserver signs: `base64.RawURLEncoding` of the SHA-256 of its SPKI.
#[test]
fn computes_key_id_of_tokens() {
    let status = golden_node().status();
    let pair = status.service_account.unwrap();
    // openssl pkey -pubin -in sa.pub -outform DER | sha256sum | xxd -r -p | basenc --base64url | tr -d =
    assert_eq!(pair.key_id.as_deref(), Some(GOLDEN_KID));
}

#[test]
fn accepts_bundle_of_two_certificates() {
    let node = TestNode::control_plane();
    let other = authority("kubernetes");
    let (old, new) = (node.ca.bundle().to_pem(), other.bundle().to_pem());
    node.write("pki/ca.crt", &format!("{old}{new}"));
    let status = node.status();
    let ca = status.authority(Authority::Ca).unwrap();
    assert_eq!((ca.state, ca.certificates.len()), (RowState::Ok, 2));
    assert!(table(&status, false).contains("ca [2] "));
    assert_eq!(node.row(CertName::Apiserver).state, RowState::Ok);

    // kubeadm uses only the first certificate.
    node.write("pki/ca.crt", &format!("{new}{old}"));
    let row = node.row(CertName::Apiserver);
    assert_eq!((row.state, row.verified), (RowState::Ok, Some(true)));
    assert!(
        row.findings.remarks[0]
            .to_string()
            .contains("put the issuing root first"),
        "{:?}",
        row.findings.remarks
    );
    let row = node.row(CertName::AdminConf);
    assert_eq!(row.kubeconfig.unwrap().authority_is_first, Some(false));
}

#[test]
fn tells_certificates_that_end_with_their_authority() {
    let node = TestNode::control_plane();
    for (days, expected) in [(365, false), (3650, true), (4000, true)] {
        node.pair(&node.ca, "pki/apiserver", days);
        let status = node.status();
        assert_eq!(status.ends_with_authority(CertName::Apiserver), expected);
    }
    assert!(!node.status().ends_with_authority(CertName::NodepkiConf));
}

/// Go verifies the validity of roots.
#[test]
fn finds_expired_ca_certificate_in_kubeconfig() {
    let key = key();
    let certified = |days| {
        let lifetime = std::time::Duration::from_secs(days * DAYS);
        let begin = NOW - Duration::days(100);
        CertificateAuthority::self_signed("kubernetes", key.clone(), begin, lifetime).unwrap()
    };
    let (old, ca) = (certified(99), certified(3650));
    let node = TestNode {
        ca,
        ..TestNode::empty()
    };
    let (file, name) = ("kubelet.conf", CertName::KubeletConf);
    node.write("pki/ca.crt", &node.ca.bundle().to_pem());
    node.kubeconfig(&node.ca, file, &node.ca);
    node.expect(name, RowState::Ok, "");
    node.kubeconfig(&node.ca, file, &old);
    node.expect(
        name,
        RowState::Untrusted,
        "its CA data expired at 2026-11-19 09:57",
    );

    // The same for a file in place of CA data.
    let text = fs::read_to_string(node.path("/etc/kubernetes/kubelet.conf")).unwrap();
    let lines = text.lines().map(
        |line| match line.split_once("certificate-authority-data:") {
            Some((indent, _)) => format!("{indent}certificate-authority: pki/trusted.crt"),
            None => line.to_owned(),
        },
    );
    node.write(file, &lines.collect::<Vec<_>>().join("\n"));
    for (trusted, state, words, is_first) in [
        (&node.ca, RowState::Ok, "", true),
        (&old, RowState::Untrusted, "its CA data expired", false),
        (
            &authority("other"),
            RowState::Untrusted,
            "ca.crt holds",
            false,
        ),
    ] {
        node.write("pki/trusted.crt", &trusted.bundle().to_pem());
        node.expect(name, state, words);
        let row = node.row(name);
        assert_eq!(row.kubeconfig.unwrap().authority_is_first, Some(is_first));
        assert!(row.findings.remarks.contains(&RowRemark::NoAuthorityData));
    }
}

#[test]
fn accepts_pkcs8_key_with_remark() {
    let node = TestNode::control_plane();
    // RFC 5915 inside RFC 5958: the P-256 key of `openssl genpkey`, and its certificate.
    let key = PrivateKey::from_pem(PKCS8_KEY.as_bytes()).unwrap();
    let certificate = node
        .ca
        .issue(key.public_key(), &profile("apiserver", 365), NOW)
        .unwrap();
    node.write("pki/apiserver.crt", &certificate.to_pem());
    node.write("pki/apiserver.key", PKCS8_KEY);
    let row = node.row(CertName::Apiserver);
    assert_eq!(row.state, RowState::Ok, "{:?}", row.findings.problems());
    assert!(
        row.findings.remarks[0].to_string().contains("PKCS#8"),
        "{:?}",
        row.findings.remarks
    );
}

// ---- roles ----

#[test]
fn shows_two_files_on_worker() {
    let node = TestNode::empty();
    node.write("pki/ca.crt", &node.ca.bundle().to_pem());
    node.kubeconfig(&node.ca, "kubelet.conf", &node.ca);
    fs::create_dir_all(node.path("/etc/kubernetes/pki/etcd")).unwrap();
    let status = node.status();
    assert_eq!(status.role, NodeRole::Worker);
    assert_eq!(status.worst(), RowState::Ok);
    assert_eq!(
        (status.certificates.len(), status.authorities.len()),
        (1, 1)
    );
    assert!(status.service_account.is_none());
    assert!(kubeadm_notes(&status)[0].contains("worker"));
    assert!(kubeadm_table(&status).contains("!MISSING! apiserver "));
}

#[test]
fn takes_role_from_kubeadm_configuration_before_files() {
    let described = |node: &TestNode, role| {
        let root = NodeRoot::open(node.dir.path()).unwrap();
        collect(&NodeState::new(&root, Layout::default()), role, None, NOW)
    };
    let node = TestNode::control_plane();
    let worker = described(&node, Some(NodeRole::Worker));
    assert_eq!(worker.role, NodeRole::Worker);
    assert_eq!(
        (worker.certificates.len(), worker.authorities.len()),
        (1, 1)
    );
    assert!(worker.service_account.is_none());
    let [note] = worker.notes.as_slice() else {
        panic!("{:?}", worker.notes);
    };
    assert!(note.contains("/pki/sa.key") && note.contains("controlPlane"));

    // A running API server takes precedence over the configuration.
    node.write("manifests/kube-apiserver.yaml", "");
    assert_eq!(
        described(&node, Some(NodeRole::Worker)).role,
        NodeRole::ControlPlane
    );

    let node = TestNode::empty();
    assert_eq!(
        described(&node, Some(NodeRole::Worker)).role,
        NodeRole::Empty
    );
    node.write("pki/ca.crt", &node.ca.bundle().to_pem());
    assert_eq!(described(&node, None).role, NodeRole::Worker);
    let joining = described(&node, Some(NodeRole::ControlPlane));
    assert_eq!(joining.role, NodeRole::ControlPlane);
    assert!(joining.service_account.is_some());
}

#[test]
fn recognizes_etcd_member_by_its_files() {
    let node = TestNode::control_plane();
    let pki = node.path("/etc/kubernetes/pki");
    for entry in fs::read_dir(&pki).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    for entry in fs::read_dir(node.path("/etc/kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|suffix| suffix == "conf") {
            fs::remove_file(path).unwrap();
        }
    }
    let status = node.status();
    assert_eq!(status.role, NodeRole::Etcd);
    let names: Vec<_> = status.certificates.iter().map(|row| row.name).collect();
    assert_eq!(
        names,
        [
            CertName::EtcdServer,
            CertName::EtcdPeer,
            CertName::EtcdHealthcheckClient
        ]
    );
    assert_eq!(status.authorities[0].name, Authority::EtcdCa);
    assert_eq!(
        (status.authorities.len(), status.worst()),
        (1, RowState::Ok)
    );
    assert!(kubeadm_notes(&status)[0].contains("etcd member"));
    // A kubeconfig of the kubelet belongs to a node of a cluster.
    node.kubeconfig(&node.ca, "kubelet.conf", &node.ca);
    assert_eq!(node.status().role, NodeRole::ControlPlane);
}

#[test]
fn takes_worker_with_ca_of_etcd_for_a_worker() {
    let node = TestNode::empty();
    node.write("pki/ca.crt", &node.ca.bundle().to_pem());
    node.kubeconfig(&node.ca, "kubelet.conf", &node.ca);
    node.write("pki/etcd/ca.crt", &authority("etcd-ca").bundle().to_pem());
    let status = node.status();
    assert_eq!(
        (status.role, status.worst()),
        (NodeRole::Worker, RowState::Ok)
    );
    node.write("pki/sa.pub", "");
    assert_eq!(node.status().role, NodeRole::ControlPlane);
}

#[test]
fn reports_empty_node() {
    let node = TestNode::empty();
    let status = node.status();
    assert_eq!(
        (status.role, status.worst()),
        (NodeRole::Empty, RowState::Missing)
    );
    assert!(table(&status, false).starts_with("there is no certificate, key or kubeconfig in /"));
    assert!(tree(&status, false).contains("there is no certificate"));
}

#[test]
fn recognizes_external_etcd_of_cluster_api() {
    let node = TestNode::control_plane();
    for file in ["server", "peer", "healthcheck-client"] {
        for extension in ["crt", "key"] {
            let path = format!("/etc/kubernetes/pki/etcd/{file}.{extension}");
            fs::remove_file(node.path(&path)).unwrap();
        }
    }
    // With the CA alone, the certificates of etcd may still be missing, or etcd may be external.
    node.expect(
        CertName::EtcdServer,
        RowState::Missing,
        "server.crt is missing",
    );
    node.write("manifests/kube-apiserver.yaml", "");
    let status = node.status();
    assert!(!status.local_etcd);
    assert!(status.certificate(CertName::EtcdServer).is_none());
    let client = status.certificate(CertName::ApiserverEtcdClient).unwrap();
    assert_eq!((client.state, client.verified), (RowState::Ok, Some(true)));
}

const EXTERNAL_ETCD: &str = "etcd: {external: {endpoints: ['https://etcd:2379'], caFile: /etc/kubernetes/pki/etcd/ca.crt, certFile: /etc/kubernetes/pki/apiserver-etcd-client.crt, keyFile: /etc/kubernetes/pki/apiserver-etcd-client.key}}\n";

/// The plan decides what an absent file means.
#[test]
fn takes_rows_from_plan() {
    let external_client = || Choices {
        external_etcd_client: true,
        ..Choices::default()
    };
    let omitting = |name| Choices {
        omit: [name].into(),
        ..Choices::default()
    };
    let signing = Choices {
        signs_for_kubelets: true,
        kubelet_serving: true,
        ..Choices::default()
    };
    let etcd = [
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::EtcdHealthcheckClient,
    ];
    let plan = |node, fields: &str, choices: &Choices| {
        let fields = format!("controlPlaneEndpoint: api.example\n{fields}");
        planned(node, &cluster(&fields), choices)
    };
    let [client, admin] = [CertName::ApiserverEtcdClient, CertName::AdminConf];
    let super_admin = CertName::SuperAdminConf;
    let own = [CertName::NodepkiConf, CertName::KubeletServing];
    for (removed, plan, missing) in [
        (&etcd[..], plan(INIT, "", &Choices::default()), &etcd[..]),
        // kubeadm has not written a manifest yet.
        (&etcd, plan(INIT, EXTERNAL_ETCD, &Choices::default()), &[]),
        (&etcd, plan(INIT, EXTERNAL_ETCD, &external_client()), &[]),
        (
            &[client],
            plan(INIT, EXTERNAL_ETCD, &external_client()),
            &[client],
        ),
        (
            &[client],
            plan(INIT, EXTERNAL_ETCD, &Choices::default()),
            &[],
        ),
        (&[admin], plan(JOIN, "", &Choices::default()), &[admin]),
        (&[admin], plan(JOIN, "", &omitting(admin)), &[]),
        (&[], plan(INIT, "", &Choices::default()), &[]),
        (&[], plan(INIT, "", &omitting(super_admin)), &[]),
        (&[], plan(INIT, "", &signing), &own),
    ] {
        let node = TestNode::control_plane();
        for file in removed.iter().flat_map(|name| plan.layout.files(*name)) {
            fs::remove_file(node.path(file.to_str().unwrap())).unwrap();
        }
        let root = NodeRoot::open(node.dir.path()).unwrap();
        let state = NodeState::new(&root, plan.layout.clone());
        let status = collect(&state, None, Some(&plan), NOW);
        let rows = status.certificates.iter();
        let found = rows.filter(|row| row.state != RowState::Ok);
        let mut found: Vec<_> = found.map(|row| (row.name, row.state)).collect();
        found.sort_unstable_by_key(|(name, _)| *name);
        let mut expected: Vec<_> = missing
            .iter()
            .map(|name| (*name, RowState::Missing))
            .collect();
        expected.sort_unstable_by_key(|(name, _)| *name);
        assert_eq!(found, expected, "{removed:?} {:?}", plan.omitted);
    }

    // A plan for another kind of node does not describe this one.
    let lines = JOIN
        .lines()
        .filter(|line| !line.starts_with("controlPlane"));
    let worker = lines.collect::<Vec<_>>().join("\n");
    let worker = planned(&worker, "", &Choices::default());
    let node = TestNode::control_plane();
    let root = NodeRoot::open(node.dir.path()).unwrap();
    let state = NodeState::new(&root, Layout::default());
    assert!(collect(&state, None, Some(&worker), NOW).local_etcd);
}

#[test]
fn shows_pending_requests_and_issue_times() {
    let node = TestNode::empty();
    let root = NodeRoot::open(node.dir.path()).unwrap();
    let (store, _) = root
        .lock(std::time::Duration::ZERO, "test")
        .unwrap()
        .recover(NOW)
        .unwrap();
    let ticket = RequestRecord {
        request_id: "1".to_owned(),
        signer: "corp".to_owned(),
        signer_kind: "directory".to_owned(),
        signer_config: "x".to_owned(),
        handle: None,
        attempt: 1,
        submissions: 1,
        last_submitted: Some(NOW),
        first_submitted: Some(NOW),
        next_poll: None,
        not_before: None,
        phase: RequestPhase::Requested,
        last_error: Some(LastError {
            class: "retry".to_owned(),
            code: "timeout".to_owned(),
            detail: "no answer yet".to_owned(),
            at: NOW,
        }),
        exported_to: None,
        is_proof: false,
    };
    let slot = CertName::Apiserver.into();
    store
        .create_pending(slot, b"key", b"csr", &ticket, Durability::Cached)
        .unwrap();
    let status = node.status();
    // The pending request shows that this becomes a control-plane node.
    assert_eq!(status.role, NodeRole::ControlPlane);
    let table = table(&status, false);
    assert!(
        table.contains(
            "apiserver  requested  corp    2026-11-20 09:57  no answer yet (2026-11-20 09:57 UTC)\n"
        ),
        "{table}"
    );
    assert!(json(&status).contains("\"phase\": \"requested\""));
}

/// kubeadm copies `not_before` of a kubeconfig's certificate from the CA; the record of issue says how old it is.
#[test]
fn counts_lifetime_from_recorded_issue() {
    let node = TestNode::control_plane();
    let status = node.status_at(NOW + Duration::days(1));
    let fingerprint = &status
        .certificate(CertName::Apiserver)
        .unwrap()
        .certificate
        .as_ref()
        .unwrap()
        .fingerprint;
    fs::create_dir_all(node.path("/var/lib/nodepki")).unwrap();
    let issued = NOW + Duration::days(345);
    fs::write(
        node.path("/var/lib/nodepki/issued.json"),
        format!(
            r#"{{"version": 1, "certificates": {{"apiserver": {{"at": "2027-10-31T09:57:29Z", "serial": "1", "not_after": "2027-11-20T09:57:29Z", "sha256": "{fingerprint}"}}}}}}"#
        ),
    )
    .unwrap();
    // 20 days between issue and end: expiring when less than a third of that is left, not at 30 days.
    let status = node.status_at(issued + Duration::days(10));
    let server = status.certificate(CertName::Apiserver).unwrap();
    assert_eq!((server.state, server.issued), (RowState::Ok, Some(issued)));
    let client = status.certificate(CertName::FrontProxyClient).unwrap();
    assert_eq!((client.state, client.issued), (RowState::Expiring, None));

    fs::write(node.path("/var/lib/nodepki/issued.json"), "{").unwrap();
    assert_eq!(node.row(CertName::Apiserver).issued, None);
}

// ---- test nodes ----

struct TestNode {
    dir: tempfile::TempDir,
    ca: CertificateAuthority,
}

impl TestNode {
    fn empty() -> TestNode {
        TestNode {
            dir: tempfile::tempdir().unwrap(),
            ca: authority("kubernetes"),
        }
    }

    /// Returns a healthy control-plane node without CA keys and super-admin.conf.
    fn control_plane() -> TestNode {
        let node = TestNode::empty();
        let (etcd, proxy) = (authority("etcd-ca"), authority("front-proxy-ca"));
        for name in Authority::ALL {
            let authority = match name {
                Authority::Ca => &node.ca,
                Authority::EtcdCa => &etcd,
                Authority::FrontProxyCa => &proxy,
            };
            node.write(
                &format!("pki/{}.crt", name.base_name()),
                &authority.bundle().to_pem(),
            );
            for leaf in CertName::KUBEADM {
                if leaf.authority() != name || leaf == CertName::SuperAdminConf {
                    continue;
                }
                if leaf.is_kubeconfig() {
                    node.kubeconfig(authority, leaf.base_name(), authority)
                } else {
                    node.pair(authority, &format!("pki/{}", leaf.base_name()), 365)
                }
            }
        }
        let sa = key();
        node.write("pki/sa.key", &sa.to_pem());
        node.write("pki/sa.pub", &sa.public_key().to_pem());
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path("/etc/kubernetes").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mode = if file.ends_with(".crt") { 0o644 } else { 0o600 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn pair(&self, authority: &CertificateAuthority, base: &str, days: u64) {
        let name = base.rsplit('/').next().unwrap();
        let (certificate, key) = issue(authority, name, days);
        self.write(&format!("{base}.crt"), &certificate);
        self.write(&format!("{base}.key"), &key);
    }

    /// Writes a certificate of this profile and its key.
    fn place(&self, ca: &CertificateAuthority, name: CertName, profile: &Profile) {
        let key = key();
        let leaf = ca.issue(key.public_key(), profile, NOW).unwrap().to_pem();
        let (base, pem) = (name.base_name(), key.to_pem());
        if !name.is_kubeconfig() {
            self.write(&format!("pki/{base}.crt"), &leaf);
            self.write(&format!("pki/{base}.key"), &pem);
            return;
        }
        let credentials = Credentials {
            server: "https://192.0.2.11:6443",
            authority: &ca.bundle().first().to_pem(),
            certificate: &leaf,
            key: &pem,
        };
        let document = Kubeconfig::new("kubernetes", "user", &credentials);
        self.write(base, &document.to_yaml());
    }

    fn kubeconfig(
        &self,
        issuer: &CertificateAuthority,
        file: &str,
        trusted: &CertificateAuthority,
    ) {
        let (certificate, key) = issue(issuer, file, 365);
        let document = Kubeconfig::new(
            "kubernetes",
            "user",
            &Credentials {
                server: "https://192.0.2.11:6443",
                authority: &trusted.bundle().first().to_pem(),
                certificate: &certificate,
                key: &key,
            },
        );
        self.write(file, &document.to_yaml());
    }

    fn status(&self) -> NodeStatus {
        self.status_at(NOW)
    }

    fn status_at(&self, now: OffsetDateTime) -> NodeStatus {
        let root = NodeRoot::open(self.dir.path()).unwrap();
        collect(&NodeState::new(&root, Layout::default()), None, None, now)
    }

    fn row(&self, name: CertName) -> CertStatus {
        self.status().certificate(name).unwrap().clone()
    }

    fn problems(&self, name: CertName) -> String {
        self.row(name).findings.problems().join("; ")
    }

    fn expect(&self, name: CertName, state: RowState, words: &str) {
        let row = self.row(name);
        let problems = row.findings.problems().join("; ");
        assert_eq!(row.state, state, "{problems}");
        assert!(problems.contains(words), "{problems}");
    }
}

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn authority(name: &str) -> CertificateAuthority {
    let lifetime = std::time::Duration::from_secs(3650 * DAYS);
    CertificateAuthority::self_signed(name, key(), NOW, lifetime).unwrap()
}

/// Returns the profile of the certificate that kubeadm writes to a file.
fn profile(file: &str, days: u64) -> Profile {
    let (common_name, organization) = match file {
        "admin.conf" => ("kubernetes-admin", Some("kubeadm:cluster-admins")),
        "controller-manager.conf" => ("system:kube-controller-manager", None),
        "scheduler.conf" => ("system:kube-scheduler", None),
        "kubelet" | "kubelet.conf" => ("system:node:cp1", Some("system:nodes")),
        "apiserver-kubelet-client" => ("kube-apiserver-kubelet-client", None),
        other => (other, None),
    };
    let services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let dns: Vec<String> = match file {
        "apiserver" => services.map(str::to_owned).to_vec(),
        "server" | "peer" => vec!["localhost".to_owned()],
        _ => Vec::new(),
    };
    let ips = ["192.0.2.11", "127.0.0.1"].map(|ip| ip.parse().unwrap());
    let both = [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth];
    Profile {
        subject: Subject {
            common_name: common_name.to_owned(),
            organizations: organization.map(str::to_owned).into_iter().collect(),
        },
        sans: Sans {
            ips: if dns.is_empty() {
                Vec::new()
            } else {
                ips.to_vec()
            },
            dns,
        },
        usages: match file {
            "apiserver" => vec![ExtendedUsage::ServerAuth],
            "server" | "peer" => both.to_vec(),
            _ => vec![ExtendedUsage::ClientAuth],
        },
        key: KeyAlgorithm::EcdsaP256,
        lifetime: std::time::Duration::from_secs(days * DAYS),
    }
}

fn issue(authority: &CertificateAuthority, name: &str, days: u64) -> (String, String) {
    let key = key();
    let leaf = authority.issue(key.public_key(), &profile(name, days), NOW);
    (leaf.unwrap().to_pem(), key.to_pem().to_string())
}

const GOLDEN_KID: &str = "mNRbySKX8VrqcEAcupoRaJjtDaXuTx-Kc-Hmf3_PRpI";

const PKCS8_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgjSKApdo6ulCoDZex
ZWTyde7Q1XdX1u2zAJhcWcBLS6OhRANCAASx3pZlH/oMWFZWb8qZ/x7y4fnybYeg
ICC4GEXzO2my8o376M8hZH/2jl55rJJy3Sgv9FvDbwG5gZY4XRPmq1+I
-----END PRIVATE KEY-----
";

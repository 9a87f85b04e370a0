use time::macros::datetime;

use super::*;

const AT: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

fn path(path: &str) -> NodePath {
    path.into()
}

#[test]
fn states_each_reason_with_its_code() {
    let difference = || CertDifference::DnsMissing("b".to_owned());
    let pair = || ["/c", "/k"].map(path);
    for (reason, code, text) in [
        (CertReason::WasAbsent, "WasAbsent", "was absent"),
        (CertReason::Empty, "Empty", "empty file"),
        (
            CertReason::Differs(difference()),
            "DnsMissing",
            "SAN DNS:b is missing",
        ),
        (
            CertReason::AuthorityUnknown,
            "AuthorityUnknown",
            "the CA certificate of its authority is not on this node yet",
        ),
        (
            CertReason::Revoked {
                certificate: "CN=a (serial 1)".to_owned(),
                since: AT,
                list: path("/crl.pem"),
            },
            "Revoked",
            "CN=a (serial 1) is revoked since 2026-06-01T12:00:00Z according to /crl.pem",
        ),
        (
            CertReason::RefusedByClients(ClientRefusal::NoServer),
            "RefusedByClients",
            "every client of Kubernetes refuses it: server is empty; replaced",
        ),
        (
            CertReason::Kubeconfig(KubeconfigDifference::OtherAuthority {
                found: KubeconfigAuthority::Missing,
                wanted: "CN=ca".to_owned(),
            }),
            "OtherAuthority",
            "its CA is missing instead of CN=ca",
        ),
        (
            CertReason::Kubeconfig(KubeconfigDifference::ContainsPair(pair())),
            "ContainsPair",
            "it contains its certificate and key instead of naming /c and /k",
        ),
        (
            CertReason::AuthorityChanged,
            "AuthorityChanged",
            "its authority was changed",
        ),
        (
            CertReason::NoWindow(NoWindow::WindowNeverOpens),
            "WindowNeverOpens",
            "no window ever opens: it is renewed outside of the windows",
        ),
        (
            CertReason::Note(CertNote::Differs(difference())),
            "DnsMissing",
            "SAN DNS:b is missing",
        ),
    ] {
        assert_eq!((reason.code(), reason.to_string().as_str()), (code, text));
    }
}

#[test]
fn states_each_note_with_its_code() {
    let at_renewal = |due| CertNote::AtRenewal {
        difference: CertDifference::IsCa,
        due,
    };
    for (note, code, text) in [
        (
            CertNote::UnreadAttributes(vec!["OU".to_owned(), "L".to_owned()]),
            "UnreadAttributes",
            "its subject also has OU, L, which the signer added and no component of Kubernetes reads",
        ),
        (
            CertNote::HeldBack {
                reasons: vec![CertReason::Requested, CertReason::KeyForm],
                hold: RenewalHold::JustRenewed {
                    age: Duration::HOUR,
                    until: AT,
                    is_requested: true,
                },
            },
            "HeldBack",
            "requested; the key is PKCS#8; kubeadm writes PKCS#1 or SEC1; renewed 1h ago, not renewed again before 2026-06-01T12:00:00Z (--force renews it now)",
        ),
        (
            at_renewal(Some(AT)),
            "AtRenewal",
            "it is a CA certificate, but a leaf certificate is required: takes effect at the next renewal, which is due at 2026-06-01T12:00:00Z",
        ),
        (
            at_renewal(None),
            "AtRenewal",
            "it is a CA certificate, but a leaf certificate is required: takes effect at the next renewal",
        ),
        (
            CertNote::OtherLifetime {
                lives: "30d".to_owned(),
                asked: "365d".to_owned(),
            },
            "OtherLifetime",
            "its lifetime is 30d instead of the requested 365d",
        ),
        (
            CertNote::OldCopies {
                name: CertName::AdminConf,
                until: AT,
            },
            "OldCopies",
            "copies of the old admin.conf work until 2026-06-01T12:00:00Z; distribute new ones by then",
        ),
    ] {
        assert_eq!((note.code(), note.to_string().as_str()), (code, text));
    }
}

#[test]
fn states_each_refusal_with_its_fix() {
    let authority = Authority::EtcdCa;
    let (found, wanted) = ("CN=a".to_owned(), "CN=b".to_owned());
    for (refusal, text) in [
        (
            BundleRefusal::TrustFileAbsent {
                file: "/ca.pem".into(),
                authority,
            },
            "/ca.pem is absent, but authorities.etcd-ca.trust.file names it as the CA certificate: put the certificate there or correct the setting",
        ),
        (
            BundleRefusal::NotOfCluster {
                path: path("/ca.crt"),
                authority,
                found: found.clone(),
                from: "cluster-info".to_owned(),
                wanted: wanted.clone(),
            },
            "/ca.crt is not the etcd-ca of the cluster: it contains CN=a, cluster-info has CN=b; find out which one is right; if it is the cluster's, move the file away and run again",
        ),
        (
            BundleRefusal::NotOfTrustFile {
                path: path("/ca.crt"),
                authority,
                found,
                file: "/ca.pem".into(),
                wanted,
            },
            "/ca.crt is not the etcd-ca of authorities.etcd-ca.trust.file: it contains CN=a, /ca.pem has CN=b; find out which one is right",
        ),
        (
            BundleRefusal::Unusable {
                path: path("/ca.crt"),
                authority,
                why: "it is empty".to_owned(),
            },
            "/ca.crt is not a usable trust bundle of etcd-ca: it is empty; put the CA certificate there and run again",
        ),
        (
            BundleRefusal::NotPinned {
                path: path("/ca.crt"),
                authority,
                why: "it differs".to_owned(),
            },
            "/ca.crt does not match the pins of authority etcd-ca: it differs; correct authorities.etcd-ca.trust.sha256 or the file",
        ),
        (
            BundleRefusal::Expired {
                path: path("/ca.crt"),
                subject: "CN=a".to_owned(),
                at: AT,
            },
            "the CA certificate in /ca.crt (CN=a) expired at 2026-06-01T12:00:00Z: peers refuse every certificate, kubeconfig and kubelet under it; replace the CA first, as new leaf certificates would be refused too",
        ),
    ] {
        assert_eq!(
            CertRefusal::AuthorityRefused(vec![refusal]).to_string(),
            text
        );
    }
    let not_ready = |name, why: &str| CertRefusal::ComponentNotReady {
        component: Component::KubeApiserver,
        why: why.to_owned(),
        name,
    };
    let apiserver = not_ready(CertName::Apiserver, "no answer");
    assert_eq!(
        apiserver.to_string(),
        "kube-apiserver did not become ready with the last certificate: no answer; find out why, then run `nodepki renew --name apiserver`"
    );
    assert_eq!(apiserver.code(), "ComponentNotReady");
    let refused = |name: &str, refusal| CertRefusal::RefusedByClients {
        path: path(name),
        refusal,
    };
    let admin = refused("/admin.conf", ClientRefusal::ExecCommand);
    assert_eq!(
        admin.to_string(),
        "/admin.conf is refused by every client of Kubernetes: exec.command is empty (correct the field, which nodepki does not change, or move the file away and run again)"
    );
    // The file and the name of the certificate do not make another cause.
    assert!(admin.has_same_cause(&refused("/s.conf", ClientRefusal::ExecCommand)));
    assert!(!admin.has_same_cause(&refused("/s.conf", ClientRefusal::Proxy)));
    let client = not_ready(CertName::ApiserverEtcdClient, "no answer");
    assert!(apiserver.has_same_cause(&client));
    assert!(!admin.has_same_cause(&client));
}

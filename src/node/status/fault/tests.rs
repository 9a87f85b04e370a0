use time::Duration;
use time::macros::datetime;

use super::*;
use crate::store::PathObstacle;
use crate::x509::{CertificateAuthority, KeyAlgorithm};

const AT: OffsetDateTime = datetime!(2026-11-20 09:57:29 UTC);

fn bundle() -> TrustBundle {
    let key = CertificateAuthority::new_key(KeyAlgorithm::EcdsaP256).unwrap();
    let year = std::time::Duration::from_secs(365 * 24 * 3600);
    let authority = CertificateAuthority::self_signed("kubernetes", key, AT, year);
    authority.unwrap().bundle().clone()
}

fn file(problem: FileProblem) -> FileFault {
    FileFault::new("/pki/a.key", problem)
}

fn directory() -> StoreError {
    StoreError::Unsafe {
        path: "/a.conf".into(),
        why: PathObstacle::Directory,
    }
}

#[test]
fn states_problem_of_file_and_gives_it_a_code() {
    let denied = StoreError::Denied {
        action: "read",
        path: "/pki".into(),
        source: nix::errno::Errno::EACCES,
    };
    let dangling = || KubeconfigError::Dangling("user \"a\"".to_owned());
    let part = |part| FileFault {
        part,
        ..file(FileProblem::Absent)
    };
    for (fault, code, text) in [
        (file(FileProblem::Absent), "Absent", "/pki/a.key is missing"),
        (
            part(FilePart::ClientCertificate),
            "Absent",
            "the client certificate in /pki/a.key is missing",
        ),
        (
            part(FilePart::ClientKey),
            "Absent",
            "the client key in /pki/a.key is missing",
        ),
        (
            part(FilePart::AuthorityData),
            "Absent",
            "its CA data is missing",
        ),
        (
            file(FileProblem::DanglingLink),
            "DanglingLink",
            "/pki/a.key is a dangling symbolic link",
        ),
        (file(FileProblem::Empty), "Empty", "/pki/a.key is empty"),
        (
            file(FileProblem::Damaged("no PEM".to_owned())),
            "Damaged",
            "/pki/a.key is unreadable: no PEM",
        ),
        (
            file(FileProblem::NotATrustBundle("no CA".to_owned())),
            "NotATrustBundle",
            "/pki/a.key cannot serve as a CA: no CA",
        ),
        (
            FileFault::of_kubeconfig("/a.conf", dangling()),
            "NoContext",
            "/a.conf is unreadable: current-context names user \"a\", which it does not contain",
        ),
        (
            FileFault::of_kubeconfig("/a.conf", KubeconfigError::NotAMapping),
            "NotAKubeconfig",
            "/a.conf is unreadable: it is not a kubeconfig (no mapping at the top)",
        ),
    ] {
        assert_eq!(fault.to_string(), text);
        assert_eq!(RowFault::File(fault).code(), code);
    }
    // The path is that of the obstacle.
    for (error, code, path) in [
        (denied, "Denied", "/pki"),
        (directory(), "NotAFile", "/a.conf"),
        (
            StoreError::NoOpenat2 { path: "/".into() },
            "NotRead",
            "/here",
        ),
    ] {
        let fault = FileFault::of_store("/here", &error);
        assert_eq!((fault.code(), fault.path.as_str()), (code, path));
        assert_eq!(fault.to_string(), error.to_string());
    }
}

#[test]
fn states_fault_of_row_and_gives_it_code_and_state() {
    let (trust, now) = (bundle(), AT + Duration::days(3));
    let (path, mode) = (|| "/a".to_owned(), 0o646);
    let untrusted = |has_issuer_name| RowFault::UntrustedIssuer {
        path: "/ca.crt".to_owned(),
        issuer: "CN=x".to_owned(),
        trust: trust.clone(),
        has_issuer_name,
    };
    let anchors = format!("in /ca.crt: its issuer is CN=x, the anchor there is {trust}");
    for (fault, code, state, text) in [
        (
            RowFault::Expiring { at: now, now: AT },
            "Expiring",
            RowState::Expiring,
            "it expires at 2026-11-23 09:57 UTC, in 3d".to_owned(),
        ),
        (
            RowFault::File(file(FileProblem::Absent)),
            "Absent",
            RowState::Missing,
            "/pki/a.key is missing".to_owned(),
        ),
        (
            RowFault::File(file(FileProblem::Empty)),
            "Empty",
            RowState::Unreadable,
            "/pki/a.key is empty".to_owned(),
        ),
        (
            RowFault::PublicKeyAbsent(file(FileProblem::Absent)),
            "Absent",
            RowState::Missing,
            "/pki/a.key is missing; it can be derived from sa.key".to_owned(),
        ),
        (
            RowFault::PrivateKeyLost(file(FileProblem::Empty)),
            "Empty",
            RowState::Unreadable,
            format!("/pki/a.key is empty; {COPY_SERVICE_ACCOUNT}"),
        ),
        (
            RowFault::RefusedByClients(ClientRefusal::NoServer),
            "RefusedByClients",
            RowState::Unreadable,
            "every client of Kubernetes refuses it: server is empty".to_owned(),
        ),
        (
            RowFault::Misplaced(CertDifference::IsCa),
            "IsCa",
            RowState::Unsafe,
            CertDifference::IsCa.to_string(),
        ),
        (
            RowFault::KeyExposed { path: path(), mode },
            "KeyExposed",
            RowState::Unsafe,
            "/a holds a private key and has mode 0646: every user of this machine can read it; run chmod 600 /a".to_owned(),
        ),
        (
            RowFault::FileExposed { path: path(), mode },
            "FileExposed",
            RowState::Unsafe,
            "/a has mode 0646: every user of this machine can change it; run chmod o-w /a".to_owned(),
        ),
        (
            RowFault::AuthorityDataExpired(AT),
            "AuthorityDataExpired",
            RowState::Untrusted,
            "the CA certificate in its CA data expired at 2026-11-20 09:57 UTC, and ca.crt holds a valid one: it does not trust the API server".to_owned(),
        ),
        (
            RowFault::OtherAuthority { found: trust.clone(), trusted: trust.clone() },
            "OtherAuthority",
            RowState::Untrusted,
            format!("its CA data is {trust}, but ca.crt holds {trust}: it does not trust the API server"),
        ),
        (
            RowFault::AuthorityUnusable(file(FileProblem::Empty)),
            "AuthorityUnusable",
            RowState::Untrusted,
            "it cannot be verified: /pki/a.key is empty".to_owned(),
        ),
        (
            untrusted(true),
            "UntrustedIssuer",
            RowState::Untrusted,
            format!("no certification path connects it with the authority {anchors}; the name is the same, the key is not"),
        ),
        (
            untrusted(false),
            "UntrustedIssuer",
            RowState::Untrusted,
            format!("no certification path connects it with the authority {anchors}; another authority signed it, or intermediates are missing in its file"),
        ),
        (
            RowFault::Unverified(CertDifference::NameConstraint),
            "NameConstraint",
            RowState::Untrusted,
            CertDifference::NameConstraint.to_string(),
        ),
        (
            RowFault::NotYetValid(AT),
            "NotYetValid",
            RowState::NotYetValid,
            "it is not valid before 2026-11-20 09:57 UTC; if that is not in the future, the clock of this machine is wrong".to_owned(),
        ),
        (
            RowFault::KeyMismatch,
            "KeyMismatch",
            RowState::Torn,
            "the key does not match the certificate; issue the certificate again, or restore the file that was lost".to_owned(),
        ),
        (
            RowFault::PairMismatch,
            "PairMismatch",
            RowState::Torn,
            format!("sa.key and sa.pub are not a pair: tokens signed with the one are refused by the other; {COPY_SERVICE_ACCOUNT}"),
        ),
        (
            RowFault::ServiceAccountKeyMisplaced(MisplacedKey {
                path: "/pki/apiserver.key".to_owned(),
                private: "/pki/sa key".to_owned(),
                is_alone: false,
            }),
            "ServiceAccountKeyMisplaced",
            RowState::Torn,
            "/pki/apiserver.key contains the private key that belongs to sa.pub: exchange both files (`mv '/pki/sa key' '/pki/sa key'.old && mv /pki/apiserver.key '/pki/sa key' && mv '/pki/sa key'.old /pki/apiserver.key`)".to_owned(),
        ),
        (
            RowFault::Expired { at: AT, now },
            "Expired",
            RowState::Expired,
            "it expired at 2026-11-20 09:57 UTC, 3d ago".to_owned(),
        ),
    ] {
        assert_eq!((fault.code(), fault.state()), (code, state));
        assert_eq!(fault.to_string(), text);
    }
}

#[test]
fn compares_faults_of_rows_by_kind_of_file_and_minute() {
    let absent = |path: &str| RowFault::File(FileFault::new(path, FileProblem::Absent));
    let denied = |path: &str| {
        let error = StoreError::Denied {
            action: "read",
            path: path.into(),
            source: nix::errno::Errno::EACCES,
        };
        RowFault::File(FileFault::of_store(path, &error))
    };
    let expired = |at| RowFault::Expired { at, now: AT };
    let at = datetime!(2026-11-19 09:57:29 UTC);
    for (one, other, are_same) in [
        (absent("/a.key"), absent("/b.key"), true),
        (absent("/a.key"), absent("/a.crt"), false),
        (absent("/a.key"), denied("/a.key"), false),
        (denied("/a.key"), denied("/b.key"), true),
        (expired(at), expired(at + Duration::seconds(9)), true),
        (expired(at), expired(at + Duration::minutes(1)), false),
        (
            RowFault::Misplaced(CertDifference::DnsMissing("a".to_owned())),
            RowFault::Misplaced(CertDifference::DnsMissing("b".to_owned())),
            false,
        ),
    ] {
        assert_eq!(one.general() == other.general(), are_same, "{one} {other}");
    }
}

#[test]
fn states_remark_and_gives_it_a_code() {
    let trust = bundle();
    let policy = |replaced_at| RowRemark::KeyPolicy {
        difference: PolicyDifference::Lifetime {
            found: std::time::Duration::from_secs(7200),
            required: std::time::Duration::from_secs(3600),
        },
        replaced_at,
    };
    let mounted = |is_restarted| RowRemark::MountedBy {
        pod: "vip".to_owned(),
        is_restarted,
    };
    let lifetime = "its certificate is valid for 2h, and the key policy permits 1h";
    for (remark, code, text) in [
        (
            RowRemark::ExpiredInBundle { subject: "CN=old".to_owned(), at: AT },
            "ExpiredInBundle",
            "its bundle also holds CN=old, which expired at 2026-11-20 09:57 UTC; remove it when convenient".to_owned(),
        ),
        (
            RowRemark::KeyForm,
            "KeyForm",
            "the key is PKCS#8, which some components of Kubernetes cannot read; kubeadm writes PKCS#1 or SEC1".to_owned(),
        ),
        (
            RowRemark::NotVerified(Authority::EtcdCa),
            "NotVerified",
            "not verified: etcd-ca is not on this node".to_owned(),
        ),
        (
            RowRemark::OutlivesAuthority(AT),
            "OutlivesAuthority",
            "it outlives its authority, which expires at 2026-11-20 09:57 UTC".to_owned(),
        ),
        (
            RowRemark::NoAuthorityData,
            "NoAuthorityData",
            "it does not embed CA data".to_owned(),
        ),
        (
            RowRemark::NotFirstAuthority(trust.clone()),
            "NotFirstAuthority",
            format!("its CA data is {trust}; kubeadm writes the first certificate of ca.crt"),
        ),
        (policy(None), "KeyPolicy", lifetime.to_owned()),
        (
            policy(Some(AT)),
            "KeyPolicy",
            format!("{lifetime}; the next renewal, which is due at 2026-11-20 09:57 UTC, replaces the certificate"),
        ),
        (
            mounted(true),
            "MountedBy",
            "static pod vip mounts it, and is restarted after it is replaced".to_owned(),
        ),
        (
            mounted(false),
            "MountedBy",
            "static pod vip mounts it, and is not restarted after it is replaced".to_owned(),
        ),
    ] {
        assert_eq!((remark.code(), remark.to_string()), (code, text));
    }
}

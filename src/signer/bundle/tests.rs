use std::time::Duration;

use time::OffsetDateTime;

use super::*;
use crate::signer::{NodeIdentity, RequestedCertificate};
use crate::x509::{CertificateAuthority, KeyAlgorithm, Subject, UsageExtensions};

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-20 09:57:29 UTC);

fn key() -> PrivateKey {
    PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap()
}

fn heading(node: &str, cluster: &str) -> BundleHeading {
    BundleHeading {
        node: node.to_owned(),
        cluster: cluster.to_owned(),
        ..BundleHeading::default()
    }
}

fn profile() -> Profile {
    let day = Duration::from_secs(86400);
    Profile::of_tests(Subject::new("kube-apiserver", &[]), &[], day)
}

/// Returns a bundle with one request, for this key of this node.
fn bundle(heading: &BundleHeading, key: &PrivateKey) -> Vec<BundleFile> {
    let wanted = RequestedCertificate {
        name: CertName::Apiserver,
        authority: Authority::Ca,
        profile: profile(),
        tolerance: Default::default(),
    };
    let csr = Csr::create(&wanted.profile, key, UsageExtensions::Requested).unwrap();
    let identity = NodeIdentity {
        node: heading.node.clone(),
        cluster: heading.cluster.clone(),
    };
    export(&[Request::new(wanted, csr, identity, NOW)], heading)
}

type Present = BTreeMap<PathBuf, Vec<u8>>;

fn written(files: &[BundleFile]) -> Present {
    let files = files.iter();
    files
        .map(|file| (file.path.clone(), file.bytes.clone()))
        .collect()
}

#[test]
fn overwrites_only_earlier_export_of_this_node() {
    let own = heading("cp1", "prod");
    let (old_key, new_key) = (key(), key());
    let (old, new) = (bundle(&own, &old_key), bundle(&own, &new_key));
    let day = Duration::from_secs(24 * 60 * 60);
    let authority = CertificateAuthority::self_signed("ca", key(), NOW, day).unwrap();
    let issue = |key: &PrivateKey| {
        let certificate = authority.issue(key.public_key(), &profile(), NOW);
        certificate.unwrap()
    };
    let (answer, stray) = (issue(&old_key), issue(&new_key));
    let pending = || OwnKeys {
        keys: vec![old_key.public_key().clone()],
        certificates: Vec::new(),
    };
    let installed = || OwnKeys {
        certificates: vec![answer.fingerprint()],
        ..pending()
    };
    let nothing = OwnKeys::default;
    let signed = |certificate: &Certificate| {
        let mut present = written(&old);
        let pem = certificate.to_pem().into_bytes();
        present.insert("pki/apiserver.crt".into(), pem);
        present
    };
    let without = |path: &str| {
        let mut present = written(&old);
        present.remove(Path::new(path));
        present
    };
    let only = |path: &str, bytes: &[u8]| Present::from([(path.into(), bytes.to_vec())]);
    let interrupted: Present = written(&new).into_iter().take(2).collect();
    for (name, present, known, expected) in [
        ("empty directory", Present::new(), nothing(), ""),
        ("interrupted first export", interrupted, nothing(), ""),
        ("earlier export", written(&old), pending(), ""),
        ("repeated export", written(&new), nothing(), ""),
        ("certificate in place", signed(&answer), installed(), ""),
        ("certificate of another key", signed(&stray), pending(), ""),
        (
            "another node of this name",
            written(&old),
            nothing(),
            "pki/apiserver.csr has a key that this node neither uses nor keeps for a pending request: it may be of another node with this name, or an earlier one of this node (name another directory, or remove this one if its requests are not needed any more)",
        ),
        (
            "README of another program",
            only("README", b"# My project"),
            pending(),
            "README is not of an earlier export of this node, and the export would overwrite it (name another directory)",
        ),
        (
            "list of another program",
            only(MANIFEST_FILE, b"{}"),
            pending(),
            "request.json is not of an earlier export of this node, and the export would overwrite it (name another directory)",
        ),
        (
            "requests without their list",
            without(MANIFEST_FILE),
            pending(),
            "pki/apiserver.csr is not of an earlier export of this node, and the export would overwrite it (name another directory)",
        ),
        (
            "another node",
            written(&bundle(&heading("cp2", "prod"), &old_key)),
            pending(),
            "it contains the requests of node cp2, which those of cp1 would overwrite (name another directory)",
        ),
        (
            "node of the same name in another cluster",
            written(&bundle(&heading("cp1", "test"), &old_key)),
            pending(),
            "it contains the requests of node cp1 of cluster test, which those of cluster prod would overwrite (name another directory)",
        ),
        (
            "certificate that is not in place",
            signed(&answer),
            pending(),
            "pki/apiserver.crt is the certificate for pki/apiserver.csr, which another request would replace, and it is not installed on this node (import the directory, or name another one)",
        ),
    ] {
        let found = conflict(&new, &own, &present, &known);
        let found = found.map(|conflict| conflict.to_string());
        assert_eq!(found.unwrap_or_default(), expected, "{name}");
    }
    // The request is unchanged, so the certificate still belongs to it.
    assert_eq!(conflict(&old, &own, &signed(&answer), &nothing()), None);
}

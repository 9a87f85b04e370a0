use std::time::Duration;

use serde_json::json;
use time::OffsetDateTime;

use super::*;
use crate::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject,
};

const NOW: OffsetDateTime = time::macros::datetime!(2026-11-21 12:00 UTC);
const YEAR: Duration = Duration::from_secs(365 * 86400);

fn token(text: &str) -> BootstrapToken {
    text.parse().unwrap()
}

fn golden() -> Value {
    serde_json::from_str(include_str!(
        "../../../tests/golden/cluster-info/configmap.json"
    ))
    .unwrap()
}

fn golden_pin() -> [u8; 32] {
    let mut pin = [0; 32];
    let digits = "38ba71fec120ca030302aad31b05f4be388ce4b135b451f13ea2fb9c2dbc3c27";
    base16ct::lower::decode(digits, &mut pin).unwrap();
    pin
}

/// Returns the ConfigMap with this kubeconfig and signature.
fn info(kubeconfig: &str, signature: &str) -> ClusterInfo {
    let data = json!({"kubeconfig": kubeconfig, "jws-kubeconfig-abcdef": signature});
    ClusterInfo::read(&json!({ "data": data })).unwrap()
}

#[test]
fn accepts_cluster_info_of_real_cluster() {
    let info = ClusterInfo::read(&golden()).unwrap();
    let token = token("abcdef.0123456789abcdef");
    info.verify(&token).unwrap();
    let cluster = info.cluster().unwrap();
    assert_eq!(cluster.server, "https://api.prod.example.com:6443");
    let pinned = pinned(&cluster.authority, &[[0; 32], golden_pin()], &token).unwrap();
    assert_eq!(pinned, cluster.authority);
    assert!(info.says_the_same_as(&info.clone()));
    assert!(!info.is_signed_for(&"zzzzzz.0123456789abcdef".parse().unwrap()));
}

/// The vector of Kubernetes' own test, whose id and secret are not a valid bootstrap token.
#[test]
fn verifies_signature_of_kubernetes_test_vector() {
    let content = "Hello from the other side. I must have called a thousand times.";
    let jws =
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8";
    verify(jws, content, "joshua", "my voice is my passcode").unwrap();
}

#[test]
fn reports_each_fault_of_signature() {
    let golden = golden();
    let kubeconfig = golden["data"]["kubeconfig"].as_str().unwrap();
    let jws = golden["data"]["jws-kubeconfig-abcdef"].as_str().unwrap();
    let (header, signature) = jws.split_once("..").unwrap();
    let with_header = |json: &str| format!("{}..{signature}", BASE64.encode(json));
    let tampered = kubeconfig.replace("api.prod", "evil.prod");
    let cut = &kubeconfig[..kubeconfig.len() - 1];
    let payload = BASE64.encode(kubeconfig);
    let mismatch = "does not match the secret of token abcdef";
    for (kubeconfig, jws, secret, expected) in [
        (kubeconfig, jws.to_owned(), "0123456789abcdef", ""),
        (kubeconfig, jws.to_owned(), "0123456789abcdeg", mismatch),
        (&*tampered, jws.to_owned(), "0123456789abcdef", mismatch),
        (cut, jws.to_owned(), "0123456789abcdef", mismatch),
        (
            kubeconfig,
            with_header(r#"{"alg":"HS256","kid":"aaaaaa"}"#),
            "0123456789abcdef",
            r#"header: {\"alg\":\"HS256\",\"kid\":\"aaaaaa\"} instead of {"alg":"HS256","kid":"abcdef"}"#,
        ),
        (
            kubeconfig,
            with_header(r#"{"alg":"none","kid":"abcdef"}"#),
            "0123456789abcdef",
            r#"header: {\"alg\":\"none\","#,
        ),
        (
            kubeconfig,
            with_header(r#"{"kid":"abcdef","alg":"HS256"}"#),
            "0123456789abcdef",
            "has an unexpected header",
        ),
        (
            kubeconfig,
            format!("{header}..{}", &signature[..20]),
            "0123456789abcdef",
            "does not have the length of an HMAC-SHA256",
        ),
        (
            kubeconfig,
            format!("{header}.."),
            "0123456789abcdef",
            "does not have the length of an HMAC-SHA256",
        ),
        (
            kubeconfig,
            format!("{header}..{signature}="),
            "0123456789abcdef",
            "its signature part is not base64url",
        ),
        (
            kubeconfig,
            format!("{header}.{payload}.{signature}"),
            "0123456789abcdef",
            "it is not HEADER..SIGNATURE",
        ),
        (
            kubeconfig,
            String::new(),
            "0123456789abcdef",
            "it is not HEADER..SIGNATURE",
        ),
    ] {
        let said = info(kubeconfig, &jws)
            .verify(&token(&format!("abcdef.{secret}")))
            .map_or_else(|error| error.to_string(), |()| String::new());
        assert!(
            said.contains(expected) && said.is_empty() == expected.is_empty(),
            "{jws}: {said}"
        );
        assert!(!said.contains(secret), "{said}");
    }
}

#[test]
fn reports_each_fault_of_kubeconfig() {
    let golden = golden();
    let kubeconfig = golden["data"]["kubeconfig"].as_str().unwrap();
    for (text, expected) in [
        (
            kubeconfig[..kubeconfig.len() / 2].to_owned(),
            "its kubeconfig cannot be used: ",
        ),
        ("\t: {".to_owned(), "it is not YAML"),
        ("[]".to_owned(), "it is not a kubeconfig"),
        (
            kubeconfig.replace("name: \"\"", "name: other"),
            "current-context is empty",
        ),
        (
            kubeconfig.replace("server:", "serve:"),
            "it is signed, but its kubeconfig does not contain server; correct it in the cluster",
        ),
        (
            kubeconfig.replace("certificate-authority-data: ", "certificate-authority: "),
            "does not contain certificate-authority-data",
        ),
        (
            kubeconfig.replace("authority-data: LS0t", "authority-data: LS0"),
            "certificate-authority-data is not valid base64",
        ),
        (
            kubeconfig.replace("authority-data: LS0tLS1C", "authority-data: LS0tLS1D"),
            "CA certificates cannot be used",
        ),
    ] {
        let said = info(&text, "").cluster().unwrap_err().to_string();
        assert!(said.contains(expected), "{text}: {said}");
    }
    for config_map in [
        json!({}),
        json!({"data": {}}),
        json!({"data": {"kubeconfig": ""}}),
    ] {
        let said = ClusterInfo::read(&config_map).unwrap_err().to_string();
        assert!(
            said.contains("kubeadm init phase bootstrap-token"),
            "{said}"
        );
    }
}

fn authority(name: &str) -> (CertificateAuthority, PrivateKey) {
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let copy = PrivateKey::from_pem(key.to_pem().as_bytes()).unwrap();
    (
        CertificateAuthority::self_signed(name, key, NOW, YEAR).unwrap(),
        copy,
    )
}

fn bundle(pems: &[String]) -> TrustBundle {
    TrustBundle::from_pem(pems.concat().as_bytes()).unwrap()
}

#[test]
fn selects_pinned_certificates_and_cas_below_them() {
    let ((one, key_of_one), (two, _)) = (authority("one"), authority("two"));
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let profile = Profile::of_tests(
        Subject::new("system:node:n1", &["system:nodes"]),
        &[ExtendedUsage::ClientAuth],
        YEAR,
    );
    let leaf = one.issue(key.public_key(), &profile, NOW).unwrap();
    let (pem_one, pem_two) = (one.bundle().to_pem(), two.bundle().to_pem());
    let (pin_one, pin_two) = (one.public_key().sha256(), two.public_key().sha256());
    let (lower, lowest) = chain_below(&one, &key_of_one);
    let token = token("abcdef.0123456789abcdef");
    let both = &[pem_one.clone(), pem_two.clone()];
    type Expected<'a> = Result<&'a [&'a str], &'a str>;
    for (pems, pins, expected) in [
        (&both[..1], &[pin_one][..], Ok(&["CN=one"][..])),
        (both, &[pin_one, pin_two], Ok(&["CN=one", "CN=two"])),
        (
            &[pem_one.clone(), lower.clone()],
            &[pin_one],
            Ok(&["CN=one", "CN=lower"]),
        ),
        (
            &[lowest.clone(), lower.clone(), pem_one.clone()],
            &[pin_one],
            Ok(&["CN=lowest", "CN=lower", "CN=one"]),
        ),
        // A path is required; an equal name is not sufficient.
        (&[pem_one.clone(), lowest], &[pin_one], Ok(&["CN=one"])),
        (both, &[pin_one], Ok(&["CN=one"])),
        (both, &[pin_two], Ok(&["CN=two"])),
        (
            &[pem_one.clone(), leaf.to_pem()],
            &[pin_one],
            Err("neither pinned nor of a CA: O=system:nodes, CN=system:node:n1"),
        ),
        (
            both,
            &[[7; 32]],
            Err("none of its CA certificates is pinned: found CN=one (public key sha256:"),
        ),
    ] as [(&[String], &[[u8; 32]], Expected<'_>); 9]
    {
        match (pinned(&bundle(pems), pins, &token), expected) {
            (Ok(found), Ok(expected)) => {
                let found = found.certificates().iter();
                let found: Vec<_> = found.map(|one| one.subject().to_string()).collect();
                assert_eq!(found, expected);
            }
            (Err(error), Err(expected)) => {
                let error = error.to_string();
                assert!(error.contains(expected), "{expected:?}: {error}");
            }
            (found, expected) => panic!("{expected:?}: {found:?}"),
        }
    }
}

/// Returns two intermediate certificates, the second issued by the first.
fn chain_below(root: &CertificateAuthority, key: &PrivateKey) -> (String, String) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let pem = |der: &[u8]| Certificate::from_der(der).unwrap().to_pem();
    let (lower_key, lowest_key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let root = Issuer::from_ca_cert_der(&root.bundle().first().der().into(), key).unwrap();
    let lower = params("lower").signed_by(&lower_key, &root).unwrap();
    let lowest = params("lowest")
        .signed_by(&lowest_key, &Issuer::new(params("lower"), &lower_key))
        .unwrap();
    (pem(lower.der()), pem(lowest.der()))
}

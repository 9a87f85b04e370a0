//! Constraints of directory names, which Go ignores and webpki does not support.

use std::fs;
use std::time::Duration;

use nodepki::x509::ExtendedUsage;
use time::OffsetDateTime;

use super::judges::{Case, judge};
use crate::signing::openssl;

/// The constraints of the CA, with `@` for the name C=DE, O=Example Corp; the subject of the leaf; whether nodepki accepts it.
const CASES: [(&str, &str, bool); 12] = [
    ("permitted;@", "/C=DE/O=Example Corp/CN=x", true),
    ("permitted;@", "/C=de/O=example  CORP /CN=x", true),
    ("permitted;@", "/C=DE/O=Example Corp", true),
    ("permitted;@", "/C=DE/O=Example/CN=x", false),
    ("permitted;@", "/O=Example Corp/C=DE/CN=x", false),
    ("permitted;@", "/C=DE+O=Example Corp/CN=x", false),
    ("permitted;@", "/CN=x", false),
    ("excluded;@", "/CN=x", true),
    ("excluded;@", "/C=DE/O=EXAMPLE CORP/CN=x", false),
    (
        "permitted;@, permitted;DNS:example.com",
        "/C=DE/O=Example Corp/CN=x",
        true,
    ),
    (
        "permitted;@, permitted;DNS:example.org",
        "/C=DE/O=Example Corp/CN=x",
        false,
    ),
    // Go refuses a critical extension that it does not process completely.
    ("critical, permitted;@", "/C=DE/O=Example Corp/CN=x", false),
];

#[test]
fn judges_constraints_of_directory_names_like_openssl_and_go_together() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let make_key = |name: &str| {
        let key = at(name);
        openssl(
            &[
                "genpkey",
                "-algorithm",
                "EC",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-out",
                &key,
            ],
            b"",
        );
        key
    };
    let (ca_key, key) = (make_key("ca.key"), make_key("leaf.key"));
    let (config, ca, extensions) = (at("ca.conf"), at("ca.crt"), at("leaf.ext"));
    fs::write(
        &extensions,
        "subjectAltName=DNS:a.example.com\nextendedKeyUsage=serverAuth\nkeyUsage=critical,digitalSignature\n",
    )
    .unwrap();
    let cases = CASES.map(|(constraints, subject, _)| {
        let constraints = constraints.replace('@', "dirName:base");
        let text = format!(
            "[req]\ndistinguished_name=dn\nx509_extensions=ext\nprompt=no\n[dn]\nCN=root\n\
             [ext]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n\
             subjectKeyIdentifier=hash\nnameConstraints={constraints}\n[base]\nC=DE\nO=Example Corp\n"
        );
        fs::write(&config, text).unwrap();
        openssl(&["req", "-x509", "-key", &ca_key, "-days", "30", "-config", &config, "-out", &ca], b"");
        let request = openssl(&["req", "-new", "-key", &key, "-subj", subject], b"");
        let leaf = [
            "x509", "-req", "-days", "20", "-CA", &ca, "-CAkey", &ca_key, "-extfile", &extensions, "-outform", "DER",
        ];
        Case {
            name: format!("{constraints} {subject}"),
            leaf: openssl(&leaf, &request),
            intermediates: Vec::new(),
            roots: vec![openssl(&["x509", "-in", &ca, "-outform", "DER"], b"")],
            usages: vec![ExtendedUsage::ServerAuth],
            at: OffsetDateTime::now_utc() + Duration::from_secs(24 * 60 * 60),
        }
    });
    for ((case, verdicts), (.., wanted)) in cases.iter().zip(judge(&cases)).zip(CASES) {
        let found = (&verdicts.nodepki, &verdicts.openssl, &verdicts.go);
        assert_eq!(verdicts.nodepki.is_ok(), wanted, "{}: {found:?}", case.name);
        let both = verdicts.openssl.is_ok() && verdicts.go.is_ok();
        assert_eq!(wanted, both, "{}: {found:?}", case.name);
    }
}

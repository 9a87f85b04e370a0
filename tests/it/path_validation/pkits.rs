//! NIST's Public Key Interoperability Test Suite (PKITS). Each name of a leaf says whether its path is valid; a name
//! without a verdict depends on the initial policies, which nodepki does not have, as Go does not.

use std::collections::BTreeMap;

use time::macros::datetime;
use x509_parser::prelude::{FromDer, X509Certificate, X509Name};

use super::judges::{Case, Reason, compare, stricter};

/// Certificates in PEM, each after a line with its name.
const PKITS_CERTIFICATES: &str = include_str!("../../fixtures/pkits.pem");

const ROOT: &str = "TrustAnchorRootCertificate";

#[rustfmt::skip]
const REASONS: &[Reason] = &[
    // Leaves that a control plane cannot use.
    stricter("nodepki", "a leaf certificate is required", "a leaf that is a CA could issue further certificates"),
    stricter("nodepki", "it is negative", "RFC 5280, 4.1.2.2, demands a positive number; Go refuses others"),
    // Go's rules, which decide in a cluster.
    stricter("nodepki", "NameChaining", "Go and webpki compare names byte by byte, not as RFC 5280, 7.1, says"),
    stricter("nodepki", "RolloverfromPrintableString", "Go and webpki compare names byte by byte"),
    stricter("nodepki", "UTF8StringCaseInsensitive", "Go and webpki compare names byte by byte"),
    stricter("nodepki", "a path length constraint", "Go counts self-issued certificates"),
    stricter("nodepki", "2.5.29.30, which Kubernetes components do not know", "Go has no constraints of directory names"),
    stricter("nodepki", "has no fullName", "Go refuses distribution points relative to an issuer"),
    stricter("nodepki", "its certificate policies are not valid", "Go processes policies always, OpenSSL on request, webpki never"),
    stricter("nodepki", "DSA", "Go and webpki have no DSA"),
    stricter("nodepki", "does not allow it to sign", "webpki does not check keyCertSign"),
    // webpki also verifies every path.
    stricter("nodepki", "critical extension that is not supported", "webpki has no policies"),
    stricter("nodepki", "TrailingData(CertificateExtensions)", "webpki has no unique identifiers"),
    stricter("nodepki", "BadDerTime", "webpki reads years from 1970"),
    stricter("nodepki", "RFC822nameConstraints", "webpki refuses every name of a form that a constraint mentions and it does not know"),
    stricter("nodepki", "URInameConstraints", "webpki refuses every name of a form that a constraint mentions and it does not know"),
    // Sections 4.4, 4.14 and 4.15: the paths are valid, and their CRLs revoke a certificate or are missing.
    stricter("the suite", "CRL", "no path validation here uses CRLs"),
    stricter("the suite", "Revoked", "no path validation here uses CRLs"),
    stricter("the suite", "BasicSelfIssued", "no path validation here uses CRLs"),
    stricter("the suite", "LongSerialNumber", "no path validation here uses CRLs"),
    stricter("the suite", "distributionPoint", "no path validation here uses CRLs"),
    stricter("the suite", "onlyContains", "no path validation here uses CRLs"),
    stricter("the suite", "onlySomeReasons", "no path validation here uses CRLs"),
    stricter("the suite", "cRLIssuer", "no path validation here uses CRLs"),
    stricter("the suite", "cRLSignFalse", "no path validation here uses CRLs"),
];

/// Returns every certificate by name, as DER.
fn certificates() -> BTreeMap<&'static str, Vec<u8>> {
    let entries = PKITS_CERTIFICATES
        .split("\n# ")
        .filter(|entry| entry.contains("BEGIN"));
    entries
        .map(|entry| {
            let (name, _) = entry.split_once('\n').unwrap();
            let (_, block) = x509_parser::pem::parse_x509_pem(entry.as_bytes()).unwrap();
            (name, block.contents)
        })
        .collect()
}

/// Returns a name in a form in which names are equal that RFC 5280, 7.1, takes for equal.
fn folded(name: &X509Name<'_>) -> String {
    let text = name.to_string().to_lowercase();
    let words: Vec<&str> = text
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

#[test]
fn judges_paths_of_nist_like_go() {
    let all = certificates();
    assert_eq!(all.len(), 405);
    let names: BTreeMap<&str, (String, String)> = all
        .iter()
        .map(|(name, der)| {
            let (_, parsed) = X509Certificate::from_der(der).unwrap();
            (*name, (folded(parsed.subject()), folded(parsed.issuer())))
        })
        .collect();
    let leaves = all.iter().filter(|(name, _)| name.ends_with("EE"));
    let cases: Vec<Case> = leaves
        .map(|(name, leaf)| Case {
            name: (*name).to_owned(),
            leaf: leaf.clone(),
            intermediates: issuers_of(name, &names)
                .iter()
                .map(|issuer| all[issuer].clone())
                .collect(),
            roots: vec![all[ROOT].clone()],
            usages: Vec::new(),
            at: datetime!(2026-06-01 12:00 UTC),
        })
        .collect();
    assert_eq!(cases.len(), 223);
    let expected: Vec<Option<bool>> = cases
        .iter()
        .map(|case| match &*case.name {
            name if name.starts_with("Valid") => Some(true),
            name if name.starts_with("Invalid") => Some(false),
            _ => None,
        })
        .collect();
    compare(&cases, &expected, REASONS);
}

/// Returns every CA certificate that may lead from a leaf to the root, by its name.
fn issuers_of<'a>(leaf: &str, names: &BTreeMap<&'a str, (String, String)>) -> Vec<&'a str> {
    let mut wanted = vec![&names[leaf].1];
    let mut found = Vec::new();
    while let Some(issuer) = wanted.pop() {
        for (name, (subject, its_issuer)) in names {
            let is_ca = !name.ends_with("EE") && *name != ROOT;
            if is_ca && subject == issuer && !found.contains(name) {
                found.push(*name);
                wanted.push(its_issuer);
            }
        }
    }
    found
}

//! What a file contains that should contain a certificate, for messages.

use super::{Certificate, Csr};

/// Returns what the bytes contain instead of certificates in PEM, as a noun phrase; `None` if this cannot be told.
pub fn content_instead_of_pem(bytes: &[u8]) -> Option<&'static str> {
    let text = String::from_utf8_lossy(bytes);
    if bytes.first() == Some(&0x30) {
        return match (Certificate::from_der(bytes), Csr::from_der(bytes)) {
            (Ok(_), _) => Some(
                "a certificate in DER, not in PEM (openssl x509 -inform der -in FILE -out FILE.pem converts it)",
            ),
            (_, Ok(_)) => Some("a certificate signing request in DER"),
            _ => None,
        };
    }
    let mut labels = text.split("-----BEGIN ").skip(1);
    let labels: Vec<&str> = labels
        .by_ref()
        .filter_map(|rest| rest.split_once("-----").map(|(label, _)| label))
        .collect();
    let has = |matches: fn(&str) -> bool| labels.iter().any(|label| matches(label));
    if has(|label| matches!(label, "CERTIFICATE" | "X509 CERTIFICATE")) {
        Some("a PEM block that is indented, cut off or follows a byte order mark")
    } else if has(|label| label.ends_with("CERTIFICATE REQUEST")) {
        Some("a certificate signing request, not the certificate that was issued for it")
    } else if has(|label| label.ends_with("PRIVATE KEY")) {
        Some("a private key")
    } else if has(|label| label.ends_with("PUBLIC KEY")) {
        Some("a public key")
    } else if has(|label| label == "X509 CRL") {
        Some("a revocation list")
    } else if has(|label| matches!(label, "PKCS7" | "CMS")) {
        Some("a PKCS#7 container (openssl pkcs7 -print_certs -in FILE -out FILE.pem converts it)")
    } else if text.trim_start().starts_with('<') {
        Some("an HTML or XML page")
    } else if text.starts_with("LS0tLS1CRUdJTi") {
        Some("PEM text in base64 (base64 -d FILE decodes it)")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_is_not_a_certificate() {
        for (text, expected) in [
            ("-----BEGIN PRIVATE KEY-----\n", "a private key"),
            ("-----BEGIN EC PRIVATE KEY-----\n", "a private key"),
            ("-----BEGIN PUBLIC KEY-----\n", "a public key"),
            ("-----BEGIN CERTIFICATE REQUEST-----\n", "signing request"),
            ("-----BEGIN PKCS7-----\n", "PKCS#7"),
            ("-----BEGIN X509 CRL-----\n", "a revocation list"),
            ("  -----BEGIN CERTIFICATE-----\n", "indented"),
            ("\n<html>", "an HTML"),
            ("LS0tLS1CRUdJTiBD", "base64"),
        ] {
            let found = content_instead_of_pem(text.as_bytes()).unwrap();
            assert!(found.contains(expected), "{text}: {found}");
        }
        assert_eq!(content_instead_of_pem(b"hello"), None);
        assert_eq!(content_instead_of_pem(b""), None);
        assert_eq!(content_instead_of_pem(&[0x30, 0x82]), None);
    }
}

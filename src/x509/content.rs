//! What a file contains that should contain a certificate, for messages.

use super::chain::pkcs7_certificates;
use super::{Certificate, Csr};

/// Returns the name by which iconv knows the encoding of a text that is neither UTF-8 nor of one byte for each character.
pub fn wide_encoding(bytes: &[u8]) -> Option<&'static str> {
    for (mark, encoding) in [
        // The mark of UTF-16 is the beginning of that of UTF-32.
        (&b"\xff\xfe\0\0"[..], "UTF-32"),
        (b"\0\0\xfe\xff", "UTF-32"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ] {
        if bytes.starts_with(mark) {
            return Some(encoding);
        }
    }
    // Without a mark: text begins with ASCII, of which one of two bytes is zero.
    let units: Vec<[u8; 2]> = bytes
        .chunks_exact(2)
        .take(8)
        .filter_map(|unit| unit.try_into().ok())
        .collect();
    let all = |is_unit: fn(&[u8; 2]) -> bool| !units.is_empty() && units.iter().all(is_unit);
    match () {
        () if all(|[first, second]| *first != 0 && *second == 0) => Some("UTF-16LE"),
        () if all(|[first, second]| *first == 0 && *second != 0) => Some("UTF-16BE"),
        () => None,
    }
}

/// Returns whether a text contains a private key in PEM, perhaps one that cannot be read.
pub fn contains_private_key(text: &[u8]) -> bool {
    labels(&String::from_utf8_lossy(text)).any(|label| label.ends_with("PRIVATE KEY"))
}

/// Returns the labels of the PEM blocks in a text, wherever they begin.
fn labels(text: &str) -> impl Iterator<Item = &str> {
    let blocks = text.split("-----BEGIN ").skip(1);
    blocks.filter_map(|rest| Some(rest.split_once("-----")?.0))
}

/// Returns what the bytes contain instead of certificates in PEM, as a noun phrase; `None` if this cannot be told.
pub fn content_instead_of_pem(bytes: &[u8]) -> Option<&'static str> {
    if let Some(encoding) = wide_encoding(bytes) {
        return Some(match encoding {
            "UTF-16LE" => "text in UTF-16 (iconv -f UTF-16LE -t UTF-8 FILE > NEW converts it)",
            "UTF-16BE" => "text in UTF-16 (iconv -f UTF-16BE -t UTF-8 FILE > NEW converts it)",
            "UTF-32" => "text in UTF-32 (iconv -f UTF-32 -t UTF-8 FILE > NEW converts it)",
            _ => "text in UTF-16 (iconv -f UTF-16 -t UTF-8 FILE > NEW converts it)",
        });
    }
    let text = String::from_utf8_lossy(bytes);
    if bytes.first() == Some(&0x30) {
        return match (Certificate::from_der(bytes), Csr::from_der(bytes)) {
            (Ok(_), _) => Some(
                "a certificate in DER, not in PEM (openssl x509 -inform der -in FILE -out FILE.pem converts it)",
            ),
            (_, Ok(_)) => Some("a certificate signing request in DER"),
            _ if pkcs7_certificates(bytes).is_some() => Some(
                "a PKCS#7 container in DER (openssl pkcs7 -inform der -print_certs -in FILE -out FILE.pem converts it)",
            ),
            _ => None,
        };
    }
    let labels: Vec<&str> = labels(&text).collect();
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
        for text in ["-----BEGIN CERTIFICATE-----\n", "# kubeadm\n"] {
            for (mark, encode, expected) in [
                ("\u{feff}", u16::to_le_bytes as fn(u16) -> [u8; 2], "UTF-16"),
                ("\u{feff}", u16::to_be_bytes, "UTF-16"),
                ("", u16::to_le_bytes, "UTF-16LE"),
                ("", u16::to_be_bytes, "UTF-16BE"),
            ] {
                let units = format!("{mark}{text}");
                let bytes: Vec<u8> = units.encode_utf16().flat_map(encode).collect();
                assert_eq!(wide_encoding(&bytes), Some(expected));
                let found = content_instead_of_pem(&bytes).unwrap();
                assert!(found.contains(&format!("-f {expected} ")), "{found}");
            }
            assert_eq!(wide_encoding(text.as_bytes()), None);
            assert_eq!(wide_encoding(format!("\u{feff}{text}").as_bytes()), None);
        }
        assert_eq!(wide_encoding(b""), None);
        assert_eq!(content_instead_of_pem(b"hello"), None);
        assert_eq!(content_instead_of_pem(b""), None);
        assert_eq!(content_instead_of_pem(&[0x30, 0x82]), None);
    }
}

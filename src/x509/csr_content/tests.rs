use super::*;
use crate::x509::der_encoding::{der, sequence};
use crate::x509::{KeyAlgorithm, PrivateKey};

/// The parts of a request, whose signature is not valid.
struct Parts {
    version: u8,
    subject: Vec<u8>,
    key: Vec<u8>,
    attributes: Vec<Vec<u8>>,
}

impl Parts {
    fn new(attributes: &[Vec<u8>]) -> Parts {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        Parts {
            version: 0,
            subject: sequence(&[&der(0x31, &[&common_name(0x0c, b"node")])]),
            key: key.public_key().spki_der().to_vec(),
            attributes: attributes.to_vec(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let attributes: Vec<&[u8]> = self.attributes.iter().map(Vec::as_slice).collect();
        let info = sequence(&[
            &[2, 1, self.version],
            &self.subject,
            &self.key,
            &der(0xa0, &attributes),
        ]);
        // ecdsa-with-SHA256.
        let algorithm = sequence(&[&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]]);
        sequence(&[&info, &algorithm, &der(3, &[&[0], &[7; 70]])])
    }

    fn read(&self) -> Result<CsrContent, String> {
        let pem = encode_pem(CSR_LABEL, &self.encode());
        CsrContent::from_pem(pem.as_bytes()).map_err(|error| error.to_string())
    }
}

/// Returns the attribute commonName with a value of this tag.
fn common_name(tag: u8, value: &[u8]) -> Vec<u8> {
    sequence(&[&[6, 3, 0x55, 4, 3], &der(tag, &[value])])
}

fn attribute(oid: &[u8], value: &[u8]) -> Vec<u8> {
    sequence(&[&der(6, &[oid]), &der(0x31, &[value])])
}

fn extension(oid: &[u8], value: &[u8]) -> Vec<u8> {
    sequence(&[&der(6, &[oid]), &der(4, &[value])])
}

fn extensions(all: &[Vec<u8>]) -> Vec<u8> {
    let all: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
    attribute(EXTENSION_REQUEST, &sequence(&all))
}

/// Returns a subjectAltName extension with names of these tags.
fn names(names: &[(u8, &[u8])]) -> Vec<u8> {
    let names: Vec<Vec<u8>> = names.iter().map(|(tag, name)| der(*tag, &[name])).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    extension(SUBJECT_ALT_NAME, &sequence(&names))
}

#[test]
fn reads_names_and_leaves_signature_to_the_caller() {
    let content = Parts::new(&[extensions(&[names(&[
        (0x82, b"w1"),
        (0x87, &[192, 0, 2, 1]),
    ])])]);
    let content = content.read().unwrap();
    assert_eq!(content.subject().to_string(), "CN=node");
    let sans = content.sans().unwrap();
    assert_eq!(sans.dns, ["w1"]);
    assert_eq!(sans.ips, ["192.0.2.1".parse::<std::net::IpAddr>().unwrap()]);
    assert!(!content.is_signed());
    assert_eq!(
        content.into_csr().unwrap_err().to_string(),
        "the request's own signature does not verify"
    );
    assert!(Parts::new(&[]).read().unwrap().sans().is_none());
}

#[test]
fn reports_text_that_is_not_exactly_one_block() {
    let pem = encode_pem(CSR_LABEL, &Parts::new(&[]).encode());
    let new = pem.replace(CSR_LABEL, "NEW CERTIFICATE REQUEST");
    let headers = pem.replacen("-\n", "-\nProc-Type: 4\n\n", 1);
    for text in [
        String::new(),
        new,
        headers,
        pem.repeat(2),
        format!("text\n{pem}"),
        format!("{pem}text"),
    ] {
        assert_eq!(
            CsrContent::from_pem(text.as_bytes())
                .unwrap_err()
                .to_string(),
            "the request is not exactly one PEM block of type CERTIFICATE REQUEST",
            "{text}"
        );
    }
    let spaced = format!(" \t\r\n{}\n\n", pem.replace('\n', "\r\n"));
    CsrContent::from_pem(spaced.as_bytes()).unwrap();
}

#[test]
fn reports_content_that_a_signer_could_understand_differently() {
    let dns = || names(&[(0x82, b"w1")]);
    // challengePassword.
    let password = || attribute(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 7], b"\x0c\x01x");
    let not_an_extension_request =
        "the request contains attribute 1.2.840.113549.1.9.7, which is not an extension request";
    for (attributes, message) in [
        (vec![password()], not_an_extension_request),
        (
            vec![extensions(&[dns()]), password()],
            not_an_extension_request,
        ),
        (
            vec![extensions(&[dns()]), extensions(&[dns()])],
            "the request contains attribute 1.2.840.113549.1.9.14, which is not an extension request",
        ),
        (
            vec![extensions(&[
                dns(),
                extension(&[0x55, 29, 19], b"\x30\x00"),
            ])],
            "the request asks for extension 2.5.29.19, which is not subjectAltName",
        ),
        (
            vec![extensions(&[dns(), dns()])],
            "the request is not valid DER: it asks for subjectAltName twice",
        ),
        (
            vec![extensions(&[names(&[(0x82, b"w1"), (0x81, b"a@b.c")])])],
            "the request's subjectAltName contains an e-mail address, which is neither a DNS name nor an IP address",
        ),
        (
            vec![extensions(&[names(&[(0x86, b"https://a")])])],
            "the request's subjectAltName contains a URI, which is neither a DNS name nor an IP address",
        ),
        (
            vec![b"\x05\x00".to_vec()],
            "the request is not valid DER: its attributes are not valid",
        ),
    ] {
        assert_eq!(Parts::new(&attributes).read().unwrap_err(), message);
    }
    let version_1 = Parts {
        version: 1,
        ..Parts::new(&[])
    };
    assert_eq!(
        version_1.read().unwrap_err(),
        "the request is not valid DER: it does not consist of version 0, subject, key and attributes"
    );
    let other_key = Parts {
        key: sequence(&[]),
        ..Parts::new(&[])
    };
    let error = other_key.read().unwrap_err();
    assert!(
        error.starts_with("the request's public key is not usable: "),
        "{error}"
    );
}

#[test]
fn refuses_subject_that_is_shown_in_different_ways() {
    let several = "the request's subject contains a relative name with several attributes";
    let encoding =
        "the request's subject contains a text that is neither a UTF8String nor a PrintableString";
    let one = |attribute: Vec<u8>| vec![vec![attribute]];
    for (names, expected) in [
        (one(common_name(0x0c, b"node")), None),
        (one(common_name(0x13, b"node")), None),
        (one(common_name(0x14, b"node")), Some(encoding)),
        (one(common_name(0x16, b"node")), Some(encoding)),
        (one(common_name(0x1e, b"\0n\0o")), Some(encoding)),
        (
            vec![vec![common_name(0x0c, b"a"), common_name(0x0c, b"b")]],
            Some(several),
        ),
    ] {
        let sets: Vec<Vec<u8>> = names
            .iter()
            .map(|set| der(0x31, &set.iter().map(Vec::as_slice).collect::<Vec<_>>()))
            .collect();
        let sets: Vec<&[u8]> = sets.iter().map(Vec::as_slice).collect();
        let parts = Parts {
            subject: sequence(&sets),
            ..Parts::new(&[])
        };
        assert_eq!(parts.read().err().as_deref(), expected);
    }
}

#[test]
fn refuses_bytes_after_the_request() {
    let mut der = Parts::new(&[]).encode();
    der.push(0);
    let error = CsrContent::from_pem(encode_pem(CSR_LABEL, &der).as_bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the request is not valid DER: it is not one SEQUENCE with a minimal length"
    );
}

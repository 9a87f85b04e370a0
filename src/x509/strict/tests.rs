//! Hand-built certificates that each violate one rule of Go's parser.

use super::extensions::network;
use super::public_key::{OID_EC, OID_ED25519, OID_P256, OID_RSA};
use super::*;
use crate::x509::Certificate;
use crate::x509::der_encoding::der;

fn extension(oid: &[u8], value: &[u8]) -> Vec<u8> {
    der(0x30, &[&der(6, &[oid]), &der(4, &[value])])
}

fn critical(oid: &[u8], value: &[u8]) -> Vec<u8> {
    der(0x30, &[&der(6, &[oid]), &[1, 1, 0xff], &der(4, &[value])])
}

fn common_name(tag: u8, value: &[u8]) -> Vec<u8> {
    let attribute = der(0x30, &[&[6, 3, 0x55, 4, 3], &der(tag, &[value])]);
    der(0x30, &[&der(0x31, &[&attribute])])
}

/// The parts of a certificate in the order of `tbsCertificate`.
struct Template {
    version: Vec<u8>,
    serial: Vec<u8>,
    algorithm: Vec<u8>,
    issuer: Vec<u8>,
    validity: Vec<u8>,
    subject: Vec<u8>,
    key: Vec<u8>,
    extensions: Vec<u8>,
    outer_algorithm: Vec<u8>,
    signature: Vec<u8>,
}

impl Template {
    fn new() -> Self {
        let algorithm = der(0x30, &[&[6, 3, 0x2b, 0x65, 0x70]]);
        Template {
            version: vec![0xa0, 3, 2, 1, 2],
            serial: vec![2, 1, 1],
            algorithm: algorithm.clone(),
            issuer: common_name(0x0c, b"ca"),
            validity: der(
                0x30,
                &[
                    &der(0x17, &[b"260101000000Z"]),
                    &der(0x18, &[b"20500101000000Z"]),
                ],
            ),
            subject: common_name(0x13, b"leaf"),
            key: der(0x30, &[&algorithm, &der(3, &[&[0], &[7; 32]])]),
            extensions: Vec::new(),
            outer_algorithm: algorithm,
            signature: der(3, &[&[0], &[9; 64]]),
        }
    }

    fn with(extensions: &[Vec<u8>]) -> Self {
        let list: Vec<&[u8]> = extensions.iter().map(Vec::as_slice).collect();
        Template {
            extensions: der(0xa3, &[&der(0x30, &list)]),
            ..Template::new()
        }
    }

    fn encode(&self) -> Vec<u8> {
        let tbs = der(
            0x30,
            &[
                &self.version,
                &self.serial,
                &self.algorithm,
                &self.issuer,
                &self.validity,
                &self.subject,
                &self.key,
                &self.extensions,
            ],
        );
        der(0x30, &[&tbs, &self.outer_algorithm, &self.signature])
    }

    fn read(&self) -> std::result::Result<Certificate, String> {
        Certificate::from_der(&self.encode()).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(&self, part: &str) {
        let error = self.read().unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn reads_certificate_that_go_reads() {
    let certificate = Template::new().read().unwrap();
    assert_eq!(certificate.subject().to_string(), "CN=leaf");
    assert_eq!(certificate.serial(), "01");
    assert_eq!(certificate.not_after().year(), 2050);
}

#[test]
fn rejects_serials_that_go_rejects() {
    for (serial, part) in [
        (
            &[2, 1, 0xff][..],
            "serial number is not valid: it is negative",
        ),
        (&[2, 0], "shortest form"),
        (&[2, 2, 0, 1], "shortest form"),
    ] {
        let template = Template {
            serial: serial.to_vec(),
            ..Template::new()
        };
        template.refused(part);
    }
}

#[test]
fn rejects_versions_and_algorithms_that_do_not_fit() {
    for version in [vec![0xa0, 3, 2, 1, 3], vec![0xa0, 3, 2, 1, 0xff]] {
        let template = Template {
            version,
            ..Template::new()
        };
        template.refused("version is not valid");
    }
    let template = Template {
        outer_algorithm: der(0x30, &[&[6, 3, 0x2b, 0x65, 0x71]]),
        ..Template::new()
    };
    template.refused("signature algorithm is not valid: the signed one");
    // Go does not read extensions of a v1 certificate.
    let template = Template {
        version: Vec::new(),
        ..Template::with(&[extension(&[0x55, 0x1d, 15], &[3, 2, 5, 0xa0])])
    };
    template.refused("unknown fields");
}

#[test]
fn decodes_names_as_go_does() {
    let read = |tag, value: &[u8]| {
        let template = Template {
            subject: common_name(tag, value),
            ..Template::new()
        };
        template.read().map(|found| found.subject().to_string())
    };
    assert_eq!(read(0x1e, b"\0c\0p\x001").unwrap(), "CN=cp1");
    assert_eq!(read(0x14, b"\xe9").unwrap(), "CN=\u{e9}");
    assert_eq!(read(0x12, b"12 3").unwrap(), "CN=12 3");
    for (tag, value) in [
        (0x12, &b"cp1"[..]),
        (0x13, b"a_b"),
        (0x0c, b"\xff"),
        (0x16, b"\xc3\xa9"),
        (0x1e, b"\0a\0"),
        (0x1e, b"\xd8\x00\xdc\x00"),
        (0x1c, b"\0\0\0a"),
        (0x04, b"a"),
    ] {
        let error = read(tag, value).unwrap_err();
        assert!(error.contains("attribute 2.5.4.3"), "{error}");
    }
}

#[test]
fn rejects_times_that_other_verifiers_read_differently() {
    for (tag, text) in [
        (0x17, &b"260101000000+0100"[..]),
        (0x17, b"2601010000Z"),
        (0x18, b"20260101000000.5Z"),
        (0x17, b"261301000000Z"),
        (0x17, b"260230000000Z"),
        (0x13, b"260101000000Z"),
    ] {
        let template = Template {
            validity: der(0x30, &[&der(tag, &[text]), &der(0x17, &[b"490101000000Z"])]),
            ..Template::new()
        };
        template.refused("validity is not valid");
    }
}

#[test]
fn rejects_keys_that_go_rejects() {
    let rsa = |parameters: &[u8], modulus: &[u8], exponent: &[u8]| {
        let numbers = der(0x30, &[&der(2, &[modulus]), &der(2, &[exponent])]);
        let oid = der(6, &[OID_RSA]);
        der(
            0x30,
            &[&der(0x30, &[&oid, parameters]), &der(3, &[&[0], &numbers])],
        )
    };
    let point = |curve: &[u8], bytes: &[u8]| {
        let identifier = der(0x30, &[&der(6, &[OID_EC]), &der(6, &[curve])]);
        der(0x30, &[&identifier, &der(3, &[&[0], bytes])])
    };
    for key in [
        rsa(&[], &[0x7f; 256], &[1, 0, 1]),
        rsa(&[5, 0], &[0xff; 256], &[1, 0, 1]),
        rsa(&[5, 0], &[0], &[1, 0, 1]),
        rsa(&[5, 0], &[0x7f; 256], &[0]),
        rsa(&[5, 0], &[0x7f; 256], &[1; 9]),
        point(OID_P256, &[4; 65]),
        point(OID_P256, &[2; 33]),
        point(&[0x2b, 0x81, 4, 0, 33], &[4; 57]),
        der(
            0x30,
            &[
                &der(0x30, &[&der(6, &[OID_ED25519]), &[5, 0]]),
                &der(3, &[&[0], &[7; 32]]),
            ],
        ),
    ] {
        let template = Template {
            key,
            ..Template::new()
        };
        template.refused("public key is not valid");
    }
}

const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const SAN: &[u8] = &[0x55, 0x1d, 17];

#[test]
fn rejects_names_with_constructed_tags() {
    for name in [
        der(0xa2, &[b"cp1"]),
        der(0xa7, &[&[192, 0, 2, 1]]),
        der(0xa1, &[b"a@b"]),
        der(0x0c, &[b"cp1"]),
        der(0x87, &[&[1, 2, 3]]),
        der(0x82, &[b"\xc3\xa9"]),
        der(0x86, &[b"https://a b/"]),
        der(0x86, &[b"/relative"]),
    ] {
        let good = der(0x82, &[b"cp1"]);
        let template = Template::with(&[extension(SAN, &der(0x30, &[&good, &name]))]);
        template.refused("extension subjectAltName is not valid");
    }
    let template = Template::with(&[extension(
        SAN,
        &der(
            0x30,
            &[
                &der(0x82, &[b"cp1"]),
                &der(0x86, &[b"spiffe://cluster.local:1/x%20y?z#f"]),
            ],
        ),
    )]);
    let found = template.read().unwrap();
    assert_eq!(found.dns_names(), ["cp1"]);
    assert_eq!(
        found.names().unwrap().uris[0].1.as_deref(),
        Some("cluster.local")
    );
}

#[test]
fn never_reads_damaged_usages_as_allowed() {
    for value in [
        &[3, 2, 8, 0xa0][..],
        &[3, 1, 1],
        &[3, 0],
        &[2, 1, 5],
        &[3, 3, 5, 0xa0],
    ] {
        Template::with(&[extension(KEY_USAGE, value)]).refused("extension keyUsage is not valid");
    }
    let nothing = Template::with(&[extension(KEY_USAGE, &[3, 1, 0])]);
    assert!(!nothing.read().unwrap().may_sign());
    for value in [&[0x30, 0][..], &[0x30, 2, 6, 0], &[0x31, 0]] {
        Template::with(&[extension(&[0x55, 0x1d, 37], value)])
            .refused("extension extendedKeyUsage is not valid");
    }
}

#[test]
fn rejects_malformed_extensions() {
    for (number, value) in [
        (14, &[2, 1, 1][..]),
        (19, &[0x30, 3, 2, 1, 0xff]),
        (19, &[0x30, 3, 1, 1, 1]),
        (19, &[0x30, 4, 2, 2, 0, 1]),
        (30, &[0x30, 0]),
        (30, &[0x30, 2, 0xa0, 0]),
        (30, &[0x30, 6, 0xa0, 4, 0x30, 2, 0x87, 0]),
        (30, &[0x30, 7, 0xa0, 5, 0x30, 3, 0xa2, 1, b'a']),
        (30, &[0x30, 8, 0xa0, 6, 0x30, 4, 0x82, 2, b'a', b'.']),
        (31, &[0x30, 4, 0x30, 2, 0xa0, 1]),
        (31, &[0x30, 4, 2, 2, 1, 1]),
        (32, &[0x30, 4, 0x30, 2, 6, 0]),
        (33, &[0x30, 4, 0x30, 2, 6, 0]),
        (35, &[4, 1, 1]),
        (36, &[0x30, 3, 0x80, 1, 0xff]),
        (54, &[2, 2, 0, 1]),
    ] {
        Template::with(&[extension(&[0x55, 0x1d, number], value)]).refused("is not valid");
    }
    let policy = der(0x30, &[&[6, 1, 42]]);
    Template::with(&[extension(
        &[0x55, 0x1d, 32],
        &der(0x30, &[&policy, &policy]),
    )])
    .refused("a policy occurs twice");
    let aia = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
    Template::with(&[extension(aia, &[0x30, 2, 0x30, 0])])
        .refused("the certificate's extension authorityInfoAccess is not valid");
    for oid in [&[0x55, 0x1d, 14][..], &[0x55, 0x1d, 35], aia] {
        Template::with(&[critical(oid, &[0x30, 0])]).refused("marked critical");
    }
    let usage = extension(KEY_USAGE, &[3, 2, 5, 0xa0]);
    Template::with(&[usage.clone(), usage]).refused("2.5.29.15 occurs twice");
}

#[test]
fn remembers_critical_extensions_that_go_does_not_handle() {
    let unhandled = |extension: Vec<u8>| {
        let found = Template::with(&[extension]).read().unwrap();
        found.extensions().unhandled_critical.clone()
    };
    assert_eq!(
        unhandled(critical(&[0x2a, 3, 4], &[5, 0])).as_deref(),
        Some("1.2.3.4")
    );
    assert_eq!(unhandled(extension(&[0x2a, 3, 4], &[5, 0])), None);
    let directory = der(0x30, &[&der(0xa4, &[&common_name(0x0c, b"x")])]);
    assert_eq!(
        unhandled(critical(SAN, &directory)).as_deref(),
        Some("2.5.29.17")
    );
    assert_eq!(
        unhandled(critical(&[0x55, 0x1d, 19], &[0x30, 3, 1, 1, 0])),
        None
    );
}

#[test]
fn rejects_masks_with_gaps() {
    let mask = |bytes: [u8; 4]| {
        let mut content = vec![10, 0, 0, 0];
        content.extend(bytes);
        network(&content).is_ok()
    };
    assert!(mask([255, 0, 0, 0]) && mask([0; 4]) && mask([255; 4]) && mask([255, 254, 0, 0]));
    assert!(!mask([255, 0, 255, 0]) && !mask([0, 255, 0, 0]) && !mask([255, 253, 0, 0]));
}

#[test]
fn rejects_revocation_lists_that_go_rejects() {
    let list = |version: &[u8], serial: &[u8], extension: &[u8]| {
        let algorithm = der(0x30, &[&[6, 3, 0x2b, 0x65, 0x70]]);
        let time = der(0x17, &[b"260101000000Z"]);
        let entry = der(0x30, &[serial, &time]);
        let extensions = der(0xa0, &[&der(0x30, &[extension])]);
        let body = der(
            0x30,
            &[
                version,
                &algorithm,
                &common_name(0x0c, b"ca"),
                &time,
                &time,
                &der(0x30, &[&entry]),
                &extensions,
            ],
        );
        let encoded = der(0x30, &[&body, &algorithm, &der(3, &[&[0], &[9; 64]])]);
        check_revocation_list(&encoded)
    };
    let number = extension(&[0x55, 0x1d, 20], &[2, 1, 1]);
    assert_eq!(list(&[2, 1, 1], &[2, 1, 7], &number), Ok(()));
    for (version, serial, extension) in [
        (&[][..], &[2, 1, 7][..], number.clone()),
        (&[2, 1, 0], &[2, 1, 7], number.clone()),
        (&[2, 1, 1], &[2, 2, 0, 7], number),
        (
            &[2, 1, 1],
            &[2, 1, 7],
            extension(&[0x55, 0x1d, 20], &[5, 0]),
        ),
        (
            &[2, 1, 1],
            &[2, 1, 7],
            critical(&[0x55, 0x1d, 35], &[0x30, 0]),
        ),
    ] {
        assert!(list(version, serial, &extension).is_err());
    }
}

//! Requirements of a server for requests: `CsrAttrs` of RFC 7030, 4.5.2.
//!
//! A SEQUENCE OF object identifiers and attributes. Those that name a type of key are compared with the plan; channel
//! binding is not supported. All others are ignored, as the RFC demands, including curves and signature algorithms
//! without an attribute: libest names secp384r1 and accepts any key.

use crate::x509::{KeyAlgorithm, KeyFamily};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// 1.2.840.113549.1.9.7
const CHALLENGE_PASSWORD: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x07];
/// 1.2.840.113549.1.1.1
const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// 1.2.840.10045.2.1
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// The curves that a plan can contain.
const CURVES: [(&[u8], KeyAlgorithm); 3] = [
    (
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        KeyAlgorithm::EcdsaP256,
    ),
    (&[0x2b, 0x81, 0x04, 0x00, 0x22], KeyAlgorithm::EcdsaP384),
    (&[0x2b, 0x81, 0x04, 0x00, 0x23], KeyAlgorithm::EcdsaP521),
];

/// The attributes of a server that can be obstacles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    channel_binding: bool,
    /// Accepted types of keys; empty if there is no requirement.
    keys: Vec<RequestedKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestedKey {
    /// Minimum number of bits, if specified.
    Rsa(Option<u64>),
    /// On any curve.
    Ec,
    /// On this curve; `None` for one that no plan can contain.
    Curve(Option<KeyAlgorithm>),
}

impl Attributes {
    /// Reads the DER of a `CsrAttrs`; `None` if it is not one. Unreadable attributes are ignored.
    pub(super) fn from_der(der: &[u8]) -> Option<Self> {
        let (SEQUENCE, items, []) = element(der)? else {
            return None;
        };
        let mut found = Attributes::default();
        for (tag, content) in elements(items)? {
            match tag {
                OBJECT_IDENTIFIER => found.note(content, &[]),
                SEQUENCE => {
                    let parts = elements(content).unwrap_or_default();
                    if let [(OBJECT_IDENTIFIER, kind), (SET, values)] = parts.as_slice() {
                        found.note(kind, &elements(values).unwrap_or_default());
                    }
                }
                _ => {}
            }
        }
        Some(found)
    }

    fn note(&mut self, kind: &[u8], values: &[(u8, &[u8])]) {
        if kind == CHALLENGE_PASSWORD {
            self.channel_binding = true;
        } else if kind == RSA_ENCRYPTION {
            let sizes = values.iter().filter(|(tag, _)| *tag == INTEGER);
            let sizes: Vec<_> = sizes
                .map(|(_, size)| RequestedKey::Rsa(unsigned(size)))
                .collect();
            if sizes.is_empty() {
                self.keys.push(RequestedKey::Rsa(None))
            } else {
                self.keys.extend(sizes)
            }
        } else if kind == EC_PUBLIC_KEY {
            let curves = values.iter().filter(|(tag, _)| *tag == OBJECT_IDENTIFIER);
            let curves: Vec<_> = curves
                .map(|(_, oid)| RequestedKey::Curve(curve(oid)))
                .collect();
            if curves.is_empty() {
                self.keys.push(RequestedKey::Ec)
            } else {
                self.keys.extend(curves)
            }
        }
    }

    /// Returns why a request with such a key would be refused.
    pub(super) fn obstacles(&self, key: KeyAlgorithm) -> Vec<String> {
        let mut found = Vec::new();
        if self.channel_binding {
            found.push(
                "the server requires requests to be bound to their TLS connection (challengePassword), which is not supported"
                    .to_owned(),
            );
        }
        if !self.keys.is_empty() && !self.keys.iter().any(|wanted| wanted.takes(key)) {
            let wanted: Vec<String> = self.keys.iter().map(RequestedKey::describe).collect();
            found.push(format!(
                "the server requires {}, but {key} is planned",
                wanted.join(" or ")
            ));
        }
        found
    }
}

impl RequestedKey {
    fn takes(&self, key: KeyAlgorithm) -> bool {
        match self {
            RequestedKey::Rsa(bits) => key
                .rsa_bits()
                .is_some_and(|planned| planned as u64 >= bits.unwrap_or(0)),
            RequestedKey::Ec => key.family() == KeyFamily::Ecdsa,
            RequestedKey::Curve(curve) => *curve == Some(key),
        }
    }

    fn describe(&self) -> String {
        match self {
            RequestedKey::Rsa(None) => "an RSA key".to_owned(),
            RequestedKey::Rsa(Some(bits)) => format!("an RSA key of {bits} bits"),
            RequestedKey::Ec => "an EC key".to_owned(),
            RequestedKey::Curve(Some(curve)) => format!("an EC key of {curve}"),
            RequestedKey::Curve(None) => {
                "an EC key on a curve that Kubernetes does not support".to_owned()
            }
        }
    }
}

fn curve(oid: &[u8]) -> Option<KeyAlgorithm> {
    let known = CURVES.iter().find(|(known, _)| *known == oid)?;
    Some(known.1)
}

fn unsigned(bytes: &[u8]) -> Option<u64> {
    let small = bytes.len() <= 8 && bytes.first().is_some_and(|first| *first < 0x80);
    small.then(|| {
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    })
}

/// Returns tag and content of each element of a constructed value.
fn elements(mut der: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let (tag, content, rest) = element(der)?;
        found.push((tag, content));
        der = rest;
    }
    Some(found)
}

/// Returns the first value: tag, content, and the rest.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..0x80 => (usize::from(short), rest),
        long => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            // A body is shorter than what four bytes can count, and DER does not allow indefinite lengths.
            if !(1..=4).contains(&bytes.len()) {
                return None;
            }
            let length = bytes
                .iter()
                .fold(0, |length, byte| length << 8 | usize::from(*byte));
            (length, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signer::est::wire::decode;

    fn read(base64: &str) -> Attributes {
        Attributes::from_der(&decode(base64.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn ignores_unknown_attributes() {
        // libest: macAddress, emailAddress, secp384r1, sha384.
        let libest = read("MCYGBysGAQEBARYGCSqGSIb3DQEJAQYFK4EEACIGCWCGSAFlAwQCAg==");
        assert_eq!(libest, Attributes::default());
        assert_eq!(read("MAA="), Attributes::default());
    }

    #[test]
    fn reads_example_of_the_rfc() {
        let rfc = read(
            "MEEGCSqGSIb3DQEJBzASBgcqhkjOPQIBMQcGBSuBBAAiMBYGCSqGSIb3DQEJDjEJBgcrBgEBAQEWBggqhkjOPQQDAw==",
        );
        for (key, words) in [
            (KeyAlgorithm::EcdsaP256, 2),
            (KeyAlgorithm::Rsa4096, 2),
            (KeyAlgorithm::EcdsaP384, 1),
        ] {
            assert_eq!(rfc.obstacles(key).len(), words, "{key}");
        }
        let said = rfc.obstacles(KeyAlgorithm::Rsa2048).join("; ");
        for part in ["challengePassword", "ECDSA-P384", "RSA-2048"] {
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn compares_key_types_with_plan() {
        let rsa = |bits: &[u8]| {
            let mut attribute = vec![OBJECT_IDENTIFIER, 9];
            attribute.extend(RSA_ENCRYPTION);
            attribute.extend([SET, bits.len() as u8 + 2, INTEGER, bits.len() as u8]);
            attribute.extend(bits);
            let mut der = vec![
                SEQUENCE,
                attribute.len() as u8 + 2,
                SEQUENCE,
                attribute.len() as u8,
            ];
            der.extend(attribute);
            Attributes::from_der(&der).unwrap()
        };
        for (attributes, taken) in [
            (rsa(&[0x0c, 0x00]), "RSA-3072 RSA-4096"),
            (rsa(&[0x08, 0x00]), "RSA-2048 RSA-3072 RSA-4096"),
            (
                Attributes {
                    keys: vec![RequestedKey::Ec],
                    ..Attributes::default()
                },
                "ECDSA-P256 ECDSA-P384 ECDSA-P521",
            ),
            (
                Attributes {
                    keys: vec![RequestedKey::Curve(None), RequestedKey::Rsa(Some(4096))],
                    ..Attributes::default()
                },
                "RSA-4096",
            ),
        ] {
            let passes: Vec<&str> = KeyAlgorithm::ALL
                .into_iter()
                .filter(|key| attributes.obstacles(*key).is_empty())
                .map(KeyAlgorithm::as_str)
                .collect();
            assert_eq!(passes.join(" "), taken, "{attributes:?}");
        }
    }

    #[test]
    fn rejects_invalid_der_and_ignores_unknown_values() {
        for der in [
            &[][..],
            &[0x30],
            &[0x30, 0x05, 0x06],
            &[0x30, 0x80, 0x00, 0x00],
            &[0x30, 0x02, 0x06, 0x09],
            &[0x31, 0x00],
            &[0x30, 0x00, 0x00],
            &[0x30, 0x85, 1, 1, 1, 1, 1],
        ] {
            assert_eq!(Attributes::from_der(der), None, "{der:02x?}");
        }
        // An attribute without values, and a NULL.
        let odd = [0x30, 0x07, 0x30, 0x03, 0x06, 0x01, 0x2a, 0x05, 0x00];
        assert_eq!(Attributes::from_der(&odd), Some(Attributes::default()));
    }
}

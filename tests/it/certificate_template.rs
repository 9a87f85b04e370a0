//! DER for certificates that no library makes: a template of a certificate, and changes to any element of its encoding.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nodepki::x509::PublicKey;
use rcgen::SigningKey;

pub(crate) use crate::der_encoding::{der, sequence};

pub(crate) fn oid(content: &[u8]) -> Vec<u8> {
    der(6, &[content])
}

/// Returns a name of one attribute.
pub(crate) fn name(attribute: u8, tag: u8, value: &[u8]) -> Vec<u8> {
    let attribute = sequence(&[&oid(&[0x55, 4, attribute]), &der(tag, &[value])]);
    sequence(&[&der(0x31, &[&attribute])])
}

pub(crate) fn common_name(value: &str) -> Vec<u8> {
    name(3, 0x0c, value.as_bytes())
}

pub(crate) fn validity(from: &str, to: &str) -> Vec<u8> {
    sequence(&[&der(0x17, &[from.as_bytes()]), &der(0x17, &[to.as_bytes()])])
}

/// An extension of `id-ce`, 2.5.29.
pub(crate) const CE: &[u8] = &[0x55, 0x1d];

/// One extension, in parts that can be changed.
#[derive(Clone)]
pub(crate) struct Extension {
    pub(crate) oid: Vec<u8>,
    /// The encoded BOOLEAN, or nothing.
    pub(crate) critical: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

pub(crate) fn extension(number: u8, value: Vec<u8>) -> Extension {
    Extension {
        oid: [CE, &[number]].concat(),
        critical: Vec::new(),
        value,
    }
}

pub(crate) fn critical(number: u8, value: Vec<u8>) -> Extension {
    Extension {
        critical: vec![1, 1, 0xff],
        ..extension(number, value)
    }
}

/// A certificate whose parts can all be changed.
#[derive(Clone)]
pub(crate) struct Template {
    pub(crate) version: Vec<u8>,
    pub(crate) serial: Vec<u8>,
    pub(crate) algorithm: Vec<u8>,
    /// The algorithm outside of `tbsCertificate`, if it differs.
    pub(crate) outer_algorithm: Option<Vec<u8>>,
    pub(crate) issuer: Vec<u8>,
    pub(crate) validity: Vec<u8>,
    pub(crate) subject: Vec<u8>,
    pub(crate) key: Vec<u8>,
    /// Between the key and the extensions.
    pub(crate) unique: Vec<u8>,
    pub(crate) extensions: Vec<Extension>,
    /// After the extensions, inside `tbsCertificate`.
    pub(crate) more: Vec<u8>,
    /// Number of unused bits of the signature.
    pub(crate) unused_bits: u8,
    /// After the signature, inside the certificate; and after the certificate.
    pub(crate) trailing: (Vec<u8>, Vec<u8>),
}

/// ecdsa-with-SHA256.
pub(crate) const ECDSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];

impl Template {
    /// Returns a certificate with the fields that all have, for an ECDSA issuer.
    pub(crate) fn new(subject: &str, issuer: &str, key: &PublicKey) -> Self {
        Template {
            version: vec![0xa0, 3, 2, 1, 2],
            serial: vec![2, 2, 0x12, 0x34],
            algorithm: sequence(&[&oid(ECDSA_SHA256)]),
            outer_algorithm: None,
            issuer: common_name(issuer),
            validity: validity("260101000000Z", "300101000000Z"),
            subject: common_name(subject),
            key: key.spki_der().to_vec(),
            unique: Vec::new(),
            extensions: Vec::new(),
            more: Vec::new(),
            unused_bits: 0,
            trailing: (Vec::new(), Vec::new()),
        }
    }

    pub(crate) fn tbs(&self) -> Vec<u8> {
        let extensions: Vec<Vec<u8>> = self
            .extensions
            .iter()
            .map(|one| sequence(&[&oid(&one.oid), &one.critical, &der(4, &[&one.value])]))
            .collect();
        let extensions: Vec<&[u8]> = extensions.iter().map(Vec::as_slice).collect();
        let extensions = if extensions.is_empty() {
            Vec::new()
        } else {
            der(0xa3, &[&sequence(&extensions)])
        };
        sequence(&[
            &self.version,
            &self.serial,
            &self.algorithm,
            &self.issuer,
            &self.validity,
            &self.subject,
            &self.key,
            &self.unique,
            &extensions,
            &self.more,
        ])
    }

    pub(crate) fn signed_by(&self, key: &impl SigningKey) -> Vec<u8> {
        self.around(&self.tbs(), key)
    }

    /// Returns the certificate around another `tbsCertificate`.
    pub(crate) fn around(&self, tbs: &[u8], key: &impl SigningKey) -> Vec<u8> {
        self.assemble(tbs, key.sign(tbs).unwrap())
    }

    /// Returns the certificate of a `tbsCertificate` and its signature.
    pub(crate) fn assemble(&self, tbs: &[u8], mut signature: Vec<u8>) -> Vec<u8> {
        if let Some(last) = signature.last_mut() {
            *last &= 0xff << self.unused_bits;
        }
        let certificate = sequence(&[
            tbs,
            self.outer_algorithm.as_ref().unwrap_or(&self.algorithm),
            &der(3, &[&[self.unused_bits], &signature]),
            &self.trailing.0,
        ]);
        [certificate, self.trailing.1.clone()].concat()
    }
}

pub(crate) fn pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}

pub(crate) fn pem_of<Der: AsRef<[u8]>>(all: &[Der]) -> String {
    all.iter().map(|der| pem(der.as_ref())).collect()
}

/// A change to one element of an encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    ToggleConstructed,
    ToggleContext,
    ToggleApplication,
    NextTag,
    LongLength,
    IndefiniteLength,
    Empty,
    AppendByte,
    AppendNull,
    Duplicate,
    Remove,
    FlipFirstBit,
    FlipLastBit,
    PrependZero,
    DropLastByte,
}

impl Change {
    pub(crate) const ALL: [Change; 15] = [
        Change::ToggleConstructed,
        Change::ToggleContext,
        Change::ToggleApplication,
        Change::NextTag,
        Change::LongLength,
        Change::IndefiniteLength,
        Change::Empty,
        Change::AppendByte,
        Change::AppendNull,
        Change::Duplicate,
        Change::Remove,
        Change::FlipFirstBit,
        Change::FlipLastBit,
        Change::PrependZero,
        Change::DropLastByte,
    ];

    fn apply(self, tag: u8, mut content: Vec<u8>, out: &mut Vec<u8>) {
        let mut tag = tag;
        match self {
            Change::ToggleConstructed => tag ^= 0x20,
            Change::ToggleContext => tag ^= 0x80,
            Change::ToggleApplication => tag ^= 0x40,
            Change::NextTag => tag += 1,
            Change::LongLength => {
                let length = (content.len() as u32).to_be_bytes();
                out.extend([tag, 0x84]);
                out.extend(length);
                out.extend(content);
                return;
            }
            Change::IndefiniteLength => {
                out.extend([tag, 0x80]);
                out.extend(content);
                out.extend([0, 0]);
                return;
            }
            Change::Empty => content.clear(),
            Change::AppendByte => content.push(0),
            Change::AppendNull => content.extend([5, 0]),
            Change::Duplicate => out.extend(der(tag, &[&content])),
            Change::Remove => return,
            Change::FlipFirstBit => content
                .first_mut()
                .into_iter()
                .for_each(|byte| *byte ^= 0x80),
            Change::FlipLastBit => content.last_mut().into_iter().for_each(|byte| *byte ^= 1),
            Change::PrependZero => content.insert(0, 0),
            Change::DropLastByte => {
                content.pop();
            }
        }
        out.extend(der(tag, &[&content]));
    }
}

enum Node {
    Leaf(u8, Vec<u8>),
    /// Whether the element is constructed, or an OCTET STRING around DER.
    Inner(u8, Vec<Node>),
}

fn parse(mut bytes: &[u8]) -> Option<Vec<Node>> {
    let mut nodes = Vec::new();
    while let [tag, length, rest @ ..] = bytes {
        let (length, rest) = match *length {
            short @ 0..=0x7f => (usize::from(short), rest),
            long => {
                let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
                let length = bytes
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                (length, rest)
            }
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let inner = match tag {
            4 => parse(content).filter(|inner| !inner.is_empty()),
            tag if tag & 0x20 != 0 => Some(parse(content)?),
            _ => None,
        };
        nodes.push(match inner {
            Some(inner) => Node::Inner(*tag, inner),
            None => Node::Leaf(*tag, content.to_vec()),
        });
        bytes = rest;
    }
    bytes.is_empty().then_some(nodes)
}

fn encode(nodes: &[Node], at: &mut usize, target: usize, change: Change, out: &mut Vec<u8>) {
    for node in nodes {
        let is_target = *at == target;
        *at += 1;
        let (tag, content) = match node {
            Node::Leaf(tag, content) => (*tag, content.clone()),
            Node::Inner(tag, inner) => {
                let mut content = Vec::new();
                encode(inner, at, target, change, &mut content);
                (*tag, content)
            }
        };
        if is_target {
            change.apply(tag, content, out)
        } else {
            out.extend(der(tag, &[&content]))
        }
    }
}

/// Returns an encoding with each element changed in every way.
pub(crate) fn changed(encoded: &[u8]) -> Vec<(String, Vec<u8>)> {
    let nodes = parse(encoded).unwrap();
    let mut count = 0;
    encode(
        &nodes,
        &mut count,
        usize::MAX,
        Change::Empty,
        &mut Vec::new(),
    );
    let mut all = Vec::new();
    for target in 0..count {
        for change in Change::ALL {
            let mut out = Vec::new();
            encode(&nodes, &mut 0, target, change, &mut out);
            if out != encoded {
                all.push((format!("element {target}: {change:?}"), out));
            }
        }
    }
    all
}

//! Changes that make a certificate wrong or unusual.

use crate::certificate_template::{
    CE, ECDSA_SHA256, Extension, Template, common_name, critical, der, extension, name, oid,
    sequence,
};

/// A change to a template, and its name.
pub(crate) struct Mutation {
    pub(crate) what: String,
    change: Box<dyn Fn(&mut Template) + Send + Sync>,
}

impl Mutation {
    pub(crate) fn of(&self, template: &Template) -> Template {
        let mut changed = template.clone();
        (self.change)(&mut changed);
        changed
    }
}

#[derive(Default)]
struct All(Vec<Mutation>);

impl All {
    fn add(
        &mut self,
        what: impl Into<String>,
        change: impl Fn(&mut Template) + Send + Sync + 'static,
    ) {
        self.0.push(Mutation {
            what: what.into(),
            change: Box::new(change),
        });
    }

    /// Replaces the extension with the same identifier.
    fn replace(&mut self, what: impl Into<String>, with: Extension) {
        self.add(what, move |template| {
            template.extensions.retain(|one| one.oid != with.oid);
            template.extensions.push(with.clone());
        });
    }
}

pub(crate) fn all() -> Vec<Mutation> {
    let mut all = All::default();
    all.add("nothing", |_| ());
    headers(&mut all);
    names(&mut all);
    times(&mut all);
    keys(&mut all);
    every_extension(&mut all);
    usages(&mut all);
    constraints(&mut all);
    alternative_names(&mut all);
    policies(&mut all);
    others(&mut all);
    all.0
}

fn headers(all: &mut All) {
    for (what, serial) in [
        ("negative serial", vec![2, 1, 0xff]),
        ("negative long serial", vec![2, 3, 0x80, 0, 1]),
        ("zero serial", vec![2, 1, 0]),
        ("empty serial", vec![2, 0]),
        ("serial with leading zero", vec![2, 2, 0, 1]),
        ("serial with leading ff", vec![2, 2, 0xff, 0x80]),
        ("serial of 21 bytes", der(2, &[&[7; 21]])),
        ("serial of 200 bytes", der(2, &[&[7; 200]])),
        ("serial as BOOLEAN", vec![1, 1, 0xff]),
        ("no serial", Vec::new()),
    ] {
        all.add(what, move |template| template.serial = serial.clone());
    }
    for (what, version) in [
        ("version 1 with extensions", Vec::new()),
        ("explicit version 1", vec![0xa0, 3, 2, 1, 0]),
        ("version 2 with extensions", vec![0xa0, 3, 2, 1, 1]),
        ("version 4", vec![0xa0, 3, 2, 1, 3]),
        ("version -1", vec![0xa0, 3, 2, 1, 0xff]),
        ("empty version", vec![0xa0, 0]),
        ("version with trailing byte", vec![0xa0, 5, 2, 1, 2, 5, 0]),
        ("version not minimal", vec![0xa0, 4, 2, 2, 0, 2]),
    ] {
        all.add(what, move |template| template.version = version.clone());
    }
    for (what, version) in [("version 1", 0), ("version 2", 1)] {
        all.add(format!("{what} without extensions"), move |template| {
            template.version = if version == 0 {
                Vec::new()
            } else {
                vec![0xa0, 3, 2, 1, 1]
            };
            template.extensions.clear();
        });
    }
    all.add("no extensions", |template| template.extensions.clear());
    for (what, algorithm) in [
        ("ECDSA with NULL", sequence(&[&oid(ECDSA_SHA256), &[5, 0]])),
        (
            "ECDSA with SHA-1",
            sequence(&[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1])]),
        ),
        (
            "ECDSA with SHA-384",
            sequence(&[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3])]),
        ),
        (
            "unknown signature algorithm",
            sequence(&[&oid(&[0x2a, 3, 4])]),
        ),
        ("signature algorithm without identifier", sequence(&[])),
        (
            "signature algorithm with two parameters",
            sequence(&[&oid(ECDSA_SHA256), &[5, 0], &[5, 0]]),
        ),
        (
            "MD5 with RSA",
            sequence(&[
                &oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4]),
                &[5, 0],
            ]),
        ),
        (
            "Ed25519 with NULL",
            sequence(&[&oid(&[0x2b, 0x65, 0x70]), &[5, 0]]),
        ),
        (
            "RSA-PSS without parameters",
            sequence(&[&oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10])]),
        ),
    ] {
        all.add(what, move |template| template.algorithm = algorithm.clone());
    }
    all.add("outer algorithm with NULL", |template| {
        template.outer_algorithm = Some(sequence(&[&oid(ECDSA_SHA256), &[5, 0]]));
    });
    all.add("outer algorithm of RSA", |template| {
        template.outer_algorithm = Some(sequence(&[
            &oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]),
            &[5, 0],
        ]));
    });
    all.add("issuerUniqueID", |template| {
        template.unique = vec![0x81, 2, 0, 1]
    });
    all.add("subjectUniqueID", |template| {
        template.unique = vec![0x82, 2, 0, 1]
    });
    all.add("unique identifiers in the wrong order", |template| {
        template.unique = vec![0x82, 2, 0, 1, 0x81, 2, 0, 1];
    });
    all.add("field after the extensions", |template| {
        template.more = vec![5, 0]
    });
    all.add("second list of extensions", |template| {
        template.more = vec![0xa3, 2, 0x30, 0];
    });
    all.add("unused bits in the signature", |template| {
        template.unused_bits = 3
    });
    all.add("field after the signature", |template| {
        template.trailing.0 = vec![5, 0]
    });
    all.add("byte after the certificate", |template| {
        template.trailing.1 = vec![0]
    });
    all.add("list of extensions that is empty", |template| {
        template.extensions.clear();
        template.more = vec![0xa3, 2, 0x30, 0];
    });
}

fn names(all: &mut All) {
    let strings: [(&str, u8, &[u8]); 22] = [
        ("UTF8String", 0x0c, b"cp1"),
        ("PrintableString", 0x13, b"cp1"),
        ("IA5String", 0x16, b"cp1"),
        ("T61String", 0x14, b"cp1"),
        ("BMPString", 0x1e, b"\0c\0p\x001"),
        ("BMPString with terminator", 0x1e, b"\0c\0p\x001\0\0"),
        ("BMPString of odd length", 0x1e, b"\0c\0p\x001\0"),
        ("BMPString with surrogates", 0x1e, b"\xd8\0\xdc\0"),
        ("BMPString with noncharacter", 0x1e, b"\xff\xfe"),
        ("NumericString with letters", 0x12, b"cp1"),
        ("NumericString", 0x12, b"1 2"),
        ("UniversalString", 0x1c, b"\0\0\0c\0\0\0p\0\0\x001"),
        ("VisibleString", 0x1a, b"cp1"),
        ("GeneralString", 0x1b, b"cp1"),
        ("OCTET STRING", 0x04, b"cp1"),
        ("INTEGER", 0x02, b"\x01"),
        ("PrintableString with @", 0x13, b"cp1@"),
        ("PrintableString with *", 0x13, b"*"),
        ("UTF8String that is not UTF-8", 0x0c, b"\xff"),
        ("IA5String with high byte", 0x16, b"\xe9"),
        ("T61String with high byte", 0x14, b"\xe9"),
        ("empty UTF8String", 0x0c, b""),
    ];
    for (what, tag, value) in strings {
        all.add(format!("subject of {what}"), move |template| {
            template.subject = name(3, tag, value)
        });
        all.add(format!("organizational unit of {what}"), move |template| {
            template.subject = two_names(&[(11, tag, value), (3, 0x0c, b"cp1")]);
        });
    }
    let subjects: [(&str, Vec<u8>); 14] = [
        ("empty subject", sequence(&[])),
        ("subject with empty set", sequence(&[&der(0x31, &[])])),
        (
            "subject with empty attribute",
            sequence(&[&der(0x31, &[&sequence(&[])])]),
        ),
        (
            "subject without value",
            sequence(&[&der(0x31, &[&sequence(&[&oid(&[0x55, 4, 3])])])]),
        ),
        (
            "subject with three fields",
            sequence(&[&der(
                0x31,
                &[&sequence(&[&oid(&[0x55, 4, 3]), &[0x0c, 1, b'a'], &[5, 0]])],
            )]),
        ),
        (
            "subject without set",
            sequence(&[&sequence(&[&oid(&[0x55, 4, 3]), &[0x0c, 1, b'a']])]),
        ),
        (
            "subject with a large identifier",
            sequence(&[&der(
                0x31,
                &[&sequence(&[
                    &oid(&[0x69, 0x88, 0x80, 0x80, 0x80, 0]),
                    &[0x0c, 1, b'a'],
                ])],
            )]),
        ),
        (
            "subject with a damaged identifier",
            sequence(&[&der(
                0x31,
                &[&sequence(&[&oid(&[0x55, 0x80, 3]), &[0x0c, 1, b'a']])],
            )]),
        ),
        (
            "subject with two common names",
            two_names(&[(3, 0x0c, b"cp1"), (3, 0x0c, b"cp2")]),
        ),
        (
            "subject with two organizations",
            two_names(&[(10, 0x0c, b"a"), (10, 0x0c, b"system:masters")]),
        ),
        ("subject with NUL", name(3, 0x0c, b"cp1\0.example")),
        ("subject with escape", name(3, 0x0c, b"cp1\x1b[2J")),
        ("subject as SET", der(0x31, &[])),
        (
            "subject of several values",
            sequence(&[&der(0x31, &[&attribute(3, b"cp1"), &attribute(10, b"o")])]),
        ),
    ];
    for (what, subject) in subjects {
        all.add(what, move |template| template.subject = subject.clone());
    }
    all.add("issuer of another name", |template| {
        template.issuer = common_name("nobody")
    });
    all.add("empty issuer", |template| template.issuer = sequence(&[]));
    all.add("issuer of damaged string", |template| {
        template.issuer = name(3, 0x13, b"_")
    });
}

fn attribute(kind: u8, value: &[u8]) -> Vec<u8> {
    sequence(&[&oid(&[0x55, 4, kind]), &der(0x0c, &[value])])
}

fn two_names(parts: &[(u8, u8, &[u8])]) -> Vec<u8> {
    let sets: Vec<Vec<u8>> = parts
        .iter()
        .map(|(kind, tag, value)| {
            der(
                0x31,
                &[&sequence(&[&oid(&[0x55, 4, *kind]), &der(*tag, &[value])])],
            )
        })
        .collect();
    let sets: Vec<&[u8]> = sets.iter().map(Vec::as_slice).collect();
    sequence(&sets)
}

fn times(all: &mut All) {
    type Times = (&'static str, u8, &'static [u8], u8, &'static [u8]);
    let times: [Times; 25] = [
        (
            "generalized times",
            0x18,
            b"20260101000000Z",
            0x18,
            b"20300101000000Z",
        ),
        (
            "no expiry",
            0x17,
            b"260101000000Z",
            0x18,
            b"99991231235959Z",
        ),
        (
            "year 10000",
            0x17,
            b"260101000000Z",
            0x18,
            b"100000101000000Z",
        ),
        ("year 0", 0x18, b"00000101000000Z", 0x17, b"300101000000Z"),
        ("year 1950", 0x17, b"500101000000Z", 0x17, b"300101000000Z"),
        ("year 2049", 0x17, b"260101000000Z", 0x17, b"491231235959Z"),
        ("expired", 0x17, b"200101000000Z", 0x17, b"210101000000Z"),
        ("future", 0x17, b"400101000000Z", 0x17, b"410101000000Z"),
        (
            "end before begin",
            0x17,
            b"300101000000Z",
            0x17,
            b"260101000000Z",
        ),
        (
            "begin is end",
            0x17,
            b"260601120000Z",
            0x17,
            b"260601120000Z",
        ),
        ("offset", 0x17, b"260101000000+0100", 0x17, b"300101000000Z"),
        (
            "offset of nothing",
            0x17,
            b"260101000000+0000",
            0x17,
            b"300101000000Z",
        ),
        ("no seconds", 0x17, b"2601010000Z", 0x17, b"300101000000Z"),
        ("no zone", 0x17, b"260101000000", 0x17, b"300101000000Z"),
        ("small z", 0x17, b"260101000000z", 0x17, b"300101000000Z"),
        (
            "fraction",
            0x18,
            b"20260101000000.5Z",
            0x17,
            b"300101000000Z",
        ),
        (
            "generalized offset",
            0x18,
            b"20260101000000-0500",
            0x17,
            b"300101000000Z",
        ),
        (
            "30 February",
            0x17,
            b"260230000000Z",
            0x17,
            b"300101000000Z",
        ),
        ("month 13", 0x17, b"261301000000Z", 0x17, b"300101000000Z"),
        ("hour 24", 0x17, b"260101240000Z", 0x17, b"300101000000Z"),
        ("second 60", 0x17, b"260101000060Z", 0x17, b"300101000000Z"),
        ("empty time", 0x17, b"", 0x17, b"300101000000Z"),
        (
            "time as text",
            0x13,
            b"260101000000Z",
            0x17,
            b"300101000000Z",
        ),
        (
            "signed digits",
            0x17,
            b"26010100+000Z",
            0x17,
            b"300101000000Z",
        ),
        ("spaces", 0x17, b"26 1 1000000Z", 0x17, b"300101000000Z"),
    ];
    for (what, from_tag, from, to_tag, to) in times {
        all.add(format!("validity: {what}"), move |template| {
            template.validity = sequence(&[&der(from_tag, &[from]), &der(to_tag, &[to])]);
        });
    }
    all.add("validity without end", |template| {
        template.validity = sequence(&[&der(0x17, &[b"260101000000Z"])]);
    });
    all.add("validity with three times", |template| {
        let time = der(0x17, &[b"300101000000Z"]);
        template.validity = sequence(&[&der(0x17, &[b"260101000000Z"]), &time, &time]);
    });
}

const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];

fn spki(algorithm: &[u8], parameters: &[u8], key: &[u8]) -> Vec<u8> {
    sequence(&[
        &sequence(&[&oid(algorithm), parameters]),
        &der(3, &[&[0], key]),
    ])
}

fn keys(all: &mut All) {
    let rsa = |parameters: &[u8], modulus: &[u8], exponent: &[u8]| {
        spki(
            RSA,
            parameters,
            &sequence(&[&der(2, &[modulus]), &der(2, &[exponent])]),
        )
    };
    let modulus = [&[0x7f][..], &[0x55; 255]].concat();
    let even = [&[0x7f][..], &[0x54; 255]].concat();
    let keys = [
        ("RSA key", rsa(&[5, 0], &modulus, &[1, 0, 1])),
        ("RSA key without NULL", rsa(&[], &modulus, &[1, 0, 1])),
        (
            "RSA key of 1024 bits",
            rsa(&[5, 0], &modulus[..128], &[1, 0, 1]),
        ),
        (
            "RSA key with negative modulus",
            rsa(&[5, 0], &[0x85; 256], &[1, 0, 1]),
        ),
        ("RSA key with modulus zero", rsa(&[5, 0], &[0], &[1, 0, 1])),
        ("RSA key with even modulus", rsa(&[5, 0], &even, &[1, 0, 1])),
        ("RSA key with exponent zero", rsa(&[5, 0], &modulus, &[0])),
        (
            "RSA key with negative exponent",
            rsa(&[5, 0], &modulus, &[0xff]),
        ),
        ("RSA key with exponent one", rsa(&[5, 0], &modulus, &[1])),
        (
            "RSA key with even exponent",
            rsa(&[5, 0], &modulus, &[1, 0, 0]),
        ),
        (
            "RSA key with exponent of 33 bits",
            rsa(&[5, 0], &modulus, &[1, 0, 0, 0, 1]),
        ),
        (
            "RSA key with exponent of 65 bits",
            rsa(&[5, 0], &modulus, &[1, 0, 0, 0, 0, 0, 0, 0, 1]),
        ),
        (
            "RSA key with leading zero",
            rsa(&[5, 0], &[&[0][..], &modulus].concat(), &[1, 0, 1]),
        ),
        (
            "RSA key with trailing bytes",
            spki(
                RSA,
                &[5, 0],
                &[sequence(&[&der(2, &[&modulus]), &[2, 1, 3]]), vec![0]].concat(),
            ),
        ),
        (
            "RSA key with three numbers",
            spki(
                RSA,
                &[5, 0],
                &sequence(&[&der(2, &[&modulus]), &[2, 1, 3], &[2, 1, 3]]),
            ),
        ),
        ("EC key off its curve", spki(EC, &oid(P256), &[4; 65])),
        ("EC key at infinity", spki(EC, &oid(P256), &[0])),
        ("empty EC key", spki(EC, &oid(P256), &[])),
        ("EC key without curve", spki(EC, &[], &[4; 65])),
        ("EC key with NULL", spki(EC, &[5, 0], &[4; 65])),
        (
            "EC key on P-224",
            spki(EC, &oid(&[0x2b, 0x81, 4, 0, 33]), &P224_GENERATOR),
        ),
        (
            "EC key on secp256k1",
            spki(EC, &oid(&[0x2b, 0x81, 4, 0, 10]), &[4; 65]),
        ),
        (
            "EC key with explicit parameters",
            spki(EC, &sequence(&[&[2, 1, 1]]), &[4; 65]),
        ),
        ("Ed25519 key", spki(ED25519, &[], &[7; 32])),
        ("Ed25519 key with NULL", spki(ED25519, &[5, 0], &[7; 32])),
        ("Ed25519 key of 31 bytes", spki(ED25519, &[], &[7; 31])),
        ("X25519 key", spki(&[0x2b, 0x65, 0x6e], &[], &[7; 32])),
        ("Ed448 key", spki(&[0x2b, 0x65, 0x71], &[], &[7; 57])),
        (
            "RSA-PSS key",
            spki(
                &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10],
                &[],
                &sequence(&[&der(2, &[&modulus]), &[2, 1, 3]]),
            ),
        ),
        (
            "DSA key",
            spki(
                &[0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1],
                &sequence(&[&[2, 1, 7], &[2, 1, 3], &[2, 1, 2]]),
                &[2, 1, 4],
            ),
        ),
        (
            "DSA key without parameters",
            spki(&[0x2a, 0x86, 0x48, 0xce, 0x38, 4, 1], &[], &[2, 1, 4]),
        ),
        ("unknown key", spki(&[0x2a, 3, 4], &[], &[1, 2, 3])),
        ("no key", sequence(&[])),
    ];
    for (what, key) in keys {
        all.add(what, move |template| template.key = key.clone());
    }
    all.add("compressed EC key", |template| {
        // The point is the last 65 bytes of the SubjectPublicKeyInfo.
        let point = template.key[template.key.len() - 65..].to_vec();
        let sign = 2 + (point[64] & 1);
        template.key = spki(EC, &oid(P256), &[&[sign], &point[1..33]].concat());
    });
    all.add("hybrid EC key", |template| {
        let point = template.key[template.key.len() - 65..].to_vec();
        let sign = 6 + (point[64] & 1);
        template.key = spki(EC, &oid(P256), &[&[sign], &point[1..]].concat());
    });
    all.add("key with trailing field", |template| {
        let content = template.key[2..].to_vec();
        template.key = sequence(&[&content, &[5, 0]]);
    });
}

/// The generator of P-224 (FIPS 186-4, D.1.2.2), a valid public key.
const P224_GENERATOR: [u8; 57] = [
    4, 0xb7, 0x0e, 0x0c, 0xbd, 0x6b, 0xb4, 0xbf, 0x7f, 0x32, 0x13, 0x90, 0xb9, 0x4a, 0x03, 0xc1,
    0xd3, 0x56, 0xc2, 0x11, 0x22, 0x34, 0x32, 0x80, 0xd6, 0x11, 0x5c, 0x1d, 0x21, 0xbd, 0x37, 0x63,
    0x88, 0xb5, 0xf7, 0x23, 0xfb, 0x4c, 0x22, 0xdf, 0xe6, 0xcd, 0x43, 0x75, 0xa0, 0x5a, 0x07, 0x47,
    0x64, 0x44, 0xd5, 0x81, 0x99, 0x85, 0x00, 0x7e, 0x34,
];

/// Every extension that Go reads, and one that it does not.
fn every_extension(all: &mut All) {
    let aia = &[0x2b, 6, 1, 5, 5, 7, 1, 1][..];
    let mut known: Vec<Vec<u8>> = [14, 15, 17, 19, 30, 31, 32, 33, 35, 36, 37, 54]
        .iter()
        .map(|number| [CE, &[*number]].concat())
        .collect();
    known.push(aia.to_vec());
    for identifier in known {
        let what = identifier
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>();
        let values: [(&str, &[u8]); 9] = [
            ("nothing", &[]),
            ("NULL", &[5, 0]),
            ("an empty SEQUENCE", &[0x30, 0]),
            ("an INTEGER", &[2, 1, 1]),
            ("an OCTET STRING", &[4, 1, 1]),
            ("a SEQUENCE of NULL", &[0x30, 2, 5, 0]),
            ("a SEQUENCE that is cut off", &[0x30, 4, 5]),
            ("a SEQUENCE with long length", &[0x30, 0x81, 0]),
            ("an indefinite SEQUENCE", &[0x30, 0x80, 0, 0]),
        ];
        for (kind, value) in values {
            for flag in [&[][..], &[1, 1, 0xff]] {
                let with = Extension {
                    oid: identifier.clone(),
                    critical: flag.to_vec(),
                    value: value.to_vec(),
                };
                let criticality = if flag.is_empty() { "" } else { "critical " };
                all.replace(format!("{criticality}extension {what} is {kind}"), with);
            }
        }
        let flags: [(&str, &[u8]); 5] = [
            ("critical", &[1, 1, 0xff]),
            ("expressly not critical", &[1, 1, 0]),
            ("critical as 1", &[1, 1, 1]),
            ("critical as two bytes", &[1, 2, 0, 0xff]),
            ("critical as INTEGER", &[2, 1, 1]),
        ];
        for (kind, flag) in flags {
            let (identifier, flag) = (identifier.clone(), flag.to_vec());
            all.add(format!("extension {what} is {kind}"), move |template| {
                for one in &mut template.extensions {
                    if one.oid == identifier {
                        one.critical = flag.clone();
                    }
                }
            });
        }
        let own = identifier.clone();
        all.add(format!("extension {what} occurs twice"), move |template| {
            let again: Vec<_> = template
                .extensions
                .iter()
                .filter(|one| one.oid == own)
                .cloned()
                .collect();
            template.extensions.extend(again);
        });
        let own = identifier.clone();
        all.add(
            format!("extension {what} has a trailing byte"),
            move |template| {
                for one in template.extensions.iter_mut().filter(|one| one.oid == own) {
                    one.value.push(0);
                }
            },
        );
        all.add(format!("extension {what} is missing"), move |template| {
            template.extensions.retain(|one| one.oid != identifier);
        });
    }
    for (what, number, flag) in [("critical", 99, true), ("plain", 99, false)] {
        let with = if flag {
            critical(number, vec![5, 0])
        } else {
            extension(number, vec![5, 0])
        };
        all.replace(format!("{what} unknown extension"), with);
    }
    all.replace(
        "critical unknown extension of another arc",
        Extension {
            oid: vec![0x2a, 3, 4],
            critical: vec![1, 1, 0xff],
            value: vec![5, 0],
        },
    );
    all.replace(
        "extension with a large identifier",
        Extension {
            oid: vec![0x69, 0x88, 0x80, 0x80, 0x80, 0],
            critical: Vec::new(),
            value: vec![5, 0],
        },
    );
    all.add("extension without value", |template| {
        template.more = der(0xa3, &[&sequence(&[&sequence(&[&oid(&[0x55, 0x1d, 99])])])]);
        template.extensions.clear();
    });
    all.add("a hundred extensions", |template| {
        template.extensions.extend((0..100).map(|number| Extension {
            oid: vec![0x2a, 3, number],
            critical: Vec::new(),
            value: vec![5, 0],
        }));
    });
    all.replace("extension of 80 kB", extension(99, vec![7; 80_000]));
}

fn usages(all: &mut All) {
    for bits in [
        &[3, 2, 7, 0x80][..],
        &[3, 2, 5, 0x20],
        &[3, 2, 2, 0x04],
        &[3, 2, 2, 0x84],
        &[3, 2, 1, 0x06],
        &[3, 1, 0],
        &[3, 2, 0, 0],
        &[3, 3, 7, 0, 0x80],
        &[3, 2, 8, 0xa0],
        &[3, 2, 5, 0xa1],
        &[3, 0],
        &[3, 1, 5],
        &[0x23, 4, 3, 2, 5, 0xa0],
    ] {
        all.replace(
            format!("key usage {bits:02x?}"),
            critical(15, bits.to_vec()),
        );
    }
    let server: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
    let client: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
    let lists: [(&str, Vec<Vec<u8>>); 10] = [
        ("server", vec![oid(server)]),
        ("client", vec![oid(client)]),
        ("both", vec![oid(server), oid(client)]),
        ("server twice", vec![oid(server), oid(server), oid(client)]),
        ("any", vec![oid(&[0x55, 0x1d, 37, 0])]),
        (
            "any and both",
            vec![oid(&[0x55, 0x1d, 37, 0]), oid(server), oid(client)],
        ),
        ("code signing", vec![oid(&[0x2b, 6, 1, 5, 5, 7, 3, 3])]),
        ("unknown", vec![oid(&[0x2a, 3, 4])]),
        ("damaged", vec![oid(server), oid(&[0x80, 1])]),
        ("a number", vec![vec![2, 1, 1]]),
    ];
    for (what, list) in lists {
        let parts: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
        all.replace(
            format!("extended usage: {what}"),
            extension(37, sequence(&parts)),
        );
        all.replace(
            format!("critical extended usage: {what}"),
            critical(37, sequence(&parts)),
        );
    }
    let constraints: [(&str, &[u8]); 14] = [
        ("CA", &[0x30, 3, 1, 1, 0xff]),
        ("expressly no CA", &[0x30, 3, 1, 1, 0]),
        ("CA as 1", &[0x30, 3, 1, 1, 1]),
        ("CA with length 0", &[0x30, 6, 1, 1, 0xff, 2, 1, 0]),
        ("CA with length 1", &[0x30, 6, 1, 1, 0xff, 2, 1, 1]),
        ("CA with length -1", &[0x30, 6, 1, 1, 0xff, 2, 1, 0xff]),
        (
            "CA with length not minimal",
            &[0x30, 7, 1, 1, 0xff, 2, 2, 0, 1],
        ),
        (
            "CA with length of 63 bits",
            &[
                0x30, 13, 1, 1, 0xff, 2, 8, 0x7f, 255, 255, 255, 255, 255, 255, 255,
            ],
        ),
        (
            "CA with length of 64 bits",
            &[0x30, 14, 1, 1, 0xff, 2, 9, 0, 0x80, 0, 0, 0, 0, 0, 0, 0],
        ),
        ("length without CA", &[0x30, 3, 2, 1, 0]),
        ("no CA with length", &[0x30, 6, 1, 1, 0, 2, 1, 0]),
        ("CA with more", &[0x30, 8, 1, 1, 0xff, 2, 1, 1, 5, 0]),
        ("CA after length", &[0x30, 6, 2, 1, 1, 1, 1, 0xff]),
        ("empty", &[0x30, 0]),
    ];
    for (what, value) in constraints {
        all.replace(format!("constraints: {what}"), critical(19, value.to_vec()));
        all.replace(
            format!("plain constraints: {what}"),
            extension(19, value.to_vec()),
        );
    }
}

fn constraints(all: &mut All) {
    let subtree = |tag, value: &[u8]| sequence(&[&der(tag, &[value])]);
    let subtrees: [(&str, Vec<u8>); 27] = [
        ("DNS cp1", subtree(0x82, b"cp1")),
        ("DNS of another domain", subtree(0x82, b"example.com")),
        ("DNS everything", subtree(0x82, b"")),
        ("DNS .cp1", subtree(0x82, b".cp1")),
        ("DNS with trailing dot", subtree(0x82, b"cp1.")),
        ("DNS with empty label", subtree(0x82, b"a..b")),
        ("DNS with space", subtree(0x82, b"a b")),
        ("DNS with high byte", subtree(0x82, b"\xe9")),
        ("DNS constructed", subtree(0xa2, b"cp1")),
        ("IPv4 all", subtree(0x87, &[0; 8])),
        (
            "IPv4 192.0.2.0/24",
            subtree(0x87, &[192, 0, 2, 0, 255, 255, 255, 0]),
        ),
        (
            "IPv4 with host bits",
            subtree(0x87, &[192, 0, 2, 200, 255, 255, 255, 0]),
        ),
        (
            "IPv4 10.0.0.0/8",
            subtree(0x87, &[10, 0, 0, 0, 255, 0, 0, 0]),
        ),
        (
            "IPv4 mask with gaps",
            subtree(0x87, &[192, 0, 2, 0, 255, 0, 255, 0]),
        ),
        ("IP of 4 bytes", subtree(0x87, &[192, 0, 2, 0])),
        ("IPv6 all", subtree(0x87, &[0; 32])),
        ("email example.com", subtree(0x81, b"example.com")),
        ("email mailbox", subtree(0x81, b"a@example.com")),
        ("email damaged mailbox", subtree(0x81, b"@example.com")),
        (
            "email quoted mailbox",
            subtree(0x81, b"\"a b\"@example.com"),
        ),
        ("URI example.com", subtree(0x86, b"example.com")),
        ("URI address", subtree(0x86, b"192.0.2.1")),
        (
            "directory name",
            sequence(&[&der(0xa4, &[&common_name("x")])]),
        ),
        (
            "other name",
            sequence(&[&der(0xa0, &[&oid(&[0x2a, 3]), &[0xa0, 2, 5, 0]])]),
        ),
        (
            "with minimum",
            sequence(&[&der(0x82, &[b"cp1"]), &[0x80, 1, 0]]),
        ),
        (
            "with trailing field",
            sequence(&[&der(0x82, &[b"cp1"]), &[5, 0]]),
        ),
        ("empty subtree", sequence(&[])),
    ];
    for (what, subtree) in subtrees {
        for (side, tag) in [("permitted", 0xa0), ("excluded", 0xa1)] {
            let value = sequence(&[&der(tag, &[&subtree])]);
            all.replace(format!("{side} {what}"), extension(30, value.clone()));
            all.replace(format!("critical {side} {what}"), critical(30, value));
        }
    }
    let dns = sequence(&[&der(0x82, &[b"cp1"])]);
    let wholes: [(&str, Vec<u8>); 6] = [
        ("two empty sides", sequence(&[&[0xa0, 0], &[0xa1, 0]])),
        ("empty permitted", sequence(&[&[0xa0, 0]])),
        (
            "empty permitted, excluded",
            sequence(&[&[0xa0, 0], &der(0xa1, &[&dns])]),
        ),
        (
            "sides in the wrong order",
            sequence(&[&der(0xa1, &[&dns]), &der(0xa0, &[&dns])]),
        ),
        ("third side", sequence(&[&der(0xa0, &[&dns]), &[0xa2, 0]])),
        ("side without tag", sequence(&[&dns])),
    ];
    for (what, value) in wholes {
        all.replace(format!("name constraints: {what}"), critical(30, value));
    }
}

fn alternative_names(all: &mut All) {
    let dns = |value: &[u8]| der(0x82, &[value]);
    let wanted = || {
        vec![
            dns(b"cp1"),
            dns(b"localhost"),
            der(0x87, &[&[192, 0, 2, 11]]),
        ]
    };
    let mut add = |what: String, names: Vec<Vec<u8>>| {
        let parts: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        all.replace(what.clone(), extension(17, sequence(&parts)));
        all.replace(format!("critical {what}"), critical(17, sequence(&parts)));
    };
    add("names: the wanted ones".to_owned(), wanted());
    add(
        "names: the wanted ones twice".to_owned(),
        [wanted(), wanted()].concat(),
    );
    let extra: [(&str, Vec<u8>); 33] = [
        ("constructed DNS", der(0xa2, &[b"evil"])),
        ("constructed IP", der(0xa7, &[&[192, 0, 2, 1]])),
        ("constructed email", der(0xa1, &[b"a@b"])),
        ("constructed URI", der(0xa6, &[b"https://a"])),
        ("universal text", der(0x0c, &[b"cp1"])),
        ("application tag", der(0x42, &[b"cp1"])),
        ("empty DNS", dns(b"")),
        ("DNS with high byte", dns(b"\xe9")),
        ("DNS with NUL", dns(b"cp1\0")),
        ("DNS with trailing dot", dns(b"cp1.")),
        ("DNS with wildcard", dns(b"*.cp1")),
        ("DNS with space", dns(b"c p")),
        ("DNS in capitals", dns(b"CP1")),
        ("IP of 3 bytes", der(0x87, &[&[1, 2, 3]])),
        ("IP of 0 bytes", der(0x87, &[&[]])),
        ("IPv6", der(0x87, &[&[1; 16]])),
        (
            "IPv4 in IPv6",
            der(
                0x87,
                &[&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, 11]],
            ),
        ),
        ("email", der(0x81, &[b"a@example.com"])),
        ("email that is no mailbox", der(0x81, &[b"example.com"])),
        ("email with high byte", der(0x81, &[b"\xe9@a"])),
        ("URI", der(0x86, &[b"spiffe://example.com/a"])),
        (
            "URI with port",
            der(0x86, &[b"https://example.com:443/a?b#c"]),
        ),
        ("URI with user", der(0x86, &[b"https://u:p@example.com/"])),
        ("URI with bad escape", der(0x86, &[b"https://a/%zz"])),
        ("URI with control", der(0x86, &[b"https://a/\x01"])),
        ("URI with address", der(0x86, &[b"https://192.0.2.1/"])),
        ("URI with IPv6", der(0x86, &[b"https://[2001:db8::1]:1/"])),
        ("URI without scheme", der(0x86, &[b"://a"])),
        ("relative URI", der(0x86, &[b"a/b"])),
        ("URN", der(0x86, &[b"urn:uuid:1"])),
        ("directory name", der(0xa4, &[&common_name("x")])),
        (
            "other name",
            der(0xa0, &[&oid(&[0x2a, 3]), &[0xa0, 2, 5, 0]]),
        ),
        ("registered identifier", der(0x88, &[&[0x2a, 3]])),
    ];
    for (what, name) in &extra {
        add(
            format!("names: also {what}"),
            [wanted(), vec![name.clone()]].concat(),
        );
    }
    for (what, name) in &extra {
        add(format!("names: only {what}"), vec![name.clone()]);
    }
    add(
        "names: all constructed".to_owned(),
        vec![
            der(0xa2, &[b"cp1"]),
            der(0xa2, &[b"localhost"]),
            der(0xa7, &[&[192, 0, 2, 11]]),
        ],
    );
}

fn policies(all: &mut All) {
    let policy = |content: &[u8]| sequence(&[&oid(content)]);
    let any: &[u8] = &[0x55, 0x1d, 32, 0];
    let lists: [(&str, Vec<u8>); 8] = [
        ("one", sequence(&[&policy(&[0x2a, 3])])),
        ("another", sequence(&[&policy(&[0x2a, 4])])),
        ("any", sequence(&[&policy(any)])),
        ("two", sequence(&[&policy(&[0x2a, 3]), &policy(&[0x2a, 4])])),
        (
            "one twice",
            sequence(&[&policy(&[0x2a, 3]), &policy(&[0x2a, 3])]),
        ),
        ("damaged", sequence(&[&policy(&[0x80, 3])])),
        (
            "large",
            sequence(&[&policy(&[0x69, 0x88, 0x80, 0x80, 0x80, 0])]),
        ),
        (
            "with qualifier",
            sequence(&[&sequence(&[
                &oid(&[0x2a, 3]),
                &sequence(&[&sequence(&[&oid(&[0x2a, 9]), &[0x16, 1, b'a']])]),
            ])]),
        ),
    ];
    for (what, value) in lists {
        all.replace(format!("policies: {what}"), extension(32, value.clone()));
        all.replace(format!("critical policies: {what}"), critical(32, value));
    }
    let numbers: [(&str, &[u8]); 9] = [
        ("explicit 0", &[0x30, 3, 0x80, 1, 0]),
        ("explicit 1", &[0x30, 3, 0x80, 1, 1]),
        ("explicit 5", &[0x30, 3, 0x80, 1, 5]),
        ("no mapping", &[0x30, 3, 0x81, 1, 0]),
        ("both", &[0x30, 6, 0x80, 1, 0, 0x81, 1, 0]),
        ("negative", &[0x30, 3, 0x80, 1, 0xff]),
        ("not minimal", &[0x30, 4, 0x80, 2, 0, 1]),
        ("constructed", &[0x30, 5, 0xa0, 3, 2, 1, 0]),
        ("with more", &[0x30, 5, 0x80, 1, 0, 5, 0]),
    ];
    for (what, value) in numbers {
        for flag in [false, true] {
            let with = if flag {
                critical(36, value.to_vec())
            } else {
                extension(36, value.to_vec())
            };
            let criticality = if flag { "critical" } else { "plain" };
            all.replace(
                format!("{criticality} policy constraints: {what}"),
                with.clone(),
            );
            all.add(
                format!("{criticality} policy constraints without policies: {what}"),
                move |template| {
                    template
                        .extensions
                        .retain(|one| one.oid != with.oid && one.oid != [0x55, 0x1d, 32]);
                    template.extensions.push(with.clone());
                },
            );
        }
    }
    let pair =
        |issuer: &[u8], subject: &[u8]| sequence(&[&sequence(&[&oid(issuer), &oid(subject)])]);
    let mappings: [(&str, Vec<u8>); 6] = [
        ("one to another", pair(&[0x2a, 3], &[0x2a, 4])),
        ("any to one", pair(any, &[0x2a, 4])),
        ("one to any", pair(&[0x2a, 3], any)),
        ("damaged", pair(&[], &[0x2a, 4])),
        ("half", sequence(&[&sequence(&[&oid(&[0x2a, 3])])])),
        ("none", sequence(&[])),
    ];
    for (what, value) in mappings {
        all.replace(
            format!("policy mappings: {what}"),
            extension(33, value.clone()),
        );
        all.replace(
            format!("critical policy mappings: {what}"),
            critical(33, value),
        );
    }
    for value in [
        &[2, 1, 0][..],
        &[2, 1, 3],
        &[2, 1, 0xff],
        &[2, 2, 0, 1],
        &[2, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        all.replace(
            format!("inhibit any policy {value:02x?}"),
            extension(54, value.to_vec()),
        );
    }
}

fn others(all: &mut All) {
    let uri = der(0x86, &[b"http://a/b"]);
    let points: [(&str, Vec<u8>); 9] = [
        (
            "good",
            sequence(&[&sequence(&[&der(0xa0, &[&der(0xa0, &[&uri])])])]),
        ),
        ("no name", sequence(&[&sequence(&[&[0x81, 2, 0, 0xff]])])),
        ("empty point", sequence(&[&sequence(&[])])),
        (
            "name without form",
            sequence(&[&sequence(&[&der(0xa0, &[&uri])])]),
        ),
        (
            "relative name",
            sequence(&[&sequence(&[&der(0xa0, &[&der(0xa1, &[])])])]),
        ),
        ("empty name", sequence(&[&sequence(&[&[0xa0, 0]])])),
        ("text", sequence(&[&der(0x0c, &[b"a"])])),
        (
            "cut off",
            sequence(&[&sequence(&[&der(0xa0, &[&der(0xa0, &[&[0x86, 9, b'a']])])])]),
        ),
        (
            "directory",
            sequence(&[&sequence(&[&der(
                0xa0,
                &[&der(0xa0, &[&der(0xa4, &[&common_name("x")])])],
            )])]),
        ),
    ];
    for (what, value) in points {
        all.replace(
            format!("CRL distribution points: {what}"),
            extension(31, value),
        );
    }
    let aia = |value: Vec<u8>| Extension {
        oid: vec![0x2b, 6, 1, 5, 5, 7, 1, 1],
        critical: Vec::new(),
        value,
    };
    let ocsp = oid(&[0x2b, 6, 1, 5, 5, 7, 48, 1]);
    let accesses: [(&str, Vec<u8>); 6] = [
        ("good", sequence(&[&sequence(&[&ocsp, &uri])])),
        ("no location", sequence(&[&sequence(&[&ocsp])])),
        ("no method", sequence(&[&sequence(&[&uri])])),
        (
            "constructed location",
            sequence(&[&sequence(&[&ocsp, &der(0xa6, &[b"a"])])]),
        ),
        (
            "location cut off",
            sequence(&[&sequence(&[&ocsp, &[0x86, 9, b'a']])]),
        ),
        ("text", sequence(&[&der(0x0c, &[b"a"])])),
    ];
    for (what, value) in accesses {
        all.replace(format!("authority information: {what}"), aia(value));
    }
    let identifiers: [(&str, Vec<u8>); 8] = [
        ("of another key", sequence(&[&[0x80, 4, 9, 9, 9, 9]])),
        (
            "with issuer and serial",
            sequence(&[
                &[0x80, 1, 9],
                &der(0xa1, &[&der(0xa4, &[&common_name("x")])]),
                &[0x82, 1, 1],
            ]),
        ),
        ("constructed", sequence(&[&[0xa0, 2, 5, 0]])),
        ("empty identifier", sequence(&[&[0x80, 0]])),
        ("only the serial", sequence(&[&[0x82, 1, 1]])),
        ("cut off", sequence(&[&[0x80, 9, 1]])),
        ("with more", sequence(&[&[0x80, 1, 9], &[5, 0]])),
        ("text", der(0x0c, &[b"a"])),
    ];
    for (what, value) in identifiers {
        all.replace(format!("authority key {what}"), extension(35, value));
    }
    for value in [&[4, 0][..], &[4, 1, 1], &[0x24, 0], &[4, 2, 1]] {
        all.replace(
            format!("subject key {value:02x?}"),
            extension(14, value.to_vec()),
        );
    }
}

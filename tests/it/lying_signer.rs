//! Thousands of certificates that are wrong in one respect, each judged by nodepki and by an oracle, which is Go's
//! `crypto/x509` and `crypto/tls`.
//!
//! Rule: Go parses, loads, verifies and uses in a handshake every certificate that nodepki would install. In the other
//! direction, a table of reasons ([`STRICTER`]) lists everything that Go accepts and nodepki refuses.
//!
//! `tests/servers/oracle` is the oracle.

mod mutations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{
    Chain, Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, PublicKey, Sans, Subject,
    Tolerance, TrustBundle, along_path, satisfies,
};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::datetime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::certificate_template::{
    Extension, Template, changed, common_name, critical, der, extension, oid, pem, pem_of,
    sequence, validity,
};
use crate::node::{Node, Ran};
use crate::sample::{sampled, step};
use crate::servers::bin;

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

/// Refusals of certificates that Go accepts: a part of the message, and the reason.
const STRICTER: &[(&str, &str)] = &[
    // Compared with the desired certificate, which Go does not know.
    (
        "expected CN \"cp1\"",
        "another common name is another identity",
    ),
    (
        "unexpected ",
        "Kubernetes would grant more than was asked for",
    ),
    ("is missing", "the component would not work"),
    (
        "a leaf certificate is required",
        "a leaf that is a CA could issue further certificates",
    ),
    (
        "uses the first one as the CA",
        "kubeadm refuses a ca.crt that is not a CA's",
    ),
    (
        "exceeds the limit of 65536",
        "larger than anything that a TLS peer should have to read",
    ),
    // Bounds.
    (
        "more than the limit of 128",
        "a bound on the work per answer",
    ),
    (
        "there are more than 64",
        "a bound on the work per certificate",
    ),
    // Encodings that two verifiers would read differently.
    (
        "bytes follow",
        "Go passes over them, webpki and OpenSSL do not",
    ),
    (
        "it is not DER",
        "Go passes over fields after the last one it knows",
    ),
    (
        "fields follow",
        "Go passes over them, webpki and OpenSSL do not",
    ),
    (
        "numbers follow",
        "Go passes over them, webpki and OpenSSL do not",
    ),
    (
        "a name has a tag",
        "Go passes over the name, others may read it",
    ),
    (
        "a constraint has a tag",
        "Go passes over the constraint unless it is critical, others may read it",
    ),
    (
        "last byte is not complete",
        "Go shifts the bits, others refuse",
    ),
    (
        "is not a time of the form",
        "RFC 5280, 4.1.2.5, which webpki enforces",
    ),
    (
        "a policy is not an object identifier",
        "Go compares the bytes of damaged identifiers",
    ),
    ("a number is negative", "Go takes it for no constraint"),
    (
        "is not a small INTEGER",
        "Go takes a negative number for no constraint",
    ),
    ("has no location", "RFC 5280, 4.2.2.1"),
    (
        "is not a valid absolute URI",
        "RFC 5280, 4.2.1.6; Go's URL parser takes more than RFC 3986",
    ),
    (
        "is not a mailbox",
        "quoted local parts are compared differently by everybody",
    ),
    // Go treats these as "everything is allowed".
    ("it contains no usage", "RFC 5280, 4.2.1.12, demands one"),
    (
        "does not allow it to sign",
        "RFC 5280, 4.2.1.3, demands one usage; Go takes none for all",
    ),
    (
        "is not P-256, P-384 or P-521",
        "P-224 has 112 bits of security, and no other verifier here",
    ),
    // webpki also verifies every path.
    (
        "signature algorithm of",
        "RFC 5758, 3.2: ECDSA has no parameters",
    ),
    (
        "critical extension that is not supported",
        "webpki has no certificate policies",
    ),
    (
        "TrailingData(",
        "webpki has no unique identifiers, and reads 64 kB",
    ),
    (
        "BadDer",
        "webpki reads years from 1970 and small path lengths",
    ),
    (
        "forbids its names",
        "Go finds a network with host bits by chance",
    ),
];

/// The keys of all cases.
struct Keys {
    root: PrivateKey,
    intermediate: PrivateKey,
    leaf: PrivateKey,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    Keys {
        root: key(),
        intermediate: key(),
        leaf: key(),
    }
});

fn profile() -> Profile {
    Profile {
        subject: Subject {
            common_name: "cp1".to_owned(),
            organizations: Vec::new(),
        },
        sans: Sans {
            dns: vec!["cp1".to_owned(), "localhost".to_owned()],
            ips: vec!["192.0.2.11".parse().unwrap()],
        },
        usages: vec![ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth],
        key: KeyAlgorithm::EcdsaP256,
        lifetime: Duration::from_secs(365 * 86400),
    }
}

fn root() -> Template {
    Template {
        extensions: vec![
            critical(15, vec![3, 2, 1, 0x06]),
            critical(19, vec![0x30, 3, 1, 1, 0xff]),
            extension(14, vec![4, 4, 1, 1, 1, 1]),
        ],
        ..Template::new("root", "root", KEYS.root.public_key())
    }
}

fn intermediate() -> Template {
    let uri = |text: &[u8]| der(0x86, &[text]);
    let ocsp = oid(&[0x2b, 6, 1, 5, 5, 7, 48, 1]);
    let point = der(0xa0, &[&der(0xa0, &[&uri(b"http://crl.example/a")])]);
    Template {
        extensions: vec![
            critical(15, vec![3, 2, 1, 0x06]),
            critical(19, vec![0x30, 6, 1, 1, 0xff, 2, 1, 0]),
            extension(14, vec![4, 4, 2, 2, 2, 2]),
            extension(35, sequence(&[&[0x80, 4, 1, 1, 1, 1]])),
            extension(31, sequence(&[&sequence(&[&point])])),
            extension(32, sequence(&[&sequence(&[&oid(&[0x2a, 3])])])),
            Extension {
                oid: vec![0x2b, 6, 1, 5, 5, 7, 1, 1],
                critical: Vec::new(),
                value: sequence(&[&sequence(&[&ocsp, &uri(b"http://ocsp.example")])]),
            },
        ],
        ..Template::new("intermediate", "root", KEYS.root.public_key())
    }
    .for_key(&KEYS.intermediate)
}

fn leaf() -> Template {
    let names = [
        der(0x82, &[b"cp1"]),
        der(0x82, &[b"localhost"]),
        der(0x87, &[&[192, 0, 2, 11]]),
    ];
    let server = oid(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);
    let client = oid(&[0x2b, 6, 1, 5, 5, 7, 3, 2]);
    Template {
        extensions: vec![
            critical(15, vec![3, 2, 5, 0xa0]),
            extension(37, sequence(&[&server, &client])),
            critical(19, vec![0x30, 0]),
            extension(14, vec![4, 4, 3, 3, 3, 3]),
            extension(35, sequence(&[&[0x80, 4, 2, 2, 2, 2]])),
            extension(32, sequence(&[&sequence(&[&oid(&[0x2a, 3])])])),
            extension(17, sequence(&[&names[0], &names[1], &names[2]])),
        ],
        ..Template::new("cp1", "intermediate", KEYS.leaf.public_key())
    }
}

impl Template {
    fn for_key(mut self, key: &PrivateKey) -> Self {
        self.key = key.public_key().spki_der().to_vec();
        self
    }
}

/// Returns a degenerate SignedData with these certificates in this order.
fn pkcs7(certificates: &[&[u8]]) -> Vec<u8> {
    let data = oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 1]);
    let signed = sequence(&[
        &[2, 1, 1],
        &[0x31, 0],
        &sequence(&[&data]),
        &der(0xa0, certificates),
        &[0x31, 0],
    ]);
    let signed_data = oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7, 2]);
    sequence(&[&signed_data, &der(0xa0, &[&signed])])
}

/// One answer of the signer to the request for [`profile`].
struct Case {
    what: String,
    answer: Vec<u8>,
    /// `ca.crt` on the node.
    authority: String,
    /// The answer as a certificate file, for the oracle if nodepki refuses it.
    as_file: String,
}

impl Case {
    fn new(what: String, answer: &[&[u8]], authority: &[&[u8]]) -> Self {
        let as_file = pem_of(answer);
        Case {
            what,
            answer: as_file.clone().into_bytes(),
            authority: pem_of(authority),
            as_file,
        }
    }

    /// Returns what nodepki would write to disk, or the reason for a refusal, by the steps of `agent::request`.
    fn judge(&self) -> Result<String, String> {
        let key = KEYS.leaf.public_key();
        let trust = TrustBundle::from_pem(self.authority.as_bytes())
            .map_err(|error| format!("ca.crt: {error}"))?;
        let chain = Chain::from_response(&self.answer, key).map_err(|error| error.to_string())?;
        let chain = along_path(chain, &trust, NOW);
        chain.check_size().map_err(|error| error.to_string())?;
        let found = satisfies(&chain, &profile(), Tolerance::default(), key, &trust, NOW);
        if found.is_empty() {
            Ok(chain.to_pem())
        } else {
            Err(found
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; "))
        }
    }

    /// Returns whether the unchanged answer, copied to the disk by hand, is reported as usable.
    fn is_ok_on_disk(&self) -> bool {
        let key = KEYS.leaf.public_key();
        let (Ok(trust), Ok(chain)) = (
            TrustBundle::from_pem(self.authority.as_bytes()),
            Chain::from_pem(self.as_file.as_bytes()),
        ) else {
            return false;
        };
        satisfies(&chain, &profile(), Tolerance::default(), key, &trust, NOW).is_empty()
    }
}

/// A question to the oracle: a certificate file, `ca.crt`, and whether to use it in a handshake.
type Question<'a> = (&'a str, &'a str, bool);

/// Asks the oracle. Each answer maps the parts that Go refuses to the error.
fn oracle(questions: &[Question<'_>]) -> Vec<BTreeMap<String, String>> {
    let key = KEYS.leaf.to_pem();
    let cases: Vec<Value> = questions
        .iter()
        .enumerate()
        .map(|(id, (certificate, authority, handshake))| {
            json!({
                "id": id.to_string(), "certificate": certificate, "key": key.as_str(), "ca": authority,
                "usages": ["server auth", "client auth"], "names": ["cp1", "localhost", "192.0.2.11"],
                "time": NOW.unix_timestamp(), "handshake": handshake,
            })
        })
        .collect();
    crate::oracle::ask(&cases)
}

/// The judgement of nodepki on a case.
struct Judgement {
    /// The file that would be written, or the reason for a refusal.
    installed: Result<String, String>,
    ok_on_disk: bool,
}

fn judge_all(cases: &[Case]) -> Vec<Judgement> {
    let judge = |case: &Case| Judgement {
        installed: case.judge(),
        ok_on_disk: case.is_ok_on_disk(),
    };
    std::thread::scope(|scope| {
        let parts = cases.chunks(cases.len().div_ceil(4));
        let workers: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().map(judge).collect::<Vec<_>>()))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    })
}

/// The result of a comparison with the oracle.
struct Outcome {
    /// Whether each case is installed.
    taken: Vec<bool>,
    /// The parts of [`STRICTER`] that were needed.
    reasons: BTreeSet<&'static str>,
}

/// Compares the judgements of all cases with the oracle.
///
/// # Panics
/// With the list of cases on which nodepki and Go disagree without a reason.
fn compare(cases: &[Case]) -> Outcome {
    let judged = judge_all(cases);
    let installed = |(case, judged): (&'_ Case, &'_ Judgement)| match &judged.installed {
        Ok(file) => (file.clone(), case.authority.clone(), true),
        Err(_) => (case.as_file.clone(), case.authority.clone(), false),
    };
    let files: Vec<_> = cases.iter().zip(&judged).map(installed).collect();
    let mut questions: Vec<Question<'_>> = files
        .iter()
        .map(|(file, authority, handshake)| (file.as_str(), authority.as_str(), *handshake))
        .collect();
    // An administrator may have copied the answer to the disk.
    let copied: Vec<&Case> = cases
        .iter()
        .zip(&judged)
        .filter_map(|(case, judged)| judged.ok_on_disk.then_some(case))
        .collect();
    questions.extend(
        copied
            .iter()
            .map(|case| (case.as_file.as_str(), case.authority.as_str(), true)),
    );
    let verdicts = oracle(&questions);
    let (installed, on_disk) = verdicts.split_at(cases.len());
    let (mut faults, mut reasons) = (Vec::new(), BTreeSet::new());
    for ((case, judged), verdict) in cases.iter().zip(&judged).zip(installed) {
        match &judged.installed {
            Ok(_) if verdict.is_empty() => {}
            Ok(_) => faults.push(format!(
                "installed, and Go refuses: {}: {verdict:?}",
                case.what
            )),
            Err(_) if !verdict.is_empty() => {}
            Err(why) if STRICTER.iter().any(|(part, _)| why.contains(part)) => {
                let parts = STRICTER.iter().map(|(part, _)| *part);
                reasons.extend(parts.filter(|part| why.contains(part)));
            }
            Err(why) => faults.push(format!("refused, and Go accepts: {}: {why}", case.what)),
        }
    }
    for (case, verdict) in copied.iter().zip(on_disk) {
        if !verdict.is_empty() {
            faults.push(format!(
                "ok on disk, and Go refuses: {}: {verdict:?}",
                case.what
            ));
        }
    }
    assert!(
        faults.is_empty(),
        "{} of {} cases:\n{}",
        faults.len(),
        cases.len(),
        faults.join("\n")
    );
    Outcome {
        taken: judged
            .iter()
            .map(|judged| judged.installed.is_ok())
            .collect(),
        reasons,
    }
}

/// The certificate that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Leaf,
    /// The leaf, issued by the root.
    LeafOfRoot,
    Intermediate,
    Root,
    /// A further certificate in the answer.
    BesideAnswer,
    /// A further certificate in `ca.crt`.
    BesideRoot,
}

const PLACES: [Place; 6] = [
    Place::Leaf,
    Place::LeafOfRoot,
    Place::Intermediate,
    Place::Root,
    Place::BesideAnswer,
    Place::BesideRoot,
];

/// Makes a path in which the certificate at `place` is changed; the names of the others match it.
fn case(
    place: Place,
    what: &str,
    change: impl Fn(&Template, &PrivateKey) -> Vec<u8>,
    changed: impl Fn(&Template) -> Template,
) -> Case {
    let keys = &*KEYS;
    let (mut root, mut middle, mut leaf) = (root(), intermediate(), leaf());
    let mut beside = None;
    match place {
        Place::Leaf => {}
        Place::LeafOfRoot => {
            leaf.issuer = root.subject.clone();
            leaf.extensions.retain(|one| one.oid != [0x55, 0x1d, 35]);
        }
        Place::Intermediate => leaf.issuer = changed(&middle).subject,
        Place::Root => {
            middle.issuer = changed(&root).subject;
            root.issuer = middle.issuer.clone();
        }
        Place::BesideAnswer | Place::BesideRoot => {
            let mut other = intermediate();
            other.subject = common_name("other");
            beside = Some(change(&other, &keys.root));
        }
    }
    let sign = |own, template: &Template, key: &PrivateKey| {
        if place == own {
            change(template, key)
        } else {
            template.signed_by(key)
        }
    };
    let root_der = sign(Place::Root, &root, &keys.root);
    let middle_der = sign(Place::Intermediate, &middle, &keys.root);
    let leaf_der = match place {
        Place::LeafOfRoot => change(&leaf, &keys.root),
        _ => sign(Place::Leaf, &leaf, &keys.intermediate),
    };
    let what = format!("{place:?}: {what}");
    match (place, &beside) {
        (Place::LeafOfRoot, _) => Case::new(what, &[&leaf_der], &[&root_der]),
        (Place::BesideAnswer, Some(other)) => {
            Case::new(what, &[&leaf_der, other, &middle_der], &[&root_der])
        }
        (_, Some(other)) => Case::new(what, &[&leaf_der, &middle_der], &[&root_der, other]),
        _ => Case::new(what, &[&leaf_der, &middle_der], &[&root_der]),
    }
}

/// Returns every mutation in every place.
fn mutated() -> Vec<Case> {
    let mut cases = Vec::new();
    for mutation in &mutations::all() {
        for place in PLACES {
            cases.push(case(
                place,
                &mutation.what,
                |template, key| mutation.of(template).signed_by(key),
                |template| mutation.of(template),
            ));
        }
    }
    cases
}

/// Returns every change to every element of the encoding.
fn damaged() -> Vec<Case> {
    let mut cases = Vec::new();
    for (place, original) in [
        (Place::Leaf, leaf()),
        (Place::Intermediate, intermediate()),
        (Place::Root, root()),
    ] {
        for (at, (what, tbs)) in changed(&original.tbs()).into_iter().enumerate() {
            // The leaf has every kind of field; a selection of the changes is enough for the others.
            if place == Place::Leaf || at % 3 == 0 {
                cases.push(case(
                    place,
                    &what,
                    |template, key| template.around(&tbs, key),
                    Clone::clone,
                ));
            }
        }
    }
    cases
}

#[test]
fn installs_nothing_that_go_refuses() {
    bin("oracle");
    let mut cases = sampled(0, mutated());
    cases.extend(sampled(1, damaged()));
    let (answers, expected): (Vec<_>, Vec<_>) = answers().into_iter().unzip();
    let first_answer = cases.len();
    cases.extend(answers);
    assert!(cases.len() > 600 / step(), "{}", cases.len());

    let outcome = compare(&cases);
    let taken = outcome.taken.iter().filter(|taken| **taken).count();
    println!("{} cases, {taken} of them installed", cases.len());
    // In the other direction, unusual answers that contain a valid path are accepted.
    let taken = outcome.taken.iter().skip(first_answer);
    for ((case, expected), taken) in cases.iter().skip(first_answer).zip(&expected).zip(taken) {
        assert_eq!(taken, expected, "{}: {:?}", case.what, case.judge().err());
        if let Ok(file) = case.judge() {
            let count = file.matches("BEGIN CERTIFICATE").count();
            assert!(count <= 2, "{}: {count} certificates", case.what);
        }
    }
    // An unused reason would hide the next difference. A sample does not need all of them.
    let listed: BTreeSet<_> = STRICTER.iter().map(|(part, _)| *part).collect();
    assert!(
        step() > 1 || outcome.reasons == listed,
        "{:?}",
        outcome.reasons
    );
}

/// Returns [`intermediate`] after a change.
fn other_intermediate(change: impl FnOnce(&mut Template)) -> Template {
    let mut other = intermediate();
    change(&mut other);
    other
}

/// Returns answers with several certificates, and whether they are accepted.
fn answers() -> Vec<(Case, bool)> {
    let keys = &*KEYS;
    let stranger = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let root_der = root().signed_by(&keys.root);
    let middle = intermediate().signed_by(&keys.root);
    let leaf_der = leaf().signed_by(&keys.intermediate);
    let (root_der, middle, leaf_der) = (&root_der[..], &middle[..], &leaf_der[..]);
    let garbage = &[0x30, 3, 2, 1, 1][..];
    let negative = leaf_with(|template| template.serial = vec![2, 1, 0xff]);
    let negative = &negative[..];

    // Certificates with the name of the issuer.
    let decoys = [
        (
            "of another key",
            other_intermediate(|one| *one = one.clone().for_key(&stranger)).signed_by(&keys.root),
        ),
        (
            "that expired",
            other_intermediate(|one| one.validity = validity("200101000000Z", "210101000000Z"))
                .signed_by(&keys.root),
        ),
        (
            "of the future",
            other_intermediate(|one| one.validity = validity("400101000000Z", "410101000000Z"))
                .signed_by(&keys.root),
        ),
        (
            "that is signed by a stranger",
            intermediate().signed_by(&stranger),
        ),
        (
            "of another root",
            other_intermediate(|one| one.issuer = common_name("other root")).signed_by(&stranger),
        ),
        (
            "that may not sign",
            other_intermediate(|one| one.extensions[0].value = vec![3, 2, 7, 0x80])
                .signed_by(&keys.root),
        ),
        (
            "that is not a CA",
            other_intermediate(|one| one.extensions[1].value = vec![0x30, 0]).signed_by(&keys.root),
        ),
        (
            "for servers only",
            other_intermediate(|one| {
                one.extensions.push(extension(
                    37,
                    sequence(&[&oid(&[0x2b, 6, 1, 5, 5, 7, 3, 1])]),
                ))
            })
            .signed_by(&keys.root),
        ),
        (
            "with an unknown critical extension",
            other_intermediate(|one| one.extensions.push(critical(99, vec![5, 0])))
                .signed_by(&keys.root),
        ),
        (
            "with constraints",
            other_intermediate(|one| {
                one.extensions.push(critical(
                    30,
                    sequence(&[&der(0xa0, &[&sequence(&[&der(0x82, &[b"example.com"])])])]),
                ))
            })
            .signed_by(&keys.root),
        ),
        (
            "with a weak signature",
            other_intermediate(|one| {
                one.algorithm = sequence(&[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1])])
            })
            .signed_by(&keys.root),
        ),
        (
            "that is damaged",
            other_intermediate(|one| one.extensions[1].value = vec![5, 0]).signed_by(&keys.root),
        ),
    ];
    let mut all = Vec::new();
    let mut add = |what: &str, answer: &[&[u8]], authority: &[&[u8]], taken: bool| {
        all.push((Case::new(what.to_owned(), answer, authority), taken));
    };
    add(
        "leaf and intermediate",
        &[leaf_der, middle],
        &[root_der],
        true,
    );
    add(
        "leaf twice",
        &[leaf_der, leaf_der, middle],
        &[root_der],
        true,
    );
    add(
        "intermediate twice",
        &[leaf_der, middle, middle],
        &[root_der],
        true,
    );
    add(
        "with the root",
        &[leaf_der, middle, root_der],
        &[root_der],
        true,
    );
    add(
        "root before the intermediate",
        &[leaf_der, root_der, middle],
        &[root_der],
        true,
    );
    add("without the intermediate", &[leaf_der], &[root_der], false);
    add(
        "intermediate in ca.crt",
        &[leaf_der],
        &[middle, root_der],
        true,
    );
    add("reversed", &[middle, leaf_der], &[root_der], false);
    add(
        "garbage after the path",
        &[leaf_der, middle, garbage],
        &[root_der],
        true,
    );
    add(
        "garbage before the intermediate",
        &[leaf_der, garbage, middle],
        &[root_der],
        true,
    );
    add(
        "garbage first",
        &[garbage, leaf_der, middle],
        &[root_der],
        false,
    );
    add(
        "unrelated certificate that Go cannot parse",
        &[leaf_der, negative, middle],
        &[root_der],
        true,
    );
    add(
        "ca.crt with garbage",
        &[leaf_der, middle],
        &[root_der, garbage],
        false,
    );
    add(
        "ca.crt with a certificate that Go cannot parse",
        &[leaf_der, middle],
        &[root_der, negative],
        false,
    );
    for (what, decoy) in &decoys {
        add(
            &format!("decoy {what} first"),
            &[leaf_der, decoy, middle],
            &[root_der],
            true,
        );
        add(
            &format!("decoy {what} last"),
            &[leaf_der, middle, decoy],
            &[root_der],
            true,
        );
        add(
            &format!("decoy {what} alone"),
            &[leaf_der, decoy],
            &[root_der],
            false,
        );
    }
    let all_decoys: Vec<&[u8]> = decoys.iter().map(|(_, decoy)| &decoy[..]).collect();
    let together = [&[leaf_der][..], &all_decoys, &[middle]].concat();
    add(
        "all decoys, then the intermediate",
        &together,
        &[root_der],
        true,
    );
    let mut alike = vec![leaf_der];
    let many: Vec<Vec<u8>> = (0..90u8)
        .map(|serial| {
            other_intermediate(|one| {
                one.serial = vec![2, 1, serial];
                *one = one.clone().for_key(&stranger);
            })
            .signed_by(&keys.root)
        })
        .collect();
    alike.extend(many.iter().map(Vec::as_slice));
    add("90 decoys alone", &alike, &[root_der], false);
    alike.push(middle);
    add(
        "90 decoys, then the intermediate",
        &alike,
        &[root_der],
        true,
    );
    let crowd: Vec<&[u8]> = [leaf_der, middle]
        .into_iter()
        .chain(std::iter::repeat_n(root_der, 200))
        .collect();
    add("202 certificates", &crowd, &[root_der], false);

    // Mutual cross certificates form a circle.
    let circle = [
        other_intermediate(|one| one.issuer = common_name("a")).signed_by(&stranger),
        other_intermediate(|one| {
            *one = one.clone().for_key(&stranger);
            one.subject = common_name("a");
            one.issuer = common_name("intermediate");
        })
        .signed_by(&keys.intermediate),
    ];
    add(
        "circle",
        &[leaf_der, &circle[0], &circle[1]],
        &[root_der],
        false,
    );
    add(
        "circle and a way out",
        &[leaf_der, &circle[0], &circle[1], middle],
        &[root_der],
        true,
    );

    // The same authority with a new key of the same name.
    let self_issued = other_intermediate(|one| {
        one.subject = common_name("root");
        one.extensions[1].value = vec![0x30, 6, 1, 1, 0xff, 2, 1, 1];
        one.extensions[2].value = vec![4, 4, 5, 5, 5, 5];
    });
    let new_with_old = self_issued.clone().for_key(&stranger).signed_by(&keys.root);
    let below_new = Template {
        issuer: common_name("root"),
        ..leaf()
    };
    add(
        "key rollover under one name",
        &[&below_new.signed_by(&stranger), &new_with_old],
        &[root_der],
        true,
    );

    let p7 = |what: &str, certificates: &[&[u8]], taken| {
        let mut case = Case::new(format!("PKCS#7: {what}"), certificates, &[root_der]);
        case.answer = pkcs7(certificates);
        (case, taken)
    };
    all.push(p7("in order", &[leaf_der, middle], true));
    all.push(p7("root first", &[root_der, middle, leaf_der], true));
    all.push(p7("leaf twice", &[leaf_der, middle, leaf_der], true));
    all.push(p7("intermediate twice", &[middle, leaf_der, middle], true));
    all.push(p7("decoy first", &[&decoys[0].1, middle, leaf_der], true));
    all.push(p7("garbage", &[garbage, middle, leaf_der], true));
    all.push(p7("nothing", &[], false));
    let earlier =
        leaf_with(|template| template.validity = validity("200101000000Z", "210101000000Z"));
    all.push(p7(
        "the certificate of last year too",
        &[&earlier, leaf_der, middle],
        true,
    ));

    all.extend(algorithms());
    // Files that Go reads differently.
    for (what, before, after) in [
        ("indented", "\n", "\n  "),
        ("with another label", "CERTIFICATE-", "X509 CERTIFICATE-"),
        (
            "with headers",
            "CERTIFICATE-----\n",
            "CERTIFICATE-----\nProc-Type: 4\n\n",
        ),
        ("with CRLF", "\n", "\r\n"),
        ("with text", "-----BEGIN", "subject: cp1\n-----BEGIN"),
        ("with a byte order mark", "", ""),
    ] {
        let changed = |text: &str| match before {
            "" => format!("\u{feff}{text}"),
            before => text.replace(before, after),
        };
        let mut case = Case::new(format!("answer {what}"), &[leaf_der, middle], &[root_der]);
        case.answer = changed(&case.as_file).into_bytes();
        case.as_file = changed(&case.as_file);
        all.push((case, true));
        let mut case = Case::new(format!("ca.crt {what}"), &[leaf_der, middle], &[root_der]);
        case.authority = changed(&case.authority);
        all.push((case, matches!(what, "with CRLF" | "with text")));
    }
    all
}

/// Returns roots of each key algorithm that issue the leaf directly.
fn algorithms() -> Vec<(Case, bool)> {
    let ecdsa = |hash| sequence(&[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, hash])]);
    let rsa = |parameters: &[u8]| {
        let sha256 = oid(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]);
        sequence(&[&sha256, parameters])
    };
    let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let own = |algorithm| PrivateKey::generate(algorithm).unwrap();
    let rsa_key = own(KeyAlgorithm::Rsa2048);
    vec![
        under("RSA", &rsa_key, rsa(&[5, 0])),
        under("RSA without NULL", &rsa_key, rsa(&[])),
        under("P-384", &own(KeyAlgorithm::EcdsaP384), ecdsa(3)),
        under("P-521", &own(KeyAlgorithm::EcdsaP521), ecdsa(4)),
        under("Ed25519", &ed25519, sequence(&[&oid(&[0x2b, 0x65, 0x70])])),
    ]
}

fn under(what: &str, key: &impl rcgen::SigningKey, algorithm: Vec<u8>) -> (Case, bool) {
    let root = Template {
        key: key.subject_public_key_info(),
        algorithm: algorithm.clone(),
        ..root()
    };
    let leaf = Template {
        issuer: root.subject.clone(),
        algorithm,
        ..leaf()
    };
    let (root, leaf) = (root.signed_by(key), leaf.signed_by(key));
    (
        Case::new(format!("under a root with {what}"), &[&leaf], &[&root]),
        true,
    )
}

fn leaf_with(change: impl FnOnce(&mut Template)) -> Vec<u8> {
    let mut template = leaf();
    change(&mut template);
    template.signed_by(&KEYS.intermediate)
}

/// Returns certificates of CAs with the same name as subject and issuer.
fn alike(count: usize) -> String {
    let mut template = root();
    (0..count)
        .map(|serial| {
            let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
            template.serial = vec![2, 2, 1, serial as u8];
            template.key = key.public_key().spki_der().to_vec();
            pem(&template.signed_by(&KEYS.root))
        })
        .collect()
}

#[test]
fn compares_bundles_in_bounded_time() {
    let many = TrustBundle::from_response(alike(64).as_bytes()).unwrap();
    let others = TrustBundle::from_response(alike(64).as_bytes()).unwrap();
    let error = TrustBundle::from_response(alike(65).as_bytes()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it contains 65 certificates, more than the limit of 64 for a trust bundle"
    );
    let pin = many.certificates()[63].public_key().sha256();
    // An attempt of every path would not end.
    assert_eq!(many.unpinned(&[pin]).len(), 63);
    assert!(!many.accepts(&others));
    let long_name = |at: u8| {
        let mut template = root();
        template.subject = common_name(&format!("{at}{}", "a".repeat(1000)));
        pem(&template.signed_by(&KEYS.root))
    };
    let long: String = (0..40).map(long_name).collect();
    let error = TrustBundle::from_response(long.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("more than the 32768"), "{error}");
    let large = vec![b'a'; 600 * 1024];
    let error = TrustBundle::from_response(&large).unwrap_err();
    assert!(
        error.to_string().contains("exceeds the limit of 524288"),
        "{error}"
    );
}

#[test]
fn follows_pinned_authority_through_long_chain() {
    // Each certificate is issued by the one before, in the least favourable order.
    let mut keys = vec![];
    let mut chain = vec![];
    for at in 0..40 {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let issuer = format!("ca {}", at.max(1) - 1);
        let mut template = Template {
            extensions: root().extensions,
            ..Template::new(&format!("ca {at}"), &issuer, key.public_key())
        };
        template.serial = vec![2, 1, at];
        chain.push(pem(&template.signed_by(keys.last().unwrap_or(&key))));
        keys.push(key);
    }
    chain.reverse();
    let bundle = TrustBundle::from_response(chain.concat().as_bytes()).unwrap();
    assert!(bundle.unpinned(&[keys[0].public_key().sha256()]).is_empty());
    assert_eq!(bundle.unpinned(&[keys[20].public_key().sha256()]).len(), 20);
}

/// Returns a changed certificate of etcd's server on a [`Node`] for this key, issued by the node's authority.
fn etcd_server(node: &Node, key: &PublicKey, lie: &dyn Fn(&mut Template)) -> String {
    let authority = node.authority(Authority::EtcdCa);
    let signing_key = std::fs::read(node.ca().join("etcd/ca.key")).unwrap();
    let signing_key = PrivateKey::from_pem(&signing_key).unwrap();
    let (_, issuer) = X509Certificate::from_der(authority.bundle().first().der()).unwrap();
    let address = |bytes: &[u8]| der(0x87, &[bytes]);
    let names = sequence(&[
        &der(0x82, &[b"cp1"]),
        &der(0x82, &[b"localhost"]),
        &address(&[192, 0, 2, 11]),
        &address(&[127, 0, 0, 1]),
        &address(&std::net::Ipv6Addr::LOCALHOST.octets()),
    ]);
    let mut template = Template {
        key: key.spki_der().to_vec(),
        issuer: issuer.subject().as_raw().to_vec(),
        ..leaf()
    };
    // The program runs at the real time.
    let now = OffsetDateTime::now_utc();
    let text = |time: OffsetDateTime| {
        let (date, time) = (time.date(), time.time());
        let [year, month, day] = [
            date.year() % 100,
            u8::from(date.month()).into(),
            date.day().into(),
        ];
        format!(
            "{year:02}{month:02}{day:02}{:02}{:02}00Z",
            time.hour(),
            time.minute()
        )
    };
    template.validity = validity(
        &text(now - Duration::from_secs(600)),
        &text(now + Duration::from_secs(360 * 86400)),
    );
    let replaced = [[0x55, 0x1d, 35], [0x55, 0x1d, 17]];
    template
        .extensions
        .retain(|one| !replaced.iter().any(|oid| one.oid == oid));
    template.extensions.push(extension(17, names));
    lie(&mut template);
    pem(&template.signed_by(&signing_key))
}

type Lie = fn(&mut Template);

/// Changes that Go refuses, with a part of the refusal.
const LIES: [(&str, Lie); 6] = [
    ("serial number is not valid: it is negative", |one| {
        one.serial = vec![2, 1, 0xff]
    }),
    ("extension subjectAltName is not valid", |one| {
        let names = one.extensions.last_mut().unwrap();
        // Makes the tag of the first name constructed.
        names.value[2] ^= 0x20;
    }),
    ("extension keyUsage is not valid", |one| {
        one.extensions[0].value = vec![3, 2, 8, 0xa0]
    }),
    ("2.5.29.15 occurs twice", |one| {
        one.extensions.push(one.extensions[0].clone())
    }),
    ("extension authorityKeyIdentifier is not valid", |one| {
        one.extensions.push(extension(35, vec![5, 0]));
    }),
    ("critical extension 2.5.29.99", |one| {
        one.extensions.push(critical(99, vec![5, 0]))
    }),
];

/// Has the signer of a node answer the request for etcd's server with these bytes, made for the key of the request.
fn answer_etcd_server(node: &Node, make: impl Fn(&PublicKey) -> String) -> Ran {
    let slot = CertName::EtcdServer;
    node.signer_does(slot.as_str(), "pending");
    node.ask().ended(75);
    let asked = node.exchanges();
    let (_, _, id) = asked
        .iter()
        .rfind(|(verb, name, _)| verb == "sign" && name == slot.as_str())
        .unwrap();
    let csr = std::fs::read(node.outside("csr").join(format!("{slot}.{id}"))).unwrap();
    let csr = Csr::from_pem(&csr).unwrap();
    std::fs::write(node.outside("issued").join(id), make(csr.public_key())).unwrap();
    node.signer_behaves();
    node.ask()
}

#[test]
fn bootstrap_installs_no_certificate_that_go_refuses() {
    for (words, lie) in LIES {
        let node = Node::new();
        answer_etcd_server(&node, |key| etcd_server(&node, key, &lie))
            .ended(65)
            .row_says("etcd-server", "refused")
            .row_says("etcd-server", words);
        assert!(!node.path("/etc/kubernetes/pki/etcd/server.crt").exists());
    }
}

#[test]
fn bootstrap_writes_only_the_verified_path() {
    let node = Node::new();
    let unrelated = pem(&intermediate().signed_by(&KEYS.root));
    answer_etcd_server(&node, |key| {
        let negative = etcd_server(&node, key, &|one| one.serial = vec![2, 1, 0xff]);
        let root = node.authority(Authority::EtcdCa).bundle().to_pem();
        etcd_server(&node, key, &|_| ()) + &negative + &unrelated + &root
    })
    .done();
    let written = node.read("/etc/kubernetes/pki/etcd/server.crt");
    assert_eq!(written.matches("BEGIN CERTIFICATE").count(), 1, "{written}");
}

#[test]
fn bootstrap_refuses_chain_over_size_limit() {
    let node = Node::new();
    answer_etcd_server(&node, |key| {
        etcd_server(&node, key, &|one| {
            one.extensions.push(extension(99, vec![7; 70_000]))
        })
    })
    .ended(65)
    .row_says("etcd-server", "exceeds the limit of 65536");
}

#[test]
fn reports_no_certificate_as_ok_that_go_refuses() {
    let node = Node::bootstrapped();
    let (_, key) = node.leaf(CertName::EtcdServer).unwrap();
    let state = |node: &Node| {
        let status = node.run(&["status", "-o", "json"]);
        let status: Value = serde_json::from_str(&status.stdout).unwrap();
        let rows = status["certificates"].as_array().unwrap().clone();
        let own = |row: &&Value| row["name"] == "etcd-server";
        let row = rows.iter().find(own).unwrap();
        row["state"].as_str().unwrap().to_owned()
    };
    let place = |lie: &dyn Fn(&mut Template)| {
        let certificate = etcd_server(&node, key.public_key(), lie);
        node.write("/etc/kubernetes/pki/etcd/server.crt", certificate);
    };
    place(&|_| ());
    assert_eq!(state(&node), "ok");
    node.run(&["doctor"]).says_not("etcd-server:");
    for (words, lie) in LIES {
        place(&lie);
        assert_ne!(state(&node), "ok", "{words}");
        node.run(&["doctor"]).says("etcd-server:");
    }
}

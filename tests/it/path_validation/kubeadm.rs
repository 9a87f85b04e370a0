//! What a kubeadm cluster with an external signer can meet: one row for each change to a path of root, intermediate and the
//! API server's leaf, with the verdict that is expected of nodepki and the rule behind it.

use std::process::{Command, Stdio};
use std::sync::LazyLock;

use nodepki::x509::{ExtendedUsage, KeyAlgorithm, PrivateKey};
use time::OffsetDateTime;
use time::macros::datetime;

use super::judges::{Case, Reason, compare, stricter};
use crate::certificate_template::{
    Template, common_name, critical, der, extension, name, oid, sequence, validity,
};

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

struct Keys {
    root: PrivateKey,
    middle: PrivateKey,
    leaf: PrivateKey,
    stranger: PrivateKey,
}

static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    Keys {
        root: key(),
        middle: key(),
        leaf: key(),
        stranger: key(),
    }
});

/// A path before its certificates are signed.
pub(super) struct Path {
    root: Template,
    middle: Template,
    pub(super) leaf: Template,
    /// Whether the intermediate issued the leaf; otherwise the root did.
    has_middle: bool,
    root_signer: Signer,
    middle_signer: Signer,
    leaf_signer: Signer,
    /// Further certificates of the signer's response, before and after the intermediate.
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
    /// Further certificates of `ca.crt`, before and after the root.
    before_root: Vec<Vec<u8>>,
    after_root: Vec<Vec<u8>>,
    usages: Vec<ExtendedUsage>,
    at: OffsetDateTime,
}

#[derive(Clone, Copy)]
enum Signer {
    Root,
    Middle,
    Leaf,
    Stranger,
    /// The root's key with ECDSA and SHA-1.
    RootWithSha1,
}

impl Signer {
    fn sign(self, template: &Template) -> Vec<u8> {
        let key = match self {
            Signer::Root | Signer::RootWithSha1 => &KEYS.root,
            Signer::Middle => &KEYS.middle,
            Signer::Leaf => &KEYS.leaf,
            Signer::Stranger => &KEYS.stranger,
        };
        match self {
            Signer::RootWithSha1 => {
                let mut template = template.clone();
                template.algorithm = sequence(&[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1])]);
                let tbs = template.tbs();
                template.assemble(&tbs, signature_with_sha1(key, &tbs))
            }
            _ => template.signed_by(key),
        }
    }
}

fn signature_with_sha1(key: &PrivateKey, message: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key.pem");
    std::fs::write(&file, key.to_pem().as_str()).unwrap();
    let mut child = Command::new("openssl")
        .args(["dgst", "-sha1", "-sign"])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(message).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    output.stdout
}

// Extensions, by the last number of 2.5.29.
const SUBJECT_KEY_ID: u8 = 14;
const KEY_USAGE: u8 = 15;
const ALTERNATIVE_NAMES: u8 = 17;
const BASIC_CONSTRAINTS: u8 = 19;
const NAME_CONSTRAINTS: u8 = 30;
const POLICIES: u8 = 32;
const AUTHORITY_KEY_ID: u8 = 35;
const POLICY_CONSTRAINTS: u8 = 36;
const EXTENDED_KEY_USAGE: u8 = 37;

const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
const ANY: &[u8] = &[0x55, 0x1d, 37, 0];

impl Template {
    fn without(&mut self, number: u8) {
        self.extensions
            .retain(|one| one.oid.last() != Some(&number));
    }

    fn set(&mut self, number: u8, is_critical: bool, value: Vec<u8>) {
        self.without(number);
        self.extensions.push(if is_critical {
            critical(number, value)
        } else {
            extension(number, value)
        });
    }

    fn may_be_used_for(&mut self, usages: &[&[u8]]) {
        let usages: Vec<Vec<u8>> = usages.iter().map(|usage| oid(usage)).collect();
        let usages: Vec<&[u8]> = usages.iter().map(Vec::as_slice).collect();
        self.set(EXTENDED_KEY_USAGE, false, sequence(&usages));
    }

    fn is_ca(&mut self, path_length: Option<u8>) {
        let value = match path_length {
            None => vec![0x30, 3, 1, 1, 0xff],
            Some(length) => vec![0x30, 6, 1, 1, 0xff, 2, 1, length],
        };
        self.set(BASIC_CONSTRAINTS, true, value);
    }

    fn has_names(&mut self, names: &[(u8, &[u8])]) {
        let names: Vec<Vec<u8>> = names.iter().map(|(tag, name)| der(*tag, &[name])).collect();
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        self.set(ALTERNATIVE_NAMES, false, sequence(&names));
    }

    /// Sets critical name constraints: `[0]` permits, `[1]` excludes.
    fn constrains(&mut self, kind: u8, tag: u8, name: &[u8]) {
        let subtree = sequence(&[&der(tag, &[name])]);
        self.set(
            NAME_CONSTRAINTS,
            true,
            sequence(&[&der(0xa0 | kind, &[&subtree])]),
        );
    }
}

const PERMITS: u8 = 0;
const EXCLUDES: u8 = 1;
const DNS: u8 = 0x82;
const IP: u8 = 0x87;

impl Path {
    /// A path without faults.
    pub(super) fn new() -> Self {
        let mut root = Template::new("kubernetes", "kubernetes", KEYS.root.public_key());
        root.set(KEY_USAGE, true, vec![3, 2, 2, 0xa4]);
        root.is_ca(None);
        root.set(SUBJECT_KEY_ID, false, vec![4, 4, 1, 1, 1, 1]);
        root.has_names(&[(DNS, b"kubernetes")]);

        let mut middle = Template::new("issuing", "kubernetes", KEYS.middle.public_key());
        middle.set(KEY_USAGE, true, vec![3, 2, 1, 0x06]);
        middle.is_ca(Some(0));
        middle.set(SUBJECT_KEY_ID, false, vec![4, 4, 2, 2, 2, 2]);
        middle.set(AUTHORITY_KEY_ID, false, sequence(&[&[0x80, 4, 1, 1, 1, 1]]));

        let mut leaf = Template::new("kube-apiserver", "issuing", KEYS.leaf.public_key());
        leaf.validity = validity("260101000000Z", "270101000000Z");
        leaf.set(KEY_USAGE, true, vec![3, 2, 7, 0x80]);
        leaf.may_be_used_for(&[SERVER, CLIENT]);
        leaf.set(BASIC_CONSTRAINTS, true, vec![0x30, 0]);
        leaf.set(AUTHORITY_KEY_ID, false, sequence(&[&[0x80, 4, 2, 2, 2, 2]]));
        leaf.has_names(&[
            (DNS, b"cp1"),
            (DNS, b"kubernetes.default"),
            (IP, &[10, 96, 0, 1]),
        ]);

        Path {
            root,
            middle,
            leaf,
            has_middle: true,
            root_signer: Signer::Root,
            middle_signer: Signer::Root,
            leaf_signer: Signer::Middle,
            before: Vec::new(),
            after: Vec::new(),
            before_root: Vec::new(),
            after_root: Vec::new(),
            usages: vec![ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth],
            at: NOW,
        }
    }

    /// The root issues the leaf, as in a cluster that kubeadm made.
    fn without_middle(&mut self) {
        self.has_middle = false;
        self.leaf.issuer = self.root.subject.clone();
        self.leaf
            .set(AUTHORITY_KEY_ID, false, sequence(&[&[0x80, 4, 1, 1, 1, 1]]));
        self.leaf_signer = Signer::Root;
    }

    pub(super) fn case(&self, name: &str) -> Case {
        let root = self.root_signer.sign(&self.root);
        let middle = self
            .has_middle
            .then(|| self.middle_signer.sign(&self.middle));
        let beside = |before: &[Vec<u8>], one: Option<Vec<u8>>, after: &[Vec<u8>]| {
            before
                .iter()
                .cloned()
                .chain(one)
                .chain(after.iter().cloned())
                .collect()
        };
        Case {
            name: name.to_owned(),
            leaf: self.leaf_signer.sign(&self.leaf),
            intermediates: beside(&self.before, middle, &self.after),
            roots: beside(&self.before_root, Some(root), &self.after_root),
            usages: self.usages.clone(),
            at: self.at,
        }
    }
}

/// Name of the case, source of the rule, whether the path is accepted, and the change.
type Row = (&'static str, &'static str, bool, fn(&mut Path));

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("nothing changed", "RFC 5280, 6.1", true, |_| ()),
    ("issued by the root", "RFC 5280, 6.1", true, |path| path.without_middle()),

    // Validity.
    ("first second of the leaf", "RFC 5280, 4.1.2.5", true, |path| path.at = datetime!(2026-01-01 0:00 UTC)),
    ("second before the leaf", "RFC 5280, 4.1.2.5", false, |path| {
        path.root.validity = validity("250101000000Z", "360101000000Z");
        path.middle.validity = validity("250101000000Z", "360101000000Z");
        path.at = datetime!(2025-12-31 23:59:59 UTC);
    }),
    ("last second of the leaf", "RFC 5280, 4.1.2.5", true, |path| path.at = datetime!(2027-01-01 0:00 UTC)),
    ("second after the leaf", "RFC 5280, 4.1.2.5", false, |path| path.at = datetime!(2027-01-01 0:00:01 UTC)),
    ("root expired", "Go checks the validity of roots", false, |path| path.root.validity = validity("250101000000Z", "260531000000Z")),
    ("root of the future", "Go checks the validity of roots", false, |path| path.root.validity = validity("260701000000Z", "360101000000Z")),
    ("intermediate expired", "RFC 5280, 6.1.3 (a) (2)", false, |path| path.middle.validity = validity("250101000000Z", "260531000000Z")),
    ("intermediate of the future", "RFC 5280, 6.1.3 (a) (2)", false, |path| path.middle.validity = validity("260701000000Z", "360101000000Z")),
    ("leaf outlives its issuers", "RFC 5280, 6.1: only the time of validation counts", true, |path| path.leaf.validity = validity("260101000000Z", "490101000000Z")),
    ("leaf until 2126", "RFC 5280, 4.1.2.5.2", true, |path| path.leaf.validity = times(0x17, "260101000000Z", 0x18, "21260101000000Z")),
    ("leaf without an end", "RFC 5280, 4.1.2.5", true, |path| path.leaf.validity = times(0x17, "260101000000Z", 0x18, "99991231235959Z")),
    ("UTCTime of 1950", "RFC 5280, 4.1.2.5.1: two digits from 50 on are the last century", false, |path| path.leaf.validity = validity("260101000000Z", "500101000000Z")),
    ("validity of leaf reversed", "RFC 5280, 4.1.2.5", false, |path| path.leaf.validity = validity("270101000000Z", "260101000000Z")),
    ("time with an offset", "RFC 5280, 4.1.2.5.1", false, |path| path.leaf.validity = times(0x17, "260101000000+0000", 0x17, "270101000000Z")),
    ("time without seconds", "RFC 5280, 4.1.2.5.1", false, |path| path.leaf.validity = times(0x17, "2601010000Z", 0x17, "270101000000Z")),
    ("fraction of a second", "RFC 5280, 4.1.2.5.2", false, |path| path.leaf.validity = times(0x18, "20260101000000.5Z", 0x17, "270101000000Z")),
    ("30 February", "RFC 5280, 4.1.2.5", false, |path| path.leaf.validity = validity("260230000000Z", "270101000000Z")),

    // Basic constraints.
    ("root without basic constraints", "RFC 5280, 4.2.1.9", false, |path| path.root.without(BASIC_CONSTRAINTS)),
    ("root that is no CA", "RFC 5280, 4.2.1.9", false, |path| path.root.set(BASIC_CONSTRAINTS, true, vec![0x30, 0])),
    ("intermediate without basic constraints", "RFC 5280, 6.1.4 (k)", false, |path| path.middle.without(BASIC_CONSTRAINTS)),
    ("intermediate that is no CA", "RFC 5280, 6.1.4 (k)", false, |path| path.middle.set(BASIC_CONSTRAINTS, true, vec![0x30, 0])),
    ("constraints not critical", "RFC 5280, 4.2.1.9, demands it of CAs, 6.1 does not", true, |path| path.middle.set(BASIC_CONSTRAINTS, false, vec![0x30, 3, 1, 1, 0xff])),
    ("root for leaves only, with intermediate", "RFC 5280, 6.1.4 (m)", false, |path| path.root.is_ca(Some(0))),
    ("root for leaves only", "RFC 5280, 6.1.4 (m)", true, |path| { path.without_middle(); path.root.is_ca(Some(0)); }),
    ("root for one intermediate", "RFC 5280, 6.1.4 (m)", true, |path| path.root.is_ca(Some(1))),
    ("intermediate without path length", "RFC 5280, 4.2.1.9", true, |path| path.middle.is_ca(None)),
    ("path length of a leaf", "RFC 5280, 4.2.1.9, forbids it, 6.1 does not", true, |path| path.leaf.set(BASIC_CONSTRAINTS, true, vec![0x30, 3, 2, 1, 0])),
    ("leaf that is a CA", "RFC 5280, 4.2.1.9", false, |path| path.leaf.is_ca(None)),
    ("leaf without basic constraints", "RFC 5280, 4.2.1.9: the default is no CA", true, |path| path.leaf.without(BASIC_CONSTRAINTS)),
    ("root of version 1", "kubeadm refuses a ca.crt that is not a CA's", false, |path| { path.root.version = Vec::new(); path.root.extensions.clear(); }),
    ("intermediate of version 1", "RFC 5280, 6.1.4 (k)", false, |path| { path.middle.version = Vec::new(); path.middle.extensions.clear(); }),
    ("leaf of version 1", "RFC 5280, 4.2.1.6: it has no names", false, |path| { path.leaf.version = Vec::new(); path.leaf.extensions.clear(); }),

    // Key usage.
    ("root may not sign certificates", "RFC 5280, 4.2.1.3", false, |path| path.root.set(KEY_USAGE, true, vec![3, 2, 5, 0xa0])),
    ("root without key usage", "RFC 5280, 4.2.1.3", true, |path| path.root.without(KEY_USAGE)),
    ("intermediate may sign CRLs only", "RFC 5280, 6.1.4 (n)", false, |path| path.middle.set(KEY_USAGE, true, vec![3, 2, 1, 0x02])),
    ("intermediate without key usage", "RFC 5280, 6.1.4 (n)", true, |path| path.middle.without(KEY_USAGE)),
    ("leaf without key usage", "RFC 5280, 4.2.1.3", true, |path| path.leaf.without(KEY_USAGE)),
    ("leaf for key agreement only", "RFC 8446, 4.4.2.2", false, |path| path.leaf.set(KEY_USAGE, true, vec![3, 2, 3, 0x08])),
    ("leaf with key encipherment", "kubeadm until 1.36", true, |path| path.leaf.set(KEY_USAGE, true, vec![3, 2, 5, 0xa0])),
    ("leaf that may sign certificates", "RFC 5280, 4.2.1.3: only of CAs", false, |path| path.leaf.set(KEY_USAGE, true, vec![3, 2, 2, 0x84])),

    // Extended key usage.
    ("leaf without usages", "kubeadm's leaves name theirs", false, |path| path.leaf.without(EXTENDED_KEY_USAGE)),
    ("leaf for any usage", "kubeadm's leaves name theirs", false, |path| path.leaf.may_be_used_for(&[ANY])),
    ("leaf for servers only", "RFC 5280, 4.2.1.12", false, |path| path.leaf.may_be_used_for(&[SERVER])),
    ("leaf for clients only", "RFC 5280, 4.2.1.12", false, |path| path.leaf.may_be_used_for(&[CLIENT])),
    ("leaf with critical usages", "RFC 5280, 4.2.1.12", true, |path| { path.leaf.may_be_used_for(&[SERVER, CLIENT]); path.leaf.extensions.last_mut().unwrap().critical = vec![1, 1, 0xff]; }),
    ("intermediate for servers only", "Go nests usages", false, |path| path.middle.may_be_used_for(&[SERVER])),
    ("intermediate for servers and clients", "Go nests usages", true, |path| path.middle.may_be_used_for(&[SERVER, CLIENT])),
    ("intermediate for any usage", "Go nests usages", true, |path| path.middle.may_be_used_for(&[ANY])),
    ("root for servers only", "Go nests usages", false, |path| path.root.may_be_used_for(&[SERVER])),

    // Name constraints.
    ("other DNS names permitted", "RFC 5280, 4.2.1.10", false, |path| path.middle.constrains(PERMITS, DNS, b"example.com")),
    ("leaf without a name of the permitted form", "RFC 5280, 4.2.1.10", true, |path| { path.leaf.has_names(&[(IP, &[10, 96, 0, 1])]); path.middle.constrains(PERMITS, DNS, b"example.com"); }),
    ("subdomain of a permitted name", "RFC 5280, 4.2.1.10", true, |path| { path.leaf.has_names(&[(DNS, b"api.example.com")]); path.middle.constrains(PERMITS, DNS, b"example.com"); }),
    ("name that only ends like a permitted one", "RFC 5280, 4.2.1.10", false, |path| { path.leaf.has_names(&[(DNS, b"api.badexample.com")]); path.middle.constrains(PERMITS, DNS, b"example.com"); }),
    ("excluded DNS name", "RFC 5280, 4.2.1.10", false, |path| path.root.constrains(EXCLUDES, DNS, b"default")),
    ("excluded DNS name in capitals", "RFC 5280, 4.2.1.10", false, |path| path.root.constrains(EXCLUDES, DNS, b"KUBERNETES.default")),
    ("other DNS name excluded", "RFC 5280, 4.2.1.10", true, |path| path.root.constrains(EXCLUDES, DNS, b"example.com")),
    ("permitted network", "RFC 5280, 4.2.1.10", true, |path| path.middle.constrains(PERMITS, IP, &[10, 0, 0, 0, 255, 0, 0, 0])),
    ("other network permitted", "RFC 5280, 4.2.1.10", false, |path| path.middle.constrains(PERMITS, IP, &[192, 168, 0, 0, 255, 255, 0, 0])),
    ("excluded network", "RFC 5280, 4.2.1.10", false, |path| path.middle.constrains(EXCLUDES, IP, &[10, 96, 0, 0, 255, 255, 0, 0])),
    ("mask with a hole", "RFC 4632, 3.1", false, |path| path.middle.constrains(PERMITS, IP, &[10, 0, 0, 0, 255, 0, 255, 0])),
    ("constraint of directory names", "Go refuses critical constraints that it does not know", false, |path| path.middle.constrains(EXCLUDES, 0xa4, &common_name("other"))),

    // Policies and other extensions.
    ("unknown critical extension", "RFC 5280, 4.2", false, |path| path.leaf.extensions.push(critical(99, vec![5, 0]))),
    ("intermediate with unknown critical extension", "RFC 5280, 4.2", false, |path| path.middle.extensions.push(critical(99, vec![5, 0]))),
    ("root with unknown critical extension", "Go checks the extensions of roots", false, |path| path.root.extensions.push(critical(99, vec![5, 0]))),
    ("unknown extension", "RFC 5280, 4.2", true, |path| path.leaf.extensions.push(extension(99, vec![5, 0]))),
    ("two extensions of one kind", "RFC 5280, 4.2", false, |path| { let one = path.leaf.extensions[0].clone(); path.leaf.extensions.push(one); }),
    ("a policy is required, and there is none", "RFC 5280, 4.2.1.11", false, |path| path.middle.set(POLICY_CONSTRAINTS, false, sequence(&[&[0x80, 1, 0]]))),
    ("a policy is required, and there is one", "RFC 5280, 4.2.1.11", true, |path| {
        let policy = sequence(&[&sequence(&[&oid(&[0x2a, 3])])]);
        path.middle.set(POLICIES, false, policy.clone());
        path.middle.set(POLICY_CONSTRAINTS, false, sequence(&[&[0x80, 1, 0]]));
        path.leaf.set(POLICIES, false, policy);
    }),

    // Signatures and key identifiers.
    ("leaf of a stranger", "RFC 5280, 6.1.3 (a) (1)", false, |path| path.leaf_signer = Signer::Stranger),
    ("intermediate of a stranger", "RFC 5280, 6.1.3 (a) (1)", false, |path| path.middle_signer = Signer::Stranger),
    ("leaf that signed itself", "RFC 5280, 6.1.3 (a) (1)", false, |path| path.leaf_signer = Signer::Leaf),
    ("root whose own signature is wrong", "RFC 5280, 6.1: an anchor's is not verified", true, |path| path.root_signer = Signer::Stranger),
    ("root with SHA-1", "RFC 5280, 6.1: an anchor's signature is not verified", true, |path| path.root_signer = Signer::RootWithSha1),
    ("intermediate with SHA-1", "Go refuses SHA-1", false, |path| path.middle_signer = Signer::RootWithSha1),
    ("other algorithm outside", "RFC 5280, 4.1.1.2", false, |path| path.leaf.outer_algorithm = Some(sequence(&[&oid(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3])]))),
    ("wrong key identifier of the issuer", "RFC 5280, 4.2.1.1: it helps to build the path", true, |path| path.leaf.set(AUTHORITY_KEY_ID, false, sequence(&[&[0x80, 4, 9, 9, 9, 9]]))),
    ("no key identifiers", "RFC 5280, 4.2.1.1", true, |path| { path.leaf.without(AUTHORITY_KEY_ID); path.middle.without(AUTHORITY_KEY_ID); path.middle.without(SUBJECT_KEY_ID); path.root.without(SUBJECT_KEY_ID); }),

    // Names and numbers.
    ("issuer with another string type", "Go compares names byte by byte", false, |path| path.leaf.issuer = name(3, 0x13, b"issuing")),
    ("issuer in capitals", "Go compares names byte by byte", false, |path| path.leaf.issuer = common_name("ISSUING")),
    ("empty issuer", "RFC 5280, 4.1.2.4", false, |path| path.leaf.issuer = sequence(&[])),
    ("empty subject", "RFC 5280, 4.1.2.6: names may stand in the extension alone", true, |path| path.leaf.subject = sequence(&[])),
    ("negative serial number", "RFC 5280, 4.1.2.2", false, |path| path.leaf.serial = vec![2, 1, 0x80]),
    ("serial number of 20 bytes", "RFC 5280, 4.1.2.2", true, |path| path.leaf.serial = der(2, &[&[7; 20]])),
    ("wildcard", "RFC 6125, 6.4.3", true, |path| path.leaf.has_names(&[(DNS, b"*.example.com")])),
    ("address of five bytes", "RFC 5280, 4.2.1.6", false, |path| path.leaf.has_names(&[(IP, &[10, 96, 0, 1, 1])])),
    ("name that is not ASCII", "RFC 5280, 4.2.1.6", false, |path| path.leaf.has_names(&[(DNS, "kübernetes".as_bytes())])),

    // Several paths.
    ("same certificate twice", "RFC 8446, 4.4.2: an unneeded certificate does no harm", true, |path| path.after = vec![Signer::Root.sign(&path.middle)]),
    ("root in the response", "RFC 8446, 4.4.2", true, |path| path.after = vec![Signer::Root.sign(&path.root)]),
    ("decoy before the issuer", "RFC 4158, 2.4: a builder tries every candidate", true, |path| path.before = vec![decoy(&path.middle).signed_by(&KEYS.stranger)]),
    ("decoy of a stranger in the bundle", "RFC 4158, 2.4", true, |path| path.before_root = vec![decoy(&path.root).signed_by(&KEYS.stranger)]),
    ("bundle of another root", "RFC 5280, 6.1.1 (d)", false, |path| { path.root = decoy(&path.root); path.root.subject = common_name("other"); path.root_signer = Signer::Stranger; }),
    ("new root signed by the old one", "RFC 4210, 4.4: a CA changes its key", true, |path| {
        let mut new = path.middle.clone();
        new.subject = common_name("new root");
        new.is_ca(None);
        new.without(SUBJECT_KEY_ID);
        new.key = KEYS.stranger.public_key().spki_der().to_vec();
        path.middle.issuer = new.subject.clone();
        path.middle.without(AUTHORITY_KEY_ID);
        path.middle_signer = Signer::Stranger;
        path.after = vec![Signer::Root.sign(&new)];
    }),
    ("expired root, and the same renewed", "Kubernetes reads every certificate of a bundle", true, |path| {
        let mut old = path.root.clone();
        old.validity = validity("160101000000Z", "260101000000Z");
        path.before_root = vec![Signer::Root.sign(&old)];
    }),
    ("self-issued intermediate below a short path", "Go counts self-issued certificates, unlike RFC 5280, 6.1.4 (l)", false, |path| {
        path.without_middle();
        path.root.is_ca(Some(0));
        let mut new_key = path.root.clone();
        new_key.key = KEYS.middle.public_key().spki_der().to_vec();
        path.after = vec![Signer::Root.sign(&new_key)];
        path.leaf_signer = Signer::Middle;
    }),
    ("circle of intermediates", "RFC 4158, 2.4.2", false, |path| {
        let mut back = path.middle.clone();
        back.subject = common_name("back");
        back.issuer = path.middle.subject.clone();
        back.is_ca(None);
        path.middle.issuer = back.subject.clone();
        path.middle.is_ca(None);
        path.middle_signer = Signer::Middle;
        path.after = vec![Signer::Middle.sign(&back)];
    }),
    ("six intermediates", "the longest path of webpki", true, |path| grow(path, 5)),
    ("seven intermediates", "the longest path of webpki", false, |path| grow(path, 6)),
];

#[rustfmt::skip]
const REASONS: &[Reason] = &[
    // What a control plane cannot use, or kubeadm does not take.
    stricter("nodepki", "kubeadm uses the first one as the CA", "OpenSSL, webpki and for version 1 also Go trust every root that they are given"),
    stricter("nodepki", "a leaf certificate is required", "a leaf that is a CA could issue further certificates"),
    stricter("nodepki", "unexpected key usage certificate sign", "RFC 5280, 4.2.1.9: only CAs have it"),
    stricter("nodepki", "key usage digital signature is missing", "TLS 1.3 needs it; none of the others looks at the key usage of a leaf"),
    stricter("nodepki", "extended key usage client auth is missing", "a missing list means all usages; kubeadm's certificates name theirs"),
    // Encodings.
    stricter("nodepki", "is not a time of the form", "RFC 5280, 4.1.2.5.1, demands seconds"),
    stricter("nodepki", "it is negative", "Go refuses negative serial numbers"),
    stricter("nodepki", "does not have 4 or 16 bytes", "Go refuses it; webpki reads names when they are compared"),
    stricter("nodepki", "is not ASCII", "Go refuses it; webpki reads names when they are compared"),
    stricter("nodepki", "the mask of an iPAddress constraint has gaps", "OpenSSL applies such a mask"),
    // Go's rules, which decide in a cluster.
    stricter("nodepki", "authority's certificate CN=kubernetes", "webpki does not check the validity of an anchor"),
    stricter("nodepki", "a path length constraint", "webpki ignores the constraint of an anchor"),
    stricter("nodepki", "does not allow it to sign", "webpki does not check keyCertSign"),
    stricter("nodepki", "does not allow the extended key usage", "webpki ignores the usages of an anchor"),
    stricter("nodepki", "2.5.29.30, which Kubernetes components do not know", "Go has no constraints of directory names"),
    stricter("nodepki", "2.5.29.99, which Kubernetes components do not know", "webpki ignores the extensions of an anchor"),
    stricter("nodepki", "its certificate policies are not valid", "OpenSSL processes policies on request, webpki never"),
    stricter("nodepki", "ecdsa-with-SHA1", "OpenSSL accepts SHA-1 at its default security level 1"),
    stricter("nodepki", "issuer with another string type", "OpenSSL compares names as RFC 5280, 7.1, says"),
    stricter("nodepki", "issuer in capitals", "OpenSSL compares names as RFC 5280, 7.1, says"),
    stricter("nodepki", "more than 6 intermediate certificates", "webpki has this limit; Go and OpenSSL follow longer paths"),
    // What OpenSSL and webpki refuse, and the components of a cluster accept.
    stricter("OpenSSL", "last second of the leaf", "OpenSSL takes the last second for expired, against RFC 5280, 4.1.2.5"),
    stricter("OpenSSL", "intermediate for any usage", "OpenSSL does not take anyExtendedKeyUsage for a usage"),
    stricter("webpki", "intermediate for any usage", "webpki does not take anyExtendedKeyUsage for a usage; nodepki checks usages itself"),
    stricter("OpenSSL", "wrong key identifier of the issuer", "OpenSSL compares the identifiers as part of the name"),
    stricter("OpenSSL", "decoy", "OpenSSL does not try a second issuer after a wrong signature"),
];

fn times(from_tag: u8, from: &str, to_tag: u8, to: &str) -> Vec<u8> {
    sequence(&[
        &der(from_tag, &[from.as_bytes()]),
        &der(to_tag, &[to.as_bytes()]),
    ])
}

/// Returns a template with the same names and another key.
fn decoy(of: &Template) -> Template {
    Template {
        key: KEYS.stranger.public_key().spki_der().to_vec(),
        ..of.clone()
    }
}

/// Adds intermediates between the root and the issuer of the leaf.
fn grow(path: &mut Path, count: usize) {
    let mut issuer = path.root.subject.clone();
    let mut signer = Signer::Root;
    for number in 0..count {
        let mut one = path.middle.clone();
        one.is_ca(None);
        one.without(SUBJECT_KEY_ID);
        one.without(AUTHORITY_KEY_ID);
        one.subject = common_name(&format!("intermediate {number}"));
        one.issuer = issuer;
        issuer = one.subject.clone();
        path.after.push(signer.sign(&one));
        signer = Signer::Middle;
    }
    path.middle.issuer = issuer;
    path.middle.without(AUTHORITY_KEY_ID);
    path.middle_signer = signer;
}

#[test]
fn judges_paths_of_kubeadm_clusters_like_go() {
    let changed = |(name, _, _, change): &Row| {
        let mut path = Path::new();
        change(&mut path);
        path.case(name)
    };
    let cases: Vec<Case> = ROWS.iter().map(changed).collect();
    let expected: Vec<Option<bool>> = ROWS.iter().map(|row| Some(row.2)).collect();
    compare(&cases, &expected, REASONS);
}

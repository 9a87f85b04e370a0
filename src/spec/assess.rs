//! The decision: what is wanted against what is on disk, now → keep, rewrite, issue or refuse, with the reason.
//!
//! Pure. The edge hands in what it read as [`Found`]; nothing here opens a file or looks at a clock.

mod kubelet;
mod place;
mod renewal;
mod replaced;
mod shared;

use std::fmt;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use crate::kube::kubeconfig::{Current, Kubeconfig, KubeconfigError, resolve_path};
use crate::spec::{BundleSpec, CertSpec, Output};
use crate::x509::{
    Chain, Difference, KeyAlgorithm, KeyType, PrivateKey, PublicKey, TrustBundle, rfc3339,
    satisfies,
};

pub use kubelet::{
    Current as KubeletCurrent, Form as KubeletForm, FoundStore, OnDisk, after_the_kubelet,
    store_dir, weigh,
};
pub use place::{lacks_host, may_be_in_masters, misplaced};
pub use renewal::{Age, Demand, Rotated, Rules, rotate};
pub use replaced::{OldAuthority, Replaced, Witness, replaced, trusted_by, valid_copy};
pub use shared::{SharedAuthority, shared_authorities};

/// What to do about a service-account pair that is not whole on a node that has served: another pair, or a public key
/// that was derived from the wrong private one, makes the tokens of the cluster worthless.
pub const COPY_SERVICE_ACCOUNT: &str =
    "copy both sa.key and sa.pub from another control-plane node (or from a backup of this one)";

/// One file as it was found.
#[derive(Debug)]
pub enum Found<T> {
    /// No such file.
    Absent,
    /// Zero bytes: what is left of a write that failed, or what the kubelet makes for a missing hostPath file.
    Empty,
    /// There, but not what it should be; why.
    Unreadable(String),
    /// There and understood.
    Present(T),
}

impl<T> Found<T> {
    /// Understands bytes, or says why not.
    pub fn read<E: fmt::Display>(
        bytes: Option<&[u8]>,
        parse: impl FnOnce(&[u8]) -> Result<T, E>,
    ) -> Self {
        match bytes {
            None => Found::Absent,
            Some(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => Found::Empty,
            Some(bytes) => match parse(bytes) {
                Ok(value) => Found::Present(value),
                Err(error) => Found::Unreadable(error.to_string()),
            },
        }
    }

    /// The value, where there is one.
    pub fn present(&self) -> Option<&T> {
        match self {
            Found::Present(value) => Some(value),
            _ => None,
        }
    }

    /// Maps the value, if there is one.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Found<U> {
        match self {
            Found::Absent => Found::Absent,
            Found::Empty => Found::Empty,
            Found::Unreadable(why) => Found::Unreadable(why),
            Found::Present(value) => Found::Present(change(value)),
        }
    }

    /// What is wrong with it, when it is not present.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Found::Absent => Some("is absent".to_owned()),
            Found::Empty => Some("is empty".to_owned()),
            Found::Unreadable(why) => Some(format!("is unreadable: {why}")),
            Found::Present(_) => None,
        }
    }

    fn problem(&self, what: &str) -> Option<String> {
        self.trouble().map(|trouble| format!("{what} {trouble}"))
    }
}

/// A certificate and its key as found, wherever they live.
pub struct FoundCert {
    /// The chain.
    pub chain: Found<Chain>,
    /// The key.
    pub key: Found<PrivateKey>,
    /// The key is in the PEM form that kubeadm writes.
    pub key_form_is_ours: bool,
    /// Mode of the file with the key, when everybody can read it.
    pub exposed: Option<u32>,
    /// A revocation list names it; in words.
    pub revoked: Option<String>,
    /// For a kubeconfig, the rest of it.
    pub kubeconfig: Option<FoundKubeconfig>,
    /// For the kubelet's, the files that it belongs into.
    pub store: Option<FoundStore>,
}

impl FoundCert {
    /// Whether the kubelet itself requested it from the cluster.
    pub fn is_of_kubelet(&self) -> bool {
        let store = self.store.as_ref();
        store.is_some_and(|store| store.in_place && store.requested_by_kubelet)
    }

    /// Whether the kubelet chose the kind of key: client-go makes an ECDSA key on P-256 for every request
    /// (`certificate_manager.go`, `generateCSR`), and would do so again after any other one.
    fn has_key_of_kubelet(&self, key: &PublicKey) -> bool {
        self.is_of_kubelet() && *key.key_type() == KeyType::Known(KeyAlgorithm::EcdsaP256)
    }
}

/// A kubeconfig beside its certificate and key.
pub struct FoundKubeconfig {
    /// The document, kept so that a repair loses nothing.
    pub document: Kubeconfig,
    /// `server` of the current context.
    pub server: Option<String>,
    /// Its CA data.
    pub authority: Option<Vec<u8>>,
    /// The file with its CA instead of data; absolute.
    pub authority_file: Option<PathBuf>,
    /// Certificate and key are files, as the kubelet's own rotation keeps them.
    pub by_file: bool,
}

/// What a kubeconfig file turned out to be.
pub enum ReadKubeconfig {
    /// Usable: the parts of it.
    Usable(Box<FoundCert>),
    /// `client-certificate` and `client-key` name these files, which must be read next.
    ByFile {
        /// `client-certificate`, absolute.
        certificate: PathBuf,
        /// `client-key`, absolute.
        key: PathBuf,
        /// The rest.
        kubeconfig: FoundKubeconfig,
    },
    /// Neither absent nor repairable: replacing it would lose what somebody wrote.
    Unrepairable(KubeconfigError),
}

/// Returns the parts of the kubeconfig at `path`. `None` and blank text are an absent and an empty certificate.
pub fn read_kubeconfig(path: &Path, text: Option<&[u8]>) -> ReadKubeconfig {
    let blank = |chain: Found<Chain>, key: Found<PrivateKey>| {
        ReadKubeconfig::Usable(Box::new(FoundCert {
            chain,
            key,
            key_form_is_ours: true,
            exposed: None,
            revoked: None,
            kubeconfig: None,
            store: None,
        }))
    };
    let Some(text) = text else {
        return blank(Found::Absent, Found::Absent);
    };
    if text.iter().all(u8::is_ascii_whitespace) {
        return blank(Found::Empty, Found::Empty);
    }
    let parsed = std::str::from_utf8(text)
        .map_err(|_| KubeconfigError::NotYaml("it is not UTF-8 text".to_owned()))
        .and_then(Kubeconfig::parse)
        .and_then(|document| document.current().map(|current| (document, current)));
    let (document, current) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return ReadKubeconfig::Unrepairable(error),
    };
    let Current {
        server,
        authority,
        certificate,
        key,
        certificate_file,
        key_file,
        authority_file,
        ..
    } = current;
    let absolute = |reference: String| resolve_path(path, &reference);
    let kubeconfig = FoundKubeconfig {
        document,
        server,
        authority,
        authority_file: authority_file.map(absolute),
        by_file: certificate.is_none(),
    };
    match (certificate_file, key_file) {
        (Some(certificate), Some(key)) if kubeconfig.by_file => ReadKubeconfig::ByFile {
            certificate: absolute(certificate),
            key: absolute(key),
            kubeconfig,
        },
        _ => ReadKubeconfig::Usable(Box::new(FoundCert {
            chain: Found::read(certificate.as_deref(), Chain::from_pem),
            key_form_is_ours: key.as_deref().is_none_or(|key| is_our_form(key)),
            key: Found::read(key.as_deref().map(Vec::as_slice), PrivateKey::from_pem),
            exposed: None,
            revoked: None,
            kubeconfig: Some(kubeconfig),
            store: None,
        })),
    }
}

/// True for PKCS#1 and SEC1 PEM, which is what kubeadm writes; PKCS#8 is readable, but not by all of Kubernetes.
pub fn is_our_form(key_pem: &[u8]) -> bool {
    !key_pem
        .windows(PKCS8_HEADER.len())
        .any(|window| window == PKCS8_HEADER)
}

const PKCS8_HEADER: &[u8] = b"-----BEGIN PRIVATE KEY-----";

/// What to do about one certificate.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing. The notes say what deserves attention all the same.
    Keep {
        /// In words.
        notes: Vec<String>,
    },
    /// The same certificate and key, written anew: their file has the wrong form.
    Rewrite {
        /// In words.
        reasons: Vec<String>,
    },
    /// A new key and a new certificate.
    Issue {
        /// In words.
        reasons: Vec<String>,
    },
    /// A person must look first.
    Refuse {
        /// In words, with what to do.
        reason: String,
    },
}

/// Decides about one certificate. `trust` is the bundle of its authority, once that is known.
pub fn assess(
    spec: &CertSpec,
    found: &FoundCert,
    trust: Option<&TrustBundle>,
    now: OffsetDateTime,
) -> Action {
    let (chain, key) = match (&found.chain, &found.key) {
        (Found::Present(chain), Found::Present(key)) => (chain, key),
        (Found::Absent, Found::Absent) => {
            let store = found.store.as_ref();
            return Action::Issue {
                reasons: vec![store.map_or_else(|| "absent".to_owned(), FoundStore::absence)],
            };
        }
        (Found::Empty, Found::Empty) => {
            return Action::Issue {
                reasons: vec!["empty file".to_owned()],
            };
        }
        (chain, key) => {
            let problems = [chain.problem("certificate"), key.problem("key")];
            return Action::Issue {
                reasons: problems.into_iter().flatten().collect(),
            };
        }
    };
    let Some(trust) = trust else {
        return Action::Issue {
            reasons: vec!["its authority is not on this node yet".to_owned()],
        };
    };
    let (differences, mut notes) = differences(spec, found, chain, key.public_key(), trust, now);
    let mut reasons: Vec<String> = differences.iter().map(ToString::to_string).collect();
    reasons.extend(found.revoked.clone());
    if !reasons.is_empty() {
        return Action::Issue { reasons };
    }
    if let Some(note) = beyond_authority(chain, trust) {
        notes.push(note);
    }
    let reasons = form_differences(spec, found, trust);
    match reasons.is_empty() {
        true => Action::Keep { notes },
        false => Action::Rewrite { reasons },
    }
}

/// True when a chain belongs to its key and verifies now, whatever is in it.
pub fn still_serves(
    chain: &Chain,
    key: &PublicKey,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> bool {
    chain.leaf().public_key() == key && crate::x509::verifies(chain, trust, now)
}

/// What makes [`assess`] want a new certificate in the place of one that is whole, apart from its revocation.
pub fn faults(
    spec: &CertSpec,
    found: &FoundCert,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Vec<Difference> {
    match (&found.chain, &found.key) {
        (Found::Present(chain), Found::Present(key)) => {
            differences(spec, found, chain, key.public_key(), trust, now).0
        }
        _ => Vec::new(),
    }
}

/// Splits what differs into reasons for a new certificate and notes about one that still serves.
fn differences(
    spec: &CertSpec,
    found_cert: &FoundCert,
    chain: &Chain,
    key: &PublicKey,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> (Vec<Difference>, Vec<String>) {
    let mut found = satisfies(chain, &spec.profile, spec.tolerance, key, trust, now);
    let mut notes = Vec::new();
    for subject in &spec.other_subjects {
        if found.is_empty() {
            break;
        }
        let mut profile = spec.profile.clone();
        profile.subject = subject.clone();
        let other = satisfies(chain, &profile, spec.tolerance, key, trust, now);
        if other.len() < found.len() {
            notes.push(format!(
                "subject is {subject}, of another kubeadm version; kept, since the cluster may rely on it"
            ));
            found = other;
            break;
        }
    }
    let mut reasons = Vec::new();
    for difference in found {
        match difference {
            Difference::NotUnderFirst { .. } if !spec.under_first => {
                notes.push(difference.to_string());
            }
            Difference::KeyAlgorithm { .. } if found_cert.has_key_of_kubelet(key) => {
                notes.push(format!(
                    "{difference}; kept, since the kubelet made the key when it requested the certificate"
                ));
            }
            difference => reasons.push(difference),
        }
    }
    (reasons, notes)
}

/// Says so when a chain is valid for longer than its authority.
pub fn beyond_authority(chain: &Chain, trust: &TrustBundle) -> Option<String> {
    let end = trust
        .certificates()
        .iter()
        .map(|authority| authority.not_after())
        .max()?;
    (chain.leaf().not_after() > end).then(|| {
        format!(
            "it outlives its authority, which ends at {}; it is useless after that",
            rfc3339(end)
        )
    })
}

fn form_differences(spec: &CertSpec, found: &FoundCert, trust: &TrustBundle) -> Vec<String> {
    let mut reasons = Vec::new();
    reasons.extend(found.store.iter().flat_map(|store| store.faults.clone()));
    // The kubelet rewrites its own files; their form is its business.
    let by_file = found
        .kubeconfig
        .as_ref()
        .is_some_and(|kubeconfig| kubeconfig.by_file);
    if !found.key_form_is_ours && !by_file {
        reasons.push("the key is PKCS#8; kubeadm writes PKCS#1 or SEC1".to_owned());
    }
    if let Some(mode) = found.exposed {
        reasons.push(format!("everybody can read the key (mode {mode:04o})"));
    }
    if let (Output::Kubeconfig { server, .. }, Some(kubeconfig)) = (&spec.output, &found.kubeconfig)
    {
        if kubeconfig.server.as_deref() != Some(server) {
            let old = kubeconfig.server.as_deref().unwrap_or("missing");
            reasons.push(format!("server is {old}, wanted {server}"));
        }
        let trusted = kubeconfig
            .authority
            .as_deref()
            .and_then(|pem| TrustBundle::from_pem(pem).ok());
        if trusted.as_ref().map(TrustBundle::first) != Some(trust.first()) {
            let old = trusted.map_or_else(|| "missing".to_owned(), |bundle| bundle.to_string());
            reasons.push(format!("its CA is {old}, wanted {trust}"));
        }
    }
    reasons
}

/// Decides whether an authority's bundle may be relied on: a person must replace an expired or damaged one.
pub fn assess_bundle(
    spec: &BundleSpec,
    found: &Found<TrustBundle>,
    pins: &[[u8; 32]],
    now: OffsetDateTime,
) -> Result<(), String> {
    let path = &spec.path;
    let bundle = match found {
        Found::Absent | Found::Empty => return Ok(()),
        Found::Unreadable(why) => {
            return Err(format!(
                "{path} cannot serve as the trust bundle of {}: {why}; put the CA certificate there and run again",
                spec.authority
            ));
        }
        Found::Present(bundle) => bundle,
    };
    bundle.require_pins(pins).map_err(|error| {
        format!(
            "{path} does not fit the pins of authority {}: {error}; correct authorities.{}.trust.sha256 or the file",
            spec.authority, spec.authority
        )
    })?;
    let first = bundle.first();
    if now > first.not_after() {
        return Err(format!(
            "the CA certificate in {path} ({}) expired at {}: every certificate, kubeconfig and kubelet under it is refused by its peers; replace the CA first, new leaves would not help",
            first.subject(),
            rfc3339(first.not_after())
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;

//! Reads a policy from the `pki` block of the settings, or from a `PKI` document of `config.openshift.io`.
//!
//! A policy has one of four forms: that of the enhancement (`defaults`, `categories`, `overrides`), that of the installer's
//! `install-config.yaml` (`signerCertificates` and the like in place of `categories`), or one of the API's two forms of
//! `certificateManagement.custom`.
//!
//! To each certificate nodepki adds `lifetime`, in all forms.
//!
//! To map one more OpenShift name, add a row to `OPENSHIFT_NAMES`.

use std::collections::BTreeSet;
use std::time::Duration;

use super::KeyOwner::{Authority as Ca, Leaf};
use super::{Category, Choice, ChosenValue, KeyOwner, KeyRules};
use crate::kube::names::{Authority, CertName, RegisteredName};
use crate::x509::KeyAlgorithm;
use crate::yaml::schema::duration;
use crate::yaml::{FaultSeverity, Faults, Field, Map, Node, Walk, did_you_mean, format_duration};

/// OpenShift's well-known names and their counterparts in a kubeadm cluster; an empty list means none.
///
/// Several signers of OpenShift correspond to one of kubeadm, so several names may mean the same key; the first one counts. `kubelet-client` is OpenShift's bootstrap identity, for which a kubeadm cluster uses a token.
#[rustfmt::skip]
pub(super) const OPENSHIFT_NAMES: &[(&str, &[KeyOwner])] = &[
    ("admin-kubeconfig-signer",               &[Ca(Authority::Ca)]),
    ("kubelet-bootstrap-kubeconfig-signer",   &[Ca(Authority::Ca)]),
    ("kube-apiserver-localhost-signer",       &[Ca(Authority::Ca)]),
    ("kube-apiserver-service-network-signer", &[Ca(Authority::Ca)]),
    ("kube-apiserver-lb-signer",              &[Ca(Authority::Ca)]),
    ("kube-apiserver-to-kubelet-signer",      &[Ca(Authority::Ca)]),
    ("kube-control-plane-signer",             &[Ca(Authority::Ca)]),
    ("kubelet-signer",                        &[Ca(Authority::Ca)]),
    ("csr-signer-ca",                         &[Ca(Authority::Ca)]),
    ("aggregator-signer",                     &[Ca(Authority::FrontProxyCa)]),
    ("aggregator-ca",                         &[Ca(Authority::FrontProxyCa)]),
    ("etcd-signer",                           &[Ca(Authority::EtcdCa)]),
    ("etcd-metrics-signer",                   &[]),
    ("service-ca",                            &[]),
    ("root-ca",                               &[]),
    ("kube-apiserver-localhost-server",       &[Leaf(CertName::Apiserver)]),
    ("kube-apiserver-service-network-server", &[Leaf(CertName::Apiserver)]),
    ("kube-apiserver-lb-server",              &[Leaf(CertName::Apiserver)]),
    ("kube-apiserver-internal-lb-server",     &[Leaf(CertName::Apiserver)]),
    ("machine-config-server",                 &[]),
    ("ironic-server",                         &[]),
    ("etcd-peer-server",                      &[Leaf(CertName::EtcdPeer)]),
    ("etcd-metrics-server",                   &[]),
    ("admin-kubeconfig-client",               &[Leaf(CertName::AdminConf), Leaf(CertName::SuperAdminConf)]),
    ("kubelet-client",                        &[]),
    ("kube-apiserver-to-kubelet-client",      &[Leaf(CertName::ApiserverKubeletClient)]),
    ("kube-control-plane-kube-controller-manager-client", &[Leaf(CertName::ControllerManagerConf)]),
    ("kube-control-plane-kube-scheduler-client", &[Leaf(CertName::SchedulerConf)]),
    ("aggregator-client",                     &[Leaf(CertName::FrontProxyClient)]),
    ("apiserver-proxy-client",                &[Leaf(CertName::FrontProxyClient)]),
    ("journal-gatewayd-client",               &[]),
];

/// Which names of registered certificates an override may have.
#[derive(Clone, Copy)]
enum RegisteredNames {
    /// Those of the same settings.
    Declared,
    /// Any that is not similar to a known name: the policy of a cluster may name certificates of other nodes.
    Any,
}

/// Name of the only object of OpenShift's resource `PKI`.
pub(crate) const SINGLETON: &str = "cluster";

/// Keys for the categories in the installer's form and in `certificateManagement.custom`.
const CATEGORY_KEYS: [(&str, Category); 3] = [
    ("signerCertificates", Category::Signer),
    ("servingCertificates", Category::Serving),
    ("clientCertificates", Category::Client),
];

impl KeyRules {
    /// Reads the `pki` block of the settings. Its faults are added to `faults` and to the walk of the field.
    pub fn read(field: &Field<'_>, faults: &mut Faults) -> KeyRules {
        let mut rules = KeyRules::default();
        if let Some(map) = field.map() {
            rules.read_spec(&map, RegisteredNames::Declared, faults);
        }
        rules
    }

    /// Reads a `PKI` document of `config.openshift.io/v1` or `v1alpha1`.
    pub(crate) fn from_document(document: &Node) -> Result<(KeyRules, Faults), Faults> {
        let mut faults = Faults::default();
        document.duplicates(FaultSeverity::Error, &mut faults);
        let walk = Walk::new(true);
        let mut rules = KeyRules::default();
        if let Some(map) = Field::root(&walk, document).map() {
            map.ignore(&["kind", "status"]);
            if let Some(metadata) = map.get("metadata")
                && let Some(name) = metadata.map().and_then(|metadata| metadata.get("name"))
                && let Some(text) = name.string()
                && text != SINGLETON
            {
                name.error(
                    format!(
                        "{text:?} is not the cluster's policy: the PKI resource is a singleton"
                    ),
                    "use the name cluster, or remove the document",
                );
            }
            if let Some(field) = map.get("apiVersion")
                && let Some(version) = field.string()
                && !matches!(
                    version.as_str(),
                    "config.openshift.io/v1" | "config.openshift.io/v1alpha1"
                )
            {
                field.error(
                    format!("{version:?} is not a known version of the PKI resource"),
                    "use config.openshift.io/v1 or config.openshift.io/v1alpha1",
                );
            }
            match map.get("spec") {
                Some(spec) => {
                    if let Some(spec) = spec.map() {
                        rules.read_spec(&spec, RegisteredNames::Any, &mut faults);
                    }
                }
                None => map
                    .field()
                    .error("has no spec", "add spec:, which may be {}"),
            }
            map.finish();
        }
        faults.extend(walk.into_faults());
        faults.outcome(rules)
    }

    /// Reads the enhancement's three lists, the installer's keys, or the API's `certificateManagement`.
    fn read_spec(&mut self, map: &Map<'_>, registered: RegisteredNames, faults: &mut Faults) {
        if let Some(management) = map.get("certificateManagement") {
            let flat = CATEGORY_KEYS.map(|(key, _)| key);
            for key in ["defaults", "categories", "overrides"].iter().chain(&flat) {
                if let Some(other) = map.get(key) {
                    other.error(
                        "is given together with certificateManagement, which is another form of the same policy",
                        "move it below certificateManagement.custom",
                    );
                }
            }
            if let Some(management) = management.map() {
                self.read_management(&management, faults);
            }
        } else {
            self.defaults = map.get("defaults").and_then(|field| read_choice(&field));
            self.read_category_keys(map, faults);
            for item in items(map, "categories") {
                let choice = read_required_choice(&item);
                match item.get("category") {
                    Some(category) => self.add_category(&category, choice, faults),
                    None => item.field().error("has no category", CATEGORY_FIX),
                }
                item.finish();
            }
            let mut mapped = BTreeSet::new();
            for item in items(map, "overrides") {
                self.read_override(&item, registered, &mut mapped, faults);
                item.finish();
            }
        }
        if let Some(chosen) = self.key(KeyOwner::ServiceAccount)
            && chosen.value.is_ml_dsa()
        {
            faults.push(chosen.spot.error(
                format!(
                    "sa would have a key of {}, with which kube-apiserver cannot sign tokens",
                    chosen.value
                ),
                "add an override with certificateName sa and an ECDSA or RSA key",
            ));
        }
        map.finish();
    }

    fn read_management(&mut self, map: &Map<'_>, faults: &mut Faults) {
        const MODES: &str = "use Unmanaged, Default or Custom";
        let mode = map
            .get("mode")
            .and_then(|field| Some((field.string()?, field)));
        let custom = map.get("custom");
        match (
            mode.as_ref().map(|(mode, field)| (mode.as_str(), field)),
            custom,
        ) {
            (Some(("Custom", _)), Some(custom)) => {
                if let Some(custom) = custom.map() {
                    self.read_custom(&custom, faults);
                    custom.finish();
                }
            }
            (Some(("Custom", field)), None) => {
                field.error("mode Custom needs custom", "add custom with its defaults");
            }
            (Some(("Unmanaged" | "Default", _)), Some(custom)) => {
                custom.error(
                    "custom is forbidden unless mode is Custom",
                    "set mode: Custom, or remove custom",
                );
            }
            // Both mean kubeadm's own choice.
            (Some(("Unmanaged" | "Default", _)), None) => {}
            (Some((other, field)), _) => field.error(format!("{other:?} is not a mode"), MODES),
            (None, _) => map.field().error("has no mode", MODES),
        }
        map.finish();
    }

    fn read_custom(&mut self, map: &Map<'_>, faults: &mut Faults) {
        match map.get("defaults") {
            Some(field) => self.defaults = read_choice(&field),
            None => map.field().error(
                "has no defaults, which mode Custom requires",
                "add defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}",
            ),
        }
        self.read_category_keys(map, faults);
        for item in items(map, "overrides") {
            match item.get("type") {
                Some(kind) => {
                    if let Some(text) = kind.string()
                        && text != "Category"
                    {
                        kind.error(
                            format!("{text:?} is not a type of override"),
                            "use Category",
                        );
                    }
                }
                None => item.field().error("has no type", "add type: Category"),
            }
            let choice = read_required_choice(&item);
            match item.get("category") {
                Some(category) => {
                    if let Some(category) = category.map() {
                        match category.get("name") {
                            Some(name) => self.add_category(&name, choice, faults),
                            None => category.field().error("has no name", CATEGORY_FIX),
                        }
                        category.finish();
                    }
                }
                None => item.field().error("has no category", CATEGORY_FIX),
            }
            item.finish();
        }
    }

    fn read_category_keys(&mut self, map: &Map<'_>, faults: &mut Faults) {
        for (key, category) in CATEGORY_KEYS {
            if let Some(field) = map.get(key)
                && let Some(choice) = read_choice(&field)
            {
                if category == Category::Signer {
                    choice.forbid_lifetime(faults);
                }
                self.categories.insert(category, choice);
            }
        }
    }

    fn add_category(&mut self, field: &Field<'_>, choice: Option<Choice>, faults: &mut Faults) {
        let Some(text) = field.string() else { return };
        let Some(category) = Category::parse(&text) else {
            field.error(
                format!("{text:?} is not a category of certificates"),
                CATEGORY_FIX,
            );
            return;
        };
        let Some(choice) = choice else { return };
        if category == Category::Signer {
            choice.forbid_lifetime(faults);
        }
        if let Some(earlier) = self.categories.get(&category) {
            let message = format!(
                "category {text} is given twice, first in line {}",
                earlier.line()
            );
            faults.push(field.spot().error(message, "keep one of them"));
            return;
        }
        self.categories.insert(category, choice);
    }

    /// `mapped` are the owners whose choice so far comes from a name of OpenShift's.
    fn read_override(
        &mut self,
        item: &Map<'_>,
        registered: RegisteredNames,
        mapped: &mut BTreeSet<KeyOwner>,
        faults: &mut Faults,
    ) {
        let choice = read_required_choice(item);
        let Some(field) = item.get("certificateName") else {
            item.field().error(
                "has no certificateName",
                "add certificateName: NAME, as in etcd-server",
            );
            return;
        };
        let Some(name) = field.string() else { return };
        let openshift = OPENSHIFT_NAMES.iter().find(|(known, _)| *known == name);
        let names = || {
            let mut names: Vec<String> = KeyOwner::named().map(|owner| owner.to_string()).collect();
            names.extend(field.walk().all_declared());
            names
        };
        let suggestion = || {
            let names = names();
            let known = names.iter().map(String::as_str);
            let openshift = OPENSHIFT_NAMES.iter().map(|(name, _)| *name);
            did_you_mean(&name, known.chain(openshift))
        };
        let registered = || {
            let is_registered = match registered {
                RegisteredNames::Declared => field.walk().declared(&name).is_some(),
                RegisteredNames::Any => openshift.is_none() && suggestion().is_none(),
            };
            let registered: RegisteredName = name.parse().ok().filter(|_| is_registered)?;
            Some(Leaf(CertName::Registered(registered)))
        };
        let owners = match (KeyOwner::parse(&name).or_else(registered), openshift) {
            (Some(owner), _) => vec![owner],
            (None, Some((_, []))) => {
                field.warning(
                    format!("{name} has no counterpart in a kubeadm cluster and is ignored"),
                    "remove the entry if the file is for kubeadm clusters only",
                );
                return;
            }
            (None, Some((_, owners))) => owners.to_vec(),
            (None, None) => {
                field.error(
                    format!("{name:?} is not a name of a certificate, an authority or sa"),
                    match suggestion() {
                        Some(suggestion) => format!("did you mean {suggestion}?"),
                        None => format!(
                            "use one of {}, or a well-known name of OpenShift",
                            names().join(", ")
                        ),
                    },
                );
                return;
            }
        };
        // Only here, since all faults of an entry are reported together.
        let Some(choice) = choice else { return };
        let is_mapped = KeyOwner::parse(&name).is_none() && openshift.is_some();
        for owner in owners {
            if let Some(earlier) = self.overrides.get(&owner) {
                let was_mapped = mapped.contains(&owner);
                if let Some((first, second)) = earlier.conflict(&choice) {
                    let message = format!(
                        "{name} requests {second} for {owner}, but line {} requests {first}",
                        earlier.line()
                    );
                    const FIX: &str =
                        "make both the same, as a kubeadm cluster has one key for both";
                    if is_mapped || was_mapped {
                        // A name of kubeadm's counts, or else the first one of OpenShift's.
                        let counts = if is_mapped { first } else { second };
                        field.warning(format!("{message}; {counts} counts"), FIX);
                    } else {
                        faults.push(field.spot().error(message, FIX));
                    }
                }
                if is_mapped || !was_mapped {
                    continue;
                }
            }
            if !matches!(owner, Leaf(_)) {
                choice.forbid_lifetime(faults);
            }
            if is_mapped {
                mapped.insert(owner);
            } else {
                mapped.remove(&owner);
            }
            self.overrides.insert(owner, choice.clone());
        }
    }
}

impl Choice {
    /// nodepki creates no CA certificate, and the pair `sa` has none.
    fn forbid_lifetime(&self, faults: &mut Faults) {
        if let Some(lifetime) = &self.lifetime {
            faults.push(lifetime.spot.error(
                "is for leaf certificates only: the owner of a CA decides on the lifetime of its certificate, and the pair sa has no certificate",
                "remove it",
            ));
        }
    }

    /// Returns the line of the key, or else of the lifetime.
    fn line(&self) -> usize {
        let key = self.key.as_ref().map(|key| &key.spot);
        let lifetime = self.lifetime.as_ref().map(|lifetime| &lifetime.spot);
        key.or(lifetime).map_or(0, |spot| spot.place.line)
    }

    /// Returns the first value that differs from that of a later choice for the same owner, in words, and the later one.
    fn conflict(&self, later: &Choice) -> Option<(String, String)> {
        let key = |choice: &Choice| {
            let key = choice.key.as_ref();
            key.map_or_else(|| "no key".to_owned(), |key| key.value.to_string())
        };
        let lifetime = |choice: &Choice| {
            let lifetime = choice.lifetime.as_ref();
            lifetime.map_or_else(
                || "no lifetime".to_owned(),
                |lifetime| format_duration(lifetime.value),
            )
        };
        [(key(self), key(later)), (lifetime(self), lifetime(later))]
            .into_iter()
            .find(|(earlier, later)| earlier != later)
    }
}

const CATEGORY_FIX: &str = "use SignerCertificate, ServingCertificate or ClientCertificate";

fn items<'a>(map: &Map<'a>, key: &str) -> Vec<Map<'a>> {
    map.get(key)
        .and_then(|field| field.list())
        .unwrap_or_default()
        .iter()
        .filter_map(Field::map)
        .collect()
}

fn read_required_choice(item: &Map<'_>) -> Option<Choice> {
    match item.get("certificate") {
        Some(field) => read_choice(&field),
        None => {
            item.field().error(
                "has no certificate",
                "add certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}",
            );
            None
        }
    }
}

/// Reads `{key: {algorithm, rsa | ecdsa}, lifetime}`, of which one may be missing.
fn read_choice(field: &Field<'_>) -> Option<Choice> {
    let map = field.map()?;
    let key = map.get("key");
    let lifetime = map.get("lifetime");
    map.finish();
    if key.is_none() && lifetime.is_none() {
        field.error(
            "has no key",
            "add key: {algorithm: RSA, rsa: {keySize: 2048}}",
        );
        return None;
    }
    let key = match key {
        Some(key) => Some(ChosenValue {
            value: read_algorithm(&key)?,
            spot: key.spot(),
        }),
        None => None,
    };
    let lifetime = match lifetime {
        Some(lifetime) => Some(read_lifetime(lifetime)?),
        None => None,
    };
    Some(Choice { key, lifetime })
}

/// Like kubeadm's validity periods, a lifetime is positive.
fn read_lifetime(field: Field<'_>) -> Option<ChosenValue<Duration>> {
    let (field, lifetime) = duration(Some(field))?;
    if lifetime.is_zero() {
        field.error("must be longer than zero", "use a period such as 720h");
        return None;
    }
    Some(ChosenValue {
        value: lifetime,
        spot: field.spot(),
    })
}

/// Reads `{algorithm, rsa | ecdsa | mldsa}`.
fn read_algorithm(key: &Field<'_>) -> Option<KeyAlgorithm> {
    let map = key.map()?;
    let algorithm = map.get("algorithm");
    let [rsa, ecdsa, mldsa] = ["rsa", "ecdsa", "mldsa"].map(|block| map.get(block));
    map.finish();
    let Some(algorithm) = algorithm else {
        key.error(
            "has no algorithm",
            "add algorithm: RSA, algorithm: ECDSA or algorithm: MLDSA",
        );
        return None;
    };
    let mut blocks = [("rsa", rsa), ("ecdsa", ecdsa), ("mldsa", mldsa)];
    // Takes the block of the chosen algorithm, and refuses the others.
    let mut block_of = |name: &str, example: &str| {
        let mut found = None;
        for (block, field) in &mut blocks {
            match field.take() {
                Some(field) if block.to_uppercase() == name => found = Some(field),
                Some(field) => field.error(
                    format!("{block} is forbidden when algorithm is {name}"),
                    format!("remove it, or change algorithm to {}", block.to_uppercase()),
                ),
                None => {}
            }
        }
        if found.is_none() {
            let block = name.to_lowercase();
            key.error(
                format!("{block} is required when algorithm is {name}"),
                format!("add {block}: {example}"),
            );
        }
        found
    };
    match algorithm.string()?.as_str() {
        "RSA" => read_rsa_size(&block_of("RSA", "{keySize: 2048}")?),
        "ECDSA" => read_curve(&block_of("ECDSA", "{curve: P256}")?),
        "MLDSA" => read_parameter_set(&block_of("MLDSA", "{parameterSet: ML-DSA-65}")?),
        other => {
            algorithm.error(
                format!("{other:?} is not a key algorithm"),
                "use RSA, ECDSA or MLDSA",
            );
            None
        }
    }
}

/// Reads a parameter set by its name in FIPS 204.
fn read_parameter_set(mldsa: &Field<'_>) -> Option<KeyAlgorithm> {
    let map = mldsa.map()?;
    let field = map.get("parameterSet");
    map.finish();
    let Some(field) = field else {
        mldsa.error(
            "has no parameterSet",
            "add parameterSet: ML-DSA-44, ML-DSA-65 or ML-DSA-87",
        );
        return None;
    };
    let name = field.string()?;
    let found = name
        .parse()
        .ok()
        .filter(|key: &KeyAlgorithm| key.is_ml_dsa());
    if found.is_none() {
        field.error(
            format!("{name:?} is not a parameter set of ML-DSA"),
            "use ML-DSA-44, ML-DSA-65 or ML-DSA-87",
        );
    }
    found
}

fn read_rsa_size(rsa: &Field<'_>) -> Option<KeyAlgorithm> {
    let map = rsa.map()?;
    let field = map.get("keySize");
    map.finish();
    let Some(field) = field else {
        rsa.error("has no keySize", "add keySize: 2048, 3072 or 4096");
        return None;
    };
    match field.integer()? {
        2048 => Some(KeyAlgorithm::Rsa2048),
        3072 => Some(KeyAlgorithm::Rsa3072),
        4096 => Some(KeyAlgorithm::Rsa4096),
        size @ (5120 | 6144 | 7168 | 8192) => {
            field.error(
                format!("RSA keys of {size} bits are not supported: each handshake would cost many times that of 4096 bits, and kubeadm has no name for them"),
                "use 2048, 3072 or 4096",
            );
            None
        }
        size => {
            field.error(
                format!("{size} is not an RSA key size"),
                "use 2048, 3072 or 4096",
            );
            None
        }
    }
}

fn read_curve(ecdsa: &Field<'_>) -> Option<KeyAlgorithm> {
    let map = ecdsa.map()?;
    let field = map.get("curve");
    map.finish();
    let Some(field) = field else {
        ecdsa.error("has no curve", "add curve: P256, P384 or P521");
        return None;
    };
    match field.string()?.as_str() {
        "P256" => Some(KeyAlgorithm::EcdsaP256),
        "P384" => Some(KeyAlgorithm::EcdsaP384),
        "P521" => Some(KeyAlgorithm::EcdsaP521),
        other => {
            field.error(
                format!("{other:?} is not a curve"),
                "use P256, P384 or P521",
            );
            None
        }
    }
}

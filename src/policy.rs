//! Key parameters: which kind of key each certificate, authority and the service-account pair gets.
//!
//! The shape and the precedence are those of OpenShift's PKI policy: an override for one name wins over the
//! category, the category over the defaults, the defaults over kubeadm's `encryptionAlgorithm`. Read are the `pki`
//! block of the settings and `PKI` documents of `config.openshift.io` in the three shapes that exist: the
//! enhancement's (`defaults`, `categories`, `overrides`), and the API's two `certificateManagement.custom` forms.
//! Pure; it decides nothing but the key.
//!
//! To map one more OpenShift name, add a row to `OPENSHIFT_NAMES`.

use std::collections::BTreeMap;
use std::fmt;

use self::KeyOwner::{Authority as Ca, Leaf};
use crate::kubeadm::Version;
use crate::names::{Authority, CertName};
use crate::x509::KeyAlgorithm;
use crate::yaml::{Faults, Field, Map, Node, Severity, Spot, Walk, did_you_mean};

/// OpenShift's groups of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Category {
    /// Authorities.
    Signer,
    /// What a server shows; certificates for both usages count here.
    Serving,
    /// What a client shows.
    Client,
}

impl Category {
    /// The category of a leaf certificate.
    pub const fn of(name: CertName) -> Category {
        match name {
            CertName::Apiserver
            | CertName::EtcdServer
            | CertName::EtcdPeer
            | CertName::KubeletServing => Category::Serving,
            _ => Category::Client,
        }
    }

    fn parse(text: &str) -> Option<Category> {
        match text.strip_suffix("Certificate").unwrap_or(text) {
            "Signer" => Some(Category::Signer),
            "Serving" => Some(Category::Serving),
            "Client" => Some(Category::Client),
            _ => None,
        }
    }
}

/// Something that has a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOwner {
    /// An authority.
    Authority(Authority),
    /// A leaf certificate.
    Leaf(CertName),
    /// The pair that signs service-account tokens; it has no certificate and so no category.
    ServiceAccount,
}

impl KeyOwner {
    /// All of them, authorities first.
    pub fn all() -> impl Iterator<Item = KeyOwner> {
        Authority::ALL
            .into_iter()
            .map(KeyOwner::Authority)
            .chain(CertName::ALL.into_iter().map(Leaf))
            .chain([KeyOwner::ServiceAccount])
    }

    fn category(self) -> Option<Category> {
        match self {
            KeyOwner::Authority(_) => Some(Category::Signer),
            Leaf(name) => Some(Category::of(name)),
            KeyOwner::ServiceAccount => None,
        }
    }

    fn parse(text: &str) -> Option<KeyOwner> {
        KeyOwner::all().find(|owner| owner.to_string() == text)
    }
}

impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyOwner::Authority(authority) => authority.fmt(f),
            Leaf(name) => name.fmt(f),
            KeyOwner::ServiceAccount => f.pad("sa"),
        }
    }
}

/// OpenShift's well-known names and what they are in a kubeadm cluster; an empty list means there is nothing like it.
///
/// OpenShift has many signers where kubeadm has one, so several names may mean the same key; they must then agree.
/// `kubelet-client` is OpenShift's bootstrap identity, which a kubeadm cluster covers with a token.
#[rustfmt::skip]
const OPENSHIFT_NAMES: &[(&str, &[KeyOwner])] = &[
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

/// A key algorithm and where it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    key: KeyAlgorithm,
    spot: Spot,
}

/// The choices of one policy text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    defaults: Option<Choice>,
    categories: BTreeMap<Category, Choice>,
    overrides: BTreeMap<KeyOwner, Choice>,
}

impl Rules {
    /// True when nothing is chosen, as in a policy of mode `Unmanaged`.
    pub fn is_empty(&self) -> bool {
        self.defaults.is_none() && self.categories.is_empty() && self.overrides.is_empty()
    }

    /// Reads the `pki` block of the settings; faults go to the walk it belongs to.
    pub fn read(field: &Field<'_>, faults: &mut Faults) -> Rules {
        let mut rules = Rules::default();
        if let Some(map) = field.map() {
            rules.read_spec(&map, faults);
        }
        rules
    }

    /// Reads a `PKI` document of `config.openshift.io/v1` or `v1alpha1`.
    ///
    /// # Errors
    /// All faults of the document.
    pub fn from_document(document: &Node) -> Result<(Rules, Faults), Faults> {
        let mut faults = Faults::default();
        document.duplicates(Severity::Error, &mut faults);
        let walk = Walk::new(true);
        let mut rules = Rules::default();
        if let Some(map) = Field::root(&walk, document).map() {
            map.ignore(&["kind", "metadata", "status"]);
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
                        rules.read_spec(&spec, &mut faults);
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

    /// Either the enhancement's three lists or the API's `certificateManagement`.
    fn read_spec(&mut self, map: &Map<'_>, faults: &mut Faults) {
        if let Some(management) = map.get("certificateManagement") {
            for key in ["defaults", "categories", "overrides"] {
                if let Some(other) = map.get(key) {
                    other.error(
                        "stands beside certificateManagement, which is another shape of the same policy",
                        "move it below certificateManagement.custom",
                    );
                }
            }
            if let Some(management) = management.map() {
                self.read_management(&management, faults);
            }
        } else {
            self.defaults = map.get("defaults").and_then(|field| certificate(&field));
            for item in items(map, "categories") {
                let choice = required_certificate(&item);
                match item.get("category") {
                    Some(category) => self.add_category(&category, choice, faults),
                    None => item.field().error("has no category", CATEGORY_FIX),
                }
                item.finish();
            }
            for item in items(map, "overrides") {
                self.read_override(&item, faults);
                item.finish();
            }
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
                field.error(
                    "mode Custom needs custom",
                    "add custom with its defaults beside it",
                );
            }
            (Some(("Unmanaged" | "Default", _)), Some(custom)) => {
                custom.error(
                    "custom is forbidden unless mode is Custom",
                    "set mode: Custom, or remove custom",
                );
            }
            // kubeadm's own choice is what both mean here.
            (Some(("Unmanaged" | "Default", _)), None) => {}
            (Some((other, field)), _) => field.error(format!("{other:?} is not a mode"), MODES),
            (None, _) => map.field().error("has no mode", MODES),
        }
        map.finish();
    }

    fn read_custom(&mut self, map: &Map<'_>, faults: &mut Faults) {
        match map.get("defaults") {
            Some(field) => self.defaults = certificate(&field),
            None => map.field().error(
                "has no defaults, which mode Custom requires",
                "add defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}",
            ),
        }
        for (key, category) in [
            ("signerCertificates", Category::Signer),
            ("servingCertificates", Category::Serving),
            ("clientCertificates", Category::Client),
        ] {
            if let Some(field) = map.get(key)
                && let Some(choice) = certificate(&field)
            {
                self.categories.insert(category, choice);
            }
        }
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
            let choice = required_certificate(&item);
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
        if let Some(earlier) = self.categories.get(&category) {
            let message = format!(
                "category {text} is given twice, first in line {}",
                earlier.spot.place.line
            );
            faults.push(field.spot().error(message, "keep one of them"));
            return;
        }
        self.categories.insert(category, choice);
    }

    fn read_override(&mut self, item: &Map<'_>, faults: &mut Faults) {
        let choice = required_certificate(item);
        let Some(field) = item.get("certificateName") else {
            item.field().error(
                "has no certificateName",
                "add certificateName: NAME, as in etcd-server",
            );
            return;
        };
        let Some(name) = field.string() else { return };
        let openshift = OPENSHIFT_NAMES.iter().find(|(known, _)| *known == name);
        let owners = match (KeyOwner::parse(&name), openshift) {
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
                let names: Vec<String> = KeyOwner::all().map(|owner| owner.to_string()).collect();
                let known = names.iter().map(String::as_str);
                let near = did_you_mean(
                    &name,
                    known.chain(OPENSHIFT_NAMES.iter().map(|(name, _)| *name)),
                );
                field.error(
                    format!("{name:?} is not a name of a certificate, an authority or sa"),
                    match near {
                        Some(near) => format!("did you mean {near}?"),
                        None => format!(
                            "use one of {}, or a well-known name of OpenShift",
                            names.join(", ")
                        ),
                    },
                );
                return;
            }
        };
        let Some(choice) = choice else { return };
        for owner in owners {
            match self.overrides.get(&owner) {
                Some(earlier) if earlier.key != choice.key => {
                    let message = format!(
                        "{name} asks for {} for {owner}, line {} asks for {}",
                        choice.key, earlier.spot.place.line, earlier.key
                    );
                    faults.push(field.spot().error(
                        message,
                        "a kubeadm cluster has one key for both: make them agree",
                    ));
                }
                Some(_) => {}
                None => {
                    self.overrides.insert(owner, choice.clone());
                }
            }
        }
    }

    fn choice(&self, owner: KeyOwner) -> Option<&Choice> {
        self.overrides
            .get(&owner)
            .or_else(|| {
                owner
                    .category()
                    .and_then(|category| self.categories.get(&category))
            })
            .or(self.defaults.as_ref())
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

fn required_certificate(item: &Map<'_>) -> Option<Choice> {
    match item.get("certificate") {
        Some(field) => certificate(&field),
        None => {
            item.field().error(
                "has no certificate",
                "add certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}",
            );
            None
        }
    }
}

/// `{key: {algorithm, rsa | ecdsa}}`.
fn certificate(field: &Field<'_>) -> Option<Choice> {
    let map = field.map()?;
    let key = map.get("key");
    map.finish();
    let Some(key) = key else {
        field.error(
            "has no key",
            "add key: {algorithm: RSA, rsa: {keySize: 2048}}",
        );
        return None;
    };
    let spot = key.spot();
    let map = key.map()?;
    let algorithm = map.get("algorithm");
    let rsa = map.get("rsa");
    let ecdsa = map.get("ecdsa");
    map.finish();
    let Some(algorithm) = algorithm else {
        key.error("has no algorithm", "add algorithm: RSA or algorithm: ECDSA");
        return None;
    };
    let forbid = |field: Option<Field<'_>>, block: &str, name: &str| {
        if let Some(field) = field {
            field.error(
                format!("{block} is forbidden when algorithm is {name}"),
                format!("remove it, or change algorithm to {}", block.to_uppercase()),
            );
        }
    };
    let key = match algorithm.string()?.as_str() {
        "RSA" => {
            forbid(ecdsa, "ecdsa", "RSA");
            match rsa {
                Some(rsa) => rsa_size(&rsa),
                None => {
                    key.error(
                        "rsa is required when algorithm is RSA",
                        "add rsa: {keySize: 2048}",
                    );
                    None
                }
            }
        }
        "ECDSA" => {
            forbid(rsa, "rsa", "ECDSA");
            match ecdsa {
                Some(ecdsa) => curve(&ecdsa),
                None => {
                    key.error(
                        "ecdsa is required when algorithm is ECDSA",
                        "add ecdsa: {curve: P256}",
                    );
                    None
                }
            }
        }
        other => {
            algorithm.error(
                format!("{other:?} is not a key algorithm"),
                "use RSA or ECDSA",
            );
            None
        }
    };
    key.map(|key| Choice { key, spot })
}

fn rsa_size(rsa: &Field<'_>) -> Option<KeyAlgorithm> {
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
                format!("RSA keys of {size} bits are not made: each handshake would cost many times that of 4096 bits, and kubeadm has no name for them"),
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

fn curve(ecdsa: &Field<'_>) -> Option<KeyAlgorithm> {
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

/// The answer to which key is made for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Rules,
    kubeadm: KeyAlgorithm,
}

impl Policy {
    /// The rules over kubeadm's own algorithm.
    pub fn new(rules: Rules, kubeadm: KeyAlgorithm) -> Self {
        Policy { rules, kubeadm }
    }

    /// Joins the settings' rules and the `PKI` documents found beside the kubeadm configuration.
    ///
    /// # Errors
    /// Faults of a document, or that the policy is given more than once.
    pub fn assemble(
        settings: Option<&Rules>,
        documents: &[Node],
        kubeadm: KeyAlgorithm,
    ) -> Result<(Policy, Faults), Faults> {
        let mut faults = Faults::default();
        let mut rules = settings.cloned();
        let mut first = settings.map(|_| "the pki block of the settings".to_owned());
        for document in documents {
            match Rules::from_document(document) {
                Ok((read, warnings)) => {
                    faults.extend(warnings);
                    if let Some(first) = &first {
                        let spot = Spot {
                            place: document.place.clone(),
                            field: String::new(),
                        };
                        let message = format!("a second PKI policy, the first is {first}");
                        faults.push(spot.error(message, "keep one of the two"));
                    } else {
                        first = Some(format!("at {}", document.place));
                        rules = Some(read);
                    }
                }
                Err(errors) => faults.extend(errors),
            }
        }
        faults.outcome(Policy::new(rules.unwrap_or_default(), kubeadm))
    }

    /// The key of a leaf certificate.
    pub fn key_for(&self, name: CertName) -> KeyAlgorithm {
        self.key_of(Leaf(name))
    }

    /// The key of an authority.
    pub fn key_for_authority(&self, authority: Authority) -> KeyAlgorithm {
        self.key_of(KeyOwner::Authority(authority))
    }

    /// The key that signs service-account tokens.
    pub fn key_for_service_account(&self) -> KeyAlgorithm {
        self.key_of(KeyOwner::ServiceAccount)
    }

    /// The key of anything that has one.
    pub fn key_of(&self, owner: KeyOwner) -> KeyAlgorithm {
        self.rules
            .choice(owner)
            .map_or(self.kubeadm, |choice| choice.key)
    }

    /// Choices of the policy that kubeadm on the node would not make, or that need care. kubeadm's own
    /// `encryptionAlgorithm` is warned about where it is read.
    pub fn warnings(&self, kubernetes: Option<&Version>) -> Faults {
        let mut owners: Vec<(&Choice, Vec<KeyOwner>)> = Vec::new();
        for owner in KeyOwner::all() {
            let Some(choice) = self.rules.choice(owner) else {
                continue;
            };
            match owners.iter_mut().find(|(known, _)| *known == choice) {
                Some((_, list)) => list.push(owner),
                None => owners.push((choice, vec![owner])),
            }
        }
        let mut faults = Faults::default();
        for (choice, owners) in owners {
            let names: Vec<String> = owners
                .iter()
                .filter(|owner| **owner != KeyOwner::ServiceAccount)
                .map(KeyOwner::to_string)
                .collect();
            let renew = "kubeadm certs renew would make other keys; renew with nodepki only";
            match choice.key {
                KeyAlgorithm::EcdsaP521 => {
                    if !names.is_empty() {
                        faults.push(choice.spot.warning(
                            format!("kubeadm does not offer ECDSA-P521 (for {}); Kubernetes components load such keys, some clients and signers do not", names.join(", ")),
                            renew,
                        ));
                    }
                    if owners.contains(&KeyOwner::ServiceAccount) {
                        faults.push(choice.spot.warning(
                            "an ECDSA-P521 sa key signs tokens with ES512: kube-apiserver can, but kubeadm cannot make such a key and readers of tokens outside the cluster may not know it",
                            "add an override for sa with ECDSA P256 or RSA",
                        ));
                    }
                }
                KeyAlgorithm::EcdsaP384 => {
                    if let Some(version) = kubernetes
                        && !version.at_least(1, 34)
                    {
                        faults.push(choice.spot.warning(
                            format!("kubeadm offers ECDSA-P384 from 1.34 on, this cluster is {version}; its components load such keys"),
                            renew,
                        ));
                    }
                }
                _ => {}
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    fn rules(spec: &str) -> Result<(Rules, Faults), Faults> {
        let indented: String = spec.lines().map(|line| format!("  {line}\n")).collect();
        let text = format!(
            "apiVersion: config.openshift.io/v1\nkind: PKI\nmetadata: {{name: cluster}}\nspec:\n{indented}"
        );
        Rules::from_document(&yaml::parse("pki.yaml", &text).unwrap()[0])
    }

    fn policy(spec: &str) -> Policy {
        Policy::new(rules(spec).unwrap().0, KeyAlgorithm::Rsa2048)
    }

    fn faults(spec: &str) -> String {
        rules(spec).unwrap_err().to_string()
    }

    #[test]
    fn override_wins_over_category_over_default_over_kubeadm() {
        let policy = policy(
            "categories:\n\
             - {category: ServingCertificate, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}\n\
             - {category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}\n\
             overrides:\n\
             - {certificateName: etcd-peer, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}\n\
             - {certificateName: etcd-ca, certificate: {key: {algorithm: RSA, rsa: {keySize: 3072}}}}\n\
             - {certificateName: sa, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}\n\
             - {certificateName: admin.conf, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}",
        );
        assert_eq!(policy.key_for(CertName::EtcdPeer), KeyAlgorithm::EcdsaP256);
        assert_eq!(
            policy.key_for(CertName::EtcdServer),
            KeyAlgorithm::EcdsaP384
        );
        assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::EcdsaP384);
        assert_eq!(policy.key_for(CertName::AdminConf), KeyAlgorithm::Rsa4096);
        assert_eq!(
            policy.key_for(CertName::SchedulerConf),
            KeyAlgorithm::Rsa2048
        );
        assert_eq!(
            policy.key_for_authority(Authority::EtcdCa),
            KeyAlgorithm::Rsa3072
        );
        assert_eq!(
            policy.key_for_authority(Authority::Ca),
            KeyAlgorithm::Rsa4096
        );
        assert_eq!(policy.key_for_service_account(), KeyAlgorithm::EcdsaP256);
    }

    #[test]
    fn defaults_reach_the_service_account_key_and_categories_do_not() {
        let policy = policy(
            "defaults: {key: {algorithm: RSA, rsa: {keySize: 3072}}}\n\
             categories: [{category: Signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}]",
        );
        assert_eq!(policy.key_for_service_account(), KeyAlgorithm::Rsa3072);
        assert_eq!(
            policy.key_for(CertName::FrontProxyClient),
            KeyAlgorithm::Rsa3072
        );
    }

    #[test]
    fn both_shapes_of_the_api_are_read() {
        let named = policy(
            "certificateManagement:\n  mode: Custom\n  custom:\n    \
             defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}\n    \
             signerCertificates: {key: {algorithm: RSA, rsa: {keySize: 4096}}}\n    \
             servingCertificates: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}\n    \
             clientCertificates: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}",
        );
        let listed = policy(
            "certificateManagement:\n  mode: Custom\n  custom:\n    \
             defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}\n    overrides:\n    \
             - {type: Category, category: {name: Signer}, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}\n    \
             - {type: Category, category: {name: Serving}, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}\n    \
             - {type: Category, category: {name: Client}, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}",
        );
        for owner in KeyOwner::all() {
            assert_eq!(named.key_of(owner), listed.key_of(owner), "{owner}");
        }
        assert_eq!(named.key_for(CertName::EtcdServer), KeyAlgorithm::EcdsaP384);
        assert_eq!(
            named.key_for(CertName::KubeletConf),
            KeyAlgorithm::EcdsaP256
        );
        for mode in ["Unmanaged", "Default"] {
            let (rules, _) = rules(&format!("certificateManagement: {{mode: {mode}}}")).unwrap();
            assert!(rules.is_empty());
        }
        let empty = yaml::parse(
            "p",
            "apiVersion: config.openshift.io/v1alpha1\nkind: PKI\nspec: {}",
        )
        .unwrap();
        assert!(Rules::from_document(&empty[0]).unwrap().0.is_empty());
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        assert_eq!(
            faults(
                "defaults: {key: {algorithm: RSA, ecdsa: {curve: P256}}}\n\
                 categories:\n\
                 - {category: Server, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P-256}}}}\n\
                 - {category: Client, certificate: {key: {algorithm: RSA, rsa: {keySize: 8192}}}}\n\
                 - {category: Signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 1024}}}}\n\
                 - {certificate: {}}\n\
                 overrides:\n\
                 - {certificateName: etcd-srver, certificate: {key: {algorithm: DSA}}}\n\
                 - {certificateName: sa, certifcate: {}}"
            ),
            "pki.yaml:5:19: spec.defaults.key: rsa is required when algorithm is RSA (add rsa: {keySize: 2048})\n\
             pki.yaml:5:43: spec.defaults.key.ecdsa: ecdsa is forbidden when algorithm is RSA (remove it, or change algorithm to ECDSA)\n\
             pki.yaml:7:16: spec.categories[0].category: \"Server\" is not a category of certificates (use SignerCertificate, ServingCertificate or ClientCertificate)\n\
             pki.yaml:7:77: spec.categories[0].certificate.key.ecdsa.curve: \"P-256\" is not a curve (use P256, P384 or P521)\n\
             pki.yaml:8:75: spec.categories[1].certificate.key.rsa.keySize: RSA keys of 8192 bits are not made: each handshake would cost many times that of 4096 bits, and kubeadm has no name for them (use 2048, 3072 or 4096)\n\
             pki.yaml:9:75: spec.categories[2].certificate.key.rsa.keySize: 1024 is not an RSA key size (use 2048, 3072 or 4096)\n\
             pki.yaml:10:5: spec.categories[3]: has no category (use SignerCertificate, ServingCertificate or ClientCertificate)\n\
             pki.yaml:10:19: spec.categories[3].certificate: has no key (add key: {algorithm: RSA, rsa: {keySize: 2048}})\n\
             pki.yaml:12:23: spec.overrides[0].certificateName: \"etcd-srver\" is not a name of a certificate, an authority or sa (did you mean etcd-server?)\n\
             pki.yaml:12:66: spec.overrides[0].certificate.key.algorithm: \"DSA\" is not a key algorithm (use RSA or ECDSA)\n\
             pki.yaml:13:5: spec.overrides[1]: has no certificate (add certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}})\n\
             pki.yaml:13:27: spec.overrides[1].certifcate: unknown key (did you mean certificate?)"
        );
    }

    #[test]
    fn the_api_shape_is_validated_as_the_api_does() {
        for (spec, want) in [
            (
                "certificateManagement: {mode: Custom}",
                "mode Custom needs custom (add custom with its defaults beside it)",
            ),
            (
                "certificateManagement: {mode: Default, custom: {defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}}",
                "custom is forbidden unless mode is Custom (set mode: Custom, or remove custom)",
            ),
            (
                "certificateManagement: {mode: custom}",
                "\"custom\" is not a mode (use Unmanaged, Default or Custom)",
            ),
            (
                "certificateManagement: {}",
                "has no mode (use Unmanaged, Default or Custom)",
            ),
            (
                "certificateManagement: {mode: Custom, custom: {}}",
                "has no defaults, which mode Custom requires (add defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}})",
            ),
            (
                "{certificateManagement: {mode: Default}, defaults: {}}",
                "stands beside certificateManagement, which is another shape of the same policy (move it below certificateManagement.custom)",
            ),
            (
                "defaults: {}",
                "has no key (add key: {algorithm: RSA, rsa: {keySize: 2048}})",
            ),
            (
                "categories:\n- {category: Signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}\n- {category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}",
                "category SignerCertificate is given twice, first in line 6 (keep one of them)",
            ),
        ] {
            let text = faults(spec);
            assert!(text.ends_with(want), "{text}");
        }
    }

    #[test]
    fn openshift_names_are_mapped_reported_or_in_conflict() {
        let entry = |name: &str, size: u32| {
            format!(
                "- {{certificateName: {name}, certificate: {{key: {{algorithm: RSA, rsa: {{keySize: {size}}}}}}}}}\n"
            )
        };
        let spec = format!(
            "overrides:\n{}{}{}{}",
            entry("kube-apiserver-lb-server", 4096),
            entry("kube-apiserver-localhost-server", 4096),
            entry("admin-kubeconfig-client", 3072),
            entry("service-ca", 4096)
        );
        let (read, warnings) = rules(&spec).unwrap();
        let policy = Policy::new(read, KeyAlgorithm::Rsa2048);
        assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::Rsa4096);
        assert_eq!(policy.key_for(CertName::AdminConf), KeyAlgorithm::Rsa3072);
        assert_eq!(
            policy.key_for(CertName::SuperAdminConf),
            KeyAlgorithm::Rsa3072
        );
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "pki.yaml:9:23: spec.overrides[3].certificateName: service-ca has no counterpart in a kubeadm cluster and is ignored (remove the entry if the file is for kubeadm clusters only)"
            ]
        );
        let spec = format!(
            "overrides:\n{}{}",
            entry("etcd-signer", 4096),
            entry("etcd-ca", 3072)
        );
        assert_eq!(
            faults(&spec),
            "pki.yaml:7:23: spec.overrides[1].certificateName: etcd-ca asks for RSA-3072 for etcd-ca, line 6 asks for RSA-4096 (a kubeadm cluster has one key for both: make them agree)"
        );
        for (name, _) in OPENSHIFT_NAMES {
            assert!(
                rules(&format!("overrides:\n{}", entry(name, 2048))).is_ok(),
                "{name}"
            );
        }
    }

    #[test]
    fn choices_that_need_care_are_warned_about() {
        let policy = policy(
            "overrides:\n\
             - {certificateName: etcd-peer, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P521}}}}\n\
             - {certificateName: sa, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P521}}}}\n\
             - {certificateName: ca, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}",
        );
        let warnings = |version: &str| -> Vec<String> {
            let version = version.parse().unwrap();
            policy
                .warnings(Some(&version))
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let old = warnings("v1.33.0");
        assert_eq!(
            old,
            [
                "pki.yaml:8:46: spec.overrides[2].certificate.key: kubeadm offers ECDSA-P384 from 1.34 on, this cluster is v1.33.0; its components load such keys (kubeadm certs renew would make other keys; renew with nodepki only)",
                "pki.yaml:6:53: spec.overrides[0].certificate.key: kubeadm does not offer ECDSA-P521 (for etcd-peer); Kubernetes components load such keys, some clients and signers do not (kubeadm certs renew would make other keys; renew with nodepki only)",
                "pki.yaml:7:46: spec.overrides[1].certificate.key: an ECDSA-P521 sa key signs tokens with ES512: kube-apiserver can, but kubeadm cannot make such a key and readers of tokens outside the cluster may not know it (add an override for sa with ECDSA P256 or RSA)",
            ]
        );
        assert_eq!(warnings("v1.34.0").len(), 2);
    }

    #[test]
    fn one_policy_only() {
        let document = yaml::parse(
            "p.yaml",
            "apiVersion: config.openshift.io/v1\nkind: PKI\nspec: {}",
        )
        .unwrap();
        let error = Policy::assemble(Some(&Rules::default()), &document, KeyAlgorithm::Rsa2048)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "p.yaml:1:1: a second PKI policy, the first is the pki block of the settings (keep one of the two)"
        );
        let (policy, _) = Policy::assemble(None, &document, KeyAlgorithm::EcdsaP256).unwrap();
        assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::EcdsaP256);
    }
}

//! The block `certificates.registered`: certificates in addition to kubeadm's.
//!
//! Reads each registration and verifies everything that it shows without the kubeadm configuration: name, authority,
//! category, identity, names and usages. `spec::registered` verifies the paths.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::reload::{On, Unit, UnitAction, unit_name};
use super::{Settings, reload::Reload};
use crate::kube::components::ReplacedFile;
use crate::kube::kubeadm::San;
use crate::kube::names::{self, Authority, CertName, RegisteredName};
use crate::spec::policy::Category;
use crate::spec::registered::{
    ADDRESS_PLACEHOLDER, NODE_PLACEHOLDER, RegisteredCertificate, RegisteredNodes, RegisteredSan,
    identity_fault, is_apiserver_name,
};
use crate::x509::ExtendedUsage;
use crate::yaml::schema::ValueForm;
use crate::yaml::settings::{
    Setting, SettingsBlock, choice_setting, if_set, settings, unless_empty,
};
use crate::yaml::{Field, Map};

/// Node name with which a name that contains a placeholder is validated.
const SAMPLE_NODE: &str = "node";

settings! {
    /// A registered certificate.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Registration {
        /// Purpose of the certificate, for administrators.
        "description" => description: Option<String>;
        /// Authority that signs it: etcd-ca for a name that begins with etcd- or ends with -etcd-client, ca for all others.
        "authority" => authority: Authority, required "ca";
        /// Category in the key policy: ClientCertificate for a name that ends with -client, ServingCertificate for all others.
        "category" => category: Category, required "ServingCertificate";
        /// Nodes that hold it.
        "nodes" => nodes: RegisteredNodes;
        /// Common name, by default the certificate's name; {node}, {cluster}, {authority} and {certificate} are replaced.
        "commonName" => common_name: Option<String>;
        /// Organization, which is a group in Kubernetes.
        "organizations" => organizations: Vec<String>, show unless_empty::<String>;
        /// DNS name or IP address; {node} is replaced by the node's name, and {address} alone by its addresses.
        "sans" => sans: Vec<RegisteredSan>, show unless_empty::<RegisteredSan>;
        /// A serving certificate is also a client certificate.
        "clientAuth" => client_auth: bool, show if_set;
        /// File of the certificate, by default NAME.crt in kubeadm's certificates directory.
        "certificate" => certificate: Option<PathBuf>;
        /// File of the private key, by default NAME.key in kubeadm's certificates directory.
        "key" => key: Option<PathBuf>;
        /// systemd unit that uses the certificate.
        "reload.unit" => unit: Option<String>, read optional_unit;
        /// What is done to the unit after the certificate was replaced.
        "reload.action" => action: Option<UnitAction>;
    }
}

/// All registered certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registrations(BTreeMap<RegisteredName, Registration>);

impl Registrations {
    /// Returns the certificates, ordered by name.
    pub fn certificates(&self) -> Vec<RegisteredCertificate> {
        let all = self.0.iter();
        all.map(|(name, one)| one.certificate(*name)).collect()
    }

    /// Returns the units of all registrations.
    fn units(&self) -> impl Iterator<Item = Unit> {
        self.0.iter().filter_map(|(name, one)| {
            let change = ReplacedFile::Certificate(CertName::Registered(*name));
            Some(Unit {
                on: vec![On::Change(change)],
                unit: one.unit.clone()?,
                action: one.action.unwrap_or_default(),
            })
        })
    }
}

impl Settings {
    /// Returns the settings of `reload`, with the units of registered certificates.
    pub fn effective_reload(&self) -> Reload {
        let mut reload = self.reload.clone();
        reload.units.extend(self.registered.units());
        reload
    }
}

impl Setting for Registrations {
    const FORM: ValueForm = ValueForm::Map(&ValueForm::Block(Registration::KEYS));

    fn read(field: &Field<'_>) -> Option<Self> {
        let mut read = BTreeMap::new();
        for (name, field) in field.map()?.named() {
            match name.parse::<RegisteredName>() {
                Ok(name) => {
                    // Also if the entry is faulty, so that a reference to it is not a second fault.
                    field.walk().declare(name.as_str());
                    read.extend(Registration::read(name, &field).map(|one| (name, one)));
                }
                Err(refused) => field.error(format!("{name:?} {refused}"), refused.fix()),
            }
        }
        Some(Registrations(read))
    }

    fn shown(&self) -> Option<Value> {
        let all = self.0.iter();
        let all: BTreeMap<_, _> = all
            .map(|(name, one)| (name.as_str(), one.shown_keys()))
            .collect();
        (!all.is_empty()).then(|| json!(all))
    }
}

impl Registration {
    fn read(name: RegisteredName, field: &Field<'_>) -> Option<Registration> {
        let map = field.map()?;
        let read = Registration::read_keys(&map);
        map.finish();
        let read = read?;
        read.check_name(name, &map);
        read.check_identity(&map);
        read.check_use(name, &map);
        if let Some(field) = map
            .get("reload")
            .and_then(|field| field.map()?.get("action"))
            && read.unit.is_none()
        {
            field.warning("has no effect without a unit", "add unit, or remove it");
        }
        Some(read)
    }

    /// Verifies that authority and category are those that the name contains.
    fn check_name(&self, name: RegisteredName, map: &Map<'_>) {
        if let Some(field) = map.get("authority")
            && self.authority != name.authority()
        {
            field.error(
                format!("is {}, but a certificate with the name {name} is one of {}", self.authority, name.authority()),
                match self.authority {
                    Authority::Ca => "choose a name that does not begin with etcd- or end with -etcd-client",
                    Authority::EtcdCa => "begin the name with etcd-",
                    Authority::FrontProxyCa => "use ca or etcd-ca: kube-apiserver accepts any identity from a client of front-proxy-ca",
                },
            );
        }
        let (category, wanted) = (self.category, Category::of(CertName::Registered(name)));
        if let Some(field) = map.get("category")
            && category != wanted
        {
            field.error(
                format!(
                    "is {}, but a certificate with the name {name} is a {}",
                    written(category),
                    written(wanted)
                ),
                match category {
                    Category::Client => "end the name with -client",
                    Category::Serving | Category::Signer => {
                        "choose a name that does not end with -client"
                    }
                },
            );
        }
    }

    fn check_identity(&self, map: &Map<'_>) {
        let refuse = |field: &Field<'_>, text: &str, reason: &str| {
            field.error(
                format!("{text:?} {reason}"),
                "choose an identity of its own, and bind the roles that the component needs to it",
            );
        };
        if let Some(field) = map.get("commonName")
            && let Some(text) = &self.common_name
        {
            if names::unknown_placeholder(text) {
                field.error(
                    format!("{text:?} has an unknown placeholder"),
                    format!("use {}", names::PLACEHOLDERS.join(", ")),
                );
            } else if !is_printable(text) {
                field.error(
                    format!("{text:?} is not a valid common name"),
                    "write printable ASCII, for instance konnectivity.{node}",
                );
            } else if let Some(reason) = identity_fault(text) {
                refuse(&field, text, reason);
            }
        }
        let organizations = map.get("organizations").and_then(|field| field.list());
        for field in organizations.unwrap_or_default() {
            let Some(text) = field.string() else { continue };
            if !is_printable(&text) {
                field.error(
                    format!("{text:?} is not a valid organization"),
                    "write printable ASCII",
                );
            } else if let Some(reason) = identity_fault(&text) {
                refuse(&field, &text, reason);
            }
        }
    }

    /// Verifies that names and usages fit the category.
    fn check_use(&self, name: RegisteredName, map: &Map<'_>) {
        if !name.is_client() && self.sans.is_empty() && map.get("sans").is_none() {
            map.field().error(
                "is a serving certificate without names, which no TLS client accepts",
                "add sans: [\"{node}\", \"{address}\"]",
            );
        }
        if let Some(field) = map.get("sans")
            && name.is_client()
            && !self.sans.is_empty()
        {
            field.error(
                "has no meaning for a client certificate",
                "remove it, or choose a name that does not end with -client",
            );
        }
        if let Some(field) = map.get("clientAuth")
            && name.is_client()
        {
            field.warning("has no effect on a client certificate", "remove it");
        }
    }

    fn certificate(&self, name: RegisteredName) -> RegisteredCertificate {
        let own = match name.is_client() {
            true => ExtendedUsage::ClientAuth,
            false => ExtendedUsage::ServerAuth,
        };
        let also_client = self.client_auth && !name.is_client();
        RegisteredCertificate {
            name,
            description: self.description.clone().unwrap_or_default(),
            nodes: self.nodes,
            common_name: self
                .common_name
                .clone()
                .unwrap_or_else(|| name.as_str().to_owned()),
            organizations: self.organizations.clone(),
            sans: self.sans.clone(),
            usages: [own]
                .into_iter()
                .chain(also_client.then_some(ExtendedUsage::ClientAuth))
                .collect(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
        }
    }
}

fn optional_unit(field: &Field<'_>) -> Option<Option<String>> {
    unit_name(field).map(Some)
}

fn is_printable(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_graphic() || c == ' ';
    !text.is_empty() && text.trim() == text && text.chars().all(fits)
}

/// The two categories of leaf certificates.
const CATEGORIES: [Category; 2] = [Category::Serving, Category::Client];

/// Returns the category as written in a key policy.
const fn written(category: Category) -> &'static str {
    match category {
        Category::Signer => "SignerCertificate",
        Category::Serving => "ServingCertificate",
        Category::Client => "ClientCertificate",
    }
}

impl Setting for Category {
    const FORM: ValueForm = ValueForm::Choice(|| CATEGORIES.map(written).to_vec());

    fn read(field: &Field<'_>) -> Option<Self> {
        crate::yaml::schema::choice(Some(field.clone()), CATEGORIES, written)
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(written(*self)))
    }
}

impl Setting for RegisteredSan {
    const FORM: ValueForm = ValueForm::Text;

    fn read(field: &Field<'_>) -> Option<Self> {
        let text = field.string()?;
        if text == ADDRESS_PLACEHOLDER {
            return Some(RegisteredSan::Addresses);
        }
        let sample = text.replace(NODE_PLACEHOLDER, SAMPLE_NODE);
        if sample.contains(['{', '}']) {
            field.error(
                format!("{text:?} has a placeholder that is not supported here"),
                "use {node} in a DNS name, or {address} alone",
            );
            return None;
        }
        let (san, notes) = match San::parse(&sample) {
            Ok(parsed) => parsed,
            Err(refusal) => {
                field.error(refusal.message, refusal.fix);
                return None;
            }
        };
        for note in notes {
            field.warning(note.message, note.fix);
        }
        if let San::Dns(name) = &san
            && is_apiserver_name(name)
        {
            field.error(
                format!("{text:?} is a name of kube-apiserver, which clients in the cluster trust under ca"),
                "name the Service of the component; further names of kube-apiserver belong to extraSANs.apiserver",
            );
            return None;
        }
        Some(match text.contains(NODE_PLACEHOLDER) {
            true => RegisteredSan::OfNode(text),
            false => RegisteredSan::Fixed(san),
        })
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.written()))
    }
}

choice_setting!(Authority, RegisteredNodes);

#[cfg(test)]
mod tests;

//! The block `certificates.registered`: certificates in addition to kubeadm's.
//!
//! Reads each registration and verifies everything that it shows without the kubeadm configuration: name, authority,
//! category, identity, names and usages. `spec::registered` verifies the paths.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::names::accepted_with_notes;
use super::reload::{On, Unit, UnitAction, unit_name};
use super::{Settings, reload::Reload};
use crate::kube::components::{Component, ReplacedFile};
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
        /// Organization, which is a group in Kubernetes; at most one.
        "organizations" => organizations: Vec<String>, form ValueForm::AtMostOne(&ValueForm::Text), show unless_empty::<String>;
        /// DNS name or IP address; {node} is replaced by the node's name, and {address} alone by its addresses.
        "sans" => sans: Vec<RegisteredSan>, show unless_empty::<RegisteredSan>;
        /// A serving certificate is also a client certificate.
        "clientAuth" => client_auth: bool, show if_set;
        /// File of the certificate, by default NAME.crt in kubeadm's certificates directory.
        "certificate" => certificate: Option<PathBuf>;
        /// File of the private key, by default NAME.key in kubeadm's certificates directory.
        "key" => key: Option<PathBuf>;
        /// Numeric ID of a group that may read the key, for a component that does not run as root.
        "group" => group: Option<u32>;
        /// File with a copy of the CA certificates of ca.
        "caFiles.ca" => ca_file: Option<PathBuf>;
        /// File with a copy of the CA certificates of etcd-ca.
        "caFiles.etcd-ca" => etcd_ca_file: Option<PathBuf>;
        /// File with a copy of the CA certificates of front-proxy-ca.
        "caFiles.front-proxy-ca" => front_proxy_ca_file: Option<PathBuf>;
        /// systemd unit that uses the certificate.
        "reload.unit" => unit: Option<String>, read optional_unit;
        /// Action on the unit after the certificate or the CA certificates of its authority are replaced.
        "reload.action" => action: Option<UnitAction>;
        /// Static pod to restart in the same cases, by the name of its manifest without .yaml.
        "reload.pod" => pod: Option<String>, read optional_pod;
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
            Some(Unit {
                on: triggers(*name).map(On::Change).into(),
                unit: one.unit.clone()?,
                action: one.action.unwrap_or_default(),
            })
        })
    }

    /// Returns the static pods of all registrations.
    pub fn pods(&self) -> Vec<PodRestart> {
        let pods = self.0.iter().filter_map(|(name, one)| {
            Some(PodRestart {
                on: triggers(*name).into(),
                pod: one.pod.clone()?,
            })
        });
        pods.collect()
    }
}

/// Returns the changes after which the component of a registered certificate is reloaded. A copy of other CA certificates
/// counts as a change of the certificate.
fn triggers(name: RegisteredName) -> [ReplacedFile; 2] {
    [
        ReplacedFile::Certificate(CertName::Registered(name)),
        ReplacedFile::Bundle(name.authority()),
    ]
}

/// A static pod to restart after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRestart {
    /// Triggers.
    pub on: Vec<ReplacedFile>,
    /// Name of the manifest without `.yaml`.
    pub pod: String,
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
                    // Also if the entry is faulty, so a reference to it is not a second fault.
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
                format!("is {category}, but a certificate with the name {name} is a {wanted}"),
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
        let organizations = organizations.unwrap_or_default();
        // rcgen has one attribute of a type.
        if let Some(second) = organizations.get(1) {
            second.error(
                "is a further organization, and a certificate has at most one",
                "keep one of them, and bind the roles of both to it",
            );
        }
        for field in organizations {
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
        let own = if name.is_client() {
            ExtendedUsage::ClientAuth
        } else {
            ExtendedUsage::ServerAuth
        };
        let also_client = self.client_auth && !name.is_client();
        RegisteredCertificate {
            name,
            description: self.description.clone(),
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
            group: self.group,
            ca_files: [
                (Authority::Ca, &self.ca_file),
                (Authority::EtcdCa, &self.etcd_ca_file),
                (Authority::FrontProxyCa, &self.front_proxy_ca_file),
            ]
            .into_iter()
            .filter_map(|(authority, path)| Some((authority, path.clone()?)))
            .collect(),
        }
    }
}

fn optional_unit(field: &Field<'_>) -> Option<Option<String>> {
    unit_name(field).map(Some)
}

/// Reads the name of a static pod. Pods of kubeadm have settings of their own.
fn optional_pod(field: &Field<'_>) -> Option<Option<String>> {
    let name = field.string()?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(fits)
        && !name.ends_with(".yaml");
    if !is_plain {
        field.error(
            format!("{name:?} is not the name of a static pod"),
            "write the name of its manifest without .yaml, as in konnectivity-server",
        );
        return None;
    }
    let mut components = Component::ALL.into_iter();
    if components.any(|component| component.as_str() == name) {
        field.error(
            format!("{name} is a component of Kubernetes, which is restarted only if it needs to be and with the Lease"),
            "remove it, or name a static pod of the registered component",
        );
        return None;
    }
    Some(Some(name))
}

fn is_printable(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_graphic() || c == ' ';
    !text.is_empty() && text.trim() == text && text.chars().all(fits)
}

/// The two categories of leaf certificates.
const CATEGORIES: [Category; 2] = [Category::Serving, Category::Client];

impl Setting for Category {
    const FORM: ValueForm = ValueForm::Choice(|| CATEGORIES.map(Category::as_str).to_vec());

    fn read(field: &Field<'_>) -> Option<Self> {
        crate::yaml::schema::choice(Some(field.clone()), CATEGORIES, Category::as_str)
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.as_str()))
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
        let san = accepted_with_notes(field, San::parse(&sample))?;
        if let San::Dns(name) = &san
            && is_apiserver_name(name)
        {
            field.error(
                format!("{text:?} is a name of kube-apiserver, which clients in the cluster trust under ca"),
                "name the Service of the component; further names of kube-apiserver belong to extraSANs.apiserver",
            );
            return None;
        }
        Some(if text.contains(NODE_PLACEHOLDER) {
            RegisteredSan::OfNode(text)
        } else {
            RegisteredSan::Fixed(san)
        })
    }

    fn shown(&self) -> Option<Value> {
        Some(json!(self.written()))
    }
}

choice_setting!(Authority, RegisteredNodes);

#[cfg(test)]
mod tests;

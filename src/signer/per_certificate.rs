//! A setting that may differ between certificates: a role, a profile, a signer name.
//!
//! It is written as one text for all certificates, or as a map from certificate names and `default` to texts. In each
//! text `{certificate}`, `{authority}`, `{node}` and `{cluster}` are replaced by those names; in `{certificate}` dots
//! become dashes (`admin-conf`), because few servers accept a dot in the name of a role.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{NodeIdentity, RequestedCertificate, SignerObstacle};
use crate::kube::csr_object::KubeletCertificate;
use crate::kube::names::{self, Authority, CertName, PLACEHOLDERS};
use crate::yaml::schema::ValueForm;
use crate::yaml::settings::Setting;
use crate::yaml::{self, Field};

/// A text for each certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerCertificate {
    /// Text for certificates without their own.
    pub default: Option<String>,
    /// Texts of single certificates.
    pub named: BTreeMap<CertName, String>,
}

impl PerCertificate {
    /// Creates a setting with one text for all certificates.
    pub fn all(text: impl Into<String>) -> Self {
        PerCertificate {
            default: Some(text.into()),
            named: BTreeMap::new(),
        }
    }

    /// Reads either form.
    pub fn read(field: &Field<'_>) -> Option<Self> {
        Self::read_with(field, &|field, text| check(field, text))
    }

    /// As [`PerCertificate::read`], for texts that may be empty and may contain braces, such as JSON. `check` verifies
    /// each text.
    pub(super) fn read_free_text(
        field: &Field<'_>,
        check: &dyn Fn(&Field<'_>, &str),
    ) -> Option<Self> {
        Self::read_with(field, &|field, text| {
            if let Some(word) = names::misspelt_placeholder(text) {
                field.error(
                    format!("{word} is not a placeholder"),
                    format!("use {}", PLACEHOLDERS.join(", ")),
                );
            }
            check(field, text);
        })
    }

    fn read_with(field: &Field<'_>, check: &dyn Fn(&Field<'_>, &str)) -> Option<Self> {
        if field.node().text().is_some() {
            let text = field.string()?;
            check(field, &text);
            return Some(PerCertificate::all(text));
        }
        let mut read = PerCertificate::default();
        for (name, field) in field.map()?.named() {
            let Some(text) = field.string() else { continue };
            check(&field, &text);
            if name == "default" {
                read.default = Some(text);
                continue;
            }
            let registered = || field.walk().declared(&name)?.parse().ok();
            let mut known = CertName::ALL.into_iter().chain([CertName::PodClient]);
            match known.find(|one| one.as_str() == name).or_else(registered) {
                Some(name) => {
                    read.named.insert(name, text);
                }
                None => {
                    let registered = field.walk().all_declared();
                    let mut names: Vec<&str> = registered.iter().map(String::as_str).collect();
                    names.extend(CertName::ALL.map(CertName::as_str));
                    names.push("default");
                    let otherwise = "use a name from `nodepki plan`, or default";
                    let fix = yaml::fix_for(&name, names, otherwise);
                    field.error(format!("{name:?} is not the name of a certificate"), fix);
                }
            }
        }
        Some(read)
    }

    /// The certificates of kubelets of other nodes.
    pub(super) const OF_KUBELETS: [CertName; 2] = [
        KubeletCertificate::Client.cert_name(),
        KubeletCertificate::Serving.cert_name(),
    ];

    /// Returns the obstacle to requests of other nodes if the text for one of these certificates contains this node's name;
    /// `key` is the setting.
    pub(super) fn for_this_node_only(
        &self,
        key: &str,
        names: &[CertName],
    ) -> Option<SignerObstacle> {
        let text_of = |name: &CertName| self.named.get(name).or(self.default.as_ref());
        let name = names
            .iter()
            .find(|name| text_of(name).is_some_and(|text| text.contains("{node}")))?;
        Some(SignerObstacle::new(
            format!("its {key} for {name} contains {{node}}, so it is for this node only"),
            format!(
                "set {key} to a map with an entry {name} for all nodes, as in {{{name}: kubelets}}"
            ),
        ))
    }

    /// Returns the text for a certificate with its placeholders replaced; `None` if there is no text for it.
    pub fn of(&self, wanted: &RequestedCertificate, identity: &NodeIdentity) -> Option<String> {
        self.of_name(wanted.name, identity)
    }

    /// As [`PerCertificate::of`], by the certificate's name.
    pub fn of_name(&self, name: CertName, identity: &NodeIdentity) -> Option<String> {
        let text = self.named.get(&name).or(self.default.as_ref())?;
        Some(names::fill_placeholders(
            text,
            name,
            &identity.node,
            &identity.cluster,
        ))
    }
}

impl Setting for PerCertificate {
    const FORM: ValueForm = ValueForm::PerCertificate;

    fn read(field: &Field<'_>) -> Option<Self> {
        PerCertificate::read(field)
    }

    fn shown(&self) -> Option<Value> {
        Some(match &self.default {
            Some(text) if self.named.is_empty() => json!(text),
            default => {
                let named = self.named.iter().map(|(name, text)| (name.as_str(), text));
                let all: BTreeMap<&str, &String> = named
                    .chain(default.iter().map(|text| ("default", text)))
                    .collect();
                json!(all)
            }
        })
    }
}

/// Returns the names that are always defined, and those of registered certificates with a text of their own.
pub(super) fn names_with<'a>(
    settings: impl IntoIterator<Item = &'a Option<PerCertificate>>,
) -> Vec<CertName> {
    let settings = settings.into_iter().flatten();
    let own = settings.flat_map(|setting| setting.named.keys().copied());
    let registered = own.filter(|name| matches!(name, CertName::Registered(_)));
    CertName::ALL.into_iter().chain(registered).collect()
}

/// Replaces the placeholders of a text that may differ between authorities only.
pub(super) fn of_authority(text: &str, authority: Authority, identity: &NodeIdentity) -> String {
    text.replace("{authority}", authority.as_str())
        .replace("{node}", &identity.node)
        .replace("{cluster}", &identity.cluster)
}

/// Reads a text for [`of_authority`].
pub(super) fn read_of_authority(field: &Field<'_>) -> Option<String> {
    let text = field.string()?;
    if names::unknown_placeholder(&text) || text.contains("{certificate}") {
        field.error(
            format!("{text:?} has a placeholder that is not supported here"),
            "use {authority}, {node}, {cluster}",
        );
    }
    Some(text)
}

fn check(field: &Field<'_>, text: &str) {
    if names::unknown_placeholder(text) {
        field.error(
            format!("{text:?} has an unknown placeholder"),
            format!("use {}", PLACEHOLDERS.join(", ")),
        );
    }
    if text.is_empty() {
        field.error("is empty", "write a name, or remove the key");
    }
}

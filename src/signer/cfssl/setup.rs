//! The script for the administrator of CFSSL, run once for a node: signing configurations, a key, the sections of
//! `multirootca`, and the commands that start the servers.
//!
//! The default profile gets no usages, so an unknown profile signs nothing. `name_whitelist` contains the names
//! of this node and no others; CFSSL searches it anywhere in a name, hence the anchors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Map as JsonMap, Value, json};

use super::{CaProfile, Config};
use crate::signer::shell::{self, one_line, quoted};
use crate::signer::{NodeIdentity, Part, RequestedCertificate};
use crate::x509::ExtendedUsage;
use crate::yaml::format_duration;

/// Returns the script for these signers.
pub(super) fn print(parts: &[Part<'_, Config>], identity: &NodeIdentity) -> String {
    let mut script = CfsslScript(String::new());
    script.fill(include_str!("setup/begin.sh"), &[("NODE", &identity.node)]);
    for (url, of_server) in Part::grouped(parts, |config| config.endpoint.url.as_str()) {
        script.server(url, &of_server, identity);
    }
    script.0
}

struct CfsslScript(String);

impl CfsslScript {
    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn comment(&mut self, text: &str) {
        self.line(&format!("# {}", one_line(text)));
    }

    fn fill(&mut self, template: &str, values: &[(&str, &str)]) {
        self.0.push_str(&shell::script(template, values));
    }

    fn server(&mut self, url: &str, parts: &[&Part<'_, Config>], identity: &NodeIdentity) {
        self.line("");
        self.comment(&format!("---- {url}"));
        let mut labels: BTreeMap<String, Vec<(CaProfile, &RequestedCertificate, bool)>> =
            BTreeMap::new();
        for part in parts {
            for wanted in &part.wanted {
                let place = part.config.place(wanted.name, identity);
                let keyed = part.config.auth.is_some();
                let of_label = labels.entry(place.label.clone()).or_default();
                of_label.push((place, wanted, keyed));
            }
        }
        // Clusters that share a server may have nodes of the same name, which must not share a key.
        let key = format!("nodepki-{}-{}", identity.cluster, identity.node);
        let files: BTreeSet<String> = parts
            .iter()
            .filter_map(|part| Some(part.config.key_file()?.to_string()))
            .collect();
        if !files.is_empty() {
            let key = format!("{key}.key");
            self.fill(include_str!("setup/key.sh"), &[("KEY", &key)]);
        }
        for (label, wanted) in &labels {
            self.configuration(label, wanted, &key);
        }
        // multirootca accepts signed requests only.
        let keyed = !files.is_empty();
        if keyed {
            self.sections(labels.keys());
        }
        let Some(label) = labels.keys().next() else {
            return;
        };
        self.line("");
        self.comment("The CA certificates and keys LABEL.crt and LABEL.key must be provided.");
        if keyed {
            self.fill(include_str!("setup/multirootca.sh"), &[]);
        }
        let has_certificate =
            |part: &&Part<'_, Config>| part.config.endpoint.tls.certificate.is_some();
        let mutual = if parts.iter().any(has_certificate) {
            format!(
                " -mutual-tls-ca clients.crt -mutual-tls-cn '{}'",
                anchored([identity.node.as_str()])
            )
        } else {
            String::new()
        };
        self.fill(
            include_str!("setup/serve.sh"),
            &[
                ("CERTIFICATE", &format!("{label}.crt")),
                ("KEY", &format!("{label}.key")),
                ("CONFIG", &format!("{label}.json")),
                ("MUTUAL", &mutual),
            ],
        );
        if keyed {
            let files: Vec<&str> = files.iter().map(String::as_str).collect();
            let files = files.join(" and ");
            self.0.push_str(&shell::echo(&format!(
                "copy {key}.key to the node, as {files}, with mode 0600"
            )));
        }
    }

    fn configuration(
        &mut self,
        label: &str,
        wanted: &[(CaProfile, &RequestedCertificate, bool)],
        key: &str,
    ) {
        let mut profiles: BTreeMap<Option<&str>, Vec<(&RequestedCertificate, bool)>> =
            BTreeMap::new();
        for (place, wanted, keyed) in wanted {
            let profile = profiles.entry(place.profile.as_deref()).or_default();
            profile.push((wanted, *keyed));
        }
        let keyed = wanted.iter().any(|(_, _, keyed)| *keyed);
        let mut named = JsonMap::new();
        let mut default = JsonMap::new();
        default.insert("expiry".to_owned(), json!("1h"));
        if keyed {
            default.insert("auth_key".to_owned(), json!(key));
        }
        self.line("");
        for (name, wanted) in profiles {
            let of: Vec<String> = wanted
                .iter()
                .map(|(wanted, _)| wanted.name.to_string())
                .collect();
            self.comment(&format!(
                "{}: {}",
                name.unwrap_or("the default profile"),
                of.join(", ")
            ));
            let usages = usages(&wanted);
            if wanted
                .iter()
                .any(|(one, _)| one.profile.usages.len() != usages.len())
            {
                self.comment("  one profile for servers and clients: set allowExtraUsages for the authority, or use one profile for each");
            }
            match name {
                Some(name) => {
                    named.insert(
                        name.to_owned(),
                        Value::Object(profile(&wanted, &usages, key)),
                    );
                }
                None => default = profile(&wanted, &usages, key),
            }
        }
        let mut configuration = json!({"signing": {"default": default, "profiles": named}});
        if keyed && let Some(map) = configuration.as_object_mut() {
            let keys = json!({key: {"type": "standard", "key": format!("file:{key}.key")}});
            map.insert("auth_keys".to_owned(), keys);
        }
        let text = serde_json::to_string_pretty(&configuration).unwrap_or_default();
        self.line(&format!(
            "put {} <<'EOF'\n{text}\nEOF",
            quoted(&format!("{label}.json"))
        ));
    }

    fn sections<'a>(&mut self, labels: impl Iterator<Item = &'a String>) {
        self.line("");
        self.comment(
            "For multirootca. `nets = 192.0.2.0/24` in a section restricts access to these addresses.",
        );
        self.line("put roots.ini <<'EOF'");
        for label in labels {
            let label = one_line(label);
            self.line(&format!(
                "[{label}]\nprivate = file://{label}.key\ncertificate = {label}.crt\nconfig = {label}.json\n"
            ));
        }
        self.line("EOF");
    }
}

fn usages(wanted: &[(&RequestedCertificate, bool)]) -> Vec<ExtendedUsage> {
    let all = || wanted.iter().flat_map(|(one, _)| &one.profile.usages);
    [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
        .into_iter()
        .filter(|usage| all().any(|one| one == usage))
        .collect()
}

fn profile(
    wanted: &[(&RequestedCertificate, bool)],
    extended: &[ExtendedUsage],
    key: &str,
) -> JsonMap<String, Value> {
    let longest = wanted.iter().map(|(one, _)| one.profile.lifetime).max();
    // For keys of any type: RSA keys need both, and the policy of the cluster can change.
    let mut usages = vec![
        "digital signature".to_owned(),
        "key encipherment".to_owned(),
    ];
    usages.extend(extended.iter().map(ToString::to_string));
    let names: BTreeSet<&str> = wanted
        .iter()
        .flat_map(|(one, _)| {
            let common_name = &one.profile.subject.common_name;
            one.profile.sans.dns.iter().chain([common_name])
        })
        .map(String::as_str)
        .collect();
    let mut profile = JsonMap::new();
    profile.insert("usages".to_owned(), json!(usages));
    let expiry = format_duration(longest.unwrap_or(Duration::ZERO));
    profile.insert("expiry".to_owned(), json!(expiry));
    profile.insert("name_whitelist".to_owned(), json!(anchored(names)));
    if wanted.iter().any(|(_, keyed)| *keyed) {
        profile.insert("auth_key".to_owned(), json!(key));
    }
    profile
}

/// Returns a Go regular expression for exactly these names.
fn anchored<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let escaped = |name: &str| {
        name.chars().fold(String::new(), |mut text, character| {
            if !character.is_ascii_alphanumeric()
                && !"-:_".contains(character)
                && character.is_ascii()
            {
                text.push('\\');
            }
            text.push(character);
            text
        })
    };
    let names: Vec<String> = names.into_iter().map(escaped).collect();
    format!("^({})$", names.join("|"))
}

//! A role of the PKI engine, and whether it can issue a certificate.
//!
//! The same type is read from the server, to report what is wrong before a key is generated, and printed for the
//! administrator of the server.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::kube::csr_object::KubeletCertificate;
use crate::kube::names::{CertName, SERVICE_ACCOUNT_USER_PREFIX};
use crate::kube::pod_request::MAX_POD_LIFETIME;
use crate::kubelets::{KubeletPolicy, SERVICE_ACCOUNTS_GROUP};
use crate::signer::RequestedCertificate;
use crate::x509::{ExtendedUsage, KeyFamily, Profile};

/// Pattern of the common names of kubelets.
const ANY_NODE: &str = "system:node:*";
/// Pattern of the DNS names in serving certificates. The names of nodes follow no rule that nodepki knows.
pub(super) const ANY_NAME: &str = "*";
/// Organization of kubelets.
const NODES_GROUP: &str = "system:nodes";

/// The fields of a role that affect the content of certificates. Every field with a permissive default is written
/// out, since writing a role resets omitted fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VaultRole {
    issuer_ref: String,
    key_type: String,
    organization: Vec<String>,
    #[serde(default)]
    ou: Vec<String>,
    #[serde(default)]
    country: Vec<String>,
    #[serde(default)]
    locality: Vec<String>,
    #[serde(default)]
    province: Vec<String>,
    server_flag: bool,
    client_flag: bool,
    code_signing_flag: bool,
    email_protection_flag: bool,
    key_usage: Vec<String>,
    #[serde(default)]
    ext_key_usage: Vec<String>,
    #[serde(default)]
    ext_key_usage_oids: Vec<String>,
    allowed_domains: Vec<String>,
    allow_bare_domains: bool,
    allow_subdomains: bool,
    allow_glob_domains: bool,
    #[serde(default)]
    allow_wildcard_certificates: bool,
    allow_any_name: bool,
    allow_localhost: bool,
    /// Present in old roles; it can no longer be set.
    #[serde(default, skip_serializing)]
    allow_token_displayname: bool,
    #[serde(default)]
    allowed_domains_template: bool,
    enforce_hostnames: bool,
    #[serde(default)]
    cn_validations: Vec<String>,
    allow_ip_sans: bool,
    #[serde(default)]
    allowed_uri_sans: Vec<String>,
    #[serde(default)]
    allowed_other_sans: Vec<String>,
    #[serde(default)]
    allowed_serial_numbers: Vec<String>,
    #[serde(default)]
    allowed_user_ids: Vec<String>,
    use_csr_common_name: bool,
    use_csr_sans: bool,
    require_cn: bool,
    ttl: u64,
    max_ttl: u64,
    no_store: bool,
    generate_lease: bool,
    /// Fields of OpenBao; Vault reports that it ignores them.
    #[serde(default)]
    not_before_bound: String,
    #[serde(default)]
    not_after_bound: String,
}

impl VaultRole {
    /// Returns the narrowest role for a certificate.
    pub(super) fn of(wanted: &RequestedCertificate, issuer: &str) -> Self {
        let profile = &wanted.profile;
        let names: BTreeSet<&String> = [&profile.subject.common_name]
            .into_iter()
            .chain(&profile.sans.dns)
            .collect();
        VaultRole {
            organization: profile.subject.organizations.clone(),
            // With bare domains and without host name rules these are the names, `system:…` and `localhost` included.
            allowed_domains: names.into_iter().cloned().collect(),
            allow_ip_sans: !profile.sans.ips.is_empty(),
            // Without requested names those of the CSR are ignored.
            use_csr_sans: !profile.sans.is_empty(),
            ..VaultRole::without_names(&profile.usages, profile.lifetime, issuer)
        }
    }

    /// Returns the role for this certificate of every kubelet, or of every pod. The common name is one of the patterns in any
    /// case: without validation of the common name (`disabled`) the server would accept every name in it.
    pub(super) fn of_kubelets(
        certificate: KubeletCertificate,
        policy: &KubeletPolicy,
        issuer: &str,
    ) -> Self {
        let (usage, domains) = match certificate {
            KubeletCertificate::Client => (ExtendedUsage::ClientAuth, vec![ANY_NODE]),
            KubeletCertificate::Serving => (ExtendedUsage::ServerAuth, vec![ANY_NODE, ANY_NAME]),
            KubeletCertificate::Pod => return VaultRole::of_pods(policy, issuer),
        };
        let is_serving = certificate == KubeletCertificate::Serving;
        VaultRole {
            organization: vec![NODES_GROUP.to_owned()],
            allowed_domains: domains.into_iter().map(str::to_owned).collect(),
            allow_glob_domains: true,
            allow_ip_sans: is_serving,
            use_csr_sans: is_serving,
            ..VaultRole::without_names(&[usage], policy.lifetime, issuer)
        }
    }

    /// Returns the role for pods, whose CSR has no common name: the request has it.
    fn of_pods(policy: &KubeletPolicy, issuer: &str) -> Self {
        VaultRole {
            organization: vec![SERVICE_ACCOUNTS_GROUP.to_owned()],
            allowed_domains: vec![format!("{SERVICE_ACCOUNT_USER_PREFIX}*")],
            allow_glob_domains: true,
            use_csr_common_name: false,
            ..VaultRole::without_names(
                &[ExtendedUsage::ClientAuth],
                policy.lifetime.min(MAX_POD_LIFETIME),
                issuer,
            )
        }
    }

    /// Returns a role that certifies no name.
    fn without_names(usages: &[ExtendedUsage], lifetime: Duration, issuer: &str) -> Self {
        let words =
            |words: &[&str]| -> Vec<String> { words.iter().map(ToString::to_string).collect() };
        VaultRole {
            issuer_ref: issuer.to_owned(),
            key_type: "any".to_owned(),
            server_flag: usages.contains(&ExtendedUsage::ServerAuth),
            client_flag: usages.contains(&ExtendedUsage::ClientAuth),
            // For keys of any type: RSA keys need both, and the policy of the cluster can change.
            key_usage: words(&["DigitalSignature", "KeyEncipherment"]),
            allow_bare_domains: true,
            // It would allow `localdomain` as well.
            allow_localhost: false,
            // Not "email", which would accept someone@NAME for NAME.
            cn_validations: words(&["hostname"]),
            use_csr_common_name: true,
            require_cn: true,
            ttl: lifetime.as_secs(),
            max_ttl: lifetime.as_secs(),
            // A certificate that is not stored cannot be revoked by its serial number.
            no_store: false,
            not_before_bound: "forbid".to_owned(),
            not_after_bound: "forbid".to_owned(),
            // Nothing else is set or allowed.
            ..VaultRole::default()
        }
    }

    /// Returns the maximum lifetime of certificates.
    pub(super) fn lifetime(&self) -> Duration {
        Duration::from_secs(self.max_ttl)
    }

    /// Returns why the role certainly cannot issue the certificate; empty if that is not certain.
    pub(super) fn obstacles(&self, wanted: &RequestedCertificate) -> Vec<String> {
        let mut found = self.subject_obstacles(&wanted.profile);
        found.extend(self.usage_obstacles(wanted));
        found.extend(self.request_obstacles(wanted));
        found.extend(self.name_obstacle(&wanted.profile));
        found
    }

    /// Returns the differences between the subject that the role writes and the requested one.
    fn subject_obstacles(&self, profile: &Profile) -> Vec<String> {
        let mut found = Vec::new();
        let set = |values: &[String]| values.iter().cloned().collect::<BTreeSet<String>>();
        if set(&self.organization) != set(&profile.subject.organizations) {
            found.push(format!(
                "it sets the organization [{}], requested is [{}] (organization)",
                self.organization.join(", "),
                profile.subject.organizations.join(", ")
            ));
        }
        for (name, values) in [
            ("ou", &self.ou),
            ("country", &self.country),
            ("locality", &self.locality),
            ("province", &self.province),
        ] {
            if !values.is_empty() {
                found.push(format!(
                    "it adds [{}] to the subject ({name})",
                    values.join(", ")
                ));
            }
        }
        found
    }

    /// Returns the usages that the role adds or leaves out.
    fn usage_obstacles(&self, wanted: &RequestedCertificate) -> Vec<String> {
        let mut found = Vec::new();
        for (usage, flag, sets, listed) in [
            (
                ExtendedUsage::ServerAuth,
                "server_flag",
                self.server_flag,
                "serverauth",
            ),
            (
                ExtendedUsage::ClientAuth,
                "client_flag",
                self.client_flag,
                "clientauth",
            ),
        ] {
            let listed = self
                .ext_key_usage
                .iter()
                .any(|one| one.to_lowercase().trim_start_matches("extkeyusage") == listed);
            let wants = wanted.profile.usages.contains(&usage);
            match (sets || listed, wants) {
                (true, false) if wanted.tolerance.extra_usages => {}
                (true, false) => found.push(format!("it adds the usage {usage} ({flag})")),
                (false, true) => found.push(format!("it leaves out the usage {usage} ({flag})")),
                _ => {}
            }
        }
        found
    }

    /// Returns the parts of a request that the role does not accept or ignores.
    fn request_obstacles(&self, wanted: &RequestedCertificate) -> Vec<String> {
        let mut found = Vec::new();
        let profile = &wanted.profile;
        let kind = match profile.key.family() {
            KeyFamily::Rsa => "rsa",
            KeyFamily::Ecdsa => "ec",
            KeyFamily::MlDsa => "ml-dsa",
        };
        if self.key_type != "any" && self.key_type != kind {
            found.push(format!(
                "it accepts {} keys only, requested is {} (key_type)",
                self.key_type, profile.key
            ));
        }
        let is_for_pod = wanted.name == CertName::PodClient;
        if !self.use_csr_common_name && !is_for_pod {
            found.push("it ignores the request's common name (use_csr_common_name)".to_owned());
        }
        if self.use_csr_common_name && is_for_pod {
            found.push(
                "it takes the common name from the CSR, and that of a pod has none (use_csr_common_name)"
                    .to_owned(),
            );
        }
        if !self.use_csr_sans && !profile.sans.is_empty() {
            found.push("it ignores the request's names (use_csr_sans)".to_owned());
        }
        if !self.allow_ip_sans && !profile.sans.ips.is_empty() {
            found.push("it certifies no IP addresses (allow_ip_sans)".to_owned());
        }
        found
    }

    /// Returns the names that the role does not allow.
    fn name_obstacle(&self, profile: &Profile) -> Option<String> {
        let name = &profile.subject.common_name;
        let cn_is_free = self.cn_validations == ["disabled"];
        if self.enforce_hostnames && !cn_is_free && name.contains(':') {
            return Some(format!("it does not accept CN={name} (enforce_hostnames)"));
        }
        let cn = (!cn_is_free).then_some(name);
        let refused: Vec<&str> = cn
            .into_iter()
            .chain(&profile.sans.dns)
            .filter(|name| self.certainly_refuses(name))
            .map(String::as_str)
            .collect();
        (!refused.is_empty()).then(|| {
            format!(
                "it does not allow the names {} (allowed_domains, allow_bare_domains)",
                refused.join(", ")
            )
        })
    }

    fn certainly_refuses(&self, name: &str) -> bool {
        let open = self.allow_any_name
            || self.allow_subdomains
            || self.allow_glob_domains
            || self.allow_token_displayname
            || self.allowed_domains_template;
        let listed = self.allow_bare_domains
            && self
                .allowed_domains
                .iter()
                .any(|one| one.eq_ignore_ascii_case(name));
        let local = self.allow_localhost && matches!(name, "localhost" | "localdomain");
        !open && !listed && !local
    }
}

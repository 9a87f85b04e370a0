//! The script for an administrator of the server, which lets a node get its certificates and nothing else.
//!
//! It contains one role for each certificate, with every name pinned ([`VaultRole::of`]), and one policy for the node. The
//! policy lists the parameters that nodepki sends: `alt_names`, `not_after` and others would bypass what a role pins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::role::{ANY_NAME, VaultRole};
use super::{AppRole, Config, VaultAuth};
use crate::kube::csr_object::KubeletCertificate;
use crate::kube::names::{Authority, CertName, SERVICE_ACCOUNT_USER_PREFIX};
use crate::kubelets::{KubeletPolicy, SERVICE_ACCOUNTS_GROUP};
use crate::signer::shell::{self, one_line, quoted};
use crate::signer::{NodeIdentity, Part, RequestedCertificate};
use crate::yaml::format_duration;

/// Maximum lifetime of a CA in the mount: ten years. The server's default limit of 32 days would shorten it.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// Returns the parameters that a policy must allow in addition to the path.
pub(super) fn parameters(name: CertName, verbatim: bool) -> &'static [&'static str] {
    match (name, verbatim) {
        (_, true) => &["csr", "ttl", "key_usage", "ext_key_usage"],
        (CertName::PodClient, false) => &["csr", "ttl", "exclude_cn_from_sans", "common_name"],
        (_, false) => &["csr", "ttl", "exclude_cn_from_sans"],
    }
}

/// Returns the script for all signers of this kind together: they share a policy, because they share a node.
pub(super) fn print(parts: &[Part<'_, Config>], identity: &NodeIdentity) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let mut script = VaultScript::default();
    script.fill(
        include_str!("setup/begin.sh"),
        &[
            ("NODE", &identity.node),
            ("CLUSTER", &identity.cluster),
            ("SIGNERS", &names.join(", ")),
        ],
    );
    let servers = Part::grouped(parts, |config| {
        (config.endpoint.url.as_str(), config.namespace.as_deref())
    });
    let several = servers.len() > 1;
    if several {
        script.comment("The servers differ: the token must be valid for each. Otherwise print one at a time with --name.");
    }
    for ((address, namespace), of_server) in servers {
        script.server(address, namespace, several);
        script.signers(&of_server, identity);
    }
    script.0.push_str(include_str!("setup/end.sh"));
    script.0
}

#[derive(Default)]
struct VaultScript(String);

impl VaultScript {
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

    fn heading(&mut self, text: &str) {
        self.line("");
        self.comment(&format!("---- {text}"));
    }

    /// With `several`, the variables of the previous server and of the caller are replaced.
    fn server(&mut self, address: &str, namespace: Option<&str>, several: bool) {
        self.heading(&format!("server {address}"));
        let address = quoted(address.trim_end_matches('/'));
        if several {
            self.line(&format!("export VAULT_ADDR={address} BAO_ADDR={address}"));
        } else {
            self.line(&format!(
                "[ -n \"${{VAULT_ADDR:-}}\" ] || export VAULT_ADDR={address}"
            ));
        }
        match namespace.map(quoted) {
            Some(namespace) => self.line(&format!(
                "export VAULT_NAMESPACE={namespace} BAO_NAMESPACE={namespace}"
            )),
            None if several => self.line("unset VAULT_NAMESPACE BAO_NAMESPACE"),
            None => {}
        }
    }

    fn signers(&mut self, parts: &[&Part<'_, Config>], identity: &NodeIdentity) {
        // Clusters that share a server may have nodes of the same name; each node has its own rights.
        let policy = format!("nodepki-{}-{}", identity.cluster, identity.node);
        let mut paths: BTreeMap<String, String> = BTreeMap::new();
        let mut mounts: BTreeSet<String> = BTreeSet::new();
        let mut maps = Vec::new();
        for part in parts {
            for authority in Authority::ALL {
                let wanted: Vec<&RequestedCertificate> = part
                    .wanted
                    .iter()
                    .copied()
                    .filter(|wanted| wanted.authority == authority)
                    .filter(|wanted| part.kubelets.is_none() || !is_of_kubelets(wanted.name))
                    .collect();
                let kubelets = part.kubelets.filter(|_| authority == Authority::Ca);
                if wanted.is_empty() && kubelets.is_none() {
                    continue;
                }
                let mount = part.config.mount_of(authority, identity);
                if mounts.insert(mount.clone()) {
                    self.mount(&mount, authority);
                }
                let issuer = part.config.issuer_of(authority, identity);
                self.roles(
                    part,
                    &mount,
                    issuer.as_deref(),
                    &wanted,
                    identity,
                    &mut paths,
                );
                if let Some(policy) = kubelets {
                    self.roles_of_kubelets(part, policy, identity, &mut paths);
                }
            }
            if !part.config.verbatim {
                maps.push((part.name, names(part, identity)));
            }
        }
        self.heading(&format!(
            "what node {} may do, and nothing else",
            identity.node
        ));
        self.line(&format!(
            "\"$VAULT\" policy write {} - <<'EOF'",
            quoted(&policy)
        ));
        for rule in paths.into_values() {
            self.0.push_str(&rule);
        }
        // The default policy permits both, but a login may omit it (`token_no_default_policy`).
        for path in ["sys/capabilities-self", "auth/token/revoke-self"] {
            self.line(&format!(
                "path \"{path}\" {{\n  capabilities = [\"update\"]\n}}"
            ));
        }
        self.line("EOF");
        let mut methods: Vec<&VaultAuth> = Vec::new();
        for part in parts {
            if !methods.contains(&&part.config.auth) {
                methods.push(&part.config.auth);
            }
        }
        for auth in methods {
            self.login(auth, &policy);
        }
        if maps.is_empty() {
            return;
        }
        self.heading("in nodepki's configuration, where it does not say so already");
        self.comment("signers:");
        for (name, map) in maps {
            self.comment(&format!("  {name}:"));
            self.comment("    vault:");
            self.comment("      role:");
            for (certificate, role) in map {
                self.comment(&format!("        {certificate}: {role}"));
            }
        }
    }

    fn mount(&mut self, mount: &str, authority: Authority) {
        let lifetime = format_duration(CA_LIFETIME);
        let command = |path: &str, values: &str| {
            let path = quoted(&format!("{mount}/{path}"));
            one_line(&format!("write {path} {values}"))
        };
        let common_name = quoted(authority.common_name());
        let generate = command(
            "root/generate/internal",
            &format!(
                "common_name={common_name} key_type=ec key_bits=256 ttl={lifetime} exclude_cn_from_sans=true"
            ),
        );
        let import = command("issuers/import/bundle", "pem_bundle=@ca-and-key.pem");
        self.fill(
            include_str!("setup/mount.sh"),
            &[
                ("AUTHORITY", authority.as_str()),
                ("MOUNT", mount),
                ("LISTED", &format!("\"{mount}/\"")),
                ("LIFETIME", &lifetime),
                ("GENERATE", &generate),
                ("IMPORT", &import),
            ],
        );
    }

    fn roles(
        &mut self,
        part: &Part<'_, Config>,
        mount: &str,
        issuer: Option<&str>,
        wanted: &[&RequestedCertificate],
        identity: &NodeIdentity,
        paths: &mut BTreeMap<String, String>,
    ) {
        let base = match issuer {
            Some(issuer) => format!("{mount}/issuer/{issuer}"),
            None => mount.to_owned(),
        };
        if part.config.verbatim {
            self.comment("verbatim: true lets this node certify any name, any group of the cluster included.");
            for wanted in wanted {
                if let Some(place) = part.config.place(wanted.name, identity) {
                    paths.insert(
                        place.policy.clone(),
                        rule(&place.policy, parameters(wanted.name, true)),
                    );
                }
            }
            return;
        }
        let named = names(part, identity);
        let mut written = BTreeSet::new();
        for wanted in wanted {
            let Some(name) = named.get(&wanted.name) else {
                continue;
            };
            let path = format!("{mount}/roles/{name}");
            if !written.insert(path.clone()) {
                continue;
            }
            let role = VaultRole::of(wanted, issuer.unwrap_or("default"));
            self.line("");
            self.comment(&format!(
                "{}: {}, at most {}",
                wanted.name,
                wanted.profile.subject,
                format_duration(role.lifetime())
            ));
            self.write(&path, &json!(role));
            let sign = format!("{base}/sign/{name}");
            let mut rules = String::new();
            if wanted.name == CertName::SuperAdminConf {
                rules.push_str("# No rule of the cluster binds system:masters: take this out when the node has its super-admin.conf.\n");
            }
            rules.push_str(&rule(&sign, parameters(wanted.name, false)));
            paths.insert(sign, rules + &rule_to_read(&path));
        }
    }

    /// Writes the roles for the kubelets of all nodes, which this node's own kubelet shares.
    fn roles_of_kubelets(
        &mut self,
        part: &Part<'_, Config>,
        policy: &KubeletPolicy,
        identity: &NodeIdentity,
        paths: &mut BTreeMap<String, String>,
    ) {
        for certificate in policy.certificates().iter().copied() {
            let Some(place) = part.config.place(certificate.cert_name(), identity) else {
                continue;
            };
            let Some(path) = place.role.filter(|_| !part.config.verbatim) else {
                paths.insert(
                    place.policy.clone(),
                    rule(&place.policy, parameters(certificate.cert_name(), true)),
                );
                continue;
            };
            let issuer = part.config.issuer_of(Authority::Ca, identity);
            let issuer = issuer.as_deref().unwrap_or("default");
            let role = VaultRole::of_kubelets(certificate, policy, issuer);
            self.line("");
            let lifetime = format_duration(role.lifetime());
            self.comment(&match certificate {
                KubeletCertificate::Pod => format!(
                    "client certificates of the pods of all nodes: O={SERVICE_ACCOUNTS_GROUP}, CN={SERVICE_ACCOUNT_USER_PREFIX}NAMESPACE:NAME, at most {lifetime}"
                ),
                KubeletCertificate::Client | KubeletCertificate::Serving => format!(
                    "{certificate} certificates of the kubelets of all nodes: O=system:nodes, CN=system:node:NAME, at most {lifetime}"
                ),
            });
            if certificate == KubeletCertificate::Serving {
                self.comment(&format!(
                    "Replace {ANY_NAME:?} in allowed_domains by patterns of the nodes' names, as in \"*.nodes.example.com\" or \"worker-*\"."
                ));
            }
            self.write(&path, &json!(role));
            let parameters = parameters(certificate.cert_name(), false);
            let rules = rule(&place.policy, parameters) + &rule_to_read(&path);
            paths.insert(place.policy, rules);
        }
    }

    /// Prints a command of the administrator whose output the node gets.
    fn copied(&mut self, command: &str) {
        let command = quoted(&one_line(command));
        self.line(&format!("printf '  %s %s\\n' \"$VAULT\" {command}"));
    }

    fn login(&mut self, auth: &VaultAuth, policy: &str) {
        let ((mount, role), kind, title, template) = match auth {
            VaultAuth::TokenFile(file) => {
                self.line("\n# ---- login: a token");
                self.line("echo 'The process that writes the token to the node, with mode 0600, also renews it:'");
                return self.copied(&format!(
                    "token create -orphan -no-default-policy -policy={} -period=24h -field=token   # into {file}",
                    quoted(policy)
                ));
            }
            VaultAuth::AppRole(app) => return self.login_by_app_role(app, policy),
            VaultAuth::Certificate(login) => (
                (&login.mount, &login.role),
                "cert",
                "TLS certificate",
                include_str!("setup/certificate.sh"),
            ),
            VaultAuth::Jwt(login) => (
                (&login.mount, &login.role),
                "jwt",
                "JSON web token",
                include_str!("setup/jwt.sh"),
            ),
            VaultAuth::Kubernetes(login) => (
                (&login.mount, &login.role),
                "kubernetes",
                "Kubernetes service account",
                include_str!("setup/kubernetes.sh"),
            ),
        };
        let role = role.as_deref().unwrap_or(policy);
        let roles = if kind == "cert" { "certs" } else { "role" };
        self.method(title, kind, mount);
        self.fill(
            template,
            &[
                ("POLICY", policy),
                ("CONFIG", &format!("auth/{mount}/config")),
                ("ROLE", &format!("auth/{mount}/{roles}/{role}")),
            ],
        );
    }

    fn login_by_app_role(&mut self, app: &AppRole, policy: &str) {
        let role = app.role.as_deref().unwrap_or(policy);
        let path = format!("auth/{}/role/{role}", app.mount);
        self.method("AppRole", "approle", &app.mount);
        self.comment("secret_id_num_uses=1 would be stricter: then each renewal needs a new secret_id, delivered before it.");
        self.write(
            &path,
            &json!({
                "token_policies": [policy],
                "token_no_default_policy": true,
                "token_ttl": "1h",
                "token_max_ttl": "24h",
                "secret_id_num_uses": 0,
                "secret_id_ttl": "0",
            }),
        );
        let role_file = match &app.role_id_file {
            None => "the configuration's roleID".to_owned(),
            Some(file) => file.to_string(),
        };
        let (wrap, field) = if app.wrapped {
            ("-wrap-ttl=1h ", "wrapping_token")
        } else {
            ("", "secret_id")
        };
        let path = quoted(&path);
        self.line("echo 'Write to the node, into files of mode 0600, the output of'");
        self.copied(&format!(
            "read -field=role_id {path}/role-id   # into {role_file}"
        ));
        self.copied(&format!(
            "write {wrap}-field={field} -f {path}/secret-id   # into {}",
            app.secret_id_file
        ));
    }

    /// Enables a login method.
    fn method(&mut self, title: &str, kind: &str, mount: &str) {
        self.fill(
            include_str!("setup/method.sh"),
            &[
                ("TITLE", title),
                ("KIND", kind),
                ("MOUNT", mount),
                ("LISTED", &format!("\"{mount}/\"")),
            ],
        );
    }

    fn write(&mut self, path: &str, value: &Value) {
        self.line(&format!("put {} - <<'EOF'", quoted(path)));
        let pairs = value.as_object().into_iter().flatten();
        let lines: Vec<String> = pairs
            .map(|(key, value)| format!("  {}: {value}", json!(key)))
            .collect();
        self.line(&format!("{{\n{}\n}}\nEOF", lines.join(",\n")));
    }
}

/// Returns whether requests of kubelets use the role of this certificate.
fn is_of_kubelets(name: CertName) -> bool {
    KubeletCertificate::OWN
        .iter()
        .any(|certificate| certificate.cert_name() == name)
}

fn rule_to_read(path: &str) -> String {
    format!("path {} {{\n  capabilities = [\"read\"]\n}}\n", hcl(path))
}

fn rule(path: &str, parameters: &[&str]) -> String {
    let mut rule = format!(
        "path {} {{\n  capabilities = [\"update\"]\n  allowed_parameters = {{\n",
        hcl(path)
    );
    for parameter in parameters {
        // Otherwise the server would add the common name to the names.
        let values = match *parameter {
            "exclude_cn_from_sans" => "true",
            _ => "",
        };
        let _ = writeln!(rule, "    \"{parameter}\" = [{values}]");
    }
    rule + "  }\n}\n"
}

/// Returns the role of each certificate: the configured one, made distinct if several certificates need different
/// roles, and with the node's name if it pins names of the node.
fn names(part: &Part<'_, Config>, identity: &NodeIdentity) -> BTreeMap<CertName, String> {
    let Some(role) = &part.config.role else {
        return BTreeMap::new();
    };
    let configured = |wanted: &RequestedCertificate| {
        let mount = part.config.mount_of(wanted.authority, identity);
        (mount, role.of(wanted, identity))
    };
    let narrowest = |wanted: &RequestedCertificate| VaultRole::of(wanted, "default");
    let name = |wanted: &RequestedCertificate| {
        let alike = |other: &&RequestedCertificate| configured(other) == configured(wanted);
        let alone = part
            .wanted
            .iter()
            .copied()
            .filter(alike)
            .all(|other| narrowest(other) == narrowest(wanted));
        let (named, mut name) = match configured(wanted).1 {
            Some(name) => (true, name),
            None => (false, "nodepki".to_owned()),
        };
        if !named || !alone {
            name.push('-');
            name.push_str(&wanted.name.as_str().replace('.', "-"));
        }
        let subject = &wanted.profile.subject.common_name;
        let own = [subject]
            .into_iter()
            .chain(&wanted.profile.sans.dns)
            .any(|one| one.rsplit(':').next() == Some(identity.node.as_str()));
        // Compared as words, or node `api` would not get its own role for `apiserver`.
        let says = format!("-{name}-").contains(&format!("-{}-", identity.node));
        if own && !says {
            name.push('-');
            name.push_str(&identity.node);
        }
        name
    };
    let own = part.wanted.iter();
    let mut names: BTreeMap<CertName, String> =
        own.map(|wanted| (wanted.name, name(wanted))).collect();
    if part.kubelets.is_some() {
        let of_kubelets = KubeletCertificate::OWN.map(KubeletCertificate::cert_name);
        names.extend(
            of_kubelets
                .into_iter()
                .filter_map(|name| Some((name, role.of_name(name, identity)?))),
        );
    }
    names
}

/// Quotes a text for a policy.
fn hcl(text: &str) -> String {
    format!(
        "\"{}\"",
        one_line(text).replace('\\', r"\\").replace('"', "\\\"")
    )
}

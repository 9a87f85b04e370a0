//! kubeconfig files: writing, reading, and repair that keeps all other content.
//!
//! Pure. Only the cluster and the user of the current context are ever changed; all other fields, known or not, keep their
//! value and order. A document contains secrets, so it is wiped on drop and has no derived `Debug`.

mod refusal;
mod shape;
mod url;

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use zeroize::{Zeroize, Zeroizing};

use crate::yaml;

pub use refusal::ClientRefusal;

/// The content of a component's kubeconfig.
pub struct Credentials<'a> {
    /// URL of the API server.
    pub server: &'a str,
    /// PEM of the CA certificates.
    pub authority: &'a str,
    /// PEM of the client certificate, followed by intermediates.
    pub certificate: &'a str,
    /// PEM of the client key.
    pub key: &'a str,
}

/// A kubeconfig document.
#[derive(Clone)]
pub struct Kubeconfig {
    document: Value,
}

/// The reason why a kubeconfig cannot be read or repaired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum KubeconfigError {
    #[error("it is not YAML: {0}")]
    NotYaml(String),
    #[error("it is not a kubeconfig (no mapping at the top)")]
    NotAMapping,
    #[error("current-context is empty")]
    NoCurrentContext,
    #[error("current-context names {0}, which it does not contain")]
    Dangling(String),
    #[error("{field} is not {expected}")]
    WrongType {
        field: String,
        expected: &'static str,
    },
    #[error(
        "it is not a kubeconfig (apiVersion {version:?}, kind {kind:?} instead of v1 and Config)"
    )]
    OtherKind { version: String, kind: String },
    #[error("{list} has several entries named {name:?}")]
    DuplicateName { list: String, name: String },
}

/// The cluster and the user of a kubeconfig's current context.
#[derive(Default)]
pub struct CurrentContext {
    /// Name of the cluster entry.
    pub cluster: String,
    /// Name of the user entry.
    pub user: String,
    /// `server`.
    pub server: Option<String>,
    /// Decoded `certificate-authority-data`.
    pub authority: Option<Vec<u8>>,
    /// Decoded `client-certificate-data`.
    pub certificate: Option<Vec<u8>>,
    /// Decoded `client-key-data`.
    pub key: Option<Zeroizing<Vec<u8>>>,
    /// `client-certificate`: a file instead of data, as in the kubelet's own kubeconfig.
    pub certificate_file: Option<String>,
    /// `client-key`, likewise.
    pub key_file: Option<String>,
    /// `certificate-authority`: a file instead of data.
    pub authority_file: Option<String>,
    /// `tls-server-name`.
    pub server_name: Option<String>,
    /// `proxy-url`.
    pub proxy: Option<String>,
    /// `token`.
    pub token: Option<Zeroizing<String>>,
    /// `tokenFile`, which precedes `token`.
    pub token_file: Option<String>,
    /// Set fields that change trust or identity and that nodepki does not support, such as `exec`.
    pub beyond: Vec<&'static str>,
}

impl CurrentContext {
    /// Returns true if the kubeconfig itself contains a secret.
    pub(crate) fn has_secret(&self) -> bool {
        self.key.is_some() || self.token.is_some()
    }
}

/// Resolves a file reference of a kubeconfig: a relative path is relative to the directory of the kubeconfig (client-go,
/// `ResolveLocalPaths`).
pub fn resolve_path(kubeconfig: &Path, reference: &str) -> PathBuf {
    kubeconfig.parent().unwrap_or(kubeconfig).join(reference)
}

/// Unsupported fields of a cluster: a server without verification.
const UNSUPPORTED_CLUSTER_FIELDS: [&str; 1] = ["insecure-skip-tls-verify"];
/// Unsupported fields of a user: credential programs, passwords and impersonation.
const UNSUPPORTED_USER_FIELDS: [&str; 8] = [
    "exec",
    "auth-provider",
    "username",
    "password",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
];

impl Kubeconfig {
    /// Creates a kubeconfig like kubeadm: one cluster, one user, one context named `user@cluster`.
    pub fn new(cluster: &str, user: &str, credentials: &Credentials<'_>) -> Self {
        let mut kubeconfig = Kubeconfig::without_credentials(cluster, user);
        // Cannot fail, as the context exists.
        let _ = kubeconfig.set_credentials(credentials);
        kubeconfig
    }

    /// Creates a kubeconfig with an empty cluster and an empty user.
    pub(crate) fn without_credentials(cluster: &str, user: &str) -> Self {
        let context = format!("{user}@{cluster}");
        let document = json!({
            "apiVersion": "v1",
            "clusters": [{"cluster": {}, "name": cluster}],
            "contexts": [{"context": {"cluster": cluster, "user": user}, "name": context}],
            "current-context": context,
            "kind": "Config",
            "users": [{"name": user, "user": {}}],
        });
        Kubeconfig { document }
    }

    /// Parses a kubeconfig.
    pub fn parse(text: &str) -> Result<Self, KubeconfigError> {
        let documents = yaml::parse("kubeconfig", text).map_err(|faults| {
            let first = faults.errors().next().map(ToString::to_string);
            KubeconfigError::NotYaml(first.unwrap_or_default())
        })?;
        match documents.first().map(yaml::to_json) {
            Some(document @ Value::Object(_)) => {
                // First, so the document is wiped if it is refused.
                let kubeconfig = Kubeconfig { document };
                verify_kind(&kubeconfig.document)?;
                shape::verify(&kubeconfig.document)?;
                Ok(kubeconfig)
            }
            _ => Err(KubeconfigError::NotAMapping),
        }
    }

    /// Returns the cluster and the user of the current context.
    pub fn current(&self) -> Result<CurrentContext, KubeconfigError> {
        let (cluster, user) = self.current_names()?;
        let mut current = self.cluster(cluster)?;
        self.add_user(&mut current, user)?;
        Ok(current)
    }

    /// Returns the cluster to join by kubeadm's rule: the cluster without a name, as in `cluster-info`, or else that of the
    /// current context; and the user of the current context, if there is one.
    pub fn to_join(&self) -> Result<CurrentContext, KubeconfigError> {
        let context = self.context();
        let part = |kind| string(context.as_ref().ok()?, kind);
        let (cluster, user) = (part("cluster"), part("user"));
        let mut current = if entry(&self.document, "clusters", "cluster", "").is_some() {
            self.cluster(String::new())?
        } else {
            context?;
            self.cluster(cluster.unwrap_or_default())?
        };
        if let Some(user) = user {
            self.add_user(&mut current, user)?;
        }
        Ok(current)
    }

    fn cluster(&self, name: String) -> Result<CurrentContext, KubeconfigError> {
        let entry = entry(&self.document, "clusters", "cluster", &name)
            .ok_or_else(|| KubeconfigError::Dangling(format!("cluster {name:?}")))?;
        Ok(CurrentContext {
            cluster: name,
            server: string(entry, "server"),
            authority: data(entry, "certificate-authority-data").map(|bytes| bytes.to_vec()),
            authority_file: string(entry, "certificate-authority"),
            server_name: string(entry, "tls-server-name"),
            proxy: string(entry, "proxy-url"),
            beyond: set_in(entry, &UNSUPPORTED_CLUSTER_FIELDS).collect(),
            ..CurrentContext::default()
        })
    }

    fn add_user(&self, current: &mut CurrentContext, name: String) -> Result<(), KubeconfigError> {
        let entry = entry(&self.document, "users", "user", &name)
            .ok_or_else(|| KubeconfigError::Dangling(format!("user {name:?}")))?;
        current.user = name;
        current.certificate = data(entry, "client-certificate-data").map(|bytes| bytes.to_vec());
        current.key = data(entry, "client-key-data");
        current.certificate_file = string(entry, "client-certificate");
        current.key_file = string(entry, "client-key");
        current.token = string(entry, "token").map(Zeroizing::new);
        current.token_file = string(entry, "tokenFile");
        current
            .beyond
            .extend(set_in(entry, &UNSUPPORTED_USER_FIELDS));
        Ok(())
    }

    /// Replaces server, CA, certificate and key of the current context. Data replaces references to files.
    pub fn set_credentials(
        &mut self,
        credentials: &Credentials<'_>,
    ) -> Result<(), KubeconfigError> {
        self.set_cluster(credentials.server, credentials.authority)?;
        let (_, user) = self.current_names()?;
        let entry = entry_mut(&mut self.document, "users", "user", &user)
            .ok_or_else(|| KubeconfigError::Dangling(format!("user {user:?}")))?;
        entry.shift_remove("client-certificate");
        entry.shift_remove("client-key");
        set(
            entry,
            "client-certificate-data",
            BASE64.encode(credentials.certificate),
        );
        set(entry, "client-key-data", BASE64.encode(credentials.key));
        Ok(())
    }

    /// Replaces the certificate and key of the current context with the paths of files, perhaps of the same file.
    pub(crate) fn set_client_files(
        &mut self,
        certificate: &str,
        private_key: &str,
    ) -> Result<(), KubeconfigError> {
        let (_, user) = self.current_names()?;
        let entry = entry_mut(&mut self.document, "users", "user", &user)
            .ok_or_else(|| KubeconfigError::Dangling(format!("user {user:?}")))?;
        for field in ["client-certificate-data", "client-key-data"] {
            if let Some(mut old) = entry.shift_remove(field) {
                wipe(&mut old);
            }
        }
        set(entry, "client-certificate", certificate.to_owned());
        set(entry, "client-key", private_key.to_owned());
        Ok(())
    }

    /// Replaces server and CA of the current context, but not its user.
    pub fn set_cluster(&mut self, server: &str, authority: &str) -> Result<(), KubeconfigError> {
        self.set_authority(authority)?;
        let entry = self.current_cluster()?;
        entry.shift_remove("certificate-authority");
        entry.shift_remove("insecure-skip-tls-verify");
        set(entry, "server", server.to_owned());
        Ok(())
    }

    /// Replaces only the CA data of the current context.
    pub fn set_authority(&mut self, authority: &str) -> Result<(), KubeconfigError> {
        let data = BASE64.encode(authority);
        set(self.current_cluster()?, "certificate-authority-data", data);
        Ok(())
    }

    /// As [`Kubeconfig::set_authority`], of the cluster that [`Kubeconfig::to_join`] returns.
    pub(crate) fn set_authority_to_join(&mut self, authority: &str) -> Result<(), KubeconfigError> {
        let data = BASE64.encode(authority);
        let unnamed = entry_mut(&mut self.document, "clusters", "cluster", "");
        let cluster = match unnamed {
            Some(_) => entry_mut(&mut self.document, "clusters", "cluster", "")
                .ok_or_else(|| KubeconfigError::Dangling("cluster \"\"".to_owned()))?,
            None => self.current_cluster()?,
        };
        set(cluster, "certificate-authority-data", data);
        Ok(())
    }

    fn current_cluster(&mut self) -> Result<&mut Map<String, Value>, KubeconfigError> {
        let (cluster, _) = self.current_names()?;
        entry_mut(&mut self.document, "clusters", "cluster", &cluster)
            .ok_or_else(|| KubeconfigError::Dangling(format!("cluster {cluster:?}")))
    }

    /// Returns the text of the file.
    pub fn to_yaml(&self) -> Zeroizing<String> {
        // JSON is valid YAML, so it replaces a document that the emitter refuses.
        Zeroizing::new(
            yaml::to_string(&self.document).unwrap_or_else(|_| self.document.to_string()),
        )
    }

    fn current_names(&self) -> Result<(String, String), KubeconfigError> {
        let context = self.context()?;
        let part = |kind: &'static str| {
            string(context, kind).ok_or_else(|| KubeconfigError::Dangling(format!("no {kind}")))
        };
        Ok((part("cluster")?, part("user")?))
    }

    fn context(&self) -> Result<&Map<String, Value>, KubeconfigError> {
        let name = self
            .document
            .get("current-context")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .ok_or(KubeconfigError::NoCurrentContext)?;
        entry(&self.document, "contexts", "context", name)
            .ok_or_else(|| KubeconfigError::Dangling(format!("context {name:?}")))
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        wipe(&mut self.document);
    }
}

/// Verifies apiVersion and kind. client-go accepts a document without them.
fn verify_kind(document: &Value) -> Result<(), KubeconfigError> {
    let text = |field| {
        document
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    // The group before the slash may be empty.
    let is_known = matches!(version, "" | "v1" | "/v1") && matches!(kind, "" | "Config");
    is_known
        .then_some(())
        .ok_or_else(|| KubeconfigError::OtherKind {
            version: version.to_owned(),
            kind: kind.to_owned(),
        })
}

/// Wipes all strings in a document.
pub(crate) fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(entries) => entries.values_mut().for_each(wipe),
        _ => {}
    }
}

/// Returns the `kind` field of the entry `name` in a list of a kubeconfig.
fn entry<'a>(
    document: &'a Value,
    list: &str,
    kind: &str,
    name: &str,
) -> Option<&'a Map<String, Value>> {
    let entries = document.get(list)?.as_array()?;
    let found = entries
        .iter()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
    found.get(kind)?.as_object()
}

fn entry_mut<'a>(
    document: &'a mut Value,
    list: &str,
    kind: &str,
    name: &str,
) -> Option<&'a mut Map<String, Value>> {
    let entries = document.get_mut(list)?.as_array_mut()?;
    let found = entries
        .iter_mut()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))?;
    found.get_mut(kind)?.as_object_mut()
}

fn string(entry: &Map<String, Value>, field: &str) -> Option<String> {
    entry
        .get(field)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

/// Returns true unless client-go would omit the value as empty or `false`.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    }
}

/// Returns the fields that are set.
fn set_in<'a>(
    entry: &'a Map<String, Value>,
    fields: &'a [&'static str],
) -> impl Iterator<Item = &'static str> + 'a {
    fields
        .iter()
        .copied()
        .filter(move |field| entry.get(*field).is_some_and(is_set))
}

fn data(entry: &Map<String, Value>, field: &str) -> Option<Zeroizing<Vec<u8>>> {
    let text = entry.get(field).and_then(Value::as_str);
    shape::decoded(text?).filter(|bytes| !bytes.is_empty())
}

fn set(entry: &mut Map<String, Value>, field: &str, text: String) {
    if let Some(Value::String(mut old)) = entry.insert(field.to_owned(), Value::String(text)) {
        old.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: Credentials<'_> = Credentials {
        server: "https://192.0.2.11:6443",
        authority: "CA",
        certificate: "CERT",
        key: "KEY",
    };

    #[test]
    fn renders_like_kubeadm() {
        assert_eq!(
            *Kubeconfig::new("kubernetes", "kubernetes-admin", &CREDENTIALS).to_yaml(),
            "\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: Q0E=
    server: https://192.0.2.11:6443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: kubernetes-admin
  name: kubernetes-admin@kubernetes
current-context: kubernetes-admin@kubernetes
kind: Config
users:
- name: kubernetes-admin
  user:
    client-certificate-data: Q0VSVA==
    client-key-data: S0VZ
"
        );
    }

    #[test]
    fn names_client_file_in_place_of_certificate_and_key() {
        let mut kubeconfig = Kubeconfig::new("kubernetes", "me", &CREDENTIALS);
        kubeconfig
            .set_client_files("/pki/current.pem", "/pki/current.pem")
            .unwrap();
        let text = kubeconfig.to_yaml();
        let user = "\
users:
- name: me
  user:
    client-certificate: /pki/current.pem
    client-key: /pki/current.pem
";
        assert!(text.ends_with(user), "{}", *text);
        assert!(text.contains("certificate-authority-data: Q0E="));
    }

    #[test]
    fn wipes_strings_at_any_depth() {
        let mut value = serde_json::json!({"a": "x", "b": ["x", {"c": "x", "d": 5}], "e": null});
        wipe(&mut value);
        let wiped = serde_json::json!({"a": "", "b": ["", {"c": "", "d": 5}], "e": null});
        assert_eq!(value, wiped);
    }

    #[test]
    fn keeps_other_content_on_repair() {
        let edited = "\
kind: Config
apiVersion: v1
current-context: mine
preferences: {colors: true}
clusters:
- {name: other, cluster: {server: 'https://other'}}
- {name: here, cluster: {server: 'https://old', proxy-url: 'http://proxy', certificate-authority: /old}}
contexts:
- {name: mine, context: {cluster: here, user: me, namespace: kube-system}}
users:
- {name: me, user: {client-certificate: /old.crt, client-key: /old.key, username: x}}
- {name: robot, user: {exec: {command: login}}}
";
        let mut kubeconfig = Kubeconfig::parse(edited).unwrap();
        kubeconfig.set_credentials(&CREDENTIALS).unwrap();
        let text = kubeconfig.to_yaml();
        for kept in [
            "colors: true",
            "https://other",
            "proxy-url: http://proxy",
            "namespace: kube-system",
            "command: login",
            "username: x",
        ] {
            assert!(text.contains(kept), "{kept} is lost:\n{}", *text);
        }
        for gone in ["https://old", "/old"] {
            assert!(!text.contains(gone), "{gone} is still there");
        }
        let current = Kubeconfig::parse(&text).unwrap().current().unwrap();
        assert_eq!(current.server.as_deref(), Some("https://192.0.2.11:6443"));
        assert_eq!(current.certificate.as_deref(), Some(&b"CERT"[..]));
    }

    #[test]
    fn lists_unsupported_fields() {
        let text = "\
current-context: mine
clusters:
- {name: here, cluster: {server: 'https://h', tls-server-name: kubernetes, certificate-authority: ca.crt, proxy-url: 'http://p:3128', insecure-skip-tls-verify: true}}
contexts:
- {name: mine, context: {cluster: here, user: me}}
users:
- {name: me, user: {token: abc, tokenFile: /t, exec: {command: login}, as-groups: [], username: ''}}
";
        let current = Kubeconfig::parse(text).unwrap().current().unwrap();
        assert_eq!(current.beyond, ["insecure-skip-tls-verify", "exec"]);
        assert_eq!(current.server_name.as_deref(), Some("kubernetes"));
        assert_eq!(current.authority_file.as_deref(), Some("ca.crt"));
        assert_eq!(current.proxy.as_deref(), Some("http://p:3128"));
        assert_eq!(current.token.as_deref().map(String::as_str), Some("abc"));
        assert_eq!(current.token_file.as_deref(), Some("/t"));
    }

    #[test]
    fn finds_unnamed_cluster_to_join_without_context() {
        let of = |text: &str| {
            let current = Kubeconfig::parse(text).unwrap().to_join();
            current.map(|current| (current.server.unwrap_or_default(), current.user))
        };
        let unnamed = "clusters: [{name: '', cluster: {server: 'https://a'}}]\n";
        let pair = |server: &str, user: &str| (server.to_owned(), user.to_owned());
        for tail in ["contexts: null\nusers: null\ncurrent-context: ''\n", ""] {
            let text = format!("{unnamed}{tail}");
            assert_eq!(of(&text).unwrap(), pair("https://a", ""));
        }
        let named = "\
current-context: c
clusters: [{name: b, cluster: {server: 'https://b'}}]
contexts: [{name: c, context: {cluster: b}}]
";
        assert_eq!(of(named).unwrap(), pair("https://b", ""));
        let user = named.replace("cluster: b}", "cluster: b, user: u}");
        assert_eq!(
            of(&user).unwrap_err().to_string(),
            "current-context names user \"u\", which it does not contain"
        );
        let user = format!("{user}users: [{{name: u, user: {{token: t}}}}]\n");
        assert_eq!(of(&user).unwrap(), pair("https://b", "u"));
        let contextless = named.replace("current-context: c", "");
        assert_eq!(
            of(&contextless).unwrap_err().to_string(),
            "current-context is empty"
        );
    }

    #[test]
    fn refuses_values_that_client_go_refuses() {
        let config = "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n";
        for (text, expected) in [
            ("users: {name: u}", "users is not a list"),
            (
                "users: [{name: u, user: [x]}]",
                "users[0].user is not a mapping",
            ),
            (
                "clusters: [null, {name: 5}]",
                "clusters[1].name is not text",
            ),
            (
                "clusters: [{name: c, cluster: {insecure-skip-tls-verify: 'true'}}]",
                "clusters[0].cluster.insecure-skip-tls-verify is not true or false",
            ),
            (
                "users: [{name: other, user: {client-key-data: 'S0 VZ'}}]",
                "users[0].user.client-key-data is not valid base64",
            ),
            (
                "users: [{name: u, user: {as-user-extra: {\"a\\n\": [1]}}}]",
                "users[0].user.as-user-extra.\"a\\n\"[0] is not text",
            ),
            (
                "users: [{name: u}, {name: u}]",
                "users has several entries named \"u\"",
            ),
            (
                "kind: Cluster",
                "it is not a kubeconfig (apiVersion \"\", kind \"Cluster\" instead of v1 and Config)",
            ),
        ] {
            let error = Kubeconfig::parse(&format!("{config}{text}\n"));
            assert_eq!(
                error.err().map(|error| error.to_string()).as_deref(),
                Some(expected)
            );
        }
        let accepted =
            "users: [{name: u, user: {client-key-data: \"S0\\nVZ\", token: null, own: 1}}]\n";
        let read = Kubeconfig::parse(&format!(
            "{config}clusters: [{{name: c, cluster: {{}}}}]\n{accepted}"
        ));
        let current = read.unwrap().current().unwrap();
        assert_eq!(current.key.unwrap().as_slice(), b"KEY");
    }

    #[test]
    fn reports_values_that_client_go_refuses() {
        let refusals = |cluster: &str, user: &str| {
            let text = format!(
                "current-context: a\ncontexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n\
                 clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
            );
            let refusals = Kubeconfig::parse(&text).unwrap().client_refusals();
            refusals.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let ca = "certificate-authority-data: Q0E=";
        for (cluster, expected) in [
            ("", "server is empty"),
            (
                "server: ftp://a",
                "server is not a URL of http or https, or a host with a port",
            ),
            (
                &format!("server: https://a, {ca}, insecure-skip-tls-verify: true"),
                "insecure-skip-tls-verify is set next to a CA",
            ),
            (
                &format!("server: https://a, {ca}, certificate-authority: ca.crt"),
                "certificate-authority and certificate-authority-data are both set",
            ),
            (
                "server: https://a, proxy-url: ftp://b",
                "proxy-url is not a URL of http, https or socks5",
            ),
        ] {
            assert_eq!(refusals(cluster, "token: t"), [expected], "{cluster}");
        }
        // Without TLS its options and credentials are ignored.
        let plain = format!("server: http://a, {ca}, insecure-skip-tls-verify: true");
        assert_eq!(refusals(&plain, "tokenFile: t, username: u"), [""; 0]);
        const VERSION: &str = "apiVersion: client.authentication.k8s.io/v1, command: x";
        for (user, expected) in [
            (
                "token: t, password: p".to_owned(),
                "token and username or password are both set",
            ),
            (
                "tokenFile: t, username: u".to_owned(),
                "tokenFile and username or password are both set",
            ),
            (
                "as-groups: [g]".to_owned(),
                "as-uid, as-groups or as-user-extra is set without as",
            ),
            (
                "client-certificate: a, client-key: b, client-key-data: S0VZ".to_owned(),
                "client-key and client-key-data are both set",
            ),
            (
                "auth-provider: {name: oidc}, exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: x}".to_owned(),
                "exec and auth-provider are both set",
            ),
            (
                "auth-provider: {name: gcp}".to_owned(),
                "auth-provider.name is \"gcp\"; clients know oidc only",
            ),
            (
                "exec: {apiVersion: client.authentication.k8s.io/v1beta1}".to_owned(),
                "exec.command is empty",
            ),
            (
                "exec: {command: x, interactiveMode: Never}".to_owned(),
                "exec.apiVersion is \"\", not client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1",
            ),
            (
                format!("exec: {{{VERSION}}}"),
                "exec.interactiveMode is \"\", not Never, IfAvailable or Always",
            ),
            (
                format!("exec: {{{VERSION}, interactiveMode: Never, env: [{{value: v}}]}}"),
                "a variable of exec.env has an empty name",
            ),
        ] {
            assert_eq!(refusals("server: https://a", &user), [expected], "{user}");
        }
    }

    #[test]
    fn reports_dangling_context() {
        let text = "current-context: a\ncontexts:\n- {name: a, context: {cluster: c, user: u}}\nclusters: []\n";
        let error = Kubeconfig::parse(text)
            .unwrap()
            .current()
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "current-context names cluster \"c\", which it does not contain"
        );
        let error = Kubeconfig::parse("a: 1")
            .unwrap()
            .current()
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert_eq!(error, "current-context is empty");
        assert!(Kubeconfig::parse("- a").is_err());
    }
}

//! kubeconfig files: render, read, and repair without losing what people added.
//!
//! Pure: text in, text out. Only the cluster and the user of the current context are ever touched; every other
//! field, known or not, is kept in its place. Both hold secrets, so both are wiped on drop and have no derived
//! `Debug`.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use zeroize::{Zeroize, Zeroizing};

use crate::yaml;

/// What a component needs to know: where the API server is, whom to trust, who it is.
pub struct Credentials<'a> {
    /// URL of the API server.
    pub server: &'a str,
    /// PEM of the CA certificates that go into the file.
    pub authority: &'a str,
    /// PEM of the client certificate, intermediates after it.
    pub certificate: &'a str,
    /// PEM of the client key.
    pub key: &'a str,
}

/// A kubeconfig document.
pub struct Kubeconfig {
    document: Value,
}

/// Why a kubeconfig cannot be read or repaired.
#[derive(Debug, thiserror::Error)]
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
    #[error("{field} is not valid base64")]
    Base64 { field: &'static str },
}

/// What the current context of a kubeconfig refers to.
#[derive(Default)]
pub struct Current {
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
    /// `client-certificate`: a file instead of data, as the kubelet's own kubeconfig has it.
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
    /// `tokenFile`, which goes before `token`.
    pub token_file: Option<String>,
    /// Fields that change whom to trust or who one is, and that nothing here can follow: `exec` and the like.
    pub beyond: Vec<&'static str>,
}

impl Current {
    /// Whether the kubeconfig itself contains a credential that must stay secret.
    pub fn has_secret(&self) -> bool {
        self.key.is_some() || self.token.is_some()
    }
}

/// Resolves a file reference of a kubeconfig: a relative path is relative to the directory of the kubeconfig (client-go,
/// `ResolveLocalPaths`).
pub fn resolve_path(kubeconfig: &Path, reference: &str) -> PathBuf {
    kubeconfig.parent().unwrap_or(kubeconfig).join(reference)
}

/// What only client-go can do, or nobody should: programs that make credentials, passwords, somebody else's identity,
/// servers that are believed blindly.
const BEYOND_CLUSTER: [&str; 1] = ["insecure-skip-tls-verify"];
const BEYOND_USER: [&str; 8] = [
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
    /// A kubeconfig as kubeadm writes it: one cluster, one user, one context named `user@cluster`.
    pub fn new(cluster: &str, user: &str, credentials: &Credentials<'_>) -> Self {
        let mut kubeconfig = Kubeconfig::without_credentials(cluster, user);
        // The context is there.
        let _ = kubeconfig.set_credentials(credentials);
        kubeconfig
    }

    /// The same, with a cluster and a user of whom nothing is said yet.
    pub fn without_credentials(cluster: &str, user: &str) -> Self {
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

    /// Reads a kubeconfig file.
    pub fn parse(text: &str) -> Result<Self, KubeconfigError> {
        let documents = yaml::parse("kubeconfig", text).map_err(|faults| {
            let first = faults.errors().next().map(ToString::to_string);
            KubeconfigError::NotYaml(first.unwrap_or_default())
        })?;
        match documents.first().map(yaml::to_json) {
            Some(document @ Value::Object(_)) => Ok(Kubeconfig { document }),
            _ => Err(KubeconfigError::NotAMapping),
        }
    }

    /// Resolves the current context.
    pub fn current(&self) -> Result<Current, KubeconfigError> {
        let (cluster, user) = self.current_names()?;
        let mut current = self.cluster(cluster)?;
        self.add_user(&mut current, user)?;
        Ok(current)
    }

    /// The cluster to join, as kubeadm finds it: the one without a name, which `cluster-info` has, else that of the
    /// current context. With the user of the current context, if there is one.
    pub fn to_join(&self) -> Result<Current, KubeconfigError> {
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

    fn cluster(&self, name: String) -> Result<Current, KubeconfigError> {
        let entry = entry(&self.document, "clusters", "cluster", &name)
            .ok_or_else(|| KubeconfigError::Dangling(format!("cluster {name:?}")))?;
        Ok(Current {
            cluster: name,
            server: string(entry, "server"),
            authority: data(entry, "certificate-authority-data")?.map(|bytes| bytes.to_vec()),
            authority_file: string(entry, "certificate-authority"),
            server_name: string(entry, "tls-server-name"),
            proxy: string(entry, "proxy-url"),
            beyond: set_in(entry, &BEYOND_CLUSTER).collect(),
            ..Current::default()
        })
    }

    fn add_user(&self, current: &mut Current, name: String) -> Result<(), KubeconfigError> {
        let entry = entry(&self.document, "users", "user", &name)
            .ok_or_else(|| KubeconfigError::Dangling(format!("user {name:?}")))?;
        current.user = name;
        current.certificate = data(entry, "client-certificate-data")?.map(|bytes| bytes.to_vec());
        current.key = data(entry, "client-key-data")?;
        current.certificate_file = string(entry, "client-certificate");
        current.key_file = string(entry, "client-key");
        current.token = string(entry, "token").map(Zeroizing::new);
        current.token_file = string(entry, "tokenFile");
        current.beyond.extend(set_in(entry, &BEYOND_USER));
        Ok(())
    }

    /// Replaces server, CA, certificate and key of the current context; file references give way to data.
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

    /// Has the user of the current context name one file with its certificate and key, in place of data.
    pub fn set_client_file(&mut self, path: &str) -> Result<(), KubeconfigError> {
        let (_, user) = self.current_names()?;
        let entry = entry_mut(&mut self.document, "users", "user", &user)
            .ok_or_else(|| KubeconfigError::Dangling(format!("user {user:?}")))?;
        for field in ["client-certificate-data", "client-key-data"] {
            if let Some(mut old) = entry.shift_remove(field) {
                wipe(&mut old);
            }
        }
        set(entry, "client-certificate", path.to_owned());
        set(entry, "client-key", path.to_owned());
        Ok(())
    }

    /// Replaces server and CA of the current context and leaves its user alone.
    pub fn set_cluster(&mut self, server: &str, authority: &str) -> Result<(), KubeconfigError> {
        self.set_authority(authority)?;
        let entry = self.current_cluster()?;
        entry.shift_remove("certificate-authority");
        entry.shift_remove("insecure-skip-tls-verify");
        set(entry, "server", server.to_owned());
        Ok(())
    }

    /// Replaces the CA data of the current context and nothing else.
    pub fn set_authority(&mut self, authority: &str) -> Result<(), KubeconfigError> {
        let data = BASE64.encode(authority);
        set(self.current_cluster()?, "certificate-authority-data", data);
        Ok(())
    }

    fn current_cluster(&mut self) -> Result<&mut Map<String, Value>, KubeconfigError> {
        let (cluster, _) = self.current_names()?;
        entry_mut(&mut self.document, "clusters", "cluster", &cluster)
            .ok_or_else(|| KubeconfigError::Dangling(format!("cluster {cluster:?}")))
    }

    /// The file's text.
    pub fn to_yaml(&self) -> Zeroizing<String> {
        // JSON is YAML, so a document that the emitter refuses is still a kubeconfig.
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

/// Wipes every text in a document.
pub(crate) fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(entries) => entries.values_mut().for_each(wipe),
        _ => {}
    }
}

/// The `kind` part of the entry called `name` in the `list` of a kubeconfig.
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

/// Those of the fields that say something: client-go leaves out what is empty or false.
fn set_in<'a>(
    entry: &'a Map<String, Value>,
    fields: &'a [&'static str],
) -> impl Iterator<Item = &'static str> + 'a {
    let says = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        _ => true,
    };
    fields
        .iter()
        .copied()
        .filter(move |field| entry.get(*field).is_some_and(says))
}

fn data(
    entry: &Map<String, Value>,
    field: &'static str,
) -> Result<Option<Zeroizing<Vec<u8>>>, KubeconfigError> {
    match entry.get(field).and_then(Value::as_str) {
        None | Some("") => Ok(None),
        Some(text) => {
            let compact: Zeroizing<String> =
                Zeroizing::new(text.split_ascii_whitespace().collect());
            let bytes = BASE64
                .decode(compact.as_bytes())
                .map_err(|_| KubeconfigError::Base64 { field })?;
            Ok(Some(Zeroizing::new(bytes)))
        }
    }
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
    fn renders_as_kubeadm_does() {
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
    fn repair_keeps_what_people_added() {
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
    fn what_cannot_be_followed_is_named() {
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
    fn the_cluster_to_join_needs_no_context_when_it_has_no_name() {
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
    fn a_dangling_context_is_named() {
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

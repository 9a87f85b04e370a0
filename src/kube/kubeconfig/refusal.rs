//! Values that client-go refuses in the cluster and user of the current context (`tools/clientcmd/validation.go`, `rest`,
//! `transport`). A component with such a kubeconfig does not start, so the rules are exactly those of client-go.

use serde_json::{Map, Value};

use super::{Kubeconfig, data, entry, is_set, string, url};

/// The reason why client-go refuses a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message is the documentation")]
pub enum ClientRefusal {
    #[error("server is empty")]
    NoServer,
    #[error("server is not a URL of http or https, or a host with a port")]
    Server,
    #[error("insecure-skip-tls-verify is set next to a CA")]
    InsecureWithAuthority,
    #[error("{field} and {field}-data are both set")]
    FileAndData {
        field: &'static str,
        /// True if nodepki writes the field.
        is_written: bool,
    },
    #[error("certificate-authority names {0}, which cannot be read")]
    AuthorityFile(String),
    #[error("tokenFile names {0}, which does not contain a token")]
    TokenFile(String),
    #[error("proxy-url is not a URL of http, https or socks5")]
    Proxy,
    #[error("{0} and username or password are both set")]
    TwoMethods(&'static str),
    #[error("as-uid, as-groups or as-user-extra is set without as")]
    ImpersonationWithoutUser,
    #[error("exec and auth-provider are both set")]
    ExecWithAuthProvider,
    #[error("auth-provider.name is {0:?}; clients know oidc only")]
    AuthProvider(String),
    #[error("exec.command is empty")]
    ExecCommand,
    #[error(
        "exec.apiVersion is {0:?}, not client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1"
    )]
    ExecVersion(String),
    #[error("exec.interactiveMode is {0:?}, not Never, IfAvailable or Always")]
    ExecMode(String),
    #[error("a variable of exec.env has an empty name")]
    ExecVariable,
}

impl ClientRefusal {
    /// Returns true if the fields are written by nodepki, so a new version of the file is accepted. All others are
    /// written by an administrator and never changed.
    pub fn is_corrected(&self) -> bool {
        match self {
            ClientRefusal::NoServer
            | ClientRefusal::Server
            | ClientRefusal::InsecureWithAuthority
            | ClientRefusal::AuthorityFile(_) => true,
            ClientRefusal::FileAndData { is_written, .. } => *is_written,
            _ => false,
        }
    }
}

impl Kubeconfig {
    /// Returns the reasons why client-go refuses the current context, as far as the document shows them: not whether the
    /// files exist that it names.
    pub fn client_refusals(&self) -> Vec<ClientRefusal> {
        let mut found = Vec::new();
        let Ok((cluster, user)) = self.current_names() else {
            return found;
        };
        let cluster = entry(&self.document, "clusters", "cluster", &cluster);
        if let Some(cluster) = cluster {
            judge_cluster(cluster, &mut found);
        }
        if let Some(user) = entry(&self.document, "users", "user", &user) {
            let server = cluster.and_then(|cluster| string(cluster, "server"));
            judge_user(
                user,
                server.is_some_and(|server| url::is_https(&server)),
                &mut found,
            );
        }
        found
    }
}

/// client-go: `validateClusterInfo`, `DefaultServerURL`, `transport.TLSConfigFor`.
fn judge_cluster(cluster: &Map<String, Value>, found: &mut Vec<ClientRefusal>) {
    let server = string(cluster, "server");
    match &server {
        None => found.push(ClientRefusal::NoServer),
        Some(server) if !url::is_server(server) => found.push(ClientRefusal::Server),
        Some(_) => {}
    }
    let proxy = string(cluster, "proxy-url");
    if proxy.is_some_and(|proxy| !url::is_proxy(&proxy)) {
        found.push(ClientRefusal::Proxy);
    }
    let has_file = string(cluster, "certificate-authority").is_some();
    let has_data = data(cluster, "certificate-authority-data").is_some();
    if has_file && has_data {
        found.push(ClientRefusal::FileAndData {
            field: "certificate-authority",
            is_written: true,
        });
    }
    // Without TLS the options of TLS are ignored.
    let is_insecure = cluster.get("insecure-skip-tls-verify") == Some(&Value::Bool(true));
    if is_insecure && (has_file || has_data) && server.is_some_and(|server| url::is_https(&server))
    {
        found.push(ClientRefusal::InsecureWithAuthority);
    }
}

/// client-go: `validateAuthInfo`, `getUserIdentificationPartialConfig`, `HTTPWrappersForConfig`. Without TLS, credentials
/// are not used.
fn judge_user(user: &Map<String, Value>, is_https: bool, found: &mut Vec<ClientRefusal>) {
    let has = |field: &str| string(user, field).is_some();
    let has_data = |field: &str| data(user, field).is_some();
    let embeds = has_data("client-certificate-data");
    if has("client-certificate") || embeds {
        for (field, data_field) in [
            ("client-certificate", "client-certificate-data"),
            ("client-key", "client-key-data"),
        ] {
            if has(field) && has_data(data_field) {
                // Files that the kubeconfig names are not written by nodepki.
                let is_written = embeds;
                found.push(ClientRefusal::FileAndData { field, is_written });
            }
        }
    }
    if has("token") {
        if has("username") || has("password") {
            found.push(ClientRefusal::TwoMethods("token"));
        }
    } else if is_https && has("tokenFile") && has("username") {
        found.push(ClientRefusal::TwoMethods("tokenFile"));
    }
    let impersonates = ["as-uid", "as-groups", "as-user-extra"];
    if impersonates
        .iter()
        .any(|field| user.get(*field).is_some_and(is_set))
        && !has("as")
    {
        found.push(ClientRefusal::ImpersonationWithoutUser);
    }
    let provider = user.get("auth-provider").and_then(Value::as_object);
    if let Some(exec) = user.get("exec").and_then(Value::as_object) {
        if provider.is_some() {
            found.push(ClientRefusal::ExecWithAuthProvider);
        }
        judge_exec(exec, is_https, found);
    }
    // kubectl contains this provider only (`plugin/pkg/client/auth`).
    let provider = provider.map(|provider| string(provider, "name").unwrap_or_default());
    found.extend(
        provider
            .filter(|name| is_https && name != "oidc")
            .map(ClientRefusal::AuthProvider),
    );
}

/// client-go: `validateAuthInfo`, `SetDefaults_ExecConfig`, `newAuthenticator`.
fn judge_exec(exec: &Map<String, Value>, is_https: bool, found: &mut Vec<ClientRefusal>) {
    const VERSION: &str = "client.authentication.k8s.io/v1";
    const BETA: &str = "client.authentication.k8s.io/v1beta1";
    const ALPHA: &str = "client.authentication.k8s.io/v1alpha1";
    let text = |field: &str| string(exec, field).unwrap_or_default();
    if text("command").is_empty() {
        found.push(ClientRefusal::ExecCommand);
    }
    let version = text("apiVersion");
    let is_known = if is_https {
        version == VERSION || version == BETA
    } else {
        !version.is_empty()
    };
    let mode = text("interactiveMode");
    let has_default = version == BETA || version == ALPHA;
    let is_mode = ["Never", "IfAvailable", "Always"].contains(&mode.as_str());
    let is_valid = is_mode || (mode.is_empty() && has_default);
    if !is_valid {
        found.push(ClientRefusal::ExecMode(mode));
    }
    if !is_known {
        found.push(ClientRefusal::ExecVersion(version));
    }
    let variables = exec.get("env").and_then(Value::as_array);
    let is_unnamed = |variable: &Value| {
        let name = variable.get("name").and_then(Value::as_str);
        name.is_none_or(str::is_empty)
    };
    if variables.is_some_and(|variables| variables.iter().any(is_unnamed)) {
        found.push(ClientRefusal::ExecVariable);
    }
}

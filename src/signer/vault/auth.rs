//! The ways to log in, as configured; the logging in is `session`'s.

use serde_json::{Map as JsonMap, Value, json};

use super::path;
use crate::signer::server::Server;
use crate::yaml::schema::{SecretFile, required, section};
use crate::yaml::{Field, Map};

/// How the node proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    /// With a token that somebody else takes care of.
    TokenFile(SecretFile),
    /// AppRole.
    AppRole(AppRole),
    /// With the TLS client certificate.
    Certificate {
        /// Path of the method.
        mount: String,
        /// Which of its roles, where several know the same CA.
        role: Option<String>,
    },
    /// With a JSON web token.
    Jwt {
        /// Path of the method.
        mount: String,
        /// Its role; the method's default one otherwise.
        role: Option<String>,
        /// The token.
        file: SecretFile,
    },
    /// With a service-account token.
    Kubernetes {
        /// Path of the method.
        mount: String,
        /// Its role.
        role: Option<String>,
        /// The token.
        file: SecretFile,
    },
}

/// The AppRole method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppRole {
    /// Path of the method.
    pub mount: String,
    /// Name of the AppRole that the `secret_id` must have been made for; known to matter with wrapping only.
    pub role: Option<String>,
    /// `role_id`, which is a name rather than a secret.
    pub role_id: RoleId,
    /// `secret_id`, or the token that wraps it.
    pub secret_id_file: SecretFile,
    /// Whether it is wrapped.
    pub wrapped: bool,
}

/// Where a `role_id` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleId {
    /// Here.
    Text(String),
    /// In a file.
    File(SecretFile),
}

impl Auth {
    pub(super) fn read(field: &Field<'_>) -> Option<Self> {
        let map = field.map()?;
        let mount = |map: &Map<'_>, default: &str| match map.get("mount") {
            Some(field) => path(&field),
            None => Some(default.to_owned()),
        };
        let role = |map: &Map<'_>| map.get("role").and_then(|field| field.string());
        let file = |map: &Map<'_>, key: &str, example: &str| {
            required(map, key, example).and_then(|field| SecretFile::read(&field))
        };
        let mut found = Vec::new();
        if let Some(field) = map.get("tokenFile") {
            found.push(SecretFile::read(&field).map(Auth::TokenFile));
        }
        if let Some(keys) = section(&map, "appRole") {
            let text = keys.get("roleID");
            let role_file = keys.get("roleIDFile");
            if text.is_some() == role_file.is_some() {
                keys.field().error(
                    "needs exactly one of roleID and roleIDFile",
                    "add the role_id, or the file that it is in",
                );
            }
            let role_id = match (text, role_file) {
                (Some(text), _) => text.string().map(RoleId::Text),
                (None, Some(file)) => SecretFile::read(&file).map(RoleId::File),
                (None, None) => None,
            };
            let mount = mount(&keys, "approle");
            let role = role(&keys);
            let secret_id_file = file(&keys, "secretIDFile", "with the file of the secret_id");
            let wrapped = keys.get("wrapped").and_then(|field| field.boolean());
            keys.finish();
            found.push((|| {
                Some(Auth::AppRole(AppRole {
                    mount: mount?,
                    role,
                    role_id: role_id?,
                    secret_id_file: secret_id_file?,
                    wrapped: wrapped.unwrap_or_default(),
                }))
            })());
        }
        if let Some(keys) = section(&map, "certificate") {
            let (mount, role) = (mount(&keys, "cert"), role(&keys));
            keys.finish();
            found.push(mount.map(|mount| Auth::Certificate { mount, role }));
        }
        if let Some(keys) = section(&map, "jwt") {
            let (mount, role) = (mount(&keys, "jwt"), role(&keys));
            let file = file(&keys, "file", "with the file of the JSON web token");
            keys.finish();
            found.push(
                mount
                    .zip(file)
                    .map(|(mount, file)| Auth::Jwt { mount, role, file }),
            );
        }
        if let Some(keys) = section(&map, "kubernetes") {
            let (mount, role) = (mount(&keys, "kubernetes"), role(&keys));
            let file = file(&keys, "file", "with the file of the service-account token");
            keys.finish();
            found.push(
                mount
                    .zip(file)
                    .map(|(mount, file)| Auth::Kubernetes { mount, role, file }),
            );
        }
        map.finish();
        if found.len() != 1 {
            field.error(
                format!("has {} ways to log in", found.len()),
                "keep exactly one of tokenFile, appRole, certificate, jwt, kubernetes",
            );
            return None;
        }
        found.pop().flatten()
    }

    pub(super) fn redacted(&self) -> Value {
        let method = |mount: &String, role: &Option<String>, file: Option<&SecretFile>| {
            let mut keys = JsonMap::new();
            keys.insert("mount".to_owned(), json!(mount));
            if let Some(role) = role {
                keys.insert("role".to_owned(), json!(role));
            }
            if let Some(file) = file {
                keys.insert("file".to_owned(), json!(file.to_string()));
            }
            keys
        };
        match self {
            Auth::TokenFile(file) => json!({"tokenFile": file.to_string()}),
            Auth::AppRole(app) => {
                let mut keys = method(&app.mount, &app.role, None);
                match &app.role_id {
                    RoleId::Text(text) => keys.insert("roleID".to_owned(), json!(text)),
                    RoleId::File(file) => {
                        keys.insert("roleIDFile".to_owned(), json!(file.to_string()))
                    }
                };
                let file = app.secret_id_file.to_string();
                keys.insert("secretIDFile".to_owned(), json!(file));
                keys.insert("wrapped".to_owned(), json!(app.wrapped));
                json!({"appRole": keys})
            }
            Auth::Certificate { mount, role } => json!({"certificate": method(mount, role, None)}),
            Auth::Jwt { mount, role, file } => json!({"jwt": method(mount, role, Some(file))}),
            Auth::Kubernetes { mount, role, file } => {
                json!({"kubernetes": method(mount, role, Some(file))})
            }
        }
    }

    /// Method, place and name; nothing secret.
    pub(super) fn describe(&self) -> String {
        self.redacted().to_string()
    }

    /// What to do when the server does not take the credential.
    pub(super) fn advice(&self, server: &Server) -> String {
        match self {
            Auth::TokenFile(file) => format!("put a new token into {}", server.shown_secret(file)),
            Auth::AppRole(app) => format!(
                "check role_id and the path auth/{} with the server's owner, and deliver a new secret_id in {}: this one is unknown, has expired or is used up",
                app.mount,
                server.shown_secret(&app.secret_id_file)
            ),
            Auth::Certificate { mount, .. } => format!(
                "have the CA of tls.certificate known to a role of auth/{mount}, with this node's names allowed"
            ),
            Auth::Jwt { mount, file, .. } | Auth::Kubernetes { mount, file, .. } => format!(
                "check the token in {} against the role of auth/{mount}: audience, subject and time",
                server.shown_secret(file)
            ),
        }
    }
}

impl AppRole {
    /// Where a `secret_id` of this AppRole is made, for people.
    pub(super) fn expected(&self) -> String {
        let role = self.role.as_deref().unwrap_or("*");
        format!("auth/{}/role/{role}/secret-id", self.mount)
    }

    /// Whether `path` is where such a `secret_id` is made.
    pub(super) fn made(&self, path: &str) -> bool {
        let begin = format!("auth/{}/role/", self.mount);
        let Some((role, last)) = path
            .strip_prefix(&begin)
            .and_then(|rest| rest.rsplit_once('/'))
        else {
            return false;
        };
        let known = self.role.as_deref().is_none_or(|known| known == role);
        known && !role.contains('/') && matches!(last, "secret-id" | "custom-secret-id")
    }
}

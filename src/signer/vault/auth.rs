//! The ways to log in, as configured; `session` performs the login.

use super::config::path;
use crate::signer::server::SignerServer;
use crate::yaml::schema::{SecretFile, ValueForm};
use crate::yaml::settings::{Setting, one_of, settings};

one_of! {
    /// How the node logs in.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum VaultAuth ("ways to log in") {
        /// File with a token that another process renews.
        "tokenFile" => TokenFile(SecretFile),
        /// AppRole.
        "appRole" => AppRole(AppRole),
        /// TLS client certificate.
        "certificate" => Certificate(CertificateLogin),
        /// JSON web token.
        "jwt" => Jwt(JwtLogin),
        /// Service-account token.
        "kubernetes" => Kubernetes(KubernetesLogin),
    }
}

settings! {
    /// The AppRole method.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AppRole {
        /// Path of the AppRole method.
        "mount" => pub mount: String = "approle".to_owned(), read path;
        /// Name of the AppRole: a wrapped secret_id must have been created for it.
        "role" => pub role: Option<String>;
        /// The role_id, which is a name rather than a secret.
        "roleID" => pub role_id: Option<String>;
        /// File with the role_id, in place of roleID.
        "roleIDFile" => pub role_id_file: Option<SecretFile>, form ValueForm::Public;
        /// File with the secret_id, or with the token that wraps it.
        "secretIDFile" => pub secret_id_file: SecretFile, required "with the file of the secret_id";
        /// The file contains a wrapping token.
        "wrapped" => pub wrapped: bool;
    }
}

settings! {
    /// The TLS certificate method, with tls.certificate.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CertificateLogin {
        /// Path of the TLS certificate method; the certificate is tls.certificate.
        "mount" => pub mount: String = "cert".to_owned(), read path;
        /// Role of that method; by default the first that matches.
        "role" => pub role: Option<String>;
    }
}

settings! {
    /// The JWT method.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct JwtLogin {
        /// Path of the JWT method.
        "mount" => pub mount: String = "jwt".to_owned(), read path;
        /// Role of that method; by default the method's default role.
        "role" => pub role: Option<String>;
        /// File with the JSON web token.
        "file" => pub file: SecretFile, required "with the file of the JSON web token";
    }
}

settings! {
    /// The Kubernetes method.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct KubernetesLogin {
        /// Path of the Kubernetes method.
        "mount" => pub mount: String = "kubernetes".to_owned(), read path;
        /// Role of that method.
        "role" => pub role: Option<String>;
        /// File with the service-account token.
        "file" => pub file: SecretFile, required "with the file of the service-account token";
    }
}

impl VaultAuth {
    /// Returns method, path and role, without secrets.
    pub(super) fn describe(&self) -> String {
        self.shown().unwrap_or_default().to_string()
    }

    /// Returns the required action if the server refuses the credential.
    pub(super) fn advice(&self, server: &SignerServer) -> String {
        match self {
            VaultAuth::TokenFile(file) => {
                format!("put a new token into {}", server.shown_secret(file))
            }
            VaultAuth::AppRole(app) => format!(
                "check the role_id in {} and the path auth/{} with the server's owner, and deliver a new secret_id in {}: one of them is unknown, is in the place of the other, has expired or was used up",
                app.role_id_place(server),
                app.mount,
                server.shown_secret(&app.secret_id_file)
            ),
            VaultAuth::Certificate(CertificateLogin { mount, .. }) => format!(
                "add the CA of tls.certificate to a role of auth/{mount}, with this node's names allowed"
            ),
            VaultAuth::Jwt(JwtLogin { mount, file, .. })
            | VaultAuth::Kubernetes(KubernetesLogin { mount, file, .. }) => format!(
                "check the token in {} against the role of auth/{mount}: audience, subject and time",
                server.shown_secret(file)
            ),
        }
    }
}

/// Returns whether a credential is a `secret_id`, which is a UUID, and not the token that wraps one.
fn is_plain_secret_id(text: &str) -> bool {
    let groups: Vec<&str> = text.trim().split('-').collect();
    let is_hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(is_hex)
}

/// Returns whether a text is a service, batch or recovery token.
fn is_token(text: &str) -> bool {
    // Vault before 1.10 and OpenBao omit "hv".
    let prefixes = ["hvs.", "hvb.", "hvr.", "s.", "b.", "r."];
    prefixes.iter().any(|prefix| text.starts_with(prefix))
}

/// Returns why a text is not a role_id; `None` if it may be one. The server's owner may choose almost any text.
pub(crate) fn role_id_fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        Some("is empty")
    } else if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
        Some("contains more than a role_id")
    } else if is_token(text) {
        Some("contains a token, not a role_id")
    } else {
        None
    }
}

impl AppRole {
    /// Returns why the content of `secretIDFile` cannot be what `wrapped` says, and the fix; `None` if it may be. The server's
    /// answer would not name the file, or would look as if another process had used the credential.
    pub(crate) fn secret_id_fault(&self, text: &str) -> Option<(&'static str, &'static str)> {
        if !self.wrapped && is_token(text) {
            Some((
                "contains a token, not a secret_id",
                "set auth.appRole.wrapped: true if it is a wrapping token, or write the secret_id there",
            ))
        } else if self.wrapped && is_plain_secret_id(text) {
            Some((
                "contains a plain secret_id, not a wrapping token",
                "remove auth.appRole.wrapped: true, or deliver a wrapped secret_id",
            ))
        } else {
            None
        }
    }

    /// Returns the file or the setting with the role_id, for messages.
    pub(super) fn role_id_place(&self, server: &SignerServer) -> String {
        match &self.role_id_file {
            Some(file) => server.shown_secret(file),
            None => "auth.appRole.roleID".to_owned(),
        }
    }

    /// Returns the path at which a `secret_id` of this AppRole is created, for messages.
    pub(super) fn expected(&self) -> String {
        let role = self.role.as_deref().unwrap_or("*");
        format!("auth/{}/role/{role}/secret-id", self.mount)
    }

    /// Returns whether such a `secret_id` is created at `path`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_one_word_that_is_no_token_as_role_id() {
        for (text, fault) in [
            ("6a4dcc5f-1b2c-4d3e-8f90-0123456789ab", None),
            ("cp1", None),
            ("hvs.CAESIJ3Z", Some("contains a token, not a role_id")),
            (
                "s.4dcc5f1b2c4d3e8f90",
                Some("contains a token, not a role_id"),
            ),
            ("role_id cp1", Some("contains more than a role_id")),
            ("", Some("is empty")),
        ] {
            assert_eq!(role_id_fault(text), fault, "{text}");
        }
    }

    #[test]
    fn tells_secret_id_from_wrapping_token() {
        assert!(is_plain_secret_id("6a4dcc5f-1b2c-4d3e-8f90-0123456789ab\n"));
        for token in ["hvs.CAESIJ3Z", "s.4dcc5f1b2c4d3e8f90", "6a4dcc5f-1b2c", ""] {
            assert!(!is_plain_secret_id(token), "{token}");
        }
    }
}

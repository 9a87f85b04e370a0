//! The HTTP API of Vault and OpenBao: headers, envelopes, and the meaning of refusals.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::http::{Call, HttpResponse, encode};
use crate::signer::server::SignerServer;
use crate::signer::{FailureClass, SignerError};

/// One namespace of the server.
#[derive(Clone)]
pub(super) struct VaultApi {
    pub(super) server: SignerServer,
    pub(super) namespace: Option<String>,
}

/// Envelope of most successful responses.
#[derive(Deserialize)]
pub(super) struct VaultEnvelope<T> {
    #[serde(default = "none")]
    pub(super) data: Option<T>,
    #[serde(default)]
    pub(super) warnings: Option<Vec<String>>,
}

fn none<T>() -> Option<T> {
    None
}

#[derive(Deserialize)]
struct Errors {
    errors: Vec<String>,
}

impl VaultApi {
    pub(super) fn label(&self) -> &str {
        self.server.label()
    }

    /// Performs one exchange, whatever the status of the response.
    pub(super) async fn exchange(
        &self,
        doing: &str,
        call: Call<'_>,
        token: Option<Zeroizing<String>>,
    ) -> Result<HttpResponse, SignerError> {
        // Vault agents and proxies can require this header, since a browser cannot be tricked into sending it.
        let mut call = call.header("X-Vault-Request", "true");
        if let Some(namespace) = &self.namespace {
            call = call.header("X-Vault-Namespace", namespace.as_str());
        }
        if let Some(token) = token {
            call = call.secret("X-Vault-Token", token);
        }
        self.server.exchange(doing, call).await
    }

    /// Returns the content of a response with status 200.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        doing: &str,
        response: &HttpResponse,
    ) -> Result<T, SignerError> {
        if response.status != 200 {
            return Err(self.refusal(doing, response));
        }
        // The text of a JSON error may quote the content.
        response
            .json()
            .map_err(|_| self.invalid_response(doing, response, "it is not a response of Vault"))
    }

    pub(super) fn invalid_response(
        &self,
        doing: &str,
        response: &HttpResponse,
        why: &str,
    ) -> SignerError {
        self.server.invalid_response(doing, response, why)
    }

    /// Returns the error for a refusal. The status alone is not specific: an unknown role is a 400, an unknown issuer
    /// a 500, a mount that does not exist a 403 or a 404.
    pub(super) fn refusal(&self, doing: &str, response: &HttpResponse) -> SignerError {
        let said = said(response);
        let mut error = self.server.refusal(doing, response, &said);
        if response.status >= 500 && response.json::<serde_json::Value>().is_err() {
            // Proxies before Vault send no 501: they pass every method on.
            if response.status == 501 {
                error.class = FailureClass::Config;
            }
            error.advice = "check the address, and the proxies before the server: this is not a response of Vault".to_owned();
            return error;
        }
        let by_words = BY_TEXT.iter().find(|(words, ..)| said.contains(words));
        let known = by_words
            .map(|(_, class, advice)| (*class, *advice))
            .or_else(|| {
                let by_status = BY_STATUS
                    .iter()
                    .find(|(status, _)| *status == response.status);
                by_status.map(|(_, advice)| (FailureClass::Transient, *advice))
            });
        if let Some((class, advice)) = known {
            error.class = class;
            error.advice = advice.to_owned();
        }
        error
    }
}

/// Part of the refusal of a path below no mount.
const NO_MOUNT: &str = "no handler for route";

/// Returns whether a path was refused since it is below no mount.
pub(super) fn has_no_mount(response: &HttpResponse) -> bool {
    said(response).contains(NO_MOUNT)
}

/// Parts of refusals, with class and required action.
#[rustfmt::skip]
const BY_TEXT: &[(&str, FailureClass, &str)] = &[
    ("is sealed", FailureClass::Transient, "ask the server's operators to unseal it"),
    ("unknown role", FailureClass::Config, "create the role as `nodepki config signer-setup vault` prints it, or correct `role`"),
    ("unable to find PKI issuer", FailureClass::Config, "correct `issuer`: it must be the name or id of an issuer in that mount"),
    ("no default issuer", FailureClass::Config, "put the CA into that mount, or name one of its issuers with `issuer`"),
    (NO_MOUNT, FailureClass::Config, "correct `mount` or `namespace`: there is no mount at that path"),
    ("namespace not found", FailureClass::Config, "correct `namespace`"),
    ("beyond the expiration of the CA", FailureClass::Permanent, "renew the CA, or let its issuer shorten certificates that outlive it (leaf_not_after_behavior=truncate)"),
    ("role requires keys of type", FailureClass::Permanent, "set key_type=any in the role; `nodepki config signer-setup vault` prints a role that fits"),
    ("allowed by this role", FailureClass::Permanent, "allow exactly that name in the role; `nodepki config signer-setup vault` prints a role that fits"),
    ("not allowed in this role", FailureClass::Permanent, "allow exactly that in the role; `nodepki config signer-setup vault` prints a role that fits"),
    ("missing client token", FailureClass::Auth, "renew this node's credential"),
];

/// Statuses specific to these servers, all of them transient.
const BY_STATUS: &[(u16, &str)] = &[
    (412, "the server has not caught up with its cluster yet"),
    (
        472,
        "the address leads to a disaster-recovery secondary: configure the active cluster's address if this persists",
    ),
    (
        473,
        "the address leads to a performance standby: configure the active node's address if this persists",
    ),
    (501, "ask the server's operators to initialise it"),
];

/// Returns whether the server itself refused, and not a proxy before it.
pub(super) fn is_refusal(response: &HttpResponse) -> bool {
    response.json::<Errors>().is_ok()
}

/// Returns whether the server rejected the token itself, and not its policies.
pub(super) fn rejects_token(response: &HttpResponse) -> bool {
    let Ok(Errors { errors }) = response.json() else {
        return false;
    };
    // Vault names the cause. OpenBao and older versions of Vault list denials by policies ("1 error occurred: * …").
    response.status == 403
        && (errors == ["permission denied"]
            || errors.iter().any(|one| one.contains("invalid token")))
}

/// Returns the server's own text, in one line.
pub(super) fn said(response: &HttpResponse) -> String {
    let Ok(Errors { errors }) = response.json() else {
        return response.text().into_owned();
    };
    let words = errors.join("; ");
    let words: Vec<&str> = words.split_whitespace().collect();
    // Go's format of a list with one error.
    words.join(" ").replace("1 error occurred: * ", "")
}

/// Encodes each segment of a mount or name for a path.
pub(super) fn segments(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

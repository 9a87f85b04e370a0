//! The HTTP API of Vault and OpenBao: headers, envelopes, and what the servers' refusals mean.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use crate::http::{Call, Response, encode};
use crate::signer::server::Server;
use crate::signer::{Class, SignerError};

/// The server as one namespace of it.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) server: Server,
    pub(super) namespace: Option<String>,
}

/// What most successful answers are wrapped in.
#[derive(Deserialize)]
pub(super) struct Envelope<T> {
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

impl Api {
    pub(super) fn label(&self) -> &str {
        self.server.label()
    }

    /// One exchange, whatever the status of the answer.
    pub(super) async fn exchange(
        &self,
        doing: &str,
        call: Call<'_>,
        token: Option<Zeroizing<String>>,
    ) -> Result<Response, SignerError> {
        // Vault agents and proxies can be told to take nothing without it: a browser cannot be tricked into sending it.
        let mut call = call.header("X-Vault-Request", "true");
        if let Some(namespace) = &self.namespace {
            call = call.header("X-Vault-Namespace", namespace.as_str());
        }
        if let Some(token) = token {
            call = call.secret("X-Vault-Token", token);
        }
        self.server.exchange(doing, call).await
    }

    /// The content of an answer with status 200.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        doing: &str,
        response: &Response,
    ) -> Result<T, SignerError> {
        if response.status != 200 {
            return Err(self.refusal(doing, response));
        }
        // The text of a JSON error may quote what it could not read.
        response
            .json()
            .map_err(|_| self.garbage(doing, response, "it is not what Vault answers there"))
    }

    pub(super) fn garbage(&self, doing: &str, response: &Response, why: &str) -> SignerError {
        self.server.garbage(doing, response, why)
    }

    /// The error for an answer that says no. The status alone does not tell what is wrong: an unknown role is a 400, an
    /// unknown issuer a 500, a mount that does not exist a 403 or a 404.
    pub(super) fn refusal(&self, doing: &str, response: &Response) -> SignerError {
        let said = said(response);
        let mut error = self.server.refusal(doing, response, &said);
        let known = KNOWN
            .iter()
            .find(|(_, words, _, _)| said.contains(words))
            .or_else(|| {
                KNOWN
                    .iter()
                    .find(|(status, words, _, _)| *status == response.status && words.is_empty())
            });
        if let Some((_, _, class, advice)) = known {
            error.class = *class;
            error.advice = (*advice).to_owned();
        }
        error
    }
}

/// Status where the words are empty; words of the server otherwise; what follows from them.
const KNOWN: &[(u16, &str, Class, &str)] = &[
    (
        503,
        "is sealed",
        Class::Transient,
        "have the server's operators unseal it",
    ),
    (
        400,
        "unknown role",
        Class::Config,
        "create the role as `nodepki config signer-setup vault` prints it, or correct `role`",
    ),
    (
        500,
        "unable to find PKI issuer",
        Class::Config,
        "correct `issuer`: it must be the name or id of an issuer in that mount",
    ),
    (
        500,
        "no default issuer",
        Class::Config,
        "put the CA into that mount, or name one of its issuers with `issuer`",
    ),
    (
        500,
        "backend must be configured with a CA",
        Class::Config,
        "put the CA into that mount",
    ),
    (
        404,
        "no handler for route",
        Class::Config,
        "correct `mount` or `namespace`: nothing is mounted there",
    ),
    (
        404,
        "namespace not found",
        Class::Config,
        "correct `namespace`",
    ),
    (
        400,
        "beyond the expiration of the CA",
        Class::Permanent,
        "renew the CA, or let its issuer shorten what outlives it (leaf_not_after_behavior=truncate)",
    ),
    (
        400,
        "role requires keys of type",
        Class::Permanent,
        "set key_type=any in the role; `nodepki config signer-setup vault` prints a role that fits",
    ),
    (
        400,
        "allowed by this role",
        Class::Permanent,
        "allow exactly that name in the role; `nodepki config signer-setup vault` prints a role that fits",
    ),
    (
        400,
        "not allowed in this role",
        Class::Permanent,
        "allow exactly that in the role; `nodepki config signer-setup vault` prints a role that fits",
    ),
    (
        400,
        "missing client token",
        Class::Auth,
        "have this node's credential renewed",
    ),
    (
        412,
        "",
        Class::Transient,
        "the server has not caught up with its cluster yet",
    ),
    (
        472,
        "",
        Class::Transient,
        "the address leads to a disaster-recovery secondary: name the active cluster's if that goes on",
    ),
    (
        473,
        "",
        Class::Transient,
        "the address leads to a performance standby: name the active node's if that goes on",
    ),
    (
        501,
        "",
        Class::Transient,
        "have the server's operators initialise it",
    ),
];

/// The server's own words, in one line.
pub(super) fn said(response: &Response) -> String {
    let Ok(Errors { errors }) = response.json() else {
        return response.text().into_owned();
    };
    let words = errors.join("; ");
    let words: Vec<&str> = words.split_whitespace().collect();
    // Go's way to print a list of one error.
    words.join(" ").replace("1 error occurred: * ", "")
}

/// A mount or a name with slashes in it as a part of a path.
pub(super) fn segments(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

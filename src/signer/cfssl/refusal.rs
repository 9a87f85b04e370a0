//! The meaning of CFSSL's refusals. Its statuses are not specific, so its texts are interpreted; `serve` and
//! `multirootca` word them differently.

use std::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::profiles::Description;
use super::{CaProfile, Cfssl};
use crate::http::HttpResponse;
use crate::signer::{FailureClass, SignerError, printable};

/// Every response of the API. Its media type is often `text/plain`.
#[derive(Deserialize)]
pub(super) struct CfsslEnvelope {
    pub(super) success: bool,
    #[serde(default)]
    pub(super) result: Value,
    #[serde(default)]
    errors: Option<Vec<Message>>,
    #[serde(default)]
    pub(super) messages: Option<Vec<Message>>,
}

#[derive(Deserialize)]
pub(super) struct Message {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", printable(&self.message, 256), self.code)
    }
}

/// A refusal.
pub(super) struct Refused {
    response: HttpResponse,
    code: i64,
    said: String,
}

/// Meaning of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// `multirootca` has no such section.
    UnknownLabel,
    /// The profile does not exist, according to `multirootca` or a `serve` with remote signers.
    UnknownProfile,
    /// The profile has an `auth_key`, and the request was not signed.
    WantsKey,
    /// The request was signed, and the profile has no `auth_key`.
    HasNoKey,
    /// The request was signed with another key.
    WrongKey,
    /// The address is not in `nets` of the section in `multirootca`'s roots file.
    WrongAddress,
    /// The common name does not match `-mutual-tls-cn`.
    WrongCommonName,
    /// The request contains no CSR.
    NoRequest,
    /// A name is not in `name_whitelist`.
    NotOnWhitelist,
    /// The profile has no usages, or `policy` is otherwise invalid.
    BadPolicy,
    /// Failure of another server that CFSSL needs: a remote CFSSL, a database, a transparency log.
    Behind,
    /// CFSSL understood the request and refuses to sign it.
    WillNotSign,
    /// `multirootca`: an unknown label, or any failure of signing.
    Unspecified,
    /// Not a text of CFSSL.
    Foreign,
}

impl Refused {
    pub(super) fn worded(response: HttpResponse, envelope: CfsslEnvelope) -> Self {
        let first = envelope.errors.into_iter().flatten().next();
        let (code, said) = first.map_or_else(
            || (0, "no reason given".to_owned()),
            |error| (error.code, error.message),
        );
        Refused {
            response,
            code,
            said,
        }
    }

    pub(super) fn unworded(response: HttpResponse) -> Self {
        let said = response.text().trim().to_owned();
        Refused {
            response,
            code: 0,
            said,
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status
    }

    pub(super) fn said(&self) -> String {
        match self.code {
            0 | 1 | 400..=599 => printable(&self.said, 256),
            code => format!("{}, code {code}", printable(&self.said, 256)),
        }
    }

    pub(super) fn meaning(&self) -> Meaning {
        match (self.response.status, self.said.as_str()) {
            (400, "bad label") => Meaning::UnknownLabel,
            (400, "invalid profile") => Meaning::UnknownProfile,
            (400, "authentication required") => Meaning::WantsKey,
            (400, "no authentication provider") | (401, "authorisation required") => {
                Meaning::HasNoKey
            }
            (400, "invalid token") => Meaning::WrongKey,
            (403, "not authorised") => Meaning::WrongAddress,
            (403, "Invalid CN") => Meaning::WrongCommonName,
            (400, "missing parameter 'certificate_request'" | "invalid request") => {
                Meaning::NoRequest
            }
            (400, "bad request") => Meaning::Unspecified,
            // Thousands are the component of CFSSL, hundreds the reason.
            (400 | 200..=299, _) => match self.code {
                5500 => Meaning::NotOnWhitelist,
                5400 => Meaning::UnknownProfile,
                5100 | 5200 => Meaning::BadPolicy,
                9002 => Meaning::NoRequest,
                1000..=5999 | 9000..=9999 => Meaning::WillNotSign,
                6000..=7999 | 10000..=11999 => Meaning::Behind,
                _ => Meaning::Unspecified,
            },
            _ => Meaning::Foreign,
        }
    }
}

impl Cfssl {
    /// Returns the error that a refusal is.
    pub(super) fn judge(&self, doing: &str, refused: &Refused, place: &CaProfile) -> SignerError {
        let what = |why: &str| {
            let (label, said) = (self.server.label(), refused.said());
            match why {
                "" => format!("{label}: {doing} failed: CFSSL reports: {said}"),
                why => format!("{label}: {doing} failed: {why} (CFSSL reports: {said})"),
            }
        };
        let error = match refused.meaning() {
            Meaning::UnknownLabel => SignerError::config(
                what(&format!("there is no CA with the label {:?}", place.label)),
                "write the name of the section in its roots file under `label`",
            ),
            Meaning::UnknownProfile => SignerError::config(
                what(&format!("there is no {place}")),
                "correct the name under `profile`, or add the profile to CFSSL's signing configuration",
            ),
            Meaning::WantsKey => SignerError::config(
                what(&format!(
                    "{place} accepts only requests that are signed with its auth_key"
                )),
                "put that key into a file and name the file under `auth.keyFile`",
            ),
            Meaning::HasNoKey => SignerError::config(
                what(&format!(
                    "{place} has no auth_key, and does not accept signed requests"
                )),
                "give the profile an auth_key in CFSSL's signing configuration; or, with cfssl serve, remove `auth` here",
            ),
            Meaning::WrongKey => SignerError::new(
                FailureClass::Auth,
                what(&format!(
                    "the request was not signed with the auth_key of {place}"
                )),
                format!(
                    "put that key into {}; during a key change the server can accept the old one as prev_auth_key",
                    self.config.key_file().map_or_else(
                        || "the file under auth.keyFile".to_owned(),
                        |file| self.server.shown_secret(file)
                    )
                ),
            ),
            Meaning::WrongAddress => SignerError::new(
                FailureClass::Auth,
                what("this node's address is not allowed"),
                format!(
                    "add it to the `nets` of section {} in multirootca's roots file",
                    place.label
                ),
            ),
            Meaning::WrongCommonName => SignerError::new(
                FailureClass::Auth,
                what("the common name of the client certificate is not allowed"),
                "use a certificate under `tls` whose common name matches CFSSL's -mutual-tls-cn",
            ),
            Meaning::BadPolicy => SignerError::config(
                what(&format!("{place} cannot sign")),
                "give it usages in CFSSL's signing configuration, or correct its name under `profile`: an unknown one is the default profile",
            ),
            Meaning::Behind => SignerError::new(
                FailureClass::Transient,
                what(
                    "a component that CFSSL needs does not work: a remote signer, its database or a log",
                ),
                "check CFSSL's log if this persists",
            ),
            Meaning::NotOnWhitelist | Meaning::WillNotSign | Meaning::NoRequest => {
                SignerError::permanent(
                    what(""),
                    "check with the owner of CFSSL what its signing configuration allows, and run again",
                )
            }
            // A failure of signing; an unknown label would have been found before.
            Meaning::Unspecified if self.knows(place) => SignerError::permanent(
                what("it refused to sign"),
                format!(
                    "CFSSL's log has the reason; often the name_whitelist of {place} lacks one of the names"
                ),
            ),
            Meaning::Unspecified => SignerError::config(
                what("it refused to sign, or the label is unknown"),
                format!(
                    "check that CFSSL has a CA with the label {:?}; its log has details",
                    place.label
                ),
            ),
            Meaning::Foreign => self.foreign(doing, refused),
        };
        error.retry_after(refused.response.retry_after)
    }

    /// Returns the error for a response that is not CFSSL's, or that of a disabled endpoint.
    fn foreign(&self, doing: &str, refused: &Refused) -> SignerError {
        let mut error = self.server.refusal(doing, &refused.response, &refused.said);
        if refused.status() == 404 {
            let (path, why) = match self.config.key_file() {
                Some(_) => (
                    "authsign",
                    "cfssl serve has it only where a profile has an auth_key",
                ),
                None => (
                    "sign",
                    "multirootca never has it, cfssl serve not where every profile has an auth_key; then name the key's file under `auth.keyFile`",
                ),
            };
            error.advice = format!(
                "check that the address is CFSSL's, and that `info` and `{path}` are not disabled there: {why}"
            );
        }
        error
    }

    fn knows(&self, place: &CaProfile) -> bool {
        matches!(self.learned.borrow().get(place), Some(Description::As(_)))
    }
}

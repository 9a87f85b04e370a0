//! The token of a submission: created here, or read from a file and recorded as sent, since a server accepts it once.

use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::StepCa;
use super::token::{self, Credential, Terms};
use crate::signer::server::{SignerServer, signing};
use crate::signer::{FailureClass, Request, RequestedCertificate, SignerError};
use crate::text::hex;
use crate::yaml::schema::SecretFile;

/// A token to be sent.
pub(super) struct SubmissionToken {
    pub(super) text: Zeroizing<String>,
    /// Its file, if it was not created here.
    pub(super) file: Option<SecretFile>,
    /// Latest end of a certificate that it authorizes.
    pub(super) until: Option<OffsetDateTime>,
}

impl StepCa {
    /// Returns a token for one submission of this request.
    pub(super) fn token(
        &self,
        server: &SignerServer,
        request: &Request,
    ) -> Result<SubmissionToken, SignerError> {
        let Some(credential) = Credential::read(server, &self.config.auth, request.now)? else {
            return self.token_from_file(server, request);
        };
        let known = self.known.borrow();
        let terms = Terms {
            provisioner: &self.config.provisioner,
            audience: &self.audience,
            kid: known.as_ref().and_then(|known| known.kid.as_deref()),
            root_sha256: self.config.root_sha256,
        };
        Ok(SubmissionToken {
            text: token::mint(&credential, &terms, request)?,
            file: None,
            until: credential.not_after(),
        })
    }

    /// Returns the token from this certificate's file, and records it as sent.
    fn token_from_file(
        &self,
        server: &SignerServer,
        request: &Request,
    ) -> Result<SubmissionToken, SignerError> {
        let doing = signing(request);
        let auth = &self.config.auth;
        let Some(file) = auth.token_file(&request.wanted, &self.identity) else {
            return Err(server.failed(
                FailureClass::Config,
                &doing,
                "auth.token.file has no file for it",
                format!("add {}: FILE to it", request.name()),
            ));
        };
        let needed = |why: String| {
            let advice = self.new_token_advice(&file, &request.wanted);
            server.failed(FailureClass::Auth, &doing, why, advice)
        };
        let shown = server.shown_secret(&file);
        let text = server.secret(&file).map_err(|error| {
            needed(format!(
                "there is no one-time token for it: {}",
                error.detail
            ))
        })?;
        let mark = hex(&Sha256::digest(text.as_bytes()));
        let place = mark_name(request);
        let kept = self
            .memory
            .recall(&place)
            .map_err(|error| self.memory_failure(&error))?;
        if kept.is_some_and(|kept| kept.as_slice() == mark.as_bytes()) {
            return Err(needed(format!(
                "the one-time token in {shown} was sent before, and a token is accepted only once"
            )));
        }
        if let Some(why) = token::obstacle(
            &text,
            &self.config.provisioner,
            &request.wanted,
            request.now,
        ) {
            return Err(needed(format!(
                "the one-time token in {shown} is unusable: {why}"
            )));
        }
        // Before it is sent: after a crash it is unknown whether the server has accepted it.
        self.memory
            .keep(&place, mark.as_bytes())
            .map_err(|error| self.memory_failure(&error))?;
        Ok(SubmissionToken {
            text,
            file: Some(file),
            until: None,
        })
    }

    fn memory_failure(&self, error: &std::io::Error) -> SignerError {
        SignerError::config(
            format!(
                "{}: sent one-time tokens cannot be recorded: {error}",
                self.server.label()
            ),
            "make the state directory writable",
        )
        .marked_by(error)
    }

    fn new_token_advice(&self, file: &SecretFile, wanted: &RequestedCertificate) -> String {
        format!(
            "put a new one-time token for {} into {} and run again; create it with: {}",
            wanted.name,
            self.server.shown_secret(file),
            token::command(&self.config.provisioner, wanted)
        )
    }

    /// Completes an error with its consequence for a token from a file.
    pub(super) fn with_token_state(
        &self,
        request: &Request,
        ready: &SubmissionToken,
        mut error: SignerError,
        sent: bool,
    ) -> SignerError {
        let Some(file) = &ready.file else {
            return error;
        };
        if !sent {
            // The token stays valid. A mark that cannot be removed only costs a token.
            if let Err(why) = self.memory.forget(&mark_name(request)) {
                tracing::debug!(error = %why, "a token that was not sent counts as sent");
            }
            return error;
        }
        error.detail.push_str("; the one-time token in ");
        error.detail.push_str(&file.to_string());
        error.detail.push_str(" is used up");
        let new = self.new_token_advice(file, &request.wanted);
        if error.class.passes() || error.class == FailureClass::Auth {
            // The node cannot recover automatically, and the certificate cannot be looked up.
            error.class = FailureClass::Auth;
            error.retry_after = None;
            error.advice = new;
        } else {
            error.advice = format!("{}, and {new}", error.advice);
        }
        error
    }
}

fn mark_name(request: &Request) -> String {
    format!("token-{}", request.name())
}

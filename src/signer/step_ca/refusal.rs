//! The meaning of step-ca's refusals. Its 401 deliberately has no reason, its 403 states exactly what is wrong.

use serde::Deserialize;
use time::OffsetDateTime;

use super::super::server::SignerServer;
use super::super::{Answer, FailureClass, SignerError, printable};
use super::token::CLOCK_TOLERANCE;
use crate::http::HttpResponse;

/// Beginning of the message of step-ca's own 403; others come from a proxy.
const FORBIDDEN_PREFIX: &str = "The request was forbidden by the certificate authority";

/// Properties of the request, for the possible causes of a 401.
pub(super) struct Sent<'a> {
    pub(super) provisioner: &'a str,
    pub(super) audience: &'a str,
    /// The server's list of provisioners was compared with what signed the token.
    pub(super) compared: bool,
    /// The token was not created here.
    pub(super) token_from_file: bool,
    pub(super) now: OffsetDateTime,
}

/// Returns the server's own text.
pub(super) fn said(response: &HttpResponse) -> String {
    #[derive(Deserialize)]
    struct Said {
        message: String,
    }
    response
        .json::<Said>()
        .map_or_else(|_| response.text().into_owned(), |said| said.message)
}

/// Interprets a refusal of `/sign`.
pub(super) fn judge(
    server: &SignerServer,
    doing: &str,
    response: &HttpResponse,
    sent: &Sent<'_>,
) -> Result<Answer, SignerError> {
    let said = said(response);
    let error = |class, advice: String| {
        let mut error = server.refusal(doing, response, &said);
        error.class = class;
        error.advice = advice;
        Err(error)
    };
    let has = |part: &str| said.contains(part);
    match response.status {
        401 => error(FailureClass::Auth, causes(response, sent)),
        403 if has("maximum certificate duration") => error(
            FailureClass::Config,
            format!(
                "set claims.maxTLSCertDuration of the provisioner {} to at least the requested lifetime (8760h \
                 for kubeadm's year; step-ca's default is 24h), or `lifetime` here to what it allows",
                sent.provisioner
            ),
        ),
        403 if has("minimum certificate duration") => error(
            FailureClass::Config,
            format!(
                "request a longer lifetime, or lower claims.minTLSCertDuration of the provisioner {}",
                sent.provisioner
            ),
        ),
        403 if has("the provisioning credential") => error(
            FailureClass::Config,
            "a certificate does not outlive the one that signs the token: issue a longer one for auth.x5c, or set \
             `lifetime`"
                .to_owned(),
        ),
        // A name policy, an enriching webhook, or a deciding one, which gives no other reason.
        403 if has(FORBIDDEN_PREFIX)
            && (has(" not allowed") || has("did not allow") || has("error creating certificate")) => Ok(Answer::Denied {
            reason: printable(&said, 512),
        }),
        403 if has(FORBIDDEN_PREFIX) => error(
            FailureClass::Permanent,
            "ask the server's owner for the requirements of its policy, then run again".to_owned(),
        ),
        500 if has("certificate template") => error(
            FailureClass::Config,
            format!(
                "give the provisioner {} the template that `nodepki config signer-setup stepCA` prints",
                sent.provisioner
            ),
        ),
        _ => Err(server.refusal(doing, response, &said)),
    }
}

/// Returns possible causes: the server logs the reason and does not send it.
fn causes(response: &HttpResponse, sent: &Sent<'_>) -> String {
    let mut causes = Vec::new();
    let skew = response.date.map(|theirs| sent.now - theirs);
    if let Some(skew) = skew.filter(|skew| skew.abs() > CLOCK_TOLERANCE) {
        let direction = if skew.is_positive() {
            "ahead of"
        } else {
            "behind"
        };
        causes.push(format!(
            "this machine's clock is {} s {direction} the server's, which allows {} s: set the clock",
            skew.whole_seconds().abs(),
            CLOCK_TOLERANCE.whole_seconds()
        ));
    }
    if sent.token_from_file {
        causes.push(
            "the token was used before, has expired, or is older than the server's last start"
                .to_owned(),
        );
    }
    if !sent.compared {
        causes.push(format!(
            "the provisioner {} does not exist there or has another key",
            sent.provisioner
        ));
    }
    causes.push(if sent.token_from_file {
        "its audience names none of the dnsNames in the server's configuration".to_owned()
    } else {
        format!(
            "the token's audience {} names none of the dnsNames in the server's configuration: set `audience`",
            sent.audience
        )
    });
    format!(
        "step-ca states the reason only in its log; usual causes: {}",
        causes.join("; or ")
    )
}

/// Interprets a refusal of `/renew` or `/rekey`.
pub(super) fn judge_renewal(
    server: &SignerServer,
    doing: &str,
    response: &HttpResponse,
    provisioner: &str,
) -> SignerError {
    let said = said(response);
    let mut error = server.refusal(doing, response, &said);
    if response.status == 401 {
        error.advice = format!(
            "issue a new certificate with a token instead; step-ca states the reason only in its log, usually that \
             the current one has expired or was revoked, or that the provisioner {provisioner} has disableRenewal"
        );
    } else if response.status == 400 && said.contains("missing client certificate") {
        error.class = FailureClass::Config;
        error.advice = "something between here and step-ca ends TLS, and the client certificate with it: name \
                        step-ca's own address"
            .to_owned();
    }
    error
}

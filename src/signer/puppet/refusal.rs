//! The meaning of the responses of a Puppet CA that are not a success.

use super::certname::certname;
use super::{HeldCertificate, Puppet};
use crate::http::HttpResponse;
use crate::signer::server::{MAX_QUOTED, SignerServer};
use crate::signer::{FailureClass, Request, SignerError, printable};

impl Puppet {
    pub(super) fn foreign(&self, what: &str, request: &Request, doing: &str) -> SignerError {
        let certname = certname(&request.wanted);
        self.server.failed(
            FailureClass::Permanent,
            doing,
            format!("the CA has a {what} of another key under the certname {certname}"),
            format!(
                "if it is this node's earlier one, remove it there (puppetserver ca clean --certname {certname}, which revokes it) and run again; if it belongs to another node, choose another name: commonNames.{}",
                request.name()
            ),
        )
    }

    /// Returns the error for a refused PUT. Some of these requests stay on the server.
    pub(super) async fn refused_put(
        &self,
        server: &SignerServer,
        request: &Request,
        doing: &str,
        response: &HttpResponse,
    ) -> SignerError {
        let certname = certname(&request.wanted);
        let said = answered(response);
        let kept = matches!(
            self.held(server, request, doing).await,
            Ok(HeldCertificate::Request)
        );
        let mut what = format!("the CA refuses the request for {certname}: {said}");
        let advice = match (kept, said.contains("allow-subject-alt-names")) {
            (true, true) => format!(
                "set allow-subject-alt-names: true in its ca.conf, restart it, then sign the queued request (puppetserver ca sign --certname {certname}) and run again"
            ),
            (true, false) => format!(
                "correct what it names, then sign the queued request (puppetserver ca sign --certname {certname}) or remove it (puppetserver ca clean --certname {certname}), and run again"
            ),
            (false, _) => {
                "correct what it names, there or in the configuration, and run again".to_owned()
            }
        };
        if kept {
            what.push_str("; the request stays queued there");
        }
        self.server
            .failed(FailureClass::Permanent, doing, what, advice)
    }

    /// Returns the error for a response that is not one of Puppet's usual ones.
    pub(super) fn refusal(&self, doing: &str, response: &HttpResponse) -> SignerError {
        let mut error = self.server.refusal(doing, response, &response.text());
        match response.status {
            403 => {
                error.advice =
                    "allow it in the server's auth.conf (rules \"puppetlabs csr\" and \"puppetlabs certificate\")"
                        .to_owned();
            }
            404 => {
                error.advice = "check that the address is that of the Puppet CA itself: other Puppet servers and proxies do not have it".to_owned();
            }
            _ => {}
        }
        error
    }
}

/// Returns whether the CA reports that the object does not exist. Any other 404 comes from another program.
pub(super) fn is_absent(response: &HttpResponse) -> bool {
    response.status == 404 && response.text().starts_with("Could not find certificate")
}

pub(super) fn answered(response: &HttpResponse) -> String {
    let said = printable(&response.text(), MAX_QUOTED);
    format!("HTTP {} {said}", response.status)
        .trim_end()
        .to_owned()
}

/// Returns whether the parser refused the request; nothing of it is stored then.
pub(super) fn is_unreadable_csr(response: &HttpResponse) -> bool {
    let text = response.text();
    text.contains("org.bouncycastle") || text.contains("IndexOutOfBoundsException")
}

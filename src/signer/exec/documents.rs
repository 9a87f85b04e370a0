//! The JSON documents of the plug-in contract, and the violations of its rules.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ASSUMED, TEXT_LIMIT, Verb};
use crate::kube::names::Authority;
use crate::signer::wire::API_VERSION;
use crate::signer::{Answer, Caps, Carry, Request, RequestLookup, Resubmit, Ticket, printable};
use crate::x509::UsageExtensions;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Inquiry {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ca: Option<Authority>,
}

impl Inquiry {
    pub(super) fn new(kind: &'static str, ca: Option<Authority>) -> Self {
        Inquiry {
            api_version: API_VERSION,
            kind,
            ca,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InfoResponse {
    kind: String,
    api_versions: Vec<String>,
    capabilities: Capabilities,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Capabilities {
    organization: bool,
    colon_common_name: bool,
    ip_sans: bool,
    usage_extensions_in_csr: bool,
    crl: bool,
    resubmit: String,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            organization: true,
            colon_common_name: true,
            ip_sans: true,
            usage_extensions_in_csr: true,
            crl: false,
            resubmit: "idempotent".to_owned(),
        }
    }
}

impl InfoResponse {
    pub(super) fn caps(&self) -> Result<Caps, String> {
        let versions = self.api_versions.join(", ");
        require(&[("kind", &self.kind), ("apiVersions", &versions)])?;
        if self.kind != "InfoResponse" {
            return Err(format!(
                "it answered `info` with kind {:?}",
                printable(&self.kind, TEXT_LIMIT)
            ));
        }
        if !self.api_versions.iter().any(|known| known == API_VERSION) {
            return Err(format!(
                "it speaks [{}] and not {API_VERSION}",
                printable(&versions, TEXT_LIMIT)
            ));
        }
        let declared = &self.capabilities;
        let carry = |yes| if yes { Carry::Yes } else { Carry::No };
        Ok(Caps {
            renewal: ASSUMED.renewal,
            crl: carry(declared.crl),
            own_name_san: ASSUMED.own_name_san,
            other_nodes: ASSUMED.other_nodes,
            empty_csr: ASSUMED.empty_csr,
            organization: carry(declared.organization),
            colon_common_name: carry(declared.colon_common_name),
            ip_sans: carry(declared.ip_sans),
            ml_dsa: ASSUMED.ml_dsa,
            usage_extensions: if declared.usage_extensions_in_csr {
                UsageExtensions::Requested
            } else {
                UsageExtensions::Omitted
            },
            pends: true,
            lookup: RequestLookup::ByTicket,
            resubmit: match declared.resubmit.as_str() {
                "idempotent" => Resubmit::Adopts,
                "duplicates" => Resubmit::Duplicates,
                "once" => Resubmit::Forbidden,
                other => {
                    return Err(format!(
                        "its capability `resubmit` is {:?}, not idempotent, duplicates or once",
                        printable(other, TEXT_LIMIT)
                    ));
                }
            },
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TrustResponse {
    api_version: String,
    kind: String,
    pub(super) ca_pem: Option<String>,
    pub(super) crl_pem: Option<String>,
}

impl TrustResponse {
    pub(super) fn verify(&self) -> Result<(), String> {
        require(&[("apiVersion", &self.api_version), ("kind", &self.kind)])?;
        expect("apiVersion", &self.api_version, API_VERSION)?;
        expect("kind", &self.kind, "TrustResponse")
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SignResponse {
    api_version: String,
    kind: String,
    request_id: String,
    result: String,
    certificate_pem: Option<String>,
    chain_pem: Option<String>,
    handle: Option<String>,
    retry_after_seconds: Option<u64>,
    reason: Option<String>,
    message: Option<String>,
}

pub(super) enum PluginResponse {
    Answer(Answer),
    Failed(String),
    Retry {
        after: Option<Duration>,
        why: String,
    },
}

/// Parses exactly one JSON object, surrounded by nothing but white space.
pub(super) fn parse<T: for<'de> Deserialize<'de>>(output: &[u8]) -> Result<T, String> {
    let text = output.trim_ascii();
    match text.first() {
        Some(b'{') => {}
        Some(_) => return Err("its stdout is not one JSON object".to_owned()),
        None => return Err("its stdout is empty".to_owned()),
    }
    // The parser's message contains a position and field names, never the content.
    serde_json::from_slice(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => format!(
            "a field of its JSON has another type, at line {} column {}",
            error.line(),
            error.column()
        ),
        _ => format!("its stdout is not one JSON object: {error}"),
    })
}

/// Fails with the names of all required fields that a response does not have.
fn require(fields: &[(&str, &str)]) -> Result<(), String> {
    let absent = fields.iter().filter(|(_, value)| value.is_empty());
    let names: Vec<&str> = absent.map(|(name, _)| *name).collect();
    if names.is_empty() {
        Ok(())
    } else {
        Err(format!("its JSON has no {}", names.join(", ")))
    }
}

fn expect(what: &str, found: &str, wanted: &str) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    Err(format!(
        "its {what} is {:?}, not {wanted:?}",
        printable(found, 100)
    ))
}

pub(super) fn understand(
    output: &[u8],
    verb: Verb,
    request: &Request,
    ticket: Option<&Ticket>,
) -> Result<PluginResponse, String> {
    read_response(parse(output)?, verb, request, ticket)
}

fn read_response(
    response: SignResponse,
    verb: Verb,
    request: &Request,
    ticket: Option<&Ticket>,
) -> Result<PluginResponse, String> {
    require(&[
        ("apiVersion", &response.api_version),
        ("kind", &response.kind),
        ("requestId", &response.request_id),
        ("result", &response.result),
    ])?;
    expect("apiVersion", &response.api_version, API_VERSION)?;
    expect("kind", &response.kind, "SignResponse")?;
    expect("requestId", &response.request_id, request.id.as_str())?;
    let after = response.retry_after_seconds.map(Duration::from_secs);
    let why = words(response.reason.as_deref(), response.message.as_deref());
    let fresh = match response.handle {
        Some(handle) => Some(Ticket::try_from(handle).map_err(|error| error.to_string())?),
        None => None,
    };
    let pending = |ticket: Ticket| {
        PluginResponse::Answer(Answer::Pending {
            ticket,
            after,
            note: why.clone(),
            is_uniform: false,
        })
    };
    Ok(match response.result.as_str() {
        "issued" => {
            let mut answer = response
                .certificate_pem
                .filter(|pem| !pem.trim().is_empty())
                .ok_or("its result is issued without a certificatePem")?;
            if let Some(chain) = response.chain_pem {
                if !answer.ends_with('\n') {
                    answer.push('\n');
                }
                answer.push_str(&chain);
            }
            PluginResponse::Answer(Answer::Issued(answer.into_bytes()))
        }
        "pending" => pending(
            fresh
                .or_else(|| ticket.cloned())
                .ok_or("its result is pending without a handle")?,
        ),
        "denied" => PluginResponse::Answer(Answer::Denied { reason: why }),
        "failed" => PluginResponse::Failed(why),
        "retry" => match fresh {
            // The program has begun something: the handle must not get lost.
            Some(ticket) => pending(ticket),
            None => PluginResponse::Retry { after, why },
        },
        "gone" if verb == Verb::Poll => PluginResponse::Answer(Answer::Gone),
        other => return Err(format!("its result {:?} is unknown", printable(other, 100))),
    })
}

pub(super) fn words(reason: Option<&str>, message: Option<&str>) -> String {
    let parts: Vec<_> = [reason, message]
        .into_iter()
        .flatten()
        .map(|text| printable(text, TEXT_LIMIT))
        .filter(|text| !text.is_empty())
        .collect();
    if parts.is_empty() {
        "no reason given".to_owned()
    } else {
        parts.join(": ")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn names_all_absent_fields_at_once() {
        let response = |text: &str| parse::<TrustResponse>(text.as_bytes()).unwrap().verify();
        assert_eq!(
            response("{}"),
            Err("its JSON has no apiVersion, kind".to_owned())
        );
        assert_eq!(
            response(&format!("{{\"apiVersion\":\"{API_VERSION}\"}}")),
            Err("its JSON has no kind".to_owned())
        );
        let info = parse::<InfoResponse>(b"{}").unwrap().caps();
        assert_eq!(
            info.err(),
            Some("its JSON has no kind, apiVersions".to_owned())
        );
    }

    #[test]
    fn rejects_stdout_that_is_not_one_object() {
        let value = |text: &str| parse::<BTreeMap<String, String>>(text.as_bytes());
        assert!(value(" {\"a\":\"b\"} \n").is_ok());
        for broken in ["", "[]", "{\"a\":\"b\"}{}", "{\"a\":", "null", "x{}"] {
            assert!(value(broken).is_err(), "{broken}");
        }
    }
}

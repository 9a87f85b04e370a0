//! The script for an administrator of a step-ca: the certificate template, and a provisioner that uses it.

use std::fmt::Write as _;

use super::Config;
use super::token::{JwkKeys, StepCaAuth, X5cKeys, command};
use crate::signer::shell::{filled, one_line, quoted};
use crate::signer::{NodeIdentity, Part};
use crate::yaml::format_duration;

/// Certificate template of step-ca. The tests extract it from the printed script.
const TEMPLATE: &str = include_str!("setup.tpl");

/// Returns one script for all signers; each signer's part is for the machine of its step-ca.
pub(super) fn print(parts: &[Part<'_, Config>], identity: &NodeIdentity) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let mut signers = String::new();
    for part in parts {
        let _ = writeln!(signers, "{})", quoted(part.name));
        signer(&mut signers, part);
        signers.push_str("  ;;\n");
    }
    let default = match names.as_slice() {
        [one] => *one,
        _ => "",
    };
    filled(
        include_str!("setup.sh"),
        &[
            ("CLUSTER", &one_line(&identity.cluster)),
            ("CHOICES", &names.join("|")),
            ("TEMPLATE", TEMPLATE),
            ("DEFAULT", default),
            ("SIGNERS", &signers),
            ("NAMES", &names.join(", ")),
        ],
    )
}

fn signer(script: &mut String, part: &Part<'_, Config>) {
    let config = part.config;
    let longest = part
        .wanted
        .iter()
        .map(|wanted| wanted.profile.lifetime)
        .max();
    let longest = longest.unwrap_or_default();
    let longest = config.lifetime.map_or(longest, |most| most.min(longest));
    let provisioner = quoted(&config.provisioner);
    let _ = writeln!(script, "  # the step-ca at {}", config.endpoint.url);
    let (comment, proof) = match &config.auth {
        StepCaAuth::X5c(X5cKeys { certificate, .. }) => (
            format!(
                "bootstrap-ca.crt is the CA that issues the nodes' {certificate}, which need client authentication."
            ),
            "--type X5C --x5c-roots \"${ROOTS:-bootstrap-ca.crt}\"",
        ),
        StepCaAuth::Jwk(JwkKeys { key_file, .. }) => (
            format!(
                "The nodes have the private key as {key_file}, with mode 0600. A pair is created with:\n  \
                 #   step crypto jwk create nodepki.pub nodepki.jwk --no-password --insecure"
            ),
            "--type JWK --public-key \"${PUBLIC:-nodepki.pub}\"",
        ),
        StepCaAuth::Token(_) => (
            "Its key stays here; it signs the tokens.".to_owned(),
            "--type JWK --create",
        ),
    };
    let _ = writeln!(script, "  # {}", one_line(&comment));
    let _ = writeln!(
        script,
        "  step ca provisioner add {provisioner} {proof} --x509-template \"$TEMPLATE\" --x509-max-dur {}",
        // In Go's notation, without a fraction.
        format_duration(longest)
    );
    if let StepCaAuth::Token(_) = config.auth {
        script.push_str("  # Each issuance of each certificate needs a new token:\n");
        for wanted in &part.wanted {
            let _ = writeln!(
                script,
                "  #   {} -> {}",
                one_line(&command(&config.provisioner, wanted)),
                wanted.name
            );
        }
    }
}

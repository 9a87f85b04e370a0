//! The script for an administrator of a step-ca: the certificate template, and a provisioner that uses it.

use std::fmt::Write as _;

use super::Config;
use super::token::{JwkKeys, StepCaAuth, X5cKeys, command};
use crate::signer::shell::{echo, filled, one_line, quoted};
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
    let (comment, proof, copied) = match &config.auth {
        StepCaAuth::X5c(X5cKeys { certificate, key }) => (
            "bootstrap-ca.crt is the CA that issues the nodes' certificates for client authentication.",
            "--type X5C --x5c-roots \"${ROOTS:-bootstrap-ca.crt}\"",
            format!(
                "copy a certificate for client authentication by bootstrap-ca.crt to each node, as {certificate}, and its key as {key}, with mode 0600"
            ),
        ),
        StepCaAuth::Jwk(JwkKeys { key_file, .. }) => (
            "A pair is created with: step crypto jwk create nodepki.pub nodepki.jwk --no-password --insecure",
            "--type JWK --public-key \"${PUBLIC:-nodepki.pub}\"",
            format!("copy nodepki.jwk to the nodes, as {key_file}, with mode 0600"),
        ),
        StepCaAuth::Token(_) => (
            "Its key stays here; it signs the tokens.",
            "--type JWK --create",
            "write the tokens to the node, with mode 0600; the comments of this script have the commands"
                .to_owned(),
        ),
    };
    let _ = writeln!(script, "  # {comment}");
    let _ = writeln!(
        script,
        "  step ca provisioner add {provisioner} {proof} --x509-template \"$TEMPLATE\" --x509-max-dur {}",
        // In Go's notation, without a fraction.
        format_duration(longest)
    );
    let _ = write!(script, "  {}", echo(&copied));
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

//! What an administrator of a step-ca runs: the certificate template, and a provisioner that uses it.

use std::fmt::Write as _;

use super::Config;
use super::token::{Auth, command};
use crate::signer::shell::{one_line, quoted};
use crate::signer::{Identity, Part};
use crate::yaml::format_duration;

/// Read by step-ca as it is; the tests use it from the printed script.
const TEMPLATE: &str = include_str!("setup.tpl");

/// One script for all; each signer's part is for the machine of that signer's step-ca.
pub(super) fn print(parts: &[Part<'_, Config>], identity: &Identity) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.name).collect();
    let mut script = format!(
        "#!/bin/sh\n\
         # Sets a step-ca up for the control-plane nodes of cluster {}. Run it where `step` may administer that step-ca:\n\
         #   sh SCRIPT {}\n\
         # A step-ca has one root, so each of kubeadm's authorities needs one of its own.\n\
         #\n\
         # Whoever can sign tokens for the provisioner can have every name that Kubernetes knows, system:masters too:\n\
         # what signs them (the roots of X5C, the key of JWK) should be good for nothing else.\n\
         #\n\
         # \"crl\": {{\"enabled\": true, \"generateOnRevoke\": true}} in its ca.json makes it publish what it revoked.\n\
         set -eu\n\n\
         # Without this template step-ca drops organizations, gives every certificate both server and client\n\
         # authentication, and names certificates that want no alternative names after their common name.\n\
         TEMPLATE=${{TEMPLATE:-nodepki.tpl}}\n\
         cat > \"$TEMPLATE\" <<'END'\n{TEMPLATE}END\n\n",
        one_line(&identity.cluster),
        names.join("|"),
    );
    let default = match names.as_slice() {
        [one] => *one,
        _ => "",
    };
    let _ = writeln!(script, "case \"${{1:-{default}}}\" in");
    for part in parts {
        let _ = writeln!(script, "{})", quoted(part.name));
        signer(&mut script, part);
        script.push_str("  ;;\n");
    }
    let _ = write!(
        script,
        "*)\n  echo \"say which signer's step-ca this is: {}\" >&2\n  exit 64\n  ;;\nesac\n",
        names.join(", ")
    );
    script.push_str(
        "# Without remote administration, step-ca reads the change when it gets SIGHUP.\n",
    );
    script
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
        Auth::X5c { certificate, .. } => (
            format!(
                "bootstrap-ca.crt is the CA that issues the nodes' {certificate}, which need client authentication."
            ),
            "--type X5C --x5c-roots \"${ROOTS:-bootstrap-ca.crt}\"",
        ),
        Auth::Jwk { key_file, .. } => (
            format!(
                "The nodes have the private half as {key_file}, with mode 0600. A pair is made with:\n  \
                 #   step crypto jwk create nodepki.pub nodepki.jwk --no-password --insecure"
            ),
            "--type JWK --public-key \"${PUBLIC:-nodepki.pub}\"",
        ),
        Auth::Token { .. } => (
            "Its key stays here: it is what tokens are made with.".to_owned(),
            "--type JWK --create",
        ),
    };
    let _ = writeln!(script, "  # {}", one_line(&comment));
    let _ = writeln!(
        script,
        "  step ca provisioner add {provisioner} {proof} --x509-template \"$TEMPLATE\" --x509-max-dur {}",
        // Go's, and without a fraction.
        format_duration(longest)
    );
    if let Auth::Token { .. } = config.auth {
        script.push_str(
            "  # Each certificate needs a token of its own, and another one each time:\n",
        );
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

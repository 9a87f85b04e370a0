//! The text for the administrator of an EST server: what each label must issue, and profiles for `openssl ca`.
//!
//! EST defines no administration, so the table is for every server; the profiles are for libest's.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Config;
use crate::signer::shell::{echo, filled, one_line};
use crate::signer::{NodeIdentity, Part, RequestedCertificate};
use crate::yaml::format_duration;

/// Certificates by signer and label.
type Labels<'a> = BTreeMap<(&'a str, Option<String>), Vec<&'a RequestedCertificate>>;

/// Returns one script for all signers.
pub(super) fn print(parts: &[Part<'_, Config>], identity: &NodeIdentity) -> String {
    let mut table = String::new();
    let mut profiles = String::new();
    let mut copied = String::new();
    for part in parts {
        if let Some(basic) = part.config.basic() {
            copied.push_str(&echo(&format!(
                "signer {}: write the password of user {} to the node, as {}, with mode 0600",
                part.name, basic.user, basic.password_file
            )));
        }
        let mut labels = Labels::new();
        for wanted in &part.wanted {
            let label = part.config.label_of(wanted.name, identity);
            labels.entry((part.name, label)).or_default().push(wanted);
        }
        for ((signer, label), wanted) in labels {
            let place = match &label {
                Some(label) => format!("{}, label {label}", part.config.endpoint.url),
                None => part.config.endpoint.url.to_string(),
            };
            let directory = directory(signer, label.as_deref());
            let credential = credential(part.config);
            let heading = format!("{place} ({credential}), directory {directory}:");
            let _ = writeln!(table, "#\n# {}", one_line(&heading));
            for one in &wanted {
                let _ = writeln!(table, "#   {}", one_line(&row(one)));
            }
            profiles.push_str(&profile(&directory, &wanted));
        }
    }
    filled(
        include_str!("setup.sh"),
        &[
            ("NODE", &one_line(&identity.node)),
            ("CLUSTER", &one_line(&identity.cluster)),
            ("TABLE", &format!("{table}#")),
            ("PROFILES", profiles.trim_end()),
            ("COPIED", copied.trim_end()),
        ],
    )
}

/// Returns how this node authenticates.
fn credential(config: &Config) -> String {
    let user = config.basic().map(|basic| format!("user {}", basic.user));
    let certificate = config.endpoint.tls.certificate.as_ref();
    let certificate = certificate.map(|file| format!("client certificate {}", file.display()));
    let all: Vec<String> = user.into_iter().chain(certificate).collect();
    if all.is_empty() {
        "no credential".to_owned()
    } else {
        all.join(" and ")
    }
}

/// Returns a line of the table.
fn row(wanted: &RequestedCertificate) -> String {
    let profile = &wanted.profile;
    let mut subject: Vec<String> = profile
        .subject
        .organizations
        .iter()
        .map(|organization| format!("O={organization}"))
        .collect();
    subject.push(format!("CN={}", profile.subject.common_name));
    let dns = profile.sans.dns.iter().map(|name| format!("DNS:{name}"));
    let ips = profile.sans.ips.iter().map(|ip| format!("IP:{ip}"));
    let names: Vec<String> = dns.chain(ips).collect();
    let usages: Vec<String> = profile.usages.iter().map(ToString::to_string).collect();
    format!(
        "{}: {}; {}; {}; {}",
        wanted.name,
        subject.join(", "),
        if names.is_empty() {
            "no alternative names".to_owned()
        } else {
            names.join(", ")
        },
        usages.join(", "),
        format_duration(profile.lifetime)
    )
}

/// Returns the call that writes the profile of a label. Usages are fixed if all its certificates have the same.
fn profile(directory: &str, wanted: &[&RequestedCertificate]) -> String {
    const SECONDS_PER_DAY: u64 = 24 * 60 * 60;
    let seconds = wanted.iter().map(|one| one.profile.lifetime.as_secs());
    let days = seconds.max().unwrap_or(0).div_ceil(SECONDS_PER_DAY).max(1);
    let mut usages = wanted.iter().map(|one| one.profile.usages.as_slice());
    let first = usages.next().unwrap_or_default();
    let fixed: Vec<&str> = if usages.all(|other| other == first) {
        first.iter().map(|usage| usage.rfc_name()).collect()
    } else {
        Vec::new()
    };
    format!("profile {directory} {days} '{}'\n", fixed.join(","))
}

/// Returns the name of a label's directory, which is one word of the shell.
fn directory(signer: &str, label: Option<&str>) -> String {
    let name: Vec<&str> = ["est", signer].into_iter().chain(label).collect();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.join("-").replace(|c| !plain(c), "-")
}

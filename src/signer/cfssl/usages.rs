//! The usages of a profile, compared with those of a certificate. Pure.

use super::CaProfile;
use super::profiles::InfoResponse;
use crate::signer::RequestedCertificate;
use crate::x509::{ExtendedUsage, KeyType};

/// The extended key usages, by CFSSL's names.
const EXTENDED_USAGES: [&str; 13] = [
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

/// The key usages, by CFSSL's names.
const KEY_USAGES: [&str; 10] = [
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
];

/// Returns what the verification would refuse in a certificate of this profile.
pub(super) fn usage_obstacles(
    wanted: &RequestedCertificate,
    place: &CaProfile,
    info: &InfoResponse,
) -> Option<(String, String)> {
    let known = |names: &'static [&str]| {
        info.usages()
            .iter()
            .map(String::as_str)
            .filter(move |usage| names.contains(usage))
            .collect::<Vec<_>>()
    };
    let (extended, plain) = (known(&EXTENDED_USAGES), known(&KEY_USAGES));
    let has = |names: &[&str]| plain.iter().any(|usage| names.contains(usage));
    let mut wrong = Vec::new();
    if extended.is_empty() && plain.is_empty() {
        wrong.push("has no usages, without which CFSSL does not sign".to_owned());
    } else {
        let profile = &wanted.profile;
        for usage in &profile.usages {
            if !extended.contains(&usage.to_string().as_str()) {
                wrong.push(format!("does not give {usage}"));
            }
        }
        for usage in &extended {
            let is = |one: &ExtendedUsage| one.to_string() == *usage;
            let tolerated = wanted.tolerance.extra_usages
                && [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth]
                    .iter()
                    .any(is);
            if !profile.usages.iter().any(is) && !tolerated {
                wrong.push(format!("gives {usage}, which is not requested"));
            }
        }
        // Without key usages there is no such extension, and then it restricts nothing (RFC 5280, section 4.2.1.3).
        if !plain.is_empty() {
            if !has(&["signing", "digital signature"]) {
                wrong.push("does not give digital signature".to_owned());
            }
            if !has(&["key encipherment"]) && KeyType::Known(profile.key).is_rsa() {
                wrong.push("does not give key encipherment, which an RSA key needs".to_owned());
            }
            if has(&["cert sign"]) {
                wrong.push("gives cert sign, which is for CA certificates".to_owned());
            }
        }
    }
    if wrong.is_empty() {
        return None;
    }
    let usages: Vec<String> = wanted
        .profile
        .usages
        .iter()
        .map(ToString::to_string)
        .collect();
    let needed = usages.join(", ");
    Some((
        format!("{place} {}", wrong.join(", ")),
        format!(
            "name a profile under `profile.{}` that has the usages digital signature, key encipherment, {needed}",
            wanted.name
        ),
    ))
}

//! Fuzz targets: the responses of signers, and bundles of requests and certificates.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::path::PathBuf;
use std::sync::OnceLock;

use time::macros::datetime;
use zeroize::Zeroizing;

use super::{NodeIdentity, Request, RequestedCertificate, bundle, est, exec, kubernetes};
use crate::kube::names::{Authority, CertName};
use crate::x509::{self, Csr, PrivateKey, Tolerance, UsageExtensions};

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("plug-in-response", plug_in_response),
    ("est-body", est::fuzz_body),
    ("bundle", signed_bundle),
    ("signer-name", kubernetes::fuzz_signer_name),
];

/// Returns a request, the same for every input.
fn request() -> &'static Request {
    static REQUEST: OnceLock<Request> = OnceLock::new();
    REQUEST.get_or_init(|| {
        let profile = x509::fuzz::profile();
        let key = PrivateKey::generate(profile.key).expect("a key can be generated");
        let csr = Csr::create(&profile, &key, UsageExtensions::Requested);
        let wanted = RequestedCertificate {
            name: CertName::Apiserver,
            authority: Authority::Ca,
            profile,
            tolerance: Tolerance::default(),
        };
        let identity = NodeIdentity {
            node: "cp1".to_owned(),
            cluster: "prod".to_owned(),
        };
        let csr = csr.expect("a request can be created");
        Request::new(wanted, csr, identity, datetime!(2026-06-01 12:00 UTC))
    })
}

fn plug_in_response(bytes: &[u8]) {
    exec::fuzz_response(bytes, request());
}

/// The first byte selects the name of the file.
fn signed_bundle(bytes: &[u8]) {
    const NAMES: [&str; 6] = [
        "apiserver.crt",
        "apiserver.key",
        "etcd/server.pem",
        "admin.conf",
        "ca.crt",
        "other.p7b",
    ];
    if let Some((first, content)) = bytes.split_first() {
        let name = NAMES[usize::from(*first) % NAMES.len()];
        let files = [(PathBuf::from(name), Zeroizing::new(content.to_vec()))];
        let outstanding = [bundle::Outstanding {
            name: CertName::Apiserver,
            key: request().csr.public_key().clone(),
        }];
        let found = bundle::collect(&files, &outstanding, &[]);
        for remark in &found.remarks {
            let _ = remark.to_string();
        }
    }
}

//! Fuzz targets: the responses of signers, and bundles of requests and certificates.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::panic,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::path::PathBuf;
use std::sync::OnceLock;

use time::OffsetDateTime;
use time::macros::datetime;
use zeroize::Zeroizing;

use super::{
    NodeIdentity, Request, RequestedCertificate, bundle, est, exec, kubernetes, puppet, step_ca,
};
use crate::kube::names::{Authority, CertName};
use crate::x509::{self, Csr, Sans, Tolerance};

mod exchange;

const LEAF_CRT: &str = include_str!("../../tests/fuzz/material/leaf.crt");
const LEAF_CSR: &str = include_str!("../../tests/fuzz/material/leaf.csr");
const LEAF_KEY: &str = include_str!("../../tests/fuzz/material/leaf.key");
const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

/// Name and function of each target of this file.
const READERS: &[(&str, fn(&[u8]))] = &[
    ("plug-in-response", plug_in_response),
    ("est-body", est::fuzz_body),
    ("bundle", signed_bundle),
    ("signer-name", kubernetes::fuzz_signer_name),
    ("puppet-conf", puppet::fuzz_conf),
    ("one-time-token", one_time_token),
];

/// Returns name and function of each target.
pub fn targets() -> Vec<(&'static str, fn(&[u8]))> {
    [READERS, exchange::TARGETS].concat()
}

/// Returns a request, the same for every input and in every run.
fn request() -> &'static Request {
    static REQUEST: OnceLock<Request> = OnceLock::new();
    REQUEST.get_or_init(|| {
        let sans = Sans {
            dns: vec!["cp1".to_owned()],
            ips: vec![[10, 96, 0, 1].into()],
        };
        let wanted = RequestedCertificate {
            name: CertName::Apiserver,
            authority: Authority::Ca,
            profile: x509::Profile {
                sans,
                ..x509::fuzz::profile()
            },
            tolerance: Tolerance::default(),
        };
        let identity = NodeIdentity {
            node: "cp1".to_owned(),
            cluster: "prod".to_owned(),
        };
        let csr = Csr::from_pem(LEAF_CSR.as_bytes()).expect("the request can be read");
        Request::new(wanted, csr, identity, NOW)
    })
}

fn one_time_token(bytes: &[u8]) {
    if let Some(obstacle) = step_ca::token_obstacle(bytes, &request().wanted, NOW) {
        exchange::examine_text(&obstacle);
    }
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
            exchange::examine_text(&remark.to_string());
        }
    }
}

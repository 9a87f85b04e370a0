//! Keys, requests, certificates, chains, and the verification of a signer's response.
//!
//! Wraps the cryptography crates completely: no other module uses rcgen, webpki, x509-parser or `rsa`, and others use
//! aws-lc-rs for symmetric keys only. Pure: the time is an argument. (Key generation and signing use the kernel's random
//! generator.)
//!
//! A [`Profile`] is the required content of a certificate; [`satisfies`] compares a [`Chain`] with it and returns every
//! difference.

mod authority;
mod blocks;
mod certificate;
mod chain;
mod constraints;
mod content;
mod crl;
mod csr;
mod csr_content;
mod der;
#[cfg(test)]
#[path = "../tests/fixtures/der.rs"]
pub(crate) mod der_encoding;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod key;
mod lifetime;
mod lineage;
mod memory;
mod path;
mod pem;
mod policies;
mod profile;
mod self_test;
mod signature;
mod strict;
mod verify;

pub use authority::{AuthorityError, CertificateAuthority};
pub use certificate::{Certificate, DistinguishedName, presented_certificate};
pub use chain::{
    Chain, ChainError, MAX_BUNDLE_CERTIFICATES, MAX_BUNDLE_SUBJECT_BYTES, MAX_CHAIN_BYTES,
    MAX_RESPONSE_BYTES, MAX_RESPONSE_CERTIFICATES, TrustBundle, TrustError, certificates_of,
};
pub use content::{contains_private_key, content_instead_of_pem, wide_encoding};
pub use crl::{AuthorityCrls, CrlError, ListScope, MAX_CLOCK_LEAD, RevocationList};
pub use csr::{Csr, CsrError, UsageExtensions};
pub use csr_content::{CsrContent, CsrContentError};
pub use key::{
    JwkError, KeyAlgorithm, KeyError, KeyFamily, KeyType, PrivateKey, PublicKey, UnknownAlgorithm,
};
pub use lifetime::{LIFETIME_FACTOR, Lifetime, judge_lifetime};
pub use lineage::{descends_from, is_same_authority};
pub use profile::{ExtendedUsage, Profile, Sans, Subject, Tolerance};
pub use self_test::{SelfTestError, self_test};
pub use strict::{CertificateError, KeyPurpose};
pub use verify::{
    CertDifference, PathFault, algorithm_difference, along_path, is_for_names, path_differences,
    satisfies, unread_attributes, usage_differences, verifies,
};

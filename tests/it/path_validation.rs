//! Paths of certificates, judged by nodepki, Go's `crypto/x509`, OpenSSL and rustls-webpki side by side.
//!
//! Rules:
//! - nodepki accepts nothing that Go refuses.
//! - Every other disagreement with Go, OpenSSL or webpki has a row with the reason.
//!
//! `pkits` judges the paths of NIST's suite, `kubeadm` those that a kubeadm cluster can meet, `public_keys` leaves with the
//! keys of Wycheproof, `directory_names` constraints of subjects.

mod directory_names;
mod judges;
mod kubeadm;
mod pkits;
mod public_keys;

//! The authorities of the benchmarks.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use nodepki::kube::names::Authority;
use nodepki::x509::{CertificateAuthority, KeyAlgorithm, PrivateKey};
use time::OffsetDateTime;

/// Creates the CA pairs in kubeadm's layout.
pub(crate) fn make_authorities(dir: &Path, algorithm: KeyAlgorithm) {
    fs::create_dir_all(dir.join("etcd")).unwrap();
    for authority in Authority::ALL {
        let key = PrivateKey::generate(algorithm).unwrap();
        let base = dir.join(authority.base_name());
        fs::write(base.with_extension("key"), key.to_pem().as_bytes()).unwrap();
        fs::set_permissions(base.with_extension("key"), Permissions::from_mode(0o600)).unwrap();
        let made = CertificateAuthority::self_signed(
            authority.common_name(),
            key,
            OffsetDateTime::now_utc(),
            Duration::from_secs(10 * 365 * 24 * 60 * 60),
        );
        fs::write(base.with_extension("crt"), made.unwrap().bundle().to_pem()).unwrap();
    }
}

//! The way from RSA to ML-DSA, with etcd and components that Go 1.27 built: `tests/run ml-dsa`.

use nodepki::x509::{KeyAlgorithm, KeyType};

use super::*;

/// Algorithm of the CAs that kubeadm creates, and of all leaves before and after.
const OLD: KeyAlgorithm = KeyAlgorithm::Rsa2048;
const NEW: KeyAlgorithm = KeyAlgorithm::MlDsa65;
/// kubeadm's.
const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn key_of(certificate: &Certificate) -> &KeyType {
    certificate.public_key().key_type()
}

#[test]
fn rotates_every_authority_from_rsa_to_ml_dsa() {
    let config = INIT.replace("ECDSA-P256", OLD.as_str());
    let pair = &Pair::with_programs(Programs::Go1_27, &config);
    for signer in &pair.signers {
        // Not with the OpenSSL of this machine, which may be older than 3.5.
        signer.grant(|_| LIFETIME);
    }
    let mut daemons = pair.nodes().map(Daemon::start);
    for authority in [Authority::FrontProxyCa, Authority::EtcdCa, Authority::Ca] {
        let begin = Instant::now();
        let before = bundle(pair.cluster.first(), authority);
        assert_eq!(key_of(&before[0]), &KeyType::Known(OLD));
        let new = pair.create_ca_with(authority, PrivateKey::generate(NEW).unwrap());
        let rotate = ["rotate", authority.as_str(), "--certificate", NEW_CA];
        pair.authority(&rotate)
            .ended(65)
            .says("state with --components-verify");
        pair.rotate(authority, &["--components-verify"]);
        pair.complete(authority, &new, &mut daemons);
        println!("{authority} from {OLD} to {NEW}: {:.0?}", begin.elapsed());
    }
    for node in pair.nodes() {
        for authority in Authority::ALL {
            assert_eq!(key_of(&bundle(node, authority)[0]), &KeyType::Known(NEW));
        }
        let leaf = certificates_of(&fs::read(node.pki("apiserver.crt")).unwrap()).unwrap();
        assert_eq!(key_of(&leaf[0]), &KeyType::Known(OLD));
        // The API server accepts the administrator, and stores an object in etcd.
        let name = format!("stored-by-{}", node.name());
        let arguments = [
            "--kubeconfig=/etc/kubernetes/admin.conf",
            "--cache-dir=/var/tmp/kubectl",
            "create",
            "namespace",
            &name,
        ];
        let kubectl = bin("kubectl-go1.27");
        node.run(kubectl.to_str().unwrap(), &arguments).done();
    }
    daemons.iter_mut().for_each(Daemon::stop);
}

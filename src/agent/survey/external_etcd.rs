//! The files of an external etcd.

use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::Survey;
use crate::agent::Provided;
use crate::kube::names::{Authority, NodePath};
use crate::node::NodeState;
use crate::spec::ExternalEtcd;
use crate::spec::assess::{self, Observed};
use crate::store;
use crate::x509::{Chain, PrivateKey, TrustBundle};

impl Survey {
    /// Reports faults of the files of an external etcd. nodepki does not manage these files and changes nothing.
    pub(super) fn check_external_etcd(
        &mut self,
        state: &NodeState,
        external: &ExternalEtcd,
        provided: &Provided,
        now: OffsetDateTime,
    ) -> Result<(), store::StoreError> {
        // A file provided by the cluster counts before it is installed.
        let read = |path: &NodePath| {
            let handed = provided.files.iter().find(|file| *file.path == **path);
            let handed = handed.map(|file| file.bytes.to_vec());
            let found = state.file(path).bytes()?.map(<[u8]>::to_vec);
            Ok::<_, store::StoreError>(found.or(handed).map(Zeroizing::new))
        };
        let mut report = |field: &str, path: &NodePath, problem: &str| {
            self.external_etcd
                .push(format!("etcd.external.{field} {path}: {problem}"));
        };
        let mut bundle = None;
        if let Some(path) = &external.authority {
            match Observed::read(
                read(path)?.as_deref().map(Vec::as_slice),
                TrustBundle::from_pem,
            ) {
                Observed::Present(found) => bundle = Some(found),
                Observed::Absent => report(
                    "caFile",
                    path,
                    "is absent; provide it before kube-apiserver starts",
                ),
                Observed::Empty => report("caFile", path, "is empty"),
                Observed::Unreadable(why) => report("caFile", path, &why),
            }
            let content = read(path)?.unwrap_or_default();
            self.notes.extend(assess::key_among_certificates(
                &path.to_string(),
                Authority::EtcdCa,
                &content,
                bundle.as_ref(),
            ));
        }
        let (Some(certificate), Some(key)) = (&external.certificate, &external.key) else {
            return Ok(());
        };
        let chain = Observed::read(
            read(certificate)?.as_deref().map(Vec::as_slice),
            Chain::from_pem,
        );
        let private = Observed::read(
            read(key)?.as_deref().map(Vec::as_slice),
            PrivateKey::from_pem,
        );
        for (field, path, problem) in [
            ("certFile", certificate, chain.trouble()),
            ("keyFile", key, private.trouble()),
        ] {
            if let Some(problem) = problem {
                report(field, path, &problem);
            }
        }
        if let (Some(chain), Some(private)) = (chain.present(), private.present()) {
            if chain.leaf().public_key() != private.public_key() {
                report(
                    "certFile",
                    certificate,
                    "does not belong to the key in keyFile",
                );
            } else if let Some(bundle) = &bundle
                && !assess::still_serves(chain, private.public_key(), bundle, now)
            {
                report(
                    "certFile",
                    certificate,
                    "does not verify under caFile at this time",
                );
            }
        }
        Ok(())
    }
}

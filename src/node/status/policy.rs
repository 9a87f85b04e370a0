//! The keys of the rows compared with the key policy of the configuration.

use super::NodeStatus;
use super::fault::RowRemark;
use crate::spec::compliance::{self, KeyUse};
use crate::spec::policy::KeyOwner;

impl NodeStatus {
    /// Adds the verdict on each key to its row, and a remark to the row of a key that does not comply.
    pub fn judge_keys(&mut self, keys: &[KeyUse]) {
        for key in keys {
            let judgement = compliance::judge(key);
            let (place, findings) = match key.owner {
                KeyOwner::Authority(name) => {
                    let mut rows = self.authorities.iter_mut();
                    let Some(row) = rows.find(|row| row.name == name) else {
                        continue;
                    };
                    (&mut row.key_policy, &mut row.findings)
                }
                KeyOwner::Leaf(name) => {
                    let mut rows = self.certificates.iter_mut();
                    let Some(row) = rows.find(|row| row.name == name) else {
                        continue;
                    };
                    (&mut row.key_policy, &mut row.findings)
                }
                KeyOwner::ServiceAccount => {
                    let Some(row) = &mut self.service_account else {
                        continue;
                    };
                    (&mut row.key_policy, &mut row.findings)
                }
                KeyOwner::EtcdClientAuthority | KeyOwner::SignedForKubelets(_) => continue,
            };
            *place = Some(judgement.verdict);
            // The row itself reports what cannot be read.
            for difference in judgement.differences {
                findings.remark(RowRemark::KeyPolicy {
                    difference,
                    replaced_at: key.replaced_at,
                });
            }
        }
    }

    /// Returns whether a row has a verdict on its key.
    pub(super) fn has_key_verdicts(&self) -> bool {
        let certificates = self.certificates.iter().map(|row| row.key_policy);
        let authorities = self.authorities.iter().map(|row| row.key_policy);
        certificates
            .chain(authorities)
            .any(|verdict| verdict.is_some())
    }
}

//! The keys of the rows compared with the key policy of the configuration.

use super::NodeStatus;
use super::text::minute;
use crate::spec::compliance::{self, KeyUse, KeyVerdict};
use crate::spec::policy::KeyOwner;

impl NodeStatus {
    /// Adds the verdict on each key to its row, and a remark to the row of a key that does not comply.
    pub fn judge_keys(&mut self, keys: &[KeyUse]) {
        for key in keys {
            let verdict = compliance::judge(key);
            let (place, remarks) = match key.owner {
                KeyOwner::Authority(name) => {
                    let mut rows = self.authorities.iter_mut();
                    let Some(row) = rows.find(|row| row.name == name) else {
                        continue;
                    };
                    (&mut row.key_policy, &mut row.remarks)
                }
                KeyOwner::Leaf(name) => {
                    let mut rows = self.certificates.iter_mut();
                    let Some(row) = rows.find(|row| row.name == name) else {
                        continue;
                    };
                    (&mut row.key_policy, &mut row.remarks)
                }
                KeyOwner::ServiceAccount => {
                    let Some(row) = &mut self.service_account else {
                        continue;
                    };
                    (&mut row.key_policy, &mut row.remarks)
                }
            };
            *place = Some(verdict);
            remarks.extend(remark(key, verdict));
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

fn remark(key: &KeyUse, verdict: KeyVerdict) -> Option<String> {
    let required = key
        .required
        .filter(|_| verdict == KeyVerdict::NotCompliant)?;
    Some(match key.replaced_at {
        Some(at) => format!(
            "the key policy requires {required}; the next renewal, which is due at {}, replaces the key",
            minute(at)
        ),
        None => format!("the key policy requires {required}"),
    })
}

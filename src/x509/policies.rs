//! Certificate policies over a path, with the rules of Go (`policiesValid` in `verify.go`, Go 1.26; RFC 5280, 6.1, with
//! RFC 9618).

use std::collections::{BTreeMap, BTreeSet};

use super::certificate::Certificate;

/// anyPolicy, 2.5.29.32.0.
const ANY_POLICY: &[u8] = &[0x55, 0x1d, 32, 0];

type Oid<'a> = &'a [u8];

/// One level of the policy graph: each valid policy, and the policies expected of the next certificate. Only the
/// lowest level is needed, as all policies are acceptable.
type Level<'a> = BTreeMap<Oid<'a>, BTreeSet<Oid<'a>>>;

/// Returns true if the policies of `chain`, from the leaf to the anchor, satisfy all policy constraints in it.
pub(super) fn policies_are_valid(chain: &[&Certificate]) -> bool {
    let Some((_, below)) = chain.split_last() else {
        return true;
    };
    let length = u64::try_from(below.len()).unwrap_or(u64::MAX);
    let (mut explicit, mut mapping, mut any) = (length + 1, length + 1, length + 1);
    // `None` after a certificate without policies.
    let mut graph = Some(Level::from([(ANY_POLICY, BTreeSet::from([ANY_POLICY]))]));
    for (at, certificate) in below.iter().enumerate().rev() {
        let own = &certificate.extensions().policies;
        let is_leaf = at == 0;
        if own.policies.is_empty() {
            graph = None;
        }
        if explicit == 0 && graph.is_none() {
            return false;
        }
        if let Some(parents) = graph.take() {
            let any_allowed = any > 0 || (!is_leaf && certificate.is_self_issued());
            let mut level = next_level(&parents, &own.policies, any_allowed);
            if !is_leaf && !map_policies(&mut level, &own.mappings, mapping > 0) {
                return false;
            }
            graph = Some(level);
        }
        if !is_leaf {
            if !certificate.is_self_issued() {
                explicit = explicit.saturating_sub(1);
                mapping = mapping.saturating_sub(1);
                any = any.saturating_sub(1);
            }
            explicit = explicit.min(own.require_explicit.unwrap_or(u64::MAX));
            mapping = mapping.min(own.inhibit_mapping.unwrap_or(u64::MAX));
            any = any.min(own.inhibit_any.unwrap_or(u64::MAX));
        }
    }
    explicit = explicit.saturating_sub(1);
    let leaf = below.first().map(|leaf| &leaf.extensions().policies);
    if leaf.is_some_and(|leaf| leaf.require_explicit == Some(0)) {
        explicit = 0;
    }
    explicit > 0 || graph.is_some_and(|level| !level.is_empty())
}

/// Computes the next level (RFC 9618, 6.1.3 (d)).
fn next_level<'a>(parents: &Level<'a>, policies: &'a [Vec<u8>], any_allowed: bool) -> Level<'a> {
    let expected: BTreeSet<Oid<'_>> = parents.values().flatten().copied().collect();
    let mut level = Level::new();
    for policy in policies.iter().map(Vec::as_slice) {
        if policy != ANY_POLICY && (expected.contains(policy) || parents.contains_key(ANY_POLICY)) {
            level.insert(policy, BTreeSet::from([policy]));
        }
    }
    if any_allowed && policies.iter().any(|policy| policy == ANY_POLICY) {
        for policy in expected {
            level
                .entry(policy)
                .or_insert_with(|| BTreeSet::from([policy]));
        }
    }
    level
}

/// Applies policy mappings (RFC 9618, 6.1.4 (b)); returns false for a mapping from or to anyPolicy.
fn map_policies<'a>(
    level: &mut Level<'a>,
    mappings: &'a [(Vec<u8>, Vec<u8>)],
    allowed: bool,
) -> bool {
    let mut mapped: BTreeMap<Oid<'a>, BTreeSet<Oid<'a>>> = BTreeMap::new();
    for (issuer, subject) in mappings {
        if !allowed {
            level.remove(issuer.as_slice());
        } else if issuer == ANY_POLICY || subject == ANY_POLICY {
            return false;
        } else {
            mapped.entry(issuer).or_default().insert(subject);
        }
    }
    for (issuer, subjects) in mapped {
        if level.contains_key(issuer) || level.contains_key(ANY_POLICY) {
            level.insert(issuer, subjects);
        }
    }
    true
}

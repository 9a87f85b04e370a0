//! The keys of a node, with what the key policy requires of each.
//!
//! Besides the keys of the plan, the policy applies to keys that nodepki does not manage: those of the kubelet, of an
//! external etcd's client, of the etcd client CA, and of the kubelets for which this node has signed. A key that cannot be
//! read, or a policy that is not known, becomes a doubt in the result and never an omission.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Survey, SurveyedBundle, SurveyedCert};
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{ETCD_CLIENTS_FILE, KUBELET_CONF, KUBELET_SERVING_LINK};
use crate::node::NodeState;
use crate::spec::assess::Observed;
use crate::spec::compliance::{FoundKey, KeyUse};
use crate::spec::policy::KeyOwner;
use crate::spec::{ExternalEtcd, NodeSpec};
use crate::store::{AuditEntry, AuditEvent, NodeRoot};
use crate::x509::{Certificate, Chain, KeyType, TrustBundle};

/// The certificates of kubelets, which nodepki signs with `kubelets.sign`.
const OF_KUBELETS: [CertName; 2] = [CertName::KubeletConf, CertName::KubeletServing];

/// Returns the key in a file.
pub(super) fn found_key<T>(found: &Observed<T>, key: impl FnOnce(&T) -> &KeyType) -> FoundKey {
    match found {
        Observed::Present(value) => FoundKey::Key(key(value).clone()),
        Observed::Absent => FoundKey::Absent,
        Observed::Empty => FoundKey::Unreadable("its file is empty".to_owned()),
        Observed::Unreadable(why) => FoundKey::Unreadable(format!("it is unreadable: {why}")),
    }
}

/// Returns the key of a certificate that nodepki does not manage.
fn of_leaf(owner: KeyOwner, found: &Observed<Chain>) -> KeyUse {
    let key = found_key(found, |chain| chain.leaf().public_key().key_type());
    KeyUse {
        validity: found.present().map(|chain| validity(chain.leaf())),
        ..KeyUse::of(owner, key)
    }
}

/// Returns the keys of the authorities in a file, of which the first counts as the authority's.
fn of_authorities(owner: KeyOwner, found: &Observed<TrustBundle>) -> KeyUse {
    let key = found_key(found, |trust| trust.first().public_key().key_type());
    let certificates = found.present().map(TrustBundle::certificates);
    KeyUse {
        validity: found.present().map(|trust| validity(trust.first())),
        others: certificates
            .unwrap_or_default()
            .iter()
            .skip(1)
            .map(named_key)
            .collect(),
        ..KeyUse::of(owner, key)
    }
}

fn named_key(certificate: &Certificate) -> (String, KeyType) {
    let key = certificate.public_key().key_type().clone();
    (certificate.subject().to_string(), key)
}

fn validity(certificate: &Certificate) -> [OffsetDateTime; 2] {
    [certificate.not_before(), certificate.not_after()]
}

/// Lets the kubelet be the one that chose the key.
fn chosen_by_kubelet(found: FoundKey) -> FoundKey {
    match found {
        FoundKey::Key(key) => FoundKey::OfKubelet(key),
        found => found,
    }
}

impl Survey {
    /// Returns every key on the node with what the policy requires, authorities first. Of a bundle the first certificate
    /// counts, under which new certificates are issued; the others and intermediates are further keys.
    pub fn key_uses(&self) -> Vec<KeyUse> {
        let bundles = self.bundles.iter().map(|bundle| self.of_bundle(bundle));
        let certs = self.certs.iter().map(|cert| self.of_cert(cert));
        bundles
            .chain(certs)
            .chain(self.service_account_key.clone())
            .chain(self.unmanaged_keys.clone())
            .map(|key| self.required(key))
            .collect()
    }

    /// Returns [`Survey::key_uses`] and the keys of the kubelets for which this node has signed, by the issuance log.
    pub fn all_key_uses(&self, root: &NodeRoot, now: OffsetDateTime) -> Vec<KeyUse> {
        let mut keys = self.key_uses();
        if self.signs_for_kubelets {
            let signed = signed_for_kubelets(root, now).into_iter();
            keys.extend(signed.map(|key| self.required(key)));
        }
        keys
    }

    /// Returns the names in overrides of the policy that no key of the node has.
    pub fn unmatched_overrides(&self, keys: &[KeyUse]) -> Vec<String> {
        let owners = self.policy.overridden();
        let unmatched = owners.filter(|owner| keys.iter().all(|key| key.owner != *owner));
        unmatched.map(|owner| owner.to_string()).collect()
    }

    fn of_bundle(&self, bundle: &SurveyedBundle) -> KeyUse {
        let authority = bundle.spec.authority;
        let mut key = of_authorities(KeyOwner::Authority(authority), &bundle.found);
        let of_authority = self.certs.iter();
        let chains = of_authority
            .filter(|cert| cert.spec.authority() == authority)
            .filter_map(|cert| cert.found.chain.present());
        for intermediate in chains.flat_map(Chain::intermediates).map(named_key) {
            if !key.others.contains(&intermediate) {
                key.others.push(intermediate);
            }
        }
        key
    }

    fn of_cert(&self, cert: &SurveyedCert) -> KeyUse {
        let key = of_leaf(KeyOwner::Leaf(cert.spec.name()), &cert.found.chain);
        let is_of_kubelet = cert.found.is_of_kubelet();
        let found = match (&cert.found.chain, &cert.found.key) {
            (Observed::Present(chain), Observed::Present(private))
                if chain.leaf().public_key() != private.public_key() =>
            {
                FoundKey::Unreadable("its private key belongs to another certificate".to_owned())
            }
            (Observed::Present(_), private) if private.present().is_none() => {
                let trouble = private.trouble().unwrap_or_default();
                FoundKey::Unreadable(format!("its private key {trouble}"))
            }
            _ if is_of_kubelet => chosen_by_kubelet(key.found),
            _ => key.found,
        };
        // kubeadm's algorithm applies to the keys that nodepki creates.
        let required = (!is_of_kubelet).then_some(cert.spec.requested.profile.key);
        let lifetime = self.policy.required_lifetime_of(key.owner);
        let waits = cert.waits_for_renewal() || (lifetime.is_some() && !is_of_kubelet);
        KeyUse {
            found,
            required,
            replaced_at: cert.due.filter(|_| waits),
            ..key
        }
    }

    /// Adds what the rules require of a key, and what is not known of them.
    fn required(&self, key: KeyUse) -> KeyUse {
        let by_rule = self.policy.required_of(key.owner);
        let assumed = self.policy_doubts.algorithm.clone();
        let assumed = assumed.filter(|_| key.required.is_some() && by_rule.is_none());
        KeyUse {
            required: by_rule.or(key.required),
            required_lifetime: self.policy.required_lifetime_of(key.owner),
            doubts: key
                .doubts
                .into_iter()
                .chain(self.policy_doubts.rules.clone())
                .chain(assumed)
                .collect(),
            ..key
        }
    }

    /// Reads the keys to which the policy applies and which are not in the plan.
    pub(super) fn read_unmanaged_keys(&mut self, state: &NodeState, plan: &NodeSpec) {
        let external = plan.external_etcd.iter();
        let kubelet = OF_KUBELETS
            .into_iter()
            .filter(|name| plan.cert(*name).is_none())
            .filter_map(|name| of_kubelet(state, name));
        self.unmanaged_keys = external
            .flat_map(|external| of_external_etcd(state, external))
            .chain(kubelet)
            .chain(self.of_etcd_clients(state))
            .collect();
    }

    /// Returns the authorities in the file that etcd trusts for clients, other than the etcd CA.
    fn of_etcd_clients(&self, state: &NodeState) -> Option<KeyUse> {
        let path = state.layout().certificates_dir().join(ETCD_CLIENTS_FILE);
        let owner = KeyOwner::EtcdClientAuthority;
        let found = state.file(&path).found(TrustBundle::from_pem);
        let Some(bundle) = found.present() else {
            let key = of_authorities(owner, &found);
            return (key.found != FoundKey::Absent).then_some(key);
        };
        let etcd = self.trust(Authority::EtcdCa).map(TrustBundle::certificates);
        let etcd = etcd.unwrap_or_default();
        let clients = bundle.certificates().iter();
        let clients = clients.filter(|certificate| !etcd.contains(certificate));
        let clients = TrustBundle::from_certificates(clients.cloned().collect()).ok()?;
        Some(of_authorities(owner, &Observed::Present(clients)))
    }
}

fn of_external_etcd(state: &NodeState, external: &ExternalEtcd) -> Vec<KeyUse> {
    let authority = external.authority.as_ref().map(|path| {
        let found = state.file(path).found(TrustBundle::from_pem);
        of_authorities(KeyOwner::Authority(Authority::EtcdCa), &found)
    });
    let client = external.certificate.as_ref().map(|path| {
        let found = state.file(path).chain();
        of_leaf(KeyOwner::Leaf(CertName::ApiserverEtcdClient), &found)
    });
    authority.into_iter().chain(client).collect()
}

/// Returns the key of a certificate that the kubelet requested, or signed itself.
fn of_kubelet(state: &NodeState, name: CertName) -> Option<KeyUse> {
    let found = match name {
        CertName::KubeletConf => kubelet_client(state)?,
        _ => {
            let layout = state.layout();
            let [own, _] = layout.pair(name);
            let requested = layout.kubelet_pki().join(KUBELET_SERVING_LINK);
            let mut files = [requested, own].into_iter().map(|path| state.file(path));
            files.find(|file| file.exists())?.chain()
        }
    };
    let key = of_leaf(KeyOwner::Leaf(name), &found);
    Some(KeyUse {
        found: chosen_by_kubelet(key.found),
        ..key
    })
}

/// Returns the certificate in kubelet.conf, or in the file that it names.
fn kubelet_client(state: &NodeState) -> Option<Observed<Chain>> {
    if !state.exists(KUBELET_CONF) {
        return None;
    }
    Some(match state.cert_in(KUBELET_CONF).readable() {
        Ok(cert) => cert.found.chain,
        Err(error) => Observed::Unreadable(error.to_string()),
    })
}

/// Returns the keys of the valid certificates that nodepki has signed for kubelets, by the issuance log.
fn signed_for_kubelets(root: &NodeRoot, now: OffsetDateTime) -> Vec<KeyUse> {
    let mut signed = OF_KUBELETS.map(SignedKeys::new);
    let mut doubts = Vec::new();
    let read = root.verify_audit(None, |entry, _| {
        let event = entry.event.as_str();
        if event == AuditEvent::Pruned.as_str() {
            doubts.push("the oldest entries of the issuance log were removed".to_owned());
        }
        if entry.number("lost").is_some() {
            doubts.push("entries of the issuance log could not be written".to_owned());
        }
        let is_issued =
            event == AuditEvent::KubeletRequest.as_str() && entry.text("action") == Some("issued");
        if is_issued {
            for one in &mut signed {
                one.add(&entry, now);
            }
        }
    });
    match read {
        Ok(verified) if !verified.differences.is_empty() => doubts.push(
            "the issuance log was changed (nodepki audit verify prints the differences)".to_owned(),
        ),
        Ok(_) => {}
        Err(error) => doubts.push(format!("the issuance log cannot be read: {error}")),
    }
    doubts.sort();
    doubts.dedup();
    let keys = signed.into_iter();
    keys.filter_map(|one| one.into_use(&doubts)).collect()
}

/// The keys of the certificates of one name that were signed for kubelets.
struct SignedKeys {
    name: CertName,
    /// Each algorithm with a node that has such a key.
    keys: Vec<(String, KeyType)>,
    /// The longest validity, from the time of issue.
    longest: Option<[OffsetDateTime; 2]>,
    /// Whether an entry does not contain the key or the validity.
    is_incomplete: bool,
}

impl SignedKeys {
    fn new(name: CertName) -> SignedKeys {
        SignedKeys {
            name,
            keys: Vec::new(),
            longest: None,
            is_incomplete: false,
        }
    }

    /// Adds the certificate of an entry, unless it has expired.
    fn add(&mut self, entry: &AuditEntry, now: OffsetDateTime) {
        if entry.text("certificate") != Some(self.name.as_str()) {
            return;
        }
        let end = entry
            .text("notAfter")
            .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok());
        let (Some(end), Some(key)) = (end, entry.text("key")) else {
            // Entries of older releases do not contain the key.
            self.is_incomplete |= end.is_none_or(|end| end > now);
            return;
        };
        if end <= now {
            return;
        }
        let is_longer = |[begin, former]: [OffsetDateTime; 2]| end - entry.time > former - begin;
        if self.longest.is_none_or(is_longer) {
            self.longest = Some([entry.time, end]);
        }
        let key = key
            .parse()
            .map_or_else(|_| KeyType::Other(key.to_owned()), KeyType::Known);
        if self.keys.iter().all(|(_, known)| *known != key) {
            let node = entry.text("node").unwrap_or("an unknown node");
            self.keys.push((node.to_owned(), key));
        }
    }

    fn into_use(self, doubts: &[String]) -> Option<KeyUse> {
        let mut keys = self.keys.into_iter();
        let incomplete = self.is_incomplete.then(|| {
            "entries of the issuance log do not contain the key or the end of validity".to_owned()
        });
        let doubts: Vec<String> = doubts.iter().cloned().chain(incomplete).collect();
        let found = match keys.next() {
            Some((_, key)) => FoundKey::OfKubelet(key),
            None if doubts.is_empty() => return None,
            None => FoundKey::Absent,
        };
        Some(KeyUse {
            validity: self.longest,
            others: keys.collect(),
            doubts,
            ..KeyUse::of(KeyOwner::SignedForKubelets(self.name), found)
        })
    }
}

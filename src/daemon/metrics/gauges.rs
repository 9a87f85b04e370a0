//! What the disk says: certificates, authorities, revocation lists, requests and restarts, as gauges.
//!
//! Nothing is judged here: states are those of `status`, and what is due is `survey`'s, which needs the configuration. A label comes from a closed set or from the configuration, so that no
//! label grows with time; a serial number is none.

use time::OffsetDateTime;

use super::exposition::{Page, labels};
use super::families::{
    BUILD_INFO, CERTIFICATE_INFO, CRL_NEXT_UPDATE, CRL_THIS_UPDATE, Family, NOT_AFTER, NOT_BEFORE,
    PENDING, RENEWAL, RESTARTS_PENDING, ROLLED_BACK, STATE,
};
use crate::agent::Survey;
use crate::kube::names::{Authority, CertName};
use crate::node::status::{Facts, State, Status};
use crate::spec::policy::Category;
use crate::store::{RestartState, Root, Slot};

/// What status sees.
pub(super) fn found(status: &Status) -> Page {
    let mut page = Page::default();
    let version = labels(&[("version", env!("CARGO_PKG_VERSION"))]);
    page.sample(&BUILD_INFO, &version, 1.0);
    for cert in &status.certificates {
        let who = Who::leaf(cert.name);
        who.state(&mut page, cert.state);
        if let Some(facts) = &cert.certificate {
            who.validity(&mut page, facts);
        }
    }
    for authority in &status.authorities {
        let who = Who::authority(authority.name);
        who.state(&mut page, authority.state);
        if let Some(first) = authority.certificates.first() {
            who.validity(&mut page, first);
        }
    }
    for pending in &status.pending {
        // A name in the state directory that is none of ours is no label.
        if let (Ok(slot), Some(since)) = (pending.name.parse::<Slot>(), pending.since) {
            let labels = labels(&[("certificate_name", slot.as_str())]);
            page.sample(&PENDING, &labels, seconds(since));
        }
    }
    page
}

/// What follows from the configuration.
pub(super) fn judged(survey: &Survey) -> Page {
    let mut page = Page::default();
    for cert in &survey.certs {
        if let Some(due) = cert.due {
            let labels = Who::leaf(cert.spec.name).labels();
            page.sample(&RENEWAL, &labels, seconds(due));
        }
    }
    for bundle in &survey.bundles {
        let lists = bundle.revocations.iter().flat_map(|all| all.lists());
        let (made, next): (Vec<_>, Vec<_>) = lists
            .map(|list| (list.this_update(), list.next_update()))
            .unzip();
        let labels = labels(&[("authority", bundle.spec.authority.as_str())]);
        let mut oldest = |family: &'static Family, at: Option<OffsetDateTime>| {
            if let Some(at) = at {
                page.sample(family, &labels, seconds(at));
            }
        };
        oldest(&CRL_THIS_UPDATE, made.into_iter().min());
        oldest(&CRL_NEXT_UPDATE, next.into_iter().flatten().min());
    }
    page
}

/// What was replaced and has not taken effect.
pub(super) fn restarts(page: &mut Page, root: &Root) {
    // A record that cannot be read is for the run to complain about.
    for restart in root.unsettled().unwrap_or_default().restarts {
        let component = labels(&[("component", restart.component.as_str())]);
        page.sample(&RESTARTS_PENDING, &component, seconds(restart.since));
        let rolled_back = matches!(restart.state, RestartState::RolledBack { .. });
        page.sample(&ROLLED_BACK, &component, f64::from(u8::from(rolled_back)));
    }
}

/// Whose certificate it is, as labels say it.
pub(super) struct Who {
    name: &'static str,
    authority: Authority,
    category: &'static str,
    component: &'static str,
}

impl Who {
    pub(super) const fn leaf(name: CertName) -> Who {
        Who {
            name: name.as_str(),
            authority: name.authority(),
            category: match Category::of(name) {
                Category::Signer => "SignerCertificate",
                Category::Serving => "ServingCertificate",
                Category::Client => "ClientCertificate",
            },
            component: match name {
                CertName::Apiserver
                | CertName::ApiserverKubeletClient
                | CertName::FrontProxyClient
                | CertName::ApiserverEtcdClient => "kube-apiserver",
                CertName::EtcdServer | CertName::EtcdPeer | CertName::EtcdHealthcheckClient => {
                    "etcd"
                }
                CertName::AdminConf | CertName::SuperAdminConf => "admin",
                CertName::KubeletConf | CertName::KubeletServing => "kubelet",
                CertName::ControllerManagerConf => "kube-controller-manager",
                CertName::SchedulerConf => "kube-scheduler",
            },
        }
    }

    const fn authority(name: Authority) -> Who {
        Who {
            name: name.as_str(),
            authority: name,
            category: "SignerCertificate",
            component: match name {
                Authority::EtcdCa => "etcd",
                Authority::Ca | Authority::FrontProxyCa => "kube-apiserver",
            },
        }
    }

    fn labels(&self) -> String {
        labels(&[
            ("certificate_name", self.name),
            ("authority", self.authority.as_str()),
            ("category", self.category),
            ("component", self.component),
        ])
    }

    /// With the kind of key, as `x509` names it.
    pub(super) fn labels_with_key(&self, key: &str) -> String {
        let Key {
            algorithm,
            size,
            curve,
        } = Key::of(key);
        labels(&[
            ("certificate_name", self.name),
            ("authority", self.authority.as_str()),
            ("category", self.category),
            ("component", self.component),
            ("algorithm", algorithm),
            ("key_size", size),
            ("curve", curve),
        ])
    }

    fn state(&self, page: &mut Page, state: State) {
        for one in State::ALL {
            let labels = format!(
                "{},{}",
                self.labels(),
                labels(&[("state", &one.as_str().replace(' ', "-"))])
            );
            page.sample(&STATE, &labels, f64::from(u8::from(one == state)));
        }
    }

    fn validity(&self, page: &mut Page, facts: &Facts) {
        page.sample(&CERTIFICATE_INFO, &self.labels_with_key(&facts.key), 1.0);
        page.sample(&NOT_BEFORE, &self.labels(), seconds(facts.not_before));
        page.sample(&NOT_AFTER, &self.labels(), seconds(facts.not_after));
    }
}

/// A key's kind in the policy's words: the size is RSA's, the curve ECDSA's.
pub(super) struct Key<'a> {
    pub(super) algorithm: &'a str,
    pub(super) size: &'a str,
    pub(super) curve: &'a str,
}

impl<'a> Key<'a> {
    pub(super) fn of(key: &'a str) -> Key<'a> {
        let (algorithm, size, curve) = match key.split_once('-') {
            Some(("RSA", size)) => ("RSA", size, ""),
            Some(("ECDSA", curve)) => ("ECDSA", "", curve),
            // By name or object identifier: a certificate that somebody else put there.
            _ => (key, "", ""),
        };
        Key {
            algorithm,
            size,
            curve,
        }
    }
}

fn seconds(at: OffsetDateTime) -> f64 {
    at.unix_timestamp() as f64
}

//! Gauges of the node: certificates, authorities, revocation lists, requests and restarts.
//!
//! This file assesses nothing: states come from `status`, and renewal times from `survey`, which needs the configuration.
//! A label value comes from a closed set or from the configuration, so the number of series does not grow with
//! time; a serial number is not a label.

use time::OffsetDateTime;

use super::exposition::{MetricsPage, labels};
use super::families::{
    BUILD_INFO, CERTIFICATE_INFO, COMPLIANT, CRL_NEXT_UPDATE, CRL_THIS_UPDATE, MetricFamily,
    NODE_REPORTED, NOT_AFTER, NOT_BEFORE, PENDING, PHASE, POLICY_VERDICT, RENEWAL,
    RESTARTS_PENDING, ROLLED_BACK, STATE,
};
use crate::agent::Survey;
use crate::kube::names::{Authority, CertName};
use crate::node::status::{CertPhase, Facts, NodeStatus, RowState};
use crate::node::summary::NodeSummary;
use crate::spec::NodeSpec;
use crate::spec::compliance::{self, KeyVerdict};
use crate::spec::policy::{Category, KeyOwner};
use crate::store::{NodeRoot, RestartState, Slot};

/// Returns the gauges of a status.
pub(super) fn found(status: &NodeStatus) -> MetricsPage {
    let mut page = MetricsPage::default();
    let version = labels(&[("version", env!("CARGO_PKG_VERSION"))]);
    page.sample(&BUILD_INFO, &version, 1.0);
    for cert in &status.certificates {
        let certificate = CertificateLabels::leaf(cert.name);
        certificate.sample_state(&mut page, cert.state);
        certificate.sample_phase(&mut page, cert.phase);
        if let Some(facts) = &cert.certificate {
            certificate.sample_validity(&mut page, facts);
        }
    }
    for authority in &status.authorities {
        let certificate = CertificateLabels::authority(authority.name);
        certificate.sample_state(&mut page, authority.state);
        if let Some(first) = authority.certificates.first() {
            certificate.sample_validity(&mut page, first);
        }
    }
    for pending in &status.pending {
        // An unknown name in the state directory must not become a label.
        if let (Ok(slot), Some(since)) = (pending.name.parse::<Slot>(), pending.since) {
            let labels = labels(&[("certificate_name", slot.as_str())]);
            page.sample(&PENDING, &labels, seconds(since));
        }
    }
    page
}

/// Returns the gauges that need the configuration.
pub(super) fn assessed(survey: &Survey, root: &NodeRoot, now: OffsetDateTime) -> MetricsPage {
    let mut page = MetricsPage::default();
    for cert in &survey.certs {
        if let Some(due) = cert.due {
            let labels = CertificateLabels::leaf(cert.spec.name()).labels();
            page.sample(&RENEWAL, &labels, seconds(due));
        }
    }
    for key in survey.all_key_uses(root, now) {
        sample_verdict(&mut page, key.owner, compliance::judge(&key).verdict);
    }
    for bundle in &survey.bundles {
        let lists = bundle.revocations.iter().flat_map(|all| all.lists());
        let (made, next): (Vec<_>, Vec<_>) = lists
            .map(|list| (list.this_update(), list.next_update()))
            .unzip();
        let labels = labels(&[("authority", bundle.spec.authority.as_str())]);
        let mut oldest = |family: &'static MetricFamily, at: Option<OffsetDateTime>| {
            if let Some(at) = at {
                page.sample(family, &labels, seconds(at));
            }
        };
        oldest(&CRL_THIS_UPDATE, made.into_iter().min());
        oldest(&CRL_NEXT_UPDATE, next.into_iter().flatten().min());
    }
    page
}

/// Adds the gauges of a node of the cluster.
pub(super) fn reported(page: &mut MetricsPage, node: &str, summary: Option<&NodeSummary>) {
    let of_node = labels(&[("node", node)]);
    page.sample(&NODE_REPORTED, &of_node, flag(summary.is_some()));
    for certificate in summary.iter().flat_map(|summary| &summary.certificates) {
        let name = &certificate.name;
        let labels = labels(&[
            ("node", node),
            ("certificate_name", name),
            (
                "authority",
                certificate.authority.as_deref().unwrap_or(name),
            ),
        ]);
        let times = [
            (&NOT_AFTER, certificate.not_after),
            (&RENEWAL, certificate.renewal),
        ];
        for (family, at) in times {
            if let Some(at) = at {
                page.sample(family, &labels, seconds(at));
            }
        }
    }
}

/// Returns the gauges of a node that could not be compared with the plan.
pub(super) fn not_assessed(plan: &NodeSpec) -> MetricsPage {
    let mut page = MetricsPage::default();
    let authorities = plan.bundles.iter();
    let owners = authorities
        .map(|spec| KeyOwner::Authority(spec.authority))
        .chain(plan.certs.iter().map(|spec| KeyOwner::Leaf(spec.name())))
        .chain(
            plan.service_account
                .iter()
                .map(|_| KeyOwner::ServiceAccount),
        );
    for owner in owners {
        sample_verdict(&mut page, owner, KeyVerdict::Unknown);
    }
    page
}

fn sample_verdict(page: &mut MetricsPage, owner: KeyOwner, verdict: KeyVerdict) {
    let of_owner = owner_labels(owner);
    let compliant = match verdict {
        KeyVerdict::Compliant => Some(1.0),
        KeyVerdict::NotCompliant | KeyVerdict::Unknown => Some(0.0),
        KeyVerdict::NotRequired | KeyVerdict::ChosenByKubelet => None,
    };
    if let Some(compliant) = compliant {
        page.sample(&COMPLIANT, &of_owner, compliant);
    }
    let verdicts = KeyVerdict::ALL.map(|one| (one.as_str(), one == verdict));
    sample_each(page, &POLICY_VERDICT, &of_owner, "verdict", verdicts);
}

/// Adds a sample for each value of a label: 1 for the present one.
fn sample_each(
    page: &mut MetricsPage,
    family: &'static MetricFamily,
    of: &str,
    label: &str,
    values: impl IntoIterator<Item = (&'static str, bool)>,
) {
    for (value, is_present) in values {
        let value = labels(&[(label, &value.replace(' ', "-"))]);
        page.sample(family, &format!("{of},{value}"), flag(is_present));
    }
}

fn flag(is_set: bool) -> f64 {
    f64::from(u8::from(is_set))
}

/// Returns the labels of a key. One that is not a certificate's has no authority.
fn owner_labels(owner: KeyOwner) -> String {
    let name = owner.to_string();
    let (of, component) = match owner {
        KeyOwner::Authority(name) => return CertificateLabels::authority(name).labels(),
        KeyOwner::Leaf(name) => return CertificateLabels::leaf(name).labels(),
        KeyOwner::ServiceAccount => (None, "kube-apiserver"),
        KeyOwner::EtcdClientAuthority => (Some(Authority::EtcdCa), "etcd"),
        KeyOwner::SignedForKubelets(name) => (Some(name.authority()), "kubelet"),
    };
    labels(&[
        ("certificate_name", &name),
        ("authority", of.map_or("", Authority::as_str)),
        ("category", owner.category().map_or("", Category::as_str)),
        ("component", component),
    ])
}

/// Adds the gauges of restarts that are due or were rolled back.
pub(super) fn restarts(page: &mut MetricsPage, root: &NodeRoot) {
    // The run reports a record that cannot be read.
    for restart in root.unsettled().unwrap_or_default().restarts {
        let component = labels(&[("component", restart.component.as_str())]);
        page.sample(&RESTARTS_PENDING, &component, seconds(restart.since));
        let rolled_back = matches!(restart.state, RestartState::RolledBack { .. });
        page.sample(&ROLLED_BACK, &component, flag(rolled_back));
    }
}

/// The labels that identify a certificate.
pub(super) struct CertificateLabels {
    name: &'static str,
    authority: Authority,
    category: &'static str,
    component: &'static str,
}

impl CertificateLabels {
    pub(super) fn leaf(name: CertName) -> CertificateLabels {
        CertificateLabels {
            name: name.as_str(),
            authority: name.authority(),
            category: Category::of(name).as_str(),
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
                CertName::NodepkiConf => "nodepki",
                CertName::PodClient => "pod",
                CertName::Registered(_) => "registered",
            },
        }
    }

    const fn authority(name: Authority) -> CertificateLabels {
        CertificateLabels {
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

    /// Returns the labels with those of the key, whose kind `key` is a name of `x509`.
    pub(super) fn with_key(&self, key: &str) -> String {
        format!("{},{}", self.labels(), key_labels(key))
    }

    fn sample_state(&self, page: &mut MetricsPage, state: RowState) {
        let states = RowState::ALL.map(|one| (one.as_str(), one == state));
        sample_each(page, &STATE, &self.labels(), "state", states);
    }

    fn sample_phase(&self, page: &mut MetricsPage, phase: CertPhase) {
        let phases = CertPhase::ALL.map(|one| (one.as_str(), one == phase));
        sample_each(page, &PHASE, &self.labels(), "phase", phases);
    }

    fn sample_validity(&self, page: &mut MetricsPage, facts: &Facts) {
        page.sample(&CERTIFICATE_INFO, &self.with_key(&facts.key), 1.0);
        page.sample(&NOT_BEFORE, &self.labels(), seconds(facts.not_before));
        page.sample(&NOT_AFTER, &self.labels(), seconds(facts.not_after));
    }
}

/// Returns the labels of a key, in the terms of the key policy: a size for RSA, a curve for ECDSA.
pub(super) fn key_labels(key: &str) -> String {
    let (algorithm, size, curve) = match key.split_once('-') {
        Some(("RSA", size)) => ("RSA", size, ""),
        Some(("ECDSA", curve)) => ("ECDSA", "", curve),
        // A name or object identifier: a certificate that nodepki did not issue.
        _ => (key, "", ""),
    };
    labels(&[
        ("algorithm", algorithm),
        ("key_size", size),
        ("curve", curve),
    ])
}

fn seconds(at: OffsetDateTime) -> f64 {
    at.unix_timestamp() as f64
}

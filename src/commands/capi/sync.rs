//! Reports the expiry of each control-plane machine's certificates to Cluster API.
//!
//! KubeadmControlPlane reads the expiry of kube-apiserver's certificate once for each machine, writes it to the annotation
//! `machine.cluster.x-k8s.io/certificates-expiry` of the KubeadmConfig, and skips machines that have it
//! (`reconcileCertificateExpiries` in `controlplane/kubeadm/reconcilers/kubeadmcontrolplane`). After a renewal on the node
//! the annotation is out of date, and `rollout.before.certificatesExpiryDays` replaces healthy machines. The same
//! annotation on the Machine takes precedence (`reconcileCertificateExpiry` in `core/reconcilers/machine`), and no
//! controller writes it there: this module does.
//!
//! The source is the certificate that kube-apiserver presents at the machine's address, as for Cluster API: it is what
//! clients see, and needs no credential for the workload cluster.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::serde::rfc3339;

use super::apply::{self, map_at};
use super::cluster_api;
use super::rights;
use super::secrets::{CLUSTER_LABEL, ClusterTarget, Purpose};
use crate::agent::{ExitCode, Failure};
use crate::cluster::api::{Api, ApiError, Resource};
use crate::http;
use crate::text::rfc3339;
use crate::x509::{CertDifference, Certificate, Chain, TrustBundle, path_differences};

/// Annotation of a Machine with the end of validity of its certificates, RFC 3339.
const EXPIRY_ANNOTATION: &str = "machine.cluster.x-k8s.io/certificates-expiry";
const CONTROL_PLANE_LABEL: &str = "cluster.x-k8s.io/control-plane";
/// Common name of kubeadm's `apiserver` certificate, by which Cluster API finds it (`kubeadmAPIServerCertCommonName`).
const API_SERVER_NAME: &str = "kube-apiserver";
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

const MACHINE: Resource = cluster_api("machines", "Machine");

words! {
    /// What was done with a Machine, or what Cluster API knows of it.
    pub(super) enum ExpiryAction: Serialize {
        /// The annotation was correct.
        Kept = "kept",
        Written = "written",
        /// Cluster API knows the end of the certificate.
        Current = "current",
        /// Cluster API knows the end of an earlier certificate.
        Stale = "stale",
        /// The machine has no Node yet, or is being deleted.
        Skipped = "skipped",
        /// No address answers; the annotation is unchanged.
        Unreachable = "unreachable",
        /// The certificate is not that of the cluster's kube-apiserver; the annotation is unchanged.
        Refused = "refused",
        /// The API server of the management cluster refused the annotation.
        Failed = "failed",
    }
}

/// The result for one Machine.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MachineExpiry {
    pub(super) machine: String,
    pub(super) action: ExpiryAction,
    /// End of validity of the certificate that kube-apiserver presents.
    #[serde(with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub(super) not_after: Option<OffsetDateTime>,
    /// The former annotation, what Cluster API knows, or the reason why the annotation was not written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reasons: Vec<String>,
    #[serde(skip)]
    pub(super) code: ExitCode,
}

impl MachineExpiry {
    fn new(
        machine: String,
        action: ExpiryAction,
        not_after: Option<OffsetDateTime>,
        reasons: Vec<String>,
    ) -> Self {
        let code = match action {
            ExpiryAction::Kept
            | ExpiryAction::Written
            | ExpiryAction::Current
            | ExpiryAction::Skipped => ExitCode::Done,
            ExpiryAction::Stale | ExpiryAction::Failed => ExitCode::Pending,
            ExpiryAction::Unreachable => ExitCode::Unreachable,
            ExpiryAction::Refused => ExitCode::Refused,
        };
        MachineExpiry {
            machine,
            action,
            not_after,
            reasons,
            code,
        }
    }
}

/// The results for all control-plane Machines of a cluster.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Expiries {
    pub(super) machines: Vec<MachineExpiry>,
}

impl Expiries {
    /// Returns 65 if a certificate was refused, else 77 if an annotation must not be written, else 69 if a machine was
    /// unreachable, else 75 if [`sync`] has to write an annotation.
    pub(super) fn code(&self) -> ExitCode {
        let codes = self.machines.iter().map(|machine| machine.code);
        codes.max().unwrap_or(ExitCode::Done)
    }
}

/// Reads the certificate of each control-plane machine and corrects the annotations.
///
/// # Errors
/// CLUSTER-ca is missing or unusable; errors of the management cluster's API server.
pub(super) async fn sync(
    api: &Api,
    target: &ClusterTarget,
    port: u16,
    clock: fn() -> OffsetDateTime,
) -> Result<Expiries, Failure> {
    let trust = authority(api, target).await?;
    if let Err(problem) = trust {
        return Err(Failure::refused(problem));
    }
    let mut machines = Vec::new();
    for machine in list(api, target).await? {
        machines.push(sync_machine(api, target, machine, &trust, port, clock).await);
    }
    Ok(Expiries { machines })
}

/// Compares the certificate of each control-plane machine with what Cluster API knows of it. Changes nothing. Without a
/// usable CLUSTER-ca, each certificate is refused.
pub(super) async fn compare(
    api: &Api,
    target: &ClusterTarget,
    port: u16,
    clock: fn() -> OffsetDateTime,
) -> Result<Expiries, Failure> {
    let trust = authority(api, target).await?;
    let mut machines = Vec::new();
    for machine in list(api, target).await? {
        machines.push(match examine(&machine, &trust, port, clock).await {
            Ok(not_after) => known(&machine, not_after),
            Err(other) => other,
        });
    }
    Ok(Expiries { machines })
}

/// Returns what Cluster API knows of a machine whose certificate ends then: from the Machine's annotation, or from the
/// KubeadmConfig's (`reconcileCertificateExpiry`).
fn known(machine: &Value, not_after: OffsetDateTime) -> MachineExpiry {
    let known = machine.pointer("/status/certificatesExpiryDate");
    let known = known.and_then(Value::as_str);
    let (action, reason) = match known {
        None => (
            ExpiryAction::Skipped,
            Some("Cluster API has not read its certificate yet".to_owned()),
        ),
        Some(known) if known == rfc3339(not_after) => (ExpiryAction::Current, None),
        Some(known) => (
            ExpiryAction::Stale,
            Some(format!(
                "Cluster API takes {known} for its end, and may replace the machine before it (run nodepki capi sync)"
            )),
        ),
    };
    let reasons = reason.into_iter().collect();
    MachineExpiry::new(name_of(machine), action, Some(not_after), reasons)
}

fn name_of(machine: &Value) -> String {
    let name = machine.pointer("/metadata/name").and_then(Value::as_str);
    name.unwrap_or_default().to_owned()
}

/// Returns the end of validity of the certificate that the machine presents; the error is the result without it.
async fn examine(
    machine: &Value,
    trust: &ClusterAuthority,
    port: u16,
    clock: fn() -> OffsetDateTime,
) -> Result<OffsetDateTime, MachineExpiry> {
    let refuse = |action, reasons| MachineExpiry::new(name_of(machine), action, None, reasons);
    let skipped = |why: &str| refuse(ExpiryAction::Skipped, vec![why.to_owned()]);
    let text = |path: &str| machine.pointer(path).and_then(Value::as_str);
    if text("/metadata/deletionTimestamp").is_some() {
        return Err(skipped("the Machine is being deleted"));
    }
    if text("/status/nodeRef/name").is_none() {
        return Err(skipped("the Machine has no Node yet"));
    }
    let refused = |problem| refuse(ExpiryAction::Refused, vec![problem]);
    let trust = trust.as_ref().map_err(|problem| refused(problem.clone()))?;
    let certificate = presented(&addresses(machine), port, clock)
        .await
        .map_err(|reasons| refuse(ExpiryAction::Unreachable, reasons))?;
    require_api_server(&certificate, trust, clock()).map_err(refused)?;
    Ok(certificate.not_after())
}

/// The CA certificates of CLUSTER-ca, or why it has none that can be used.
type ClusterAuthority = Result<TrustBundle, String>;

async fn authority(api: &Api, target: &ClusterTarget) -> Result<ClusterAuthority, Failure> {
    let found = apply::read(api, target, std::iter::once(Purpose::Ca)).await?;
    let certificates = found.get(&Purpose::Ca).map_or_else(
        || Err("it does not exist".to_owned()),
        |secret| {
            let pem = secret.data("tls.crt").or_else(|| secret.data("ca.crt"));
            let pem = pem.ok_or("it does not contain a certificate")?;
            TrustBundle::from_pem(&pem).map_err(|error| error.to_string())
        },
    );
    Ok(certificates.map_err(|problem| {
        format!(
            "Secret {} in {}: {problem} (create it with nodepki capi secrets)",
            target.name(Purpose::Ca),
            target.namespace()
        )
    }))
}

async fn list(api: &Api, target: &ClusterTarget) -> Result<Vec<Value>, Failure> {
    // Both names are verified, and need no escaping.
    let path = format!(
        "/apis/{}/namespaces/{}/{}?labelSelector={CLUSTER_LABEL}%3D{},{CONTROL_PLANE_LABEL}",
        MACHINE.api_version(),
        target.namespace(),
        MACHINE.plural,
        target.cluster(),
    );
    let list = api.document(&path).await.map_err(|error| {
        let doing = format!("listing the Machines of {}", target.cluster());
        Failure::of_cluster(doing, error)
    })?;
    let items = list.get("items").and_then(Value::as_array);
    Ok(items.cloned().unwrap_or_default())
}

async fn sync_machine(
    api: &Api,
    target: &ClusterTarget,
    machine: Value,
    trust: &ClusterAuthority,
    port: u16,
    clock: fn() -> OffsetDateTime,
) -> MachineExpiry {
    let not_after = match examine(&machine, trust, port, clock).await {
        Ok(not_after) => not_after,
        Err(other) => return other,
    };
    let name = name_of(&machine);
    let replace = async |machine: &Value| {
        let namespace = Some(target.namespace());
        let replaced = api.replace(&MACHINE, namespace, &name, machine).await;
        replaced.map(drop)
    };
    let read = async || {
        let machines = list(api, target).await?;
        Ok(machines.into_iter().find(|one| name_of(one) == name))
    };
    let (action, reasons, code) = match write_expiry(machine, not_after, replace, read).await {
        Ok((action, reasons)) => (action, reasons, None),
        Err(failure) => {
            let reasons = failure.texts();
            (ExpiryAction::Failed, reasons, Some(failure.code))
        }
    };
    let result = MachineExpiry::new(name, action, Some(not_after), reasons);
    MachineExpiry {
        code: code.unwrap_or(result.code),
        ..result
    }
}

/// Writes the annotation unless it is correct, and returns what was done. Controllers update the status often: after a
/// conflict the Machine is read again, once.
async fn write_expiry(
    mut machine: Value,
    not_after: OffsetDateTime,
    replace: impl AsyncFn(&Value) -> Result<(), ApiError>,
    read: impl AsyncFn() -> Result<Option<Value>, Failure>,
) -> Result<(ExpiryAction, Vec<String>), Failure> {
    let (name, wanted) = (name_of(&machine), rfc3339(not_after));
    let mut is_repeated = false;
    loop {
        let present = annotation(&machine).map(str::to_owned);
        if present.as_deref() == Some(wanted.as_str()) {
            return Ok((ExpiryAction::Kept, Vec::new()));
        }
        annotate(&mut machine, &wanted);
        match replace(&machine).await {
            Ok(()) => {
                let former = present.map(|present| format!("the annotation was {present}"));
                return Ok((ExpiryAction::Written, former.into_iter().collect()));
            }
            Err(ApiError::Refused(status)) if status.is_conflict() => {}
            Err(error) => {
                let doing = format!("changing the Machine {name}");
                return Err(Failure::of_cluster(doing, error));
            }
        }
        if is_repeated {
            let message =
                format!("Machine {name}: another client changed it at the same time; run again");
            return Err(Failure::pending(message));
        }
        is_repeated = true;
        machine = match read().await? {
            Some(machine) => machine,
            None => {
                let gone = "the Machine was deleted".to_owned();
                return Ok((ExpiryAction::Skipped, vec![gone]));
            }
        };
    }
}

/// Returns the IP addresses of a Machine, internal ones first, as Cluster API's providers report them.
fn addresses(machine: &Value) -> Vec<IpAddr> {
    let reported = machine
        .pointer("/status/addresses")
        .and_then(Value::as_array);
    let of_kind = |kind: &str| -> Vec<IpAddr> {
        let addresses = reported.into_iter().flatten();
        let addresses =
            addresses.filter(|address| address.get("type").and_then(Value::as_str) == Some(kind));
        addresses
            .filter_map(|address| address.get("address")?.as_str()?.parse().ok())
            .collect()
    };
    [of_kind("InternalIP"), of_kind("ExternalIP")].concat()
}

/// Returns the certificate of the first address that answers; the error is the problem of each.
async fn presented(
    addresses: &[IpAddr],
    port: u16,
    clock: fn() -> OffsetDateTime,
) -> Result<Certificate, Vec<String>> {
    if addresses.is_empty() {
        return Err(vec![
            "the Machine reports no IP address in status.addresses".to_owned(),
        ]);
    }
    let mut problems = Vec::new();
    for address in addresses {
        let address = SocketAddr::new(*address, port);
        match http::presented_certificate(address, None, clock, HANDSHAKE_TIMEOUT).await {
            Ok(certificate) => return Ok(certificate),
            Err(error) => problems.push(error.to_string()),
        }
    }
    Err(problems)
}

/// Verifies that the cluster CA has signed the certificate for kube-apiserver. An expired certificate is accepted: its
/// expiry is what Cluster API has to know.
fn require_api_server(
    certificate: &Certificate,
    trust: &TrustBundle,
    now: OffsetDateTime,
) -> Result<(), String> {
    let subject = certificate.subject();
    if !subject.values("CN").any(|name| name == API_SERVER_NAME) {
        return Err(format!(
            "the certificate that is presented at its address is that of {subject}, not of {API_SERVER_NAME}"
        ));
    }
    let chain = Chain::from_pem(certificate.to_pem().as_bytes()).map_err(|e| e.to_string())?;
    let mut differences = path_differences(&chain, trust, now).into_iter();
    match differences
        .find(|difference| matches!(difference, CertDifference::UntrustedIssuer { .. }))
    {
        None => Ok(()),
        Some(difference) => Err(format!(
            "the certificate that is presented at its address is not one of this cluster: {difference}"
        )),
    }
}

fn annotation(machine: &Value) -> Option<&str> {
    let annotations = machine.pointer("/metadata/annotations")?;
    annotations.get(EXPIRY_ANNOTATION)?.as_str()
}

fn annotate(machine: &mut Value, expiry: &str) {
    if let Some(object) = map_at(machine, &[]) {
        // Items of a list have neither.
        object.insert("apiVersion".to_owned(), json!(MACHINE.api_version()));
        object.insert("kind".to_owned(), json!(MACHINE.kind));
    }
    if let Some(annotations) = map_at(machine, &["metadata", "annotations"]) {
        annotations.insert(EXPIRY_ANNOTATION.to_owned(), json!(expiry));
    }
}

/// Returns the rule that [`compare`] needs in addition to reading CLUSTER-ca.
pub(super) fn rule_to_compare() -> Value {
    rights::rule(&MACHINE, "", &[], &["list"])
}

/// Returns a ServiceAccount with exactly the rights that [`sync`] needs, as input of `kubectl apply -f -`.
pub(super) fn rights(target: &ClusterTarget) -> String {
    let rules = [
        rights::rule(&MACHINE, "", &[], &["list", "update"]),
        rights::secrets(&[target.name(Purpose::Ca)], &["get"]),
    ];
    rights::manifest(target, "sync", "", &rules)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use time::macros::datetime;

    use super::*;
    use crate::cluster::api::ApiStatus;

    #[tokio::test]
    async fn compares_nothing_without_authority() {
        let machine = json!({
            "metadata": {"name": "m1"},
            "status": {"nodeRef": {"name": "m1"}, "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
        });
        let problem = "Secret prod-ca in default: it does not exist";
        let trust = Err(problem.to_owned());
        let examined = examine(&machine, &trust, 6443, OffsetDateTime::now_utc).await;
        let machine = examined.unwrap_err();
        assert_eq!(machine.reasons, [problem]);
        let machines = vec![machine];
        assert_eq!(Expiries { machines }.code(), ExitCode::Refused);
    }

    #[tokio::test]
    async fn repeats_write_once_after_conflict() {
        let end = datetime!(2026-06-01 12:00 UTC);
        let conflict = ApiStatus {
            code: 409,
            reason: "Conflict".to_owned(),
            ..ApiStatus::default()
        };
        let machine = |expiry: &str| json!({"metadata": {"name": "m1", "annotations": {EXPIRY_ANNOTATION: expiry}}});
        for (conflicts, again, expected) in [
            (0, None, Ok((ExpiryAction::Written, 1))),
            (1, Some(machine("new")), Ok((ExpiryAction::Written, 2))),
            (1, Some(machine(&rfc3339(end))), Ok((ExpiryAction::Kept, 1))),
            (1, None, Ok((ExpiryAction::Skipped, 1))),
            (2, Some(machine("new")), Err(ExitCode::Pending)),
        ] {
            let attempts = Cell::new(0);
            let replace = async |written: &Value| {
                assert_eq!(annotation(written), Some("2026-06-01T12:00:00Z"));
                attempts.set(attempts.get() + 1);
                if attempts.get() > conflicts {
                    Ok(())
                } else {
                    Err(ApiError::Refused(Box::new(conflict.clone())))
                }
            };
            let read = async || Ok(again.clone());
            let written = write_expiry(machine("old"), end, replace, read).await;
            let found = written.map(|(action, _)| (action, attempts.get()));
            assert_eq!(found.map_err(|failure| failure.code), expected);
        }
    }

    #[test]
    fn ends_with_gravest_machine() {
        let code = |actions: &[ExpiryAction]| {
            let machines = actions.iter();
            let machines = machines
                .map(|action| MachineExpiry::new("m1".to_owned(), *action, None, Vec::new()));
            let machines = machines.collect();
            Expiries { machines }.code()
        };
        use ExpiryAction::{Current, Refused, Skipped, Stale, Unreachable};
        assert_eq!(code(&[Current, Skipped]), ExitCode::Done);
        assert_eq!(code(&[Stale, Current]), ExitCode::Pending);
        assert_eq!(code(&[Stale, Unreachable]), ExitCode::Unreachable);
        assert_eq!(code(&[Unreachable, Refused]), ExitCode::Refused);
    }
}

//! `certManager` against a real API server with cert-manager's own CustomResourceDefinition. The tests approve and issue.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, FailureClass, Request, Signer, SignerKind};
use nodepki::x509::Chain;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Rule};
use crate::node::Ran;
use crate::rig::{Denial, Front, Rig, node};
use crate::servers::kubernetes::{Kubernetes, add_condition, condition, kubernetes, sign};
use crate::signer_bad::verdict;
use crate::signer_kubernetes::{
    assert_same_usages, csrs, direct, front, gateway, name_of, only, set_up,
};
use crate::signing::{
    contains, denied, fails, issued, open, pending, recovered, rejects, request, run, settings,
    wanted, write_secret,
};
use crate::time::eventually;

/// A namespace of its own on the shared cluster, and a bootstrap token with access to it.
pub(crate) struct CertManagerRig {
    cluster: &'static Kubernetes,
    dir: TempDir,
    namespace: String,
    access: String,
    /// The keys of `issuerRef`.
    issuer: String,
    /// The field in which the issuer returns the chain.
    gives: Gives,
}

/// Contents of `status.certificate` and `status.ca`.
#[derive(Clone, Copy, PartialEq)]
enum Gives {
    Leaf,
    Chain,
    /// The leaf, and the intermediate in `status.ca`.
    ChainApart,
    /// The leaf, and text that is not a certificate in `status.ca`.
    OddCa,
}

impl CertManagerRig {
    pub(crate) fn new() -> Self {
        let cluster = kubernetes();
        let dir = tempfile::tempdir().unwrap();
        let namespace = format!("pki-{}", cluster.corner());
        cluster.new_namespace(&namespace);
        let token = dir.path().join("token");
        write_secret(&token, "abcdef.0123456789abcdef\n");
        CertManagerRig {
            access: direct(
                &cluster.url(),
                &cluster.ca_file(),
                &format!("tokenFile: {}", token.display()),
            ),
            issuer: "name: \"k8s-{authority}\", kind: CorpIssuer, group: pki.example.com"
                .to_owned(),
            cluster,
            dir,
            namespace,
            gives: Gives::Leaf,
        }
    }

    fn keys(&self) -> String {
        format!(
            "{}, namespace: {}, issuerRef: {{{}}}",
            self.access, self.namespace, self.issuer
        )
    }

    fn use_kubeconfig_of(&mut self, user: &str, group: &str) {
        let file = self.scratch().join("client.conf");
        write_secret(&file, self.cluster.kubeconfig_of(user, &[group]));
        self.access = format!("kubeconfig: {}", file.display());
    }

    fn signer(&self) -> Rc<dyn Signer> {
        self.open(Authority::Ca)
    }

    fn path(&self) -> String {
        format!(
            "/apis/cert-manager.io/v1/namespaces/{}/certificaterequests",
            self.namespace
        )
    }

    fn path_of(&self, object: &Value) -> String {
        format!("{}/{}", self.path(), name_of(object))
    }

    fn objects(&self) -> Vec<Value> {
        self.cluster.admin().list(&self.path())
    }

    fn only(&self) -> Value {
        only(self.objects())
    }

    fn delete_only(&self) {
        self.cluster.admin().delete(&self.path_of(&self.only()));
    }

    /// Adds conditions to every request, as the controllers of the issuer and of approver-policy do.
    fn conditions(&self, conditions: &[Value]) {
        let issuer = self.cluster.person("issuer", &[]);
        for object in self.objects() {
            issuer.answer(&self.path_of(&object), |object| {
                for condition in conditions {
                    add_condition(object, condition.clone());
                }
            });
        }
    }

    /// Signs every request, as the controller of the issuer does.
    fn issue(&self) {
        let issuer = self.cluster.person("issuer", &[]);
        for object in self.objects() {
            if !object["status"]["certificate"].is_null() {
                continue;
            }
            let spec = &object["spec"];
            assert_same_usages(spec);
            let name = spec["issuerRef"]["name"].as_str().unwrap();
            let authority: Authority = name.strip_prefix("k8s-").unwrap().parse().unwrap();
            let hours = spec["duration"]
                .as_str()
                .unwrap_or("2160h")
                .trim_end_matches('h');
            let chain = sign(
                &self.authorities(),
                authority,
                spec["request"].as_str().unwrap(),
                &spec["usages"],
                Duration::from_secs(hours.parse::<u64>().unwrap() * 3600),
                matches!(self.gives, Gives::Chain | Gives::ChainApart),
            );
            let end = "-----END CERTIFICATE-----\n";
            let (leaf, rest) = chain.split_at(chain.find(end).unwrap() + end.len());
            let root = self
                .authorities()
                .join(authority.base_name())
                .with_extension("crt");
            let root = fs::read_to_string(root).unwrap();
            let (certificate, ca) = match self.gives {
                Gives::Leaf => (leaf, root.as_str()),
                Gives::Chain => (chain.as_str(), root.as_str()),
                Gives::ChainApart => (leaf, rest),
                Gives::OddCa => (leaf, "see the wiki"),
            };
            issuer.answer(&self.path_of(&object), |object| {
                add_condition(object, condition("Ready", "Issued", "signed"));
                object["status"]["certificate"] = json!(BASE64.encode(certificate));
                object["status"]["ca"] = json!(BASE64.encode(ca));
            });
        }
    }
}

impl Rig for CertManagerRig {
    fn kind(&self) -> SignerKind {
        SignerKind::CertManager
    }

    fn settings(&self) -> String {
        settings(&format!("certManager: {{{}}}", self.keys()))
    }

    fn authorities(&self) -> PathBuf {
        self.cluster.authorities()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn approve(&self) {
        self.issue();
    }

    fn deny(&self, request: &Request) -> Option<Denial> {
        let ticket = pending(run(self.signer().submit(request))).0;
        self.conditions(&[condition("Denied", "Policy", "not on a Friday")]);
        Some(Denial {
            signer: self.open(request.wanted.authority),
            ticket: Some(ticket),
            reason: "not on a Friday",
        })
    }

    fn front(&self) -> Option<Front> {
        Some(front("certManager", self.keys(), "/certificaterequests"))
    }

    fn sent(&self) -> Vec<String> {
        csrs(&self.objects())
    }
}

fn not_ready(reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": "False", "reason": reason, "message": message})
}

#[test]
fn describes_desired_certificate_in_request() {
    let rig = CertManagerRig::new();
    let signer = rig.signer();
    run(signer.probe()).unwrap();
    let request = request(CertName::EtcdServer);
    signer.preflight(&request.wanted).unwrap();
    let (ticket, note) = pending(run(signer.submit(&request)));
    let object = rig.only();
    assert_eq!(ticket.as_str(), name_of(&object));
    let spec = &object["spec"];
    assert_eq!(
        spec["issuerRef"],
        json!({"name": "k8s-etcd-ca", "kind": "CorpIssuer", "group": "pki.example.com"})
    );
    assert_eq!(spec["duration"], "8760h");
    assert_eq!(
        spec["usages"],
        json!(["digital signature", "server auth", "client auth"])
    );
    assert_ne!(spec["isCA"], true);
    assert_same_usages(spec);
    assert_eq!(
        object["metadata"]["annotations"]["nodepki.io/certificate"],
        "etcd-server"
    );
    contains(
        &note,
        &[
            ticket.as_str(),
            "CorpIssuer k8s-etcd-ca of pki.example.com",
            "waits for approval",
            "cmctl approve -n pki-",
        ],
    );
    rig.conditions(&[
        condition("Approved", "Reviewed", "looks good"),
        not_ready("Pending", "the issuer has no credentials yet"),
    ]);
    let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
    contains(
        &note,
        &[
            "is approved (Reviewed: looks good)",
            "CorpIssuer k8s-etcd-ca",
            "the issuer has no credentials yet",
            "exists and is Ready",
        ],
    );
}

#[test]
fn adds_configured_annotations_and_labels() {
    let mut rig = CertManagerRig::new();
    let field = "[{\"name\": \"cost center\", \"value\": \"{cluster}\"}]";
    rig.access = format!(
        "{}, annotations: {{venafi.cert-manager.io/custom-fields: '{field}'}}, labels: {{team: platform}}",
        rig.access
    );
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let metadata = &rig.only()["metadata"];
    assert_eq!(
        metadata["annotations"]["venafi.cert-manager.io/custom-fields"],
        field.replace("{cluster}", "kubernetes")
    );
    assert_eq!(metadata["labels"]["team"], "platform");
    rig.issue();
    let bytes = issued(run(rig.signer().poll(&request, &ticket)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
}

#[test]
fn repeats_deleted_request_with_same_key() {
    let rig = CertManagerRig::new();
    let request = request(CertName::Apiserver);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.delete_only();
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
    assert_eq!(run(rig.signer().recover(&request, None)).unwrap(), None);
    assert_eq!(pending(run(rig.signer().submit(&request))).0, ticket);
}

#[test]
fn completes_chain_with_issuer_ca_and_does_not_trust_it() {
    for (gives, intermediates) in [
        (Gives::Leaf, 0),
        (Gives::Chain, 1),
        (Gives::ChainApart, 1),
        (Gives::OddCa, 0),
    ] {
        let mut rig = CertManagerRig::new();
        rig.gives = gives;
        let request = request(CertName::EtcdServer);
        let (ticket, _) = pending(run(rig.signer().submit(&request)));
        rig.issue();
        let bytes = issued(run(rig.signer().poll(&request, &ticket)));
        assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
        let chain = Chain::from_response(&bytes, request.csr.public_key()).unwrap();
        assert_eq!(chain.intermediates().len(), intermediates);
        assert_eq!(run(rig.signer().trust(Authority::EtcdCa)).unwrap(), None);
    }
}

#[test]
fn reports_failed_request_until_it_is_deleted() {
    for (conditions, parts) in [
        (
            vec![not_ready("Failed", "quota of the CA is used up")],
            [
                "CorpIssuer k8s-ca of pki.example.com reports",
                "quota of the CA is used up",
            ],
        ),
        (
            vec![
                condition("Approved", "Reviewed", ""),
                condition("InvalidRequest", "BadName", "no such name"),
                not_ready("Failed", "see above"),
            ],
            ["is invalid", "BadName: no such name"],
        ),
        (
            vec![condition("Ready", "Issued", "")],
            ["is damaged", "has no certificate"],
        ),
    ] {
        let rig = CertManagerRig::new();
        let request = request(CertName::Apiserver);
        let (ticket, _) = pending(run(rig.signer().submit(&request)));
        rig.conditions(&conditions);
        for result in [
            run(rig.signer().poll(&request, &ticket)),
            run(rig.signer().submit(&request)),
            recovered(run(rig.signer().recover(&request, None))),
        ] {
            let message = fails(result, FailureClass::Permanent, &parts);
            let named = ["certManager:https://", "apiserver", ticket.as_str()];
            contains(&message, &named);
        }
        rig.only();
    }
    let rig = CertManagerRig::new();
    let request = request(CertName::Apiserver);
    pending(run(rig.signer().submit(&request)));
    rig.conditions(&[not_ready("Failed", "down")]);
    let advice = format!(
        "kubectl -n {} delete certificaterequest {}",
        rig.namespace,
        name_of(&rig.only())
    );
    let result = run(rig.signer().submit(&request));
    fails(result, FailureClass::Permanent, &[&advice]);
    rig.delete_only();
    pending(run(rig.signer().submit(&request)));
}

#[test]
fn keeps_denial_after_request_is_deleted() {
    for conditions in [
        vec![condition("Denied", "Policy", "not on a Friday")],
        vec![not_ready("Denied", "not on a Friday")],
        vec![
            condition("Denied", "Policy", "not on a Friday"),
            not_ready("Denied", "denied by approver"),
        ],
    ] {
        let rig = CertManagerRig::new();
        let request = request(CertName::EtcdPeer);
        let (ticket, _) = pending(run(rig.signer().submit(&request)));
        rig.conditions(&conditions);
        let reason = denied(run(rig.signer().poll(&request, &ticket)));
        assert!(reason.contains("not on a Friday"), "{reason}");
        rig.delete_only();
        assert_eq!(denied(run(rig.signer().submit(&request))), reason);
        assert!(rig.objects().is_empty());
    }
}

#[test]
fn limits_credential_to_creating_requests_in_its_namespace() {
    let (rig, other) = (CertManagerRig::new(), CertManagerRig::new());
    let request = request(CertName::Apiserver);
    pending(run(rig.signer().submit(&request)));
    let object = rig.only();
    let node = rig.cluster.bearer("abcdef.0123456789abcdef");
    let mut forged = object.clone();
    add_condition(&mut forged, condition("Approved", "Me", "please"));
    assert_eq!(
        node.put(&format!("{}/status", rig.path_of(&object)), &forged)
            .0,
        403
    );
    assert_eq!(node.put(&rig.path_of(&object), &forged).0, 403);
    assert_eq!(node.get(&other.path()).0, 403);
    assert_eq!(
        node.get("/apis/cert-manager.io/v1/namespaces/default/certificaterequests/x")
            .0,
        403
    );
    // In a namespace without access.
    let mut lost = CertManagerRig::new();
    lost.namespace = "default".to_owned();
    fails(
        run(lost.signer().probe()),
        FailureClass::Auth,
        &[
            "may not create",
            "in namespace default",
            "Role in the namespace",
        ],
    );
    let error = run(lost.signer().submit(&request)).unwrap_err();
    assert_eq!(error.class, FailureClass::Auth, "{error}");
}

/// With the real controllers of cert-manager, which approve and sign.
#[test]
fn obtains_certificates_from_cert_manager() {
    let mut rig = CertManagerRig::new();
    let namespace = rig.namespace.clone();
    let _controllers = rig.cluster.start_cert_manager(&namespace, "own");
    rig.issuer = "name: \"k8s-{authority}.own\"".to_owned();
    let node = node(&rig);
    Ran::of(&mut node.ask_command("30s")).done();
    node.assert_sound(&CertName::KUBEADM);
    let objects = rig.objects();
    assert_eq!(objects.len(), CertName::KUBEADM.len());
    for object in objects {
        assert!(
            object["status"]["conditions"]
                .to_string()
                .contains("cert-manager.io"),
            "{object}"
        );
    }
    // An installed certificate does not depend on annotations.
    node.edit_settings("namespace:", "annotations: {team: platform}, namespace:");
    let before = node.etc();
    node.ask().done();
    before.unchanged(&node.etc());
    assert_eq!(rig.objects().len(), CertName::KUBEADM.len());
    rig.issuer = "name: missing".to_owned();
    let request = request(CertName::Apiserver);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    eventually(|| {
        let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
        if note.contains("is approved")
            && note.contains("Issuer missing of cert-manager.io")
            && note.contains("not found")
        {
            return Ok(());
        }
        Err(note)
    });
}

#[test]
fn grants_what_is_needed_by_signer_setup() {
    let mut rig = CertManagerRig::new();
    rig.namespace = format!("printed-{}", rig.cluster.corner());
    let kinds: Vec<String> = set_up(&rig, true)
        .iter()
        .map(|object| object["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["Namespace", "RoleBinding", "Role"]);
    rig.use_kubeconfig_of("n", "system:bootstrappers:nodepki");
    eventually(|| run(rig.signer().probe()));
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.issue();
    let bytes = issued(run(rig.signer().poll(&request, &ticket)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
}

#[test]
fn reports_missing_namespace_and_missing_cert_manager_as_configuration() {
    let mut rig = CertManagerRig::new();
    rig.use_kubeconfig_of("me", "system:masters");
    rig.namespace = "nowhere".to_owned();
    let request = request(CertName::Apiserver);
    let parts = ["nowhere", "create the namespace"];
    fails(
        run(rig.signer().submit(&request)),
        FailureClass::Config,
        &parts,
    );
    // The response of an API server without the CustomResourceDefinition.
    let gateway = gateway();
    let missing = Action::body(404, "404 page not found\n");
    gateway.rule(Rule::on("*", "/apis/cert-manager.io/").then(missing));
    let mut rig = CertManagerRig::new();
    let token = rig.scratch().join("token");
    rig.access = direct(
        &gateway.url(),
        &gateway.ca_file(),
        &format!("tokenFile: {}", token.display()),
    );
    run(rig.signer().probe()).unwrap();
    let parts = ["CertificateRequest is installed"];
    fails(
        run(rig.signer().submit(&request)),
        FailureClass::Config,
        &parts,
    );
    let found = run(rig.signer().recover(&request, None));
    fails(found, FailureClass::Config, &parts);
}

#[test]
fn rejects_certificate_without_issuer() {
    let rig = CertManagerRig::new();
    let text = rig.settings();
    let text = text.replace("\"k8s-{authority}\"", "{apiserver: corp}");
    let signer = open(&text, Authority::Ca, rig.scratch());
    signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    let peer = wanted(CertName::EtcdPeer);
    rejects(signer.as_ref(), &peer, &["no issuer", "issuerRef.name"]);
}

#[test]
fn refuses_polled_request_that_another_user_created() {
    let rig = CertManagerRig::new();
    let request = request(CertName::Apiserver);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let mut theirs = rig.only();
    let admin = rig.cluster.admin();
    admin.delete(&rig.path_of(&theirs));
    theirs["metadata"] = json!({"name": ticket.as_str(), "namespace": rig.namespace});
    theirs["status"] = json!({});
    // cert-manager's webhook sets this field; the API server alone does not.
    theirs["spec"]["username"] = json!("thief");
    admin.create(&rig.path(), &theirs);
    rig.issue();
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
}

#[test]
fn reports_denied_invalid_and_failed_despite_certificate() {
    let reviewed = |kind| condition(kind, "Policy", "not on a Friday");
    let is_denied = true;
    for (condition, denies) in [
        (reviewed("Denied"), is_denied),
        (reviewed("InvalidRequest"), !is_denied),
        (not_ready("Failed", "not on a Friday"), !is_denied),
        (not_ready("Denied", "not on a Friday"), is_denied),
    ] {
        let rig = CertManagerRig::new();
        let request = request(CertName::Apiserver);
        let (ticket, _) = pending(run(rig.signer().submit(&request)));
        rig.issue();
        issued(run(rig.signer().poll(&request, &ticket)));
        // There is one condition of each type: a later Ready replaces the one that came with the certificate.
        let issuer = rig.cluster.person("issuer", &[]);
        issuer.answer(&rig.path_of(&rig.only()), |object| {
            let conditions = object["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|one| one["type"] != condition["type"]);
            conditions.push(condition.clone());
        });
        let polled = run(rig.signer().poll(&request, &ticket));
        if denies {
            contains(&denied(polled), &["not on a Friday"]);
        } else {
            fails(polled, FailureClass::Permanent, &["not on a Friday"]);
        }
    }
}

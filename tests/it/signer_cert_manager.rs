//! `certManager` against a real API server with cert-manager's own CustomResourceDefinition, and people who approve
//! and issue.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::config::Settings;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Kind, Request, Signer};
use nodepki::x509::Chain;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Rule};
use crate::node::Ran;
use crate::rig::{Denial, Front, Rig};
use crate::servers::kubernetes::{Kubernetes, add_condition, condition, kubernetes, sign};
use crate::signer_bad::verdict;
use crate::signer_bootstrap::node;
use crate::signer_contract::settings;
use crate::signer_kubernetes::{
    assert_same_usages, denied, direct, front, gateway, issued, name_of, pending, set_up,
};
use crate::signing::{request, run, wanted, write_secret};

/// A namespace of its own on the shared cluster, and a bootstrap token that may ask there.
pub(crate) struct CertManagerRig {
    cluster: &'static Kubernetes,
    dir: TempDir,
    namespace: String,
    access: String,
    /// Keys of `issuerRef`.
    issuer: String,
    /// What the issuer does with the chain.
    gives: Gives,
}

/// Leaf and intermediate: where they are.
#[derive(Clone, Copy, PartialEq)]
enum Gives {
    Leaf,
    Chain,
    /// The intermediate in `status.ca`.
    ChainApart,
    /// Something in `status.ca` that is no certificate.
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
        let mut objects = self.objects();
        assert_eq!(objects.len(), 1, "{objects:?}");
        objects.remove(0)
    }

    /// The issuer's controller, and approver-policy's, write a condition on everything.
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
    fn kind(&self) -> Kind {
        Kind::CertManager
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

    /// A line is a key, so that a second request for one shows.
    fn sent(&self) -> Vec<String> {
        let mut sent: Vec<String> = self
            .objects()
            .iter()
            .map(|object| object["spec"]["request"].as_str().unwrap().to_owned())
            .collect();
        sent.sort();
        sent
    }
}

fn not_ready(reason: &str, message: &str) -> Value {
    json!({"type": "Ready", "status": "False", "reason": reason, "message": message})
}

#[test]
fn a_request_says_all_that_is_wanted() {
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
        json!([
            "digital signature",
            "key encipherment",
            "server auth",
            "client auth"
        ])
    );
    assert_ne!(spec["isCA"], true);
    assert_same_usages(spec);
    assert_eq!(
        object["metadata"]["annotations"]["nodepki.io/certificate"],
        "etcd-server"
    );
    for part in [
        ticket.as_str(),
        "CorpIssuer k8s-etcd-ca of pki.example.com",
        "waits for approval",
        "cmctl approve -n pki-",
    ] {
        assert!(note.contains(part), "{note}");
    }
    rig.conditions(&[
        condition("Approved", "Reviewed", "looks good"),
        not_ready("Pending", "the issuer has no credentials yet"),
    ]);
    let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
    for part in [
        "is approved (Reviewed: looks good)",
        "CorpIssuer k8s-etcd-ca",
        "the issuer has no credentials yet",
        "exists and is Ready",
    ] {
        assert!(note.contains(part), "{note}");
    }
}

#[test]
fn a_request_is_found_again_and_never_there_twice() {
    let rig = CertManagerRig::new();
    let request = request(CertName::Apiserver);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    assert_eq!(pending(run(rig.signer().submit(&request))).0, ticket);
    rig.only();
    rig.issue();
    let bytes = issued(run(rig.signer().submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    rig.cluster.admin().delete(&rig.path_of(&rig.only()));
    assert_eq!(
        run(rig.signer().poll(&request, &ticket)).unwrap(),
        Answer::Gone
    );
    assert_eq!(run(rig.signer().recover(&request, None)).unwrap(), None);
    assert_eq!(pending(run(rig.signer().submit(&request))).0, ticket);
}

#[test]
fn the_issuers_ca_completes_a_chain_and_is_not_trusted() {
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
        let chain = Chain::from_answer(&bytes, request.csr.public_key()).unwrap();
        assert_eq!(chain.intermediates().len(), intermediates);
        assert_eq!(run(rig.signer().trust(Authority::EtcdCa)).unwrap(), None);
    }
}

#[test]
fn what_failed_is_not_tried_again_by_anybody() {
    for (conditions, parts) in [
        (
            vec![not_ready("Failed", "quota of the CA is used up")],
            [
                "CorpIssuer k8s-ca of pki.example.com says",
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
            run(rig.signer().recover(&request, None)).map(Option::unwrap),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.class, Class::Permanent, "{error}");
            for part in parts
                .iter()
                .chain(&["certManager:https://", "apiserver", ticket.as_str()])
            {
                assert!(error.to_string().contains(part), "{part}: {error}");
            }
        }
        rig.only();
    }
    // After a person removed it.
    let rig = CertManagerRig::new();
    let request = request(CertName::Apiserver);
    pending(run(rig.signer().submit(&request)));
    rig.conditions(&[not_ready("Failed", "down")]);
    let error = run(rig.signer().submit(&request)).unwrap_err();
    let advice = format!(
        "kubectl -n {} delete certificaterequest {}",
        rig.namespace,
        name_of(&rig.only())
    );
    assert!(error.to_string().contains(&advice), "{error}");
    rig.cluster.admin().delete(&rig.path_of(&rig.only()));
    pending(run(rig.signer().submit(&request)));
}

#[test]
fn a_denied_request_is_never_made_again() {
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
        rig.cluster.admin().delete(&rig.path_of(&rig.only()));
        assert_eq!(denied(run(rig.signer().submit(&request))), reason);
        assert!(rig.objects().is_empty());
    }
}

#[test]
fn the_node_sees_its_namespace_and_decides_nothing() {
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
    // Asked for where it may not ask.
    let mut lost = CertManagerRig::new();
    lost.namespace = "default".to_owned();
    let error = run(lost.signer().probe()).unwrap_err();
    assert_eq!(error.class, Class::Auth, "{error}");
    for part in [
        "may not create",
        "in namespace default",
        "Role in the namespace",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let error = run(lost.signer().submit(&request)).unwrap_err();
    assert_eq!(error.class, Class::Auth, "{error}");
}

/// The real controllers of cert-manager: nobody else has to do anything.
#[test]
fn cert_manager_itself_approves_and_signs() {
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
    // An issuer that is not there.
    rig.issuer = "name: nobody".to_owned();
    let request = request(CertName::Apiserver);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    let begin = Instant::now();
    loop {
        let (_, note) = pending(run(rig.signer().poll(&request, &ticket)));
        if note.contains("is approved")
            && note.contains("Issuer nobody of cert-manager.io")
            && note.contains("not found")
        {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "{note}");
    }
}

#[test]
fn what_signer_setup_prints_is_enough() {
    let mut rig = CertManagerRig::new();
    rig.namespace = format!("printed-{}", rig.cluster.corner());
    let kinds: Vec<String> = set_up(&rig, true)
        .iter()
        .map(|object| object["kind"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kinds, ["Namespace", "RoleBinding", "Role"]);
    let kubeconfig = rig.scratch().join("node.conf");
    let node = rig
        .cluster
        .kubeconfig_of("n", &["system:bootstrappers:nodepki"]);
    write_secret(&kubeconfig, node);
    rig.access = format!("kubeconfig: {}", kubeconfig.display());
    let begin = Instant::now();
    while let Err(error) = run(rig.signer().probe()) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{error}");
    }
    let request = request(CertName::EtcdServer);
    let (ticket, _) = pending(run(rig.signer().submit(&request)));
    rig.issue();
    let bytes = issued(run(rig.signer().poll(&request, &ticket)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
}

#[test]
fn a_missing_namespace_and_a_missing_cert_manager_are_configuration() {
    let mut rig = CertManagerRig::new();
    let kubeconfig = rig.scratch().join("admin.conf");
    write_secret(
        &kubeconfig,
        rig.cluster.kubeconfig_of("me", &["system:masters"]),
    );
    rig.access = format!("kubeconfig: {}", kubeconfig.display());
    rig.namespace = "nowhere".to_owned();
    let request = request(CertName::Apiserver);
    let error = run(rig.signer().submit(&request)).unwrap_err();
    assert_eq!(error.class, Class::Config, "{error}");
    for part in ["nowhere", "create the namespace"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // An API server without the definition answers so.
    let gateway = gateway();
    let missing = Action::Status(404, Vec::new(), b"404 page not found\n".to_vec());
    gateway.rule(Rule::on("*", "/apis/cert-manager.io/").then(missing));
    let mut rig = CertManagerRig::new();
    let token = rig.scratch().join("token");
    rig.access = direct(
        &gateway.url(),
        &gateway.ca_file(),
        &format!("tokenFile: {}", token.display()),
    );
    run(rig.signer().probe()).unwrap();
    for error in [
        run(rig.signer().submit(&request)).unwrap_err(),
        run(rig.signer().recover(&request, None)).unwrap_err(),
    ] {
        assert_eq!(error.class, Class::Config, "{error}");
        assert!(
            error
                .to_string()
                .contains("CertificateRequest is installed"),
            "{error}"
        );
    }
}

#[test]
fn by_the_whole_program_pending_denied_and_done() {
    let rig = CertManagerRig::new();
    let node = node(&rig);
    let ran = Ran::of(&mut node.ask_command("0s"));
    assert_eq!(ran.code, Some(75), "{}", ran.said());
    assert_eq!(rig.objects().len(), CertName::KUBEADM.len());
    let sent = rig.sent();
    assert_eq!(Ran::of(&mut node.ask_command("0s")).code, Some(75));
    assert_eq!(rig.sent(), sent);
    rig.approve();
    Ran::of(&mut node.ask_command("0s")).done();
    node.assert_sound(&CertName::KUBEADM);
    assert_eq!(rig.sent(), sent);
}

#[test]
fn faults_name_the_field_and_the_right_form() {
    let good = "server: https://h:6443, tls: {caFile: /ca}, tokenFile: /t";
    for (keys, parts) in [
        (good.to_owned(), ["has no namespace", "has no issuerRef"]),
        (
            format!("{good}, namespace: Pki, issuerRef: {{name: x}}"),
            ["namespace", "lower-case"],
        ),
        (
            format!("{good}, namespace: pki, issuerRef: {{}}"),
            ["issuerRef", "has no name"],
        ),
        (
            format!("{good}, namespace: pki, issuerRef: {{name: x, knd: y}}"),
            ["issuerRef.knd", "did you mean kind"],
        ),
        (
            "kubeconfig: /k, server: https://h, namespace: pki, issuerRef: {name: x}".to_owned(),
            ["server", "stands beside kubeconfig"],
        ),
    ] {
        let text = settings(&format!("certManager: {{{keys}}}"));
        let faults = match Settings::from_fragments(&[("c", text)]) {
            Ok((_, faults)) => faults,
            Err(faults) => faults,
        };
        assert!(faults.has_errors(), "{keys}");
        for part in parts {
            assert!(faults.to_string().contains(part), "{keys}: {faults}");
        }
    }
    let mut rig = CertManagerRig::new();
    rig.access = format!("{}, ", rig.access);
    let text = rig
        .settings()
        .replace("\"k8s-{authority}\"", "{apiserver: corp}");
    let text = text.replace(", , ", ", ");
    let (settings, _) = Settings::from_fragments(&[("c", text)]).unwrap();
    let (_, config) = settings.signer_of(Authority::Ca).unwrap();
    let signer = crate::signing::opened_with_memory(config, rig.scratch());
    signer.preflight(&wanted(CertName::Apiserver)).unwrap();
    let rejection = signer
        .preflight(&wanted(CertName::EtcdPeer))
        .unwrap_err()
        .to_string();
    for part in ["etcd-peer", "no issuer", "issuerRef.name"] {
        assert!(rejection.contains(part), "{rejection}");
    }
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
    // cert-manager's webhook writes it; the API server alone does not.
    theirs["spec"]["username"] = json!("thief");
    admin.create(&rig.path(), &theirs);
    rig.issue();
    let polled = run(rig.signer().poll(&request, &ticket)).unwrap();
    assert_eq!(polled, Answer::Gone);
}

#[test]
fn denied_invalid_and_failed_win_over_certificate() {
    for (condition, words) in [
        (
            condition("Denied", "Policy", "not on a Friday"),
            "not on a Friday",
        ),
        (
            condition("InvalidRequest", "BadName", "no such name"),
            "no such name",
        ),
        (not_ready("Failed", "quota"), "quota"),
        (not_ready("Denied", "not today"), "not today"),
    ] {
        let rig = CertManagerRig::new();
        let request = request(CertName::Apiserver);
        let (ticket, _) = pending(run(rig.signer().submit(&request)));
        rig.issue();
        issued(run(rig.signer().poll(&request, &ticket)));
        // One condition of each type: a later Ready replaces the one that came with the certificate.
        let issuer = rig.cluster.person("issuer", &[]);
        issuer.answer(&rig.path_of(&rig.only()), |object| {
            let conditions = object["status"]["conditions"].as_array_mut().unwrap();
            conditions.retain(|one| one["type"] != condition["type"]);
            conditions.push(condition.clone());
        });
        match run(rig.signer().poll(&request, &ticket)) {
            Ok(Answer::Denied { reason }) => assert!(reason.contains(words), "{reason}"),
            Err(error) => assert!(error.to_string().contains(words), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}

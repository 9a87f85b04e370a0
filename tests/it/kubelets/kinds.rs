//! The certificates of a kubelet from the real servers of other kinds of signers, prepared as `config signer-setup` prints.
//!
//! The servers and this API server listen on this machine, outside of the namespaces of a [`Cluster`]
//! (`crate::servers::cluster`), so the library's [`KubeletSigner`] runs in this process.

use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::agent::kubelet_requests::{KubeletObserver, KubeletResult, KubeletSigner};
use nodepki::agent::load::{LoadInputs, load};
use nodepki::agent::{Event, Progress};
use nodepki::http::{Call, Method};
use nodepki::kube::csr_object::KubeletCertificate;
use nodepki::kube::names::Authority;
use nodepki::store::NodeRoot;
use nodepki::x509::{
    Chain, Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject, Tolerance, TrustBundle,
    UsageExtensions, satisfies,
};
use serde_json::{Value, json};

use super::{CSRS, Wanted, certificate, pods, reason_of, serving};
use crate::node::{INIT, Node};
use crate::servers::kubernetes::{Person, condition, kubernetes, kubernetes_without_signer, sign};
use crate::servers::step_ca::StepCas;
use crate::servers::vault::Bao;
use crate::signer_setup::print_setup;
use crate::signer_step;
use crate::signing::{HEAD, now, run, write_authorities, write_secret};
use crate::time::eventually;

struct Quiet;

impl Progress for Quiet {
    fn event(&self, _event: Event) {}
}

impl KubeletObserver for Quiet {
    fn decided(&self, _certificate: KubeletCertificate, _result: KubeletResult) {}

    fn unfinished(&self, _certificate: KubeletCertificate, _count: Option<usize>) {}
}

/// Has the certificates of a new worker signed with this configuration, and verifies them against `authority`, the
/// certificate of authority `ca`.
fn serve_worker(worker: &'static str, settings: &str, authority: &[u8]) {
    let issued = serve(settings, authority, move || request_both(worker));
    let trust = TrustBundle::from_pem(authority).unwrap();
    for (chain, profile, key) in issued {
        let tolerance = Tolerance::default();
        let differences = satisfies(&chain, &profile, tolerance, key.public_key(), &trust, now());
        assert!(differences.is_empty(), "{differences:?}");
    }
}

/// Signs with this configuration while the kubelet makes its requests.
fn serve<T: Send + 'static>(
    settings: &str,
    authority: &[u8],
    kubelet: impl FnOnce() -> T + Send + 'static,
) -> T {
    // Each signer serves all requests of the API server.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap();
    let cluster = kubernetes_without_signer();
    let node = Node::new();
    node.write("/etc/kubernetes/pki/ca.crt", authority);
    let conf = cluster.kubeconfig_of("nodepki:cp1", &["system:masters"]);
    node.write_secret("/etc/kubernetes/nodepki.conf", conf);
    node.write_secret("/run/kubeadm/kubeadm.yaml", INIT);
    node.write_settings(settings);
    let inputs = LoadInputs {
        config: Some(node.outside("config.yaml").into()),
        ..LoadInputs::default()
    };
    let root = NodeRoot::open(node.root()).unwrap();
    let loaded = load(&root, &inputs, now()).unwrap();
    let signer = KubeletSigner::new(&root, &loaded, now, Rc::new(Quiet));
    let signer = signer.unwrap().unwrap();
    run(async {
        let kubelet = tokio::task::spawn_blocking(kubelet);
        let issued = tokio::select! {
            never = signer.run() => match never {},
            issued = kubelet => issued.unwrap(),
        };
        signer.release().await;
        issued
    })
}

/// Has the certificate of a pod signed with this configuration, and verifies it against `authority`.
fn serve_pod(settings: &str, authority: &[u8]) {
    let (chain, profile, key) = serve(settings, authority, request_for_pod);
    let trust = TrustBundle::from_pem(authority).unwrap();
    let tolerance = Tolerance::default();
    let differences = satisfies(&chain, &profile, tolerance, key.public_key(), &trust, now());
    assert!(differences.is_empty(), "{differences:?}");
}

/// Requests the certificate of a pod.
fn request_for_pod() -> (Chain, Profile, PrivateKey) {
    let cluster = kubernetes_without_signer();
    let admin = cluster.admin();
    let uid = |object: Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    let object = |kind: &str, name: &str| json!({"kind": kind, "apiVersion": "v1", "metadata": {"name": name}});
    admin.create("/api/v1/namespaces", &object("Namespace", "shop"));
    let node = uid(admin.create("/api/v1/nodes", &object("Node", "w1")));
    let account = object("ServiceAccount", "seller");
    let account = uid(admin.create("/api/v1/namespaces/shop/serviceaccounts", &account));
    let pod = uid(admin.create("/api/v1/namespaces/shop/pods", &pods::pod()));
    let (csr, key) = pods::empty_csr();
    let request = pods::request(&csr, &[pod, account, node]);
    let made = admin.create(pods::REQUESTS, &request);
    let path = format!(
        "{}/{}",
        pods::REQUESTS,
        made["metadata"]["name"].as_str().unwrap()
    );
    let issued = eventually(|| {
        let (_, object) = admin.get(&path);
        match object["status"]["certificateChain"].as_str() {
            Some(chain) => Ok(chain.to_owned()),
            None => Err(object),
        }
    });
    admin.delete("/api/v1/nodes/w1");
    let chain = Chain::from_response(issued.as_bytes(), key.public_key()).unwrap();
    let profile = Profile {
        subject: Subject {
            common_name: "system:serviceaccount:shop:seller".to_owned(),
            organizations: vec!["system:serviceaccounts".to_owned()],
        },
        ..Wanted::client("w1").profile()
    };
    (chain, profile, key)
}

/// Requests the two certificates of a worker as its kubelet does.
fn request_both(worker: &str) -> Vec<(Chain, Profile, PrivateKey)> {
    let cluster = kubernetes_without_signer();
    let admin = cluster.admin();
    let group = "system:bootstrappers:kubeadm:default-node-token";
    let id = format!("{:0>6}", worker.replace('-', ""));
    let token = cluster.new_bootstrap_token(&id, "0123456789abcdef", group);
    let client = Wanted::client(worker);
    let mut issued = vec![request_one(&client, &cluster.bearer(&token), &admin)];
    let object = json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": worker},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.21"},
                                 {"type": "Hostname", "address": worker}]}});
    admin.create("/api/v1/nodes", &object);
    let names = [worker];
    let own = serving(worker, &names, &["192.0.2.21"]);
    let kubelet = cluster.person(&format!("system:node:{worker}"), &["system:nodes"]);
    issued.push(request_one(&own, &kubelet, &admin));
    let (status, body) = admin.send(Call::new(Method::DELETE, format!("/api/v1/nodes/{worker}")));
    assert_eq!(status, 200, "{body}");
    issued
}

fn request_one(wanted: &Wanted<'_>, user: &Person, admin: &Person) -> (Chain, Profile, PrivateKey) {
    let (object, key) = wanted.object();
    let made = user.create(CSRS, &object);
    let path = format!("{CSRS}/{}", made["metadata"]["name"].as_str().unwrap());
    let (chain, profile) = eventually(|| {
        let (_, object) = admin.get(&path);
        if object["status"]["certificate"].is_string() {
            let issued = certificate(&object);
            let chain = Chain::from_response(&issued, key.public_key()).unwrap();
            let mut profile = wanted.profile();
            if wanted.certificate == KubeletCertificate::Serving {
                profile.usages = vec![ExtendedUsage::ServerAuth];
            }
            return Ok((chain, profile));
        }
        assert_eq!(reason_of(&object, "Failed"), None, "{object}");
        Err(object)
    });
    (chain, profile, key)
}

/// Settings with this signer for authority `ca`.
fn settings_with(signer: &str, local: &Path) -> String {
    format!(
        "{HEAD}authorities: {{ca: {{signer: s}}, etcd-ca: {{signer: l}}, front-proxy-ca: {{signer: l}}}}\n\
         signers: {{s: {signer}, l: {{local: {{directory: {}}}}}}}\n\
         kubelets: {{sign: true, approveServing: true, approveClient: true, lifetime: 2h}}\n",
        local.display()
    )
}

#[test]
fn openbao_signs_for_kubelets_with_roles_of_printed_script() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    write_authorities(&dir.path().join("local"));
    let space = Bao::shared().space();
    let signer = format!(
        "{{vault: {{address: \"{}\", namespace: {}, mount: \"pki/{{authority}}\", \
         role: {{default: \"{{certificate}}\", kubelet.conf: kubelets-client, kubelet-serving: kubelets-serving}}, \
         auth: {{appRole: {{roleIDFile: {at}/role-id, secretIDFile: {at}/secret-id}}}}, tls: {{caFile: {}}}}}}}",
        space.bao.url(),
        space.namespace,
        space.bao.ca_file().display()
    );
    let settings = settings_with(&signer, &dir.path().join("local"));
    let settings = settings.replace("{sign: true,", "{sign: true, signPods: true,");
    for name in ["role-id", "secret-id"] {
        write_secret(dir.path().join(name), "not yet delivered");
    }
    let printed = print_setup(dir.path(), &settings, INIT, &["vault"]);
    printed
        .done()
        .says("kubelet.conf: kubelets-client")
        .says("kubelet-serving: kubelets-serving")
        .says("system:node:*")
        .says("system:serviceaccount:*");
    space.apply(&printed.stdout);
    let authority = space.root_ca("pki/ca", "kubernetes");
    let app = "auth/approle/role/nodepki-kubernetes-cp1";
    let role_id = space.read(&format!("{app}/role-id"));
    let secret_id = space.write(&format!("{app}/secret-id"), json!({}));
    for (file, value) in [
        ("role-id", &role_id["data"]["role_id"]),
        ("secret-id", &secret_id["data"]["secret_id"]),
    ] {
        write_secret(dir.path().join(file), value.as_str().unwrap());
    }
    serve_worker("bao", &settings, authority.as_bytes());
    serve_pod(&settings, authority.as_bytes());

    // The role does not certify a user that is not a node.
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let mut profile = Wanted::client("bao").profile();
    profile.subject.common_name = "kubernetes-admin".to_owned();
    let csr = Csr::create(&profile, &key, UsageExtensions::Omitted).unwrap();
    let request = json!({"csr": csr.to_pem(), "ttl": "1h"});
    let (status, body) = space.as_token(
        space.bao.root_token(),
        "pki/ca/sign/kubelets-client",
        request,
    );
    assert_eq!(status, 400, "{body}");
    assert!(
        body.to_string().contains("not allowed by this role"),
        "{body}"
    );
}

#[test]
fn step_ca_signs_for_kubelets_with_template_of_printed_script() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(&dir.path().join("local"));
    let ca = StepCas::shared().of(Authority::Ca);
    for (worker, provisioner, auth) in [
        ("step-j", "jwk", signer_step::jwk()),
        ("step-x", "x5c", signer_step::x5c("node")),
    ] {
        let trust = signer_step::by_fingerprint(ca);
        let signer = signer_step::stanza(&ca.url(), provisioner, &trust, &auth);
        let settings = settings_with(&signer, &dir.path().join("local"));
        serve_worker(worker, &settings, &ca.root_pem());
    }
}

#[test]
fn management_cluster_signs_for_kubelets() {
    const SIGNER_NAME: &str = "pki.example.com/kubelets";
    let cluster = kubernetes();
    let dir = tempfile::tempdir().unwrap();
    write_authorities(&dir.path().join("local"));
    let token = dir.path().join("token");
    write_secret(&token, "abcdef.0123456789abcdef");
    let signer = format!(
        "{{kubernetes: {{server: \"{}\", tls: {{caFile: {}}}, tokenFile: {}, signerName: {SIGNER_NAME}}}}}",
        cluster.url(),
        cluster.ca_file().display(),
        token.display()
    );
    let settings = settings_with(&signer, &dir.path().join("local"));
    let authority = fs::read(cluster.authorities().join("ca.crt")).unwrap();
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                sign_all(SIGNER_NAME);
                thread::sleep(Duration::from_millis(200));
            }
        });
        let served = std::panic::catch_unwind(|| serve_worker("kube-a", &settings, &authority));
        is_over.store(true, Ordering::SeqCst);
        served.unwrap();
    });
}

/// Approves and signs every waiting request with this signer name, as the administrator of the management cluster.
fn sign_all(signer_name: &str) {
    let cluster = kubernetes();
    let waiting = cluster.admin().list(CSRS).into_iter().filter(|object| {
        object["spec"]["signerName"] == signer_name && object["status"]["certificate"].is_null()
    });
    for object in waiting {
        let name = object["metadata"]["name"].as_str().unwrap();
        if reason_of(&object, "Approved").is_none() {
            let yes = condition("Approved", "Reviewed", "looks good");
            cluster.person("approver", &[]).decide(name, yes);
        }
        let spec = &object["spec"];
        let lifetime = spec["expirationSeconds"].as_u64().unwrap();
        let pem = sign(
            &cluster.authorities(),
            Authority::Ca,
            spec["request"].as_str().unwrap(),
            &spec["usages"],
            Duration::from_secs(lifetime),
            false,
        );
        let signer = cluster.person("signer", &[]);
        signer.answer(&format!("{CSRS}/{name}"), |object| {
            object["status"]["certificate"] = json!(BASE64.encode(&pem));
        });
    }
}

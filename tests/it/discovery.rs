//! Discovery against a server that responds like an API server, with faults: each fault is refused with its own message,
//! and the token is sent only to a verified cluster.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use nodepki::agent::{ExitCode, Failure};
use nodepki::cluster::discovery::{Discovered, discover};
use nodepki::http::Files;
use nodepki::kube::kubeadm::{JoinDiscovery, load};
use nodepki::kube::names::Authority;
use nodepki::text::hex;
use serde_json::{Value, json};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::gateway::{Action, Gateway, Issuer, Options, Recorded, Rule};
use crate::node::{Node, Ran};
use crate::servers::free_port;
use crate::signing::{PlainFiles, now, run};

const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info$";
const ID: &str = "abcdef";
const SECRET: &str = "0123456789abcdef";

/// Returns a kubeconfig as `kubeadm init` publishes it.
fn kubeconfig(server: &str, ca_pem: &[u8]) -> String {
    let ca = STANDARD.encode(ca_pem);
    format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {server}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n"
    )
}

/// Returns the signature that kube-controller-manager makes, computed by OpenSSL.
fn jws(header: &str, kubeconfig: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(header);
    let mut openssl = Command::new("openssl")
        .args(["dgst", "-sha256", "-binary", "-hmac", SECRET])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(kubeconfig));
    let mut stdin = openssl.stdin.take().unwrap();
    stdin.write_all(signed.as_bytes()).unwrap();
    drop(stdin);
    let output = openssl.wait_with_output().unwrap();
    assert!(output.status.success());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(output.stdout))
}

fn header(id: &str) -> String {
    format!(r#"{{"alg":"HS256","kid":"{id}"}}"#)
}

fn config_map(kubeconfig: &str, jws: Option<&str>) -> Value {
    let mut data = json!({ "kubeconfig": kubeconfig });
    if let Some(jws) = jws {
        data[format!("jws-kubeconfig-{ID}")] = json!(jws);
    }
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "cluster-info"}, "data": data})
}

fn signed(kubeconfig: &str) -> Value {
    config_map(kubeconfig, Some(&jws(&header(ID), kubeconfig)))
}

fn answers(gateway: &Gateway, status: u16, body: &Value) {
    answers_once(gateway, usize::MAX, status, body);
}

fn answers_once(gateway: &Gateway, times: usize, status: u16, body: &Value) {
    let headers = vec![("Content-Type", "application/json".to_owned())];
    let action = Action::Status(status, headers, body.to_string().into_bytes());
    gateway.rule(Rule::on("GET", CLUSTER_INFO).times(times).then(action));
}

fn refusal(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
           "message": reason, "details": {"name": "cluster-info", "kind": "configmaps"}})
}

/// Returns a cluster with a valid cluster-info.
fn cluster() -> Gateway {
    let gateway = Gateway::to(None);
    let kubeconfig = kubeconfig(&gateway.url(), &gateway.ca_pem());
    answers(&gateway, 200, &signed(&kubeconfig));
    gateway
}

fn read(discovery: &str) -> JoinDiscovery {
    let text = format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {{name: cp2}}\ndiscovery: {discovery}\n"
    );
    let loaded = load(&[("join.yaml", &text)]);
    assert!(!loaded.faults().has_errors(), "{}", loaded.faults());
    loaded.join().unwrap().clone()
}

/// Returns a JoinConfiguration with discovery by token at this gateway, with these pins.
fn by_token(gateway: &Gateway, pins: &[[u8; 32]]) -> JoinDiscovery {
    by(gateway, pins, SECRET)
}

fn by(gateway: &Gateway, pins: &[[u8; 32]], secret: &str) -> JoinDiscovery {
    let pins: Vec<_> = pins
        .iter()
        .map(|pin| format!("'sha256:{}'", hex(pin)))
        .collect();
    read(&format!(
        "{{bootstrapToken: {{token: {ID}.{secret}, apiServerEndpoint: '{}', caCertHashes: [{}], unsafeSkipCAVerification: {}}}}}",
        gateway.addr(),
        pins.join(", "),
        pins.is_empty()
    ))
}

fn found(join: &JoinDiscovery) -> Result<Discovered, Failure> {
    found_with(join, Rc::new(PlainFiles))
}

fn found_with(join: &JoinDiscovery, files: Rc<dyn Files>) -> Result<Discovered, Failure> {
    run(async {
        let deadline = Instant::now() + Duration::from_secs(5);
        discover(join, files, None, now, deadline).await
    })
    .map_err(Failure::from)
}

/// Asserts that discovery fails with this exit code and these parts, and that the token is sent nowhere.
#[track_caller]
fn refused(gateway: &Gateway, join: &JoinDiscovery, code: ExitCode, words: &[&str]) {
    let failure = found(join).unwrap_err();
    let said = failure.to_string();
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert_eq!(failure.code, code, "{said}");
    assert!(!said.contains(SECRET), "{said}");
    let has_token = |request: &Recorded| request.header("Authorization").is_some();
    assert!(!gateway.requests().iter().any(has_token));
}

#[test]
fn discovers_cluster_and_sends_token_to_it_only() {
    let gateway = cluster();
    let discovered = found(&by_token(&gateway, &[gateway.ca_pin()])).unwrap();
    assert_eq!(discovered.server, gateway.url());
    assert_eq!(discovered.authority.to_pem().into_bytes(), gateway.ca_pem());
    assert_eq!(discovered.notes, [""; 0]);
    let requests = gateway.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(request.header("Authorization"), None);
    }
    assert!(!format!("{discovered:?}").contains(SECRET));

    let object = json!({"kind": "Secret", "metadata": {"name": "x"}});
    let action = Action::body(200, object.to_string().into_bytes());
    gateway.rule(Rule::on("GET", "/openid").then(action));
    let api = discovered.api(Rc::new(PlainFiles), None, now).unwrap();
    run(api.document("/openid/v1/jwks")).unwrap();
    let requests = gateway.requests();
    let bearer = requests.last().unwrap().header("Authorization").unwrap();
    assert_eq!(bearer, format!("Bearer {ID}.{SECRET}"));
}

#[test]
fn sends_separate_tls_bootstrap_token() {
    let gateway = cluster();
    let mut join = by_token(&gateway, &[gateway.ca_pin()]);
    join.tls_bootstrap_token = Some("zzzzzz.0000000000000000".parse().unwrap());
    let discovered = found(&join).unwrap();
    gateway.rule(Rule::on("GET", "/openid").then(Action::body(200, "{}")));
    let api = discovered.api(Rc::new(PlainFiles), None, now).unwrap();
    run(api.document("/openid/v1/jwks")).unwrap();
    let requests = gateway.requests();
    let bearer = requests.last().unwrap().header("Authorization").unwrap();
    assert_eq!(bearer, "Bearer zzzzzz.0000000000000000");
}

#[test]
fn tells_wrong_token_from_tampered_cluster_info() {
    let gateway = cluster();
    let pins = [gateway.ca_pin()];
    refused(
        &gateway,
        &by(&gateway, &pins, "0123456789abcdex"),
        ExitCode::NotPermitted,
        &[
            "the secret of token abcdef is not the one",
            "kubeadm token list",
        ],
    );
    // Without pins the two cases cannot be told apart.
    refused(
        &gateway,
        &by(&gateway, &[], "0123456789abcdex"),
        ExitCode::Refused,
        &["either the secret is mistyped, or the content was changed in transit"],
    );

    let gateway = Gateway::to(None);
    let genuine = kubeconfig(&gateway.url(), &gateway.ca_pem());
    let signature = jws(&header(ID), &genuine);
    let other = genuine.replace("127.0.0.1", "192.0.2.66");
    answers_once(&gateway, 1, 200, &config_map(&other, Some(&signature)));
    answers(&gateway, 200, &signed(&genuine));
    refused(
        &gateway,
        &by_token(&gateway, &[gateway.ca_pin()]),
        ExitCode::Refused,
        &[
            "cluster-info was changed on its way",
            "find out which server answers",
        ],
    );
}

#[test]
fn names_each_fault_of_cluster_info() {
    let authority = Issuer::new("kubernetes");
    let pin = authority.certificate().public_key().sha256();
    let genuine = kubeconfig("https://127.0.0.1:6443", &authority.pem());
    let jws_of = |text: &str| jws(&header(ID), text);
    let user = authority.client("system:node:n1").chain_pem;
    let user = kubeconfig("https://127.0.0.1:6443", &[authority.pem(), user].concat());
    let other = kubeconfig("https://127.0.0.1:6443", &Issuer::new("kubernetes").pem());
    let cut = &genuine[..genuine.len() / 2];
    let no_ca = genuine.replace("certificate-authority-data", "x");
    for (content, words) in [
        (
            config_map(&genuine, Some(&jws(&header("zzzzzz"), &genuine))),
            &[
                "has an unexpected header",
                r#"{\"alg\":\"HS256\",\"kid\":\"zzzzzz\"}"#,
            ][..],
        ),
        (
            config_map(
                &genuine,
                Some(&jws(r#"{"alg":"none","kid":"abcdef"}"#, &genuine)),
            ),
            &["has an unexpected header", r#"\"alg\":\"none\""#],
        ),
        (
            config_map(&genuine, Some(&jws_of(&genuine)[..60])),
            &[
                "its signature for token abcdef is damaged",
                "; delete the key jws-kubeconfig-abcdef from it, so that kube-controller-manager signs it again",
            ],
        ),
        (
            config_map(cut, Some(&jws_of(&genuine))),
            &["its signature does not match the secret"],
        ),
        (
            signed(cut),
            &["it is signed, but its kubeconfig cannot be used"],
        ),
        (
            signed(&no_ca),
            &[
                "it is signed, but its kubeconfig does not contain certificate-authority-data; correct it in the cluster",
            ],
        ),
        (
            signed(&other),
            &[
                "none of its CA certificates is pinned: found CN=kubernetes (public key sha256:",
                &hex(&pin),
            ],
        ),
        (
            signed(&user),
            &[
                "neither pinned nor of a CA: CN=system:node:n1 (public key sha256:",
                "kubeadm token delete abcdef",
            ],
        ),
        (
            json!({"kind": "ConfigMap"}),
            &[
                "it does not contain a kubeconfig",
                "kubeadm init phase bootstrap-token",
            ],
        ),
        (
            json!({"kind": "Pod"}),
            &["the answer (HTTP 200, 14 bytes) is unusable: it is not a ConfigMap"],
        ),
        (json!("half of"), &["is unusable"]),
    ] {
        let gateway = Gateway::to(None);
        answers(&gateway, 200, &content);
        let join = by_token(&gateway, &[pin]);
        refused(&gateway, &join, ExitCode::Refused, words);
        if words[0].starts_with("it is signed") {
            let server = gateway.url();
            let refusal = format!("cluster-info of {server} is refused: it is signed, ");
            refused(&gateway, &join, ExitCode::Refused, &[&refusal]);
        }
    }
}

#[test]
fn accepts_two_roots_if_both_are_pinned() {
    let gateway = Gateway::to(None);
    let next = Issuer::new("next");
    let both = [gateway.ca_pem(), next.pem()].concat();
    answers(&gateway, 200, &signed(&kubeconfig(&gateway.url(), &both)));
    let pins = [gateway.ca_pin(), next.certificate().public_key().sha256()];
    let discovered = found(&by_token(&gateway, &pins)).unwrap();
    assert_eq!(discovered.authority.certificates().len(), 2);
}

#[test]
fn accepts_unpinned_ca_that_server_of_pinned_ca_confirms() {
    let gateway = Gateway::to(None);
    let both = [gateway.ca_pem(), Issuer::new("next").pem()].concat();
    answers(&gateway, 200, &signed(&kubeconfig(&gateway.url(), &both)));
    let discovered = found(&by_token(&gateway, &[gateway.ca_pin()])).unwrap();
    assert_eq!(discovered.authority.certificates().len(), 2);
    let [note] = &discovered.notes[..] else {
        panic!("{:?}", discovered.notes);
    };
    assert!(
        note.starts_with("cluster-info also contains CN=next (public key sha256:"),
        "{note}"
    );
}

#[test]
fn rejects_unpinned_ca_of_server_itself() {
    let pinned = Issuer::new("kubernetes");
    let gateway = Gateway::to(None);
    let both = [pinned.pem(), gateway.ca_pem()].concat();
    answers(&gateway, 200, &signed(&kubeconfig(&gateway.url(), &both)));
    refused(
        &gateway,
        &by_token(&gateway, &[pinned.certificate().public_key().sha256()]),
        ExitCode::Pending,
        &[
            "does not have a certificate of a pinned CA, and cluster-info also contains CN=",
            &hex(&gateway.ca_pin()),
            "if so, add its pin to discovery.bootstrapToken.caCertHashes",
            "otherwise a holder of the token has added it: delete the token there with `kubeadm token delete abcdef`",
        ],
    );
}

#[test]
fn rejects_server_in_between() {
    let genuine = cluster();
    let between = Gateway::start(Options {
        issuer: Issuer::new("kubernetes"),
        ..Options::default()
    });
    // cluster-info is public, so every server can copy it completely.
    let copy = kubeconfig(&genuine.url(), &genuine.ca_pem());
    answers(&between, 200, &signed(&copy));
    for pins in [&[genuine.ca_pin()][..], &[]] {
        refused(
            &between,
            &by_token(&between, pins),
            ExitCode::Refused,
            &[
                "has not proven that it belongs to the cluster",
                &format!("contains {}", genuine.url()),
            ],
        );
    }
    assert_eq!(between.requests().len(), 2);
    assert!(genuine.requests().is_empty());
}

#[test]
fn names_address_of_certificate_for_wrong_address() {
    let issuer = Issuer::new("kubernetes");
    let pair = issuer.server(
        &["api.prod.example.com"],
        &[],
        now(),
        Duration::from_secs(3600),
    );
    let gateway = Gateway::start(Options {
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let kubeconfig = kubeconfig("https://api.prod.example.com:6443", &gateway.ca_pem());
    answers(&gateway, 200, &signed(&kubeconfig));
    refused(
        &gateway,
        &by_token(&gateway, &[gateway.ca_pin()]),
        ExitCode::Refused,
        &[
            "it is for api.prod.example.com and not for 127.0.0.1",
            "contains https://api.prod.example.com:6443: use that",
        ],
    );
}

#[test]
fn requires_same_cluster_info_over_verified_connection() {
    let gateway = Gateway::to(None);
    let first = kubeconfig(&gateway.url(), &gateway.ca_pem());
    answers_once(&gateway, 1, 200, &signed(&first));
    answers(&gateway, 200, &signed(&format!("{first}\n")));
    refused(
        &gateway,
        &by_token(&gateway, &[gateway.ca_pin()]),
        ExitCode::Refused,
        &["differed when it was read again"],
    );
}

#[test]
fn waits_for_missing_signature() {
    let gateway = Gateway::to(None);
    let kubeconfig = kubeconfig(&gateway.url(), &gateway.ca_pem());
    answers_once(&gateway, 1, 200, &config_map(&kubeconfig, None));
    answers(&gateway, 200, &signed(&kubeconfig));
    let join = by_token(&gateway, &[gateway.ca_pin()]);
    found(&join).unwrap();

    gateway.behave();
    answers(&gateway, 200, &config_map(&kubeconfig, None));
    refused(
        &gateway,
        &join,
        ExitCode::Unreachable,
        &[
            "has no signature for token abcdef",
            "kubeadm token create --print-join-command",
        ],
    );
    assert!(gateway.requests().len() >= 3 + 2);
}

#[test]
fn names_each_refusal_of_api_server() {
    for (status, reason, code, words) in [
        (
            401,
            "Unauthorized",
            ExitCode::NotPermitted,
            "discovery.file.kubeConfigPath",
        ),
        (403, "Forbidden", ExitCode::Unreachable, "anonymous clients"),
        (
            404,
            "NotFound",
            ExitCode::Unreachable,
            "has no ConfigMap cluster-info",
        ),
        (
            500,
            "InternalError",
            ExitCode::Unreachable,
            "wait until the API server is healthy",
        ),
        // Control characters are escaped.
        (
            418,
            "Tea\u{1b}[2Jpot",
            ExitCode::Refused,
            "HTTP 418 Tea\\u{1b}[2Jpot",
        ),
    ] {
        let gateway = Gateway::to(None);
        answers(&gateway, status, &refusal(status, reason));
        refused(&gateway, &by_token(&gateway, &[[0; 32]]), code, &[words]);
        // A temporary failure is retried.
        let again = gateway.requests().len() > 1;
        assert_eq!(again, !matches!(status, 401 | 418), "{status}");
    }
    let port = free_port();
    let anonymous = format!(
        "{{bootstrapToken: {{token: {ID}.{SECRET}, apiServerEndpoint: '127.0.0.1:{port}', unsafeSkipCAVerification: true}}}}"
    );
    refused(
        &Gateway::to(None),
        &read(&anonymous),
        ExitCode::Unreachable,
        &["cannot be reached"],
    );
}

#[test]
fn warns_if_token_is_trusted_without_pins() {
    let gateway = cluster();
    let discovered = found(&by_token(&gateway, &[])).unwrap();
    let note = &discovered.notes[0];
    for word in [
        "because of the token's signature alone",
        &hex(&gateway.ca_pin()),
        "caCertHashes",
    ] {
        assert!(note.contains(word), "{note}");
    }
    assert_eq!(discovered.notes.len(), 1);
}

#[test]
fn uses_endpoint_of_join_configuration_and_reports_another() {
    let gateway = Gateway::to(None);
    let kubeconfig = kubeconfig("https://api.prod.example.com:6443", &gateway.ca_pem());
    answers(&gateway, 200, &signed(&kubeconfig));
    let discovered = found(&by_token(&gateway, &[gateway.ca_pin()])).unwrap();
    assert_eq!(discovered.server, gateway.url());
    // kubeadm writes the address in cluster-info to kubelet.conf.
    assert_eq!(
        discovered.kubelet_server,
        "https://api.prod.example.com:6443"
    );
    assert!(discovered.notes[0].contains("https://api.prod.example.com:6443"));
}

#[test]
fn worker_gets_api_server_of_discovery() {
    const ADVERTISED: &str = "https://api.prod.example.com";
    for is_by_file in [true, false] {
        let node = Node::of("");
        let gateway = Gateway::start(Options {
            issuer: Issuer::of(node.authority(Authority::Ca)),
            ..Options::default()
        });
        let advertised = kubeconfig(ADVERTISED, &gateway.ca_pem());
        answers(&gateway, 200, &signed(&advertised));
        // The token may not read the ClusterConfiguration.
        let refused = refusal(403, "Forbidden").to_string().into_bytes();
        gateway.rule(Rule::on("GET", "").then(Action::body(403, refused)));
        let (discovery, server) = if is_by_file {
            let file = kubeconfig(&gateway.url(), &gateway.ca_pem());
            node.write("/etc/discovery.conf", file);
            let file = "file: {kubeConfigPath: /etc/discovery.conf}";
            let by_file = format!("{{{file}, tlsBootstrapToken: {ID}.{SECRET}}}");
            (by_file, gateway.url())
        } else {
            let endpoint = gateway.addr();
            let pin = hex(&gateway.ca_pin());
            let by_token = format!(
                "{{bootstrapToken: {{token: {ID}.{SECRET}, apiServerEndpoint: '{endpoint}', caCertHashes: ['sha256:{pin}']}}}}"
            );
            (by_token, ADVERTISED.to_owned())
        };
        node.configure(&format!(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {{name: w1}}\ndiscovery: {discovery}\n"
        ));
        node.remove("/etc/kubernetes/pki/ca.crt");
        let nodepki = |arguments: &[&str]| Ran::of(&mut node.configured(arguments));
        nodepki(&["config", "check"]).done();
        let bootstrap = ["bootstrap", "--wait", "0s", "--clock-wait", "0s"];
        node.signer_does("all", "pending");
        nodepki(&bootstrap).ended(75);
        // The second run cannot ask the cluster again.
        drop(gateway);
        node.signer_behaves();
        nodepki(&bootstrap).done();
        let kubelet = node.read("/etc/kubernetes/kubelet.conf");
        let line = format!("server: {server}\n");
        assert!(kubelet.contains(&line), "{line} is not in: {kubelet}");
    }
}

/// Files by name, with system CAs of the test.
struct Shelf(Vec<(&'static str, Vec<u8>)>);

impl Files for Shelf {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        let file = self.0.iter().find(|(name, _)| Path::new(name) == path);
        let content = file.map(|(_, content)| Zeroizing::new(content.clone()));
        content.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

/// Returns a kubeconfig with this user, as `kubectl config view --minify` prints it.
fn with_user(gateway: &Gateway, cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: '{}', {cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n",
        gateway.url()
    )
}

#[test]
fn follows_discovery_file() {
    let gateway = cluster();
    let data = format!(
        "certificate-authority-data: {}",
        STANDARD.encode(gateway.ca_pem())
    );
    let plain = kubeconfig(&gateway.url(), &gateway.ca_pem());
    let held = ", tlsBootstrapToken: zzzzzz.0000000000000000";
    let bootstrap = "Bearer zzzzzz.0000000000000000";
    for (text, token, bearer) in [
        (plain.clone(), held, bootstrap),
        (with_user(&gateway, &data, "token: own"), "", "Bearer own"),
        (
            with_user(&gateway, &data, "tokenFile: beside"),
            "",
            "Bearer beside",
        ),
        (
            with_user(&gateway, "certificate-authority: ca.crt", "token: own"),
            "",
            "Bearer own",
        ),
        // As in kubeadm.
        (with_user(&gateway, &data, "token: own"), held, bootstrap),
    ] {
        let shelf = Rc::new(Shelf(vec![
            ("/d/discovery.conf", text.clone().into_bytes()),
            ("/d/beside", b"beside\n".to_vec()),
            ("/d/ca.crt", gateway.ca_pem()),
        ]));
        let join = read(&format!(
            "{{file: {{kubeConfigPath: /d/discovery.conf}}{token}}}"
        ));
        let discovered = found_with(&join, shelf).unwrap();
        assert_eq!(discovered.server, gateway.url());
        assert_eq!(discovered.authority.to_pem().into_bytes(), gateway.ca_pem());
        let requests = gateway.requests();
        assert_eq!(
            requests.last().unwrap().header("Authorization"),
            Some(bearer),
            "{text}"
        );
    }
    // cluster-info may be readable only for anonymous clients.
    gateway.behave();
    answers(&gateway, 403, &refusal(403, "Forbidden"));
    let shelf = Rc::new(Shelf(vec![("/d.conf", plain.into_bytes())]));
    let join = read(&format!("{{file: {{kubeConfigPath: /d.conf}}{held}}}"));
    found_with(&join, shelf.clone()).unwrap();
    gateway.behave();
    answers(&gateway, 401, &refusal(401, "Unauthorized"));
    let failure = found_with(&join, shelf).unwrap_err();
    assert_eq!(failure.code, ExitCode::NotPermitted, "{failure}");
}

#[test]
fn fetches_discovery_file() {
    let gateway = cluster();
    let plain = kubeconfig(&gateway.url(), &gateway.ca_pem());
    let action = Action::body(200, plain.into_bytes());
    gateway.rule(Rule::on("GET", "/discovery.conf?sig=hush$").then(action));
    let url = format!("{}/discovery.conf?sig=hush", gateway.url());
    let join = read(&format!(
        "{{file: {{kubeConfigPath: '{url}'}}, tlsBootstrapToken: {ID}.{SECRET}}}"
    ));
    let system = "/etc/ssl/certs/ca-certificates.crt";
    let shelf = |pem: Vec<u8>| Rc::new(Shelf(vec![(system, pem)]));
    let discovered = found_with(&join, shelf(gateway.ca_pem())).unwrap();
    assert_eq!(discovered.server, gateway.url());

    let stranger = found_with(&join, shelf(Issuer::new("other").pem())).unwrap_err();
    assert_eq!(stranger.code, ExitCode::Refused, "{stranger}");
    gateway.behave();
    let missing = found_with(&join, shelf(gateway.ca_pem())).unwrap_err();
    let said = missing.to_string();
    assert!(
        said.contains("/discovery.conf cannot be fetched: HTTP"),
        "{said}"
    );
    assert!(!said.contains("hush"), "{said}");
}

#[test]
fn rejects_unusable_discovery_file() {
    let gateway = cluster();
    let data = format!(
        "certificate-authority-data: {}",
        STANDARD.encode(gateway.ca_pem())
    );
    let other = kubeconfig(&gateway.url(), &Issuer::new("kubernetes").pem());
    let plain = kubeconfig(&gateway.url(), &gateway.ca_pem());
    let held = ", tlsBootstrapToken: abcdef.0123456789abcdef";
    for (text, token, code, words) in [
        (
            &*plain,
            "",
            ExitCode::Configuration,
            "has no credentials and discovery.tlsBootstrapToken is not set",
        ),
        (&other, held, ExitCode::Refused, "is not trusted"),
        (
            "- a",
            held,
            ExitCode::Configuration,
            "it is not a kubeconfig",
        ),
        (
            &plain.replace("server", "x"),
            held,
            ExitCode::Configuration,
            "names no server",
        ),
        (
            &plain.replace("https:", "http:"),
            held,
            ExitCode::Configuration,
            "does not start with https://",
        ),
        (
            &with_user(&gateway, "insecure-skip-tls-verify: true", "token: x"),
            held,
            ExitCode::Configuration,
            "has insecure-skip-tls-verify, which nodepki does not follow",
        ),
        (
            &with_user(&gateway, &data, "exec: {command: x}"),
            held,
            ExitCode::Configuration,
            "has exec, which nodepki does not follow",
        ),
        (
            &with_user(&gateway, "certificate-authority: none.crt", "token: x"),
            "",
            ExitCode::Configuration,
            "since /none.crt cannot be read",
        ),
        (
            &with_user(&gateway, "tls-server-name: localhost", "token: x"),
            "",
            ExitCode::Configuration,
            "has no certificate-authority-data",
        ),
    ] {
        let join = read(&format!("{{file: {{kubeConfigPath: /d.conf}}{token}}}"));
        let shelf = Rc::new(Shelf(vec![("/d.conf", text.as_bytes().to_vec())]));
        let failure = found_with(&join, shelf).unwrap_err();
        let said = failure.to_string();
        assert!(said.contains(words), "{words}: {said}");
        assert_eq!(failure.code, code, "{said}");
        if words == "names no server" {
            assert!(
                said.starts_with("the discovery file /d.conf names no server; "),
                "{said}"
            );
        }
    }
    let absent = read(&format!("{{file: {{kubeConfigPath: /d.conf}}{held}}}"));
    let failure = found_with(&absent, Rc::new(Shelf(Vec::new()))).unwrap_err();
    assert!(
        failure
            .to_string()
            .contains("the discovery file /d.conf cannot be used, since /d.conf cannot be read: "),
        "{failure}"
    );
    assert!(
        failure
            .to_string()
            .contains("; create it, or correct discovery.file.kubeConfigPath"),
        "{failure}"
    );
    let nothing = found(&read("{}")).unwrap_err();
    assert_eq!(
        nothing.to_string(),
        "the JoinConfiguration has no discovery method; set discovery.bootstrapToken or discovery.file in it"
    );
    assert_eq!(nothing.code, ExitCode::Configuration, "{nothing}");
}

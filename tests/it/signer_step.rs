//! `stepCA` against real servers, with the printed certificate template and without.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nodepki::http::{Call, Client, ClientIdentity, Endpoint, Url};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{CurrentCertificate, FailureClass, Request, Resubmit, Signer, SignerKind};
use nodepki::text::hex;
use nodepki::x509::{
    Certificate, CertificateAuthority, Chain, RevocationList, TrustBundle, UsageExtensions,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Issuer, Rule};
use crate::node::{INIT, Ran};
use crate::rig::{Denial, Front, Rig, node};
use crate::servers::step_ca::{EC, StepCa, StepCas, vouch};
use crate::signer_bad::verdict;
use crate::signer_setup::print_setup;
use crate::signing::{
    HEAD, PlainFiles, contains, crl_text, current, fails, issued, now, open, request, request_for,
    request_with_key, run, wanted, write_secret, x509_text,
};

/// X5C for ca and JWK for the others, with provisioners that no other rig uses.
pub(crate) struct StepRig {
    dir: TempDir,
    twin: usize,
}

impl StepRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etcd")).unwrap();
        let cas = StepCas::shared();
        for authority in Authority::ALL {
            let file = dir.path().join(authority.base_name());
            fs::write(file.with_extension("crt"), cas.of(authority).root_pem()).unwrap();
        }
        StepRig {
            dir,
            twin: cas.twin(),
        }
    }

    fn provisioner(&self, authority: Authority) -> String {
        match authority {
            Authority::Ca => format!("x5c-{}", self.twin),
            _ => format!("jwk-{}", self.twin),
        }
    }

    /// Returns the keys of a signer, with the step-ca of an authority at `url` and trusted by `trust`.
    fn signer(&self, authority: Authority, url: &str, trust: &str) -> String {
        let auth = match authority {
            Authority::Ca => x5c("node"),
            _ => jwk(),
        };
        stanza(url, &self.provisioner(authority), trust, &auth)
    }

    fn direct(&self, authority: Authority) -> String {
        let ca = StepCas::shared().of(authority);
        self.signer(authority, &ca.url(), &by_fingerprint(ca))
    }
}

pub(crate) fn stanza(url: &str, provisioner: &str, trust: &str, auth: &str) -> String {
    format!("{{stepCA: {{url: '{url}', provisioner: {provisioner}, {trust}, auth: {auth}}}}}")
}

pub(crate) fn by_fingerprint(ca: &StepCa) -> String {
    format!("rootSHA256: '{}'", hex(&ca.fingerprint))
}

/// Returns the `auth` keys with the X5C certificate of this name.
pub(crate) fn x5c(name: &str) -> String {
    let dir = StepCas::shared().dir().display();
    format!("{{x5c: {{certificate: {dir}/{name}.crt, key: {dir}/{name}.key}}}}")
}

pub(crate) fn jwk() -> String {
    let file = StepCas::shared().jwk_file();
    format!("{{jwk: {{keyFile: {}}}}}", file.display())
}

impl Rig for StepRig {
    fn kind(&self) -> SignerKind {
        SignerKind::StepCa
    }

    fn settings(&self) -> String {
        format!(
            "{HEAD}authorities: {{ca: {{signer: k}}, etcd-ca: {{signer: e}}, front-proxy-ca: {{signer: f}}}}\n\
             signers:\n  k: {}\n  e: {}\n  f: {}\n",
            self.direct(Authority::Ca),
            self.direct(Authority::EtcdCa),
            self.direct(Authority::FrontProxyCa)
        )
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    fn deny(&self, _request: &Request) -> Option<Denial> {
        let ca = StepCas::shared().strict();
        Some(Denial {
            signer: self.opened(&stanza(&ca.url(), "jwk", &by_fingerprint(ca), &jwk())),
            ticket: None,
            reason: "not allowed",
        })
    }

    fn sent(&self) -> Vec<String> {
        Authority::ALL
            .into_iter()
            .flat_map(|authority| {
                StepCas::shared()
                    .of(authority)
                    .sent(&self.provisioner(authority))
            })
            .collect()
    }

    fn front(&self) -> Option<Front> {
        let ca = self.direct(Authority::Ca);
        let front_proxy = self.direct(Authority::FrontProxyCa);
        let etcd = self.signer(Authority::EtcdCa, "ADDRESS", "tls: TLS");
        Some(Front {
            upstream: StepCas::shared().of(Authority::EtcdCa).upstream(),
            submit: ("POST", "/1.0/sign"),
            settings: Box::new(move |url, tls| {
                let etcd = etcd.replace("ADDRESS", url).replace("TLS", tls);
                format!(
                    "{HEAD}authorities: {{ca: {{signer: k}}, etcd-ca: {{signer: e}}, front-proxy-ca: {{signer: f}}}}\n\
                     signers:\n  k: {ca}\n  e: {etcd}\n  f: {front_proxy}\n"
                )
            }),
            exceptions: &[],
        })
    }
}

impl StepRig {
    /// Opens a signer with these keys, whose state is in this rig's directory.
    fn opened(&self, stanza: &str) -> Rc<dyn Signer> {
        let settings = format!("{HEAD}signers: {{s: {stanza}}}\n");
        open(&settings, Authority::Ca, self.dir.path())
    }
}

/// Returns the keys for the step-ca of authority ca, trusted by its fingerprint.
fn ca(provisioner: &str, auth: &str) -> String {
    let ca = StepCas::shared().of(Authority::Ca);
    stanza(&ca.url(), provisioner, &by_fingerprint(ca), auth)
}

fn leaf(pem: &[u8]) -> Certificate {
    Chain::from_pem(pem).unwrap().leaf().clone()
}

/// Returns a token signed by the key of the JWK provisioners.
fn token(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": "nodepki-1"});
    let text = format!("{}.{}", part(&header), part(claims));
    let signature = StepCas::shared().jwk().sign_jws(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Returns the claims of a token for a request, as `step ca token --set-file` makes them.
fn claims(request: &Request) -> Value {
    let profile = &request.wanted.profile;
    let ips = profile.sans.ips.iter().map(ToString::to_string);
    let sans: Vec<String> = profile.sans.dns.iter().cloned().chain(ips).collect();
    let subject = &profile.subject;
    let sans = if sans.is_empty() {
        vec![subject.common_name.clone()]
    } else {
        sans
    };
    let eku: Vec<&str> = match request.name() {
        CertName::Apiserver => vec!["serverAuth"],
        CertName::EtcdServer | CertName::EtcdPeer => vec!["serverAuth", "clientAuth"],
        _ => vec!["clientAuth"],
    };
    let seconds = now().unix_timestamp() + 1;
    let unique = hex(request.csr.public_key().sha256().as_slice());
    json!({
        "iss": "jwk", "aud": "https://127.0.0.1/1.0/sign", "sub": subject.common_name, "sans": sans,
        "iat": seconds, "nbf": seconds - 1, "exp": seconds + 300, "jti": unique,
        "user": {"k8s": {"o": subject.organizations, "eku": eku}},
    })
}

impl StepRig {
    /// Opens a signer that reads one-time tokens from files of this rig.
    fn with_tokens(&self, url: &str, trust: &str) -> Rc<dyn Signer> {
        let auth = format!(
            "{{token: {{file: '{}/{{certificate}}.jwt'}}}}",
            self.dir.path().display()
        );
        self.opened(&stanza(url, "jwk", trust, &auth))
    }

    /// Writes the token file of a certificate.
    fn hand_over(&self, name: CertName, token: &str) -> String {
        let name = name.as_str().replace('.', "-");
        let file = self.dir.path().join(format!("{name}.jwt"));
        write_secret(&file, format!("{token}\n"));
        file.display().to_string()
    }
}

// ---- config signer-setup and the template ----

#[test]
fn adds_provisioner_for_each_method_by_signer_setup() {
    let cas = StepCas::shared();
    // The script that has set up the servers of these tests.
    let called = fs::read_to_string(cas.dir().join("called")).unwrap();
    assert_eq!(
        called,
        "ca provisioner add x5c --type X5C --x5c-roots bootstrap-ca.crt --x509-template nodepki.tpl --x509-max-dur 8760h\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let rig = StepRig::new();
    let tokens = stanza(
        "https://f",
        "to'ken",
        "tls: {systemRoots: true}, lifetime: 24h",
        "{token: {file: '/t/{certificate}'}}",
    );
    let signers = format!(
        "  k: {}\n  e: {}\n  f: {tokens}\n",
        rig.direct(Authority::Ca),
        rig.direct(Authority::EtcdCa)
    );
    let settings = format!(
        "{HEAD}authorities: {{ca: {{signer: k}}, etcd-ca: {{signer: e}}, front-proxy-ca: {{signer: f}}}}\nsigners:\n{signers}"
    );
    let ran = print_setup(dir.path(), &settings, INIT, &["stepCA"]);
    ran.done()
        .says("sh SCRIPT k|f|e")
        .says(&format!("step ca provisioner add jwk-{} --type JWK --public-key", rig.twin))
        .says("step ca provisioner add 'to'\\''ken' --type JWK --create --x509-template \"$TEMPLATE\" --x509-max-dur 24h")
        .says("step ca token front-proxy-client")
        .says("{\"k8s\":{\"eku\":[\"clientAuth\"]}}");
    // The script does nothing without the name of a signer.
    fs::write(dir.path().join("script"), &ran.stdout).unwrap();
    let shell = |argument: &[&str]| {
        let mut shell = Command::new("sh");
        shell.arg("script").args(argument).current_dir(dir.path());
        shell.env(
            "PATH",
            format!("{}:/usr/bin:/bin", cas.dir().join("bin").display()),
        );
        shell.env("CALLED", dir.path().join("called"));
        Ran::of(&mut shell)
    };
    shell(&[]).ended(64).says("k, f, e");
    shell(&["f"]).done();
    let called = fs::read_to_string(dir.path().join("called")).unwrap();
    assert!(
        called.starts_with("ca provisioner add to'ken --type JWK --create"),
        "{called}"
    );
    let template = |dir: &Path| fs::read(dir.join("nodepki.tpl")).unwrap();
    assert_eq!(template(dir.path()), template(cas.dir()));
}

#[test]
fn rejects_provisioner_without_template() {
    let rig = StepRig::new();
    let signer = rig.opened(&ca("bare", &jwk()));
    for (name, words) in [
        (
            CertName::KubeletConf,
            &[
                "O \"system:nodes\" is missing",
                "unexpected SAN URI:system:node:cp1",
                "unexpected extended key usage server auth",
            ][..],
        ),
        (
            CertName::Apiserver,
            &["unexpected extended key usage client auth"][..],
        ),
    ] {
        let request = request(name);
        // Without a probe the provisioners are unknown.
        signer.preflight(&request.wanted).unwrap();
        let said = verdict(
            &request,
            &issued(run(signer.submit(&request))),
            &rig.authorities(),
        );
        for word in words {
            assert!(said.contains(word), "{word:?} is missing in: {said}");
        }
    }
    run(signer.probe()).unwrap();
    let message = signer
        .preflight(&wanted(CertName::KubeletConf))
        .unwrap_err()
        .to_string();
    contains(
        &message,
        &[
            "kubelet.conf",
            "provisioner bare has no certificate template",
            "drops organizations (O=system:nodes)",
            "URI:system:node:cp1",
            "signer-setup stepCA",
        ],
    );
    assert!(signer.preflight(&wanted(CertName::Apiserver)).is_err());
    let mut tolerant = wanted(CertName::Apiserver);
    tolerant.tolerance.extra_usages = true;
    signer.preflight(&tolerant).unwrap();
    signer.preflight(&wanted(CertName::EtcdPeer)).unwrap();
}

#[test]
fn refuses_token_without_usages_by_template() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let signer = rig.with_tokens(&ca.url(), &by_fingerprint(ca));
    let request = request(CertName::KubeletConf);
    for (user, words) in [
        (json!({}), "claim k8s"),
        (json!({"k8s": {"o": ["system:nodes"]}}), "claim k8s.eku"),
    ] {
        let mut claims = claims(&request);
        claims["jti"] = json!(user.to_string());
        claims["user"] = user;
        rig.hand_over(CertName::KubeletConf, &token(&claims));
        fails(
            run(signer.submit(&request)),
            FailureClass::Permanent,
            &["HTTP 400", words, "new one-time token"],
        );
    }
}

// ---- certificates ----

#[test]
fn issues_desired_certificate_with_every_method() {
    let rig = StepRig::new();
    let pem = format!(
        "{{jwk: {{keyFile: {}}}}}",
        StepCas::shared().jwk_pem_file().display()
    );
    for (way, stanza) in [
        ("X5C with ES256", ca("x5c", &x5c("node"))),
        ("X5C with RS256", ca("x5c", &x5c("node-rsa"))),
        ("JWK", ca("jwk", &jwk())),
        ("JWK as PEM", ca("jwk", &pem)),
    ] {
        let signer = rig.opened(&stanza);
        run(signer.probe()).unwrap();
        for name in [CertName::Apiserver, CertName::KubeletConf] {
            let request = request(name);
            signer.preflight(&request.wanted).unwrap();
            let bytes = issued(run(signer.submit(&request)));
            assert_eq!(
                verdict(&request, &bytes, &rig.authorities()),
                "",
                "{way} {name}"
            );
            let text = x509_text(&bytes);
            let wanted = match name {
                CertName::Apiserver => [
                    "Subject: CN = kube-apiserver\n",
                    "DNS:cp1, DNS:kubernetes, DNS:kubernetes.default, IP Address:10.96.0.1, IP Address:FD00:0:0:0:0:0:0:1\n",
                    "Extended Key Usage: \n                TLS Web Server Authentication\n",
                ],
                _ => [
                    "Subject: O = system:nodes, CN = system:node:cp1\n",
                    "Extended Key Usage: \n                TLS Web Client Authentication\n",
                    "Digital Signature, Key Encipherment\n",
                ],
            };
            for part in wanted {
                assert!(text.contains(part), "{way}: {part:?} is missing in {text}");
            }
            if name == CertName::KubeletConf {
                assert!(!text.contains("Alternative Name"), "{way}: {text}");
            }
            let leaf = leaf(&bytes);
            // The certificate begins a minute earlier, for lagging clocks.
            let lifetime = (leaf.not_after() - leaf.not_before()).whole_seconds();
            assert_eq!(lifetime, 365 * 24 * 60 * 60 + 60, "{way}");
            assert_eq!(Chain::from_pem(&bytes).unwrap().intermediates().len(), 1);
        }
    }
}

#[test]
fn issues_another_certificate_for_repeated_request() {
    let rig = StepRig::new();
    let signer = rig.opened(&ca("jwk", &jwk()));
    assert_eq!(signer.caps().resubmit, Resubmit::Duplicates);
    let request = request(CertName::KubeletConf);
    let first = leaf(&issued(run(signer.submit(&request))));
    let second = leaf(&issued(run(signer.submit(&request))));
    assert_eq!(first.public_key(), second.public_key());
    assert_ne!(first.serial(), second.serial());
}

#[test]
fn names_limit_of_lifetime() {
    let rig = StepRig::new();
    let stanza = ca("short", &jwk());
    let signer = rig.opened(&stanza);
    let request = request(CertName::Apiserver);
    fails(
        run(signer.submit(&request)),
        FailureClass::Config,
        &[
            "apiserver",
            "HTTP 403",
            "maximum certificate duration of 24h1m0s",
            "maxTLSCertDuration of the provisioner short",
            "lifetime",
        ],
    );
    run(signer.probe()).unwrap();
    let message = signer.preflight(&request.wanted).unwrap_err().to_string();
    contains(
        &message,
        &["8760h are requested and its provisioner short allows at most 24h"],
    );
    let modest = rig.opened(&stanza.replace("auth:", "lifetime: 24h, auth:"));
    run(modest.probe()).unwrap();
    modest.preflight(&request.wanted).unwrap();
    let bytes = issued(run(modest.submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    // The minimum of the server is five minutes.
    let hasty = rig.opened(&stanza.replace("auth:", "lifetime: 1m, auth:"));
    fails(
        run(hasty.submit(&request)),
        FailureClass::Config,
        &["minTLSCertDuration"],
    );
}

#[test]
fn limits_lifetime_to_that_of_x5c_certificate() {
    let rig = StepRig::new();
    vouch(
        StepCas::shared().dir(),
        "brief",
        EC,
        "-days 30 -addext extendedKeyUsage=clientAuth",
    );
    let signer = rig.opened(&ca("x5c", &x5c("brief")));
    run(signer.probe()).unwrap();
    let request = request(CertName::EtcdPeer);
    let leaf = leaf(&issued(run(signer.submit(&request))));
    let pem = fs::read(StepCas::shared().dir().join("brief.crt")).unwrap();
    let end = self::leaf(&pem).not_after();
    let left = (end - leaf.not_after()).whole_seconds();
    assert!((0..=65).contains(&left), "{left}");
}

// ---- one-time tokens in files ----

#[test]
fn uses_one_time_token_once() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let signer = rig.with_tokens(&ca.url(), &by_fingerprint(ca));
    assert_eq!(signer.caps().resubmit, Resubmit::FreshCredential);
    run(signer.probe()).unwrap();
    let request = request(CertName::Apiserver);
    let missing = fails(
        run(signer.submit(&request)),
        FailureClass::Auth,
        &["apiserver", "no one-time token for it"],
    );
    contains(
        &missing,
        &[
            "put a new one-time token for apiserver into",
            "apiserver.jwt",
            "step ca token kube-apiserver --provisioner jwk --san cp1 --san kubernetes",
            "--san fd00::1",
            r#"{"k8s":{"eku":["serverAuth"]}}"#,
        ],
    );
    let file = rig.hand_over(CertName::Apiserver, &token(&claims(&request)));
    let bytes = issued(run(signer.submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    // Another process does not send it either.
    let again = rig.with_tokens(&ca.url(), &by_fingerprint(ca));
    fails(
        run(again.submit(&request)),
        FailureClass::Auth,
        &[
            "was sent before",
            &file,
            "put a new one-time token for apiserver",
        ],
    );
}

#[test]
fn spends_one_time_token_only_if_it_may_have_been_used() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let gateway = Gateway::to(Some(ca.upstream()));
    let signer = rig.with_tokens(&gateway.url(), &format!("tls: {}", gateway.trusted()));
    let request = request(CertName::KubeletConf);
    let text = token(&claims(&request));
    let file = rig.hand_over(CertName::KubeletConf, &text);
    let submit = || run(signer.submit(&request));
    let first = || Rule::on("POST", "/1.0/sign").times(1);
    for status in [404, 429, 503] {
        gateway.rule(first().then(Action::status(status)));
        let error = submit().unwrap_err();
        assert!(!error.to_string().contains("one-time token"), "{error}");
    }
    gateway.rule(first().then(Action::DropAfterForward));
    let parts = [
        "kubelet.conf",
        "answer was lost",
        &file,
        "is used up",
        "put a new one-time token for kubelet.conf into",
    ];
    let message = fails(submit(), FailureClass::Auth, &parts);
    assert!(!message.contains(&text), "{message}");
    let sent = gateway.requests().len();
    fails(submit(), FailureClass::Auth, &["was sent before"]);
    assert_eq!(gateway.requests().len(), sent);
    let mut fresh = claims(&request);
    fresh["jti"] = json!("fresh");
    rig.hand_over(CertName::KubeletConf, &token(&fresh));
    assert_eq!(verdict(&request, &issued(submit()), &rig.authorities()), "");
}

#[test]
fn does_not_send_unsuitable_one_time_token() {
    let rig = StepRig::new();
    let gateway = Gateway::to(None);
    let signer = rig.with_tokens(&gateway.url(), &format!("tls: {}", gateway.trusted()));
    let request = request(CertName::Apiserver);
    let seconds = now().unix_timestamp();
    let changes: [(&str, Value, &str); 6] = [
        (
            "sub",
            json!("kube-scheduler"),
            "it is for kube-scheduler, not for kube-apiserver",
        ),
        (
            "sans",
            json!(["cp1", "10.96.0.1"]),
            "it is for the names [cp1, 10.96.0.1] instead of [cp1, kubernetes",
        ),
        ("sans", json!([]), "it is for the names [kube-apiserver]"),
        (
            "iss",
            json!("other"),
            "it is the provisioner other's, and jwk is configured",
        ),
        ("exp", json!(seconds - 120), "it expired at"),
        ("nbf", json!(seconds + 600), "it is not valid before"),
    ];
    for (claim, value, words) in changes {
        let mut claims = claims(&request);
        claims[claim] = value;
        rig.hand_over(CertName::Apiserver, &token(&claims));
        fails(
            run(signer.submit(&request)),
            FailureClass::Auth,
            &[words, "put a new one-time token for apiserver"],
        );
    }
    rig.hand_over(CertName::Apiserver, "hunter2");
    let said = fails(
        run(signer.submit(&request)),
        FailureClass::Auth,
        &["it is not a token"],
    );
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(gateway.connections(), 0);
}

// ---- errors ----

#[test]
fn names_likely_causes_of_401() {
    let rig = StepRig::new();
    let request = request(CertName::Apiserver);
    let astray =
        ca("jwk", &jwk()).replace("auth:", "audience: 'https://elsewhere/1.0/sign', auth:");
    let signer = rig.opened(&astray);
    run(signer.probe()).unwrap();
    let said = fails(
        run(signer.submit(&request)),
        FailureClass::Auth,
        &[
            "signing apiserver for authority ca",
            "HTTP 401",
            "audience https://elsewhere/1.0/sign",
            "dnsNames",
        ],
    );
    assert!(
        !said.contains("clock") && !said.contains("another key"),
        "{said}"
    );
    // The clock is ten minutes ahead, and the provisioners are unknown.
    let signer = rig.opened(&ca("jwk", &jwk()));
    let ahead = request.again(2, now() + Duration::from_secs(600), None);
    let said = fails(
        run(signer.submit(&ahead)),
        FailureClass::Auth,
        &[
            "this machine's clock is",
            "s ahead of the server's",
            "does not exist there or has another key",
        ],
    );
    let skew: i64 = said
        .split("clock is ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((598..=602).contains(&skew), "{said}");
}

/// Writes an X5C certificate that expired an hour ago.
fn write_expired(dir: &Path) {
    let read = |name: &str| fs::read(dir.join(name)).unwrap();
    let issuer =
        CertificateAuthority::from_pem(&read("bootstrap-ca.crt"), &read("bootstrap-ca.key"));
    let (request, key) = request_with_key(CertName::FrontProxyClient);
    let mut profile = request.wanted.profile;
    profile.lifetime = Duration::from_secs(3600);
    let then = now() - Duration::from_secs(7200);
    let certificate = issuer
        .unwrap()
        .issue(key.public_key(), &profile, then)
        .unwrap();
    fs::write(dir.join("expired.crt"), certificate.to_pem()).unwrap();
    write_secret(dir.join("expired.key"), key.to_pem().as_bytes());
}

#[test]
fn reports_credential_that_does_not_fit_provisioner() {
    let rig = StepRig::new();
    let dir = StepCas::shared().dir();
    vouch(
        dir,
        "no-client",
        EC,
        "-days 30 -addext extendedKeyUsage=serverAuth",
    );
    write_expired(dir);
    let here = rig.dir.path().join("other");
    fs::create_dir(&here).unwrap();
    let foreign = Issuer::new("foreign-ca").client("cp1");
    fs::write(here.join("foreign.crt"), &foreign.chain_pem).unwrap();
    write_secret(here.join("foreign.key"), &foreign.key_pem);
    write_secret(here.join("jwe"), "eyJhbGciOiJQQkVTMiJ9.a.b.c.d");
    let here = here.display();
    let jwk_at = |file: &str| format!("{{jwk: {{keyFile: {here}/{file}}}}}");
    for (stanza, class, words) in [
        (
            ca("missing", &jwk()),
            FailureClass::Config,
            &["no provisioner missing", "it has x5c, jwk, bare"][..],
        ),
        (
            ca("x5c", &jwk()),
            FailureClass::Config,
            &["is of type X5C", "auth.jwk needs one of type JWK"][..],
        ),
        (
            ca("acme", &x5c("node")),
            FailureClass::Config,
            &["is of type ACME", "X5C"][..],
        ),
        (
            ca("jwk", &jwk_at("foreign.key")),
            FailureClass::Config,
            &["not the one of the provisioner jwk (kid nodepki-1)"][..],
        ),
        (
            ca("jwk", &jwk_at("jwe")),
            FailureClass::Config,
            &["encrypted", "step crypto jwe decrypt"][..],
        ),
        (
            ca("jwk", &jwk_at("nothing")),
            FailureClass::Config,
            &["nothing cannot be read"][..],
        ),
        (
            ca("jwk", &jwk().replace("}}", ", kid: other}}")),
            FailureClass::Config,
            &["has the key id nodepki-1, but other is configured"][..],
        ),
        (
            ca(
                "x5c",
                &format!("{{x5c: {{certificate: {here}/foreign.crt, key: {here}/foreign.key}}}}"),
            ),
            FailureClass::Config,
            &[
                "issued by CN=foreign-ca",
                "does not lead to the roots of the provisioner x5c",
                "CN=bootstrap-ca",
            ][..],
        ),
        (
            ca("x5c", &x5c("node").replace("node.key", "node-rsa.key")),
            FailureClass::Config,
            &["node-rsa.key", "not the key of the certificate in"][..],
        ),
        (
            ca("x5c", &x5c("no-client")),
            FailureClass::Config,
            &["no-client.crt", "no extended key usage client auth"][..],
        ),
    ] {
        let error = run(rig.opened(&stanza).probe()).unwrap_err();
        assert_eq!(error.class, class, "{error}");
        for word in words {
            assert!(
                error.to_string().contains(word),
                "{word:?} is missing in: {error}"
            );
        }
    }
    fails(
        run(rig.opened(&ca("x5c", &x5c("expired"))).probe()),
        FailureClass::Auth,
        &["expired.crt (CN=front-proxy-client) expired at"],
    );
}

#[test]
fn trusts_only_root_with_configured_fingerprint() {
    let rig = StepRig::new();
    let (ours, other) = (
        StepCas::shared().of(Authority::Ca),
        StepCas::shared().of(Authority::EtcdCa),
    );
    let strange = rig.opened(&stanza(&ours.url(), "jwk", &by_fingerprint(other), &jwk()));
    fails(
        run(strange.probe()),
        FailureClass::Config,
        &[
            "has no root certificate with the fingerprint",
            &hex(&other.fingerprint),
            "step certificate fingerprint",
        ],
    );
    // A server in between offers a root of its own.
    let gateway = Gateway::to(Some(ours.upstream()));
    let body = json!({"ca": String::from_utf8(gateway.ca_pem()).unwrap()}).to_string();
    gateway.rule(Rule::on("GET", "/root/").then(Action::body(200, body)));
    let keys = stanza(&gateway.url(), "jwk", &by_fingerprint(ours), &jwk());
    let cheated = rig.opened(&keys);
    let parts = ["the response is another certificate"];
    fails(run(cheated.probe()), FailureClass::Config, &parts);
    // It passes on the right root, and has no certificate issued by it.
    gateway.behave();
    fails(
        run(cheated.probe()),
        FailureClass::Config,
        &["is not trusted"],
    );
    let requests = gateway.requests();
    assert!(requests.iter().all(|one| one.path.contains("/root/")));
}

// ---- renewal ----

/// Obtains a certificate from a provisioner.
fn obtained(rig: &StepRig, provisioner: &str, name: CertName) -> (Request, CurrentCertificate) {
    let (request, key) = request_with_key(name);
    let bytes = issued(run(rig.opened(&ca(provisioner, &jwk())).submit(&request)));
    (request, current(&bytes, &key))
}

#[test]
fn renews_with_same_key_and_rekeys_with_another() {
    let rig = StepRig::new();
    // No token is needed: the key file may be missing by then.
    let signer = rig.opened(&ca("jwk", "{jwk: {keyFile: /nonexistent}}"));
    let (old, current) = obtained(&rig, "jwk", CertName::KubeletConf);
    let serial = leaf(&current.chain_pem).serial().to_owned();
    let renewed = issued(run(signer.renew(&old, &current)));
    assert_eq!(verdict(&old, &renewed, &rig.authorities()), "");
    assert_ne!(leaf(&renewed).serial(), serial);
    let new = request_for(wanted(CertName::KubeletConf), UsageExtensions::Requested).0;
    let rekeyed = issued(run(signer.renew(&new, &current)));
    assert_eq!(verdict(&new, &rekeyed, &rig.authorities()), "");
    assert_eq!(leaf(&rekeyed).public_key(), new.csr.public_key());
}

#[test]
fn renews_server_certificate_with_token() {
    let rig = StepRig::new();
    let (old, current) = obtained(&rig, "jwk", CertName::Apiserver);
    let provisioner = format!("jwk-{}", rig.twin);
    let signer = rig.opened(&ca(&provisioner, &jwk()));
    let renewed = issued(run(signer.renew(&old, &current)));
    assert_eq!(verdict(&old, &renewed, &rig.authorities()), "");
    let sent = StepCas::shared().of(Authority::Ca).sent(&provisioner);
    assert!(
        sent.len() == 1 && sent[0].starts_with("\"/1.0/sign\" 201"),
        "{sent:?}"
    );
}

#[test]
fn issues_anew_if_usages_differ() {
    let rig = StepRig::new();
    // Issued without the template: with server auth and client auth.
    let (old, current) = obtained(&rig, "bare", CertName::FrontProxyClient);
    let signer = rig.opened(&ca("jwk", &jwk()));
    let renewed = issued(run(signer.renew(&old, &current)));
    let usages = leaf(&renewed).extended_usages().unwrap().to_vec();
    assert_eq!(usages, ["client auth"]);
}

#[test]
fn names_remedy_for_refused_renewal() {
    let rig = StepRig::new();
    let (old, current) = obtained(&rig, "no-renewal", CertName::KubeletConf);
    let signer = rig.opened(&ca("no-renewal", &jwk()));
    fails(
        run(signer.renew(&old, &current)),
        FailureClass::Auth,
        &[
            "renewing kubelet.conf for authority ca",
            "HTTP 401",
            "no-renewal has disableRenewal",
            "with a token instead",
        ],
    );
    // After a probe the signer does not try.
    run(signer.probe()).unwrap();
    let renewed = issued(run(signer.renew(&old, &current)));
    assert_eq!(verdict(&old, &renewed, &rig.authorities()), "");
    // A proxy that ends TLS removes the client certificate.
    let gateway = Gateway::to(Some(StepCas::shared().of(Authority::Ca).upstream()));
    let tls = format!("tls: {}", gateway.trusted());
    let signer = rig.opened(&stanza(&gateway.url(), "no-renewal", &tls, &jwk()));
    fails(
        run(signer.renew(&old, &current)),
        FailureClass::Config,
        &["missing client certificate", "ends TLS"],
    );
}

// ---- trust and revocation ----

#[test]
fn publishes_revoked_certificate() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let signer = rig.opened(&self::ca("jwk", &jwk()));
    let (_, current) = obtained(&rig, "jwk", CertName::KubeletConf);
    let revoked = leaf(&current.chain_pem);
    let list = |signer: &dyn Signer| {
        let bytes = run(signer.crl(Authority::Ca)).unwrap().unwrap();
        RevocationList::read_all(&bytes).unwrap().remove(0)
    };
    assert_eq!(list(signer.as_ref()).revokes(&revoked), None);
    let mut endpoint = Endpoint::new(Url::parse(&ca.url()).unwrap());
    endpoint.tls.ca_pem = Some(ca.root_pem());
    let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
    let client = client.with_identity(ClientIdentity {
        chain_pem: current.chain_pem.clone(),
        key_pem: current.key_pem.clone(),
    });
    let body =
        json!({"serial": format!("0x{}", revoked.serial()), "reasonCode": 1, "passive": true});
    let answer = run(client.send(Call::post("/1.0/revoke").json(&body))).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let list = list(signer.as_ref());
    assert!(list.revokes(&revoked).is_some());
    let text = crl_text(list.to_pem().as_bytes()).to_lowercase();
    contains(&text, &[revoked.serial().trim_start_matches('0')]);
    // A revoked certificate cannot be renewed.
    let request = request_for(wanted(CertName::KubeletConf), UsageExtensions::Requested).0;
    fails(
        run(signer.renew(&request, &current)),
        FailureClass::Auth,
        &["HTTP 401", "revoked"],
    );
    // A server with CRLs disabled offers none.
    assert_eq!(
        run(rig
            .open(Authority::FrontProxyCa)
            .crl(Authority::FrontProxyCa))
        .unwrap(),
        None
    );
}

#[test]
fn offers_root_and_not_intermediate_as_trust() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let bytes = run(rig.open(Authority::Ca).trust(Authority::Ca))
        .unwrap()
        .unwrap();
    let bundle = TrustBundle::from_pem(&bytes).unwrap();
    assert_eq!(bundle.certificates().len(), 1);
    assert_eq!(bundle.first().fingerprint(), ca.fingerprint);
}

// ---- whole runs ----

#[test]
fn exits_by_cause() {
    let rig = StepRig::new();
    let node = node(&rig);
    let with = |stanza: &str| {
        let settings = rig.settings().replace(&rig.direct(Authority::Ca), stanza);
        fs::write(node.outside("config.yaml"), settings).unwrap();
        node.ask()
    };
    with(&ca("short", &jwk()))
        .ended(78)
        .says("maxTLSCertDuration");
    with(&ca("bare", &jwk()))
        .ended(78)
        .says("has no certificate template");
    with(&ca("missing", &jwk()))
        .ended(78)
        .says("no provisioner missing");
    let tokens = format!(
        "{{token: {{file: '{}/{{certificate}}.jwt'}}}}",
        rig.dir.path().display()
    );
    with(&ca("jwk", &tokens))
        .ended(77)
        .says("put a new one-time token for apiserver into");
    let strict = StepCas::shared().strict();
    node.write("/etc/kubernetes/pki/ca.crt", strict.root_pem());
    with(&stanza(
        &strict.url(),
        "jwk",
        &by_fingerprint(strict),
        &jwk(),
    ))
    .ended(65)
    .says("not allowed")
    .says("apiserver");
}

/// The test makes the tokens that the commands of the printed script describe, without the program `step`.
#[test]
fn bootstraps_with_tokens_made_as_printed() {
    let rig = StepRig::new();
    let node = node(&rig);
    let tokens = format!(
        "{{token: {{file: '{}/{{certificate}}.jwt'}}}}",
        rig.dir.path().display()
    );
    let etcd = StepCas::shared().of(Authority::EtcdCa);
    let handed = stanza(&etcd.url(), "jwk", &by_fingerprint(etcd), &tokens);
    let settings = rig
        .settings()
        .replace(&rig.direct(Authority::EtcdCa), &handed);
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let settings = fs::read_to_string(node.outside("config.yaml")).unwrap();
    let arguments = ["stepCA", "--name", "e"];
    let printed = print_setup(&node.outside(""), &settings, INIT, &arguments);
    printed.done();
    let mut made = 0;
    for line in printed
        .stdout
        .lines()
        .filter(|line| line.contains("; step ca token "))
    {
        let (command, name) = line.split_once(" -> ").unwrap();
        let user: Value = serde_json::from_str(command.split('\'').nth(1).unwrap()).unwrap();
        let words: Vec<&str> = command.split_whitespace().collect();
        let after = |flag: &str| {
            let at = words.iter().enumerate().filter(|(_, word)| **word == flag);
            at.map(|(at, _)| words[at + 1].to_owned())
                .collect::<Vec<_>>()
        };
        let subject = after("token").remove(0);
        let sans = match after("--san") {
            sans if sans.is_empty() => vec![subject.clone()],
            sans => sans,
        };
        let seconds = now().unix_timestamp() + 1;
        let claims = json!({
            "iss": after("--provisioner")[0], "aud": "https://127.0.0.1/1.0/sign", "sub": subject, "sans": sans,
            "iat": seconds, "nbf": seconds - 1, "exp": seconds + 300, "jti": format!("{}-{name}", rig.twin), "user": user,
        });
        write_secret(rig.dir.path().join(format!("{name}.jwt")), token(&claims));
        made += 1;
    }
    assert_eq!(made, 4, "{}", printed.stdout);
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
}

//! step-ca: real ones, with the template that nodepki prints and without.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nodepki::config::Settings;
use nodepki::http::{Call, Client, Endpoint, Identity, Url};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Current, Kind, Request, Resubmit, Signer, SignerError};
use nodepki::x509::{
    CertificateAuthority, Chain, RevocationList, TrustBundle, UsageExtensions, hex,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use zeroize::Zeroizing;

use crate::gateway::{Action, Gateway, Rule};
use crate::node::{INIT, NODEPKI, Ran};
use crate::rig::{Denial, Front, Rig};
use crate::servers::step_ca::{EC, StepCa, StepCas, vouch};
use crate::signer_bad::verdict;
use crate::signer_bootstrap::node;
use crate::signing::{
    PlainFiles, now, opened_with_memory, openssl, request, request_for, request_with_key, run,
    wanted, write_secret,
};

const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";

/// X5C for ca, JWK for the others, each with provisioners that nobody else uses.
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

    /// Under `signers`: the step-ca of an authority at `url`, believed by what `trust` says.
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

fn stanza(url: &str, provisioner: &str, trust: &str, auth: &str) -> String {
    format!("{{stepCA: {{url: '{url}', provisioner: {provisioner}, {trust}, auth: {auth}}}}}")
}

fn by_fingerprint(ca: &StepCa) -> String {
    format!("rootSHA256: '{}'", hex(&ca.fingerprint))
}

/// The certificate of this name that vouches.
fn x5c(name: &str) -> String {
    let dir = StepCas::shared().dir().display();
    format!("{{x5c: {{certificate: {dir}/{name}.crt, key: {dir}/{name}.key}}}}")
}

fn jwk() -> String {
    let file = StepCas::shared().jwk_file();
    format!("{{jwk: {{keyFile: {}}}}}", file.display())
}

impl Rig for StepRig {
    fn kind(&self) -> Kind {
        Kind::StepCa
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

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
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
    /// A signer as these keys describe it. It remembers in this rig's directory.
    fn opened(&self, stanza: &str) -> Rc<dyn Signer> {
        let text = format!("{HEAD}signers: {{s: {stanza}}}\n");
        let (settings, _) = Settings::from_fragments(&[("test.yaml", text)])
            .unwrap_or_else(|faults| panic!("{faults}"));
        let (_, config) = settings.signer_of(Authority::Ca).unwrap();
        opened_with_memory(config, self.dir.path()).into()
    }
}

/// The step-ca of authority ca, by its fingerprint.
fn ca(provisioner: &str, auth: &str) -> String {
    let ca = StepCas::shared().of(Authority::Ca);
    stanza(&ca.url(), provisioner, &by_fingerprint(ca), auth)
}

fn issued(answer: Result<Answer, SignerError>) -> Vec<u8> {
    match answer {
        Ok(Answer::Issued(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn fails(result: Result<Answer, SignerError>, class: Class, words: &[&str]) -> String {
    let error = result.err().unwrap();
    let text = error.to_string();
    assert_eq!(error.class, class, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
    text
}

/// What OpenSSL says of the first certificate.
fn text_of(pem: &[u8]) -> String {
    String::from_utf8(openssl(&["x509", "-noout", "-text"], pem)).unwrap()
}

fn leaf(pem: &[u8]) -> nodepki::x509::Certificate {
    Chain::from_pem(pem).unwrap().leaf().clone()
}

/// A token of the JWK provisioners' key.
fn token(claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = json!({"alg": "ES256", "typ": "JWT", "kid": "nodepki-1"});
    let text = format!("{}.{}", part(&header), part(claims));
    let signature = StepCas::shared().jwk().sign_jws(text.as_bytes()).unwrap();
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// The claims of a token for a request, as `step ca token --set-file` makes them.
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
    /// A signer that is handed tokens in files of this rig's, and such a file.
    fn with_tokens(&self, url: &str, trust: &str) -> Rc<dyn Signer> {
        let auth = format!(
            "{{token: {{file: '{}/{{certificate}}.jwt'}}}}",
            self.dir.path().display()
        );
        self.opened(&stanza(url, "jwk", trust, &auth))
    }

    fn hand_over(&self, name: CertName, token: &str) -> String {
        let name = name.as_str().replace('.', "-");
        let file = self.dir.path().join(format!("{name}.jwt"));
        write_secret(&file, format!("{token}\n"));
        file.display().to_string()
    }
}

// ---- what is printed, and what happens without it ----

fn printed(dir: &Path, signers: &str, more: &[&str]) -> Ran {
    let settings = format!(
        "{HEAD}authorities: {{ca: {{signer: k}}, etcd-ca: {{signer: e}}, front-proxy-ca: {{signer: f}}}}\nsigners:\n{signers}"
    );
    fs::write(dir.join("setup.yaml"), settings).unwrap();
    fs::write(dir.join("kubeadm.yaml"), INIT).unwrap();
    Ran::of(
        std::process::Command::new(NODEPKI)
            .args(["config", "signer-setup", "stepCA"])
            .args(more)
            .arg("--config")
            .arg(dir.join("setup.yaml"))
            .arg("--kubeadm-config")
            .arg(dir.join("kubeadm.yaml")),
    )
}

#[test]
fn the_script_makes_a_provisioner_for_each_way_of_proof() {
    let cas = StepCas::shared();
    // The one that the servers of these tests were set up by.
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
    let ran = printed(dir.path(), &signers, &[]);
    ran.done()
        .says("sh SCRIPT k|f|e")
        .says(&format!("step ca provisioner add jwk-{} --type JWK --public-key", rig.twin))
        .says("step ca provisioner add 'to'\\''ken' --type JWK --create --x509-template \"$TEMPLATE\" --x509-max-dur 24h")
        .says("step ca token front-proxy-client")
        .says("{\"k8s\":{\"eku\":[\"clientAuth\"]}}");
    // As a script it is sound, and does nothing before it is told for whom.
    fs::write(dir.path().join("script"), &ran.stdout).unwrap();
    let shell = |argument: &[&str]| {
        let mut shell = std::process::Command::new("sh");
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
fn without_the_template_the_differences_are_named_and_seen_before() {
    let rig = StepRig::new();
    let signer = rig.opened(&ca("bare", &jwk()));
    for (name, words) in [
        (
            CertName::KubeletConf,
            &[
                "O \"system:nodes\" is missing",
                "SAN URI:system:node:cp1 is not wanted",
                "extended key usage server auth is not wanted",
            ][..],
        ),
        (
            CertName::Apiserver,
            &["extended key usage client auth is not wanted"][..],
        ),
    ] {
        let request = request(name);
        // Not asked for its provisioners yet, the signer cannot know.
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
    for word in [
        "kubelet.conf",
        "provisioner bare has no certificate template",
        "drops organizations (O=system:nodes)",
        "URI:system:node:cp1",
        "signer-setup stepCA",
    ] {
        assert!(message.contains(word), "{word:?} is missing in: {message}");
    }
    assert!(signer.preflight(&wanted(CertName::Apiserver)).is_err());
    let mut tolerant = wanted(CertName::Apiserver);
    tolerant.tolerance.extra_usages = true;
    signer.preflight(&tolerant).unwrap();
    signer.preflight(&wanted(CertName::EtcdPeer)).unwrap();
}

#[test]
fn a_token_that_says_nothing_of_usages_gets_nothing_by_the_template() {
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
            Class::Permanent,
            &["HTTP 400", words, "new one-time token"],
        );
    }
}

#[test]
fn faults_of_the_configuration_name_field_and_fix() {
    let pin = "00".repeat(32);
    let good = format!("rootSHA256: '{pin}'");
    let x5c = "{x5c: {certificate: /c, key: /k}}";
    for (stanza, words) in [
        (
            stanza("https://ca", "p", "timeout: 5s", x5c),
            "does not say which server is the right one (add rootSHA256",
        ),
        (
            stanza(
                "https://ca",
                "p",
                &format!("{good}, tls: {{caFile: /r}}"),
                x5c,
            ),
            "has both rootSHA256 and other roots in tls (keep one of them)",
        ),
        (
            stanza("https://ca", "p", "rootSHA256: abc", x5c),
            "stepCA.rootSHA256: is not a SHA-256 fingerprint",
        ),
        (
            stanza("https://ca", "p", &good, "{}"),
            "stepCA.auth: names no way of proof",
        ),
        (
            stanza(
                "https://ca",
                "p",
                &good,
                "{x5c: {certificate: /c, key: /k}, jwk: {keyFile: /j}}",
            ),
            "stepCA.auth: names several ways of proof (keep one of x5c, jwk, token)",
        ),
        (
            stanza("https://ca", "p", &good, "{x5c: {certificate: /c}}"),
            "stepCA.auth.x5c: has no key",
        ),
        (
            stanza("https://ca", "p", &good, "{jwk: {keyFile: hunter2}}"),
            "auth.jwk.keyFile: is neither an absolute path",
        ),
        (
            stanza("https://ca", "p", &good, "{token: {file: /run/token}}"),
            "auth.token.file: names one file for several certificates",
        ),
        (
            stanza(
                "https://ca",
                "p",
                &good,
                "{token: {file: {apiserver: eyJhunter2}}}",
            ),
            "auth.token.file: is neither an absolute path",
        ),
        (
            stanza("https://ca", "p", &format!("{good}, lifetime: 5s"), x5c),
            "stepCA.lifetime: 5s is too short",
        ),
        (
            format!("{{stepCA: {{{good}, auth: {x5c}}}}}"),
            "stepCA: has no url",
        ),
        (
            format!("{{stepCA: {{url: 'https://ca', {good}, auth: {x5c}}}}}"),
            "stepCA: has no provisioner",
        ),
    ] {
        let text = format!("{HEAD}signers: {{s: {stanza}}}\n");
        let faults = Settings::from_fragments(&[("test.yaml", text)])
            .unwrap_err()
            .to_string();
        assert!(faults.contains(words), "{words:?} is missing in: {faults}");
        assert!(!faults.contains("hunter2"), "{faults}");
    }
}

// ---- what is issued ----

#[test]
fn every_way_of_proof_ends_in_what_was_wanted() {
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
            let text = text_of(&bytes);
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
            // A minute before, for clocks that lag.
            let lifetime = (leaf.not_after() - leaf.not_before()).whole_seconds();
            assert_eq!(lifetime, 365 * 24 * 60 * 60 + 60, "{way}");
            assert_eq!(Chain::from_pem(&bytes).unwrap().intermediates().len(), 1);
        }
    }
}

#[test]
fn the_same_request_again_is_another_token_and_another_certificate() {
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
fn more_than_the_server_allows_is_refused_and_called_by_its_name() {
    let rig = StepRig::new();
    let stanza = ca("short", &jwk());
    let signer = rig.opened(&stanza);
    let request = request(CertName::Apiserver);
    fails(
        run(signer.submit(&request)),
        Class::Config,
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
    assert!(
        message.contains("8760h are asked for and its provisioner short gives 24h at most"),
        "{message}"
    );
    let modest = rig.opened(&stanza.replace("auth:", "lifetime: 24h, auth:"));
    run(modest.probe()).unwrap();
    modest.preflight(&request.wanted).unwrap();
    let bytes = issued(run(modest.submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    // The shortest that it gives is five minutes.
    let hasty = rig.opened(&stanza.replace("auth:", "lifetime: 1m, auth:"));
    fails(
        run(hasty.submit(&request)),
        Class::Config,
        &["minTLSCertDuration"],
    );
}

#[test]
fn nothing_outlives_the_certificate_that_vouches() {
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

// ---- tokens that are handed over ----

#[test]
fn a_token_that_was_handed_over_is_good_once() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let signer = rig.with_tokens(&ca.url(), &by_fingerprint(ca));
    assert_eq!(signer.caps().resubmit, Resubmit::FreshCredential);
    run(signer.probe()).unwrap();
    let request = request(CertName::Apiserver);
    let missing = fails(
        run(signer.submit(&request)),
        Class::Auth,
        &["apiserver", "no one-time token for it"],
    );
    for word in [
        "put a new one-time token for apiserver into",
        "apiserver.jwt",
        "step ca token kube-apiserver --provisioner jwk --san cp1 --san kubernetes",
        "--san fd00::1",
        r#"{"k8s":{"eku":["serverAuth"]}}"#,
    ] {
        assert!(missing.contains(word), "{word:?} is missing in: {missing}");
    }
    let file = rig.hand_over(CertName::Apiserver, &token(&claims(&request)));
    let bytes = issued(run(signer.submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
    // In another process it is still known, and not sent.
    let again = rig.with_tokens(&ca.url(), &by_fingerprint(ca));
    fails(
        run(again.submit(&request)),
        Class::Auth,
        &[
            "was sent before",
            &file,
            "put a new one-time token for apiserver",
        ],
    );
}

#[test]
fn a_token_whose_answer_was_lost_is_used_up_and_one_that_never_left_is_not() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let gateway = Gateway::to(Some(ca.upstream()));
    let signer = rig.with_tokens(
        &gateway.url(),
        &format!("tls: {{caFile: {}}}", gateway.ca_file().display()),
    );
    let request = request(CertName::KubeletConf);
    let text = token(&claims(&request));
    let file = rig.hand_over(CertName::KubeletConf, &text);
    for status in [404, 429, 503] {
        gateway.rule(Rule::on("POST", "/1.0/sign").times(1).then(Action::Status(
            status,
            Vec::new(),
            Vec::new(),
        )));
        let error = run(signer.submit(&request)).unwrap_err();
        assert!(!error.to_string().contains("one-time token"), "{error}");
    }
    gateway.rule(
        Rule::on("POST", "/1.0/sign")
            .times(1)
            .then(Action::DropAfterForward),
    );
    let said = fails(
        run(signer.submit(&request)),
        Class::Auth,
        &["kubelet.conf", "answer was lost", &file, "is used up"],
    );
    assert!(
        said.contains("put a new one-time token for kubelet.conf into"),
        "{said}"
    );
    assert!(!said.contains(&text), "{said}");
    let sent = gateway.requests().len();
    fails(
        run(signer.submit(&request)),
        Class::Auth,
        &["was sent before"],
    );
    assert_eq!(gateway.requests().len(), sent);
    let mut fresh = claims(&request);
    fresh["jti"] = json!("fresh");
    rig.hand_over(CertName::KubeletConf, &token(&fresh));
    let bytes = issued(run(signer.submit(&request)));
    assert_eq!(verdict(&request, &bytes, &rig.authorities()), "");
}

#[test]
fn a_token_that_would_be_burnt_for_nothing_is_not_sent() {
    let rig = StepRig::new();
    let gateway = Gateway::to(None);
    let signer = rig.with_tokens(
        &gateway.url(),
        &format!("tls: {{caFile: {}}}", gateway.ca_file().display()),
    );
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
            "it is for the names [cp1, 10.96.0.1], wanted are [cp1, kubernetes",
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
            Class::Auth,
            &[words, "put a new one-time token for apiserver"],
        );
    }
    rig.hand_over(CertName::Apiserver, "hunter2");
    let said = fails(
        run(signer.submit(&request)),
        Class::Auth,
        &["it is no token"],
    );
    assert!(!said.contains("hunter2"), "{said}");
    assert_eq!(gateway.connections(), 0);
}

// ---- refusals ----

#[test]
fn a_401_comes_with_its_likely_causes() {
    let rig = StepRig::new();
    let request = request(CertName::Apiserver);
    let astray =
        ca("jwk", &jwk()).replace("auth:", "audience: 'https://elsewhere/1.0/sign', auth:");
    let signer = rig.opened(&astray);
    run(signer.probe()).unwrap();
    let said = fails(
        run(signer.submit(&request)),
        Class::Auth,
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
    // Ten minutes ahead; nobody looked at the provisioners before.
    let signer = rig.opened(&ca("jwk", &jwk()));
    let ahead = request.again(2, now() + Duration::from_secs(600), None);
    let said = fails(
        run(signer.submit(&ahead)),
        Class::Auth,
        &[
            "this machine's clock is",
            "s ahead of the server's",
            "does not exist there or knows another key",
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

/// A certificate that vouched until an hour ago.
fn expired(dir: &Path) {
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
fn what_does_not_fit_to_the_provisioner_is_said_before_anything_is_sent() {
    let rig = StepRig::new();
    let dir = StepCas::shared().dir();
    vouch(
        dir,
        "no-client",
        EC,
        "-days 30 -addext extendedKeyUsage=serverAuth",
    );
    expired(dir);
    let here = rig.dir.path().join("other");
    fs::create_dir(&here).unwrap();
    let foreign = crate::gateway::Issuer::new("foreign-ca").client("cp1");
    fs::write(here.join("foreign.crt"), &foreign.chain_pem).unwrap();
    write_secret(here.join("foreign.key"), &foreign.key_pem);
    write_secret(here.join("jwe"), "eyJhbGciOiJQQkVTMiJ9.a.b.c.d");
    let here = here.display();
    let jwk_at = |file: &str| format!("{{jwk: {{keyFile: {here}/{file}}}}}");
    for (stanza, class, words) in [
        (
            ca("nobody", &jwk()),
            Class::Config,
            &["no provisioner nobody", "it has x5c, jwk, bare"][..],
        ),
        (
            ca("x5c", &jwk()),
            Class::Config,
            &["is of type X5C", "auth.jwk needs one of type JWK"][..],
        ),
        (
            ca("acme", &x5c("node")),
            Class::Config,
            &["is of type ACME", "X5C"][..],
        ),
        (
            ca("jwk", &jwk_at("foreign.key")),
            Class::Config,
            &["not the one of the provisioner jwk (kid nodepki-1)"][..],
        ),
        (
            ca("jwk", &jwk_at("jwe")),
            Class::Config,
            &["encrypted", "step crypto jwe decrypt"][..],
        ),
        (
            ca("jwk", &jwk_at("nothing")),
            Class::Config,
            &["nothing cannot be read"][..],
        ),
        (
            ca("jwk", &jwk().replace("}}", ", kid: other}}")),
            Class::Config,
            &["by the id nodepki-1, configured is other"][..],
        ),
        (
            ca(
                "x5c",
                &format!("{{x5c: {{certificate: {here}/foreign.crt, key: {here}/foreign.key}}}}"),
            ),
            Class::Config,
            &[
                "issued by CN=foreign-ca",
                "does not lead to the roots of the provisioner x5c",
                "CN=bootstrap-ca",
            ][..],
        ),
        (
            ca("x5c", &x5c("node").replace("node.key", "node-rsa.key")),
            Class::Config,
            &["node-rsa.key", "not the key of the certificate in"][..],
        ),
        (
            ca("x5c", &x5c("no-client")),
            Class::Config,
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
    let expired = run(rig.opened(&ca("x5c", &x5c("expired"))).probe()).unwrap_err();
    assert_eq!(expired.class, Class::Auth, "{expired}");
    assert!(
        expired
            .to_string()
            .contains("expired.crt (CN=front-proxy-client) expired at"),
        "{expired}"
    );
}

#[test]
fn the_root_is_the_one_with_the_fingerprint_or_nothing_goes_on() {
    let rig = StepRig::new();
    let (ours, other) = (
        StepCas::shared().of(Authority::Ca),
        StepCas::shared().of(Authority::EtcdCa),
    );
    let strange = rig.opened(&stanza(&ours.url(), "jwk", &by_fingerprint(other), &jwk()));
    let error = run(strange.probe()).unwrap_err();
    assert_eq!(error.class, Class::Config, "{error}");
    for word in [
        "has no root certificate with the fingerprint",
        &hex(&other.fingerprint),
        "step certificate fingerprint",
    ] {
        assert!(
            error.to_string().contains(word),
            "{word:?} is missing in: {error}"
        );
    }
    // Somebody in between who hands out a root of his own.
    let gateway = Gateway::to(Some(ours.upstream()));
    let body = json!({"ca": String::from_utf8(gateway.ca_pem()).unwrap()}).to_string();
    gateway.rule(Rule::on("GET", "/root/").then(Action::Status(200, Vec::new(), body.into())));
    let cheated = rig.opened(&stanza(
        &gateway.url(),
        "jwk",
        &by_fingerprint(ours),
        &jwk(),
    ));
    let error = run(cheated.probe()).unwrap_err();
    assert_eq!(error.class, Class::Config, "{error}");
    assert!(
        error
            .to_string()
            .contains("the answer is another certificate"),
        "{error}"
    );
    // And one who passes the right root on, but has no certificate of it.
    gateway.behave();
    let error = run(cheated.probe()).unwrap_err();
    assert_eq!(error.class, Class::Config, "{error}");
    assert!(error.to_string().contains("is not trusted"), "{error}");
    assert!(
        gateway
            .requests()
            .iter()
            .all(|one| one.path.contains("/root/"))
    );
}

/// Answers that the real server gives only in states that are hard to bring about.
#[test]
fn recorded_answers_are_understood() {
    let recorded = |name: &str| {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/signers/stepCA");
        let status = name
            .split('-')
            .nth(1)
            .unwrap()
            .trim_end_matches(".json")
            .parse()
            .unwrap();
        let body = fs::read(Path::new(dir).join(name)).unwrap();
        Action::Status(status, Vec::new(), body)
    };
    let rig = StepRig::new();
    let gateway = Gateway::to(None);
    let tls = format!("tls: {{caFile: {}}}", gateway.ca_file().display());
    let signer = rig.opened(&stanza(&gateway.url(), "jwk", &tls, &jwk()));
    let request = request(CertName::Apiserver);
    gateway.rule(Rule::on("POST", "/sign").then(recorded("sign-500-template.json")));
    fails(
        run(signer.submit(&request)),
        Class::Config,
        &["certificate template", "signer-setup stepCA"],
    );
    for webhook in [
        "sign-403-webhook-enriches.json",
        "sign-403-webhook-decides.json",
    ] {
        gateway.behave();
        gateway.rule(Rule::on("POST", "/sign").then(recorded(webhook)));
        assert!(
            matches!(run(signer.submit(&request)), Ok(Answer::Denied { .. })),
            "{webhook}"
        );
    }
    gateway.behave();
    gateway.rule(Rule::on("POST", "/sign").then(recorded("roots-201.json")));
    fails(
        run(signer.submit(&request)),
        Class::Permanent,
        &["HTTP 201", "no certificate in it"],
    );
    gateway.rule(Rule::on("GET", "/roots").then(recorded("roots-201.json")));
    let error = run(signer.trust(Authority::Ca)).unwrap_err();
    assert_eq!(error.class, Class::Permanent, "{error}");
    gateway.rule(Rule::on("GET", "/crl").then(recorded("crl-501.json")));
    assert_eq!(run(signer.crl(Authority::Ca)).unwrap(), None);
}

// ---- renewal ----

/// A certificate of provisioner `name` with its key.
fn current(rig: &StepRig, provisioner: &str, name: CertName) -> (Request, Current) {
    let (request, key) = request_with_key(name);
    let bytes = issued(run(rig.opened(&ca(provisioner, &jwk())).submit(&request)));
    let current = Current {
        chain_pem: bytes,
        key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
    };
    (request, current)
}

#[test]
fn renewal_keeps_the_key_and_rekeying_takes_another() {
    let rig = StepRig::new();
    // No token is made for it: the key file may be gone by then.
    let signer = rig.opened(&ca("jwk", "{jwk: {keyFile: /nonexistent}}"));
    let (old, current) = current(&rig, "jwk", CertName::KubeletConf);
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
fn a_certificate_that_is_no_clients_is_renewed_with_a_token() {
    let rig = StepRig::new();
    let (old, current) = current(&rig, "jwk", CertName::Apiserver);
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
fn usages_that_have_drifted_are_not_renewed() {
    let rig = StepRig::new();
    // From before there was a template: server and client both.
    let (old, current) = current(&rig, "bare", CertName::FrontProxyClient);
    let signer = rig.opened(&ca("jwk", &jwk()));
    let renewed = issued(run(signer.renew(&old, &current)));
    let usages = leaf(&renewed).extended_usages().unwrap().to_vec();
    assert_eq!(usages, ["client auth"]);
}

#[test]
fn a_renewal_that_is_refused_says_what_helps() {
    let rig = StepRig::new();
    let (old, current) = current(&rig, "no-renewal", CertName::KubeletConf);
    let signer = rig.opened(&ca("no-renewal", &jwk()));
    fails(
        run(signer.renew(&old, &current)),
        Class::Auth,
        &[
            "renewing kubelet.conf for authority ca",
            "HTTP 401",
            "no-renewal has disableRenewal",
            "with a token instead",
        ],
    );
    // Once it has seen the list of provisioners it does not try.
    run(signer.probe()).unwrap();
    let renewed = issued(run(signer.renew(&old, &current)));
    assert_eq!(verdict(&old, &renewed, &rig.authorities()), "");
    // TLS ends before step-ca, and the proof with it.
    let gateway = Gateway::to(Some(StepCas::shared().of(Authority::Ca).upstream()));
    let tls = format!("tls: {{caFile: {}}}", gateway.ca_file().display());
    let signer = rig.opened(&stanza(&gateway.url(), "no-renewal", &tls, &jwk()));
    fails(
        run(signer.renew(&old, &current)),
        Class::Config,
        &["missing client certificate", "ends TLS"],
    );
}

// ---- trust and revocation ----

#[test]
fn what_it_revokes_is_on_its_list() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let signer = rig.opened(&self::ca("jwk", &jwk()));
    let (_, current) = current(&rig, "jwk", CertName::KubeletConf);
    let revoked = leaf(&current.chain_pem);
    let list = |signer: &dyn Signer| {
        let bytes = run(signer.crl(Authority::Ca)).unwrap().unwrap();
        RevocationList::read_all(&bytes).unwrap().remove(0)
    };
    assert_eq!(list(signer.as_ref()).revokes(&revoked), None);
    let mut endpoint = Endpoint::new(Url::parse(&ca.url()).unwrap());
    endpoint.tls.ca_pem = Some(ca.root_pem());
    let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
    let client = client.with_identity(Identity {
        chain_pem: current.chain_pem.clone(),
        key_pem: current.key_pem.clone(),
    });
    let body =
        json!({"serial": format!("0x{}", revoked.serial()), "reasonCode": 1, "passive": true});
    let answer = run(client.send(Call::post("/1.0/revoke").json(&body))).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let list = list(signer.as_ref());
    assert!(list.revokes(&revoked).is_some());
    // OpenSSL reads it the same way.
    let text = openssl(&["crl", "-noout", "-text"], list.to_pem().as_bytes());
    let text = String::from_utf8(text).unwrap().to_lowercase();
    assert!(
        text.contains(revoked.serial().trim_start_matches('0')),
        "{text}"
    );
    // What is revoked cannot be renewed either.
    let request = request_for(wanted(CertName::KubeletConf), UsageExtensions::Requested).0;
    fails(
        run(signer.renew(&request, &current)),
        Class::Auth,
        &["HTTP 401", "revoked"],
    );
    // Where lists are not enabled there is none.
    assert_eq!(
        run(rig
            .open(Authority::FrontProxyCa)
            .crl(Authority::FrontProxyCa))
        .unwrap(),
        None
    );
}

#[test]
fn trust_is_its_root_and_not_the_intermediate() {
    let rig = StepRig::new();
    let ca = StepCas::shared().of(Authority::Ca);
    let bytes = run(rig.open(Authority::Ca).trust(Authority::Ca))
        .unwrap()
        .unwrap();
    let bundle = TrustBundle::from_pem(&bytes).unwrap();
    assert_eq!(bundle.certificates().len(), 1);
    assert_eq!(bundle.first().fingerprint(), ca.fingerprint);
}

// ---- the whole program ----

#[test]
fn ends_of_runs_are_what_unit_files_act_on() {
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
    with(&ca("nobody", &jwk()))
        .ended(78)
        .says("no provisioner nobody");
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

/// The commands of the printed script, but for their `step`, make tokens for all that etcd-ca signs.
#[test]
fn tokens_made_as_printed_give_all_that_an_authority_signs() {
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
    let printed = Ran::of(
        std::process::Command::new(NODEPKI)
            .args([
                "config",
                "signer-setup",
                "stepCA",
                "--name",
                "e",
                "--config",
            ])
            .arg(node.outside("config.yaml"))
            .arg("--kubeadm-config")
            .arg(node.outside("kubeadm.yaml")),
    );
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

#[test]
fn secrets_stay_where_they_are() {
    let rig = StepRig::new();
    let node = node(&rig);
    let ran = Ran::of(node.ask_command("0s").arg("-vv"));
    ran.done();
    let file = fs::read_to_string(StepCas::shared().jwk_file()).unwrap();
    let jwk: Value = serde_json::from_str(&file).unwrap();
    ran.says_not(jwk["d"].as_str().unwrap()).says_not("eyJ");
    let key = fs::read_to_string(StepCas::shared().dir().join("node.key")).unwrap();
    ran.says_not(key.lines().nth(1).unwrap());
}

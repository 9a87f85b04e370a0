//! CFSSL: the real `cfssl serve` and `multirootca`, with what `nodepki config signer-setup cfssl` prints and with what
//! people make of it instead.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodepki::config::Settings;
use nodepki::http::{Call, Client, Endpoint, Url};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{Answer, Class, Kind, Request, Signer, SignerError};
use nodepki::x509::{
    Chain, Csr, KeyAlgorithm, RevocationList, Revocations, TrustBundle, UsageExtensions,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Rule};
use crate::log::logged;
use crate::node::{INIT, NODEPKI, Node, Ran};
use crate::rig::{Denial, Front, Rig};
use crate::servers::cfssl::{Cfssl, Site};
use crate::signer_bad::verdict;
use crate::signer_bootstrap::node;
use crate::signing::{
    PlainFiles, now, opened_with_memory, openssl, request, request_for, run, run_program, wanted,
    write_authorities, write_secret,
};

const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/signers/cfssl");
const PROFILES: &str =
    "{default: client, apiserver: \"server-{node}\", etcd-server: peer, etcd-peer: peer}";

/// A `multirootca` with three CAs, set up by the printed script.
pub(crate) struct CfsslRig {
    dir: TempDir,
    site: Site,
    server: Cfssl,
    refusing: RefCell<Vec<Lab>>,
}

impl CfsslRig {
    pub(crate) fn new() -> Self {
        Self::changed(|_| ())
    }

    /// After something was done to what is printed and to the CAs.
    fn changed(change: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let site = Site::new(&dir.path().join("server"));
        let settings = rig_settings(&rig_signer(dir.path(), &site.url(), &tls(&site)));
        set_up(dir.path(), &settings);
        change(dir.path());
        let server = site.multirootca();
        CfsslRig {
            dir,
            site,
            server,
            refusing: RefCell::default(),
        }
    }
}

fn tls(site: &Site) -> String {
    format!("{{caFile: {}}}", site.ca_file().display())
}

fn rig_signer(dir: &Path, url: &str, tls: &str) -> String {
    format!(
        "{{cfssl: {{url: \"{url}\", profile: {PROFILES}, auth: {{keyFile: {}}}, tls: {tls}}}}}",
        dir.join("server/nodepki-kubernetes-cp1.key").display()
    )
}

fn rig_settings(signer: &str) -> String {
    format!("{HEAD}signers: {{c: {signer}}}\n")
}

/// Runs what is printed for these settings in `dir/server`, beside the CAs that are in `dir`.
fn set_up(dir: &Path, settings: &str) -> String {
    let ran = print_setup(dir, settings);
    ran.done();
    let script = dir.join("setup.sh");
    fs::write(&script, &ran.stdout).unwrap();
    let done = Command::new("sh")
        .arg(&script)
        .current_dir(dir.join("server"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    for authority in Authority::ALL {
        let label = authority.as_str().replace('-', "_");
        put_ca(dir, authority, &dir.join("server"), &label);
    }
    ran.stdout
}

fn print_setup(dir: &Path, settings: &str) -> Ran {
    fs::write(dir.join("setup.yaml"), settings).unwrap();
    fs::write(dir.join("kubeadm.yaml"), INIT).unwrap();
    Ran::of(
        Command::new(NODEPKI)
            .args(["config", "signer-setup", "cfssl", "--config"])
            .arg(dir.join("setup.yaml"))
            .arg("--kubeadm-config")
            .arg(dir.join("kubeadm.yaml")),
    )
}

fn put_ca(authorities: &Path, authority: Authority, to: &Path, label: &str) {
    let from = authorities.join(authority.base_name());
    for extension in ["crt", "key"] {
        let to = to.join(label).with_extension(extension);
        fs::copy(from.with_extension(extension), to).unwrap();
    }
}

impl Rig for CfsslRig {
    fn kind(&self) -> Kind {
        Kind::Cfssl
    }

    fn settings(&self) -> String {
        rig_settings(&rig_signer(
            self.dir.path(),
            &self.site.url(),
            &tls(&self.site),
        ))
    }

    fn authorities(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// The names in the request are not those that the profile is for.
    fn deny(&self, _request: &Request) -> Option<Denial> {
        let lab = Lab::serving(json!({
            "default": {"expiry": "1h"},
            "profiles": {"cp": {"expiry": "1h", "usages": BOTH, "name_whitelist": "^cp2$"}},
        }));
        let signer = lab.open("profile: cp");
        self.refusing.borrow_mut().push(lab);
        Some(Denial {
            signer,
            ticket: None,
            reason: "name_whitelist",
        })
    }

    fn sent(&self) -> Vec<String> {
        self.server.signed()
    }

    fn front(&self) -> Option<Front> {
        let dir = self.dir.path().to_owned();
        let direct = rig_signer(&dir, &self.site.url(), &tls(&self.site));
        Some(Front {
            upstream: self.site.upstream(),
            submit: ("POST", "/authsign$"),
            settings: Box::new(move |url, tls| {
                let fronted = rig_signer(&dir, url, tls);
                format!(
                    "{HEAD}authorities: {{ca: {{signer: c}}, front-proxy-ca: {{signer: c}}, etcd-ca: {{signer: g}}}}\n\
                     signers:\n  c: {direct}\n  g: {fronted}\n"
                )
            }),
            exceptions: &[],
        })
    }
}

const SERVER: [&str; 3] = ["digital signature", "key encipherment", "server auth"];
const CLIENT: [&str; 3] = ["signing", "key encipherment", "client auth"];
const BOTH: [&str; 4] = [
    "digital signature",
    "key encipherment",
    "server auth",
    "client auth",
];
const HEX: &str = "0123456789ABCDEF0123456789ABCDEF";

/// A server that a test configures, with the authorities of kubeadm under the labels kubernetes, etcd and front_proxy.
struct Lab {
    dir: TempDir,
    site: Site,
    server: Cfssl,
}

impl Lab {
    fn prepared(signing: Value) -> (TempDir, Site) {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        let there = dir.path().join("server");
        let site = Site::new(&there);
        let keys = json!({
            "node": {"type": "standard", "key": HEX},
            "old": {"type": "standard", "key": "abcd"},
        });
        let configuration = json!({"signing": signing, "auth_keys": keys});
        let mut roots = String::new();
        for (authority, label) in [
            (Authority::Ca, "kubernetes"),
            (Authority::EtcdCa, "etcd"),
            (Authority::FrontProxyCa, "front_proxy"),
        ] {
            put_ca(dir.path(), authority, &there, label);
            let file = there.join(label).with_extension("json");
            fs::write(file, configuration.to_string()).unwrap();
            roots.push_str(&format!(
                "[{label}]\nprivate = file://{label}.key\ncertificate = {label}.crt\nconfig = {label}.json\n"
            ));
        }
        fs::write(there.join("roots.ini"), roots).unwrap();
        write_secret(dir.path().join("key"), format!("{HEX}\n"));
        (dir, site)
    }

    /// `cfssl serve` with the CA of Kubernetes.
    fn serving(signing: Value) -> Self {
        Self::serving_with(signing, &[])
    }

    fn serving_with(signing: Value, more: &[&str]) -> Self {
        let (dir, site) = Self::prepared(signing);
        let server = site.serve("kubernetes", more);
        Lab { dir, site, server }
    }

    /// `multirootca` with all three.
    fn rooting(signing: Value) -> Self {
        let (dir, site) = Self::prepared(signing);
        let server = site.multirootca();
        Lab { dir, site, server }
    }

    /// A configuration with these keys besides address and trust.
    fn settings(&self, more: &str) -> String {
        let tls = match more.contains("tls:") {
            true => String::new(),
            false => format!(", tls: {}", tls(&self.site)),
        };
        let more = if more.is_empty() {
            String::new()
        } else {
            format!(", {more}")
        };
        let url = self.site.url();
        format!("{HEAD}signers: {{s: {{cfssl: {{url: \"{url}\"{more}{tls}}}}}}}\n")
    }

    fn open(&self, more: &str) -> Rc<dyn Signer> {
        open(self.dir.path(), &self.settings(more))
    }

    fn through(&self, gateway: &Gateway, more: &str) -> Rc<dyn Signer> {
        let settings = self
            .settings(more)
            .replace(&self.site.url(), &gateway.url())
            .replace(
                self.site.ca_file().to_str().unwrap(),
                gateway.ca_file().to_str().unwrap(),
            );
        open(self.dir.path(), &settings)
    }

    /// After a look at the server, as a run has it.
    fn probed(&self, more: &str) -> Rc<dyn Signer> {
        let signer = self.open(more);
        run(signer.probe()).unwrap();
        signer
    }

    fn auth(&self) -> String {
        format!(
            "auth: {{keyFile: {}}}",
            self.dir.path().join("key").display()
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn signs(&self, signer: &dyn Signer, request: &Request) -> Vec<u8> {
        let bytes = issued(run(signer.submit(request)));
        let said = verdict(request, &bytes, self.dir.path());
        assert_eq!(said, "", "{}", request.name());
        bytes
    }

    /// A POST to the API, as anybody may send one.
    fn ask(&self, path: &str, body: &Value) -> Value {
        let mut endpoint = Endpoint::new(Url::parse(&self.site.url()).unwrap());
        endpoint.tls.ca_file = Some(self.site.ca_file());
        let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
        let call = Call::post(format!("/api/v1/cfssl/{path}")).json(body);
        run(client.send(call)).unwrap().json().unwrap()
    }
}

fn open(dir: &Path, settings: &str) -> Rc<dyn Signer> {
    let (settings, faults) = Settings::from_fragments(&[("lab.yaml", settings)])
        .unwrap_or_else(|faults| panic!("{faults}\n{settings}"));
    assert!(faults.is_empty(), "{faults}");
    let (_, config) = settings.signer_of(Authority::Ca).unwrap();
    opened_with_memory(config, dir).into()
}

#[track_caller]
fn issued(answer: Result<Answer, SignerError>) -> Vec<u8> {
    match answer {
        Ok(Answer::Issued(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn fails<T: std::fmt::Debug>(result: Result<T, SignerError>, class: Class, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.class, class, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?}: {error}");
    }
}

/// The preflight refuses a certificate in these words.
#[track_caller]
fn refuses(signer: &dyn Signer, name: CertName, words: &[&str]) {
    let message = signer.preflight(&wanted(name)).unwrap_err().to_string();
    for word in [name.as_str()].iter().chain(words) {
        assert!(message.contains(word), "{word:?}: {message}");
    }
}

/// Profiles `server`, `client` and `both`, and a default that signs nothing.
fn profiles() -> Value {
    json!({
        "default": {"expiry": "1h"},
        "profiles": {
            "server": {"expiry": "8760h", "usages": SERVER},
            "client": {"expiry": "8760h", "usages": CLIENT},
            "both": {"expiry": "8760h", "usages": BOTH},
        },
    })
}

/// The same, for requests that are signed.
fn keyed() -> Value {
    let mut all = profiles();
    all["default"]["auth_key"] = json!("node");
    for (_, profile) in all["profiles"].as_object_mut().unwrap() {
        profile["auth_key"] = json!("node");
    }
    all
}

fn with(mut signing: Value, path: &str, value: Value) -> Value {
    let (parent, name) = path.rsplit_once('/').unwrap();
    signing.pointer_mut(parent).unwrap()[name] = value;
    signing
}

fn text(pem: &[u8]) -> String {
    String::from_utf8(openssl(&["x509", "-noout", "-text"], pem)).unwrap()
}

// ---- what is printed ----

#[test]
fn what_is_printed_is_all_that_a_serve_needs_too() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    let site = Site::new(&dir.path().join("server"));
    let settings = rig_settings(&rig_signer(dir.path(), &site.url(), &tls(&site)));
    let printed = set_up(dir.path(), &settings);
    for part in [
        "[front_proxy_ca]",
        "multirootca -a",
        "cfssl serve",
        "\"name_whitelist\": \"^(",
        "-disable newcert",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let key = fs::read_to_string(dir.path().join("server/nodepki-kubernetes-cp1.key")).unwrap();
    assert!(!printed.contains(key.trim()) && key.trim().len() == 64);
    let disabled = printed
        .split("-disable ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap();
    let _server = site.serve("ca", &["-disable", disabled]);
    let signer = open(dir.path(), &settings);
    run(signer.probe()).unwrap();
    for name in CertName::KUBEADM {
        if name.authority() != Authority::Ca {
            continue;
        }
        let Some(request) = known(name) else { continue };
        signer.preflight(&request.wanted).unwrap();
        let bytes = issued(run(signer.submit(&request)));
        assert_eq!(verdict(&request, &bytes, dir.path()), "", "{name}");
    }
    // What the printed profiles are not for.
    let mut odd = wanted(CertName::Apiserver);
    odd.profile
        .sans
        .dns
        .push("kubernetes.example.com".to_owned());
    let odd = request_for(odd, UsageExtensions::Requested).0;
    let Ok(Answer::Denied { reason }) = run(signer.submit(&odd)) else {
        panic!()
    };
    assert!(reason.contains("name_whitelist"), "{reason}");
    // Again it changes nothing: the key on the node stays good.
    set_up(dir.path(), &settings);
    let again = fs::read_to_string(dir.path().join("server/nodepki-kubernetes-cp1.key")).unwrap();
    assert_eq!(key, again);
    // Nor does it take another node's profiles away.
    let file = dir.path().join("server/ca.json");
    let before = fs::read_to_string(&file).unwrap();
    assert!(
        before.contains("\"auth_key\": \"nodepki-kubernetes-cp1\""),
        "{before}"
    );
    fs::write(&file, before.replace("cp1", "cp2")).unwrap();
    set_up(dir.path(), &settings);
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        before.replace("cp1", "cp2")
    );
    let new = file.with_extension("json.new");
    assert_eq!(fs::read_to_string(new).unwrap(), before);
}

/// A request for one of the wishes of `signing::wanted`.
fn known(name: CertName) -> Option<Request> {
    let names = [CertName::Apiserver, CertName::KubeletConf];
    names.contains(&name).then(|| request(name))
}

#[test]
fn a_profile_for_servers_and_clients_is_printed_with_what_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let settings = format!(
        "{HEAD}signers: {{s: {{cfssl: {{url: \"https://cfssl.example.com:8888\", profile: kubernetes, \
         tls: {{systemRoots: true, certificate: /a, key: /b}}}}}}}}\n"
    );
    let ran = print_setup(dir.path(), &settings);
    ran.done()
        .says("allowExtraUsages")
        .says("-mutual-tls-cn '^(cp1)$'")
        .says_not("\"auth_key\"")
        .says_not("multirootca");
}

// ---- sign and authsign ----

#[test]
fn requests_without_a_key_go_to_sign_and_with_one_to_authsign() {
    let signing = with(
        keyed(),
        "/profiles/open",
        json!({"expiry": "8760h", "usages": SERVER}),
    );
    let lab = Lab::serving(signing);
    let gateway = Gateway::to(Some(lab.site.upstream()));
    let request = request(CertName::Apiserver);
    let open = lab.through(&gateway, "profile: open");
    lab.signs(open.as_ref(), &request);
    let keyed = lab.through(
        &gateway,
        &format!("profile: server, label: x, {}", lab.auth()),
    );
    lab.signs(keyed.as_ref(), &request);

    let sent = gateway.requests();
    assert_eq!(sent[0].path, "/api/v1/cfssl/sign");
    assert_eq!(sent[1].path, "/api/v1/cfssl/authsign");
    let plain: Value = serde_json::from_slice(&sent[0].body).unwrap();
    let outer: Value = serde_json::from_slice(&sent[1].body).unwrap();
    let keys = |value: &Value| {
        let keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys
    };
    assert_eq!(keys(&outer), ["token", "request"]);
    let inner = STANDARD.decode(outer["request"].as_str().unwrap()).unwrap();
    let signed: Value = serde_json::from_slice(&inner).unwrap();
    for request in [&plain, &signed] {
        // `hosts` would replace the names of the CSR, `subject` its subject.
        assert_eq!(keys(request), ["label", "profile", "certificate_request"]);
    }
    assert_eq!(
        (&plain["label"], &signed["label"]),
        (&json!("ca"), &json!("x"))
    );
    let option = format!("hexkey:{HEX}");
    let arguments = [
        "dgst", "-sha256", "-mac", "HMAC", "-macopt", &option, "-binary",
    ];
    assert_eq!(
        outer["token"],
        json!(STANDARD.encode(openssl(&arguments, &inner)))
    );
}

#[test]
fn an_empty_hosts_would_have_removed_every_name() {
    let lab = Lab::serving(profiles());
    let request = request(CertName::Apiserver);
    let body =
        json!({"certificate_request": request.csr.to_pem(), "profile": "server", "hosts": []});
    let answer = lab.ask("sign", &body);
    let pem = answer["result"]["certificate"].as_str().unwrap();
    let said = verdict(&request, pem.as_bytes(), lab.dir.path());
    assert!(said.contains("SAN DNS:kubernetes is missing"), "{said}");
}

#[test]
fn a_key_on_one_side_alone_is_told_before_a_key_is_made() {
    let lab = Lab::serving(with(
        keyed(),
        "/profiles/open",
        json!({"expiry": "8760h", "usages": SERVER}),
    ));
    let without = lab.probed("profile: server");
    refuses(
        without.as_ref(),
        CertName::Apiserver,
        &["profile \"server\"", "auth_key", "auth.keyFile"],
    );
    fails(
        run(without.submit(&request(CertName::Apiserver))),
        Class::Config,
        &[
            "cfssl:https",
            "signing apiserver for authority ca",
            "authentication required",
        ],
    );
    let with = lab.probed(&format!("profile: open, {}", lab.auth()));
    refuses(
        with.as_ref(),
        CertName::Apiserver,
        &["profile \"open\"", "has no auth_key", "remove `auth`"],
    );
    fails(
        run(with.submit(&request(CertName::Apiserver))),
        Class::Config,
        &["no authentication provider", "has no auth_key"],
    );
    // Not even the path is there where all profiles, or none of them, have a key.
    let lab = Lab::serving(keyed());
    fails(
        run(lab.open("profile: server").probe()),
        Class::Config,
        &["404", "`sign`", "auth.keyFile"],
    );
    let lab = Lab::serving(profiles());
    fails(
        run(lab
            .open(&format!("profile: server, {}", lab.auth()))
            .probe()),
        Class::Config,
        &["404", "`authsign`", "auth_key"],
    );
    let lab = Lab::rooting(profiles());
    let signer = lab.probed(&format!(
        "profile: server, label: kubernetes, {}",
        lab.auth()
    ));
    refuses(signer.as_ref(), CertName::Apiserver, &["has no auth_key"]);
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        Class::Config,
        &["authorisation required"],
    );
    fails(
        run(lab.open("profile: server, label: kubernetes").probe()),
        Class::Config,
        &["404", "multirootca never has it"],
    );
}

#[test]
fn a_wrong_key_is_a_matter_of_credentials_and_its_file_is_read_anew() {
    for lab in [Lab::serving(keyed()), Lab::rooting(keyed())] {
        write_secret(lab.path("key"), "00112233");
        let signer = lab.open(&format!("profile: both, label: kubernetes, {}", lab.auth()));
        let request = request(CertName::EtcdServer);
        for result in [run(signer.probe()), run(signer.submit(&request)).map(drop)] {
            fails(
                result,
                Class::Auth,
                &["invalid token", "/key", "prev_auth_key"],
            );
        }
        for (content, what) in [
            ("env:KEY", "hexadecimal"),
            ("abc", "hexadecimal"),
            ("+1", "hexadecimal"),
            ("0x12", "hexadecimal"),
            ("ää", "hexadecimal"),
            (" \n", "empty"),
        ] {
            write_secret(lab.path("key"), content);
            let error = run(signer.probe()).unwrap_err();
            assert_eq!(error.class, Class::Config, "{error}");
            assert!(error.to_string().contains(what), "{error}");
            assert!(!error.to_string().contains("KEY"), "{error}");
        }
        fs::remove_file(lab.path("key")).unwrap();
        fails(
            run(signer.probe()),
            Class::Config,
            &["/key", "No such file"],
        );
        write_secret(lab.path("key"), HEX.to_lowercase());
        run(signer.probe()).unwrap();
        issued(run(signer.submit(&request)));
    }
}

#[test]
fn while_keys_change_the_old_one_is_still_good() {
    let lab = Lab::serving(with(
        keyed(),
        "/profiles/server/prev_auth_key",
        json!("old"),
    ));
    write_secret(lab.path("key"), "ABCD");
    let signer = lab.probed(&format!("profile: server, {}", lab.auth()));
    lab.signs(signer.as_ref(), &request(CertName::Apiserver));
}

/// What is asked for is asked with the right key, whatever else the server has.
#[test]
fn a_key_that_opens_one_label_only_serves_that_one() {
    let (dir, site) = Lab::prepared(keyed());
    let other = json!({
        "signing": {"default": {"expiry": "1h", "auth_key": "k"}, "profiles": {"both": {"expiry": "1h", "usages": BOTH, "auth_key": "k"}}},
        "auth_keys": {"k": {"type": "standard", "key": "ff"}},
    });
    fs::write(dir.path().join("server/etcd.json"), other.to_string()).unwrap();
    let server = site.multirootca();
    let lab = Lab { dir, site, server };
    let labels = "label: {default: kubernetes, etcd-server: etcd, etcd-peer: etcd}";
    let signer = lab.probed(&format!("profile: both, {labels}, {}", lab.auth()));
    let kubelet = request_for(
        {
            let mut wanted = wanted(CertName::KubeletConf);
            wanted.tolerance.extra_usages = true;
            wanted
        },
        UsageExtensions::Requested,
    )
    .0;
    signer.preflight(&kubelet.wanted).unwrap();
    lab.signs(signer.as_ref(), &kubelet);
    fails(
        run(signer.submit(&request(CertName::EtcdServer))),
        Class::Auth,
        &["invalid token", "etcd-server", "label \"etcd\""],
    );
}

// ---- profiles ----

#[test]
fn a_profile_that_does_not_exist_is_told_from_every_other() {
    let words = [
        "profile \"sever\"",
        "one that does not exist",
        "correct the name",
    ];
    // The trap: the default profile signs, with the usages of a client.
    let trap = with(
        profiles(),
        "/default",
        json!({"expiry": "8760h", "usages": CLIENT}),
    );
    let lab = Lab::serving(trap.clone());
    let signer = lab.probed("profile: {default: client, apiserver: sever}");
    let request = request(CertName::Apiserver);
    let bytes = issued(run(signer.submit(&request)));
    let said = verdict(&request, &bytes, lab.dir.path());
    assert!(said.contains("server auth is missing"), "{said}");
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &[words.as_slice(), &["does not give server auth"]].concat(),
    );
    // Even where it would do: a slip of the pen is not to depend on what the default happens to be.
    let lucky = with(
        profiles(),
        "/default",
        json!({"expiry": "8760h", "usages": SERVER}),
    );
    let lab = Lab::serving(lucky);
    refuses(
        lab.probed("profile: sever").as_ref(),
        CertName::Apiserver,
        &words,
    );
    // A profile that cannot be told from the default one is not believed either; the default one by itself is.
    refuses(
        lab.probed("profile: server").as_ref(),
        CertName::Apiserver,
        &["profile \"server\"", "something of its own"],
    );
    let signer = lab.probed("");
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);
    // A default without usages signs nothing.
    let lab = Lab::serving(profiles());
    let signer = lab.probed("profile: sever");
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &[words.as_slice(), &["no usages"]].concat(),
    );
    fails(
        run(signer.submit(&request)),
        Class::Config,
        &[
            "no key usage available",
            "an unknown one is the default profile",
        ],
    );
    // Told apart by nothing but the key.
    let lab = Lab::serving(json!({
        "default": {"expiry": "8760h", "usages": SERVER},
        "profiles": {"server": {"expiry": "8760h", "usages": SERVER, "auth_key": "node"}},
    }));
    let signer = lab.probed(&format!("profile: server, {}", lab.auth()));
    signer.preflight(&request.wanted).unwrap();
    let signer = lab.probed(&format!("profile: sever, {}", lab.auth()));
    refuses(signer.as_ref(), CertName::Apiserver, &words);
}

#[test]
fn multirootca_knows_its_profiles_and_labels() {
    // `info` takes the default one there too, and the default one would do.
    let mut signing = keyed();
    signing["default"] = json!({"expiry": "8760h", "usages": SERVER, "auth_key": "node"});
    let lab = Lab::rooting(signing);
    let asked = json!({"label": "kubernetes", "profile": "sever"});
    assert_eq!(lab.ask("info", &asked)["result"]["usages"], json!(SERVER));
    let signer = lab.probed(&format!(
        "profile: sever, label: kubernetes, {}",
        lab.auth()
    ));
    let request = request(CertName::Apiserver);
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &["has no profile \"sever\" (label \"kubernetes\")"],
    );
    fails(
        run(signer.submit(&request)),
        Class::Config,
        &["invalid profile"],
    );
    // Here a profile like the default one is known to exist.
    let signer = lab.probed(&format!(
        "profile: server, label: kubernetes, {}",
        lab.auth()
    ));
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);

    let signer = lab.probed(&format!("profile: server, {}", lab.auth()));
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &["no CA with the label \"ca\"", "under `label`"],
    );
    refuses(signer.as_ref(), CertName::EtcdServer, &["\"etcd_ca\""]);
    assert_eq!(run(signer.trust(Authority::Ca)).unwrap(), None);
    fails(
        run(signer.submit(&request)),
        Class::Config,
        &["bad request", "label \"ca\""],
    );
    let signer = lab.probed(&format!(
        "profile: server, label: \"x{{authority}}\", {}",
        lab.auth()
    ));
    refuses(signer.as_ref(), CertName::EtcdServer, &["\"xetcd_ca\""]);
}

#[test]
fn three_authorities_of_one_server_are_told_apart_by_label() {
    let lab = Lab::rooting(keyed());
    let etcd = "etcd-server: etcd, etcd-peer: etcd, etcd-healthcheck-client: etcd, apiserver-etcd-client: etcd";
    let signer = lab.probed(&format!(
        "profile: {{default: client, apiserver: server, etcd-server: both, etcd-peer: both}}, \
         label: {{default: kubernetes, {etcd}, front-proxy-client: front_proxy}}, {}",
        lab.auth()
    ));
    for name in [
        CertName::Apiserver,
        CertName::KubeletConf,
        CertName::EtcdServer,
        CertName::FrontProxyClient,
    ] {
        let request = request(name);
        signer.preflight(&request.wanted).unwrap();
        let bytes = lab.signs(signer.as_ref(), &request);
        let scratch = lab.path("leaf");
        fs::write(&scratch, &bytes).unwrap();
        let ca = lab.path(name.authority().base_name()).with_extension("crt");
        let arguments = [
            "verify",
            "-CAfile",
            ca.to_str().unwrap(),
            scratch.to_str().unwrap(),
        ];
        openssl(&arguments, b"");
    }
    assert_eq!(lab.server.signed().len(), 4);
}

#[test]
fn usages_are_compared_with_the_profile_before_a_key_is_made() {
    let odd = |usages: Value| {
        with(
            profiles(),
            "/profiles/odd",
            json!({"expiry": "8760h", "usages": usages}),
        )
    };
    let lab = Lab::serving(profiles());
    let signer = lab.probed("profile: {default: client, etcd-server: server, kubelet.conf: both}");
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &[
            "does not give server auth",
            "gives client auth, which is not wanted",
            "profile.apiserver",
        ],
    );
    refuses(
        signer.as_ref(),
        CertName::EtcdServer,
        &["does not give client auth"],
    );
    refuses(
        signer.as_ref(),
        CertName::KubeletConf,
        &["gives server auth"],
    );
    let mut tolerant = wanted(CertName::KubeletConf);
    tolerant.tolerance.extra_usages = true;
    signer.preflight(&tolerant).unwrap();
    let request = request_for(tolerant, UsageExtensions::Requested).0;
    lab.signs(signer.as_ref(), &request);

    let lab = Lab::serving(odd(json!([
        "any",
        "server auth",
        "cert sign",
        "no such usage"
    ])));
    let mut wish = wanted(CertName::Apiserver);
    wish.tolerance.extra_usages = true;
    let message = lab.probed("profile: odd").preflight(&wish).unwrap_err();
    for part in ["gives any", "does not give digital signature", "cert sign"] {
        assert!(message.to_string().contains(part), "{message}");
    }

    let lab = Lab::serving(odd(json!(["signing", "server auth"])));
    let signer = lab.probed("profile: odd");
    let request = crate::signing::request(CertName::Apiserver);
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);
    let mut rsa = request.wanted.clone();
    rsa.profile.key = KeyAlgorithm::Rsa2048;
    let message = signer.preflight(&rsa).unwrap_err().to_string();
    assert!(message.contains("key encipherment"), "{message}");

    // Without any key usage the certificate is good for everything.
    let lab = Lab::serving(odd(json!(["server auth"])));
    let signer = lab.probed("profile: odd");
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);
}

#[test]
fn the_profile_decides_how_long_and_the_log_says_so() {
    let lab = Lab::serving(json!({
        "default": {"expiry": "1h"},
        "profiles": {
            "short": {"expiry": "90m", "usages": SERVER},
            "long": {"expiry": "200000h", "usages": SERVER},
        },
    }));
    let request = request(CertName::Apiserver);
    let signer = lab.probed("profile: short");
    signer.preflight(&request.wanted).unwrap();
    let (bytes, log) = logged(|| lab.signs(signer.as_ref(), &request));
    assert!(
        log.contains("signs it for 1h30m where 8760h is wanted"),
        "{log}"
    );
    assert!(!log.contains("longer than its CA"), "{log}");
    let leaf = Chain::from_answer(&bytes, request.csr.public_key()).unwrap();
    let leaf = leaf.leaf();
    assert_eq!((leaf.not_after() - leaf.not_before()).whole_minutes(), 90);
    let signer = lab.probed("profile: long");
    let (_, log) = logged(|| issued(run(signer.submit(&request))));
    assert!(log.contains("longer than its CA is valid"), "{log}");
}

// ---- what comes back ----

#[test]
fn a_subject_is_the_same_however_it_is_encoded() {
    let lab = Lab::serving(profiles());
    let mut wish = wanted(CertName::KubeletConf);
    wish.profile.subject.organizations = vec!["b".to_owned(), "a".to_owned()];
    let key = lab.path("two-o.key");
    let csr = openssl(
        &[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-utf8",
            "-keyout",
            key.to_str().unwrap(),
            "-subj",
            &format!("/CN={}/O=b/O=a", wish.profile.subject.common_name),
        ],
        b"",
    );
    let identity = request(CertName::KubeletConf).identity;
    let request = Request::new(wish, Csr::from_pem(&csr).unwrap(), identity, now());
    let bytes = lab.signs(lab.probed("profile: client").as_ref(), &request);
    let subject = openssl(
        &["x509", "-noout", "-subject", "-nameopt", "RFC2253"],
        &bytes,
    );
    let subject = String::from_utf8(subject).unwrap();
    // One RDN with two values, before the common name: what was sent had three RDNs.
    assert!(
        ["O=b+O=a", "O=a+O=b"]
            .iter()
            .any(|both| subject.contains(both)),
        "{subject}"
    );
}

#[test]
fn a_serving_certificate_has_the_names_of_the_csr_and_the_usages_of_the_profile() {
    let lab = Lab::rooting(keyed());
    let signer = lab.probed(&format!("profile: both, label: etcd, {}", lab.auth()));
    let bytes = lab.signs(signer.as_ref(), &request(CertName::EtcdServer));
    let text = text(&bytes);
    for part in [
        "DNS:cp1, DNS:localhost, IP Address:192.0.2.11, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1",
        "TLS Web Server Authentication, TLS Web Client Authentication",
        "CA:FALSE",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

/// Puts an intermediate CA of `ca.crt` in the place of the one with this label.
fn intermediate(dir: &Path, label: &str) {
    let there = dir.join("server");
    let file = |name: &str| there.join(name).display().to_string();
    run_program(
        "openssl",
        &[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            &file(&format!("{label}.key")),
            "-out",
            &file("csr"),
            "-subj",
            "/CN=issuing",
        ],
        b"",
    );
    fs::write(
        there.join("ext"),
        "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n",
    )
    .unwrap();
    let root = dir.join("ca.crt").display().to_string();
    let key = dir.join("ca.key").display().to_string();
    run_program(
        "openssl",
        &[
            "x509",
            "-req",
            "-in",
            &file("csr"),
            "-CA",
            &root,
            "-CAkey",
            &key,
            "-days",
            "400",
            "-extfile",
            &file("ext"),
            "-out",
            &file(&format!("{label}.crt")),
        ],
        b"",
    );
}

/// The node trusts the root alone: the intermediate comes along with the leaf.
#[test]
fn an_intermediate_ca_is_in_the_chain() {
    let (dir, site) = Lab::prepared(profiles());
    intermediate(dir.path(), "kubernetes");
    let root = dir.path().join("ca.crt").display().to_string();
    let server = site.serve("kubernetes", &[]);
    let lab = Lab { dir, site, server };
    let signer = lab.probed("profile: server");
    let request = request(CertName::Apiserver);
    let bytes = lab.signs(signer.as_ref(), &request);
    let chain = Chain::from_answer(&bytes, request.csr.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
    let file = lab.path("chain");
    fs::write(&file, chain.to_pem()).unwrap();
    let file = file.to_str().unwrap();
    openssl(&["verify", "-CAfile", &root, "-untrusted", file, file], b"");
    // It is no other authority than the root on the node.
    let offered = run(signer.trust(Authority::Ca)).unwrap().unwrap();
    let offered = TrustBundle::from_answer(&offered).unwrap();
    let trusted = TrustBundle::from_pem(&fs::read(&root).unwrap()).unwrap();
    assert!(trusted.vouches_for(&offered) && !offered.vouches_for(&trusted));
    let other = TrustBundle::from_pem(&fs::read(lab.path("etcd/ca.crt")).unwrap()).unwrap();
    assert!(!other.vouches_for(&offered));
}

// ---- who may ask ----

#[test]
fn client_certificates_are_asked_for_and_their_names_looked_at() {
    let (dir, site) = Lab::prepared(profiles());
    site.client("cp1", "cp1");
    site.client("other", "somebody");
    let mutual = ["-mutual-tls-ca", "tls-ca.crt", "-mutual-tls-cn", "^(cp1)$"];
    let server = site.serve("kubernetes", &mutual);
    let lab = Lab { dir, site, server };
    let presenting = |name: &str| {
        let file = |extension: &str| lab.path("server").join(name).with_extension(extension);
        format!(
            "profile: server, tls: {{caFile: {}, certificate: {}, key: {}}}",
            lab.site.ca_file().display(),
            file("crt").display(),
            file("key").display()
        )
    };
    let request = request(CertName::Apiserver);
    let signer = lab.probed(&presenting("cp1"));
    lab.signs(signer.as_ref(), &request);
    let nobody = lab.open("profile: server");
    fails(run(nobody.probe()), Class::Auth, &["certificate"]);
    fails(run(nobody.submit(&request)), Class::Auth, &["apiserver"]);
    let other = lab.open(&presenting("other"));
    for result in [run(other.probe()), run(other.submit(&request)).map(drop)] {
        fails(result, Class::Auth, &["Invalid CN", "-mutual-tls-cn"]);
    }
    // Rotated in, the right one is used at once.
    for extension in ["crt", "key"] {
        let there = lab.path("server").join("x").with_extension(extension);
        fs::copy(
            there.with_file_name("cp1").with_extension(extension),
            there.with_file_name("other").with_extension(extension),
        )
        .unwrap();
    }
    run(other.probe()).unwrap();
    lab.signs(other.as_ref(), &request);
}

#[test]
fn multirootca_may_know_networks() {
    let (dir, site) = Lab::prepared(keyed());
    let roots = dir.path().join("server/roots.ini");
    let text = fs::read_to_string(&roots).unwrap();
    let text = text.replace("[etcd]\n", "[etcd]\nnets = 192.0.2.0/24\n");
    fs::write(&roots, text).unwrap();
    let server = site.multirootca();
    let lab = Lab { dir, site, server };
    let signer = lab.open(&format!("profile: both, label: etcd, {}", lab.auth()));
    for result in [
        run(signer.probe()),
        run(signer.submit(&request(CertName::EtcdServer))).map(drop),
    ] {
        fails(
            result,
            Class::Auth,
            &["not authorised", "`nets` of section etcd"],
        );
    }
}

// ---- refusals ----

#[test]
fn a_whitelist_denies_on_serve_and_says_nothing_on_multirootca() {
    let signing = with(keyed(), "/profiles/server/name_whitelist", json!("^cp2$"));
    let lab = Lab::serving(signing.clone());
    let signer = lab.probed(&format!("profile: server, {}", lab.auth()));
    let request = request(CertName::Apiserver);
    signer.preflight(&request.wanted).unwrap();
    let Ok(Answer::Denied { reason }) = run(signer.submit(&request)) else {
        panic!()
    };
    for part in ["name_whitelist", "profile \"server\"", "code 5500"] {
        assert!(reason.contains(part), "{reason}");
    }
    let lab = Lab::rooting(signing);
    let signer = lab.probed(&format!(
        "profile: server, label: kubernetes, {}",
        lab.auth()
    ));
    fails(
        run(signer.submit(&request)),
        Class::Permanent,
        &["bad request", "CFSSL's own log", "name_whitelist"],
    );
}

#[test]
fn what_is_behind_cfssl_may_come_back() {
    // A database without its tables.
    let (dir, site) = Lab::prepared(profiles());
    site.database("db", false);
    let server = site.serve("kubernetes", &["-db-config", "db.json"]);
    let lab = Lab { dir, site, server };
    let signer = lab.probed("profile: server");
    let request = request(CertName::Apiserver);
    fails(
        run(signer.submit(&request)),
        Class::Transient,
        &["database", "apiserver"],
    );
    fails(
        run(signer.crl(Authority::Ca)),
        Class::Transient,
        &["revocation list"],
    );
    // A remote CFSSL that is away, and then is not.
    let signing = json!({
        "default": {"expiry": "1h"},
        "profiles": {"server": {"remote": "there"}},
    });
    let behind = Lab::serving(profiles());
    for (url, away) in [("https://127.0.0.1:1", true), (&behind.site.url(), false)] {
        let (dir, site) = Lab::prepared(signing.clone());
        let file = dir.path().join("server/kubernetes.json");
        let mut all: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        all["remotes"] = json!({"there": url});
        fs::write(&file, all.to_string()).unwrap();
        let ca = behind.site.ca_file();
        let server = site.serve("kubernetes", &["-tls-remote-ca", ca.to_str().unwrap()]);
        let lab = Lab { dir, site, server };
        let signer = lab.open("profile: server");
        if away {
            fails(run(signer.probe()), Class::Transient, &["remote signer"]);
            fails(
                run(signer.submit(&request)),
                Class::Transient,
                &["remote signer"],
            );
            continue;
        }
        run(signer.probe()).unwrap();
        signer.preflight(&request.wanted).unwrap();
        behind.signs(signer.as_ref(), &request);
        // Only with remote signers does `info` know what does not exist.
        let signer = lab.probed("profile: sever");
        refuses(
            signer.as_ref(),
            CertName::Apiserver,
            &["has no profile \"sever\""],
        );
        fails(run(signer.submit(&request)), Class::Config, &["5400"]);
    }
}

#[test]
fn a_request_that_is_none_is_refused_for_good() {
    let lab = Lab::serving(profiles());
    let signer = lab.probed("profile: server");
    let body = json!({"certificate_request": "-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n", "profile": "server"});
    let said = lab.ask("sign", &body).to_string();
    let gateway = Gateway::to(Some(lab.site.upstream()));
    let answer = Action::Status(
        400,
        vec![("Content-Type", "text/plain".to_owned())],
        said.into_bytes(),
    );
    gateway.rule(Rule::on("POST", "/sign").then(answer));
    drop(signer);
    let signer = lab.through(&gateway, "profile: server");
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        Class::Permanent,
        &["9003", "with the owner of CFSSL"],
    );
}

/// Answers that a real server does not give on demand.
#[test]
fn recorded_answers() {
    let cases: [(&str, Class, &[&str]); 6] = [
        ("success-without-result", Class::Permanent, &["unusable"]),
        (
            "success-without-certificate",
            Class::Permanent,
            &["unusable", "certificate"],
        ),
        (
            "failure-with-200",
            Class::Permanent,
            &["Policy violation request", "5300"],
        ),
        ("no-reason", Class::Transient, &["500", "no reason"]),
        ("transparency-log", Class::Transient, &["a log", "10100"]),
        (
            "not-json",
            Class::Permanent,
            &["unusable", "another program's"],
        ),
    ];
    let lab = Lab::serving(profiles());
    for (name, class, words) in cases {
        let gateway = Gateway::to(None);
        let bytes = fs::read(format!("{GOLDEN}/{name}.http")).unwrap();
        gateway.rule(Rule::on("POST", "/sign$").then(Action::Raw(bytes, true)));
        let signer = lab.through(&gateway, "profile: server");
        fails(
            run(signer.submit(&request(CertName::Apiserver))),
            class,
            words,
        );
    }
}

#[test]
fn what_a_server_adds_in_words_is_in_the_log() {
    let lab = Lab::serving(profiles());
    let gateway = Gateway::to(Some(lab.site.upstream()));
    let add = |mut answer: crate::gateway::Answer| {
        let mut body: Value = serde_json::from_slice(&answer.body).unwrap();
        body["messages"] = json!([{"code": 5300, "message": "one\u{1b}[2J thing"}]);
        answer.body = body.to_string().into_bytes();
        answer
    };
    gateway.rule(Rule::on("POST", "/sign$").then(Action::Replace(Box::new(add))));
    let signer = lab.through(&gateway, "profile: server");
    let (_, log) = logged(|| lab.signs(signer.as_ref(), &request(CertName::Apiserver)));
    assert!(
        log.contains("WARN") && log.contains("one\\u{1b}[2J thing (code 5300)"),
        "{log}"
    );
}

#[test]
fn asking_creates_nothing_and_a_lost_answer_about_it_is_no_lost_certificate() {
    let lab = Lab::rooting(keyed());
    let gateway = Gateway::to(Some(lab.site.upstream()));
    let signer = lab.through(
        &gateway,
        &format!("profile: both, label: etcd, {}", lab.auth()),
    );
    run(signer.probe()).unwrap();
    run(signer.trust(Authority::EtcdCa)).unwrap();
    assert_eq!(lab.server.signed(), Vec::<String>::new());
    for path in ["/info", "/authsign?probe"] {
        gateway.behave();
        gateway.rule(Rule::on("POST", path).then(Action::DropAfterForward));
        fails(run(signer.probe()), Class::Transient, &["label \"etcd\""]);
    }
    gateway.behave();
    gateway.rule(Rule::on("POST", "/authsign$").then(Action::DropAfterForward));
    let request = request(CertName::EtcdServer);
    fails(
        run(signer.submit(&request)),
        Class::Ambiguous,
        &["etcd-server", "etcd-ca"],
    );
    assert_eq!(lab.server.signed().len(), 1);
}

// ---- revocation ----

#[test]
fn a_server_with_a_database_publishes_what_it_revoked() {
    let (dir, site) = Lab::prepared(profiles());
    site.database("db", true);
    let server = site.serve("kubernetes", &["-db-config", "db.json"]);
    let lab = Lab { dir, site, server };
    let signer = lab.probed("profile: server");
    let request = request(CertName::Apiserver);
    let bytes = lab.signs(signer.as_ref(), &request);
    let chain = Chain::from_answer(&bytes, request.csr.public_key()).unwrap();
    let trust = TrustBundle::from_pem(&fs::read(lab.path("ca.crt")).unwrap()).unwrap();
    let published = || {
        let bytes = run(signer.crl(Authority::Ca)).unwrap().unwrap();
        Revocations::verified(RevocationList::read_all(&bytes).unwrap(), &trust, &[]).unwrap()
    };
    assert!(published().revokes(&chain).is_none());
    let serial = u160(chain.leaf().serial());
    let aki = text(&bytes);
    let aki = aki.split("Authority Key Identifier: \n").nth(1).unwrap();
    let aki = aki
        .lines()
        .next()
        .unwrap()
        .trim()
        .replace(':', "")
        .to_lowercase();
    let done = lab.ask(
        "revoke",
        &json!({"serial": serial, "authority_key_id": aki, "reason": "superseded"}),
    );
    assert_eq!(
        done["success"],
        json!(true),
        "{done}\n{}",
        lab.server.said()
    );
    let lists = published();
    assert!(lists.revokes(&chain).is_some());
    let list = openssl(&["crl", "-noout", "-text"], lists.to_pem().as_bytes());
    let list = String::from_utf8(list).unwrap();
    assert!(
        list.to_lowercase()
            .contains(&chain.leaf().serial().to_lowercase()),
        "{list}"
    );
}

/// Decimal, as CFSSL has it.
fn u160(hexadecimal: &str) -> String {
    let mut digits = vec![0_u32];
    for character in hexadecimal.replace(':', "").chars() {
        let mut carry = character.to_digit(16).unwrap();
        for digit in &mut digits {
            let sum = *digit * 16 + carry;
            (*digit, carry) = (sum % 10, sum / 10);
        }
        while carry > 0 {
            digits.push(carry % 10);
            carry /= 10;
        }
    }
    digits.iter().rev().map(ToString::to_string).collect()
}

#[test]
fn without_a_database_there_is_no_list() {
    for lab in [Lab::serving(profiles()), Lab::rooting(keyed())] {
        let signer = lab.open("profile: server");
        assert_eq!(run(signer.crl(Authority::Ca)).unwrap(), None);
    }
}

// ---- through the binary ----

#[test]
fn a_slip_of_the_pen_ends_a_run_before_a_key_is_made() {
    let rig = CfsslRig::new();
    let node = node(&rig);
    let settings = rig
        .settings()
        .replace("default: client,", "default: clinet,");
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let ran = Ran::of(&mut node.ask_command("0s"));
    ran.ended(78).says("clinet").says("admin.conf");
    assert_eq!(rig.sent(), Vec::<String>::new());
    nothing_was_issued(&node);
}

#[test]
fn a_wrong_key_ends_a_run_as_not_permitted() {
    let rig = CfsslRig::new();
    let node = node(&rig);
    let key = node.outside("key");
    write_secret(&key, "00");
    let there = rig.dir.path().join("server/nodepki-kubernetes-cp1.key");
    let settings = rig
        .settings()
        .replace(there.to_str().unwrap(), key.to_str().unwrap());
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let ran = Ran::of(&mut node.ask_command("0s"));
    ran.ended(77)
        .says("invalid token")
        .says(key.to_str().unwrap());
    nothing_was_issued(&node);
    fs::copy(there, key).unwrap();
    Ran::of(&mut node.ask_command("0s")).done();
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn a_node_that_trusts_the_root_is_served_by_an_intermediate() {
    let rig = CfsslRig::changed(|dir| intermediate(dir, "ca"));
    let node = node(&rig);
    Ran::of(&mut node.ask_command("0s")).done();
    node.assert_sound(&CertName::KUBEADM);
    let (chain, _) = node.leaf(CertName::AdminConf).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
}

/// `multirootca` does not say why, so that this is no denial to wait for but a refusal.
#[test]
fn names_that_the_server_does_not_allow_end_a_run_as_refused() {
    let rig = CfsslRig::changed(|dir| {
        let file = dir.join("server/etcd_ca.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("cp1", "cp2")).unwrap();
        let key = dir.join("server/nodepki-kubernetes-cp1.key");
        fs::copy(&key, key.with_file_name("nodepki-kubernetes-cp2.key")).unwrap();
    });
    let node = node(&rig);
    let ran = Ran::of(&mut node.ask_command("0s"));
    ran.ended(65).says("etcd-server").says("name_whitelist");
    assert!(node.leaf(CertName::EtcdServer).is_none());
}

fn nothing_was_issued(node: &Node) {
    for name in CertName::KUBEADM {
        assert!(node.leaf(name).is_none(), "{name}");
    }
}

/// Two signers of one server are both looked at, whatever they are called.
#[test]
fn each_signer_of_a_server_is_looked_at() {
    let rig = CfsslRig::new();
    let node = node(&rig);
    let good = rig_signer(rig.dir.path(), &rig.site.url(), &tls(&rig.site));
    let bad = good.replace("default: client,", "default: clinet,");
    fs::write(
        node.outside("config.yaml"),
        format!(
            "{HEAD}authorities: {{ca: {{signer: a}}, etcd-ca: {{signer: a}}, front-proxy-ca: {{signer: b}}}}\n\
             signers:\n  a: {good}\n  b: {bad}\n"
        ),
    )
    .unwrap();
    let ran = Ran::of(&mut node.ask_command("0s"));
    ran.ended(78)
        .says("front-proxy-client")
        .says("clinet")
        .says_not("admin.conf:");
}

// ---- configuration ----

#[test]
fn what_is_wrong_in_the_configuration_is_named() {
    let faults = |keys: &str| {
        let text = format!("{HEAD}signers: {{s: {{cfssl: {keys}}}}}\n");
        let faults = Settings::from_fragments(&[("c.yaml", text)]).unwrap_err();
        faults.to_string()
    };
    for (keys, words) in [
        ("{}", "has no url"),
        (
            "{url: \"https://h/api/v1/cfssl/\"}",
            "end it before /api/v1/cfssl",
        ),
        ("{url: \"https://h\", auth: {}}", "has no keyFile"),
        (
            "{url: \"https://h\", auth: {keyFile: 0123456789abcdef}}",
            "neither an absolute path",
        ),
        (
            "{url: \"https://h\", profile: {apisever: x}}",
            "did you mean apiserver",
        ),
        (
            "{url: \"https://h\", label: \"{role}\"}",
            "unknown placeholder",
        ),
        ("{url: \"https://h\", hosts: []}", "hosts"),
    ] {
        let said = faults(keys);
        assert!(said.contains(words), "{keys}: {said}");
        assert!(!said.contains("0123456789abcdef"), "{said}");
    }
}

//! `cfssl` against real `cfssl serve` and `multirootca`, set up by the output of `config signer-setup cfssl` and in other
//! ways.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodepki::http::{Call, Client, Endpoint, Url};
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::{FailureClass, Request, Signer, SignerKind};
use nodepki::x509::{
    AuthorityCrls, Chain, Csr, KeyAlgorithm, RevocationList, TrustBundle, UsageExtensions,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gateway::{Action, Gateway, Rule};
use crate::log::logged;
use crate::node::{INIT, Node};
use crate::rig::{Denial, Front, Rig, node};
use crate::servers::cfssl::{Cfssl, Site};
use crate::signer_bad::verdict;
use crate::signer_setup::print_setup;
use crate::signing::{
    HEAD, PlainFiles, contains, crl_text, denied, fails, issued, now, open, openssl, rejects,
    request, request_for, run, settings_with_etcd, wanted, write_authorities, write_secret,
    x509_text,
};

const PROFILES: &str =
    "{default: client, apiserver: \"server-{node}\", etcd-server: peer, etcd-peer: peer}";

/// A `multirootca` with three CAs that the printed script has set up.
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

    /// Starts the server after a change to the printed files and to the CAs.
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

/// Runs the script that is printed for these settings in `dir/server` and copies the CAs of `dir` there.
fn set_up(dir: &Path, settings: &str) -> String {
    let ran = print_setup(dir, settings, INIT, &["cfssl"]);
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

fn put_ca(authorities: &Path, authority: Authority, to: &Path, label: &str) {
    let from = authorities.join(authority.base_name());
    for extension in ["crt", "key"] {
        let to = to.join(label).with_extension(extension);
        fs::copy(from.with_extension(extension), to).unwrap();
    }
}

impl Rig for CfsslRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Cfssl
    }

    fn settings(&self) -> String {
        rig_settings(&rig_signer(
            self.dir.path(),
            &self.site.url(),
            &tls(&self.site),
        ))
    }

    fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Denies by a name_whitelist of the profile that does not match the request.
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
                settings_with_etcd(&direct, &rig_signer(&dir, url, tls))
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

/// A server that a test configures, with the three authorities under the labels kubernetes, etcd and front_proxy.
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

    /// Starts a server after a change to its directory.
    fn customised(signing: Value, start: impl FnOnce(&Path, &Site) -> Cfssl) -> Self {
        let (dir, site) = Self::prepared(signing);
        let server = start(dir.path(), &site);
        Lab { dir, site, server }
    }

    /// Starts `cfssl serve` with authority ca.
    fn serving(signing: Value) -> Self {
        Self::serving_with(signing, &[])
    }

    fn serving_with(signing: Value, more: &[&str]) -> Self {
        Self::customised(signing, |_, site| site.serve("kubernetes", more))
    }

    /// Starts `multirootca` with all three.
    fn rooting(signing: Value) -> Self {
        Self::customised(signing, |_, site| site.multirootca())
    }

    /// Returns a configuration with these keys besides address and trust.
    fn settings(&self, more: &str) -> String {
        let tls = if more.contains("tls:") {
            String::new()
        } else {
            format!(", tls: {}", tls(&self.site))
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
        open(&self.settings(more), Authority::Ca, self.dir.path())
    }

    fn through(&self, gateway: &Gateway, more: &str) -> Rc<dyn Signer> {
        let settings = self
            .settings(more)
            .replace(&self.site.url(), &gateway.url())
            .replace(
                self.site.ca_file().to_str().unwrap(),
                gateway.ca_file().to_str().unwrap(),
            );
        open(&settings, Authority::Ca, self.dir.path())
    }

    /// Opens a signer and probes the server, as a run does.
    fn probed(&self, more: &str) -> Rc<dyn Signer> {
        let signer = self.open(more);
        run(signer.probe()).unwrap();
        signer
    }

    /// As [`Lab::probed`], with a key for requests.
    fn keyed(&self, more: &str) -> Rc<dyn Signer> {
        self.probed(&format!("{more}, {}", self.auth()))
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

    /// Sends a POST to the API without a signer.
    fn ask(&self, path: &str, body: &Value) -> Value {
        let mut endpoint = Endpoint::new(Url::parse(&self.site.url()).unwrap());
        endpoint.tls.ca_file = Some(self.site.ca_file());
        let client = Client::new(endpoint, Rc::new(PlainFiles), now).unwrap();
        let call = Call::post(format!("/api/v1/cfssl/{path}")).json(body);
        run(client.send(call)).unwrap().json().unwrap()
    }
}

#[track_caller]
fn refuses(signer: &dyn Signer, name: CertName, parts: &[&str]) {
    rejects(signer, &wanted(name), parts);
}

/// Returns profiles `server`, `client` and `both`, and a default profile without usages, which signs nothing.
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

/// Returns [`profiles`] with a key for requests.
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

// ---- config signer-setup ----

#[test]
fn sets_up_serve_by_signer_setup() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    let site = Site::new(&dir.path().join("server"));
    let settings = rig_settings(&rig_signer(dir.path(), &site.url(), &tls(&site)));
    let printed = set_up(dir.path(), &settings);
    contains(
        &printed,
        &[
            "[front_proxy_ca]",
            "multirootca -a",
            "cfssl serve",
            "\"name_whitelist\": \"^(",
            "-disable newcert",
        ],
    );
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
    let signer = open(&settings, Authority::Ca, dir.path());
    run(signer.probe()).unwrap();
    for name in CertName::KUBEADM {
        if !matches!(name, CertName::Apiserver | CertName::KubeletConf) {
            continue;
        }
        let request = request(name);
        signer.preflight(&request.wanted).unwrap();
        let bytes = issued(run(signer.submit(&request)));
        assert_eq!(verdict(&request, &bytes, dir.path()), "", "{name}");
    }
    // A name that the printed profiles do not allow.
    let mut odd = wanted(CertName::Apiserver);
    odd.profile
        .sans
        .dns
        .push("kubernetes.example.com".to_owned());
    let odd = request_for(odd, UsageExtensions::Requested).0;
    contains(&denied(run(signer.submit(&odd))), &["name_whitelist"]);
    // A second run keeps the key.
    set_up(dir.path(), &settings);
    let again = fs::read_to_string(dir.path().join("server/nodepki-kubernetes-cp1.key")).unwrap();
    assert_eq!(key, again);
    // A run for another node keeps the profiles of the first.
    let file = dir.path().join("server/ca.json");
    let before = fs::read_to_string(&file).unwrap();
    contains(&before, &["\"auth_key\": \"nodepki-kubernetes-cp1\""]);
    fs::write(&file, before.replace("cp1", "cp2")).unwrap();
    set_up(dir.path(), &settings);
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        before.replace("cp1", "cp2")
    );
    let new = file.with_extension("json.new");
    assert_eq!(fs::read_to_string(new).unwrap(), before);
}

#[test]
fn prints_what_a_profile_for_servers_and_clients_needs() {
    let dir = tempfile::tempdir().unwrap();
    let settings = format!(
        "{HEAD}signers: {{s: {{cfssl: {{url: \"https://cfssl.example.com:8888\", profile: kubernetes, \
         tls: {{systemRoots: true, certificate: /a, key: /b}}}}}}}}\n"
    );
    let ran = print_setup(dir.path(), &settings, INIT, &["cfssl"]);
    ran.done()
        .says("allowExtraUsages")
        .says("-mutual-tls-cn '^(cp1)$'")
        .says_not("\"auth_key\"")
        .says_not("multirootca");
}

// ---- sign and authsign ----

#[test]
fn sends_to_sign_without_key_and_to_authsign_with_key() {
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
        // A key `hosts` would replace the names of the CSR, and `subject` its subject.
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
fn removes_every_name_for_empty_hosts_on_the_server() {
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
fn rejects_key_on_one_side_only() {
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
        FailureClass::Config,
        &[
            "cfssl:https",
            "signing apiserver for authority ca",
            "authentication required",
        ],
    );
    let with = lab.keyed("profile: open");
    refuses(
        with.as_ref(),
        CertName::Apiserver,
        &["profile \"open\"", "has no auth_key", "remove `auth`"],
    );
    fails(
        run(with.submit(&request(CertName::Apiserver))),
        FailureClass::Config,
        &["no authentication provider", "has no auth_key"],
    );
    // If all profiles have a key, or none, the path of the other method does not exist.
    let lab = Lab::serving(keyed());
    fails(
        run(lab.open("profile: server").probe()),
        FailureClass::Config,
        &["404", "`sign`", "auth.keyFile"],
    );
    let lab = Lab::serving(profiles());
    fails(
        run(lab
            .open(&format!("profile: server, {}", lab.auth()))
            .probe()),
        FailureClass::Config,
        &["404", "`authsign`", "auth_key"],
    );
    let lab = Lab::rooting(profiles());
    let signer = lab.keyed("profile: server, label: kubernetes");
    refuses(signer.as_ref(), CertName::Apiserver, &["has no auth_key"]);
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        FailureClass::Config,
        &["authorisation required"],
    );
    fails(
        run(lab.open("profile: server, label: kubernetes").probe()),
        FailureClass::Config,
        &["404", "multirootca never has it"],
    );
}

#[test]
fn reports_wrong_key_as_auth_and_rereads_its_file() {
    for lab in [Lab::serving(keyed()), Lab::rooting(keyed())] {
        write_secret(lab.path("key"), "00112233");
        let signer = lab.open(&format!("profile: both, label: kubernetes, {}", lab.auth()));
        let request = request(CertName::EtcdServer);
        for result in [run(signer.probe()), run(signer.submit(&request)).map(drop)] {
            fails(
                result,
                FailureClass::Auth,
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
            assert_eq!(error.class, FailureClass::Config, "{error}");
            assert!(error.to_string().contains(what), "{error}");
            assert!(!error.to_string().contains("KEY"), "{error}");
        }
        fs::remove_file(lab.path("key")).unwrap();
        fails(
            run(signer.probe()),
            FailureClass::Config,
            &["/key", "No such file"],
        );
        write_secret(lab.path("key"), HEX.to_lowercase());
        run(signer.probe()).unwrap();
        issued(run(signer.submit(&request)));
    }
}

#[test]
fn signs_with_previous_key_during_key_change() {
    let lab = Lab::serving(with(
        keyed(),
        "/profiles/server/prev_auth_key",
        json!("old"),
    ));
    write_secret(lab.path("key"), "ABCD");
    let signer = lab.keyed("profile: server");
    lab.signs(signer.as_ref(), &request(CertName::Apiserver));
}

#[test]
fn signs_for_label_that_accepts_key_only() {
    let (dir, site) = Lab::prepared(keyed());
    let other = json!({
        "signing": {"default": {"expiry": "1h", "auth_key": "k"}, "profiles": {"both": {"expiry": "1h", "usages": BOTH, "auth_key": "k"}}},
        "auth_keys": {"k": {"type": "standard", "key": "ff"}},
    });
    fs::write(dir.path().join("server/etcd.json"), other.to_string()).unwrap();
    let server = site.multirootca();
    let lab = Lab { dir, site, server };
    let labels = "label: {default: kubernetes, etcd-server: etcd, etcd-peer: etcd}";
    let signer = lab.keyed(&format!("profile: both, {labels}"));
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
        FailureClass::Auth,
        &["invalid token", "etcd-server", "label \"etcd\""],
    );
}

// ---- profiles ----

#[test]
fn rejects_missing_profile_on_serve() {
    let words = ["profile \"sever\"", "an unknown one", "correct the name"];
    // The server signs with the default profile, which has the usages of a client.
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
    // A misspelt name is rejected even if the default profile has the right usages.
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
    // A profile that equals the default one is rejected; the default one itself is accepted.
    refuses(
        lab.probed("profile: server").as_ref(),
        CertName::Apiserver,
        &["profile \"server\"", "must differ in something"],
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
        FailureClass::Config,
        &[
            "no key usage available",
            "an unknown one is the default profile",
        ],
    );
    // The profile differs from the default one only by its key.
    let lab = Lab::serving(json!({
        "default": {"expiry": "8760h", "usages": SERVER},
        "profiles": {"server": {"expiry": "8760h", "usages": SERVER, "auth_key": "node"}},
    }));
    let signer = lab.keyed("profile: server");
    signer.preflight(&request.wanted).unwrap();
    let signer = lab.keyed("profile: sever");
    refuses(signer.as_ref(), CertName::Apiserver, &words);
}

#[test]
fn rejects_missing_profile_and_label_on_multirootca() {
    // `info` also falls back to the default profile, which has the right usages.
    let mut signing = keyed();
    signing["default"] = json!({"expiry": "8760h", "usages": SERVER, "auth_key": "node"});
    let lab = Lab::rooting(signing);
    let asked = json!({"label": "kubernetes", "profile": "sever"});
    assert_eq!(lab.ask("info", &asked)["result"]["usages"], json!(SERVER));
    let signer = lab.keyed("profile: sever, label: kubernetes");
    let request = request(CertName::Apiserver);
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &["has no profile \"sever\" (label \"kubernetes\")"],
    );
    fails(
        run(signer.submit(&request)),
        FailureClass::Config,
        &["invalid profile"],
    );
    // multirootca confirms that a profile exists, even if it equals the default one.
    let signer = lab.keyed("profile: server, label: kubernetes");
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);

    let signer = lab.keyed("profile: server");
    refuses(
        signer.as_ref(),
        CertName::Apiserver,
        &["no CA with the label \"ca\"", "under `label`"],
    );
    refuses(signer.as_ref(), CertName::EtcdServer, &["\"etcd_ca\""]);
    assert_eq!(run(signer.trust(Authority::Ca)).unwrap(), None);
    fails(
        run(signer.submit(&request)),
        FailureClass::Config,
        &["bad request", "label \"ca\""],
    );
    let signer = lab.probed(&format!(
        "profile: server, label: \"x{{authority}}\", {}",
        lab.auth()
    ));
    refuses(signer.as_ref(), CertName::EtcdServer, &["\"xetcd_ca\""]);
}

#[test]
fn selects_authority_by_label() {
    let lab = Lab::rooting(keyed());
    let etcd = "etcd-server: etcd, etcd-peer: etcd, etcd-healthcheck-client: etcd, apiserver-etcd-client: etcd";
    let signer = lab.keyed(&format!(
        "profile: {{default: client, apiserver: server, etcd-server: both, etcd-peer: both}}, \
         label: {{default: kubernetes, {etcd}, front-proxy-client: front_proxy}}"
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
fn rejects_profile_with_other_usages() {
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
            "gives client auth, which is not requested",
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
    let mut desired = wanted(CertName::Apiserver);
    desired.tolerance.extra_usages = true;
    let message = lab.probed("profile: odd").preflight(&desired).unwrap_err();
    contains(
        &message.to_string(),
        &["gives any", "does not give digital signature", "cert sign"],
    );

    let lab = Lab::serving(odd(json!(["signing", "server auth"])));
    let signer = lab.probed("profile: odd");
    let request = crate::signing::request(CertName::Apiserver);
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);
    let mut rsa = request.wanted.clone();
    rsa.profile.key = KeyAlgorithm::Rsa2048;
    let message = signer.preflight(&rsa).unwrap_err().to_string();
    assert!(message.contains("key encipherment"), "{message}");

    // Without any key usage the certificate is not restricted.
    let lab = Lab::serving(odd(json!(["server auth"])));
    let signer = lab.probed("profile: odd");
    signer.preflight(&request.wanted).unwrap();
    lab.signs(signer.as_ref(), &request);
}

#[test]
fn logs_lifetime_that_profile_changes() {
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
    contains(&log, &["signs it for 1h30m and 8760h is requested"]);
    assert!(!log.contains("longer than its CA"), "{log}");
    let leaf = Chain::from_response(&bytes, request.csr.public_key()).unwrap();
    let leaf = leaf.leaf();
    assert_eq!((leaf.not_after() - leaf.not_before()).whole_minutes(), 90);
    let signer = lab.probed("profile: long");
    let (_, log) = logged(|| issued(run(signer.submit(&request))));
    assert!(log.contains("longer than its CA is valid"), "{log}");
}

// ---- certificates ----

#[test]
fn accepts_subject_in_another_encoding() {
    let lab = Lab::serving(profiles());
    let mut desired = wanted(CertName::KubeletConf);
    desired.profile.subject.organizations = vec!["b".to_owned(), "a".to_owned()];
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
            &format!("/CN={}/O=b/O=a", desired.profile.subject.common_name),
        ],
        b"",
    );
    let identity = request(CertName::KubeletConf).identity;
    let request = Request::new(desired, Csr::from_pem(&csr).unwrap(), identity, now());
    let bytes = lab.signs(lab.probed("profile: client").as_ref(), &request);
    let subject = openssl(
        &["x509", "-noout", "-subject", "-nameopt", "RFC2253"],
        &bytes,
    );
    let subject = String::from_utf8(subject).unwrap();
    // CFSSL returns one RDN with both values before the common name; the CSR had three RDNs.
    assert!(
        ["O=b+O=a", "O=a+O=b"]
            .iter()
            .any(|both| subject.contains(both)),
        "{subject}"
    );
}

#[test]
fn issues_names_of_csr_and_usages_of_profile() {
    let lab = Lab::rooting(keyed());
    let signer = lab.keyed("profile: both, label: etcd");
    let bytes = lab.signs(signer.as_ref(), &request(CertName::EtcdServer));
    let text = x509_text(&bytes);
    contains(
        &text,
        &[
            "DNS:cp1, DNS:localhost, IP Address:192.0.2.11, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1",
            "TLS Web Server Authentication, TLS Web Client Authentication",
            "CA:FALSE",
        ],
    );
}

/// Replaces the CA with this label by an intermediate of `ca.crt`.
fn intermediate(dir: &Path, label: &str) {
    let file = |name: &str| dir.join(name).display().to_string();
    let extensions = dir.join("server/ext");
    let usage = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n";
    fs::write(&extensions, usage).unwrap();
    let (key, csr) = (file(&format!("server/{label}.key")), file("server/csr"));
    let request = format!(
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {key} -out {csr} -subj /CN=issuing"
    );
    let sign = format!(
        "x509 -req -in {csr} -CA {} -CAkey {} -days 400 -extfile {} -out {}",
        file("ca.crt"),
        file("ca.key"),
        extensions.display(),
        file(&format!("server/{label}.crt"))
    );
    for command in [request, sign] {
        openssl(&command.split(' ').collect::<Vec<_>>(), b"");
    }
}

/// The node trusts only the root, so the intermediate must come with the leaf.
#[test]
fn includes_intermediate_in_chain() {
    let (dir, site) = Lab::prepared(profiles());
    intermediate(dir.path(), "kubernetes");
    let root = dir.path().join("ca.crt").display().to_string();
    let server = site.serve("kubernetes", &[]);
    let lab = Lab { dir, site, server };
    let signer = lab.probed("profile: server");
    let request = request(CertName::Apiserver);
    let bytes = lab.signs(signer.as_ref(), &request);
    let chain = Chain::from_response(&bytes, request.csr.public_key()).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
    let file = lab.path("chain");
    fs::write(&file, chain.to_pem()).unwrap();
    let file = file.to_str().unwrap();
    openssl(&["verify", "-CAfile", &root, "-untrusted", file, file], b"");
    // The offered authority is the one that the node trusts.
    let offered = run(signer.trust(Authority::Ca)).unwrap().unwrap();
    let offered = TrustBundle::from_response(&offered).unwrap();
    let trusted = TrustBundle::from_pem(&fs::read(&root).unwrap()).unwrap();
    assert!(trusted.accepts(&offered) && !offered.accepts(&trusted));
    let other = TrustBundle::from_pem(&fs::read(lab.path("etcd/ca.crt")).unwrap()).unwrap();
    assert!(!other.accepts(&offered));
}

// ---- access ----

#[test]
fn reports_missing_or_unaccepted_client_certificate_as_auth() {
    let (dir, site) = Lab::prepared(profiles());
    site.client("cp1", "cp1");
    site.client("other", "cp2");
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
    let anonymous = lab.open("profile: server");
    fails(run(anonymous.probe()), FailureClass::Auth, &["certificate"]);
    fails(
        run(anonymous.submit(&request)),
        FailureClass::Auth,
        &["apiserver"],
    );
    let other = lab.open(&presenting("other"));
    for result in [run(other.probe()), run(other.submit(&request)).map(drop)] {
        fails(
            result,
            FailureClass::Auth,
            &["Invalid CN", "-mutual-tls-cn"],
        );
    }
    // A replaced certificate is used immediately.
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
fn reports_network_that_is_not_allowed_as_auth() {
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
            FailureClass::Auth,
            &["not authorised", "`nets` of section etcd"],
        );
    }
}

// ---- errors ----

#[test]
fn reports_name_whitelist_as_denial_on_serve_only() {
    let signing = with(keyed(), "/profiles/server/name_whitelist", json!("^cp2$"));
    let lab = Lab::serving(signing.clone());
    let signer = lab.keyed("profile: server");
    let request = request(CertName::Apiserver);
    signer.preflight(&request.wanted).unwrap();
    let reason = denied(run(signer.submit(&request)));
    contains(
        &reason,
        &["name_whitelist", "profile \"server\"", "code 5500"],
    );
    let lab = Lab::rooting(signing);
    let signer = lab.keyed("profile: server, label: kubernetes");
    fails(
        run(signer.submit(&request)),
        FailureClass::Permanent,
        &["bad request", "CFSSL's log", "name_whitelist"],
    );
}

#[test]
fn reports_failing_database_and_remote_signer_as_transient() {
    // A database without tables.
    let lab = Lab::customised(profiles(), |_, site| {
        site.database("db", false);
        site.serve("kubernetes", &["-db-config", "db.json"])
    });
    let signer = lab.probed("profile: server");
    let request = request(CertName::Apiserver);
    fails(
        run(signer.submit(&request)),
        FailureClass::Transient,
        &["database", "apiserver"],
    );
    fails(
        run(signer.crl(Authority::Ca)),
        FailureClass::Transient,
        &["revocation list"],
    );
    // A remote CFSSL that is unreachable, and one that is reachable.
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
            fails(
                run(signer.probe()),
                FailureClass::Transient,
                &["remote signer"],
            );
            fails(
                run(signer.submit(&request)),
                FailureClass::Transient,
                &["remote signer"],
            );
            continue;
        }
        run(signer.probe()).unwrap();
        signer.preflight(&request.wanted).unwrap();
        behind.signs(signer.as_ref(), &request);
        // With remote signers `info` rejects unknown profiles.
        let signer = lab.probed("profile: sever");
        refuses(
            signer.as_ref(),
            CertName::Apiserver,
            &["has no profile \"sever\""],
        );
        fails(
            run(signer.submit(&request)),
            FailureClass::Config,
            &["5400"],
        );
    }
}

#[test]
fn reports_unreadable_request_as_permanent() {
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
        FailureClass::Permanent,
        &["9003", "with the owner of CFSSL"],
    );
}

#[test]
fn logs_messages_of_server() {
    let lab = Lab::serving(profiles());
    let gateway = Gateway::to(Some(lab.site.upstream()));
    let add = Action::change_json(|body| {
        body["messages"] = json!([{"code": 5300, "message": "one\u{1b}[2J thing"}]);
    });
    gateway.rule(Rule::on("POST", "/sign$").then(add));
    let signer = lab.through(&gateway, "profile: server");
    let (_, log) = logged(|| lab.signs(signer.as_ref(), &request(CertName::Apiserver)));
    assert!(
        log.contains("WARN") && log.contains("one\\u{1b}[2J thing (code 5300)"),
        "{log}"
    );
}

#[test]
fn probes_without_signing_and_reports_lost_response_as_transient() {
    let lab = Lab::rooting(keyed());
    let gateway = Gateway::to(Some(lab.site.upstream()));
    let keys = format!("profile: both, label: etcd, {}", lab.auth());
    let signer = lab.through(&gateway, &keys);
    run(signer.probe()).unwrap();
    run(signer.trust(Authority::EtcdCa)).unwrap();
    assert_eq!(lab.server.signed(), Vec::<String>::new());
    for path in ["/info", "/authsign?probe"] {
        gateway.only(Rule::on("POST", path).then(Action::DropAfterForward));
        fails(
            run(signer.probe()),
            FailureClass::Transient,
            &["label \"etcd\""],
        );
    }
}

// ---- revocation ----

#[test]
fn publishes_revoked_certificate_if_server_has_database() {
    let lab = Lab::customised(profiles(), |_, site| {
        site.database("db", true);
        site.serve("kubernetes", &["-db-config", "db.json"])
    });
    let signer = lab.probed("profile: server");
    let request = request(CertName::Apiserver);
    let bytes = lab.signs(signer.as_ref(), &request);
    let chain = Chain::from_response(&bytes, request.csr.public_key()).unwrap();
    let trust = TrustBundle::from_pem(&fs::read(lab.path("ca.crt")).unwrap()).unwrap();
    let published = || {
        let bytes = run(signer.crl(Authority::Ca)).unwrap().unwrap();
        AuthorityCrls::verified(RevocationList::read_all(&bytes).unwrap(), &trust, &[]).unwrap()
    };
    assert!(published().revokes(&chain).is_none());
    let text = x509_text(&bytes);
    let (_, aki) = text.split_once("Authority Key Identifier: \n").unwrap();
    let aki = aki.lines().next().unwrap().trim().replace(':', "");
    let done = lab.ask(
        "revoke",
        &json!({"serial": u160(chain.leaf().serial()), "authority_key_id": aki.to_lowercase(), "reason": "superseded"}),
    );
    let log = lab.server.said();
    assert_eq!(done["success"], json!(true), "{done}\n{log}");
    let lists = published();
    assert!(lists.revokes(&chain).is_some());
    let text = crl_text(lists.to_pem().as_bytes()).to_lowercase();
    contains(&text, &[&chain.leaf().serial().to_lowercase()]);
}

/// Converts a serial number to decimal, the form that CFSSL uses.
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
fn offers_no_crl_without_database() {
    for lab in [Lab::serving(profiles()), Lab::rooting(keyed())] {
        let signer = lab.open("profile: server");
        assert_eq!(run(signer.crl(Authority::Ca)).unwrap(), None);
    }
}

// ---- whole runs ----

#[test]
fn rejects_misspelt_profile_before_making_key() {
    let rig = CfsslRig::new();
    let node = node(&rig);
    let settings = rig
        .settings()
        .replace("default: client,", "default: clinet,");
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let ran = node.ask();
    ran.ended(78).says("clinet").says("admin.conf");
    assert_eq!(rig.sent(), Vec::<String>::new());
    assert_nothing_issued(&node);
}

#[test]
fn exits_with_77_for_wrong_key() {
    let rig = CfsslRig::new();
    let node = node(&rig);
    let key = node.outside("key");
    write_secret(&key, "00");
    let there = rig.dir.path().join("server/nodepki-kubernetes-cp1.key");
    let settings = rig
        .settings()
        .replace(there.to_str().unwrap(), key.to_str().unwrap());
    fs::write(node.outside("config.yaml"), settings).unwrap();
    let ran = node.ask();
    ran.ended(77)
        .says("invalid token")
        .says(key.to_str().unwrap());
    assert_nothing_issued(&node);
    fs::copy(there, key).unwrap();
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
}

#[test]
fn bootstraps_node_that_trusts_root_with_intermediate() {
    let rig = CfsslRig::changed(|dir| intermediate(dir, "ca"));
    let node = node(&rig);
    node.ask().done();
    node.assert_sound(&CertName::KUBEADM);
    let (chain, _) = node.leaf(CertName::AdminConf).unwrap();
    assert_eq!(chain.intermediates().len(), 1);
}

/// `multirootca` gives no reason, so this counts as a refusal, not as a denial.
#[test]
fn exits_with_65_for_names_that_are_not_allowed() {
    let rig = CfsslRig::changed(|dir| {
        let file = dir.join("server/etcd_ca.json");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("cp1", "cp2")).unwrap();
        let key = dir.join("server/nodepki-kubernetes-cp1.key");
        fs::copy(&key, key.with_file_name("nodepki-kubernetes-cp2.key")).unwrap();
    });
    let node = node(&rig);
    let ran = node.ask();
    ran.ended(65).says("etcd-server").says("name_whitelist");
    assert!(node.leaf(CertName::EtcdServer).is_none());
}

fn assert_nothing_issued(node: &Node) {
    for name in CertName::KUBEADM {
        assert!(node.leaf(name).is_none(), "{name}");
    }
}

#[test]
fn probes_each_signer_of_a_server() {
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
    let ran = node.ask();
    ran.ended(78)
        .says("front-proxy-client")
        .says("clinet")
        .says_not("admin.conf:");
}

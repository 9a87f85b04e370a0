//! What nodepki makes of the configuration of each golden case, beside what kubeadm made of it.
//!
//! A new folder below `tests/golden/init` or `tests/golden/csr` is compared without a line here. Where the two
//! are meant to differ, a row of `INIT`, `CSR` or `VERDICTS` says so and why; a row that does not occur fails too.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::golden::{Case, Difference, assert_same};
use crate::machine::{Authorities, Machine, stderr, succeeded};
use crate::openssl::{Tree, facts_of_csr, facts_of_tree, public_key_of_key};

/// A case, or `*` for every one of the group that is compared, and what differs there.
type Named = (&'static str, Difference);

const fn differs(
    case: &'static str,
    file: &'static str,
    fact: &'static str,
    why: &'static str,
) -> Named {
    (case, Difference { file, fact, why })
}

/// Beside `kubeadm init phase certs all` and `kubeconfig all`. Extensions are named: see `by_name`.
const INIT: &[Named] = &[
    differs("*", "pki/*ca.key", "", "no CA private key is on the node"),
    differs("*", "pki/*ca.crt", "pem[0].seconds", GIVEN),
    differs(
        "*",
        "pki/*.crt",
        "pem[0].extensions.subjectKeyIdentifier",
        SKI,
    ),
    differs("*", "pki/*.crt", "pem[0].order", ORDER),
    differs("*", "*.conf", EMBEDDED_SKI, SKI),
    differs("*", "*.conf", EMBEDDED_ORDER, ORDER),
    differs("init/v1beta4-ds-v6first", "*admin.conf", SERVER, CANONICAL),
    differs("init/umask-077", "pki/", "mode", UMASK),
    differs("init/umask-077", "pki/etcd/", "mode", UMASK),
    differs("init/umask-077", "pki/*.crt", "mode", UMASK),
];

/// Beside `kubeadm certs generate-csr`: the requests of `csr export`, and what `bootstrap` then makes of the same
/// keys, without the certificates that nobody has signed for kubeadm yet.
const CSR: &[Named] = &[
    differs(
        "*",
        "*.csr",
        "mode",
        "a request holds no secret and is carried away by other hands",
    ),
    differs("*", "*.csr", "pem[0].extensions.keyUsage", USAGES),
    differs("*", "*.csr", "pem[0].extensions.extendedKeyUsage", USAGES),
    differs(
        "*",
        "pki/sa.*",
        "",
        "generate-csr makes no service-account pair, and kube-apiserver does not start without",
    ),
    differs("csr/umask-077", "pki/", "mode", UMASK),
    differs("csr/umask-077", "pki/etcd/", "mode", UMASK),
    differs(
        "csr/v1beta4-cpe-dns-port",
        "kubelet.conf",
        SERVER,
        LOCAL_KUBELET,
    ),
    differs("csr/v1beta4-cpe-ip", "kubelet.conf", SERVER, LOCAL_KUBELET),
    differs("csr/v1beta4-external-etcd", "pki/etcd/*", "", UNUSED_ETCD),
    differs(
        "csr/v1beta4-external-etcd",
        "pki/apiserver-etcd-client.*",
        "",
        UNUSED_ETCD,
    ),
    differs(
        "csr/v1beta4-nokubeversion",
        "pki/apiserver-kubelet-client.csr",
        "pem[0].subject",
        "kubeadm takes its own version; here it is unknown, and O=kubeadm:cluster-admins works with every kubeadm from 1.29 on",
    ),
];

const EMBEDDED_SKI: &str =
    "kubeconfig.users[0].user.client-certificate-data[0].extensions.subjectKeyIdentifier";
const EMBEDDED_ORDER: &str = "kubeconfig.users[0].user.client-certificate-data[0].order";
const SERVER: &str = "kubeconfig.clusters[0].cluster.server";

const GIVEN: &str = "an authority is given and not made: these are OpenSSL's, for whole days";
const SKI: &str =
    "RFC 5280 4.2.1.2 wants a key identifier in leaves too, and the local signer adds it";
const ORDER: &str = "the order of extensions has no meaning; rcgen has its own";
const USAGES: &str =
    "the request says what it is for, so that a signer need not guess from a file name";
const CANONICAL: &str = "kubeadm writes the address of controlPlaneEndpoint as it was typed, here it has its one form (RFC 5952)";
const UMASK: &str = "modes are nodepki's own: kube-apiserver may run as another user, whatever umask cloud-init has";
const LOCAL_KUBELET: &str =
    "generate-csr still writes the shared endpoint; kubeadm init and join write the local one";
const UNUSED_ETCD: &str =
    "generate-csr makes the files of a stacked etcd also when nobody reads them";

/// Where the two do not agree on whether a configuration can be used, or kubeadm's refusal names no field.
struct Verdict {
    case: &'static str,
    /// Exit status here.
    code: i32,
    /// What stderr must hold.
    said: &'static str,
    why: &'static str,
}

const VERDICTS: &[Verdict] = &[
    Verdict {
        case: "csr/v1beta2",
        code: 78,
        said: "kubeadm.k8s.io/v1beta2 (kind InitConfiguration)",
        why: "the version of a document is no field",
    },
    Verdict {
        case: "csr/v1beta4-join-only",
        code: 78,
        said: "no ClusterConfiguration says what is in its certificates",
        why: "a document is missing, not a field",
    },
    Verdict {
        case: "csr/v1beta4-cpe-upper",
        code: 0,
        said: "controlPlaneEndpoint: \"API.Prod.example.com\" is read as \"api.prod.example.com\"",
        why: "DNS names have no case; certificates get the small letters",
    },
    Verdict {
        case: "csr/v1beta4-adv-any",
        code: 78,
        said: "localAPIEndpoint.advertiseAddress",
        why: "0.0.0.0 asks for the address of the default route, and with --root this host's routes are not those of the node",
    },
    Verdict {
        case: "csr/v1beta4-join-cluster",
        code: 78,
        said: "controlPlaneEndpoint",
        why: "kubeadm ignores the JoinConfiguration and writes the host's name; here it counts, and joining needs the endpoint",
    },
];

#[test]
fn bootstrap_makes_what_kubeadm_init_makes() {
    let rsa = Authorities::new("RSA-2048");
    let ecdsa = Authorities::new("ECDSA-P256");
    let cases = Case::group("init");
    assert_cases_exist(&cases, INIT, &[]);
    each(&cases, |case| {
        let kubeadm = case.files();
        let signs_as_rsa = kubeadm["pki/ca.crt"]["pem"][0]["key"] != "ECDSA-P256";
        let authorities = if signs_as_rsa { &rsa } else { &ecdsa };
        let machine = Machine::new();
        succeeded(bootstrap(&machine, case, authorities));
        assert_same(
            &case.name,
            &by_name(kubeadm),
            &by_name(facts_of_tree(&machine.etc_kubernetes())),
            &named(INIT, case),
        );
        for authority in ["ca", "front-proxy-ca", "etcd/ca"] {
            let file = format!("{authority}.crt");
            let installed = std::fs::read(machine.pki(&file)).ok();
            let given = std::fs::read(authorities.dir().join(&file)).unwrap();
            assert!(
                installed.is_none_or(|installed| installed == given),
                "{file}"
            );
        }
    });
}

#[test]
fn csr_export_asks_for_what_kubeadm_asks_for() {
    let authorities = Authorities::new("ECDSA-P256");
    let usages = by_name(Case::load("init/v1beta4-stacked").files());
    let cases = Case::group("csr");
    assert_cases_exist(&cases, CSR, VERDICTS);
    each(&cases, |case| {
        let machine = Machine::new();
        let requests = machine.root().join("requests");
        let exported = export(&machine, case, &requests);
        let verdict = VERDICTS.iter().find(|verdict| verdict.case == case.name);
        if verdict.is_some() || !case.succeeds() {
            let field = || field_of(&case.expected["stderr"]);
            let (code, said) =
                verdict.map_or_else(|| (78, field()), |v| (v.code, v.said.to_owned()));
            let why = verdict.map_or("kubeadm refuses it", |verdict| verdict.why);
            let words = stderr(&exported);
            assert_eq!(exported.status.code(), Some(code), "{why}: {words}");
            assert!(words.contains(&said), "{said} ({why}) is not in: {words}");
            assert_eq!(requests.exists(), code == 0, "{why}");
            assert!(!machine.etc_kubernetes().exists());
            return;
        }
        succeeded(exported);
        let asked = csrs(&requests);
        for (file, facts) in &asked {
            let extensions = &facts["pem"][0]["extensions"];
            let made = wanted_extensions(&usages, file);
            for extension in ["keyUsage", "extendedKeyUsage"] {
                assert_eq!(
                    extensions[extension], made[extension],
                    "{file}: {extension}"
                );
            }
        }

        // The same keys, on their way to certificates.
        succeeded(bootstrap(&machine, case, &authorities));
        for file in asked.keys().filter(|file| file.starts_with("pki/")) {
            let key = machine.etc_kubernetes().join(file.replace(".csr", ".key"));
            let key = public_key_of_key(&std::fs::read_to_string(key).unwrap());
            assert_eq!(facts_of_csr(&requests.join(file)).public_key, key, "{file}");
        }
        let mut ours = unsigned(facts_of_tree(&machine.etc_kubernetes()));
        ours.extend(asked);
        assert_same(&case.name, &by_name(case.files()), &ours, &named(CSR, case));
    });
}

#[test]
fn capitals_in_the_endpoint_become_small_letters_everywhere() {
    let machine = Machine::new();
    let case = Case::load("csr/v1beta4-cpe-upper");
    succeeded(bootstrap(&machine, &case, &Authorities::new("ECDSA-P256")));
    let tree = facts_of_tree(&machine.etc_kubernetes());
    let server = &tree["admin.conf"]["kubeconfig"]["clusters"][0]["cluster"]["server"];
    assert_eq!(server, "https://api.prod.example.com:8443");
    let apiserver = by_name(tree)["pki/apiserver.crt"].to_string();
    assert!(
        apiserver.contains("DNS:api.prod.example.com,"),
        "{apiserver}"
    );
    assert!(!apiserver.contains("API"), "{apiserver}");
}

/// `kubeadm certs generate-csr` would write the name and address of the host it runs on.
#[test]
fn a_joiner_asks_for_its_own_name_and_address() {
    let machine = Machine::new();
    let mut case = Case::load("csr/v1beta4-join-cluster");
    case.config
        .push_str("controlPlaneEndpoint: api.prod.example.com:8443\n");
    let requests = machine.root().join("requests");
    // A joiner is given the pair; it never makes one.
    let refused = export(&machine, &case, &requests);
    assert_eq!(refused.status.code(), Some(65));
    assert!(
        stderr(&refused).contains("sa.key is absent and this node belongs to a cluster"),
        "{}",
        stderr(&refused)
    );
    let key = machine.write("etc/kubernetes/pki/sa.key", "");
    crate::machine::make_key(&key, "ECDSA-P256");
    succeeded(export(&machine, &case, &requests));
    let asked = csrs(&requests);
    let sans = |file: &str| asked[file]["pem"][0]["extensions"]["subjectAltName"].clone();
    assert_eq!(
        sans("pki/apiserver.csr"),
        "DNS:api.prod.example.com, DNS:cp2, DNS:kubernetes, DNS:kubernetes.default, DNS:kubernetes.default.svc, DNS:kubernetes.default.svc.cluster.local, IP:10.96.0.1, IP:192.0.2.12"
    );
    assert_eq!(
        sans("pki/etcd/peer.csr"),
        "DNS:cp2, DNS:localhost, IP:192.0.2.12, IP:127.0.0.1, IP:::1"
    );
    assert!(
        !asked.contains_key("super-admin.conf.csr"),
        "only the first node has it"
    );
    assert!(asked.contains_key("kubelet.conf.csr"));
}

fn bootstrap(machine: &Machine, case: &Case, authorities: &Authorities) -> Output {
    let config = machine.write("kubeadm.yaml", &case.config);
    let arguments = [
        "bootstrap",
        "--kubeadm-config",
        config.to_str().unwrap(),
        "--signer",
        &authorities.signer(),
    ];
    machine.nodepki_with_umask(case.umask(), &arguments)
}

fn export(machine: &Machine, case: &Case, to: &Path) -> Output {
    let config = machine.write("kubeadm.yaml", &case.config);
    let [config, to] = [&config, to].map(|path| path.to_str().unwrap());
    let arguments = ["csr", "export", to, "--kubeadm-config", config];
    machine.nodepki_with_umask(case.umask(), &arguments)
}

/// The requests of an export, by kubeadm's names for them.
fn csrs(exported: &Path) -> Tree {
    let tree = facts_of_tree(exported).into_iter();
    by_name(tree.filter(|(file, _)| file.ends_with(".csr")).collect())
}

/// What is there before anybody has signed.
fn unsigned(tree: Tree) -> Tree {
    let is_certificate = |file: &str| file.ends_with(".crt");
    let mut tree: Tree = tree
        .into_iter()
        .filter(|(file, _)| !is_certificate(file))
        .collect();
    for facts in tree.values_mut() {
        if let Some(kubeconfig) = facts.get_mut("kubeconfig") {
            let remove = |value: &mut Value, name| value.as_object_mut().unwrap().remove(name);
            remove(
                &mut kubeconfig["clusters"][0]["cluster"],
                "certificate-authority-data",
            );
            remove(
                &mut kubeconfig["users"][0]["user"],
                "client-certificate-data",
            );
        }
    }
    tree
}

/// The extensions of the certificate that kubeadm would make in place of a request.
fn wanted_extensions(made: &Tree, csr: &str) -> Value {
    let certificate = match csr.strip_suffix(".csr").unwrap() {
        conf if conf.ends_with(".conf") => {
            made[conf]["kubeconfig"]["users"][0]["user"]["client-certificate-data"][0].clone()
        }
        pair => made[&format!("{pair}.crt")]["pem"][0].clone(),
    };
    certificate["extensions"].clone()
}

/// Each list of extensions as an object by name, so that a difference in one can be named; their order in a
/// certificate is `order`.
fn by_name(tree: Tree) -> Tree {
    tree.into_iter()
        .map(|(file, facts)| (file, named_extensions(facts)))
        .collect()
}

fn named_extensions(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(named_extensions).collect(),
        Value::Object(fields) => {
            let mut named = Map::new();
            for (name, value) in fields {
                if name != "extensions" {
                    named.insert(name, named_extensions(value));
                    continue;
                }
                let lines = value
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|line| line.as_str().unwrap());
                let split = lines.map(|line| line.split_once(": ").unwrap_or((line, "")));
                let (mut order, mut extensions) = (Vec::new(), Map::new());
                for (extension, value) in split {
                    let (extension, critical) = match extension.strip_suffix(" critical") {
                        Some(extension) => (extension, "critical "),
                        None => (extension, ""),
                    };
                    order.push(extension.to_owned());
                    extensions.insert(extension.to_owned(), json!(format!("{critical}{value}")));
                }
                named.insert("extensions".into(), Value::Object(extensions));
                if named["type"] == "CERTIFICATE" {
                    named.insert("order".into(), json!(order));
                }
            }
            Value::Object(named)
        }
        other => other,
    }
}

/// `apiServer.certSANs` of `error: [apiServer.certSANs: Invalid value: …`.
fn field_of(said: &Value) -> String {
    let lines = said
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap());
    let error = lines
        .filter_map(|line| line.strip_prefix("error: "))
        .next()
        .unwrap();
    let (field, _) = error.split_once(": Invalid value").unwrap_or_else(|| {
        panic!("kubeadm names no field: add a row to VERDICTS with what is to be said: {error}")
    });
    field.trim_start_matches('[').to_owned()
}

fn named(list: &[Named], case: &Case) -> Vec<Difference> {
    let applies = list
        .iter()
        .filter(|(name, _)| *name == "*" || *name == case.name);
    applies.map(|(_, difference)| *difference).collect()
}

/// Rows about folders that are gone would be believed for ever.
fn assert_cases_exist(cases: &[Case], differences: &[Named], verdicts: &[Verdict]) {
    let cases: BTreeSet<_> = cases
        .iter()
        .map(|case| case.name.as_str())
        .chain(["*"])
        .collect();
    let rows = differences.iter().map(|(case, _)| *case);
    for row in rows.chain(verdicts.iter().map(|verdict| verdict.case)) {
        assert!(cases.contains(row), "there is no case {row} any more");
    }
}

/// Runs every case on all cores, and tells all failures together.
fn each(cases: &[Case], run: impl Fn(&Case) + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(case))) {
                        let line = format!("{}: {}", case.name, message(&*panic));
                        failures.lock().unwrap().push(line);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied())
        .unwrap_or("a panic without words")
}

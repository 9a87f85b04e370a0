//! Compares the files that nodepki writes for each golden configuration with those that kubeadm wrote.
//!
//! A new folder below `tests/golden/init` or `tests/golden/csr` is compared without a change here. An intended
//! difference is a row of `INIT_DIFFERENCES`, `CSR_DIFFERENCES` or `VERDICTS` with its reason; a row that matches
//! nothing fails the test.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Output;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use crate::golden::{Case, Difference, assert_same, sample};
use crate::machine::{Authorities, Machine, stderr, succeeded};
use crate::openssl::{Tree, facts_of_csr, facts_of_tree, public_key_of_key};

/// A case, or `*` for all compared cases of the group, and the difference expected there.
type CaseDifference = (&'static str, Difference);

const fn difference(
    case: &'static str,
    file: &'static str,
    fact: &'static str,
    why: &'static str,
) -> CaseDifference {
    (case, Difference { file, fact, why })
}

/// Differences from `kubeadm init phase certs all` and `kubeconfig all`. Extensions are addressed by name: see
/// `with_extensions_by_name`.
const INIT_DIFFERENCES: &[CaseDifference] = &[
    difference("*", "pki/*ca.key", "", "no CA private key is on the node"),
    difference("*", "pki/*ca.crt", "pem[0].seconds", GIVEN_AUTHORITIES),
    difference(
        "*",
        "pki/*.crt",
        "pem[0].extensions.subjectKeyIdentifier",
        KEY_IDENTIFIER,
    ),
    difference("*", "pki/*.crt", "pem[0].order", EXTENSION_ORDER),
    difference("*", "*.conf", EMBEDDED_KEY_IDENTIFIER, KEY_IDENTIFIER),
    difference("*", "*.conf", EMBEDDED_EXTENSION_ORDER, EXTENSION_ORDER),
    difference(
        "init/v1beta4-ds-v6first",
        "*admin.conf",
        SERVER_FIELD,
        CANONICAL_ADDRESS,
    ),
    difference("init/umask-077", "pki/", "mode", FIXED_MODES),
    difference("init/umask-077", "pki/etcd/", "mode", FIXED_MODES),
    difference("init/umask-077", "pki/*.crt", "mode", FIXED_MODES),
];

/// Differences from `kubeadm certs generate-csr`: the requests of `csr export`, and the files that `bootstrap` writes
/// with the same keys, without the certificates, which generate-csr does not have yet.
const CSR_DIFFERENCES: &[CaseDifference] = &[
    difference(
        "*",
        "*.csr",
        "mode",
        "a request contains no secret and is copied to the signer by other users",
    ),
    difference("*", "*.csr", "pem[0].extensions.keyUsage", REQUESTED_USAGES),
    difference(
        "*",
        "*.csr",
        "pem[0].extensions.extendedKeyUsage",
        REQUESTED_USAGES,
    ),
    difference(
        "*",
        "pki/sa.*",
        "",
        "generate-csr creates no service-account pair, and kube-apiserver does not start without it",
    ),
    difference("csr/umask-077", "pki/", "mode", FIXED_MODES),
    difference("csr/umask-077", "pki/etcd/", "mode", FIXED_MODES),
    difference(
        "csr/v1beta4-cpe-dns-port",
        "kubelet.conf",
        SERVER_FIELD,
        LOCAL_KUBELET_ENDPOINT,
    ),
    difference(
        "csr/v1beta4-cpe-ip",
        "kubelet.conf",
        SERVER_FIELD,
        LOCAL_KUBELET_ENDPOINT,
    ),
    difference("csr/v1beta4-external-etcd", "pki/etcd/*", "", EXTERNAL_ETCD),
    difference(
        "csr/v1beta4-external-etcd",
        "pki/apiserver-etcd-client.*",
        "",
        EXTERNAL_ETCD,
    ),
    difference(
        "csr/v1beta4-nokubeversion",
        "pki/apiserver-kubelet-client.csr",
        "pem[0].subject",
        "kubeadm uses its own version; nodepki does not know one, and O=kubeadm:cluster-admins works with every kubeadm since 1.29",
    ),
];

const EMBEDDED_KEY_IDENTIFIER: &str =
    "kubeconfig.users[0].user.client-certificate-data[0].extensions.subjectKeyIdentifier";
const EMBEDDED_EXTENSION_ORDER: &str = "kubeconfig.users[0].user.client-certificate-data[0].order";
const SERVER_FIELD: &str = "kubeconfig.clusters[0].cluster.server";

const GIVEN_AUTHORITIES: &str =
    "the authorities are inputs: OpenSSL created them, with a lifetime in whole days";
const KEY_IDENTIFIER: &str =
    "RFC 5280 4.2.1.2 recommends a key identifier in leaves too, and the local signer adds it";
const EXTENSION_ORDER: &str = "the order of extensions has no meaning; rcgen uses its own";
const REQUESTED_USAGES: &str = "the request contains its usages, so that a signer does not have to infer them from a file name";
const CANONICAL_ADDRESS: &str = "kubeadm copies the address of controlPlaneEndpoint, nodepki writes its canonical form (RFC 5952)";
const FIXED_MODES: &str =
    "nodepki sets the modes: kube-apiserver may run as another user, whatever umask cloud-init has";
const LOCAL_KUBELET_ENDPOINT: &str =
    "generate-csr still writes the shared endpoint; kubeadm init and join write the local one";
const EXTERNAL_ETCD: &str =
    "generate-csr creates the files of a stacked etcd even if no component reads them";

/// A configuration that only one of the two accepts, or that kubeadm refuses without naming a field.
struct Verdict {
    case: &'static str,
    /// Exit status of nodepki.
    code: i32,
    /// Text that stderr must contain.
    said: &'static str,
    why: &'static str,
}

const OLD_API: &str = "kubeadm.k8s.io/v1beta3 (kind ClusterConfiguration) is deprecated, and kubeadm 1.37 and later refuse it";
const LAST_WITH_V1BETA3: &str = "kubeadm 1.36 and older read it, and may be on the node";

const VERDICTS: &[Verdict] = &[
    Verdict {
        case: "csr/v1beta2",
        code: 78,
        said: "kubeadm.k8s.io/v1beta2 (kind InitConfiguration)",
        why: "the version of a document is not a field",
    },
    Verdict {
        case: "csr/v1beta3-stacked",
        code: 0,
        said: OLD_API,
        why: LAST_WITH_V1BETA3,
    },
    Verdict {
        case: "csr/mixed-versions",
        code: 0,
        said: OLD_API,
        why: LAST_WITH_V1BETA3,
    },
    Verdict {
        case: "csr/v1beta4-join-only",
        code: 78,
        said: "the ClusterConfiguration that defines its certificates is missing",
        why: "a document is missing, not a field",
    },
    Verdict {
        case: "csr/v1beta4-cpe-upper",
        code: 0,
        said: "controlPlaneEndpoint: \"API.Prod.example.com\" is read as \"api.prod.example.com\"",
        why: "DNS names are case-insensitive; certificates contain lower case",
    },
    Verdict {
        case: "csr/v1beta4-adv-any",
        code: 78,
        said: "localAPIEndpoint.advertiseAddress",
        why: "0.0.0.0 means the address of the default route, and with --root the routes of this host are not those of the node",
    },
    Verdict {
        case: "csr/v1beta4-join-cluster",
        code: 78,
        said: "controlPlaneEndpoint",
        why: "kubeadm ignores the JoinConfiguration and writes the host's name; nodepki reads it, and joining requires the endpoint",
    },
];

#[test]
fn writes_the_files_of_kubeadm_init() {
    let rsa = Authorities::new("RSA-2048");
    let ecdsa = Authorities::new("ECDSA-P256");
    let mut cases = Case::group("init");
    assert_cases_exist(&cases, INIT_DIFFERENCES, &[]);
    // kubeadm 1.36, the last one that reads v1beta3, writes the same files for it.
    let stacked = Case::load("init/v1beta4-stacked");
    cases.push(Case {
        name: "init/v1beta3-stacked".to_owned(),
        config: stacked.config.replace("v1beta4", "v1beta3"),
        ..stacked
    });
    run_in_parallel(&sample(1, cases), |case| {
        let kubeadm = case.files();
        let signs_as_rsa = kubeadm["pki/ca.crt"]["pem"][0]["key"] != "ECDSA-P256";
        let authorities = if signs_as_rsa { &rsa } else { &ecdsa };
        let machine = Machine::new();
        succeeded(bootstrap(&machine, case, authorities));
        assert_same(
            &case.name,
            &without_encipherment_of_ec_keys(with_extensions_by_name(kubeadm)),
            &with_extensions_by_name(facts_of_tree(&machine.etc_kubernetes())),
            &differences_of(INIT_DIFFERENCES, case),
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
fn exports_the_requests_of_kubeadm_generate_csr() {
    let authorities = Authorities::new("ECDSA-P256");
    let rsa_usages = with_extensions_by_name(Case::load("init/v1beta4-stacked").files());
    let ec_usages = without_encipherment_of_ec_keys(with_extensions_by_name(
        Case::load("init/v1beta4-alg-ECDSA-P256").files(),
    ));
    let cases = Case::group("csr");
    assert_cases_exist(&cases, CSR_DIFFERENCES, VERDICTS);
    run_in_parallel(&sample(2, cases), |case| {
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
        let requested = csrs(&requests);
        for (file, facts) in &requested {
            let extensions = &facts["pem"][0]["extensions"];
            let has_rsa_key = facts["pem"][0]["key"].as_str().unwrap().starts_with("RSA");
            let usages = if has_rsa_key { &rsa_usages } else { &ec_usages };
            let made = wanted_extensions(usages, file);
            for extension in ["keyUsage", "extendedKeyUsage"] {
                assert_eq!(
                    extensions[extension], made[extension],
                    "{file}: {extension}"
                );
            }
        }

        // `bootstrap` continues with the same keys.
        succeeded(bootstrap(&machine, case, &authorities));
        for file in requested.keys().filter(|file| file.starts_with("pki/")) {
            let key = machine.etc_kubernetes().join(file.replace(".csr", ".key"));
            let key = public_key_of_key(&std::fs::read_to_string(key).unwrap());
            assert_eq!(facts_of_csr(&requests.join(file)).public_key, key, "{file}");
        }
        let mut ours = without_certificates(facts_of_tree(&machine.etc_kubernetes()));
        ours.extend(requested);
        assert_same(
            &case.name,
            &with_extensions_by_name(case.files()),
            &ours,
            &differences_of(CSR_DIFFERENCES, case),
        );
    });
}

#[test]
fn writes_endpoint_in_lower_case_everywhere() {
    let machine = Machine::new();
    let case = Case::load("csr/v1beta4-cpe-upper");
    succeeded(bootstrap(&machine, &case, &Authorities::new("ECDSA-P256")));
    let tree = facts_of_tree(&machine.etc_kubernetes());
    let server = &tree["admin.conf"]["kubeconfig"]["clusters"][0]["cluster"]["server"];
    assert_eq!(server, "https://api.prod.example.com:8443");
    let apiserver = with_extensions_by_name(tree)["pki/apiserver.crt"].to_string();
    assert!(
        apiserver.contains("DNS:api.prod.example.com,"),
        "{apiserver}"
    );
    assert!(!apiserver.contains("API"), "{apiserver}");
}

/// `kubeadm certs generate-csr` would write the name and address of the host on which it runs.
#[test]
fn exports_requests_for_the_name_and_address_of_a_joining_node() {
    let machine = Machine::new();
    let mut case = Case::load("csr/v1beta4-join-cluster");
    case.config
        .push_str("controlPlaneEndpoint: api.prod.example.com:8443\n");
    let requests = machine.root().join("requests");
    // A joining node receives the service-account pair and never creates it.
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
    let requested = csrs(&requests);
    let sans = |file: &str| requested[file]["pem"][0]["extensions"]["subjectAltName"].clone();
    assert_eq!(
        sans("pki/apiserver.csr"),
        "DNS:api.prod.example.com, DNS:cp2, DNS:kubernetes, DNS:kubernetes.default, DNS:kubernetes.default.svc, DNS:kubernetes.default.svc.cluster.local, IP:10.96.0.1, IP:192.0.2.12"
    );
    assert_eq!(
        sans("pki/etcd/peer.csr"),
        "DNS:cp2, DNS:localhost, IP:192.0.2.12, IP:127.0.0.1, IP:::1"
    );
    assert!(
        !requested.contains_key("super-admin.conf.csr"),
        "only the first node has super-admin.conf"
    );
    assert!(requested.contains_key("kubelet.conf.csr"));
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

/// Returns the requests of an export, by kubeadm's file names.
fn csrs(exported: &Path) -> Tree {
    let tree = facts_of_tree(exported).into_iter();
    with_extensions_by_name(tree.filter(|(file, _)| file.ends_with(".csr")).collect())
}

/// Returns the tree without its certificates.
fn without_certificates(tree: Tree) -> Tree {
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

/// Returns the extensions of the certificate that kubeadm would create for a request.
fn wanted_extensions(made: &Tree, csr: &str) -> Value {
    let certificate = match csr.strip_suffix(".csr").unwrap() {
        conf if conf.ends_with(".conf") => {
            made[conf]["kubeconfig"]["users"][0]["user"]["client-certificate-data"][0].clone()
        }
        pair => made[&format!("{pair}.crt")]["pem"][0].clone(),
    };
    certificate["extensions"].clone()
}

/// Removes key encipherment, which kubeadm sets for keys of any type, from the leaf certificates with an EC key: RFC 8813
/// forbids it, and nodepki does not request it.
fn without_encipherment_of_ec_keys(tree: Tree) -> Tree {
    fn correct(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(correct),
            Value::Object(fields) => {
                let is_ec = fields
                    .get("key")
                    .and_then(Value::as_str)
                    .is_some_and(|key| key.starts_with("ECDSA"));
                if let Some(usage) = fields.get_mut("extensions").filter(|_| is_ec)
                    && usage["keyUsage"] == "critical digitalSignature, keyEncipherment"
                {
                    usage["keyUsage"] = json!("critical digitalSignature");
                }
                fields.values_mut().for_each(correct);
            }
            _ => {}
        }
    }
    tree.into_iter()
        .map(|(file, mut facts)| {
            correct(&mut facts);
            (file, facts)
        })
        .collect()
}

/// Converts each list of extensions to an object by name, so a difference in one can be named; the order of the
/// list becomes `order`.
fn with_extensions_by_name(tree: Tree) -> Tree {
    tree.into_iter()
        .map(|(file, facts)| (file, named_extensions(facts)))
        .collect()
}

fn named_extensions(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(named_extensions).collect(),
        Value::Object(fields) => {
            let mut differences_of = Map::new();
            for (name, value) in fields {
                if name != "extensions" {
                    differences_of.insert(name, named_extensions(value));
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
                differences_of.insert("extensions".into(), Value::Object(extensions));
                if differences_of["type"] == "CERTIFICATE" {
                    differences_of.insert("order".into(), json!(order));
                }
            }
            Value::Object(differences_of)
        }
        other => other,
    }
}

/// Returns `apiServer.certSANs` of `error: [apiServer.certSANs: Invalid value: …`.
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
        panic!("kubeadm names no field: add a row to VERDICTS with the expected text: {error}")
    });
    field.trim_start_matches('[').to_owned()
}

fn differences_of(list: &[CaseDifference], case: &Case) -> Vec<Difference> {
    let applies = list
        .iter()
        .filter(|(name, _)| *name == "*" || *name == case.name);
    applies.map(|(_, difference)| *difference).collect()
}

/// Fails if a row names a case that no longer exists.
fn assert_cases_exist(cases: &[Case], differences: &[CaseDifference], verdicts: &[Verdict]) {
    let cases: BTreeSet<_> = cases
        .iter()
        .map(|case| case.name.as_str())
        .chain(["*"])
        .collect();
    let rows = differences.iter().map(|(case, _)| *case);
    for row in rows.chain(verdicts.iter().map(|verdict| verdict.case)) {
        assert!(cases.contains(row), "there is no case {row}");
    }
}

/// Runs all cases in parallel on all cores and reports all failures together.
fn run_in_parallel(cases: &[Case], run: impl Fn(&Case) + Sync) {
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

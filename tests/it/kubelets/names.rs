//! The table of names and addresses (`tests/fixtures/serving_names.rs`), as serving requests to real kube-apiservers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::{
    CSRS, Wanted, all_requests, certificate, configure_names, decided, kubelet_of, prepared,
    put_node, reason_of, serving, token, verify,
};
use crate::documents;
use crate::kubelet_rules::requests::{CsrParts, GeneralName, SERVING, dns, ip};
use crate::rotation_cluster::Daemon;
use crate::servers::cluster::{Caller, Cluster, INIT};
use crate::time::eventually;

#[path = "../../fixtures/serving_names.rs"]
mod serving_names;

use serving_names::{
    CERT_SANS, DOMAINS, ETCD_SAN, HONEST, HonestNode, INVALID, NAMES, NETWORKS, OK, POD_SUBNETS,
    REGISTERED_SAN, SERVICE, SERVICE_SUBNETS, SPECIAL, VERDICTS,
};

/// Returns kubeadm's configuration with the subnets and names of the table.
fn init() -> String {
    let ours = [
        "certSANs: [192.0.2.100, '2001:db8::100']",
        "networking: {podSubnet: 10.244.0.0/16}",
    ];
    assert!(ours.iter().all(|line| INIT.contains(line)));
    let sans = CERT_SANS.map(|san| format!(", '{san}'")).concat();
    let subnets = format!(
        "networking: {{podSubnet: '{}', serviceSubnet: '{}'}}\netcd: {{local: {{serverCertSANs: [{ETCD_SAN}]}}}}",
        POD_SUBNETS.join(","),
        SERVICE_SUBNETS.join(",")
    );
    INIT.replace(
        ours[0],
        &format!("certSANs: [192.0.2.100, '2001:db8::100'{sans}]"),
    )
    .replace(ours[1], &subnets)
}

/// Starts a cluster whose first node may sign. The controllers of Kubernetes neither approve its requests nor clean them up.
fn cluster() -> Cluster {
    let cluster = prepared(&init(), "corp", "");
    cluster.first().stop("kube-controller-manager");
    cluster
}

/// Configures the first node with these lists of `kubelets`, and with a registered certificate that has these SANs.
fn configure(
    cluster: &Cluster,
    names: &[&str],
    domains: &[&str],
    networks: &[&str],
    registered: &[&str],
) {
    let lists = json!({"names": names, "domains": domains, "networks": networks}).to_string();
    let sans = json!([&[REGISTERED_SAN], registered].concat());
    let registered = format!(
        "}}\ncertificates: {{registered: {{table: {{authority: ca, category: ServingCertificate, sans: {sans}, \
         certificate: /etc/kubernetes/table/tls.crt, key: /etc/kubernetes/table/tls.key}}}}"
    );
    let lists = &lists[1..lists.len() - 1];
    configure_names(cluster.first(), "corp", "", &format!("{lists}{registered}"));
}

fn general_name(text: &str) -> GeneralName {
    match text.parse::<IpAddr>() {
        Ok(_) => ip(text),
        Err(_) => dns(text),
    }
}

/// Has a kubelet request a serving certificate; returns the name of the object, or what the API server answered.
fn request(kubelet: &Caller<'_>, node: &str, texts: &[&str]) -> Result<String, String> {
    let names: Vec<GeneralName> = texts.iter().map(|text| general_name(text)).collect();
    let object = json!({"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"generateName": "csr-"},
        "spec": {"signerName": SERVING, "request": BASE64.encode(CsrParts::serving(node, &names).pem()),
                 "usages": ["digital signature", "server auth"]}});
    match kubelet.post(CSRS, &object) {
        (201, made) => Ok(made["metadata"]["name"].as_str().unwrap().to_owned()),
        (status, body) => Err(format!("{status} {body}")),
    }
}

/// What the API server shows of every request, by name, in the words of the table.
fn verdicts(cluster: &Cluster) -> BTreeMap<String, String> {
    let listed = cluster.first().nodepki(&["kubelets", "list", "-o", "json"]);
    let listed = documents::verify("kubelet-requests", listed.done());
    let listed = listed["items"].as_array().unwrap().iter();
    let waits: BTreeMap<&str, &Value> = listed
        .map(|one| (one["name"].as_str().unwrap(), &one["reason"]))
        .collect();
    let verdict = |object: Value| {
        let name = object["metadata"]["name"].as_str().unwrap();
        let verdict = if object["status"]["certificate"].is_string() {
            OK.to_owned()
        } else if let Some(reason) = reason_of(&object, "Denied") {
            format!("deny {reason}")
        } else if let Some(reason) = reason_of(&object, "Failed") {
            format!("fail {reason}")
        } else {
            let reason = waits.get(name).and_then(|reason| reason.as_str());
            format!("wait {}", reason.unwrap_or("nothing"))
        };
        (name.to_owned(), verdict)
    };
    all_requests(cluster).into_iter().map(verdict).collect()
}

/// Returns true for the verdicts of what no Node has under any settings.
fn is_never_of_node(verdicts: &[&str; 4]) -> bool {
    [SERVICE, SPECIAL, INVALID].contains(&verdicts[0])
}

/// Returns the texts with these verdicts.
fn texts_of(is_part: impl Fn(&[&str; 4]) -> bool) -> Vec<&'static str> {
    let rows = VERDICTS.iter().filter(|(_, verdicts)| is_part(verdicts));
    rows.flat_map(|(texts, _)| *texts).copied().collect()
}

/// The requests of the table under one of its four settings.
struct Scene<'a> {
    cluster: &'a Cluster,
    /// Number of the setting.
    setting: usize,
    _daemon: Daemon<'a>,
    /// Name of each request with what it asks for and the expected verdict.
    expected: BTreeMap<String, (String, &'static str)>,
}

impl<'a> Scene<'a> {
    fn begin(cluster: &'a Cluster, setting: usize) -> Self {
        let certified = texts_of(|verdicts| setting == 3 && !is_never_of_node(verdicts));
        if setting == 0 {
            configure(cluster, &[], &[], &[], &certified);
        } else {
            configure(cluster, &NAMES, &DOMAINS, &NETWORKS, &certified);
        }
        for (name, address) in [("w2", "192.0.2.22"), ("victim", "192.0.2.32")] {
            put_node(cluster, name, &[("InternalIP", address)], true);
        }
        let mut scene = Scene {
            cluster,
            setting,
            _daemon: Daemon::start(cluster.first()),
            expected: BTreeMap::new(),
        };
        scene.claim(is_never_of_node);
        scene.end();
        scene.claim(|verdicts| !is_never_of_node(verdicts));
        scene
    }

    /// Has the hostile kubelet report, and then request, the texts with these verdicts.
    fn claim(&mut self, is_part: impl Fn(&[&str; 4]) -> bool) {
        let typed = |text: &'static str| match text.parse::<IpAddr>() {
            Ok(_) => ("InternalIP", text),
            Err(_) => ("InternalDNS", text),
        };
        let claims: Vec<_> = texts_of(&is_part).into_iter().map(typed).collect();
        let others: &[_] = if self.setting == 2 { &claims } else { &[] };
        for (name, address, claims) in [
            ("n1", "192.0.2.31", &claims[..]),
            ("other", "192.0.2.33", others),
        ] {
            let addresses = [&[("InternalIP", address)], claims].concat();
            put_node(self.cluster, name, &addresses, true);
        }
        let kubelet = kubelet_of(self.cluster, "n1");
        let mut send = |texts: &[&str], verdict: &'static str| {
            match request(&kubelet, "n1", texts) {
                Ok(name) => {
                    self.expected.insert(name, (texts.join(", "), verdict));
                }
                // Such a name cannot be requested at all.
                Err(answer) if verdict == INVALID => println!("{texts:?}: {answer}"),
                Err(answer) => panic!("{texts:?}: {answer}"),
            }
        };
        // A node has few certificates in an hour, so what is approved is in one request.
        let mut approved = Vec::new();
        for (texts, verdicts) in VERDICTS.iter().filter(|(_, verdicts)| is_part(verdicts)) {
            match verdicts[self.setting] {
                OK => approved.extend(*texts),
                verdict => texts.iter().for_each(|text| send(&[text], verdict)),
            }
        }
        if !approved.is_empty() {
            send(&approved, OK);
        }
    }

    /// Waits until every request has the verdict of the table. What depends on the Node is denied after two minutes.
    fn end(&self) {
        eventually(|| {
            let found = verdicts(self.cluster);
            let wrong: Vec<String> = self
                .expected
                .iter()
                .filter(|(name, (_, expected))| found[*name] != *expected)
                .map(|(name, (text, expected))| {
                    format!("{text}: {}, expected {expected}", found[name])
                })
                .collect();
            if wrong.is_empty() {
                Ok(())
            } else {
                Err(format!("setting {}:\n{}", self.setting, wrong.join("\n")))
            }
        });
        println!("setting {}: {} requests", self.setting, self.expected.len());
    }
}

#[test]
fn hostile_kubelet_gets_no_name_by_its_own_status() {
    let clusters = [cluster(), cluster(), cluster(), cluster()];
    let scenes: Vec<Scene<'_>> = clusters
        .iter()
        .enumerate()
        .map(|(setting, cluster)| Scene::begin(cluster, setting))
        .collect();
    scenes.iter().for_each(Scene::end);
}

#[test]
fn honest_kubelets_are_unaffected() {
    let cluster = &cluster();
    let node = cluster.first();
    for HonestNode {
        name,
        addresses,
        domains,
        networks,
    } in HONEST
    {
        configure(cluster, &[], domains, networks, &[]);
        let mut daemon = Daemon::start(node);
        let signed = |created: &str, options: &[&str]| {
            let object = decided(cluster, created, &daemon);
            verify(node, &certificate(&object), options);
        };
        let (created, ..) = Wanted::client(name).create(&token(cluster));
        signed(&created, &["-purpose", "sslclient"]);
        put_node(cluster, name, addresses, true);
        let kubelet = &kubelet_of(cluster, name);
        let (created, ..) = Wanted::client(name).create(kubelet);
        signed(&created, &["-purpose", "sslclient"]);
        let (mut dns, mut ips) = (Vec::new(), Vec::new());
        for (_, address) in addresses {
            let list = match address.parse::<IpAddr>() {
                Ok(_) => &mut ips,
                Err(_) => &mut dns,
            };
            if !list.contains(address) {
                list.push(*address);
            }
        }
        let (created, ..) = serving(name, &dns, &ips).create(kubelet);
        let mut options = vec!["-purpose", "sslserver"];
        if let [first, ..] = dns[..] {
            options.extend(["-verify_hostname", first]);
        }
        options.extend(["-verify_ip", ips[0]]);
        signed(&created, &options);
        println!("{name}: three certificates");
        daemon.stop();
    }
}

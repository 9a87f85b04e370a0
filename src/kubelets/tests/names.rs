//! The names and addresses of serving certificates: each one as a hostile kubelet may come to it, and those of honest ones.

use super::*;

#[path = "../../../tests/fixtures/serving_names.rs"]
mod serving_names;

use serving_names::{
    CERT_SANS, DOMAINS, ETCD_SAN, HONEST, NAMES, NETWORKS, POD_SUBNETS, REGISTERED_SAN,
    SERVICE_SUBNETS, VERDICTS,
};

/// The patterns, domains and networks of the configuration in a judgement.
#[derive(Clone, Copy, PartialEq)]
enum Given {
    Nothing,
    Everything,
}

/// Returns the rig for the table: dual-stack services and pods, control-plane nodes that have not joined, and the Nodes
/// `n1`, which reports `claims` besides its own address, `victim`, and `other`, which reports `others`.
fn rig(claims: &[&str], others: &[&str], given: Given) -> Rig {
    let mut rig = Rig::new();
    let net = |text: &str| IpNet::parse(text).unwrap().0;
    let san = |text: &str| San::parse(text).unwrap().0;
    let cluster = ClusterConfig {
        service_subnets: SERVICE_SUBNETS.map(net).to_vec(),
        pod_subnets: POD_SUBNETS.map(net).to_vec(),
        apiserver_cert_sans: CERT_SANS.map(san).to_vec(),
        ..ClusterConfig::default()
    };
    let certified = Sans {
        dns: vec!["cp1".to_owned(), ETCD_SAN.to_owned()],
        ips: vec!["192.0.2.11".parse().unwrap()],
    };
    rig.reserved = ReservedNames::new(&cluster, &certified);
    rig.reserved.add_pattern(REGISTERED_SAN.parse().unwrap());
    let report = |name: &str, own: &str, claims: &[&str]| {
        let typed = |text: &&str| match text.parse::<IpAddr>() {
            Ok(_) => json!({"type": "InternalIP", "address": text}),
            Err(_) => json!({"type": "InternalDNS", "address": text}),
        };
        let mut node = node_json(name, &[("Hostname", name), ("InternalIP", own)], is_ready());
        let addresses = node["status"]["addresses"].as_array_mut().unwrap();
        addresses.extend(claims.iter().map(typed));
        node
    };
    rig.insert(&report("n1", "192.0.2.31", claims));
    rig.insert(&report("victim", "192.0.2.32", &[]));
    rig.insert(&report("other", "192.0.2.33", others));
    rig.policy.domains.clear();
    if given == Given::Everything {
        rig.policy.names = NAMES.map(|name| name.parse().unwrap()).to_vec();
        rig.policy.domains = DOMAINS.map(str::to_owned).to_vec();
        rig.policy.networks = NETWORKS.map(net).to_vec();
    }
    rig
}

fn name_of(text: &str) -> requests::GeneralName {
    match text.parse::<IpAddr>() {
        Ok(_) => ip(text),
        Err(_) => dns(text),
    }
}

fn request_of(node_name: &str, names: &[&str]) -> CsrObject {
    let names: Vec<_> = names.iter().map(|text| name_of(text)).collect();
    request(
        &node(node_name),
        SERVING,
        &CsrParts::serving(node_name, &names),
    )
}

#[test]
fn hostile_kubelet_gets_no_name_by_its_own_status() {
    let mut wrong = Vec::new();
    for (texts, expected) in VERDICTS {
        for text in *texts {
            let mut certified = rig(&[text], &[], Given::Everything);
            if let Ok((san, _)) = San::parse(text) {
                certified.reserved.add(&san);
            }
            let found = [
                rig(&[text], &[], Given::Nothing),
                rig(&[text], &[], Given::Everything),
                rig(&[text], &[text], Given::Everything),
                certified,
            ]
            .map(|rig| rig.outcome(&request_of("n1", &[text]), LATER));
            if found != *expected {
                wrong.push(format!("{text}: {found:?}, expected {expected:?}"));
            }
        }
    }
    let names: usize = VERDICTS.iter().map(|(texts, _)| texts.len()).sum();
    assert!(names >= 100, "{names}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn claim_of_another_node_never_denies_the_owner() {
    let own = [
        "victim",
        "victim.nodes.example.com",
        "victim.example.com",
        "ip-192-0-2-32.ec2.internal",
    ];
    let address = "192.0.2.32";
    let mut rig = rig(&[&own[..], &[address]].concat(), &[], Given::Everything);
    let report = |addresses: &[(&str, &str)]| node_json("victim", addresses, is_ready());
    let names = own.map(|name| ("InternalDNS", name));
    rig.insert(&report(&[&names[..], &[("InternalIP", address)]].concat()));
    for name in &own[..3] {
        assert_eq!(
            rig.outcome(&request_of("victim", &[name]), LATER),
            "approve",
            "{name}"
        );
        assert_eq!(
            rig.outcome(&request_of("n1", &[name]), LATER),
            "deny SanOfOtherNode",
            "{name}"
        );
    }
    // Both wait for a person, who learns the name of the claimant.
    for name in [address, own[3]] {
        let request = request_of("victim", &[name]);
        let KubeletDecision::Wait { finding, until } = rig.judge(&request, LATER) else {
            panic!("{name}: {}", rig.outcome(&request, LATER));
        };
        assert_eq!(
            (finding.reason, until),
            (RequestReason::SanClaimedTwice, None)
        );
        assert!(
            finding.message.starts_with("Node n1 claims 192.0.2.32"),
            "{}",
            finding.message
        );
        assert_eq!(
            rig.outcome(&request_of("n1", &[name]), LATER),
            "wait SanClaimedTwice"
        );
    }
    // Neither does a claim that is earlier in the API server than the owner's status.
    rig.insert(&report(&[]));
    let request = request_of("victim", &[address]);
    assert_eq!(rig.outcome(&request, CREATED), "wait-until SanOfOtherNode");
    rig.insert(&report(&[("InternalIP", address)]));
    rig.nodes.remove("n1");
    assert_eq!(rig.outcome(&request, LATER), "approve");
}

#[test]
fn worker_cannot_delay_certificate_of_control_plane_node() {
    let mut rig = Rig::new();
    let mut cp3 = node_json("cp3", &[("InternalIP", "192.0.2.13")], is_ready());
    cp3["metadata"]["labels"] = json!({"node-role.kubernetes.io/control-plane": ""});
    rig.insert(&cp3);
    rig.insert(&node_json(
        "w2",
        &[("InternalIP", "192.0.2.13")],
        is_ready(),
    ));
    assert_eq!(
        rig.outcome(&request_of("cp3", &["cp3", "192.0.2.13"]), LATER),
        "approve"
    );
    assert_eq!(
        rig.outcome(&request_of("w2", &["192.0.2.13"]), LATER),
        "wait SanClaimedTwice"
    );
}

#[test]
fn longest_pattern_decides_to_whom_a_name_belongs() {
    let mut rig = rig(&[], &[], Given::Nothing);
    rig.policy.names = ["{node}.example.com", "{node}.nodes.example.com"]
        .map(|text| text.parse().unwrap())
        .to_vec();
    rig.insert(&node_json("n1.nodes", &[], is_ready()));
    let name = "n1.nodes.example.com";
    assert_eq!(rig.outcome(&request_of("n1", &[name]), LATER), "approve");
    assert_eq!(
        rig.outcome(&request_of("n1.nodes", &[name]), LATER),
        "deny SanOfOtherNode"
    );
    // Of two patterns that are equally long, none decides.
    rig.policy.names = ["a-{node}", "{node}-b"]
        .map(|text| text.parse().unwrap())
        .to_vec();
    let names = ["n1-b", "a-n1"];
    for name in names {
        rig.insert(&node_json(name, &[], is_ready()));
    }
    for name in names {
        assert_eq!(
            rig.outcome(&request_of(name, &["a-n1-b"]), LATER),
            "wait SanClaimedTwice"
        );
    }
}

#[test]
fn own_name_wins_over_pattern_for_another_node() {
    let mut rig = rig(&[], &[], Given::Nothing);
    rig.policy.names = vec!["storage-{node}".parse().unwrap()];
    rig.insert(&node_json("storage-n1", &[], is_ready()));
    let request = |node| request_of(node, &["storage-n1"]);
    assert_eq!(rig.outcome(&request("storage-n1"), LATER), "approve");
    assert_eq!(rig.outcome(&request("n1"), LATER), "deny SanOfOtherNode");
}

#[test]
fn honest_kubelets_are_unaffected() {
    for honest in HONEST {
        let (name, addresses) = (honest.name, honest.addresses);
        let domains = honest.domains.iter();
        let networks = honest.networks.iter();
        let mut rig = rig(&[], &[], Given::Nothing);
        rig.policy.domains = domains.map(|domain| (*domain).to_owned()).collect();
        rig.policy.networks = networks.map(|net| IpNet::parse(net).unwrap().0).collect();
        rig.insert(&node_json(name, addresses, is_ready()));
        let names: BTreeSet<&str> = addresses.iter().map(|(_, address)| *address).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let first = request(&token(), CLIENT, &CsrParts::client(&format!("new-{name}")));
        for request in [
            first,
            request(&node(name), CLIENT, &CsrParts::client(name)),
            request_of(name, &names),
        ] {
            assert_eq!(rig.outcome(&request, CREATED), "approve", "{name}");
        }
    }
}

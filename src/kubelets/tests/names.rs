//! The names and addresses of serving certificates: each one as a hostile kubelet may come to it, and those of honest ones.

use super::*;

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
        control_plane_endpoint: Some(HostPort::parse("api.example.com:6443").unwrap().0),
        service_subnets: vec![net("10.96.0.0/12"), net("fd96::/112")],
        pod_subnets: vec![net("10.244.0.0/16"), net("fd44::/48")],
        apiserver_cert_sans: ["*.apps.example.com", "cp2.example.com", "192.0.2.12"]
            .map(san)
            .to_vec(),
        ..ClusterConfig::default()
    };
    let certified = Sans {
        dns: vec!["cp1".to_owned(), "etcd.example.com".to_owned()],
        ips: vec!["192.0.2.11".parse().unwrap()],
    };
    rig.reserved = ReservedNames::new(&cluster, &certified);
    rig.reserved
        .add_pattern("konnectivity-{node}".parse().unwrap());
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
        rig.policy.names = vec!["{node}.nodes.example.com".parse().unwrap()];
        rig.policy.domains = vec!["example.com".to_owned(), "ec2.internal".to_owned()];
        rig.policy.networks = vec![net("0.0.0.0/0"), net("::/0")];
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
    const OK: &str = "approve";
    const TWICE: &str = "wait SanClaimedTwice";
    const OUTSIDE: &str = "deny SanOutsideNetworks";
    const SERVICE: &str = "deny SanOfService";
    const CERTIFIED: &str = "deny SanOfApiServer";
    const SPECIAL: &str = "deny SanSpecial";
    const INVALID: &str = "deny SanNotValid";
    const OTHER: &str = "deny SanOfOtherNode";
    const NOT_OWN: &str = "deny SanNotOfNode";
    // Each name or address is in the status of Node n1, which requests it: without further settings; with patterns, domains
    // and networks; so, and another Node reports it as well; so, and it is in a certificate of the control plane.
    type Verdicts = [&'static str; 4];
    let table: &[(&[&str], Verdicts)] = &[
        (&["n1"], [OK, OK, OK, CERTIFIED]),
        (
            &[
                "10.0.0.31",
                "172.16.5.5",
                "192.168.7.7",
                "100.64.1.1",
                "192.0.2.131",
                "198.18.0.31",
                "fd12:3456::31",
                "2001:db8::31",
            ],
            [OK, OK, TWICE, CERTIFIED],
        ),
        (
            &[
                "8.8.4.4",
                "1.1.1.1",
                "172.32.0.1",
                "192.88.99.1",
                "240.0.0.1",
                "2600:1f18::31",
                "2a01:4f8::31",
                "fec0::31",
                "100::31",
                "64:ff9b::c000:28d",
                "64:ff9b:1::c000:28d",
                "2002:c000:28d::1",
                "2001:0:c000:28d::3fff:fd72",
                "fd00:1::5efe:c000:28d",
            ],
            [OUTSIDE, OK, TWICE, CERTIFIED],
        ),
        (
            &[
                "10.96.0.1",
                "10.111.255.254",
                "fd96::1",
                "10.244.3.3",
                "fd44::7",
                "64:ff9b::a60:1",
                "64:ff9b:1::a60:1",
                "64:ff9b:1:a60:0:100::",
                "2002:a60:1::1",
                "2001:0:a60:1::1",
                "2001:0:808:808::f59f:fffe",
                "fd00:1::5efe:a60:1",
                "2001:db8::200:5efe:a60:1",
                "64:ff9b::af4:707",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "webhook.kube-system",
                "webhook.kube-system.svc",
                "db.prod.svc.cluster.local",
                "svc",
                "cluster.local",
                "evil.cluster.local",
                "10-0-0-1.prod.pod.cluster.local",
            ],
            [SERVICE; 4],
        ),
        (
            &[
                "127.0.0.1",
                "127.8.8.8",
                "::1",
                "0.0.0.0",
                "0.1.2.3",
                "::",
                "169.254.169.254",
                "fe80::1",
                "224.0.0.1",
                "ff02::1",
                "255.255.255.255",
                "fd00:ec2::254",
                "168.63.129.16",
                "100.100.100.200",
                "64:ff9b::7f00:1",
                "64:ff9b::a9fe:a9fe",
                "2002:7f00:1::",
                "localhost",
                "n1.localhost",
                "localhost.localdomain",
                "ip6-localhost",
            ],
            [SPECIAL; 4],
        ),
        (
            &[
                "::10.96.0.1",
                "::192.0.2.31",
                "::ffff:192.0.2.31",
                "::ffff:0:192.0.2.31",
                "*.example.com",
                "n1.",
                "a_b.example.com",
                "",
            ],
            [INVALID; 4],
        ),
        (
            &[
                "api.example.com",
                "cp1",
                "cp2.example.com",
                "etcd.example.com",
                "shop.apps.example.com",
                "n1.apps.example.com",
                "konnectivity-victim",
                "konnectivity-n1",
                "192.0.2.11",
                "192.0.2.12",
                "64:ff9b::c000:20b",
            ],
            [CERTIFIED; 4],
        ),
        (&["victim", "other", "w2"], [OTHER, OTHER, OTHER, CERTIFIED]),
        (
            &[
                "victim.nodes.example.com",
                "nobody.nodes.example.com",
                "a.n1.nodes.example.com",
                "victim.example.com",
            ],
            [NOT_OWN, OTHER, OTHER, OTHER],
        ),
        (
            &[
                "vault",
                "vault.corp.example.com",
                "vault.example.com",
                "db.ec2.internal",
                "example.com",
                "ec2.internal",
                "n1.corp.example.com",
                "n1.corp",
                "xn1.example.com",
                "ip-192-0-2.ec2.internal",
                "ip-192-0-2-031.ec2.internal",
                "a.ip-192-0-2-31.ec2.internal",
            ],
            [NOT_OWN, NOT_OWN, NOT_OWN, CERTIFIED],
        ),
        // The address belongs to no Node, to another Node, to a service, to every machine.
        (&["ip-192-0-2-99.ec2.internal"], [NOT_OWN; 4]),
        (
            &["ip-192-0-2-32.ec2.internal"],
            [NOT_OWN, OTHER, OTHER, OTHER],
        ),
        (
            &["ip-10-96-0-1.ec2.internal"],
            [NOT_OWN, SERVICE, SERVICE, SERVICE],
        ),
        (
            &["ip-127-0-0-1.ec2.internal"],
            [NOT_OWN, SPECIAL, SPECIAL, SPECIAL],
        ),
        (
            &[
                "n1.nodes.example.com",
                "n1.example.com",
                "n1.ec2.internal",
                "ip-192-0-2-31.ec2.internal",
                "ec2-192-0-2-31.ec2.internal",
            ],
            [NOT_OWN, OK, OK, CERTIFIED],
        ),
    ];
    let mut wrong = Vec::new();
    for (texts, expected) in table {
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
    let names: usize = table.iter().map(|(texts, _)| texts.len()).sum();
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

/// What kubelets request on EC2, on GCE, on bare metal, and with two families of addresses.
#[test]
fn honest_kubelets_are_unaffected() {
    type Report = &'static [(&'static str, &'static str)];
    let cases: [(&str, Report, &[&str], &[&str]); 6] = [
        (
            "ip-10-0-3-7.ec2.internal",
            &[
                ("InternalIP", "10.0.3.7"),
                ("ExternalIP", "198.51.100.7"),
                ("InternalDNS", "ip-10-0-3-7.ec2.internal"),
                ("Hostname", "ip-10-0-3-7.ec2.internal"),
                ("ExternalDNS", "ec2-198-51-100-7.compute-1.amazonaws.com"),
            ],
            &["compute-1.amazonaws.com"],
            &[],
        ),
        (
            "i-0123456789abcdef0",
            &[
                ("InternalIP", "10.0.3.8"),
                ("InternalIP", "2600:1f18:1::8"),
                ("InternalDNS", "ip-10-0-3-8.ec2.internal"),
                ("InternalDNS", "i-0123456789abcdef0.ec2.internal"),
                ("Hostname", "i-0123456789abcdef0.ec2.internal"),
            ],
            &["ec2.internal"],
            &["10.0.0.0/8", "2600:1f18:1::/64"],
        ),
        (
            "pool-1-abcd",
            &[
                ("InternalIP", "10.128.0.9"),
                ("ExternalIP", "8.8.4.9"),
                ("Hostname", "pool-1-abcd"),
                (
                    "InternalDNS",
                    "pool-1-abcd.us-central1-a.c.project.internal",
                ),
            ],
            &["us-central1-a.c.project.internal"],
            &["10.128.0.0/9", "8.8.4.0/24"],
        ),
        (
            "rack1.dc.example.com",
            &[
                ("InternalIP", "192.168.4.4"),
                ("Hostname", "rack1.dc.example.com"),
            ],
            &[],
            &[],
        ),
        (
            "metal",
            &[
                ("InternalIP", "172.20.0.5"),
                ("InternalIP", "fd12::5"),
                ("Hostname", "metal"),
            ],
            &[],
            &["172.20.0.0/16", "fd12::/64"],
        ),
        // The node's name is its address.
        (
            "10.9.0.4",
            &[("InternalIP", "10.9.0.4"), ("Hostname", "10.9.0.4")],
            &[],
            &[],
        ),
    ];
    for (name, addresses, domains, networks) in cases {
        let mut rig = rig(&[], &[], Given::Nothing);
        rig.policy.domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        rig.policy.networks = networks
            .iter()
            .map(|net| IpNet::parse(net).unwrap().0)
            .collect();
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

use super::super::load;
use super::*;

const INIT: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n";
const CLUSTER: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrolPlaneEndpoint: lb.example\n";
const WORKER: &str = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\n";

fn ip(text: &str) -> Option<IpAddr> {
    (!text.is_empty()).then(|| text.parse().unwrap())
}

/// Returns an existing worker with a name and endpoints.
fn existing(settled: bool) -> Option<ExistingNode> {
    Some(ExistingNode {
        kubelet_cert_dir: None,
        role: KubeadmRole::Worker,
        name: Some("existing".parse().unwrap()),
        endpoint: Some("192.0.2.50:7443".parse().unwrap()),
        server: Some("https://existing.example".to_owned()),
        settled,
    })
}

fn host(hostname: &str, route: &str, running: Option<ExistingNode>) -> HostFacts {
    HostFacts {
        hostname: hostname.to_owned(),
        default_route_addresses: ip(route).into_iter().collect(),
        running,
        ..HostFacts::default()
    }
}

/// Calls one step with the given documents and host; returns its value and its faults.
fn step<T>(
    document: &str,
    host: &HostFacts,
    step: impl Fn(&ResolveInputs<'_>, &mut Faults) -> T,
) -> (T, String) {
    let loaded = load(&[("k.yaml", document)]);
    let overrides = Overrides::default();
    let mut faults = Faults::default();
    let value = step(&ResolveInputs::new(&loaded, host, &overrides), &mut faults);
    (value, faults.to_string())
}

#[test]
fn takes_role_from_documents_then_settled_node() {
    for (document, running, expected) in [
        (INIT, existing(true), KubeadmRole::Init),
        (WORKER, None, KubeadmRole::Worker),
        ("", existing(true), KubeadmRole::Worker),
        ("", existing(false), KubeadmRole::Init),
        (CLUSTER, None, KubeadmRole::Init),
    ] {
        let host = host("h", "", running);
        let (role, _) = step(document, &host, |inputs, faults| inputs.role(faults));
        assert_eq!(role, expected, "{document}");
    }
    let (_, faults) = step("", &host("h", "", None), |inputs, faults| {
        inputs.role(faults)
    });
    assert!(faults.contains("no InitConfiguration"), "{faults}");
}

#[test]
fn prefers_written_name_then_settled_node_then_host_name() {
    let named = format!("{INIT}nodeRegistration: {{name: written}}\n");
    for (document, hostname, running, expected) in [
        (named.as_str(), "host", existing(true), "written"),
        (INIT, "host", existing(true), "existing"),
        (INIT, "host", existing(false), "host"),
        (INIT, "", existing(false), "existing"),
        (INIT, "host", None, "host"),
    ] {
        let host = host(hostname, "", running);
        let (name, faults) = step(document, &host, |inputs, faults| inputs.name(faults));
        assert_eq!(name.unwrap().0.as_str(), expected, "{faults}");
    }
}

#[test]
fn keeps_address_of_settled_node_without_document() {
    for (document, route, running, expected) in [
        (INIT, "192.0.2.99", None, "192.0.2.99"),
        (INIT, "192.0.2.99", existing(true), "192.0.2.50"),
        (INIT, "192.0.2.99", existing(false), "192.0.2.99"),
        ("", "192.0.2.99", existing(true), "192.0.2.50"),
        (INIT, "", existing(false), "192.0.2.50"),
        (INIT, "169.254.1.1", None, ""),
    ] {
        let host = host("h", route, running);
        let (address, faults) = step(document, &host, |inputs, faults| {
            inputs.advertise_address(KubeadmRole::Init, faults)
        });
        assert_eq!(address, ip(expected), "{document} {route}");
        assert_eq!(address.is_none(), !faults.is_empty(), "{faults}");
    }
}

#[test]
fn reports_settled_node_without_known_address() {
    let mut running = existing(true).unwrap();
    running.endpoint = None;
    let host = host("h", "192.0.2.99", Some(running));
    let (address, faults) = step("", &host, |inputs, faults| {
        inputs.advertise_address(KubeadmRole::Init, faults)
    });
    assert_eq!(address, None);
    assert!(
        faults.starts_with("this node: neither the manifest"),
        "{faults}"
    );
}

#[test]
fn takes_bind_port_of_existing_node_without_document() {
    let port = |document: &str, running| {
        step(document, &host("h", "", running), |inputs, _| {
            inputs.bind_port()
        })
        .0
    };
    assert_eq!(port(INIT, existing(true)), 6443);
    assert_eq!(port("", existing(true)), 7443);
    assert_eq!(port("", None), 6443);
}

#[test]
fn takes_server_of_existing_worker_and_join_endpoint_of_cluster() {
    let existing_server = Some("https://existing.example");
    for (document, running, server, expected) in [
        (WORKER, existing(true), existing_server, None),
        (
            CLUSTER,
            existing(false),
            existing_server,
            Some("lb.example:6443"),
        ),
        (CLUSTER, None, None, Some("lb.example:6443")),
        (WORKER, None, None, None),
    ] {
        let host = host("h", "", running);
        let ((found, endpoint), faults) = step(document, &host, |inputs, faults| {
            let role = KubeadmRole::Worker;
            let server = inputs.server(role);
            let endpoint = inputs.join_endpoint(role, server.is_some(), faults);
            assert_eq!(inputs.server(KubeadmRole::Join), None);
            (server, endpoint)
        });
        assert_eq!(found.as_deref(), server, "{document}");
        let endpoint = endpoint.map(|endpoint| endpoint.authority(6443));
        assert_eq!(endpoint.as_deref(), expected, "{document}");
        let is_known = server.or(expected).is_some();
        assert_eq!(is_known, faults.is_empty(), "{faults}");
    }
}

#[test]
fn takes_server_of_joined_cluster_unless_worker_was_set_up() {
    let by_file = format!(
        "{WORKER}discovery: {{file: {{kubeConfigPath: /d.conf}}, tlsBootstrapToken: aaaaaa.bbbbbbbbbbbbbbbb}}\n"
    );
    let server = |running, joined: Option<&str>| {
        let host = HostFacts {
            joined_server: joined.map(str::to_owned),
            ..host("h", "", running)
        };
        resolve(&load(&[("k.yaml", &by_file)]), &host, &Overrides::default())
            .map(|resolved| resolved.node.server.unwrap())
            .map_err(|faults| faults.to_string())
    };
    let joined = Some("https://joined.example");
    assert_eq!(server(None, joined).unwrap(), "https://joined.example");
    let existing = server(existing(false), joined);
    assert_eq!(existing.unwrap(), "https://existing.example");
    let unknown = server(None, None).unwrap_err();
    assert!(
        unknown.contains("bootstrap reads it from discovery.file"),
        "{unknown}"
    );
    assert!(!unknown.contains("apiServerEndpoint"), "{unknown}");
}

#[test]
fn prefers_node_ip_for_kubelet_addresses() {
    let kubelet = KubeletArguments {
        node_ips: ip("192.0.2.7").into_iter().collect(),
        ..KubeletArguments::default()
    };
    for (kubelet, advertised, routed, expected) in [
        (Some(&kubelet), "192.0.2.1", "192.0.2.2", &["192.0.2.7"][..]),
        (None, "192.0.2.1", "192.0.2.2", &["192.0.2.1", "192.0.2.2"]),
        (None, "192.0.2.1", "192.0.2.1", &["192.0.2.1"]),
        (None, "", "192.0.2.2", &["192.0.2.2"]),
        (None, "", "", &[]),
    ] {
        let expected: Vec<IpAddr> = expected.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(
            kubelet_addresses(kubelet, ip(advertised), ip(routed)),
            expected
        );
    }
}

#[test]
fn uses_recorded_node_only_without_node_document() {
    let loaded = load(&[("k.yaml", INIT)]);
    let facts = host("first", "192.0.2.1", None);
    let recorded = resolve(&loaded, &facts, &Overrides::default())
        .unwrap()
        .node;
    let facts = HostFacts {
        kept: Some(recorded),
        ..host("second", "192.0.2.2", None)
    };
    let name = |document: &str| {
        let loaded = load(&[("k.yaml", document)]);
        let resolved = resolve(&loaded, &facts, &Overrides::default());
        resolved.map(|resolved| resolved.node.name.as_str().to_owned())
    };
    assert_eq!(name(CLUSTER).unwrap(), "first");
    assert_eq!(name(INIT).unwrap(), "second");
    let missing = name("").unwrap_err().to_string();
    assert!(
        missing.contains("no ClusterConfiguration was found"),
        "{missing}"
    );
}

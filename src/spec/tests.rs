use std::net::IpAddr;

use super::policy::{KeyPolicy, KeyRules};
use super::*;
use crate::kube::kubeadm::{
    ClusterConfig, HostFacts, IpNet, KubeadmRole, Overrides, San, load, resolve,
};
use crate::kube::names::{Authority, CertName};
use crate::x509::Tolerance;

pub(crate) const INIT: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
nodeRegistration: {name: cp1}
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
";

pub(crate) const JOIN: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
nodeRegistration: {name: cp2}
controlPlane: {localAPIEndpoint: {advertiseAddress: '2001:db8::12', bindPort: 7443}}
discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'api.example:6443', unsafeSkipCAVerification: true}}
";

pub(crate) fn cluster(fields: &str) -> String {
    format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n{fields}")
}

pub(crate) fn planned(node: &str, cluster: &str, choices: &Choices) -> NodeSpec {
    let loaded = load(&[("node.yaml", node), ("cluster.yaml", cluster)]);
    let resolved = resolve(&loaded, &HostFacts::default(), &Overrides::default()).unwrap();
    let cluster = resolved.cluster.unwrap_or_default();
    let policy = KeyPolicy::new(KeyRules::default(), cluster.key_algorithm);
    node_spec(&cluster, &resolved.node, &policy, choices)
}

fn planned_as(role: KubeadmRole, cluster: &str) -> NodeSpec {
    let loaded = load(&[("node.yaml", INIT), ("cluster.yaml", cluster)]);
    let overrides = Overrides {
        role: Some(role),
        ..Overrides::default()
    };
    let resolved = resolve(&loaded, &HostFacts::default(), &overrides).unwrap();
    let cluster = resolved.cluster.unwrap_or_default();
    let policy = KeyPolicy::new(KeyRules::default(), cluster.key_algorithm);
    node_spec(&cluster, &resolved.node, &policy, &Choices::default())
}

fn names(plan: &NodeSpec) -> Vec<&'static str> {
    plan.certs.iter().map(|spec| spec.name().as_str()).collect()
}

fn server(plan: &NodeSpec, name: CertName) -> &str {
    match &plan.cert(name).unwrap().output {
        CertFiles::Kubeconfig { server, .. } => server,
        CertFiles::Pair { .. } => panic!("{name} is not a kubeconfig"),
    }
}

fn organization(version: &str, choices: &Choices) -> Vec<String> {
    let plan = planned(
        INIT,
        &cluster(&format!("kubernetesVersion: {version}\n")),
        choices,
    );
    plan.cert(CertName::ApiserverKubeletClient)
        .unwrap()
        .requested
        .profile
        .subject
        .organizations
        .clone()
}

#[test]
fn plans_all_for_first_node_and_all_but_super_admin_for_joining() {
    let first = planned(
        INIT,
        &cluster("controlPlaneEndpoint: api.example\n"),
        &Choices::default(),
    );
    assert_eq!(first.certs.len(), 12);
    assert!(first.service_account.unwrap().may_make);
    let joining = planned(
        JOIN,
        &cluster("controlPlaneEndpoint: api.example\n"),
        &Choices::default(),
    );
    assert_eq!(joining.certs.len(), 11);
    assert!(joining.cert(CertName::SuperAdminConf).is_none());
    assert!(
        !joining.service_account.unwrap().may_make,
        "a joining node never creates the service-account key"
    );
}

#[test]
fn plans_only_kubelet_identity_for_worker() {
    let worker = JOIN
        .lines()
        .filter(|line| !line.starts_with("controlPlane"))
        .collect::<Vec<_>>()
        .join("\n");
    let plan = planned(&worker, "", &Choices::default());
    assert_eq!(names(&plan), ["kubelet.conf"]);
    assert_eq!(
        server(&plan, CertName::KubeletConf),
        "https://api.example:6443"
    );
    assert_eq!(
        plan.bundles
            .iter()
            .map(|bundle| bundle.authority)
            .collect::<Vec<_>>(),
        [Authority::Ca]
    );
    assert!(plan.service_account.is_none());
}

#[test]
fn writes_server_of_worker_as_it_is_known() {
    let loaded = load(&[("node.yaml", &joining_worker())]);
    let resolved = resolve(&loaded, &HostFacts::default(), &Overrides::default());
    let mut node = resolved.unwrap().node;
    let cluster = ClusterConfig::default();
    let policy = KeyPolicy::new(KeyRules::default(), cluster.key_algorithm);
    for (known, expected) in [
        (None, "https://api.example:6443"),
        (Some("https://lb.example/prod"), "https://lb.example/prod"),
    ] {
        node.server = known.map(str::to_owned);
        let plan = node_spec(&cluster, &node, &policy, &Choices::default());
        assert_eq!(server(&plan, CertName::KubeletConf), expected);
    }
}

#[test]
fn points_kubeconfigs_of_local_components_at_node() {
    let plan = planned(
        JOIN,
        &cluster("controlPlaneEndpoint: 'api.example:8443'\n"),
        &Choices::default(),
    );
    assert_eq!(
        server(&plan, CertName::AdminConf),
        "https://api.example:8443"
    );
    for local in [
        CertName::ControllerManagerConf,
        CertName::SchedulerConf,
        CertName::KubeletConf,
    ] {
        assert_eq!(server(&plan, local), "https://[2001:db8::12]:7443");
    }
    let [local, shared] = ["https://[2001:db8::12]:7443", "https://api.example:8443"];
    for (version, gate, expected) in [
        ("v1.32.4", "", shared),
        ("v1.32.4", "true", local),
        ("v1.34.2", "", local),
        ("v1.34.2", "false", shared),
        ("v1.35.1", "false", local),
    ] {
        let gates = match gate {
            "" => String::new(),
            value => format!("featureGates: {{ControlPlaneKubeletLocalMode: {value}}}\n"),
        };
        let fields = format!(
            "controlPlaneEndpoint: 'api.example:8443'\nkubernetesVersion: {version}\n{gates}"
        );
        let plan = planned(JOIN, &cluster(&fields), &Choices::default());
        let found = server(&plan, CertName::KubeletConf);
        assert_eq!(found, expected, "{version} {gate}");
    }
}

#[test]
fn omits_kubelet_conf_if_kubelet_bootstraps_itself_except_on_first_node() {
    let choices = Choices {
        kubelet_bootstraps_itself: true,
        ..Choices::default()
    };
    for (node, is_first) in [(JOIN, false), (INIT, true)] {
        let fields = cluster("controlPlaneEndpoint: api.example\n");
        let plan = planned(node, &fields, &choices);
        assert_eq!(plan.cert(CertName::KubeletConf).is_some(), is_first);
    }
}

#[test]
fn plans_no_certificates_for_external_etcd() {
    let fields = "etcd: {external: {endpoints: ['https://etcd:2379'], caFile: /e/ca.crt, certFile: /e/c.crt, keyFile: /e/c.key}}\n";
    let plan = planned(INIT, &cluster(fields), &Choices::default());
    assert!(
        plan.certs
            .iter()
            .all(|spec| spec.authority() != Authority::EtcdCa)
    );
    assert!(plan.bundle(Authority::EtcdCa).is_none());
    assert_eq!(plan.external_etcd.unwrap().key, Some("/e/c.key".into()));
}

#[test]
fn plans_client_certificate_of_external_etcd_at_its_paths() {
    let choices = Choices {
        external_etcd_client: true,
        ..Choices::default()
    };
    let fields = "etcd: {external: {endpoints: ['https://etcd:2379'], caFile: /e/ca.crt, certFile: /e/c.crt, keyFile: /e/c.key}}\n";
    let plan = planned(INIT, &cluster(fields), &choices);
    let client = plan.cert(CertName::ApiserverEtcdClient).unwrap();
    let paths: Vec<_> = client.output.paths().into_iter().cloned().collect();
    assert_eq!(paths, ["/e/c.key".into(), "/e/c.crt".into()]);
    let bundle = plan.bundle(Authority::EtcdCa).unwrap();
    assert_eq!(bundle.path, "/e/ca.crt".into());
    assert!(plan.cert(CertName::EtcdServer).is_none());
    assert_eq!(plan.external_etcd, None);
    assert_eq!(plan.notes, [""; 0]);

    let fields = "etcd: {external: {endpoints: ['http://etcd:2379']}}\n";
    let plan = planned(INIT, &cluster(fields), &choices);
    assert!(plan.cert(CertName::ApiserverEtcdClient).is_none());
    assert!(plan.notes[0].starts_with("certificates.externalEtcdClient has no effect"));
}

#[test]
fn plans_only_certificates_of_etcd_for_etcd_member() {
    let plan = planned_as(KubeadmRole::Etcd, &cluster(""));
    assert_eq!(
        names(&plan),
        ["etcd-server", "etcd-peer", "etcd-healthcheck-client"]
    );
    let bundles: Vec<_> = plan.bundles.iter().map(|spec| spec.authority).collect();
    assert_eq!(bundles, [Authority::EtcdCa]);
    assert_eq!((plan.service_account, plan.external_etcd), (None, None));
    assert_eq!(plan.ignore_preflight_errors, [""; 0]);
}

#[test]
fn chooses_kubelet_client_subject_by_version_with_binding() {
    let auto = Choices::default();
    for with_binding in ["v1.36.1", "v1.36.2", "v1.35.5", "v1.37.0"] {
        assert_eq!(organization(with_binding, &auto), [""; 0], "{with_binding}");
    }
    for without in ["v1.29.0", "v1.34.9", "v1.35.4", "v1.36.0", "stable-1"] {
        assert_eq!(
            organization(without, &auto),
            ["kubeadm:cluster-admins"],
            "{without}"
        );
    }
    assert_eq!(organization("v1.28.3", &auto), ["system:masters"]);
    let forced = Choices {
        kubelet_client_subject: KubeletClientSubject::None,
        ..Choices::default()
    };
    assert_eq!(organization("v1.30.0", &forced), [""; 0]);
}

#[test]
fn lists_subjects_of_other_kubeadm_versions() {
    let plan = planned(
        INIT,
        &cluster("kubernetesVersion: v1.36.2\n"),
        &Choices::default(),
    );
    let spec = plan.cert(CertName::ApiserverKubeletClient).unwrap();
    let others: Vec<_> = spec
        .other_subjects
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        others,
        [
            "O=kubeadm:cluster-admins, CN=kube-apiserver-kubelet-client",
            "O=system:masters, CN=kube-apiserver-kubelet-client"
        ]
    );
}

#[test]
fn puts_admin_into_system_masters_before_1_29() {
    let plan = planned(
        INIT,
        &cluster("kubernetesVersion: v1.28.3\n"),
        &Choices::default(),
    );
    assert!(plan.cert(CertName::SuperAdminConf).is_none());
    assert_eq!(
        plan.cert(CertName::AdminConf)
            .unwrap()
            .requested
            .profile
            .subject
            .organizations,
        ["system:masters"]
    );
}

#[test]
fn sorts_extra_names_and_drops_duplicates() {
    let choices = Choices {
        apiserver_sans: vec![
            San::Dns("localhost".to_owned()),
            San::Ip("127.0.0.1".parse().unwrap()),
            San::Ip("192.0.2.11".parse().unwrap()),
        ],
        ..Choices::default()
    };
    let plan = planned(INIT, &cluster(""), &choices);
    assert_eq!(
        plan.cert(CertName::Apiserver)
            .unwrap()
            .requested
            .profile
            .sans
            .to_string(),
        "DNS:cp1, DNS:kubernetes, DNS:kubernetes.default, DNS:kubernetes.default.svc, \
         DNS:kubernetes.default.svc.cluster.local, DNS:localhost, IP:10.96.0.1, IP:192.0.2.11, IP:127.0.0.1"
    );
}

#[test]
fn notes_second_service_address_until_it_is_named() {
    let fields = "networking: {serviceSubnet: '10.96.0.0/16,fd00:10:96::/112'}\n";
    let plan = planned(INIT, &cluster(fields), &Choices::default());
    assert!(
        plan.notes.iter().any(|note| note.contains("fd00:10:96::1")),
        "{:?}",
        plan.notes
    );
    let choices = Choices {
        apiserver_sans: vec![San::Ip("fd00:10:96::1".parse().unwrap())],
        ..Choices::default()
    };
    assert!(planned(INIT, &cluster(fields), &choices).notes.is_empty());
}

#[test]
fn accepts_only_configured_common_name() {
    let choices = Choices {
        common_names: [
            (CertName::EtcdPeer, "{certificate}.{node}.{cluster}"),
            (CertName::ApiserverEtcdClient, "client"),
            (CertName::FrontProxyClient, "front-proxy-client.{node}"),
            // Not free: Kubernetes derives the identity from it.
            (CertName::KubeletConf, "me"),
        ]
        .map(|(name, text)| (name, text.to_owned()))
        .into(),
        ..Choices::default()
    };
    let plan = planned(INIT, &cluster("clusterName: prod\n"), &choices);
    let subject = |name| {
        plan.cert(name)
            .unwrap()
            .requested
            .profile
            .subject
            .to_string()
    };
    assert_eq!(subject(CertName::EtcdPeer), "CN=etcd-peer.cp1.prod");
    assert_eq!(subject(CertName::EtcdServer), "CN=cp1");
    assert_eq!(
        subject(CertName::KubeletConf),
        "O=system:nodes, CN=system:node:cp1"
    );
    let client = plan.cert(CertName::ApiserverEtcdClient).unwrap();
    assert_eq!(client.requested.profile.subject.to_string(), "CN=client");
    assert!(client.other_subjects.is_empty());
    let [note] = plan.notes.as_slice() else {
        panic!("{:?}", plan.notes)
    };
    for part in [
        "front-proxy-client.cp1",
        "--requestheader-allowed-names",
        "every control-plane node",
    ] {
        assert!(note.contains(part), "{note}");
    }
}

#[test]
fn plans_own_kubeconfig_where_nodepki_signs_for_kubelets() {
    let choices = Choices {
        signs_for_kubelets: true,
        ..Choices::default()
    };
    let endpoint = cluster("controlPlaneEndpoint: api.example\n");
    for (node, name, server) in [
        (INIT, "nodepki:cp1", "https://192.0.2.11:6443"),
        (JOIN, "nodepki:cp2", "https://[2001:db8::12]:7443"),
    ] {
        let plan = planned(node, &endpoint, &choices);
        let spec = plan.cert(CertName::NodepkiConf).unwrap();
        assert_eq!(spec.requested.profile.subject.common_name, name);
        assert_eq!(
            spec.requested.profile.subject.organizations,
            [KUBELET_SIGNERS_GROUP]
        );
        assert_eq!(
            spec.requested.profile.usages,
            [crate::x509::ExtendedUsage::ClientAuth]
        );
        let CertFiles::Kubeconfig {
            path, server: url, ..
        } = &spec.output
        else {
            panic!("it is a kubeconfig");
        };
        assert_eq!(path.display().to_string(), "/etc/kubernetes/nodepki.conf");
        assert_eq!(url, server);
        assert!(!KUBELET_SIGNERS_GROUP.starts_with("system:"));
    }
    let plan = planned(INIT, &endpoint, &Choices::default());
    assert!(plan.cert(CertName::NodepkiConf).is_none());
    let worker = JOIN.replace("controlPlane:", "ignored:");
    let plan = planned(&worker, &endpoint, &choices);
    assert!(plan.cert(CertName::NodepkiConf).is_none());
}

#[test]
fn refuses_registered_names_of_the_api_servers_service() {
    use registered::{RegisteredCertificate, RegisteredNodes, RegisteredSan};
    let fixed = |text: &str| RegisteredSan::Fixed(San::parse(text).unwrap().0);
    let sans = |sans: Vec<RegisteredSan>, node: &str| {
        let hook = RegisteredCertificate {
            name: "hook".parse().unwrap(),
            description: None,
            nodes: RegisteredNodes::All,
            common_name: "hook".to_owned(),
            organizations: Vec::new(),
            sans,
            usages: vec![crate::x509::ExtendedUsage::ServerAuth],
            certificate: None,
            key: None,
            group: None,
            ca_files: std::collections::BTreeMap::new(),
        };
        let choices = Choices {
            registered: vec![hook],
            ..Choices::default()
        };
        let plan = planned(&INIT.replace("cp1", node), &cluster(""), &choices);
        let services = ["10.0.0.0/16", "fd00:1::/108"].map(|net| IpNet::parse(net).unwrap().0);
        registered::name_conflicts(&plan.certs, &services)
    };
    let of_node = || RegisteredSan::OfNode("{node}.default.svc".to_owned());
    let harmless = vec![of_node(), fixed("10.0.0.2"), fixed("10.96.0.1")];
    assert_eq!(sans(harmless, "cp1"), Vec::<String>::new());
    let reserved = vec![of_node(), fixed("10.0.0.1"), fixed("fd00:1::1")];
    let expected = ["kubernetes.default.svc", "10.0.0.1", "fd00:1::1"].map(|san| {
        format!("certificates.registered.hook.sans: {san} belongs to kube-apiserver's Service, which clients in the cluster trust under ca (remove it)")
    });
    assert_eq!(sans(reserved, "kubernetes"), expected);
}

#[test]
fn plans_registered_certificates_on_their_nodes() {
    let registered = |name: &str, nodes| registered::RegisteredCertificate {
        name: name.parse().unwrap(),
        description: Some("Backup of etcd.".to_owned()),
        nodes,
        common_name: "{certificate}.{node}".to_owned(),
        organizations: vec!["backup".to_owned()],
        sans: vec![
            registered::RegisteredSan::OfNode("{node}.example".to_owned()),
            registered::RegisteredSan::Addresses,
        ],
        usages: vec![crate::x509::ExtendedUsage::ServerAuth],
        certificate: None,
        key: Some("/etc/kubernetes/hook.key".into()),
        group: Some(65532),
        ca_files: [Authority::Ca, Authority::FrontProxyCa]
            .map(|authority| {
                (
                    authority,
                    format!("/etc/kubernetes/{name}-{authority}.crt").into(),
                )
            })
            .into(),
    };
    let tolerance = Tolerance {
        unread_attributes: true,
        ..Tolerance::default()
    };
    let choices = Choices {
        registered: vec![
            registered("etcd-hook", registered::RegisteredNodes::ControlPlane),
            registered("hook", registered::RegisteredNodes::All),
            registered("worker-hook", registered::RegisteredNodes::Worker),
        ],
        tolerances: Authority::ALL
            .map(|authority| (authority, tolerance))
            .into(),
        ..Choices::default()
    };
    let first = planned(INIT, &cluster(""), &choices);
    // Components other than those of Kubernetes may read every attribute of a subject.
    for spec in &first.certs {
        let is_registered = matches!(spec.name(), CertName::Registered(_));
        let tolerates = spec.requested.tolerance.unread_attributes;
        assert_eq!(tolerates, !is_registered, "{}", spec.name());
    }
    assert_eq!(names(&first)[12..], ["etcd-hook", "hook"]);
    let name = CertName::Registered("etcd-hook".parse().unwrap());
    let spec = first.cert(name).unwrap();
    assert_eq!(spec.authority(), Authority::EtcdCa);
    let profile = &spec.requested.profile;
    assert_eq!(profile.subject.common_name, "etcd-hook.cp1");
    assert_eq!(profile.subject.organizations, ["backup"]);
    assert_eq!(profile.sans.dns, ["cp1.example"]);
    assert_eq!(profile.sans.ips, ["192.0.2.11".parse::<IpAddr>().unwrap()]);
    let paths: Vec<_> = spec
        .output
        .paths()
        .into_iter()
        .map(|path| path.to_path_buf())
        .collect();
    let expected = [
        "/etc/kubernetes/hook.key",
        "/etc/kubernetes/pki/etcd-hook.crt",
    ];
    assert_eq!(paths, expected.map(std::path::PathBuf::from));
    let copies = |plan: &NodeSpec, authority| -> Vec<String> {
        let copies = plan.bundle(authority).unwrap().copies.iter();
        copies
            .map(|copy| format!("{} {}", copy.of, copy.path))
            .collect()
    };
    let expected = [
        "etcd-hook /etc/kubernetes/etcd-hook-front-proxy-ca.crt",
        "hook /etc/kubernetes/hook-front-proxy-ca.crt",
    ];
    assert_eq!(copies(&first, Authority::FrontProxyCa), expected);
    assert_eq!(spec.description.as_deref(), Some("Backup of etcd."));
    let CertFiles::Pair { group, .. } = spec.output else {
        panic!("{:?}", spec.output);
    };
    assert_eq!(group, Some(65532));
    let apiserver = &first.cert(CertName::Apiserver).unwrap().output;
    assert!(matches!(apiserver, CertFiles::Pair { group: None, .. }));
    let worker = JOIN
        .lines()
        .filter(|line| !line.starts_with("controlPlane"));
    let worker = planned(&worker.collect::<Vec<_>>().join("\n"), "", &choices);
    assert_eq!(names(&worker), ["kubelet.conf", "hook", "worker-hook"]);
    let expected = [
        "hook /etc/kubernetes/hook-ca.crt",
        "worker-hook /etc/kubernetes/worker-hook-ca.crt",
    ];
    assert_eq!(copies(&worker, Authority::Ca), expected);
    let notes = worker.notes.join("\n");
    assert!(
        notes.contains("certificates.registered.hook.caFiles.front-proxy-ca: this node has no CA certificate of front-proxy-ca"),
        "{notes}"
    );
}

const ENDPOINT: &str = "controlPlaneEndpoint: api.example\n";

fn joining_worker() -> String {
    let lines = JOIN
        .lines()
        .filter(|line| !line.starts_with("controlPlane"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn omits_only_kubeconfigs_that_no_component_needs() {
    let choices = Choices {
        omit: CertName::ALL.into_iter().collect(),
        ..Choices::default()
    };
    // `kubeadm init` needs admin.conf.
    for (node, all, omitted) in [
        (INIT, 12, vec![CertName::SuperAdminConf]),
        (JOIN, 11, vec![CertName::AdminConf]),
    ] {
        let plan = planned(node, &cluster(ENDPOINT), &choices);
        assert_eq!(plan.omitted, omitted);
        assert_eq!(plan.certs.len(), all - 1);
        assert!(plan.cert(omitted[0]).is_none());
        assert!(plan.certs.iter().all(|spec| !spec.is_omittable));
        let plan = planned(node, &cluster(ENDPOINT), &Choices::default());
        assert_eq!(plan.omitted, []);
        let omittable = plan.certs.iter().filter(|spec| spec.is_omittable);
        let omittable: Vec<CertName> = omittable.map(CertSpec::name).collect();
        assert_eq!(omittable, omitted);
    }
}

#[test]
fn external_etcd_leaves_certificates_of_other_authorities() {
    let fields = "etcd: {external: {endpoints: ['https://etcd:2379'], caFile: /e/ca.crt, certFile: /e/c.crt, keyFile: /e/c.key}}\n";
    let external = planned(INIT, &cluster(fields), &Choices::default());
    let stacked = planned(INIT, &cluster(""), &Choices::default());
    let of_others = stacked.certs.iter();
    let of_others = of_others.filter(|spec| spec.authority() != Authority::EtcdCa);
    let of_others: Vec<&str> = of_others.map(|spec| spec.name().as_str()).collect();
    assert_eq!(names(&external), of_others);
}

#[test]
fn ignores_only_preflight_errors_about_own_files() {
    let ignored = |node: &str| {
        let plan = planned(node, &cluster(ENDPOINT), &Choices::default());
        plan.ignore_preflight_errors
    };
    let kubelet = "FileAvailable--etc-kubernetes-kubelet.conf";
    let ca = "FileAvailable--etc-kubernetes-pki-ca.crt";
    assert_eq!(ignored(INIT), [""; 0]);
    assert_eq!(ignored(JOIN), [kubelet]);
    assert_eq!(ignored(&joining_worker()), [kubelet, ca]);
    let elsewhere = format!("{}\ncaCertPath: /etc/ssl/ca.crt\n", joining_worker());
    assert_eq!(ignored(&elsewhere), [kubelet]);
    let registration = "nodeRegistration: {name: cp2";
    for (names, expected) in [("[All]", &[][..]), ("[Swap]", &[kubelet])] {
        let field = format!("{registration}, ignorePreflightErrors: {names}");
        let join = JOIN.replace(registration, &field);
        assert_eq!(ignored(&join), expected, "{names}");
    }
}

#[test]
fn desires_subjects_of_kubeadm() {
    let choices = Choices {
        kubelet_serving: true,
        signs_for_kubelets: true,
        ..Choices::default()
    };
    let fields = cluster("kubernetesVersion: v1.34.0\n");
    let plan = planned(INIT, &fields, &choices);
    let subjects = |spec: &CertSpec| {
        let own = [&spec.requested.profile.subject];
        let all = own.into_iter().chain(&spec.other_subjects);
        all.map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let found: Vec<(&str, String)> = plan
        .certs
        .iter()
        .map(|spec| (spec.name().as_str(), subjects(spec)))
        .collect();
    let expected = [
        ("apiserver", "CN=kube-apiserver"),
        (
            "apiserver-kubelet-client",
            "O=kubeadm:cluster-admins, CN=kube-apiserver-kubelet-client; CN=kube-apiserver-kubelet-client; O=system:masters, CN=kube-apiserver-kubelet-client",
        ),
        ("front-proxy-client", "CN=front-proxy-client"),
        ("etcd-server", "CN=cp1"),
        ("etcd-peer", "CN=cp1"),
        (
            "etcd-healthcheck-client",
            "CN=kube-etcd-healthcheck-client; O=system:masters, CN=kube-etcd-healthcheck-client",
        ),
        (
            "apiserver-etcd-client",
            "CN=kube-apiserver-etcd-client; O=system:masters, CN=kube-apiserver-etcd-client",
        ),
        (
            "admin.conf",
            "O=kubeadm:cluster-admins, CN=kubernetes-admin; O=system:masters, CN=kubernetes-admin",
        ),
        (
            "super-admin.conf",
            "O=system:masters, CN=kubernetes-super-admin",
        ),
        ("kubelet.conf", "O=system:nodes, CN=system:node:cp1"),
        (
            "controller-manager.conf",
            "CN=system:kube-controller-manager",
        ),
        ("scheduler.conf", "CN=system:kube-scheduler"),
        ("kubelet-serving", "O=system:nodes, CN=system:node:cp1"),
        ("nodepki.conf", "O=nodepki:kubelet-signers, CN=nodepki:cp1"),
    ];
    for (name, subject) in expected {
        let one = found.iter().find(|(one, _)| *one == name);
        assert_eq!(one.map(|(_, one)| one.as_str()), Some(subject), "{name}");
    }
    assert_eq!(found.len(), expected.len(), "{found:?}");
}

#[test]
fn puts_names_and_addresses_into_server_certificates_only() {
    let choices = Choices {
        kubelet_serving: true,
        etcd_server_sans: vec![San::Dns("server.example".to_owned())],
        etcd_peer_sans: vec![San::Dns("peer.example".to_owned())],
        kubelet_serving_sans: vec![San::Ip("192.0.2.99".parse().unwrap())],
        ..Choices::default()
    };
    let fields = "etcd: {local: {serverCertSANs: [server.local], peerCertSANs: [peer.local]}}\n";
    let plan = planned(INIT, &cluster(fields), &choices);
    let addresses = "IP:192.0.2.11, IP:127.0.0.1, IP:::1";
    for spec in &plan.certs {
        let expected = match spec.name() {
            CertName::Apiserver => continue,
            CertName::EtcdServer => {
                format!("DNS:cp1, DNS:localhost, DNS:server.example, DNS:server.local, {addresses}")
            }
            CertName::EtcdPeer => {
                format!("DNS:cp1, DNS:localhost, DNS:peer.example, DNS:peer.local, {addresses}")
            }
            CertName::KubeletServing => "DNS:cp1, IP:192.0.2.11, IP:192.0.2.99".to_owned(),
            _ => String::new(),
        };
        let found = &spec.requested.profile.sans;
        if expected.is_empty() {
            assert!(found.is_empty(), "{}: {found}", spec.name())
        } else {
            assert_eq!(found.to_string(), expected, "{}", spec.name())
        }
    }
}

#[test]
fn desires_usages_of_kubeadm() {
    use crate::x509::ExtendedUsage::{ClientAuth, ServerAuth};
    for name in CertName::ALL {
        let expected = match name {
            CertName::Apiserver | CertName::KubeletServing => vec![ServerAuth],
            CertName::EtcdServer | CertName::EtcdPeer => vec![ServerAuth, ClientAuth],
            _ => vec![ClientAuth],
        };
        assert_eq!(usages(name), expected, "{name}");
    }
    for (name, expected) in [("hook", ServerAuth), ("hook-client", ClientAuth)] {
        let registered = CertName::Registered(name.parse().unwrap());
        assert_eq!(usages(registered), [expected], "{name}");
    }
}

#[test]
fn only_kubelet_conf_refers_to_store_of_kubelet() {
    let plan = planned(INIT, &cluster(""), &Choices::default());
    for spec in &plan.certs {
        if let CertFiles::Kubeconfig { store, .. } = &spec.output {
            let is_kubelet = spec.name() == CertName::KubeletConf;
            assert_eq!(store.is_some(), is_kubelet, "{}", spec.name());
        }
    }
}

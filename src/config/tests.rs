use std::path::Path;

use super::*;
use crate::kube::kubeadm::IpNet;
use crate::kube::names::CertName;
use crate::signer::{Config, SignerKind, directory, embedded, exec, local};
use crate::spec::KubeletLayout;
use crate::spec::policy::KeyPolicy;
use crate::spec::schedule::{OnPolicyChange, Percent, RenewAt, Window};
use crate::x509::KeyAlgorithm;
use crate::yaml::schema;

const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";
const PIN: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Every key that exists.
const FULL: &str = r#"
kubeadm:
  files: [/run/kubeadm/kubeadm.yaml]
  clusterConfiguration: /etc/nodepki/cluster.yaml
  fromCluster: merge
join: {certificateKey: "credential:certificate-key", writeCAKeys: true}
nodeName: CP-1.example.com
authorities:
  ca:
    signer: corp
    trust: {file: /etc/kubernetes/pki/ca.crt, sha256: ["sha256:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"]}
  etcd-ca:
    signer: drop
    allowExtraUsages: true
    maxLifetime: 43800h
    trust: {file: /etc/etcd-ca.crt, sha256: ["00:01:02:03:04:05:06:07:08:09:0A:0B:0C:0D:0E:0F:10:11:12:13:14:15:16:17:18:19:1A:1B:1C:1D:1E:1F"]}
  front-proxy-ca:
    signer: disk
    allowExtraUsages: false
    trust: {file: /etc/fp-ca.crt, sha256: []}
signers:
  corp:
    exec:
      command: /usr/libexec/corp-sign
      args: [--profile, node]
      env: {CORP_PASSWORD: hunter2}
      timeout: 90s
      runAsUser: 1000
      params: {profile: kubernetes, apiToken: hunter3}
  drop: {directory: {path: /srv/drop}}
  disk: {local: {directory: /srv/ca}}
  lab: {embedded: {}}
pki:
  defaults: {key: {algorithm: RSA, rsa: {keySize: 3072}}}
  categories: [{category: ClientCertificate, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}]
  overrides: [{certificateName: etcd-server, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}]
subjects: {apiserver-kubelet-client: "kubeadm:cluster-admins"}
verification: strict
commonNames:
  apiserver: "kube-apiserver.{node}"
  front-proxy-client: front-proxy-client.example
  etcd-server: "{certificate}.{node}"
  etcd-peer: "{certificate}.{node}.{cluster}"
  etcd-healthcheck-client: check
  apiserver-etcd-client: "{authority} client"
extraSANs:
  apiserver: [localhost, 127.0.0.1]
  etcd-server: [etcd.example.com]
  etcd-peer: [2001:db8::1]
  kubelet-serving: [node.example.com, 192.0.2.99]
certificates:
  omit: [super-admin.conf, admin.conf]
  registered:
    konnectivity-server:
      description: Agents of the konnectivity network.
      authority: ca
      category: ServingCertificate
      nodes: controlPlane
      commonName: konnectivity.{node}
      organizations: [konnectivity]
      sans: ["{node}", "{address}", konnectivity.example.com]
      clientAuth: true
      certificate: /etc/kubernetes/konnectivity/server.crt
      key: /etc/kubernetes/konnectivity/server.key
      group: 65532
      caFiles: {ca: /etc/kubernetes/konnectivity/ca.crt, etcd-ca: /etc/kubernetes/konnectivity/etcd-ca.crt, front-proxy-ca: /etc/kubernetes/konnectivity/front-proxy-ca.crt}
      reload: {unit: konnectivity.service, action: reload, pod: konnectivity-server}
kubeconfig: {credentials: file}
kubelet: {identity: bootstrap, clientCertificate: file, serving: true}
kubelets: {sign: true, approveServing: true, approveClient: true, signPods: true, lifetime: 24h, keys: [ECDSA-P256], names: ["{node}.example.com"], domains: [ec2.internal], networks: [192.0.2.0/24], tokenGroups: ["system:bootstrappers:workers"], nodeNames: {"system:bootstrappers:workers": [worker-*]}, tokenLifetime: 12h, nodesPerToken: 300, revoked: [w9], requestsPerSecond: 20, lease: kubelets}
wait: 10m
clock: {maxWait: 5m}
clusterPolicy: {enabled: true, required: true, kubeconfig: /etc/nodepki/policy.conf}
nodeEvents: {enabled: true, kubeconfig: /etc/nodepki/events.conf}
nodeReport: {enabled: true, kubeconfig: /etc/nodepki/report.conf}
authorityRotation: {enabled: true, kubeconfig: /etc/nodepki/rotation.conf}
rotation: {renewAt: 720h, jitter: 5%, minRemaining: 2h, window: ["Mon-Fri 22:00-04:00", {cron: "0 2 * * 0", duration: 3h}], rekey: false, onPolicyChange: now}
crlRefreshInterval: 1h
reload:
  staticPods: false
  coordinateWithLease: false
  timeout: 90s
  lease: {kubeconfig: /etc/kubernetes/super-admin.conf, duration: 30s}
  hooks: [{on: [admin.conf, kube-scheduler], command: [/usr/local/sbin/after-renewal, --now], timeout: 10s}]
  units: [{on: [kubelet], unit: kubelet.service, action: reload-or-restart}]
metrics: {textfile: /var/lib/node_exporter/textfile_collector/nodepki.prom, listen: "127.0.0.1:9465"}
"#;

fn settings(body: &str) -> Settings {
    let (settings, warnings) =
        Settings::from_fragments(&[("c.yaml", format!("{HEAD}{body}"))]).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    settings
}

fn faults(body: &str) -> String {
    // The body of a test begins in line 3.
    Settings::from_fragments(&[("c.yaml", format!("{HEAD}{body}"))])
        .unwrap_err()
        .to_string()
}

#[test]
fn reads_every_key() {
    let (settings, warnings) =
        Settings::from_fragments(&[("c.yaml", format!("{HEAD}{FULL}"))]).unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "c.yaml:34:8: signers.lab: is defined, but no authority uses it (add authorities: {ca: {signer: lab}}, or remove it)"
        ]
    );
    assert_eq!(
        settings.kubeadm.files,
        [PathBuf::from("/run/kubeadm/kubeadm.yaml")]
    );
    assert_eq!(
        settings.kubeadm.cluster_configuration,
        Some(PathBuf::from("/etc/nodepki/cluster.yaml"))
    );
    assert_eq!(
        settings.node_name.as_ref().map(NodeName::as_str),
        Some("cp-1.example.com")
    );
    assert_eq!(settings.verification, Verification::Strict);
    let pin: [u8; 32] = std::array::from_fn(|index| index as u8);
    let ca = &settings.authorities[&Authority::Ca];
    assert_eq!(ca.trust_sha256, [pin]);
    assert_eq!(settings.authorities[&Authority::EtcdCa].trust_sha256, [pin]);
    let tolerant = Authority::ALL.map(|one| settings.authorities[&one].allow_extra_usages);
    assert_eq!(tolerant, [false, false, true]);
    let longest = Authority::ALL.map(|one| settings.authorities[&one].max_lifetime);
    assert_eq!(
        longest,
        [None, None, Some(Duration::from_secs(43_800 * 60 * 60))]
    );
    assert_eq!(
        ca.trust_file,
        Some(PathBuf::from("/etc/kubernetes/pki/ca.crt"))
    );
    let Some(("corp", Config::Exec(exec))) = settings.signer_of(Authority::Ca) else {
        panic!()
    };
    assert_eq!(exec.timeout, Duration::from_secs(90));
    assert_eq!(exec.run_as_user.as_deref(), Some("1000"));
    assert_eq!(exec.env["CORP_PASSWORD"], "hunter2");
    assert_eq!(
        settings.signer_of(Authority::EtcdCa),
        Some((
            "drop",
            &Config::Directory(directory::Config::new("/srv/drop"))
        ))
    );
    assert_eq!(
        settings.signer_of(Authority::FrontProxyCa),
        Some((
            "disk",
            &Config::Local(local::Config {
                directory: "/srv/ca".into()
            })
        ))
    );
    let policy = KeyPolicy::new(settings.pki.clone().unwrap(), KeyAlgorithm::Rsa2048);
    assert_eq!(
        policy.key_for(CertName::EtcdServer),
        KeyAlgorithm::EcdsaP384
    );
    assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::Rsa3072);
    assert_eq!(
        settings.kubelet_client_subject,
        KubeletClientSubject::ClusterAdmins
    );
    assert_eq!(settings.common_names.len(), 6);
    assert_eq!(
        settings.common_names[&CertName::EtcdServer],
        "{certificate}.{node}"
    );
    assert_eq!(settings.extra_sans.apiserver.len(), 2);
    assert_eq!(settings.omit, CertName::OMITTABLE.into());
    assert_eq!(
        settings.kubelet,
        KubeletSettings {
            identity: KubeletIdentity::Bootstrap,
            client_certificate: KubeletLayout::File,
            serving: true,
        }
    );
    assert_eq!(settings.extra_sans.kubelet_serving.len(), 2);
    assert_eq!(
        settings.kubelets,
        KubeletPolicy {
            sign: true,
            approve_serving: true,
            approve_client: true,
            sign_pods: true,
            lifetime: Duration::from_secs(24 * 3600),
            token_lifetime: Duration::from_secs(12 * 3600),
            keys: vec![KeyAlgorithm::EcdsaP256],
            names: vec!["{node}.example.com".parse().unwrap()],
            domains: vec!["ec2.internal".to_owned()],
            networks: vec![IpNet::parse("192.0.2.0/24").unwrap().0],
            token_groups: vec!["system:bootstrappers:workers".to_owned()],
            node_names: BTreeMap::from([(
                "system:bootstrappers:workers".to_owned(),
                vec!["worker-*".parse().unwrap()],
            )]),
            nodes_per_token: 300,
            revoked: vec!["w9".to_owned()],
            requests_per_second: 20,
            lease: "kubelets".to_owned(),
        }
    );
    assert_eq!(
        settings.cluster_policy,
        ClusterPolicySettings {
            enabled: true,
            required: true,
            kubeconfig: "/etc/nodepki/policy.conf".into(),
        }
    );
    assert_eq!(
        settings.node_events,
        NodeEventSettings {
            enabled: true,
            kubeconfig: "/etc/nodepki/events.conf".into(),
        }
    );
    assert_eq!(
        settings.node_report,
        NodeReportSettings {
            enabled: true,
            kubeconfig: "/etc/nodepki/report.conf".into(),
        }
    );
    assert_eq!(
        settings.authority_rotation,
        RotationSettings {
            enabled: true,
            kubeconfig: Some("/etc/nodepki/rotation.conf".into()),
        }
    );
    assert_eq!(settings.wait, Duration::from_secs(600));
    assert_eq!(settings.clock_max_wait, Duration::from_secs(300));
    assert_eq!(settings.crl_refresh_interval, Duration::from_secs(3600));
    assert_eq!(
        settings.rotation,
        Rotation {
            renew_at: RenewAt::Before(Duration::from_secs(720 * 3600)),
            jitter: Percent::new(5).unwrap(),
            min_remaining: Duration::from_secs(7200),
            windows: vec![
                Window::weekly("Mon-Fri 22:00-04:00").unwrap(),
                Window::cron("0 2 * * 0", Duration::from_secs(10800)).unwrap(),
            ],
            rekey: false,
            on_policy_change: OnPolicyChange::Now,
        }
    );
}

#[test]
fn uses_defaults_without_fragments() {
    let (settings, _) = Settings::from_fragments::<&str, &str>(&[]).unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.wait, Duration::from_secs(30));
    assert_eq!(settings.authorities.len(), 3);
    assert_eq!(settings.signer_of(Authority::Ca), None);
}

#[test]
fn single_signer_signs_for_all_authorities() {
    let settings =
        settings("signers: {one: {embedded: {}}}\nauthorities: {ca: {trust: {file: /a}}}\n");
    for authority in Authority::ALL {
        assert_eq!(
            settings.signer_of(authority),
            Some(("one", &Config::Embedded(embedded::Config)))
        );
    }
}

#[test]
fn later_fragment_replaces_earlier_values() {
    let (settings, _) = Settings::from_fragments(&[
        ("a", format!("{HEAD}wait: 1m\nnodeName: a\nextraSANs: {{apiserver: [a, b]}}\nsigners: {{x: {{exec: {{command: /x, args: [a]}}}}}}\n")),
        ("b", format!("{HEAD}wait: 2m\nextraSANs: {{apiserver: [c]}}\nsigners: {{x: {{exec: {{timeout: 5s}}}}}}\n---\n")),
        ("c", format!("{HEAD}nodeName: null\n")),
    ])
    .unwrap();
    assert_eq!(settings.wait, Duration::from_secs(120));
    assert_eq!(settings.node_name, None);
    assert_eq!(settings.extra_sans.apiserver, [San::Dns("c".to_owned())]);
    let Some((_, Config::Exec(exec))) = settings.signer_of(Authority::Ca) else {
        panic!()
    };
    assert_eq!(
        (exec.args.as_slice(), exec.timeout),
        (&["a".to_owned()][..], Duration::from_secs(5))
    );
}

#[test]
fn reports_all_faults_of_all_fragments() {
    let first = format!(
        "{HEAD}kubeadm: {{files: [kubeadm.yaml, 5], clusterConfig: /x}}\n\
         nodeName: bad_name\n\
         wiat: 5s\n\
         wait: 5\n\
         reload: {{restart: true}}\n\
         kubelet: {{identity: own}}\n\
         wait: 6s\n"
    );
    let second = format!(
        "{HEAD}authorities:\n  \
           ca: {{signer: crop, trust: {{sha256: [abc]}}}}\n  \
           etcd: {{signer: corp}}\n\
         signers:\n  \
           corp: {{embedded: {{}}}}\n  \
           two: {{embedded: {{}}, local: {{directory: /x}}}}\n  \
           none: {{}}\n  \
           plug: {{exec: {{comand: /x, timeout: 1h}}}}\n  \
           odd: {{acme: {{}}}}\n\
         extraSANs: {{apiserver: [10.0.0.0/24]}}\n"
    );
    let third = "apiVersion: nodepki.io/v1\n";
    let faults = Settings::from_fragments(&[
        ("a.yaml", first.as_str()),
        ("b.yaml", &second),
        ("c.yaml", third),
    ])
    .unwrap_err();
    let kinds = SignerKind::ALL.map(SignerKind::as_str);
    let mut sorted = kinds;
    sorted.sort_unstable();
    let expected = "a.yaml:3:19: kubeadm.files[0]: \"kubeadm.yaml\" is not an absolute path (begin it with /)\n\
         a.yaml:3:33: kubeadm.files[1]: unquoted 5 is a number, must be text (begin it with /)\n\
         a.yaml:3:37: kubeadm.clusterConfig: unknown field (did you mean clusterConfiguration?)\n\
         a.yaml:4:11: nodeName: \"bad_name\" is not a valid node name: only lower-case letters, digits, - and . are allowed, beginning and ending with a letter or digit (use a DNS name, or remove nodeName to take kubeadm's)\n\
         a.yaml:5:1: wiat: unknown field (did you mean wait?)\n\
         a.yaml:7:10: reload.restart: unknown field (known here: coordinateWithLease, hooks, lease, staticPods, timeout, units)\n\
         a.yaml:8:21: kubelet.identity: \"own\" is not possible here (use issue, bootstrap)\n\
         a.yaml:9:1: wait: is given twice, first in line 6 (keep one of them)\n\
         b.yaml:4:16: authorities.ca.signer: signer \"crop\" is not defined (did you mean corp?)\n\
         b.yaml:4:39: authorities.ca.trust.sha256[0]: is not a SHA-256 pin of 64 hex digits (print it with: openssl x509 -in ca.crt -noout -pubkey | openssl pkey -pubin -outform der | sha256sum)\n\
         b.yaml:5:3: authorities.etcd: unknown field (did you mean etcd-ca?)\n\
         b.yaml:8:8: signers.two: has several kinds: local, embedded (keep one, or make a signer of each; a later fragment adds to the map of an earlier one)\n\
         b.yaml:9:9: signers.none: has no kind (add one of KINDS, as in local: {directory: DIR})\n\
         b.yaml:10:16: signers.plug.exec: has no command (add command: with the absolute path of the plug-in)\n\
         b.yaml:10:17: signers.plug.exec.comand: unknown field (did you mean command?)\n\
         b.yaml:10:38: signers.plug.exec.timeout: 1h is not between 1ms and 10m (use up to 10m; a plug-in that needs longer answers \"pending\")\n\
         b.yaml:11:8: signers.odd: has no kind (add one of KINDS, as in local: {directory: DIR})\n\
         b.yaml:11:9: signers.odd.acme: unknown field (known here: SORTED)\n\
         b.yaml:12:25: extraSANs.apiserver[0]: \"10.0.0.0/24\" is not an IP address, a DNS name or a wildcard DNS name (a certificate cannot contain a network; list each address)\n\
         c.yaml:1:1: kind: is missing (write kind: NodePKIConfiguration)\n\
         c.yaml:1:13: apiVersion: is \"nodepki.io/v1\", this program reads nodepki.io/v1alpha1 (write apiVersion: nodepki.io/v1alpha1)"
        .replace("KINDS", &kinds.join(", "))
        .replace("SORTED", &sorted.join(", "));
    assert_eq!(faults.to_string(), expected);
}

#[test]
fn reports_fault_with_position_and_fix() {
    for (body, want) in [
        (
            "wait: 5\n",
            "c.yaml:3:7: wait: \"5\" has a number without a unit (write 5s; units are h, m and s)",
        ),
        (
            "kubeadm: {files: []}\n",
            "c.yaml:3:18: kubeadm.files: names no file (list at least one, or remove the key)",
        ),
        (
            "authorities: {ca: {signer: x}}\n",
            "c.yaml:3:28: authorities.ca.signer: signer \"x\" is not defined (define it: signers: {x: {local: {directory: DIR}}})",
        ),
        (
            "signers: {a: {local: {}}}\n",
            "c.yaml:3:22: signers.a.local: has no directory (add directory: with an absolute path)",
        ),
        (
            "subjects: {apiserver-kubelet-client: masters}\n",
            "c.yaml:3:38: subjects.apiserver-kubelet-client: \"masters\" is not possible here (use auto, none, kubeadm:cluster-admins, system:masters)",
        ),
        (
            "signers: {../x: {embedded: {}}}\n",
            "c.yaml:3:17: signers.../x: is not a valid signer name: it becomes part of a path in the state directory (use up to 63 letters, digits, -, _ and .)",
        ),
        (
            "nodeName: yes\n",
            "c.yaml:3:11: nodeName: unquoted yes is a boolean, must be text (write \"yes\" in quotes)",
        ),
        (
            "metrics: {textfile: /var/lib/node_exporter/nodepki.txt}\n",
            "c.yaml:3:21: metrics.textfile: node_exporter does not read /var/lib/node_exporter/nodepki.txt (use a name that ends with .prom)",
        ),
        (
            "metrics: {listen: localhost}\n",
            "c.yaml:3:19: metrics.listen: \"localhost\" is not a valid IP:port address (write 127.0.0.1:9465 or [::1]:9465)",
        ),
        (
            "rotation: {renewAt: 66}\n",
            "c.yaml:3:21: rotation.renewAt: \"66\" is neither a share nor a duration (write 66% for this share of the lifetime)",
        ),
        (
            "rotation: {jitter: 120%}\n",
            "c.yaml:3:20: rotation.jitter: \"120%\" is not a share from 0% to 100% (write a percentage, as in 10%)",
        ),
        (
            "rotation: {jitter: 60%}\n",
            "c.yaml:3:20: rotation.jitter: 60% is more than half of the lifetime, before which no renewal happens (use 50% or less)",
        ),
        (
            "rotation: {window: [\"Sun 02:00-05:00\", \"Sun 2-5\"]}\n",
            "c.yaml:3:40: rotation.window[1]: \"2-5\" is not a time range (write days and UTC times, as in \"Sun 02:00-05:00\" or \"Mon-Fri 22:00-04:00\")",
        ),
        (
            "rotation: {window: {cron: \"0 2 * *\", duration: 3h}}\n",
            "c.yaml:3:27: rotation.window.cron: \"0 2 * *\" has 4 fields, not five (write minute, hour, day of month, month and day of week in UTC, as in \"0 2 * * 0\")",
        ),
        (
            "rotation: {window: {cron: \"0 2 * * *\"}}\n",
            "c.yaml:3:20: rotation.window: has no duration (add duration: 3h)",
        ),
        (
            "rotation: {window: []}\n",
            "c.yaml:3:20: rotation.window: names no window (list at least one, or remove the key)",
        ),
        (
            "crlRefreshInterval: 30s\n",
            "c.yaml:3:21: crlRefreshInterval: 30s is out of bounds (write one from 1m to 24h)",
        ),
        (
            "crlRefreshInterval: 48h\n",
            "c.yaml:3:21: crlRefreshInterval: 48h is out of bounds (write one from 1m to 24h)",
        ),
        (
            "rotation: {rekeys: true}\n",
            "c.yaml:3:12: rotation.rekeys: unknown field (did you mean rekey?)",
        ),
        (
            "pki: {defaults: {key: {algorithm: RSA, rsa: {keySize: 8192}}}}\n",
            "c.yaml:3:55: pki.defaults.key.rsa.keySize: RSA keys of 8192 bits are not supported: each handshake would cost many times that of 4096 bits, and kubeadm has no name for them (use 2048, 3072 or 4096)",
        ),
        (
            "a: [1\n",
            "c.yaml:4:1: not valid YAML: while parsing a flow sequence, expected ',' or ']' (correct the syntax here or in the line above)",
        ),
    ] {
        let text = faults(body);
        assert_eq!(text, want);
    }
}

#[test]
fn reads_environment_values_as_written() {
    let settings = settings("signers: {x: {exec: {command: /x, env: {PIN: 0070, FLAG: yes}}}}\n");
    let Some((_, Config::Exec(exec))) = settings.signer_of(Authority::Ca) else {
        panic!()
    };
    assert_eq!(
        (exec.env["PIN"].as_str(), exec.env["FLAG"].as_str()),
        ("0070", "yes")
    );
}

#[test]
fn parses_signer_flags() {
    let parse = |text: &str| text.parse::<Config>();
    assert_eq!(parse("embedded"), Ok(Config::Embedded(embedded::Config)));
    assert_eq!(
        parse("local:/ca"),
        Ok(Config::Local(local::Config {
            directory: "/ca".into()
        }))
    );
    assert_eq!(
        parse("directory:/a:b"),
        Ok(Config::Directory(directory::Config::new("/a:b")))
    );
    assert_eq!(parse("exec:/x"), Ok(Config::Exec(exec::Config::new("/x"))));
    for (text, want) in [
        (
            "local",
            "--signer local needs a path: write local:DIR, the directory with ca.crt and ca.key",
        ),
        (
            "local:",
            "--signer local needs a path: write local:DIR, the directory with ca.crt and ca.key",
        ),
        (
            "directory",
            "--signer directory needs a path: write directory:DIR, the directory for requests and answers",
        ),
        (
            "exec",
            "--signer exec needs a path: write exec:PATH, the plug-in program",
        ),
        (
            "exec:sign",
            "--signer exec:sign: the program must be an absolute path, it is not searched in PATH",
        ),
        (
            "embedded:x",
            "--signer embedded has no value: write --signer embedded without :x",
        ),
        (
            "vault:x",
            "--signer vault has settings that a flag cannot express: configure it under signers in /etc/nodepki/config.yaml, or name a file with --config",
        ),
        (
            "lokal:/x",
            "\"lokal\" is not a kind of signer: did you mean local? (embedded, local:DIR, directory:DIR or exec:PATH)",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), want);
    }
}

#[test]
fn command_line_replaces_configuration_file() {
    let (settings, _) = Settings::from_fragments(&[("c.yaml", format!("{HEAD}{FULL}"))]).unwrap();
    let settings = settings.with(CommandLineSettings {
        kubeadm_configs: vec!["k.yaml".into()],
        signer: Some(Config::Embedded(embedded::Config)),
        node_name: Some("n1".parse().unwrap()),
    });
    assert!(settings.kubeadm.files.is_empty());
    assert_eq!(settings.kubeadm.arguments, ["k.yaml".into()]);
    assert_eq!(settings.signer_origin, Origin::CommandLine);
    assert_eq!(
        settings.node_name.as_ref().map(NodeName::as_str),
        Some("n1")
    );
    for authority in Authority::ALL {
        assert_eq!(
            settings.signer_of(authority),
            Some(("command-line", &Config::Embedded(embedded::Config)))
        );
    }
    assert_eq!(settings.authorities[&Authority::Ca].trust_sha256.len(), 1);
}

#[test]
fn redacted_settings_hide_secrets_and_read_back() {
    let (settings, _) = Settings::from_fragments(&[("c.yaml", format!("{HEAD}{FULL}"))]).unwrap();
    let shown = yaml::to_string(&settings.redacted()).unwrap();
    assert!(!shown.contains("hunter"), "{shown}");
    assert!(shown.contains("CORP_PASSWORD: (redacted)"), "{shown}");
    assert!(shown.contains("apiToken: (redacted)"), "{shown}");
    assert!(shown.contains("profile: kubernetes"), "{shown}");
    assert!(shown.contains(PIN), "{shown}");
    assert!(!format!("{settings:?}").contains("hunter"));
    let (mut again, _) = Settings::from_fragments(&[("shown", &shown)]).unwrap();
    // Only the secrets and the positions of the policy differ.
    let Some(Config::Exec(exec)) = again.signers.get_mut("corp") else {
        panic!()
    };
    exec.env
        .insert("CORP_PASSWORD".to_owned(), "hunter2".to_owned());
    exec.params
        .insert("apiToken".to_owned(), "hunter3".to_owned());
    assert_eq!(again.redacted(), settings.redacted());
    assert_eq!(again.signers, settings.signers);
    assert_eq!(again.authorities, settings.authorities);
    assert_eq!(again.extra_sans, settings.extra_sans);
    assert_eq!(again.common_names, settings.common_names);
    assert_eq!(again.omit, settings.omit);
}

#[test]
fn refuses_to_omit_certificate_that_node_needs() {
    for (name, expected) in [
        (
            "apiserver",
            "certificates.omit[0]: apiserver cannot be omitted: the node does not work without it (remove it; super-admin.conf and admin.conf can be omitted)",
        ),
        ("kubelet.conf", "kubelet.conf cannot be omitted"),
        (
            "superadmin.conf",
            "\"superadmin.conf\" is not the name of a certificate (did you mean super-admin.conf?)",
        ),
    ] {
        let faults = faults(&format!("certificates: {{omit: [{name}]}}\n"));
        assert!(faults.contains(expected), "{faults}");
    }
}

#[test]
fn refuses_kubelets_with_signer_that_cannot_sign_for_other_nodes() {
    let refused = |signer: &str| {
        faults(&format!(
            "kubelets: {{sign: true}}\nauthorities: {{ca: {{signer: x}}}}\nsigners: {{x: {signer}}}\n"
        ))
    };
    for (signer, expected) in [
        (
            "{embedded: {}}",
            "its CA keys exist only in the memory of one process",
        ),
        (
            "{puppet: {url: \"https://puppet:8140\", tls: {caFile: /ca.pem}}}",
            "Puppet certifies neither an organization",
        ),
        (
            "{vault: {address: \"https://vault:8200\", mount: pki, auth: {tokenFile: /token}, tls: {caFile: /ca.pem}}}",
            "its role for kubelet.conf contains {node}",
        ),
        (
            "{kubernetes: {server: \"https://m:6443\", tokenFile: /token, tls: {caFile: /ca.pem}, signerName: kubernetes.io/kubelet-serving}}",
            "its signerName for kubelet.conf is that of the requests which nodepki is to sign",
        ),
        (
            "{kubernetes: {server: \"https://m:6443\", tokenFile: /token, tls: {caFile: /ca.pem}, signerName: \"pki.example.com/{node}\"}}",
            "its signerName for kubelet.conf contains {node}",
        ),
        (
            "{stepCA: {url: \"https://ca:9000\", provisioner: p, tls: {caFile: /ca.pem}, auth: {token: {file: \"/t/{certificate}\"}}}}",
            "each request needs a one-time token",
        ),
    ] {
        let text = refused(signer);
        assert!(
            text.contains(
                "c.yaml:3:18: kubelets.sign: signer x of authority ca cannot sign for kubelets"
            ) && text.contains(expected),
            "{signer}: {text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let accepted = settings(
        "kubelets: {sign: true, approveServing: true}\nsigners: {x: {local: {directory: /ca}}}\n",
    );
    assert!(accepted.kubelets.sign);
}

#[test]
fn warns_of_approval_without_signature() {
    let fragment = format!("{HEAD}kubelets: {{approveServing: true, approveClient: false}}\n");
    let (_, warnings) = Settings::from_fragments(&[("c.yaml", fragment)]).unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "c.yaml:3:28: kubelets.approveServing: has no effect, because kubelets.sign is not set (add kubelets: {sign: true}, or remove it)"
        ]
    );
}

#[test]
fn warns_of_key_types_without_that_of_kubelets() {
    let block =
        "kubelets: {sign: true, keys: [RSA-4096]}\nsigners: {x: {local: {directory: /ca}}}\n";
    let fragment = format!("{HEAD}{block}");
    let (_, warnings) = Settings::from_fragments(&[("c.yaml", fragment)]).unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "c.yaml:3:30: kubelets.keys: a kubelet makes ECDSA-P256 keys only, so every request for its own certificates would be denied (add ECDSA-P256)"
        ]
    );
}

#[test]
fn reports_all_faults_of_kubelets() {
    let text = faults(
        r#"
kubelets:
  lifetime: 9m
  keys: []
  names: [node.example.com, "{node}_x"]
  domains: ["*.ec2.internal"]
  networks: [192.0.2.1]
  tokenGroups: ["system:masters"]
  tokenLifetime: 1m
  nodeNames: {"system:bootstrappers:edge": [edge_*, "a*b*"]}
  requestsPerSecond: 0
  nodesPerToken: 100001
  revoked: [w1, W2]
  lease: No Lease
  sing: true
"#,
    );
    for part in [
        "kubelets.lifetime: 9m is too short",
        "kubelets.keys: names no key type",
        "does not contain {node} exactly once",
        "does not become a DNS name",
        "kubelets.domains[0]: \"*.ec2.internal\" is not a DNS domain in lower case",
        "is not a network in CIDR notation",
        "kubelets.tokenLifetime: 1m is too short",
        "\"edge_*\" is not a pattern of node names",
        "\"a*b*\" is not a pattern of node names",
        "\"system:bootstrappers:edge\" is not in kubelets.tokenGroups",
        "\"system:masters\" is not a group of bootstrap tokens",
        "kubelets.requestsPerSecond: 0 is out of range",
        "kubelets.nodesPerToken: 100001 is out of range (use a number from 1 to 100000)",
        "kubelets.revoked[1]: \"W2\" is not a valid node name",
        "is not a valid name of a Lease",
        "did you mean sign?",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn refuses_common_name_that_is_an_identity() {
    for (line, expected) in [
        (
            "admin.conf: me",
            "the common name of admin.conf is its identity in Kubernetes",
        ),
        (
            "apiserver-kubelet-client: me",
            "is its identity in Kubernetes (remove it; free are those of apiserver, front-proxy-client, etcd-server, etcd-peer, etcd-healthcheck-client, apiserver-etcd-client)",
        ),
        ("etcd-pear: x", "did you mean etcd-peer?"),
        ("etcd-peer: \"{host}\"", "has an unknown placeholder"),
        ("etcd-peer: \"\"", "is not a valid common name"),
        ("etcd-peer: \" x\"", "is not a valid common name"),
        ("etcd-peer: \"ä\"", "is not a valid common name"),
        ("apiserver: system:masters", "is reserved by Kubernetes"),
    ] {
        let faults = faults(&format!("commonNames: {{{line}}}\n"));
        assert!(faults.contains(expected), "{line}: {faults}");
    }
}

/// Finds a path of the table's notation in the schema, following references.
fn lookup<'a>(root: &'a Value, path: &str) -> Option<&'a Value> {
    let mut at = root;
    for step in path.split('.') {
        let (name, lists) = (step.trim_end_matches("[]"), step.matches("[]").count());
        at = follow(root, at);
        at = match name {
            "*" => alternatives(at).find_map(|one| {
                let next = one.get("additionalProperties")?;
                next.is_object().then_some(next)
            })?,
            name => alternatives(at).find_map(|one| one.get("properties")?.get(name))?,
        };
        for _ in 0..lists {
            at = follow(root, at).get("items")?;
        }
    }
    Some(follow(root, at))
}

fn follow<'a>(root: &'a Value, at: &'a Value) -> &'a Value {
    match at.get("$ref").and_then(Value::as_str) {
        Some(reference) => root.pointer(reference.trim_start_matches('#')).unwrap(),
        None => at,
    }
}

fn alternatives(at: &Value) -> impl Iterator<Item = &Value> {
    let list = at
        .get("oneOf")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    std::iter::once(at).chain(list)
}

#[test]
fn packaged_configuration_states_declared_defaults() {
    // Prose has one space after the `#`, a key none or more than one.
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(' ') && !rest.starts_with("  ") => String::new(),
        Some(rest) if rest.starts_with("   nodepki ") => String::new(),
        Some(rest) => rest.to_owned(),
        None => line.to_owned(),
    };
    let packaged = include_str!("../../packaging/config.yaml").lines();
    let text: String = packaged.map(|text| line(text) + "\n").collect();
    let written = yaml::to_json(&yaml::parse("config.yaml", &text).unwrap()[0]);
    let mut compared = 0;
    for row in schema::rows("", keys::FRAGMENT) {
        if row.key.default_text().is_some() {
            let mut stated = row.path.trim_end_matches("[]").split('.');
            let stated = stated.try_fold(&written, |at, step| match step {
                "*" => at.as_object()?.values().next(),
                name => at.get(name),
            });
            assert_eq!(stated.cloned(), (row.key.default)(), "{}", row.path);
            compared += 1;
        }
    }
    assert!(compared > 15, "{compared}");
}

#[test]
fn table_schema_and_reader_have_the_same_keys() {
    let managed = "\npki: {certificateManagement: {mode: Custom, custom: {defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}, overrides: [{type: Category, category: {name: Signer}, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}]}}}\n";
    let mut asked = Vec::new();
    let mut texts = vec![format!("{HEAD}{FULL}"), format!("{HEAD}{managed}")];
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/signers"));
    for kind in SignerKind::ALL {
        // One file, or several if keys exclude each other.
        let files = std::fs::read_dir(golden.join(kind.as_str())).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let mut keys: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|one| one == "yaml"))
            .collect();
        keys.sort();
        assert!(!keys.is_empty(), "{kind} shows no keys");
        texts.extend(
            keys.iter()
                .map(|path| std::fs::read_to_string(path).unwrap()),
        );
    }
    for text in texts {
        let root = yaml::parse("c", &text).unwrap().remove(0);
        let walk = Walk::new(true);
        Settings::read(
            &Field::root(&walk, &root).map().unwrap(),
            &mut Faults::default(),
        );
        asked.extend(walk.asked());
        assert!(!walk.into_faults().has_errors());
    }
    let schema = Settings::schema();
    let signers = SignerKind::ALL
        .into_iter()
        .flat_map(|kind| schema::rows(&format!("signers.*.{kind}"), kind.about().keys));
    let table: Vec<String> = schema::rows("", keys::FRAGMENT)
        .into_iter()
        .chain(signers)
        .map(|row| row.path)
        .filter(|path| !["apiVersion", "kind"].contains(&path.as_str()))
        .collect();
    for path in &asked {
        // A setting per certificate is one key in the table.
        let path_of_all = path.strip_suffix(".*").unwrap_or(path);
        let known = table.iter().any(|key| {
            key == path
                || key == path_of_all
                || key.starts_with(&format!("{path}."))
                || *key == format!("{path}[]")
                || key
                    .strip_suffix(".*")
                    .is_some_and(|map| path.starts_with(map))
        });
        assert!(
            known
                || [
                    "pki.",
                    "rotation.window",
                    "reload.hooks[",
                    "reload.units[",
                    "signers.*.embedded",
                ]
                .iter()
                .any(|defined| path.starts_with(defined)),
            "{path} is read but not in the table"
        );
        // Maps such as `local` are read too; the schema must contain every path.
        assert!(
            lookup(&schema, path).is_some(),
            "{path} is read but not in the schema"
        );
    }
    for key in &table {
        let path = key.trim_end_matches("[]");
        assert!(
            asked.iter().any(|asked| asked == path),
            "{path} is in the table but not read"
        );
    }
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert_eq!(
        lookup(&schema, "kubelet.identity").unwrap()["enum"],
        json!(["issue", "bootstrap"])
    );
}

#[test]
fn collects_fragments_in_order() {
    let list = |directory: &Path| {
        Ok(match directory.to_str() {
            Some("/etc/nodepki/config.d") => {
                vec!["20-b.yaml".to_owned(), "10-a.yaml".into(), "x.bak".into()]
            }
            _ => vec!["run.yaml".to_owned(), ".hidden.yaml".into()],
        })
    };
    let read = |path: &Path| Ok(Some(path.display().to_string()));
    let names: Vec<String> = collect(None, list, read, Path::to_owned)
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(
        names,
        [
            "/etc/nodepki/config.yaml",
            "/etc/nodepki/config.d/10-a.yaml",
            "/etc/nodepki/config.d/20-b.yaml",
            "/run/nodepki/run.yaml",
        ]
    );
    let only = collect(Some(Path::new("/x.yaml")), list, read, Path::to_owned).unwrap();
    assert_eq!(only.len(), 1);
    let error = collect(
        Some(Path::new("/x.yaml")),
        list,
        |_: &Path| Ok(None),
        Path::to_owned,
    )
    .unwrap_err();
    assert_eq!(error.to_string(), "/x.yaml: does not exist");
    assert!(
        collect(None, list, |_: &Path| Ok(None), Path::to_owned)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn survives_truncated_and_damaged_text() {
    let text = format!("{HEAD}{FULL}");
    for end in (0..text.len()).step_by(7) {
        let _ = Settings::from_fragments(&[("c", &text[..end])]);
        let mut bytes = text.clone().into_bytes();
        bytes[end] = b"\t:[{&*'\"-"[end % 9];
        let _ = Settings::from_fragments(&[("c", String::from_utf8_lossy(&bytes))]);
    }
}

#[test]
fn refuses_address_with_password_without_quoting_it() {
    let body = |signer: &str| format!("signers: {{s: {{{signer}}}}}\n");
    for signer in [
        "est: {url: 'https://me:hunter2@est.example.com', tls: {systemRoots: true}}",
        "est: {url: 'https://est.example.com', proxy: 'http://me:hunter2@p:3128', tls: {systemRoots: true}}",
        "kubernetes: {server: 'https://hunter2@api:6443', tokenFile: /t, tls: {caFile: /c}, signerName: a.b/c}",
    ] {
        let text = faults(&body(signer));
        assert!(text.contains("contains a user or a password"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn refuses_tls_settings_for_http_address() {
    for keys in ["tls: {caFile: /c}", "proxy: 'http://p:3128'"] {
        let text = faults(&format!(
            "signers: {{s: {{est: {{url: 'http://127.0.0.1:8085', {keys}}}}}}}\n"
        ));
        assert!(text.contains("uses neither tls nor proxy"), "{text}");
    }
}

#[test]
fn refuses_namespace_with_dots() {
    let text = faults(
        "signers: {s: {certManager: {server: 'https://api:6443', tokenFile: /t, tls: {caFile: /c}, namespace: a.b, issuerRef: {name: x}}}}\n",
    );
    assert!(text.contains("\"a.b\" is not a namespace"), "{text}");
}

#[test]
fn reports_all_faults_of_reload() {
    let found = faults(
        "reload:\n  timeout: 0s\n  lease: {duration: 1h}\n  hooks:\n  - {on: [controller-manager], command: [sh, -c]}\n  - {command: []}\n  units:\n  - {on: [], unit: kubelet, action: stop}\n",
    );
    assert_eq!(
        found,
        "c.yaml:4:12: reload.timeout: 0s is out of bounds (write one from 1s to 10m)\n\
         c.yaml:5:21: reload.lease.duration: 1h is out of bounds (write one from 5s to 10m)\n\
         c.yaml:7:11: reload.hooks[0].on[0]: \"controller-manager\" is neither a certificate nor a component (did you mean controller-manager.conf?)\n\
         c.yaml:7:41: reload.hooks[0].command: \"sh\" is not an absolute path (name the program by its absolute path; there is no shell)\n\
         c.yaml:8:5: reload.hooks[1]: has no on (add on: [controller-manager.conf])\n\
         c.yaml:8:15: reload.hooks[1].command: names no program (list the program and its arguments)\n\
         c.yaml:10:10: reload.units[0].on: is empty, so that it would never be triggered (list names of certificates or components)\n\
         c.yaml:10:20: reload.units[0].unit: \"kubelet\" is not the name of a unit (write it with its suffix, as in kubelet.service)\n\
         c.yaml:10:37: reload.units[0].action: \"stop\" is not possible here (use restart, reload, reload-or-restart)"
    );
}

#[test]
fn refuses_hook_command_with_nul() {
    let text =
        faults("reload:\n  hooks:\n  - {on: [apiserver], command: [/bin/true, \"a\\0b\"]}\n");
    assert!(
        text.contains("reload.hooks[0].command: contains a NUL character"),
        "{text}"
    );
}

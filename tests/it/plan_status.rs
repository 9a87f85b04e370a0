//! What `plan` and `status` say in their last lines: no signer, an unfinished commit, colours.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use nodepki::kube::names::{Authority, CertName};
use nodepki::text::hex;
use nodepki::x509::{ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans, Subject};
use serde_json::Value;

use crate::node::{DAY, Node, Ran};
use crate::signing::{HEAD, now};

#[test]
fn plan_without_signer_ends_with_78() {
    let node = Node::new();
    node.write_settings(HEAD);
    Ran::of(&mut node.configured(["plan"]))
        .ended(78)
        .says("no signer is configured for ca");
    // Nothing is to be issued on a complete node.
    let node = Node::bootstrapped();
    node.write_settings(HEAD);
    Ran::of(&mut node.configured(["plan"])).done();

    // One authority of several.
    let node = Node::new();
    node.edit_settings("etcd-ca: {signer: s}, ", "");
    node.edit_settings(
        "signers: {",
        "signers: {t: {directory: {path: /var/lib/t}}, ",
    );
    for command in ["plan", "bootstrap"] {
        Ran::of(&mut node.configured([command]))
            .ended(78)
            .says("etcd-ca");
    }
}

#[test]
fn plan_ends_as_bootstrap_for_policy_that_was_not_read() {
    let node = Node::bootstrapped();
    let away = node.read("/etc/kubernetes/admin.conf");
    let server = away.lines().find(|line| line.contains("server:")).unwrap();
    let away = away.replace(server, "    server: https://127.0.0.1:1");
    node.write("/etc/nodepki/away.conf", &away);
    node.set_mode("/etc/nodepki/away.conf", 0o600);
    let pod = "spec: {containers: [{command: [kube-apiserver]}]}\n";
    node.write("/etc/kubernetes/manifests/kube-apiserver.yaml", pod);
    node.settings(
        "clusterPolicy: {enabled: true, required: true, kubeconfig: /etc/nodepki/away.conf}\n",
    );
    let plan = || Ran::of(&mut node.configured(["plan"]));
    plan().done().says_not("nothing is issued");
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    plan()
        .ended(75)
        .says("nothing is issued, since clusterPolicy.required is true");
    Ran::of(&mut node.configured(["bootstrap"]))
        .ended(75)
        .says("nothing is issued, since clusterPolicy.required is true");
}

#[test]
fn plan_ends_as_bootstrap_for_faults_of_the_signer_on_this_machine() {
    let (node, other) = (Node::new(), Node::new());
    let kubeadm = node.outside("kubeadm.yaml").display().to_string();
    let signer = format!("local:{}", other.ca().display());
    for command in ["plan", "bootstrap"] {
        let ran = node.run(&[command, "--kubeadm-config", &kubeadm, "--signer", &signer]);
        ran.ended(65)
            .says("signs with another ca than the one on this node");
    }

    // The installed certificates are not under the CA that would be fetched.
    let served = Node::bootstrapped();
    served.write("/etc/kubernetes/pki/etcd/ca.crt", "");
    for command in ["plan", "bootstrap"] {
        let ran = served.run(&[command, "--kubeadm-config", &kubeadm, "--signer", &signer]);
        ran.ended(65)
            .says("etcd/ca.crt is empty, and the signer has another CA");
    }

    // The settings are outside the root, and so is what they name.
    let token = node.outside("token");
    let shown = token.display().to_string();
    node.write_settings(&format!(
        "{HEAD}authorities: {{ca: {{signer: v}}, etcd-ca: {{signer: v}}, front-proxy-ca: {{signer: v}}}}\n\
         signers:\n  v: {{vault: {{address: 'https://127.0.0.1:1', mount: pki, auth: {{tokenFile: {shown}}}, tls: {{caFile: {}}}}}}}\n",
        node.ca().join("ca.crt").display()
    ));
    let plan = || Ran::of(&mut node.configured(["plan"]));
    plan().ended(78).says(&format!("{shown} does not exist"));
    fs::write(&token, "s.token").unwrap();
    let has_mode = |mode| fs::set_permissions(&token, Permissions::from_mode(mode)).unwrap();
    has_mode(0o644);
    plan().ended(65).says(&shown);
    has_mode(0o600);
    plan().done();
}

/// The data of the etcd member remains when everything else is lost.
#[test]
fn makes_no_service_account_key_for_cluster_with_data() {
    let node = Node::new();
    fs::create_dir_all(node.path("/var/lib/etcd/member/wal")).unwrap();
    for ran in [node.plan(), node.bootstrap()] {
        ran.ended(65)
            .says(&node.here(
                "sa.key is absent, and @/var/lib/etcd/member shows that this node belongs to a",
            ))
            .says(&node.here("move @/var/lib/etcd/member away instead"));
    }
    fs::rename(
        node.path("/var/lib/etcd/member"),
        node.path("/var/lib/etcd/old"),
    )
    .unwrap();
    node.bootstrap().done();
}

#[test]
fn status_and_plan_name_unfinished_commit() {
    let node = Node::bootstrapped();
    let words = "a run was interrupted while it installed files, or is in progress";
    node.run(&["status"]).done().says_not(words);
    fs::write(node.path("/var/lib/nodepki/staging.json"), "[]").unwrap();
    node.set_mode("/var/lib/nodepki/staging.json", 0o600);
    node.run(&["status"]).done().says(words);
    node.plan()
        .says(words)
        .says("nodepki bootstrap completes it");
}

#[test]
fn status_and_plan_name_import_of_exported_requests() {
    let node = Node::new();
    node.write_settings(HEAD);
    let bundle = node.path("/root/bundle");
    let import = |said: &str, directory: &str| {
        let closing = said.trim_end().rsplit("next: ").next().unwrap();
        let words: Vec<&str> = closing.split_whitespace().collect();
        let closing = words.join(" ");
        let expected = "have the exported requests signed, then run nodepki";
        assert!(closing.starts_with(expected), "{said}");
        let command = format!(" csr import {directory}");
        assert!(closing.contains(&command), "{said}");
    };
    node.csr("export", &bundle).done();
    let directory = bundle.display().to_string();
    import(&node.run(&["status"]).done().said(), &directory);
    let planned = Ran::of(&mut node.configured(["plan"]));
    import(&planned.ended(78).said(), &directory);
    let bootstrap = Ran::of(&mut node.configured(["bootstrap"]));
    import(&bootstrap.ended(78).said(), &directory);
    let preflight = Ran::of(&mut node.configured(["preflight"]));
    import(&preflight.ended(78).said(), &directory);
    node.run(&["doctor"])
        .says("have the exported requests signed, then import the directory: `nodepki");
    // With a signer, there are two ways.
    node.plan()
        .done()
        .says("next: nodepki bootstrap")
        .says("; or have the exported requests signed, then run nodepki csr import");
    // Certificates for these requests would be refused.
    let kubeadm = node.outside("kubeadm.yaml");
    let before = fs::read_to_string(&kubeadm).unwrap();
    fs::write(&kubeadm, before.replace("ECDSA-P256", "ECDSA-P384")).unwrap();
    for command in ["plan", "bootstrap", "preflight"] {
        Ran::of(&mut node.configured([command]))
            .ended(78)
            .says("csr export DIR")
            .says("with another directory, since the last export was for another configuration");
    }
    fs::write(&kubeadm, before).unwrap();
    // A record of an earlier release does not contain the directory.
    for entry in fs::read_dir(node.path("/var/lib/nodepki/pending")).unwrap() {
        let file = entry.unwrap().path().join("ticket.json");
        let mut ticket: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        ticket.as_object_mut().unwrap().remove("exported_to");
        fs::write(&file, ticket.to_string()).unwrap();
    }
    import(&node.run(&["status"]).done().said(), "DIR");
    // Another signer has the requests.
    node.sign_bundle(&bundle);
    node.csr("import", &bundle).done();
    node.run(&["status"]).done().says_not("csr import");
}

/// A renewal prolongs neither a CA certificate nor what ends with it.
#[test]
fn status_names_renewal_only_if_it_helps() {
    let node = Node::new();
    node.replace_authority(Authority::Ca, now() - 100 * DAY, 110 * DAY);
    node.ask().done();
    let suggests = |command: &str| {
        let root = node.root();
        let next = format!("; next: nodepki --root {} {command}", root.display());
        let ran = node.run(&["status"]);
        assert!(ran.done().closing().ends_with(&next), "{}", ran.closing());
    };
    suggests("doctor");
    let old = |name: CertName, common_name: &str| {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let profile = Profile {
            subject: Subject {
                common_name: common_name.to_owned(),
                organizations: Vec::new(),
            },
            sans: Sans::default(),
            usages: vec![ExtendedUsage::ClientAuth],
            key: KeyAlgorithm::EcdsaP256,
            lifetime: 365 * DAY,
        };
        let authority = node.authority(name.authority());
        let leaf = authority.issue(key.public_key(), &profile, now() - 355 * DAY);
        let base = format!("/etc/kubernetes/pki/{}", name.base_name());
        node.write(format!("{base}.crt"), leaf.unwrap().to_pem());
        node.write_secret(format!("{base}.key"), key.to_pem().as_bytes());
    };
    let kubelet_client = CertName::ApiserverKubeletClient;
    old(kubelet_client, "kube-apiserver-kubelet-client");
    node.run(&["status"])
        .row_says(kubelet_client.as_str(), "expiring");
    suggests("doctor");
    old(CertName::FrontProxyClient, "front-proxy-client");
    suggests("renew");
}

#[test]
fn status_shows_one_certificate_in_full() {
    let node = Node::new();
    node.ask().done();
    let settings = node.outside("config.yaml").display().to_string();
    let status = |more: &[&str]| node.run(&[&["status", "--config", &settings], more].concat());
    let (chain, _) = node.leaf(CertName::EtcdServer).unwrap();
    let leaf = chain.leaf();
    let shown = status(&["etcd-server"]);
    shown
        .done()
        .says(&format!("serial       {}\n", leaf.serial()))
        .says(&format!(
            "fingerprint  sha256:{}\n",
            hex(&leaf.fingerprint())
        ))
        .says("names        DNS:cp1, DNS:localhost, IP:192.0.2.11,")
        .says("authority    verifies under etcd-ca (CN=etcd-ca, until 20")
        .says("renewal      due at 20")
        .says(&format!("issued: signer s, serial {}\n", leaf.serial()))
        .says("installed: ")
        .says("used by      etcd, which reads a new one without a restart")
        .says_not("kube-apiserver");
    status(&["scheduler.conf"])
        .done()
        .says("used by      kube-scheduler, which a renewal restarts");
    let document: Value =
        serde_json::from_str(&status(&["etcd-server", "-o", "json"]).stdout).unwrap();
    assert_eq!(document["certificates"].as_array().unwrap().len(), 1);
    assert_eq!(document["authorities"][0]["name"], "etcd-ca");
    status(&["etcd-serv"])
        .ended(64)
        .says("\"etcd-serv\" is not the name of a certificate (did you mean etcd-server?)");
    status(&["kubelet-serving"]).ended(64).says(
        "kubelet-serving: this node does not have such a certificate (use one of apiserver, ",
    );
    node.remove("/etc/kubernetes/pki/etcd/server.crt");
    status(&["etcd-server"])
        .done()
        .says("state        missing\n")
        .says("server.crt (absent)");
}

#[test]
fn colours_on_request_only() {
    let node = Node::bootstrapped();
    // Only what needs attention is coloured.
    node.write("/etc/kubernetes/pki/apiserver.crt", "damaged");
    let run = |arguments: &[&str]| {
        let mut command = node.command(["status", "-o", "tree"]);
        Ran::of(command.args(arguments).env("NO_COLOR", "1")).stdout
    };
    assert!(!run(&[]).contains('\u{1b}'));
    assert!(!run(&["--color", "never"]).contains('\u{1b}'));
    assert!(run(&["--color", "always"]).contains("\u{1b}["));
    node.run(&["doctor", "--color", "always"])
        .says("\u{1b}[31merror   \u{1b}[0m ");
    node.run(&["doctor"]).says("error    ").says_not("\u{1b}");
}

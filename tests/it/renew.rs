//! `renew` and `needs-renewal`: certificates that are due, that differ from the configuration or that are pending, and
//! the effect of a failing signer.
//!
//! Tests age certificates by writing issue times into the record: a certificate of 365 days that was issued three
//! years ago is treated as if a quarter of its lifetime were left.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::time::Duration;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use serde_json::Value;
use time::format_description::well_known::Rfc3339;
use time::{Duration as Span, OffsetDateTime};

use crate::kubeadm;
use crate::node::{EVERYTHING, INIT, JOIN, Node, Ran};
use crate::time::let_pass;

/// An age at which every node renews: later than the due date with the largest jitter.
pub(crate) const DUE: Span = Span::days(3 * 365);
/// An age at which less than a tenth of the lifetime is left.
const URGENT: Span = Span::days(20 * 365);
/// An age older than every cool-down.
const SETTLED: Span = Span::hours(2);

const ISSUE_RECORD: &str = "/var/lib/nodepki/issued.json";

fn rotation_command(node: &Node, command: &str, more: &[&str]) -> Command {
    let mut run = node.configured([command, "--wait", "0s", "--clock-wait", "0s"]);
    run.args(more);
    run
}

fn renew(node: &Node, more: &[&str]) -> Ran {
    Ran::of(&mut rotation_command(node, "renew", more))
}

/// `renew` with the local signer, whose certificates have the configured lifetime.
fn renew_locally(node: &Node, more: &[&str]) -> Ran {
    let config = node.outside("config.yaml");
    let config = ["--config", config.to_str().unwrap(), "--clock-wait", "0s"];
    Ran::of(&mut node.with_local(&["renew"], &[&config, more].concat()))
}

fn needs_renewal(node: &Node, more: &[&str]) -> Ran {
    Ran::of(&mut rotation_command(node, "needs-renewal", more))
}

/// Returns a node whose certificates the logging plug-in signer issued two hours ago.
fn node() -> Node {
    let node = Node::new();
    node.ask().done();
    backdate(&node, &EVERYTHING, SETTLED);
    node
}

/// Records that the certificates `names` were issued `ago` before now.
pub(crate) fn backdate(node: &Node, names: &[CertName], ago: Span) {
    let mut record: Value = serde_json::from_str(&node.read(ISSUE_RECORD)).unwrap();
    let at = (OffsetDateTime::now_utc() - ago).format(&Rfc3339).unwrap();
    for name in names {
        record["certificates"][name.as_str()]["at"] = at.clone().into();
    }
    node.write(ISSUE_RECORD, serde_json::to_vec_pretty(&record).unwrap());
}

fn serials(node: &Node) -> BTreeMap<CertName, String> {
    EVERYTHING
        .iter()
        .map(|name| {
            let (chain, _) = node.leaf(*name).unwrap();
            (*name, chain.leaf().serial().to_owned())
        })
        .collect()
}

/// Returns the certificates in which two states differ.
fn changed(before: &BTreeMap<CertName, String>, now: &BTreeMap<CertName, String>) -> Vec<CertName> {
    EVERYTHING
        .into_iter()
        .filter(|name| before[name] != now[name])
        .collect()
}

#[test]
fn changes_nothing_and_sends_no_request_when_nothing_is_due() {
    let node = node();
    let (before, requests) = (node.snapshot(), node.exchanges().len());
    for _ in 0..2 {
        renew(&node, &[]).done().row_says("apiserver", "kept");
        needs_renewal(&node, &[])
            .ended(1)
            .says("nothing is due before 20");
    }
    before.unchanged(&node.snapshot());
    assert_eq!(node.exchanges().len(), requests);
}

#[test]
fn rekeys_due_certificates_and_keeps_the_others() {
    let node = node();
    backdate(&node, &[CertName::Apiserver, CertName::AdminConf], DUE);
    needs_renewal(&node, &[])
        .ended(0)
        .says("apiserver: due since ")
        .says(" % of its life of ");
    needs_renewal(&node, &["--name", "etcd-peer,scheduler.conf"]).ended(1);
    needs_renewal(&node, &["--name", "etcd-peer", "--name", "admin.conf"]).ended(0);
    let (before, old) = (node.snapshot(), node.keys_in_place());
    let ends = node.leaf(CertName::AdminConf).unwrap().0.leaf().not_after();

    renew(&node, &["--dry-run"])
        .done()
        .row_says("apiserver", "rekey")
        .row_says("apiserver", "due since ")
        .row_says("etcd-peer", "keep");
    before.unchanged(&node.snapshot());

    let ran = renew(&node, &[]);
    ran.done()
        .row_says("apiserver", "rekeyed")
        .row_says("apiserver", "due since ")
        .row_says("etcd-peer", "kept")
        // The end date is the one of the new certificate.
        .row_says("admin.conf", "copies of the old admin.conf work until ")
        .row_says("admin.conf", &ends.format(&Rfc3339).unwrap());
    assert_eq!(
        changed(&old, &node.keys_in_place()),
        [CertName::Apiserver, CertName::AdminConf]
    );
    node.assert_sound(&EVERYTHING);
    needs_renewal(&node, &[]).ended(1);
}

#[test]
fn prints_the_table_as_json() {
    let node = node();
    backdate(&node, &[CertName::EtcdPeer], DUE);
    let need: Value = serde_json::from_str(&needs_renewal(&node, &["-o", "json"]).stdout).unwrap();
    assert_eq!(need["answer"], "yes");
    assert!(
        need["reason"]
            .as_str()
            .unwrap()
            .starts_with("etcd-peer: due since ")
    );
    let report: Value = serde_json::from_str(&renew(&node, &["-o", "json"]).stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(row("etcd-peer")["action"], "rekeyed");
    assert_eq!(row("apiserver")["action"], "kept");
    let (due, end) = (&row("etcd-peer")["due"], &row("etcd-peer")["notAfter"]);
    assert!(due.as_str().unwrap() < end.as_str().unwrap(), "{due} {end}");
}

#[test]
fn keeps_key_bytes_when_rekey_is_off() {
    // An RSA signature over the same CSR is always the same, and the signer must still accept the second request.
    for algorithm in ["ECDSA-P256", "RSA-2048"] {
        let few = "etcd: {external: {endpoints: ['http://192.0.2.50:2379']}}\n";
        let node = Node::of(&format!("{}{few}", INIT.replace("ECDSA-P256", algorithm)));
        node.settings("rotation: {rekey: false}\n");
        node.ask().done();
        let paths = ["apiserver", "front-proxy-client"];
        let read = |paths: &[&str]| -> Vec<String> {
            let paths = paths.iter();
            paths
                .map(|name| node.read(format!("/etc/kubernetes/pki/{name}.key")))
                .collect()
        };
        let names = [CertName::Apiserver, CertName::FrontProxyClient];
        let (old, old_leaf) = (read(&paths), node.leaf(CertName::Apiserver).unwrap().0);
        backdate(&node, &names, DUE);
        // One second later, so the new certificate ends later.
        let_pass(Duration::from_millis(1100));
        renew(&node, &[])
            .done()
            .row_says("apiserver", "renewed")
            .row_says("apiserver-kubelet-client", "kept");
        assert_eq!(read(&paths), old, "{algorithm}");
        let (leaf, _) = node.leaf(CertName::Apiserver).unwrap();
        assert_ne!(leaf.leaf().serial(), old_leaf.leaf().serial());
        assert!(leaf.leaf().not_after() > old_leaf.leaf().not_after());
        node.assert_sound(&names);
        // An exposed key is never certified again.
        renew(&node, &["--force", "--name", "apiserver"])
            .done()
            .row_says("apiserver", "rekeyed");
        assert_ne!(read(&paths)[0], old[0]);
        // A key of another algorithm is a new key, whatever `rekey` is.
        backdate(&node, &names, SETTLED);
        node.configure(&format!(
            "{}{few}",
            INIT.replace("ECDSA-P256", "ECDSA-P384")
        ));
        renew(&node, &["--name", "apiserver"])
            .done()
            .row_says("apiserver", "rekeyed")
            .row_says("apiserver", "expected key ECDSA-P384");
        assert_ne!(read(&paths)[0], old[0]);
    }
}

#[test]
fn renews_named_certificates_and_all_of_them() {
    let node = node();
    let old = node.keys_in_place();
    renew(
        &node,
        &["--name", "apiserver,admin.conf", "--name", "etcd-peer"],
    )
    .done()
    .row_says("apiserver", "requested")
    .says_not("scheduler.conf");
    let now = node.keys_in_place();
    assert_eq!(
        changed(&old, &now),
        [CertName::Apiserver, CertName::EtcdPeer, CertName::AdminConf]
    );
    // The cool-down applies to explicit requests too.
    renew(&node, &["--all"])
        .done()
        .row_says("apiserver", "kept")
        .row_says("apiserver", "s ago, not renewed again before ")
        .row_says("scheduler.conf", "rekeyed");
    assert_eq!(
        changed(&now, &node.keys_in_place()).len(),
        EVERYTHING.len() - 3
    );
    let now = node.keys_in_place();
    for arguments in [&["--all"][..], &["--name", "apiserver"], &["apiserver"]] {
        renew(&node, arguments)
            .ended(75)
            .row_says("apiserver", "held back")
            .row_says("apiserver", "(--force renews it now)")
            .says(&format!(
                "{} --force, which renews it now",
                arguments.last().unwrap()
            ));
    }
    renew(&node, &["--all", "--dry-run"])
        .ended(75)
        .row_says("apiserver", "hold back");
    assert_eq!(changed(&now, &node.keys_in_place()), []);
    renew(&node, &["--force"])
        .ended(64)
        .says("add their names, or --all");
    renew(&node, &["--force", "--name", "apiserver"])
        .done()
        .row_says("apiserver", "rekeyed")
        .row_says("apiserver", "requested with --force");
    assert_eq!(changed(&now, &node.keys_in_place()), [CertName::Apiserver]);
    let now = node.keys_in_place();
    renew(&node, &["--force", "--all"]).done();
    assert_eq!(changed(&now, &node.keys_in_place()).len(), EVERYTHING.len());
    for (command, status) in [("renew", 64), ("needs-renewal", 255)] {
        Ran::of(&mut rotation_command(
            &node,
            command,
            &["--name", "apisever"],
        ))
        .ended(status)
        .says("\"apisever\" is not the name of a certificate (did you mean apiserver?)");
    }
    node.configure(&format!(
        "{INIT}etcd: {{external: {{endpoints: ['http://192.0.2.50:2379']}}}}\n"
    ));
    renew(&node, &["--name", "etcd-peer"])
        .ended(64)
        .says("etcd-peer: this node does not have such a certificate by its configuration (use one of apiserver, ");
}

#[test]
fn changes_key_algorithm_at_next_renewal() {
    const WAITS: &str =
        "expected key ECDSA-P384, found ECDSA-P256: takes effect at the next renewal";
    let node = node();
    let old = node.keys_in_place();
    node.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
    renew(&node, &[])
        .done()
        .row_says("apiserver", "kept")
        .row_says("apiserver", WAITS);
    needs_renewal(&node, &[]).ended(1);
    node.ask().done().row_says("scheduler.conf", WAITS);
    assert_eq!(changed(&old, &node.keys_in_place()), []);
    let due = "which is due at 20";
    for command in [&["plan"][..], &["renew", "--dry-run"]] {
        Ran::of(&mut node.configured(command))
            .done()
            .row_says("apiserver", &format!("{WAITS}, {due}"));
    }
    Ran::of(&mut node.configured(["doctor"])).says(
        "apiserver: expected key ECDSA-P384, found ECDSA-P256; the next renewal, which is due at 20",
    );
    let check = Ran::of(&mut node.configured(["policy", "check", "-o", "json"]));
    let policy: Value = serde_json::from_str(&check.ended(65).stdout).unwrap();
    let keys = policy["keys"].as_array().unwrap();
    let key = |name: &str| keys.iter().find(|row| row["name"] == name).unwrap();
    assert!(key("apiserver")["replacedAt"].is_string());
    assert!(key("ca")["replacedAt"].is_null());
    // A name that drifts is corrected immediately, and the new certificate has the new key.
    node.configure(&format!(
        "{}apiServer: {{certSANs: [new.example.com]}}\n",
        INIT.replace("ECDSA-P256", "ECDSA-P384")
    ));
    renew(&node, &[])
        .done()
        .row_says("apiserver", "SAN DNS:new.example.com is missing")
        .row_says("etcd-peer", "kept");
    // A natural and a forced renewal change the key.
    backdate(&node, &[CertName::EtcdPeer], DUE);
    renew(&node, &[]).done().row_says("etcd-peer", "due since ");
    renew(&node, &["--force", "--name", "scheduler.conf"]).done();
    let changed_keys = [
        CertName::Apiserver,
        CertName::EtcdPeer,
        CertName::SchedulerConf,
    ];
    let now = node.keys_in_place();
    let mut found = changed(&old, &now);
    found.sort_unstable();
    assert_eq!(found, changed_keys);
    for name in changed_keys {
        let (chain, _) = node.leaf(name).unwrap();
        assert_eq!(
            chain.leaf().public_key().key_type().to_string(),
            "ECDSA-P384"
        );
    }
}

#[test]
fn renews_each_drifted_certificate_and_names_the_reason() {
    let kubeadm = |from: &str, to: &str| INIT.replace(from, to);
    let drifts: [(&str, String, &str, &str, &str); 5] = [
        (
            "SAN",
            format!("{INIT}apiServer: {{certSANs: [new.example.com]}}\n"),
            "",
            "apiserver",
            "SAN DNS:new.example.com is missing",
        ),
        (
            "address",
            kubeadm("192.0.2.11", "192.0.2.99"),
            "",
            "etcd-peer",
            "SAN IP:192.0.2.99 is missing",
        ),
        (
            "key algorithm",
            kubeadm("ECDSA-P256", "ECDSA-P384"),
            "rotation: {onPolicyChange: now}\n",
            "scheduler.conf",
            "expected key ECDSA-P384, found ECDSA-P256",
        ),
        (
            "subject",
            INIT.to_owned(),
            "commonNames: {etcd-server: other}\n",
            "etcd-server",
            "expected CN \"other\", found \"cp1\"",
        ),
        (
            "server",
            kubeadm("api.example.com", "api2.example.com"),
            "",
            "admin.conf",
            "expected server https://api2.example.com:6443, found https://api.example.com:6443",
        ),
    ];
    for (what, kubeadm, settings, name, reason) in drifts {
        let node = node();
        node.configure(&kubeadm);
        node.settings(settings);
        needs_renewal(&node, &["--name", name])
            .ended(0)
            .says(reason);
        renew(&node, &[]).done().row_says(name, reason);
        node.assert_sound(&EVERYTHING);
        let requests = node.exchanges().len();
        renew(&node, &[]).done().row_says(name, "kept");
        assert_eq!(node.exchanges().len(), requests, "{what}");
    }
    // The files differ, the configuration does not.
    let node = node();
    let etcd_server = fs::read(node.path("/etc/kubernetes/pki/etcd/server.crt")).unwrap();
    let key = fs::read(node.path("/etc/kubernetes/pki/etcd/server.key")).unwrap();
    node.write("/etc/kubernetes/pki/apiserver.crt", &etcd_server);
    node.write("/etc/kubernetes/pki/apiserver.key", &key);
    let scheduler = node.read("/etc/kubernetes/scheduler.conf");
    let other = Kubeconfig::parse(&scheduler).unwrap().current().unwrap();
    let ours = fs::read_to_string(node.path("/etc/kubernetes/pki/ca.crt")).unwrap();
    let theirs = fs::read_to_string(node.path("/etc/kubernetes/pki/etcd/ca.crt")).unwrap();
    assert_eq!(other.authority.unwrap(), ours.as_bytes());
    let encode = |pem: &str| {
        let pem = pem.as_bytes();
        let text = crate::signing::openssl(&["base64", "-A"], pem);
        String::from_utf8_lossy(&text).trim().to_owned()
    };
    let swapped = scheduler.replace(&encode(&ours), &encode(&theirs));
    assert_ne!(swapped, scheduler);
    node.write("/etc/kubernetes/scheduler.conf", swapped);
    renew(&node, &[])
        .done()
        .row_says(
            "apiserver",
            "no path from it to the trusted CN=kubernetes: its issuer is CN=etcd-ca",
        )
        .row_says("scheduler.conf", "rewritten")
        .row_says("scheduler.conf", "its CA is CN=etcd-ca");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn waits_for_window_unless_certificate_expires_before_it() {
    let node = node();
    let later = (OffsetDateTime::now_utc() + Span::days(3))
        .weekday()
        .to_string();
    let (day, _) = later.split_at(3);
    node.settings(&format!("rotation: {{window: \"{day} 02:00-03:00\"}}\n"));
    backdate(&node, &[CertName::Apiserver, CertName::EtcdPeer], DUE);
    let old = node.keys_in_place();
    needs_renewal(&node, &[]).ended(1);
    renew(&node, &[])
        .done()
        .row_says("apiserver", "kept")
        .row_says("apiserver", "; waits for the window that opens at 20");
    // It is not overdue until then.
    let report: Value = serde_json::from_str(&renew(&node, &["-o", "json"]).stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == "apiserver").unwrap();
    let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap();
    assert!(row["due"].as_str().unwrap() > now.as_str(), "{row}");
    assert_eq!(changed(&old, &node.keys_in_place()), []);
    // An explicit request does not wait.
    renew(&node, &["--name", "etcd-peer"])
        .done()
        .row_says("etcd-peer", "rekeyed");
    // Neither does a certificate that ends before the window opens.
    node.configure(&INIT.replace(
        "kubernetesVersion:",
        "certificateValidityPeriod: 24h\nkubernetesVersion:",
    ));
    renew_locally(&node, &["--name", "apiserver"])
        .done()
        .row_says("apiserver", "rekeyed");
    backdate(&node, &[CertName::Apiserver], Span::days(4));
    renew_locally(&node, &[])
        .done()
        .row_says("apiserver", "rekeyed")
        .row_says(
            "apiserver",
            ", too late for a certificate that expires at 20",
        );
}

#[test]
fn renews_the_others_when_one_certificate_is_refused() {
    let node = node();
    backdate(&node, &EVERYTHING, DUE);
    node.signer_does("etcd-peer", "bad missing-san");
    let old = node.keys_in_place();
    renew(&node, &[])
        .ended(65)
        .row_says("etcd-peer", "refused")
        .row_says("etcd-peer", "is missing")
        .row_says("etcd-server", "rekeyed");
    let now = node.keys_in_place();
    assert_eq!(changed(&old, &now).len(), EVERYTHING.len() - 1);
    assert_eq!(old[&CertName::EtcdPeer], now[&CertName::EtcdPeer]);
    node.assert_sound(&EVERYTHING);
    node.signer_behaves();
    renew(&node, &[])
        .done()
        .row_says("etcd-peer", "rekeyed")
        .row_says("etcd-server", "kept");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn renews_the_others_when_a_file_needs_manual_action() {
    let node = node();
    backdate(&node, &EVERYTHING, DUE);
    node.write(
        "/etc/kubernetes/admin.conf",
        "apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n",
    );
    // A damaged service-account key must not let certificates expire either.
    node.write("/etc/kubernetes/pki/sa.pub", "garbage");
    renew(&node, &[])
        .ended(65)
        .row_says("admin.conf", "refused")
        .row_says("admin.conf", "move it away and run again")
        .row_says("apiserver", "rekeyed")
        .says("/etc/kubernetes/pki/sa.pub is not usable");
    let rest: Vec<CertName> = EVERYTHING
        .into_iter()
        .filter(|name| *name != CertName::AdminConf)
        .collect();
    node.assert_sound(&rest);
    needs_renewal(&node, &[]).ended(255).says("admin.conf: ");
    needs_renewal(&node, &["--name", "apiserver"]).ended(1);
}

#[test]
fn keeps_valid_certificates_in_an_outage_and_fails_when_urgent() {
    let node = node();
    backdate(&node, &EVERYTHING, DUE);
    let before = node.etc();
    for (how, action, urgent) in [("unreachable", "failed", 69), ("pending", "pending", 75)] {
        node.signer_does("all", how);
        backdate(&node, &EVERYTHING, DUE);
        renew(&node, &[])
            .done()
            .row_says("apiserver", action)
            .row_says(
                "apiserver",
                "the certificate in place is kept and still valid",
            )
            .says_not("WARN");
        backdate(&node, &[CertName::EtcdServer], URGENT);
        renew(&node, &[])
            .ended(urgent)
            .row_says("etcd-server", action);
        before.unchanged(&node.etc());
        // In an outage no key is generated that would be discarded.
        if how == "unreachable" {
            assert!(!node.path("/var/lib/nodepki/pending/apiserver").exists());
        }
    }
    // The pending keys are requested again and installed.
    node.signer_behaves();
    renew(&node, &[]).done().row_says("apiserver", "rekeyed");
    for (slot, keys) in node.keys_seen() {
        assert_eq!(
            keys.len(),
            2,
            "{slot}: one key of the bootstrap, one of the renewal"
        );
        let name: CertName = slot.parse().unwrap();
        assert_eq!(keys[1], node.key_in_place(name), "{slot}");
    }
    node.assert_sound(&EVERYTHING);
}

/// What was asked for did not happen, although the certificate in place is valid.
#[test]
fn fails_if_requested_renewal_does_not_happen() {
    let node = node();
    let before = node.etc();
    for (how, code) in [("unreachable", 69), ("pending", 75)] {
        node.signer_does("all", how);
        for arguments in [&["apiserver"][..], &["apiserver", "--force"], &["--all"]] {
            renew(&node, arguments)
                .ended(code)
                .row_says("apiserver", "still valid")
                .says(arguments.last().unwrap());
        }
        renew(&node, &[]).done();
        before.unchanged(&node.etc());
    }
}

/// `bootstrap` would refuse to generate a service-account pair beside certificates.
#[test]
fn refuses_node_that_was_never_set_up() {
    let node = Node::new();
    for arguments in [&[][..], &["--all"], &["apiserver"], &["--dry-run"]] {
        renew(&node, arguments)
            .ended(65)
            .says("/etc/kubernetes/pki: there are no certificates to renew; run nodepki bootstrap, which issues the first ones");
    }
    needs_renewal(&node, &[]).ended(2);
    assert!(node.keys_seen().is_empty());
    node.ask().done();
    renew(&node, &[]).done();
}

#[test]
fn completes_first_bootstrap_that_was_interrupted() {
    let node = Node::new();
    let mut killed = node.ask_command("0s");
    killed.env("NODEPKI_FAILPOINT", "commit:journalled");
    assert_eq!(Ran::of(&mut killed).signal, Some(9));
    needs_renewal(&node, &[])
        .ended(0)
        .says("an earlier run was interrupted while writing");
    renew(&node, &[]);
    assert!(!node.path("/var/lib/nodepki/journal.json").exists());
    needs_renewal(&node, &[]).ended(1);
}

#[test]
fn reports_unreachable_signer_for_expired_certificates_and_renews_later() {
    let node = Node::of(&INIT.replace(
        "kubernetesVersion:",
        "certificateValidityPeriod: 5s\nkubernetesVersion:",
    ));
    node.bootstrap().done();
    let_pass(Duration::from_secs(6));
    node.signer_does("all", "unreachable");
    needs_renewal(&node, &[]).ended(0).says("it expired at ");
    renew(&node, &[]).ended(69).row_says("apiserver", "failed");
    node.signer_behaves();
    // The plug-in signer always issues for one year.
    node.configure(INIT);
    renew(&node, &[])
        .done()
        .row_says("apiserver", "it expired at ");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn never_renews_in_a_loop_whatever_is_configured() {
    let node = Node::of(&INIT.replace(
        "kubernetesVersion:",
        "certificateValidityPeriod: 1h\nkubernetesVersion:",
    ));
    node.settings("rotation: {renewAt: 8760h, minRemaining: 8760h, jitter: 50%}\n");
    let local = || renew_locally(&node, &[]);
    node.bootstrap().done();
    let first = serials(&node);
    for _ in 0..3 {
        local().done().row_says("apiserver", "kept");
    }
    assert_eq!(changed(&first, &serials(&node)), []);
    // Issued two hours ago, and valid for almost another hour.
    backdate(&node, &EVERYTHING, Span::hours(2));
    local()
        .done()
        .row_says("apiserver", "rekeyed")
        .row_says("apiserver", " is over, the earliest possible time");
    let second = serials(&node);
    assert_eq!(changed(&first, &second).len(), EVERYTHING.len());
    local().done().row_says("apiserver", "kept");
    assert_eq!(changed(&second, &serials(&node)), []);
}

#[test]
fn keeps_kubeconfigs_backdated_to_the_start_of_their_ca() {
    let node = node();
    // A CA of 2016, and a certificate that starts with it and ends a year from now.
    let long_ago = OffsetDateTime::now_utc() - Span::days(3650);
    let decades = Duration::from_secs(30 * 365 * 86400);
    node.replace_authority(Authority::Ca, long_ago, decades);
    node.pin_authority(Authority::Ca);
    node.remove(ISSUE_RECORD);
    let spec_life = Duration::from_secs(4015 * 86400);
    let (_, key) = node.leaf(CertName::AdminConf).unwrap();
    let profile = nodepki::x509::Profile {
        subject: nodepki::x509::Subject {
            common_name: "kubernetes-admin".to_owned(),
            organizations: vec!["kubeadm:cluster-admins".to_owned()],
        },
        sans: nodepki::x509::Sans::default(),
        usages: vec![nodepki::x509::ExtendedUsage::ClientAuth],
        key: nodepki::x509::KeyAlgorithm::EcdsaP256,
        lifetime: spec_life,
    };
    let authority = node.authority(Authority::Ca);
    let leaf = authority
        .issue(key.public_key(), &profile, long_ago)
        .unwrap();
    assert_eq!(leaf.not_before(), authority.bundle().first().not_before());
    let mut conf = Kubeconfig::parse(&node.read("/etc/kubernetes/admin.conf")).unwrap();
    conf.set_credentials(&nodepki::kube::kubeconfig::Credentials {
        server: "https://api.example.com:6443",
        authority: &authority.bundle().to_pem(),
        certificate: &leaf.to_pem(),
        key: &key.to_pem(),
    })
    .unwrap();
    node.write("/etc/kubernetes/admin.conf", conf.to_yaml().as_bytes());
    needs_renewal(&node, &["--name", "admin.conf"])
        .ended(1)
        .says("nothing is due before 20");
}

#[test]
fn renews_nothing_after_the_clock_was_set_back() {
    let node = node();
    backdate(&node, &EVERYTHING, DUE);
    backdate(&node, &[CertName::EtcdPeer], -Span::hours(1));
    let before = node.snapshot();
    renew(&node, &[])
        .ended(75)
        .says("but etcd-peer was issued on this node at ")
        // By an hour, less the time since then.
        .says("the clock was set back by ")
        .says(", and nothing is renewed")
        .says("timedatectl");
    needs_renewal(&node, &[]).ended(255);
    before.unchanged(&node.snapshot());
    renew(&node, &["--allow-unsynced"])
        .done()
        .row_says("apiserver", "rekeyed");
    // Four minutes are within the tolerance.
    backdate(&node, &[CertName::EtcdPeer], -Span::minutes(4));
    needs_renewal(&node, &[]).ended(1);
}

#[test]
fn reports_needs_renewal_by_exit_status() {
    let node = Node::new();
    needs_renewal(&node, &[])
        .ended(2)
        .says("run nodepki bootstrap");
    node.settings("rotation: {renewAt: soon}\n");
    needs_renewal(&node, &[])
        .ended(255)
        .says("rotation.renewAt: \"soon\" is neither a share nor a duration");
    node.settings("");
    node.ask().done();
    needs_renewal(&node, &[]).ended(1);
    node.remove("/etc/kubernetes/pki/apiserver.key");
    needs_renewal(&node, &[])
        .ended(0)
        .says("apiserver: key is absent");
    node.write("/var/lib/nodepki/issued.json", "{");
    renew(&node, &[])
        .done()
        .row_says("apiserver", "rekeyed")
        .says("the record of issue times is ignored");
}

#[test]
fn renews_the_others_when_one_file_is_immutable() {
    let node = Node::on_disk();
    node.ask().done();
    backdate(&node, &EVERYTHING, DUE);
    let file = node.path("/etc/kubernetes/pki/etcd/peer.crt");
    let chattr = |flag: &str| {
        let status = Command::new("chattr").arg(flag).arg(&file).status();
        assert!(
            status.unwrap().success(),
            "chattr (apt-get install e2fsprogs)"
        );
    };
    let old = node.keys_in_place();
    let requests = node.submissions()["etcd-peer"];
    chattr("+i");
    let ran = renew(&node, &[]);
    chattr("-i");
    ran.ended(65)
        .row_says("etcd-peer", "failed")
        .row_says("etcd-peer", "peer.crt is immutable")
        .row_says("etcd-server", "rekeyed");
    assert_eq!(
        changed(&old, &node.keys_in_place()).len(),
        EVERYTHING.len() - 1
    );
    assert_eq!(
        node.submissions()["etcd-peer"],
        requests,
        "no request is sent for etcd-peer"
    );
    node.assert_sound(&EVERYTHING);
}

#[test]
fn refuses_only_the_certificates_of_a_damaged_bundle() {
    let node = node();
    backdate(&node, &EVERYTHING, DUE);
    node.write("/etc/kubernetes/pki/etcd/ca.crt", "garbage");
    renew(&node, &[])
        .ended(65)
        .row_says("etcd-server", "refused")
        .row_says("etcd-server", "is not a usable trust bundle of etcd-ca")
        .row_says("apiserver", "rekeyed");
}

#[test]
fn never_creates_the_service_account_pair() {
    let node = node();
    node.remove("/etc/kubernetes/pki/sa.key");
    node.remove("/etc/kubernetes/pki/sa.pub");
    backdate(&node, &[CertName::Apiserver], DUE);
    renew(&node, &[])
        .ended(65)
        .row_says("apiserver", "rekeyed")
        .row_says("sa", "refused")
        .row_says(
            "sa",
            "copy both sa.key and sa.pub from another control-plane node",
        );
    assert!(!node.path("/etc/kubernetes/pki/sa.key").exists());
}

#[test]
fn fails_on_missing_or_damaged_service_account_key() {
    let node = node();
    let (key, public) = (
        "/etc/kubernetes/pki/sa.key".to_owned(),
        "/etc/kubernetes/pki/sa.pub".to_owned(),
    );
    let originals = [&key, &public].map(|path| (path, node.read(path)));
    for (broken, content) in [
        (&key, None),
        (&key, Some("")),
        (&key, Some("not a key")),
        (&public, None),
        (&public, Some("not a key")),
    ] {
        match content {
            Some(content) => node.write(broken, content),
            None => node.remove(broken),
        }
        let ran = renew(&node, &[]);
        ran.ended(65).row_says("sa", "refused");
        renew(&node, &["--dry-run"])
            .ended(65)
            .row_says("sa", "refuse");
        needs_renewal(&node, &[]).ended(255).says("sa.");
        // A renewal of one certificate does not depend on it.
        renew(&node, &["--force", "--name", "apiserver"])
            .done()
            .says("sa.");
        for (path, content) in &originals {
            node.write(path, content);
        }
        renew(&node, &[]).done();
    }
}

#[test]
fn prints_end_and_due_date_of_each_certificate() {
    let node = node();
    let plan = node.plan();
    plan.done().says("RENEWAL DUE (UTC)");
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    let not_after = chain.leaf().not_after().date().to_string();
    let row = plan.row("apiserver");
    let dates: Vec<&str> = row
        .split("  ")
        .map(str::trim)
        .filter(|cell| cell.starts_with("20"))
        .collect();
    assert_eq!(dates.len(), 2, "{row}");
    assert!(
        dates[0].starts_with(&not_after) && dates[1] < dates[0],
        "{row}"
    );
}

#[test]
fn writes_files_that_kubeadm_reads() {
    kubeadm::binary();
    let node = node();
    backdate(&node, &EVERYTHING, DUE);
    let_pass(Duration::from_millis(1100));
    renew(&node, &[]).done();
    let config = fs::read_to_string(node.outside("kubeadm.yaml")).unwrap();
    let etc = node.path("/etc/kubernetes");
    let report = kubeadm::check_expiration(kubeadm::Node::new(&etc), &config, "json");
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let begin = text
        .find('{')
        .unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&report.stderr)));
    let report: Value = serde_json::from_str(&text[begin..]).unwrap();
    let certificates = report["certificates"].as_array().unwrap();
    assert_eq!(certificates.len(), 11, "{report}");
    for certificate in certificates {
        let name: CertName = certificate["name"].as_str().unwrap().parse().unwrap();
        let (chain, _) = node.leaf(name).unwrap();
        let ends = chain.leaf().not_after().format(&Rfc3339).unwrap();
        assert_eq!(certificate["expirationDate"], ends.as_str(), "{name}");
    }
}

#[test]
fn renews_joined_node_without_its_cluster() {
    let node = Node::of(JOIN);
    let pair = Node::bootstrapped();
    for file in ["sa.key", "sa.pub"] {
        let path = format!("/etc/kubernetes/pki/{file}");
        node.write(&path, pair.read(&path));
    }
    node.ask().done();
    let held: Vec<CertName> = EVERYTHING
        .into_iter()
        .filter(|name| *name != CertName::SuperAdminConf)
        .collect();
    backdate(&node, &held, DUE);
    renew(&node, &[]).done().row_says("apiserver", "rekeyed");
    node.assert_sound(&held);
}

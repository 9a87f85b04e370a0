//! The fixes that `nodepki doctor` prints, followed literally on nodes that are broken: afterwards the finding is gone, and
//! the diagnosis is clean.
//!
//! Each check of `doctor --list` has a row in [`FIXES`], or a reason in [`BY_ADMINISTRATORS`]. A row runs every command that
//! the fix prints: those in backquotes, and those in parentheses that it refers to.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use nodepki::commands::doctor::checks::CHECKS;
use serde_json::Value;

use crate::node::{INIT, NODEPKI, Node, Ran, SIGNER, booted};

/// A finding and how to follow its fix. Scripts run in `/etc/kubernetes` of the node; `$D` is the directory of the fixture.
struct Fix {
    id: &'static str,
    /// Breaks the node.
    broken: &'static str,
    /// What the fix says in words, to be done before its commands.
    first: &'static str,
    /// Texts of the fix that are not literal, and what is written in their place.
    filled: &'static [(&'static str, &'static str)],
}

const fn fix(id: &'static str, broken: &'static str) -> Fix {
    after(id, broken, "")
}

const fn after(id: &'static str, broken: &'static str, first: &'static str) -> Fix {
    Fix {
        id,
        broken,
        first,
        filled: &[],
    }
}

/// Commands of fixes that are alternatives to the others or precede them, and need what this node does not have.
const ALTERNATIVES: [&str; 5] = [
    // For proof that the API server accepts admin.conf.
    "kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes",
    // For a node that reaches no signer; tests/it/runbook.rs runs it.
    "csr export DIR",
    // For a cluster that is to issue the kubelet's certificate.
    "kubeadm join",
    // For a CA that is changed; tests/it/authority.rs runs it.
    "authority stage ca --certificate NEW",
    "authority stage etcd-ca --certificate NEW",
];

/// Functions of the scripts.
const PRELUDE: &str = r#"
set -euo pipefail
export SSL_CERT_FILE=/dev/null
sign() { # CERTIFICATE SUBJECT DAYS EXTENSIONS…
  ca=ca; case $1 in etcd/*|apiserver-etcd*) ca=etcd/ca;; front*) ca=front-proxy-ca;; esac
  openssl req -new -key "pki/$1.key" -subj "$2" -out "$D/csr.pem"
  printf '%s\n' "${@:4}" >"$D/ext"
  openssl x509 -req -in "$D/csr.pem" -CA "$D/ca/$ca.crt" -CAkey "$D/ca/$ca.key" -CAcreateserial -days "$3" \
    -extfile "$D/ext" -out "pki/$1.crt" 2>/dev/null
}
embed() { # KUBECONFIG SUBJECT DAYS
  sed -n 's/.*client-key-data: //p' "$1" | base64 -d >pki/x.key
  sign x "$2" "$3" keyUsage=digitalSignature extendedKeyUsage=clientAuth
  sed -i "s|client-certificate-data:.*|client-certificate-data: $(base64 -w0 pki/x.crt)|" "$1"
  rm pki/x.*
}
serve() { # DAYS NAMES
  sign apiserver /CN=kube-apiserver "$1" keyUsage=digitalSignature,keyEncipherment extendedKeyUsage=serverAuth "subjectAltName=$2"
}
kubelet_files() {
  pki=/var/lib/kubelet/pki; mkdir -p "$pki"; newest=$pki/kubelet-client-2026-11-21-10-00-00.pem
  for part in certificate key; do
    sed -n "s/.*client-$part-data: //p" kubelet.conf | base64 -d >>"$newest"
    sed -i "s|client-$part-data:.*|client-$part: /var/lib/kubelet/pki/kubelet-client-current.pem|" kubelet.conf
  done
  chmod 600 "$newest"; ln -s "${newest##*/}" "$pki/kubelet-client-current.pem"
}
exchange() { mv "$1" x; mv "$2" "$1"; mv x "$2"; }
serving() { mkdir manifests; echo "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{command: [kube-apiserver]}]}}" >manifests/kube-apiserver.yaml; }
away_with_super_admin() { mv super-admin.conf "$D"; echo 'certificates: {omit: [super-admin.conf]}' >>"$CONFIG"; }
by_file() { # KUBECONFIG
  for part in certificate key; do
    sed -n "s/.*client-$part-data: //p" "$1" | base64 -d >"$D/$part.pem"; chmod 600 "$D/$part.pem"
    sed -i "s|client-$part-data:.*|client-$part: $D/$part.pem|" "$1"
  done
}
NAMES=DNS:cp1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:api.example.com,IP:10.96.0.1,IP:192.0.2.11
CONFIG=/etc/nodepki/config.yaml
"#;

#[rustfmt::skip]
const FIXES: &[Fix] = &[
    fix("empty-node", r#"rm -r ./* /var/lib/nodepki; sed -i "s/signer: s}/signer: s, trust: {file: @FILE@}}/g" "$CONFIG"
        for a in ca etcd/ca front-proxy-ca; do sed -i "0,/@FILE@/s||$D/ca/$a.crt|" "$CONFIG"; done"#),
    after("config-unusable", r#"sed -i 's/signer: s}/signer: t}/' "$CONFIG""#, r#"sed -i 's/signer: t}/signer: s}/' "$CONFIG""#),
    fix("unfinished-commit", "NODEPKI_FAILPOINT=finish:rename-one:1 nodepki renew --force apiserver || true"),
    fix("stray-files", "touch pki/.nodepki-new.apiserver.crt"),
    after("pending-request", r#"echo pending >"$D/how/apiserver"; nodepki renew --wait 0s --force apiserver || true"#, r#"rm "$D/how/apiserver""#),
    after("pending-request", r#"rm pki/apiserver.*; echo pending >"$D/how/apiserver"; nodepki bootstrap --wait 0s || true"#, r#"rm "$D/how/apiserver""#),
    Fix {
        filled: &[("BACKUP", "/root/backup"), ("PASSPHRASE", "/root/passphrase")],
        ..after("ca-key-on-disk", r#"install -m 600 "$D/ca/ca.key" pki/"#, "(umask 077; mkdir -p /root; openssl rand -base64 24 >/root/passphrase)")
    },
    after("ca-key-copy", r#"mkdir tmp; cp "$D/ca/ca.key" tmp/"#, "rm -r tmp"),
    fix("ca-replaced", r#"cp "$OTHER/ca.crt" pki/"#),
    fix("ca-replaced", "exchange pki/front-proxy-ca.crt pki/etcd/ca.crt"),
    after("ca-replaced", "cp pki/ca.crt pki/etcd/ca.crt", r#"cp "$D/ca/etcd/ca.crt" pki/etcd/"#),
    fix("ca-replaced", "exchange pki/ca.crt pki/etcd/ca.crt"),
    fix("ca-replaced", "exchange pki/ca.crt pki/front-proxy-ca.crt"),
    fix("ca-replaced", "exchange pki/ca.crt pki/etcd/ca.crt; exchange pki/ca.crt pki/front-proxy-ca.crt"),
    fix("secret-exposed", r#"echo x >/etc/token; cp pki/ca.crt /etc/k.crt; sed -i 's/front-proxy-ca: {signer: s/front-proxy-ca: {signer: k/' "$CONFIG"
        echo "  k: {kubernetes: {server: 'https://k.test:6443', signerName: k.test/x, tokenFile: /etc/token, tls: {caFile: /etc/k.crt}}}" >>"$CONFIG""#),
    after("unreadable", "echo hello >pki/apiserver.crt", "rm pki/apiserver.*"),
    fix("unreadable", ": >pki/apiserver.key"),
    fix("unreadable", ": >pki/sa.pub"),
    fix("sa-pair", "exchange pki/sa.key pki/apiserver.key"),
    fix("sa-missing", "mv pki/sa.key pki/apiserver.key"),
    fix("unreadable", "head -c 100 pki/sa.pub >x; mv x pki/sa.pub"),
    fix("unreadable", "sed -i 's/client-key-data: ..../&!/' scheduler.conf"),
    fix("unreadable", "head -c 300 pki/ca.crt >x; mv x pki/ca.crt"),
    after("unreadable", r#"cp admin.conf "$D"; head -c 300 pki/ca.crt >x; mv x pki/ca.crt
        sed -i "s|certificate-authority-data:.*|certificate-authority-data: $(base64 -w0 "$OTHER/ca.crt")|" admin.conf"#, r#"mv "$D/admin.conf" ."#),
    after("config-unusable", "echo >/var/lib/nodepki/node.json", "mv /var/lib/nodepki/node.json /var/lib/nodepki/node.json.old"),
    fix("missing-authority", "rm pki/ca.crt"),
    fix("missing-certificate", "rm pki/apiserver.crt"),
    fix("missing-certificate", "rm pki/etcd/peer.*"),
    fix("missing-certificate", "sed -i /client-certificate-data/d admin.conf"),
    fix("missing-key", "rm pki/apiserver.key"),
    fix("torn-pair", "cp pki/etcd/server.key pki/apiserver.key"),
    fix("expired", r#"serve -1 "$NAMES""#),
    fix("chain-broken", "sign front-proxy-client /CN=front-proxy-client 300 keyUsage=digitalSignature extendedKeyUsage=clientAuth; cp pki/etcd/peer.crt pki/apiserver-kubelet-client.crt; cp pki/etcd/peer.key pki/apiserver-kubelet-client.key"),
    fix("misplaced-certificate", r#"sign apiserver /CN=kube-apiserver 300 keyUsage=digitalSignature extendedKeyUsage=clientAuth "subjectAltName=$NAMES""#),
    fix("not-as-configured", r#"serve 300 "$NAMES,DNS:extra.example.com""#),
    fix("not-as-configured", r#"sed -i 's/ECDSA-P256/ECDSA-P384/' "/run/kubeadm/kubeadm.yaml""#),
    after("key-policy", r#"echo 'pki: {overrides: [{certificateName: apiserver, certificate: {lifetime: 48h}}]}' >>"$CONFIG""#, r#"echo 2 >"$D/days""#),
    after("static-pod-mounts", "serving; printf '%s\n' 'apiVersion: v1' 'kind: Pod' 'metadata: {name: kube-vip, namespace: kube-system}' \
        'spec: {containers: [{name: v, volumeMounts: [{name: c, mountPath: /c}]}], volumes: [{name: c, hostPath: {path: /etc/kubernetes/super-admin.conf}}]}' \
        >manifests/kube-vip.yaml", "away_with_super_admin"),
    fix("mode-too-open", "chmod 644 pki/apiserver.key"),
    fix("mode-too-open", "chmod 666 pki/ca.crt"),
    fix("directory-exposed", "chmod 777 pki"),
    fix("directory-exposed", "chown 4242 ."),
    fix("foreign-owner", "chown 4242 admin.conf"),
    fix("sa-missing", "rm pki/sa.pub"),
    fix("sa-missing", "rm pki/sa.* controller-manager.conf"),
    fix("sa-pair", "rm controller-manager.conf; openssl pkey -in pki/apiserver.key -pubout -out pki/sa.pub"),
    fix("kubeconfig-missing", "rm scheduler.conf"),
    fix("kubeconfig-empty", ": >controller-manager.conf"),
    after("kubeconfig-is-a-directory", "rm scheduler.conf; mkdir scheduler.conf", "rmdir scheduler.conf"),
    after("kubeconfig-dangling", "sed -i 's/^current-context:.*/current-context: other/' admin.conf", r#"mv admin.conf "$D""#),
    after("kubeconfig-refused", "sed -i 's|^    server:|    insecure-skip-tls-verify: true\\n&|' admin.conf", r#"mv admin.conf "$D""#),
    fix("kubeconfig-authority", r#"sed -i "s|certificate-authority-data:.*|certificate-authority-data: $(base64 -w0 "$OTHER/ca.crt")|" admin.conf"#),
    fix("kubeconfig-server", "sed -i 's|server: .*|server: https://192.0.2.50:6443|' scheduler.conf"),
    after("kubeconfig-by-file", "by_file admin.conf", r#"mv admin.conf "$D""#),
    fix("stale-copy", r#"mkdir -p "/root/.kube"; cp admin.conf "/root/.kube/config"; embed "/root/.kube/config" /CN=kubernetes-admin -1"#),
    after("super-admin-left", "serving", "away_with_super_admin"),
    fix("kubelet-no-identity", "rm kubelet.conf"),
    fix("kubelet-file-missing", r#"kubelet_files; rm "$newest""#),
    fix("kubelet-client-not-a-link", r#"kubelet_files; mv "$newest" "$pki/kubelet-client-current.pem""#),
    fix("kubelet-embedded", r#"cp kubelet.conf k; kubelet_files; mv k kubelet.conf"#),
    fix("kubelet-other-node", "embed kubelet.conf /O=system:nodes/CN=system:node:cp9 300"),
    fix("system-masters", "embed scheduler.conf /O=system:masters/CN=system:kube-scheduler 300"),
    fix("system-masters", "sign apiserver-kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client 300 keyUsage=digitalSignature extendedKeyUsage=clientAuth"),
    fix("kubeadm-external-ca", "rm pki/apiserver.crt"),
    fix("kubeadm-renewal", "rm pki/etcd/peer.key"),
];

/// Checks whose fixes no command can be, with the reason.
#[rustfmt::skip]
const BY_ADMINISTRATORS: &[(&str, &str)] = &[
    ("config-absent", "says which options name the configuration"),
    ("hostname-override", "the kubeadm configuration has to be edited"),
    ("clock-behind", "the clock of the machine has to be set"),
    ("not-permitted", "doctor has to run as another user, see tests/it/doctor.rs"),
    ("unregistered-certificate", "the settings have to be edited, see tests/it/registered.rs"),
    ("too-many-files", "an administrator knows which files do not belong there"),
    ("cluster-rotation", "needs a cluster, see tests/it/rotation_cluster.rs"),
    ("shared-authority", "the authorities have to be separated at the signer"),
    ("local-signer", "another signer has to be configured"),
    ("authority-not-pinned", "an administrator has to find the cause"),
    ("no-room", "space has to be found, see tests/it/failures_host.rs"),
    ("external-etcd", "the files belong to the administrators of etcd"),
    ("not-yet-valid", "the clock of the machine has to be set"),
    ("expiring", "needs a certificate that is older than the test, see tests/it/doctor.rs"),
    ("revoked", "needs a revocation list, see tests/it/crl.rs"),
    ("first-certificate", "the order of a bundle has to be edited"),
    ("key-policy-unknown", "an administrator has to remove the cause"),
    ("key-strength", "an administrator has to choose other keys"),
    ("sa-divergence", "the pair has to be copied from another machine"),
    ("copies", "an administrator knows which copies are needed"),
    ("kubelet-serving-unused", "the kubelet's configuration has to be edited"),
    ("manifest-unreadable", "kubeadm writes manifests"),
    ("controller-manager-no-signer", "another signer has to be chosen for kubelets"),
    ("controller-manager-token-cleaner", "a manifest has to be edited"),
    ("etcd-revocation-ignored", "another image has to be chosen"),
    ("kubelets-two-signers", "a manifest has to be edited"),
    ("kubelets-any-network", "the settings have to be edited"),
    ("controller-manager-signer-files", "a manifest has to be edited, or files restored"),
    ("controller-manager-signer-bundle", "a manifest has to be edited"),
    ("address-drift", "the kubeadm configuration has to be edited"),
    ("kubelet-client-rbac", "needs a cluster: tests/it/doctor.rs applies the manifest of the fix"),
    ("kubelet-signer-rbac", "needs a cluster, see tests/it/kubelets.rs"),
    ("admin-rbac", "needs a cluster: tests/it/doctor.rs applies the manifest of the fix"),
    ("signer-missing", "the settings have to be edited"),
    ("signer-login", "an administrator of the signer is needed"),
    ("signer-authority", "an administrator of the signer is needed"),
    ("signer-profile", "an administrator of the signer is needed"),
    ("cluster-unreachable", "the cluster has to be reachable"),
    ("cluster-refused", "another kubeconfig has to be named"),
];

/// A bootstrapped node that keeps its configuration below its root.
fn sound() -> Node {
    let node = Node::new();
    configure(&node);
    shell(&node, Path::new(""), "nodepki bootstrap").done();
    node
}

fn configure(node: &Node) {
    node.write_secret("/run/kubeadm/kubeadm.yaml", INIT);
    node.write("/etc/nodepki/config.yaml", settings(node));
}

fn settings(node: &Node) -> String {
    let here = node.outside("");
    format!(
        "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
         authorities: {{ca: {{signer: s}}, etcd-ca: {{signer: s}}, front-proxy-ca: {{signer: s}}}}\n\
         signers:\n  s: {{exec: {{command: /bin/bash, args: [{SIGNER}, {}]}}}}\n",
        here.display()
    )
}

/// Runs a script in a root shell of the node.
fn shell(node: &Node, other: &Path, script: &str) -> Ran {
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(format!("cd /etc/kubernetes; {script}"));
    let binaries = Path::new(NODEPKI).parent().unwrap();
    let variables = format!(
        "export PATH='{}':$PATH D='{}' OTHER='{}'",
        binaries.display(),
        node.outside("").display().to_string().trim_end_matches('/'),
        other.display()
    );
    Ran::of(&mut booted(node, &bash, &variables))
}

/// Returns the findings of `doctor`.
fn findings(node: &Node) -> Vec<Value> {
    let ran = shell(node, Path::new(""), "nodepki doctor -o json");
    let report: Value =
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.said()));
    report["findings"].as_array().unwrap().clone()
}

fn ids(findings: &[Value], is_wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let found = findings.iter();
    found
        .filter(|finding| is_wanted(finding["severity"].as_str().unwrap()))
        .map(|finding| finding["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the commands that a finding prints.
fn commands(finding: &Value) -> Vec<String> {
    let fix = finding["fix"].as_str().unwrap();
    let quoted = fix.split('`').skip(1).step_by(2).map(str::to_owned);
    let evidence = finding["evidence"].as_array().unwrap().iter();
    let parentheses = evidence
        .filter(|_| fix.contains("in parentheses"))
        .map(|text| {
            let (_, command) = text.as_str().unwrap().rsplit_once('(').unwrap();
            command.trim_end_matches(')').to_owned()
        });
    let commands = parentheses.chain(quoted);
    commands
        .filter(|command| !ALTERNATIVES.iter().any(|other| command.ends_with(other)))
        // A setting in backquotes.
        .filter(|command| !command.starts_with("certificates:"))
        .collect()
}

#[test]
fn every_check_has_a_fix_that_is_followed_or_a_reason() {
    for check in CHECKS {
        let followed = FIXES.iter().any(|fix| fix.id == check.id);
        let excused = BY_ADMINISTRATORS.iter().any(|(id, _)| *id == check.id);
        assert!(followed != excused, "{}: {followed} {excused}", check.id);
    }
    let known = |id: &str| CHECKS.iter().any(|check| check.id == id);
    assert!(FIXES.iter().all(|fix| known(fix.id)));
    assert!(BY_ADMINISTRATORS.iter().all(|(id, _)| known(id)));
}

#[test]
fn printed_fixes_end_their_findings() {
    let base = sound();
    let serious = |severity: &str| severity != "info";
    assert_eq!(ids(&findings(&base), serious), BTreeSet::new());
    let other = Node::new();
    let mut wrong = Vec::new();
    for fix in FIXES {
        let node = base.copied();
        fs::write(node.path("/etc/nodepki/config.yaml"), settings(&node)).unwrap();
        let run = |prelude: &str, script: &str| {
            shell(&node, &other.ca(), &format!("{prelude}\n{script}"))
        };
        let broken = run(PRELUDE, fix.broken);
        let name = format!("{}: {}", fix.id, fix.broken);
        if broken.code != Some(0) {
            wrong.push(format!("{name}: cannot be broken: {}", broken.said()));
            continue;
        }
        let found = findings(&node);
        let is_followed =
            |one: &&Value| one["id"] == fix.id || serious(one["severity"].as_str().unwrap());
        let found: Vec<&Value> = found.iter().filter(is_followed).collect();
        let broken_by = found.iter().find(|one| one["id"] == fix.id);
        let mut printed: Vec<String> = Vec::new();
        for mut command in found.iter().flat_map(|one| commands(one)) {
            for (from, to) in fix.filled {
                command = command.replace(from, to);
            }
            if !printed.contains(&command) {
                printed.push(command);
            }
        }
        let Some(broken_by) = broken_by.filter(|_| !printed.is_empty() || !fix.first.is_empty())
        else {
            wrong.push(format!("{name}: nothing to do: {:?}", findings(&node)));
            continue;
        };
        let ran = [
            run(PRELUDE, fix.first),
            run("set -euxo pipefail; umask 022", &printed.join("\n")),
        ];
        let after = findings(&node);
        let left = ids(&after, serious);
        let is_same = |severity: &str| broken_by["severity"] == severity;
        let is_left = ids(&after, is_same).contains(fix.id);
        let failed = ran.iter().any(|ran| ran.code != Some(0));
        if failed || is_left || !left.is_empty() {
            let said: String = ran.iter().map(Ran::said).collect();
            wrong.push(format!(
                "{name}\n{found:?}\n{said}\nafterwards {left:?} {is_left}\n{after:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

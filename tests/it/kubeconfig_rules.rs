//! The verdict about kubeconfigs, compared with that of kubectl: a file that client-go refuses is never reported as usable,
//! and one that it accepts is.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::node::{Node, Ran};
use crate::servers;

const ADMIN_CONF: &str = "/etc/kubernetes/admin.conf";
/// Address on which nothing listens, so kubectl ends after it has read the file.
const CLOSED: &str = "https://127.0.0.1:1";

/// What happens to a file.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    Accepted,
    /// Refused by clients, and corrected by nodepki.
    Rewritten,
    /// Refused by clients, and left to the administrator.
    Refused,
}
use Verdict::{Accepted, Refused, Rewritten};

/// Edits of admin.conf: `-FIELD` removes a line, `NAME=VALUE` at the top replaces one, and all else is added to the cluster
/// (first) or to the user.
const CASES: &[(&[&str], &[&str], Verdict)] = &[
    (&[], &[], Accepted),
    // The cluster.
    (&["insecure-skip-tls-verify: true"], &[], Rewritten),
    (&["insecure-skip-tls-verify: false"], &[], Accepted),
    (
        &[
            "-certificate-authority-data",
            "certificate-authority: pki/ca.crt",
            "insecure-skip-tls-verify: true",
        ],
        &[],
        Rewritten,
    ),
    (&["certificate-authority: pki/ca.crt"], &[], Rewritten),
    (&["certificate-authority: ''"], &[], Accepted),
    (
        &[
            "-certificate-authority-data",
            "certificate-authority: pki/gone.crt",
        ],
        &[],
        Rewritten,
    ),
    (&["-server"], &[], Rewritten),
    (&["-server", "server: ''"], &[], Rewritten),
    (
        &["-server", "server: 'https://127.0.0.1:port'"],
        &[],
        Rewritten,
    ),
    (
        &["-server", "server: 'https://127.0.0.1 :1'"],
        &[],
        Rewritten,
    ),
    (&["-server", "server: 'ftp://127.0.0.1:1'"], &[], Rewritten),
    (&["proxy-url: 'ftp://127.0.0.1:1'"], &[], Refused),
    (&["proxy-url: '127.0.0.1:1'"], &[], Refused),
    (&["proxy-url: 'http://127.0.0.1:port'"], &[], Refused),
    (
        &["proxy-url: 'HTTP://user:pass%20word@127.0.0.1:1'"],
        &[],
        Accepted,
    ),
    (&["proxy-url: 'socks5://127.0.0.1:1'"], &[], Accepted),
    (
        &["tls-server-name: kubernetes", "disable-compression: true"],
        &[],
        Accepted,
    ),
    // The user.
    (
        &[],
        &["client-certificate: pki/apiserver-kubelet-client.crt"],
        Rewritten,
    ),
    (
        &[],
        &["client-key: pki/apiserver-kubelet-client.key"],
        Rewritten,
    ),
    (&[], &["token: abc"], Accepted),
    (&[], &["token: abc", "username: me"], Refused),
    (&[], &["token: abc", "password: secret"], Refused),
    (&[], &["username: me", "password: secret"], Accepted),
    (&[], &["tokenFile: token"], Accepted),
    (&[], &["tokenFile: gone"], Refused),
    (&[], &["tokenFile: empty"], Refused),
    (&[], &["token: abc", "tokenFile: gone"], Accepted),
    (&[], &["tokenFile: token", "username: me"], Refused),
    (&[], &["tokenFile: token", "password: secret"], Accepted),
    (&[], &["as-groups: [a]"], Refused),
    (&[], &["as-uid: a"], Refused),
    (&[], &["as-user-extra: {a: [b]}"], Refused),
    (&[], &["as: you", "as-uid: a", "as-groups: [a]"], Accepted),
    (&[], &["as-groups: []"], Accepted),
    (
        &[],
        &[
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false, interactiveMode: Never}",
        ],
        Accepted,
    ),
    (
        &[],
        &["exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: /bin/false}"],
        Accepted,
    ),
    (
        &[],
        &["exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/false}"],
        Refused,
    ),
    (
        &[],
        &["exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: /bin/false}"],
        Refused,
    ),
    (
        &[],
        &["exec: {command: /bin/false, interactiveMode: Never}"],
        Refused,
    ),
    (
        &[],
        &["exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never}"],
        Refused,
    ),
    (
        &[],
        &[
            "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: /bin/false, interactiveMode: Sometimes}",
        ],
        Refused,
    ),
    (
        &[],
        &[
            "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: /bin/false, env: [{value: a}]}",
        ],
        Refused,
    ),
    (
        &[],
        &[
            "exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: /bin/false}",
            "auth-provider: {name: oidc}",
        ],
        Refused,
    ),
    (&[], &["auth-provider: {name: gcp}"], Refused),
    // The document.
    (&["apiVersion=v2"], &[], Refused),
    (&["apiVersion="], &[], Accepted),
    (&["kind=Configuration"], &[], Refused),
    (&["kind="], &[], Accepted),
    (&["current-context=other"], &[], Refused),
    (&["users=[]"], &[], Refused),
];

/// Returns the text of a kubeconfig as kubeadm writes it, with the edits of a case.
fn edited(text: &str, cluster: &[&str], user: &[&str]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for edit in cluster {
        if let Some((field, value)) = edit
            .split_once('=')
            .filter(|(field, _)| !field.contains(' '))
        {
            let field = format!("{field}:");
            let at = lines
                .iter()
                .position(|line| line.starts_with(&field))
                .unwrap();
            // A list ends with the document.
            if value == "[]" {
                lines.truncate(at);
            }
            lines.splice(at..(at + 1).min(lines.len()), [format!("{field} {value}")]);
        } else if let Some(field) = edit.strip_prefix('-') {
            lines.retain(|line| !line.trim_start().starts_with(&format!("{field}:")));
        }
    }
    let is_line =
        |edit: &&&str| !edit.starts_with('-') && (!edit.contains('=') || edit.contains(' '));
    let indented = |edit: &&str| format!("    {edit}");
    lines.extend(user.iter().map(indented));
    let at = lines.iter().position(|line| line == "- cluster:").unwrap();
    lines.splice(at + 1..at + 1, cluster.iter().filter(is_line).map(indented));
    lines.join("\n") + "\n"
}

/// Returns whether kubectl uses the kubeconfig, and what it says.
fn kubectl(file: &Path) -> (bool, String) {
    let ran = Command::new(servers::bin("kubectl"))
        .arg("--kubeconfig")
        .arg(file)
        .args(["--request-timeout=20s", "get", "--raw", "/"])
        .env_remove("HTTPS_PROXY")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!ran.status.success());
    let said = String::from_utf8(ran.stderr).unwrap();
    let used = [
        "connection refused",
        "was refused - did you",
        "getting credentials: exec",
    ];
    // kubectl alone has a default for the server.
    let is_own = !said.contains("localhost:8080");
    (
        is_own && used.iter().any(|words| said.contains(words)),
        said,
    )
}

#[test]
fn refuses_kubeconfigs_that_kubectl_refuses_and_no_others() {
    let node = Node::bootstrapped();
    let original = node.read(ADMIN_CONF);
    let server = original
        .lines()
        .find(|line| line.contains("server: "))
        .unwrap();
    node.write("/etc/kubernetes/empty", "\n");
    node.write("/etc/kubernetes/token", "abc\n");
    for (cluster, user, wanted) in CASES {
        let case = format!("{cluster:?} {user:?}");
        let text = edited(&original, cluster, user);
        node.write_secret(ADMIN_CONF, &text);
        let copy = node.path("/etc/kubernetes/copy.conf");
        fs::write(
            &copy,
            text.replace(server, &format!("    server: {CLOSED}")),
        )
        .unwrap();
        let (is_used, said) = kubectl(&copy);
        assert_eq!(is_used, *wanted == Accepted, "{case}: {said}");

        let status = Ran::of(&mut node.command(["status"])).row("admin.conf");
        let is_ok = status.split_whitespace().nth(1) == Some("ok");
        assert_eq!(is_ok, *wanted == Accepted, "{case}: {status}");
        let plan = node.plan();
        let action = match wanted {
            Accepted => "keep",
            Rewritten => "rewrite",
            Refused => "refuse",
        };
        let row = plan.row("admin.conf");
        assert!(row.contains(action), "{case}: {row}");
        plan.ended(if *wanted == Refused { 65 } else { 0 });
        let doctor = Ran::of(&mut node.command(["doctor"])).said();
        let is_reported = ["kubeconfig-refused", "kubeconfig-dangling", "unreadable"]
            .iter()
            .any(|check| doctor.contains(check));
        assert_eq!(is_reported, *wanted != Accepted, "{case}: {doctor}");
        match wanted {
            Accepted => {}
            Refused => {
                node.bootstrap().ended(65);
                assert_eq!(node.read(ADMIN_CONF), text, "{case}");
            }
            Rewritten => {
                node.bootstrap().done();
                let text = node.read(ADMIN_CONF);
                let status = Ran::of(&mut node.command(["status"])).row("admin.conf");
                assert!(status.contains(" ok "), "{case}: {status}");
                fs::write(
                    &copy,
                    text.replace(server, &format!("    server: {CLOSED}")),
                )
                .unwrap();
                let (is_used, said) = kubectl(&copy);
                assert!(is_used, "{case}: {said}");
            }
        }
    }
}

#[test]
fn removes_insecure_flag_next_to_ca_and_says_so() {
    let node = Node::bootstrapped();
    let file = "/etc/kubernetes/controller-manager.conf";
    let text = node.read(file);
    let extra = "    as: someone\n";
    node.write_secret(
        file,
        text.replace(
            "    server:",
            "    insecure-skip-tls-verify: true\n    server:",
        ) + extra,
    );
    let words = "insecure-skip-tls-verify is set next to a CA";
    Ran::of(&mut node.command(["status"])).row_says("controller-manager.conf", "unreadable");
    Ran::of(&mut node.command(["doctor"]))
        .says("kubeconfig-refused")
        .says(words);
    node.bootstrap()
        .done()
        .row_says("controller-manager.conf", words);
    assert_eq!(node.read(file), text + extra);
}

#[test]
fn names_files_that_a_kubeconfig_lacks() {
    let node = Node::bootstrapped();
    let original = node.read(ADMIN_CONF);
    node.write_secret(ADMIN_CONF, edited(&original, &[], &["tokenFile: gone"]));
    let words = "tokenFile names @/etc/kubernetes/gone, which does not contain a token";
    Ran::of(&mut node.command(["doctor"])).says(&node.here(words));
    let ca_file = [
        "-certificate-authority-data",
        "certificate-authority: gone.crt",
    ];
    node.write_secret(ADMIN_CONF, edited(&original, &ca_file, &[]));
    let words = "certificate-authority names @/etc/kubernetes/gone.crt, which cannot be read";
    Ran::of(&mut node.command(["doctor"])).says(&node.here(words));
}

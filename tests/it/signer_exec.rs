//! `exec`: the contract of a plug-in, and the ways in which a program can break it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodepki::kube::names::CertName;
use nodepki::signer::exec::{self, Exec, RunAs, UNCLEAN_LIMIT};
use nodepki::signer::{
    Answer, Carry, Config, FailureClass, Request, Resubmit, Signer, SignerError, SignerKind, Ticket,
};
use nodepki::x509::UsageExtensions;
use tempfile::TempDir;

use crate::log::logged;
use crate::node::{EVERYTHING, NODEPKI, Node, Ran};
use crate::pages;
use crate::rig::{Denial, Rig};
use crate::signer_bad::bad_plugin;
use crate::signing::{
    BAD_SIGNER, HEAD, ODD_PLUGIN, contains, denied, fails, issued, now, opened, openssl, rejects,
    request, run, run_program, settings, write_authorities,
};
use crate::time::wait_until;

const PAGE: &str = include_str!("../../docs/signers/exec.md");

/// `bad-signer.sh` as a plug-in whose requests pend, with a log of the request ids that it receives.
pub(crate) struct ExecRig(TempDir);

impl ExecRig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_authorities(dir.path());
        ExecRig(dir)
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    fn config(&self, mode: &str) -> String {
        let script = self.0.path().join(format!("{mode}.sh"));
        let text = format!(
            "request=$(cat); for verb; do :; done\n\
             [ $verb != sign ] || sed 's/.*\"requestId\":\"\\([^\"]*\\)\".*/\\1/' <<<\"$request\" >>{}\n\
             exec bash {BAD_SIGNER} {mode} {} $verb <<<\"$request\"\n",
            self.log().display(),
            self.0.path().display(),
        );
        fs::write(&script, text).unwrap();
        settings(&format!(
            "exec: {{command: /bin/bash, args: [{}]}}",
            script.display()
        ))
    }
}

impl Rig for ExecRig {
    fn kind(&self) -> SignerKind {
        SignerKind::Exec
    }

    fn settings(&self) -> String {
        self.config("pending")
    }

    fn scratch(&self) -> &Path {
        self.0.path()
    }

    fn deny(&self, _request: &Request) -> Option<Denial> {
        Some(Denial {
            signer: opened(&Config::Exec(bad_plugin("denied", self.0.path()))).into(),
            ticket: None,
            reason: "not on a Friday",
        })
    }

    fn sent(&self) -> Vec<String> {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

/// Opens `odd-plugin.sh` with a behaviour.
fn odd(how: &str) -> Exec {
    Exec::new(odd_plugin(how, Path::new("/dev/null")), None).unwrap()
}

/// Returns `odd-plugin.sh` with a behaviour and a file for its process id.
fn odd_plugin(how: &str, scratch: &Path) -> exec::Config {
    exec::Config {
        args: vec![
            ODD_PLUGIN.to_owned(),
            how.to_owned(),
            scratch.to_str().unwrap().to_owned(),
        ],
        ..exec::Config::new("/bin/bash")
    }
}

fn ask(how: &str) -> Result<Answer, SignerError> {
    run(odd(how).submit(&request(CertName::Apiserver)))
}

#[test]
fn treats_invalid_output_of_sign_as_ambiguous_and_of_poll_as_transient() {
    for (how, words) in [
        ("half-json", "not one JSON object"),
        ("two-objects", "not one JSON object"),
        ("trailing-text", "not one JSON object"),
        ("array", "not one JSON object"),
        ("silent", "stdout is empty"),
        ("no-id", "its JSON has no requestId"),
        ("wrong-id", "requestId is \"0000\""),
        ("wrong-version", "apiVersion is \"signer.nodepki.dev/v2\""),
        ("wrong-kind", "kind is \"Signed\""),
        ("unknown-result", "result \"maybe\""),
        ("no-certificate", "without a certificatePem"),
        ("long-handle", "1 to 4096 bytes"),
        ("too-much", "more than 1048576 bytes"),
        ("nonzero", "exit status: 1"),
        ("killed", "signal: 9"),
    ] {
        let error = ask(how).unwrap_err();
        assert_eq!(error.class, FailureClass::Ambiguous, "{how}: {error}");
        let has_ended_well = !["nonzero", "killed"].contains(&how);
        assert_eq!(error.bad_answer, has_ended_well, "{how}: {error}");
        let message = error.to_string();
        contains(&message, &[words, "exec:/bin/bash", "by hand"]);
        let ticket = Ticket::try_from("t".to_owned()).unwrap();
        fails(
            run(odd(how).poll(&request(CertName::Apiserver), &ticket)),
            FailureClass::Transient,
            &[],
        );
    }
    assert_eq!(ask("no-handle").unwrap_err().class, FailureClass::Ambiguous);
}

#[test]
fn gives_up_after_repeated_invalid_output() {
    let signer = odd("half-json");
    let request = request(CertName::Apiserver);
    for attempt in 1..UNCLEAN_LIMIT {
        let again = request.again(attempt, now(), None);
        assert_eq!(
            run(signer.submit(&again)).unwrap_err().class,
            FailureClass::Ambiguous
        );
    }
    fails(
        run(signer.submit(&request)),
        FailureClass::Permanent,
        &["5 consecutive times"],
    );
    // All certificates share a signer: the failures of one request do not count for the next.
    let other = crate::signing::request(CertName::EtcdPeer);
    assert_eq!(
        run(signer.submit(&other)).unwrap_err().class,
        FailureClass::Ambiguous
    );
}

#[test]
fn treats_exit_code_75_and_retry_as_transient() {
    for how in ["try-again", "try-again-with-answer"] {
        let error = ask(how).unwrap_err();
        assert_eq!(error.class, FailureClass::Transient, "{error}");
    }
    let error = ask("retry").unwrap_err();
    assert_eq!(error.class, FailureClass::Transient);
    assert_eq!(error.retry_after, Some(Duration::from_secs(42)));
    // The program has begun something: its handle must be kept.
    match ask("retry-with-handle").unwrap() {
        Answer::Pending { ticket, .. } => assert_eq!(ticket.as_str(), "arn:1"),
        other => panic!("{other:?}"),
    }
    fails(run(odd("try-again").probe()), FailureClass::Transient, &[]);
}

#[test]
fn keeps_ticket_if_poll_returns_none() {
    let ticket = Ticket::try_from("first".to_owned()).unwrap();
    match run(odd("no-handle").poll(&request(CertName::Apiserver), &ticket)).unwrap() {
        Answer::Pending { ticket, .. } => assert_eq!(ticket.as_str(), "first"),
        other => panic!("{other:?}"),
    }
}

/// Longer than a program takes to write its process ID, on a busy machine too.
const ODD_TIMEOUT: Duration = Duration::from_secs(3);

#[test]
fn terminates_hanging_program_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let plugin = exec::Config {
        timeout: ODD_TIMEOUT,
        ..odd_plugin("hang", &scratch)
    };
    let signer = Exec::new(plugin, None).unwrap();
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        FailureClass::Ambiguous,
        &["did not finish within 3 s"],
    );
    assert_gone(&scratch);
}

#[test]
fn kills_program_that_ignores_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let plugin = exec::Config {
        timeout: ODD_TIMEOUT,
        ..odd_plugin("deaf", &scratch)
    };
    let begun = Instant::now();
    let error = run(Exec::new(plugin, None)
        .unwrap()
        .submit(&request(CertName::Apiserver)))
    .unwrap_err();
    assert_eq!(error.class, FailureClass::Ambiguous);
    let took = begun.elapsed();
    assert!(took > ODD_TIMEOUT + Duration::from_secs(5), "{took:?}");
    assert_gone(&scratch);
}

#[test]
fn kills_child_that_holds_stdout_and_accepts_answer() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let signer = Exec::new(odd_plugin("hold-stdout", &scratch), None).unwrap();
    let reason = denied(run(signer.submit(&request(CertName::Apiserver))));
    assert_eq!(reason, "held");
    assert_gone(&scratch);

    let signer = Exec::new(odd_plugin("hold-stdout-silent", &scratch), None).unwrap();
    fails(
        run(signer.submit(&request(CertName::Apiserver))),
        FailureClass::Ambiguous,
        &[],
    );
    assert_gone(&scratch);
}

#[test]
fn terminates_program_when_call_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let signer = Exec::new(odd_plugin("deaf", &scratch), None).unwrap();
    run(async {
        let request = request(CertName::Apiserver);
        let scratch = scratch.clone();
        let started = tokio::task::spawn_blocking(move || {
            wait_until("the program has started", || {
                fs::read_to_string(&scratch).is_ok_and(|pid| pid.ends_with('\n'))
            });
        });
        tokio::select! {
            answer = signer.submit(&request) => panic!("{answer:?}"),
            started = started => started.unwrap(),
        }
    });
    assert_gone(&scratch);
}

/// Waits until the process whose id is in the file has ended. A zombie counts as ended.
fn assert_gone(scratch: &Path) {
    let pid: u32 = fs::read_to_string(scratch).unwrap().trim().parse().unwrap();
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    wait_until("the program is gone", || {
        fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))
    });
}

#[test]
fn calls_program_once_after_deadline() {
    let now = now();
    let late = request(CertName::Apiserver).again(1, now, Some(now));
    assert_eq!(denied(run(odd("chatty").submit(&late))), "chatty");
}

#[test]
fn hides_values_of_environment_and_parameters() {
    let plugin = exec::Config {
        env: [("CORP_PASSWORD".to_owned(), "hunter2".to_owned())].into(),
        params: [("pin".to_owned(), "hunter3".to_owned())].into(),
        ..exec::Config::new("/bin/true")
    };
    let shown = format!("{plugin:?}");
    assert!(
        shown.contains("CORP_PASSWORD") && !shown.contains("hunter"),
        "{shown}"
    );
}

#[test]
fn accepts_unusual_valid_output() {
    assert_eq!(denied(ask("unknown-fields")), "a");
    assert_eq!(denied(ask("chatty")), "chatty");
    // The input is larger than a pipe, and the program does not read it.
    let plugin = exec::Config {
        params: [("long".to_owned(), "x".repeat(1 << 20))].into(),
        ..odd_plugin("not-reading", Path::new("/dev/null"))
    };
    let error = run(Exec::new(plugin, None)
        .unwrap()
        .submit(&request(CertName::Apiserver)))
    .unwrap_err();
    assert_eq!(error.class, FailureClass::Transient, "{error}");
}

#[test]
fn escapes_control_characters_of_program() {
    assert_eq!(denied(ask("control-characters")), "a\\u{1b}[2Jb\\u{7}");
}

#[test]
fn shows_stderr_without_secrets() {
    let (error, logged) = logged(|| ask("secrets").unwrap_err());
    let probed = run(odd("secrets").probe()).unwrap_err();
    contains(&logged, &["token=[redacted]", "[private key]"]);
    // The last line in messages, all lines in the log.
    for text in [error.to_string(), probed.to_string(), logged] {
        contains(&text, &["progress \\u{1b}[31m 50%"]);
        assert!(!text.contains("SECRET") && !text.contains('\x1b'), "{text}");
    }
}

/// Runs the examples of the package, and the commands of the page with a recorded request.
#[test]
fn packaged_examples_sign() {
    const EXAMPLES: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/packaging/examples/exec-signer"
    );
    let node = Node::new();
    let ca = node.ca().display().to_string();
    let signer = |interpreter: &str, file: &str| {
        node.write_settings(&format!(
            "{HEAD}signers: {{corp: {{exec: {{command: {interpreter}, args: [{EXAMPLES}/{file}, {ca}]}}}}}}\n"
        ));
    };
    signer("/bin/sh", "signer.sh");
    Ran::of(&mut node.configured(["preflight"])).says("exec:/bin/sh has the CA of this node");
    node.ask().done();
    node.assert_sound(&EVERYTHING);

    // A person signs, here with the other example.
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    signer("/usr/bin/python3", "signer.py");
    node.ask().ended(75).says("waits for ");
    let script = format!(
        "umask 077; mkdir {ca}/signed; cd {ca}/queue; for request in *.json; do
             sh {EXAMPLES}/signer.sh {ca} sign <$request | jq -r .certificatePem >{ca}/signed/${{request%.json}}.crt
         done"
    );
    run_program("/bin/bash", &["-euo", "pipefail", "-c", &script], b"");
    node.ask().done();
    node.assert_sound(&EVERYTHING);

    node.remove("/etc/kubernetes/pki/apiserver.crt");
    let [block] = <[String; 1]>::try_from(pages::blocks(PAGE, "sh")).unwrap();
    let block = block
        .replace(
            "nodepki csr export /root/requests",
            &format!(
                "{NODEPKI} --root {} csr export {} --kubeadm-config {}",
                node.root().display(),
                node.outside("requests").display(),
                node.outside("kubeadm.yaml").display()
            ),
        )
        .replace(
            "nodepki csr show apiserver",
            &format!(
                "{NODEPKI} --root {} csr show apiserver --kubeadm-config {}",
                node.root().display(),
                node.outside("kubeadm.yaml").display()
            ),
        )
        .replace(
            "/usr/libexec/corp-sign",
            &format!("sh {EXAMPLES}/signer.sh {ca}"),
        );
    let said = run_program("/bin/bash", &["-euo", "pipefail", "-c", &block], b"");
    let said = String::from_utf8(said).unwrap();
    contains(
        &said,
        &["\"result\": \"issued\"", "-----BEGIN CERTIFICATE-----"],
    );
    Ran::of(&mut node.configured(["csr", "show", "apiserver"]))
        .done()
        .says("profile      CN=kube-apiserver, names DNS:")
        .says("-----BEGIN CERTIFICATE REQUEST-----");
    Ran::of(&mut node.configured(["csr", "show", "etcd-peer"]))
        .ended(65)
        .says("etcd-peer: no request is recorded (nodepki csr export DIR records");
}

#[test]
fn passes_allowed_environment_only() {
    let reason = denied(ask("environment"));
    let (names, rest) = reason.split_once(' ').unwrap();
    for name in names.split(',') {
        // bash adds the last three.
        assert!(
            ["PATH", "LANG", "HOME", "PWD", "SHLVL", "_"].contains(&name),
            "{reason}"
        );
    }
    assert!(rest.ends_with(" /"), "cwd: {reason}");
    let plugin = exec::Config {
        env: [("CORP_REGION".to_owned(), "eu".to_owned())].into(),
        ..odd_plugin("environment", Path::new("/dev/null"))
    };
    let reason = denied(run(Exec::new(plugin, None)
        .unwrap()
        .submit(&request(CertName::Apiserver))));
    assert!(reason.contains("CORP_REGION"), "{reason}");
}

#[test]
fn starts_program_in_own_process_group() {
    let reason = denied(ask("group"));
    let (group, pid) = reason.split_once(' ').unwrap();
    assert_eq!(group, pid);
}

#[test]
fn runs_as_configured_user_without_other_groups() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test needs root: run the tests as root"
    );
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("odd-plugin.sh");
    fs::copy(ODD_PLUGIN, &script).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let plugin = exec::Config {
        args: vec![
            script.to_str().unwrap().to_owned(),
            "whoami".to_owned(),
            "/dev/null".to_owned(),
        ],
        ..exec::Config::new("/bin/bash")
    };
    let nobody = RunAs {
        uid: 65534,
        gid: 65533,
    };
    let reason = denied(run(Exec::new(plugin, Some(nobody))
        .unwrap()
        .submit(&request(CertName::Apiserver))));
    assert_eq!(reason, "65534:65533:65533");
}

#[test]
fn refuses_program_that_others_can_change() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good");
    let marker = dir.path().join("ran");
    let install = |path: &Path, mode: u32| {
        fs::write(path, format!("#!/bin/bash\ntouch {}\n", marker.display())).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let refusal = |path: &Path| {
        let signer = Exec::new(exec::Config::new(path), None).unwrap();
        let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
        assert_eq!(error.class, FailureClass::Config, "{error}");
        assert!(!marker.exists(), "{error}");
        error.to_string()
    };
    install(&good, 0o777);
    assert!(refusal(&good).contains("writable by others (mode 0777)"));
    install(&good, 0o775);
    assert!(refusal(&good).contains("writable by others (mode 0775)"));
    install(&good, 0o644);
    assert!(refusal(&good).contains("not executable"));
    assert!(refusal(dir.path()).contains("not a regular file"));
    assert!(refusal(&dir.path().join("none")).contains("does not exist"));
    assert!(refusal(Path::new("/bin/../bin/bash")).contains("`..`"));

    install(&good, 0o755);
    // A safe file behind a link in a directory that is writable by others.
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    symlink(&good, open.join("link")).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    contains(
        &refusal(&open.join("link")),
        &["/open is writable by others"],
    );
    // A safe link to a file in such a directory.
    install(&open.join("program"), 0o755);
    symlink(open.join("program"), dir.path().join("link")).unwrap();
    let link = dir.path().join("link");
    contains(&refusal(&link), &["/open is writable by others"]);

    assert!(
        nix::unistd::geteuid().is_root(),
        "this test needs root: run the tests as root"
    );
    chown(&good, Some(4242), None).unwrap();
    assert!(refusal(&good).contains("belongs to user 4242"));
}

#[test]
fn reads_capabilities_from_info() {
    let signer = odd("info-narrow");
    let kubelet = request(CertName::KubeletConf).wanted;
    let apiserver = request(CertName::Apiserver).wanted;
    assert!(signer.preflight(&kubelet).is_ok());
    run(signer.probe()).unwrap();
    let caps = signer.caps();
    assert_eq!(caps.organization, Carry::No);
    assert_eq!(caps.usage_extensions, UsageExtensions::Omitted);
    assert_eq!(caps.resubmit, Resubmit::Forbidden);
    rejects(&signer, &kubelet, &["O=system:nodes"]);
    rejects(&signer, &apiserver, &["10.96.0.1"]);
    signer
        .preflight(&request(CertName::FrontProxyClient).wanted)
        .unwrap();
}

#[test]
fn reports_unusable_info_as_configuration() {
    for (how, words) in [
        ("info-refuses", "exit status: 1"),
        ("info-old", "signer.nodepki.dev/v0"),
        ("info-typo", "sometimes"),
        ("half-json", "JSON"),
        ("silent", "empty"),
    ] {
        let error = run(odd(how).probe()).unwrap_err();
        assert_eq!(error.class, FailureClass::Config, "{how}");
        assert!(error.to_string().contains(words), "{how}: {error}");
    }
}

#[test]
fn accepts_program_without_trust() {
    use nodepki::kube::names::Authority;
    assert_eq!(run(odd("trust-none").trust(Authority::Ca)).unwrap(), None);
    fails(
        run(odd("half-json").trust(Authority::Ca)),
        FailureClass::Config,
        &[],
    );
}

#[test]
fn recovers_without_ticket_without_running_program() {
    let signer = Exec::new(exec::Config::new("/nowhere/at/all"), None).unwrap();
    let found = run(signer.recover(&request(CertName::Apiserver), None)).unwrap();
    assert_eq!(found, None);
}

#[test]
fn signs_with_ten_lines_of_shell() {
    let dir = tempfile::tempdir().unwrap();
    write_authorities(dir.path());
    let script = dir.path().join("sign.sh");
    let ca = dir.path().join("ca");
    fs::write(
        &script,
        format!(
            r#"request=$(cat)
id=$(sed -n 's/.*"requestId":"\([^"]*\)".*/\1/p' <<<"$request")
crt=$(printf '%b' "$(sed -n 's/.*"csrPem":"\([^"]*\)".*/\1/p' <<<"$request")" |
  openssl x509 -req -copy_extensions copy -days 30 -CA {ca}.crt -CAkey {ca}.key 2>/dev/null | awk '{{printf "%s\\n", $0}}')
echo '{{"apiVersion":"signer.nodepki.dev/v1","kind":"SignResponse","requestId":"'$id'","result":"issued","certificatePem":"'"$crt"'"}}'
"#,
            ca = ca.display()
        ),
    )
    .unwrap();
    run_program("openssl", &["version"], b"");
    let plugin = exec::Config {
        args: vec![script.to_str().unwrap().to_owned()],
        ..exec::Config::new("/bin/bash")
    };
    let request = request(CertName::AdminConf);
    let signer = Exec::new(plugin, None).unwrap();
    let bytes = issued(run(signer.submit(&request)));
    assert_eq!(crate::signer_bad::verdict(&request, &bytes, dir.path()), "");
    let path = dir.path().join("leaf.pem");
    fs::write(&path, bytes).unwrap();
    let ca = ca.with_extension("crt");
    openssl(
        &[
            "verify",
            "-CAfile",
            ca.to_str().unwrap(),
            path.to_str().unwrap(),
        ],
        b"",
    );
}

#[test]
fn rejects_relative_command_and_excessive_timeout() {
    let relative = Exec::new(exec::Config::new("sign"), None).err().unwrap();
    contains(&relative.to_string(), &["absolute path"]);
    let slow = exec::Config {
        timeout: Duration::from_secs(601),
        ..exec::Config::new("/bin/true")
    };
    let slow = Exec::new(slow, None).err().unwrap();
    contains(&slow.to_string(), &["between 1 and 600"]);
}

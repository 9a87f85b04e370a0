//! The plug-in contract: every way in which a program can break it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nodepki::kube::names::CertName;
use nodepki::signer::exec::{self, Exec, RunAs, UNCLEAN_LIMIT};
use nodepki::signer::{
    Answer, Carry, Class, Config, Kind, Request, Resubmit, Signer, SignerError, Ticket,
};
use nodepki::x509::UsageExtensions;
use tempfile::TempDir;

use crate::log::logged;
use crate::rig::{Denial, Rig};
use crate::signer_bad::bad_plugin;
use crate::signer_contract::settings;
use crate::signing::{
    BAD_SIGNER, ODD_PLUGIN, now, opened, openssl, request, run, run_program, write_authorities,
};

/// `bad-signer.sh` as the plug-in of a person who approves, with a record of what it was asked.
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
    fn kind(&self) -> Kind {
        Kind::Exec
    }

    fn settings(&self) -> String {
        self.config("pending")
    }

    fn authorities(&self) -> PathBuf {
        self.0.path().to_owned()
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

fn odd(how: &str) -> Exec {
    Exec::new(odd_plugin(how, Path::new("/dev/null")), None).unwrap()
}

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

fn denied(answer: Result<Answer, SignerError>) -> String {
    match answer {
        Ok(Answer::Denied { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unclean_sign_is_ambiguous_and_an_unclean_poll_transient() {
    for (how, words) in [
        ("half-json", "not one JSON object"),
        ("two-objects", "not one JSON object"),
        ("trailing-text", "not one JSON object"),
        ("array", "not one JSON object"),
        ("silent", "stdout is empty"),
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
        assert_eq!(error.class, Class::Ambiguous, "{how}: {error}");
        let message = error.to_string();
        for part in [words, "apiserver", "exec:/bin/bash", "by hand"] {
            assert!(message.contains(part), "{how}: {message}");
        }
        let ticket = Ticket::try_from("t".to_owned()).unwrap();
        let error = run(odd(how).poll(&request(CertName::Apiserver), &ticket)).unwrap_err();
        assert_eq!(error.class, Class::Transient, "{how}: {error}");
    }
    assert_eq!(ask("no-handle").unwrap_err().class, Class::Ambiguous);
}

#[test]
fn a_program_that_stays_unclean_is_given_up() {
    let signer = odd("half-json");
    let request = request(CertName::Apiserver);
    for attempt in 1..UNCLEAN_LIMIT {
        let again = request.again(attempt, now(), None);
        assert_eq!(
            run(signer.submit(&again)).unwrap_err().class,
            Class::Ambiguous
        );
    }
    let error = run(signer.submit(&request)).unwrap_err();
    assert_eq!(error.class, Class::Permanent);
    assert!(error.to_string().contains("5 times in a row"), "{error}");
    // Twelve slots share a signer: what one request met says nothing of the next.
    let other = crate::signing::request(CertName::EtcdPeer);
    assert_eq!(
        run(signer.submit(&other)).unwrap_err().class,
        Class::Ambiguous
    );
}

#[test]
fn exit_code_75_and_retry_mean_later() {
    for how in ["try-again", "try-again-with-answer"] {
        let error = ask(how).unwrap_err();
        assert_eq!(error.class, Class::Transient, "{error}");
    }
    let error = ask("retry").unwrap_err();
    assert_eq!(error.class, Class::Transient);
    assert_eq!(error.retry_after, Some(Duration::from_secs(42)));
    // Something was begun: its handle must not get lost.
    match ask("retry-with-handle").unwrap() {
        Answer::Pending { ticket, .. } => assert_eq!(ticket.as_str(), "arn:1"),
        other => panic!("{other:?}"),
    }
    let error = run(odd("try-again").probe()).unwrap_err();
    assert_eq!(error.class, Class::Transient);
}

#[test]
fn pending_keeps_the_ticket_when_a_poll_gives_no_new_one() {
    let ticket = Ticket::try_from("first".to_owned()).unwrap();
    match run(odd("no-handle").poll(&request(CertName::Apiserver), &ticket)).unwrap() {
        Answer::Pending { ticket, .. } => assert_eq!(ticket.as_str(), "first"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_hanging_program_is_ended_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let plugin = exec::Config {
        timeout: Duration::from_millis(300),
        ..odd_plugin("hang", &scratch)
    };
    let signer = Exec::new(plugin, None).unwrap();
    let begun = Instant::now();
    let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
    assert_eq!(error.class, Class::Ambiguous);
    assert!(
        error.to_string().contains("did not finish within 0.3 s"),
        "{error}"
    );
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_gone(&scratch);
}

#[test]
fn a_program_that_ignores_sigterm_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let plugin = exec::Config {
        timeout: Duration::from_millis(300),
        ..odd_plugin("deaf", &scratch)
    };
    let begun = Instant::now();
    let error = run(Exec::new(plugin, None)
        .unwrap()
        .submit(&request(CertName::Apiserver)))
    .unwrap_err();
    assert_eq!(error.class, Class::Ambiguous);
    let took = begun.elapsed();
    assert!(
        took > Duration::from_secs(5) && took < Duration::from_secs(9),
        "{took:?}"
    );
    assert_gone(&scratch);
}

#[test]
fn a_child_that_holds_stdout_is_killed_and_the_answer_counts() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let signer = Exec::new(odd_plugin("hold-stdout", &scratch), None).unwrap();
    let begun = Instant::now();
    let reason = denied(run(signer.submit(&request(CertName::Apiserver))));
    assert_eq!(reason, "held");
    assert!(begun.elapsed() < Duration::from_secs(4));
    assert_gone(&scratch);

    let signer = Exec::new(odd_plugin("hold-stdout-silent", &scratch), None).unwrap();
    let error = run(signer.submit(&request(CertName::Apiserver))).unwrap_err();
    assert_eq!(error.class, Class::Ambiguous);
    assert_gone(&scratch);
}

#[test]
fn a_dropped_call_leaves_no_program_behind() {
    let dir = tempfile::tempdir().unwrap();
    let scratch = dir.path().join("pid");
    let signer = Exec::new(odd_plugin("deaf", &scratch), None).unwrap();
    run(async {
        let request = request(CertName::Apiserver);
        let call = signer.submit(&request);
        let cut = tokio::time::timeout(Duration::from_millis(500), call).await;
        assert!(cut.is_err());
    });
    assert_gone(&scratch);
}

/// The process in the file has ended; it may wait to be reaped by whoever inherited it.
fn assert_gone(scratch: &Path) {
    let pid: u32 = fs::read_to_string(scratch).unwrap().trim().parse().unwrap();
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    for _ in 0..50 {
        match fs::read_to_string(&stat) {
            Ok(stat) if !stat.contains(") Z ") => std::thread::sleep(Duration::from_millis(20)),
            _ => return,
        }
    }
    panic!("process {pid} is still there");
}

#[test]
fn a_run_that_does_not_wait_still_asks_once() {
    let now = now();
    let late = request(CertName::Apiserver).again(1, now, Some(now));
    assert_eq!(denied(run(odd("chatty").submit(&late))), "chatty");
}

#[test]
fn the_values_of_environment_and_parameters_are_not_shown() {
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
fn odd_and_valid_answers_are_taken() {
    assert_eq!(denied(ask("unknown-fields")), "a");
    assert_eq!(denied(ask("chatty")), "chatty");
    // More than a pipe holds, and nobody reads it.
    let plugin = exec::Config {
        params: [("long".to_owned(), "x".repeat(1 << 20))].into(),
        ..odd_plugin("not-reading", Path::new("/dev/null"))
    };
    let error = run(Exec::new(plugin, None)
        .unwrap()
        .submit(&request(CertName::Apiserver)))
    .unwrap_err();
    assert_eq!(error.class, Class::Transient, "{error}");
}

#[test]
fn text_from_the_program_cannot_drive_a_terminal() {
    assert_eq!(denied(ask("control-characters")), "a\\u{1b}[2Jb\\u{7}");
}

#[test]
fn stderr_goes_to_the_log_only_and_without_secrets() {
    let (error, logged) = logged(|| ask("secrets").unwrap_err());
    let message = error.to_string();
    assert!(!message.contains("progress"), "{message}");
    assert!(logged.contains("progress \\u{1b}[31m 50%"), "{logged}");
    assert!(logged.contains("token=[redacted]"), "{logged}");
    assert!(
        !logged.contains("SECRET") && !logged.contains('\x1b'),
        "{logged}"
    );
}

#[test]
fn the_environment_is_what_was_allowed() {
    let reason = denied(ask("environment"));
    let (names, rest) = reason.split_once(' ').unwrap();
    for name in names.split(',') {
        // bash adds the last three itself.
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
fn the_program_leads_its_own_process_group() {
    let reason = denied(ask("group"));
    let (group, pid) = reason.split_once(' ').unwrap();
    assert_eq!(group, pid);
}

#[test]
fn it_runs_as_the_configured_user_without_roots_groups() {
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
fn a_program_that_others_could_change_is_not_run() {
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
        assert_eq!(error.class, Class::Config, "{error}");
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
    assert!(refusal(&dir.path().join("none")).contains("No such file"));
    assert!(refusal(Path::new("/bin/../bin/bash")).contains("`..`"));

    install(&good, 0o755);
    // A safe file behind a link in a directory where anybody can put another link.
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    symlink(&good, open.join("link")).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let message = refusal(&open.join("link"));
    assert!(message.contains("/open is writable by others"), "{message}");
    // A safe link to a file in such a directory.
    install(&open.join("program"), 0o755);
    symlink(open.join("program"), dir.path().join("link")).unwrap();
    let message = refusal(&dir.path().join("link"));
    assert!(message.contains("/open is writable by others"), "{message}");

    assert!(
        nix::unistd::geteuid().is_root(),
        "this test needs root: run the tests as root"
    );
    chown(&good, Some(4242), None).unwrap();
    assert!(refusal(&good).contains("belongs to user 4242"));
}

#[test]
fn info_fills_the_capabilities() {
    let signer = odd("info-narrow");
    let kubelet = request(CertName::KubeletConf).wanted;
    let apiserver = request(CertName::Apiserver).wanted;
    assert!(signer.preflight(&kubelet).is_ok());
    run(signer.probe()).unwrap();
    let caps = signer.caps();
    assert_eq!(caps.organization, Carry::No);
    assert_eq!(caps.usage_extensions, UsageExtensions::Omitted);
    assert_eq!(caps.resubmit, Resubmit::Forbidden);
    let message = signer.preflight(&kubelet).unwrap_err().to_string();
    assert!(
        message.contains("kubelet.conf") && message.contains("O=system:nodes"),
        "{message}"
    );
    let message = signer.preflight(&apiserver).unwrap_err().to_string();
    assert!(message.contains("10.96.0.1"), "{message}");
    signer
        .preflight(&request(CertName::FrontProxyClient).wanted)
        .unwrap();
}

#[test]
fn a_program_without_a_usable_info_is_a_configuration_error() {
    for (how, words) in [
        ("info-refuses", "exit status: 1"),
        ("info-old", "signer.nodepki.dev/v0"),
        ("info-typo", "sometimes"),
        ("half-json", "JSON"),
        ("silent", "empty"),
    ] {
        let error = run(odd(how).probe()).unwrap_err();
        assert_eq!(error.class, Class::Config, "{how}");
        assert!(error.to_string().contains(words), "{how}: {error}");
    }
}

#[test]
fn a_program_may_have_no_opinion_on_trust() {
    use nodepki::kube::names::Authority;
    assert_eq!(run(odd("trust-none").trust(Authority::Ca)).unwrap(), None);
    let error = run(odd("half-json").trust(Authority::Ca)).unwrap_err();
    assert_eq!(error.class, Class::Config);
}

#[test]
fn recover_without_a_ticket_runs_nothing() {
    let signer = Exec::new(exec::Config::new("/nowhere/at/all"), None).unwrap();
    let found = run(signer.recover(&request(CertName::Apiserver), None)).unwrap();
    assert_eq!(found, None);
}

#[test]
fn openssl_in_ten_lines_of_shell_is_a_signer() {
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
    let answer = run(Exec::new(plugin, None).unwrap().submit(&request)).unwrap();
    let Answer::Issued(bytes) = answer else {
        panic!("{answer:?}")
    };
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

//! The program that runs the tests with servers, `tests/groups`, and `tests/attempt`, which installs what they need: what they
//! do and print when something goes wrong. The scenes are tests of their own, which only the tests here run.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::time::wait_until;

struct Ran {
    code: Option<i32>,
    /// Output and errors, with `N` for each number of seconds, and the diagnostics of panics left out.
    output: String,
}

fn run(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(text).unwrap();
    let is_noise = |line: &&str| {
        line.starts_with("thread '")
            || line.starts_with("note: ")
            || line.starts_with("    at ")
            || line.trim().is_empty()
    };
    let lines = text.lines().filter(|line| !is_noise(line));
    let lines = lines.map(|line| match line.rsplit_once(", ") {
        Some((head, tail)) if tail.ends_with(" s") => format!("{head}, N s\n"),
        _ => format!("{line}\n"),
    });
    Ran {
        code: output.status.code(),
        output: lines.collect(),
    }
}

/// Runs the tests of a scene as a group, one at a time and by name. `dir` receives the logs.
fn scene(name: &str, dir: &Path, variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new("tests/groups");
    command
        .arg("run")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("NODEPKI_TEST_PROGRAM", std::env::current_exe().unwrap())
        .env("NODEPKI_TEST_SCENES", format!("runner::scenes::{name}::"))
        .env("NODEPKI_TEST_LOGS", dir.join("logs"))
        .env("NODEPKI_TEST_SCENE_DIR", dir)
        .env("RUST_TEST_THREADS", "1")
        .env_remove("RUST_BACKTRACE")
        .envs(variables.iter().copied());
    run(&mut command)
}

/// bash does not stop at a failed command of a function that is called before `||`.
#[test]
fn step_fails_with_its_command() {
    let script = "set -e; say() { :; }; eval \"$(sed -n '/^step()/,/^}/p' tests/run)\"; step one true; step two sh -c 'exit 7' || exit";
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(run(&mut command).code, Some(7));
}

/// Runs functions of `tests/run` in a directory that has other programs in their place: `tests/run` and `cargo`.
fn of_run(dir: &Path, functions: &[&str], call: &str, programs: &[(&str, &str)]) -> Ran {
    for (name, script) in programs {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = format!(
        "set -euo pipefail; cache=$PWD/cache; filters=() not_run=() lacks=0
        for name in say fail {}; do eval \"$(sed -n \"/^$name()/,/^}}/p\" \"$0\")\"; done
        {call}",
        functions.join(" ")
    );
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    run(Command::new("bash")
        .args(["-c", &script])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run"))
        .current_dir(dir)
        .env("PATH", path))
}

#[test]
fn refuses_filter_that_no_test_has_in_its_name() {
    let unit = |filters: &str| {
        let dir = tempfile::tempdir().unwrap();
        let call = format!(
            "need_tools() {{ :; }}; need_nothing_more() {{ :; }}; filters=({filters}); unit_of_filters"
        );
        let cargo = "echo 'running 1 test'; echo 'test contract::vault::signs ... ok'";
        of_run(dir.path(), &["unit_of_filters"], &call, &[("cargo", cargo)])
    };
    for filters in ["contract::vault", "vault signs", "--nocapture vault"] {
        assert_eq!(unit(filters).code, Some(0), "{filters}");
    }
    for filters in ["contract::valut", "vault valut"] {
        let ran = unit(filters);
        assert_eq!(ran.code, Some(1), "{filters}: {}", ran.output);
        let message = "no test of tests/it has ";
        assert!(ran.output.contains(message) && ran.output.contains("valut in its name"));
    }
}

#[test]
fn refuses_benchmark_that_does_not_exist() {
    let bench = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        let call = format!(
            "bench() {{ echo all; }}; bench_kubelets() {{ echo kubelets; }}; main bench {name}"
        );
        of_run(dir.path(), &["main"], &call, &[])
    };
    for (name, says) in [("", "all\n"), ("kubelets", "kubelets\n")] {
        let ran = bench(name);
        assert_eq!(ran.code, Some(0), "{}", ran.output);
        assert!(ran.output.starts_with(says), "{}", ran.output);
    }
    let ran = bench("kubelet");
    assert_eq!(ran.code, Some(1));
    assert!(ran.output.contains("there is no benchmark kubelet"));
}

/// A step that could not run in full is no failure, and the steps after it run.
#[test]
fn night_reports_what_could_not_be_installed() {
    let night = |script: &str| {
        let dir = tempfile::tempdir().unwrap();
        let functions = ["part", "parts_end", "tier_night"];
        of_run(
            dir.path(),
            &functions,
            "tier_night",
            &[("tests/run", script)],
        )
    };
    assert_eq!(night("exit 0").code, Some(0));
    let ran = night("[ $1 != lint ] || exit 3");
    assert_eq!(ran.code, Some(3));
    assert!(ran.output.contains("NOT RUN: tests/run lint,"));
    let ran = night("case $* in lint) exit 3 ;; 'soak 200') exit 1 ;; esac");
    assert_eq!(ran.code, Some(1));
    for words in ["NOT RUN: tests/run lint,", "failed: tests/run soak 200;\n"] {
        assert!(ran.output.contains(words), "{}", ran.output);
    }
}

/// Ctrl-C reaches the processes of the terminal's group, but not those of timeout(1).
#[test]
fn interrupted_attempt_ends_its_command() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        // A shell starts its background jobs with SIGINT ignored.
        let mut attempt = Command::new("env")
            .args(["--default-signal=INT", "tests/attempt"])
            .args(["1", "runner-test-interrupt", "sh", "-c"])
            .args(["echo $$ >\"$0.new\"; mv \"$0.new\" \"$0\"; sleep 60; true"])
            .arg(&file)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .spawn()
            .unwrap();
        wait_until("its command runs", || file.exists());
        let command = fs::read_to_string(&file).unwrap();
        let command = Path::new("/proc").join(command.trim());
        assert!(command.exists());
        kill(Pid::from_raw(attempt.id() as i32), signal).unwrap();
        // A shell that waits for it ends as well.
        assert_eq!(attempt.wait().unwrap().signal(), Some(signal as i32));
        assert!(!command.exists());
    }
}

#[test]
fn starts_killed_server_again_for_next_test() {
    let dir = tempfile::tempdir().unwrap();
    let ran = scene("killed", dir.path(), &[]);
    assert_eq!(ran.output, "scenes: 3 tests, 0 failed, N s\n");
    assert_eq!(ran.code, Some(0));
    assert_eq!(lines(dir.path(), "starts"), 2);
}

#[test]
fn fails_tests_of_server_that_never_starts_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ran = scene("never", dir.path(), &[]);
    assert_eq!(
        ran.output,
        "scenes: 4 tests, 4 failed, N s
---- runner::scenes::never::a ----
false ended with exit status: 1:
false ended with exit status: 1:
false ended with exit status: 1:
a server that several tests share did not start: false ended with exit status: 1:
---- runner::scenes::never::b ----
a server that several tests share did not start: false ended with exit status: 1:
---- runner::scenes::never::c ----
a server that several tests share did not start: false ended with exit status: 1:
---- runner::scenes::never::d ----
a server that several tests share did not start: false ended with exit status: 1:
tests/groups: 4 tests failed, too many to repeat: runner::scenes::never::a runner::scenes::never::b \
         runner::scenes::never::c runner::scenes::never::d
"
    );
    assert_eq!(ran.code, Some(1));
    assert_eq!(lines(dir.path(), "starts"), 3);
}

#[test]
fn ends_hanging_test_and_runs_others() {
    let dir = tempfile::tempdir().unwrap();
    let ran = scene("hangs", dir.path(), &[("NODEPKI_TEST_LIMIT", "5")]);
    assert_eq!(
        ran.output,
        "scenes: 2 tests, 1 failed, N s
---- runner::scenes::hangs::a ----
did not end within 5 s
again, alone: runner::scenes::hangs::a
scenes: 1 tests, 1 failed, N s
---- runner::scenes::hangs::a ----
did not end within 5 s
tests/groups: failed twice: runner::scenes::hangs::a
"
    );
    assert_eq!(ran.code, Some(1));
}

#[test]
fn runs_others_when_test_ends_process() {
    let dir = tempfile::tempdir().unwrap();
    let ran = scene("exits", dir.path(), &[]);
    assert_eq!(
        ran.output,
        "scenes: 2 tests, 1 failed, N s
---- runner::scenes::exits::a ----
its process ended with 7 before it did
again, alone: runner::scenes::exits::a
scenes: 1 tests, 1 failed, N s
---- runner::scenes::exits::a ----
its process ended with 7 before it did
tests/groups: failed twice: runner::scenes::exits::a
"
    );
    assert_eq!(ran.code, Some(1));
}

#[test]
fn reports_test_that_passes_alone_as_flaky() {
    let dir = tempfile::tempdir().unwrap();
    let ran = scene("flaky", dir.path(), &[]);
    assert_eq!(
        ran.output,
        "scenes: 1 tests, 1 failed, N s
---- runner::scenes::flaky::a ----
the first time
again, alone: runner::scenes::flaky::a
scenes: 1 tests, 0 failed, N s
"
    );
    assert_eq!(ran.code, Some(0));
    let flaky = fs::read_to_string(dir.path().join("logs/flaky")).unwrap();
    assert_eq!(flaky, "runner::scenes::flaky::a\n");
    let report = fs::read_to_string(dir.path().join("logs/scenes.xml")).unwrap();
    assert!(report.contains("<flakyFailure>"), "{report}");
}

#[test]
fn does_not_take_group_without_tests_for_passed() {
    let dir = tempfile::tempdir().unwrap();
    let ran = scene("of_another_name", dir.path(), &[]);
    assert_eq!(ran.output, "tests/groups: group scenes has no tests\n");
    assert_eq!(ran.code, Some(1));
}

/// A failed installation, here from a mirror that does not answer, stops the tests that need the program and no other.
#[test]
fn names_tests_that_could_not_run_without_mirror() {
    let dir = tempfile::tempdir().unwrap();
    let installed = run(Command::new("tests/attempt")
        .args(["1", "runner-test-download"])
        .args([
            "curl",
            "--silent",
            "--show-error",
            "--noproxy",
            "*",
            "http://127.0.0.1:9/no-such-server",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("NODEPKI_TEST_PAUSES", "0 0"));
    let refused = "curl: (7) Failed to connect to 127.0.0.1 port 9";
    let printed: Vec<&str> = installed.output.lines().collect();
    let first = format!("attempt 1 of 3 failed: runner-test-download: {refused}");
    assert!(printed[0].starts_with(&first), "{printed:?}");
    assert!(printed[0].ends_with("; again in 0 s"), "{printed:?}");
    assert!(
        printed[1].starts_with("attempt 2 of 3 failed: "),
        "{printed:?}"
    );
    assert!(
        printed[2].starts_with("failed three times: runner-test-download"),
        "{printed:?}"
    );
    assert!(printed[3].starts_with(refused), "{printed:?}");
    assert_eq!(installed.code, Some(1));

    let unavailable = dir.path().join("unavailable");
    fs::write(&unavailable, "no-such-server\n").unwrap();
    let servers = dir.path().to_str().unwrap();
    let ran = scene(
        "lacks",
        dir.path(),
        &[
            ("NODEPKI_TEST_UNAVAILABLE", unavailable.to_str().unwrap()),
            ("NODEPKI_TEST_SERVERS", servers),
        ],
    );
    assert_eq!(
        ran.output,
        "scenes: 1 tests, 0 failed, 1 not run, N s
tests/groups: NOT RUN, since no-such-server could not be installed: 1 tests
"
    );
    assert_eq!(ran.code, Some(3));
    let not_run = fs::read_to_string(dir.path().join("logs/not-run")).unwrap();
    assert_eq!(not_run, "runner::scenes::lacks::a\n");
}

fn lines(dir: &Path, file: &str) -> usize {
    fs::read_to_string(dir.join(file)).unwrap().lines().count()
}

/// Tests that other runs ignore. Those of a scene run in the order of their names.
mod scenes {
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::net::TcpStream;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::Mutex;

    use nix::sys::signal::Signal;

    use crate::servers::{Server, SharedServer, bin, free_port};
    use crate::time::wait_until;

    fn dir() -> PathBuf {
        std::env::var_os("NODEPKI_TEST_SCENE_DIR").unwrap().into()
    }

    fn start(command: Command) -> Server {
        let starts = OpenOptions::new()
            .append(true)
            .create(true)
            .open(dir().join("starts"));
        writeln!(starts.unwrap(), "started").unwrap();
        Server::start(command, &dir().join("server.log"))
    }

    mod killed {
        use super::*;

        struct Web(Mutex<Server>, u16);

        fn web() -> &'static Web {
            static SHARED: SharedServer<Web> = SharedServer::new();
            SHARED.get(|| {
                let port = free_port();
                let mut command = Command::new("/usr/bin/python3");
                command.args([
                    "-m",
                    "http.server",
                    "--bind",
                    "127.0.0.1",
                    &port.to_string(),
                ]);
                let mut server = start(command);
                server.wait_for_port(port);
                Web(Mutex::new(server), port)
            })
        }

        #[test]
        #[ignore = "a scene"]
        fn a_uses() {
            TcpStream::connect(("127.0.0.1", web().1)).unwrap();
        }

        #[test]
        #[ignore = "a scene"]
        fn b_kills() {
            let mut server = web().0.lock().unwrap();
            server.signal(Signal::SIGKILL);
            wait_until("it has ended", || server.ended().is_some());
        }

        #[test]
        #[ignore = "a scene"]
        fn c_uses() {
            TcpStream::connect(("127.0.0.1", web().1)).unwrap();
        }
    }

    mod never {
        use super::*;

        fn uses() {
            static SHARED: SharedServer<()> = SharedServer::new();
            SHARED.get(|| start(Command::new("false")).wait_until(|| false));
        }

        #[test]
        #[ignore = "a scene"]
        fn a() {
            uses();
        }

        #[test]
        #[ignore = "a scene"]
        fn b() {
            uses();
        }

        #[test]
        #[ignore = "a scene"]
        fn c() {
            uses();
        }

        #[test]
        #[ignore = "a scene"]
        fn d() {
            uses();
        }
    }

    mod hangs {
        #[test]
        #[ignore = "a scene"]
        fn a() {
            loop {
                std::thread::park();
            }
        }

        #[test]
        #[ignore = "a scene"]
        fn b() {}
    }

    mod exits {
        #[test]
        #[ignore = "a scene"]
        fn a() {
            std::process::exit(7);
        }

        #[test]
        #[ignore = "a scene"]
        fn b() {}
    }

    mod flaky {
        #[test]
        #[ignore = "a scene"]
        fn a() {
            let is_first = std::fs::create_dir(super::dir().join("first")).is_ok();
            assert!(!is_first, "the first time");
        }
    }

    mod lacks {
        #[test]
        #[ignore = "a scene"]
        fn a() {
            super::bin("no-such-server");
        }
    }
}

//! Runs an external program: from a trusted path, with a minimal environment, in its own process group, with limits
//! for time and output. Its stderr is logged without probable secrets.

use std::future::pending;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};

use super::{
    CallError, MAX_LINGER_TIME, SAFE_PATH, STDERR_TAIL, STDOUT_LIMIT, TERMINATION_GRACE_PERIOD,
};
use crate::process::confine;
use crate::process::interrupt;
use crate::signer::{SignerError, printable};
use crate::text::quoted;

/// Length of the first line that Linux reads of a script (`BINPRM_BUF_SIZE`), in bytes.
const MAX_FIRST_LINE: u64 = 256;

/// Returns the program's real path, after verifying that only root and this user could have created it: both the
/// given path (symbolic links and their directories) and the path to which it resolves are checked.
pub(super) fn trusted_program(command: &Path) -> Result<PathBuf, SignerError> {
    let shown = command.display();
    let refuse_for = |why: String, advice: String| {
        SignerError::config(format!("the command {shown} is not run: {why}"), advice)
    };
    let refuse = |why: String| {
        refuse_for(
            why,
            "name a program of root with mode 0755, by its absolute path".to_owned(),
        )
    };
    // The ancestors of a path with `..`, which are examined below, are not the directories that the kernel passes.
    if command
        .components()
        .any(|part| matches!(part, Component::ParentDir))
    {
        return Err(refuse("there is a `..` in its path".to_owned()));
    }
    let real = command.canonicalize().map_err(|error| {
        let refused = match error.kind() {
            std::io::ErrorKind::NotFound => SignerError::config(
                format!("the command {shown} does not exist"),
                if command.to_string_lossy().contains(' ') {
                    "name only the program in `command`, and its arguments in `args`"
                } else {
                    "install it there, or correct the path"
                },
            ),
            _ => refuse(error.to_string()),
        };
        refused.marked_by(&error)
    })?;
    let ours = geteuid().as_raw();
    for path in [command, &real] {
        for ancestor in path.ancestors() {
            let meta = ancestor.symlink_metadata().map_err(|error| {
                refuse(format!("{}: {error}", ancestor.display())).marked_by(&error)
            })?;
            let changed = ancestor.display();
            if meta.uid() != 0 && meta.uid() != ours {
                return Err(refuse_for(
                    format!("{changed} belongs to user {}", meta.uid()),
                    format!("let it belong to root: chown -h root: {changed}"),
                ));
            }
            // The mode of a link has no meaning. In a sticky directory only the owner of a file can replace it.
            let sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
            if !meta.is_symlink() && !sticky && meta.mode() & 0o022 != 0 {
                return Err(refuse_for(
                    format!(
                        "{changed} is writable by others (mode {:04o})",
                        meta.mode() & 0o7777
                    ),
                    format!("let only root change it: chmod go-w {changed}"),
                ));
            }
        }
    }
    let meta = real
        .metadata()
        .map_err(|error| refuse(error.to_string()).marked_by(&error))?;
    if !meta.is_file() {
        return Err(refuse("it is not a regular file".to_owned()));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(refuse_for(
            "it is not executable".to_owned(),
            format!("make it executable: chmod 0755 {shown}"),
        ));
    }
    if let Some((why, advice)) = interpreter_fault(&real) {
        return Err(refuse_for(why, advice));
    }
    Ok(real)
}

/// Returns why the system would not find the interpreter of a script, and the fix. Its own error would be that the script
/// does not exist.
fn interpreter_fault(script: &Path) -> Option<(String, String)> {
    let mut start = Vec::new();
    let file = std::fs::File::open(script).ok()?;
    file.take(MAX_FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    if line.ends_with(b"\r") {
        let script = quoted(&script.display().to_string());
        return Some((
            "its lines end with CR and LF".to_owned(),
            format!("remove the CRs: sed -i 's/\\r$//' {script}"),
        ));
    }
    let line = std::str::from_utf8(line).ok()?;
    let interpreter = line.split_ascii_whitespace().next()?;
    (!Path::new(interpreter).exists()).then(|| {
        (
            format!("its interpreter {interpreter} does not exist"),
            "install it, or correct the first line of the program".to_owned(),
        )
    })
}

/// Runs a program that is not a signer with the same precautions: no shell, trusted path, minimal environment, its
/// group killed at `limit`. `Err` states what went wrong, with the end of its stderr.
pub(crate) async fn run(
    command: &[String],
    env: &[(&str, String)],
    limit: Duration,
) -> Result<(), String> {
    let name = command.first().map_or("", String::as_str);
    let Ended { status, said } = finish(command, &[], env, limit).await?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{name} ended with {status}{}", and_said(&said)))
    }
}

/// As [`run`], with `input` on stdin, for a program whose exit status is a verdict on it. Returns what it refuses, or
/// `None`. `Err` states why it gave no verdict.
pub(crate) async fn judge(
    command: &[String],
    input: &[u8],
    limit: Duration,
) -> Result<Option<String>, String> {
    let Ended { status, said } = finish(command, input, &[], limit).await?;
    Ok((!status.success()).then_some(said))
}

/// The exit status of a program, and the end of its stderr.
struct Ended {
    status: ExitStatus,
    said: String,
}

async fn finish(
    command: &[String],
    input: &[u8],
    env: &[(&str, String)],
    limit: Duration,
) -> Result<Ended, String> {
    let (name, args) = command.split_first().ok_or("there is no command")?;
    let program = trusted_program(Path::new(name)).map_err(|error| error.to_string())?;
    let mut prepared = prepared(&program, Path::new(name));
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
    prepared.args(args).env("HOME", home);
    prepared.envs(env.iter().map(|(key, value)| (key, value)));
    let child = confine::spawn(prepared)
        .map_err(|error| format!("{name} could not be started: {error}"))?;
    let finished = drive(child, input, limit)
        .await
        .map_err(|error| match error {
            CallError::Unclean(why) | CallError::Unusable(why) => why,
            CallError::NotStarted(error) => error.to_string(),
            CallError::TryAgain { .. } => format!("{name} asks to be tried again"),
        })?;
    let said = log_text(&logged_lines(&finished.stderr));
    match finished.end {
        End::Exited(status) => Ok(Ended { status, said }),
        End::TimedOut => Err(format!(
            "{name} did not finish within {} s{}",
            limit.as_secs_f32(),
            and_said(&said)
        )),
        End::TooMuch => Err(format!(
            "{name} wrote more than {STDOUT_LIMIT} bytes to stdout"
        )),
    }
}

pub(super) fn prepared(program: &Path, called: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg0(called)
        .env_clear()
        .env("PATH", SAFE_PATH)
        .env("LANG", "C")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

pub(super) struct Finished {
    pub(super) end: End,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

pub(super) enum End {
    Exited(ExitStatus),
    TimedOut,
    TooMuch,
}

/// The program's process group. The remaining processes are killed on drop unless the run ended normally.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // ESRCH: no process is left, as intended.
            let _ = killpg(group, signal);
        }
    }

    fn leave(mut self) {
        if let Some(group) = self.0.take() {
            interrupt::group_ended(group);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        if let Some(group) = self.0 {
            interrupt::group_ended(group);
        }
    }
}

pub(super) async fn drive(
    mut child: Child,
    input: &[u8],
    limit: Duration,
) -> Result<Finished, CallError> {
    let started = Instant::now();
    let group = Group(interrupt::group_of(&child));
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(CallError::Unclean("its pipes are missing".to_owned()));
    };
    // A program that does not read its input may close the pipe early.
    let feed = async move {
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    tokio::pin!(feed);

    let mut finished = Finished {
        end: End::TimedOut,
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    let (mut feeding, mut out_open, mut err_open) = (true, true, true);
    let mut exit: Option<(ExitStatus, Instant)> = None;
    let mut out = vec![0; 16 << 10];
    let mut err = vec![0; 4 << 10];
    loop {
        if let Some((status, _)) = exit
            && !out_open
            && !err_open
        {
            finished.end = End::Exited(status);
            group.leave();
            return Ok(finished);
        }
        tokio::select! {
            read = stdout.read(&mut out), if out_open => match read {
                Ok(0) | Err(_) => out_open = false,
                Ok(count) => {
                    finished.stdout.extend(out.iter().take(count));
                    if finished.stdout.len() > STDOUT_LIMIT {
                        finished.end = End::TooMuch;
                        break;
                    }
                }
            },
            read = stderr.read(&mut err), if err_open => match read {
                Ok(0) | Err(_) => err_open = false,
                Ok(count) => keep_tail(&mut finished.stderr, err.get(..count).unwrap_or_default()),
            },
            () = &mut feed, if feeding => feeding = false,
            status = child.wait(), if exit.is_none() => match status {
                Ok(status) => exit = Some((status, Instant::now())),
                Err(error) => return Err(CallError::Unclean(error.to_string())),
            },
            () = sleep_until(started + limit), if exit.is_none() => break,
            () = linger(exit.map(|(_, since)| since)) => {
                // The program has ended, but a descendant keeps its output open. A complete response counts.
                if let Some((status, _)) = exit {
                    finished.end = End::Exited(status);
                }
                return Ok(finished);
            }
        }
    }
    group.signal(Signal::SIGTERM);
    if timeout(TERMINATION_GRACE_PERIOD, child.wait())
        .await
        .is_err()
    {
        // A process in an uninterruptible system call ends later, and must not hold the run.
        group.signal(Signal::SIGKILL);
        let _ = timeout(TERMINATION_GRACE_PERIOD, child.wait()).await;
    }
    Ok(finished)
}

async fn linger(since: Option<Instant>) {
    match since {
        Some(since) => sleep_until(since + MAX_LINGER_TIME).await,
        None => pending().await,
    }
}

fn keep_tail(tail: &mut Vec<u8>, more: &[u8]) {
    tail.extend_from_slice(more);
    let excess = tail.len().saturating_sub(STDERR_TAIL);
    tail.drain(..excess);
}

/// Returns the end of what a message says about a program: what it wrote to stderr.
pub(super) fn and_said(said: &str) -> String {
    if said.is_empty() {
        String::new()
    } else {
        format!(", and said: {said}")
    }
}

/// What stands for a private key in the log.
pub(super) const HIDDEN_KEY: &str = "[private key]";

/// Returns lines for the log in one text.
pub(super) fn log_text(lines: &[String]) -> String {
    printable(&lines.join("\n"), 2 * STDERR_TAIL)
}

/// Returns the lines of a plug-in's stderr without probable secrets.
pub(super) fn logged_lines(stderr: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(stderr);
    let mut lines: Vec<String> = Vec::new();
    let mut inside_key = false;
    for line in text.lines() {
        if line.contains("PRIVATE KEY-----") {
            if line.contains("-----END") && !inside_key {
                // The tail begins within a key.
                lines.clear();
            }
            inside_key = line.contains("-----BEGIN");
            lines.push(HIDDEN_KEY.to_owned());
        } else if !inside_key {
            lines.push(without_secret(line));
        }
    }
    lines
}

/// Returns the line up to a value whose name suggests a secret.
fn without_secret(line: &str) -> String {
    const NAMES: [&str; 9] = [
        "authorization",
        "token",
        "password",
        "passwd",
        "passphrase",
        "secret",
        "api_key",
        "apikey",
        "bearer",
    ];
    // ASCII lower-casing keeps byte offsets.
    let lower = line.to_ascii_lowercase();
    let value = NAMES
        .iter()
        .filter_map(|name| {
            lower.match_indices(name).find_map(|(at, _)| {
                let after = at + name.len();
                let rest = lower.get(after..)?;
                let gap = rest.len() - rest.trim_start_matches(['"', '\'', ' ']).len();
                let marked = rest
                    .trim_start_matches(['"', '\'', ' '])
                    .starts_with(['=', ':']);
                let value = if marked { after + gap + 1 } else { after + gap };
                (marked || *name == "bearer" && gap > 0).then_some(value)
            })
        })
        .min();
    match value.and_then(|value| line.get(..value)) {
        Some(kept) => format!("{kept}[redacted]"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_secrets_from_logged_stderr() {
        for (line, shown) in [
            ("connecting to https://ca", "connecting to https://ca"),
            ("Authorization: Bearer abc", "Authorization:[redacted]"),
            ("using bearer abc", "using bearer [redacted]"),
            ("{\"token\": \"hvs.abc\"}", "{\"token\":[redacted]"),
            ("PASSWORD=hunter2 rest", "PASSWORD=[redacted]"),
            ("the token expired", "the token expired"),
            ("Grüße, secret='x'", "Grüße, secret=[redacted]"),
        ] {
            assert_eq!(log_text(&logged_lines(line.as_bytes())), shown);
        }
        let key = "a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nb";
        assert_eq!(
            log_text(&logged_lines(key.as_bytes())),
            "a | [private key] | [private key] | b"
        );
        let cut = "MHcC\nMHcD\n-----END EC PRIVATE KEY-----\nb";
        assert_eq!(log_text(&logged_lines(cut.as_bytes())), "[private key] | b");
    }

    #[test]
    fn keeps_only_end_of_stderr() {
        let mut tail = Vec::new();
        for _ in 0..100 {
            keep_tail(&mut tail, &[b'a'; 1000]);
        }
        keep_tail(&mut tail, b"end");
        assert_eq!(tail.len(), STDERR_TAIL);
        assert!(tail.ends_with(b"aend"));
    }
}

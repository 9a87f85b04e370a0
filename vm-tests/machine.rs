//! What can be done with a machine, whatever it runs on, and the way into it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::thread::{panicking, sleep};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tempfile::TempDir;

/// A machine that can be started again with the disk that it has.
pub(crate) trait Machine {
    /// Power on; nothing is waited for.
    fn start(&mut self);

    /// The plug is pulled: nothing in the machine gets to do anything more.
    fn cut(&mut self);

    /// Until it has switched itself off.
    fn wait_off(&mut self);

    /// The running machine's, connected when it is first asked for: see [`connected`].
    fn shell(&mut self) -> &mut Shell;

    /// How much longer this is waited for than a container.
    fn patience(&self) -> u32;

    /// Power on, until commands can be given; the boot goes on meanwhile.
    fn boot(&mut self) {
        self.start();
        self.shell();
    }

    /// Switches off in order.
    fn power_off(&mut self) {
        self.shell().send("systemctl poweroff");
        self.wait_off();
    }

    /// Gives a command and says how it ended.
    fn run(&mut self, command: &str) -> Ran {
        self.shell().run(command)
    }

    /// What a command printed that must end with 0.
    fn done(&mut self, command: &str) -> String {
        let ran = self.run(command);
        assert!(
            ran.status == 0,
            "`{command}` ended with {}:\n{}",
            ran.status,
            ran.said
        );
        ran.said
    }

    /// Gives a command again and again until it ends with 0.
    fn until(&mut self, command: &str, seconds: u32) -> String {
        let end = Instant::now() + Duration::from_secs(u64::from(seconds * self.patience()));
        loop {
            let ran = self.run(command);
            if ran.status == 0 {
                return ran.said;
            }
            assert!(
                Instant::now() < end,
                "`{command}` still ends with {} after {seconds} s:\n{}\n{}",
                ran.status,
                ran.said,
                self.run("journalctl --no-pager -b -n 60 -t nodepki -t systemd -t kubelet")
                    .said
            );
            // Looking takes its share of an emulated processor.
            sleep(Duration::from_millis(50) * self.patience());
        }
    }

    /// Until everything that the boot was to start has started or failed; `running` or `degraded`.
    fn settled(&mut self) -> String {
        self.run("systemctl is-system-running --wait")
            .said
            .trim()
            .to_owned()
    }

    /// Until the boot is over, with nothing failed.
    fn well(&mut self) {
        let state = self.settled();
        assert_eq!(
            state,
            "running",
            "{}",
            self.run("systemctl --failed; journalctl --no-pager -b -p warning -n 50; journalctl --no-pager -b -t nodepki").said
        );
    }

    /// Until the stand-in of the kubelet has found the whole PKI and runs, in this boot.
    fn node_up(&mut self) {
        self.until(
            "systemctl is-active -q kubelet && journalctl -q -b -u kubelet -g 'PKI: whole' | tail -n 1 | grep -q whole",
            60,
        );
    }
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    /// Standard output and error.
    pub(crate) said: String,
}

/// A root shell in the machine.
pub(crate) struct Shell {
    stream: UnixStream,
    seen: Vec<u8>,
}

impl Shell {
    /// Waits for the machine to open it. `alive` says whether there is still something to wait for.
    fn connect(
        socket: &Path,
        limit: Duration,
        mut alive: impl FnMut() -> bool,
    ) -> Result<Self, String> {
        let end = Instant::now() + limit;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => {
                    if Instant::now() > end {
                        return Err(format!("no way in after {limit:?}: {error}"));
                    }
                    if !alive() {
                        return Err("it has ended".to_owned());
                    }
                    sleep(Duration::from_millis(20));
                }
            }
        };
        stream.set_read_timeout(Some(limit)).unwrap();
        let mut shell = Shell {
            stream,
            seen: Vec::new(),
        };
        shell.until(b"ready\n")?;
        Ok(shell)
    }

    fn send(&mut self, line: &str) {
        self.stream
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn run(&mut self, command: &str) -> Ran {
        // In one word, so that nothing that a command prints is taken for the end of it.
        self.send(&format!(
            "said=$( ( {command}\n) </dev/null 2>&1 | base64 -w0; exit ${{PIPESTATUS[0]}}); echo \"$said @$?@\""
        ));
        let said = self.until(b" @").unwrap();
        let status = self.until(b"@\n").unwrap();
        let said = BASE64_STANDARD.decode(said.trim_ascii()).unwrap();
        Ran {
            status: String::from_utf8(status).unwrap().parse().unwrap(),
            said: String::from_utf8_lossy(&said).into_owned(),
        }
    }

    fn until(&mut self, mark: &[u8]) -> Result<Vec<u8>, String> {
        let mut more = [0; 1 << 16];
        loop {
            if let Some(at) = self.seen.windows(mark.len()).position(|seen| seen == mark) {
                let rest = self.seen.split_off(at + mark.len());
                let mut before = std::mem::replace(&mut self.seen, rest);
                before.truncate(at);
                return Ok(before);
            }
            let read = self.stream.read(&mut more);
            match read.map_err(|error| format!("no answer: {error}"))? {
                0 => return Err("the machine went away".to_owned()),
                some => self.seen.extend_from_slice(&more[..some]),
            }
        }
    }
}

/// The shell of a running machine, by way of a socket that it opens within `limit`.
pub(crate) fn connected<'a>(
    shell: &'a mut Option<Shell>,
    running: Option<&mut Child>,
    socket: &Path,
    limit: Duration,
) -> &'a mut Shell {
    shell.get_or_insert_with(|| {
        let running = running.expect("it does not run");
        let alive = || running.try_wait().unwrap().is_none();
        let shell = Shell::connect(socket, limit, alive);
        shell.unwrap_or_else(|error| panic!("no shell: {error}"))
    })
}

/// Removes a machine's folder, unless somebody will want to look into it.
pub(crate) fn leave(dir: Option<TempDir>, scenario: &str) {
    let Some(dir) = dir else { return };
    if !panicking() && std::env::var_os("NODEPKI_VM_KEEP").is_none() {
        return;
    }
    let dir = dir.keep();
    eprintln!("    {scenario}: the machine's folder is {}", dir.display());
    for name in ["qemu.log", "console", "log"] {
        if let Ok(text) = fs::read(dir.join(name)) {
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<_> = text.lines().collect();
            eprintln!(
                "--- end of {name}\n{}",
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
}

//! The operations on a machine of any kind, and the shell into it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Child;
use std::thread::panicking;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tempfile::TempDir;

use crate::time::{let_pass, within};

/// Upper bound of a wait for something that takes some minutes on a machine whose processors do nothing else.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(1200);

/// Prints the SHA-256 sums of all files below /etc/kubernetes.
pub(crate) const PKI_SUMS: &str = "cd /etc/kubernetes; find . -type f -exec sha256sum {} + | sort";

/// A machine that can be started again with its present disk.
pub(crate) trait Machine {
    /// Powers on without waiting for the boot.
    fn start(&mut self);

    /// Cuts the power: no process in the machine runs any further.
    fn cut(&mut self);

    /// Waits until the machine has powered off.
    fn wait_off(&mut self);

    /// Returns the shell of the running machine, connected at the first call: see [`connected`].
    fn shell(&mut self) -> &mut Shell;

    /// Factor by which everything takes longer than in a container.
    fn time_factor(&self) -> u32;

    /// Powers on, and waits until the shell accepts commands; the boot continues meanwhile.
    fn boot(&mut self) {
        self.start();
        self.shell();
    }

    /// Shuts down in order and powers off.
    fn power_off(&mut self) {
        self.shell().send("systemctl poweroff");
        self.wait_off();
    }

    /// Runs a command and returns its result.
    fn run(&mut self, command: &str) -> Ran {
        self.shell().run(command)
    }

    /// Runs a command that must succeed, and returns its output.
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

    /// Repeats a command until it succeeds, and returns its output.
    fn until(&mut self, command: &str) -> String {
        let factor = self.time_factor();
        let ended = within(MAX_WAIT * factor, || match self.run(command) {
            ran if ran.status == 0 => Ok(ran.said),
            ran => {
                // Each attempt uses time of an emulated processor.
                let_pass(Duration::from_millis(200) * (factor - 1));
                Err(ran)
            }
        });
        ended.unwrap_or_else(|ran| {
            panic!(
                "`{command}` still ends with {}:\n{}\n{}",
                ran.status,
                ran.said,
                self.run("journalctl --no-pager -b -n 60 -t nodepki -t systemd -t kubelet")
                    .said
            )
        })
    }

    /// Waits until all jobs of the boot have started or failed; returns `running` or `degraded`.
    fn settled(&mut self) -> String {
        self.run("systemctl is-system-running --wait")
            .said
            .trim()
            .to_owned()
    }

    /// Waits until the boot is complete, and asserts that no unit failed.
    fn assert_booted(&mut self) {
        let state = self.settled();
        assert_eq!(
            state,
            "running",
            "{}",
            self.run("systemctl --failed; journalctl --no-pager -b -p warning -n 50; journalctl --no-pager -b -t nodepki").said
        );
    }

    /// Waits until the kubelet's replacement runs in this boot, which it does only with a complete PKI.
    fn wait_until_node_runs(&mut self) {
        self.until(
            "systemctl is-active -q kubelet && journalctl -q -b -u kubelet -g 'PKI: whole' | tail -n 1 | grep -q whole");
    }

    /// Boots a node, and waits until it is complete and nothing has failed.
    fn boot_node(&mut self) {
        self.boot();
        self.wait_until_node_runs();
        self.assert_booted();
    }

    /// SHA-256 sums of all files below /etc/kubernetes.
    fn pki_sums(&mut self) -> String {
        self.done(PKI_SUMS)
    }
}

/// The result of a command.
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
    /// Waits until the machine opens the connection. `alive` reports whether the machine still runs.
    fn connect(
        socket: &Path,
        limit: Duration,
        mut alive: impl FnMut() -> bool,
    ) -> Result<Self, String> {
        let stream = within(limit, || match UnixStream::connect(socket) {
            Err(error) if alive() => Err(error),
            other => Ok(other.map_err(|error| format!("the machine has ended: {error}"))),
        });
        let stream = stream.map_err(|error| format!("not in time: {error}"))??;
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
        // The result is one Base64 word, so no output of a command is mistaken for its end.
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

/// Returns the shell of a running machine, through a socket that the machine opens within `limit`.
pub(crate) fn connected<'a>(
    shell: &'a mut Option<Shell>,
    running: Option<&mut Child>,
    socket: &Path,
    limit: Duration,
) -> &'a mut Shell {
    shell.get_or_insert_with(|| {
        let running = running.expect("the machine is off");
        let alive = || running.try_wait().unwrap().is_none();
        let shell = Shell::connect(socket, limit, alive);
        shell.unwrap_or_else(|error| panic!("no shell: {error}"))
    })
}

/// Removes a machine's folder, unless it is to be kept for inspection.
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

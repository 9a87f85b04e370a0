//! Runs a program on a pseudo-terminal of a given width.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A program on a pseudo-terminal.
pub(crate) struct OnTerminal {
    child: Child,
    reader: JoinHandle<()>,
    said: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    /// Starts the program with stdin, stdout and stderr on a terminal with this many columns.
    pub(crate) fn start(mut command: Command, columns: u16) -> OnTerminal {
        let size = Winsize {
            ws_row: 40,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pty.slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        command.env_remove("NO_COLOR");
        let child = command.spawn().unwrap();
        // The command keeps the terminal open, and the reader would never end.
        drop(command);
        drop(pty.slave);
        let mut terminal = File::from(pty.master);
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let reader = spawn(move || {
            let mut part = [0; 4096];
            // EIO: the program has closed the terminal.
            while let Ok(count @ 1..) = terminal.read(&mut part) {
                heard.lock().unwrap().extend_from_slice(&part[..count]);
            }
        });
        OnTerminal {
            child,
            reader,
            said,
        }
    }

    /// Returns how often the program has written `words` so far.
    pub(crate) fn count(&self, words: &str) -> usize {
        let said = self.said.lock().unwrap();
        String::from_utf8_lossy(&said).matches(words).count()
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
    }

    /// Waits for the end. Returns exit status and everything that was written, with line ends as in a file.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        self.reader.join().unwrap();
        let said = String::from_utf8(self.said.lock().unwrap().clone()).unwrap();
        (status.code(), said.replace("\r\n", "\n"))
    }
}

/// Returns the text that remains on the screen: without rewritten lines and without colours.
pub(crate) fn screen(said: &str) -> String {
    let mut shown = String::new();
    for line in said.split_inclusive('\n') {
        let last = line.rsplit("\r\u{1b}[K").next().unwrap_or(line);
        let mut rest = last;
        while let Some((before, after)) = rest.split_once("\u{1b}[") {
            shown.push_str(before);
            rest = after.split_once('m').unwrap().1;
        }
        shown.push_str(rest);
    }
    shown
}

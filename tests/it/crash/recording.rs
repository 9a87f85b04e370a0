//! Records the system calls of a run with strace(1), and reads them as operations on files.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The system calls that change files, locks or sockets. Reading calls are counted too, since `openat` does both.
pub(super) const CALLS: &str = "open,creat,openat,openat2,write,writev,pwrite64,pwritev,pwritev2,sendfile,splice,copy_file_range,\
    rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir,mkdir,mkdirat,mknodat,symlink,symlinkat,\
    fsync,fdatasync,sync,syncfs,sync_file_range,ftruncate,truncate,fallocate,chmod,fchmod,fchmodat,\
    fchown,fchownat,chown,lchown,utimensat,setxattr,fsetxattr,umask,flock,connect,sendto,sendmsg,sendmmsg";

/// A system call of a recording.
#[derive(Clone, Debug)]
pub(super) struct SystemCall {
    /// Whether the main thread of the command made it: strace counts calls of each thread separately.
    pub(super) is_main: bool,
    pub(super) name: String,
    arguments: Vec<String>,
    returned: String,
}

impl SystemCall {
    fn succeeded(&self) -> bool {
        !self.returned.starts_with('-') && !self.returned.starts_with('?')
    }

    /// Returns true if the call can change a file, a lock or another machine.
    pub(super) fn mutates(&self) -> bool {
        match self.name.as_str() {
            "open" | "openat" | "openat2" => {
                let flags = self.arguments.join(",");
                ["O_CREAT", "O_WRONLY", "O_RDWR", "O_TMPFILE", "O_TRUNC"]
                    .iter()
                    .any(|flag| flags.contains(flag))
                    && !flags.contains(&hexadecimal("/dev/null"))
            }
            "umask" => false,
            _ => true,
        }
    }

    /// Returns true if the call connects a socket or sends to one. The handler of a signal sends one byte to its own
    /// process (tokio, `signal/unix.rs`).
    pub(super) fn sends(&self) -> bool {
        match self.name.as_str() {
            "sendto" if self.arguments[1] == "\"\\x01\"" => false,
            "connect" | "sendto" | "sendmsg" | "sendmmsg" => true,
            "writev" => self.arguments[0].contains(&hexadecimal("socket:")),
            _ => false,
        }
    }

    /// Returns true if the call writes to a file, as opposed to a pipe or a socket.
    pub(super) fn writes_to_file(&self) -> bool {
        self.name != "sendto"
            && !self.sends()
            && (!self.name.starts_with("write") || path_of(&self.arguments[0]).is_some())
    }

    /// Returns true if errors are injected into this call: those of the event loop's own descriptors and of pipes to
    /// programs fail in other ways.
    pub(super) fn fails(&self) -> bool {
        self.writes_to_file() || self.sends()
    }

    /// Returns a text for messages: the name and the paths.
    pub(super) fn shown(&self) -> String {
        let paths = self.arguments.iter().filter_map(|argument| {
            path_of(argument).or_else(|| {
                let bytes = quoted(argument)?;
                (bytes.len() < 100).then(|| PathBuf::from(std::ffi::OsString::from_vec(bytes)))
            })
        });
        let paths: Vec<String> = paths
            .take(4)
            .map(|path| format!("{:?}", path.file_name().unwrap_or(path.as_os_str())))
            .collect();
        format!("{}({})", self.name, paths.join(", "))
    }
}

/// An operation on files, with absolute paths.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Open {
        path: PathBuf,
        creates: bool,
        truncates: bool,
        appends: bool,
        mode: u32,
    },
    Write {
        path: PathBuf,
        bytes: Vec<u8>,
        at: Option<usize>,
    },
    Truncate {
        path: PathBuf,
        length: usize,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Symlink {
        target: PathBuf,
        path: PathBuf,
    },
    Remove {
        path: PathBuf,
    },
    MakeDirectory {
        path: PathBuf,
        mode: u32,
    },
    SetMode {
        path: PathBuf,
        mode: u32,
    },
    Sync {
        path: PathBuf,
    },
    SyncAll,
    /// Of the command itself.
    Umask(u32),
}

/// Returns a command that runs `inner` under strace(1), with its environment.
pub(super) fn traced(inner: &Command, options: &[String]) -> Command {
    let mut command = Command::new("strace");
    command
        .args(options)
        .arg("--")
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Options of strace(1) that record everything into `log`.
pub(super) fn options(log: &Path) -> Vec<String> {
    let log = log.to_str().unwrap();
    [
        "-f",
        "-y",
        "-xx",
        "--seccomp-bpf",
        "-s",
        "99999999",
        "-o",
        log,
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([format!("--trace={CALLS}")])
    .collect()
}

/// Reads a recording: the calls in the order in which they ended.
pub(super) fn read(log: &Path) -> Vec<SystemCall> {
    let text = fs::read_to_string(log).unwrap();
    let mut main = None;
    let mut unfinished = std::collections::BTreeMap::new();
    let mut calls = Vec::new();
    for line in text.lines() {
        let (pid, rest) = line.split_once(' ').unwrap();
        let (pid, rest) = (pid.to_owned(), rest.trim_start());
        if rest.starts_with("+++") || rest.starts_with("---") {
            continue;
        }
        main.get_or_insert_with(|| pid.clone());
        if let Some(begin) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(pid, begin.to_owned());
            continue;
        }
        let whole = match rest.strip_prefix("<... ") {
            Some(resumed) => {
                let (_, end) = resumed.split_once(" resumed>").unwrap();
                format!("{}{end}", unfinished.remove(&pid).unwrap())
            }
            None => rest.to_owned(),
        };
        calls.extend(call(&whole, Some(&pid) == main.as_ref()));
    }
    assert!(
        !calls.is_empty(),
        "strace recorded nothing in {}",
        log.display()
    );
    calls
}

/// Returns the call into which strace(1) injected an error, from the log of one thread; none if it was not reached.
pub(super) fn injected(log: &Path) -> Option<SystemCall> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().find(|line| line.ends_with("(INJECTED)"))?;
    Some(call(line, true).unwrap_or_else(|| panic!("{line} is not a call")))
}

/// Reads a line without its process.
fn call(line: &str, is_main: bool) -> Option<SystemCall> {
    // The result follows the last parenthesis, with padding.
    let (call, returned) = line.rsplit_once(" = ")?;
    let (name, arguments) = call.split_once('(').unwrap();
    let arguments = arguments.trim_end().strip_suffix(')').unwrap_or(arguments);
    Some(SystemCall {
        is_main,
        name: name.to_owned(),
        arguments: split(arguments),
        returned: returned.to_owned(),
    })
}

/// Splits arguments at commas outside of brackets. Strings are hexadecimal and contain none.
fn split(text: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        match character {
            '{' | '[' | '<' => depth += 1,
            '}' | ']' | '>' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        arguments.last_mut().unwrap().push(character);
    }
    arguments
        .into_iter()
        .map(|text| text.trim().to_owned())
        .collect()
}

fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// Returns the bytes of `\x2f\x65…`.
fn unhexed(text: &str) -> Vec<u8> {
    text.split("\\x")
        .skip(1)
        .map(|digits| u8::from_str_radix(&digits[..2], 16).unwrap())
        .collect()
}

/// Returns the bytes of the first string in quotes.
fn quoted(argument: &str) -> Option<Vec<u8>> {
    let (_, rest) = argument.split_once('"')?;
    let (text, rest) = rest.split_once('"')?;
    assert!(
        !rest.starts_with("..."),
        "strace truncated a string of {} bytes",
        text.len() / 4
    );
    Some(unhexed(text))
}

fn quoted_path(argument: &str) -> PathBuf {
    let bytes = quoted(argument).unwrap_or_else(|| panic!("{argument} is not a string"));
    std::ffi::OsString::from_vec(bytes).into()
}

/// Returns the path of a file descriptor with `-y`: `5<\x2f…>`; none for sockets and removed files.
fn path_of(argument: &str) -> Option<PathBuf> {
    let (_, rest) = argument.split_once('<')?;
    let (text, rest) = rest.split_once('>')?;
    if rest.starts_with("(deleted)") || !text.starts_with("\\x2f") {
        return None;
    }
    Some(std::ffi::OsString::from_vec(unhexed(text)).into())
}

/// Returns the path of a directory and a name below it.
fn at(directory: &str, name: &str) -> PathBuf {
    let name = quoted_path(name);
    match path_of(directory) {
        Some(directory) => directory.join(name),
        None => name,
    }
}

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("mode="), 8).unwrap_or(0)
}

/// Returns what the call did to the files; none for a failed call, a lock or a socket.
///
/// # Panics
/// For a call that changes files and that the model does not know.
pub(super) fn operation(call: &SystemCall) -> Option<Operation> {
    if call.name == "umask" && call.is_main {
        return Some(Operation::Umask(octal(&call.arguments[0])));
    }
    if !call.succeeded() || !call.mutates() {
        return None;
    }
    let argument = |index: usize| call.arguments[index].as_str();
    let number = |index: usize| argument(index).parse::<usize>().unwrap();
    Some(match call.name.as_str() {
        "openat" | "openat2" | "open" | "creat" => {
            let flags = call.arguments.join(",");
            // Nameless, to prove that the directory can be written; a link to it fails in the model.
            if flags.contains("O_TMPFILE") {
                return None;
            }
            let mode = match call.name.as_str() {
                "openat2" => flags
                    .split_once("mode=")
                    .map_or("0", |(_, rest)| rest.split([',', '}']).next().unwrap()),
                _ => call.arguments.last().unwrap(),
            };
            Operation::Open {
                path: path_of(&call.returned)?,
                creates: flags.contains("O_CREAT") || call.name == "creat",
                truncates: flags.contains("O_TRUNC") || call.name == "creat",
                appends: flags.contains("O_APPEND"),
                mode: octal(mode),
            }
        }
        "write" | "writev" | "pwrite64" => {
            let mut bytes = Vec::new();
            let mut rest = argument(1);
            while let Some((_, text)) = rest.split_once('"') {
                let (text, after) = text.split_once('"').unwrap();
                assert!(!after.starts_with("..."), "strace truncated {call:?}");
                bytes.extend(unhexed(text));
                rest = after;
            }
            bytes.truncate(call.returned.split(' ').next().unwrap().parse().unwrap());
            let at = (call.name == "pwrite64").then(|| number(3));
            let path = path_of(argument(0))?;
            Operation::Write { path, bytes, at }
        }
        "ftruncate" => Operation::Truncate {
            path: path_of(argument(0))?,
            length: number(1),
        },
        "rename" => Operation::Rename {
            from: quoted_path(argument(0)),
            to: quoted_path(argument(1)),
        },
        "renameat" | "renameat2" => Operation::Rename {
            from: at(argument(0), argument(1)),
            to: at(argument(2), argument(3)),
        },
        "linkat" => Operation::Link {
            from: at(argument(0), argument(1)),
            to: at(argument(2), argument(3)),
        },
        "symlinkat" => Operation::Symlink {
            target: quoted_path(argument(0)),
            path: at(argument(1), argument(2)),
        },
        "unlinkat" => Operation::Remove {
            path: at(argument(0), argument(1)),
        },
        "unlink" | "rmdir" => Operation::Remove {
            path: quoted_path(argument(0)),
        },
        "mkdirat" => Operation::MakeDirectory {
            path: at(argument(0), argument(1)),
            mode: octal(argument(2)),
        },
        "mkdir" => Operation::MakeDirectory {
            path: quoted_path(argument(0)),
            mode: octal(argument(1)),
        },
        "fchmod" => Operation::SetMode {
            path: path_of(argument(0))?,
            mode: octal(argument(1)),
        },
        "chmod" => Operation::SetMode {
            path: quoted_path(argument(0)),
            mode: octal(argument(1)),
        },
        "fchmodat" => Operation::SetMode {
            path: at(argument(0), argument(1)),
            mode: octal(argument(2)),
        },
        "fsync" | "fdatasync" => Operation::Sync {
            path: path_of(argument(0))?,
        },
        "sync" | "syncfs" => Operation::SyncAll,
        // Without effect on content, names and modes.
        "flock" | "connect" | "sendto" | "sendmsg" | "sendmmsg" | "utimensat" | "fchown"
        | "fchownat" | "chown" | "lchown" | "setxattr" | "fsetxattr" | "sync_file_range" => {
            return None;
        }
        other => panic!("{other} is not modelled: {}", call.shown()),
    })
}

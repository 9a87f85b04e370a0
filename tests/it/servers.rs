//! Real servers for the tests: finding their programs, starting them, and ending them with this process.
//!
//! A file below `servers/` describes one server: its configuration, its readiness check, and the actions of its
//! administrators. This file contains no protocol and no assertions about nodepki.

pub(crate) mod cfssl;
pub(crate) mod cluster;
pub(crate) mod cluster_api;
pub(crate) mod est;
pub(crate) mod kubernetes;
pub(crate) mod puppet;
pub(crate) mod remote_signer;
pub(crate) mod static_pods;
pub(crate) mod step_ca;
pub(crate) mod vault;

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::time::eventually;

/// Returns the path of a server's program, as `tests/run` built or unpacked it.
///
/// # Panics
/// If the program is missing: a test that needs a server never passes without it.
pub(crate) fn bin(name: &str) -> PathBuf {
    let path = bin_dir().join(name);
    assert!(
        path.exists(),
        "{} is missing: run `tests/run unit` with the name of this test, which builds it, or set NODEPKI_TEST_SERVERS to \
         the directory that has it. If `tests/run` says so, add the test to a group in tests/groups",
        path.display()
    );
    path
}

fn bin_dir() -> PathBuf {
    let set = |name| std::env::var_os(name).map(PathBuf::from);
    set("NODEPKI_TEST_SERVERS").unwrap_or_else(|| {
        let cache = set("XDG_CACHE_HOME")
            .or_else(|| Some(set("HOME")?.join(".cache")))
            .unwrap();
        cache.join("nodepki-tests/bin")
    })
}

/// Returns a directory on disk for servers that write much. It is the same for every call of this process; directories of
/// processes that have ended are removed.
pub(crate) fn own_dir(kind: &str) -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join(kind);
    fs::create_dir_all(&all).unwrap();
    for entry in fs::read_dir(&all).unwrap() {
        let path = entry.unwrap().path();
        let pid = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(path);
        }
    }
    let dir = all.join(std::process::id().to_string());
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Ports that the kernel gives to no connection (`net.ipv4.ip_local_port_range` begins at 32768).
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// Returns a loopback port that is free, and that no other call of this process returns. Two tests that asked the kernel for
/// one sometimes got the same.
pub(crate) fn free_port() -> u16 {
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(97)));
    let ports = PORTS.end - PORTS.start;
    let next = || PORTS.start + NEXT.fetch_add(1, Ordering::Relaxed) % ports;
    let mut ports = (0..ports).map(|_| u16::try_from(next()).unwrap());
    ports
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no free port")
}

/// A server that the tests of this process share, started by the first of them. If it does not start, or has died, it is
/// started again, at most twice; then every test that uses it fails with the same message, and none waits again.
pub(crate) struct SharedServer<T: 'static>(Mutex<Shared<T>>);

struct Shared<T: 'static> {
    started: Result<&'static T, String>,
    processes: Vec<Weak<Process>>,
    starts: u8,
}

const MAX_STARTS: u8 = 3;

thread_local! {
    /// The servers that this thread has started since a [`SharedServer`] last asked.
    static STARTED: RefCell<Vec<Weak<Process>>> = const { RefCell::new(Vec::new()) };
}

impl<T> SharedServer<T> {
    pub(crate) const fn new() -> Self {
        SharedServer(Mutex::new(Shared {
            started: Err(String::new()),
            processes: Vec::new(),
            starts: 0,
        }))
    }

    /// Returns the running server. What it replaces stays in memory, since other tests may still refer to it.
    pub(crate) fn get(&self, start: impl Fn() -> T) -> &'static T {
        let mut shared = self.0.lock().unwrap();
        while shared.must_start() && shared.starts < MAX_STARTS {
            shared.starts += 1;
            STARTED.take();
            let started = catch_unwind(AssertUnwindSafe(&start));
            shared.processes = STARTED.take();
            shared.started = match started {
                Ok(server) => Ok(Box::leak(Box::new(server))),
                Err(panic) => Err(panic
                    .downcast_ref::<String>()
                    .cloned()
                    .unwrap_or_else(|| "see the panic of the first test that uses it".to_owned())),
            };
        }
        let is_dead = shared.must_start();
        let started = shared.started.clone();
        // A panic below must not poison the lock.
        drop(shared);
        match started {
            Ok(_) if is_dead => {
                panic!("a server that several tests share has died {MAX_STARTS} times")
            }
            Ok(server) => server,
            Err(message) => panic!("a server that several tests share did not start: {message}"),
        }
    }
}

impl<T> Shared<T> {
    fn must_start(&self) -> bool {
        self.started.is_err()
            || self
                .processes
                .iter()
                .filter_map(Weak::upgrade)
                .any(|process| process.has_ended())
    }
}

/// The process of a [`Server`], for as long as that exists.
struct Process(Pid);

impl Process {
    /// Whether the process has ended, whether or not it was waited for.
    fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.0), flags) != Ok(WaitStatus::StillAlive)
    }
}

/// Returns a path that no other request of this process has, by which its line is found in a server's log.
pub(crate) fn marker() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("/marker/{}/", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A running server. It is killed when dropped, and by the kernel when this process ends.
pub(crate) struct Server {
    child: Child,
    _process: Arc<Process>,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts `command` with its output written to `log`.
    pub(crate) fn start(command: Command, log: &Path) -> Self {
        let output = File::create(log).unwrap();
        let name = command.get_program().to_string_lossy().into_owned();
        // The kernel sends the signal when the *thread* that started the program ends, so `spawn` uses a permanent one.
        let mut kept = Command::new("setpriv");
        kept.args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => kept.env(key, value),
                None => kept.env_remove(key),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            kept.current_dir(dir);
        }
        let child = spawn(kept);
        let process = Arc::new(Process(Pid::from_raw(child.id().try_into().unwrap())));
        STARTED.with_borrow_mut(|started| started.push(Arc::downgrade(&process)));
        Server {
            child,
            _process: process,
            name,
            log: log.to_owned(),
        }
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the server has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&mut self, signal: Signal) {
        // Another process may have the id of a process that was waited for.
        if self.ended().is_none() {
            let id = self.id().try_into().unwrap();
            kill(Pid::from_raw(id), signal).unwrap();
        }
    }

    /// Waits until `ready` returns true.
    ///
    /// # Panics
    /// With the end of the server's output if it ends first or is not ready in time.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, mut ready: impl FnMut() -> bool) {
        eventually(|| {
            if ready() {
                return Ok(());
            }
            let ended = self.ended();
            let (name, said) = (&self.name, self.said());
            match ended {
                Some(status) => panic!("{name} ended with {status}:\n{said}"),
                None => Err(format!("{name} is not ready:\n{said}")),
            }
        });
    }

    /// Waits until a loopback port accepts connections.
    pub(crate) fn wait_for_port(&mut self, port: u16) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.wait_until(|| {
            TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_ok()
        });
    }

    /// Returns the end of its output.
    pub(crate) fn said(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

type Order = (Command, Sender<std::io::Result<Child>>);

/// Starts a program from a thread that lives as long as the process.
fn spawn(command: Command) -> Child {
    static KEEPER: LazyLock<Mutex<Sender<Order>>> = LazyLock::new(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in inbox {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (answer, child) = mpsc::channel();
    let orders = KEEPER.lock().unwrap_or_else(|broken| broken.into_inner());
    orders.send((command, answer)).unwrap();
    drop(orders);
    child.recv().unwrap().unwrap_or_else(|error| {
        panic!("cannot start setpriv ({error}): apt-get install util-linux")
    })
}

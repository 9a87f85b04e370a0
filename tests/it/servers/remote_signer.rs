//! A signer outside of a node, which signs, fails, stalls, returns wrong certificates or is unreachable, as a test sets it
//! at any time.
//!
//! Owns: the socket, and the log of requests. The client is `tests/fixtures/remote-signer.sh`. The certificates are made
//! by `tests/fixtures/bad-signer.sh` in this process's namespaces, which contain the authorities' keys.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nodepki::kube::names::CertName;
use nodepki::signer::wire::{API_VERSION, SignRequest};
use nodepki::x509::{
    CertificateAuthority, Csr, ExtendedUsage, KeyAlgorithm, Profile, Sans, Subject,
};
use serde_json::json;

use crate::signing::{BAD_SIGNER, now};

/// The plug-in on the node. Its first argument is the path of the socket there.
pub(crate) const PLUGIN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/fixtures/remote-signer.sh"
);

/// Interval between two checks of the mode.
const MODE_CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Signs,
    /// Responds to every request with HTTP 500.
    Fails,
    /// Accepts connections and does not respond.
    Stalls,
    /// Accepts connections, and signs once another mode is set.
    Waits,
    /// Returns a certificate that is wrong as in this mode of `bad-signer.sh`.
    Lies(&'static str),
    /// Does not listen.
    Gone,
}

/// A running signer. It begins in the mode [`Mode::Signs`].
pub(crate) struct RemoteSigner {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

struct Shared {
    socket: PathBuf,
    authorities: PathBuf,
    behaviour: Mutex<Behaviour>,
    lifetimes: Mutex<Option<Lifetimes>>,
    log: Mutex<Log>,
}

/// Lifetime by certificate.
type Lifetimes = Box<dyn Fn(CertName) -> Duration + Send>;

struct Behaviour {
    all: Mode,
    /// Another mode for one certificate.
    one: Option<(CertName, Mode)>,
}

#[derive(Default)]
struct Log {
    /// Answers by request, so a repeated request gets the same answer.
    answers: BTreeMap<String, Vec<u8>>,
    met: BTreeMap<Mode, usize>,
}

impl RemoteSigner {
    /// Listens at `socket`, with `authorities` in kubeadm's layout.
    pub(crate) fn start(socket: &Path, authorities: &Path) -> Self {
        let shared = Arc::new(Shared {
            socket: socket.to_owned(),
            authorities: authorities.to_owned(),
            behaviour: Mutex::new(Behaviour {
                all: Mode::Signs,
                one: None,
            }),
            lifetimes: Mutex::default(),
            log: Mutex::default(),
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (serving, stopped) = (Arc::clone(&shared), Arc::clone(&stop));
        let server = thread::spawn(move || serve(&serving, &stopped));
        RemoteSigner {
            shared,
            stop,
            server: Some(server),
        }
    }

    /// Sets the mode for all certificates.
    pub(crate) fn behave(&self, mode: Mode) {
        *self.shared.behaviour.lock().unwrap() = Behaviour {
            all: mode,
            one: None,
        };
    }

    /// Sets a mode for one certificate, and signs all others.
    pub(crate) fn behave_for(&self, name: CertName, mode: Mode) {
        *self.shared.behaviour.lock().unwrap() = Behaviour {
            all: Mode::Signs,
            one: Some((name, mode)),
        };
    }

    /// Signs with these lifetimes instead of the requested ones, and without OpenSSL: thousands of certificates would take
    /// more time than their components.
    pub(crate) fn grant(&self, lifetimes: impl Fn(CertName) -> Duration + Send + 'static) {
        *self.shared.lifetimes.lock().unwrap() = Some(Box::new(lifetimes));
    }

    /// Returns the number of requests by mode, without those in the mode [`Mode::Gone`].
    pub(crate) fn met(&self) -> BTreeMap<Mode, usize> {
        self.shared.log.lock().unwrap().met.clone()
    }

    /// Returns the number of requests with different ids that were signed.
    pub(crate) fn signed(&self) -> usize {
        self.shared.log.lock().unwrap().answers.len()
    }
}

impl Drop for RemoteSigner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let server = self.server.take().unwrap();
        if server.join().is_err() && !thread::panicking() {
            panic!("the signer has panicked");
        }
    }
}

fn serve(shared: &Arc<Shared>, stop: &AtomicBool) {
    let mut listener = None;
    while !stop.load(Ordering::SeqCst) {
        if shared.behaviour.lock().unwrap().all == Mode::Gone {
            listener = None;
            thread::sleep(MODE_CHECK_INTERVAL);
            continue;
        }
        let listening = listener.get_or_insert_with(|| {
            let _ = std::fs::remove_file(&shared.socket);
            let listener = UnixListener::bind(&shared.socket).unwrap();
            listener.set_nonblocking(true).unwrap();
            listener
        });
        match listening.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                let shared = Arc::clone(shared);
                // The client may have ended before the response.
                thread::spawn(move || drop(exchange(&shared, stream)));
            }
            Err(_) => thread::sleep(MODE_CHECK_INTERVAL),
        }
    }
}

/// Handles one request.
fn exchange(shared: &Shared, mut stream: UnixStream) -> std::io::Result<()> {
    let (verb, body) = read(&stream)?;
    let request = serde_json::from_slice::<SignRequest>(&body).ok();
    let mode = shared.mode_for(request.as_ref());
    *shared.log.lock().unwrap().met.entry(mode).or_default() += 1;
    let wait_for_other = || {
        while shared.mode_for(request.as_ref()) == mode {
            thread::sleep(MODE_CHECK_INTERVAL);
        }
    };
    let (status, answer) = match mode {
        Mode::Signs | Mode::Waits => {
            if mode == Mode::Waits {
                wait_for_other();
            }
            match &request {
                Some(request) => (200, shared.sign(request, &body)),
                None => (200, shared.answer("good", &verb, &body)),
            }
        }
        Mode::Fails | Mode::Gone => (500, Vec::new()),
        Mode::Stalls => {
            wait_for_other();
            return Ok(());
        }
        Mode::Lies(how) => (200, shared.answer(how, &verb, &body)),
    };
    let head = format!(
        "HTTP/1.1 {status} Said\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&answer)
}

/// Reads the verb in the path, and the body.
fn read(stream: &UnixStream) -> std::io::Result<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut verb, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(path) = line.strip_prefix("post /") {
            path.split(' ').next().unwrap().clone_into(&mut verb);
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((verb, body))
}

impl Shared {
    fn mode_for(&self, request: Option<&SignRequest>) -> Mode {
        let behaviour = self.behaviour.lock().unwrap();
        match (behaviour.one, request) {
            (Some((name, mode)), Some(request)) if request.slot == name => mode,
            _ => behaviour.all,
        }
    }

    fn sign(&self, request: &SignRequest, body: &[u8]) -> Vec<u8> {
        let id = &request.request_id;
        if let Some(answer) = self.log.lock().unwrap().answers.get(id) {
            return answer.clone();
        }
        let lifetimes = self.lifetimes.lock().unwrap();
        let lifetime = lifetimes.as_ref().map(|of| of(request.slot));
        drop(lifetimes);
        let answer = match lifetime {
            Some(lifetime) => self.issue(request, lifetime),
            None => self.answer("good", "sign", body),
        };
        let mut log = self.log.lock().unwrap();
        log.answers.insert(id.clone(), answer.clone());
        answer
    }

    fn issue(&self, request: &SignRequest, lifetime: Duration) -> Vec<u8> {
        let base = self.authorities.join(request.ca.base_name());
        let read = |extension| std::fs::read(base.with_extension(extension)).unwrap();
        let authority = CertificateAuthority::from_pem(&read("crt"), &read("key")).unwrap();
        let csr = Csr::from_pem(request.csr_pem.as_bytes()).unwrap();
        let usages = [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth];
        let profile = Profile {
            subject: Subject {
                common_name: request.subject.common_name.clone(),
                organizations: request.subject.organization.clone(),
            },
            sans: Sans {
                dns: request.dns_names.clone(),
                ips: request
                    .ip_addresses
                    .iter()
                    .map(|ip| ip.parse().unwrap())
                    .collect(),
            },
            usages: usages
                .into_iter()
                .filter(|usage| request.usages.contains(&usage.to_string()))
                .collect(),
            key: KeyAlgorithm::EcdsaP256,
            lifetime,
        };
        let made = authority.issue(csr.public_key(), &profile, now()).unwrap();
        let answer = json!({"apiVersion": API_VERSION, "kind": "SignResponse", "requestId": request.request_id,
            "result": "issued", "certificatePem": made.to_pem()});
        answer.to_string().into_bytes()
    }

    fn answer(&self, how: &str, verb: &str, body: &[u8]) -> Vec<u8> {
        let mut child = Command::new("/bin/bash")
            .args([BAD_SIGNER, how])
            .arg(&self.authorities)
            .arg(verb)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(body).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "bad-signer.sh {how} {verb}");
        output.stdout
    }
}

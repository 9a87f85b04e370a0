//! The outside machine with the CA keys: it reads the requests that nodes leave in their folders, and signs them with
//! OpenSSL.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::system::run;

/// nodepki's authorities with the common names of their CAs.
pub(crate) const AUTHORITIES: [(&str, &str); 3] = [
    ("ca", "kubernetes"),
    ("etcd-ca", "etcd-ca"),
    ("front-proxy-ca", "front-proxy-ca"),
];

/// A key algorithm with its size, by its name for `encryptionAlgorithm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyKind(pub(crate) &'static str);

impl KeyKind {
    /// Splits the name into `RSA` or `ECDSA` and the size.
    fn parts(self) -> (&'static str, &'static str) {
        self.0.split_once('-').unwrap()
    }

    /// Options of `openssl req` that generate a key.
    fn openssl(self) -> [String; 4] {
        let (kind, option) = match self.parts() {
            ("RSA", bits) => ("rsa", format!("rsa_keygen_bits:{bits}")),
            (_, curve) => (
                "ec",
                format!("ec_paramgen_curve:{}", curve.replace('P', "P-")),
            ),
        };
        ["-newkey", kind, "-pkeyopt", &option].map(str::to_owned)
    }

    /// Returns the description of such a public key by `openssl x509 -text`.
    pub(crate) fn public_key(self) -> String {
        let (_, size) = self.parts();
        format!("({} bit)", size.trim_start_matches('P'))
    }

    /// Returns whether keys of this kind sign with an algorithm, given by its name in `openssl x509 -text`.
    pub(crate) fn has_signed(self, algorithm: &str) -> bool {
        match self.parts() {
            ("RSA", _) => algorithm.ends_with("WithRSAEncryption"),
            _ => algorithm.starts_with("ecdsa-with-"),
        }
    }
}

/// Longest lifetime of a certificate.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Signs in a thread until it is dropped.
pub(crate) struct CertificateAuthorities {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Contains a folder for each generation of each CA, with `key.pem` and `cert.pem`.
    dir: PathBuf,
    kinds: [KeyKind; 3],
    generations: Mutex<BTreeMap<&'static str, Generations>>,
    /// The folders of the nodes' directory signers.
    folders: Mutex<Vec<PathBuf>>,
    signed: AtomicU64,
    is_away: AtomicBool,
    stop: AtomicBool,
}

/// Generations of one authority's CA; the first is 1.
#[derive(Clone, Copy, Default)]
struct Generations {
    newest: u32,
    signing: u32,
}

impl CertificateAuthorities {
    /// Creates the CAs, with keys of these kinds in the order of `AUTHORITIES`, and starts to sign.
    pub(crate) fn start(dir: PathBuf, kinds: [KeyKind; 3]) -> Self {
        fs::create_dir_all(&dir).unwrap();
        let shared = Arc::new(Shared {
            dir,
            kinds,
            generations: Mutex::default(),
            folders: Mutex::default(),
            signed: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        for (authority, _) in AUTHORITIES {
            shared.generate(authority);
            shared.sign_with_newest(authority);
        }
        let signer = shared.clone();
        let thread = thread::spawn(move || {
            while !signer.stop.load(Ordering::Relaxed) {
                if !signer.is_away.load(Ordering::Relaxed) {
                    signer.sign_all();
                }
                sleep(POLL_INTERVAL);
            }
        });
        CertificateAuthorities {
            shared,
            thread: Some(thread),
        }
    }

    /// Adds a folder whose requests are signed from now on.
    pub(crate) fn serve(&self, folder: &Path) {
        let mut folders = self.shared.folders.lock().unwrap();
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_owned());
        }
    }

    /// Creates the next CA without signing with it, and returns its certificate as PEM.
    pub(crate) fn prepare(&self, authority: &'static str) -> String {
        self.shared.generate(authority);
        let newest = self.shared.generations(authority).newest;
        fs::read_to_string(self.shared.path(authority, newest, "cert.pem")).unwrap()
    }

    /// Takes over the CAs in kubeadm's folder `pki` as the ones that sign.
    pub(crate) fn take_over(&self, pki: &Path) {
        for (authority, base) in [
            ("ca", "ca"),
            ("etcd-ca", "etcd/ca"),
            ("front-proxy-ca", "front-proxy-ca"),
        ] {
            self.shared.generate(authority);
            self.shared.sign_with_newest(authority);
            for (extension, name) in [("crt", "cert.pem"), ("key", "key.pem")] {
                let file = pki.join(base).with_extension(extension);
                fs::copy(file, self.file(authority, name)).unwrap();
            }
        }
    }

    /// Signs with the prepared CA from now on.
    pub(crate) fn sign_with_newest(&self, authority: &'static str) {
        self.shared.sign_with_newest(authority);
    }

    /// Signs with the CA before the signing one from now on.
    pub(crate) fn sign_with_former(&self, authority: &str) {
        let mut generations = self.shared.generations.lock().unwrap();
        generations.get_mut(authority).unwrap().signing -= 1;
    }

    /// Returns the certificate of the signing CA as PEM.
    pub(crate) fn certificate(&self, authority: &str) -> String {
        fs::read_to_string(self.file(authority, "cert.pem")).unwrap()
    }

    /// Returns the certificates of all generations of an authority as PEM.
    pub(crate) fn certificates(&self, authority: &str) -> Vec<String> {
        let generations = 1..=self.shared.generations(authority).newest;
        generations
            .map(|generation| {
                fs::read_to_string(self.shared.path(authority, generation, "cert.pem")).unwrap()
            })
            .collect()
    }

    /// Returns the path of `cert.pem` or `key.pem` of the signing CA.
    pub(crate) fn file(&self, authority: &str, name: &str) -> PathBuf {
        let generation = self.shared.generations(authority).signing;
        self.shared.path(authority, generation, name)
    }

    /// SHA-256 digest of its public key, in the form of `caCertHashes`.
    pub(crate) fn pin(&self, authority: &str) -> String {
        let printed = run(Command::new("bash").arg("-euo").arg("pipefail").args([
            "-c",
            "openssl x509 -in \"$0\" -pubkey -noout | openssl pkey -pubin -outform DER | sha256sum | cut -d' ' -f1",
            self.file(authority, "cert.pem").to_str().unwrap(),
        ]));
        printed.trim().to_owned()
    }

    /// Returns the private keys of all generations of all CAs.
    pub(crate) fn keys(&self) -> Vec<PathBuf> {
        let generations = self.shared.generations.lock().unwrap();
        let keys = generations.iter().flat_map(|(authority, generations)| {
            (1..=generations.newest)
                .map(|generation| self.shared.path(authority, generation, "key.pem"))
        });
        keys.collect()
    }

    /// Returns the certificate that a request would have obtained two years ago for one year.
    pub(crate) fn expired(&self, authority: &str, request: &Path) -> String {
        let now = OffsetDateTime::now_utc();
        let (begin, end) = (now - 2 * YEAR, now - YEAR);
        let signed = request.with_extension("expired");
        let generation = self.shared.generations(authority).signing;
        self.shared
            .certify(
                (authority, generation),
                request,
                &signed,
                (begin, end),
                None,
            )
            .unwrap();
        fs::read_to_string(signed).unwrap()
    }

    /// Stops or resumes answering requests.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.shared.is_away.store(is_away, Ordering::Relaxed);
    }

    pub(crate) fn signed(&self) -> u64 {
        self.shared.signed.load(Ordering::Relaxed)
    }
}

impl Drop for CertificateAuthorities {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn path(&self, authority: &str, generation: u32, file: &str) -> PathBuf {
        self.dir
            .join(format!("{authority}-{generation}"))
            .join(file)
    }

    fn generate(&self, authority: &'static str) {
        let known = AUTHORITIES.iter().zip(self.kinds);
        let ((_, name), kind) = known
            .into_iter()
            .find(|(one, _)| one.0 == authority)
            .unwrap();
        let mut generations = self.generations.lock().unwrap();
        let generation = &mut generations.entry(authority).or_default().newest;
        *generation += 1;
        let dir = self.path(authority, *generation, "");
        fs::create_dir_all(&dir).unwrap();
        let subject = match *generation {
            1 => format!("/CN={name}"),
            more => format!("/CN={name}-{more}"),
        };
        run(Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-days", "3650"])
            .args(kind.openssl())
            .args([
                "-subj",
                &subject,
                "-addext",
                "keyUsage=critical,digitalSignature,keyCertSign,cRLSign",
            ])
            .arg("-keyout")
            .arg(dir.join("key.pem"))
            .arg("-out")
            .arg(dir.join("cert.pem")));
        // ca(1) requires a database.
        fs::write(dir.join("index"), "").unwrap();
        fs::write(dir.join("index.attr"), "unique_subject = no\n").unwrap();
        fs::write(dir.join("ca.cnf"), CONFIGURATION).unwrap();
    }

    fn generations(&self, authority: &str) -> Generations {
        self.generations.lock().unwrap()[authority]
    }

    fn sign_with_newest(&self, authority: &'static str) {
        let mut generations = self.generations.lock().unwrap();
        let generations = generations.get_mut(authority).unwrap();
        generations.signing = generations.newest;
    }

    fn sign_all(&self) {
        let folders = self.folders.lock().unwrap().clone();
        for folder in folders {
            let outbox = fs::read_dir(folder.join("outbox"));
            for entry in outbox.into_iter().flatten().flatten() {
                let path = entry.path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "json")
                    && let Err(error) = self.sign(&folder, &path)
                {
                    eprintln!("    CA: {}: {error}", path.display());
                }
            }
        }
    }

    /// Signs one request. A request that is being replaced is skipped until the next poll.
    fn sign(&self, folder: &Path, request: &Path) -> Result<(), String> {
        let slot = request.file_stem().unwrap().to_string_lossy().into_owned();
        let answer = folder.join("inbox").join(format!("{slot}.crt"));
        let csr = request.with_extension("csr");
        let (Ok(text), true, false) = (fs::read(request), csr.exists(), answer.exists()) else {
            return Ok(());
        };
        let request: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        let authority = request["ca"].as_str().ok_or("no field ca")?;
        let generation = self
            .generations
            .lock()
            .unwrap()
            .get(authority)
            .ok_or("an unknown CA")?
            .signing;
        let wanted = request["durationSeconds"].as_u64();
        let lifetime = wanted.map_or(YEAR, |wanted| Duration::from_secs(wanted).min(YEAR));
        let now = OffsetDateTime::now_utc();
        let dates = (now - time::Duration::MINUTE, now + lifetime);
        let signed = self
            .path(authority, generation, "")
            .join(format!("signed-{slot}"));
        let extensions = self
            .path(authority, generation, "")
            .join(format!("extensions-{slot}"));
        let text = extensions_of(&request).ok_or("an unknown usage")?;
        fs::write(&extensions, text).map_err(|error| error.to_string())?;
        let certified = self.certify(
            (authority, generation),
            &csr,
            &signed,
            dates,
            Some(&extensions),
        );
        if let Err(error) = certified {
            return match csr.exists() {
                true => Err(error),
                false => Ok(()),
            };
        }
        let inbox = folder.join("inbox");
        let _ = fs::create_dir(&inbox);
        let new = inbox.join(format!(".{slot}"));
        fs::copy(&signed, &new).map_err(|error| error.to_string())?;
        fs::rename(&new, &answer).map_err(|error| error.to_string())?;
        self.signed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Has OpenSSL issue the certificate for a request: with the usages in a file, or those of the CSR.
    fn certify(
        &self,
        (authority, generation): (&str, u32),
        csr: &Path,
        certificate: &Path,
        (begin, end): (OffsetDateTime, OffsetDateTime),
        extensions: Option<&Path>,
    ) -> Result<(), String> {
        let date = |date: OffsetDateTime| -> OsString {
            let format = format_description!("[year][month][day][hour][minute][second]Z");
            date.format(&format).unwrap().into()
        };
        let mut command = Command::new("openssl");
        command
            .current_dir(self.path(authority, generation, ""))
            .args(["ca", "-batch", "-notext", "-config", "ca.cnf", "-in"])
            .arg(csr)
            .arg("-out")
            .arg(certificate)
            .arg("-startdate")
            .arg(date(begin))
            .arg("-enddate")
            .arg(date(end));
        if let Some(file) = extensions {
            command.arg("-extfile").arg(file);
        }
        let output = command.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

/// The extensions of a certificate for a request, for OpenSSL. Names are those of the CSR. The CSR of a kubelet contains no
/// usages: the request's document does.
fn extensions_of(request: &Value) -> Option<String> {
    let (mut key, mut extended) = (String::new(), Vec::new());
    for usage in request["usages"].as_array()? {
        match usage.as_str()? {
            "digital signature" => key.push_str(", digitalSignature"),
            "key encipherment" => key.push_str(", keyEncipherment"),
            "server auth" => extended.push("serverAuth"),
            "client auth" => extended.push("clientAuth"),
            _ => return None,
        }
    }
    Some(format!(
        "basicConstraints = critical, CA:FALSE\nauthorityKeyIdentifier = keyid\nkeyUsage = critical{key}\nextendedKeyUsage = {}\n",
        extended.join(", ")
    ))
}

const CONFIGURATION: &str = "\
[ca]
default_ca = this
[this]
database = index
new_certs_dir = .
certificate = cert.pem
private_key = key.pem
rand_serial = yes
default_md = sha256
policy = any
preserve = yes
copy_extensions = copy
x509_extensions = leaf
[any]
organizationName = optional
commonName = supplied
[leaf]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
";

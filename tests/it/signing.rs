//! Helpers of the signer tests: requests, authorities on disk, opened signers, judgements of their answers, OpenSSL.

use std::fs;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nodepki::config::Settings;
use nodepki::http::Files;
use nodepki::kube::names::{Authority, CertName};
use nodepki::signer::directory::{DropDir, Dropped, Meta, Shape};
use nodepki::signer::{
    Answer, Config, CurrentCertificate, FailureClass, Memory, NodeIdentity, Programs, Request,
    RequestedCertificate, Signer, SignerError, Site, Ticket,
};
use nodepki::x509::{
    CertificateAuthority, Chain, Csr, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Sans,
    Subject, Tolerance, UsageExtensions,
};
use time::OffsetDateTime;
use zeroize::Zeroizing;

pub(crate) const ODD_PLUGIN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/odd-plugin.sh");
pub(crate) const BAD_SIGNER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/bad-signer.sh");

/// First lines of every `NodePKIConfiguration`.
pub(crate) const HEAD: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";

/// Runs a future on one thread, as the agent does.
pub(crate) fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

pub(crate) fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// Returns the desired certificate of a node `cp1`, for one certificate of each sort.
pub(crate) fn wanted(name: CertName) -> RequestedCertificate {
    use ExtendedUsage::{ClientAuth, ServerAuth};
    let ips = |texts: &[&str]| -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let names = |texts: &[&str]| -> Vec<String> { texts.iter().map(ToString::to_string).collect() };
    let (common_name, organizations, sans, usages) = match name {
        CertName::Apiserver => (
            "kube-apiserver",
            names(&[]),
            Sans {
                dns: names(&["cp1", "kubernetes", "kubernetes.default"]),
                ips: ips(&["10.96.0.1", "fd00::1"]),
            },
            vec![ServerAuth],
        ),
        CertName::EtcdServer | CertName::EtcdPeer => (
            "cp1",
            names(&[]),
            Sans {
                dns: names(&["cp1", "localhost"]),
                ips: ips(&["192.0.2.11", "127.0.0.1", "::1"]),
            },
            vec![ServerAuth, ClientAuth],
        ),
        CertName::AdminConf => (
            "kubernetes-admin",
            names(&["kubeadm:cluster-admins"]),
            Sans::default(),
            vec![ClientAuth],
        ),
        CertName::KubeletConf => (
            "system:node:cp1",
            names(&["system:nodes"]),
            Sans::default(),
            vec![ClientAuth],
        ),
        CertName::KubeletServing => (
            "system:node:cp1",
            names(&["system:nodes"]),
            Sans {
                dns: names(&["cp1"]),
                ips: ips(&["192.0.2.11"]),
            },
            vec![ServerAuth],
        ),
        CertName::FrontProxyClient => (
            "front-proxy-client",
            names(&[]),
            Sans::default(),
            vec![ClientAuth],
        ),
        other => panic!("signing::wanted does not describe {other}"),
    };
    RequestedCertificate {
        name,
        authority: name.authority(),
        profile: Profile {
            subject: Subject {
                common_name: common_name.to_owned(),
                organizations,
            },
            sans,
            usages,
            key: KeyAlgorithm::EcdsaP256,
            lifetime: Duration::from_secs(365 * 24 * 60 * 60),
        },
        tolerance: Tolerance::default(),
    }
}

/// Returns a request for [`wanted`] with a new key.
pub(crate) fn request(name: CertName) -> Request {
    request_with_key(name).0
}

pub(crate) fn request_with_key(name: CertName) -> (Request, PrivateKey) {
    request_for(wanted(name), UsageExtensions::Requested)
}

/// Returns a request with a new key, and that key.
pub(crate) fn request_for(
    wanted: RequestedCertificate,
    usages: UsageExtensions,
) -> (Request, PrivateKey) {
    let key = PrivateKey::generate(wanted.profile.key).unwrap();
    let csr = Csr::create(&wanted.profile, &key, usages).unwrap();
    let identity = NodeIdentity {
        node: "cp1".to_owned(),
        cluster: "kubernetes".to_owned(),
    };
    (Request::new(wanted, csr, identity, now()), key)
}

/// Writes certificates and keys of the three authorities in kubeadm's layout.
pub(crate) fn write_authorities(dir: &Path) {
    fs::create_dir_all(dir.join("etcd")).unwrap();
    for authority in Authority::ALL {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let pem = key.to_pem();
        let made = CertificateAuthority::self_signed(
            authority.common_name(),
            key,
            now(),
            Duration::from_secs(10 * 365 * 24 * 60 * 60),
        )
        .unwrap();
        let base = dir.join(authority.base_name());
        fs::write(base.with_extension("crt"), made.bundle().to_pem()).unwrap();
        write_secret(base.with_extension("key"), pem.as_bytes());
    }
}

/// Writes a file with mode 0600.
pub(crate) fn write_secret(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Runs OpenSSL and returns its stdout; a missing OpenSSL fails the test.
pub(crate) fn openssl(args: &[&str], input: &[u8]) -> Vec<u8> {
    run_program("openssl", args, input)
}

/// Writes the input of a program and ends it. A program that needs none may have ended before.
pub(crate) fn feed(child: &mut Child, input: &[u8]) {
    if let Err(error) = child.stdin.take().unwrap().write_all(input) {
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{error}");
    }
}

/// Runs a program that must succeed, and returns its stdout.
pub(crate) fn run_program(program: &str, args: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(args)
        // `openssl x509 -req` would read all CA certificates of this machine first.
        .env("SSL_CERT_FILE", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} is needed for the tests: {error}"));
    feed(&mut child, input);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// [`DropDir`] on plain files.
pub(crate) struct PlainDir(pub(crate) PathBuf);

impl DropDir for PlainDir {
    fn make_dir(&self, name: &str, mode: u32) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(self.0.join(name))
    }

    fn write_atomic(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let target = self.0.join(name);
        let temporary = target.with_extension("tmp");
        fs::write(&temporary, bytes)?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(mode))?;
        fs::rename(temporary, target)
    }

    fn read(&self, name: &str, limit: u64) -> io::Result<Option<Dropped>> {
        let path = self.0.join(name);
        let found = match path.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        if found.is_file() {
            let file = fs::OpenOptions::new()
                .read(true)
                .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits())
                .open(&path)?;
            file.take(limit + 1).read_to_end(&mut bytes)?;
        }
        Ok(Some(Dropped {
            bytes,
            meta: Meta {
                shape: if found.is_symlink() {
                    Shape::Symlink
                } else if found.is_file() {
                    Shape::Regular
                } else {
                    Shape::Other
                },
                uid: found.uid(),
                mode: found.mode() & 0o7777,
                size: found.len(),
                links: found.nlink(),
                modified: (found.mtime(), found.mtime_nsec()),
            },
        }))
    }

    fn list(&self, name: &str, limit: usize) -> io::Result<Vec<String>> {
        match fs::read_dir(self.0.join(name)) {
            Ok(entries) => entries
                .take(limit + 1)
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Opens a signer with an empty, unshared state directory.
pub(crate) fn opened(config: &Config) -> Box<dyn Signer> {
    let memory = tempfile::tempdir().unwrap().keep();
    opened_with_memory(config, &memory)
}

/// Opens a signer whose state is kept in the directory `memory`, as in the next process of the same node.
pub(crate) fn opened_with_memory(config: &Config, memory: &Path) -> Box<dyn Signer> {
    let site = Site {
        name: "test",
        now: now(),
        clock: now,
        identity: NodeIdentity {
            node: "cp1".to_owned(),
            cluster: "kubernetes".to_owned(),
        },
        authority_key: KeyAlgorithm::EcdsaP256,
        files: Rc::new(PlainFiles),
        credentials: None,
        memory: Rc::new(PlainMemory(memory.to_owned())),
        login_memory: Rc::new(PlainMemory(memory.to_owned())),
        programs: Programs::Run,
        drop_dir: &|path, _owners| Ok(Box::new(PlainDir(path.to_owned()))),
        user: &|_| Ok(None),
    };
    config.open(&site).unwrap()
}

/// Returns a configuration whose only signer, given as `KIND: {…}`, serves all three authorities.
pub(crate) fn settings(signer: &str) -> String {
    format!(
        "{HEAD}authorities: {{ca: {{signer: s}}, etcd-ca: {{signer: s}}, front-proxy-ca: {{signer: s}}}}\n\
         signers: {{s: {{{signer}}}}}\n"
    )
}

/// Returns a configuration with one signer for etcd-ca and another for the other authorities, each given as
/// `{KIND: {…}}`.
pub(crate) fn settings_with_etcd(signer: &str, etcd: &str) -> String {
    format!(
        "{HEAD}authorities: {{ca: {{signer: s}}, front-proxy-ca: {{signer: s}}, etcd-ca: {{signer: e}}}}\n\
         signers:\n  s: {signer}\n  e: {etcd}\n"
    )
}

/// Parses a configuration that must be free of faults.
#[track_caller]
pub(crate) fn parsed(settings: &str) -> Settings {
    let (read, faults) = Settings::from_fragments(&[("test.yaml", settings)])
        .unwrap_or_else(|faults| panic!("{faults}\n{settings}"));
    assert!(faults.is_empty(), "{faults}\n{settings}");
    read
}

/// Opens the signer that a configuration assigns to an authority, as in a new process: only the files in `memory`
/// survive from one call to the next.
#[track_caller]
pub(crate) fn open(settings: &str, authority: Authority, memory: &Path) -> Rc<dyn Signer> {
    let settings = parsed(settings);
    let (_, config) = settings.signer_of(authority).unwrap();
    fs::create_dir_all(memory).unwrap();
    opened_with_memory(config, memory).into()
}

/// Returns the certificate of an answer.
#[track_caller]
pub(crate) fn issued(answer: Result<Answer, SignerError>) -> Vec<u8> {
    match answer {
        Ok(Answer::Issued(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

/// Returns ticket and note of a pending answer.
#[track_caller]
pub(crate) fn pending(answer: Result<Answer, SignerError>) -> (Ticket, String) {
    match answer {
        Ok(Answer::Pending { ticket, note, .. }) => (ticket, note),
        other => panic!("{other:?}"),
    }
}

/// Returns the reason of a denial.
#[track_caller]
pub(crate) fn denied(answer: Result<Answer, SignerError>) -> String {
    match answer {
        Ok(Answer::Denied { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Returns the answer that `recover` must have found.
#[track_caller]
pub(crate) fn recovered(
    answer: Result<Option<Answer>, SignerError>,
) -> Result<Answer, SignerError> {
    answer.map(|answer| answer.expect("recover finds nothing"))
}

/// Asserts that a call failed with this class and that its message contains each part; returns the message.
#[track_caller]
pub(crate) fn fails<T: std::fmt::Debug>(
    result: Result<T, SignerError>,
    class: FailureClass,
    parts: &[&str],
) -> String {
    let error = result.unwrap_err();
    let message = error.to_string();
    assert_eq!(error.class, class, "{message}");
    contains(&message, parts);
    message
}

/// Asserts that the preflight rejects a certificate, naming it and each part; returns the message.
#[track_caller]
pub(crate) fn rejects(
    signer: &dyn Signer,
    wanted: &RequestedCertificate,
    parts: &[&str],
) -> String {
    let message = signer.preflight(wanted).unwrap_err().to_string();
    contains(&message, &[wanted.name.as_str()]);
    contains(&message, parts);
    message
}

/// Asserts that a text contains each part.
#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// Returns what OpenSSL prints about the first certificate.
pub(crate) fn x509_text(pem: &[u8]) -> String {
    String::from_utf8(openssl(&["x509", "-noout", "-text"], pem)).unwrap()
}

/// Returns what OpenSSL prints about the first revocation list.
pub(crate) fn crl_text(pem: &[u8]) -> String {
    String::from_utf8(openssl(&["crl", "-noout", "-text"], pem)).unwrap()
}

/// Returns the certificate that a renewal is given in exchange, from a signer's answer and its key.
pub(crate) fn current(answer: &[u8], key: &PrivateKey) -> CurrentCertificate {
    let chain = Chain::from_response(answer, key.public_key()).unwrap();
    CurrentCertificate {
        chain_pem: chain.to_pem().into_bytes(),
        key_pem: Zeroizing::new(key.to_pem().as_bytes().to_vec()),
    }
}

/// [`Files`] without a root.
pub(crate) struct PlainFiles;

impl Files for PlainFiles {
    fn read(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        fs::read(path).map(Zeroizing::new)
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

/// [`Memory`] in a directory.
struct PlainMemory(PathBuf);

impl Memory for PlainMemory {
    fn recall(&self, name: &str) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
        match fs::read(self.0.join(name)) {
            Ok(bytes) => Ok(Some(Zeroizing::new(bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn keep(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        fs::write(self.0.join(name), bytes)
    }

    fn forget(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.0.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Returns every file below `dir` with its content, sorted, to compare before and after.
pub(crate) fn tree(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(tree(&path));
        } else {
            files.push((path.clone(), fs::read(&path).unwrap_or_default()));
        }
    }
    files.sort();
    files
}

//! A node below a directory of the test's own, the nodepki program on it, and authorities to sign for it.
//!
//! Owns: how the program is run, and CA pairs as kubeadm makes them but made by OpenSSL. It judges nothing.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// What `--root` names.
pub(crate) struct Machine {
    root: TempDir,
}

impl Machine {
    /// With the host name of the golden cases, and nothing else.
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/hostname"), "vm\n").unwrap();
        Self { root }
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn etc_kubernetes(&self) -> PathBuf {
        self.root().join("etc/kubernetes")
    }

    pub(crate) fn pki(&self, file: &str) -> PathBuf {
        self.etc_kubernetes().join("pki").join(file)
    }

    /// Writes a file below the root and gives its path.
    pub(crate) fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// `nodepki --root … ARGUMENTS`.
    pub(crate) fn nodepki<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Output {
        self.nodepki_with_umask("022", arguments)
    }

    pub(crate) fn nodepki_with_umask<A: AsRef<OsStr>>(
        &self,
        umask: &str,
        arguments: &[A],
    ) -> Output {
        Command::new("sh")
            .args(["-euc", r#"umask "$1"; shift; exec "$@""#, "sh", umask])
            .args([env!("CARGO_BIN_EXE_nodepki"), "--root"])
            .arg(self.root())
            .args(arguments)
            .output()
            .unwrap()
    }

    /// As `nodepki`, for a run that must end well.
    pub(crate) fn done<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Output {
        succeeded(self.nodepki(arguments))
    }
}

/// The output of a run that ended with 0; panics with what it said otherwise.
pub(crate) fn succeeded(output: Output) -> Output {
    assert!(
        output.status.success(),
        "nodepki ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        stderr(&output)
    );
    output
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory with `ca.*`, `etcd/ca.*` and `front-proxy-ca.*`.
pub(crate) struct Authorities {
    dir: TempDir,
}

/// Subjects are PrintableStrings and extensions stand in kubeadm's order.
const AUTHORITY: &str = "
[req]
prompt = no
string_mask = nombstr
distinguished_name = name
x509_extensions = extensions
[name]
CN = @
[extensions]
keyUsage = critical, digitalSignature, keyEncipherment, keyCertSign
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = hash
subjectAltName = DNS:@
";

impl Authorities {
    /// `algorithm` as `RSA-2048` or `ECDSA-P256`.
    pub(crate) fn new(algorithm: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("etcd")).unwrap();
        for (base, name) in [
            ("ca", "kubernetes"),
            ("etcd/ca", "etcd-ca"),
            ("front-proxy-ca", "front-proxy-ca"),
        ] {
            let path = |suffix: &str| format!("{}/{base}.{suffix}", dir.path().display());
            make_key(Path::new(&path("key")), algorithm);
            let config = path("cnf");
            fs::write(&config, AUTHORITY.replace('@', name)).unwrap();
            let (key, certificate) = (path("key"), path("crt"));
            openssl(&[
                "req",
                "-x509",
                "-sha256",
                "-days",
                "3650",
                "-config",
                &config,
                "-key",
                &key,
                "-out",
                &certificate,
            ]);
            fs::remove_file(config).unwrap();
        }
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// As the argument of `--signer`.
    pub(crate) fn signer(&self) -> String {
        format!("local:{}", self.dir().display())
    }
}

/// A private key as PEM, made by OpenSSL.
pub(crate) fn make_key(path: &Path, algorithm: &str) {
    let parameter = match algorithm.split_once('-') {
        Some(("RSA", bits)) => format!("rsa_keygen_bits:{bits}"),
        Some(("ECDSA", curve)) => format!("ec_paramgen_curve:{}", curve.replace('P', "P-")),
        _ => panic!("{algorithm}"),
    };
    let kind = if algorithm.starts_with("RSA") {
        "RSA"
    } else {
        "EC"
    };
    let path = path.to_str().unwrap();
    openssl(&[
        "genpkey",
        "-algorithm",
        kind,
        "-pkeyopt",
        &parameter,
        "-out",
        path,
    ]);
}

/// Runs OpenSSL, which must succeed.
pub(crate) fn openssl(arguments: &[&str]) -> String {
    let output = Command::new("openssl")
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("cannot run openssl ({error}): apt-get install openssl"));
    assert!(
        output.status.success(),
        "openssl {arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

//! Runs the real kubeadm in a temporary directory.
//!
//! This module finds the binary and creates the private mount, network and UTS namespaces in which it runs. They are
//! needed because `init phase certs` of an external CA always reads the kubeconfigs of `/etc/kubernetes`, whatever its
//! flags are; because a node name defaults to the host name; and because a lookup of the newest version must fail
//! immediately. In the namespaces `/etc` contains the temporary directory as `/etc/kubernetes` and no other file of
//! the machine. A new command is one more function that calls `Node::run`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The node as kubeadm sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    /// Mounted as `/etc/kubernetes`, and kept afterwards.
    pub(crate) etc_kubernetes: &'a Path,
    pub(crate) host_name: &'a str,
    /// Octal, as in `022`.
    pub(crate) umask: &'a str,
}

impl<'a> Node<'a> {
    /// Returns the node of the golden cases: host name `vm`, default-route address 192.0.2.2.
    pub(crate) fn new(etc_kubernetes: &'a Path) -> Self {
        Self {
            etc_kubernetes,
            host_name: "vm",
            umask: "022",
        }
    }

    /// Runs one kubeadm command, with the text `config` passed as `--config`.
    pub(crate) fn run(self, config: &str, arguments: &[&str]) -> Output {
        let scratch = tempfile::tempdir().unwrap();
        let config_file = scratch.path().join("config.yaml");
        fs::write(&config_file, config).unwrap();
        let mut unshare = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            unshare.arg("--map-root-user");
        }
        unshare
            .args([
                "--mount",
                "--net",
                "--uts",
                "--propagation",
                "private",
                "--",
                "bash",
                "-euc",
                ENTER,
                "bash",
            ])
            .args([self.host_name, self.umask].map(OsStr::new))
            .args([self.etc_kubernetes, &binary()])
            .args(arguments)
            .arg("--config")
            .arg(&config_file);
        unshare.output().unwrap_or_else(|error| {
            panic!("cannot run unshare ({error}): apt-get install util-linux")
        })
    }
}

/// The script that runs inside the new namespaces. All routes end at `lo`, where the name server is too, so kubeadm
/// finds an address and a name lookup is refused immediately.
const ENTER: &str = r#"
host_name=$1 umask=$2 etc_kubernetes=$3 kubeadm=$4
shift 4
hostname "$host_name"
ip link set lo up
ip address add 192.0.2.2/32 dev lo
ip route add default dev lo
exec 3<"$etc_kubernetes"
mount -t tmpfs tmpfs /etc
mkdir /etc/kubernetes
mount --bind /proc/self/fd/3 /etc/kubernetes
exec 3<&-
echo 'nameserver 127.0.0.1' >/etc/resolv.conf
umask "$umask"
exec "$kubeadm" "$@"
"#;

/// `init phase certs all`, then `init phase kubeconfig all`.
pub(crate) fn init(node: Node, config: &str) -> [Output; 2] {
    [
        node.run(config, &["init", "phase", "certs", "all"]),
        node.run(config, &["init", "phase", "kubeconfig", "all"]),
    ]
}

/// `certs generate-csr` for `/etc/kubernetes`.
pub(crate) fn generate_csr(node: Node, config: &str) -> Output {
    let to = [
        "--cert-dir",
        "/etc/kubernetes/pki",
        "--kubeconfig-dir",
        "/etc/kubernetes",
    ];
    node.run(config, &[&["certs", "generate-csr"], &to[..]].concat())
}

/// `certs check-expiration` as a table (`text`) or as `json`.
pub(crate) fn check_expiration(node: Node, config: &str, format: &str) -> Output {
    node.run(config, &["certs", "check-expiration", "--output", format])
}

/// Asserts that `kubeadm init` would accept this directory, by running `init` on a copy of it.
///
/// Panics with kubeadm's output if it refuses.
pub(crate) fn accepts_external_ca(etc_kubernetes: &Path, config: &str) -> [Output; 2] {
    let copy = tempfile::tempdir().unwrap();
    copy_tree(etc_kubernetes, copy.path());
    let outputs = init(Node::new(copy.path()), config);
    for output in &outputs {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "kubeadm refuses {}:\n{said}",
            etc_kubernetes.display()
        );
    }
    outputs
}

/// Copies a tree with its modes.
pub(crate) fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg("--")
        .arg(from.join("."))
        .arg(to)
        .status()
        .unwrap();
    assert!(
        status.success(),
        "cp -a {} {}",
        from.display(),
        to.display()
    );
}

/// Returns the path of the real kubeadm.
///
/// # Panics
/// If it is missing.
pub(crate) fn binary() -> PathBuf {
    let path = std::env::var_os("NODEPKI_TEST_KUBEADM").map_or_else(
        || {
            let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
                || Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"),
                PathBuf::from,
            );
            cache.join("nodepki-tests/bin/kubeadm")
        },
        PathBuf::from,
    );
    // A link, so /proc does not show a file that is being rebuilt.
    fs::canonicalize(&path).unwrap_or_else(|error| {
        panic!(
            "{} is missing: run `tests/run unit`, which builds it ({error})",
            path.display()
        )
    })
}

#[test]
fn accepts_external_ca_only_when_complete() {
    const CONFIG: &str = include_str!("../golden/init/v1beta4-alg-ECDSA-P256/config.yaml");
    let made = tempfile::tempdir().unwrap();
    for output in init(Node::new(made.path()), CONFIG) {
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    for key in ["pki/ca.key", "pki/front-proxy-ca.key", "pki/etcd/ca.key"] {
        fs::remove_file(made.path().join(key)).unwrap();
    }
    let [certs, _] = accepts_external_ca(made.path(), CONFIG);
    assert!(
        String::from_utf8_lossy(&certs.stdout)
            .contains("Using existing ca keyless certificate authority")
    );

    let table = check_expiration(Node::new(made.path()), CONFIG, "text");
    assert!(
        String::from_utf8_lossy(&table.stdout).starts_with("CERTIFICATE "),
        "{table:?}"
    );

    fs::remove_file(made.path().join("scheduler.conf")).unwrap();
    let [certs, _] = init(Node::new(made.path()), CONFIG);
    assert_eq!(certs.status.code(), Some(1));
    let said = String::from_utf8_lossy(&certs.stderr);
    assert!(
        said.contains("the scheduler.conf file does not exists"),
        "{said}"
    );
}

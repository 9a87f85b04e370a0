//! The fixture of tests that run the whole program: a node, its authorities and a signer, all in one directory.
//!
//! [`Node`] is the fixture, [`Ran`] the result of a run of the binary, and [`Snapshot`] proves that no file changed.
//! [`Node::signer_does`] makes the plug-in signer fail.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nodepki::kube::kubeconfig::Kubeconfig;
use nodepki::kube::names::{Authority, CertName};
use nodepki::store::NodeRoot;
use nodepki::text::hex;
use nodepki::x509::{CertificateAuthority, Chain, Csr, KeyAlgorithm, PrivateKey};
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::signing::{openssl, run_program, write_authorities, write_secret};

pub(crate) const NODEPKI: &str = env!("CARGO_BIN_EXE_nodepki");
pub(crate) const SIGNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/signer.sh");

/// A kubeadm configuration with the ClusterConfiguration of these tests.
macro_rules! kubeadm_configuration {
    ($document:literal) => {
        concat!(
            $document,
            "\
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
encryptionAlgorithm: ECDSA-P256
controlPlaneEndpoint: api.example.com:6443
"
        )
    };
}

/// kubeadm configuration of the first node of a cluster.
pub(crate) const INIT: &str = kubeadm_configuration!(
    "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
nodeRegistration: {name: cp1}
"
);

/// kubeadm configuration of a control-plane node that joins.
pub(crate) const JOIN: &str = kubeadm_configuration!(
    "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {bootstrapToken: {token: abcdef.0123456789abcdef, apiServerEndpoint: 'api.example.com:6443', unsafeSkipCAVerification: true}}
nodeRegistration: {name: cp2}
controlPlane: {localAPIEndpoint: {advertiseAddress: 192.0.2.12}}
"
);

/// A node in a temporary directory with these entries: `root` is the node's root, `ca` the authorities in kubeadm's
/// layout, `kubeadm.yaml` the kubeadm configuration, `config.yaml` the settings, with the plug-in signer
/// `tests/fixtures/signer.sh`, and `log` the calls of that signer.
pub(crate) struct Node {
    dir: TempDir,
}

impl Node {
    /// Creates a first node that has the authorities' certificates and no other file.
    pub(crate) fn new() -> Self {
        Self::of(INIT)
    }

    pub(crate) fn of(kubeadm: &str) -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            TempDir::new_in(memory)
        } else {
            TempDir::new()
        };
        Self::below(dir.unwrap(), kubeadm)
    }

    /// As [`Node::new`], on a file system that supports file attributes.
    pub(crate) fn on_disk() -> Self {
        Self::below(TempDir::new().unwrap(), INIT)
    }

    /// As [`Node::of`], in this directory.
    pub(crate) fn below(dir: TempDir, kubeadm: &str) -> Self {
        let node = Node { dir };
        write_authorities(&node.ca());
        for authority in Authority::ALL {
            let file = format!("{}.crt", authority.base_name());
            let pem = fs::read(node.ca().join(&file)).unwrap();
            node.write(format!("/etc/kubernetes/pki/{file}"), &pem);
        }
        fs::create_dir(node.outside("how")).unwrap();
        node.configure(kubeadm);
        node.settings("");
        node
    }

    /// Returns the node in a directory with the entries of [`Node`].
    pub(crate) fn in_directory(dir: TempDir) -> Self {
        Node { dir }
    }

    /// Copies the whole directory; the settings of the copy still use the signer of the original.
    #[cfg(feature = "failpoints")]
    pub(crate) fn copied(&self) -> Self {
        let dir = TempDir::new_in(self.dir.path().parent().unwrap()).unwrap();
        crate::kubeadm::copy_tree(self.dir.path(), dir.path());
        Node { dir }
    }

    pub(crate) fn configure(&self, kubeadm: &str) {
        write_secret(self.outside("kubeadm.yaml"), kubeadm);
    }

    /// Writes the settings, followed by `more`.
    pub(crate) fn settings(&self, more: &str) {
        let settings = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             authorities: {{ca: {{signer: s}}, etcd-ca: {{signer: s}}, front-proxy-ca: {{signer: s}}}}\n\
             signers: {{s: {{exec: {{command: /bin/bash, args: [{SIGNER}, {}]}}}}}}\n{more}",
            self.dir.path().display()
        );
        self.write_settings(&settings);
    }

    /// Writes the whole text of the settings.
    pub(crate) fn write_settings(&self, text: &str) {
        fs::write(self.outside("config.yaml"), text).unwrap();
    }

    /// Configures another key algorithm, which takes effect at the next run.
    pub(crate) fn change_keys(&self, algorithm: &str) {
        self.configure(&INIT.replace("ECDSA-P256", algorithm));
        let text = fs::read_to_string(self.outside("config.yaml")).unwrap();
        self.write_settings(&format!("{text}\nrotation: {{onPolicyChange: now}}\n"));
    }

    /// As [`Node::change_keys`] with ECDSA-P384, for commands with `--signer` in place of `--config`.
    pub(crate) fn change_keys_of_local_signer(&self) {
        self.configure(&INIT.replace("ECDSA-P256", "ECDSA-P384"));
        self.write(
            "/etc/nodepki/config.yaml",
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\nrotation: {onPolicyChange: now}\n",
        );
    }

    /// Replaces the first occurrence of `from` in the settings.
    #[track_caller]
    pub(crate) fn edit_settings(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.outside("config.yaml")).unwrap();
        assert!(text.contains(from), "{text}");
        self.write_settings(&text.replacen(from, to, 1));
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.outside("root")
    }

    /// Returns a path in the directory that contains the root.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.outside("ca")
    }

    /// Replaces a certificate authority, both the signer's and the node's, by a new one that starts at `now`.
    pub(crate) fn replace_authority(
        &self,
        authority: Authority,
        now: OffsetDateTime,
        lifetime: Duration,
    ) {
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        let pem = key.to_pem();
        let made =
            CertificateAuthority::self_signed(authority.common_name(), key, now, lifetime).unwrap();
        let base = self.ca().join(authority.base_name());
        write_secret(base.with_extension("key"), pem.as_bytes());
        fs::write(base.with_extension("crt"), made.bundle().to_pem()).unwrap();
        self.write(
            format!("/etc/kubernetes/pki/{}.crt", authority.base_name()),
            made.bundle().to_pem(),
        );
    }

    /// Pins the signer's present authority in the settings.
    pub(crate) fn pin_authority(&self, authority: Authority) {
        let pin = hex(&self.authority(authority).public_key().sha256());
        let unpinned = format!("{authority}: {{signer: s}}");
        let pinned = format!("{authority}: {{signer: s, trust: {{sha256: [\"{pin}\"]}}}}");
        self.edit_settings(&unpinned, &pinned);
    }

    pub(crate) fn authority(&self, authority: Authority) -> CertificateAuthority {
        let base = self.ca().join(authority.base_name());
        let read = |extension| fs::read(base.with_extension(extension)).unwrap();
        CertificateAuthority::from_pem(&read("crt"), &read("key")).unwrap()
    }

    /// Returns the path on this machine of a path on the node.
    pub(crate) fn path(&self, on_node: impl AsRef<Path>) -> PathBuf {
        self.root()
            .join(on_node.as_ref().strip_prefix("/").unwrap())
    }

    /// Replaces `@` by the node's root directory on this machine, as in `@/etc/kubernetes`.
    pub(crate) fn here(&self, words: &str) -> String {
        words.replace("@/", &format!("{}/", self.root().display()))
    }

    pub(crate) fn write(&self, on_node: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        let path = self.path(on_node);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// As [`Node::write`], readable by its owner only.
    pub(crate) fn write_secret(&self, on_node: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        self.write(&on_node, bytes);
        self.set_mode(on_node, 0o600);
    }

    pub(crate) fn read(&self, on_node: impl AsRef<Path>) -> String {
        fs::read_to_string(self.path(on_node)).unwrap()
    }

    pub(crate) fn mode(&self, on_node: impl AsRef<Path>) -> u32 {
        fs::metadata(self.path(on_node)).unwrap().mode() & 0o7777
    }

    pub(crate) fn set_mode(&self, on_node: impl AsRef<Path>, mode: u32) {
        fs::set_permissions(self.path(on_node), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn remove(&self, on_node: impl AsRef<Path>) {
        fs::remove_file(self.path(on_node)).unwrap();
    }

    /// Returns the command `nodepki --root ROOT` with further arguments.
    /// Returns a command for the root. An argument that begins with `@/` is a path below it.
    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(NODEPKI);
        command
            .arg("--root")
            .arg(self.root())
            .args(arguments.into_iter().map(|one| self.argument(one)))
            .env_remove("NODEPKI_FAILPOINT")
            .env_remove("JOURNAL_STREAM");
        command
    }

    fn argument(&self, given: impl AsRef<OsStr>) -> OsString {
        let given = given.as_ref();
        match given.to_str().and_then(|text| text.strip_prefix("@/")) {
            Some(on_node) => self.root().join(on_node).into(),
            None => given.to_owned(),
        }
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// Returns a command with the settings and the kubeadm configuration.
    pub(crate) fn configured<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = self.command(arguments);
        command
            .arg("--config")
            .arg(self.outside("config.yaml"))
            .arg("--kubeadm-config")
            .arg(self.outside("kubeadm.yaml"));
        command
    }

    /// `csr export` or `csr import` of a bundle, with the kubeadm configuration and without settings.
    pub(crate) fn csr(&self, verb: &str, bundle: &Path) -> Ran {
        Ran::of(
            self.command(["csr", verb])
                .arg(bundle)
                .arg("--kubeadm-config")
                .arg(self.outside("kubeadm.yaml")),
        )
    }

    /// Signs a bundle of `csr export` with the script in it.
    pub(crate) fn sign_bundle(&self, bundle: &Path) {
        let script = format!(
            "set -e; cd {}; CA={}; . ./README",
            bundle.display(),
            self.ca().display()
        );
        run_program("/bin/bash", &["-c", &script], b"");
    }

    /// Runs `bootstrap` with the signer of kind `directory`, without waiting for certificates.
    pub(crate) fn bootstrap_by_drop(&self, drop: &Path) -> Ran {
        Ran::of(
            self.command(["bootstrap", "--wait", "0s", "--clock-wait", "0s"])
                .arg("--kubeadm-config")
                .arg(self.outside("kubeadm.yaml"))
                .arg("--signer")
                .arg(format!("directory:{}", drop.display())),
        )
    }

    /// Returns a command with the kubeadm configuration and the local signer.
    pub(crate) fn with_local(&self, before: &[&str], after: &[&str]) -> Command {
        let mut command = self.command(before);
        command
            .arg("--kubeadm-config")
            .arg(self.outside("kubeadm.yaml"))
            .arg("--signer")
            .arg(format!("local:{}", self.ca().display()))
            .args(after);
        command
    }

    /// `bootstrap` with the local signer.
    pub(crate) fn bootstrap(&self) -> Ran {
        Ran::of(&mut self.with_local(&["bootstrap", "--clock-wait", "0s"], &[]))
    }

    /// `plan` with the local signer.
    pub(crate) fn plan(&self) -> Ran {
        Ran::of(&mut self.with_local(&["plan"], &[]))
    }

    /// `bootstrap` with the plug-in signer.
    pub(crate) fn ask_command(&self, wait: &str) -> Command {
        self.configured(["bootstrap", "--wait", wait, "--clock-wait", "0s"])
    }

    /// Runs [`Node::ask_command`] without waiting for pending certificates.
    pub(crate) fn ask(&self) -> Ran {
        Ran::of(&mut self.ask_command("0s"))
    }

    /// Creates a first node with the service-account pair, which only `bootstrap` generates.
    pub(crate) fn with_service_account() -> Self {
        let node = Self::new();
        let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
        node.write("/etc/kubernetes/pki/sa.key", key.to_pem().as_bytes());
        node.write("/etc/kubernetes/pki/sa.pub", key.public_key().to_pem());
        node
    }

    /// Creates a first node that `bootstrap` has completed.
    pub(crate) fn bootstrapped() -> Self {
        let node = Self::new();
        node.bootstrap().done();
        node
    }

    /// Sets the behaviour of the plug-in signer for a slot, or for `all`: see `tests/fixtures/signer.sh`. The default is
    /// `sign`.
    pub(crate) fn signer_does(&self, slot: &str, how: &str) {
        fs::write(self.outside("how").join(slot), how).unwrap();
    }

    /// Restores the default behaviour of the plug-in signer.
    pub(crate) fn signer_behaves(&self) {
        fs::remove_dir_all(self.outside("how")).unwrap();
        fs::create_dir(self.outside("how")).unwrap();
    }

    /// Restores the plug-in signer, and asserts that the next run completes the node.
    #[track_caller]
    pub(crate) fn assert_completes(&self) {
        self.signer_behaves();
        self.ask().done();
        self.assert_sound(&EVERYTHING);
    }

    /// Starts a run that does not end, since the plug-in signer hangs on `slot`.
    pub(crate) fn start_hanging_run(&self, slot: &str) -> Child {
        self.signer_does(slot, "hang");
        let mut run = self.ask_command("60s");
        run.stdout(Stdio::null()).stderr(Stdio::null());
        run.spawn().unwrap()
    }

    /// Returns the calls of the plug-in signer, in order: verb, slot, request.
    pub(crate) fn exchanges(&self) -> Vec<(String, String, String)> {
        let log = fs::read_to_string(self.outside("log")).unwrap_or_default();
        let word = |line: &str, at: usize| line.split(' ').nth(at).unwrap_or_default().to_owned();
        log.lines()
            .map(|line| (word(line, 0), word(line, 1), word(line, 2)))
            .collect()
    }

    /// Number of `sign` calls for each slot.
    pub(crate) fn submissions(&self) -> BTreeMap<String, usize> {
        let mut count = BTreeMap::new();
        for (verb, slot, _) in self.exchanges() {
            if verb == "sign" {
                *count.entry(slot).or_default() += 1;
            }
        }
        count
    }

    /// SHA-256 digests of the distinct public keys that the signer received, by slot.
    pub(crate) fn keys_seen(&self) -> BTreeMap<String, Vec<String>> {
        let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (_, slot, id) in self.exchanges() {
            let Ok(pem) = fs::read(self.outside("csr").join(format!("{slot}.{id}"))) else {
                continue;
            };
            let key = hex(&Csr::from_pem(&pem).unwrap().public_key().sha256());
            let seen = keys.entry(slot).or_default();
            if !seen.contains(&key) {
                seen.push(key);
            }
        }
        keys
    }

    /// Returns the chain and key of a certificate, from its pair or its kubeconfig; `None` if a file is missing.
    pub(crate) fn leaf(&self, name: CertName) -> Option<(Chain, PrivateKey)> {
        let (chain, key) = if name.is_kubeconfig() {
            let text = fs::read_to_string(self.path(format!("/etc/kubernetes/{name}"))).ok()?;
            let current = Kubeconfig::parse(&text).unwrap().current().unwrap();
            match (current.certificate_file, current.key_file) {
                (Some(certificate), Some(key)) => (
                    read_in_root(&self.root(), &certificate)?,
                    read_in_root(&self.root(), &key)?,
                ),
                _ => (current.certificate?, current.key?.to_vec()),
            }
        } else {
            let base = self.path("/etc/kubernetes/pki").join(name.base_name());
            (
                fs::read(base.with_extension("crt")).ok()?,
                fs::read(base.with_extension("key")).ok()?,
            )
        };
        Some((
            Chain::from_pem(&chain).unwrap(),
            PrivateKey::from_pem(&key).unwrap(),
        ))
    }

    /// Returns the subject of an installed certificate.
    pub(crate) fn subject(&self, name: CertName) -> String {
        self.leaf(name).unwrap().0.leaf().subject().to_string()
    }

    /// SHA-256 digest of the installed public key.
    pub(crate) fn key_in_place(&self, name: CertName) -> String {
        hex(&self.leaf(name).unwrap().1.public_key().sha256())
    }

    /// SHA-256 digests of all installed public keys of a first node.
    pub(crate) fn keys_in_place(&self) -> BTreeMap<CertName, String> {
        let names = EVERYTHING.into_iter();
        names.map(|name| (name, self.key_in_place(name))).collect()
    }

    /// SHA-256 digests of the public keys of pending requests.
    #[cfg(feature = "failpoints")]
    pub(crate) fn pending_keys(&self) -> BTreeMap<CertName, String> {
        let key = |name: &CertName| {
            let path = self.path(format!("/var/lib/nodepki/pending/{name}/key.pem"));
            let key = PrivateKey::from_pem(&fs::read(path).ok()?).unwrap();
            Some((*name, hex(&key.public_key().sha256())))
        };
        CertName::KUBEADM.iter().filter_map(key).collect()
    }

    /// Asserts that each certificate matches its key and that OpenSSL verifies it under the node's authority.
    pub(crate) fn assert_sound(&self, names: &[CertName]) {
        let scratch = tempfile::tempdir().unwrap();
        let mut by_authority: BTreeMap<Authority, Vec<String>> = BTreeMap::new();
        for name in names {
            let (chain, key) = self
                .leaf(*name)
                .unwrap_or_else(|| panic!("{name} is missing"));
            assert_eq!(
                chain.leaf().public_key(),
                key.public_key(),
                "{name}: certificate and key differ"
            );
            let file = scratch.path().join(name.as_str());
            fs::write(&file, chain.to_pem()).unwrap();
            if !chain.intermediates().is_empty() {
                let base = name.authority().base_name();
                let ca = self.path(format!("/etc/kubernetes/pki/{base}.crt"));
                let (ca, file) = (ca.to_str().unwrap(), file.to_str().unwrap());
                openssl(&["verify", "-CAfile", ca, "-untrusted", file, file], b"");
                continue;
            }
            by_authority
                .entry(name.authority())
                .or_default()
                .push(file.to_str().unwrap().to_owned());
        }
        for (authority, files) in by_authority {
            let ca = self.path(format!("/etc/kubernetes/pki/{}.crt", authority.base_name()));
            let mut arguments = vec!["verify", "-CAfile", ca.to_str().unwrap()];
            arguments.extend(files.iter().map(String::as_str));
            openssl(&arguments, b"");
        }
    }

    /// Asserts that a bootstrap succeeds and changes nothing below `/etc`, not even a time.
    #[track_caller]
    pub(crate) fn assert_bootstrap_changes_nothing(&self) {
        let before = self.etc();
        self.bootstrap().done();
        before.unchanged(&self.etc());
    }

    /// Returns all files of the node.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.root())
    }

    /// Returns the files below `/etc` of the node.
    pub(crate) fn etc(&self) -> Snapshot {
        Snapshot::of(&self.path("/etc"))
    }
}

/// Runs the command in a new mount namespace, after a shell has run `script` there with the node's root as `$1`.
pub(crate) fn with_mounts(node: &Node, inner: &Command, script: &str) -> Ran {
    Ran::of(&mut in_namespaces(&["--mount"], node, inner, script))
}

/// Returns a command that runs the program of `inner` with the node's root as `/`, as on a node that has booted, whose
/// interface has the address in [`INIT`]. The programs of this machine, the sources and the directories of the tests are
/// at their paths there. `first` is the beginning of a script that runs before it.
pub(crate) fn booted(node: &Node, inner: &Command, first: &str) -> Command {
    const MACHINE: &str = r#"
ip link set lo up
ip tuntap add eth0 mode tap
ip address add 192.0.2.11/24 dev eth0
ip link set eth0 up
cd "$1"
mkdir -p etc
mkdir -p -m 1777 tmp
cp /etc/passwd /etc/group etc
for d in bin sbin lib lib64; do if [ -L "/$d" ]; then cp -P "/$d" .; fi; done
for d in /bin /sbin /lib /lib64 /usr /dev /proc /etc/alternatives /etc/ssl "$BINARIES" "$SOURCES" "$FIXTURES"; do
  if [ -d "$d" ] && ! [ -L "$d" ]; then mkdir -p ".$d"; mount --rbind "$d" ".$d"; fi
done
"#;
    let variables = format!(
        "BINARIES='{}' SOURCES='{}' FIXTURES='{}'",
        Path::new(NODEPKI).parent().unwrap().display(),
        env!("CARGO_MANIFEST_DIR"),
        node.root().ancestors().nth(2).unwrap().display(),
    );
    let mut command = Command::new("chroot");
    command.arg(node.root()).arg(inner.get_program());
    let arguments: Vec<&OsStr> = inner.get_args().collect();
    command.args(match arguments.as_slice() {
        [option, root, rest @ ..] if *option == "--root" && *root == node.root() => rest,
        all => all,
    });
    let script = format!("{first}\n{variables}{MACHINE}");
    in_namespaces(&["--mount", "--net"], node, &command, &script)
}

fn in_namespaces(namespaces: &[&str], node: &Node, inner: &Command, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(namespaces);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args(["--propagation", "private", "sh", "-euc"])
        .arg(format!("{script}\nshift\nexec \"$@\""))
        .arg("sh")
        .arg(node.root())
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_remove("JOURNAL_STREAM");
    command
}

/// Copies certificate and key of the authorities from one directory in kubeadm's layout to another one.
pub(crate) fn copy_authorities(
    authorities: impl IntoIterator<Item = Authority>,
    from: &Path,
    to: &Path,
) {
    for authority in authorities {
        for extension in ["crt", "key"] {
            let file = format!("{}.{extension}", authority.base_name());
            fs::create_dir_all(to.join(&file).parent().unwrap()).unwrap();
            fs::copy(from.join(&file), to.join(&file)).unwrap();
        }
    }
}

/// The result of a finished run.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// Standard output followed by standard error.
    pub(crate) fn said(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    #[track_caller]
    pub(crate) fn ended(&self, code: i32) -> &Self {
        assert_eq!(
            self.code,
            Some(code),
            "signal {:?}\n{}",
            self.signal,
            self.said()
        );
        self
    }

    #[track_caller]
    pub(crate) fn done(&self) -> &Self {
        self.ended(0)
    }

    /// Asserts success, or a temporary failure that another run may resolve.
    #[track_caller]
    pub(crate) fn done_or_temporary(&self) -> &Self {
        assert!(matches!(self.code, Some(0 | 75)), "{}", self.said());
        self
    }

    /// Returns whether the output contains a text, in which a suggested command may be without the options that name the
    /// node.
    pub(crate) fn has(&self, words: &str) -> bool {
        let said = self.said();
        said.contains(words) || without_node_options(&said).contains(words)
    }

    #[track_caller]
    pub(crate) fn says(&self, words: &str) -> &Self {
        assert!(self.has(words), "{words:?} is missing in:\n{}", self.said());
        self
    }

    #[track_caller]
    pub(crate) fn says_not(&self, words: &str) -> &Self {
        assert!(
            !self.said().contains(words),
            "{words:?} is in:\n{}",
            self.said()
        );
        self
    }

    /// Returns the row of a certificate in the table with the indented lines that follow it, the reasons that it shares
    /// with other rows, and the cause in the closing line if the row is unfinished.
    #[track_caller]
    pub(crate) fn row(&self, name: &str) -> String {
        let lines: Vec<&str> = self.stdout.lines().collect();
        let is_below = |line: &&&str| line.starts_with("    ");
        let at = lines
            .iter()
            .position(|line| line.split_whitespace().next() == Some(name))
            .unwrap_or_else(|| panic!("no row {name} in:\n{}", self.said()));
        let mut row = vec![lines[at]];
        row.extend(lines[at + 1..].iter().take_while(is_below));
        for (heading, names) in lines.iter().zip(&lines[1..]) {
            let mut names = names
                .strip_prefix("    ")
                .into_iter()
                .flat_map(|names| names.split(", "));
            if heading.contains(": ") && names.any(|one| one == name) {
                row.push(heading);
            }
        }
        let state = lines[at].split_whitespace().nth(1).unwrap_or_default();
        let problems = ["refused", "denied", "failed", "pending", "rolled", "waits"];
        if let Some((counts, cause)) = self.closing().split_once(": ") {
            let has_problem = problems.iter().any(|problem| counts.contains(problem));
            // The cause of rows that are held back is stated only if there is no other problem.
            if problems.contains(&state) || state == "held" && !has_problem {
                row.push(cause);
            }
        }
        row.join("\n")
    }

    /// Returns the last line on stdout.
    pub(crate) fn closing(&self) -> &str {
        self.stdout.lines().last().unwrap_or_default()
    }

    /// Asserts that a certificate's row of the table contains `words`.
    #[track_caller]
    pub(crate) fn row_says(&self, name: &str, words: &str) -> &Self {
        let row = self.row(name);
        assert!(
            row.contains(words) || without_node_options(&row).contains(words),
            "{words:?} is missing in the row\n{row}\nof:\n{}",
            self.said()
        );
        self
    }
}

/// Removes `--root DIR` and `--config FILE` between the program and its command, and the options for other sources.
fn without_node_options(text: &str) -> String {
    let without = |text: String, (option, kept): (&str, &str)| {
        let mut parts = text.split(option);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            let end = part.find([' ', '`', ',', ';', ')', '\n']);
            format!("{text}{kept}{}", &part[end.unwrap_or(part.len())..])
        })
    };
    [
        ("nodepki --root ", "nodepki"),
        ("nodepki --config ", "nodepki"),
        (" --kubeadm-config ", ""),
        (" --signer ", ""),
    ]
    .into_iter()
    .fold(text.to_owned(), without)
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// The state of every file and directory of a tree: kind, owner, mode, modification time, inode and content.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<PathBuf, FileState>);

#[derive(Debug, PartialEq, Eq)]
struct FileState {
    mode: u32,
    owner: (u32, u32),
    inode: u64,
    modified: (i64, i64),
    content: Vec<u8>,
}

impl Snapshot {
    pub(crate) fn of(dir: &Path) -> Self {
        let mut seen = BTreeMap::new();
        collect(dir, &mut seen);
        Snapshot(seen)
    }

    /// Content, kind and mode only: the parts that a rename onto the same bytes preserves.
    pub(crate) fn content(&self) -> Vec<(&Path, u32, &[u8])> {
        self.0
            .iter()
            .map(|(path, seen)| (path.as_path(), seen.mode, &*seen.content))
            .collect()
    }

    #[track_caller]
    pub(crate) fn unchanged(&self, now: &Snapshot) {
        for (path, seen) in &self.0 {
            let there = now.0.get(path);
            assert!(there.is_some(), "{} is gone", path.display());
            assert!(
                there == Some(seen),
                "{} changed:\n{seen:?}\n{there:?}",
                path.display()
            );
        }
        for path in now.0.keys() {
            assert!(self.0.contains_key(path), "{} is new", path.display());
        }
    }
}

fn collect(path: &Path, seen: &mut BTreeMap<PathBuf, FileState>) {
    let Ok(found) = path.symlink_metadata() else {
        return;
    };
    let content = if found.is_file() {
        fs::read(path).unwrap_or_default()
    } else if found.is_symlink() {
        fs::read_link(path)
            .unwrap()
            .into_os_string()
            .into_encoded_bytes()
    } else {
        Vec::new()
    };
    let entry = FileState {
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        inode: found.ino(),
        modified: (found.mtime(), found.mtime_nsec()),
        content,
    };
    seen.insert(path.to_owned(), entry);
    if found.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), seen);
        }
    }
}

/// Reads a file of the node; a symbolic link as the last component is resolved below the root.
fn read_in_root(root: &Path, on_node: &str) -> Option<Vec<u8>> {
    Some(
        NodeRoot::open(root)
            .unwrap()
            .read(on_node)
            .unwrap()?
            .bytes
            .to_vec(),
    )
}

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The PKI files that all control-plane nodes share, except the CA keys.
pub(crate) const SHARED_FILES: [&str; 5] = [
    "ca.crt",
    "front-proxy-ca.crt",
    "etcd/ca.crt",
    "sa.key",
    "sa.pub",
];

/// Every certificate of a first stacked control-plane node.
pub(crate) const EVERYTHING: [CertName; 12] = CertName::KUBEADM;

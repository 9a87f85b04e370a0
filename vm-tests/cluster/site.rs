//! Inputs shared by all clusters of a run: the system of the nodes with each version's programs, and the container images.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use tempfile::TempDir;

use super::network::{self, ENDPOINT, OPENBAO, OPENBAO_IPV6};
use crate::system::{named, run};

/// The version in `tests/servers/kubernetes`, whose program names have no suffix.
pub(crate) const CURRENT: &str = "v1.37.2";
/// The previous minor release.
pub(crate) const FORMER: &str = "v1.36.2";
/// A version of the oldest release with which nodepki is tested.
pub(crate) const OLDEST: &str = "v1.31.4";
/// The sources of the default version with the number of the next patch release.
pub(crate) const NEXT: &str = "v1.37.3";
/// Image of the workloads: busybox and kubectl.
pub(crate) const WORK_IMAGE: &str = "cluster.test/work:1";
/// Image of an extension API server and its etcd.
pub(crate) const EXTENSION_IMAGE: &str = "cluster.test/extension:1";

pub(crate) struct Site {
    dir: TempDir,
    image: PathBuf,
    node: PathBuf,
    package: PathBuf,
    servers: PathBuf,
    made: Mutex<BTreeMap<String, PathBuf>>,
}

impl Site {
    /// # Panics
    /// If an input is missing; the message names the command that builds it.
    pub(crate) fn open() -> Self {
        let dir = TempDir::with_prefix_in("cluster-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        network::make();
        let site = Site {
            dir,
            image: named("NODEPKI_VM_IMAGE"),
            node: named("NODEPKI_CLUSTER_NODE"),
            package: named("NODEPKI_VM_PACKAGE"),
            servers: named("NODEPKI_TEST_SERVERS"),
            made: Mutex::default(),
        };
        fs::create_dir(site.images()).unwrap();
        site
    }

    /// Returns the path of a Kubernetes program in a version such as `v1.35.1`.
    pub(crate) fn program(&self, name: &str, version: &str) -> PathBuf {
        let program = self.place(name, version);
        assert!(
            program.exists(),
            "{} is missing: run `tests/run cluster`, which builds it",
            program.display()
        );
        program
    }

    fn place(&self, name: &str, version: &str) -> PathBuf {
        match version {
            CURRENT => self.servers.join(name),
            NEXT => self.servers.join(format!("{name}-next")),
            older => {
                let (minor, _) = older.trim_start_matches('v').rsplit_once('.').unwrap();
                self.servers.join(format!("{name}-{minor}"))
            }
        }
    }

    /// Returns the folder with the image archives, which each node sees as /images.
    pub(crate) fn images(&self) -> PathBuf {
        self.dir.path().join("images")
    }

    /// Returns the container image that was built with the package.
    pub(crate) fn container_image(&self) -> PathBuf {
        let beside = fs::read_dir(self.package.parent().unwrap()).unwrap();
        let mut images = beside
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().ends_with(".oci.tar"));
        images.next().unwrap_or_else(|| {
            let package = self.package.display();
            panic!("no *.oci.tar beside {package}: packaging/build makes both")
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Root of a node that is not running, for programs that the host lacks.
    pub(crate) fn root(&self) -> PathBuf {
        let root = self.path("root");
        if !root.exists() {
            self.mount(&self.lower(CURRENT), "", &root);
        }
        root
    }

    /// Returns the lower directories of a node's overlay with the programs of a version.
    pub(crate) fn lower(&self, version: &str) -> OsString {
        let mut made = self.made.lock().unwrap();
        let programs = made
            .entry(version.to_owned())
            .or_insert_with(|| self.install(version));
        let mut lower = programs.clone().into_os_string();
        lower.push(":");
        lower.push(self.system());
        lower
    }

    fn system(&self) -> OsString {
        let mut lower = self.node.clone().into_os_string();
        lower.push(":");
        lower.push(self.image.join("rootfs"));
        lower
    }

    /// Installs kubelet, kubeadm, kubectl and nodepki's package, and creates the image that every Pod needs.
    fn install(&self, version: &str) -> PathBuf {
        let pause = self.images_of(version).remove("pause").unwrap();
        self.archive_pause(&pause);
        let changes = self.path(&format!("programs-{version}"));
        let root = self.path(&format!("root-{version}"));
        self.mount(&self.system(), changes.to_str().unwrap(), &root);
        // Releases that no cluster runs have none.
        let of_kubectl = if self.place("kubectl", version).exists() {
            version
        } else {
            CURRENT
        };
        for (name, version) in [
            ("kubelet", version),
            ("kubeadm", version),
            ("kubectl", of_kubectl),
        ] {
            fs::copy(self.program(name, version), root.join("usr/bin").join(name)).unwrap();
        }
        fs::copy(&self.package, root.join("root/nodepki.deb")).unwrap();
        run(Command::new("chroot").arg(&root).args([
            "env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "dpkg",
            "--install",
            "/root/nodepki.deb",
        ]));
        let containerd = root.join("etc/containerd/config.toml");
        let text = fs::read_to_string(&containerd).unwrap();
        let (_, tag) = pause.rsplit_once(':').unwrap();
        fs::write(&containerd, text.replace("PAUSE", tag)).unwrap();
        let mut hosts = format!("127.0.0.1 localhost\n{} {}\n", ENDPOINT.0, ENDPOINT.1);
        let openbao = match network::has_ipv6() {
            true => OPENBAO_IPV6,
            false => OPENBAO.0,
        };
        hosts.push_str(&format!("{openbao} {}\n", OPENBAO.1));
        for (name, octet) in network::NODES {
            hosts.push_str(&format!("10.77.0.{octet} {name}\n"));
        }
        fs::write(root.join("etc/hosts"), hosts).unwrap();
        fs::write(
            root.join("etc/resolv.conf"),
            format!("nameserver {}\noptions timeout:1 attempts:1\n", ENDPOINT.0),
        )
        .unwrap();
        run(Command::new("umount").arg(&root));
        changes
    }

    /// Returns the names of the images that kubeadm uses for a version, by component.
    fn images_of(&self, version: &str) -> BTreeMap<String, String> {
        let listed = run(Command::new(self.program("kubeadm", version)).args([
            "config",
            "images",
            "list",
            "--kubernetes-version",
            version,
        ]));
        let images = listed.lines().map(|image| {
            let (path, _) = image.rsplit_once(':').unwrap();
            let (_, component) = path.rsplit_once('/').unwrap();
            (component.to_owned(), image.to_owned())
        });
        images.collect()
    }

    /// Creates the images of a cluster of this version.
    pub(crate) fn make_images(&self, version: &str) {
        for (component, image) in &self.images_of(version) {
            let component = component.as_str();
            let (entry, mut files) = match component {
                "etcd" => {
                    // The manifests of older releases have flags that etcd 3.7 removed.
                    let release = match version {
                        CURRENT | NEXT => "3.7",
                        _ => "3.6",
                    };
                    let file = |name: &str| self.program(&format!("{name}-{release}"), CURRENT);
                    (
                        "[]",
                        vec![
                            ("usr/local/bin/etcd", file("etcd")),
                            ("usr/local/bin/etcdctl", file("etcdctl")),
                        ],
                    )
                }
                "coredns" => (
                    "[\"/coredns\"]",
                    vec![("coredns", self.program("coredns", CURRENT))],
                ),
                "pause" => {
                    self.archive_pause(image);
                    continue;
                }
                _ => ("[]", Vec::new()),
            };
            let own = format!("usr/local/bin/{component}");
            if files.is_empty() {
                files.push((&own, self.program(component, version)));
            }
            let mut files: Vec<(String, PathBuf)> = files
                .into_iter()
                .map(|(path, file)| (path.to_owned(), file))
                .collect();
            if component == "kube-proxy" {
                files.extend(self.nft());
            }
            self.archive(image, entry, &files);
        }
        let busybox = self.node.join("usr/bin/busybox");
        let mut files = vec![(
            "usr/local/bin/kubectl".to_owned(),
            self.program("kubectl", CURRENT),
        )];
        for applet in ["sh", "sleep", "date", "cat", "wget", "nslookup", "echo"] {
            files.push((format!("bin/{applet}"), busybox.clone()));
        }
        self.archive(WORK_IMAGE, "[\"/bin/sh\"]", &files);
        let files = [
            ("sample-apiserver", "sample-apiserver"),
            ("etcd", "etcd-3.7"),
        ];
        let files = files.map(|(name, built)| {
            (
                format!("usr/local/bin/{name}"),
                self.program(built, CURRENT),
            )
        });
        self.archive(EXTENSION_IMAGE, "[]", &files);
    }

    fn archive_pause(&self, image: &str) {
        let program = ("pause".to_owned(), self.program("pause", CURRENT));
        self.archive(image, "[\"/pause\"]", &[program]);
    }

    fn archive(&self, name: &str, entry: &str, files: &[(String, PathBuf)]) {
        let file = name.replace(['/', ':'], "_") + ".tar";
        let out = self.images().join(file);
        if out.exists() {
            return;
        }
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/vm-tests/cluster/image-archive"
        );
        let mut command = Command::new(script);
        command.arg(out).args([name, entry]);
        for (path, file) in files {
            let mut argument = OsString::from(path);
            argument.push("=");
            argument.push(file);
            command.arg(argument);
        }
        run(&mut command);
    }

    /// nft, which kube-proxy runs, its libraries, and the names of protocols. Without the names, kube-proxy does not
    /// recognize the elements that it finds after a restart, and removes them.
    fn nft(&self) -> Vec<(String, PathBuf)> {
        let root = self.path("root-nft");
        self.mount(&self.system(), "", &root);
        let script =
            "echo /usr/sbin/nft; echo /etc/protocols; ldd /usr/sbin/nft | grep -o '/[^ ]*'";
        let listed = run(Command::new("chroot")
            .arg(&root)
            .args(["/bin/sh", "-c", script]));
        let copy = self.path("nft");
        let files = listed.lines().map(|path| {
            let file = copy.join(path.trim_start_matches('/'));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let found = run(Command::new("chroot")
                .arg(&root)
                .args(["readlink", "-f", path]));
            fs::copy(root.join(found.trim().trim_start_matches('/')), &file).unwrap();
            (path.trim_start_matches('/').to_owned(), file)
        });
        let files = files.collect();
        run(Command::new("umount").arg(&root));
        files
    }

    /// Mounts an overlay at `root`; its changes are kept in a folder, or discarded with the mount.
    fn mount(&self, lower: &OsString, changes: &str, root: &Path) {
        let name = root.file_name().unwrap().to_str().unwrap();
        let changes = match changes {
            "" => self.path(&format!("changes-{name}")),
            some => PathBuf::from(some),
        };
        let work = self.path(&format!("work-{name}"));
        for dir in [&changes, &work, root] {
            fs::create_dir_all(dir).unwrap();
        }
        let mut options = OsString::from("lowerdir=");
        options.push(lower);
        options.push(format!(
            ",upperdir={},workdir={}",
            changes.display(),
            work.display()
        ));
        let mut command = Command::new("mount");
        command.args(["-t", "overlay", "-o"]).arg(options);
        run(command.arg("overlay").arg(root));
    }
}

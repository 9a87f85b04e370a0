//! `docs/tutorial.md`: its commands, run unchanged, in one shell, with the real OpenBao and kubeadm, and then those of other
//! pages on the same node. `kubeadm init` runs its phases for certificates and kubeconfigs only, as there is no container
//! runtime; `systemctl` records its arguments, and `journalctl` prints the digest of the issuance log.
//! `NODEPKI_BLESS=1 cargo test --test it tutorial` writes the output that the page shows.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::kubeadm;
use crate::node::{NODEPKI, Ran};
use crate::pages;
use crate::servers::bin;
use crate::sessions::{assert_recorded, without_dates};

const PAGE: &str = "docs/tutorial.md";
/// Sections of other pages whose blocks work on the node of the tutorial.
const FURTHER: [(&str, &str); 5] = [
    ("docs/cluster-api.md", "### On a host"),
    ("docs/configuration.md", "# Configuration"),
    ("docs/installing.md", "## systemd"),
    ("docs/rotation.md", "# Rotation"),
    ("docs/security.md", "## Issuance log"),
];
/// Begin of the block of docs/rotation.md that `named_pair` runs, since it needs a running scheduler.
const OF_NAMED_PAIR: &str = "kubeadm init phase control-plane scheduler";
const KUBE_VIP: &str = "/etc/kubernetes/manifests/kube-vip.yaml";
const JOURNALCTL: &str = "#!/bin/sh
digest=$(tail -n 1 /var/lib/nodepki/audit.jsonl | tr -d '\\n' | sha256sum)
echo \"{\\\"NODEPKI_SHA256\\\":\\\"${digest%% *}\\\"}\"
";
/// Directories that are empty at the beginning.
const EMPTY: [&str; 6] = [
    "/etc/kubernetes",
    "/etc/nodepki",
    "/root",
    "/run/kubeadm",
    "/var/lib/kubelet",
    "/var/lib/nodepki",
];

/// Prepares a machine that has these programs in `/mnt`, an address, and the directories of [`EMPTY`].
fn machine(programs: &[PathBuf]) -> String {
    let mut script = "set -eu\numask 022\nmount -t tmpfs tmpfs /mnt\n".to_owned();
    for program in programs {
        let name = program.file_name().unwrap().display();
        // A link may lead into a directory that becomes empty.
        let file = fs::canonicalize(program).unwrap();
        let file = file.display();
        script.push_str(&format!(
            "touch /mnt/{name}\nmount --bind {file} /mnt/{name}\n"
        ));
    }
    for directory in EMPTY {
        script.push_str(&format!(
            "mkdir -p {directory}\nmount -t tmpfs -o mode=755 tmpfs {directory}\n"
        ));
    }
    script.push_str(
        "chmod 700 /var/lib/nodepki\nexport HOME=/root PATH=/mnt:$PATH\nip link set lo up\n\
         ip tuntap add eth0 mode tap\nip address add 192.0.2.11/24 dev eth0\nip link set eth0 up\ncd /root\n",
    );
    script
}

fn write_program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
}

/// Returns the output between two lines that the script prints.
fn output_of<'a>(ran: &'a Ran, block: &str) -> &'a str {
    let (_, after) = ran.stdout.split_once(&format!("==> {block}\n")).unwrap();
    after.split("==> ").next().unwrap()
}

#[test]
fn commands_of_the_page_work_as_they_stand() {
    let dir = tempfile::tempdir().unwrap();
    let program = |name: &str| dir.path().join(name);
    // kubeadm has another name, as the stand-in calls it.
    let real_kubeadm = program("real-kubeadm");
    symlink(kubeadm::binary(), &real_kubeadm).unwrap();
    write_program(
        &program("kubeadm"),
        "#!/bin/sh\nset -e\nif [ \"$1\" = init ]; then\n  shift\n  for phase in certs kubeconfig; do\n    \
         /mnt/real-kubeadm init phase $phase all \"$@\"\n  done\nelse\n  exec /mnt/real-kubeadm \"$@\"\nfi\n",
    );
    let calls = program("calls");
    fs::write(&calls, "").unwrap();
    write_program(
        &program("systemctl"),
        "#!/bin/sh\necho \"$*\" >>/mnt/calls\n",
    );
    write_program(&program("journalctl"), JOURNALCTL);
    let programs = [
        real_kubeadm,
        program("kubeadm"),
        program("systemctl"),
        program("journalctl"),
        calls.clone(),
        NODEPKI.into(),
        bin("bao"),
    ];

    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let mut script = machine(&programs);
    let mut add = |block: String| {
        let name = block.lines().last().unwrap();
        script.push_str(&format!("echo '==> {}'\n{block}", name.replace('\'', "")));
    };
    for block in pages::blocks(&page, "sh") {
        add(block);
    }
    add("find /etc/kubernetes -name '*.key'\n".to_owned());
    add(format!(
        "mkdir -p /etc/kubernetes/manifests\necho 'path: /etc/kubernetes/admin.conf' >{KUBE_VIP}\n"
    ));
    add("touch management.conf\n".to_owned());
    for (page, heading) in FURTHER {
        let blocks = pages::blocks(&pages::section(page, heading), "sh");
        let blocks = blocks.into_iter();
        blocks
            .filter(|block| !block.starts_with(OF_NAMED_PAIR))
            .for_each(&mut add);
    }
    add(format!("cat {KUBE_VIP}\n"));
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--net",
        "--uts",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args(["--propagation", "private", "sh", "-c", &script])
        .env_remove("JOURNAL_STREAM");
    let ran = Ran::of(&mut command);
    ran.done();

    ran.says("External CA mode: Using user provided kubelet.conf")
        .says("1 rekeyed");
    let keys = output_of(&ran, "find /etc/kubernetes -name *.key");
    assert!(keys.contains("/etc/kubernetes/pki/apiserver.key"), "{keys}");
    for key in ["pki/ca.key", "etcd/ca.key", "front-proxy-ca.key"] {
        assert!(!keys.contains(key), "{keys}");
    }
    let calls = fs::read_to_string(calls).unwrap();
    assert!(calls.starts_with("enable --now nodepki-renew.timer\n"));
    ran.says("the log is unchanged up to this entry");
    let manifest = output_of(&ran, &format!("cat {KUBE_VIP}"));
    assert_eq!(manifest, "path: /etc/kubernetes/admin.conf\n");

    let planned = output_of(&ran, "nodepki plan");
    // The output of `preflight` precedes that of `plan`.
    let (_, planned) = planned.split_once("\nNAME ").unwrap();
    record("tutorial-plan", &format!("NAME {planned}"));
    record("tutorial-bootstrap", output_of(&ran, "nodepki bootstrap"));
}

fn record(name: &str, output: &str) {
    assert_recorded(
        name,
        &format!("\n```text\n{}```\n\n", without_dates(output)),
    );
}

//! Faults of the host: its clock, its name, its addresses and its disks.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use nodepki::kube::names::{Authority, CertName};

use crate::node::{DAY, EVERYTHING, INIT, NODEPKI, Node, Ran, Snapshot, with_mounts};
use crate::signing::now;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[test]
fn waits_when_the_clock_is_behind_the_ca() {
    let node = Node::new();
    node.replace_authority(Authority::Ca, now() + 2 * DAY, YEAR);
    let before = node.etc();
    let ran = node.ask();
    ran.ended(75)
        .says("nodepki: the clock shows ")
        .says(", which cannot be right: the CA certificate CN=kubernetes is not yet valid (")
        .says(
            "); waited 0 s for time synchronization: start chrony or systemd-timesyncd (timedatectl status), \
             or set the clock, and run again; --allow-unsynced continues regardless",
        );
    before.unchanged(&node.etc());
    assert_eq!(
        node.exchanges(),
        [],
        "a request was sent with a wrong clock"
    );
}

#[test]
fn issues_with_ca_start_as_lower_bound_under_allow_unsynced() {
    let node = Node::new();
    node.replace_authority(Authority::Ca, now() + 2 * DAY, YEAR);
    let unsynced = || Ran::of(&mut node.with_local(&["bootstrap", "--allow-unsynced"], &[]));
    unsynced()
        .done()
        .says("; continued because of --allow-unsynced");
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    assert!(
        chain.leaf().not_before() > now() + DAY,
        "the certificate starts before its CA"
    );
    // The second run judges the same.
    let before = node.etc();
    unsynced().done();
    before.unchanged(&node.etc());
}

/// INIT without the node name.
fn init_without_name() -> String {
    INIT.replace("nodeRegistration: {name: cp1}\n", "")
}

#[test]
fn trims_host_name_and_converts_it_to_lower_case() {
    for (written, name) in [
        ("cp1\n", "cp1"),
        ("  CP1.Example.COM \n", "cp1.example.com"),
    ] {
        let node = Node::of(&init_without_name());
        node.write("/etc/hostname", written);
        node.bootstrap().done();
        let (chain, _) = node.leaf(CertName::KubeletConf).unwrap();
        assert_eq!(
            chain.leaf().subject().values("CN").collect::<Vec<_>>(),
            [format!("system:node:{name}")]
        );
        let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
        assert!(chain.leaf().dns_names().contains(&name.to_owned()));
    }
}

#[test]
fn refuses_to_guess_the_address_without_a_default_route() {
    let nowhere = INIT.replace("localAPIEndpoint: {advertiseAddress: 192.0.2.11}\n", "");
    let words =
        "set localAPIEndpoint.advertiseAddress in an InitConfiguration to the node's own address";
    let node = Node::of(&nowhere);
    let before = node.snapshot();
    node.bootstrap()
        .ended(78)
        .says("no advertiseAddress is set")
        .says(words);
    before.unchanged(&node.snapshot());
    // The same on a machine without interfaces; `config check` writes nothing.
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command
        .args([
            "--net",
            NODEPKI,
            "config",
            "check",
            "--signer",
            "embedded",
            "--kubeadm-config",
        ])
        .arg(node.outside("kubeadm.yaml"));
    Ran::of(&mut command)
        .ended(78)
        .says("no advertiseAddress is set (0.0.0.0 and :: do not count), and the node has no default route to take one from")
        .says(words);
}

#[test]
fn accepts_ipv6_endpoints_and_dual_stack() {
    let v6 = INIT.replace("192.0.2.11", "2001:db8::11").replace(
        "controlPlaneEndpoint: api.example.com:6443",
        "controlPlaneEndpoint: '[2001:db8::7]'",
    ) + "networking: {serviceSubnet: 'fd00:10::/112,10.96.0.0/16'}\n";
    let node = Node::of(&v6);
    let ran = node.bootstrap();
    ran.done()
        .says("apiserver contains only the service address of the first IP family, as with kubeadm; add 10.96.0.1 to extraSANs.apiserver if clients use the second");
    assert!(
        node.read("/etc/kubernetes/admin.conf")
            .contains("server: https://[2001:db8::7]:6443")
    );
    assert!(
        node.read("/etc/kubernetes/scheduler.conf")
            .contains("server: https://[2001:db8::11]:6443")
    );
    let (chain, _) = node.leaf(CertName::Apiserver).unwrap();
    let ips: Vec<String> = chain
        .leaf()
        .ip_addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    for ip in ["2001:db8::11", "2001:db8::7", "fd00:10::1"] {
        assert!(ips.iter().any(|found| found == ip), "{ip}: {ips:?}");
    }
    node.assert_sound(&EVERYTHING);
}

#[test]
fn resolves_links_inside_the_root() {
    // Absolute and relative links that would lead out of the root if the test resolved them.
    for target in ["/outside/pki", "../../../../../../../../../../outside/pki"] {
        let node = Node::new();
        let outside = node.outside("outside/pki");
        fs::create_dir_all(&outside).unwrap();
        fs::remove_dir_all(node.path("/etc/kubernetes/pki")).unwrap();
        symlink(target, node.path("/etc/kubernetes/pki")).unwrap();
        node.ask()
            .ended(65)
            .says("/etc/kubernetes/pki is a symbolic link whose target does not exist inside the root; create the target directory and run again");
        assert_eq!(node.exchanges(), []);
        // Once its target exists inside the root, the link is used.
        fs::create_dir_all(node.path("/outside/pki")).unwrap();
        node.bootstrap().done();
        assert!(node.path("/outside/pki/apiserver.key").is_file());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}

#[test]
fn finds_read_only_etc_before_sending_requests() {
    let node = Node::new();
    let before = node.etc();
    let ran = with_mounts(
        &node,
        &node.ask_command("0s"),
        r#"mount --bind "$1/etc" "$1/etc"; mount -o remount,ro,bind "$1/etc""#,
    );
    ran.ended(77)
        .says("the file system is read-only; mount it read-write (`mount -o remount,rw ...`), or add the directory to ReadWritePaths= of the systemd unit that runs nodepki, and run again")
        .says("/etc/kubernetes");
    before.unchanged(&node.etc());
    assert_eq!(node.exchanges(), []);
    // A node without missing files may be mounted read-only.
    node.ask().done();
    let read_only = r#"mount --bind "$1/etc" "$1/etc"; mount -o remount,ro,bind "$1/etc""#;
    let doctor = node.configured(["doctor"]);
    with_mounts(&node, &doctor, read_only).says_not("no-room");
    let missing = "/etc/kubernetes/pki/apiserver.crt";
    let certificate = node.read(missing);
    node.remove(missing);
    with_mounts(&node, &doctor, read_only)
        .ended(65)
        .says("no-room")
        .says("the file system is read-only");
    node.write(missing, certificate);
    let ran = with_mounts(
        &node,
        &node.ask_command("0s"),
        r#"mount --bind "$1/etc" "$1/etc"; mount -o remount,ro,bind "$1/etc""#,
    );
    ran.done();
}

#[test]
fn finds_full_disk_before_sending_requests() {
    let node = Node::new();
    let before = node.etc();
    let ran = with_mounts(
        &node,
        &node.ask_command("0s"),
        r#"cp -a "$1/etc/kubernetes" "$1/copy"
           mount -t tmpfs -o size=64k tmpfs "$1/etc/kubernetes"
           cp -a "$1/copy/." "$1/etc/kubernetes"; rm -r "$1/copy""#,
    );
    ran.ended(75)
        .says("the file system of ")
        .says("/etc/kubernetes/pki has room for ")
        .says(" are needed; free some space (see `df -h` and `df -i`) and run again");
    assert_eq!(node.exchanges(), []);
    before.unchanged(&node.etc());
    let doctor = with_mounts(
        &node,
        &node.configured(["doctor"]),
        r#"mount -t tmpfs -o size=64k tmpfs "$1/etc/kubernetes""#,
    );
    doctor
        .ended(65)
        .says("no-room")
        .says("/etc/kubernetes has room for ");
    // The same for the state directory.
    let ran = with_mounts(
        &node,
        &node.ask_command("0s"),
        r#"mkdir -p "$1/var/lib/nodepki"; mount -t tmpfs -o size=64k,mode=700 tmpfs "$1/var/lib/nodepki""#,
    );
    ran.ended(75).says("/var/lib/nodepki has room for ");
    assert_eq!(node.exchanges(), []);
    before.unchanged(&node.etc());
}

#[test]
fn names_immutable_file_before_sending_requests() {
    let node = Node::on_disk();
    node.bootstrap().done();
    let crt = node.path("/etc/kubernetes/pki/apiserver.crt");
    let chattr = |flag: &str| {
        assert!(
            Command::new("chattr")
                .arg(flag)
                .arg(&crt)
                .status()
                .unwrap()
                .success()
        );
    };
    node.configure(&INIT.replace("api.example.com", "other.example.com"));
    chattr("+i");
    let before = node.etc();
    let ran = node.ask();
    let after = node.etc();
    chattr("-i");
    ran.ended(65).says(
        "/etc/kubernetes/pki/apiserver.crt is immutable; if that is not intended, run `chattr -i -a` on it and run again",
    );
    before.unchanged(&after);
    assert_eq!(node.exchanges(), []);
}

#[test]
fn writes_nothing_when_only_reading() {
    let node = Node::new();
    let before = node.snapshot();
    node.plan().done();
    Ran::of(&mut node.with_local(&["config", "check"], &[])).done();
    before.unchanged(&node.snapshot());
    // A second bootstrap changes no byte, inode or time below /etc, not even of directories.
    node.bootstrap().done();
    let before = Snapshot::of(&node.path("/etc"));
    node.bootstrap().done();
    before.unchanged(&node.etc());
}

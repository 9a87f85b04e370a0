//! Paths that another user controls: drop directory, offline signing, keys and settings. These tests run as root and
//! give files to other users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use nodepki::kube::names::CertName;

use crate::node::Node;
use crate::signer_directory::sign_by_hand;
use crate::signing::run_program;

/// A user that is neither root nor a service account.
const OTHER_USER: u32 = 4242;

fn change_owner(path: &Path, uid: u32) {
    chown(path, Some(uid), Some(uid)).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

// ---- Drop directory ----

/// Returns a node with an empty drop directory `srv/drop` outside its root.
fn node_with_drop() -> (Node, PathBuf) {
    let node = Node::new();
    let drop = node.outside("srv/drop");
    fs::create_dir_all(drop.join("inbox")).unwrap();
    fs::create_dir_all(drop.join("outbox")).unwrap();
    (node, drop)
}

type Arrange = fn(&Path);

#[test]
fn refuses_drop_directory_that_another_user_can_replace() {
    let cases: &[(&str, Arrange, &str, &[&str])] = &[
        (
            "base of another user",
            |drop| change_owner(drop, OTHER_USER),
            "srv/drop",
            &["user 4242", "mode 0755", "chown root:root "],
        ),
        (
            "base that anyone can write to",
            |drop| set_mode(drop, 0o777),
            "srv/drop",
            &["user 0", "mode 0777", "chmod go-w "],
        ),
        (
            "base that a group can write to",
            |drop| set_mode(drop, 0o775),
            "srv/drop",
            &["mode 0775", "chmod go-w "],
        ),
        (
            "parent of another user",
            |drop| change_owner(drop.parent().unwrap(), OTHER_USER),
            "srv",
            &["user 4242", "chown root:root "],
        ),
        (
            "parent that anyone can write to",
            |drop| set_mode(drop.parent().unwrap(), 0o777),
            "srv",
            &["mode 0777", "chmod go-w "],
        ),
        (
            "inbox of another user",
            |drop| change_owner(&drop.join("inbox"), OTHER_USER),
            "srv/drop/inbox",
            &["user 4242", "chown root:root "],
        ),
        (
            "inbox that anyone can write to",
            |drop| set_mode(&drop.join("inbox"), 0o777),
            "srv/drop/inbox",
            &["mode 0777", "chmod go-w "],
        ),
        (
            "outbox of another user",
            |drop| change_owner(&drop.join("outbox"), OTHER_USER),
            "srv/drop/outbox",
            &["user 4242"],
        ),
        (
            "outbox to which others can add requests",
            |drop| set_mode(&drop.join("outbox"), 0o1777),
            "srv/drop/outbox",
            &["mode 1777", "chmod go-w "],
        ),
        (
            "inbox that is a link",
            |drop| {
                fs::remove_dir(drop.join("inbox")).unwrap();
                symlink("/etc/kubernetes/pki", drop.join("inbox")).unwrap();
            },
            "srv/drop/inbox",
            &["is not a directory"],
        ),
        (
            "link of another user in the path",
            |drop| {
                let elsewhere = drop.with_file_name("elsewhere");
                fs::rename(drop, &elsewhere).unwrap();
                symlink("elsewhere", drop).unwrap();
                std::os::unix::fs::lchown(drop, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
            },
            "srv/drop",
            &["user 4242", "chown -h root:root "],
        ),
    ];
    for (case, arrange, culprit, words) in cases {
        let (node, drop) = node_with_drop();
        arrange(&drop);
        let before = node.etc();
        let ran = node.bootstrap_by_drop(&drop);
        assert_eq!(ran.code, Some(65), "{case}: {}", ran.said());
        ran.says(&format!(
            "{}/{culprit}",
            drop.ancestors().nth(2).unwrap().display()
        ));
        for word in *words {
            assert!(ran.said().contains(word), "{case}: {word}: {}", ran.said());
        }
        before.unchanged(&node.etc());
        assert!(
            !drop.join("outbox/apiserver.csr").exists(),
            "{case}: a request was sent"
        );
    }
}

#[test]
fn keeps_live_certificate_when_inbox_becomes_a_link() {
    let node = Node::bootstrapped();
    let drop = node.outside("drop");
    let pki = node.path("/etc/kubernetes/pki");
    // The certificate is due, and the answer exists.
    fs::remove_file(pki.join("apiserver.crt")).unwrap();
    node.bootstrap_by_drop(&drop).ended(75);
    sign_by_hand(&drop, &node.ca(), CertName::Apiserver);
    let signed = fs::read(drop.join("inbox/apiserver.crt")).unwrap();
    fs::remove_dir_all(drop.join("inbox")).unwrap();
    fs::write(pki.join("apiserver.crt"), &signed).unwrap();
    symlink(&pki, drop.join("inbox")).unwrap();
    for owner in [OTHER_USER, 0] {
        change_owner(&drop, owner);
        node.bootstrap_by_drop(&drop).ended(65);
        assert_eq!(fs::read(pki.join("apiserver.crt")).unwrap(), signed);
        assert!(pki.join("etcd/server.crt").exists());
    }
}

#[test]
fn takes_answers_of_a_configured_user_from_its_own_inbox() {
    const SIGNING_USER: u32 = 4343;
    for (owner, permissions) in [(SIGNING_USER, 0o755), (0, 0o1777)] {
        let (node, drop) = node_with_drop();
        change_owner(&drop.join("inbox"), owner);
        set_mode(&drop.join("inbox"), permissions);
        let settings = format!(
            "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n\
             authorities: {{ca: {{signer: s}}, etcd-ca: {{signer: s}}, front-proxy-ca: {{signer: s}}}}\n\
             signers: {{s: {{directory: {{path: {}, trustedUsers: [{SIGNING_USER}]}}}}}}\n",
            drop.display()
        );
        fs::write(node.outside("config.yaml"), settings).unwrap();
        node.ask().ended(75);
        for name in CertName::KUBEADM {
            sign_by_hand(&drop, &node.ca(), name);
            change_owner(&drop.join(format!("inbox/{name}.crt")), SIGNING_USER);
        }
        node.ask().done();
        assert_eq!(fs::read_dir(drop.join("inbox")).unwrap().count(), 0);
    }
}

#[test]
fn follows_links_of_root_to_the_drop_directory() {
    let (node, drop) = node_with_drop();
    let link = node.outside("link");
    symlink("srv/./../srv", &link).unwrap();
    node.bootstrap_by_drop(&link.join("drop")).ended(75);
    assert!(drop.join("outbox/apiserver.csr").exists());
}

#[test]
fn refuses_denial_that_is_a_hard_link() {
    let (node, drop) = node_with_drop();
    let secret = node.outside("shadow");
    fs::write(&secret, "root:secret-hash").unwrap();
    node.bootstrap_by_drop(&drop).ended(75);
    fs::hard_link(&secret, drop.join("inbox/apiserver.denied")).unwrap();
    node.bootstrap_by_drop(&drop)
        .ended(75)
        .says("it has 2 hard links")
        .says_not("secret-hash");
}

#[test]
fn reads_only_expected_names_of_a_crowded_inbox() {
    let (node, drop) = node_with_drop();
    node.bootstrap_by_drop(&drop).ended(75);
    sign_by_hand(&drop, &node.ca(), CertName::EtcdServer);
    let answer = fs::read(drop.join("inbox/etcd-server.crt")).unwrap();
    fs::remove_file(drop.join("inbox/etcd-server.crt")).unwrap();
    for number in 0..3000 {
        fs::write(drop.join(format!("inbox/{number}.crt")), &answer).unwrap();
    }
    node.bootstrap_by_drop(&drop).ended(75);
    // A file with the name of another certificate is still found.
    fs::write(drop.join("inbox/etcd-peer.crt"), &answer).unwrap();
    node.bootstrap_by_drop(&drop)
        .ended(75)
        .row_says("etcd-server", "rename it to inbox/etcd-server.crt");
}

// ---- Offline signing ----

#[test]
fn refuses_export_to_directory_that_another_user_can_replace() {
    let cases: &[(&str, Arrange, &str)] = &[
        (
            "directory of another user",
            |dir| change_owner(dir, OTHER_USER),
            "user 4242",
        ),
        (
            "directory that anyone can write to",
            |dir| set_mode(dir, 0o777),
            "mode 0777",
        ),
        (
            "parent of another user",
            |dir| change_owner(dir.parent().unwrap(), OTHER_USER),
            "user 4242",
        ),
        (
            "a directory of another user in it",
            |dir| {
                fs::create_dir(dir.join("pki")).unwrap();
                change_owner(&dir.join("pki"), OTHER_USER);
            },
            "user 4242",
        ),
        (
            "a link in it",
            |dir| symlink("/etc", dir.join("pki")).unwrap(),
            "is not a directory",
        ),
        (
            "a link of another user to it",
            |dir| {
                fs::remove_dir(dir).unwrap();
                symlink("/tmp", dir).unwrap();
                std::os::unix::fs::lchown(dir, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
            },
            "chown -h root:root",
        ),
    ];
    for (case, arrange, words) in cases {
        let node = Node::new();
        let dir = node.outside("media/stick");
        fs::create_dir_all(&dir).unwrap();
        arrange(&dir);
        let ran = node.csr("export", &dir);
        assert_eq!(ran.code, Some(65), "{case}: {}", ran.said());
        assert!(ran.said().contains(words), "{case}: {}", ran.said());
        assert!(!dir.join("README").exists(), "{case}");
    }
}

#[test]
fn refuses_import_from_directory_that_another_user_can_replace() {
    let node = Node::new();
    let dir = node.outside("media/stick");
    fs::create_dir(dir.parent().unwrap()).unwrap();
    node.csr("export", &dir).done();
    node.sign_bundle(&dir);
    let before = node.etc();
    for path in ["", "pki", "pki/apiserver.crt", ".."] {
        let path = dir.join(path);
        change_owner(&path, OTHER_USER);
        node.csr("import", &dir)
            .ended(65)
            .says("owned by user 4242 and group 4242")
            .says("chown root:root ");
        change_owner(&path, 0);
        let kept = fs::metadata(&path).unwrap().permissions();
        set_mode(&path, 0o777);
        node.csr("import", &dir).ended(65).says("chmod go-w ");
        fs::set_permissions(&path, kept).unwrap();
    }
    before.unchanged(&node.etc());
    node.csr("import", &dir).done();
}

#[test]
fn exports_to_directories_of_root_below_sticky_ones() {
    let node = Node::new();
    let top = node.outside("tmp");
    fs::create_dir(&top).unwrap();
    set_mode(&top, 0o1777);
    node.csr("export", &top.join("new")).done();
    symlink("new", top.join("link")).unwrap();
    node.csr("export", &top.join("link")).done();
    node.sign_bundle(&top.join("new"));
    node.csr("import", &top.join("link")).done();
}

#[test]
fn import_reads_only_files_of_an_import_and_limits_them() {
    let node = Node::new();
    let dir = node.outside("stick");
    node.csr("export", &dir).done();
    node.sign_bundle(&dir);
    // Neither is opened: the pipe could block, the device could fill the memory.
    nix::unistd::mkfifo(&dir.join("pipe.crt"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", dir.join("zero.crt")).unwrap();
    let sparse = fs::File::create(dir.join("image.iso")).unwrap();
    sparse.set_len(2 << 30).unwrap();
    let filler = vec![b'\n'; 1 << 20];
    for number in 0..17 {
        fs::write(dir.join(format!("{number}.pem")), &filler).unwrap();
    }
    node.csr("import", &dir).ended(78).says(
        "more than 16 MiB of files (name a directory that contains only the signed certificates)",
    );
    for number in 0..17 {
        fs::remove_file(dir.join(format!("{number}.pem"))).unwrap();
    }
    fs::create_dir(dir.join("many")).unwrap();
    for number in 0..2001 {
        fs::write(dir.join(format!("many/{number}.pem")), "").unwrap();
    }
    node.csr("import", &dir)
        .ended(78)
        .says("more than 2000 files");
    fs::remove_dir_all(dir.join("many")).unwrap();
    node.csr("import", &dir).done();
}

// ---- Keys ----

#[test]
fn creates_key_of_root_in_place_of_an_empty_file_of_another_user() {
    let node = Node::new();
    for name in ["admin.conf", "pki/apiserver.key", "pki/apiserver.crt"] {
        let path = node.path("/etc/kubernetes").join(name);
        fs::write(&path, "").unwrap();
        change_owner(&path, OTHER_USER);
        set_mode(&path, 0o666);
        let _ = rustix::fs::setxattr(
            &path,
            "user.note",
            b"planted",
            rustix::fs::XattrFlags::empty(),
        );
        // An access control list that lets the user read what the owner may read.
        let _ = std::process::Command::new("setfacl")
            .args(["-m", "u:4242:rw"])
            .arg(&path)
            .output();
    }
    node.bootstrap().done();
    for (name, expected) in [
        ("admin.conf", 0o600),
        ("pki/apiserver.key", 0o600),
        ("pki/apiserver.crt", 0o644),
    ] {
        let path = node.path("/etc/kubernetes").join(name);
        let found = fs::metadata(&path).unwrap();
        assert_eq!(
            (found.uid(), found.gid(), found.mode() & 0o7777),
            (0, 0, expected),
            "{name}"
        );
        let mut names = [0; 256];
        let length = rustix::fs::listxattr(&path, &mut names[..]).unwrap_or(0);
        let names = String::from_utf8_lossy(&names[..length]).into_owned();
        assert!(!names.contains("note") && !names.contains("acl"), "{names}");
    }
}

#[test]
fn refuses_key_in_directory_that_anyone_can_write_to() {
    let cases: &[(&str, Arrange, &str)] = &[
        ("pki", |pki| set_mode(pki, 0o777), "mode 0777"),
        ("pki", |pki| change_owner(pki, OTHER_USER), "user 4242"),
        (
            "",
            |pki| set_mode(pki.parent().unwrap(), 0o773),
            "mode 0773",
        ),
        (
            "",
            |pki| change_owner(pki.parent().unwrap(), OTHER_USER),
            "user 4242",
        ),
        (
            "..",
            |pki| set_mode(pki.ancestors().nth(2).unwrap(), 0o757),
            "mode 0757",
        ),
    ];
    for (culprit, arrange, words) in cases {
        let node = Node::new();
        let pki = node.path("/etc/kubernetes/pki");
        arrange(&pki);
        let before = node.etc();
        let ran = node.bootstrap();
        assert_eq!(ran.code, Some(65), "{culprit}: {}", ran.said());
        ran.says(words)
            .says("so that another user can change it (ch");
        before.unchanged(&node.etc());
        let fix = ran.said();
        let fix = fix
            .split_once("change it (")
            .unwrap()
            .1
            .split_once(')')
            .unwrap()
            .0;
        run_program("/bin/sh", &["-ec", fix], b"");
        node.bootstrap().done();
    }
}

#[test]
fn refuses_state_below_directory_that_anyone_can_write_to() {
    let node = Node::new();
    let lib = node.path("/var/lib");
    fs::create_dir_all(&lib).unwrap();
    set_mode(&lib, 0o777);
    node.bootstrap()
        .ended(65)
        .says("mode 0777, so that another user can change it (chmod go-w ");
    set_mode(&lib, 0o1777);
    node.bootstrap().done();
}

#[test]
fn warns_of_directories_of_services_and_groups_and_renews_in_them() {
    let cases: &[(Arrange, &str)] = &[
        (|pki| chown(pki, Some(999), Some(0)).unwrap(), "user 999"),
        (
            |pki| {
                chown(pki, Some(0), Some(4)).unwrap();
                set_mode(pki, 0o775);
            },
            "user 0 and group 4 with mode 0775",
        ),
    ];
    for (arrange, words) in cases {
        let node = Node::bootstrapped();
        let pki = node.path("/etc/kubernetes/pki");
        arrange(&pki);
        // A file of a member of the group, placed there to own the next key.
        let key = pki.join("apiserver.key");
        fs::write(&key, "not a key").unwrap();
        change_owner(&key, OTHER_USER);
        // The ownership that kubeadm's RootlessControlPlane sets.
        let service = pki.join("front-proxy-client.key");
        fs::remove_file(service.with_extension("crt")).unwrap();
        change_owner(&service, 998);
        let ran = node.bootstrap();
        ran.done()
            .says(words)
            .says("apiserver.key belonged to user 4242; the new file does not");
        assert_eq!(fs::metadata(&key).unwrap().uid(), 0);
        assert_eq!(fs::metadata(&service).unwrap().uid(), 998);
    }
}

// ---- Settings ----

const SETTINGS: &str = "apiVersion: nodepki.io/v1alpha1\nkind: NodePKIConfiguration\n";

#[test]
fn refuses_settings_that_another_user_can_change() {
    let places = [
        "/etc/nodepki/config.yaml",
        "/etc/nodepki/config.d/10-signers.yaml",
        "/run/nodepki/20-run.yaml",
        "/run/kubeadm/kubeadm.yaml",
    ];
    for place in places {
        let node = Node::new();
        let text = if place.contains("kubeadm") {
            crate::node::INIT
        } else {
            SETTINGS
        };
        node.write(place, text);
        let (file, top) = (node.path(place), node.path("/"));
        let check = || node.run(&["config", "check"]);
        let above = file
            .ancestors()
            .skip(1)
            .take_while(|dir| dir.starts_with(&top) && **dir != *top);
        for path in std::iter::once(file.as_path()).chain(above) {
            let shown = path.display();
            let kept = fs::metadata(path).unwrap().permissions();
            change_owner(path, OTHER_USER);
            check()
                .ended(65)
                .says(&format!(
                    "{shown}: owned by user 4242 and group 4242 with mode "
                ))
                .says(&format!("(chown root:root {shown})"));
            change_owner(path, 0);
            for bits in [0o020, 0o002] {
                fs::set_permissions(path, fs::Permissions::from_mode(kept.mode() | bits)).unwrap();
                check().ended(65).says(&format!("(chmod go-w {shown})"));
            }
            fs::set_permissions(path, kept).unwrap();
        }
        assert_ne!(check().code, Some(65), "{place}");
    }
}

#[test]
fn refuses_empty_fragment_directory_that_anyone_can_write_to() {
    let node = Node::new();
    fs::create_dir_all(node.path("/etc/nodepki/config.d")).unwrap();
    set_mode(&node.path("/etc/nodepki/config.d"), 0o777);
    node.bootstrap()
        .ended(65)
        .says("config.d: owned by user 0 and group 0 with mode 0777");
    // `doctor` names the directory too.
    node.run(&["doctor"])
        .ended(65)
        .says("config-unusable")
        .says("mode 0777");
}

#[test]
fn refuses_named_settings_that_another_user_can_change() {
    let node = Node::new();
    let config = node.outside("config.yaml");
    change_owner(&config, OTHER_USER);
    node.ask()
        .ended(65)
        .says("user 4242")
        .says("chown root:root ");
    change_owner(&config, 0);
    set_mode(&config, 0o664);
    node.ask().ended(65).says("mode 0664").says("chmod go-w ");
    set_mode(&config, 0o644);
    let kubeadm = node.outside("kubeadm.yaml");
    set_mode(&kubeadm, 0o666);
    node.ask().ended(65).says("mode 0666").says("chmod go-w ");
    // The administrator's own file is accepted, as by kubeadm.
    set_mode(&kubeadm, 0o664);
    change_owner(&kubeadm, 1000);
    node.ask().done();
}

#[test]
fn limits_number_and_size_of_settings_files() {
    let node = Node::new();
    let fragments = node.path("/etc/nodepki/config.d");
    fs::create_dir_all(&fragments).unwrap();
    for number in 0..101 {
        fs::write(fragments.join(format!("{number}.yaml")), SETTINGS).unwrap();
    }
    let check = || node.run(&["config", "check"]);
    check()
        .ended(78)
        .says("contains 101 settings files, at most 100 are read (merge them)");
    fs::remove_dir_all(&fragments).unwrap();
    fs::create_dir_all(&fragments).unwrap();
    let large = format!("{SETTINGS}{}", "#".repeat(1_000_000));
    for number in 0..5 {
        fs::write(fragments.join(format!("{number}.yaml")), &large).unwrap();
    }
    check()
        .ended(78)
        .says("4.yaml: all settings files up to this one have more than 4194304 bytes together");
    fs::remove_dir_all(&fragments).unwrap();
    // Neither a pipe nor a device blocks a run.
    fs::create_dir_all(&fragments).unwrap();
    nix::unistd::mkfifo(&fragments.join("a.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    check().ended(78).says("is a named pipe");
    fs::remove_dir_all(&fragments).unwrap();
    let files: Vec<String> = (0..65).map(|number| format!("/x{number}")).collect();
    node.write(
        "/etc/nodepki/config.yaml",
        format!("{SETTINGS}kubeadm: {{files: [{}]}}\n", files.join(", ")),
    );
    check()
        .ended(78)
        .says("names 65 files, at most 64 are read");
    node.run(&["config", "check", "--kubeadm-config", "/dev/zero"])
        .ended(78)
        .says("is a device node");
}

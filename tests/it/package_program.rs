//! The program of a release: static, self-contained, and with a list of its dependencies. `tests/run package` runs these.

use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use nodepki::kube::names::Authority;
use nodepki::signer::SignerKind;
use serde_json::Value;
use tempfile::TempDir;
use time::OffsetDateTime;

use crate::gateway::{Gateway, Issuer, Options};
use crate::node::INIT;
use crate::packages::{file, program, said};
use crate::rig::rig;
use crate::signing::openssl;

const SIGNER_NAME: &str = "signer.example.test";

#[test]
fn program_is_static() {
    let program = program();
    let told = said(Command::new("file").arg("--brief").arg(program));
    assert!(
        told.contains("static-pie linked") && told.contains("stripped"),
        "{told}"
    );
    let ldd = Command::new("ldd").arg(program).output().unwrap();
    assert!(
        String::from_utf8_lossy(&ldd.stdout).contains("statically linked"),
        "{ldd:?}"
    );
    let headers = said(
        Command::new("readelf")
            .args(["--wide", "--program-headers", "--dynamic"])
            .arg(program),
    );
    println!("{told}");
    for (word, why) in [
        ("INTERP", "it asks for a loader"),
        ("NEEDED", "it asks for a library"),
        ("RUNPATH", "it says where libraries are"),
        ("RWE", "memory that is written to can be run"),
    ] {
        assert!(!headers.contains(word), "{why}:\n{headers}");
    }
    assert!(
        headers.contains("GNU_RELRO") && headers.contains("BIND_NOW"),
        "{headers}"
    );
}

#[test]
fn program_contains_no_path_of_the_build_machine() {
    let bytes = fs::read(program()).unwrap();
    let home = std::env::var("HOME").unwrap();
    for text in [
        env!("CARGO_MANIFEST_DIR"),
        &format!("{home}/.cargo"),
        &format!("{home}/.rustup"),
        "/registry/src/index.crates.io",
        "target/package",
        "nodepki-tests/release",
    ] {
        let mut windows = bytes.windows(text.len());
        let place = windows.position(|seen| seen == text.as_bytes());
        let around = place.map(|at| {
            let end = (at + 80).min(bytes.len());
            String::from_utf8_lossy(&bytes[at.saturating_sub(40)..end]).into_owned()
        });
        if text.starts_with("/registry") {
            // The path of the crates is replaced by a neutral one.
            assert!(around.is_some_and(|around| around.contains("/cargo/registry")));
        } else {
            assert_eq!(around, None, "{text} is in it");
        }
    }
    let crash_points = b"NODEPKI_FAILPOINT";
    assert!(
        !bytes
            .windows(crash_points.len())
            .any(|seen| seen == crash_points)
    );
}

/// A root that contains only the program, two files of /etc and its inputs: no libraries, no shell, no NSS, no /dev, no
/// /proc and no CAs. A name server and a signer's server run in a private network.
#[test]
fn bootstraps_by_signer_name_in_an_empty_root() {
    let mut command = Command::new("unshare");
    command.arg("--net");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let output = command
        .args(["sh", "-euc", "ip link set lo up; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "package_program::child_process", "--nocapture"])
        .env("NODEPKI_TEST_CHILD", "empty root")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("child done"),
        "{output:?}"
    );
    assert!(!printed.contains("PRIVATE KEY"));
}

/// The child process of the test; does nothing when it is run as a test.
#[test]
fn child_process() {
    if std::env::var_os("NODEPKI_TEST_CHILD").is_some() {
        in_an_empty_root();
        println!("child done");
    }
}

fn in_an_empty_root() {
    let names = UdpSocket::bind("127.0.0.1:53").unwrap();
    thread::spawn(move || answer_names(&names));
    let rig = rig(SignerKind::Cfssl);
    let front = rig.front().unwrap();
    let issuer = Issuer::new("gateway-ca");
    let now = OffsetDateTime::now_utc();
    let pair = issuer.server(&[SIGNER_NAME], &[], now, Duration::from_secs(24 * 60 * 60));
    let gateway = Gateway::start(Options {
        upstream: Some(front.upstream),
        issuer,
        pair: Some(pair),
        ..Options::default()
    });
    let url = gateway.url_of(SIGNER_NAME);

    let root = TempDir::new().unwrap();
    let put = |path: &str, bytes: &[u8]| {
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    fs::copy(program(), root.path().join("nodepki")).unwrap();
    put(
        "etc/resolv.conf",
        b"nameserver 127.0.0.1\nsearch nowhere.test example.test\n",
    );
    put("etc/hostname", b"cp1\n");
    put("kubeadm.yaml", INIT.as_bytes());
    put("gateway.pem", &gateway.ca_pem());
    for authority in Authority::ALL {
        let certificate = format!("{}.crt", authority.base_name());
        let pem = fs::read(rig.authorities().join(&certificate)).unwrap();
        put(&format!("etc/kubernetes/pki/{certificate}"), &pem);
    }
    let settings = |tls: &str| {
        let settings = (front.settings)(&url, tls);
        for path in settings.split([' ', '\'', '"', ',', '{', '}', '\n']) {
            if Path::new(path).is_absolute() && Path::new(path).is_file() {
                put(path, &fs::read(path).unwrap());
                let there = root.path().join(path.trim_start_matches('/'));
                let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(there, private).unwrap();
            }
        }
        put("config.yaml", settings.as_bytes());
    };
    let bootstrap = [
        "bootstrap",
        "--config",
        "/config.yaml",
        "--kubeadm-config",
        "/kubeadm.yaml",
    ];
    let failed = |output: Output, words: &[&str]| {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{said}");
        for word in words {
            assert!(said.contains(word), "{word} is not in\n{said}");
        }
    };

    // The host's CAs are not trusted unless the settings say so.
    put("etc/ssl/certs/ca-certificates.crt", &gateway.ca_pem());
    settings(&format!(
        "{{caFile: {}}}",
        rig.authorities().join("ca.crt").display()
    ));
    failed(in_root(root.path(), &bootstrap), &["signer", "certificate"]);
    settings("{systemRoots: true}");
    fs::remove_file(root.path().join("etc/ssl/certs/ca-certificates.crt")).unwrap();
    failed(
        in_root(root.path(), &bootstrap),
        &["the system has no CA file"],
    );

    settings("{caFile: /gateway.pem}");
    let done = in_root(root.path(), &bootstrap);
    assert!(done.status.success(), "{done:?}");
    assert!(!gateway.requests().is_empty());
    let pki = root.path().join("etc/kubernetes/pki");
    for (ca, leaf) in [
        ("etcd/ca.crt", "etcd/server.crt"),
        ("ca.crt", "apiserver.crt"),
        ("front-proxy-ca.crt", "front-proxy-client.crt"),
    ] {
        let [ca, leaf] = [ca, leaf].map(|file| pki.join(file).display().to_string());
        openssl(&["verify", "-x509_strict", "-CAfile", &ca, &leaf], b"");
    }
    for command in [
        &["status"][..],
        &["doctor"],
        &["plan", "--config", "/config.yaml"],
    ] {
        let output = in_root(root.path(), command);
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
}

fn in_root(root: &Path, arguments: &[&str]) -> Output {
    Command::new("chroot")
        .arg(root)
        .arg("/nodepki")
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .output()
        .unwrap()
}

/// Answers DNS queries (RFC 1035) with 127.0.0.1 for [`SIGNER_NAME`], and with an error for other names.
fn answer_names(socket: &UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut packet) {
        let query = &packet[..length];
        let mut end = 12;
        let mut labels = Vec::new();
        while query[end] != 0 {
            let next = end + 1 + usize::from(query[end]);
            labels.push(String::from_utf8_lossy(&query[end + 1..next]).into_owned());
            end = next;
        }
        end += 5;
        let known = labels.join(".").eq_ignore_ascii_case(SIGNER_NAME);
        let address = known && query[end - 3] == 1;
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, if known { 0x80 } else { 0x83 }]);
        answer.extend([0, 1, 0, u8::from(address), 0, 0, 0, 0]);
        answer.extend(&query[12..end]);
        if address {
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        let _ = socket.send_to(&answer, client);
    }
}

/// Name and version of each crate that Cargo compiles for the program or for its build.
fn compiled() -> BTreeSet<(String, String)> {
    let tree = said(
        Command::new(env!("CARGO"))
            .args([
                "tree",
                "--locked",
                "--edges",
                "normal,build",
                "--prefix",
                "none",
            ])
            .args(["--format", "{p}"])
            .current_dir(env!("CARGO_MANIFEST_DIR")),
    );
    let lines = tree.lines().filter_map(|line| line.split_once(" v"));
    lines
        .map(|(name, rest)| {
            let version = rest.split_whitespace().next().unwrap();
            (name.to_owned(), version.to_owned())
        })
        .collect()
}

fn named(packages: &Value) -> BTreeSet<(String, String)> {
    let text = |package: &Value, key: &str| package[key].as_str().unwrap().to_owned();
    let packages = packages.as_array().unwrap().iter();
    packages
        .map(|package| (text(package, "name"), text(package, "version")))
        .collect()
}

/// Read by the library that security scanners use.
#[test]
fn program_contains_its_dependency_list() {
    let told = said(Command::new("rust-audit-info").arg(program()));
    let listed: Value = serde_json::from_str(&told).unwrap();
    let packages = listed["packages"].as_array().unwrap();
    let root: Vec<_> = packages
        .iter()
        .filter(|package| package["root"] == true)
        .collect();
    assert_eq!(root.len(), 1);
    assert_eq!(root[0]["name"], "nodepki");
    let runtime = |name: &str| {
        let package = packages
            .iter()
            .find(|package| package["name"] == name)
            .unwrap();
        package["kind"] != "build"
    };
    assert!(runtime("rustls") && runtime("aws-lc-sys") && !runtime("cc") && !runtime("syn"));
    let missing: Vec<_> = compiled()
        .difference(&named(&listed["packages"]))
        .cloned()
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn sbom_names_every_crate_and_both_libraries_with_licences() {
    let sbom: Value = serde_json::from_slice(&fs::read(file(".cdx.json")).unwrap()).unwrap();
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    assert_eq!(sbom["metadata"]["component"]["name"], "nodepki");
    let components = named(&sbom["components"]);
    let own = (
        env!("CARGO_PKG_NAME").to_owned(),
        env!("CARGO_PKG_VERSION").to_owned(),
    );
    let missing: Vec<_> = compiled()
        .into_iter()
        .filter(|one| *one != own && !components.contains(one))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let components = sbom["components"].as_array().unwrap();
    for name in ["rust-std", "glibc"] {
        assert!(
            components.iter().any(|component| component["name"] == name),
            "{name}"
        );
    }
    for component in components {
        assert!(
            component["licenses"][0]["expression"].is_string(),
            "{component}"
        );
    }
}

#[test]
fn checksums_match_the_files() {
    let directory = crate::packages::directory();
    said(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&directory),
    );
    let sums = fs::read_to_string(directory.join("SHA256SUMS")).unwrap();
    for suffix in [".deb", ".rpm", ".tar.gz", ".oci.tar", ".raw", ".cdx.json"] {
        assert!(sums.lines().any(|line| line.ends_with(suffix)), "{sums}");
    }
}

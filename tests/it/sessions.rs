//! The recorded sessions in the documents: every command is run, and its output compared with the page.
//! `NODEPKI_BLESS=1 cargo test --test it sessions` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nodepki::kube::names::{Authority, CertName};
use nodepki::x509::{ExtendedUsage, KeyAlgorithm, Profile, Sans, Subject};
use serde_json::Value;
use time::OffsetDateTime;

use crate::kubeadm;
use crate::node::{EVERYTHING, INIT, Node, Ran, booted};
use crate::servers;
use crate::signer_directory::sign_by_hand;
use crate::signing::{now, openssl};

const PROJECT: &str = env!("CARGO_MANIFEST_DIR");
/// Pages with sessions.
const PAGES: [&str; 4] = [
    "docs/commands.md",
    "docs/compared.md",
    "docs/runbook.md",
    "docs/tutorial.md",
];
const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);
/// Length of a SHA-256 in unpadded base64url, as the key id has it.
const KEY_ID_LENGTH: usize = 43;

/// Compares the recorded text of this name with `text`, or writes it.
#[track_caller]
pub(crate) fn assert_recorded(name: &str, text: &str) {
    static PAGES_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = PAGES_LOCK
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let begin = format!("<!-- session: {name} -->\n");
    let mut pages = PAGES.iter().map(|page| {
        let text = fs::read_to_string(Path::new(PROJECT).join(page)).unwrap();
        (page, text)
    });
    let (page, found) = pages
        .find(|(_, found)| found.contains(&begin))
        .unwrap_or_else(|| panic!("no page has the line {begin}"));
    let (before, rest) = found.split_once(&begin).unwrap();
    let (recorded, after) = rest.split_once("<!-- end -->\n").unwrap();
    if std::env::var_os("NODEPKI_BLESS").is_some() {
        let blessed = format!("{before}{begin}{text}<!-- end -->\n{after}");
        fs::write(Path::new(PROJECT).join(page), blessed).unwrap();
    } else {
        assert_eq!(
            recorded, text,
            "{page} is out of date; run: NODEPKI_BLESS=1 cargo test --test it -- sessions tutorial"
        );
    }
}

/// A session on one node.
struct Session<'a> {
    node: &'a Node,
    /// Where the node's root is mounted, if it does not run.
    mount: &'static str,
    text: String,
}

impl<'a> Session<'a> {
    fn new(node: &'a Node) -> Self {
        Session {
            node,
            mount: "",
            text: String::new(),
        }
    }

    /// Runs a command, and records it as `shown` with its output.
    fn run(&mut self, shown: &str, command: &mut Command, code: i32) -> Ran {
        let ran = if self.mount.is_empty() {
            Ran::of(&mut booted(self.node, command, ""))
        } else {
            Ran::of(command)
        };
        ran.ended(code);
        self.note(shown, &ran.said());
        if code != 0 {
            self.text.push_str(&format!("$ echo $?\n{code}\n"));
        }
        ran
    }

    fn note(&mut self, shown: &str, output: &str) {
        let shown = stable(self.node, self.mount, shown);
        let output = stable(self.node, self.mount, output);
        self.text.push_str(&format!("$ {shown}{output}"));
    }

    #[track_caller]
    fn record(&self, name: &str) {
        assert_recorded(name, &format!("\n```console\n{}```\n\n", self.text));
    }
}

/// Returns the output without what differs from run to run: paths of the test, dates, key ids.
pub(crate) fn stable(node: &Node, mount: &str, output: &str) -> String {
    let path = |name: &str| node.outside(name).display().to_string();
    let mut text = output.to_owned();
    if !mount.is_empty() {
        text = text.replace(&path("root"), mount);
    }
    for (from, to) in [
        (format!(" --root {}", path("root")), ""),
        (format!(" --config {}", path("config.yaml")), ""),
        (format!(" --kubeadm-config {}", path("kubeadm.yaml")), ""),
        (format!(" --signer directory:{}", path("drop")), ""),
        (path("kubeadm.yaml"), "kubeadm.yaml"),
        (path("drop"), "/srv/drop"),
        (path("root"), ""),
        (path("ca"), "/srv/ca"),
        (path("kubeadm-tree"), "/etc/kubernetes"),
        ("signer s of".to_owned(), "signer corp of"),
        ("/bin/bash".to_owned(), "/usr/local/libexec/corp-signer"),
    ] {
        text = text.replace(&from, to);
    }
    without_dates(&text)
}

/// Replaces dates, times of day after a date, and key ids by fixed ones.
pub(crate) fn without_dates(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let words = line.split(' ').map(|word| match word {
            word if word.len() == KEY_ID_LENGTH && is_base64url(word) => "y".repeat(KEY_ID_LENGTH),
            word => stable_date(word).unwrap_or_else(|| word.to_owned()),
        });
        words.collect::<Vec<_>>().join(" ")
    });
    lines
        .map(|line| format!("{}\n", without_times(&line)))
        .collect()
}

fn is_base64url(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Replaces a date: those of leaf certificates are in 2027, of authorities in 2036, and of the past in 2025.
fn stable_date(word: &str) -> Option<String> {
    let format = time::macros::format_description!("[year]-[month]-[day]");
    let date = time::Date::parse(word.get(..10)?, format).ok()?;
    let days = (date - OffsetDateTime::now_utc().date()).whole_days();
    let shown = match days {
        ..=0 => "2025-12-29",
        1..=300 => "2026-08-20",
        301..=3000 => "2027-01-01",
        3001.. => "2036-01-01",
    };
    Some(match word.get(10..)? {
        time if time.starts_with('T') => format!("{shown}T00:00:00Z{}", time.get(10..)?),
        rest => format!("{shown}{rest}"),
    })
}

/// Replaces each time of day after a date by midnight.
fn without_times(line: &str) -> String {
    let mut line = line.to_owned();
    for date in ["2025-12-29 ", "2026-08-20 ", "2027-01-01 ", "2036-01-01 "] {
        let mut from = 0;
        while let Some(at) = line[from..].find(date) {
            let time = from + at + date.len();
            if line.get(time + 2..time + 3) == Some(":") {
                line.replace_range(time..time + 5, "00:00");
            }
            from = time;
        }
    }
    line
}

fn configured(node: &Node, arguments: &[&str]) -> Command {
    let mut command = node.configured(arguments);
    if arguments[0] == "bootstrap" {
        command.args(["--wait", "0s", "--clock-wait", "0s"]);
    }
    command
}

/// Returns the path of a file of kubeadm's tree, without extension.
fn base(tree: &Path, name: CertName) -> PathBuf {
    if name.is_kubeconfig() {
        tree.join(name.as_str())
    } else {
        tree.join("pki").join(name.base_name())
    }
}

/// The same task with kubeadm and OpenSSL, and what is wrong with the result.
#[test]
fn kubeadm_and_openssl() {
    let node = Node::new();
    let tree = node.outside("kubeadm-tree");
    fs::create_dir(&tree).unwrap();
    let output = kubeadm::generate_csr(kubeadm::Node::new(&tree), INIT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let mut commands = 1;
    for name in EVERYTHING {
        let base = base(&tree, name);
        let file = |extension: &str| format!("{}.{extension}", base.display());
        let ca = node.ca().join(name.authority().base_name());
        let ca = |extension: &str| ca.with_extension(extension).display().to_string();
        let (csr, crt) = (file("csr"), file("crt"));
        let options = [
            "x509",
            "-req",
            "-copy_extensions",
            "copyall",
            "-days",
            "365",
        ];
        let files = [
            "-in",
            &csr,
            "-CA",
            &ca("crt"),
            "-CAkey",
            &ca("key"),
            "-out",
            &crt,
        ];
        openssl(&[&options[..], &files[..]].concat(), b"");
        commands += 1;
    }
    // generate-csr makes no service-account pair, and no kubeconfig has a certificate.
    for shown in [
        "openssl genrsa -out /etc/kubernetes/pki/sa.key 2048",
        "openssl rsa -in /etc/kubernetes/pki/sa.key -pubout -out /etc/kubernetes/pki/sa.pub",
    ] {
        let words: Vec<String> = shown
            .split(' ')
            .skip(1)
            .map(|word| word.replace("/etc/kubernetes", &tree.display().to_string()))
            .collect();
        openssl(&words.iter().map(String::as_str).collect::<Vec<_>>(), b"");
        commands += 1;
    }
    let kubeconfigs: Vec<CertName> = EVERYTHING
        .into_iter()
        .filter(|name| name.is_kubeconfig())
        .collect();
    for name in &kubeconfigs {
        let file = tree.join(name.as_str());
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("client-certificate"), "{name}");
        let (_, users) = text.split_once("\nusers:\n- name: ").unwrap();
        let (user, _) = users.split_once('\n').unwrap();
        let file = file.display().to_string();
        let certificate = format!("{file}.crt");
        let arguments = [
            "config",
            "set-credentials",
            user,
            "--kubeconfig",
            &file,
            "--embed-certs",
            "--client-certificate",
            &certificate,
        ];
        let kubectl = Command::new(servers::bin("kubectl"))
            .args(arguments)
            .output();
        assert!(kubectl.unwrap().status.success(), "{name}");
        assert!(
            fs::read_to_string(&file)
                .unwrap()
                .contains("client-certificate-data")
        );
        commands += 1;
    }

    let before = node.etc();
    let ran = node.csr("import", &tree);
    ran.ended(65);
    before.unchanged(&node.etc());
    let rows = |ran: &Ran, action: &str| {
        let lines = ran.stdout.lines();
        let mut lines: Vec<&str> = lines.collect();
        lines.retain(|line| line.split_whitespace().nth(1) == Some(action));
        lines.len()
    };
    let refused = rows(&ran, "refused");
    let by_nodepki = node.bootstrap();
    let issued = rows(by_nodepki.done(), "issued");
    node.assert_sound(&EVERYTHING);
    let lines = [
        "| | nodepki | kubeadm and OpenSSL |".to_owned(),
        "| --- | --- | --- |".to_owned(),
        format!("| commands | 2 (`plan`, `bootstrap`) | {commands} |"),
        format!(
            "| certificates with the usages that their components require | {issued} of {issued} | {} of {} |",
            EVERYTHING.len() - refused,
            EVERYTHING.len()
        ),
        "| an interruption leaves | the old files or the new ones; the next run continues | any mixture |".to_owned(),
        "| on the machine that runs the commands | no CA key | the CA keys, or a copy of each request and certificate by hand |".to_owned(),
    ];
    assert_recorded("comparison", &format!("\n{}\n\n", lines.join("\n")));
}

#[test]
fn pending_signer() {
    let node = Node::new();
    let drop = node.outside("drop");
    fs::create_dir(&drop).unwrap();
    let bootstrap = || {
        let mut command = node.command(["bootstrap", "--wait", "0s", "--clock-wait", "0s"]);
        command
            .arg("--kubeadm-config")
            .arg(node.outside("kubeadm.yaml"))
            .arg("--signer")
            .arg(format!("directory:{}", drop.display()));
        command
    };
    let mut session = Session::new(&node);
    session.run("nodepki bootstrap", &mut bootstrap(), 75);
    for name in EVERYTHING {
        sign_by_hand(&drop, &node.ca(), name);
    }
    let ca = "/srv/ca/ca";
    session.note(
        &format!("openssl x509 -req -copy_extensions copy -days 365 -in /srv/drop/outbox/apiserver.csr -CA {ca}.crt -CAkey {ca}.key -out /srv/drop/inbox/apiserver.crt"),
        "",
    );
    session
        .text
        .push_str("… and the eleven others, by the owner of the CA\n");
    session.run("nodepki bootstrap", &mut bootstrap(), 0);
    session.record("pending");
    node.assert_sound(&EVERYTHING);
}

#[test]
fn refused_answer() {
    let node = Node::new();
    node.signer_does("apiserver", "bad missing-san");
    let mut session = Session::new(&node);
    session.run(
        "nodepki bootstrap",
        &mut configured(&node, &["bootstrap"]),
        65,
    );
    node.signer_behaves();
    session
        .text
        .push_str("… the owner of the signer corrects its profile\n");
    session.run(
        "nodepki bootstrap",
        &mut configured(&node, &["bootstrap"]),
        0,
    );
    session.record("refused");
    node.assert_sound(&EVERYTHING);
}

/// Returns the content of a certificate according to `plan -o json`.
fn profile(row: &Value) -> Profile {
    let texts = |field: &str| -> Vec<String> {
        let texts = row[field].as_array().into_iter().flatten();
        texts
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let subject = row["subject"].as_str().unwrap();
    let parts = |kind: &str| -> Vec<String> {
        let parts = subject.split(", ");
        let parts = parts.filter_map(|part| part.strip_prefix(kind));
        parts.map(str::to_owned).collect()
    };
    let sans = texts("sans");
    let of = |kind: &str| -> Vec<String> {
        let of = sans.iter().filter_map(|name| name.strip_prefix(kind));
        of.map(str::to_owned).collect()
    };
    Profile {
        subject: Subject {
            common_name: parts("CN=").remove(0),
            organizations: parts("O="),
        },
        sans: Sans {
            dns: of("DNS:"),
            ips: of("IP:").iter().map(|ip| ip.parse().unwrap()).collect(),
        },
        usages: texts("usages")
            .iter()
            .map(|usage| match usage.as_str() {
                "server auth" => ExtendedUsage::ServerAuth,
                _ => ExtendedUsage::ClientAuth,
            })
            .collect(),
        key: KeyAlgorithm::EcdsaP256,
        lifetime: 365 * DAY,
    }
}

/// Replaces every certificate of a node by one for the same key that expired three days ago.
fn expire(node: &Node) {
    let ran = Ran::of(&mut node.with_local(&["plan", "-o", "json"], &[]));
    let plan: Value = serde_json::from_str(&ran.done().stdout).unwrap();
    // One time for all: equal reasons are one group.
    let at = now() - 368 * DAY;
    for name in EVERYTHING {
        let mut rows = plan["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == name.as_str()).unwrap();
        let (_, key) = node.leaf(name).unwrap();
        let authority = node.authority(name.authority());
        let pem = authority
            .issue(key.public_key(), &profile(row), at)
            .unwrap()
            .to_pem();
        if !name.is_kubeconfig() {
            node.write(format!("/etc/kubernetes/pki/{}.crt", name.base_name()), pem);
            continue;
        }
        let path = format!("/etc/kubernetes/{name}");
        let text = node.read(&path);
        let lines = text
            .lines()
            .map(|line| match line.split_once("client-certificate-data: ") {
                Some((indent, _)) => {
                    format!("{indent}client-certificate-data: {}\n", BASE64.encode(&pem))
                }
                None => format!("{line}\n"),
            });
        node.write_secret(&path, lines.collect::<String>());
    }
}

#[test]
fn rescue() {
    let node = Node::new();
    for authority in Authority::ALL {
        node.replace_authority(authority, now() - 400 * DAY, 3650 * DAY);
    }
    node.bootstrap().done();
    node.write(
        "/var/lib/kubelet/config.yaml",
        "kind: KubeletConfiguration\n",
    );
    expire(&node);
    let command = |arguments: &[&str]| {
        let mut command = configured(&node, arguments);
        if arguments[0] == "status" {
            command = node.command(arguments);
        }
        command
    };
    let mut session = Session {
        mount: "/mnt",
        ..Session::new(&node)
    };
    session.run("nodepki --root /mnt status", &mut command(&["status"]), 0);
    session.run(
        "nodepki --root /mnt bootstrap",
        &mut command(&["bootstrap"]),
        0,
    );
    session.record("rescue");
    // Below another root nothing restarts, however often a command runs.
    let begin = format!("; next: nodepki --root {} ", node.root().display());
    for arguments in [["plan"], ["renew"]] {
        let ran = Ran::of(&mut command(&arguments));
        let closing = ran.done().closing();
        let is_right = closing.contains(&begin) && closing.ends_with(", then boot the node");
        assert!(is_right, "{closing}");
    }
    node.assert_sound(&EVERYTHING);
}

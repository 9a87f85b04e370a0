//! The documents: their generated parts match the code and the examples, their links lead to a file and a heading, and
//! the README keeps its form.
//!
//! `NODEPKI_BLESS=1 cargo test --test it readme` writes the generated parts.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use nodepki::config::Settings;
use nodepki::kubelets::RequestReason;
use nodepki::signer::{Carry, Renewal, RequestLookup, Resubmit, SignerKind};

use crate::manual;

const PROJECT: &str = env!("CARGO_MANIFEST_DIR");
const BEGIN: &str = "<!-- generated: run `NODEPKI_BLESS=1 cargo test --test it readme` -->\n";
const END: &str = "<!-- end of generated -->\n";
const MAX_README_BYTES: usize = 8 << 10;
/// Directories with Markdown pages, and whether their subdirectories have pages too.
const PAGE_DIRECTORIES: [(&str, bool); 5] = [
    (".", false),
    ("docs", true),
    ("cloud-init", false),
    ("packaging", false),
    ("tests/golden", false),
];

fn read(page: impl AsRef<Path>) -> String {
    let path = Path::new(PROJECT).join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn carry(carry: Carry) -> &'static str {
    match carry {
        Carry::Yes => "yes",
        Carry::AsConfigured => "if configured there",
        Carry::No => "no",
    }
}

/// Describes what happens to a request if the process ends between request and answer.
fn resume(lookup: RequestLookup, resubmit: Resubmit) -> &'static str {
    match (lookup, resubmit) {
        (RequestLookup::ByName, _) => "found by name",
        (RequestLookup::ByResubmit, _) => "sent again, which finds it",
        (RequestLookup::ByTicket, Resubmit::Adopts) => {
            "found by ticket, or sent again as the same request"
        }
        (RequestLookup::ByTicket, _) => "found by ticket",
        (RequestLookup::None, Resubmit::Adopts) => "sent again as the same request",
        (RequestLookup::None, Resubmit::Duplicates) => {
            "sent again: a second certificate for the same key"
        }
        (RequestLookup::None, Resubmit::FreshCredential) => "sent again with a new token",
        (RequestLookup::None, Resubmit::Forbidden) => "needs manual action",
    }
}

fn renewal(renewal: Renewal) -> &'static str {
    match renewal {
        Renewal::Submit => "like a first request",
        Renewal::SameKey => "authenticated by the old certificate, same key",
        Renewal::Rekey => "authenticated by the old certificate, any key",
    }
}

fn yes_or_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

/// Returns a Markdown table.
fn table(columns: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let row = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let heading: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
    let mut text = row(&heading);
    text.push_str(&row(&vec!["---".to_owned(); columns.len()]));
    for cells in rows {
        text.push_str(&row(&cells));
    }
    text
}

/// Returns the capabilities of a kind: name of each, and its value.
fn capabilities(kind: SignerKind) -> [(&'static str, String); 12] {
    let about = kind.about();
    let caps = &about.caps;
    [
        ("signs with", about.signs_with.to_owned()),
        ("O", carry(caps.organization).to_owned()),
        ("`system:` names", carry(caps.colon_common_name).to_owned()),
        ("IP SANs", carry(caps.ip_sans).to_owned()),
        ("ML-DSA keys", carry(caps.ml_dsa).to_owned()),
        ("node authenticates by", about.authentication.to_owned()),
        ("may be pending", yes_or_no(caps.pends).to_owned()),
        (
            "after a crash",
            resume(caps.lookup, caps.resubmit).to_owned(),
        ),
        ("renewal", renewal(caps.renewal).to_owned()),
        ("CRL", carry(caps.crl).to_owned()),
        ("kubelets", carry(caps.other_nodes).to_owned()),
        ("pods", carry(caps.empty_csr).to_owned()),
    ]
}

fn signers_of_readme() -> String {
    table(
        &["kind", "signs with", "may be pending"],
        SignerKind::ALL.into_iter().map(|kind| {
            vec![
                format!("[`{kind}`](docs/signers/{kind}.md)"),
                kind.about().signs_with.to_owned(),
                yes_or_no(kind.about().caps.pends).to_owned(),
            ]
        }),
    )
}

fn comparison() -> String {
    let names = capabilities(SignerKind::Exec).map(|(name, _)| name);
    let rows = SignerKind::ALL.into_iter().map(|kind| {
        let mut row = vec![format!("[`{kind}`]({kind}.md)")];
        row.extend(capabilities(kind).map(|(_, value)| value));
        row
    });
    table(&[&["kind"], &names[..]].concat(), rows)
}

fn reasons() -> String {
    table(
        &["reason", "meaning"],
        RequestReason::ALL
            .into_iter()
            .map(|reason| vec![format!("`{reason}`"), reason.meaning().to_owned()]),
    )
}

/// Returns the table of rooms in `src/lib.rs`.
fn rooms() -> String {
    let source = read("src/lib.rs");
    let rows = source
        .lines()
        .filter_map(|line| line.strip_prefix("//! | "));
    let rows: Vec<String> = rows
        .map(|row| format!("| {}\n", row.replace("[`", "`").replace("`]", "`")))
        .collect();
    assert!(rows.len() > 10, "{rows:?}");
    rows.concat()
}

fn signer_page(kind: SignerKind) -> String {
    let example = read(format!("packaging/examples/signers/{kind}.yaml"));
    let rows = capabilities(kind).map(|(name, value)| vec![name.to_owned(), value]);
    let mut text = format!("## Capabilities\n\n{}\n## Keys\n\n", table(&["", ""], rows));
    match kind.documentation() {
        keys if keys.is_empty() => text.push_str("None.\n"),
        keys => {
            let _ = write!(text, "Below `signers.NAME.{kind}`:\n\n{keys}");
        }
    }
    let _ = write!(
        text,
        "\n## Example\n\n`packaging/examples/signers/{kind}.yaml`:\n\n```yaml\n{}\n```\n",
        example.trim_end()
    );
    text
}

/// Returns every page with a generated part, and that part.
fn generated() -> Vec<(String, String)> {
    let mut pages = vec![
        ("README.md".to_owned(), signers_of_readme()),
        ("docs/signers/README.md".to_owned(), comparison()),
        ("docs/kubelets.md".to_owned(), reasons()),
        ("docs/architecture.md".to_owned(), rooms()),
        (
            "docs/configuration.md".to_owned(),
            Settings::documentation(),
        ),
    ];
    for kind in SignerKind::ALL {
        pages.push((format!("docs/signers/{kind}.md"), signer_page(kind)));
    }
    pages
}

/// `capi secrets --etcd-client-ca` puts a CA key into a Secret and into user data: the sentences that promise the opposite
/// name the option, and no command to copy contains it.
#[test]
fn promises_of_no_ca_key_name_their_exception() {
    for (page, promise) in [
        ("README.md", "without a CA private key on the node"),
        (
            "docs/cluster-api.md",
            "keys of the cluster's CAs stay with the signer",
        ),
        (
            "docs/security.md",
            "is never needed on a node, in the management cluster",
        ),
        ("docs/configuration.md", "for leaf certificates only"),
    ] {
        let text = read(page);
        let line = text.lines().find(|line| line.contains(promise));
        let line = line.unwrap_or_else(|| panic!("{page}: {promise}"));
        assert!(line.contains("--etcd-client-ca"), "{page}: {line}");
    }
    for page in [
        "docs/cluster-api.md",
        "cloud-init/cluster-api.yaml",
        "cloud-init/ignition/cluster-api.yaml",
    ] {
        let text = read(page);
        let mut lines = text.lines();
        let copied = |line: &&str| {
            let command = line.contains("nodepki capi secrets prod --endpoint");
            command || line.starts_with("CAPI_SECRETS_OPTIONS=")
        };
        let option = lines.find(|line| copied(line) && line.contains("--etcd-client-ca"));
        assert_eq!(option, None, "{page}");
    }
}

#[test]
fn generated_parts_match_code_and_examples() {
    for (page, expected) in generated() {
        let text = read(&page);
        let parts = text.split_once(BEGIN).and_then(|(before, rest)| {
            let (found, after) = rest.split_once(END)?;
            Some((before, found, after))
        });
        let (before, found, after) =
            parts.unwrap_or_else(|| panic!("{page} has no lines {BEGIN}{END}"));
        if std::env::var_os("NODEPKI_BLESS").is_some() {
            let text = format!("{before}{BEGIN}{expected}{END}{after}");
            fs::write(Path::new(PROJECT).join(&page), text).unwrap();
        } else {
            assert_eq!(
                found, expected,
                "{page} is out of date; run: NODEPKI_BLESS=1 cargo test --test it readme"
            );
        }
    }
}

#[test]
fn first_screen_has_two_commands_and_links_to_runbook() {
    let readme = read("README.md");
    let (first_screen, _) = readme.split_once("\n## ").unwrap();
    assert_eq!(first_screen.matches("```sh\n").count(), 2);
    assert!(first_screen.contains("cargo run -- demo"));
    assert!(first_screen.contains("\ntests/run\n"));
    assert!(first_screen.contains("](docs/runbook.md)"));
}

#[test]
fn readme_keeps_within_size_limit() {
    let size = read("README.md").len();
    assert!(size <= MAX_README_BYTES, "{size} bytes");
}

#[test]
fn every_command_is_documented() {
    let page = read("docs/commands.md");
    let commands = manual::leaves().into_iter();
    let missing: Vec<String> = commands
        .filter_map(|words| words.into_iter().next())
        .filter(|name| !page.contains(&format!("`{name}")))
        .collect();
    assert!(missing.is_empty(), "not in docs/commands.md: {missing:?}");
}

/// Returns the paths of all pages, relative to the project.
fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for (directory, recursive) in PAGE_DIRECTORIES {
        collect_pages(Path::new(directory), recursive, &mut pages);
    }
    assert!(pages.len() > 25, "{pages:?}");
    pages
}

fn collect_pages(directory: &Path, recursive: bool, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(PROJECT).join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if recursive {
                collect_pages(&path, recursive, pages);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// Returns the anchors of the headings of a page, as GitHub derives them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            });
            kept.collect()
        })
        .collect()
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for link in text.split("](").skip(1) {
            let (target, _) = link.split_once(')').unwrap();
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let exists = Path::new(PROJECT).join(&path).exists();
            if !exists
                || (!anchor.is_empty() && !anchors(&read(&path)).contains(&anchor.to_owned()))
            {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

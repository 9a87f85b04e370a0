//! The pages below `docs`: all are chapters of the book, and every shell block is run by a test, which reads it by the
//! functions here.

use std::fs;
use std::path::Path;

const PROJECT: &str = env!("CARGO_MANIFEST_DIR");
/// Number of shell blocks of each page that has some, and the tests that run them with umask 022.
const SHELL_BLOCKS: [(&str, usize, &str); 12] = [
    // The blocks with the three steps and with `rotate` have the options of the tests.
    (
        "docs/ca-change.md",
        7,
        "authority::on_a_cluster, authority_rotation",
    ),
    // The block about the expiry of machines has the options of the test.
    ("docs/cluster-api.md", 5, "capi_migrate, capi, tutorial"),
    ("docs/configuration.md", 1, "tutorial"),
    ("docs/installing.md", 4, "tests/run package; tutorial"),
    ("docs/joining.md", 3, "join_control_plane, etcd_members"),
    ("docs/kubelets.md", 3, "workers"),
    ("docs/migrating.md", 1, "migrate"),
    ("docs/rotation.md", 3, "tutorial, named_pair"),
    ("docs/runbook.md", 14, "runbook"),
    ("docs/security.md", 2, "tutorial"),
    ("docs/signers/exec.md", 1, "signer_exec"),
    ("docs/tutorial.md", 10, "tutorial"),
];

fn read(page: &str) -> String {
    let path = Path::new(PROJECT).join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Returns the part of a page from a heading to the next one of the same or a higher level.
pub(crate) fn section(page: &str, heading: &str) -> String {
    let text = read(page);
    let mut lines = text.lines().skip_while(|line| *line != heading);
    let first = lines.next();
    let first = first.unwrap_or_else(|| panic!("{page} has no line {heading}"));
    let level = first.bytes().take_while(|byte| *byte == b'#').count();
    let mut is_code = false;
    let section = lines.take_while(|line| {
        is_code ^= line.trim_start().starts_with("```");
        let hashes = line.bytes().take_while(|byte| *byte == b'#').count();
        is_code || hashes == 0 || hashes > level
    });
    section.map(|line| format!("{line}\n")).collect()
}

/// Returns the blocks of a text in a language, without their indentation.
pub(crate) fn blocks(text: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}");
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() != begin {
            continue;
        }
        let indentation = line.len() - line.trim_start().len();
        let block = lines.by_ref().take_while(|line| line.trim() != "```");
        let block = block.map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default()));
        blocks.push(block.collect());
    }
    blocks
}

fn pages() -> Vec<String> {
    let mut pages = Vec::new();
    for directory in ["docs", "docs/signers"] {
        for entry in fs::read_dir(Path::new(PROJECT).join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && name != "SUMMARY.md" {
                pages.push(format!("{directory}/{name}"));
            }
        }
    }
    pages.sort();
    pages
}

#[test]
fn every_page_is_a_chapter_of_the_book() {
    let summary = read("docs/SUMMARY.md");
    let is_chapter = |page: &String| {
        let link = format!("]({})", page.strip_prefix("docs/").unwrap());
        summary.matches(&link).count() == 1
    };
    let missing: Vec<String> = pages()
        .into_iter()
        .filter(|page| !is_chapter(page))
        .collect();
    assert!(
        missing.is_empty(),
        "not once in docs/SUMMARY.md: {missing:?}"
    );
}

#[test]
fn every_shell_block_is_run_by_a_test() {
    for page in pages() {
        let found = blocks(&read(&page), "sh").len();
        let row = SHELL_BLOCKS.iter().find(|(name, ..)| *name == page);
        let listed = row.map_or(0, |(_, blocks, _)| *blocks);
        assert_eq!(
            found, listed,
            "{page}: run each block in a test, and count it here"
        );
    }
}

#[test]
fn every_page_that_is_mentioned_exists() {
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
    let mut directories = ["src", "packaging", "cloud-init", "systemd", "docs"]
        .map(|name| Path::new(PROJECT).join(name))
        .to_vec();
    let (mut mentions, mut missing) = (0, Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            for rest in text.split("docs/").skip(1) {
                let end = rest.find(|c| !is_of_path(c)).unwrap_or(rest.len());
                let page = rest[..end].trim_end_matches('.');
                if page.ends_with(".md") {
                    mentions += 1;
                    if !Path::new(PROJECT).join("docs").join(page).exists() {
                        missing.push(format!("{}: docs/{page}", path.display()));
                    }
                }
            }
        }
    }
    assert!(mentions > 10 && missing.is_empty(), "{missing:#?}");
}

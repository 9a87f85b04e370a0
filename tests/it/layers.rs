//! The rooms of the library, against the table in `src/lib.rs`: imports go downward, and pure rooms do no I/O.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Paths that a pure room must not use: file system, network, environment, clock, system calls.
const IMPURE: [&str; 9] = [
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::env",
    "SystemTime::now",
    "now_utc",
    "tokio::",
    "nix::",
    "rustix::",
];

/// A row of the table in `src/lib.rs`.
struct Room {
    name: String,
    is_pure: bool,
}

struct Source {
    room: String,
    path: String,
    /// Without comments and without the tests at its end.
    code: String,
}

/// Returns the rooms of the table, from top to bottom.
fn rooms() -> Vec<Room> {
    let page = fs::read_to_string(src().join("lib.rs")).unwrap();
    let rows = page.lines().filter_map(|line| {
        let row = line.strip_prefix("//! | [`")?;
        let (name, rest) = row.split_once("`] | ")?;
        let (pure, _) = rest.split_once(" | ")?;
        Some(Room {
            name: name.to_owned(),
            is_pure: match pure {
                "yes" => true,
                "no" => false,
                other => panic!("the row of {name} in src/lib.rs has {other:?} for `pure`"),
            },
        })
    });
    let rooms: Vec<Room> = rows.collect();
    assert!(rooms.len() > 10, "the table in src/lib.rs was not found");
    rooms
}

fn src() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(src(), None, &mut found);
    assert!(found.len() > 100, "the sources were not found");
    found
}

fn collect(dir: &Path, room: Option<&str>, found: &mut Vec<Source>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let room = room.unwrap_or(&stem);
        if path.is_dir() {
            collect(&path, Some(room), found);
        } else if !matches!(room, "main" | "lib") && stem != "tests" {
            found.push(Source {
                room: room.to_owned(),
                path: path.display().to_string(),
                code: code(&fs::read_to_string(&path).unwrap()),
            });
        }
    }
}

fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
    let lines = source.lines();
    let code = lines.filter(|line| !line.trim_start().starts_with("//"));
    code.collect::<Vec<_>>().join("\n")
}

/// Returns the rooms that a file imports: `crate::room…` and the first names of `crate::{room…, room…}`.
fn imported(code: &str) -> BTreeSet<String> {
    let identifier = |text: &str| -> String {
        let chars = text.chars();
        chars
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect()
    };
    let mut rooms = BTreeSet::new();
    for used in code.split("crate::").skip(1) {
        match used.strip_prefix('{') {
            None => {
                rooms.insert(identifier(used));
            }
            Some(group) => {
                let mut depth = 0;
                let mut starts = true;
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => starts = true,
                        c if starts && !c.is_whitespace() => {
                            rooms.insert(identifier(&group[at..]));
                            starts = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    rooms.remove("");
    rooms
}

#[test]
fn table_of_rooms_lists_every_module() {
    let page = fs::read_to_string(src().join("lib.rs")).unwrap();
    let declared: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    let rooms = rooms();
    let listed: BTreeSet<&str> = rooms.iter().map(|room| room.name.as_str()).collect();
    assert_eq!(listed, declared, "the table and the modules in src/lib.rs");
}

#[test]
fn imports_go_downward() {
    let rooms = rooms();
    let depth = |name: &str| {
        let place = rooms.iter().position(|room| room.name == name);
        place.unwrap_or_else(|| panic!("the table in src/lib.rs has no row for {name}"))
    };
    for source in sources() {
        for used in imported(&source.code) {
            assert!(
                depth(&source.room) <= depth(&used),
                "{} uses crate::{used}, which is above its room in the table of src/lib.rs",
                source.path
            );
        }
    }
}

#[test]
fn finds_imports_in_groups() {
    let code =
        "use crate::{agent::{Clock, Failure}, http,\n    store};\nlet x = crate::text::hex(1);";
    let found: Vec<String> = imported(code).into_iter().collect();
    assert_eq!(found, ["agent", "http", "store", "text"]);
}

#[test]
fn pure_rooms_do_no_io() {
    let pure: Vec<Room> = rooms().into_iter().filter(|room| room.is_pure).collect();
    assert!(!pure.is_empty());
    for source in sources() {
        if pure.iter().any(|room| room.name == source.room) {
            for word in IMPURE {
                assert!(
                    !source.code.contains(word),
                    "{} is in a pure room and must not use {word}",
                    source.path
                );
            }
        }
    }
}

/// Files that search text which is not nodepki's own, or which join texts, with the reason.
const TEXT_SEARCHES: [(&str, &str); 8] = [
    ("agent/examine.rs", "a warning that another one contains"),
    ("agent/load/files.rs", "an error without its path"),
    ("cluster/api.rs", "messages of the API server"),
    (
        "commands/output/addressed.rs",
        "commands in messages get the options of the run",
    ),
    ("kube/kubeadm/cluster.rs", "arguments in a kubeadm document"),
    ("signer/cluster/requests.rs", "messages of the API server"),
    ("yaml.rs", "messages of the parser"),
    ("yaml/syntax.rs", "messages of the parser"),
];

/// A decision depends on a value, never on the text that tells people about it.
#[test]
fn no_decision_depends_on_a_message() {
    const TEXTS: [&str; 10] = [
        "reason",
        "message",
        "problem",
        "sentence",
        "words",
        "why",
        "fault",
        "remark",
        "finding",
        "to_string()",
    ];
    const SEARCHES: [&str; 5] = [
        "contains",
        "starts_with",
        "ends_with",
        "strip_prefix",
        "strip_suffix",
    ];
    let mut found = BTreeSet::new();
    for source in sources() {
        let (_, path) = source.path.rsplit_once("/src/").unwrap();
        if path.contains("/tests/") {
            continue;
        }
        let lines = source.code.lines().map(str::trim);
        let code = lines.collect::<Vec<_>>().join("\n").replace("\n.", ".");
        for text in TEXTS {
            for access in ["", ".as_str()"] {
                for search in SEARCHES {
                    let call = format!("{text}{access}.{search}(");
                    let mut calls = code.match_indices(&call);
                    let is_whole = |at: usize| {
                        !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                    };
                    if calls.any(|(at, _)| text == "to_string()" || is_whole(at)) {
                        found.insert(path.to_owned());
                    }
                }
            }
        }
    }
    let known = TEXT_SEARCHES.map(|(file, _)| file.to_owned());
    assert_eq!(found, BTreeSet::from(known));
}

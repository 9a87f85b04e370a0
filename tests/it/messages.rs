//! Every message of an error is looked at by a test.
//!
//! The messages are the texts of `#[error("…")]` in `src`. A test looks at a message if a string of its source, or a golden
//! file, contains enough of the message to tell it from every other text of the program; see [`Recognition`]. A message
//! that no test looks at is listed in [`EXCEPTIONS`] with its reason.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Number of consecutive characters that identify a message if no other text contains them.
const RUN: usize = 16;
/// Number of letters below which the fixed text of a message only joins the texts of others.
const MIN_LETTERS: usize = 7;

/// Messages that no test can produce, by file and variant, with the reason.
const EXCEPTIONS: [(&str, &str, &str); 11] = [
    (
        "src/kube/kubeadm_certs.rs",
        "Random",
        "getrandom(2) must fail",
    ),
    (
        "src/kube/kubeadm_certs.rs",
        "TooLarge",
        "AES-GCM encrypts up to 64 GiB",
    ),
    (
        "src/x509/authority.rs",
        "Random",
        "AWS-LC's generator must fail",
    ),
    (
        "src/x509/csr.rs",
        "Encoding",
        "rcgen must fail to encode a profile",
    ),
    (
        "src/x509/key.rs",
        "Generation",
        "a generator of keys must fail",
    ),
    ("src/x509/key.rs", "Signing", "AWS-LC must fail to sign"),
    (
        "src/x509/key.rs",
        "Encryption",
        "AWS-LC must fail to encrypt",
    ),
    (
        "src/x509/self_test.rs",
        "RandomSource",
        "AWS-LC's generator must fail",
    ),
    (
        "src/x509/self_test.rs",
        "Key",
        "a generator of keys must fail",
    ),
    (
        "src/x509/self_test.rs",
        "RepeatedKey",
        "a generator of keys must repeat a key",
    ),
    (
        "src/x509/self_test.rs",
        "Signing",
        "AWS-LC must fail to sign",
    ),
];

/// A text of `#[error("…")]`.
struct Message {
    /// Path below the crate, such as `src/yaml.rs`.
    file: String,
    /// Variant, or the name of a structure.
    name: String,
    text: String,
}

/// The strings of a source file.
#[derive(Default)]
struct Strings {
    messages: Vec<Message>,
    /// Those of the program.
    program: Vec<String>,
    /// Those of `#[cfg(test)]` items.
    tests: Vec<String>,
}

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files below a directory that have one of these extensions.
fn files(dir: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![crate_dir().join(dir)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let extension = path.extension().unwrap_or_default();
            if path.is_dir() && path.file_name().unwrap() != "target" {
                directories.push(path);
            } else if extensions.iter().any(|wanted| extension == *wanted) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{dir} has no such files");
    found
}

/// Returns the value of a string literal.
fn string(token: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = token else {
        return None;
    };
    match syn::Lit::new(literal.clone()) {
        syn::Lit::Str(text) => Some(text.value()),
        syn::Lit::ByteStr(bytes) => Some(String::from_utf8_lossy(&bytes.value()).into_owned()),
        _ => None,
    }
}

/// Returns the content of an attribute whose path is `name`: `error` for `#[error("…")]`.
fn attribute(tokens: &[TokenTree], name: &str) -> Option<Vec<TokenTree>> {
    let [TokenTree::Punct(hash), TokenTree::Group(group), ..] = tokens else {
        return None;
    };
    if hash.as_char() != '#' || group.delimiter() != Delimiter::Bracket {
        return None;
    }
    let mut inner = group.stream().into_iter();
    let is_named = inner.next().is_some_and(|path| path.to_string() == name);
    is_named.then(|| match inner.next() {
        Some(TokenTree::Group(arguments)) => arguments.stream().into_iter().collect(),
        _ => Vec::new(),
    })
}

impl Strings {
    /// Adds those of a file.
    fn add_file(&mut self, path: &Path) {
        let file = path
            .strip_prefix(crate_dir())
            .unwrap()
            .display()
            .to_string();
        let source = fs::read_to_string(path).unwrap();
        let tokens: TokenStream = source
            .parse()
            .unwrap_or_else(|error| panic!("{file}: {error}"));
        let is_test =
            !file.starts_with("src/") || file.ends_with("/tests.rs") || file.contains("/tests/");
        self.add(&file, tokens, is_test);
    }

    fn add(&mut self, file: &str, tokens: TokenStream, is_test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut item_is_test = false;
        let mut rest = &tokens[..];
        while let Some((token, after)) = rest.split_first() {
            let is_test = is_test || item_is_test;
            let test_attribute = attribute(rest, "cfg").is_some_and(
                |condition| matches!(&condition[..], [word] if word.to_string() == "test"),
            );
            if test_attribute {
                item_is_test = true;
            } else if attribute(rest, "doc").is_some() {
                rest = &after[1..];
                continue;
            } else if let Some(text) = attribute(rest, "error")
                .as_deref()
                .and_then(<[_]>::first)
                .and_then(string)
            {
                let name = after.iter().find_map(|token| match token {
                    TokenTree::Ident(name)
                        if !["pub", "struct"].contains(&name.to_string().as_str()) =>
                    {
                        Some(name)
                    }
                    _ => None,
                });
                let name = name.unwrap().to_string();
                self.messages.push(Message {
                    file: file.to_owned(),
                    name,
                    text,
                });
                rest = &after[1..];
                continue;
            }
            match token {
                TokenTree::Group(group) => {
                    self.add(file, group.stream(), is_test);
                    item_is_test &= group.delimiter() != Delimiter::Brace;
                }
                TokenTree::Punct(end) if end.as_char() == ';' => item_is_test = false,
                token => {
                    let strings = if is_test {
                        &mut self.tests
                    } else {
                        &mut self.program
                    };
                    strings.extend(string(token));
                }
            }
            rest = after;
        }
    }
}

/// Returns the parts of a format string between its placeholders.
fn fixed_parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '{' | '}' if chars.next_if_eq(&c).is_some() => parts.last_mut().unwrap().push(c),
            '{' => {
                chars.by_ref().find(|c| *c == '}');
                parts.push(String::new());
            }
            c => parts.last_mut().unwrap().push(c),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Reports whether a text contains all parts, in this order.
fn contains_in_order(text: &str, parts: &[String]) -> bool {
    let mut rest = text;
    parts
        .iter()
        .all(|part| match rest.split_once(part.as_str()) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
}

fn letters(parts: &[String]) -> usize {
    let chars = parts.iter().flat_map(|part| part.chars());
    chars.filter(|c| c.is_alphabetic()).count()
}

/// Returns every sequence of [`RUN`] characters of a text.
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let start = |(at, _)| at;
    let starts = text.char_indices().map(start);
    let ends = text.char_indices().map(start).chain([text.len()]);
    let spans = starts.zip(ends.skip(RUN));
    spans.map(|(start, end)| &text[start..end])
}

/// Texts of messages, each as the fixed parts between its placeholders, and how to recognize them.
struct Recognition {
    messages: BTreeMap<String, Vec<String>>,
    /// Runs that exactly one text of the program contains, with the message.
    unique: HashMap<String, String>,
    /// For a message without a unique run: longer texts of the program that contain its parts.
    longer: BTreeMap<String, Vec<Vec<String>>>,
}

impl Recognition {
    fn new(messages: &[Message], program: &[String]) -> Recognition {
        let messages: BTreeMap<String, Vec<String>> = messages
            .iter()
            .map(|message| (message.text.clone(), fixed_parts(&message.text)))
            .filter(|(_, parts)| letters(parts) >= MIN_LETTERS)
            .collect();
        let others: BTreeSet<&String> = program.iter().collect();
        let others: Vec<Vec<String>> = others.into_iter().map(|text| fixed_parts(text)).collect();
        let mut texts_with: HashMap<&str, usize> = HashMap::new();
        for parts in messages.values() {
            let runs: HashSet<&str> = parts.iter().flat_map(|part| runs(part)).collect();
            for run in runs {
                *texts_with.entry(run).or_default() += 1;
            }
        }
        for run in others.iter().flatten().flat_map(|part| runs(part)) {
            if let Some(texts) = texts_with.get_mut(run) {
                *texts += 1;
            }
        }
        let mut unique = HashMap::new();
        let mut longer = BTreeMap::new();
        for (text, parts) in &messages {
            let runs = parts.iter().flat_map(|part| runs(part));
            let own: Vec<&str> = runs.filter(|run| texts_with[run] == 1).collect();
            if own.is_empty() {
                let all = messages.values().chain(&others);
                let containing = all.filter(|other| {
                    letters(other) > letters(parts) && contains_in_order(&other.join("\0"), parts)
                });
                longer.insert(text.clone(), containing.cloned().collect());
            }
            unique.extend(own.into_iter().map(|run| (run.to_owned(), text.clone())));
        }
        Recognition {
            messages,
            unique,
            longer,
        }
    }

    /// Adds the messages that a text of a test identifies.
    ///
    /// It contains a run of characters that only this message has. A message that is too short for that, or part of
    /// others, must be in the text as a whole, and must not be there as a part of a longer one.
    fn add_recognized(&self, text: &str, seen: &mut BTreeSet<String>) {
        seen.extend(runs(text).filter_map(|run| self.unique.get(run)).cloned());
        for (message, longer) in &self.longer {
            if contains_in_order(text, &self.messages[message])
                && !longer.iter().any(|parts| contains_in_order(text, parts))
            {
                seen.insert(message.clone());
            }
        }
    }
}

#[test]
fn every_error_message_is_looked_at_by_a_test() {
    let mut program = Strings::default();
    for path in files("src", &["rs"]) {
        program.add_file(&path);
    }
    for path in files("tests/it", &["rs"])
        .into_iter()
        .chain(files("vm-tests", &["rs"]))
    {
        if !path.ends_with("it/messages.rs") {
            program.add_file(&path);
        }
    }
    let recognition = Recognition::new(&program.messages, &program.program);
    assert!(
        recognition.messages.len() > 150,
        "the messages were not found"
    );
    let mut seen = BTreeSet::new();
    for text in &program.tests {
        recognition.add_recognized(text, &mut seen);
    }
    for path in files("tests/golden", &["txt", "json"]) {
        let golden = fs::read_to_string(path).unwrap();
        for line in golden.lines() {
            recognition.add_recognized(line, &mut seen);
        }
    }
    let mut exceptions: BTreeSet<(&str, &str)> = EXCEPTIONS
        .iter()
        .map(|(file, name, _)| (*file, *name))
        .collect();
    assert_eq!(
        exceptions.len(),
        EXCEPTIONS.len(),
        "an exception is listed twice"
    );
    let mut faults = Vec::new();
    for Message { file, name, text } in &program.messages {
        let is_listed = exceptions.remove(&(file.as_str(), name.as_str()));
        let is_checked = recognition.messages.contains_key(text);
        match (is_checked && !seen.contains(text), is_listed) {
            (true, false) => faults.push(format!(
                "{file}: {name}: no test looks at its text {text:?}"
            )),
            (false, true) => faults.push(format!(
                "{file}: {name} is an exception, and a test looks at its text"
            )),
            _ => {}
        }
    }
    faults.extend(
        exceptions
            .iter()
            .map(|(file, name)| format!("{file}: {name} is an exception and does not exist")),
    );
    assert!(
        faults.is_empty(),
        "{} messages:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn recognizes_messages_by_what_only_they_say() {
    let message = |text: &str| Message {
        file: String::new(),
        name: String::new(),
        text: text.to_owned(),
    };
    let messages = [
        "{0} is missing",
        "key usage {0} is missing",
        "{file} is a mount point (unmount {file})",
    ]
    .map(message);
    let program = [
        "the file {} is missing".to_owned(),
        "somewhere it is a mount".to_owned(),
    ];
    let recognition = Recognition::new(&messages, &program);
    let recognized = |text: &str| {
        let mut seen = BTreeSet::new();
        recognition.add_recognized(text, &mut seen);
        seen.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(recognized("metadata.name is missing"), ["{0} is missing"]);
    assert_eq!(
        recognized("key usage serverAuth is missing"),
        ["key usage {0} is missing"]
    );
    assert_eq!(recognized("the file /x is missing"), [""; 0]);
    assert_eq!(
        recognized("/x is a mount point"),
        ["{file} is a mount point (unmount {file})"]
    );
    assert_eq!(recognized("it is a mount"), [""; 0]);
}

#[test]
fn finds_messages_and_strings_of_tests_in_sources() {
    let source = r#"
        /// Not a string.
        #[derive(Debug, Error)]
        enum Fault {
            #[error("the file {0} is empty")]
            #[non_exhaustive]
            Empty(String),
            #[error(transparent)]
            Other(Inner),
        }
        #[derive(Debug, Error)]
        #[error("it is\
                 closed")]
        pub struct Closed;
        fn print() { println!("printed"); }
        #[cfg(test)]
        mod tests {
            #[test]
            fn says() { assert!(text.contains("says")); }
        }
        const AFTER: &str = "after";
    "#;
    let mut found = Strings::default();
    found.add("src/x.rs", source.parse().unwrap(), false);
    let messages: Vec<_> = found
        .messages
        .iter()
        .map(|message| (message.name.as_str(), message.text.as_str()))
        .collect();
    assert_eq!(
        messages,
        [
            ("Empty", "the file {0} is empty"),
            ("Closed", "it isclosed")
        ]
    );
    assert_eq!(found.program, ["printed", "after"]);
    assert_eq!(found.tests, ["says"]);
}

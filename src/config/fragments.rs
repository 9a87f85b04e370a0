//! The fragments of a configuration: where they are, and how they are merged. A later scalar replaces an earlier one, maps
//! merge key by key, a list replaces the earlier list, and `null` removes a value.

use std::io;
use std::path::{Path, PathBuf};

use crate::yaml::{self, FaultSeverity, Faults, FieldPosition, Node};

/// The configuration file.
pub const MAIN_FILE: &str = "/etc/nodepki/config.yaml";
/// Directories of further fragments, in order of precedence, lowest first. Within one the file names are sorted.
pub const FRAGMENT_DIRECTORIES: [&str; 2] = ["/etc/nodepki/config.d", "/run/nodepki"];
/// Maximum number of fragments in one directory.
const MAX_FRAGMENTS: usize = 100;
/// Maximum size of all fragments together, in bytes.
const MAX_SETTINGS_BYTES: usize = 4 << 20;
/// `apiVersion` of every fragment.
pub const API_VERSION: &str = "nodepki.io/v1alpha1";
/// `kind` of every fragment.
pub const KIND: &str = "NodePKIConfiguration";

/// Reads all fragments in order, through the caller's functions. Each function receives an absolute path: `list` returns
/// the file names in a directory (none if it does not exist), `read` the text of a file or `None` if it does not exist,
/// `shown` the path for messages. With `only`, that one file is read and must exist.
///
/// # Errors
/// The errors of `list` and `read`, and not found for `only`.
pub fn collect(
    only: Option<&Path>,
    mut list: impl FnMut(&Path) -> io::Result<Vec<String>>,
    mut read: impl FnMut(&Path) -> io::Result<Option<String>>,
    shown: impl Fn(&Path) -> PathBuf,
) -> io::Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    match only {
        Some(path) => paths.push(path.to_owned()),
        None => {
            paths.push(PathBuf::from(MAIN_FILE));
            for directory in FRAGMENT_DIRECTORIES {
                let directory = Path::new(directory);
                let mut names = list(directory)?;
                names.retain(|name| name.ends_with(".yaml") && !name.starts_with('.'));
                names.sort();
                if names.len() > MAX_FRAGMENTS {
                    return Err(io::Error::other(format!(
                        "{}: contains {} settings files, at most {MAX_FRAGMENTS} are read (merge them)",
                        shown(directory).display(),
                        names.len()
                    )));
                }
                paths.extend(names.iter().map(|name| directory.join(name)));
            }
        }
    }
    let mut fragments = Vec::new();
    let mut bytes = 0;
    for path in paths {
        match read(&path)? {
            Some(text) => {
                bytes += text.len();
                if bytes > MAX_SETTINGS_BYTES {
                    return Err(io::Error::other(format!(
                        "{}: all settings files up to this one have more than {MAX_SETTINGS_BYTES} bytes together (remove what is not a setting)",
                        shown(&path).display()
                    )));
                }
                fragments.push((shown(&path).display().to_string(), text));
            }
            None if only.is_some() => {
                let message = format!("{}: does not exist", shown(&path).display());
                return Err(io::Error::new(io::ErrorKind::NotFound, message));
            }
            None => {}
        }
    }
    Ok(fragments)
}

/// Merges `(name, text)` fragments, in order; `None` if none of them is one.
pub fn merge<N: AsRef<str>, T: AsRef<str>>(fragments: &[(N, T)]) -> (Option<Node>, Faults) {
    let mut faults = Faults::default();
    let mut merged: Option<Node> = None;
    for (file, text) in fragments {
        let documents = match yaml::parse(file.as_ref(), text.as_ref()) {
            Ok(documents) => documents,
            Err(errors) => {
                faults.extend(errors);
                continue;
            }
        };
        for document in documents {
            document.duplicates(FaultSeverity::Error, &mut faults);
            if !is_fragment(&document, &mut faults) {
                continue;
            }
            match &mut merged {
                Some(base) => base.overlay(document),
                None => merged = Some(document),
            }
        }
    }
    (merged, faults)
}

fn is_fragment(document: &Node, faults: &mut Faults) -> bool {
    let spot = |key: &str| FieldPosition {
        place: document
            .get(key)
            .map_or(&document.place, |node| &node.place)
            .clone(),
        field: key.to_owned(),
    };
    let mut fine = true;
    for (key, want) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = document.get(key).and_then(Node::text);
        if found != Some(want) {
            let message = match found {
                Some(found) => format!("is {found:?}, this program reads {want}"),
                None => "is missing".to_owned(),
            };
            let is_kubeadm = found.is_some_and(|found| found.starts_with("kubeadm.k8s.io/"));
            let fix = if is_kubeadm {
                "this is a file for kubeadm: name it with --kubeadm-config FILE or under kubeadm.files".to_owned()
            } else {
                format!("write {key}: {want}")
            };
            faults.push(spot(key).error(message, fix));
            fine = false;
            if is_kubeadm {
                break;
            }
        }
    }
    fine
}

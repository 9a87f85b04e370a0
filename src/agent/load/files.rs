//! Reads the configuration files: settings, kubeadm files, and files given on the command line.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::{LoadInputs, argument, faulty, shown};
use crate::agent::{ExitCode, Failure};
use crate::config::{self, Argument, Origin, Settings};
use crate::signer::quoted;
use crate::store::{self, Metadata, NodeRoot};
use crate::x509::wide_encoding;
use crate::yaml::{Faults, FieldPosition, Node};

/// Largest total size of the kubeadm files, in bytes.
const MAX_KUBEADM_BYTES: usize = 4 << 20;

/// The texts of the settings.
struct SettingsFiles {
    /// `(file, text)`, in the order in which they apply.
    fragments: Vec<(String, String)>,
    /// Files that are not read because of their names.
    misnamed: Vec<PathBuf>,
}

fn settings_files(root: &NodeRoot, inputs: &LoadInputs) -> Result<SettingsFiles, Failure> {
    let mut misnamed = Vec::new();
    let list = |directory: &Path| {
        let listed = root.trusted_dir(directory);
        let names =
            match listed.and_then(|found| found.map(|directory| directory.list()).transpose()) {
                // A rescue system often bind-mounts its own /run into the root.
                Err(error) if error.is_this_machine() => Vec::new(),
                listed => listed.map(texts).map_err(io::Error::other)?,
            };
        let yml = names.iter().filter(|name| name.ends_with(".yml"));
        misnamed.extend(yml.map(|name| root.on_this_machine(directory.join(name))));
        Ok(names)
    };
    let read = |path: &Path| match &inputs.config {
        Some(named) if named.as_given() == path => {
            read_verified(root, named, Metadata::require_trust)
                .map(Some)
                .map_err(|error| with_path(&shown(root, named), error))
        }
        _ => root
            .read_trusted(path)
            .map_err(io::Error::other)?
            .map(|content| text(&content.bytes))
            .transpose()
            .map_err(|error| with_path(&root.on_this_machine(path), error)),
    };
    let shown = |path: &Path| match &inputs.config {
        Some(named) => shown(root, named),
        None => root.on_this_machine(path),
    };
    let only = inputs.config.as_ref().map(Argument::as_given);
    let fragments = config::collect(only, list, read, shown)
        .map_err(|error| Failure::caused(unreadable_code(&error), "", error))?;
    Ok(SettingsFiles {
        fragments,
        misnamed,
    })
}

/// Returns the texts of the settings below the root, `(file, text)`, in the order in which they apply.
pub(crate) fn settings_fragments(root: &NodeRoot) -> Result<Vec<(String, String)>, Failure> {
    Ok(settings_files(root, &LoadInputs::default())?.fragments)
}

/// Returns the settings as written, for the positions of their fields; `None` if there are none.
///
/// # Errors
/// A file that cannot be read.
pub fn written_settings(root: &NodeRoot, inputs: &LoadInputs) -> Result<Option<Node>, Failure> {
    let files = settings_files(root, inputs)?;
    Ok(config::merge(&files.fragments).0)
}

/// Reads and validates the settings only.
///
/// # Errors
/// All faults of all fragments together.
pub fn read_settings(root: &NodeRoot, inputs: &LoadInputs) -> Result<(Settings, Faults), Failure> {
    let origin = match &inputs.config {
        Some(named) => argument(root, named)?.origin(),
        None => Origin::Node,
    };
    let files = settings_files(root, inputs)?;
    let (settings, mut warnings) = Settings::from_fragments(&files.fragments).map_err(faulty)?;
    for path in files.misnamed {
        let place = FieldPosition::whole(&path.display().to_string());
        let fix = format!(
            "mv {} {}",
            quoted(&path.display().to_string()),
            quoted(&path.with_extension("yaml").display().to_string())
        );
        warnings.push(place.warning(
            "is not read: the name of a settings file ends with .yaml",
            fix,
        ));
    }
    let settings = settings.found_at(origin);
    Ok((settings.with(inputs.stand_ins.clone()), warnings))
}

/// Reads the existing kubeadm files: `(file, text)`.
///
/// # Errors
/// A file that cannot be read, or that another user can change.
pub fn existing_sources(
    root: &NodeRoot,
    settings: &Settings,
) -> Result<Vec<(String, String)>, Failure> {
    let mut sources = Vec::new();
    for named in &settings.kubeadm.arguments {
        let shown = shown(root, named);
        let text = read_verified(root, named, Metadata::require_limited_writers)
            .map_err(|error| unreadable(&shown, error))?;
        sources.push((shown.display().to_string(), text));
    }
    for path in &settings.kubeadm.files {
        let found = match root.read_trusted(path) {
            // As in `read_settings`.
            Err(error) if error.is_this_machine() => None,
            found => found?,
        };
        if let Some(content) = found {
            let path = root.on_this_machine(path);
            let text = text(&content.bytes).map_err(|error| unreadable(&path, error))?;
            sources.push((path.display().to_string(), text));
        }
    }
    if let Some(path) = &settings.kubeadm.cluster_configuration {
        let shown = root.on_this_machine(path);
        let content = root.read_trusted(path)?.ok_or_else(|| {
            let message = "kubeadm.clusterConfiguration names this file, but it does not exist; put the cluster's ClusterConfiguration there (kubectl -n kube-system get cm kubeadm-config -o jsonpath='{.data.ClusterConfiguration}')";
            unreadable(&shown, io::Error::other(message))
        })?;
        let text = text(&content.bytes).map_err(|error| unreadable(&shown, error))?;
        sources.push((shown.display().to_string(), text));
    }
    let bytes: usize = sources.iter().map(|(_, text)| text.len()).sum();
    if bytes > MAX_KUBEADM_BYTES {
        return Err(Failure::misconfigured(format!(
            "kubeadm configuration: the {} files have {bytes} bytes, at most {MAX_KUBEADM_BYTES} are read (name only the files of this node)",
            sources.len()
        )));
    }
    Ok(sources)
}

fn unreadable(path: &Path, error: io::Error) -> Failure {
    Failure::new(unreadable_code(&error), "").caused_by(with_path(path, error))
}

/// Adds the path to an error that does not name it.
fn with_path(path: &Path, error: io::Error) -> io::Error {
    let path = path.display().to_string();
    if store::is_access_refusal(&error) || error.to_string().contains(&path) {
        error
    } else if error.kind() == io::ErrorKind::NotFound && error.raw_os_error().is_some() {
        io::Error::new(
            error.kind(),
            format!("{path} does not exist (correct the path)"),
        )
    } else {
        io::Error::new(error.kind(), format!("{path}: {error}"))
    }
}

/// Returns the exit status for an unusable configuration file. A file that another user can change is refused; other
/// problems are faults of the configuration.
fn unreadable_code(error: &io::Error) -> ExitCode {
    if store::is_access_refusal(error) {
        ExitCode::Refused
    } else {
        ExitCode::Configuration
    }
}

fn text(bytes: &[u8]) -> io::Result<String> {
    let wide = wide_encoding(bytes);
    match String::from_utf8(bytes.to_vec()) {
        // UTF-16 of ASCII without a byte order mark is UTF-8 with zero bytes.
        Ok(text) if wide.is_none() => Ok(text),
        _ => {
            let from = wide.unwrap_or("LATIN1");
            Err(io::Error::other(format!(
                "is not UTF-8 text (convert it: iconv -f {from} -t UTF-8 OLD > NEW)"
            )))
        }
    }
}

/// Reads a file given on the command line.
pub(crate) fn read_argument(root: &NodeRoot, named: &Argument) -> io::Result<String> {
    read_verified(root, named, |_, _| Ok(()))
}

/// As [`read_argument`], but fails if `verify` does.
fn read_verified(
    root: &NodeRoot,
    named: &Argument,
    verify: impl Fn(&Metadata, &Path) -> Result<(), store::StoreError>,
) -> io::Result<String> {
    let found = argument(root, named).map_err(io::Error::other)?;
    match found.read().map_err(io::Error::other)? {
        Some(content) => {
            let path = found.on_this_machine();
            verify(&content.metadata, &path).map_err(io::Error::other)?;
            text(&content.bytes)
        }
        None if root.is_this_machine() => Err(nix::errno::Errno::ENOENT.into()),
        None => Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "does not exist, neither below {} nor on this machine",
                root.path().display()
            ),
        )),
    }
}

/// Returns the names that are valid UTF-8.
fn texts(names: Option<Vec<OsString>>) -> Vec<String> {
    let names = names.unwrap_or_default().into_iter();
    names.filter_map(|name| name.into_string().ok()).collect()
}

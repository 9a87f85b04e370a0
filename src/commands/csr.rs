//! `nodepki csr export` and `nodepki csr import`: write requests to a directory, and read certificates from one.
//!
//! Both run as root on a directory that an administrator names. Another user who controls the directory could have other
//! keys certified, have other keys installed, or redirect what is written. The directory, everything above it and
//! everything read from it must therefore belong to root or the running user, and must not be writable by group or
//! others; sticky directories such as `/tmp` are accepted above it. See [`crate::store::NodeRoot::trusted_dir`].

mod show;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::Serialize;
use zeroize::Zeroizing;

use super::options::{GlobalOptions, RunOptions};
use super::output::next::{self, NodeFacts};
use super::output::terminal::Terminal;
use super::output::{Closing, DocumentKind};
use super::{now, runtime};
use crate::agent::load::{self, Loaded, Location};
use crate::agent::{self, ExitCode, Failure, RowAction, Survey};
use crate::config::Argument;
use crate::kube::names::{Authority, CertName};
use crate::kube::paths::{KUBELET_DIR, KUBERNETES_DIR};
use crate::signer::bundle::{self, BundleFile, BundleHeading, OwnKeys};
use crate::signer::{self, Request};
use crate::store::{self, Dir, DirectoryTrust, FileKind, NodeRoot, STATE_DIR};
use crate::x509::PublicKey;
use show::ShowArgs;

/// Depth of directories that an import reads; deeper ones are ignored.
const MAX_IMPORT_DEPTH: usize = 6;
/// Maximum number of names in one directory of an import.
const MAX_IMPORT_NAMES: usize = 10_000;
/// Maximum number of files that an import reads: the exports of about fifty nodes.
const MAX_IMPORT_FILES: usize = 2000;
/// Maximum total size of the files that an import reads, in bytes.
const MAX_IMPORT_BYTES: usize = 16 << 20;
/// What to do if the argument of an import is wrong.
const IMPORT_DIRECTORY: &str = "name the directory with the signed certificates";
/// What to do if the argument of an export is wrong.
const EXPORT_DIRECTORY: &str = "name another directory";

#[derive(Debug, Subcommand)]
pub(super) enum CsrCommand {
    /// Write a CSR and its profile for each certificate to be issued, for signing elsewhere
    ///
    /// The keys stay on this node. A repeated export writes the same requests until they are answered.
    Export {
        /// Directory to write into
        dir: Argument,
        #[command(flatten)]
        run: RunOptions,
    },
    /// Verify and install signed certificates from a directory tree
    ///
    /// Accepts the tree of `csr export` with each certificate next to its CSR, and the signed tree of `kubeadm certs
    /// generate-csr`.
    Import {
        /// Directory to read
        dir: Argument,
        #[command(flatten)]
        run: RunOptions,
    },
    /// Print a recorded request: one that waits for its signer, or that `csr export` has made
    ///
    /// With -o json, the document that an `exec` signer reads for `sign` (signer.nodepki.dev/v1). Reads only.
    Show(ShowArgs),
}

impl CsrCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let (is_export, dir, run) = match self {
            CsrCommand::Export { dir, run } => (true, dir, run),
            CsrCommand::Import { dir, run } => (false, dir, run),
            CsrCommand::Show(arguments) => return arguments.run(global),
        };
        let verb = if is_export {
            "csr export"
        } else {
            "csr import"
        };
        let command = |verb: &str| {
            let dir = load::shown(&global.open_root()?, &dir);
            let dir = signer::quoted(&dir.display().to_string());
            Ok::<_, Failure>(run.command(global, &format!("{verb} {dir}")))
        };
        let own = command(verb)?;
        let done = || {
            let loaded = global.load_running(&run.inputs(global)?)?;
            if is_export {
                export(global, loaded, &dir, command("csr import")?)
            } else {
                import(global, loaded, &dir, &own, |verb| run.command(global, verb))
            }
        };
        done().map_err(|failure| next::closed(failure, &own))
    }
}

/// The body of the document of an export.
#[derive(Serialize)]
struct ExportBody {
    /// Names of the requested certificates.
    requests: Vec<CertName>,
    /// The directory with the requests, on this machine.
    directory: String,
}

/// Writes the requests. `import` is the command that reads the certificates.
fn export(
    global: &GlobalOptions,
    loaded: Loaded,
    dir: &Argument,
    import: String,
) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let survey = loaded.setup.survey(&root, now())?;
    let heading = heading(&loaded, &survey);
    let mut own = OwnKeys::default();
    for chain in survey
        .certs
        .iter()
        .filter_map(|cert| cert.found.chain.present())
    {
        own.keys.push(chain.leaf().public_key().clone());
        own.certificates.push(chain.leaf().fingerprint());
    }
    let unknown = unknown_authorities(&root, &loaded, &survey);
    let terminal = Terminal::new(global.verbose);
    let target = load::argument(&root, dir)?;
    let shown = target.on_this_machine().display().to_string();
    let mut own_files = [KUBERNETES_DIR, KUBELET_DIR, STATE_DIR].into_iter();
    if target.on_node && own_files.any(|own| target.path.starts_with(own)) {
        let problem = format!("{shown} is for files of the node itself ({EXPORT_DIRECTORY})");
        return Err(Failure::misconfigured(problem));
    }
    let mut names = Vec::new();
    let directory = &target;
    let admit = |requests: &[Request], pending: Vec<PublicKey>| {
        own.keys.extend(pending);
        names.extend(requests.iter().map(Request::name));
        let mut files = Vec::new();
        if !requests.is_empty() {
            files = bundle::export(requests, &heading);
            require_writable(directory, &files, &heading, &own)?;
        }
        Ok(move || {
            write_bundle(directory, &files)?;
            Ok(directory.on_node.then(|| directory.path.clone()))
        })
    };
    let export = agent::export_requests(&root, loaded.setup, now, &terminal, admit);
    runtime()?.block_on(terminal.during(export))?;
    drop(terminal);
    let count = names.len();
    let body = ExportBody {
        requests: names,
        directory: shown.clone(),
    };
    let requests = if count == 1 { "request" } else { "requests" };
    let written = format!("{requests} written to {shown}");
    let closing = Closing::default().count(count, "written", written);
    let (text, next) = match count {
        0 => ("nothing to sign: all certificates are in place\n", None),
        _ => (
            "",
            Some(format!(
                "have them signed (the README is a script for OpenSSL), store each certificate next to its CSR as .crt{unknown}, then run {import}"
            )),
        ),
    };
    let (kind, code) = (DocumentKind::CsrExport, ExitCode::Done);
    global.print_document(kind, code, &closing.then(next), &body, || text.to_owned())
}

/// Verifies that a bundle can be written into a directory: without files of other origin, and without certificates that
/// are not imported. Creates the directories.
fn require_writable(
    target: &Location,
    files: &[BundleFile],
    heading: &BundleHeading,
    own: &OwnKeys,
) -> Result<(), Failure> {
    let Location { root, path, .. } = target;
    root.trusted_dir(path)
        .map_err(|error| refused_directory(error, EXPORT_DIRECTORY))?;
    let mut present = BTreeMap::new();
    for file in bundle::compared(files) {
        if let Some(content) = root.read(path.join(&file))? {
            present.insert(file, content.bytes.to_vec());
        }
    }
    if let Some(conflict) = bundle::conflict(files, heading, &present, own) {
        let shown = target.on_this_machine().display().to_string();
        return Err(Failure::refused(shown).caused_by(conflict));
    }
    for file in files {
        create_directory_of(file, target)?;
    }
    Ok(())
}

fn write_bundle(target: &Location, files: &[BundleFile]) -> Result<(), Failure> {
    for file in files {
        let directory = create_directory_of(file, target)?;
        if let Some(name) = file.path.file_name() {
            directory.write_atomic(name, &file.bytes, file.mode)?;
        }
    }
    Ok(())
}

fn create_directory_of(
    file: &BundleFile,
    Location { root, path, .. }: &Location,
) -> Result<Dir, Failure> {
    let mut directory = root
        .create_trusted_dir(path, 0o755)
        .map_err(|error| refused_directory(error, EXPORT_DIRECTORY))?;
    for component in file.path.parent().into_iter().flat_map(Path::components) {
        directory = directory.make_trusted_dir(component, 0o755, DirectoryTrust::SYSTEM)?;
    }
    Ok(directory)
}

/// Returns what else the import needs: the CA certificates that neither the node nor the bundle can have, since nothing
/// would confirm them.
fn unknown_authorities(root: &NodeRoot, loaded: &Loaded, survey: &Survey) -> String {
    let settings = &loaded.settings.authorities;
    let is_pinned = |name: &Authority| {
        settings
            .get(name)
            .is_some_and(|it| !it.trust_sha256.is_empty())
    };
    let missing = survey.bundles.iter().filter(|bundle| {
        let authority = bundle.spec.authority;
        let is_needed = survey
            .to_issue()
            .any(|cert| cert.spec.authority() == authority);
        is_needed && bundle.found.present().is_none() && !is_pinned(&authority)
    });
    let paths = missing.map(|bundle| {
        root.on_this_machine(&bundle.spec.path)
            .display()
            .to_string()
    });
    let paths: Vec<String> = paths.collect();
    if paths.is_empty() {
        return String::new();
    }
    format!(
        ", put the CA certificates, which this node does not have, into {}",
        paths.join(", ")
    )
}

/// Returns the node, the cluster and the known CA certificates, with which a signer verifies that the bundle is for it.
fn heading(loaded: &Loaded, survey: &Survey) -> BundleHeading {
    let known = survey.bundles.iter().filter_map(|bundle| {
        let authority = bundle.spec.authority;
        let keys: Vec<[u8; 32]> = match bundle.found.present() {
            Some(found) => {
                let certificates = found.certificates().iter();
                certificates.map(|one| one.public_key().sha256()).collect()
            }
            None => loaded
                .settings
                .authorities
                .get(&authority)?
                .trust_sha256
                .clone(),
        };
        (!keys.is_empty()).then_some((authority, keys))
    });
    BundleHeading {
        node: loaded.setup.identity.node.clone(),
        cluster: loaded.setup.identity.cluster.clone(),
        authorities: known.collect(),
    }
}

fn import(
    global: &GlobalOptions,
    loaded: Loaded,
    dir: &Argument,
    command: &str,
    with_options: impl FnOnce(&str) -> String,
) -> Result<ExitCode, Failure> {
    let root = global.open_root()?;
    let terminal = Terminal::new(global.verbose);
    let found = load::argument(&root, dir)?;
    let directory = found.root.trusted_dir(&found.path);
    let mut tree = ImportTree::default();
    let directory = directory.map_err(|error| refused_directory(error, IMPORT_DIRECTORY))?;
    let exists = directory.is_some();
    if let Some(directory) = directory {
        let is_bundle = is_bundle(&directory)?;
        let read = tree.read(&directory, Path::new(""), 0);
        read.map_err(|failure| {
            if is_bundle || failure.code == ExitCode::Pending {
                return failure;
            }
            Failure::misconfigured(format!(
                "{} contains neither requests nor certificates, and a file that an import cannot read",
                directory.path().display()
            ))
            .caused_by(failure)
            .advise(IMPORT_DIRECTORY)
        })?;
    }
    if tree.files.is_empty() {
        let problem = match (exists, tree.ignored.as_slice()) {
            (false, _) => {
                format!("does not exist ({IMPORT_DIRECTORY})")
            }
            (true, []) => format!("is empty ({IMPORT_DIRECTORY})"),
            (true, [first, ..]) => format!(
                "contains no certificate; {} is not read (name each certificate as its CSR, with .crt instead of .csr)",
                first.display()
            ),
        };
        let shown = load::shown(&root, dir);
        return Err(Failure::misconfigured(format!(
            "{}: {problem}",
            shown.display()
        )));
    }
    let node = NodeFacts::of(&loaded);
    let import = agent::import_answers(&root, loaded.setup, &tree.files, now, &terminal);
    let report = runtime()?.block_on(terminal.during(import))?;
    drop(terminal);
    let code = report.code();
    let pending = report.rows.iter();
    let pending = pending.filter(|row| row.action == RowAction::Pending);
    let tickets = root.tickets().unwrap_or_default();
    let records = pending.map(|row| {
        let mut tickets = tickets.iter();
        tickets
            .find(|(slot, _)| slot.as_str() == row.name)?
            .1
            .as_ref()
    });
    // The requests may have been exported again since, to another directory.
    let other = match code {
        ExitCode::Pending => next::after_export(&root, records, false, with_options),
        _ => None,
    };
    let next = other.or_else(|| next::after_run(global, &node, &report, code, command));
    global.finish(DocumentKind::CsrImport, &report, code, next)
}

/// Returns whether a directory looks like a bundle, a tree of kubeadm, or an inbox with certificates.
fn is_bundle(directory: &Dir) -> Result<bool, Failure> {
    let names = directory.list_at_most(MAX_IMPORT_NAMES)?;
    Ok(names.iter().map(Path::new).any(|name| {
        let is_request_or_certificate = name.extension().is_some_and(|it| it != "conf");
        name == Path::new("pki") || is_request_or_certificate && bundle::is_imported(name)
    }))
}

/// Files of a directory tree that may contain certificates, keys or CSRs, with paths relative to its top.
#[derive(Default)]
struct ImportTree {
    files: Vec<(PathBuf, Zeroizing<Vec<u8>>)>,
    /// The files whose names are not those of certificates.
    ignored: Vec<PathBuf>,
    bytes: usize,
}

impl ImportTree {
    /// Reads the files below `directory`. Symbolic links and special files are ignored.
    fn read(&mut self, directory: &Dir, below: &Path, depth: usize) -> Result<(), Failure> {
        let mut names = directory.list_at_most(MAX_IMPORT_NAMES)?;
        if names.len() > MAX_IMPORT_NAMES {
            let problem = format!("contains more than {MAX_IMPORT_NAMES} names");
            return Err(over_limit(directory, &problem));
        }
        names.sort();
        for name in names {
            let path = below.join(&name);
            match directory.metadata(&name)?.map(|found| found.kind) {
                Some(FileKind::Directory) if depth < MAX_IMPORT_DEPTH => {
                    if let Some(next) = directory.trusted_dir(&name, DirectoryTrust::SYSTEM)? {
                        self.read(&next, &path, depth + 1)?;
                    }
                }
                Some(FileKind::File) if bundle::is_imported(&path) => {
                    let Some(content) = directory.read_trusted(&name)? else {
                        continue;
                    };
                    self.bytes += content.bytes.len();
                    if self.bytes > MAX_IMPORT_BYTES {
                        let limit = MAX_IMPORT_BYTES >> 20;
                        let problem =
                            format!("the tree up to here contains more than {limit} MiB of files");
                        return Err(over_limit(directory, &problem));
                    }
                    if self.files.len() == MAX_IMPORT_FILES {
                        let problem = format!(
                            "the tree up to here contains more than {MAX_IMPORT_FILES} files"
                        );
                        return Err(over_limit(directory, &problem));
                    }
                    self.files.push((path, content.bytes));
                }
                Some(FileKind::File) => self.ignored.push(path),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the failure for a directory that an argument names. The advice removes no file and changes no owner: the file is
/// often part of a bundle, and the directory often belongs to an administrator's own account.
fn refused_directory(error: store::StoreError, advice: &str) -> Failure {
    if let Some(path) = store::not_a_directory(&error) {
        let problem = format!("{} is not a directory ({advice})", path.display());
        return Failure::misconfigured(problem);
    }
    let is_untrusted = error.is_access_refusal();
    let mut failure = Failure::from(error);
    if is_untrusted {
        let alternative = "or name a directory that belongs to root, such as one below /root";
        failure.messages.push(alternative.into());
    }
    failure
}

fn over_limit(directory: &Dir, problem: &str) -> Failure {
    Failure::misconfigured(format!(
        "{}: {problem} (name a directory that contains only the signed certificates)",
        directory.path().display()
    ))
}

//! `csr export` and `csr import`: writes the requests to a directory, and reads the certificates from one.
//!
//! Both run as root on a directory that an administrator names, and another user who controls it could have other keys
//! certified, have other keys installed, or redirect what is written. The directory, everything above it and everything
//! read from it must therefore belong to root or the running user, and must not be writable by group or others; sticky
//! directories such as `/tmp` are accepted above it. See [`crate::store::Root::trusted_dir`].

use std::path::{Path, PathBuf};

use clap::Subcommand;
use zeroize::Zeroizing;

use super::terminal::Terminal;
use super::{Global, Run, now, print, runtime, tell_remainder};
use crate::agent::load;
use crate::agent::{self, ExitCode, Failure};
use crate::config::Argument;
use crate::signer::bundle;
use crate::store::{self, Dir, FileKind, Trust};

/// Depth of directories that an import reads; deeper ones are ignored.
const MAX_IMPORT_DEPTH: usize = 6;
/// Number of names in one directory of an import.
const MAX_IMPORT_NAMES: usize = 10_000;
/// Number of files that an import reads: bundles of some fifty nodes.
const MAX_IMPORT_FILES: usize = 2000;
/// Size of all files that an import reads together, in bytes.
const MAX_IMPORT_BYTES: usize = 16 << 20;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Write a CSR for everything that is to be issued, with its profile, for signing elsewhere
    ///
    /// The keys stay on this node. Exporting again gives the same requests until they are answered.
    Export {
        /// Directory to write into
        dir: Argument,
        #[command(flatten)]
        run: Run,
    },
    /// Verify and install signed certificates from a directory tree
    ///
    /// Takes what `csr export` wrote, with the certificates beside the CSRs, and the tree of `kubeadm certs
    /// generate-csr` after signing.
    Import {
        /// Directory to read
        dir: Argument,
        #[command(flatten)]
        run: Run,
    },
}

impl Command {
    pub(super) fn run(self, global: &Global) -> Result<ExitCode, Failure> {
        let (Command::Export { dir, run } | Command::Import { dir, run }) = &self;
        let loaded = global.load_running(&run.inputs(global)?)?;
        let root = global.open_root()?;
        let terminal = Terminal::new(global.verbose);
        match &self {
            Command::Export { .. } => {
                let requests = runtime()?.block_on(agent::export_requests(
                    &root,
                    loaded.setup,
                    now,
                    &terminal,
                ))?;
                drop(terminal);
                if requests.is_empty() {
                    return print("nothing to sign: everything is in place\n");
                }
                let found = load::argument(&root, dir)?;
                let (place, base) = (found.root, found.path);
                for file in bundle::export(&requests) {
                    let mut directory = place
                        .create_trusted_dir(&base, 0o755)
                        .map_err(with_alternative)?;
                    for component in file.path.parent().into_iter().flat_map(Path::components) {
                        directory = directory.make_trusted_dir(component, 0o755, Trust::SYSTEM)?;
                    }
                    if let Some(name) = file.path.file_name() {
                        directory.write_atomic(name, &file.bytes, file.mode)?;
                    }
                }
                let there = place.on_this_machine(&base);
                print(&format!(
                    "{} requests written to {}; have them signed, put each certificate beside its CSR as .crt, then run: nodepki {}csr import {}\n",
                    requests.len(),
                    there.display(),
                    match global.root.as_path() == Path::new("/") {
                        true => String::new(),
                        false => format!("--root {} ", global.root.display()),
                    },
                    there.display()
                ))
            }
            Command::Import { .. } => {
                let found = load::argument(&root, dir)?;
                let mut import = Import::default();
                if let Some(directory) = found
                    .root
                    .trusted_dir(&found.path)
                    .map_err(with_alternative)?
                {
                    import.read(&directory, Path::new(""), 0)?;
                }
                let files = import.files;
                if files.is_empty() {
                    return Err(Failure::new(
                        ExitCode::Configuration,
                        format!(
                            "{} does not exist or is empty; name the directory with the signed certificates",
                            load::shown(&root, dir).display()
                        ),
                    ));
                }
                let report = runtime()?.block_on(agent::import_answers(
                    &root,
                    loaded.setup,
                    &files,
                    now,
                    &terminal,
                ))?;
                drop(terminal);
                let code = global.end_with(&report)?;
                tell_remainder(&report);
                Ok(code)
            }
        }
    }
}

/// The files of a tree that may hold certificates, keys or CSRs, with paths relative to its top.
#[derive(Default)]
struct Import {
    files: Vec<(PathBuf, Zeroizing<Vec<u8>>)>,
    bytes: usize,
}

impl Import {
    /// Reads what is below `directory`. Symbolic links and special files are ignored.
    fn read(&mut self, directory: &Dir, below: &Path, depth: usize) -> Result<(), Failure> {
        let mut names = directory.list_at_most(MAX_IMPORT_NAMES)?;
        if names.len() > MAX_IMPORT_NAMES {
            return Err(too_much(
                directory,
                &format!("contains more than {MAX_IMPORT_NAMES} names"),
            ));
        }
        names.sort();
        for name in names {
            let path = below.join(&name);
            match directory.metadata(&name)?.map(|found| found.kind) {
                Some(FileKind::Directory) if depth < MAX_IMPORT_DEPTH => {
                    if let Some(next) = directory.trusted_dir(&name, Trust::SYSTEM)? {
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
                        let problem = format!("is reached with more than {limit} MiB of files");
                        return Err(too_much(directory, &problem));
                    }
                    if self.files.len() == MAX_IMPORT_FILES {
                        let problem = format!("is reached with more than {MAX_IMPORT_FILES} files");
                        return Err(too_much(directory, &problem));
                    }
                    self.files.push((path, content.bytes));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Adds the way out that changes no owner: the directory is often one of a person.
fn with_alternative(error: store::Error) -> Failure {
    let is_untrusted = error.is_access_refusal();
    let mut failure = Failure::from(error);
    if is_untrusted {
        let alternative = "or name a directory that belongs to root, such as one below /root";
        failure.messages.push(alternative.to_owned());
    }
    failure
}

fn too_much(directory: &Dir, problem: &str) -> Failure {
    Failure::new(
        ExitCode::Configuration,
        format!(
            "{}: {problem} (name a directory that contains only the signed certificates)",
            directory.path().display()
        ),
    )
}

//! `csr export` and `csr import`: the requests out on a stick, the certificates back in.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use zeroize::Zeroizing;

use super::terminal::Terminal;
use super::{Global, Run, now, print, runtime};
use crate::agent::{self, ExitCode, Failure};
use crate::load;
use crate::offline;
use crate::store::{FileKind, Root};

/// Deeper trees are no PKI.
const MAX_DEPTH: usize = 6;
/// More files are no PKI either.
const MAX_FILES: usize = 2000;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Write a CSR for everything that is to be issued, with its profile, for signing elsewhere
    ///
    /// The keys stay on this node. Exporting again gives the same requests until they are answered.
    Export {
        /// Directory to write into
        dir: PathBuf,
        #[command(flatten)]
        run: Run,
    },
    /// Verify and install signed certificates from a directory tree
    ///
    /// Takes what `csr export` wrote, with the certificates beside the CSRs, and the tree of `kubeadm certs
    /// generate-csr` after signing.
    Import {
        /// Directory to read
        dir: PathBuf,
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
                let (place, base) = load::root_of(&root, dir)?;
                for file in offline::export(&requests) {
                    let path = base.join(&file.path);
                    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                        continue;
                    };
                    place
                        .create_dir(parent, 0o755)?
                        .write_atomic(name, &file.bytes, file.mode)?;
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
                let (place, base) = load::root_of(&root, dir)?;
                let mut files = Vec::new();
                read_tree(&place, &base, Path::new(""), 0, &mut files)?;
                if files.is_empty() {
                    return Err(Failure::new(
                        ExitCode::Configuration,
                        format!(
                            "{} does not exist or is empty; name the directory with the signed certificates",
                            dir.display()
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
                global.print_report(&report)?;
                Ok(report.code())
            }
        }
    }
}

/// All regular files below `base`, paths relative to it; links are not followed out of it.
fn read_tree(
    root: &Root,
    base: &Path,
    below: &Path,
    depth: usize,
    files: &mut Vec<(PathBuf, Zeroizing<Vec<u8>>)>,
) -> Result<(), Failure> {
    let directory = base.join(below);
    for name in root.list(&directory)?.unwrap_or_default() {
        let relative = below.join(&name);
        let path = base.join(&relative);
        match root.metadata(&path)?.map(|found| found.kind) {
            Some(FileKind::Directory) if depth < MAX_DEPTH => {
                read_tree(root, base, &relative, depth + 1, files)?
            }
            Some(FileKind::File) if files.len() < MAX_FILES => {
                if let Some(content) = root.read(&path)? {
                    files.push((relative, content.bytes));
                }
            }
            Some(FileKind::File) => {
                return Err(Failure::new(
                    ExitCode::Configuration,
                    format!(
                        "{} holds more than {MAX_FILES} files; name the directory with the signed certificates alone",
                        base.display()
                    ),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

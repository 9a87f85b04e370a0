//! `nodepki init`: writes settings for one kind of signer, and the script for the administrator of its server.

mod skeleton;
mod steps;

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, IsTerminal, Write, stderr, stdin};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::config::{parse_kind, signer_setup};
use super::now;
use super::options::{GlobalOptions, node_name};
use super::output::{Closing, DocumentKind, ListBody, print_to_stderr, print_warnings, text_style};
use crate::agent::load::{self, LoadInputs};
use crate::agent::{ExitCode, Failure};
use crate::config::{Argument, CommandLineSettings, MAIN_FILE, Origin, Settings};
use crate::kube::paths::CERTIFICATES_DIR;
use crate::signer::SignerKind;
use crate::store::NodeRoot;
use crate::table::{TextStyle, fold};
use crate::text::printable;
use skeleton::{Filled, Placeholder, SKELETONS, Skeleton, Unset};
use steps::{NextCommands, NodePlaces};

/// The fragment for a signer if `config.yaml` exists, as the packages install it.
const FRAGMENT: &str = "/etc/nodepki/config.d/signer.yaml";

#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Kind of signer: vault, cfssl, stepCA, est, kubernetes, certManager, puppet, directory, exec or local
    #[arg(id = "init-kind", value_name = "KIND")]
    kind: String,
    /// URL of the server, with its port; the same as --set server=URL
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Another value of the settings; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = value)]
    set: Vec<(String, String)>,
    /// Print the names for --set, and write nothing
    #[arg(long)]
    list: bool,
    /// File for the settings, instead of /etc/nodepki/config.yaml, or config.d/signer.yaml if that exists
    #[arg(long, value_name = "FILE")]
    to: Option<Argument>,
    /// Do not ask for missing values on a terminal
    #[arg(long)]
    no_input: bool,
    /// kubeadm configuration file, which the script for the administrator needs; may be repeated
    #[arg(long, value_name = "FILE")]
    kubeadm_config: Vec<Argument>,
    /// Node name, instead of nodeRegistration.name or the host name
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
}

/// What was written, and what to do next.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitReport {
    /// The settings on this machine.
    settings: PathBuf,
    /// The script or manifest for the administrator of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    script: Option<PathBuf>,
    /// Texts of the example that must be replaced.
    replace: Vec<PlaceholderReport>,
    /// What to do next, in this order.
    steps: Vec<String>,
}

#[derive(Serialize)]
struct PlaceholderReport {
    line: usize,
    name: &'static str,
    text: &'static str,
    meaning: &'static str,
}

/// Where a file is written.
enum OutputTarget {
    /// Below the root.
    Node(PathBuf),
    /// On this machine.
    Machine(PathBuf),
}

fn value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl InitArgs {
    pub(super) fn run(mut self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        let kind = parse_kind(&self.kind)?;
        let skeleton = skeleton::of(kind).ok_or_else(|| no_skeleton(kind))?;
        if self.list {
            let values = listed(skeleton);
            let body = ListBody { items: &values };
            let (kind, code) = (DocumentKind::InitValues, ExitCode::Done);
            return global.print_body(kind, code, &body, || list(skeleton));
        }
        let root = global.open_root()?;
        let target = self.target(&root)?;
        let mut values = self.set.clone();
        values.extend(
            self.server
                .iter()
                .map(|url| ("server".to_owned(), url.clone())),
        );
        let unusable = |error: skeleton::BadValue| Failure::usage(error.to_string());
        // Before the first question: an argument that is not usable ends the command.
        skeleton.verify(&values).map_err(unusable)?;
        let starts_nothing = target.is_image(&root) && skeleton.starts_program();
        if starts_nothing {
            print_warnings(&[format!(
                "with --root, nodepki starts no program that settings below {} name (write the settings elsewhere with --to FILE, or run nodepki on the booted node)",
                root.path().display()
            )]);
        }
        if !self.no_input && stdin().is_terminal() && stderr().is_terminal() {
            self.ask(&root, skeleton, &mut values).map_err(|error| {
                Failure::usage(format!(
                    "standard input cannot be read: {error} (use --set and --no-input)"
                ))
            })?;
        }
        let filled = skeleton.fill(&values).map_err(unusable)?;
        let script = self.script(&root, kind, &filled)?;
        let script = script.map(|text| (target.script(kind, &text), text));
        // The settings are written last: without them, the next run completes one that was interrupted.
        if let Some((path, text)) = &script
            && !path.has(&root, text.as_bytes())?
        {
            path.require_absent(&root)?;
            let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
            path.write(&root, text.as_bytes(), mode)?;
        }
        target.write(&root, filled.text.as_bytes(), 0o644)?;
        let script = script.map(|(path, _)| path.shown(&root));
        let mut commands = self.next_commands(kind, global);
        if starts_nothing {
            commands.preflight = "`nodepki preflight` on the booted node".to_owned();
        }
        let origin = match &target {
            OutputTarget::Node(_) => Origin::Node,
            OutputTarget::Machine(_) => Origin::Machine,
        };
        let steps = steps::steps(
            kind,
            &filled,
            script.as_deref(),
            &commands,
            &NodePlaces {
                named: &|path| load::shown_defined(&root, origin, path),
                pki: root.on_this_machine(CERTIFICATES_DIR),
            },
        );
        let report = InitReport {
            settings: target.shown(&root),
            script,
            replace: filled.open.iter().map(replacement).collect(),
            steps,
        };
        let closing = Closing::default().then(report.steps.first().cloned());
        let (kind, code) = (DocumentKind::Init, ExitCode::Done);
        global.print_closed(kind, code, &closing, &report, || report.text(text_style()))
    }

    /// Returns where the settings are written. An existing file is never overwritten, and signers are not configured a
    /// second time.
    fn target(&self, root: &NodeRoot) -> Result<OutputTarget, Failure> {
        if let Some(file) = &self.to {
            let found = load::argument(root, file)?;
            let target = if found.on_node && !root.is_this_machine() {
                OutputTarget::Node(found.path)
            } else {
                OutputTarget::Machine(file.as_given().to_owned())
            };
            target.require_absent(root)?;
            target.require_directory()?;
            return Ok(target);
        }
        let (settings, _) = load::read_settings(root, &LoadInputs::default())?;
        if let Some(name) = settings.signers.keys().next() {
            return Err(Failure::refused(format!(
                "the settings below {} already have the signer {name} (edit them, or write another file with --to FILE)",
                root.node_path("/etc/nodepki")
            )));
        }
        let target = OutputTarget::Node(match root.metadata(MAIN_FILE)? {
            None => MAIN_FILE.into(),
            Some(_) => FRAGMENT.into(),
        });
        target.require_absent(root)?;
        Ok(target)
    }

    /// Returns the script for the administrator; `None` if the settings are incomplete, the kind needs none, or there is no
    /// kubeadm configuration yet.
    fn script(
        &self,
        root: &NodeRoot,
        kind: SignerKind,
        filled: &Filled,
    ) -> Result<Option<String>, Failure> {
        if !filled.open.is_empty() || !steps::has_setup(kind) {
            return Ok(None);
        }
        let faulty = |faults: crate::yaml::Faults| Failure::usage(faults.to_string());
        let mut fragments = match &self.to {
            Some(_) => Vec::new(),
            None => load::settings_fragments(root)?,
        };
        fragments.push(("the new settings".to_owned(), filled.text.clone()));
        let (settings, _) = Settings::from_fragments(&fragments).map_err(faulty)?;
        let inputs = LoadInputs {
            stand_ins: CommandLineSettings {
                kubeadm_configs: self.kubeadm_config.clone(),
                signer: None,
                node_name: self.node_name.as_deref().map(node_name).transpose()?,
            },
            ..LoadInputs::default()
        };
        let settings = settings.with(inputs.stand_ins.clone());
        if load::existing_sources(root, &settings)?.is_empty() {
            return Ok(None);
        }
        let loaded = load::load_with(root, settings, &inputs, now())?;
        signer_setup(&loaded, kind, None).map(Some)
    }

    /// Returns the commands after this run, with its options.
    fn next_commands(&self, kind: SignerKind, global: &GlobalOptions) -> NextCommands {
        let mut options = String::new();
        if global.root != Path::new("/") {
            options.push_str(&option("--root", &global.root));
        }
        if let Some(file) = &self.to {
            options.push_str(&option("--config", file.as_given()));
        }
        for file in &self.kubeadm_config {
            options.push_str(&option("--kubeadm-config", file.as_given()));
        }
        NextCommands {
            setup: format!("nodepki config signer-setup {kind}{options} >FILE"),
            names_kubeadm_config: !self.kubeadm_config.is_empty(),
            preflight: format!("`nodepki preflight{options}`"),
        }
    }

    /// Asks for each missing value, and for a kubeadm configuration if there is none. An answer that is not valid is
    /// asked for again; an empty one keeps the text of the example.
    fn ask(
        &mut self,
        root: &NodeRoot,
        skeleton: &Skeleton,
        values: &mut Vec<(String, String)>,
    ) -> io::Result<()> {
        for placeholder in skeleton.placeholders {
            let is_known = values.iter().any(|(name, _)| name == placeholder.name);
            if is_known || placeholder.unset != Unset::Replace {
                continue;
            }
            prompt(placeholder.meaning, |given| {
                values.push((placeholder.name.to_owned(), given.to_owned()));
                let filled = skeleton.fill(values);
                filled.map(drop).map_err(|error| {
                    values.pop();
                    error.to_string()
                })
            })?;
        }
        let Ok(filled) = skeleton.fill(values) else {
            return Ok(());
        };
        let kind = skeleton.kind;
        let is_needed = steps::has_setup(kind) && filled.open.is_empty();
        if !is_needed || !matches!(self.script(root, kind, &filled), Ok(None)) {
            return Ok(());
        }
        prompt(
            "kubeadm configuration file, if it exists already",
            |given| {
                self.kubeadm_config.push(Argument::from(given));
                let script = self.script(root, kind, &filled);
                script.map(drop).map_err(|failure| {
                    self.kubeadm_config.pop();
                    failure.to_string()
                })
            },
        )
    }
}

fn option(name: &str, file: &Path) -> String {
    format!(
        " {name} {}",
        crate::signer::quoted(&file.display().to_string())
    )
}

/// Kinds that `init` accepts.
pub(super) fn kinds() -> Vec<&'static str> {
    SKELETONS.iter().map(|one| one.kind.as_str()).collect()
}

/// The text of a skeleton without values, for an administrator who edits it.
pub(super) fn example(kind: SignerKind) -> Option<String> {
    let filled = skeleton::of(kind)?.fill(&[]).ok()?;
    Some(filled.text)
}

fn no_skeleton(kind: SignerKind) -> Failure {
    Failure::usage(format!(
        "signers of kind {kind} need no settings (use --signer, as in `nodepki bootstrap --help`, or one of {})",
        kinds().join(", ")
    ))
}

/// Asks for a value until it is accepted, or an empty line.
fn prompt(meaning: &str, mut accept: impl FnMut(&str) -> Result<(), String>) -> io::Result<()> {
    loop {
        print_to_stderr(&format!("{meaning}: "));
        stderr().flush()?;
        let mut line = String::new();
        stdin().lock().read_line(&mut line)?;
        match line.trim() {
            "" => return Ok(()),
            given => match accept(given) {
                Ok(()) => return Ok(()),
                Err(problem) => print_to_stderr(&format!("{}\n", printable(&problem))),
            },
        }
    }
}

fn replacement((line, placeholder): &(usize, Placeholder)) -> PlaceholderReport {
    PlaceholderReport {
        line: *line,
        name: placeholder.name,
        text: placeholder.example,
        meaning: placeholder.meaning,
    }
}

fn listed(skeleton: &Skeleton) -> Vec<PlaceholderReport> {
    let placeholders = skeleton.placeholders.iter();
    placeholders
        .map(|placeholder| replacement(&(0, *placeholder)))
        .collect()
}

fn list(skeleton: &Skeleton) -> String {
    let rows = skeleton.placeholders.iter().map(|placeholder| {
        let default = match placeholder.unset {
            Unset::Keep => placeholder.example,
            Unset::Replace => "(required)",
            Unset::Remove => "(none)",
        };
        let cells = [placeholder.name, default, placeholder.meaning];
        (cells.map(str::to_owned).to_vec(), Vec::new())
    });
    super::output::table::aligned(&["NAME", "DEFAULT", "MEANING"], rows.collect())
}

impl InitReport {
    fn text(&self, style: TextStyle) -> String {
        let mut text = format!("{} was written\n", self.settings.display());
        if let Some(script) = &self.script {
            text.push_str(&format!("{} was written\n", script.display()));
        }
        for one in &self.replace {
            text.push_str(&format!(
                "{}:{}: replace {} by the {} (or --set {}=…)\n",
                self.settings.display(),
                one.line,
                one.text,
                one.meaning,
                one.name
            ));
        }
        text.push_str("next:\n");
        for (at, step) in self.steps.iter().enumerate() {
            let step = format!("{:>3}. {step}", at + 1);
            text.push_str(&fold(&step, 3, style));
            text.push('\n');
        }
        text
    }
}

impl OutputTarget {
    fn path(&self) -> &Path {
        match self {
            OutputTarget::Node(path) | OutputTarget::Machine(path) => path,
        }
    }

    /// Returns whether the target belongs to a system other than that of this machine.
    fn is_image(&self, root: &NodeRoot) -> bool {
        matches!(self, OutputTarget::Node(_)) && !root.is_this_machine()
    }

    fn shown(&self, root: &NodeRoot) -> PathBuf {
        match self {
            OutputTarget::Node(path) => root.on_this_machine(path),
            OutputTarget::Machine(path) => path.clone(),
        }
    }

    /// Returns the target of the script, in the same directory.
    fn script(&self, kind: SignerKind, text: &str) -> OutputTarget {
        let extension = if text.starts_with("#!") { "sh" } else { "yaml" };
        let name = format!("signer-setup-{kind}.{extension}");
        match self {
            // Every file in config.d is read as settings.
            OutputTarget::Node(path) if path == Path::new(FRAGMENT) => {
                OutputTarget::Node(Path::new(MAIN_FILE).with_file_name(name))
            }
            OutputTarget::Node(path) => OutputTarget::Node(path.with_file_name(name)),
            OutputTarget::Machine(path) => OutputTarget::Machine(path.with_file_name(name)),
        }
    }

    /// Returns true if the file has this content, which an interrupted run may have written.
    fn has(&self, root: &NodeRoot, bytes: &[u8]) -> Result<bool, Failure> {
        Ok(match self {
            OutputTarget::Node(path) => {
                let found = root.metadata(path)?.map(|_| root.read(path)).transpose()?;
                found.flatten().is_some_and(|found| *found.bytes == bytes)
            }
            OutputTarget::Machine(path) => fs::read(path).is_ok_and(|found| found == bytes),
        })
    }

    fn require_absent(&self, root: &NodeRoot) -> Result<(), Failure> {
        let exists = match self {
            OutputTarget::Node(path) => root.metadata(path)?.is_some(),
            OutputTarget::Machine(path) => path.symlink_metadata().is_ok(),
        };
        if !exists {
            Ok(())
        } else {
            Err(Failure::refused(format!(
                "{}: the file exists and is not overwritten (remove it, or write another file with --to FILE)",
                self.shown(root).display()
            )))
        }
    }

    /// Requires the directory of a file on this machine, before values are asked for.
    fn require_directory(&self) -> Result<(), Failure> {
        let OutputTarget::Machine(path) = self else {
            return Ok(());
        };
        let parent = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => return Ok(()),
        };
        if parent.is_dir() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "--to {}: the directory {} does not exist (create it, or write another file)",
            path.display(),
            parent.display()
        )))
    }

    fn write(&self, root: &NodeRoot, bytes: &[u8], mode: u32) -> Result<(), Failure> {
        let path = self.path();
        match self {
            OutputTarget::Node(_) => {
                let name = path.file_name().unwrap_or_default();
                let directory = path.parent().unwrap_or(Path::new("/"));
                root.create_dir(directory, 0o755)?
                    .write_atomic(name, bytes, mode)?;
                Ok(())
            }
            OutputTarget::Machine(_) => write_complete(path, bytes, mode).map_err(|error| {
                let message = format!("{}: the file cannot be written", path.display());
                Failure::caused(ExitCode::NotPermitted, message, error)
            }),
        }
    }
}

/// Creates a file, or replaces it; an interrupted run leaves no part of it under its name. The file and its name are on
/// the disk when this returns.
fn write_complete(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.nodepki-tmp"));
    match uninterrupted(|| fs::remove_file(&temporary)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| uninterrupted(|| fs::rename(&temporary, path)));
    if written.is_err() {
        let _ = uninterrupted(|| fs::remove_file(&temporary));
    }
    written?;
    match path.parent() {
        Some(parent) if parent != Path::new("") => fs::File::open(parent)?.sync_all(),
        _ => fs::File::open(".")?.sync_all(),
    }
}

/// Repeats a call of the system that a signal interrupts.
fn uninterrupted<T>(call: impl Fn() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

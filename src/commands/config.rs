//! `nodepki config check`, `show`, `schema` and `signer-setup`.

use clap::Subcommand;

use super::options::{GlobalOptions, OutputFormat, SourceOptions};
use super::output::{print, print_exact, print_message, print_warnings, text_style};
use super::{init, now};
use crate::agent::load::{self, ConfigurationAudit, Loaded};
use crate::agent::{ExitCode, Failure};
use crate::config::{MAIN_FILE, Settings};
use crate::kube::names::Authority;
use crate::kubelets::rbac;
use crate::signer::{self, NodeIdentity, Part, SignerKind};
use crate::spec::KUBELET_SIGNERS_GROUP;
use crate::table::fold;
use crate::yaml::{self, Node};

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Validate settings and kubeadm configuration; report all faults at once, with line and column
    ///
    /// Exit status: 0 if the configuration is usable, even with warnings; 78 with an error; 65 if a file must not be used.
    Check {
        /// End with 78 if there is a warning, for pipelines
        #[arg(long)]
        strict: bool,
        #[command(flatten)]
        sources: SourceOptions,
    },
    /// Print the effective settings without secrets
    Show(SourceOptions),
    /// Print the JSON Schema of the settings
    Schema,
    /// Print the commands with which an administrator prepares the signers' server for this node's certificates
    ///
    /// If no settings define a signer, prints a skeleton of them instead.
    SignerSetup {
        /// Kind of signer, for example vault; or kubelets, for nodepki's rights as the signer of kubelets
        kind: String,
        /// Only the signer with this name
        #[arg(long, value_name = "SIGNER")]
        name: Option<String>,
        #[command(flatten)]
        sources: SourceOptions,
    },
}

impl ConfigCommand {
    pub(super) fn run(self, global: &GlobalOptions) -> Result<ExitCode, Failure> {
        match self {
            ConfigCommand::Check { strict, sources } => check(sources, strict, global),
            ConfigCommand::Show(sources) => {
                let root = global.open_root()?;
                let (settings, faults) = load::read_settings(&root, &sources.inputs(global)?)?;
                let mut warnings: Vec<String> =
                    faults.warnings().map(ToString::to_string).collect();
                let (settings, unresolved) = load::with_resolved_signers(&root, settings);
                warnings.extend(unresolved);
                print_warnings(&warnings);
                global.print_value(&settings.redacted(), OutputFormat::Yaml)
            }
            ConfigCommand::Schema => global.print_value(&Settings::schema(), OutputFormat::Json),
            ConfigCommand::SignerSetup {
                kind,
                name,
                sources,
            } => {
                let inputs = sources.inputs(global)?;
                let root = global.open_root()?;
                if kind == KUBELETS {
                    let loaded = load::load(&root, &inputs, now())?;
                    print_warnings(&loaded.warnings);
                    return print_exact(&kubelets_setup(&loaded, name.as_deref())?);
                }
                let kind = parse_kind(&kind)?;
                let (settings, _) = load::read_settings(&root, &inputs)?;
                if settings.signers.is_empty()
                    && let Some(skeleton) = init::example(kind)
                {
                    print_message(&format!(
                        "no settings define a signer; this is a skeleton for {} (`nodepki init {kind}` writes it)",
                        root.node_path(MAIN_FILE)
                    ));
                    return print_exact(&skeleton);
                }
                let loaded = load::load(&root, &inputs, now())?;
                print_warnings(&loaded.warnings);
                print_exact(&signer_setup(&loaded, kind, name.as_deref())?)
            }
        }
    }
}

fn check(
    sources: SourceOptions,
    strict: bool,
    global: &GlobalOptions,
) -> Result<ExitCode, Failure> {
    let inputs = sources.inputs(global)?;
    let root = global.open_root()?;
    let (loaded, certificates) = load::check(&root, &inputs, now())?;
    let mut warnings = loaded.warnings.clone();
    // Without the ClusterConfiguration the files of the node are at unknown paths.
    let mut audit = match certificates {
        Some(_) => loaded.audit(&root, now())?,
        None => ConfigurationAudit::default(),
    };
    warnings.append(&mut audit.warnings);
    if let Some(written) = load::written_settings(&root, &inputs)? {
        for texts in [&mut warnings, &mut audit.errors, &mut audit.unusable] {
            texts.iter_mut().for_each(|text| locate(text, &written));
        }
    }
    print_warnings(&warnings);
    audit.require_usable()?;
    let state = match warnings.len() {
        0 => "valid".to_owned(),
        1 => "usable, 1 warning".to_owned(),
        count => format!("usable, {count} warnings"),
    };
    let NodeIdentity { node, cluster } = &loaded.setup.identity;
    let line = match certificates {
        Some(count) => format!(
            "the configuration is {state}: node {node}, cluster {cluster}, {count} certificate{}\n",
            if count == 1 { "" } else { "s" }
        ),
        None => format!(
            "the configuration on this node is {state}: node {node}; bootstrap and plan read the ClusterConfiguration from the cluster\n"
        ),
    };
    print(&fold(&line, 4, text_style()))?;
    if strict && !warnings.is_empty() {
        Err(Failure::misconfigured(
            "--strict: a warning counts as an error (correct what it names, or omit --strict)",
        ))
    } else {
        Ok(ExitCode::Done)
    }
}

/// Writes the position of the field with which a message begins in front of it.
fn locate(message: &mut String, written: &Node) {
    let field = message.split([':', ' ']).next().unwrap_or_default();
    if let Some(place) = written.place_of(field) {
        *message = format!("{place}: {message}");
    }
}

/// Not a kind of signer: the API server, for which nodepki itself is the signer.
const KUBELETS: &str = "kubelets";

/// Returns the objects that let nodepki sign for kubelets.
fn kubelets_setup(loaded: &Loaded, name: Option<&str>) -> Result<String, Failure> {
    if name.is_some() {
        return Err(Failure::usage(
            "--name selects a signer, and `signer-setup kubelets` is about the API server; remove it",
        ));
    }
    let policy = &loaded.settings.kubelets;
    if !policy.sign {
        print_warnings(&[
            "kubelets.sign is not set: nodepki does not use these rights before it is".to_owned(),
        ]);
    }
    Ok(rbac::manifest(policy, KUBELET_SIGNERS_GROUP))
}

/// Returns the setup script for the signers of a kind that the configuration uses.
pub(super) fn signer_setup(
    loaded: &Loaded,
    kind: SignerKind,
    only: Option<&str>,
) -> Result<String, Failure> {
    let mut parts: Vec<Part<'_, signer::Config>> = Vec::new();
    for authority in Authority::ALL {
        let Some((name, config)) = loaded.settings.signer_of(authority) else {
            continue;
        };
        if config.kind() != kind || only.is_some_and(|only| only != name) {
            continue;
        }
        let wanted = loaded.setup.requested(authority);
        let policy = &loaded.settings.kubelets;
        let kubelets = (authority == Authority::Ca && policy.sign).then_some(policy);
        match parts.iter_mut().find(|part| part.name == name) {
            Some(part) => {
                part.wanted.extend(wanted);
                part.kubelets = part.kubelets.or(kubelets);
            }
            None => parts.push(Part {
                name,
                config,
                wanted: wanted.collect(),
                kubelets,
            }),
        }
    }
    if parts.is_empty() {
        let called = only.map_or_else(String::new, |name| format!(" {name}"));
        return Err(Failure::misconfigured(format!(
            "no authority of the configuration has a signer{called} of kind {kind}; name one under authorities.*.signer"
        )));
    }
    kind.setup(&parts, &loaded.setup.identity)
        .ok_or_else(|| Failure::usage(format!("signers of kind {kind} need no setup on a server")))
}

pub(super) fn parse_kind(text: &str) -> Result<SignerKind, Failure> {
    let mut kinds = SignerKind::ALL.into_iter();
    let kind = kinds.find(|kind| kind.as_str() == text);
    kind.ok_or_else(|| {
        let known = SignerKind::ALL.map(SignerKind::as_str);
        let fix = yaml::fix_for(text, known, format!("use one of {}", known.join(", ")));
        let message = format!("{text:?} is not a kind of signer; {fix}");
        Failure::usage(message)
    })
}

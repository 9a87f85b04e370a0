//! `--signer embedded|local:DIR|directory:DIR|exec:PATH`: the kinds that need no setting except a path.

use std::path::PathBuf;
use std::str::FromStr;

use super::{Config, SignerKind, directory, embedded, exec, local};
use crate::yaml::did_you_mean;

/// The kinds that `--signer` names without a path.
const FLAG_KINDS: [&str; 4] = ["embedded", "local", "directory", "exec"];

/// The forms of `--signer`.
const FLAG_FORMS: &str = "embedded, local:DIR, directory:DIR or exec:PATH";

impl FromStr for Config {
    type Err = BadFlag;

    fn from_str(text: &str) -> Result<Self, BadFlag> {
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        let path = |what: &'static str| match rest {
            Some(rest) if !rest.is_empty() => Ok(PathBuf::from(rest)),
            _ => Err(BadFlag::NoPath {
                kind: kind.to_owned(),
                what,
            }),
        };
        match kind {
            "embedded" => match rest {
                None => Ok(Config::Embedded(embedded::Config)),
                Some(rest) => Err(BadFlag::Surplus(rest.to_owned())),
            },
            "local" => Ok(Config::Local(local::Config {
                directory: path("DIR, the directory with ca.crt and ca.key")?,
            })),
            "directory" => Ok(Config::Directory(directory::Config::new(path(
                "DIR, the directory for requests and answers",
            )?))),
            "exec" => {
                let command = path("PATH, the plug-in program")?;
                if !command.is_absolute() {
                    return Err(BadFlag::RelativeCommand(command));
                }
                Ok(Config::Exec(exec::Config::new(command)))
            }
            other
                if SignerKind::ALL
                    .into_iter()
                    .any(|kind| kind.as_str() == other) =>
            {
                Err(BadFlag::NeedsFile(other.to_owned()))
            }
            other => Err(BadFlag::Unknown {
                fix: match did_you_mean(other, FLAG_KINDS.into_iter()) {
                    Some(near) => format!("did you mean {near}? ({FLAG_FORMS})"),
                    None => format!("use {FLAG_FORMS}"),
                },
                kind: other.to_owned(),
            }),
        }
    }
}

impl Config {
    /// Returns the text that [`Config::from_str`] reads as this configuration; `None` if there is none.
    pub fn as_flag(&self) -> Option<String> {
        let text = match self {
            Config::Embedded(_) => "embedded".to_owned(),
            Config::Local(local) => format!("local:{}", local.directory.display()),
            Config::Directory(drop) => format!("directory:{}", drop.path.display()),
            Config::Exec(exec) => format!("exec:{}", exec.command.display()),
            _ => return None,
        };
        (text.parse::<Config>().as_ref() == Ok(self)).then_some(text)
    }
}

/// Error for an unusable `--signer`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFlag {
    /// The kind needs a path.
    #[error("--signer {kind} needs a path: write {kind}:{what}")]
    NoPath {
        /// Kind as given.
        kind: String,
        /// Meaning of the path.
        what: &'static str,
    },
    /// `embedded` has no value.
    #[error("--signer embedded has no value: write --signer embedded without :{0}")]
    Surplus(String),
    /// A plug-in is never searched in PATH.
    #[error("--signer exec:{0}: the program must be an absolute path, it is not searched in PATH")]
    RelativeCommand(PathBuf),
    /// The kind has settings that a flag cannot express.
    #[error(
        "--signer {0} has settings that a flag cannot express: configure it under signers in /etc/nodepki/config.yaml, or name a file with --config"
    )]
    NeedsFile(String),
    /// The kind does not exist.
    #[error("{kind:?} is not a kind of signer: {fix}")]
    Unknown {
        /// Kind as given.
        kind: String,
        /// The correction.
        fix: String,
    },
}

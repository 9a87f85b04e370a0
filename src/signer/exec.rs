//! `exec`: a program that implements the versioned JSON contract `signer.nodepki.dev/v1`.
//!
//! It connects every signer without a kind of its own: cloud CAs, CMP, an HSM behind a script.
//!
//! # The contract
//! `COMMAND ARGS… VERB`, with VERB one of `info`, `sign`, `poll`, `trust`. The program reads one JSON object from
//! stdin, then end of file, and writes one JSON object to stdout, at most 1 MiB. stderr is logged (its last 4 KiB,
//! control characters escaped, probable secrets removed), and the last 1 KiB of it is part of the message if the response
//! is unclean.
//!
//! | verb | stdin `kind` | stdout `kind` and fields |
//! | --- | --- | --- |
//! | `info` | `InfoRequest` | `InfoResponse`: `apiVersions`, `capabilities` |
//! | `sign` | `SignRequest` ([`wire::SignRequest`]) | `SignResponse` |
//! | `poll` | `PollRequest`, `handle` set | `SignResponse` |
//! | `trust` | `TrustRequest`: `ca` | `TrustResponse`: `caPem`, `crlPem` where `info` said `"crl": true` |
//!
//! Every document carries `apiVersion`; `SignResponse` echoes `requestId`. Its `result` is
//! - `issued`: `certificatePem`, optionally `chainPem` (intermediates);
//! - `pending`: `handle` (at most 4 KiB, may change with every answer), optionally `retryAfterSeconds`, `message`;
//! - `denied`: refused by an administrator or a policy; `reason`, `message`;
//! - `failed`: this request never succeeds; `reason`, `message`;
//! - `retry`: temporarily impossible; optionally `retryAfterSeconds`, `message`, and a `handle` to continue with; without
//!   one, nothing was done;
//! - `gone` (`poll` only): the handle is unknown, the request must be sent again.
//!
//! Exit code 0 means that a valid response is on stdout, 75 means `retry` without a `handle`. Any other code, a signal, a
//! timeout, or output that violates a rule above is *unclean*. After an unclean `sign` it is unknown what was signed, so
//! the same `requestId` is sent again and the program must be idempotent on it, or declare `"resubmit": "once"`. After
//! [`UNCLEAN_LIMIT`] consecutive unclean responses the request fails permanently. A run that ends with an invalid
//! response ends as for any unusable answer.
//!
//! # Execution
//! The program runs without a shell, in `/`, in its own process group, with `PATH`, `LANG=C`, `HOME` and the
//! configured variables in its environment. The umask is inherited. Descriptors opened by nodepki are close-on-exec.
//! The program and every directory on its path must belong to root or to the running user, and no other user may
//! write to them. With `runAsUser`, supplementary groups are dropped when nodepki runs as root; they are not set to
//! those of that user, since `initgroups` needs unsafe code between fork and exec. At the timeout the group gets
//! SIGTERM, five seconds later SIGKILL. Descendants that keep stdout or stderr open after the program has ended are
//! killed too.

mod documents;
mod process;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::process::Child;

use super::shell::quoted;
use super::wire::{self, API_VERSION};
use super::{
    About, Answer, Caps, Carry, Configured, FailureClass, Programs, Rejection, Request, RequestId,
    RequestLookup, RequestedCertificate, Resubmit, Signer, SignerError, SignerKind, Site, Ticket,
    printable,
};
use crate::kube::names::{Authority, NodePath};
use crate::process::confine;
use crate::process::machine;
use crate::yaml::schema::ValueForm;
use crate::yaml::settings::{Setting, SettingsBlock, settings};
use crate::yaml::{Field, format_duration};

use documents::{InfoResponse, Inquiry, PluginResponse, TrustResponse, parse, understand};
use process::{
    End, HIDDEN_KEY, and_said, drive, log_text, logged_lines, prepared, trusted_program,
};
pub(crate) use process::{judge, run};

/// Consecutive unclean responses after which a request fails permanently.
pub const UNCLEAN_LIMIT: u32 = 5;

/// Largest timeout that can be configured.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);

const STDOUT_LIMIT: usize = 1 << 20;
const STDERR_TAIL: usize = 4 << 10;
const TEXT_LIMIT: usize = 1 << 10;
/// Time between SIGTERM and SIGKILL.
const TERMINATION_GRACE_PERIOD: Duration = Duration::from_secs(5);
/// How long descendants may keep stdout or stderr open after the program itself has ended.
const MAX_LINGER_TIME: Duration = Duration::from_secs(1);
/// Exit code EX_TEMPFAIL of sysexits(3).
const EXIT_RETRY: i32 = 75;
/// Advice for a program that could not be started.
const CHECK_PROGRAM: &str = "check that it is executable here, and its interpreter";
/// Advice for a program that could not be started because of a limit of this machine.
const CHECK_LIMITS: &str =
    "check the limits of processes, memory and descriptors (ulimit -a, TasksMax= of the unit)";
const SAFE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

settings! {
    /// A plug-in program. Its environment and parameters may contain secrets and are not printed.
    #[derive(Clone, PartialEq, Eq)]
    pub struct Config {
        /// Absolute path of the plug-in program.
        "command" => pub command: PathBuf, required "with the absolute path of the plug-in";
        /// Argument before the verb.
        "args" => pub args: Vec<String>;
        /// Environment variable of the plug-in, in addition to the fixed minimum. The value may be a secret.
        "env" => pub env: BTreeMap<String, String>, show show_env;
        /// Longest run of one call, up to 10m.
        "timeout" => pub timeout: Duration = DEFAULT_TIMEOUT, read read_timeout;
        /// User name or number to run as.
        "runAsUser" => pub run_as_user: Option<String>, read read_user, form ValueForm::User;
        /// Value passed in the `params` of each request.
        "params" => pub params: BTreeMap<String, String>, show show_params;
    }
}

fn read_timeout(field: &Field<'_>) -> Option<Duration> {
    let given = Duration::read(field)?;
    if given.is_zero() || given > LONGEST_TIMEOUT {
        field.error(
            format!(
                "{} is not between 1ms and {}",
                format_duration(given),
                format_duration(LONGEST_TIMEOUT)
            ),
            "use up to 10m; a plug-in that needs longer answers \"pending\"",
        );
    }
    Some(given)
}

fn read_user(field: &Field<'_>) -> Option<Option<String>> {
    field.written().map(Some)
}

fn show_env(env: &BTreeMap<String, String>) -> Option<Value> {
    let env: BTreeMap<&str, &str> = env.keys().map(|key| (key.as_str(), REDACTED)).collect();
    Some(json!(env))
}

fn show_params(params: &BTreeMap<String, String>) -> Option<Value> {
    let shown = params.iter().map(|(key, value)| {
        let value = if looks_secret(key) { REDACTED } else { value };
        (key.as_str(), value)
    });
    Some(json!(shown.collect::<BTreeMap<&str, &str>>()))
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown_keys().fmt(f)
    }
}

impl Config {
    /// Creates a configuration with the defaults: no arguments, 60 seconds.
    pub fn new(command: impl Into<PathBuf>) -> Self {
        Config {
            command: command.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            timeout: DEFAULT_TIMEOUT,
            run_as_user: None,
            params: BTreeMap::new(),
        }
    }
}

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
const REDACTED: &str = "(redacted)";

/// Capabilities before the program has declared its own.
const ASSUMED: Caps = Caps {
    pends: true,
    lookup: RequestLookup::ByTicket,
    resubmit: Resubmit::Adopts,
    ml_dsa: Carry::AsConfigured,
    empty_csr: Carry::AsConfigured,
    crl: Carry::AsConfigured,
    ..Caps::everything()
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "exec",
        signs_with: "your own program with the JSON contract `signer.nodepki.dev/v1`",
        authentication: "up to the program",
        caps: ASSUMED,
        keys: Config::KEYS,
    };

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        if let Programs::Refused { below } = &site.programs {
            let mut signer = Exec::new(self.clone(), None)?;
            signer.refused_below = Some(below.clone());
            return Ok(Box::new(signer));
        }
        let run_as = match &self.run_as_user {
            Some(user) => {
                let found = (site.user)(user).map_err(|error| {
                    SignerError::config(
                        format!("exec.runAsUser: /etc/passwd cannot be read: {error}"),
                        "run again",
                    )
                    .caused_by(error)
                })?;
                Some(found.ok_or_else(|| {
                    SignerError::config(
                        format!("exec.runAsUser: there is no user {user} in /etc/passwd"),
                        "create it or configure another user",
                    )
                })?)
            }
            None => None,
        };
        Ok(Box::new(Exec::new(self.clone(), run_as)?))
    }
}

fn looks_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    [
        "secret",
        "token",
        "password",
        "passwd",
        "passphrase",
        "key",
        "credential",
        "auth",
        "pin",
        "cookie",
    ]
    .iter()
    .any(|word| key.contains(word))
}

/// Numeric user and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl Config {
    /// Returns why the program would not be started, without starting it.
    pub(crate) fn program_fault(&self) -> Option<SignerError> {
        trusted_program(&self.command).err()
    }
}

/// Requests certificates by running a program.
pub struct Exec {
    plugin: Config,
    run_as: Option<RunAs>,
    /// Root below which the program is named; it is then never started. The signer still exists, since planning and
    /// offline signing need none of its responses.
    refused_below: Option<PathBuf>,
    assumed: Caps,
    declared: OnceCell<Caps>,
    /// Consecutive unclean responses for each request.
    unclean: RefCell<BTreeMap<RequestId, u32>>,
}

impl Exec {
    /// Checks the configuration, but not the file.
    pub fn new(plugin: Config, run_as: Option<RunAs>) -> Result<Self, SignerError> {
        let command = plugin.command.display();
        if !plugin.command.is_absolute() {
            return Err(SignerError::config(
                format!("the signer command {command} is not an absolute path"),
                "name it by its absolute path",
            ));
        }
        if plugin.timeout.is_zero() || plugin.timeout > LONGEST_TIMEOUT {
            return Err(SignerError::config(
                format!(
                    "the timeout of signer command {command} is {} s",
                    plugin.timeout.as_secs_f32()
                ),
                format!(
                    "set it between 1 and {} s; a signer that takes longer answers `pending`",
                    LONGEST_TIMEOUT.as_secs()
                ),
            ));
        }
        Ok(Exec {
            plugin,
            run_as,
            refused_below: None,
            assumed: ASSUMED,
            declared: OnceCell::new(),
            unclean: RefCell::default(),
        })
    }

    /// Performs one call: starts the program, writes stdin, reads stdout, classifies the end.
    async fn call(&self, verb: Verb, input: &impl Serialize) -> Result<Output, CallError> {
        if let Some((detail, advice)) = self.refusal() {
            let detail = format!("{}: {detail}", self.label());
            return Err(CallError::NotStarted(SignerError::config(detail, advice)));
        }
        let program = trusted_program(&self.plugin.command).map_err(CallError::NotStarted)?;
        let input =
            serde_json::to_vec(input).map_err(|error| CallError::Unclean(error.to_string()))?;
        let child = self.spawn(&program, verb)?;
        let limit = self.plugin.timeout;
        let finished = drive(child, &input, limit).await?;
        let lines = logged_lines(&finished.stderr);
        let shown = log_text(&lines);
        if !shown.is_empty() {
            tracing::info!(signer = %self.label(), verb = verb.as_str(), stderr = %shown, "signer command wrote to stderr");
        }
        // The log has all lines. The last one of a traceback is its cause, and the same for each request.
        let said = lines
            .iter()
            .rev()
            .find(|line| !line.trim().is_empty() && *line != HIDDEN_KEY);
        let said = said.map_or_else(String::new, |line| printable(line.trim(), TEXT_LIMIT));
        let unclean = |why: String| Err(CallError::Unclean(why + &and_said(&said)));
        match finished.end {
            End::TimedOut => unclean(format!(
                "it did not finish within {} s, its timeout",
                limit.as_secs_f32().ceil()
            )),
            End::TooMuch => Err(CallError::Unusable(format!(
                "it wrote more than {STDOUT_LIMIT} bytes to stdout{}",
                and_said(&said)
            ))),
            End::Exited(status) if status.success() => Ok(Output {
                stdout: finished.stdout,
                said,
            }),
            End::Exited(status) if status.code() == Some(EXIT_RETRY) => {
                Err(CallError::TryAgain { said })
            }
            End::Exited(status) => unclean(format!("it ended with {status}")),
        }
    }

    fn spawn(&self, program: &Path, verb: Verb) -> Result<Child, CallError> {
        let mut command = prepared(program, &self.plugin.command);
        command
            .args(&self.plugin.args)
            .arg(verb.as_str())
            .env("HOME", self.home())
            .envs(&self.plugin.env);
        if let Some(run_as) = self.run_as {
            command.gid(run_as.gid).uid(run_as.uid);
        }
        confine::spawn(command).map_err(|error| {
            let busy = error.kind() == io::ErrorKind::ExecutableFileBusy;
            let (class, advice) = match machine::is_fault(&error) {
                true => (FailureClass::Transient, CHECK_LIMITS),
                false if busy => (FailureClass::Transient, CHECK_PROGRAM),
                false => (FailureClass::Config, CHECK_PROGRAM),
            };
            CallError::NotStarted(
                SignerError::new(
                    class,
                    format!(
                        "the signer command {} could not be started",
                        self.plugin.command.display()
                    ),
                    advice,
                )
                .caused_by(error),
            )
        })
    }

    /// Returns the program, for messages.
    fn command(&self) -> NodePath {
        let command = NodePath::from(self.plugin.command.as_path());
        match &self.refused_below {
            Some(root) => command.below(root),
            None => command,
        }
    }

    /// Returns why the program must not be started, and the required action.
    fn refusal(&self) -> Option<(String, String)> {
        let below = self.refused_below.as_ref()?.display();
        let command = self.command();
        let flag = super::Config::Exec(self.plugin.clone()).as_flag();
        let named =
            flag.map(|flag| format!("name it on the command line with --signer {flag}, or "));
        Some((
            format!(
                "the settings below {below} name the program {command} (exec.command), and a program named there is not started on this machine"
            ),
            format!(
                "{}name settings of this machine with --config FILE, or have the requests signed elsewhere (nodepki csr export DIR)",
                named.unwrap_or_default()
            ),
        ))
    }

    /// Returns the home directory; this process's own is not passed to another user.
    fn home(&self) -> OsString {
        std::env::var_os("HOME")
            .filter(|_| self.run_as.is_none())
            .unwrap_or_else(|| "/".into())
    }

    /// Performs `trust`.
    async fn authority(&self, authority: Authority) -> Result<TrustResponse, SignerError> {
        let inquiry = Inquiry::new("TrustRequest", Some(authority));
        self.inquire(Verb::Trust, &inquiry, |response: TrustResponse| {
            response.verify()?;
            Ok(response)
        })
        .await
    }

    /// Performs `sign` or `poll`.
    async fn ask(
        &self,
        verb: Verb,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Answer, SignerError> {
        let mut document = wire::SignRequest::exchange(request, ticket);
        document.params.clone_from(&self.plugin.params);
        let outcome = match self.call(verb, &document).await {
            Ok(Output { stdout, said }) => understand(&stdout, verb, request, ticket)
                .map_err(|why| CallError::Unusable(why + &and_said(&said))),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(response) => {
                self.unclean.borrow_mut().remove(&request.id);
                self.answer(response)
            }
            Err(error) => Err(self.failure(verb, request, error)),
        }
    }

    fn answer(&self, response: PluginResponse) -> Result<Answer, SignerError> {
        match response {
            PluginResponse::Answer(answer) => Ok(answer),
            PluginResponse::Failed(why) => Err(SignerError::permanent(
                format!("{} refused permanently: {why}", self.label()),
                "correct what it names, remove the pending request, and run again",
            )),
            PluginResponse::Retry { after, why } => Err(SignerError::new(
                FailureClass::Transient,
                format!("{} asks for a retry: {why}", self.label()),
                "check its log if this persists",
            )
            .retry_after(after)),
        }
    }

    fn failure(&self, verb: Verb, request: &Request, error: CallError) -> SignerError {
        let label = self.label();
        match error {
            CallError::NotStarted(error) => error,
            CallError::TryAgain { said } => {
                self.unclean.borrow_mut().remove(&request.id);
                self.retry(&said)
            }
            CallError::Unclean(ref why) | CallError::Unusable(ref why) => {
                let times = {
                    let mut unclean = self.unclean.borrow_mut();
                    let times = unclean.entry(request.id.clone()).or_default();
                    *times += 1;
                    *times
                };
                // Without the certificate: a fault of the program is the same for all, and is stated once.
                let detail = format!(
                    "{label} gave no usable response to `{}`: {why}",
                    verb.as_str()
                );
                let advice = format!(
                    "run it by hand, as in `nodepki csr show NAME -o json | {} {}`: see docs/signers/exec.md",
                    self.command_line(),
                    verb.as_str()
                );
                if times >= UNCLEAN_LIMIT {
                    let detail = format!("{detail} ({times} consecutive times, given up)");
                    return SignerError::permanent(detail, advice);
                }
                let class = match verb {
                    Verb::Sign => FailureClass::Ambiguous,
                    _ => FailureClass::Transient,
                };
                SignerError {
                    // The request is repeated, as the program may be about to be replaced.
                    bad_answer: matches!(error, CallError::Unusable(_)),
                    ..SignerError::new(class, detail, advice)
                }
            }
        }
    }

    fn retry(&self, said: &str) -> SignerError {
        let detail = format!(
            "{} asks for a retry (exit code {EXIT_RETRY}){}",
            self.label(),
            and_said(said)
        );
        let advice = "check its log if this persists";
        SignerError::new(FailureClass::Transient, detail, advice)
    }

    /// Returns program and arguments before the verb, for a shell.
    fn command_line(&self) -> String {
        let command = self.plugin.command.display().to_string();
        let words = std::iter::once(&command).chain(&self.plugin.args);
        words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Performs `info` or `trust`, and reads the response. They create nothing; a program that does not respond to them is
    /// not set up.
    async fn inquire<D: for<'de> Deserialize<'de>, T>(
        &self,
        verb: Verb,
        input: &Inquiry,
        read: impl Fn(D) -> Result<T, String>,
    ) -> Result<T, SignerError> {
        let unusable = |why: String| {
            SignerError::config(
                format!(
                    "{} gave no usable response to `{}`: {why}",
                    self.label(),
                    verb.as_str()
                ),
                format!(
                    "check that it speaks {API_VERSION}: echo {} | {} {}",
                    quoted(&serde_json::to_string(input).unwrap_or_default()),
                    self.command_line(),
                    verb.as_str()
                ),
            )
        };
        match self.call(verb, input).await {
            Ok(Output { stdout, said }) => parse(&stdout)
                .and_then(read)
                .map_err(|why| unusable(why + &and_said(&said))),
            Err(CallError::NotStarted(error)) => Err(error),
            Err(CallError::TryAgain { said }) => Err(self.retry(&said)),
            Err(CallError::Unclean(why) | CallError::Unusable(why)) => Err(unusable(why)),
        }
    }
}

#[async_trait(?Send)]
impl Signer for Exec {
    fn kind(&self) -> SignerKind {
        SignerKind::Exec
    }

    fn label(&self) -> String {
        format!("exec:{}", self.command())
    }

    fn configured(&self) -> String {
        format!("exec:{}", self.plugin.command.display())
    }

    fn caps(&self) -> &Caps {
        self.declared.get().unwrap_or(&self.assumed)
    }

    async fn probe(&self) -> Result<(), SignerError> {
        if self.declared.get().is_some() {
            return Ok(());
        }
        let inquiry = Inquiry::new("InfoRequest", None);
        let caps = self
            .inquire(Verb::Info, &inquiry, |info: InfoResponse| info.caps())
            .await?;
        // A concurrent probe has learnt the same.
        let _ = self.declared.set(caps);
        Ok(())
    }

    fn preflight(&self, wanted: &RequestedCertificate) -> Result<(), Rejection> {
        if let Some((reason, advice)) = self.refusal() {
            return Err(Rejection::new(&self.label(), wanted, reason, advice));
        }
        self.caps().carries(&self.label(), wanted)
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(filled(self.authority(authority).await?.ca_pem))
    }

    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        self.probe().await?;
        if self.caps().crl == Carry::No {
            return Ok(None);
        }
        Ok(filled(self.authority(authority).await?.crl_pem))
    }

    async fn recover(
        &self,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        match ticket {
            Some(ticket) => self.poll(request, ticket).await.map(Some),
            None => Ok(None),
        }
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        self.ask(Verb::Sign, request, None).await
    }

    async fn poll(&self, request: &Request, ticket: &Ticket) -> Result<Answer, SignerError> {
        self.ask(Verb::Poll, request, Some(ticket)).await
    }
}

fn filled(pem: Option<String>) -> Option<Vec<u8>> {
    pem.filter(|pem| !pem.trim().is_empty())
        .map(String::into_bytes)
}

words! {
    enum Verb {
        Info = "info",
        Sign = "sign",
        Poll = "poll",
        Trust = "trust",
    }
}

/// What a program wrote before it ended with 0.
struct Output {
    stdout: Vec<u8>,
    /// The end of its stderr, for messages.
    said: String,
}

enum CallError {
    /// The program did not run.
    NotStarted(SignerError),
    /// Exit code 75, with the end of its stderr.
    TryAgain { said: String },
    /// The program did not end as it should, and its effect is unknown.
    Unclean(String),
    /// The program ended with 0, and its response breaks a rule of the protocol.
    Unusable(String),
}

#[cfg(feature = "fuzzing")]
pub(super) fn fuzz_response(bytes: &[u8], request: &Request) {
    let _ = parse::<InfoResponse>(bytes);
    let _ = parse::<TrustResponse>(bytes);
    for verb in [Verb::Sign, Verb::Poll] {
        let _ = understand(bytes, verb, request, None);
    }
}

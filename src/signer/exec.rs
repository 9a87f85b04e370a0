//! `exec`: a program of yours that speaks the versioned JSON contract `signer.nodepki.dev/v1`.
//!
//! The way to every signer that has no kind of its own: cloud CAs, CMP, an HSM behind a script.
//!
//! # The contract
//! `COMMAND ARGS… VERB`, with VERB one of `info`, `sign`, `poll`, `trust`. One JSON object on stdin, then end of
//! file; one JSON object on stdout, at most 1 MiB; stderr is for people and goes to the log (its last 4 KiB,
//! control characters escaped, what looks like a secret blanked out).
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
//! - `denied`: a person or a policy said no; `reason`, `message`;
//! - `failed`: this request will never succeed; `reason`, `message`;
//! - `retry`: not now; optionally `retryAfterSeconds`, `message`, and a `handle` to go on with;
//! - `gone` (`poll` only): the handle is unknown, the request must be sent again.
//!
//! Exit code 0 means: a valid response is on stdout. 75 means: retry. Anything else, a signal, a timeout, or
//! output that breaks a rule above is *unclean*; after an unclean `sign` nobody knows what was signed, so the same
//! `requestId` comes again and the program must be idempotent on it, or declare `"resubmit": "once"`. After
//! [`UNCLEAN_LIMIT`] unclean answers in a row the request is given up.
//!
//! # How it is run
//! Without a shell, in `/`, in a process group of its own, with `PATH`, `LANG=C`, `HOME` and what the configuration
//! lists in its environment. The umask is this process's. Descriptors that this process opened are close-on-exec.
//! The program, and every directory on the way to it, must belong to root or to the running user and be writable
//! by nobody else. With a user to run as, supplementary groups are dropped when nodepki runs as root; they are not
//! set to those of that user, since `initgroups` needs unsafe code between fork and exec.
//! At the timeout the group gets SIGTERM, five seconds later SIGKILL. Descendants that keep stdout or stderr open
//! after the program has ended are killed too.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::future::pending;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep_until, timeout};

use super::wire::{self, API_VERSION};
use super::{
    About, Answer, Caps, Carry, Class, Configured, Kind, Lookup, Rejection, Request, RequestId,
    Resubmit, Signer, SignerError, Site, Ticket, Wanted, printable,
};
use crate::confine;
use crate::kubeadm::format_duration;
use crate::names::Authority;
use crate::schema::{Form, Key, absolute, duration, free_map, key, required, texts};
use crate::x509::UsageExtensions;
use crate::yaml::Map;

/// Unclean answers in a row after which a request is given up.
pub const UNCLEAN_LIMIT: u32 = 5;

/// The longest timeout that can be configured.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);

const STDOUT_LIMIT: usize = 1 << 20;
const STDERR_TAIL: usize = 4 << 10;
const TEXT_LIMIT: usize = 1 << 10;
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long descendants may hold stdout or stderr after the program itself has ended.
const LINGER: Duration = Duration::from_secs(1);
/// What a call gets however near the deadline is.
const LEAST: Duration = Duration::from_secs(10);
/// sysexits(3) EX_TEMPFAIL.
const TRY_AGAIN: i32 = 75;
const SAFE_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A plug-in program; its environment and parameters may hold secrets and are not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// Absolute path.
    pub command: PathBuf,
    /// Arguments before the verb.
    pub args: Vec<String>,
    /// Variables beyond the fixed minimum. Values may be secrets.
    pub env: BTreeMap<String, String>,
    /// For one call, at most [`LONGEST_TIMEOUT`].
    pub timeout: Duration,
    /// User name or number to run as.
    pub run_as_user: Option<String>,
    /// Free strings for the plug-in: the `params` of every request.
    pub params: BTreeMap<String, String>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.redacted().fmt(f)
    }
}

impl Config {
    /// A plug-in with the defaults: no arguments, 60 seconds.
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

/// Before the program was asked what it can.
const ASSUMED: Caps = Caps {
    pends: true,
    lookup: Lookup::ByTicket,
    resubmit: Resubmit::Adopts,
    crl: Carry::AsConfigured,
    ..Caps::everything()
};

#[rustfmt::skip]
const KEYS: &[Key] = &[
    key("command", Form::Path, "The plug-in program."),
    key("args[]", Form::Text, "Argument before the verb."),
    key("env.*", Form::Text, "Environment variable of the plug-in."),
    key("timeout", Form::Duration, "Longest run of one call, up to 10m; default 60s."),
    key("runAsUser", Form::User, "User name or number to run as."),
    key("params.*", Form::Text, "Free value passed in each request."),
];

impl Configured for Config {
    const ABOUT: About = About {
        name: "exec",
        signs_with: "a program of yours that speaks JSON, contract `signer.nodepki.dev/v1`",
        authentication: "up to the program",
        caps: ASSUMED,
        keys: &[KEYS],
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let command = match map.get("command") {
            Some(command) => absolute(&command),
            None => {
                required(map, "command", "with the absolute path of the plug-in");
                None
            }
        };
        let args = texts(map.get("args"));
        let env = free_map(map.get("env"));
        let mut timeout = DEFAULT_TIMEOUT;
        if let Some((field, given)) = duration(map.get("timeout")) {
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
            timeout = given;
        }
        let run_as_user = map.get("runAsUser").and_then(|field| field.written());
        let params = free_map(map.get("params"));
        Some(Config {
            command: command?,
            args,
            env,
            timeout,
            run_as_user,
            params,
        })
    }

    fn redacted(&self) -> Value {
        let env: BTreeMap<&str, &str> = self
            .env
            .keys()
            .map(|key| (key.as_str(), REDACTED))
            .collect();
        let params: BTreeMap<&str, &str> = self
            .params
            .iter()
            .map(|(key, value)| {
                let shown = if looks_secret(key) { REDACTED } else { value };
                (key.as_str(), shown)
            })
            .collect();
        let mut keys = json!({
            "command": self.command,
            "args": self.args,
            "env": env,
            "timeout": format_duration(self.timeout),
            "params": params,
        });
        if let (Some(user), Some(map)) = (&self.run_as_user, keys.as_object_mut()) {
            map.insert("runAsUser".to_owned(), json!(user));
        }
        keys
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        let run_as = match &self.run_as_user {
            Some(user) => Some((site.user)(user).ok_or_else(|| {
                SignerError::config(
                    format!("exec.runAsUser: there is no user {user} in /etc/passwd"),
                    "create it or name another",
                )
            })?),
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

/// Signs by running a program.
pub struct Exec {
    plugin: Config,
    run_as: Option<RunAs>,
    assumed: Caps,
    declared: OnceCell<Caps>,
    /// Unclean answers in a row, for each request.
    unclean: RefCell<BTreeMap<RequestId, u32>>,
}

impl Exec {
    /// Checks the configuration, not yet the file.
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
            assumed: ASSUMED,
            declared: OnceCell::new(),
            unclean: RefCell::default(),
        })
    }

    /// One call: spawn, feed, read, classify the end.
    async fn call(
        &self,
        verb: Verb,
        input: &impl Serialize,
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let program = trusted_program(&self.plugin.command).map_err(CallError::NotStarted)?;
        let input =
            serde_json::to_vec(input).map_err(|error| CallError::Unclean(error.to_string()))?;
        let child = self.spawn(&program, verb)?;
        let finished = drive(child, &input, limit).await?;
        let shown = log_text(&finished.stderr);
        if !shown.is_empty() {
            tracing::info!(signer = %self.label(), verb = verb.as_str(), stderr = %shown, "signer command wrote to stderr");
        }
        match finished.end {
            End::TimedOut => Err(CallError::Unclean(format!(
                "it did not finish within {} s",
                limit.as_secs_f32()
            ))),
            End::TooMuch => Err(CallError::Unclean(format!(
                "it wrote more than {STDOUT_LIMIT} bytes to stdout"
            ))),
            End::Exited(status) if status.success() => Ok(finished.stdout),
            End::Exited(status) if status.code() == Some(TRY_AGAIN) => Err(CallError::TryAgain),
            End::Exited(status) => Err(CallError::Unclean(format!("it ended with {status}"))),
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
            let class = if busy {
                Class::Transient
            } else {
                Class::Config
            };
            CallError::NotStarted(
                SignerError::new(
                    class,
                    format!(
                        "the signer command {} could not be started",
                        self.plugin.command.display()
                    ),
                    "check that it is executable here, and its interpreter",
                )
                .caused_by(error),
            )
        })
    }

    /// Our own home is not another user's.
    fn home(&self) -> OsString {
        std::env::var_os("HOME")
            .filter(|_| self.run_as.is_none())
            .unwrap_or_else(|| "/".into())
    }

    /// `trust`.
    async fn authority(&self, authority: Authority) -> Result<TrustResponse, SignerError> {
        let inquiry = Inquiry::new("TrustRequest", Some(authority));
        let response: TrustResponse = self.inquire(Verb::Trust, &inquiry).await?;
        if response.api_version != API_VERSION || response.kind != "TrustResponse" {
            return Err(SignerError::config(
                format!(
                    "{} answered `trust` with {:?} {:?}",
                    self.label(),
                    response.api_version,
                    response.kind
                ),
                format!("it must answer with {API_VERSION} TrustResponse"),
            ));
        }
        Ok(response)
    }

    /// `sign` and `poll`.
    async fn ask(
        &self,
        verb: Verb,
        request: &Request,
        ticket: Option<&Ticket>,
    ) -> Result<Answer, SignerError> {
        let mut document = wire::SignRequest::exchange(request, ticket);
        document.params.clone_from(&self.plugin.params);
        let limit = limit(self.plugin.timeout, request);
        let outcome = match self.call(verb, &document, limit).await {
            Ok(output) => understand(&output, verb, request, ticket),
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

    fn answer(&self, response: Response) -> Result<Answer, SignerError> {
        match response {
            Response::Answer(answer) => Ok(answer),
            Response::Failed(why) => Err(SignerError::permanent(
                format!("{} refused for good: {why}", self.label()),
                "mend what it names, remove the pending request, and run again",
            )),
            Response::Retry { after, why } => Err(SignerError::new(
                Class::Transient,
                format!("{} asks to be tried again: {why}", self.label()),
                "see what keeps it if that goes on",
            )
            .retry_after(after)),
        }
    }

    fn failure(&self, verb: Verb, request: &Request, error: CallError) -> SignerError {
        let label = self.label();
        let name = request.name();
        match error {
            CallError::NotStarted(error) => error,
            CallError::TryAgain => {
                self.unclean.borrow_mut().remove(&request.id);
                SignerError::new(
                    Class::Transient,
                    format!("{label} asks to be tried again (exit code {TRY_AGAIN})"),
                    "see what keeps it if that goes on",
                )
            }
            CallError::Unclean(why) => {
                let times = {
                    let mut unclean = self.unclean.borrow_mut();
                    let times = unclean.entry(request.id.clone()).or_default();
                    *times += 1;
                    *times
                };
                let detail = format!(
                    "{label} gave no usable answer to `{}` for {name}: {why}",
                    verb.as_str()
                );
                let advice = format!(
                    "see its stderr in the log (request {}), and run `{} {}` by hand",
                    request.id,
                    self.plugin.command.display(),
                    verb.as_str()
                );
                if times >= UNCLEAN_LIMIT {
                    let detail = format!("{detail} ({times} times in a row, given up)");
                    return SignerError::permanent(detail, advice);
                }
                let class = match verb {
                    Verb::Sign => Class::Ambiguous,
                    _ => Class::Transient,
                };
                SignerError::new(class, detail, advice)
            }
        }
    }

    /// `info` and `trust`: nothing is at stake, but a plug-in that cannot answer is not set up.
    async fn inquire<T: for<'de> Deserialize<'de>>(
        &self,
        verb: Verb,
        input: &Inquiry,
    ) -> Result<T, SignerError> {
        let unusable = |why: String| {
            SignerError::config(
                format!(
                    "{} gave no usable answer to `{}`: {why}",
                    self.label(),
                    verb.as_str()
                ),
                format!(
                    "see its stderr in the log, and check that it speaks {API_VERSION}: echo '{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"{}\"}}' | {} {}",
                    input.kind,
                    self.plugin.command.display(),
                    verb.as_str()
                ),
            )
        };
        match self.call(verb, input, self.plugin.timeout).await {
            Ok(output) => parse(&output).map_err(unusable),
            Err(CallError::NotStarted(error)) => Err(error),
            Err(CallError::TryAgain) => Err(SignerError::new(
                Class::Transient,
                format!(
                    "{} asks to be tried again (exit code {TRY_AGAIN})",
                    self.label()
                ),
                "see what keeps it if that goes on",
            )),
            Err(CallError::Unclean(why)) => Err(unusable(why)),
        }
    }
}

#[async_trait(?Send)]
impl Signer for Exec {
    fn kind(&self) -> Kind {
        Kind::Exec
    }

    fn label(&self) -> String {
        format!("exec:{}", self.plugin.command.display())
    }

    fn caps(&self) -> &Caps {
        self.declared.get().unwrap_or(&self.assumed)
    }

    async fn probe(&self) -> Result<(), SignerError> {
        if self.declared.get().is_some() {
            return Ok(());
        }
        let info: InfoResponse = self
            .inquire(Verb::Info, &Inquiry::new("InfoRequest", None))
            .await?;
        let caps = info.caps().map_err(|why| {
            SignerError::config(
                format!("{} cannot be used: {why}", self.label()),
                format!("use a version of it that speaks {API_VERSION}"),
            )
        })?;
        // A second probe at the same time has learnt the same.
        let _ = self.declared.set(caps);
        Ok(())
    }

    fn preflight(&self, wanted: &Wanted) -> Result<(), Rejection> {
        self.caps().carries(&self.label(), wanted)
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        Ok(filled(self.authority(authority).await?.ca_pem))
    }

    async fn crl(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
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

/// How long one call may take: the timeout, cut by the deadline. A run that does not wait at all still gets
/// [`LEAST`], since a call that is cut short leaves its fate unknown.
fn limit(timeout: Duration, request: &Request) -> Duration {
    match request.deadline {
        None => timeout,
        Some(deadline) => {
            let left = Duration::try_from(deadline - request.now).unwrap_or_default();
            timeout.min(left.max(LEAST))
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Info,
    Sign,
    Poll,
    Trust,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Verb::Info => "info",
            Verb::Sign => "sign",
            Verb::Poll => "poll",
            Verb::Trust => "trust",
        }
    }
}

enum CallError {
    /// Nothing ran.
    NotStarted(SignerError),
    /// Exit code 75.
    TryAgain,
    /// It ran, and what it did is unknown.
    Unclean(String),
}

// ---- documents ----

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Inquiry {
    api_version: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca: Option<Authority>,
}

impl Inquiry {
    fn new(kind: &'static str, ca: Option<Authority>) -> Self {
        Inquiry {
            api_version: API_VERSION,
            kind,
            ca,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InfoResponse {
    kind: String,
    #[serde(default)]
    api_versions: Vec<String>,
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Capabilities {
    organization: bool,
    colon_common_name: bool,
    ip_sans: bool,
    usage_extensions_in_csr: bool,
    crl: bool,
    resubmit: String,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            organization: true,
            colon_common_name: true,
            ip_sans: true,
            usage_extensions_in_csr: true,
            crl: false,
            resubmit: "idempotent".to_owned(),
        }
    }
}

impl InfoResponse {
    fn caps(&self) -> Result<Caps, String> {
        if self.kind != "InfoResponse" {
            return Err(format!(
                "it answered `info` with kind {:?}",
                printable(&self.kind, TEXT_LIMIT)
            ));
        }
        if !self.api_versions.iter().any(|known| known == API_VERSION) {
            return Err(format!(
                "it speaks [{}] and not {API_VERSION}",
                printable(&self.api_versions.join(", "), TEXT_LIMIT)
            ));
        }
        let declared = &self.capabilities;
        let carry = |yes| if yes { Carry::Yes } else { Carry::No };
        Ok(Caps {
            renewal: ASSUMED.renewal,
            crl: carry(declared.crl),
            own_name_san: ASSUMED.own_name_san,
            organization: carry(declared.organization),
            colon_common_name: carry(declared.colon_common_name),
            ip_sans: carry(declared.ip_sans),
            usage_extensions: if declared.usage_extensions_in_csr {
                UsageExtensions::Requested
            } else {
                UsageExtensions::Omitted
            },
            pends: true,
            lookup: Lookup::ByTicket,
            resubmit: match declared.resubmit.as_str() {
                "idempotent" => Resubmit::Adopts,
                "duplicates" => Resubmit::Duplicates,
                "once" => Resubmit::Forbidden,
                other => {
                    return Err(format!(
                        "its capability `resubmit` is {:?}, not idempotent, duplicates or once",
                        printable(other, TEXT_LIMIT)
                    ));
                }
            },
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TrustResponse {
    api_version: String,
    kind: String,
    ca_pem: Option<String>,
    crl_pem: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignResponse {
    api_version: String,
    kind: String,
    request_id: String,
    result: String,
    certificate_pem: Option<String>,
    chain_pem: Option<String>,
    handle: Option<String>,
    retry_after_seconds: Option<u64>,
    reason: Option<String>,
    message: Option<String>,
}

enum Response {
    Answer(Answer),
    Failed(String),
    Retry {
        after: Option<Duration>,
        why: String,
    },
}

/// Exactly one JSON object, nothing but white space around it.
fn parse<T: for<'de> Deserialize<'de>>(output: &[u8]) -> Result<T, String> {
    let text = output.trim_ascii();
    match text.first() {
        Some(b'{') => {}
        Some(_) => return Err("its stdout is not one JSON object".to_owned()),
        None => return Err("its stdout is empty".to_owned()),
    }
    // The parser's message carries a position and field names, never what was written there.
    serde_json::from_slice(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => format!(
            "its JSON lacks a field or has one of another type, at line {} column {}",
            error.line(),
            error.column()
        ),
        _ => format!("its stdout is not one JSON object: {error}"),
    })
}

fn understand(
    output: &[u8],
    verb: Verb,
    request: &Request,
    ticket: Option<&Ticket>,
) -> Result<Response, CallError> {
    let response: SignResponse = parse(output).map_err(CallError::Unclean)?;
    read_response(response, verb, request, ticket).map_err(CallError::Unclean)
}

fn read_response(
    response: SignResponse,
    verb: Verb,
    request: &Request,
    ticket: Option<&Ticket>,
) -> Result<Response, String> {
    let expect = |what: &str, found: &str, wanted: &str| {
        if found == wanted {
            return Ok(());
        }
        Err(format!(
            "its {what} is {:?}, not {wanted:?}",
            printable(found, 100)
        ))
    };
    expect("apiVersion", &response.api_version, API_VERSION)?;
    expect("kind", &response.kind, "SignResponse")?;
    expect("requestId", &response.request_id, request.id.as_str())?;
    let after = response.retry_after_seconds.map(Duration::from_secs);
    let why = words(response.reason.as_deref(), response.message.as_deref());
    let fresh = match response.handle {
        Some(handle) => Some(Ticket::try_from(handle).map_err(|error| error.to_string())?),
        None => None,
    };
    let pending = |ticket: Ticket| {
        Response::Answer(Answer::Pending {
            ticket,
            after,
            note: why.clone(),
        })
    };
    Ok(match response.result.as_str() {
        "issued" => {
            let mut answer = response
                .certificate_pem
                .filter(|pem| !pem.trim().is_empty())
                .ok_or("it says issued without a certificatePem")?;
            if let Some(chain) = response.chain_pem {
                if !answer.ends_with('\n') {
                    answer.push('\n');
                }
                answer.push_str(&chain);
            }
            Response::Answer(Answer::Issued(answer.into_bytes()))
        }
        "pending" => pending(
            fresh
                .or_else(|| ticket.cloned())
                .ok_or("it says pending without a handle")?,
        ),
        "denied" => Response::Answer(Answer::Denied { reason: why }),
        "failed" => Response::Failed(why),
        "retry" => match fresh {
            // It has begun something: the handle must not get lost.
            Some(ticket) => pending(ticket),
            None => Response::Retry { after, why },
        },
        "gone" if verb == Verb::Poll => Response::Answer(Answer::Gone),
        other => return Err(format!("its result {:?} is unknown", printable(other, 100))),
    })
}

fn words(reason: Option<&str>, message: Option<&str>) -> String {
    let parts: Vec<_> = [reason, message]
        .into_iter()
        .flatten()
        .map(|text| printable(text, TEXT_LIMIT))
        .filter(|text| !text.is_empty())
        .collect();
    if parts.is_empty() {
        "no reason given".to_owned()
    } else {
        parts.join(": ")
    }
}

// ---- the program file ----

/// The program's real path, once it is sure that nobody but root and this user could have put it there: the path
/// as given (symbolic links and their directories) and the path that it resolves to are both looked at.
fn trusted_program(command: &Path) -> Result<PathBuf, SignerError> {
    let shown = command.display();
    let refuse = |why: String| {
        SignerError::config(
            format!("the command {shown} is not run: {why}"),
            format!(
                "let it belong to root with mode 0755, in directories that do too: chown root: {shown}; chmod 0755 {shown}"
            ),
        )
    };
    if command
        .components()
        .any(|part| matches!(part, Component::ParentDir))
    {
        return Err(refuse("there is a `..` in its path".to_owned()));
    }
    let real = command
        .canonicalize()
        .map_err(|error| refuse(error.to_string()))?;
    let ours = geteuid().as_raw();
    for path in [command, &real] {
        for ancestor in path.ancestors() {
            let meta = ancestor
                .symlink_metadata()
                .map_err(|error| refuse(format!("{}: {error}", ancestor.display())))?;
            if meta.uid() != 0 && meta.uid() != ours {
                return Err(refuse(format!(
                    "{} belongs to user {}",
                    ancestor.display(),
                    meta.uid()
                )));
            }
            // A link's own mode means nothing. In a sticky directory only a file's owner can replace it.
            let sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
            if !meta.is_symlink() && !sticky && meta.mode() & 0o022 != 0 {
                return Err(refuse(format!(
                    "{} is writable by others (mode {:04o})",
                    ancestor.display(),
                    meta.mode() & 0o7777
                )));
            }
        }
    }
    let meta = real.metadata().map_err(|error| refuse(error.to_string()))?;
    if !meta.is_file() {
        return Err(refuse("it is not a regular file".to_owned()));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(refuse("it is not executable".to_owned()));
    }
    Ok(real)
}

// ---- running it ----

/// Runs a program that is no signer as carefully as one: no shell, trusted path, little environment, its group killed
/// at `limit`. `Err` says what went wrong, with the end of what it wrote to stderr.
pub(crate) async fn run(
    command: &[String],
    env: &[(&str, String)],
    limit: Duration,
) -> Result<(), String> {
    let (name, args) = command.split_first().ok_or("there is no command")?;
    let program = trusted_program(Path::new(name)).map_err(|error| error.to_string())?;
    let mut prepared = prepared(&program, Path::new(name));
    let home = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
    prepared.args(args).env("HOME", home);
    prepared.envs(env.iter().map(|(key, value)| (key, value)));
    let child = confine::spawn(prepared)
        .map_err(|error| format!("{name} could not be started: {error}"))?;
    let finished = drive(child, &[], limit)
        .await
        .map_err(|error| match error {
            CallError::Unclean(why) => why,
            CallError::NotStarted(error) => error.to_string(),
            CallError::TryAgain => format!("{name} asks to be tried again"),
        })?;
    let said = log_text(&finished.stderr);
    let said = match said.is_empty() {
        true => said,
        false => format!(", and said: {said}"),
    };
    match finished.end {
        End::Exited(status) if status.success() => Ok(()),
        End::Exited(status) => Err(format!("{name} ended with {status}{said}")),
        End::TimedOut => Err(format!(
            "{name} did not finish within {} s{said}",
            limit.as_secs_f32()
        )),
        End::TooMuch => Err(format!(
            "{name} wrote more than {STDOUT_LIMIT} bytes to stdout"
        )),
    }
}

fn prepared(program: &Path, called: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg0(called)
        .env_clear()
        .env("PATH", SAFE_PATH)
        .env("LANG", "C")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

struct Finished {
    end: End,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

enum End {
    Exited(ExitStatus),
    TimedOut,
    TooMuch,
}

/// The program's process group; killed with whatever is left in it unless the run ended well.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // ESRCH: nobody is left, which is what was wanted.
            let _ = killpg(group, signal);
        }
    }

    fn leave(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

async fn drive(mut child: Child, input: &[u8], limit: Duration) -> Result<Finished, CallError> {
    let started = Instant::now();
    let group = Group(
        child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .map(Pid::from_raw),
    );
    let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(CallError::Unclean("its pipes are missing".to_owned()));
    };
    // A program that does not read its input closes the pipe early; that is its right.
    let feed = async move {
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    tokio::pin!(feed);

    let mut finished = Finished {
        end: End::TimedOut,
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    let (mut feeding, mut out_open, mut err_open) = (true, true, true);
    let mut exit: Option<(ExitStatus, Instant)> = None;
    let mut out = vec![0; 16 << 10];
    let mut err = vec![0; 4 << 10];
    loop {
        if let Some((status, _)) = exit
            && !out_open
            && !err_open
        {
            finished.end = End::Exited(status);
            group.leave();
            return Ok(finished);
        }
        tokio::select! {
            read = stdout.read(&mut out), if out_open => match read {
                Ok(0) | Err(_) => out_open = false,
                Ok(count) => {
                    finished.stdout.extend(out.iter().take(count));
                    if finished.stdout.len() > STDOUT_LIMIT {
                        finished.end = End::TooMuch;
                        break;
                    }
                }
            },
            read = stderr.read(&mut err), if err_open => match read {
                Ok(0) | Err(_) => err_open = false,
                Ok(count) => keep_tail(&mut finished.stderr, err.get(..count).unwrap_or_default()),
            },
            () = &mut feed, if feeding => feeding = false,
            status = child.wait(), if exit.is_none() => match status {
                Ok(status) => exit = Some((status, Instant::now())),
                Err(error) => return Err(CallError::Unclean(error.to_string())),
            },
            () = sleep_until(started + limit), if exit.is_none() => break,
            () = linger(exit.map(|(_, since)| since)) => {
                // It has ended, but a descendant holds its output. The answer, if there is one, counts.
                if let Some((status, _)) = exit {
                    finished.end = End::Exited(status);
                }
                return Ok(finished);
            }
        }
    }
    group.signal(Signal::SIGTERM);
    if timeout(GRACE, child.wait()).await.is_err() {
        group.signal(Signal::SIGKILL);
        let _ = timeout(GRACE, child.wait()).await;
    }
    Ok(finished)
}

async fn linger(since: Option<Instant>) {
    match since {
        Some(since) => sleep_until(since + LINGER).await,
        None => pending().await,
    }
}

fn keep_tail(tail: &mut Vec<u8>, more: &[u8]) {
    tail.extend_from_slice(more);
    let excess = tail.len().saturating_sub(STDERR_TAIL);
    tail.drain(..excess);
}

// ---- stderr ----

/// A plug-in's stderr as it may stand in a log: printable, and without what looks like a secret.
fn log_text(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut lines: Vec<String> = Vec::new();
    let mut inside_key = false;
    for line in text.lines() {
        if line.contains("PRIVATE KEY-----") {
            if line.contains("-----END") && !inside_key {
                // The tail begins within the key.
                lines.clear();
            }
            inside_key = line.contains("-----BEGIN");
            lines.push("[private key]".to_owned());
        } else if !inside_key {
            lines.push(without_secret(line));
        }
    }
    printable(&lines.join("\n"), 2 * STDERR_TAIL)
}

/// The line up to the value of something that is called like a secret.
fn without_secret(line: &str) -> String {
    const NAMES: [&str; 9] = [
        "authorization",
        "token",
        "password",
        "passwd",
        "passphrase",
        "secret",
        "api_key",
        "apikey",
        "bearer",
    ];
    // ASCII lower-casing keeps byte offsets.
    let lower = line.to_ascii_lowercase();
    let value = NAMES
        .iter()
        .filter_map(|name| {
            lower.match_indices(name).find_map(|(at, _)| {
                let after = at + name.len();
                let rest = lower.get(after..)?;
                let gap = rest.len() - rest.trim_start_matches(['"', '\'', ' ']).len();
                let marked = rest
                    .trim_start_matches(['"', '\'', ' '])
                    .starts_with(['=', ':']);
                let value = if marked { after + gap + 1 } else { after + gap };
                (marked || *name == "bearer" && gap > 0).then_some(value)
            })
        })
        .min();
    match value.and_then(|value| line.get(..value)) {
        Some(kept) => format!("{kept}[redacted]"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_on_stderr_do_not_reach_the_log() {
        for (line, shown) in [
            ("connecting to https://ca", "connecting to https://ca"),
            ("Authorization: Bearer abc", "Authorization:[redacted]"),
            ("using bearer abc", "using bearer [redacted]"),
            ("{\"token\": \"hvs.abc\"}", "{\"token\":[redacted]"),
            ("PASSWORD=hunter2 rest", "PASSWORD=[redacted]"),
            ("the token expired", "the token expired"),
            ("Grüße, secret='x'", "Grüße, secret=[redacted]"),
        ] {
            assert_eq!(log_text(line.as_bytes()), shown);
        }
        let key = "a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nb";
        assert_eq!(
            log_text(key.as_bytes()),
            "a | [private key] | [private key] | b"
        );
        let cut = "MHcC\nMHcD\n-----END EC PRIVATE KEY-----\nb";
        assert_eq!(log_text(cut.as_bytes()), "[private key] | b");
    }

    #[test]
    fn only_the_end_of_stderr_is_kept() {
        let mut tail = Vec::new();
        for _ in 0..100 {
            keep_tail(&mut tail, &[b'a'; 1000]);
        }
        keep_tail(&mut tail, b"end");
        assert_eq!(tail.len(), STDERR_TAIL);
        assert!(tail.ends_with(b"aend"));
    }

    #[test]
    fn stdout_is_exactly_one_object() {
        let value = |text: &str| parse::<BTreeMap<String, String>>(text.as_bytes());
        assert!(value(" {\"a\":\"b\"} \n").is_ok());
        for broken in ["", "[]", "{\"a\":\"b\"}{}", "{\"a\":", "null", "x{}"] {
            assert!(value(broken).is_err(), "{broken}");
        }
    }
}

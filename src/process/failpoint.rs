//! Failpoints: named steps at which a crash test can end the process or make the run fail.
//!
//! With the cargo feature `failpoints`, the variable `NODEPKI_FAILPOINT` arms one of them:
//!
//! | value | effect |
//! | --- | --- |
//! | `commit:staged` | SIGKILL at the first hit: no destructor runs, no buffer is flushed |
//! | `commit:staged-one:3` | SIGKILL at the third hit |
//! | `commit:staged-one=ENOSPC` | the first hit fails with that errno, later ones succeed |
//! | `commit:staged-one:3=EROFS` | the third hit fails with that errno |
//!
//! Without the feature, [`hit`] is an empty inline function and the variable is ignored.
//!
//! To add a failpoint: call [`hit`] and add the name to a list below. A name that is missing from the lists ends the
//! process when it is hit; a name in the lists that is never hit fails a test.

use nix::errno::Errno;

/// The failpoints of the store, in the order in which a run reaches them.
pub const STORE: &[&str] = &[
    "pending:written",
    "pending:created",
    "pending:ticket-written",
    "pending:ticket-updated",
    "pending:set-aside",
    "commit:recorded",
    "commit:staged-one",
    "commit:staged",
    "commit:synced",
    "commit:journalled",
    "finish:decided",
    "finish:rename-one",
    "finish:remove-one",
    "finish:renamed",
    "finish:durable",
    "finish:slot-removed",
    "finish:slots-removed",
    "finish:journal-removed",
    "finish:record-removed",
    "recover:journal-read",
    "recover:staged-one",
    "recover:staged",
    "recover:swept-one",
    "recover:swept",
];

/// The failpoints of bootstrap and renewal.
pub const AGENT: &[&str] = &[
    "run:node-kept",
    "request:key-kept",
    "request:submitting",
    "request:answered",
    "request:pending",
    "request:verified",
    "run:before-commit",
    "run:committed",
];

/// The failpoints of `migrate`, which removes CA keys from a node.
pub const MIGRATE: &[&str] = &["migrate:proven", "migrate:backed-up", "migrate:committed"];

/// The failpoints of a CA change.
pub const AUTHORITY: &[&str] = &[
    "authority:proven",
    "authority:committed",
    "authority:ordered",
];

/// The failpoint of restarts: kube-apiserver is stopped, and etcd not yet.
pub const RELOAD: &[&str] = &["reload:server-stopped"];

/// The failpoints of the signer of kubelets' requests.
pub const KUBELETS: &[&str] = &["kubelets:submitting", "kubelets:answered"];

/// The failpoints of the issuance log.
pub const AUDIT: &[&str] = &["audit:write", "audit:written", "audit:renamed"];

/// All failpoints.
pub const ALL: &[&[&str]] = &[STORE, AGENT, MIGRATE, AUTHORITY, RELOAD, KUBELETS, AUDIT];

/// Ends the process or fails if `NODEPKI_FAILPOINT` arms this failpoint; without the feature it does nothing.
///
/// # Errors
/// The injected errno.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub const fn hit(_name: &'static str) -> Result<(), Errno> {
    Ok(())
}

/// Ends the process or fails if `NODEPKI_FAILPOINT` arms this failpoint.
///
/// # Errors
/// The injected errno.
#[cfg(feature = "failpoints")]
pub fn hit(name: &'static str) -> Result<(), Errno> {
    armed::hit(name)
}

/// Ends the process if `NODEPKI_FAILPOINT` arms this failpoint. For steps that cannot fail.
pub fn reached(name: &'static str) {
    let _ = hit(name);
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    use nix::errno::Errno;
    use nix::sys::signal::{Signal, raise};

    struct Armed {
        name: String,
        at: u32,
        error: Option<Errno>,
        hits: AtomicU32,
    }

    pub(super) fn hit(name: &'static str) -> Result<(), Errno> {
        if !super::ALL.iter().any(|group| group.contains(&name)) {
            abort(&format!(
                "failpoint {name:?} is missing from the lists in failpoint.rs"
            ));
        }
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        let Some(armed) = ARMED.get_or_init(|| {
            let value = std::env::var("NODEPKI_FAILPOINT").ok()?;
            Some(
                parse(&value)
                    .unwrap_or_else(|| abort(&format!("NODEPKI_FAILPOINT={value:?} is not valid"))),
            )
        }) else {
            return Ok(());
        };
        if armed.name != name || armed.hits.fetch_add(1, Ordering::Relaxed) + 1 != armed.at {
            return Ok(());
        }
        match armed.error {
            Some(error) => Err(error),
            None => {
                // The kernel ends the process here, as a power cut would.
                let _ = raise(Signal::SIGKILL);
                abort("still alive after SIGKILL")
            }
        }
    }

    fn parse(value: &str) -> Option<Armed> {
        let (step, error) = match value.split_once('=') {
            Some((step, error)) => (step, Some(errno(error)?)),
            None => (value, None),
        };
        let (name, at) = match step.rsplit_once(':') {
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                (name, number.parse().ok()?)
            }
            _ => (step, 1),
        };
        super::ALL
            .iter()
            .any(|group| group.contains(&name))
            .then(|| Armed {
                name: name.to_owned(),
                at,
                error,
                hits: AtomicU32::new(0),
            })
    }

    fn errno(name: &str) -> Option<Errno> {
        Some(match name {
            "EACCES" => Errno::EACCES,
            "EDQUOT" => Errno::EDQUOT,
            "EIO" => Errno::EIO,
            "ENOSPC" => Errno::ENOSPC,
            "EPERM" => Errno::EPERM,
            "EROFS" => Errno::EROFS,
            _ => return None,
        })
    }

    #[allow(clippy::print_stderr, reason = "reports an error in a test")]
    fn abort(why: &str) -> ! {
        eprintln!("{why}");
        std::process::abort()
    }
}

//! Resource limits that are too low for any command.
//!
//! The kernel ends a process whose stack cannot grow, and a failed allocation aborts it; neither prints which limit was
//! reached. The limits are therefore compared with the need before the command line is read.

use std::fs;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

const KIB: u64 = 1024;
/// Smallest stack, in bytes. Commands use up to 420 KiB in a build without optimization.
const MIN_STACK: u64 = 1024 * KIB;
/// Smallest amount of memory, in bytes, that must be left at the start. Commands use up to 6 MiB, and the allocator reserves
/// more than it uses.
const MIN_FREE: u64 = 16 * 1024 * KIB;

/// Returns which limit is too low, and what to do.
pub(super) fn too_low() -> Option<String> {
    let limit = |resource| {
        let (soft, _) = getrlimit(resource).ok()?;
        (soft != RLIM_INFINITY).then_some(soft)
    };
    if let Some(stack) = limit(Resource::RLIMIT_STACK).filter(|stack| *stack < MIN_STACK) {
        return Some(message("stack", stack, MIN_STACK, "-s", "LimitSTACK="));
    }
    let memory = [
        (
            Resource::RLIMIT_AS,
            "address space",
            "VmSize:",
            "-v",
            "LimitAS=",
        ),
        (
            Resource::RLIMIT_DATA,
            "data segment",
            "VmData:",
            "-d",
            "LimitDATA=",
        ),
    ];
    memory
        .into_iter()
        .find_map(|(resource, name, field, option, setting)| {
            let limit = limit(resource)?;
            let need = used(field)? + MIN_FREE;
            (limit < need).then(|| message(name, limit, need, option, setting))
        })
}

fn message(name: &str, limit: u64, need: u64, option: &str, setting: &str) -> String {
    let (limit, need) = (limit / KIB, need.div_ceil(KIB));
    format!(
        "the {name} of this process is limited to {limit} KiB, and {need} KiB are needed; raise the limit (ulimit {option}, or {setting} of the systemd unit) and run again"
    )
}

/// Returns the size in bytes in a field of `/proc/self/status`; `None` if it cannot be read.
fn used(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let size = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * KIB)
}

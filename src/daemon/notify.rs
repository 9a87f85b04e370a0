//! sd_notify(3): what the service manager is told, over the socket that it names. Nothing where it names none.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::Tell;

/// Tells it; a service manager that does not listen is no reason to stop.
pub(super) fn tell(what: &Tell<'_>) {
    let words = match what {
        Tell::Ready => "READY=1".to_owned(),
        // A line break would end the field.
        Tell::Status(text) => format!("STATUS={}", text.replace(char::is_control, " ")),
        Tell::Reloading => {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
            let now = now.unwrap_or_default().as_micros();
            format!("RELOADING=1\nMONOTONIC_USEC={now}")
        }
        Tell::Stopping => "STOPPING=1".to_owned(),
        Tell::Alive => "WATCHDOG=1".to_owned(),
    };
    if let Err(error) = send(&words) {
        tracing::debug!("the service manager cannot be told: {error}");
    }
}

fn send(words: &str) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(format!("{words}\n").as_bytes(), &address)?;
    Ok(())
}

/// Within what time it wants a sign of life from this process, if it does.
pub(super) fn watchdog() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let limit = number("WATCHDOG_USEC").filter(|limit| *limit > 0)?;
    let ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    ours.then(|| Duration::from_micros(limit))
}

//! Notifications to the service manager: sd_notify(3) over the socket in `NOTIFY_SOCKET`; none without that variable.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::Notification;

/// Sends a notification. A failure is logged and otherwise ignored.
pub(super) fn notify(what: &Notification<'_>) {
    let message = match what {
        Notification::Ready => "READY=1".to_owned(),
        // A line break would end the field.
        Notification::Status(text) => format!("STATUS={}", text.replace(char::is_control, " ")),
        Notification::Reloading => {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
            let now = now.unwrap_or_default().as_micros();
            format!("RELOADING=1\nMONOTONIC_USEC={now}")
        }
        Notification::Stopping => "STOPPING=1".to_owned(),
        Notification::Watchdog => "WATCHDOG=1".to_owned(),
    };
    if let Err(error) = send(&message) {
        tracing::debug!("cannot notify the service manager: {error}");
    }
}

fn send(message: &str) -> io::Result<()> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.send_to_addr(format!("{message}\n").as_bytes(), &address)?;
    Ok(())
}

/// Returns the watchdog timeout of the service manager for this process, if there is one.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let limit = number("WATCHDOG_USEC").filter(|limit| *limit > 0)?;
    let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    is_for_us.then(|| Duration::from_micros(limit))
}

//! Captures the events that the library logs during a test.
//!
//! One subscriber serves the whole process and writes to a buffer of the logging thread. With one subscriber per test,
//! `tracing` would sometimes cache the absence of a subscriber for another test's thread.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;

thread_local! {
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

struct ThreadBuffer;

impl Write for ThreadBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `act` and returns the events that this thread logged, one a line.
pub(crate) fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
    static SUBSCRIBER: Once = Once::new();
    SUBSCRIBER.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(|| ThreadBuffer)
            .init();
    });
    LOG.set(Some(Vec::new()));
    let result = act();
    let log = LOG.take().unwrap_or_default();
    (result, String::from_utf8(log).unwrap())
}

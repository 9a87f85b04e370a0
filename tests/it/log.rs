//! What the library logs while a test acts.
//!
//! One subscriber for the whole process, writing to the thread that logs: with a subscriber a test, `tracing` would
//! now and then remember of another test's thread that nobody listens.

use std::cell::RefCell;
use std::io::{self, Write};
use std::sync::Once;

thread_local! {
    static LOG: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

struct Here;

impl Write for Here {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.iter_mut().for_each(|log| log.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Acts, and gives the events of this thread meanwhile, one a line.
pub(crate) fn logged<T>(act: impl FnOnce() -> T) -> (T, String) {
    static LISTENER: Once = Once::new();
    LISTENER.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(|| Here)
            .init();
    });
    LOG.set(Some(Vec::new()));
    let result = act();
    let log = LOG.take().unwrap_or_default();
    (result, String::from_utf8(log).unwrap())
}

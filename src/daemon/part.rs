//! A part of the daemon that runs beside the rotation loop, with the configuration in force.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use tokio::sync::Notify;

/// The part of the configuration in force; off until the first one.
pub(super) struct DaemonPart<T> {
    current: RefCell<Option<Rc<T>>>,
    replaced: Notify,
}

impl<T> Default for DaemonPart<T> {
    fn default() -> Self {
        DaemonPart {
            current: RefCell::new(None),
            replaced: Notify::new(),
        }
    }
}

impl<T> DaemonPart<T> {
    /// Returns the part, unless it is off.
    pub(super) fn current(&self) -> Option<Rc<T>> {
        self.current.borrow().clone()
    }

    /// Replaces the part; `None` switches it off.
    pub(super) fn replace(&self, part: Option<T>) {
        let former = self.current.replace(part.map(Rc::new));
        if former.is_some() || self.current.borrow().is_some() {
            self.replaced.notify_one();
        }
    }

    /// Does the work of each part until it is replaced, and then what `ended` does.
    pub(super) async fn run(
        &self,
        work: impl AsyncFn(&T) -> Infallible,
        ended: impl AsyncFn(&T),
    ) -> Infallible {
        loop {
            let Some(part) = self.current() else {
                self.replaced.notified().await;
                continue;
            };
            tokio::select! {
                () = self.replaced.notified() => {}
                never = work(&part) => match never {},
            }
            ended(&part).await;
        }
    }
}

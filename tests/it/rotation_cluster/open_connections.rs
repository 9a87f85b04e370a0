//! How long an open connection keeps the old certificate of a pair that a kubeconfig names.

use std::time::{Duration, Instant};

use crate::named_pair::Plane;
use crate::time::{wait_until, within};

/// client-go looks for new files every five minutes.
const MAX_WAIT: Duration = Duration::from_secs(15 * 60);

#[test]
fn replaces_open_connections() {
    let components = ["controller-manager", "scheduler"];
    let plane = Plane::start(false);
    plane.mount();
    plane.configure("file");
    plane.renew(&[]).done();
    let restarts = plane.restarts();
    for component in components {
        let old = plane.fingerprint(component);
        wait_until("the first pair is in use", || {
            plane.used(component).contains(&old)
        });
    }
    plane
        .renew(&["--name", "controller-manager.conf,scheduler.conf"])
        .done();
    let begin = Instant::now();
    let mut waiting = components
        .map(|component| (component, plane.fingerprint(component)))
        .to_vec();
    let replaced = within(MAX_WAIT, || {
        waiting.retain(|(component, new)| {
            let is_used = plane.used(component).contains(new);
            if is_used {
                println!("{component}: {:.0?}", begin.elapsed());
            }
            !is_used
        });
        waiting.is_empty().then_some(()).ok_or(())
    });
    assert!(replaced.is_ok(), "{waiting:?}");
    assert_eq!(plane.restarts(), restarts);
}

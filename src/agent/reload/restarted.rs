//! The proof that a component was restarted and works: its state before the restart, compared with that afterwards.

use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::pod::{Pod, ServedAt};
use super::probe::{ProbeError, generates_certificate};
use super::restart::DueRestart;
use super::sockets::Sockets;
use super::{POLL_INTERVAL, Run, poll};
use crate::cluster::api::ApiError;
use crate::kube::components::Component;

/// State of a component before its restart.
#[derive(Default)]
pub(super) struct StateBefore {
    /// Fingerprint of the served certificate.
    served: Option<[u8; 32]>,
    /// The sockets at which it is served.
    listeners: Sockets,
    /// Whether the kubelet was not healthy, as far as is known.
    is_unhealthy: bool,
    /// For etcd, whether the API server of this node served. One that has stopped is examined after its own restart.
    has_client: bool,
    /// Identity of the leader, if it is a process of this host.
    leader: Option<String>,
    /// Time at which the kubelet renewed its Lease.
    lease: Option<OffsetDateTime>,
}

impl StateBefore {
    /// Returns whether no process served. One that listens and did not answer in time is still one.
    fn is_stopped(&self) -> bool {
        self.served.is_none() && self.listeners.is_empty()
    }
}

impl Run<'_> {
    /// Checks that kube-apiserver and etcd of this node are healthy. A late answer is asked for again.
    pub(super) async fn await_health(&self, all_members: bool) -> Result<(), String> {
        let limit = self.max_wait();
        self.await_until("kube-apiserver and etcd", "they are healthy", limit);
        let healthy = while_late(limit, async || self.is_healthy(all_members).await);
        Ok(healthy.await?)
    }

    async fn is_healthy(&self, all_members: bool) -> Result<(), ProbeError> {
        self.probe.livez().await?;
        self.probe.etcd(all_members).await
    }

    /// Returns the state of a component before a restart. Until `limit` is over, a late answer is asked for again.
    pub(super) async fn observe(&self, due: &DueRestart, limit: Duration) -> StateBefore {
        let (component, pod) = (due.component(), due.pod.as_ref());
        let mut before = StateBefore::default();
        if component == Component::Etcd {
            let serves = while_late(limit, async || self.probe.livez().await);
            before.has_client = serves.await.is_ok();
        }
        if component == Component::Kubelet {
            before.is_unhealthy = self.probe.kubelet().await.is_err();
            let previous = &due.restart.previous;
            let lease = while_late(limit, async || {
                Ok(self.probe.node_lease_before(previous).await?)
            });
            before.lease = lease.await.ok().flatten();
        } else if let Some(served_at) = pod.and_then(|pod| pod.served_at(component)) {
            let served = self.probe.served(component, served_at.address).await;
            before.served = served.ok().map(|shown| shown.fingerprint());
            before.listeners = Sockets::listening_at(served_at.bound);
        }
        if let Some(pod) = pod {
            let host = nix::unistd::gethostname().unwrap_or_default();
            let ours = format!("{}_", host.to_string_lossy());
            let leader = while_late(limit, async || self.probe.leader(component, pod).await);
            let leader = leader.await.ok().flatten();
            before.leader = leader.filter(|leader| leader.starts_with(&ours));
        }
        before
    }

    /// Waits until a component was restarted, is healthy and works, and returns the proof.
    pub(super) async fn proof(
        &self,
        component: Component,
        pod: Option<&Pod>,
        before: &StateBefore,
    ) -> Result<String, String> {
        let timeout = self.probe.setup.reload.timeout;
        self.await_until(component, "it works after its restart", timeout);
        let mut has_stopped = before.is_stopped();
        let verify = async || {
            self.verify_restarted(component, pod, before, &mut has_stopped)
                .await
        };
        let proven = poll(Instant::now() + timeout, verify).await;
        proven.map_err(|why| format!("{} s after its restart {why}", timeout.as_secs_f32()))
    }

    /// Waits until the process that served before has closed its port and every connection, and so has answered every
    /// request.
    pub(super) async fn stopped(
        &self,
        due: &DueRestart,
        before: &StateBefore,
    ) -> Result<(), String> {
        let component = due.component();
        let served_at = due.pod.as_ref().and_then(|pod| pod.served_at(component));
        let Some(ServedAt { address, bound }) = served_at.filter(|_| !before.is_stopped()) else {
            return Ok(());
        };
        let timeout = self.probe.setup.reload.timeout;
        self.await_until(component, "it has stopped", timeout);
        let give_up = Instant::now() + timeout;
        let mut former = before.listeners.clone();
        loop {
            let is_accepting = Sockets::listening_at(bound).include(&before.listeners);
            let open = Sockets::open_at(bound);
            if is_accepting {
                former.add(open);
            } else if !open.include(&former) {
                return Ok(());
            }
            if Instant::now() >= give_up {
                let seconds = timeout.as_secs_f32();
                return Err(format!(
                    "its process still serves at {address} after {seconds} s"
                ));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Verifies that the kubelet is healthy and has used its new credential: it has renewed its Lease. Its `/healthz`
    /// needs no access to the API server.
    async fn verify_kubelet(&self, before: &StateBefore) -> Result<String, String> {
        match self.probe.kubelet().await {
            Ok(()) => {}
            // The health endpoint may be disabled.
            Err(_) if before.is_unhealthy => {
                return Ok("its health is unknown, as before".to_owned());
            }
            Err(why) => return Err(format!("it is not healthy: {why}")),
        }
        verify_node_lease(before.lease, self.probe.node_lease().await)
    }

    async fn verify_restarted(
        &self,
        component: Component,
        pod: Option<&Pod>,
        before: &StateBefore,
        has_stopped: &mut bool,
    ) -> Result<String, String> {
        if component == Component::Kubelet {
            return self.verify_kubelet(before).await;
        }
        let Some(pod) = pod else {
            self.is_healthy(false).await?;
            return Ok("its programs succeeded".to_owned());
        };
        let Some(ServedAt { address, bound }) = pod.served_at(component) else {
            self.is_healthy(false).await?;
            return Ok("it serves no port, so that its process was not examined".to_owned());
        };
        let shown = match self.probe.served(component, address).await {
            Ok(shown) => shown,
            Err(why) => {
                *has_stopped = true;
                return Err(why);
            }
        };
        let renewed =
            generates_certificate(component, pod) && before.served != Some(shown.fingerprint());
        // A restart may be shorter than the time between two looks on a busy node.
        *has_stopped |= renewed || Sockets::listening_at(bound).have_replaced(&before.listeners);
        if !*has_stopped {
            return Err(format!("{address} is still served by the old process"));
        }
        if component == Component::Etcd && !before.has_client {
            self.probe.etcd(true).await?;
        } else if matches!(component, Component::KubeApiserver | Component::Etcd) {
            self.is_healthy(component == Component::Etcd).await?;
        } else {
            self.probe.healthz(address).await?;
            let leader = self.probe.leader(component, pod).await;
            verify_leader(before.leader.as_deref(), leader)?;
            self.is_healthy(false).await?;
        }
        Ok(format!("a new process serves at {address} and is healthy"))
    }
}

/// Verifies that a healthy kubelet has renewed its Lease since it was read before the restart.
fn verify_node_lease(
    before: Option<OffsetDateTime>,
    lease: Result<Option<OffsetDateTime>, ApiError>,
) -> Result<String, String> {
    match lease {
        Ok(Some(renewed)) if before != Some(renewed) => {
            Ok("it is healthy and has renewed its Lease".to_owned())
        }
        Ok(Some(_)) => Err("it has not renewed its Lease in kube-node-lease".to_owned()),
        Ok(None) if before.is_some() => {
            Err("its Lease in kube-node-lease does not exist any more".to_owned())
        }
        Ok(None) => Ok("it is healthy".to_owned()),
        // The former credential could read it.
        Err(error) if before.is_some() => Err(format!("its Lease is unknown: {error}")),
        Err(error) => Ok(format!(
            "it is healthy; whether it has renewed its Lease is unknown: {error}"
        )),
    }
}

/// Verifies that a process other than the one before the restart leads: the old one remains leader until its Lease
/// expires, and only a working process acquires it.
fn verify_leader(
    before: Option<&str>,
    leader: Result<Option<String>, ProbeError>,
) -> Result<(), String> {
    let none = || Err("no process has acquired the leadership of the old one".to_owned());
    match (leader, before) {
        (Ok(Some(leader)), _) if leader.is_empty() => none(),
        (Ok(Some(leader)), Some(before)) if leader == before => none(),
        (Ok(None), Some(_)) => none(),
        // The question had an answer before the restart.
        (Err(why), Some(_)) => Err(format!("its leader is unknown: {}", String::from(why))),
        _ => Ok(()),
    }
}

/// Asks again after a late answer, until `limit` is over.
async fn while_late<T>(
    limit: Duration,
    ask: impl AsyncFn() -> Result<T, ProbeError>,
) -> Result<T, ProbeError> {
    let give_up = Instant::now() + limit;
    loop {
        match ask().await {
            Err(unhealthy) if unhealthy.is_late && Instant::now() < give_up => {
                sleep(POLL_INTERVAL).await;
            }
            answered => return answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;

    use time::macros::datetime;

    use super::*;

    #[test]
    fn silent_process_is_still_running() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let before = |served, listeners| StateBefore {
            served,
            listeners,
            ..StateBefore::default()
        };
        assert!(before(None, Sockets::default()).is_stopped());
        assert!(!before(None, Sockets::listening_at(address)).is_stopped());
        assert!(!before(Some([0; 32]), Sockets::default()).is_stopped());
    }

    #[test]
    fn renewed_lease_proves_that_kubelet_works() {
        let [old, new] = [
            datetime!(2026-06-01 12:00 UTC),
            datetime!(2026-06-01 12:01 UTC),
        ];
        let unknown = || {
            Err(ApiError::Local {
                file: "kubelet.conf".to_owned(),
                why: "is empty".to_owned(),
                advice: "repair it",
            })
        };
        for (before, lease, proves) in [
            (Some(old), Ok(Some(new)), true),
            (Some(old), Ok(Some(old)), false),
            (Some(old), Ok(None), false),
            (Some(old), unknown(), false),
            (None, Ok(Some(new)), true),
            (None, Ok(None), true),
            (None, unknown(), true),
        ] {
            let verified = verify_node_lease(before, lease);
            assert_eq!(verified.is_ok(), proves, "{before:?}: {verified:?}");
        }
    }

    #[test]
    fn new_leader_proves_restart() {
        const OLD: &str = "cp1_1";
        let leader = |name: &str| Ok(Some(name.to_owned()));
        let unknown = || Err(ProbeError::late("no answer"));
        for (before, leader, proves) in [
            (Some(OLD), leader("cp1_2"), true),
            (Some(OLD), leader("cp2_1"), true),
            (Some(OLD), leader(OLD), false),
            (Some(OLD), leader(""), false),
            (Some(OLD), unknown(), false),
            (Some(OLD), Ok(None), false),
            (None, leader("cp2_1"), true),
            (None, leader(""), false),
            (None, Ok(None), true),
            (None, unknown(), true),
        ] {
            let verified = verify_leader(before, leader);
            assert_eq!(verified.is_ok(), proves, "{before:?}: {verified:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn asks_again_only_after_late_answer_and_until_limit() {
        const LIMIT: Duration = Duration::from_secs(45);
        // Late answers of 15 s each, the answer after them, the result, and how often it is asked.
        for (late, last, result, asked) in [
            (0, Ok(()), Ok(()), 1),
            (2, Ok(()), Ok(()), 3),
            (0, Err("HTTP 500"), Err("HTTP 500"), 1),
            (1, Err("HTTP 500"), Err("HTTP 500"), 2),
            (3, Ok(()), Err("no answer"), 3),
        ] {
            let count = Cell::new(0);
            let answered = while_late(LIMIT, async || {
                count.set(count.get() + 1);
                sleep(Duration::from_secs(15)).await;
                if count.get() <= late {
                    return Err(ProbeError::late("no answer"));
                }
                last.map_err(|why: &str| why.to_owned().into())
            });
            let answered = answered.await.map_err(String::from);
            assert_eq!(answered, result.map_err(str::to_owned), "{late} {last:?}");
            assert_eq!(count.get(), asked, "{late} {last:?}");
        }
    }
}

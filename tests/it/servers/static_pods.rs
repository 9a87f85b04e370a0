//! The kubelet's handling of static pods on a [`ClusterNode`]: it runs the manifests in `/etc/kubernetes/manifests`.
//!
//! Owns: when a component is started and terminated. [`ClusterNode::launch`] starts it by its manifest.
//!
//! Like a kubelet, it ignores files whose names begin with a dot. A change of any byte in a manifest terminates the
//! component, kills it after [`TERMINATION_GRACE_PERIOD`] and starts it again. Removing the manifest terminates the
//! component. A component that ends is started again, immediately the first time and later after a delay. Unlike a
//! kubelet, it detects changes within [`MANIFEST_CHECK_INTERVAL`] instead of twenty seconds, delays a restart by at most
//! [`MAX_RESTART_DELAY`] instead of five minutes, and restarts nothing for a failing probe.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::Server;
use super::cluster::{Authorities, Cluster, ClusterNode};
use crate::time::{let_pass, wait_until};

/// Default `terminationGracePeriodSeconds` of a static pod.
const TERMINATION_GRACE_PERIOD: Duration = Duration::from_secs(30);
/// Interval between two readings of the manifests.
const MANIFEST_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest time between two probes of a component that starts; each probe is a process.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Delay of the second restart after a component has ended.
const INITIAL_RESTART_DELAY: Duration = Duration::from_secs(1);
/// Upper bound of the delay, which doubles with each restart.
const MAX_RESTART_DELAY: Duration = Duration::from_secs(4);

/// Runs the static pods of a node until it is dropped.
pub(crate) struct StaticPods {
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<Vec<Start>>>,
    kubelet: Option<JoinHandle<()>>,
}

/// A start of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) component: String,
    /// Time of the start, or at which the previous process was asked to end.
    pub(crate) at: Instant,
    pub(crate) why: Why,
    /// Last time at which the component was found not to be ready.
    pub(crate) not_ready: Instant,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// The manifest is new.
    New,
    /// The manifest has changed.
    Changed,
    /// The component ended, with this status and this end of its output.
    Ended(String),
}

impl StaticPods {
    /// Takes over the components that already run on the node, as if started by the present manifests.
    pub(crate) fn of(node: &ClusterNode) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let history = Arc::new(Mutex::default());
        let mut kubelet = Kubelet {
            node: node.clone(),
            history: Arc::clone(&history),
            pods: BTreeMap::new(),
        };
        kubelet.take_over();
        let stopped = Arc::clone(&stop);
        let kubelet = thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                kubelet.look();
                thread::sleep(MANIFEST_CHECK_INTERVAL);
            }
        });
        StaticPods {
            stop,
            history,
            kubelet: Some(kubelet),
        }
    }

    /// Returns every start so far in order, without those of components that were taken over.
    pub(crate) fn starts(&self) -> Vec<Start> {
        self.history.lock().unwrap().clone()
    }

    /// Returns how often a component was restarted because its manifest changed.
    pub(crate) fn restarts(&self, component: &str) -> usize {
        let starts = self.starts();
        let of = |start: &&Start| start.component == component && start.why == Why::Changed;
        starts.iter().filter(of).count()
    }

    /// Returns the components that ended and were started again, without those that could not renew their Lease in time: on a
    /// busy machine kube-apiserver may answer too late. It refuses credentials at once.
    pub(crate) fn crashes(&self) -> Vec<Start> {
        let is_late = |words: &str| {
            let refused = ["Unauthorized", "x509", "tls: "];
            words.contains("lection lost") && !refused.iter().any(|word| words.contains(word))
        };
        let mut starts = self.starts();
        starts.retain(|start| matches!(&start.why, Why::Ended(words) if !is_late(words)));
        starts
    }
}

impl Drop for StaticPods {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let kubelet = self.kubelet.take().unwrap();
        if kubelet.join().is_err() && !thread::panicking() {
            panic!("the static pods' keeper has panicked");
        }
    }
}

struct Kubelet {
    node: ClusterNode,
    history: Arc<Mutex<Vec<Start>>>,
    pods: BTreeMap<String, Pod>,
}

struct Pod {
    /// The manifest that it was started by.
    manifest: String,
    state: State,
    /// Delay of the next restart.
    pause: Duration,
    /// Index of its start in the history, until it is ready.
    starts: Option<usize>,
}

enum State {
    Runs(Server),
    /// Terminating, and killed at this time.
    Ends(Server, Instant),
    /// Ended, and restarted at this time.
    Waits(Instant, Why),
}

impl Kubelet {
    fn take_over(&mut self) {
        let mut manifests = self.manifests().expect("the manifests are complete");
        for (component, process) in self.node.hand_over() {
            let manifest = manifests
                .remove(&component)
                .unwrap_or_else(|| panic!("{component} runs without a manifest"));
            let pod = Pod {
                manifest,
                state: State::Runs(process),
                pause: Duration::ZERO,
                starts: None,
            };
            self.pods.insert(component, pod);
        }
    }

    /// By the name of the pod, as in a kubelet. `None` while one of them is being written: kubeadm does so in place, and a
    /// kubelet reads it again later.
    fn manifests(&self) -> Option<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(self.node.path("/etc/kubernetes/manifests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with('.') || !path.is_file() {
                continue;
            }
            // The file may be removed between listing and reading.
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let component = name_of(&text)?;
            let other = found.insert(component.clone(), text);
            assert!(
                other.is_none(),
                "two manifests are of {component}, one of them {name}"
            );
        }
        Some(found)
    }

    fn look(&mut self) {
        let now = Instant::now();
        let Some(mut manifests) = self.manifests() else {
            return;
        };
        for (component, pod) in std::mem::take(&mut self.pods) {
            let wanted = manifests.remove(&component);
            if let Some(pod) = self.next(&component, pod, wanted, now) {
                self.pods.insert(component, pod);
            }
        }
        for (component, manifest) in manifests {
            let pod = self.start(&component, manifest, Duration::ZERO, Why::New, now);
            self.pods.insert(component, pod);
        }
    }

    /// Updates a pod whose present manifest is `wanted`.
    fn next(
        &self,
        component: &str,
        mut pod: Pod,
        wanted: Option<String>,
        now: Instant,
    ) -> Option<Pod> {
        let changed = wanted.as_ref() != Some(&pod.manifest);
        match pod.state {
            State::Runs(mut process) if changed => {
                let asked = Instant::now();
                process.signal(Signal::SIGTERM);
                pod.state = State::Ends(process, asked + TERMINATION_GRACE_PERIOD);
            }
            State::Runs(mut process) => {
                pod.state = match process.ended() {
                    None => {
                        self.probe(component, &mut pod.starts);
                        State::Runs(process)
                    }
                    Some(status) => {
                        let words = format!("{status}: {}", process.said());
                        State::Waits(now + pod.pause, Why::Ended(words))
                    }
                };
            }
            State::Ends(mut process, kill_at) => {
                if process.ended().is_some() || kill_at <= now {
                    drop(process);
                    let asked = kill_at - TERMINATION_GRACE_PERIOD;
                    let pause = Duration::ZERO;
                    return Some(self.start(component, wanted?, pause, Why::Changed, asked));
                }
                pod.state = State::Ends(process, kill_at);
            }
            State::Waits(..) if changed => {
                return Some(self.start(component, wanted?, Duration::ZERO, Why::Changed, now));
            }
            State::Waits(until, why) if until <= now => {
                let longer = (pod.pause * 2).clamp(INITIAL_RESTART_DELAY, MAX_RESTART_DELAY);
                return Some(self.start(component, wanted?, longer, why, now));
            }
            waits @ State::Waits(..) => pod.state = waits,
        }
        Some(pod)
    }

    fn start(
        &self,
        component: &str,
        manifest: String,
        pause: Duration,
        why: Why,
        at: Instant,
    ) -> Pod {
        let launched = Instant::now();
        let process = self.node.launch(component, &manifest, &[]);
        let mut history = self.history.lock().unwrap();
        history.push(Start {
            component: component.to_owned(),
            at,
            why,
            not_ready: launched,
        });
        Pod {
            manifest,
            state: State::Runs(process),
            pause,
            starts: Some(history.len() - 1),
        }
    }

    fn probe(&self, component: &str, starts: &mut Option<usize>) {
        let Some(start) = *starts else { return };
        let asked = Instant::now();
        if asked - self.history.lock().unwrap()[start].not_ready < PROBE_INTERVAL {
            return;
        }
        if self.node.is_ready(component) {
            *starts = None;
        } else {
            self.history.lock().unwrap()[start].not_ready = asked;
        }
    }
}

/// Returns the name in the metadata of a manifest in kubeadm's format.
fn name_of(manifest: &str) -> Option<String> {
    let mut lines = manifest.lines().skip_while(|line| *line != "metadata:");
    lines.next()?;
    let mut metadata = lines.take_while(|line| line.starts_with(' '));
    let name = metadata.find_map(|line| line.strip_prefix("  name: "))?;
    Some(name.to_owned())
}

#[test]
fn restarts_only_component_of_changed_manifest() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let pods = StaticPods::of(node);
    let scheduler = node.path("/etc/kubernetes/manifests/kube-scheduler.yaml");
    let before = fs::read_to_string(&scheduler).unwrap();
    let annotated = before.replace("metadata:\n", "metadata:\n  annotations: {a: b}\n");
    assert_ne!(annotated, before);

    // A temporary file of an atomic write.
    let hidden = scheduler.with_file_name(".kube-scheduler.yaml.new");
    fs::write(&hidden, &annotated).unwrap();
    let_pass(5 * MANIFEST_CHECK_INTERVAL);
    assert_eq!(pods.starts(), []);
    fs::rename(&hidden, &scheduler).unwrap();
    wait_until("the scheduler is back", || {
        pods.restarts("kube-scheduler") == 1 && node.is_ready("kube-scheduler")
    });
    assert_eq!(pods.starts().len(), 1);

    fs::remove_file(&scheduler).unwrap();
    wait_until("the scheduler is gone", || !node.is_ready("kube-scheduler"));
    let lame = before.replace("--leader-elect=true", "--no-such-flag");
    fs::write(&scheduler, lame).unwrap();
    wait_until("the scheduler is tried again and again", || {
        pods.crashes().len() == 2
    });
    fs::write(&scheduler, before).unwrap();
    wait_until("the scheduler is back", || node.is_ready("kube-scheduler"));
    let starts = pods.starts();
    assert!(
        starts
            .iter()
            .all(|start| start.component == "kube-scheduler")
    );
    let Why::Ended(words) = &pods.crashes()[0].why else {
        unreachable!()
    };
    assert!(words.contains("no-such-flag"), "{words}");
}

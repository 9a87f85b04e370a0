//! The kubelet's part for the static pods of a [`ClusterNode`]: it runs what lies in `/etc/kubernetes/manifests`.
//!
//! Owns: when a component is started and ended. What it is started with is the manifest's, by [`ClusterNode::launch`].
//!
//! As a kubelet does it: files whose names begin with a dot are not looked at; a manifest that changes in any byte has
//! its component asked to end, then killed after [`GRACE`], and started anew; a manifest that goes ends it; a component
//! that ends by itself is started again, at once the first time and later with a pause. Not as a kubelet does it:
//! changes are seen within [`LOOK`] and not after up to twenty seconds, the longest pause is [`LONGEST_PAUSE`] and not
//! five minutes, and nothing is restarted for failing a probe.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::Server;
use super::cluster::{Authorities, Cluster, ClusterNode, wait_until};

/// `terminationGracePeriodSeconds` of a static pod that says nothing.
const GRACE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Runs the static pods of a node until it is dropped, which ends them.
pub(crate) struct StaticPods {
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<Vec<Start>>>,
    kubelet: Option<JoinHandle<()>>,
}

/// A component was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) component: String,
    /// When it was started, or the one before it was asked to end.
    pub(crate) at: Instant,
    pub(crate) why: Why,
    /// Since when it says that it is ready.
    pub(crate) ready: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    /// There was no such manifest before.
    New,
    /// The manifest says something else than before.
    Changed,
    /// It ended by itself, with this status and these last words.
    Ended(String),
}

impl StaticPods {
    /// Takes over what already runs on the node; its manifests are taken for those it was started with.
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
                thread::sleep(LOOK);
            }
        });
        StaticPods {
            stop,
            history,
            kubelet: Some(kubelet),
        }
    }

    /// Every start so far, in order; not those of what was taken over.
    pub(crate) fn starts(&self) -> Vec<Start> {
        self.history.lock().unwrap().clone()
    }

    /// How often a component was started anew because its manifest changed.
    pub(crate) fn restarts(&self, component: &str) -> usize {
        let starts = self.starts();
        let of = |start: &&Start| start.component == component && start.why == Why::Changed;
        starts.iter().filter(of).count()
    }

    /// What ended by itself and was started again.
    pub(crate) fn crashes(&self) -> Vec<Start> {
        let mut starts = self.starts();
        starts.retain(|start| matches!(start.why, Why::Ended(_)));
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
    /// What it was started with.
    manifest: String,
    state: State,
    /// Before the next start after it ends by itself.
    pause: Duration,
    /// Where in the history its start stands, until it is ready.
    starts: Option<usize>,
}

enum State {
    Runs(Server),
    /// It was asked to end, and is killed at this moment.
    Ends(Server, Instant),
    /// It ended by itself, and is started at this moment.
    Waits(Instant, Why),
}

impl Kubelet {
    fn take_over(&mut self) {
        let mut manifests = self.manifests();
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

    /// By the name of the pod, as a kubelet keeps them apart.
    fn manifests(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(self.node.path("/etc/kubernetes/manifests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if name.starts_with('.') || !path.is_file() {
                continue;
            }
            // It may go between the two looks.
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let component = name_of(&text).unwrap_or_else(|| panic!("{name} is no pod:\n{text}"));
            let other = found.insert(component.clone(), text);
            assert!(
                other.is_none(),
                "two manifests are of {component}, one of them {name}"
            );
        }
        found
    }

    fn look(&mut self) {
        let now = Instant::now();
        let mut manifests = self.manifests();
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

    /// What becomes of a pod, of which `wanted` is the manifest now.
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
                process.signal(Signal::SIGTERM);
                pod.state = State::Ends(process, now + GRACE);
            }
            State::Runs(mut process) => {
                pod.state = match process.ended() {
                    None => {
                        self.note_ready(component, &mut pod.starts);
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
                    let asked = kill_at - GRACE;
                    let pause = Duration::ZERO;
                    return Some(self.start(component, wanted?, pause, Why::Changed, asked));
                }
                pod.state = State::Ends(process, kill_at);
            }
            State::Waits(..) if changed => {
                return Some(self.start(component, wanted?, Duration::ZERO, Why::Changed, now));
            }
            State::Waits(until, why) if until <= now => {
                let longer = (pod.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
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
        let process = self.node.launch(component, &manifest, &[]);
        let mut history = self.history.lock().unwrap();
        history.push(Start {
            component: component.to_owned(),
            at,
            why,
            ready: None,
        });
        Pod {
            manifest,
            state: State::Runs(process),
            pause,
            starts: Some(history.len() - 1),
        }
    }

    fn note_ready(&self, component: &str, starts: &mut Option<usize>) {
        if let Some(start) = *starts
            && self.node.is_ready(component)
        {
            self.history.lock().unwrap()[start].ready = Some(Instant::now());
            *starts = None;
        }
    }
}

/// The name in the metadata of a manifest in kubeadm's form.
fn name_of(manifest: &str) -> Option<String> {
    let mut lines = manifest.lines().skip_while(|line| *line != "metadata:");
    lines.next()?;
    let mut metadata = lines.take_while(|line| line.starts_with(' '));
    let name = metadata.find_map(|line| line.strip_prefix("  name: "))?;
    Some(name.to_owned())
}

#[test]
fn a_manifest_that_changes_restarts_its_component_and_no_other() {
    let cluster = Cluster::start(Authorities::External);
    let node = cluster.first();
    let pods = StaticPods::of(node);
    let scheduler = node.path("/etc/kubernetes/manifests/kube-scheduler.yaml");
    let before = fs::read_to_string(&scheduler).unwrap();
    let annotated = before.replace("metadata:\n", "metadata:\n  annotations: {a: b}\n");
    assert_ne!(annotated, before);

    // A file in the making, as an atomic writer leaves it for a moment.
    let hidden = scheduler.with_file_name(".kube-scheduler.yaml.new");
    fs::write(&hidden, &annotated).unwrap();
    thread::sleep(5 * LOOK);
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

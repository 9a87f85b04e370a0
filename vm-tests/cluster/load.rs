//! Clients during an operation on the cluster: reads and writes on new and on kept connections, watches, requests with a
//! service account's token, reads of an aggregated API, `kubectl exec` and `kubectl logs` on every node. They use each API
//! server, or the load balancer if API servers restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use nodepki::kube::kubeconfig::Kubeconfig;
use reqwest::header::RETRY_AFTER;
use reqwest::{Certificate, Client, Identity, Method, StatusCode};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::network::{ENDPOINT, address, address_ipv6};
use super::node::Role;
use super::site::{EXTENSION_IMAGE, WORK_IMAGE};
use super::{Cluster, checks};
use crate::machine::MAX_WAIT;
use crate::time::{patience, within};

const REQUEST_INTERVAL: Duration = Duration::from_millis(200);
const KUBECTL_INTERVAL: Duration = Duration::from_secs(2);
/// Without it, a request to a machine that loses its power can wait forever.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The load balancer, in place of the name of an API server.
const BALANCER: &str = "balancer";
/// How long a client of the load balancer repeats a request.
const SERVER_RESTART: Duration = Duration::from_secs(5);
/// How long clients and pods repeat a request after machines were lost.
const MACHINE_LOST: Duration = Duration::from_secs(60);

const READ: &str = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
/// Served by an extension API server, which trusts the client certificates of the front proxy's CA.
const READ_AGGREGATED: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";

/// Counts of one kind of client.
#[derive(Default)]
struct Count {
    done: AtomicU64,
    failed: AtomicU64,
    repeated: AtomicU64,
}

type Counts = Arc<Mutex<BTreeMap<String, Arc<Count>>>>;

/// Clients that run until [`Load::finish`].
pub(crate) struct Load {
    /// Start time in RFC 3339: earlier lines in the logs of the workload's pods do not count.
    began: String,
    stop: Arc<AtomicBool>,
    counts: Counts,
    threads: Vec<JoinHandle<()>>,
}

/// The inputs of the clients of one API server, or of the load balancer.
#[derive(Clone)]
struct Target {
    server: &'static str,
    /// How long a request is repeated.
    patience: Duration,
    /// The host in the URL.
    host: String,
    /// The address of the host, if it is a name.
    address: Option<SocketAddr>,
    /// All CA certificates, including a future one.
    ca: Vec<Certificate>,
    identity: Identity,
    token: String,
    /// The IPv6 address in a dual-stack cluster.
    ipv6: Option<SocketAddr>,
}

impl Load {
    /// Starts the workload, unless it runs already, and clients of each API server.
    pub(crate) fn start(cluster: &mut Cluster) -> Self {
        let servers = cluster.names(Role::ControlPlane);
        let mut load = Load::start_at(cluster, &servers, [Duration::ZERO; 2]);
        for (index, node) in cluster.nodes.iter().enumerate() {
            load.kubectl_clients(cluster, servers[index % servers.len()], node.name);
        }
        load
    }

    /// As [`Load::start`], with clients of the load balancer. They repeat what ends with its connection, as client-go does.
    pub(crate) fn start_at_balancer(cluster: &mut Cluster) -> Self {
        Load::start_at(cluster, &[BALANCER], [SERVER_RESTART, Duration::ZERO])
    }

    /// As [`Load::start_at_balancer`], while machines lose their power or are replaced. The pods repeat requests too: for a
    /// while, their connections still lead to the API server of the lost machine.
    pub(crate) fn start_while_machines_are_lost(cluster: &mut Cluster) -> Self {
        Load::start_at(cluster, &[BALANCER], [MACHINE_LOST; 2])
    }

    /// The clients and the pods repeat a request for as long as given.
    fn start_at(
        cluster: &mut Cluster,
        servers: &[&'static str],
        [patience, patience_of_pods]: [Duration; 2],
    ) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        start_workload(cluster, patience_of_pods);
        let text = std::fs::read_to_string(cluster.admin_conf()).unwrap();
        let admin = Kubeconfig::parse(&text).unwrap().current().unwrap();
        let mut pem = admin.certificate.unwrap();
        pem.extend_from_slice(&admin.key.unwrap());
        let first = cluster.nodes[0].name;
        let token = cluster
            .kubectl(first, "create token work --duration=1h")
            .unwrap();
        let trusted: Vec<_> = cluster
            .authorities
            .certificates("ca")
            .iter()
            .map(|pem| Certificate::from_pem(pem.as_bytes()).unwrap())
            .collect();
        let mut load = Load {
            began: OffsetDateTime::now_utc().format(&Rfc3339).unwrap(),
            stop: Arc::default(),
            counts: Arc::default(),
            threads: Vec::new(),
        };
        for server in servers.iter().copied() {
            let (host, address) = match server == BALANCER {
                true => (ENDPOINT.1.to_owned(), Some((ENDPOINT.0, 6443))),
                false => (address(server), None),
            };
            let target = Target {
                server,
                patience,
                host,
                address: address.map(|(ip, port)| SocketAddr::new(ip.parse().unwrap(), port)),
                ca: trusted.clone(),
                identity: Identity::from_pem(&pem).unwrap(),
                token: token.trim().to_owned(),
                ipv6: (cluster.is_dual_stack() && server != BALANCER)
                    .then(|| format!("[{}]:6443", address_ipv6(server)).parse().unwrap()),
            };
            let (stop, counts) = (load.stop.clone(), load.counts.clone());
            load.threads.push(thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                runtime.block_on(target.clients(&stop, &counts));
            }));
        }
        load
    }

    /// Starts `kubectl exec` and `kubectl logs` clients for the workload's pod on a node.
    fn kubectl_clients(&mut self, cluster: &Cluster, at: &'static str, node: &'static str) {
        let pod = cluster.kubectl(at, &format!("get pods -l app=work --field-selector=spec.nodeName={node} -o jsonpath={{.items[0].metadata.name}}")).unwrap();
        for (kind, arguments) in [
            ("exec", format!("exec {pod} -- echo there")),
            ("logs", format!("logs {pod} --tail=1")),
        ] {
            let count = self.count(&format!("kubectl {kind}"));
            let stop = self.stop.clone();
            let mut command = cluster.kubectl_command(at);
            command.args(arguments.split_whitespace());
            self.threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    repeat_while_kubelet_restarts(&mut command, node, &count);
                    sleep(KUBECTL_INTERVAL);
                }
            }));
        }
    }

    fn count(&self, kind: &str) -> Arc<Count> {
        let mut counts = self.counts.lock().unwrap();
        counts.entry(kind.to_owned()).or_default().clone()
    }

    /// Ends the clients, prints their counts, and adds them to the scenario's sums.
    ///
    /// # Panics
    /// If a request failed, in a client or in the workload's pods.
    pub(crate) fn finish(mut self, cluster: &mut Cluster) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        for (kind, count) in self.counts.lock().unwrap().iter() {
            let number = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let (done, failed) = (number(&count.done), number(&count.failed));
            let repeated = match number(&count.repeated) {
                0 => String::new(),
                some => format!(", {some} repeated"),
            };
            cluster.say(&format!(
                "{kind}: {done} requests, {failed} failed{repeated}"
            ));
            cluster.requests += done + failed;
            cluster.failures += failed;
        }
        let first = cluster.nodes[0].name;
        let logs = cluster
            .kubectl(
                first,
                &format!(
                    "logs -l app=work --tail=-1 --max-log-requests=10 --since-time={}",
                    self.began
                ),
            )
            .unwrap();
        let (good, bad) = (logs.matches(" ok").count(), logs.matches("FAILED").count());
        cluster.say(&format!(
            "pods with their tokens: {good} requests, {bad} failed"
        ));
        cluster.requests += (good + bad) as u64;
        cluster.failures += bad as u64;
        assert_eq!(cluster.failures, 0, "requests failed: {}", {
            let failed = logs.lines().filter(|line| line.contains("FAILED"));
            failed.take(5).collect::<Vec<_>>().join("\n")
        });
    }
}

/// Ends the clients, also if the scenario fails.
impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs a command until it succeeds; an error with another cause than an absent kubelet fails immediately.
fn repeat_while_kubelet_restarts(command: &mut Command, node: &str, count: &Count) {
    let refused = within(MAX_WAIT, || {
        let output = command.output().unwrap();
        if output.status.success() {
            count.done.fetch_add(1, Ordering::Relaxed);
            return Ok(None);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // A kubelet that has just started does not know its pods yet and answers 404 for them.
        let is_away = [
            &format!("{}:10250", address(node)),
            "error dialing backend",
            "EOF",
            "Timeout occurred",
            "pod does not exist",
            "the server could not find the requested resource ( pods/log",
        ]
        .iter()
        .any(|sign| said.contains(*sign));
        if !is_away {
            return Ok(Some(said));
        }
        count.repeated.fetch_add(1, Ordering::Relaxed);
        Err(said)
    });
    if let Some(said) = refused.unwrap_or_else(Some) {
        println!("    failed: {command:?}: {said}");
        count.failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Target {
    async fn clients(&self, stop: &AtomicBool, counts: &Counts) {
        let count = |kind: &str| -> Arc<Count> {
            counts
                .lock()
                .unwrap()
                .entry(kind.to_owned())
                .or_default()
                .clone()
        };
        let (new, kept) = (
            count("reads, new connections"),
            count("reads, kept connection"),
        );
        let (writes, tokens) = (count("writes"), count("service account's token"));
        let (watches, aggregated) = (count("watch events"), count("aggregated API"));
        let ipv6 = self.ipv6.map(|to| (count("reads over IPv6"), to));
        let object = format!("/api/v1/namespaces/default/configmaps/load-{}", self.server);
        let (written, watching) = (AtomicU64::new(0), AtomicBool::new(false));
        tokio::join!(
            self.repeat(stop, &new, async |_| {
                self.send(&self.client(), Method::GET, READ, None).await
            }),
            async {
                let Some((count, to)) = &ipv6 else { return };
                self.repeat(stop, count, async |_| {
                    let client = self.anonymous().identity(self.identity.clone());
                    let client = client.timeout(REQUEST_TIMEOUT);
                    let client = client.resolve(ENDPOINT.1, *to).build().unwrap();
                    let url = format!("https://{}:6443{READ}", ENDPOINT.1);
                    judged(client.get(url).send().await).await
                })
                .await;
            },
            async {
                let client = self.client();
                self.repeat(stop, &kept, async |_| {
                    self.send(&client, Method::GET, READ, None).await
                })
                .await;
            },
            async {
                let client = self.client();
                self.repeat(stop, &aggregated, async |_| {
                    self.send(&client, Method::GET, READ_AGGREGATED, None).await
                })
                .await;
            },
            async {
                let client = self.client();
                while !watching.load(Ordering::Relaxed) && !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(REQUEST_INTERVAL).await;
                }
                self.repeat(stop, &writes, async |number| {
                    let body = format!("{{\"data\": {{\"number\": \"{number}\"}}}}");
                    let sent = self.send(&client, Method::PATCH, &object, Some(body)).await;
                    written.fetch_add(u64::from(sent.is_ok()), Ordering::Relaxed);
                    sent
                })
                .await;
            },
            self.repeat(stop, &tokens, async |_| {
                let client = self.anonymous().timeout(REQUEST_TIMEOUT);
                let client = client.build().unwrap();
                let url = self.url("/api/v1/namespaces/default/pods?limit=1");
                let request = client.get(url).bearer_auth(&self.token);
                judged(request.send().await).await
            }),
            self.watch(stop, &watches, &written, &watching),
        );
    }

    async fn repeat(
        &self,
        stop: &AtomicBool,
        count: &Count,
        mut request: impl AsyncFnMut(u64) -> Result<(), Fault>,
    ) {
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let began = Instant::now();
            loop {
                match request(number).await {
                    Ok(()) => count.done.fetch_add(1, Ordering::Relaxed),
                    Err(Fault::Temporary(_)) if began.elapsed() < self.patience => {
                        count.repeated.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(REQUEST_INTERVAL).await;
                        continue;
                    }
                    Err(Fault::Temporary(error) | Fault::Permanent(error)) => {
                        println!("    failed at {}: {error}", self.server);
                        count.failed.fetch_add(1, Ordering::Relaxed)
                    }
                };
                break;
            }
            tokio::time::sleep(REQUEST_INTERVAL).await;
        }
    }

    /// One watch for the whole time, which must observe each write. At the load balancer it is continued when its connection
    /// ends, from the last event.
    async fn watch(
        &self,
        stop: &AtomicBool,
        count: &Count,
        written: &AtomicU64,
        watching: &AtomicBool,
    ) {
        let path = format!(
            "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=3600&fieldSelector=metadata.name%3Dload-{}",
            self.server
        );
        let fail = |error: String| {
            println!("    failed: watch at {}: {error}", self.server);
            count.failed.fetch_add(1, Ordering::Relaxed);
        };
        let client = self.anonymous().identity(self.identity.clone());
        let client = client.build().unwrap();
        let began = Instant::now();
        let mut response = loop {
            match client.get(self.url(&path)).send().await {
                Ok(response) => break response,
                Err(_) if began.elapsed() < self.patience => {
                    count.repeated.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(REQUEST_INTERVAL).await;
                }
                Err(error) => return fail(format!("{error:?}")),
            }
        };
        let (mut seen, mut end) = (0, None);
        let mut lines = Vec::new();
        let mut version = String::new();
        let mut continued: Option<Instant> = None;
        loop {
            let chunk = tokio::time::timeout(REQUEST_INTERVAL, response.chunk()).await;
            match chunk {
                Ok(Ok(Some(chunk))) => {
                    lines.extend_from_slice(&chunk);
                    while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                        let line: Vec<u8> = lines.drain(..=end).collect();
                        let event = String::from_utf8_lossy(&line).into_owned();
                        let object: Value = serde_json::from_str(&event).unwrap();
                        let found = &object["object"]["metadata"]["resourceVersion"];
                        version = found.as_str().unwrap_or_default().to_owned();
                        continued = None;
                        // The first event is the present object; writes begin after it.
                        watching.fetch_or(event.contains("\"type\":\"ADDED\""), Ordering::Relaxed);
                        if event.contains("\"type\":\"MODIFIED\"") {
                            seen += 1;
                            count.done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                Ok(_)
                    if !self.patience.is_zero()
                        && continued.is_none_or(|since| since.elapsed() < self.patience) =>
                {
                    continued.get_or_insert_with(Instant::now);
                    count.repeated.fetch_add(1, Ordering::Relaxed);
                    lines.clear();
                    let url = self.url(&format!("{path}&resourceVersion={version}"));
                    let sent = tokio::time::timeout(REQUEST_TIMEOUT, client.get(url).send());
                    match sent.await {
                        Ok(Ok(answer)) if answer.status().is_success() => response = answer,
                        _ => tokio::time::sleep(REQUEST_INTERVAL).await,
                    }
                }
                Ok(other) => return fail(format!("ended: {other:?}")),
                Err(_) => {}
            }
            if stop.load(Ordering::Relaxed) {
                let end = *end.get_or_insert(Instant::now() + patience());
                let written = written.load(Ordering::Relaxed);
                if seen >= written {
                    return;
                }
                if Instant::now() > end {
                    return fail(format!("saw {seen} of {written} writes"));
                }
            }
        }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}:6443{path}", self.host)
    }

    fn anonymous(&self) -> reqwest::ClientBuilder {
        let client = Client::builder().tls_certs_only(self.ca.clone()).no_proxy();
        match self.address {
            Some(address) => client.resolve(&self.host, address),
            None => client,
        }
    }

    fn client(&self) -> Client {
        let client = self.anonymous().identity(self.identity.clone());
        client.timeout(REQUEST_TIMEOUT).build().unwrap()
    }

    async fn send(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        patch: Option<String>,
    ) -> Result<(), Fault> {
        let mut request = client.request(method, self.url(path));
        if let Some(patch) = patch {
            request = request
                .header("content-type", "application/merge-patch+json")
                .body(patch);
        }
        judged(request.send().await).await
    }
}

/// Why a request failed.
enum Fault {
    /// The connection was refused or ended before the answer, or the server asks the client to repeat the request.
    Temporary(String),
    Permanent(String),
}

impl From<reqwest::Error> for Fault {
    fn from(error: reqwest::Error) -> Self {
        let text = format!("{error:?}");
        match text.contains("ertificate") {
            true => Fault::Permanent(text),
            false => Fault::Temporary(text),
        }
    }
}

async fn judged(sent: reqwest::Result<reqwest::Response>) -> Result<(), Fault> {
    let response = sent?;
    let status = response.status();
    let asks_to_repeat =
        status == StatusCode::SERVICE_UNAVAILABLE || response.headers().contains_key(RETRY_AFTER);
    let text = response.text().await?;
    if status.is_success() {
        return Ok(());
    }
    // A member whose leader has lost its power answers so until another one is elected.
    let is_temporary = asks_to_repeat || text.contains("etcdserver: request timed out");
    let answer = format!("{status}: {text}");
    Err(match is_temporary {
        true => Fault::Temporary(answer),
        false => Fault::Permanent(answer),
    })
}

/// A pod on each node that calls the API server with its service account's token, an extension API server on each, and an
/// object for each server's writes. The pods repeat a request for as long as given, unless certificates or tokens are refused.
/// Rights are refused temporarily: an API server that has just booted does not know all roles yet.
pub(crate) fn start_workload(cluster: &mut Cluster, patience: Duration) {
    let first = cluster.nodes[0].name;
    let manifest = cluster.site.path("work.yaml");
    let mut text = WORKLOAD
        .replace("IMAGE", WORK_IMAGE)
        .replace("PATIENCE", &patience.as_secs().to_string());
    text.push_str(&EXTENSION.replace("IMAGE", EXTENSION_IMAGE));
    let servers = cluster.names(Role::ControlPlane);
    for server in servers.iter().copied().chain([BALANCER]) {
        text.push_str(&format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: load-{server}, namespace: default}}\n"
        ));
    }
    std::fs::write(&manifest, text).unwrap();
    cluster
        .kubectl(first, &format!("apply -f {}", manifest.display()))
        .unwrap();
    cluster.until("the workload runs", |cluster| {
        for name in ["work", "extension"] {
            let status = format!("rollout status daemonset/{name} --timeout=5s");
            cluster.kubectl(first, &status)?;
        }
        for server in &servers {
            cluster.kubectl(server, &format!("get --raw {READ_AGGREGATED}"))?;
        }
        Ok(())
    });
}

/// Waits until the pods of all workloads have been replaced.
pub(crate) fn wait_until_restarted(cluster: &mut Cluster) {
    cluster.until("all workloads have restarted", |cluster| {
        for one in [
            "default daemonset/work",
            "default daemonset/extension",
            "kube-system daemonset/kube-proxy",
            "kube-system deployment/coredns",
        ] {
            let status = format!("rollout status --timeout=5s --namespace {one}");
            cluster.kubectl("cp1", &status)?;
        }
        Ok(())
    });
    checks::ready(cluster);
}

const WORKLOAD: &str = r#"apiVersion: v1
kind: ServiceAccount
metadata: {name: work, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: work}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: work, namespace: default}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: work, namespace: default}
spec:
  selector: {matchLabels: {app: work}}
  template:
    metadata: {labels: {app: work}}
    spec:
      serviceAccountName: work
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: work
        image: IMAGE
        imagePullPolicy: Never
        command: [/bin/sh, -c]
        args:
        - |
          while :; do
            end=$(($(date +%s) + PATIENCE))
            until said=$(kubectl get --raw '/api/v1/namespaces/default/pods?limit=1' 2>&1 >/dev/null); do
              case $said in *x509*|*nauthorized*) end=0 ;; esac
              [ "$(date +%s)" -lt "$end" ] || { echo "$(date) FAILED $said"; break; }
              sleep 1
            done
            [ -n "$said" ] || echo "$(date) ok"
            sleep 2
          done
"#;

/// Its storage is an etcd of its own in the same pod. kube-apiserver does not verify its serving certificate, which it makes
/// itself; it verifies kube-apiserver's client certificate.
const EXTENSION: &str = r#"---
apiVersion: v1
kind: ServiceAccount
metadata: {name: extension, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: extension}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: extension, namespace: default}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: extension, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: extension, namespace: default}]
---
apiVersion: v1
kind: Service
metadata: {name: extension, namespace: default}
spec:
  selector: {app: extension}
  ports: [{port: 443, targetPort: 8443}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.wardle.example.com}
spec:
  group: wardle.example.com
  version: v1alpha1
  groupPriorityMinimum: 1000
  versionPriority: 15
  insecureSkipTLSVerify: true
  service: {name: extension, namespace: default}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: extension, namespace: default}
spec:
  selector: {matchLabels: {app: extension}}
  template:
    metadata: {labels: {app: extension}}
    spec:
      serviceAccountName: extension
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: server
        image: IMAGE
        imagePullPolicy: Never
        command:
        - sample-apiserver
        - --secure-port=8443
        - --cert-dir=/tmp
        - --etcd-servers=http://127.0.0.1:2379
        - --enable-priority-and-fairness=false
        # kube-apiserver of an older release lacks what the plugins of this one watch.
        - --disable-admission-plugins=NamespaceLifecycle,MutatingAdmissionPolicy,MutatingAdmissionWebhook,ValidatingAdmissionPolicy,ValidatingAdmissionWebhook
        readinessProbe:
          httpGet: {path: /readyz, port: 8443, scheme: HTTPS}
          periodSeconds: 1
      - name: etcd
        image: IMAGE
        imagePullPolicy: Never
        command: [etcd, --data-dir=/tmp/etcd, --unsafe-no-fsync]
"#;

//! Metrics: the textfile and the output of the real binary, the answers of the daemon's listener, and the check of the
//! page, the alert rules and every dashboard query by Prometheus' own `promtool`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use nodepki::agent::load::{self, LoadInputs, Loaded};
use nodepki::agent::{ExitCode, Progress};
use nodepki::daemon::metrics::{self, Metrics};
use nodepki::store::NodeRoot;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::node::{Node, Ran};
use crate::servers::bin;

const DIRECTORY: &str = "/var/lib/node_exporter/textfile_collector";
const TEXTFILE: &str = "/var/lib/node_exporter/textfile_collector/nodepki.prom";
const COUNTER_FILE: &str = "/var/lib/nodepki/metrics.json";

/// Returns a node whose settings name a textfile, with the directory of node_exporter's package.
fn node() -> Node {
    let node = Node::new();
    fs::create_dir_all(node.path(DIRECTORY)).unwrap();
    node.settings(&format!(
        "metrics: {{textfile: {TEXTFILE}, listen: '127.0.0.1:0'}}\n"
    ));
    node
}

/// Asserts that promtool accepts a page, and returns its samples by name and labels.
#[track_caller]
fn samples(page: &str) -> BTreeMap<String, f64> {
    let mut promtool = Command::new(bin("promtool"))
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(page.as_bytes()).unwrap();
    drop(stdin);
    let checked = promtool.wait_with_output().unwrap();
    let messages = [checked.stdout, checked.stderr].concat();
    assert!(
        checked.status.success() && messages.is_empty(),
        "promtool: {}\n{page}",
        String::from_utf8_lossy(&messages)
    );
    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.rsplit_once(' ').unwrap();
        let twice = samples.insert(key.to_owned(), value.parse().unwrap());
        assert_eq!(twice, None, "{key} occurs twice");
    }
    samples
}

/// Returns the sum of all samples of a family that have these labels.
fn sum(samples: &BTreeMap<String, f64>, family: &str, labels: &[&str]) -> f64 {
    let fits = |key: &str| {
        key.strip_prefix(family)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
            && labels.iter().all(|label| key.contains(label))
    };
    let found: Vec<f64> = samples
        .iter()
        .filter(|(key, _)| fits(key))
        .map(|(_, value)| *value)
        .collect();
    assert!(
        !found.is_empty(),
        "no {family} with {labels:?} in {:#?}",
        samples.keys()
    );
    found.iter().sum()
}

#[test]
fn writes_textfile_and_keeps_counters_across_runs() {
    let node = node();
    node.ask().done();
    assert_eq!(node.mode(TEXTFILE), 0o644);
    assert_eq!(node.mode(COUNTER_FILE), 0o600);
    let first = samples(&node.read(TEXTFILE));
    let installed = |page: &BTreeMap<String, f64>, result| {
        let result = format!("result=\"{result}\"");
        sum(
            page,
            "nodepki_certificate_generated_total",
            &["certificate_name=\"apiserver\"", &result],
        )
    };
    assert_eq!(
        (installed(&first, "success"), installed(&first, "failure")),
        (1.0, 0.0)
    );
    assert_eq!(
        sum(
            &first,
            "nodepki_certificate_info",
            &[
                "certificate_name=\"apiserver\"",
                "category=\"ServingCertificate\"",
                "component=\"kube-apiserver\"",
                "algorithm=\"ECDSA\"",
                "curve=\"P256\"",
            ]
        ),
        1.0
    );
    let compliant = "nodepki_certificate_compliant";
    assert_eq!(
        sum(&first, compliant, &["certificate_name=\"apiserver\""]),
        1.0
    );
    let verdict = |page: &BTreeMap<String, f64>, name: &str, verdict: &str| {
        let name = format!("certificate_name=\"{name}\"");
        let verdict = format!("verdict=\"{verdict}\"");
        sum(
            page,
            "nodepki_certificate_policy_verdict",
            &[&name, &verdict],
        )
    };
    assert_eq!(verdict(&first, "sa", "no-policy"), 1.0);
    assert_eq!(verdict(&first, "apiserver", "compliant"), 1.0);
    assert_eq!(verdict(&first, "apiserver", "unknown"), 0.0);
    assert!(
        !first
            .keys()
            .any(|key| key.contains("ECDSA") && key.contains("key_size"))
    );
    let made = "nodepki_certificate_generation_duration_seconds_count";
    assert_eq!(sum(&first, made, &["certificate_name=\"sa\""]), 1.0);
    let request = "nodepki_signer_request_duration_seconds_count";
    assert!(sum(&first, request, &["signer=\"s\"", "operation=\"submit\""]) >= 10.0);
    let now = OffsetDateTime::now_utc().unix_timestamp() as f64;
    let ended = sum(
        &first,
        "nodepki_last_run_timestamp_seconds",
        &["command=\"bootstrap\""],
    );
    assert!((now - ended).abs() < 60.0);
    let end = "nodepki_certificate_not_after_timestamp_seconds";
    assert!(sum(&first, end, &["certificate_name=\"front-proxy-ca\""]) > now);

    // The second run has one refusal and nothing else to do.
    node.remove("/etc/kubernetes/pki/apiserver.crt");
    node.signer_does("apiserver", "bad wrong-key");
    node.ask().ended(65);
    let second = samples(&node.read(TEXTFILE));
    // The certificate is missing: whether it complies is not known.
    assert_eq!(verdict(&second, "apiserver", "unknown"), 1.0);
    assert_eq!(
        sum(&second, compliant, &["certificate_name=\"apiserver\""]),
        0.0
    );
    assert_eq!(
        (installed(&second, "success"), installed(&second, "failure")),
        (1.0, 1.0)
    );
    assert_eq!(
        sum(&second, "nodepki_last_run_exit_code", &["bootstrap"]),
        65.0
    );
    let succeeded = "nodepki_last_success_timestamp_seconds";
    assert_eq!(sum(&second, succeeded, &[]), sum(&first, succeeded, &[]));
    let missing = ["certificate_name=\"apiserver\"", "state=\"missing\""];
    assert_eq!(sum(&second, "nodepki_certificate_state", &missing), 1.0);
    assert_eq!(sum(&second, made, &["certificate_name=\"apiserver\""]), 2.0);
    for (key, before) in &first {
        if key.contains("_total{") || key.contains("_count{") || key.contains("_bucket{") {
            assert!(second[key] >= *before, "{key} decreased");
        }
    }

    // Damaged counters start again at zero, with a warning.
    node.write(COUNTER_FILE, "{\"version\":1,");
    node.signer_behaves();
    node.ask().done();
    let third = samples(&node.read(TEXTFILE));
    assert_eq!(
        (installed(&third, "success"), installed(&third, "failure")),
        (1.0, 0.0)
    );
}

#[test]
fn counts_unreachable_signer_by_error_class() {
    let node = node();
    node.signer_does("apiserver", "unreachable");
    let ran = node.ask();
    assert_ne!(ran.code, Some(0), "{}", ran.said());
    let page = samples(&node.read(TEXTFILE));
    assert!(sum(&page, "nodepki_signer_errors_total", &["signer=\"s\""]) >= 1.0);
    let failed = ["certificate_name=\"apiserver\"", "result=\"failure\""];
    assert_eq!(
        sum(&page, "nodepki_certificate_generated_total", &failed),
        1.0
    );
}

/// A reader sees the old file or the new one, and no other file that node_exporter would read.
#[test]
fn replaces_textfile_atomically() {
    let node = node();
    node.ask().done();
    let (directory, textfile) = (node.path(DIRECTORY), node.path(TEXTFILE));
    let over = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                let text = fs::read_to_string(&textfile).unwrap();
                assert!(
                    text.starts_with("# HELP nodepki_certificate_info "),
                    "{text}"
                );
                assert!(
                    text.contains("\nnodepki_build_info{") && text.ends_with("\n"),
                    "{text}"
                );
                for entry in fs::read_dir(&directory).unwrap() {
                    let name = entry.unwrap().file_name().into_string().unwrap();
                    assert!(name == "nodepki.prom" || !name.ends_with(".prom"), "{name}");
                }
                reads += 1;
            }
            reads
        });
        for _ in 0..8 {
            node.ask().done();
        }
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(reads > 100, "only {reads} reads");
}

#[test]
fn warns_if_textfile_cannot_be_written() {
    let node = node();
    fs::remove_dir(node.path(DIRECTORY)).unwrap();
    node.ask()
        .done()
        .says("cannot write the metrics to")
        .says("does not exist; create it")
        .says("--collector.textfile.directory");
    // A directory in place of the file.
    fs::create_dir_all(node.path(TEXTFILE)).unwrap();
    node.ask().done().says("cannot write the metrics to");
    assert!(node.path(TEXTFILE).is_dir());
}

#[test]
fn counts_nothing_without_configuration() {
    let node = Node::new();
    node.settings("");
    node.ask().done();
    assert!(!node.path(COUNTER_FILE).exists());
}

#[test]
fn status_prints_gauges() {
    let node = Node::bootstrapped();
    let page = samples(&node.run(&["status", "-o", "prometheus"]).done().stdout);
    assert_eq!(
        sum(&page, "nodepki_certificate_state", &["state=\"ok\""]),
        15.0
    );
    assert!(!page.keys().any(|key| key.contains("_total")));
    fs::write(
        node.path("/etc/kubernetes/pki/apiserver.crt"),
        "no certificate",
    )
    .unwrap();
    let page = samples(&node.run(&["status", "-o", "prometheus"]).done().stdout);
    let apiserver = ["certificate_name=\"apiserver\"", "state=\"unreadable\""];
    assert_eq!(sum(&page, "nodepki_certificate_state", &apiserver), 1.0);
    // An empty node has a page too.
    samples(
        &Node::new()
            .run(&["status", "-o", "prometheus"])
            .done()
            .stdout,
    );
    node.run(&["doctor", "-o", "prometheus"])
        .ended(64)
        .says("only status and cluster status print metrics");
}

struct Silent;

impl Progress for Silent {
    fn event(&self, _: nodepki::agent::Event) {}
}

fn loaded(node: &Node) -> (NodeRoot, Loaded) {
    let root = NodeRoot::open(node.root()).unwrap();
    let mut inputs = LoadInputs {
        config: Some(node.outside("config.yaml").into()),
        ..LoadInputs::default()
    };
    inputs.stand_ins.kubeadm_configs = vec![node.outside("kubeadm.yaml").into()];
    let loaded = load::load(&root, &inputs, OffsetDateTime::now_utc()).unwrap();
    (root, loaded)
}

/// Sends one request, and returns the bytes received until the server closes the connection.
async fn exchange(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    // The server may reset the connection before it has read the whole request.
    let _ = stream.read_to_string(&mut answer).await;
    answer
}

async fn request(address: std::net::SocketAddr, method: &str, path: &str) -> (String, String) {
    let answer = exchange(
        address,
        &format!("{method} {path} HTTP/1.1\r\nHost: node\r\n\r\n"),
    )
    .await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn serves_metrics_and_health_of_the_daemon() {
    let node = node();
    node.ask().done();
    let (root, loaded) = loaded(&node);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "daemon");
    let listener = metrics::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let clock = OffsetDateTime::now_utc;
    let server = metrics::serve(listener, &metrics, clock);
    let client = async {
        let (head, body) = request(address, "GET", "/metrics").await;
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(
            head.to_lowercase()
                .contains("content-type: text/plain; version=0.0.4"),
            "{head}"
        );
        // The counters of the one-shot run are continued.
        let page = samples(&body);
        assert!(
            sum(
                &page,
                "nodepki_certificate_generated_total",
                &["result=\"success\""]
            ) > 9.0
        );
        let (head, body) = request(address, "HEAD", "/metrics").await;
        assert!(
            head.starts_with("HTTP/1.1 200 OK") && body.is_empty(),
            "{head}\n{body}"
        );
        let (head, _) = request(address, "POST", "/metrics").await;
        assert!(
            head.starts_with("HTTP/1.1 405 ") && head.contains("GET, HEAD"),
            "{head}"
        );
        let (head, _) = request(address, "GET", "/etc/passwd").await;
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
        let long = format!(
            "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
            "x".repeat(64 * 1024)
        );
        let answer = exchange(address, &long).await;
        assert!(!answer.contains("200 OK"), "{answer}");

        let (head, body) = request(address, "GET", "/healthz").await;
        assert!(
            head.starts_with("HTTP/1.1 200 OK") && body == "ok\n",
            "{head}\n{body}"
        );
        // The step that was due an hour ago has not started.
        let late = OffsetDateTime::now_utc() - time::Duration::HOUR;
        metrics.ended(&loaded.setup, ExitCode::Done, Some(late), late);
        let (head, body) = request(address, "GET", "/healthz").await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(body.contains("has not started"), "{body}");
        let _recorder = metrics.recorder(&loaded.setup, &Silent, late);
        let (_, body) = request(address, "GET", "/healthz").await;
        assert!(body.contains("a step has been running since"), "{body}");
        let _recorder = metrics.recorder(&loaded.setup, &Silent, OffsetDateTime::now_utc());
        let (head, _) = request(address, "GET", "/healthz").await;
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    };
    tokio::select! {
        never = server => match never {},
        () = client => {}
    }
}

#[tokio::test]
async fn reports_expired_certificate_as_unhealthy() {
    fn in_years() -> OffsetDateTime {
        OffsetDateTime::now_utc() + time::Duration::days(5 * 365)
    }
    let node = node();
    node.ask().done();
    let (root, loaded) = loaded(&node);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "daemon");
    let ailments = metrics.health_problems(in_years());
    assert!(
        ailments.contains(&"apiserver has expired".to_owned()),
        "{ailments:?}"
    );
    // A recent result is cached; setting the clock back does not extend that.
    assert!(
        metrics
            .health_problems(OffsetDateTime::now_utc())
            .is_empty()
    );
}

/// Serves metrics while `client` runs with their address.
async fn while_serving<T>(client: impl AsyncFnOnce(std::net::SocketAddr) -> T) -> T {
    let node = node();
    let (root, loaded) = loaded(&node);
    let metrics = Metrics::new(&root, &loaded.settings.metrics, &loaded.setup, "daemon");
    let listener = metrics::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::select! {
        never = metrics::serve(listener, &metrics, OffsetDateTime::now_utc) => match never {},
        result = client(address) => result,
    }
}

#[tokio::test]
async fn connections_without_request_do_not_delay_others() {
    while_serving(async |address| {
        let mut idle = Vec::new();
        for number in 0..200 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Half of them send a part of a request.
            if number % 2 == 0 {
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await;
            }
            idle.push(stream);
        }
        // The oldest one has not reached its own time limit when it makes room for the others.
        let mut byte = [0];
        let closed = idle[1].read(&mut byte).await;
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
        for path in ["/healthz", "/metrics"] {
            let (head, _) = request(address, "GET", path).await;
            assert!(head.starts_with("HTTP/1.1 "), "{head}");
        }
    })
    .await;
}

#[tokio::test]
async fn closes_idle_connections() {
    while_serving(async |address| {
        let mut idle = TcpStream::connect(address).await.unwrap();
        let mut byte = [0];
        let closed = idle.read(&mut byte).await;
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    })
    .await;
}

fn packaged(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging")
        .join(name)
}

#[test]
fn alert_rules_are_valid_and_pass_their_tests() {
    for arguments in [["check", "rules"], ["test", "rules"]] {
        let file = match arguments {
            ["check", _] => "prometheus/nodepki.rules.yaml",
            _ => "prometheus/nodepki.rules.test.yaml",
        };
        Ran::of(
            Command::new(bin("promtool"))
                .args(arguments)
                .arg(packaged(file)),
        )
        .done()
        .says("SUCCESS");
    }
    // Every alert fires in a test.
    let rules = fs::read_to_string(packaged("prometheus/nodepki.rules.yaml")).unwrap();
    let tests = fs::read_to_string(packaged("prometheus/nodepki.rules.test.yaml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    for alert in alerts {
        let fires = format!("alertname: {alert}\n    exp_alerts:\n    - exp_labels:");
        assert!(tests.contains(&fires), "no test has {alert} fire");
    }
    let series = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "));
    for name in series {
        let reads = format!("expr: {name}");
        assert!(tests.contains(&reads), "no test reads {name}");
    }
}

#[test]
fn dashboard_queries_are_valid() {
    let text = fs::read_to_string(packaged("grafana/nodepki.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut queries = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            queries.insert(target["expr"].as_str().unwrap().to_owned());
        }
    }
    assert!(queries.len() > 10);
    let rules: String = queries
        .iter()
        .enumerate()
        .map(|(index, query)| {
            let query = query
                .replace("$__rate_interval", "5m")
                .replace("$job", "a")
                .replace("$instance", "b");
            assert!(!query.contains('$'), "{query}");
            format!(
                "  - {{record: 'query:{index}', expr: {}}}\n",
                serde_json::json!(query)
            )
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("queries.yaml");
    fs::write(
        &file,
        format!("groups:\n- name: dashboard\n  rules:\n{rules}"),
    )
    .unwrap();
    Ran::of(
        Command::new(bin("promtool"))
            .args(["check", "rules"])
            .arg(&file),
    )
    .done()
    .says(&format!("{} rules found", queries.len()));
}

use super::exposition::labels;
use super::families::{ALL, MetricType};
use super::*;
use crate::kube::kubeconfig::{Credentials, Kubeconfig};
use crate::spec::tests::{INIT, cluster, planned};
use crate::spec::{Choices, SYSTEM_MASTERS};
use crate::x509::{
    CertificateAuthority, ExtendedUsage, KeyAlgorithm, PrivateKey, Profile, Subject,
};

#[test]
fn escapes_labels_and_omits_empty_ones() {
    let text = labels(&[("a", "one \"two\"\\\nthree"), ("b", ""), ("c", "é")]);
    assert_eq!(text, r#"a="one \"two\"\\\nthree",c="é""#);
}

#[test]
fn orders_families_and_cumulates_histograms() {
    let mut counts = Counts::default();
    for seconds in [0.005, 0.01, 0.3, 60.0] {
        let took = Duration::from_secs_f64(seconds);
        counts.observe(&GENERATION_DURATION, labels(&[("algorithm", "RSA")]), took);
    }
    counts.count(&GENERATED, labels(&[("result", "success")]), 3);
    let mut page = MetricsPage::default();
    counts.show(&mut page);
    assert_eq!(
        page.text(),
        r#"# HELP nodepki_certificate_generated_total Certificates that a run installed (success), or that were refused or not issued (failure).
# TYPE nodepki_certificate_generated_total counter
nodepki_certificate_generated_total{result="success"} 3
# HELP nodepki_certificate_generation_duration_seconds Time to generate the private key.
# TYPE nodepki_certificate_generation_duration_seconds histogram
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="0.01"} 2
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="0.1"} 2
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="0.5"} 3
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="1"} 3
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="2"} 3
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="5"} 3
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="10"} 3
nodepki_certificate_generation_duration_seconds_bucket{algorithm="RSA",le="+Inf"} 4
nodepki_certificate_generation_duration_seconds_sum{algorithm="RSA"} 60.315
nodepki_certificate_generation_duration_seconds_count{algorithm="RSA"} 4
"#
    );
}

#[test]
fn adds_counters_of_all_processes() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let one = |succeeded| {
        let mut counts = Counts::default();
        counts.count(&GENERATED, labels(&[("result", "failure")]), 2);
        counts.observe(&SIGNER_DURATION, String::new(), Duration::from_secs(1));
        let run = LastRun {
            ended: 1_800_000_000,
            seconds: 1.5,
            code: 0,
            succeeded,
            next: None,
        };
        counts.runs.insert("renew".to_owned(), run);
        counts
    };
    one(Some(1_800_000_000)).save(&root, MAX_LOCK_WAIT).unwrap();
    one(None).save(&root, MAX_LOCK_WAIT).unwrap();
    let all = Counts::read(&root);
    assert_eq!(all.runs["renew"].succeeded, Some(1_800_000_000));
    let mut page = MetricsPage::default();
    all.show(&mut page);
    let text = page.text();
    assert!(
        text.contains("nodepki_certificate_generated_total{result=\"failure\"} 4\n"),
        "{text}"
    );
    assert!(
        text.contains("nodepki_signer_request_duration_seconds_bucket{le=\"1\"} 2\n"),
        "{text}"
    );
    assert!(
        text.contains("nodepki_signer_request_duration_seconds_count 2\n"),
        "{text}"
    );
}

#[test]
fn keeps_counters_while_lock_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let held = root.lock(Duration::ZERO, "a test").unwrap();
    let mut counts = Counts::default();
    counts.count(&GENERATED, String::new(), 1);
    assert!(counts.clone().save(&root, Duration::ZERO).is_err());
    drop(held);
    counts.save(&root, Duration::ZERO).unwrap();
}

#[test]
fn continues_counters_of_release_0_1_0() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("var/lib/nodepki");
    let released = include_str!("../../../tests/fixtures/state/0.1.0/metrics.json");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("metrics.json"), released).unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    Counts::default().save(&root, MAX_LOCK_WAIT).unwrap();
    let written = std::fs::read_to_string(state.join("metrics.json")).unwrap();
    assert_eq!(written, released);
}

#[test]
fn keeps_counters_of_newer_version() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("var/lib/nodepki");
    std::fs::create_dir_all(&state).unwrap();
    std::fs::write(state.join("metrics.json"), "{\"version\":2}").unwrap();
    let root = NodeRoot::open(dir.path()).unwrap();
    let error = Counts::default().save(&root, MAX_LOCK_WAIT).unwrap_err();
    assert!(error.to_string().contains("format version 2"), "{error}");
    let kept = std::fs::read_to_string(state.join("metrics.json")).unwrap();
    assert_eq!(kept, "{\"version\":2}");
}

/// An omitted file may remain from `kubeadm init`.
#[test]
fn is_healthy_with_expired_file_that_the_settings_omit() {
    let issued = time::macros::datetime!(2026-11-20 0:00 UTC);
    let day = Duration::from_secs(24 * 60 * 60);
    let key = || PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let ca = CertificateAuthority::self_signed("kubernetes", key(), issued, 100 * day).unwrap();
    let profile = Profile::of_tests(
        Subject::new("kubernetes-super-admin", &[SYSTEM_MASTERS]),
        &[ExtendedUsage::ClientAuth],
        day,
    );
    let key = key();
    let leaf = ca.issue(key.public_key(), &profile, issued).unwrap();
    let credentials = Credentials {
        server: "https://192.0.2.11:6443",
        authority: &ca.bundle().to_pem(),
        certificate: &leaf.to_pem(),
        key: &key.to_pem(),
    };
    let kubeconfig = Kubeconfig::new("kubernetes", "user", &credentials);
    let dir = tempfile::tempdir().unwrap();
    let kubernetes = dir.path().join("etc/kubernetes");
    std::fs::create_dir_all(&kubernetes).unwrap();
    std::fs::write(kubernetes.join("super-admin.conf"), kubeconfig.to_yaml()).unwrap();
    let problems = |omit: &[CertName]| {
        let choices = Choices {
            omit: omit.iter().copied().collect(),
            ..Choices::default()
        };
        let plan = planned(
            INIT,
            &cluster("controlPlaneEndpoint: api.example\n"),
            &choices,
        );
        let metrics = Metrics(Rc::new(Shared {
            root: NodeRoot::open(dir.path()).unwrap(),
            command: "daemon",
            textfile: None,
            enabled: true,
            state: RefCell::new(MetricsState {
                plan: Some(plan),
                ..MetricsState::default()
            }),
        }));
        metrics.health_problems(issued + 2 * day)
    };
    assert_eq!(problems(&[]), ["super-admin.conf has expired"]);
    assert!(problems(&[CertName::SuperAdminConf]).is_empty());
}

/// Conventions of Prometheus that promtool does not verify.
#[test]
fn follows_naming_conventions_of_prometheus() {
    for family in ALL {
        let name = family.name;
        assert_eq!(
            matches!(family.kind, MetricType::Counter),
            name.ends_with("_total"),
            "{name}"
        );
        assert!(
            family.help.ends_with('.') && !family.help.contains('\\'),
            "{name}"
        );
    }
}

#[test]
fn exports_every_metric_of_packaged_rules_and_dashboard() {
    let packaged = [
        include_str!("../../../packaging/prometheus/nodepki.rules.yaml"),
        include_str!("../../../packaging/prometheus/nodepki.rules.test.yaml"),
        include_str!("../../../packaging/grafana/nodepki.json"),
    ];
    let known = |name: &str| {
        ALL.iter().any(|family| match family.kind {
            MetricType::Histogram(_) => ["_bucket", "_sum", "_count"]
                .into_iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(family.name)),
            _ => name == family.name,
        })
    };
    let mut found = 0;
    for text in packaged {
        for rest in text.split("nodepki_").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let name = format!("nodepki_{}", &rest[..end.unwrap_or(rest.len())]);
            assert!(known(&name), "{name} is not exported");
            found += 1;
        }
    }
    assert!(found > 50, "{found}");
}

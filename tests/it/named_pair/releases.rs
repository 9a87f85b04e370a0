//! What kube-controller-manager and kube-scheduler of several releases of Kubernetes do without a restart when the
//! certificate, the key or the CA of their kubeconfig is replaced: the table in `docs/rotation.md`, measured.
//!
//! All of them run at the same time, at one kube-apiserver whose audit log names the certificate of each request.

use std::net::IpAddr;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::*;
use crate::gateway::{Issuer, Pair};
use crate::servers::{Server, bin};
use crate::time::let_pass;

const RELEASES: [&str; 4] = ["1.34", "1.35", "1.36", "1.37"];
/// More than the five minutes after which client-go looks for other files.
const OBSERVED_SECONDS: u64 = 400;

/// Where a kubeconfig has its certificate, key and CA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Embedded,
    File,
}

/// A running component of a release, with a kubeconfig of its own.
struct Instance {
    component: &'static str,
    release: &'static str,
    form: Form,
    process: Server,
    /// Directory of its files on the node.
    dir: String,
    pair: Pair,
    /// Fingerprints of its certificates; the last one is that of `pair`.
    fingerprints: Vec<String>,
}

impl Instance {
    fn name(&self) -> String {
        format!("{} {} {:?}", self.component, self.release, self.form)
    }

    /// Returns whether it has sent a request with one of these certificates, by an audit log.
    fn has_used(&self, fingerprints: &[String], log: &str) -> bool {
        let used = credentials(log, &format!("system:{}", self.component));
        fingerprints.iter().any(|one| used.contains(one))
    }
}

impl Plane {
    /// Starts a component of a release.
    fn launch(
        &self,
        component: &'static str,
        release: &'static str,
        form: Form,
        port: usize,
        clients: &Issuer,
    ) -> Instance {
        let node = self.node();
        let name = format!("{component}-{release}-{port}");
        let dir = format!("/etc/kubernetes/releases/{name}");
        let pair = clients.client(&format!("system:{component}"));
        let trusted = fs::read(node.pki("ca.crt")).unwrap();
        self.write(&dir, form, &pair, &trusted);
        let program = match release {
            "1.37" => component.to_owned(),
            former => format!("{component}-{former}"),
        };
        let manifest = format!("/etc/kubernetes/manifests/{component}.yaml");
        let manifest = fs::read_to_string(node.path(&manifest)).unwrap();
        let conf = ["", "authentication-", "authorization-"]
            .map(|what| format!("--{what}kubeconfig={dir}/conf"));
        let port = format!("--secure-port={port}");
        let mut flags: Vec<&str> = conf.iter().map(String::as_str).collect();
        flags.extend([port.as_str(), "--leader-elect=false"]);
        Instance {
            process: node.launch_program(&bin(&program), &name, &manifest, &flags),
            component,
            release,
            form,
            dir,
            fingerprints: vec![hex(&pair.certificate.fingerprint())],
            pair,
        }
    }

    /// Writes a kubeconfig, and the files that it names.
    fn write(&self, dir: &str, form: Form, pair: &Pair, trusted: &[u8]) {
        let node = self.node();
        let parts = [
            ("certificate-authority", trusted),
            ("client-certificate", &pair.chain_pem),
            ("client-key", &pair.key_pem),
        ];
        let [authority, certificate, key] = parts.map(|(field, pem)| match form {
            Form::Embedded => format!("{field}-data: {}", BASE64.encode(pem)),
            Form::File => {
                let file = format!("{dir}/{field}.pem");
                // By a rename, as nodepki replaces it.
                node.write_secret(&format!("{file}.new"), std::str::from_utf8(pem).unwrap());
                fs::rename(node.path(&format!("{file}.new")), node.path(&file)).unwrap();
                format!("{field}: {file}")
            }
        });
        let conf = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
             clusters: [{{name: it, cluster: {{server: 'https://192.0.2.11:6443', {authority}}}}}]\n\
             users: [{{name: it, user: {{{certificate}, {key}}}}}]\n\
             contexts: [{{name: it, context: {{cluster: it, user: it}}}}]\n"
        );
        node.write_secret(&format!("{dir}/conf"), &conf);
    }

    /// Waits for [`OBSERVED_SECONDS`], and returns for each component when it sent the first request with one of these
    /// certificates.
    fn first_requests(
        &self,
        instances: &[Instance],
        fingerprints: impl Fn(&Instance) -> &[String],
        mut from: usize,
    ) -> Vec<Option<Duration>> {
        let begin = Instant::now();
        let mut first = vec![None; instances.len()];
        for _ in 0..OBSERVED_SECONDS {
            let mut log = self.audit_log(from);
            log.truncate(log.rfind('\n').map_or(0, |end| end + 1));
            from += log.len();
            for (one, first) in instances.iter().zip(&mut first) {
                if one.has_used(fingerprints(one), &log) {
                    first.get_or_insert(begin.elapsed());
                }
            }
            let_pass(Duration::from_secs(1));
        }
        first
    }

    /// Restarts kube-apiserver with another certificate.
    fn restart_with(&self, serving: &Pair) {
        let node = self.node();
        node.write(
            "/etc/kubernetes/pki/apiserver.crt",
            std::str::from_utf8(&serving.chain_pem).unwrap(),
        );
        node.write_secret(
            "/etc/kubernetes/pki/apiserver.key",
            std::str::from_utf8(&serving.key_pem).unwrap(),
        );
        let manifest = format!("/etc/kubernetes/manifests/{APISERVER}.yaml");
        let text = fs::read_to_string(node.path(&manifest)).unwrap();
        let before = self.pods.restarts(APISERVER);
        node.write(&manifest, &format!("{text}# restart\n"));
        wait_until("kube-apiserver has restarted", || {
            self.pods.restarts(APISERVER) > before && node.is_ready(APISERVER)
        });
    }
}

#[test]
fn use_replaced_files_as_documented() {
    let plane = Plane::start(false);
    let node = plane.node();
    let [certificate, key] = ["ca.crt", "ca.key"].map(|file| fs::read(node.pki(file)).unwrap());
    let clients = Issuer::of(CertificateAuthority::from_pem(&certificate, &key).unwrap());
    let mut instances = Vec::new();
    for release in RELEASES {
        for component in [CONTROLLERS, SCHEDULER] {
            for form in [Form::Embedded, Form::File] {
                let port = 20_000 + instances.len();
                instances.push(plane.launch(component, release, form, port, &clients));
            }
        }
    }
    for one in &mut instances {
        let name = one.name();
        wait_until(&format!("{name} has sent a request"), || {
            assert!(
                one.process.ended().is_none(),
                "{name}: {}",
                one.process.said()
            );
            one.has_used(&one.fingerprints, &plane.audit_log(0))
        });
    }

    // Renewal.
    for one in &mut instances {
        one.pair = clients.client(&format!("system:{}", one.component));
        let fingerprint = hex(&one.pair.certificate.fingerprint());
        one.fingerprints.push(fingerprint);
        plane.write(&one.dir, one.form, &one.pair, &certificate);
    }
    let renewed = plane.first_requests(&instances, |one| &one.fingerprints[1..], 0);

    // Another CA, of the server's certificate. The restart closes the open connections.
    let issuer = Issuer::new("new-ca");
    let bundle = [issuer.pem(), certificate].concat();
    for one in &instances {
        plane.write(&one.dir, one.form, &one.pair, &bundle);
    }
    let addresses = ["192.0.2.11", "192.0.2.100", "10.96.0.1", "127.0.0.1"];
    let addresses: Vec<IpAddr> = addresses.map(|one| one.parse().unwrap()).to_vec();
    let names = ["api.prod.example.com", "localhost"];
    plane.restart_with(&issuer.server(&names, &addresses, now(), Duration::from_secs(86_400)));
    let from = plane.audit_log(0).len();
    let trusted = plane.first_requests(&instances, |one| &one.fingerprints, from);

    println!(
        "| component | release | kubeconfig | another pair in use after | another CA in use after |"
    );
    let after = |time: Option<Duration>| {
        time.map_or("never".to_owned(), |time| format!("{} s", time.as_secs()))
    };
    for ((one, renewed), trusted) in instances.iter().zip(&renewed).zip(&trusted) {
        println!(
            "| {} | {} | {:?} | {} | {} |",
            one.component,
            one.release,
            one.form,
            after(*renewed),
            after(*trusted)
        );
    }
    for ((mut one, renewed), trusted) in instances.into_iter().zip(renewed).zip(trusted) {
        let name = one.name();
        assert!(
            one.process.ended().is_none(),
            "{name}: {}",
            one.process.said()
        );
        let reads_files = one.form == Form::File;
        assert_eq!(renewed.is_some(), reads_files, "{name}");
        assert_eq!(
            trusted.is_some(),
            reads_files && !["1.34", "1.35"].contains(&one.release),
            "{name}"
        );
    }
}

//! Rotations that restart the components of both nodes, for minutes: `tests/run authorities`.

use super::*;
use crate::servers::cluster::ENDPOINT;

const COMPONENTS: [&str; 4] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];

impl Pair {
    /// Asserts that the Secrets for Cluster API contain this CA, although the files of `--ca-dir` do not.
    fn assert_secrets_follow(&self, authority: Authority, certificate: &str) {
        let node = self.cluster.first();
        let former = node.path("/var/former-pki");
        for one in Authority::ALL {
            let base = former.join(one.base_name());
            fs::create_dir_all(base.parent().unwrap()).unwrap();
            let stranger = self_signed(one, new_key()).bundle().to_pem();
            let own = fs::read_to_string(self.signing_file(one, "crt")).unwrap();
            let text = if one == authority { stranger } else { own };
            fs::write(base.with_extension("crt"), text).unwrap();
        }
        let state = format!("/var/capi-{authority}");
        let secrets = node.nodepki(&[
            "capi",
            "secrets",
            "prod",
            "--endpoint",
            ENDPOINT,
            "--ca-dir",
            "/var/former-pki",
            "--workload-kubeconfig",
            "/etc/kubernetes/admin.conf",
            "--state",
            &state,
            "--show-secrets",
        ]);
        let name = match authority {
            Authority::Ca => "prod-ca",
            Authority::EtcdCa => "prod-etcd",
            Authority::FrontProxyCa => "prod-proxy",
        };
        let encoded = BASE64.encode(certificate);
        secrets.done().says(name).says(&encoded);
    }
}

#[test]
fn rotates_every_authority() {
    let pair = &Pair::start();
    let mut daemons = pair.nodes().map(Daemon::start);
    for authority in [Authority::FrontProxyCa, Authority::EtcdCa, Authority::Ca] {
        let begin = Instant::now();
        let new = pair.create_ca(authority);
        pair.rotate(authority, &[]);
        pair.accepts_again(&["rotate", authority.as_str(), "--certificate", NEW_CA]);
        pair.complete(authority, &new, &mut daemons);
        println!("{authority}: {:.0?}", begin.elapsed());
        pair.authority(&["watch"]).done().says("phase done");
        pair.assert_secrets_follow(authority, &new[0]);
        wait_until("both nodes have proven the end", || {
            let shown = pair.authority(&["watch", authority.as_str(), "-o", "json"]);
            let document = crate::documents::verify("authority-rotation", shown.done());
            let nodes = document["items"][0]["nodes"].as_array().unwrap().iter();
            nodes.filter(|node| node["proven"] == true).count() == 2
        });
    }
    for (node, pods) in pair.nodes().into_iter().zip(&pair.pods) {
        for component in COMPONENTS {
            println!(
                "{} {component}: {} restarts",
                node.name(),
                pods.restarts(component)
            );
        }
        // kube-controller-manager and kube-scheduler end if their only API server restarts for long.
        for crash in pods.crashes() {
            assert!(crash.component.starts_with("kube-"), "{crash:?}");
            assert_ne!(crash.component, "kube-apiserver", "{crash:?}");
        }
    }
    daemons.iter_mut().for_each(Daemon::stop);
}

/// Undone after the new key has signed.
#[test]
fn undoes_rotation_of_service_account_key() {
    let pair = &Pair::start();
    let mut daemons = pair.nodes().map(Daemon::start);
    pair.label();
    let old = pair.service_account_keys()[0][0].clone();
    let before = pair.tokens();
    wait_until("the rotation has started", || {
        let rotate = ["rotate", "sa", "--token-lifetime", "90s"];
        pair.authority(&rotate).code == Some(0)
    });
    pair.wait_for_phase("sa", "activate", &daemons);
    let new = pair.new_service_account_key();
    pair.wait_for_keys(&new, &[&new, &old]);
    pair.wait_for_token_wait();
    let undone = pair.tokens();
    pair.assert_accepted(&before, true, "in activate");
    pair.assert_accepted(&undone, true, "in activate");
    pair.authority(&["undo", "sa"]).done();
    pair.wait_for_phase("sa", "undone", &daemons);
    pair.wait_for_keys(&old, &[&old]);
    pair.assert_accepted(&before, true, "after undo");
    pair.assert_accepted(&undone, false, "after undo");
    pair.wait_until_cleared();
    daemons.iter_mut().for_each(Daemon::stop);
}

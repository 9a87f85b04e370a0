//! `policy check`: keys on disk against the key policy.

use serde_json::Value;

use crate::node::{Node, Ran};
use crate::signing::HEAD;

fn check(node: &Node, settings: &str) -> Ran {
    node.write_settings(&format!("{HEAD}{settings}"));
    Ran::of(&mut node.configured(["policy", "check"]))
}

#[test]
fn compares_every_key_with_policy() {
    let node = Node::bootstrapped();
    check(&node, "").done().says("12 compliant");

    // The CAs and the keys of this node are ECDSA-P256.
    let ran = check(
        &node,
        "pki:\n  categories: [{category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}]\n",
    );
    ran.ended(65)
        .says(
            "ca                        SignerCertificate   RSA-4096      ECDSA-P256  not compliant",
        )
        .says("3 not compliant, 12 compliant; next: nodepki plan shows what a renewal changes");
    Ran::of(&mut node.configured(["doctor"]))
        .says("key-policy")
        .says("the key of ca is ECDSA-P256, and the policy requires RSA-4096");
}

#[test]
fn reports_policy_as_json() {
    let node = Node::bootstrapped();
    node.write_settings(&format!(
        "{HEAD}pki:\n  overrides: [{{certificateName: apiserver, certificate: {{key: {{algorithm: ECDSA, ecdsa: {{curve: P384}}}}}}}}]\n"
    ));
    let ran = Ran::of(&mut node.configured(["policy", "check", "-o", "json"]));
    ran.ended(65);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["kind"], "Policy");
    let row = |name: &str| {
        let rows = report["keys"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row("apiserver")["required"], "ECDSA-P384");
    assert_eq!(row("apiserver")["found"], "ECDSA-P256");
    assert_eq!(row("apiserver")["verdict"], "not compliant");
    assert_eq!(row("etcd-server")["verdict"], "compliant");
    assert_eq!(row("ca")["verdict"], "no policy");
    assert_eq!(row("sa")["verdict"], "no policy");
}

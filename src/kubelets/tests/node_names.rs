//! The names that nodes may have, and who may join a node of a name.

use super::*;
use crate::x509::CsrContent;

const TOKEN: &str = "system:bootstrap:abcdef";

fn join(name: &str) -> CsrObject {
    request(&token(), CLIENT, &CsrParts::client(name))
}

fn confirmed(request: &CsrObject) -> CsrObject {
    approved(request, APPROVED_BY_ADMINISTRATOR)
}

#[test]
fn reserved_name_is_never_that_of_a_node() {
    let mut rig = Rig::new();
    rig.policy.names = vec!["{node}.nodes.example.com".parse().unwrap()];
    rig.reserved
        .add_pattern("konnectivity-{node}".parse().unwrap());
    rig.reserved
        .add(&San::parse("vault.example.com").unwrap().0);
    let reserved = "NodeNameReserved";
    for (name, expected) in [
        ("localhost", "deny"),
        ("w9.localhost", "deny"),
        ("127.0.0.1", "deny"),
        ("0.0.0.0", "deny"),
        ("169.254.169.254", "deny"),
        ("kubernetes", "deny"),
        ("kubernetes.default", "deny"),
        ("webhook.kube-system", "deny"),
        ("webhook.prod.svc", "deny"),
        ("cluster.local", "deny"),
        ("w9.cluster.local", "deny"),
        ("10.96.0.1", "deny"),
        ("api.example.com", "deny"),
        // An administrator may join a control-plane node whose name is among those of the API server.
        ("192.0.2.10", "wait"),
        ("shop.apps.example.com", "wait"),
        ("vault.example.com", "wait"),
        ("w9.nodes.example.com", "wait"),
        ("konnectivity-w1", "wait"),
        ("w9", "approve"),
        ("w9.example.com", "approve"),
        ("10.0.0.9", "approve"),
        ("svc-9", "approve"),
    ] {
        let request = join(name);
        let found = rig.outcome(&request, LATER);
        let approved = rig.outcome(&approved(&request, "AutoApproved"), LATER);
        let confirmed = rig.outcome(&confirmed(&request), LATER);
        let all = match expected {
            "approve" => ["approve", "sign", "sign"].map(str::to_owned),
            "wait" => [
                format!("wait {reserved}"),
                format!("wait {reserved}"),
                "sign".to_owned(),
            ],
            _ => ["deny", "fail", "fail"].map(|word| format!("{word} {reserved}")),
        };
        assert_eq!([found, approved, confirmed], all, "{name}");
    }
}

#[test]
fn node_with_reserved_name_renews_only_in_the_control_plane() {
    let mut rig = Rig::new();
    let renewal = |name: &str| request(&node(name), CLIENT, &CsrParts::client(name));
    for name in ["kubernetes", "api.example.com"] {
        rig.insert(&node_json(name, &[], is_ready()));
    }
    assert_eq!(
        rig.outcome(&renewal("kubernetes"), CREATED),
        "deny NodeNameReserved"
    );
    // An administrator who approves a worker learns this before.
    let KubeletDecision::Wait { finding, .. } = rig.judge(&join("shop.apps.example.com"), LATER)
    else {
        panic!("it is not a question for an administrator");
    };
    let limit = "only a control-plane node can renew its certificate";
    assert!(finding.message.contains(limit), "{finding}");
    let shop = "shop.apps.example.com";
    rig.insert(&node_json(shop, &[], is_ready()));
    assert_eq!(rig.outcome(&renewal(shop), LATER), "deny NodeNameReserved");
    let endpoint = renewal("api.example.com");
    assert_eq!(
        rig.outcome(&endpoint, CREATED),
        "wait-until NodeNameReserved"
    );
    assert_eq!(rig.outcome(&endpoint, LATER), "deny NodeNameReserved");
    // The only control-plane node may be its own endpoint.
    let mut only = node_json("api.example.com", &[], is_ready());
    only["metadata"]["labels"] = json!({"node-role.kubernetes.io/control-plane": ""});
    rig.insert(&only);
    assert_eq!(rig.outcome(&endpoint, CREATED), "approve");
    assert_eq!(rig.outcome(&renewal("cp1"), CREATED), "approve");
}

#[test]
fn second_certificate_for_unborn_node_waits_for_a_person() {
    let second = join("new");
    let csr = CsrContent::from_pem(&second.request).unwrap();
    let key = csr.public_key().sha256();
    let before = CREATED - Duration::from_secs(60);
    let other_token = "system:bootstrap:999999";
    for (username, key_of_first, expected) in [
        (TOKEN, key, "approve"),
        (TOKEN, [7; 32], "wait NodeNameTaken"),
        (other_token, key, "wait NodeNameTaken"),
        (other_token, [7; 32], "wait NodeNameTaken"),
    ] {
        let mut rig = Rig::new();
        rig.issued
            .insert(issued_for(other_token, "another", [1; 32], before));
        rig.issued
            .insert(issued_for(username, "new", key_of_first, before));
        assert_eq!(rig.outcome(&second, LATER), expected, "{username}");
        let auto_approved = rig.outcome(&approved(&second, "AutoApproved"), LATER);
        assert_eq!(auto_approved == "sign", expected == "approve", "{username}");
        assert_eq!(
            rig.outcome(&confirmed(&second), LATER),
            "sign",
            "{username}"
        );
    }
}

#[test]
fn name_is_free_again_once_its_node_has_existed() {
    let before = datetime!(2026-11-19 23:59:00 UTC);
    let mut rig = Rig::new();
    rig.issued
        .insert(issued("system:bootstrap:999999", "new", before));
    assert_eq!(rig.outcome(&join("new"), LATER), "wait NodeNameTaken");
    rig.insert(&node_json("new", &[], is_ready()));
    assert_eq!(rig.outcome(&join("new"), LATER), "deny NodeExists");
    rig.nodes.remove("new");
    assert_eq!(rig.outcome(&join("new"), LATER), "approve");
    // A later certificate is for the next Node of the name.
    rig.issued
        .insert(issued("system:bootstrap:999999", "new", CREATED));
    assert_eq!(rig.outcome(&join("new"), LATER), "wait NodeNameTaken");

    // A leader that has not seen the Node knows it by what its kubelet was issued.
    let mut rig = Rig::new();
    rig.issued
        .insert(issued("system:bootstrap:999999", "new", before));
    let renewal = issued_for("system:node:new", "new", [8; 32], before);
    rig.issued.insert(renewal.clone());
    assert_eq!(rig.outcome(&join("new"), LATER), "approve");
    rig.issued.remove(&renewal.uid);
    let earlier = before - Duration::from_secs(1);
    rig.issued
        .insert(issued_for("system:node:new", "new", [8; 32], earlier));
    assert_eq!(rig.outcome(&join("new"), LATER), "wait NodeNameTaken");

    // Or by its stored binding, until a further certificate ends that.
    let mut rig = Rig::new();
    let mut first = issued("system:bootstrap:999999", "new", before);
    rig.issued.insert(first.clone());
    let known = NodeObject::from_json(&node_json("new", &[], is_ready())).unwrap();
    rig.bindings.see(&known);
    rig.bindings.see_none("new", LATER);
    assert_eq!(rig.outcome(&join("new"), LATER), "approve");
    rig.bindings.renew("new", None, &[7; 32]);
    assert_eq!(rig.outcome(&join("new"), LATER), "wait NodeNameTaken");
    // The certificate for this request is not published yet.
    let request = join("new");
    let key = RequestedIdentity::of(&request).unwrap().key;
    rig.bindings.renew("new", None, &key);
    assert_eq!(rig.outcome(&request, LATER), "approve");
    assert_eq!(rig.outcome(&join("new"), LATER), "wait NodeNameTaken");
    // A request that is not issued yet is for the next Node.
    rig.bindings.see(&known);
    first.progress = IssuanceProgress::Approved;
    rig.issued.insert(first);
    assert_eq!(rig.outcome(&join("new"), LATER), "wait NodeNameTaken");
}

#[test]
fn first_of_two_approved_requests_for_unborn_node_proceeds() {
    let mut rig = Rig::new();
    let mut other = issued("system:bootstrap:999999", "new", CREATED);
    other.progress = IssuanceProgress::Approved;
    let seconds = Duration::from_secs(60);
    for (created, progress, expected) in [
        (
            CREATED - seconds,
            IssuanceProgress::Approved,
            "wait NodeNameTaken",
        ),
        (CREATED + seconds, IssuanceProgress::Approved, "sign"),
        (CREATED - seconds, IssuanceProgress::Refused, "sign"),
    ] {
        rig.issued.insert(ApprovedRequest {
            created,
            progress,
            ..other.clone()
        });
        let request = approved(&join("new"), "AutoApproved");
        assert_eq!(rig.outcome(&request, LATER), expected, "{created}");
    }
}

#[test]
fn token_joins_only_nodes_of_its_groups() {
    let group = requests::TOKEN_GROUP;
    let mut rig = Rig::new();
    rig.policy.node_names.insert(
        group.to_owned(),
        ["worker-*", "*.pool.example.com"]
            .map(|text| text.parse().unwrap())
            .to_vec(),
    );
    for (name, is_allowed) in [
        ("worker-1", true),
        ("worker-", false),
        ("worker-1.example.com", false),
        ("my-worker-1", false),
        ("a.pool.example.com", true),
        ("a.b.pool.example.com", false),
        ("pool.example.com", false),
        ("db", false),
    ] {
        let expected = match is_allowed {
            true => ["approve", "sign"],
            // Not even a person: the setting says so.
            false if name == "worker-" => ["deny NodeNameInvalid", "fail NodeNameInvalid"],
            false => ["deny NodeNameNotAllowed", "fail NodeNameNotAllowed"],
        };
        let found = [join(name), confirmed(&join(name))].map(|one| rig.outcome(&one, LATER));
        assert_eq!(found, expected, "{name}");
    }
    // Another group of the token that may join nodes has no patterns.
    let mut both = join("db");
    both.requester
        .groups
        .push("system:bootstrappers:any".to_owned());
    assert_eq!(rig.outcome(&both, LATER), "deny NodeNameNotAllowed");
    rig.policy
        .token_groups
        .push("system:bootstrappers:any".to_owned());
    assert_eq!(rig.outcome(&both, LATER), "approve");
    // The node's own renewals need no token.
    rig.insert(&node_json("db", &[], is_ready()));
    let renewal = request(&node("db"), CLIENT, &CsrParts::client("db"));
    assert_eq!(rig.outcome(&renewal, LATER), "approve");
}

#[test]
fn parses_only_patterns_of_node_names() {
    for (text, is_pattern) in [
        ("worker-*", true),
        ("*", true),
        ("a-*-b.*.example.com", true),
        ("w1", true),
        ("a*b*", false),
        ("Worker-*", false),
        ("worker_*", false),
        ("*.", false),
        ("", false),
    ] {
        assert_eq!(text.parse::<NodeNameRange>().is_ok(), is_pattern, "{text}");
    }
}

#[test]
fn certificate_of_token_lives_for_days() {
    let sign = |rig: &Rig, request: &CsrObject| match rig.judge(&confirmed(request), LATER) {
        KubeletDecision::Sign(order) => order.profile.lifetime.as_secs(),
        other => panic!("{other:?}"),
    };
    let day = 24 * 3600;
    let mut rig = Rig::new();
    let renewal = request(&node("w1"), CLIENT, &CsrParts::client("w1"));
    assert_eq!(sign(&rig, &join("new")), 7 * day);
    assert_eq!(sign(&rig, &renewal), 365 * day);
    let mut longer = join("new");
    longer.expiration = Some(Duration::from_secs(30 * day));
    assert_eq!(sign(&rig, &longer), 7 * day);
    rig.policy.lifetime = Duration::from_secs(day);
    assert_eq!(sign(&rig, &join("new")), day);
}

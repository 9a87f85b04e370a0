//! Client certificates of pods.

use rcgen::{CertificateParams, DistinguishedName, DnType};

use super::*;
use crate::kube::pod_request::{ObjectReference, PodObject, PodRequest};

const HOUR: Duration = Duration::from_secs(3600);

fn csr(common_name: Option<&str>, sans: &[&str], algorithm: KeyAlgorithm) -> Vec<u8> {
    let sans: Vec<String> = sans.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(sans).unwrap();
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    let key = PrivateKey::generate(algorithm).unwrap();
    params.serialize_request(&key).unwrap().der().to_vec()
}

fn reference(name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        name: name.to_owned(),
        uid: uid.to_owned(),
    }
}

fn request() -> PodRequest {
    PodRequest {
        namespace: "shop".to_owned(),
        name: "req-1".to_owned(),
        uid: "u1".to_owned(),
        resource_version: "1".to_owned(),
        created: CREATED,
        pod: reference("web", "p1"),
        service_account: reference("seller", "s1"),
        node: reference("w1", "uid-w1"),
        longest: 24 * HOUR,
        request: csr(None, &[], KeyAlgorithm::EcdsaP256),
        annotations: Vec::new(),
        is_final: false,
        excess: None,
    }
}

fn pod() -> PodObject {
    PodObject {
        uid: "p1".to_owned(),
        node: "w1".to_owned(),
        service_account: "seller".to_owned(),
        has_ended: false,
    }
}

fn judged(
    request: &PodRequest,
    pod: Option<&PodObject>,
    change: fn(&mut KubeletPolicy),
) -> Result<SigningOrder, RuleFinding> {
    let mut rig = Rig::new();
    change(&mut rig.policy);
    let context = PodContext {
        pod,
        service_account: Some("s1"),
        node: rig.nodes.get(&request.node.name),
        bindings: &rig.bindings,
    };
    let order = order_for_pod(request, &rig.policy)?;
    verify_pod(request, context, &rig.policy).map(|()| order)
}

fn refused(request: &PodRequest, pod: Option<&PodObject>) -> Option<RequestReason> {
    judged(request, pod, |_| {})
        .err()
        .map(|finding| finding.reason)
}

#[test]
fn orders_certificate_of_service_account() {
    let order = judged(&request(), Some(&pod()), |_| {}).unwrap();
    let profile = order.profile;
    assert_eq!(order.certificate, KubeletCertificate::Pod);
    assert_eq!(order.node, "w1");
    assert_eq!(
        profile.subject.common_name,
        "system:serviceaccount:shop:seller"
    );
    assert_eq!(profile.subject.organizations, ["system:serviceaccounts"]);
    assert!(profile.sans.is_empty());
    assert_eq!(profile.usages, [ExtendedUsage::ClientAuth]);
}

#[test]
fn limits_requests_of_a_pod_within_an_hour() {
    let mut sent = PodIssuance::default();
    let mut admit = |pod: &str, number: u32, now: OffsetDateTime| {
        let request = PodRequest {
            uid: format!("{pod}-{number}"),
            pod: reference("web", pod),
            ..request()
        };
        sent.admit(&request, now).err()
    };
    let second = Duration::from_secs(1);
    for number in 0..30 {
        assert_eq!(admit("p1", number, CREATED + number * second), None);
    }
    let now = CREATED + 60 * second;
    let (finding, until) = admit("p1", 30, now).unwrap();
    assert_eq!(
        finding.to_string(),
        "LimitReached: pod web has requested as many certificates within an hour as are allowed (the request waits; see docs/kubelets.md)"
    );
    assert_eq!(until, CREATED + ISSUANCE_WINDOW);
    // One that was sent before continues, and other pods have a limit of their own.
    assert_eq!(admit("p1", 29, now), None);
    assert_eq!(admit("p2", 0, now), None);
    assert_eq!(admit("p1", 30, until), None);
    assert!(admit("p1", 31, until).is_some());
    // Nothing is kept of pods that have ended.
    let later = until + ISSUANCE_WINDOW;
    assert_eq!(admit("p3", 0, later), None);
    let kept = format!("{sent:?}");
    assert!(kept.contains("p3-0") && !kept.contains("p2-0"), "{kept}");
}

#[test]
fn denies_request_that_says_more_or_something_else() {
    type Change = fn(&mut PodRequest);
    let cases: [(Change, RequestReason); 11] = [
        (
            |r| r.excess = Some("spec.podName"),
            RequestReason::FieldOverLimit,
        ),
        (
            |r| r.annotations.push("example.com/a".to_owned()),
            RequestReason::InvalidUnverifiedUserAnnotations,
        ),
        (|r| r.request.clear(), RequestReason::RequestUnreadable),
        (
            |r| r.request = csr(Some("system:node:w1"), &[], KeyAlgorithm::EcdsaP256),
            RequestReason::SubjectNotAllowed,
        ),
        (
            |r| r.request = csr(None, &["kubernetes"], KeyAlgorithm::EcdsaP256),
            RequestReason::SubjectNotAllowed,
        ),
        (
            |r| r.node = reference("gone", "uid-gone"),
            RequestReason::NodeNotFound,
        ),
        (
            |r| r.node.uid = "uid-before".to_owned(),
            RequestReason::NodeNotFound,
        ),
        (
            |r| r.node = reference("w2", "uid-w2"),
            RequestReason::PodOfOtherNode,
        ),
        (|r| r.pod.uid = "p0".to_owned(), RequestReason::PodNotFound),
        (
            |r| r.service_account.name = "default".to_owned(),
            RequestReason::ServiceAccountDiffers,
        ),
        (
            |r| r.service_account.uid = "s0".to_owned(),
            RequestReason::ServiceAccountDiffers,
        ),
    ];
    for (change, reason) in cases {
        let mut request = request();
        change(&mut request);
        assert_eq!(refused(&request, Some(&pod())), Some(reason), "{request:?}");
    }
}

#[test]
fn denies_request_for_pod_that_ended() {
    let not_found = Some(RequestReason::PodNotFound);
    assert_eq!(refused(&request(), None), not_found);
    let ended = PodObject {
        has_ended: true,
        ..pod()
    };
    assert_eq!(refused(&request(), Some(&ended)), not_found);
}

#[test]
fn denies_key_that_the_policy_does_not_allow() {
    let finding = judged(&request(), Some(&pod()), |policy| {
        policy.keys = vec![KeyAlgorithm::EcdsaP384];
    })
    .unwrap_err();
    assert_eq!(finding.reason, RequestReason::UnsupportedKeyType);
    assert!(finding.message.contains("ECDSA-P384"), "{finding}");
}

#[test]
fn denies_pod_on_revoked_node() {
    let finding = judged(&request(), Some(&pod()), |policy| {
        policy.revoked = vec!["w1".to_owned()];
    })
    .unwrap_err();
    assert_eq!(finding.reason, RequestReason::NodeRevoked);
}

#[test]
fn lifetime_leaves_room_for_an_earlier_start() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for (longest, expected) in [
        (24 * HOUR, 24 * HOUR - minutes(5)),
        (2 * HOUR, minutes(115)),
        // The API server accepts no shorter one.
        (HOUR, HOUR),
        (91 * 24 * HOUR, 24 * HOUR - minutes(5)),
    ] {
        let request = PodRequest {
            longest,
            ..request()
        };
        let order = judged(&request, Some(&pod()), |_| {}).unwrap();
        assert_eq!(order.profile.lifetime, expected, "{longest:?}");
    }
}

#[test]
fn answers_only_what_the_api_server_accepts() {
    let order = judged(&request(), Some(&pod()), |_| {}).unwrap();
    let key = PrivateKey::generate(KeyAlgorithm::EcdsaP256).unwrap();
    let authority =
        CertificateAuthority::self_signed("kubernetes", key, CREATED, 1000 * HOUR).unwrap();
    let answer = |lifetime: Duration, age: Duration| {
        let profile = Profile {
            lifetime,
            ..order.profile.clone()
        };
        // The authority dates it back by five minutes.
        let begin = CREATED + Duration::from_secs(240);
        let leaf = authority
            .issue(order.csr.public_key(), &profile, begin)
            .unwrap();
        let chain = Chain::from_pem(leaf.to_pem().as_bytes()).unwrap();
        let now = CREATED + age;
        assert!(is_in_time(KubeletCertificate::Client, &chain, now));
        answer_pod(&request(), &chain, now)
    };
    let minute = Duration::from_secs(60);
    let given = answer(23 * HOUR, 3 * minute).unwrap();
    assert_eq!(given.not_before, CREATED - minute);
    assert_eq!(given.not_after, CREATED + 4 * minute + 23 * HOUR);
    let lifetime = 23 * HOUR + 5 * minute;
    assert_eq!(given.refresh, given.not_before + lifetime * 2 / 3);
    let shortest = answer(55 * minute, minute).unwrap();
    assert_eq!(shortest.refresh, shortest.not_before + 40 * minute);
    for (lifetime, age, expected) in [
        (23 * HOUR, 5 * minute, "begins 6m"),
        (54 * minute, minute, "valid for 59m"),
        (24 * HOUR, minute, "valid for 24h5m"),
    ] {
        let finding = answer(lifetime, age).unwrap_err();
        assert_eq!(finding.reason, RequestReason::CertificateNotAccepted);
        assert!(finding.message.contains(expected), "{finding}");
    }
}

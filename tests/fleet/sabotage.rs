//! Deliberate violations: each proves that the judge notices the breach of one invariant.

use std::fs;
use std::rc::Rc;
use std::time::Duration;

use nodepki::daemon::Wake;
use nodepki::kube::names::{Authority, CertName};
use tokio::time::sleep;

use crate::judge::{BUNDLES, NodeView};
use crate::node::{PERSONS_FILE, SimulatedNode, wait_until};
use crate::plan::{DAY, HOUR};
use crate::world::World;

const CERTIFICATE: &str = "etc/kubernetes/pki/apiserver.crt";
const KEY: &str = "etc/kubernetes/pki/apiserver.key";
const OTHER_CERTIFICATE: &str = "etc/kubernetes/pki/apiserver-kubelet-client.crt";
const OTHER_KEY: &str = "etc/kubernetes/pki/apiserver-kubelet-client.key";

/// A violation on the first node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sabotage {
    /// A key without its certificate.
    MixedPair,
    IncompleteFile,
    /// A pair for another name.
    WrongCertificate,
    /// A certificate that was replaced is put back.
    OldCertificate,
    /// The node does not trust the certificates of its peers.
    DistrustedPeer,
    /// The daemon does not run.
    NoRenewal,
    /// A daemon without a wait between two attempts.
    RequestStorm,
    /// Every node of the fleet renews in the same minute.
    CoincidingRequests,
    /// The keys of pending requests are removed.
    LostKey,
    LostFile,
}

impl Sabotage {
    /// All, each with words of the violation that the judge must report.
    pub(crate) const ALL: [(Sabotage, &str); 10] = [
        (Sabotage::MixedPair, "the certificate is not for the key"),
        (Sabotage::IncompleteFile, "absent or incomplete"),
        (Sabotage::WrongCertificate, "the certificate was issued for"),
        (
            Sabotage::OldCertificate,
            "was replaced by one that is valid",
        ),
        (Sabotage::DistrustedPeer, "of the peer is from"),
        (Sabotage::NoRenewal, "although it could be renewed"),
        (Sabotage::RequestStorm, "times within an hour"),
        (
            Sabotage::CoincidingRequests,
            "nodes sent requests in the same minute",
        ),
        (Sabotage::LostKey, "the key of a pending request is lost"),
        (Sabotage::LostFile, "the file of a person"),
    ];

    pub(crate) async fn commit(self, world: Rc<World>) {
        let node = Rc::clone(&world.nodes[0]);
        wait_until(DAY * 20).await;
        let copy = |from: &str, to: &str| {
            fs::copy(node.path(from), node.path(to)).unwrap();
        };
        match self {
            Sabotage::MixedPair => copy(OTHER_KEY, KEY),
            Sabotage::IncompleteFile => {
                let file = node.path("etc/kubernetes/admin.conf");
                let text = fs::read(&file).unwrap();
                fs::write(&file, &text[..text.len() / 2]).unwrap();
            }
            Sabotage::WrongCertificate => {
                copy(OTHER_CERTIFICATE, CERTIFICATE);
                copy(OTHER_KEY, KEY);
            }
            Sabotage::OldCertificate => put_back(&node).await,
            Sabotage::DistrustedPeer => distrust(&world, &node),
            Sabotage::NoRenewal => loop {
                node.is_on.set(false);
                node.wake(Wake::Stop);
                sleep(HOUR).await;
                world.examine(&node);
            },
            Sabotage::RequestStorm => {
                let service = world.service(&node);
                for _ in 0..200 {
                    service.record_submission(node.index, CertName::Apiserver);
                }
            }
            Sabotage::CoincidingRequests => {
                for node in &world.nodes {
                    let service = world.service(node);
                    service.record_submission(node.index, CertName::Apiserver);
                }
            }
            Sabotage::LostKey => lose_key(&world, &node).await,
            Sabotage::LostFile => fs::remove_file(node.path(PERSONS_FILE.0)).unwrap(),
        }
        world.examine(&node);
    }
}

/// Restores the former pair of the API server after a renewal.
async fn put_back(node: &SimulatedNode) {
    let read = |file: &str| fs::read(node.path(file)).unwrap_or_default();
    let former = (read(CERTIFICATE), read(KEY));
    let is_renewed = |view: &NodeView| {
        let seen = view.seen.get("apiserver");
        seen.is_some_and(|seen| !crate::judge::certificates(&former.0).contains(seen))
    };
    while !is_renewed(&node.view.borrow()) {
        sleep(HOUR).await;
    }
    fs::write(node.path(CERTIFICATE), &former.0).unwrap();
    fs::write(node.path(KEY), &former.1).unwrap();
}

/// Leaves only a CA in a bundle that no certificate is from yet.
fn distrust(world: &World, node: &SimulatedNode) {
    let service = world.service(node);
    let (authority, _) = service.plan.change.expect("a seed with a CA change");
    let mut bundles = BUNDLES.iter();
    let is_of = |bundle: &&(Authority, &str)| bundle.0 == authority;
    let (_, file) = bundles.find(is_of).unwrap();
    let ca = &service.authority((authority, 1)).certificate_pem;
    fs::write(node.path(file), ca).unwrap();
}

/// Removes the pending requests as soon as the signer has queued one.
async fn lose_key(world: &World, node: &SimulatedNode) {
    let service = world.service(node);
    let has_queued = || {
        let queue = service.queue.borrow();
        let mut queued = queue.values();
        queued.any(|queued| queued.node == node.index && !queued.may_be_discarded)
    };
    while !has_queued() {
        sleep(Duration::from_secs(600)).await;
    }
    fs::remove_dir_all(node.path("var/lib/nodepki/pending")).unwrap();
}

//! The clusters and their scenarios in the order in which they run.

mod authorities;
mod foundation;
mod identities;
mod kubelet_files;
mod kubelets;
mod machines;
mod management;
mod migration;
mod pods;
mod rotate;
mod rotation;
mod upgrade;
mod versions;

use super::authority::KeyKind;
use super::{Cluster, Scenario, Signer, Spec, When, site};

const P256: KeyKind = KeyKind("ECDSA-P256");
const P384: KeyKind = KeyKind("ECDSA-P384");
const RSA_2048: KeyKind = KeyKind("RSA-2048");
const RSA_4096: KeyKind = KeyKind("RSA-4096");

const fn foundation(
    name: &'static str,
    shows: &'static str,
    run: fn(&mut Cluster<'_>),
) -> Scenario {
    Scenario {
        name,
        when: When::Foundation,
        shows,
        run,
    }
}

/// Returns a scenario that runs with `all` only.
const fn long(name: &'static str, shows: &'static str, run: fn(&mut Cluster<'_>)) -> Scenario {
    Scenario {
        name,
        when: When::All,
        shows,
        run,
    }
}

/// The worker of every cluster whose signer is a directory.
const WORKER: Scenario = foundation(
    "worker",
    "a worker joins with nodepki, after a power cut",
    foundation::worker,
);

/// The further control-plane node of a small cluster.
const SECOND_NODE: Scenario =
    foundation("join", "a second control-plane node", foundation::join_one);

/// The renewal of a cluster without IPv6.
const RENEWAL: Scenario = long(
    "renewal",
    "everything on all nodes at once, with clients at each API server",
    rotation::under_load,
);

/// Defaults of a cluster.
const DEFAULTS: Spec = Spec {
    name: "",
    version: site::CURRENT,
    signer: Signer::Directory,
    authority_keys: [P256; 3],
    algorithm: P256,
    is_dual_stack: false,
    scenarios: &[],
};

#[rustfmt::skip]
pub(crate) const ALL: &[Spec] = &[
    Spec {
        name: "current",
        version: site::CURRENT,
        scenarios: &[
            foundation("first-node", "user-data-first.yaml and kubeadm init", foundation::first_node),
            foundation("join", "two further control-plane nodes by user-data-join.yaml; a power cut in the middle of each", foundation::join),
            WORKER,
            Scenario { when: When::Always, ..RENEWAL },
            long("kubelets", "a worker joins by kubeadm without nodepki; the control-plane nodes sign for its kubelet", kubelets::plain_worker),
            long("kubelet-rotation", "the kubelet of such a worker renews both certificates; the signer is away at first", kubelets::rotation_by_kubelet),
            long("kubelet-files", "kubelets of 1.34 to 1.37 whose certificate and CA file are replaced while they run", kubelet_files::replaced),
            long("management", "the units and the Deployment for a management cluster, with the container image of the release", management::host_and_deployment),
            long("versions", "kubeadm and kubelet of 1.31 to 1.37 accept the files of nodepki", versions::all),
            long("cut-in-lease", "a power cut on the node that holds the Lease; the others proceed", rotation::cut_in_lease),
            long("reset", "kubeadm reset, and the machine joins again", machines::reset),
            long("replaced", "a control-plane node is lost; a new machine takes its name", machines::replaced),
            long("expired", "all certificates on all machines have expired: one is rescued offline, the others by their boot", machines::expired),
            long("front-proxy-ca", "a new CA in three steps, with clients at each API server", authorities::front_proxy_ca),
            long("etcd-ca", "the same for etcd; clients while certificates are issued", authorities::etcd_ca),
            long("ca", "the same for the cluster, with workloads", authorities::ca),
            long("rotate-front-proxy-ca", "one command changes a CA on all nodes, with clients at each API server", rotate::front_proxy_ca),
            long("rotate-ca", "the same for the cluster, with workloads", rotate::ca),
            long("rotate-etcd-ca", "the same for etcd", rotate::etcd_ca),
            long("rotate-sa", "a new service-account key on all nodes, with clients at the load balancer", rotate::service_account),
            long("rotate-undo", "the same, and back to the old CA", rotate::undo),
            long("rotate-cuts", "the same, with a power cut of another node in each phase", rotate::with_power_cuts),
            long("rotate-join", "the same, while a control-plane machine is replaced", rotate::with_join),
            long("rotate-without-api", "the same, with no API server for ten minutes", rotate::without_api),
            long("restarts", "50 restarts of controllers and kubelet by renewals, none rolled back", rotation::restarts),
        ],
        ..DEFAULTS
    },
    Spec {
        name: "openbao",
        version: site::CURRENT,
        signer: Signer::OpenBao,
        authority_keys: [RSA_4096, P384, P256],
        algorithm: RSA_2048,
        is_dual_stack: true,
        scenarios: &[
            foundation("first-node", "signers/vault.yaml with an OpenBao; CAs of RSA-4096, P-384 and P-256; dual stack", foundation::first_node),
            foundation("join", "two further nodes; each meets a sealed OpenBao and a power cut after the only use of its wrapping token", foundation::join),
            foundation("worker", "a worker joins; its AppRole is for kubelet.conf only", foundation::worker),
            long("identities", "names and usages as kubeadm's; chains over mixed keys; API servers over IPv6, from pods too", identities::as_kubeadm),
            long("renewal", "everything on all nodes at once by OpenBao, with clients also over IPv6", rotation::under_load),
            long("pods", "a pod reaches the API server with a certificate that OpenBao signs, without a token", pods::certificate),
        ],
    },
    Spec {
        name: "former",
        version: site::FORMER,
        algorithm: P384,
        scenarios: &[
            foundation("first-node", "kubeadm init of the previous minor release", foundation::first_node),
            SECOND_NODE,
            WORKER,
            long("upgrade", "kubeadm upgrade apply and node to the current minor release, the runbook after it", upgrade::to_current),
            long("patch", "the same to the next patch release", upgrade::to_next_patch),
            RENEWAL,
        ],
        ..DEFAULTS
    },
    Spec {
        name: "oldest",
        version: site::OLDEST,
        scenarios: &[
            foundation("first-node", "kubeadm init of the oldest release", foundation::first_node),
            SECOND_NODE,
            WORKER,
            RENEWAL,
        ],
        ..DEFAULTS
    },
    Spec {
        name: "internal",
        version: site::CURRENT,
        authority_keys: [RSA_2048; 3],
        algorithm: RSA_2048,
        scenarios: &[
            foundation("to-external", "the CA keys leave a running cluster that kubeadm created", migration::to_external),
            long("to-internal", "the CA keys return, kubeadm signs, and they leave again", migration::to_internal_and_back),
        ],
        ..DEFAULTS
    },
];

//! The clusters and their scenarios, in the order in which they run.

mod authorities;
mod foundation;
mod identities;
mod machines;
mod migration;
mod rotation;
mod upgrade;
mod versions;

use super::authority::KeyKind;
use super::{Scenario, Signer, Spec, When, site};

const P256: KeyKind = KeyKind("ECDSA-P256");
const P384: KeyKind = KeyKind("ECDSA-P384");
const RSA_2048: KeyKind = KeyKind("RSA-2048");
const RSA_4096: KeyKind = KeyKind("RSA-4096");

#[rustfmt::skip]
pub(crate) const ALL: &[Spec] = &[
    Spec {
        name: "current",
        version: site::CURRENT,
        signer: Signer::Directory,
        authority_keys: [P256; 3],
        algorithm: P256,
        is_dual_stack: false,
        cluster_configuration: "",
        scenarios: &[
            Scenario { name: "first-node", when: When::Foundation, shows: "user-data-first.yaml and kubeadm init", run: foundation::first_node },
            Scenario { name: "join", when: When::Foundation, shows: "two more control-plane nodes, user-data-join.yaml; a power cut in the middle of each", run: foundation::join },
            Scenario { name: "worker", when: When::Foundation, shows: "a worker joins with nodepki, after a power cut", run: foundation::worker },
            Scenario { name: "renewal", when: When::Always, shows: "everything on all nodes at once, with clients at each API server", run: rotation::under_load },
            Scenario { name: "versions", when: When::All, shows: "kubeadm and kubelet of 1.31 to 1.36 accept what nodepki made", run: versions::all },
            Scenario { name: "cut-in-lease", when: When::All, shows: "a power cut on the node whose turn it is; the others go on", run: rotation::cut_in_lease },
            Scenario { name: "reset", when: When::All, shows: "kubeadm reset, and the machine joins again", run: machines::reset },
            Scenario { name: "replaced", when: When::All, shows: "a control-plane node is lost; a new machine takes its name", run: machines::replaced },
            Scenario { name: "expired", when: When::All, shows: "all certificates on all machines have expired: one is rescued offline, the others by their boot", run: machines::expired },
            Scenario { name: "front-proxy-ca", when: When::All, shows: "another CA, in three steps, with clients at each API server", run: authorities::front_proxy_ca },
            Scenario { name: "etcd-ca", when: When::All, shows: "the same for etcd; clients while certificates are issued", run: authorities::etcd_ca },
            Scenario { name: "ca", when: When::All, shows: "the same for the cluster, with workloads", run: authorities::ca },
            Scenario { name: "restarts", when: When::All, shows: "50 restarts of controllers and kubelet by renewals, none rolled back", run: rotation::restarts },
        ],
    },
    Spec {
        name: "openbao",
        version: site::CURRENT,
        signer: Signer::OpenBao,
        authority_keys: [RSA_4096, P384, P256],
        algorithm: RSA_2048,
        is_dual_stack: true,
        cluster_configuration: "",
        scenarios: &[
            Scenario { name: "first-node", when: When::Foundation, shows: "signers/vault.yaml with an OpenBao; CAs of RSA-4096, P-384 and P-256; dual stack", run: foundation::first_node },
            Scenario { name: "join", when: When::Foundation, shows: "two more; each meets a sealed OpenBao and a power cut after the wrapping token's only use", run: foundation::join },
            Scenario { name: "worker", when: When::Foundation, shows: "a worker joins; its AppRole is for kubelet.conf only", run: foundation::worker },
            Scenario { name: "identities", when: When::All, shows: "names and usages as kubeadm's; chains over mixed keys; API servers over IPv6, from pods too", run: identities::as_kubeadm },
            Scenario { name: "renewal", when: When::All, shows: "everything on all nodes at once by OpenBao, with clients also over IPv6", run: rotation::under_load },
        ],
    },
    Spec {
        name: "former",
        version: site::FORMER,
        signer: Signer::Directory,
        authority_keys: [P256; 3],
        algorithm: P256,
        is_dual_stack: false,
        cluster_configuration: "",
        scenarios: &[
            Scenario { name: "first-node", when: When::Foundation, shows: "kubeadm init of the minor release before", run: foundation::first_node },
            Scenario { name: "join", when: When::Foundation, shows: "a second control-plane node", run: foundation::join_one },
            Scenario { name: "worker", when: When::Foundation, shows: "a worker joins with nodepki, after a power cut", run: foundation::worker },
            Scenario { name: "upgrade", when: When::All, shows: "kubeadm upgrade apply and node to the current minor release, the runbook after it", run: upgrade::to_current },
            Scenario { name: "patch", when: When::All, shows: "the same to the next patch release", run: upgrade::to_next_patch },
            Scenario { name: "renewal", when: When::All, shows: "everything on all nodes at once, with clients at each API server", run: rotation::under_load },
        ],
    },
    Spec {
        name: "oldest",
        version: site::OLDEST,
        signer: Signer::Directory,
        authority_keys: [P256; 3],
        algorithm: P256,
        is_dual_stack: false,
        cluster_configuration: "",
        scenarios: &[
            Scenario { name: "first-node", when: When::Foundation, shows: "kubeadm init of the oldest release", run: foundation::first_node },
            Scenario { name: "join", when: When::Foundation, shows: "a second control-plane node", run: foundation::join_one },
            Scenario { name: "worker", when: When::Foundation, shows: "a worker joins with nodepki, after a power cut", run: foundation::worker },
            Scenario { name: "renewal", when: When::All, shows: "everything on all nodes at once, with clients at each API server", run: rotation::under_load },
        ],
    },
    Spec {
        name: "internal",
        version: site::CURRENT,
        signer: Signer::Directory,
        authority_keys: [RSA_2048; 3],
        algorithm: RSA_2048,
        is_dual_stack: false,
        cluster_configuration: "",
        scenarios: &[
            Scenario { name: "to-external", when: When::Foundation, shows: "kubeadm's own CAs leave a running cluster of kubeadm's", run: migration::to_external },
            Scenario { name: "to-internal", when: When::All, shows: "and come back, kubeadm signs, and leave again", run: migration::to_internal_and_back },
        ],
    },
];

//! The scenarios in the order of the table. To add one, add a folder below `scenarios/` and a line here.

use crate::bench::{Scenario, Tier};

#[path = "scenarios/bootstrap-cuts/scenario.rs"]
mod bootstrap_cuts;
#[path = "scenarios/etcd/scenario.rs"]
mod etcd;
#[path = "scenarios/first-boot/scenario.rs"]
mod first_boot;
#[path = "scenarios/full-disk/scenario.rs"]
mod full_disk;
#[path = "scenarios/lost-writes/scenario.rs"]
mod lost_writes;
#[path = "scenarios/package/scenario.rs"]
mod package;
#[path = "scenarios/pending/scenario.rs"]
mod pending;
#[path = "scenarios/power-cuts/scenario.rs"]
mod power_cuts;
#[path = "scenarios/quick-start/scenario.rs"]
mod quick_start;
#[path = "scenarios/read-only-etc/scenario.rs"]
mod read_only_etc;
#[path = "scenarios/refused/scenario.rs"]
mod refused;
#[path = "scenarios/renewal-cuts/scenario.rs"]
mod renewal_cuts;
#[path = "scenarios/rescue/scenario.rs"]
mod rescue;
#[path = "scenarios/signer-late/scenario.rs"]
mod signer_late;
#[path = "scenarios/wrong-clock/scenario.rs"]
mod wrong_clock;

#[rustfmt::skip]
pub(crate) const ALL: &[Scenario] = &[
    Scenario { name: "quick-start", tier: Tier::Container, shows: "the commands of the README, with a signer and without", run: quick_start::run },
    Scenario { name: "first-boot-container", tier: Tier::Container, shows: "as first-boot, with a second boot, on the host's kernel", run: first_boot::in_a_container },
    Scenario { name: "bootstrap-cuts", tier: Tier::Container, shows: "power cuts at random moments of a first boot", run: bootstrap_cuts::run },
    Scenario { name: "renewal-cuts", tier: Tier::Container, shows: "power cuts during renewals", run: renewal_cuts::run },
    Scenario { name: "signer-late", tier: Tier::Container, shows: "the signer is unreachable at boot and answers later", run: signer_late::run },
    Scenario { name: "pending", tier: Tier::Container, shows: "pending requests and their keys survive a power cut", run: pending::run },
    Scenario { name: "refused", tier: Tier::Container, shows: "a wrong pin: nothing is installed, cloud-init reports an error", run: refused::run },
    Scenario { name: "full-disk", tier: Tier::Container, shows: "no room for a renewal: valid certificates stay, then it succeeds", run: full_disk::run },
    Scenario { name: "read-only-etc", tier: Tier::Container, shows: "/etc read-only: exit status 77, and valid certificates stay", run: read_only_etc::run },
    Scenario { name: "package", tier: Tier::Container, shows: "upgraded, removed and purged on a running node: the PKI stays", run: package::run },
    Scenario { name: "lost-writes", tier: Tier::Disk, shows: "power cuts at each flush of a bootstrap and a renewal, with lost writes", run: lost_writes::run },
    Scenario { name: "first-boot", tier: Tier::Emulated, shows: "the PKI is complete before the kubelet starts; cloud-init, journal, timer", run: first_boot::emulated },
    Scenario { name: "power-cuts-bootstrap", tier: Tier::Emulated, shows: "a machine killed during its bootstrap boots complete", run: power_cuts::bootstrap },
    Scenario { name: "power-cuts-renewal", tier: Tier::Emulated, shows: "a machine killed during a renewal boots complete", run: power_cuts::renewal },
    Scenario { name: "wrong-clock", tier: Tier::Emulated, shows: "the clock is years behind at boot and set later", run: wrong_clock::run },
    Scenario { name: "etcd", tier: Tier::Emulated, shows: "a real etcd serves the certificate renewed by the daemon after ten months", run: etcd::run },
    Scenario { name: "rescue", tier: Tier::Emulated, shows: "off for two years: repaired from another machine by the runbook", run: rescue::run },
];

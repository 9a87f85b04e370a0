//! The scenarios, in the order of the table. To add one: a folder below `scenarios/`, a line here.

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
    Scenario { name: "quick-start", tier: Tier::Container, shows: "the README's commands as they stand there, with a signer and without", run: quick_start::run },
    Scenario { name: "first-boot-container", tier: Tier::Container, shows: "first-boot below, twice, without a kernel of its own", run: first_boot::in_a_container },
    Scenario { name: "bootstrap-cuts", tier: Tier::Container, shows: "the power is cut at any moment of a first boot", run: bootstrap_cuts::run },
    Scenario { name: "renewal-cuts", tier: Tier::Container, shows: "the power is cut in the middle of renewals", run: renewal_cuts::run },
    Scenario { name: "signer-late", tier: Tier::Container, shows: "nobody signs at boot, and later somebody does", run: signer_late::run },
    Scenario { name: "pending", tier: Tier::Container, shows: "requests outlive a power cut, with their keys", run: pending::run },
    Scenario { name: "refused", tier: Tier::Container, shows: "a wrong pin: nothing installed, cloud-init says error", run: refused::run },
    Scenario { name: "full-disk", tier: Tier::Container, shows: "no room for a renewal: what serves stays, then it succeeds", run: full_disk::run },
    Scenario { name: "read-only-etc", tier: Tier::Container, shows: "/etc read-only: 77, and what serves stays", run: read_only_etc::run },
    Scenario { name: "package", tier: Tier::Container, shows: "upgraded, removed, purged on a node that runs: the PKI stays", run: package::run },
    Scenario { name: "lost-writes", tier: Tier::Disk, shows: "a cut at each flush of a bootstrap and a renewal, half of the rest lost", run: lost_writes::run },
    Scenario { name: "first-boot", tier: Tier::Emulated, shows: "the PKI is whole before the kubelet starts; cloud-init, journal, timer", run: first_boot::emulated },
    Scenario { name: "power-cuts-bootstrap", tier: Tier::Emulated, shows: "killed in its bootstrap, a machine comes up whole", run: power_cuts::bootstrap },
    Scenario { name: "power-cuts-renewal", tier: Tier::Emulated, shows: "killed in a renewal, a machine comes up whole", run: power_cuts::renewal },
    Scenario { name: "wrong-clock", tier: Tier::Emulated, shows: "years behind at boot, corrected later", run: wrong_clock::run },
    Scenario { name: "etcd", tier: Tier::Emulated, shows: "a real etcd serves; ten months later the daemon has renewed under it", run: etcd::run },
    Scenario { name: "rescue", tier: Tier::Emulated, shows: "two years off: mended from another machine by the runbook", run: rescue::run },
];

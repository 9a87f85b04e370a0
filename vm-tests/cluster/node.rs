//! A machine of the cluster: systemd, containerd and the kubelet in a container of systemd-nspawn.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use super::network::{address, address_ipv6, connect, octet, pods_ipv6};
use super::site::Site;
use crate::bench::Tally;
use crate::container::{Cgroups, Container};
use crate::machine::Machine;
use crate::seed::Seed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    ControlPlane,
    Worker,
}

pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) machine: Container,
}

impl Node {
    /// Creates a machine without starting it.
    pub(crate) fn new(
        site: &Site,
        tally: Arc<Tally>,
        (name, role): (&'static str, Role),
        (version, is_dual_stack): (&str, bool),
        user_data: String,
    ) -> Self {
        let mut meta_data = format!(
            "instance-id: i-{name}\nlocal-hostname: {name}\nlocal_ipv4: {}\n",
            address(name)
        );
        if is_dual_stack {
            meta_data.push_str(&format!("local_ipv6: {}\n", address_ipv6(name)));
        }
        let seed = Seed::of_instance(user_data, meta_data);
        let mut machine = Container::new(name, tally, site.lower(version), &seed)
            .cgroups(Cgroups::All)
            .environment("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "yes")
            .environment("SYSTEMD_SECCOMP", "0")
            .environment("SYSTEMD_NSPAWN_TMPFS_TMP", "0")
            .option(format!("--network-namespace-path=/run/netns/{name}"))
            .option(format!("--hostname={name}"))
            .option("--capability=all".to_owned())
            .option("--resolv-conf=off".to_owned())
            .option("--timezone=off".to_owned())
            .option("--bind=/dev/kmsg".to_owned())
            .option(format!("--bind-ro={}:/images", site.images().display()));
        // These directories cannot be on an overlay: the containers in them have overlays themselves.
        for (folder, path) in [
            ("containerd", "/var/lib/containerd"),
            ("kubelet", "/var/lib/kubelet"),
            ("etcd", "/var/lib/etcd"),
            ("pods", "/var/log/pods"),
            ("requests", "/srv/nodepki"),
            ("usb", "/mnt/usb"),
        ] {
            let dir = machine.dir().join(folder);
            fs::create_dir(&dir).unwrap();
            machine = machine.option(format!("--bind={}:{path}", dir.display()));
        }
        machine.put("/etc/hostname", &format!("{name}\n"));
        let mut ranges = format!(r#"[{{"subnet": "10.244.{}.0/24"}}]"#, octet(name));
        let mut routes = r#"{"dst": "0.0.0.0/0"}"#.to_owned();
        if is_dual_stack {
            ranges.push_str(&format!(r#", [{{"subnet": "{}"}}]"#, pods_ipv6(name)));
            routes.push_str(r#", {"dst": "::/0"}"#);
        }
        machine.put(
            "/etc/cni/net.d/10-cluster.conflist",
            &format!(
                r#"{{"cniVersion": "1.0.0", "name": "cluster", "plugins": [
 {{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {{"type": "host-local", "ranges": [{ranges}], "routes": [{routes}]}}}},
 {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"#
            ),
        );
        Node {
            name,
            role,
            machine,
        }
    }

    /// Returns the host's path of the folder of its directory signer.
    pub(crate) fn requests(&self) -> PathBuf {
        self.machine.dir().join("requests")
    }

    /// Powers on, with no network state of the previous boot.
    pub(crate) fn boot(&mut self) {
        connect(self.name);
        self.machine.boot();
    }

    pub(crate) fn done(&mut self, command: &str) -> String {
        self.machine.done(command)
    }

    /// Waits until cloud-init has completed the user data.
    pub(crate) fn wait_until_joined(&mut self) {
        let over = "test -e /run/cloud-init/result.json";
        self.machine.until(over);
        let errors = self
            .machine
            .run("! tr -d ' \\n' </run/cloud-init/result.json | grep '\"errors\":\\[\"'");
        assert!(
            errors.status == 0,
            "{}: cloud-init: {}",
            self.name,
            errors.said
        );
        self.machine.until(
            "if grep -q '\"errors\": \\[\"' /run/cloud-init/result.json 2>/dev/null; then cat /var/log/cloud-init-output.log; exit 1; fi
             test -e /etc/kubernetes/kubeadm.done && systemctl is-active -q nodepki-renew.timer");
    }
}

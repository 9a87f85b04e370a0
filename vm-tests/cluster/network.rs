//! The network of the cluster: a bridge, a network namespace for each node, and the load balancer in front of the API servers.
//!
//! Everything is in the namespaces of this program and ends with it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::system::run;

/// The address of this program and its child processes, as seen from the nodes.
pub(crate) const HOST: &str = "10.77.0.1";
/// Address and name of the load balancer.
pub(crate) const ENDPOINT: (&str, &str) = ("10.77.0.5", "api.cluster.test");
/// Address and name of the OpenBao server.
pub(crate) const OPENBAO: (&str, &str) = ("10.77.0.6", "vault.cluster.test");
/// Its IPv6 address, if the kernel supports IPv6.
pub(crate) const OPENBAO_IPV6: &str = "fd77::6";
/// `podSubnet` and `serviceSubnet` of a dual-stack cluster.
pub(crate) const POD_SUBNETS: &str = "10.244.0.0/16,fd44::/48";
pub(crate) const SERVICE_SUBNETS: &str = "10.96.0.0/16,fd96::/112";
/// The first addresses of `SERVICE_SUBNETS`.
pub(crate) const FIRST_SERVICES: [&str; 2] = ["10.96.0.1", "fd96::1"];
/// The possible nodes: names, and last octets of their addresses, which are also the third octets of their pods'.
pub(crate) const NODES: [(&str, u8); 6] = [
    ("cp1", 11),
    ("cp2", 12),
    ("cp3", 13),
    ("cp4", 14),
    ("w1", 21),
    ("w2", 22),
];

pub(crate) fn address(name: &str) -> String {
    format!("10.77.0.{}", octet(name))
}

/// Returns a node's IPv6 address, if the kernel supports IPv6.
pub(crate) fn address_ipv6(name: &str) -> String {
    format!("fd77::{}", octet(name))
}

/// Returns the IPv6 subnet of a node's pods.
pub(crate) fn pods_ipv6(name: &str) -> String {
    format!("fd44:0:0:{}::/64", octet(name))
}

pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/net/if_inet6").exists()
}

pub(crate) fn octet(name: &str) -> u8 {
    NODES.iter().find(|node| node.0 == name).unwrap().1
}

/// The bridge.
pub(crate) fn make() {
    fs::create_dir_all("/run/netns").unwrap();
    shell("mount -t tmpfs netns /run/netns");
    shell("ip link set lo up; ip link add br0 type bridge; ip link set br0 up");
    shell(&format!(
        "ip addr add {HOST}/24 dev br0; ip addr add {}/24 dev br0; ip addr add {}/24 dev br0",
        ENDPOINT.0, OPENBAO.0
    ));
    if has_ipv6() {
        shell(&format!(
            "ip addr add fd77::1/64 dev br0 nodad; ip addr add {OPENBAO_IPV6}/64 dev br0 nodad"
        ));
    }
}

/// Creates a network namespace for a node, without any state of an earlier machine of that name.
pub(crate) fn connect(name: &str) {
    let octet = octet(name);
    shell(&format!(
        "if [ -e /run/netns/{name} ]; then ip link del v-{name}; ip netns del {name}; fi
         ip netns add {name}; ip -n {name} link set lo up
         ip link add v-{name} type veth peer name eth0 netns {name}
         ip link set v-{name} master br0 up
         ip -n {name} addr add 10.77.0.{octet}/24 dev eth0
         ip -n {name} link set eth0 up
         ip -n {name} route add default via {HOST}
         ip netns exec {name} sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'"
    ));
    for (other, theirs) in NODES {
        if other != name {
            shell(&format!(
                "ip -n {name} route add 10.244.{theirs}.0/24 via 10.77.0.{theirs}"
            ));
        }
    }
    if has_ipv6() {
        connect_ipv6(name);
    }
}

fn connect_ipv6(name: &str) {
    // kubeadm's preflight checks read `default`, routing uses `all`.
    shell(&format!(
        "ip -n {name} addr add {}/64 dev eth0 nodad
         ip -n {name} route add default via fd77::1
         ip netns exec {name} sh -c 'for one in all default; do echo 1 >/proc/sys/net/ipv6/conf/$one/forwarding; done'",
        address_ipv6(name)
    ));
    for (other, _) in NODES.iter().filter(|other| other.0 != name) {
        shell(&format!(
            "ip -n {name} route add {} via {}",
            pods_ipv6(other),
            address_ipv6(other)
        ));
    }
}

fn shell(commands: &str) {
    run(Command::new("bash").args(["-euo", "pipefail", "-c", commands]));
}

/// The HAProxy process, killed when dropped.
pub(crate) struct LoadBalancer(Child);

impl LoadBalancer {
    /// Starts HAProxy from the root of a node's system; it forwards to the API servers that are ready.
    pub(crate) fn start(root: &Path) -> Self {
        let mut text = format!(
            "defaults\n  mode tcp\n  retries 1\n  option redispatch\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n\
             frontend api\n  bind {}:6443\n  default_backend servers\n\
             backend servers\n  balance roundrobin\n  option httpchk GET /readyz\n\
             \x20 default-server check check-ssl verify none inter 1s fall 2 rise 1 on-marked-down shutdown-sessions\n",
            ENDPOINT.0
        );
        for (name, octet) in NODES.iter().filter(|node| node.0.starts_with("cp")) {
            text.push_str(&format!("  server {name} 10.77.0.{octet}:6443\n"));
        }
        fs::write(root.join("etc/haproxy/tests.cfg"), text).unwrap();
        let mut command = Command::new("chroot");
        command
            .arg(root)
            .args(["/usr/sbin/haproxy", "-db", "-f", "/etc/haproxy/tests.cfg"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        LoadBalancer(command.spawn().unwrap())
    }
}

impl Drop for LoadBalancer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

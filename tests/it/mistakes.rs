//! Typical mistakes: the input, the message, the fix followed literally, and the result.
//!
//! A row of [`MISTAKES`] is one mistake. `broken` replaces a text of a correct input; the command must then say `message`
//! and end with `code`. `fix` follows the message literally, and the same command must then end with 0.

use std::fs;

use crate::node::{INIT, Node, Ran};
use crate::signing::HEAD;

/// The input that contains the mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Settings,
    Kubeadm,
}

struct Mistake {
    name: &'static str,
    input: Input,
    /// Text of the correct input, and the mistake in its place.
    broken: (&'static str, &'static str),
    command: &'static [&'static str],
    code: i32,
    message: &'static str,
    /// Text of the broken input, and what the message says to write instead.
    fix: (&'static str, &'static str),
}

const CHECK: &[&str] = &["config", "check"];
const STRICT: &[&str] = &["config", "check", "--strict"];
const SETTINGS: &str = "\
authorities:
  ca: {signer: corp}
  etcd-ca: {signer: corp}
  front-proxy-ca: {signer: corp}
signers:
  corp:
    vault:
      address: https://vault.test:8200
      mount: pki/{authority}
      auth: {tokenFile: TOKEN}
      tls: {caFile: CA}
rotation: {renewAt: 66%}
";

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "name of a signer misspelt",
        input: Input::Settings,
        broken: ("  ca: {signer: corp}", "  ca: {signer: crop}"),
        command: CHECK,
        code: 78,
        message: "did you mean corp?",
        fix: ("signer: crop", "signer: corp"),
    },
    Mistake {
        name: "field of the settings misspelt",
        input: Input::Settings,
        broken: ("rotation:", "rotaton:"),
        command: CHECK,
        code: 78,
        message: "did you mean rotation?",
        fix: ("rotaton:", "rotation:"),
    },
    Mistake {
        name: "kind of a signer misspelt",
        input: Input::Settings,
        broken: ("    vault:", "    valt:"),
        command: CHECK,
        code: 78,
        message: "did you mean vault?",
        fix: ("    valt:", "    vault:"),
    },
    Mistake {
        name: "one mount for three authorities",
        input: Input::Settings,
        broken: ("pki/{authority}", "pki"),
        command: STRICT,
        code: 78,
        message: "warning: signers.corp.vault.mount: pki signs for ca, front-proxy-ca, etcd-ca with one CA",
        fix: ("mount: pki", "mount: pki/{authority}"),
    },
    Mistake {
        name: "credential file absent",
        input: Input::Settings,
        broken: ("TOKEN", "TOKEN-of-another-node"),
        command: STRICT,
        code: 78,
        message: "TOKEN-of-another-node does not exist (put the credential there, mode 0600)",
        fix: ("TOKEN-of-another-node", "TOKEN"),
    },
    Mistake {
        name: "CA file of the server absent",
        input: Input::Settings,
        broken: ("caFile: CA", "caFile: CA-absent"),
        command: STRICT,
        code: 78,
        message: "CA-absent does not exist (put the certificate of the server's CA there)",
        fix: ("caFile: CA-absent", "caFile: CA"),
    },
    Mistake {
        name: "renewAt below what takes effect",
        input: Input::Settings,
        broken: ("renewAt: 66%", "renewAt: 30%"),
        command: STRICT,
        code: 78,
        message: "rotation.renewAt: 30% has no effect: no certificate is renewed before half of its lifetime (use 50% or more",
        fix: ("renewAt: 30%", "renewAt: 50%"),
    },
    Mistake {
        name: "renewAt longer than half of the lifetime",
        input: Input::Settings,
        broken: ("renewAt: 66%", "renewAt: 8000h"),
        command: STRICT,
        code: 78,
        message: "or at most 4380h",
        fix: ("renewAt: 8000h", "renewAt: 4380h"),
    },
    Mistake {
        name: "pin of another CA",
        input: Input::Settings,
        broken: (
            "  ca: {signer: corp}",
            "  ca: {signer: corp, trust: {sha256: [\"0000000000000000000000000000000000000000000000000000000000000000\"]}}",
        ),
        command: CHECK,
        code: 65,
        message: "authorities.ca.trust.sha256 does not match ",
        // The pin in the message.
        fix: (
            "0000000000000000000000000000000000000000000000000000000000000000",
            "PIN",
        ),
    },
    Mistake {
        name: "name beside nodeRegistration",
        input: Input::Kubeadm,
        broken: (
            "nodeRegistration: {name: cp1}",
            "nodeRegistration: {}\nname: cp1",
        ),
        command: CHECK,
        code: 78,
        message: "nodeRegistration.name",
        fix: (
            "nodeRegistration: {}\nname: cp1",
            "nodeRegistration: {name: cp1}",
        ),
    },
    Mistake {
        name: "separator of documents missing",
        input: Input::Kubeadm,
        broken: ("---\n", ""),
        command: CHECK,
        code: 78,
        message: "---",
        fix: (
            "nodeRegistration: {name: cp1}\n",
            "nodeRegistration: {name: cp1}\n---\n",
        ),
    },
    Mistake {
        name: "field of kubeadm misspelt",
        input: Input::Kubeadm,
        broken: ("controlPlaneEndpoint:", "controlPlaneEndpint:"),
        command: CHECK,
        code: 78,
        message: "did you mean controlPlaneEndpoint?",
        fix: ("controlPlaneEndpint:", "controlPlaneEndpoint:"),
    },
    Mistake {
        name: "address and services of different families",
        input: Input::Kubeadm,
        broken: (
            "advertiseAddress: 192.0.2.11",
            "advertiseAddress: '2001:db8::11'",
        ),
        command: STRICT,
        code: 78,
        message: "have different IP families: kube-apiserver does not start",
        fix: ("'2001:db8::11'", "192.0.2.11"),
    },
    Mistake {
        name: "pods and services of different families",
        input: Input::Kubeadm,
        broken: (
            "kubernetesVersion:",
            "networking: {serviceSubnet: 10.96.0.0/16, podSubnet: 'fd00:10:244::/56'}\nkubernetesVersion:",
        ),
        command: STRICT,
        code: 78,
        message: "is IPv6, but networking.serviceSubnet is IPv4",
        fix: ("'fd00:10:244::/56'", "10.244.0.0/16"),
    },
    Mistake {
        name: "network of the pods without prefix",
        input: Input::Kubeadm,
        broken: (
            "kubernetesVersion:",
            "networking: {podSubnet: 10.244.0.0}\nkubernetesVersion:",
        ),
        command: CHECK,
        code: 78,
        message: "is not a network in CIDR notation (write ADDRESS/PREFIX",
        fix: ("10.244.0.0}", "10.244.0.0/16}"),
    },
];

/// Writes the inputs and runs the command.
fn run(node: &Node, command: &[&str], settings: &str, kubeadm: &str) -> Ran {
    node.configure(kubeadm);
    let token = node.outside("token").display().to_string();
    let ca = node.ca().join("ca.crt").display().to_string();
    let settings = settings
        .replace("TOKEN", &token)
        .replace("caFile: CA", &format!("caFile: {ca}"));
    node.write_settings(&format!("{HEAD}{settings}"));
    Ran::of(&mut node.configured(command))
}

/// Replaces the first occurrence, which must exist.
#[track_caller]
fn replaced(text: &str, (from, to): (&str, &str), name: &str) -> String {
    assert!(text.contains(from), "{name}: {from:?} is not in:\n{text}");
    text.replacen(from, to, 1)
}

#[test]
fn message_and_fix_of_every_mistake() {
    let node = Node::new();
    crate::signing::write_secret(node.outside("token"), "a token\n");
    run(&node, CHECK, SETTINGS, INIT)
        .done()
        .says("the configuration is valid");
    for mistake in MISTAKES {
        let Mistake { name, input, .. } = *mistake;
        let texts = |edits: &[(&str, &str)]| {
            let mut both = (SETTINGS.to_owned(), INIT.to_owned());
            for edit in edits {
                let text = match input {
                    Input::Settings => &mut both.0,
                    Input::Kubeadm => &mut both.1,
                };
                *text = replaced(text, *edit, name);
            }
            both
        };
        let (settings, kubeadm) = texts(&[mistake.broken]);
        let ran = run(&node, mistake.command, &settings, &kubeadm);
        assert_eq!(ran.code, Some(mistake.code), "{name}:\n{}", ran.said());
        let token = node.outside("token").display().to_string();
        let ca = node.ca().join("ca.crt").display().to_string();
        let message = mistake
            .message
            .replace("TOKEN", &token)
            .replace("CA-absent", &format!("{ca}-absent"));
        assert!(
            ran.said().contains(&message),
            "{name}: {message:?} is not in:\n{}",
            ran.said()
        );
        // A pin is copied from the message.
        let said = ran.said();
        let pin = said
            .split_once("public key sha256:")
            .map(|(_, rest)| rest.split_at(64).0);
        let fix = (
            mistake.fix.0,
            if mistake.fix.1 == "PIN" {
                pin.unwrap()
            } else {
                mistake.fix.1
            },
        );
        let (settings, kubeadm) = texts(&[mistake.broken, fix]);
        let ran = run(&node, mistake.command, &settings, &kubeadm);
        assert_eq!(ran.code, Some(0), "{name}, corrected:\n{}", ran.said());
    }
}

#[test]
fn counts_warnings_and_accepts_them_without_strict() {
    let node = Node::new();
    crate::signing::write_secret(node.outside("token"), "a token\n");
    let settings = replaced(SETTINGS, ("pki/{authority}", "pki"), "mount");
    let settings = replaced(&settings, ("66%", "30%"), "renewAt");
    run(&node, CHECK, &settings, INIT)
        .done()
        .says("nodepki: warning: rotation.renewAt")
        .says("the configuration is usable, 2 warnings: node cp1");
    fs::remove_file(node.path("/etc/kubernetes/pki/ca.crt")).unwrap();
    run(&node, CHECK, SETTINGS, INIT)
        .done()
        .says("usable, 1 warning: ")
        .says("ca.crt does not exist, and no pin confirms the CA of the signer");
}

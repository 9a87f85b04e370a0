//! A static pod: the addresses of its component, and the annotation in its manifest that makes the kubelet restart it.
//!
//! Pure. The edit keeps every other byte, and is verified against the intended document before it is returned. If any
//! field of a manifest changes, the kubelet treats it as a different pod: it stops the old one and starts the new one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::kube::components::Component;
use crate::kube::manifest::StaticPod;
use crate::yaml;

/// Annotation whose change restarts the pod.
pub(super) const ANNOTATION: &str = "nodepki.io/restarted-at";

/// A static pod whose manifest was read.
pub(super) struct Pod {
    text: String,
    document: Value,
    manifest: StaticPod,
}

impl Pod {
    /// Parses a manifest.
    pub(super) fn read(text: &str) -> Result<Pod, String> {
        Ok(Pod {
            text: text.to_owned(),
            document: parse(text)?,
            manifest: StaticPod::parse(PathBuf::new(), text.as_bytes())?,
        })
    }

    /// Returns the value of a flag of the component.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        self.manifest.flag(name)
    }

    /// Returns the addresses at which the component serves TLS; none if the port is 0.
    pub(super) fn addresses(&self, component: Component) -> Vec<SocketAddr> {
        match component {
            Component::KubeApiserver => {
                self.own_address(&["advertise-address", "bind-address"], 6443)
            }
            Component::KubeControllerManager => self.own_address(&["bind-address"], 10257),
            Component::KubeScheduler => self.own_address(&["bind-address"], 10259),
            Component::Etcd => self.urls("listen-client-urls"),
            Component::Kubelet => Vec::new(),
        }
    }

    fn own_address(&self, flags: &[&str], port: u16) -> Vec<SocketAddr> {
        let address = flags.iter().find_map(|flag| self.flag(flag)?.parse().ok());
        let port = self.flag("secure-port").map_or(Ok(port), str::parse);
        match (address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), port) {
            (_, Ok(0) | Err(_)) => Vec::new(),
            (address, Ok(port)) => vec![SocketAddr::new(reachable(address), port)],
        }
    }

    /// Returns the `https` addresses of one of etcd's URL lists.
    pub(super) fn urls(&self, flag: &str) -> Vec<SocketAddr> {
        let urls = self.flag(flag).unwrap_or_default().split(',');
        urls.filter_map(|url| url.trim().strip_prefix("https://")?.parse().ok())
            .map(|address: SocketAddr| SocketAddr::new(reachable(address.ip()), address.port()))
            .collect()
    }

    /// Returns the manifest with the annotation set to `value`.
    pub(super) fn annotated(&self, value: &str) -> Result<String, String> {
        let text = annotate(&self.text, value)?;
        let mut wanted = self.document.clone();
        set(&mut wanted, value).ok_or("its metadata is not a mapping")?;
        match parse(&text) {
            Ok(found) if found == wanted => Ok(text),
            _ => Err(format!(
                "its metadata is written in a form in which {ANNOTATION} cannot be set without another change"
            )),
        }
    }
}

fn parse(text: &str) -> Result<Value, String> {
    let documents = yaml::parse("manifest", text).map_err(|faults| faults.to_string())?;
    match documents.as_slice() {
        [document] => Ok(yaml::to_json(document)),
        documents => Err(format!(
            "it contains {} documents instead of one",
            documents.len()
        )),
    }
}

fn set(document: &mut Value, value: &str) -> Option<()> {
    let metadata = document.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata
        .entry("annotations")
        .and_modify(|found| {
            if found.is_null() {
                *found = Value::Object(Map::new());
            }
        })
        .or_insert_with(|| Value::Object(Map::new()));
    annotations
        .as_object_mut()?
        .insert(ANNOTATION.to_owned(), value.into());
    Some(())
}

/// Replaces a wildcard address by the loopback address.
fn reachable(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

/// Edits a manifest in block style, as kubeadm and administrators write it. The caller verifies the result.
fn annotate(text: &str, value: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let end = match lines.iter().any(|line| line.ends_with("\r\n")) {
        true => "\r\n",
        false => "\n",
    };
    let top = |line: &&str| {
        let behind = line.strip_prefix("metadata:").map(str::trim);
        behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('#'))
    };
    let metadata = lines
        .iter()
        .position(top)
        .ok_or("it has no line with `metadata:` alone")?;
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let has_content = |line: &&&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    };
    let below = |at: usize, least: usize| {
        let rest = lines.iter().skip(at + 1);
        rest.clone()
            .position(|line| has_content(&line) && indent(line) < least)
            .map_or(lines.len(), |count| at + 1 + count)
    };
    let inside = metadata + 1..below(metadata, 1);
    let child = lines
        .get(inside.clone())
        .unwrap_or_default()
        .iter()
        .find(has_content)
        .map_or(2, |line| indent(line));
    let entry = format!("{ANNOTATION}: \"{value}\"");
    let is_annotations =
        |line: &str| indent(line) == child && line.trim_start().starts_with("annotations:");
    let mut edited: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
    let found = inside
        .clone()
        .find(|at| lines.get(*at).is_some_and(|line| is_annotations(line)));
    let Some(at) = found else {
        let pad = " ".repeat(child);
        let new = format!("{pad}annotations:{end}{pad}  {entry}{end}");
        edited.insert(metadata + 1, new);
        return Ok(edited.concat());
    };
    let line = lines.get(at).copied().unwrap_or_default();
    let behind = line.trim().trim_start_matches("annotations:").trim();
    let set_before = behind.split_once(&format!("{ANNOTATION}: \""));
    if let Some((_, before)) = set_before
        && let Some((before, _)) = before.split_once('"')
        && let Some(slot) = edited.get_mut(at)
    {
        *slot = line.replacen(&format!("{ANNOTATION}: \"{before}\""), &entry, 1);
        return Ok(edited.concat());
    }
    if let Some(flow) = behind.strip_prefix('{') {
        let (head, _) = line.split_once('{').unwrap_or((line, ""));
        let rest = flow.trim_start();
        let comma = if rest.starts_with('}') { "" } else { ", " };
        let line_end = line.strip_prefix(line.trim_end()).unwrap_or(end);
        if let Some(slot) = edited.get_mut(at) {
            *slot = format!("{head}{{{entry}{comma}{rest}{line_end}");
        }
        return Ok(edited.concat());
    }
    let entries = at + 1..below(at, child + 1);
    let deeper = lines
        .get(entries.clone())
        .unwrap_or_default()
        .iter()
        .find(has_content)
        .map_or(child + 2, |line| indent(line));
    let pad = " ".repeat(deeper);
    let new = format!("{pad}{entry}{end}");
    let known = entries.clone().find(|at| {
        lines.get(*at).is_some_and(|line| {
            let key = line.split(':').next().unwrap_or_default().trim();
            indent(line) == deeper && key.trim_matches(['"', '\'']) == ANNOTATION
        })
    });
    match known.and_then(|known| edited.get_mut(known)) {
        Some(slot) => *slot = new,
        None => edited.insert(at + 1, new),
    }
    Ok(edited.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = "    nodepki.io/restarted-at: \"now\"\n";

    fn edited(text: &str) -> Result<String, String> {
        let spec = "spec:\n  containers:\n  - command: [etcd]\n";
        let manifest = Pod::read(&format!("{text}{spec}"))?;
        let annotated = manifest.annotated("now")?;
        Ok(annotated.strip_suffix(spec).unwrap().to_owned())
    }

    #[test]
    fn sets_annotation_and_keeps_every_other_byte() {
        let cases = [
            (
                "kind: Pod\nmetadata:\n  labels:\n    a: b\n  name: x\n",
                format!("kind: Pod\nmetadata:\n  annotations:\n{NEW}  labels:\n    a: b\n  name: x\n"),
            ),
            (
                "metadata:\n  annotations:\n    a: b # why\n  name: x\n",
                format!("metadata:\n  annotations:\n{NEW}    a: b # why\n  name: x\n"),
            ),
            (
                "metadata:\n  name: x\n  annotations:\n    a: b\n    nodepki.io/restarted-at: \"before\"\n",
                format!("metadata:\n  name: x\n  annotations:\n    a: b\n{NEW}"),
            ),
            (
                "metadata:\n# it begins\n\n    name: x\n",
                "metadata:\n    annotations:\n      nodepki.io/restarted-at: \"now\"\n# it begins\n\n    name: x\n".to_owned(),
            ),
            (
                "metadata:\n  annotations: {}\n  name: x\n",
                "metadata:\n  annotations: {nodepki.io/restarted-at: \"now\"}\n  name: x\n".to_owned(),
            ),
            (
                "metadata:\n  annotations: {a: b}\n",
                "metadata:\n  annotations: {nodepki.io/restarted-at: \"now\", a: b}\n".to_owned(),
            ),
            (
                "metadata:\n  annotations:\n  name: x\n",
                format!("metadata:\n  annotations:\n{NEW}  name: x\n"),
            ),
            (
                "metadata:\r\n  name: x\r\n",
                "metadata:\r\n  annotations:\r\n    nodepki.io/restarted-at: \"now\"\r\n  name: x\r\n".to_owned(),
            ),
        ];
        for (before, after) in cases {
            assert_eq!(edited(before).as_ref(), Ok(&after), "{before}");
        }
    }

    #[test]
    fn replaces_annotation_on_second_edit() {
        for text in [
            "metadata:\n  name: x\n",
            "metadata: # of the pod\n  name: x\n",
            "metadata:\n  annotations: {} # none\n",
            "metadata:\n  annotations: {a: b}\n",
            "metadata:\n  annotations:\n    \"nodepki.io/restarted-at\": first\n",
        ] {
            let text = format!("{text}spec:\n  containers:\n  - command: [etcd]\n");
            let once = Pod::read(&text).unwrap().annotated("once").unwrap();
            let twice = Pod::read(&once).unwrap().annotated("twice").unwrap();
            assert_eq!(twice, once.replace("once", "twice"));
        }
    }

    #[test]
    fn rejects_form_that_cannot_be_edited() {
        for text in [
            "metadata: {name: x}\n",
            "{\"metadata\": {\"name\": \"x\"},\n",
            "metadata:\n  annotations: &anchor\n    a: b\n  labels: *anchor\n",
            "metadata:\n  annotations: {\n    a: b\n  }\n---\n",
        ] {
            let result = edited(text);
            assert!(result.is_err(), "{result:?}");
        }
        assert!(Pod::read("kind: Pod\n").is_err());
    }

    #[test]
    fn reads_addresses_from_manifests_of_kubeadm() {
        let of = |name: &str| {
            let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/manifests");
            let text = std::fs::read_to_string(format!("{dir}/{name}.yaml")).unwrap();
            let manifest = Pod::read(&text).unwrap();
            let annotated = manifest.annotated("now").unwrap();
            assert_eq!(
                annotated.replace(NEW, "").replace("  annotations:\n", ""),
                text.replace("  annotations:\n", "")
            );
            manifest
        };
        let shown = |component: Component| -> String {
            let addresses = of(component.as_str()).addresses(component);
            addresses
                .iter()
                .map(|address| format!("{address} "))
                .collect()
        };
        assert_eq!(shown(Component::KubeApiserver), "192.0.2.11:6443 ");
        assert_eq!(shown(Component::KubeControllerManager), "127.0.0.1:10257 ");
        assert_eq!(shown(Component::KubeScheduler), "127.0.0.1:10259 ");
        assert_eq!(shown(Component::Etcd), "127.0.0.1:2379 192.0.2.11:2379 ");
        let etcd = of("etcd");
        assert_eq!(
            etcd.urls("listen-peer-urls"),
            ["192.0.2.11:2380".parse().unwrap()]
        );
        assert_eq!(
            etcd.flag("cert-file"),
            Some("/etc/kubernetes/pki/etcd/server.crt")
        );
    }

    #[test]
    fn reads_flags_as_components_do() {
        let manifest = |words: &str| {
            let text =
                format!("metadata:\n  name: x\nspec:\n  containers:\n  - command: [{words}]\n");
            Pod::read(&text).unwrap()
        };
        let scheduler = |words: &str| manifest(words).addresses(Component::KubeScheduler);
        assert_eq!(
            scheduler("kube-scheduler"),
            ["127.0.0.1:10259".parse().unwrap()]
        );
        assert_eq!(
            scheduler("x, --bind-address=127.0.0.1, '--bind-address=::', --secure-port=1"),
            ["[::1]:1".parse().unwrap()]
        );
        assert_eq!(scheduler("x, --secure-port=0"), []);
    }
}

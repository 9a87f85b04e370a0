//! A static pod: the addresses of its component, and the annotation in its manifest that makes the kubelet restart it.
//!
//! Pure. The edit keeps every other byte, and is verified against the intended document before it is returned. If any
//! field of a manifest changes, the kubelet treats it as a different pod: it stops the old one and starts the new one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::kube::components::Component;
use crate::kube::manifest::StaticPod;
use crate::yaml;

/// Annotation whose change restarts the pod.
pub(super) const ANNOTATION: &str = "nodepki.io/restarted-at";

/// Where a component serves TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServedAt {
    /// The address to connect to.
    pub(super) address: SocketAddr,
    /// The address of its listening socket, which may be a wildcard address.
    pub(super) bound: SocketAddr,
}

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
            Component::Etcd => self.urls("listen-client-urls"),
            _ => {
                let served_at = self.served_at(component).into_iter();
                served_at.map(|served_at| served_at.address).collect()
            }
        }
    }

    /// Returns the first of them.
    pub(super) fn served_at(&self, component: Component) -> Option<ServedAt> {
        let address_in = |flag| self.flag(flag)?.parse::<IpAddr>().ok();
        let (port, advertised) = match component {
            Component::KubeApiserver => (6443, address_in("advertise-address")),
            Component::KubeControllerManager => (10257, None),
            Component::KubeScheduler => (10259, None),
            Component::Etcd => return self.bound_to("listen-client-urls").next(),
            Component::Kubelet => return None,
        };
        let port = self.flag("secure-port").map_or(Ok(port), str::parse).ok()?;
        let bound = address_in("bind-address").unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        (port != 0).then(|| ServedAt {
            address: SocketAddr::new(reachable(advertised.unwrap_or(bound)), port),
            bound: SocketAddr::new(bound, port),
        })
    }

    /// Returns the `https` addresses of one of etcd's URL lists.
    pub(super) fn urls(&self, flag: &str) -> Vec<SocketAddr> {
        self.bound_to(flag)
            .map(|served_at| served_at.address)
            .collect()
    }

    fn bound_to(&self, urls: &str) -> impl Iterator<Item = ServedAt> {
        let urls = self.flag(urls).unwrap_or_default().split(',');
        urls.filter_map(|url| {
            let bound: SocketAddr = url.trim().strip_prefix("https://")?.parse().ok()?;
            let address = SocketAddr::new(reachable(bound.ip()), bound.port());
            Some(ServedAt { address, bound })
        })
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
    let manifest = ManifestLines::of(text);
    let entry = format!("{ANNOTATION}: \"{value}\"");
    let metadata = manifest
        .metadata()
        .ok_or("it has no line with `metadata:` alone")?;
    let mut inside = manifest.block(metadata, 1);
    let child = manifest.indent_in(inside.clone()).unwrap_or(2);
    let annotations = inside.find(|at| {
        let line = manifest.line(*at);
        indent(line) == child && line.trim_start().starts_with("annotations:")
    });
    let end = manifest.line_end;
    let Some(at) = annotations else {
        let pad = " ".repeat(child);
        let new = format!("{pad}annotations:{end}{pad}  {entry}{end}");
        return Ok(manifest.with_inserted(metadata + 1, new));
    };
    if let Some(line) = set_in_line(manifest.line(at), &entry, end) {
        return Ok(manifest.with_replaced(at, line));
    }
    let mut entries = manifest.block(at, child + 1);
    let deeper = manifest.indent_in(entries.clone()).unwrap_or(child + 2);
    let known = entries.find(|at| {
        let line = manifest.line(*at);
        let key = line.split(':').next().unwrap_or_default().trim();
        indent(line) == deeper && key.trim_matches(['"', '\'']) == ANNOTATION
    });
    let new = format!("{}{entry}{end}", " ".repeat(deeper));
    Ok(match known {
        Some(known) => manifest.with_replaced(known, new),
        None => manifest.with_inserted(at + 1, new),
    })
}

/// Returns the line `annotations:` with the entry, if its mapping is on that line.
fn set_in_line(line: &str, entry: &str, end: &str) -> Option<String> {
    let mapping = line.trim().trim_start_matches("annotations:").trim();
    let key = format!("{ANNOTATION}: \"");
    if let Some((_, before)) = mapping.split_once(&key)
        && let Some((before, _)) = before.split_once('"')
    {
        return Some(line.replacen(&format!("{key}{before}\""), entry, 1));
    }
    let rest = mapping.strip_prefix('{')?.trim_start();
    let (head, _) = line.split_once('{')?;
    let comma = if rest.starts_with('}') { "" } else { ", " };
    let line_end = line.strip_prefix(line.trim_end()).unwrap_or(end);
    Some(format!("{head}{{{entry}{comma}{rest}{line_end}"))
}

/// The lines of a manifest, each with its line end.
struct ManifestLines<'a> {
    lines: Vec<&'a str>,
    /// Line end of new lines.
    line_end: &'static str,
}

impl<'a> ManifestLines<'a> {
    fn of(text: &'a str) -> ManifestLines<'a> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let line_end = if lines.iter().any(|line| line.ends_with("\r\n")) {
            "\r\n"
        } else {
            "\n"
        };
        ManifestLines { lines, line_end }
    }

    fn line(&self, at: usize) -> &'a str {
        self.lines.get(at).copied().unwrap_or_default()
    }

    /// Returns the line with the key `metadata` of the document, if its mapping is on the following lines.
    fn metadata(&self) -> Option<usize> {
        self.lines.iter().position(|line| {
            let behind = line.strip_prefix("metadata:").map(str::trim);
            behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('#'))
        })
    }

    /// Returns the lines that follow line `at`, up to the first one that is indented by less than `least`.
    fn block(&self, at: usize, least: usize) -> Range<usize> {
        let mut rest = at + 1..self.lines.len();
        let end = rest.find(|at| self.has_content(*at) && indent(self.line(*at)) < least);
        at + 1..end.unwrap_or(self.lines.len())
    }

    /// Returns the indentation of the first entry in a block.
    fn indent_in(&self, mut block: Range<usize>) -> Option<usize> {
        let first = block.find(|at| self.has_content(*at))?;
        Some(indent(self.line(first)))
    }

    fn has_content(&self, at: usize) -> bool {
        let line = self.line(at).trim();
        !line.is_empty() && !line.starts_with('#')
    }

    fn with_replaced(mut self, at: usize, new: String) -> String {
        if let Some(line) = self.lines.get_mut(at) {
            *line = "";
        }
        self.with_inserted(at, new)
    }

    fn with_inserted(&self, at: usize, new: String) -> String {
        let (before, after) = self.lines.split_at(at.min(self.lines.len()));
        before.concat() + &new + &after.concat()
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_annotation(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(pod) = Pod::read(text)
        && let Ok(annotated) = pod.annotated("2026-06-01T12:00:00Z")
    {
        let again = Pod::read(&annotated);
        assert!(again.is_ok_and(|pod| pod.annotated("2026-06-01T12:00:00Z").is_ok()));
    }
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
        let at = |component, words: &str| {
            let served_at = manifest(words).served_at(component);
            served_at.map(|at| [at.address, at.bound].map(|address| address.to_string()))
        };
        let server = |words: &str| at(Component::KubeApiserver, words);
        let two = |address: &str, bound: &str| Some([address.to_owned(), bound.to_owned()]);
        assert_eq!(server("x"), two("127.0.0.1:6443", "0.0.0.0:6443"));
        assert_eq!(
            server("x, --advertise-address=192.0.2.11"),
            two("192.0.2.11:6443", "0.0.0.0:6443")
        );
        assert_eq!(
            server("x, --advertise-address=198.51.100.1, --bind-address=192.0.2.11"),
            two("198.51.100.1:6443", "192.0.2.11:6443")
        );
        assert_eq!(
            at(
                Component::Etcd,
                "etcd, '--listen-client-urls=http://[::1]:2381,https://[::]:2379'"
            ),
            two("[::1]:2379", "[::]:2379")
        );
        assert_eq!(at(Component::Kubelet, "kubelet"), None);
    }
}

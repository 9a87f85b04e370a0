//! The manifest of a static pod: its name, its annotations, the arguments of its first container, and the paths of the node
//! that its containers mount.
//!
//! Pure: the caller reads the file. nodepki never writes manifests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::yaml;

/// The annotation with the API server's `address:port`.
const ADVERTISED_ENDPOINT: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";
/// Names of kube-controller-manager's controller that removes expired bootstrap tokens; the first is kubeadm's.
const TOKEN_CLEANER: [&str; 2] = ["tokencleaner", "token-cleaner-controller"];
/// kube-apiserver's default of `--secure-port`.
const DEFAULT_SECURE_PORT: &str = "6443";
/// Annotation by which an administrator states that the pod reads replaced files itself, with the value `never`.
pub const RESTART_ANNOTATION: &str = "nodepki.io/restart";

/// A path of the node that a container mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMount {
    /// Path on the node.
    pub host: PathBuf,
    /// Path in the container.
    pub container: PathBuf,
}

impl HostMount {
    /// Returns whether one of these mounts shows a directory of the node at the same path in the container.
    pub fn any_shows(mounts: &[HostMount], directory: &Path) -> bool {
        let mut mounts = mounts.iter();
        mounts.any(|mount| mount.host == mount.container && directory.starts_with(&mount.host))
    }
}

/// A static pod.
#[derive(Clone, Debug)]
pub struct StaticPod {
    /// Path of the file on the node.
    pub path: PathBuf,
    /// `metadata.name`; empty if absent.
    pub name: String,
    /// `metadata.namespace`, by default `default`.
    pub namespace: String,
    mounts: Vec<PathBuf>,
    /// Mounts of the first container, without those of a part of a volume.
    first_mounts: Vec<HostMount>,
    /// Paths in the first container of its other mounts, such as an emptyDir.
    other_mounts: Vec<PathBuf>,
    user: Option<i64>,
    arguments: Vec<String>,
    /// The image of the first container.
    image: Option<String>,
    annotations: BTreeMap<String, String>,
}

impl StaticPod {
    /// Reads the first container of a Pod.
    ///
    /// # Errors
    /// The problem in words, if the text is not a Pod.
    pub fn parse(path: PathBuf, bytes: &[u8]) -> Result<StaticPod, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
        let documents = yaml::parse("", text).map_err(|faults| faults.to_string())?;
        let pod = documents.first().map(yaml::to_json).unwrap_or_default();
        let container = pod
            .pointer("/spec/containers/0")
            .ok_or_else(|| "it is not a Pod with a container".to_owned())?;
        let arguments = ["command", "args"]
            .iter()
            .filter_map(|field| container.get(field)?.as_array())
            .flatten()
            .filter_map(|argument| argument.as_str().map(str::to_owned))
            .collect();
        let annotations = pod
            .pointer("/metadata/annotations")
            .and_then(Value::as_object);
        let annotations = annotations.into_iter().flatten();
        let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str);
        let (first_mounts, other_mounts) = first_mounts(&pod, container);
        Ok(StaticPod {
            path,
            name: text("/metadata/name").unwrap_or_default().to_owned(),
            namespace: text("/metadata/namespace").unwrap_or("default").to_owned(),
            mounts: host_mounts(&pod),
            first_mounts,
            other_mounts,
            user: [
                container.pointer("/securityContext/runAsUser"),
                pod.pointer("/spec/securityContext/runAsUser"),
            ]
            .into_iter()
            .flatten()
            .find_map(Value::as_i64),
            arguments,
            image: container
                .get("image")
                .and_then(Value::as_str)
                .map(str::to_owned),
            annotations: annotations
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect(),
        })
    }

    /// Returns the value of `--name=value`. As in the program, the last one counts.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.flags(name).next_back()
    }

    /// Returns all values of `--name=value`, in order.
    pub fn flags(&self, name: &str) -> impl DoubleEndedIterator<Item = &str> {
        self.arguments.iter().filter_map(move |argument| {
            argument
                .strip_prefix("--")?
                .strip_prefix(name)?
                .strip_prefix('=')
        })
    }

    /// Returns the version of an etcd that serves clients whose certificates its revocation list contains: with a listener
    /// for HTTP of its own, its gRPC listener ignored `--client-crl-file` before 3.5.32 and 3.6.13 (GHSA-3wh4-j44w-pg92).
    pub fn etcd_without_revocation(&self) -> Option<&str> {
        self.flag("client-crl-file")
            .filter(|file| !file.is_empty())?;
        self.flag("listen-client-http-urls")
            .filter(|urls| !urls.is_empty())?;
        let image = self.image.as_deref()?;
        let image = image.split_once('@').map_or(image, |(image, _)| image);
        let (_, tag) = image.rsplit_once(':')?;
        let version = tag.trim_start_matches('v').split('-').next()?;
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        let release = (parts.next()??, parts.next()??);
        let patch = parts.next()??;
        let is_fixed = match release {
            (3, 5) => patch >= 32,
            (3, 6) => patch >= 13,
            release => release > (3, 6),
        };
        (!is_fixed).then_some(version)
    }

    /// Returns whether kube-controller-manager removes expired bootstrap tokens.
    ///
    /// `*` does not enable this controller (`ControllersDisabledByDefault`); of several entries with its name the first
    /// one counts (`IsControllerEnabled` in k8s.io/controller-manager), and a repeated `--controllers` adds entries.
    pub fn removes_expired_tokens(&self) -> bool {
        let listed = self
            .arguments
            .iter()
            .filter_map(|argument| argument.strip_prefix("--controllers="))
            .flat_map(|entries| entries.split(','))
            .map(str::trim);
        let names_cleaner = |entry: &str| TOKEN_CLEANER.contains(&entry);
        listed
            .filter_map(|entry| match entry.strip_prefix('-') {
                Some(disabled) => names_cleaner(disabled).then_some(false),
                None => names_cleaner(entry).then_some(true),
            })
            .next()
            .unwrap_or(false)
    }

    /// Returns whether a container mounts this file, or a directory above it that is `below` one of these directories.
    /// Broader mounts, such as the whole root of an exporter of metrics, say nothing about the file.
    pub fn mounts(&self, file: &Path, below: &[&Path]) -> bool {
        self.mounts.iter().any(|mount| {
            let is_near = below.iter().any(|directory| mount.starts_with(directory));
            mount == file || (is_near && file.starts_with(mount))
        })
    }

    /// Returns whether the first container sees a directory of the node at the same path.
    pub fn mounts_directory(&self, directory: &Path) -> bool {
        HostMount::any_shows(&self.first_mounts, directory)
    }

    /// Returns the path on the node of a file that the first container sees; the same path if it is in no mounted path of the
    /// node.
    pub fn on_node(&self, file: &Path) -> PathBuf {
        let depth = |mount: &PathBuf| mount.components().count();
        let mounted = self.first_mounts.iter().filter_map(|mount| {
            let below = file.strip_prefix(&mount.container).ok()?;
            Some((mount, below))
        });
        // The deepest mount hides the others.
        let nearest = mounted.max_by_key(|(mount, _)| depth(&mount.container));
        let others = self.other_mounts.iter();
        let others = others.filter(|mount| file.starts_with(mount)).map(depth);
        let hidden = others.max();
        match nearest.filter(|(mount, _)| hidden < Some(depth(&mount.container))) {
            // Joining an empty path would append a separator to that of a mounted file.
            Some((mount, below)) if below == Path::new("") => mount.host.clone(),
            Some((mount, below)) => mount.host.join(below),
            None => file.to_owned(),
        }
    }

    /// Returns the numeric ID of the user that runs the first container, unless it is root.
    pub fn user(&self) -> Option<i64> {
        self.user.filter(|user| *user != 0)
    }

    /// Returns whether the pod is restarted for a replaced file that it mounts.
    pub fn is_restarted_for_files(&self) -> bool {
        self.annotation(RESTART_ANNOTATION) != Some("never")
    }

    /// Returns the value of an annotation.
    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    /// Returns the `address:port` of kube-apiserver in kubeadm's annotation.
    pub(crate) fn advertised(&self) -> Option<&str> {
        self.annotation(ADVERTISED_ENDPOINT)
    }

    /// Returns the endpoint of kube-apiserver: that of the annotation, which kubeadm uses, or else that of the flags.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        let annotated = self.advertised().and_then(|text| text.parse().ok());
        annotated.or_else(|| {
            let address = self.flag("advertise-address")?.parse().ok()?;
            let port = self.flag("secure-port").unwrap_or(DEFAULT_SECURE_PORT);
            Some(SocketAddr::new(address, port.parse().ok()?))
        })
    }
}

/// Returns the hostPath volumes that a container mounts as a whole, and the paths in it of its other mounts.
fn first_mounts(pod: &Value, container: &Value) -> (Vec<HostMount>, Vec<PathBuf>) {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    let host = |name: &str| {
        let mut volumes = volumes.into_iter().flatten();
        let volume = volumes.find(|one| one.get("name").and_then(Value::as_str) == Some(name))?;
        volume.pointer("/hostPath/path").and_then(Value::as_str)
    };
    let mounts = container.get("volumeMounts").and_then(Value::as_array);
    let (mut whole, mut others) = (Vec::new(), Vec::new());
    for mount in mounts.into_iter().flatten() {
        let text = |field: &str| mount.get(field).and_then(Value::as_str);
        let Some(container) = text("mountPath").map(PathBuf::from) else {
            continue;
        };
        let is_part = mount.get("subPath").is_some() || mount.get("subPathExpr").is_some();
        match text("name").and_then(host).filter(|_| !is_part) {
            Some(host) => whole.push(HostMount {
                host: host.into(),
                container,
            }),
            None => others.push(container),
        }
    }
    (whole, others)
}

/// Returns the paths of hostPath volumes that a container mounts.
fn host_mounts(pod: &Value) -> Vec<PathBuf> {
    let list = |pointer: &str| pod.pointer(pointer).and_then(Value::as_array);
    let containers = ["/spec/containers", "/spec/initContainers"].map(list);
    let containers = containers.into_iter().flatten().flatten();
    let mounted: Vec<&str> = containers
        .filter_map(|container| container.get("volumeMounts")?.as_array())
        .flatten()
        .filter_map(|mount| mount.get("name")?.as_str())
        .collect();
    let volumes = list("/spec/volumes").into_iter().flatten();
    volumes
        .filter(|volume| {
            let name = volume.get("name").and_then(Value::as_str);
            name.is_some_and(|name| mounted.contains(&name))
        })
        .filter_map(|volume| Some(PathBuf::from(volume.pointer("/hostPath/path")?.as_str()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_files_of_node_behind_mounts() {
        let text = "\
spec:
  containers:
  - name: a
    volumeMounts: [{name: pki, mountPath: /pki}, {name: keys, mountPath: /pki/keys}, {name: file, mountPath: /ca.crt}, {name: made, mountPath: /pki/made}, {name: pki, mountPath: /pki/part, subPath: a}, {name: keys, mountPath: /pki/made/keys}]
  volumes:
  - {name: pki, hostPath: {path: /etc/kubernetes/pki/}}
  - {name: keys, hostPath: {path: /srv/keys}}
  - {name: file, hostPath: {path: /srv/ca.crt}}
  - {name: made, emptyDir: {}}
";
        let pod = StaticPod::parse(PathBuf::new(), text.as_bytes()).unwrap();
        for (seen, expected) in [
            ("/pki/ca.crt", "/etc/kubernetes/pki/ca.crt"),
            ("/pki/keys/sa.pub", "/srv/keys/sa.pub"),
            ("/ca.crt", "/srv/ca.crt"),
            ("/pki2/ca.crt", "/pki2/ca.crt"),
            ("/pki/made/sa.pub", "/pki/made/sa.pub"),
            ("/pki/part/sa.pub", "/pki/part/sa.pub"),
            ("/pki/made/keys/sa.pub", "/srv/keys/sa.pub"),
        ] {
            let found = pod.on_node(Path::new(seen));
            assert_eq!(found.as_os_str(), expected);
        }
    }

    #[test]
    fn finds_files_that_containers_mount() {
        let text = "\
metadata: {name: x, namespace: kube-system}
spec:
  containers:
  - name: a
    volumeMounts: [{name: conf, mountPath: /c}, {name: pki, mountPath: /p}, {name: root, mountPath: /r}]
  volumes:
  - {name: conf, hostPath: {path: /etc/kubernetes/admin.conf}}
  - {name: pki, hostPath: {path: /etc/kubernetes/pki/}}
  - {name: root, hostPath: {path: /}}
  - {name: unused, hostPath: {path: /etc/kubernetes/scheduler.conf}}
  - {name: empty, emptyDir: {}}
";
        let pod = StaticPod::parse(PathBuf::from("/m.yaml"), text.as_bytes()).unwrap();
        let near = [Path::new("/etc/kubernetes")];
        let mounts = |file: &str| pod.mounts(Path::new(file), &near);
        assert!(mounts("/etc/kubernetes/admin.conf"));
        assert!(mounts("/etc/kubernetes/pki/etcd/ca.crt"));
        assert!(!mounts("/etc/kubernetes/scheduler.conf"));
        assert!(!mounts("/etc/kubernetes/admin.conf.old"));
        assert_eq!((&*pod.name, &*pod.namespace), ("x", "kube-system"));
        assert!(pod.is_restarted_for_files());
        let text = text.replace(
            "{name: x,",
            "{annotations: {nodepki.io/restart: never}, name: x,",
        );
        let pod = StaticPod::parse(PathBuf::from("/m.yaml"), text.as_bytes()).unwrap();
        assert!(!pod.is_restarted_for_files());
    }

    #[test]
    fn reads_whether_expired_tokens_are_removed() {
        for (arguments, wanted) in [
            ("", false),
            (", '--controllers=*'", false),
            (", '--controllers=*,bootstrapsigner,tokencleaner'", true),
            (", '--controllers=*, token-cleaner-controller'", true),
            (", '--controllers=*,-tokencleaner,tokencleaner'", false),
            (", '--controllers=*', --controllers=tokencleaner", true),
        ] {
            let text = format!("spec: {{containers: [{{command: [manager{arguments}]}}]}}\n");
            let manifest = StaticPod::parse(PathBuf::from("/m.yaml"), text.as_bytes()).unwrap();
            assert_eq!(manifest.removes_expired_tokens(), wanted, "{arguments}");
        }
    }

    #[test]
    fn finds_etcd_that_ignores_its_revocation_list() {
        const BOTH: &str =
            "--client-crl-file=/crl.pem, '--listen-client-http-urls=https://127.0.0.1:2381'";
        for (image, flags, found) in [
            ("registry.k8s.io/etcd:3.6.12-0", BOTH, Some("3.6.12")),
            ("registry.k8s.io/etcd:3.6.13-0", BOTH, None),
            ("localhost:5000/etcd:v3.5.31", BOTH, Some("3.5.31")),
            ("etcd:3.5.32@sha256:00", BOTH, None),
            ("etcd:3.4.40", BOTH, Some("3.4.40")),
            ("etcd:3.7.0-0", BOTH, None),
            ("etcd:latest", BOTH, None),
            ("localhost:5000/etcd", BOTH, None),
            ("etcd:3.6.12", "--client-crl-file=/crl.pem", None),
            ("etcd:3.6.12", "'--listen-client-http-urls=https://x'", None),
        ] {
            let text =
                format!("spec: {{containers: [{{image: '{image}', command: [etcd, {flags}]}}]}}\n");
            let etcd = StaticPod::parse(PathBuf::from("/m.yaml"), text.as_bytes()).unwrap();
            assert_eq!(etcd.etcd_without_revocation(), found, "{image} {flags}");
        }
    }

    #[test]
    fn finds_directories_at_the_same_path_in_first_container() {
        let text = "\
metadata: {name: x}
spec:
  containers:
  - name: a
    volumeMounts:
    - {name: pki, mountPath: /etc/kubernetes/pki}
    - {name: moved, mountPath: /m}
    - {name: part, mountPath: /part, subPath: a}
    - {name: none, mountPath: /none}
  - name: b
    volumeMounts: [{name: other, mountPath: /other}]
  volumes:
  - {name: pki, hostPath: {path: /etc/kubernetes/pki/}}
  - {name: moved, hostPath: {path: /moved}}
  - {name: part, hostPath: {path: /part}}
  - {name: other, hostPath: {path: /other}}
  - {name: none, emptyDir: {}}
";
        let parse = |text: &str| StaticPod::parse("/m.yaml".into(), text.as_bytes()).unwrap();
        let pod = parse(text);
        for (directory, wanted) in [
            ("/etc/kubernetes/pki/scheduler", true),
            ("/etc/kubernetes/pki", true),
            ("/etc/kubernetes", false),
            ("/moved", false),
            ("/m", false),
            ("/part", false),
            ("/other", false),
            ("/none", false),
        ] {
            assert_eq!(
                pod.mounts_directory(Path::new(directory)),
                wanted,
                "{directory}"
            );
        }
        assert_eq!(pod.user(), None);
        for (context, user) in [
            ("securityContext: {runAsUser: 0}", None),
            ("securityContext: {runAsUser: 1000}", Some(1000)),
        ] {
            let pod = parse(&text.replace("spec:\n", &format!("spec:\n  {context}\n")));
            assert_eq!(pod.user(), user);
            let pod = parse(&text.replace("- name: a\n", &format!("- name: a\n    {context}\n")));
            assert_eq!(pod.user(), user);
        }
    }

    fn endpoint(annotations: &str, arguments: &str) -> Option<String> {
        let text = format!(
            "metadata: {{annotations: {{{annotations}}}}}\nspec: {{containers: [{{command: [kube-apiserver{arguments}]}}]}}\n"
        );
        let manifest = StaticPod::parse(PathBuf::from("/m.yaml"), text.as_bytes()).unwrap();
        manifest.endpoint().map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn prefers_endpoint_of_annotation_over_flags() {
        let annotated = |value: &str| format!("{ADVERTISED_ENDPOINT}: '{value}'");
        let flags = ", --advertise-address=192.0.2.7, --secure-port=7443";
        for (annotation, arguments, wanted) in [
            (annotated("192.0.2.1:6443"), flags, Some("192.0.2.1:6443")),
            (annotated("[fd00::1]:6443"), flags, Some("[fd00::1]:6443")),
            (annotated("nonsense"), flags, Some("192.0.2.7:7443")),
            (String::new(), flags, Some("192.0.2.7:7443")),
            (
                String::new(),
                ", '--advertise-address=fd00::7'",
                Some("[fd00::7]:6443"),
            ),
            // As in kube-apiserver, the last of two counts.
            (
                String::new(),
                ", --advertise-address=192.0.2.7, --advertise-address=192.0.2.8",
                Some("192.0.2.8:6443"),
            ),
            (String::new(), "", None),
        ] {
            let found = endpoint(&annotation, arguments);
            assert_eq!(found.as_deref(), wanted, "{annotation} {arguments}");
        }
    }
}

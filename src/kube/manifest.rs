//! The manifest of a static pod, as far as it says how a component runs: its arguments and its annotations.
//!
//! Owns what kubeadm puts there and others read. Pure: the caller reads the file. Nothing is written here.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use crate::yaml;

/// Where the kubelet looks for static pods.
pub const MANIFESTS: &str = "/etc/kubernetes/manifests";
/// The annotation with the API server's own `address:port`.
const ADVERTISED: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";
/// kube-apiserver's own default.
const SECURE_PORT: &str = "6443";

/// A static pod.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The file, on the node.
    pub path: PathBuf,
    arguments: Vec<String>,
    annotations: BTreeMap<String, String>,
}

impl Manifest {
    /// Reads the first container of a Pod.
    ///
    /// # Errors
    /// Why it is no such thing, in words.
    pub fn parse(path: PathBuf, bytes: &[u8]) -> Result<Manifest, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
        let documents = yaml::parse("", text).map_err(|faults| faults.to_string())?;
        let pod = documents.first().map(yaml::to_json).unwrap_or_default();
        let container = pod
            .pointer("/spec/containers/0")
            .ok_or_else(|| "it is no Pod with a container".to_owned())?;
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
        Ok(Manifest {
            path,
            arguments,
            annotations: annotations
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect(),
        })
    }

    /// The value of `--name=value`, the last one as for the program itself.
    pub fn flag(&self, name: &str) -> Option<&str> {
        self.arguments.iter().rev().find_map(|argument| {
            argument
                .strip_prefix("--")?
                .strip_prefix(name)?
                .strip_prefix('=')
        })
    }

    /// The value of an annotation.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.annotations.get(name).map(String::as_str)
    }

    /// `address:port` of kube-apiserver as kubeadm annotated it.
    pub fn advertised(&self) -> Option<&str> {
        self.annotation(ADVERTISED)
    }

    /// Where kube-apiserver is reached: by the annotation, which kubeadm itself goes by, else by its flags.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        let annotated = self.advertised().and_then(|text| text.parse().ok());
        annotated.or_else(|| {
            let address = self.flag("advertise-address")?.parse().ok()?;
            let port = self.flag("secure-port").unwrap_or(SECURE_PORT);
            Some(SocketAddr::new(address, port.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(annotations: &str, arguments: &str) -> Option<String> {
        let text = format!(
            "metadata: {{annotations: {{{annotations}}}}}\nspec: {{containers: [{{command: [kube-apiserver{arguments}]}}]}}\n"
        );
        let manifest = Manifest::parse(PathBuf::from("/m.yaml"), text.as_bytes()).unwrap();
        manifest.endpoint().map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn the_endpoint_is_that_of_the_annotation_then_that_of_the_flags() {
        let annotated = |value: &str| format!("{ADVERTISED}: '{value}'");
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
            // The last of two counts, for the program too.
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

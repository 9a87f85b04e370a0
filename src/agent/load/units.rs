//! What the systemd units of the packages deny to a run, and an administrator's shell does not: paths that the settings name
//! in home directories, and paths that a run writes to (`systemd/*.service`). Drop-ins of the node grant more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Loaded, shown_defined};
use crate::config::{Origin, Settings};
use crate::kube::paths::{KUBELET_PKI_DIR, KUBERNETES_DIR};
use crate::signer;
use crate::store::{NodeRoot, STATE_DIR};

/// Directories below which the units write (`ReadWritePaths=`, `StateDirectory=`).
const WRITABLE_BY_UNITS: [&str; 5] = [
    KUBERNETES_DIR,
    KUBELET_PKI_DIR,
    STATE_DIR,
    "/var/lib/node_exporter/textfile_collector",
    "/var/lib/prometheus/node-exporter",
];
/// Directories that the units do not see (systemd.exec(5), `ProtectHome=yes`).
const HIDDEN_FROM_UNITS: [&str; 3] = ["/root", "/home", "/run/user"];
/// Directory of an administrator's units and drop-ins.
const UNITS_OF_NODE: &str = "/etc/systemd/system";

/// The rights that drop-ins of any nodepki unit add.
#[derive(Debug, Default)]
struct GrantedRights {
    writes: Vec<PathBuf>,
    homes: bool,
}

impl GrantedRights {
    /// Unreadable drop-ins are omitted.
    fn read(root: &NodeRoot) -> GrantedRights {
        let list = |directory: &Path| root.list(directory).ok().flatten().unwrap_or_default();
        let mut granted = GrantedRights::default();
        let units = Path::new(UNITS_OF_NODE);
        for directory in list(units) {
            let name = directory.to_string_lossy();
            if !name.starts_with("nodepki") || !name.ends_with(".service.d") {
                continue;
            }
            let directory = units.join(&directory);
            for name in list(&directory) {
                let file = directory.join(name);
                if file
                    .extension()
                    .is_some_and(|extension| extension == "conf")
                    && let Ok(Some(content)) = root.read(&file)
                {
                    granted.add(&String::from_utf8_lossy(&content.bytes));
                }
            }
        }
        granted
    }

    fn add(&mut self, drop_in: &str) {
        for (key, value) in drop_in.lines().filter_map(|line| line.split_once('=')) {
            let value = value.trim();
            match key.trim() {
                "ReadWritePaths" => {
                    let paths = value.split_whitespace();
                    let paths =
                        paths.map(|path| PathBuf::from(path.trim_start_matches(['-', '+'])));
                    self.writes.extend(paths);
                }
                "ProtectSystem" if value != "strict" => self.writes.push("/".into()),
                "ProtectHome" => {
                    self.homes = ["read-only", "no", "false", "off", "0"].contains(&value);
                }
                _ => {}
            }
        }
    }

    fn may_write(&self, path: &Path) -> bool {
        is_writable_by_units(path) || self.writes.iter().any(|open| path.starts_with(open))
    }
}

/// Returns whether the units write below this path without a drop-in.
pub(crate) fn is_writable_by_units(path: &Path) -> bool {
    let mut writable = WRITABLE_BY_UNITS.iter();
    writable.any(|writable| path.starts_with(writable))
}

/// Returns the drop-ins that let the units write below `path` of the node, as a noun phrase. `shown` is a path of the node on
/// this machine.
pub(crate) fn drop_in_for_writes(path: &Path, shown: impl Fn(&Path) -> PathBuf) -> String {
    format!(
        "ReadWritePaths=-{} below [Service] in {}/nodepki-.service.d/paths.conf and nodepki.service.d/paths.conf, as in systemd/drop-ins/paths.conf",
        path.display(),
        shown(Path::new(UNITS_OF_NODE)).display()
    )
}

impl Loaded {
    /// Returns a warning for each path that a run by hand reads or writes, and one that systemd starts does not.
    pub(super) fn denied_to_units(&self, root: &NodeRoot) -> Vec<String> {
        let granted = GrantedRights::read(root);
        let mut warnings = Vec::new();
        if !granted.homes {
            warnings.extend(hidden_paths(root, &self.settings));
        }
        let settings = self.settings_that_write(root).into_iter();
        let files = self.node_directories().into_iter().map(|path| (path, None));
        let written: BTreeMap<PathBuf, Option<String>> = files.chain(settings).collect();
        let mut reported: Option<PathBuf> = None;
        for (path, setting) in written {
            let is_reported = reported
                .as_ref()
                .is_some_and(|reported| path.starts_with(reported));
            if is_reported || granted.may_write(&path) {
                continue;
            }
            let setting = setting.map_or_else(String::new, |setting| format!("{setting}: "));
            warnings.push(format!(
                "{setting}nodepki's systemd units cannot write below {} (add {}; then `systemctl daemon-reload`)",
                root.on_this_machine(&path).display(),
                drop_in_for_writes(&path, |path| root.on_this_machine(path))
            ));
            reported = Some(path);
        }
        warnings
    }

    /// Returns the directories on the node that settings name for writing, each with its setting.
    fn settings_that_write(&self, root: &NodeRoot) -> Vec<(PathBuf, Option<String>)> {
        let settings = &self.settings;
        // The units name no settings file of another machine, and no signer.
        let is_of_units = |origin| match origin {
            Origin::Node => true,
            Origin::Machine => root.is_this_machine(),
            Origin::CommandLine => false,
        };
        let mut written = Vec::new();
        if is_of_units(settings.signer_origin) {
            written.extend(settings.signers.iter().filter_map(|(name, config)| {
                let signer::Config::Directory(drop) = config else {
                    return None;
                };
                let setting = format!("signers.{name}.directory.path");
                Some((drop.path.clone(), Some(setting)))
            }));
        }
        let textfile = settings.metrics.textfile.as_deref();
        let directory = textfile.and_then(Path::parent);
        if let Some(directory) = directory.filter(|_| is_of_units(settings.origin)) {
            written.push((directory.to_owned(), Some("metrics.textfile".to_owned())));
        }
        written
    }
}

/// Returns a warning for each path of the settings that the units do not see.
fn hidden_paths(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let mut settings = settings.clone();
    // Files and signers of the command line, which no unit has.
    settings.kubeadm.arguments.clear();
    if settings.signer_origin == Origin::CommandLine {
        settings.signers.clear();
    }
    let mut hidden = Vec::new();
    find_hidden(&settings.redacted(), "", &mut hidden);
    let warnings = hidden.into_iter().map(|(setting, path)| {
        let origin = match setting.split('.').next() {
            Some("signers") => settings.signer_origin,
            Some("kubeadm") => Origin::Node,
            _ => settings.origin,
        };
        let shown = |path: &Path| shown_defined(root, origin, path);
        format!(
            "{setting}: nodepki's systemd units do not see {} (ProtectHome=yes; move it, for example to {})",
            shown(&path).display(),
            shown(Path::new("/etc/nodepki")).display()
        )
    });
    warnings.collect()
}

/// Adds the hidden paths below a setting, each with its own setting.
fn find_hidden(value: &Value, setting: &str, hidden: &mut Vec<(String, PathBuf)>) {
    match value {
        Value::String(text) => {
            let mut homes = HIDDEN_FROM_UNITS.iter();
            if homes.any(|home| Path::new(text).starts_with(home)) {
                hidden.push((setting.to_owned(), text.into()));
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                find_hidden(item, &format!("{setting}[{at}]"), hidden);
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                let dot = if setting.is_empty() { "" } else { "." };
                find_hidden(value, &format!("{setting}{dot}{key}"), hidden);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::config::CommandLineSettings;

    #[test]
    fn constants_are_the_paths_of_every_unit_of_a_node() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");
        let mut count = 0;
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if !name.ends_with(".service") || name.contains("capi") {
                continue;
            }
            let unit = fs::read_to_string(&path).unwrap();
            let mut written = BTreeSet::new();
            for (key, value) in unit.lines().filter_map(|line| line.split_once('=')) {
                match key {
                    "ReadWritePaths" => written.extend(
                        value
                            .split(' ')
                            .map(|path| path.trim_start_matches('-').to_owned()),
                    ),
                    "StateDirectory" => _ = written.insert(format!("/var/lib/{value}")),
                    _ => {}
                }
            }
            assert_eq!(
                written,
                BTreeSet::from(WRITABLE_BY_UNITS.map(str::to_owned)),
                "{name}"
            );
            for line in ["ProtectSystem=strict", "ProtectHome=yes"] {
                assert!(unit.lines().any(|found| found == line), "{name}: {line}");
            }
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn drop_ins_grant_paths_and_home_directories() {
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/drop-ins/paths.conf");
        let mut granted = GrantedRights::default();
        assert!(!granted.may_write(Path::new("/srv/nodepki")));
        granted.add(&fs::read_to_string(example).unwrap());
        assert!(granted.homes);
        for (path, expected) in [
            ("/srv/nodepki", true),
            ("/srv/nodepki/outbox", true),
            ("/srv", false),
            ("/srv/nodepki2", false),
            ("/var/lib/nodepki", true),
        ] {
            assert_eq!(granted.may_write(Path::new(path)), expected, "{path}");
        }
        granted.add("[Service]\nProtectSystem = full\n");
        assert!(granted.may_write(Path::new("/srv")));
    }

    #[test]
    fn finds_every_setting_that_names_a_path_in_a_home_directory() {
        let text = "\
apiVersion: nodepki.io/v1alpha1
kind: NodePKIConfiguration
kubeadm: {files: [/root/kubeadm.yaml], clusterConfiguration: /root/cluster.yaml}
join: {certificateKey: /home/a/key}
authorities:
  ca: {signer: p, trust: {file: /root/ca.crt}}
  etcd-ca: {signer: l}
  front-proxy-ca: {signer: e}
signers:
  p: {exec: {command: /root/sign, args: [/root/ca, --verbose]}}
  l: {local: {directory: /home/ca}}
  e:
    est:
      url: https://est.example.com:8443
      label: k8s
      auth: {basic: {user: cp1, passwordFile: /etc/nodepki/password}}
      tls: {caFile: /run/user/0/ca.pem, certificate: /root/client.pem, key: /root/client.key}
reload: {hooks: [{on: [apiserver], command: [/root/hook, -v]}]}
";
        let (settings, _) = Settings::from_fragments(&[("f", text)]).unwrap();
        let root = NodeRoot::open("/").unwrap();
        let found = hidden_paths(&root, &settings);
        let found: Vec<&str> = found
            .iter()
            .filter_map(|one| one.split(": ").next())
            .collect();
        assert_eq!(
            found.into_iter().collect::<BTreeSet<_>>(),
            BTreeSet::from([
                "kubeadm.files[0]",
                "kubeadm.clusterConfiguration",
                "join.certificateKey",
                "authorities.ca.trust.file",
                "signers.p.exec.command",
                "signers.p.exec.args[0]",
                "signers.l.local.directory",
                "signers.e.est.tls.caFile",
                "signers.e.est.tls.certificate",
                "signers.e.est.tls.key",
                "reload.hooks[0].command[0]",
            ])
        );
        let given = CommandLineSettings {
            kubeadm_configs: vec!["/root/kubeadm.yaml".into()],
            signer: Some("local:/root/ca".parse().unwrap()),
            node_name: None,
        };
        assert_eq!(
            hidden_paths(&root, &Settings::default().with(given)),
            [""; 0]
        );
    }
}

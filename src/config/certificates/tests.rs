use std::path::PathBuf;

use super::*;
use crate::config::{API_VERSION, KIND};

fn read(body: &str) -> Result<(Settings, Vec<String>), String> {
    let text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}");
    let read = Settings::from_fragments(&[("c.yaml", text)]);
    let (settings, warnings) = read.map_err(|faults| faults.to_string())?;
    let warnings = warnings.iter().map(ToString::to_string).collect();
    Ok((settings, warnings))
}

fn registered(entries: &str) -> Result<(Settings, Vec<String>), String> {
    read(&format!("certificates: {{registered: {{{entries}}}}}\n"))
}

#[test]
fn reads_serving_and_client_certificates() {
    let entries = "\
konnectivity-server: {authority: ca, category: ServingCertificate, sans: ['{node}', '{address}', konnectivity.kube-system.svc, 192.0.2.1], clientAuth: true, certificate: /etc/kubernetes/a.crt, key: /etc/kubernetes/a.key}, \
etcd-backup-client: {authority: etcd-ca, category: ClientCertificate, nodes: all, commonName: 'backup.{node}', organizations: [backup]}";
    let (settings, warnings) = registered(entries).unwrap();
    assert_eq!(warnings, [""; 0]);
    let [client, server] = settings.registered.certificates().try_into().unwrap();
    assert_eq!(client.name.as_str(), "etcd-backup-client");
    assert_eq!(client.nodes, RegisteredNodes::All);
    assert_eq!(client.common_name, "backup.{node}");
    assert_eq!(client.organizations, ["backup"]);
    assert_eq!(client.usages, [ExtendedUsage::ClientAuth]);
    assert_eq!(client.certificate, None);
    assert_eq!(server.common_name, "konnectivity-server");
    assert_eq!(server.nodes, RegisteredNodes::ControlPlane);
    let both = [ExtendedUsage::ServerAuth, ExtendedUsage::ClientAuth];
    assert_eq!(server.usages, both);
    assert_eq!(server.key, Some(PathBuf::from("/etc/kubernetes/a.key")));
    let sans: Vec<String> = server.sans.iter().map(RegisteredSan::written).collect();
    let expected = [
        "{node}",
        "{address}",
        "konnectivity.kube-system.svc",
        "192.0.2.1",
    ];
    assert_eq!(sans, expected);
}

#[test]
fn shown_settings_read_back_as_the_same() {
    let entries = "webhook: {description: Admission., authority: ca, category: ServingCertificate, sans: ['{node}'], group: 65532, caFiles: {front-proxy-ca: /etc/kubernetes/webhook/front-proxy-ca.crt}, reload: {unit: webhook.service, action: reload, pod: webhook}}";
    let (settings, _) = registered(entries).unwrap();
    let shown = json!({"certificates": {"registered": settings.registered.shown().unwrap()}});
    let (again, _) = read(&crate::yaml::to_string(&shown).unwrap()).unwrap();
    assert_eq!(again.registered, settings.registered);
}

#[test]
fn refuses_faulty_registrations() {
    const SERVING: &str = "authority: ca, category: ServingCertificate";
    const CLIENT: &str = "authority: ca, category: ClientCertificate";
    for (name, keys, expected) in [
        (
            "apiserver",
            SERVING.to_owned(),
            "is a name of Kubernetes or nodepki",
        ),
        (
            "front-proxy-x",
            SERVING.to_owned(),
            "would be a certificate of front-proxy-ca",
        ),
        (
            "Webhook",
            SERVING.to_owned(),
            "is not a valid name of a certificate",
        ),
        (
            "webhook",
            "category: ServingCertificate, sans: [a.example]".to_owned(),
            "authority",
        ),
        (
            "webhook",
            "authority: ca, sans: [a.example]".to_owned(),
            "category",
        ),
        (
            "webhook",
            format!("{CLIENT}, sans: [a.example]"),
            "(end the name with -client)",
        ),
        (
            "a-client",
            format!("{SERVING}, sans: [a.example]"),
            "is ServingCertificate, but a certificate with the name a-client is a ClientCertificate",
        ),
        (
            "webhook",
            "authority: ca, category: SignerCertificate, sans: [a.example]".to_owned(),
            "SignerCertificate",
        ),
        (
            "webhook",
            "authority: etcd-ca, category: ServingCertificate, sans: [a.example]".to_owned(),
            "(begin the name with etcd-)",
        ),
        (
            "etcd-metrics",
            format!("{SERVING}, sans: [a.example]"),
            "is one of etcd-ca",
        ),
        (
            "webhook",
            "authority: front-proxy-ca, category: ServingCertificate, sans: [a.example]".to_owned(),
            "accepts any identity",
        ),
        (
            "webhook",
            SERVING.to_owned(),
            "is a serving certificate without names",
        ),
        (
            "a-client",
            format!("{CLIENT}, sans: [a.example]"),
            "has no meaning for a client certificate",
        ),
        (
            "a-client",
            format!("{CLIENT}, organizations: [backup, 'system:masters']"),
            "\"system:masters\" begins with system:",
        ),
        (
            "a-client",
            format!("{CLIENT}, organizations: ['kubeadm:cluster-admins']"),
            "identities with rights",
        ),
        (
            "a-client",
            format!("{CLIENT}, organizations: [backup, etcd]"),
            "certificates.registered.a-client.organizations[1]: is a further organization, and a certificate has at most one (keep one of them, and bind the roles of both to it)",
        ),
        (
            "a-client",
            format!("{CLIENT}, commonName: 'system:node:{{node}}'"),
            "identities with rights",
        ),
        (
            "a-client",
            format!("{CLIENT}, commonName: kubernetes-admin"),
            "is the identity of one of kubeadm's certificates",
        ),
        (
            "a-client",
            format!("{CLIENT}, commonName: '{{host}}'"),
            "has an unknown placeholder",
        ),
        (
            "a-client",
            format!("{CLIENT}, commonName: ''"),
            "is not a valid common name",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: [kubernetes.default.svc]"),
            "is a name of kube-apiserver",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['*.Default.svc']"),
            "is a name of kube-apiserver",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{cluster}}.example']"),
            "use {node} in a DNS name, or {address} alone",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], key: tls.key"),
            "certificates.registered.webhook.key",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], reload: {{unit: webhook}}"),
            "certificates.registered.webhook.reload.unit",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], reload: {{pod: webhook.yaml}}"),
            "\"webhook.yaml\" is not the name of a static pod",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], reload: {{pod: ../webhook}}"),
            "is not the name of a static pod",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], reload: {{pod: kube-apiserver}}"),
            "is a component of Kubernetes",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], group: nobody"),
            "certificates.registered.webhook.group",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], caFiles: {{ca: ca.crt}}"),
            "certificates.registered.webhook.caFiles.ca",
        ),
        (
            "webhook",
            format!("{SERVING}, sans: ['{{node}}'], port: 1"),
            "certificates.registered.webhook.port",
        ),
    ] {
        match registered(&format!("{name}: {{{keys}}}")) {
            Ok(_) => panic!("{name}: {{{keys}}} is accepted"),
            Err(faults) => assert!(faults.contains(expected), "{name}: {{{keys}}}: {faults}"),
        }
    }
}

#[test]
fn warns_of_settings_without_effect() {
    let entries = "a-client: {authority: ca, category: ClientCertificate, clientAuth: true, reload: {action: reload}}";
    let (_, warnings) = registered(entries).unwrap();
    let warnings = warnings.join("\n");
    assert!(
        warnings.contains("has no effect on a client certificate"),
        "{warnings}"
    );
    assert!(
        warnings.contains("has no effect without a unit"),
        "{warnings}"
    );
}

#[test]
fn other_settings_accept_registered_names_only() {
    let references = |name: &str| {
        format!(
            "authorities: {{ca: {{signer: corp}}}}\n\
             signers: {{corp: {{vault: {{address: 'https://vault.example', mount: pki, role: {{default: node, {name}: webhook}}, auth: {{tokenFile: /etc/nodepki/token}}, tls: {{systemRoots: true}}}}}}}}\n\
             pki: {{defaults: {{key: {{algorithm: RSA, rsa: {{keySize: 2048}}}}}}, overrides: [{{certificateName: {name}, certificate: {{lifetime: 720h}}}}]}}\n\
             reload: {{units: [{{on: [{name}], unit: webhook.service}}]}}\n\
             certificates: {{registered: {{webhook: {{authority: ca, category: ServingCertificate, sans: ['{{node}}']}}}}}}\n"
        )
    };
    let faults = read(&references("webhok")).unwrap_err();
    assert_eq!(
        faults.matches("did you mean webhook?").count(),
        3,
        "{faults}"
    );
    read(&references("webhook")).unwrap();
}

#[test]
fn restarts_unit_of_registration_for_its_certificate_and_authority() {
    let entries = "webhook: {authority: ca, category: ServingCertificate, sans: ['{node}'], reload: {unit: webhook.service, action: reload-or-restart}}";
    let (settings, _) = registered(entries).unwrap();
    let name = CertName::Registered("webhook".parse().unwrap());
    let unit = Unit {
        on: vec![
            On::Change(ReplacedFile::Certificate(name)),
            On::Change(ReplacedFile::Bundle(Authority::Ca)),
        ],
        unit: "webhook.service".to_owned(),
        action: UnitAction::ReloadOrRestart,
    };
    assert_eq!(settings.effective_reload().units, [unit]);
    assert!(settings.reload.units.is_empty());
}

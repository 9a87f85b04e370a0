use super::read::OPENSHIFT_NAMES;
use super::*;
use crate::x509::ExtendedUsage;
use crate::yaml;

fn rules(spec: &str) -> Result<(KeyRules, Faults), Faults> {
    let indented: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    let text = format!(
        "apiVersion: config.openshift.io/v1\nkind: PKI\nmetadata: {{name: cluster}}\nspec:\n{indented}"
    );
    KeyRules::from_document(&yaml::parse("pki.yaml", &text).unwrap()[0])
}

fn policy(spec: &str) -> KeyPolicy {
    KeyPolicy::new(rules(spec).unwrap().0, KeyAlgorithm::Rsa2048)
}

fn faults(spec: &str) -> String {
    rules(spec).unwrap_err().to_string()
}

#[test]
fn prefers_override_then_category_then_default_then_kubeadm() {
    let policy = policy(
        "categories:\n\
         - {category: ServingCertificate, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}\n\
         - {category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}\n\
         overrides:\n\
         - {certificateName: etcd-peer, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}\n\
         - {certificateName: etcd-ca, certificate: {key: {algorithm: RSA, rsa: {keySize: 3072}}}}\n\
         - {certificateName: sa, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}\n\
         - {certificateName: admin.conf, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}",
    );
    assert_eq!(policy.key_for(CertName::EtcdPeer), KeyAlgorithm::EcdsaP256);
    assert_eq!(
        policy.key_for(CertName::EtcdServer),
        KeyAlgorithm::EcdsaP384
    );
    assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::EcdsaP384);
    assert_eq!(policy.key_for(CertName::AdminConf), KeyAlgorithm::Rsa4096);
    assert_eq!(
        policy.key_for(CertName::SchedulerConf),
        KeyAlgorithm::Rsa2048
    );
    assert_eq!(
        policy.key_for_authority(Authority::EtcdCa),
        KeyAlgorithm::Rsa3072
    );
    assert_eq!(
        policy.key_for_authority(Authority::Ca),
        KeyAlgorithm::Rsa4096
    );
    assert_eq!(policy.key_for_service_account(), KeyAlgorithm::EcdsaP256);
}

#[test]
fn categories_follow_usages() {
    for name in CertName::ALL {
        let expected = if crate::spec::usages(name).contains(&ExtendedUsage::ServerAuth) {
            Category::Serving
        } else {
            Category::Client
        };
        assert_eq!(Category::of(name), expected, "{name}");
    }
    for (name, expected) in [
        ("hook", Category::Serving),
        ("hook-client", Category::Client),
    ] {
        let registered = CertName::Registered(name.parse().unwrap());
        assert_eq!(Category::of(registered), expected, "{name}");
    }
}

#[test]
fn policy_with_any_choice_is_not_empty() {
    let key = "{key: {algorithm: RSA, rsa: {keySize: 4096}}}";
    for spec in [
        format!("defaults: {key}"),
        format!("categories: [{{category: Client, certificate: {key}}}]"),
        format!("overrides: [{{certificateName: sa, certificate: {key}}}]"),
    ] {
        assert!(!rules(&spec).unwrap().0.is_empty(), "{spec}");
    }
    assert!(KeyRules::default().is_empty());
}

#[test]
fn applies_defaults_but_not_categories_to_service_account_key() {
    let policy = policy(
        "defaults: {key: {algorithm: RSA, rsa: {keySize: 3072}}}\n\
         categories: [{category: Signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}]",
    );
    assert_eq!(policy.key_for_service_account(), KeyAlgorithm::Rsa3072);
    assert_eq!(
        policy.key_for(CertName::FrontProxyClient),
        KeyAlgorithm::Rsa3072
    );
}

#[test]
fn reads_both_forms_of_api() {
    let named = policy(
        "certificateManagement:\n  mode: Custom\n  custom:\n    \
         defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}\n    \
         signerCertificates: {key: {algorithm: RSA, rsa: {keySize: 4096}}}\n    \
         servingCertificates: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}\n    \
         clientCertificates: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}",
    );
    let listed = policy(
        "certificateManagement:\n  mode: Custom\n  custom:\n    \
         defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}\n    overrides:\n    \
         - {type: Category, category: {name: Signer}, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}\n    \
         - {type: Category, category: {name: Serving}, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}\n    \
         - {type: Category, category: {name: Client}, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}",
    );
    for owner in KeyOwner::all() {
        assert_eq!(named.key_of(owner), listed.key_of(owner), "{owner}");
    }
    assert_eq!(named.key_for(CertName::EtcdServer), KeyAlgorithm::EcdsaP384);
    assert_eq!(
        named.key_for(CertName::KubeletConf),
        KeyAlgorithm::EcdsaP256
    );
    for mode in ["Unmanaged", "Default"] {
        let (rules, _) = rules(&format!("certificateManagement: {{mode: {mode}}}")).unwrap();
        assert!(rules.is_empty());
    }
    let empty = yaml::parse(
        "p",
        "apiVersion: config.openshift.io/v1alpha1\nkind: PKI\nspec: {}",
    )
    .unwrap();
    assert!(KeyRules::from_document(&empty[0]).unwrap().0.is_empty());
}

#[test]
fn resolves_key_and_lifetime_separately() {
    let policy = policy(
        "defaults: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}, lifetime: 4320h}\n\
         categories: [{category: Client, certificate: {lifetime: 720h}}]\n\
         overrides:\n\
         - {certificateName: etcd-peer, certificate: {lifetime: 48h}}\n\
         - {certificateName: admin.conf, certificate: {key: {algorithm: RSA, rsa: {keySize: 4096}}}}",
    );
    let hours = |name| policy.lifetime_of(name).unwrap().as_secs() / 3600;
    for (name, key, lifetime) in [
        (CertName::Apiserver, KeyAlgorithm::EcdsaP384, 4320),
        (CertName::EtcdPeer, KeyAlgorithm::EcdsaP384, 48),
        (CertName::SchedulerConf, KeyAlgorithm::EcdsaP384, 720),
        (CertName::AdminConf, KeyAlgorithm::Rsa4096, 720),
    ] {
        assert_eq!(policy.key_for(name), key, "{name}");
        assert_eq!(hours(name), lifetime, "{name}");
    }
    let without = KeyPolicy::new(KeyRules::default(), KeyAlgorithm::Rsa2048);
    assert_eq!(without.lifetime_of(CertName::Apiserver), None);
}

#[test]
fn policy_of_cluster_replaces_that_of_node_as_a_whole() {
    let node = policy("defaults: {key: {algorithm: RSA, rsa: {keySize: 3072}}, lifetime: 720h}");
    let (cluster, _) = rules(
        "categories: [{category: Client, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}]",
    )
    .unwrap();
    assert_eq!(node.clone().replaced_by(None), node);
    let replaced = node.replaced_by(Some(cluster));
    assert_eq!(
        replaced.key_for(CertName::AdminConf),
        KeyAlgorithm::EcdsaP384
    );
    assert_eq!(replaced.key_for(CertName::Apiserver), KeyAlgorithm::Rsa2048);
    assert_eq!(replaced.lifetime_of(CertName::Apiserver), None);
}

#[test]
fn refuses_lifetime_that_is_not_positive_or_not_of_leaf_certificate() {
    assert_eq!(
        faults(
            "defaults: {lifetime: 30d}\n\
             categories:\n\
             - {category: Client, certificate: {lifetime: 0s}}\n\
             - {category: Signer, certificate: {lifetime: 87600h}}\n\
             overrides:\n\
             - {certificateName: sa, certificate: {lifetime: 720h}}\n\
             - {certificateName: etcd-ca, certificate: {lifetime: 720h}}"
        )
        .lines()
        .map(|line| line.rsplit_once(" (").unwrap().0)
        .collect::<Vec<_>>(),
        [
            "pki.yaml:5:24: spec.defaults.lifetime: \"30d\" has the unknown unit \"d\"",
            "pki.yaml:7:48: spec.categories[0].certificate.lifetime: must be longer than zero",
            "pki.yaml:8:48: spec.categories[1].certificate.lifetime: is for leaf certificates only: the owner of a CA decides on the lifetime of its certificate, and the pair sa has no certificate",
            "pki.yaml:10:51: spec.overrides[0].certificate.lifetime: is for leaf certificates only: the owner of a CA decides on the lifetime of its certificate, and the pair sa has no certificate",
            "pki.yaml:11:56: spec.overrides[1].certificate.lifetime: is for leaf certificates only: the owner of a CA decides on the lifetime of its certificate, and the pair sa has no certificate",
        ]
    );
}

#[test]
fn warns_of_lifetime_of_more_than_a_year_once() {
    assert!(
        policy("defaults: {lifetime: 8760h}")
            .warnings(None)
            .is_empty()
    );
    let policy = policy("defaults: {lifetime: 8761h}");
    let warnings = policy.warnings(None);
    let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["pki.yaml:5:24: spec.defaults.lifetime: 8761h is longer than a year (shorten it)"]
    );
}

#[test]
fn names_lifetime_that_counts_of_two_for_one_key() {
    let (read, warnings) = rules(
        "overrides:\n\
         - {certificateName: etcd-peer, certificate: {lifetime: 48h}}\n\
         - {certificateName: etcd-peer-server, certificate: {lifetime: 24h}}",
    )
    .unwrap();
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "pki.yaml:7:23: spec.overrides[1].certificateName: etcd-peer-server requests 24h for etcd-peer, but line 6 requests 48h; 48h counts (make both the same, as a kubeadm cluster has one key for both)"
        ]
    );
    let policy = KeyPolicy::new(read, KeyAlgorithm::Rsa2048);
    let lifetime = policy.lifetime_of(CertName::EtcdPeer).unwrap();
    assert_eq!(lifetime, Duration::from_secs(48 * 3600));
}

#[test]
fn reports_all_faults() {
    assert_eq!(
        faults(
            "defaults: {key: {algorithm: RSA, ecdsa: {curve: P256}}}\n\
             categories:\n\
             - {category: Server, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P-256}}}}\n\
             - {category: Client, certificate: {key: {algorithm: RSA, rsa: {keySize: 8192}}}}\n\
             - {category: Signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 1024}}}}\n\
             - {certificate: {}}\n\
             overrides:\n\
             - {certificateName: etcd-srver, certificate: {key: {algorithm: DSA}}}\n\
             - {certificateName: sa, certifcate: {}}"
        ),
        "pki.yaml:5:19: spec.defaults.key: rsa is required when algorithm is RSA (add rsa: {keySize: 2048})\n\
         pki.yaml:5:43: spec.defaults.key.ecdsa: ecdsa is forbidden when algorithm is RSA (remove it, or change algorithm to ECDSA)\n\
         pki.yaml:7:16: spec.categories[0].category: \"Server\" is not a category of certificates (use SignerCertificate, ServingCertificate or ClientCertificate)\n\
         pki.yaml:7:77: spec.categories[0].certificate.key.ecdsa.curve: \"P-256\" is not a curve (use P256, P384 or P521)\n\
         pki.yaml:8:75: spec.categories[1].certificate.key.rsa.keySize: RSA keys of 8192 bits are not supported: each handshake would cost many times that of 4096 bits, and kubeadm has no name for them (use 2048, 3072 or 4096)\n\
         pki.yaml:9:75: spec.categories[2].certificate.key.rsa.keySize: 1024 is not an RSA key size (use 2048, 3072 or 4096)\n\
         pki.yaml:10:5: spec.categories[3]: has no category (use SignerCertificate, ServingCertificate or ClientCertificate)\n\
         pki.yaml:10:19: spec.categories[3].certificate: has no key (add key: {algorithm: RSA, rsa: {keySize: 2048}})\n\
         pki.yaml:12:23: spec.overrides[0].certificateName: \"etcd-srver\" is not a name of a certificate, an authority or sa (did you mean etcd-server?)\n\
         pki.yaml:12:66: spec.overrides[0].certificate.key.algorithm: \"DSA\" is not a key algorithm (use RSA, ECDSA or MLDSA)\n\
         pki.yaml:13:5: spec.overrides[1]: has no certificate (add certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}})\n\
         pki.yaml:13:27: spec.overrides[1].certifcate: unknown field (did you mean certificate?)"
    );
}

#[test]
fn validates_api_form_like_the_api() {
    for (spec, want) in [
        (
            "certificateManagement: {mode: Custom}",
            "mode Custom needs custom (add custom with its defaults)",
        ),
        (
            "certificateManagement: {mode: Default, custom: {defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}}",
            "custom is forbidden unless mode is Custom (set mode: Custom, or remove custom)",
        ),
        (
            "certificateManagement: {mode: custom}",
            "\"custom\" is not a mode (use Unmanaged, Default or Custom)",
        ),
        (
            "certificateManagement: {}",
            "has no mode (use Unmanaged, Default or Custom)",
        ),
        (
            "certificateManagement: {mode: Custom, custom: {}}",
            "has no defaults, which mode Custom requires (add defaults: {key: {algorithm: RSA, rsa: {keySize: 2048}}})",
        ),
        (
            "{certificateManagement: {mode: Default}, defaults: {}}",
            "is given together with certificateManagement, which is another form of the same policy (move it below certificateManagement.custom)",
        ),
        (
            "defaults: {}",
            "has no key (add key: {algorithm: RSA, rsa: {keySize: 2048}})",
        ),
        (
            "categories:\n- {category: Signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}\n- {category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}",
            "category SignerCertificate is given twice, first in line 6 (keep one of them)",
        ),
    ] {
        let text = faults(spec);
        assert!(text.ends_with(want), "{text}");
    }
}

#[test]
fn maps_openshift_names_and_reports_conflicts() {
    let entry = |name: &str, size: u32| {
        format!(
            "- {{certificateName: {name}, certificate: {{key: {{algorithm: RSA, rsa: {{keySize: {size}}}}}}}}}\n"
        )
    };
    let spec = format!(
        "overrides:\n{}{}{}{}",
        entry("kube-apiserver-lb-server", 4096),
        entry("kube-apiserver-localhost-server", 4096),
        entry("admin-kubeconfig-client", 3072),
        entry("service-ca", 4096)
    );
    let (read, warnings) = rules(&spec).unwrap();
    let policy = KeyPolicy::new(read, KeyAlgorithm::Rsa2048);
    assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::Rsa4096);
    assert_eq!(policy.key_for(CertName::AdminConf), KeyAlgorithm::Rsa3072);
    assert_eq!(
        policy.key_for(CertName::SuperAdminConf),
        KeyAlgorithm::Rsa3072
    );
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "pki.yaml:9:23: spec.overrides[3].certificateName: service-ca has no counterpart in a kubeadm cluster and is ignored (remove the entry if the file is for kubeadm clusters only)"
        ]
    );
    // kubeadm's name counts, or else the first one.
    for (first, second, counts) in [
        ("etcd-signer", "etcd-ca", KeyAlgorithm::Rsa3072),
        ("etcd-ca", "etcd-signer", KeyAlgorithm::Rsa4096),
    ] {
        let spec = format!("overrides:\n{}{}", entry(first, 4096), entry(second, 3072));
        let (read, warnings) = rules(&spec).unwrap();
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [format!(
                "pki.yaml:7:23: spec.overrides[1].certificateName: {second} requests RSA-3072 for etcd-ca, but line 6 requests RSA-4096; {counts} counts (make both the same, as a kubeadm cluster has one key for both)"
            )]
        );
        let policy = KeyPolicy::new(read, KeyAlgorithm::Rsa2048);
        assert_eq!(policy.key_for_authority(Authority::EtcdCa), counts);
    }
    let spec = format!("overrides:\n{}{}", entry("ca", 4096), entry("ca", 3072));
    assert_eq!(
        faults(&spec),
        "pki.yaml:7:23: spec.overrides[1].certificateName: ca requests RSA-3072 for ca, but line 6 requests RSA-4096 (make both the same, as a kubeadm cluster has one key for both)"
    );
    for (name, _) in OPENSHIFT_NAMES {
        assert!(
            rules(&format!("overrides:\n{}", entry(name, 2048))).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn reads_ml_dsa_and_warns_of_components_that_cannot_use_it() {
    for set in ["ML-DSA-44", "ML-DSA-65", "ML-DSA-87"] {
        let policy = policy(&format!(
            "categories:\n- {{category: ServingCertificate, certificate: {{key: {{algorithm: MLDSA, mldsa: {{parameterSet: {set}}}}}}}}}"
        ));
        assert_eq!(policy.key_for(CertName::Apiserver).as_str(), set);
        assert_eq!(policy.key_for(CertName::AdminConf), KeyAlgorithm::Rsa2048);
        let warnings = |version: Option<&str>| -> Vec<String> {
            let version = version.map(|version| version.parse().unwrap());
            let warnings = policy.warnings(version.as_ref());
            warnings.iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            warnings(Some("v1.37.4")),
            [format!(
                "pki.yaml:6:55: spec.categories[0].certificate.key: {set} keys need components that are built with Go 1.27, as those of Kubernetes 1.38; this cluster is v1.37.4, and older components do not start with such a key or trust such a CA (use ECDSA until every component of the cluster, every client and etcd is new enough)"
            )]
        );
        assert!(warnings(None)[0].contains("the version of this cluster is not known"));
        assert_eq!(warnings(Some("v1.38.0")), [""; 0]);
    }
}

#[test]
fn refuses_ml_dsa_for_tokens_and_unknown_parameter_sets() {
    let key = "{key: {algorithm: MLDSA, mldsa: {parameterSet: ML-DSA-65}}}";
    assert_eq!(
        faults(&format!("defaults: {key}")),
        "pki.yaml:5:19: spec.defaults.key: sa would have a key of ML-DSA-65, with which kube-apiserver cannot sign tokens (add an override with certificateName sa and an ECDSA or RSA key)"
    );
    let sa = "overrides:\n- {certificateName: sa, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}";
    assert!(rules(&format!("defaults: {key}\n{sa}")).is_ok());
    for (mldsa, problem) in [
        (
            "{parameterSet: ML-DSA-99}",
            "\"ML-DSA-99\" is not a parameter set of ML-DSA (use ML-DSA-44, ML-DSA-65 or ML-DSA-87)",
        ),
        (
            "{parameterSet: ECDSA-P256}",
            "\"ECDSA-P256\" is not a parameter set of ML-DSA (use ML-DSA-44, ML-DSA-65 or ML-DSA-87)",
        ),
        (
            "{}",
            "has no parameterSet (add parameterSet: ML-DSA-44, ML-DSA-65 or ML-DSA-87)",
        ),
    ] {
        let found = faults(&format!(
            "{sa}\n- {{certificateName: apiserver, certificate: {{key: {{algorithm: MLDSA, mldsa: {mldsa}}}}}}}"
        ));
        assert!(found.ends_with(problem), "{found}");
    }
}

#[test]
fn warns_of_keys_with_limited_support() {
    let policy = policy(
        "overrides:\n\
         - {certificateName: etcd-peer, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P521}}}}\n\
         - {certificateName: sa, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P521}}}}\n\
         - {certificateName: ca, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P384}}}}",
    );
    let warnings = |version: &str| -> Vec<String> {
        let version = version.parse().unwrap();
        policy
            .warnings(Some(&version))
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    let old = warnings("v1.33.0");
    assert_eq!(
        old,
        [
            "pki.yaml:8:46: spec.overrides[2].certificate.key: kubeadm offers ECDSA-P384 since 1.34, but this cluster is v1.33.0; its components can load such keys (kubeadm certs renew would create other keys; renew with nodepki only)",
            "pki.yaml:6:53: spec.overrides[0].certificate.key: kubeadm does not offer ECDSA-P521 (for etcd-peer); Kubernetes components can load such keys, some clients and signers cannot (kubeadm certs renew would create other keys; renew with nodepki only)",
            "pki.yaml:7:46: spec.overrides[1].certificate.key: an ECDSA-P521 sa key signs tokens with ES512: kube-apiserver supports it, but kubeadm cannot create such a key, and some verifiers outside the cluster may not support it (add an override for sa with ECDSA P256 or RSA)",
        ]
    );
    assert_eq!(warnings("v1.34.0").len(), 2);
}

#[test]
fn refuses_second_policy() {
    let document = yaml::parse(
        "p.yaml",
        "apiVersion: config.openshift.io/v1\nkind: PKI\nspec: {}",
    )
    .unwrap();
    let error = KeyPolicy::assemble(Some(&KeyRules::default()), &document, KeyAlgorithm::Rsa2048)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "p.yaml:1:1: is a second PKI policy; the first is the pki block of the settings (keep one of the two)"
    );
    let (policy, _) = KeyPolicy::assemble(None, &document, KeyAlgorithm::EcdsaP256).unwrap();
    assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::EcdsaP256);
}

/// `install-config.yaml` of the enhancement has one key for each category.
#[test]
fn reads_form_of_installer() {
    let policy = policy(
        "signerCertificates: {key: {algorithm: RSA, rsa: {keySize: 4096}}}\n\
         overrides: [{certificateName: etcd-ca, certificate: {key: {algorithm: RSA, rsa: {keySize: 3072}}}}]",
    );
    assert_eq!(
        policy.key_for_authority(Authority::Ca),
        KeyAlgorithm::Rsa4096
    );
    assert_eq!(
        policy.key_for_authority(Authority::EtcdCa),
        KeyAlgorithm::Rsa3072
    );
    assert_eq!(policy.key_for(CertName::Apiserver), KeyAlgorithm::Rsa2048);
    let both = faults(
        "signerCertificates: {key: {algorithm: RSA, rsa: {keySize: 4096}}}\n\
         categories: [{category: SignerCertificate, certificate: {key: {algorithm: RSA, rsa: {keySize: 3072}}}}]",
    );
    assert!(both.contains("SignerCertificate is given twice"), "{both}");
}

#[test]
fn refuses_policy_with_other_name() {
    let text = "apiVersion: config.openshift.io/v1\nkind: PKI\nmetadata: {name: other}\nspec: {}\n";
    let faults = KeyRules::from_document(&yaml::parse("pki.yaml", text).unwrap()[0])
        .unwrap_err()
        .to_string();
    assert!(
        faults.contains("pki.yaml:3:18: metadata.name: \"other\" is not the cluster's policy"),
        "{faults}"
    );
}

#[test]
fn policy_of_cluster_names_registered_certificates() {
    let entry = |name: &str| {
        format!(
            "overrides: [{{certificateName: {name}, certificate: {{key: {{algorithm: ECDSA, ecdsa: {{curve: P384}}}}}}}}]"
        )
    };
    let policy = policy(&entry("konnectivity-server"));
    let name = CertName::Registered("konnectivity-server".parse().unwrap());
    assert_eq!(policy.key_for(name), KeyAlgorithm::EcdsaP384);
    let similar = faults(&entry("etcd-sever"));
    assert!(
        similar.ends_with("(did you mean etcd-server?)"),
        "{similar}"
    );
}

#[test]
fn object_has_the_rules_it_was_made_of() {
    for spec in [
        "{}",
        "defaults: {key: {algorithm: RSA, rsa: {keySize: 4096}}, lifetime: 1h30m}",
        "categories:\n\
         - {category: SignerCertificate, certificate: {key: {algorithm: MLDSA, mldsa: {parameterSet: ML-DSA-87}}}}\n\
         - {category: ServingCertificate, certificate: {lifetime: 24h}}\n\
         overrides:\n\
         - {certificateName: etcd-server, certificate: {key: {algorithm: ECDSA, ecdsa: {curve: P521}}}}\n\
         - {certificateName: aggregator-signer, certificate: {key: {algorithm: RSA, rsa: {keySize: 3072}}}}\n\
         - {certificateName: webhook, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}\n\
         - {certificateName: sa, certificate: {key: {algorithm: RSA, rsa: {keySize: 2048}}}}",
        "certificateManagement: {mode: Custom, custom: {defaults: {key: {algorithm: ECDSA, ecdsa: {curve: P256}}}}}",
    ] {
        let (first, _) = rules(spec).unwrap();
        let object = first.to_object();
        let document = yaml::parse("pki.yaml", &object.to_string()).unwrap();
        let (again, warnings) = KeyRules::from_document(&document[0]).unwrap();
        assert!(warnings.is_empty(), "{spec}");
        assert_eq!(again.to_object(), object, "{spec}");
        for owner in KeyOwner::named() {
            let value = |rules: &KeyRules| {
                let key = rules.key(owner).map(|key| key.value);
                (key, rules.lifetime(owner).map(|lifetime| lifetime.value))
            };
            assert_eq!(value(&again), value(&first), "{spec}: {owner}");
        }
    }
}

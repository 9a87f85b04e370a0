//! The settings of kind `vault`, and the paths that follow from them: `address`, `mount` (the path of a PKI engine; with
//! `{authority}` in it one signer serves all three authorities) and `auth`. `nodepki config signer-setup vault` prints
//! every command that an administrator of the server runs once for a node: mounts, roles, policy, login; the modules
//! `setup` and `role` explain each line.

use super::api::segments;
use super::auth::VaultAuth;
use super::{Vault, setup};
use crate::http::{Endpoint, Url};
use crate::kube::names::{Authority, CertName};
use crate::signer::per_certificate::{PerCertificate, of_authority, read_of_authority};
use crate::signer::{
    About, Caps, Carry, Configured, NodeIdentity, Part, Renewal, RequestLookup, Resubmit, Signer,
    SignerError, SignerObstacle, Site, endpoint,
};
use crate::x509::UsageExtensions;
use crate::yaml::schema::section;
use crate::yaml::settings::{SettingsBlock, settings, unless_empty};
use crate::yaml::{Field, Map};

settings! {
    /// A PKI engine and the credential for it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Config {
        /// `https://HOST[:PORT]` of Vault or OpenBao.
        "address" => pub endpoint: Endpoint, required "with https://HOST:8200", flat endpoint;
        /// Further address of the same cluster, to which a standby may redirect this node.
        "alsoAllow" => also: Vec<Url>, show unless_empty::<Url>;
        /// Namespace of mount and auth.
        "namespace" => pub namespace: Option<String>, read read_namespace;
        /// Path of the PKI engine; {authority}, {node} and {cluster} are replaced.
        "mount" => pub mount: String, required "with the path of a PKI engine", read path_of_authority;
        /// Name or id of an issuer in the mount, with the same placeholders; by default the role's.
        "issuer" => pub issuer: Option<String>, read read_issuer;
        /// Role that signs; by default {certificate}, and {certificate}-{node} for certificates that name the node and for registered ones.
        "role" => pub role: Option<PerCertificate>;
        /// Sign with sign-verbatim, which lets this node certify anything.
        "verbatim" => pub verbatim: bool;
        /// How this node logs in.
        "auth" => pub auth: VaultAuth, required "with tokenFile, appRole, certificate, jwt or kubernetes";
    }
}

pub(super) const CAPS: Caps = Caps {
    organization: Carry::AsConfigured,
    colon_common_name: Carry::AsConfigured,
    ip_sans: Carry::AsConfigured,
    ml_dsa: Carry::No,
    own_name_san: false,
    usage_extensions: UsageExtensions::Requested,
    pends: false,
    lookup: RequestLookup::None,
    resubmit: Resubmit::Duplicates,
    renewal: Renewal::Submit,
    crl: Carry::Yes,
    other_nodes: Carry::AsConfigured,
    empty_csr: Carry::AsConfigured,
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "vault",
        signs_with: "HashiCorp Vault or OpenBao, PKI secrets engine",
        authentication: "token file, AppRole (also wrapped), TLS certificate, JWT, Kubernetes",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn read(map: &Map<'_>) -> Option<Self> {
        let mut config = Self::read_keys(map)?;
        endpoint::refuse_path("/v1", map, "address");
        endpoint::require_trust(
            &config.endpoint,
            map,
            false,
            "add tls.caFile: with the server's CA, or tls.sha256: with a pin of it",
        );
        if matches!(config.auth, VaultAuth::Certificate(_))
            && config.endpoint.tls.certificate.is_none()
        {
            map.field().error(
                "logs in with a TLS certificate and has none",
                "name it under tls.certificate and tls.key",
            );
        }
        if let VaultAuth::AppRole(app) = &config.auth
            && app.role_id.is_some() == app.role_id_file.is_some()
        {
            let field = section(map, "auth").and_then(|auth| auth.get("appRole"));
            field.as_ref().unwrap_or(map.field()).error(
                "needs exactly one of roleID and roleIDFile",
                "add the role_id, or the file with it",
            );
        }
        config.endpoint.also.clone_from(&config.also);
        if config.role.is_none() && !config.verbatim {
            config.role = Some(default_roles(&map.field().walk().all_declared()));
        }
        Some(config)
    }

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        self.role
            .as_ref()?
            .for_this_node_only("role", &PerCertificate::OF_KUBELETS)
    }

    fn pod_obstacle(&self) -> Option<SignerObstacle> {
        let Some(role) = self.role.as_ref().filter(|_| !self.verbatim) else {
            return Some(SignerObstacle::new(
                "verbatim takes the subject from the CSR, and that of a pod has none",
                "configure roles in place of verbatim, or remove kubelets.signPods",
            ));
        };
        role.for_this_node_only("role", &[CertName::PodClient])
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        Ok(Box::new(Vault::new(self, site)?))
    }

    fn setup(parts: &[Part<'_, Self>], identity: &NodeIdentity) -> Option<String> {
        Some(setup::print(parts, identity))
    }
}

/// Returns the default roles: certificates that contain the node's name have a role for each node, and so have those with
/// the names `registered`.
fn default_roles(registered: &[String]) -> PerCertificate {
    let own = [
        CertName::Apiserver,
        CertName::EtcdServer,
        CertName::EtcdPeer,
        CertName::KubeletConf,
        CertName::KubeletServing,
    ];
    PerCertificate {
        default: Some("{certificate}".to_owned()),
        named: own
            .into_iter()
            .chain(registered.iter().filter_map(|name| name.parse().ok()))
            .map(|name| (name, "{certificate}-{node}".to_owned()))
            .collect(),
    }
}

fn path_of_authority(field: &Field<'_>) -> Option<String> {
    read_of_authority(field).and_then(|text| checked_path(field, &text))
}

fn read_issuer(field: &Field<'_>) -> Option<Option<String>> {
    path_of_authority(field).map(Some)
}

fn read_namespace(field: &Field<'_>) -> Option<Option<String>> {
    path(field).map(Some)
}

pub(super) fn path(field: &Field<'_>) -> Option<String> {
    field.string().and_then(|text| checked_path(field, &text))
}

fn checked_path(field: &Field<'_>, text: &str) -> Option<String> {
    let path = text.trim_matches('/');
    let sound = path
        .split('/')
        .all(|segment| !matches!(segment, "" | "." | ".."));
    if !sound {
        field.error(
            format!("{text:?} is not a path"),
            "write it as `bao secrets list` or `vault secrets list` prints it",
        );
    }
    sound.then(|| path.to_owned())
}

/// API paths for one certificate.
pub(super) struct SignPaths {
    /// Path of signing, below `/v1/`, each segment encoded.
    pub(super) sign: String,
    /// The same path as in policies.
    pub(super) policy: String,
    /// Path of the role, as in policies.
    pub(super) role: Option<String>,
}

impl Config {
    pub(super) fn mount_of(&self, authority: Authority, identity: &NodeIdentity) -> String {
        of_authority(&self.mount, authority, identity)
    }

    pub(super) fn issuer_of(
        &self,
        authority: Authority,
        identity: &NodeIdentity,
    ) -> Option<String> {
        let issuer = self.issuer.as_ref()?;
        Some(of_authority(issuer, authority, identity))
    }

    /// Returns the mount and the issuer of an authority, which together determine its CA.
    pub(crate) fn issuer_place(
        &self,
        authority: Authority,
        identity: &NodeIdentity,
    ) -> (String, Option<String>) {
        let issuer = self.issuer_of(authority, identity);
        (self.mount_of(authority, identity), issuer)
    }

    /// Returns `None` if `role` has no entry for the certificate.
    pub(super) fn place(&self, name: CertName, identity: &NodeIdentity) -> Option<SignPaths> {
        let mount = self.mount_of(name.authority(), identity);
        let role = self
            .role
            .as_ref()
            .and_then(|role| role.of_name(name, identity));
        let base = match self.issuer_of(name.authority(), identity) {
            Some(issuer) => format!("{mount}/issuer/{issuer}"),
            None => mount.clone(),
        };
        let verb = if self.verbatim {
            "sign-verbatim"
        } else {
            "sign"
        };
        let policy = match &role {
            Some(role) => format!("{base}/{verb}/{role}"),
            None if self.verbatim => format!("{base}/{verb}"),
            None => return None,
        };
        Some(SignPaths {
            sign: segments(&policy),
            policy,
            role: role.map(|role| format!("{mount}/roles/{role}")),
        })
    }
}

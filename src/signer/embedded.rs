//! `embedded`: three temporary authorities in the memory of this process.
//!
//! For `demo` and for experiments. The CA keys are never written to disk, so certificates of this signer cannot be
//! renewed later.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map as JsonMap, Value};
use time::OffsetDateTime;

use super::{
    About, Answer, Caps, Carry, Configured, OTHER_SIGNER, Request, Signer, SignerError, SignerKind,
    SignerObstacle, Site, local,
};
use crate::kube::names::Authority;
use crate::x509::{CertificateAuthority, KeyAlgorithm};
use crate::yaml::Map;
use crate::yaml::schema::MapKey;
use crate::yaml::settings::SettingsBlock;

/// kubeadm's default lifetime of a CA: ten years.
const CA_LIFETIME: Duration = Duration::from_secs(87_600 * 60 * 60);

/// No settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config;

impl SettingsBlock for Config {
    const KEYS: &'static [MapKey] = &[];

    fn read_keys(_map: &Map<'_>) -> Option<Self> {
        Some(Config)
    }

    fn show_keys(&self, _keys: &mut JsonMap<String, Value>) {}
}

const CAPS: Caps = Caps {
    other_nodes: Carry::No,
    empty_csr: Carry::No,
    ..Caps::everything()
};

impl Configured for Config {
    const ABOUT: About = About {
        name: "embedded",
        signs_with: "authorities that exist only in memory",
        authentication: "none",
        caps: CAPS,
        keys: Config::KEYS,
    };

    fn kubelet_obstacle(&self) -> Option<SignerObstacle> {
        let reason = "its CA keys exist only in the memory of one process";
        Some(SignerObstacle::new(reason, OTHER_SIGNER))
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        Ok(Box::new(Embedded::new(site.authority_key, site.now)))
    }
}

/// Signs with authorities that it generates on first use.
pub struct Embedded {
    key: KeyAlgorithm,
    now: OffsetDateTime,
    authorities: RefCell<BTreeMap<Authority, Rc<CertificateAuthority>>>,
}

impl Embedded {
    /// Creates a signer whose authorities have keys of `key` and are valid from `now`.
    pub fn new(key: KeyAlgorithm, now: OffsetDateTime) -> Self {
        Embedded {
            key,
            now,
            authorities: RefCell::default(),
        }
    }

    fn authority(&self, authority: Authority) -> Result<Rc<CertificateAuthority>, SignerError> {
        if let Some(made) = self.authorities.borrow().get(&authority) {
            return Ok(Rc::clone(made));
        }
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            SignerError::permanent(
                format!("the temporary authority {authority} could not be created"),
                "try another key algorithm",
            )
            .caused_by(error)
        };
        let key = CertificateAuthority::new_key(self.key).map_err(|error| failed(error.into()))?;
        let made =
            CertificateAuthority::self_signed(authority.common_name(), key, self.now, CA_LIFETIME)
                .map_err(|error| failed(error.into()))?;
        let made = Rc::new(made);
        self.authorities
            .borrow_mut()
            .insert(authority, Rc::clone(&made));
        Ok(made)
    }
}

#[async_trait(?Send)]
impl Signer for Embedded {
    fn kind(&self) -> SignerKind {
        SignerKind::Embedded
    }

    fn label(&self) -> String {
        "embedded".to_owned()
    }

    fn caps(&self) -> &Caps {
        &CAPS
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let authority = self.authority(authority)?;
        Ok(Some(authority.bundle().to_pem().into_bytes()))
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        local::issue(&*self.authority(request.wanted.authority)?, request)
    }
}

//! `embedded`: three throw-away authorities that live in this process's memory and die with it.
//!
//! For `demo` and for trying things out. The CA keys are never written anywhere, so nothing that it signed can be
//! renewed later.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::{
    About, Answer, Caps, Configured, Kind, Rejection, Request, Signer, SignerError, Site, Ticket,
    Wanted, local,
};
use crate::kube::names::Authority;
use crate::x509::{CertificateAuthority, KeyAlgorithm};
use crate::yaml::Map;
use crate::yaml::schema::{Form, Key, key};

/// kubeadm's default for a CA: ten years.
const LIFETIME: Duration = Duration::from_secs(87_600 * 60 * 60);

/// There is nothing to configure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config;

const KEYS: &[Key] = &[key("", Form::Empty, "A throw-away authority in memory.")];

impl Configured for Config {
    const ABOUT: About = About {
        name: "embedded",
        signs_with: "authorities that exist only in memory",
        authentication: "none",
        caps: Caps::everything(),
        keys: &[KEYS],
    };

    fn read(_map: &Map<'_>) -> Option<Self> {
        Some(Config)
    }

    fn redacted(&self) -> Value {
        json!({})
    }

    fn open(&self, site: &Site<'_>) -> Result<Box<dyn Signer>, SignerError> {
        Ok(Box::new(Embedded::new(site.authority_key, site.now)))
    }
}

/// Signs with authorities that it makes on first use.
pub struct Embedded {
    key: KeyAlgorithm,
    now: OffsetDateTime,
    caps: Caps,
    authorities: RefCell<BTreeMap<Authority, Rc<CertificateAuthority>>>,
}

impl Embedded {
    /// Authorities with keys of `key`, valid from `now`.
    pub fn new(key: KeyAlgorithm, now: OffsetDateTime) -> Self {
        Embedded {
            key,
            now,
            caps: Caps::everything(),
            authorities: RefCell::default(),
        }
    }

    fn authority(&self, authority: Authority) -> Result<Rc<CertificateAuthority>, SignerError> {
        if let Some(made) = self.authorities.borrow().get(&authority) {
            return Ok(Rc::clone(made));
        }
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            SignerError::permanent(
                format!("the throw-away authority {authority} could not be made"),
                "try another key algorithm",
            )
            .caused_by(error)
        };
        let key = CertificateAuthority::new_key(self.key).map_err(|error| failed(error.into()))?;
        let made =
            CertificateAuthority::self_signed(authority.common_name(), key, self.now, LIFETIME)
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
    fn kind(&self) -> Kind {
        Kind::Embedded
    }

    fn label(&self) -> String {
        "embedded".to_owned()
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn preflight(&self, _wanted: &Wanted) -> Result<(), Rejection> {
        Ok(())
    }

    async fn trust(&self, authority: Authority) -> Result<Option<Vec<u8>>, SignerError> {
        let authority = self.authority(authority)?;
        Ok(Some(authority.bundle().to_pem().into_bytes()))
    }

    async fn recover(
        &self,
        _request: &Request,
        _ticket: Option<&Ticket>,
    ) -> Result<Option<Answer>, SignerError> {
        Ok(None)
    }

    async fn submit(&self, request: &Request) -> Result<Answer, SignerError> {
        local::issue(&*self.authority(request.wanted.authority)?, request)
    }

    async fn poll(&self, _request: &Request, _ticket: &Ticket) -> Result<Answer, SignerError> {
        Ok(Answer::Gone)
    }
}

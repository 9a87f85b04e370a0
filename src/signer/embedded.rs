//! `embedded`: three throw-away authorities that live in this process's memory and die with it.
//!
//! For `demo` and for trying things out. The CA keys are never written anywhere, so nothing that it signed can be
//! renewed later.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;

use super::{Answer, Caps, Kind, Rejection, Request, Signer, SignerError, Ticket, Wanted, local};
use crate::names::Authority;
use crate::x509::{CertificateAuthority, KeyAlgorithm};

/// kubeadm's default for a CA: ten years.
const LIFETIME: Duration = Duration::from_secs(87_600 * 60 * 60);

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

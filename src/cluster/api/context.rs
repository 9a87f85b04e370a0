//! The current context of a kubeconfig: an endpoint, a client certificate and a token.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use zeroize::Zeroizing;

use super::{ApiError, unread};
use crate::http::{ClientIdentity, Endpoint, Files, Url};
use crate::kube::kubeconfig::{CurrentContext, Kubeconfig, resolve_path};
use crate::kube::paths::KUBERNETES_DIR;
use crate::yaml::schema::SecretFile;

const CREATE_KUBECONFIG: &str = "create it with `kubectl config view --raw --minify --flatten`";

/// The current context, with access to the files that the kubeconfig names.
pub(super) struct KubeconfigContext {
    /// The kubeconfig, for messages.
    shown: String,
    path: PathBuf,
    pub(super) files: Rc<dyn Files>,
    current: CurrentContext,
}

impl KubeconfigContext {
    /// Reads the kubeconfig `file`, which is at `path`.
    pub(super) fn read(
        files: &Rc<dyn Files>,
        file: &SecretFile,
        path: PathBuf,
    ) -> Result<KubeconfigContext, ApiError> {
        let shown = files.shown_secret(file);
        let read = files.read(&path);
        let bytes = read.map_err(|source| unread(files, file, source))?;
        let named_files = match files.named_in(&path) {
            Ok(Some(named)) => named,
            Ok(None) => Rc::clone(files),
            Err(error) => return Err(unread(files, file, error)),
        };
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| invalid(&shown, "is not UTF-8 text".to_owned(), CREATE_KUBECONFIG))?;
        let current = Kubeconfig::parse(text)
            .and_then(|kubeconfig| kubeconfig.current())
            .map_err(|error| {
                let why = format!("cannot be used: {error}");
                invalid(&shown, why, CREATE_KUBECONFIG)
            })?;
        // A kubeconfig of the node keeps the mode that an administrator gave it; `doctor` reports it.
        if current.has_secret() && !is_of_node(&path) {
            let read = files.read_secret(&path);
            read.map_err(|source| unread(files, file, source))?;
        }
        if !current.beyond.is_empty() {
            let unsupported = current.beyond.join(", ");
            return Err(invalid(
                &shown,
                format!("has {unsupported}, which nodepki does not follow"),
                "use one with certificate-authority-data and a token, a tokenFile or a client certificate",
            ));
        }
        Ok(KubeconfigContext {
            shown,
            path,
            files: named_files,
            current,
        })
    }

    /// Returns the API server.
    pub(super) fn endpoint(&mut self, timeout: Duration) -> Result<Endpoint, ApiError> {
        let server = self
            .current
            .server
            .as_deref()
            .ok_or_else(|| self.invalid("names no server".to_owned()))?;
        let mut endpoint = Endpoint::new(self.address("server", server)?);
        endpoint.timeout = timeout;
        if let Some(proxy) = &self.current.proxy {
            endpoint.proxy = Some(self.address("proxy-url", proxy)?);
        }
        endpoint.tls.server_name = self.current.server_name.take();
        endpoint.tls.ca_pem = self.current.authority.take();
        if endpoint.tls.ca_pem.is_none() {
            let file = self.current.authority_file.as_deref();
            endpoint.tls.ca_file = file.map(|name| self.resolve(name));
        }
        Ok(endpoint)
    }

    /// Returns the client certificate with its key; `None` if the context has neither.
    pub(super) fn identity(&mut self) -> Result<Option<ClientIdentity>, ApiError> {
        let read_failed =
            |path: PathBuf, source| unread(&self.files, &SecretFile::Path(path), source);
        let certificate = match (
            self.current.certificate.take(),
            &self.current.certificate_file,
        ) {
            (Some(pem), _) => Some(Zeroizing::new(pem)),
            (None, Some(name)) => {
                let path = self.resolve(name);
                let read = self.files.read(&path);
                Some(read.map_err(|source| read_failed(path, source))?)
            }
            (None, None) => None,
        };
        let key = match (self.current.key.take(), &self.current.key_file) {
            (Some(pem), _) => Some(pem),
            (None, Some(name)) => {
                let path = self.resolve(name);
                let read = self.files.read_secret(&path);
                Some(read.map_err(|source| read_failed(path, source))?)
            }
            (None, None) => None,
        };
        match (certificate, key) {
            (Some(certificate), Some(key_pem)) => Ok(Some(ClientIdentity {
                chain_pem: certificate.to_vec(),
                key_pem,
            })),
            (None, None) => Ok(None),
            _ => {
                let why = "has a client certificate without its key, or the key alone";
                Err(self.invalid(why.to_owned()))
            }
        }
    }

    /// Returns the path of the token file, if the context has one.
    pub(super) fn token_file(&self) -> Option<PathBuf> {
        let name = self.current.token_file.as_deref()?;
        Some(self.resolve(name))
    }

    /// Returns the token in the kubeconfig.
    pub(super) fn token(&mut self) -> Option<Zeroizing<String>> {
        self.current.token.take()
    }

    fn resolve(&self, reference: &str) -> PathBuf {
        resolve_path(&self.path, reference)
    }

    fn address(&self, field: &str, text: &str) -> Result<Url, ApiError> {
        // The message does not contain the address, which may contain a password.
        Url::parse(text).map_err(|error| {
            self.invalid(format!(
                "has a {field} that is not a valid address: {error}"
            ))
        })
    }

    fn invalid(&self, why: String) -> ApiError {
        invalid(&self.shown, why, CREATE_KUBECONFIG)
    }
}

fn invalid(shown: &str, why: String, advice: &'static str) -> ApiError {
    ApiError::Local {
        file: format!("the kubeconfig {shown}"),
        why,
        advice,
    }
}

/// Returns true for the kubeconfig of a component of the node.
pub(crate) fn is_of_node(kubeconfig: &Path) -> bool {
    kubeconfig.parent() == Some(Path::new(KUBERNETES_DIR))
}

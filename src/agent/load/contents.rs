//! Content of the files that the settings name: CA files without a certificate, client certificates that do not match
//! their key or have expired, and credentials that cannot be one.
//!
//! A run reports each of these when it opens a connection; here they are known without one. Missing files and files that
//! other users can read are reported by [`secrets`](super::secrets).

use std::path::{Path, PathBuf};

use serde_json::Value;
use time::OffsetDateTime;

use super::places::{DefinedFiles, defined, is_trusted};
use super::secrets::{named_files, trusted_files};
use crate::config::{Origin, Settings};
use crate::http::Files;
use crate::signer;
use crate::signer::vault::{VaultAuth, role_id_fault};
use crate::store::{FileKind, NodeRoot};
use crate::text::rfc3339;
use crate::x509::{Chain, PrivateKey, TrustBundle, certificates_of, content_instead_of_pem};
use crate::yaml::schema::SecretFile;

/// Settings whose file contains one line of text.
const ONE_LINE_SECRETS: [&str; 5] = [
    "tokenFile",
    "secretIDFile",
    "passwordFile",
    "jwt.file",
    "kubernetes.file",
];

/// Returns each program of a signer that a run would not start. A path below `--root` is refused for another reason.
pub(super) fn unusable_programs(root: &NodeRoot, settings: &Settings) -> Vec<ProgramFault> {
    let signers = settings.signers.iter();
    let programs = signers.filter_map(|(name, config)| match config {
        signer::Config::Exec(exec) => Some((name, exec)),
        _ => None,
    });
    programs
        .filter(|_| is_trusted(root, settings.signer_origin))
        .filter_map(|(name, exec)| {
            let error = exec.program_fault()?;
            Some(ProgramFault {
                is_absent: exec.command.symlink_metadata().is_err(),
                text: format!(
                    "signers.{name}.exec.command: {} ({})",
                    error.detail, error.advice
                ),
            })
        })
        .collect()
}

/// Why a program would not be started.
pub(super) struct ProgramFault {
    pub(super) is_absent: bool,
    pub(super) text: String,
}

/// Returns each CA file of a server that would be accepted, but probably not with the intended effect.
pub(super) fn doubtful_authorities(
    root: &NodeRoot,
    settings: &Settings,
    now: OffsetDateTime,
) -> Vec<String> {
    let files = DefinedFiles::new(root, settings.signer_origin);
    let doubt = |(setting, path): (String, PathBuf)| {
        let bytes = files.read(&path).ok()?;
        let certificates = certificates_of(&bytes).ok()?;
        let why = match certificates.iter().find(|one| one.is_ca()) {
            None => "it contains no CA certificate, and only a server with exactly this certificate is trusted".to_owned(),
            Some(ca) if certificates.iter().all(|one| one.not_after() < now) => {
                format!("its CA certificate expired at {}", rfc3339(ca.not_after()))
            }
            Some(_) => return None,
        };
        let why = format!("{why} (put the certificate of the server's CA there)");
        Some(fault(&setting, &files, &path, &why))
    };
    trusted_files(settings)
        .into_iter()
        .filter_map(doubt)
        .collect()
}

/// Returns each named file that is a directory.
fn directories(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let named = named_files(settings).into_iter();
    let named = named.map(|named| (named.setting, named.origin, named.path));
    let trusted = trusted_files(settings).into_iter();
    let trusted = trusted.map(|(setting, path)| (setting, settings.signer_origin, path));
    let is_directory = |origin: Origin, path: &Path| {
        let found = defined(root, origin, path).ok()?;
        let metadata = found.root.metadata(&found.path).ok()??;
        (metadata.kind == FileKind::Directory).then(|| found.on_this_machine())
    };
    named
        .chain(trusted)
        .filter_map(|(setting, origin, path)| {
            let shown = is_directory(origin, &path)?;
            Some(format!(
                "{setting}: {} is a directory (name the file in it, or remove it with rmdir and write the file)",
                shown.display()
            ))
        })
        .collect()
}

/// Returns each file whose content cannot serve its setting.
pub(super) fn unusable_files(
    root: &NodeRoot,
    settings: &Settings,
    now: OffsetDateTime,
) -> Vec<String> {
    let mut found = directories(root, settings);
    for (setting, path) in trusted_files(settings) {
        let files = DefinedFiles::new(root, settings.signer_origin);
        if let Ok(bytes) = files.read(&path) {
            found.extend(ca_fault(&bytes).map(|why| fault(&setting, &files, &path, &why)));
        }
    }
    for (authority, its) in &settings.authorities {
        let files = DefinedFiles::new(root, settings.origin);
        if let Some(path) = &its.trust_file
            && let Ok(bytes) = files.read(path)
            && let Err(error) = TrustBundle::from_pem(&bytes)
        {
            let setting = format!("authorities.{authority}.trust.file");
            let why = format!("{error} (put the certificate of the CA there)");
            found.push(fault(&setting, &files, path, &why));
        }
    }
    for named in named_files(settings) {
        let files = DefinedFiles::new(root, named.origin);
        if let Ok(bytes) = files.read_secret(&named.path) {
            let why = credential_fault(&named.setting, &bytes);
            found.extend(why.map(|why| fault(&named.setting, &files, &named.path, why)));
        }
    }
    found.extend(client_pairs(root, settings, now));
    found.extend(app_role_faults(root, settings));
    found
}

/// Returns each credential of an AppRole that cannot be one.
fn app_role_faults(root: &NodeRoot, settings: &Settings) -> Vec<String> {
    let files = DefinedFiles::new(root, settings.signer_origin);
    let mut found = Vec::new();
    for (name, config) in &settings.signers {
        let signer::Config::Vault(vault) = config else {
            continue;
        };
        let VaultAuth::AppRole(app) = &vault.auth else {
            continue;
        };
        let setting = format!("signers.{name}.vault.auth.appRole");
        if let Some(SecretFile::Path(path)) = &app.role_id_file
            && let Ok(bytes) = files.read(path)
            && let Ok(text) = std::str::from_utf8(bytes.trim_ascii())
            && let Some(fault) = role_id_fault(text).filter(|_| !text.is_empty())
        {
            found.push(format!(
                "{setting}.roleIDFile: {} {fault} (write only the role_id there)",
                files.shown(path).display()
            ));
        }
        if let SecretFile::Path(path) = &app.secret_id_file
            && let Ok(bytes) = files.read_secret(path)
            && let Ok(text) = std::str::from_utf8(bytes.trim_ascii())
            && let Some((fault, advice)) = app.secret_id_fault(text)
        {
            found.push(format!(
                "{setting}.secretIDFile: {} {fault} ({advice})",
                files.shown(path).display()
            ));
        }
    }
    found
}

fn fault(setting: &str, files: &DefinedFiles, path: &Path, why: &str) -> String {
    format!("{setting}: {}: {why}", files.shown(path).display())
}

/// Returns why a file is not the CA of a server. A file with several certificates need not begin with a CA.
fn ca_fault(bytes: &[u8]) -> Option<String> {
    const FIX: &str = "(put the certificate of the server's CA there, in PEM)";
    let text = String::from_utf8_lossy(bytes);
    if text.contains("PRIVATE KEY-----") {
        return Some(format!(
            "it contains a private key, which does not belong into this file {FIX}"
        ));
    }
    match Chain::from_pem(bytes) {
        Ok(_) => None,
        Err(error) => Some(match content_instead_of_pem(bytes) {
            Some(content) => format!("it contains {content} {FIX}"),
            None => format!("{error} {FIX}"),
        }),
    }
}

/// Returns why a credential cannot be one. No message quotes it.
fn credential_fault(setting: &str, bytes: &[u8]) -> Option<&'static str> {
    if bytes.trim_ascii().is_empty() {
        return Some("the file is empty (write the credential there)");
    }
    let is_one_line = ONE_LINE_SECRETS.iter().any(|end| setting.ends_with(end));
    let text = bytes.trim_ascii();
    if is_one_line && text.contains(&b'\n') {
        return Some("the file has several lines (write only the credential, in one line)");
    }
    if is_one_line && text.starts_with(b"\"") {
        return Some("the credential is in quotation marks (remove them)");
    }
    None
}

/// Returns each client certificate that does not belong to its key or is not valid now.
fn client_pairs(root: &NodeRoot, settings: &Settings, now: OffsetDateTime) -> Vec<String> {
    let mut found = Vec::new();
    for (name, config) in &settings.signers {
        let kind = config.kind().as_str();
        let shown = config.redacted();
        for place in ["tls", "auth/x5c"] {
            let path = |key: &str| {
                let text = shown.pointer(&format!("/{kind}/{place}/{key}"));
                text.and_then(Value::as_str).map(PathBuf::from)
            };
            let (Some(certificate), Some(key)) = (path("certificate"), path("key")) else {
                continue;
            };
            let setting = format!(
                "signers.{name}.{kind}.{}.certificate",
                place.replace('/', ".")
            );
            let why = client_fault(root, settings.signer_origin, &certificate, &key, now);
            found.extend(why.map(|why| format!("{setting}: {why}")));
        }
    }
    found
}

fn client_fault(
    root: &NodeRoot,
    origin: Origin,
    certificate: &Path,
    key: &Path,
    now: OffsetDateTime,
) -> Option<String> {
    let files = DefinedFiles::new(root, origin);
    let bytes = files.read(certificate).ok()?;
    let shown = files.shown(certificate);
    let shown = shown.display();
    let chain = match Chain::from_pem(&bytes) {
        Ok(chain) => chain,
        Err(error) => {
            return Some(format!(
                "{shown}: {error} (put the client certificate there, in PEM)"
            ));
        }
    };
    let leaf = chain.leaf();
    if leaf.not_after() < now {
        return Some(format!(
            "{shown}: the certificate expired at {} (issue a new one)",
            rfc3339(leaf.not_after())
        ));
    }
    let key_bytes = files.read_secret(key).ok()?;
    let key_shown = files.shown(key);
    let Ok(private) = PrivateKey::from_pem(&key_bytes) else {
        return Some(format!(
            "{}: the file does not contain a private key without a passphrase (write a PKCS#8, PKCS#1 or SEC1 key in PEM)",
            key_shown.display()
        ));
    };
    (private.public_key() != leaf.public_key()).then(|| {
        format!(
            "{shown} does not belong to the key in {} (put a certificate and its key there)",
            key_shown.display()
        )
    })
}

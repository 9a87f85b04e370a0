//! Fuzz targets: what an API server sends, as events of a watch, lists, and in a discovery by token.
#![allow(
    clippy::expect_used,
    clippy::type_complexity,
    reason = "a fuzz target ends at a fault"
)]

use std::io;
use std::path::Path;
use std::rc::Rc;

use serde_json::Value;
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::api::{Api, ApiAccess, CONFIG_MAP};
use super::discovery;
use super::watch::{self, Watch, WatchChange};
use crate::http::{Endpoint, Files, Url, fuzz::with_responses};
use crate::kube::kubeadm::{Discovery, HostPort, JoinDiscovery};
use crate::text::is_hidden;

/// Name and function of each target.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("watch-event", watch::fuzz_event),
    ("list-exchange", list),
    ("discovery-exchange", discover),
];

const NOW: OffsetDateTime = datetime!(2026-06-01 12:00 UTC);

/// No file exists.
struct NoFiles;

impl Files for NoFiles {
    fn read(&self, _: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn read_secret(&self, path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
        self.read(path)
    }
}

/// The first byte selects whether the objects are listed or one is read.
fn list(bytes: &[u8]) {
    let Some((first, script)) = bytes.split_first() else {
        return;
    };
    let mut endpoint = Endpoint::new(Url::parse("https://s.test").expect("the address is valid"));
    endpoint.tls.system_roots = true;
    let access = ApiAccess::Direct {
        endpoint: Box::new(endpoint),
        token: None,
    };
    let api = Api::new(access, Rc::new(NoFiles), None, || NOW).expect("the client can be created");
    let watch = Watch::of_object(&CONFIG_MAP, Some("kube-public"), "cluster-info");
    let result = with_responses(script, &[], async || match first % 2 {
        0 => api
            .list(&watch, &mut |_: WatchChange<Value>| ())
            .await
            .map(drop),
        _ => api.read(&CONFIG_MAP, Some("n"), "x").await.map(drop),
    });
    if let Err(error) = result {
        examine_text(&error.to_string());
    }
}

/// The token is that of `tests/golden/cluster-info`.
fn discover(bytes: &[u8]) {
    let (endpoint, _) = HostPort::parse("s.test:6443").expect("the endpoint is valid");
    let join = JoinDiscovery {
        discovery: Some(Discovery::Token {
            token: "abcdef.0123456789abcdef"
                .parse()
                .expect("the token is valid"),
            endpoint,
            pins: Vec::new(),
            unsafe_skip_ca_verification: true,
        }),
        tls_bootstrap_token: None,
        certificate_key: None,
        ca_cert_path: "/etc/kubernetes/pki/ca.crt".into(),
        ignores_all_errors: false,
    };
    let found = with_responses(bytes, &[], async || {
        discovery::discover(&join, Rc::new(NoFiles), None, || NOW, Instant::now()).await
    });
    match found {
        Ok(found) => {
            assert!(!found.authority.certificates().is_empty());
            for note in &found.notes {
                examine_text(note);
            }
        }
        Err(error) => examine_text(&error.to_string()),
    }
}

fn examine_text(text: &str) {
    assert!(!text.chars().any(is_hidden), "{text:?}");
}

//! Lists and watches of objects: every change of a kind of object, in order, with bounded memory.
//!
//! [`Watch::run`] follows client-go's reflector: it lists in pages, watches from the resourceVersion of the list, and
//! continues after a disconnection from the last one that it has seen, which bookmarks keep recent. If the API server no
//! longer has that version (410 Gone), it lists again. Objects are passed on and not kept. A watch waits in one read of
//! one connection: while nothing changes, only the API server's bookmark of each minute wakes the process.

use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::api::{Api, ApiError, ApiStatus, JSON, MAX_MESSAGE_LENGTH, Resource};
use super::json::TrimmedObject;
use crate::http::{Call, HttpErrorKind, Line, encode, printable};
use crate::process::jitter::random_fraction;

/// Number of objects in a page of a list.
const PAGE_OBJECTS: usize = 100;
/// Maximum size of a page, and of an event, in bytes. etcd accepts objects of 1.5 MiB, which are 2 MiB as JSON.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Time after which the API server ends a watch; the watch is then continued. A random part is added, so the watches
/// of all nodes do not end together.
const WATCH_DURATION: Duration = Duration::from_secs(30 * 60);
/// Silence after which a connection counts as dead. The API server sends a bookmark each minute (`bookmarkFrequency` in
/// `apiserver/pkg/storage/cacher`).
const MAX_SILENCE: Duration = Duration::from_secs(3 * 60);
/// Delay after the first failure in a row; it doubles.
const MIN_DELAY: Duration = Duration::from_millis(500);
/// Longest delay after a failure.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// The objects to follow.
#[derive(Clone, Debug)]
pub struct Watch {
    /// Their kind.
    pub resource: &'static Resource,
    /// Their namespace; `None` for objects without one, and for those of all namespaces.
    pub namespace: Option<String>,
    /// A field selector, `spec.signerName=kubernetes.io/kubelet-serving`; the API server must support it.
    pub field_selector: Option<String>,
}

/// A change that a watch reports.
#[derive(Debug)]
pub enum WatchChange<T> {
    /// A list begins: every object that exists is passed next.
    Listing,
    /// An object of the list, or one that was created or changed.
    Present(T),
    /// The list is complete: an object that it did not contain does not exist.
    Listed,
    /// The object was deleted, or does not match the selector any more.
    Deleted(T),
}

/// A page of a list.
#[derive(Debug, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
pub struct ListPage<T> {
    /// Version and continuation.
    #[serde(default)]
    pub metadata: ListMeta,
    /// The objects; they lack `kind` and `apiVersion`.
    #[serde(default, deserialize_with = "null_as_empty")]
    pub items: Vec<T>,
}

/// `metadata` of a list.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    resource_version: String,
    /// Token of the next page; empty on the last one.
    #[serde(rename = "continue")]
    next: String,
}

/// Go encodes an empty list as `null`.
fn null_as_empty<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl Api {
    /// Returns all objects of a kind.
    pub(crate) async fn list_all<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
    ) -> Result<Vec<T>, ApiError> {
        let mut objects = Vec::new();
        let mut collect = |change| match change {
            WatchChange::Listing => objects.clear(),
            WatchChange::Present(object) => objects.push(object),
            WatchChange::Listed | WatchChange::Deleted(_) => {}
        };
        self.list(&Watch::of_kind(resource), &mut collect).await?;
        Ok(objects)
    }

    /// Passes all objects to `sink`, page by page: [`Change::Listing`], the objects, [`Change::Listed`]. If the list takes
    /// longer than the API server keeps its version, it starts again with another `Listing`. Returns the resourceVersion.
    pub(crate) async fn list<T: DeserializeOwned>(
        &self,
        watch: &Watch,
        sink: &mut impl FnMut(WatchChange<T>),
    ) -> Result<String, ApiError> {
        'list: loop {
            sink(WatchChange::Listing);
            let (mut next, mut objects) = (String::new(), PAGE_OBJECTS);
            loop {
                let page = match self.page::<T>(watch, objects, &next).await {
                    Ok(page) => page,
                    Err(ApiError::Refused(status)) if status.is_expired() && !next.is_empty() => {
                        continue 'list;
                    }
                    Err(ApiError::Http(error))
                        if *error.kind() == HttpErrorKind::TooLarge && objects > 1 =>
                    {
                        objects = (objects / 4).max(1);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                page.items
                    .into_iter()
                    .for_each(|item| sink(WatchChange::Present(item)));
                next = page.metadata.next;
                if next.is_empty() {
                    sink(WatchChange::Listed);
                    return Ok(page.metadata.resource_version);
                }
            }
        }
    }

    async fn page<T: DeserializeOwned>(
        &self,
        watch: &Watch,
        objects: usize,
        next: &str,
    ) -> Result<ListPage<T>, ApiError> {
        let mut path = format!("{}?limit={objects}{}", watch.path(), watch.selector());
        if !next.is_empty() {
            let _ = write!(path, "&continue={}", encode(next));
        }
        let call = Call::get(path).accept(JSON).limit(MAX_PAGE_BYTES);
        let response = self.exchange(call).await?;
        read_page(&response.body, watch.resource.plural).map_err(|error| ApiError::Unusable {
            status: response.status,
            bytes: response.body.len(),
            why: format!("it is not a list of {} ({error})", watch.resource.plural),
        })
    }
}

/// Reads a page. An object that cannot be read must not hide the others.
fn read_page<T: DeserializeOwned>(
    body: &[u8],
    plural: &str,
) -> Result<ListPage<T>, serde_json::Error> {
    if let Ok(page) = serde_json::from_slice(body) {
        return Ok(page);
    }
    let page: ListPage<TrimmedObject> = serde_json::from_slice(body)?;
    let readable = |item: TrimmedObject| match item.read() {
        Ok(item) => Some(item),
        Err(error) => {
            tracing::warn!("an object among the {plural} is ignored: {error}");
            None
        }
    };
    Ok(ListPage {
        metadata: page.metadata,
        items: page.items.into_iter().filter_map(readable).collect(),
    })
}

/// Why a watch ended.
enum Ended {
    /// The API server ended it, or the connection failed: continue from the last version.
    Disconnected(Option<ApiError>),
    /// The API server does not have the version any more.
    Expired,
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.resource.plural)?;
        match &self.field_selector {
            Some(selector) => write!(f, " with {selector}"),
            None => Ok(()),
        }
    }
}

impl Watch {
    /// Returns the watch of one object. RBAC permits it with `resourceNames`.
    pub fn of_object(resource: &'static Resource, namespace: Option<&str>, name: &str) -> Self {
        Watch {
            resource,
            namespace: namespace.map(str::to_owned),
            field_selector: Some(format!("metadata.name={name}")),
        }
    }

    /// Returns the watch of all objects of a kind.
    pub(crate) fn of_kind(resource: &'static Resource) -> Self {
        Watch {
            resource,
            namespace: None,
            field_selector: None,
        }
    }

    /// Returns the watch of all requests to a signer.
    pub(crate) fn of_signer(resource: &'static Resource, signer: &str) -> Self {
        Watch {
            field_selector: Some(format!("spec.signerName={signer}")),
            ..Watch::of_kind(resource)
        }
    }

    /// Returns the path of the list.
    fn path(&self) -> String {
        self.resource.path(self.namespace.as_deref(), None)
    }

    /// Returns the query parameter with the selector.
    fn selector(&self) -> String {
        match &self.field_selector {
            Some(selector) => format!("&fieldSelector={}", encode(selector)),
            None => String::new(),
        }
    }

    /// Reports all objects and their changes to `sink`, until it is dropped. Failures are logged and retried.
    pub async fn run<T: DeserializeOwned>(
        &self,
        api: &Api,
        mut sink: impl FnMut(WatchChange<T>),
    ) -> Infallible {
        let mut failures = Failures::default();
        loop {
            let mut version = match api.list(self, &mut sink).await {
                Ok(version) => version,
                Err(error) => {
                    failures.wait(self, Some(error)).await;
                    continue;
                }
            };
            failures = Failures::default();
            loop {
                let before = version.clone();
                let ended = self.follow(api, &mut version, &mut sink).await;
                if version != before {
                    failures = Failures::default();
                }
                match ended {
                    Ended::Expired => {
                        tracing::debug!(
                            "the watch of {} is too old: listing again",
                            self.resource.plural
                        );
                        break;
                    }
                    Ended::Disconnected(error) => failures.wait(self, error).await,
                }
            }
        }
    }

    /// Watches from `version` until the stream ends, and updates it.
    async fn follow<T: DeserializeOwned>(
        &self,
        api: &Api,
        version: &mut String,
        sink: &mut impl FnMut(WatchChange<T>),
    ) -> Ended {
        let seconds = WATCH_DURATION
            .mul_f64(1.0 + random_fraction() / 2.0)
            .as_secs();
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}{}",
            self.path(),
            encode(version),
            self.selector()
        );
        let mut stream = match api.open(Call::get(path).accept(JSON)).await {
            Ok(stream) => stream,
            Err(ApiError::Refused(status)) if status.is_expired() => return Ended::Expired,
            Err(error) => return Ended::Disconnected(Some(error)),
        };
        loop {
            match stream.line(MAX_PAGE_BYTES, MAX_SILENCE).await {
                Ok(Some(Line::Text(line))) => match read_event(&line) {
                    Ok(WatchEvent::Change { change, at }) => {
                        *version = at;
                        match change {
                            Ok(change) => sink(change),
                            // One object that cannot be read must not end the watch of all others.
                            Err(why) => tracing::warn!("an object is ignored: {why}"),
                        }
                    }
                    Ok(WatchEvent::Bookmark(at)) => *version = at,
                    Ok(WatchEvent::Failed(status)) if status.is_expired() => return Ended::Expired,
                    Ok(WatchEvent::Failed(status)) => {
                        return Ended::Disconnected(Some(Box::new(status).into()));
                    }
                    Err(why) => {
                        let (status, bytes) = (200, line.len());
                        return Ended::Disconnected(Some(ApiError::Unusable {
                            status,
                            bytes,
                            why,
                        }));
                    }
                },
                Ok(Some(Line::TooLong)) => tracing::warn!(
                    "an event of {} is larger than {MAX_PAGE_BYTES} bytes: the object is ignored",
                    self.resource.plural
                ),
                Ok(None) => return Ended::Disconnected(None),
                Err(error) => return Ended::Disconnected(Some(error.into())),
            }
        }
    }
}

/// Consecutive failures of a watch.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    /// Logs the failure and waits. A watch that the API server has ended regularly is continued almost at once.
    async fn wait(&mut self, watch: &Watch, error: Option<ApiError>) {
        let wait = delay(self.0, requested(error.as_ref()), random_fraction());
        self.0 += 1;
        if let Some(error) = error {
            match self.0 {
                // An API server that restarts is usual.
                1 | 2 => tracing::debug!("the watch of {watch} ended: {error}"),
                3 => tracing::warn!("{watch} cannot be watched: {error}; retrying"),
                _ => tracing::debug!("{watch} cannot be watched: {error}; retrying in {wait:.0?}"),
            }
        }
        sleep(wait).await;
    }
}

/// Returns the time that the API server asks to wait.
fn requested(error: Option<&ApiError>) -> Option<Duration> {
    match error {
        Some(ApiError::Refused(status)) => status.retry_after,
        _ => None,
    }
}

/// Returns the delay after `failures` earlier failures in a row. `random` is uniform in [0, 1).
pub(crate) fn delay(failures: u32, requested: Option<Duration>, random: f64) -> Duration {
    let doubled = MIN_DELAY.saturating_mul(2u32.saturating_pow(failures.min(10)));
    let jittered = doubled.min(MAX_DELAY).mul_f64(0.5 + random / 2.0);
    match requested {
        Some(requested) => jittered.max(requested.min(MAX_DELAY)),
        None => jittered,
    }
}

/// An event of a watch.
enum WatchEvent<T> {
    /// A change, and the version with it. An object that cannot be read must not stop the watch.
    Change {
        change: Result<WatchChange<T>, String>,
        at: String,
    },
    /// A newer version, without a change.
    Bookmark(String),
    /// The watch cannot be continued.
    Failed(ApiStatus),
}

fn read_event<T: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<T>, String> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        object: ObjectHeader,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ObjectHeader {
        metadata: ObjectMeta,
        code: u16,
        reason: String,
        message: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ObjectMeta {
        resource_version: String,
    }
    #[derive(Deserialize)]
    #[serde(bound = "T: DeserializeOwned")]
    struct Body<T> {
        object: T,
    }
    fn body<T: DeserializeOwned>(line: &[u8]) -> Result<T, serde_json::Error> {
        match serde_json::from_slice::<Body<T>>(line) {
            Ok(body) => Ok(body.object),
            Err(_) => serde_json::from_slice::<Body<TrimmedObject>>(line)?
                .object
                .read(),
        }
    }
    let unusable =
        |error: serde_json::Error| format!("an event of the watch is not valid: {error}");
    // The type comes first: the object of an error is a Status, and that of a bookmark has only a version.
    let Header { kind, object } = serde_json::from_slice(line).map_err(unusable)?;
    let at = object.metadata.resource_version;
    let change = match kind.as_str() {
        "ADDED" | "MODIFIED" => body(line).map(WatchChange::Present),
        "DELETED" => body(line).map(WatchChange::Deleted),
        "BOOKMARK" => return Ok(WatchEvent::Bookmark(at)),
        "ERROR" => {
            return Ok(WatchEvent::Failed(ApiStatus {
                code: object.code,
                reason: printable(&object.reason, MAX_MESSAGE_LENGTH),
                message: printable(&object.message, MAX_MESSAGE_LENGTH),
                ..ApiStatus::default()
            }));
        }
        other => {
            return Err(format!(
                "an event of the watch has the unknown type {other:?}"
            ));
        }
    };
    Ok(WatchEvent::Change {
        change: change.map_err(unusable),
        at,
    })
}

#[cfg(feature = "fuzzing")]
/// Fuzz target: an event of a watch.
pub fn fuzz_event(bytes: &[u8]) {
    let message = match read_event::<serde_json::Value>(bytes) {
        Ok(WatchEvent::Failed(status)) => status.to_string(),
        Ok(WatchEvent::Change {
            change: Err(why), ..
        })
        | Err(why) => why,
        Ok(_) => return,
    };
    assert!(!message.chars().any(crate::text::is_hidden), "{message:?}");
}

#[cfg(test)]
mod tests {
    use super::super::json::tests::nested;
    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Named {
        metadata: Name,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Name {
        name: String,
    }

    fn show(line: &str) -> String {
        match read_event::<Named>(line.as_bytes()) {
            Ok(WatchEvent::Change { change, at }) => match change {
                Ok(WatchChange::Present(object)) => {
                    format!("present {} at {at}", object.metadata.name)
                }
                Ok(WatchChange::Deleted(object)) => {
                    format!("deleted {} at {at}", object.metadata.name)
                }
                Ok(other) => format!("{other:?}"),
                Err(_) => format!("ignored at {at}"),
            },
            Ok(WatchEvent::Bookmark(at)) => format!("bookmark {at}"),
            Ok(WatchEvent::Failed(status)) => format!("{status}"),
            Err(why) => why,
        }
    }

    #[test]
    fn reads_events_of_a_watch() {
        let object = r#"{"kind":"X","metadata":{"name":"a","resourceVersion":"7"}}"#;
        for (kind, expected) in [
            ("ADDED", "present a at 7"),
            ("MODIFIED", "present a at 7"),
            ("DELETED", "deleted a at 7"),
            ("BOOKMARK", "bookmark 7"),
            (
                "OTHER",
                "an event of the watch has the unknown type \"OTHER\"",
            ),
        ] {
            let line = format!(r#"{{"type":"{kind}","object":{object}}}"#);
            assert_eq!(show(&line), expected);
        }
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
        assert_eq!(show(gone), "HTTP 410 Expired: too old");
        let hostile =
            r#"{"type":"ERROR","object":{"code":500,"reason":"a\u001b[2J","message":"b"}}"#;
        assert_eq!(show(hostile), "HTTP 500 a\\u{1b}[2J: b");
    }

    #[test]
    fn skips_object_that_cannot_be_read() {
        let line = r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"8"}}}"#;
        assert_eq!(show(line), "ignored at 8");
        assert!(show("{\"type\"").starts_with("an event of the watch is not valid"));
    }

    #[test]
    fn reads_objects_beside_one_that_a_client_nested() {
        let deep = nested(130);
        let meta = format!(
            r#"{{"name":"a","resourceVersion":"8","managedFields":[{{"fieldsV1":{deep}}}]}}"#
        );
        let page = format!(
            r#"{{"metadata":{{"resourceVersion":"5","continue":"c"}},"items":[{{"metadata":{meta}}},{{"metadata":{{}}}},{{"metadata":{{"name":"b"}},"spec":{deep}}}]}}"#
        );
        let all: ListPage<serde_json::Value> = read_page(page.as_bytes(), "things").unwrap();
        assert_eq!((all.metadata.next.as_str(), all.items.len()), ("c", 3));
        assert_eq!(all.items[0]["metadata"]["name"], "a");
        let named: ListPage<Named> = read_page(page.as_bytes(), "things").unwrap();
        let named: Vec<_> = named
            .items
            .into_iter()
            .map(|item| item.metadata.name)
            .collect();
        assert_eq!(named, ["a", "b"]);
        assert!(read_page::<Named>(b"{\"items\":[}", "things").is_err());
        let line = format!(r#"{{"type":"ADDED","object":{{"metadata":{meta}}}}}"#);
        assert!(matches!(
            read_event::<serde_json::Value>(line.as_bytes()),
            Ok(WatchEvent::Change { change: Ok(WatchChange::Present(object)), at })
                if at == "8" && object["metadata"]["name"] == "a"
        ));
    }

    #[test]
    fn reads_empty_page_of_go() {
        let page: ListPage<Named> =
            serde_json::from_str(r#"{"metadata":{"resourceVersion":"5"},"items":null}"#).unwrap();
        assert!(page.items.is_empty() && page.metadata.next.is_empty());
        assert_eq!(page.metadata.resource_version, "5");
    }

    #[test]
    fn delay_doubles_to_maximum_and_respects_server() {
        let seconds = Duration::from_secs;
        let delays = [0, 1, 3, 6, 40].map(|failures| delay(failures, None, 1.0));
        assert_eq!(
            delays,
            [MIN_DELAY, seconds(1), seconds(4), MAX_DELAY, MAX_DELAY]
        );
        assert_eq!(delay(0, None, 0.0), MIN_DELAY / 2);
        assert_eq!(delay(0, Some(seconds(7)), 1.0), seconds(7));
        assert_eq!(delay(0, Some(seconds(9999)), 1.0), MAX_DELAY);
    }
}

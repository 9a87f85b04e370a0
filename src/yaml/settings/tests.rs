use super::*;
use crate::yaml::schema::{markdown, object, rows};
use crate::yaml::{Walk, parse};

settings! {
    /// Every type of setting.
    #[derive(Debug, PartialEq)]
    struct TestSettings {
        /// Name.
        "name" => name: String, required "web";
        /// Switch.
        "enabled" => enabled: bool = true;
        /// Switch that is shown only if it is set.
        "quiet" => quiet: bool = false, show if_set;
        /// Interval.
        "clock.interval" => interval: Duration = Duration::from_secs(90);
        /// Limit.
        "clock.limit" => limit: Option<Duration>;
        /// Directory.
        "dir" => dir: PathBuf = PathBuf::from("/srv");
        /// Token | key.
        "token" => token: Option<SecretFile>;
        /// Pins.
        "pins" => pins: Vec<[u8; 32]>, show unless_empty;
        /// Words.
        "words" => words: Vec<String> = vec!["a".to_owned(), "b".to_owned()];
        /// Labels.
        "labels" => labels: BTreeMap<String, String>;
    }
}

const FULL: &str = "\
name: web
enabled: false
quiet: true
clock: {interval: 1h, limit: 250ms}
dir: /srv/x
token: credential:api
pins: ['sha256:00:01:02:03:04:05:06:07:08:09:0a:0B:0c:0d:0e:0f:10:11:12:13:14:15:16:17:18:19:1a:1b:1c:1d:1e:FF']
words: [c]
labels: {one: 1, two: x}
";

/// Returns the settings, if they are complete, and the faults.
fn read(text: &str) -> (Option<TestSettings>, String) {
    let documents = parse("t.yaml", text).unwrap();
    let walk = Walk::new(true);
    let settings = read_block(&Field::root(&walk, &documents[0]));
    (settings, walk.into_faults().to_string())
}

#[test]
fn reads_and_shows_every_type() {
    let (settings, faults) = read(FULL);
    let settings = settings.unwrap();
    assert_eq!(faults, "");
    let mut pin: [u8; 32] = std::array::from_fn(|index| index as u8);
    pin[31] = 0xff;
    let expected = TestSettings {
        name: "web".to_owned(),
        enabled: false,
        quiet: true,
        interval: Duration::from_secs(3600),
        limit: Some(Duration::from_millis(250)),
        dir: "/srv/x".into(),
        token: Some(SecretFile::Credential("api".to_owned())),
        pins: vec![pin],
        words: vec!["c".to_owned()],
        labels: [("one", "1"), ("two", "x")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    };
    assert_eq!(settings, expected);
    assert_eq!(
        settings.shown_keys(),
        json!({
            "name": "web",
            "enabled": false,
            "quiet": true,
            "clock": {"interval": "1h", "limit": "250ms"},
            "dir": "/srv/x",
            "token": "credential:api",
            "pins": ["000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1eff"],
            "words": ["c"],
            "labels": {"one": "1", "two": "x"},
        })
    );
}

#[test]
fn absent_settings_have_their_defaults() {
    let (settings, faults) = read("name: web\n");
    assert_eq!(faults, "");
    assert_eq!(
        settings.unwrap().shown_keys(),
        json!({
            "name": "web",
            "enabled": true,
            "clock": {"interval": "1m30s"},
            "dir": "/srv",
            "words": ["a", "b"],
            "labels": {},
        })
    );
}

#[test]
fn reports_each_invalid_setting() {
    let short = "0".repeat(62);
    for (line, expected) in [
        ("enabled: 5", "enabled: "),
        ("name: 5", "name: unquoted 5 is "),
        ("nam: x", "nam: unknown field (did you mean name?)"),
        (
            "clock: {intervall: 1h}",
            "clock.intervall: unknown field (did you mean interval?)",
        ),
        ("clock: {interval: 30d}", "write 720h; units are h, m and s"),
        (
            "clock: {interval: 1x}",
            "use hours, minutes and seconds, as in 1m30s",
        ),
        ("dir: ~/x", "variables and ~ are not replaced"),
        (
            "dir: x",
            "dir: \"x\" is not an absolute path (begin it with /)",
        ),
        (
            "token: secret",
            "token: is neither an absolute path nor credential:NAME",
        ),
        ("token: 'credential:'", "token: names no credential"),
        (
            "token: credential:.x",
            "token: \".x\" is not the name of a credential",
        ),
        (
            "token: credential:a/b",
            "token: \"a/b\" is not the name of a credential",
        ),
        ("words: c", "words: "),
        ("labels: []", "labels: "),
        (
            &format!("pins: ['{short}']"),
            "pins[0]: is not a SHA-256 pin of 64 hex digits",
        ),
        (
            &format!("pins: ['{short}0x']"),
            "pins[0]: is not a SHA-256 pin of 64 hex digits",
        ),
    ] {
        let text = if line.starts_with("name:") {
            format!("{line}\n")
        } else {
            format!("name: web\n{line}\n")
        };
        let (_, faults) = read(&text);
        assert!(faults.contains(expected), "{line}: {faults}");
    }
    let (settings, faults) = read("enabled: true\n");
    assert_eq!(settings, None);
    assert!(faults.contains("has no name (add name: web)"), "{faults}");
}

#[test]
fn secret_file_has_path_with_directory_of_credentials() {
    let credentials = std::path::Path::new("/run/credentials/nodepki.service");
    for (text, with, without) in [
        ("/etc/token", Some("/etc/token"), Some("/etc/token")),
        (
            "credential:api",
            Some("/run/credentials/nodepki.service/api"),
            None,
        ),
    ] {
        let file = SecretFile::parse(text).unwrap();
        assert_eq!(file.to_string(), text);
        assert_eq!(file.path(Some(credentials)), with.map(PathBuf::from));
        assert_eq!(file.path(None), without.map(PathBuf::from));
    }
}

#[test]
fn documents_every_setting() {
    assert_eq!(
        markdown(&rows("", TestSettings::KEYS)),
        "\
| key | form | default | meaning |
| --- | --- | --- | --- |
| `name` | text | required | Name. |
| `enabled` | `true`, `false` | `true` | Switch. |
| `quiet` | `true`, `false` |  | Switch that is shown only if it is set. |
| `clock.interval` | duration | `1m30s` | Interval. |
| `clock.limit` | duration |  | Limit. |
| `dir` | absolute path | `/srv` | Directory. |
| `token` | private file, or `credential:NAME` |  | Token \\| key. |
| `pins[]` | SHA-256, 64 hex digits |  | Pins. |
| `words[]` | text | `[a, b]` | Words. |
| `labels.*` | text |  | Labels. |
"
    );
}

#[test]
fn schema_has_type_and_description_of_every_setting() {
    let schema = object(TestSettings::KEYS);
    assert_eq!(schema["additionalProperties"], json!(false));
    let of = |pointer: &str| schema.pointer(&format!("/properties/{pointer}")).unwrap();
    assert_eq!(
        *of("name"),
        json!({"type": "string", "description": "Name."})
    );
    assert_eq!(
        *of("enabled"),
        json!({"type": "boolean", "description": "Switch. Default: true."})
    );
    assert_eq!(
        of("clock/properties/interval")["description"],
        json!("Interval. Default: 1m30s.")
    );
    assert_eq!(of("clock/properties/limit")["description"], json!("Limit."));
    assert_eq!(
        *of("words"),
        json!({"type": "array", "items": {"type": "string"}, "description": "Words. Default: [a, b]."})
    );
    assert_eq!(
        *of("labels"),
        json!({"type": "object", "additionalProperties": {"type": "string"}, "description": "Labels."})
    );
    assert_eq!(
        object(&[]),
        json!({"type": "object", "additionalProperties": false})
    );
}

use serde_json::json;

use super::*;

fn one(text: &str) -> Node {
    parse("t.yaml", text).unwrap().remove(0)
}

fn fault(text: &str) -> String {
    parse("t.yaml", text).unwrap_err().to_string()
}

#[test]
fn counts_lines_and_columns_from_one() {
    let node = one("a: 1\nb:\n  - x\n  - y: z\n");
    let y = match &node.get("b").unwrap().kind {
        NodeKind::Seq(items) => items[1].get("y").unwrap().clone(),
        _ => panic!(),
    };
    assert_eq!(y.place.to_string(), "t.yaml:4:8");
}

#[test]
fn resolves_plain_scalars_like_go_yaml() {
    let cases = [
        ("yes", Value::Bool(true)),
        ("Off", Value::Bool(false)),
        ("~", Value::Null),
        ("6443", Value::Int(6443)),
        ("017", Value::Int(15)),
        ("0x10", Value::Int(16)),
        ("1_000", Value::Int(1000)),
        ("-5", Value::Int(-5)),
        ("1.5", Value::Float(1.5)),
        ("1e3", Value::Float(1000.0)),
        ("08", Value::Float(8.0)),
        ("10.96.0.0/12", Value::Str("10.96.0.0/12")),
        ("010.000.000.007", Value::Str("010.000.000.007")),
        ("v1.36.2", Value::Str("v1.36.2")),
        ("-bad-", Value::Str("-bad-")),
        ("2001:DB8::5", Value::Str("2001:DB8::5")),
        ("8760h0m0s", Value::Str("8760h0m0s")),
        (".", Value::Str(".")),
    ];
    for (text, want) in cases {
        assert!(resolve_plain(text) == want, "{text}");
    }
    let quoted = one("'yes'");
    assert_eq!(quoted.kind_name(), "text");
    assert_eq!(one("!!str 5").kind_name(), "text");
}

#[test]
fn accepts_empty_documents_byte_order_mark_and_crlf() {
    assert!(parse("t", "").unwrap().is_empty());
    assert!(parse("t", "---\n---\n# nothing\n").unwrap().is_empty());
    let documents = parse("t", "\u{feff}a: 1\r\n---\r\nb: 2\r\n").unwrap();
    assert_eq!(documents.len(), 2);
    assert_eq!(to_json(&documents[1]).to_string(), r#"{"b":2}"#);
    assert_eq!(parse("t", r#"{"a": [1, "x"]}"#).unwrap().len(), 1);
}

#[test]
fn refuses_byte_order_mark_after_start() {
    for text in [
        "# two files\n\u{feff}a: 1\n",
        "a: 1\n\u{feff}---\nb: 2\n",
        "\u{feff}\n\u{feff}a: 1\n",
        "a: |\n\u{feff}  b\n",
    ] {
        let text = fault(text);
        assert!(text.starts_with("t.yaml:2:1:"), "{text}");
        assert!(
            text.ends_with("not valid YAML: a byte order mark that is not at the start of the file (remove the bytes EF BB BF)"),
            "{text}"
        );
    }
}

#[test]
fn reports_tab_with_line_and_column() {
    let text = fault("a:\n\tb: 1\n");
    assert!(text.starts_with("t.yaml:2:"), "{text}");
    assert!(
        text.ends_with("(indent with spaces, YAML does not allow tabs)"),
        "{text}"
    );
}

#[test]
fn reports_position_of_syntax_error() {
    let text = fault("a: [1, 2\nb: 3\n");
    assert!(text.starts_with("t.yaml:"), "{text}");
    assert!(text.contains("not valid YAML"), "{text}");
}

#[test]
fn reads_brackets_without_indentation_like_go_yaml() {
    for (flow, expected) in [
        ("[\n    \"x\"\n  ]", json!(["x"])),
        ("[\n\"x\",\nv\n]", json!(["x", "v"])),
        ("[\r\n\"x\"\r\n]", json!(["x"])),
        ("[\n\t\"x\",\n\tv,\n\t]", json!(["x", "v"])),
        (
            "{\nx: [\n'y'\n], z: \"[\" # ]\n}",
            json!({"x": ["y"], "z": "["}),
        ),
        // Scalars of several lines are folded.
        ("[ \"x\n\n  y\\\n z\",\nv\nw ]", json!(["x\nyz", "v w"])),
    ] {
        let text = format!("a:\n  b: {flow}\n  c: |\n    [ -f x ]\n  d: 1\n");
        let node = one(&text);
        let expected = json!({"a": {"b": expected, "c": "[ -f x ]\n", "d": 1}});
        assert_eq!(to_json(&node), expected, "{text}");
    }
    let node = one("a:\n  b: [\n    c,\n \"d\",\n  ]\n  e: [\nf]\n");
    let a = node.get("a").unwrap();
    for (key, expected) in [("b", "t.yaml:4:2"), ("e", "t.yaml:7:1")] {
        let NodeKind::Seq(items) = &a.get(key).unwrap().kind else {
            panic!("{key}")
        };
        assert_eq!(items.last().unwrap().place.to_string(), expected);
    }
    for text in [
        // Go reports a tab after a plain scalar, and the end of the document.
        "a: [\nb\n\t]\n",
        "a: [\n\"b\",\n--- c\n]\n",
        // Lines of a block scalar would be moved too.
        "a: |\n  [ b\n  c\nd: [\ne\n]\n",
    ] {
        assert!(parse("t.yaml", text).is_err(), "{text}");
    }
    let wide = format!("{}: [\n{}]\n", "k".repeat(1000), "1,\n".repeat(2000));
    assert!(fault(&wide).contains("indent the lines in it further than its key"));
}

#[test]
fn expands_anchors_and_merge_keys() {
    let node = one("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nagain: *b\n");
    assert_eq!(
        to_json(&node).to_string(),
        r#"{"base":{"x":1,"y":2},"use":{"y":3,"x":1},"again":{"x":1,"y":2}}"#
    );
}

#[test]
fn limits_expansion_of_aliases() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let item = format!("*a{}", level - 1);
        let items = vec![item; 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{items}]\n"));
    }
    let text = fault(&text);
    assert!(
        text.ends_with(
            "aliases expand to more than 10000 values or 4 MiB of text (write the value out instead of using an alias)"
        ),
        "{text}"
    );
    // The budget of bytes covers keys, and all aliases of a text together.
    let long = "k".repeat(1000);
    let scalar = format!("a: &a \"{}\"\n", "x".repeat(900 << 10));
    let map = format!("a: &a {{{long}: {{{long}: x}}}}\n");
    for (anchored, most) in [(scalar, 4), (map, 2096)] {
        let text = |count| format!("{anchored}b: [{}]\n", vec!["*a"; count].join(", "));
        one(&text(most));
        assert!(fault(&text(most + 1)).contains("4 MiB of text"));
    }
    assert!(fault("a: &a [*a]\n").contains("an alias refers to itself"));
    let gone = fault("a: *gone\n");
    assert!(
        gone.ends_with("(write the value out instead of using an alias)"),
        "{gone}"
    );
    let nested = |depth: usize, inner: &str| "[".repeat(depth) + inner + &"]".repeat(depth);
    let alias = |depth| {
        let anchored = nested(40, "");
        format!("- &a {anchored}\n- {}\n", nested(depth, "*a"))
    };
    one(&alias(20));
    let text = fault(&alias(30));
    assert!(
        text.contains("an alias makes the document nested too deeply"),
        "{text}"
    );
}

#[test]
fn refuses_keys_and_merges_of_other_kinds() {
    let text = fault("[a, b]: 1\n");
    assert!(
        text.contains("a key must be text, not a map or list"),
        "{text}"
    );
    for merged in ["1", "[1]", "[{x: 1}, y]"] {
        let text = fault(&format!("<<: {merged}\n"));
        assert!(
            text.contains("<< must name a map or a list of maps"),
            "{merged}: {text}"
        );
    }
}

#[test]
fn limits_nesting() {
    let text = fault(&"[".repeat(200));
    assert!(
        text.contains("nested more than 64 levels deep (flatten it)"),
        "{text}"
    );
}

#[test]
fn keeps_and_reports_duplicate_keys() {
    let node = one("a: 1\nb: {c: 1, c: 2}\na: 2\n");
    assert_eq!(node.get("a").unwrap().text(), Some("2"));
    let mut faults = Faults::default();
    node.duplicates(FaultSeverity::Error, &mut faults);
    assert_eq!(
        faults.to_string(),
        "t.yaml:2:11: b.c: is given twice, first in line 2 (keep one of them)\n\
         t.yaml:3:1: a: is given twice, first in line 1 (keep one of them)"
    );
}

#[test]
fn walk_reports_all_faults() {
    let node = one("port: x\nflag: 'true'\nname: [a]\nlist: a\nmap: b\nnmae: q\nzz: 1\n");
    let walk = Walk::new(true);
    let map = Field::root(&walk, &node).map().unwrap();
    map.get("port").unwrap().integer();
    map.get("flag").unwrap().boolean();
    map.get("name").unwrap().string();
    map.get("list").unwrap().list();
    map.get("map").unwrap().map();
    map.finish();
    assert_eq!(
        walk.into_faults().to_string(),
        "t.yaml:1:7: port: is text, must be a whole number (write digits without quotes)\n\
         t.yaml:2:7: flag: is text, must be a boolean (write true or false without quotes)\n\
         t.yaml:3:7: name: is a list, must be text (write the text after the colon)\n\
         t.yaml:4:7: list: is text, must be a list (write `- item` lines below it)\n\
         t.yaml:5:6: map: is text, must be a map (write `key: value` lines below it)\n\
         t.yaml:6:1: nmae: unknown field (did you mean name?)\n\
         t.yaml:7:1: zz: unknown field (known here: flag, list, map, name, port)"
    );
}

#[test]
fn refuses_text_that_looks_like_number_or_boolean() {
    for (text, want) in [
        (
            "a: 007",
            "t.yaml:1:4: a: unquoted 007 is a number, must be text (write \"007\" in quotes)",
        ),
        (
            "a: 1.36",
            "t.yaml:1:4: a: unquoted 1.36 is a number, must be text (write \"1.36\" in quotes)",
        ),
        (
            "a: yes",
            "t.yaml:1:4: a: unquoted yes is a boolean, must be text (write \"yes\" in quotes)",
        ),
    ] {
        let node = one(text);
        let walk = Walk::new(false);
        let field = Field::root(&walk, &node).map().unwrap().get("a").unwrap();
        assert_eq!(field.string().as_deref(), text.strip_prefix("a: "));
        assert_eq!(field.written().as_deref(), text.strip_prefix("a: "));
        assert_eq!(walk.into_faults().to_string(), want);
    }
    // What the caller refuses in quotes too needs another correction.
    let node = one("a: 1.36");
    let walk = Walk::new(false);
    let field = Field::root(&walk, &node).map().unwrap().get("a").unwrap();
    field.string();
    field.error("is not a version", "write all three numbers");
    assert_eq!(
        walk.into_faults().to_string(),
        "t.yaml:1:4: a: unquoted 1.36 is a number, must be text (write all three numbers)"
    );
    let node = one("a: '007'");
    let walk = Walk::new(true);
    let field = Field::root(&walk, &node).map().unwrap().get("a").unwrap();
    assert_eq!(field.string().as_deref(), Some("007"));
}

#[test]
fn writes_yaml_in_format_of_go() {
    let long = "QUJD".repeat(100);
    let text = to_string(&serde_json::json!({
        "apiVersion": "v1",
        "clusters": [{"cluster": {"certificate-authority-data": long, "server": "https://192.0.2.1:6443"}, "name": "kubernetes"}],
        "empty": {},
        "yes": "yes",
        "number": "0123",
        "spaced": "word ".repeat(40).trim_end(),
    }))
    .unwrap();
    let spaced = "word ".repeat(40);
    assert_eq!(
        text,
        format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {long}\n    \
             server: https://192.0.2.1:6443\n  name: kubernetes\nempty: {{}}\n\"yes\": \"yes\"\n\
             number: \"0123\"\nspaced: {}\n",
            spaced.trim_end()
        )
    );
}

#[test]
fn debug_output_contains_no_values() {
    assert_eq!(
        format!("{:?}", one("token: abcdef.0123456789abcdef")),
        "<a map at t.yaml:1:1>"
    );
}

#[test]
fn survives_random_text() {
    let alphabet: Vec<char> = "ab:-[]{}&*!|>'\"#%@`,?\n\t \r\u{feff}\u{0}0.~<ü---\n"
        .chars()
        .collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..40 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text.push(alphabet[(state % alphabet.len() as u64) as usize]);
        }
        if let Ok(documents) = parse("f", &text) {
            for document in &documents {
                let _ = to_json(document).to_string();
            }
        }
    }
}

#[test]
fn serializes_faults_as_flat_objects() {
    let faults = parse("t.yaml", "a: [").unwrap_err();
    let json = serde_json::to_value(&faults).unwrap();
    assert_eq!(json[0]["severity"], "error");
    assert_eq!(json[0]["file"], "t.yaml");
    assert!(json[0]["line"].as_u64().unwrap() >= 1);
}

/// Text remains text when it is read again, also by readers of YAML 1.1 such as kubeadm.
#[test]
fn quotes_text_that_looks_like_another_type() {
    let looks = [
        "yes",
        "on",
        "y",
        "n",
        "off",
        "NO",
        "true",
        "null",
        "~",
        "",
        "0123",
        "1e3",
        "1_000",
        "0x1f",
        "0b1",
        "0o17",
        "12:30:45",
        "123456.1234567890123456",
        "1.5",
        ".inf",
        "=",
        "<<",
        "2020-01-01",
        "-",
        "- a",
        "a: b",
        "a #b",
        "*x",
        "&x",
        "!x",
        "%x",
        "@x",
        "`x",
        "a\nb",
        " a ",
        "a:",
        "[",
        "{}",
        "'",
        "\"",
        "\t",
        "\u{7f}",
        "\u{85}",
    ];
    for look in looks {
        let written = to_string(&serde_json::json!({ "k": [look] })).unwrap();
        let read = parse("f", &written).unwrap();
        let json = to_json(&read[0]);
        assert_eq!(json, serde_json::json!({ "k": [look] }), "{written}");
    }
}

fn walked(text: &str, strict: bool) -> Faults {
    let documents = parse("big.yaml", text).unwrap();
    let walk = Walk::new(strict);
    let root = Field::root(&walk, &documents[0]);
    let map = root.map().unwrap();
    for (_, signer) in
        map.get("named")
            .and_then(|named| named.map())
            .map_or_else(Vec::new, |named| {
                let all = named.named();
                named.finish();
                all
            })
    {
        signer.error("is wrong", "correct it");
    }
    map.finish();
    let mut faults = walk.into_faults();
    documents[0].duplicates(FaultSeverity::Error, &mut faults);
    faults
}

#[test]
fn lists_first_faults_and_counts_the_others() {
    let text: String = (0..10_000).map(|i| format!("k{i}: 1\n")).collect();
    for strict in [true, false] {
        let faults = walked(&text, strict);
        assert_eq!(faults.iter().count(), MAX_LISTED_FAULTS + 1);
        let what = if strict { "errors" } else { "warnings" };
        let last = faults.iter().last().unwrap().to_string();
        assert_eq!(
            last,
            format!("big.yaml: … and 9950 more {what}; at most 50 are listed")
        );
        assert_eq!(faults.has_errors(), strict);
    }
    // The count does not change if faults are reported twice or collections are merged.
    let mut both = walked(&text, true);
    both.extend(walked(&text, true));
    let (first, last) = (both.iter().next().unwrap(), both.iter().last().unwrap());
    assert_eq!(first.field, "k0");
    assert!(last.message.contains("9950 more"), "{last}");
    // Many warnings do not hide errors.
    let mut mixed = walked(&text, false);
    mixed.push(FieldPosition::whole("big.yaml").error("is wrong", "correct it"));
    assert!(mixed.has_errors());
    assert!(mixed.to_string().contains("is wrong"));
}

#[test]
fn reads_large_documents_in_time_that_grows_with_their_size() {
    // Comparing every pair of keys takes minutes.
    let lines = |line: &dyn Fn(usize) -> String| (0..30_000).map(line).collect::<String>();
    let unknown = lines(&|i| format!("k{i}: 1\n"));
    let twice = lines(&|_| "k: 1\n".to_owned());
    let named = format!("named:\n{}", lines(&|i| format!(" s{i}: 1\n")));
    let merged = format!(
        "a: &a\n{}b:\n <<: *a\n{}",
        (0..3000).map(|i| format!(" k{i}: 1\n")).collect::<String>(),
        lines(&|i| format!(" j{i}: 1\n"))
    );
    let before = processor_seconds();
    for text in [&unknown, &twice, &named, &merged] {
        walked(text, true);
    }
    let mut base = parse("a", &unknown).unwrap().remove(0);
    base.overlay(parse("b", &unknown).unwrap().remove(0));
    let NodeKind::Map(entries) = &base.kind else {
        panic!("not a map")
    };
    assert_eq!(entries.len(), 30_000);
    let taken = processor_seconds() - before;
    assert!(taken < 30.0, "{taken} s");
}

/// Returns the processor time of this thread, in seconds.
pub(crate) fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}

#[test]
fn refuses_keys_that_would_make_every_path_long() {
    let text = format!("? {}\n: 1\n", "k".repeat(1025));
    let error = parse("long.yaml", &text).unwrap_err().to_string();
    assert!(
        error.contains("a key has more than 1024 bytes (shorten it)"),
        "{error}"
    );
    assert!(parse("long.yaml", &format!("? {}\n: 1\n", "k".repeat(1024))).is_ok());
}

#[test]
fn names_nested_duplicates_by_their_path() {
    let documents = parse("d.yaml", "a:\n- b: {c: 1, c: 2}\n").unwrap();
    let mut faults = Faults::default();
    documents[0].duplicates(FaultSeverity::Error, &mut faults);
    assert_eq!(faults.iter().next().unwrap().field, "a[0].b.c");
}

#[test]
fn escapes_hidden_characters_of_text() {
    let hidden = [
        "\u{1b}[2J",
        "\u{9b}2J",
        "\u{7f}",
        "a\u{202e}b",
        "a\u{2066}b",
        "\u{200b}",
        "\u{feff}",
        "\u{61c}x",
        "\u{e0041}",
        "a\rb",
        "a\nnodepki: b",
        "\u{85}",
    ];
    for text in hidden {
        let value = serde_json::json!({"evidence": [text], text: 1});
        let yaml = to_string(&value).unwrap();
        let shown: Vec<char> = yaml
            .chars()
            .filter(|c| *c != '\n' && is_hidden(*c))
            .collect();
        assert!(shown.is_empty(), "{text:?}: {yaml:?}");
        let read = parse("x", &yaml).unwrap();
        assert_eq!(to_json(&read[0]), value, "{yaml:?}");
    }
}

#[test]
fn refuses_tag_of_another_type_like_go_yaml() {
    for text in ["a: !!int 5", "a: !!bool yes", "a: !!null", "a: !!float 1.5"] {
        assert!(parse("t.yaml", text).is_ok(), "{text}");
    }
    for text in ["!own 5", "!!str 5", "! 5"] {
        let node = one(&format!("a: {text}"));
        assert_eq!(to_json(&node), serde_json::json!({"a": "5"}), "{text}");
    }
    for text in ["!!null S0VZ", "!!int x", "!!bool 5", "!!binary S0VZ"] {
        let found = fault(&format!("a: {text}"));
        assert!(
            found.contains("the type that its tag names"),
            "{text}: {found}"
        );
    }
}

#[test]
fn refuses_control_characters_in_comments_like_go_yaml() {
    for character in ['\u{13}', '\u{7f}', '\u{9b}', '\u{ffff}'] {
        let found = fault(&format!("a: b\n# c {character}\n"));
        assert!(found.starts_with("t.yaml:2:5: "), "{found}");
        let expected = "not valid YAML: a control character (remove the control character)";
        assert!(found.ends_with(expected), "{found}");
    }
    assert!(parse("t.yaml", "a: b # \u{85}\u{a0}\u{e000}\u{1f600}\n").is_ok());
}

#[test]
fn overlay_merges_maps_and_replaces_other_values() {
    let mut node = one("a: {x: 1, y: [1, 2]}\nb: 1\nc: {z: 1}\n");
    node.overlay(one("a: {y: [3], w: 4}\nc: 5\nd: {v: 6}\n"));
    let expected = serde_json::json!({
        "a": {"x": 1, "y": [3], "w": 4},
        "b": 1,
        "c": 5,
        "d": {"v": 6},
    });
    assert_eq!(to_json(&node), expected);
}

#[test]
fn null_has_no_text() {
    for (written, text) in [
        ("~", None),
        ("null", None),
        ("", None),
        ("'null'", Some("null")),
        ("5", Some("5")),
        ("[]", None),
    ] {
        let node = one(&format!("a: {written}\n"));
        assert_eq!(node.get("a").unwrap().text(), text, "{written:?}");
    }
}

#[test]
fn repeated_first_key_of_document_suggests_separator() {
    let faults = |text: &str| {
        let mut faults = Faults::default();
        one(text).duplicates(FaultSeverity::Error, &mut faults);
        faults.to_string()
    };
    let separator = "write a line with --- before it";
    assert!(faults("kind: A\nkind: B\n").contains(separator));
    assert!(!faults("name: A\nname: B\n").contains(separator));
    assert!(!faults("a: {kind: A, kind: B}\n").contains(separator));
}

#[test]
fn reports_secrets_that_are_not_text() {
    let document = one("text: 'a b'\nnumber: 5\nflag: true\nempty: ''\nlist: [a]\n");
    let walk = Walk::new(true);
    let map = Field::root(&walk, &document).map().unwrap();
    let secret = |key| map.get(key).unwrap().secret().map(|text| text.to_string());
    let scalar = |key| {
        let scalar = map.get(key).unwrap().scalar_secret();
        scalar.map(|text| text.to_string())
    };
    assert_eq!(secret("text").as_deref(), Some("a b"));
    assert_eq!(secret("empty").as_deref(), Some(""));
    assert_eq!(scalar("text").as_deref(), Some("a b"));
    assert_eq!(scalar("number").as_deref(), Some("5"));
    assert_eq!(scalar("list"), None);
    assert_eq!(secret("number").as_deref(), Some("5"));
    assert_eq!(secret("flag").as_deref(), Some("true"));
    assert_eq!(secret("list"), None);
    let faults = walk.into_faults();
    let fields: Vec<&str> = faults.errors().map(|fault| fault.field.as_str()).collect();
    assert_eq!(fields, ["number", "flag", "list"]);
}

#[test]
fn knows_declared_names_and_last_entry_of_each_name() {
    let document = one("named: {a: 1, b: 2, a: 3, c: ~}\n");
    let walk = Walk::new(false);
    assert!(!walk.is_strict() && Walk::new(true).is_strict());
    walk.declare("vault");
    assert_eq!(walk.declared("vault"), Some("vault"));
    assert_eq!(walk.declared("est"), None);
    let map = Field::root(&walk, &document).map().unwrap();
    let named = map.get("named").unwrap().map().unwrap();
    let found: Vec<(String, Option<String>)> = named
        .named()
        .into_iter()
        .map(|(name, field)| (name, field.written()))
        .collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        found,
        [("b".to_owned(), text("2")), ("a".to_owned(), text("3"))]
    );
    named.finish();
    named.field().warning("is old", "replace it");
    let faults = walk.into_faults();
    assert!(!faults.has_errors() && !faults.is_empty());
    let warning = faults.warnings().next().unwrap();
    assert_eq!(
        (warning.field.as_str(), warning.message.as_str()),
        ("named", "is old")
    );
}

#[test]
fn suggests_known_name_that_is_near_or_begins_alike() {
    let known = ["clusterConfiguration", "renewAt", "ca"];
    for (name, near) in [
        ("clusterConfig", Some("clusterConfiguration")),
        ("clus", Some("clusterConfiguration")),
        ("clu", None),
        ("renwAt", Some("renewAt")),
        ("RENEWAT", Some("renewAt")),
        ("renewing", None),
        // Two edits of a name of two characters would be any name.
        ("xy", None),
        ("cb", Some("ca")),
    ] {
        assert_eq!(
            did_you_mean(name, known.into_iter()).as_deref(),
            near,
            "{name}"
        );
    }
}

#[test]
fn joined_faults_keep_severity_and_number() {
    let faults = |severity, count: usize| {
        let mut faults = Faults::default();
        for line in 1..=count {
            faults.push(Fault {
                severity,
                place: Position {
                    line,
                    ..Position::whole("t.yaml")
                },
                field: String::new(),
                message: "is wrong".to_owned(),
                fix: String::new(),
            });
        }
        faults
    };
    let mut all = Faults::default();
    assert!(all.is_empty());
    all.extend(faults(FaultSeverity::Warning, 1));
    assert!(!all.is_empty() && !all.has_errors());
    all.extend(faults(FaultSeverity::Error, 2));
    all.extend(faults(FaultSeverity::Error, 2));
    assert_eq!((all.errors().count(), all.warnings().count()), (2, 1));
}

#[test]
fn finds_position_of_value_by_path() {
    let text = "a: 1\nsigners:\n  my.corp: {file: x}\n";
    let documents = parse("f", text).unwrap();
    let place = |path: &str| documents[0].place_of(path).map(ToString::to_string);
    assert_eq!(place("a").as_deref(), Some("f:1:4"));
    assert_eq!(place("signers.my.corp.file").as_deref(), Some("f:3:19"));
    for path in ["", "b", "a.b", "signers.my", "signers.my.corp.fil"] {
        assert_eq!(place(path), None, "{path}");
    }
}

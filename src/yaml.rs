//! YAML and JSON text as a tree with the position of every value, and the faults found in it.
//!
//! Owns the parsing of all configuration text, the resolution of plain scalars, and the wording of `file:line:col`.
//! It knows no schema: `kube::kubeadm`, `spec::policy` and `config` walk the tree with [`Map`] and [`Field`], which
//! collect *all* faults of a text instead of stopping at the first. Pure: the caller supplies the text.
//!
//! Plain scalars are resolved as by the YAML library of Kubernetes (YAML 1.1 with `yes`, `on`, `0x10`, `017`),
//! because kubeadm on the same node reads the same file. A text field written as `yes` or `007` is a boolean or a
//! number there and refused; [`Field::string`] refuses it too and reports how to quote it.
//!
//! To read a new kind of document: `parse`, `Walk::new`, `Field::root`, then `get` each key and `finish` each map.
//! Settings of nodepki are declared with [`settings`].

mod duration;
mod fault;
mod flow;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
pub mod schema;
pub mod settings;
mod syntax;
mod template;
mod walk;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde::Serialize;
use serde_json::Value as Json;
use zeroize::Zeroizing;

pub use duration::{format_duration, parse_duration, suggest_duration};
pub use fault::{Fault, FaultSeverity, Faults, FieldPosition, MAX_LISTED_FAULTS, Position};
pub use template::unrendered;
pub use walk::{Field, Map, Walk, did_you_mean, fix_for};

use crate::text::is_hidden;
use walk::join;

/// Maximum nesting of maps and lists; valid documents have much less.
const MAX_DEPTH: usize = 64;
/// Maximum number of values that aliases may add to one text, so a few lines cannot expand to gigabytes.
const MAX_ALIAS_VALUES: usize = 10_000;
/// Maximum number of bytes of keys and scalars that aliases may add to one text.
const MAX_ALIAS_BYTES: usize = 4 << 20;
/// Maximum length of a key in bytes, as YAML limits keys without `?` (1.2.2, 7.4.2 and 7.4.3).
const MAX_KEY_LENGTH: usize = 1024;
const NO_TABS: &str = "indent with spaces, YAML does not allow tabs";

/// A value with its position.
#[derive(Clone)]
pub struct Node {
    /// Beginning of the value.
    pub place: Position,
    /// The value.
    pub kind: NodeKind,
}

/// The three kinds of YAML values.
#[derive(Clone)]
pub enum NodeKind {
    /// Entries in written order, including duplicates.
    Map(Vec<MapEntry>),
    /// Items in order.
    Seq(Vec<Node>),
    /// Anything else.
    Scalar(Scalar),
}

/// One `key: value` of a map.
#[derive(Clone)]
pub struct MapEntry {
    /// The key as text.
    pub key: String,
    /// Position of the key.
    pub place: Position,
    /// Its value.
    pub value: Node,
}

/// A scalar as written. It may contain a token or a key: it is never printed, and zeroized on drop.
#[derive(Clone)]
pub struct Scalar {
    text: Zeroizing<String>,
    /// True if it was written without quotes, so it may be a number, a boolean or null.
    plain: bool,
}

/// Meaning of a scalar.
#[derive(Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// `null`, `~` or nothing.
    Null,
    /// A boolean, `yes`, `no`, `on` and `off` included.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction or exponent, or a whole one beyond 64 bits.
    Float(f64),
    /// Text.
    Str(&'a str),
}

// The tree contains everything from the file, including keys and tokens of kubeconfigs.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<{} at {}>", self.kind_name(), self.place)
    }
}

impl Node {
    /// Merges another value into this one: maps merge key by key, everything else is replaced.
    pub fn overlay(&mut self, over: Node) {
        match (&mut self.kind, over.kind) {
            (NodeKind::Map(entries), NodeKind::Map(additions)) => {
                let mut positions: HashMap<String, usize> = HashMap::new();
                for (index, entry) in entries.iter().enumerate() {
                    positions.entry(entry.key.clone()).or_insert(index);
                }
                for MapEntry { key, place, value } in additions {
                    let position = positions.get(&key).copied();
                    match position.and_then(|index| entries.get_mut(index)) {
                        Some(entry) => entry.value.overlay(value),
                        None => {
                            positions.insert(key.clone(), entries.len());
                            entries.push(MapEntry { key, place, value });
                        }
                    }
                }
            }
            (kind, replacement) => {
                *kind = replacement;
                self.place = over.place;
            }
        }
    }

    /// Returns `a map`, `a list`, `text`, … for messages.
    pub fn kind_name(&self) -> &'static str {
        match &self.kind {
            NodeKind::Map(_) => "a map",
            NodeKind::Seq(_) => "a list",
            NodeKind::Scalar(scalar) => match scalar.resolve() {
                Value::Null => "nothing",
                Value::Bool(_) => "a boolean",
                Value::Int(_) | Value::Float(_) => "a number",
                Value::Str(_) => "text",
            },
        }
    }

    /// Returns true for `null`, `~` and an empty value.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, NodeKind::Scalar(scalar) if matches!(scalar.resolve(), Value::Null))
    }

    /// Returns the value of a key; the last one of a duplicate key, as in Kubernetes.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.kind {
            NodeKind::Map(entries) => entries
                .iter()
                .rev()
                .find(|entry| entry.key == key)
                .map(|entry| &entry.value),
            _ => None,
        }
    }

    /// Returns the position of the value at a path of keys, joined by dots.
    pub fn place_of(&self, path: &str) -> Option<&Position> {
        let NodeKind::Map(entries) = &self.kind else {
            return None;
        };
        entries.iter().rev().find_map(|entry| {
            let rest = path.strip_prefix(entry.key.as_str())?;
            match rest.strip_prefix('.') {
                Some(below) => entry.value.place_of(below),
                None => rest.is_empty().then_some(&entry.value.place),
            }
        })
    }

    /// Returns the text of a scalar as written; `None` for maps, lists and null.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar(scalar) if !self.is_null() => Some(&scalar.text),
            _ => None,
        }
    }

    /// Reports every key that occurs twice in the same map, at any depth.
    pub fn duplicates(&self, severity: FaultSeverity, faults: &mut Faults) {
        self.duplicates_below(&mut Vec::new(), severity, faults);
    }

    fn duplicates_below<'a>(
        &'a self,
        path: &mut Vec<PathStep<'a>>,
        severity: FaultSeverity,
        faults: &mut Faults,
    ) {
        match &self.kind {
            NodeKind::Map(entries) => {
                let mut first: HashMap<&str, usize> = HashMap::new();
                for entry in entries {
                    path.push(PathStep::Key(&entry.key));
                    if let Some(line) = first.get(entry.key.as_str()) {
                        faults.push(Fault {
                            severity,
                            place: entry.place.clone(),
                            field: if faults.is_full(severity) { String::new() } else { written(path) },
                            message: format!("is given twice, first in line {line}"),
                            fix: match severity {
                                // As in Kubernetes, each document begins with these keys.
                                _ if path.len() == 1
                                    && matches!(entry.key.as_str(), "apiVersion" | "kind") =>
                                {
                                    "if another document begins here, write a line with --- before it; otherwise keep one of them".to_owned()
                                }
                                FaultSeverity::Error => "keep one of them".to_owned(),
                                FaultSeverity::Warning => {
                                    "the last one counts; keep one of them".to_owned()
                                }
                            },
                        });
                    } else {
                        first.insert(&entry.key, entry.place.line);
                    }
                    entry.value.duplicates_below(path, severity, faults);
                    path.pop();
                }
            }
            NodeKind::Seq(items) => {
                for (index, item) in items.iter().enumerate() {
                    path.push(PathStep::Item(index));
                    item.duplicates_below(path, severity, faults);
                    path.pop();
                }
            }
            NodeKind::Scalar(_) => {}
        }
    }

    fn size(&self) -> usize {
        1 + match &self.kind {
            NodeKind::Map(entries) => entries.iter().map(|entry| entry.value.size()).sum(),
            NodeKind::Seq(items) => items.iter().map(Node::size).sum(),
            NodeKind::Scalar(_) => 0,
        }
    }

    /// Returns the number of bytes of all keys and scalars.
    fn text_bytes(&self) -> usize {
        match &self.kind {
            NodeKind::Map(entries) => entries
                .iter()
                .map(|entry| entry.key.len() + entry.value.text_bytes())
                .sum(),
            NodeKind::Seq(items) => items.iter().map(Node::text_bytes).sum(),
            NodeKind::Scalar(scalar) => scalar.text.len(),
        }
    }

    fn depth(&self) -> usize {
        1 + match &self.kind {
            NodeKind::Map(entries) => entries.iter().map(|e| e.value.depth()).max().unwrap_or(0),
            NodeKind::Seq(items) => items.iter().map(Node::depth).max().unwrap_or(0),
            NodeKind::Scalar(_) => 0,
        }
    }
}

/// One step from a value to a value in it.
enum PathStep<'a> {
    Key(&'a str),
    Item(usize),
}

fn written(path: &[PathStep<'_>]) -> String {
    path.iter().fold(String::new(), |path, step| match step {
        PathStep::Key(key) => join(&path, key),
        PathStep::Item(index) => format!("{path}[{index}]"),
    })
}

impl Scalar {
    /// Resolves the scalar by the rules in the module's header.
    pub fn resolve(&self) -> Value<'_> {
        if self.plain {
            resolve_plain(&self.text)
        } else {
            Value::Str(&self.text)
        }
    }

    /// Returns whether a tag `!!kind` may stand before the scalar. Go's YAML library refuses the others, or decodes their
    /// text (`!!binary`).
    fn is_of(&self, kind: &str) -> bool {
        match self.resolve() {
            Value::Null => kind == "null",
            Value::Bool(_) => kind == "bool",
            Value::Int(_) | Value::Float(_) => matches!(kind, "int" | "float"),
            Value::Str(_) => false,
        }
    }
}

fn resolve_plain(text: &str) -> Value<'_> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        // YAML 1.1: kubeadm on the same node reads these words as booleans too.
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            return Value::Bool(true);
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return Value::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Value::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return Value::Float(f64::NEG_INFINITY),
        _ => {}
    }
    // Only these characters can begin a number; everything else is text.
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Value::Str(text);
    }
    // YAML 1.1 permits underscores in numbers.
    let digits = text.replace('_', "");
    let (negative, magnitude) = match digits.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, digits.strip_prefix('+').unwrap_or(&digits)),
    };
    let (radix, body) = if let Some(hex) = magnitude
        .strip_prefix("0x")
        .or(magnitude.strip_prefix("0X"))
    {
        (16, hex)
    } else if let Some(binary) = magnitude
        .strip_prefix("0b")
        .or(magnitude.strip_prefix("0B"))
    {
        (2, binary)
    } else if let Some(octal) = magnitude
        .strip_prefix("0o")
        .or(magnitude.strip_prefix("0O"))
    {
        (8, octal)
    } else if magnitude.len() > 1 && magnitude.starts_with('0') {
        (8, magnitude)
    } else {
        (10, magnitude)
    };
    if !body.is_empty() && body.chars().all(|c| c.is_digit(radix)) {
        let signed = if negative {
            format!("-{body}")
        } else {
            body.to_owned()
        };
        if let Ok(number) = i64::from_str_radix(&signed, radix) {
            return Value::Int(number);
        }
    }
    let float_like = magnitude
        .chars()
        .all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-'))
        && magnitude.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && magnitude.contains(|c: char| c.is_ascii_digit());
    if float_like && let Ok(number) = digits.parse::<f64>() {
        return Value::Float(number);
    }
    Value::Str(text)
}

/// Reads all documents of a text except empty ones (`---` only, comments only).
///
/// # Errors
/// The first syntax error with its position, or an alias that would expand without bound.
pub fn parse(file: &str, text: &str) -> Result<Vec<Node>, Faults> {
    // Windows editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // kubeadm takes a later one as part of the text, the parser skips it.
    if let Some(line) = text.lines().position(|line| line.starts_with('\u{feff}')) {
        let place = Position {
            file: Arc::from(file),
            line: line + 1,
            column: 1,
        };
        return Err(SyntaxError::ByteOrderMark.at(place));
    }
    let mut builder = TreeBuilder::new(file);
    let mut outcome = builder.read(text);
    if let Err((_, error)) = &outcome
        && error.parser_names("indentation")
        && let Some(indented) = flow::indent(text)
    {
        builder = TreeBuilder::new(file);
        builder.added_spaces = indented.added;
        outcome = builder.read(&indented.text);
    }
    if let Err((mut place, error)) = outcome {
        let names_tab = error.parser_names("tab") && !error.parser_names("unprintable");
        // A scalar that runs into a tab is reported at its beginning.
        if names_tab
            && let Some((line, _)) = text
                .lines()
                .enumerate()
                .skip(place.line.saturating_sub(1))
                .find(|(_, line)| leading_tab(line))
            && line >= place.line
        {
            place.line = line + 1;
            place.column = 1;
        }
        let line = place.line.checked_sub(1).and_then(|n| text.lines().nth(n));
        let correction = match &error {
            SyntaxError::Parser(problem) if !error.is_about_alias() => {
                syntax::correction(text, place.line, problem)
            }
            _ => None,
        };
        let fix = match (line.and_then(unrendered), line.is_some_and(leading_tab)) {
            _ if names_tab => NO_TABS.to_owned(),
            (Some(fix), _) => fix.to_owned(),
            (None, true) => NO_TABS.to_owned(),
            (None, false) => correction.unwrap_or_else(|| error.fix().to_owned()),
        };
        let spot = FieldPosition::from(place);
        return Err(spot.error(error.to_string(), fix).into());
    }
    // The parser does not look into comments.
    if let Some(place) = unprintable(text, &builder.file) {
        return Err(SyntaxError::Unprintable.at(place));
    }
    Ok(builder.documents)
}

/// Returns the position of the first character that YAML does not allow anywhere (1.1, section 5.1).
fn unprintable(text: &str, file: &Arc<str>) -> Option<Position> {
    let is_allowed = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..);
    text.lines().enumerate().find_map(|(line, content)| {
        let column = content.chars().position(|c| !is_allowed(c))?;
        Some(Position {
            file: Arc::clone(file),
            line: line + 1,
            column: column + 1,
        })
    })
}

fn leading_tab(line: &str) -> bool {
    line.trim_start_matches(' ').starts_with('\t')
}

/// Builds the tree from parser events without recursion, so nesting cannot exhaust the stack.
struct TreeBuilder {
    file: Arc<str>,
    stack: Vec<OpenCollection>,
    anchors: HashMap<usize, Node>,
    /// Values and bytes that aliases may still add.
    alias_budget: usize,
    alias_bytes: usize,
    /// Number of spaces that were added to each line before it was parsed.
    added_spaces: Vec<usize>,
    documents: Vec<Node>,
}

/// A map or list that is not complete yet.
struct OpenCollection {
    anchor: usize,
    node: Node,
    key: Option<(String, Position)>,
}

type Broken = (Position, SyntaxError);

#[derive(Debug, thiserror::Error)]
enum SyntaxError {
    #[error("not valid YAML: {0}")]
    Parser(String),
    #[error("an alias refers to itself")]
    CircularAlias,
    #[error("an alias makes the document nested too deeply")]
    DeepAlias,
    #[error(
        "aliases expand to more than {MAX_ALIAS_VALUES} values or {} MiB of text",
        MAX_ALIAS_BYTES >> 20
    )]
    LargeAlias,
    #[error("nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    #[error("a key has more than {MAX_KEY_LENGTH} bytes")]
    LongKey,
    #[error("a key must be text, not a map or list")]
    KeyNotText,
    #[error("<< must name a map or a list of maps")]
    MergedNotMap,
    #[error("a value is not of the type that its tag names")]
    TagNotOfValue,
    #[error("not valid YAML: a control character")]
    Unprintable,
    #[error("not valid YAML: a byte order mark that is not at the start of the file")]
    ByteOrderMark,
}

impl SyntaxError {
    fn at(&self, place: Position) -> Faults {
        let spot = FieldPosition::from(place);
        spot.error(self.to_string(), self.fix()).into()
    }

    /// Returns whether the parser's message contains `word`; the parser has no error types.
    fn parser_names(&self, word: &str) -> bool {
        matches!(self, SyntaxError::Parser(why) if why.contains(word))
    }

    fn is_about_alias(&self) -> bool {
        self.parser_names("alias") || self.parser_names("unknown anchor")
    }

    fn fix(&self) -> &'static str {
        const NO_ALIAS: &str = "write the value out instead of using an alias";
        match self {
            SyntaxError::CircularAlias | SyntaxError::DeepAlias | SyntaxError::LargeAlias => {
                NO_ALIAS
            }
            SyntaxError::Parser(_) if self.is_about_alias() => NO_ALIAS,
            SyntaxError::LongKey => "shorten it",
            SyntaxError::Unprintable => "remove the control character",
            SyntaxError::ByteOrderMark => "remove the bytes EF BB BF",
            SyntaxError::TagNotOfValue => "remove the tag, which begins with !",
            SyntaxError::TooDeep => "flatten it",
            SyntaxError::Parser(_) | SyntaxError::KeyNotText | SyntaxError::MergedNotMap => {
                "correct the syntax here or in the line above"
            }
        }
    }
}

impl TreeBuilder {
    fn new(file: &str) -> Self {
        TreeBuilder {
            file: Arc::from(file),
            stack: Vec::new(),
            anchors: HashMap::new(),
            alias_budget: MAX_ALIAS_VALUES,
            alias_bytes: MAX_ALIAS_BYTES,
            added_spaces: Vec::new(),
            documents: Vec::new(),
        }
    }

    /// Adds the documents of a text.
    fn read(&mut self, text: &str) -> Result<(), Broken> {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            match event {
                Ok((event, span)) => self.take(event, self.place(&span.start))?,
                Err(error) => {
                    let place = self.place(error.marker());
                    return Err((place, SyntaxError::Parser(error.info().to_owned())));
                }
            }
        }
        Ok(())
    }

    fn place(&self, marker: &saphyr_parser::Marker) -> Position {
        let line = marker.line();
        let added = line
            .checked_sub(1)
            .and_then(|index| self.added_spaces.get(index));
        Position {
            file: self.file.clone(),
            line,
            column: (marker.col() + 1).saturating_sub(added.copied().unwrap_or(0)),
        }
    }

    fn take(&mut self, event: Event<'_>, place: Position) -> Result<(), Broken> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.as_ref();
                let tag = tag.map(|tag| (tag.handle.as_str(), tag.suffix.as_str()));
                // `!!str 5`, `! 5` and `!own 5` are text whatever their content.
                let text_tag = matches!(tag, Some(("!", _) | ("", "!") | (_, "str" | "")));
                let scalar = Scalar {
                    text: Zeroizing::new(text.into_owned()),
                    plain: style == ScalarStyle::Plain && !text_tag,
                };
                if let Some((_, kind)) = tag.filter(|_| !text_tag)
                    && !scalar.is_of(kind)
                {
                    return Err((place, SyntaxError::TagNotOfValue));
                }
                let node = Node {
                    place,
                    kind: NodeKind::Scalar(scalar),
                };
                self.finished(node, anchor)
            }
            Event::MappingStart(anchor, _) => self.open(NodeKind::Map(Vec::new()), place, anchor),
            Event::SequenceStart(anchor, _) => self.open(NodeKind::Seq(Vec::new()), place, anchor),
            Event::MappingEnd | Event::SequenceEnd => match self.stack.pop() {
                Some(open) => {
                    let mut node = open.node;
                    merge_keys(&mut node)?;
                    self.finished(node, open.anchor)
                }
                None => Ok(()),
            },
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor) else {
                    return Err((place, SyntaxError::CircularAlias));
                };
                if self.stack.len() + node.depth() > MAX_DEPTH {
                    return Err((place, SyntaxError::DeepAlias));
                }
                let values = self.alias_budget.checked_sub(node.size());
                let bytes = self.alias_bytes.checked_sub(node.text_bytes());
                let (Some(values), Some(bytes)) = (values, bytes) else {
                    return Err((place, SyntaxError::LargeAlias));
                };
                (self.alias_budget, self.alias_bytes) = (values, bytes);
                let node = node.clone();
                self.finished(node, 0)
            }
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::StreamStart | Event::StreamEnd | Event::DocumentEnd | Event::Nothing => Ok(()),
        }
    }

    fn open(&mut self, kind: NodeKind, place: Position, anchor: usize) -> Result<(), Broken> {
        if self.stack.len() >= MAX_DEPTH {
            return Err((place, SyntaxError::TooDeep));
        }
        self.stack.push(OpenCollection {
            anchor,
            node: Node { place, kind },
            key: None,
        });
        Ok(())
    }

    fn finished(&mut self, node: Node, anchor: usize) -> Result<(), Broken> {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(open) = self.stack.last_mut() else {
            if !node.is_null() {
                self.documents.push(node);
            }
            return Ok(());
        };
        match &mut open.node.kind {
            NodeKind::Seq(items) => items.push(node),
            NodeKind::Map(entries) => match open.key.take() {
                Some((key, place)) => entries.push(MapEntry {
                    key,
                    place,
                    value: node,
                }),
                None => match &node.kind {
                    NodeKind::Scalar(scalar) if scalar.text.len() > MAX_KEY_LENGTH => {
                        return Err((node.place, SyntaxError::LongKey));
                    }
                    NodeKind::Scalar(scalar) => {
                        open.key = Some((scalar.text.to_string(), node.place.clone()));
                    }
                    _ => {
                        return Err((node.place, SyntaxError::KeyNotText));
                    }
                },
            },
            NodeKind::Scalar(_) => {}
        }
        Ok(())
    }
}

/// Expands `<<: *base`: adds the keys of `base` that the map does not contain.
fn merge_keys(node: &mut Node) -> Result<(), Broken> {
    let NodeKind::Map(entries) = &mut node.kind else {
        return Ok(());
    };
    if !entries.iter().any(|entry| entry.key == "<<") {
        return Ok(());
    }
    let (merges, mut own): (Vec<MapEntry>, Vec<MapEntry>) = std::mem::take(entries)
        .into_iter()
        .partition(|entry| entry.key == "<<");
    let mut names: HashSet<String> = own.iter().map(|entry| entry.key.clone()).collect();
    for merge in merges {
        let sources = match merge.value.kind {
            NodeKind::Seq(items) => items,
            kind => vec![Node {
                place: merge.place.clone(),
                kind,
            }],
        };
        for source in sources {
            let NodeKind::Map(inherited) = source.kind else {
                return Err((merge.place, SyntaxError::MergedNotMap));
            };
            for entry in inherited {
                if names.insert(entry.key.clone()) {
                    own.push(entry);
                }
            }
        }
    }
    *entries = own;
    Ok(())
}

/// Returns the tree as JSON: key order and unknown fields are kept, and the last of duplicate keys is used.
pub fn to_json(node: &Node) -> serde_json::Value {
    match &node.kind {
        NodeKind::Map(entries) => serde_json::Value::Object(
            entries
                .iter()
                .map(|entry| (entry.key.clone(), to_json(&entry.value)))
                .collect(),
        ),
        NodeKind::Seq(items) => serde_json::Value::Array(items.iter().map(to_json).collect()),
        NodeKind::Scalar(scalar) => match scalar.resolve() {
            Value::Null => serde_json::Value::Null,
            Value::Bool(flag) => serde_json::Value::Bool(flag),
            Value::Int(number) => serde_json::Value::from(number),
            Value::Float(number) => serde_json::Number::from_f64(number).map_or_else(
                // JSON has no NaN or infinity.
                || serde_json::Value::String(scalar.text.to_string()),
                serde_json::Value::Number,
            ),
            Value::Str(text) => serde_json::Value::String(text.to_owned()),
        },
    }
}

/// Adds values to a stream of YAML documents.
pub(crate) fn push_documents(text: &mut String, values: &[serde_json::Value]) {
    for value in values {
        text.push_str("---\n");
        // JSON is YAML.
        text.push_str(&to_string(value).unwrap_or_else(|_| value.to_string()));
    }
}

/// Returns a value as YAML in the format of Go tools: two spaces, `- ` under its key, one line per scalar. Invisible
/// characters and terminal controls are escaped in double quotes.
///
/// # Errors
/// Failure of the value's own serialization.
pub fn to_string<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_yaml::ser_error::Error> {
    let mut options = serde_yaml::SerializerOptions::default();
    options.prefer_block_scalars = false; // base64 stays on one line
    options.compact_list_indent = true;
    let text = serde_yaml::to_string_with_options(&value, options.clone())?;
    // The emitter escapes control characters only.
    let is_visible = |c: char| c == '\n' || !is_hidden(c);
    if text.chars().all(is_visible) {
        return Ok(text);
    }
    let Ok(mut value) = serde_json::to_value(value) else {
        return Ok(text);
    };
    let mut quoted = Vec::new();
    set_aside(&mut value, &mut quoted);
    let mut text = serde_yaml::to_string_with_options(&value, options)?;
    for (number, scalar) in quoted.iter().enumerate() {
        text = text.replace(&stand_in(number), scalar);
    }
    Ok(text)
}

/// Returns a plain scalar that replaces one that must be quoted. It consists of private-use characters, which no
/// other text contains.
fn stand_in(number: usize) -> String {
    format!("\u{e0f0}quoted{number}\u{e0f1}")
}

/// Replaces every text with invisible characters, and returns the quoted texts.
fn set_aside(value: &mut Json, quoted: &mut Vec<String>) {
    let mut replaced = |text: &str| {
        let has_hidden = text.chars().any(is_hidden);
        has_hidden.then(|| {
            quoted.push(double_quoted(text));
            stand_in(quoted.len() - 1)
        })
    };
    match value {
        Json::String(text) => {
            if let Some(other) = replaced(text) {
                *text = other;
            }
        }
        Json::Array(items) => items.iter_mut().for_each(|item| set_aside(item, quoted)),
        Json::Object(map) => {
            let entries = std::mem::take(map).into_iter();
            let keyed = entries.map(|(key, value)| (replaced(&key).unwrap_or(key), value));
            *map = keyed.collect();
            map.values_mut().for_each(|item| set_aside(item, quoted));
        }
        _ => {}
    }
}

/// Quotes a text by YAML 1.2, section 5.7.
fn double_quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if is_hidden(c) => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
pub(crate) mod tests;

//! Walks a document by its schema: knows the keys that were read, verifies the types of values, and collects faults.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use zeroize::Zeroizing;

use super::{
    Fault, FaultSeverity, Faults, FieldPosition, MapEntry, Node, NodeKind, Position, Value,
    unrendered,
};

/// One pass over one or several documents of a schema, which collects the faults.
pub struct Walk {
    strict: bool,
    faults: RefCell<Faults>,
    asked: RefCell<BTreeSet<String>>,
    declared: RefCell<BTreeSet<String>>,
    /// The last value that must be in quotes.
    unquoted: RefCell<Option<Position>>,
}

impl Walk {
    /// Creates a pass. Unknown keys are errors in a strict walk, warnings in a lenient one.
    pub fn new(strict: bool) -> Self {
        Walk {
            strict,
            faults: RefCell::default(),
            asked: RefCell::default(),
            declared: RefCell::default(),
            unquoted: RefCell::default(),
        }
    }

    /// Records a name that the document defines, so fields that are read later can refer to it.
    pub fn declare(&self, name: &str) {
        self.declared.borrow_mut().insert(name.to_owned());
    }

    /// Returns a name if the document defines it.
    pub fn declared<'n>(&self, name: &'n str) -> Option<&'n str> {
        self.declared.borrow().contains(name).then_some(name)
    }

    /// Returns all names that the document defines.
    pub fn all_declared(&self) -> Vec<String> {
        self.declared.borrow().iter().cloned().collect()
    }

    /// Ends the pass and returns the faults.
    pub fn into_faults(self) -> Faults {
        self.faults.into_inner()
    }

    /// Adds a fault. An error of a value that must be in quotes, but would be wrong in quotes too, only corrects the fix of
    /// the first one.
    pub fn push(&self, fault: Fault) {
        let mut faults = self.faults.borrow_mut();
        let is_unquoted = self.unquoted.borrow().as_ref() == Some(&fault.place);
        if is_unquoted && fault.severity == FaultSeverity::Error {
            faults.correct_fix(&fault.place, fault.fix)
        } else {
            faults.push(fault)
        }
    }

    /// Returns whether unknown keys are errors.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns every field that was read, with `*` for free names and `[]` for list items.
    pub fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().cloned().collect()
    }
}

/// A value during a walk.
#[derive(Clone)]
pub struct Field<'a> {
    walk: &'a Walk,
    node: &'a Node,
    path: String,
    pattern: String,
}

impl<'a> Field<'a> {
    /// Returns the document itself.
    pub fn root(walk: &'a Walk, node: &'a Node) -> Self {
        Field {
            walk,
            node,
            path: String::new(),
            pattern: String::new(),
        }
    }

    /// Returns the position, for a fault that may be found later.
    pub fn spot(&self) -> FieldPosition {
        FieldPosition {
            place: self.node.place.clone(),
            field: self.path.clone(),
        }
    }

    /// Returns the pass of this field.
    pub fn walk(&self) -> &'a Walk {
        self.walk
    }

    /// Returns the value.
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// Reports an error here.
    pub fn error(&self, message: impl Into<String>, fix: impl Into<String>) {
        let fix = self.fix_of_value(fix.into());
        self.walk.push(self.spot().error(message, fix));
    }

    /// Reports a warning here.
    pub fn warning(&self, message: impl Into<String>, fix: impl Into<String>) {
        let fix = self.fix_of_value(fix.into());
        self.walk.push(self.spot().warning(message, fix));
    }

    /// Returns the fix of a fault of the value: whatever the fault is, a placeholder that was not replaced is its cause.
    fn fix_of_value(&self, fix: String) -> String {
        match &self.node.kind {
            NodeKind::Scalar(scalar) => unrendered(&scalar.text).map_or(fix, str::to_owned),
            _ => fix,
        }
    }

    /// Reports what a strict validation refuses: an error in a strict walk, a warning in a lenient one.
    pub fn refused_by_validation(&self, message: impl Into<String>, fix: impl Into<String>) {
        if self.walk.strict {
            self.error(message, fix)
        } else {
            self.warning(message, fix)
        }
    }

    fn wrong_kind(&self, wanted: &str, fix: &str) {
        let message = format!("is {}, must be {wanted}", self.node.kind_name());
        self.walk.push(self.spot().error(message, fix));
    }

    /// Reports a value that is text only in quotes.
    fn unquoted(&self, message: String, fix: String) {
        self.walk.push(self.spot().error(message, fix));
        *self.walk.unquoted.borrow_mut() = Some(self.node.place.clone());
    }

    /// Returns the value as a map, or reports a fault.
    pub fn map(&self) -> Option<Map<'a>> {
        match &self.node.kind {
            NodeKind::Map(entries) => Some(Map {
                field: self.clone(),
                entries,
                known: RefCell::default(),
                misplaced: RefCell::default(),
            }),
            _ => {
                self.wrong_kind("a map", "write `key: value` lines below it");
                None
            }
        }
    }

    /// Returns the value as a list, or reports a fault.
    pub fn list(&self) -> Option<Vec<Field<'a>>> {
        match &self.node.kind {
            NodeKind::Seq(items) => Some(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, node)| Field {
                        walk: self.walk,
                        node,
                        path: format!("{}[{index}]", self.path),
                        pattern: format!("{}[]", self.pattern),
                    })
                    .collect(),
            ),
            _ => {
                self.wrong_kind("a list", "write `- item` lines below it");
                None
            }
        }
    }

    /// Returns the value as text, or reports a fault. Like for kubeadm, unquoted numbers and booleans are not text; they are
    /// reported and returned as written, so the caller reports a value that would be wrong in quotes too.
    pub fn string(&self) -> Option<String> {
        let NodeKind::Scalar(scalar) = &self.node.kind else {
            self.wrong_kind("text", "write the text after the colon");
            return None;
        };
        match scalar.resolve() {
            Value::Str(text) => Some(text.to_owned()),
            // In a list: `- ` without a value.
            Value::Null => Some(String::new()),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                let written: &str = &scalar.text;
                let kind = self.node.kind_name();
                self.unquoted(
                    format!("unquoted {written} is {kind}, must be text"),
                    format!("write \"{written}\" in quotes"),
                );
                Some(written.to_owned())
            }
        }
    }

    /// Returns the value of a scalar as it is written, whatever its type, as text that no message may repeat.
    pub fn scalar_secret(&self) -> Option<Zeroizing<String>> {
        match &self.node.kind {
            NodeKind::Scalar(scalar) => Some(scalar.text.clone()),
            _ => None,
        }
    }

    /// Returns the value as text that no message may repeat, or reports a fault, as [`Field::string`] does.
    pub fn secret(&self) -> Option<Zeroizing<String>> {
        let NodeKind::Scalar(scalar) = &self.node.kind else {
            self.wrong_kind("text", "write the text after the colon");
            return None;
        };
        match scalar.resolve() {
            Value::Str(_) => Some(scalar.text.clone()),
            Value::Null => Some(Zeroizing::default()),
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                let message = format!("is {}, must be text", self.node.kind_name());
                self.unquoted(message, "write it in quotes".to_owned());
                Some(scalar.text.clone())
            }
        }
    }

    /// Returns the scalar as written, for values with their own grammar, or reports a fault.
    pub fn written(&self) -> Option<String> {
        match &self.node.kind {
            NodeKind::Scalar(scalar) => Some(scalar.text.to_string()),
            _ => self.string(),
        }
    }

    /// Returns the value as a whole number, or reports a fault.
    pub fn integer(&self) -> Option<i64> {
        if let NodeKind::Scalar(scalar) = &self.node.kind
            && let Value::Int(number) = scalar.resolve()
        {
            return Some(number);
        }
        self.wrong_kind("a whole number", "write digits without quotes");
        None
    }

    /// Returns the value as a boolean, or reports a fault.
    pub fn boolean(&self) -> Option<bool> {
        if let NodeKind::Scalar(scalar) = &self.node.kind
            && let Value::Bool(flag) = scalar.resolve()
        {
            return Some(flag);
        }
        self.wrong_kind("a boolean", "write true or false without quotes");
        None
    }
}

/// A map during a walk. Records which keys the schema knows.
pub struct Map<'a> {
    field: Field<'a>,
    entries: &'a [MapEntry],
    known: RefCell<Vec<String>>,
    misplaced: RefCell<Vec<(&'static str, String)>>,
}

impl<'a> Map<'a> {
    /// Returns the value of a key; `None` if it is absent or null.
    pub fn get(&self, key: &str) -> Option<Field<'a>> {
        self.known.borrow_mut().push(key.to_owned());
        let pattern = join(&self.field.pattern, key);
        self.field.walk.asked.borrow_mut().insert(pattern.clone());
        let entry = self.entries.iter().rev().find(|entry| entry.key == key)?;
        self.child(entry, pattern)
    }

    /// Returns every entry of a map with free names, in order, except null values.
    pub fn named(&self) -> Vec<(String, Field<'a>)> {
        let pattern = join(&self.field.pattern, "*");
        self.field.walk.asked.borrow_mut().insert(pattern.clone());
        let entries = self.entries.iter().enumerate();
        let given = entries.filter(|(_, entry)| !entry.value.is_null());
        let last: HashMap<&str, usize> = given
            .map(|(index, entry)| (entry.key.as_str(), index))
            .collect();
        let mut named: Vec<(String, Field<'a>)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            self.known.borrow_mut().push(entry.key.clone());
            if last.get(entry.key.as_str()) == Some(&index)
                && let Some(field) = self.child(entry, pattern.clone())
            {
                named.push((entry.key.clone(), field));
            }
        }
        named
    }

    fn child(&self, entry: &'a MapEntry, pattern: String) -> Option<Field<'a>> {
        (!entry.value.is_null()).then(|| Field {
            walk: self.field.walk,
            node: &entry.value,
            path: join(&self.field.path, &entry.key),
            pattern,
        })
    }

    /// Marks keys as known that are not read here.
    pub fn ignore(&self, keys: &[&str]) {
        let mut known = self.known.borrow_mut();
        known.extend(keys.iter().map(|key| (*key).to_owned()));
    }

    /// Defines the corrections for keys that belong elsewhere; they stay unknown here.
    pub fn belong_elsewhere(&self, keys: impl IntoIterator<Item = (&'static str, String)>) {
        self.misplaced.borrow_mut().extend(keys);
    }

    /// Returns the map as a field, for faults.
    pub fn field(&self) -> &Field<'a> {
        &self.field
    }

    /// Reports every key that was neither read nor ignored, with the most similar known one.
    pub fn finish(&self) {
        let known = self.known.borrow();
        let names: HashSet<&str> = known.iter().map(String::as_str).collect();
        let severity = if self.field.walk.strict {
            FaultSeverity::Error
        } else {
            FaultSeverity::Warning
        };
        for entry in self.entries {
            if names.contains(entry.key.as_str()) {
                continue;
            }
            if self.field.walk.faults.borrow().is_full(severity) {
                // The fault is only counted and needs no advice.
                let spot = FieldPosition::from(entry.place.clone());
                self.field.walk.push(match severity {
                    FaultSeverity::Error => spot.error("unknown field", ""),
                    FaultSeverity::Warning => spot.warning("unknown field", ""),
                });
                continue;
            }
            let near = did_you_mean(&entry.key, known.iter().map(String::as_str));
            let place = self.misplaced.borrow();
            let place = place.iter().find(|(key, _)| *key == entry.key);
            let place = place.map(|(_, fix)| fix.clone());
            let special = place.or_else(|| missing_colon(&entry.key, &names));
            let fix = match (special, &near, self.field.walk.strict) {
                (Some(special), ..) => special,
                (None, Some(near), _) => format!("did you mean {near}?"),
                (None, None, true) if known.is_empty() => "remove it".to_owned(),
                (None, None, true) => {
                    let mut names: Vec<&str> = known.iter().map(String::as_str).collect();
                    names.sort_unstable();
                    names.dedup();
                    format!("known here: {}", names.join(", "))
                }
                (None, None, false) => "it has no effect; remove it".to_owned(),
            };
            let spot = FieldPosition {
                place: entry.place.clone(),
                field: join(&self.field.path, &entry.key),
            };
            self.field.walk.push(if self.field.walk.strict {
                spot.error("unknown field", fix)
            } else {
                spot.warning("unknown field", fix)
            });
        }
    }
}

/// Returns the correction for a key such as `signer:corp` or `rotation {renewAt`, which YAML reads as one word.
fn missing_colon(key: &str, known: &HashSet<&str>) -> Option<String> {
    if let Some((name, _)) = key.split_once(':')
        && known.contains(name)
    {
        return Some(format!("write a space after {name}:"));
    }
    let (name, _) = key.split_once(' ')?;
    known
        .contains(name)
        .then(|| format!("write {name}: with a colon"))
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Returns the known name that a mistyped one most likely means.
pub fn did_you_mean<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    let lower = name.to_lowercase();
    known
        .filter_map(|candidate| {
            let other = candidate.to_lowercase();
            let distance = edits(&lower, &other);
            // `clusterConfig` differs from `clusterConfiguration` by many edits, but the intention is clear.
            let beginning = lower.len() >= 4 && other.starts_with(&lower);
            let near = distance <= 2 && distance < candidate.chars().count();
            (near || beginning).then_some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

/// Returns the correction of an unknown name: the known name that it most likely means, or `otherwise`.
pub fn fix_for<'a>(
    name: &str,
    known: impl IntoIterator<Item = &'a str>,
    otherwise: impl Into<String>,
) -> String {
    match did_you_mean(name, known.into_iter()) {
        Some(near) => format!("did you mean {near}?"),
        None => otherwise.into(),
    }
}

/// Returns the Levenshtein distance of the first 64 characters.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut next = vec![i + 1];
        let mut left = i + 1;
        for (y, above) in b.iter().zip(row.windows(2)) {
            let &[diagonal, up] = above else { continue };
            left = (diagonal + usize::from(x != *y)).min(up + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

//! Faults of a text: position, problem and correction.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Maximum number of errors, and of warnings, that are listed; further ones are only counted.
pub const MAX_LISTED_FAULTS: usize = 50;

/// Position: file, line and column, both counted from 1. Line 0 means the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// File name as the caller gave it, or the name of another source such as a command-line option.
    pub file: Arc<str>,
    /// Line, from 1; 0 for the source as a whole.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Position {
    /// Returns the position of a source as a whole.
    pub fn whole(file: &str) -> Self {
        Position {
            file: Arc::from(file),
            line: 0,
            column: 0,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            f.write_str(&self.file)
        } else {
            write!(f, "{}:{}:{}", self.file, self.line, self.column)
        }
    }
}

/// Whether a fault prevents the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultSeverity {
    /// Accepted, but reported.
    Warning,
    /// Prevents the run.
    Error,
}

/// One fault of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Error or warning.
    pub severity: FaultSeverity,
    /// Position.
    pub place: Position,
    /// Path of the field, as in `networking.serviceSubnet`; empty if the fault concerns no field.
    pub field: String,
    /// Problem.
    pub message: String,
    /// Correction.
    pub fix: String,
}

impl Fault {
    /// Returns the same value for two reports of one fault; the corrections may differ.
    fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let Position { file, line, column } = &self.place;
        (file, line, column, &self.field, &self.message).hash(&mut hasher);
        hasher.finish()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        if !self.fix.is_empty() {
            write!(f, " ({})", self.fix)?;
        }
        Ok(())
    }
}

/// Serialized as one flat object, for tools that read the output of a check.
impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Fault", 7)?;
        object.serialize_field("severity", &self.severity)?;
        object.serialize_field("file", &*self.place.file)?;
        object.serialize_field("line", &self.place.line)?;
        object.serialize_field("column", &self.place.column)?;
        object.serialize_field("field", &self.field)?;
        object.serialize_field("message", &self.message)?;
        object.serialize_field("fix", &self.fix)?;
        object.end()
    }
}

/// All faults of one or several texts. As an error it prints one error per line, without warnings.
///
/// At most [`MAX_LISTED_FAULTS`] of each severity are kept. The last one then states the number of further ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    listed: Vec<Fault>,
    /// Hashes of all faults, listed or not.
    seen: HashSet<(FaultSeverity, u64)>,
    /// Number of errors among them.
    errors: u32,
    /// The count of unlisted faults, for each severity that has any.
    remainders: Vec<Fault>,
}

impl Faults {
    /// Adds a fault.
    pub fn push(&mut self, fault: Fault) {
        // A file may be walked twice (as itself and merged); each fault is reported once.
        if !self.record(fault.severity, fault.identity()) {
            return;
        }
        if self.is_full(fault.severity) {
            self.count_remainder(fault.severity, &fault.place);
        } else {
            self.listed.push(fault);
        }
    }

    /// Replaces the fix of the last listed fault at this position.
    pub(super) fn correct_fix(&mut self, place: &Position, fix: String) {
        let mut listed = self.listed.iter_mut().rev();
        if let Some(fault) = listed.find(|fault| fault.place == *place) {
            fault.fix = fix;
        }
    }

    /// Adds all faults of another collection.
    pub fn extend(&mut self, other: Faults) {
        for fault in other.listed {
            self.push(fault);
        }
        for (severity, identity) in other.seen {
            self.record(severity, identity);
        }
        for remainder in other.remainders {
            self.count_remainder(remainder.severity, &remainder.place);
        }
    }

    /// Returns whether further faults of this severity are only counted.
    pub(super) fn is_full(&self, severity: FaultSeverity) -> bool {
        let same = self.listed.iter().filter(|f| f.severity == severity);
        same.count() >= MAX_LISTED_FAULTS
    }

    /// Records a fault; returns false if it was recorded before.
    fn record(&mut self, severity: FaultSeverity, identity: u64) -> bool {
        let is_new = self.seen.insert((severity, identity));
        self.errors += u32::from(is_new && severity == FaultSeverity::Error);
        is_new
    }

    /// Updates the number of faults that are not listed.
    fn count_remainder(&mut self, severity: FaultSeverity, place: &Position) {
        let same = self.listed.iter().filter(|f| f.severity == severity);
        let errors = usize::try_from(self.errors).unwrap_or(usize::MAX);
        let (what, all) = match severity {
            FaultSeverity::Error => ("errors", errors),
            FaultSeverity::Warning => ("warnings", self.seen.len().saturating_sub(errors)),
        };
        let more = all.saturating_sub(same.count());
        let message = format!("… and {more} more {what}; at most {MAX_LISTED_FAULTS} are listed");
        match self.remainders.iter_mut().find(|f| f.severity == severity) {
            Some(remainder) => remainder.message = message,
            None => self.remainders.push(Fault {
                severity,
                place: Position::whole(&place.file),
                field: String::new(),
                message,
                fix: String::new(),
            }),
        }
    }

    /// Returns every fault, in the order found.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.listed.iter().chain(&self.remainders)
    }

    /// Returns the errors.
    pub fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.iter().filter(|f| f.severity == FaultSeverity::Error)
    }

    /// Returns the warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Fault> {
        self.iter().filter(|f| f.severity == FaultSeverity::Warning)
    }

    /// Returns true if there is an error.
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    /// Returns true if there is no fault.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Returns `Ok` with the value and the warnings, or all faults if one of them is an error.
    ///
    /// # Errors
    /// The collection itself, sorted by file and line, if it contains an error.
    pub fn outcome<T>(self, value: T) -> Result<(T, Faults), Faults> {
        self.outcome_of(&[], value)
    }

    /// As [`Faults::outcome`], with the files in the given order.
    ///
    /// # Errors
    /// The collection itself, sorted, if it contains an error.
    pub fn outcome_of<T>(mut self, files: &[&str], value: T) -> Result<(T, Faults), Faults> {
        self.sort(files);
        if self.has_errors() {
            Err(self)
        } else {
            Ok((value, self))
        }
    }

    /// Sorts the faults: files as given or in the order found, then by line and column.
    fn sort(&mut self, files: &[&str]) {
        let mut files: Vec<Arc<str>> = files.iter().map(|file| Arc::from(*file)).collect();
        for fault in &self.listed {
            if !files.contains(&fault.place.file) {
                files.push(fault.place.file.clone());
            }
        }
        self.listed.sort_by_key(|fault| {
            let file = files.iter().position(|file| *file == fault.place.file);
            (file, fault.place.line, fault.place.column)
        });
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.errors().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

impl Serialize for Faults {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        let mut faults = Faults::default();
        faults.push(fault);
        faults
    }
}

impl IntoIterator for Faults {
    type Item = Fault;
    type IntoIter = std::iter::Chain<std::vec::IntoIter<Fault>, std::vec::IntoIter<Fault>>;

    fn into_iter(self) -> Self::IntoIter {
        self.listed.into_iter().chain(self.remainders)
    }
}

/// Position of a field in which a fault may be found later, when other fields are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPosition {
    /// Position of the value.
    pub place: Position,
    /// Path of the field.
    pub field: String,
}

impl From<Position> for FieldPosition {
    /// Returns the position of a document, or of another value without a field.
    fn from(place: Position) -> Self {
        FieldPosition {
            place,
            field: String::new(),
        }
    }
}

impl FieldPosition {
    /// Returns the position of a source without lines, such as the host name or a command-line option.
    pub fn whole(source: &str) -> Self {
        Position::whole(source).into()
    }

    /// Returns an error at this position.
    pub fn error(&self, message: impl Into<String>, fix: impl Into<String>) -> Fault {
        self.fault(FaultSeverity::Error, message.into(), fix.into())
    }

    /// Returns a warning at this position.
    pub fn warning(&self, message: impl Into<String>, fix: impl Into<String>) -> Fault {
        self.fault(FaultSeverity::Warning, message.into(), fix.into())
    }

    fn fault(&self, severity: FaultSeverity, message: String, fix: String) -> Fault {
        Fault {
            severity,
            place: self.place.clone(),
            field: self.field.clone(),
            message,
            fix,
        }
    }
}

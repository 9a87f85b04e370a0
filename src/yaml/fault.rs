//! What is wrong with a text, where it stands, and how that is said.

use std::fmt;
use std::sync::Arc;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// Where something stands: file, line and column, both counted from 1. Line 0 means the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File name as the caller gave it, or the name of another source such as a command-line option.
    pub file: Arc<str>,
    /// Line, from 1; 0 when the place is the source as a whole.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Place {
    /// A source as a whole.
    pub fn whole(file: &str) -> Self {
        Place {
            file: Arc::from(file),
            line: 0,
            column: 0,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            f.write_str(&self.file)
        } else {
            write!(f, "{}:{}:{}", self.file, self.line, self.column)
        }
    }
}

/// Whether a fault forbids going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Accepted, but a person should know.
    Warning,
    /// Nothing is done while this stands.
    Error,
}

/// One thing wrong with a text: where, what, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Error or warning.
    pub severity: Severity,
    /// Where it stands.
    pub place: Place,
    /// Path of the field, as in `networking.serviceSubnet`; empty when the fault concerns no field.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub fix: String,
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

/// One flat object, for tools that read the output of a check.
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

/// All faults of one or several texts. As an error it prints one error per line and leaves the warnings out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Adds one.
    pub fn push(&mut self, fault: Fault) {
        // A file may be walked twice (as itself and merged); saying it once is enough.
        if !self.0.contains(&fault) {
            self.0.push(fault);
        }
    }

    /// Adds all of another collection.
    pub fn extend(&mut self, other: Faults) {
        for fault in other.0 {
            self.push(fault);
        }
    }

    /// Every fault, in the order found.
    pub fn iter(&self) -> std::slice::Iter<'_, Fault> {
        self.0.iter()
    }

    /// The errors.
    pub fn errors(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter().filter(|f| f.severity == Severity::Error)
    }

    /// The warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter().filter(|f| f.severity == Severity::Warning)
    }

    /// True when at least one error is among them.
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some()
    }

    /// True when there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Ok` with the value and the warnings, or all faults when one of them is an error.
    ///
    /// # Errors
    /// The collection itself, sorted by file and line, when it holds an error.
    pub fn outcome<T>(self, value: T) -> Result<(T, Faults), Faults> {
        self.outcome_of(&[], value)
    }

    /// As [`Faults::outcome`], with the files in the given order, whatever was met first.
    ///
    /// # Errors
    /// The collection itself, sorted, when it holds an error.
    pub fn outcome_of<T>(mut self, files: &[&str], value: T) -> Result<(T, Faults), Faults> {
        self.sort(files);
        if self.has_errors() {
            Err(self)
        } else {
            Ok((value, self))
        }
    }

    /// Puts the faults into reading order: files as given or first met, then by line and column.
    fn sort(&mut self, files: &[&str]) {
        let mut files: Vec<Arc<str>> = files.iter().map(|file| Arc::from(*file)).collect();
        for fault in &self.0 {
            if !files.contains(&fault.place.file) {
                files.push(fault.place.file.clone());
            }
        }
        self.0.sort_by_key(|fault| {
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

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Faults(vec![fault])
    }
}

impl IntoIterator for Faults {
    type Item = Fault;
    type IntoIter = std::vec::IntoIter<Fault>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A field that was read earlier and may be found wrong later, when other fields are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Where the value stands.
    pub place: Place,
    /// Path of the field.
    pub field: String,
}

impl Spot {
    /// A source that has no lines, such as the host name or a command-line option.
    pub fn whole(source: &str) -> Self {
        Spot {
            place: Place::whole(source),
            field: String::new(),
        }
    }

    /// An error at this spot.
    pub fn error(&self, message: impl Into<String>, fix: impl Into<String>) -> Fault {
        self.fault(Severity::Error, message.into(), fix.into())
    }

    /// A warning at this spot.
    pub fn warning(&self, message: impl Into<String>, fix: impl Into<String>) -> Fault {
        self.fault(Severity::Warning, message.into(), fix.into())
    }

    fn fault(&self, severity: Severity, message: String, fix: String) -> Fault {
        Fault {
            severity,
            place: self.place.clone(),
            field: self.field.clone(),
            message,
            fix,
        }
    }
}

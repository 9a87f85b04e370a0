//! The actions of a run, planned or taken, as the rows of a report show them.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! actions {
    ($($(#[$attribute:meta])* $name:ident: $text:literal,)+) => {
        /// The action of a [`ReportRow`](super::ReportRow).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum RowAction {
            $($(#[$attribute])* $name,)+
        }

        impl RowAction {
            /// Returns the text in tables, JSON and journal fields.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(RowAction::$name => $text,)+
                }
            }
        }
    };
}

actions! {
    // Planned.
    /// The object stays as it is.
    Keep: "keep",
    /// The CA certificate is fetched from the signer.
    Fetch: "fetch",
    /// A certificate is issued for the first time, or outside a rotation.
    Issue: "issue",
    /// A certificate is replaced by one with the same key.
    Renew: "renew",
    /// A certificate is replaced by one with a new key.
    Rekey: "rekey",
    /// The file is written again with the same certificate.
    Rewrite: "rewrite",
    /// Manual action is needed first.
    Refuse: "refuse",
    /// The certificate is installed later, with others.
    HoldBack: "hold back",
    /// A key pair is generated.
    Make: "make",
    /// A provided file is written.
    Write: "write",
    /// `sa.pub` is derived from `sa.key`.
    DerivePublic: "derive sa.pub",
    /// File permissions are restricted.
    Tighten: "tighten",

    // Done.
    /// The object stayed as it was.
    #[default]
    Kept: "kept",
    /// A new certificate was installed.
    Issued: "issued",
    /// A new certificate for the same key was installed.
    Renewed: "renewed",
    /// A new certificate for a new key was installed.
    Rekeyed: "rekeyed",
    /// The file was written again with the same certificate.
    Rewritten: "rewritten",
    /// The file was written.
    Written: "written",
    /// A key pair was generated and installed.
    Made: "made",
    /// `sa.pub` was derived from `sa.key`.
    PublicDerived: "sa.pub derived",
    /// File permissions were restricted.
    Tightened: "tightened",
    /// The certificate is installed later, with others.
    HeldBack: "held back",
    /// The signer has not answered yet.
    Pending: "pending",
    /// The signer denied the request.
    Denied: "denied",
    /// The answer of the signer, or the state of the node, is not acceptable.
    Refused: "refused",
    /// An error occurred.
    Failed: "failed",

    // Done to Secrets and shared files.
    /// A Secret was created.
    Created: "created",
    /// A Secret or file was replaced.
    Replaced: "replaced",
    /// A file was uploaded.
    Uploaded: "uploaded",
    /// An entry was uploaded without content, since the file does not exist.
    LeftEmpty: "left empty",

    // Done to components.
    /// The component uses the files on disk.
    InEffect: "in effect",
    /// The component does not run below this root.
    NotHere: "not here",
    /// A later run continues.
    Waits: "waits",
    /// The component was rolled back to its former files.
    RolledBack: "rolled back",
}

impl RowAction {
    /// Returns whether a file was written.
    pub(super) const fn is_installed(self) -> bool {
        matches!(
            self,
            RowAction::Issued
                | RowAction::Renewed
                | RowAction::Rekeyed
                | RowAction::Rewritten
                | RowAction::Written
                | RowAction::Made
                | RowAction::Tightened
                | RowAction::PublicDerived
        )
    }
}

impl fmt::Display for RowAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for RowAction {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

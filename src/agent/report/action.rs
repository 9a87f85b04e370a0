//! The actions of a run, planned or taken, as the rows of a report show them.

words! {
    /// The action of a [`ReportRow`](super::ReportRow), in the order in which a summary counts them.
    #[derive(Default)]
    pub enum RowAction: Serialize {
        // Done, and in need of attention.
        /// The answer of the signer, or the state of the node, is not acceptable.
        Refused = "refused",
        /// The signer denied the request.
        Denied = "denied",
        /// An error occurred.
        Failed = "failed",
        /// The component was rolled back to its former files.
        RolledBack = "rolled back",
        /// The signer has not answered yet.
        Pending = "pending",
        /// A later run continues.
        Waits = "waits",
        /// The certificate is installed later, with others.
        HeldBack = "held back",

        // Done.
        /// A new certificate was installed.
        Issued = "issued",
        /// A new certificate for the same key was installed.
        Renewed = "renewed",
        /// A new certificate for a new key was installed.
        Rekeyed = "rekeyed",
        /// The file was written again with the same certificate.
        Rewritten = "rewritten",
        /// The file was written.
        Written = "written",
        /// A key pair was generated and installed.
        Made = "made",
        /// `sa.pub` was derived from `sa.key`.
        PublicDerived = "sa.pub derived",
        /// File permissions were restricted.
        Tightened = "tightened",

        // Done to Secrets and shared files.
        /// A Secret was created.
        Created = "created",
        /// A Secret or file was replaced.
        Replaced = "replaced",
        /// A file was uploaded.
        Uploaded = "uploaded",
        /// An entry was uploaded without content, since the file does not exist.
        LeftEmpty = "left empty",

        // Done to components.
        /// The component uses the files on disk.
        InEffect = "in effect",
        /// The component does not run below this root.
        NotHere = "not here",

        /// The object stayed as it was.
        #[default]
        Kept = "kept",

        // Planned.
        /// Manual action is needed first.
        Refuse = "refuse",
        /// The CA certificate is fetched from the signer.
        Fetch = "fetch",
        /// A certificate is issued for the first time, or outside a rotation.
        Issue = "issue",
        /// A certificate is replaced by one with the same key.
        Renew = "renew",
        /// A certificate is replaced by one with a new key.
        Rekey = "rekey",
        /// The file is written again with the same certificate.
        Rewrite = "rewrite",
        /// A key pair is generated.
        Make = "make",
        /// A provided file is written.
        Write = "write",
        /// `sa.pub` is derived from `sa.key`.
        DerivePublic = "derive sa.pub",
        /// File permissions are restricted.
        Tighten = "tighten",
        /// The certificate is installed later, with others.
        HoldBack = "hold back",
        /// The object stays as it is.
        Keep = "keep",
    }
}

impl RowAction {
    /// Returns whether the action is planned, not taken.
    pub const fn is_planned(self) -> bool {
        matches!(
            self,
            RowAction::Refuse
                | RowAction::Fetch
                | RowAction::Issue
                | RowAction::Renew
                | RowAction::Rekey
                | RowAction::Rewrite
                | RowAction::Make
                | RowAction::Write
                | RowAction::DerivePublic
                | RowAction::Tighten
                | RowAction::HoldBack
                | RowAction::Keep
        )
    }

    /// Returns whether the action succeeded only in part, or not.
    pub const fn is_unfinished(self) -> bool {
        matches!(
            self,
            RowAction::Refused
                | RowAction::Denied
                | RowAction::Failed
                | RowAction::RolledBack
                | RowAction::Pending
                | RowAction::Waits
                | RowAction::HeldBack
                | RowAction::Refuse
        )
    }
}

//! The desired state of one file of a commit.

use std::path::PathBuf;

use zeroize::Zeroizing;

use super::dir::Metadata;

/// Permission bits that a file of a commit can have.
pub(super) const PLAIN_BITS: u32 = 0o666;

/// Permission bits of a file that is written.
///
/// They apply to a new file; a file that is replaced keeps its mode, owner, group and extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// 0600: keys and kubeconfigs. A world-readable file is tightened.
    Private,
    /// 0640 with this group, which also a file that is replaced gets: keys of components that do not run as root.
    GroupPrivate(u32),
    /// 0644: certificates.
    Public,
    /// Other permission bits.
    Other(u32),
}

impl Mode {
    pub(super) const fn bits(self) -> u32 {
        match self {
            Mode::Private => 0o600,
            Mode::GroupPrivate(_) => 0o640,
            Mode::Public => 0o644,
            Mode::Other(bits) => bits,
        }
    }

    /// Returns true for files that contain keys.
    pub(super) const fn is_private(self) -> bool {
        matches!(self, Mode::Private | Mode::GroupPrivate(_))
    }

    /// Returns the group that the file must have; `None` for that of the replaced file, or of the process.
    pub(super) const fn group(self) -> Option<u32> {
        match self {
            Mode::GroupPrivate(group) => Some(group),
            Mode::Private | Mode::Public | Mode::Other(_) => None,
        }
    }

    /// Returns the bits for a file that replaces `found`. No certificate or key is executable or set-user-ID.
    pub(super) fn replacing(self, found: &Metadata) -> u32 {
        self.inherited_bits(found) & PLAIN_BITS
    }

    fn inherited_bits(self, found: &Metadata) -> u32 {
        if found.size == 0 {
            // Created by the kubelet for a hostPath of type FileOrCreate: its mode was not chosen by an administrator.
            return self.bits();
        }
        match (self, found.mode & 0o007, found.gid) {
            (Mode::GroupPrivate(_), ..) => found.mode & 0o700 | 0o040,
            (Mode::Private, 1.., 0) => found.mode & 0o700,
            // With RootlessControlPlane a static pod reads the key through a group of its own.
            (Mode::Private, 1.., _) => found.mode & 0o770,
            _ => found.mode,
        }
    }
}

/// A path and its desired state.
pub(super) struct DesiredFile {
    /// On the node.
    pub(super) path: PathBuf,
    pub(super) state: DesiredState,
}

pub(super) enum DesiredState {
    File(DesiredContents),
    /// No file. The commit is refused unless the present one has this SHA-256.
    Absent {
        sha256: String,
    },
    /// A symbolic link to a name in the same directory; it replaces a file only if that has the SHA-256 `over`.
    Link {
        target: String,
        over: Option<String>,
    },
}

pub(super) struct DesiredContents {
    pub(super) bytes: Zeroizing<Vec<u8>>,
    pub(super) mode: Mode,
    /// Whether a file with other contents is replaced; if false, the commit is refused.
    pub(super) overwrite: bool,
}

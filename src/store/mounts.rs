//! Distinguishes mount points below a root that belong to the system there from those that belong to this machine.
//!
//! A rescue system mounts the parts of an installation below one directory (`/mnt`, `/mnt/var`), and commonly binds its
//! own `/dev`, `/proc`, `/sys` and `/run` into it for chroot(8). The former are part of the root. The latter are not:
//! their files belong to this machine.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// File systems that show the running kernel and hold no files of an installation.
const KERNEL_FILE_SYSTEMS: [&str; 18] = [
    "autofs",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// One line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    id: u64,
    /// Major and minor number of the file system.
    device: String,
    /// The directory inside the file system that is mounted.
    root: PathBuf,
    /// Mount point.
    point: PathBuf,
    kind: String,
}

/// Returns the reason why an open file is on a mount of this machine although its path is below `root`; `None` if the
/// mount is part of the root.
pub(super) fn foreign(root: impl AsFd, file: impl AsFd) -> io::Result<Option<String>> {
    let (own, of_file) = (mount_of(root.as_fd())?, mount_of(file.as_fd())?);
    if own == of_file {
        return Ok(None);
    }
    let root_path = fs::read_link(format!("/proc/self/fd/{}", root.as_fd().as_raw_fd()))?;
    let mounts = fs::read("/proc/self/mountinfo")?;
    Ok(foreign_reason(&parse(&mounts), &root_path, own, of_file))
}

fn foreign_reason(mounts: &[Mount], root_path: &Path, own: u64, of_file: u64) -> Option<String> {
    if own == of_file {
        return None;
    }
    let find = |id| mounts.iter().find(|mount| mount.id == id);
    let Some(mount) = find(of_file) else {
        return Some("its mount is unknown".to_owned());
    };
    if KERNEL_FILE_SYSTEMS.contains(&mount.kind.as_str()) {
        return Some(format!(
            "{} is the {} file system of the running kernel",
            mount.point.display(),
            mount.kind
        ));
    }
    // A directory of the root that is mounted a second time below it.
    if let Some(own) = find(own)
        && own.device == mount.device
        && let Ok(below) = root_path.strip_prefix(&own.point)
        && mount.root.starts_with(own.root.join(below))
    {
        return None;
    }
    let elsewhere = mounts.iter().find(|other| {
        !other.point.starts_with(root_path)
            && other.device == mount.device
            && mount.root.starts_with(&other.root)
    });
    elsewhere.map(|other| {
        format!(
            "{} shows a directory of this machine, whose file system is also mounted at {}",
            mount.point.display(),
            other.point.display()
        )
    })
}

fn mount_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| io::Error::other("/proc/self/fdinfo has no mnt_id"))
}

fn parse(mountinfo: &[u8]) -> Vec<Mount> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    lines.filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let text = |field: &&[u8]| Some(std::str::from_utf8(field).ok()?.to_owned());
    let separator = fields.iter().position(|field| *field == b"-")?;
    Some(Mount {
        id: text(fields.first()?)?.parse().ok()?,
        device: text(fields.get(2)?)?,
        root: unescape(fields.get(3)?),
        point: unescape(fields.get(4)?),
        kind: text(fields.get(separator + 1)?)?,
    })
}

/// Decodes the octal escapes of mountinfo, for example of spaces.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let code =
            octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                bytes.push(code);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw - proc proc rw
24 22 0:5 / /dev rw - devtmpfs udev rw
25 22 0:23 / /run rw - tmpfs tmpfs rw
40 22 8:17 / /mnt rw - ext4 /dev/sdb1 rw
41 40 8:18 / /mnt/var rw - ext4 /dev/sdb2 rw
42 40 0:21 / /mnt/proc rw - proc proc rw
43 40 0:5 / /mnt/dev rw - devtmpfs udev rw
44 40 0:23 / /mnt/run rw - tmpfs tmpfs rw
45 40 8:1 /etc/ssl\\040host /mnt/etc/ssl rw - ext4 /dev/sda1 rw
46 40 8:17 /data/pki /mnt/etc/kubernetes/pki rw - ext4 /dev/sdb1 rw
47 40 0:60 / /mnt/tmp rw - tmpfs tmpfs rw
50 22 0:70 /@host /subvol rw - btrfs /dev/sdc rw
51 22 0:70 /@node /node rw - btrfs /dev/sdc rw
52 51 0:70 /@node-var /node/var rw - btrfs /dev/sdc rw
";

    #[test]
    fn distinguishes_mounts_of_root_from_mounts_of_machine() {
        let mounts = parse(MOUNTS.as_bytes());
        assert_eq!(mounts[9].root, Path::new("/etc/ssl host"));
        let mnt = |file| foreign_reason(&mounts, Path::new("/mnt"), 40, file);
        for part in [40, 41, 46, 47] {
            assert_eq!(mnt(part), None, "{part}");
        }
        for (foreign, words) in [
            (42, "/mnt/proc is the proc file system"),
            (43, "/mnt/dev is the devtmpfs file system"),
            (44, "also mounted at /run"),
            (45, "also mounted at /"),
            (99, "unknown"),
        ] {
            let reason = mnt(foreign).unwrap();
            assert!(reason.contains(words), "{foreign}: {reason}");
        }
        // Subvolumes have one device number.
        assert_eq!(foreign_reason(&mounts, Path::new("/node"), 51, 52), None);
        // The root is a directory of this machine's own file system.
        let chroot = |file| foreign_reason(&mounts, Path::new("/srv/image"), 22, file);
        assert_eq!(chroot(22), None);
        assert!(chroot(25).is_some() && chroot(45).is_some());
    }
}

//! File systems whose contents a reboot does not keep.

use nix::sys::statfs::{
    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, FsType, PROC_SUPER_MAGIC, SYSFS_MAGIC, TMPFS_MAGIC,
    TRACEFS_MAGIC,
};

/// Returns whether a file system is in memory or of the kernel.
pub(super) fn is_volatile(kind: FsType) -> bool {
    // From linux/magic.h; nix lacks these.
    const RAMFS: u32 = 0x8584_58f6;
    const HUGETLBFS: u32 = 0x9584_58f6;
    const DEVPTS: u32 = 0x1cd1;
    const DEBUGFS: u32 = 0x6462_6720;
    const CONFIGFS: u32 = 0x6265_6570;
    let number = kind.0 as u32;
    [
        TMPFS_MAGIC,
        PROC_SUPER_MAGIC,
        SYSFS_MAGIC,
        CGROUP_SUPER_MAGIC,
        CGROUP2_SUPER_MAGIC,
        TRACEFS_MAGIC,
    ]
    .contains(&kind)
        || [RAMFS, HUGETLBFS, DEVPTS, DEBUGFS, CONFIGFS].contains(&number)
}

/// Returns the writable layer of the overlay with this device number, from proc(5), `mountinfo`.
pub(super) fn upper_layer(mounts: &str, (major, minor): (u64, u64)) -> Option<String> {
    let device = format!("{major}:{minor}");
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(&device))?;
    let options = mount.split(" - ").nth(1)?.split(' ').nth(2)?;
    let upper = options
        .split(',')
        .find_map(|option| option.strip_prefix("upperdir="))?;
    // Spaces and the like are octal escapes, which do not occur in paths of container runtimes.
    Some(upper.to_owned())
}

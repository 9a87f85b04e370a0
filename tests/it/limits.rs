//! Limits of the process and of the file systems: above each limit a command works, below it the message names the
//! limit, and nothing is half done.

use std::process::Command;

use crate::failures_exits::{assert_done_or_temporary, commands, drifted, renew, with_injection};
use crate::node::{EVERYTHING, Node, Ran, with_mounts};
use crate::sample::{sampled, step};
use crate::store::leftovers;

/// Runs the command under prlimit(1) with soft and hard limit at `limit`.
fn with_limit(command: &Command, limit: &str) -> Ran {
    let mut limited = Command::new("timeout");
    limited
        .args(["60", "prlimit", limit])
        .arg(command.get_program())
        .args(command.get_args())
        .env_remove("JOURNAL_STREAM")
        .env_remove("RUST_MIN_STACK");
    Ran::of(&mut limited)
}

/// Runs `renew` under rising limits. The kernel or the loader ends the process before it begins under the lowest ones;
/// then the message names the limit; then `renew` works.
#[track_caller]
fn assert_limit_is_named_until_it_suffices(option: &str, bytes: &[u64], words: &str) {
    let node = drifted();
    let (mut was_named, mut is_enough) = (0, false);
    let mut sizes = sampled(0, bytes.iter().copied());
    sizes.extend(bytes.last());
    sizes.dedup();
    for bytes in sizes {
        let ran = with_limit(&renew(&node), &format!("--{option}={bytes}:{bytes}"));
        let what = format!(
            "{option} {bytes}: {:?}\n{}",
            (ran.code, ran.signal),
            ran.said()
        );
        match ran.code {
            Some(0) => is_enough = true,
            Some(75) => {
                assert!(!is_enough && ran.stderr.contains(words), "{what}");
                assert!(ran.stderr.contains("; raise the limit (ulimit "), "{what}");
                was_named += 1;
            }
            // The kernel or the loader ended the process.
            _ => assert!(was_named == 0 && !is_enough, "{what}"),
        }
    }
    assert!(is_enough, "the largest limit is too low");
    assert!(was_named > 0 || step() > 1, "no limit was named");
    node.bootstrap().done();
    node.assert_sound(&EVERYTHING);
}

const MIB: u64 = 1 << 20;

#[test]
fn names_limit_of_address_space_that_is_too_low() {
    let sizes: Vec<u64> = (1..=48).map(|step| step * 4 * MIB).collect();
    assert_limit_is_named_until_it_suffices(
        "as",
        &sizes,
        "the address space of this process is limited to ",
    );
}

#[test]
fn names_limit_of_data_segment_that_is_too_low() {
    let sizes: Vec<u64> = (1..=24).map(|step| step * 2 * MIB).collect();
    assert_limit_is_named_until_it_suffices(
        "data",
        &sizes,
        "the data segment of this process is limited to ",
    );
}

#[test]
fn names_limit_of_stack_that_is_too_low() {
    let sizes =
        [16, 64, 128, 192, 256, 384, 512, 768, 1023, 1024, 1536, 2048].map(|kib| kib * 1024);
    assert_limit_is_named_until_it_suffices(
        "stack",
        &sizes,
        "the stack of this process is limited to ",
    );
}

#[test]
fn works_without_locked_memory_and_processes() {
    let node = drifted();
    for limit in [
        "--memlock=0:0",
        "--nproc=1:1",
        "--sigpending=0:0",
        "--nice=0:0",
    ] {
        with_limit(&renew(&node), limit).done();
    }
    node.assert_sound(&EVERYTHING);
}

#[test]
fn ends_75_without_panic_when_descriptors_run_out() {
    for limit in sampled(0, (3..=40).step_by(3)) {
        let node = drifted();
        for command in commands(&node) {
            let ran = with_limit(&command, &format!("--nofile={limit}:{limit}"));
            let words: Vec<_> = command.get_args().skip(2).take(1).collect();
            assert_done_or_temporary(&ran, &format!("{limit} descriptors, {words:?}"));
        }
        node.bootstrap().done();
        node.assert_sound(&EVERYTHING);
    }
}

#[test]
fn ends_75_with_message_above_file_size_limit() {
    for limit in ["0", "100", "2000", "20000"] {
        let node = drifted();
        let ran = with_limit(&renew(&node), &format!("--fsize={limit}"));
        ran.ended(75).says("EFBIG");
        node.bootstrap().done();
        node.assert_sound(&EVERYTHING);
    }
}

#[test]
fn finds_lack_of_files_before_sending_requests() {
    for files in sampled(0, [5, 10, 20, 40, 60]) {
        let node = Node::with_service_account();
        let state = format!(
            r#"mkdir -p "$1/var/lib/nodepki"; mount -t tmpfs -o nr_inodes={files},mode=700 tmpfs "$1/var/lib/nodepki""#
        );
        with_mounts(&node, &node.ask_command("0s"), &state)
            .ended(75)
            .says("/var/lib/nodepki has room for ")
            .says(" files are needed; free some space");
        assert_eq!(node.exchanges(), [], "{files}");
    }
    let node = Node::with_service_account();
    let state = r#"mkdir -p "$1/var/lib/nodepki"; mount -t tmpfs -o nr_inodes=90,mode=700 tmpfs "$1/var/lib/nodepki""#;
    with_mounts(&node, &node.ask_command("0s"), state).done();
    node.assert_sound(&EVERYTHING);
}

/// Runs the command twice on a file system of its own: with a little free space, which may end it with 75, and with
/// enough.
const FULL_DISK: &str = r#"
shift
cp -a "$dir" "$dir.disk"
mount -t tmpfs -o size=4m,mode=700 tmpfs "$dir"
cp -a "$dir.disk/." "$dir"
used=$(df --output=used -k "$dir" | tail -n 1)
mount -o "remount,size=$((used + free))k" "$dir"
code=0
"$@" || code=$?
echo "first: $code" >&2
[ "$code" = 0 ] || [ "$code" = 75 ]
mount -o remount,size=8m "$dir"
"$@"
rm -r "$dir.disk"
cp -a "$dir" "$dir.disk"
umount "$dir"
rm -r "$dir"
mv "$dir.disk" "$dir"
exit
"#;

#[test]
fn completes_after_full_disk_of_every_size() {
    let (mut ended_75, mut ended_0) = (0, 0);
    for (turn, kib) in sampled(0, (4..=900).step_by(64).enumerate()) {
        let node = drifted();
        let dir = ["etc/kubernetes", "var/lib/nodepki"][turn % 2];
        let script = format!("dir=\"$1/{dir}\" free={kib}\n{FULL_DISK}");
        let ran = with_mounts(&node, &renew(&node), &script);
        ran.done();
        if ran.stderr.contains("first: 75") {
            ended_75 += 1
        } else {
            ended_0 += 1
        }
        node.assert_sound(&EVERYTHING);
        assert_eq!(
            leftovers(&node.root()),
            [] as [std::path::PathBuf; 0],
            "{kib} KiB for {dir}"
        );
    }
    assert!(ended_75 > 0 && ended_0 > 0, "{ended_75} {ended_0}");
}

#[test]
fn renews_on_slow_disk() {
    let node = drifted();
    let before = node.keys_in_place();
    with_injection(&renew(&node), "fsync,renameat2", "delay_exit=50000").done();
    for (name, key) in node.keys_in_place() {
        assert_ne!(key, before[&name], "{name} was not renewed");
    }
    node.assert_sound(&EVERYTHING);
}

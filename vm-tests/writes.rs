//! Power cuts that lose writes: the disk as it is when the power fails in the middle of a flush.
//!
//! SIGKILL of a process or of a whole machine loses nothing that the host's kernel has received. Here all writes that no
//! flush has covered are lost, except a random half, which the drive had already written in some order. No machine is
//! needed; `writes.sh` mounts the disk and runs nodepki.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::system::run;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;

/// The recorded writes of a bootstrap and a renewal.
pub(crate) struct Recording {
    dir: TempDir,
    nodepki: PathBuf,
    sector: u64,
    writes: Vec<Write>,
    /// Number of writes before the bootstrap, after it, and after the renewal.
    marks: Vec<usize>,
}

/// An entry of the log.
struct Write {
    sector: u64,
    sectors: u64,
    flags: u64,
    /// Offset of the written data in the log.
    data: u64,
}

/// The state of a disk after a cut.
pub(crate) struct Cut {
    /// Number of completed steps.
    pub(crate) steps: usize,
    /// The files below /etc/kubernetes after the next run, in the format of `sha256sum`.
    pub(crate) sums: BTreeSet<String>,
}

impl Recording {
    /// Records a node with its own authorities, which are outside the node.
    pub(crate) fn make(nodepki: &Path) -> Self {
        let dir = TempDir::with_prefix("nodepki-vm-").unwrap();
        let ca = dir.path().join("ca");
        fs::create_dir_all(ca.join("etcd")).unwrap();
        for (file, name) in [
            ("ca", "kubernetes"),
            ("etcd/ca", "etcd-ca"),
            ("front-proxy-ca", "front-proxy-ca"),
        ] {
            let subject = format!("/CN={name}");
            let mut command = Command::new("openssl");
            command.args(["req", "-x509", "-nodes", "-days", "3650", "-subj", &subject]);
            command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
            command.args(["-addext", "keyUsage=critical,keyCertSign,cRLSign"]);
            command
                .arg("-keyout")
                .arg(ca.join(file).with_extension("key"));
            run(command.arg("-out").arg(ca.join(file).with_extension("crt")));
        }
        fs::write(dir.path().join("kubeadm.yaml"), KUBEADM).unwrap();
        run(&mut script("record", dir.path(), nodepki));

        let log = File::open(dir.path().join("log")).unwrap();
        let number = |at| {
            let mut bytes = [0; 8];
            log.read_exact_at(&mut bytes, at).unwrap();
            u64::from_le_bytes(bytes)
        };
        assert_eq!(number(0), MAGIC, "the file is not a log of writes");
        let mut half = [0; 4];
        log.read_exact_at(&mut half, 24).unwrap();
        let sector = u64::from(u32::from_le_bytes(half));
        let mut writes = Vec::new();
        let mut at = sector;
        for _ in 0..number(16) {
            let (start, sectors, flags) = (number(at), number(at + 8), number(at + 16));
            at += sector;
            writes.push(Write {
                sector: start,
                sectors,
                flags,
                data: at,
            });
            if flags & DISCARD == 0 {
                at += sectors * sector;
            }
        }
        let marks = (0..3).map(|step| {
            let head = fs::read(dir.path().join(format!("mark-{step}"))).unwrap();
            usize::try_from(u64::from_le_bytes(head[16..24].try_into().unwrap())).unwrap()
        });
        let marks = marks.collect();
        Recording {
            dir,
            nodepki: nodepki.to_owned(),
            sector,
            writes,
            marks,
        }
    }

    /// Returns the files after a step, in the format of `sha256sum`.
    pub(crate) fn sums(&self, step: usize) -> BTreeSet<String> {
        lines(&self.dir.path().join(format!("sums-{step}")))
    }

    /// Cuts the power at each flush from the first step on, and runs nodepki again.
    pub(crate) fn cut_everywhere(&self, seed: u64, mut judge: impl FnMut(Cut)) {
        let path = |name: &str| self.dir.path().join(name);
        let log = File::open(path("log")).unwrap();
        let apply = |write: &Write, to: &File| {
            if write.flags & DISCARD != 0 || write.sectors == 0 {
                return;
            }
            let mut bytes = vec![0; usize::try_from(write.sectors * self.sector).unwrap()];
            log.read_exact_at(&mut bytes, write.data).unwrap();
            to.write_all_at(&bytes, write.sector * self.sector).unwrap();
        };
        copy(&path("empty"), &path("kept"));
        let kept = File::options().write(true).open(path("kept")).unwrap();
        let flush = |number: &usize| self.writes[*number].flags & FLUSH != 0;
        let flushes: Vec<usize> = (0..self.writes.len()).filter(flush).collect();
        let mut done = 0;
        let mut dice = seed | 1;
        for (index, &number) in flushes.iter().enumerate() {
            for write in &self.writes[done..=number] {
                apply(write, &kept);
            }
            done = number + 1;
            let steps = self.marks.iter().filter(|mark| **mark <= done).count();
            // Cuts during the manual set-up of the file system are not tested.
            if steps == 0 {
                continue;
            }
            copy(&path("kept"), &path("cut"));
            let cut = File::options().write(true).open(path("cut")).unwrap();
            let next = flushes.get(index + 1).copied().unwrap_or(self.writes.len());
            for write in &self.writes[done..next] {
                // xorshift64: the same seed gives the same cuts.
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                if dice >> 40 & 1 == 0 {
                    apply(write, &cut);
                }
            }
            drop(cut);
            // After the first step the files alone show whether the PKI is complete.
            let verb = if steps == 1 { "judge" } else { "resume" };
            let mut resume = script(verb, self.dir.path(), &self.nodepki);
            let output = resume.output().unwrap();
            assert!(
                output.status.success(),
                "cut at flush {index} of {} (seed {seed}, after step {}): the next run does not complete it: {}\n{}",
                flushes.len(),
                steps - 1,
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
            judge(Cut {
                steps: steps - 1,
                sums: lines(&path("sums")),
            });
        }
    }
}

const KUBEADM: &str = "\
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: 192.0.2.11}
nodeRegistration: {name: cp1}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.2
encryptionAlgorithm: ECDSA-P256
controlPlaneEndpoint: api.example.com:6443
";

fn script(verb: &str, dir: &Path, nodepki: &Path) -> Command {
    let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/vm-tests/writes.sh"));
    command.arg(verb).arg(dir).arg(nodepki);
    command
}

fn lines(file: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// Copies a sparse file without filling its holes: most of a disk is empty.
fn copy(from: &Path, to: &Path) {
    run(Command::new("cp")
        .args(["--sparse=always", "--"])
        .arg(from)
        .arg(to));
}

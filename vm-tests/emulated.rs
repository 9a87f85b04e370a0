//! A machine in QEMU with its own kernel, disk and clock. Without usable hardware virtualisation it is fully emulated.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tempfile::TempDir;

use crate::bench::Bench;
use crate::machine::{MAX_WAIT, Machine, Shell, connected};
use crate::seed::Seed;
use crate::system::run;
use crate::time::within;

/// How the machine's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acceleration {
    Kvm,
    Emulation,
}

impl Acceleration {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Acceleration::Kvm => "with KVM",
            Acceleration::Emulation => {
                "WITHOUT KVM, which is missing here or cannot run this kernel: every instruction is emulated, and a \
                 boot takes half a minute"
            }
        }
    }
}

/// Returns the usable acceleration, determined once.
pub(crate) fn acceleration() -> Acceleration {
    static DECIDED: LazyLock<Acceleration> = LazyLock::new(|| {
        let hardware = ["kvm_intel", "kvm_amd"]
            .iter()
            .any(|module| Path::new("/sys/module").join(module).exists());
        // The existence of /dev/kvm proves little: the kvm_pvm of some clouds opens, and kills every kernel but its own.
        if hardware && fs::File::options().write(true).open("/dev/kvm").is_ok() {
            Acceleration::Kvm
        } else {
            Acceleration::Emulation
        }
    });
    *DECIDED
}

/// Number of machines for which the host has processors and memory.
pub(crate) fn at_once(cores: usize) -> usize {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let available = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes: usize = available
        .and_then(|rest| rest.split_whitespace().next())
        .map_or(0, |number| number.parse().unwrap());
    // Two processors and 1 GiB each, including QEMU's share: two machines on two processors take four times as long.
    (cores / 2).min(kibibytes >> 20).max(1)
}

/// An emulated machine, which is killed when dropped.
pub(crate) struct Emulated<'a> {
    bench: &'a Bench,
    /// `disk.qcow2`: the changes to the system's disk; `seed.iso`; `console`; `qemu.log`.
    dir: Option<TempDir>,
    /// Further disks.
    disks: Vec<PathBuf>,
    /// The clock at power-on in UTC; the host's clock if unset.
    clock: Option<String>,
    running: Option<Child>,
    shell: Option<Shell>,
}

impl<'a> Emulated<'a> {
    pub(crate) fn new(bench: &'a Bench, seed: &Seed) -> Self {
        let dir = TempDir::with_prefix("nodepki-vm-").unwrap();
        seed.write_iso(dir.path());
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]);
        create.arg(bench.system().disk());
        run(create.arg(dir.path().join("disk.qcow2")));
        Emulated {
            bench,
            dir: Some(dir),
            disks: Vec::new(),
            clock: None,
            running: None,
            shell: None,
        }
    }

    /// Sets the clock for the next power-on, as in 2027-03-01T00:00:00.
    pub(crate) fn set_clock(&mut self, utc: &str) {
        self.clock = Some(utc.to_owned());
    }

    /// Attaches another machine's disk as the second disk.
    pub(crate) fn take_disk_of(&mut self, other: &Emulated<'_>) {
        assert!(
            other.running.is_none(),
            "the disk belongs to a running machine"
        );
        self.disks.push(other.dir().join("disk.qcow2"));
    }

    fn dir(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }

    fn file(&self, name: &str) -> String {
        self.dir().join(name).display().to_string()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"]);
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ]);
        command.args(["-M", "q35", "-m", "768", "-smp", "2"]);
        match acceleration() {
            Acceleration::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
            // A minimal processor is emulated faster than one with all features.
            Acceleration::Emulation => {
                command.args(["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "Nehalem"])
            }
        };
        command.arg("-kernel").arg(self.bench.system().kernel());
        command.arg("-append").arg(
            "root=/dev/nvme0n1 rw console=ttyS0 panic=-1 mitigations=off quiet loglevel=3 net.ifnames=0 \
             systemd.mask=systemd-networkd-wait-online.service",
        );
        let mut attach = |node: &str, format: &str, file: &str, device: &str| {
            command.arg("-blockdev").arg(format!(
                "driver={format},node-name={node},file.driver=file,file.filename={file}"
            ));
            command
                .arg("-device")
                .arg(format!("{device},drive={node},serial={node}"));
        };
        attach(
            "root",
            "qcow2,discard=unmap",
            &self.file("disk.qcow2"),
            "nvme",
        );
        attach(
            "seed",
            "raw,read-only=on",
            &self.file("seed.iso"),
            "virtio-blk-pci",
        );
        for (number, disk) in self.disks.iter().enumerate() {
            let file = disk.display().to_string();
            attach(&format!("other{number}"), "qcow2", &file, "nvme");
        }
        let console = format!("file,id=console,path={},append=on", self.file("console"));
        command.args(["-chardev", &console, "-serial", "chardev:console"]);
        let shell = format!(
            "socket,id=shell,path={},server=on,wait=off",
            self.file("shell")
        );
        command.args(["-chardev", &shell, "-device", "virtio-serial-pci"]);
        command.args(["-device", "virtserialport,chardev=shell,name=tests.shell"]);
        command.args(["-device", "virtio-rng-pci"]);
        // A cloud passes credentials to systemd in this way, outside the user data.
        let key = fs::read(self.bench.system().credential()).unwrap();
        let key = BASE64_STANDARD.encode(key);
        let credential = format!("type=11,value=io.systemd.credential.binary:cfssl-key={key}");
        command.args(["-smbios", &credential]);
        if let Some(clock) = &self.clock {
            command.args(["-rtc", &format!("base={clock},clock=vm")]);
        }
        command
    }
}

impl Machine for Emulated<'_> {
    fn start(&mut self) {
        assert!(self.running.is_none(), "the machine runs already");
        self.bench.tally().count_boot();
        let _ = fs::remove_file(self.dir().join("shell"));
        let log = fs::File::create(self.dir().join("qemu.log")).unwrap();
        let mut command = self.command();
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap());
        self.running = Some(command.stderr(log).spawn().unwrap());
    }

    fn cut(&mut self) {
        self.bench.tally().count_cut();
        let mut running = self.running.take().expect("the machine is off");
        running.kill().unwrap();
        running.wait().unwrap();
        self.shell = None;
    }

    fn wait_off(&mut self) {
        let mut running = self.running.take().expect("the machine is off");
        let off = within(MAX_WAIT, || running.try_wait().unwrap().map(drop).ok_or(()));
        assert!(off.is_ok(), "the machine does not power off");
        self.shell = None;
    }

    fn shell(&mut self) -> &mut Shell {
        let socket = self.dir().join("shell");
        connected(&mut self.shell, self.running.as_mut(), &socket, MAX_WAIT)
    }

    fn time_factor(&self) -> u32 {
        5
    }
}

impl Drop for Emulated<'_> {
    fn drop(&mut self) {
        if let Some(running) = &mut self.running {
            let _ = running.kill();
            let _ = running.wait();
        }
        crate::machine::leave(self.dir.take(), self.bench.name());
    }
}

//! Finds the packages that `packaging/build` made, for the tests that `tests/run package` runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use tempfile::TempDir;

/// Returns the directory in which `packaging/build` has put them.
pub(crate) fn directory() -> PathBuf {
    let given = std::env::var_os("NODEPKI_TEST_PACKAGES").map(PathBuf::from);
    given.expect("NODEPKI_TEST_PACKAGES is not set: run tests/run package")
}

/// Returns the only file there whose name ends with `suffix`.
pub(crate) fn file(suffix: &str) -> PathBuf {
    one_in(&directory(), suffix)
}

pub(crate) fn one_in(directory: &Path, suffix: &str) -> PathBuf {
    let entries = fs::read_dir(directory).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    assert_eq!(found.len(), 1, "{} *{suffix}", directory.display());
    found.remove(0)
}

/// Returns the program, extracted from the .deb.
pub(crate) fn program() -> &'static Path {
    static UNPACKED: LazyLock<(TempDir, PathBuf)> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        said(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(file(".deb"))
                .arg(dir.path()),
        );
        let program = dir.path().join("usr/bin/nodepki");
        (dir, program)
    });
    &UNPACKED.1
}

/// Returns the output of a command that must succeed.
#[track_caller]
pub(crate) fn said(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{errors}",
        output.status
    );
    text
}

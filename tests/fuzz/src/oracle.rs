//! Go's readers, as a program beside this one: `tests/servers/oracle`, with the argument `read`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

struct Oracle {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Returns what Go reads in an object of this kind, or Go's error.
pub(crate) fn read(kind: &str, bytes: &[u8]) -> Result<Value, String> {
    static ORACLE: OnceLock<Mutex<Oracle>> = OnceLock::new();
    let oracle = ORACLE.get_or_init(|| Mutex::new(start()));
    let Oracle { input, output, .. } = &mut *oracle.lock().unwrap();
    let case = json!({"kind": kind, "data": BASE64_STANDARD.encode(bytes)});
    input.write_all(format!("{case}\n").as_bytes()).unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let mut answer: Value = serde_json::from_str(&line).unwrap();
    match answer.get("error") {
        Some(error) => Err(error.as_str().unwrap_or_default().to_owned()),
        None => Ok(answer["facts"].take()),
    }
}

fn start() -> Oracle {
    let Some(program) = std::env::var_os("NODEPKI_FUZZ_ORACLE") else {
        eprintln!("NODEPKI_FUZZ_ORACLE is not set: build the oracle with `tests/servers/build oracle`, which prints its path");
        std::process::exit(78);
    };
    let started = Command::new(&program)
        .arg("read")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.unwrap_or_else(|error| {
        eprintln!("{}: {error}", program.display());
        std::process::exit(78);
    });
    Oracle {
        input: child.stdin.take().unwrap(),
        output: BufReader::new(child.stdout.take().unwrap()),
        _child: child,
    }
}

//! The picture of a first run, `docs/first-run.svg`: what `bootstrap` and `status` print on a terminal, with its colours.
//! `NODEPKI_BLESS=1 cargo test --test it picture` writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::node::{Node, booted};
use crate::pty::OnTerminal;
use crate::sessions::stable;

const PICTURE: &str = "docs/first-run.svg";
/// Width of the terminal, in characters.
const COLUMNS: usize = 112;
/// Size of a character, in pixels.
const CHARACTER: (f64, f64) = (7.8, 17.0);
const MARGIN: f64 = 16.0;

/// A part of a line with one style: the parameters of the last escape sequence, and the text.
type Run = (String, String);

/// Runs a command on a terminal, and returns its lines as they remain on the screen.
fn recorded(node: &Node, shown: &str, command: &Command) -> Vec<Vec<Run>> {
    let (code, said) =
        OnTerminal::start(booted(node, command, ""), u16::try_from(COLUMNS).unwrap()).end();
    assert_eq!(code, Some(0), "{said}");
    let mut lines = vec![vec![("1".to_owned(), format!("$ {shown}"))]];
    for line in said.lines() {
        let last = line.rsplit("\r\u{1b}[K").next().unwrap_or(line);
        lines.extend(wrapped(runs(stable(node, "", last).trim_end())));
    }
    lines
}

/// Splits a line at its escape sequences for colours.
fn runs(line: &str) -> Vec<Run> {
    let mut parts = line.split("\u{1b}[");
    let mut runs = vec![(String::new(), parts.next().unwrap_or_default().to_owned())];
    for part in parts {
        let (style, text) = part.split_once('m').unwrap();
        runs.push((style.to_owned(), text.to_owned()));
    }
    runs.retain(|(_, text)| !text.is_empty());
    runs
}

/// Wraps a line as a terminal does.
fn wrapped(line: Vec<Run>) -> Vec<Vec<Run>> {
    let mut lines: Vec<Vec<Run>> = vec![Vec::new()];
    let mut column = 0;
    for (style, text) in line {
        for character in text.chars() {
            if column == COLUMNS {
                lines.push(Vec::new());
                column = 0;
            }
            let last = lines.last_mut().unwrap();
            match last.last_mut() {
                Some((known, text)) if *known == style => text.push(character),
                _ => last.push((style.clone(), character.to_string())),
            }
            column += 1;
        }
    }
    lines
}

/// Returns the attributes of a style.
fn attributes(style: &str) -> String {
    let attributes = style.split(';').map(|code| match code {
        "" | "0" => "",
        // The prompt; `status` uses the others.
        "1" => " font-weight=\"bold\"",
        "31" => " fill=\"#ff7b72\"",
        "33" => " fill=\"#e3b341\"",
        other => panic!("no colour for {other}"),
    });
    attributes.collect()
}

fn svg(lines: &[Vec<Run>]) -> String {
    let (width, height) = CHARACTER;
    let [w, h] = [(COLUMNS, width), (lines.len(), height)]
        .map(|(count, size)| (count as f64).mul_add(size, 2.0 * MARGIN).ceil());
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#e6edf3\">\n<title>nodepki bootstrap and nodepki status on a terminal</title>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let y = (row as f64 + 0.8).mul_add(height, MARGIN);
        let mut column = 0;
        for (style, text) in line {
            let count = text.chars().count();
            // Each part has its own position and length, whatever font the reader has.
            if !text.trim().is_empty() {
                let x = (column as f64).mul_add(width, MARGIN);
                let length = count as f64 * width;
                let text = text.replace('&', "&amp;").replace('<', "&lt;");
                let _ = writeln!(
                    svg,
                    "<text xml:space=\"preserve\" x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\"{}>{text}</text>",
                    attributes(style)
                );
            }
            column += count;
        }
    }
    svg + "</svg>\n"
}

#[test]
fn shows_first_run() {
    let node = Node::new();
    let bootstrap = node.ask_command("0s");
    let mut lines = recorded(&node, "nodepki bootstrap", &bootstrap);
    lines.push(Vec::new());
    let status = node.command(["status"]);
    lines.extend(recorded(&node, "nodepki status", &status));
    let drawn = svg(&lines);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(PICTURE);
    if std::env::var_os("NODEPKI_BLESS").is_some() {
        fs::write(file, drawn).unwrap();
    } else {
        assert!(
            fs::read_to_string(file).unwrap() == drawn,
            "{PICTURE} is out of date; run: NODEPKI_BLESS=1 cargo test --test it picture"
        );
    }
}

//! Writes text to stdout and stderr, and escapes it once: it may contain text from certificates, servers, files and
//! arguments.
//!
//! Line ends and tabs of the layout are kept, and nodepki's colour sequences if the stream is a terminal. All other
//! control sequences and invisible characters ([`is_hidden`]) are replaced by visible text. JSON has the escapes of its
//! format instead.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write, stderr, stdout};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::addressed::addressed;
use crate::agent::{ExitCode, Failure};
use crate::table::{TextStyle, fold};
use crate::text::is_hidden;

/// Parameters of SGR sequences that change only weight or colour and cannot hide text.
const HARMLESS_SGR: [std::ops::RangeInclusive<u16>; 3] = [0..=4, 30..=37, 90..=97];

/// When output is coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(in super::super) enum ColourChoice {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

static COLOUR: OnceLock<ColourChoice> = OnceLock::new();

/// Sets the choice of the command line. The first call counts.
pub(in super::super) fn set_colour(choice: ColourChoice) {
    let _ = COLOUR.set(choice);
}

/// Returns whether output to this stream is coloured.
pub(in super::super) fn has_colour(stream: &impl IsTerminal) -> bool {
    let choice = COLOUR.get().copied().unwrap_or(ColourChoice::Auto);
    // https://no-color.org: any value except an empty one.
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_coloured(choice, no_color, stream.is_terminal())
}

/// Returns how text for people is laid out on stdout.
pub(in super::super) fn text_style() -> TextStyle {
    let own = width(&stdout());
    TextStyle {
        colour: has_colour(&stdout()),
        width: own.or_else(width_behind_pipe),
        cuts_tables: own.is_some(),
    }
}

/// Returns the columns of the terminal of stderr if stdout is a pipe: someone looks at `nodepki plan | head`.
fn width_behind_pipe() -> Option<usize> {
    let found = rustix::fs::fstat(stdout()).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(found.st_mode);
    width(&stderr()).filter(|_| kind == rustix::fs::FileType::Fifo)
}

/// Returns the columns of a terminal: those of COLUMNS, or its own. `None` if the stream is not a terminal.
pub(super) fn width(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let given = std::env::var("COLUMNS").ok();
    let given = given.and_then(|columns| columns.trim().parse::<u16>().ok());
    let own = || rustix::termios::tcgetwinsize(stream).ok();
    let columns = given.filter(|columns| *columns > 0);
    let columns = columns.or_else(|| own().map(|size| size.ws_col));
    // A serial console reports no columns.
    columns.filter(|columns| *columns > 0).map(usize::from)
}

const fn is_coloured(choice: ColourChoice, no_color: bool, is_terminal: bool) -> bool {
    match choice {
        ColourChoice::Always => true,
        ColourChoice::Never => false,
        ColourChoice::Auto => is_terminal && !no_color,
    }
}

/// Returns the text with hidden characters escaped. With `colour`, harmless SGR sequences are kept.
pub(super) fn visible(text: &str, colour: bool) -> Cow<'_, str> {
    let is_layout = |c: char| matches!(c, '\n' | '\t');
    if !text.chars().any(|c| is_hidden(c) && !is_layout(c)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if colour && let Some(length) = sgr_length(rest) {
            let (sequence, after) = rest.split_at(length);
            shown.push_str(sequence);
            rest = after;
            continue;
        }
        if is_hidden(c) && !is_layout(c) {
            shown.extend(c.escape_default())
        } else {
            shown.push(c)
        }
        rest = rest.get(c.len_utf8()..).unwrap_or_default();
    }
    Cow::Owned(shown)
}

/// Returns the length of the harmless SGR sequence at the start of the text, in bytes.
fn sgr_length(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("\u{1b}[")?;
    let (parameters, _) = inner.split_once('m')?;
    let is_harmless = |parameter: &str| {
        let number = parameter.parse::<u16>().ok();
        number.is_some_and(|number| HARMLESS_SGR.iter().any(|range| range.contains(&number)))
    };
    let all = parameters.split(';').all(is_harmless);
    all.then_some("\u{1b}[".len() + parameters.len() + 1)
}

/// Returns JSON with the hidden characters in its strings escaped (RFC 8259, section 7).
fn visible_json(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_hidden(c) && c != '\n') {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// Writes one message to stderr. Its second and later lines are indented, so none looks like another message.
pub(in super::super) fn print_message(message: &str) {
    let message = addressed(message.to_owned());
    let message = visible(&message, false);
    let message = message.trim_end().replace('\n', "\n    ");
    let style = TextStyle {
        colour: false,
        width: width(&stderr()),
        cuts_tables: false,
    };
    let message = fold(&format!("nodepki: {message}"), 4, style);
    let _ = writeln!(stderr(), "{message}");
}

/// Writes text for people to stderr.
pub(in super::super) fn print_to_stderr(text: &str) {
    let shown = visible(text, has_colour(&stderr()));
    let _ = stderr().write_all(shown.as_bytes());
}

/// Writes text for people to stdout.
pub(in super::super) fn print(text: &str) -> Result<ExitCode, Failure> {
    write(&visible(text, has_colour(&stdout())))
}

/// Writes a control sequence to a terminal.
pub(in super::super) fn print_control(sequence: &str) -> Result<ExitCode, Failure> {
    write(sequence)
}

/// Writes a JSON document to stdout.
pub(in super::super) fn print_json(text: &str) -> Result<ExitCode, Failure> {
    write(&visible_json(text))
}

/// Writes text for another program to stdout, unchanged unless stdout is a terminal.
pub(in super::super) fn print_exact(text: &str) -> Result<ExitCode, Failure> {
    if stdout().is_terminal() {
        write(&visible(text, false))
    } else {
        write(text)
    }
}

/// Whether something was written to stdout.
static HAS_WRITTEN: AtomicBool = AtomicBool::new(false);

pub(super) fn has_written() -> bool {
    HAS_WRITTEN.load(Ordering::Relaxed)
}

/// Writes to stdout. A closed pipe ends the output, but is not an error.
fn write(text: &str) -> Result<ExitCode, Failure> {
    HAS_WRITTEN.store(true, Ordering::Relaxed);
    let mut stdout = stdout();
    let written = stdout.write_all(text.as_bytes());
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::pending("standard output cannot be written").caused_by(error))
        }
        _ => Ok(ExitCode::Done),
    }
}

/// Log lines that are kept back while a progress line is shown; `None` if they are written immediately.
static HELD_LOG: Mutex<Option<String>> = Mutex::new(None);

/// Keeps log lines back until [`release_log`], so they follow the results of the command.
pub(super) fn hold_log() {
    let mut held = HELD_LOG.lock().unwrap_or_else(PoisonError::into_inner);
    held.get_or_insert_default();
}

/// Writes the log lines that were kept back.
pub(in super::super) fn release_log() {
    let mut held = HELD_LOG.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lines) = held.take() {
        let _ = stderr().write_all(lines.as_bytes());
    }
}

/// Format of log lines on stderr, which determines how they are escaped.
#[derive(Clone, Copy)]
pub(super) enum LogLineFormat {
    Text,
    Json,
}

/// Writes log events to stderr, one line for each.
pub(super) struct LogWriter(pub(super) LogLineFormat);

impl Write for LogWriter {
    /// Writes an event. The subscriber passes one whole event at a time.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let shown = match self.0 {
            LogLineFormat::Text => {
                let line = addressed(line.to_owned());
                visible(&line, has_colour(&stderr())).replace('\n', "\n    ")
            }
            LogLineFormat::Json => visible_json(line).into_owned(),
        };
        let mut held = HELD_LOG.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(lines) => {
                lines.push_str(&shown);
                lines.push('\n');
            }
            None => stderr().write_all(format!("{shown}\n").as_bytes())?,
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_hidden_characters_and_keeps_layout() {
        for (text, colour, shown) in [
            ("a\n\tb\n", false, "a\n\tb\n"),
            ("\u{1b}[31mred\u{1b}[0m", true, "\u{1b}[31mred\u{1b}[0m"),
            ("\u{1b}[1;33mred", true, "\u{1b}[1;33mred"),
            ("\u{1b}[31mred", false, "\\u{1b}[31mred"),
            ("\u{1b}[8mhidden", true, "\\u{1b}[8mhidden"),
            ("\u{1b}[31;8mhidden", true, "\\u{1b}[31;8mhidden"),
            ("\u{1b}[m", true, "\\u{1b}[m"),
            (
                "\u{1b}[2J\u{1b}]0;x\u{7}",
                true,
                "\\u{1b}[2J\\u{1b}]0;x\\u{7}",
            ),
            ("\u{1b}", true, "\\u{1b}"),
            ("\u{9b}2J\u{7f}\r", true, "\\u{9b}2J\\u{7f}\\r"),
            (
                "a\u{202e}b\u{200b}\u{feff}",
                true,
                "a\\u{202e}b\\u{200b}\\u{feff}",
            ),
            ("Müller 日本", true, "Müller 日本"),
        ] {
            assert_eq!(visible(text, colour), shown, "{text:?}");
        }
    }

    #[test]
    fn colours_terminals_unless_told_otherwise() {
        use ColourChoice::{Always, Auto, Never};
        for (choice, no_color, is_terminal, expected) in [
            (Auto, false, true, true),
            (Auto, false, false, false),
            (Auto, true, true, false),
            (Always, true, false, true),
            (Never, false, true, false),
        ] {
            assert_eq!(
                is_coloured(choice, no_color, is_terminal),
                expected,
                "{choice:?}"
            );
        }
    }

    #[test]
    fn escapes_json_without_changing_its_value() {
        let value = serde_json::json!({"a": "\u{1b}\u{9b}\u{202e}\u{e0041}\n\t\u{7f}x"});
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        let shown = visible_json(&pretty);
        assert!(!shown.chars().any(|c| is_hidden(c) && c != '\n'), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }
}

//! Text tables for people: aligned columns that fit the width of a terminal.
//!
//! The first columns contain name and state and are never cut; a longer line is cut after them and ends with `…`. A last
//! column of sentences is wrapped instead, and so are lines below a row, at blanks outside of commands. Without a width
//! nothing is cut or wrapped. Hidden characters of every text are escaped, so
//! a terminal does not interpret them and columns stay aligned.

use crate::text::is_hidden;

/// Number of columns that are never cut.
const KEPT_COLUMNS: usize = 2;
/// Width below which sentences are left to the terminal to wrap.
const MIN_SENTENCE_WIDTH: usize = 24;
/// Blanks before the continuation of a line below a row.
const DETAIL_HANGING: usize = 2;
/// Programs whose name begins a command in a sentence.
const COMMANDS: [&str; 4] = ["nodepki", "kubeadm", "kubectl", "systemctl"];
const GAP: &str = "  ";
const CUT: char = '…';
/// The text of a cell without a value.
const NO_VALUE: &str = "-";

/// How text is laid out for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// Whether states are coloured.
    pub colour: bool,
    /// Columns of the terminal; `None` if nobody looks at the text on one.
    pub width: Option<usize>,
    /// Whether lines of tables are cut at the width, and not only sentences wrapped.
    pub cuts_tables: bool,
}

/// The colour of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emphasis {
    /// Not coloured.
    Plain,
    /// Yellow: needs attention later.
    Warning,
    /// Red: needs attention now.
    Error,
}

/// One cell of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    emphasis: Emphasis,
}

impl Cell {
    /// Returns a cell with this text.
    pub fn new(text: impl AsRef<str>) -> Cell {
        Cell::state(text, Emphasis::Plain)
    }

    /// Returns a coloured cell.
    pub fn state(text: impl AsRef<str>, emphasis: Emphasis) -> Cell {
        Cell {
            text: visible_line(text.as_ref()),
            emphasis,
        }
    }

    /// Returns a cell that shows `-` if there is no value.
    pub fn optional(text: Option<impl AsRef<str>>) -> Cell {
        match text {
            Some(text) if !text.as_ref().is_empty() => Cell::new(text),
            _ => Cell::new(NO_VALUE),
        }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }

    /// Returns the text with its colour.
    pub fn coloured(&self, style: TextStyle) -> String {
        self.painted(&self.text, style.colour)
    }

    fn painted(&self, text: &str, colour: bool) -> String {
        let code = match self.emphasis {
            Emphasis::Plain => None,
            Emphasis::Warning => Some(33),
            Emphasis::Error => Some(31),
        };
        match code.filter(|_| colour) {
            Some(code) => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            None => text.to_owned(),
        }
    }
}

/// A table with a heading, and indented lines below its rows.
#[derive(Debug)]
pub struct Table {
    rows: Vec<(Vec<Cell>, Vec<String>)>,
    has_heading: bool,
    wraps_last: bool,
}

impl Table {
    /// Returns a table with these headings. A column without any value is left out.
    pub fn new(headings: &[&str]) -> Table {
        let headings = headings.iter().map(Cell::new).collect();
        Table {
            rows: vec![(headings, Vec::new())],
            has_heading: true,
            wraps_last: false,
        }
    }

    /// Returns a table without headings.
    pub fn untitled() -> Table {
        Table {
            rows: Vec::new(),
            has_heading: false,
            wraps_last: false,
        }
    }

    /// Wraps the last column, which contains sentences, instead of cutting it.
    #[must_use]
    pub fn wrapping_last(mut self) -> Table {
        self.wraps_last = true;
        self
    }

    /// Adds a row, and the lines below it.
    pub fn push(&mut self, cells: Vec<Cell>, details: Vec<String>) {
        self.rows.push((cells, details));
    }

    /// Returns the text of the table.
    pub fn render(&self, style: TextStyle) -> String {
        let columns = self.columns();
        let mut text = String::new();
        for (cells, details) in &self.rows {
            text.push_str(&self.line(cells, &columns, style));
            for detail in details {
                let detail = format!("    {}\n", detail.replace('\n', "\n      "));
                text.push_str(&fold(&detail, DETAIL_HANGING, style));
            }
        }
        text
    }

    /// Returns index and width of every column that has a value.
    fn columns(&self) -> Vec<(usize, usize)> {
        let count = self.rows.iter().map(|(cells, _)| cells.len()).max();
        let columns = 0..count.unwrap_or(0);
        columns
            .filter_map(|column| {
                let cells = || self.rows.iter().filter_map(|(cells, _)| cells.get(column));
                let values = cells().skip(usize::from(self.has_heading));
                let has_value = values.clone().any(|cell| cell.text != NO_VALUE);
                let is_shown = column < KEPT_COLUMNS || has_value || values.count() == 0;
                is_shown.then(|| (column, cells().map(Cell::width).max().unwrap_or(0)))
            })
            .collect()
    }

    /// Returns one row, without blanks at its end.
    fn line(&self, cells: &[Cell], columns: &[(usize, usize)], style: TextStyle) -> String {
        let mut line = String::new();
        let mut used = 0;
        let mut padding = 0;
        let last = columns.last().map(|(column, _)| *column);
        for (place, (column, width)) in columns.iter().enumerate() {
            let Some(cell) = cells.get(*column) else {
                break;
            };
            let gap = padding + if place == 0 { 0 } else { GAP.len() };
            let start = used + gap;
            let room = style.width.map(|width| width.saturating_sub(start));
            let is_kept = *column < KEPT_COLUMNS;
            if self.wraps_last && Some(*column) == last {
                line.push_str(&" ".repeat(gap));
                let text = wrapped(&cell.text, start, room);
                line.push_str(&cell.painted(&text, style.colour));
                break;
            }
            if let Some(room) = room
                && cell.width() > room
                && style.cuts_tables
                && !is_kept
            {
                if room > 1 {
                    let shown: String = cell.text.chars().take(room - 1).collect();
                    line.push_str(&" ".repeat(gap));
                    line.push_str(&cell.painted(shown.trim_end(), style.colour));
                    line.push(CUT);
                }
                break;
            }
            line.push_str(&" ".repeat(gap));
            line.push_str(&cell.painted(&cell.text, style.colour));
            used = start + cell.width();
            padding = width.saturating_sub(cell.width());
        }
        format!("{}\n", line.trim_end())
    }
}

/// Returns sentences broken at blanks, with continuation lines that start at column `indent`.
fn wrapped(text: &str, indent: usize, room: Option<usize>) -> String {
    match room {
        Some(room) if room >= MIN_SENTENCE_WIDTH => {
            sentence(text, room).join(&format!("\n{}", " ".repeat(indent)))
        }
        _ => text.to_owned(),
    }
}

/// Breaks each line that is wider than the terminal, with `hanging` blanks before its continuation in addition to its own.
pub fn fold(text: &str, hanging: usize, style: TextStyle) -> String {
    let Some(width) = style.width else {
        return text.to_owned();
    };
    let lines = text.split('\n').map(|line| {
        let body = line.trim_start_matches(' ');
        let margin = line.len() - body.len();
        let indent = " ".repeat(margin + hanging);
        let room = width.saturating_sub(indent.len());
        if line.chars().count() <= width || room < MIN_SENTENCE_WIDTH {
            return line.to_owned();
        }
        let body = sentence(body, room).join(&format!("\n{indent}"));
        format!("{}{body}", " ".repeat(margin))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a sentence on lines of at most `room` characters. A command in it stays on one line, so it can be copied: text
/// between backticks, and the name of a program with options and their values.
fn sentence(text: &str, room: usize) -> Vec<String> {
    let is_option = |word: &str| word.trim_start_matches(['(', '`']).starts_with('-');
    let is_program = |word: &str| COMMANDS.contains(&word.trim_start_matches(['(', '`']));
    let mut units: Vec<String> = Vec::new();
    let mut last = "";
    let mut is_code = false;
    for word in text.split(' ') {
        let is_command = is_code || is_option(word) || is_option(last) || is_program(last);
        match units.last_mut().filter(|_| is_command) {
            Some(unit) => {
                unit.push(' ');
                unit.push_str(word);
            }
            None => units.push(word.to_owned()),
        }
        is_code ^= word.matches('`').count() % 2 == 1;
        last = word;
    }
    broken(units.iter().map(String::as_str), " ", room)
}

/// Returns items separated by commas, on lines that start with `indent` blanks and are broken between items.
pub fn list<T: AsRef<str>>(
    items: impl IntoIterator<Item = T>,
    indent: usize,
    style: TextStyle,
) -> String {
    let items: Vec<String> = items
        .into_iter()
        .map(|item| visible_line(item.as_ref()))
        .collect();
    let room = style
        .width
        .map_or(usize::MAX, |width| width.saturating_sub(indent).max(1));
    let lines = broken(items.iter().map(String::as_str), ", ", room);
    let separator = format!(",\n{}", " ".repeat(indent));
    format!("{}{}", " ".repeat(indent), lines.join(&separator))
}

/// Joins words to lines of at most `room` characters; a longer word has a line of its own.
fn broken<'a>(
    words: impl IntoIterator<Item = &'a str>,
    separator: &str,
    room: usize,
) -> Vec<String> {
    // The separator at the end of a line is a comma, or nothing.
    let trailing = separator.trim_end().len();
    let mut lines: Vec<(String, usize)> = Vec::new();
    for word in words {
        let width = word.chars().count();
        match lines.last_mut() {
            Some((line, used)) if *used + separator.len() + width + trailing <= room => {
                line.push_str(separator);
                line.push_str(word);
                *used += separator.len() + width;
            }
            _ => lines.push((word.to_owned(), width)),
        }
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

/// Returns the text on one line, with hidden characters escaped.
pub fn visible_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => shown.push(' '),
            c if is_hidden(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const NARROW: TextStyle = TextStyle {
        colour: false,
        width: Some(30),
        cuts_tables: true,
    };

    fn cells(texts: &[&str]) -> Vec<Cell> {
        texts.iter().map(Cell::new).collect()
    }

    fn table() -> Table {
        let mut table = Table::new(&["NAME", "STATE", "EMPTY", "UNTIL", "SIGNER"]);
        let row = ["apiserver", "ok", "-", "2027-11-23", "corp"];
        table.push(cells(&row), vec!["reason".to_owned()]);
        table.push(cells(&["etcd-server", "missing", "-", "-", "-"]), vec![]);
        table
    }

    #[test]
    fn aligns_columns_and_leaves_out_empty_ones() {
        assert_eq!(
            table().render(TextStyle::default()),
            "NAME         STATE    UNTIL       SIGNER\n\
             apiserver    ok       2027-11-23  corp\n    reason\n\
             etcd-server  missing  -           -\n"
        );
        let heading = Table::new(&["NAME", "STATE", "UNTIL"]);
        assert_eq!(heading.render(TextStyle::default()), "NAME  STATE  UNTIL\n");
    }

    #[test]
    fn cuts_lines_at_width_but_never_name_and_state() {
        let text = table().render(NARROW);
        assert!(
            text.lines().all(|line| line.chars().count() <= 30),
            "{text}"
        );
        assert!(text.contains("apiserver    ok       2027-11…\n"), "{text}");
        let tiny = TextStyle {
            width: Some(8),
            cuts_tables: true,
            ..NARROW
        };
        let text = table().render(tiny);
        assert!(text.contains("\netcd-server  missing\n"), "{text}");
    }

    #[test]
    fn cuts_only_what_exceeds_the_width() {
        let mut table = Table::untitled();
        table.push(cells(&["ca", "ok", "123456"]), vec![]);
        let at = |width| {
            table.render(TextStyle {
                width: Some(width),
                cuts_tables: true,
                ..NARROW
            })
        };
        assert_eq!(at(14), "ca  ok  123456\n");
        assert_eq!(at(13), "ca  ok  1234…\n");
        assert_eq!(at(10), "ca  ok  1…\n");
        assert_eq!(at(9), "ca  ok\n");
    }

    #[test]
    fn shows_name_and_state_even_without_values() {
        let mut table = Table::new(&["NAME", "STATE", "A", "B"]);
        table.push(
            vec![
                Cell::new("ca"),
                Cell::optional(None::<&str>),
                Cell::optional(Some("")),
                Cell::optional(Some("-")),
            ],
            vec![],
        );
        assert_eq!(table.render(TextStyle::default()), "NAME  STATE\nca    -\n");
        assert_eq!(Cell::optional(Some("text")).text, "text");
    }

    #[test]
    fn wraps_last_column_of_sentences() {
        let mut table = Table::new(&["ID", "RESULT", "DETAIL"]).wrapping_last();
        table.push(
            cells(&["space", "ok", "every file can be written, and more"]),
            vec![],
        );
        let style = TextStyle {
            width: Some(42),
            cuts_tables: true,
            ..NARROW
        };
        assert_eq!(
            table.render(style),
            "ID     RESULT  DETAIL\n\
             space  ok      every file can be written,\n               and more\n"
        );
        assert!(table.render(TextStyle::default()).contains("and more\n"));
        let narrow = table.render(NARROW);
        assert!(
            narrow.contains("every file can be written, and more\n"),
            "{narrow}"
        );
    }

    #[test]
    fn folds_wide_lines_at_blanks_outside_of_commands() {
        for (text, expected) in [
            ("short\n", "short\n"),
            (
                "note: the file is not on this node any more\nend\n",
                "note: the file is not on\n  this node any more\nend\n",
            ),
            (
                "    indented lines keep their own margin",
                "    indented lines keep\n      their own margin",
            ),
            (
                "run nodepki plan --config a.yaml or `rm -r /var/lib/x y` first",
                "run\n  nodepki plan --config a.yaml\n  or `rm -r /var/lib/x y`\n  first",
            ),
        ] {
            assert_eq!(fold(text, 2, NARROW), expected);
            assert_eq!(fold(text, 2, TextStyle::default()), text);
        }
    }

    #[test]
    fn colours_only_cells_with_emphasis() {
        let mut table = Table::untitled();
        table.push(
            vec![
                Cell::new("apiserver"),
                Cell::state("expired", Emphasis::Error),
                Cell::state("soon", Emphasis::Warning),
            ],
            vec![],
        );
        let colour = TextStyle {
            colour: true,
            width: None,
            cuts_tables: true,
        };
        assert_eq!(
            table.render(colour),
            "apiserver  \u{1b}[31mexpired\u{1b}[0m  \u{1b}[33msoon\u{1b}[0m\n"
        );
        assert_eq!(
            table.render(TextStyle::default()),
            "apiserver  expired  soon\n"
        );
    }

    #[test]
    fn breaks_lists_between_items() {
        let names = ["apiserver", "etcd-server", "etcd-peer", "admin.conf"];
        assert_eq!(
            list(names, 4, NARROW),
            "    apiserver, etcd-server,\n    etcd-peer, admin.conf"
        );
        assert_eq!(
            list(names, 0, TextStyle::default()),
            "apiserver, etcd-server, etcd-peer, admin.conf"
        );
    }

    #[test]
    fn counts_comma_at_end_of_line() {
        let at = |width| {
            let style = TextStyle {
                width: Some(width),
                cuts_tables: true,
                ..NARROW
            };
            list(["aa", "bb", "cc"], 0, style)
        };
        assert_eq!(at(7), "aa, bb,\ncc");
        assert_eq!(at(6), "aa,\nbb,\ncc");
    }

    #[test]
    fn escapes_hidden_characters() {
        assert_eq!(visible_line("a\nb\tc\u{1b}"), "a\\nb c\\u{1b}");
        assert_eq!(visible_line("é … \\"), "é … \\");
    }
}

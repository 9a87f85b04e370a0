//! The part of Go's `text/tabwriter` that kubeadm uses: columns padded with blanks, no flags.
//!
//! Two rules differ from a simple table. A column ends at the first line without a cell in it; the next lines start a
//! column with a width of its own. The last cell of a line is not part of a column and is not padded.

/// Aligns lines of cells; a line whose last cell is empty ends in padding, as it does in Go.
pub(super) fn align(lines: &[Vec<String>], min_width: usize, padding: usize) -> String {
    let mut writer = Writer {
        min_width,
        padding,
        widths: Vec::new(),
        text: String::new(),
    };
    writer.block(lines);
    writer.text
}

struct Writer {
    min_width: usize,
    padding: usize,
    /// Widths of the columns to the left of the one being measured.
    widths: Vec<usize>,
    text: String,
}

impl Writer {
    /// Writes lines that share all columns measured so far.
    fn block(&mut self, mut lines: &[Vec<String>]) {
        let column = self.widths.len();
        let has_column = |line: &Vec<String>| line.len() > column + 1;
        while !lines.is_empty() {
            let without = lines.iter().take_while(|line| !has_column(line)).count();
            let (before, rest) = lines.split_at(without);
            before.iter().for_each(|line| self.line(line));
            let with = rest.iter().take_while(|line| has_column(line)).count();
            let (run, rest) = rest.split_at(with);
            if !run.is_empty() {
                let cells = run.iter().filter_map(|line| line.get(column));
                let widest = cells.map(|cell| width(cell)).max().unwrap_or(0);
                self.widths.push(self.min_width.max(widest + self.padding));
                self.block(run);
                self.widths.pop();
            }
            lines = rest;
        }
    }

    fn line(&mut self, cells: &[String]) {
        for (column, cell) in cells.iter().enumerate() {
            self.text.push_str(cell);
            if let Some(wanted) = self.widths.get(column) {
                let missing = wanted.saturating_sub(width(cell));
                self.text.extend(std::iter::repeat_n(' ', missing));
            }
        }
        self.text.push('\n');
    }
}

fn width(cell: &str) -> usize {
    cell.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected text printed by Go 1.26 with `NewWriter(out, 10, 4, 3, ' ', 0)`.
    #[test]
    fn ends_column_at_line_without_cell() {
        let lines: Vec<Vec<String>> = [
            "a\tbbbbbbbbbbbb\tc",
            "aaaaaaaaaaaaaaaa\tb\tc",
            "",
            "a\tb\t",
            "end",
            "ä\t\tz",
        ]
        .iter()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect();
        assert_eq!(
            align(&lines, 10, 3),
            "\
a                  bbbbbbbbbbbb   c
aaaaaaaaaaaaaaaa   b              c

a         b         
end
ä                   z
"
        );
    }
}

//! Prometheus' text format, version 0.0.4, as far as it is used: families with help and type, escaped labels.
//!
//! Implemented here since the counters survive the process, and the client libraries cannot continue the histogram of an
//! earlier process.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::families::{ALL, MetricFamily, MetricType};

/// `Content-Type` of a page.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Formats labels without the braces. A label with an empty value is omitted, which is equivalent.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text
}

/// The samples of a page, by family.
#[derive(Clone, Debug, Default)]
pub(super) struct MetricsPage(BTreeMap<&'static str, String>);

impl MetricsPage {
    pub(super) fn sample(&mut self, family: &'static MetricFamily, labels: &str, value: f64) {
        self.line(family, "", labels, value);
    }

    /// Adds a histogram. `counts` has one number per bucket, not cumulative, and one more for values above all bounds.
    pub(super) fn histogram(
        &mut self,
        family: &'static MetricFamily,
        labels: &str,
        counts: &[u64],
        sum: f64,
    ) {
        let MetricType::Histogram(bounds) = family.kind else {
            return;
        };
        let bounds = bounds.iter().map(f64::to_string);
        let mut total = 0;
        for (bound, count) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
            total += count;
            let comma = if labels.is_empty() { "" } else { "," };
            let with_bound = format!("{labels}{comma}le=\"{bound}\"");
            self.line(family, "_bucket", &with_bound, total as f64);
        }
        self.line(family, "_sum", labels, sum);
        self.line(family, "_count", labels, total as f64);
    }

    fn line(&mut self, family: &'static MetricFamily, suffix: &str, labels: &str, value: f64) {
        let name = family.name;
        let lines = self.0.entry(name).or_default();
        // Writing to a string cannot fail.
        let _ = if labels.is_empty() {
            writeln!(lines, "{name}{suffix} {value}")
        } else {
            writeln!(lines, "{name}{suffix}{{{labels}}} {value}")
        };
    }

    pub(super) fn append(&mut self, other: &MetricsPage) {
        for (name, lines) in &other.0 {
            self.0.entry(name).or_default().push_str(lines);
        }
    }

    /// Returns the page.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for family in ALL {
            let Some(lines) = self.0.get(family.name) else {
                continue;
            };
            let kind = match family.kind {
                MetricType::Counter => "counter",
                MetricType::Gauge => "gauge",
                MetricType::Histogram(_) => "histogram",
            };
            let MetricFamily { name, help, .. } = family;
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        text
    }
}

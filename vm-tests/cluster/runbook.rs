//! The commands of `docs/runbook.md`, unchanged.

const RUNBOOK: &str = include_str!("../../docs/runbook.md");

/// Returns a shell block of a section; the first is 0.
pub(crate) fn block(section: u32, number: usize) -> String {
    let (_, text) = RUNBOOK.split_once(&format!("\n## {section}. ")).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let block = text.split("```sh\n").nth(number + 1);
    let block = block.unwrap_or_else(|| panic!("section {section} has no block {number}"));
    let (commands, _) = block.split_once("```").unwrap();
    format!("export KUBECONFIG=/etc/kubernetes/admin.conf\n{commands}")
}

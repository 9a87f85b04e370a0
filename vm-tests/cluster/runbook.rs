//! The commands of `docs/runbook.md` and `docs/ca-change.md`, unchanged.

const RUNBOOK: &str = include_str!("../../docs/runbook.md");
const CA_CHANGE: &str = include_str!("../../docs/ca-change.md");

/// Returns a shell block of a section of the runbook; the first is 0.
pub(crate) fn block(section: u32, number: usize) -> String {
    block_after(RUNBOOK, &format!("\n## {section}. "), number)
}

/// Returns a shell block of the commands between the steps of a change of CA; the first is 0.
pub(crate) fn ca_change_block(number: usize) -> String {
    block_after(CA_CHANGE, "\n## On the cluster\n", number)
}

fn block_after(page: &str, heading: &str, number: usize) -> String {
    let (_, text) = page.split_once(heading).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let block = text.split("```sh\n").nth(number + 1);
    let block = block.unwrap_or_else(|| panic!("{heading} has no block {number}"));
    let (commands, _) = block.split_once("```").unwrap();
    format!("export KUBECONFIG=/etc/kubernetes/admin.conf\n{commands}")
}

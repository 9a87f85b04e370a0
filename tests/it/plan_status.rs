//! What `plan` and `status` say in their last lines: no signer, an unfinished commit, colours.

use std::fs;

use crate::node::{Node, Ran};
use crate::signing::HEAD;

#[test]
fn plan_without_signer_ends_with_78() {
    let node = Node::new();
    node.write_settings(HEAD);
    Ran::of(&mut node.configured(["plan"]))
        .ended(78)
        .says("no signer is configured for ca");
    // Nothing is to be issued on a complete node.
    let node = Node::bootstrapped();
    node.write_settings(HEAD);
    Ran::of(&mut node.configured(["plan"])).done();
}

#[test]
fn status_and_plan_name_unfinished_commit() {
    let node = Node::bootstrapped();
    let words = "a run was interrupted while it installed files, or is in progress";
    node.run(&["status"]).done().says_not(words);
    fs::write(node.path("/var/lib/nodepki/staging.json"), "[]").unwrap();
    node.set_mode("/var/lib/nodepki/staging.json", 0o600);
    node.run(&["status"]).done().says(words);
    node.plan()
        .says(words)
        .says("nodepki bootstrap completes it");
}

#[test]
fn colours_on_request_only() {
    let node = Node::bootstrapped();
    // Only what needs attention is coloured.
    node.write("/etc/kubernetes/pki/apiserver.crt", "damaged");
    let run = |arguments: &[&str]| {
        let mut command = node.command(["status", "-o", "tree"]);
        Ran::of(command.args(arguments).env("NO_COLOR", "1")).stdout
    };
    assert!(!run(&[]).contains('\u{1b}'));
    assert!(!run(&["--color", "never"]).contains('\u{1b}'));
    assert!(run(&["--color", "always"]).contains("\u{1b}["));
    node.run(&["doctor", "--color", "always"])
        .says("\u{1b}[31merror   \u{1b}[0m ");
    node.run(&["doctor"]).says("error    ").says_not("\u{1b}");
}

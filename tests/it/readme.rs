//! What the README says of the signers is made from the code and the examples. `NODEPKI_BLESS=1` writes it anew.

use std::fmt::Write as _;
use std::fs;

use nodepki::signer::{Carry, Kind, Lookup, Renewal, Resubmit};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/examples/signers");
const BEGIN: &str = "<!-- signers: made by `NODEPKI_BLESS=1 cargo test --test it readme` -->\n";
const END: &str = "<!-- end of signers -->\n";

fn carry(carry: Carry) -> &'static str {
    match carry {
        Carry::Yes => "yes",
        Carry::AsConfigured => "as configured there",
        Carry::No => "no",
    }
}

/// What becomes of a request when the process dies between request and answer.
fn resume(lookup: Lookup, resubmit: Resubmit) -> &'static str {
    match (lookup, resubmit) {
        (Lookup::ByName, _) => "found by name",
        (Lookup::ByResubmit, _) => "sending it again is the look-up",
        (Lookup::ByTicket, Resubmit::Adopts) => "by ticket; sent again it is the same request",
        (Lookup::ByTicket, _) => "by ticket",
        (Lookup::None, Resubmit::Adopts) => "sent again it is the same request",
        (Lookup::None, Resubmit::Duplicates) => "sent again; a second certificate for the same key",
        (Lookup::None, Resubmit::FreshCredential) => "sent again with a new token",
        (Lookup::None, Resubmit::Forbidden) => "a person looks",
    }
}

fn renewal(renewal: Renewal) -> &'static str {
    match renewal {
        Renewal::Submit => "as a first one",
        Renewal::SameKey => "in exchange, same key",
        Renewal::Rekey => "in exchange, any key",
    }
}

fn section() -> String {
    let mut text = String::from(
        "| kind | signs with | O | `system:` names | IP SANs | proves itself by | may pend | after a crash | renewal | CRL |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for kind in Kind::ALL {
        let about = kind.about();
        let caps = &about.caps;
        let cells = [
            format!("[`{kind}`](#{})", kind.as_str().to_lowercase()),
            about.signs_with.to_owned(),
            carry(caps.organization).to_owned(),
            carry(caps.colon_common_name).to_owned(),
            carry(caps.ip_sans).to_owned(),
            about.authentication.to_owned(),
            if caps.pends { "yes" } else { "no" }.to_owned(),
            resume(caps.lookup, caps.resubmit).to_owned(),
            renewal(caps.renewal).to_owned(),
            carry(caps.crl).to_owned(),
        ];
        writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    }
    text.push_str("\nA configuration to copy for each, as in `packaging/examples/signers`:\n");
    for kind in Kind::ALL {
        let example = fs::read_to_string(format!("{EXAMPLES}/{kind}.yaml")).unwrap();
        write!(
            text,
            "\n#### {kind}\n\n<details><summary><code>{kind}</code></summary>\n\n```yaml\n{}\n```\n\n</details>\n",
            example.trim_end()
        )
        .unwrap();
    }
    text
}

#[test]
fn the_readme_has_the_table_and_the_configurations_of_all_signers() {
    let readme = fs::read_to_string(README).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    let wanted = section();
    if std::env::var_os("NODEPKI_BLESS").is_some() {
        fs::write(README, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            found, wanted,
            "run: NODEPKI_BLESS=1 cargo test --test it readme"
        );
    }
}

/// The first screen holds exactly two commands.
#[test]
fn the_first_screen_has_two_commands() {
    let readme = fs::read_to_string(README).unwrap();
    let first = readme.split_once("\n## ").unwrap().0;
    assert_eq!(first.matches("```sh\n").count(), 2);
    assert!(first.contains("cargo run --release -- demo"));
    assert!(first.contains("\ntests/run\n"));
}

//! Values of which a template engine or a shell left the placeholder: these files are read as they are written.

/// The fix for a variable that cloud-init's template names and cloud-init does not have.
const MISSING_VARIABLE: &str = "cloud-init has no variable of this name for its template: use one that `cloud-init query --all` prints, or write the value itself";
const NOT_RENDERED: &str = "the template was not rendered, which cloud-init does only if the first line of the user data is `## template: jinja`; correct that, or write the value itself";
const NOT_REPLACED: &str = "write the value itself: environment variables are not replaced in this file, and neither are commands and placeholders";

/// Returns the correction of a value or line with a placeholder that was not replaced; `None` for all other texts.
pub fn unrendered(text: &str) -> Option<&'static str> {
    if text.contains("CI_MISSING_JINJA_VAR") {
        return Some(MISSING_VARIABLE);
    }
    let is_jinja = ["{{", "{%", "{#"].iter().any(|open| text.contains(open));
    if is_jinja {
        return Some(NOT_RENDERED);
    }
    let opens = ["${", "$(", "%{", "%(", "<%", "#{", "(("];
    let is_replaced_by_program = opens.iter().any(|open| text.contains(open))
        || names_variable(text)
        || ["<>", "@@", "``", "%%"]
            .iter()
            .any(|marks| encloses_name(text, marks))
        || (text.len() > 4 && text.starts_with("__") && text.ends_with("__"));
    is_replaced_by_program.then_some(NOT_REPLACED)
}

/// Returns whether the text contains `$NAME`.
fn names_variable(text: &str) -> bool {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.split('$')
        .skip(1)
        .any(|rest| rest.starts_with(is_start))
}

/// Returns whether a word between these two marks, such as `<` and `>`, seems to be the name of a value. Between two `%`,
/// which also occur in URLs, it is in upper case.
fn encloses_name(text: &str, marks: &str) -> bool {
    let (open, close) = marks.split_at(1);
    let name = text
        .split_once(open)
        .and_then(|(_, rest)| rest.split_once(close));
    let is_allowed = |c: char| match open {
        "%" => c.is_ascii_uppercase() || c == '_',
        _ => c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' '),
    };
    name.is_some_and(|(name, _)| !name.trim().is_empty() && name.chars().all(is_allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_placeholders_and_nothing_else() {
        for (text, expected) in [
            ("{{ ds.meta_data.local_ipv4 }}", NOT_RENDERED),
            ("https://{{ds.host}}:6443", NOT_RENDERED),
            ("{% if x %}", NOT_RENDERED),
            ("CI_MISSING_JINJA_VAR/local_ipv4", MISSING_VARIABLE),
            ("${HOSTNAME}", NOT_REPLACED),
            ("$HOSTNAME", NOT_REPLACED),
            ("cp-$INDEX.example.com", NOT_REPLACED),
            ("$(hostname -f)", NOT_REPLACED),
            ("`hostname`", NOT_REPLACED),
            ("<node-name>", NOT_REPLACED),
            ("<CONTROL PLANE IP>:6443", NOT_REPLACED),
            ("@HOSTNAME@", NOT_REPLACED),
            ("__HOSTNAME__", NOT_REPLACED),
            ("%HOSTNAME%", NOT_REPLACED),
            ("<%= hostname %>", NOT_REPLACED),
            ("((node_name))", NOT_REPLACED),
            ("%{::hostname}", NOT_REPLACED),
            ("#{node.name}", NOT_REPLACED),
        ] {
            assert_eq!(unrendered(text), Some(expected), "{text}");
        }
        for text in [
            "",
            "cp1",
            "api.example.com:6443",
            "https://user@api.example.com",
            "[2001:db8::1]:6443",
            "fe80::1%eth0",
            "host_underscore.example.com",
            "10.0.0.0/24",
            "{node}.example.com",
            "Sun 02:00-05:00",
            "66%",
            "a > b < c",
            "50$",
            "a%20b%20c",
        ] {
            assert_eq!(unrendered(text), None, "{text}");
        }
    }
}

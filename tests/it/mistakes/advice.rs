//! Commands and values in messages, taken from the message, executed, and their result read again.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodepki::x509::{Chain, PrivateKey, PublicKey, TrustBundle, certificates_of};

use super::{CHECK, SETTINGS, kubeadm_files, node, replaced, run};
use crate::node::{INIT, Node, Ran};

/// A file with a mistake.
struct Broken {
    name: &'static str,
    /// Script for bash that writes `FILE`. `one.crt` and `two.crt` are CA certificates, `one.key` is the key of the first,
    /// and `rsa.key` an RSA key.
    made: &'static str,
    read: fn(&[u8]) -> Result<usize, String>,
    /// Number of certificates or keys that the corrected file contains.
    count: usize,
}

fn bundle(bytes: &[u8]) -> Result<usize, String> {
    let read = TrustBundle::from_pem(bytes).map_err(|error| error.to_string());
    read.map(|bundle| bundle.certificates().len())
}

fn chain(bytes: &[u8]) -> Result<usize, String> {
    let read = Chain::from_pem(bytes).map_err(|error| error.to_string());
    read.map(|chain| 1 + chain.intermediates().len())
}

fn response(bytes: &[u8]) -> Result<usize, String> {
    let read = certificates_of(bytes).map_err(|error| error.to_string());
    read.map(|certificates| certificates.len())
}

fn public_key(bytes: &[u8]) -> Result<usize, String> {
    let read = PublicKey::from_pem(bytes).map_err(|error| error.to_string());
    read.map(|_| 1)
}

fn private_key(bytes: &[u8]) -> Result<usize, String> {
    let read = PrivateKey::from_pem(bytes).map_err(|error| error.to_string());
    read.map(|_| 1)
}

const fn broken(
    name: &'static str,
    made: &'static str,
    read: fn(&[u8]) -> Result<usize, String>,
    count: usize,
) -> Broken {
    Broken {
        name,
        made,
        read,
        count,
    }
}

#[rustfmt::skip]
const FILES: &[Broken] = &[
    broken("byte order mark", r"{ printf '\xef\xbb\xbf'; cat one.crt; } > FILE", bundle, 1),
    broken("byte order mark before two certificates", r"{ printf '\xef\xbb\xbf'; cat one.crt two.crt; } > FILE", bundle, 2),
    broken("byte order mark before a chain", r"{ printf '\xef\xbb\xbf'; cat one.crt two.crt; } > FILE", chain, 2),
    broken("byte order mark between two certificates", r"{ cat one.crt; printf '\xef\xbb\xbf'; cat two.crt; } > FILE", bundle, 2),
    broken("indentation", "{ cat one.crt; sed 's/^/  /' two.crt; } > FILE", bundle, 2),
    broken("indentation by tabs and line ends of Windows", "cat one.crt two.crt | sed 's/^/\\t/; s/$/\\r/' > FILE", bundle, 2),
    broken("no line end between two certificates", "{ printf %s \"$(cat one.crt)\"; cat two.crt; } > FILE", bundle, 2),
    broken("certificate after text in a line", "{ cat one.crt; printf 'ca: '; cat two.crt; } > FILE", bundle, 2),
    broken("label of old programs", "{ sed 's/CERTIFICATE/X509 CERTIFICATE/' one.crt; cat two.crt; } > FILE", bundle, 2),
    broken("headers", "{ cat one.crt; sed '1a Comment: second\\n' two.crt; } > FILE", bundle, 2),
    broken("DER", "openssl x509 -in one.crt -outform der -out FILE", bundle, 1),
    broken("PKCS#7", "openssl crl2pkcs7 -nocrl -certfile one.crt -certfile two.crt -out FILE", bundle, 2),
    broken("PKCS#7 in DER", "openssl crl2pkcs7 -nocrl -certfile one.crt -certfile two.crt -outform der -out FILE", bundle, 2),
    broken("base64 of PEM", "cat one.crt two.crt | base64 -w0 > FILE", bundle, 2),
    broken("UTF-16 of Windows", "cat one.crt two.crt | iconv -t UTF-16 > FILE", bundle, 2),
    broken("UTF-16 in the other order", r"{ printf '\xfe\xff'; cat one.crt two.crt | iconv -t UTF-16BE; } > FILE", bundle, 2),
    broken("UTF-16LE without a mark", "cat one.crt two.crt | iconv -t UTF-16LE > FILE", bundle, 2),
    broken("UTF-16BE without a mark", "cat one.crt two.crt | iconv -t UTF-16BE > FILE", bundle, 2),
    broken("UTF-32", "cat one.crt two.crt | iconv -t UTF-32 > FILE", bundle, 2),
    broken("response in UTF-16", "cat one.crt two.crt | iconv -t UTF-16 > FILE", response, 2),
    broken("response in UTF-16BE", "cat one.crt two.crt | iconv -t UTF-16BE > FILE", response, 2),
    broken("key in UTF-16", "iconv -t UTF-16 one.key > FILE", private_key, 1),
    broken("key in DER", "openssl pkey -in one.key -outform der -out FILE", private_key, 1),
    broken("encrypted key", "openssl pkcs8 -topk8 -in one.key -passout pass:secret -out FILE", private_key, 1),
    broken("encrypted key of old programs", "openssl rsa -in rsa.key -traditional -aes256 -passout pass:secret -out FILE 2>/dev/null", private_key, 1),
    broken("public key in PKCS#1", "openssl rsa -in rsa.key -RSAPublicKey_out -out FILE 2>/dev/null", public_key, 1),
    broken("public key in DER", "openssl pkey -in rsa.key -pubout -outform der -out FILE", public_key, 1),
    broken("public key in UTF-16LE", "openssl pkey -in rsa.key -pubout | iconv -t UTF-16LE > FILE", public_key, 1),
];

/// Returns the command in parentheses at the end of a message.
fn command_in(message: &str) -> &str {
    let starts = ["(rewrite the file: ", "(remove the byte order mark: ", "("];
    let start = starts
        .iter()
        .find_map(|start| Some(message.find(start)? + start.len()));
    let rest = message.get(start.unwrap()..).unwrap();
    let rest = rest.strip_suffix(')').unwrap();
    rest.strip_suffix(" converts it")
        .or(rest.strip_suffix(" decodes it"))
        .unwrap_or(rest)
}

#[test]
fn commands_in_messages_about_files_correct_them() {
    let dir = tempfile::tempdir().unwrap();
    let shell = |script: &str| {
        let script = format!("set -euo pipefail; {script}");
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &script]).current_dir(&dir).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {said}");
        output.stdout
    };
    for name in ["one", "two"] {
        shell(&format!(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}.key -out {name}.crt -days 9 -subj /CN={name} 2>/dev/null"
        ));
    }
    shell("openssl genrsa -traditional -out rsa.key 2048 2>/dev/null");
    for broken in FILES {
        let name = broken.name;
        let path = |name: &str| dir.path().join(name);
        _ = fs::remove_file(path("NEW"));
        _ = fs::remove_file(path("FILE.pem"));
        shell(broken.made);
        let message = (broken.read)(&fs::read(path("FILE")).unwrap()).expect_err(name);
        // The passphrase is asked for on a terminal.
        let command = command_in(&message)
            .replace("KEY", "FILE")
            .replace("openssl pkey -in", "openssl pkey -passin pass:secret -in");
        let before = fs::read(path("FILE")).unwrap();
        let printed = shell(&command);
        let corrected = ["NEW", "FILE.pem"]
            .into_iter()
            .map(path)
            .find(|it| it.exists());
        let corrected = match corrected {
            Some(new) => {
                assert_eq!(fs::read(path("FILE")).unwrap(), before, "{name}: {command}");
                fs::read(new).unwrap()
            }
            None if printed.is_empty() => fs::read(path("FILE")).unwrap(),
            None => printed,
        };
        assert_eq!(
            (broken.read)(&corrected),
            Ok(broken.count),
            "{name}: {message}"
        );
    }
}

/// Applies what a message says about the lines of a file. Returns `None` if the message is not about lines.
fn follow_line_advice(text: &str, message: &str) -> Option<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    let number = |after: &str| -> Option<usize> {
        let (_, rest) = message.split_once(after)?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    if message.contains("and all lines after it)") {
        lines.truncate(number("(remove line ")? - 1);
    } else if let Some(line) = number("(remove line ") {
        assert!(lines[line - 1].starts_with("---"), "{message}");
        lines.remove(line - 1);
    } else if let Some(first) = number("(remove the lines ") {
        let last = number(" to ")?;
        lines.drain(first - 1..last);
    } else if message.contains("(write a line with --- before it)") {
        lines.insert(number("kubeadm.yaml:")? - 1, "---");
    } else if message.contains("(write the text into the next line)") {
        let line = number("kubeadm.yaml:")?;
        let (separator, rest) = lines[line - 1].split_at(3);
        lines[line - 1] = separator;
        lines.insert(line, rest.trim());
    } else {
        return None;
    }
    Some(lines.join("\n") + "\n")
}

#[test]
fn reports_form_of_file_that_kubeadm_refuses() {
    let node = node();
    let (init, cluster) = INIT.split_once("---\n").unwrap();
    for text in [
        format!("# managed\n---\n{INIT}"),
        format!("\n---\n{INIT}"),
        format!("---\n# managed\n---\n{INIT}"),
        format!("---\n---\n{INIT}"),
        format!("{init}---\n# of the cluster\n---\n{cluster}"),
        format!("# a\n---\n{init}---\n# b\n\n---\n{cluster}---\n# c\n"),
        format!("{INIT}---\n# end\n"),
        format!("{INIT}---\n\n"),
        format!("{INIT}---\n---\n"),
        format!("{INIT}---\nnull\n"),
        format!("null\n---\n{INIT}"),
        format!("%YAML 1.1\n---\n{INIT}"),
        format!("{init}...\n{cluster}"),
        format!("{init}--- !!map\n{cluster}"),
        format!("# a\n---\r\n{}", INIT.replace('\n', "\r\n")),
    ] {
        let mut corrected = text.clone();
        let mut followed = 0;
        loop {
            let ran = run(&node, CHECK, SETTINGS, &corrected);
            let said = ran.said();
            // The last fault first: the lines above keep their numbers.
            let advice = said
                .lines()
                .rev()
                .find_map(|line| follow_line_advice(&corrected, line));
            let Some(next) = advice else { break };
            ran.ended(78).says("kubeadm ");
            corrected = next;
            followed += 1;
            assert!(followed < 5, "{text}\n{corrected}");
        }
        assert_ne!(followed, 0, "{text}");
        run(
            &node,
            &["config", "check", "--strict"],
            SETTINGS,
            &corrected,
        )
        .done();
        let is_ignored = text.contains("...");
        let (is_accepted, said) = kubeadm_files::kubeadm_accepts(&text);
        assert_eq!(is_accepted, is_ignored, "{text}\n{said}");
        let (is_accepted, said) = kubeadm_files::kubeadm_accepts(&corrected);
        assert!(is_accepted, "{corrected}\n{said}");
    }
    // kubeadm accepts these.
    for text in [
        format!("---\n{INIT}"),
        format!("# heading\n{INIT}"),
        format!("{INIT}---\n"),
        format!("{INIT}--- # end\n"),
        format!("{INIT}...\n"),
        format!("{init}---\n---\n{cluster}"),
        format!("{init}...\n---\n{cluster}"),
        format!("\u{feff}---\n{INIT}"),
    ] {
        run(&node, &["config", "check", "--strict"], SETTINGS, &text).done();
        let (is_accepted, said) = kubeadm_files::kubeadm_accepts(&text);
        assert!(is_accepted, "{text}\n{said}");
    }
}

#[test]
fn warns_of_form_that_kubeadm_refuses_before_requests() {
    let node = Node::new();
    node.configure(&format!("# managed\n---\n{INIT}"));
    node.bootstrap()
        .done()
        .says("kubeadm refuses the file")
        .says("(remove line 2, which contains ---)");
}

/// Returns the value that a message says to write.
fn value_in(message: &str) -> &str {
    let (_, fix) = message.rsplit_once(" (").unwrap();
    let fix = fix.trim_end_matches(')');
    let starts = [": ", "write "];
    let start = starts
        .iter()
        .find_map(|start| Some(fix.rfind(start)? + start.len()));
    let value = fix.get(start.unwrap()..).unwrap();
    let ends = [", or ", " or ", "; "];
    let end = ends.iter().filter_map(|end| value.find(end)).min();
    value.get(..end.unwrap_or(value.len())).unwrap()
}

#[test]
fn values_in_messages_are_accepted() {
    const ENDPOINT: (&str, &str) = ("api.example.com:6443\n", "\"@\"\n");
    const SAN: (&str, &str) = (
        "kubernetesVersion: v1.37.2",
        "apiServer: {certSANs: [\"@\"]}",
    );
    const ETCD: (&str, &str) = (
        "kubernetesVersion: v1.37.2",
        "etcd: {external: {endpoints: [\"@\"], caFile: /a.crt, certFile: /b.crt, keyFile: /b.key}}",
    );
    const VALIDITY: (&str, &str) = ("kubernetesVersion: v1.37.2", "certificateValidityPeriod: @");
    let node = node();
    for (place, broken, expected) in [
        (
            ENDPOINT,
            "https://api.example.com:8443",
            "api.example.com:8443",
        ),
        (
            ENDPOINT,
            "https://api.example.com:8443/",
            "api.example.com:8443",
        ),
        (
            ENDPOINT,
            "https://api.example.com:8443/healthz?a=b#c",
            "api.example.com:8443",
        ),
        (ENDPOINT, "https://[2001:db8::1]:8443", "[2001:db8::1]:8443"),
        (ENDPOINT, "https://[2001:db8::1]", "[2001:db8::1]:443"),
        (
            ENDPOINT,
            "https://admin@API.example.com:8443",
            "api.example.com:8443",
        ),
        (ENDPOINT, "https://api.example.com", "api.example.com:443"),
        (ENDPOINT, "http://192.0.2.1", "192.0.2.1:80"),
        (ENDPOINT, "tcp://192.0.2.1", "192.0.2.1:6443"),
        (ENDPOINT, "//api.example.com:8443", "api.example.com:8443"),
        (ENDPOINT, "api.example.com:8443/", "api.example.com:8443"),
        (ENDPOINT, "api.example.com.:8443", "api.example.com:8443"),
        (ENDPOINT, " api.example.com:8443", "api.example.com:8443"),
        (ENDPOINT, "2001:db8:0:0:0:0:0:1:8443", "[2001:db8::1]:8443"),
        (ENDPOINT, "[2001:db8::1]", "2001:db8::1"),
        (ENDPOINT, "API.example.com:8443", "api.example.com:8443"),
        (ENDPOINT, "010.0.0.1:8443", "10.0.0.1:8443"),
        (SAN, "https://[2001:db8::1]:8443", "2001:db8::1"),
        (SAN, "https://api.example.com:8443/x", "api.example.com"),
        (SAN, "[2001:db8::1]:8443", "2001:db8::1"),
        (SAN, "api.example.com:8443", "api.example.com"),
        (SAN, "api.example.com/", "api.example.com"),
        (SAN, "api.example.com.", "api.example.com"),
        (SAN, " api.example.com", "api.example.com"),
        (SAN, "fe80::1%eth0", "fe80::1"),
        (SAN, "010.0.0.1", "10.0.0.1"),
        (ETCD, "etcd.test:2380", "https://etcd.test:2380"),
        (
            ETCD,
            "http://[2001:db8::1]:2380",
            "https://[2001:db8::1]:2380",
        ),
        (VALIDITY, "365d", "8760h"),
    ] {
        let text = |value: &str| {
            let value = place.1.replace('@', value);
            replaced(INIT, (place.0, &value), broken)
        };
        let ran = run(
            &node,
            &["config", "check", "--strict"],
            SETTINGS,
            &text(broken),
        );
        ran.ended(78);
        let said = ran.said();
        let line = said.lines().find(|line| line.contains("kubeadm.yaml:"));
        let value = value_in(line.unwrap());
        assert_eq!(value, expected, "{broken}: {said}");
        let corrected = text(value);
        let ran = run(&node, CHECK, SETTINGS, &corrected);
        ran.done();
        assert!(
            !ran.said().contains("kubeadm.yaml:"),
            "{broken}: {}",
            ran.said()
        );
        let (is_accepted, said) = kubeadm_files::kubeadm_accepts(&corrected);
        assert!(is_accepted, "{corrected}\n{said}");
    }
}

#[test]
fn names_placeholder_that_was_not_replaced() {
    const RENDERED: &str = "## template: jinja";
    const MISSING: &str = "`cloud-init query --all`";
    const REPLACED: &str = "write the value itself";
    let node = node();
    for (from, to, expected) in [
        ("cp1", "'{{ ds.meta_data.local_hostname }}'", RENDERED),
        ("cp1", "{{ ds.meta_data.local_hostname }}", RENDERED),
        ("cp1", "CI_MISSING_JINJA_VAR/local_hostname", MISSING),
        ("cp1", "${HOSTNAME}", REPLACED),
        ("cp1", "$(hostname)", REPLACED),
        ("cp1", "<node name>", REPLACED),
        ("cp1", "@HOSTNAME@", REPLACED),
        ("cp1", "'%{HOSTNAME}'", REPLACED),
        ("192.0.2.11", "'{{ ds.meta_data.local_ipv4 }}'", RENDERED),
        ("192.0.2.11", "CI_MISSING_JINJA_VAR/local_ipv4", MISSING),
        ("192.0.2.11", "<ADDRESS>", REPLACED),
        ("api.example.com:6443", "'{{ endpoint }}:6443'", RENDERED),
        ("api.example.com:6443", "https://${ENDPOINT}", REPLACED),
        ("api.example.com:6443", "<endpoint>:6443", REPLACED),
        ("v1.37.2", "'{{ version }}'", RENDERED),
        ("v1.37.2", "v${VERSION}", REPLACED),
        ("ECDSA-P256", "${ALGORITHM}", REPLACED),
        (
            "kubernetesVersion: v1.37.2",
            "apiServer: {certSANs: ['{{ a }}']}",
            RENDERED,
        ),
        (
            "kubernetesVersion: v1.37.2",
            "apiServer: {certSANs: [CI_MISSING_JINJA_VAR/a]}",
            MISSING,
        ),
        (
            "kubernetesVersion: v1.37.2",
            "networking: {serviceSubnet: $SUBNET}",
            REPLACED,
        ),
        (
            "kubernetesVersion: v1.37.2",
            "networking: {podSubnet: <pods>}",
            REPLACED,
        ),
        (
            "kubernetesVersion: v1.37.2",
            "networking: {dnsDomain: __DOMAIN__}",
            REPLACED,
        ),
        (
            "kubernetesVersion: v1.37.2",
            "certificatesDir: $DIR/pki",
            REPLACED,
        ),
        (
            "kubernetesVersion: v1.37.2",
            "certificateValidityPeriod: ((period))",
            REPLACED,
        ),
    ] {
        let ran = run(&node, CHECK, SETTINGS, &replaced(INIT, (from, to), to));
        assert_eq!(ran.code, Some(78), "{to}: {}", ran.said());
        let said = ran.said();
        let faults = said.lines().filter(|line| line.contains("kubeadm.yaml:"));
        let faults: Vec<&str> = faults.collect();
        assert!(!faults.is_empty(), "{to}: {said}");
        for fault in faults {
            assert!(fault.contains(expected), "{to}: {fault}");
        }
    }
    for (from, to, expected) in [
        ("66%", "'{{ share }}'", RENDERED),
        ("https://vault.test:8200", "https://${VAULT}:8200", REPLACED),
        ("{tokenFile: TOKEN}", "{tokenFile: $HOME/token}", REPLACED),
    ] {
        let settings = replaced(SETTINGS, (from, to), to);
        let ran = run(&node, CHECK, &settings, INIT);
        assert_eq!(ran.code, Some(78), "{to}: {}", ran.said());
        ran.says(expected);
    }
}

#[test]
fn reports_encoding_of_each_kind_of_text() {
    let node = Node::new();
    let settings = node.outside("config.yaml");
    let kubeadm = node.outside("kubeadm.yaml");
    node.ask().done();
    let admin = node.path("/etc/kubernetes/admin.conf");
    for (file, command) in [
        (&settings, "config"),
        (&kubeadm, "config"),
        (&admin, "plan"),
    ] {
        let right = fs::read(file).unwrap();
        for encoding in ["UTF-16", "UTF-16LE", "UTF-16BE"] {
            let old = node.outside("OLD");
            fs::write(&old, &right).unwrap();
            let iconv = |from: &str, to: &str, input: &Path| {
                let mut command = Command::new("iconv");
                let command = command.args(["-f", from, "-t", to]).arg(input);
                command.output().unwrap().stdout
            };
            fs::write(file, iconv("UTF-8", encoding, &old)).unwrap();
            let arguments: &[&str] = match command {
                "config" => CHECK,
                _ => &["plan"],
            };
            let ran = Ran::of(&mut node.configured(arguments));
            let said = ran.said();
            let advice = format!("iconv -f {encoding} -t UTF-8 OLD > NEW");
            assert!(said.contains(&advice), "{}: {said}", file.display());
            fs::copy(file, &old).unwrap();
            fs::write(file, iconv(encoding, "UTF-8", &old)).unwrap();
            assert_eq!(fs::read(file).unwrap(), right, "{encoding}");
        }
    }
}

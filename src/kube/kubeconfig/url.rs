//! URLs in a kubeconfig as client-go reads them, with Go's `net/url`.

use std::net::Ipv6Addr;

/// The parts of a URL that client-go compares.
struct GoUrl<'a> {
    /// In lower case; empty if there is none.
    scheme: String,
    /// Host and port; empty in an opaque URL.
    host: &'a str,
    path: &'a str,
}

/// Returns true for the address of an API server: a URL, or a host with or without a port. client-go: `DefaultServerURL`.
pub(super) fn is_server(text: &str) -> bool {
    match parse(text) {
        Some(url) if !url.scheme.is_empty() && !url.host.is_empty() => {
            matches!(url.scheme.as_str(), "http" | "https")
        }
        _ => parse(&format!("http://{text}")).is_some_and(|url| matches!(url.path, "" | "/")),
    }
}

/// Returns true for a server whose connections use TLS by the scheme of its URL.
pub(super) fn is_https(text: &str) -> bool {
    parse(text).is_some_and(|url| url.scheme == "https" && !url.host.is_empty())
}

/// Returns true for the URL of a proxy. client-go: `parseProxyURL`.
pub(super) fn is_proxy(text: &str) -> bool {
    let scheme = parse(text).map(|url| url.scheme);
    scheme.is_some_and(|scheme| matches!(scheme.as_str(), "http" | "https" | "socks5"))
}

/// Go: `url.Parse`.
fn parse(text: &str) -> Option<GoUrl<'_>> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return None;
    }
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    let (scheme, rest) = split_scheme(text)?;
    let rest = rest.split_once('?').map_or(rest, |(before, _)| before);
    if !rest.starts_with('/') && !scheme.is_empty() {
        return has_valid_escapes(fragment).then_some(GoUrl {
            scheme,
            host: "",
            path: "",
        });
    }
    let first_segment = rest.split('/').next().unwrap_or_default();
    if first_segment.contains(':') {
        return None;
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(after) if !scheme.is_empty() || !after.starts_with('/') => {
            after.split_at(after.find('/').unwrap_or(after.len()))
        }
        _ => ("", rest),
    };
    let host = match authority.rsplit_once('@') {
        Some((user, host)) => is_user(user).then_some(host)?,
        None => authority,
    };
    let is_valid = is_host(host) && has_valid_escapes(path) && has_valid_escapes(fragment);
    is_valid.then_some(GoUrl { scheme, host, path })
}

/// Go: `getScheme`.
fn split_scheme(text: &str) -> Option<(String, &str)> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return None,
            b':' => {
                let (scheme, rest) = text.split_at(at);
                return Some((scheme.to_ascii_lowercase(), rest.get(1..)?));
            }
            _ => break,
        }
    }
    Some((String::new(), text))
}

fn has_valid_escapes(text: &str) -> bool {
    escapes(text).all(|escape| escape.is_some())
}

/// Returns the two digits of each escape; `None` for an escape that is not valid.
fn escapes(text: &str) -> impl Iterator<Item = Option<[u8; 2]>> + '_ {
    text.split('%').skip(1).map(|after| {
        let digits: [u8; 2] = after.as_bytes().get(..2)?.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)
    })
}

/// Go: `validUserinfo`.
fn is_user(text: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    text.bytes().all(is_valid) && has_valid_escapes(text)
}

/// Go: `parseHost`.
fn is_host(text: &str) -> bool {
    let is_port = |text: &str| {
        let digits = text.strip_prefix(':');
        text.is_empty()
            || digits.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if let Some(rest) = text.strip_prefix('[') {
        let Some((address, port)) = rest.rsplit_once(']') else {
            return false;
        };
        let address = address
            .split_once("%25")
            .map_or(address, |(before, _)| before);
        return is_port(port) && address.parse::<Ipv6Addr>().is_ok();
    }
    let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    let is_valid = |byte: u8| {
        byte >= 0x80 || byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=]<>\"%".contains(&byte)
    };
    // An escape stands for a byte outside ASCII.
    let is_high =
        |escape: Option<[u8; 2]>| escape.is_some_and(|[first, _]| !matches!(first, b'0'..=b'7'));
    is_port(port) && host.bytes().all(is_valid) && escapes(host).all(is_high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_urls_like_go() {
        for (text, server, proxy) in [
            ("https://192.0.2.1:6443", true, true),
            ("HTTPS://api.example.com/prefix?a=%zz", true, true),
            ("http://user:pa%20ss@proxy:3128", true, true),
            ("https://[2001:db8::1]:6443", true, true),
            ("https://[fe80::1%25eth0]", true, true),
            ("socks5://proxy", false, true),
            ("ftp://proxy", false, false),
            ("https://", false, true),
            ("api.example.com:6443", true, false),
            ("192.0.2.1:6443", true, false),
            ("api", true, false),
            ("api/prefix", false, false),
            ("https://api:port", false, false),
            ("https://2001:db8::1", false, false),
            ("https://[2001:db8::1", false, false),
            ("https://a b", false, false),
            ("https://a%20b", false, false),
            ("https://a\u{7f}", false, false),
            ("https://api/%zz", false, false),
            ("https://us er@api", false, false),
            ("://api", false, false),
        ] {
            assert_eq!((is_server(text), is_proxy(text)), (server, proxy), "{text}");
        }
        assert!(is_https("HTTPS://a") && !is_https("a:443") && !is_https("http://a"));
    }
}

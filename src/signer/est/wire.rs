//! The bodies of EST: base64 as defined in RFC 8951.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Line length of PEM. libest does not read long lines or a line without an end.
const LINE_LENGTH: usize = 64;

const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Encodes the body of a request. RFC 8951 recommends no line ends and allows them; some servers require them.
pub(super) fn encode(der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    let mut body = Vec::with_capacity(text.len() + text.len() / LINE_LENGTH + 1);
    for line in text.as_bytes().chunks(LINE_LENGTH) {
        body.extend_from_slice(line);
        body.push(b'\n');
    }
    body
}

/// Decodes the body of a response, independent of its headers: base64 with or without line ends and, contrary to the
/// protocol, bare DER or PEM.
pub(super) fn decode(body: &[u8]) -> Result<Vec<u8>, String> {
    // The base64 of a SEQUENCE begins with M.
    if body.first() == Some(&0x30) || body.trim_ascii_start().starts_with(b"-----BEGIN ") {
        return Ok(body.to_vec());
    }
    let text: Vec<u8> = body
        .iter()
        .copied()
        // libest ends its /csrattrs with a NUL.
        .filter(|byte| !byte.is_ascii_whitespace() && *byte != 0)
        .collect();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    LENIENT_BASE64
        .decode(text)
        .map_err(|error| format!("it is not base64 ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_request_in_terminated_lines() {
        let body = String::from_utf8(encode(&[0x30; 100])).unwrap();
        assert!(body.ends_with('\n'));
        assert!(body.lines().all(|line| line.len() <= LINE_LENGTH));
        assert_eq!(decode(body.as_bytes()).unwrap(), [0x30; 100]);
    }

    #[test]
    fn decodes_every_form_of_response() {
        let der = [0x30, 0x03, 0x02, 0x01, 0x05];
        for body in [
            "MAMCAQU=",
            "MAMC\r\nAQU=\r\n",
            " MAMCAQU\n",
            "\nMAMC AQU=",
            "MAMCAQU=\0",
        ] {
            assert_eq!(decode(body.as_bytes()).unwrap(), der, "{body:?}");
        }
        assert_eq!(decode(&der).unwrap(), der);
        for body in ["", "\r\n", "<html>no</html>", "MAMC=AQU"] {
            assert!(decode(body.as_bytes()).is_err(), "{body:?}");
        }
        let pem = b"\n-----BEGIN PKCS7-----\n";
        assert_eq!(decode(pem).unwrap(), pem);
    }
}

//! PEM text.

use super::content::wide_encoding;
use crate::text::printable;

/// Returns the blocks of PEM text. The error quotes labels of the text.
pub(super) fn pem_blocks(text: &[u8]) -> Result<Vec<::pem::Pem>, String> {
    if let Some(encoding) = wide_encoding(text) {
        return Err(format!(
            "it is in {encoding} (iconv -f {encoding} -t UTF-8 FILE > NEW converts it)"
        ));
    }
    ::pem::parse_many(text).map_err(|error| printable(&error.to_string()))
}

/// Encodes PEM like Go: with LF line ends and a final newline.
pub(super) fn encode_pem(label: &str, der: &[u8]) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
    ::pem::encode_config(&::pem::Pem::new(label, der), config)
}

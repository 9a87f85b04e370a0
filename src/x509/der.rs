//! A strict reader of DER, with the rules of Go's `cryptobyte` package (`vendor/golang.org/x/crypto/cryptobyte/asn1.go`).
//!
//! Lengths and integers must be minimal, tags have one byte, lengths are definite. Every method returns `None` for
//! input that Go refuses. The methods for BER are for the envelope of a PKCS#7 container, which no component reads.

/// Maximum number of nested elements of indefinite length. A SignedData has fewer than ten.
pub(super) const MAX_BER_DEPTH: usize = 16;

/// Universal tags, with the bit of constructed encodings set if X.690 requires it.
pub(super) mod tag {
    pub(in crate::x509) const BOOLEAN: u8 = 0x01;
    pub(in crate::x509) const INTEGER: u8 = 0x02;
    pub(in crate::x509) const BIT_STRING: u8 = 0x03;
    pub(in crate::x509) const OCTET_STRING: u8 = 0x04;
    pub(in crate::x509) const OID: u8 = 0x06;
    pub(in crate::x509) const ENUMERATED: u8 = 0x0a;
    pub(in crate::x509) const UTF8_STRING: u8 = 0x0c;
    pub(in crate::x509) const NUMERIC_STRING: u8 = 0x12;
    pub(in crate::x509) const PRINTABLE_STRING: u8 = 0x13;
    pub(in crate::x509) const T61_STRING: u8 = 0x14;
    pub(in crate::x509) const IA5_STRING: u8 = 0x16;
    pub(in crate::x509) const UTC_TIME: u8 = 0x17;
    pub(in crate::x509) const GENERALIZED_TIME: u8 = 0x18;
    pub(in crate::x509) const BMP_STRING: u8 = 0x1e;
    pub(in crate::x509) const SEQUENCE: u8 = 0x30;
    pub(in crate::x509) const SET: u8 = 0x31;

    /// `[number]`, primitive.
    pub(in crate::x509) const fn context(number: u8) -> u8 {
        0x80 | number
    }

    /// `[number]`, constructed.
    pub(in crate::x509) const fn constructed(number: u8) -> u8 {
        0xa0 | number
    }
}

/// One DER element.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    /// Identifier byte.
    pub(super) tag: u8,
    /// Content, without tag and length.
    pub(super) content: &'a [u8],
    /// Tag, length and content.
    pub(super) whole: &'a [u8],
}

/// The unread part of a DER encoding.
#[derive(Clone, Copy)]
pub(super) struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    /// Creates a reader at the first byte of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        DerReader(bytes)
    }

    /// Returns true at the end.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the unread bytes.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Verifies that nothing is left.
    pub(super) fn end(&self) -> Option<()> {
        self.is_empty().then_some(())
    }

    /// Returns true if the next element has this tag.
    pub(super) fn peek(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    /// Reads one element of any tag. Go: `String.readASN1`.
    pub(super) fn any(&mut self) -> Option<Element<'a>> {
        let mut after = *self;
        let element = after.any_ber(0)?;
        let length_bytes = match element.content.len() {
            0..=0x7f => 1,
            0x80..=0xff => 2,
            0x100..=0xffff => 3,
            0x1_0000..=0xff_ffff => 4,
            _ => 5,
        };
        if element.whole.len() != 1 + length_bytes + element.content.len() {
            return None;
        }
        *self = after;
        Some(element)
    }

    /// Reads one element of any tag by BER (X.690, 8.1.3): the length may be indefinite, at most in `depth` nested elements,
    /// or not minimal.
    pub(super) fn any_ber(&mut self, depth: usize) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        // A tag with several bytes.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (content, rest) = match first {
            0..=0x7f => rest.split_at_checked(usize::from(first))?,
            // Elements up to one with tag and length 0, in a constructed element only.
            0x80 if tag & 0x20 != 0 => {
                let mut inner = DerReader(rest);
                while !inner.0.starts_with(&[0, 0]) {
                    inner.any_ber(depth.checked_sub(1)?)?;
                }
                let (content, end) = rest.split_at_checked(rest.len() - inner.0.len())?;
                (content, end.get(2..)?)
            }
            // More than 0x84 is a length of more than four bytes.
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = bytes
                    .iter()
                    .fold(0u64, |length, byte| length << 8 | u64::from(*byte));
                rest.split_at_checked(usize::try_from(length).ok()?)?
            }
            _ => return None,
        };
        let (whole, _) = self.0.split_at_checked(self.0.len() - rest.len())?;
        self.0 = rest;
        Some(Element {
            tag,
            content,
            whole,
        })
    }

    /// Reads one element by BER that must have this tag, and returns a reader of its content.
    pub(super) fn read_ber(&mut self, tag: u8) -> Option<DerReader<'a>> {
        let element = self.any_ber(MAX_BER_DEPTH)?;
        (element.tag == tag).then_some(DerReader(element.content))
    }

    /// Reads one element that must have this tag.
    pub(super) fn element(&mut self, tag: u8) -> Option<Element<'a>> {
        self.any().filter(|element| element.tag == tag)
    }

    /// Reads one element that must have this tag, and returns a reader of its content.
    pub(super) fn read(&mut self, tag: u8) -> Option<DerReader<'a>> {
        Some(DerReader(self.element(tag)?.content))
    }

    /// Reads an optional element; the inner `None` is an absent one.
    pub(super) fn optional(&mut self, tag: u8) -> Option<Option<DerReader<'a>>> {
        if self.peek(tag) {
            self.read(tag).map(Some)
        } else {
            Some(None)
        }
    }

    /// Reads an INTEGER in its shortest form and returns its two's complement. Go: `checkASN1Integer`.
    pub(super) fn integer(&mut self) -> Option<&'a [u8]> {
        self.integer_with_tag(tag::INTEGER)
    }

    fn integer_with_tag(&mut self, tag: u8) -> Option<&'a [u8]> {
        let content = self.element(tag)?.content;
        match content {
            [] => None,
            [0, second, ..] if second & 0x80 == 0 => None,
            [0xff, second, ..] if second & 0x80 != 0 => None,
            _ => Some(content),
        }
    }

    /// Reads an INTEGER between zero and the largest `int64`.
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        self.unsigned_with_tag(tag::INTEGER)
    }

    /// Reads an implicitly tagged INTEGER between zero and the largest `int64`.
    pub(super) fn unsigned_with_tag(&mut self, tag: u8) -> Option<u64> {
        let content = self.integer_with_tag(tag)?;
        if content.len() > 8 || content.first().is_some_and(|first| first & 0x80 != 0) {
            return None;
        }
        Some(
            content
                .iter()
                .fold(0, |value, byte| value << 8 | u64::from(*byte)),
        )
    }

    /// Reads a BOOLEAN, which must be 0x00 or 0xff.
    pub(super) fn boolean(&mut self) -> Option<bool> {
        match self.element(tag::BOOLEAN)?.content {
            [0] => Some(false),
            [0xff] => Some(true),
            _ => None,
        }
    }

    /// Reads an OBJECT IDENTIFIER and returns its content. Go: `ReadASN1ObjectIdentifier`, which refuses numbers of 2^31 and
    /// more.
    pub(super) fn oid(&mut self) -> Option<&'a [u8]> {
        let content = self.element(tag::OID)?.content;
        oid_numbers(content).map(|_| content)
    }

    /// Reads a BIT STRING and returns its bytes and the number of unused bits, which must be zero.
    pub(super) fn bits(&mut self) -> Option<(&'a [u8], u8)> {
        let (&unused, bytes) = self.element(tag::BIT_STRING)?.content.split_first()?;
        let padding = match bytes.last() {
            _ if unused > 7 => return None,
            None if unused != 0 => return None,
            None => 0,
            Some(last) => last & ((1u16 << unused) - 1) as u8,
        };
        (padding == 0).then_some((bytes, unused))
    }
}

/// Decodes the numbers of an OBJECT IDENTIFIER's content; `None` if Go's `readBase128Int` fails.
fn oid_numbers(content: &[u8]) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    let mut value: u32 = 0;
    let mut started = false;
    for byte in content {
        if (!started && *byte == 0x80) || value >= 1 << 24 {
            return None;
        }
        started = byte & 0x80 != 0;
        value = value << 7 | u32::from(byte & 0x7f);
        if !started {
            if numbers.is_empty() {
                let first = (value / 40).min(2);
                numbers.extend([first, value - first * 40]);
            } else {
                numbers.push(value);
            }
            value = 0;
        }
    }
    (!started && !numbers.is_empty()).then_some(numbers)
}

/// Formats an OBJECT IDENTIFIER's content in dotted form.
pub(super) fn oid_text(content: &[u8]) -> String {
    let numbers = oid_numbers(content).unwrap_or_default();
    let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_lengths_that_are_not_minimal() {
        assert_eq!(DerReader::new(&[4, 1, 7]).any().unwrap().content, [7]);
        for bytes in [
            &[4, 0x81, 1, 7][..],
            &[4, 0x82, 0, 1, 7],
            &[4, 0x80, 7, 0, 0],
            &[4, 0x85, 0, 0, 0, 0, 1, 7],
            &[4, 2, 7],
            &[4],
            &[0x1f, 1, 7],
        ] {
            assert!(DerReader::new(bytes).any().is_none(), "{bytes:02x?}");
        }
        let mut long = vec![4, 0x81, 0x80];
        long.extend([7; 0x80]);
        assert_eq!(DerReader::new(&long).any().unwrap().content.len(), 0x80);
    }

    #[test]
    fn reads_lengths_of_ber() {
        for (bytes, content, left) in [
            (&[4, 0x82, 0, 1, 7, 9][..], &[7][..], 1),
            (&[0x30, 0x80, 0, 0, 9], &[], 1),
            (
                &[0x30, 0x80, 0x24, 0x80, 4, 1, 0, 0, 0, 2, 0, 0, 0],
                &[0x24, 0x80, 4, 1, 0, 0, 0, 2, 0],
                0,
            ),
        ] {
            let mut reader = DerReader::new(bytes);
            let element = reader.any_ber(2).unwrap();
            assert_eq!(element.content, content, "{bytes:02x?}");
            assert_eq!(element.whole.len(), bytes.len() - left, "{bytes:02x?}");
            assert_eq!(reader.rest().len(), left, "{bytes:02x?}");
            assert!(DerReader::new(bytes).any().is_none(), "{bytes:02x?}");
        }
        for bytes in [
            &[0x30, 0x80][..],
            &[0x30, 0x80, 0],
            &[0x30, 0x80, 4, 1, 7],
            // A primitive element, and one level too many.
            &[4, 0x80, 0, 0],
            &[0x30, 0x80, 0x30, 0x80, 0x30, 0x80, 0, 0, 0, 0, 0, 0],
        ] {
            let read = DerReader::new(bytes).any_ber(1);
            assert!(read.is_none(), "{bytes:02x?}");
        }
        let deep = [0x30, 0x80].repeat(100_000);
        assert!(DerReader::new(&deep).read_ber(tag::SEQUENCE).is_none());
    }

    #[test]
    fn rejects_integers_that_are_not_minimal() {
        assert_eq!(DerReader::new(&[2, 2, 0, 0x80]).unsigned(), Some(0x80));
        assert_eq!(
            DerReader::new(&[2, 8, 0x7f, 255, 255, 255, 255, 255, 255, 255]).unsigned(),
            Some(i64::MAX as u64)
        );
        for bytes in [&[2, 0][..], &[2, 2, 0, 0x7f], &[2, 2, 0xff, 0x80]] {
            assert!(DerReader::new(bytes).integer().is_none(), "{bytes:02x?}");
        }
        assert_eq!(DerReader::new(&[2, 1, 0xff]).unsigned(), None);
    }

    #[test]
    fn reads_object_identifiers_as_go_does() {
        let text = |content: &[u8]| {
            let mut der = vec![6, content.len() as u8];
            der.extend(content);
            DerReader::new(&der).oid().map(oid_text)
        };
        assert_eq!(text(&[0x55, 0x1d, 15]).as_deref(), Some("2.5.29.15"));
        assert_eq!(text(&[0x2a, 0x86, 0x48]).as_deref(), Some("1.2.840"));
        assert_eq!(text(&[0x88, 0x37]).as_deref(), Some("2.999"));
        assert_eq!(
            text(&[0x55, 0x87, 0xff, 0xff, 0xff, 0x7f]).as_deref(),
            Some("2.5.2147483647")
        );
        for content in [
            &[][..],
            &[0x55, 0x80, 1],
            &[0x55, 0x88, 0x80, 0x80, 0x80, 0x00],
            &[0x55, 0x9d],
        ] {
            assert_eq!(text(content), None, "{content:02x?}");
        }
    }

    #[test]
    fn rejects_bit_strings_with_set_padding() {
        assert_eq!(
            DerReader::new(&[3, 2, 5, 0xa0]).bits(),
            Some((&[0xa0][..], 5))
        );
        assert_eq!(DerReader::new(&[3, 1, 0]).bits(), Some((&[][..], 0)));
        for bytes in [&[3, 0][..], &[3, 1, 1], &[3, 2, 8, 0], &[3, 2, 5, 0xa1]] {
            assert!(DerReader::new(bytes).bits().is_none(), "{bytes:02x?}");
        }
    }
}

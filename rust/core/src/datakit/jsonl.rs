//! JSON Lines to documents: a line that is wrong never stops the next one.
//!
//! Only the keys that become columns are decoded; everything else is checked for balance and kept
//! as it was written. Malformed UTF-8 and lone surrogates become U+FFFD and are counted; `NaN`, which
//! Python writes, is accepted.

use rayon::prelude::*;

use super::files::repair;
use super::records::{Parsed, Rejected, Row};
use crate::Result;
use crate::threads::with_threads;

/// Which keys of the top-level object become columns.
#[derive(Clone, Debug)]
pub struct Keys {
    pub text: String,
    pub id: Option<String>,
    pub source: Option<String>,
}

/// Deeper values are refused, so that a line of brackets cannot exhaust anything.
const MAXIMUM_DEPTH: usize = 512;

/// Parses the whole lines of `block`; with `last` also a final line without a line break. Blank
/// lines count as records and give nothing.
pub fn parse(block: &[u8], last: bool, keys: &Keys, threads: usize) -> Result<Parsed> {
    let end = if last {
        block.len()
    } else {
        block.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)
    };
    let whole = &block[..end];
    let lines: Vec<&[u8]> = whole.split(|&byte| byte == b'\n').collect();
    // The piece after the final line break is no line.
    let lines = if whole.last().is_none_or(|&b| b == b'\n') {
        &lines[..lines.len() - 1]
    } else {
        &lines[..]
    };
    let outcomes: Vec<Option<std::result::Result<Row, Rejected>>> = with_threads(threads, || {
        lines
            .par_iter()
            .enumerate()
            .map(|(number, line)| parse_line(number as u64, line, keys))
            .collect()
    })?;
    let mut parsed = Parsed { consumed: end, records: lines.len() as u64, ..Parsed::default() };
    for outcome in outcomes.into_iter().flatten() {
        match outcome {
            Ok(row) => parsed.rows.push(row),
            Err(rejected) => parsed.rejected.push(rejected),
        }
    }
    Ok(parsed)
}

fn parse_line(number: u64, line: &[u8], keys: &Keys) -> Option<std::result::Result<Row, Rejected>> {
    let line = line.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return None;
    }
    Some(object(number, line, keys).map_err(|reason| Rejected::new(number, reason, line)))
}

fn object(number: u64, line: &[u8], keys: &Keys) -> std::result::Result<Row, String> {
    let mut scanner = Scanner { bytes: line, at: 0 };
    let mut row = Row { number, ..Row::default() };
    let mut text = None;
    let mut rest: Vec<u8> = Vec::new();
    scanner.expect(b'{')?;
    scanner.space();
    while !scanner.take(b'}') {
        let start = scanner.at;
        let (key, _) = scanner.string()?;
        scanner.space();
        scanner.expect(b':')?;
        scanner.space();
        let value_at = scanner.at;
        if key == keys.text {
            if scanner.peek() != Some(b'"') {
                let kind = scanner.kind();
                scanner.value()?;
                return Err(format!("{:?} is {kind}, expected a string", keys.text));
            }
            let (value, repaired) = scanner.string()?;
            row.repaired += repaired;
            text = Some(value);
        } else if Some(&key) == keys.id.as_ref() || Some(&key) == keys.source.as_ref() {
            let value = if scanner.peek() == Some(b'"') {
                Some(scanner.string()?.0)
            } else {
                let kind = scanner.kind();
                scanner.value()?;
                let raw = String::from_utf8_lossy(&line[value_at..scanner.at]).into_owned();
                (kind != "null").then_some(raw)
            };
            let is_id = Some(&key) == keys.id.as_ref();
            *(if is_id { &mut row.id } else { &mut row.source }) = value.filter(|v| !v.is_empty());
        } else {
            scanner.value()?;
            rest.extend_from_slice(if rest.is_empty() { b"{" } else { b"," });
            rest.extend_from_slice(&line[start..scanner.at]);
        }
        scanner.space();
        if !scanner.take(b',') {
            scanner.expect(b'}')?;
            break;
        }
        scanner.space();
    }
    scanner.space();
    if scanner.at != line.len() {
        return Err(format!("not JSON: more text after the object, at byte {}", scanner.at));
    }
    row.text = text.ok_or_else(|| format!("no key {:?}", keys.text))?;
    rest.extend_from_slice(if rest.is_empty() { b"{}" } else { b"}" });
    row.metadata = repair(rest).0;
    Ok(row)
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> std::result::Result<(), String> {
        if self.take(byte) {
            return Ok(());
        }
        let found =
            self.peek().map_or("the end of the line".into(), |b| format!("{:?}", b as char));
        Err(format!("not JSON: found {found} at byte {}, expected {:?}", self.at, byte as char))
    }

    /// What kind of value starts here, in words.
    fn kind(&self) -> &'static str {
        match self.peek() {
            Some(b'"') => "a string",
            Some(b'{') => "an object",
            Some(b'[') => "a list",
            Some(b't' | b'f') => "true or false",
            Some(b'n') => "null",
            _ => "a number",
        }
    }

    /// Skips one value; brackets must balance, scalars must look like scalars.
    fn value(&mut self) -> std::result::Result<(), String> {
        let mut open: Vec<u8> = Vec::new();
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => self.skip_string()?,
                Some(bracket @ (b'{' | b'[')) => {
                    if open.len() == MAXIMUM_DEPTH {
                        return Err(format!("not accepted: more than {MAXIMUM_DEPTH} levels deep"));
                    }
                    open.push(bracket + 2); // '}' and ']' follow two places after '{' and '['
                    self.at += 1;
                    continue;
                }
                Some(bracket @ (b'}' | b']')) if open.last() == Some(&bracket) => {
                    open.pop();
                    self.at += 1;
                }
                Some(b',' | b':') if !open.is_empty() => {
                    self.at += 1;
                    continue;
                }
                _ => self.scalar()?,
            }
            if open.is_empty() {
                return Ok(());
            }
        }
    }

    fn scalar(&mut self) -> std::result::Result<(), String> {
        let start = self.at;
        while matches!(
            self.peek(),
            Some(b'+' | b'-' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')
        ) {
            self.at += 1;
        }
        let found = &self.bytes[start..self.at];
        let word =
            matches!(found, b"true" | b"false" | b"null" | b"NaN" | b"Infinity" | b"-Infinity");
        let number = std::str::from_utf8(found).is_ok_and(|text| {
            text.bytes().any(|b| b.is_ascii_digit()) && text.parse::<f64>().is_ok()
        });
        if word || number {
            return Ok(());
        }
        Err(format!("not JSON: no value at byte {start}"))
    }

    fn skip_string(&mut self) -> std::result::Result<(), String> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => self.at += 2,
                Some(_) => self.at += 1,
                None => return Err(format!("not JSON: the string at byte {start} has no end")),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Decodes a string; returns it and how many malformed sequences were replaced.
    fn string(&mut self) -> std::result::Result<(String, u32), String> {
        if self.peek() != Some(b'"') {
            self.expect(b'"')?;
        }
        let start = self.at + 1;
        self.skip_string()?;
        let raw = &self.bytes[start..self.at - 1];
        if !raw.contains(&b'\\') {
            let bytes = raw.to_vec();
            return Ok(decode(bytes, 0));
        }
        let mut out = Vec::with_capacity(raw.len());
        let (mut at, mut lone) = (0, 0);
        while let Some(step) = raw[at..].iter().position(|&byte| byte == b'\\') {
            out.extend_from_slice(&raw[at..at + step]);
            at += step + 2;
            match raw[at - 1] {
                b'n' => out.push(b'\n'),
                b't' => out.push(b'\t'),
                b'r' => out.push(b'\r'),
                b'b' => out.push(8),
                b'f' => out.push(12),
                plain @ (b'"' | b'\\' | b'/') => out.push(plain),
                b'u' => {
                    let first = unit(raw, at)?;
                    at += 4;
                    let second = match first {
                        0xD800..0xDC00 if raw[at..].starts_with(b"\\u") => Some(unit(raw, at + 2)?),
                        _ => None,
                    };
                    let character = match (first, second) {
                        (_, Some(low @ 0xDC00..0xE000)) => {
                            at += 6;
                            char::from_u32(0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00))
                        }
                        _ => char::from_u32(first),
                    };
                    lone += u32::from(character.is_none());
                    let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
                    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                other => return Err(format!("not JSON: escape \\{}", other.escape_ascii())),
            }
        }
        out.extend_from_slice(&raw[at..]);
        Ok(decode(out, lone))
    }
}

/// UTF-8 text of `bytes` and `lone` plus the malformed sequences replaced.
fn decode(bytes: Vec<u8>, lone: u32) -> (String, u32) {
    let (text, repaired) = repair(bytes);
    (text, repaired + lone)
}

/// The four hex digits at `at`.
fn unit(raw: &[u8], at: usize) -> std::result::Result<u32, String> {
    raw.get(at..at + 4)
        .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        .and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())
        .ok_or_else(|| "not JSON: \\u without four hex digits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> Keys {
        Keys { text: "text".into(), id: Some("id".into()), source: None }
    }

    fn row(line: &str) -> Row {
        let mut parsed = parse(line.as_bytes(), true, &keys(), 1).unwrap();
        assert_eq!(parsed.rejected, []);
        parsed.rows.remove(0)
    }

    fn reason(line: &[u8]) -> String {
        parse(line, true, &keys(), 1).unwrap().rejected.remove(0).reason
    }

    #[test]
    fn columns_are_decoded_and_the_rest_is_kept_as_written() {
        let found = row(
            r#" {"id": 7, "text" : "a\n\u00e9\ud83d\ude00\/", "n": [1, {"b": NaN}], "t":true} "#,
        );
        assert_eq!(found.text, "a\né😀/");
        assert_eq!(found.id.as_deref(), Some("7"));
        assert_eq!(found.metadata, r#"{"n": [1, {"b": NaN}],"t":true}"#);
        assert_eq!(
            row(r#"{"text":"","id":null}"#),
            Row { metadata: "{}".into(), ..Row::default() }
        );
    }

    #[test]
    fn malformed_unicode_is_repaired_and_counted() {
        let found = row(r#"{"text":"\ud800x\udc00 \u0000"}"#);
        assert_eq!((found.text.as_str(), found.repaired), ("\u{FFFD}x\u{FFFD} \0", 2));
        let found = row(r#"{"text":"\ud800\u0041"}"#);
        assert_eq!((found.text.as_str(), found.repaired), ("\u{FFFD}A", 1));
        let parsed = parse(b"{\"text\":\"\xFF\xC3\"}", true, &keys(), 1).unwrap();
        assert_eq!(parsed.rows[0].repaired, 2);
    }

    #[test]
    fn every_kind_of_wrong_line_has_its_reason() {
        assert_eq!(reason(br#"{"text":null}"#), "\"text\" is null, expected a string");
        assert_eq!(reason(br#"{"text":3}"#), "\"text\" is a number, expected a string");
        assert_eq!(reason(br#"{"t":"x"}"#), "no key \"text\"");
        for line in [
            &b"[1]"[..],
            b"{\"text\":\"a\"} x",
            b"{\"text\":\"a",
            b"{\"text\":\"a\"",
            b"{\"text\" \"a\"}",
            b"{\"text\":\"\\ud8\"}",
            b"{\"text\":\"\\x\"}",
            b"{\"text\":\"a\",\"b\":tru}",
            b"{\"text\":\"a\",\"b\":[1}",
            b"{\"text\":\"a\\",
            b"plain text",
        ] {
            assert!(reason(line).starts_with("not JSON"), "{}", line.escape_ascii());
        }
        let deep = format!("{{\"text\":\"a\",\"b\":{}", "[".repeat(100_000));
        assert!(reason(deep.as_bytes()).contains("levels deep"));
    }

    #[test]
    fn wrong_lines_do_not_stop_the_others_and_a_cut_line_waits() {
        let block = b"\xEF\xBB\xBF{\"text\":\"a\"}\r\nnope\n\n{\"text\":\"b\"}\n{\"text\":\"c";
        let parsed = parse(block, false, &keys(), 2).unwrap();
        let found: Vec<_> = parsed.rows.iter().map(|row| (row.number, row.text.as_str())).collect();
        assert_eq!(found, [(0, "a"), (3, "b")]);
        assert_eq!(parsed.rejected[0].number, 1);
        assert_eq!((parsed.records, &block[parsed.consumed..]), (4, &b"{\"text\":\"c"[..]));
        assert_eq!(parse(b"", true, &keys(), 1).unwrap(), Parsed::default());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_bytes_are_rows_or_reasons_and_never_a_panic(block in proptest::collection::vec(
            prop_oneof![Just(b'{'), Just(b'}'), Just(b'"'), Just(b'\\'), Just(b'u'), Just(b':'),
                Just(b'\n'), Just(b'['), Just(b'd'), Just(b'8'), any::<u8>()], 0..60)) {
            let parsed = parse(&block, true, &keys(), 1).unwrap();
            prop_assert!(parsed.rows.len() + parsed.rejected.len() <= parsed.records as usize);
            prop_assert_eq!(parsed.consumed, block.len());
        }

        #[test]
        fn strings_survive_escaping(text in "\\PC*[\\n\\t\"\\\\\\x00\u{1F600}]*") {
            let mut escaped = String::new();
            for unit in text.encode_utf16() {
                escaped += &format!("\\u{unit:04x}");
            }
            prop_assert_eq!(row(&format!("{{\"text\":\"{escaped}\"}}")).text, text);
        }
    }
}

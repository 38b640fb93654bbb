//! WARC and WET records to documents (ISO 28500; Common Crawl's WET files).
//!
//! Taken are `conversion` records (extracted text) and plain-text `resource` and `response` records.
//! Requests, metadata and file descriptions are passed over; other content is rejected with its type.

use super::files::repair;
use super::records::{Parsed, Rejected, Row};

/// More bytes without the end of the header are no WARC header.
const MAXIMUM_HEADER: usize = 1 << 16;

/// Parses the whole records of `block`; with `last` a cut record at its end is rejected.
pub fn parse(block: &[u8], last: bool) -> Parsed {
    let mut parsed = Parsed::default();
    while parsed.consumed < block.len() {
        let rest = &block[parsed.consumed..];
        let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        if blank > 0 {
            parsed.consumed += blank;
            continue;
        }
        let number = parsed.records;
        match record(rest, number) {
            Step::Cut if !last => break,
            Step::Cut => {
                parsed.rejected.push(Rejected::new(number, "the record has no end", rest));
                parsed.consumed = block.len();
            }
            Step::Noise => {
                let next = find(rest, b"\nWARC/").map(|at| at + 1);
                if next.is_none() && !last && rest.len() < MAXIMUM_HEADER {
                    break;
                }
                let end = next.unwrap_or(rest.len());
                parsed.rejected.push(Rejected::new(number, "not a WARC record", &rest[..end]));
                parsed.consumed += end;
            }
            Step::Record(length, outcome) => {
                parsed.consumed += length;
                match outcome {
                    Some(Ok(row)) => parsed.rows.push(row),
                    Some(Err(rejected)) => parsed.rejected.push(rejected),
                    None => {}
                }
            }
        }
        parsed.records += 1;
    }
    parsed
}

enum Step {
    /// The record goes on after the block.
    Cut,
    Noise,
    /// Its length, and a document, a reason, or nothing to take.
    Record(usize, Option<Result<Row, Rejected>>),
}

fn record(bytes: &[u8], number: u64) -> Step {
    if !bytes.starts_with(b"WARC/") {
        return if b"WARC/".starts_with(bytes) { Step::Cut } else { Step::Noise };
    }
    let Some((headers, body_at)) = headers(bytes) else {
        return if bytes.len() >= MAXIMUM_HEADER { Step::Noise } else { Step::Cut };
    };
    let get = |name: &str| {
        headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|h| h.1.as_str())
    };
    let Some(length) = get("Content-Length").and_then(|value| value.parse::<usize>().ok()) else {
        return Step::Noise;
    };
    let Some(body) = body_at.checked_add(length).and_then(|end| bytes.get(body_at..end)) else {
        return Step::Cut;
    };
    let end = body_at + length;
    let kind = get("WARC-Type").unwrap_or("");
    let content = get("Content-Type").unwrap_or("");
    let text = match kind {
        "conversion" => Ok(body),
        "resource" if content.starts_with("text/plain") => Ok(body),
        "response" => response(body),
        "resource" => Err(content.to_owned()),
        _ => return Step::Record(end, None),
    };
    let outcome = text
        .map(|text| {
            let (text, repaired) = repair(text.to_vec());
            let mut metadata = String::from("{");
            for (name, key) in [("WARC-Target-URI", "url"), ("WARC-Date", "date")] {
                if let Some(value) = get(name) {
                    let comma = if metadata.len() > 1 { "," } else { "" };
                    metadata += &format!("{comma}\"{key}\":{}", json_string(value));
                }
            }
            metadata.push('}');
            let id = get("WARC-Record-ID").map(|id| id.trim_matches(['<', '>']).to_owned());
            Row { number, id, text, source: None, metadata, repaired }
        })
        .map_err(|content| {
            let content = if content.is_empty() { "no content type" } else { &content };
            Rejected::new(number, format!("{kind} of {content}: only plain text is taken"), body)
        });
    Step::Record(end, Some(outcome))
}

/// The plain text in an HTTP response, or its content type.
fn response(body: &[u8]) -> Result<&[u8], String> {
    let (headers, at) = headers(body).unwrap_or_default();
    let content = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case("Content-Type"));
    match content {
        Some((_, value)) if value.starts_with("text/plain") => Ok(&body[at..]),
        Some((_, value)) => Err(value.clone()),
        None => Err(String::new()),
    }
}

/// The header lines after the first line, and where the body starts.
fn headers(bytes: &[u8]) -> Option<(Vec<(String, String)>, usize)> {
    let bytes = &bytes[..bytes.len().min(MAXIMUM_HEADER)];
    let (end, gap) = match (find(bytes, b"\r\n\r\n"), find(bytes, b"\n\n")) {
        (Some(a), Some(b)) if b < a => (b, 2),
        (Some(a), _) => (a, 4),
        (None, Some(b)) => (b, 2),
        (None, None) => return None,
    };
    let text = String::from_utf8_lossy(&bytes[..end]);
    let pairs = text.lines().skip(1).filter_map(|line| line.split_once(':'));
    let pairs = pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()));
    Some((pairs.collect(), end + gap))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            c if c.is_control() => out += &format!("\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wet(kind: &str, content: &str, body: &str) -> String {
        format!(
            "WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:{}>\r\nWARC-Target-URI: http://a/\"b\r\n\
             Content-Type: {content}\r\nContent-Length: {}\r\n\r\n{body}\r\n\r\n",
            body.len(),
            body.len()
        )
    }

    #[test]
    fn text_is_taken_whatever_its_record_is_called() {
        let block = [
            wet("warcinfo", "application/warc-fields", "software: x"),
            wet("conversion", "text/plain", "Größe\nWARC/1.0 is a format"),
            wet(
                "response",
                "application/http",
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain; x\r\n\r\nhi",
            ),
            wet(
                "response",
                "application/http",
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>",
            ),
        ]
        .concat();
        let parsed = parse(block.as_bytes(), true);
        let texts: Vec<_> = parsed.rows.iter().map(|row| (row.number, row.text.as_str())).collect();
        assert_eq!(texts, [(1, "Größe\nWARC/1.0 is a format"), (2, "hi")]);
        assert_eq!(parsed.rows[0].metadata, r#"{"url":"http://a/\"b"}"#);
        assert_eq!(parsed.rows[0].id.as_deref(), Some("urn:28"));
        assert_eq!(parsed.rejected[0].reason, "response of text/html: only plain text is taken");
        assert_eq!((parsed.records, parsed.consumed), (4, block.len()));
    }

    #[test]
    fn cutting_the_stream_anywhere_gives_the_same_records() {
        let block =
            [wet("conversion", "text/plain", "one"), wet("conversion", "text/plain", "two")]
                .concat();
        let block = block.as_bytes();
        for cut in 0..block.len() {
            let first = parse(&block[..cut], false);
            let second = parse(&block[first.consumed..], true);
            let texts: Vec<_> =
                first.rows.iter().chain(&second.rows).map(|row| row.text.as_str()).collect();
            assert_eq!(texts, ["one", "two"], "cut at {cut}");
            assert!(first.rejected.is_empty() && second.rejected.is_empty(), "cut at {cut}");
        }
    }

    #[test]
    fn noise_is_rejected_and_the_next_record_found() {
        let block =
            format!("garbage\r\nmore\r\n{}WARC/1.0\r\nContent-Le", wet("conversion", "", "ok"));
        let parsed = parse(block.as_bytes(), true);
        assert_eq!(parsed.rows.len(), 1);
        let reasons: Vec<_> = parsed.rejected.iter().map(|r| r.reason.as_str()).collect();
        assert_eq!(reasons, ["not a WARC record", "the record has no end"]);
    }
}

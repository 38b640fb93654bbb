//! Text files read in bulk: one outcome per path, and no path that stops the others.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::Result;
use crate::threads::with_threads;

/// Bytes at the start of a file that are searched for signs of binary content, as git does.
const SNIFF_BYTES: usize = 8000;
/// `O_NONBLOCK` of Linux and macOS: opening a FIFO without a writer returns instead of waiting.
#[cfg(target_os = "macos")]
const O_NONBLOCK: i32 = 0x0004;
#[cfg(not(target_os = "macos"))]
const O_NONBLOCK: i32 = 0o4000;

/// What became of one path.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The text, and the number of malformed UTF-8 sequences that became U+FFFD.
    Text { text: String, repaired: u32 },
    /// NUL bytes near the start, or control characters as no text has them.
    Binary,
    /// More than the allowed bytes.
    TooLarge,
    /// A directory, FIFO, socket or device.
    NotAFile,
    /// The operating system's reason.
    Unreadable(String),
}

/// Reads `paths` on `threads` threads (0: all cores); the outcomes stand in the order of the paths.
pub fn read_texts(paths: &[PathBuf], max_bytes: u64, threads: usize) -> Result<Vec<Outcome>> {
    with_threads(threads, || paths.par_iter().map(|path| read_text(path, max_bytes)).collect())
}

fn read_text(path: &Path, max_bytes: u64) -> Outcome {
    match read_bytes(path, max_bytes) {
        Ok(Ok(bytes)) => {
            let (text, repaired) = repair(bytes);
            Outcome::Text { text, repaired }
        }
        Ok(Err(outcome)) => outcome,
        Err(error) => Outcome::Unreadable(error.to_string()),
    }
}

/// The bytes of a regular file, or why it is not read.
fn read_bytes(
    path: &Path,
    max_bytes: u64,
) -> std::io::Result<std::result::Result<Vec<u8>, Outcome>> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(Err(Outcome::NotAFile));
    }
    if metadata.len() > max_bytes {
        return Ok(Err(Outcome::TooLarge));
    }
    // A file that grows meanwhile must not grow past the limit.
    let mut file = file.take(max_bytes + 1);
    let mut bytes = Vec::with_capacity(SNIFF_BYTES.min(metadata.len() as usize));
    file.by_ref().take(SNIFF_BYTES as u64).read_to_end(&mut bytes)?;
    if is_binary(&bytes) {
        return Ok(Err(Outcome::Binary));
    }
    bytes.reserve_exact((metadata.len() as usize).saturating_sub(bytes.len()));
    file.read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > max_bytes { Err(Outcome::TooLarge) } else { Ok(bytes) })
}

/// Whether the first bytes hold a NUL, or more than one control character in ten.
pub fn is_binary(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(SNIFF_BYTES)];
    let control = head
        .iter()
        .filter(|&&byte| byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0C | 0x08 | 0x1B))
        .count();
    head.contains(&0) || control * 10 > head.len()
}

/// UTF-8 with every malformed sequence replaced by U+FFFD, and how many there were. A byte order
/// mark at the start goes.
pub fn repair(bytes: Vec<u8>) -> (String, u32) {
    let (mut text, repaired) = match String::from_utf8(bytes) {
        Ok(text) => (text, 0),
        Err(error) => {
            let bytes = error.into_bytes();
            let invalid = bytes.utf8_chunks().filter(|chunk| !chunk.invalid().is_empty()).count();
            (String::from_utf8_lossy(&bytes).into_owned(), invalid as u32)
        }
    };
    if text.starts_with('\u{FEFF}') {
        text.drain(..'\u{FEFF}'.len_utf8());
    }
    (text, repaired)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_sequences_are_replaced_and_counted() {
        assert_eq!(repair(b"a\xFFb\xC3(".to_vec()), ("a\u{FFFD}b\u{FFFD}(".into(), 2));
        assert_eq!(repair("\u{FEFF}é".into()), ("é".into(), 0));
        // A surrogate written as CESU-8 is three malformed bytes.
        assert_eq!(repair(b"\xED\xA0\x80".to_vec()).1, 3);
    }

    #[test]
    fn control_characters_tell_binary_from_text() {
        assert!(is_binary(b"abc\0def"));
        assert!(is_binary(&[1, 2, 3, b'a']));
        assert!(!is_binary("Größe\r\n\tx\x1b[0m".as_bytes()));
        assert!(!is_binary(b""));
    }

    #[test]
    fn no_path_stops_the_others() {
        let folder = std::env::temp_dir().join(format!("marin-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name);
        std::fs::write(path("text"), "hello").unwrap();
        std::fs::write(path("binary"), [0; 10]).unwrap();
        std::fs::write(path("large"), "x".repeat(101)).unwrap();
        let paths = ["text", "binary", "large", "absent", "."].map(path);
        let outcomes = read_texts(&paths, 100, 2).unwrap();
        assert_eq!(outcomes[0], Outcome::Text { text: "hello".into(), repaired: 0 });
        assert_eq!(outcomes[1..3], [Outcome::Binary, Outcome::TooLarge]);
        assert!(matches!(&outcomes[3], Outcome::Unreadable(reason) if reason.contains("No such")));
        assert_eq!(outcomes[4], Outcome::NotAFile);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

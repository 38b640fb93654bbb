//! xxh3 checksums of files and bytes, as written in manifests.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::Result;

const READ_BYTES: usize = 1 << 20;

/// 128-bit xxh3 of a file's content, read in blocks of 1 MiB.
pub fn file(path: &Path) -> Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut block = vec![0; READ_BYTES];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hasher.digest128()),
            n => hasher.update(&block[..n]),
        }
    }
}

/// 128-bit xxh3 of `data`.
pub fn bytes(data: &[u8]) -> u128 {
    xxh3_128(data)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    #[test]
    fn a_file_and_its_bytes_have_the_same_checksum() {
        let path = std::env::temp_dir().join(format!("marin-checksum-{}", std::process::id()));
        for size in [0, 1, super::READ_BYTES, super::READ_BYTES + 7] {
            let data: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
            std::fs::File::create(&path).unwrap().write_all(&data).unwrap();
            assert_eq!(super::file(&path).unwrap(), super::bytes(&data), "{size} bytes");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_missing_file_is_an_error() {
        assert!(super::file(std::path::Path::new("/nonexistent/marin")).is_err());
    }
}

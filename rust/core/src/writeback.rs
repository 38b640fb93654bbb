//! Writing to disk before anybody asks for it.

use std::fs::File;
use std::path::Path;

use crate::Result;

/// Has the system begin to write `bytes` bytes of a file from `offset` on, and does not wait for
/// it; what is already on the disk costs nothing. A later flush then waits less. Where there is no
/// such call, nothing happens.
pub fn start(path: &Path, offset: u64, bytes: u64) -> Result<()> {
    let file = File::open(path)?;
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let range = (offset as libc::off64_t, bytes as libc::off64_t);
        // SAFETY: the call takes numbers alone, and the file is open until it returns. An error is
        // left to the flush, which reports it.
        unsafe {
            libc::sync_file_range(file.as_raw_fd(), range.0, range.1, libc::SYNC_FILE_RANGE_WRITE);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (file, offset, bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_file_is_the_same_after_it() {
        let path = std::env::temp_dir().join(format!("marin-writeback-{}", std::process::id()));
        std::fs::write(&path, [7; 10_000]).unwrap();
        super::start(&path, 0, 10_000).unwrap();
        super::start(&path, 9_000, 90_000).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [7; 10_000]);
        std::fs::remove_file(&path).unwrap();
        assert!(super::start(&path, 0, 1).is_err());
    }
}

//! Records that may not fit in memory: band keys, partitioned by band and by the key's first bits.
//!
//! Each partition is a buffer. When all buffers together pass the limit, full ones go to one file,
//! and the partition remembers where. A partition is read back as a whole, so there are enough of
//! them that one fits.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::{Error, Result};

/// One document under one band key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    pub key: u64,
    pub document: u32,
}

const RECORD_BYTES: usize = 12;

/// A buffer below this size stays in memory when others are written out.
const WRITE_BYTES: usize = 1 << 16;

pub struct Spill {
    directory: PathBuf,
    limit: usize,
    used: AtomicUsize,
    bands: usize,
    prefix_bits: u32,
    partitions: Vec<Mutex<Partition>>,
    file: OnceLock<File>,
    file_bytes: AtomicU64,
}

#[derive(Default)]
struct Partition {
    buffer: Vec<u8>,
    /// Offset and length of what was written out.
    written: Vec<(u64, usize)>,
}

impl Spill {
    /// For at most `documents` records per band and `limit` bytes of memory. The file is made in
    /// `directory` when needed, and vanishes with the value.
    pub fn new(directory: &Path, bands: usize, documents: usize, limit: usize) -> Self {
        let band_bytes = documents * std::mem::size_of::<Record>();
        let parts = band_bytes.div_ceil((limit / 4).max(1 << 20));
        let prefix_bits = parts.next_power_of_two().trailing_zeros();
        let partitions = (0..bands << prefix_bits).map(|_| Mutex::default()).collect();
        let directory = directory.to_owned();
        Self {
            directory,
            limit,
            used: AtomicUsize::new(0),
            bands,
            prefix_bits,
            partitions,
            file: OnceLock::new(),
            file_bytes: AtomicU64::new(0),
        }
    }

    pub fn bands(&self) -> usize {
        self.bands
    }

    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Adds records of one band.
    pub fn push(&self, band: usize, records: &[Record]) -> Result<()> {
        if self.prefix_bits == 0 {
            return self.append(band, records.iter());
        }
        let parts = 1 << self.prefix_bits;
        let mut sorted: Vec<Vec<Record>> = vec![Vec::new(); parts];
        for &record in records {
            sorted[(record.key >> (64 - self.prefix_bits)) as usize].push(record);
        }
        let first = band << self.prefix_bits;
        sorted
            .iter()
            .enumerate()
            .try_for_each(|(part, records)| self.append(first + part, records.iter()))
    }

    fn append<'a>(
        &self,
        partition: usize,
        records: impl ExactSizeIterator<Item = &'a Record>,
    ) -> Result<()> {
        let bytes = records.len() * RECORD_BYTES;
        let mut locked = self.lock(partition);
        locked.buffer.reserve(bytes);
        for record in records {
            locked.buffer.extend_from_slice(&record.key.to_le_bytes());
            locked.buffer.extend_from_slice(&record.document.to_le_bytes());
        }
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let worth_writing = WRITE_BYTES.min(self.limit / self.partitions.len());
        if used > self.limit && locked.buffer.len() >= worth_writing {
            self.write_out(&mut locked)?;
        }
        Ok(())
    }

    fn write_out(&self, partition: &mut Partition) -> Result<()> {
        let bytes = partition.buffer.len();
        let offset = self.file_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let file = self.file()?;
        file.write_all_at(&partition.buffer, offset).map_err(|error| self.failed(error))?;
        partition.written.push((offset, bytes));
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        partition.buffer = Vec::new();
        Ok(())
    }

    fn file(&self) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.create().map_err(|error| self.failed(error))?;
        Ok(self.file.get_or_init(|| file))
    }

    fn create(&self) -> std::io::Result<File> {
        // Several threads may come here at once; all but one of their files are dropped.
        let thread = std::thread::current().id();
        let path = self.directory.join(format!("bands-{thread:?}"));
        let file =
            OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path)?;
        // The open file stays usable without its name, and goes with the process however that ends.
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    /// Takes all records of a partition out, in no particular order.
    pub fn take(&self, partition: usize) -> Result<Vec<Record>> {
        let Partition { buffer, written } = std::mem::take(&mut *self.lock(partition));
        self.used.fetch_sub(buffer.len(), Ordering::Relaxed);
        let bytes = buffer.len() + written.iter().map(|&(_, length)| length).sum::<usize>();
        let mut records = Vec::with_capacity(bytes / RECORD_BYTES);
        let mut block = Vec::new();
        for (offset, length) in written {
            block.resize(length, 0);
            self.file()?.read_exact_at(&mut block, offset).map_err(|error| self.failed(error))?;
            records.extend(block.chunks_exact(RECORD_BYTES).map(decode));
        }
        records.extend(buffer.chunks_exact(RECORD_BYTES).map(decode));
        Ok(records)
    }

    fn lock(&self, partition: usize) -> MutexGuard<'_, Partition> {
        self.partitions[partition].lock().expect("no thread panics while it holds a partition")
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let directory = self.directory.display();
        Error::Io(std::io::Error::new(error.kind(), format!("spill file in {directory}: {error}")))
    }
}

fn decode(bytes: &[u8]) -> Record {
    let (key, document) = bytes.split_at(8);
    Record {
        key: u64::from_le_bytes(key.try_into().expect("8 bytes")),
        document: u32::from_le_bytes(document.try_into().expect("4 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::mix;
    use super::*;

    #[test]
    fn records_come_back_whether_or_not_they_went_to_files() {
        let directory = std::env::temp_dir().join(format!("marin-spill-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let records: Vec<Record> = (0..100_000u32)
            .map(|document| Record { key: mix(document.into()), document })
            .collect();
        for limit in [1 << 14, 1 << 20, 1 << 30] {
            let spill = Spill::new(&directory, 3, records.len(), limit);
            for batch in records.chunks(777) {
                spill.push(0, batch).unwrap();
                spill.push(2, batch).unwrap();
                // One batch beyond the limit, and buffers too small to be worth writing.
                let small = spill.partitions() * WRITE_BYTES.min(limit / spill.partitions());
                assert!(spill.used.load(Ordering::Relaxed) <= limit + small + 777 * RECORD_BYTES);
            }
            let per_band = spill.partitions() / spill.bands();
            for band in [0, 1, 2] {
                let mut all = Vec::new();
                for part in band * per_band..(band + 1) * per_band {
                    all.extend(spill.take(part).unwrap());
                }
                all.sort_unstable_by_key(|record| record.document);
                assert_eq!(all, if band == 1 { vec![] } else { records.clone() });
            }
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }
}

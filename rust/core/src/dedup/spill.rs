//! Records that may not fit in memory: band keys, partitioned by band and by the key's first bits.
//!
//! Each partition is a buffer that moves to a file of its own when all buffers together pass the
//! limit. A partition is read back as a whole, so there are enough of them that one fits.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

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
}

#[derive(Default)]
struct Partition {
    buffer: Vec<u8>,
    file: Option<File>,
    written: usize,
}

impl Spill {
    /// For at most `documents` records per band and `limit` bytes of memory. Files are made in
    /// `directory` when needed, and are removed with the value.
    pub fn new(directory: &Path, bands: usize, documents: usize, limit: usize) -> Self {
        let band_bytes = documents * std::mem::size_of::<Record>();
        let parts = band_bytes.div_ceil((limit / 4).max(1 << 20));
        let prefix_bits = parts.next_power_of_two().trailing_zeros();
        let partitions = (0..bands << prefix_bits).map(|_| Mutex::default()).collect();
        let directory = directory.to_owned();
        Self { directory, limit, used: AtomicUsize::new(0), bands, prefix_bits, partitions }
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
        if used > self.limit
            && locked.buffer.len() >= WRITE_BYTES.min(self.limit / self.partitions.len())
        {
            self.write_out(partition, &mut locked)?;
        }
        Ok(())
    }

    fn write_out(&self, number: usize, partition: &mut Partition) -> Result<()> {
        if partition.file.is_none() {
            partition.file = Some(self.create(number)?);
        }
        let file = partition.file.as_mut().expect("opened above");
        file.write_all(&partition.buffer).map_err(|error| self.failed(error))?;
        partition.written += partition.buffer.len();
        self.used.fetch_sub(partition.buffer.len(), Ordering::Relaxed);
        partition.buffer.clear();
        Ok(())
    }

    fn create(&self, number: usize) -> Result<File> {
        let path = self.directory.join(format!("band-{number:05}"));
        let file =
            OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
        let file = file.map_err(|error| self.failed(error))?;
        // The open file stays usable without its name, and goes with the process however that ends.
        std::fs::remove_file(&path).map_err(|error| self.failed(error))?;
        Ok(file)
    }

    /// Takes all records of a partition out, in no particular order.
    pub fn take(&self, partition: usize) -> Result<Vec<Record>> {
        let mut locked = self.lock(partition);
        let partition = std::mem::take(&mut *locked);
        self.used.fetch_sub(partition.buffer.len(), Ordering::Relaxed);
        let mut records =
            Vec::with_capacity((partition.written + partition.buffer.len()) / RECORD_BYTES);
        if let Some(mut file) = partition.file {
            use std::io::Seek;
            let mut block = vec![0; RECORD_BYTES << 14];
            let mut left = partition.written;
            file.rewind().map_err(|error| self.failed(error))?;
            while left > 0 {
                let part = left.min(block.len());
                file.read_exact(&mut block[..part]).map_err(|error| self.failed(error))?;
                records.extend(block[..part].chunks_exact(RECORD_BYTES).map(decode));
                left -= part;
            }
        }
        records.extend(partition.buffer.chunks_exact(RECORD_BYTES).map(decode));
        Ok(records)
    }

    fn lock(&self, partition: usize) -> std::sync::MutexGuard<'_, Partition> {
        self.partitions[partition].lock().expect("no thread panics while it holds a partition")
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let directory = self.directory.display();
        Error::Io(std::io::Error::new(error.kind(), format!("spill files in {directory}: {error}")))
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
                assert!(spill.used.load(Ordering::Relaxed) <= limit.max(1 << 20) + (777 * 12));
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

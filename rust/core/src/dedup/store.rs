//! Shingle sets of the documents that may be compared, in memory up to a limit and beyond it in a
//! file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, Result};

pub struct Store {
    directory: PathBuf,
    limit: usize,
    /// Whether a set was refused for want of memory.
    full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    places: HashMap<u32, Place>,
    memory_bytes: usize,
    file: Option<File>,
    file_bytes: u64,
}

enum Place {
    Memory(Box<[u64]>),
    File { offset: u64, count: usize },
}

impl Store {
    /// Holds up to `limit` bytes in memory; the file is made in `directory` when first needed.
    pub fn new(directory: &Path, limit: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            limit,
            full: AtomicBool::new(false),
            inner: Mutex::default(),
        }
    }

    /// Whether it is worth offering a set.
    pub fn has_room(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }

    /// Keeps the set of `document` if it fits in memory; says whether it did.
    pub fn offer(&self, document: u32, set: &[u64]) -> bool {
        let bytes = size_of_val(set);
        {
            let mut inner = self.lock();
            if inner.memory_bytes + bytes > self.limit {
                self.full.store(true, Ordering::Relaxed);
                return false;
            }
            inner.memory_bytes += bytes;
        }
        let boxed = set.into();
        self.lock().places.insert(document, Place::Memory(boxed));
        true
    }

    /// Keeps the set of `document`, in the file if memory is full.
    pub fn put(&self, document: u32, set: &[u64]) -> Result<()> {
        if self.offer(document, set) {
            return Ok(());
        }
        let bytes: Vec<u8> = set.iter().flat_map(|hash| hash.to_le_bytes()).collect();
        let mut inner = self.lock();
        if inner.file.is_none() {
            inner.file = Some(self.create()?);
        }
        let file = inner.file.as_mut().expect("opened above");
        file.write_all(&bytes).map_err(|error| self.failed(error))?;
        let place = Place::File { offset: inner.file_bytes, count: set.len() };
        inner.file_bytes += bytes.len() as u64;
        inner.places.insert(document, place);
        Ok(())
    }

    /// Forgets the sets of all documents for which `keep` does not hold.
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let inner = self.inner.get_mut().expect("no thread panics while it holds the store");
        inner.places.retain(|&document, _| keep(document));
        let sizes = inner.places.values().map(|place| match place {
            Place::Memory(set) => size_of_val::<[u64]>(set),
            Place::File { .. } => 0,
        });
        inner.memory_bytes = sizes.sum();
        self.full.store(false, Ordering::Relaxed);
    }

    /// The documents whose sets are here, in ascending order.
    pub fn documents(&self) -> Vec<u32> {
        let mut documents: Vec<u32> = self.lock().places.keys().copied().collect();
        documents.sort_unstable();
        documents
    }

    /// No more sets will be added: the sets can be read without a lock.
    pub fn close(&mut self) -> Sets<'_> {
        let inner = self.inner.get_mut().expect("no thread panics while it holds the store");
        Sets { inner, directory: &self.directory }
    }

    fn create(&self) -> Result<File> {
        let path = self.directory.join("shingles");
        let file =
            OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
        let file = file.map_err(|error| self.failed(error))?;
        // The open file stays usable without its name, and goes with the process however that ends.
        std::fs::remove_file(&path).map_err(|error| self.failed(error))?;
        Ok(file)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("no thread panics while it holds the store")
    }

    fn failed(&self, error: std::io::Error) -> Error {
        failed(&self.directory, error)
    }
}

fn failed(directory: &Path, error: std::io::Error) -> Error {
    let directory = directory.display();
    Error::Io(std::io::Error::new(error.kind(), format!("shingle file in {directory}: {error}")))
}

/// The sets of a store that is complete.
pub struct Sets<'a> {
    inner: &'a Inner,
    directory: &'a Path,
}

impl Sets<'_> {
    /// The set of `document`; `buffer` holds it if it comes from the file. An error if it was never
    /// put here.
    pub fn get<'b>(&'b self, document: u32, buffer: &'b mut Vec<u64>) -> Result<&'b [u64]> {
        let place = self.inner.places.get(&document).ok_or_else(|| {
            Error::invalid(format!("document {document}: its text was not read a second time"))
        })?;
        match place {
            Place::Memory(set) => Ok(set),
            &Place::File { offset, count } => {
                let mut bytes = vec![0; count * 8];
                let file = self.inner.file.as_ref().expect("there is a set in it");
                file.read_exact_at(&mut bytes, offset)
                    .map_err(|error| failed(self.directory, error))?;
                buffer.clear();
                let hashes = bytes.chunks_exact(8);
                buffer.extend(
                    hashes.map(|hash| u64::from_le_bytes(hash.try_into().expect("8 bytes"))),
                );
                Ok(buffer)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_come_back_from_memory_and_from_the_file() {
        let directory = std::env::temp_dir().join(format!("marin-store-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut store = Store::new(&directory, 1000);
        let set = |document: u32| (0..u64::from(document)).map(|i| i * 7).collect::<Vec<_>>();
        for document in 1..100 {
            store.put(document, &set(document)).unwrap();
        }
        store.retain(|document| document % 2 == 1);
        assert!(store.offer(2, &set(2)), "dropping sets frees memory");
        assert!(!store.offer(4, &set(400)));
        assert_eq!(store.documents()[..3], [1, 2, 3]);
        let sets = store.close();
        for document in (1..100).step_by(2) {
            assert_eq!(sets.get(document, &mut Vec::new()).unwrap(), set(document));
        }
        let error = sets.get(4, &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(error, "document 4: its text was not read a second time");
        std::fs::remove_dir(&directory).unwrap();
    }
}

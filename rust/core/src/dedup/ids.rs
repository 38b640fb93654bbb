//! The documents' ids, kept to break ties and to name twins.

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64;

/// Ids by document number; filled batch by batch in any order.
#[derive(Default)]
pub struct Ids {
    batches: Vec<(u32, Vec<u32>, Vec<u8>)>,
    ends: Vec<u64>,
    bytes: Vec<u8>,
}

impl Ids {
    /// Adds the ids of documents `first..`.
    pub fn add<'a>(&mut self, first: u32, ids: impl Iterator<Item = &'a [u8]>) {
        let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
        for id in ids {
            lengths.push(id.len() as u32);
            bytes.extend_from_slice(id);
        }
        self.batches.push((first, lengths, bytes));
    }

    /// Puts the batches in order, after the last of them. Returns the number of documents.
    pub fn finish(&mut self) -> usize {
        let mut batches = std::mem::take(&mut self.batches);
        batches.sort_unstable_by_key(|batch| batch.0);
        for (_, lengths, bytes) in batches {
            for length in lengths {
                let end = self.ends.last().copied().unwrap_or(0) + u64::from(length);
                self.ends.push(end);
            }
            self.bytes.extend_from_slice(&bytes);
        }
        self.ends.len()
    }

    pub fn get(&self, document: u32) -> &[u8] {
        let document = document as usize;
        let start = document.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..self.ends[document] as usize]
    }

    pub fn compare(&self, a: u32, b: u32) -> Ordering {
        self.get(a).cmp(self.get(b))
    }

    /// The first two documents that share an id: of all such pairs that with the least second.
    pub fn twice(&self) -> Option<(u32, u32)> {
        let count = self.ends.len() as u32;
        let mut hashed: Vec<(u64, u32)> =
            (0..count).map(|document| (xxh3_64(self.get(document)), document)).collect();
        hashed.sort_unstable();
        let same_hash = hashed.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() > 1);
        same_hash
            .flat_map(|run| {
                run.iter().enumerate().filter_map(|(i, &(_, second))| {
                    let earlier =
                        run[..i].iter().find(|(_, first)| self.get(*first) == self.get(second));
                    earlier.map(|&(_, first)| (first, second))
                })
            })
            .min_by_key(|&(_, second)| second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_by_document_whatever_the_order_of_batches() {
        let mut ids = Ids::default();
        ids.add(2, [&b"c"[..], b"", b"a"].into_iter());
        ids.add(0, [&b"dd"[..], b"b"].into_iter());
        assert_eq!(ids.finish(), 5);
        let all: Vec<&[u8]> = (0..5).map(|document| ids.get(document)).collect();
        assert_eq!(all, [&b"dd"[..], b"b", b"c", b"", b"a"]);
        assert_eq!(ids.twice(), None);
    }

    #[test]
    fn an_id_twice_is_found() {
        let mut ids = Ids::default();
        ids.add(0, [&b"x"[..], b"y", b"z", b"y", b"x"].into_iter());
        ids.finish();
        assert_eq!(ids.twice(), Some((1, 3)));
    }
}

//! Candidates for comparison: documents that share a band key.
//!
//! Documents are numbered by rank here, the best first, so that the order of numbers is the order in
//! which survivors are chosen.

use std::collections::HashMap;

use rayon::prelude::*;
use xxhash_rust::xxh3::Xxh3;

use super::spill::Spill;
use crate::Result;

/// Groups of documents, each in ascending order of rank and of at least two.
#[derive(Default)]
pub struct Buckets {
    ends: Vec<usize>,
    members: Vec<u32>,
}

impl Buckets {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, bucket: usize) -> &[u32] {
        let start = bucket.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.members[start..self.ends[bucket]]
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.len()).map(|bucket| self.get(bucket))
    }

    /// All members once, ascending.
    pub fn documents(&self) -> Vec<u32> {
        let mut documents = self.members.clone();
        documents.par_sort_unstable();
        documents.dedup();
        documents
    }

    fn push(&mut self, members: impl Iterator<Item = u32>) {
        self.members.extend(members);
        self.ends.push(self.members.len());
    }
}

impl FromIterator<Vec<u32>> for Buckets {
    fn from_iter<I: IntoIterator<Item = Vec<u32>>>(groups: I) -> Self {
        let mut buckets = Self::default();
        groups.into_iter().for_each(|members| buckets.push(members.into_iter()));
        buckets
    }
}

/// The distinct buckets of all bands. `rank_of` maps a document to the rank of its class. Runs on the
/// current rayon pool, one partition per thread at a time.
///
/// The copies of a cluster fall together in nearly every band; the same bucket in several bands
/// says nothing new and is kept once, with the number of bands it stands for in `weights`.
pub fn buckets(spill: &Spill, rank_of: impl Fn(u32) -> u32 + Sync) -> Result<(Buckets, Vec<u16>)> {
    let read = |partition: usize| {
        let mut records = spill.take(partition)?;
        for record in &mut records {
            record.document = rank_of(record.document);
        }
        records.sort_unstable();
        records.dedup();
        let mut buckets = Buckets::default();
        for run in records.chunk_by(|a, b| a.key == b.key).filter(|run| run.len() > 1) {
            buckets.push(run.iter().map(|record| record.document));
        }
        Ok(buckets)
    };
    let mut distinct = Distinct::default();
    let partitions: Vec<usize> = (0..spill.partitions()).collect();
    for group in partitions.chunks(rayon::current_num_threads()) {
        let found: Vec<Buckets> =
            group.par_iter().map(|&partition| read(partition)).collect::<Result<_>>()?;
        found.iter().flat_map(Buckets::iter).for_each(|members| distinct.add(members));
    }
    Ok((distinct.buckets, distinct.weights))
}

#[derive(Default)]
struct Distinct {
    /// The number of the first bucket of each hash of members.
    seen: HashMap<u64, u32>,
    buckets: Buckets,
    weights: Vec<u16>,
}

impl Distinct {
    fn add(&mut self, members: &[u32]) {
        let mut hasher = Xxh3::new();
        members.iter().for_each(|member| hasher.update(&member.to_le_bytes()));
        let new = self.buckets.len() as u32;
        let first = *self.seen.entry(hasher.digest()).or_insert(new) as usize;
        if first == self.buckets.len() || self.buckets.get(first) != members {
            self.buckets.push(members.iter().copied());
            self.weights.push(1);
        } else {
            self.weights[first] = self.weights[first].saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spill::Record;
    use super::*;

    fn spilled(bands: &[&[(u64, u32)]]) -> Spill {
        let spill = Spill::new(std::path::Path::new("/nonexistent"), bands.len(), 10, 1 << 20);
        for (band, records) in bands.iter().enumerate() {
            let records: Vec<Record> =
                records.iter().map(|&(key, document)| Record { key, document }).collect();
            spill.push(band, &records).unwrap();
        }
        spill
    }

    #[test]
    fn the_same_bucket_in_two_bands_is_one_of_weight_two() {
        let spill = spilled(&[
            &[(5, 3), (5, 1), (9, 2), (7, 8), (7, 9)],
            &[(1, 1), (1, 3), (1, 3), (2, 2), (2, 7)],
        ]);
        let (buckets, weights) = buckets(&spill, |document| document).unwrap();
        let found: Vec<(&[u32], u16)> = buckets.iter().zip(weights).collect();
        assert_eq!(found, [(&[1, 3][..], 2), (&[8, 9], 1), (&[2, 7], 1)]);
        assert_eq!(buckets.documents(), [1, 2, 3, 7, 8, 9]);
    }

    #[test]
    fn members_of_one_class_are_one_document() {
        let spill = spilled(&[&[(5, 3), (5, 1), (6, 1), (6, 2)]]);
        let (buckets, _) = buckets(&spill, |document| document / 2).unwrap();
        assert_eq!(buckets.iter().collect::<Vec<_>>(), [[0, 1], [0, 1]][..1]);
    }
}

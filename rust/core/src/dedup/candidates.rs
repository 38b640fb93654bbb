//! Candidates for comparison: documents that share a band key.
//!
//! Documents are numbered by rank here, the best first, so that the order of numbers is the order in
//! which survivors are chosen.

use std::collections::HashMap;
use std::ops::Range;

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
    /// The number of the bucket by the hash of its members.
    seen: HashMap<u128, u32>,
    buckets: Buckets,
    weights: Vec<u16>,
}

impl Distinct {
    fn add(&mut self, members: &[u32]) {
        let mut hasher = Xxh3::new();
        members.iter().for_each(|member| hasher.update(&member.to_le_bytes()));
        let number = *self.seen.entry(hasher.digest128()).or_insert(self.buckets.len() as u32);
        if number as usize == self.buckets.len() {
            self.buckets.push(members.iter().copied());
            self.weights.push(0);
        }
        let weight = &mut self.weights[number as usize];
        *weight = weight.saturating_add(1);
    }
}

/// Sets of buckets that share no document with those of another set.
pub struct Components {
    buckets: Vec<u32>,
    /// Where each set lies in `buckets`; the sets with most members first.
    ranges: Vec<Range<u32>>,
}

impl Components {
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The bucket numbers of one set.
    pub fn get(&self, component: usize) -> &[u32] {
        let Range { start, end } = self.ranges[component];
        &self.buckets[start as usize..end as usize]
    }
}

/// `documents` are all members of the buckets, ascending.
pub fn components(buckets: &Buckets, documents: &[u32]) -> Components {
    let index = |rank: u32| documents.binary_search(&rank).expect("a member of some bucket") as u32;
    let mut parent: Vec<u32> = (0..documents.len() as u32).collect();
    for members in buckets.iter() {
        let first = find(&mut parent, index(members[0]));
        for &member in &members[1..] {
            let other = find(&mut parent, index(member));
            // The root of a set is its least member, whatever the order of buckets.
            let root = find(&mut parent, first);
            let (low, high) = (root.min(other), root.max(other));
            parent[high as usize] = low;
        }
    }
    let mut rooted: Vec<(u32, u32)> = (0..buckets.len())
        .map(|bucket| (find(&mut parent, index(buckets.get(bucket)[0])), bucket as u32))
        .collect();
    rooted.sort_unstable();
    let mut start = 0;
    let mut ranges: Vec<Range<u32>> = rooted
        .chunk_by(|a, b| a.0 == b.0)
        .map(|component| {
            let end = start + component.len() as u32;
            std::mem::replace(&mut start, end)..end
        })
        .collect();
    let sorted: Vec<u32> = rooted.into_iter().map(|(_, bucket)| bucket).collect();
    ranges.sort_by_cached_key(|range| {
        let members = sorted[range.start as usize..range.end as usize].iter();
        let count: usize = members.map(|&bucket| buckets.get(bucket as usize).len()).sum();
        std::cmp::Reverse(count)
    });
    Components { buckets: sorted, ranges }
}

fn find(parent: &mut [u32], mut node: u32) -> u32 {
    while parent[node as usize] != node {
        let up = parent[parent[node as usize] as usize];
        parent[node as usize] = up;
        node = up;
    }
    node
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

    #[test]
    fn components_share_no_document() {
        let spill =
            spilled(&[&[(1, 1), (1, 2), (2, 8), (2, 9)], &[(3, 2), (3, 3), (4, 4), (4, 1)]]);
        let (buckets, _) = buckets(&spill, |document| document).unwrap();
        let components = components(&buckets, &buckets.documents());
        let sizes: Vec<usize> = (0..components.len()).map(|i| components.get(i).len()).collect();
        assert_eq!(sizes, [3, 1]);
    }
}

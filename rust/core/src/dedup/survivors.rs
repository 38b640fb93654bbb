//! Which documents stay.
//!
//! Each candidate is compared with the better documents that share a bucket with it and are kept,
//! those with most bands in common first, then by rank; the first that reaches the threshold removes
//! it, else it is kept. So a removed document always has a kept twin of better rank that it matches
//! itself, never by a chain.
//!
//! The outcome is that of visiting all by rank, but a document only has to wait for the better ones
//! in its own buckets. It is visited as soon as it is at the front of each of them, so that threads
//! find work inside one large component too.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use rayon::prelude::*;

use super::candidates::Buckets;
use super::store::Sets;
use super::verify::Measure;
use crate::{Error, Result};

/// A bucket remembers this many kept documents. Documents that agree in a band without being
/// similar (a common licence, a template) would otherwise cost their number squared; a true twin
/// shares many buckets, most of them smaller.
pub const KEPT_PER_BUCKET: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Removal {
    /// Ranks of the removed document and of its kept twin.
    pub removed: u32,
    pub kept: u32,
    pub similarity: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pairs of documents whose shingles were compared.
    pub compared: usize,
    /// Times that a kept document found its bucket full.
    pub crowded: usize,
}

pub struct Rules<'a, Set, Never> {
    pub measure: Measure,
    pub threshold: f64,
    /// The shingle set of a rank, read into the buffer if need be.
    pub sets: &'a Sets<'a>,
    /// The document under whose number the set of a rank is stored.
    pub stored: Set,
    /// Ranks that are never removed.
    pub exempt: Never,
}

/// Decides over all members of `buckets`; removals come in ascending order. Runs on the current
/// rayon pool.
pub fn choose<Set, Never>(
    buckets: &Buckets,
    weights: &[u16],
    rules: &Rules<'_, Set, Never>,
) -> Result<(Vec<Removal>, Work)>
where
    Set: Fn(u32) -> u32 + Sync,
    Never: Fn(u32) -> bool + Sync,
{
    let visits = Visits::new(buckets, weights, rules);
    let first: Vec<u32> = (0..visits.documents.len() as u32)
        .filter(|&document| visits.waiting[document as usize].load(Ordering::Relaxed) == 0)
        .collect();
    rayon::scope(|scope| {
        first.into_par_iter().for_each(|document| visits.run(document, scope));
    });
    let no_thread_panics = "no thread panics while it holds the lock";
    if let Some(error) = visits.failure.into_inner().expect(no_thread_panics) {
        return Err(error);
    }
    let mut removals = visits.removals.into_inner().expect(no_thread_panics);
    removals.par_sort_unstable_by_key(|removal| removal.removed);
    let (compared, crowded) = (visits.compared.into_inner(), visits.crowded.into_inner());
    Ok((removals, Work { compared, crowded }))
}

/// How far the members of a bucket, in order of rank, are decided.
#[derive(Default)]
struct Front {
    decided: usize,
    kept: Vec<u32>,
}

struct Visits<'a, Set, Never> {
    buckets: &'a Buckets,
    weights: &'a [u16],
    rules: &'a Rules<'a, Set, Never>,
    /// The members of all buckets by rank, ascending; below, a document is a position in here.
    documents: Vec<u32>,
    /// The buckets of document `i` are `memberships[ends[i - 1]..ends[i]]`.
    memberships: Vec<u32>,
    ends: Vec<usize>,
    fronts: Vec<Mutex<Front>>,
    /// In how many of its buckets a document is not at the front yet.
    waiting: Vec<AtomicU32>,
    removals: Mutex<Vec<Removal>>,
    failure: Mutex<Option<Error>>,
    compared: AtomicUsize,
    crowded: AtomicUsize,
}

impl<'a, Set, Never> Visits<'a, Set, Never>
where
    Set: Fn(u32) -> u32 + Sync,
    Never: Fn(u32) -> bool + Sync,
{
    fn new(buckets: &'a Buckets, weights: &'a [u16], rules: &'a Rules<'a, Set, Never>) -> Self {
        let mut pairs: Vec<(u32, u32)> = (0u32..)
            .zip(buckets.iter())
            .flat_map(|(bucket, members)| members.iter().map(move |&rank| (rank, bucket)))
            .collect();
        pairs.par_sort_unstable();
        let (mut documents, mut ends, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for run in pairs.chunk_by(|a, b| a.0 == b.0) {
            let rank = run[0].0;
            let behind = run.iter().filter(|&&(_, bucket)| buckets.get(bucket as usize)[0] != rank);
            waiting.push(AtomicU32::new(behind.count() as u32));
            documents.push(rank);
            ends.push(ends.last().copied().unwrap_or(0) + run.len());
        }
        Self {
            buckets,
            weights,
            rules,
            documents,
            memberships: pairs.into_iter().map(|(_, bucket)| bucket).collect(),
            ends,
            fronts: (0..buckets.len()).map(|_| Mutex::default()).collect(),
            waiting,
            removals: Mutex::default(),
            failure: Mutex::default(),
            compared: AtomicUsize::new(0),
            crowded: AtomicUsize::new(0),
        }
    }

    fn buckets_of(&self, document: u32) -> &[u32] {
        let document = document as usize;
        let start = document.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.memberships[start..self.ends[document]]
    }

    /// Visits `document` and then one after the other that this makes possible; the rest of those
    /// becomes tasks of `scope`.
    fn run<'scope>(&'scope self, document: u32, scope: &rayon::Scope<'scope>) {
        let mut buffers = (Vec::new(), Vec::new());
        let mut next = Some(document);
        while let Some(document) = next.take() {
            let twin = match self.twin(document, &mut buffers) {
                Ok(twin) => twin,
                Err(error) => {
                    // Nothing is visited after it, so that all ends here.
                    *lock(&self.failure) = Some(error);
                    return;
                }
            };
            if let Some((kept, similarity)) = twin {
                let removed = self.documents[document as usize];
                lock(&self.removals).push(Removal { removed, kept, similarity });
            }
            self.decide(document, twin.is_none(), |ready| match next {
                None => next = Some(ready),
                Some(_) => scope.spawn(move |scope| self.run(ready, scope)),
            });
        }
    }

    fn twin(
        &self,
        document: u32,
        buffers: &mut (Vec<u64>, Vec<u64>),
    ) -> Result<Option<(u32, f64)>> {
        let Rules { measure, threshold, sets, stored, exempt } = self.rules;
        let rank = self.documents[document as usize];
        if exempt(rank) {
            return Ok(None);
        }
        let candidates = self.candidates(document);
        if candidates.is_empty() {
            return Ok(None);
        }
        let own = sets.get(stored(rank), &mut buffers.0)?;
        for kept in candidates {
            let other = sets.get(stored(kept), &mut buffers.1)?;
            self.compared.fetch_add(1, Ordering::Relaxed);
            if let Some(similarity) = measure.at_least(*threshold, own, other) {
                return Ok(Some((kept, similarity)));
            }
        }
        Ok(None)
    }

    /// Kept documents that share a bucket: most shared bands first, then by rank.
    fn candidates(&self, document: u32) -> Vec<u32> {
        let mut shared: Vec<(u32, u32)> = Vec::new();
        for &bucket in self.buckets_of(document) {
            let weight = u32::from(self.weights[bucket as usize]);
            let front = lock(&self.fronts[bucket as usize]);
            shared.extend(front.kept.iter().map(|&kept| (kept, weight)));
        }
        shared.sort_unstable();
        let mut counted: Vec<(std::cmp::Reverse<u32>, u32)> = shared
            .chunk_by(|a, b| a.0 == b.0)
            .map(|run| (std::cmp::Reverse(run.iter().map(|&(_, weight)| weight).sum()), run[0].0))
            .collect();
        counted.sort_unstable();
        counted.into_iter().map(|(_, kept)| kept).collect()
    }

    /// Lets the next member of each bucket of `document` come to the front; `ready` takes those that
    /// are there in all of their buckets.
    fn decide(&self, document: u32, keep: bool, mut ready: impl FnMut(u32)) {
        for &bucket in self.buckets_of(document) {
            let next = {
                let mut front = lock(&self.fronts[bucket as usize]);
                if keep && front.kept.len() < KEPT_PER_BUCKET {
                    front.kept.push(self.documents[document as usize]);
                } else if keep {
                    self.crowded.fetch_add(1, Ordering::Relaxed);
                }
                front.decided += 1;
                self.buckets.get(bucket as usize).get(front.decided)
            };
            if let Some(rank) = next {
                let next = self.documents.binary_search(rank).expect("a member of some bucket");
                if self.waiting[next].fetch_sub(1, Ordering::AcqRel) == 1 {
                    ready(next as u32);
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::store::Store;
    use super::*;
    use crate::threads::with_threads;

    /// The definition: all documents one after the other, by rank.
    fn by_rank(buckets: &[Vec<u32>], sets: &[BTreeSet<u64>], threshold: f64) -> Vec<(u32, u32)> {
        let mut kept: Vec<Vec<u32>> = vec![Vec::new(); buckets.len()];
        let mut removals = Vec::new();
        for rank in 0..sets.len() as u32 {
            let mine: Vec<usize> =
                (0..buckets.len()).filter(|&bucket| buckets[bucket].contains(&rank)).collect();
            let shared = |other: u32| mine.iter().filter(|&&b| kept[b].contains(&other)).count();
            let mut candidates: Vec<u32> = (0..rank).filter(|&other| shared(other) > 0).collect();
            candidates.sort_by_key(|&other| (std::cmp::Reverse(shared(other)), other));
            let twin = candidates.into_iter().find(|&other| {
                let (a, b) = (&sets[rank as usize], &sets[other as usize]);
                let both = a.intersection(b).count() as f64;
                both / a.union(b).count() as f64 >= threshold
            });
            match twin {
                Some(twin) => removals.push((rank, twin)),
                None => mine.iter().for_each(|&bucket| kept[bucket].push(rank)),
            }
        }
        removals
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_number_of_threads_decides_as_by_rank(
            sets in prop::collection::vec(prop::collection::btree_set(0u64..12, 1..8), 2..40),
            memberships in prop::collection::vec(prop::collection::btree_set(0u32..40, 2..12), 1..20),
        ) {
            let members: Vec<Vec<u32>> = memberships
                .iter()
                .map(|set| set.iter().copied().filter(|&rank| (rank as usize) < sets.len()).collect())
                .filter(|members: &Vec<u32>| members.len() > 1)
                .collect();
            let buckets: Buckets = members.iter().cloned().collect();
            let mut store = Store::new(Path::new("/nonexistent"), 1 << 20);
            for (rank, set) in (0u32..).zip(&sets) {
                store.offer(rank, &set.iter().copied().collect::<Vec<_>>());
            }
            let rules = Rules {
                measure: Measure::Jaccard,
                threshold: 0.6,
                sets: &store.close(),
                stored: |rank: u32| rank,
                exempt: |_: u32| false,
            };
            let expected = by_rank(&members, &sets, 0.6);
            for threads in [1, 2, 4] {
                let weights = vec![1; buckets.len()];
                let (removals, _) =
                    with_threads(threads, || choose(&buckets, &weights, &rules)).unwrap().unwrap();
                let found: Vec<(u32, u32)> =
                    removals.iter().map(|removal| (removal.removed, removal.kept)).collect();
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}

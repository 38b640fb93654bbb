//! Which documents stay.
//!
//! Candidates are visited by rank, the best first. Each is compared with the kept documents that
//! share a bucket with it, those with most bands in common first, then by rank; the first that
//! reaches the threshold removes it, else it is kept. So a removed document always has a kept twin
//! of better rank that it matches itself, never by a chain, and the outcome is that of one thread.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::candidates::{Buckets, components};
use super::store::Sets;
use super::verify::Measure;
use crate::Result;

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
    let (compared, crowded) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let components = components(buckets, &buckets.documents());
    let parts: Vec<Vec<Removal>> = (0..components.len())
        .into_par_iter()
        .map(|component| {
            let mut visit = Visit::new(buckets, weights, components.get(component));
            let removals = visit.run(rules)?;
            compared.fetch_add(visit.work.compared, Ordering::Relaxed);
            crowded.fetch_add(visit.work.crowded, Ordering::Relaxed);
            Ok(removals)
        })
        .collect::<Result<_>>()?;
    let mut removals: Vec<Removal> = parts.into_iter().flatten().collect();
    removals.par_sort_unstable_by_key(|removal| removal.removed);
    Ok((removals, Work { compared: compared.into_inner(), crowded: crowded.into_inner() }))
}

/// One component, visited in order of rank.
struct Visit<'a> {
    weights: &'a [u16],
    bucket_numbers: &'a [u32],
    /// (rank, position in `bucket_numbers`), ascending.
    memberships: Vec<(u32, u32)>,
    kept: Vec<Vec<u32>>,
    work: Work,
}

impl<'a> Visit<'a> {
    fn new(buckets: &Buckets, weights: &'a [u16], bucket_numbers: &'a [u32]) -> Self {
        let mut memberships: Vec<(u32, u32)> = bucket_numbers
            .iter()
            .enumerate()
            .flat_map(|(position, &bucket)| {
                buckets.get(bucket as usize).iter().map(move |&rank| (rank, position as u32))
            })
            .collect();
        memberships.sort_unstable();
        let kept = vec![Vec::new(); bucket_numbers.len()];
        Self { weights, bucket_numbers, memberships, kept, work: Work::default() }
    }

    fn run<Set, Never>(&mut self, rules: &Rules<'_, Set, Never>) -> Result<Vec<Removal>>
    where
        Set: Fn(u32) -> u32,
        Never: Fn(u32) -> bool,
    {
        let mut removals = Vec::new();
        let memberships = std::mem::take(&mut self.memberships);
        let mut buffers = (Vec::new(), Vec::new());
        for visit in memberships.chunk_by(|a, b| a.0 == b.0) {
            let rank = visit[0].0;
            let twin = if (rules.exempt)(rank) {
                None
            } else {
                self.twin(rank, visit, rules, &mut buffers)?
            };
            match twin {
                Some((kept, similarity)) => {
                    removals.push(Removal { removed: rank, kept, similarity });
                }
                None => self.keep(rank, visit),
            }
        }
        Ok(removals)
    }

    fn twin<Set, Never>(
        &mut self,
        rank: u32,
        visit: &[(u32, u32)],
        rules: &Rules<'_, Set, Never>,
        buffers: &mut (Vec<u64>, Vec<u64>),
    ) -> Result<Option<(u32, f64)>>
    where
        Set: Fn(u32) -> u32,
    {
        let candidates = self.candidates(visit);
        if candidates.is_empty() {
            return Ok(None);
        }
        let own = rules.sets.get((rules.stored)(rank), &mut buffers.0)?;
        for kept in candidates {
            let other = rules.sets.get((rules.stored)(kept), &mut buffers.1)?;
            self.work.compared += 1;
            if let Some(similarity) = rules.measure.at_least(rules.threshold, own, other) {
                return Ok(Some((kept, similarity)));
            }
        }
        Ok(None)
    }

    /// Kept documents that share a bucket: most shared bands first, then by rank.
    fn candidates(&self, visit: &[(u32, u32)]) -> Vec<u32> {
        let mut shared: Vec<(u32, u32)> = Vec::new();
        for &(_, position) in visit {
            let weight = self.weights[self.bucket_numbers[position as usize] as usize];
            shared
                .extend(self.kept[position as usize].iter().map(|&kept| (kept, u32::from(weight))));
        }
        shared.sort_unstable();
        let mut counted: Vec<(std::cmp::Reverse<u32>, u32)> = shared
            .chunk_by(|a, b| a.0 == b.0)
            .map(|run| (std::cmp::Reverse(run.iter().map(|&(_, weight)| weight).sum()), run[0].0))
            .collect();
        counted.sort_unstable();
        counted.into_iter().map(|(_, kept)| kept).collect()
    }

    fn keep(&mut self, rank: u32, visit: &[(u32, u32)]) {
        for &(_, position) in visit {
            let kept = &mut self.kept[position as usize];
            if kept.len() < KEPT_PER_BUCKET {
                kept.push(rank);
            } else {
                self.work.crowded += 1;
            }
        }
    }
}

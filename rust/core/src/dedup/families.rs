//! Families of documents that are never removed.
//!
//! All other documents that stay are unlike each other. Of exempt ones near duplicates stay as well;
//! who splits a corpus has to have them on one side, so that all that are connected by pairs at the
//! threshold belong to the best of them. Which pairs are compared first does not show in that.

use std::collections::HashMap;
use std::sync::Mutex;

use rayon::prelude::*;

use super::candidates::Buckets;
use super::survivors::{KEPT_PER_BUCKET, Rules};
use crate::Result;

/// The head (least rank) of the family of each exempt rank that has relatives. Ranks for which
/// `looks` does not hold do not look for better relatives. Runs on the current rayon pool.
pub fn families<Set, Never>(
    buckets: &Buckets,
    rules: &Rules<'_, Set, Never>,
    looks: impl Fn(u32) -> bool + Sync,
) -> Result<HashMap<u32, u32>>
where
    Set: Fn(u32) -> u32 + Sync,
    Never: Fn(u32) -> bool + Sync,
{
    let heads = Mutex::new(Heads::default());
    let lock = || heads.lock().expect("no thread panics while it holds the lock");
    (0..buckets.len()).into_par_iter().try_for_each_init(
        || (Vec::new(), Vec::new()),
        |(one, other), bucket| -> Result<()> {
            let exempt = buckets.get(bucket).iter().copied().filter(|&rank| (rules.exempt)(rank));
            let members: Vec<u32> = exempt.collect();
            for (at, &rank) in members.iter().enumerate().filter(|&(_, &rank)| looks(rank)) {
                for &better in &members[..at.min(KEPT_PER_BUCKET)] {
                    if lock().are_one(rank, better) {
                        continue;
                    }
                    let own = rules.sets.get((rules.stored)(rank), one)?;
                    let twin = rules.sets.get((rules.stored)(better), other)?;
                    if rules.measure.at_least(rules.threshold, own, twin).is_some() {
                        lock().unite(rank, better);
                    }
                }
            }
            Ok(())
        },
    )?;
    let mut heads = heads.into_inner().expect("no thread panics while it holds the lock");
    let ranks: Vec<u32> = heads.better.keys().copied().collect();
    Ok(ranks.into_iter().map(|rank| (rank, heads.of(rank))).collect())
}

/// Disjoint sets; each rank leads to a better one, the head to none.
#[derive(Default)]
struct Heads {
    better: HashMap<u32, u32>,
}

impl Heads {
    fn of(&mut self, rank: u32) -> u32 {
        let mut head = rank;
        while let Some(&better) = self.better.get(&head) {
            head = better;
        }
        let mut at = rank;
        while let Some(better) = self.better.get_mut(&at) {
            at = std::mem::replace(better, head);
        }
        head
    }

    fn are_one(&mut self, a: u32, b: u32) -> bool {
        self.of(a) == self.of(b)
    }

    fn unite(&mut self, a: u32, b: u32) {
        let (a, b) = (self.of(a), self.of(b));
        if a != b {
            self.better.insert(a.max(b), a.min(b));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Heads;

    #[test]
    fn the_least_rank_is_the_head_of_all_that_are_connected() {
        let mut heads = Heads::default();
        for (a, b) in [(5, 4), (9, 8), (8, 5), (7, 2), (4, 9)] {
            heads.unite(a, b);
        }
        assert_eq!([9, 8, 5, 4, 7, 2, 3].map(|rank| heads.of(rank)), [4, 4, 4, 4, 2, 2, 3]);
    }
}

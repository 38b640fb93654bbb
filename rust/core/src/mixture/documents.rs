//! The documents of a cell: an endless order, epoch after epoch.

use super::order::epoch_order;
use super::permute::Permutation;
use crate::{Error, Result};

/// Each epoch is another keyed permutation of the documents that the run sees, which are all of
/// them or a part that the key chooses.
#[derive(Clone, Debug)]
pub struct DocumentOrder {
    seed: u64,
    cell: u64,
    seen: u64,
    /// One fixed permutation of all documents, whose first `seen` the run sees.
    chosen: Option<Permutation>,
}

impl DocumentOrder {
    /// The order of a cell of `documents` documents of which the run sees `seen`. `cell` is a key
    /// that names the cell.
    pub fn new(seed: u64, cell: u64, documents: u64, seen: u64) -> Result<Self> {
        if seen == 0 || seen > documents || documents > super::MAX_ROWS {
            return Err(Error::invalid(format!("{seen} documents of a cell of {documents}")));
        }
        let chosen = (seen < documents).then(|| epoch_order(seed, cell ^ 1, documents, 0));
        Ok(Self { seed, cell, seen, chosen })
    }

    /// Documents and their epochs from `position` on.
    pub fn from(&self, position: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (first, begin) = (position / self.seen, position % self.seen);
        (first..=u64::MAX / self.seen).flat_map(move |epoch| {
            let permutation = self.epoch(epoch);
            let within = if epoch == first { begin } else { 0 };
            (within..self.seen).map(move |within| {
                let document = permutation.apply(within);
                (self.chosen.as_ref().map_or(document, |chosen| chosen.apply(document)), epoch)
            })
        })
    }

    fn epoch(&self, epoch: u64) -> Permutation {
        epoch_order(self.seed, self.cell, self.seen, epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::DocumentOrder;
    use std::collections::BTreeSet;

    #[test]
    fn each_epoch_gives_the_seen_documents_once_from_any_position() {
        for seen in [1, 7, 30] {
            let order = DocumentOrder::new(3, 5, 30, seen).unwrap();
            let whole: Vec<_> = order.from(0).take(3 * seen as usize).collect();
            let sets: BTreeSet<BTreeSet<u64>> = whole
                .chunks(seen as usize)
                .map(|epoch| epoch.iter().map(|&(document, _)| document).collect())
                .collect();
            assert_eq!(sets.len(), 1);
            assert_eq!(sets.first().unwrap().len(), seen as usize);
            for start in 0..whole.len() {
                assert!(order.from(start as u64).zip(&whole[start..]).all(|(a, b)| a == *b));
            }
        }
        assert!(DocumentOrder::new(0, 0, 3, 4).is_err());
        assert!(DocumentOrder::new(0, 0, 0, 0).is_err());
    }
}

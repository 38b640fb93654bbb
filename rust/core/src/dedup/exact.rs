//! Classes of documents whose normalized texts are equal.

use rayon::prelude::*;

/// For each document the best of its class: the one with the least `rank`. Documents for which
/// `alone` holds are classes of their own. Runs on the current rayon pool.
pub fn best_of_class(
    hashes: &[u128],
    rank: &[u32],
    alone: impl Fn(u32) -> bool + Sync,
) -> Vec<u32> {
    let mut best: Vec<u32> = (0..hashes.len() as u32).collect();
    let mut order: Vec<u32> =
        best.par_iter().copied().filter(|&document| !alone(document)).collect();
    order
        .par_sort_unstable_by_key(|&document| (hashes[document as usize], rank[document as usize]));
    for class in order.chunk_by(|&a, &b| hashes[a as usize] == hashes[b as usize]) {
        for &document in class {
            best[document as usize] = class[0];
        }
    }
    best
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_least_rank_stands_for_its_class() {
        let hashes = [7, 9, 7, 0, 7, 9, 0];
        let rank = [3, 2, 1, 5, 0, 6, 4];
        let best = super::best_of_class(&hashes, &rank, |document| hashes[document as usize] == 0);
        assert_eq!(best, [4, 1, 4, 3, 4, 1, 6]);
    }
}

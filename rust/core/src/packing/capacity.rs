//! Open rows by the room that is left in them.

const NONE: u32 = u32::MAX;
const WORD_BITS: usize = 64;

/// A multiset of rows keyed by room (0..=capacity); finds the tightest row for a length in
/// O(log_64 capacity).
///
/// Rows of equal room form a linked stack. A tree of 64-bit words says which rooms occur: bit `i`
/// of a level is set where word `i` of the level below is not zero.
pub(super) struct CapacityIndex {
    levels: Vec<Vec<u64>>,
    head: Vec<u32>,
    next: Vec<u32>,
}

impl CapacityIndex {
    pub fn new(capacity: u32) -> Self {
        let rooms = capacity as usize + 1;
        let mut levels = Vec::new();
        let mut width = rooms;
        loop {
            width = width.div_ceil(WORD_BITS);
            levels.push(vec![0; width]);
            if width == 1 {
                break;
            }
        }
        Self { levels, head: vec![NONE; rooms], next: Vec::new() }
    }

    /// Puts `row` in with `room` tokens left. Rows are numbered from 0 without gaps.
    pub fn insert(&mut self, row: u32, room: u32) {
        let (index, slot) = (row as usize, room as usize);
        if index >= self.next.len() {
            self.next.resize(index + 1, NONE);
        }
        if self.head[slot] == NONE {
            let mut at = slot;
            for level in &mut self.levels {
                let word = &mut level[at / WORD_BITS];
                let was_empty = *word == 0;
                *word |= 1 << (at % WORD_BITS);
                if !was_empty {
                    break;
                }
                at /= WORD_BITS;
            }
        }
        self.next[index] = self.head[slot];
        self.head[slot] = row;
    }

    /// Takes out the row with the least room that is at least `length`, the latest of equal ones.
    pub fn take_tightest(&mut self, length: u32) -> Option<(u32, u32)> {
        let room = self.first_from(length as usize)?;
        let row = self.head[room];
        self.head[room] = self.next[row as usize];
        if self.head[room] == NONE {
            let mut at = room;
            for level in &mut self.levels {
                let word = &mut level[at / WORD_BITS];
                *word &= !(1 << (at % WORD_BITS));
                if *word != 0 {
                    break;
                }
                at /= WORD_BITS;
            }
        }
        Some((row, room as u32))
    }

    /// The least set position that is at least `at`.
    fn first_from(&self, mut at: usize) -> Option<usize> {
        for (depth, level) in self.levels.iter().enumerate() {
            let word = level.get(at / WORD_BITS)?;
            let rest = word & (u64::MAX << (at % WORD_BITS));
            if rest != 0 {
                at = at / WORD_BITS * WORD_BITS + rest.trailing_zeros() as usize;
                for below in self.levels[..depth].iter().rev() {
                    at = at * WORD_BITS + below[at].trailing_zeros() as usize;
                }
                return Some(at);
            }
            at = at / WORD_BITS + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::CapacityIndex;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn finds_what_a_linear_search_finds(
            capacity in prop_oneof![Just(1u32), Just(63), Just(64), Just(4095), Just(4096), Just(4097)],
            steps in prop::collection::vec((any::<bool>(), 0.0f64..1.0), 1..200),
        ) {
            let mut index = CapacityIndex::new(capacity);
            let mut open: Vec<(u32, u32)> = Vec::new();
            let mut rows = 0;
            for (insert, fraction) in steps {
                let value = (fraction * f64::from(capacity + 1)) as u32;
                if insert {
                    index.insert(rows, value);
                    open.push((rows, value));
                    rows += 1;
                } else {
                    let least = open.iter().map(|&(_, room)| room).filter(|&room| room >= value).min();
                    let at = open.iter().rposition(|&(_, room)| Some(room) == least);
                    let expected = at.map(|at| open.remove(at));
                    prop_assert_eq!(index.take_tightest(value), expected);
                }
            }
        }
    }
}

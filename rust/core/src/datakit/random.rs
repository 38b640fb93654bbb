//! A small counter-based generator: the same numbers on every machine.

/// SplitMix64 (Steele, Lea and Flood 2014), started from a seed and the number of a stream.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self(seed ^ stream.wrapping_mul(0xD1B5_4A32_D192_ED03));
        random.next();
        random
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An index drawn in proportion to `weights`; the last one where all are zero.
    pub fn weighted(&mut self, weights: impl Iterator<Item = f64> + Clone) -> usize {
        let mut left = self.unit() * weights.clone().sum::<f64>();
        let mut last = 0;
        for (index, weight) in weights.enumerate() {
            last = index;
            if left < weight {
                return index;
            }
            left -= weight;
        }
        last
    }

    /// Fisher-Yates.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = ((u128::from(self.next()) * (i as u128 + 1)) >> 64) as usize;
            items.swap(i, j);
        }
    }
}

/// The finalizer of SplitMix64: a bijection that spreads every bit.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn streams_differ_and_repeat() {
        let mut a = Random::new(1, 0);
        assert_eq!(a.next(), Random::new(1, 0).next());
        assert_ne!(Random::new(1, 0).next(), Random::new(1, 1).next());
        let mut items: Vec<u32> = (0..100).collect();
        a.shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn draws_follow_the_weights() {
        let mut random = Random::new(5, 0);
        let weights = [0.0, 3.0, 1.0];
        let draws: Vec<_> = (0..4000).map(|_| random.weighted(weights.iter().copied())).collect();
        assert!(!draws.contains(&0));
        let ones = draws.iter().filter(|&&i| i == 1).count();
        assert!((2800..3200).contains(&ones), "{ones}");
    }
}

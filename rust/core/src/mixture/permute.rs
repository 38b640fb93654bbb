//! Keyed permutations of `0..n` without a table: a Feistel network on the next even power of two
//! that is at least `n`, walked along its cycle until it lands below `n` (J. Black, P. Rogaway,
//! "Ciphers with arbitrary finite domains", CT-RSA 2002). At most four steps are expected.

/// Rounds of the network. Four make a strong pseudo-random permutation of a good round function
/// (M. Luby, C. Rackoff, 1988); two more cover the small halves of small domains.
const ROUNDS: usize = 6;

/// A permutation of `0..len`, chosen by a key; any `len` up to 2^62.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    mask: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    pub fn new(len: u64, key: u64) -> Self {
        assert!(len <= super::MAX_ROWS);
        let bits = 64 - len.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let mut keys = [0; ROUNDS];
        let mut state = key;
        for round in &mut keys {
            state = mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            *round = state;
        }
        Self { len, half_bits, mask: (1 << half_bits) - 1, keys }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The round function: the top bits of two multiplications, which depend on every bit of `half`.
    #[inline]
    fn round(&self, half: u64, key: u64) -> u64 {
        let product = (half ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (product ^ (product >> 32)).wrapping_mul(0x94d0_49bb_1331_11eb) >> (64 - self.half_bits)
    }

    /// Where `i` goes.
    #[inline]
    pub fn apply(&self, i: u64) -> u64 {
        debug_assert!(i < self.len);
        let mut x = i;
        loop {
            let (mut high, mut low) = (x >> self.half_bits, x & self.mask);
            for key in &self.keys {
                (high, low) = (low, high ^ self.round(low, *key));
            }
            x = (high << self.half_bits) | low;
            if x < self.len {
                return x;
            }
        }
    }

    /// What comes to `i`.
    #[inline]
    pub fn invert(&self, i: u64) -> u64 {
        debug_assert!(i < self.len);
        let mut x = i;
        loop {
            let (mut high, mut low) = (x >> self.half_bits, x & self.mask);
            for key in self.keys.iter().rev() {
                (high, low) = (low ^ self.round(high, *key), high);
            }
            x = (high << self.half_bits) | low;
            if x < self.len {
                return x;
            }
        }
    }
}

/// A 64-bit key from a seed and what it is for.
pub fn derive_key(seed: u64, purpose: &[u64]) -> u64 {
    purpose.iter().fold(mix(seed ^ 0x6d61_7269_6e21_7e5d), |key, &part| {
        mix(key.rotate_left(23) ^ mix(part.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    })
}

/// The finalizer of SplitMix64 (G. Steele, D. Lea, C. Flood, 2014).
#[inline]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

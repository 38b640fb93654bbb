//! Classic MinHash with one permutation per value, bit-equal to datasketch 2.x.
//!
//! Shingles are hashed as UTF-8 text (words joined by one space) by SHA-1, of which datasketch takes
//! the first 4 or 8 bytes, little-endian. Cost: permutations x shingles.

use super::sha1;
use super::text::{Kind, Shingling, normalize};
use super::token::mix;
use crate::{Error, Result};

/// The hash families of datasketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The default since version 2.0: `a * fmix32(h) + b mod 2^32`.
    Affine32,
    /// `a * fmix64(h) + b mod 2^64`.
    Affine64,
    /// Before version 2.0: `((a * h + b) mod 2^64 mod (2^61 - 1)) mod 2^32`.
    Legacy,
}

/// A family with its parameters, one pair for each permutation.
pub struct Permutations {
    family: Family,
    a: Vec<u64>,
    b: Vec<u64>,
}

impl Permutations {
    pub fn new(family: Family, a: Vec<u64>, b: Vec<u64>) -> Result<Self> {
        if a.len() != b.len() || a.is_empty() {
            return Err(Error::invalid(format!(
                "permutations: {} factors and {} offsets, expected equally many and at least 1",
                a.len(),
                b.len()
            )));
        }
        Ok(Self { family, a, b })
    }

    pub fn len(&self) -> usize {
        self.a.len()
    }

    pub fn is_empty(&self) -> bool {
        self.a.is_empty()
    }

    /// What datasketch holds for an empty set.
    pub fn empty(&self) -> u64 {
        match self.family {
            Family::Affine64 => u64::MAX,
            Family::Affine32 | Family::Legacy => u64::from(u32::MAX),
        }
    }

    /// Writes the sketch of the set of `shingles` to `values`. Of more than `cap` shingles only the
    /// `cap` with the least mixed hashes count: a sample of the set that does not depend on where in
    /// the text a shingle stands, and that two similar texts share.
    pub fn sketch<'a>(
        &self,
        shingles: impl Iterator<Item = &'a [u8]>,
        cap: Option<usize>,
        values: &mut [u64],
    ) {
        let mut hashes: Vec<u64> = shingles.map(|shingle| self.hash(shingle)).collect();
        if let Some(cap) = cap.filter(|&cap| cap < hashes.len()) {
            hashes.sort_unstable_by_key(|&hash| mix(hash));
            hashes.dedup();
            hashes.truncate(cap);
        }
        values.fill(self.empty());
        let parameters = self.a.iter().zip(&self.b);
        match self.family {
            Family::Affine32 => {
                let hashes: Vec<u32> = hashes.iter().map(|&hash| fmix32(hash as u32)).collect();
                for (value, (&a, &b)) in values.iter_mut().zip(parameters) {
                    let permuted = hashes
                        .iter()
                        .map(|hash| hash.wrapping_mul(a as u32).wrapping_add(b as u32));
                    *value = permuted.min().map_or(*value, u64::from);
                }
            }
            Family::Affine64 => {
                hashes.iter_mut().for_each(|hash| *hash = fmix64(*hash));
                for (value, (&a, &b)) in values.iter_mut().zip(parameters) {
                    let permuted = hashes.iter().map(|hash| hash.wrapping_mul(a).wrapping_add(b));
                    *value = permuted.min().unwrap_or(*value);
                }
            }
            Family::Legacy => {
                const PRIME: u64 = (1 << 61) - 1;
                for (value, (&a, &b)) in values.iter_mut().zip(parameters) {
                    let permuted = hashes.iter().map(|hash| {
                        (hash.wrapping_mul(a).wrapping_add(b) % PRIME) & u64::from(u32::MAX)
                    });
                    *value = permuted.min().unwrap_or(*value);
                }
            }
        }
    }

    fn hash(&self, shingle: &[u8]) -> u64 {
        let digest = sha1::digest(shingle);
        match self.family {
            Family::Affine64 => u64::from_le_bytes(digest[..8].try_into().expect("8 bytes")),
            Family::Affine32 | Family::Legacy => {
                u64::from(u32::from_le_bytes(digest[..4].try_into().expect("4 bytes")))
            }
        }
    }
}

/// The finalizer of MurmurHash3 for 32 bits.
fn fmix32(mut hash: u32) -> u32 {
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// The finalizer of MurmurHash3 for 64 bits.
fn fmix64(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

/// The shingles of a text as text, each once or more; a text with fewer tokens than a shingle has
/// none.
pub struct Shingles {
    text: String,
    /// Start and end of each token in `text`.
    tokens: Vec<(usize, usize)>,
    n: usize,
}

impl Shingles {
    pub fn new(text: &[u8], shingling: Shingling) -> Self {
        let (kind, parts) = normalize(text, shingling.unit);
        let (n, space) = match kind {
            Kind::Words => (shingling.words, " "),
            _ => (shingling.characters, ""),
        };
        let mut at = 0;
        let tokens = parts
            .iter()
            .map(|part| {
                let start = at;
                at += part.len() + space.len();
                (start, start + part.len())
            })
            .collect();
        Self { text: parts.join(space), tokens, n }
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.tokens
            .windows(self.n)
            .map(|window| &self.text.as_bytes()[window[0].0..window[self.n - 1].1])
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::Unit;
    use super::*;

    #[test]
    fn shingles_are_the_normalized_words() {
        let shingling = Shingling { words: 2, characters: 3, unit: Unit::Auto };
        let texts = |text: &str| -> Vec<String> {
            let shingles = Shingles::new(text.as_bytes(), shingling);
            shingles.iter().map(|shingle| String::from_utf8(shingle.to_vec()).unwrap()).collect()
        };
        assert_eq!(texts("One, TWO  three!"), ["one two", "two three"]);
        assert_eq!(texts("我们在城市"), ["我们在", "们在城", "在城市"]);
        assert!(texts("one").is_empty());
    }

    #[test]
    fn a_cap_samples_the_set_alike_from_any_order() {
        let permutations =
            Permutations::new(Family::Affine32, vec![3, 5, 7], vec![1, 2, 3]).unwrap();
        let words: Vec<String> = (0..100).map(|i| format!("word{i}")).collect();
        let sketch = |words: &mut dyn Iterator<Item = &String>| {
            let mut values = vec![0; 3];
            permutations.sketch(words.map(|word| word.as_bytes()), Some(10), &mut values);
            values
        };
        assert_eq!(sketch(&mut words.iter()), sketch(&mut words.iter().rev().chain(&words)));
    }
}

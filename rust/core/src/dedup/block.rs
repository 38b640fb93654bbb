//! Which of 64 bytes belong to words: two bit masks per block, by AVX2 where the machine has it.

pub const BLOCK: usize = 64;

/// Bit `i` of `word` is set where byte `i` is an ASCII letter, digit or underscore; of `high` where
/// it is part of a character beyond ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masks {
    pub word: u64,
    pub high: u64,
}

/// How masks are computed; the results are the same.
pub trait Classify {
    fn masks(block: &[u8; BLOCK]) -> Masks;
}

pub struct Portable;

impl Classify for Portable {
    #[inline(always)]
    fn masks(block: &[u8; BLOCK]) -> Masks {
        let (mut word, mut high) = (0, 0);
        for (i, &byte) in block.iter().enumerate() {
            word |= u64::from(byte.is_ascii_alphanumeric() || byte == b'_') << i;
            high |= u64::from(byte >> 7) << i;
        }
        Masks { word, high }
    }
}

#[cfg(target_arch = "x86_64")]
pub struct Avx2;

#[cfg(target_arch = "x86_64")]
impl Classify for Avx2 {
    #[inline(always)]
    fn masks(block: &[u8; BLOCK]) -> Masks {
        // SAFETY: this type is only named inside functions that enable AVX2, which are called after
        // the machine was asked for it.
        unsafe { masks_avx2(block) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn masks_avx2(block: &[u8; BLOCK]) -> Masks {
    use std::arch::x86_64::*;
    let mut masks = Masks { word: 0, high: 0 };
    for half in 0..2 {
        // SAFETY: both halves of 32 bytes lie within the block; the load needs no alignment.
        let bytes = unsafe { _mm256_loadu_si256(block.as_ptr().add(half * 32).cast()) };
        let at_most = |x, limit: i8| {
            let limit = _mm256_set1_epi8(limit);
            _mm256_cmpeq_epi8(_mm256_min_epu8(x, limit), x)
        };
        let lower = _mm256_or_si256(bytes, _mm256_set1_epi8(0x20));
        let letter = at_most(_mm256_sub_epi8(lower, _mm256_set1_epi8(b'a' as i8)), 25);
        let digit = at_most(_mm256_sub_epi8(bytes, _mm256_set1_epi8(b'0' as i8)), 9);
        let underscore = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(b'_' as i8));
        let word = _mm256_or_si256(_mm256_or_si256(letter, digit), underscore);
        let shift = half * 32;
        masks.word |= u64::from(_mm256_movemask_epi8(word) as u32) << shift;
        masks.high |= u64::from(_mm256_movemask_epi8(bytes) as u32) << shift;
    }
    masks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_classified_alike_by_all_versions() {
        for start in (0..256).step_by(BLOCK) {
            let block: [u8; BLOCK] = std::array::from_fn(|i| (start + i) as u8);
            let masks = Portable::masks(&block);
            for (i, &byte) in block.iter().enumerate() {
                let word = (byte as char).is_ascii_alphanumeric() || byte == b'_';
                assert_eq!(masks.word >> i & 1 == 1, word, "byte {byte}");
                assert_eq!(masks.high >> i & 1 == 1, !byte.is_ascii(), "byte {byte}");
            }
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                assert_eq!(Avx2::masks(&block), masks);
            }
        }
    }
}

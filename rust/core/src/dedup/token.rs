//! Hashes of words and of shingles.
//!
//! A word is folded to lower case by setting bit 5 of its ASCII bytes: among letters, digits and the
//! underscore no two become the same by that unless they differ in case alone. A word of up to 8
//! bytes is one 64-bit number; it is multiplied by an odd constant to 128 bits, so two such words
//! never share both halves of their hash.

/// Set in every byte of a folded ASCII word.
const FOLD: u64 = 0x2020_2020_2020_2020;
const HIGH: u64 = 0x8080_8080_8080_8080;

const K0: u64 = 0xa076_1d64_78bd_642f;
const K1: u64 = 0xe703_7ed1_a0b4_28db;
const K2: u64 = 0x8ebc_6af0_9c88_c6e3;
const K3: u64 = 0x5899_65cc_7537_4cc3;
const CHARACTER: u64 = 0x1d8e_4e27_c47d_124f;
/// Odd, so that its powers are invertible modulo 2^64.
pub const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The two halves of a token's 128-bit hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub low: u64,
    pub high: u64,
}

impl Token {
    #[inline(always)]
    fn product(a: u64, b: u64) -> Self {
        let product = u128::from(a) * u128::from(b);
        Self { low: product as u64, high: (product >> 64) as u64 }
    }

    /// A character as a token of its own, for scripts without spaces.
    #[inline(always)]
    pub fn character(scalar: char) -> Self {
        Self::product(u64::from(u32::from(scalar)) ^ K2, CHARACTER)
    }

    /// What goes into shingles.
    #[inline(always)]
    pub fn fold(self) -> u64 {
        self.low ^ self.high
    }
}

#[inline(always)]
fn load8(text: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(text[at..at + 8].try_into().expect("8 bytes"))
}

/// The hash of the word `text[start..end]`, or None if it has a byte beyond ASCII.
#[inline(always)]
pub fn ascii_word(text: &[u8], start: usize, end: usize) -> Option<Token> {
    let (token, any) = word(text, start, end, FOLD);
    (any & HIGH == 0).then_some(token)
}

/// The hash of a word that is already folded, its ASCII bytes with bit 5 set.
pub fn folded_word(word_bytes: &[u8]) -> Token {
    word(word_bytes, 0, word_bytes.len(), 0).0
}

/// Also returns the bitwise or of all bytes, for the test for ASCII.
#[inline(always)]
fn word(text: &[u8], start: usize, end: usize, fold: u64) -> (Token, u64) {
    let length = end - start;
    if length <= 8 {
        let mask = u64::MAX >> (64 - 8 * length);
        let bytes = if start + 8 <= text.len() {
            load8(text, start) & mask
        } else {
            let mut padded = [0; 8];
            padded[..length].copy_from_slice(&text[start..end]);
            u64::from_le_bytes(padded)
        };
        return (Token::product((bytes | fold & mask) ^ K0, K1), bytes);
    }
    let last = load8(text, end - 8);
    if length <= 16 {
        let first = load8(text, start);
        return (Token::product((first | fold) ^ K0, (last | fold) ^ K2), first | last);
    }
    let mut state = K3 ^ length as u64;
    let mut any = last;
    for at in (start..end - 8).step_by(8) {
        let bytes = load8(text, at);
        any |= bytes;
        state = Token::product(state ^ (bytes | fold), K1).fold();
    }
    (Token::product(state ^ K0, (last | fold) ^ K2), any)
}

/// A bijection that spreads every input bit over all output bits (constants: Pelle Evensen's
/// "moremur").
#[inline(always)]
pub fn mix(mut x: u64) -> u64 {
    x ^= x >> 27;
    x = x.wrapping_mul(0x3c79_ac49_2ba7_b653);
    x ^= x >> 33;
    x = x.wrapping_mul(0x1c69_b3f7_4ac4_ae35);
    x ^ x >> 27
}

/// Replaces the tokens by the hashes of their runs of `n`: `mix(sum of token[i + j] * BASE^(n-1-j))`
/// modulo 2^64. Fewer than `n` tokens leave nothing.
pub fn shingles_in_place(tokens: &mut Vec<u64>, n: usize) {
    let Some(count) = (tokens.len() + 1).checked_sub(n).filter(|&count| count > 0) else {
        tokens.clear();
        return;
    };
    if n == 5 {
        let power = [BASE.wrapping_pow(4), BASE.wrapping_pow(3), BASE.wrapping_pow(2), BASE];
        for i in 0..count {
            let window: &[u64; 5] = tokens[i..i + 5].try_into().expect("5 tokens");
            let mut sum = window[4];
            for (token, power) in window.iter().zip(power) {
                sum = sum.wrapping_add(token.wrapping_mul(power));
            }
            tokens[i] = mix(sum);
        }
    } else {
        let leaving = BASE.wrapping_pow(n as u32);
        let roll = |sum: u64, token: u64| sum.wrapping_mul(BASE).wrapping_add(token);
        let mut sum = tokens[..n].iter().fold(0, |sum, &token| roll(sum, token));
        for i in 0..count {
            let first = tokens[i];
            tokens[i] = mix(sum);
            if i + 1 < count {
                sum = roll(sum, tokens[i + n]).wrapping_sub(first.wrapping_mul(leaving));
            }
        }
    }
    tokens.truncate(count);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn direct(tokens: &[u64], n: usize) -> Vec<u64> {
        let sum = |run: &[u64]| {
            run.iter().fold(0u64, |sum, &token| sum.wrapping_mul(BASE).wrapping_add(token))
        };
        tokens.windows(n).map(|run| mix(sum(run))).collect()
    }

    proptest! {
        #[test]
        fn shingles_are_hashes_of_runs(
            tokens in prop::collection::vec(any::<u64>(), 0..40),
            n in 1usize..8,
        ) {
            let mut shingles = tokens.clone();
            shingles_in_place(&mut shingles, n);
            prop_assert_eq!(shingles, direct(&tokens, n));
        }

        #[test]
        fn a_word_hashes_alike_wherever_it_stands(
            word in "[a-zA-Z0-9_]{1,40}", before in "[ ]{0,20}", after in "[ ]{0,20}",
        ) {
            let text = format!("{before}{word}{after}");
            let found = ascii_word(text.as_bytes(), before.len(), before.len() + word.len());
            let folded: Vec<u8> = word.bytes().map(|byte| byte | 0x20).collect();
            prop_assert_eq!(found, Some(folded_word(&folded)));
            let upper = word.to_uppercase();
            prop_assert_eq!(ascii_word(upper.as_bytes(), 0, upper.len()), found);
        }
    }

    #[test]
    fn a_byte_beyond_ascii_is_noticed_anywhere() {
        for length in 1..40 {
            for at in 0..length {
                let mut word = vec![b'a'; length];
                word[at] = 0xc3;
                assert_eq!(ascii_word(&word, 0, length), None);
            }
        }
    }
}

//! A text as deduplication sees it: normalization, its exact hash, and its shingles.
//!
//! Normalization, version 1:
//! - A word is a maximal run of characters that are alphabetic, numeric or `_`. Everything else
//!   (punctuation, white space, symbols, bytes that are not UTF-8) only separates.
//! - Letters are folded as `lower(upper(c))` by Unicode's full mappings, so that `STRASSE`,
//!   `straße` and `Straße`, or `ΣΑΣ` and `σας`, are the same word.
//! - Where more than half of the word characters belong to scripts that are written without spaces
//!   (Han, kana, Thai, Lao, Tibetan, Myanmar, Khmer), each character is a token instead of each
//!   word.
//! - A text with fewer tokens than a shingle has no shingle that could vouch for it. It is compared
//!   as a whole with its punctuation (`c++` is not `c#`), white space collapsed.
//! - A text of white space alone is empty and equals nothing.

use xxhash_rust::xxh3::xxh3_128;

use super::block::{BLOCK, Classify, Portable};
use super::token::{self, Token};

/// Changes whenever the same text may give another hash.
pub const NORMALIZATION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// White space only.
    Empty,
    /// Fewer tokens than a shingle.
    Short,
    Words,
    /// Each character is a token.
    Characters,
}

impl Kind {
    /// The kind of which `code` is the number, as `kind as u8` gives it.
    pub fn from_code(code: u8) -> Self {
        [Self::Empty, Self::Short, Self::Words, Self::Characters][usize::from(code) & 3]
    }
}

/// What a text is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Words, or characters where a script has no spaces.
    Auto,
    /// Always characters.
    Character,
}

/// Lengths of shingles, in words and in characters; at least 1 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shingling {
    pub words: usize,
    pub characters: usize,
    pub unit: Unit,
}

/// Reads texts one after the other, reusing its buffers.
pub struct Reader {
    shingling: Shingling,
    tokens: Vec<u64>,
    word: Vec<u8>,
    exact: ExactState,
    characters: u64,
    unspaced: u64,
}

/// What a text is, beside its shingles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub kind: Kind,
    /// 128-bit hash of the normalized text.
    pub exact: u128,
    /// Tokens, repetitions included.
    pub length: u32,
}

impl Summary {
    /// Of a text that is not looked at.
    pub const EMPTY: Self = Self { kind: Kind::Empty, exact: 0, length: 0 };
}

#[derive(Clone, Copy)]
struct ExactState {
    low: u64,
    high: u64,
}

impl ExactState {
    const START: Self = Self { low: 0x2d35_8dcc_aa6c_78a5, high: 0x8bb8_4b93_962e_acc9 };

    /// A bijection of the state for any token, and of each half of the token for any state: texts
    /// that differ in one token differ in their state unless both halves of its hash collide.
    #[inline(always)]
    fn push(&mut self, token: Token) {
        self.low = (self.low.rotate_left(23) ^ token.low).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.high = (self.high.rotate_left(41) ^ token.high).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    fn finish(self, kind: Kind, length: u64) -> u128 {
        let tag = length ^ (kind as u64) << 60;
        let low = token::mix(self.low ^ tag);
        let high = token::mix(self.high.wrapping_add(tag));
        u128::from(low) << 64 | u128::from(high)
    }
}

impl Reader {
    pub fn new(shingling: Shingling) -> Self {
        Self {
            shingling,
            tokens: Vec::new(),
            word: Vec::new(),
            exact: ExactState::START,
            characters: 0,
            unspaced: 0,
        }
    }

    /// Reads `text` (UTF-8; other bytes separate words) and returns its summary with its shingle
    /// hashes in order of appearance, repetitions included.
    pub fn read(&mut self, text: &[u8]) -> (Summary, &mut Vec<u64>) {
        self.start();
        let mut kind = Kind::Words;
        if self.shingling.unit == Unit::Auto {
            self.words(text);
        }
        if self.shingling.unit == Unit::Character || self.unspaced * 2 > self.characters {
            kind = Kind::Characters;
            self.start();
            for character in characters(text) {
                for folded in fold(character).filter(|&c| is_word(c)) {
                    self.push(Token::character(folded));
                }
            }
        }
        let n = match kind {
            Kind::Words => self.shingling.words,
            _ => self.shingling.characters,
        };
        let length = self.tokens.len();
        let exact = if length < n {
            self.tokens.clear();
            self.collapse(text);
            kind = if self.word.is_empty() { Kind::Empty } else { Kind::Short };
            xxh3_128(&self.word)
        } else {
            token::shingles_in_place(&mut self.tokens, n);
            self.exact.finish(kind, length as u64)
        };
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        (Summary { kind, exact, length }, &mut self.tokens)
    }

    /// Gives back the memory that an unusually long text left in the buffers.
    pub fn shrink(&mut self, tokens: usize) {
        if self.tokens.capacity() > tokens {
            self.tokens = Vec::new();
        }
        if self.word.capacity() > tokens {
            self.word = Vec::new();
        }
    }

    fn start(&mut self) {
        self.tokens.clear();
        self.exact = ExactState::START;
        self.characters = 0;
        self.unspaced = 0;
    }

    #[inline(always)]
    fn push(&mut self, token: Token) {
        self.exact.push(token);
        self.tokens.push(token.fold());
    }

    fn words(&mut self, text: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the machine has the features that the function enables.
            unsafe { self.words_avx2(text) };
            return;
        }
        self.words_by::<Portable>(text);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn words_avx2(&mut self, text: &[u8]) {
        self.words_by::<super::block::Avx2>(text);
    }

    #[inline(always)]
    fn words_by<C: Classify>(&mut self, text: &[u8]) {
        // Bytes beyond ASCII count as word bytes here; `run` looks at the words that have them.
        let mut start = 0;
        let mut inside = 0;
        let mut at = 0;
        let mut padded = [0; BLOCK];
        while at < text.len() {
            let block = match text[at..].first_chunk::<BLOCK>() {
                Some(block) => block,
                None => {
                    let rest = &text[at..];
                    padded[..rest.len()].copy_from_slice(rest);
                    padded[rest.len()..].fill(0);
                    &padded
                }
            };
            let masks = C::masks(block);
            let word = masks.word | masks.high;
            let mut edges = word ^ (word << 1 | inside);
            if inside == 0 {
                // Edges come in pairs, the last one perhaps without its end.
                while edges != 0 {
                    let from = at + edges.trailing_zeros() as usize;
                    edges &= edges - 1;
                    if edges == 0 {
                        start = from;
                        break;
                    }
                    let to = at + edges.trailing_zeros() as usize;
                    edges &= edges - 1;
                    self.run(text, from, to);
                }
            } else {
                while edges != 0 {
                    let to = at + edges.trailing_zeros() as usize;
                    edges &= edges - 1;
                    self.run(text, start, to);
                    if edges == 0 {
                        break;
                    }
                    start = at + edges.trailing_zeros() as usize;
                    edges &= edges - 1;
                }
            }
            inside = word >> 63;
            at += BLOCK;
        }
        if inside == 1 {
            self.run(text, start, text.len());
        }
    }

    #[inline(always)]
    fn run(&mut self, text: &[u8], start: usize, end: usize) {
        if let Some(token) = token::ascii_word(text, start, end) {
            self.characters += (end - start) as u64;
            self.push(token);
        } else {
            self.mixed_run(&text[start..end]);
        }
    }

    /// A run with characters beyond ASCII, some of which may separate words.
    #[cold]
    fn mixed_run(&mut self, run: &[u8]) {
        self.word.clear();
        for character in characters(run) {
            if is_word(character) {
                self.characters += 1;
                self.unspaced += u64::from(is_unspaced(character));
                for folded in fold(character) {
                    push_folded(&mut self.word, folded);
                }
            } else {
                self.end_mixed_word();
            }
        }
        self.end_mixed_word();
    }

    fn end_mixed_word(&mut self) {
        if !self.word.is_empty() {
            let token = token::folded_word(&self.word);
            self.push(token);
            self.word.clear();
        }
    }

    /// Leaves the folded text with single spaces in `self.word`.
    fn collapse(&mut self, text: &[u8]) {
        self.word.clear();
        let mut space = false;
        for character in characters(text) {
            if character.is_whitespace() {
                space = true;
                continue;
            }
            if space && !self.word.is_empty() {
                self.word.push(b' ');
            }
            space = false;
            for folded in fold(character) {
                self.word.extend_from_slice(folded.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}

fn push_folded(word: &mut Vec<u8>, character: char) {
    if character.is_ascii() {
        word.push(character as u8 | 0x20);
    } else {
        word.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// The characters of `text`; U+FFFD for what is not UTF-8.
pub fn characters(text: &[u8]) -> impl Iterator<Item = char> + '_ {
    text.utf8_chunks().flat_map(|chunk| {
        chunk
            .valid()
            .chars()
            .chain((!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER))
    })
}

pub fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

pub fn fold(character: char) -> impl Iterator<Item = char> {
    character.to_uppercase().flat_map(char::to_lowercase)
}

/// Whether words of the character's script are written without spaces between them.
pub fn is_unspaced(character: char) -> bool {
    matches!(u32::from(character),
        0x0e00..=0x0fff     // Thai, Lao, Tibetan
        | 0x1000..=0x109f   // Myanmar
        | 0x1780..=0x17ff   // Khmer
        | 0x3005..=0x3007 | 0x3040..=0x30ff | 0x31f0..=0x31ff | 0xff66..=0xff9f // kana
        | 0x3400..=0x4dbf | 0x4e00..=0x9fff | 0xf900..=0xfaff | 0x2_0000..=0x3_ffff // Han
    )
}

/// The normalized text: folded tokens, words with one space between them, characters without.
/// What shingles mean, written out; the fast path never makes it.
pub fn normalize(text: &[u8], unit: Unit) -> (Kind, Vec<String>) {
    let mut words = vec![String::new()];
    let (mut all, mut unspaced) = (0u64, 0u64);
    for character in characters(text) {
        if is_word(character) {
            all += 1;
            unspaced += u64::from(is_unspaced(character));
            words.last_mut().expect("never empty").extend(fold(character));
        } else if words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
    }
    words.retain(|word| !word.is_empty());
    if unit == Unit::Character || unspaced * 2 > all {
        let characters = words.concat();
        let tokens = characters.chars().filter(|&c| is_word(c)).map(String::from).collect();
        return (Kind::Characters, tokens);
    }
    (Kind::Words, words)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIVE: Shingling = Shingling { words: 5, characters: 5, unit: Unit::Auto };

    fn read(text: &str) -> (Summary, Vec<u64>) {
        let mut reader = Reader::new(FIVE);
        let (summary, shingles) = reader.read(text.as_bytes());
        (summary, shingles.clone())
    }

    /// The same by way of the written-out tokens.
    fn slow(text: &[u8]) -> Vec<u64> {
        let (kind, tokens) = normalize(text, Unit::Auto);
        let mut hashes: Vec<u64> = tokens
            .iter()
            .map(|token| {
                if kind == Kind::Characters {
                    return Token::character(token.chars().next().unwrap()).fold();
                }
                let mut bytes = Vec::new();
                token.chars().for_each(|c| push_folded(&mut bytes, c));
                token::folded_word(&bytes).fold()
            })
            .collect();
        token::shingles_in_place(&mut hashes, 5);
        hashes
    }

    proptest! {
        #[test]
        fn blocks_see_the_words_that_the_definition_names(
            text in "([a-zA-Z0-9_]{1,12}|[ .,\n—é。ßΣς\u{301}]|[字あก]){0,200}",
        ) {
            prop_assert_eq!(read(&text).1, slow(text.as_bytes()));
            let mut reader = Reader::new(FIVE);
            reader.words_by::<Portable>(text.as_bytes());
            let portable = std::mem::take(&mut reader.tokens);
            reader.start();
            reader.words(text.as_bytes());
            prop_assert_eq!(&reader.tokens, &portable);
        }

        #[test]
        fn any_bytes_are_a_text(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = Reader::new(FIVE);
            let shingles = reader.read(&bytes).1.clone();
            prop_assert_eq!(shingles, slow(&bytes));
        }

        #[test]
        fn case_punctuation_and_space_do_not_matter(words in prop::collection::vec("[a-zé]{1,9}", 5..60)) {
            let plain = words.join(" ");
            let loud = words.join(" -- \n").to_uppercase() + "!";
            prop_assert_eq!(read(&plain), read(&loud));
        }

        #[test]
        fn another_word_is_another_text(
            words in prop::collection::vec("[a-z]{1,9}", 5..60), at in any::<prop::sample::Index>(),
        ) {
            let mut other = words.clone();
            other[at.index(words.len())].push('x');
            prop_assert_ne!(read(&words.join(" ")).0.exact, read(&other.join(" ")).0.exact);
        }
    }

    #[test]
    fn short_texts_keep_their_punctuation() {
        assert_eq!(read("c++").0.kind, Kind::Short);
        assert_ne!(read("c++").0.exact, read("c#").0.exact);
        assert_eq!(read(" C++ \n").0.exact, read("c++").0.exact);
        assert_ne!(read("---").0.exact, read("!!!").0.exact);
        assert_ne!(read("a b").0.exact, read("ab").0.exact);
    }

    #[test]
    fn white_space_is_empty() {
        for text in ["", " ", "\n\t\u{3000}"] {
            assert_eq!(read(text).0.kind, Kind::Empty);
        }
        assert_eq!(read("\0").0.kind, Kind::Short);
    }

    #[test]
    fn scripts_without_spaces_are_cut_into_characters() {
        let (summary, shingles) = read("我们在城市里看到了很多树木。");
        assert_eq!((summary.kind, summary.length, shingles.len()), (Kind::Characters, 13, 9));
        assert_eq!(read("one two three four five 字").0.kind, Kind::Words);
    }

    #[test]
    fn folding_is_unicode_aware() {
        assert_eq!(read("STRASSE ΣΑΣ a b c").0, read("straße σας A B C").0);
    }
}

//! What the quality rules look at: lengths, symbols, lines and repetition of one document.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::words::{for_each_word, prefix};

/// Bytes of a document that are measured.
const MAX_BYTES: usize = 1 << 18;
/// Gopher's stop words (Rae et al. 2021, appendix A.1.1).
const STOP_WORDS: [&str; 8] = ["the", "be", "to", "of", "and", "that", "have", "with"];
const CODE_SYMBOLS: &str = "(){}[]=;<>_|\\+&*/";
const SHORT_LINE_CHARACTERS: usize = 30;

/// Counts and fractions (0 to 1) of one document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measures {
    pub words: f64,
    /// Characters per word.
    pub word_length: f64,
    /// Fraction of words with a letter in them.
    pub alphabetic_words: f64,
    /// Hash signs and ellipses per word.
    pub symbols_per_word: f64,
    /// How many different stop words occur.
    pub stop_words: f64,
    /// Fraction of words in scripts that are written without spaces.
    pub spaceless_words: f64,
    /// Fractions of the characters that are not white space.
    pub letters: f64,
    pub code_symbols: f64,
    pub curly_brackets: f64,
    /// Characters replaced for malformed input, per character.
    pub replacements: f64,
    /// Fractions of the lines that are not blank.
    pub bullet_lines: f64,
    pub ellipsis_lines: f64,
    pub terminated_lines: f64,
    pub short_lines: f64,
    /// Characters per line, and of the longest.
    pub line_length: f64,
    pub longest_line: f64,
    /// Repeats of an earlier line or paragraph: fraction of them, and of their characters.
    pub duplicate_lines: f64,
    pub duplicate_line_characters: f64,
    pub duplicate_paragraphs: f64,
    /// Fraction of word characters in the most frequent word n-gram, n = 2, 3, 4.
    pub top_ngrams: [f64; 3],
    /// Fraction of word characters in word n-grams that occur more than once, n = 5, 10.
    pub duplicate_ngrams: [f64; 2],
    pub lorem_ipsum: bool,
}

/// Measures the first 256 KiB of `text`.
pub fn measure(text: &str) -> Measures {
    let text = prefix(text, MAX_BYTES);
    let mut m = Measures::default();
    measure_words(text, &mut m);
    measure_characters(text, &mut m);
    measure_lines(text, &mut m);
    m
}

fn measure_words(text: &str, m: &mut Measures) {
    let mut words: Vec<(u64, u32)> = Vec::new();
    let mut stop_words = [false; STOP_WORDS.len()];
    let (mut characters, mut alphabetic, mut spaceless) = (0usize, 0usize, 0usize);
    let mut previous_was_lorem = false;
    for_each_word(text, |word, _| {
        let length = word.chars().count();
        characters += length;
        alphabetic += usize::from(word.chars().any(char::is_alphabetic));
        spaceless += usize::from(length == 1 && !word.is_ascii());
        if let Some(index) = STOP_WORDS.iter().position(|&stop| stop == word) {
            stop_words[index] = true;
        }
        m.lorem_ipsum |= previous_was_lorem && word == "ipsum";
        previous_was_lorem = word == "lorem";
        words.push((xxh3_64(word.as_bytes()), length as u32));
    });
    let n = words.len();
    m.words = n as f64;
    m.word_length = ratio(characters, n);
    m.alphabetic_words = ratio(alphabetic, n);
    m.spaceless_words = ratio(spaceless, n);
    m.stop_words = stop_words.iter().filter(|&&found| found).count() as f64;
    let symbols = text.matches(['#', '…']).count() + text.matches("...").count();
    m.symbols_per_word = ratio(symbols, n);
    let mut grams = Vec::with_capacity(n);
    for (out, size) in m.top_ngrams.iter_mut().zip([2, 3, 4]) {
        ngrams(&words, size, &mut grams);
        let top = grams
            .chunk_by(|a, b| a.0 == b.0)
            .filter(|run| run.len() > 1)
            .map(|run| run.len() * span(&words, run[0].1 as usize, size))
            .max();
        *out = ratio(top.unwrap_or(0), characters).min(1.0);
    }
    for (out, size) in m.duplicate_ngrams.iter_mut().zip([5, 10]) {
        ngrams(&words, size, &mut grams);
        let mut covered = vec![false; n];
        for run in grams.chunk_by(|a, b| a.0 == b.0).filter(|run| run.len() > 1) {
            for &(_, start) in run {
                covered[start as usize..start as usize + size].fill(true);
            }
        }
        let repeated: usize =
            words.iter().zip(&covered).filter(|(_, hit)| **hit).map(|(w, _)| w.1 as usize).sum();
        *out = ratio(repeated, characters);
    }
}

/// Fills `grams` with (hash, start) of every n-gram, sorted.
fn ngrams(words: &[(u64, u32)], size: usize, grams: &mut Vec<(u64, u32)>) {
    grams.clear();
    grams.extend(words.windows(size).enumerate().map(|(start, window)| {
        let hash = window.iter().fold(size as u64, |hash, word| {
            (hash.rotate_left(23) ^ word.0).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        (hash, start as u32)
    }));
    grams.sort_unstable();
}

fn span(words: &[(u64, u32)], start: usize, size: usize) -> usize {
    words[start..start + size].iter().map(|word| word.1 as usize).sum()
}

fn measure_characters(text: &str, m: &mut Measures) {
    let (mut visible, mut letters, mut symbols, mut curly, mut replaced) = (0, 0, 0, 0, 0);
    for character in text.chars().filter(|c| !c.is_whitespace()) {
        visible += 1;
        letters += usize::from(character.is_alphabetic());
        symbols += usize::from(character.is_ascii() && CODE_SYMBOLS.contains(character));
        curly += usize::from(matches!(character, '{' | '}'));
        replaced += usize::from(character == '\u{FFFD}');
    }
    m.letters = ratio(letters, visible);
    m.code_symbols = ratio(symbols, visible);
    m.curly_brackets = ratio(curly, visible);
    m.replacements = ratio(replaced, visible);
}

fn measure_lines(text: &str, m: &mut Measures) {
    let (mut bullets, mut ellipses, mut terminated, mut short) = (0, 0, 0, 0);
    let (mut characters, mut longest) = (0, 0);
    let mut lines: Vec<(u64, u32)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let length = line.chars().count();
        characters += length;
        longest = longest.max(length);
        bullets += usize::from(line.starts_with(['-', '*', '•', '‣', '▪', '◦', '–']));
        ellipses += usize::from(line.ends_with("...") || line.ends_with('…'));
        terminated +=
            usize::from(line.ends_with(['.', '!', '?', '"', '\'', ':', '”', '。', '！', '？']));
        short += usize::from(length < SHORT_LINE_CHARACTERS);
        lines.push((xxh3_64(line.as_bytes()), length as u32));
    }
    let n = lines.len();
    m.bullet_lines = ratio(bullets, n);
    m.ellipsis_lines = ratio(ellipses, n);
    m.terminated_lines = ratio(terminated, n);
    m.short_lines = ratio(short, n);
    m.line_length = ratio(characters, n);
    m.longest_line = longest as f64;
    let (repeats, repeated) = repeats(&mut lines);
    m.duplicate_lines = ratio(repeats, n);
    m.duplicate_line_characters = ratio(repeated, characters);
    let mut paragraphs: Vec<(u64, u32)> = text
        .split("\n\n")
        .map(str::trim)
        .filter(|paragraph| !paragraph.is_empty())
        .map(|paragraph| (xxh3_64_with_seed(paragraph.as_bytes(), 1), 0))
        .collect();
    let n = paragraphs.len();
    m.duplicate_paragraphs = ratio(self::repeats(&mut paragraphs).0, n);
}

/// How many items repeat an earlier one, and their characters.
fn repeats(items: &mut [(u64, u32)]) -> (usize, usize) {
    items.sort_unstable();
    items
        .chunk_by(|a, b| a.0 == b.0)
        .map(|run| (run.len() - 1, (run.len() - 1) * run[0].1 as usize))
        .fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn words_and_lines_are_counted() {
        let m = measure("- The cat.\n\n- have 12 #\nshort...\n");
        assert_eq!((m.words, m.stop_words), (5.0, 2.0));
        assert!(near(m.word_length, 17.0 / 5.0));
        assert!(near(m.alphabetic_words, 4.0 / 5.0));
        assert!(near(m.symbols_per_word, 2.0 / 5.0));
        assert!(near(m.bullet_lines, 2.0 / 3.0));
        assert!(near(m.ellipsis_lines, 1.0 / 3.0));
        assert!(near(m.terminated_lines, 2.0 / 3.0));
        assert_eq!((m.short_lines, m.longest_line), (1.0, 11.0));
    }

    #[test]
    fn repetition_is_measured_in_lines_paragraphs_and_ngrams() {
        let m = measure("a b c d e\n\na b c d e\n\nx\nx");
        assert!(near(m.duplicate_lines, 2.0 / 4.0));
        assert!(near(m.duplicate_line_characters, 10.0 / 20.0));
        assert!(near(m.duplicate_paragraphs, 1.0 / 3.0));
        assert!(near(m.top_ngrams[0], 4.0 / 12.0));
        assert!(near(m.duplicate_ngrams[0], 10.0 / 12.0));
        assert_eq!(m.duplicate_ngrams[1], 0.0);
    }

    #[test]
    fn nothing_to_measure_is_all_zero() {
        assert_eq!(measure(""), Measures::default());
        assert_eq!(measure(" \n\n\t"), Measures::default());
        assert!(measure("Lorem ipsum dolor").lorem_ipsum);
    }
}

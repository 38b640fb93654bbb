//! Words as the embedding, the term tables and the decontamination see them.
//!
//! A word is a maximal run of letters and digits, lower-cased. Scripts written without spaces
//! (Han, Kana, Thai, Lao, Khmer, Myanmar) give one word per character, so that a line of Chinese
//! is many words and not one.

use std::ops::Range;

/// Calls `found` with every word of `text` in order, and with the range of bytes that it stands in.
pub fn for_each_word(text: &str, mut found: impl FnMut(&str, Range<usize>)) {
    let mut word = String::with_capacity(32);
    let mut start = 0;
    for (at, character) in text.char_indices() {
        let spaceless = !character.is_ascii() && is_spaceless(character);
        let inside = !spaceless && character.is_alphanumeric();
        if !inside && !word.is_empty() {
            found(&word, start..at);
            word.clear();
        }
        if spaceless {
            let end = at + character.len_utf8();
            found(&text[at..end], at..end);
        } else if inside {
            if word.is_empty() {
                start = at;
            }
            if character.is_ascii() {
                word.push(character.to_ascii_lowercase());
            } else {
                word.extend(character.to_lowercase());
            }
        }
    }
    if !word.is_empty() {
        found(&word, start..text.len());
    }
}

/// Whether words of this character's script are written without spaces between them.
fn is_spaceless(character: char) -> bool {
    matches!(u32::from(character),
        0x0E00..=0x0EFF // Thai, Lao
        | 0x1000..=0x109F // Myanmar
        | 0x1780..=0x17FF // Khmer
        | 0x3040..=0x30FF // Hiragana, Katakana
        | 0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF // Han
        | 0x20000..=0x323AF) // Han, supplementary planes
        && character.is_alphanumeric()
}

/// The longest prefix of `text` of at most `bytes` bytes that ends between characters.
pub fn prefix(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let mut end = bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    fn words(text: &str) -> Vec<String> {
        let mut out = Vec::new();
        super::for_each_word(text, |word, _| out.push(word.to_owned()));
        out
    }

    #[test]
    fn words_are_lowercase_runs_of_letters_and_digits() {
        assert_eq!(words("Hello, WORLD_2 naïve Éa"), ["hello", "world", "2", "naïve", "éa"]);
        assert_eq!(words("  \n\t"), Vec::<String>::new());
    }

    #[test]
    fn scripts_without_spaces_give_one_word_per_character() {
        assert_eq!(words("你好,ab世"), ["你", "好", "ab", "世"]);
    }

    #[test]
    fn a_prefix_never_cuts_a_character() {
        assert_eq!(super::prefix("aé", 2), "a");
        assert_eq!(super::prefix("aé", 3), "aé");
        assert_eq!(super::prefix("é", 1), "");
    }
}

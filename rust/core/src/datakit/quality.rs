//! A quality score from published filter rules, graded instead of cut.
//!
//! Each rule turns one measure into a credit between 0 and 1 that falls linearly from `best` to
//! `worst`; the score is the weighted mean of the credits that apply to the document's kind. The
//! published threshold of a rule is its `limit`: which rules a document breaks is kept as bits, so
//! that a report can say why a score is low. Sources: Gopher (Rae et al. 2021, appendix A.1), C4
//! (Raffel et al. 2020, section 2.2), FineWeb (Penedo et al. 2024, section 3.6), Codex (Chen et al.
//! 2021, section 3.1).

use rayon::prelude::*;

use super::measure::{Measures, measure};
use crate::Result;
use crate::threads::with_threads;

/// What kind of content a document is; thresholds of buckets are set per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Prose = 0,
    Code = 1,
    /// Tables, numbers, encoded data: less than half of the visible characters are letters.
    Data = 2,
}

pub const KINDS: [&str; 3] = ["prose", "code", "data"];

/// Below this share of letters among visible characters a text is data.
const DATA_LETTERS: f64 = 0.5;
/// From this share of code symbols among visible characters a text is code.
const CODE_SYMBOLS: f64 = 0.05;

pub struct Rule {
    pub name: &'static str,
    pub source: &'static str,
    weight: f64,
    measure: fn(&Measures) -> f64,
    /// Value with no credit, and with full credit.
    worst: f64,
    best: f64,
    /// The published threshold.
    limit: f64,
    kinds: &'static [Kind],
}

use Kind::{Code, Data, Prose};
const ALL: &[Kind] = &[Prose, Code, Data];

const fn rule(
    name: &'static str,
    source: &'static str,
    kinds: &'static [Kind],
    weight: f64,
    measure: fn(&Measures) -> f64,
    [worst, best, limit]: [f64; 3],
) -> Rule {
    Rule { name, source, weight, measure, worst, best, limit, kinds }
}

/// All rules; bit `i` of [`Scored::broken`] stands for `RULES[i]`.
#[rustfmt::skip]
pub const RULES: [Rule; 24] = [
    rule("words", "Gopher", ALL, 2.0, |m| m.words, [10.0, 200.0, 50.0]),
    rule("words_above", "Gopher", ALL, 0.5, |m| m.words, [200_000.0, 50_000.0, 100_000.0]),
    rule("word_length_below", "Gopher", &[Prose, Code], 1.0, |m| spaced(m, m.word_length, 5.0), [2.0, 4.0, 3.0]),
    rule("word_length_above", "Gopher", &[Prose, Code], 1.0, |m| m.word_length, [12.0, 6.5, 10.0]),
    rule("symbols_per_word", "Gopher", &[Prose], 1.0, |m| m.symbols_per_word, [0.1, 0.0, 0.1]),
    rule("bullet_lines", "Gopher", &[Prose], 0.5, |m| m.bullet_lines, [1.0, 0.3, 0.9]),
    rule("ellipsis_lines", "Gopher", &[Prose], 0.5, |m| m.ellipsis_lines, [0.3, 0.0, 0.3]),
    rule("alphabetic_words", "Gopher", ALL, 1.5, |m| m.alphabetic_words, [0.5, 0.95, 0.8]),
    rule("stop_words", "Gopher", &[Prose], 1.5, |m| spaced(m, m.stop_words, 8.0), [0.0, 5.0, 2.0]),
    rule("duplicate_lines", "Gopher", ALL, 1.0, |m| m.duplicate_lines, [0.5, 0.05, 0.3]),
    rule("duplicate_paragraphs", "Gopher", ALL, 1.0, |m| m.duplicate_paragraphs, [0.3, 0.0, 0.3]),
    rule("top_2_gram", "Gopher", ALL, 0.7, |m| m.top_ngrams[0], [0.2, 0.02, 0.2]),
    rule("top_3_gram", "Gopher", ALL, 0.7, |m| m.top_ngrams[1], [0.18, 0.02, 0.18]),
    rule("top_4_gram", "Gopher", ALL, 0.7, |m| m.top_ngrams[2], [0.16, 0.02, 0.16]),
    rule("duplicate_5_grams", "Gopher", ALL, 1.0, |m| m.duplicate_ngrams[0], [0.45, 0.02, 0.15]),
    rule("duplicate_10_grams", "Gopher", ALL, 1.0, |m| m.duplicate_ngrams[1], [0.3, 0.0, 0.1]),
    rule("lorem_ipsum", "C4", ALL, 1.0, |m| f64::from(u8::from(m.lorem_ipsum)), [1.0, 0.0, 0.5]),
    rule("curly_brackets", "C4", &[Prose], 0.5, |m| m.curly_brackets, [0.01, 0.0, 0.001]),
    rule("terminated_lines", "FineWeb", &[Prose], 1.5, |m| m.terminated_lines, [0.0, 0.6, 0.12]),
    rule("short_lines", "FineWeb", &[Prose], 1.0, |m| m.short_lines, [0.9, 0.2, 0.67]),
    rule("duplicate_line_characters", "FineWeb", ALL, 1.0, |m| m.duplicate_line_characters, [0.3, 0.0, 0.1]),
    rule("line_length", "Codex", &[Code, Data], 1.5, |m| m.line_length, [150.0, 60.0, 100.0]),
    rule("longest_line", "Codex", &[Code, Data], 1.0, |m| m.longest_line, [2000.0, 150.0, 1000.0]),
    rule("replacements", "FineWeb", ALL, 1.0, |m| m.replacements, [0.02, 0.0, 0.01]),
];

/// `value`, or `neutral` for scripts without spaces, to which the rule does not apply.
fn spaced(m: &Measures, value: f64, neutral: f64) -> f64 {
    if m.spaceless_words > 0.3 { neutral } else { value }
}

/// One document's result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// 0 (worst) to 1; 0 for a text without words.
    pub score: f32,
    pub kind: Kind,
    /// Bits of the rules in [`RULES`] whose published threshold is broken.
    pub broken: u32,
}

/// Scores each text on `threads` threads (0: all cores); an absent text scores as an empty one.
pub fn score(texts: &[Option<&str>], threads: usize) -> Result<Vec<Scored>> {
    with_threads(threads, || {
        texts.par_iter().map(|text| score_measures(&measure(text.unwrap_or_default()))).collect()
    })
}

fn score_measures(m: &Measures) -> Scored {
    let kind = if m.letters < DATA_LETTERS {
        Data
    } else if m.code_symbols >= CODE_SYMBOLS {
        Code
    } else {
        Prose
    };
    let (mut credit, mut weight, mut broken) = (0.0, 0.0, 0u32);
    for (bit, rule) in RULES.iter().enumerate().filter(|(_, rule)| rule.kinds.contains(&kind)) {
        let value = (rule.measure)(m);
        credit += rule.weight * ((value - rule.worst) / (rule.best - rule.worst)).clamp(0.0, 1.0);
        weight += rule.weight;
        let rising = rule.best > rule.worst;
        if (rising && value < rule.limit) || (!rising && value > rule.limit) {
            broken |= 1 << bit;
        }
    }
    let score = if m.words == 0.0 { 0.0 } else { (credit / weight) as f32 };
    Scored { score, kind, broken }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSE: &str = "The library gives the reader a short path to the answer.\n\
        It was written by people who have used it, and that shows in the examples.\n\
        To be of use, a page has to say what is done with the result.\n";

    fn one(text: &str) -> Scored {
        score(&[Some(text)], 1).unwrap()[0]
    }

    fn broken(text: &str) -> Vec<&'static str> {
        let bits = one(text).broken;
        RULES.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1).map(|(_, r)| r.name).collect()
    }

    #[test]
    fn kinds_are_told_apart() {
        assert_eq!(one(PROSE).kind, Prose);
        assert_eq!(one("def f(x):\n    return [g(y) for y in x]\n").kind, Code);
        assert_eq!(one("1,2,3\n4,5,6\n7,8,9").kind, Data);
    }

    #[test]
    fn repetition_and_noise_cost_score() {
        let good = one(PROSE).score;
        assert!(good > 0.7, "{good}");
        assert!(one(&"buy now buy now\n".repeat(40)).score < good - 0.2);
        assert!(one("ok").score < good - 0.1);
        assert_eq!(one("").score, 0.0);
        assert_eq!(one(" \n .. ").score, 0.0);
    }

    #[test]
    fn broken_rules_are_named() {
        assert_eq!(broken(PROSE), ["words"]);
        assert!(broken(&format!("{PROSE}{PROSE}")).contains(&"duplicate_lines"));
        assert!(broken(&format!("{PROSE} lorem ipsum")).contains(&"lorem_ipsum"));
    }

    #[test]
    fn scripts_without_spaces_are_not_punished_for_it() {
        let chinese = "这本书讲述了一个人在山中生活的故事。他每天早上起来看日出。\n".to_owned()
            + "后来他遇到了许多朋友，大家一起建造了一座小屋。\n";
        let found = broken(&chinese);
        assert!(!found.contains(&"stop_words") && !found.contains(&"word_length_below"));
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let texts: Vec<_> = (0..40).map(|i| Some(&PROSE[..20 + i])).collect();
        assert_eq!(score(&texts, 1).unwrap(), score(&texts, 3).unwrap());
    }
}

//! Lexical embedding: hashed word n-grams with sublinear counts, without a model or a download.
//!
//! A document's features are its words and pairs of neighbouring words. Feature `f` that occurs
//! `n` times weighs `1 + ln n` (sublinear term frequency: Manning, Raghavan and Schütze 2008,
//! section 6.4.1) and adds that weight, with signs, to [`PROJECTIONS`] of the `D` dimensions that
//! its hash names: a sparse Johnson-Lindenstrauss projection (Weinberger et al. 2009, Kane and
//! Nelson 2014), so that inner products of documents are kept in expectation. The vector is scaled
//! to unit length and stored as int8 with one scale.

use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use crate::threads::with_threads;
use crate::{Error, Result};

use super::random::mix;
use super::words::{for_each_word, prefix};

/// Dimensions that each feature touches.
const PROJECTIONS: usize = 4;
/// Added between two projections of one feature: any odd constant (here SplitMix64's).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes of a document that are read: more would not change its topic.
const MAX_BYTES: usize = 1 << 18;

/// Row-major int8 vectors `[documents, dimensions]` and the scale of each row: value = int8 * scale.
#[derive(Debug, PartialEq)]
pub struct Quantized {
    pub values: Vec<i8>,
    pub scales: Vec<f32>,
}

/// Embeds `texts` into `dimensions` dimensions on `threads` threads (0: all cores). An absent text
/// or one without words is the zero vector with scale 0.
pub fn embed(texts: &[Option<&str>], dimensions: usize, threads: usize) -> Result<Quantized> {
    if dimensions == 0 || dimensions > 1 << 14 {
        return Err(Error::invalid(format!("dimensions = {dimensions}: expected 1 to 16384")));
    }
    let mut values = vec![0; texts.len() * dimensions];
    let scales = with_threads(threads, || {
        texts
            .par_iter()
            .zip(values.par_chunks_mut(dimensions))
            .map_init(Vec::new, |features, (text, row)| {
                text.map_or(0.0, |text| embed_one(text, features, row))
            })
            .collect()
    })?;
    Ok(Quantized { values, scales })
}

fn embed_one(text: &str, features: &mut Vec<u64>, row: &mut [i8]) -> f32 {
    features.clear();
    let mut previous = None;
    for_each_word(prefix(text, MAX_BYTES), |word, _| {
        let hash = xxh3_64(word.as_bytes());
        features.push(hash);
        if let Some(previous) = previous.replace(hash) {
            features.push(mix(u64::rotate_left(previous, 29) ^ hash));
        }
    });
    // Sorting makes equal features neighbours and the order of the float additions fixed.
    features.sort_unstable();
    let mut vector = vec![0.0f32; row.len()];
    for run in features.chunk_by(|a, b| a == b) {
        let weight = 1.0 + (run.len() as f64).ln() as f32;
        let mut bits = run[0];
        for _ in 0..PROJECTIONS {
            bits = mix(bits.wrapping_add(STEP));
            let sign = if bits >> 63 == 0 { weight } else { -weight };
            vector[(bits as u32 as usize) % row.len()] += sign;
        }
    }
    quantize(&vector, row)
}

/// Scales `vector` to unit length and writes it as int8; returns the scale (0 for a zero vector).
pub fn quantize(vector: &[f32], row: &mut [i8]) -> f32 {
    let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let largest = vector.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    if norm == 0.0 || !norm.is_finite() {
        row.fill(0);
        return 0.0;
    }
    for (out, &x) in row.iter_mut().zip(vector) {
        *out = (x / largest * 127.0).round() as i8;
    }
    (f64::from(largest) / norm / 127.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(q: &Quantized, a: usize, b: usize) -> f32 {
        let d = q.values.len() / q.scales.len();
        (0..d)
            .map(|i| {
                f32::from(q.values[a * d + i])
                    * q.scales[a]
                    * f32::from(q.values[b * d + i])
                    * q.scales[b]
            })
            .sum()
    }

    #[test]
    fn related_texts_are_nearer_than_unrelated_ones() {
        let texts = [
            "the cat sat on the mat and the cat slept there",
            "the cat sat on the mat and the dog slept there",
            "gradient descent minimizes a differentiable loss function",
        ]
        .map(Some);
        let q = embed(&texts, 256, 2).unwrap();
        assert!((dot(&q, 0, 0) - 1.0).abs() < 0.02);
        assert!(dot(&q, 0, 1) > 0.6);
        assert!(dot(&q, 0, 2).abs() < 0.3);
    }

    #[test]
    fn texts_without_words_are_zero() {
        let q = embed(&[None, Some(""), Some(" .,;\0")], 8, 1).unwrap();
        assert_eq!(q, Quantized { values: vec![0; 24], scales: vec![0.0; 3] });
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let texts: Vec<String> =
            (0..50).map(|i| format!("w{} x{} common word", i, i % 7)).collect();
        let texts: Vec<_> = texts.iter().map(|text| Some(text.as_str())).collect();
        assert_eq!(embed(&texts, 64, 1).unwrap(), embed(&texts, 64, 3).unwrap());
        assert!(embed(&texts, 0, 1).is_err());
    }
}

//! Nearest centroid of quantized vectors.

use rayon::prelude::*;

use crate::threads::with_threads;
use crate::{Error, Result};

/// Independent float sums per dot product: fixed, so that the sum's order never depends on the
/// machine, and wide enough to fill vector registers.
const LANES: usize = 16;

/// For each vector the index of the centroid with the largest `<vector, centroid> + bias`, and that
/// value; the first of equals. `values` is row-major `[n, dimensions]`, `centroids`
/// `[k, dimensions]`. Cost: n k dimensions multiplications on `threads` threads (0: all cores).
pub fn nearest(
    values: &[i8],
    scales: &[f32],
    centroids: &[f32],
    bias: &[f32],
    threads: usize,
) -> Result<(Vec<u32>, Vec<f32>)> {
    let k = bias.len();
    if k == 0 || !centroids.len().is_multiple_of(k) {
        return Err(Error::invalid(format!(
            "{} centroid values for {k} centroids",
            centroids.len()
        )));
    }
    let dimensions = centroids.len() / k;
    if values.len() != scales.len() * dimensions {
        return Err(Error::invalid(format!(
            "{} embedding values for {} vectors of {dimensions} dimensions",
            values.len(),
            scales.len()
        )));
    }
    with_threads(threads, || {
        values
            .par_chunks(dimensions)
            .zip(scales)
            .map_init(
                || vec![0.0; dimensions],
                |vector, (row, &scale)| {
                    for (out, &value) in vector.iter_mut().zip(row) {
                        *out = f32::from(value) * scale;
                    }
                    let mut best = (0, f32::NEG_INFINITY);
                    for (index, centroid) in centroids.chunks_exact(dimensions).enumerate() {
                        let score = dot(vector, centroid) + bias[index];
                        if score > best.1 {
                            best = (index as u32, score);
                        }
                    }
                    best
                },
            )
            .unzip()
    })
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_lanes.remainder().iter().zip(b_lanes.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_nearest_centroid_wins_and_the_first_of_equals() {
        let dimensions = 17;
        let mut centroids = vec![0.0; 3 * dimensions];
        centroids[0] = 1.0;
        centroids[dimensions + 16] = 1.0;
        centroids[2 * dimensions + 16] = 1.0;
        let mut values = vec![0i8; 2 * dimensions];
        values[0] = 127;
        values[dimensions + 16] = 127;
        let (labels, scores) =
            super::nearest(&values, &[1.0 / 127.0; 2], &centroids, &[0.0; 3], 2).unwrap();
        assert_eq!(labels, [0, 1]);
        assert_eq!(scores, [1.0, 1.0]);
        let (labels, _) =
            super::nearest(&values, &[1.0 / 127.0; 2], &centroids, &[0.0, 0.0, 2.0], 1).unwrap();
        assert_eq!(labels, [2, 2]);
        assert!(super::nearest(&values, &[1.0], &centroids, &[0.0; 3], 1).is_err());
    }
}

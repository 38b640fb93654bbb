//! Many fine clusters into few spherical ones, each with a guaranteed share of the weight.
//!
//! Fine centroids `x_i` (unit vectors of weight `w_i`) are grouped so that the spherical k-means
//! objective `sum over clusters of |S_c|`, `S_c = sum of w_i x_i`, is large (Dhillon and Modha 2001),
//! subject to every cluster holding at least `minimum` weight. Divisive splitting builds a first
//! grouping: the cluster with the largest dispersion `W_c - |S_c|` is cut in two by weighted spherical
//! 2-means, with the cut moved where a half would be too light. Hill climbing then moves single
//! points while the objective grows and no cluster falls below the minimum. The best of several
//! seeded restarts is kept. All sums are sequential in f64, so threads never change the result.

use rayon::prelude::*;

use super::random::Random;
use crate::threads::with_threads;
use crate::{Error, Result};

const TWO_MEANS_ROUNDS: usize = 20;
const MAXIMUM_SWEEPS: usize = 50;
/// A move must gain this fraction of the total weight: round-off never counts as progress.
const MINIMUM_GAIN: f64 = 1e-12;

/// What to build.
#[derive(Clone, Copy, Debug)]
pub struct Coarsening {
    /// Clusters wanted; fewer come out where the weights allow no more.
    pub clusters: usize,
    /// Least share of the total weight in each cluster.
    pub minimum_share: f64,
    pub restarts: usize,
    pub seed: u64,
}

struct Points<'a> {
    dimensions: usize,
    vectors: Vec<f64>,
    weights: &'a [f64],
}

impl Points<'_> {
    fn vector(&self, index: usize) -> &[f64] {
        &self.vectors[index * self.dimensions..][..self.dimensions]
    }

    fn weight(&self, members: &[usize]) -> f64 {
        members.iter().map(|&i| self.weights[i]).sum()
    }

    fn sum(&self, members: &[usize]) -> Vec<f64> {
        let mut sum = vec![0.0; self.dimensions];
        for &i in members {
            add(&mut sum, self.weights[i], self.vector(i));
        }
        sum
    }
}

/// Groups the rows of `centroids` (row-major `[n, dimensions]`, any lengths but zero vectors stay
/// zero) of the given weights. Returns a label per row; labels count from 0, heaviest cluster
/// first. Rows without weight join the cluster whose direction is nearest.
pub fn coarsen(
    centroids: &[f32],
    weights: &[f64],
    config: Coarsening,
    threads: usize,
) -> Result<Vec<u32>> {
    let n = weights.len();
    let total: f64 = weights.iter().sum();
    if n == 0 || !centroids.len().is_multiple_of(n) || config.clusters == 0 {
        return Err(Error::invalid(format!(
            "{} centroid values, {n} weights, {} clusters",
            centroids.len(),
            config.clusters
        )));
    }
    if !weights.iter().all(|&w| w >= 0.0 && w.is_finite()) || total <= 0.0 {
        return Err(Error::invalid("weights must be finite, not negative and not all zero"));
    }
    let points =
        Points { dimensions: centroids.len() / n, vectors: unit_rows(centroids, n), weights };
    let minimum = config.minimum_share * total;
    let mut results: Vec<(f64, Vec<Vec<usize>>)> = with_threads(threads, || {
        (0..config.restarts.max(1))
            .into_par_iter()
            .map(|restart| {
                let mut random = Random::new(config.seed, restart as u64);
                let clusters = divide(&points, config.clusters, minimum, &mut random);
                climb(&points, clusters, minimum, total * MINIMUM_GAIN, &mut random)
            })
            .collect()
    })?;
    let mut best = 0;
    for (index, (objective, _)) in results.iter().enumerate() {
        if *objective > results[best].0 {
            best = index;
        }
    }
    Ok(labels(&points, results.swap_remove(best).1))
}

/// Divisive splitting until there are `clusters` of them or none can be split.
fn divide(
    points: &Points<'_>,
    clusters: usize,
    minimum: f64,
    random: &mut Random,
) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..points.weights.len()).filter(|&i| points.weights[i] > 0.0).collect();
    let mut done = Vec::new();
    let mut open = vec![(dispersion(points, &all), all)];
    while done.len() + open.len() < clusters && !open.is_empty() {
        let widest =
            (0..open.len()).reduce(|a, b| if open[b].0 > open[a].0 { b } else { a }).unwrap_or(0);
        let (_, members) = open.remove(widest);
        match split(points, &members, minimum, random) {
            Some(halves) => {
                open.extend(halves.map(|half| (dispersion(points, &half), half)));
            }
            None => done.push(members),
        }
    }
    done.extend(open.into_iter().map(|(_, members)| members));
    done
}

fn dispersion(points: &Points<'_>, members: &[usize]) -> f64 {
    points.weight(members) - norm(&points.sum(members))
}

/// Two halves of at least `minimum` weight each, or None where no cut along the 2-means axis gives
/// them.
fn split(
    points: &Points<'_>,
    members: &[usize],
    minimum: f64,
    random: &mut Random,
) -> Option<[Vec<usize>; 2]> {
    if members.len() < 2 || points.weight(members) < 2.0 * minimum {
        return None;
    }
    let first = members[random.weighted(members.iter().map(|&i| points.weights[i]))];
    let distances = members
        .iter()
        .map(|&i| points.weights[i] * (1.0 - dot(points.vector(i), points.vector(first))).max(0.0));
    let second = members[random.weighted(distances)];
    let mut axis: Vec<f64> =
        points.vector(first).iter().zip(points.vector(second)).map(|(a, b)| a - b).collect();
    let mut sides: Vec<bool> = Vec::new();
    for _ in 0..TWO_MEANS_ROUNDS {
        let new: Vec<bool> = members.iter().map(|&i| dot(points.vector(i), &axis) > 0.0).collect();
        if new == sides {
            break;
        }
        let mut sums = [vec![0.0; points.dimensions], vec![0.0; points.dimensions]];
        for (&i, &side) in members.iter().zip(&new) {
            add(&mut sums[usize::from(side)], points.weights[i], points.vector(i));
        }
        sides = new;
        let (low, high) = (norm(&sums[0]), norm(&sums[1]));
        if low == 0.0 || high == 0.0 {
            break;
        }
        axis = sums[1].iter().zip(&sums[0]).map(|(b, a)| b / high - a / low).collect();
    }
    cut(points, members, &axis, minimum)
}

/// Cuts the members, ordered along `axis`, at the feasible place nearest to zero.
fn cut(
    points: &Points<'_>,
    members: &[usize],
    axis: &[f64],
    minimum: f64,
) -> Option<[Vec<usize>; 2]> {
    let mut order: Vec<(f64, usize)> =
        members.iter().map(|&i| (dot(points.vector(i), axis), i)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let natural = order.partition_point(|&(margin, _)| margin <= 0.0);
    let total = points.weight(members);
    let mut below = 0.0;
    let mut best: Option<usize> = None;
    for place in 1..order.len() {
        below += points.weights[order[place - 1].1];
        let feasible = below >= minimum && total - below >= minimum;
        if feasible && best.is_none_or(|old| place.abs_diff(natural) < old.abs_diff(natural)) {
            best = Some(place);
        }
    }
    let (low, high) = order.split_at(best?);
    Some([low, high].map(|half| half.iter().map(|&(_, i)| i).collect()))
}

/// Moves single points to the cluster where the objective gains most, sweep after sweep, until
/// none gains. Returns the objective and the clusters.
fn climb(
    points: &Points<'_>,
    clusters: Vec<Vec<usize>>,
    minimum: f64,
    least_gain: f64,
    random: &mut Random,
) -> (f64, Vec<Vec<usize>>) {
    let k = clusters.len();
    let mut label = vec![usize::MAX; points.weights.len()];
    for (cluster, members) in clusters.iter().enumerate() {
        for &i in members {
            label[i] = cluster;
        }
    }
    let mut order: Vec<usize> = (0..label.len()).filter(|&i| label[i] < k).collect();
    let gather = |label: &[usize]| {
        let mut members = vec![Vec::new(); k];
        for (i, &cluster) in label.iter().enumerate().filter(|&(_, &cluster)| cluster < k) {
            members[cluster].push(i);
        }
        members
    };
    for _ in 0..MAXIMUM_SWEEPS {
        // Sums are taken afresh for each sweep, so that errors of updates do not pile up.
        let members = gather(&label);
        let mut sums: Vec<Vec<f64>> = members.iter().map(|m| points.sum(m)).collect();
        let mut weights: Vec<f64> = members.iter().map(|m| points.weight(m)).collect();
        let mut squares: Vec<f64> = sums.iter().map(|sum| dot(sum, sum)).collect();
        let mut moved = false;
        random.shuffle(&mut order);
        for &i in &order {
            let (from, w, x) = (label[i], points.weights[i], points.vector(i));
            if weights[from] - w < minimum || weights[from] - w <= 0.0 {
                continue;
            }
            let length = dot(x, x);
            let left = (squares[from] - 2.0 * w * dot(x, &sums[from]) + w * w * length).max(0.0);
            let loss = squares[from].max(0.0).sqrt() - left.sqrt();
            let mut best = (least_gain, from);
            for to in (0..k).filter(|&to| to != from) {
                let grown = (squares[to] + 2.0 * w * dot(x, &sums[to]) + w * w * length).max(0.0);
                let gain = grown.sqrt() - squares[to].max(0.0).sqrt() - loss;
                if gain > best.0 {
                    best = (gain, to);
                }
            }
            if best.1 != from {
                let to = best.1;
                add(&mut sums[from], -w, x);
                add(&mut sums[to], w, x);
                weights[from] -= w;
                weights[to] += w;
                for cluster in [from, to] {
                    squares[cluster] = dot(&sums[cluster], &sums[cluster]);
                }
                label[i] = to;
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let members = gather(&label);
    (members.iter().map(|m| norm(&points.sum(m))).sum(), members)
}

fn labels(points: &Points<'_>, mut clusters: Vec<Vec<usize>>) -> Vec<u32> {
    clusters.sort_by(|a, b| points.weight(b).total_cmp(&points.weight(a)).then(a.cmp(b)));
    let mut label = vec![u32::MAX; points.weights.len()];
    for (cluster, members) in clusters.iter().enumerate() {
        for &i in members {
            label[i] = cluster as u32;
        }
    }
    let directions: Vec<Vec<f64>> = clusters
        .iter()
        .map(|members| {
            let sum = points.sum(members);
            let length = norm(&sum).max(f64::MIN_POSITIVE);
            sum.iter().map(|x| x / length).collect()
        })
        .collect();
    for (i, label) in label.iter_mut().enumerate().filter(|(_, label)| **label == u32::MAX) {
        let scores: Vec<f64> = directions.iter().map(|d| dot(d, points.vector(i))).collect();
        let best = (0..scores.len()).reduce(|a, b| if scores[b] > scores[a] { b } else { a });
        *label = best.unwrap_or(0) as u32;
    }
    label
}

fn unit_rows(values: &[f32], rows: usize) -> Vec<f64> {
    let mut out: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
    for row in out.chunks_mut((values.len() / rows).max(1)) {
        let length = norm(row);
        if length > 0.0 {
            row.iter_mut().for_each(|x| *x /= length);
        }
    }
    out
}

fn add(sum: &mut [f64], factor: f64, vector: &[f64]) {
    for (s, x) in sum.iter_mut().zip(vector) {
        *s += factor * x;
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f64 = a_lanes.remainder().iter().zip(b_lanes.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

fn norm(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: Coarsening =
        Coarsening { clusters: 3, minimum_share: 0.01, restarts: 4, seed: 7 };

    /// `groups` bundles of directions, `each` points in a bundle.
    fn bundles(groups: usize, each: usize, dimensions: usize) -> Vec<f32> {
        let mut random = Random::new(3, 0);
        let mut out = Vec::new();
        for i in 0..groups * each {
            for d in 0..dimensions {
                let noise = random.unit() as f32 * 0.2 - 0.1;
                out.push(if d == i % groups { 1.0 + noise } else { noise });
            }
        }
        out
    }

    #[test]
    fn separate_bundles_become_the_clusters() {
        let label = coarsen(&bundles(3, 10, 5), &[1.0; 30], CONFIG, 2).unwrap();
        for i in 0..30 {
            assert_eq!(label[i], label[i % 3], "point {i}");
        }
        let mut kinds = label[..3].to_vec();
        kinds.sort_unstable();
        assert_eq!(kinds, [0, 1, 2]);
    }

    #[test]
    fn no_clustering_of_few_points_is_better() {
        let points = bundles(2, 4, 3);
        let weights = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 2.0];
        let config = Coarsening { clusters: 2, minimum_share: 0.3, restarts: 8, seed: 1 };
        let label = coarsen(&points, &weights, config, 1).unwrap();
        let objective = |label: &[u32]| {
            let points =
                Points { dimensions: 3, vectors: unit_rows(&points, 8), weights: &weights };
            let of = |c| (0..8).filter(|&i| label[i] == c).collect::<Vec<_>>();
            let feasible = [0, 1].iter().all(|&c| points.weight(&of(c)) >= 0.3 * 15.0);
            feasible.then(|| norm(&points.sum(&of(0))) + norm(&points.sum(&of(1))))
        };
        let best = (0..256u32)
            .filter_map(|mask| objective(&(0..8).map(|i| mask >> i & 1).collect::<Vec<_>>()))
            .fold(0.0, f64::max);
        assert!(objective(&label).unwrap() > best - 1e-9);
    }

    #[test]
    fn one_heavy_point_leaves_fewer_clusters() {
        let label = coarsen(&bundles(3, 1, 3), &[98.9, 0.6, 0.5], CONFIG, 1).unwrap();
        assert_eq!(label, [0, 1, 1]);
        assert_eq!(coarsen(&[1.0, 0.0], &[5.0], CONFIG, 1).unwrap(), [0]);
        assert!(coarsen(&[1.0], &[0.0], CONFIG, 1).is_err());
        assert!(coarsen(&[], &[], CONFIG, 1).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn every_cluster_has_its_share_and_threads_change_nothing(
            seed in 0u64..1000,
            weights in proptest::collection::vec(0u8..50, 12..40),
            clusters in 1usize..8,
        ) {
            prop_assume!(weights.iter().any(|&w| w > 0));
            let mut random = Random::new(seed, 1);
            let points: Vec<f32> = (0..weights.len() * 6).map(|_| random.unit() as f32 - 0.5).collect();
            let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
            let config = Coarsening { clusters, minimum_share: 0.1, restarts: 3, seed };
            let label = coarsen(&points, &weights, config, 1).unwrap();
            prop_assert_eq!(&label, &coarsen(&points, &weights, config, 3).unwrap());
            let count = *label.iter().max().unwrap() as usize + 1;
            prop_assert!(count <= clusters);
            let mut shares = vec![0.0; count];
            for (&l, w) in label.iter().zip(&weights) {
                shares[l as usize] += w;
            }
            let total: f64 = weights.iter().sum();
            prop_assert!(shares.iter().all(|&share| share >= 0.1 * total - 1e-9));
            prop_assert!(shares.is_sorted_by(|a, b| a >= b));
        }
    }
}

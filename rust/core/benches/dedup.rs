//! MB per CPU second of the stages of deduplication on one core, on the text files below a directory:
//! `cargo bench -p marin-core --bench dedup -- DIR`. Prints the median of several runs.

use std::path::Path;

use marin_core::dedup::sketch::Sketcher;
use marin_core::dedup::text::{Reader, Shingling, Unit};
use marin_core::dedup::verify::{Measure, sort_distinct};

const RUNS: usize = 7;
const MOST_BYTES: usize = 64 << 20;

fn collect(directory: &Path, texts: &mut Vec<Vec<u8>>, bytes: &mut usize) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if *bytes > MOST_BYTES {
            return;
        }
        if path.is_dir() {
            collect(&path, texts, bytes);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            *bytes += text.len();
            texts.push(text.into_bytes());
        }
    }
}

/// CPU time of this thread, which other processes do not add to.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e9
}

fn report(name: &str, bytes: usize, mut work: impl FnMut()) {
    let mut seconds: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = cpu_seconds();
            work();
            cpu_seconds() - start
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e6;
    println!("{name}: {:.0} MB/s (best {:.0})", rate(seconds[RUNS / 2]), rate(seconds[0]));
}

fn main() {
    let directory = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let directory = directory.unwrap_or_else(|| "/usr/lib/python3".into());
    let (mut texts, mut bytes) = (Vec::new(), 0);
    collect(Path::new(&directory), &mut texts, &mut bytes);
    println!("{} texts, {:.1} MB below {directory}", texts.len(), bytes as f64 / 1e6);
    let mut reader = Reader::new(Shingling { words: 5, characters: 5, unit: Unit::Auto });
    let mut sketcher = Sketcher::new(256, 1);
    let mut sets: Vec<Vec<u64>> = Vec::new();
    report("normalize, hash and shingle", bytes, || {
        sets = texts.iter().map(|text| reader.read(text).1.clone()).collect();
    });
    report("sketch of 256 values", bytes, || {
        sets.iter().for_each(|set| {
            std::hint::black_box(sketcher.sketch(set));
        });
    });
    let mut table = Vec::new();
    let unsorted = sets.clone();
    report("sort shingles", bytes, || {
        sets.clone_from(&unsorted);
        sets.iter_mut().for_each(|set| sort_distinct(set, &mut table));
    });
    sets.retain(|set| !set.is_empty());
    report("compare each with itself", bytes, || {
        for set in &sets {
            std::hint::black_box(Measure::Jaccard.at_least(0.8, set, set));
        }
    });
}

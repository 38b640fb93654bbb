//! Candidates of many documents within a limit of memory, without any text: signatures are drawn so
//! that one document in ten has a near duplicate. The spill gets the share of the limit that a
//! session gives it; all of the process has to stay within the limit.
//! `cargo bench -p marin-core --bench candidates -- DOCUMENTS BANDS MEMORY_MIB DIRECTORY`

use std::path::Path;
use std::time::Instant;

use marin_core::dedup::candidates::buckets;
use marin_core::dedup::session::SPILL_SHARE;
use marin_core::dedup::spill::{Record, Spill};
use marin_core::dedup::token::{BASE, mix};
use marin_core::threads::with_threads;
use rayon::prelude::*;

const BATCH: u32 = 1 << 16;
const MEBIBYTE: f64 = (1 << 20) as f64;

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let (documents, bands, mebibytes) = (number(0, 1_000_000), number(1, 32), number(2, 64));
    let directory = arguments.get(3).map_or_else(std::env::temp_dir, |path| path.into());
    with_threads(0, || run(documents as u32, bands, mebibytes << 20, &directory)).expect("threads");
}

fn run(documents: u32, bands: usize, memory: usize, directory: &Path) {
    let start = Instant::now();
    let spill = Spill::new(directory, bands, documents as usize, memory / SPILL_SHARE);
    (0..documents.div_ceil(BATCH)).into_par_iter().for_each(|batch| {
        let (from, to) = (batch * BATCH, documents.min((batch + 1).saturating_mul(BATCH)));
        for band in 0..bands {
            let records: Vec<Record> = (from..to)
                .map(|document| {
                    // Every tenth document shares nine of ten bands with the one before it.
                    let draw = mix(u64::from(document) ^ band as u64) % 10;
                    let twin = document % 10 == 9 && draw > 0;
                    let name = u64::from(document - u32::from(twin));
                    let key = mix(mix(name ^ BASE).wrapping_add(band as u64 * BASE));
                    Record { key, document }
                })
                .collect();
            spill.push(band, &records).expect("space for spill files");
        }
    });
    println!(
        "signed {documents} documents x {bands} bands: {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let (found, _) = buckets(&spill, |document| document).expect("readable spill files");
    let members = found.documents().len();
    println!(
        "{} buckets of {members} documents: {:.1} s, peak {:.0} MiB",
        found.len(),
        start.elapsed().as_secs_f64(),
        peak_mebibytes()
    );
    assert!(peak_mebibytes() * MEBIBYTE < memory as f64, "within the limit");
    assert_eq!(members, documents as usize / 10 * 2, "every planted pair is found");
}

fn peak_mebibytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).expect("kB") / 1024.0
}

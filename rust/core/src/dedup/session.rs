//! The state of one deduplication, from batches of documents to the decision over each.
//!
//! [`Session::add`] takes every batch once, [`Session::plan`] finds the candidates and names the
//! documents whose text is needed again, [`Session::add_texts`] takes those, and
//! [`Session::resolve`] decides. `add` and `add_texts` may be called from several threads at once.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;

use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::banding::Banding;
use super::candidates::{self, Buckets};
use super::exact::best_of_class;
use super::families::families;
use super::ids::Ids;
use super::sketch::Sketcher;
use super::spill::{Record, Spill};
use super::store::Store;
use super::survivors::{Rules, Work, choose};
use super::text::{Kind, Reader, Shingling, Summary};
use super::verify::{Measure, sort_distinct};
use crate::{Error, Result};

const NONE: u32 = u32::MAX;

/// Buffers of a reader that grew beyond this many tokens are given back after the text.
const BUFFER_TOKENS: usize = 1 << 20;

/// One part in so many of the memory is for band keys on their way to the spill file.
pub const SPILL_SHARE: usize = 4;

/// Bytes that one remembered raw hash costs in its table.
const SEEN_BYTES: usize = 48;

#[derive(Clone, Debug)]
pub struct Settings {
    pub shingling: Shingling,
    pub banding: Banding,
    pub seed: u64,
    pub threshold: f64,
    pub measure: Measure,
    /// Sources whose documents are preferred, the most preferred first; all others come after.
    pub priority: Vec<String>,
    /// Sources whose documents are never removed.
    pub exempt: Vec<String>,
    /// Documents from this number on are kept whatever they are, and come before all others: those
    /// of earlier runs.
    pub first_anchor: u32,
    /// By document: whether it takes no part, since it is removed already. May end early.
    pub left_out: Vec<bool>,
    /// Bytes that band keys, shingle sets and raw hashes may take in memory together.
    pub memory: usize,
    /// Where files go that do not fit in memory; an existing directory.
    pub directory: PathBuf,
}

impl Settings {
    fn takes_part(&self, document: u32) -> bool {
        !self.left_out.get(document as usize).is_some_and(|&left_out| left_out)
    }
}

/// What [`Signer::sign`] finds in one text, all that candidates are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub summary: Summary,
    /// One key per band; none for a text without shingles.
    pub keys: Vec<u64>,
}

/// Signs texts one after the other, reusing its buffers.
pub struct Signer {
    reader: Reader,
    sketcher: Sketcher,
    banding: Banding,
}

impl Signer {
    pub fn new(shingling: Shingling, banding: Banding, seed: u64) -> Self {
        Self {
            reader: Reader::new(shingling),
            sketcher: Sketcher::new(banding.bins(), seed),
            banding,
        }
    }

    /// Also hands the shingles of the text, in no order and with repetitions, to `keep`.
    pub fn sign(&mut self, text: &[u8], keep: impl FnOnce(&mut Vec<u64>)) -> Signature {
        let (summary, shingles) = self.reader.read(text);
        let mut keys = Vec::new();
        if matches!(summary.kind, Kind::Words | Kind::Characters) {
            let sketch = self.sketcher.sketch(shingles);
            keys.extend((0..self.banding.bands).map(|band| self.banding.key(sketch, band)));
            keep(shingles);
        }
        self.reader.shrink(BUFFER_TOKENS);
        Signature { summary, keys }
    }
}

/// One document of a batch. A text of None counts as empty.
pub struct Document<'a> {
    pub id: &'a [u8],
    pub source: &'a str,
    pub text: Option<&'a [u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Kept,
    Exact,
    Fuzzy,
    LeftOut,
}

/// The decision over one document. `twin` is the kept document that a removed one matches, else the
/// document itself; `cluster` the best document of its cluster, which is another one for a kept
/// document only if that is exempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    pub reason: Reason,
    pub twin: u32,
    pub cluster: u32,
    pub similarity: f32,
}

/// What is known of each document after the first pass.
struct Table {
    exact: Vec<u128>,
    length: Vec<u32>,
    kind: Vec<Kind>,
    source: Vec<u32>,
    /// The document whose raw text this one repeats, or NONE.
    same: Vec<u32>,
    ids: Ids,
    sources: Vec<String>,
    source_numbers: HashMap<String, u32>,
    added: usize,
}

/// What [`Session::plan`] found.
struct Plan {
    /// Document by rank, and rank by document.
    order: Vec<u32>,
    rank: Vec<u32>,
    best: Vec<u32>,
    buckets: Buckets,
    weights: Vec<u16>,
    /// By rank: the document under which the shingle set is stored.
    stored: HashMap<u32, u32>,
}

pub struct Session {
    settings: Settings,
    documents: usize,
    table: Mutex<Table>,
    seen: Vec<Mutex<HashMap<u128, u32>>>,
    seen_limit: usize,
    spill: Spill,
    store: Store,
    plan: Option<Plan>,
    decisions: Vec<Decision>,
    work: Work,
}

impl Session {
    /// For exactly `documents` documents, numbered from 0.
    pub fn new(settings: Settings, documents: usize) -> Result<Self> {
        if documents >= NONE as usize {
            return Err(Error::invalid(format!(
                "{documents} documents: expected fewer than {NONE} in one run"
            )));
        }
        let table = Table {
            exact: vec![0; documents],
            length: vec![0; documents],
            kind: vec![Kind::Empty; documents],
            source: vec![0; documents],
            same: vec![NONE; documents],
            ids: Ids::default(),
            sources: Vec::new(),
            source_numbers: HashMap::new(),
            added: 0,
        };
        let memory = settings.memory;
        let limit = memory / SPILL_SHARE;
        let spill = Spill::new(&settings.directory, settings.banding.bands, documents, limit);
        let store = Store::new(&settings.directory, memory / 2);
        const SHARDS: usize = 64;
        Ok(Self {
            documents,
            table: Mutex::new(table),
            seen: (0..SHARDS).map(|_| Mutex::default()).collect(),
            seen_limit: memory / 8 / SEEN_BYTES / SHARDS,
            spill,
            store,
            plan: None,
            decisions: Vec::new(),
            work: Work::default(),
            settings,
        })
    }

    /// Takes documents `first..first + batch.len()` that are signed already.
    pub fn add_signed(
        &self,
        first: u32,
        batch: &[(&[u8], &str)],
        signatures: &[Signature],
    ) -> Result<()> {
        self.push_keys(first, signatures.iter().map(|signature| signature.keys.as_slice()))?;
        let mut table = self.table.lock().expect("no thread panics while it holds the table");
        for (at, (&(_, source), signature)) in (first as usize..).zip(batch.iter().zip(signatures))
        {
            let part = self.settings.takes_part(at as u32);
            table.set(at, Ok(if part { signature.summary } else { Summary::EMPTY }), source);
        }
        table.ids.add(first, batch.iter().map(|&(id, _)| id));
        table.added += batch.len();
        Ok(())
    }

    fn push_keys<'a>(&self, first: u32, keys: impl Iterator<Item = &'a [u64]>) -> Result<()> {
        let mut records: Vec<Vec<Record>> = vec![Vec::new(); self.settings.banding.bands];
        for (document, keys) in (first..).zip(keys).filter(|&(d, _)| self.settings.takes_part(d)) {
            for (records, &key) in records.iter_mut().zip(keys) {
                records.push(Record { key, document });
            }
        }
        records.iter().enumerate().try_for_each(|(band, records)| self.spill.push(band, records))
    }

    /// Takes documents `first..first + batch.len()`.
    pub fn add(&self, first: u32, batch: &[Document<'_>]) -> Result<()> {
        let Settings { shingling, banding, seed, .. } = self.settings;
        let mut signer = Signer::new(shingling, banding, seed);
        let mut scratch = Vec::new();
        let signed: Vec<std::result::Result<Signature, u32>> = (first..)
            .zip(batch)
            .map(|(number, document)| {
                if !self.settings.takes_part(number) {
                    return Ok(Signature { summary: Summary::EMPTY, keys: Vec::new() });
                }
                let text = document.text.unwrap_or_default();
                match self.seen_before(text, number) {
                    Some(same) => Err(same),
                    None => Ok(signer.sign(text, |shingles| {
                        if self.store.has_room() {
                            sort_distinct(shingles, &mut scratch);
                            self.store.offer(number, shingles);
                        }
                    })),
                }
            })
            .collect();
        let keys =
            signed.iter().map(|signed| signed.as_ref().map_or(&[][..], |signed| &signed.keys));
        self.push_keys(first, keys)?;
        let mut table = self.table.lock().expect("no thread panics while it holds the table");
        for (at, (signed, document)) in (first as usize..).zip(signed.iter().zip(batch)) {
            table.set(
                at,
                signed.as_ref().map(|signed| signed.summary).map_err(|&same| same),
                document.source,
            );
        }
        table.ids.add(first, batch.iter().map(|document| document.id));
        table.added += batch.len();
        Ok(())
    }

    /// The document that was read with the very same bytes, if it is remembered. Which of several
    /// equal ones is read first does not show in the result: they have the same hashes.
    fn seen_before(&self, text: &[u8], number: u32) -> Option<u32> {
        let hash = xxh3_128(text);
        let shard = (hash as usize) % self.seen.len();
        let mut seen = self.seen[shard].lock().expect("no thread panics while it holds a shard");
        if let Some(&same) = seen.get(&hash) {
            return Some(same);
        }
        if seen.len() < self.seen_limit {
            seen.insert(hash, number);
        }
        None
    }

    /// The first id that two documents share, with their numbers, after the last batch.
    pub fn repeated_id(&mut self) -> Option<(String, u32, u32)> {
        let ids = &mut self.table.get_mut().expect("no thread panics while it holds the table").ids;
        ids.finish();
        let (first, second) = ids.twice()?;
        Some((String::from_utf8_lossy(ids.get(first)).into_owned(), first, second))
    }

    /// Finds the candidates, after the last batch. Returns the documents whose texts
    /// [`Session::add_texts`] has to see, ascending. Runs on the current rayon pool.
    pub fn plan(&mut self) -> Result<Vec<u32>> {
        self.seen.clear();
        let table = self.table.get_mut().expect("no thread panics while it holds the table");
        if table.added != self.documents || table.ids.finish() != self.documents {
            return Err(Error::invalid(format!(
                "{} documents were added: expected {}",
                table.added, self.documents
            )));
        }
        table.resolve_same();
        let order = table.order(&self.settings);
        let mut rank = vec![0; self.documents];
        order.iter().enumerate().for_each(|(at, &document)| rank[document as usize] = at as u32);
        let best = best_of_class(&table.exact, &rank, |document| {
            table.kind[document as usize] == Kind::Empty
        });
        let class_rank = |document: u32| rank[best[document as usize] as usize];
        let (buckets, weights) = candidates::buckets(&self.spill, class_rank)?;
        let candidates = buckets.documents();
        let is_candidate = |document: u32| candidates.binary_search(&class_rank(document)).is_ok();
        self.store.retain(is_candidate);
        let mut stored: HashMap<u32, u32> = HashMap::with_capacity(candidates.len());
        for document in self.store.documents() {
            stored.entry(class_rank(document)).or_insert(document);
        }
        let mut needed = Vec::new();
        for &candidate in &candidates {
            stored.entry(candidate).or_insert_with(|| {
                needed.push(order[candidate as usize]);
                order[candidate as usize]
            });
        }
        needed.sort_unstable();
        self.plan = Some(Plan { order, rank, best, buckets, weights, stored });
        Ok(needed)
    }

    /// Takes texts that [`Session::plan`] asked for.
    pub fn add_texts(&self, texts: &[(u32, &[u8])]) -> Result<()> {
        let mut reader = Reader::new(self.settings.shingling);
        let mut scratch = Vec::new();
        for &(document, text) in texts {
            let (_, shingles) = reader.read(text);
            sort_distinct(shingles, &mut scratch);
            self.store.put(document, shingles)?;
            reader.shrink(BUFFER_TOKENS);
        }
        Ok(())
    }

    /// Decides over every document. Runs on the current rayon pool.
    pub fn resolve(&mut self) -> Result<()> {
        let plan = self.plan.take().ok_or_else(|| Error::invalid("resolve before plan"))?;
        let table = self.table.get_mut().expect("no thread panics while it holds the table");
        let exempt = table.exempt(&self.settings.exempt);
        let is_exempt = |document: u32| {
            document >= self.settings.first_anchor
                || exempt[table.source[document as usize] as usize]
        };
        let rules = Rules {
            measure: self.settings.measure,
            threshold: self.settings.threshold,
            sets: &self.store.close(),
            stored: |rank: u32| plan.stored[&rank],
            exempt: |rank: u32| is_exempt(plan.order[rank as usize]),
        };
        let (removals, work) = choose(&plan.buckets, &plan.weights, &rules)?;
        self.work = work;
        let related = !self.settings.exempt.is_empty();
        let heads = if related {
            let looks = |rank: u32| plan.order[rank as usize] < self.settings.first_anchor;
            families(&plan.buckets, &rules, looks)?
        } else {
            HashMap::new()
        };
        let cluster_of = |rank: u32| plan.order[heads.get(&rank).copied().unwrap_or(rank) as usize];
        self.decisions = (0..self.documents as u32)
            .into_par_iter()
            .map(|document| {
                let best = plan.best[document as usize];
                let best_rank = plan.rank[best as usize];
                let kept = Decision {
                    reason: Reason::Kept,
                    twin: document,
                    cluster: document,
                    similarity: 1.0,
                };
                if !self.settings.takes_part(document) {
                    return Decision { reason: Reason::LeftOut, ..kept };
                }
                if is_exempt(document) {
                    return Decision { cluster: cluster_of(best_rank), ..kept };
                }
                match removals.binary_search_by_key(&best_rank, |removal| removal.removed) {
                    Ok(at) => Decision {
                        reason: Reason::Fuzzy,
                        twin: plan.order[removals[at].kept as usize],
                        cluster: cluster_of(removals[at].kept),
                        similarity: removals[at].similarity as f32,
                    },
                    Err(_) if best == document => kept,
                    Err(_) => Decision {
                        reason: Reason::Exact,
                        twin: best,
                        cluster: cluster_of(best_rank),
                        similarity: 1.0,
                    },
                }
            })
            .collect();
        Ok(())
    }

    /// The decisions over all documents but the anchors; empty before [`Session::resolve`].
    pub fn decisions(&self) -> &[Decision] {
        let own = self.decisions.len().min(self.settings.first_anchor as usize);
        &self.decisions[..own]
    }

    pub fn work(&self) -> Work {
        self.work
    }

    /// Reads what the first pass found; the lock is not contended then.
    pub fn with_documents<T>(&self, read: impl FnOnce(Documents<'_>) -> T) -> T {
        let table = self.table.lock().expect("no thread panics while it holds the table");
        read(Documents(&table))
    }
}

/// What is known of the documents.
pub struct Documents<'a>(&'a Table);

impl Documents<'_> {
    pub fn id(&self, document: u32) -> &[u8] {
        self.0.ids.get(document)
    }

    pub fn kind(&self, document: u32) -> Kind {
        self.0.kind[document as usize]
    }

    pub fn source(&self, document: u32) -> &str {
        &self.0.sources[self.0.source[document as usize] as usize]
    }
}

impl Table {
    /// Notes a document's summary, or the document whose raw text it repeats.
    fn set(&mut self, at: usize, summary: std::result::Result<Summary, u32>, source: &str) {
        match summary {
            Ok(summary) => {
                self.exact[at] = summary.exact;
                self.length[at] = summary.length;
                self.kind[at] = summary.kind;
            }
            Err(same) => self.same[at] = same,
        }
        self.source[at] = self.source_number(source);
    }

    fn source_number(&mut self, source: &str) -> u32 {
        if let Some(&number) = self.source_numbers.get(source) {
            return number;
        }
        let number = self.sources.len() as u32;
        self.sources.push(source.to_owned());
        self.source_numbers.insert(source.to_owned(), number);
        number
    }

    fn resolve_same(&mut self) {
        for at in 0..self.same.len() {
            if self.same[at] != NONE {
                let same = self.same[at] as usize;
                self.exact[at] = self.exact[same];
                self.length[at] = self.length[same];
                self.kind[at] = self.kind[same];
            }
        }
    }

    fn exempt(&self, sources: &[String]) -> Vec<bool> {
        self.sources.iter().map(|source| sources.contains(source)).collect()
    }

    /// Documents from the best to the worst: anchors, exempt ones, then by the priority of their
    /// source, the longest first, ties by id.
    fn order(&self, settings: &Settings) -> Vec<u32> {
        let exempt = self.exempt(&settings.exempt);
        let place: Vec<u64> = self
            .sources
            .iter()
            .zip(&exempt)
            .map(|(source, &exempt)| {
                let listed = settings.priority.iter().position(|listed| listed == source);
                let place = listed.unwrap_or(settings.priority.len()) as u64;
                place + if exempt { 0 } else { 1 << 24 }
            })
            .collect();
        let key = |document: u32| {
            let at = document as usize;
            let own = u64::from(document < settings.first_anchor);
            own << 63 | place[self.source[at] as usize] << 32 | u64::from(!self.length[at])
        };
        let mut order: Vec<u32> = (0..self.length.len() as u32).collect();
        order.par_sort_unstable_by(|&a, &b| {
            key(a).cmp(&key(b)).then_with(|| self.ids.compare(a, b))
        });
        order
    }
}

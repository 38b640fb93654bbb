//! Documents that wait, and rows that leave.

use super::best_fit::best_fit;
use super::replay::Replay;
use super::rows::{Piece, Rows};
use super::store::StoreCell;
use crate::{Error, Result};

/// Of a window that is not the last of its stage, one row of this many may wait for the next one.
const HELD_BACK: usize = 64;
/// Of the last window, whose surplus goes to the next stage, one row of this many may be chosen for
/// its emptiness; the rest of the surplus are the latest rows, so that no kind of length loses.
const HELD_BACK_LAST: usize = 16;

/// Lengths that are looked up together.
const LOOKUPS: usize = 64;

/// How documents meet rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// No document is cut unless it is longer than a row; then it becomes full rows and a
    /// remainder that is packed like a document.
    BestFit,
    /// Documents end to end, cut at every row boundary; no padding.
    Concat,
    /// As `BestFit`, but what a document has beyond one row is dropped, and counted.
    Truncate,
}

/// What a row may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most pieces in a row.
    pub max_segments: u32,
    /// Least tokens in a row, as a share of its length; emptier rows wait.
    pub min_fill: f64,
}

/// Totals over all calls. Every token pushed is in a row, truncated, or still waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub documents: i64,
    pub tokens: i64,
    /// Documents without tokens: they take no place in any row.
    pub empty_documents: i64,
    pub rows: i64,
    pub packed_tokens: i64,
    /// Documents that are not whole in one row.
    pub cut_documents: i64,
    pub truncated_tokens: i64,
}

/// A piece that waits; `ends` says that it reaches the end of its document.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub piece: Piece,
    pub ends: bool,
}

/// A waiting piece, or a part of one, that is short enough for a row.
#[derive(Clone, Copy)]
struct Candidate {
    waiting: Waiting,
    placed: u32,
}

/// The documents of one cell between the mixture's order and rows.
pub struct Packer {
    policy: Policy,
    limits: Limits,
    capacity: u32,
    queue: Vec<Waiting>,
    /// Tokens of the queue that can stand in rows of `capacity`.
    ready: i64,
    counts: Counts,
}

impl Packer {
    /// A packer for rows of `capacity` tokens.
    pub fn new(policy: Policy, limits: Limits, capacity: u32) -> Result<Self> {
        if limits.max_segments == 0 {
            return Err(Error::invalid("max_segments is 0, expected at least 1"));
        }
        if !(0.0..=1.0).contains(&limits.min_fill) {
            return Err(Error::invalid(format!(
                "min_fill is {}, expected a share of a row from 0 to 1",
                limits.min_fill
            )));
        }
        let mut packer = Self {
            policy,
            limits,
            capacity: 1,
            queue: Vec::new(),
            ready: 0,
            counts: Counts::default(),
        };
        packer.set_capacity(capacity)?;
        Ok(packer)
    }

    /// From here on, rows have `capacity` tokens; what waits goes on to wait.
    pub fn set_capacity(&mut self, capacity: u32) -> Result<()> {
        if capacity == 0 || capacity > i32::MAX as u32 {
            return Err(Error::invalid(format!(
                "row length {capacity}, expected 1 to {}",
                i32::MAX
            )));
        }
        self.capacity = capacity;
        self.ready = self.queue.iter().map(|waiting| self.usable(waiting.piece.length)).sum();
        Ok(())
    }

    /// Adds documents with their lengths, the next ones in the mixture's order, until `ready_tokens`
    /// reaches `enough`. Returns how many of them were taken.
    pub fn push(
        &mut self,
        documents: impl Iterator<Item = (i64, i64)>,
        enough: i64,
    ) -> Result<usize> {
        let mut taken = 0;
        for (document, length) in documents {
            if self.ready >= enough {
                break;
            }
            taken += 1;
            if length < 0 {
                return Err(Error::invalid(format!("document {document} has {length} tokens")));
            }
            self.counts.documents += 1;
            self.counts.tokens += length;
            if length == 0 {
                self.counts.empty_documents += 1;
                continue;
            }
            self.ready += self.usable(length);
            self.queue.push(Waiting { piece: Piece { document, start: 0, length }, ends: true });
        }
        Ok(taken)
    }

    /// [`push`](Self::push) for documents of `cell` alone.
    pub fn push_from(
        &mut self,
        cell: &StoreCell,
        documents: impl Iterator<Item = i64>,
        enough: i64,
    ) -> Result<usize> {
        let mut documents = documents.fuse();
        let mut taken = 0;
        // In groups, so that the processor waits for many lengths at the same time.
        let mut group = [(0, 0); LOOKUPS];
        loop {
            let mut count = 0;
            for (slot, document) in group.iter_mut().zip(documents.by_ref()) {
                slot.0 = document;
                count += 1;
            }
            for (document, length) in &mut group[..count] {
                *length = cell.length(*document)?;
            }
            let pushed = self.push(group[..count].iter().copied(), enough)?;
            taken += pushed;
            if pushed < LOOKUPS {
                return Ok(taken);
            }
        }
    }

    /// Tokens that wait and can stand in rows of the present length.
    pub fn ready_tokens(&self) -> i64 {
        self.ready
    }

    /// Pieces that wait, in the mixture's order.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = Piece> + '_ {
        self.queue.iter().map(|waiting| waiting.piece)
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Packs what waits into at most `wanted` rows. They stand in the order of their longest pieces,
    /// and the pieces of a row in the mixture's order, so length decides no position.
    ///
    /// With at least `wanted` rows' worth of tokens waiting, exactly `wanted` rows come (unless
    /// `min_fill` forbids). With less, all but the emptiest come; those wait for the next window.
    pub fn pack(&mut self, wanted: usize) -> Result<Rows> {
        let rows = match self.policy {
            Policy::Concat => self.concat(wanted)?,
            Policy::BestFit | Policy::Truncate => self.fit(wanted)?,
        };
        self.ready = self.queue.iter().map(|waiting| self.usable(waiting.piece.length)).sum();
        self.counts.rows += rows.len() as i64;
        self.counts.packed_tokens +=
            rows.length.iter().map(|&length| i64::from(length)).sum::<i64>();
        Ok(rows)
    }

    /// Takes rows that another plan packed out of what waits, as if `pack` had returned them. Stops
    /// before the first row with a piece that does not wait (yet); returns how many rows it took.
    ///
    /// Raises an error if a row is half there: then it is not of this order of documents.
    pub fn replay(&mut self, rows: &Rows) -> Result<usize> {
        let mut replay = Replay::new(&self.queue);
        let mut taken = 0;
        while taken < rows.len() && replay.has(rows.row(taken)) {
            for piece in rows.row(taken) {
                let whole = self.policy == Policy::Truncate;
                let found = replay.take(piece, whole).ok_or_else(|| {
                    Error::invalid(format!(
                        "tokens {} to {} of document {} stand in two rows",
                        piece.start,
                        piece.start + piece.length,
                        piece.document
                    ))
                })?;
                let end = piece.start + piece.length;
                let left = found.piece.start + found.piece.length - end;
                self.counts.truncated_tokens += if whole { left } else { 0 };
                if piece.start == 0 && (!found.ends || left > 0) {
                    self.counts.cut_documents += 1;
                }
                self.counts.packed_tokens += piece.length;
            }
            self.counts.rows += 1;
            taken += 1;
        }
        self.queue = replay.into_queue();
        self.ready = self.queue.iter().map(|waiting| self.usable(waiting.piece.length)).sum();
        Ok(taken)
    }

    fn usable(&self, length: i64) -> i64 {
        match self.policy {
            Policy::Truncate => length.min(i64::from(self.capacity)),
            Policy::BestFit | Policy::Concat => length,
        }
    }

    fn fit(&mut self, wanted: usize) -> Result<Rows> {
        let candidates = self.candidates();
        if u32::try_from(candidates.len()).is_err() {
            return Err(Error::invalid("more than 2^32 pieces in one window"));
        }
        let lengths: Vec<u32> = candidates.iter().map(|candidate| candidate.placed).collect();
        let assigned = best_fit(&lengths, self.capacity, self.limits.max_segments);
        let total = assigned.opener.len();
        let last = self.ready >= (wanted as i64).saturating_mul(i64::from(self.capacity));
        let held = self.held_back(&assigned.fill, &assigned.opener, wanted, last);

        // Openers in the mixture's order are the rows in theirs.
        let mut opened = vec![u32::MAX; candidates.len()];
        for (row, &opener) in assigned.opener.iter().enumerate() {
            if !held[row] {
                opened[opener as usize] = row as u32;
            }
        }
        let leaving: Vec<u32> =
            opened.into_iter().filter(|&row| row != u32::MAX).take(wanted).collect();
        let mut place = vec![u32::MAX; total];
        for (position, &row) in leaving.iter().enumerate() {
            place[row as usize] = position as u32;
        }
        let mut rows = Rows::with_counts(leaving.iter().map(|&row| assigned.pieces[row as usize]))?;
        let mut next: Vec<i32> = rows.offsets[..leaving.len()].to_vec();
        self.queue.clear();
        for (candidate, &row) in candidates.iter().zip(&assigned.row) {
            match place[row as usize] {
                u32::MAX => put_back(&mut self.queue, candidate.waiting),
                position => {
                    let at = &mut next[position as usize];
                    self.emit(&mut rows, *at as usize, *candidate);
                    *at += 1;
                }
            }
        }
        Ok(rows)
    }

    /// The queue in parts of at most one row.
    fn candidates(&self) -> Vec<Candidate> {
        let capacity = i64::from(self.capacity);
        let mut candidates = Vec::with_capacity(self.queue.len());
        for &waiting in &self.queue {
            if self.policy == Policy::Truncate {
                let placed = self.usable(waiting.piece.length) as u32;
                candidates.push(Candidate { waiting, placed });
                continue;
            }
            let Waiting { mut piece, ends } = waiting;
            while piece.length > capacity {
                let part = Piece { length: capacity, ..piece };
                let waiting = Waiting { piece: part, ends: false };
                candidates.push(Candidate { waiting, placed: self.capacity });
                piece.start += capacity;
                piece.length -= capacity;
            }
            let placed = piece.length as u32;
            candidates.push(Candidate { waiting: Waiting { piece, ends }, placed });
        }
        candidates
    }

    /// Which rows wait for the next window or stage because they are too empty.
    fn held_back(&self, fill: &[u32], opener: &[u32], wanted: usize, last: bool) -> Vec<bool> {
        let least = (self.limits.min_fill * f64::from(self.capacity)).ceil() as u32;
        let mut held: Vec<bool> = fill.iter().map(|&fill| fill < least).collect();
        let total = fill.len();
        let most = if last {
            total.saturating_sub(wanted).min((total / HELD_BACK_LAST).max(1))
        } else {
            total / HELD_BACK
        };
        // A row that is nearly full gains nothing by waiting.
        let nearly_full = if last { self.capacity } else { self.capacity - self.capacity / 64 };
        let mut emptiest: Vec<usize> =
            (0..total).filter(|&row| !held[row] && fill[row] < nearly_full).collect();
        let by_fill = |&row: &usize| (fill[row], std::cmp::Reverse(opener[row]));
        if most < emptiest.len() {
            emptiest.select_nth_unstable_by_key(most, by_fill);
            emptiest.truncate(most);
        }
        for row in emptiest {
            held[row] = true;
        }
        held
    }

    fn concat(&mut self, wanted: usize) -> Result<Rows> {
        let mut counts: Vec<u32> = Vec::new();
        let mut placed: Vec<Candidate> = Vec::new();
        let (mut room, mut pieces) = (self.capacity, 0);
        let mut queue = std::mem::take(&mut self.queue).into_iter();
        let mut rest: Option<Waiting> = None;
        while counts.len() < wanted {
            let Some(waiting) = rest.take().or_else(|| queue.next()) else { break };
            let Waiting { mut piece, ends } = waiting;
            let part = piece.length.min(i64::from(room));
            let whole = part == piece.length;
            placed.push(Candidate {
                waiting: Waiting { piece: Piece { length: part, ..piece }, ends: ends && whole },
                placed: part as u32,
            });
            if !whole {
                piece.start += part;
                piece.length -= part;
                rest = Some(Waiting { piece, ends });
            }
            room -= part as u32;
            pieces += 1;
            if room == 0 || pieces == self.limits.max_segments {
                counts.push(pieces);
                (room, pieces) = (self.capacity, 0);
            }
        }
        // The row that did not become full waits, together with what was not looked at.
        let complete = placed.len() - pieces as usize;
        let unfinished = placed[complete..].iter().map(|candidate| candidate.waiting);
        for waiting in unfinished.chain(rest).chain(queue) {
            put_back(&mut self.queue, waiting);
        }
        let mut rows = Rows::with_counts(counts.into_iter())?;
        for (at, &candidate) in placed[..complete].iter().enumerate() {
            self.emit(&mut rows, at, candidate);
        }
        Ok(rows)
    }

    fn emit(&mut self, rows: &mut Rows, at: usize, candidate: Candidate) {
        let Candidate { waiting: Waiting { piece, ends }, placed } = candidate;
        let dropped = piece.length - i64::from(placed);
        self.counts.truncated_tokens += dropped;
        if piece.start == 0 && (!ends || dropped > 0) {
            self.counts.cut_documents += 1;
        }
        rows.set(at, Piece { length: i64::from(placed), ..piece });
    }
}

/// Appends `waiting`, joined to the last one if it continues it: a longer row may take both.
fn put_back(queue: &mut Vec<Waiting>, waiting: Waiting) {
    if let Some(last) = queue.last_mut() {
        let continues = last.piece.document == waiting.piece.document
            && !last.ends
            && last.piece.start + last.piece.length == waiting.piece.start;
        if continues {
            last.piece.length += waiting.piece.length;
            last.ends = waiting.ends;
            return;
        }
    }
    queue.push(waiting);
}

#[cfg(test)]
#[path = "packer_tests.rs"]
mod tests;

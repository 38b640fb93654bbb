//! What waits after rows that another plan has already given away.
//!
//! A revised schedule keeps the rows that were trained on. Their documents are taken out of the
//! mixture's order again, piece by piece, and packing goes on with the rest.

use std::collections::HashMap;

use super::Piece;
use super::packer::Waiting;

/// Documents that wait, found by document. Of equal ones, which are epochs of one document, the
/// earliest is taken.
pub(super) struct Replay {
    /// What is left of each document, in the mixture's order.
    left: Vec<Vec<Waiting>>,
    by_document: HashMap<i64, Vec<u32>>,
}

impl Replay {
    pub fn new(queue: &[Waiting]) -> Self {
        let mut replay = Self { left: Vec::new(), by_document: HashMap::new() };
        // Parts of one document stand together, so they are one entry again.
        for &waiting in queue {
            let joins = replay.left.last().and_then(|parts| parts.last()).is_some_and(|last| {
                last.piece.document == waiting.piece.document
                    && last.piece.start + last.piece.length <= waiting.piece.start
                    && !last.ends
            });
            if joins {
                replay.left.last_mut().expect("joins an entry").push(waiting);
            } else {
                let entry = replay.left.len() as u32;
                replay.by_document.entry(waiting.piece.document).or_default().push(entry);
                replay.left.push(vec![waiting]);
            }
        }
        replay
    }

    /// Whether every piece of a row waits, as many times as the row has it.
    pub fn has(&self, row: impl Iterator<Item = Piece>) -> bool {
        let mut row: Vec<Piece> = row.collect();
        row.sort_unstable();
        row.chunk_by(|a, b| a.document == b.document).all(|same| {
            same.iter().all(|&piece| {
                let needed = same.iter().filter(|&&other| overlap(piece, other)).count();
                match needed {
                    1 => self.find(piece).is_some(),
                    _ => self.count(piece) >= needed,
                }
            })
        })
    }

    /// Entries that hold `piece`.
    fn count(&self, piece: Piece) -> usize {
        let entries = self.by_document.get(&piece.document);
        let holds = |entry: &&u32| self.left[**entry as usize].iter().any(|w| holds(w, piece));
        entries.map_or(0, |entries| entries.iter().filter(holds).count())
    }

    /// Place in the list of its document, entry, and part of the entry that holds `piece`.
    fn find(&self, piece: Piece) -> Option<(usize, usize, usize)> {
        let entries = self.by_document.get(&piece.document)?;
        entries.iter().enumerate().find_map(|(place, &entry)| {
            let part = self.left[entry as usize].iter().position(|w| holds(w, piece))?;
            Some((place, entry as usize, part))
        })
    }

    /// Takes `piece` out; with `whole`, everything of its document. Returns what it was part of.
    pub fn take(&mut self, piece: Piece, whole: bool) -> Option<Waiting> {
        let (place, entry, part) = self.find(piece)?;
        let end = piece.start + piece.length;
        let parts = &mut self.left[entry];
        let found = parts[part];
        let before = Piece { length: piece.start - found.piece.start, ..found.piece };
        let after = Piece {
            start: end,
            length: found.piece.start + found.piece.length - end,
            ..found.piece
        };
        let rest =
            [Waiting { piece: before, ends: false }, Waiting { piece: after, ends: found.ends }];
        let rest = rest.into_iter().filter(|waiting| !whole && waiting.piece.length > 0);
        parts.splice(part..=part, rest);
        if parts.is_empty()
            && let Some(entries) = self.by_document.get_mut(&piece.document)
        {
            entries.remove(place);
        }
        Some(found)
    }

    /// What waits, in the mixture's order.
    pub fn into_queue(self) -> Vec<Waiting> {
        self.left.into_iter().flatten().collect()
    }
}

fn holds(waiting: &Waiting, piece: Piece) -> bool {
    let end = waiting.piece.start + waiting.piece.length;
    waiting.piece.start <= piece.start && piece.start + piece.length <= end
}

fn overlap(a: Piece, b: Piece) -> bool {
    a.start < b.start + b.length && b.start < a.start + a.length
}

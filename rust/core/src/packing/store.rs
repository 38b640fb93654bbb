//! Tokens of one cell, read from its Arrow files where they lie.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;

use arrow_buffer::ScalarBuffer;

use super::Piece;
use crate::{Error, Result, bytes};

/// One record batch of a cell: where its token values lie in which file.
pub struct TokenChunk {
    /// Index into the cell's files.
    pub file: usize,
    /// Position of the first value in the file, in bytes.
    pub values_at: u64,
    /// Document `i` of the chunk has the values `offsets[i]..offsets[i + 1]`.
    pub offsets: ScalarBuffer<i64>,
}

/// The documents of one cell, numbered through all of its files.
///
/// Tokens are read with positioned reads, not through a memory map: memory does not grow with the
/// store, and a file that is cut while it is read is an error and not a signal.
pub struct StoreCell {
    files: Vec<(PathBuf, OnceLock<File>)>,
    chunks: Vec<TokenChunk>,
    /// First document of each chunk, and the number of all documents.
    first: Vec<i64>,
    /// Documents of the first chunk: most writers make all but the last ones equal.
    usual: i64,
}

impl StoreCell {
    pub fn new(files: Vec<PathBuf>, chunks: Vec<TokenChunk>) -> Result<Self> {
        let mut first = vec![0];
        let mut total = 0;
        for chunk in &chunks {
            if chunk.file >= files.len() {
                return Err(Error::invalid(format!("chunk of file {}", chunk.file)));
            }
            total += chunk.offsets.len() as i64 - 1;
            first.push(total);
        }
        let files = files.into_iter().map(|path| (path, OnceLock::new())).collect();
        let usual = first.get(1).copied().unwrap_or(1).max(1);
        Ok(Self { files, chunks, first, usual })
    }

    pub fn documents(&self) -> i64 {
        self.first[self.chunks.len()]
    }

    pub fn tokens(&self) -> i64 {
        let ends = |chunk: &TokenChunk| chunk.offsets[chunk.offsets.len() - 1] - chunk.offsets[0];
        self.chunks.iter().map(ends).sum()
    }

    /// Tokens of `document`.
    pub fn length(&self, document: i64) -> Result<i64> {
        let (chunk, at) = self.locate(document)?;
        Ok(chunk.offsets[at + 1] - chunk.offsets[at])
    }

    /// Reads the tokens of `piece` into `out`, which has its length.
    pub fn read(&self, piece: Piece, out: &mut [i32]) -> Result<()> {
        let (chunk, at) = self.locate(piece.document)?;
        let (begin, end) = (chunk.offsets[at], chunk.offsets[at + 1]);
        let (path, handle) = &self.files[chunk.file];
        if piece.start < 0 || piece.length > end.saturating_sub(begin).saturating_sub(piece.start) {
            return Err(Error::invalid(format!(
                "{}: document {} has {} tokens, the plan wants {} from {} on; plan again",
                path.display(),
                piece.document,
                end - begin,
                piece.length,
                piece.start
            )));
        }
        let file = match handle.get() {
            Some(file) => file,
            None => {
                let opened = File::open(path).map_err(|error| unreadable(path, &error))?;
                handle.get_or_init(|| opened)
            }
        };
        let position = chunk.values_at + 4 * (begin + piece.start) as u64;
        file.read_exact_at(bytes::of_mut(out), position).map_err(|error| unreadable(path, &error))
    }

    fn locate(&self, document: i64) -> Result<(&TokenChunk, usize)> {
        if document < 0 || document >= self.documents() {
            return Err(Error::invalid(format!(
                "document {document} of a cell with {} documents; plan again",
                self.documents()
            )));
        }
        let guess = (document / self.usual) as usize;
        let chunk = match self.first.get(guess..guess + 2) {
            Some(&[first, end]) if first <= document && document < end => guess,
            _ => self.first.partition_point(|&first| first <= document) - 1,
        };
        Ok((&self.chunks[chunk], (document - self.first[chunk]) as usize))
    }
}

fn unreadable(path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::invalid(format!("{}: cannot read tokens: {error}", path.display()))
}

//! Rows from one shard file, each record batch checked before its first use.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use super::derive::{RowsOut, derive_row};
use crate::{Error, Result, bytes};

/// One record batch of a shard. Positions `*_at` count bytes from the block's beginning.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Position of the block (message and body) in the file, in bytes.
    pub offset: u64,
    pub bytes: u64,
    pub rows: u32,
    /// int32 [rows, row_length]
    pub tokens_at: u64,
    /// int32 [rows + 1]
    pub segment_offsets_at: u64,
    /// int32 [segment_offsets[rows]]
    pub segments_at: u64,
    /// uint16 [rows]
    pub cells_at: u64,
    /// xxh3 of the block's bytes.
    pub xxh3: u64,
}

/// How rows lie in a shard: every block but the last one holds `rows_per_block`.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub row_length: usize,
    pub rows_per_block: usize,
}

/// An open shard. Reads are positioned, so that memory stays at a block per thread.
pub struct Shard {
    path: PathBuf,
    file: File,
    geometry: Geometry,
    blocks: Vec<Block>,
    row_xxh3: Vec<u64>,
    /// Blocks that passed their checksum and are kept for the next call, one per idle thread.
    idle: Mutex<Vec<Loaded>>,
}

struct Loaded {
    block: usize,
    data: Vec<u8>,
}

impl Shard {
    /// Opens a shard of `bytes` bytes whose content outside of the blocks has the xxh3 `frame`.
    pub fn open(
        path: &Path,
        bytes: u64,
        frame: u64,
        geometry: Geometry,
        blocks: Vec<Block>,
        row_xxh3: Vec<u64>,
    ) -> Result<Self> {
        let file = File::open(path).map_err(|error| damaged(path, error))?;
        let found = file.metadata().map_err(|error| damaged(path, error))?.len();
        if found != bytes {
            return Err(damaged(path, format!("{found} bytes, expected {bytes}")));
        }
        let rows: usize = blocks.iter().map(|block| block.rows as usize).sum();
        let regular = blocks.iter().enumerate().all(|(at, block)| {
            let rows = block.rows as usize;
            rows == geometry.rows_per_block
                || at + 1 == blocks.len() && rows < geometry.rows_per_block
        });
        if geometry.row_length == 0 || !regular || row_xxh3.len() != rows {
            return Err(damaged(path, "its index does not fit its geometry"));
        }
        let shard =
            Self { path: path.into(), file, geometry, blocks, row_xxh3, idle: Mutex::default() };
        if frame_checksum(&shard.file, bytes, &shard.blocks)
            .map_err(|error| damaged(path, error))?
            != frame
        {
            return Err(damaged(path, "the Arrow header or footer differs from its checksum"));
        }
        Ok(shard)
    }

    pub fn rows(&self) -> usize {
        self.row_xxh3.len()
    }

    /// Reads rows `first..first + out.cells.len()`.
    pub fn read(&self, first: usize, out: &mut RowsOut) -> Result<()> {
        let Geometry { row_length, rows_per_block } = self.geometry;
        let rows = out.cells.len();
        out.check(rows, row_length)?;
        if first.checked_add(rows).is_none_or(|end| end > self.rows()) {
            return Err(Error::invalid(format!(
                "{}: rows {first} to {} of {}",
                self.path.display(),
                first.saturating_add(rows),
                self.rows()
            )));
        }
        let mut loaded = self.take_idle(first / rows_per_block);
        let mut done = 0;
        while done < rows {
            let block = (first + done) / rows_per_block;
            let row = (first + done) % rows_per_block;
            let count = (rows_per_block - row).min(rows - done);
            self.load(block, &mut loaded)?;
            self.copy(&loaded, row, done..done + count, out)?;
            done += count;
        }
        self.idle.lock().expect("no panic while held").push(loaded);
        Ok(())
    }

    fn take_idle(&self, block: usize) -> Loaded {
        let mut idle = self.idle.lock().expect("no panic while held");
        let at = idle.iter().position(|loaded| loaded.block == block);
        match at {
            Some(at) => idle.swap_remove(at),
            None => idle.pop().unwrap_or(Loaded { block: usize::MAX, data: Vec::new() }),
        }
    }

    fn load(&self, index: usize, loaded: &mut Loaded) -> Result<()> {
        if loaded.block == index {
            return Ok(());
        }
        let block = &self.blocks[index];
        loaded.block = usize::MAX;
        loaded.data.resize(block.bytes as usize, 0);
        self.file
            .read_exact_at(&mut loaded.data, block.offset)
            .map_err(|error| damaged(&self.path, format!("record batch {index}: {error}")))?;
        if xxh3_64(&loaded.data) != block.xxh3 {
            return Err(damaged(&self.path, self.name_damage(index, &loaded.data)));
        }
        loaded.block = index;
        Ok(())
    }

    /// The first row of a block, counted in the shard, whose checksum is wrong.
    fn wrong_row(&self, index: usize, data: &[u8]) -> Option<usize> {
        let first = index * self.geometry.rows_per_block;
        let expected = &self.row_xxh3[first..][..self.blocks[index].rows as usize];
        let view = View::of(data, &self.blocks[index], self.geometry.row_length)?;
        let wrong =
            (0..expected.len()).find(|&row| view.row_checksum(row) != Some(expected[row]))?;
        Some(first + wrong)
    }

    /// Says what of a block with a wrong checksum is damaged.
    fn name_damage(&self, index: usize, data: &[u8]) -> String {
        let first = index * self.geometry.rows_per_block;
        match self.wrong_row(index, data) {
            Some(row) => format!(
                "record batch {index}, row {row} of the shard: content differs from its checksum"
            ),
            None => format!(
                "record batch {index}, rows {first} to {}: its Arrow metadata differs from its \
                 checksum",
                first + self.blocks[index].rows as usize - 1
            ),
        }
    }

    fn copy(
        &self,
        loaded: &Loaded,
        row: usize,
        to: std::ops::Range<usize>,
        out: &mut RowsOut,
    ) -> Result<()> {
        let length = self.geometry.row_length;
        let no_row = |at: usize| {
            damaged(&self.path, format!("record batch {}, row {at}: no packed row", loaded.block))
        };
        let view = View::of(&loaded.data, &self.blocks[loaded.block], length)
            .ok_or_else(|| no_row(row))?;
        let wide = to.start * length..to.end * length;
        bytes::of_mut(&mut out.tokens[wide])
            .copy_from_slice(&view.tokens[row * length * 4..][..to.len() * length * 4]);
        bytes::of_mut(&mut out.cells[to.clone()])
            .copy_from_slice(&view.cells[row * 2..][..to.len() * 2]);
        for (at, target) in to.enumerate() {
            let wide = target * length..(target + 1) * length;
            let good = view.segments(row + at).is_some_and(|segments| {
                derive_row(
                    numbers(segments),
                    &mut out.segment_ids[wide.clone()],
                    &mut out.positions[wide.clone()],
                    &mut out.loss_mask[wide],
                )
            });
            if !good {
                return Err(no_row(row + at));
            }
        }
        Ok(())
    }
}

/// The columns of a block as bytes.
struct View<'a> {
    tokens: &'a [u8],
    segment_offsets: &'a [u8],
    segments: &'a [u8],
    cells: &'a [u8],
    row_length: usize,
}

impl<'a> View<'a> {
    fn of(data: &'a [u8], block: &Block, row_length: usize) -> Option<Self> {
        let rows = block.rows as usize;
        let part = |at: u64, bytes: usize| data.get(at as usize..)?.get(..bytes);
        Some(Self {
            tokens: part(block.tokens_at, rows * row_length * 4)?,
            segment_offsets: part(block.segment_offsets_at, (rows + 1) * 4)?,
            segments: data.get(block.segments_at as usize..)?,
            cells: part(block.cells_at, rows * 2)?,
            row_length,
        })
    }

    fn segments(&self, row: usize) -> Option<&'a [u8]> {
        let mut bounds = numbers(&self.segment_offsets[row * 4..][..8]);
        let begin = usize::try_from(bounds.next()?).ok()?;
        let end = usize::try_from(bounds.next()?).ok()?;
        self.segments.get(begin * 4..end * 4)
    }

    fn row_checksum(&self, row: usize) -> Option<u64> {
        let wide = self.row_length * 4;
        let tokens = &self.tokens[row * wide..][..wide];
        let cell = &self.cells[row * 2..][..2];
        let rest = xxh3_64_with_seed(cell, xxh3_64(self.segments(row)?));
        Some(xxh3_64_with_seed(tokens, rest))
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = i32> + '_ {
    bytes.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes))
}

/// Checksums of a shard beside those of its blocks.
pub struct Checksums {
    /// xxh3 of each row.
    pub rows: Vec<u64>,
    /// xxh3 of what lies before, between and after the blocks.
    pub frame: u64,
    /// xxh3 of the whole file, as in manifests.
    pub file: u128,
}

/// Sets the checksums of `blocks` from the file, which it reads once, and returns the others.
pub fn checksum_blocks(path: &Path, row_length: usize, blocks: &mut [Block]) -> Result<Checksums> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut whole = Xxh3::new();
    let mut rows = Vec::new();
    let mut data = Vec::new();
    let mut at = 0;
    for block in blocks.iter_mut() {
        let end = block.offset.checked_add(block.bytes).filter(|&end| end <= bytes);
        let (Some(end), Some(gap)) = (end, block.offset.checked_sub(at)) else {
            return Err(damaged(path, "its blocks overlap or end behind it"));
        };
        hash_range(&file, at, gap, &mut whole)?;
        data.resize(block.bytes as usize, 0);
        file.read_exact_at(&mut data, block.offset)?;
        whole.update(&data);
        block.xxh3 = xxh3_64(&data);
        let view = View::of(&data, block, row_length)
            .ok_or_else(|| damaged(path, "a record batch is shorter than its rows"))?;
        for row in 0..block.rows as usize {
            let checksum = view.row_checksum(row);
            rows.push(checksum.ok_or_else(|| damaged(path, "a row has no segments"))?);
        }
        at = end;
    }
    hash_range(&file, at, bytes - at, &mut whole)?;
    let frame = frame_checksum(&file, bytes, blocks)?;
    Ok(Checksums { rows, frame, file: whole.digest128() })
}

fn hash_range(file: &File, at: u64, bytes: u64, hasher: &mut Xxh3) -> std::io::Result<()> {
    let mut data = vec![0; bytes as usize];
    file.read_exact_at(&mut data, at)?;
    hasher.update(&data);
    Ok(())
}

/// xxh3 of what a file holds before, between and after its blocks.
fn frame_checksum(file: &File, bytes: u64, blocks: &[Block]) -> std::io::Result<u64> {
    let mut checksum = 0;
    let mut at = 0;
    let mut data = Vec::new();
    let ends = blocks.iter().map(|block| (block.offset, block.offset + block.bytes));
    for (end, next) in ends.chain([(bytes, bytes)]) {
        if end < at {
            return Err(std::io::Error::other("its blocks overlap"));
        }
        if end > at || end == bytes {
            data.resize((end - at) as usize, 0);
            file.read_exact_at(&mut data, at)?;
            checksum = xxh3_64_with_seed(&data, checksum);
        }
        at = next;
    }
    Ok(checksum)
}

fn damaged(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {what}", path.display()))
}

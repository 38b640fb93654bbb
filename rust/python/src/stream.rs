use std::path::PathBuf;

use marin_core::stream as core;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::to_py_err;

/// Columns of the block table, in this order, as int64; `checksums` beside it are uint64.
const BLOCK_COLUMNS: usize = 7;

type Checksums<'py> = Bound<'py, PyArray1<u64>>;

fn blocks(
    table: &PyReadonlyArray2<'_, i64>,
    xxh3: Option<&PyReadonlyArray1<'_, u64>>,
) -> PyResult<Vec<core::Block>> {
    let table = table.as_array();
    if table.ncols() != BLOCK_COLUMNS {
        return Err(PyValueError::new_err(format!("{} columns of blocks", table.ncols())));
    }
    let xxh3 = xxh3.map(|xxh3| xxh3.as_slice()).transpose()?;
    if xxh3.is_some_and(|xxh3| xxh3.len() != table.nrows()) {
        return Err(PyValueError::new_err("blocks and their checksums differ in number"));
    }
    let rows = table.rows().into_iter().enumerate().map(|(at, row)| core::Block {
        offset: row[0] as u64,
        bytes: row[1] as u64,
        rows: row[2] as u32,
        tokens_at: row[3] as u64,
        segment_offsets_at: row[4] as u64,
        segments_at: row[5] as u64,
        cells_at: row[6] as u64,
        xxh3: xxh3.map_or(0, |xxh3| xxh3[at]),
    });
    Ok(rows.collect())
}

#[pyclass(frozen, module = "marin._native")]
struct Shard(core::Shard);

#[pymethods]
impl Shard {
    #[new]
    #[allow(clippy::too_many_arguments)] // one per field of the index file
    fn new(
        py: Python<'_>,
        path: PathBuf,
        bytes: u64,
        frame: u64,
        row_length: usize,
        rows_per_block: usize,
        block_table: PyReadonlyArray2<'_, i64>,
        block_xxh3: PyReadonlyArray1<'_, u64>,
        row_xxh3: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Self> {
        let geometry = core::Geometry { row_length, rows_per_block };
        let blocks = blocks(&block_table, Some(&block_xxh3))?;
        let row_xxh3 = row_xxh3.as_slice()?.to_vec();
        py.detach(|| core::Shard::open(&path, bytes, frame, geometry, blocks, row_xxh3))
            .map(Self)
            .map_err(to_py_err)
    }

    #[getter]
    fn rows(&self) -> usize {
        self.0.rows()
    }

    #[allow(clippy::too_many_arguments)] // one per array of a batch
    fn read(
        &self,
        py: Python<'_>,
        first: usize,
        mut tokens: PyReadwriteArray1<'_, i32>,
        mut segment_ids: PyReadwriteArray1<'_, i32>,
        mut positions: PyReadwriteArray1<'_, i32>,
        mut loss_mask: PyReadwriteArray1<'_, u8>,
        mut cells: PyReadwriteArray1<'_, u16>,
    ) -> PyResult<()> {
        let mut out = core::RowsOut {
            tokens: tokens.as_slice_mut()?,
            segment_ids: segment_ids.as_slice_mut()?,
            positions: positions.as_slice_mut()?,
            loss_mask: loss_mask.as_slice_mut()?,
            cells: cells.as_slice_mut()?,
        };
        py.detach(|| self.0.read(first, &mut out)).map_err(to_py_err)
    }
}

#[pyfunction]
fn checksum_shard<'py>(
    py: Python<'py>,
    path: PathBuf,
    row_length: usize,
    block_table: PyReadonlyArray2<'py, i64>,
) -> PyResult<(Checksums<'py>, Checksums<'py>, u64, String)> {
    let mut blocks = blocks(&block_table, None)?;
    let found =
        py.detach(|| core::checksum_blocks(&path, row_length, &mut blocks)).map_err(to_py_err)?;
    let xxh3: Vec<u64> = blocks.iter().map(|block| block.xxh3).collect();
    let file = format!("{:032x}", found.file);
    Ok((xxh3.into_pyarray(py), found.rows.into_pyarray(py), found.frame, file))
}

#[pyfunction]
fn derive_rows(
    py: Python<'_>,
    segment_offsets: PyReadonlyArray1<'_, i32>,
    segment_lengths: PyReadonlyArray1<'_, i32>,
    row_length: usize,
    mut segment_ids: PyReadwriteArray1<'_, i32>,
    mut positions: PyReadwriteArray1<'_, i32>,
    mut loss_mask: PyReadwriteArray1<'_, u8>,
) -> PyResult<()> {
    let (offsets, lengths) = (segment_offsets.as_slice()?, segment_lengths.as_slice()?);
    let (ids, positions) = (segment_ids.as_slice_mut()?, positions.as_slice_mut()?);
    let mask = loss_mask.as_slice_mut()?;
    py.detach(|| core::derive_rows(offsets, lengths, row_length, ids, positions, mask))
        .map_err(to_py_err)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Shard>()?;
    module.add_function(wrap_pyfunction!(checksum_shard, module)?)?;
    module.add_function(wrap_pyfunction!(derive_rows, module)?)
}

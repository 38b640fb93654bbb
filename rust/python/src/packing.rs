use std::path::PathBuf;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_buffer::ScalarBuffer;
use marin_core::packing as core;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadwriteArray1};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrow::ArrowIn;
use crate::mixture::DocumentOrder;
use crate::to_py_err;

/// Row offsets, and per piece document, start and length.
type Columns<'py> = (
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i32>>,
);

/// Segment offsets and lengths.
type SegmentColumns<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

#[pyclass(module = "marin._native")]
struct Packer(core::Packer);

#[pymethods]
impl Packer {
    #[new]
    fn new(policy: &str, max_segments: u32, min_fill: f64, row_length: u32) -> PyResult<Self> {
        let policy = match policy {
            "best-fit" => core::Policy::BestFit,
            "concat" => core::Policy::Concat,
            "truncate" => core::Policy::Truncate,
            other => {
                return Err(PyValueError::new_err(format!(
                    "policy {other:?}, expected best-fit, concat or truncate"
                )));
            }
        };
        let limits = core::Limits { max_segments, min_fill };
        core::Packer::new(policy, limits, row_length).map(Self).map_err(to_py_err)
    }

    fn set_row_length(&mut self, row_length: u32) -> PyResult<()> {
        self.0.set_capacity(row_length).map_err(to_py_err)
    }

    fn push(
        &mut self,
        py: Python<'_>,
        documents: PyReadonlyArray1<'_, i64>,
        lengths: PyReadonlyArray1<'_, i64>,
        enough: i64,
    ) -> PyResult<usize> {
        let (documents, lengths) = (documents.as_slice()?, lengths.as_slice()?);
        if documents.len() != lengths.len() {
            let (found, expected) = (lengths.len(), documents.len());
            return Err(PyValueError::new_err(format!("{found} lengths of {expected} documents")));
        }
        let pairs = documents.iter().copied().zip(lengths.iter().copied());
        py.detach(|| self.0.push(pairs, enough)).map_err(to_py_err)
    }

    fn push_from(
        &mut self,
        py: Python<'_>,
        order: PyRef<'_, DocumentOrder>,
        cell: PyRef<'_, StoreCell>,
        start: u64,
        count: usize,
        enough: i64,
    ) -> PyResult<usize> {
        let (order, cell) = (&order.0, &cell.0);
        let documents = order.from(start).take(count).map(|(document, _)| document as i64);
        py.detach(|| self.0.push_from(cell, documents, enough)).map_err(to_py_err)
    }

    #[getter]
    fn ready_tokens(&self) -> i64 {
        self.0.ready_tokens()
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.0.waiting().len()
    }

    #[getter]
    fn waiting_tokens(&self) -> i64 {
        self.0.waiting().map(|piece| piece.length).sum()
    }

    #[getter]
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.counts();
        let dict = PyDict::new(py);
        dict.set_item("documents", counts.documents)?;
        dict.set_item("tokens", counts.tokens)?;
        dict.set_item("empty_documents", counts.empty_documents)?;
        dict.set_item("rows", counts.rows)?;
        dict.set_item("packed_tokens", counts.packed_tokens)?;
        dict.set_item("cut_documents", counts.cut_documents)?;
        dict.set_item("truncated_tokens", counts.truncated_tokens)?;
        Ok(dict)
    }

    fn replay(
        &mut self,
        py: Python<'_>,
        offsets: PyReadonlyArray1<'_, i32>,
        document: PyReadonlyArray1<'_, i64>,
        start: PyReadonlyArray1<'_, i64>,
        length: PyReadonlyArray1<'_, i32>,
    ) -> PyResult<usize> {
        let rows = core::Rows {
            offsets: offsets.as_slice()?.to_vec(),
            document: document.as_slice()?.to_vec(),
            start: start.as_slice()?.to_vec(),
            length: length.as_slice()?.to_vec(),
        };
        py.detach(|| self.0.replay(&rows)).map_err(to_py_err)
    }

    fn pack<'py>(&mut self, py: Python<'py>, wanted: usize) -> PyResult<Columns<'py>> {
        let rows = py.detach(|| self.0.pack(wanted)).map_err(to_py_err)?;
        Ok((
            rows.offsets.into_pyarray(py),
            rows.document.into_pyarray(py),
            rows.start.into_pyarray(py),
            rows.length.into_pyarray(py),
        ))
    }
}

#[pyclass(frozen, module = "marin._native")]
struct StoreCell(core::StoreCell);

#[pymethods]
impl StoreCell {
    #[new]
    fn new(files: Vec<PathBuf>, chunks: Vec<(usize, u64, ArrowIn)>) -> PyResult<Self> {
        let chunks = chunks.into_iter().map(|(file, values_at, ArrowIn(array))| {
            let lists = array.as_list_opt::<i64>().filter(|lists| lists.null_count() == 0);
            let lists = lists.ok_or_else(|| {
                let found = array.data_type();
                PyTypeError::new_err(format!(
                    "tokens are {found}, expected large_list without null"
                ))
            })?;
            Ok(core::TokenChunk { file, values_at, offsets: lists.offsets().inner().clone() })
        });
        let chunks = chunks.collect::<PyResult<_>>()?;
        core::StoreCell::new(files, chunks).map(Self).map_err(to_py_err)
    }

    #[getter]
    fn documents(&self) -> i64 {
        self.0.documents()
    }

    #[getter]
    fn tokens(&self) -> i64 {
        self.0.tokens()
    }

    fn lengths<'py>(
        &self,
        py: Python<'py>,
        documents: PyReadonlyArray1<'_, i64>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let documents = documents.as_slice()?;
        let lengths: marin_core::Result<Vec<i64>> =
            py.detach(|| documents.iter().map(|&document| self.0.length(document)).collect());
        Ok(lengths.map_err(to_py_err)?.into_pyarray(py))
    }
}

#[pyclass(frozen, module = "marin._native")]
struct PlanRows(core::PlanRows);

#[pymethods]
impl PlanRows {
    #[new]
    fn new(chunks: Vec<ArrowIn>) -> PyResult<Self> {
        let chunks = chunks.into_iter().map(|ArrowIn(array)| {
            let lists = array.as_list_opt::<i32>().ok_or_else(wrong_plan)?;
            let pieces = lists.values().as_struct_opt().ok_or_else(wrong_plan)?;
            Ok(core::PlanChunk {
                offsets: lists.offsets().inner().clone(),
                document: column::<Int64Type>(pieces, "document")?,
                start: column::<Int64Type>(pieces, "start")?,
                length: column::<Int32Type>(pieces, "length")?,
            })
        });
        Ok(Self(core::PlanRows::new(chunks.collect::<PyResult<_>>()?)))
    }

    #[getter]
    fn rows(&self) -> i64 {
        self.0.rows()
    }

    fn pieces<'py>(
        &self,
        py: Python<'py>,
        index: PyReadonlyArray1<'_, i64>,
    ) -> PyResult<Columns<'py>> {
        let mut rows = core::Rows { offsets: vec![0], ..Default::default() };
        for &index in index.as_slice()? {
            for piece in self.0.row(index).map_err(to_py_err)? {
                rows.document.push(piece.document);
                rows.start.push(piece.start);
                rows.length.push(piece.length as i32);
            }
            rows.offsets.push(rows.document.len() as i32);
        }
        Ok((
            rows.offsets.into_pyarray(py),
            rows.document.into_pyarray(py),
            rows.start.into_pyarray(py),
            rows.length.into_pyarray(py),
        ))
    }
}

fn wrong_plan() -> PyErr {
    PyTypeError::new_err("expected list<struct<document: int64, start: int64, length: int32>>")
}

fn column<T: ArrowPrimitiveType>(
    pieces: &arrow_array::StructArray,
    name: &str,
) -> PyResult<ScalarBuffer<T::Native>> {
    let column = pieces.column_by_name(name).ok_or_else(wrong_plan)?;
    let column = column.as_primitive_opt::<T>().ok_or_else(wrong_plan)?;
    Ok(column.values().clone())
}

#[pyfunction]
fn assemble_rows<'py>(
    py: Python<'py>,
    sources: Vec<Option<(Py<PlanRows>, Py<StoreCell>)>>,
    cell: PyReadonlyArray1<'py, u16>,
    index: PyReadonlyArray1<'py, i64>,
    row_length: usize,
    mut tokens: PyReadwriteArray1<'py, i32>,
) -> PyResult<SegmentColumns<'py>> {
    let sources: Vec<_> = sources
        .iter()
        .map(|source| source.as_ref().map(|(plan, store)| (&plan.get().0, &store.get().0)))
        .collect();
    let (cell, index) = (cell.as_slice()?, index.as_slice()?);
    let tokens = tokens.as_slice_mut()?;
    let find = |cell: u16| sources.get(usize::from(cell)).copied().flatten();
    let segments =
        py.detach(|| core::assemble(find, cell, index, row_length, tokens)).map_err(to_py_err)?;
    Ok((segments.offsets.into_pyarray(py), segments.lengths.into_pyarray(py)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Packer>()?;
    module.add_class::<StoreCell>()?;
    module.add_class::<PlanRows>()?;
    module.add_function(wrap_pyfunction!(assemble_rows, module)?)
}

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, Float32Array, UInt32Array};
use marin_core::datakit::contamination::{Found, Index};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::record;
use crate::arrow::{ArrowArray, ArrowIn, strings};
use crate::to_py_err;

#[pyclass(frozen, module = "marin._native")]
struct ContaminationIndex(Index);

#[pymethods]
impl ContaminationIndex {
    #[new]
    fn new(py: Python<'_>, items: Vec<ArrowIn>, n: usize) -> PyResult<Self> {
        let mut texts = Vec::new();
        for chunk in &items {
            texts.extend(strings(&chunk.0)?);
        }
        py.detach(|| Index::new(&texts, n)).map(Self).map_err(to_py_err)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn search(&self, py: Python<'_>, texts: ArrowIn, threads: usize) -> PyResult<ArrowArray> {
        let texts = strings(&texts.0)?;
        let found = py.detach(|| self.0.search(&texts, threads)).map_err(to_py_err)?;
        Ok(record([
            ("grams", column(&found, |found| found.gram)),
            ("starts", column(&found, |found| found.start)),
            ("ends", column(&found, |found| found.end)),
        ]))
    }

    fn judge(
        &self,
        py: Python<'_>,
        grams: ArrowIn,
        documents_with: PyReadonlyArray1<'_, u64>,
        guard: u64,
        threshold: f64,
    ) -> PyResult<ArrowArray> {
        let Some(lists) = grams.0.as_list_opt::<i32>() else {
            return Err(PyTypeError::new_err("grams: expected lists of uint32"));
        };
        let Some(values) = lists.values().as_primitive_opt::<UInt32Type>() else {
            return Err(PyTypeError::new_err("grams: expected lists of uint32"));
        };
        let values = values.values();
        let documents: Vec<&[u32]> = lists
            .value_offsets()
            .windows(2)
            .map(|ends| &values[ends[0] as usize..ends[1] as usize])
            .collect();
        let counts = documents_with.as_slice()?;
        let verdicts =
            py.detach(|| self.0.judge(&documents, counts, guard, threshold)).map_err(to_py_err)?;
        let items: UInt32Array = verdicts.iter().map(|v| v.map(|v| v.item)).collect();
        let shares: Float32Array = verdicts.iter().map(|v| v.map(|v| v.share)).collect();
        let found: UInt32Array = verdicts.iter().map(|v| v.map(|v| v.found)).collect();
        Ok(record([
            ("item", Arc::new(items) as ArrayRef),
            ("share", Arc::new(shares)),
            ("found", Arc::new(found)),
        ]))
    }
}

fn column(found: &[Vec<Found>], value: impl Fn(&Found) -> u32) -> ArrayRef {
    let mut lists = ListBuilder::new(UInt32Builder::new());
    for document in found {
        lists.append_value(document.iter().map(|found| Some(value(found))));
    }
    Arc::new(lists.finish())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ContaminationIndex>()
}

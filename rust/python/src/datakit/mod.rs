mod contamination;
mod ingest;

use std::sync::Arc;

use arrow_array::types::Float32Type;
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float32Array, Int8Array, PrimitiveArray, StructArray,
    UInt8Array, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Fields};
use marin_core::datakit::coarsen::Coarsening;
use marin_core::datakit::{assign, coarsen, keys, lexical, quality, terms};
use numpy::{PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arrow::{ArrowArray, ArrowIn, strings};
use crate::to_py_err;

#[pyfunction]
fn document_keys(py: Python<'_>, ids: ArrowIn, seed: u64) -> PyResult<ArrowArray> {
    let ids = present(strings(&ids.0)?)?;
    let keys = py.detach(|| keys::keys(&ids, seed));
    Ok(ArrowArray(Arc::new(UInt64Array::from(keys))))
}

#[pyfunction]
fn lexical_embedding(
    py: Python<'_>,
    texts: ArrowIn,
    dimensions: usize,
    threads: usize,
) -> PyResult<ArrowArray> {
    let texts = strings(&texts.0)?;
    let quantized = py.detach(|| lexical::embed(&texts, dimensions, threads)).map_err(to_py_err)?;
    let item = Arc::new(Field::new("item", DataType::Int8, false));
    let values = Arc::new(Int8Array::from(quantized.values));
    let vectors = FixedSizeListArray::new(item, dimensions as i32, values, None);
    Ok(record([
        ("embedding", Arc::new(vectors) as ArrayRef),
        ("scale", Arc::new(Float32Array::from(quantized.scales))),
    ]))
}

#[pyfunction]
fn nearest_centroids(
    py: Python<'_>,
    embedding: PyReadonlyArray2<'_, i8>,
    scales: PyReadonlyArray1<'_, f32>,
    centroids: PyReadonlyArray2<'_, f32>,
    bias: PyReadonlyArray1<'_, f32>,
    threads: usize,
) -> PyResult<ArrowArray> {
    if embedding.shape()[1] != centroids.shape()[1] {
        return Err(PyValueError::new_err(format!(
            "embedding of {} dimensions, centroids of {}",
            embedding.shape()[1],
            centroids.shape()[1]
        )));
    }
    let (values, scales) = (embedding.as_slice()?, scales.as_slice()?);
    let (centroids, bias) = (centroids.as_slice()?, bias.as_slice()?);
    let (labels, scores) = py
        .detach(|| assign::nearest(values, scales, centroids, bias, threads))
        .map_err(to_py_err)?;
    Ok(record([
        ("label", Arc::new(UInt32Array::from(labels)) as ArrayRef),
        ("score", Arc::new(Float32Array::from(scores))),
    ]))
}

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn coarsen_centroids(
    py: Python<'_>,
    centroids: PyReadonlyArray2<'_, f32>,
    weights: PyReadonlyArray1<'_, f64>,
    clusters: usize,
    minimum_share: f64,
    restarts: usize,
    seed: u64,
    threads: usize,
) -> PyResult<ArrowArray> {
    let (centroids, weights) = (centroids.as_slice()?, weights.as_slice()?);
    let config = Coarsening { clusters, minimum_share, restarts, seed };
    let labels =
        py.detach(|| coarsen::coarsen(centroids, weights, config, threads)).map_err(to_py_err)?;
    Ok(ArrowArray(Arc::new(UInt32Array::from(labels))))
}

#[pyfunction]
fn distinctive_terms(
    py: Python<'_>,
    texts: Vec<ArrowIn>,
    groups: PyReadonlyArray1<'_, u32>,
    group_count: usize,
    count: usize,
    threads: usize,
) -> PyResult<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for chunk in &texts {
        all.extend(strings(&chunk.0)?);
    }
    let groups = groups.as_slice()?;
    py.detach(|| terms::distinctive(&all, groups, group_count, count, threads)).map_err(to_py_err)
}

#[pyfunction]
fn quality_scores(py: Python<'_>, texts: ArrowIn, threads: usize) -> PyResult<ArrowArray> {
    let texts = strings(&texts.0)?;
    let scored = py.detach(|| quality::score(&texts, threads)).map_err(to_py_err)?;
    let scores: PrimitiveArray<Float32Type> = scored.iter().map(|s| Some(s.score)).collect();
    Ok(record([
        ("score", Arc::new(scores) as ArrayRef),
        ("kind", Arc::new(UInt8Array::from_iter_values(scored.iter().map(|s| s.kind as u8)))),
        ("broken", Arc::new(UInt32Array::from_iter_values(scored.iter().map(|s| s.broken)))),
    ]))
}

#[pyfunction]
fn quality_rules() -> Vec<(&'static str, &'static str)> {
    quality::RULES.iter().map(|rule| (rule.name, rule.source)).collect()
}

pub(super) fn present(values: Vec<Option<&str>>) -> PyResult<Vec<&str>> {
    values
        .into_iter()
        .enumerate()
        .map(|(row, value)| {
            value.ok_or_else(|| PyValueError::new_err(format!("row {row} is null")))
        })
        .collect()
}

/// A struct array without nulls: a record batch on the other side.
pub(super) fn record<const N: usize>(columns: [(&str, ArrayRef); N]) -> ArrowArray {
    let fields: Fields = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    let arrays = columns.into_iter().map(|(_, column)| column).collect();
    ArrowArray(Arc::new(StructArray::new(fields, arrays, None)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("QUALITY_KINDS", quality::KINDS.to_vec())?;
    ingest::register(module)?;
    contamination::register(module)?;
    module.add_function(wrap_pyfunction!(document_keys, module)?)?;
    module.add_function(wrap_pyfunction!(lexical_embedding, module)?)?;
    module.add_function(wrap_pyfunction!(nearest_centroids, module)?)?;
    module.add_function(wrap_pyfunction!(coarsen_centroids, module)?)?;
    module.add_function(wrap_pyfunction!(distinctive_terms, module)?)?;
    module.add_function(wrap_pyfunction!(quality_scores, module)?)?;
    module.add_function(wrap_pyfunction!(quality_rules, module)?)
}

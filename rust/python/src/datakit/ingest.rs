//! Readers: files, JSON Lines, WARC, repair of text, unique ids.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use arrow_array::builder::{LargeStringBuilder, StringBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, StringArray, UInt32Array, UInt64Array};
use arrow_schema::DataType;
use marin_core::datakit::files::{self, Outcome};
use marin_core::datakit::records::Parsed;
use marin_core::datakit::{jsonl, keys, warc};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{present, record};
use crate::arrow::{ArrowArray, ArrowIn, strings};
use crate::to_py_err;

#[pyfunction]
fn read_text_files(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    max_bytes: u64,
    threads: usize,
) -> PyResult<ArrowArray> {
    let outcomes =
        py.detach(|| files::read_texts(&paths, max_bytes, threads)).map_err(to_py_err)?;
    let mut text = LargeStringBuilder::new();
    let mut repaired = UInt32Builder::with_capacity(paths.len());
    let mut problem = StringBuilder::new();
    for outcome in outcomes {
        match &outcome {
            Outcome::Text { text: found, .. } => text.append_value(found),
            _ => text.append_null(),
        }
        repaired.append_value(if let Outcome::Text { repaired, .. } = outcome {
            repaired
        } else {
            0
        });
        problem.append_value(match &outcome {
            Outcome::Text { .. } => "",
            Outcome::Binary => "binary",
            Outcome::TooLarge => "too large",
            Outcome::NotAFile => "not a file",
            Outcome::Unreadable(reason) => reason,
        });
    }
    Ok(record([
        ("text", Arc::new(text.finish()) as ArrayRef),
        ("repaired", Arc::new(repaired.finish())),
        ("problem", Arc::new(problem.finish())),
    ]))
}

type Records = (usize, u64, ArrowArray, ArrowArray);

#[pyfunction]
#[pyo3(signature = (block, last, text, id, source, threads))]
fn parse_jsonl(
    py: Python<'_>,
    block: &[u8],
    last: bool,
    text: String,
    id: Option<String>,
    source: Option<String>,
    threads: usize,
) -> PyResult<Records> {
    let keys = jsonl::Keys { text, id, source };
    let parsed = py.detach(|| jsonl::parse(block, last, &keys, threads)).map_err(to_py_err)?;
    Ok(records(&parsed))
}

#[pyfunction]
fn parse_warc(py: Python<'_>, block: &[u8], last: bool) -> Records {
    records(&py.detach(|| warc::parse(block, last)))
}

fn records(parsed: &Parsed) -> Records {
    let rows = &parsed.rows;
    let mut text = LargeStringBuilder::new();
    rows.iter().for_each(|row| text.append_value(&row.text));
    let rejected = &parsed.rejected;
    (
        parsed.consumed,
        parsed.records,
        record([
            (
                "number",
                Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.number))) as ArrayRef,
            ),
            ("id", Arc::new(rows.iter().map(|r| r.id.as_deref()).collect::<StringArray>())),
            ("text", Arc::new(text.finish())),
            ("source", Arc::new(rows.iter().map(|r| r.source.as_deref()).collect::<StringArray>())),
            ("metadata", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &r.metadata)))),
            ("repaired", Arc::new(UInt32Array::from_iter_values(rows.iter().map(|r| r.repaired)))),
        ]),
        record([
            (
                "number",
                Arc::new(UInt64Array::from_iter_values(rejected.iter().map(|r| r.number)))
                    as ArrayRef,
            ),
            ("reason", Arc::new(StringArray::from_iter_values(rejected.iter().map(|r| &r.reason)))),
            (
                "excerpt",
                Arc::new(StringArray::from_iter_values(rejected.iter().map(|r| &r.excerpt))),
            ),
        ]),
    )
}

#[pyfunction]
fn repair_texts(py: Python<'_>, bytes: ArrowIn) -> PyResult<ArrowArray> {
    let values: Vec<Option<&[u8]>> = match bytes.0.data_type() {
        DataType::Binary => bytes.0.as_binary::<i32>().iter().collect(),
        DataType::LargeBinary => bytes.0.as_binary::<i64>().iter().collect(),
        other => return Err(PyTypeError::new_err(format!("expected binary, found {other}"))),
    };
    let (text, repaired) = py.detach(|| {
        let mut text = LargeStringBuilder::new();
        let mut repaired = Vec::with_capacity(values.len());
        for value in values {
            match value.map(std::str::from_utf8) {
                None => text.append_null(),
                Some(Ok(valid)) => text.append_value(valid),
                Some(Err(_)) => {
                    let (fixed, count) = files::repair(value.unwrap_or_default().to_vec());
                    text.append_value(fixed);
                    repaired.push(count);
                    continue;
                }
            }
            repaired.push(0);
        }
        (text.finish(), repaired)
    });
    Ok(record([
        ("text", Arc::new(text) as ArrayRef),
        ("repaired", Arc::new(UInt32Array::from(repaired))),
    ]))
}

#[pyfunction]
fn document_ids(
    py: Python<'_>,
    sources: ArrowIn,
    places: ArrowIn,
    texts: ArrowIn,
) -> PyResult<ArrowArray> {
    let sources = present(strings(&sources.0)?)?;
    let places = present(strings(&places.0)?)?;
    let texts = strings(&texts.0)?;
    if sources.len() != texts.len() || places.len() != texts.len() {
        return Err(PyValueError::new_err("sources, places and texts differ in length"));
    }
    let ids: Vec<String> = py.detach(|| {
        (0..texts.len())
            .map(|i| keys::document_id(sources[i], places[i], texts[i].unwrap_or_default()))
            .collect()
    });
    Ok(ArrowArray(Arc::new(StringArray::from(ids))))
}

#[pyclass(frozen, module = "marin._native")]
#[derive(Default)]
struct SeenIds(Mutex<keys::Seen>);

#[pymethods]
impl SeenIds {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn unique(&self, py: Python<'_>, ids: ArrowIn) -> PyResult<ArrowArray> {
        let ids = present(strings(&ids.0)?)?;
        let renamed = py.detach(|| {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).renamed(&ids)
        });
        let flags: BooleanArray = renamed.iter().map(|name| Some(name.is_some())).collect();
        let names = renamed.iter().zip(&ids).map(|(name, id)| name.as_deref().unwrap_or(id));
        Ok(record([
            ("id", Arc::new(StringArray::from_iter_values(names)) as ArrayRef),
            ("renamed", Arc::new(flags)),
        ]))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SeenIds>()?;
    module.add_function(wrap_pyfunction!(read_text_files, module)?)?;
    module.add_function(wrap_pyfunction!(parse_jsonl, module)?)?;
    module.add_function(wrap_pyfunction!(parse_warc, module)?)?;
    module.add_function(wrap_pyfunction!(repair_texts, module)?)?;
    module.add_function(wrap_pyfunction!(document_ids, module)?)
}

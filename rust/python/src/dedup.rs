use std::path::PathBuf;

use arrow_array::builder::{BooleanBuilder, Float32Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow_array::{Array, ArrayRef, GenericByteArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::DataType;
use marin_core::dedup::banding::{self, Banding};
use marin_core::dedup::kperm::{Family, Permutations, Shingles};
use marin_core::dedup::session::{
    Decision, Document, Reason, Session, Settings, Signature, Signer,
};
use marin_core::dedup::sketch::Sketcher;
use marin_core::dedup::tally::{HISTOGRAM_BINS, examples, tally};
use marin_core::dedup::text::{Kind, NORMALIZATION, Reader, Shingling, Summary, Unit};
use marin_core::dedup::verify::Measure;
use marin_core::threads::with_threads;
use marin_core::{Error, Result};
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

use crate::arrow::{ArrowArray, ArrowIn};
use crate::to_py_err;

/// The values of a string or binary array as bytes, which need not be valid UTF-8: Arrow arrays from
/// outside are not checked.
fn byte_values(array: &ArrayRef) -> PyResult<Vec<Option<&[u8]>>> {
    fn values<T: ByteArrayType>(array: &GenericByteArray<T>) -> Vec<Option<&[u8]>> {
        let (offsets, data) = (array.value_offsets(), array.value_data());
        (0..array.len())
            .map(|row| {
                let range = offsets[row].as_usize()..offsets[row + 1].as_usize();
                array.is_valid(row).then(|| &data[range])
            })
            .collect()
    }
    match array.data_type() {
        DataType::Utf8 => Ok(values(array.as_bytes::<Utf8Type>())),
        DataType::LargeUtf8 => Ok(values(array.as_bytes::<LargeUtf8Type>())),
        DataType::Binary => Ok(values(array.as_bytes::<BinaryType>())),
        DataType::LargeBinary => Ok(values(array.as_bytes::<LargeBinaryType>())),
        other => Err(PyTypeError::new_err(format!("expected strings, found {other}"))),
    }
}

fn shingling(words: usize, characters: usize, unit: &str) -> Result<Shingling> {
    let unit = match unit {
        "auto" => Unit::Auto,
        "character" => Unit::Character,
        other => {
            return Err(Error::invalid(format!(
                "unit {other:?}: expected \"auto\" or \"character\""
            )));
        }
    };
    if words == 0 || characters == 0 {
        return Err(Error::invalid("a shingle has at least 1 token"));
    }
    Ok(Shingling { words, characters, unit })
}

#[pyclass(module = "marin._native")]
struct DedupSession {
    session: Session,
}

#[pymethods]
impl DedupSession {
    #[new]
    #[pyo3(signature = (documents, *, words, characters, unit, bands, rows, seed, threshold, measure,
                        priority, exempt, first_anchor, memory, directory, left_out=None))]
    #[allow(clippy::too_many_arguments)] // named in Python, checked by its types
    fn new(
        documents: usize,
        words: usize,
        characters: usize,
        unit: &str,
        bands: usize,
        rows: usize,
        seed: u64,
        threshold: f64,
        measure: &str,
        priority: Vec<String>,
        exempt: Vec<String>,
        first_anchor: u32,
        memory: usize,
        directory: PathBuf,
        left_out: Option<PyReadonlyArray1<'_, bool>>,
    ) -> PyResult<Self> {
        let measure = match measure {
            "jaccard" => Measure::Jaccard,
            "containment" => Measure::Containment,
            other => {
                let message = format!("measure {other:?}: expected \"jaccard\" or \"containment\"");
                return Err(to_py_err(Error::invalid(message)));
            }
        };
        let left_out = left_out.as_ref().map(|mask| mask.as_slice()).transpose()?;
        let left_out = left_out.unwrap_or_default().to_vec();
        let settings = Settings {
            shingling: shingling(words, characters, unit).map_err(to_py_err)?,
            banding: Banding { bands, rows },
            seed,
            threshold,
            measure,
            priority,
            exempt,
            first_anchor,
            left_out,
            memory,
            directory,
        };
        Ok(Self { session: Session::new(settings, documents).map_err(to_py_err)? })
    }

    #[pyo3(signature = (first, ids, texts, sources=None))]
    fn add(
        &self,
        py: Python<'_>,
        first: u32,
        ids: ArrowIn,
        texts: ArrowIn,
        sources: Option<ArrowIn>,
    ) -> PyResult<()> {
        let ids = byte_values(&ids.0)?;
        let texts = byte_values(&texts.0)?;
        let sources = sources.as_ref().map(|sources| byte_values(&sources.0)).transpose()?;
        py.detach(|| {
            let batch: Vec<Document<'_>> = ids
                .iter()
                .zip(&texts)
                .enumerate()
                .map(|(row, (id, &text))| {
                    let id = id.ok_or_else(|| {
                        Error::invalid(format!("document {}: its id is null", first as usize + row))
                    })?;
                    let source = sources.as_ref().and_then(|sources| sources[row]);
                    let source =
                        std::str::from_utf8(source.unwrap_or_default()).unwrap_or("\u{fffd}");
                    Ok(Document { id, source, text })
                })
                .collect::<Result<_>>()?;
            self.session.add(first, &batch)
        })
        .map_err(to_py_err)
    }

    fn repeated_id(&mut self, py: Python<'_>) -> Option<(String, u32, u32)> {
        py.detach(|| self.session.repeated_id())
    }

    fn plan<'py>(
        &mut self,
        py: Python<'py>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let needed = py.detach(|| with_threads(threads, || self.session.plan()));
        Ok(needed.and_then(|needed| needed).map_err(to_py_err)?.into_pyarray(py))
    }

    /// The text of document `documents[i]` is `texts[rows[i]]`.
    fn add_texts(
        &self,
        py: Python<'_>,
        documents: PyReadonlyArray1<'_, u32>,
        rows: PyReadonlyArray1<'_, u32>,
        texts: ArrowIn,
    ) -> PyResult<()> {
        let texts = byte_values(&texts.0)?;
        let numbered = documents.as_slice()?.iter().zip(rows.as_slice()?);
        let pairs: Vec<(u32, &[u8])> = numbered
            .map(|(&document, &row)| (document, texts[row as usize].unwrap_or_default()))
            .collect();
        py.detach(|| self.session.add_texts(&pairs)).map_err(to_py_err)
    }

    /// Takes documents `first..` with what `dedup_sign` found.
    #[allow(clippy::too_many_arguments)] // the columns of a signature file
    fn add_signed(
        &self,
        py: Python<'_>,
        first: u32,
        ids: ArrowIn,
        sources: ArrowIn,
        kinds: PyReadonlyArray1<'_, u8>,
        lengths: PyReadonlyArray1<'_, u32>,
        exact: PyReadonlyArray2<'_, u64>,
        keys: PyReadonlyArray2<'_, u64>,
    ) -> PyResult<()> {
        let (ids, sources) = (byte_values(&ids.0)?, byte_values(&sources.0)?);
        let batch: Vec<(&[u8], &str)> = ids
            .iter()
            .zip(&sources)
            .map(|(id, source)| {
                let source = std::str::from_utf8(source.unwrap_or_default()).unwrap_or("\u{fffd}");
                (id.unwrap_or_default(), source)
            })
            .collect();
        let (kinds, lengths) = (kinds.as_slice()?, lengths.as_slice()?);
        let (exact, keys, bands) = (exact.as_slice()?, keys.as_slice()?, keys.shape()[1]);
        let signatures: Vec<Signature> = (0..batch.len())
            .map(|row| {
                let kind = Kind::from_code(kinds[row]);
                let signed = matches!(kind, Kind::Words | Kind::Characters);
                let hash = u128::from(exact[2 * row]) << 64 | u128::from(exact[2 * row + 1]);
                let keys =
                    if signed { keys[row * bands..(row + 1) * bands].to_vec() } else { vec![] };
                Signature { summary: Summary { kind, exact: hash, length: lengths[row] }, keys }
            })
            .collect();
        py.detach(|| self.session.add_signed(first, &batch, &signatures)).map_err(to_py_err)
    }

    fn resolve(&mut self, py: Python<'_>, threads: usize) -> PyResult<()> {
        let result = py.detach(|| with_threads(threads, || self.session.resolve()));
        result.and_then(|result| result).map_err(to_py_err)
    }

    /// id, keep, cluster, representative, similarity, reason of documents `first..first + count`.
    fn rows(&self, py: Python<'_>, first: usize, count: usize) -> PyResult<Vec<ArrowArray>> {
        let decisions = self.session.decisions().get(first..first + count);
        let decisions = decisions.ok_or_else(|| {
            to_py_err(Error::invalid(format!(
                "no decisions for documents {first}..{}",
                first + count
            )))
        })?;
        let columns: Vec<ArrayRef> = py.detach(|| {
            self.session.with_documents(|documents| {
                let mut ids = StringBuilder::new();
                let mut keep = BooleanBuilder::with_capacity(count);
                let mut clusters = StringBuilder::new();
                let mut representatives = StringBuilder::new();
                let mut similarities = Float32Builder::with_capacity(count);
                let mut reasons = StringBuilder::new();
                for (number, decision) in (first as u32..).zip(decisions) {
                    let id = String::from_utf8_lossy(documents.id(number));
                    let twin = String::from_utf8_lossy(documents.id(decision.twin));
                    let matched = matches!(decision.reason, Reason::Exact | Reason::Fuzzy);
                    ids.append_value(&id);
                    keep.append_value(decision.reason == Reason::Kept);
                    clusters.append_value(String::from_utf8_lossy(documents.id(decision.cluster)));
                    representatives.append_option(matched.then_some(&twin));
                    similarities.append_option(matched.then_some(decision.similarity));
                    reasons.append_value(name(decision.reason));
                }
                vec![
                    Arc::new(ids.finish()) as ArrayRef,
                    Arc::new(keep.finish()),
                    Arc::new(clusters.finish()),
                    Arc::new(representatives.finish()),
                    Arc::new(similarities.finish()),
                    Arc::new(reasons.finish()),
                ]
            })
        });
        Ok(columns.into_iter().map(ArrowArray).collect())
    }

    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let decisions = self.session.decisions();
        let counts =
            py.detach(|| self.session.with_documents(|documents| tally(decisions, &documents)));
        let rows: Vec<Bound<'py, PyDict>> = counts
            .by_source
            .iter()
            .map(|(source, counts)| {
                let row = PyDict::new(py);
                row.set_item("source", source)?;
                row.set_item("documents", counts.documents)?;
                row.set_item("empty", counts.empty)?;
                row.set_item("short", counts.short)?;
                row.set_item("removed_exact", counts.removed_exact)?;
                row.set_item("removed_fuzzy", counts.removed_fuzzy)?;
                row.set_item("removed_before", counts.left_out)?;
                Ok(row)
            })
            .collect::<PyResult<_>>()?;
        let histogram: Vec<(f64, u64)> = counts
            .histogram
            .iter()
            .enumerate()
            .map(|(bin, &count)| (bin as f64 / HISTOGRAM_BINS as f64, count))
            .collect();
        let work = self.session.work();
        let summary = PyDict::new(py);
        summary.set_item("by_source", rows)?;
        summary.set_item("similarity_histogram", histogram)?;
        summary.set_item("cluster_sizes", counts.cluster_sizes.into_iter().collect::<Vec<_>>())?;
        summary.set_item("compared_pairs", work.compared)?;
        summary.set_item("crowded_buckets", work.crowded)?;
        Ok(summary)
    }

    /// (removed document, its kept twin, their ids, similarity, reason) of up to `count` removals.
    fn examples(&self, py: Python<'_>, count: usize) -> Vec<Example> {
        let decisions = self.session.decisions();
        py.detach(|| {
            self.session.with_documents(|documents| {
                let id = |number| String::from_utf8_lossy(documents.id(number)).into_owned();
                examples(decisions, &documents, count)
                    .into_iter()
                    .map(|removed| {
                        let Decision { twin, similarity, reason, .. } = decisions[removed as usize];
                        (removed, twin, id(removed), id(twin), similarity, name(reason))
                    })
                    .collect()
            })
        })
    }
}

type Example = (u32, u32, String, String, f32, &'static str);

fn name(reason: Reason) -> &'static str {
    match reason {
        Reason::Kept => "",
        Reason::Exact => "exact",
        Reason::Fuzzy => "fuzzy",
        Reason::LeftOut => "before",
    }
}

#[pyfunction]
fn dedup_banding(threshold: f64, bins: usize) -> PyResult<(usize, usize)> {
    let banding = banding::optimal(threshold, bins).map_err(to_py_err)?;
    Ok((banding.bands, banding.rows))
}

/// kind uint8[n], length uint32[n], exact hash uint64[n, 2], band keys uint64[n, bands].
type SignedColumns<'py> = (
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray2<u64>>,
    Bound<'py, PyArray2<u64>>,
);

#[pyfunction]
#[pyo3(signature = (texts, *, words, characters, unit, bands, rows, seed))]
#[allow(clippy::too_many_arguments)] // named in Python, checked by its types
fn dedup_sign<'py>(
    py: Python<'py>,
    texts: ArrowIn,
    words: usize,
    characters: usize,
    unit: &str,
    bands: usize,
    rows: usize,
    seed: u64,
) -> PyResult<SignedColumns<'py>> {
    let shingling = shingling(words, characters, unit).map_err(to_py_err)?;
    let texts = byte_values(&texts.0)?;
    let count = texts.len();
    let (mut kinds, mut lengths) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut exact, mut keys) = (Vec::with_capacity(2 * count), Vec::with_capacity(bands * count));
    py.detach(|| {
        let mut signer = Signer::new(shingling, Banding { bands, rows }, seed);
        for text in &texts {
            let signature = signer.sign(text.unwrap_or_default(), |_| ());
            kinds.push(signature.summary.kind as u8);
            lengths.push(signature.summary.length);
            exact.push((signature.summary.exact >> 64) as u64);
            exact.push(signature.summary.exact as u64);
            keys.extend(&signature.keys);
            keys.resize(bands * kinds.len(), 0);
        }
    });
    Ok((
        kinds.into_pyarray(py),
        lengths.into_pyarray(py),
        exact.into_pyarray(py).reshape([count, 2])?,
        keys.into_pyarray(py).reshape([count, bands])?,
    ))
}

#[pyfunction]
#[pyo3(signature = (texts, *, words, characters, unit, bins, seed))]
fn dedup_sketches<'py>(
    py: Python<'py>,
    texts: ArrowIn,
    words: usize,
    characters: usize,
    unit: &str,
    bins: usize,
    seed: u64,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let shingling = shingling(words, characters, unit).map_err(to_py_err)?;
    let texts = byte_values(&texts.0)?;
    let values = py.detach(|| {
        let mut reader = Reader::new(shingling);
        let mut sketcher = Sketcher::new(bins, seed);
        let mut values = Vec::with_capacity(texts.len() * bins);
        for text in &texts {
            let (_, shingles) = reader.read(text.unwrap_or_default());
            values.extend_from_slice(sketcher.sketch(shingles));
        }
        values
    });
    values.into_pyarray(py).reshape([texts.len(), bins])
}

#[pyfunction]
#[pyo3(signature = (texts, *, words, characters, unit, family, a, b, cap))]
#[allow(clippy::too_many_arguments)] // named in Python, checked by its types
fn dedup_kperm<'py>(
    py: Python<'py>,
    texts: ArrowIn,
    words: usize,
    characters: usize,
    unit: &str,
    family: &str,
    a: PyReadonlyArray1<'_, u64>,
    b: PyReadonlyArray1<'_, u64>,
    cap: Option<usize>,
) -> PyResult<Bound<'py, PyArray2<u64>>> {
    let shingling = shingling(words, characters, unit).map_err(to_py_err)?;
    let family = match family {
        "affine32" => Family::Affine32,
        "affine64" => Family::Affine64,
        "legacy" => Family::Legacy,
        other => {
            let message = format!("family {other:?}: expected affine32, affine64 or legacy");
            return Err(to_py_err(Error::invalid(message)));
        }
    };
    let permutations = Permutations::new(family, a.as_slice()?.to_vec(), b.as_slice()?.to_vec())
        .map_err(to_py_err)?;
    let texts = byte_values(&texts.0)?;
    let count = permutations.len();
    let values = py.detach(|| {
        let mut values = vec![0; texts.len() * count];
        for (values, text) in values.chunks_exact_mut(count).zip(&texts) {
            let shingles = Shingles::new(text.unwrap_or_default(), shingling);
            permutations.sketch(shingles.iter(), cap, values);
        }
        values
    });
    values.into_pyarray(py).reshape([texts.len(), count])
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DEDUP_NORMALIZATION", NORMALIZATION)?;
    module.add_class::<DedupSession>()?;
    module.add_function(wrap_pyfunction!(dedup_banding, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_sign, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_sketches, module)?)?;
    module.add_function(wrap_pyfunction!(dedup_kperm, module)?)
}

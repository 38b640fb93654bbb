use std::path::PathBuf;

use pyo3::prelude::*;

use crate::to_py_err;

#[pyfunction]
fn xxh3_file(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let digest = py.detach(|| marin_core::checksum::file(&path)).map_err(to_py_err)?;
    Ok(format!("{digest:032x}"))
}

#[pyfunction]
fn xxh3_bytes(py: Python<'_>, data: &[u8]) -> String {
    let digest = py.detach(|| marin_core::checksum::bytes(data));
    format!("{digest:032x}")
}

#[pyfunction]
fn start_writeback(py: Python<'_>, path: PathBuf, offset: u64, bytes: u64) -> PyResult<()> {
    py.detach(|| marin_core::writeback::start(&path, offset, bytes)).map_err(to_py_err)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(xxh3_file, module)?)?;
    module.add_function(wrap_pyfunction!(start_writeback, module)?)?;
    module.add_function(wrap_pyfunction!(xxh3_bytes, module)?)
}

//! `marin._native`: converts between Python and `marin_core`, and does nothing else.
//!
//! Arrays cross as Arrow by the C data interface (see [`arrow`]) or as NumPy; the GIL is released
//! around every call into the core. Typed in `python/marin/_native.pyi`.

mod arrow;
mod checksum;
mod datakit;
mod dedup;
mod mixture;
mod packing;
mod stream;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// Turns the core's error into the matching Python exception.
pub(crate) fn to_py_err(error: marin_core::Error) -> PyErr {
    match error {
        marin_core::Error::Invalid(message) => PyValueError::new_err(message),
        marin_core::Error::Io(error) => PyOSError::new_err(error.to_string()),
    }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<arrow::ArrowArray>()?;
    checksum::register(module)?;
    dedup::register(module)?;
    datakit::register(module)?;
    mixture::register(module)?;
    packing::register(module)?;
    stream::register(module)
}

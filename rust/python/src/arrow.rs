//! Arrow arrays in and out through the C data interface (PyCapsules), without copying.
//!
//! In: any object with `__arrow_c_array__` (a pyarrow `Array` or `RecordBatch`, a polars chunk);
//! chunked arrays are passed as a list of their chunks. Out: [`ArrowArray`], which pyarrow turns
//! into its own array with `pa.array(x)` or `pa.record_batch(x)`.

use std::ffi::CStr;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::{Array, ArrayRef, make_array};
use arrow_schema::DataType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

const ARRAY: &CStr = c"arrow_array";
const SCHEMA: &CStr = c"arrow_schema";

/// One Arrow array that crosses the border; the buffers stay where they are.
#[pyclass(frozen, from_py_object, module = "marin._native")]
#[derive(Clone)]
pub struct ArrowArray(pub ArrayRef);

#[pymethods]
impl ArrowArray {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let _ = requested_schema; // casting is optional in the protocol
        let (array, schema) = to_ffi(&self.0.to_data()).map_err(arrow_err)?;
        let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
        let array = PyCapsule::new_with_value(py, array, ARRAY)?;
        PyTuple::new(py, [schema, array])
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }
}

/// An argument of a bound function: `ArrowIn(array)`.
pub struct ArrowIn(pub ArrayRef);

impl<'py> FromPyObject<'_, 'py> for ArrowIn {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let Ok(export) = object.getattr("__arrow_c_array__") else {
            let found = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!("expected an Arrow array, found {found}")));
        };
        let (schema, array): (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>) =
            export.call0()?.extract()?;
        let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
        let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
        // SAFETY: the protocol says that these capsules hold valid structures; `from_raw` moves the
        // array out and leaves a released one behind, so that the capsule's destructor does nothing.
        let data = unsafe {
            from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref())
                .map_err(arrow_err)?
        };
        Ok(Self(make_array(data)))
    }
}

/// The values of a string column (`string`, `large_string` or `string_view`), without copying.
pub fn strings(array: &ArrayRef) -> PyResult<Vec<Option<&str>>> {
    Ok(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().collect(),
        DataType::Utf8View => array.as_string_view().iter().collect(),
        other => return Err(PyTypeError::new_err(format!("expected strings, found {other}"))),
    })
}

fn arrow_err(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("Arrow: {error}"))
}

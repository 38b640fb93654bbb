//! Views of numbers as bytes, for reads straight into arrays.

#[cfg(target_endian = "big")]
compile_error!("Arrow files hold little-endian numbers, and they are read without conversion");

/// Numbers without padding bytes or invalid bit patterns.
pub trait Plain: Copy {}
impl Plain for i32 {}
impl Plain for u16 {}

/// The bytes of `values`.
pub fn of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    let bytes = std::mem::size_of_val(values);
    // SAFETY: the slice covers exactly these bytes, u8 has no alignment, and every bit pattern is a
    // valid value of a `Plain` type; the borrow of `values` lasts as long as the result.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) }
}

/// The bytes of `values`.
pub fn of<T: Plain>(values: &[T]) -> &[u8] {
    let bytes = std::mem::size_of_val(values);
    // SAFETY: as in `of_mut`; a `Plain` type has no uninitialized bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), bytes) }
}

//! A product of two 128-bit integers divided by a third, exactly.

/// `(a * b / d, a * b % d)` with a 256-bit product, by long division where it does not fit 128.
///
/// Panics if `d` is 0 or the quotient does not fit 128 bits.
pub fn mul_div_rem(a: u128, b: u128, d: u128) -> (u128, u128) {
    const LOW: u128 = u64::MAX as u128;
    let (a1, a0, b1, b0) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let low = a0 * b0;
    let cross = a1 * b0 + (low >> 64);
    let cross_low = a0 * b1 + (cross & LOW);
    let high = a1 * b1 + (cross >> 64) + (cross_low >> 64);
    let low = (cross_low << 64) | (low & LOW);

    if high == 0 {
        return (low / d, low % d);
    }
    assert!(high < d, "quotient of {a} * {b} / {d} exceeds 128 bits");
    let (mut remainder, mut quotient) = (high, 0u128);
    for bit in (0..128).rev() {
        let carry = remainder >> 127;
        remainder = (remainder << 1) | ((low >> bit) & 1);
        if carry == 1 || remainder >= d {
            remainder = remainder.wrapping_sub(d);
            quotient |= 1 << bit;
        }
    }
    (quotient, remainder)
}

#[cfg(test)]
mod tests {
    use super::mul_div_rem;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_native_division(a: u64, b: u64, d in 1u128..) {
            let product = u128::from(a) * u128::from(b);
            prop_assert_eq!(mul_div_rem(a.into(), b.into(), d), (product / d, product % d));
        }

        #[test]
        fn undoes_a_multiplication(a: u128, d in 1u128.., r: u128) {
            prop_assert_eq!(mul_div_rem(a, d, d), (a, 0));
            let (q, rest) = mul_div_rem(a, r % d, d);
            prop_assert!(rest < d && q <= a);
        }
    }
}

//! Worker threads that end with the call: rayon's global pool would deadlock after `fork`.

use crate::{Error, Result};

/// Runs `work` on a pool of `threads` threads (0: all cores), inside which rayon's parallel
/// iterators run. Starting the pool costs some 50 microseconds.
pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|error| Error::invalid(format!("cannot start {threads} threads: {error}")))?;
    Ok(pool.install(work))
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    #[test]
    fn runs_on_the_requested_number_of_threads() {
        let count = super::with_threads(3, rayon::current_num_threads).unwrap();
        assert_eq!(count, 3);
        let sum: u64 = super::with_threads(2, || (0..1000u64).into_par_iter().sum()).unwrap();
        assert_eq!(sum, 499_500);
    }
}

//! One error type: what is wrong with the caller's input, in one line.

use std::fmt;

/// A mistake in the input or the arguments; the text says what was found and what was expected.
#[derive(Debug)]
pub enum Error {
    /// Wrong values: becomes `ValueError` in Python.
    Invalid(String),
    /// The operating system refused: becomes `OSError` in Python.
    Io(std::io::Error),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(message) => f.write_str(message),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

//! JSON output.

use serde::Serialize;

use crate::errors::CliError;
use kat_types::encoding::json::{self, NotEncoded};

/// A list as `-o json` and `-o yaml` print it.
#[derive(Debug, Serialize)]
pub(crate) struct PrintedItems<'list, T> {
    pub(crate) items: &'list [T],
}

/// JSON with an indentation of two spaces and a line feed at the end.
pub(crate) fn pretty<T: Serialize>(value: &T) -> Result<String, CliError> {
    json::pretty_text("the answer", value)
        .map(|text| text + "\n")
        .map_err(not_written)
}

/// JSON in one line.
pub(crate) fn line<T: Serialize>(value: &T) -> Result<String, CliError> {
    json::text("the answer", value)
        .map(|text| text + "\n")
        .map_err(not_written)
}

pub(super) fn not_written(error: NotEncoded) -> CliError {
    CliError::failed(error.to_string())
}

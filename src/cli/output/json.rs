//! JSON.

use serde::Serialize;

use crate::cli::errors::CliError;

/// What `-o json` and `-o yaml` print of a list.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Items<'list, T> {
    pub(in crate::cli) items: &'list [T],
}

/// Two spaces of indentation and a line feed at the end.
pub(in crate::cli) fn pretty<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(not_written)
}

/// One line.
pub(in crate::cli) fn line<T: Serialize>(value: &T) -> Result<String, CliError> {
    serde_json::to_string(value)
        .map(|text| text + "\n")
        .map_err(not_written)
}

pub(super) fn not_written(error: serde_json::Error) -> CliError {
    CliError::failed(format!("the answer cannot be written as JSON: {error}"))
}

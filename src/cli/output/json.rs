//! JSON.

use serde::Serialize;

use crate::{
    cli::errors::CliError,
    json::{self, NotEncoded},
};

/// What `-o json` and `-o yaml` print of a list.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Items<'list, T> {
    pub(in crate::cli) items: &'list [T],
}

/// Two spaces of indentation and a line feed at the end.
pub(in crate::cli) fn pretty<T: Serialize>(value: &T) -> Result<String, CliError> {
    json::pretty_text("the answer", value)
        .map(|text| text + "\n")
        .map_err(not_written)
}

/// One line.
pub(in crate::cli) fn line<T: Serialize>(value: &T) -> Result<String, CliError> {
    json::text("the answer", value)
        .map(|text| text + "\n")
        .map_err(not_written)
}

pub(super) fn not_written(error: NotEncoded) -> CliError {
    CliError::failed(error.to_string())
}

//! Names on the command line.

use super::{args::NamespaceOption, errors::CliError};
use kat_types::resource::name::check_namespace;

/// Parses a namespace for clap.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    check_namespace(text)
        .map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

/// The namespace before `name`, if no other one is given.
pub(super) fn written_before(
    namespace: &str,
    name: &str,
    option: &NamespaceOption,
) -> Result<String, CliError> {
    let namespace = self::namespace(namespace).map_err(CliError::usage)?;
    if option.written && option.namespace != namespace {
        return Err(CliError::usage(format!(
            "`{name}` and `--namespace {}` contradict each other",
            option.namespace
        ))
        .hinted("leave out one of the two namespaces"));
    }
    Ok(namespace)
}

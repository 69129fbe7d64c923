//! Names given on the command line.

use super::{args::Namespace, errors::CliError};
use kat_types::resource::name::check_namespace;

/// A namespace, as clap reads it.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    check_namespace(text)
        .map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

/// The namespace that `name` begins with, where no other was asked for.
pub(super) fn written_before(
    namespace: &str,
    name: &str,
    option: &Namespace,
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

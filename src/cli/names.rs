//! Names given on the command line.

use crate::resource::name::check_namespace;

/// A namespace, as clap reads it.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    check_namespace(text)
        .map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

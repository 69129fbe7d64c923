//! Names of workloads, namespaces, nodes and clusters.

use super::named_kind::is_word_of_kind;
use crate::top_level_domains;

/// Maximum characters of the name of a workload, namespace, node or cluster.
pub const MAX_NAME: usize = 40;

/// Why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The name is too long.
    #[error("`{0}` has {1} characters, at most {MAX_NAME} are allowed")]
    TooLong(String, usize),
    /// The name is not a DNS-1123 label.
    #[error(
        "`{0}` may have only lower-case letters, digits and `-`, and must begin and end with a letter or digit"
    )]
    NotALabel(String),
    /// The name has another meaning.
    #[error("`{0}` is reserved")]
    Reserved(String),
    /// The name is a top-level domain.
    #[error(
        "`{0}` is a top-level domain: a workload `x` in it would be taken for `x.{0}` of the world"
    )]
    TopLevelDomain(String),
    /// The name is a word for a kind of object.
    #[error("`{0}` is a word for a kind of object: `{0}/x` means the object `x` of that kind")]
    KindWord(String),
}

/// Checks that a name is a DNS-1123 label (RFC 1123) of at most [`MAX_NAME`] characters.
pub fn check_label(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    let characters = name.chars().count();
    if characters > MAX_NAME {
        return Err(NameError::TooLong(name.to_owned(), characters));
    }
    let inner = name
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !inner || name.starts_with('-') || name.ends_with('-') {
        return Err(NameError::NotALabel(name.to_owned()));
    }
    Ok(())
}

/// Checks the name of a namespace: a label other than `node`, which DNS uses for machines.
pub fn check_namespace(name: &str) -> Result<(), NameError> {
    check_label(name)?;
    if name == "node" {
        return Err(NameError::Reserved(name.to_owned()));
    }
    Ok(())
}

/// Checks the name of a new namespace, which must be neither a top-level domain nor a word for a kind
/// of object. Older namespaces may have such names.
pub fn check_new_namespace(name: &str) -> Result<(), NameError> {
    check_namespace(name)?;
    if top_level_domains::contains(name) {
        return Err(NameError::TopLevelDomain(name.to_owned()));
    }
    if is_word_of_kind(name) {
        return Err(NameError::KindWord(name.to_owned()));
    }
    Ok(())
}

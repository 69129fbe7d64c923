//! What a registry says of an image (the OCI distribution specification): the digest that its tag means now, and the
//! architectures that it is made for.
//!
//! Only the leader asks, once for each version of a workload, so that every replica runs the same, and whether a name and
//! a password are right before it keeps them. Nothing is pulled here.

mod answer;
mod client;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use kat_types::registry::{Credentials, LoginPlace, Logins, Reference, RegistrySettings};

pub use client::Registries;

/// What a registry said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// `sha256:` and 64 hexadecimal digits: of the index of an image for several architectures, else of the image.
    pub digest: String,
    /// `amd64`, `arm64` ..., sorted; empty where that is not said.
    pub architectures: Vec<String>,
}

/// What a registry said of a name and a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginAnswer {
    /// It takes them.
    Accepted,
    /// It answers without any.
    NotAsked,
}

/// Why it is not known what an image's tag means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It has no host: which registry is meant depends on the machine.
    #[error("`{0}` names no registry, so which one is meant depends on the machine")]
    ShortName(String),
    /// Nobody answers, or not in time.
    #[error("{host} does not answer: {error}")]
    Unreachable {
        /// The registry.
        host: String,
        /// Why.
        error: String,
    },
    /// It wants a name and a password, or others than it was given.
    #[error("{0} wants a name and password, or others than it has")]
    Unauthorized(String),
    /// It has no such image.
    #[error("{host} has no {image}")]
    NotFound {
        /// The registry.
        host: String,
        /// Repository and tag.
        image: String,
    },
    /// It refuses.
    #[error("{host} answers with {status}")]
    Refused {
        /// The registry.
        host: String,
        /// HTTP's status.
        status: u16,
    },
    /// It answers something else than the specification says.
    #[error("{host} answers with {what}")]
    Unexpected {
        /// The registry.
        host: String,
        /// What.
        what: String,
    },
}

/// Knows what images are: the registries, or what stands for them in tests.
#[async_trait]
pub trait ImageSource: Send + Sync {
    /// What the image is now. Answers within some seconds.
    ///
    /// # Errors
    /// [`RegistryError`].
    async fn resolve(
        &self,
        image: &Reference,
        settings: &RegistrySettings,
        logins: &Logins,
    ) -> Result<Resolved, RegistryError>;

    /// Whether a registry takes a name and a password. Answers within some seconds.
    ///
    /// # Errors
    /// [`RegistryError`]; [`RegistryError::Unauthorized`] where it does not take them.
    async fn check_login(
        &self,
        place: &LoginPlace,
        settings: &RegistrySettings,
        credentials: &Credentials,
    ) -> Result<LoginAnswer, RegistryError>;
}

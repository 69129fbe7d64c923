//! Queries registries about images (the OCI distribution specification): the digest that a tag has
//! at present, the architectures of the image, and whether a name and password are accepted.
//!
//! Where to begin:
//! - `lib.rs`: [`ImageSource`], the trait that the API uses, and [`RegistryError`].
//! - `client.rs`: [`Registries`], the HTTP client, with all its limits.
//! - `answer.rs`: manifests, indexes and challenges of authentication.
//!
//! Rules:
//! - The API asks for the digest once for each version of a workload, so that all replicas run the
//!   same image. Machines do not use this crate's queries when they pull.
//! - Answers are untrusted: size, time and redirections are bounded (invariant 8).
//! - [`RegistryError::Nonexistent`] is given only where the registry and all its mirrors say so. An
//!   answer of 404 alone may come from a proxy.
//! - Nothing is pulled here: pulls are jobs of systemd on the machines.
//! - The crate knows names of images, settings and credentials (`kat_types::registry`), and neither
//!   the store nor Podman.
//!
//! Tests: `src/registry/tests.rs` against a small registry; `tests/api/images.rs` and
//! `tests/api/registry_credentials.rs` through the API.

mod answer;
mod client;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(test)]
mod tests;

use async_trait::async_trait;

use kat_types::registry::{Credentials, LoginPlace, Logins, Reference, RegistrySettings};

pub use client::Registries;

/// A resolved image reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvedImage {
    /// `sha256:` and 64 hexadecimal digits: of the index for a multi-architecture image, otherwise
    /// of the image.
    pub digest: String,
    /// Such as `amd64` or `arm64`, sorted; empty where the registry does not give them.
    pub architectures: Vec<String>,
}

/// Result of a check of credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginAnswer {
    /// The registry accepts them.
    Accepted,
    /// The registry requires no credentials.
    NotAsked,
}

/// Why an image's tag could not be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The reference has no registry host, so it depends on the machine's settings.
    #[error("`{0}` names no registry, so which one is meant depends on the machine")]
    ShortName(String),
    /// No response, or not in time.
    #[error("{host} does not answer: {error}")]
    Unreachable {
        /// Host of the registry.
        host: String,
        error: String,
    },
    /// The registry requires a name and password, or rejects the given ones.
    #[error("{0} wants a name and password, or others than it has")]
    Unauthorized(String),
    /// The registry or a mirror answers with 404, which does not prove that no such image exists: a
    /// proxy may have answered, or another mirror may have the image.
    #[error("{host} has no {image}")]
    NotFound {
        host: String,
        /// Repository and tag.
        image: String,
    },
    /// The registry and all mirrors of it state that the image does not exist: with an error code
    /// for this, after the authentication that they require.
    #[error("{host} has no {image}")]
    Nonexistent {
        host: String,
        /// Repository and tag.
        image: String,
    },
    /// The registry refused the request.
    #[error("{host} answers with {status}")]
    Refused {
        host: String,
        /// Status code of the response.
        status: u16,
    },
    /// The response does not conform to the specification.
    #[error("{host} answers with {what}")]
    Unexpected {
        host: String,
        /// What the response has instead.
        what: String,
    },
}

/// Resolves images: with registries, or with a fake in tests.
#[async_trait]
pub trait ImageSource: Send + Sync {
    /// Resolves the image at present. Returns within some seconds.
    async fn resolve(
        &self,
        image: &Reference,
        settings: &RegistrySettings,
        logins: &Logins,
    ) -> Result<ResolvedImage, RegistryError>;

    /// Checks whether a registry accepts a name and password. Returns within some seconds.
    ///
    /// # Errors
    /// [`RegistryError`]; [`RegistryError::Unauthorized`] where the registry rejects them.
    async fn check_login(
        &self,
        place: &LoginPlace,
        settings: &RegistrySettings,
        credentials: &Credentials,
    ) -> Result<LoginAnswer, RegistryError>;
}

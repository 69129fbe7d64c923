//! Parses registries' manifests, indexes and authentication challenges.

use std::collections::BTreeSet;

use http_auth::{ChallengeRef, parser::ChallengeParser};
use serde::Deserialize;

/// Media types of an index: a list of images for several platforms.
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// Media types of one image.
const IMAGES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// The value of the request header `Accept`.
pub(super) fn accepted() -> String {
    [INDEXES, IMAGES].concat().join(", ")
}

/// The content of a manifest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Manifest {
    /// An index: the architectures of its Linux images, sorted.
    Index(Vec<String>),
    /// One image, whose configuration has this digest.
    Image(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestDocument {
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    manifests: Option<Vec<ManifestEntry>>,
    #[serde(default)]
    config: Option<ManifestDescriptor>,
}

#[derive(Deserialize)]
struct ManifestEntry {
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

#[derive(Deserialize)]
struct ManifestDescriptor {
    digest: String,
}

impl Manifest {
    /// Parses a manifest; `kind` is the content type of the response. The error says what the
    /// document is instead.
    pub(super) fn read(kind: &str, body: &[u8]) -> Result<Self, String> {
        let document: ManifestDocument = serde_json::from_slice(body)
            .map_err(|_| "something that is no manifest of an image".to_owned())?;
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let kind = match document.media_type.as_str() {
            "" => kind,
            written => written,
        };
        match (document.manifests, document.config) {
            (Some(entries), _) if INDEXES.contains(&kind) => {
                let platforms = entries.into_iter().filter_map(|entry| entry.platform);
                let linux = platforms.filter(|platform| platform.os == "linux");
                let found: BTreeSet<String> = linux.map(|platform| platform.architecture).collect();
                Ok(Self::Index(
                    found.into_iter().filter(|one| is_word(one)).collect(),
                ))
            }
            (_, Some(config)) if IMAGES.contains(&kind) && is_digest(&config.digest) => {
                Ok(Self::Image(config.digest))
            }
            _ => Err("a manifest of an unknown kind".to_owned()),
        }
    }
}

/// The architecture in an image's configuration.
pub(super) fn architecture(body: &[u8]) -> Option<String> {
    let platform: Platform = serde_json::from_slice(body).ok()?;
    (platform.os == "linux" && is_word(&platform.architecture)).then_some(platform.architecture)
}

fn is_word(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=20).contains(&text.len()) && text.bytes().all(letter)
}

#[derive(Deserialize)]
struct ErrorDocument {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
}

/// Whether the body of a 404 is a registry's statement that it has no such image (the distribution
/// specification, Error Codes). Other servers on the way answer with 404 as well.
pub(super) fn is_nonexistent(body: &[u8]) -> bool {
    let document = serde_json::from_slice::<ErrorDocument>(body);
    document.is_ok_and(|document| {
        let mut errors = document.errors.iter();
        errors.any(|error| matches!(error.code.as_str(), "MANIFEST_UNKNOWN" | "NAME_UNKNOWN"))
    })
}

/// `sha256:` and 64 hexadecimal digits.
pub(super) fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:").is_some_and(|digits| {
        let hexadecimal = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        digits.len() == 64 && digits.bytes().all(hexadecimal)
    })
}

/// How a registry wants the client to authenticate (RFC 9110, 11.6.1).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    /// With a token from this address, with these query parameters.
    Bearer {
        realm: String,
        questions: Vec<(&'static str, String)>,
    },
}

impl Challenge {
    /// Parses the headers `WWW-Authenticate`, each of which may have several challenges. A token is
    /// preferred to a password. After a syntax error the rest of a header is not read.
    pub(super) fn read<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let headers = headers.into_iter();
        let challenges =
            headers.flat_map(|header| ChallengeParser::new(header).map_while(Result::ok));
        let known: Vec<Self> = challenges.filter_map(|one| Self::known(&one)).collect();
        let is_token = |one: &Self| matches!(one, Self::Bearer { .. });
        let token = known.iter().position(is_token).unwrap_or_default();
        known.into_iter().nth(token)
    }

    fn known(challenge: &ChallengeRef<'_>) -> Option<Self> {
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !challenge.scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let find = |name: &str| {
            let mut parameters = challenge.params.iter();
            let found = parameters.find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        let questions = ["service", "scope"];
        let questions = questions
            .into_iter()
            .filter_map(|name| Some((name, find(name)?)));
        Some(Self::Bearer {
            realm: find("realm")?,
            questions: questions.collect(),
        })
    }
}

//! The images for which a login is used, in the same way as Podman reads its file
//! (containers-auth.json(5)).

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Credentials, Reference, RegistrySettings,
    reference::{DOCKER, is_local},
};
use crate::secrets::SecretVersion;

/// Canonical name of Docker's own registry.
const DOCKER_PLACE: &str = "docker.io";

/// Scope of a login: a registry, or a path of a registry. Displayed as `host` or `host/path`, with
/// the host in lower case with its port, and `docker.io` for each name of Docker's own registry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginPlace {
    host: String,
    /// Empty for the whole registry.
    path: String,
}

impl LoginPlace {
    /// Parses `host[:port][/path]`, which was checked before.
    pub fn parse(text: &str) -> Self {
        let (host, path) = text.split_once('/').unwrap_or((text, ""));
        Self {
            host: canonical(host),
            path: path.to_owned(),
        }
    }

    /// The registry's host, with its port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether its host is the machine itself, or one that only the machine reaches.
    pub fn is_local(&self) -> bool {
        is_local(&self.host)
    }

    /// The host of the registry's API.
    pub fn api_host(&self) -> &str {
        Reference::api_of(&self.host)
    }

    /// Whether the login is for this repository of this registry.
    fn covers(&self, host: &str, repository: &str) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        let path = self.path.as_str();
        let covers = path.is_empty() || repository.strip_prefix(path).is_some_and(below);
        covers && self.host == canonical(host)
    }

    /// The key in Podman's file for an image whose registry is written as `host`.
    fn beside(&self, host: &str) -> String {
        let host = match self.host.as_str() {
            DOCKER_PLACE => DOCKER_PLACE,
            _ => host,
        };
        match self.path.as_str() {
            "" => host.to_owned(),
            path => format!("{host}/{path}"),
        }
    }
}

impl fmt::Display for LoginPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.beside(&self.host))
    }
}

fn canonical(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    match DOCKER.contains(&host.as_str()) {
        true => DOCKER_PLACE.to_owned(),
        false => host,
    }
}

/// The place with the longest path that covers this repository.
fn best<'p>(
    places: impl Iterator<Item = &'p LoginPlace>,
    host: &str,
    repository: &str,
) -> Option<&'p LoginPlace> {
    let found = places.filter(|place| place.covers(host, repository));
    found.max_by_key(|place| place.path.len())
}

/// The places that the pull of an image needs, by their keys in Podman's file: for its registry,
/// and for each of its mirrors with a login for that host. A name without a registry is looked up
/// as Docker's, where Podman pulls it from unless the machine is configured otherwise.
pub fn needed<'p>(
    image: &str,
    settings: &RegistrySettings,
    places: impl Iterator<Item = &'p LoginPlace> + Clone,
) -> BTreeMap<String, &'p LoginPlace> {
    let mut found = BTreeMap::new();
    let reference = Reference::parse(image);
    let reference = reference.or_else(|| Reference::parse(&format!("{DOCKER_PLACE}/{image}")));
    for (host, repository) in reference.iter().flat_map(|one| one.locations(settings)) {
        if let Some(place) = best(places.clone(), &host, &repository) {
            found.insert(place.beside(&host), place);
        }
    }
    found
}

/// The registry from which an image is pulled, in the form for `katcall registry login`.
pub fn login_host(image: &str) -> String {
    let reference = Reference::parse(image);
    reference.map_or_else(|| DOCKER_PLACE.to_owned(), |one| canonical(&one.host))
}

/// Logins by the registry or path that they are for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Logins(pub BTreeMap<LoginPlace, Credentials>);

impl Logins {
    /// The login for a repository of a registry or a mirror.
    pub fn of(&self, host: &str, repository: &str) -> Option<&Credentials> {
        self.0.get(best(self.0.keys(), host, repository)?)
    }
}

/// `/kat/registries/{ns}/{registry}`: a name and a password for a registry, or for a path of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoginRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// Generated when it is first written.
    pub uid: String,
    /// Counts changes, from 1.
    pub version: u64,
    /// When it was first written.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
    /// The user name, visible to callers who may change the credentials.
    pub username: String,
    /// Number of the data key that sealed it.
    pub key_id: u64,
    /// Name and password, sealed, in base64.
    pub sealed: String,
}

impl LoginRecord {
    /// The uid and version that assignments refer to.
    pub fn secret_version(&self) -> SecretVersion {
        SecretVersion {
            uid: self.uid.clone(),
            version: self.version,
        }
    }
}

impl fmt::Debug for LoginRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LoginRecord")
            .field("uid", &self.uid)
            .field("version", &self.version)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::RegistrySetting;

    fn keys(image: &str, settings: &RegistrySettings, places: &[&str]) -> Vec<(String, String)> {
        let places: Vec<_> = places.iter().map(|text| LoginPlace::parse(text)).collect();
        let found = needed(image, settings, places.iter());
        let found = found.into_iter();
        found.map(|(key, place)| (key, place.to_string())).collect()
    }

    #[test]
    fn the_longest_path_wins_and_ends_where_a_part_does() {
        let places = [
            "ghcr.io",
            "ghcr.io/org",
            "ghcr.io/org/app",
            "other.example",
            "registry.lab:5000",
            "docker.io",
        ];
        let one = |image: &str| {
            let found = keys(image, &RegistrySettings::default(), &places);
            assert!(found.len() < 2, "{found:?}");
            found.into_iter().map(|(key, _)| key).next()
        };
        for (image, expected) in [
            ("ghcr.io/org/app:1", Some("ghcr.io/org/app")),
            ("ghcr.io/org/app/part:1", Some("ghcr.io/org/app")),
            ("ghcr.io/org/apple", Some("ghcr.io/org")),
            ("ghcr.io/organ/app", Some("ghcr.io")),
            ("registry.lab:5000/web@sha256:00", Some("registry.lab:5000")),
            ("registry.lab/web", None),
            ("registry.lab:5001/web", None),
            ("sub.other.example/web", None),
            ("docker.io/nginx", Some("docker.io")),
            ("index.docker.io/library/nginx", Some("docker.io")),
            ("registry-1.docker.io/a/b", Some("docker.io")),
            ("nginx:1", Some("docker.io")),
            ("grafana/grafana", Some("docker.io")),
            // The key keeps the spelling of the image, because Podman compares case-sensitively.
            ("GHCR.io/org/app", Some("GHCR.io/org/app")),
        ] {
            assert_eq!(one(image).as_deref(), expected, "{image}");
        }
        let library = ["docker.io/library", "docker.io/grafana"];
        for (image, expected) in [
            ("nginx", "docker.io/library"),
            ("docker.io/nginx", "docker.io/library"),
            ("grafana/grafana:1", "docker.io/grafana"),
        ] {
            let found = keys(image, &RegistrySettings::default(), &library);
            assert_eq!(found[0].0, expected, "{image}");
        }
    }

    #[test]
    fn a_mirror_gets_what_was_said_about_it_and_nothing_else() {
        let setting = RegistrySetting {
            insecure: false,
            mirrors: vec!["mirror.lab:5000/hub".to_owned(), "b.example".to_owned()],
        };
        let settings = RegistrySettings {
            schema: 1,
            registries: [("docker.io".to_owned(), setting)].into(),
        };
        let found = |places: &[&str]| keys("docker.io/nginx", &settings, places);
        let pair = |key: &str| (key.to_owned(), key.to_owned());
        assert_eq!(found(&["docker.io"]), [pair("docker.io")]);
        assert_eq!(
            found(&["docker.io", "mirror.lab:5000/hub", "b.example/other"]),
            [pair("docker.io"), pair("mirror.lab:5000/hub")]
        );
        let credentials = |username: &str| Credentials {
            username: username.to_owned(),
            password: "p".to_owned(),
        };
        let logins = ["docker.io", "b.example"];
        let logins = logins.map(|text| (LoginPlace::parse(text), credentials(text)));
        let logins = Logins(logins.into());
        let name = |host: &str| {
            let found = logins.of(host, "library/nginx");
            found.map(|found| found.username.as_str())
        };
        assert_eq!(name("registry-1.docker.io"), Some("docker.io"));
        assert_eq!(name("b.example"), Some("b.example"));
        assert_eq!(name("mirror.lab:5000"), None);
    }

    #[test]
    fn a_place_has_one_name() {
        for (written, expected) in [
            ("GHCR.io/org", "ghcr.io/org"),
            ("index.docker.io", "docker.io"),
            ("Registry-1.Docker.io/a", "docker.io/a"),
            ("Registry.Lab:5000", "registry.lab:5000"),
        ] {
            let place = LoginPlace::parse(written);
            assert_eq!(place.to_string(), expected);
            assert_eq!(LoginPlace::parse(expected), place);
        }
    }
}

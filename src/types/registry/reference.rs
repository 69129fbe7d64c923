//! Names of images, parsed as Docker and Podman do.

use std::fmt;

use super::RegistrySettings;

/// Hosts of Docker's own registry.
pub(super) const DOCKER: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// `host/path[:tag][@digest]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The host as written, with its port.
    pub host: String,
    /// The path below the host, as written.
    path: String,
    tag: Option<String>,
    digest: Option<String>,
}

impl Reference {
    /// Parses a name that was checked before; `None` if it names no registry.
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.to_owned())),
            None => (text, None),
        };
        let (host, rest) = rest.split_once('/')?;
        if !host.contains(['.', ':']) && host != "localhost" {
            return None;
        }
        let slash = rest.rfind('/').map_or(0, |place| place + 1);
        let (path, tag) = match rest.get(slash..)?.split_once(':') {
            Some((last, tag)) => (rest.get(..slash + last.len())?, Some(tag.to_owned())),
            None => (rest, None),
        };
        Some(Self {
            host: host.to_owned(),
            path: path.to_owned(),
            tag,
            digest,
        })
    }

    /// The name with the host that Docker takes for names without one: `nginx` is
    /// `docker.io/library/nginx`.
    pub fn with_docker(text: &str) -> String {
        match text.contains('/') {
            true => format!("docker.io/{text}"),
            false => format!("docker.io/library/{text}"),
        }
    }

    /// Whether it has a digest.
    pub fn is_pinned(&self) -> bool {
        self.digest.is_some()
    }

    /// The digest, else the tag, else `latest`.
    pub fn version(&self) -> &str {
        let tag = self.tag.as_deref().unwrap_or("latest");
        self.digest.as_deref().unwrap_or(tag)
    }

    /// The repository in the registry's API.
    pub fn repository(&self) -> String {
        match is_dockers(&self.host) && !self.path.contains('/') {
            true => format!("library/{}", self.path),
            false => self.path.clone(),
        }
    }

    /// The host of the API of a registry.
    pub fn api_of(host: &str) -> &str {
        match is_dockers(host) {
            true => "registry-1.docker.io",
            false => host,
        }
    }

    /// Host and repository of each possible source: mirrors, then the registry itself.
    pub fn locations(&self, settings: &RegistrySettings) -> Vec<(String, String)> {
        let setting = settings.registries.get(&self.host);
        let mirrors = setting.map(|one| one.mirrors.as_slice());
        let mirrors = mirrors.unwrap_or_default().iter();
        let mut locations: Vec<_> = mirrors
            .map(|mirror| match mirror.split_once('/') {
                Some((host, above)) => (host.to_owned(), format!("{above}/{}", self.repository())),
                None => (mirror.clone(), self.repository()),
            })
            .collect();
        locations.push((self.host.clone(), self.repository()));
        locations
    }

    /// Whether its host is the machine itself, or one that only the machine reaches.
    pub fn is_local(&self) -> bool {
        is_local(&self.host)
    }

    /// The same image by its digest: `host/path@sha256:...`, without the tag, which Podman does not
    /// allow there.
    pub fn pinned_to(&self, digest: &str) -> String {
        format!("{}/{}@{digest}", self.host, self.path)
    }
}

/// Whether the host is this machine, or one that only this machine reaches.
pub(super) fn is_local(host: &str) -> bool {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let address = host.parse::<std::net::Ipv4Addr>();
    host.eq_ignore_ascii_case("localhost")
        || host.to_ascii_lowercase().ends_with(".localhost")
        || address.is_ok_and(|one| one.is_loopback() || one.is_link_local() || one.is_unspecified())
}

fn is_dockers(host: &str) -> bool {
    DOCKER.contains(&host)
}

/// Repository and version, without the host.
impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_pinned() { '@' } else { ':' };
        write!(formatter, "{}{mark}{}", self.path, self.version())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_podman_reads_them() {
        let read = |text: &str| {
            let read = Reference::parse(text)?;
            Some(format!(
                "{} {} {}",
                Reference::api_of(&read.host),
                read.repository(),
                read.version()
            ))
        };
        let of = |text: &str| read(text).unwrap();
        assert_eq!(of("registry.example/web:1"), "registry.example web 1");
        assert_eq!(
            of("registry.lab:5000/test/web"),
            "registry.lab:5000 test/web latest"
        );
        assert_eq!(of("localhost/web:1"), "localhost web 1");
        assert_eq!(
            of("docker.io/nginx:1.27"),
            "registry-1.docker.io library/nginx 1.27"
        );
        assert_eq!(
            of("docker.io/grafana/grafana"),
            "registry-1.docker.io grafana/grafana latest"
        );
        assert_eq!(of("quay.io/a/b/c:x@sha256:00"), "quay.io a/b/c sha256:00");
        for (short, full) in [
            ("nginx", "docker.io/library/nginx"),
            ("nginx:1", "docker.io/library/nginx:1"),
            ("grafana/grafana:1", "docker.io/grafana/grafana:1"),
        ] {
            assert_eq!(read(short), None, "{short}");
            assert_eq!(Reference::with_docker(short), full);
            assert!(read(full).is_some(), "{full}");
        }
        for (host, local) in [
            ("localhost", true),
            ("LOCALHOST:5000", true),
            ("127.0.0.2:5000", true),
            ("169.254.169.254", true),
            ("0.0.0.0:1", true),
            ("registry.lab:5000", false),
            ("10.0.0.1:5000", false),
        ] {
            let image = Reference::parse(&format!("{host}/web")).unwrap();
            assert_eq!(image.is_local(), local, "{host}");
        }
        let image = Reference::parse("docker.io/nginx:1.27").unwrap();
        assert_eq!(image.pinned_to("sha256:00"), "docker.io/nginx@sha256:00");
        assert_eq!(image.to_string(), "nginx:1.27");
    }
}

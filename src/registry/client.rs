//! The HTTP client of registries.

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use reqwest::{Client, Response, StatusCode, Url, header, redirect};
use serde::Deserialize;

use super::{
    ImageSource, LoginAnswer, RegistryError, ResolvedImage,
    answer::{self, Challenge, Manifest},
};
use kat_types::{
    encoding::digest::sha256_hex,
    registry::{Credentials, LoginPlace, Logins, Reference, RegistrySettings},
};

/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(2);
/// Longest time of all requests about one image.
const WHOLE: Duration = Duration::from_secs(5);
/// Longest time at one registry or mirror while there are others.
const PLACE: Duration = Duration::from_millis(1500);
/// Largest manifest in bytes, as the specification recommends.
const MANIFEST: usize = 4 << 20;
/// Largest image configuration in bytes.
const CONFIGURATION: usize = 4 << 20;
/// Largest response with a token in bytes.
const TOKEN: usize = 1 << 20;
/// Largest response with errors in bytes.
const ERRORS: usize = 64 << 10;
/// Most redirections of one request.
const REDIRECTS: usize = 5;

/// Requests image data from registries.
#[derive(Debug, Clone)]
pub struct Registries {
    checked: Client,
    unchecked: Client,
}

/// A registry, or a mirror of it, with the image to request there.
struct RegistryTarget<'a> {
    client: &'a Client,
    /// `https://host[:port]`
    base: String,
    /// Host for messages.
    host: String,
    repository: String,
    version: &'a str,
}

#[derive(Deserialize)]
struct RegistryToken {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

impl Registries {
    /// Makes the clients without any connection.
    ///
    /// # Errors
    /// The system's certificates can't be used.
    pub fn new() -> Result<Self, reqwest::Error> {
        let builder = || {
            Client::builder()
                .connect_timeout(CONNECT)
                .timeout(WHOLE)
                .user_agent(concat!("kat/", env!("CARGO_PKG_VERSION")))
        };
        let secure = redirect::Policy::custom(|attempt| {
            if attempt.previous().len() > REDIRECTS {
                attempt.error("too many redirections")
            } else if attempt.url().scheme() == "https" {
                attempt.follow()
            } else {
                attempt.error("a redirection to plain HTTP")
            }
        });
        Ok(Self {
            checked: builder().redirect(secure).build()?,
            unchecked: builder()
                .redirect(redirect::Policy::limited(REDIRECTS))
                .danger_accept_invalid_certs(true)
                .build()?,
        })
    }

    fn client(&self, insecure: bool) -> &Client {
        match insecure {
            true => &self.unchecked,
            false => &self.checked,
        }
    }

    /// The registries to request an image from, in this order: mirrors, then the registry itself;
    /// insecure ones by HTTPS first.
    fn places<'a>(
        &'a self,
        image: &'a Reference,
        settings: &RegistrySettings,
    ) -> Vec<RegistryTarget<'a>> {
        let insecure = |host: &str| {
            let setting = settings.registries.get(host);
            setting.is_some_and(|one| one.insecure)
        };
        let mut places = Vec::new();
        for (host, repository) in image.locations(settings) {
            let insecure = insecure(&host);
            for base in bases(Reference::api_of(&host), insecure) {
                places.push(RegistryTarget {
                    client: self.client(insecure),
                    base,
                    host: Reference::api_of(&host).to_owned(),
                    repository: repository.clone(),
                    version: image.version(),
                });
            }
        }
        places
    }
}

/// Base addresses of a host, in the order to try.
fn bases(host: &str, insecure: bool) -> Vec<String> {
    let schemes: &[&str] = match insecure {
        true => &["https", "http"],
        false => &["https"],
    };
    let schemes = schemes.iter();
    schemes.map(|scheme| format!("{scheme}://{host}")).collect()
}

#[async_trait]
impl ImageSource for Registries {
    async fn resolve(
        &self,
        image: &Reference,
        settings: &RegistrySettings,
        logins: &Logins,
    ) -> Result<ResolvedImage, RegistryError> {
        let ask = async {
            let mut last = None;
            let places = self.places(image, settings);
            let longest = if places.len() > 1 { PLACE } else { WHOLE };
            let mut without = BTreeSet::new();
            for place in &places {
                // The credentials are for the registry itself, never for its mirrors.
                let credentials = logins.of(&place.host, &place.repository);
                let answer = tokio::time::timeout(longest, place.resolve(credentials));
                let silent = |_| RegistryError::Unreachable {
                    host: place.host.clone(),
                    error: "no answer in time".to_owned(),
                };
                match answer.await.unwrap_or_else(|late| Err(silent(late))) {
                    Ok(resolved) => return Ok(resolved),
                    // An earlier response is more informative than the failure to reach a later
                    // place.
                    Err(RegistryError::Unreachable { .. }) if last.is_some() => {}
                    Err(error) => {
                        if matches!(error, RegistryError::Nonexistent { .. }) {
                            without.insert(place.source());
                        }
                        last = Some(error);
                    }
                }
            }
            Err(match last {
                // Podman may still get the image from a source that could not be asked.
                Some(RegistryError::Nonexistent { host, image })
                    if !places.iter().all(|place| without.contains(&place.source())) =>
                {
                    RegistryError::NotFound { host, image }
                }
                Some(error) => error,
                None => RegistryError::ShortName(image.to_string()),
            })
        };
        let late = |_| too_late(&image.host);
        tokio::time::timeout(WHOLE, ask).await.map_err(late)?
    }

    async fn check_login(
        &self,
        place: &LoginPlace,
        settings: &RegistrySettings,
        credentials: &Credentials,
    ) -> Result<LoginAnswer, RegistryError> {
        let setting = settings.registries.get(place.host());
        let insecure = setting.is_some_and(|one| one.insecure);
        let host = place.api_host();
        let ask = async {
            let mut last = too_late(host);
            for base in bases(host, insecure) {
                let place = RegistryTarget {
                    client: self.client(insecure),
                    base,
                    host: host.to_owned(),
                    repository: String::new(),
                    version: "",
                };
                match place.check(credentials).await {
                    Err(error @ RegistryError::Unreachable { .. }) => last = error,
                    answer => return answer,
                }
            }
            Err(last)
        };
        let late = |_| too_late(host);
        tokio::time::timeout(WHOLE, ask).await.map_err(late)?
    }
}

fn too_late(host: &str) -> RegistryError {
    RegistryError::Unreachable {
        host: host.to_owned(),
        error: format!("no answer within {} s", WHOLE.as_secs()),
    }
}

impl RegistryTarget<'_> {
    /// Host and repository, without the scheme.
    fn source(&self) -> (&str, &str) {
        (&self.host, &self.repository)
    }

    async fn resolve(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<ResolvedImage, RegistryError> {
        let path = format!("{}/manifests/{}", self.repository, self.version);
        let accepted = answer::accepted();
        let mut authorization = None;
        let response = self
            .get(&path, &accepted, credentials, &mut authorization)
            .await?;
        let text = |name: &str| {
            let value = response
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let (kind, said) = (text("content-type"), text("docker-content-digest"));
        let body = self.body(response, MANIFEST).await?;
        let digest = format!("sha256:{}", sha256_hex(&body));
        let wanted = [said.as_str(), self.version];
        let mut wanted = wanted.into_iter().filter(|one| answer::is_digest(one));
        if wanted.any(|wanted| wanted != digest) {
            return Err(self.unexpected("a manifest that has another digest than it says"));
        }
        let architectures = match Manifest::read(&kind, &body)
            .map_err(|what| self.unexpected(&what))?
        {
            Manifest::Index(architectures) => architectures,
            Manifest::Image(configuration) => {
                let path = format!("{}/blobs/{configuration}", self.repository);
                // A failure here is ignored: the architecture only spares machines a try.
                let answer = self
                    .get(&path, "*/*", credentials, &mut authorization)
                    .await;
                let body = match answer {
                    Ok(response) => self.body(response, CONFIGURATION).await.ok(),
                    Err(_) => None,
                };
                let own = |body: &Vec<u8>| configuration == format!("sha256:{}", sha256_hex(body));
                let body = body.filter(own);
                body.and_then(|body| answer::architecture(&body))
                    .into_iter()
                    .collect()
            }
        };
        Ok(ResolvedImage {
            digest,
            architectures,
        })
    }

    /// Checks only whether the registry accepts these credentials (the distribution specification,
    /// Determining Support).
    async fn check(&self, credentials: &Credentials) -> Result<LoginAnswer, RegistryError> {
        let mut shown = None;
        match self.get("", "*/*", Some(credentials), &mut shown).await {
            Ok(_) if shown.is_some() => Ok(LoginAnswer::Accepted),
            Ok(_) => Ok(LoginAnswer::NotAsked),
            Err(RegistryError::NotFound { host, .. } | RegistryError::Nonexistent { host, .. }) => {
                let what = "nothing at /v2/: it is no registry".to_owned();
                Err(RegistryError::Unexpected { host, what })
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a request, and repeats it once with the authentication that the registry demands.
    async fn get(
        &self,
        path: &str,
        accepted: &str,
        credentials: Option<&Credentials>,
        authorization: &mut Option<String>,
    ) -> Result<Response, RegistryError> {
        let url = format!("{}/v2/{path}", self.base);
        for attempt in 0..2 {
            let mut request = self.client.get(&url).header(header::ACCEPT, accepted);
            if let Some(authorization) = authorization.as_ref() {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let response = request
                .send()
                .await
                .map_err(|error| self.unreachable(&error))?;
            match response.status() {
                status if status.is_success() => return Ok(response),
                StatusCode::UNAUTHORIZED if attempt == 0 => {
                    let headers = response.headers().get_all(header::WWW_AUTHENTICATE);
                    let headers = headers.into_iter().filter_map(|value| value.to_str().ok());
                    let challenge = Challenge::read(headers);
                    *authorization = Some(self.answer(challenge, credentials).await?);
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => break,
                StatusCode::NOT_FOUND => {
                    let host = self.host.clone();
                    let mark = if answer::is_digest(self.version) {
                        '@'
                    } else {
                        ':'
                    };
                    let image = format!("{}{mark}{}", self.repository, self.version);
                    // Without a readable body the answer is a 404 of anybody.
                    let body = self.body(response, ERRORS).await.unwrap_or_default();
                    return Err(match answer::is_nonexistent(&body) {
                        true => RegistryError::Nonexistent { host, image },
                        false => RegistryError::NotFound { host, image },
                    });
                }
                status => {
                    return Err(RegistryError::Refused {
                        host: self.host.clone(),
                        status: status.as_u16(),
                    });
                }
            }
        }
        Err(RegistryError::Unauthorized(self.host.clone()))
    }

    /// The header `Authorization` for a challenge.
    async fn answer(
        &self,
        challenge: Option<Challenge>,
        credentials: Option<&Credentials>,
    ) -> Result<String, RegistryError> {
        let unauthorized = || RegistryError::Unauthorized(self.host.clone());
        match challenge.ok_or_else(unauthorized)? {
            Challenge::Basic => {
                use base64::{Engine, engine::general_purpose::STANDARD};
                let Credentials { username, password } = credentials.ok_or_else(unauthorized)?;
                Ok(format!(
                    "Basic {}",
                    STANDARD.encode(format!("{username}:{password}"))
                ))
            }
            Challenge::Bearer { realm, questions } => {
                let mut url = Url::parse(&realm)
                    .map_err(|_| self.unexpected("a realm for tokens that is no address"))?;
                let plain = self.base.starts_with("http://");
                if url.scheme() != "https" && !(plain && url.scheme() == "http") {
                    return Err(self.unexpected("a realm for tokens without TLS"));
                }
                url.query_pairs_mut().extend_pairs(questions);
                let mut request = self.client.get(url);
                if let Some(Credentials { username, password }) = credentials {
                    request = request.basic_auth(username, Some(password));
                }
                let response = request
                    .send()
                    .await
                    .map_err(|error| self.unreachable(&error))?;
                let status = response.status();
                if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                    return Err(RegistryError::Refused {
                        host: self.host.clone(),
                        status: status.as_u16(),
                    });
                }
                if !status.is_success() {
                    return Err(unauthorized());
                }
                let body = self.body(response, TOKEN).await?;
                let RegistryToken {
                    token,
                    access_token,
                } = serde_json::from_slice(&body)
                    .map_err(|_| self.unexpected("something that is no token"))?;
                let token = if token.is_empty() {
                    access_token
                } else {
                    token
                };
                Ok(format!("Bearer {token}"))
            }
        }
    }

    async fn body(&self, mut response: Response, most: usize) -> Result<Vec<u8>, RegistryError> {
        let mut body = Vec::new();
        while let Some(part) = response
            .chunk()
            .await
            .map_err(|error| self.unreachable(&error))?
        {
            if body.len() + part.len() > most {
                return Err(self.unexpected("more than an answer may have"));
            }
            body.extend_from_slice(&part);
        }
        Ok(body)
    }

    /// Uses the innermost cause, which is the most informative.
    fn unreachable(&self, error: &reqwest::Error) -> RegistryError {
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let mut error = cause.to_string();
        // What rustls says of an answer that is no TLS, such as one in plain HTTP.
        if error.contains("InvalidContentType") {
            error = format!(
                "what listens there speaks no TLS; `katcall registry set {} --insecure` allows HTTP",
                self.host
            );
        }
        RegistryError::Unreachable {
            host: self.host.clone(),
            error,
        }
    }

    fn unexpected(&self, what: &str) -> RegistryError {
        RegistryError::Unexpected {
            host: self.host.clone(),
            what: what.to_owned(),
        }
    }
}

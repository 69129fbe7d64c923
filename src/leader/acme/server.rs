//! Questions to a server of ACME (RFC 8555), with `instant-acme`.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode, Uri,
    header::{LOCATION, RETRY_AFTER},
};
use http_body_util::BodyExt;
use instant_acme::{
    Account, AuthorizationStatus, BodyWrapper, BytesResponse, CertificateIdentifier,
    ChallengeStatus, ChallengeType, Error, ExternalAccountKey, HttpClient, Identifier, Key,
    NewAccount, NewOrder, Order, OrderStatus, Problem,
};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822};
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject};
use serde::Deserialize;

use super::{
    AcmeServer,
    dns::{self, DnsHooks, HookedRecords},
    name_check,
};
use kat_plan::{
    AcmeAccount, AcmeFailure, AcmeFailureKind, AcmeQuestion, AcmeReply, AcmeRequest, EabAccount,
    ProofKind,
};

/// Longest connection, and longest request.
const CONNECT: Duration = Duration::from_secs(10);
const WHOLE: Duration = Duration::from_secs(30);
/// Longest chain of a certificate, and longest other answer, in bytes: JSON becomes many times as large in
/// memory.
const LONGEST_CHAIN: usize = 256 << 10;
const LONGEST_ANSWER: usize = 64 << 10;
/// Longest URL of an account or an order that is kept, in bytes.
const LONGEST_URL: usize = 2048;
/// Longest text of a server that is kept, in characters.
const LONGEST_TEXT: usize = 240;
/// How often a server without renewal information is asked for it.
const NO_RENEWAL_INFORMATION: SignedDuration = SignedDuration::from_hours(24);

/// Asks servers over HTTPS that the machine's certificates vouch for.
#[derive(Clone)]
pub struct InstantAcme {
    hooked: Arc<HookedRecords>,
}

impl InstantAcme {
    /// `hooks` are the programs of this machine that change records of DNS.
    pub fn new(hooks: Arc<dyn DnsHooks>) -> Self {
        Self {
            hooked: Arc::new(HookedRecords::new(hooks)),
        }
    }
}

#[async_trait]
impl AcmeServer for InstantAcme {
    async fn ask(&self, question: &AcmeQuestion) -> AcmeReply {
        let host = question.host.as_str();
        if let AcmeRequest::Check { token, answer, own } = &question.request {
            return AcmeReply::Checked(name_check::check(host, token, answer, own).await);
        }
        if let Some(reply) = dns::ask(&question.request, &self.hooked).await {
            return reply;
        }
        let said = Arc::new(Mutex::new(LastAnswer::default()));
        // The certificates that the machine trusts are read from disk.
        let known = Arc::clone(&said);
        let awaits_chain = Arc::<AtomicBool>::default();
        let awaited = Arc::clone(&awaits_chain);
        let built = tokio::task::spawn_blocking(move || BoundedClient::new(known, awaited)).await;
        let client = match built {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return failed(AcmeFailureKind::Unreachable, innermost(&error), None),
            Err(error) => return failed(AcmeFailureKind::Unreachable, error.to_string(), None),
        };
        let server = Server {
            directory: &question.directory,
            client,
            said,
            awaits_chain,
        };
        server.ask(question).await
    }
}

/// What the last answer said besides its content.
#[derive(Debug, Clone, Default)]
struct LastAnswer {
    /// Status; 0 without an answer.
    status: u16,
    retry_after: Option<SignedDuration>,
}

impl LastAnswer {
    fn of(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Self {
        let after = headers.get(RETRY_AFTER);
        Self {
            status: status.as_u16(),
            retry_after: after
                .and_then(|value| value.to_str().ok())
                .and_then(|text| retry_after(text, now)),
        }
    }
}

/// How long an answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerBound {
    /// The chain of a certificate, which is no JSON.
    Chain,
    Other,
}

impl AnswerBound {
    /// A failure is JSON, also where a chain is awaited.
    fn of(awaits_chain: &AtomicBool, status: StatusCode) -> Self {
        match status.is_success() && awaits_chain.load(Relaxed) {
            true => Self::Chain,
            false => Self::Other,
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::Chain => LONGEST_CHAIN,
            Self::Other => LONGEST_ANSWER,
        }
    }

    /// Adds a part of an answer to what was read of it before.
    fn add(self, read: &mut Vec<u8>, part: &[u8]) -> Result<(), Error> {
        if part.len() > self.bytes().saturating_sub(read.len()) {
            return Err(Error::Str(match self {
                Self::Chain => "a certificate of at most 256 KiB",
                Self::Other => "an answer of at most 64 KiB",
            }));
        }
        read.extend_from_slice(part);
        Ok(())
    }
}

/// A client whose answers are bounded.
#[derive(Clone)]
struct BoundedClient {
    http: reqwest::Client,
    said: Arc<Mutex<LastAnswer>>,
    awaits_chain: Arc<AtomicBool>,
}

impl BoundedClient {
    fn new(
        said: Arc<Mutex<LastAnswer>>,
        awaits_chain: Arc<AtomicBool>,
    ) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .https_only(true)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(WHOLE)
            .build()?;
        Ok(Self {
            http,
            said,
            awaits_chain,
        })
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        *self.said.lock() = LastAnswer::default();
        let other = |error: reqwest::Error| Error::Other(innermost(&error).into());
        let (mut parts, body) = request.into_parts();
        let agent = concat!("kat/", env!("CARGO_PKG_VERSION"), " instant-acme");
        parts.headers.insert(
            http::header::USER_AGENT,
            http::HeaderValue::from_static(agent),
        );
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(never) => match never {},
        };
        let method = parts.method.clone();
        let request =
            reqwest::Request::try_from(Request::from_parts(parts, body)).map_err(other)?;
        let mut response = self.http.execute(request).await.map_err(other)?;
        let (status, headers) = (response.status(), response.headers().clone());
        *self.said.lock() = LastAnswer::of(status, &headers, Timestamp::now());
        let bound = AnswerBound::of(&self.awaits_chain, status);
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(other)? {
            bound.add(&mut body, &part)?;
        }
        checked(&method, status, headers, body)
    }
}

/// The URL of a directory that `instant-acme` takes for one without a look.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NonceUrl {
    new_nonce: String,
}

/// What of an answer `instant-acme` gets, which panics at a directory whose `newNonce` is no URL, and at
/// a `Retry-After` that its clock cannot hold. URLs that are too long to be stored are left out.
fn checked(
    method: &Method,
    status: StatusCode,
    mut headers: HeaderMap,
    body: Vec<u8>,
) -> Result<BytesResponse, Error> {
    let after = headers
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let after = after.map_or("", str::trim);
    if after.parse::<u64>().is_ok() && after.parse::<u32>().is_err() {
        headers.remove(RETRY_AFTER);
    }
    if headers
        .get(LOCATION)
        .is_some_and(|url| url.len() > LONGEST_URL)
    {
        headers.remove(LOCATION);
    }
    if *method == Method::GET
        && let Ok(NonceUrl { new_nonce }) = serde_json::from_slice(&body)
        && new_nonce.parse::<Uri>().is_err()
    {
        return Err(Error::Str("a URL as newNonce of the directory"));
    }
    let mut head = Response::new(());
    *head.status_mut() = status;
    *head.headers_mut() = headers;
    let (parts, ()) = head.into_parts();
    Ok(BytesResponse {
        parts,
        body: Box::new(Bytes::from(body)),
    })
}

impl HttpClient for BoundedClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}

/// `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn retry_after(text: &str, now: Timestamp) -> Option<SignedDuration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(SignedDuration::from_secs(seconds.into()));
    }
    let at = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(at.duration_since(now).max(SignedDuration::ZERO))
}

/// What is ordered.
struct Ordered<'a> {
    host: &'a str,
    profile: &'a str,
    replaces: Option<&'a str>,
    proof: ProofKind,
}

/// The kind of challenge that a host is proved by.
fn challenge_type(proof: ProofKind) -> ChallengeType {
    match proof {
        ProofKind::Http => ChallengeType::Http01,
        ProofKind::Dns => ChallengeType::Dns01,
    }
}

struct Server<'a, C> {
    directory: &'a str,
    client: C,
    said: Arc<Mutex<LastAnswer>>,
    /// The next answer without a failure is the chain of a certificate.
    awaits_chain: Arc<AtomicBool>,
}

impl<C: HttpClient + Clone> Server<'_, C> {
    async fn ask(&self, question: &AcmeQuestion) -> AcmeReply {
        let answered = match &question.request {
            // These are no questions to it.
            AcmeRequest::Check { .. }
            | AcmeRequest::Locate { .. }
            | AcmeRequest::LocateForHook { .. }
            | AcmeRequest::Record { .. }
            | AcmeRequest::Remove { .. } => return AcmeReply::Ready,
            AcmeRequest::Register {
                email, key, eab, ..
            } => {
                self.register(email.as_deref(), key.as_deref(), eab.as_ref())
                    .await
            }
            AcmeRequest::Contact { account, email } => {
                self.change_contact(account, email.as_deref()).await
            }
            AcmeRequest::Order {
                account,
                profile,
                replaces,
                proof,
            } => {
                let what = Ordered {
                    host: &question.host,
                    profile,
                    replaces: replaces.as_deref(),
                    proof: *proof,
                };
                self.order(account, &what).await
            }
            AcmeRequest::Answer {
                account,
                url,
                proof,
            } => self.answer(account, url, *proof).await,
            AcmeRequest::Continue {
                account,
                url,
                request,
            } => self.proceed(account, url, request.as_deref()).await,
            AcmeRequest::RenewalTime {
                account,
                certificate,
            } => self.renewal(account, certificate).await,
        };
        answered.unwrap_or_else(|error| {
            let last = self.said.lock().clone();
            AcmeReply::Failed(failure(&error, &last))
        })
    }

    fn http(&self) -> Box<dyn HttpClient> {
        Box::new(self.client.clone())
    }

    fn retry_after(&self) -> Option<SignedDuration> {
        self.said.lock().retry_after
    }

    async fn account(&self, account: &AcmeAccount) -> Result<Account, Error> {
        let key = PrivatePkcs8KeyDer::from(account.key.as_slice());
        let builder = Account::builder_with_http(self.http());
        let directory = self.directory.to_owned();
        builder
            .from_parts(account.url.clone(), key, directory)
            .await
    }

    async fn register(
        &self,
        email: Option<&str>,
        key: Option<&[u8]>,
        eab: Option<&EabAccount>,
    ) -> Result<AcmeReply, Error> {
        let contact = email.map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let builder = Account::builder_with_http(self.http());
        let directory = self.directory.to_owned();
        if let Some(key) = key {
            let der = PrivatePkcs8KeyDer::from(key.to_vec());
            let own = Key::from_pkcs8_der(der.clone_key())?;
            let pair = (own, PrivateKeyDer::Pkcs8(der));
            let (account, _) = builder.create_from_key(pair, directory).await?;
            if !contact.is_empty() {
                account.update_contacts(&contact).await?;
            }
            return Ok(AcmeReply::Registered {
                url: account.id().to_owned(),
                key: None,
            });
        }
        let eab = eab.map(|eab| ExternalAccountKey::new(eab.id.clone(), &eab.key));
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let (account, credentials) = builder.create(&new, directory, eab.as_ref()).await?;
        Ok(AcmeReply::Registered {
            url: account.id().to_owned(),
            key: Some(credentials.private_key().secret_pkcs8_der().to_vec()),
        })
    }

    async fn change_contact(
        &self,
        account: &AcmeAccount,
        email: Option<&str>,
    ) -> Result<AcmeReply, Error> {
        let contact = email.map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
        let account = self.account(account).await?;
        account.update_contacts(&contact).await?;
        Ok(AcmeReply::ContactChanged)
    }

    async fn order(
        &self,
        account: &AcmeAccount,
        ordered: &Ordered<'_>,
    ) -> Result<AcmeReply, Error> {
        let Ordered {
            host,
            profile,
            replaces,
            proof: kind,
        } = *ordered;
        let account = self.account(account).await?;
        let names = [Identifier::Dns(host.to_owned())];
        let new = || match profile {
            "" => NewOrder::new(&names),
            profile => NewOrder::new(&names).profile(profile),
        };
        let replaced = replaces.and_then(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).ok());
        let replaced = replaced.and_then(|der| {
            let id = CertificateIdentifier::try_from(&der).ok()?;
            Some(id.into_owned())
        });
        let mut order = match replaced {
            None => account.new_order(&new()).await?,
            // The server may not know what is replaced, or may have replaced it already.
            Some(id) => match account.new_order(&new().replaces(id)).await {
                Ok(order) => order,
                Err(error) if is_about_replacing(&error, &self.said.lock()) => {
                    account.new_order(&new()).await?
                }
                Err(error) => return Err(error),
            },
        };
        let url = order.url().to_owned();
        match order.state().status {
            OrderStatus::Pending => {}
            OrderStatus::Ready => {
                return Ok(AcmeReply::Ordered {
                    url,
                    challenge: None,
                });
            }
            OrderStatus::Invalid => return Ok(refused(&mut order).await),
            OrderStatus::Processing | OrderStatus::Valid => {
                return Ok(failed(
                    AcmeFailureKind::Gone,
                    "the server gave an order that is finished".to_owned(),
                    None,
                ));
            }
        }
        let mut proofs = order.authorizations();
        while let Some(proof) = proofs.next().await {
            let mut proof = proof?;
            if proof.status != AuthorizationStatus::Pending {
                continue;
            }
            let Some(challenge) = proof.challenge(challenge_type(kind)) else {
                let name = match kind {
                    ProofKind::Http => "http-01",
                    ProofKind::Dns => "dns-01",
                };
                return Ok(failed(
                    AcmeFailureKind::Refused,
                    format!("it offers no challenge {name}"),
                    None,
                ));
            };
            let answer = challenge.key_authorization();
            let answer = match kind {
                ProofKind::Http => answer.as_str().to_owned(),
                ProofKind::Dns => answer.dns_value(),
            };
            return Ok(AcmeReply::Ordered {
                url,
                challenge: Some((challenge.token.clone(), answer)),
            });
        }
        Ok(AcmeReply::Ordered {
            url,
            challenge: None,
        })
    }

    async fn answer(
        &self,
        account: &AcmeAccount,
        url: &str,
        kind: ProofKind,
    ) -> Result<AcmeReply, Error> {
        let account = self.account(account).await?;
        let mut order = account.order(url.to_owned()).await?;
        if order.state().status == OrderStatus::Invalid {
            return Ok(refused(&mut order).await);
        }
        let mut proofs = order.authorizations();
        while let Some(proof) = proofs.next().await {
            let mut proof = proof?;
            if proof.status != AuthorizationStatus::Pending {
                continue;
            }
            if let Some(mut challenge) = proof.challenge(challenge_type(kind))
                && challenge.status == ChallengeStatus::Pending
            {
                challenge.set_ready().await?;
            }
        }
        Ok(AcmeReply::Answered)
    }

    async fn proceed(
        &self,
        account: &AcmeAccount,
        url: &str,
        request: Option<&[u8]>,
    ) -> Result<AcmeReply, Error> {
        let account = self.account(account).await?;
        let mut order = account.order(url.to_owned()).await?;
        if let (OrderStatus::Ready, Some(request)) = (order.state().status, request) {
            order.finalize_csr(request).await?;
        }
        match order.state().status {
            OrderStatus::Ready => Ok(AcmeReply::Ready),
            OrderStatus::Pending | OrderStatus::Processing => Ok(AcmeReply::Pending {
                after: self.retry_after(),
            }),
            OrderStatus::Invalid => Ok(refused(&mut order).await),
            OrderStatus::Valid => {
                // Of a valid order nothing else is read.
                self.awaits_chain.store(true, Relaxed);
                match order.certificate().await? {
                    Some(chain) => Ok(AcmeReply::Certificate(chain)),
                    None => Ok(AcmeReply::Pending {
                        after: self.retry_after(),
                    }),
                }
            }
        }
    }

    async fn renewal(&self, account: &AcmeAccount, certificate: &str) -> Result<AcmeReply, Error> {
        let unknown = AcmeReply::Renewal {
            at: None,
            ask_after: Some(NO_RENEWAL_INFORMATION),
        };
        let Ok(der) = CertificateDer::from_pem_slice(certificate.as_bytes()) else {
            return Ok(unknown);
        };
        let Ok(id) = CertificateIdentifier::try_from(&der) else {
            return Ok(unknown);
        };
        let account = self.account(account).await?;
        let (info, after) = match account.renewal_info(&id).await {
            Ok(found) => found,
            Err(Error::Unsupported(_)) => return Ok(unknown),
            Err(error) => return Err(error),
        };
        let window = info.suggested_window;
        let at = |time: i64| Timestamp::from_second(time).ok();
        let start = at(window.start.unix_timestamp());
        let end = at(window.end.unix_timestamp());
        Ok(AcmeReply::Renewal {
            at: start.zip(end),
            ask_after: SignedDuration::try_from(after).ok(),
        })
    }
}

/// Whether an order failed because of the certificate that it names as replaced.
fn is_about_replacing(error: &Error, last: &LastAnswer) -> bool {
    match error {
        Error::Api(problem) => {
            let kind = failure_kind(problem, last);
            kind == AcmeFailureKind::Refused || kind == AcmeFailureKind::Gone
        }
        Error::Unsupported(_) => true,
        // The server made the order, and did not say that it replaces a certificate.
        Error::Other(_) => (200..300).contains(&last.status),
        _ => false,
    }
}

/// Why an order is invalid: what the server found at the challenge.
async fn refused(order: &mut Order) -> AcmeReply {
    let mut found = order.state().error.as_ref().map(in_words);
    let mut proofs = order.authorizations();
    while let Some(Ok(proof)) = proofs.next().await {
        let mut errors = proof.challenges.iter().filter_map(|one| one.error.as_ref());
        if let Some(error) = errors.next_back() {
            found = Some(in_words(error));
        }
    }
    let message = found.unwrap_or_else(|| "the order has become invalid".to_owned());
    failed(AcmeFailureKind::Refused, message, None)
}

fn failed(
    kind: AcmeFailureKind,
    message: String,
    retry_after: Option<SignedDuration>,
) -> AcmeReply {
    AcmeReply::Failed(AcmeFailure {
        kind,
        message,
        retry_after,
    })
}

fn failure(error: &Error, last: &LastAnswer) -> AcmeFailure {
    let (kind, message) = match error {
        Error::Api(problem) => (failure_kind(problem, last), in_words(problem)),
        // An answer that is no JSON, such as the page of a proxy before the server.
        Error::Json(_) => (
            kind_of_status(last.status),
            format!("an answer with status {} that is not ACME's", last.status),
        ),
        Error::Unsupported(what) => (
            AcmeFailureKind::Refused,
            format!("it does not support {what}"),
        ),
        Error::Crypto | Error::KeyRejected => (AcmeFailureKind::Refused, error.to_string()),
        other => (AcmeFailureKind::Unreachable, bounded(&other.to_string())),
    };
    AcmeFailure {
        kind,
        message,
        retry_after: last.retry_after,
    }
}

fn failure_kind(problem: &Problem, last: &LastAnswer) -> AcmeFailureKind {
    let kind = problem.r#type.as_deref().unwrap_or_default();
    match kind
        .strip_prefix("urn:ietf:params:acme:error:")
        .unwrap_or_default()
    {
        "rateLimited" => AcmeFailureKind::RateLimited,
        "accountDoesNotExist" => AcmeFailureKind::NoAccount,
        "badNonce" | "serverInternal" => AcmeFailureKind::Unreachable,
        "orderNotReady" => AcmeFailureKind::Gone,
        _ if last.status == 404 => AcmeFailureKind::Gone,
        _ => kind_of_status(last.status),
    }
}

fn kind_of_status(status: u16) -> AcmeFailureKind {
    match status {
        429 => AcmeFailureKind::RateLimited,
        0 | 500.. => AcmeFailureKind::Unreachable,
        _ => AcmeFailureKind::Refused,
    }
}

/// What a server says, for people.
fn in_words(problem: &Problem) -> String {
    let mut text = problem.detail.clone().unwrap_or_default();
    if text.is_empty() {
        text = problem
            .r#type
            .clone()
            .unwrap_or_else(|| "an error without a text".to_owned());
    }
    for more in problem
        .subproblems
        .iter()
        .filter_map(|one| one.detail.as_ref())
    {
        text.push_str("; ");
        text.push_str(more);
    }
    bounded(&text)
}

fn bounded(text: &str) -> String {
    let text = text.trim().trim_end_matches('.');
    let plain = text
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one });
    plain.take(LONGEST_TEXT).collect()
}

/// The innermost cause, which says most.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match error.is_timeout() {
        true => "no answer in time".to_owned(),
        false => bounded(&cause.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str) -> Problem {
        serde_json::from_str(json).unwrap()
    }

    fn last(status: u16) -> LastAnswer {
        LastAnswer {
            status,
            retry_after: Some(SignedDuration::from_secs(90)),
        }
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date() {
        let now: Timestamp = "1994-11-06T08:49:00Z".parse().unwrap();
        let seconds = |text: &str| retry_after(text, now).map(|found| found.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:49:37 GMT"), Some(37));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:48:37 GMT"), Some(0));
        assert_eq!(seconds("soon"), None);
    }

    #[test]
    fn an_answer_that_would_end_the_program_is_changed_or_refused() {
        let answered = |headers: &[(http::HeaderName, &str)], method: Method, body: &str| {
            let headers = headers
                .iter()
                .map(|(name, value)| (name.clone(), value.parse::<http::HeaderValue>().unwrap()));
            checked(
                &method,
                StatusCode::OK,
                headers.collect(),
                body.as_bytes().to_vec(),
            )
        };
        let kept = |name: http::HeaderName, value: &str| {
            let answer = answered(&[(name.clone(), value)], Method::POST, "{}").unwrap();
            answer.parts.headers.contains_key(name)
        };
        assert!(kept(RETRY_AFTER, "120"));
        assert!(kept(RETRY_AFTER, "Sun, 06 Nov 1994 08:49:37 GMT"));
        assert!(!kept(RETRY_AFTER, "18446744073709551615"));
        assert!(kept(LOCATION, "https://acme.example/order/1"));
        assert!(!kept(LOCATION, &"x".repeat(LONGEST_URL + 1)));
        let good = r#"{"newNonce":"https://acme.example/nonce"}"#;
        let bad = r#"{"newNonce":"https://acme.example/a nonce"}"#;
        assert!(answered(&[], Method::GET, good).is_ok());
        assert!(answered(&[], Method::GET, bad).is_err());
        // Only a directory is read with GET.
        assert!(answered(&[], Method::POST, bad).is_ok());
    }

    #[test]
    fn a_failure_says_when_another_attempt_is_of_use() {
        let of = |kind: &str, status: u16| {
            let text =
                format!(r#"{{"type":"urn:ietf:params:acme:error:{kind}","detail":"x\u001by."}}"#);
            failure(&Error::Api(problem(&text)), &last(status))
        };
        let kinds = [
            ("rateLimited", 429, AcmeFailureKind::RateLimited),
            ("accountDoesNotExist", 400, AcmeFailureKind::NoAccount),
            ("badNonce", 400, AcmeFailureKind::Unreachable),
            ("serverInternal", 500, AcmeFailureKind::Unreachable),
            ("malformed", 404, AcmeFailureKind::Gone),
            ("malformed", 503, AcmeFailureKind::Unreachable),
            ("rejectedIdentifier", 400, AcmeFailureKind::Refused),
            ("unheardOf", 429, AcmeFailureKind::RateLimited),
        ];
        for (kind, status, expected) in kinds {
            let found = of(kind, status);
            assert_eq!(found.kind, expected, "{kind} {status}");
            assert_eq!(found.message, "x y", "{kind}");
            assert_eq!(found.retry_after, Some(SignedDuration::from_secs(90)));
        }
        let page = serde_json::from_str::<Problem>("<html>").unwrap_err();
        let page = failure(&Error::Json(page), &last(502));
        assert_eq!(page.kind, AcmeFailureKind::Unreachable);
    }
}

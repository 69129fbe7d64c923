//! Reads any bytes as what a server of ACME answers, for the fuzz targets.

use std::{
    collections::{BTreeSet, VecDeque},
    future::Future,
    pin::Pin,
    sync::{Arc, LazyLock, atomic::AtomicBool},
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient, Key};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::{AnswerBound, LONGEST_CHAIN, LONGEST_URL, LastAnswer, Server, checked};
use kat_plan::{AcmeAccount, AcmeQuestion, AcmeReply, AcmeRequest, EabAccount, ProofKind};

/// Longest text of a failure, in characters.
const LONGEST_FAILURE: usize = 300;
/// Length of the text of a record, which is a hash in base64.
const RECORD: usize = 43;
/// Number of questions that [`ask_server`] knows.
pub const QUESTIONS: u8 = 8;

/// A certificate with the identifier of its authority's key; nobody has the keys any more.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBajCCARCgAwIBAgIUXBnWQAAwLDOXtReUfWc5sQ/4fsEwCgYIKoZIzj0EAwIw
DTELMAkGA1UEAwwCY2EwHhcNMjYxMTMwMTIyMjIzWhcNMzYxMTI3MTIyMjIzWjAA
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEa1k7CCL5goG5I2Ign5wFNodi8IVS
Xwt+ra0AQIRO7HpW2ZGj4pUWvwDoNW0XEXC6SBAM6wxK1Dlxq0AECBJypqNbMFkw
HwYDVR0jBBgwFoAUmWBqqTMXR7hnN14XauxSC2nePc8wFwYDVR0RBBAwDoIMc2hv
cC5leGFtcGxlMB0GA1UdDgQWBBRiPfx7EiHFsGD3WFhKqlv8J2RB3jAKBggqhkjO
PQQDAgNIADBFAiB5KyVQCL6p3uo7PndJT0f/zsVo0mfY5F3fxxPWzTO4KwIhALiZ
LioYNIaFIg4+8W1r+KOCdKkHEXW9BD/Veb96Npmf
-----END CERTIFICATE-----
";

static KEY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let made = Key::generate_pkcs8();
    made.map_or_else(|_| Vec::new(), |(_, key)| key.secret_pkcs8_der().to_vec())
});

/// A server that gives these answers one after the other, and then none.
#[derive(Clone)]
struct ScriptedServer {
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
    said: Arc<Mutex<LastAnswer>>,
    awaits_chain: Arc<AtomicBool>,
}

impl ScriptedServer {
    /// The next answer: lines of a head, of which the first is the status, an empty line, and the body.
    /// One without an empty line is a body alone.
    fn next(&self, method: &Method) -> Result<BytesResponse, Error> {
        *self.said.lock() = LastAnswer::default();
        let (mut status, mut headers) = (StatusCode::OK, HeaderMap::new());
        // Every question begins with this one, and nothing of it is read but a header.
        if *method == Method::HEAD {
            headers.insert("replay-nonce", HeaderValue::from_static("nonce"));
            return checked(method, status, headers, Vec::new());
        }
        let answer = self.answers.lock().pop_front();
        let mut body = answer.ok_or(Error::Str("an answer"))?;
        if let Some(end) = body.windows(2).position(|two| two == b"\n\n") {
            let rest = body.split_off(end);
            let head = String::from_utf8_lossy(&body).into_owned();
            body = rest.get(2..).unwrap_or_default().to_vec();
            let mut lines = head.lines();
            let first = lines.next().and_then(|code| code.parse::<u16>().ok());
            status = first
                .and_then(|code| StatusCode::from_u16(code).ok())
                .unwrap_or(status);
            for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
                let name = HeaderName::from_bytes(name.as_bytes());
                if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                    headers.append(name, value);
                }
            }
        }
        *self.said.lock() = LastAnswer::of(status, &headers, Timestamp::UNIX_EPOCH);
        let bound = AnswerBound::of(&self.awaits_chain, status);
        bound.add(&mut Vec::new(), &body)?;
        checked(method, status, headers, body)
    }
}

impl HttpClient for ScriptedServer {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let (server, method) = (self.clone(), request.method().clone());
        Box::pin(async move { server.next(&method) })
    }
}

/// Asks one of [`QUESTIONS`] and gets these answers, separated by NUL: the first one is the directory.
///
/// # Panics
/// If something is taken that is longer than what is stored, or that a terminal would obey.
pub fn ask_server(question: u8, answers: &[u8]) -> AcmeReply {
    let said = Arc::<Mutex<LastAnswer>>::default();
    let awaits_chain = Arc::<AtomicBool>::default();
    let answers = answers.split(|byte| *byte == 0).map(<[u8]>::to_vec);
    let server = Server {
        directory: "https://acme.example/directory",
        client: ScriptedServer {
            answers: Arc::new(Mutex::new(answers.collect())),
            said: Arc::clone(&said),
            awaits_chain: Arc::clone(&awaits_chain),
        },
        said,
        awaits_chain,
    };
    let question = AcmeQuestion {
        directory: server.directory.to_owned(),
        host: "shop.example".to_owned(),
        request: request(question),
    };
    let reply = server.ask(&question).now_or_never();
    assert!(reply.is_some(), "it waits for something");
    let reply = reply.unwrap_or(AcmeReply::Ready);
    check(&reply, &question.request);
    reply
}

fn request(question: u8) -> AcmeRequest {
    let account = AcmeAccount {
        url: "https://acme.example/account/1".to_owned(),
        key: KEY.clone(),
    };
    let url = "https://acme.example/order/1".to_owned();
    let register = |key, eab| AcmeRequest::Register {
        hosts: BTreeSet::new(),
        email: Some("me@shop.example".to_owned()),
        key,
        eab,
    };
    match question % QUESTIONS {
        0 => register(Some(KEY.clone()), None),
        1 => register(None, EabAccount::new("id", "a2V5")),
        2 => AcmeRequest::Order {
            account,
            profile: String::new(),
            replaces: None,
            proof: ProofKind::Http,
        },
        3 => AcmeRequest::Order {
            account,
            profile: "shortlived".to_owned(),
            replaces: Some(CERTIFICATE.to_owned()),
            proof: ProofKind::Dns,
        },
        4 => AcmeRequest::Answer {
            account,
            url,
            proof: ProofKind::Dns,
        },
        5 => AcmeRequest::Continue {
            account,
            url,
            request: Some(b"request".to_vec()),
        },
        6 => AcmeRequest::Continue {
            account,
            url,
            request: None,
        },
        _ => AcmeRequest::RenewalTime {
            account,
            certificate: CERTIFICATE.to_owned(),
        },
    }
}

fn check(reply: &AcmeReply, request: &AcmeRequest) {
    let is_waiting = |time: &Option<SignedDuration>| time.is_none_or(|time| !time.is_negative());
    match reply {
        AcmeReply::Registered { url, .. } => assert!(url.len() <= LONGEST_URL),
        AcmeReply::Ordered { url, challenge } => {
            assert!(url.len() <= LONGEST_URL);
            let by_dns =
                matches!(request, AcmeRequest::Order { proof, .. } if *proof == ProofKind::Dns);
            match challenge {
                Some((_, answer)) if by_dns => assert_eq!(answer.len(), RECORD),
                Some((token, answer)) => assert!(answer.starts_with(&format!("{token}."))),
                None => {}
            }
        }
        AcmeReply::Certificate(chain) => assert!(chain.len() <= LONGEST_CHAIN),
        AcmeReply::Pending { after } => assert!(is_waiting(after)),
        AcmeReply::Renewal { ask_after, .. } => assert!(is_waiting(ask_after)),
        AcmeReply::Failed(failure) => {
            let text = &failure.message;
            assert!(text.chars().count() <= LONGEST_FAILURE, "{text}");
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(is_waiting(&failure.retry_after));
        }
        AcmeReply::Answered | AcmeReply::ContactChanged | AcmeReply::Ready => {}
        AcmeReply::Checked(_)
        | AcmeReply::Located(_)
        | AcmeReply::Recorded(_)
        | AcmeReply::Removed => unreachable!("no answer of such a server: {reply:?}"),
    }
}

#[cfg(test)]
mod tests {
    use kat_plan::AcmeFailureKind;

    use super::*;

    const DIRECTORY: &str = r#"{"newNonce":"https://acme.example/nonce",
        "newAccount":"https://acme.example/account","newOrder":"https://acme.example/order",
        "renewalInfo":"https://acme.example/renewal"}"#;

    fn asked(question: u8, answers: &[&str]) -> AcmeReply {
        ask_server(question, answers.join("\0").as_bytes())
    }

    #[test]
    fn an_order_gets_its_challenge() {
        let order = "201\nLocation: https://acme.example/order/7\n\n\
            {\"status\":\"pending\",\"authorizations\":[\"https://acme.example/proof\"],\
            \"finalize\":\"https://acme.example/finalize\"}";
        let proof = r#"{"identifier":{"type":"dns","value":"shop.example"},"status":"pending",
            "challenges":[{"type":"http-01","url":"https://acme.example/challenge","token":"abc",
            "status":"pending"}]}"#;
        let reply = asked(2, &[DIRECTORY, order, proof]);
        let AcmeReply::Ordered { url, challenge } = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(url, "https://acme.example/order/7");
        assert_eq!(challenge.unwrap().0, "abc");
    }

    #[test]
    fn a_wait_that_no_clock_holds_is_no_wait() {
        let window =
            r#"{"suggestedWindow":{"start":"2026-01-01T00:00:00Z","end":"2026-01-02T00:00:00Z"}}"#;
        let renewal = |after: &str| {
            let info = format!("200\nRetry-After: {after}\n\n{window}");
            asked(7, &[DIRECTORY, &info])
        };
        let reply = renewal("3600");
        assert!(
            matches!(reply, AcmeReply::Renewal { at: Some(_), .. }),
            "{reply:?}"
        );
        let reply = renewal("18446744073709551615");
        assert!(matches!(reply, AcmeReply::Failed(_)), "{reply:?}");
    }

    /// An order whose certificate is there.
    const VALID: &str = r#"{"status":"valid","authorizations":[],
        "finalize":"https://acme.example/finalize","certificate":"https://acme.example/chain"}"#;

    fn refusal(answers: &[&str]) -> String {
        match asked(6, answers) {
            AcmeReply::Failed(failure) => failure.message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_chain_has_256_kib_at_most() {
        let chain = |length: usize| "x".repeat(length);
        let reply = asked(6, &[DIRECTORY, VALID, &chain(LONGEST_CHAIN)]);
        assert!(
            matches!(&reply, AcmeReply::Certificate(chain) if chain.len() == LONGEST_CHAIN),
            "it is taken whole"
        );
        let said = refusal(&[DIRECTORY, VALID, &chain(LONGEST_CHAIN + 1)]);
        assert!(said.contains("a certificate of at most 256 KiB"), "{said}");
    }

    #[test]
    fn every_other_answer_has_64_kib_at_most() {
        let padded = |answer: &str, length: usize| {
            let spaces = length.saturating_sub(answer.len());
            format!("{answer}{}", " ".repeat(spaces))
        };
        let reply = asked(
            6,
            &[&padded(DIRECTORY, 64 << 10), &padded(VALID, 64 << 10), "x"],
        );
        assert!(matches!(reply, AcmeReply::Certificate(_)), "{reply:?}");
        let large = (64 << 10) + 1;
        let problem = format!("400\n\n{}", padded("{}", large));
        for answers in [
            vec![padded(DIRECTORY, large)],
            vec![DIRECTORY.to_owned(), padded(VALID, large)],
            // What is said in place of a chain.
            vec![DIRECTORY.to_owned(), VALID.to_owned(), problem],
        ] {
            let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
            let said = refusal(&answers);
            assert!(said.contains("an answer of at most 64 KiB"), "{said}");
        }
    }

    #[test]
    fn a_directory_without_a_url_is_a_failure() {
        let directory = DIRECTORY.replace("example/nonce", "example/a nonce");
        let reply = asked(6, &[&directory]);
        let AcmeReply::Failed(failure) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(failure.kind, AcmeFailureKind::Unreachable);
    }
}

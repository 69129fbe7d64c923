//! Answers that `kat-ingress` makes itself. They say which side failed, and name nothing of the
//! cluster: no instance, no machine, no address.

use bytes::Bytes;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION,
        RETRY_AFTER, WWW_AUTHENTICATE,
    },
};

use crate::upstream::body::ResponseBody;

/// What the answer is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    /// The request is malformed or ambiguous.
    BadRequest(&'static str),
    /// A method that a proxy for programs does not pass on.
    Method,
    /// No route has the host.
    UnknownHost,
    /// The host has routes, and none for the path.
    UnknownPath,
    /// The connection was made for another host.
    Misdirected,
    /// The route is not for the client's address.
    Source,
    /// A password is needed.
    SignIn,
    /// The request's body is larger than the route allows.
    TooLarge,
    /// The request's head is too large.
    Head,
    /// The client sent its body too slowly.
    SlowClient,
    /// Too many requests from one address.
    TooMany,
    /// The service has no instances.
    NoInstances,
    /// None of the service's instances is ready.
    NotReady,
    /// No connection to an instance.
    Unreachable,
    /// An instance broke off.
    Broken,
    /// An instance did not answer in time.
    Slow,
    /// The service that decides about requests did not answer.
    Decision,
    /// The route is in maintenance.
    Maintenance,
    /// The route can't be used as it is written.
    Refused,
    /// The certificate is not there yet.
    Certificate(String),
    /// A redirect.
    Redirect(String),
}

impl Page {
    fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::UnknownHost | Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::Source => StatusCode::FORBIDDEN,
            Self::SignIn => StatusCode::UNAUTHORIZED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Head => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::SlowClient => StatusCode::REQUEST_TIMEOUT,
            Self::TooMany => StatusCode::TOO_MANY_REQUESTS,
            Self::NoInstances
            | Self::NotReady
            | Self::Maintenance
            | Self::Refused
            | Self::Certificate(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreachable | Self::Broken | Self::Decision => StatusCode::BAD_GATEWAY,
            Self::Slow => StatusCode::GATEWAY_TIMEOUT,
            Self::Redirect(_) => StatusCode::PERMANENT_REDIRECT,
        }
    }

    /// Who failed, and how.
    pub(crate) fn sentence(&self) -> String {
        let text = match self {
            Self::BadRequest(why) => return format!("The request cannot be understood: {why}."),
            Self::Method => "This method is not passed on.",
            Self::UnknownHost => "This server has no site of this name.",
            Self::UnknownPath => "This site has nothing at this path.",
            Self::Misdirected => "This connection was made for another site.",
            Self::Source => "Your address may not use this site.",
            Self::SignIn => "This site needs a user name and a password.",
            Self::TooLarge => "The request's body is larger than this site allows.",
            Self::Head => "The request's headers are larger than this server allows.",
            Self::SlowClient => "The request's body came too slowly.",
            Self::TooMany => "There were too many requests from your address.",
            Self::NoInstances => "The server is up, but the service behind it is not running.",
            Self::NotReady => "The server is up, but the service behind it is not ready.",
            Self::Unreachable => "The server is up, but the service behind it cannot be reached.",
            Self::Broken => "The server is up, but the service behind it broke off its answer.",
            Self::Slow => "The server is up, but the service behind it did not answer in time.",
            Self::Decision => {
                "The server is up, but the service that decides about this request did not answer."
            }
            Self::Maintenance => "The service is in maintenance.",
            Self::Refused => "The server is up, but the settings of this site cannot be used.",
            Self::Certificate(sentence) => return sentence.clone(),
            Self::Redirect(_) => "The page is elsewhere.",
        };
        text.to_owned()
    }

    /// Whether an instance failed, and not the client or the route.
    pub(crate) fn is_upstream_failure(&self) -> bool {
        matches!(
            self,
            Self::NoInstances
                | Self::NotReady
                | Self::Unreachable
                | Self::Broken
                | Self::Slow
                | Self::Decision
        )
    }

    /// The answer. A caller of gRPC gets a status that its library understands.
    pub(crate) fn answer(&self, is_grpc: bool) -> Response<ResponseBody> {
        let mut response = match is_grpc && !matches!(self, Self::Redirect(_)) {
            true => self.grpc_answer(),
            false => self.html_answer(),
        };
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self {
            Self::Redirect(to) => {
                if let Ok(to) = HeaderValue::from_bytes(to.as_bytes()) {
                    headers.insert(LOCATION, to);
                }
            }
            Self::SignIn => {
                let basic = HeaderValue::from_static("Basic realm=\"site\", charset=\"UTF-8\"");
                headers.insert(WWW_AUTHENTICATE, basic);
            }
            Self::TooMany | Self::NotReady => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            Self::Maintenance | Self::Refused | Self::Certificate(_) => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("60"));
            }
            _ => {}
        }
        response
    }

    fn html_answer(&self) -> Response<ResponseBody> {
        let status = self.status();
        let reason = status.canonical_reason().unwrap_or_default();
        let sentence = escape(&self.sentence());
        let page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <title>{code} {reason}</title></head>\n\
             <body style=\"font-family: sans-serif; margin: 4em auto; max-width: 36em\">\
             <h1>{code} {reason}</h1><p>{sentence}</p></body></html>\n",
            code = status.as_u16(),
        );
        let length = page.len();
        let mut response = Response::new(ResponseBody::own(Bytes::from(page)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let html = HeaderValue::from_static("text/html; charset=utf-8");
        headers.insert(CONTENT_TYPE, html);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        response
    }

    /// <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>
    fn grpc_answer(&self) -> Response<ResponseBody> {
        let code = match self.status().as_u16() {
            400 | 431 => 13,
            401 => 16,
            403 => 7,
            404 | 405 | 421 => 12,
            413 | 429 => 8,
            504 | 408 => 4,
            _ => 14,
        };
        let mut response = Response::new(ResponseBody::own(Bytes::new()));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(
            HeaderName::from_static("grpc-status"),
            HeaderValue::from(code),
        );
        if let Ok(message) = HeaderValue::from_str(&self.sentence()) {
            headers.insert(HeaderName::from_static("grpc-message"), message);
        }
        response
    }
}

/// Whether a request comes from a library of gRPC.
pub(crate) fn is_grpc(request: &HeaderMap) -> bool {
    let kind = request.get(CONTENT_TYPE);
    kind.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn escape(text: &str) -> String {
    let escaped = text.chars().map(|letter| match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        letter if letter.is_control() => " ".to_owned(),
        letter => letter.to_string(),
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_page_says_which_side_failed_and_escapes_what_it_is_given() {
        let page = Page::Certificate("Waits for <b>\"x\"</b> & more".to_owned());
        let response = page.answer(false);
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "60");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(
            text.contains("Waits for &lt;b&gt;&quot;x&quot;&lt;/b&gt; &amp; more"),
            "{text}"
        );
        let response = Page::Unreachable.answer(false);
        assert_eq!(response.status(), 502);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(
            text.contains("the service behind it cannot be reached"),
            "{text}"
        );
    }

    #[test]
    fn a_caller_of_grpc_gets_a_status_that_its_library_understands() {
        let mut request = HeaderMap::new();
        request.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/grpc+proto"),
        );
        assert!(is_grpc(&request) && !is_grpc(&HeaderMap::new()));
        let response = Page::NotReady.answer(true);
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(Page::SignIn.answer(true).headers()["grpc-status"], "16");
    }
}

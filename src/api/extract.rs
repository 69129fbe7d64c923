//! Parts of a request as types, with errors in the API's own form.

mod json;

use std::sync::Arc;

use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{
    access::authentication::Caller,
    context::Api,
    errors::ApiError,
    server::limits::{MAX_JSON, check_content_type, read_body},
};

pub(super) use json::parse_json;

/// Content type of JSON bodies.
pub(super) const JSON: &str = "application/json";

/// The parsed query; unknown parameters are an error.
pub(super) struct QueryParameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::invalid(format!(
                "the query: {}",
                error.body_text()
            ))),
        }
    }
}

/// The names in the path.
pub(super) struct PathParameters<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(error) => Err(ApiError::invalid(format!(
                "the path: {}",
                error.body_text()
            ))),
        }
    }
}

/// Query parameters of most writes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct WriteQuery {
    /// Return what would happen, and write nothing.
    pub(super) dry_run: bool,
}

/// Query of writes that have no parameters.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoQuery {}

/// What every write has besides the names in its path and its body.
pub(super) struct WriteRequest<Q = WriteQuery> {
    pub(super) caller: Caller,
    pub(super) precondition: Precondition,
    pub(super) query: Q,
}

impl<Q: DeserializeOwned> FromRequestParts<Arc<Api>> for WriteRequest<Q> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Self, ApiError> {
        let QueryParameters(query) = QueryParameters::from_request_parts(parts, api).await?;
        let caller = parts.extensions.get::<Caller>().cloned();
        Ok(Self {
            caller: caller
                .ok_or_else(|| ApiError::Internal("the caller is not known".to_owned()))?,
            precondition: Precondition::read(&parts.headers)?,
            query,
        })
    }
}

/// A JSON body of at most [`MAX_JSON`] bytes.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Arc<Api>) -> Result<Self, ApiError> {
        read_json(api, request, MAX_JSON).await.map(Self)
    }
}

/// Reads and parses a JSON body, for calls that look at something else first.
///
/// # Errors
/// [`ApiError::Invalid`] with field, line and column, and the errors of [`read_body`].
pub(super) async fn read_json<T: DeserializeOwned>(
    api: &Api,
    request: Request,
    limit: usize,
) -> Result<T, ApiError> {
    let (parts, body) = request.into_parts();
    check_content_type(&parts.headers, JSON)?;
    let body = read_body(&parts.headers, body, limit, api.config.limits.body_timeout).await?;
    parse_json(&body).map_err(|error| ApiError::invalid(format!("the body: {error}")))
}

/// Precondition from `If-Match` and `If-None-Match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precondition {
    /// No precondition.
    Nothing,
    /// The object exists.
    Exists,
    /// The object does not exist.
    Absent,
    /// The object was not written since this resourceVersion.
    Unchanged(i64),
}

impl Precondition {
    /// Reads the headers. The value is a resourceVersion, with or without quotes, or `*`.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let text = |name: header::HeaderName| {
            let mut values = headers.get_all(&name).iter();
            let value = values
                .next()
                .map(|value| value.to_str().unwrap_or("?").trim().to_owned());
            match values.next() {
                Some(_) => Err(ApiError::invalid(format!(
                    "the header `{name}` is sent more than once"
                ))),
                None => Ok(value),
            }
        };
        match (text(header::IF_MATCH)?, text(header::IF_NONE_MATCH)?) {
            (None, None) => Ok(Self::Nothing),
            (Some(_), Some(_)) => Err(ApiError::invalid(
                "`If-Match` and `If-None-Match` can't be asked for together",
            )),
            (None, Some(value)) if value == "*" => Ok(Self::Absent),
            (None, Some(_)) => Err(ApiError::invalid("`If-None-Match` can only be `*`")),
            (Some(value), None) if value == "*" => Ok(Self::Exists),
            (Some(value), None) => {
                let number = value
                    .strip_prefix('"')
                    .and_then(|rest| rest.strip_suffix('"'));
                match number.unwrap_or(&value).parse() {
                    Ok(revision) if revision > 0 => Ok(Self::Unchanged(revision)),
                    _ => Err(ApiError::invalid(format!(
                        "`If-Match` is `{}`, expected a resourceVersion such as `\"42\"`, or `*`",
                        value.chars().take(40).collect::<String>()
                    ))),
                }
            }
        }
    }

    /// Checks the precondition; `written` is the revision of the last write by a user.
    ///
    /// A resourceVersion that was read after that write is as good as that of the write itself: the
    /// leader's own writes of the status do not count.
    pub(super) fn check(self, written: Option<i64>) -> Result<(), ApiError> {
        let message = match (self, written) {
            (Self::Nothing, _) | (Self::Exists, Some(_)) | (Self::Absent, None) => return Ok(()),
            (Self::Unchanged(version), Some(written)) if written <= version => return Ok(()),
            (Self::Unchanged(version), Some(written)) => {
                format!("it was changed at resourceVersion {written}, after {version}")
            }
            (Self::Absent, Some(_)) => "it exists already".to_owned(),
            (Self::Exists | Self::Unchanged(_), None) => "it does not exist".to_owned(),
        };
        Err(ApiError::PreconditionFailed(message))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn read(name: header::HeaderName, value: &str) -> Result<Precondition, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        Precondition::read(&headers)
    }

    #[test]
    fn reads_versions_with_and_without_quotes() {
        for value in ["42", "\"42\"", " 42 "] {
            assert_eq!(
                read(header::IF_MATCH, value),
                Ok(Precondition::Unchanged(42)),
                "{value}"
            );
        }
        assert_eq!(read(header::IF_MATCH, "*"), Ok(Precondition::Exists));
        assert_eq!(read(header::IF_NONE_MATCH, "*"), Ok(Precondition::Absent));
        for value in ["", "\"", "W/\"42\"", "-1", "0", "42, 43", "abc"] {
            assert!(read(header::IF_MATCH, value).is_err(), "{value}");
        }
    }

    #[test]
    fn a_later_read_is_as_good_as_the_write_itself() {
        assert_eq!(Precondition::Unchanged(10).check(Some(10)), Ok(()));
        assert_eq!(Precondition::Unchanged(12).check(Some(10)), Ok(()));
        assert!(Precondition::Unchanged(9).check(Some(10)).is_err());
        assert!(Precondition::Unchanged(9).check(None).is_err());
        assert!(Precondition::Absent.check(Some(1)).is_err());
        assert!(Precondition::Exists.check(None).is_err());
    }
}

//! Times in the API.

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time, in JSON a string in the format of RFC 3339 in UTC; the empty string if the time is
/// unknown.
///
/// A string that is not a time, which a newer version may send, is read as an unknown time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiTime(Option<Timestamp>);

impl ApiTime {
    /// An unknown time.
    pub const UNKNOWN: Self = Self(None);

    /// The time; `None` if unknown.
    pub fn get(self) -> Option<Timestamp> {
        self.0
    }

    /// Parses RFC 3339. Anything else is an unknown time.
    pub fn parse(text: &str) -> Self {
        Self(text.parse().ok())
    }
}

impl From<Timestamp> for ApiTime {
    fn from(time: Timestamp) -> Self {
        Self(Some(time))
    }
}

impl From<Option<Timestamp>> for ApiTime {
    fn from(time: Option<Timestamp>) -> Self {
        Self(time)
    }
}

impl fmt::Display for ApiTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |time| time.fmt(formatter))
    }
}

impl Serialize for ApiTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApiTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::parse(&text))
    }
}

impl JsonSchema for ApiTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ApiTime".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::ApiTime;

    #[test]
    fn a_time_is_written_as_it_was_read_and_what_is_none_is_empty() {
        for (read, written) in [
            (r#""2026-01-01T00:00:00Z""#, r#""2026-01-01T00:00:00Z""#),
            (
                r#""2026-01-01T01:00:00.5+01:00""#,
                r#""2026-01-01T00:00:00.5Z""#,
            ),
            (r#""""#, r#""""#),
            (r#""soon""#, r#""""#),
        ] {
            let time: ApiTime = serde_json::from_str(read).unwrap();
            assert_eq!(serde_json::to_string(&time).unwrap(), written);
        }
        assert!(ApiTime::UNKNOWN < ApiTime::parse("0001-01-01T00:00:00Z"));
    }
}

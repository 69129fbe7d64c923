//! Metrics as text for Prometheus: the families, and which format a caller gets.

use std::fmt;

use axum::{
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, prometheus_text, text},
    metrics::MetricType,
    registry::Registry,
};
use serde::Deserialize;

use crate::errors::ApiError;
use kat_daemon::durations::{BOUNDS, DurationCounts};

/// The content type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Query parameters of metrics.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct FormatQuery {
    format: Option<String>,
}

/// The format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    Json,
    /// Prometheus' text format 0.0.4.
    Prometheus,
    OpenMetrics,
}

impl MetricsFormat {
    /// The format that the query names, else the one that the caller accepts. A caller that accepts
    /// both texts gets 0.0.4: a series has other bounds in OpenMetrics, `le="1.0"`.
    pub(crate) fn of(headers: &HeaderMap, query: &FormatQuery) -> Result<Self, ApiError> {
        match query.format.as_deref() {
            Some("prometheus") => return Ok(Self::Prometheus),
            Some("json") => return Ok(Self::Json),
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                return Err(ApiError::invalid(format!(
                    "format is `{other}`, expected `json` or `prometheus`"
                )));
            }
            None => {}
        }
        let accept = headers.get(header::ACCEPT);
        let accept = accept.and_then(|value| value.to_str().ok());
        let accept = accept.unwrap_or_default();
        Ok(if accept.contains("json") {
            Self::Json
        } else if accept.contains("text/plain") {
            Self::Prometheus
        } else if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Json
        })
    }
}

/// All samples of one name.
#[derive(Debug)]
pub(crate) struct MetricFamily {
    /// Without the `_total` of counters.
    name: &'static str,
    kind: MetricType,
    /// One sentence.
    help: &'static str,
    samples: Vec<MetricSample>,
}

#[derive(Debug)]
struct MetricSample {
    labels: Vec<(&'static str, String)>,
    value: SampleValue,
}

/// The value of a sample.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SampleValue {
    Whole(u64),
    Real(f64),
    Durations(DurationCounts),
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for SampleValue {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<usize> for SampleValue {
    fn from(value: usize) -> Self {
        Self::Whole(u64::try_from(value).unwrap_or(u64::MAX))
    }
}

impl From<bool> for SampleValue {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for SampleValue {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<DurationCounts> for SampleValue {
    fn from(value: DurationCounts) -> Self {
        Self::Durations(value)
    }
}

impl MetricFamily {
    /// A value that goes up and down.
    pub(crate) fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Gauge, help)
    }

    /// A count; its samples have the name with `_total`.
    pub(crate) fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Counter, help)
    }

    /// Durations in buckets.
    pub(crate) fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Histogram, help)
    }

    fn new(name: &'static str, kind: MetricType, help: &'static str) -> Self {
        Self {
            name,
            kind,
            help,
            samples: Vec::new(),
        }
    }

    /// Adds a sample.
    pub(crate) fn add<const N: usize>(
        &mut self,
        labels: [(&'static str, &str); N],
        value: impl Into<SampleValue>,
    ) {
        let labels = labels.into_iter();
        self.samples.push(MetricSample {
            labels: labels
                .map(|(name, value)| (name, value.to_owned()))
                .collect(),
            value: value.into(),
        });
    }

    /// Adds a sample where there is a value.
    pub(crate) fn add_known<const N: usize>(
        &mut self,
        labels: [(&'static str, &str); N],
        value: Option<impl Into<SampleValue>>,
    ) {
        if let Some(value) = value {
            self.add(labels, value);
        }
    }

    /// The family with one sample without labels.
    pub(crate) fn only(mut self, value: impl Into<SampleValue>) -> Self {
        self.add([], value);
        self
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut family = encoder.encode_descriptor(self.name, self.help, None, self.kind)?;
        for MetricSample { labels, value } in &self.samples {
            let mut sample = family.encode_family(labels)?;
            match (self.kind, value) {
                (_, SampleValue::Durations(counts)) => {
                    let buckets = BOUNDS.into_iter().zip(counts.buckets);
                    let within: u64 = counts.buckets.iter().sum();
                    let beyond = (f64::INFINITY, counts.count.saturating_sub(within));
                    let buckets: Vec<_> = buckets.chain([beyond]).collect();
                    let (seconds, count) = (counts.seconds, counts.count);
                    sample.encode_histogram::<NoLabels>(seconds, count, &buckets, None)?;
                }
                (MetricType::Counter, SampleValue::Whole(value)) => {
                    sample.encode_counter::<NoLabels, _, f64>(value, None)?;
                }
                (MetricType::Counter, SampleValue::Real(value)) => {
                    sample.encode_counter::<NoLabels, _, f64>(value, None)?;
                }
                (_, SampleValue::Whole(value)) => sample.encode_gauge(value)?,
                (_, SampleValue::Real(value)) => sample.encode_gauge(value)?,
            }
        }
        Ok(())
    }
}

type NoLabels = [(&'static str, &'static str); 0];

/// The families of one scrape.
#[derive(Debug)]
pub(crate) struct Scrape(pub Vec<MetricFamily>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Also a family without samples: its name and sentence say what there could be.
        self.0
            .iter()
            .try_for_each(|family| family.encode(&mut encoder))
    }
}

impl Scrape {
    /// The scrape as text. `format` is not JSON.
    pub(crate) fn response(self, format: MetricsFormat) -> Result<Response, ApiError> {
        let (text, kind) = self
            .text(format)
            .map_err(|_| ApiError::Internal("the metrics can't be written as text".to_owned()))?;
        Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
    }

    /// The text and its content type.
    pub(crate) fn text(self, format: MetricsFormat) -> Result<(String, &'static str), fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        Ok(match format {
            MetricsFormat::OpenMetrics => {
                text::encode(&mut text, &registry)?;
                (text, OPEN_METRICS)
            }
            MetricsFormat::Json | MetricsFormat::Prometheus => {
                prometheus_text::encode(&mut text, &registry)?;
                (text, prometheus_text::CONTENT_TYPE)
            }
        })
    }
}

#[cfg(test)]
pub(crate) mod parser;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parser::parse, *};

    fn text(families: Vec<MetricFamily>) -> String {
        Scrape(families).text(MetricsFormat::Prometheus).unwrap().0
    }

    #[test]
    fn durations_are_counted_cumulatively_with_the_bounds_of_earlier_versions() {
        let mut counts = DurationCounts::default();
        for milliseconds in [1, 20, 700, 60_000] {
            counts.count(Duration::from_millis(milliseconds));
        }
        let mut family = MetricFamily::histogram("kat_x_seconds", "Durations.");
        family.add([("route", "/version")], counts);
        let text = text(vec![family]);
        let samples = parse(&text);
        let bucket = |bound: &str| {
            let labels = [("route", "/version"), ("le", bound)];
            samples.value("kat_x_seconds_bucket", &labels)
        };
        let expected = [("0.001", 1.0), ("0.05", 2.0), ("1", 3.0), ("30", 3.0)];
        for (bound, count) in expected {
            assert_eq!(bucket(bound), Some(count), "{bound} in\n{text}");
        }
        assert_eq!(bucket("+Inf"), Some(4.0));
        let labels = [("route", "/version")];
        assert_eq!(samples.value("kat_x_seconds_count", &labels), Some(4.0));
    }

    #[test]
    fn a_label_value_with_quotes_and_line_breaks_stays_one_line() {
        let hostile = "a\"} 1\nkat_leader{x=\"\\";
        let mut family = MetricFamily::gauge("kat_x", "Hostile.");
        family.add([("node", hostile)], 7_u64);
        let text = text(vec![family]);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(parse(&text).value("kat_x", &[("node", hostile)]), Some(7.0));
    }

    #[test]
    fn counters_end_in_total_and_families_without_samples_have_their_type() {
        let empty = MetricFamily::gauge("kat_empty", "Nothing.");
        let text = text(vec![
            MetricFamily::counter("kat_x", "A count.").only(3_u64),
            MetricFamily::counter("kat_cpu_seconds", "Seconds.").only(0.25),
            empty,
        ]);
        let samples = parse(&text);
        assert_eq!(samples.value("kat_x_total", &[]), Some(3.0));
        assert_eq!(samples.value("kat_cpu_seconds_total", &[]), Some(0.25));
        assert_eq!(
            samples.types.get("kat_empty").map(String::as_str),
            Some("gauge")
        );
        assert_eq!(samples.count("kat_empty"), 0);
    }

    #[test]
    fn a_caller_gets_json_unless_it_accepts_text_alone() {
        let of = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            MetricsFormat::of(&headers, &FormatQuery::default()).unwrap()
        };
        let both = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(of(both), MetricsFormat::Prometheus);
        assert_eq!(
            of("application/openmetrics-text"),
            MetricsFormat::OpenMetrics
        );
        for other in ["*/*", "application/json", "application/json, text/plain"] {
            assert_eq!(of(other), MetricsFormat::Json, "{other}");
        }
    }

    #[test]
    fn open_metrics_ends_with_its_mark() {
        let families = vec![MetricFamily::counter("kat_x", "A count.").only(3_u64)];
        let (text, kind) = Scrape(families).text(MetricsFormat::OpenMetrics).unwrap();
        assert!(text.ends_with("kat_x_total 3\n# EOF\n"), "{text}");
        assert!(kind.starts_with("application/openmetrics-text"));
    }
}

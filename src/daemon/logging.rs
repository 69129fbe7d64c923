//! Logging of a service, to the journal or to standard error.

/// Target of the API's audit lines, and their identifier in the journal.
const AUDIT: (&str, &str) = ("audit", "kat-audit");

/// Starts logging: under systemd to the journal, with fields; otherwise to standard error.
/// `KAT_LOG` sets the filter.
pub fn start() {
    use tracing_subscriber::{
        EnvFilter, Layer as _, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt,
    };
    let filter = || EnvFilter::try_from_env("KAT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let journal =
        || std::env::var_os("JOURNAL_STREAM").and_then(|_| tracing_journald::layer().ok());
    let registry = tracing_subscriber::registry().with(filter());
    let (target, identifier) = AUDIT;
    match journal().zip(journal()) {
        Some((journal, audit)) => {
            let audit = audit.with_syslog_identifier(identifier.to_owned());
            registry
                .with(journal.with_filter(filter_fn(move |line| line.target() != target)))
                .with(audit.with_filter(filter_fn(move |line| line.target() == target)))
                .init();
        }
        None => registry
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(std::io::stderr)
                    .without_time(),
            )
            .init(),
    }
}

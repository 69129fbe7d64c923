//! Logging of a service, to the journal or to standard error.

use crate::journal::JournalLayer;

/// Target of the API's audit lines, and their identifier in the journal.
const AUDIT: (&str, &str) = ("audit", "kat-audit");

/// The name of the program's file.
fn program_name() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(
        || "kat".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// Starts logging: under systemd to the journal, with fields; otherwise to standard error.
/// `KAT_LOG` sets the filter.
pub fn start() {
    use tracing_subscriber::{
        EnvFilter, Layer as _, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt,
    };
    let filter = || EnvFilter::try_from_env("KAT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let journal = |identifier: &str| {
        std::env::var_os("JOURNAL_STREAM").and_then(|_| JournalLayer::connect(identifier).ok())
    };
    let registry = tracing_subscriber::registry().with(filter());
    let (target, identifier) = AUDIT;
    match journal(&program_name()).zip(journal(identifier)) {
        Some((journal, audit)) => {
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

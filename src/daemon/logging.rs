//! Logging of a service, to the journal or to standard error.

use tracing::Metadata;
use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::{FilterFn, LevelFilter, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

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

/// Passes the lines of a target, or all others. `most` is what the filter before it lets pass: without
/// it libraries would make all their lines, for that filter to drop each.
fn lines(
    target: &'static str,
    of_target: bool,
    most: LevelFilter,
) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
    filter_fn(move |line| line.level() <= &most && (line.target() == target) == of_target)
        .with_max_level_hint(most)
}

/// Starts logging: under systemd to the journal, with fields; otherwise to standard error.
/// `KAT_LOG` sets the filter.
pub fn start() {
    let filter = EnvFilter::try_from_env("KAT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let most = filter.max_level_hint().unwrap_or(LevelFilter::TRACE);
    let journal = |identifier: &str| {
        std::env::var_os("JOURNAL_STREAM").and_then(|_| JournalLayer::connect(identifier).ok())
    };
    let registry = tracing_subscriber::registry().with(filter);
    let (target, identifier) = AUDIT;
    match journal(&program_name()).zip(journal(identifier)) {
        Some((journal, audit)) => {
            registry
                .with(journal.with_filter(lines(target, false, most)))
                .with(audit.with_filter(lines(target, true, most)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_the_filter_drops_are_not_made() {
        let subscriber = tracing_subscriber::registry()
            .with(EnvFilter::new("info"))
            .with(tracing_subscriber::fmt::layer().with_filter(lines(
                "a",
                false,
                LevelFilter::INFO,
            )))
            .with(tracing_subscriber::fmt::layer().with_filter(lines(
                "a",
                true,
                LevelFilter::INFO,
            )));
        let most = tracing::Subscriber::max_level_hint(&subscriber);
        assert_eq!(most, Some(LevelFilter::INFO));
    }
}

//! Any two lines as the schedule and the time zone of a Job: what the reader of `job.kat` and the check at
//! apply accept has times, in order, in both directions.
#![no_main]
#![allow(
    clippy::disallowed_methods,
    reason = "a text without JSON ends the run"
)]

use std::sync::LazyLock;

use jiff::Timestamp;
use kat_bundle::{DecodeMode, SourceFile, parse};
use kat_fuzz::survive_overflow;
use kat_plan::Schedule;
use libfuzzer_sys::fuzz_target;

/// Longest text of an error that a caller gets beside what the caller wrote, in bytes.
const SENTENCE: usize = 1000;
/// Times that are compared.
const TIMES: usize = 5;

static NOW: LazyLock<Timestamp> =
    LazyLock::new(|| Timestamp::from_second(1_774_700_000).expect("a time"));

fuzz_target!(init: survive_overflow(), |text: &str| {
    let (expression, zone) = text.split_once('\n').unwrap_or((text, "UTC"));
    let Some((expression, zone)) = decoded(expression, zone) else { return };
    match Schedule::check(&expression, &zone, Timestamp::UNIX_EPOCH) {
        Ok(()) => check(&Schedule::parse(&expression, &zone).expect("it was checked")),
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.len() <= SENTENCE + 2 * text.len(), "{sentence}");
        }
    }
});

/// The two as the reader of the files gives them on; `None` for what it refuses.
fn decoded(expression: &str, zone: &str) -> Option<(String, String)> {
    let quoted = |text: &str| serde_json::to_string(text).expect("a text has JSON");
    let job = format!(
        "apiVersion: kat.dws.rip/v1alpha1\nkind: JobDefinition\nspec: {{schedule: {}, timeZone: {}}}\n",
        quoted(expression),
        quoted(zone),
    );
    let workload = "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: dump}\n\
        spec: {type: Job, source: {image: 'registry.example/dump:1'}}\n";
    let files =
        [("workload.kat", workload), ("job.kat", job.as_str())].map(|(name, text)| SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        });
    let spec = parse(&files, DecodeMode::Strict).ok()?.job?.spec;
    Some((spec.schedule?, spec.time_zone))
}

fn check(schedule: &Schedule) {
    let mut times = vec![*NOW];
    for _ in 0..TIMES {
        let Some(next) = times.last().and_then(|last| schedule.after(*last)) else {
            break;
        };
        times.push(next);
    }
    assert!(times.is_sorted_by(|one, other| one < other), "{times:?}");
    for time in times {
        assert!(schedule.before(time).is_none_or(|before| before < time));
    }
}

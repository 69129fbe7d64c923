//! Cron expressions of five fields (crontab(5)).

use super::{CheckResult, value_error};
use crate::{diagnostic::quote, suggest::nearest};

struct CronField {
    name: &'static str,
    least: u8,
    most: u8,
    words: &'static [&'static str],
}

const PARTS: [CronField; 5] = [
    CronField {
        name: "minute",
        least: 0,
        most: 59,
        words: &[],
    },
    CronField {
        name: "hour",
        least: 0,
        most: 23,
        words: &[],
    },
    CronField {
        name: "day of the month",
        least: 1,
        most: 31,
        words: &[],
    },
    CronField {
        name: "month",
        least: 1,
        most: 12,
        words: &[
            "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
        ],
    },
    CronField {
        name: "day of the week",
        least: 0,
        most: 7,
        words: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
    },
];

/// Words for a whole expression.
const NAMES: [&str; 7] = [
    "@hourly",
    "@daily",
    "@midnight",
    "@weekly",
    "@monthly",
    "@yearly",
    "@annually",
];

/// Accepts a word such as `@daily`, or minute, hour, day of the month, month and day of the week: `*`, numbers, names of
/// months and days, ranges, lists and steps.
pub(crate) fn cron(text: &str) -> CheckResult {
    if NAMES.contains(&text) {
        return Ok(());
    }
    if text.starts_with('@') {
        let complaint = value_error(format!(
            "`{}` is not one of {}",
            quote(text),
            NAMES.join(", ")
        ));
        return Err(match (text, nearest(text, NAMES)) {
            ("@reboot", _) => {
                complaint.hint("a Job has no boot of its own; leave schedule out to run it once")
            }
            (_, Some(meant)) => complaint.hint(format!("did you mean `{meant}`?")),
            (_, None) => complaint,
        });
    }
    let written: Vec<&str> = text.split_ascii_whitespace().collect();
    if written.len() != PARTS.len() {
        return Err(value_error(format!(
            "`{}` has {} fields, a cron expression has five: minute, hour, day of the month, month, day of the week",
            quote(text),
            written.len()
        )));
    }
    for (part, written) in PARTS.iter().zip(written) {
        for item in written.split(',') {
            if !accepts(part, item) {
                return Err(value_error(format!(
                    "`{}` does not fit the {}: `*`, {} to {}, a range, a list or a step",
                    quote(written),
                    part.name,
                    part.least,
                    part.most
                )));
            }
        }
    }
    Ok(())
}

fn accepts(part: &CronField, item: &str) -> bool {
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (item, None),
    };
    let step_fits = step
        .is_none_or(|step| number(step).is_some_and(|step| step > 0 && step <= part.most.max(1)));
    let range_fits = match range.split_once('-') {
        _ if range == "*" => true,
        Some((from, to)) => match (value(part, from), value(part, to)) {
            (Some(from), Some(to)) => from <= to,
            _ => false,
        },
        None => value(part, range).is_some(),
    };
    step_fits && range_fits
}

fn value(part: &CronField, text: &str) -> Option<u8> {
    let word = text.to_ascii_lowercase();
    if let Some(index) = part.words.iter().position(|known| *known == word) {
        return u8::try_from(index).ok().map(|index| index + part.least);
    }
    number(text).filter(|value| (part.least..=part.most).contains(value))
}

fn number(text: &str) -> Option<u8> {
    let digits =
        !text.is_empty() && text.len() <= 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

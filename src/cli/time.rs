//! Ages and durations.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use kat_types::api::ApiTime;

/// The age in one unit: `45s`, `5m`, `3h`, `12d`, `2y`; `-` for an invalid time and for the epoch,
/// which stands for an unknown time. A time in the future, by another machine's clock, is `0s`.
pub(super) fn age(now: Timestamp, then: ApiTime) -> String {
    let known = |then: &Timestamp| *then != Timestamp::UNIX_EPOCH;
    let Some(then) = then.get().filter(known) else {
        return "-".to_owned();
    };
    let seconds = now.duration_since(then).as_secs().max(0);
    rounded(seconds.unsigned_abs())
}

/// A time to the second, such as `2026-11-20T10:00:00Z`; empty if unknown.
pub(super) fn to_the_second(time: ApiTime) -> String {
    time.get().map_or_else(String::new, |time| {
        time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    })
}

/// A number of seconds in its largest whole unit.
pub(super) fn rounded(seconds: u64) -> String {
    const UNITS: [(u64, char); 4] = [(365 * 86_400, 'y'), (86_400, 'd'), (3_600, 'h'), (60, 'm')];
    for (length, unit) in UNITS {
        if seconds >= length {
            return format!("{}{unit}", seconds / length);
        }
    }
    format!("{seconds}s")
}

/// Time until then: `in 5m`, or `expired`.
pub(super) fn until(now: Timestamp, then: ApiTime) -> String {
    let Some(then) = then.get() else {
        return "-".to_owned();
    };
    if then <= now {
        return "expired".to_owned();
    }
    let left = then.duration_since(now).as_secs();
    format!("in {}", rounded(left.unsigned_abs().max(1)))
}

/// Parses `90s`, `5m`, `1h30m`, `7d`, `2w`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a length of time such as `90s`, `5m`, `1h30m` or `7d`");
    let mut seconds: u64 = 0;
    let mut rest = text;
    let mut smallest = u64::MAX;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, tail) = rest.split_at_checked(digits).ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let mut characters = tail.chars();
        let unit = match characters.next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3_600,
            Some('d') => 86_400,
            Some('w') => 604_800,
            _ => return Err(wrong()),
        };
        if unit >= smallest {
            return Err(wrong());
        }
        smallest = unit;
        seconds = number
            .checked_mul(unit)
            .and_then(|part| seconds.checked_add(part))
            .filter(|seconds| *seconds <= 100 * 365 * 86_400)
            .ok_or_else(wrong)?;
        rest = characters.as_str();
    }
    Ok(Duration::from_secs(seconds))
}

/// A time, or a duration before now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SinceTime {
    Ago(Duration),
    At(Timestamp),
}

impl SinceTime {
    pub(super) fn timestamp(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::Ago(length) => SignedDuration::try_from(length)
                .ok()
                .and_then(|length| now.checked_sub(length).ok())
                .unwrap_or(Timestamp::MIN),
        }
    }
}

/// Parses a duration as in [`parse_duration`], or an RFC 3339 time.
pub(super) fn parse_since(text: &str) -> Result<SinceTime, String> {
    if let Ok(length) = parse_duration(text) {
        return Ok(SinceTime::Ago(length));
    }
    text.parse().map(SinceTime::At).map_err(|_| {
        format!("`{text}` is neither a length of time such as `5m` nor a time such as `2026-11-20T10:00:00Z`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-20T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_printed_time_has_no_fraction_of_a_second() {
        let time = ApiTime::parse("2026-11-20T10:00:00.123456789Z");
        assert_eq!(to_the_second(time), "2026-11-20T10:00:00Z");
        assert_eq!(to_the_second(ApiTime::UNKNOWN), "");
    }

    #[test]
    fn ages_have_one_unit() {
        for (then, wanted) in [
            ("2026-11-20T12:00:00Z", "0s"),
            ("2026-11-20T11:59:01Z", "59s"),
            ("2026-11-20T11:59:00Z", "1m"),
            ("2026-11-20T11:00:01Z", "59m"),
            ("2026-11-20T11:00:00Z", "1h"),
            ("2026-11-19T12:00:01Z", "23h"),
            ("2026-11-19T12:00:00Z", "1d"),
            ("2025-11-20T12:00:01Z", "364d"),
            ("2025-11-20T12:00:00Z", "1y"),
            ("2026-11-20T12:00:09Z", "0s"),
            ("2026-11-20T11:55:00.123456Z", "4m"),
            ("", "-"),
            ("yesterday", "-"),
            ("1970-01-01T00:00:00Z", "-"),
        ] {
            assert_eq!(age(now(), ApiTime::parse(then)), wanted, "{then}");
        }
        for (then, wanted) in [
            ("2026-11-20T12:05:00Z", "in 5m"),
            ("2026-11-20T12:00:00.000001Z", "in 1s"),
            ("2026-11-20T12:00:00Z", "expired"),
        ] {
            assert_eq!(until(now(), ApiTime::parse(then)), wanted);
        }
    }

    #[test]
    fn lengths_of_time_are_read() {
        for (text, seconds) in [
            ("0s", 0),
            ("90s", 90),
            ("5m", 300),
            ("1h30m", 5_400),
            ("2d", 172_800),
            ("1w1d1h1m1s", 694_861),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_secs(seconds)),
                "{text}"
            );
        }
        for wrong in [
            "",
            "5",
            "m",
            "5x",
            "-5m",
            "5 m",
            "1m1h",
            "1m1m",
            "1.5h",
            "99999999999999999999s",
            "18446744073709551615w",
            "5mö",
            "200000d",
        ] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn since_is_a_time_or_a_length_of_time() {
        let ago = parse_since("5m").unwrap().timestamp(now());
        assert_eq!(ago.to_string(), "2026-11-20T11:55:00Z");
        let at = parse_since("2026-11-20T13:00:00+02:00")
            .unwrap()
            .timestamp(now());
        assert_eq!(at.to_string(), "2026-11-20T11:00:00Z");
        assert!(parse_since("noon").is_err());
    }
}

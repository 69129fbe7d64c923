//! Resumes a log after a disconnection.

use jiff::Timestamp;

use kat_types::api::ApiTime;

/// A place in a log: a time, and the number of lines of exactly that time that were read.
#[derive(Debug, Default)]
pub(crate) struct Resume {
    last: Option<ApiTime>,
    seen: usize,
    /// Lines of the time `last` that are sent again and have to be skipped.
    skip: usize,
    /// The stream was opened again and has not passed `last` yet.
    catching_up: bool,
}

impl Resume {
    /// Whether the line with this time was not read before.
    pub(crate) fn is_new(&mut self, timestamp: ApiTime) -> bool {
        match self.last {
            Some(last) if last == timestamp => {
                if self.skip > 0 {
                    self.skip -= 1;
                    return false;
                }
                self.seen += 1;
                true
            }
            Some(last) if self.catching_up && timestamp < last => false,
            _ => {
                self.last = Some(timestamp);
                self.seen = 1;
                self.skip = 0;
                self.catching_up = false;
                true
            }
        }
    }

    /// The start time for opening the stream again; `None` when no line was read.
    pub(crate) fn again(&mut self) -> Option<Timestamp> {
        self.skip = self.seen;
        self.catching_up = true;
        self.last.and_then(|last| last.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u8) -> ApiTime {
        ApiTime::parse(&format!("2026-01-01T00:00:{second:02}Z"))
    }

    #[test]
    fn no_line_is_lost_or_shown_twice() {
        let mut resume = Resume::default();
        assert_eq!(resume.again(), None);
        for time in [1, 2, 2] {
            assert!(resume.is_new(at(time)), "{time}");
        }
        assert_eq!(
            resume.again(),
            Some("2026-01-01T00:00:02Z".parse().unwrap())
        );
        let again: Vec<bool> = [1, 2, 2, 2, 3, 3]
            .into_iter()
            .map(|time| resume.is_new(at(time)))
            .collect();
        assert_eq!(again, [false, false, false, true, true, true]);
        assert_eq!(
            resume.again(),
            Some("2026-01-01T00:00:03Z".parse().unwrap())
        );
        assert!(!resume.is_new(at(3)));
        assert!(!resume.is_new(at(3)));
        assert!(resume.is_new(at(3)));
    }
}

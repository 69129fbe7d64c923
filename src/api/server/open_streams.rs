//! Counts of open watches, logs, commands and connections, for all callers and for each.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;

/// The open streams.
#[derive(Debug)]
pub struct OpenStreams {
    most: usize,
    most_of_one: usize,
    /// By caller; no entry is zero. The empty name counts those of unknown callers.
    open: Mutex<BTreeMap<String, usize>>,
}

/// Why no further stream can be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamLimitReached {
    /// All callers together have the maximum.
    #[error(
        "{0} streams (watches, logs, commands, connections) are open, the most for all callers together"
    )]
    All(usize),
    /// This caller has the maximum.
    #[error(
        "`{caller}` has {most} streams (watches, logs, commands, connections) open, the most for one caller"
    )]
    OfCaller {
        /// The caller's name in audit lines.
        caller: String,
        /// The maximum for one caller.
        most: usize,
    },
}

impl StreamLimitReached {
    /// What the caller can try.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::All(_) => "try again when some of them have ended",
            Self::OfCaller { .. } => {
                "end some of them, or give each program a token of its own (`katcall token create`)"
            }
        }
    }
}

/// One open stream, until it is dropped.
#[derive(Debug)]
pub struct OpenStreamPermit {
    streams: Arc<OpenStreams>,
    caller: String,
}

impl OpenStreams {
    /// At most `most` streams, and `most_of_one` of one caller.
    pub fn new(most: usize, most_of_one: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_of_one,
            open: Mutex::default(),
        })
    }

    /// Number of open streams.
    pub fn count(&self) -> usize {
        self.open.lock().values().sum()
    }

    /// Opens one more stream; one of an unknown caller only counts towards the total.
    pub fn open(
        self: &Arc<Self>,
        caller: Option<&str>,
    ) -> Result<OpenStreamPermit, StreamLimitReached> {
        let name = caller.unwrap_or_default();
        let mut open = self.open.lock();
        if open.values().sum::<usize>() >= self.most {
            return Err(StreamLimitReached::All(self.most));
        }
        let own = open.get(name).copied().unwrap_or(0);
        if caller.is_some() && own >= self.most_of_one {
            return Err(StreamLimitReached::OfCaller {
                caller: name.to_owned(),
                most: self.most_of_one,
            });
        }
        open.insert(name.to_owned(), own + 1);
        Ok(OpenStreamPermit {
            streams: Arc::clone(self),
            caller: name.to_owned(),
        })
    }
}

impl Drop for OpenStreamPermit {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        if let Some(own) = open.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_has_its_part_and_no_more() {
        let streams = OpenStreams::new(5, 2);
        let open = |caller| streams.open(caller);
        let first = [open(Some("a")), open(Some("a"))];
        assert!(first.iter().all(Result::is_ok));
        let full = StreamLimitReached::OfCaller {
            caller: "a".to_owned(),
            most: 2,
        };
        assert_eq!(open(Some("a")).err(), Some(full));
        // Unknown callers have no limit of their own.
        let unknown = [open(None), open(None), open(None)];
        assert!(unknown.iter().all(Result::is_ok));
        assert_eq!(open(Some("b")).err(), Some(StreamLimitReached::All(5)));
        drop(first);
        let other = [open(Some("b")), open(Some("a"))];
        assert!(other.iter().all(Result::is_ok));
        assert_eq!(streams.count(), 5);
        drop((other, unknown));
        assert!(streams.open.lock().is_empty());
    }
}

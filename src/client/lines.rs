//! Streams of JSON lines (`application/x-ndjson`) with bounded lines.

use std::{marker::PhantomData, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use serde::de::DeserializeOwned;

use super::{ClientError, transport};

/// A line exceeds the reader's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a line is longer than {limit} bytes")]
pub struct LineError {
    /// The limit, bytes.
    pub limit: usize,
}

/// Splits arriving bytes into lines. It holds at most one line and one piece.
#[derive(Debug)]
pub struct LineSplitter {
    buffer: BytesMut,
    /// Number of bytes of `buffer` known to contain no line feed.
    searched: usize,
    limit: usize,
}

impl LineSplitter {
    /// Creates a splitter for lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            limit,
        }
    }

    /// Adds a piece of arriving bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next complete line without its line feed; `None` until more bytes are pushed. Empty
    /// lines are skipped.
    ///
    /// # Errors
    /// [`LineError`] if a line is too long; the stream can't be used any further.
    pub fn next_line(&mut self) -> Result<Option<Bytes>, LineError> {
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(position) = rest.iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                if self.searched > self.limit {
                    return Err(LineError { limit: self.limit });
                }
                return Ok(None);
            };
            let length = self.searched + position;
            self.searched = 0;
            if length > self.limit {
                return Err(LineError { limit: self.limit });
            }
            let line = self.buffer.split_to(length).freeze();
            self.buffer.advance(1);
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }

    /// Whether an incomplete line is left.
    pub fn has_rest(&self) -> bool {
        !self.buffer.is_empty()
    }
}

/// A stream of values, one JSON object for each line.
#[derive(Debug)]
pub struct JsonLines<T> {
    response: reqwest::Response,
    endpoint: String,
    lines: LineSplitter,
    idle: Option<Duration>,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> JsonLines<T> {
    pub(super) fn new(
        response: reqwest::Response,
        endpoint: String,
        limit: usize,
        idle: Option<Duration>,
    ) -> Self {
        Self {
            response,
            endpoint,
            lines: LineSplitter::new(limit),
            idle,
            of: PhantomData,
        }
    }

    /// The next value; `None` if the server ended the stream between two lines. May be dropped and
    /// called again without losing anything.
    ///
    /// # Errors
    /// [`ClientError::Interrupted`] if the stream breaks inside a line or by a fault,
    /// [`ClientError::NoAnswer`] after too long a silence, [`ClientError::Answer`] for a line that
    /// is too long or can't be parsed.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError> {
        loop {
            let line = self
                .lines
                .next_line()
                .map_err(|error| self.answer(error.to_string()))?;
            if let Some(line) = line {
                return serde_json::from_slice(&line)
                    .map(Some)
                    .map_err(|error| self.answer(error.to_string()));
            }
            let chunk = match self.idle {
                None => self.response.chunk().await,
                Some(idle) => tokio::time::timeout(idle, self.response.chunk())
                    .await
                    .map_err(|_| ClientError::NoAnswer {
                        endpoint: self.endpoint.clone(),
                        after: idle,
                    })?,
            };
            match chunk {
                Ok(Some(piece)) => self.lines.push(&piece),
                Ok(None) if self.lines.has_rest() => {
                    return Err(self.interrupted("it ended inside a line".to_owned()));
                }
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.interrupted(transport::reason(&error))),
            }
        }
    }

    fn answer(&self, reason: String) -> ClientError {
        ClientError::Answer {
            endpoint: self.endpoint.clone(),
            reason,
        }
    }

    fn interrupted(&self, reason: String) -> ClientError {
        ClientError::Interrupted {
            endpoint: self.endpoint.clone(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(lines: &mut LineSplitter) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while let Some(line) = lines.next_line().unwrap() {
            found.push(line.to_vec());
        }
        found
    }

    #[test]
    fn a_line_in_pieces_comes_out_whole() {
        let mut lines = LineSplitter::new(16);
        lines.push(b"{\"a\"");
        assert_eq!(drain(&mut lines), Vec::<Vec<u8>>::new());
        lines.push(b":1}\n\n{}");
        assert_eq!(drain(&mut lines), [b"{\"a\":1}".to_vec()]);
        assert!(lines.has_rest());
        lines.push(b"\n");
        assert_eq!(drain(&mut lines), [b"{}".to_vec()]);
        assert!(!lines.has_rest());
    }

    #[test]
    fn a_line_that_is_too_long_is_refused_with_and_without_its_end() {
        let mut endless = LineSplitter::new(4);
        endless.push(b"12345");
        assert_eq!(endless.next_line(), Err(LineError { limit: 4 }));
        let mut ended = LineSplitter::new(4);
        ended.push(b"12345\n");
        assert_eq!(ended.next_line(), Err(LineError { limit: 4 }));
        let mut fits = LineSplitter::new(4);
        fits.push(b"1234\n");
        assert_eq!(fits.next_line(), Ok(Some(Bytes::from_static(b"1234"))));
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_changes_nothing(
            text in "[a-c\n]{0,60}",
            cuts in proptest::collection::vec(1usize..7, 1..30),
        ) {
            let wanted: Vec<Vec<u8>> = text
                .rsplit_once('\n')
                .map_or("", |(whole, _)| whole)
                .split('\n')
                .filter(|line| !line.is_empty())
                .map(|line| line.as_bytes().to_vec())
                .collect();
            let mut lines = LineSplitter::new(100);
            let mut found = Vec::new();
            let mut rest = text.as_bytes();
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                lines.push(piece);
                found.extend(drain(&mut lines));
                rest = after;
            }
            prop_assert_eq!(found, wanted);
        }
    }
}

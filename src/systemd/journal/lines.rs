//! Reads lines of limited length.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// The next item of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputLine<'a> {
    /// A line without its break.
    Text(&'a [u8]),
    /// A line that was too long and was skipped.
    TooLong,
    /// End of the input.
    End,
}

/// Reads lines; never buffers more than the limit and one read.
pub(super) struct LineReader<R> {
    reader: R,
    limit: usize,
    line: Vec<u8>,
    skipping: bool,
    finished: bool,
}

impl<R: AsyncBufRead + Unpin> LineReader<R> {
    pub(super) fn new(reader: R, limit: usize) -> Self {
        Self {
            reader,
            limit,
            line: Vec::new(),
            skipping: false,
            finished: true,
        }
    }

    /// Reads the next line. Cancel safe: what was read is kept.
    pub(super) async fn next(&mut self) -> io::Result<InputLine<'_>> {
        if self.finished {
            self.line.clear();
            self.finished = false;
        }
        loop {
            let buffer = self.reader.fill_buf().await?;
            if buffer.is_empty() {
                let skipped = std::mem::take(&mut self.skipping);
                self.finished = true;
                return Ok(match (skipped, self.line.is_empty()) {
                    (true, _) => InputLine::TooLong,
                    (false, true) => InputLine::End,
                    // The last line has no line break.
                    (false, false) => InputLine::Text(&self.line),
                });
            }
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let part = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or(buffer);
            if self.line.len() + part.len() > self.limit {
                self.skipping = true;
                self.line.clear();
            } else if !self.skipping {
                self.line.extend_from_slice(part);
            }
            let used = end.map_or(buffer.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                self.finished = true;
                if std::mem::take(&mut self.skipping) {
                    return Ok(InputLine::TooLong);
                }
                return Ok(InputLine::Text(&self.line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    #[tokio::test]
    async fn passes_over_a_long_line_and_goes_on() {
        let text = b"one\nfar too long\n\nfour\nlast";
        let mut lines = LineReader::new(BufReader::with_capacity(3, &text[..]), 5);
        assert_eq!(lines.next().await.unwrap(), InputLine::Text(b"one"));
        assert_eq!(lines.next().await.unwrap(), InputLine::TooLong);
        assert_eq!(lines.next().await.unwrap(), InputLine::Text(b""));
        assert_eq!(lines.next().await.unwrap(), InputLine::Text(b"four"));
        assert_eq!(lines.next().await.unwrap(), InputLine::Text(b"last"));
        assert_eq!(lines.next().await.unwrap(), InputLine::End);
        assert_eq!(lines.next().await.unwrap(), InputLine::End);
    }
}

//! The sending end of a copy: reads the folder and writes the stream.

use std::fs::File;

use tokio::time::{Duration, Instant};

use super::{
    CHUNK, CopyEntry, CopyError, Owners,
    digest::Digester,
    frames::{CopyFrame, write_block},
    walk::{WalkVisitor, measure, walk},
};

/// Longest pause between two frames, also while holes or many names are read.
const SAYS_SOMETHING: Duration = Duration::from_secs(10);

struct FrameSender<F> {
    digester: Digester,
    buffer: Vec<u8>,
    out: F,
    last: Instant,
    total: (u64, u64),
}

impl<F: FnMut(Vec<u8>) -> bool> FrameSender<F> {
    fn frame(&mut self, frame: &CopyFrame) -> Result<(), CopyError> {
        frame.write(&mut self.buffer);
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> Result<(), CopyError> {
        match self.buffer.len() >= CHUNK {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), CopyError> {
        self.last = Instant::now();
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK * 2));
        match (self.out)(full) {
            true => Ok(()),
            false => Err(CopyError::Ended),
        }
    }
}

impl<F: FnMut(Vec<u8>) -> bool> WalkVisitor for FrameSender<F> {
    fn entry(&mut self, entry: &CopyEntry) -> Result<(), CopyError> {
        self.digester.entry(entry);
        self.frame(&CopyFrame::Entry(entry.clone()))
    }

    fn block(&mut self, offset: u64, block: &[u8]) -> Result<(), CopyError> {
        self.digester.block(offset, block);
        write_block(offset, block, &mut self.buffer);
        self.flush_if_full()
    }

    fn end(&mut self) -> Result<(), CopyError> {
        self.digester.end();
        self.frame(&CopyFrame::End)
    }

    fn idle(&mut self) -> Result<(), CopyError> {
        if self.last.elapsed() < SAYS_SOMETHING {
            return Ok(());
        }
        if self.buffer.is_empty() {
            let (files, bytes) = self.total;
            CopyFrame::Total { files, bytes }.write(&mut self.buffer);
        }
        self.flush()
    }
}

/// Sends the content of `folder` in pieces of about [`CHUNK`] bytes to `out`, which returns whether
/// the receiver is still connected. Failures are also sent to the other end. Blocks for as long as
/// that takes.
///
/// # Errors
/// [`CopyError`]; the folder is never changed.
pub fn send(
    folder: &File,
    owners: &Owners,
    out: impl FnMut(Vec<u8>) -> bool,
) -> Result<(), CopyError> {
    let mut sending = FrameSender {
        digester: Digester::default(),
        buffer: Vec::new(),
        out,
        last: Instant::now(),
        total: (0, 0),
    };
    let sent = send_all(folder, owners, &mut sending);
    if let Err(error) = &sent {
        sending.frame(&CopyFrame::Failed(error.to_string()))?;
        sending.flush()?;
    }
    sent
}

fn send_all<F: FnMut(Vec<u8>) -> bool>(
    folder: &File,
    owners: &Owners,
    sending: &mut FrameSender<F>,
) -> Result<(), CopyError> {
    let (files, bytes) = measure(folder, owners, &mut || sending.idle())?;
    sending.total = (files, bytes);
    sending.frame(&CopyFrame::Total { files, bytes })?;
    // The receiver gets the totals before the content is read.
    sending.flush()?;
    let skipped = walk(folder, owners, sending)?;
    let digester = std::mem::take(&mut sending.digester);
    sending.frame(&CopyFrame::Summary(digester.finish(skipped)))?;
    sending.flush()
}

/// Tells the other end why nothing can be sent.
///
/// # Errors
/// [`CopyError`] with that reason.
pub fn refuse(reason: &str, mut out: impl FnMut(Vec<u8>) -> bool) -> Result<(), CopyError> {
    let mut text = Vec::new();
    CopyFrame::Failed(reason.to_owned()).write(&mut text);
    out(text);
    Err(CopyError::Other(reason.to_owned()))
}

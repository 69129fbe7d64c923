//! Frames of HTTP/2 that each cost an answer: PING and SETTINGS (RFC 9113, 6.5 and 6.7).
//!
//! h2 bounds empty DATA, CONTINUATION and reset streams, answers these frames without a bound, and hands
//! none of them on. So the heads of frames are counted where a client's bytes arrive. A client that
//! measures its connection, as gRPC does, sends a ping for each piece of an answer that it gets: what is
//! sent to a client pays for its pings.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::{metrics::Limited, proxy::Ingress};

/// Bytes that a client sends before its first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Types of the frames that cost an answer.
const SETTINGS: u8 = 4;
const PING: u8 = 6;
/// Bytes of the longer one of their answers.
const ANSWER: u64 = 17;
/// How many of them a connection may have in a second, over some time.
const PER_SECOND: u64 = 100;
/// Further bytes sent to the client that pay for one more: less than the smallest piece of an answer that
/// has a content, with its frame's head.
const PAID: u64 = 8;

/// A stream of an HTTP/2 connection, which ends when its client floods it.
pub(crate) struct CountedFrames<S> {
    stream: S,
    ingress: Arc<Ingress>,
    heads: FrameHeads,
    budget: AnswerBudget,
}

impl<S> CountedFrames<S> {
    pub(crate) fn new(stream: S, ingress: Arc<Ingress>) -> Self {
        let budget = AnswerBudget::new(ingress.limits.control_frames, Instant::now());
        Self {
            stream,
            ingress,
            heads: FrameHeads::default(),
            budget,
        }
    }

    fn sent(&mut self, sent: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = sent {
            self.budget.sent(u64::try_from(*bytes).unwrap_or(u64::MAX));
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedFrames<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let this = &mut *self;
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        let read = buffer.filled().get(before..).unwrap_or_default();
        let asked = this.heads.answered_in(read);
        if asked > 0 && !this.budget.take(asked, Instant::now()) {
            this.ingress.metrics.limited(Limited::ControlFrames);
            return Poll::Ready(Err(io::Error::other("too many frames that cost an answer")));
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedFrames<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(&sent);
        sent
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.sent(&sent);
        sent
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The heads of the frames in a client's bytes.
struct FrameHeads {
    /// Bytes before the next head.
    skipped: usize,
    head: [u8; HEAD],
    /// Bytes of the head that have arrived.
    read: usize,
}

impl Default for FrameHeads {
    fn default() -> Self {
        Self {
            skipped: PREFACE,
            head: [0; HEAD],
            read: 0,
        }
    }
}

impl FrameHeads {
    /// Number of frames that cost an answer whose heads end in these bytes.
    fn answered_in(&mut self, mut bytes: &[u8]) -> u64 {
        let mut found = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if self.skipped > 0 {
                let skipped = self.skipped.min(bytes.len());
                self.skipped -= skipped;
                bytes = bytes.get(skipped..).unwrap_or_default();
                continue;
            }
            if let Some(place) = self.head.get_mut(self.read) {
                *place = *first;
            }
            self.read += 1;
            bytes = rest;
            if self.read < HEAD {
                continue;
            }
            self.read = 0;
            let [high, middle, low, kind, ..] = self.head;
            let length = u32::from_be_bytes([0, high, middle, low]);
            self.skipped = usize::try_from(length).unwrap_or(usize::MAX);
            found += u64::from(matches!(kind, SETTINGS | PING));
        }
        found
    }
}

/// How many more frames a client may send that cost an answer.
struct AnswerBudget {
    most: u64,
    left: u64,
    /// When the time that has passed was counted last.
    counted: Instant,
    /// Bytes of answers that are not sent yet.
    owed: u64,
    /// Further bytes sent that have not paid for a frame yet.
    paid: u64,
}

impl AnswerBudget {
    fn new(most: u32, now: Instant) -> Self {
        Self {
            most: most.into(),
            left: most.into(),
            counted: now,
            owed: 0,
            paid: 0,
        }
    }

    /// Bytes were sent to the client.
    fn sent(&mut self, bytes: u64) {
        let further = bytes.saturating_sub(self.owed);
        self.owed = self.owed.saturating_sub(bytes);
        self.paid = self.paid.saturating_add(further);
        self.add(self.paid / PAID);
        self.paid %= PAID;
    }

    /// Whether the client may have sent this many.
    fn take(&mut self, frames: u64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.counted).as_millis();
        let more = u64::try_from(passed)
            .unwrap_or(u64::MAX)
            .saturating_mul(PER_SECOND)
            / 1000;
        if more > 0 {
            // What is left of the time counts the next time.
            let counted = Duration::from_millis(more.saturating_mul(1000 / PER_SECOND));
            self.counted = self.counted.checked_add(counted).unwrap_or(now);
            self.add(more);
        }
        self.owed = self.owed.saturating_add(frames.saturating_mul(ANSWER));
        match self.left.checked_sub(frames) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    fn add(&mut self, frames: u64) {
        self.left = self.left.saturating_add(frames).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 0];
        frame.resize(HEAD + usize::from(length), PING);
        frame
    }

    #[test]
    fn frames_are_found_however_their_bytes_arrive() {
        let frames = [
            vec![PING; PREFACE],
            frame(SETTINGS, 0),
            frame(0, 40),
            frame(PING, 8),
            frame(1, 255),
            frame(SETTINGS, 6),
            frame(9, 0),
        ];
        let all = frames.concat();
        for size in [1, 2, 7, 9, 10, 64, all.len()] {
            let mut heads = FrameHeads::default();
            let found: u64 = all.chunks(size).map(|part| heads.answered_in(part)).sum();
            assert_eq!(found, 3, "in pieces of {size}");
        }
    }

    #[test]
    fn time_and_what_is_sent_to_a_client_pay_for_its_pings() {
        let begin = Instant::now();
        let mut budget = AnswerBudget::new(10, begin);
        assert!(budget.take(10, begin));
        assert!(!budget.take(1, begin));
        // Answers pay for nothing.
        budget.sent(11 * ANSWER);
        assert!(!budget.take(1, begin));
        budget.sent(ANSWER);
        budget.sent(PAID - 1);
        assert!(!budget.take(1, begin));
        budget.sent(ANSWER + 1);
        assert!(budget.take(1, begin));
        let later = begin + Duration::from_millis(20);
        assert!(budget.take(2, later));
        assert!(!budget.take(1, later));
        // A rest does not add up.
        let much_later = later + Duration::from_secs(60);
        assert!(!budget.take(11, much_later));
        assert!(budget.take(10, much_later));
    }

    #[test]
    fn frames_in_short_steps_of_time_have_the_whole_rate() {
        let begin = Instant::now();
        let mut budget = AnswerBudget::new(10, begin);
        assert!(budget.take(10, begin));
        for step in 1..200 {
            // 15 ms each, and 3 frames in 30 ms.
            let now = begin + Duration::from_millis(15 * step);
            let frames = if step % 2 == 0 { 2 } else { 1 };
            assert!(budget.take(frames, now), "step {step}");
        }
        assert!(!budget.take(2, begin + Duration::from_millis(15 * 199)));
    }
}

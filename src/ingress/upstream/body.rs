//! Bodies on their way through: never collected, bounded in size and in the time between two pieces.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep, sleep},
};

use super::{ActiveRequest, pool::ReturnedConnection};
use crate::{access::RequestRecord, headers::clean_trailers};

/// Time after which a body is sent although the instance has not answered `100 Continue`
/// (RFC 9110 10.1.1 allows not to wait for ever).
const CONTINUE_PATIENCE: Duration = Duration::from_secs(1);

/// Bytes in a second that a client takes at least of one large piece.
const SLOWEST_CLIENT: u64 = 1024;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than the route allows")]
    TooLarge,
    #[error("nothing came for too long")]
    Idle,
    #[error("the instance answered before the body")]
    NotWanted,
    #[error("the client took nothing for too long")]
    NotTaken,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

/// The timer between two pieces.
struct IdleTimer {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimer {
    fn new(limit: Duration) -> Self {
        Self { limit, timer: None }
    }

    /// Called when a piece came.
    fn reset(&mut self) {
        self.timer = None;
    }

    /// Called when none is there: ready when the limit is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(context)
    }
}

/// What a request's body has done, for the one who waits for the answer.
#[derive(Debug)]
pub(crate) struct BodyProgress {
    /// It was larger than the route allows.
    too_large: AtomicBool,
    /// The client sent nothing for too long, or broke off.
    client_failed: AtomicBool,
    /// A part of it was read, so that it can't be sent a second time.
    touched: AtomicBool,
    last: Mutex<Instant>,
    received: AtomicU64,
    /// The instance wants the body.
    wanted: AtomicBool,
    /// The instance's answer has ended.
    answered: AtomicBool,
    /// Wakes a body that waits for one of the two.
    decided: Notify,
}

impl Default for BodyProgress {
    fn default() -> Self {
        Self {
            too_large: AtomicBool::new(false),
            client_failed: AtomicBool::new(false),
            touched: AtomicBool::new(false),
            last: Mutex::new(Instant::now()),
            received: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            decided: Notify::new(),
        }
    }
}

impl BodyProgress {
    pub(crate) fn is_too_large(&self) -> bool {
        self.too_large.load(Relaxed)
    }

    pub(crate) fn client_failed(&self) -> bool {
        self.client_failed.load(Relaxed)
    }

    pub(crate) fn is_touched(&self) -> bool {
        self.touched.load(Relaxed)
    }

    /// When a piece came last, or the request began.
    pub(crate) fn last(&self) -> Instant {
        *self.last.lock()
    }

    pub(crate) fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// The instance has sent `100 Continue`.
    pub(crate) fn continue_body(&self) {
        self.wanted.store(true, Relaxed);
        self.decided.notify_one();
    }

    /// The instance's answer has ended: a body that still waits for `100 Continue` is not sent any
    /// more. Before the end that would break the connection that the answer comes on.
    fn answer_ended(&self) {
        self.answered.store(true, Relaxed);
        self.decided.notify_one();
    }

    /// Waits until the instance wants the body (true), or its answer has ended (false).
    async fn is_wanted(&self) -> bool {
        loop {
            if self.wanted.load(Relaxed) {
                return true;
            }
            if self.answered.load(Relaxed) {
                return false;
            }
            // A notification before this is kept for it.
            self.decided.notified().await;
        }
    }
}

type Gate = Pin<Box<dyn Future<Output = bool> + Send + Sync>>;

/// A client's body on its way to an instance.
pub(crate) struct RequestBody {
    inner: Option<Incoming>,
    progress: Arc<BodyProgress>,
    /// Most bytes; 0 for any number.
    limit: u64,
    idle: IdleTimer,
    /// Waits for `100 Continue`; false if the body is not wanted.
    gate: Option<Gate>,
}

impl RequestBody {
    /// A body that begins after `100 Continue` if `waits`.
    pub(crate) fn new(
        inner: Incoming,
        progress: Arc<BodyProgress>,
        limit: u64,
        idle: Duration,
        waits: bool,
    ) -> Self {
        let gate = waits.then(|| -> Gate {
            let progress = Arc::clone(&progress);
            Box::pin(async move {
                tokio::select! {
                    biased;
                    is_wanted = progress.is_wanted() => is_wanted,
                    () = sleep(CONTINUE_PATIENCE) => true,
                }
            })
        });
        Self {
            inner: Some(inner),
            progress,
            limit,
            idle: IdleTimer::new(idle),
            gate,
        }
    }

    /// No body.
    pub(crate) fn empty() -> Self {
        Self {
            inner: None,
            progress: Arc::default(),
            limit: 0,
            idle: IdleTimer::new(Duration::MAX),
            gate: None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        if let Some(gate) = &mut this.gate {
            let is_wanted = ready!(gate.as_mut().poll(context));
            this.gate = None;
            if !is_wanted {
                this.inner = None;
                return Poll::Ready(Some(Err(BodyError::NotWanted)));
            }
        }
        this.progress.touched.store(true, Relaxed);
        let polled = Pin::new(inner).poll_frame(context);
        let Poll::Ready(next) = polled else {
            ready!(this.idle.poll(context));
            this.progress.client_failed.store(true, Relaxed);
            this.inner = None;
            return Poll::Ready(Some(Err(BodyError::Idle)));
        };
        this.idle.reset();
        *this.progress.last.lock() = Instant::now();
        Poll::Ready(match next {
            Some(Ok(frame)) => Some(this.count(frame)),
            Some(Err(error)) => {
                this.progress.client_failed.store(true, Relaxed);
                Some(Err(error.into()))
            }
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let exact = SizeHint::with_exact(0);
        self.inner.as_ref().map_or(exact, Body::size_hint)
    }
}

impl RequestBody {
    fn count(&mut self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        if let Some(data) = frame.data_ref() {
            let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
            let before = self.progress.received.fetch_add(length, Relaxed);
            if self.limit > 0 && before.saturating_add(length) > self.limit {
                self.progress.too_large.store(true, Relaxed);
                self.inner = None;
                return Err(BodyError::TooLarge);
            }
        }
        if let Some(trailers) = frame.trailers_mut() {
            clean_trailers(trailers);
        }
        Ok(frame)
    }
}

enum ResponseSource {
    Own(Option<Bytes>),
    Instance {
        incoming: Incoming,
        idle: IdleTimer,
        /// The connection, for the next request.
        connection: Option<ReturnedConnection>,
        request: Arc<BodyProgress>,
        _active: ActiveRequest,
    },
    /// It was cut off, because the client took nothing.
    Cut,
    /// Nobody reads it any more.
    Ended,
}

impl ResponseSource {
    /// The longest wait of the instance for its next piece.
    fn idle(&self) -> Duration {
        match self {
            Self::Instance { idle, .. } => idle.limit,
            Self::Own(_) | Self::Cut | Self::Ended => Duration::ZERO,
        }
    }
}

impl Drop for ResponseSource {
    fn drop(&mut self) {
        // A body that is known to have ended may never be read to its end.
        if let Self::Instance {
            incoming,
            connection,
            request,
            ..
        } = self
        {
            if incoming.is_end_stream() {
                give_back(connection);
            }
            request.answer_ended();
        }
    }
}

/// Where a body comes from, and what the client's connection does with it.
struct Delivery {
    source: ResponseSource,
    /// When it was asked for a piece last, or made.
    asked: Instant,
    /// How long it may take until it is asked again, beside the client's time.
    allowance: Duration,
}

/// A body on its way, as the one sees it who watches over its client.
#[derive(Clone)]
pub(crate) struct WatchedDelivery(Arc<Mutex<Delivery>>);

impl WatchedDelivery {
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self.0.lock().source, ResponseSource::Cut)
    }

    /// Cuts the body off if its client has taken nothing for this time: what it holds of an instance
    /// is freed. True if it was cut off.
    ///
    /// hyper does not ask for the next piece while a stream of HTTP/2 has no room for it, so that no
    /// timer of the body itself could run.
    pub(crate) fn cut_if_not_taken(&self, limit: Duration) -> bool {
        let mut delivery = self.0.lock();
        let limit = limit.saturating_add(delivery.allowance);
        let has_ended = matches!(delivery.source, ResponseSource::Ended);
        let is_late = !has_ended && delivery.asked.elapsed() > limit;
        if is_late {
            delivery.source = ResponseSource::Cut;
        }
        is_late
    }
}

/// What is given back when an answer has ended.
type Held = Box<dyn Send + Sync>;

/// A body on its way to a client.
pub(crate) struct ResponseBody {
    delivery: Arc<Mutex<Delivery>>,
    /// Written to the access log and the counters when the body has ended.
    record: Option<RequestRecord>,
    held: Vec<Held>,
}

impl ResponseBody {
    fn new(source: ResponseSource) -> Self {
        let delivery = Delivery {
            source,
            asked: Instant::now(),
            allowance: Duration::ZERO,
        };
        Self {
            delivery: Arc::new(Mutex::new(delivery)),
            record: None,
            held: Vec::new(),
        }
    }

    /// A page of KAT.
    pub(crate) fn own(page: Bytes) -> Self {
        Self::new(ResponseSource::Own(
            Some(page).filter(|page| !page.is_empty()),
        ))
    }

    /// What an instance sends.
    pub(crate) fn instance(
        incoming: Incoming,
        idle: Duration,
        connection: Option<ReturnedConnection>,
        request: Arc<BodyProgress>,
        active: ActiveRequest,
    ) -> Self {
        Self::new(ResponseSource::Instance {
            incoming,
            idle: IdleTimer::new(idle),
            connection,
            request,
            _active: active,
        })
    }

    pub(crate) fn record(&mut self, record: RequestRecord) {
        self.record = Some(record);
    }

    /// Keeps something until the body is dropped.
    pub(crate) fn hold(&mut self, held: impl Send + Sync + 'static) {
        self.held.push(Box::new(held));
    }

    pub(crate) fn watched(&self) -> WatchedDelivery {
        WatchedDelivery(Arc::clone(&self.delivery))
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut delivery = this.delivery.lock();
        delivery.asked = Instant::now();
        // It asks again when a piece or the end of this time wakes it.
        delivery.allowance = delivery.source.idle();
        let next = match &mut delivery.source {
            ResponseSource::Own(page) => page.take().map(|page| Ok(Frame::data(page))),
            ResponseSource::Cut => Some(Err(BodyError::NotTaken)),
            ResponseSource::Ended => None,
            ResponseSource::Instance {
                incoming,
                idle,
                connection,
                ..
            } => match Pin::new(incoming).poll_frame(context) {
                Poll::Pending => {
                    ready!(idle.poll(context));
                    Some(Err(BodyError::Idle))
                }
                Poll::Ready(next) => {
                    idle.reset();
                    if next.is_none() {
                        give_back(connection);
                    }
                    next.map(|frame| frame.map_err(BodyError::from))
                }
            },
        };
        let next = next.map(|frame| {
            frame.map(|mut frame| {
                if let Some(trailers) = frame.trailers_mut() {
                    clean_trailers(trailers);
                }
                frame
            })
        });
        let data = next
            .as_ref()
            .and_then(|frame| frame.as_ref().ok()?.data_ref());
        let length = u64::try_from(data.map_or(0, Bytes::len)).unwrap_or(u64::MAX);
        delivery.allowance = Duration::from_secs(length / SLOWEST_CLIENT);
        if let Some(record) = &mut this.record {
            match &next {
                Some(Ok(_)) => record.sent(length),
                Some(Err(error)) => record.broken(error),
                None => {}
            }
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.delivery.lock().source {
            ResponseSource::Own(page) => page.is_none(),
            ResponseSource::Instance { incoming, .. } => incoming.is_end_stream(),
            ResponseSource::Cut => false,
            ResponseSource::Ended => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.delivery.lock().source {
            ResponseSource::Own(page) => {
                let length = page.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            ResponseSource::Instance { incoming, .. } => incoming.size_hint(),
            ResponseSource::Cut | ResponseSource::Ended => SizeHint::default(),
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        // One who watches may hold the delivery for longer. The answer that was read to its end may
        // not have been sent yet: its connection must not look like one whose client takes nothing.
        self.delivery.lock().source = ResponseSource::Ended;
    }
}

fn give_back(connection: &mut Option<ReturnedConnection>) {
    if let Some(connection) = connection.take() {
        connection.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the watching side sees while the answer's place is given back.
    struct HeldPlace {
        watched: WatchedDelivery,
        was_cut: Arc<AtomicBool>,
    }

    impl Drop for HeldPlace {
        fn drop(&mut self) {
            let is_cut = self.watched.is_cut() || self.watched.cut_if_not_taken(Duration::ZERO);
            self.was_cut.store(is_cut, Relaxed);
        }
    }

    /// Answers end on a task of their own. Between the end of one and the return of its place the
    /// connection's task may look: a connection with nothing but cut answers is closed, and then the
    /// answer would be lost on its way.
    #[tokio::test]
    async fn an_answer_that_ended_is_not_one_that_was_cut() {
        let mut body = ResponseBody::own(Bytes::from_static(b"page"));
        let was_cut = Arc::new(AtomicBool::new(true));
        body.hold(HeldPlace {
            watched: body.watched(),
            was_cut: Arc::clone(&was_cut),
        });
        drop(body);
        assert!(!was_cut.load(Relaxed));
    }

    #[tokio::test]
    async fn a_waiting_body_learns_what_was_decided_before_and_during_its_wait() {
        let decide = |progress: &BodyProgress, is_wanted| match is_wanted {
            true => progress.continue_body(),
            false => progress.answer_ended(),
        };
        for expected in [true, false] {
            let before = BodyProgress::default();
            decide(&before, expected);
            assert_eq!(before.is_wanted().await, expected);
            let during = BodyProgress::default();
            let (is_wanted, ()) =
                tokio::join!(during.is_wanted(), async { decide(&during, expected) });
            assert_eq!(is_wanted, expected);
        }
        let both = BodyProgress::default();
        both.continue_body();
        both.answer_ended();
        assert!(
            both.is_wanted().await,
            "what the instance asked for is sent"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_is_cut() {
        let body = ResponseBody::own(Bytes::from_static(b"page"));
        let watched = body.watched();
        tokio::time::advance(Duration::from_secs(61)).await;
        assert!(watched.cut_if_not_taken(Duration::from_secs(60)));
        assert!(watched.is_cut());
    }
}

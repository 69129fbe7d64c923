//! The state stream: what a machine without the store may see of it, for as long as the machine
//! stays connected. Each machine that holds the store answers itself, whoever leads.

use std::{iter, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{FutureExt, StreamExt, stream};
use serde::Deserialize;
use tokio::{
    sync::{mpsc, watch::Receiver},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    access::authentication::{Caller, still_valid},
    context::Api,
    errors::ApiError,
    extract::{PathParameters, QueryParameters},
};
use kat_plan::Snapshot;
use kat_store::{OpenedFrames, StateFrames};
use kat_types::encoding::{
    json::NotEncoded,
    state_frames::{STATE_CONTENT_TYPE, StateFrame, StatePosition},
};

/// Longest time in which a client may take nothing of [`PIECE`] bytes.
const NO_PROGRESS: Duration = Duration::from_secs(10);
/// Largest number of bytes that are sent together; longer frames are cut, so that a client on a slow
/// line makes progress.
const PIECE: usize = 16 * 1024;

/// What the caller has already, and the version of the stream that it speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StateQuery {
    epoch: Option<u64>,
    revision: Option<i64>,
    /// No version of the stream needs it yet.
    #[allow(dead_code, reason = "a later version may answer by it")]
    schema: Option<u32>,
}

impl StateQuery {
    fn position(self) -> Result<Option<StatePosition>, ApiError> {
        match (self.epoch, self.revision) {
            (None, None) => Ok(None),
            (Some(epoch), Some(revision)) if revision >= 0 => {
                Ok(Some(StatePosition { epoch, revision }))
            }
            _ => Err(ApiError::invalid(
                "epoch and revision: expected both, and no negative revision",
            )),
        }
    }
}

/// Opens the stream. The gate has checked that the certificate is that of the machine in the path.
pub(crate) async fn open(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    PathParameters(name): PathParameters<String>,
    QueryParameters(query): QueryParameters<StateQuery>,
) -> Result<Response, ApiError> {
    let resume = query.position()?;
    let feed = api.config.handle.feed.as_ref().ok_or_else(|| {
        ApiError::Unavailable("this machine does not hold the cluster's store".to_owned())
    })?;
    let own = &api.config.node_name;
    let snapshot = api.config.handle.snapshot.borrow().clone();
    if let Some(voting) = snapshot.and_then(|snapshot| voters_instead_of(&snapshot, own)) {
        return Err(ApiError::Unavailable(format!(
            "the etcd of {own} has no vote yet; the state stream is served by {}",
            voting.join(", ")
        )));
    }
    let opened = feed.open_replaceable(&name, resume);
    let OpenedFrames { frames, replaced } =
        opened.map_err(|refused| ApiError::TooManyRequests(refused.retry_after.as_secs() + 1))?;
    let mut guarded = GuardedStream {
        checked_at: Instant::now(),
        snapshots: api.config.handle.snapshot.clone(),
        api,
        caller,
        frames,
    };
    let shutdown = guarded.api.shutdown.clone();
    let (sender, mut pieces) = mpsc::channel(1);
    // A task of its own, so that a client that reads nothing keeps nothing: the HTTP server asks
    // for no more once the client's window is full.
    tokio::spawn(shutdown.run_until_cancelled_owned(async move {
        while let Some(encoded) = guarded.next().await {
            for (piece, before) in pieces_of(encoded).zip(0_usize..) {
                // A frame may take long, and a machine must not hold many of them.
                if before > 0 && (replaced.is_cancelled() || !guarded.is_valid()) {
                    return;
                }
                let sent = timeout(NO_PROGRESS, sender.send(piece)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }));
    let pieces = stream::poll_fn(move |context| pieces.poll_recv(context));
    let headers = [(header::CONTENT_TYPE, STATE_CONTENT_TYPE)];
    Ok((StatusCode::OK, headers, Body::from_stream(pieces)).into_response())
}

/// Cuts encoded frames into pieces of at most [`PIECE`] bytes.
fn pieces_of(
    encoded: Result<Bytes, NotEncoded>,
) -> impl Iterator<Item = Result<Bytes, NotEncoded>> {
    let mut rest = Some(encoded);
    iter::from_fn(move || match rest.take()? {
        Ok(mut bytes) if bytes.len() > PIECE => {
            let piece = bytes.split_to(PIECE);
            rest = Some(Ok(bytes));
            Some(Ok(piece))
        }
        last => Some(last),
    })
}

/// The members with a vote, where the member of this machine has none.
fn voters_instead_of(snapshot: &Snapshot, own: &str) -> Option<Vec<String>> {
    let stored = &snapshot.members.as_ref()?.value;
    let members = &stored.members;
    if !stored.next.contains(own) && members.get(own)?.voting {
        return None;
    }
    let voting = members.iter().filter(|(_, member)| member.voting);
    Some(voting.map(|(name, _)| name.clone()).collect())
}

/// A stream, for as long as the cluster knows its machine.
struct GuardedStream {
    api: Arc<Api>,
    caller: Caller,
    snapshots: Receiver<Option<Arc<Snapshot>>>,
    checked_at: Instant,
    frames: StateFrames,
}

impl GuardedStream {
    /// The next bytes; `None` at the end of the stream, or when the machine has left the cluster.
    async fn next(&mut self) -> Option<Result<Bytes, NotEncoded>> {
        let mut piece = Vec::new();
        let mut frame = self.frame().await?;
        loop {
            match frame.encode() {
                Ok(bytes) => piece.extend_from_slice(&bytes),
                Err(error) => return Some(Err(error)),
            }
            // The length is compared first: a frame that is taken has to be sent.
            if piece.len() >= PIECE {
                return Some(Ok(piece.into()));
            }
            frame = match self.frames.next().now_or_never() {
                Some(Some(Ok(next))) => next,
                _ => return Some(Ok(piece.into())),
            };
        }
    }

    async fn frame(&mut self) -> Option<StateFrame> {
        loop {
            let check_at = self.checked_at + self.api.config.limits.bookmark_interval;
            tokio::select! {
                biased;
                Ok(()) = self.snapshots.changed() => {}
                () = sleep_until(check_at) => {}
                frame = self.frames.next() => return frame?.ok(),
            }
            self.checked_at = Instant::now();
            if !self.is_valid() {
                return None;
            }
        }
    }

    /// Whether the cluster still knows the machine.
    fn is_valid(&mut self) -> bool {
        let snapshot = self.snapshots.borrow_and_update().clone();
        let now = self.api.now();
        let valid = snapshot.map_or(Ok(()), |one| still_valid(&self.caller, &one, now));
        if let Err(error) = &valid {
            tracing::info!(caller = %self.caller, "a state stream ends: {error}");
        }
        valid.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_frames_are_sent_in_pieces() {
        let cut = |bytes: usize| {
            let pieces = pieces_of(Ok(vec![7; bytes].into()));
            let lengths = pieces.map(|piece| piece.unwrap().len());
            lengths.collect::<Vec<_>>()
        };
        assert_eq!(cut(1), [1]);
        assert_eq!(cut(PIECE), [PIECE]);
        assert_eq!(cut(2 * PIECE + 5), [PIECE, PIECE, 5]);
        let failed = pieces_of(Err(NotEncoded {
            what: "a frame".to_owned(),
            reason: "no".to_owned(),
        }));
        assert_eq!(failed.filter(Result::is_err).count(), 1);
    }

    #[test]
    fn a_position_has_both_parts_or_none() {
        let query = |epoch, revision| StateQuery {
            epoch,
            revision,
            schema: Some(1),
        };
        assert_eq!(query(None, None).position().unwrap(), None);
        let position = query(Some(2), Some(7)).position().unwrap();
        let expected = StatePosition {
            epoch: 2,
            revision: 7,
        };
        assert_eq!(position, Some(expected));
        for wrong in [
            query(Some(2), None),
            query(None, Some(7)),
            query(Some(2), Some(-1)),
        ] {
            assert!(wrong.position().is_err(), "{wrong:?}");
        }
    }
}

//! The source of a machine's keys in a cluster whose servers are of a version without the state
//! stream: four prefixes of etcd, as the machine's own user. The prefixes are not read at one
//! revision.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt, future::select_all, stream};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Mirror, MirrorState, StateFrames, StateSource, StateSourceError, StateStore,
    etcd_admin::node_prefixes, state_feed::epoch,
};
use kat_types::{
    encoding::state_frames::{STATE_SCHEMA, StateBeat, StateBegin, StateFrame, StatePosition},
    store::visibility::is_visible,
};

/// Interval of the beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the frames end, so that the reader looks for a server of a later version.
const ENDS_AFTER: Duration = Duration::from_secs(60);

/// Reads the prefixes, and sends everything again after each change. A beat says only that the
/// watches still stand.
pub struct PrefixStateSource {
    store: Arc<dyn StateStore>,
    node: String,
}

impl PrefixStateSource {
    /// The keys that the machine `node` may see.
    pub fn new(store: Arc<dyn StateStore>, node: &str) -> Self {
        Self {
            store,
            node: node.to_owned(),
        }
    }
}

struct PrefixReader {
    node: String,
    mirrors: Vec<Mirror>,
    /// What was sent last; empty before the first list.
    sent: Vec<Arc<MirrorState>>,
    revision: i64,
    opened_at: Instant,
    ends_at: Instant,
    _running: DropGuard,
}

#[async_trait]
impl StateSource for PrefixStateSource {
    async fn open(&self, resume: Option<StatePosition>) -> Result<StateFrames, StateSourceError> {
        let cancel = CancellationToken::new();
        // A server of such a version knows no other visible prefix, and its role permits none.
        let prefixes = node_prefixes(&self.node);
        let mirrors =
            prefixes.map(|prefix| Mirror::start(Arc::clone(&self.store), &prefix, cancel.clone()));
        let reader = PrefixReader {
            node: self.node.clone(),
            mirrors: mirrors.to_vec(),
            sent: Vec::new(),
            revision: resume.map_or(0, |position| position.revision),
            opened_at: Instant::now(),
            ends_at: Instant::now() + ENDS_AFTER,
            _running: cancel.drop_guard(),
        };
        let frames = stream::unfold(reader, |mut reader| async move {
            let frames = reader.next().await?;
            Some((stream::iter(frames.into_iter().map(Ok)), reader))
        });
        Ok(Box::pin(frames.flatten()))
    }
}

impl PrefixReader {
    async fn next(&mut self) -> Option<Vec<StateFrame>> {
        let beat_at = Instant::now() + BEAT_INTERVAL;
        while Instant::now() < self.ends_at {
            let states: Vec<_> = self.mirrors.iter().map(Mirror::snapshot).collect();
            if states.iter().all(|state| state.confirmed) {
                let mut both = states.iter().zip(&self.sent);
                let same = self.sent.len() == states.len()
                    && both.all(|(now, sent)| now.entries.ptr_eq(&sent.entries));
                if !same {
                    return Some(self.list(states));
                }
                if Instant::now() >= beat_at {
                    return Some(vec![StateFrame::Beat(StateBeat {
                        revision: self.revision,
                        quorum_age_ms: 0,
                        open_for_ms: u64::try_from(self.opened_at.elapsed().as_millis())
                            .unwrap_or(u64::MAX),
                    })]);
                }
            }
            let changed = self
                .mirrors
                .iter_mut()
                .map(|mirror| Box::pin(mirror.changed()));
            tokio::select! {
                (changed, _, _) = select_all(changed) => changed.map(drop).ok()?,
                () = sleep_until(beat_at.max(Instant::now() + BEAT_INTERVAL / 10)) => {}
            }
        }
        None
    }

    fn list(&mut self, states: Vec<Arc<MirrorState>>) -> Vec<StateFrame> {
        let revisions = states.iter().map(|state| state.revision);
        self.revision = revisions.max().unwrap_or_default().max(self.revision);
        let entries = states.iter().flat_map(|state| state.entries.iter());
        let seen = entries.filter(|(key, _)| is_visible(key, &self.node));
        let items: Vec<_> = seen
            .map(|(_, item)| StateFrame::Put(item.as_ref().clone()))
            .collect();
        let begin = StateFrame::Begin(StateBegin {
            epoch: states
                .iter()
                .map(|state| epoch(state))
                .max()
                .unwrap_or_default(),
            revision: self.revision,
            schema: STATE_SCHEMA,
            keys: items.len(),
        });
        self.sent = states;
        let commit = StateFrame::Commit(self.revision);
        [begin].into_iter().chain(items).chain([commit]).collect()
    }
}

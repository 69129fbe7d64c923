//! Lists, and watches that continue from them: `?watch=true&resourceVersion=N`
//! (docs/internals/api.md).
//!
//! A watch compares the items of two snapshots. A client that reads slowly misses intermediate
//! states but never the last one, and only the lines of one comparison are buffered for it. A
//! client that reads nothing is dropped by the connection's write timeout.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json,
    body::{Body, Bytes},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::{sync::watch::Receiver, time::Instant};

use super::{context::Api, errors::ApiError, view::ApiView};
use crate::{
    access::authentication::{Caller, still_valid},
    server::open_streams::OpenStreamPermit,
};
use kat_plan::Snapshot;
use kat_types::{
    api::{
        ErrorBody, Event, InstanceItem, Item, List, ListMetadata, NodeItem, RouteItem, RunItem,
        SecretItem, TokenView, VirtualAddressItem, VolumeItem, WatchLine,
    },
    encoding::json,
};

/// Longest wait of a watch for a resourceVersion that this machine has not seen yet.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// The query of every list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    /// Keep the response open and send changes.
    pub watch: bool,
    /// Continue from this resourceVersion; without it a watch starts with all items.
    pub resource_version: Option<String>,
}

impl ListQuery {
    /// The resourceVersion as a number.
    fn revision(&self) -> Result<Option<i64>, ApiError> {
        let Some(text) = self
            .resource_version
            .as_deref()
            .filter(|text| !text.is_empty())
        else {
            return Ok(None);
        };
        match text.parse() {
            Ok(revision) if revision >= 0 => Ok(Some(revision)),
            _ => Err(ApiError::invalid(format!(
                "resourceVersion is `{}`, expected one from an answer",
                text.chars().take(40).collect::<String>()
            ))),
        }
    }
}

/// A kind of object that can be listed.
pub(crate) trait ListableObject: Serialize + Send + Sync + 'static {
    /// Unique key among the objects of its kind.
    fn key(&self) -> String;

    /// Whether a watch ignores the difference. Fields that are only in the leader's memory, such as
    /// heartbeats, do not count.
    fn same(&self, earlier: &Self) -> bool;
}

fn metadata_key<Spec, Status>(item: &Item<Spec, Status>) -> String {
    let namespace = item.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", item.metadata.name)
}

impl ListableObject for kat_types::api::WorkloadItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for kat_types::api::NamespaceItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for InstanceItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    /// The status of a machine has one revision for all of its instances, so a new resourceVersion
    /// alone is no change.
    fn same(&self, earlier: &Self) -> bool {
        let mut status = self.status.clone();
        status.memory = earlier.status.memory;
        status.cpu = earlier.status.cpu;
        let mut metadata = self.metadata.clone();
        metadata
            .resource_version
            .clone_from(&earlier.metadata.resource_version);
        status == earlier.status && metadata == earlier.metadata && self.spec == earlier.spec
    }
}

impl ListableObject for SecretItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for VolumeItem {
    /// The name of a volume is unique only within its workload.
    fn key(&self) -> String {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}/{}", self.spec.workload, self.metadata.name)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for RouteItem {
    /// Two workloads may have written one route.
    fn key(&self) -> String {
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}/{}", self.spec.workload, self.metadata.name)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for RunItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for VirtualAddressItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for NodeItem {
    fn key(&self) -> String {
        metadata_key(self)
    }

    fn same(&self, earlier: &Self) -> bool {
        let mut status = self.status.clone();
        status
            .last_heartbeat
            .clone_from(&earlier.status.last_heartbeat);
        let mut metadata = self.metadata.clone();
        metadata
            .resource_version
            .clone_from(&earlier.metadata.resource_version);
        status == earlier.status && metadata == earlier.metadata && self.spec == earlier.spec
    }
}

impl ListableObject for Event {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

impl ListableObject for TokenView {
    fn key(&self) -> String {
        self.id.clone()
    }

    fn same(&self, earlier: &Self) -> bool {
        self == earlier
    }
}

/// Selects the items of a list from a view.
pub(crate) type SelectItems<T> = Arc<dyn Fn(&ApiView<'_>) -> Vec<T> + Send + Sync>;

/// Answers a list, or starts a watch of it.
///
/// # Errors
/// [`ApiError::Invalid`] for a malformed resourceVersion, [`ApiError::Gone`] for one that this
/// machine can't continue from, [`ApiError::TooManyStreams`] if too many streams are open.
pub(crate) async fn answer<T: ListableObject>(
    api: &Arc<Api>,
    caller: &Caller,
    query: &ListQuery,
    select: SelectItems<T>,
) -> Result<Response, ApiError> {
    let revision = query.revision()?;
    if !query.watch {
        let snapshot = api.snapshot()?;
        api.history.remember(&snapshot);
        let observed = api.observed();
        let list = List {
            items: select(&api.view(&snapshot, &observed)),
            metadata: list_metadata(snapshot.revision),
        };
        return Ok(Json(list).into_response());
    }
    let held = api.stream(caller)?;
    let mut known = BTreeMap::new();
    if let Some(revision) = revision {
        if !api
            .config
            .handle
            .wait_for_revision(revision, SEEN_WITHIN)
            .await
        {
            return Err(ApiError::Gone(revision));
        }
        if let Some(newest) = api.newest() {
            api.history.remember(&newest);
        }
        let from = api.history.at(revision).ok_or(ApiError::Gone(revision))?;
        known = items(api, &from, &select);
    }
    let mut receiver = api.config.handle.snapshot.clone();
    // The first iteration compares with the present state, whether it is new or not.
    receiver.mark_changed();
    let watch = Watch {
        api: Arc::clone(api),
        caller: caller.clone(),
        select,
        receiver,
        known,
        shown: revision.unwrap_or(0),
        lines: VecDeque::new(),
        bookmark_at: Instant::now() + api.config.limits.bookmark_interval,
        ended: false,
        _held: held,
    };
    let lines = futures_util::stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok::<_, std::convert::Infallible>(line), watch))
    });
    Ok(ndjson(Body::from_stream(lines)))
}

/// A response with a stream of JSON lines.
pub(super) fn ndjson(body: Body) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (StatusCode::OK, headers, body).into_response()
}

/// Replaces the line of an object that can't be encoded as JSON; it ends the watch.
const NOT_SAID: &[u8] = br#"{"type":"ERROR","object":{"error":"Internal","message":"an object cannot be written as JSON"}}"#;

/// One JSON line.
pub(super) fn line<T: Serialize>(value: &T) -> Bytes {
    let text = json::bytes("an object of the watch", value);
    let mut text = text.unwrap_or_else(|_| NOT_SAID.to_vec());
    text.push(b'\n');
    text.into()
}

fn list_metadata(revision: i64) -> ListMetadata {
    ListMetadata {
        resource_version: revision.to_string(),
    }
}

fn items<T: ListableObject>(
    api: &Api,
    snapshot: &Snapshot,
    select: &SelectItems<T>,
) -> BTreeMap<String, T> {
    let observed = api.observed();
    let items = select(&api.view(snapshot, &observed));
    items.into_iter().map(|item| (item.key(), item)).collect()
}

struct Watch<T> {
    api: Arc<Api>,
    caller: Caller,
    select: SelectItems<T>,
    receiver: Receiver<Option<Arc<Snapshot>>>,
    /// The client's state once it has read `lines`.
    known: BTreeMap<String, T>,
    /// The revision of `known`.
    shown: i64,
    lines: VecDeque<Bytes>,
    bookmark_at: Instant,
    ended: bool,
    _held: OpenStreamPermit,
}

enum WatchWakeup {
    Changed,
    Bookmark,
    End,
}

impl<T: ListableObject> Watch<T> {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.ended {
                return None;
            }
            let turn = tokio::select! {
                () = self.api.shutdown.cancelled() => WatchWakeup::End,
                changed = self.receiver.changed() => match changed {
                    Ok(()) => WatchWakeup::Changed,
                    Err(_) => WatchWakeup::End,
                },
                () = tokio::time::sleep_until(self.bookmark_at) => WatchWakeup::Bookmark,
            };
            let snapshot = self.receiver.borrow_and_update().clone();
            match (turn, snapshot) {
                (WatchWakeup::End, _) => self.ended = true,
                (_, None) => self.bookmark_at = Instant::now() + self.interval(),
                (turn, Some(snapshot)) => {
                    self.compare(&snapshot, matches!(turn, WatchWakeup::Bookmark))
                }
            }
        }
    }

    fn interval(&self) -> Duration {
        self.api.config.limits.bookmark_interval
    }

    fn compare(&mut self, snapshot: &Arc<Snapshot>, bookmark: bool) {
        if let Err(error) = still_valid(&self.caller, snapshot, self.api.now()) {
            return self.end_with(error.body());
        }
        if snapshot.revision < self.shown {
            return self.end_with(ApiError::Gone(self.shown).body());
        }
        let now = items(&self.api, snapshot, &self.select);
        let mut lines = VecDeque::new();
        let mut before = std::mem::take(&mut self.known);
        for (key, item) in now {
            match before.remove(&key) {
                None => lines.push_back(self::line(&BorrowedWatchLine::Added(&item))),
                Some(earlier) if !item.same(&earlier) => {
                    lines.push_back(self::line(&BorrowedWatchLine::Modified(&item)));
                }
                Some(_) => {}
            }
            self.known.insert(key, item);
        }
        for gone in before.into_values() {
            lines.push_back(self::line(&BorrowedWatchLine::Deleted(&gone)));
        }
        self.shown = snapshot.revision;
        if bookmark {
            self.api.history.remember(snapshot);
            let metadata = list_metadata(self.shown);
            lines.push_back(self::line(&BorrowedWatchLine::<T>::Bookmark(metadata)));
            self.bookmark_at = Instant::now() + self.interval();
        }
        self.lines = lines;
    }

    fn end_with(&mut self, error: ErrorBody) {
        self.lines
            .push_back(self::line(&BorrowedWatchLine::<T>::Error(error)));
        self.ended = true;
    }
}

/// [`WatchLine`] over borrowed items.
#[derive(Serialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
enum BorrowedWatchLine<'a, T> {
    Added(&'a T),
    Modified(&'a T),
    Deleted(&'a T),
    Bookmark(ListMetadata),
    Error(ErrorBody),
}

/// Checks that [`BorrowedWatchLine`] has the variants of the wire's type.
const _: fn(BorrowedWatchLine<'_, ()>) -> WatchLine<()> = |line| match line {
    BorrowedWatchLine::Added(()) => WatchLine::Added(()),
    BorrowedWatchLine::Modified(()) => WatchLine::Modified(()),
    BorrowedWatchLine::Deleted(()) => WatchLine::Deleted(()),
    BorrowedWatchLine::Bookmark(metadata) => WatchLine::Bookmark(metadata),
    BorrowedWatchLine::Error(body) => WatchLine::Error(body),
};

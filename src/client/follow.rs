//! A list that is kept up to date: list, watch, and list again when the watch breaks.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Client, ClientError, JsonLines, RequestPath, RetryPauses};
use kat_types::api::{
    Event, InstanceItem, Item, List, NamespaceItem, NodeItem, RouteItem, RunItem, SecretItem,
    TokenView, VirtualAddressItem, VolumeItem, WatchLine, WorkloadItem,
};

/// Longest pause before the list is requested again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Capacity of the channel of changes; when it is full, the server waits.
const BUFFER: usize = 64;

/// An item of a list with a unique key.
pub trait KeyedItem {
    /// Namespace and name, or another key that is unique in the list.
    fn key(&self) -> (String, String);
}

fn of_metadata<Spec, Status>(item: &Item<Spec, Status>) -> (String, String) {
    let namespace = item.metadata.namespace.clone().unwrap_or_default();
    (namespace, item.metadata.name.clone())
}

impl KeyedItem for WorkloadItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl KeyedItem for InstanceItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl KeyedItem for NodeItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl KeyedItem for NamespaceItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl KeyedItem for SecretItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl KeyedItem for VirtualAddressItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

/// Two workloads may have one route, of which one is served.
impl KeyedItem for RouteItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl KeyedItem for RunItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

/// The name of a volume is unique only within its workload: `WORKLOAD/VOLUME`.
impl KeyedItem for VolumeItem {
    fn key(&self) -> (String, String) {
        let (namespace, name) = of_metadata(self);
        (namespace, format!("{}/{name}", self.spec.workload))
    }
}

impl KeyedItem for TokenView {
    fn key(&self) -> (String, String) {
        (String::new(), self.id.clone())
    }
}

impl KeyedItem for Event {
    fn key(&self) -> (String, String) {
        (String::new(), self.id.clone())
    }
}

/// A change of a followed list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListChange<T> {
    /// The present list; it replaces everything reported before.
    Listed(Vec<T>),
    /// An item is new or changed.
    Changed(T),
    /// An item was deleted; this is its last state.
    Deleted(T),
    /// The list is unknown for a while, with the reason; a new [`ListChange::Listed`] follows.
    Interrupted(String),
}

/// A followed list. Dropping it ends it.
#[derive(Debug)]
pub struct FollowedList<T> {
    receiver: mpsc::Receiver<Result<ListChange<T>, ClientError>>,
    task: JoinHandle<()>,
}

impl<T> Drop for FollowedList<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T> FollowedList<T> {
    /// Waits for the next change, also over interruptions of the connection. May be dropped and
    /// called again without losing anything.
    ///
    /// # Errors
    /// A [`ClientError`] that a retry can't resolve, such as 403 or 404; for the first list every
    /// error, unless the list is `patient`. No change follows it.
    pub async fn next(&mut self) -> Result<ListChange<T>, ClientError> {
        self.receiver.recv().await.unwrap_or_else(|| {
            Err(ClientError::Answer {
                endpoint: String::new(),
                reason: "the list was followed after its end".to_owned(),
            })
        })
    }
}

impl Client {
    /// Follows a list. A `patient` one waits for the server from the start. Must be called inside a
    /// tokio runtime.
    pub fn follow<T>(&self, list: RequestPath, patient: bool) -> FollowedList<T>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let (sender, receiver) = mpsc::channel(BUFFER);
        let client = if patient {
            self.trying_once()
        } else {
            self.clone()
        };
        let task = tokio::spawn(async move {
            // An error means that the receiver was dropped.
            let _ = run(&client, list, patient, &sender).await;
        });
        FollowedList { receiver, task }
    }
}

type ChangeSender<T> = mpsc::Sender<Result<ListChange<T>, ClientError>>;
struct ReaderGone;

async fn send_change<T>(
    sender: &ChangeSender<T>,
    change: Result<ListChange<T>, ClientError>,
) -> Result<(), ReaderGone> {
    sender.send(change).await.map_err(|_| ReaderGone)
}

async fn run<T: DeserializeOwned>(
    client: &Client,
    route: RequestPath,
    mut patient: bool,
    sender: &ChangeSender<T>,
) -> Result<(), ReaderGone> {
    let mut pauses = RetryPauses::new(client.options.backoff, LONGEST_PAUSE);
    let mut told = false;
    loop {
        let trouble = match client.get::<List<T>>(route.clone()).await {
            Ok(list) => {
                patient = true;
                send_change(sender, Ok(ListChange::Listed(list.items))).await?;
                let version = list.metadata.resource_version;
                match client.watch(route.clone(), &version).await {
                    Ok(stream) => relay(stream, sender, &mut pauses, &mut told).await?,
                    Err(error) => Some(error),
                }
            }
            Err(error) => Some(error),
        };
        match trouble {
            Some(error) if !patient || !error.is_passing() => {
                return send_change(sender, Err(error)).await;
            }
            // If the history is too short, the list is requested again.
            Some(error) if error.code() == "Gone" => {}
            Some(error) if !told => {
                told = true;
                send_change(sender, Ok(ListChange::Interrupted(error.to_string()))).await?;
            }
            _ => {}
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

/// Forwards a watch until it ends; returns the reason, or `None` if the server just ended it.
async fn relay<T: DeserializeOwned>(
    mut stream: JsonLines<WatchLine<T>>,
    sender: &ChangeSender<T>,
    pauses: &mut RetryPauses,
    told: &mut bool,
) -> Result<Option<ClientError>, ReaderGone> {
    loop {
        let change = match stream.next().await {
            Err(error) => return Ok(Some(error)),
            Ok(None) => return Ok(None),
            Ok(Some(WatchLine::Error(body))) => {
                let refusal = super::ApiRefusal::of_stream(body);
                return Ok(Some(ClientError::Refused(Box::new(refusal))));
            }
            Ok(Some(WatchLine::Bookmark(_))) => None,
            Ok(Some(WatchLine::Added(item) | WatchLine::Modified(item))) => {
                Some(ListChange::Changed(item))
            }
            Ok(Some(WatchLine::Deleted(item))) => Some(ListChange::Deleted(item)),
        };
        pauses.reset();
        *told = false;
        if let Some(change) = change {
            send_change(sender, Ok(change)).await?;
        }
    }
}

impl<T> ListChange<T> {
    /// The change for a part of the list. An item that leaves the part is reported as deleted.
    #[must_use]
    pub fn only(self, wanted: impl Fn(&T) -> bool) -> Self {
        match self {
            Self::Listed(items) => {
                Self::Listed(items.into_iter().filter(|item| wanted(item)).collect())
            }
            Self::Changed(item) if !wanted(&item) => Self::Deleted(item),
            other => other,
        }
    }
}

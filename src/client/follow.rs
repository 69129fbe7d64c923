//! A list that is kept up to date: list, watch, and list again when the watch is lost.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{Client, ClientError, JsonLines, RetryPauses, Route};
use kat_types::api::{
    Event, InstanceItem, Item, List, NamespaceItem, NodeItem, SecretItem, TokenView, VolumeItem,
    WatchLine, WorkloadItem,
};

/// Longest pause before the list is asked for again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Changes that wait for their reader; the server waits when it is full.
const BUFFER: usize = 64;

/// What can be told apart in a list.
pub trait Named {
    /// Namespace and name, or what else is unique in the list.
    fn key(&self) -> (String, String);
}

fn of_metadata<Spec, Status>(item: &Item<Spec, Status>) -> (String, String) {
    let namespace = item.metadata.namespace.clone().unwrap_or_default();
    (namespace, item.metadata.name.clone())
}

impl Named for WorkloadItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl Named for InstanceItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl Named for NodeItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl Named for NamespaceItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

impl Named for SecretItem {
    fn key(&self) -> (String, String) {
        of_metadata(self)
    }
}

/// The name of a volume is its own only within its workload: `WORKLOAD/VOLUME`.
impl Named for VolumeItem {
    fn key(&self) -> (String, String) {
        let (namespace, name) = of_metadata(self);
        (namespace, format!("{}/{name}", self.spec.workload))
    }
}

impl Named for TokenView {
    fn key(&self) -> (String, String) {
        (String::new(), self.id.clone())
    }
}

impl Named for Event {
    fn key(&self) -> (String, String) {
        (String::new(), self.id.clone())
    }
}

/// What a followed list tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    /// The list as it is now; it replaces all that was told before.
    Listed(Vec<T>),
    /// An item is new, or changed.
    Changed(T),
    /// An item is gone; this is its last form.
    Deleted(T),
    /// Nothing is known for a while; a new [`Change::Listed`] follows. With the reason.
    Interrupted(String),
}

/// A followed list. Dropping it ends it.
#[derive(Debug)]
pub struct Follow<T> {
    receiver: mpsc::Receiver<Result<Change<T>, ClientError>>,
    task: JoinHandle<()>,
}

impl<T> Drop for Follow<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<T> Follow<T> {
    /// The next change. It waits for as long as nothing changes, and goes on through breaks of the
    /// connection. May be dropped and called again without losing anything.
    ///
    /// # Errors
    /// The [`ClientError`] that no later attempt can mend, such as 403 or 404; of the first list,
    /// every error unless it was made `patient`. Nothing comes after it.
    pub async fn next(&mut self) -> Result<Change<T>, ClientError> {
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
    pub fn follow<T>(&self, list: Route, patient: bool) -> Follow<T>
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
            // An error means that the reader is gone.
            let _ = run(&client, list, patient, &sender).await;
        });
        Follow { receiver, task }
    }
}

type Sender<T> = mpsc::Sender<Result<Change<T>, ClientError>>;
struct ReaderGone;

async fn tell<T>(
    sender: &Sender<T>,
    change: Result<Change<T>, ClientError>,
) -> Result<(), ReaderGone> {
    sender.send(change).await.map_err(|_| ReaderGone)
}

async fn run<T: DeserializeOwned>(
    client: &Client,
    route: Route,
    mut patient: bool,
    sender: &Sender<T>,
) -> Result<(), ReaderGone> {
    let mut pauses = RetryPauses::new(client.options.backoff, LONGEST_PAUSE);
    let mut told = false;
    loop {
        let trouble = match client.get::<List<T>>(route.clone()).await {
            Ok(list) => {
                patient = true;
                tell(sender, Ok(Change::Listed(list.items))).await?;
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
                return tell(sender, Err(error)).await;
            }
            // A history that is too short is no trouble: list again.
            Some(error) if error.code() == "Gone" => {}
            Some(error) if !told => {
                told = true;
                tell(sender, Ok(Change::Interrupted(error.to_string()))).await?;
            }
            _ => {}
        }
        tokio::time::sleep(pauses.pause()).await;
    }
}

/// Passes on a watch until it ends; gives back why, or nothing when the server just ended it.
async fn relay<T: DeserializeOwned>(
    mut stream: JsonLines<WatchLine<T>>,
    sender: &Sender<T>,
    pauses: &mut RetryPauses,
    told: &mut bool,
) -> Result<Option<ClientError>, ReaderGone> {
    loop {
        let change = match stream.next().await {
            Err(error) => return Ok(Some(error)),
            Ok(None) => return Ok(None),
            Ok(Some(WatchLine::Error(body))) => {
                let refusal = super::Refusal::of_stream(body);
                return Ok(Some(ClientError::Refused(Box::new(refusal))));
            }
            Ok(Some(WatchLine::Bookmark(_))) => None,
            Ok(Some(WatchLine::Added(item) | WatchLine::Modified(item))) => {
                Some(Change::Changed(item))
            }
            Ok(Some(WatchLine::Deleted(item))) => Some(Change::Deleted(item)),
        };
        pauses.reset();
        *told = false;
        if let Some(change) = change {
            tell(sender, Ok(change)).await?;
        }
    }
}

impl<T> Change<T> {
    /// The same change for a part of the list. What leaves the part does so as a deletion.
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

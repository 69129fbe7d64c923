//! Data of volumes: rows that programs write, which must be there wherever the program runs next,
//! and calls that move volumes between machines.

use std::{
    collections::BTreeMap,
    os::unix::fs::{MetadataExt, chown},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use hyper::{Request, header};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    world::{Machine, World},
};
use kat_agent::{CopySource, DesiredList, IncomingPieces, OwnVolumes};
use kat_api::{CopyStream, VolumeCopies};
use kat_types::{
    store::{keys, records::VolumeRecord},
    volumes::MoveRecord,
};

/// Delay between the agent's list and the list of its volume moves and removals. These read and write disks
/// outside the event loop; with the delay, no order of events depends on how long that takes.
const APART: Duration = Duration::from_millis(7);
/// Calls until the mover gives up.
const TRIES: usize = 6;
/// Pause between two calls.
const PAUSE: Duration = Duration::from_secs(3);
/// One in this many copies is interrupted.
const BREAKS: u64 = 3;

/// Rows that programs wrote, by volume.
#[derive(Default)]
pub(crate) struct Rows {
    /// The revision that created the volume's record, and the number of rows written since.
    written: BTreeMap<String, (i64, u64)>,
}

impl World {
    /// Every program that may run writes one more row to its data. A program that finds fewer rows
    /// than were written before is a violation.
    pub(crate) fn write_rows(&mut self, live: &BTreeMap<String, String>) {
        for (unit, on) in live {
            let Some(known) = self.monitor.assigned(unit) else {
                continue;
            };
            let machine = self.machines.iter().find(|machine| machine.name == *on);
            let machine = machine.unwrap();
            // A program finds no space for a row.
            if machine.way.now().disk_full && !self.shared {
                continue;
            }
            // A leader may have replaced this instance by now.
            if known.stops && !machine.ends_in_time() {
                continue;
            }
            for volume in &known.writes {
                if self.in_its_hands.contains(volume) || self.forges(on) {
                    continue;
                }
                let key = keys::volume(volume);
                let items = self.store.peek(&key).items;
                let Some(record) = items.iter().find(|item| item.key == key) else {
                    continue;
                };
                let file = rows_of(machine, volume);
                let found = std::fs::read_to_string(&file);
                let found: u64 = found.map_or(0, |text| text.parse().unwrap());
                let since = record.create_revision;
                let (began, rows) = self.rows.written.get(volume).copied().unwrap_or_default();
                let rows = if began == since { rows } else { 0 };
                if found < rows {
                    self.monitor.violated(format!(
                        "{unit} on {on} finds {found} of {rows} rows in {volume}: data is lost"
                    ));
                    return;
                }
                let folder = file.parent().unwrap();
                let Ok(owner) = std::fs::metadata(folder) else {
                    self.monitor
                        .violated(format!("{unit} runs on {on} without {volume}"));
                    return;
                };
                std::fs::write(&file, (found + 1).to_string()).unwrap();
                chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
                self.rows.written.insert(volume.clone(), (since, found + 1));
            }
        }
    }

    /// Removes the rows of all volumes from all disks; true if there were any.
    pub(crate) fn forget_rows(&self) -> bool {
        let volumes = self.rows.written.keys();
        let files = volumes.flat_map(|volume| {
            let machines = self.machines.iter();
            machines.map(move |machine| rows_of(machine, volume))
        });
        files
            .filter(|file| std::fs::remove_file(file).is_ok())
            .count()
            > 0
    }

    /// Whether the machine has a folder of the volume.
    pub(crate) fn has_folder(&self, machine: &str, volume: &str) -> bool {
        let mut machines = self.machines.iter();
        machines.any(|one| one.name == machine && folder_of(one, volume).exists())
    }

    /// What a machine says that has no folder of a volume: the folder above all volumes may be missing
    /// too, until another volume is made there.
    pub(crate) fn missing_folder(&self, machine: &str, volume: &str) -> Option<String> {
        let machine = self.machines.iter().find(|one| one.name == machine)?;
        let above = machine.root.join(VOLUMES);
        let missing = match above.exists() {
            true => folder_of(machine, volume),
            false => above,
        };
        let missing = missing.display();
        Some(format!("{missing}: there is no such file or folder"))
    }

    pub(crate) fn volumes(&self) -> Vec<(String, VolumeRecord)> {
        let items = self.store.peek(keys::VOLUMES).items.into_iter();
        let volumes = items.map(|item| {
            let name = item.key.strip_prefix(keys::VOLUMES).unwrap().to_owned();
            (name, serde_json::from_slice(&item.value).unwrap())
        });
        volumes.collect()
    }
}

/// The folder of all volumes below a machine's root.
const VOLUMES: &str = "var/lib/kat/volumes";

fn folder_of(machine: &Machine, volume: &str) -> PathBuf {
    machine.root.join(VOLUMES).join(volume)
}

fn rows_of(machine: &Machine, volume: &str) -> PathBuf {
    folder_of(machine, volume).join("rows")
}

/// Calls the API to move volumes.
#[derive(Clone)]
pub(crate) struct Mover {
    net: Arc<Net>,
    monitor: Arc<Monitor>,
    busy: Arc<AtomicBool>,
}

impl Mover {
    pub(crate) fn new(net: &Arc<Net>, monitor: &Arc<Monitor>) -> Self {
        Self {
            net: Arc::clone(net),
            monitor: Arc::clone(monitor),
            busy: Arc::default(),
        }
    }

    /// Asks `leader` to move a volume to `to`, or to cancel its move. Does nothing while the
    /// previous call is in flight.
    pub(crate) fn ask(&self, leader: &str, volume: &str, to: Option<&str>) {
        if self.busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let (namespace, rest) = volume.split_once('/').unwrap();
        let (workload, name) = rest.split_once('/').unwrap();
        let path = format!("/v1alpha1/n/{namespace}/workloads/{workload}/volumes/{name}/move");
        let wish = to.map(|to| json!({"to": to}).to_string());
        let request = move || match &wish {
            Some(wish) => Request::put(&path)
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(wish.clone()))
                .unwrap(),
            None => Request::delete(&path).body(Body::empty()).unwrap(),
        };
        let words = format!("{volume}, which is to go to {to:?}");
        let (mover, leader) = (self.clone(), leader.to_owned());
        tokio::spawn(async move {
            for _ in 0..TRIES {
                let leads = mover.monitor.leader();
                let leads = leads.and_then(|process| Some(process.split('.').next()?.to_owned()));
                let leader = leads.unwrap_or_else(|| leader.clone());
                let answer = mover.net.call(None, &leader, request(), || ()).await;
                let note = format!("{leader} answers {words}: {answer:?}");
                mover.monitor.note(&note);
                if answer.is_ok_and(|status| !status.is_server_error()) {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
            mover.busy.store(false, Ordering::Relaxed);
        });
    }
}

/// A copy of the lists for the agent's moves and removals of volumes, delayed by [`APART`].
pub(crate) fn apart(mut lists: watch::Receiver<DesiredList>) -> watch::Receiver<DesiredList> {
    let (sender, receiver) = watch::channel(lists.borrow_and_update().clone());
    tokio::spawn(async move {
        while lists.changed().await.is_ok() {
            tokio::time::sleep(APART).await;
            let newest = lists.borrow_and_update().clone();
            sender.send_replace(newest);
        }
    });
    receiver
}

/// The volumes that each machine can send to others, by machine.
#[derive(Default)]
pub(crate) struct Senders {
    open: Mutex<BTreeMap<String, (Arc<OwnVolumes>, CancellationToken)>>,
    copies: AtomicU64,
    /// No copy is interrupted any more.
    healed: AtomicBool,
}

impl Senders {
    pub(crate) fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn put(&self, machine: &str, own: OwnVolumes, closed: &CancellationToken) {
        let sender = (Arc::new(own), closed.clone());
        self.open.lock().insert(machine.to_owned(), sender);
    }

    fn get(&self, machine: &str) -> Option<Arc<OwnVolumes>> {
        let open = self.open.lock();
        let (own, closed) = open.get(machine)?;
        (!closed.is_cancelled()).then(|| Arc::clone(own))
    }
}

/// Copies volumes from other machines over the simulated network.
pub(crate) struct Line {
    pub to: String,
    pub net: Arc<Net>,
    pub monitor: Arc<Monitor>,
}

#[async_trait]
impl CopySource for Line {
    async fn open(
        &self,
        volume: &str,
        wish: &MoveRecord,
    ) -> Result<Box<dyn IncomingPieces>, String> {
        let way = self.net.reach(&self.to, &wish.from);
        way.await
            .map_err(|error| format!("{}: {error}", wish.from))?;
        let senders = &self.net.senders;
        let sender = senders.get(&wish.from);
        let sender = sender.ok_or_else(|| format!("{} refuses", wish.from))?;
        let pieces = sender.open(&self.to, volume, &wish.id);
        let pieces = pieces.map_err(|error| error.to_string())?;
        let number = senders.copies.fetch_add(1, Ordering::Relaxed);
        let breaks = number.is_multiple_of(BREAKS) && !senders.healed.load(Ordering::Relaxed);
        let left = breaks.then_some(1);
        let note = format!("{} sends {volume} to {}, {left:?}", wish.from, self.to);
        self.monitor.note(&note);
        Ok(Box::new(Copy { pieces, left }))
    }
}

struct Copy {
    pieces: CopyStream,
    /// Pieces until the copy is interrupted; `None` for a copy that is not.
    left: Option<u32>,
}

#[async_trait]
impl IncomingPieces for Copy {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        match &mut self.left {
            Some(0) => return Err("connection reset".to_owned()),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(self.pieces.next().await)
    }
}

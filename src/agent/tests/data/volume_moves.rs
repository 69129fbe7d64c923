//! A volume that moves between two machines, each a folder. The copy is complete or absent, only
//! the list starts it, and it replaces no unknown data.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown},
    sync::atomic::AtomicUsize,
};

use bytes::Bytes;
use futures_util::StreamExt;

use super::*;
use crate::volumes::moves::{CopySource, IncomingPieces, OwnVolumes, VolumeMoves};
use kat_api::{ApiError, CopyStream, VolumeCopies};
use kat_daemon::watchdog::LoopPulses;
use kat_types::{
    api::{VolumeMovePhase as Phase, VolumeMoveReport},
    assignment::AssignedVolume,
    resource::AgentConfig,
    volumes::{MoveRecord, RemovalRecord},
};

const VOLUME: &str = "default/db/data";
const BASE: &str = "/var/lib/kat/volumes";

struct OneMachine {
    name: &'static str,
    root: tempfile::TempDir,
    volumes: Arc<Volumes>,
    lists: watch::Sender<DesiredList>,
    statuses: Statuses,
}

impl OneMachine {
    fn new(name: &'static str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(&Root::new(root.path()), BASE, &AgentConfig::default());
        fs::create_dir_all(root.path().join("var/lib/kat/volumes")).unwrap();
        Self {
            name,
            root,
            volumes: Arc::new(volumes),
            lists: watch::Sender::new(DesiredList::default()),
            statuses: Statuses::default(),
        }
    }

    fn sender(&self) -> OwnVolumes {
        OwnVolumes {
            node: self.name.to_owned(),
            lists: self.lists.subscribe(),
            volumes: Arc::clone(&self.volumes),
        }
    }

    /// Runs the part of the agent that receives volumes.
    fn take(&self, from: &Self, breaks: usize) -> (JoinHandle<()>, CancellationToken) {
        let moves = VolumeMoves {
            node: self.name.to_owned(),
            lists: self.lists.subscribe(),
            volumes: Arc::clone(&self.volumes),
            statuses: self.statuses.clone(),
            source: Arc::new(Line {
                to: self.name,
                from: from.sender(),
                breaks: AtomicUsize::new(breaks),
            }),
            pulses: LoopPulses::default(),
        };
        let cancel = CancellationToken::new();
        (tokio::spawn(moves.run(cancel.clone())), cancel)
    }

    fn list(&self, desired: Option<&MoveRecord>, used: bool) {
        let wishes = desired.map(|desired| (VOLUME.to_owned(), desired.clone()));
        let user = database();
        let listed = DesiredList {
            known: true,
            confirmed: true,
            current: true,
            desired: Arc::new(DesiredState {
                assignments: match used {
                    true => BTreeMap::from([(user.instance.clone(), user)]),
                    false => BTreeMap::new(),
                },
                moves: wishes.into_iter().collect(),
                ..DesiredState::default()
            }),
            ..DesiredList::default()
        };
        self.lists.send_replace(listed);
    }

    fn base(&self) -> PathBuf {
        self.root.path().join("var/lib/kat/volumes")
    }

    fn folder(&self) -> PathBuf {
        self.base().join(VOLUME)
    }

    fn copies(&self) -> usize {
        fs::read_dir(self.base().join(".kat-moves")).map_or(0, Iterator::count)
    }

    async fn until(&self, what: &str, is: impl Fn(Phase, &str) -> bool) {
        let mut said = Vec::new();
        for _ in 0..1000 {
            said = self.statuses.moves();
            if said.iter().any(|one| is(one.phase, &one.message)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what}: {said:?}");
    }
}

/// The connection between two machines, which breaks in the middle `breaks` times.
struct Line {
    to: &'static str,
    from: OwnVolumes,
    breaks: AtomicUsize,
}

struct Way {
    stream: CopyStream,
    left: usize,
}

#[async_trait]
impl CopySource for Line {
    async fn open(
        &self,
        volume: &str,
        desired: &MoveRecord,
    ) -> Result<Box<dyn IncomingPieces>, String> {
        let stream = self.from.open(self.to, volume, &desired.id);
        let stream = stream.map_err(|error| error.to_string())?;
        let less = |left: usize| Some(left.saturating_sub(1));
        let breaks = self
            .breaks
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        let left = if breaks.unwrap_or(0) > 0 {
            2
        } else {
            usize::MAX
        };
        Ok(Box::new(Way { stream, left }))
    }
}

#[async_trait]
impl IncomingPieces for Way {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        if self.left == 0 {
            // The receiver has read everything up to the break by then.
            tokio::time::sleep(Duration::from_millis(100)).await;
            return Err("the line is cut".to_owned());
        }
        self.left -= 1;
        Ok(self.stream.next().await)
    }
}

fn database() -> Assignment {
    let mut one = assignment(0, "db");
    one.volumes = vec![AssignedVolume {
        definition: serde_json::from_value(serde_json::json!({"name": "data"})).unwrap(),
        folder: Some(VOLUME.to_owned()),
        made: true,
    }];
    one
}

fn desired(id: &str) -> MoveRecord {
    MoveRecord {
        schema: 1,
        id: id.to_owned(),
        from: "n1".to_owned(),
        to: "n2".to_owned(),
        index: 0,
        place: false,
        replaces: false,
    }
}

/// Two machines, of which the first has the data.
fn machines() -> (OneMachine, OneMachine) {
    let (one, two) = (OneMachine::new("n1"), OneMachine::new("n2"));
    let user = assignment(0, "db").user;
    fs::create_dir_all(one.folder().join("sub")).unwrap();
    fs::write(one.folder().join("sub/row"), "1").unwrap();
    fs::write(one.folder().join("large"), vec![7; 2 << 20]).unwrap();
    for path in ["", "sub", "sub/row", "large"] {
        chown(one.folder().join(path), Some(user.uid), Some(user.uid)).unwrap();
    }
    (one, two)
}

#[tokio::test]
async fn a_copy_is_taken_and_put_in_its_place_when_it_is_the_data() {
    let (one, two) = machines();
    let (running, cancel) = two.take(&one, 1);
    one.list(Some(&desired("a")), false);
    two.list(Some(&desired("a")), false);
    two.until("a break is told", |_, message| message == "the line is cut")
        .await;
    two.until("a copy", |phase, _| phase == Phase::Copied).await;
    assert!(!two.folder().exists() && one.folder().exists());
    let moves = fs::metadata(two.base().join(".kat-moves")).unwrap();
    assert_eq!((moves.mode() & 0o7777, moves.uid()), (0o700, 0));
    assert_eq!(two.volumes.all_made(), Vec::<String>::new());
    cancel.cancel();
    running.await.unwrap();

    // A new agent process finds the complete copy and does not request it again.
    one.list(None, false);
    let (running, cancel) = two.take(&one, 0);
    two.until("the copy of before", |phase, _| phase == Phase::Copied)
        .await;
    let place = MoveRecord {
        place: true,
        ..desired("a")
    };
    two.list(Some(&place), false);
    two.until("its place", |phase, _| phase == Phase::Placed)
        .await;
    assert_eq!(fs::read(two.folder().join("sub/row")).unwrap(), b"1");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&two.base().join("default")), 0o711);
    assert_eq!(mode(&two.base().join("default/db")), 0o710);
    assert_eq!(two.volumes.all_made(), [VOLUME]);
    cancel.cancel();
    running.await.unwrap();
    // An agent process that starts after the placement reports it too.
    let (running, cancel) = two.take(&one, 0);
    two.list(Some(&place), false);
    two.until("its place again", |phase, _| phase == Phase::Placed)
        .await;
    two.list(None, false);
    for _ in 0..500 {
        if two.copies() == 0 && two.statuses.moves().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!((two.copies(), two.statuses.moves().len()), (0, 0));
    assert!(two.folder().join("large").exists());
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_copy_that_nobody_wants_goes_and_only_a_confirmed_list_says_so() {
    let (one, two) = machines();
    let (running, cancel) = two.take(&one, 0);
    one.list(Some(&desired("a")), false);
    two.list(Some(&desired("a")), false);
    two.until("a copy", |phase, _| phase == Phase::Copied).await;
    two.lists.send_replace(DesiredList {
        known: true,
        ..DesiredList::default()
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(two.copies(), 1);
    two.list(None, false);
    for _ in 0..500 {
        if two.copies() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(two.copies(), 0);
    assert!(one.folder().join("large").exists());
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_placed_copy_replaces_an_existing_folder_only_if_the_leader_asks_for_it() {
    let (one, two) = machines();
    fs::create_dir_all(two.folder()).unwrap();
    fs::write(two.folder().join("other"), "x").unwrap();
    let uid = assignment(0, "db").user.uid;
    chown(two.folder(), Some(uid), Some(uid)).unwrap();
    let (running, cancel) = two.take(&one, 0);
    one.list(Some(&desired("a")), false);
    // The refusal comes before the copy is reported, and so before the move can make the copy the
    // volume's data.
    two.list(Some(&desired("a")), false);
    two.until("a refusal", |phase, message| {
        assert_ne!(phase, Phase::Copied);
        message.contains("a folder is there already, which KAT has not kept")
    })
    .await;
    fs::rename(two.folder(), two.base().join("aside")).unwrap();
    two.until("a copy", |phase, _| phase == Phase::Copied).await;
    fs::rename(two.base().join("aside"), two.folder()).unwrap();
    let mut place = MoveRecord {
        place: true,
        ..desired("a")
    };
    two.list(Some(&place), false);
    two.until("a refusal", |_, message| {
        message.contains("a folder is there already, which KAT has not kept")
    })
    .await;
    assert!(two.folder().join("other").exists());
    assert_eq!(two.copies(), 1);
    place.replaces = true;
    two.list(Some(&place), false);
    two.until("its place", |phase, _| phase == Phase::Placed)
        .await;
    assert!(!two.folder().join("other").exists() && two.folder().join("large").exists());
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_copy_that_nothing_has_run_with_makes_room_and_goes_when_that_is_asked() {
    let (one, two) = machines();
    let (running, cancel) = two.take(&one, 0);
    for id in ["a", "b"] {
        one.list(Some(&desired(id)), false);
        two.list(Some(&desired(id)), false);
        let of_this = |said: &[VolumeMoveReport], phase| {
            said.iter().any(|one| one.id == id && one.phase == phase)
        };
        for (place, phase) in [(false, Phase::Copied), (true, Phase::Placed)] {
            let desired = MoveRecord {
                place,
                ..desired(id)
            };
            two.list(Some(&desired), false);
            for _ in 0..1000 {
                if of_this(&two.statuses.moves(), phase) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(of_this(&two.statuses.moves(), phase), "{id} {phase:?}");
        }
    }
    cancel.cancel();
    running.await.unwrap();
    let removal = RemovalRecord {
        schema: 1,
        asked: jiff::Timestamp::UNIX_EPOCH,
        index: 0,
        made: true,
        copy: true,
        unsure: true,
        forget: false,
    };
    // A new agent process also knows that the copy is unused.
    let again = Volumes::new(&Root::new(two.root.path()), BASE, &AgentConfig::default());
    again.remove(VOLUME, removal).unwrap();
    assert!(!two.folder().exists());
    // A folder that no move has placed stays.
    fs::create_dir_all(two.folder()).unwrap();
    chown(two.folder(), Some(assignment(0, "db").user.uid), None).unwrap();
    again.remove(VOLUME, removal).unwrap();
    assert!(two.folder().exists());
    // A placed folder that an instance has run with stays too.
    again.note_placed(VOLUME);
    again.prepare(&database()).unwrap();
    again.remove(VOLUME, removal).unwrap();
    assert!(two.folder().exists() && !again.is_unused(VOLUME));
}

#[tokio::test]
async fn a_copy_that_was_to_be_placed_and_is_lost_is_told() {
    let (one, two) = machines();
    let (running, cancel) = two.take(&one, 0);
    let place = MoveRecord {
        place: true,
        ..desired("a")
    };
    two.list(Some(&place), false);
    two.until("a loss", |phase, message| {
        phase == Phase::Lost && message.contains("is gone")
    })
    .await;
    cancel.cancel();
    running.await.unwrap();
}

/// A request that is not in the list, or comes too early, is refused.
#[tokio::test]
async fn a_machine_sends_a_volume_to_whom_its_list_says_and_when_it_is_free() {
    let (one, _) = machines();
    let sender = one.sender();
    let refused = |machine: &str, volume: &str, id: &str| match sender.open(machine, volume, id) {
        Ok(_) => panic!("{machine} gets {volume} for {id}"),
        Err(error) => error,
    };
    let error = refused("n2", VOLUME, "a");
    assert!(
        matches!(error, ApiError::Unavailable(_)),
        "the list is not confirmed: {error}"
    );
    one.list(None, false);
    assert!(matches!(
        refused("n2", VOLUME, "a"),
        ApiError::Forbidden { .. }
    ));
    one.list(Some(&desired("a")), true);
    let error = refused("n2", VOLUME, "a").to_string();
    assert!(
        error.contains("may still write to volume default/db/data"),
        "{error}"
    );
    one.list(Some(&desired("a")), false);
    for (machine, volume, id) in [
        ("n3", VOLUME, "a"),
        ("n2", VOLUME, "b"),
        ("n2", "default/db/other", "a"),
    ] {
        assert!(matches!(
            refused(machine, volume, id),
            ApiError::Forbidden { .. }
        ));
    }
    let elsewhere = MoveRecord {
        from: "n3".to_owned(),
        ..desired("a")
    };
    one.list(Some(&elsewhere), false);
    refused("n2", VOLUME, "a");
    one.list(Some(&desired("a")), false);
    assert!(sender.open("n2", VOLUME, "a").is_ok());
}

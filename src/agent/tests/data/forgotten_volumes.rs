//! Data of volumes that a person gave up because its disk is missing, and what becomes of it when
//! the disk returns.

use std::{fs, os::unix::fs::chown};

use jiff::Timestamp;

use super::{
    volumes::{database, volumes},
    *,
};
use crate::{tests::hung_disk::OwnDisk, volumes::removals::VolumeRemovals};
use kat_daemon::watchdog::LoopPulses;
use kat_host::volumes::VolumeError;
use kat_types::{
    reason::Reason,
    volumes::{MoveRecord, RemovalRecord, removal_id},
};

const VOLUME: &str = "default/db/data";

fn removal(db: &Assignment) -> RemovalRecord {
    RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index: db.user.index,
        made: true,
        copy: false,
        unsure: false,
        forget: false,
    }
}

fn forgetting(db: &Assignment) -> RemovalRecord {
    RemovalRecord {
        forget: true,
        ..removal(db)
    }
}

/// File systems stamp files with a clock of some milliseconds.
fn until_files_are_younger() {
    std::thread::sleep(Duration::from_millis(30));
}

/// A machine whose disk of volumes can be taken away and put back: a folder with another name.
struct Machine {
    root: tempfile::TempDir,
    db: Assignment,
}

impl Machine {
    /// The disk has the data of `default/db/data`, with one row.
    fn with_data() -> Self {
        let root = tempfile::tempdir().unwrap();
        let machine = Self {
            root,
            db: database(false),
        };
        machine.volumes().prepare(&machine.db).unwrap();
        fs::write(machine.folder().join("row"), "of the old volume").unwrap();
        until_files_are_younger();
        machine
    }

    /// As the agent reads its list at its start.
    fn volumes(&self) -> Volumes {
        volumes(self.root.path(), &[])
    }

    fn base(&self) -> PathBuf {
        self.root.path().join("var/lib/kat/volumes")
    }

    fn folder(&self) -> PathBuf {
        self.base().join(VOLUME)
    }

    fn take_disk(&self) {
        fs::rename(self.base(), self.root.path().join("disk")).unwrap();
        fs::create_dir(self.base()).unwrap();
    }

    /// What was made at the base path meanwhile is below the mount of the disk that returns.
    fn return_disk(&self) {
        fs::rename(self.base(), self.root.path().join("below")).unwrap();
        fs::rename(self.root.path().join("disk"), self.base()).unwrap();
    }
}

#[test]
fn nothing_is_given_up_while_that_cannot_be_recorded() {
    let machine = Machine::with_data();
    machine.take_disk();
    let list = machine.root.path().join("var/lib/kat/volumes.json");
    let kept = fs::read(&list).unwrap();
    let one = machine.volumes();
    fs::remove_file(&list).unwrap();
    fs::create_dir(&list).unwrap();
    one.remove(VOLUME, forgetting(&machine.db)).unwrap_err();
    fs::remove_dir(&list).unwrap();
    fs::write(&list, kept).unwrap();
    one.remove(VOLUME, forgetting(&machine.db)).unwrap();
    machine.return_disk();
    for volumes in [one, machine.volumes()] {
        let trouble = volumes.prepare(&machine.db).unwrap_err();
        assert_eq!(trouble.reason, Reason::VolumeForgotten);
    }
}

#[test]
fn data_that_was_given_up_is_neither_used_nor_removed_when_its_disk_returns() {
    let machine = Machine::with_data();
    machine.take_disk();
    let one = machine.volumes();
    let error = one.remove(VOLUME, removal(&machine.db)).unwrap_err();
    assert!(matches!(error, VolumeError::Missing(_)), "{error}");
    one.remove(VOLUME, forgetting(&machine.db)).unwrap();
    assert!(one.all_made().is_empty());
    // A request that comes again, since its report was lost, is done too.
    one.remove(VOLUME, forgetting(&machine.db)).unwrap();

    // Another volume of that name and user begins where the disk would be.
    one.prepare(&machine.db).unwrap();
    fs::write(machine.folder().join("row"), "of the new volume").unwrap();
    machine.volumes().prepare(&machine.db).unwrap();

    machine.return_disk();
    for volumes in [one, machine.volumes()] {
        let trouble = volumes.prepare(&machine.db).unwrap_err();
        assert_eq!(trouble.reason, Reason::VolumeForgotten);
        assert!(
            trouble.message.contains("data that was given up on"),
            "{}",
            trouble.message
        );
        let beside = volumes.prepare_beside(&machine.db).unwrap_err();
        assert_eq!(beside.reason, Reason::VolumeForgotten);
        let error = volumes.remove(VOLUME, removal(&machine.db)).unwrap_err();
        assert!(matches!(error, VolumeError::Forgotten { .. }), "{error}");
        // The request that gave the data up comes again, since its report was lost.
        volumes.remove(VOLUME, forgetting(&machine.db)).unwrap();
        assert!(volumes.open_volume(VOLUME).is_err(), "it is sent nowhere");
        let coming = MoveRecord {
            schema: 1,
            id: "one".to_owned(),
            from: "n2".to_owned(),
            to: "n1".to_owned(),
            index: machine.db.user.index,
            place: false,
            replaces: true,
        };
        assert!(volumes.check_place(VOLUME, &coming).is_err());
    }
    let row = fs::read_to_string(machine.folder().join("row")).unwrap();
    assert_eq!(row, "of the old volume");

    // A person puts the new volume's folder on the disk that has returned.
    fs::rename(machine.folder(), machine.root.path().join("aside")).unwrap();
    let below = machine.root.path().join("below").join(VOLUME);
    fs::create_dir(machine.folder()).unwrap();
    chown(machine.folder(), Some(machine.db.user.uid), None).unwrap();
    fs::copy(below.join("row"), machine.folder().join("row")).unwrap();
    machine.volumes().prepare(&machine.db).unwrap();
    machine
        .volumes()
        .remove(VOLUME, removal(&machine.db))
        .unwrap();
    assert!(!machine.folder().exists());
}

#[test]
fn data_whose_disk_returned_before_the_machine_heard_that_it_was_given_up_is_removed() {
    let machine = Machine::with_data();
    let volumes = machine.volumes();
    volumes.remove(VOLUME, forgetting(&machine.db)).unwrap();
    assert!(!machine.folder().exists());
    volumes.prepare(&machine.db).unwrap();
}

#[test]
fn data_of_another_user_is_not_given_up() {
    let machine = Machine::with_data();
    let volumes = machine.volumes();
    let other = RemovalRecord {
        index: machine.db.user.index + 1,
        ..forgetting(&machine.db)
    };
    let error = volumes.remove(VOLUME, other).unwrap_err();
    assert!(matches!(error, VolumeError::Foreign { .. }), "{error}");
    for name in ["../db/data", "default/db", "/etc/kat/x"] {
        volumes.remove(name, forgetting(&machine.db)).unwrap_err();
    }
    assert_eq!(volumes.all_made(), [VOLUME]);
}

#[test]
fn a_kept_copy_on_a_disk_that_is_not_mounted_is_not_taken_as_removed() {
    let root = tempfile::tempdir().unwrap();
    let db = database(false);
    let base = root.path().join("var/lib/kat/volumes");
    let disk = OwnDisk::mount(&base, &root.path().join("memory"));
    let one = volumes(root.path(), &[]);
    one.prepare(&db).unwrap();
    drop(disk);
    assert!(base.exists(), "it is the empty folder of the mount");
    let copy = RemovalRecord {
        copy: true,
        ..removal(&db)
    };
    for volumes in [one, volumes(root.path(), &[])] {
        let error = volumes.remove(VOLUME, copy).unwrap_err();
        assert!(matches!(error, VolumeError::Missing(_)), "{error}");
        assert_eq!(volumes.all_made(), [VOLUME]);
    }
    let forget = RemovalRecord {
        forget: true,
        ..copy
    };
    let after = volumes(root.path(), &[]);
    after.remove(VOLUME, forget).unwrap();
    assert!(after.all_made().is_empty());
}

#[tokio::test]
async fn a_machine_reports_missing_data_and_gives_it_up_as_soon_as_it_is_asked_to() {
    let machine = Machine::with_data();
    machine.take_disk();
    let lists = watch::Sender::new(DesiredList::default());
    let statuses = Statuses::default();
    let cancel = CancellationToken::new();
    let removals = VolumeRemovals {
        lists: lists.subscribe(),
        volumes: Arc::new(machine.volumes()),
        statuses: statuses.clone(),
        pulses: LoopPulses::default(),
    };
    let running = tokio::spawn(removals.run(cancel.clone()));
    let send = |record: RemovalRecord| {
        lists.send_replace(DesiredList {
            known: true,
            confirmed: true,
            current: true,
            desired: Arc::new(DesiredState {
                removals: BTreeMap::from([(VOLUME.to_owned(), record)]),
                ..DesiredState::default()
            }),
            ..DesiredList::default()
        });
    };
    let until = async |is: &dyn Fn() -> bool| {
        for _ in 0..500 {
            if is() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("waited in vain");
    };
    let id = removal_id(VOLUME, Timestamp::UNIX_EPOCH);
    send(removal(&machine.db));
    until(&|| statuses.missing() == [id.clone()]).await;
    let told = statuses.not_removed().join("; ");
    assert!(told.contains("its disk may be missing"), "{told}");
    assert!(statuses.removed().is_empty());
    // The next try of the same removal would come only after half a minute.
    send(forgetting(&machine.db));
    until(&|| statuses.removed() == [id.clone()]).await;
    assert!(statuses.missing().is_empty() && statuses.not_removed().is_empty());
    cancel.cancel();
    running.await.unwrap();
}

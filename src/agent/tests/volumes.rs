//! What an instance mounts: made ready before it starts, never empty in the place of data, and removed when asked.

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
};

use jiff::Timestamp;

use super::*;
use crate::{
    agent::{
        fence::{Fence, Memory},
        removals::Removals,
    },
    plan::{AssignedVolume, RemovalRecord, removal_id},
    pulse::Pulses,
    resource::{EnsureType, HostMount, SimpleClusterStorage, Volume, VolumeMount},
};

fn volume(name: &str) -> Volume {
    serde_json::from_value(serde_json::json!({"name": name})).unwrap()
}

fn mount(name: &str, sub_path: Option<&str>) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: format!("/{name}"),
        sub_path: sub_path.map(str::to_owned),
        read_only: false,
    }
}

/// An instance with its data in `default/db/data`.
fn database(made: bool) -> Assignment {
    let mut one = assignment(0, "db");
    one.container.volume_mounts = vec![mount("data", None)];
    one.volumes = vec![AssignedVolume {
        definition: Volume {
            simple_cluster_storage: Some(SimpleClusterStorage {}),
            ..volume("data")
        },
        folder: Some("default/db/data".to_owned()),
        made,
    }];
    one
}

/// An instance that mounts a path of the machine.
fn hosted(path: &str, kind: Option<EnsureType>) -> Assignment {
    let mut one = assignment(0, "db");
    one.container.volume_mounts = vec![mount("conf", None)];
    one.volumes = vec![AssignedVolume {
        definition: Volume {
            host_mount: Some(HostMount {
                host_path: path.to_owned(),
                ensure_type: kind,
            }),
            ..volume("conf")
        },
        folder: None,
        made: false,
    }];
    one
}

fn volumes(root: &Path, allow: &[&str]) -> Volumes {
    fs::create_dir_all(root.join("var/lib/kat")).unwrap();
    let config = AgentConfig {
        host_mount_allow: allow.iter().map(|path| (*path).to_owned()).collect(),
        ..AgentConfig::default()
    };
    Volumes::new(root, "/var/lib/kat/volumes", &config)
}

fn look(path: PathBuf) -> (u32, u32, u32) {
    let found = fs::symlink_metadata(path).unwrap();
    (found.uid(), found.gid(), found.mode() & 0o7777)
}

#[tokio::test(start_paused = true)]
async fn the_folder_is_there_before_the_program_and_its_own() {
    let bench = Bench::new();
    fs::create_dir_all(bench.root.path().join("var/lib/kat")).unwrap();
    let db = database(false);
    bench.list(true, std::slice::from_ref(&db));
    bench.soon().await;
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    let base = bench.root.path().join("var/lib/kat/volumes");
    let uid = db.user.uid;
    assert_eq!(look(base.join("default")), (0, 0, 0o711));
    assert_eq!(look(base.join("default/db")), (0, uid, 0o710));
    assert_eq!(look(base.join("default/db/data")), (uid, uid, 0o2777));
    let unit = bench
        .units(&db)
        .join(format!("kat-default-{}.container", db.instance));
    let text = fs::read_to_string(unit).unwrap();
    let line = "Volume=/var/lib/kat/volumes/default/db/data:/data\n";
    assert!(text.contains(line), "{text}");
    assert!(
        !text.contains("WantedBy="),
        "it asks before it starts at boot"
    );
}

#[tokio::test(start_paused = true)]
async fn data_that_is_gone_is_waited_for_and_not_begun_anew() {
    let bench = Bench::new();
    fs::create_dir_all(bench.root.path().join("var/lib/kat")).unwrap();
    let db = database(true);
    bench.list(true, std::slice::from_ref(&db));
    bench.later(Duration::from_secs(20)).await;
    let (phase, reason, message) = bench.said(&db.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "VolumeMissing")
    );
    assert!(
        message.contains("/var/lib/kat/volumes/default/db/data"),
        "{message}"
    );
    assert_eq!(bench.calls(&db, "start kat-default"), 0);
    let folder = bench
        .root
        .path()
        .join("var/lib/kat/volumes/default/db/data");
    assert!(!folder.exists());
    // Its disk is back.
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(db.user.subordinate_start + 998), None).unwrap();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    let owner = look(folder).0;
    assert_eq!(owner, db.user.subordinate_start + 998, "left as it was");
}

#[test]
fn this_machine_remembers_what_it_made_over_a_restart_of_the_agent() {
    let root = tempfile::tempdir().unwrap();
    let db = database(false);
    volumes(root.path(), &[]).prepare(&db).unwrap();
    volumes(root.path(), &[]).prepare(&db).unwrap();
    fs::remove_dir_all(root.path().join("var/lib/kat/volumes/default")).unwrap();
    let again = volumes(root.path(), &[]);
    assert_eq!(again.prepare(&db).unwrap_err().reason, "VolumeMissing");
    // Asked for, its removal ends that.
    let wish = |index| RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index,
        made: false,
        copy: false,
        unsure: false,
    };
    // It has been there: its disk may be missing.
    assert!(again.remove("default/db/data", wish(0)).is_err());
    let folder = root.path().join("var/lib/kat/volumes/default/db/data");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(db.user.uid), None).unwrap();
    assert_eq!(again.all_made(), ["default/db/data"]);
    // Of somebody else nothing is removed.
    let error = again.remove("default/db/data", wish(1)).unwrap_err();
    assert!(
        error.to_string().contains("not of this workload"),
        "{error}"
    );
    again.remove("default/db/data", wish(0)).unwrap();
    assert!(!folder.exists() && again.all_made().is_empty());
    again.remove("default/db/data", wish(0)).unwrap();
    volumes(root.path(), &[]).prepare(&db).unwrap();
}

#[test]
fn a_kept_copy_that_is_not_there_is_gone_where_the_base_path_is() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes(root.path(), &[]);
    let wish = |copy| RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index: 0,
        made: true,
        copy,
        unsure: false,
    };
    assert!(volumes.remove("default/db/data", wish(true)).is_err());
    fs::create_dir_all(root.path().join("var/lib/kat/volumes")).unwrap();
    assert!(volumes.remove("default/db/data", wish(false)).is_err());
    volumes.remove("default/db/data", wish(true)).unwrap();
}

#[test]
fn data_of_somebody_else_is_not_taken() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes(root.path(), &[]);
    let folder = root.path().join("var/lib/kat/volumes/default/db/data");
    fs::create_dir_all(&folder).unwrap();
    let trouble = volumes.prepare(&database(false)).unwrap_err();
    assert_eq!(trouble.reason, "VolumeForeign");
    assert!(
        trouble.message.contains("belongs to uid 0"),
        "{}",
        trouble.message
    );
    fs::remove_dir(&folder).unwrap();
    symlink("/etc", &folder).unwrap();
    let trouble = volumes.prepare(&database(false)).unwrap_err();
    assert_eq!(trouble.reason, "HostPathIsLink");
}

#[test]
fn a_new_folder_belongs_to_the_containers_user_as_the_machine_sees_it() {
    let db = database(false);
    let user = &db.user;
    let owner = |written: Option<&str>| {
        let container = Container {
            user: written.map(str::to_owned),
            ..Container::default()
        };
        let owner = crate::agent::volumes::owner_of(user, &container);
        (owner.uid, owner.gid, owner.mode)
    };
    let first = user.subordinate_start;
    assert_eq!(owner(Some("0")), (user.uid, user.uid, 0o2770));
    assert_eq!(owner(Some("999")), (first + 998, user.uid, 0o2770));
    assert_eq!(owner(Some("1000:0")), (first + 999, user.uid, 0o2770));
    assert_eq!(owner(Some("1:65535")), (first, first + 65_534, 0o2770));
    for unknown in [None, Some("postgres"), Some("postgres:postgres")] {
        assert_eq!(owner(unknown), (user.uid, user.uid, 0o2777));
    }
}

#[test]
fn folders_within_a_volume_are_made_and_links_in_it_are_not_followed() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes(root.path(), &[]);
    let mut db = database(false);
    db.container.volume_mounts = vec![mount("data", Some("a/b"))];
    volumes.prepare(&db).unwrap();
    let folder = root.path().join("var/lib/kat/volumes/default/db/data");
    assert_eq!(look(folder.join("a/b")), (db.user.uid, db.user.uid, 0o2777));
    fs::remove_dir_all(folder.join("a")).unwrap();
    symlink("/", folder.join("a")).unwrap();
    let trouble = volumes.prepare(&db).unwrap_err();
    assert_eq!(trouble.reason, "HostPathIsLink");
}

#[test]
fn paths_of_the_machine_are_those_that_its_owner_allows() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes(root.path(), &["/srv", "/mnt/nas/"]);
    let reason = |path: &str, kind| {
        volumes
            .prepare(&hosted(path, kind))
            .map_err(|one| one.reason)
    };
    for path in ["/etc/passwd", "/srvx", "/", "/mnt", "/mnt/nasty/a"] {
        assert_eq!(reason(path, None), Err("HostPathNotAllowed"), "{path}");
    }
    let told = volumes.prepare(&hosted("/etc", None)).unwrap_err().message;
    assert!(
        told.contains("below /srv, /mnt/nas/ only, and none that holds volumes, so not /etc"),
        "{told}"
    );
    use EnsureType::{Directory, DirectoryOrCreate, File, FileOrCreate, Socket};
    assert_eq!(reason("/srv/web", None), Err("HostPathMissing"));
    assert_eq!(reason("/srv/web", Some(Directory)), Err("HostPathMissing"));
    assert_eq!(reason("/srv/web/conf", Some(DirectoryOrCreate)), Ok(()));
    assert_eq!(reason("/srv/web/conf", Some(Directory)), Ok(()));
    assert_eq!(reason("/srv", Some(Directory)), Ok(()));
    assert_eq!(
        reason("/srv/web/conf", Some(File)),
        Err("HostPathUnexpected")
    );
    assert_eq!(reason("/srv/web/app.ini", Some(FileOrCreate)), Ok(()));
    assert_eq!(
        reason("/srv/web/app.ini", Some(Socket)),
        Err("HostPathUnexpected")
    );
    let uid = assignment(0, "db").user.uid;
    assert_eq!(look(root.path().join("srv/web/conf")), (uid, uid, 0o2770));
    // Nobody comes to volumes this way.
    let config = AgentConfig {
        host_mount_allow: vec!["/mnt".to_owned()],
        ..AgentConfig::default()
    };
    let nested = Volumes::new(root.path(), "/mnt/nas/kat", &config);
    for path in [
        "/mnt/nas/kat/other/db/data",
        "/mnt/nas/kat",
        "/mnt/nas",
        "/mnt",
    ] {
        let refused = nested.prepare(&hosted(path, Some(DirectoryOrCreate)));
        assert_eq!(refused.unwrap_err().reason, "HostPathNotAllowed", "{path}");
    }
    assert!(!root.path().join("mnt/nas/kat").exists());
    assert_eq!(look(root.path().join("srv/web/app.ini")), (uid, uid, 0o600));
    // A container that may write to it could have put this there.
    symlink("/etc", root.path().join("srv/web/conf/link")).unwrap();
    for kind in [None, Some(DirectoryOrCreate), Some(Directory)] {
        assert_eq!(reason("/srv/web/conf/link", kind), Err("HostPathIsLink"));
        assert_eq!(
            reason("/srv/web/conf/link/kat", kind),
            Err("HostPathIsLink")
        );
    }
}

/// The list goes through a fence, as in the agent.
struct Booted {
    bench: Bench,
    lists: watch::Sender<Listed>,
}

impl Booted {
    fn new(folder: &Path) -> Self {
        let bench = Bench::new();
        fs::create_dir_all(bench.root.path().join("var/lib/kat")).unwrap();
        let lists = watch::Sender::new(Listed::default());
        let reached = watch::Sender::new(None);
        let started = Instant::now();
        let fence = Fence {
            timeout: Duration::from_secs(60),
            lists: lists.subscribe(),
            reached: reached.subscribe(),
            fenced: bench.lists.clone(),
            memory: Some(Memory {
                path: folder.join("reached"),
                monotonic: Arc::new(move || microseconds(started)),
            }),
        };
        let cancel = bench.cancel.clone();
        tokio::spawn(async move {
            fence.run(cancel).await;
            drop(reached);
        });
        Self { bench, lists }
    }

    fn list(&self, confirmed: bool, assignment: &Assignment) {
        let id = assignment.instance.clone();
        self.lists.send_replace(Listed {
            known: true,
            confirmed,
            current: confirmed,
            desired: Arc::new(Desired {
                assignments: BTreeMap::from([(id, assignment.clone())]),
                ..Desired::default()
            }),
            ..Listed::default()
        });
    }
}

#[tokio::test(start_paused = true)]
async fn who_writes_waits_after_a_boot_until_its_place_is_confirmed() {
    let run = tempfile::tempdir().unwrap();
    let db = database(false);
    let booted = Booted::new(run.path());
    booted.list(false, &db);
    booted.bench.later(Duration::from_secs(300)).await;
    let (phase, reason, message) = booted.bench.said(&db.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Scheduled, "Unconfirmed")
    );
    assert!(message.contains("it writes data"), "{message}");
    assert_eq!(booted.bench.calls(&db, "start kat-default"), 0);
    booted.list(true, &db);
    booted.bench.soon().await;
    assert_eq!(booted.bench.said(&db.instance).0, InstancePhase::Running);
    // A cut does not end it: nobody takes its place before this machine says that it ended.
    booted.list(false, &db);
    booted.bench.later(Duration::from_secs(1000)).await;
    assert_eq!(booted.bench.said(&db.instance).0, InstancePhase::Running);
    booted.bench.cancel.cancel();

    // Nor does another agent on the same machine that reaches nobody.
    let again = Booted::new(run.path());
    again.list(false, &db);
    again.bench.later(Duration::from_secs(300)).await;
    assert_eq!(again.bench.said(&db.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn who_only_reads_does_not_wait_after_a_boot() {
    let run = tempfile::tempdir().unwrap();
    let mut db = database(false);
    db.container.volume_mounts[0].read_only = true;
    let booted = Booted::new(run.path());
    booted.list(false, &db);
    booted.bench.soon().await;
    assert_eq!(booted.bench.said(&db.instance).0, InstancePhase::Running);
}

#[tokio::test]
async fn data_is_removed_when_the_confirmed_list_asks_for_it_and_nobody_has_it() {
    let root = tempfile::tempdir().unwrap();
    let volumes = Arc::new(volumes(root.path(), &[]));
    let db = database(false);
    volumes.prepare(&db).unwrap();
    let folder = root.path().join("var/lib/kat/volumes/default/db/data");
    fs::write(folder.join("row"), "1").unwrap();
    let lists = watch::Sender::new(Listed::default());
    let statuses = Statuses::default();
    let cancel = CancellationToken::new();
    let removals = Removals {
        lists: lists.subscribe(),
        volumes: Arc::clone(&volumes),
        statuses: statuses.clone(),
        pulses: Pulses::default(),
    };
    let running = tokio::spawn(removals.run(cancel.clone()));
    let asked: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let wish = RemovalRecord {
        schema: 1,
        asked,
        index: db.user.index,
        made: true,
        copy: false,
        unsure: false,
    };
    let listed = |confirmed, used, removals: &[&str]| Listed {
        known: true,
        confirmed,
        current: confirmed,
        desired: Arc::new(Desired {
            assignments: match used {
                true => BTreeMap::from([(db.instance.clone(), db.clone())]),
                false => BTreeMap::new(),
            },
            removals: removals
                .iter()
                .map(|name| ((*name).to_owned(), wish))
                .collect(),
            ..Desired::default()
        }),
        ..Listed::default()
    };
    let volume = "default/db/data";
    for kept in [
        listed(false, false, &[volume]),
        listed(true, true, &[volume]),
        listed(true, false, &["../db/data", "default/db"]),
    ] {
        lists.send_replace(kept);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(folder.join("row").exists());
        assert!(!statuses.removed().contains(&removal_id(volume, asked)));
    }
    lists.send_replace(listed(true, false, &[volume]));
    for _ in 0..500 {
        if !statuses.removed().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(statuses.removed(), [removal_id(volume, asked)]);
    assert!(!root.path().join("var/lib/kat/volumes/default").exists());
    lists.send_replace(listed(true, false, &[]));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        statuses.removed().is_empty(),
        "it need not be said any longer"
    );
    cancel.cancel();
    running.await.unwrap();
}

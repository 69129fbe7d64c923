//! Volumes of an instance: prepared before its start, never replaced by an empty folder, and
//! removed on request. The file also tests host paths.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
};

use jiff::Timestamp;

use super::*;
use crate::{
    desired_state::fence::{FenceMemory, PartitionFence},
    volumes::{earlier_grants, removals::VolumeRemovals},
};
use kat_daemon::watchdog::LoopPulses;
use kat_host::volumes::VolumeError;
use kat_systemd::UnitManager;
use kat_types::{
    assignment::AssignedVolume,
    reason::Reason,
    resource::{EnsureType, HostMount, SimpleClusterStorage, Volume, VolumeMount},
    volumes::{RemovalRecord, removal_id},
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
pub(super) fn database(made: bool) -> Assignment {
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

/// An instance that mounts a host path.
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

pub(super) fn volumes(root: &Path, allow: &[&str]) -> Volumes {
    volumes_with(root, allow, None)
}

fn volumes_with(root: &Path, allow: &[&str], create: Option<&[&str]>) -> Volumes {
    fs::create_dir_all(root.join("var/lib/kat")).unwrap();
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
    let config = AgentConfig {
        host_mount_allow: owned(allow),
        host_mount_create: create.map(owned),
        ..AgentConfig::default()
    };
    Volumes::new(&Root::new(root), "/var/lib/kat/volumes", &config)
}

/// Creates a folder with this mode, and with `uid` as its owner and group.
fn put_folder(path: &Path, mode: u32, uid: u32) {
    fs::create_dir_all(path).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
}

fn stat_owner_and_mode(path: PathBuf) -> (u32, u32, u32) {
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
    assert_eq!(stat_owner_and_mode(base.join("default")), (0, 0, 0o711));
    assert_eq!(
        stat_owner_and_mode(base.join("default/db")),
        (0, uid, 0o710)
    );
    assert_eq!(
        stat_owner_and_mode(base.join("default/db/data")),
        (uid, uid, 0o2777)
    );
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
    // The disk is available again.
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(db.user.subordinate_start + 998), None).unwrap();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&db.instance).0, InstancePhase::Running);
    let owner = stat_owner_and_mode(folder).0;
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
    assert_eq!(
        again.prepare(&db).unwrap_err().reason,
        Reason::VolumeMissing
    );
    // A requested removal ends the wait for the missing folder.
    let wish = |index| RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index,
        made: false,
        copy: false,
        unsure: false,
        forget: false,
    };
    // The folder existed before, and its disk may be missing.
    assert!(again.remove("default/db/data", wish(0)).is_err());
    let folder = root.path().join("var/lib/kat/volumes/default/db/data");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(db.user.uid), None).unwrap();
    assert_eq!(again.all_made(), ["default/db/data"]);
    // Data of another workload is not removed.
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

/// The agent ended between the end of the removal and its record.
#[test]
fn a_removal_that_was_interrupted_after_its_end_is_done_where_the_same_disk_is_mounted() {
    let root = tempfile::tempdir().unwrap();
    let db = database(false);
    let data = "default/db/data";
    let record = RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index: 0,
        made: true,
        copy: false,
        unsure: false,
        forget: false,
    };
    volumes(root.path(), &[]).prepare(&db).unwrap();
    let list = root.path().join("var/lib/kat/volumes.json");
    let mut content: serde_json::Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    fs::remove_dir_all(root.path().join("var/lib/kat/volumes/default")).unwrap();
    for (removing, is_done) in [
        (serde_json::json!({}), false),
        // Its disk is not mounted.
        (serde_json::json!({data: "/mnt/disk"}), false),
        (serde_json::json!({data: null}), true),
    ] {
        content["removing"] = removing;
        fs::write(&list, content.to_string()).unwrap();
        let volumes = volumes(root.path(), &[]);
        let removed = volumes.remove(data, record);
        assert_eq!(removed.is_ok(), is_done, "{removed:?} with {content}");
        assert_eq!(volumes.all_made().is_empty(), is_done);
    }
    // What is made there later is not taken as removed.
    let again = volumes(root.path(), &[]);
    again.prepare(&db).unwrap();
    fs::remove_dir_all(root.path().join("var/lib/kat/volumes/default")).unwrap();
    assert!(again.remove(data, record).is_err());
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
        forget: false,
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
    assert_eq!(trouble.reason, Reason::VolumeForeign);
    assert!(
        trouble.message.contains("belongs to uid 0"),
        "{}",
        trouble.message
    );
    fs::remove_dir(&folder).unwrap();
    symlink("/etc", &folder).unwrap();
    let trouble = volumes.prepare(&database(false)).unwrap_err();
    assert_eq!(trouble.reason, Reason::HostPathIsLink);
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
        let owner = crate::volumes::owner_of(user, &container);
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
    assert_eq!(
        stat_owner_and_mode(folder.join("a/b")),
        (db.user.uid, db.user.uid, 0o2777)
    );
    fs::remove_dir_all(folder.join("a")).unwrap();
    symlink("/", folder.join("a")).unwrap();
    let trouble = volumes.prepare(&db).unwrap_err();
    assert_eq!(trouble.reason, Reason::HostPathIsLink);
}

#[test]
fn paths_of_the_machine_are_those_that_its_owner_allows() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes_with(root.path(), &["/srv", "/mnt/nas/"], Some(&["/srv"]));
    let reason = |path: &str, kind| {
        volumes
            .prepare(&hosted(path, kind))
            .map(drop)
            .map_err(|one| one.reason.word())
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
    assert_eq!(
        stat_owner_and_mode(root.path().join("srv/web/conf")),
        (uid, uid, 0o2770)
    );
    assert_eq!(
        stat_owner_and_mode(root.path().join("srv/web")),
        (0, 0, 0o711)
    );
    // Volumes cannot be mounted as host paths.
    let config = AgentConfig {
        host_mount_allow: vec!["/mnt".to_owned()],
        ..AgentConfig::default()
    };
    let nested = Volumes::new(&Root::new(root.path()), "/mnt/nas/kat", &config);
    for path in [
        "/mnt/nas/kat/other/db/data",
        "/mnt/nas/kat",
        "/mnt/nas",
        "/mnt",
    ] {
        let refused = nested.prepare(&hosted(path, Some(DirectoryOrCreate)));
        assert_eq!(
            refused.unwrap_err().reason,
            Reason::HostPathNotAllowed,
            "{path}"
        );
    }
    assert!(!root.path().join("mnt/nas/kat").exists());
    assert_eq!(
        stat_owner_and_mode(root.path().join("srv/web/app.ini")),
        (uid, uid, 0o600)
    );
    symlink("/etc", root.path().join("srv/web/link")).unwrap();
    for kind in [None, Some(DirectoryOrCreate), Some(Directory)] {
        assert_eq!(reason("/srv/web/link", kind), Err("HostPathIsLink"));
        assert_eq!(reason("/srv/web/link/kat", kind), Err("HostPathIsLink"));
    }
    // A container with write access could have created this link.
    symlink("/etc", root.path().join("srv/web/conf/link")).unwrap();
    for kind in [None, Some(DirectoryOrCreate), Some(Directory)] {
        for path in ["/srv/web/conf/link", "/srv/web/conf/link/kat"] {
            assert_eq!(reason(path, kind), Err("HostPathIsLink"));
        }
    }
}

#[test]
fn a_host_path_below_a_folder_that_others_may_change_is_mounted_and_not_made() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes_with(root.path(), &["/srv"], Some(&["/srv"]));
    let srv = root.path().join("srv");
    let uid = assignment(0, "db").user.uid;
    let bind = |path: &str, sub_path, kind| {
        let mut one = hosted(path, kind);
        one.container.volume_mounts = vec![mount("conf", sub_path)];
        volumes.prepare(&one).map_err(|one| one.reason.word())
    };
    let reason = |path: &str, sub_path| bind(path, sub_path, None).map(drop);
    put_folder(&srv, 0o755, 0);
    put_folder(&srv.join("app"), 0o700, uid);
    put_folder(&srv.join("app/data"), 0o700, uid);
    put_folder(&srv.join("shared"), 0o775, 0);
    put_folder(&srv.join("shared/data"), 0o755, 0);
    put_folder(&srv.join("open"), 0o755, 0);
    assert_eq!(reason("/srv/app/data", None), Ok(()));
    assert_eq!(reason("/srv/shared/data", None), Ok(()));
    assert_eq!(reason("/srv/app", Some("data")), Ok(()));
    assert_eq!(reason("/srv/open", Some("new")), Err("HostPathMissing"));
    assert!(!srv.join("open/new").exists());
    // KAT creates nothing below a folder that another user may change, because that user could
    // replace the folder meanwhile.
    let made = Some(EnsureType::DirectoryOrCreate);
    let refused = Err("HostPathUnprotected");
    assert_eq!(bind("/srv/app/new", None, made), refused);
    assert_eq!(bind("/srv/shared/new", None, made), refused);
    let mut new = hosted("/srv/app/new", made);
    new.container.volume_mounts = vec![mount("conf", None)];
    let told = volumes.prepare(&new).unwrap_err();
    let owner = format!("srv/app above it belongs to uid {uid} and has mode 0700");
    assert!(told.message.contains(&owner), "{}", told.message);
    // Control: below a folder of root, the path is created.
    assert_eq!(bind("/srv/open/new", None, made).map(drop), Ok(()));

    // A link is never followed, at any position in the path.
    symlink("data", srv.join("app/link")).unwrap();
    symlink("/etc", srv.join("app/data/etc")).unwrap();
    for (path, sub_path) in [
        ("/srv/app/link", None),
        ("/srv/app/data/etc/kat", None),
        ("/srv/app", Some("link")),
        ("/srv/app", Some("data/etc/kat")),
    ] {
        assert_eq!(reason(path, sub_path), Err("HostPathIsLink"), "{path}");
    }
    assert!(reason("/srv/app", Some("../open")).is_err());
}

#[test]
fn each_path_that_is_mounted_is_bound_once_and_read_only_where_nobody_writes() {
    let root = tempfile::tempdir().unwrap();
    let volumes = volumes(root.path(), &["/srv"]);
    let data = root.path().join("srv/app/data");
    put_folder(&root.path().join("srv"), 0o755, 0);
    put_folder(&data, 0o755, 0);
    let mut one = hosted("/srv//app/", None);
    let read_only = |sub_path| VolumeMount {
        read_only: true,
        ..mount("conf", sub_path)
    };
    one.container.volume_mounts = vec![
        read_only(None),
        mount("conf", Some("data")),
        read_only(Some("./data/")),
    ];
    let binds = volumes.prepare(&one).unwrap();
    let real = root.path().canonicalize().unwrap().join("srv/app");
    let found: Vec<_> = binds
        .iter()
        .map(|bind| (bind.path.clone(), bind.read_only))
        .collect();
    assert_eq!(found, [(real.clone(), true), (real.join("data"), false)]);
    assert_eq!(binds[0].name, "conf");
    assert!(binds[1].name.starts_with("conf."), "{}", binds[1].name);
    let inode = fs::metadata(&data).unwrap().ino();
    assert_eq!(binds[1].judged.inode, inode);
}

#[test]
fn paths_are_made_in_the_namespaces_own_folder_and_nowhere_else() {
    let root = tempfile::tempdir().unwrap();
    put_folder(&root.path().join("srv"), 0o755, 0);
    let volumes = Volumes::new(
        &Root::new(root.path()),
        "/var/lib/kat/volumes",
        &AgentConfig::default(),
    );
    let uid = assignment(0, "db").user.uid;
    let prepare = |path: &str, kind| {
        let prepared = volumes.prepare(&hosted(path, Some(kind)));
        prepared.map(drop).map_err(|trouble| trouble.reason.word())
    };
    let host = root.path().join("var/lib/kat/host");
    for kind in [EnsureType::DirectoryOrCreate, EnsureType::FileOrCreate] {
        for path in [
            "/srv/hooks/post-receive",
            "/srv/new",
            "/var/lib/kat/host/other/data",
            "/var/lib/kat/host/default",
        ] {
            assert_eq!(prepare(path, kind), Err("HostPathNotCreated"), "{path}");
        }
    }
    assert_eq!(fs::read_dir(root.path().join("srv")).unwrap().count(), 0);
    let own = "/var/lib/kat/host/default/app/data";
    assert_eq!(prepare(own, EnsureType::DirectoryOrCreate), Ok(()));
    assert_eq!(
        stat_owner_and_mode(host.join("default/app/data")),
        (uid, uid, 0o2770)
    );
    for folder in ["", "default", "default/app"] {
        assert_eq!(
            stat_owner_and_mode(host.join(folder)),
            (0, 0, 0o711),
            "{folder}"
        );
    }
    assert!(!host.join("other").exists());
    // Nothing is created inside another workload's folder.
    let inner = "/var/lib/kat/host/default/app/data/in";
    let refused = Err("HostPathUnprotected");
    assert_eq!(prepare(inner, EnsureType::DirectoryOrCreate), refused);
    // An existing folder is mounted as with `Directory`.
    put_folder(&root.path().join("srv/there"), 0o755, 0);
    assert_eq!(prepare("/srv/there", EnsureType::DirectoryOrCreate), Ok(()));
    assert_eq!(
        stat_owner_and_mode(root.path().join("srv/there")),
        (0, 0, 0o755)
    );
}

#[test]
fn no_container_gets_sessions_of_users_or_kats_own_state() {
    let root = tempfile::tempdir().unwrap();
    let allow = ["/run", "/var/lib", "/sessions", "/srv"];
    let volumes = volumes(root.path(), &allow);
    for folder in ["run/user/20000", "var/lib/kat/files/20000", "srv/web"] {
        put_folder(&root.path().join(folder), 0o755, 0);
    }
    // The path of an allowed folder contains a link of the machine's owner.
    symlink(root.path().join("run/user"), root.path().join("sessions")).unwrap();
    let reason = |path| {
        volumes
            .prepare(&hosted(path, None))
            .map(drop)
            .map_err(|one| one.reason.word())
    };
    for path in [
        "/run/user/20000",
        "/run/user",
        "/run",
        "/sessions/20000",
        "/sessions",
        "/var/lib",
        "/var/lib/kat",
        "/var/lib/kat/files/20000",
        "/run/kat",
        "/run/kat-hostpath/20000/db/conf/bound",
    ] {
        assert_eq!(reason(path), Err("HostPathNotAllowed"), "{path}");
    }
    assert_eq!(reason("/srv/web"), Ok(()));
}

#[test]
fn a_workload_of_before_an_upgrade_keeps_the_paths_that_were_made_for_it() {
    let root = tempfile::tempdir().unwrap();
    let (root, config) = (root.path(), AgentConfig::default());
    let made = Some(EnsureType::DirectoryOrCreate);
    let (old, mut around) = (hosted("/srv/old/data", made), hosted("/srv/a", made));
    around.volumes.extend(hosted("/srv/a/b", made).volumes);
    around.instance = "around-aaaaa".to_owned();
    around.workload_uid = "around".to_owned();
    let uid = old.user.uid;
    // The earlier version created the folders with this owner and mode.
    put_folder(&root.join("srv"), 0o755, 0);
    for folder in ["srv/old", "srv/old/data", "srv/a", "srv/a/b"] {
        put_folder(&root.join(folder), 0o2770, uid);
    }
    let mut desired = DesiredState::default();
    for one in [&old, &around] {
        let folder = root.join(format!("var/lib/kat/units/{uid}"));
        fs::create_dir_all(&folder).unwrap();
        let stem = one.unit().replace(".service", ".container");
        fs::write(folder.join(stem), "").unwrap();
        desired
            .assignments
            .insert(one.instance.clone(), one.clone());
    }
    let reason = |one: &Assignment| {
        let volumes = Volumes::new(&Root::new(root), "/var/lib/kat/volumes", &config);
        volumes
            .prepare(one)
            .map(drop)
            .map_err(|trouble| trouble.reason.word())
    };
    // Control: without the record the paths are mounted as they are.
    assert_eq!(reason(&old), Ok(()));
    assert_eq!(
        stat_owner_and_mode(root.join("srv/old")),
        (uid, uid, 0o2770)
    );
    earlier_grants::record(&Root::new(root), &config, &desired).unwrap();
    assert_eq!(reason(&old), Ok(()));
    assert_eq!(stat_owner_and_mode(root.join("srv/old")), (0, 0, 0o711));
    fs::remove_dir(root.join("srv/old/data")).unwrap();
    assert_eq!(reason(&old), Ok(()));
    assert_eq!(
        stat_owner_and_mode(root.join("srv/old/data")),
        (uid, uid, 0o2770)
    );
    // Of two nested paths, the outer one still belongs to the workload's user.
    assert_eq!(reason(&around), Ok(()));
    assert_eq!(stat_owner_and_mode(root.join("srv/a")), (uid, uid, 0o2770));
    let mut later = hosted("/srv/old/data", made);
    later.workload_uid = "later".to_owned();
    fs::remove_dir(root.join("srv/old/data")).unwrap();
    assert_eq!(reason(&later), Err("HostPathNotCreated"));
    desired
        .store(&root.join("var/lib/kat/desired.json"))
        .unwrap();
    let found = earlier_grants::findings(&Root::new(root), &config);
    let line = found.first().unwrap().mend.as_deref().unwrap();
    let expected = r#"`hostMountCreate: ["/srv/old/data","/srv/a","/srv/a/b"]`"#;
    assert!(line.contains(expected), "{line}");
}

/// A booted machine whose list passes through a `Fence`, as in the agent.
struct Booted {
    bench: Bench,
    lists: watch::Sender<DesiredList>,
}

impl Booted {
    fn new(folder: &Path) -> Self {
        let bench = Bench::new();
        fs::create_dir_all(bench.root.path().join("var/lib/kat")).unwrap();
        let lists = watch::Sender::new(DesiredList::default());
        let reached = watch::Sender::new(None);
        let started = Instant::now();
        let fence = PartitionFence {
            settings: crate::FollowedSettings::new(
                &kat_types::resource::ClusterSpec::default(),
                BootTime(0),
            ),
            list_age: crate::LIST_AGE,
            lists: lists.subscribe(),
            clock: boot_clock(started),
            reached: reached.subscribe(),
            fenced: bench.lists.clone(),
            memory: Some(FenceMemory {
                path: folder.join("reached"),
                deadlines: folder.join("deadlines.json"),
            }),
            job_starts: bench.tools.job_starts.clone(),
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
        self.lists.send_replace(DesiredList {
            known: true,
            confirmed,
            current: confirmed,
            desired: Arc::new(DesiredState {
                assignments: BTreeMap::from([(id, assignment.clone())]),
                ..DesiredState::default()
            }),
            ..DesiredList::default()
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_writing_instance_waits_after_a_boot_for_a_confirmed_list() {
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
    // A cut does not stop the instance: the leader does not replace it before this machine reports
    // its end.
    booted.list(false, &db);
    booted.bench.later(Duration::from_secs(1000)).await;
    assert_eq!(booted.bench.said(&db.instance).0, InstancePhase::Running);
    booted.bench.cancel.cancel();

    // A restarted agent that reaches no leader does not stop the instance either.
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
    let lists = watch::Sender::new(DesiredList::default());
    let statuses = Statuses::default();
    let cancel = CancellationToken::new();
    let removals = VolumeRemovals {
        lists: lists.subscribe(),
        volumes: Arc::clone(&volumes),
        statuses: statuses.clone(),
        pulses: LoopPulses::default(),
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
        forget: false,
    };
    let listed = |confirmed, used, removals: &[&str]| DesiredList {
        known: true,
        confirmed,
        current: confirmed,
        desired: Arc::new(DesiredState {
            assignments: match used {
                true => BTreeMap::from([(db.instance.clone(), db.clone())]),
                false => BTreeMap::new(),
            },
            removals: removals
                .iter()
                .map(|name| ((*name).to_owned(), wish))
                .collect(),
            ..DesiredState::default()
        }),
        ..DesiredList::default()
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

/// The agent dies between the end of a removal and its report, and is asked for it again.
#[test]
fn a_removal_whose_report_was_lost_is_done_also_for_the_next_process() {
    let root = tempfile::tempdir().unwrap();
    let db = database(false);
    let record = RemovalRecord {
        schema: 1,
        asked: Timestamp::UNIX_EPOCH,
        index: db.user.index,
        made: true,
        copy: false,
        unsure: false,
        forget: false,
    };
    let volume = "default/db/data";
    let before = volumes(root.path(), &[]);
    before.prepare(&db).unwrap();
    before.remove(volume, record).unwrap();
    assert!(!root.path().join("var/lib/kat/volumes/default").exists());

    let after = volumes(root.path(), &[]);
    after.forget_removals(|folder| folder == volume);
    after.remove(volume, record).unwrap();
    after.remove(volume, record).unwrap();

    // Nobody asks any more: data that is missing later may be on a disk that is not there.
    after.forget_removals(|_| false);
    let error = after.remove(volume, record).unwrap_err();
    assert!(matches!(error, VolumeError::Missing(_)), "{error}");

    // The folder is used again, and then lost with its disk.
    let again = volumes(root.path(), &[]);
    let fresh = RemovalRecord {
        made: false,
        ..record
    };
    again.prepare(&db).unwrap();
    again.remove(volume, fresh).unwrap();
    again.prepare(&db).unwrap();
    fs::remove_dir_all(root.path().join("var/lib/kat/volumes/default")).unwrap();
    let error = again.remove(volume, record).unwrap_err();
    assert!(matches!(error, VolumeError::Missing(_)), "{error}");
}

#[test]
fn folders_above_an_earlier_path_become_roots_also_where_the_owner_has_written_the_line_since() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let old = hosted("/srv/old/data", Some(EnsureType::DirectoryOrCreate));
    let uid = old.user.uid;
    put_folder(&root.join("srv"), 0o755, 0);
    for folder in ["srv/old", "srv/old/data"] {
        put_folder(&root.join(folder), 0o2770, uid);
    }
    let folder = root.join(format!("var/lib/kat/units/{uid}"));
    fs::create_dir_all(&folder).unwrap();
    let stem = old.unit().replace(".service", ".container");
    fs::write(folder.join(stem), "").unwrap();
    let mut desired = DesiredState::default();
    let id = old.instance.clone();
    desired.assignments.insert(id, old.clone());
    earlier_grants::record(&Root::new(root), &AgentConfig::default(), &desired).unwrap();
    // The owner wrote the line before the workload was started again.
    let written = AgentConfig {
        host_mount_create: Some(vec!["/srv/old/data".to_owned()]),
        ..AgentConfig::default()
    };
    let volumes = Volumes::new(&Root::new(root), "/var/lib/kat/volumes", &written);
    assert!(volumes.prepare(&old).is_ok());
    assert_eq!(stat_owner_and_mode(root.join("srv/old")), (0, 0, 0o711));
}

/// The unit that binds the host paths of an instance.
fn binding(assignment: &Assignment) -> String {
    let (uid, instance) = (assignment.user.uid, &assignment.instance);
    format!("kat-hostpath@{uid}-{instance}.service")
}

impl Bench {
    /// A machine with a folder that the returned instance mounts.
    fn with_host_path() -> (Self, Assignment) {
        let bench = Self::new();
        fs::create_dir_all(bench.root.path().join("var/lib/kat")).unwrap();
        put_folder(&bench.root.path().join("srv/web"), 0o755, 0);
        (bench, hosted("/srv/web", None))
    }

    fn plan_of(&self, assignment: &Assignment) -> PathBuf {
        let name = format!("{}-{}.json", assignment.user.uid, assignment.instance);
        self.root.path().join("run/kat/hostpath-plans").join(name)
    }

    /// The folder that the unit creates when it runs.
    fn bound(&self, assignment: &Assignment) -> PathBuf {
        let bound = self.root.path().join("run/kat-hostpath");
        let of_user = bound.join(assignment.user.uid.to_string());
        of_user.join(&assignment.instance)
    }

    fn bind_calls(&self, assignment: &Assignment) -> Vec<String> {
        let calls = self.machine.system_manager().calls();
        let unit = binding(assignment);
        let own = calls.into_iter().filter(|call| call.ends_with(&unit));
        own.collect()
    }
}

fn oneshot() -> UnitBehaviour {
    UnitBehaviour {
        oneshot: true,
        exits: Some(0),
        ..UnitBehaviour::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_path_is_bound_before_its_instance_starts_and_until_it_is_gone() {
    let (bench, one) = Bench::with_host_path();
    let system = bench.machine.system_manager();
    system.define(&binding(&one), oneshot());
    fs::create_dir_all(bench.bound(&one)).unwrap();
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    assert_eq!(bench.said(&one.instance).0, InstancePhase::Running);
    let calls = bench.bind_calls(&one);
    assert_eq!(calls, [format!("restart {}", binding(&one))]);
    let plan = fs::read_to_string(bench.plan_of(&one)).unwrap();
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let web = bench.root.path().canonicalize().unwrap().join("srv/web");
    assert_eq!(plan["binds"][0]["path"], web.display().to_string());
    let (uid, instance) = (one.user.uid, &one.instance);
    let unit = bench
        .units(&one)
        .join(format!("kat-default-{instance}.container"));
    let text = fs::read_to_string(unit).unwrap();
    let line = format!("Volume=/run/kat-hostpath/{uid}/{instance}/conf/bound:/conf\n");
    assert!(text.contains(&line), "{text}");
    assert!(!text.contains("WantedBy="), "{text}");
    let of_user = stat_owner_and_mode(bench.root.path().join(format!("run/kat-hostpath/{uid}")));
    assert_eq!(of_user, (0, uid, 0o710));
    assert_eq!(
        stat_owner_and_mode(bench.root.path().join("run/kat/hostpath-plans")).2,
        0o700
    );

    bench.later(Duration::from_secs(120)).await;
    assert_eq!(bench.bind_calls(&one).len(), 1, "while it runs");
    bench.list(true, &[]);
    bench.later(Duration::from_secs(60)).await;
    let calls = bench.bind_calls(&one);
    assert_eq!(calls.last(), Some(&format!("stop {}", binding(&one))));
    assert!(!bench.plan_of(&one).exists());
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_host_path_is_not_bound_does_not_start() {
    let (bench, one) = Bench::with_host_path();
    let system = bench.machine.system_manager();
    let fails = UnitBehaviour {
        exits: Some(1),
        ..oneshot()
    };
    system.define(&binding(&one), fails);
    bench.list(true, std::slice::from_ref(&one));
    bench.later(Duration::from_secs(10)).await;
    let (phase, reason, message) = bench.said(&one.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "HostPathNotBound")
    );
    assert!(message.contains(&binding(&one)), "{message}");
    assert_eq!(bench.calls(&one, "start kat-default"), 0);
    let tries = bench.bind_calls(&one).len();
    assert!((2..=6).contains(&tries), "{tries}");
    system.define(&binding(&one), oneshot());
    fs::create_dir_all(bench.bound(&one)).unwrap();
    bench.later(Duration::from_secs(60)).await;
    let (phase, reason, _) = bench.said(&one.instance);
    assert_eq!((phase, reason.as_str()), (InstancePhase::Running, ""));
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_version_started_runs_on_and_has_its_host_path_bound() {
    let (mut bench, one) = Bench::with_host_path();
    let system = bench.machine.system_manager();
    system.define(&binding(&one), oneshot());
    fs::create_dir_all(bench.bound(&one)).unwrap();
    bench.list(true, std::slice::from_ref(&one));
    bench.soon().await;
    let unit = format!("kat-default-{}.service", one.instance);
    let pid = bench.manager(&one).status(&unit).await.unwrap().main_pid;
    fs::remove_dir_all(bench.root.path().join("run")).unwrap();
    bench.restart().await;
    bench.soon().await;
    fs::create_dir_all(bench.bound(&one)).unwrap();
    bench.later(Duration::from_secs(60)).await;
    let calls = bench.bind_calls(&one).len();
    assert!((2..=4).contains(&calls), "{calls}");
    assert!(bench.plan_of(&one).exists());
    assert_eq!(
        bench.manager(&one).status(&unit).await.unwrap().main_pid,
        pid
    );
    bench.later(Duration::from_secs(120)).await;
    assert_eq!(bench.bind_calls(&one).len(), calls);
}

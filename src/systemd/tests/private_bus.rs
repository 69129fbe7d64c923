//! The real manager on a private bus (`dbus-daemon`, from Debian's package of that name): owners of
//! names, forged signals, and connections as another user.
//!
//! As root the bus runs as another uid, like a workload user's; otherwise as this user's own.

use std::{
    io::{BufRead, BufReader},
    os::unix::{fs::chown, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt;
use zbus::{Connection, fdo::DBusProxy};

use super::served_manager::{job_removed, properties_changed, say_changed, say_job_removed, serve};
use crate::{
    BusManager, Connector, JobResult, SystemdError, UnitEvent, UnitManager, UserBus,
    proxies::SYSTEMD,
};

const LIMIT: Duration = Duration::from_secs(5);
/// The uid of `nobody`; any uid but root's would do.
const OTHER: u32 = 65534;

struct Bus {
    daemon: Child,
    uid: u32,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Bus {
    fn start() -> Self {
        let own = rustix::process::geteuid().as_raw();
        let uid = if own == 0 { OTHER } else { own };
        let folder = tempfile::tempdir().unwrap();
        chown(folder.path(), Some(uid), Some(uid)).unwrap();
        let socket = folder.path().join("bus");
        let mut command = Command::new("dbus-daemon");
        command
            .args(["--session", "--nofork", "--nopidfile", "--print-address"])
            .arg(format!("--address=unix:path={}", socket.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if own == 0 {
            command.uid(uid).gid(uid);
        }
        let mut daemon = command
            .spawn()
            .expect("dbus-daemon is needed (apt install dbus-daemon)");
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("unix:path="), "{line}");
        Self {
            daemon,
            uid,
            socket,
            _folder: folder,
        }
    }

    fn connector(&self) -> UserBus {
        UserBus::at(self.uid, self.socket.clone())
    }

    /// A connection as the bus's user.
    async fn connection(&self) -> Connection {
        self.connector().connect().await.unwrap()
    }

    /// A served manager that owns systemd's name.
    async fn systemd(&self) -> Connection {
        let connection = self.connection().await;
        serve(&connection).await;
        connection.request_name(SYSTEMD).await.unwrap();
        connection
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[tokio::test]
async fn enters_the_bus_of_another_user_and_stays_itself() {
    let bus = Bus::start();
    let before = rustix::process::geteuid();
    let _systemd = bus.systemd().await;
    let manager = BusManager::new(Arc::new(bus.connector()));
    assert_eq!(
        manager.start("kat-ok.service", LIMIT).await.unwrap(),
        JobResult::Done
    );
    assert_eq!(rustix::process::geteuid(), before);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("Uid:"))
        .unwrap();
    assert!(line.split_whitespace().nth(2) == Some(&before.as_raw().to_string()));
    if before.is_root() {
        // The bus refuses other users, so connecting as its user is necessary.
        let root = UserBus::at(0, bus.socket.clone());
        root.connect().await.unwrap_err();
    }
}

#[tokio::test]
async fn forged_signals_are_not_heard() {
    let bus = Bus::start();
    let systemd = bus.systemd().await;
    let forger = bus.connection().await;
    let manager = BusManager::new(Arc::new(bus.connector()));
    let mut events = manager.events().await.unwrap();
    assert_eq!(events.next().await, Some(UnitEvent::All));
    let forge = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The forged signals name each connection, because a bus delivers such signals without a
        // match rule.
        let names = DBusProxy::new(&forger).await.unwrap().list_names().await;
        for name in names.unwrap() {
            for signal in [
                job_removed(1, "done", Some(name.as_str())),
                properties_changed("kat-forged.service", Some(name.as_str())),
            ] {
                forger.send(&signal).await.unwrap();
            }
        }
        // The answer comes after the forged signals were delivered.
        DBusProxy::new(&forger)
            .await
            .unwrap()
            .get_id()
            .await
            .unwrap();
        say_job_removed(&systemd, 1, "failed").await;
        say_changed(&systemd, "kat-real.service").await;
    };
    let (result, ()) = futures_util::join!(manager.start("kat-stuck.service", LIMIT), forge);
    assert_eq!(result.unwrap(), JobResult::Failed);
    assert_eq!(
        events.next().await,
        Some(UnitEvent::Changed("kat-real.service".to_owned()))
    );
}

#[tokio::test]
async fn a_manager_that_starts_anew_is_subscribed_again() {
    let bus = Bus::start();
    let manager = BusManager::new(Arc::new(bus.connector()));
    let error = manager.reload().await.unwrap_err();
    assert!(
        matches!(&error, SystemdError::Unreachable { .. }),
        "no manager on the bus: {error:?}"
    );
    let first = bus.systemd().await;
    let deadline = tokio::time::Instant::now() + LIMIT;
    while manager.reload().await.is_err() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut events = manager.events().await.unwrap();
    assert_eq!(events.next().await, Some(UnitEvent::All));
    first.close().await.unwrap();
    assert_eq!(events.next().await, None, "the manager is gone");
    let _second = bus.systemd().await;
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        match manager.start("kat-ok.service", LIMIT).await {
            Ok(result) => break assert_eq!(result, JobResult::Done),
            Err(SystemdError::Unreachable { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_bus_that_goes_away_ends_the_streams() {
    let mut bus = Bus::start();
    let _systemd = bus.systemd().await;
    let manager = BusManager::new(Arc::new(bus.connector()));
    let mut events = manager.events().await.unwrap();
    assert_eq!(events.next().await, Some(UnitEvent::All));
    bus.daemon.kill().unwrap();
    assert_eq!(events.next().await, None);
    let error = manager.status("kat-ok.service").await.unwrap_err();
    assert!(matches!(error, SystemdError::Unreachable { .. }), "{error}");
}

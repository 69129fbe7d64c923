//! A small `org.freedesktop.systemd1` with configurable faults.
#![allow(
    clippy::disallowed_types,
    reason = "the interface macro answers GetAll with a HashMap"
)]

use std::{collections::BTreeMap, time::Duration};

use zbus::{
    Connection, DBusError, Message, OwnedObjectPath, Variant, object_server::SignalEmitter,
    wire::ObjectPath,
};

use crate::proxies::ListedUnit;

#[derive(Debug, DBusError)]
#[zbus(prefix = "org.freedesktop.systemd1")]
pub(super) enum Refusal {
    #[zbus(error)]
    ZBus(zbus::Error),
    NoSuchUnit(String),
    UnitMasked(String),
    LoadFailed(String),
    ShuttingDown(String),
    AlreadySubscribed(String),
}

pub(super) struct ServedManager {
    pub(super) jobs: u32,
    pub(super) subscribed: bool,
    /// The sub-states of the next answers, the last one first; `running` after them.
    pub(super) sub_states: Vec<&'static str>,
}

impl ServedManager {
    pub(super) fn new() -> Self {
        Self {
            jobs: 0,
            subscribed: false,
            sub_states: Vec::new(),
        }
    }
}

/// Serves the manager and one unit, `kat-ok.service`.
pub(super) async fn serve(connection: &Connection) {
    let server = connection.object_server();
    server
        .at("/org/freedesktop/systemd1", ServedManager::new())
        .await
        .unwrap();
    let unit = crate::path::unit_path("kat-ok.service");
    server.at(unit.as_str(), ServedUnit).await.unwrap();
    server.at(unit.as_str(), ServedService).await.unwrap();
}

/// Sends on `connection` that a job ended.
pub(super) async fn say_job_removed(connection: &Connection, job: u32, result: &str) {
    connection
        .send(&job_removed(job, result, None))
        .await
        .unwrap();
}

/// The signal, as a broadcast or to one name.
pub(super) fn job_removed(job: u32, result: &str, to: Option<&str>) -> Message {
    let path = ObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{job}")).unwrap();
    let signal = Message::signal(
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "JobRemoved",
    );
    match to {
        Some(to) => signal.destination(to),
        None => signal,
    }
    .build(&(job, path, "a.service", result))
    .unwrap()
}

/// Sends on `connection` that properties of a unit changed.
pub(super) async fn say_changed(connection: &Connection, unit: &str) {
    connection
        .send(&properties_changed(unit, None))
        .await
        .unwrap();
}

/// The signal, as a broadcast or to one name.
pub(super) fn properties_changed(unit: &str, to: Option<&str>) -> Message {
    let path = crate::path::unit_path(unit);
    let changed: BTreeMap<&str, Variant<'_>> =
        BTreeMap::from([("ActiveState", Variant::new("active"))]);
    let signal = Message::signal(
        path.as_str(),
        "org.freedesktop.DBus.Properties",
        "PropertiesChanged",
    );
    match to {
        Some(to) => signal.destination(to),
        None => signal,
    }
    .build(&(
        "org.freedesktop.systemd1.Unit",
        changed,
        Vec::<String>::new(),
    ))
    .unwrap()
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl ServedManager {
    fn subscribe(&mut self) -> Result<(), Refusal> {
        if self.subscribed {
            return Err(Refusal::AlreadySubscribed("again".to_owned()));
        }
        self.subscribed = true;
        Ok(())
    }

    fn list_units_by_names(&mut self, names: Vec<String>) -> Vec<ListedUnit> {
        let sub_state = self.sub_states.pop().unwrap_or("running");
        let listed = |name: String| ListedUnit {
            path: OwnedObjectPath::try_from(crate::path::unit_path(&name)).unwrap(),
            name,
            description: String::new(),
            load_state: "loaded".to_owned(),
            active_state: "active".to_owned(),
            sub_state: sub_state.to_owned(),
            following: String::new(),
            job_id: 0,
            job_type: String::new(),
            job_path: OwnedObjectPath::try_from("/").unwrap(),
        };
        names.into_iter().map(listed).collect()
    }

    async fn reload(
        &self,
        #[zbus(signal_emitter)] emitter: SignalEmitter<'_>,
    ) -> Result<(), Refusal> {
        Self::reloading(&emitter, true).await?;
        Self::reloading(&emitter, false).await?;
        Ok(())
    }

    async fn start_unit(
        &mut self,
        name: &str,
        mode: &str,
        #[zbus(connection)] connection: &Connection,
    ) -> Result<OwnedObjectPath, Refusal> {
        assert_eq!(mode, "replace");
        self.jobs += 1;
        let job = self.jobs;
        match name {
            "kat-none.service" => {
                return Err(Refusal::NoSuchUnit(format!("Unit {name} not found.")));
            }
            "kat-masked.service" => {
                return Err(Refusal::UnitMasked(format!("Unit {name} is masked.")));
            }
            "kat-broken.service" => return Err(Refusal::LoadFailed("no ExecStart=".to_owned())),
            "kat-late.service" => return Err(Refusal::ShuttingDown("going down".to_owned())),
            "kat-denied.service" => {
                return Err(Refusal::ZBus(zbus::Error::FDO(Box::new(
                    zbus::fdo::Error::AccessDenied("not you".to_owned()),
                ))));
            }
            // The job ends before the caller gets the job's path.
            "kat-early.service" => say_job_removed(connection, job, "done").await,
            "kat-stuck.service" => {}
            _ => {
                let connection = connection.clone();
                let result = match name {
                    "kat-bad.service" => "failed",
                    "kat-dependent.service" => "dependency",
                    "kat-new.service" => "exploded",
                    _ => "done",
                };
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    // Another job ends first.
                    say_job_removed(&connection, 9999, "canceled").await;
                    say_job_removed(&connection, job, result).await;
                    say_changed(&connection, "other.service").await;
                    say_changed(&connection, "kat-ok.service").await;
                });
            }
        }
        Ok(OwnedObjectPath::try_from(format!("/org/freedesktop/systemd1/job/{job}")).unwrap())
    }

    #[zbus(signal)]
    async fn reloading(emitter: &SignalEmitter<'_>, active: bool) -> zbus::Result<()>;
}

pub(super) struct ServedUnit;

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl ServedUnit {
    #[zbus(property, name = "InvocationID")]
    fn invocation(&self) -> Vec<u8> {
        (0..16).collect()
    }
    #[zbus(property)]
    fn need_daemon_reload(&self) -> bool {
        true
    }
}

pub(super) struct ServedService;

#[zbus::interface(name = "org.freedesktop.systemd1.Service")]
impl ServedService {
    #[zbus(property)]
    fn result(&self) -> &str {
        "success"
    }
    #[zbus(property, name = "MainPID")]
    fn main_pid(&self) -> u32 {
        4711
    }
    /// Of an unexpected type, which the reader must ignore.
    #[zbus(property)]
    fn exec_main_status(&self) -> u64 {
        3
    }
    #[zbus(property)]
    fn exec_main_code(&self) -> i32 {
        1
    }
    #[zbus(property)]
    fn exec_main_start_timestamp_monotonic(&self) -> u64 {
        5
    }
    #[zbus(property)]
    fn exec_main_exit_timestamp_monotonic(&self) -> u64 {
        6
    }
    #[zbus(property)]
    fn control_group(&self) -> &str {
        "/user.slice/x"
    }
    #[zbus(property)]
    fn memory_current(&self) -> u64 {
        u64::MAX
    }
    #[zbus(property, name = "CPUUsageNSec")]
    fn cpu_usage(&self) -> u64 {
        99
    }
}

//! The real manager against a served one, over a pair of sockets.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::StreamExt;
use parking_lot::Mutex;
use zbus::{Connection, Guid, connection::Builder};

use super::served_manager::{ServedManager, serve};
use crate::{
    ActiveState, BusManager, Connector, JobResult, LoadState, ServiceResult, SubState,
    SystemdError, UnitEvent, UnitManager, UnitStatus, UnitUsage,
};

const LIMIT: Duration = Duration::from_secs(5);

/// Connects to a new served manager each time, `times` times.
struct Peers {
    times: Mutex<u32>,
    attempts: Mutex<u32>,
    /// The number of connections to come on which nobody answers.
    silent: Mutex<u32>,
    servers: Mutex<Vec<Connection>>,
}

impl Peers {
    fn new(times: u32) -> Arc<Self> {
        Arc::new(Self {
            times: Mutex::new(times),
            attempts: Mutex::new(0),
            silent: Mutex::new(0),
            servers: Mutex::default(),
        })
    }

    async fn hang_up(&self) {
        let server = self.servers.lock().remove(0);
        server.close().await.unwrap();
    }
}

#[async_trait]
impl Connector for Peers {
    fn name(&self) -> String {
        "user 20001".to_owned()
    }

    async fn connect(&self) -> Result<Connection, String> {
        *self.attempts.lock() += 1;
        if *self.times.lock() == 0 {
            return Err("no more peers".to_owned());
        }
        *self.times.lock() -= 1;
        let (one, two) = UnixStream::pair().unwrap();
        if *self.silent.lock() > 0 {
            *self.silent.lock() -= 1;
            let server = std::thread::spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_all().build().unwrap();
                let server = Builder::unix_stream(one).server(Guid::generate()).p2p();
                let server = runtime.block_on(server.build()).unwrap();
                // Nothing runs the server's tasks from here on.
                std::mem::forget((runtime, server));
            });
            let client = Builder::unix_stream(two).p2p().build().await;
            server.join().unwrap();
            return client.map_err(|error| error.to_string());
        }
        let server = Builder::unix_stream(one).server(Guid::generate()).p2p();
        let client = Builder::unix_stream(two)
            .p2p()
            .method_timeout(Duration::from_secs(2));
        let (server, client) = futures_util::join!(server.build(), client.build());
        let server = server.unwrap();
        serve(&server).await;
        self.servers.lock().push(server);
        client.map_err(|error| error.to_string())
    }
}

#[tokio::test]
async fn waits_for_the_result_of_its_own_job() {
    let manager = BusManager::new(Peers::new(1));
    for (unit, expected) in [
        ("kat-ok.service", JobResult::Done),
        ("kat-early.service", JobResult::Done),
        ("kat-bad.service", JobResult::Failed),
        ("kat-dependent.service", JobResult::Dependency),
        ("kat-new.service", JobResult::Other),
    ] {
        assert_eq!(
            manager.start(unit, LIMIT).await.unwrap(),
            expected,
            "{unit}"
        );
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_is_opened_again_by_the_next_call() {
    let peers = Peers::new(2);
    let manager = BusManager::new(peers.clone());
    let mut events = manager.events().await.unwrap();
    assert!(events.next().await.is_some());
    manager.close();
    assert!(events.next().await.is_none(), "it ends with the connection");
    assert_eq!(*peers.attempts.lock(), 1);
    manager.start("kat-ok.service", LIMIT).await.unwrap();
    assert_eq!(*peers.attempts.lock(), 2);
}

#[tokio::test]
async fn a_job_that_does_not_end_runs_into_its_limit() {
    let manager = BusManager::new(Peers::new(1));
    let limit = Duration::from_millis(200);
    let error = manager.start("kat-stuck.service", limit).await.unwrap_err();
    assert!(
        matches!(&error, SystemdError::JobTimeout { unit, .. } if unit == "kat-stuck.service"),
        "{error}"
    );
    // The connection still works.
    manager.start("kat-ok.service", LIMIT).await.unwrap();
}

#[tokio::test]
async fn errors_become_what_they_mean() {
    let manager = BusManager::new(Peers::new(1));
    let start = async |unit: &str| manager.start(unit, LIMIT).await.unwrap_err();
    assert!(matches!(
        start("kat-none.service").await,
        SystemdError::NoSuchUnit(unit) if unit == "kat-none.service"
    ));
    assert!(matches!(
        start("kat-masked.service").await,
        SystemdError::Masked(unit) if unit == "kat-masked.service"
    ));
    assert!(matches!(
        start("kat-late.service").await,
        SystemdError::Unreachable { manager, .. } if manager == "user 20001"
    ));
    let broken = start("kat-broken.service").await;
    assert_eq!(
        broken.to_string(),
        "kat-broken.service: no ExecStart= (org.freedesktop.systemd1.LoadFailed)"
    );
    let denied = start("kat-denied.service").await;
    assert!(
        matches!(
            &denied,
            SystemdError::Refused { unit, .. } if unit == "kat-denied.service"
        ),
        "{denied:?}"
    );
    // The served manager does not have this method.
    let unknown = manager.stop("kat-ok.service", LIMIT).await.unwrap_err();
    assert!(
        unknown
            .to_string()
            .contains("org.freedesktop.DBus.Error.UnknownMethod"),
        "{unknown}"
    );
}

#[tokio::test]
async fn reads_the_properties_of_a_service() {
    let manager = BusManager::new(Peers::new(1));
    let status = manager.status("kat-ok.service").await.unwrap();
    let expected = UnitStatus {
        load_state: LoadState::Loaded,
        active_state: ActiveState::Active,
        sub_state: SubState::Running,
        result: ServiceResult::Success,
        main_pid: 4711,
        // Of an unexpected type.
        exec_main_status: 0,
        exec_main_code: 1,
        exec_main_start_monotonic: 5,
        exec_main_exit_monotonic: 6,
        // Not served.
        restarts: 0,
        control_group: "/user.slice/x".to_owned(),
    };
    assert_eq!(status, expected);
    let state = manager.active_state("kat-ok.service").await.unwrap();
    assert_eq!(state, ActiveState::Active);
    let usage = manager.usage("kat-ok.service").await.unwrap();
    let (memory, cpu) = (None, Some(99));
    assert_eq!(usage, UnitUsage { memory, cpu });
    let invocation = manager.invocation_id("kat-ok.service").await.unwrap();
    assert_eq!(invocation, "000102030405060708090a0b0c0d0e0f");
    assert!(manager.needs_reload("kat-ok.service").await.unwrap());
}

#[tokio::test]
async fn a_unit_that_changes_while_it_is_read_is_read_again() {
    let peers = Peers::new(1);
    let manager = BusManager::new(peers.clone());
    manager.active_state("kat-ok.service").await.unwrap();
    let server = peers.servers.lock()[0].clone();
    let served = server.object_server();
    let served = served.interface::<_, ServedManager>("/org/freedesktop/systemd1");
    let served = served.await.unwrap();
    // The state differs before and after the properties, and then no more.
    served.get_mut().await.sub_states = vec!["running", "start"];
    let status = manager.status("kat-ok.service").await.unwrap();
    assert_eq!(status.sub_state, SubState::Running);
    // It never stays the same: the last read counts, with the older state.
    served.get_mut().await.sub_states = vec!["f", "e", "d", "c", "b", "a"];
    let status = manager.status("kat-ok.service").await.unwrap();
    assert_eq!(status.sub_state.word(), "e");
    assert!(served.get().await.sub_states.is_empty());
}

#[tokio::test]
async fn hears_of_its_units_and_of_reloads_only() {
    let manager = BusManager::new(Peers::new(1));
    let mut events = manager.events().await.unwrap();
    assert_eq!(events.next().await, Some(UnitEvent::All));
    manager.start("kat-ok.service", LIMIT).await.unwrap();
    assert_eq!(
        events.next().await,
        Some(UnitEvent::Changed("kat-ok.service".to_owned()))
    );
    manager.reload().await.unwrap();
    assert_eq!(events.next().await, Some(UnitEvent::All));
}

#[tokio::test]
async fn comes_back_after_the_bus_went_away() {
    let peers = Peers::new(2);
    let manager = BusManager::new(peers.clone());
    let mut events = manager.events().await.unwrap();
    assert_eq!(events.next().await, Some(UnitEvent::All));
    let wait = async {
        let error = manager.start("kat-stuck.service", LIMIT).await.unwrap_err();
        assert!(matches!(error, SystemdError::Unreachable { .. }), "{error}");
    };
    let hang_up = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        peers.hang_up().await;
    };
    futures_util::join!(wait, hang_up);
    assert_eq!(events.next().await, None, "the stream ends");
    assert_eq!(
        manager.start("kat-ok.service", LIMIT).await.unwrap(),
        JobResult::Done
    );
}

#[tokio::test]
async fn does_not_hammer_a_bus_that_is_not_there() {
    let peers = Peers::new(0);
    let manager = BusManager::new(peers.clone());
    for _ in 0..20 {
        let error = manager.reload().await.unwrap_err();
        assert!(error.to_string().contains("no more peers"), "{error}");
    }
    assert_eq!(*peers.attempts.lock(), 1);
    tokio::time::pause();
    tokio::time::advance(Duration::from_millis(101)).await;
    manager.reload().await.unwrap_err();
    assert_eq!(*peers.attempts.lock(), 2);
    tokio::time::advance(Duration::from_millis(101)).await;
    manager.reload().await.unwrap_err();
    assert_eq!(*peers.attempts.lock(), 2, "the delay grows");
    tokio::time::advance(Duration::from_secs(5)).await;
    *peers.times.lock() = 1;
    tokio::time::resume();
    manager.reload().await.unwrap();
}

#[tokio::test]
async fn a_connection_without_an_answer_is_followed_by_another_one() {
    let peers = Peers::new(2);
    *peers.silent.lock() = 1;
    let manager = BusManager::new(peers.clone());
    assert_eq!(
        manager.start("kat-ok.service", LIMIT).await.unwrap(),
        JobResult::Done
    );
    assert_eq!(*peers.attempts.lock(), 2);
}

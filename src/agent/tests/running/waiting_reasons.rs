//! Reasons of instances that wait for a user, a manager, a port, a file or a network link.

use super::*;
use kat_host::facts::network::{self as facts, Listener};
use kat_testing::systemd::fake::ManagerAbsence;
use kat_types::resource::{HostPort, Port, Protocol};

#[tokio::test(start_paused = true)]
async fn an_instance_that_comes_while_the_user_waits_has_the_reason_at_once() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    let second = Assignment {
        instance: "web-bbbbb".to_owned(),
        slot: 1,
        ..web.clone()
    };
    bench.accounts.taken.store(true, Ordering::Relaxed);
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(130)).await;
    bench.list(true, &[web.clone(), second.clone()]);
    bench.later(Duration::from_millis(1)).await;
    let (phase, reason, message) = bench.said(&second.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "UserNotReady")
    );
    assert!(message.contains("taken by dora"), "{message}");
    bench.accounts.taken.store(false, Ordering::Relaxed);
    bench.later(Duration::from_secs(300)).await;
    for one in [&web, &second] {
        let said = bench.said(&one.instance);
        assert_eq!((said.0, said.1.as_str()), (InstancePhase::Running, ""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_users_manager_that_has_ended_is_started_again_with_what_it_runs() {
    let mut bench = Bench::new();
    let web = assignment(0, "web");
    bench.images(&web, &["registry.lab:5000/web:1"]);
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    bench.machine.lose_user(web.user.uid, ManagerAbsence::Ended);
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.calls(&web, "restart user@"), 1);
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    // The agent also restarts a manager that ended while no agent ran.
    bench.cancel.cancel();
    bench.running.take().unwrap().await.unwrap();
    bench.machine.lose_user(web.user.uid, ManagerAbsence::Ended);
    bench.begin();
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.calls(&web, "restart user@"), 2);
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_waits_for_a_users_manager_stops_within_a_second() {
    let mut bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.machine.lose_user(web.user.uid, ManagerAbsence::Hangs);
    bench.later(Duration::from_secs(2)).await;
    assert_eq!(bench.said(&web.instance).1, "SystemdRefused");
    assert_eq!(bench.calls(&web, "restart user@"), 0, "it runs");
    let began = Instant::now();
    bench.cancel.cancel();
    bench.running.take().unwrap().await.unwrap();
    assert!(began.elapsed() <= Duration::from_secs(1));
    assert!(began.elapsed() > Duration::from_millis(900), "it waited");
}

#[tokio::test(start_paused = true)]
async fn a_port_that_a_program_of_the_machine_has_is_waited_for() {
    let bench = Bench::new();
    let port = |host_port| Port {
        name: None,
        container_port: 8080,
        protocol: Protocol::Tcp,
        host_port,
        ..Port::default()
    };
    let web = Assignment {
        ports: vec![port(None), port(Some(HostPort::Number(80)))],
        ..assignment(0, "web")
    };
    let nginx = Listener {
        protocol: facts::SocketProtocol::Tcp,
        address: Ipv4Addr::UNSPECIFIED.into(),
        port: 80,
        process: Some("nginx".to_owned()),
        pid: Some(812),
        unit: None,
        manager: None,
    };
    bench.others.0.lock().push(nginx.clone());
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let (phase, reason, message) = bench.said(&web.instance);
    assert_eq!(
        (phase, reason.as_str()),
        (InstancePhase::Starting, "HostPortInUse")
    );
    assert_eq!(
        message,
        "host port 80/TCP is in use by nginx (pid 812); it starts when the port is free"
    );
    assert_eq!(bench.calls(&web, "start kat-default-web-aaaaa"), 0);
    bench.others.0.lock().clear();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    assert_eq!(bench.report(&web.instance).unwrap().conditions, []);
    // nginx listens again: the running instance continues and has a condition.
    bench.others.0.lock().push(nginx);
    bench.later(Duration::from_secs(31)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(report.phase, InstancePhase::Running);
    assert_eq!(report.conditions[0].reason, "HostPortInUse");
    bench.others.0.lock().clear();
    bench.later(Duration::from_secs(31)).await;
    assert_eq!(bench.report(&web.instance).unwrap().conditions, []);
}

#[tokio::test(start_paused = true)]
async fn files_that_cant_be_written_are_told_of_new_instances_and_not_of_running_ones() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let second = Assignment {
        instance: "web-bbbbb".to_owned(),
        slot: 1,
        ..web.clone()
    };
    // A folder at the path of the file makes the write fail.
    let blocked = bench.units(&web).join("kat-default-web-bbbbb.container");
    std::fs::create_dir(&blocked).unwrap();
    bench.list(true, &[web.clone(), second.clone()]);
    bench.soon().await;
    assert_eq!(bench.said(&second.instance).1, "FilesNotWritten");
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    std::fs::remove_dir(&blocked).unwrap();
    bench.later(Duration::from_secs(6)).await;
    assert_eq!(bench.said(&second.instance).0, InstancePhase::Running);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_runs_without_its_link_is_told_of_and_is_sent_nobody() {
    use kat_network::containers::attach::host_link_name;
    let bench = Bench::new();
    let web = assignment(0, "web");
    let links = bench.root.path().join("sys/class/net");
    let link = links.join(host_link_name(&web.instance));
    std::fs::create_dir_all(&links).unwrap();
    std::fs::write(&link, "").unwrap();
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(40)).await;
    let said = bench.said(&web.instance);
    assert_eq!((said.0, said.1.as_str()), (InstancePhase::Running, ""));
    std::fs::remove_file(&link).unwrap();
    bench.later(Duration::from_secs(40)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(report.phase, InstancePhase::Running);
    assert_eq!(report.reason, "NetworkLinkMissing");
    assert!(!report.health_status.serves());
    std::fs::write(&link, "").unwrap();
    bench.later(Duration::from_secs(6)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(report.reason, "");
    assert!(report.health_status.serves());
}

#[tokio::test(start_paused = true)]
async fn a_link_that_went_with_one_run_is_not_missed_at_once_in_the_next() {
    use kat_network::containers::attach::host_link_name;
    let bench = Bench::new();
    let web = with_policy(assignment(0, "web"), RestartCondition::Always);
    let behaviour = UnitBehaviour {
        restarts: true,
        rests: true,
        ..UnitBehaviour::default()
    };
    bench.behave(&web.unit(), Some(behaviour));
    let links = bench.root.path().join("sys/class/net");
    let link = links.join(host_link_name(&web.instance));
    std::fs::create_dir_all(&links).unwrap();
    std::fs::write(&link, "").unwrap();
    bench.list(true, std::slice::from_ref(&web));
    bench.later(Duration::from_secs(40)).await;
    // The program ends: its link goes first, which is seen, and then its unit.
    std::fs::remove_file(&link).unwrap();
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    let (unit, manager) = (web.unit(), bench.manager(&web));
    manager.exits(&unit, 3);
    bench.later(Duration::from_secs(6)).await;
    manager.restart_due(&unit);
    bench.soon().await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(
        (report.phase, report.reason.as_str()),
        (InstancePhase::Running, "")
    );
    // The control: it is missed in this run.
    bench.later(Duration::from_secs(40)).await;
    let report = bench.report(&web.instance).unwrap();
    assert_eq!(report.reason, "NetworkLinkMissing");
}

#[tokio::test(start_paused = true)]
async fn an_account_that_somebody_removed_is_made_again_beside_the_running_instance() {
    let bench = Bench::new();
    let web = assignment(0, "web");
    bench.list(true, std::slice::from_ref(&web));
    bench.soon().await;
    bench.manager(&web).clear_calls();
    bench.accounts.users.lock().clear();
    bench.later(Duration::from_secs(45)).await;
    assert!(
        !bench.accounts.users.lock().is_empty(),
        "the account is there"
    );
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
    let calls = bench.manager(&web).calls();
    assert!(
        !calls
            .iter()
            .any(|call| call.starts_with("st") || call.starts_with("re")),
        "nothing was started, stopped or reloaded: {calls:?}"
    );

    // Where its uid is another account's by now, the reason says so until it is free.
    bench.accounts.taken.store(true, Ordering::Relaxed);
    bench.accounts.users.lock().clear();
    bench.later(Duration::from_secs(45)).await;
    assert_eq!(bench.said(&web.instance).1, "UserNotReady");
    bench.accounts.taken.store(false, Ordering::Relaxed);
    bench.later(Duration::from_secs(300)).await;
    assert_eq!(bench.said(&web.instance).0, InstancePhase::Running);
}

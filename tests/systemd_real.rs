//! The systemd crate against a running systemd, as root on a separate machine.
//!
//! `contrib/test` copies this test into the lab and runs it there. Where pid 1 is not systemd, the
//! same suite runs against the fake, and the output says which one it was.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "helpers of tests are no tests to clippy"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::StreamExt;

use kat_host::{check, users::Users};
use kat_systemd::{
    ActiveState, Confinement, Connector, JobResult, Journal, JournalQuery, LoadState, LogSource,
    Logind, ManagerSource, Managers, ProgramStream, SystemBus, TransientUnit, UnitManager,
    UserSessions,
    path::unit_path,
    proxies::{LOGIND, SYSTEMD},
};
use kat_testing::systemd::{
    conformance,
    fake::FakeManager,
    introspection::{missing, parse},
};
use kat_types::{
    assignment::WorkloadUser,
    resource::{AgentConfig, ClusterSpec},
};

const LIMIT: Duration = Duration::from_secs(30);
/// Index of the workload whose user the tests create.
const INDEX: u32 = 3999;
const UID: u32 = 23_999;

/// Whether this machine's systemd may be tested.
fn has_systemd() -> bool {
    let real = Path::new("/run/systemd/system").is_dir()
        && fs::read_to_string("/proc/1/comm").is_ok_and(|name| name.trim() == "systemd")
        && rustix::process::geteuid().is_root();
    println!(
        "this ran against {}",
        if real {
            "the REAL systemd"
        } else {
            "THE FAKE ONLY: pid 1 is not systemd, or this is not root"
        }
    );
    real
}

async fn introspect(bus: &str, path: &str) -> String {
    let connection = SystemBus.connect().await.unwrap();
    let reply = connection
        .call_method(
            Some(bus),
            path,
            Some("org.freedesktop.DBus.Introspectable"),
            "Introspect",
            &(),
        )
        .await
        .unwrap();
    reply.body().deserialize().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn system_manager_conforms() {
    if !has_systemd() {
        let folder = tempfile::tempdir().unwrap();
        let fake = FakeManager::with_folder("the system", folder.path());
        conformance::run_commands(&fake).await.unwrap();
        return conformance::run(&fake, folder.path()).await.unwrap();
    }
    let manager = Managers::new().system();
    conformance::run_commands(&*manager).await.unwrap();
    conformance::run(&*manager, Path::new("/run/systemd/system"))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_xml_is_what_systemd_offers() {
    if !has_systemd() {
        return;
    }
    for (xml, bus, paths) in [
        (
            include_str!("../dbus/org.freedesktop.systemd1.xml"),
            SYSTEMD,
            vec![
                "/org/freedesktop/systemd1".to_owned(),
                unit_path("dbus.service"),
            ],
        ),
        (
            include_str!("../dbus/org.freedesktop.login1.xml"),
            LOGIND,
            vec!["/org/freedesktop/login1".to_owned()],
        ),
    ] {
        let mut offered = kat_testing::systemd::introspection::Interfaces::new();
        for path in paths {
            offered.extend(parse(&introspect(bus, &path).await).unwrap());
        }
        let differences = missing(&parse(xml).unwrap(), &offered);
        assert!(differences.is_empty(), "{bus}: {differences:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_sees_this_machine() {
    let input = check::CheckInput::new(
        ClusterSpec::default(),
        AgentConfig::default(),
        check::CheckStage::BeforeInit,
    );
    let findings = check::run(&input).await;
    println!("{}", check::render(&findings, false));
    if has_systemd() {
        let sees = |text: &str| {
            findings
                .iter()
                .any(|finding| finding.what.starts_with(text))
        };
        assert!(sees("systemd 25") && sees("Podman 5") && sees("crun runs"));
    }
}

/// A shell script, confined as a program that changes records of DNS (`src/agent/ingress/dns_hooks.rs`).
fn confined(name: &str, script: &str) -> TransientUnit {
    TransientUnit {
        name: unit_of(name),
        description: "Probe of a confined program".to_owned(),
        command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        limit: Duration::from_secs(4),
        confinement: Some(Confinement {
            memory: 64 << 20,
            tasks: 64,
            ..Confinement::default()
        }),
        ..TransientUnit::default()
    }
}

fn unit_of(name: &str) -> String {
    format!("kat-test-confined-{name}.service")
}

/// Whether a process of the machine has this argument.
fn has_argument(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap();
    processes.flatten().any(|process| {
        let words = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        words.any(|word| word == argument.as_bytes())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_program_that_forks_hangs_or_fills_memory_ends_alone() {
    if !has_systemd() {
        return;
    }
    let manager = Managers::new().system();
    let hostile = [
        ("forks", "while :; do sleep 98761 & done"),
        ("hangs", "trap '' TERM; while :; do sleep 1; done"),
        (
            "fills",
            "head -c 300000000 /dev/zero | tail -c 300000000 >/dev/null",
        ),
    ];
    // Without the controller nothing keeps a program from memory (cgroups(7)).
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let limits_memory = controllers.split_whitespace().any(|one| one == "memory");
    let tried = hostile.into_iter();
    let tried: Vec<_> = tried
        .filter(|(name, _)| limits_memory || *name != "fills")
        .collect();
    let runs = tried.iter().map(|(name, script)| {
        let (manager, unit) = (Arc::clone(&manager), confined(name, script));
        tokio::spawn(async move { manager.run_transient(&unit, LIMIT).await })
    });
    let runs: Vec<_> = runs.collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Another one beside them works.
    let well = confined("well", "exit 0");
    let ended = manager.run_transient(&well, LIMIT).await.unwrap();
    assert_eq!(ended.result, JobResult::Done);
    for ((name, _), run) in tried.into_iter().zip(runs) {
        let ended = run.await.unwrap().unwrap();
        assert_ne!(ended.result, JobResult::Done, "{name}");
        let deadline = std::time::Instant::now() + LIMIT;
        while manager.status(&unit_of(name)).await.unwrap().load_state != LoadState::NotFound {
            assert!(std::time::Instant::now() < deadline, "{name} is left");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert!(!has_argument("98761"), "what it forked runs on");
    let ended = manager.run_transient(&well, LIMIT).await.unwrap();
    assert_eq!(ended.result, JobResult::Done);
}

/// A unit whose program writes to the journal like conmon and writes a line of its own.
async fn journal_has_the_programs_lines(manager: &dyn UnitManager, folder: &Path) {
    let script = folder.join("write");
    fs::write(
        &script,
        "echo plain\nprintf 'MESSAGE=out\\nPRIORITY=3\\nCONTAINER_NAME=kat-log\\n' | \
         logger --journald\nprintf 'MESSAGE=event\\nPODMAN_EVENT=start\\n' | logger --journald\n",
    )
    .unwrap();
    fs::write(
        folder.join("kat-log.service"),
        format!(
            "[Service]\nType=oneshot\nExecStart=/bin/sh {}\n",
            script.display()
        ),
    )
    .unwrap();
    let query = JournalQuery {
        uid: UID,
        unit: "kat-log.service".to_owned(),
        since: Some(SystemTime::now() - Duration::from_secs(60)),
        follow: true,
        ..JournalQuery::default()
    };
    let mut entries = Journal::new().entries(&query);
    let begin = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    manager.reload().await.unwrap();
    manager.start("kat-log.service", LIMIT).await.unwrap();
    let mut seen: Vec<String> = Vec::new();
    let reading = async {
        while seen
            .iter()
            .filter(|text| *text == "plain" || *text == "out")
            .count()
            < 2
            || !seen.iter().any(|text| text.starts_with("Finished"))
        {
            seen.push(entries.next().await.unwrap().unwrap().text());
        }
    };
    tokio::time::timeout(LIMIT, reading)
        .await
        .expect("the journal has plain, out and the manager's own line");
    assert!(!seen.iter().any(|text| text == "event"), "{seen:?}");
    let program = JournalQuery {
        follow: false,
        this_boot: true,
        program_output_only: true,
        tail: Some(10),
        ..query
    };
    let found: Vec<_> = Journal::new().entries(&program).collect().await;
    assert_eq!(found.len(), 1, "{found:?}");
    let entry = found[0].as_ref().unwrap();
    assert_eq!(
        (entry.text().as_str(), entry.stream),
        ("out", ProgramStream::Stderr)
    );
    let seconds = entry.monotonic_us / 1_000_000;
    assert!(seconds >= u64::try_from(begin.tv_sec).unwrap(), "{entry:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_manager_conforms_and_lingers() {
    if !has_systemd() {
        return;
    }
    let managers = Managers::new();
    let logind = Logind::new(managers.system());
    let users = Users::new();
    let user = WorkloadUser::from_index(INDEX, "conformance", "suite").unwrap();
    assert_eq!(user.uid, UID);
    // Removes the remains of an earlier run that failed.
    logind.set_linger(UID, false).await.unwrap();
    logind.terminate_user(UID).await.unwrap();
    logind.wait_for_user_stopped(UID, LIMIT).await.unwrap();
    users.remove(&user).await.unwrap();
    assert!(users.create(&user).await.unwrap());
    assert!(!users.create(&user).await.unwrap());
    let accounts = users.accounts().unwrap();
    for ranges in [&accounts.subordinate_uids, &accounts.subordinate_gids] {
        let own: Vec<_> = ranges.iter().filter(|r| r.owner == user.name).collect();
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own[0].start, u64::from(user.subordinate_start));
    }
    // The user's manager is called before it exists, and again once it runs.
    let early = managers.user(UID).reload().await.unwrap_err();
    println!("before linger: {early}");
    let begin = std::time::Instant::now();
    logind.set_linger(UID, true).await.unwrap();
    logind.set_linger(UID, true).await.unwrap();
    logind.wait_for_user_bus(UID, LIMIT).await.unwrap();
    println!("the user's manager answered after {:?}", begin.elapsed());
    assert!(logind.users().await.unwrap().contains(&UID));

    let folder = PathBuf::from(format!("/run/user/{UID}/systemd/user"));
    fs::create_dir_all(&folder).unwrap();
    let manager = managers.user(UID);
    conformance::run(&*manager, &folder).await.unwrap();

    // Starts 24 units at once over one connection.
    let text = "[Service]\nType=exec\nExecStart=/bin/sleep 1000\n";
    let names: Vec<String> = (0..24).map(|n| format!("kat-many-{n}.service")).collect();
    for name in &names {
        fs::write(folder.join(name), text).unwrap();
    }
    manager.reload().await.unwrap();
    let begin = std::time::Instant::now();
    let starts = names.iter().map(|name| manager.start(name, LIMIT));
    for result in futures_util::future::join_all(starts).await {
        assert_eq!(result.unwrap(), JobResult::Done);
    }
    println!("24 units started at once in {:?}", begin.elapsed());
    assert_eq!(manager.list("kat-many-*").await.unwrap().len(), 24);
    let begin = std::time::Instant::now();
    for name in &names {
        assert_eq!(
            manager.status(name).await.unwrap().active_state,
            ActiveState::Active
        );
    }
    println!("24 units read one by one in {:?}", begin.elapsed());

    journal_has_the_programs_lines(&*manager, &folder).await;

    logind.set_linger(UID, false).await.unwrap();
    logind.terminate_user(UID).await.unwrap();
    logind.wait_for_user_stopped(UID, LIMIT).await.unwrap();
    logind.terminate_user(UID).await.unwrap();
    manager.status("kat-many-0.service").await.unwrap_err();
    managers.forget_user(UID);
    drop(Arc::clone(&manager));
    users.remove(&user).await.unwrap();
    assert!(!users.home(&user).exists());
    assert!(users.accounts().unwrap().user(&user.name).is_none());
    // The user no longer exists.
    logind.set_linger(UID, false).await.unwrap();
}

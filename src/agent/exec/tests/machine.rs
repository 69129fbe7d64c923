//! Starting sessions on a machine, and the limits on their number and duration.

use super::*;

/// A machine with a running instance whose container id is known.
struct Here {
    root: tempfile::TempDir,
    machine: Arc<FakeMachine>,
    entry: InstanceEntry,
    manager: Arc<FakeManager>,
    sessions: LocalSessions,
}

fn entry(assignment: Assignment) -> InstanceEntry {
    InstanceEntry {
        node: "n1".to_owned(),
        created_revision: 0,
        assignment: kat_types::store::revisions::Stored {
            revision: 0,
            value: Arc::new(assignment),
        },
    }
}

async fn run_on(machine: &FakeMachine, assignment: &Assignment) -> Arc<FakeManager> {
    let manager = machine.user_manager(assignment.user.uid);
    manager.set_unreachable(None);
    manager.define(&assignment.unit(), UnitBehaviour::default());
    let started = manager.start(&assignment.unit(), DEADLINE).await;
    assert_eq!(started.unwrap(), JobResult::Done);
    manager
}

impl Here {
    async fn new() -> Self {
        let assignment = assignment();
        let root = tempfile::tempdir().unwrap();
        let folder = format!("run/user/{}", assignment.user.uid);
        let folder = root.path().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let unit = assignment.unit();
        let file = format!("{}.cid", unit.strip_suffix(".service").unwrap());
        std::fs::write(folder.join(file), "0a1b".repeat(16)).unwrap();
        let machine = Arc::new(FakeMachine::new());
        let manager = run_on(&machine, &assignment).await;
        let managers: Arc<dyn ManagerSource> = Arc::<FakeMachine>::clone(&machine);
        let sessions = LocalSessions::new(managers, root.path().to_owned());
        Self {
            root,
            machine,
            entry: entry(assignment),
            manager,
            sessions,
        }
    }

    async fn unit(&self) -> Result<(TransientUnit, CommandCgroup), SessionError> {
        let assignment = &self.entry.assignment.value;
        let request = ExecRequest::default();
        let manager = self.manager.as_ref();
        self.sessions.unit(manager, assignment, &request).await
    }

    async fn begin(&self) -> Result<OutputFrames, SessionError> {
        let request = SessionRequest::Exec(ExecRequest::default());
        let inputs = Box::pin(stream::pending());
        self.sessions
            .begin(None, &self.entry, request, inputs)
            .await
    }
}

#[tokio::test]
async fn a_command_has_a_group_of_its_own_that_ends_with_its_unit() {
    let here = Here::new().await;
    let (unit, group) = here.unit().await.unwrap();
    assert_eq!(unit.afterwards, group.end());
    let podman = command(&here.entry.assignment.value.unit(), &ExecRequest::default());
    assert_eq!(unit.command, group.begin(podman));
    let conf = "CONTAINERS_CONF_OVERRIDE=/usr/share/kat/podman-exec.conf";
    assert_eq!(unit.environment, [conf]);
    // Units of this agent process are not taken for abandoned ones.
    let (other, _) = here.unit().await.unwrap();
    assert_ne!(unit.name, other.name);
    let left = "kat-exec-0123456789abcdef.service".to_owned();
    let found: Vec<String> = without_caller(vec![unit.name, left.clone(), other.name]).collect();
    assert_eq!(found, [left]);
}

#[tokio::test]
async fn only_what_runs_is_entered() {
    let here = Here::new().await;
    let unit = here.entry.assignment.value.unit();
    here.manager.stop(&unit, DEADLINE).await.unwrap();
    let refused = here.begin().await.err();
    assert!(
        matches!(&refused, Some(SessionError::Conflict(reason)) if reason.contains("does not run")),
        "{refused:?}"
    );
    here.manager.start(&unit, DEADLINE).await.unwrap();
    std::fs::remove_dir_all(here.root.path().join("run")).unwrap();
    let refused = here.begin().await.err();
    assert!(
        matches!(&refused, Some(SessionError::Unavailable(reason)) if reason.contains("cannot find the container")),
        "{refused:?}"
    );
}

#[tokio::test]
async fn there_are_only_so_many_sessions_on_a_machine_and_of_one_caller_fewer() {
    let here = Here::new().await;
    let hold = |caller: Option<&str>, count: usize| -> Vec<_> {
        let held = (0..count).map(|_| here.sessions.open.open(caller).unwrap());
        held.collect()
    };
    let begin = |caller| {
        let request = SessionRequest::Exec(ExecRequest::default());
        here.sessions.begin(
            Some(caller),
            &here.entry,
            request,
            Box::pin(stream::pending()),
        )
    };
    let own = hold(Some("token:a"), MOST_OF_ONE);
    let refused = begin("token:a").await.err();
    assert!(
        matches!(&refused, Some(SessionError::TooMany { message, hint: Some(_) }) if message.contains("`n1`: `token:a` has 64")),
        "{refused:?}"
    );
    let other = begin("token:b").await;
    assert!(other.is_ok());
    let rest = hold(None, MOST_SESSIONS - MOST_OF_ONE - 1);
    let refused = begin("token:b").await.err();
    assert!(
        matches!(&refused, Some(SessionError::TooMany { message, .. }) if message.contains("128")),
        "{refused:?}"
    );
    drop((own, rest));
    assert!(begin("token:a").await.is_ok());
}

/// The connection stays open without any traffic.
#[tokio::test(start_paused = true)]
async fn a_connection_ends_after_a_day() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut here = Here::new().await;
    let mut assignment = assignment();
    assignment.address = std::net::Ipv4Addr::LOCALHOST;
    here.entry = entry(assignment);
    let Here {
        entry, sessions, ..
    } = &here;
    let began = tokio::time::Instant::now();
    let request = SessionRequest::Forward(port);
    let begun = sessions.begin(None, entry, request, Box::pin(stream::pending()));
    let mut outputs = begun.await.unwrap();
    let (_stream, _) = listener.accept().await.unwrap();
    let last = outputs.next().await;
    assert!(
        matches!(&last, Some(OutputFrame::Failed(body)) if body.message.contains("a whole day")),
        "{last:?}"
    );
    let lasted = began.elapsed();
    assert!(
        lasted >= LONGEST && lasted < LONGEST + DEADLINE,
        "{lasted:?}"
    );
    assert!(outputs.next().await.is_none());
    assert_eq!(sessions.open.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_hangs_hides_its_own_instance_alone() {
    let here = Here::new().await;
    let mut entries = vec![here.entry.clone()];
    for number in 1..=3_u32 {
        let mut other = assignment();
        other.instance = format!("other-aaaa{number}");
        other.user.uid += number;
        run_on(&here.machine, &other).await;
        entries.push(entry(other));
    }
    let count = async || {
        let usage = timeout(Duration::from_secs(3), here.sessions.usage("n1", &entries)).await;
        let usage = usage.expect("the machine seems away").unwrap();
        usage.instances.into_iter().map(|one| one.instance)
    };
    let names = |from: usize| entries.iter().skip(from);
    let names = |from| names(from).map(|one| one.assignment.value.instance.clone());
    assert!(count().await.eq(names(0)));
    here.manager.hang();
    here.machine
        .user_manager(entries[1].assignment.value.user.uid)
        .hang();
    assert!(count().await.eq(names(2)));
}

//! Health probes in virtual time.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use kat_systemd::SystemdError;
use kat_testing::systemd::fake::FakeManager;
use kat_types::api::Health;

/// An instance with a settable answer that records the time of each probe.
struct Answers {
    began: Instant,
    answer: Mutex<Result<u16, String>>,
    takes: AtomicU64,
    asked: Mutex<Vec<u64>>,
}

#[async_trait::async_trait]
impl ProbeNetwork for Answers {
    async fn connect(&self, address: std::net::SocketAddrV4) -> Result<(), String> {
        self.get(address, "").await.map(drop)
    }

    async fn get(&self, _: std::net::SocketAddrV4, _: &str) -> Result<u16, String> {
        let at = u64::try_from(self.began.elapsed().as_millis()).unwrap();
        self.asked.lock().push(at);
        sleep(Duration::from_millis(self.takes.load(Ordering::Relaxed))).await;
        self.answer.lock().clone()
    }
}

struct Bench {
    answers: Arc<Answers>,
    manager: Arc<FakeManager>,
    root: tempfile::TempDir,
    probes: Probes,
    results: ProbeResults,
}

impl Bench {
    fn new(answer: Result<u16, &str>) -> Self {
        let answers = Arc::new(Answers {
            began: Instant::now(),
            answer: Mutex::new(answer.map_err(str::to_owned)),
            takes: AtomicU64::new(0),
            asked: Mutex::default(),
        });
        let manager = Arc::new(FakeManager::new("user 20000"));
        let root = tempfile::tempdir().unwrap();
        let results = ProbeResults::default();
        let probes = Probes::new(ProbeTools {
            network: Arc::<Answers>::clone(&answers),
            manager: Arc::<FakeManager>::clone(&manager),
            root: root.path().to_owned(),
            monotonic: Arc::new(|| 7),
            results: results.clone(),
        });
        Self {
            answers,
            manager,
            root,
            probes,
            results,
        }
    }

    fn begin(&mut self, run: u64, check: HealthCheck, up: u64, known: Option<HealthProgress>) {
        self.subject(run, check, up, known, http());
    }

    fn subject(
        &mut self,
        run: u64,
        check: HealthCheck,
        up: u64,
        known: Option<HealthProgress>,
        target: ProbeCheck,
    ) {
        let subject = ProbedInstance {
            run,
            up: Duration::from_secs(up),
            check,
            target,
            inside: RunningContainer {
                uid: 20_000,
                stem: "kat-default-web-aaaaa".to_owned(),
                main_pid: 42,
                control_group: "/user.slice".to_owned(),
            },
            known,
        };
        self.probes.begin("web-aaaaa", subject);
    }

    fn answer(&self, answer: Result<u16, &str>) {
        *self.answers.answer.lock() = answer.map_err(str::to_owned);
    }

    fn asked(&self) -> Vec<u64> {
        self.answers.asked.lock().clone()
    }

    fn now(&self) -> (Health, String) {
        let progress = self.probes.of("web-aaaaa").unwrap();
        (progress.health, progress.error)
    }
}

fn http() -> ProbeCheck {
    ProbeCheck::Http {
        address: "10.100.0.2:80".parse().unwrap(),
        path: "/healthz".to_owned(),
    }
}

fn healthy() -> Option<HealthProgress> {
    let mut progress = HealthProgress::default();
    progress.record(&HealthCheck::default(), Ok(()), true);
    Some(progress)
}

async fn later(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test(start_paused = true)]
async fn the_first_result_is_there_at_once_and_the_next_after_a_period() {
    let mut bench = Bench::new(Ok(204));
    bench.begin(1, HealthCheck::default(), 0, None);
    assert_eq!(bench.now().0, Health::PendingCheck);
    bench.probes.changed().await;
    assert_eq!(bench.now(), (Health::Healthy, String::new()));
    later(25_000).await;
    assert_eq!(bench.asked(), [0, 10_000, 20_000]);
}

#[tokio::test(start_paused = true)]
async fn probes_are_counted_over_all_containers_until_the_instance_is_gone() {
    let mut bench = Bench::new(Ok(200));
    bench.answers.takes.store(250, Ordering::SeqCst);
    bench.begin(1, HealthCheck::default(), 0, None);
    assert_eq!(bench.results.of("web-aaaaa"), None);
    later(11_000).await;
    bench.answer(Ok(503));
    // Another container of the same instance, whose early probes count as well.
    bench.begin(2, HealthCheck::default(), 0, None);
    later(800).await;
    let counted = bench.results.of("web-aaaaa").unwrap();
    assert_eq!((counted.succeeded, counted.failed), (2, 2));
    assert!((counted.last_seconds - 0.25).abs() < 0.01, "{counted:?}");
    bench.probes.end("web-aaaaa");
    bench.probes.retain(|instance| instance == "web-aaaaa");
    assert!(bench.results.of("web-aaaaa").is_some());
    bench.probes.retain(|_| false);
    assert_eq!(bench.results.of("web-aaaaa"), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_before_the_delay_which_counts_from_the_start() {
    let mut bench = Bench::new(Ok(200));
    let check = HealthCheck {
        initial_delay_seconds: 30,
        ..HealthCheck::default()
    };
    bench.begin(1, check, 12, None);
    later(20_000).await;
    assert_eq!(bench.asked(), [18_000]);
}

/// A starting instance is probed more often. The extra probes do not count towards the failure
/// threshold.
#[tokio::test(start_paused = true)]
async fn a_starting_instance_is_probed_more_often_but_failures_count_once_per_period() {
    let mut bench = Bench::new(Err("connection refused"));
    bench.begin(1, HealthCheck::default(), 0, None);
    later(7000).await;
    assert_eq!(bench.asked(), [0, 200, 600, 1400, 3000, 6200]);
    later(12_900).await;
    assert_eq!(
        bench.now(),
        (Health::PendingCheck, "connection refused".to_owned())
    );
    // The third failed probe makes the instance unhealthy.
    later(200).await;
    assert_eq!(bench.now().0, Health::Unhealthy);
    later(10_000).await;
    let asked = bench.asked();
    assert_eq!(asked[asked.len() - 2..], [20_000, 30_000]);
    bench.answer(Ok(200));
    later(10_000).await;
    assert_eq!(bench.now(), (Health::Healthy, String::new()));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_late_or_bad_is_a_failure_with_its_words() {
    for (takes, answer, words) in [
        (1100, Ok(200), "timeout after 1 s"),
        (0, Ok(503), "http 503"),
        (0, Ok(404), "http 404"),
        (900, Err("no way to its address"), "no way to its address"),
    ] {
        let mut bench = Bench::new(answer);
        bench.answers.takes.store(takes, Ordering::Relaxed);
        let check = HealthCheck {
            period_seconds: 5,
            failure_threshold: 2,
            ..HealthCheck::default()
        };
        bench.begin(1, check, 0, healthy());
        later(4000).await;
        assert_eq!(bench.now(), (Health::Healthy, words.to_owned()));
        later(4000).await;
        assert_eq!(bench.now(), (Health::Unhealthy, words.to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn another_container_begins_anew_and_the_same_does_not() {
    let mut bench = Bench::new(Ok(200));
    bench.begin(1, HealthCheck::default(), 0, None);
    later(1000).await;
    bench.begin(1, HealthCheck::default(), 1, None);
    assert_eq!(bench.now().0, Health::Healthy);
    bench.answer(Err("connection refused"));
    bench.begin(2, HealthCheck::default(), 0, None);
    assert_eq!(bench.now().0, Health::PendingCheck);
    later(100).await;
    assert_eq!(bench.asked(), [0, 1000], "the other is asked no more");
    bench.probes.end("web-aaaaa");
    later(60_000).await;
    assert_eq!(bench.asked().len(), 2);
}

/// After a restart of the agent, the stored health holds until the thresholds change it.
#[tokio::test(start_paused = true)]
async fn what_was_known_of_a_container_holds() {
    let mut bench = Bench::new(Err("connection refused"));
    let known: HealthProgress =
        serde_json::from_str(&serde_json::to_string(&healthy()).unwrap()).unwrap();
    bench.begin(1, HealthCheck::default(), 500, Some(known));
    later(19_000).await;
    assert_eq!(bench.now().0, Health::Healthy);
    later(2000).await;
    assert_eq!(bench.now().0, Health::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn a_command_runs_in_a_unit_of_its_own_in_the_container() {
    let mut bench = Bench::new(Ok(200));
    let folder = bench.root.path().join("run/user/20000");
    std::fs::create_dir_all(&folder).unwrap();
    let exec = ProbeCheck::Exec {
        command: vec!["/bin/check".to_owned()],
    };
    bench.subject(1, HealthCheck::default(), 0, None, exec.clone());
    later(100).await;
    let (health, error) = bench.now();
    assert_eq!(health, Health::PendingCheck);
    assert!(error.contains("cannot find its container"), "{error}");
    // The workload's user owns the folder. A link, a FIFO that blocks its reader, or a file without
    // a container id is rejected, and its content appears in no message.
    let file = folder.join("kat-default-web-aaaaa.cid");
    let secret = folder.join("key");
    std::fs::write(&secret, "0a1b".repeat(16)).unwrap();
    std::os::unix::fs::symlink(&secret, &file).unwrap();
    later(10_000).await;
    assert!(bench.now().1.contains("cannot find its container"));
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    later(10_000).await;
    assert!(bench.now().1.contains("it is not a file"));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, "c2VjcmV0\n").unwrap();
    later(10_000).await;
    assert!(bench.now().1.contains("the 64 digits of an id"));
    assert!(bench.manager.calls().is_empty());
    std::fs::write(&file, format!("{}\n", "0a1b".repeat(16))).unwrap();
    later(10_000).await;
    assert_eq!(bench.now().0, Health::Healthy);
    assert_eq!(
        bench.manager.calls(),
        ["run_transient health-kat-default-web-aaaaa-7.service"]
    );
    let refused = SystemdError::Refused {
        unit: "u".to_owned(),
        name: "n".to_owned(),
        message: "busy".to_owned(),
    };
    bench.manager.fail_next("run_transient", refused);
    later(10_000).await;
    assert_eq!(bench.now(), (Health::Healthy, "u: busy (n)".to_owned()));
}

#[test]
fn a_probe_target_is_derived_from_the_health_check_and_its_ports() {
    use kat_types::resource::{ExecProbe, HttpProbe, Port, PortRef, Protocol, TcpProbe};
    let mut assignment = crate::tests::assignment(0, "web");
    let port = |name: Option<&str>, container_port, protocol| Port {
        name: name.map(str::to_owned),
        container_port,
        protocol,
        host_port: None,
        ..Port::default()
    };
    assignment.ports = vec![
        port(Some("web"), 53, Protocol::Udp),
        port(Some("web"), 8080, Protocol::Tcp),
        port(None, 9000, Protocol::Tcp),
    ];
    let mut of = |check: HealthCheck| {
        assignment.health_check = Some(check);
        ProbeCheck::of(&assignment).map(|target| target.to_string())
    };
    let http = |port| HealthCheck {
        http: Some(HttpProbe {
            path: "/a?b".to_owned(),
            port,
        }),
        ..HealthCheck::default()
    };
    let named = of(http(PortRef::Name("web".to_owned())));
    assert_eq!(named.as_deref(), Ok("GET :8080/a?b"));
    let tcp = HealthCheck {
        tcp: Some(TcpProbe {
            port: PortRef::Number(9000),
        }),
        ..HealthCheck::default()
    };
    assert_eq!(of(tcp).as_deref(), Ok("connection to :9000"));
    let exec = HealthCheck {
        exec: Some(ExecProbe {
            command: vec!["/bin/check".to_owned(), "--key=secret".to_owned()],
        }),
        ..HealthCheck::default()
    };
    assert_eq!(of(exec).as_deref(), Ok("/bin/check"));
    assert!(of(http(PortRef::Number(53))).is_err());
    assert!(of(HealthCheck::default()).is_err());
}

//! The `kat-agent` process of a machine: the agent and, on members of etcd, a leader candidate with
//! its API.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    api_calls::{Door, Net},
    checks::monitor::Monitor,
    faults::{
        disabled_safeguards::{Without, seen_by_orders},
        forged_reports::Forger,
        network_faults::{Way, Wire, WireRules},
        returning_clusters::{EpochRules, keep_positions},
    },
    load::volume_data::{Line, apart},
    machines::{
        acme_servers::AcmeServers,
        agent_environment::{Facts, NoInstanceLogs, Nobody, Sink, Well},
        data_path::DataPath,
        etcd::{CLIENT_PORT, Etcd, EtcdWay, PEER_PORT},
        joining_machine,
        lan::Lan,
        machine::{Accounts, Boot, Generator, NoLogs},
        state_source::state_source,
    },
    random::Random,
};
use kat_agent::{
    DesiredList, FenceMemory, FollowedSettings, ImageCare, JobStarts, LIST_AGE, MachineIdentity,
    MachineOptions, NetworkFiles, OwnVolumes, PartitionFence, PositionFile, Reporter, Secrets,
    Statuses, Supervisor, VolumeMoves, VolumeRemovals, Volumes, WorkerTools, follow_desired,
};
use kat_api::{Api, ApiConfig, ApiLimits, routes::router};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{
    LeaderConfig, LeaderHandle, MembersConfig, OrderedCertificatesConfig, Planner,
    keep_certificates, keep_members, start_with,
};
use kat_render::{RenderSettings, Renderer};
use kat_store::{Mirror, MirrorState, SILENCE, StateFeed, follow_source_with};
use kat_testing::MemoryStore;
use kat_types::{
    api::IngressReport,
    machine::{
        fence::{BootClock, BootTime},
        root::Root,
    },
    resource::{AgentConfig, ClusterSpec},
};

/// Time to live of the leader's lease, as in `kat-agent run`.
const LEASE: Duration = Duration::from_secs(5);

/// What a process uses of its machine and of the simulated world.
pub(crate) struct Place {
    pub seed: u64,
    pub identity: Arc<MachineIdentity>,
    pub root: std::path::PathBuf,
    pub boot: Arc<Boot>,
    pub accounts: Arc<Accounts>,
    pub way: Arc<Way>,
    pub store: MemoryStore,
    pub net: Arc<Net>,
    pub etcd: Arc<Etcd>,
    pub monitor: Arc<Monitor>,
    pub renderer: Arc<Renderer>,
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub new_uid: Arc<dyn Fn() -> String + Send + Sync>,
    pub planner: Planner,
    /// Set on the machine that forges reports.
    pub forger: Option<Arc<Forger>>,
    pub fenced: bool,
    pub stops: bool,
    /// The fence counts the age of a server's read from a quorum.
    pub two_hops: bool,
    /// See [`Sink::known_leader`].
    pub known_leader: Arc<Mutex<Option<String>>>,
    /// See [`crate::world::World::shared`].
    pub shared: bool,
    pub data_path: Arc<DataPath>,
    /// The LAN with virtual addresses, in the runs that have some.
    pub lan: Option<Arc<Lan>>,
    /// Failed writes of files are retried.
    pub retries_writes: bool,
    /// A user's manager that has ended is started.
    pub starts_managers: bool,
    /// Reports say their order.
    pub orders_reports: bool,
    pub epochs: EpochRules,
    /// The servers from which a leader orders certificates, in the scenes that have them.
    pub acme: Option<Arc<AcmeServers>>,
    pub order_rules: OrderRules,
}

/// The safeguards of orders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderRules {
    /// Transactions compare what they replace of accounts, orders and certificates.
    compares: bool,
    /// The leader sees the stored certificates when it orders others.
    pub sees_certificates: bool,
    /// The leader sees records of DNS that no order needs.
    pub sees_old_records: bool,
}

impl OrderRules {
    pub(crate) fn of(without: Without) -> Self {
        Self {
            compares: !matches!(without, Without::OrderCompare | Without::LaterCertificate),
            sees_certificates: without != Without::LaterCertificate,
            sees_old_records: without != Without::RecordRemoval,
        }
    }
}

pub(crate) struct Process {
    name: String,
    cancel: CancellationToken,
    closed: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    wires: Vec<Wire>,
    leader: Option<LeaderHandle>,
    copy: Option<Mirror>,
    volumes: Option<Arc<Volumes>>,
    reached: Option<watch::Receiver<Option<BootTime>>>,
    statuses: Statuses,
}

/// Longest wait, by the real clock, for threads that work on disks. One that sends a volume may wait
/// for its receiver.
const THREADS_END: Duration = Duration::from_millis(200);

impl Place {
    /// Random numbers of this start of the machine's process.
    fn random(&self) -> Random {
        let bytes = self.identity.node.bytes();
        let name = bytes.fold(0, |sum, byte| sum * 256 + u64::from(byte));
        Random::new(self.seed ^ (name << 16) ^ self.boot.monotonic())
    }
}

impl Process {
    /// `name` is the machine's name and the number of its process, such as `n1.2`.
    pub(crate) fn start(place: &Place, name: &str) -> Self {
        let mut process = Self {
            name: name.to_owned(),
            cancel: CancellationToken::new(),
            closed: CancellationToken::new(),
            tasks: Vec::new(),
            wires: Vec::new(),
            leader: None,
            copy: None,
            volumes: None,
            reached: None,
            statuses: Statuses::default(),
        };
        let feed = place.identity.etcd.then(|| process.start_candidate(place));
        process.start_agent(place, feed);
        process.order_certificates(place);
        process
    }

    fn wire(&mut self, place: &Place) -> Wire {
        let Place {
            store,
            way,
            monitor,
            fenced,
            order_rules,
            ..
        } = place;
        let process = (&*self.name, &self.closed);
        let rules = WireRules {
            fenced: *fenced,
            compares_orders: order_rules.compares,
        };
        let wire = Wire::new(store, way, process, monitor, rules);
        self.wires.push(wire.clone());
        wire
    }

    fn start_agent(&mut self, place: &Place, feed: Option<StateFeed>) {
        let keys = place.root.join("var/lib/kat/network");
        std::fs::create_dir_all(&keys).unwrap();
        let key = crate::load::secrets::private_key(&place.identity.node);
        // The key is made once: a machine with a full disk starts its agent too.
        let file = keys.join("wireguard.key");
        if !file.exists() {
            std::fs::write(file, key.to_base64()).unwrap();
        }
        let tools = Arc::new(tools(place));
        let statuses = self.statuses.clone();
        let network = NetworkFiles::new(place.root.join("net"));
        let file = place.root.join("desired.json");
        let stored = DesiredList::stored(&file);
        let (lists, mut listed) = watch::channel(stored.clone());
        // Several receivers of one channel wake up in an order that the seed does not decide, so
        // each gets a channel of its own.
        let (for_supervisor, supervised) = watch::channel(stored.clone());
        let (for_removals, removed) = watch::channel(stored.clone());
        let (for_reporter, reported) = watch::channel(stored.clone());
        let (for_moves, moved) = watch::channel(stored);
        let forwarding = async move {
            while listed.changed().await.is_ok() {
                let newest = listed.borrow_and_update().clone();
                for_supervisor.send_replace(newest.clone());
                for_removals.send_replace(newest.clone());
                for_moves.send_replace(newest.clone());
                for_reporter.send_replace(newest);
            }
        };
        let removals = VolumeRemovals {
            lists: apart(removed),
            volumes: Arc::clone(&tools.volumes),
            statuses: statuses.clone(),
            pulses: LoopPulses::default(),
        };
        let job_starts = tools.job_starts.clone();
        let volumes = Arc::clone(&tools.volumes);
        self.volumes = Some(Arc::clone(&volumes));
        let moved = apart(moved);
        let own = OwnVolumes {
            node: place.identity.node.clone(),
            lists: moved.clone(),
            volumes: Arc::clone(&volumes),
        };
        place
            .net
            .senders
            .put(&place.identity.node, own, &self.closed);
        let moves = VolumeMoves {
            node: place.identity.node.clone(),
            lists: moved,
            volumes: Arc::clone(&volumes),
            statuses: statuses.clone(),
            source: Arc::new(Line {
                to: place.identity.node.clone(),
                net: Arc::clone(&place.net),
                monitor: Arc::clone(&place.monitor),
            }),
            pulses: LoopPulses::default(),
        };
        let supervisor = Supervisor::new(tools, statuses.clone(), network);
        let writes = supervisor.writes.clone();
        let boot = Arc::clone(&place.boot);
        let run = place.root.join("run");
        std::fs::create_dir_all(&run).unwrap();
        let memory = FenceMemory {
            path: run.join("reached"),
            deadlines: run.join("deadlines.json"),
        };
        let boot_clock: BootClock = Arc::new(move || BootTime(boot.monotonic()));
        let last = match place.stops {
            true => memory.recall(boot_clock()),
            false => Some(boot_clock()),
        };
        let (reached_now, reached) = watch::channel(last);
        self.reached = Some(reached.clone());
        let (fenced_now, fenced) = watch::channel(DesiredList::default());
        let spec = &place.identity.cluster.spec;
        let settings = FollowedSettings::new(spec, boot_clock());
        let fence_settings = match place.stops {
            true => settings.clone(),
            false => {
                let never = ClusterSpec {
                    node_loss_timeout_seconds: u32::MAX,
                    ..spec.clone()
                };
                FollowedSettings::new(&never, boot_clock())
            }
        };
        let fence = PartitionFence {
            settings: fence_settings,
            list_age: match place.two_hops {
                true => LIST_AGE,
                false => SILENCE + Duration::from_secs(1),
            },
            lists: supervised,
            clock: Arc::clone(&boot_clock),
            reached,
            fenced: fenced_now,
            memory: place.stops.then_some(memory),
            job_starts,
        };
        let node = place.identity.node.clone();
        let source = state_source(&node, &place.net, feed);
        let mut random = place.random();
        let chances =
            Box::new(move || f64::from(u32::try_from(random.below(1_000)).unwrap()) / 1_000.0);
        let positions = PositionFile {
            path: place.root.join("position.json"),
            cluster_uid: place.identity.cluster_uid.clone(),
        };
        let (known, epochs) = place.epochs.known(&positions, &node);
        let followed = follow_source_with(source, known, chances, self.cancel.clone());
        let keeping = epochs.map(|epochs| keep_positions(positions, epochs, followed.confirmed));
        let copy = followed.mirror;
        self.copy = Some(copy.clone());
        place.net.forward(&node, &self.closed);
        let reporter = Reporter {
            identity: Arc::clone(&place.identity),
            statuses,
            lists: reported,
            sink: Arc::new(Sink {
                node: node.clone(),
                net: Arc::clone(&place.net),
                monitor: Arc::clone(&place.monitor),
                copy: copy.clone(),
                known_leader: Arc::clone(&place.known_leader),
                forger: place.forger.clone(),
            }),
            facts: Arc::new(Facts {
                shared: place.shared,
                volumes,
                data_path: Arc::clone(&place.data_path),
                lan: place.lan.clone(),
                node: place.identity.node.clone(),
            }),
            published: watch::channel(Arc::default()).0,
            reached: reached_now,
            silence: watch::Sender::default(),
            outside: watch::Sender::default(),
            clock: Arc::clone(&place.clock),
            boot_clock,
            boot_id: place
                .orders_reports
                .then(|| format!("boot-{}", place.way.now().power)),
            settings,
            pulses: LoopPulses::default(),
        };
        let cancel = || self.cancel.clone();
        let retries: BoxFuture<'static, ()> = match place.retries_writes {
            true => Box::pin(writes.clone().run(LoopPulses::default(), cancel())),
            false => Box::pin(std::future::pending()),
        };
        let loops: [BoxFuture<'static, ()>; 8] = [
            Box::pin(follow_desired(
                node,
                copy,
                file,
                lists,
                writes,
                LoopPulses::default(),
                cancel(),
            )),
            retries,
            Box::pin(forwarding),
            Box::pin(fence.run(cancel())),
            Box::pin(supervisor.run(fenced, cancel())),
            Box::pin(removals.run(cancel())),
            Box::pin(moves.run(cancel())),
            Box::pin(reporter.run(cancel())),
        ];
        let run = |work| tokio::spawn(Arc::clone(&place.way).run_while_awake(work));
        self.tasks = loops.into_iter().map(run).collect();
        self.tasks.extend(keeping.map(tokio::spawn));
    }

    /// Returns the feed of its copy of the store.
    fn start_candidate(&mut self, place: &Place) -> StateFeed {
        let wire = self.wire(place);
        let node = &place.identity.node;
        let config = LeaderConfig {
            candidate: self.name.clone(),
            lease: LEASE,
            endpoint: Arc::new({
                let endpoint = format!("{node}:9115");
                move || endpoint.clone()
            }),
            clock: Arc::clone(&place.clock),
            pulses: LoopPulses::default(),
            sealing: tokio::sync::watch::Sender::new(crate::load::secrets::sealing()).subscribe(),
        };
        let handle = start_with(
            Arc::new(wire),
            config,
            Arc::clone(&place.planner),
            self.cancel.clone(),
        );
        let way = Arc::new(EtcdWay {
            etcd: Arc::clone(&place.etcd),
            way: Arc::clone(&place.way),
        });
        let members = MembersConfig {
            node: node.clone(),
            client_port: CLIENT_PORT,
            peer_port: PEER_PORT,
            clock: Arc::clone(&place.clock),
            etcd: Arc::clone(&way) as _,
            upkeep: way,
            quota: 2 << 30,
            retry: Duration::from_secs(60),
            pulses: LoopPulses::default(),
        };
        let keeper = keep_members(handle.clone(), members, self.cancel.clone());
        let keeper = Arc::clone(&place.way).run_while_awake(Box::pin(keeper));
        self.tasks.push(tokio::spawn(keeper));
        let feed = handle.feed.clone().unwrap();
        let most = std::num::NonZeroU32::MAX;
        let api = Api::new(
            ApiConfig {
                handle: handle.clone(),
                logs: Arc::new(NoInstanceLogs),
                sessions: Arc::new(NoInstanceLogs),
                clock: Arc::clone(&place.clock),
                new_uid: Arc::clone(&place.new_uid),
                node_name: node.clone(),
                // The rate limit uses the real clock.
                limits: ApiLimits {
                    calls_per_second: most,
                    call_burst: most,
                    ..ApiLimits::default()
                },
                pulses: LoopPulses::default(),
                joining: Some(joining_machine::joining()),
                images: None,
                relay: None,
            },
            self.cancel.clone(),
        );
        let door = Door {
            router: router(&api),
            feed: feed.clone(),
            closed: self.closed.clone(),
        };
        place.net.open(node, door);
        self.leader = Some(handle);
        feed
    }

    /// Orders certificates while this process leads.
    fn order_certificates(&mut self, place: &Place) {
        let (Some(servers), Some(handle)) = (&place.acme, &self.leader) else {
            return;
        };
        let config = OrderedCertificatesConfig {
            clock: Arc::clone(&place.clock),
            server: servers.connection(&self.name, &place.way),
            pulses: LoopPulses::default(),
        };
        let handle = seen_by_orders(handle, servers.hidden_accounts(), place.order_rules);
        let orders = keep_certificates(handle, config, self.cancel.clone());
        let orders = Arc::clone(&place.way).run_while_awake(Box::pin(orders));
        self.tasks.push(tokio::spawn(orders));
    }

    /// Reports how `kat-ingress` serves: the loop that does so does not run.
    pub(crate) fn report_ingress(&self, report: Option<IngressReport>) {
        self.statuses.set_ingress(report);
    }

    /// SIGKILL, or a power loss of the machine.
    pub(crate) fn kill(self) {
        for wire in &self.wires {
            wire.reads.set_partitioned(true);
        }
        self.closed.cancel();
        for task in &self.tasks {
            task.abort();
        }
        self.cancel.cancel();
        self.wait_for_threads();
    }

    /// Waits for the threads that work on disks. Those of a process that is killed end with it; here
    /// they would run on beside the next one, and write its files.
    pub(crate) fn wait_for_threads(&self) {
        let end = std::time::Instant::now() + THREADS_END;
        let volumes = self.volumes.as_ref();
        while volumes.is_some_and(|volumes| volumes.busy_threads() > 0)
            && std::time::Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// SIGTERM.
    pub(crate) fn stop(self) {
        self.closed.cancel();
        self.cancel.cancel();
        self.wait_for_threads();
    }

    /// Applies the current conditions of the machine's network path.
    pub(crate) fn follow_way(&self) {
        for wire in &self.wires {
            wire.follow_way();
        }
    }

    pub(crate) fn drop_watches(&self) {
        for wire in &self.wires {
            wire.reads.drop_watches();
        }
    }

    /// The machine's copy of what it may see.
    pub(crate) fn copy(&self) -> Arc<MirrorState> {
        self.copy.as_ref().map(Mirror::snapshot).unwrap_or_default()
    }

    /// When the machine last counted as present for every leader.
    pub(crate) fn reached(&self) -> Option<BootTime> {
        self.reached.as_ref().and_then(|reached| *reached.borrow())
    }

    /// The process believes that it leads.
    pub(crate) fn leads(&self) -> bool {
        self.leader.as_ref().is_some_and(|handle| {
            let leadership = handle.leadership.borrow();
            leadership
                .as_ref()
                .is_some_and(|leadership| !leadership.lost.is_cancelled())
        })
    }
}

fn tools(place: &Place) -> WorkerTools {
    let boot = Arc::clone(&place.boot);
    let root = Root::new(&place.root);
    WorkerTools {
        managers: Arc::<Boot>::clone(&place.boot),
        sessions: place.boot.sessions(place.starts_managers),
        accounts: Arc::<Accounts>::clone(&place.accounts),
        renderer: Arc::clone(&place.renderer),
        generator: Arc::new(Generator(place.root.clone())),
        logs: Arc::new(NoLogs),
        settings: RenderSettings::default(),
        domain: place.identity.cluster.spec.cluster_domain.clone(),
        cluster_settings: FollowedSettings::new(&place.identity.cluster.spec, BootTime::default()),
        overlay_address: place.identity.overlay_address(),
        root: root.clone(),
        monotonic: Arc::new(move || boot.monotonic()),
        clock: Arc::clone(&place.clock),
        limits_enforced: true,
        network: Arc::new(Well),
        volumes: Arc::new(
            Volumes::new(
                &root,
                "/var/lib/kat/volumes",
                &AgentConfig {
                    volume_shared: place.shared,
                    ..AgentConfig::default()
                },
            )
            .removing_in_paused_time(),
        ),
        secrets: Secrets::new(&root, &place.identity.node, &RenderSettings::default()),
        listeners: Arc::new(Nobody),
        options: MachineOptions::new(&root, &AgentConfig::default()),
        images: ImageCare::new(&root, &AgentConfig::default()),
        job_starts: JobStarts::default(),
    }
}

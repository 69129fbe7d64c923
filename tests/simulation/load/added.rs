//! What some seeds have besides: Jobs, a DaemonService, workloads with a start order, and wall clocks
//! that jump. Its steps have a generator of their own, so that the other steps of a seed stay as they
//! are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use hyper::{Request, Response, header};
use jiff::SignedDuration;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    api_calls::Net,
    checks::monitor::Monitor,
    faults::disabled_safeguards::Without,
    load::{
        daemons::{DAEMON, daemon_files},
        jobs::{SCHEDULED, SETUP, ScheduledJob, setup_files},
        kept::{DUMP, KeptForm, KeptJob},
        start_order::{AFTER, BASE, LATE, order_files},
        user::NAMESPACE,
    },
    random::Random,
    run::{HEALED_WITHIN, Repair, SECOND, Scenario},
    world::World,
};
use kat_bundle::{SourceFile, pack};
use kat_types::{
    resource::StartCondition,
    store::{keys, records::WorkloadMeta},
};

/// The added workloads. Those with a start order come before what they start after.
const ADDED: [&str; 8] = [
    LATE,
    AFTER,
    DAEMON,
    SCHEDULED[0],
    SCHEDULED[1],
    SCHEDULED[2],
    SETUP,
    BASE,
];
/// Longest jump of a wall clock in milliseconds. A leader forgets what was decided more than an hour
/// ahead: a wrong clock wrote it.
const LONGEST_JUMP: i64 = 300_000;

/// A workload's `workload.kat`, with `spec` besides what all of them have.
pub(crate) fn workload_file(
    name: &str,
    kind: &str,
    version: u64,
    spec: &serde_json::Value,
) -> SourceFile {
    let mut file = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": kind,
            "source": {"image": format!("registry.example/{name}:{version}")},
            "container": {"terminationGraceSeconds": 2},
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        file["spec"][field] = value.clone();
    }
    SourceFile {
        name: "workload.kat".to_owned(),
        text: file.to_string(),
    }
}

/// Whether a unit is of an instance of this workload.
pub(crate) fn is_of(unit: &str, workload: &str) -> bool {
    let rest = unit.strip_prefix("kat-");
    let rest = rest.and_then(|rest| rest.strip_prefix(NAMESPACE));
    let rest = rest.and_then(|rest| rest.strip_prefix('-'));
    let rest = rest.and_then(|rest| rest.strip_prefix(workload));
    rest.is_some_and(|rest| rest.starts_with('-'))
}

/// The units of a workload among those that run or may run, each with its machine.
pub(crate) fn live_of<'l>(
    live: &'l BTreeMap<String, String>,
    workload: &str,
) -> Vec<(&'l str, &'l str)> {
    let units = live.iter().filter(|(unit, _)| is_of(unit, workload));
    units
        .map(|(unit, machine)| (unit.as_str(), machine.as_str()))
        .collect()
}

pub(crate) struct AddedLoad {
    random: Random,
    pub jobs: Vec<ScheduledJob>,
    /// The Job whose machine keeps its schedule, in half of the seeds: those without shared storage.
    pub kept: Option<KeptJob>,
    /// What [`AFTER`] waits for.
    condition: StartCondition,
    daemon_version: u64,
    requests: Requests,
    /// How long nobody plans once all is healed, in a part of the seeds.
    outage: Option<Duration>,
    /// A wall clock has jumped.
    pub clock_has_jumped: bool,
    /// Machines lose their power for longer than the deadlines of most runs. Runs without a safeguard
    /// have none of it, so that they find the same violations as before.
    has_long_cuts: bool,
}

impl AddedLoad {
    pub(crate) fn of_seed(
        seed: u64,
        without: Without,
        net: &Arc<Net>,
        monitor: &Arc<Monitor>,
    ) -> Option<Self> {
        // Not together with forged reports or with what cannot be written.
        let has = seed % 5 == 3;
        let has = match without {
            Without::Nothing => has,
            _ => without.is_about_the_added_load(),
        };
        let mut random = Random::new(seed ^ 0x0061_6464_6564);
        let jobs = ScheduledJob::all(&mut random);
        let condition = match random.chance(50) {
            true => StartCondition::Started,
            false => StartCondition::Healthy,
        };
        let long = random.milliseconds(150_000, 240_000);
        let outage = random.chance(35).then_some(long);
        let keeps = without == Without::Nothing && !seed.is_multiple_of(2);
        has.then(|| Self {
            random,
            jobs,
            kept: keeps.then(|| KeptJob::new(KeptForm::of_seed(seed))),
            condition,
            daemon_version: 1,
            requests: Requests::new(net, monitor),
            outage,
            clock_has_jumped: false,
            has_long_cuts: without == Without::Nothing,
        })
    }

    /// The added workloads of this seed.
    pub(crate) fn workloads(&self) -> Vec<&'static str> {
        let kept = self.kept.iter().map(|_| DUMP);
        ADDED.into_iter().chain(kept).collect()
    }

    fn files(&self, workload: &str) -> Vec<SourceFile> {
        let mut jobs = self.jobs.iter();
        if let (DUMP, Some(kept)) = (workload, &self.kept) {
            return kept.files();
        }
        match workload {
            DAEMON => daemon_files(self.daemon_version),
            SETUP => setup_files(),
            _ => match jobs.find(|job| job.name == workload) {
                Some(job) => job.files(),
                None => order_files(workload, self.condition),
            },
        }
    }

    fn apply(&self, to: &str, workload: &str) {
        self.requests.apply(to, workload, &self.files(workload));
    }

    fn delete(&self, to: &str, workload: &str) {
        let request = Request::delete(path(workload)).body(Body::empty());
        self.requests.send(to, workload, request.unwrap());
    }

    fn run_by_hand(&self, to: &str, job: &str) {
        self.requests.run_by_hand(to, job);
    }
}

fn path(workload: &str) -> String {
    format!("/v1alpha1/n/{NAMESPACE}/workloads/{workload}")
}

/// Sends requests, one at a time for each workload or other object.
#[derive(Clone)]
pub(crate) struct Requests {
    net: Arc<Net>,
    monitor: Arc<Monitor>,
    busy: Arc<Mutex<BTreeSet<String>>>,
}

impl Requests {
    pub(crate) fn new(net: &Arc<Net>, monitor: &Arc<Monitor>) -> Self {
        Self {
            net: Arc::clone(net),
            monitor: Arc::clone(monitor),
            busy: Arc::default(),
        }
    }

    pub(crate) fn apply(&self, to: &str, workload: &str, files: &[SourceFile]) {
        let archive = pack(files).unwrap();
        let request = Request::put(path(workload))
            .header(header::CONTENT_TYPE, "application/gzip")
            .body(Body::from(archive));
        self.send(to, workload, request.unwrap());
    }

    pub(crate) fn run_by_hand(&self, to: &str, job: &str) {
        let request = Request::post(format!("{}/runs", path(job)))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from("{}"));
        self.send(to, job, request.unwrap());
    }

    pub(crate) fn send(&self, to: &str, object: &str, request: Request<Body>) {
        if !self.busy.lock().insert(object.to_owned()) {
            return;
        }
        let (requests, to, object) = (self.clone(), to.to_owned(), object.to_owned());
        tokio::spawn(async move {
            let what = format!("{} {}", request.method(), request.uri());
            let answer = requests.net.ask(None, &to, request, || ()).await;
            let note = format!("{to} answers {what}: {}", in_words(answer).await);
            requests.monitor.note(&note);
            requests.busy.lock().remove(&object);
        });
    }
}

/// The status of an answer, with what is said of a refusal.
async fn in_words(answer: Result<Response<Body>, String>) -> String {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return error,
    };
    let status = answer.status();
    if !status.is_client_error() {
        return status.to_string();
    }
    let body = axum::body::to_bytes(answer.into_body(), 64 << 10).await;
    let body = body.unwrap_or_default();
    format!("{status}: {}", String::from_utf8_lossy(&body))
}

impl World {
    /// A stored object; `None` if it is not there.
    pub(crate) fn stored<T: serde::de::DeserializeOwned>(&self, key: &str) -> Option<T> {
        let mut items = self.store.peek(key).items.into_iter();
        let item = items.find(|item| item.key == key)?;
        Some(serde_json::from_slice(&item.value).unwrap())
    }

    /// Whether the workload is stored and not being deleted.
    pub(crate) fn has_workload(&self, workload: &str) -> bool {
        let meta: Option<WorkloadMeta> = self.stored(&keys::workload_meta(NAMESPACE, workload));
        meta.is_some_and(|meta| !meta.deleting)
    }

    /// What is left of a workload: stored objects or instances.
    pub(crate) fn is_left(&self, workload: &str, live: &BTreeMap<String, String>) -> bool {
        let own = keys::workload(NAMESPACE, workload);
        let runs = format!("{}{NAMESPACE}/{workload}/", keys::JOBS);
        let mut prefixes = [own, runs].into_iter();
        prefixes.any(|prefix| !self.store.peek(&prefix).items.is_empty())
            || !live_of(live, workload).is_empty()
    }
}

impl Scenario {
    /// The machine that is asked.
    pub(crate) fn asked(&self) -> String {
        let leader = self.world.leader().unwrap_or_default();
        self.world.machines[leader].name.clone()
    }

    /// Applies each added workload that is not there, with this probability in percent.
    fn apply_the_added(&mut self, percent: u64) {
        let Some(added) = &self.world.added else {
            return;
        };
        let to = self.asked();
        let absent: Vec<&str> = added
            .workloads()
            .into_iter()
            .filter(|workload| !self.world.has_workload(workload))
            .collect();
        let Some(added) = &mut self.world.added else {
            return;
        };
        for workload in absent {
            if added.random.chance(percent) {
                added.apply(&to, workload);
            }
        }
    }

    /// Draws a step of the added load.
    pub(crate) fn step_of_the_added_load(&mut self) {
        self.apply_the_added(35);
        let to = self.asked();
        let leader = self.world.leader();
        let joined = self.world.joined().count();
        let Some(added) = &mut self.world.added else {
            return;
        };
        let random = &mut added.random;
        let what = random.below(100);
        let job = SCHEDULED[random.index(SCHEDULED.len())];
        let any = random.index(joined);
        let at_leader = random.chance(70);
        let size = i64::try_from(random.below(LONGEST_JUMP.unsigned_abs())).unwrap();
        let is_small = random.chance(30);
        let is_back = random.chance(50);
        match what {
            0..15 => added.run_by_hand(&to, job),
            15..25 => {
                added.daemon_version += 1;
                added.apply(&to, DAEMON);
            }
            25..30 => added.delete(&to, job),
            30..55 => {
                added.clock_has_jumped = true;
                let number = leader.filter(|_| at_leader).unwrap_or(any);
                let size = if is_small { size / 60 } else { size };
                let jump = SignedDuration::from_millis(if is_back { -size } else { size });
                let name = &self.world.machines[number].name;
                let note = format!("the wall clock of {name} jumps by {jump:?}");
                self.world.monitor.note(&note);
                self.world.set_clock(number, jump);
                self.later_of_the_added(number);
            }
            55..60 if added.has_long_cuts => {
                // What was placed on the machine just before is on its disk, and its run is over when
                // the machine is back.
                let after = added.random.milliseconds(60_000, 180_000);
                let name = &self.world.machines[any].name;
                let note = format!("{name} is without power for {after:?}");
                self.world.monitor.note(&note);
                self.world.power_off(any);
                self.repair_after(after, Repair::PowerOn(any));
            }
            60..64 if added.kept.is_some() => added.run_by_hand(&to, DUMP),
            64..72 => {
                if let Some(kept) = &mut added.kept {
                    match is_small {
                        true => kept.suspended = !kept.suspended,
                        false => kept.version += 1,
                    }
                    kept.apply(&added.requests, &to);
                }
            }
            _ => {}
        }
    }

    /// Sets the clock right after a while.
    fn later_of_the_added(&mut self, number: usize) {
        let Some(added) = &mut self.world.added else {
            return;
        };
        let after = added.random.milliseconds(2_000, 60_000);
        self.repair_after(after, Repair::Clock(number));
    }

    /// Everything that was added comes to what it is promised, also after some minutes in which
    /// nobody plans. Then it is deleted.
    pub(crate) async fn settle_the_added_load(&mut self) {
        let Some(added) = &self.world.added else {
            return;
        };
        let outage = added.outage;
        self.added_comes_to_rest().await;
        if let Some(outage) = outage.filter(|_| !self.is_over()) {
            self.world.monitor.note("nobody plans for some minutes");
            let kept = self.world.kept_since();
            self.world.store.set_available(false);
            self.pass_in(SECOND / 2, outage).await;
            self.world.check_kept(kept.as_ref());
            self.world.store.set_available(true);
            self.added_comes_to_rest().await;
        }
        self.delete_the_added().await;
    }

    async fn added_comes_to_rest(&mut self) {
        let active = self.world.active_runs();
        let end = Instant::now() + HEALED_WITHIN;
        loop {
            self.apply_the_added(100);
            self.resume_the_kept();
            self.pass_in(SECOND / 5, SECOND).await;
            if self.is_over() {
                return;
            }
            let Some(missing) = self.world.added_missing(&active) else {
                return;
            };
            if Instant::now() >= end {
                let text = format!("{HEALED_WITHIN:?} after all was healed: {missing}");
                self.world.monitor.violated(text);
            }
        }
    }

    /// The Job whose machine keeps its schedule is not suspended any more.
    fn resume_the_kept(&mut self) {
        let to = self.asked();
        // The same files change nothing.
        let is_kept = self.world.kept_since().is_some();
        if let Some(added) = &mut self.world.added
            && let Some(kept) = &mut added.kept
            && !is_kept
        {
            kept.suspended = false;
            kept.apply(&added.requests, &to);
        }
    }

    async fn delete_the_added(&mut self) {
        let end = Instant::now() + HEALED_WITHIN;
        while !self.is_over() {
            let live = self.world.live();
            let added = self.world.added.as_ref();
            let all = added.map_or_else(Vec::new, AddedLoad::workloads);
            let left: Vec<&str> = all
                .into_iter()
                .filter(|workload| self.world.is_left(workload, &live))
                .collect();
            if left.is_empty() {
                return;
            }
            let to = self.asked();
            for workload in &left {
                if let Some(added) = &self.world.added
                    && self.world.has_workload(workload)
                {
                    added.delete(&to, workload);
                }
            }
            if Instant::now() >= end {
                let text = format!("{left:?} are deleted, and not gone");
                self.world.monitor.violated(text);
            }
            self.pass_in(SECOND / 5, SECOND).await;
        }
    }
}

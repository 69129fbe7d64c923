//! What isolation refused: read from the kernel, written to the journal within bounds, and reported
//! to the agent.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{enforcement::EnforcedIsolation, policy::IsolationPolicy};
use crate::{
    nftables::isolation::{self, RefusedFlow, RefusedPackets},
    run_file,
};
use kat_daemon::watchdog::LoopPulse;
use kat_types::machine::{
    isolation::{
        IsolationMode, IsolationState, REFUSED_LIMIT, REFUSED_OF_NAMESPACE, RefusedTraffic,
        TrafficEnd,
    },
    network::Transport,
};

/// Interval of the reads.
const INTERVAL: Duration = Duration::from_secs(3);
/// How long refused traffic is reported after its last packet, in seconds.
const REPORTED: u64 = 3600;
/// How long the journal says nothing more about the same two workloads.
const SAID: Duration = Duration::from_secs(3600);
/// Lines in one [`LINES_TIME`].
const LINES: usize = 20;
const LINES_TIME: Duration = Duration::from_secs(60);
/// Most pairs of workloads that the journal remembers.
const PAIRS: usize = 1024;
/// A problem is reported when it has lasted for this long: a file is tried again at once.
const REPORTED_PROBLEM: Duration = Duration::from_secs(30);
/// Longest reported problem in bytes.
const LONGEST_PROBLEM: usize = 512;

/// What identifies refused traffic.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct TrafficKey {
    from: TrafficEnd,
    to: TrafficEnd,
    protocol: Option<Transport>,
    port: u16,
    passed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TrafficCount {
    packets: u64,
    /// Seconds since the epoch.
    last: u64,
}

/// The traffic that was refused recently.
#[derive(Debug, Default)]
struct RefusalLog {
    traffic: BTreeMap<TrafficKey, TrafficCount>,
    /// The packets of the kernel's elements that were counted already.
    counted: BTreeMap<RefusedFlow, u64>,
}

impl RefusalLog {
    /// Adds what the kernel lists; returns the traffic that is new.
    fn add(
        &mut self,
        listed: &BTreeMap<RefusedFlow, RefusedPackets>,
        policy: &IsolationPolicy,
        now: u64,
    ) -> Vec<TrafficKey> {
        self.counted.retain(|flow, _| listed.contains_key(flow));
        let mut new = Vec::new();
        for (flow, found) in listed {
            let before = self.counted.insert(*flow, found.packets);
            // An element that has expired and was made again counts from zero.
            let packets = match before {
                Some(before) if before <= found.packets => found.packets - before,
                Some(_) | None => found.packets,
            };
            if packets == 0 && before.is_some() {
                continue;
            }
            let protocol = match flow.protocol {
                6 => Some(Transport::Tcp),
                17 => Some(Transport::Udp),
                _ => None,
            };
            let last = now.saturating_sub(found.ago / 1000);
            let passed = policy.mode == IsolationMode::Audit;
            let ends = (flow.from, flow.to);
            if let Some(key) = key(policy, ends, protocol, flow.port, passed) {
                new.extend(self.count(key, packets.max(1), last));
            }
        }
        new
    }

    /// Adds open connections that only pass because of the mode; returns those that are new.
    fn add_open(&mut self, enforced: &EnforcedIsolation, now: u64) -> Vec<TrafficKey> {
        let mut new = Vec::new();
        for open in enforced.audited.iter() {
            let ends = (open.from, open.to);
            let key = key(&enforced.policy, ends, open.transport, open.port, true);
            if let Some(key) = key {
                new.extend(self.count(key, 1, now));
            }
        }
        new
    }

    fn count(&mut self, key: TrafficKey, packets: u64, last: u64) -> Option<TrafficKey> {
        if let Some(known) = self.traffic.get_mut(&key) {
            known.packets = known.packets.saturating_add(packets);
            known.last = known.last.max(last);
            return None;
        }
        self.traffic
            .insert(key.clone(), TrafficCount { packets, last });
        Some(key)
    }

    /// Forgets what is old, and the oldest where there is too much.
    fn tidy(&mut self, now: u64) {
        self.traffic
            .retain(|_, count| now.saturating_sub(count.last) < REPORTED);
        let mut newest: Vec<(u64, TrafficKey)> = self
            .traffic
            .iter()
            .map(|(key, count)| (count.last, key.clone()))
            .collect();
        newest.sort_by(|one, other| other.cmp(one));
        let mut of_namespace: BTreeMap<&str, usize> = BTreeMap::new();
        let mut kept = 0;
        for (_, key) in &newest {
            let same = of_namespace.entry(&key.from.namespace).or_default();
            if *same >= REFUSED_OF_NAMESPACE || kept >= REFUSED_LIMIT {
                self.traffic.remove(key);
                continue;
            }
            *same += 1;
            kept += 1;
        }
    }

    fn report(&self) -> Vec<RefusedTraffic> {
        let entries = self.traffic.iter();
        entries
            .map(|(key, count)| RefusedTraffic {
                from: key.from.clone(),
                to: key.to.clone(),
                protocol: key.protocol,
                port: key.port,
                packets: count.packets,
                last: count.last,
                passed: key.passed,
            })
            .collect()
    }
}

/// The key of traffic between two known addresses that may not reach each other.
fn key(
    policy: &IsolationPolicy,
    (from, to): (std::net::Ipv4Addr, std::net::Ipv4Addr),
    protocol: Option<Transport>,
    port: u16,
    passed: bool,
) -> Option<TrafficKey> {
    Some(TrafficKey {
        from: policy.owners().get(&from)?.clone(),
        to: policy.owners().get(&to)?.clone(),
        protocol,
        port,
        passed,
    })
}

/// The lines of the journal: one for two workloads in an hour, and few in a minute.
#[derive(Debug, Default)]
struct RefusalLines {
    said: BTreeMap<(String, String), Instant>,
    since: Option<Instant>,
    lines: usize,
    held_back: usize,
}

impl RefusalLines {
    /// Whether a line about this traffic may be written now.
    fn take(&mut self, key: &TrafficKey, now: Instant) -> bool {
        let name = |end: &TrafficEnd| format!("{}/{}", end.namespace, end.workload);
        let pair = (name(&key.from), name(&key.to));
        let is_recent = |said: &Instant| now.duration_since(*said) < SAID;
        if self.said.get(&pair).is_some_and(is_recent) {
            return false;
        }
        if self
            .since
            .is_none_or(|since| now.duration_since(since) >= LINES_TIME)
        {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.said.retain(|_, said| is_recent(said));
        if self.lines >= LINES || self.said.len() >= PAIRS {
            self.held_back += 1;
            return false;
        }
        self.lines += 1;
        self.said.insert(pair, now);
        true
    }

    fn write(&mut self, new: &[TrafficKey]) {
        let now = Instant::now();
        for key in new {
            if self.take(key, now) {
                tracing::warn!("{}", sentence(key));
            }
        }
        let is_over = self
            .since
            .is_some_and(|since| now.duration_since(since) >= LINES_TIME);
        if self.held_back > 0 && is_over {
            let count = std::mem::take(&mut self.held_back);
            tracing::warn!(
                "{count} more connections between namespaces are not listed here; `katcall why isolation` lists some"
            );
        }
    }
}

fn sentence(key: &TrafficKey) -> String {
    let TrafficKey { from, to, .. } = key;
    let port = match key.protocol {
        Some(protocol) => format!(" port {}/{}", key.port, protocol.word()),
        None => String::new(),
    };
    let what = match key.passed {
        true => "isolation would refuse",
        false => "isolation refused",
    };
    format!(
        "{what} a connection of {}/{} ({}) to {}/{} ({}){port}: namespace {} does not allow {}",
        from.namespace,
        from.workload,
        from.instance,
        to.namespace,
        to.workload,
        to.instance,
        to.namespace,
        from.namespace,
    )
}

/// Reads what was refused, and reports it with what is in force, until cancelled.
pub(crate) async fn follow_refusals(
    mut enforced: watch::Receiver<EnforcedIsolation>,
    report: Option<PathBuf>,
    pulse: LoopPulse,
    cancel: CancellationToken,
) {
    let mut log = RefusalLog::default();
    let mut lines = RefusalLines::default();
    let mut failed = false;
    let mut audited = Arc::default();
    loop {
        pulse.beat();
        let present = enforced.borrow_and_update().clone();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |now| now.as_secs());
        let judges = present.mode.is_some_and(|mode| mode != IsolationMode::None);
        if judges {
            match isolation::refused().await {
                Ok(listed) => {
                    failed = false;
                    let new = log.add(&listed, &present.policy, now);
                    lines.write(&new);
                }
                Err(error) if !failed => {
                    failed = true;
                    tracing::warn!("what isolation refused is not known: {error}");
                }
                Err(_) => {}
            }
            if !Arc::ptr_eq(&present.audited, &audited) {
                audited = Arc::clone(&present.audited);
                let new = log.add_open(&present, now);
                lines.write(&new);
            }
        }
        log.tidy(now);
        if let Some(path) = &report
            && let Err(error) =
                run_file::write(path, &state(&present, log.report(), Instant::now()))
        {
            tracing::warn!(path = %path.display(), "can't write: {error}");
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
            changed = enforced.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

fn state(
    present: &EnforcedIsolation,
    refused: Vec<RefusedTraffic>,
    now: Instant,
) -> IsolationState {
    let lasts = present
        .failing_since
        .is_some_and(|since| now.duration_since(since) >= REPORTED_PROBLEM);
    let problem = present.problem.as_ref().filter(|_| lasts).map(|problem| {
        let mut problem = problem.replace('\n', " ");
        problem.truncate(problem.floor_char_boundary(LONGEST_PROBLEM));
        problem
    });
    IsolationState {
        schema: 1,
        mode: present.mode,
        revision: present.revision,
        problem,
        refused,
    }
}

#[cfg(test)]
mod tests;

//! Decides which peers to ask, and which of them count as silent. Pure: it reads no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

/// Interval of the looks at WireGuard's counters, and of the probes to a peer that owes an answer.
pub const TICK: Duration = Duration::from_millis(400);
/// A peer is silent when it has answered none of the probes of this time. With the tick before, it
/// ends before the second retransmission of a SYN, 3 s after the first (RFC 6298).
pub const PATIENCE: Duration = Duration::from_millis(1600);
/// Fewest probes without an answer, so that a machine that was suspended judges nobody by its sleep.
pub const FEWEST_PROBES: u32 = 4;
/// An answer of another peer this recently shows that this machine is not cut off itself.
pub const WITNESS: Duration = Duration::from_millis(1500);
/// The same for a peer that is excluded already, so that single lost packets change nothing.
pub const WITNESS_OF_EXCLUDED: Duration = Duration::from_secs(5);
/// A peer that is sent to is probed this often although it also sends: received packets do not show
/// that it receives any.
pub const CONFIRMATION: Duration = Duration::from_secs(10);
/// A peer that has been silent for this long is probed rarely.
pub const LONG_SILENCE: Duration = Duration::from_secs(60);
/// Interval of the probes to a peer that has been silent for long.
pub const RARELY: Duration = Duration::from_secs(5);
/// An answer this recently suffices while all silent peers have been silent for long.
const WITNESS_OF_LONG_SILENCE: Duration = Duration::from_secs(2);
/// A peer that was excluded stays so for at least this long, although it answers meanwhile, and for
/// twice as long at each exclusion that follows within [`FORGIVEN`], up to [`LONGEST_HOLD`]. So a
/// peer that answers now and then does not go in and out of service with each answer.
pub const SHORTEST_HOLD: Duration = Duration::from_secs(10);
/// See [`SHORTEST_HOLD`].
pub const LONGEST_HOLD: Duration = Duration::from_secs(120);
/// See [`SHORTEST_HOLD`].
pub const FORGIVEN: Duration = Duration::from_secs(600);
/// Most other peers that are asked in a tick whether this machine is cut off.
const MOST_WITNESSES: usize = 8;

/// A peer at one look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerLook {
    /// An instance of the peer is behind a service address or a name.
    pub in_use: bool,
    /// WireGuard's counters; `None` for a peer behind a relay.
    pub traffic: Option<PeerTraffic>,
}

/// Bytes by WireGuard's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    pub sent: u64,
    pub received: u64,
}

/// What is known of a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerHearing {
    /// An instance of the peer is behind a service address or a name.
    in_use: bool,
    /// Time of the first probe since the peer last answered, and the number of probes since.
    pub unanswered: Option<(Instant, u32)>,
    /// Time of the last answer.
    pub answered: Option<Instant>,
    /// Time of the last probe.
    asked: Option<Instant>,
    traffic: Option<PeerTraffic>,
}

impl PeerHearing {
    /// Whether the peer has left every probe of [`PATIENCE`] without an answer.
    fn is_silent(&self, now: Instant) -> bool {
        self.unanswered.is_some_and(|(since, probes)| {
            probes >= FEWEST_PROBES && now.saturating_duration_since(since) >= PATIENCE
        })
    }

    /// Whether the peer has owed an answer for longer than [`LONG_SILENCE`].
    fn is_long_silent(&self, now: Instant) -> bool {
        self.unanswered
            .is_some_and(|(since, _)| now.saturating_duration_since(since) >= LONG_SILENCE)
    }

    fn was_asked_within(&self, limit: Duration, now: Instant) -> bool {
        self.asked
            .is_some_and(|at| now.saturating_duration_since(at) < limit)
    }

    fn answered_within(&self, limit: Duration, now: Instant) -> bool {
        self.answered
            .is_some_and(|at| now.saturating_duration_since(at) <= limit)
    }

    /// Records the counters; whether the peer has to be asked by them.
    fn look(&mut self, look: PeerLook, now: Instant) -> bool {
        let before = std::mem::replace(&mut self.traffic, look.traffic);
        self.in_use = look.in_use;
        let grew = |count: fn(&PeerTraffic) -> u64| {
            let (before, traffic) = (before?, look.traffic?);
            Some(count(&traffic) > count(&before))
        };
        let (sent, received) = (grew(|one| one.sent), grew(|one| one.received));
        // A `kat-net` from before the probes answers none; its machine is judged by its traffic.
        if self.answered.is_none() && received == Some(true) {
            self.unanswered = None;
        }
        if self.unanswered.is_some() {
            // Also when it is in use no more: otherwise a machine whose instances are held because
            // of its silence would count as heard.
            return !(self.is_long_silent(now) && self.was_asked_within(RARELY, now));
        }
        if !look.in_use {
            return false;
        }
        let long_ago = !self.was_asked_within(CONFIRMATION, now);
        let sent = match look.traffic {
            Some(_) => sent == Some(true),
            None => true,
        };
        sent && (received == Some(false) || long_ago)
    }

    fn ask(&mut self, now: Instant) {
        self.asked = Some(now);
        if self.in_use || self.unanswered.is_some() {
            let (since, probes) = self.unanswered.unwrap_or((now, 0));
            self.unanswered = Some((since, probes.saturating_add(1)));
        }
    }
}

/// The last completed attempt to reach the only other machine outside the overlay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutsideProbe {
    /// When the attempt began.
    pub began: Instant,
    /// Whether the machine answered.
    pub reached: bool,
}

/// The peers that this machine sends no new connection to.
///
/// - A peer is excluded when it is silent and this machine reaches another peer, so that a machine
///   that is cut off itself excludes nobody.
/// - Where there is no third machine, the peer is excluded if it cannot be reached outside the
///   overlay either.
/// - `excluded` are the peers that were excluded at the last judgement, and until when each of them
///   stays so although it answers. For that, too, this machine has to reach another peer; where
///   there is no third machine, the other one must not have been reached outside the overlay since.
pub fn exclusions<K: Ord + Clone>(
    peers: &BTreeMap<K, PeerHearing>,
    excluded: &BTreeMap<K, Instant>,
    outside: Option<OutsideProbe>,
    now: Instant,
) -> BTreeSet<K> {
    let is_held = |key: &K| excluded.get(key).is_some_and(|until| now < *until);
    let reaches_another_within = |limit| {
        peers.iter().any(|(key, peer)| {
            !is_held(key) && !peer.is_silent(now) && peer.answered_within(limit, now)
        })
    };
    let unreachable_since =
        |since: Instant| outside.is_some_and(|probe| !probe.reached && probe.began >= since);
    let is_excluded = |(key, peer): &(&K, &PeerHearing)| {
        let Some((since, _)) = peer.unanswered.filter(|_| peer.is_silent(now)) else {
            return is_held(key)
                && match peers.len() {
                    1 => outside.is_some_and(|probe| !probe.reached),
                    _ => reaches_another_within(WITNESS_OF_EXCLUDED),
                };
        };
        match (peers.len(), excluded.contains_key(*key)) {
            (1, _) => unreachable_since(since),
            (_, false) => reaches_another_within(WITNESS),
            (_, true) => reaches_another_within(WITNESS_OF_EXCLUDED),
        }
    };
    let found = peers.iter().filter(is_excluded);
    found.map(|(key, _)| key.clone()).collect()
}

/// The last exclusion of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PeerExclusion {
    began: Instant,
    /// How long it lasts at least.
    hold: Duration,
    /// Since when the peer has been back in service and not silent.
    ended: Option<Instant>,
}

impl PeerExclusion {
    fn after(last: Option<Self>, now: Instant) -> Self {
        let hold = match last {
            // It ended because this machine reached nobody, and continues.
            Some(last) if last.ended.is_none() => return last,
            Some(last)
                if last
                    .ended
                    .is_some_and(|ended| now.saturating_duration_since(ended) < FORGIVEN) =>
            {
                last.hold.saturating_mul(2).min(LONGEST_HOLD)
            }
            Some(_) | None => SHORTEST_HOLD,
        };
        Self {
            began: now,
            hold,
            ended: None,
        }
    }
}

/// The probes that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueProbes<K> {
    /// Peers to ask over the overlay.
    pub peers: BTreeSet<K>,
    /// The only other machine has to be tried outside the overlay.
    pub outside: Option<K>,
}

/// Remembers what the peers answered.
#[derive(Debug)]
pub struct SilenceJudge<K> {
    peers: BTreeMap<K, PeerHearing>,
    excluded: BTreeSet<K>,
    /// The last exclusion of each peer that had one.
    exclusions: BTreeMap<K, PeerExclusion>,
    outside: Option<OutsideProbe>,
    /// The peer that was asked last as a witness: the next ones follow it.
    witness: Option<K>,
}

impl<K> Default for SilenceJudge<K> {
    fn default() -> Self {
        Self {
            peers: BTreeMap::new(),
            excluded: BTreeSet::new(),
            exclusions: BTreeMap::new(),
            outside: None,
            witness: None,
        }
    }
}

impl<K: Ord + Clone> SilenceJudge<K> {
    /// Looks at all peers; returns the probes that are due, and takes them as sent. Forgets peers
    /// that are not among `looks`.
    pub fn look(&mut self, looks: &BTreeMap<K, PeerLook>, now: Instant) -> DueProbes<K> {
        self.peers.retain(|key, _| looks.contains_key(key));
        self.excluded.retain(|key| looks.contains_key(key));
        self.exclusions.retain(|key, _| looks.contains_key(key));
        let mut due = BTreeSet::new();
        for (key, look) in looks {
            let peer = self.peers.entry(key.clone()).or_default();
            // One that is held although it answers is sent nothing, and asked all the same.
            let is_held = self.excluded.contains(key) && peer.unanswered.is_none();
            if peer.look(*look, now) || is_held {
                due.insert(key.clone());
            }
        }
        let mut suspects = self
            .peers
            .values()
            .filter(|peer| peer.unanswered.is_some())
            .peekable();
        let suspected = suspects.peek().is_some();
        let anew = suspects.any(|peer| !peer.is_long_silent(now));
        let mut others = self
            .peers
            .iter()
            .filter(|(key, _)| !self.excluded.contains(*key));
        let heard = others.any(|(_, peer)| peer.answered_within(WITNESS_OF_LONG_SILENCE, now));
        if anew || ((suspected || !self.excluded.is_empty()) && !heard) {
            due.extend(self.witnesses(now));
        }
        for (key, peer) in &mut self.peers {
            if due.contains(key) {
                peer.ask(now);
            }
        }
        let only = self.peers.keys().next().filter(|_| self.peers.len() == 1);
        // A machine that answers there is not tried again at each look.
        let tried = self.outside.is_some_and(|probe| {
            probe.reached && now.saturating_duration_since(probe.began) < RARELY
        });
        let only = only.filter(|key| suspected && !tried && due.contains(*key));
        let only = only.cloned();
        DueProbes {
            peers: due,
            outside: only,
        }
    }

    /// The peers that are asked whether this machine is cut off: the one that answered last, or
    /// some others in turn while none answers.
    fn witnesses(&mut self, now: Instant) -> BTreeSet<K> {
        let candidates = self
            .peers
            .iter()
            .filter(|(key, peer)| peer.unanswered.is_none() && !self.excluded.contains(*key));
        let recent = candidates
            .clone()
            .filter(|(_, peer)| peer.answered_within(2 * TICK, now))
            .max_by_key(|(_, peer)| peer.answered);
        if let Some((key, _)) = recent {
            return BTreeSet::from([key.clone()]);
        }
        let candidates: Vec<&K> = candidates.map(|(key, _)| key).collect();
        let last = self.witness.as_ref();
        let first = candidates.partition_point(|key| last.is_some_and(|last| *key <= last));
        let in_turn = candidates.iter().cycle().skip(first);
        let count = candidates.len().min(MOST_WITNESSES);
        let chosen: Vec<K> = in_turn.take(count).map(|key| (*key).clone()).collect();
        self.witness = chosen.last().cloned();
        chosen.into_iter().collect()
    }

    /// Records an answer of a peer.
    pub fn answered(&mut self, peer: &K, now: Instant) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.unanswered = None;
            peer.answered = Some(now);
        }
    }

    /// Records an attempt outside the overlay.
    pub fn tried_outside(&mut self, probe: OutsideProbe) {
        self.outside = Some(probe);
    }

    /// The peers to exclude now.
    pub fn judge(&mut self, now: Instant) -> &BTreeSet<K> {
        let held = self.excluded.iter().filter_map(|key| {
            let exclusion = self.exclusions.get(key)?;
            Some((key.clone(), exclusion.began + exclusion.hold))
        });
        let found = exclusions(&self.peers, &held.collect(), self.outside, now);
        for key in found.difference(&self.excluded) {
            let last = self.exclusions.remove(key);
            self.exclusions
                .insert(key.clone(), PeerExclusion::after(last, now));
        }
        for (key, exclusion) in &mut self.exclusions {
            let is_silent = self.peers.get(key).is_some_and(|peer| peer.is_silent(now));
            if exclusion.ended.is_none() && !is_silent && !found.contains(key) {
                exclusion.ended = Some(now);
            }
        }
        self.excluded = found;
        &self.excluded
    }

    /// What is known of each peer.
    pub fn peers(&self) -> &BTreeMap<K, PeerHearing> {
        &self.peers
    }
}

#[cfg(test)]
mod tests;

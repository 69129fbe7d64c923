//! When a machine takes a virtual address, announces it and gives it up. No input or output and no
//! clock: times, what was heard on the LAN and the leader's decision in, actions out.
//!
//! The leader numbers its decisions. A machine with a decision in its favour asks three times whether
//! anybody has the address, and takes it when nobody answers. Each of its packets has the number: a
//! machine that holds the address by an earlier decision, and has not read the later one, gives it up
//! when it hears the number. A holder repeats its announcement, so that two that hear each other again
//! find out ([`ANNOUNCING`]); a machine that has given way hears by its silence that the other one is
//! gone ([`LEASE`]).
//!
//! Foreign hosts have no numbers. A holder that hears one with its address defends it once, and gives it
//! up if the other host persists (RFC 5227, section 2.4).

use std::time::Duration;

use super::packet::{HeardStatement, Mac, StatementKind};
use kat_types::{machine::fence::BootTime, virtual_addresses::AddressStateWord};

/// Questions without an answer after which the address is taken.
const PROBES: u32 = 3;
/// Pause between two questions, and least pause between two announcements.
pub const PROBING: Duration = Duration::from_millis(250);
/// After this time with answers the address counts as another host's.
const PROBING_LIMIT: Duration = Duration::from_secs(3);
/// Pause between a holder's announcements. Two holders that hear each other know it after this time.
pub const ANNOUNCING: Duration = Duration::from_millis(1500);
/// A holder's announcement counts this long for a machine that has given way to it, and as long a pause
/// is made after an address was found to be another host's.
pub const LEASE: Duration = Duration::from_secs(5);
/// A second conflict within this time after a defence ends in giving the address up: DEFEND_INTERVAL of
/// RFC 5227.
pub const DEFENDED: Duration = Duration::from_secs(10);
/// Conflicts so soon after a defence are of packets that were under way, or of a machine of the cluster
/// that is giving the address up.
const SETTLING: Duration = Duration::from_secs(2);

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderAction {
    /// Ask whether anybody has the address.
    Ask,
    /// Add the address to the link.
    Add,
    /// Announce the address.
    Announce,
    /// Remove the address from the link.
    Remove,
}

/// Why an address is not taken now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitingCause {
    /// This host answers for it.
    Taken(Mac),
    /// This host announced it, and persisted.
    Conflict(Mac),
    /// A machine of the cluster holds it by a later decision.
    Superseded,
    /// No leader was reached for too long.
    Released,
    /// The kernel did not take it.
    Refused,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HolderState {
    Idle,
    Probing {
        since: BootTime,
        /// Questions since the last answer.
        unanswered: u32,
        next: BootTime,
        /// The host that answered last.
        answered: Option<Mac>,
    },
    Held {
        /// When to announce next.
        next: BootTime,
        announced: Option<BootTime>,
        defended: Option<BootTime>,
    },
    Waiting {
        /// `None` until a leader is reached.
        until: Option<BootTime>,
        cause: WaitingCause,
    },
}

/// One virtual address on one machine.
#[derive(Debug, Clone)]
pub struct AddressHolder {
    /// Number of the leader's decision for this machine.
    grant: Option<u64>,
    /// Until when the address may be held.
    until: Option<BootTime>,
    /// Whether there is a link for it.
    linked: bool,
    state: HolderState,
}

impl Default for AddressHolder {
    fn default() -> Self {
        Self {
            grant: None,
            until: None,
            linked: false,
            state: HolderState::Idle,
        }
    }
}

impl AddressHolder {
    /// Goes on with an address that an earlier process of `kat-net` left on the link.
    pub fn adopt(&mut self, now: BootTime) {
        self.linked = true;
        self.state = HolderState::Held {
            next: now,
            announced: None,
            defended: None,
        };
    }

    /// Sets the leader's decision for this machine, until when it counts, and whether there is a link for
    /// the address.
    pub fn set(&mut self, grant: Option<u64>, until: Option<BootTime>, linked: bool) {
        let is_other_time = self.until != until;
        (self.until, self.linked) = (until, linked);
        if is_other_time && self.waits_for() == Some(WaitingCause::Released) {
            self.state = HolderState::Idle;
        }
        if self.grant == grant {
            return;
        }
        self.grant = grant;
        match &mut self.state {
            // The holder of before was chosen again: it tells the others the new number.
            HolderState::Held { next, .. } if grant.is_some() => *next = BootTime(0),
            // What was found before the decision has no say in it.
            HolderState::Waiting { .. } | HolderState::Probing { .. } => {
                self.state = HolderState::Idle;
            }
            HolderState::Held { .. } | HolderState::Idle => {}
        }
    }

    /// Whether this machine has the address.
    pub fn is_held(&self) -> bool {
        matches!(self.state, HolderState::Held { .. })
    }

    /// The number of this machine's packets.
    pub fn claim(&self) -> u64 {
        self.grant.unwrap_or_default()
    }

    /// What the machine does, for the report.
    pub fn word(&self) -> AddressStateWord {
        match &self.state {
            HolderState::Idle => AddressStateWord::Ready,
            HolderState::Probing { .. } => AddressStateWord::Probing,
            HolderState::Held { .. } => AddressStateWord::Held,
            HolderState::Waiting { cause, .. } => match cause {
                WaitingCause::Taken(_) => AddressStateWord::Taken,
                WaitingCause::Conflict(_) => AddressStateWord::Conflict,
                WaitingCause::Superseded => AddressStateWord::Superseded,
                WaitingCause::Released => AddressStateWord::Released,
                WaitingCause::Refused => AddressStateWord::Refused,
            },
        }
    }

    /// Why the address is not taken now.
    pub fn waits_for(&self) -> Option<WaitingCause> {
        match &self.state {
            HolderState::Waiting { cause, .. } => Some(*cause),
            _ => None,
        }
    }

    /// When [`advance`](Self::advance) has something to do; `None` if only after another call.
    pub fn next(&self) -> Option<BootTime> {
        if !self.linked || self.grant.is_none() {
            // A present address is removed at once.
            return self.is_held().then_some(BootTime(0));
        }
        match &self.state {
            HolderState::Idle => Some(BootTime(0)),
            HolderState::Probing { next, .. } => Some(*next),
            HolderState::Held { next, .. } => match self.until {
                Some(until) => Some(until.min(*next)),
                None => Some(*next),
            },
            HolderState::Waiting { until, .. } => *until,
        }
    }

    /// Does what is due. A change of the state may make more due at once, see [`next`](Self::next).
    pub fn advance(&mut self, now: BootTime) -> Vec<HolderAction> {
        let Some(_) = self.grant.filter(|_| self.linked) else {
            let held = self.is_held();
            self.state = HolderState::Idle;
            return given_up(held);
        };
        if self.until.is_some_and(|until| now >= until) {
            let held = self.is_held();
            self.wait(None, WaitingCause::Released);
            return given_up(held);
        }
        match &mut self.state {
            HolderState::Idle => self.ask_first(now),
            HolderState::Probing {
                unanswered, next, ..
            } if now >= *next => {
                if *unanswered >= PROBES {
                    self.state = HolderState::Held {
                        next: now.after(PROBING),
                        announced: Some(now),
                        defended: None,
                    };
                    return vec![HolderAction::Add, HolderAction::Announce];
                }
                *unanswered += 1;
                *next = now.after(PROBING);
                vec![HolderAction::Ask]
            }
            HolderState::Held {
                next, announced, ..
            } if now >= *next => {
                (*next, *announced) = (now.after(ANNOUNCING), Some(now));
                vec![HolderAction::Announce]
            }
            HolderState::Waiting {
                until: Some(until), ..
            } if now >= *until => self.ask_first(now),
            HolderState::Waiting { .. } => Vec::new(),
            HolderState::Probing { .. } | HolderState::Held { .. } => Vec::new(),
        }
    }

    /// Takes in what another host says of this address.
    pub fn hear(&mut self, statement: &HeardStatement, now: BootTime) -> Vec<HolderAction> {
        let Some(own) = self.grant else {
            return Vec::new();
        };
        // The number of this machine itself, from another one, proves as little as none.
        let claim = statement.claim.filter(|claim| *claim != own);
        if claim.is_some_and(|claim| claim > own) {
            let held = self.is_held();
            if self.waits_for() != Some(WaitingCause::Released) {
                self.wait(Some(now.after(LEASE)), WaitingCause::Superseded);
            }
            return given_up(held);
        }
        match &mut self.state {
            HolderState::Probing {
                since,
                unanswered,
                answered,
                ..
            } => {
                // A machine of the cluster with an earlier decision gives way; its kernel may still answer.
                *unanswered = 0;
                if claim.is_none() {
                    *answered = Some(statement.mac);
                }
                if now.since(*since) >= PROBING_LIMIT
                    && let Some(mac) = *answered
                {
                    self.wait(Some(now.after(LEASE)), WaitingCause::Taken(mac));
                }
                Vec::new()
            }
            HolderState::Held {
                announced,
                defended,
                next,
            } => {
                let is_rival = claim.is_some();
                let announces = match (statement.kind, is_rival) {
                    // The kernel answers who asks.
                    (StatementKind::Asks, false) => false,
                    (_, true) => announced.is_none_or(|last| now.since(last) >= PROBING),
                    (StatementKind::Has, false) => match *defended {
                        Some(last) if now.since(last) < SETTLING => false,
                        Some(last) if now.since(last) < DEFENDED => {
                            let cause = WaitingCause::Conflict(statement.mac);
                            self.wait(Some(now.after(LEASE)), cause);
                            return given_up(true);
                        }
                        _ => {
                            *defended = Some(now);
                            true
                        }
                    },
                };
                if announces {
                    (*next, *announced) = (now.after(ANNOUNCING), Some(now));
                    return vec![HolderAction::Announce];
                }
                Vec::new()
            }
            HolderState::Idle | HolderState::Waiting { .. } => Vec::new(),
        }
    }

    /// The last question was not sent: nobody could answer it.
    pub fn unasked(&mut self) {
        if let HolderState::Probing { unanswered, .. } = &mut self.state {
            *unanswered = 0;
        }
    }

    /// The address could not be added to the link.
    pub fn refuse(&mut self, now: BootTime) {
        self.wait(Some(now.after(LEASE)), WaitingCause::Refused);
    }

    fn ask_first(&mut self, now: BootTime) -> Vec<HolderAction> {
        self.state = HolderState::Probing {
            since: now,
            unanswered: 1,
            next: now.after(PROBING),
            answered: None,
        };
        vec![HolderAction::Ask]
    }

    fn wait(&mut self, until: Option<BootTime>, cause: WaitingCause) {
        self.state = HolderState::Waiting { until, cause };
    }
}

fn given_up(held: bool) -> Vec<HolderAction> {
    match held {
        true => vec![HolderAction::Remove],
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests;

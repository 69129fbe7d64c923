//! Spreading of a workload's instances over a label of the machines.

use std::collections::{BTreeMap, BTreeSet};

use super::schedule::{foreign, unsuitable};
use crate::{InstanceDemand, MachineCandidate};

/// Number of a workload's instances by value of the label that it spreads over.
pub(crate) struct SpreadDomains<'a> {
    key: &'a str,
    required: bool,
    /// The most instances that a domain may have; a machine without the label is in none.
    most: Option<u32>,
    counts: BTreeMap<&'a str, u32>,
    /// The lowest count of a domain with a suitable machine.
    least: u32,
}

impl<'a> SpreadDomains<'a> {
    /// `None` for a workload that names no label.
    pub(crate) fn new(
        demand: InstanceDemand<'a>,
        candidates: &'a [MachineCandidate<'_>],
    ) -> Option<Self> {
        let spread = demand.spec.spread.as_ref()?;
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        let mut suitable = BTreeSet::new();
        for candidate in candidates {
            let Some(value) = candidate.labels.get(&spread.topology_key) else {
                continue;
            };
            *counts.entry(value).or_default() += demand.staying(candidate);
            let foreign = foreign(demand, candidate);
            if unsuitable(demand, candidate).or(foreign).is_none() {
                suitable.insert(value.as_str());
            }
        }
        let least = suitable.iter().filter_map(|value| counts.get(value)).min();
        Some(Self {
            key: &spread.topology_key,
            required: spread.required,
            most: spread.max_per_domain,
            least: least.copied().unwrap_or(0),
            counts,
        })
    }

    /// Number of instances in the machine's domain; `u32::MAX` for a machine without the label, so
    /// that it comes last.
    pub(crate) fn count(&self, candidate: &MachineCandidate<'_>) -> u32 {
        let value = candidate.labels.get(self.key);
        let count = value.and_then(|value| self.counts.get(value.as_str()));
        count.copied().unwrap_or(u32::MAX)
    }

    pub(crate) fn exclusion(&self, candidate: &MachineCandidate<'_>) -> Option<&'static str> {
        if !self.required && self.most.is_none() {
            return None;
        }
        if !candidate.labels.contains_key(self.key) {
            return Some("without the label of spread");
        }
        let count = self.count(candidate);
        if self.most.is_some_and(|most| count >= most) {
            return Some("where spread.maxPerDomain is reached");
        }
        (self.required && count > self.least).then_some("where the spread would become uneven")
    }
}

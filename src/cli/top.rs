//! `katcall top`: what runs where, and what it takes, from the machines' reports.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    time::Duration,
};

use jiff::Timestamp;

use super::{
    Session,
    args::{Top, TopKind},
    errors::CliError,
    output::table::{Cell, Table},
};
use crate::{
    api::{
        client::Route,
        types::{InstanceItem, InstancePhase, List, NodeItem},
    },
    resource::{Bytes, MilliCpu},
};

/// Between two looks on a terminal. Machines report every `agentTickSeconds`.
const LOOK: Duration = Duration::from_secs(2);
/// To the screen's first place, and nothing of what was there.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Processor time that was counted, nanoseconds, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    cpu: u64,
    at: Timestamp,
}

/// What instances take, from one report to the next.
#[derive(Debug, Default)]
struct Usage {
    counted: BTreeMap<String, Counted>,
    rates: BTreeMap<String, u64>,
}

impl Usage {
    /// Thousandths of a processor: since the report before, or where there is none since it began to run.
    fn take(&mut self, id: &str, now: Counted, began: Option<Timestamp>) -> Option<u64> {
        match self.counted.get(id).copied() {
            Some(before) if before.at == now.at => {}
            Some(before) if before.cpu <= now.cpu => {
                self.rates.insert(id.to_owned(), rate(before, now)?);
            }
            _ => {
                let began = began.filter(|began| *began < now.at)?;
                let whole = rate(Counted { cpu: 0, at: began }, now)?;
                self.rates.insert(id.to_owned(), whole);
            }
        }
        self.counted.insert(id.to_owned(), now);
        self.rates.get(id).copied()
    }
}

fn rate(before: Counted, now: Counted) -> Option<u64> {
    let passed = now.at.duration_since(before.at).as_micros();
    let passed = u64::try_from(passed).ok().filter(|passed| *passed > 0)?;
    // Nanoseconds of work in microseconds of time: thousandths.
    Some(now.cpu.saturating_sub(before.cpu) / passed)
}

pub(super) async fn run(session: &Session<'_>, arguments: &Top) -> Result<(), CliError> {
    let live = io::stdout().is_terminal();
    let mut usage = Usage::default();
    loop {
        let nodes: List<NodeItem> = session.client.get(Route::nodes()).await?;
        let all = arguments.all_namespaces || arguments.kind == TopKind::Nodes;
        let namespace = (!all).then_some(arguments.namespace.namespace.as_str());
        let instances = session.client.instances(namespace).await?.items;
        let table = table(arguments.kind, &nodes.items, &instances, &mut usage);
        let text = table.render(session.console.colour);
        if !live {
            return session.console.print(&text);
        }
        session.console.print(&format!("{CLEAR}{text}"))?;
        tokio::time::sleep(LOOK).await;
    }
}

/// One line of it, with what it is sorted by.
struct Taken<'item> {
    item: &'item InstanceItem,
    cpu: Option<u64>,
}

fn table(
    kind: TopKind,
    nodes: &[NodeItem],
    instances: &[InstanceItem],
    usage: &mut Usage,
) -> Table {
    let reported: BTreeMap<&str, Timestamp> = nodes
        .iter()
        .filter_map(|node| {
            let at = node.status.last_heartbeat.as_deref()?.parse().ok()?;
            Some((node.metadata.name.as_str(), at))
        })
        .collect();
    let mut taken: Vec<Taken<'_>> = instances
        .iter()
        .map(|item| {
            let status = &item.status;
            let began = (status.phase == InstancePhase::Running).then(|| status.since.parse().ok());
            let node = status.node.as_deref().unwrap_or_default();
            let at = reported.get(node);
            let now = status.cpu.zip(at).map(|(cpu, at)| Counted { cpu, at: *at });
            let cpu = now.and_then(|now| usage.take(&item.metadata.name, now, began.flatten()));
            Taken { item, cpu }
        })
        .collect();
    match kind {
        TopKind::Instances => {
            taken.sort_by(|left, right| {
                let by = |one: &Taken<'_>| (one.cpu, one.item.status.memory);
                let names = left.item.metadata.name.cmp(&right.item.metadata.name);
                by(right).cmp(&by(left)).then(names)
            });
            let mut table = Table::new(vec!["NAME", "NODE", "CPU", "MEMORY"]);
            for Taken { item, cpu } in taken {
                table.row(vec![
                    Cell::new(&item.metadata.name),
                    Cell::new(item.status.node.as_deref().unwrap_or_default()),
                    Cell::new(processor(cpu)),
                    Cell::new(memory(item.status.memory)),
                ]);
            }
            table
        }
        TopKind::Nodes => {
            let mut table = Table::new(vec!["NAME", "INSTANCES", "CPU", "OF", "MEMORY", "OF"]);
            for node in nodes {
                let name = &node.metadata.name;
                let here = || {
                    taken
                        .iter()
                        .filter(|one| one.item.status.node.as_ref() == Some(name))
                };
                let sum = |values: Vec<u64>| (!values.is_empty()).then(|| values.iter().sum());
                let allocatable = &node.status.allocatable;
                table.row(vec![
                    Cell::new(name),
                    Cell::new(here().count().to_string()),
                    Cell::new(processor(sum(here().filter_map(|one| one.cpu).collect()))),
                    Cell::new(processor(allocatable.cpu.map(|cpu| cpu.0))),
                    Cell::new(memory(sum(here()
                        .filter_map(|one| one.item.status.memory)
                        .collect()))),
                    Cell::new(memory(allocatable.memory.map(|memory| memory.0))),
                ]);
            }
            table
        }
    }
}

fn processor(thousandths: Option<u64>) -> String {
    thousandths.map_or_else(String::new, |one| MilliCpu(one).to_string())
}

fn memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |one| Bytes(one).rounded())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u32, cpu: u64) -> Counted {
        let text = format!("2026-01-01T00:00:{second:02}Z");
        Counted {
            cpu,
            at: text.parse().unwrap(),
        }
    }

    #[test]
    fn what_is_taken_is_counted_from_report_to_report() {
        let mut usage = Usage::default();
        let began = Some(at(0, 0).at);
        assert_eq!(usage.take("a", at(10, 1_000_000_000), began), Some(100));
        // The same report again says the same.
        assert_eq!(usage.take("a", at(10, 1_000_000_000), began), Some(100));
        assert_eq!(usage.take("a", at(14, 3_000_000_000), began), Some(500));
        // The program was started again, and counts anew.
        assert_eq!(
            usage.take("a", at(20, 100_000_000), Some(at(18, 0).at)),
            Some(50)
        );
        assert_eq!(usage.take("b", at(20, 1), None), None);
    }
}

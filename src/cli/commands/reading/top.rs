//! `katcall top`: shows instances, machines and their present resource usage, as the machines
//! measure it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IsTerminal},
    time::Duration,
};

use futures_util::future::join_all;
use jiff::Timestamp;

use crate::{
    CliSession,
    args::TopArgs,
    console::{TextTone, tint},
    errors::CliError,
    output::{
        plain,
        table::{Cell, Table},
    },
    references::{self, BareName, CommandKinds, LabelSelector, Named, Reference},
};
use kat_client::{Client, ClientError, RequestPath};
use kat_types::{
    api::{InstanceItem, InstanceUsage, List, NodeItem},
    resource::{Bytes, MilliCpu, named_kind::NamedKind},
};

/// Interval of the measurements on a terminal.
const LOOK: Duration = Duration::from_secs(2);
/// Time between the only two measurements without a terminal.
const SHORT_LOOK: Duration = Duration::from_secs(1);
/// Moves the cursor to the top left and clears the screen.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Measured processor time in nanoseconds, and the time of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CpuSample {
    cpu: u64,
    at: Timestamp,
}

/// Present usage of an instance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ResourceLoad {
    /// Thousandths of a processor.
    cpu: Option<u64>,
    memory: Option<u64>,
}

/// The usage of instances between two measurements.
#[derive(Debug, Default)]
struct MeasuredUsage {
    counted: BTreeMap<String, CpuSample>,
    loads: BTreeMap<String, ResourceLoad>,
}

impl MeasuredUsage {
    /// Adds a measurement of all running instances.
    fn add_measurement(&mut self, found: Vec<InstanceUsage>) {
        let before = std::mem::take(&mut self.counted);
        self.loads.clear();
        for one in found {
            let at = one.at.get();
            let now = one.cpu.zip(at).map(|(cpu, at)| CpuSample { cpu, at });
            let then = before.get(&one.instance);
            let load = ResourceLoad {
                cpu: then.zip(now).and_then(|(then, now)| rate(*then, now)),
                memory: one.memory,
            };
            if let Some(now) = now {
                self.counted.insert(one.instance.clone(), now);
            }
            self.loads.insert(one.instance, load);
        }
    }

    fn of(&self, id: &str) -> ResourceLoad {
        self.loads.get(id).copied().unwrap_or_default()
    }
}

/// Thousandths of a processor; `None` where the program was restarted in between.
fn rate(before: CpuSample, now: CpuSample) -> Option<u64> {
    let passed = now.at.duration_since(before.at).as_micros();
    let passed = u64::try_from(passed).ok().filter(|passed| *passed > 0)?;
    // Nanoseconds of processor time per microsecond are thousandths of a processor.
    Some(now.cpu.checked_sub(before.cpu)? / passed)
}

/// Whose usage a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UsageOf {
    Nodes,
    Instances,
}

/// What is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    of: UsageOf,
    /// The namespace of the instances; `None` for all.
    namespace: Option<String>,
    /// Only these machines, instances, or instances of workloads; empty for all.
    objects: Vec<Reference>,
    /// Only machines or instances with these labels.
    selector: LabelSelector,
}

pub(crate) const SHOWN: CommandKinds = CommandKinds {
    kinds: &[NamedKind::Node, NamedKind::Instance, NamedKind::Workload],
    bare: BareName::Open,
};

impl Shown {
    fn of(arguments: &TopArgs) -> Result<Self, CliError> {
        let option = &arguments.namespace;
        let all = (!arguments.all_namespaces).then(|| option.namespace.clone());
        let list = |of| Self {
            of,
            namespace: all.clone(),
            objects: Vec::new(),
            selector: arguments.selector.clone(),
        };
        if arguments.words.is_empty() {
            return Ok(list(UsageOf::Instances));
        }
        let objects = match references::all(&arguments.words, SHOWN, option)? {
            Named::AllOf(NamedKind::Node) => return Ok(list(UsageOf::Nodes)),
            Named::AllOf(NamedKind::Instance) => return Ok(list(UsageOf::Instances)),
            Named::AllOf(_) => {
                return Err(CliError::usage(
                    "the usage of all workloads is that of their instances",
                )
                .hinted("`katcall top instances`, or `katcall top workload/NAME`"));
            }
            Named::Objects(objects) => objects,
        };
        if arguments.all_namespaces {
            return Err(CliError::usage(
                "`--all-namespaces` and the name of an object exclude each other",
            ));
        }
        if !arguments.selector.is_empty() {
            return Err(CliError::usage(
                "`--label` and the name of an object exclude each other",
            ));
        }
        let is_node = |object: &Reference| object.kind == Some(NamedKind::Node);
        let namespace = objects.first().map(|object| object.namespace.clone());
        let of = match objects.iter().all(is_node) {
            true => UsageOf::Nodes,
            false => UsageOf::Instances,
        };
        // The namespace of a machine is empty, so machines and instances differ here, too.
        let mut others = objects.iter();
        if others.any(|object| Some(&object.namespace) != namespace.as_ref()) {
            return Err(CliError::usage(
                "a table is of machines, or of instances of one namespace",
            ));
        }
        Ok(Self {
            of,
            namespace,
            objects,
            selector: LabelSelector::default(),
        })
    }

    /// Whether a machine is one of the named ones.
    fn has_node(&self, item: &NodeItem) -> bool {
        let mut objects = self.objects.iter();
        let is_named =
            self.objects.is_empty() || objects.any(|object| object.name == item.metadata.name);
        is_named && self.selector.selects(&item.metadata.labels)
    }

    /// Whether an instance is one of the named ones.
    fn has_instance(&self, item: &InstanceItem) -> bool {
        let is_named = |object: &Reference| match object.kind {
            Some(NamedKind::Instance) => item.metadata.name == object.name,
            Some(NamedKind::Workload) => item.status.workload == object.name,
            _ => item.metadata.name == object.name || item.status.workload == object.name,
        };
        if self.of == UsageOf::Nodes {
            return true;
        }
        let is_named = self.objects.is_empty() || self.objects.iter().any(is_named);
        is_named && self.selector.selects(&item.metadata.labels)
    }

    /// The error for a name that nothing has.
    fn check(&self, reading: &UsageReading) -> Result<(), CliError> {
        for object in &self.objects {
            let alone = Self {
                objects: vec![object.clone()],
                ..self.clone()
            };
            let (found, words) = match self.of {
                UsageOf::Nodes => (
                    reading.nodes.iter().any(|item| alone.has_node(item)),
                    "there is no node",
                ),
                UsageOf::Instances => (
                    reading
                        .instances
                        .iter()
                        .any(|item| alone.has_instance(item)),
                    "no instance is called or belongs to",
                ),
            };
            if !found {
                let name = &object.name;
                return Err(CliError::not_found(format!("{words} `{}`", plain(name)))
                    .hinted("`katcall get all -A` and `katcall get nodes` list what there is"));
            }
        }
        Ok(())
    }
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &TopArgs) -> Result<(), CliError> {
    let console = session.console;
    let what = Shown::of(arguments)?;
    let live = io::stdout().is_terminal();
    // Errors are shown, and the request is repeated anyway.
    let once = session.client.trying_once();
    let mut usage = MeasuredUsage::default();
    let mut shown = String::new();
    let mut looks = 0_u8;
    loop {
        let client = if live && looks > 0 {
            &once
        } else {
            &session.client
        };
        let troubles = match read(client, &what).await {
            Ok(mut reading) => {
                if looks == 0 {
                    what.check(&reading)?;
                }
                reading.instances.retain(|item| what.has_instance(item));
                reading.nodes.retain(|node| what.has_node(node));
                usage.add_measurement(reading.found);
                looks = looks.saturating_add(1);
                let table = table(what.of, &reading.nodes, &reading.instances, &usage);
                shown = table.within(console.width).render(console.colour);
                reading.away
            }
            Err(error) if live && passes(&error, looks > 0) => {
                vec![format!("{error}; trying again")]
            }
            Err(error) => return Err(error.into()),
        };
        if live {
            console.print(&screen(&shown, &troubles, console.colour))?;
        } else if looks > 1 {
            for trouble in troubles {
                console.warning(&plain(&trouble));
            }
            return console.print(&shown);
        }
        let soon = !live || looks == 1;
        tokio::time::sleep(if soon { SHORT_LOOK } else { LOOK }).await;
    }
}

/// The table, and the warnings below it.
fn screen(table: &str, troubles: &[String], colour: bool) -> String {
    let word = tint("warning", TextTone::Busy, colour);
    let lines = troubles
        .iter()
        .map(|trouble| format!("{word}: {}\n", plain(trouble)));
    format!("{CLEAR}{table}{}", lines.collect::<String>())
}

/// Whether the view continues after this error: not if access is denied. Before anything was
/// `seen`, the request itself may be wrong.
fn passes(error: &ClientError, seen: bool) -> bool {
    match error {
        _ if matches!(error.status(), Some(401 | 403)) => false,
        _ if seen => true,
        ClientError::Unreachable { .. } => false,
        _ => error.is_passing(),
    }
}

/// The result of one reading.
#[derive(Default)]
struct UsageReading {
    /// Only if machines are shown.
    nodes: Vec<NodeItem>,
    instances: Vec<InstanceItem>,
    found: Vec<InstanceUsage>,
    /// Why some machines could not be reached.
    away: Vec<String>,
}

/// A single namespace is one request, which a token for that namespace allows.
async fn read(client: &Client, what: &Shown) -> Result<UsageReading, ClientError> {
    let mut reading = UsageReading::default();
    if let (UsageOf::Instances, Some(namespace)) = (what.of, &what.namespace) {
        reading.instances = client.instances(Some(namespace)).await?.items;
        let usage = client.namespace_usage(namespace).await?;
        reading.found = usage.instances;
        reading.away = usage.away.into_iter().map(|one| one.message).collect();
        return Ok(reading);
    }
    if what.of == UsageOf::Nodes {
        reading.nodes = client
            .get::<List<NodeItem>>(RequestPath::nodes())
            .await?
            .items;
    }
    reading.instances = client.instances(None).await?.items;
    let nodes = reading.instances.iter();
    let nodes: BTreeSet<&String> = nodes.filter_map(|one| one.status.node.as_ref()).collect();
    let asked = nodes.iter().map(|node| client.node_usage(node));
    for answer in join_all(asked).await {
        match answer {
            Ok(usage) => reading.found.extend(usage.instances),
            // The cluster answers, but not for this machine: it is unreachable, or was removed
            // meanwhile.
            Err(error) if !matches!(error.status(), None | Some(401 | 403)) => {
                reading.away.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(reading)
}

/// A line of the table.
struct UsageRow<'item> {
    item: &'item InstanceItem,
    load: ResourceLoad,
}

fn table(
    of: UsageOf,
    nodes: &[NodeItem],
    instances: &[InstanceItem],
    usage: &MeasuredUsage,
) -> Table {
    let taken = instances.iter().map(|item| UsageRow {
        item,
        load: usage.of(&item.metadata.name),
    });
    let mut taken: Vec<UsageRow<'_>> = taken.collect();
    match of {
        UsageOf::Instances => {
            taken.sort_by(|left, right| {
                let by = |one: &UsageRow<'_>| (one.load.cpu, one.load.memory);
                let names = left.item.metadata.name.cmp(&right.item.metadata.name);
                by(right).cmp(&by(left)).then(names)
            });
            let mut table = Table::new(vec!["NAME", "NODE", "CPU", "MEMORY"]);
            for UsageRow { item, load } in taken {
                table.row(vec![
                    Cell::new(&item.metadata.name),
                    Cell::new(item.status.node.as_deref().unwrap_or_default()),
                    Cell::new(processor(load.cpu)),
                    Cell::new(memory(load.memory)),
                ]);
            }
            table
        }
        UsageOf::Nodes => {
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
                    Cell::new(processor(sum(here()
                        .filter_map(|one| one.load.cpu)
                        .collect()))),
                    Cell::new(processor(allocatable.cpu.map(|cpu| cpu.0))),
                    Cell::new(memory(sum(here()
                        .filter_map(|one| one.load.memory)
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
    use kat_types::api::ApiTime;

    fn one(second: u32, cpu: u64) -> InstanceUsage {
        InstanceUsage {
            instance: "a".to_owned(),
            at: ApiTime::parse(&format!("2026-01-01T00:00:{second:02}Z")),
            cpu: Some(cpu),
            memory: Some(7),
        }
    }

    #[test]
    fn cpu_use_is_the_difference_between_two_samples() {
        let mut usage = MeasuredUsage::default();
        let mut look = |found: Vec<InstanceUsage>| {
            usage.add_measurement(found);
            usage.of("a")
        };
        let load = |cpu| ResourceLoad {
            cpu,
            memory: Some(7),
        };
        assert_eq!(look(vec![one(10, 1_000_000_000)]), load(None));
        assert_eq!(look(vec![one(14, 3_000_000_000)]), load(Some(500)));
        assert_eq!(look(vec![one(16, 3_000_000_000)]), load(Some(0)));
        // The program was restarted, so its counter starts again; later its instance is gone.
        assert_eq!(look(vec![one(18, 100_000_000)]), load(None));
        assert_eq!(look(vec![one(20, 200_000_000)]), load(Some(50)));
        assert_eq!(look(Vec::new()), ResourceLoad::default());
        assert_eq!(look(vec![one(24, 300_000_000)]), load(None));
    }
}

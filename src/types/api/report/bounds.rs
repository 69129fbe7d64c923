//! Limits of a machine's report, since its content is stored and shown.
//!
//! Each function destructures its type field by field, so that a new field does not compile without
//! a limit.

use super::{
    AuthorityReport, BoundReport, BoundRun, ImagesRemoved, IngressReport, InstanceReport,
    MOST_BOUND_RUNS, MemberKeys, NodeReport, NodeResources, OverlayPeer, OverlayReport,
    RefusedRoute, VirtualAddressReport, VolumeMoveReport,
};
use crate::{
    api::{
        Condition, ConnectionEnd, ContainerStatus, IsolationReport, MOST_REFUSED, RefusedReport,
    },
    machine::{
        bound_runs::MOST_BOUND_RETRIES,
        gpu::{CdiName, GpuDevice, MOST_GPUS},
    },
    resource::{Bytes, MilliCpu, ResourceList},
    store::{
        authorities::MemberSignature,
        jobs::{AttemptEnd, SkippedRun},
    },
    virtual_addresses::MOST_ADDRESSES,
};

/// Maximum bytes of one word in a report.
pub const MAX_WORD: usize = 128;
/// Maximum bytes of a name with parts, such as that of an image or a volume.
pub const MAX_NAME: usize = 512;
/// Maximum bytes of one sentence in a report.
pub const MAX_SENTENCE: usize = 4096;
/// Maximum entries of a list.
pub const MAX_ENTRIES: usize = 2000;
/// Maximum conditions, and containers, of one instance.
const MAX_OF_INSTANCE: usize = 32;
/// Maximum bytes of a list of volumes.
const MAX_VOLUMES: usize = 256 * 1024;
/// Maximum users of a machine: the number of indexes.
const MAX_USERS: usize = 4096;
/// Maximum routes and certificates that a machine does not serve.
const MAX_REFUSED: usize = 64;
/// Maximum authorities of a machine.
const MAX_AUTHORITIES: usize = 8;
/// Maximum certificates of one authority that a machine tried.
const MAX_EDITIONS: usize = 8;
/// Upper bounds of CPU, in thousandths, and of memory, in bytes, above those of any machine.
const MAX_CPU: u64 = 8192 * 1000;
const MAX_MEMORY: u64 = 128 << 40;
/// Maximum bytes of the texts about instances: without it a report with 250 instances could be
/// refused for its length.
const MAX_WORDS: usize = 1 << 20;

/// A list that is too long and cannot be cut, since its missing entries would be taken as absent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{list} has {entries} entries, at most {MAX_ENTRIES} are allowed")]
pub struct TooManyEntries {
    /// Name of the field.
    pub list: &'static str,
    /// Number of its entries.
    pub entries: usize,
}

impl NodeReport {
    /// Cuts texts and lists to their limits, and replaces control characters.
    ///
    /// # Errors
    /// [`TooManyEntries`] for lists that cannot be cut.
    pub fn keep_bounds(&mut self) -> Result<(), TooManyEntries> {
        self.refuse_long_lists()?;
        let Self {
            node_name,
            node_uid,
            timestamp: _,
            resources,
            workload_instances,
            overlay_network,
            version,
            architecture,
            addresses,
            // Refused if it is too long.
            advertise: _,
            endpoints,
            desired_revision: _,
            user_indexes,
            conditions,
            assignment_schema: _,
            manifest_reader: _,
            data_path: _,
            volume_shared: _,
            host_network: _,
            runtime,
            foreign_indexes,
            made_volumes,
            removed_volumes,
            missing_volumes,
            volume_moves,
            images_removed,
            member_keys,
            authorities,
            state_stream: _,
            etcd_waits: _,
            configuration,
            isolation,
            ingress,
            virtual_addresses,
            order,
            gpus,
        } = self;
        words([node_name, node_uid, version, architecture, runtime]);
        let MemberKeys { leader, admin, api } = member_keys;
        words([leader, admin, api]);
        words(order.iter_mut().map(|order| &mut order.boot_id));
        words(
            configuration
                .iter_mut()
                .map(|followed| &mut followed.change),
        );
        if let Some(ingress) = ingress {
            bound_ingress(ingress);
        }
        bound_virtual_addresses(virtual_addresses);
        bound_gpus(gpus);
        authorities.truncate(MAX_AUTHORITIES);
        authorities.iter_mut().for_each(bound_authority);
        words(addresses.iter_mut().chain(endpoints));
        bound_resources(resources);
        bound_overlay(overlay_network);
        for indexes in [user_indexes, foreign_indexes] {
            indexes.sort_unstable();
            indexes.dedup();
            indexes.truncate(MAX_USERS);
        }
        conditions.truncate(MAX_OF_INSTANCE);
        conditions.iter_mut().for_each(bound_condition);
        // Entries that are missing here count as not done yet.
        for list in [made_volumes, removed_volumes, missing_volumes] {
            list.iter_mut().for_each(|name| cut(name, MAX_NAME));
            truncate_to_bytes(list, MAX_VOLUMES, String::len);
        }
        volume_moves.iter_mut().for_each(bound_move);
        truncate_to_bytes(volume_moves, MAX_VOLUMES, |one| {
            one.volume.len() + one.message.len() + MAX_WORD
        });
        if let Some(isolation) = isolation {
            bound_isolation(isolation);
        }
        if let Some(removed) = images_removed {
            bound_images(removed);
        }
        bound_instances(workload_instances);
        Ok(())
    }

    /// Refuses lists that cannot be cut.
    fn refuse_long_lists(&self) -> Result<(), TooManyEntries> {
        let lists = [
            ("workloadInstances", self.workload_instances.len()),
            ("addresses", self.addresses.len()),
            ("advertise", self.advertise.len()),
            ("endpoints", self.endpoints.len()),
            ("peers", self.overlay_network.peers.len()),
            ("conditions", self.conditions.len()),
        ];
        let long = lists.into_iter().find(|(_, length)| *length > MAX_ENTRIES);
        match long {
            Some((list, entries)) => Err(TooManyEntries { list, entries }),
            None => Ok(()),
        }
    }
}

fn bound_virtual_addresses(addresses: &mut Vec<VirtualAddressReport>) {
    addresses.truncate(MOST_ADDRESSES);
    for one in addresses {
        words([&mut one.interface]);
        cut(&mut one.message, MAX_SENTENCE);
    }
}

/// Keeps the GPUs whose names are well-formed, each once: a name becomes a line of a unit.
fn bound_gpus(gpus: &mut Vec<GpuDevice>) {
    gpus.retain(|GpuDevice { name, memory: _ }| CdiName::of_gpu(name).is_some());
    for GpuDevice { name: _, memory } in gpus.iter_mut() {
        *memory = memory.map(|Bytes(memory)| Bytes(memory.min(MAX_MEMORY)));
    }
    gpus.sort();
    gpus.dedup_by(|later, earlier| later.name == earlier.name);
    gpus.truncate(MOST_GPUS);
}

/// Cuts the texts about each instance, and then those about all of them.
fn bound_instances(instances: &mut [InstanceReport]) {
    instances.iter_mut().for_each(bound_instance);
    let words = instances.iter_mut().map(|instance| InstanceTexts {
        message: &mut instance.message,
        conditions: &mut instance.conditions,
        containers: &mut instance.containers,
    });
    shorten_words(words.collect(), MAX_WORDS);
}

fn bound_ingress(report: &mut IngressReport) {
    let IngressReport {
        state: _,
        reason,
        message,
        refused,
        challenges: _,
    } = report;
    words([reason]);
    cut(message, MAX_SENTENCE);
    refused.truncate(MAX_REFUSED);
    for RefusedRoute {
        file,
        name,
        message,
    } in refused
    {
        words([file]);
        cut(name, MAX_NAME);
        cut(message, MAX_NAME);
    }
}

/// The long texts about one instance.
pub struct InstanceTexts<'w> {
    /// The sentence for people.
    pub message: &'w mut String,
    /// Its conditions.
    pub conditions: &'w mut Vec<Condition>,
    /// Its init containers and sidecars.
    pub containers: &'w mut Vec<ContainerStatus>,
}

impl InstanceTexts<'_> {
    fn bytes(&self) -> usize {
        let conditions = self.conditions.iter();
        let conditions =
            conditions.map(|one| one.kind.len() + one.reason.len() + one.message.len());
        let containers = self.containers.iter();
        let containers = containers.map(|one| one.name.len() + one.image.len() + one.unit.len());
        self.message.len() + conditions.sum::<usize>() + containers.sum::<usize>()
    }
}

/// Cuts the texts about instances until all of them have at most `budget` bytes: sentences first,
/// then names that are known elsewhere, then lists.
pub fn shorten_words(mut all: Vec<InstanceTexts<'_>>, budget: usize) {
    let fits =
        |all: &[InstanceTexts<'_>]| all.iter().map(InstanceTexts::bytes).sum::<usize>() <= budget;
    for limit in [1024, 256, 64, 0] {
        if fits(&all) {
            return;
        }
        for one in &mut all {
            cut(one.message, limit);
            one.conditions
                .iter_mut()
                .for_each(|condition| cut(&mut condition.message, limit));
            if limit < 1024 {
                for container in one.containers.iter_mut() {
                    container.image.clear();
                    container.unit.clear();
                }
            }
        }
    }
    if !fits(&all) {
        for one in &mut all {
            one.conditions.clear();
            one.containers.clear();
        }
    }
}

fn bound_authority(report: &mut AuthorityReport) {
    let AuthorityReport {
        name,
        issues,
        holds_next,
        accepted,
        refused,
        expires: _,
        successor_signature,
    } = report;
    if let Some(MemberSignature { key, signature }) = successor_signature {
        words([key, signature]);
    }
    for list in [&mut *accepted, &mut *refused] {
        list.truncate(MAX_EDITIONS);
    }
    let hashes = accepted.iter_mut().chain(refused);
    words(hashes.chain([name, issues, holds_next]));
}

fn bound_resources(resources: &mut NodeResources) {
    let NodeResources {
        capacity,
        allocatable,
    } = resources;
    for list in [&mut *capacity, &mut *allocatable] {
        let ResourceList {
            cpu,
            memory,
            storage,
        } = list;
        *storage = None;
        *cpu = cpu.map(|MilliCpu(cpu)| MilliCpu(cpu.min(MAX_CPU)));
        *memory = memory.map(|Bytes(memory)| Bytes(memory.min(MAX_MEMORY)));
    }
    if let (Some(all), Some(part)) = (capacity.cpu, &mut allocatable.cpu) {
        *part = MilliCpu(part.0.min(all.0));
    }
    if let (Some(all), Some(part)) = (capacity.memory, &mut allocatable.memory) {
        *part = Bytes(part.0.min(all.0));
    }
}

fn bound_overlay(overlay: &mut OverlayReport) {
    let OverlayReport {
        status: _,
        last_peer_sync: _,
        peers,
    } = overlay;
    for peer in peers {
        let OverlayPeer {
            name,
            endpoint,
            last_handshake: _,
            connected: _,
            sent: _,
            received: _,
            unanswered_seconds: _,
            via,
        } = peer;
        let optional = [endpoint, via].into_iter().flatten();
        words(optional.chain([name]));
    }
}

fn bound_move(report: &mut VolumeMoveReport) {
    let VolumeMoveReport {
        volume,
        id,
        phase: _,
        message,
        files: _,
        bytes: _,
        total_files: _,
        total_bytes: _,
        skipped: _,
        digest,
    } = report;
    cut(volume, MAX_NAME);
    cut(message, 1024);
    words([id, digest]);
}

fn bound_images(removed: &mut ImagesRemoved) {
    let ImagesRemoved {
        id: _,
        images: _,
        bytes: _,
        names: _,
    } = removed;
    *removed = removed.bounded();
    removed
        .names
        .iter_mut()
        .for_each(|name| cut(name, MAX_NAME));
}

fn bound_isolation(isolation: &mut IsolationReport) {
    let IsolationReport {
        mode: _,
        revision: _,
        problem,
        refused,
    } = isolation;
    if let Some(problem) = problem {
        cut(problem, MAX_NAME);
    }
    refused.truncate(MOST_REFUSED);
    for one in refused {
        let RefusedReport {
            from,
            to,
            protocol: _,
            port: _,
            packets: _,
            last: _,
            passed: _,
        } = one;
        for end in [from, to] {
            let ConnectionEnd {
                namespace,
                workload,
                instance,
            } = end;
            words([namespace, workload, instance]);
        }
    }
}

fn bound_instance(instance: &mut InstanceReport) {
    let InstanceReport {
        workload_name,
        namespace,
        instance_id,
        container_id,
        image_id,
        state: _,
        exit_code: _,
        health_status: _,
        restarts: _,
        phase: _,
        reason,
        message,
        since: _,
        template_hash,
        memory: _,
        cpu: _,
        conditions,
        containers,
        bound,
    } = instance;
    words([
        workload_name,
        namespace,
        instance_id,
        container_id,
        image_id,
        reason,
        template_hash,
    ]);
    cut(message, MAX_SENTENCE);
    conditions.truncate(MAX_OF_INSTANCE);
    conditions.iter_mut().for_each(bound_condition);
    if let Some(bound) = bound {
        bound_runs(bound);
    }
    containers.truncate(MAX_OF_INSTANCE);
    for container in containers {
        let ContainerStatus {
            name,
            kind: _,
            state: _,
            restarts: _,
            exit_code: _,
            image,
            unit,
        } = container;
        words([name]);
        cut(image, MAX_NAME);
        cut(unit, MAX_NAME);
    }
}

fn bound_runs(bound: &mut BoundReport) {
    let BoundReport {
        from,
        handled,
        runs,
        skips: _,
        skipped,
        idle,
    } = bound;
    let has_many = |run: &BoundRun| run.failed.len() > MOST_BOUND_RETRIES;
    if runs.len() > MOST_BOUND_RUNS || runs.iter().any(has_many) {
        // Nothing is decided by a part of the runs.
        *handled = *from;
        *idle = false;
        runs.clear();
    }
    let ends = runs.iter_mut().flat_map(|run| {
        let BoundRun {
            scheduled: _,
            started: _,
            failed,
            paused: _,
            end,
        } = run;
        failed.iter_mut().chain(end)
    });
    for AttemptEnd {
        at: _,
        succeeded: _,
        exit_code: _,
        reason,
        message,
    } in ends
    {
        words([reason]);
        cut(message, MAX_NAME);
    }
    if let Some(SkippedRun {
        scheduled: _,
        reason,
        message,
    }) = skipped
    {
        words([reason]);
        cut(message, MAX_NAME);
    }
}

fn bound_condition(condition: &mut Condition) {
    let Condition {
        kind,
        status: _,
        reason,
        message,
        since: _,
    } = condition;
    words([kind, reason]);
    cut(message, MAX_SENTENCE);
}

fn words<'t>(texts: impl IntoIterator<Item = &'t mut String>) {
    texts.into_iter().for_each(|text| cut(text, MAX_WORD));
}

/// Keeps the first entries that have at most `limit` bytes together.
fn truncate_to_bytes<T>(list: &mut Vec<T>, limit: usize, length: impl Fn(&T) -> usize) {
    let mut bytes = 0;
    let fitting = list.iter().take_while(|entry| {
        // Two quotes and a comma.
        bytes += length(entry) + 3;
        bytes <= limit
    });
    let count = fitting.count();
    list.truncate(count);
}

/// Keeps the first `limit` bytes or a little less, so that no character is cut in two, and replaces
/// control characters: in JSON one takes six bytes, and on a terminal it is a command.
pub fn cut(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
    }
    if text.contains(is_replaced) {
        *text = printable(text);
        text.truncate(text.floor_char_boundary(limit));
    }
}

/// The text with every control character but the end of a line replaced.
pub fn printable(text: &str) -> String {
    let letters = text.chars();
    letters
        .map(|letter| match letter {
            '\t' => ' ',
            letter if is_replaced(letter) => char::REPLACEMENT_CHARACTER,
            letter => letter,
        })
        .collect()
}

fn is_replaced(letter: char) -> bool {
    letter.is_control() && letter != '\n'
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A report with long lists and texts of `text` letters everywhere, generated from its schema. Of
    /// each list two entries are like that, many have shorter texts, and the others are empty.
    fn endless(schema: &Value, whole: &Value, depth: usize, text: usize) -> Value {
        if let Some(target) = schema["$ref"].as_str() {
            let name = target.rsplit('/').next().unwrap();
            return endless(&whole["$defs"][name], whole, depth, text);
        }
        for choice in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[choice].as_array() {
                return endless(&choices[0], whole, depth, text);
            }
        }
        if let Some(word) = schema["const"].as_str() {
            return json!(word);
        }
        if let Some(words) = schema["enum"].as_array() {
            return words[0].clone();
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds[0].as_str().unwrap(),
            kind => kind.as_str().unwrap_or("string"),
        };
        match kind {
            "object" => {
                let fields = schema["properties"].as_object().into_iter().flatten();
                let of_virtual_address =
                    schema["description"] == json!("A virtual address on a machine.");
                // Runs of a schedule that the machine keeps have times as jiff reads them.
                let of_runs = ["handled", "scheduled", "succeeded"]
                    .iter()
                    .any(|name| schema["properties"].get(name).is_some());
                let fields = fields.map(|(name, field)| {
                    let value = match name.as_str() {
                        "from" | "handled" | "scheduled" | "started" | "at" if of_runs => {
                            json!("2026-01-01T00:00:00Z")
                        }
                        "advertise" => json!(vec!["192.0.2.1"; 1500]),
                        "address" if of_virtual_address => json!("192.0.2.1"),
                        "port" => json!(u16::MAX),
                        "cpu" | "memory" | "storage"
                            if field["type"] != json!(["integer", "null"]) =>
                        {
                            json!("18446744073709551")
                        }
                        _ => endless(field, whole, depth + 1, text),
                    };
                    (name.clone(), value)
                });
                Value::Object(fields.collect())
            }
            "array" if text == 0 => json!([]),
            "array" => {
                let (count, many) = match depth {
                    0 | 1 => (1500, 250),
                    2..=5 => (60, 40),
                    // A list in a list of an instance's.
                    _ => (12, 2),
                };
                let entries = (0..count).map(|index| {
                    let text = match index {
                        0 | 1 => text,
                        _ if index < many => text.min(300),
                        _ => 0,
                    };
                    endless(&schema["items"], whole, depth + 1, text)
                });
                Value::Array(entries.collect())
            }
            "integer" | "number" => json!(4_000_000),
            "boolean" => json!(true),
            _ => json!("\u{1}x".repeat(text / 2)),
        }
    }

    fn longest(value: &Value) -> (usize, usize) {
        match value {
            Value::String(text) => (text.len(), 0),
            Value::Array(list) => list.iter().map(longest).fold((0, list.len()), |all, one| {
                (all.0.max(one.0), all.1.max(one.1))
            }),
            Value::Object(fields) => fields
                .values()
                .map(longest)
                .fold((0, 0), |all, one| (all.0.max(one.0), all.1.max(one.1))),
            _ => (0, 0),
        }
    }

    #[test]
    fn every_list_and_every_text_of_a_report_has_a_bound() {
        let schema = serde_json::to_value(schemars::schema_for!(NodeReport)).unwrap();
        let endless = endless(&schema, &schema, 0, MAX_SENTENCE + 1000);
        let mut report: NodeReport = serde_json::from_value(endless).unwrap();
        report.user_indexes = (0..9000).collect();
        let before = serde_json::to_string(&report).unwrap().len();
        assert!(before > 20_000_000, "{before}");
        assert_eq!(report.keep_bounds(), Ok(()));
        let text = serde_json::to_string(&report).unwrap();
        assert!(!text.contains("\\u00"), "control characters are replaced");
        let (letters, entries) = longest(&serde_json::to_value(&report).unwrap());
        assert!(letters <= MAX_SENTENCE && entries <= MAX_USERS);
        assert_eq!(report.user_indexes.len(), MAX_USERS);
        report.workload_instances.truncate(250);
        let size = serde_json::to_string(&report).unwrap().len();
        assert!(size < 4 << 20, "{size}: a report of 250 instances is taken");
    }

    #[test]
    fn capacity_has_a_bound_and_no_more_is_allocatable() {
        let mut report = NodeReport::default();
        report.resources.capacity.cpu = Some(MilliCpu(4000));
        report.resources.allocatable.cpu = Some(MilliCpu(9000));
        report.resources.allocatable.memory = Some(Bytes(u64::MAX));
        report.resources.capacity.memory = Some(Bytes(u64::MAX));
        assert_eq!(report.keep_bounds(), Ok(()));
        assert_eq!(report.resources.allocatable.cpu, Some(MilliCpu(4000)));
        assert_eq!(report.resources.capacity.memory, Some(Bytes(MAX_MEMORY)));
    }

    #[test]
    fn gpus_have_well_formed_names_and_a_maximum_number() {
        let gpu = |name: String, memory| GpuDevice { name, memory };
        let mut report = NodeReport::default();
        let all = (0..200).map(|number| gpu(format!("nvidia.com/gpu={number}"), None));
        report.gpus = all.collect();
        report.gpus.insert(0, gpu("/dev/sda".to_owned(), None));
        report
            .gpus
            .insert(1, gpu("a.com/gpu=0\u{1b}".to_owned(), None));
        report
            .gpus
            .push(gpu("a.com/gpu=0".to_owned(), Some(Bytes(u64::MAX))));
        report.gpus.push(gpu("a.com/gpu=0".to_owned(), None));
        assert_eq!(report.keep_bounds(), Ok(()));
        assert_eq!(report.gpus.len(), MOST_GPUS);
        let first = gpu("a.com/gpu=0".to_owned(), None);
        assert_eq!(report.gpus[0], first, "each name once");
        assert_eq!(report.gpus[1].name, "nvidia.com/gpu=0");
    }

    #[test]
    fn sentences_are_cut_before_conditions_are_left_out() {
        let condition = Condition {
            message: "m".repeat(4000),
            ..Condition::default()
        };
        let mut report = NodeReport {
            workload_instances: vec![
                InstanceReport {
                    message: "m".repeat(4000),
                    conditions: vec![condition; 4],
                    ..InstanceReport::default()
                };
                250
            ],
            ..NodeReport::default()
        };
        assert_eq!(report.keep_bounds(), Ok(()));
        let first = &report.workload_instances[0];
        assert_eq!((first.message.len(), first.conditions.len()), (256, 4));
    }

    #[test]
    fn runs_with_too_many_attempts_decide_nothing() {
        let with = |attempts| {
            let run = BoundRun {
                failed: vec![AttemptEnd::default(); attempts],
                ..BoundRun::default()
            };
            let mut bound = BoundReport {
                handled: jiff::Timestamp::MAX,
                runs: vec![run],
                idle: true,
                ..BoundReport::default()
            };
            bound_runs(&mut bound);
            (bound.runs.len(), bound.idle, bound.handled == bound.from)
        };
        assert_eq!(with(MOST_BOUND_RETRIES), (1, true, false));
        assert_eq!(with(MOST_BOUND_RETRIES + 1), (0, false, true));
    }

    #[test]
    fn control_characters_are_replaced() {
        let mut text = "a\u{1b}[2Jb\tc\nd".to_owned();
        cut(&mut text, 100);
        assert_eq!(text, "a\u{fffd}[2Jb c\nd");
    }
}

//! Builds the [`Snapshot`] from the keys of the store.
//!
//! An object that can't be read is left out and reported once, so that one bad object never hides
//! others.

use std::{collections::BTreeMap, iter::Peekable, mem, ops::Bound, sync::Arc, vec};

use imbl::ordmap::DiffItem;
use serde::de::DeserializeOwned;

use kat_bundle as bundle;
use kat_bundle::{DecodeMode, NeededReader, SourceFile};
use kat_plan::{Snapshot, SnapshotSealing};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{Event, StoreEpoch},
    assignment::{Assignment, DesiredMeta},
    registry::RegistrySettings,
    resource::ClusterConfiguration,
    secrets::SecretRecord,
    services::NamespaceNetwork,
    store::{
        authorities::AuthorityRecord,
        configuration::ConfigurationRecord,
        ingress::AssignedRoutes,
        jobs::{JobRunRecord, JobStateRecord},
        keys,
        members::{ClusterEndpoints, ClusterMembers},
        records::{
            Allocation, BackupRecord, IndexRecord, LastIndex, NamespaceRecord, NodeRegistration,
            NodeStatusRecord, TokenRecord, VolumeRecord, WorkloadMeta, WorkloadStatusRecord,
        },
        revisions::{Stored, WorkloadKey},
        snapshot::{
            ArchivedGeneration, EarlierVersion, ElectionCandidate, InstanceEntry, NodeEntry,
            ParsedWorkload, StoredState, WorkloadEntry,
        },
        transaction::KeyValue,
        visibility::VisibleBytes,
    },
    virtual_addresses::VirtualAddressRecord,
    volumes::{MoveRecord, RemovalRecord, VolumeKey},
};

/// Parsed objects are kept, so that a change only parses the objects that changed.
#[derive(Default)]
pub struct SnapshotBuilder {
    workloads: BTreeMap<WorkloadKey, (i64, Arc<WorkloadEntry>)>,
    assignments: ParsedObjects<Assignment>,
    routes: ParsedObjects<AssignedRoutes>,
    runs: ParsedObjects<JobRunRecord>,
    events: ParsedObjects<Event>,
    secrets: ParsedObjects<SecretRecord>,
    sealing: SnapshotSealing,
    reported: BTreeMap<String, i64>,
    /// What the snapshot before was built of.
    entries: MirrorEntries,
    /// Sizes of what machines see of `entries`.
    visible: VisibleBytes,
}

/// Objects that were parsed for the snapshot before, in the order of their keys.
struct ParsedObjects<T>(Vec<ParsedObject<T>>);

struct ParsedObject<T> {
    stored: Arc<KeyValue>,
    value: Arc<T>,
}

impl<T> Default for ParsedObjects<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ParsedObjects<T> {
    fn take(&mut self) -> EarlierObjects<T> {
        EarlierObjects(mem::take(&mut self.0).into_iter().peekable())
    }

    /// Adds the object that has the last key.
    fn push(&mut self, stored: &Arc<KeyValue>, value: &Arc<T>) {
        self.0.push(ParsedObject {
            stored: Arc::clone(stored),
            value: Arc::clone(value),
        });
    }
}

/// The [`ParsedObjects`] of before, looked up in the order of their keys.
struct EarlierObjects<T>(Peekable<vec::IntoIter<ParsedObject<T>>>);

impl<T> EarlierObjects<T> {
    /// The object, if it is the same as before. Keys of later calls have to be greater.
    fn find(&mut self, stored: &Arc<KeyValue>) -> Option<Arc<T>> {
        while self.0.next_if(|one| one.stored.key < stored.key).is_some() {}
        let found = self.0.next_if(|one| one.stored.key == stored.key)?;
        let same = Arc::ptr_eq(&found.stored, stored) || found.stored == *stored;
        same.then_some(found.value)
    }
}

/// The keys of one workload, gathered before they are parsed.
#[derive(Default)]
struct RawWorkload<'a> {
    newest: i64,
    keys: usize,
    meta: Option<&'a KeyValue>,
    files: BTreeMap<String, &'a KeyValue>,
}

impl SnapshotBuilder {
    /// A builder whose snapshots open and seal secrets with `sealing`.
    pub fn with_sealing(sealing: SnapshotSealing) -> Self {
        Self {
            sealing,
            ..Self::default()
        }
    }

    /// Snapshots that are built from now on open and seal secrets with `sealing`.
    pub fn use_sealing(&mut self, sealing: SnapshotSealing) {
        self.sealing = sealing;
    }

    /// Builds the snapshot of `entries`, which are every key below [`keys::ROOT`].
    pub fn build(&mut self, entries: &MirrorEntries, revision: i64) -> Snapshot {
        let mut snapshot = Snapshot::from(StoredState {
            revision,
            ..StoredState::default()
        });
        self.read_cluster(entries, &mut snapshot);
        self.read_nodes(entries, &mut snapshot);
        self.read_workloads(entries, &mut snapshot);
        for (name, entry) in entries_below(entries, keys::NAMESPACES) {
            if let Some(value) = self.json::<NamespaceRecord>(entry) {
                snapshot.namespaces.insert(name.to_owned(), value);
            }
        }
        for (name, entry) in entries_below(entries, keys::NETWORK_NAMESPACES) {
            if let Some(value) = self.json::<NamespaceNetwork>(entry) {
                snapshot.network_namespaces.insert(name.to_owned(), value);
            }
        }
        for (_, entry) in entries_below(entries, keys::VIRTUAL_ADDRESSES) {
            if let Some(stored) = self.json::<VirtualAddressRecord>(entry) {
                let address = stored.value.address;
                snapshot.virtual_addresses.insert(address, stored);
            }
        }
        for (name, entry) in entries_below(entries, keys::ALLOCATIONS) {
            if let (Some(instance), Some(value)) =
                (name.strip_suffix("/ip"), self.json::<Allocation>(entry))
            {
                snapshot.allocations.insert(instance.to_owned(), value);
            }
        }
        for (name, entry) in entries_below(entries, keys::SERVICES) {
            let mut parts = name.splitn(3, '/');
            let (Some(namespace), Some(workload), Some(field)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let key = WorkloadKey::new(namespace, workload);
            let service = snapshot.services.entry(key).or_default();
            match field {
                "ip" => service.address = self.json(entry),
                "balance" => service.balance = self.json(entry),
                "host_ports" => service.numbers = self.json(entry),
                "access" => service.access = self.json(entry),
                _ => {}
            }
        }
        for (name, entry) in entries_below(entries, keys::VOLUMES) {
            let Some(key) = VolumeKey::parse(name) else {
                continue;
            };
            if let Some(value) = self.json::<VolumeRecord>(entry) {
                snapshot.volumes.insert(key, value);
            }
        }
        self.read_jobs(entries, &mut snapshot);
        self.read_secrets(entries, &mut snapshot);
        for (name, entry) in entries_below(entries, keys::INDEXES) {
            let Ok(index) = name.parse() else { continue };
            if let Some(value) = self.json::<IndexRecord>(entry) {
                snapshot.indexes.insert(index, value);
            }
        }
        snapshot.last_index = entries
            .get(keys::LAST_INDEX)
            .and_then(|entry| self.json::<LastIndex>(entry));
        for (_, entry) in entries_below(entries, keys::DNS) {
            snapshot.dns.insert(entry.key.clone(), entry.mod_revision);
        }
        for (id, entry) in entries_below(entries, keys::TOKENS) {
            if let Some(value) = self.json::<TokenRecord>(entry) {
                snapshot.tokens.insert(id.to_owned(), value);
            }
        }
        self.read_events(entries, &mut snapshot);
        self.count_visible(entries);
        snapshot.visible = self.visible.clone();
        snapshot
    }

    /// Counts what changed since the snapshot before.
    fn count_visible(&mut self, entries: &MirrorEntries) {
        let before = mem::replace(&mut self.entries, entries.clone());
        for change in before.diff(entries) {
            let (old, new) = match change {
                DiffItem::Add(_, new) => (None, Some(new)),
                DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
                DiffItem::Remove(_, old) => (Some(old), None),
            };
            if let Some(old) = old {
                self.visible.remove(&old.key, old.value.len());
            }
            if let Some(new) = new {
                self.visible.add(&new.key, new.value.len());
            }
        }
    }

    fn read_cluster(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        snapshot.planned = entries
            .get(keys::PLANNED)
            .map_or(0, |entry| entry.mod_revision);
        if let Some(uid) = entries.get(keys::CLUSTER_UID) {
            snapshot.cluster_uid = text(uid);
        }
        if let Some(value) = entries
            .get(keys::CLUSTER)
            .and_then(|entry| self.json::<ClusterConfiguration>(entry))
        {
            snapshot.cluster = value.value;
            snapshot.cluster_revision = value.revision;
        }
        let wanted = entries.get(keys::WANTED_CONFIGURATION);
        snapshot.wanted_revision = wanted.map_or(0, |entry| entry.mod_revision);
        snapshot.wanted = wanted.and_then(|entry| self.json::<ConfigurationRecord>(entry));
        for (number, entry) in entries_below(entries, keys::CONFIGURATIONS) {
            if let (Ok(number), Some(stored)) =
                (number.parse(), self.json::<ConfigurationRecord>(entry))
            {
                snapshot.earlier_configurations.insert(number, stored.value);
            }
        }
        snapshot.leader_endpoint = entries.get(keys::LEADER_ENDPOINT).map(|entry| text(entry));
        snapshot.leader_name = leader_name(entries);
        snapshot.endpoints = entries
            .get(keys::ENDPOINTS)
            .and_then(|entry| self.json::<ClusterEndpoints>(entry));
        snapshot.members = entries
            .get(keys::MEMBERS)
            .and_then(|entry| self.json::<ClusterMembers>(entry));
        snapshot.store_epoch = entries
            .get(keys::STORE_EPOCH)
            .and_then(|entry| self.json::<StoreEpoch>(entry));
        snapshot.registries = entries
            .get(keys::REGISTRIES)
            .and_then(|entry| self.json::<RegistrySettings>(entry));
        for (name, entry) in entries_below(entries, keys::AUTHORITIES) {
            match self.json::<AuthorityRecord>(entry) {
                Some(value) => {
                    snapshot.authorities.insert(name.to_owned(), value);
                }
                None => {
                    snapshot.unread_authorities.insert(name.to_owned());
                }
            }
        }
        snapshot.backup = entries
            .get(keys::BACKUP)
            .and_then(|entry| self.json::<BackupRecord>(entry));
        let standing = entries_below(entries, keys::ELECTION).map(|(_, entry)| ElectionCandidate {
            key: entry.key.clone(),
            create_revision: entry.create_revision,
            candidate: text(entry),
        });
        snapshot.election = standing.collect();
        snapshot.election.sort_by_key(|one| one.create_revision);
        snapshot.overlay_revision = entries
            .get(keys::OVERLAY_CIDR)
            .map_or(0, |entry| entry.mod_revision);
    }

    fn read_nodes(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        for (name, entry) in entries_below(entries, keys::REGISTRATIONS) {
            let Some(registration) = self.json::<NodeRegistration>(entry) else {
                continue;
            };
            let status = entries
                .get(keys::node_status(name).as_str())
                .and_then(|entry| self.json::<NodeStatusRecord>(entry));
            let field = |field| entries.get(keys::network_node(name, field).as_str());
            let desired = entries
                .get(keys::desired_meta(name).as_str())
                .and_then(|entry| self.json::<DesiredMeta>(entry));
            let endpoints =
                field("wg_endpoints").and_then(|entry| serde_json::from_slice(&entry.value).ok());
            let kept = entries.get(keys::desired_images(name).as_str());
            if let Some(kept) = kept.and_then(|entry| self.json(entry)) {
                snapshot.kept_images.insert(name.to_owned(), kept);
            }
            let reach = field("reach").and_then(|entry| serde_json::from_slice(&entry.value).ok());
            snapshot.nodes.insert(
                name.to_owned(),
                NodeEntry {
                    registration,
                    status,
                    subnet: field("subnet").and_then(|entry| text(entry).parse().ok()),
                    public_key: field("wg_pubkey").map(|entry| text(entry)),
                    endpoints: endpoints.unwrap_or_default(),
                    reach: reach.unwrap_or_default(),
                    desired: desired.unwrap_or(Stored {
                        revision: 0,
                        value: DesiredMeta::default(),
                    }),
                },
            );
        }
        let mut earlier = self.assignments.take();
        let mut earlier_routes = self.routes.take();
        for (name, entry) in entries_below(entries, keys::NODE_DESIRED) {
            let Some((node, name)) = name.split_once('/') else {
                continue;
            };
            let instance = match name.split_once('/') {
                Some(("instances", instance)) => instance,
                Some(("removals", volume)) => {
                    if let Some(key) = VolumeKey::parse(volume)
                        && let Some(stored) = self.json::<RemovalRecord>(entry)
                    {
                        let of_machine = snapshot.removals.entry(node.to_owned()).or_default();
                        of_machine.insert(key, stored.value);
                    }
                    continue;
                }
                Some(("moves", volume)) => {
                    if let Some(key) = VolumeKey::parse(volume)
                        && let Some(stored) = self.json::<MoveRecord>(entry)
                    {
                        let of_machine = snapshot.moves.entry(node.to_owned()).or_default();
                        of_machine.insert(key, stored.value);
                    }
                    continue;
                }
                Some(("routes", workload)) => {
                    self.read_routes(snapshot, &mut earlier_routes, (node, workload), entry);
                    continue;
                }
                _ => continue,
            };
            let parsed = earlier.find(entry).or_else(|| {
                let stored = self.json::<Assignment>(entry)?;
                Some(Arc::new(stored.value))
            });
            let Some(assignment) = parsed else { continue };
            self.assignments.push(entry, &assignment);
            snapshot.instances.insert(
                instance.to_owned(),
                InstanceEntry {
                    node: node.to_owned(),
                    created_revision: entry.create_revision,
                    assignment: Stored {
                        revision: entry.mod_revision,
                        value: assignment,
                    },
                },
            );
        }
    }

    fn read_routes(
        &mut self,
        snapshot: &mut Snapshot,
        earlier: &mut EarlierObjects<AssignedRoutes>,
        (node, workload): (&str, &str),
        entry: &Arc<KeyValue>,
    ) {
        let Some((namespace, name)) = workload.split_once('/') else {
            return;
        };
        // What this version can't read is written again.
        let parsed = earlier.find(entry).or_else(|| {
            let stored = self.json::<AssignedRoutes>(entry)?;
            Some(Arc::new(stored.value))
        });
        let value = parsed.unwrap_or_default();
        self.routes.push(entry, &value);
        let of_node = snapshot.routes.entry(node.to_owned()).or_default();
        let revision = entry.mod_revision;
        of_node.insert(
            WorkloadKey::new(namespace, name),
            Stored { revision, value },
        );
    }

    fn read_workloads(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        let mut raw: BTreeMap<WorkloadKey, RawWorkload<'_>> = BTreeMap::new();
        for (name, entry) in entries_below(entries, keys::WORKLOADS) {
            let mut parts = name.splitn(3, '/');
            let (Some(namespace), Some(workload), Some(rest)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let gathered = raw
                .entry(WorkloadKey::new(namespace, workload))
                .or_default();
            gathered.newest = gathered.newest.max(entry.mod_revision);
            gathered.keys += 1;
            if rest == "meta" {
                gathered.meta = Some(entry);
            } else if let Some(file) = rest.strip_prefix("manifest/") {
                gathered.files.insert(file.to_owned(), entry);
            }
        }
        let mut kept = BTreeMap::new();
        for (key, gathered) in raw {
            let Some(meta) = gathered.meta else { continue };
            let status_entry =
                entries.get(keys::workload_status(&key.namespace, &key.name).as_str());
            let newest = gathered
                .newest
                .max(status_entry.map_or(0, |entry| entry.mod_revision));
            let before = self.workloads.remove(&key);
            let known = before.as_ref().filter(|(revision, entry)| {
                *revision == newest && entry.files.len() + 1 == gathered.keys
            });
            let parsed = match known {
                Some((_, parsed)) => Some(Arc::clone(parsed)),
                None => self.parse_workload(
                    &key,
                    (meta, &gathered.files),
                    (status_entry.map(AsRef::as_ref), entries),
                    before.as_ref().map(|(_, entry)| &**entry),
                ),
            };
            if let Some(parsed) = parsed {
                kept.insert(key.clone(), (newest, Arc::clone(&parsed)));
                snapshot.workloads.insert(key, parsed);
            }
        }
        self.workloads = kept;
    }

    fn parse_workload(
        &mut self,
        key: &WorkloadKey,
        (meta, raw): (&KeyValue, &BTreeMap<String, &KeyValue>),
        (status, entries): (Option<&KeyValue>, &MirrorEntries),
        before: Option<&WorkloadEntry>,
    ) -> Option<Arc<WorkloadEntry>> {
        let meta = self.json::<WorkloadMeta>(meta)?;
        let same_files = before.filter(|before| has_files(before, raw));
        let parsed = match same_files {
            Some(before) => before.parsed.clone(),
            None => {
                let sources = raw.iter().map(|(name, entry)| SourceFile {
                    name: name.clone(),
                    text: text(entry),
                });
                parse_stored(&sources.collect::<Vec<_>>())
            }
        };
        if let Err(reason) = &parsed {
            tracing::error!(workload = %key, reason, "a stored workload can't be read");
        }
        let files = raw
            .iter()
            .map(|(name, entry)| {
                (
                    name.clone(),
                    Stored {
                        revision: entry.mod_revision,
                        value: text(entry).into(),
                    },
                )
            })
            .collect::<BTreeMap<_, _>>();
        let status = status.and_then(|entry| self.json::<WorkloadStatusRecord>(entry));
        let mut archive = self.read_archive(key, entries);
        let before = (before, same_files.is_some());
        measure_rollback(&meta.value, status.as_ref(), &mut archive, &files, before);
        let earlier = earlier(&meta.value, status.as_ref(), &archive);
        Some(Arc::new(WorkloadEntry {
            meta,
            parsed,
            files,
            status,
            archive,
            earlier,
        }))
    }

    /// The kept generations. They change only together with the workload's meta.
    fn read_archive(
        &mut self,
        key: &WorkloadKey,
        entries: &MirrorEntries,
    ) -> BTreeMap<u64, ArchivedGeneration> {
        let prefix = keys::archive(&key.namespace, &key.name);
        let kept = entries.range::<_, str>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        let mut archive: BTreeMap<u64, ArchivedGeneration> = BTreeMap::new();
        for (name, entry) in
            kept.map_while(|(name, entry)| Some((name.strip_prefix(&prefix)?, entry)))
        {
            let Some((generation, file)) = name.split_once('/') else {
                continue;
            };
            let Ok(generation) = generation.parse() else {
                continue;
            };
            let archived = archive.entry(generation).or_default();
            if file == "meta" {
                archived.record = self.json(entry).map(|stored| stored.value);
            } else {
                archived.files.insert(file.to_owned(), Arc::clone(entry));
            }
        }
        archive
    }

    fn read_jobs(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        let mut earlier = self.runs.take();
        for (name, entry) in entries_below(entries, keys::JOBS) {
            let mut parts = name.splitn(3, '/');
            let (Some(namespace), Some(workload), Some(rest)) =
                (parts.next(), parts.next(), parts.next())
            else {
                continue;
            };
            let key = WorkloadKey::new(namespace, workload);
            if rest == "state" {
                if let Some(state) = self.json::<JobStateRecord>(entry) {
                    snapshot.jobs.entry(key).or_default().state = Some(state);
                }
                continue;
            }
            let Some(run) = rest.strip_prefix("runs/") else {
                continue;
            };
            let parsed = earlier.find(entry).or_else(|| {
                let stored = self.json::<JobRunRecord>(entry)?;
                Some(Arc::new(stored.value))
            });
            let Some(value) = parsed else { continue };
            self.runs.push(entry, &value);
            let revision = entry.mod_revision;
            let of_job = snapshot.jobs.entry(key).or_default();
            of_job
                .runs
                .insert(run.to_owned(), Stored { revision, value });
        }
    }

    fn read_events(&mut self, entries: &MirrorEntries, snapshot: &mut Snapshot) {
        let mut earlier = self.events.take();
        for (id, entry) in entries_below(entries, keys::EVENTS) {
            let parsed = earlier.find(entry).or_else(|| {
                let stored = self.json::<Event>(entry)?;
                Some(Arc::new(stored.value))
            });
            let Some(event) = parsed else { continue };
            self.events.push(entry, &event);
            snapshot.events.insert(
                id.to_owned(),
                Stored {
                    revision: entry.mod_revision,
                    value: event,
                },
            );
        }
    }

    fn json<T: DeserializeOwned>(&mut self, entry: &KeyValue) -> Option<Stored<T>> {
        match serde_json::from_slice(&entry.value) {
            Ok(value) => Some(Stored {
                revision: entry.mod_revision,
                value,
            }),
            Err(error) => {
                let before = self.reported.insert(entry.key.clone(), entry.mod_revision);
                if before != Some(entry.mod_revision) {
                    tracing::error!(
                        key = entry.key,
                        "a stored object can't be read and is left out: {error:#}"
                    );
                }
                None
            }
        }
    }
}

/// Whether these are the files of an entry.
fn has_files(entry: &WorkloadEntry, raw: &BTreeMap<String, &KeyValue>) -> bool {
    let known = entry.files.iter();
    let known = known.map(|(name, stored)| (name, stored.revision));
    known.eq(raw.iter().map(|(name, stored)| (name, stored.mod_revision)))
}

/// Sets [`ArchivedGeneration::needed_reader`] of the generation to which `autoRollback` returns.
/// `before` is the entry of before, and whether the present files are still the same.
fn measure_rollback(
    meta: &WorkloadMeta,
    status: Option<&Stored<WorkloadStatusRecord>>,
    archive: &mut BTreeMap<u64, ArchivedGeneration>,
    present: &BTreeMap<String, Stored<Arc<str>>>,
    (before, same_files): (Option<&WorkloadEntry>, bool),
) {
    let mut good = status.into_iter().flat_map(|status| &status.value.good);
    let Some(good) = good.rfind(|good| **good < meta.generation) else {
        return;
    };
    let Some(archived) = archive.get_mut(good) else {
        return;
    };
    let known = before.filter(|_| same_files);
    let known = known.and_then(|before| before.archive.get(good));
    // The files of a generation change with its comments and layout.
    let known = known.filter(|known| known.files == archived.files);
    let needed = known.and_then(|known| known.needed_reader);
    archived.needed_reader = Some(needed.unwrap_or_else(|| {
        let files = archived.files.iter().map(|(name, entry)| SourceFile {
            name: name.clone(),
            text: text(entry),
        });
        let present = present.iter().map(|(name, stored)| SourceFile {
            name: name.clone(),
            text: stored.value.to_string(),
        });
        version_added(&files.collect::<Vec<_>>(), &present.collect::<Vec<_>>())
    }));
}

/// The version that files need for what the present files do not need already, as for an apply.
fn version_added(files: &[SourceFile], present: &[SourceFile]) -> u32 {
    let needed = bundle::needed_readers(files);
    if needed.is_empty() {
        return 1;
    }
    let present = bundle::needed_readers(present);
    let is_added = |one: &&NeededReader| present.iter().all(|other| other.what != one.what);
    let added = needed.iter().filter(is_added);
    added.map(|one| one.version).max().unwrap_or(1)
}

fn version_needed(files: &[SourceFile]) -> u32 {
    bundle::needed_reader(files).map_or(1, |needed| needed.version)
}

/// See [`WorkloadEntry::earlier`].
fn earlier(
    meta: &WorkloadMeta,
    status: Option<&Stored<WorkloadStatusRecord>>,
    archive: &BTreeMap<u64, ArchivedGeneration>,
) -> Option<EarlierVersion> {
    let good = &status.filter(|_| meta.paused)?.value.good;
    let good = good.iter().rev().filter_map(|generation| {
        let archived = archive.get(generation)?;
        Some((*generation, archived, archived.record.as_ref()?))
    });
    let good: Vec<_> = good.collect();
    let (generation, archived, record) = *good.first()?;
    if good
        .iter()
        .any(|(.., record)| record.template_hash == meta.template_hash)
    {
        return None;
    }
    let files = archived.files.iter().map(|(name, entry)| SourceFile {
        name: name.clone(),
        text: text(entry),
    });
    Some(EarlierVersion {
        generation,
        template_hash: record.template_hash.clone(),
        parsed: parse_stored(&files.collect::<Vec<_>>()).ok()?,
        image: record.image.clone(),
    })
}

/// Reads stored files leniently, into the parts that the planner needs.
pub fn parse_stored(sources: &[SourceFile]) -> Result<Arc<ParsedWorkload>, String> {
    match bundle::parse(sources, DecodeMode::Stored) {
        Ok(bundle) => match bundle.workload {
            Some(workload) => {
                let carried = sources
                    .iter()
                    .find(|file| file.name == bundle::CARRIED)
                    .map(|file| file.text.as_str().into());
                Ok(Arc::new(ParsedWorkload {
                    job: bundle.job.map(|job| job.spec),
                    ports_in_workload: bundle.ports_in_workload,
                    needed_reader: version_needed(sources),
                    ..ParsedWorkload::new(workload, bundle.load_balancer, carried)
                }))
            }
            None => Err("workload.kat is missing".to_owned()),
        },
        Err(diagnostics) => {
            let first = diagnostics
                .first()
                .map(|diagnostic| diagnostic.message.clone());
            Err(first.unwrap_or_else(|| "unknown error".to_owned()))
        }
    }
}

/// The keys below a prefix, with the rest of their names.
fn entries_below<'a>(
    entries: &'a MirrorEntries,
    prefix: &'a str,
) -> impl Iterator<Item = (&'a str, &'a Arc<KeyValue>)> {
    entries
        .range::<_, str>((Bound::Included(prefix), Bound::Unbounded))
        .map_while(move |(key, entry)| key.strip_prefix(prefix).map(|rest| (rest, entry)))
}

/// Name of the leading machine. A leader of version 0.1.0 writes only its endpoint; then the stored
/// name, which an earlier transaction wrote, is another machine's.
pub fn leader_name(entries: &MirrorEntries) -> Option<String> {
    let endpoint = entries.get(keys::LEADER_ENDPOINT)?;
    let name = entries.get(keys::LEADER_NAME)?;
    (name.mod_revision == endpoint.mod_revision).then(|| text(name))
}

fn text(entry: &KeyValue) -> String {
    String::from_utf8_lossy(&entry.value).into_owned()
}

mod secrets;
#[cfg(test)]
mod stored;

#[cfg(test)]
mod tests;

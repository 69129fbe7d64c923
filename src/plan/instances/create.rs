//! Creation of an instance: its machine, address and assignment.

use std::{borrow::Cow, net::Ipv4Addr};

use crate::{
    InstanceDemand, MachineCandidate, Unschedulable, VolumePlacement, choose, default_requests,
    instance_id,
    rollout::{blocked::NotPlaced, slot::LiveInstance, slots::slot_of_machine},
    scheduling::{
        gpus, host_ports,
        host_ports::ports_of,
        schedule::{NO_ADDRESS, seed_of},
    },
    secrets,
    service::WorkloadPlanner,
    services::isolation,
};
use kat_types::{
    api::{InstancePhase, NodePhase},
    assignment::{
        AssignedRun, Assignment, BoundSchedule, DesiredRun, PREPARED_SCHEMA, WorkloadUser,
        needed_schema, needs_crun,
    },
    encoding::json,
    machine::network::node_address,
    reason::EventReason,
    resource::{
        Container, EnvVar, HealthCheck, OtherKind, Port, ResourceList, Volume, WorkloadSpec,
    },
    secrets::AssignedSecrets,
    store::{
        jobs::{JobRunRecord, RunMachine},
        records::ImageRecord,
        snapshot::{EarlierVersion, ParsedWorkload},
    },
};

/// Instance id, secrets, and credentials for registries.
type NextInstance = (String, Option<AssignedSecrets>, Option<AssignedSecrets>);

/// The reason of a place that was refused because of the state of its volumes.
const VOLUMES_ALLOW_NONE: &str = "volumes that allow no machine";

/// Variable with the index of an instance among the completions of a Job's run, or with the index of its
/// machine among those of the run.
const COMPLETION_INDEX: &str = "KAT_JOB_COMPLETION_INDEX";

/// When a new instance starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartTime {
    /// Beside the instances that are there.
    Now,
    /// When the other instances of its slot have ended.
    AfterSlot,
}

/// Whether the machine of a new instance can prepare it before it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// It can, and the instance is assigned to it.
    Begun,
    /// Its version of KAT does not know that; nothing is assigned.
    NotKnown,
}

/// A version that an instance is made from.
#[derive(Clone, Copy)]
struct WorkloadVersion<'v> {
    parsed: &'v ParsedWorkload,
    generation: u64,
    template_hash: &'v str,
    /// What the registry answered about its image.
    image: &'v ImageRecord,
    /// Requests of its containers without their own.
    default_requests: ResourceList,
}

impl<'v> WorkloadVersion<'v> {
    /// The demand of an instance of this version with these ports.
    fn demand<'p>(&self, ports: &'p [Port]) -> InstanceDemand<'p>
    where
        'v: 'p,
    {
        let spec = &self.parsed.workload.spec;
        let health_check = health_check_of(self.parsed);
        let schema = needed_schema(spec, health_check);
        InstanceDemand {
            ports,
            default_requests: self.default_requests,
            needs_crun: needs_crun(spec, health_check),
            images: Some(self.image),
            schema: schema.max(host_ports::schema_of(ports)),
            ..InstanceDemand::of(spec)
        }
    }
}

impl<'a, 'b> WorkloadPlanner<'_, 'a, 'b> {
    /// Places a new instance of the present version, and returns its id.
    pub(crate) fn create(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
    ) -> Result<String, NotPlaced> {
        self.create_version(self.present(parsed), slot)
    }

    /// Places an instance of the present version that starts when the others of its slot have ended.
    /// Its machine prepares it until then.
    pub(crate) fn create_prepared(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
    ) -> Result<Preparation, NotPlaced> {
        let made = self.record.instances_made;
        let version = self.present(parsed);
        let (node, assignment) = self.next_instance(version, slot, StartTime::AfterSlot)?;
        if !self.knows_prepared(node) {
            self.record.instances_made = made;
            return Ok(Preparation::NotKnown);
        }
        let assignment = Assignment {
            schema: assignment.schema.max(PREPARED_SCHEMA),
            wanted: DesiredRun::Prepared,
            ..assignment
        };
        self.place_instance(node, assignment);
        Ok(Preparation::Begun)
    }

    /// Whether a prepared instance is of the wanted version and still in the right place.
    pub(crate) fn may_start(&self, parsed: &ParsedWorkload, live: &LiveInstance<'_>) -> bool {
        let (spec, assignment) = (&parsed.workload.spec, live.assignment);
        let status = self.around.statuses.get(live.node);
        let held = self.held(&spec.volumes, &spec.together(), assignment.slot);
        let has_data = held.is_ok_and(|held| {
            let here = held.on.is_none_or(|node| node == live.node);
            here && (!held.shared || status.is_some_and(|status| status.volume_shared))
        });
        let outdated = secrets::outdated(self.draft.snapshot, assignment);
        let has_gpu = assignment.gpu.as_ref().is_none_or(|name| {
            status.is_some_and(|status| status.gpus.iter().any(|gpu| gpu.name == *name))
        });
        let has_place = !live.away && !live.leaves && self.knows_prepared(live.node);
        live.current && has_place && has_data && has_gpu && outdated.is_none()
    }

    fn knows_prepared(&self, node: &str) -> bool {
        let status = self.around.statuses.get(node);
        status.is_some_and(|status| status.assignment_schema >= PREPARED_SCHEMA)
    }

    /// Starts a prepared instance.
    pub(crate) fn start_prepared(&mut self, parsed: &ParsedWorkload, live: &LiveInstance<'_>) {
        let spec = &parsed.workload.spec;
        let prepared = live.assignment;
        let images = prepared.images();
        let schema = self.present(parsed).demand(&prepared.ports).schema;
        let schema = schema.max(self.logins_schema(images));
        let slot = prepared.slot;
        let assignment = Assignment {
            schema,
            volumes: self.assigned_volumes(&spec.volumes, &spec.together(), slot, live.node),
            wanted: DesiredRun::Running,
            ..Assignment::clone(prepared)
        };
        self.make_room_for(&assignment);
        self.draft.update(&mut self.group, live.node, &assignment);
        self.flush_if_full();
    }

    /// Removes a prepared instance. Nothing of it runs, so its machine need not confirm that.
    pub(crate) fn remove_prepared(&mut self, live: &LiveInstance<'_>) {
        self.draft.remove(&mut self.group, live.node, live.id);
        self.flush_if_full();
    }

    /// Places a new instance of an earlier version that has no instance any more, only its files.
    pub(crate) fn create_earlier(
        &mut self,
        earlier: &EarlierVersion,
        slot: u32,
    ) -> Result<String, NotPlaced> {
        let version = WorkloadVersion {
            parsed: &earlier.parsed,
            generation: earlier.generation,
            template_hash: &earlier.template_hash,
            image: &earlier.image,
            default_requests: default_requests(self.draft.snapshot, &self.key.namespace),
        };
        self.create_version(version, slot)
    }

    /// Places an instance of a Job's run.
    pub(crate) fn create_attempt(
        &mut self,
        parsed: &ParsedWorkload,
        index: u32,
        key: &str,
        run: &JobRunRecord,
    ) -> Result<String, NotPlaced> {
        let version = self.present(parsed);
        let slot = match &run.machines {
            None => index,
            Some(machines) => self.slot_of_run(machines, index)?,
        };
        let (node, assignment) = self.next_instance(version, slot, StartTime::Now)?;
        let spec = &parsed.workload.spec;
        let mut container = assignment.container.clone();
        if let Some(args) = &run.args {
            container.args.clone_from(args);
        }
        set_index(&mut container, index);
        let left = run.deadline().map(|deadline| {
            let left = deadline.duration_since(self.draft.now).as_secs();
            u32::try_from(left.max(1)).unwrap_or(u32::MAX)
        });
        let assignment = Assignment {
            volumes: self.assigned_volumes(&spec.volumes, &spec.together(), slot, node),
            container,
            run: Some(AssignedRun {
                key: key.to_owned(),
                number: run.number,
                seconds_left: left,
            }),
            ..assignment
        };
        Ok(self.place_instance(node, assignment))
    }

    /// Places the instance of a Job whose machine keeps its schedule. `index` is the one among the
    /// completions.
    pub(crate) fn create_bound(
        &mut self,
        parsed: &ParsedWorkload,
        bound: BoundSchedule,
        (slot, index): (u32, u32),
    ) -> Result<String, NotPlaced> {
        let version = self.present(parsed);
        let (node, assignment) = self.next_instance(version, slot, StartTime::Now)?;
        let spec = &parsed.workload.spec;
        let mut container = assignment.container.clone();
        set_index(&mut container, index);
        let assignment = Assignment {
            schema: assignment.schema.max(bound.schema()),
            volumes: self.assigned_volumes(&spec.volumes, &spec.together(), slot, node),
            container,
            bound: Some(bound),
            ..assignment
        };
        Ok(self.place_instance(node, assignment))
    }

    /// The slot of a machine of a run with one instance on each.
    fn slot_of_run(&self, machines: &[RunMachine], index: u32) -> Result<u32, NotPlaced> {
        let snapshot = self.draft.snapshot;
        let machine = usize::try_from(index).map(|index| machines.get(index));
        let node = machine.ok().flatten().map(|machine| machine.node.as_str());
        let node = node.unwrap_or_default();
        let entry = snapshot.nodes.get(node);
        entry
            .and_then(|entry| slot_of_machine(snapshot, entry))
            .ok_or_else(|| NotPlaced::MachineNotReady(format!("{node} has no subnet yet")))
    }

    fn create_version(
        &mut self,
        version: WorkloadVersion<'_>,
        slot: u32,
    ) -> Result<String, NotPlaced> {
        let (node, assignment) = self.next_instance(version, slot, StartTime::Now)?;
        let spec = &version.parsed.workload.spec;
        let assignment = Assignment {
            volumes: self.assigned_volumes(&spec.volumes, &spec.together(), slot, node),
            ..assignment
        };
        Ok(self.place_instance(node, assignment))
    }

    /// The machine and the assignment of a new instance of a version.
    fn next_instance(
        &mut self,
        version: WorkloadVersion<'_>,
        slot: u32,
        start: StartTime,
    ) -> Result<(&'a str, Assignment), NotPlaced> {
        let parsed = version.parsed;
        let spec = &parsed.workload.spec;
        let meta = &self.entry.meta.value;
        let image = spec.source.image.as_deref().ok_or(NotPlaced::NoImage)?;
        let image = version.image.pinned(image).to_owned();
        let user = WorkloadUser::from_index(meta.index, &self.key.namespace, &self.key.name);
        let user = user.ok_or(NotPlaced::NoUser(meta.index))?;
        let ports = self.numbered(parsed)?;
        // The assignment keeps them: a later change of the namespace leaves the instance as it is.
        let filled = spec.with_default_requests(version.default_requests);
        let with_images = |kind| with_images(&filled, kind, version.image);
        let init_containers = with_images(OtherKind::Init);
        let sidecars = with_images(OtherKind::Sidecar);
        let others = init_containers.iter().chain(&sidecars);
        let others = others.filter_map(|one| one.image.as_deref());
        let images: Vec<&str> = std::iter::once(image.as_str()).chain(others).collect();
        let mut demand = version.demand(&ports);
        demand.schema = demand
            .schema
            .max(self.logins_schema(images.iter().copied()));
        let together = spec.together();
        let volumes = (spec.volumes.as_slice(), &*together);
        let wanted = self.wanted_secrets(&spec.volumes, &together)?;
        let node = self.find_place(demand, volumes, slot, start)?;
        let gpu = self.gpu_on(node, spec, slot, start);
        let address = self.address_on(node, &spec.container)?;
        let (instance, secrets, logins) = self.next_with(&wanted, &images, node)?;
        let volumes = self.volumes_of(&spec.volumes, &together, slot);
        let schema = demand.schema;
        let assignment = Assignment {
            schema,
            instance,
            namespace: self.key.namespace.clone(),
            workload: self.key.name.clone(),
            workload_uid: meta.uid.clone(),
            workload_type: spec.kind,
            labels: parsed.workload.metadata.labels.clone(),
            slot,
            generation: version.generation,
            template_hash: version.template_hash.to_owned(),
            user,
            address,
            image,
            container: filled.container.clone(),
            init_containers,
            sidecars,
            ports,
            health_check: health_check_of(parsed).cloned(),
            restart_policy: spec.restart_policy.clone(),
            created: Some(self.draft.now),
            on_partition: spec.on_partition,
            machine_access: spec.machine_access.clone(),
            volumes,
            carried: parsed.carried.clone(),
            secrets,
            logins,
            run: None,
            gpu,
            bound: None,
            wanted: DesiredRun::Running,
            not_understood: None,
        };
        Ok((node, assignment))
    }

    /// Places an instance of the version of `like`, whose files may be gone.
    pub(crate) fn create_like(
        &mut self,
        parsed: &ParsedWorkload,
        slot: u32,
        like: &Assignment,
    ) -> Result<String, NotPlaced> {
        let spec = WorkloadSpec {
            container: like.container.clone(),
            init_containers: like.init_containers.clone(),
            sidecars: like.sidecars.clone(),
            on_partition: like.on_partition,
            machine_access: like.machine_access.clone(),
            ..parsed.workload.spec.clone()
        };
        let demand = InstanceDemand {
            ports: &like.ports,
            needs_crun: needs_crun(&spec, like.health_check.as_ref()),
            schema: like.schema.max(self.logins_schema(like.images())),
            ..InstanceDemand::of(&spec)
        };
        let volumes: Vec<_> = like
            .volumes
            .iter()
            .map(|one| one.definition.clone())
            .collect();
        let schema = demand.schema;
        let together = like.together();
        let wanted = self.wanted_secrets(&volumes, &together)?;
        let node = self.find_place(demand, (&volumes, &together), slot, StartTime::Now)?;
        let gpu = self.gpu_on(node, &spec, slot, StartTime::Now);
        let address = self.address_on(node, &like.container)?;
        // The instance gets the present values of its secrets: earlier ones are not kept.
        let images: Vec<&str> = like.images().collect();
        let (instance, secrets, logins) = self.next_with(&wanted, &images, node)?;
        let volumes = self.assigned_volumes(&volumes, &together, slot, node);
        let assignment = Assignment {
            schema,
            instance,
            slot,
            address,
            volumes,
            secrets,
            logins,
            gpu,
            created: Some(self.draft.now),
            wanted: DesiredRun::Running,
            not_understood: None,
            ..like.clone()
        };
        Ok(self.place_instance(node, assignment))
    }

    /// The GPU of a new instance on a machine that was chosen because it has one free.
    fn gpu_on(
        &mut self,
        node: &str,
        spec: &WorkloadSpec,
        slot: u32,
        start: StartTime,
    ) -> Option<String> {
        let request = spec.gpu()?;
        let candidates = self.candidates(slot, start, Some(node));
        let candidate = candidates.iter().find(|one| one.name == node)?;
        gpus::free(&request, candidate).map(|gpu| gpu.name.clone())
    }

    /// The address of a new instance; on the machine's network it is the machine's own overlay
    /// address.
    fn address_on(&self, node: &str, container: &Container) -> Result<Ipv4Addr, NotPlaced> {
        let address = if container.host_network {
            let machine = self.draft.snapshot.nodes.get(node);
            machine.and_then(|machine| machine.subnet.map(node_address))
        } else {
            self.draft.free_address(node, &self.key.namespace)
        };
        address.ok_or_else(|| NotPlaced::NoAddress {
            node: node.to_owned(),
            waiting: self.waiting_addresses(),
        })
    }

    fn waiting_addresses(&self) -> Option<String> {
        isolation::waiting_addresses(
            self.draft.snapshot,
            self.around.confirmed,
            &self.key.namespace,
        )
    }

    /// Whether an instance of the present version would find a machine now.
    pub(crate) fn fits(&mut self, parsed: &ParsedWorkload, slot: u32) -> Result<(), NotPlaced> {
        let spec = &parsed.workload.spec;
        let together = spec.together();
        let volumes = (spec.volumes.as_slice(), &*together);
        self.has_secrets(parsed)?;
        let ports = self.numbered(parsed)?;
        let demand = self.present_demand(parsed, &ports);
        self.find_place(demand, volumes, slot, StartTime::Now)
            .map(|_| ())
    }

    /// Whether a machine that takes work has room for an instance of the present version in its slot,
    /// and can run it. What keeps the instance from every machine is not considered.
    pub(crate) fn has_place(
        &mut self,
        parsed: &ParsedWorkload,
        (slot, node): (u32, &str),
        start: StartTime,
    ) -> bool {
        let spec = &parsed.workload.spec;
        let held = self.held(&spec.volumes, &spec.together(), slot);
        let (Ok(ports), Ok(held)) = (self.numbered(parsed), held) else {
            return true;
        };
        let replaces = self.replaced(slot);
        let demand = self.present_demand(parsed, &ports);
        let demand = self.in_slot(demand, slot, held, &replaces);
        let candidates = self.candidates(slot, start, Some(node));
        let takes_work = |candidate: &MachineCandidate<'_>| {
            candidate.phase == NodePhase::Ready && !candidate.draining
        };
        !candidates.iter().any(takes_work) || choose(demand, &candidates, 0).is_ok()
    }

    /// The demand of an instance of the present version with these ports.
    fn present_demand<'p>(
        &self,
        parsed: &'p ParsedWorkload,
        ports: &'p [Port],
    ) -> InstanceDemand<'p>
    where
        'b: 'p,
    {
        let version = self.present(parsed);
        let mut demand = version.demand(ports);
        let images = parsed.workload.spec.images();
        let images = images.map(|(image, _)| version.image.pinned(image));
        demand.schema = demand.schema.max(self.logins_schema(images));
        demand
    }

    /// A demand with what follows from its slot and from the present files.
    fn in_slot<'p>(
        &self,
        demand: InstanceDemand<'p>,
        slot: u32,
        held: VolumePlacement<'p>,
        replaces: &'p [&'p str],
    ) -> InstanceDemand<'p>
    where
        'a: 'p,
        'b: 'p,
    {
        let present = self.entry.parsed.as_ref();
        InstanceDemand {
            restricted: present
                .is_ok_and(|parsed| host_ports::has_allowed_sources(ports_of(parsed))),
            workload: Some(self.key),
            index: Some(self.entry.meta.value.index),
            replaces,
            held,
            bound: self.slots.machine_of(slot),
            last_resort: self.was_lost(slot),
            ..demand
        }
    }

    /// The candidates for an instance in a slot; with `only`, that machine alone.
    fn candidates(
        &mut self,
        slot: u32,
        start: StartTime,
        only: Option<&str>,
    ) -> Cow<'_, [MachineCandidate<'a>]> {
        let (key, draft) = (self.key, &*self.draft);
        match start {
            StartTime::Now => self.machines.candidates_now(key, draft, slot, only),
            StartTime::AfterSlot => {
                Cow::Owned(self.machines.candidates_after(key, draft, slot, only))
            }
        }
    }

    /// Whether all secrets exist that an instance of the present version uses.
    pub(crate) fn has_secrets(&self, parsed: &ParsedWorkload) -> Result<(), NotPlaced> {
        let spec = &parsed.workload.spec;
        self.wanted_secrets(&spec.volumes, &spec.together())?;
        Ok(())
    }

    /// The ports of an instance of a version, each with its host port number.
    fn numbered(&self, parsed: &ParsedWorkload) -> Result<Vec<Port>, NotPlaced> {
        let ports = self.around.host_ports.numbered(self.key, ports_of(parsed));
        ports
            .map(host_ports::of_instance)
            .ok_or(NotPlaced::NoHostPort)
    }

    fn present<'v>(&self, parsed: &'v ParsedWorkload) -> WorkloadVersion<'v>
    where
        'b: 'v,
    {
        let meta = &self.entry.meta.value;
        WorkloadVersion {
            parsed,
            generation: meta.generation,
            template_hash: &meta.template_hash,
            image: &meta.image,
            default_requests: default_requests(self.draft.snapshot, &self.key.namespace),
        }
    }

    fn find_place(
        &mut self,
        demand: InstanceDemand<'_>,
        (volumes, container): (&[Volume], &Container),
        slot: u32,
        start: StartTime,
    ) -> Result<&'a str, NotPlaced> {
        let replaces = self.replaced(slot);
        let held = self.held(volumes, container, slot);
        let held = match held {
            Ok(held) => held,
            Err(reason) => {
                self.draft
                    .note_place(self.key, slot, std::iter::once(VOLUMES_ALLOW_NONE));
                return Err(NotPlaced::Volumes(reason));
            }
        };
        let demand = self.in_slot(demand, slot, held, &replaces);
        let data_on = held.on.map(str::to_owned);
        let seed = seed_of(self.draft.seed, &self.entry.meta.value.uid, slot);
        let chosen = choose(demand, &self.candidates(slot, start, None), seed);
        let refused = chosen.as_ref().err();
        let reasons = refused.into_iter().flat_map(Unschedulable::reasons);
        self.draft.note_place(self.key, slot, reasons);
        chosen.map_err(|reason| {
            let lost = self.around.losses.waiting().map(str::to_owned);
            let waiting = lost.or_else(|| {
                let lacks_address = reason.reasons().any(|reason| reason == NO_ADDRESS);
                lacks_address.then(|| self.waiting_addresses()).flatten()
            });
            NotPlaced::NoMachine {
                reason: Box::new(reason),
                data_on,
                waiting,
            }
        })
    }

    /// Makes room in the group before an assignment is written, and returns its bytes.
    pub(crate) fn make_room_for(&mut self, assignment: &Assignment) -> usize {
        // An assignment that can't be encoded is reported when it is put.
        let bytes = json::bytes("", assignment).map_or(0, |bytes| bytes.len());
        self.make_room(bytes);
        bytes
    }

    fn place_instance(&mut self, node: &'a str, assignment: Assignment) -> String {
        let bytes = self.make_room_for(&assignment);
        self.draft
            .add_assignment(&mut self.group, node, &assignment);
        self.machines
            .placed(self.key, self.draft, node, &assignment, bytes);
        let Assignment {
            instance,
            address,
            gpu,
            ..
        } = assignment;
        let gpu = gpu.map_or_else(String::new, |gpu| format!(" and GPU {gpu}"));
        self.instance_event(
            EventReason::Scheduled,
            &instance,
            format!("placed on {node} with address {address}{gpu}"),
        );
        self.flush_if_full();
        instance
    }

    /// Machines of the live instances of a slot, which a new instance replaces, and of instances in
    /// other slots that this plan stops.
    fn replaced(&self, slot: u32) -> Vec<&'a str> {
        let in_slot = self.draft.instances_in_slot(self.key, slot).iter().copied();
        let stopped = self.draft.stopped_of(self.key);
        let elsewhere = stopped.filter(|(_, entry)| entry.assignment.value.slot != slot);
        in_slot
            .chain(elsewhere)
            .filter(|(_, entry)| self.draft.stays(&entry.assignment.value))
            .map(|(_, entry)| entry.node.as_str())
            .collect()
    }

    /// The instance that a new one of the slot replaces failed or lost its machine.
    fn was_lost(&self, slot: u32) -> bool {
        let around = &self.around;
        let mut own = self.draft.instances_in_slot(self.key, slot).iter();
        own.any(|(id, entry)| {
            let status = around.statuses.get(&entry.node);
            let record = status.and_then(|status| status.instances.get(*id));
            let over = record.is_some_and(|record| {
                matches!(
                    record.phase,
                    InstancePhase::Failed | InstancePhase::Succeeded
                )
            });
            over || around.losses.is_replaced(&entry.node)
        })
    }

    /// The next id, with that instance's secrets and the credentials for its images. If these can't
    /// be sealed, the id is not used up.
    fn next_with(
        &mut self,
        wanted: &secrets::UsedSecrets<'_>,
        images: &[&str],
        node: &str,
    ) -> Result<NextInstance, NotPlaced> {
        let made = self.record.instances_made;
        let instance = self.next_id();
        let secrets = self.sealed_secrets(wanted, node, &instance);
        let logins = self.sealed_logins(images.iter().copied(), node, &instance);
        match (secrets, logins) {
            (Ok(secrets), Ok(logins)) => Ok((instance, secrets, logins)),
            (_, Err(trouble)) | (Err(trouble), _) => {
                self.record.instances_made = made;
                Err(NotPlaced::Secrets(trouble))
            }
        }
    }

    /// The next id that no existing instance has.
    fn next_id(&mut self) -> String {
        loop {
            let id = instance_id(
                &self.key.name,
                &self.entry.meta.value.uid,
                self.record.instances_made,
            );
            self.record.instances_made = self.record.instances_made.wrapping_add(1);
            if !self.draft.is_taken(&id) {
                return id;
            }
        }
    }
}

/// Tells the program its index among the completions.
fn set_index(container: &mut Container, index: u32) {
    container.env.retain(|one| one.name != COMPLETION_INDEX);
    container.env.push(EnvVar {
        name: COMPLETION_INDEX.to_owned(),
        value: Some(index.to_string()),
        value_from: None,
    });
}

/// The containers of a kind, each with the image that the instance runs.
fn with_images(spec: &WorkloadSpec, kind: OtherKind, known: &ImageRecord) -> Vec<Container> {
    let own = spec.source.image.as_deref();
    let containers = spec.of_kind(kind).iter();
    let pinned = containers.map(|container| {
        let image = container.image.as_deref().or(own);
        Container {
            image: image.map(|image| known.pinned(image).to_owned()),
            ..container.clone()
        }
    });
    pinned.collect()
}

pub(crate) fn health_check_of(parsed: &ParsedWorkload) -> Option<&HealthCheck> {
    let balancer = parsed.load_balancer.as_ref();
    balancer?.spec.health_check.as_ref()
}

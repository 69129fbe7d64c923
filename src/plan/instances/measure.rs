//! Maximum size of an instance's assignment: checked when its workload is applied, so that it fits
//! when it is placed.

use std::{collections::BTreeSet, net::Ipv4Addr};

use jiff::Timestamp;

use kat_types::{
    assignment::{
        AssignedVolume, Assignment, DesiredRun, INDEX_LIMIT, WorkloadUser, needed_schema,
    },
    encoding::json::{self, NotEncoded},
    machine::gpu::LONGEST_GPU_NAME,
    resource::{Bytes, MilliCpu, OtherKind, ResourceList},
    secrets::secret_uses,
    store::snapshot::ParsedWorkload,
};

/// Maximum bytes of an assignment as JSON. A transaction takes 1.4 MiB; the rest is for what is
/// written with the assignment: its address, the status of its workload, events.
pub const MAX_ASSIGNMENT: usize = 1280 * 1024;
/// Maximum bytes of an instance's secrets: 256 KiB, sealed and in base64, with their names.
const SECRETS: usize = 256 * 1024 / 3 * 4 + 24 * 1024;
/// Maximum bytes of the credentials for one registry.
const LOGIN: usize = 24 * 1024;
/// Bytes of an image's digest, and of the folder of a volume.
const DIGEST: usize = 80;
const FOLDER: usize = 256;

/// Bytes of the largest assignment that can result from these files, with the largest secrets and
/// credentials that an instance may have.
pub fn largest_assignment(parsed: &ParsedWorkload) -> Result<usize, NotEncoded> {
    let spec = &parsed.workload.spec;
    let assignment = sample_assignment(parsed);
    let bytes = encoded_bytes(&assignment)?;
    let images: Vec<&str> = assignment.images().collect();
    let registries: BTreeSet<&str> = images
        .iter()
        .filter_map(|image| image.split('/').next())
        .collect();
    let containers = [OtherKind::Init, OtherKind::Sidecar].map(|kind| spec.of_kind(kind));
    let containers = containers.into_iter().flatten();
    let uses = secret_uses(containers.chain([&spec.container]), &spec.volumes);
    let secrets = if uses.is_empty() { 0 } else { SECRETS };
    Ok(bytes
        + images.len() * DIGEST
        + spec.volumes.len() * FOLDER
        + registries.len() * LOGIN
        + secrets)
}

/// Bytes of an assignment of these files without secrets and credentials.
pub(crate) fn least_assignment(parsed: &ParsedWorkload) -> Result<usize, NotEncoded> {
    parsed
        .least_assignment
        .get_or_measure(|| encoded_bytes(&sample_assignment(parsed)))
}

fn encoded_bytes(assignment: &Assignment) -> Result<usize, NotEncoded> {
    Ok(json::bytes("the assignment of an instance", assignment)?.len())
}

/// The longest requests that a namespace can give to containers without their own.
const LONGEST_REQUESTS: ResourceList = ResourceList {
    cpu: Some(MilliCpu(u64::MAX)),
    memory: Some(Bytes(u64::MAX)),
    storage: None,
};

/// An assignment of these files, with the longest numbers and names that KAT assigns.
fn sample_assignment(parsed: &ParsedWorkload) -> Assignment {
    let filled = parsed.workload.spec.with_default_requests(LONGEST_REQUESTS);
    let spec = &*filled;
    let metadata = &parsed.workload.metadata;
    let balancer = parsed.load_balancer.as_ref().map(|balancer| &balancer.spec);
    let health_check = balancer.and_then(|spec| spec.health_check.clone());
    let index = INDEX_LIMIT.saturating_sub(1);
    let own = spec.source.image.clone().unwrap_or_default();
    let others = |kind| {
        let containers = spec.of_kind(kind).iter().cloned();
        let named = containers.map(|mut container| {
            container.image.get_or_insert_with(|| own.clone());
            container
        });
        named.collect::<Vec<_>>()
    };
    let volumes = spec.volumes.iter().map(|volume| AssignedVolume {
        definition: volume.clone(),
        folder: None,
        made: true,
    });
    Assignment {
        schema: needed_schema(spec, health_check.as_ref()),
        instance: format!("{}-00000", metadata.name),
        namespace: metadata.namespace.clone(),
        workload: metadata.name.clone(),
        workload_uid: "u".repeat(64),
        workload_type: spec.kind,
        labels: metadata.labels.clone(),
        slot: u32::MAX,
        generation: u64::MAX,
        template_hash: "h".repeat(128),
        user: WorkloadUser {
            index,
            name: "u".repeat(32),
            uid: u32::MAX,
            subordinate_start: u32::MAX,
            subordinate_count: u32::MAX,
        },
        address: Ipv4Addr::BROADCAST,
        image: own.clone(),
        container: spec.container.clone(),
        init_containers: others(OtherKind::Init),
        sidecars: others(OtherKind::Sidecar),
        ports: balancer.map_or_else(Vec::new, |spec| spec.ports.clone()),
        health_check,
        restart_policy: spec.restart_policy.clone(),
        created: Some(Timestamp::MAX),
        on_partition: spec.on_partition,
        machine_access: spec.machine_access.clone(),
        volumes: volumes.collect(),
        carried: parsed.carried.clone(),
        secrets: None,
        logins: None,
        wanted: DesiredRun::Running,
        run: None,
        gpu: spec.gpu().map(|_| "g".repeat(LONGEST_GPU_NAME)),
        bound: None,
        not_understood: None,
    }
}

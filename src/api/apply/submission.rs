//! Reading and checking of the archive that a caller sends.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::body::Bytes;
use jiff::Timestamp;

use crate::{access::authentication::Caller, errors::ApiError, server::work_permits::SharedTurns};
use kat_bundle as bundle;
use kat_bundle::{Bundle, Class, DecodeMode, Diagnostic, NeededReader, SourceFile};
use kat_plan::{
    Schedule, WorkloadClaims, aliases_of, amounts_of_workload, has_allowed_sources,
    has_each_machine, largest_assignment,
};
use kat_types::{
    encoding::json::{self, NotEncoded},
    resource::{
        Amounts, HostPort, ImagePullPolicy, Ingress, NamespaceSpec, OnPartition, Protocol,
        StartAfter, VirtualLoadBalancer, WorkloadSpec, WorkloadType, stop_seconds,
    },
    store::snapshot::ParsedWorkload,
};

/// Maximum number of archives that are unpacked or packed at once, of a caller and in all: this
/// costs most in relation to the request's size.
const UNPACKED_AT_ONCE: (usize, usize) = (2, 4);

static UNPACKING: LazyLock<SharedTurns> =
    LazyLock::new(|| SharedTurns::new(UNPACKED_AT_ONCE.0, UNPACKED_AT_ONCE.1));

/// A workload as submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Submission {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Number of replicas; `None` for a type that has none.
    pub(crate) replicas: Option<u32>,
    /// Its spec if it is a DaemonService, whose use of quotas depends on the machines.
    pub(crate) daemon: Option<WorkloadSpec>,
    /// Its spec if it is a Job with one instance on each machine, whose volumes depend on the machines.
    pub(crate) per_node: Option<WorkloadSpec>,
    /// The files as written, by name.
    pub(crate) files: BTreeMap<String, String>,
    /// Hash of the content; an equal hash means that nothing changed.
    pub(crate) spec_hash: String,
    /// Hash of the instances' template; an equal hash means that no instance is replaced.
    pub(crate) template_hash: String,
    /// The images that machines pull for it, each once, the main container's first. Images that are
    /// only used where they are present are left out.
    pub(crate) pulled_images: Vec<String>,
    /// Some of its images are never pulled: somebody puts them on machines.
    pub(crate) has_own_images: bool,
    /// Seconds that the program has to end, with `onPartition: stop`.
    pub(crate) fenced_grace: Option<u32>,
    /// The file that has the ports.
    pub(crate) ports_file: &'static str,
    /// The places of the files that not every version of KAT reads.
    pub(crate) needed_readers: Vec<NeededReader>,
    /// Host ports with a number.
    pub(crate) host_ports: Vec<(u16, Protocol)>,
    /// Some of its host ports are for some addresses alone.
    pub(crate) has_allowed_sources: bool,
    /// Its further names in its namespace.
    pub(crate) aliases: Vec<String>,
    /// Other namespaces that may reach the workload, each by its name.
    pub(crate) allow_namespaces: Vec<String>,
    /// The workloads that it starts after.
    pub(crate) start_after: Vec<StartAfter>,
    /// Its routes, and ports 80 and 443 of machines.
    pub(crate) claims: WorkloadClaims,
    /// Its routes as written.
    pub(crate) routes: Vec<Ingress>,
    /// The submission contains its namespace.
    pub(crate) makes_namespace: bool,
    /// The settings of the namespace in the submission.
    pub(crate) namespace_settings: Option<NamespaceSpec>,
    /// The amounts of its namespace's quotas that it uses, without the namespace's default requests.
    pub(crate) amounts: Amounts,
    /// Its spec if a container lacks requests, and gets those of the namespace.
    pub(crate) lacks_requests: Option<WorkloadSpec>,
    /// Bytes of the largest assignment that an instance of it can have.
    pub(crate) assignment_bytes: usize,
}

/// Unpacks, parses and checks an archive.
///
/// # Errors
/// [`ApiError::Invalid`] with every mistake, or [`ApiError::Oversize`].
pub(crate) async fn read(archive: Bytes, caller: &Caller) -> Result<Submission, ApiError> {
    let _turn = UNPACKING.take(&caller.to_string()).await;
    let read = tokio::task::spawn_blocking(move || parse(&archive)).await;
    read.map_err(|error| ApiError::Internal(format!("can't read the archive: {error}")))?
}

/// Packs stored files as an archive, in turn with those that are unpacked.
///
/// # Errors
/// [`ApiError::Internal`] if carried files cannot be read.
pub(crate) async fn pack(files: Vec<SourceFile>, caller: &Caller) -> Result<Vec<u8>, ApiError> {
    let _turn = UNPACKING.take(&caller.to_string()).await;
    let packed = tokio::task::spawn_blocking(move || bundle::pack(&files)).await;
    packed
        .map_err(|error| ApiError::Internal(format!("can't pack the files: {error}")))?
        .map_err(|error| ApiError::Internal(format!("can't pack the files: {error}")))
}

fn parse(archive: &[u8]) -> Result<Submission, ApiError> {
    let files = bundle::read_archive(archive).map_err(refusal)?;
    of_files(&files)
}

/// Parses and checks files.
///
/// # Errors
/// [`ApiError::Invalid`] with every mistake, or [`ApiError::Oversize`].
pub(crate) fn of_files(files: &[SourceFile]) -> Result<Submission, ApiError> {
    of_bundle(bundle::parse(files, DecodeMode::Strict).map_err(refusal)?)
}

/// Parses and checks files that differ from the `stored` ones in one change: a rule that is newer
/// than the stored files does not refuse another number of replicas, another image or a restart.
///
/// # Errors
/// As [`of_files`], but only errors that `stored` does not have as well.
pub(crate) fn of_changed(
    files: &[SourceFile],
    stored: &[SourceFile],
) -> Result<Submission, ApiError> {
    let found = match bundle::parse(files, DecodeMode::Strict) {
        Ok(bundle) => return of_bundle(bundle),
        Err(found) => found,
    };
    let known = bundle::parse(stored, DecodeMode::Strict)
        .err()
        .unwrap_or_default();
    let is_known = |one: &Diagnostic| {
        let mut known = known.iter();
        known.any(|other| {
            let of = |one: &Diagnostic| (one.class, one.path.clone(), one.message.clone());
            of(one) == of(other)
        })
    };
    if !found.iter().all(is_known) {
        return Err(refusal(found));
    }
    of_bundle(bundle::parse(files, DecodeMode::Stored).map_err(refusal)?)
}

fn of_bundle(bundle: Bundle) -> Result<Submission, ApiError> {
    let not_yet = bundle::not_yet(&bundle);
    if !not_yet.is_empty() {
        return Err(refusal(not_yet));
    }
    if let Some(job) = &bundle.job
        && let Some(schedule) = &job.spec.schedule
    {
        // Whether it ever comes does not depend on the time.
        Schedule::check(schedule, &job.spec.time_zone, Timestamp::UNIX_EPOCH)
            .map_err(|error| ApiError::invalid(format!("job.kat: {error}")))?;
    }
    let Some(workload) = &bundle.workload else {
        return Err(ApiError::invalid("the archive has no `workload.kat`"));
    };
    let carried = bundle
        .files
        .iter()
        .find(|file| file.name == bundle::CARRIED)
        .map(|file| file.text.as_str().into());
    let needed_readers = bundle::needed_readers(&bundle.files);
    let parsed = ParsedWorkload {
        job: bundle.job.as_ref().map(|job| job.spec.clone()),
        ports_in_workload: bundle.ports_in_workload,
        needed_reader: highest(&needed_readers),
        ..ParsedWorkload::new(workload.clone(), bundle.load_balancer.clone(), carried)
    };
    let is_daemon = workload.spec.kind == WorkloadType::DaemonService;
    let measured = largest_assignment(&parsed);
    let not_encoded = |error: NotEncoded| ApiError::invalid(error.to_string());
    let assignment_bytes = measured.map_err(not_encoded)?;
    Ok(Submission {
        assignment_bytes,
        namespace: workload.metadata.namespace.clone(),
        name: workload.metadata.name.clone(),
        labels: workload.metadata.labels.clone(),
        replicas: workload.spec.replicas.filter(|_| !is_daemon),
        daemon: is_daemon.then(|| workload.spec.clone()),
        per_node: parsed
            .job
            .as_ref()
            .is_some_and(has_each_machine)
            .then(|| workload.spec.clone()),
        spec_hash: bundle::spec_hash(&bundle).map_err(not_encoded)?,
        template_hash: bundle::template_hash(&bundle).map_err(not_encoded)?,
        pulled_images: pulled_images(&workload.spec),
        has_own_images: workload
            .spec
            .images()
            .any(|(_, policy)| policy == Some(ImagePullPolicy::Never)),
        fenced_grace: (workload.spec.on_partition == OnPartition::Stop).then(|| {
            let WorkloadSpec {
                container,
                init_containers,
                sidecars,
                ..
            } = &workload.spec;
            stop_seconds(container, init_containers, sidecars)
        }),
        ports_file: parsed.ports_file(),
        needed_readers,
        host_ports: bundle
            .load_balancer
            .as_ref()
            .map_or_else(Vec::new, host_ports),
        has_allowed_sources: bundle
            .load_balancer
            .as_ref()
            .is_some_and(|balancer| has_allowed_sources(&balancer.spec.ports)),
        aliases: aliases_of(&parsed).to_vec(),
        allow_namespaces: bundle
            .load_balancer
            .as_ref()
            .map_or_else(Vec::new, |balancer| {
                let names = balancer.spec.allow_namespaces.iter();
                names.filter(|name| *name != "*").cloned().collect()
            }),
        start_after: workload.spec.start_after.clone(),
        claims: WorkloadClaims::of(&parsed),
        routes: bundle
            .load_balancer
            .as_ref()
            .map(|balancer| balancer.spec.ingress.clone())
            .unwrap_or_default(),
        makes_namespace: bundle
            .namespace
            .as_ref()
            .is_some_and(|namespace| namespace.metadata.name == workload.metadata.namespace),
        namespace_settings: bundle
            .namespace
            .as_ref()
            .and_then(|namespace| namespace.spec.clone()),
        lacks_requests: workload
            .spec
            .lacks_requests()
            .then(|| workload.spec.clone()),
        amounts: amounts_of_workload(
            &workload.spec,
            parsed.job.as_ref(),
            bundle.files.iter().map(|file| file.text.len()).sum(),
        ),
        files: bundle
            .files
            .iter()
            .map(|file| (file.name.clone(), file.text.clone()))
            .collect(),
    })
}

fn highest(needed: &[NeededReader]) -> u32 {
    let versions = needed.iter().map(|one| one.version);
    versions.max().unwrap_or(1)
}

fn pulled_images(spec: &WorkloadSpec) -> Vec<String> {
    let mut pulled: Vec<String> = Vec::new();
    for (image, policy) in spec.images() {
        if policy != Some(ImagePullPolicy::Never) && !pulled.iter().any(|known| known == image) {
            pulled.push(image.to_owned());
        }
    }
    pulled
}

/// The numbers that are written.
fn host_ports(balancer: &VirtualLoadBalancer) -> Vec<(u16, Protocol)> {
    let ports = balancer.spec.ports.iter();
    let numbers = ports.filter_map(|port| match port.host_port? {
        HostPort::Number(number) => Some((number, port.protocol)),
        HostPort::Auto(_) => None,
    });
    numbers.collect()
}

/// The error with all diagnostics; its message names the first.
pub(crate) fn refusal(diagnostics: Vec<Diagnostic>) -> ApiError {
    let first = diagnostics
        .first()
        .map_or_else(String::new, diagnostic_line);
    let message = match diagnostics.len() {
        0 | 1 => first,
        count => format!("{first} (and {} more)", count - 1),
    };
    let oversize = !diagnostics.is_empty()
        && diagnostics
            .iter()
            .all(|diagnostic| diagnostic.class == Class::Oversize);
    let details = diagnostics
        .iter()
        .filter_map(|diagnostic| json::tree("a diagnostic", diagnostic).ok())
        .collect();
    if oversize {
        ApiError::Oversize { message, details }
    } else {
        ApiError::Invalid { message, details }
    }
}

fn diagnostic_line(diagnostic: &Diagnostic) -> String {
    let Diagnostic {
        file,
        line,
        column,
        path,
        message,
        ..
    } = diagnostic;
    let at = if *line > 0 {
        format!("{file}:{line}:{column}")
    } else {
        file.clone()
    };
    match (at.is_empty(), path.is_empty()) {
        (true, true) => message.clone(),
        (false, true) => format!("{at}: {message}"),
        (true, false) => format!("{path}: {message}"),
        (false, false) => format!("{at}: {path}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(replicas: u32, profile: &str, image: &str) -> Vec<SourceFile> {
        let text = format!(
            "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata:\n  name: web\nspec:\n  type: Service\n  source:\n    \
             image: {image}\n  replicas: {replicas}\n  restartPolicy: {{condition: Always}}\n  container:\n    name: app\n    quadlet:\n      SeccompProfile: {profile}\n"
        );
        vec![SourceFile {
            name: "workload.kat".to_owned(),
            text,
        }]
    }

    #[test]
    fn a_rule_that_is_newer_than_what_is_stored_refuses_only_what_breaks_it_anew() {
        let stored = files(1, "/srv/profile.json", "registry.lab/web:1");
        // Control: the stored workload itself could not be applied today.
        let error = of_files(&stored).unwrap_err().to_string();
        assert!(error.contains("SeccompProfile"), "{error}");
        let changed = |files: &[SourceFile]| of_changed(files, &stored);
        let same = changed(&stored).unwrap();
        let more = changed(&files(3, "/srv/profile.json", "registry.lab/web:2")).unwrap();
        assert_eq!(more.pulled_images, ["registry.lab/web:2"]);
        let instances = [same, more].map(|one| one.amounts.instances);
        assert_eq!(instances, [Some(1), Some(3)]);
        for refused in [
            files(1, "/srv/other.json", "registry.lab/web:1"),
            files(0, "/srv/profile.json", "a b"),
        ] {
            assert!(changed(&refused).is_err(), "{refused:?}");
        }
    }
}

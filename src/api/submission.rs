//! The archive that a caller sends, read and checked as a whole.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::body::Bytes;
use tokio::sync::Semaphore;

use super::errors::ApiError;
use crate::{
    bundle::{self, Class, Diagnostic, Mode, SourceFile},
    resource::{
        HostPort, ImagePullPolicy, OnPartition, Protocol, VirtualLoadBalancer, WorkloadSpec,
        stop_seconds,
    },
};

/// Most archives that are unpacked at once: unpacking is what costs most for the least asked.
const UNPACKED_AT_ONCE: usize = 4;

static UNPACKING: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(UNPACKED_AT_ONCE));

/// A workload as somebody sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Submission {
    /// Its namespace.
    pub(super) namespace: String,
    /// Its name.
    pub(super) name: String,
    /// Its labels.
    pub(super) labels: BTreeMap<String, String>,
    /// The files as written, by name.
    pub(super) files: BTreeMap<String, String>,
    /// The same means that nothing changed.
    pub(super) spec_hash: String,
    /// The same means that no instance is replaced.
    pub(super) template_hash: String,
    /// The images that machines pull for it, each once, the main container's first; those that they only use where
    /// they have them are left out.
    pub(super) pulled_images: Vec<String>,
    /// Some of its images are never pulled: somebody puts them on machines.
    pub(super) has_own_images: bool,
    /// With `onPartition: stop` the seconds that the program has to end.
    pub(super) fenced_grace: Option<u32>,
    /// Ports of machines that are to lead to it.
    pub(super) host_ports: Vec<(u16, Protocol)>,
    /// Its namespace is written beside it.
    pub(super) makes_namespace: bool,
}

/// Unpacks, parses and checks an archive.
///
/// # Errors
/// [`ApiError::Invalid`] with every mistake, or [`ApiError::Oversize`].
pub(super) async fn read(archive: Bytes) -> Result<Submission, ApiError> {
    let _permit = UNPACKING.acquire().await;
    let read = tokio::task::spawn_blocking(move || parse(&archive)).await;
    read.map_err(|error| ApiError::Internal(format!("can't read the archive: {error}")))?
}

fn parse(archive: &[u8]) -> Result<Submission, ApiError> {
    let files = bundle::read_archive(archive).map_err(refusal)?;
    of_files(&files)
}

/// Parses and checks files.
///
/// # Errors
/// [`ApiError::Invalid`] with every mistake, or [`ApiError::Oversize`].
pub(super) fn of_files(files: &[SourceFile]) -> Result<Submission, ApiError> {
    let bundle = bundle::parse(files, Mode::Strict).map_err(refusal)?;
    let not_yet = bundle::not_yet(&bundle);
    if !not_yet.is_empty() {
        return Err(refusal(not_yet));
    }
    let Some(workload) = &bundle.workload else {
        return Err(ApiError::invalid("the archive has no `workload.kat`"));
    };
    Ok(Submission {
        namespace: workload.metadata.namespace.clone(),
        name: workload.metadata.name.clone(),
        labels: workload.metadata.labels.clone(),
        spec_hash: bundle::spec_hash(&bundle),
        template_hash: bundle::template_hash(&bundle),
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
        host_ports: bundle
            .load_balancer
            .as_ref()
            .map_or_else(Vec::new, host_ports),
        makes_namespace: bundle
            .namespace
            .as_ref()
            .is_some_and(|namespace| namespace.metadata.name == workload.metadata.namespace),
        files: bundle
            .files
            .iter()
            .map(|file| (file.name.clone(), file.text.clone()))
            .collect(),
    })
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

/// All mistakes at once; the message names the first.
fn refusal(diagnostics: Vec<Diagnostic>) -> ApiError {
    let first = diagnostics.first().map_or_else(String::new, place);
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
        .filter_map(|diagnostic| serde_json::to_value(diagnostic).ok())
        .collect();
    if oversize {
        ApiError::Oversize { message, details }
    } else {
        ApiError::Invalid { message, details }
    }
}

fn place(diagnostic: &Diagnostic) -> String {
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

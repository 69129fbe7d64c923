//! Rules about volumes and their mounts (RFC001-KAT 3.2, 4.7).

use super::{
    diagnostic::{Class, Diagnostic, quote},
    yaml::item_path,
};
use crate::cross_file_rules::ParsedDocument;
use kat_types::resource::{
    Container, EnsureType, Volume, VolumeMount, WorkloadSpec, WorkloadType, secret::check_key,
};

/// Checks the volumes, and the mounts of every container.
pub(super) fn check(
    document: &ParsedDocument<'_>,
    spec: &WorkloadSpec,
    found: &mut Vec<Diagnostic>,
) {
    for (index, volume) in spec.volumes.iter().enumerate() {
        if let Some(message) = several_writers(spec, volume) {
            let path = item_path("spec.volumes", index);
            let message = document.at_value(Class::CrossFile, &format!("{path}.name"), message);
            found.push(message.hint(match volume.host_mount {
                None => "write `perReplica: true` for a folder each, mount it with `readOnly: true`, or write `replicas: 1`",
                Some(_) => "mount it with `readOnly: true`, write `replicas: 1`, or make the path yourself and write `ensureType: Directory`",
            }));
        }
    }
    check_within(document, spec, found);
    for (path, container) in spec.containers() {
        check_mounts(document, spec, (&path, container), found);
    }
}

/// Refuses a host path that KAT creates within another volume's host path that a program may write
/// to: the program could put a link in its place. Existing paths are bound by descriptor, so that
/// no link is followed.
fn check_within(document: &ParsedDocument<'_>, spec: &WorkloadSpec, found: &mut Vec<Diagnostic>) {
    let together = spec.together();
    let path_of = |volume: &Volume| Some(volume.host_mount.as_ref()?.host_path.clone());
    for (index, volume) in spec.volumes.iter().enumerate() {
        let Some(inner) = path_of(volume).filter(|_| is_made(volume)) else {
            continue;
        };
        let is_around = |other: &&Volume| {
            let (inner, outer) = (components(&inner), path_of(other));
            outer.is_some_and(|outer| {
                let outer = components(&outer);
                outer.len() < inner.len() && inner.starts_with(&outer)
            })
        };
        let mut others = spec.volumes.iter();
        let outer = others.find(|one| is_around(one) && together.writes_to(&one.name));
        if let Some(outer) = outer {
            let path = item_path("spec.volumes", index);
            let message = format!(
                "`{}` can't be made: it lies in volume `{}`, where the program could put a link in its place",
                quote(&inner),
                quote(&outer.name)
            );
            let at = format!("{path}.hostMount.hostPath");
            let message = document.at_value(Class::CrossFile, &at, message);
            found.push(message.hint(
                "make it yourself and write `ensureType: Directory` or `File`, mount the outer one with `readOnly: true`, or write paths of which none lies within another",
            ));
        }
    }
}

fn check_mounts(
    document: &ParsedDocument<'_>,
    spec: &WorkloadSpec,
    (container_path, container): (&str, &Container),
    found: &mut Vec<Diagnostic>,
) {
    // A link that one container creates is there for all of them.
    let together = spec.together();
    for (index, mount) in container.volume_mounts.iter().enumerate() {
        let path = item_path(&format!("{container_path}.volumeMounts"), index);
        let at = |field: &str, message: String| {
            document.at_value(Class::CrossFile, &format!("{path}.{field}"), message)
        };
        let tmpfs = &container.tmpfs;
        if tmpfs
            .iter()
            .any(|other| same_path(other, &mount.mount_path))
        {
            let message = format!("`{}` is in tmpfs too", quote(&mount.mount_path));
            found.push(at("mountPath", message).hint("leave it out in one of them"));
        }
        let Some(sub_path) = &mount.sub_path else {
            continue;
        };
        let volume = spec.volumes.iter().find(|volume| volume.name == mount.name);
        if volume.is_some_and(|volume| volume.secret.is_some()) {
            if let Err(error) = check_key(sub_path) {
                let message = format!("subPath of a secret is one of its keys: {error}");
                found.push(at("subPath", message).hint("such as `subPath: tls.crt`"));
            }
        } else if let Some(what) = volume.and_then(no_folder) {
            let name = quote(&mount.name);
            let message = format!("subPath needs a folder of the machine, and `{name}` is {what}");
            found.push(at("subPath", message).hint("leave subPath out"));
        } else if volume.is_none_or(|volume| volume.simple_cluster_storage.is_some())
            && let Some(outer) = together
                .volume_mounts
                .iter()
                .find(|outer| may_replace(outer, mount))
        {
            let message = format!(
                "the program could put a link in the place of `{}`, for it may write to what is mounted at `{}`",
                quote(sub_path),
                quote(&outer.mount_path)
            );
            found.push(at("subPath", message).hint(
                "mount the outer folder with `readOnly: true`, or give each mount a subPath of its own",
            ));
        }
    }
}

/// Whether more than one replica would write to the same folder; the message if so.
fn several_writers(spec: &WorkloadSpec, volume: &Volume) -> Option<String> {
    let replicas = spec.replicas.unwrap_or(1);
    let one_folder =
        (volume.simple_cluster_storage.is_some() && !volume.per_replica) || is_made(volume);
    let many = spec.kind == WorkloadType::Service && replicas > 1;
    (one_folder && many && spec.together().writes_to(&volume.name)).then(|| {
        let name = quote(&volume.name);
        format!("{replicas} replicas would write to one and the same `{name}`, expected one")
    })
}

/// Whether KAT creates the host path if it is missing.
fn is_made(volume: &Volume) -> bool {
    let host = volume.host_mount.as_ref().and_then(|host| host.ensure_type);
    matches!(
        host,
        Some(EnsureType::DirectoryOrCreate | EnsureType::FileOrCreate)
    )
}

/// The kind of a volume without folders.
fn no_folder(volume: &Volume) -> Option<&'static str> {
    if volume.tmpfs.is_some() {
        return Some("memory");
    }
    match volume.host_mount.as_ref()?.ensure_type? {
        EnsureType::File | EnsureType::FileOrCreate => Some("a file"),
        EnsureType::Socket => Some("a socket"),
        EnsureType::Directory | EnsureType::DirectoryOrCreate => None,
    }
}

/// Whether a program that may write through `outer` can replace the folder of `inner` before it is
/// mounted the next time.
fn may_replace(outer: &VolumeMount, inner: &VolumeMount) -> bool {
    let (outer_parts, inner_parts) = (parts(outer), parts(inner));
    outer.name == inner.name
        && !outer.read_only
        && outer_parts.len() < inner_parts.len()
        && inner_parts.starts_with(&outer_parts)
}

fn parts(mount: &VolumeMount) -> Vec<&str> {
    components(mount.sub_path.as_deref().unwrap_or_default())
}

fn components(path: &str) -> Vec<&str> {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect()
}

fn same_path(one: &str, other: &str) -> bool {
    components(one) == components(other)
}

//! One container: the main one, an init container or a sidecar (RFC001-KAT 3.2).

use std::collections::BTreeMap;

use super::{Decoder, Fields, PathValue};
use crate::{
    check,
    diagnostic::{Class, quote},
};
use kat_types::resource::{
    Bytes, Container, DEFAULT_DRAIN_SECONDS, DEFAULT_TERMINATION_GRACE_SECONDS, EnvVar,
    EnvVarSource, GpuRequest, MOST_OTHERS, MilliCpu, ResourceList, Resources, SecretKeyRef,
    VolumeMount,
};

/// Minimum memory: less is a size whose unit was forgotten.
const LEAST_MEMORY: Bytes = Bytes(1 << 20);
/// Minimum request of disk space, for the same reason.
const LEAST_STORAGE: Bytes = Bytes(1 << 20);
/// Minimum size of /dev/shm: one page.
const LEAST_SHARED_MEMORY: Bytes = Bytes(1 << 12);

/// The main container; its mounts may refer to the names in `volumes`.
pub(super) fn container(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    volumes: &[String],
) -> Option<Container> {
    let fields = decoder.mapping(at)?;
    decoded(decoder, fields, volumes)
}

/// Init containers or sidecars. `names` are the names that containers have already.
pub(super) fn other_containers(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    volumes: &[String],
    names: &mut BTreeMap<String, u32>,
) -> Option<Vec<Container>> {
    let found = decoder.list(at, |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        fields.required(decoder, "name", |decoder, at| {
            let name = decoder.text(at)?;
            decoder.once(at, &name, names);
            Some(())
        });
        let image = fields.optional(decoder, "image", |decoder, at| {
            decoder.checked(at, check::image)
        });
        let places = ["hostNetwork", "drainSeconds"]
            .map(|name| (name, fields.span_of(name), fields.path_of(name)));
        let container = decoded(decoder, fields, volumes)?;
        let of_all = [
            (
                container.host_network,
                "all containers of an instance share one network",
            ),
            (
                container.drain_seconds != DEFAULT_DRAIN_SECONDS,
                "an instance is drained as a whole",
            ),
        ];
        for ((name, place, path), (is_written, why)) in places.into_iter().zip(of_all) {
            if is_written {
                let message = format!("{why}, which {name} of spec.container decides");
                let hint = Some("leave it out here".to_owned());
                decoder.soft(Class::CrossFile, place, &path, message, hint);
            }
        }
        Some(Container { image, ..container })
    })?;
    if found.len() > MOST_OTHERS {
        let message = format!(
            "found {} items, expected at most {MOST_OTHERS}",
            found.len()
        );
        decoder.soft(Class::Range, at.node.span, &at.path, message, None);
    }
    Some(found)
}

/// A container of which nothing is written.
pub(super) fn no_settings() -> Container {
    Container {
        drain_seconds: DEFAULT_DRAIN_SECONDS,
        termination_grace_seconds: DEFAULT_TERMINATION_GRACE_SECONDS,
        ..Container::default()
    }
}

fn decoded(
    decoder: &mut Decoder<'_>,
    mut fields: Fields<'_>,
    volumes: &[String],
) -> Option<Container> {
    let mut container = no_settings();
    let one = &mut container;
    one.name = fields.optional(decoder, "name", |decoder, at| {
        decoder.checked(at, check::label)
    });
    let arguments =
        |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.texts(at, check::argument);
    fields.fill(decoder, "command", &mut one.command, arguments);
    fields.fill(decoder, "args", &mut one.args, arguments);
    fields.fill(decoder, "entrypoint", &mut one.entrypoint, arguments);
    fields.fill(decoder, "env", &mut one.env, environment);
    let drains = &mut one.drain_seconds;
    fields.fill(decoder, "drainSeconds", drains, Decoder::integer);
    let grace = &mut one.termination_grace_seconds;
    fields.fill(decoder, "terminationGraceSeconds", grace, Decoder::integer);
    one.stop_signal = fields.optional(decoder, "stopSignal", |decoder, at| {
        decoder.checked(at, check::signal)
    });
    one.user = fields.optional(decoder, "user", |decoder, at| {
        decoder.checked(at, check::user)
    });
    one.hostname = fields.optional(decoder, "hostname", |decoder, at| {
        decoder.checked(at, check::label)
    });
    one.working_dir = fields.optional(decoder, "workingDir", |decoder, at| {
        decoder.checked(at, check::absolute_path)
    });
    fields.fill(decoder, "capAdd", &mut one.cap_add, |decoder, at| {
        decoder.distinct(at, check::capability)
    });
    fields.fill(decoder, "capDrop", &mut one.cap_drop, |decoder, at| {
        decoder.distinct(at, check::capability_or_all)
    });
    fields.fill(decoder, "devices", &mut one.devices, |decoder, at| {
        decoder.distinct(at, check::device)
    });
    fields.fill(decoder, "groups", &mut one.groups, |decoder, at| {
        decoder.distinct(at, check::group)
    });
    fields.fill(decoder, "tmpfs", &mut one.tmpfs, |decoder, at| {
        decoder.distinct(at, check::folder_path)
    });
    one.shm_size = fields.optional(decoder, "shmSize", |decoder, at| {
        decoder.size(at, LEAST_SHARED_MEMORY)
    });
    one.oom_score_adjust = fields.optional(decoder, "oomScoreAdjust", Decoder::integer);
    fields.fill(decoder, "init", &mut one.init, Decoder::boolean);
    let read_only = &mut one.read_only_rootfs;
    fields.fill(decoder, "readOnlyRootfs", read_only, Decoder::boolean);
    let host_network = &mut one.host_network;
    fields.fill(decoder, "hostNetwork", host_network, Decoder::boolean);
    one.image_pull_policy = fields.optional(decoder, "imagePullPolicy", Decoder::word);
    fields.fill(decoder, "quadlet", &mut one.quadlet, |decoder, at| {
        decoder.text_map(at, check::quadlet_key, check::unit_value)
    });
    let mounted = &mut one.volume_mounts;
    fields.fill(decoder, "volumeMounts", mounted, |decoder, at| {
        mounts(decoder, at, volumes)
    });
    fields.fill(decoder, "resources", &mut one.resources, resources);
    check_capabilities(decoder, &fields, one);
    fields.finish(decoder);
    Some(container)
}

/// Refuses a capability that is both added and dropped.
fn check_capabilities(decoder: &mut Decoder<'_>, fields: &Fields<'_>, container: &Container) {
    let Container {
        cap_add, cap_drop, ..
    } = container;
    if let Some(both) = cap_add.iter().find(|name| cap_drop.contains(name)) {
        decoder.soft(
            Class::CrossFile,
            fields.span_of("capDrop"),
            &fields.path_of("capDrop"),
            format!("`{}` is both added and dropped", quote(both)),
            None,
        );
    }
}

fn environment(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Vec<EnvVar>> {
    let mut seen = BTreeMap::new();
    decoder.list(at, |decoder, at| variable(decoder, at, &mut seen))
}

fn variable(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    seen: &mut BTreeMap<String, u32>,
) -> Option<EnvVar> {
    let mut fields = decoder.mapping(at)?;
    let name = fields.required(decoder, "name", |decoder, at| {
        let name = decoder.checked(at, check::variable)?;
        decoder.once(at, &name, seen);
        Some(name)
    });
    let value = fields.optional(decoder, "value", |decoder, at| {
        decoder.checked(at, check::argument)
    });
    let value_from = fields.optional(decoder, "valueFrom", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let secret = fields.required(decoder, "secret", secret_key);
        fields.finish(decoder);
        Some(EnvVarSource { secret: secret? })
    });
    match (fields.has("value"), fields.has("valueFrom")) {
        (true, true) => decoder.soft(
            Class::Shape,
            fields.span_of("valueFrom"),
            &fields.path_of("valueFrom"),
            "found both value and valueFrom, expected exactly one of them",
            Some("leave one of them out".to_owned()),
        ),
        (false, false) => decoder.soft(
            Class::Missing,
            fields.head(),
            &fields.path_of("value"),
            "found neither value nor valueFrom, expected exactly one of them",
            Some("write `value: \"\"` for an empty variable".to_owned()),
        ),
        _ => {}
    }
    fields.finish(decoder);
    Some(EnvVar {
        name: name?,
        value,
        value_from,
    })
}

fn secret_key(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<SecretKeyRef> {
    let mut fields = decoder.mapping(at)?;
    let name = fields.required(decoder, "name", |decoder, at| {
        decoder.checked(at, check::label)
    });
    let key = fields.required(decoder, "key", |decoder, at| {
        decoder.checked(at, check::secret_key)
    });
    fields.finish(decoder);
    Some(SecretKeyRef {
        name: name?,
        key: key?,
    })
}

fn mounts(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    volumes: &[String],
) -> Option<Vec<VolumeMount>> {
    let mut seen = BTreeMap::new();
    decoder.list(at, |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let name = fields.required(decoder, "name", |decoder, at| {
            let name = decoder.text(at)?;
            if !volumes.contains(&name) {
                let known = match volumes {
                    [] => "spec.volumes is empty".to_owned(),
                    names => format!("the volumes are {}", quote(&names.join(", "))),
                };
                let message = format!("no volume is named `{}`; {known}", quote(&name));
                let hint = "add it to spec.volumes".to_owned();
                decoder.soft(
                    Class::CrossFile,
                    at.node.span,
                    &at.path,
                    message,
                    Some(hint),
                );
            }
            Some(name)
        });
        let mount_path = fields.required(decoder, "mountPath", |decoder, at| {
            let path = decoder.checked(at, check::folder_path)?;
            decoder.once(at, &path, &mut seen);
            Some(path)
        });
        let sub_path = fields.optional(decoder, "subPath", |decoder, at| {
            decoder.checked(at, check::relative_path)
        });
        let read_only = fields.optional(decoder, "readOnly", Decoder::boolean);
        fields.finish(decoder);
        Some(VolumeMount {
            name: name?,
            mount_path: mount_path?,
            sub_path,
            read_only: read_only.unwrap_or_default(),
        })
    })
}

fn resources(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Resources> {
    let mut fields = decoder.mapping(at)?;
    let requests = fields
        .optional(decoder, "requests", requests)
        .unwrap_or_default();
    let limits = fields
        .optional(decoder, "limits", amounts)
        .unwrap_or_default();
    if let (Some(request), Some(limit)) = (requests.cpu, limits.cpu)
        && request > limit
    {
        above_limit(decoder, &fields, "cpu", &request, &limit);
    }
    if let (Some(request), Some(limit)) = (requests.memory, limits.memory)
        && request > limit
    {
        above_limit(decoder, &fields, "memory", &request, &limit);
    }
    let gpu = fields.optional(decoder, "gpu", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let driver = fields.optional(decoder, "driver", Decoder::word);
        let min_vram_mb = fields.optional(decoder, "minVRAM_MB", Decoder::integer);
        fields.finish(decoder);
        Some(GpuRequest {
            driver: driver.unwrap_or_default(),
            min_vram_mb,
        })
    });
    fields.finish(decoder);
    Some(Resources {
        requests,
        limits,
        gpu,
    })
}

fn above_limit(
    decoder: &mut Decoder<'_>,
    fields: &Fields<'_>,
    name: &str,
    request: &dyn std::fmt::Display,
    limit: &dyn std::fmt::Display,
) {
    decoder.soft(
        Class::CrossFile,
        fields.span_of("requests"),
        &format!("{}.{name}", fields.path_of("requests")),
        format!("the request of {request} is above the limit of {limit}"),
        Some("lower the request or raise the limit".to_owned()),
    );
}

fn requests(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<ResourceList> {
    let mut fields = decoder.mapping(at)?;
    let (cpu, memory) = processor_and_memory(decoder, &mut fields);
    let storage = fields.optional(decoder, "storage", |decoder, at| {
        decoder.size(at, LEAST_STORAGE)
    });
    fields.finish(decoder);
    Some(ResourceList {
        cpu,
        memory,
        storage,
    })
}

pub(super) fn amounts(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<ResourceList> {
    let mut fields = decoder.mapping(at)?;
    let (cpu, memory) = processor_and_memory(decoder, &mut fields);
    fields.finish(decoder);
    Some(ResourceList {
        cpu,
        memory,
        storage: None,
    })
}

fn processor_and_memory(
    decoder: &mut Decoder<'_>,
    fields: &mut Fields<'_>,
) -> (Option<MilliCpu>, Option<Bytes>) {
    let cpu = fields.optional(decoder, "cpu", Decoder::processor);
    let memory = fields.optional(decoder, "memory", |decoder, at| {
        decoder.size(at, LEAST_MEMORY)
    });
    (cpu, memory)
}

/// The amounts that `/etc/kat/agent.yaml` reserves.
pub(super) fn reserved(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<ResourceList> {
    amounts(decoder, at)
}

//! `workload.kat` but for its containers (RFC001-KAT 3.2).

use std::collections::BTreeMap;

use super::{
    Decoder, Fields, PathValue,
    balancer::ports,
    container::{container, no_settings, other_containers},
};
use crate::{check, diagnostic::Class, yaml::YamlValue};
use kat_types::resource::{
    GitSource, HostMount, MaxSurge, RestartCondition, RestartPolicy, RollingUpdate, SecretVolume,
    SimpleClusterStorage, Source, Spread, StartAfter, TmpfsVolume, Toleration, TolerationOperator,
    UpdateStrategy, Volume, Workload, WorkloadMetadata, WorkloadSpec, WorkloadType,
    default_namespace,
};

/// Most workloads that one starts after.
const MOST_STARTED_AFTER: usize = 16;

/// A document of kind Workload.
pub(crate) fn workload(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Workload> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let metadata = fields.required(decoder, "metadata", metadata);
    let spec = fields.required(decoder, "spec", spec);
    fields.finish(decoder);
    Some(Workload {
        metadata: metadata?,
        spec: spec?,
    })
}

fn metadata(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<WorkloadMetadata> {
    let mut fields = decoder.mapping(at)?;
    let name = fields.required(decoder, "name", |decoder, at| {
        decoder.checked(at, check::label)
    });
    let namespace = fields.optional(decoder, "namespace", |decoder, at| {
        decoder.checked(at, check::namespace)
    });
    let labels = fields.optional(decoder, "labels", labels);
    fields.finish(decoder);
    Some(WorkloadMetadata {
        name: name?,
        namespace: namespace.unwrap_or_else(default_namespace),
        labels: labels.unwrap_or_default(),
    })
}

/// Labels: keys and values as Kubernetes has them.
pub(super) fn labels(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
) -> Option<BTreeMap<String, String>> {
    decoder.text_map(at, check::label_key, check::label_value)
}

fn spec(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<WorkloadSpec> {
    let mut fields = decoder.mapping(at)?;
    let kind = fields.defaulted(decoder, "type", || WorkloadType::Service, Decoder::word);
    let source = fields.required(decoder, "source", source);
    let mut replicas = fields.optional(decoder, "replicas", Decoder::integer);
    if kind == Some(WorkloadType::Service) && !fields.has("replicas") {
        replicas = Some(1);
    }
    let update_strategy = fields.optional(decoder, "updateStrategy", |decoder, at| {
        update_strategy(decoder, at, kind)
    });
    let usual = match kind {
        Some(WorkloadType::Job) => RestartCondition::Never,
        Some(WorkloadType::Service | WorkloadType::DaemonService) | None => {
            RestartCondition::Always
        }
    };
    let usual = || RestartPolicy::new(usual);
    let restart_policy = fields.defaulted(decoder, "restartPolicy", usual, restart_policy);
    if kind == Some(WorkloadType::Job) {
        job_rules(decoder, &mut fields, restart_policy.as_ref());
    }
    let on_node_loss = fields.optional(decoder, "onNodeLoss", Decoder::word);
    let on_partition = fields.optional(decoder, "onPartition", Decoder::word);
    let spread = fields.optional(decoder, "spread", spread);
    let workloads =
        |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.distinct(at, check::label);
    let anti_affinity = fields.optional(decoder, "antiAffinity", workloads);
    let affinity = fields.optional(decoder, "affinity", workloads);
    let node_selector = fields.optional(decoder, "nodeSelector", labels);
    let tolerations = fields.optional(decoder, "tolerations", |decoder, at| {
        decoder.list(at, toleration)
    });
    let volumes = fields.optional(decoder, "volumes", volumes);
    let names = declared_names(&mut fields);
    let mut called = BTreeMap::new();
    let main = fields.defaulted(decoder, "container", no_settings, |decoder, at| {
        let main = container(decoder, at, &names)?;
        if let Some(name) = &main.name {
            called.insert(name.clone(), at.node.span.start.line);
        }
        Some(main)
    });
    let mut list = |decoder: &mut Decoder<'_>, at: &PathValue<'_>| {
        other_containers(decoder, at, &names, &mut called)
    };
    let init_containers = fields.optional(decoder, "initContainers", &mut list);
    let sidecars = fields.optional(decoder, "sidecars", &mut list);
    let ports = fields.optional(decoder, "ports", ports);
    let start_after = fields.optional(decoder, "startAfter", start_after);
    let machine_access = fields.optional(decoder, "machineAccess", |decoder, at| {
        decoder.distinct(at, check::machine_access)
    });
    fields.finish(decoder);
    Some(WorkloadSpec {
        kind: kind?,
        source: source?,
        replicas,
        update_strategy: update_strategy.unwrap_or_else(|| UpdateStrategy {
            rolling: usual_rolling(kind),
            ..UpdateStrategy::default()
        }),
        restart_policy: restart_policy?,
        on_node_loss,
        on_partition: on_partition.unwrap_or_default(),
        spread,
        anti_affinity: anti_affinity.unwrap_or_default(),
        affinity: affinity.unwrap_or_default(),
        node_selector: node_selector.unwrap_or_default(),
        tolerations: tolerations.unwrap_or_default(),
        container: main?,
        init_containers: init_containers.unwrap_or_default(),
        sidecars: sidecars.unwrap_or_default(),
        volumes: volumes.unwrap_or_default(),
        ports: ports.unwrap_or_default(),
        start_after: start_after.unwrap_or_default(),
        machine_access: machine_access.unwrap_or_default(),
    })
}

/// The names of the volumes as written, even if a volume has mistakes of its own.
fn declared_names(fields: &mut Fields<'_>) -> Vec<String> {
    let Some(at) = fields.get("volumes") else {
        return Vec::new();
    };
    let YamlValue::Sequence(items) = &at.node.value else {
        return Vec::new();
    };
    let name =
        |item: &crate::yaml::YamlNode| match &item.value {
            YamlValue::Mapping(entries) => entries
                .iter()
                .find(|entry| entry.key == "name")
                .and_then(|entry| match &entry.node.value {
                    YamlValue::Scalar { text, .. } => Some(text.clone()),
                    _ => None,
                }),
            _ => None,
        };
    items.iter().filter_map(name).collect()
}

/// Refuses fields that can't be combined with a Job (RFC001-KAT 3.2 and 4.8).
fn job_rules(decoder: &mut Decoder<'_>, fields: &mut Fields<'_>, policy: Option<&RestartPolicy>) {
    if policy.is_some_and(|policy| policy.condition == RestartCondition::Always) {
        let at = fields.get("restartPolicy");
        let alone = at.is_some_and(|at| matches!(at.node.value, YamlValue::Scalar { .. }));
        let path = fields.path_of("restartPolicy");
        decoder.soft(
            Class::CrossFile,
            fields.span_of("restartPolicy"),
            &if alone {
                path
            } else {
                format!("{path}.condition")
            },
            "a Job ends, and its restart policy can't be Always",
            Some("write Never or MaxCount".to_owned()),
        );
    }
    if fields.has("updateStrategy") {
        decoder.soft(
            Class::CrossFile,
            fields.span_of("updateStrategy"),
            &fields.path_of("updateStrategy"),
            "a Job has no updateStrategy; it is for Service and DaemonService",
            Some("leave it out".to_owned()),
        );
    }
}

fn source(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Source> {
    let mut fields = decoder.mapping(at)?;
    let (has_image, has_git) = (fields.has("image"), fields.has("git"));
    let image = fields.optional(decoder, "image", |decoder, at| {
        decoder.checked(at, check::image)
    });
    let git = fields.optional(decoder, "git", git);
    let cache_image = fields.optional(decoder, "cacheImage", |decoder, at| {
        decoder.checked(at, check::image)
    });
    match (has_image, has_git) {
        (true, true) => decoder.soft(
            Class::Shape,
            fields.span_of("git"),
            &fields.path_of("git"),
            "found both image and git, expected exactly one of them",
            Some("leave one of them out".to_owned()),
        ),
        (false, false) => decoder.hard(
            Class::Missing,
            fields.head(),
            &at.path,
            "found neither image nor git, expected exactly one of them",
            Some("such as `image: registry.example/web:1`".to_owned()),
        ),
        _ => {}
    }
    if fields.has("cacheImage") && has_image && !has_git {
        decoder.soft(
            Class::CrossFile,
            fields.span_of("cacheImage"),
            &fields.path_of("cacheImage"),
            "cacheImage is used only with git",
            Some("leave it out".to_owned()),
        );
    }
    fields.finish(decoder);
    Some(Source {
        image,
        git,
        cache_image,
    })
}

fn git(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<GitSource> {
    let mut fields = decoder.mapping(at)?;
    let repository = fields.required(decoder, "repository", |decoder, at| {
        decoder.checked(at, check::git_url)
    });
    let reference =
        |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.checked(at, check::git_reference);
    let branch = fields.optional(decoder, "branch", reference);
    let tag = fields.optional(decoder, "tag", reference);
    let commit = fields.optional(decoder, "commit", |decoder, at| {
        decoder.checked(at, check::commit)
    });
    fields.finish(decoder);
    Some(GitSource {
        repository: repository?,
        branch,
        tag,
        commit,
    })
}

fn update_strategy(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    workload: Option<WorkloadType>,
) -> Option<UpdateStrategy> {
    let default = UpdateStrategy::default();
    let mut fields = decoder.mapping(at)?;
    let kind = fields.optional(decoder, "type", Decoder::word);
    let rolling = fields.optional(decoder, "rolling", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let max_surge = fields.optional(decoder, "maxSurge", max_surge);
        let max_unavailable = fields.optional(decoder, "maxUnavailable", self::max_surge);
        rolling_rules(decoder, &fields, workload, max_surge);
        fields.finish(decoder);
        Some(RollingUpdate {
            max_surge: max_surge.unwrap_or(usual_rolling(workload).max_surge),
            max_unavailable: max_unavailable.unwrap_or_default(),
        })
    });
    let deadline = fields.optional(decoder, "progressDeadlineSeconds", Decoder::integer);
    let auto_rollback = fields.optional(decoder, "autoRollback", Decoder::boolean);
    fields.finish(decoder);
    Some(UpdateStrategy {
        kind: kind.unwrap_or_default(),
        rolling: rolling.unwrap_or_else(|| usual_rolling(workload)),
        progress_deadline_seconds: deadline.unwrap_or(default.progress_deadline_seconds),
        auto_rollback: auto_rollback.unwrap_or(default.auto_rollback),
    })
}

/// The settings of a workload that writes none. The instance of a DaemonService stops before its
/// successor starts on the same machine.
fn usual_rolling(workload: Option<WorkloadType>) -> RollingUpdate {
    let usual = RollingUpdate::default();
    match workload {
        Some(WorkloadType::DaemonService) => RollingUpdate {
            max_surge: MaxSurge::Count(0),
            ..usual
        },
        Some(WorkloadType::Service | WorkloadType::Job) | None => usual,
    }
}

/// Refuses what a rolling update of the workload's type does not have.
fn rolling_rules(
    decoder: &mut Decoder<'_>,
    fields: &Fields<'_>,
    workload: Option<WorkloadType>,
    max_surge: Option<MaxSurge>,
) {
    let is_daemon = match workload {
        Some(WorkloadType::DaemonService) => true,
        Some(WorkloadType::Service) => false,
        // A Job has no updateStrategy at all, which is told once.
        Some(WorkloadType::Job) | None => return,
    };
    let mut refuse = |name: &str, message: &str, hint: &str| {
        decoder.soft(
            Class::CrossFile,
            fields.span_of(name),
            &fields.path_of(name),
            message,
            Some(hint.to_owned()),
        );
    };
    if fields.has("maxUnavailable") && !is_daemon {
        let message = "maxUnavailable is used only with type DaemonService";
        refuse("maxUnavailable", message, "leave it out, or write maxSurge");
    }
    let fits = matches!(max_surge, None | Some(MaxSurge::Count(0 | 1)));
    if is_daemon && !fits {
        let message =
            "a DaemonService has one instance on each machine, expected a maxSurge of 0 or 1";
        refuse("maxSurge", message, "write 0, or 1");
    }
}

/// A number, or a percentage up to 100.
fn max_surge(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<MaxSurge> {
    let percentage = match &at.node.value {
        YamlValue::Scalar { text, .. } => text.strip_suffix('%'),
        _ => None,
    };
    let Some(number) = percentage else {
        return decoder.integer(at).map(MaxSurge::Count);
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse::<u32>() {
        Ok(percent) if digits => {
            if percent > 100 {
                let message = format!("found {percent}%, expected 0% to 100%");
                decoder.soft(Class::Range, at.node.span, &at.path, message, None);
            }
            Some(MaxSurge::Percent(percent))
        }
        _ => {
            let message = "expected a whole number or a percentage such as `25%`";
            decoder.hard(Class::Type, at.node.span, &at.path, message, None);
            None
        }
    }
}

/// A mapping, or its condition alone.
fn restart_policy(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<RestartPolicy> {
    if matches!(at.node.value, YamlValue::Scalar { .. }) && !at.node.is_null() {
        return decoder.word(at).map(RestartPolicy::new);
    }
    let mut fields = decoder.mapping(at)?;
    let condition = fields.required(decoder, "condition", Decoder::word);
    let max_restarts = fields.optional(decoder, "maxRestarts", Decoder::integer);
    let reset_seconds = fields.optional(decoder, "resetSeconds", Decoder::integer);
    fields.finish(decoder);
    let default = RestartPolicy::new(condition?);
    Some(RestartPolicy {
        max_restarts: max_restarts.unwrap_or(default.max_restarts),
        reset_seconds: reset_seconds.unwrap_or(default.reset_seconds),
        ..default
    })
}

fn spread(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Spread> {
    let mut fields = decoder.mapping(at)?;
    let topology_key = fields.required(decoder, "topologyKey", |decoder, at| {
        decoder.checked(at, check::label_key)
    });
    let required = fields.optional(decoder, "required", Decoder::boolean);
    let max_per_domain = fields.optional(decoder, "maxPerDomain", Decoder::integer);
    fields.finish(decoder);
    Some(Spread {
        topology_key: topology_key?,
        required: required.unwrap_or_default(),
        max_per_domain,
    })
}

/// Workloads that have to be there before this one starts, each once.
fn start_after(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Vec<StartAfter>> {
    let mut seen = BTreeMap::new();
    let after = decoder.list(at, |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let workload = fields.required(decoder, "workload", |decoder, at| {
            let name = decoder.checked(at, check::label)?;
            decoder.once(at, &name, &mut seen);
            Some(name)
        });
        let condition = fields.optional(decoder, "condition", Decoder::word);
        let seconds = fields.defaulted(decoder, "timeoutSeconds", || 600, Decoder::integer);
        let on_timeout = fields.optional(decoder, "onTimeout", Decoder::word);
        fields.finish(decoder);
        Some(StartAfter {
            workload: workload?,
            condition: condition.unwrap_or_default(),
            timeout_seconds: seconds?,
            on_timeout: on_timeout.unwrap_or_default(),
        })
    })?;
    if after.len() > MOST_STARTED_AFTER {
        let message = format!(
            "found {} workloads, expected at most {MOST_STARTED_AFTER}",
            after.len()
        );
        decoder.soft(Class::Shape, at.node.span, &at.path, message, None);
    }
    Some(after)
}

fn toleration(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Toleration> {
    let mut fields = decoder.mapping(at)?;
    let key = fields.required(decoder, "key", |decoder, at| {
        decoder.checked(at, check::label_key)
    });
    let operator: TolerationOperator = fields
        .optional(decoder, "operator", Decoder::word)
        .unwrap_or_default();
    let value = fields.optional(decoder, "value", |decoder, at| {
        decoder.checked(at, check::label_value)
    });
    match (operator, fields.has("value")) {
        (TolerationOperator::Equal, false) => fields.missing(decoder, "value"),
        (TolerationOperator::Exists, true) => decoder.soft(
            Class::CrossFile,
            fields.span_of("value"),
            &fields.path_of("value"),
            "value is used only with operator Equal",
            Some("write `operator: Equal`, or leave value out".to_owned()),
        ),
        _ => {}
    }
    let effect = fields.optional(decoder, "effect", |decoder, at| {
        // Empty means every effect.
        let empty = matches!(&at.node.value, YamlValue::Scalar { text, .. } if text.is_empty());
        if empty || at.node.is_null() {
            return None;
        }
        decoder.word(at)
    });
    fields.finish(decoder);
    Some(Toleration {
        key: key?,
        operator,
        value,
        effect,
    })
}

fn volumes(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Vec<Volume>> {
    let mut seen = BTreeMap::new();
    decoder.list(at, |decoder, at| volume(decoder, at, &mut seen))
}

fn volume(
    decoder: &mut Decoder<'_>,
    at: &PathValue<'_>,
    seen: &mut BTreeMap<String, u32>,
) -> Option<Volume> {
    const SOURCES: [&str; 5] = [
        "simpleClusterStorage",
        "hostMount",
        "files",
        "secret",
        "tmpfs",
    ];
    let mut fields = decoder.mapping(at)?;
    let name = fields.required(decoder, "name", |decoder, at| {
        let name = decoder.checked(at, check::label)?;
        decoder.once(at, &name, seen);
        Some(name)
    });
    let simple_cluster_storage = fields.optional(decoder, "simpleClusterStorage", |decoder, at| {
        decoder.mapping(at)?.finish(decoder);
        Some(SimpleClusterStorage {})
    });
    let host_mount = fields.optional(decoder, "hostMount", host_mount);
    let files = fields.optional(decoder, "files", |decoder, at| {
        decoder.checked(at, check::relative_path)
    });
    let secret = fields.optional(decoder, "secret", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let name = fields.required(decoder, "name", |decoder, at| {
            decoder.checked(at, check::label)
        });
        fields.finish(decoder);
        Some(SecretVolume { name: name? })
    });
    let tmpfs = fields.optional(decoder, "tmpfs", |decoder, at| {
        decoder.mapping(at)?.finish(decoder);
        Some(TmpfsVolume {})
    });
    let per_replica = fields.optional(decoder, "perReplica", Decoder::boolean);
    let reclaim = fields.optional(decoder, "reclaim", Decoder::word);
    let written: Vec<_> = SOURCES
        .into_iter()
        .filter(|name| fields.has(name))
        .collect();
    match written.as_slice() {
        [] => decoder.hard(
            Class::Missing,
            fields.head(),
            &at.path,
            format!(
                "found no source, expected exactly one of {}",
                SOURCES.join(", ")
            ),
            Some("such as `simpleClusterStorage: {}`".to_owned()),
        ),
        [only] if *only != "simpleClusterStorage" => {
            for name in ["perReplica", "reclaim"] {
                if fields.has(name) {
                    decoder.soft(
                        Class::CrossFile,
                        fields.span_of(name),
                        &fields.path_of(name),
                        format!("{name} is used only with simpleClusterStorage"),
                        Some("leave it out".to_owned()),
                    );
                }
            }
        }
        [_] => {}
        [_, second, ..] => decoder.soft(
            Class::Shape,
            fields.span_of(second),
            &fields.path_of(second),
            format!(
                "found {}, expected exactly one of them",
                written.join(" and ")
            ),
            Some("make a volume of each".to_owned()),
        ),
    }
    fields.finish(decoder);
    Some(Volume {
        name: name?,
        simple_cluster_storage,
        host_mount,
        files,
        secret,
        tmpfs,
        per_replica: per_replica.unwrap_or_default(),
        reclaim: reclaim.unwrap_or_default(),
    })
}

fn host_mount(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<HostMount> {
    let mut fields = decoder.mapping(at)?;
    let host_path = fields.required(decoder, "hostPath", |decoder, at| {
        decoder.checked(at, check::folder_path)
    });
    let ensure_type = fields.optional(decoder, "ensureType", Decoder::word);
    fields.finish(decoder);
    Some(HostMount {
        host_path: host_path?,
        ensure_type,
    })
}

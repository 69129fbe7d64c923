//! `job.kat`, `build.kat` and `namespace.kat` (RFC001-KAT 3.4, 3.5, 3.7).

use super::{Decoder, PathValue, container::amounts, workload::labels};
use crate::{check, diagnostic::Class, yaml::YamlValue};
use kat_types::resource::{
    Amounts, BuildCache, BuildDefinition, BuildSpec, Bytes, Completions, JobDefinition, JobSpec,
    Namespace, NamespaceDefaults, NamespaceMetadata, NamespaceSpec, PerNode,
};

/// A document of kind JobDefinition.
pub(crate) fn job(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<JobDefinition> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let spec = fields.required(decoder, "spec", job_spec);
    fields.finish(decoder);
    Some(JobDefinition { spec: spec? })
}

fn job_spec(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<JobSpec> {
    let mut fields = decoder.mapping(at)?;
    let schedule = fields.optional(decoder, "schedule", |decoder, at| {
        decoder.checked(at, check::cron)
    });
    let time_zone = fields.optional(decoder, "timeZone", |decoder, at| {
        decoder.checked(at, check::time_zone)
    });
    let concurrency_policy = fields.optional(decoder, "concurrencyPolicy", Decoder::word);
    let starting = fields.optional(decoder, "startingDeadlineSeconds", Decoder::integer);
    let suspend = fields.optional(decoder, "suspend", Decoder::boolean);
    let catch_up = fields.optional(decoder, "catchUp", Decoder::word);
    let jitter_seconds = fields.optional(decoder, "jitterSeconds", Decoder::integer);
    let completions = fields.optional(decoder, "completions", completions);
    let parallelism = fields.optional(decoder, "parallelism", Decoder::integer);
    let active = fields.optional(decoder, "activeDeadlineSeconds", Decoder::integer);
    let backoff_limit = fields.optional(decoder, "backoffLimit", Decoder::integer);
    let successful_history = fields.optional(decoder, "successfulHistory", Decoder::integer);
    let failed_history = fields.optional(decoder, "failedHistory", Decoder::integer);
    let ttl = fields.optional(decoder, "ttlSecondsAfterFinished", Decoder::integer);
    if fields.has("ttlSecondsAfterFinished") && fields.has("schedule") {
        decoder.soft(
            Class::CrossFile,
            fields.span_of("ttlSecondsAfterFinished"),
            &fields.path_of("ttlSecondsAfterFinished"),
            "ttlSecondsAfterFinished is used only without schedule",
            Some("write successfulHistory and failedHistory, or leave it out".to_owned()),
        );
    }
    fields.finish(decoder);
    Some(JobSpec {
        schedule,
        time_zone: time_zone.unwrap_or_else(|| "UTC".to_owned()),
        concurrency_policy: concurrency_policy.unwrap_or_default(),
        starting_deadline_seconds: starting,
        suspend: suspend.unwrap_or_default(),
        catch_up: catch_up.unwrap_or_default(),
        jitter_seconds: jitter_seconds.unwrap_or_default(),
        completions: completions.unwrap_or_default(),
        parallelism: parallelism.unwrap_or(1),
        active_deadline_seconds: active,
        backoff_limit: backoff_limit.unwrap_or(3),
        successful_history: successful_history.unwrap_or(3),
        failed_history: failed_history.unwrap_or(1),
        ttl_seconds_after_finished: ttl,
    })
}

/// A number, or `PerNode`.
fn completions(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Completions> {
    match &at.node.value {
        YamlValue::Scalar { text, .. } if text == "PerNode" => {
            Some(Completions::PerNode(PerNode::PerNode))
        }
        _ => decoder.integer(at).map(Completions::Count),
    }
}

/// A document of kind BuildDefinition.
pub(crate) fn build(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<BuildDefinition> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let spec = fields.required(decoder, "spec", build_spec);
    fields.finish(decoder);
    Some(BuildDefinition { spec: spec? })
}

fn build_spec(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<BuildSpec> {
    let mut fields = decoder.mapping(at)?;
    let path =
        |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.checked(at, check::relative_path);
    let build_context = fields.optional(decoder, "buildContext", path);
    let dockerfile_path = fields.optional(decoder, "dockerfilePath", path);
    let build_args = fields.optional(decoder, "buildArgs", |decoder, at| {
        decoder.text_map(at, check::variable, check::argument)
    });
    let target_stage = fields.optional(decoder, "targetStage", |decoder, at| {
        decoder.checked(at, check::stage)
    });
    let platform = fields.optional(decoder, "platform", |decoder, at| {
        decoder.checked(at, check::platform)
    });
    let cache = fields.optional(decoder, "cache", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let registry_path = fields.required(decoder, "registryPath", |decoder, at| {
            decoder.checked(at, check::repository)
        });
        fields.finish(decoder);
        Some(BuildCache {
            registry_path: registry_path?,
        })
    });
    fields.finish(decoder);
    Some(BuildSpec {
        build_context: build_context.unwrap_or_else(|| ".".to_owned()),
        dockerfile_path: dockerfile_path.unwrap_or_else(|| "./Dockerfile".to_owned()),
        build_args: build_args.unwrap_or_default(),
        target_stage,
        platform,
        cache,
    })
}

/// A document of kind Namespace.
pub(crate) fn namespace(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Namespace> {
    let mut fields = decoder.mapping(at)?;
    fields.get("apiVersion");
    fields.get("kind");
    let metadata = fields.required(decoder, "metadata", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let name = fields.required(decoder, "name", |decoder, at| {
            decoder.checked(at, check::namespace)
        });
        let labels = fields.optional(decoder, "labels", labels);
        fields.finish(decoder);
        Some(NamespaceMetadata {
            name: name?,
            labels: labels.unwrap_or_default(),
        })
    });
    let spec = fields.optional(decoder, "spec", namespace_spec);
    fields.finish(decoder);
    Some(Namespace {
        metadata: metadata?,
        spec,
    })
}

fn namespace_spec(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<NamespaceSpec> {
    let mut fields = decoder.mapping(at)?;
    let isolation = fields.optional(decoder, "isolation", Decoder::word);
    let allow_namespaces = fields.optional(decoder, "allowNamespaces", |decoder, at| {
        decoder.namespaces(at)
    });
    let ingress_hosts = fields.optional(decoder, "ingressHosts", |decoder, at| {
        decoder.distinct(at, check::host)
    });
    let quota = fields.optional(decoder, "quota", quota);
    let defaults = fields.optional(decoder, "defaults", |decoder, at| {
        let mut fields = decoder.mapping(at)?;
        let requests = fields.optional(decoder, "requests", amounts);
        fields.finish(decoder);
        Some(NamespaceDefaults {
            requests: requests.unwrap_or_default(),
        })
    });
    fields.finish(decoder);
    Some(NamespaceSpec {
        isolation: isolation.unwrap_or_default(),
        allow_namespaces: allow_namespaces.unwrap_or_default(),
        ingress_hosts,
        quota,
        defaults,
    })
}

fn quota(decoder: &mut Decoder<'_>, at: &PathValue<'_>) -> Option<Amounts> {
    let size = |decoder: &mut Decoder<'_>, at: &PathValue<'_>| decoder.size(at, Bytes(0));
    let mut fields = decoder.mapping(at)?;
    let quota = Amounts {
        workloads: fields.optional(decoder, "workloads", Decoder::integer),
        instances: fields.optional(decoder, "instances", Decoder::integer),
        cpu: fields.optional(decoder, "cpu", Decoder::processor),
        memory: fields.optional(decoder, "memory", size),
        volumes: fields.optional(decoder, "volumes", Decoder::integer),
        secrets: fields.optional(decoder, "secrets", Decoder::integer),
        secret_bytes: fields.optional(decoder, "secretBytes", size),
        file_bytes: fields.optional(decoder, "fileBytes", size),
        events: fields.optional(decoder, "events", Decoder::integer),
        hosts: fields.optional(decoder, "hosts", Decoder::integer),
        certificate_orders: fields.optional(decoder, "certificateOrders", Decoder::integer),
    };
    fields.finish(decoder);
    Some(quota)
}

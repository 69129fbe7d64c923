//! `job.kat`, `build.kat` and `namespace.kat` (RFC001-KAT 3.4, 3.5, 3.7).

use super::{Decoder, PathValue, workload::labels};
use crate::check;
use kat_types::resource::{
    BuildCache, BuildDefinition, BuildSpec, JobDefinition, JobSpec, Namespace, NamespaceMetadata,
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
    let completions = fields.optional(decoder, "completions", Decoder::integer);
    let parallelism = fields.optional(decoder, "parallelism", Decoder::integer);
    let active = fields.optional(decoder, "activeDeadlineSeconds", Decoder::integer);
    let backoff_limit = fields.optional(decoder, "backoffLimit", Decoder::integer);
    fields.finish(decoder);
    Some(JobSpec {
        schedule,
        time_zone: time_zone.unwrap_or_else(|| "UTC".to_owned()),
        concurrency_policy: concurrency_policy.unwrap_or_default(),
        starting_deadline_seconds: starting,
        suspend: suspend.unwrap_or_default(),
        completions: completions.unwrap_or(1),
        parallelism: parallelism.unwrap_or(1),
        active_deadline_seconds: active,
        backoff_limit: backoff_limit.unwrap_or(3),
    })
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
    fields.finish(decoder);
    Some(Namespace {
        metadata: metadata?,
    })
}

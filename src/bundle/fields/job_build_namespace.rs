//! The fields of `job.kat`, `build.kat` and `namespace.kat`.

use super::{
    API_VERSION, Field,
    FieldType::{self, Boolean, Integer, Mapping, Text, TextMap, Word},
};
use crate::kind::DocumentKind;

const fn job(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(
        DocumentKind::JobDefinition,
        path,
        value,
        example,
        description,
    )
}

const fn build(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(
        DocumentKind::BuildDefinition,
        path,
        value,
        example,
        description,
    )
}

const fn namespace(
    path: &'static str,
    value: FieldType,
    example: &'static str,
    description: &'static str,
) -> Field {
    Field::new(DocumentKind::Namespace, path, value, example, description)
}

/// Seconds of a year.
const YEAR: u64 = 31_536_000;

#[rustfmt::skip]
pub(crate) const FIELDS: &[Field] = &[
    job("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    job("kind", Word(&["JobDefinition"]), "JobDefinition", "kind of the document").required().identity(),
    job("spec", Mapping, "{}", "desired state").required(),
    job("spec.schedule", Text, "\"*/5 * * * *\"", "cron expression with five fields; without it the Job runs once when it is applied").not_yet(),
    job("spec.timeZone", Text, "Europe/Berlin", "time zone of the schedule").default("UTC").not_yet(),
    job("spec.concurrencyPolicy", Word(&["Forbid", "Allow", "Replace"]), "Allow", "what happens when a run is due while another run is active").default("Forbid").not_yet(),
    job("spec.startingDeadlineSeconds", Integer(1, YEAR), "300", "seconds after its scheduled time within which a run may start").not_yet(),
    job("spec.suspend", Boolean, "true", "start no runs").default("false").not_yet(),
    job("spec.completions", Integer(1, 10_000), "2", "instances that must succeed").default("1").not_yet(),
    job("spec.parallelism", Integer(1, 1000), "2", "instances that run at the same time").default("1").not_yet(),
    job("spec.activeDeadlineSeconds", Integer(1, YEAR), "600", "seconds after which a run is ended").not_yet(),
    job("spec.backoffLimit", Integer(0, 1000), "6", "failed instances before the Job fails").default("3").not_yet(),

    build("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    build("kind", Word(&["BuildDefinition"]), "BuildDefinition", "kind of the document").required().identity(),
    build("spec", Mapping, "{}", "desired state").required(),
    build("spec.buildContext", Text, "web", "directory, relative to the root of the repository").default(".").not_yet(),
    build("spec.dockerfilePath", Text, "./Containerfile", "Dockerfile, relative to buildContext").default("./Dockerfile").not_yet(),
    build("spec.buildArgs", TextMap, "{VERSION: \"1.2.3\"}", "build arguments").default("{}").not_yet(),
    build("spec.targetStage", Text, "runtime", "target stage of a build with several stages").not_yet(),
    build("spec.platform", Text, "linux/arm64", "operating system and architecture of the image").not_yet(),
    build("spec.cache", Mapping, "{registryPath: registry.example/cache/web}", "registry in which built images are cached").not_yet(),
    build("spec.cache.registryPath", Text, "registry.example/cache/web", "repository without a tag").required().not_yet(),

    namespace("apiVersion", Word(API_VERSION), "kat.dws.rip/v1alpha1", "version of the schema").required().identity(),
    namespace("kind", Word(&["Namespace"]), "Namespace", "kind of the document").required().identity(),
    namespace("metadata", Mapping, "{name: shop}", "name and labels").required().identity(),
    namespace("metadata.name", Text, "shop", "name: a DNS label of at most 40 characters, not `node` and no top-level domain such as `dev`").required().identity(),
    namespace("metadata.labels", TextMap, "{team: shop}", "labels of your own").default("{}"),
];

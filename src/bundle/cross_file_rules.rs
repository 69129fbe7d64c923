//! Rules across the files of a bundle (RFC001-KAT 3.4, 3.5 and 4.2).

use super::{
    Bundle, DecodeMode, carried,
    diagnostic::{Class, Diagnostic, Span},
    kind::DocumentKind,
    machine, volumes,
    yaml::{YamlNode, item_path, locate},
};
use kat_types::resource::{ConcurrencyPolicy, WorkloadSpec, WorkloadType};

/// One document of a file.
pub(crate) struct ParsedDocument<'a> {
    /// Name of the file.
    pub(crate) file: &'a str,
    /// What it is.
    pub(crate) kind: DocumentKind,
    /// Its tree.
    pub(crate) root: &'a YamlNode,
}

impl ParsedDocument<'_> {
    /// A mistake at the key of a field.
    fn at_key(&self, class: Class, path: &str, message: String) -> Diagnostic {
        let start = Span::point(self.root.span.start);
        let span = locate(self.root, path).map_or(start, |(node, key)| key.unwrap_or(node.span));
        Diagnostic::at(class, self.file, span, message).path(path)
    }

    /// A mistake at the value of a field.
    pub(crate) fn at_value(&self, class: Class, path: &str, message: String) -> Diagnostic {
        let start = Span::point(self.root.span.start);
        let span = locate(self.root, path).map_or(start, |(node, _)| node.span);
        Diagnostic::at(class, self.file, span, message).path(path)
    }
}

/// Checks that each kind but Route occurs only once.
pub(crate) fn kinds_once(documents: &[ParsedDocument<'_>], diagnostics: &mut Vec<Diagnostic>) {
    for (index, document) in documents.iter().enumerate() {
        let first = documents
            .iter()
            .take(index)
            .find(|other| other.kind == document.kind && other.kind != DocumentKind::Route);
        if let Some(first) = first {
            let message = format!(
                "a second {} (the first is in {}), expected one",
                document.kind, first.file
            );
            let found = document.at_value(Class::Duplicate, "kind", message);
            diagnostics.push(found.hint("a folder is one workload: make a folder for each"));
        }
    }
}

/// Compares the documents with each other. Of stored documents only the presence is checked.
pub(crate) fn check(
    documents: &[ParsedDocument<'_>],
    bundle: &Bundle,
    mode: DecodeMode,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let of = |kind: DocumentKind| documents.iter().find(|document| document.kind == kind);
    let Some(workload) = of(DocumentKind::Workload) else {
        return without_workload(documents, diagnostics);
    };
    if mode == DecodeMode::Stored {
        return;
    }
    if let Some(route) = of(DocumentKind::Route) {
        let message = "a Route belongs to no workload".to_owned();
        let found = route.at_value(Class::CrossFile, "kind", message);
        diagnostics.push(found.hint(
            "put it into a folder of its own; routes to this workload are `spec.ingress` of VirtualLoadBalancer.kat",
        ));
    }
    file_names(documents, diagnostics);
    let Some(value) = &bundle.workload else {
        return;
    };
    volumes::check(workload, &value.spec, diagnostics);
    carried::check(workload, &value.spec, &bundle.carried, diagnostics);
    let balancer = of(DocumentKind::VirtualLoadBalancer);
    let of_balancer = balancer.zip(bundle.load_balancer.as_ref());
    let of_balancer = of_balancer.map(|(document, balancer)| (document, &balancer.spec.ports));
    for (document, ports) in [(workload, &value.spec.ports)]
        .into_iter()
        .chain(of_balancer)
    {
        machine::check_ports(document, &value.spec, ports, diagnostics);
    }
    machine::check(workload, &value.spec, diagnostics);
    ports_once(workload, balancer, diagnostics);
    own_name(workload, balancer, bundle, diagnostics);
    let kind = value.spec.kind;
    job_definition(workload, of(DocumentKind::JobDefinition), kind, diagnostics);
    build_definition(workload, of(DocumentKind::BuildDefinition), diagnostics);
    if kind == WorkloadType::Job {
        no_ports_of_job(workload, balancer, diagnostics);
    }
    if let Some((document, job)) = of(DocumentKind::JobDefinition).zip(bundle.job.as_ref()) {
        let policy = job.spec.concurrency_policy;
        no_overlap(document, policy, &value.spec, diagnostics);
    }
    if let Some(document) = of(DocumentKind::Namespace) {
        same_namespace(document, bundle, diagnostics);
    }
}

/// Refuses documents without a Workload, unless each of them may stand alone.
fn without_workload(documents: &[ParsedDocument<'_>], diagnostics: &mut Vec<Diagnostic>) {
    let stands_alone = |document: &ParsedDocument<'_>| {
        matches!(document.kind, DocumentKind::Namespace | DocumentKind::Route)
    };
    if documents.is_empty() || !documents.iter().all(stands_alone) {
        let message = "no file holds a Workload, which every folder needs";
        let file = DocumentKind::Workload.file();
        diagnostics.push(
            Diagnostic::of_file(Class::Missing, file, message)
                .hint("write a workload.kat with `kind: Workload`"),
        );
    }
}

/// Checks that a Job has a JobDefinition, and that nothing else has one.
fn job_definition(
    workload: &ParsedDocument<'_>,
    job: Option<&ParsedDocument<'_>>,
    kind: WorkloadType,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let is_job = kind == WorkloadType::Job;
    let kind = match kind {
        WorkloadType::Service => "Service",
        WorkloadType::Job => "Job",
        WorkloadType::DaemonService => "DaemonService",
    };
    if is_job && job.is_none() {
        let message = "type is Job, and no file holds a JobDefinition".to_owned();
        let found = workload.at_value(Class::CrossFile, "spec.type", message);
        diagnostics.push(found.hint("add a job.kat with `kind: JobDefinition`"));
    }
    if let Some(job) = job.filter(|_| !is_job) {
        let message =
            format!("a JobDefinition is only for type Job, the workload's type is {kind}");
        let found = job.at_value(Class::CrossFile, "kind", message);
        diagnostics.push(found.hint("leave job.kat out, or write `type: Job`"));
    }
}

/// Refuses runs that overlap for a Job with one instance at a time.
fn no_overlap(
    job: &ParsedDocument<'_>,
    policy: ConcurrencyPolicy,
    spec: &WorkloadSpec,
    diagnostics: &mut Vec<Diagnostic>,
) {
    if policy != ConcurrencyPolicy::Allow {
        return;
    }
    let (why, hint) = if spec.writes_data() {
        (
            "writes to a volume that keeps its data",
            "write Forbid or Replace, or mount the volume with `readOnly: true`",
        )
    } else if spec.together().has_common_things() {
        (
            "uses devices, groups or the network of its machine",
            "write Forbid or Replace",
        )
    } else {
        return;
    };
    let message = format!("the Job {why}, so its runs can't overlap, expected Forbid or Replace");
    let found = job.at_value(Class::CrossFile, "spec.concurrencyPolicy", message);
    diagnostics.push(found.hint(hint));
}

/// Checks that a git source has a BuildDefinition, and that an image has none.
fn build_definition(
    workload: &ParsedDocument<'_>,
    build: Option<&ParsedDocument<'_>>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let git = locate(workload.root, "spec.source.git").is_some();
    if git && build.is_none() {
        let message = "the source is git, and no file holds a BuildDefinition".to_owned();
        let found = workload.at_key(Class::CrossFile, "spec.source.git", message);
        diagnostics.push(found.hint("add a build.kat with `kind: BuildDefinition`"));
    }
    if let Some(build) = build.filter(|_| !git) {
        let message =
            "a BuildDefinition is only for a git source, the workload has an image".to_owned();
        let found = build.at_value(Class::CrossFile, "kind", message);
        diagnostics.push(found.hint("leave build.kat out, or write `source: {git: ...}`"));
    }
}

/// Refuses the ports of a Job, and the file for them.
fn no_ports_of_job(
    workload: &ParsedDocument<'_>,
    balancer: Option<&ParsedDocument<'_>>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    if let Some(balancer) = balancer {
        let message =
            "a VirtualLoadBalancer is for Service and DaemonService, the workload's type is Job";
        let found = balancer.at_value(Class::CrossFile, "kind", message.to_owned());
        diagnostics.push(found.hint("leave VirtualLoadBalancer.kat out"));
    }
    if locate(workload.root, "spec.ports").is_some() {
        let message = "ports are for Service and DaemonService, the workload's type is Job";
        let found = workload.at_key(Class::CrossFile, "spec.ports", message.to_owned());
        diagnostics.push(found.hint("leave ports out"));
    }
}

/// Checks that the Namespace is the one that the workload lies in.
fn same_namespace(
    document: &ParsedDocument<'_>,
    bundle: &Bundle,
    diagnostics: &mut Vec<Diagnostic>,
) {
    if let (Some(value), Some(namespace)) = (&bundle.workload, &bundle.namespace)
        && namespace.metadata.name != value.metadata.namespace
    {
        let message = format!(
            "the namespace is `{}`, the workload lies in `{}`",
            namespace.metadata.name, value.metadata.namespace
        );
        let found = document.at_value(Class::CrossFile, "metadata.name", message);
        diagnostics.push(found.hint("write the same name in both, or apply the namespace alone"));
    }
}

/// Refuses the workload's own name where the name of another one is expected.
fn own_name(
    workload: &ParsedDocument<'_>,
    balancer: Option<&ParsedDocument<'_>>,
    bundle: &Bundle,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let Some(value) = &bundle.workload else {
        return;
    };
    let own = &value.metadata.name;
    for (index, after) in value.spec.start_after.iter().enumerate() {
        if after.workload == *own {
            let path = format!("{}.workload", item_path("spec.startAfter", index));
            let message = format!("`{own}` can't start after itself");
            diagnostics.push(workload.at_value(Class::CrossFile, &path, message));
        }
    }
    let Some((document, balancer)) = balancer.zip(bundle.load_balancer.as_ref()) else {
        return;
    };
    for (index, alias) in balancer.spec.aliases.iter().enumerate() {
        if alias == own {
            let path = item_path("spec.aliases", index);
            let message = format!("`{own}` is the name of the workload, expected a further name");
            let found = document.at_value(Class::CrossFile, &path, message);
            diagnostics.push(found.hint("leave it out"));
        }
    }
}

/// Checks that one of the two files that may have the ports has them.
fn ports_once(
    workload: &ParsedDocument<'_>,
    balancer: Option<&ParsedDocument<'_>>,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let Some(balancer) = balancer else { return };
    let place = |document: &ParsedDocument<'_>| {
        let (node, key) = locate(document.root, "spec.ports")?;
        Some(key.unwrap_or(node.span).start.line)
    };
    if place(workload).is_none() {
        return;
    }
    if let Some(line) = place(balancer) {
        let message = format!(
            "ports are written in {}, line {line}, too, expected in one of the two files",
            balancer.file
        );
        let found = workload.at_key(Class::CrossFile, "spec.ports", message);
        diagnostics.push(found.hint("leave them out of one file"));
    }
}

/// Checks that a file with the usual name of a kind contains that kind.
fn file_names(documents: &[ParsedDocument<'_>], diagnostics: &mut Vec<Diagnostic>) {
    for document in documents {
        let usual = DocumentKind::IN_BUNDLE
            .into_iter()
            .find(|kind| kind.file() == document.file);
        let Some(usual) = usual else { continue };
        let holds = documents
            .iter()
            .any(|other| other.file == document.file && other.kind == usual);
        if !holds {
            let message = format!(
                "{} holds a {}, expected a {usual}",
                document.file, document.kind
            );
            let found = document.at_value(Class::CrossFile, "kind", message);
            diagnostics.push(found.hint(format!("rename it to {}", document.kind.file())));
        }
    }
}

//! Fields that may be left out, and ports in `workload.kat`.

use super::*;
use kat_types::{
    assignment::needed_schema,
    resource::{RestartCondition, WorkloadType},
};

const HEAD: &str = "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  source: {image: registry.example/web:1}\n";

fn main_file(rest: &str) -> SourceFile {
    SourceFile {
        name: "workload.kat".to_owned(),
        text: format!("{HEAD}{rest}"),
    }
}

fn balancer_file(spec: &str) -> SourceFile {
    SourceFile {
        name: "VirtualLoadBalancer.kat".to_owned(),
        text: format!("apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n{spec}"),
    }
}

fn job_file() -> SourceFile {
    file("job.kat", &least(DocumentKind::JobDefinition))
}

fn refused(files: &[SourceFile]) -> String {
    without_hints(&parse(files, DecodeMode::Strict).unwrap_err())
}

fn without_hints(found: &[Diagnostic]) -> String {
    let mut found = found.to_vec();
    found.iter_mut().for_each(|found| found.hint = None);
    lines(&found)
}

#[test]
fn six_lines_are_a_web_application() {
    let files = [main_file("  ports: [{containerPort: 8080}]\n")];
    assert_eq!(files[0].text.lines().count(), 6);
    let bundle = parsed(&files);
    let spec = bundle.workload.unwrap().spec;
    assert_eq!((spec.kind, spec.replicas), (WorkloadType::Service, Some(1)));
    assert_eq!(spec.restart_policy.condition, RestartCondition::Always);
    let container = spec.container;
    let seconds = (container.drain_seconds, container.termination_grace_seconds);
    assert_eq!(seconds, (5, 10));
    let balancer = bundle.load_balancer.unwrap().spec;
    assert_eq!(balancer.ports[0].container_port, 8080);
    assert!(!balancer.headless);
}

#[test]
fn a_job_is_not_restarted_unless_its_file_says_so() {
    let job = |rest: &str| {
        let files = [main_file(&format!("  type: Job\n{rest}")), job_file()];
        parsed(&files).workload.unwrap().spec
    };
    assert_eq!(job("").restart_policy.condition, RestartCondition::Never);
    assert_eq!(job("").replicas, None);
    let counted = job("  restartPolicy: MaxCount\n").restart_policy;
    assert_eq!(counted.condition, RestartCondition::MaxCount);
    assert_eq!((counted.max_restarts, counted.reset_seconds), (5, 3600));
    let files = [
        main_file("  type: Job\n  restartPolicy: Always\n"),
        job_file(),
    ];
    assert_eq!(
        refused(&files),
        "[cross-file] workload.kat:7:3: spec.restartPolicy: a Job ends, and its restart policy can't be Always"
    );
}

#[test]
fn a_restart_policy_that_is_no_condition_is_refused() {
    assert_eq!(
        refused(&[main_file("  restartPolicy: always\n")]),
        "[range] workload.kat:6:18: spec.restartPolicy: found `always`, expected one of Never, MaxCount, Always"
    );
}

#[test]
fn ports_in_both_files_are_refused_with_both_places() {
    let files = [
        main_file("  ports: [{containerPort: 8080}]\n"),
        balancer_file("  headless: true\n  ports: [{containerPort: 8080}]\n"),
    ];
    assert_eq!(
        refused(&files),
        "[cross-file] workload.kat:6:3: spec.ports: ports are written in VirtualLoadBalancer.kat, line 5, too, expected in one of the two files"
    );
}

#[test]
fn ports_of_a_job_are_refused() {
    let files = [
        main_file("  type: Job\n  ports: [{containerPort: 8080}]\n"),
        job_file(),
    ];
    assert_eq!(
        refused(&files),
        "[cross-file] workload.kat:7:3: spec.ports: ports are for Service and DaemonService, the workload's type is Job"
    );
}

#[test]
fn ports_in_workload_kat_are_checked_as_those_of_the_other_file() {
    let found = refused(&[main_file(
        "  ports:\n    - {name: web, containerPort: 0}\n    - {name: web, containerPort: 80, protocol: tcp, hostPort: 70000}\n",
    )]);
    for expected in [
        "spec.ports[0].containerPort: found 0, expected a whole number from 1 to 65535",
        "spec.ports[1].name: `web` is written twice",
        "spec.ports[1].protocol: found `tcp`, expected one of TCP, UDP",
        "spec.ports[1].hostPort: found 70000, expected a whole number from 1 to 65535",
    ] {
        assert!(found.contains(expected), "{expected} is not in {found}");
    }
    let found = refused(&[main_file(
        "  container: {hostNetwork: true}\n  ports: [{containerPort: 80, hostPort: 80}]\n",
    )]);
    assert!(
        found.contains(
            "workload.kat:7:41: spec.ports[0].hostPort: the program has the machine's ports"
        ),
        "{found}"
    );
}

#[test]
fn a_health_check_refers_to_ports_of_workload_kat() {
    let check = |port: &str| balancer_file(&format!("  healthCheck: {{tcp: {{port: {port}}}}}\n"));
    let main = main_file("  ports: [{name: web, containerPort: 8080}]\n");
    parsed(&[main.clone(), check("web")]);
    let found = parse(&[main, check("db")], DecodeMode::Strict).unwrap_err();
    assert_eq!(
        without_hints(&found),
        "[cross-file] VirtualLoadBalancer.kat:4:29: spec.healthCheck.tcp.port: no port of spec.ports is `db`"
    );
    assert_eq!(found[0].hint.as_deref(), Some("the ports are web (8080)"));
    let found = parse(&[main_file(""), check("db")], DecodeMode::Strict).unwrap_err();
    assert_eq!(
        found[0].hint.as_deref(),
        Some("neither this file nor workload.kat has spec.ports")
    );
}

#[test]
fn a_load_balancer_needs_no_ports() {
    let bundle = parsed(&[main_file(""), balancer_file("  headless: false\n")]);
    assert_eq!(bundle.load_balancer.unwrap().spec.ports, []);
    assert!(
        refused(&[main_file(""), balancer_file("  ports: []\n")])
            .contains("found no port, expected at least one")
    );
}

/// The need of a workload's files, as the version and the text.
fn need(files: &[SourceFile]) -> Option<(u32, String, String)> {
    let need = needed_reader(files)?;
    Some((need.version, need.why, need.instead))
}

#[test]
fn files_that_an_earlier_version_reads_need_no_newer_one() {
    let full = [
        file("workload.kat", &workload()),
        file(
            "VirtualLoadBalancer.kat",
            &least(DocumentKind::VirtualLoadBalancer),
        ),
    ];
    assert_eq!(need(&full), None);
    // Only a Service had to have `replicas`.
    let mut job = workload();
    job["spec"]["type"] = json!("Job");
    job["spec"].as_object_mut().unwrap().remove("replicas");
    assert_eq!(need(&[file("workload.kat", &job)]), None);
}

#[test]
fn a_daemon_needs_the_reader_that_runs_it() {
    let daemon = FULL.replace("type: Service", "type: DaemonService");
    let (version, why, instead) = need(&[main_file(&daemon)]).unwrap();
    assert_eq!(version, 5);
    assert_eq!(why, "workload.kat:6:3: `spec.type` is DaemonService");
    assert!(instead.contains("runs no DaemonService"), "{instead}");
}

#[test]
fn values_of_a_job_need_the_reader_that_acts_on_them() {
    let job = |spec: Value| {
        let mut document = least(DocumentKind::JobDefinition);
        document["spec"] = spec;
        let mut workload = workload();
        workload["spec"]["type"] = json!("Job");
        need(&[file("workload.kat", &workload), file("job.kat", &document)]).unwrap()
    };
    for (spec, what, instead) in [
        (
            json!({"completions": "PerNode"}),
            "`spec.completions` is PerNode",
            "write the number of instances that must succeed",
        ),
        (
            json!({"concurrencyPolicy": "Allow"}),
            "`spec.concurrencyPolicy` is Allow",
            "write Forbid or Replace",
        ),
    ] {
        let (version, why, how) = job(spec);
        assert_eq!((version, how.as_str()), (7, instead));
        assert!(why.starts_with("job.kat:") && why.ends_with(what), "{why}");
    }
    for spec in [
        json!({"completions": 3, "concurrencyPolicy": "Replace"}),
        json!({}),
    ] {
        assert_eq!(job(spec).0, 4);
    }
}

/// A file that the first reader takes.
const FULL: &str =
    "  type: Service\n  replicas: 1\n  restartPolicy: {condition: Always}\n  container: {}\n";

#[test]
fn each_new_form_needs_the_reader_that_knows_it() {
    let without = |left_out: &str| {
        let lines = FULL.lines().filter(|line| !line.contains(left_out));
        let lines: Vec<_> = lines.collect();
        [main_file(&format!("{}\n", lines.join("\n")))]
    };
    assert_eq!(need(&without("nothing")), None);
    for (field, instead) in [
        ("type", "write `type: Service`"),
        ("replicas", "write `replicas: 1`"),
        ("restartPolicy", "write `restartPolicy`"),
        ("container", "write `container: {}`"),
    ] {
        let why = format!("workload.kat:4:1: `spec.{field}` is left out");
        let expected = Some((2, why, instead.to_owned()));
        assert_eq!(need(&without(&format!("{field}:"))), expected);
    }
    let word = FULL.replace("{condition: Always}", "Always");
    assert_eq!(
        need(&[main_file(&word)]),
        Some((
            2,
            "workload.kat:8:3: `spec.restartPolicy` is a word".to_owned(),
            "write `restartPolicy: {condition: Always}`".to_owned()
        ))
    );
    let ports = format!("{FULL}  ports: [{{containerPort: 80}}]\n");
    assert_eq!(
        need(&[main_file(&ports)]),
        Some((
            2,
            "workload.kat:10:3: `spec.ports` is written".to_owned(),
            "write the ports in VirtualLoadBalancer.kat".to_owned()
        ))
    );
    let balancer = balancer_file("  headless: true\n");
    assert_eq!(
        need(&[main_file(FULL), balancer]),
        Some((
            2,
            "VirtualLoadBalancer.kat:3:1: `spec.ports` is left out".to_owned(),
            "write `ports`".to_owned()
        ))
    );
}

#[test]
fn a_score_for_memory_needs_a_leader_and_an_agent_that_know_it() {
    let container = "  container: {}\n";
    let of_main = FULL.replace(container, "  container: {oomScoreAdjust: 500}\n");
    let of_sidecar = format!("{FULL}  sidecars: [{{name: proxy, oomScoreAdjust: 500}}]\n");
    for (file, place) in [(of_main, "9:15"), (of_sidecar, "10:28")] {
        let why = format!("workload.kat:{place}: `spec.container.oomScoreAdjust` is written");
        let expected = (6, why, "leave oomScoreAdjust out".to_owned());
        let files = [main_file(&file)];
        assert_eq!(need(&files), Some(expected));
        let spec = parsed(&files).workload.unwrap().spec;
        assert_eq!(needed_schema(&spec, None), 10);
    }
}

#[test]
fn a_gpu_needs_a_leader_and_an_agent_that_know_it() {
    let container = "  container: {}\n";
    let of_main = FULL.replace(container, "  container: {resources: {gpu: {}}}\n");
    let of_sidecar = format!("{FULL}  sidecars: [{{name: proxy, resources: {{gpu: {{}}}}}}]\n");
    for file in [of_main, of_sidecar] {
        let files = [main_file(&file)];
        let (reader, why, _) = need(&files).unwrap();
        assert_eq!(reader, 7);
        assert!(why.contains("`spec.container.resources.gpu`"), "{why}");
        let spec = parsed(&files).workload.unwrap().spec;
        assert_eq!(needed_schema(&spec, None), 12);
    }
}

#[test]
fn routes_need_the_third_reader() {
    let balancer = balancer_file(
        "  ports: [{containerPort: 80}]\n  ingress: [{host: a.lan, servicePort: 80}]\n",
    );
    let needed = kat_bundle::needed_reader(&[main_file(FULL), balancer]).unwrap();
    assert_eq!(needed.version, 3);
    assert_eq!(needed.instead, "leave ingress out");
}

#[test]
fn further_names_and_addresses_of_host_ports_need_the_seventh_reader() {
    let aliases = balancer_file("  ports: [{containerPort: 80}]\n  aliases: [mysql]\n");
    let needed = kat_bundle::needed_reader(&[main_file(FULL), aliases]).unwrap();
    assert_eq!(needed.version, 7);
    assert_eq!(needed.instead, "leave aliases out");
    let port = "  ports: [{containerPort: 80, hostPort: 80, allowSources: [192.0.2.1]}]\n";
    let needed = kat_bundle::needed_reader(&[main_file(FULL), balancer_file(port)]).unwrap();
    assert_eq!(needed.version, 7);
    assert_eq!(needed.what, "`spec.ports[].allowSources` is written");
    let of_workload = format!("{FULL}{port}");
    let needed = kat_bundle::needed_reader(&[main_file(&of_workload)]).unwrap();
    assert_eq!(needed.version, 7);
    // The other value of the field is what every version does.
    for (on, version) in [("ingress", Some(7)), ("instances", None)] {
        let port = format!("  ports: [{{containerPort: 80, hostPort: 80, hostPortOn: {on}}}]\n");
        let files = [main_file(FULL), balancer_file(&port)];
        let needed = kat_bundle::needed_reader(&files);
        assert_eq!(
            needed.as_ref().map(|needed| needed.version),
            version,
            "{on}"
        );
        if let Some(needed) = needed {
            assert_eq!(needed.what, "`spec.ports[].hostPortOn` is ingress");
        }
    }
}

/// A lower version than before would tell other leaders that this one does not read what they store.
#[test]
fn the_version_of_the_reader_is_the_highest_of_the_table() {
    let highest = kat_bundle::fields::all()
        .map(|field| field.since.max(field.optional_since))
        .max();
    // `completions: PerNode` is a value, which the table does not have.
    assert_eq!(highest.max(Some(7)), Some(manifest_reader()));
    assert_eq!(manifest_reader(), 7);
}

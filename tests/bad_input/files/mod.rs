//! Errors in the text of files. `§` marks the expected position and is removed before parsing.

mod conflicting_files;
mod containers;
mod fields;
mod syntax;
mod values;

use crate::over_api;
use kat_bundle::{
    Class, DecodeMode, Diagnostic, SourceFile, pack, parse, parse_cluster, read_archive,
};

const WORKLOAD: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata:
  name: web
spec:
  type: Service
  source:
    image: registry.example/web:1
  replicas: 1
  restartPolicy:
    condition: Always
  container:
    name: app
";

const BALANCER: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: VirtualLoadBalancer
spec:
  ports:
    - {name: web, containerPort: 8080}
";

const JOB: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: JobDefinition
spec: {}
";

const BUILD: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: BuildDefinition
spec: {}
";

const NAMESPACE: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: Namespace
metadata:
  name: default
";

const CLUSTER: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: ClusterConfiguration
metadata:
  name: home
spec:
  clusterCIDR: 10.100.0.0/16
  serviceCIDR: 10.200.0.0/16
";

type File = (&'static str, String);

/// The base text with one place changed.
fn change(base: &str, from: &str, to: &str) -> String {
    assert_eq!(
        base.matches(from).count(),
        1,
        "`{from}` is not once in the base"
    );
    base.replace(from, to)
}

fn workload(from: &str, to: &str) -> File {
    ("workload.kat", change(WORKLOAD, from, to))
}

/// `workload.kat` with additional fields of the container.
fn container(fields: &str) -> File {
    let fields: String = fields.lines().map(|line| format!("    {line}\n")).collect();
    ("workload.kat", change(WORKLOAD, "    name: app\n", &fields))
}

fn balancer(from: &str, to: &str) -> File {
    ("VirtualLoadBalancer.kat", change(BALANCER, from, to))
}

/// `VirtualLoadBalancer.kat` with additional fields of its `spec`.
fn balanced(fields: &str) -> File {
    let fields: String = fields.lines().map(|line| format!("  {line}\n")).collect();
    ("VirtualLoadBalancer.kat", format!("{BALANCER}{fields}"))
}

fn good() -> File {
    ("workload.kat", WORKLOAD.to_owned())
}

/// A workload of type Job, which may have hardly any other fields.
fn job_workload() -> File {
    let text = change(WORKLOAD, "type: Service", "type: §Job");
    ("workload.kat", change(&text, "Always", "Never"))
}

fn git_workload() -> File {
    let image = "image: registry.example/web:1";
    workload(image, "§git: {repository: \"https://example.org/web.git\"}")
}

fn plain(file: File) -> File {
    (file.0, file.1.replace('§', ""))
}

/// Removes `§` and returns the file and position where it was.
fn unmark(files: &[File]) -> (Vec<SourceFile>, Option<(String, u32, u32)>) {
    let mut place = None;
    let mut sources = Vec::new();
    for (name, text) in files {
        if let Some(index) = text.find('§') {
            let before = &text[..index];
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
            place = Some((
                (*name).to_owned(),
                u32::try_from(line).unwrap(),
                u32::try_from(column).unwrap(),
            ));
        }
        sources.push(SourceFile {
            name: (*name).to_owned(),
            text: text.replace('§', ""),
        });
    }
    (sources, place)
}

fn lines(found: &[Diagnostic]) -> String {
    let lines: Vec<_> = found
        .iter()
        .map(|found| format!("[{}] {found}", found.class))
        .collect();
    lines.join("\n")
}

/// Expects exactly one error with this class, position and path, and these words in its message or
/// hint.
#[track_caller]
fn only(class: Class, path: &str, words: &[&str], files: &[File]) {
    let (sources, place) = unmark(files);
    let found = match parse(&sources, DecodeMode::Strict) {
        Ok(_) => panic!("accepted: {sources:?}"),
        Err(found) => found,
    };
    check(class, path, words, place, &found);
    // Some names cannot be packed, and for some folders only the archive is wrong.
    if let Ok(archive) = pack(&sources) {
        let found = read_archive(&archive).map_or_else(|found| found, |_| found);
        over_api::refused(archive, &found);
    }
}

#[track_caller]
fn only_cluster(class: Class, path: &str, words: &[&str], text: &str) {
    let (sources, place) = unmark(&[("cluster.kat", text.to_owned())]);
    let found = parse_cluster(&sources[0].text, "cluster.kat").expect_err("accepted");
    check(class, path, words, place, &found);
}

#[track_caller]
fn check(
    class: Class,
    path: &str,
    words: &[&str],
    place: Option<(String, u32, u32)>,
    found: &[Diagnostic],
) {
    assert_eq!(found.len(), 1, "{}", lines(found));
    let one = &found[0];
    assert_eq!(one.class, class, "{one}");
    assert_eq!(one.path, path, "{one}");
    if let Some((file, line, column)) = place {
        assert_eq!(
            (&one.file, one.line, one.column),
            (&file, line, column),
            "{one}"
        );
    } else {
        assert_eq!(one.line, 0, "{one}");
    }
    let text = one.to_string();
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(!one.message.ends_with('.'), "{text}");
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn the_bases_are_good() {
    let all = [
        vec![good()],
        vec![good(), ("VirtualLoadBalancer.kat", BALANCER.to_owned())],
        vec![plain(job_workload()), ("job.kat", JOB.to_owned())],
        vec![plain(git_workload()), ("build.kat", BUILD.to_owned())],
        vec![good(), ("namespace.kat", NAMESPACE.to_owned())],
        vec![("namespace.kat", NAMESPACE.to_owned())],
    ];
    for files in all {
        let (sources, _) = unmark(&files);
        if let Err(found) = parse(&sources, DecodeMode::Strict) {
            panic!("{sources:?}: {}", lines(&found));
        }
    }
    assert!(parse_cluster(CLUSTER, "cluster.kat").is_ok());
}

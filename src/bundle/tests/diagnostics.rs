//! Complete diagnostics, as users read them.

use super::*;

fn source(name: &str, text: &str) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        text: text.to_owned(),
    }
}

fn shown(files: &[SourceFile], found: &[Diagnostic]) -> String {
    let text = |name: &str| {
        let file = files.iter().find(|file| file.name == name);
        file.map_or("", |file| file.text.as_str())
    };
    let parts: Vec<_> = found
        .iter()
        .map(|found| render(found, text(&found.file), false))
        .collect();
    parts.join("\n\n")
}

const MANY: &str = "\
apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata:
  name: My_Web
spec:
  type: Servise
  source:
    image: registry.example/Web:1
    git: {repository: file:///etc}
  replica: 3
  restartPolicy:
    condition: always
    maxRestarts: \"5\"
  container:
    env:
      - {name: KEY, value: hunter2}
      - {name: KEY, value: [hunter2]}
      - {name: OTHER=hunter2, value: x}
    terminationGraceSeconds: 10s
    init: yes
    resources:
      limits: {memory: 64}
    volumeMounts:
      - {name: data, mountPath: data}
    stopSignal: TERM
";

#[test]
fn words_of_compose_are_answered_with_the_fields_of_kat() {
    let text = "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  \
                source: {image: registry.example/web:1}\n  restart: always\n  container:\n    \
                environment: {A: b}\n    cmd: [x]\n";
    let found = parse(&[source("workload.kat", text)], DecodeMode::Strict).unwrap_err();
    let hints: Vec<_> = found.iter().filter_map(|one| one.hint.as_deref()).collect();
    for meant in ["restartPolicy", "env", "command"] {
        let hint = format!("did you mean `{meant}`?");
        assert!(hints.contains(&&*hint), "{hints:?}");
    }
    // In another place than the field's.
    let text = "apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  \
                source: {image: registry.example/web:1}\n  environment: {A: b}\n";
    let found = parse(&[source("workload.kat", text)], DecodeMode::Strict).unwrap_err();
    let hint = found[0].hint.as_deref();
    assert_eq!(hint, Some("did you mean `spec.container.env`?"));
}

#[test]
fn all_mistakes_at_once() {
    let files = [source("workload.kat", MANY)];
    let found = parse(&files, DecodeMode::Strict).unwrap_err();
    insta::assert_snapshot!(lines(&found));
    assert!(
        !lines(&found).contains("hunter2"),
        "a value of a variable is shown"
    );
}

#[test]
fn with_an_excerpt() {
    let files = [source("workload.kat", MANY)];
    let found = parse(&files, DecodeMode::Strict).unwrap_err();
    insta::assert_snapshot!(shown(&files, &found[..6]));
}

#[test]
fn what_is_written_as_in_a_compose_file_gets_the_right_form_as_a_hint() {
    let hint = |spec: Value| {
        let mut document = workload();
        for (name, value) in spec.as_object().unwrap() {
            document["spec"][name] = value.clone();
        }
        let files = [file("workload.kat", &document)];
        let found = parse(&files, DecodeMode::Strict).unwrap_err();
        assert_eq!(found.len(), 1, "{}", lines(&found));
        found[0].hint.clone().unwrap_or_default()
    };
    let variable = "write each variable as `- {name: NAME, value: \"VALUE\"}`";
    assert_eq!(hint(json!({"container": {"env": {"A": "b"}}})), variable);
    assert_eq!(hint(json!({"container": {"env": ["A=b"]}})), variable);
    for (written, expected) in [
        ("80:8080", "write `- {containerPort: 8080, hostPort: 80}`"),
        ("8080", "write `- {containerPort: 8080}`"),
        (
            "127.0.0.1:53:5353/udp",
            "write `- {containerPort: 5353, hostPort: 53, protocol: UDP}`",
        ),
        (
            "3000-3005",
            "write each port as `- {containerPort: 8080, hostPort: 80}`",
        ),
    ] {
        assert_eq!(hint(json!({"ports": [written]})), expected, "{written}");
    }
    // Another list that is written as a mapping keeps its own hint.
    let mounts = json!({"container": {"volumeMounts": {"name": "data"}}});
    assert_eq!(hint(mounts), "begin each item with `- `");
}

#[test]
fn not_yet_says_where_and_what_helps() {
    let files = [
        source(
            "workload.kat",
            "\
apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata: {name: web}
spec:
  type: Service
  source: {image: registry.example/web:1}
  replicas: 1
  spread: {topologyKey: zone}
  restartPolicy: {condition: Always}
  nodeSelector: {}
  container:
    drainSeconds: 30
    hostNetwork: false
    resources: {gpu: {driver: any}}
    env:
      - name: PASSWORD
        valueFrom: {secret: {name: db, key: PASSWORD}}
    volumeMounts:
      - {name: data, mountPath: /data}
  volumes:
    - {name: data, simpleClusterStorage: {}}
",
        ),
        source(
            "VirtualLoadBalancer.kat",
            "\
apiVersion: kat.dws.rip/v1alpha1
kind: VirtualLoadBalancer
spec:
  headless: false
  aliases: [mysql]
  ports:
    - {name: web, containerPort: 8080, hostPort: 80}
  healthCheck:
    http: {path: /, port: web}
",
        ),
    ];
    let found = not_yet(&parsed(&files));
    insta::assert_snapshot!(lines(&found));
}

#[test]
fn a_profile_of_seccomp_is_unconfined_or_lies_where_the_machines_root_put_it() {
    let found = |profile: &str| {
        let text = format!(
            "\
apiVersion: kat.dws.rip/v1alpha1
kind: Workload
metadata: {{name: web}}
spec:
  type: Service
  source: {{image: registry.example/web:1}}
  replicas: 1
  restartPolicy: {{condition: Always}}
  container:
    quadlet: {{SeccompProfile: {profile}}}
"
        );
        let files = [source("workload.kat", &text)];
        parse(&files, DecodeMode::Strict).map_or_else(|found| lines(&found), |_| String::new())
    };
    assert_eq!(found("unconfined"), "");
    assert_eq!(found("/usr/share/containers/own.json"), "");
    for profile in ["/srv/own.json", "own.json", "/usr/share/containers/../own"] {
        let said = found(profile);
        let expected =
            format!("`{profile}` is neither a file below /usr/share/containers nor `unconfined`");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_namespace_stands_alone() {
    let text = "apiVersion: kat.dws.rip/v1alpha1\nkind: Namespace\nmetadata: {name: shop}\n";
    let bundle = parsed(&[source("namespace.kat", text)]);
    assert!(bundle.workload.is_none());
    assert_eq!(bundle.namespace.unwrap().metadata.name, "shop");
}

#[test]
fn a_list_is_no_spec_of_any_kind_and_its_place_is_named() {
    let kinds = DocumentKind::ALL.into_iter();
    for kind in kinds.filter(|kind| *kind != DocumentKind::AgentConfig) {
        let text = format!(
            "apiVersion: kat.dws.rip/v1alpha1\nkind: {kind}\nmetadata: {{name: web}}\nspec: []\n"
        );
        let found = match kind {
            DocumentKind::ClusterConfiguration => parse_cluster(&text, kind.file()).map(drop),
            _ => parse(&[source(kind.file(), &text)], DecodeMode::Strict).map(drop),
        };
        let found = found.unwrap_err();
        let spec = found.iter().find(|found| found.path == "spec");
        let spec = spec.unwrap_or_else(|| panic!("{kind}: {}", lines(&found)));
        assert_eq!((spec.line, spec.column), (4, 7), "{kind}");
        let expected = "found a list, expected a mapping of fields";
        assert_eq!(spec.message, expected, "{kind}");
    }
}

#[test]
fn several_documents_lie_in_one_file() {
    let text = serde_json::to_string_pretty(&workload()).unwrap();
    let balancer = "apiVersion: kat.dws.rip/v1alpha1\nkind: VirtualLoadBalancer\nspec:\n  ports:\n    - containerPort: x\n";
    let before = format!("---\n{text}\n---\n{balancer}");
    let found = parse(&[source("workload.kat", &before)], DecodeMode::Strict).unwrap_err();
    let line = before
        .lines()
        .position(|line| line.contains(": x"))
        .unwrap()
        + 1;
    assert_eq!(found.len(), 1, "{}", lines(&found));
    assert_eq!(usize::try_from(found[0].line).unwrap(), line);
    let good = before.replace(": x", ": 80");
    let bundle = parsed(&[source("workload.kat", &good)]);
    assert_eq!(
        bundle.load_balancer.unwrap().spec.ports[0].container_port,
        80
    );
}

#[test]
fn what_an_older_version_stored_is_read() {
    // The stored bundle has values outside today's ranges, unknown fields and a missing file.
    let text = "\
apiVersion: kat.dws.rip/v1alpha0
kind: Workload
metadata: {name: web, later: 1}
spec:
  type: Job
  source: {image: registry.example/web:1, mirror: x}
  replicas: 100000
  restartPolicy: {condition: Always}
  container: {stopSignal: TERM, env: [{name: a-b, value: x}]}
";
    let files = [source("workload.kat", text)];
    assert!(parse(&files, DecodeMode::Strict).unwrap_err().len() >= 6);
    let bundle = parse(&files, DecodeMode::Stored).unwrap();
    assert_eq!(bundle.workload.unwrap().spec.replicas, Some(100_000));
    let later = "apiVersion: kat.dws.rip/v1\nkind: Later\nspec: {}\n";
    let with_more = [files[0].clone(), source("later.kat", later)];
    assert!(
        parse(&with_more, DecodeMode::Stored)
            .unwrap()
            .workload
            .is_some()
    );
    // A value that the type cannot hold is still an error.
    let broken = text.replace("100000", "many");
    assert!(parse(&[source("workload.kat", &broken)], DecodeMode::Stored).is_err());
}

#[test]
fn an_empty_agent_file_has_the_defaults() {
    for text in ["", "# nothing\n", "---\n"] {
        assert_eq!(
            parse_agent_config(text, "agent.yaml"),
            Ok(Default::default()),
            "{text:?}"
        );
    }
    let found = parse_agent_config(
        "upstreamDNS: [dns.example]\nwiregardPort: 1\n",
        "agent.yaml",
    );
    insta::assert_snapshot!(lines(&found.unwrap_err()));
}

#[test]
fn cluster_settings_are_checked_together() {
    let text = "\
apiVersion: kat.dws.rip/v1alpha1
kind: ClusterConfiguration
metadata: {name: home}
spec:
  clusterCIDR: 10.100.3.0/16
  serviceCIDR: 10.100.128.0/17
  nodeSubnetBits: 15
  agentPort: 9115
  agentTickSeconds: 30
  mtu: 100
";
    let found = parse_cluster(text, "cluster.kat").unwrap_err();
    insta::assert_snapshot!(lines(&found));
    let stored = parse_cluster_as(text, "cluster.kat", DecodeMode::Stored).unwrap();
    assert_eq!(stored.spec.cluster_cidr.to_string(), "10.100.0.0/16");
}

#[test]
fn a_list_of_mistakes_ends() {
    let many: String = (0..5000)
        .map(|index| format!("  replica{index}: 1\n"))
        .collect();
    let text = format!("apiVersion: kat.dws.rip/v1alpha1\nkind: Workload\nspec:\n{many}");
    let found = parse(&[source("workload.kat", &text)], DecodeMode::Strict).unwrap_err();
    assert_eq!(found.len(), 101);
    assert!(
        found
            .iter()
            .any(|found| found.message.contains("more mistakes"))
    );
}

/// Every file that fits the size limit is refused quickly. The bound of seconds only tells linear
/// time from quadratic time.
#[test]
fn hostile_texts_take_no_time() {
    let parts = [
        "[", "{", "- ", "? ", "a:\n", "\n", "#\n", "a: b\n", "\"", "'", "!", "&a ", "*a ", "<<: ",
        "---\n", " ", "\t", "|\n", ">", "a: {b: [", ",", ":", "a,", "x y ", "\u{e4}", "%", "\\",
        "- a: 1\n",
    ];
    for part in parts {
        for before in ["", "a: ", "a: [", "a: \"", "kind: Workload\nspec:\n  "] {
            let room = (MAX_FILE - before.len()) / part.len();
            let text = format!("{before}{}", part.repeat(room));
            let begun = std::time::Instant::now();
            let result = parse(&[source("workload.kat", &text)], DecodeMode::Strict);
            assert!(result.is_err(), "{before:?} {part:?}");
            let took = begun.elapsed();
            assert!(took.as_secs() < 10, "{before:?} {part:?} took {took:?}");
        }
    }
}

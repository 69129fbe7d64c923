//! Fields that are unknown, duplicated or missing.

use super::*;

#[test]
fn unknown_fields() {
    use Class::Unknown;
    let beside = |field: &str| workload("  replicas: 1", &format!("  replicas: 1\n  §{field}"));
    only(
        Unknown,
        "spec.restart_policy",
        &["did you mean `restartPolicy`, which is written too"],
        &[beside("restart_policy: {condition: Always}")],
    );
    only(
        Unknown,
        "spec.tolerationz",
        &["did you mean `tolerations`"],
        &[beside("tolerationz: []")],
    );
    only(
        Unknown,
        "spec.image",
        &["belongs to `spec.source`", "indentation"],
        &[beside("image: web")],
    );
    only(
        Unknown,
        "spec.headless",
        &["belongs to VirtualLoadBalancer.kat"],
        &[beside("headless: true")],
    );
    only(
        Unknown,
        "status",
        &["known here", "metadata"],
        &[workload("kind: Workload", "kind: Workload\n§status: {}")],
    );
    only(
        Unknown,
        "metadata",
        &["unknown field `metadata`"],
        &[good(), balancer("spec:", "§metadata: {name: web}\nspec:")],
    );
    only(
        Unknown,
        "spec.container.env[1].vlaue",
        &["did you mean `value`"],
        &[container(
            "env:\n  - {name: A, value: b}\n  - {name: C, value: d, §vlaue: hunter2}",
        )],
    );
    only(
        Unknown,
        "spec[\"a.b c\"]",
        &["unknown field `a.b c`"],
        &[beside("\"a.b c\": 1")],
    );
    only_cluster(
        Unknown,
        "spec.clusterCidr",
        &["did you mean `clusterCIDR`"],
        &CLUSTER.replace("  serviceCIDR", "  §clusterCidr: 10.0.0.0/8\n  serviceCIDR"),
    );
}

#[test]
fn duplicates() {
    use Class::Duplicate;
    only(
        Duplicate,
        "spec.replicas",
        &["twice", "line 9"],
        &[workload("  replicas: 1", "  replicas: 1\n  §replicas: 2")],
    );
    only(
        Duplicate,
        "spec.container.env[1].name",
        &["`A`", "line 14"],
        &[container(
            "env:\n  - {name: A, value: b}\n  - {name: §A, value: c}",
        )],
    );
    only(
        Duplicate,
        "spec.container.capAdd[1]",
        &["`CHOWN`"],
        &[container("capAdd: [CHOWN, §CHOWN]")],
    );
    only(
        Duplicate,
        "kind",
        &["second Workload", "workload.kat", "folder"],
        &[good(), ("x.kat", WORKLOAD.replace("kind: ", "kind: §"))],
    );
    only(
        Duplicate,
        "kind",
        &["second VirtualLoadBalancer"],
        &[
            good(),
            (
                "VirtualLoadBalancer.kat",
                format!("{BALANCER}---\n{}", BALANCER.replace("kind: ", "kind: §")),
            ),
        ],
    );
    let port = |port: &str| balancer("8080}", &format!("8080}}\n    - {port}"));
    only(
        Duplicate,
        "spec.ports[1].name",
        &["`web`"],
        &[good(), port("{name: §web, containerPort: 81}")],
    );
    only(
        Duplicate,
        "spec.ports[1].containerPort",
        &["8080/TCP", "line 5"],
        &[good(), port("{§containerPort: 8080}")],
    );
    only(
        Duplicate,
        "",
        &["two files"],
        &[good(), ("workload.kat", NAMESPACE.to_owned())],
    );
    only(
        Duplicate,
        "spec.container.volumeMounts[1].mountPath",
        &["`/v`"],
        &[workload(
            "    name: app\n",
            "    volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: §/v}]\n  volumes: [{name: v, simpleClusterStorage: {}}]\n",
        )],
    );
}

#[test]
fn missing_fields() {
    use Class::Missing;
    only(
        Missing,
        "spec.restartPolicy.condition",
        &["`condition` is missing"],
        &[workload(
            "restartPolicy:\n    condition: Always",
            "§restartPolicy: {}",
        )],
    );
    only(
        Missing,
        "metadata.name",
        &["`name` is missing"],
        &[workload("metadata:\n  name: web", "§metadata: {}")],
    );
    only(
        Missing,
        "kind",
        &["kind: Workload"],
        &[workload("kind: Workload\n", "")].map(|(name, text)| (name, format!("§{text}"))),
    );
    only(
        Missing,
        "apiVersion",
        &["kat.dws.rip/v1alpha1"],
        &[(
            "workload.kat",
            change(WORKLOAD, "apiVersion: kat.dws.rip/v1alpha1\n", "§"),
        )],
    );
    only(
        Missing,
        "",
        &["no file holds a Workload", "workload.kat"],
        &[("VirtualLoadBalancer.kat", BALANCER.to_owned())],
    );
    only(Missing, "", &["no file holds a Workload"], &[]);
    only(
        Missing,
        "spec.source",
        &["neither image nor git"],
        &[workload(
            "source:\n    image: registry.example/web:1",
            "§source: {}",
        )],
    );
    only(
        Missing,
        "spec.source.git.repository",
        &["URL"],
        &[
            workload("image: registry.example/web:1", "§git: {branch: main}"),
            ("build.kat", BUILD.to_owned()),
        ],
    );
    only(
        Missing,
        "spec.tolerations[0].value",
        &["Equal"],
        &[workload(
            "replicas: 1",
            "replicas: 1\n  tolerations: [§{key: a, operator: Equal}]",
        )],
    );
    only(
        Missing,
        "spec.container.env[0].value",
        &["neither value nor valueFrom", "\"\""],
        &[container("env:\n  - §{name: A}")],
    );
    only(
        Missing,
        "spec.ports",
        &["at least one"],
        &[
            good(),
            balancer("\n    - {name: web, containerPort: 8080}", " §[]"),
        ],
    );
    only(
        Missing,
        "spec.healthCheck",
        &["no probe"],
        &[good(), balanced("§healthCheck: {periodSeconds: 5}")],
    );
    only(
        Missing,
        "spec.ingress[0].servicePortName",
        &["servicePort"],
        &[good(), balanced("ingress:\n  - §host: web.example.org")],
    );
    only_cluster(
        Missing,
        "spec.serviceCIDR",
        &["service addresses"],
        &CLUSTER
            .replace("  serviceCIDR: 10.200.0.0/16\n", "")
            .replace("spec:", "§spec:"),
    );
}

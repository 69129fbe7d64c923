//! Values of a wrong type or out of range, and invalid names.

use super::*;

#[test]
fn wrong_type() {
    use Class::Type;
    let number = |to: &str| workload("replicas: 1", &format!("replicas: §{to}"));
    only(
        Type,
        "spec.replicas",
        &["`three`", "whole number from 0 to 1000"],
        &[number("three")],
    );
    only(
        Type,
        "spec.replicas",
        &["the text `3`", "without quotes"],
        &[number("\"3\"")],
    );
    only(Type, "spec.replicas", &["`1.5`"], &[number("1.5")]);
    only(
        Type,
        "spec.replicas",
        &["`010`", "write `10`"],
        &[number("010")],
    );
    only(Type, "spec.replicas", &["`0x10`"], &[number("0x10")]);
    only(Type, "spec.replicas", &["`1_000`"], &[number("1_000")]);
    only(Type, "spec.replicas", &["found a list"], &[number("[1]")]);
    only(
        Type,
        "spec.replicas",
        &["found nothing"],
        &[workload("replicas: 1", "§replicas:")],
    );
    only(
        Type,
        "metadata.name",
        &["found nothing", "leave the field out"],
        &[workload("name: web", "§name: ~")],
    );
    only(
        Type,
        "spec.container",
        &["found a list", "mapping", "`-`"],
        &[workload(
            "container:\n    name: app",
            "container:\n    §- name: app",
        )],
    );
    only(
        Type,
        "spec.container",
        &["found a single value", "mapping"],
        &[workload("container:\n    name: app", "container: §app")],
    );
    only(
        Type,
        "spec.container.env",
        &["found a mapping", "list", "`- {name: NAME"],
        &[container("env:\n  §A: b")],
    );
    only(
        Type,
        "spec.container.env[0]",
        &["found a single value"],
        &[container("env:\n  - §A=hunter2")],
    );
    only(
        Type,
        "spec.container.command",
        &["found a single value", "list"],
        &[container("command: §/bin/app")],
    );
    only(
        Type,
        "spec.container.init",
        &["`yes`", "write `true`"],
        &[container("init: §yes")],
    );
    only(
        Type,
        "spec.container.init",
        &["the text `true`", "without quotes"],
        &[container("init: §\"true\"")],
    );
    only(
        Type,
        "spec.container.init",
        &["`True`"],
        &[container("init: §True")],
    );
    only(
        Type,
        "spec.container.shmSize",
        &["`64MB`", "64Mi"],
        &[container("shmSize: §64MB")],
    );
    only(
        Type,
        "spec.container.resources.limits.cpu",
        &["`half`", "100m"],
        &[container("resources: {limits: {cpu: §half}}")],
    );
    only(
        Type,
        "metadata.labels",
        &["found a list", "team"],
        &[workload("name: web", "name: web\n  labels: §[team]")],
    );
    only(
        Type,
        "spec.updateStrategy.rolling.maxSurge",
        &["percentage"],
        &[workload(
            "replicas: 1",
            "replicas: 1\n  updateStrategy: {rolling: {maxSurge: §x%}}",
        )],
    );
    only_cluster(
        Type,
        "spec.clusterCIDR",
        &["`fd00::/64`", "IPv4"],
        &change(CLUSTER, "10.100.0.0/16", "§fd00::/64"),
    );
}

#[test]
fn a_score_for_memory_is_a_whole_number_up_to_1000() {
    let path = "spec.container.oomScoreAdjust";
    let score = |to: &str| [container(&format!("oomScoreAdjust: §{to}"))];
    let bounds = "expected a whole number from 0 to 1000";
    for (class, value, found) in [
        (Class::Range, "1001", "found 1001"),
        (Class::Range, "-1", "found -1"),
        (Class::Type, "high", "found `high`"),
        (Class::Type, "\"500\"", "found the text `500`"),
        (Class::Type, "0.5", "found `0.5`"),
    ] {
        only(class, path, &[found, bounds], &score(value));
    }
    let of_sidecar = workload(
        "container:",
        "sidecars: [{name: proxy, oomScoreAdjust: §1001}]\n  container:",
    );
    let path = "spec.sidecars[0].oomScoreAdjust";
    only(Class::Range, path, &["found 1001", bounds], &[of_sidecar]);
}

#[test]
fn a_gpu_has_a_known_vendor_and_its_memory_is_a_whole_number() {
    let path = "spec.container.resources.gpu.minVRAM_MB";
    let memory = |to: &str| {
        [container(&format!(
            "resources: {{gpu: {{minVRAM_MB: §{to}}}}}"
        ))]
    };
    let bounds = "expected a whole number from 1 to 1048576";
    for (class, value, found) in [
        (Class::Range, "0", "found 0"),
        (Class::Range, "1048577", "found 1048577"),
        (Class::Type, "8Gi", "found `8Gi`"),
    ] {
        only(class, path, &[found, bounds], &memory(value));
    }
    only(
        Class::Range,
        "spec.container.resources.gpu.driver",
        &["`intel`", "any", "nvidia", "amd"],
        &[container("resources: {gpu: {driver: §intel}}")],
    );
    only(
        Class::Unknown,
        "spec.container.resources.gpu.count",
        &["count"],
        &[container("resources: {gpu: {§count: 2}}")],
    );
    let sidecar = workload(
        "container:",
        "sidecars: [{name: model, resources: {gpu: {driver: §nvidia}}}]\n  container:\n    resources: {gpu: {driver: amd}}",
    );
    let path = "spec.sidecars[0].resources.gpu.driver";
    let words = ["a GPU of another vendor", "same driver"];
    only(Class::CrossFile, path, &words, &[sidecar]);
}

#[test]
fn out_of_range() {
    use Class::Range;
    let number = |to: &str| workload("replicas: 1", &format!("replicas: §{to}"));
    only(
        Range,
        "spec.replicas",
        &["1001", "0 to 1000"],
        &[number("1001")],
    );
    only(Range, "spec.replicas", &["-1"], &[number("-1")]);
    only(
        Range,
        "spec.replicas",
        &["99999999999999999999"],
        &[number("99999999999999999999")],
    );
    let port = |to: &str| balancer("8080", &format!("§{to}"));
    only(
        Range,
        "spec.ports[0].containerPort",
        &["70000", "1 to 65535"],
        &[good(), port("70000")],
    );
    only(
        Range,
        "spec.ports[0].containerPort",
        &["found 0"],
        &[good(), port("0")],
    );
    only(
        Range,
        "spec.type",
        &[
            "`Servise`",
            "Service, Job, DaemonService",
            "did you mean `Service`",
        ],
        &[workload("type: Service", "type: §Servise")],
    );
    only(
        Range,
        "spec.restartPolicy.condition",
        &["`always`", "did you mean `Always`"],
        &[workload("Always", "§always")],
    );
    only(
        Range,
        "spec.source.image",
        &["lower case"],
        &[workload(
            "registry.example/web:1",
            "§registry.example/Web:1",
        )],
    );
    only(
        Range,
        "spec.container.resources.limits.memory",
        &["64 (bytes)", "did you mean `64Mi`"],
        &[container("resources: {limits: {memory: §64}}")],
    );
    only(
        Range,
        "spec.container.resources.limits.cpu",
        &["found 0"],
        &[container("resources: {limits: {cpu: §0}}")],
    );
    only(
        Class::Name,
        "spec.container.hostname",
        &["`a.b`"],
        &[container("hostname: §a.b")],
    );
    only(
        Range,
        "spec.container.workingDir",
        &["absolute path", "begin it with `/`"],
        &[container("workingDir: §app")],
    );
    only(
        Range,
        "spec.container.tmpfs[0]",
        &["below `/`"],
        &[container("tmpfs: [§/]")],
    );
    only(
        Range,
        "spec.container.user",
        &["70000", "65535"],
        &[container("user: §\"70000\"")],
    );
    only(
        Range,
        "spec.container.capAdd[0]",
        &["CAP_NET_RAW", "did you mean `NET_RAW`"],
        &[container("capAdd: [§CAP_NET_RAW]")],
    );
    only(
        Range,
        "spec.container.stopSignal",
        &["did you mean `SIGTERM`"],
        &[container("stopSignal: §TERM")],
    );
    only(
        Range,
        "spec.container.command[1]",
        &["NUL"],
        &[container("command: [/bin/app, §\"a\\0b\"]")],
    );
    only(
        Range,
        "spec.container.devices[0]",
        &["/dev/"],
        &[container("devices: [§/etc/passwd]")],
    );
    only(
        Range,
        "spec.container.devices[0]",
        &["/dev/NAME:/dev/NAME:rwm"],
        &[container("devices: [§/dev/ttyUSB0:r]")],
    );
    only(
        Class::CrossFile,
        "spec.container.devices[1]",
        &["two devices at `/dev/b`"],
        &[container("devices: [/dev/b, §\"/dev/a:/dev/b\"]")],
    );
    only(
        Class::CrossFile,
        "spec.container.quadlet.Sysctl",
        &["the machine's own"],
        &[container(
            "hostNetwork: true\nquadlet: {Sysctl: §net.core.somaxconn=1024}",
        )],
    );
    only(
        Range,
        "spec.container.volumeMounts[0].subPath",
        &["relative path", "`..`"],
        &[workload(
            "    name: app\n",
            "    volumeMounts: [{name: v, mountPath: /v, subPath: §../../etc}]\n  volumes: [{name: v, simpleClusterStorage: {}}]\n",
        )],
    );
    only(
        Range,
        "spec.volumes[0].hostMount.hostPath",
        &["absolute path"],
        &[workload(
            "replicas: 1",
            "replicas: 1\n  volumes: [{name: v, hostMount: {hostPath: §/srv/../etc}}]",
        )],
    );
    only(
        Range,
        "spec.source.git.repository",
        &["https://"],
        &[
            workload(
                "image: registry.example/web:1",
                "git: {repository: §\"file:///etc\"}",
            ),
            ("build.kat", BUILD.to_owned()),
        ],
    );
    only(
        Range,
        "spec.schedule",
        &["4 fields", "five"],
        &[
            plain(job_workload()),
            ("job.kat", change(JOB, "{}", "{schedule: §\"* * * *\"}")),
        ],
    );
    only(
        Range,
        "apiVersion",
        &["`v1`", "kat.dws.rip/v1alpha1"],
        &[workload(
            "apiVersion: kat.dws.rip/v1alpha1",
            "apiVersion: §v1",
        )],
    );
    only(
        Range,
        "kind",
        &["`Deployment`", "Workload"],
        &[workload("kind: Workload", "kind: §Deployment")],
    );
    only(
        Range,
        "kind",
        &["did you mean `Workload`"],
        &[workload("kind: Workload", "kind: §workload")],
    );
    only_cluster(
        Range,
        "spec.clusterCIDR",
        &["bits set", "10.100.0.0/16"],
        &change(CLUSTER, "10.100.0.0/16", "§10.100.4.0/16"),
    );
    only_cluster(
        Range,
        "spec.serviceCIDR",
        &["loopback"],
        &change(CLUSTER, "10.200.0.0/16", "§127.1.0.0/16"),
    );
    only_cluster(
        Range,
        "spec.serviceCIDR",
        &["multicast"],
        &change(CLUSTER, "10.200.0.0/16", "§224.0.0.0/8"),
    );
    only_cluster(
        Range,
        "kind",
        &["`Workload`"],
        &change(CLUSTER, "kind: ClusterConfiguration", "kind: §Workload"),
    );
}

#[test]
fn names() {
    use Class::Name;
    let name = |to: &str| workload("name: web", &format!("name: §{to}"));
    only(
        Name,
        "metadata.name",
        &["`My_Web`", "`my-web` would be accepted"],
        &[name("My_Web")],
    );
    only(
        Name,
        "metadata.name",
        &["41 characters", "at most 40"],
        &[name(&"x".repeat(41))],
    );
    only(Name, "metadata.name", &["empty"], &[name("\"\"")]);
    only(Name, "metadata.name", &["lower-case"], &[name("-web")]);
    only(
        Name,
        "metadata.name",
        &["lower-case"],
        &[name("\"web\\u202e\"")],
    );
    only(
        Name,
        "metadata.namespace",
        &["`node` is reserved"],
        &[workload("name: web", "name: web\n  namespace: §node")],
    );
    only(
        Name,
        "metadata.labels[\"a b\"]",
        &["key of a label"],
        &[workload("name: web", "name: web\n  labels: {§a b: c}")],
    );
    only(
        Name,
        "spec.container.env[0].name",
        &["`A-B`", "variable"],
        &[container("env:\n  - {name: §A-B, value: c}")],
    );
    only(
        Name,
        "spec.ports[0].name",
        &["no letter"],
        &[good(), balancer("name: web", "name: §\"80\"")],
    );
    only(
        Name,
        "spec.ingress[0].host",
        &["lower case: `web.example.org`"],
        &[
            good(),
            balanced("ingress: [{host: §Web.Example.org, servicePort: 8080}]"),
        ],
    );
    only(
        Name,
        "spec.aliases[1]",
        &["lower-case"],
        &[good(), balanced("aliases: [mysql, §-db]")],
    );
    only(
        Name,
        "spec.container.quadlet.ulimits",
        &["did you mean `Ulimit`?"],
        &[container("quadlet: {§ulimits: nofile=1024}")],
    );
    only(
        Class::Archive,
        "",
        &["*.kat file"],
        &[good(), ("../job.kat", NAMESPACE.to_owned())],
    );
    only(
        Class::Archive,
        "",
        &["*.kat file"],
        &[good(), ("namespace.yaml", NAMESPACE.to_owned())],
    );
}

#[test]
fn sources_of_host_ports() {
    let port = |sources: &str| {
        let fields = format!("containerPort: 8080, hostPort: 80, allowSources: [{sources}]");
        balancer("containerPort: 8080", &fields)
    };
    for (sources, words) in [
        ("192.0.2.1, §192.0.2.0/33", ["`192.0.2.0/33`", "a range"]),
        ("10.0.0.0/8, §host.lan", ["`host.lan`", "an address"]),
        ("10.0.0.0/8, §10.0.0.1/8", ["`10.0.0.1/8`", "bits set"]),
    ] {
        only(
            Class::Range,
            "spec.ports[0].allowSources[1]",
            &words,
            &[good(), port(sources)],
        );
    }
    only(
        Class::Duplicate,
        "spec.ports[0].allowSources[1]",
        &["written twice"],
        &[good(), port("10.0.0.1, §10.0.0.1")],
    );
}

#[test]
fn machines_of_host_ports() {
    let port = "containerPort: 8080, hostPort: 5432, hostPortOn: §ingres";
    only(
        Class::Range,
        "spec.ports[0].hostPortOn",
        &[
            "`ingres`",
            "one of instances, ingress",
            "did you mean `ingress`?",
        ],
        &[good(), balancer("containerPort: 8080", port)],
    );
}

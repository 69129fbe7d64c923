//! Files that contradict each other.

use super::*;

/// A Job that writes to a volume.
fn writing_job() -> File {
    let (name, text) = plain(job_workload());
    let mounts = "    volumeMounts: [{name: data, mountPath: /data}]\n";
    let volumes = "  volumes: [{name: data, simpleClusterStorage: {}}]\n";
    let text = change(&text, "    name: app\n", &format!("{mounts}{volumes}"));
    (name, text)
}

#[test]
fn files_that_do_not_fit_together() {
    use Class::CrossFile;
    only(
        CrossFile,
        "spec.type",
        &["no file holds a JobDefinition", "job.kat"],
        &[job_workload()],
    );
    only(
        CrossFile,
        "spec.ports[0].hostPort",
        &["the machine's ports itself", "hostNetwork"],
        &[
            container("hostNetwork: true"),
            balancer("containerPort: 8080", "containerPort: 8080, hostPort: §80"),
        ],
    );
    only(
        CrossFile,
        "spec.ports[0].hostPortOn",
        &["used only with hostPort"],
        &[
            good(),
            balancer(
                "containerPort: 8080",
                "containerPort: 8080, §hostPortOn: ingress",
            ),
        ],
    );
    only(
        CrossFile,
        "spec.aliases[1]",
        &["`web` is the name of the workload"],
        &[good(), balanced("aliases: [mysql, §web]")],
    );
    only(
        CrossFile,
        "kind",
        &["only for type Job", "Service"],
        &[good(), ("job.kat", JOB.replace("kind: ", "kind: §"))],
    );
    only(
        CrossFile,
        "spec.concurrencyPolicy",
        &[
            "writes to a volume",
            "can't overlap",
            "Forbid or Replace",
            "readOnly",
        ],
        &[
            writing_job(),
            ("job.kat", change(JOB, "{}", "{concurrencyPolicy: §Allow}")),
        ],
    );
    only(
        CrossFile,
        "spec.source.git",
        &["no file holds a BuildDefinition"],
        &[git_workload()],
    );
    only(
        CrossFile,
        "kind",
        &["only for a git source"],
        &[good(), ("build.kat", BUILD.replace("kind: ", "kind: §"))],
    );
    only(
        CrossFile,
        "kind",
        &["Service and DaemonService"],
        &[
            plain(job_workload()),
            ("job.kat", JOB.to_owned()),
            (
                "VirtualLoadBalancer.kat",
                BALANCER.replace("kind: ", "kind: §"),
            ),
        ],
    );
    only(
        CrossFile,
        "spec.restartPolicy.condition",
        &["can't be Always"],
        &[
            (
                "workload.kat",
                change(
                    &change(WORKLOAD, "type: Service", "type: Job"),
                    "restartPolicy",
                    "§restartPolicy",
                ),
            ),
            ("job.kat", JOB.to_owned()),
        ],
    );
    only(
        CrossFile,
        "spec.updateStrategy",
        &["a Job has no updateStrategy"],
        &[
            {
                let (name, text) = plain(job_workload());
                (
                    name,
                    change(&text, "  replicas: 1", "  §updateStrategy: {}"),
                )
            },
            ("job.kat", JOB.to_owned()),
        ],
    );
    only(
        CrossFile,
        "spec.ingress[0].servicePortName",
        &["`wbe`", "web (8080)"],
        &[
            good(),
            balanced("ingress: [{host: a.example, servicePortName: §wbe}]"),
        ],
    );
    only(
        CrossFile,
        "spec.ingress[0].servicePort",
        &["`81`", "web (8080)"],
        &[
            good(),
            balanced("ingress: [{host: a.example, servicePort: §81}]"),
        ],
    );
    only(
        CrossFile,
        "spec.healthCheck.http.port",
        &["`admin`"],
        &[
            good(),
            balanced("healthCheck: {http: {path: /, port: §admin}}"),
        ],
    );
    only(
        CrossFile,
        "spec.healthCheck.tcp.port",
        &["UDP"],
        &[
            good(),
            (
                "VirtualLoadBalancer.kat",
                BALANCER.replace("8080", "8080, protocol: UDP")
                    + "  healthCheck: {tcp: {port: §8080}}\n",
            ),
        ],
    );
    only(
        CrossFile,
        "spec.container.volumeMounts[0].name",
        &["no volume is named `data`", "spec.volumes"],
        &[container("volumeMounts: [{name: §data, mountPath: /data}]")],
    );
    only(
        CrossFile,
        "metadata.name",
        &["`shop`", "`default`"],
        &[
            good(),
            (
                "namespace.kat",
                change(NAMESPACE, "name: default", "name: §shop"),
            ),
        ],
    );
    only(
        CrossFile,
        "spec.container.resources.requests.memory",
        &["2Gi", "1Gi"],
        &[container(
            "resources:\n  §requests: {memory: 2Gi}\n  limits: {memory: 1Gi}",
        )],
    );
    only(
        CrossFile,
        "spec.container.capDrop",
        &["`CHOWN`", "both"],
        &[container("capAdd: [CHOWN]\n§capDrop: [CHOWN]")],
    );
    only(
        CrossFile,
        "spec.source.cacheImage",
        &["only with git"],
        &[workload(
            "image: registry.example/web:1",
            "image: web:1\n    §cacheImage: web:2",
        )],
    );
    only(
        CrossFile,
        "spec.tolerations[0].value",
        &["operator Equal"],
        &[workload(
            "replicas: 1",
            "replicas: 1\n  tolerations: [{key: a, §value: b}]",
        )],
    );
    only(
        CrossFile,
        "kind",
        &["job.kat holds a Workload", "rename it to workload.kat"],
        &[("job.kat", WORKLOAD.replace("kind: ", "kind: §"))],
    );
    only_cluster(
        CrossFile,
        "spec.serviceCIDR",
        &["overlaps clusterCIDR"],
        &change(
            CLUSTER,
            "serviceCIDR: 10.200.0.0/16",
            "§serviceCIDR: 10.100.64.0/18",
        ),
    );
    only_cluster(
        CrossFile,
        "spec.apiPort",
        &["both 2380"],
        &format!("{CLUSTER}  §apiPort: 2380\n"),
    );
    only_cluster(
        CrossFile,
        "spec.nodeLossTimeoutSeconds",
        &["three ticks"],
        &format!("{CLUSTER}  §nodeLossTimeoutSeconds: 44\n"),
    );
    only_cluster(
        CrossFile,
        "spec.nodeSubnetBits",
        &["/30", "/29"],
        &format!("{CLUSTER}  §nodeSubnetBits: 14\n"),
    );
}

/// The errors of all files are reported, ordered by file and position.
#[test]
fn all_at_once() {
    let files = [
        workload("replicas: 1", "replicas: three\n  colour: red"),
        balancer("8080", "none"),
        ("build.kat", BUILD.replace("{}", "{buildContext: /}")),
    ];
    let (sources, _) = unmark(&files);
    let found = parse(&sources, DecodeMode::Strict).unwrap_err();
    let places: Vec<_> = found
        .iter()
        .map(|found| (found.file.as_str(), found.path.as_str()))
        .collect();
    assert_eq!(
        places,
        [
            ("VirtualLoadBalancer.kat", "spec.ports[0].containerPort"),
            ("build.kat", "kind"),
            ("build.kat", "spec.buildContext"),
            ("workload.kat", "spec.replicas"),
            ("workload.kat", "spec.colour"),
        ]
    );
}

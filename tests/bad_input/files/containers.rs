//! Init containers and sidecars.

use super::*;

/// `workload.kat` with these fields of `spec` and a main container called `app`.
fn with(fields: &str) -> File {
    workload("  replicas: 1", &format!("  replicas: 1\n  {fields}"))
}

#[test]
fn containers_beside_the_main_one() {
    use Class::{CrossFile, Duplicate, Missing, Range, Unknown};
    only(
        Duplicate,
        "spec.sidecars[0].name",
        &["`app` is written twice"],
        &[with("sidecars: [{name: §app}]")],
    );
    only(
        Duplicate,
        "spec.sidecars[0].name",
        &["`one` is written twice"],
        &[with(
            "initContainers: [{name: one}]\n  sidecars: [{name: §one}]",
        )],
    );
    only(
        Missing,
        "spec.initContainers[0].name",
        &["`name` is missing", "unique among the containers"],
        &[with("initContainers: [§{command: [/bin/prepare]}]")],
    );
    only(
        Range,
        "spec.sidecars",
        &["found 9 items, expected at most 8"],
        &[with(&format!(
            "sidecars: §[{}]",
            (0..9)
                .map(|number| format!("{{name: side{number}}}"))
                .collect::<Vec<_>>()
                .join(", ")
        ))],
    );
    only(
        Range,
        "spec.sidecars[0].image",
        &["image"],
        &[with("sidecars: [{name: proxy, image: §\"Not An Image\"}]")],
    );
    only(
        CrossFile,
        "spec.sidecars[0].hostNetwork",
        &["share one network", "leave it out here"],
        &[with("sidecars: [{name: proxy, §hostNetwork: true}]")],
    );
    only(
        CrossFile,
        "spec.initContainers[0].drainSeconds",
        &["drained as a whole"],
        &[with("initContainers: [{name: first, §drainSeconds: 3}]")],
    );
    only(
        Unknown,
        "spec.container.image",
        &["belongs to `spec.source`"],
        &[workload(
            "    name: app",
            "    name: app\n    §image: registry.example/web:2",
        )],
    );
    only(
        CrossFile,
        "spec.sidecars[0].volumeMounts[0].name",
        &["no volume is named `data`"],
        &[with(
            "sidecars: [{name: proxy, volumeMounts: [{name: §data, mountPath: /data}]}]",
        )],
    );
    only(
        CrossFile,
        "spec.sidecars[0].quadlet.Sysctl",
        &["those of all containers of an instance"],
        &[with(
            "sidecars: [{name: proxy, quadlet: {Sysctl: §net.core.somaxconn=9}}]",
        )],
    );
    only(
        CrossFile,
        "spec.initContainers[0].quadlet.AddHost",
        &["those of all containers of an instance"],
        &[with(
            "initContainers: [{name: first, quadlet: {AddHost: §\"db:192.0.2.1\"}}]",
        )],
    );
    // A volume that one container writes to must not be mounted by `subPath` in another, because
    // the first could put a link there.
    only(
        CrossFile,
        "spec.sidecars[0].volumeMounts[0].subPath",
        &["could put a link"],
        &[with(
            "volumes: [{name: data, simpleClusterStorage: {}}]\n  initContainers: [{name: first, volumeMounts: [{name: data, mountPath: /a}]}]\n  sidecars: [{name: proxy, volumeMounts: [{name: data, mountPath: /b, subPath: §inner}]}]",
        )],
    );
    only(
        CrossFile,
        "spec.volumes[1].hostMount.hostPath",
        &["could put a link in its place", "it lies in volume `outer`"],
        &[with(
            "volumes: [{name: outer, hostMount: {hostPath: /srv/a}}, {name: inner, hostMount: {hostPath: §/srv//a/b, ensureType: DirectoryOrCreate}}]\n  initContainers: [{name: first, volumeMounts: [{name: outer, mountPath: /a}, {name: inner, mountPath: /b, readOnly: true}]}]",
        )],
    );
}

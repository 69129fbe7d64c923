//! Files that are not documents, too large, not text, or would expand.

use super::*;

#[test]
fn shape() {
    use Class::Shape;
    let image = "image: registry.example/web:1";
    only(
        Shape,
        "spec.source",
        &["not YAML", "quotes"],
        &[workload(image, "image: web§: x")],
    );
    only(
        Shape,
        "spec.source.image",
        &["tab", "spaces"],
        &[workload("  replicas: 1", "§\treplicas: 1")],
    );
    only(
        Shape,
        "spec",
        &["not YAML", "indentation"],
        &[workload("  replicas: 1", "   §replicas: 1")],
    );
    only(
        Shape,
        "",
        &["without fields"],
        &[("workload.kat", "§- kind: Workload\n".to_owned())],
    );
    only(
        Shape,
        "",
        &["without fields"],
        &[("workload.kat", "§some words\n".to_owned())],
    );
    only(
        Shape,
        "",
        &["empty"],
        &[good(), ("job.kat", "# later\n".to_owned())],
    );
    only(
        Shape,
        "metadata.name",
        &["tag"],
        &[workload("name: web", "name: §!!str web")],
    );
    only(
        Shape,
        "metadata",
        &["as a key"],
        &[workload("name: web", "? §[name]\n  : web")],
    );
    only(
        Shape,
        "spec.source.git",
        &["both image and git", "exactly one"],
        &[
            workload(
                image,
                "image: web:1\n    §git: {repository: \"https://example.org/web.git\"}",
            ),
            ("build.kat", BUILD.to_owned()),
        ],
    );
    only(
        Shape,
        "spec.container.env[0].valueFrom",
        &["both value and valueFrom"],
        &[container(
            "env:\n  - {name: A, value: b, §valueFrom: {secret: {name: s, key: k}}}",
        )],
    );
    only(
        Shape,
        "spec.healthCheck.tcp",
        &["exec and tcp", "exactly one"],
        &[
            good(),
            balanced("healthCheck:\n  §tcp: {port: web}\n  exec: {command: [/bin/check]}"),
        ],
    );
    only(
        Shape,
        "spec.volumes[0].tmpfs",
        &["simpleClusterStorage and tmpfs"],
        &[workload(
            "  replicas: 1",
            "  replicas: 1\n  volumes: [{name: v, simpleClusterStorage: {}, §tmpfs: {}}]",
        )],
    );
    only(
        Shape,
        "",
        &["volume.kat is reserved", "spec.volumes of workload.kat"],
        &[
            good(),
            (
                "volume.kat",
                "§apiVersion: kat.dws.rip/v1alpha1\nkind: Volume\n".to_owned(),
            ),
        ],
    );
    only(
        Shape,
        "kind",
        &["volume.kat is reserved"],
        &[
            good(),
            (
                "data.kat",
                "apiVersion: kat.dws.rip/v1alpha1\nkind: §Volume\n".to_owned(),
            ),
        ],
    );
    let cluster = CLUSTER.replace("kind: ", "kind: §");
    only(
        Shape,
        "kind",
        &["kat-agent init"],
        &[good(), ("cluster.kat", cluster)],
    );
    only_cluster(
        Shape,
        "",
        &["second document"],
        &format!("{CLUSTER}---\n§a: b\n"),
    );
}

#[test]
fn too_large() {
    use Class::Oversize;
    let deep = format!("a: {}§[", "[".repeat(32));
    only(
        Oversize,
        "a[0]",
        &["deeper than 32"],
        &[("workload.kat", deep)],
    );
    let wide = format!("a: [{}§x]\n", "x,".repeat(19_997));
    only(
        Oversize,
        "a[19997]",
        &["20000 values"],
        &[("workload.kat", wide)],
    );
    let large = format!("{WORKLOAD}# {}\n", "x".repeat(256 * 1024));
    only(
        Oversize,
        "",
        &["at most 262144"],
        &[("workload.kat", large)],
    );
    let documents = format!("{}---\n§a: 1\n", "---\na: 1\n".repeat(16));
    only(
        Oversize,
        "",
        &["16 documents"],
        &[("workload.kat", documents)],
    );
    let long = format!("    {}: 1\n", "k".repeat(2000));
    let (sources, _) = unmark(&[workload("    name: app\n", &long)]);
    assert!(parse(&sources, DecodeMode::Strict).is_err());
}

#[test]
fn not_text() {
    use Class::Encoding;
    only(
        Encoding,
        "",
        &["control character", "{1b}"],
        &[workload("name: app", "name: app # §\u{1b}[2J")],
    );
    only(
        Encoding,
        "",
        &["control character", "{0}"],
        &[workload("name: app", "name: a§\0b")],
    );
}

#[test]
fn aliases() {
    use Class::Alias;
    only(
        Alias,
        "spec.source",
        &["anchor"],
        &[workload("source:\n", "source: §&source\n")],
    );
    only(
        Alias,
        "spec.replicas",
        &["alias"],
        &[workload("replicas: 1", "replicas: §*count")],
    );
    only(
        Alias,
        "spec.source",
        &["merge key"],
        &[workload(
            "    image: registry.example/web:1",
            "    §<<: {image: web}",
        )],
    );
    let mut bomb = "a: §&a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for letter in 'b'..='i' {
        let before = char::from(u8::try_from(letter).unwrap() - 1);
        let list = vec![format!("*{before}"); 9].join(", ");
        bomb.push_str(&format!("{letter}: &{letter} [{list}]\n"));
    }
    let begun = std::time::Instant::now();
    only(Alias, "a", &["anchor"], &[("workload.kat", bomb)]);
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(2),
        "the bomb went off"
    );
}

//! Volumes: listed, named and described.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

pub(crate) const ALL: &str = "/v1alpha1/volumes";
const SHOP: &str = "/v1alpha1/n/shop/volumes";

/// Volumes of `web`, and one that a deleted workload left.
pub(crate) fn several() -> Vec<Value> {
    let mut used = of_slot(volume("web", "data.0", "Bound"), 0, "a");
    used["status"]["usedBy"] = json!(["web-aaaaa"]);
    let mut shared = volume("web", "media", "Pending");
    shared["status"].as_object_mut().unwrap().remove("node");
    shared["status"]["shared"] = true.into();
    shared["spec"]["reclaim"] = "Delete".into();
    let host = at_path(volume("web", "conf@host.1", "Bound"), "/srv/conf");
    vec![
        of_slot(volume("web", "data.1", "Bound"), 1, "b"),
        used,
        shared,
        of_slot(host, 1, "b"),
        volume("db", "data", "Released"),
    ]
}

fn with_several() -> Fake {
    let fake = Fake::start();
    fake.list(VOLUMES, &several());
    fake
}

#[test]
fn volumes_are_a_table() {
    let fake = with_several();
    let mut other = volume("web", "data", "Removing");
    other["metadata"]["namespace"] = "shop".into();
    fake.list(ALL, &[other, several().remove(0)]);
    fake.list(SHOP, &[]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["get", "volumes"]));
    assert_snapshot!(program.run(&["get", "vol", "-o", "wide"]));
    assert_snapshot!(program.run(&["get", "volumes", "-A"]));
    assert_snapshot!(program.run(&["get", "volumes", "-o", "name"]), @r"
    exit: 0
    --- stdout
    volume/db/data
    volume/web/conf@host.1
    volume/web/data.0
    volume/web/data.1
    volume/web/media
    ");
    assert_snapshot!(program.run(&["get", "volumes", "-n", "shop"]), @r"
    exit: 0
    --- stderr
    no volumes in namespace shop
    ");
}

#[test]
fn one_is_named_with_its_workload() {
    let fake = with_several();
    let program = Program::of(&fake);
    let path = "/v1alpha1/n/default/workloads/web/volumes/data.1";
    fake.reply(&format!("GET {path}"), 200, several().remove(0));
    let shown = program.run(&["get", "volume", "web/data.1"]);
    assert_snapshot!(shown);
    assert_eq!(program.run(&["get", "volume", "default/web/data.1"]), shown);
    assert_snapshot!(program.run(&["get", "volume", "default/web/data.1", "-n", "shop"]), @r"
    exit: 2
    --- stderr
    error: `default/web/data.1` and `--namespace shop` contradict each other

    hint: leave out one of the two namespaces
    ");
    assert_snapshot!(program.run(&["get", "volume", "web/dtaa.1"]), @r"
    exit: 3
    --- stderr
    error: there is no volume `web/dtaa.1` in namespace `default`

    hint: did you mean `web/data.1`?
    ");
    assert_snapshot!(program.run(&["get", "volume", "media"]), @r"
    exit: 2
    --- stderr
    error: `media` is not the name of a volume, which is WORKLOAD/VOLUME

    hint: did you mean `web/media`?
    ");
    assert_snapshot!(program.run(&["get", "volume", "data"]), @r"
    exit: 2
    --- stderr
    error: `data` is not the name of a volume, which is WORKLOAD/VOLUME

    hint: it is one of `web/data.1`, `web/data.0`, `db/data`
    ");
    assert_snapshot!(program.run(&["get", "volume", "mail"]), @r"
    exit: 2
    --- stderr
    error: `mail` is not the name of a volume, which is WORKLOAD/VOLUME

    hint: `katcall get volumes` lists them
    ");
    assert_snapshot!(program.run(&["get", "volume", "web/.."]), @r"
    exit: 2
    --- stderr
    error: `..` cannot be the name of a volume
    ");
}

#[test]
fn a_watch_tells_volumes_of_one_name_apart() {
    let fake = Fake::start();
    let both = [
        volume("db", "data", "Bound"),
        volume("web", "data", "Bound"),
    ];
    fake.list(VOLUMES, &both);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["get", "volumes", "--watch", "-o", "name"]);
    running.stdout_says("volume/web/data");
    let mut all = program.spawn(&["get", "volume", "web/data", "--watch"]);
    all.stdout_says("Bound");
    fake.change(VOLUMES, "MODIFIED", &volume("web", "data", "Removing"));
    running.interrupt();
    all.interrupt();
    assert_snapshot!(running.end().lines().take(4).collect::<Vec<_>>().join("\n"), @r"
    exit: 130
    --- stdout
    volume/db/data
    volume/web/data
    ");
    assert!(!all.end().contains("db"));
}

#[test]
fn workloads_and_machines_are_described_with_their_volumes() {
    let fake = with_several();
    fake.list(ALL, &several());
    let web = workload("web", "Running", [1, 1, 1]);
    fake.reply(&format!("GET {WEB}"), 200, web);
    fake.list(WEB_INSTANCES, &[]);
    fake.list("/v1alpha1/instances", &[]);
    fake.list("/v1alpha1/events", &[]);
    let item = node("b", "Ready", &["worker"]);
    fake.reply("GET /v1alpha1/nodes/b", 200, item);
    let program = Program::of(&fake);
    let section = |text: String| {
        let at = text.find("volumes\n").unwrap();
        text[at..].to_owned()
    };
    assert_snapshot!(section(program.run(&["describe", "workload", "web"])));
    assert_snapshot!(section(program.run(&["describe", "node", "b"])));
    // A cluster without the volumes route is described without them.
    fake.instead(
        &format!("GET {VOLUMES}"),
        404,
        error("NotFound", "no route"),
    );
    let text = program.run(&["describe", "workload", "web"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(!text.contains("volumes"), "{text}");
}

#[test]
fn live_names_have_their_workload() {
    let fake = with_several();
    let program = Program::of(&fake);
    let names = "exit: 0
--- stdout
db/data
web/conf@host.1
web/data.0
web/data.1
web/media
";
    for command in ["get", "delete"] {
        let words = ["__complete", "--", command, "volume"];
        assert_eq!(program.run(&words), names, "{command}");
    }
}

//! Deletions keep or remove the data of volumes, and katcall says which.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
    volumes::{ALL, several},
};

const SHOP: &str = "/v1alpha1/n/shop/volumes";
const DATA: &str = "/v1alpha1/n/default/workloads/web/volumes/data";

fn removal(outcome: &str) -> Value {
    json!({"outcome": outcome, "kind": "Volume",
        "metadata": {"name": "data", "namespace": "default"}})
}

/// A cluster with the volume `item`, whose removal is answered with `outcome`.
fn with_data(item: &Value, outcome: &str) -> Fake {
    let fake = Fake::start();
    fake.list(VOLUMES, std::slice::from_ref(item));
    fake.reply(&format!("GET {DATA}"), 200, item.clone());
    fake.reply(&format!("DELETE {DATA}"), 200, removal(outcome));
    fake
}

fn deletions(fake: &Fake) -> Vec<String> {
    let asked = fake.asked();
    let deletions = asked.iter().filter(|asked| asked.starts_with("DELETE"));
    deletions.cloned().collect()
}

#[test]
fn data_is_removed_only_after_a_yes() {
    let fake = with_data(&volume("web", "data", "Released"), "deleting");
    let program = Program::of(&fake);
    let delete = ["delete", "volume", "web/data"];
    assert_snapshot!(program.run(&delete), @r"
    exit: 2
    --- stderr
    data that is to be removed for good:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    error: deleting these needs a confirmation, and there is no terminal to ask on

    hint: `--yes` says that they may
    ");
    assert_snapshot!(program.run_answering(&delete, "n\n"), @r"
    exit: 1
    --- stderr
    data that is to be removed for good:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    remove it? [y/N] error: nothing was done
    ");
    let tried = format!("DELETE {DATA}?dryRun=true");
    assert_eq!(deletions(&fake), [tried.as_str(), tried.as_str()]);
    assert_snapshot!(program.run_answering(&delete, "y\n"), @r"
    exit: 0
    --- stdout
    volume/web/data deleting
    --- stderr
    data that is to be removed for good:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    remove it? [y/N]
    ");
    assert_snapshot!(program.run(&["delete", "vol", "default/web/data", "--yes"]), @r"
    exit: 0
    --- stdout
    volume/web/data deleting
    --- stderr
    data that is to be removed for good:
      volume default/web/data on a: /var/lib/kat/volumes/default/web/data
    ");
    let done = format!("DELETE {DATA}");
    let done = deletions(&fake).into_iter().filter(|asked| *asked == done);
    assert_eq!(done.count(), 2);
}

#[test]
fn what_is_in_use_is_refused_before_anything_is_asked() {
    let fake = Fake::start();
    fake.list(VOLUMES, &[volume("web", "data", "Bound")]);
    fake.reply(&format!("GET {DATA}"), 200, volume("web", "data", "Bound"));
    let mut refusal = error(
        "Conflict",
        "volume `default/web/data` is in use by web-aaaaa",
    );
    refusal["hint"] = "scale it to 0".into();
    fake.reply(&format!("DELETE {DATA}"), 409, refusal);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["delete", "volume", "web/data", "--yes"]), @r"
    exit: 1
    --- stderr
    error: volume `default/web/data` is in use by web-aaaaa

    hint: scale it to 0
    ");
    assert_snapshot!(program.run(&["delete", "volume", "web/dta"]), @r"
    exit: 3
    --- stderr
    error: there is no volume `web/dta` in namespace `default`

    hint: did you mean `web/data`?
    ");
    let ignored = ["delete", "volume", "web/dta", "--ignore-not-found"];
    assert!(program.run(&ignored).starts_with("exit: 0\n"));
    assert_snapshot!(program.run(&["delete", "volume", "web/data", "--volumes"]), @r"
    exit: 2
    --- stderr
    error: `--volumes` is for workloads and namespaces only
    ");
    assert_snapshot!(program.run(&["delete", "volume", "web/data", "--cascade"]), @r"
    exit: 2
    --- stderr
    error: `--cascade` is for namespaces only
    ");
}

#[test]
fn what_is_only_forgotten_is_not_asked_about() {
    let host = at_path(volume("web", "data", "Bound"), "/srv/conf");
    let fake = with_data(&host, "forgetting");
    assert_snapshot!(Program::of(&fake).run(&["delete", "volume", "web/data"]), @r"
    exit: 0
    --- stdout
    volume/web/data forgetting
    --- stderr
    the files at /srv/conf on a stay; only their place is forgotten
    ");
    let fake = with_data(&volume("web", "data", "Released"), "forgetting");
    assert_snapshot!(Program::of(&fake).run(&["delete", "volume", "web/data"]), @r"
    exit: 0
    --- stdout
    volume/web/data forgetting
    --- stderr
    a is no machine of the cluster: what lies there at /var/lib/kat/volumes/default/web/data is given up, and stays
    ");
    // The volume is already being removed.
    let fake = with_data(&volume("web", "data", "Removing"), "deleting");
    assert_snapshot!(Program::of(&fake).run(&["delete", "volume", "web/data"]), @r"
    exit: 0
    --- stdout
    volume/web/data deleting
    ");
}

#[test]
fn waiting_ends_when_the_data_is_gone() {
    let item = volume("web", "data", "Released");
    let fake = with_data(&item, "deleting");
    let program = Program::of(&fake);
    let delete = ["delete", "volume", "web/data", "--yes", "--wait"];
    let mut running = program.spawn(&delete);
    running.stderr_says("volume web/data: removing");
    fake.change(VOLUMES, "MODIFIED", &volume("web", "data", "Removing"));
    fake.change(VOLUMES, "DELETED", &item);
    let text = running.end();
    assert!(
        text.starts_with("exit: 0\n--- stdout\nvolume/web/data deleted\n"),
        "{text}"
    );

    let late = program.run(&[&delete[..], &["--timeout", "1s"]].concat());
    assert!(late.starts_with("exit: 5\n"), "{late}");
    assert!(late.contains("volume web/data is not gone yet"), "{late}");

    // A volume with another uid is a new one, so the removal is done.
    let mut running = program.spawn(&delete);
    running.stderr_says("volume web/data: removing");
    let mut other = item;
    other["metadata"]["uid"] = "uid-of-another".into();
    fake.change(VOLUMES, "MODIFIED", &other);
    let text = running.end();
    assert!(text.starts_with("exit: 0\n"), "{text}");
}

fn with_workload(volumes: &[Value]) -> Fake {
    let fake = Fake::start();
    let web = workload("web", "Running", [1, 1, 1]);
    fake.reply(&format!("GET {WEB}"), 200, web);
    fake.reply(&format!("DELETE {WEB}"), 200, applied("deleting", "web"));
    fake.list(VOLUMES, volumes);
    fake
}

#[test]
fn a_workload_keeps_its_data_and_says_where() {
    let one = [
        volume("web", "data", "Bound"),
        volume("db", "data", "Bound"),
    ];
    let fake = with_workload(&one);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["delete", "workload", "web"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    --- stderr
    the data of volume default/web/data on a is kept; `katcall delete volume default/web/data` removes it
    ");
    assert_eq!(deletions(&fake), [format!("DELETE {WEB}")]);
    let fake = with_workload(&several());
    assert_snapshot!(Program::of(&fake).run(&["delete", "workload", "web"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    --- stderr
    the data of volumes default/web/data.1 on b, default/web/data.0 on a is kept; `katcall delete volume default/web/data.1` removes that of the first
    ");
    // A caller who cannot read volumes does not have to confirm anything.
    let fake = with_workload(&[]);
    fake.instead(&format!("GET {VOLUMES}"), 403, error("Forbidden", "no"));
    assert_eq!(
        Program::of(&fake).run(&["delete", "workload", "web"]),
        "exit: 0\n--- stdout\nworkload/web deleting\n"
    );
}

#[test]
fn a_workload_takes_its_data_with_it_after_a_yes() {
    let fake = with_workload(&several());
    let program = Program::of(&fake);
    let delete = ["delete", "workload", "web", "--volumes"];
    assert_snapshot!(program.run(&delete), @r"
    exit: 2
    --- stderr
    data that is to be removed for good:
      volume default/web/data.1 on b: /var/lib/kat/volumes/default/web/data.1
      volume default/web/data.0 on a: /var/lib/kat/volumes/default/web/data.0
      volume default/web/media on shared storage: /var/lib/kat/volumes/default/web/media
    places that are to be forgotten; the files there stay:
      volume default/web/conf@host.1 on b: /srv/conf
    error: deleting these needs a confirmation, and there is no terminal to ask on

    hint: `--yes` says that they may
    ");
    assert!(
        program
            .run_answering(&delete, "\n")
            .ends_with("nothing was done\n")
    );
    assert_eq!(deletions(&fake), Vec::<String>::new());
    let text = program.run_answering(&delete, "y\n");
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload/web deleting\n"),
        "{text}"
    );
    assert!(!text.contains("is kept"), "{text}");
    program.file("web/workload.kat", &workload_file("web"));
    let text = program.run(&["delete", "-f", "web", "--volumes", "--yes"]);
    assert!(text.starts_with("exit: 0\n"), "{text}");
    assert!(text.contains("volume default/web/data.1 on b"), "{text}");
    let asked = format!("DELETE {WEB}?volumes=true");
    assert_eq!(deletions(&fake), [asked.as_str(), asked.as_str()]);

    // Nothing has to be confirmed if no data is lost.
    let fake = with_workload(&[]);
    assert_eq!(
        Program::of(&fake).run(&delete),
        "exit: 0\n--- stdout\nworkload/web deleting\n"
    );
}

#[test]
fn with_its_data_a_workload_is_gone_when_that_is_gone() {
    let data = volume("web", "data", "Bound");
    let fake = with_workload(std::slice::from_ref(&data));
    fake.list(WORKLOADS, &[]);
    fake.list(INSTANCES, &[]);
    let program = Program::of(&fake);
    let delete = ["delete", "workload", "web", "--volumes", "--yes", "--wait"];
    let mut running = program.spawn(&delete);
    running.stderr_says("volume web/data: removing");
    fake.change(VOLUMES, "DELETED", &data);
    let text = running.end();
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload/web deleted\n"),
        "{text}"
    );
}

#[test]
fn a_workload_that_is_gone_may_have_left_data() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[]);
    fake.list(VOLUMES, &[volume("web", "data", "Released")]);
    assert_snapshot!(Program::of(&fake).run(&["delete", "workload", "web", "--volumes"]), @r"
    exit: 3
    --- stderr
    error: there is no workload `web` in namespace `default`

    hint: data of it is kept: `katcall delete volume default/web/data` removes it
    ");
}

#[test]
fn a_namespace_keeps_data_or_takes_it() {
    let fake = Fake::start();
    let path = "/v1alpha1/namespaces/shop";
    fake.reply(&format!("DELETE {path}"), 200, applied("deleting", "shop"));
    let mut items = [
        volume("web", "data", "Bound"),
        volume("old", "data", "Released"),
    ];
    for item in &mut items {
        item["metadata"]["namespace"] = "shop".into();
    }
    fake.list(SHOP, &items);
    let program = Program::of(&fake);
    let delete = ["delete", "namespace", "shop", "--cascade"];
    assert_snapshot!(program.run(&delete), @r"
    exit: 0
    --- stdout
    namespace/shop deleting
    --- stderr
    the data of volumes shop/web/data on a, shop/old/data on a is kept; `katcall delete volume shop/web/data` removes that of the first
    ");
    let with_data = [&delete[..], &["--volumes", "--yes"]].concat();
    assert_snapshot!(program.run(&with_data), @r"
    exit: 0
    --- stdout
    namespace/shop deleting
    --- stderr
    data that is to be removed for good:
      volume shop/web/data on a: /var/lib/kat/volumes/default/web/data
      volume shop/old/data on a: /var/lib/kat/volumes/default/old/data
    ");
    assert_eq!(
        deletions(&fake).last(),
        Some(&format!("DELETE {path}?cascade=true&volumes=true"))
    );
}

#[test]
fn pruning_keeps_data_and_says_so() {
    let fake = Fake::start();
    let web = workload("web", "Running", [1, 1, 1]);
    fake.list(WORKLOADS, &[web]);
    fake.list(VOLUMES, &[volume("web", "data", "Bound")]);
    fake.reply(&format!("DELETE {WEB}"), 200, applied("deleting", "web"));
    let api = format!("{WORKLOADS}/api");
    fake.reply(&format!("PUT {api}"), 200, applied("unchanged", "api"));
    let program = Program::of(&fake);
    program.file("shop/workload.kat", &workload_file("api"));
    let prune = ["apply", "-f", "shop", "--prune", "-l", "team=shop", "--yes"];
    let text = program.run(&prune);
    assert!(
        text.contains("the data of volume default/web/data on a is kept"),
        "{text}"
    );
}

#[test]
fn a_machine_that_leaves_takes_data_out_of_reach() {
    let fake = Fake::start();
    fake.list(ALL, &several());
    fake.reply("DELETE /v1alpha1/nodes/b", 200, json!({}));
    fake.reply("DELETE /v1alpha1/nodes/c", 200, json!({}));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["delete", "node", "b"]), @r"
    exit: 0
    --- stdout
    node/b deleted
    --- stderr
    warning: on b lies the data of 2 volumes: default/web/data.1, default/web/conf@host.1; workloads that need it wait until the machine joins again, or `katcall delete volume` gives the data up

    hint: if b still runs or comes back, run `sudo kat-agent reset` there
    ");
    assert_eq!(
        program.run(&["delete", "node", "c"]),
        "exit: 0\n--- stdout\nnode/c deleted\n--- stderr\n\nhint: if c still runs or comes back, run `sudo kat-agent reset` there\n"
    );
}

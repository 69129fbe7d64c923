use insta::assert_snapshot;

use super::{
    fake_api::{Fake, error},
    fixtures::*,
    run_katcall::Program,
};

fn with_web() -> Fake {
    let fake = Fake::start();
    fake.reply(
        &format!("GET {WEB}"),
        200,
        workload("web", "Running", [1, 1, 1]),
    );
    fake.reply(&format!("DELETE {WEB}"), 200, applied("deleted", "web"));
    fake
}

#[test]
fn a_workload_is_deleted_by_name_or_by_its_folder() {
    let fake = with_web();
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["delete", "workload", "web"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    ");
    program.file("web/workload.kat", &workload_file("web"));
    assert_snapshot!(program.run(&["delete", "-f", "web"]), @r"
    exit: 0
    --- stdout
    workload/web deleting
    ");
    let deletions = fake
        .asked()
        .iter()
        .filter(|asked| asked.starts_with("DELETE"))
        .count();
    assert_eq!(deletions, 2);
}

#[test]
fn waiting_ends_when_the_last_instance_is_gone() {
    let fake = with_web();
    let web = workload("web", "Deleting", [1, 1, 1]);
    fake.list(WORKLOADS, std::slice::from_ref(&web));
    let mut foreign = instance("db-aaaaa", "Running");
    foreign["status"]["workload"] = "db".into();
    fake.list(INSTANCES, &[instance("web-aaaaa", "Stopping"), foreign]);
    let program = Program::of(&fake);
    let mut running = program.spawn(&["delete", "workload", "web", "--wait"]);
    running.stderr_says("web: 1 instance left");
    fake.change(WORKLOADS, "DELETED", &web);
    fake.change(INSTANCES, "DELETED", &instance("web-aaaaa", "Stopped"));
    let text = running.end();
    assert!(
        text.starts_with("exit: 0\n--- stdout\nworkload/web deleted\n"),
        "{text}"
    );
}

#[test]
fn waiting_for_too_long_ends_with_5() {
    let fake = with_web();
    fake.list(WORKLOADS, &[workload("web", "Deleting", [1, 1, 1])]);
    fake.list(INSTANCES, &[instance("web-aaaaa", "Stopping")]);
    let program = Program::of(&fake);
    let text = program.run(&["delete", "workload", "web", "--wait", "--timeout", "1s"]);
    assert!(text.starts_with("exit: 5\n"), "{text}");
    assert!(text.contains("is not gone yet: 1 instance left"), "{text}");
}

#[test]
fn a_namespace_that_is_not_empty_wants_cascade() {
    let fake = Fake::start();
    let path = "/v1alpha1/namespaces/shop";
    fake.reply(
        &format!("DELETE {path}"),
        409,
        error("Conflict", "namespace `shop` has 2 workloads"),
    );
    fake.reply(&format!("DELETE {path}"), 200, applied("deleted", "shop"));
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["delete", "namespace", "shop"]), @r"
    exit: 1
    --- stderr
    error: namespace `shop` has 2 workloads

    hint: `--cascade` deletes everything in it too
    ");
    fake.list("/v1alpha1/namespaces", &[]);
    assert_snapshot!(program.run(&["delete", "ns", "shop", "--cascade", "--wait"]), @r"
    exit: 0
    --- stdout
    namespace/shop deleted
    --- stderr
    shop: deleting
    ");
    assert!(
        fake.asked()
            .contains(&format!("DELETE {path}?cascade=true"))
    );
}

#[test]
fn what_is_not_there_or_not_meant_is_refused() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[workload("web", "Running", [1, 1, 1])]);
    let program = Program::of(&fake);
    assert_snapshot!(program.run(&["delete", "workload", "webb"]));
    assert_snapshot!(program.run(&["delete", "workload", "web", "--cascade"]));
    assert_snapshot!(program.run(&["delete", "event", "a"]));
    assert_snapshot!(program.run(&["delete"]));
    assert_snapshot!(program.run(&["delete", "workload"]));
}

#[test]
fn what_is_gone_already_is_no_error_where_that_is_asked_for() {
    let fake = Fake::start();
    fake.list(WORKLOADS, &[]);
    fake.list("/v1alpha1/namespaces", &[]);
    fake.list("/v1alpha1/nodes", &[]);
    let program = Program::of(&fake);
    let ignored = |words: &[&str]| {
        let words = [&["delete", "--ignore-not-found"], words].concat();
        program.run(&words)
    };
    assert_snapshot!(ignored(&["workload", "web", "--wait"]), @r"
    exit: 0
    --- stderr
    there is no workload `web` in namespace `default`
    ");
    assert_snapshot!(ignored(&["namespace", "shop", "--cascade", "--wait"]), @r"
    exit: 0
    --- stderr
    there is no namespace `shop`
    ");
    assert_snapshot!(ignored(&["node", "n9"]), @r"
    exit: 0
    --- stderr
    there is no node `n9`
    ");

    // A workload that disappears between the read and the deletion does not stop the deletion of
    // the next one.
    let web = workload("web", "Running", [1, 1, 1]);
    fake.reply(&format!("GET {WEB}"), 200, web);
    let gone = error("NotFound", "workload `web` does not exist");
    fake.reply(&format!("DELETE {WEB}"), 404, gone);
    let other = format!("{WORKLOADS}/api");
    let api = workload("api", "Running", [1, 1, 1]);
    fake.reply(&format!("GET {other}"), 200, api);
    fake.reply(&format!("DELETE {other}"), 200, applied("deleted", "api"));
    program.file("web/workload.kat", &workload_file("web"));
    program.file("api/workload.kat", &workload_file("api"));
    assert_snapshot!(ignored(&["-f", "web", "-f", "api"]), @r"
    exit: 0
    --- stdout
    workload/api deleting
    --- stderr
    there is no workload `web` in namespace `default`
    ");

    // Other errors are not ignored.
    let refused = error("Forbidden", "a token for `shop` may not do this");
    fake.instead(&format!("DELETE {other}"), 403, refused);
    let text = ignored(&["workload", "api"]);
    assert!(text.starts_with("exit: 1\n"), "{text}");
    let text = ignored(&["-f", "nowhere"]);
    assert!(!text.starts_with("exit: 0\n"), "{text}");
}

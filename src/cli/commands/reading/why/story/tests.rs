use serde_json::json;

use super::*;
use kat_types::api::{ApiTime, IMAGE_PINNED, ObjectKind, ObjectReference};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn workload(phase: &str, counts: [u32; 2], condition: serde_json::Value) -> WorkloadItem {
    serde_json::from_value(json!({
        "kind": "Workload",
        "metadata": {"name": "web", "namespace": "shop", "generation": 3},
        "spec": {"type": "Service", "source": {"image": "registry.lab/web:9"},
            "restartPolicy": {"condition": "Always"}, "container": {}},
        "status": {"phase": phase, "replicas": counts[0], "ready": counts[1], "updated": counts[1],
            "observedGeneration": 3, "conditions": [condition]}
    }))
    .unwrap()
}

fn available(status: bool, reason: &str, message: &str) -> serde_json::Value {
    json!({"type": AVAILABLE, "status": status, "reason": reason, "message": message,
        "since": "2026-01-01T00:55:00Z"})
}

fn instance(id: &str, phase: &str, reason: &str, message: &str) -> InstanceItem {
    serde_json::from_value(json!({
        "kind": "Instance",
        "metadata": {"name": id, "namespace": "shop"},
        "spec": {},
        "status": {"workload": "web", "slot": 1, "node": "n2", "phase": phase, "reason": reason,
            "message": message, "health": "not_applicable", "image": "registry.lab/web:9",
            "generation": 3, "user": "kat-shop-web", "unit": format!("kat-shop-{id}.service"),
            "since": "2026-01-01T00:59:20Z"}
    }))
    .unwrap()
}

#[test]
fn a_workload_is_explained_by_the_instance_that_holds_it_up() {
    let message = "web-bbbbb: manifest unknown";
    let item = workload(
        "Degraded",
        [2, 1],
        available(false, "ImagePullFailed", message),
    );
    let instances = [
        instance("web-aaaaa", "Running", "", ""),
        instance(
            "web-bbbbb",
            "Pulling",
            "ImagePullFailed",
            "manifest unknown",
        ),
    ];
    let story = of_workload(&item, &instances, &[], Vec::new(), now());
    assert_eq!(
        story.state,
        "workload shop/web is Degraded for 5m: 1 of 2 instances healthy, 1 of generation 3"
    );
    assert_eq!(
        story.wanted,
        "2 instances of generation 3, from registry.lab/web:9"
    );
    assert_eq!(
        story.is,
        [
            "web-aaaaa on n2 runs for 40s",
            "web-bbbbb on n2 pulls its image for 40s"
        ]
    );
    assert_eq!(
        story.because,
        ["web-bbbbb: its image registry.lab/web:9 cannot be pulled\n  manifest unknown"],
        "said once"
    );
    assert_eq!(
        story.next,
        [
            "check the image's name and tag, and whether the registry answers: on n2, podman pull registry.lab/web:9"
        ]
    );
}

#[test]
fn the_filter_that_decides_is_named() {
    let why = "0 of 3 machines fit: 3 without the labels of nodeSelector";
    let item = workload("Pending", [1, 0], available(false, "Unschedulable", why));
    let story = of_workload(&item, &[], &[], Vec::new(), now());
    assert_eq!(story.is, ["no instance is placed"]);
    let because = story.because.join("|");
    assert!(because.starts_with("no machine can take"), "{because}");
    assert!(because.contains(why), "{because}");
    assert_eq!(story.next.len(), 1);
}

#[test]
fn what_is_well_and_what_is_under_way_have_their_words() {
    let item = workload("Running", [1, 1], available(true, "AllHealthy", ""));
    let runs = [instance("web-aaaaa", "Running", "", "")];
    let story = of_workload(&item, &runs, &[], Vec::new(), now());
    assert_eq!(story.because, ["no problem is known"]);
    assert_eq!(story.next, Vec::<String>::new());
    let mut late = item;
    late.metadata.generation = 4;
    let story = of_workload(&late, &runs, &[], Vec::new(), now());
    assert_eq!(
        story.because,
        ["the leader has not processed generation 4 yet"]
    );
    let starts = instance("web-aaaaa", "Starting", "", "");
    let story = of_instance(&starts, Vec::new(), now());
    assert_eq!(story.because, ["it progresses, and reports nothing else"]);
}

#[test]
fn a_rollout_that_waits_or_went_nowhere_says_why_and_what_helps() {
    let why = "the rollout is paused: 0 of 2 instances of this generation are healthy";
    let paused = workload("Paused", [2, 0], available(false, "Paused", why));
    let runs = [instance("web-aaaaa", "Running", "", "")];
    let story = of_workload(&paused, &runs, &[], Vec::new(), now());
    assert_eq!(
        story.because,
        [format!(
            "its rollout is paused: no instance of the new version replaces another until it is resumed\n  {why}"
        )]
    );
    assert_eq!(story.next, ["katcall rollout resume shop/web"]);

    let why = "stopped by uid:1000; `katcall start shop/web` starts it";
    let stopped = workload("Stopped", [0, 0], available(false, "Stopped", why));
    let story = of_workload(&stopped, &[], &[], Vec::new(), now());
    assert_eq!(
        story.because,
        [format!(
            "a user stopped it; its volumes, its service address and its secrets stay\n  {why}"
        )]
    );
    assert_eq!(story.next, ["katcall start shop/web"]);

    let why = "no progress for 600 s: ImagePullFailed: web-bbbbb: no such image";
    let stalled = available(false, "ProgressDeadlineExceeded", why);
    let mut stalled = workload("Stalled", [2, 0], stalled);
    let ill = "ImagePullFailed";
    let both = [
        instance("web-aaaaa", "Running", "", ""),
        instance("web-bbbbb", "Pulling", ill, "no such image"),
    ];
    // A first version has no earlier version for a rollback.
    let story = of_workload(&stalled, &both, &[], Vec::new(), now());
    let told = format!("{} {}", story.because.join("|"), story.next.join("|"));
    assert!(told.contains("no earlier version"), "{told}");
    assert!(!told.contains("continues to serve"), "{told}");
    assert!(!told.contains("katcall rollback"), "{told}");
    stalled.status.last_good_generation = Some(2);
    let story = of_workload(&stalled, &both, &[], Vec::new(), now());
    assert_eq!(story.because.len(), 2, "{:?}", story.because);
    assert!(story.because[0].ends_with(why), "{:?}", story.because);
    assert!(story.because[0].contains("continues to serve"));
    assert!(story.because[1].starts_with("web-bbbbb: its image"));
    let next = story.next.join("|");
    assert!(
        next.contains("katcall rollback workload shop/web"),
        "{next}"
    );

    // Before the deadline the way back is named, too, unless an instance is merely on its way.
    let mut updated = workload("Degraded", [2, 1], available(false, ill, "no such image"));
    updated.status.last_good_generation = Some(2);
    let way_back =
        "katcall rollback workload shop/web returns to generation 2, the last healthy one";
    let story = of_workload(&updated, &both, &[], Vec::new(), now());
    assert_eq!(story.next.last().map(String::as_str), Some(way_back));
    // No version helps where the agent of a machine has not begun.
    for (phase, reason) in [
        ("Starting", "HealthCheckPending"),
        ("Scheduled", "WaitingForAgent"),
    ] {
        let calm = [
            instance("web-aaaaa", "Running", "", ""),
            instance("web-bbbbb", phase, reason, ""),
        ];
        let story = of_workload(&updated, &calm, &[], Vec::new(), now());
        assert!(!story.next.iter().any(|next| next == way_back), "{story:?}");
    }
    updated.status.last_good_generation = Some(3);
    let story = of_workload(&updated, &both, &[], Vec::new(), now());
    assert!(!story.next.iter().any(|next| next == way_back), "{story:?}");

    // A healthy workload still has conditions to report.
    let mut well = workload("Running", [1, 1], available(true, "AllHealthy", ""));
    let why = "generation 2 made no progress; generation 1 is taken again";
    well.status.conditions.push(Condition {
        kind: ROLLED_BACK.to_owned(),
        status: true,
        reason: "AutoRollback".to_owned(),
        message: why.to_owned(),
        since: ApiTime::UNKNOWN,
    });
    well.status.paused = true;
    let story = of_workload(&well, &runs, &[], Vec::new(), now());
    assert_eq!(story.because.len(), 2, "{:?}", story.because);
    assert!(story.because[0].ends_with(why), "{:?}", story.because);
    assert!(
        story.because[1].contains("is paused"),
        "{:?}",
        story.because
    );
}

#[test]
fn every_reason_is_told_whoever_it_is_about() {
    for reason in Reason::ALL {
        let item = instance("web-aaaaa", "Starting", reason.word(), "the words of it");
        let story = of_instance(&item, Vec::new(), now());
        let told = [story.because.as_slice(), &story.notes].concat().join("|");
        assert!(told.ends_with("\n  the words of it"), "{told}");
        assert!(!told.contains(&format!("it reports {reason}")), "{told}");
        for text in story.because.iter().chain(&story.next) {
            assert!(!text.contains(['{', '}']), "{text}");
        }
        let next = reasons::find(reason.word()).unwrap().next;
        assert_eq!(story.next.is_empty(), next.is_empty(), "{reason:?}");
    }
    let newer = instance("web-aaaaa", "Starting", "OnTuesdays", "come back");
    let story = of_instance(&newer, Vec::new(), now());
    assert_eq!(story.because, ["it reports OnTuesdays\n  come back"]);
}

#[test]
fn a_machine_that_is_silent_and_one_without_limits_are_explained() {
    let item: NodeItem = serde_json::from_value(json!({
        "kind": "Node", "metadata": {"name": "n2"}, "spec": {},
        "status": {"phase": "NotReady", "reason": "NoHeartbeat",
            "message": "machine n2 has not reported for 60 s",
            "lastHeartbeat": "2026-01-01T00:58:00Z", "instances": 1,
            "conditions": [
                {"type": "LimitsEnforced", "status": false, "reason": "ControllerMissing", "message": "m", "since": ""},
                {"type": "EtcdMember", "status": true, "reason": "Votes", "message": "v", "since": ""}]}
    }))
    .unwrap();
    let event = Event {
        timestamp: ApiTime::parse("2026-01-01T00:59:00Z"),
        reason: "NodeNotReady".to_owned(),
        message: "machine n2 is\nsilent".to_owned(),
        count: 3,
        ..Event::default()
    };
    let story = of_node(&item, &[], vec![event], now());
    assert_eq!(
        story.state,
        "node n2 is NotReady: its last report came 2m ago"
    );
    assert_eq!(story.is, ["1 instance is on it"]);
    assert_eq!(story.because.len(), 1, "{:?}", story.because);
    assert!(story.because[0].contains("has not reported for 60 s"));
    assert!(story.notes[0].contains("limits have no effect there"));
    assert!(story.next[0].contains("katcall delete node n2"));
    assert_eq!(
        story.lately,
        ["1m ago NodeNotReady of  (3 times): machine n2 is | silent"]
    );
}

/// Machines also have a reason `Unconfirmed`, with another meaning.
#[test]
fn an_instance_that_waits_for_its_place_is_told_apart_from_a_machine() {
    let item = instance("web-aaaaa", "Scheduled", "Unconfirmed", "it writes data");
    let story = of_instance(&item, Vec::new(), now());
    assert!(
        story.because[0]
            .starts_with("it writes data, and no leader has confirmed its place since n2 started"),
        "{story:?}"
    );
    assert!(
        story.next.iter().any(|next| next.contains("why node n2")),
        "{story:?}"
    );
}

fn event(kind: EventKind, reason: &str, (about, name): (&str, &str)) -> Event {
    Event {
        timestamp: ApiTime::parse("2026-01-01T00:59:00Z"),
        kind,
        reason: reason.to_owned(),
        message: "the words of it".to_owned(),
        involved_object: ObjectReference {
            kind: ObjectKind::from(about.to_owned()),
            name: name.to_owned(),
            ..ObjectReference::default()
        },
        ..Event::default()
    }
}

#[test]
fn the_latest_warning_is_followed_by_its_next_step() {
    let item = instance("web-aaaaa", "Running", "", "");
    let about = ("Instance", "web-aaaaa");
    let events = vec![
        event(EventKind::Normal, "Healthy", about),
        event(EventKind::Warning, "Unhealthy", about),
        event(EventKind::Warning, "CrashLoop", about),
    ];
    let story = of_instance(&item, events, now());
    assert_eq!(
        story.lately,
        [
            "1m ago Healthy of web-aaaaa: the words of it",
            "1m ago Unhealthy of web-aaaaa: the words of it\n  try: katcall logs web-aaaaa -n shop",
            "1m ago CrashLoop of web-aaaaa: the words of it",
        ]
    );
    assert_eq!(story.next, Vec::<String>::new());
}

#[test]
fn the_next_step_of_a_warning_names_the_object_of_the_warning() {
    let item = workload("Running", [1, 1], available(true, "AllHealthy", ""));
    let runs = [instance("web-aaaaa", "Running", "", "")];
    let told = |reason: &str, about: (&str, &str)| {
        let events = vec![event(EventKind::Warning, reason, about)];
        of_workload(&item, &runs, &[], events, now())
            .lately
            .join("|")
    };
    let reported = told("ImagePullFailed", ("Instance", "web-aaaaa"));
    assert!(
        reported.ends_with("on n2, podman pull registry.lab/web:9"),
        "{reported}"
    );
    let moves = told("VolumeMoveFailed", ("Workload", "web"));
    assert!(
        moves.contains("\n  try: katcall get volumes -n shop -o wide"),
        "{moves}"
    );
    let newer = told("OfANewerVersion", ("Workload", "web"));
    assert!(!newer.contains("try:"), "{newer}");
}

#[test]
fn the_next_step_of_a_warning_is_not_said_twice() {
    let message = "web-aaaaa: manifest unknown";
    let condition = available(false, "ImagePullFailed", message);
    let item = workload("Degraded", [1, 0], condition);
    let pulls = [instance(
        "web-aaaaa",
        "Pulling",
        "ImagePullFailed",
        "manifest unknown",
    )];
    let events = vec![event(
        EventKind::Warning,
        "ImagePullFailed",
        ("Instance", "web-aaaaa"),
    )];
    let story = of_workload(&item, &pulls, &[], events, now());
    assert_eq!(story.next.len(), 1, "{story:?}");
    assert_eq!(
        story.lately,
        ["1m ago ImagePullFailed of web-aaaaa: the words of it"]
    );
}

#[test]
fn notes_and_their_next_steps_come_after_the_cause() {
    let pinned = json!({"type": IMAGE_PINNED, "status": false, "reason": "ImageNotPinned",
        "message": "registry.lab answers over HTTP alone", "since": ""});
    let mut item = workload("Degraded", [1, 0], pinned);
    let cause = available(false, "CrashLoop", "web-aaaaa: the program ended");
    let cause: Condition = serde_json::from_value(cause).unwrap();
    item.status.conditions.push(cause);
    let crashes = [instance("web-aaaaa", "Restarting", "CrashLoop", "exit 1")];
    let story = of_workload(&item, &crashes, &[], Vec::new(), now());
    assert_eq!(story.because.len(), 1, "{story:?}");
    assert!(story.because[0].starts_with("web-aaaaa: its program ends repeatedly"));
    assert_eq!(story.notes.len(), 1, "{story:?}");
    assert!(story.notes[0].ends_with("registry.lab answers over HTTP alone"));
    assert_eq!(story.next[0], "katcall logs web-aaaaa -n shop");
    assert!(story.next[1].contains("katcall registry set"));
    // A note alone holds nothing up.
    item.status.conditions.truncate(1);
    item.status.phase = WorkloadPhase::Running;
    let runs = [instance("web-aaaaa", "Running", "", "")];
    let story = of_workload(&item, &runs, &[], Vec::new(), now());
    assert_eq!(story.because, ["no problem is known"]);
    assert_eq!(story.notes.len(), 1);
}

fn drained(name: &str, forced: bool) -> NodeItem {
    serde_json::from_value(json!({
        "kind": "Node", "metadata": {"name": name},
        "spec": {"draining": true, "drainForced": forced},
        "status": {"phase": "Draining", "reason": "Draining", "instances": 1,
            "message": "instances are on their way elsewhere", "lastHeartbeat": "2026-01-01T00:59:58Z"}
    }))
    .unwrap()
}

#[test]
fn a_drain_that_leaves_no_machine_is_named_first() {
    let why = "0 of 2 machines fit: 1 being drained, 1 without its data";
    let item = workload("Pending", [1, 0], available(false, "Unschedulable", why));
    let told = |forced| {
        let machines = [drained("n2", forced)];
        of_workload(&item, &[], &machines, Vec::new(), now())
    };
    let story = told(true);
    assert!(
        story.because[0].starts_with("machine n2 is being drained by force"),
        "{story:?}"
    );
    assert!(story.because[1].ends_with(why), "{story:?}");
    assert_eq!(story.next[0], "katcall uncordon n2 ends the drain");
    assert_eq!(
        told(false).because[0],
        "machine n2 is being drained and takes no instance"
    );
    // The drain has ended, or excludes nothing.
    let story = of_workload(&item, &[], &[], Vec::new(), now());
    assert!(!story.because.join("").contains("machine n2"), "{story:?}");
    let full = available(
        false,
        "Unschedulable",
        "0 of 2 machines fit: 2 without room",
    );
    let item = workload("Pending", [1, 0], full);
    let story = of_workload(&item, &[], &[drained("n2", true)], Vec::new(), now());
    assert!(!story.because.join("").contains("machine n2"), "{story:?}");
}

#[test]
fn a_drained_machine_names_what_cannot_leave_it_first() {
    let blocked = json!({"type": DRAIN_BLOCKED, "status": true, "reason": "Unschedulable",
        "message": "web-aaaaa can't leave n2: its data is there", "since": ""});
    let item = workload("Running", [1, 1], blocked);
    let story = of_node(&drained("n2", false), &[item], Vec::new(), now());
    assert_eq!(
        story.because[0],
        "workload shop/web cannot leave it\n  web-aaaaa can't leave n2: its data is there"
    );
    assert!(
        story.next[0].contains("katcall drain n2 --force"),
        "{story:?}"
    );
    // Nothing says at the same time that all instances are moving.
    assert_eq!(story.because.len(), 1, "{story:?}");
    assert_eq!(story.next[1..], ["katcall uncordon n2 ends the drain"]);
    let forced = of_node(&drained("n2", true), &[], Vec::new(), now());
    assert!(forced.wanted.ends_with("drained by force"), "{forced:?}");
    // The message of the machine refers to `katcall why`, and is left out.
    assert_eq!(
        forced.because,
        ["its instances are moving to other machines"]
    );
}

#[test]
fn a_workload_that_blocks_a_drain_names_the_machine_in_its_one_next_step() {
    let told = |reason: &str, message: &str, machines: &[NodeItem]| {
        let blocked = json!({"type": DRAIN_BLOCKED, "status": true, "reason": reason, "message": message, "since": ""});
        let item = workload("Running", [1, 1], blocked);
        of_workload(&item, &[], machines, Vec::new(), now())
    };
    let why = "web-aaaaa can't leave n1: 0 of 2 machines fit: 1 being drained";
    let next = "katcall uncordon n1, or make room on another machine; katcall drain n1 --force stops the instance";
    let story = told("Unschedulable", why, &[drained("n1", false)]);
    assert_eq!(story.next, [next]);
    // Of several drained machines, the message names the one that blocks.
    let machines = ["n11", "n1"].map(|name| drained(name, false));
    let story = told("Unschedulable", why, &machines);
    assert_eq!(story.next, ["katcall uncordon n11 ends the drain", next]);
    let waits = "web-aaaaa can't leave n1 yet: its data is on its way";
    let story = told("DrainWaits", waits, &machines);
    assert_eq!(
        story.next,
        [
            "katcall why workload shop/web for its other instances; katcall drain n1 --force does not wait"
        ]
    );
    // Callers that may not read machines are told without a name.
    let story = told("Unschedulable", why, &[]);
    assert!(
        story.next[0].starts_with("katcall uncordon NODE"),
        "{story:?}"
    );
}

#[test]
fn an_image_of_a_sidecar_is_named_as_the_sidecars() {
    let message = kat_types::api::other_image_message(
        kat_types::resource::OtherKind::Sidecar,
        "proxy",
        "registry.lab/proxy:1",
        "manifest unknown",
    );
    let item = instance("web-aaaaa", "Pulling", "ImagePullFailed", &message);
    let story = of_instance(&item, Vec::new(), now());
    assert_eq!(
        story.because,
        [format!(
            "its image registry.lab/proxy:1 cannot be pulled\n  {message}"
        )]
    );
    assert!(story.next[0].ends_with("podman pull registry.lab/proxy:1"));
}

#[test]
fn a_warning_that_has_ended_has_no_next_step() {
    let item = instance("web-aaaaa", "Running", "", "");
    let about = ("Instance", "web-aaaaa");
    let later = Event {
        timestamp: ApiTime::parse("2026-01-01T00:59:30Z"),
        ..event(EventKind::Normal, "Started", about)
    };
    let warning = event(EventKind::Warning, "CrashLoop", about);
    let story = of_instance(&item, vec![later.clone(), warning.clone()], now());
    assert_eq!(
        story.lately,
        [
            "30s ago Started of web-aaaaa: the words of it",
            "1m ago CrashLoop of web-aaaaa: the words of it",
        ]
    );
    let other = Event {
        involved_object: ObjectReference {
            name: "web-bbbbb".to_owned(),
            ..later.involved_object.clone()
        },
        ..later
    };
    let story = of_instance(&item, vec![other, warning], now());
    assert!(story.lately[1].contains("\n  try: "), "{story:?}");
}

#[test]
fn a_machine_without_a_report_to_this_leader_is_not_said_to_be_new() {
    let item = |phase: &str| -> NodeItem {
        serde_json::from_value(
            json!({"kind": "Node", "metadata": {"name": "n2"}, "spec": {},
            "status": {"phase": phase}}),
        )
        .unwrap()
    };
    let state = |phase| of_node(&item(phase), &[], Vec::new(), now()).state;
    assert_eq!(
        state("NotReady"),
        "node n2 is NotReady: it has not reported to the present leader"
    );
    assert_eq!(
        state("Joining"),
        "node n2 is Joining: it has not reported yet"
    );
}

/// A machine is lost for the leader only after the node-loss timeout.
#[test]
fn a_machine_that_went_silent_is_named_before_the_leader_judges_it() {
    let node = |name: &str, phase: &str, reported: &str| -> NodeItem {
        serde_json::from_value(json!({
            "kind": "Node", "metadata": {"name": name}, "spec": {},
            "status": {"phase": phase, "lastHeartbeat": reported}
        }))
        .unwrap()
    };
    let item = workload("Running", [1, 1], available(true, "", ""));
    let runs = [instance("web-aaaaa", "Running", "", "")];
    let told = |nodes: &[NodeItem]| {
        let mut story = of_workload(&item, &runs, &[], Vec::new(), now());
        story.tell_silent_machines(nodes, &runs, now());
        (story.because, story.next)
    };
    let fresh = "2026-01-01T00:59:52Z";
    let well = node("n2", "Ready", fresh);
    let quiet = (vec![NO_PROBLEM.to_owned()], Vec::new());
    assert_eq!(told(std::slice::from_ref(&well)), quiet);
    let start = "machine n2 may be off or cut off, and what is known of its instances may be old: ";

    let mut silent = well.clone();
    silent.status.conditions = vec![
        serde_json::from_value(
            json!({"type": ETCD_CONDITION, "status": false, "reason": "NoAnswer",
            "message": "", "since": fresh}),
        )
        .unwrap(),
    ];
    let (because, next) = told(&[silent]);
    assert_eq!(
        because,
        [format!(
            "{start}its etcd does not answer, its last report came 8s ago"
        )]
    );
    assert_eq!(next, ["katcall why node n2"]);

    let late = node("n2", "Ready", "2026-01-01T00:59:35Z");
    let (because, _) = told(&[late]);
    assert_eq!(because, [format!("{start}its last report came 25s ago")]);

    let mut other = node("n1", "Ready", fresh);
    other.status.peers =
        serde_json::from_value(json!([{"name": "n2", "connected": true, "unansweredSeconds": 6}]))
            .unwrap();
    let (because, _) = told(&[other.clone(), well.clone()]);
    assert_eq!(
        because,
        [format!(
            "{start}n1 gets no answer from it, its last report came 8s ago"
        )]
    );

    // A machine that has reported since then is on: the other one may be off itself.
    let reports = node("n2", "Ready", "2026-01-01T01:00:00Z");
    assert_eq!(told(&[other, reports]), quiet);

    // A machine without instances of the workload, and one that is judged already.
    let elsewhere = node("n3", "Ready", "2026-01-01T00:50:00Z");
    assert_eq!(told(&[well, elsewhere]), quiet);
    let lost = node("n2", "NotReady", "2026-01-01T00:50:00Z");
    assert_eq!(told(&[lost]), quiet);
}

#[test]
fn what_machines_have_left_is_noted_where_none_has_enough() {
    let node = |name: &str, phase: &str, requested: serde_json::Value| -> NodeItem {
        serde_json::from_value(json!({
            "kind": "Node", "metadata": {"name": name}, "spec": {},
            "status": {"phase": phase, "allocatable": {"cpu": "4", "memory": "8Gi"},
                "requested": requested}
        }))
        .unwrap()
    };
    let used = |memory: &str| json!({"cpu": "1500m", "memory": memory});
    let noted = |message: &str, nodes: &[NodeItem]| {
        let item = workload(
            "Pending",
            [1, 0],
            available(false, "Unschedulable", message),
        );
        let mut story = of_workload(&item, &[], &[], Vec::new(), now());
        story.tell_free_resources(&item.status.conditions, nodes);
        story.notes
    };
    let memory = "0 of 2 machines fit: 2 without enough memory left; memory: asks 20Gi";
    let nodes = [
        node("n1", "Ready", used("7Gi")),
        node("n2", "Ready", used("2Gi")),
        node("n3", "NotReady", used("0")),
        // A server of an earlier version does not say it.
        node("n4", "Ready", json!({})),
    ];
    assert_eq!(
        noted(memory, &nodes),
        ["memory that is not requested yet: n2 6.0Gi of 8.0Gi, n1 1.0Gi of 8.0Gi"]
    );
    let both = format!("{memory}; processor: asks 9");
    let processor = "processor that is not requested yet: n1 2500m of 4, n2 2500m of 4";
    assert_eq!(noted(&both, &nodes)[0], processor);
    assert!(noted(memory, &[]).is_empty());
    assert!(noted("0 of 2 machines fit: 2 being drained", &nodes).is_empty());
    let many: Vec<NodeItem> = (0..7)
        .map(|number| node(&format!("m{number}"), "Ready", used("1Gi")))
        .collect();
    assert!(noted(memory, &many)[0].ends_with("m3 7.0Gi of 8.0Gi, and no more on 3 others"));
}

#[test]
fn a_lost_machine_of_a_healthy_daemon_is_a_note() {
    let apart = "one more is on n4, which does not answer";
    let told = |ready: bool, reason: &str, message: &str| {
        let item = workload("Running", [3, 3], available(ready, reason, message));
        of_workload(&item, &[], &[], Vec::new(), now())
    };
    let counts = "3 of 3 instances are healthy";
    let story = told(true, "AllHealthy", &format!("{counts}; {apart}"));
    assert_eq!(story.notes, [apart]);
    assert_eq!(story.because, [NO_PROBLEM]);
    assert!(told(true, "AllHealthy", counts).notes.is_empty());

    // The message of an unhealthy one is among the causes already.
    let message = format!("2 of 3 instances of this generation are healthy; {apart}");
    let story = told(false, "Progressing", &message);
    assert!(story.notes.is_empty(), "{:?}", story.notes);
    assert!(story.because.join("|").contains(apart), "{story:?}");
}

#[test]
fn further_names_and_closed_host_ports_are_notes() {
    let mut item = workload("Running", [1, 1], available(true, "", ""));
    assert!(names_and_sources(&item).is_empty());
    let mut written = serde_json::to_value(&item).unwrap();
    written["spec"]["loadBalancer"] = json!({
        "ports": [
            {"containerPort": 8080, "hostPort": "auto", "allowSources": ["192.0.2.0/24", "198.51.100.1"]},
            {"containerPort": 9090, "hostPort": 90, "hostPortOn": "ingress"},
        ],
        "aliases": ["mysql", "sql"],
    });
    written["status"]["hostPorts"] = json!([
        {"port": 30001, "protocol": "TCP", "containerPort": 8080},
        {"port": 90, "protocol": "TCP", "containerPort": 9090},
    ]);
    item = serde_json::from_value(written).unwrap();
    assert_eq!(
        names_and_sources(&item),
        [
            "its aliases in its namespace: mysql, sql",
            "host port 30001/TCP refuses all but 192.0.2.0/24 and 198.51.100.1",
            "the machines that serve routes have its host port 90/TCP, wherever its instances run",
        ]
    );
}

//! Changes that alter the hashes, and changes that never may.

use serde_json::{Value, json};

use super::*;

fn bundle(change: impl FnOnce(&mut Value, &mut Value)) -> Bundle {
    let (mut main, mut balancer) = (workload(), least(DocumentKind::VirtualLoadBalancer));
    change(&mut main, &mut balancer);
    parsed(&[
        file("workload.kat", &main),
        file("VirtualLoadBalancer.kat", &balancer),
    ])
}

/// A changed hash of an unchanged workload would replace every running instance at an upgrade, so
/// these constants must not change.
#[test]
fn hashes_are_the_same_in_every_version() {
    let least = bundle(|_, _| {});
    assert_eq!(template_hash(&least), "f8404781e6dcca28");
    assert_eq!(spec_hash(&least), "800dead00cdae4aa");
}

#[test]
fn fields_that_once_had_to_be_written_may_be_left_out_and_change_no_hash() {
    let before = parsed(&[file("workload.kat", &workload())]);
    let short = json!({
        "apiVersion": "kat.dws.rip/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "base"},
        "spec": {"source": {"image": "registry.example/base:1"}},
    });
    let after = parsed(&[file("workload.kat", &short)]);
    assert_eq!(before.workload, after.workload);
    assert_eq!(template_hash(&before), template_hash(&after));
    assert_eq!(spec_hash(&before), spec_hash(&after));
    let mut word = workload();
    word["spec"]["restartPolicy"] = json!("Always");
    let word = parsed(&[file("workload.kat", &word)]);
    assert_eq!(before.workload, word.workload);
}

#[test]
fn a_port_has_the_same_hashes_in_either_file() {
    let ports = json!([{"name": "web", "containerPort": 8080, "hostPort": 80}]);
    let in_balancer = bundle(|_, balancer| balancer["spec"]["ports"] = ports.clone());
    let mut main = workload();
    main["spec"]["ports"] = ports.clone();
    let alone = parsed(&[file("workload.kat", &main)]);
    assert_eq!(in_balancer.workload, alone.workload);
    assert_eq!(in_balancer.load_balancer, alone.load_balancer);
    assert_eq!(template_hash(&in_balancer), template_hash(&alone));
    assert_eq!(spec_hash(&in_balancer), spec_hash(&alone));
    assert!(alone.ports_in_workload && !in_balancer.ports_in_workload);
    // The other fields of the load balancer stay in its file.
    let check = json!({"tcp": {"port": "web"}});
    let whole = bundle(|_, balancer| {
        balancer["spec"]["ports"] = ports.clone();
        balancer["spec"]["healthCheck"] = check.clone();
    });
    let split = bundle(|main, balancer| {
        main["spec"]["ports"] = ports.clone();
        balancer["spec"] = json!({"healthCheck": check});
    });
    assert_eq!(whole.load_balancer, split.load_balancer);
    assert_eq!(template_hash(&whole), template_hash(&split));
    assert_eq!(spec_hash(&whole), spec_hash(&split));
    let stored = parse(&split.files, DecodeMode::Stored).unwrap();
    assert_eq!(stored.load_balancer, whole.load_balancer);
}

#[test]
fn what_an_instance_is_made_of_changes_the_template() {
    let before = bundle(|_, _| {});
    let changes: [fn(&mut Value, &mut Value); 10] = [
        |main, _| main["spec"]["source"]["image"] = json!("registry.example/base:2"),
        |main, _| main["spec"]["container"]["env"] = json!([{"name": "A", "value": "1"}]),
        |main, _| main["spec"]["container"]["command"] = json!(["/bin/x"]),
        |main, _| main["spec"]["container"]["init"] = json!(true),
        |main, _| main["spec"]["container"]["resources"] = json!({"limits": {"cpu": "1"}}),
        |main, _| main["spec"]["container"]["resources"] = json!({"gpu": {"driver": "any"}}),
        |main, _| main["spec"]["restartPolicy"]["condition"] = json!("Never"),
        |main, _| main["spec"]["volumes"] = json!([{"name": "d", "tmpfs": {}}]),
        |_, balancer| balancer["spec"]["ports"][0]["containerPort"] = json!(8081),
        |_, balancer| balancer["spec"]["healthCheck"] = json!({"tcp": {"port": 8080}}),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let after = bundle(change);
        assert_ne!(
            template_hash(&before),
            template_hash(&after),
            "change {index}"
        );
        assert_ne!(spec_hash(&before), spec_hash(&after), "change {index}");
    }
}

#[test]
fn scaling_and_placement_do_not_change_the_template() {
    let before = bundle(|_, _| {});
    let changes: [fn(&mut Value, &mut Value); 7] = [
        |_, balancer| balancer["spec"]["aliases"] = json!(["mysql"]),
        |main, _| main["spec"]["replicas"] = json!(5),
        |main, _| main["metadata"]["labels"] = json!({"team": "shop"}),
        |main, _| main["spec"]["nodeSelector"] = json!({"disk": "ssd"}),
        |main, _| main["spec"]["tolerations"] = json!([{"key": "gpu"}]),
        |main, _| main["spec"]["updateStrategy"] = json!({"type": "Simultaneous"}),
        |_, balancer| {
            balancer["spec"]["ingress"] = json!([{"host": "a.example", "servicePort": 8080}]);
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let after = bundle(change);
        assert_eq!(
            template_hash(&before),
            template_hash(&after),
            "change {index}"
        );
        assert_ne!(spec_hash(&before), spec_hash(&after), "change {index}");
    }
}

#[test]
fn who_may_use_a_host_port_replaces_no_instance_and_the_port_itself_does() {
    let with = |port: Value| bundle(|_, balancer| balancer["spec"]["ports"] = json!([port]));
    let open = with(json!({"containerPort": 8080, "hostPort": 80}));
    let closed =
        with(json!({"containerPort": 8080, "hostPort": 80, "allowSources": ["192.0.2.0/24"]}));
    assert_eq!(template_hash(&open), template_hash(&closed));
    assert_ne!(spec_hash(&open), spec_hash(&closed));
    let other = with(json!({"containerPort": 8080, "hostPort": 81}));
    assert_ne!(template_hash(&open), template_hash(&other));
}

#[test]
fn written_defaults_order_and_comments_change_nothing() {
    let before = bundle(|_, _| {});
    let after = bundle(|main, balancer| {
        main["metadata"]["namespace"] = json!("default");
        main["spec"]["updateStrategy"] = json!({"type": "Rolling", "rolling": {"maxSurge": 1}});
        main["spec"]["container"]["drainSeconds"] = json!(5);
        main["spec"]["container"]["env"] = json!([]);
        main["spec"]["container"]["resources"] = json!({"requests": {}});
        balancer["spec"]["ports"][0]["protocol"] = json!("TCP");
    });
    assert_eq!(template_hash(&before), template_hash(&after));
    assert_eq!(spec_hash(&before), spec_hash(&after));
    let text = "# a comment\nkind: Workload\napiVersion: kat.dws.rip/v1alpha1\nspec:\n  container: {}\n  restartPolicy: {condition: \"Always\"}\n  replicas: 1\n  source:\n    image: registry.example/base:1\n  type: Service\nmetadata: {name: base}\n";
    let mut files = before.files.clone();
    files.retain(|file| file.name != "workload.kat");
    files.push(SourceFile {
        name: "workload.kat".to_owned(),
        text: text.to_owned(),
    });
    assert_eq!(spec_hash(&before), spec_hash(&parsed(&files)));
}

#[test]
fn a_namespace_file_changes_nothing_of_the_workload() {
    let alone = parsed(&[file("workload.kat", &workload())]);
    let mut namespace = least(DocumentKind::Namespace);
    namespace["metadata"]["name"] = json!("default");
    let both = parsed(&[
        file("workload.kat", &workload()),
        file("namespace.kat", &namespace),
    ]);
    assert_eq!(spec_hash(&alone), spec_hash(&both));
}

use serde_json::json;

use super::*;

fn obstacles_in(rules: &Value, root: &Path) -> Vec<FirewallObstacle> {
    let needs = RequiredTraffic {
        cluster: "10.90.0.0/16".parse().unwrap(),
        wireguard_port: 51820,
        api_port: 9115,
    };
    find(rules, root, needs)
}

fn opening(protocol: &str, ports: Value) -> Value {
    json!({ "rule": { "family": "inet", "table": "filter", "chain": "input", "expr": [
        { "match": { "op": "==", "left": { "payload": { "protocol": protocol, "field": "dport" } },
            "right": ports } },
        { "accept": null } ] } })
}

fn base(family: &str, table: &str, name: &str, hook: &str, policy: &str) -> Value {
    json!({ "chain": { "family": family, "table": table, "name": name, "hook": hook,
        "policy": policy, "type": "filter", "prio": 0 } })
}

fn accept(family: &str, table: &str, chain: &str, key: &str) -> Value {
    json!({ "rule": { "family": family, "table": table, "chain": chain, "expr": [
        { "match": { "op": "==", "left": { "meta": { "key": key } }, "right": "kat*" } },
        { "counter": { "packets": 0, "bytes": 0 } },
        { "accept": null } ] } })
}

#[test]
fn docker_is_named_until_it_lets_kat_pass() {
    let root = tempfile::tempdir().unwrap();
    let mut list = vec![
        base("ip", "filter", "FORWARD", "forward", "drop"),
        json!({ "chain": { "family": "ip", "table": "filter", "name": "DOCKER-USER" } }),
    ];
    let found = obstacles_in(&json!({ "nftables": list }), root.path());
    assert_eq!(found.len(), 1);
    assert!(found[0].what.contains("Docker"));
    assert!(
        found[0]
            .command
            .contains("iptables -I DOCKER-USER -i kat+ -j ACCEPT")
    );
    list.push(accept("ip", "filter", "DOCKER-USER", "iifname"));
    assert_eq!(
        obstacles_in(&json!({ "nftables": list }), root.path()).len(),
        1
    );
    list.push(accept("ip", "filter", "DOCKER-USER", "oifname"));
    assert_eq!(obstacles_in(&json!({ "nftables": list }), root.path()), []);
}

#[test]
fn own_tables_that_drop_by_default_are_named() {
    let root = tempfile::tempdir().unwrap();
    let mut list = vec![
        base("inet", "filter", "forward", "forward", "drop"),
        base("inet", "filter", "input", "input", "drop"),
        base("inet", "filter", "output", "output", "drop"),
        base("ip6", "filter", "forward", "forward", "drop"),
        base("inet", "other", "forward", "forward", "accept"),
        base("inet", "kat", "forward", "forward", "drop"),
    ];
    let found = obstacles_in(&json!({ "nftables": list }), root.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].command.contains("udp dport 51820 accept"));
    assert!(found[1].command.contains("tcp dport 9115 accept"));
    list.push(accept("inet", "filter", "forward", "iifname"));
    list.push(accept("inet", "filter", "forward", "oifname"));
    list.push(accept("inet", "filter", "input", "iifname"));
    // Only the port that is still closed is named.
    for (open, left) in [
        (
            opening("udp", json!(51820)),
            "sudo nft insert rule inet filter input tcp dport 9115 accept",
        ),
        (
            opening("tcp", json!({ "set": [22, { "range": [9000, 9200] }] })),
            "sudo nft insert rule inet filter input udp dport 51820 accept",
        ),
    ] {
        let rules = [&list[..], &[open]].concat();
        let found = obstacles_in(&json!({ "nftables": rules }), root.path());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].command, left);
    }
    list.push(opening("udp", json!({ "range": [51820, 51821] })));
    list.push(opening("th", json!(9115)));
    assert_eq!(obstacles_in(&json!({ "nftables": list }), root.path()), []);
}

#[test]
fn ufw_and_firewalld_are_named_until_they_let_kat_pass() {
    let root = tempfile::tempdir().unwrap();
    let rules = json!({ "nftables": [
        { "table": { "family": "inet", "name": "firewalld" } },
        base("inet", "firewalld", "filter_FORWARD", "forward", "drop"),
        base("ip", "filter", "FORWARD", "forward", "drop"),
    ] });
    fs::create_dir_all(root.path().join("etc/ufw")).unwrap();
    fs::create_dir_all(root.path().join("etc/firewalld/zones")).unwrap();
    let write = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
    write("etc/ufw/ufw.conf", "# on\nENABLED=yes\nLOGLEVEL=low\n");
    let found = obstacles_in(&rules, root.path());
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0]
            .command
            .starts_with("sudo ufw allow 51820/udp && sudo ufw allow 9115/tcp")
    );
    assert!(found[1].command.starts_with("sudo firewall-cmd"));
    assert!(
        found
            .iter()
            .all(|one| one.hinders == BlockedTraffic::Overlay)
    );
    assert!(found[1].command.contains("--add-port=9115/tcp"));
    let without_api = "-A ufw-user-input -p udp --dport 51820 -j ACCEPT\n\
         -A ufw-user-input -p tcp --dport 91150 -j ACCEPT\n\
         -A ufw-user-input -s 10.90.0.0/16 -j ACCEPT\n\
         -A ufw-user-forward -s 10.90.0.0/16 -j ACCEPT\n\
         -A ufw-user-forward -d 10.90.0.0/16 -j ACCEPT\n";
    write("etc/ufw/user.rules", without_api);
    assert_eq!(obstacles_in(&rules, root.path()).len(), 2);
    write(
        "etc/ufw/user.rules",
        &format!("{without_api}-A ufw-user-input -p tcp --dport 9115 -j ACCEPT\n"),
    );
    write(
        "etc/firewalld/zones/trusted.xml",
        "<zone><source address=\"10.90.0.0/16\"/><interface name=\"kat0\"/></zone>",
    );
    let zone = |api: &str| {
        format!(
            "<zone><port port=\"51820\" protocol=\"udp\"/><port port=\"9115\" protocol=\"{api}\"/></zone>"
        )
    };
    write("etc/firewalld/zones/public.xml", &zone("udp"));
    assert_eq!(obstacles_in(&rules, root.path()).len(), 1);
    write("etc/firewalld/zones/public.xml", &zone("tcp"));
    assert_eq!(obstacles_in(&rules, root.path()), []);
}

#[test]
fn a_strict_firewalld_is_named_for_its_host_ports() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("etc/firewalld/firewalld.conf");
    fs::create_dir_all(root.path().join("etc/firewalld/zones")).unwrap();
    let zone = "<zone><source address=\"10.90.0.0/16\"/><interface name=\"kat0\"/>\
        <port port=\"51820\" protocol=\"udp\"/><port port=\"9115\" protocol=\"tcp\"/></zone>";
    fs::write(root.path().join("etc/firewalld/zones/trusted.xml"), zone).unwrap();
    let runs = json!({ "nftables": [{ "table": { "family": "inet", "name": "firewalld" } }] });
    for (line, named) in [
        ("StrictForwardPorts=yes", true),
        ("StrictForwardPorts = True", true),
        ("StrictForwardPorts=no", false),
        ("# StrictForwardPorts=yes", false),
        ("", false),
    ] {
        fs::write(&file, format!("DefaultZone=public\n{line}\n")).unwrap();
        let found = obstacles_in(&runs, root.path());
        assert_eq!(found.len(), usize::from(named), "{line}: {found:?}");
        assert!(
            found
                .iter()
                .all(|one| one.hinders == BlockedTraffic::HostPorts)
        );
        // A firewalld that does not run is no obstacle.
        assert_eq!(obstacles_in(&json!({ "nftables": [] }), root.path()), []);
    }
}

#[test]
fn an_empty_machine_has_no_obstacles() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(obstacles_in(&json!({ "nftables": [] }), root.path()), []);
    assert_eq!(obstacles_in(&json!({}), root.path()), []);
}

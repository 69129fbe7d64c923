//! Other firewalls that would drop the overlay's traffic, and the commands that mend it.
//!
//! An accept in KAT's table does not undo a drop in another one, so that these are found, named,
//! and left to the administrator.

use std::{collections::BTreeSet, fs, path::Path};

use ipnet::Ipv4Net;
use serde_json::Value;

use super::firewall::{self, FirewallError};

/// Something in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// A sentence that says what it is and what it does.
    pub what: String,
    /// Shell command that mends it.
    pub command: String,
}

/// What must come through a firewall from other machines; all else is inside WireGuard.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// The network of the containers, and of the machines among themselves.
    pub cluster: Ipv4Net,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// TCP port of the API.
    pub api_port: u16,
}

/// Finds firewalls on this machine that drop traffic between containers, WireGuard's or the API's.
///
/// # Errors
/// `nft` can't be run.
pub async fn foreign_obstacles(needs: Needs) -> Result<Vec<Obstacle>, FirewallError> {
    let text = firewall::nft(&["-j", "list", "ruleset"], "").await?;
    let rules: Value = serde_json::from_str(&text).map_err(FirewallError::Malformed)?;
    Ok(find(&rules, Path::new("/"), needs))
}

/// As [`foreign_obstacles`], from `nft -j list ruleset` and the files below `root`.
pub fn find(rules: &Value, root: &Path, needs: Needs) -> Vec<Obstacle> {
    let Needs {
        cluster,
        wireguard_port,
        api_port,
    } = needs;
    let ruleset = Ruleset::read(rules);
    let mut obstacles = Vec::new();
    let ufw = ufw_is_enabled(root);
    if ufw && !ufw_lets_pass(root, needs) {
        obstacles.push(Obstacle {
            what: "ufw is enabled and drops WireGuard, the API or forwarded traffic".into(),
            command: format!(
                "sudo ufw allow {wireguard_port}/udp && sudo ufw allow {api_port}/tcp && \
                 sudo ufw allow from {cluster} && sudo ufw route allow from {cluster} && \
                 sudo ufw route allow to {cluster}"
            ),
        });
    }
    let firewalld = ruleset.tables.contains("firewalld");
    if firewalld && !firewalld_lets_pass(root, needs) {
        obstacles.push(Obstacle {
            what: "firewalld is running and drops WireGuard, the API or forwarded traffic".into(),
            command: format!(
                "sudo firewall-cmd --permanent --zone=trusted --add-source={cluster} && \
                 sudo firewall-cmd --permanent --zone=trusted --add-interface=kat0 && \
                 sudo firewall-cmd --permanent --add-port={wireguard_port}/udp && \
                 sudo firewall-cmd --permanent --add-port={api_port}/tcp && \
                 sudo firewall-cmd --reload"
            ),
        });
    }
    for chain in &ruleset.dropping {
        if chain.table == "firewalld" || (ufw && chain.is_iptables()) {
            continue;
        }
        if let Some(obstacle) = chain.obstacle(&ruleset, needs) {
            obstacles.push(obstacle);
        }
    }
    obstacles
}

/// A base chain that drops what no rule of it accepts.
#[derive(Debug)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: String,
}

impl Chain {
    fn is_iptables(&self) -> bool {
        self.family == "ip" && self.table == "filter"
    }

    fn obstacle(&self, ruleset: &Ruleset, needs: Needs) -> Option<Obstacle> {
        let Self {
            family,
            table,
            name,
            hook,
        } = self;
        let own = (family.clone(), table.clone(), name.clone());
        let accepts = |key: &str| ruleset.accepts(&own, key);
        let docker = (family.clone(), table.clone(), "DOCKER-USER".to_owned());
        if self.is_iptables() && hook == "forward" && ruleset.chains.contains(&docker) {
            let by_docker =
                ruleset.accepts(&docker, "iifname") && ruleset.accepts(&docker, "oifname");
            let passes = by_docker || (accepts("iifname") && accepts("oifname"));
            return (!passes).then(docker_drops);
        }
        let (what, wanted) = if hook == "forward" {
            let rules = vec![
                (accepts("iifname"), "iifname 'kat*'".to_owned()),
                (accepts("oifname"), "oifname 'kat*'".to_owned()),
            ];
            ("forwarded", rules)
        } else {
            let opens = |protocol, port| ruleset.opens(&own, protocol, port);
            let (wireguard, api) = (needs.wireguard_port, needs.api_port);
            let rules = vec![
                (accepts("iifname"), "iifname 'kat*'".to_owned()),
                (opens("udp", wireguard), format!("udp dport {wireguard}")),
                (opens("tcp", api), format!("tcp dport {api}")),
            ];
            ("incoming", rules)
        };
        let commands: Vec<String> = wanted
            .into_iter()
            .filter(|(there, _)| !there)
            .map(|(_, rule)| format!("sudo nft insert rule {family} {table} {name} {rule} accept"))
            .collect();
        (!commands.is_empty()).then(|| Obstacle {
            what: format!(
                "chain {name} of table {family} {table} drops {what} traffic by default; \
                 keep the command's rules in that table's own configuration too"
            ),
            command: commands.join(" && "),
        })
    }
}

fn docker_drops() -> Obstacle {
    let [inward, outward] = [
        "-I DOCKER-USER -i kat+ -j ACCEPT",
        "-I DOCKER-USER -o kat+ -j ACCEPT",
    ];
    Obstacle {
        what:
            "Docker set the policy of the FORWARD chain to drop: containers of KAT reach neither \
               each other nor the outside"
                .into(),
        command: format!(
            "sudo mkdir -p /etc/systemd/system/docker.service.d && \
             printf '[Service]\\nExecStartPost=/usr/sbin/iptables {inward}\\n\
             ExecStartPost=/usr/sbin/iptables {outward}\\n' | \
             sudo tee /etc/systemd/system/docker.service.d/kat.conf && \
             sudo systemctl daemon-reload && sudo iptables {inward} && sudo iptables {outward}"
        ),
    }
}

type ChainName = (String, String, String);

/// What matters of a listed rule set.
#[derive(Debug, Default)]
struct Ruleset {
    tables: BTreeSet<String>,
    chains: BTreeSet<ChainName>,
    dropping: Vec<Chain>,
    /// Chain and `iifname` or `oifname`: rules that accept KAT's links.
    accepting: BTreeSet<(ChainName, String)>,
    /// Chain, protocol (`th` for any), first and last port: rules that accept packets to these ports.
    opening: BTreeSet<(ChainName, String, u64, u64)>,
}

impl Ruleset {
    fn read(rules: &Value) -> Self {
        let mut found = Self::default();
        let empty = Vec::new();
        let list = rules.get("nftables").and_then(Value::as_array);
        for item in list.unwrap_or(&empty) {
            if let Some(table) = item.get("table") {
                found.tables.insert(text(table, "name"));
            } else if let Some(chain) = item.get("chain") {
                found.read_chain(chain);
            } else if let Some(rule) = item.get("rule") {
                found.read_rule(rule);
            }
        }
        found
    }

    fn read_chain(&mut self, chain: &Value) {
        let (family, table, name) = (
            text(chain, "family"),
            text(chain, "table"),
            text(chain, "name"),
        );
        let hook = text(chain, "hook");
        self.chains
            .insert((family.clone(), table.clone(), name.clone()));
        let ours = table == firewall::TABLE && family == firewall::FAMILY;
        let sees_ipv4 = family == "ip" || family == "inet";
        let drops = text(chain, "policy") == "drop" && (hook == "forward" || hook == "input");
        if drops && sees_ipv4 && !ours {
            self.dropping.push(Chain {
                family,
                table,
                name,
                hook,
            });
        }
    }

    fn read_rule(&mut self, rule: &Value) {
        let empty = Vec::new();
        let parts = rule.get("expr").and_then(Value::as_array).unwrap_or(&empty);
        if !parts.iter().any(|part| part.get("accept").is_some()) {
            return;
        }
        let chain = (
            text(rule, "family"),
            text(rule, "table"),
            text(rule, "chain"),
        );
        for part in parts {
            let Some(matching) = part.get("match") else {
                continue;
            };
            let key = matching.pointer("/left/meta/key").and_then(Value::as_str);
            let link = matching.get("right").and_then(Value::as_str);
            if let (Some(key @ ("iifname" | "oifname")), Some("kat*" | "kat+")) = (key, link) {
                self.accepting.insert((chain.clone(), key.to_owned()));
            }
            self.read_ports(&chain, matching);
        }
    }

    /// `udp dport 51820`, `tcp dport { 22, 9000-9200 }`.
    fn read_ports(&mut self, chain: &ChainName, matching: &Value) {
        let Some(payload) = matching.pointer("/left/payload") else {
            return;
        };
        if text(payload, "field") != "dport" || text(matching, "op") != "==" {
            return;
        }
        let Some(right) = matching.get("right") else {
            return;
        };
        let one = std::slice::from_ref(right);
        let ports = right.get("set").and_then(Value::as_array);
        for port in ports.map_or(one, Vec::as_slice) {
            let bound = |at: &str| port.pointer(at).unwrap_or(port).as_u64();
            if let (Some(first), Some(last)) = (bound("/range/0"), bound("/range/1")) {
                let protocol = text(payload, "protocol");
                self.opening.insert((chain.clone(), protocol, first, last));
            }
        }
    }

    fn accepts(&self, chain: &ChainName, direction: &str) -> bool {
        self.accepting
            .contains(&(chain.clone(), direction.to_owned()))
    }

    fn opens(&self, chain: &ChainName, protocol: &str, port: u16) -> bool {
        self.opening.iter().any(|(name, which, first, last)| {
            name == chain
                && (which == protocol || which == "th")
                && (*first..=*last).contains(&u64::from(port))
        })
    }
}

fn text(value: &Value, key: &str) -> String {
    let found = value.get(key).and_then(Value::as_str);
    found.unwrap_or_default().to_owned()
}

fn file(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default()
}

fn ufw_is_enabled(root: &Path) -> bool {
    file(root, "etc/ufw/ufw.conf")
        .lines()
        .any(|line| line.trim().eq_ignore_ascii_case("ENABLED=yes"))
}

fn ufw_lets_pass(root: &Path, needs: Needs) -> bool {
    let rules = file(root, "etc/ufw/user.rules");
    let cluster = needs.cluster.to_string();
    let has = |start: &str, words: &[&str]| {
        rules.lines().any(|line| {
            line.starts_with(start)
                && line.contains("-j ACCEPT")
                && words.iter().all(|word| line.contains(word))
        })
    };
    let opens = |protocol: &str, port: u16| {
        let port = format!("--dport {port} ");
        has("-A ufw-user-input", &[&format!("-p {protocol} "), &port])
    };
    opens("udp", needs.wireguard_port)
        && opens("tcp", needs.api_port)
        && has("-A ufw-user-input", &[&format!("-s {cluster}")])
        && has("-A ufw-user-forward", &[&format!("-s {cluster}")])
        && has("-A ufw-user-forward", &[&format!("-d {cluster}")])
}

fn firewalld_lets_pass(root: &Path, needs: Needs) -> bool {
    let trusted = file(root, "etc/firewalld/zones/trusted.xml");
    let zones: Vec<String> = fs::read_dir(root.join("etc/firewalld/zones"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .collect();
    let opens = |protocol: &str, port: u16| {
        let (port, protocol) = (format!("port=\"{port}\""), format!("\"{protocol}\""));
        let mut elements = zones.iter().flat_map(|zone| zone.split('<'));
        elements.any(|element| element.contains(&port) && element.contains(&protocol))
    };
    opens("udp", needs.wireguard_port)
        && opens("tcp", needs.api_port)
        && trusted.contains(&needs.cluster.to_string())
        && trusted.contains("\"kat0\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(rules: &Value, root: &Path) -> Vec<Obstacle> {
        let needs = Needs {
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
        let found = look(&json!({ "nftables": list }), root.path());
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("Docker"));
        assert!(
            found[0]
                .command
                .contains("iptables -I DOCKER-USER -i kat+ -j ACCEPT")
        );
        list.push(accept("ip", "filter", "DOCKER-USER", "iifname"));
        assert_eq!(look(&json!({ "nftables": list }), root.path()).len(), 1);
        list.push(accept("ip", "filter", "DOCKER-USER", "oifname"));
        assert_eq!(look(&json!({ "nftables": list }), root.path()), []);
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
        let found = look(&json!({ "nftables": list }), root.path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[1].command.contains("udp dport 51820 accept"));
        assert!(found[1].command.contains("tcp dport 9115 accept"));
        list.push(accept("inet", "filter", "forward", "iifname"));
        list.push(accept("inet", "filter", "forward", "oifname"));
        list.push(accept("inet", "filter", "input", "iifname"));
        // A port that stays closed is named, alone.
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
            let found = look(&json!({ "nftables": rules }), root.path());
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].command, left);
        }
        list.push(opening("udp", json!({ "range": [51820, 51821] })));
        list.push(opening("th", json!(9115)));
        assert_eq!(look(&json!({ "nftables": list }), root.path()), []);
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
        let found = look(&rules, root.path());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0]
                .command
                .starts_with("sudo ufw allow 51820/udp && sudo ufw allow 9115/tcp")
        );
        assert!(found[1].command.starts_with("sudo firewall-cmd"));
        assert!(found[1].command.contains("--add-port=9115/tcp"));
        let without_api = "-A ufw-user-input -p udp --dport 51820 -j ACCEPT\n\
             -A ufw-user-input -p tcp --dport 91150 -j ACCEPT\n\
             -A ufw-user-input -s 10.90.0.0/16 -j ACCEPT\n\
             -A ufw-user-forward -s 10.90.0.0/16 -j ACCEPT\n\
             -A ufw-user-forward -d 10.90.0.0/16 -j ACCEPT\n";
        write("etc/ufw/user.rules", without_api);
        assert_eq!(look(&rules, root.path()).len(), 2);
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
        assert_eq!(look(&rules, root.path()).len(), 1);
        write("etc/firewalld/zones/public.xml", &zone("tcp"));
        assert_eq!(look(&rules, root.path()), []);
    }

    #[test]
    fn an_empty_machine_has_no_obstacles() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(look(&json!({ "nftables": [] }), root.path()), []);
        assert_eq!(look(&json!({}), root.path()), []);
    }
}

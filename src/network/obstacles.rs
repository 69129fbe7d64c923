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
    /// Shell command, run as root, that mends it.
    pub command: String,
}

/// Finds firewalls on this machine that drop traffic between containers, or WireGuard's.
///
/// # Errors
/// `nft` can't be run.
pub async fn foreign_obstacles(
    cluster: Ipv4Net,
    wireguard_port: u16,
) -> Result<Vec<Obstacle>, FirewallError> {
    let text = firewall::nft(&["-j", "list", "ruleset"], "").await?;
    let rules: Value = serde_json::from_str(&text).map_err(FirewallError::Malformed)?;
    Ok(find(&rules, Path::new("/"), cluster, wireguard_port))
}

/// As [`foreign_obstacles`], from `nft -j list ruleset` and the files below `root`.
pub fn find(rules: &Value, root: &Path, cluster: Ipv4Net, wireguard_port: u16) -> Vec<Obstacle> {
    let ruleset = Ruleset::read(rules);
    let mut obstacles = Vec::new();
    let ufw = ufw_is_enabled(root);
    if ufw && !ufw_lets_pass(root, cluster, wireguard_port) {
        obstacles.push(Obstacle {
            what: "ufw is enabled and drops WireGuard and forwarded traffic".into(),
            command: format!(
                "ufw allow {wireguard_port}/udp && ufw allow from {cluster} && \
                 ufw route allow from {cluster} && ufw route allow to {cluster}"
            ),
        });
    }
    let firewalld = ruleset.tables.contains("firewalld");
    if firewalld && !firewalld_lets_pass(root, cluster, wireguard_port) {
        obstacles.push(Obstacle {
            what: "firewalld is running and drops WireGuard and forwarded traffic".into(),
            command: format!(
                "firewall-cmd --permanent --zone=trusted --add-source={cluster} && \
                 firewall-cmd --permanent --zone=trusted --add-interface=kat0 && \
                 firewall-cmd --permanent --add-port={wireguard_port}/udp && \
                 firewall-cmd --reload"
            ),
        });
    }
    for chain in &ruleset.dropping {
        if chain.table == "firewalld" || (ufw && chain.is_iptables()) {
            continue;
        }
        if let Some(obstacle) = chain.obstacle(&ruleset, wireguard_port) {
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

    fn obstacle(&self, ruleset: &Ruleset, port: u16) -> Option<Obstacle> {
        let Self {
            family,
            table,
            name,
            hook,
        } = self;
        let docker = (family.clone(), table.clone(), "DOCKER-USER".to_owned());
        if self.is_iptables() && hook == "forward" && ruleset.chains.contains(&docker) {
            let rules = [
                "-I DOCKER-USER -i kat+ -j ACCEPT",
                "-I DOCKER-USER -o kat+ -j ACCEPT",
            ];
            if ruleset.accepts_both_ways(self) || ruleset.accepts_in(&docker) {
                return None;
            }
            let [inward, outward] = rules;
            return Some(Obstacle {
                what: "Docker set the policy of the FORWARD chain to drop: containers of KAT \
                       reach neither each other nor the outside"
                    .into(),
                command: format!(
                    "mkdir -p /etc/systemd/system/docker.service.d && \
                     printf '[Service]\\nExecStartPost=/usr/sbin/iptables {inward}\\n\
                     ExecStartPost=/usr/sbin/iptables {outward}\\n' \
                     > /etc/systemd/system/docker.service.d/kat.conf && \
                     systemctl daemon-reload && iptables {inward} && iptables {outward}"
                ),
            });
        }
        if hook == "forward" {
            if ruleset.accepts_both_ways(self) {
                return None;
            }
            return Some(Obstacle {
                what: format!(
                    "chain {name} of table {family} {table} drops forwarded traffic by default; \
                     keep the command's rules in that table's own configuration too"
                ),
                command: format!(
                    "nft insert rule {family} {table} {name} iifname 'kat*' accept && \
                     nft insert rule {family} {table} {name} oifname 'kat*' accept"
                ),
            });
        }
        if ruleset.accepts_from_kat(self) {
            return None;
        }
        Some(Obstacle {
            what: format!(
                "chain {name} of table {family} {table} drops incoming traffic by default; \
                 keep the command's rules in that table's own configuration too"
            ),
            command: format!(
                "nft insert rule {family} {table} {name} iifname 'kat*' accept && \
                 nft insert rule {family} {table} {name} udp dport {port} accept"
            ),
        })
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
        }
    }

    fn accepts(&self, chain: &ChainName, direction: &str) -> bool {
        self.accepting
            .contains(&(chain.clone(), direction.to_owned()))
    }

    fn accepts_in(&self, chain: &ChainName) -> bool {
        self.accepts(chain, "iifname") && self.accepts(chain, "oifname")
    }

    fn accepts_both_ways(&self, chain: &Chain) -> bool {
        self.accepts_in(&chain_name(chain))
    }

    fn accepts_from_kat(&self, chain: &Chain) -> bool {
        self.accepts(&chain_name(chain), "iifname")
    }
}

fn chain_name(chain: &Chain) -> ChainName {
    (
        chain.family.clone(),
        chain.table.clone(),
        chain.name.clone(),
    )
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

fn ufw_lets_pass(root: &Path, cluster: Ipv4Net, port: u16) -> bool {
    let rules = file(root, "etc/ufw/user.rules");
    let cluster = cluster.to_string();
    let has = |start: &str, words: &[&str]| {
        rules.lines().any(|line| {
            line.starts_with(start)
                && line.contains("-j ACCEPT")
                && words.iter().all(|word| line.contains(word))
        })
    };
    has("-A ufw-user-input", &["-p udp", &format!("--dport {port}")])
        && has("-A ufw-user-input", &[&format!("-s {cluster}")])
        && has("-A ufw-user-forward", &[&format!("-s {cluster}")])
        && has("-A ufw-user-forward", &[&format!("-d {cluster}")])
}

fn firewalld_lets_pass(root: &Path, cluster: Ipv4Net, port: u16) -> bool {
    let trusted = file(root, "etc/firewalld/zones/trusted.xml");
    let port = format!("port=\"{port}\"");
    let open = fs::read_dir(root.join("etc/firewalld/zones"))
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| fs::read_to_string(entry.path()).is_ok_and(|zone| zone.contains(&port)));
    open && trusted.contains(&cluster.to_string()) && trusted.contains("\"kat0\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(rules: &Value, root: &Path) -> Vec<Obstacle> {
        find(rules, root, "10.90.0.0/16".parse().unwrap(), 51820)
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
        list.push(accept("inet", "filter", "forward", "iifname"));
        list.push(accept("inet", "filter", "forward", "oifname"));
        list.push(accept("inet", "filter", "input", "iifname"));
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
        assert!(found[0].command.starts_with("ufw allow 51820/udp"));
        assert!(found[1].command.starts_with("firewall-cmd"));
        write(
            "etc/ufw/user.rules",
            "-A ufw-user-input -p udp --dport 51820 -j ACCEPT\n\
             -A ufw-user-input -s 10.90.0.0/16 -j ACCEPT\n\
             -A ufw-user-forward -s 10.90.0.0/16 -j ACCEPT\n\
             -A ufw-user-forward -d 10.90.0.0/16 -j ACCEPT\n",
        );
        write(
            "etc/firewalld/zones/trusted.xml",
            "<zone><source address=\"10.90.0.0/16\"/><interface name=\"kat0\"/></zone>",
        );
        write(
            "etc/firewalld/zones/public.xml",
            "<zone><port port=\"51820\" protocol=\"udp\"/></zone>",
        );
        assert_eq!(look(&rules, root.path()), []);
    }

    #[test]
    fn an_empty_machine_has_no_obstacles() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(look(&json!({ "nftables": [] }), root.path()), []);
        assert_eq!(look(&json!({}), root.path()), []);
    }
}

//! Finds other firewalls that would drop the overlay's traffic, and the commands that fix it.
//!
//! An accept in KAT's table does not override a drop in another one, so such firewalls are reported
//! to the administrator.

use std::{collections::BTreeSet, fs, path::Path};

use ipnet::Ipv4Net;
use serde_json::Value;

use super::firewall::{self, FirewallError};

/// A firewall that drops KAT's traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirewallObstacle {
    /// A sentence with the firewall and its effect.
    pub what: String,
    /// Shell command that fixes it.
    pub command: String,
    /// What it prevents from working.
    pub hinders: BlockedTraffic,
}

/// What an obstacle prevents from working.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockedTraffic {
    /// The overlay: machines or containers don't reach each other or the outside.
    Overlay,
    /// Only host ports.
    HostPorts,
}

/// Traffic that a firewall has to let through; everything else is inside WireGuard.
#[derive(Debug, Clone, Copy)]
pub struct RequiredTraffic {
    /// Network of the containers and of the machines' overlay addresses.
    pub cluster: Ipv4Net,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// TCP port of the API.
    pub api_port: u16,
}

/// Finds firewalls on this machine that drop traffic between containers, of WireGuard or of the
/// API.
///
/// # Errors
/// `nft` can't be run.
pub async fn foreign_obstacles(
    needs: RequiredTraffic,
) -> Result<Vec<FirewallObstacle>, FirewallError> {
    let text = firewall::nft(&["-j", "list", "ruleset"], "").await?;
    let rules: Value = serde_json::from_str(&text).map_err(FirewallError::Malformed)?;
    Ok(find(&rules, Path::new("/"), needs))
}

/// Like [`foreign_obstacles`], from the output of `nft -j list ruleset` and the files below `root`.
pub fn find(rules: &Value, root: &Path, needs: RequiredTraffic) -> Vec<FirewallObstacle> {
    let RequiredTraffic {
        cluster,
        wireguard_port,
        api_port,
    } = needs;
    let ruleset = Ruleset::read(rules);
    let mut obstacles = Vec::new();
    let ufw = ufw_is_enabled(root);
    if ufw && !ufw_lets_pass(root, needs) {
        obstacles.push(FirewallObstacle {
            what: "ufw is enabled and drops WireGuard, the API or forwarded traffic".into(),
            command: format!(
                "sudo ufw allow {wireguard_port}/udp && sudo ufw allow {api_port}/tcp && \
                 sudo ufw allow from {cluster} && sudo ufw route allow from {cluster} && \
                 sudo ufw route allow to {cluster}"
            ),
            hinders: BlockedTraffic::Overlay,
        });
    }
    let firewalld = ruleset.tables.contains("firewalld");
    if firewalld && !firewalld_lets_pass(root, needs) {
        obstacles.push(FirewallObstacle {
            what: "firewalld is running and drops WireGuard, the API or forwarded traffic".into(),
            command: format!(
                "sudo firewall-cmd --permanent --zone=trusted --add-source={cluster} && \
                 sudo firewall-cmd --permanent --zone=trusted --add-interface=kat0 && \
                 sudo firewall-cmd --permanent --add-port={wireguard_port}/udp && \
                 sudo firewall-cmd --permanent --add-port={api_port}/tcp && \
                 sudo firewall-cmd --reload"
            ),
            hinders: BlockedTraffic::Overlay,
        });
    }
    if firewalld && firewalld_is_strict(root) {
        obstacles.push(FirewallObstacle {
            what: "StrictForwardPorts of firewalld keeps ports of the machine that are forwarded \
                   to workloads (hostPort) closed, for this machine itself too"
                .into(),
            command: "sudo sed -i 's/^ *StrictForwardPorts *=.*/StrictForwardPorts=no/' \
                      /etc/firewalld/firewalld.conf && sudo firewall-cmd --reload"
                .into(),
            hinders: BlockedTraffic::HostPorts,
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

/// A base chain that drops packets by default.
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

    fn obstacle(&self, ruleset: &Ruleset, needs: RequiredTraffic) -> Option<FirewallObstacle> {
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
        (!commands.is_empty()).then(|| FirewallObstacle {
            what: format!(
                "chain {name} of table {family} {table} drops {what} traffic by default; \
                 keep the command's rules in that table's own configuration too"
            ),
            command: commands.join(" && "),
            hinders: BlockedTraffic::Overlay,
        })
    }
}

fn docker_drops() -> FirewallObstacle {
    let [inward, outward] = [
        "-I DOCKER-USER -i kat+ -j ACCEPT",
        "-I DOCKER-USER -o kat+ -j ACCEPT",
    ];
    FirewallObstacle {
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
        hinders: BlockedTraffic::Overlay,
    }
}

type ChainName = (String, String, String);

/// The relevant part of a listed rule set.
#[derive(Debug, Default)]
struct Ruleset {
    tables: BTreeSet<String>,
    chains: BTreeSet<ChainName>,
    dropping: Vec<Chain>,
    /// Rules that accept KAT's links, as chain and `iifname` or `oifname`.
    accepting: BTreeSet<(ChainName, String)>,
    /// Rules that accept packets to ports, as chain, protocol (`th` for any), first and last port.
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

    /// Reads matches such as `udp dport 51820` and `tcp dport { 22, 9000-9200 }`.
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

fn ufw_lets_pass(root: &Path, needs: RequiredTraffic) -> bool {
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

fn firewalld_lets_pass(root: &Path, needs: RequiredTraffic) -> bool {
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

/// Whether firewalld blocks packets that other rules have forwarded, as KAT's host ports do; by
/// default it lets them pass.
fn firewalld_is_strict(root: &Path) -> bool {
    let settings = file(root, "etc/firewalld/firewalld.conf");
    let mut values = settings.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "StrictForwardPorts").then(|| value.trim().to_ascii_lowercase())
    });
    values.any(|value| value == "yes" || value == "true")
}

#[cfg(test)]
mod tests;

//! KAT's own nftables table: the way out of containers, and nobody else's way in.
//!
//! One table, `inet kat`, replaced as a whole in one transaction through `nft -j -f -`
//! (libnftables-json(5)). It drops nothing but traffic to the overlay that comes in on a link that
//! is not KAT's, and it filters nothing that this machine itself sends. An accept in it does not
//! undo a drop in somebody else's table: see [`obstacles`](super::obstacles).

use std::{process::Stdio, sync::Mutex, time::Duration};

use ipnet::Ipv4Net;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use super::state::NodeNetwork;

/// Family of the table.
pub const FAMILY: &str = "inet";
/// Name of the table.
pub const TABLE: &str = "kat";
/// KAT's links: `kat0` and the veths.
const LINKS: &str = "kat*";
const DEADLINE: Duration = Duration::from_secs(10);

/// Why the rules are not in place.
#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The program can't be run.
    #[error("can't run nft: {0}; is the package nftables installed?")]
    Run(#[source] std::io::Error),
    /// It takes too long.
    #[error("nft did not end within {} s", DEADLINE.as_secs())]
    Timeout,
    /// It refused.
    #[error("nft: {0}")]
    Refused(String),
    /// Its answer is not JSON.
    #[error("nft's answer is malformed: {0}")]
    Malformed(#[source] serde_json::Error),
}

/// Keeps the table as it should be.
#[derive(Debug, Default)]
pub struct Firewall {
    applied: Mutex<Option<Value>>,
}

impl Firewall {
    /// Puts the rules in place unless they are. Gives whether something was done.
    ///
    /// # Errors
    /// See [`FirewallError`]; the rules from before hold then.
    pub async fn ensure(&self, node: &NodeNetwork) -> Result<bool, FirewallError> {
        let wanted = ruleset(node.subnet, node.cluster_cidr);
        let same = self
            .applied
            .lock()
            .is_ok_and(|applied| applied.as_ref() == Some(&wanted));
        if same && present_rules().await? == rules_in(&wanted) {
            return Ok(false);
        }
        nft(&["-j", "-f", "-"], &wanted.to_string()).await?;
        if let Ok(mut applied) = self.applied.lock() {
            *applied = Some(wanted);
        }
        Ok(true)
    }
}

/// Removes the table, if there is one.
///
/// # Errors
/// See [`FirewallError`].
pub async fn remove() -> Result<(), FirewallError> {
    let table = json!({ "table": { "family": FAMILY, "name": TABLE } });
    let commands = json!({ "nftables": [{ "add": table }, { "delete": table }] });
    nft(&["-j", "-f", "-"], &commands.to_string()).await?;
    Ok(())
}

/// The whole transaction.
pub fn ruleset(subnet: Ipv4Net, cluster: Ipv4Net) -> Value {
    let table = json!({ "table": { "family": FAMILY, "name": TABLE } });
    let chain = |name: &str, kind: &str, hook: &str, priority: i32| {
        json!({ "add": { "chain": {
            "family": FAMILY, "table": TABLE, "name": name, "type": kind,
            "hook": hook, "prio": priority, "policy": "accept",
        } } })
    };
    let rule = |chain: &str, comment: &str, expression: Value| {
        json!({ "add": { "rule": {
            "family": FAMILY, "table": TABLE, "chain": chain,
            "comment": comment, "expr": expression,
        } } })
    };
    let drop_strangers = |chain: &str| {
        rule(
            chain,
            "to the overlay, but not from it",
            json!([
                matching("==", address("daddr"), prefix(cluster)),
                matching("!=", meta("iifname"), json!(LINKS)),
                matching("!=", meta("iifname"), json!("lo")),
                { "drop": null },
            ]),
        )
    };
    let accept_answers = |chain: &str| {
        let states = json!(["established", "related"]);
        rule(
            chain,
            "answers to what was begun from here",
            json!([
                matching("in", json!({ "ct": { "key": "state" } }), states),
                { "accept": null },
            ]),
        )
    };
    json!({ "nftables": [
        { "add": table },
        { "delete": table },
        { "add": table },
        chain("egress", "nat", "postrouting", 100),
        chain("forward", "filter", "forward", 0),
        chain("input", "filter", "input", 0),
        rule("egress", "containers to the outside", json!([
            matching("==", address("saddr"), prefix(subnet)),
            matching("!=", address("daddr"), prefix(cluster)),
            matching("!=", meta("oifname"), json!(LINKS)),
            matching("!=", meta("oifname"), json!("lo")),
            { "masquerade": null },
        ])),
        accept_answers("forward"),
        drop_strangers("forward"),
        accept_answers("input"),
        drop_strangers("input"),
    ] })
}

fn matching(operator: &str, left: Value, right: Value) -> Value {
    json!({ "match": { "op": operator, "left": left, "right": right } })
}

fn address(field: &str) -> Value {
    json!({ "payload": { "protocol": "ip", "field": field } })
}

fn meta(key: &str) -> Value {
    json!({ "meta": { "key": key } })
}

fn prefix(net: Ipv4Net) -> Value {
    json!({ "prefix": { "addr": net.network(), "len": net.prefix_len() } })
}

/// Number of rules that a transaction adds.
fn rules_in(commands: &Value) -> usize {
    let list = commands.get("nftables").and_then(Value::as_array);
    list.map_or(0, |list| {
        list.iter()
            .filter(|command| command.pointer("/add/rule").is_some())
            .count()
    })
}

/// Number of rules in KAT's table now; 0 without a table.
async fn present_rules() -> Result<usize, FirewallError> {
    let text = match nft(&["-j", "list", "table", FAMILY, TABLE], "").await {
        Err(FirewallError::Refused(_)) => return Ok(0),
        other => other?,
    };
    let listed: Value = serde_json::from_str(&text).map_err(FirewallError::Malformed)?;
    let list = listed.get("nftables").and_then(Value::as_array);
    Ok(list.map_or(0, |list| {
        list.iter()
            .filter(|item| item.get("rule").is_some())
            .count()
    }))
}

/// Runs `nft` with a text on its standard input; gives what it printed.
pub(super) async fn nft(arguments: &[&str], input: &str) -> Result<String, FirewallError> {
    let work = async {
        let mut child = Command::new("nft")
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        child.wait_with_output().await
    };
    let output = timeout(DEADLINE, work)
        .await
        .map_err(|_| FirewallError::Timeout)?
        .map_err(FirewallError::Run)?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let first: Vec<&str> = errors.lines().take(3).map(str::trim).collect();
        return Err(FirewallError::Refused(first.join("; ")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_replaced_whole_and_nothing_else_is_named() {
        let commands = ruleset(
            "10.90.1.0/24".parse().unwrap(),
            "10.90.0.0/16".parse().unwrap(),
        );
        let list = commands["nftables"].as_array().unwrap();
        assert!(list[0].pointer("/add/table").is_some());
        assert!(list[1].pointer("/delete/table").is_some());
        assert_eq!(rules_in(&commands), 5);
        for command in list {
            let text = command.to_string();
            assert!(text.contains("\"kat\""), "{text}");
        }
        assert!(
            !commands.to_string().contains("\"output\""),
            "own traffic is not filtered"
        );
    }
}

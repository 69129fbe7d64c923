//! KAT's main nftables table: lets containers' traffic out, and restricts access to them and to the
//! machines.
//!
//! The table `inet kat` is rendered from `unit-templates/kat.nft` and replaced as a whole in one
//! transaction with `nft -f -` (nft(8)). An accept in it does not override a drop in another table:
//! see `other_firewalls.rs`.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use ipnet::Ipv4Net;
use serde::Serialize;
use tera::Tera;
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    sync::{Mutex, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    netfilter,
    rule_changes::{self, RulesetChanges},
    table::is_same_generation,
};
use crate::containers::attach;
use kat_daemon::watchdog::LoopPulse;
use kat_types::machine::{
    isolation::MachineAccess,
    network::{Instances, NodeNetwork},
};

/// Family of the table.
pub(crate) const FAMILY: &str = "inet";
/// Name of the table.
pub(crate) const TABLE: &str = "kat";
/// The compiled-in template of the rules.
pub const TEMPLATE: &str = include_str!("../../../unit-templates/kat.nft");
/// Path of the packaged template, which an administrator may change; it replaces the compiled-in
/// one.
const INSTALLED: &str = "/usr/share/kat/unit-templates/kat.nft";
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause after rules could not be put back.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum FirewallError {
    /// The template can't be rendered.
    #[error("template kat.nft: {0}")]
    Template(#[from] tera::Error),
    /// `nft` can't be run.
    #[error("can't run nft: {0}; is the package nftables installed?")]
    Run(#[source] std::io::Error),
    /// `nft` takes too long.
    #[error("nft did not end within {} s", DEADLINE.as_secs())]
    Timeout,
    /// `nft` refused the rules.
    #[error("nft: {0}")]
    Refused(String),
    /// The output of `nft` is not JSON.
    #[error("nft's answer is malformed: {0}")]
    Malformed(#[source] serde_json::Error),
}

/// What the rules depend on besides the machine's own settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirewallInput {
    /// Addresses of the other machines outside the overlay.
    pub machines: BTreeSet<IpAddr>,
    /// Links of containers that may reach this machine's API.
    pub api_links: BTreeSet<String>,
    /// Links of containers that may reach the metadata of clouds.
    pub metadata_links: BTreeSet<String>,
}

impl FirewallInput {
    /// The links of these containers, and the addresses of the other machines.
    pub fn new(machines: BTreeSet<IpAddr>, instances: Option<&Instances>) -> Self {
        let links = |access: MachineAccess| {
            let all = instances.into_iter().flat_map(|list| &list.instances);
            all.filter(|(_, instance)| instance.machine_access.contains(&access))
                .map(|(id, _)| attach::host_link_name(id))
                .collect()
        };
        Self {
            machines,
            api_links: links(MachineAccess::Api),
            metadata_links: links(MachineAccess::Metadata),
        }
    }
}

/// Keeps the table up to date.
#[derive(Debug)]
pub struct Firewall {
    template: Cow<'static, str>,
    applied: Mutex<Option<AppliedRules>>,
}

#[derive(Debug)]
struct AppliedRules {
    rules: String,
    /// The output of `nft` for them.
    listed: Option<String>,
    /// The generation of nftables before they were last listed.
    generation: Option<u32>,
}

impl Default for Firewall {
    /// Uses the compiled-in template.
    fn default() -> Self {
        Self {
            template: Cow::Borrowed(TEMPLATE),
            applied: Mutex::default(),
        }
    }
}

impl Firewall {
    /// Uses the packaged template if it exists. It is read only once: after an upgrade the next
    /// `kat-net` process reads the new one.
    pub fn installed() -> Self {
        let mut firewall = Self::default();
        match std::fs::read_to_string(INSTALLED) {
            Ok(text) => firewall.template = Cow::Owned(text),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = INSTALLED, "the template can't be read: {error:#}"),
        }
        firewall
    }

    /// Applies the rules unless they are in place. Returns whether they were applied.
    ///
    /// # Errors
    /// See [`FirewallError`]; the previous rules stay in force then.
    pub async fn ensure(
        &self,
        node: &NodeNetwork,
        input: &FirewallInput,
    ) -> Result<bool, FirewallError> {
        let rules = ruleset(&self.template, node, input)?;
        self.apply(&mut *self.applied.lock().await, rules, false)
            .await
    }

    /// Whether no program has changed any nftables rule since the applied ones were last listed:
    /// [`ensure`](Self::ensure) with the same input would change nothing.
    pub async fn is_untouched(&self) -> bool {
        let before = match &*self.applied.lock().await {
            Some(applied) => applied.generation,
            None => return false,
        };
        is_same_generation(before, netfilter::generation().await)
    }

    /// Applies the last rules again, unless they are in place and `changed` is false; nothing before
    /// the first [`ensure`](Self::ensure). Returns whether they were applied.
    ///
    /// # Errors
    /// See [`FirewallError`].
    async fn restore(&self, changed: bool) -> Result<bool, FirewallError> {
        let mut applied = self.applied.lock().await;
        match applied.as_ref().map(|applied| applied.rules.clone()) {
            Some(rules) => self.apply(&mut applied, rules, changed).await,
            None => Ok(false),
        }
    }

    /// Restores the rules after each of `changes`, until cancelled. A round of `kat-net` would come
    /// late, since it may wait for other machines.
    pub async fn restore_after_changes(
        self: Arc<Self>,
        mut changes: watch::Receiver<RulesetChanges>,
        pulse: LoopPulse,
        cancel: CancellationToken,
    ) {
        let (mut restored, mut failed) = (0, false);
        loop {
            let again = pulse.wait(async {
                tokio::select! {
                    () = cancel.cancelled() => false,
                    changed = changes.changed() => changed.is_ok(),
                    () = tokio::time::sleep(AFTER_FAILURE), if failed => true,
                }
            });
            if !again.await {
                return;
            }
            let seen = changes.borrow_and_update().seen;
            match self.restore(seen != restored).await {
                Ok(put_back) => {
                    (restored, failed) = (seen, false);
                    if put_back {
                        tracing::info!("put the rules of the firewall back");
                    }
                }
                Err(error) => {
                    if !failed {
                        tracing::warn!("{error}; trying again");
                    }
                    failed = true;
                }
            }
        }
    }

    async fn apply(
        &self,
        applied: &mut Option<AppliedRules>,
        rules: String,
        changed: bool,
    ) -> Result<bool, FirewallError> {
        // After a change the comparison is not enough: the rules may have been changed between their
        // transaction and their listing.
        if let Some(applied) = applied
            .as_mut()
            .filter(|one| !changed && one.rules == rules)
        {
            let generation = netfilter::generation().await;
            if is_same_generation(applied.generation, generation) {
                return Ok(false);
            }
            if listed().await? == applied.listed {
                applied.generation = generation;
                return Ok(false);
            }
        }
        nft(&["-f", "-"], &rules).await?;
        let generation = netfilter::generation().await;
        let listed = listed().await?;
        *applied = Some(AppliedRules {
            rules,
            listed,
            generation,
        });
        Ok(true)
    }
}

/// Removes the table, if it exists.
pub async fn remove() -> Result<(), FirewallError> {
    let commands = format!("table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\n");
    nft(&["-f", "-"], &commands).await?;
    Ok(())
}

#[derive(Debug, Serialize)]
struct FirewallValues {
    subnet: Ipv4Net,
    cluster: Ipv4Net,
    relay: bool,
    /// Mask of the host part of an address within a machine's subnet; all subnets have the same
    /// size.
    host_mask: Ipv4Addr,
    ports: String,
    machines: String,
    machines6: String,
    /// This machine's overlay address and the port of the API there.
    address: Ipv4Addr,
    api_port: Option<u16>,
    api_links: String,
    metadata_links: String,
}

/// The whole transaction. Only a relay forwards packets between two other machines.
///
/// # Errors
/// The template can't be rendered.
pub fn ruleset(
    template: &str,
    node: &NodeNetwork,
    input: &FirewallInput,
) -> Result<String, tera::Error> {
    let ports = node.control_ports.iter().map(u16::to_string);
    let of_family = |v4: bool| {
        let own = input
            .machines
            .iter()
            .filter(|address| address.is_ipv4() == v4);
        let texts: Vec<String> = own.map(IpAddr::to_string).collect();
        texts.join(", ")
    };
    let links = |links: &BTreeSet<String>| {
        let texts: Vec<String> = links.iter().map(|link| format!("\"{link}\"")).collect();
        texts.join(", ")
    };
    let values = FirewallValues {
        subnet: node.subnet.trunc(),
        cluster: node.cluster_cidr.trunc(),
        relay: node.relay,
        host_mask: node.subnet.hostmask(),
        ports: ports.collect::<Vec<_>>().join(", "),
        machines: of_family(true),
        machines6: of_family(false),
        address: node.address,
        api_port: node.api_port,
        api_links: links(&input.api_links),
        metadata_links: links(&input.metadata_links),
    };
    let mut templates = Tera::new();
    templates.add_raw_template("kat.nft", template)?;
    templates.render("kat.nft", &tera::Context::from_serialize(&values)?)
}

/// KAT's table as `nft` lists it, without counters and without the elements of its sets, which the
/// kernel adds; `None` without a table.
async fn listed() -> Result<Option<String>, FirewallError> {
    match nft(&["-j", "-s", "-t", "list", "table", FAMILY, TABLE], "").await {
        Ok(text) => Ok(Some(text)),
        Err(FirewallError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs `nft` with a text on its standard input; returns its output.
pub(crate) async fn nft(arguments: &[&str], input: &str) -> Result<String, FirewallError> {
    let work = async {
        let mut child = Command::new("nft")
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(pid) = child.id().filter(|_| !input.is_empty()) {
            rule_changes::remember_own_process(pid);
        }
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

    fn node(relay: bool) -> NodeNetwork {
        let node = format!(
            r#"{{"schema":1,"node":"n1","clusterCidr":"10.90.0.0/16","serviceCidr":"10.91.0.0/16",
            "subnet":"10.90.2.0/23","address":"10.90.2.1","clusterDomain":"cluster.local",
            "wireguardPort":51820,"mtu":1420,"holdSeconds":60,"relay":{relay}}}"#
        );
        serde_json::from_str(&node).unwrap()
    }

    #[test]
    fn the_table_is_replaced_whole_and_nothing_else_is_named() {
        let rules = ruleset(TEMPLATE, &node(false), &FirewallInput::default()).unwrap();
        let tables: Vec<&str> = rules
            .lines()
            .filter(|line| !line.starts_with('#') && line.contains("table "))
            .collect();
        assert_eq!(
            tables,
            [
                "table inet kat",
                "delete table inet kat",
                "table inet kat {"
            ]
        );
    }

    #[test]
    fn of_what_the_machine_sends_only_workloads_users_are_filtered() {
        use kat_types::assignment::{INDEX_LIMIT, SUBORDINATE_BASE, SUBORDINATE_COUNT, USER_BASE};
        let rules = ruleset(TEMPLATE, &node(false), &FirewallInput::default()).unwrap();
        let (_, output) = rules.split_once("hook output").unwrap();
        let (output, _) = output.split_once("\n\t}").unwrap();
        let lines: Vec<&str> = output.lines().skip(1).map(str::trim).collect();
        let users = format!(
            "{{ {USER_BASE}-{}, {SUBORDINATE_BASE}-{} }}",
            USER_BASE + INDEX_LIMIT - 1,
            SUBORDINATE_BASE + SUBORDINATE_COUNT * INDEX_LIMIT - 1,
        );
        let probes = format!(
            "meta l4proto 253 meta skuid {users} drop comment \"from a workload, which asks no machine\""
        );
        let ports =
            format!("tcp dport {{ 2379, 2380, 9115, 9116 }} meta skuid {users} goto workload");
        assert_eq!(lines, [probes, ports]);
    }

    #[test]
    fn ports_of_machines_are_closed_at_each_address_that_they_have() {
        let machines = ["192.0.2.2", "192.0.2.3", "2001:db8::2"];
        let machines = machines.iter().map(|text| text.parse().unwrap()).collect();
        let input = FirewallInput::new(machines, None);
        let rules = ruleset(TEMPLATE, &node(false), &input).unwrap();
        assert_eq!(
            rules.matches("ip daddr { 192.0.2.2, 192.0.2.3 }").count(),
            2
        );
        assert_eq!(rules.matches("ip6 daddr { 2001:db8::2 }").count(), 1);
        assert!(rules.contains("ip saddr & 0.0.1.255 != 0.0.0.1"), "{rules}");
    }

    #[test]
    fn a_relay_alone_passes_on() {
        let passes = "iifname \"kat0\" oifname \"kat0\" accept";
        let keeps = "iifname \"kat0\" oifname \"kat0\" drop";
        for (relay, has, lacks) in [(true, passes, keeps), (false, keeps, passes)] {
            let rules = ruleset(TEMPLATE, &node(relay), &FirewallInput::default()).unwrap();
            assert!(rules.contains(has) && !rules.contains(lacks), "{rules}");
        }
    }

    #[test]
    fn a_wrong_template_is_named() {
        let nobody = FirewallInput::default();
        let error = ruleset("table inet {{ nothing }}", &node(false), &nobody).unwrap_err();
        let message = FirewallError::from(error).to_string();
        assert!(message.starts_with("template kat.nft: "), "{message}");
    }
}

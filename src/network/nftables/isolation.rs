//! The table `inet kat-isolation`: which containers reach which.
//!
//! Its chains and empty sets are rendered from `unit-templates/kat-isolation.nft`. Elements, and one
//! chain for each guard of the policy, are added here, and later changed one by one in a single
//! transaction: with thousands of instances a start or an end changes a few elements. Base chains
//! stay, and an address that is in no set reaches nothing, so that no moment is open.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    net::Ipv4Addr,
};

use ipnet::Ipv4Net;
use serde::Serialize;
use tera::Tera;

use super::{
    firewall::{FAMILY, FirewallError, nft},
    netfilter::{self, NetfilterError, attribute},
    table::{self, TableChange, is_same_generation},
};
use crate::{
    containers::attach,
    isolation::policy::{AllowedNamespaces, IsolationPolicy},
};
use kat_types::machine::{isolation::IsolationMode, network::NodeNetwork};

/// Name of the table.
pub(crate) const TABLE: &str = "kat-isolation";
/// The compiled-in template of the rules.
pub const TEMPLATE: &str = include_str!("../../../unit-templates/kat-isolation.nft");
/// Path of the packaged template, which an administrator may change; it replaces the compiled-in
/// one.
const INSTALLED: &str = "/usr/share/kat/unit-templates/kat-isolation.nft";
/// Prefix of the sets of namespaces' addresses.
const SET: &str = "in-";
/// Prefix of the chains of guards.
const CHAIN: &str = "to-";
/// Name of the set of refused traffic.
const REFUSED: &str = "refused";
/// How long an element of that set stays after its last packet, in milliseconds.
const REFUSED_TIMEOUT: u64 = 60_000;

/// `NFT_MSG_GETSETELEM`, with the subsystem of nftables.
const GET_ELEMENTS: u16 = (10 << 8) | 13;
/// `NFPROTO_INET`.
const INET: u8 = 1;
const SET_ELEM_LIST_TABLE: u16 = 1;
const SET_ELEM_LIST_SET: u16 = 2;
const SET_ELEM_LIST_ELEMENTS: u16 = 3;
const SET_ELEM_KEY: u16 = 1;
const SET_ELEM_EXPIRATION: u16 = 5;
const SET_ELEM_EXPR: u16 = 7;
const DATA_VALUE: u16 = 1;
const EXPR_DATA: u16 = 2;
const COUNTER_PACKETS: u16 = 2;

/// What was done to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IsolationChange {
    pub change: TableChange,
    /// Something may be refused now that passed before.
    pub tightened: bool,
}

/// The changing part of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct TableContent {
    /// Addresses by namespace.
    namespaces: BTreeMap<String, BTreeSet<Ipv4Addr>>,
    /// The rules of the chains of guards, by name.
    chains: BTreeMap<String, Vec<String>>,
    /// The guard's chain of each address.
    guards: BTreeMap<Ipv4Addr, String>,
    /// Links with the address of their container.
    links: BTreeSet<(String, Ipv4Addr)>,
}

#[derive(Debug)]
struct AppliedTable {
    frame: String,
    content: TableContent,
    /// The output of `nft` without elements, since the first check after the last change: with
    /// thousands of elements, `nft` takes longer to list the table than to change it.
    listed: Option<String>,
    /// The generation of nftables before that.
    generation: Option<u32>,
}

impl AppliedTable {
    /// The same, if the table is as it was at the last check, or exists at the first one.
    async fn checked(self) -> Result<Option<Self>, FirewallError> {
        let generation = netfilter::generation().await;
        if is_same_generation(self.generation, generation) {
            return Ok(Some(self));
        }
        let present = listed().await?;
        let is_same = match &self.listed {
            Some(_) => present == self.listed,
            None => present.is_some(),
        };
        let listed = present;
        Ok(is_same.then_some(Self {
            listed,
            generation,
            ..self
        }))
    }
}

/// Keeps the table.
#[derive(Debug)]
pub(crate) struct IsolationTable {
    template: Cow<'static, str>,
    applied: Option<AppliedTable>,
    /// The table was removed, and nobody has made it since.
    removed: bool,
}

impl Default for IsolationTable {
    /// Uses the compiled-in template.
    fn default() -> Self {
        Self {
            template: Cow::Borrowed(TEMPLATE),
            applied: None,
            removed: false,
        }
    }
}

impl IsolationTable {
    /// Uses the packaged template if it exists, read once.
    pub(crate) fn installed() -> Self {
        Self {
            template: table::template(INSTALLED, TEMPLATE),
            ..Self::default()
        }
    }

    /// Applies the policy unless it is in place; in [`IsolationMode::None`] there is no table. With
    /// `check` the table is also compared with what it was at the last check.
    ///
    /// # Errors
    /// See [`FirewallError`]; the previous table stays in force then.
    pub(crate) async fn set(
        &mut self,
        node: &NodeNetwork,
        policy: &IsolationPolicy,
        check: bool,
    ) -> Result<IsolationChange, FirewallError> {
        if policy.mode == IsolationMode::None {
            return self.set_none().await;
        }
        self.removed = false;
        let frame = frame(&self.template, node, policy.mode)?;
        let content = TableContent::of(policy);
        let known = self.applied.take().filter(|applied| applied.frame == frame);
        let known = match known {
            Some(applied) if check => applied.checked().await?,
            known => known,
        };
        if let Some(applied) = known {
            let transaction = changes(&applied.content, &content);
            if transaction.is_empty() {
                self.applied = Some(applied);
                return Ok(IsolationChange {
                    change: TableChange::None,
                    tightened: false,
                });
            }
            match nft(&["-f", "-"], &transaction).await {
                Ok(_) => {
                    let tightened = is_tighter(&applied.content, &content);
                    self.remember(frame, content);
                    return Ok(IsolationChange {
                        change: TableChange::Rules,
                        tightened,
                    });
                }
                Err(FirewallError::Refused(reason)) => {
                    tracing::warn!(table = TABLE, reason, "the table is made anew");
                }
                Err(error) => return Err(error),
            }
        }
        let anew = changes(&TableContent::default(), &content);
        let anew = format!("{}{frame}\n{anew}", table::removal(TABLE));
        nft(&["-f", "-"], &anew).await?;
        self.remember(frame, content);
        Ok(IsolationChange {
            change: TableChange::Restored,
            tightened: true,
        })
    }

    async fn set_none(&mut self) -> Result<IsolationChange, FirewallError> {
        self.applied = None;
        let mut change = TableChange::None;
        if !self.removed {
            if listed().await?.is_some() {
                table::remove(TABLE).await?;
                change = TableChange::Rules;
            }
            self.removed = true;
        }
        Ok(IsolationChange {
            change,
            tightened: false,
        })
    }

    fn remember(&mut self, frame: String, content: TableContent) {
        self.applied = Some(AppliedTable {
            frame,
            content,
            listed: None,
            generation: None,
        });
    }

    /// Makes the next [`set`](Self::set) write the whole table: another program may have changed it.
    pub(crate) fn forget(&mut self) {
        self.applied = None;
        self.removed = false;
    }
}

/// Removes the table, if it exists.
pub async fn remove() -> Result<(), FirewallError> {
    table::remove(TABLE).await
}

/// The table as `nft` lists it, without counters and without elements; `None` without a table.
async fn listed() -> Result<Option<String>, FirewallError> {
    match nft(&["-j", "-s", "-t", "list", "table", FAMILY, TABLE], "").await {
        Ok(text) => Ok(Some(text)),
        Err(FirewallError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[derive(Debug, Serialize)]
struct FrameValues {
    cluster: Ipv4Net,
    services: Ipv4Net,
    host_mask: Ipv4Addr,
    audit: bool,
}

/// The part of the table that depends on the machine and the mode alone.
fn frame(template: &str, node: &NodeNetwork, mode: IsolationMode) -> Result<String, tera::Error> {
    let values = FrameValues {
        cluster: node.cluster_cidr.trunc(),
        services: node.service_cidr.trunc(),
        host_mask: node.subnet.hostmask(),
        audit: mode == IsolationMode::Audit,
    };
    let mut templates = Tera::new();
    templates.add_raw_template("kat-isolation.nft", template)?;
    templates.render(
        "kat-isolation.nft",
        &tera::Context::from_serialize(&values)?,
    )
}

/// The whole table, as it is written where there is none.
///
/// # Errors
/// The template can't be rendered.
pub fn ruleset(
    template: &str,
    node: &NodeNetwork,
    policy: &IsolationPolicy,
) -> Result<String, tera::Error> {
    let frame = frame(template, node, policy.mode)?;
    let content = changes(&TableContent::default(), &TableContent::of(policy));
    Ok(format!("{frame}\n{content}"))
}

impl TableContent {
    fn of(policy: &IsolationPolicy) -> Self {
        let mut content = Self::default();
        for (address, owner) in policy.owners() {
            let namespaces = &mut content.namespaces;
            let addresses = namespaces.entry(owner.namespace.clone()).or_default();
            addresses.insert(*address);
            let guard = format!("{CHAIN}{}", policy.guard_of(owner));
            content.guards.insert(*address, guard);
        }
        for (name, guard) in &policy.guards {
            let own = &guard.namespace;
            let mut rules = vec![format!("ip saddr @{SET}{own} accept")];
            match &guard.allowed {
                AllowedNamespaces::Every => rules.push("ip saddr @known goto allowed".to_owned()),
                AllowedNamespaces::Only(names) => {
                    let present = names.iter().filter(|name| {
                        *name != own && content.namespaces.contains_key(name.as_str())
                    });
                    rules.extend(present.map(|name| format!("ip saddr @{SET}{name} goto allowed")));
                }
            }
            rules.push("goto others".to_owned());
            content.chains.insert(format!("{CHAIN}{name}"), rules);
        }
        let links = policy.own.iter();
        content.links = links
            .map(|(id, address)| (attach::host_link_name(id), *address))
            .collect();
        content
    }
}

/// Whether `next` may refuse something that `before` let pass.
fn is_tighter(before: &TableContent, next: &TableContent) -> bool {
    let loses = |name: &String, addresses: &BTreeSet<Ipv4Addr>| {
        let kept = next.namespaces.get(name);
        !kept.is_some_and(|kept| addresses.is_subset(kept))
    };
    let is_stricter = |name: &String, rules: &Vec<String>| {
        let kept = next.chains.get(name);
        !kept.is_some_and(|kept| rules.iter().all(|rule| kept.contains(rule)))
    };
    let moves = |(address, guard): (&Ipv4Addr, &String)| next.guards.get(address) != Some(guard);
    before.namespaces.iter().any(|(name, set)| loses(name, set))
        || before
            .chains
            .iter()
            .any(|(name, rules)| is_stricter(name, rules))
        || before.guards.iter().any(moves)
        || !before.links.is_subset(&next.links)
}

/// The transaction that makes `next` of `before`; empty if they are equal.
fn changes(before: &TableContent, next: &TableContent) -> String {
    let mut transaction = TableTransaction::default();
    transaction.add_sets(before, next);
    transaction.write_chains(before, next);
    transaction.change_guards(before, next);
    transaction.change_namespaces(before, next);
    transaction.change_links(before, next);
    transaction.remove_unused(before, next);
    transaction.text
}

/// Commands for `nft`. What an element or a rule refers to is added before it, and removed after it.
#[derive(Default)]
struct TableTransaction {
    text: String,
}

impl TableTransaction {
    fn line(&mut self, line: String) {
        // Writing into a text does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn elements(&mut self, verb: &str, set: &str, items: Vec<String>) {
        if !items.is_empty() {
            let items = items.join(", ");
            self.line(format!(
                "{verb} element {FAMILY} {TABLE} {set} {{ {items} }}"
            ));
        }
    }

    fn add_sets(&mut self, before: &TableContent, next: &TableContent) {
        for name in next.namespaces.keys() {
            if !before.namespaces.contains_key(name) {
                self.line(format!(
                    "add set {FAMILY} {TABLE} {SET}{name} {{ type ipv4_addr; }}"
                ));
            }
        }
    }

    fn write_chains(&mut self, before: &TableContent, next: &TableContent) {
        for (name, rules) in &next.chains {
            let known = before.chains.get(name);
            if known == Some(rules) {
                continue;
            }
            match known {
                None => self.line(format!("add chain {FAMILY} {TABLE} {name}")),
                Some(_) => self.line(format!("flush chain {FAMILY} {TABLE} {name}")),
            }
            for rule in rules {
                self.line(format!("add rule {FAMILY} {TABLE} {name} {rule}"));
            }
        }
    }

    /// The map `to` from an address to its guard's chain, and the set `known` of these addresses.
    fn change_guards(&mut self, before: &TableContent, next: &TableContent) {
        let goto = |(address, chain): (&Ipv4Addr, &String)| format!("{address} : goto {chain}");
        let gone: Vec<(&Ipv4Addr, &String)> = before
            .guards
            .iter()
            .filter(|(address, chain)| next.guards.get(*address) != Some(*chain))
            .collect();
        let new: Vec<(&Ipv4Addr, &String)> = next
            .guards
            .iter()
            .filter(|(address, chain)| before.guards.get(*address) != Some(*chain))
            .collect();
        self.elements(
            "delete",
            "to",
            gone.iter().map(|one| one.0.to_string()).collect(),
        );
        self.elements("add", "to", new.iter().map(|one| goto(*one)).collect());
        let is_lost = |one: &&(&Ipv4Addr, &String)| !next.guards.contains_key(one.0);
        let is_found = |one: &&(&Ipv4Addr, &String)| !before.guards.contains_key(one.0);
        let lost = gone.iter().filter(is_lost);
        self.elements(
            "delete",
            "known",
            lost.map(|one| one.0.to_string()).collect(),
        );
        let found = new.iter().filter(is_found);
        self.elements("add", "known", found.map(|one| one.0.to_string()).collect());
    }

    fn change_namespaces(&mut self, before: &TableContent, next: &TableContent) {
        let nobody = BTreeSet::new();
        let names: BTreeSet<&String> = before
            .namespaces
            .keys()
            .chain(next.namespaces.keys())
            .collect();
        for name in names {
            let set = format!("{SET}{name}");
            let had = before.namespaces.get(name).unwrap_or(&nobody);
            // A set that goes as a whole needs no deletions.
            let Some(has) = next.namespaces.get(name) else {
                continue;
            };
            let lost = had.difference(has).map(Ipv4Addr::to_string);
            self.elements("delete", &set, lost.collect());
            let found = has.difference(had).map(Ipv4Addr::to_string);
            self.elements("add", &set, found.collect());
        }
    }

    fn change_links(&mut self, before: &TableContent, next: &TableContent) {
        let link = |(name, address): &(String, Ipv4Addr)| format!("\"{name}\" . {address}");
        self.elements(
            "delete",
            "links",
            before.links.difference(&next.links).map(link).collect(),
        );
        self.elements(
            "add",
            "links",
            next.links.difference(&before.links).map(link).collect(),
        );
    }

    fn remove_unused(&mut self, before: &TableContent, next: &TableContent) {
        for name in before.chains.keys() {
            if !next.chains.contains_key(name) {
                self.line(format!("flush chain {FAMILY} {TABLE} {name}"));
                self.line(format!("delete chain {FAMILY} {TABLE} {name}"));
            }
        }
        for name in before.namespaces.keys() {
            if !next.namespaces.contains_key(name) {
                self.line(format!("delete set {FAMILY} {TABLE} {SET}{name}"));
            }
        }
    }
}

/// An element of the set of refused traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RefusedFlow {
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
    /// Number of the protocol.
    pub protocol: u8,
    /// 0 without ports.
    pub port: u16,
}

/// How often a flow was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefusedPackets {
    /// Since the element was made.
    pub packets: u64,
    /// Milliseconds since the last one.
    pub ago: u64,
}

/// What was refused in the last minute; nothing without a table.
///
/// # Errors
/// The kernel refused the request or did not answer.
pub(crate) async fn refused() -> Result<BTreeMap<RefusedFlow, RefusedPackets>, NetfilterError> {
    let mut attributes = Vec::new();
    for (kind, name) in [(SET_ELEM_LIST_TABLE, TABLE), (SET_ELEM_LIST_SET, REFUSED)] {
        let mut name = name.as_bytes().to_vec();
        name.push(0);
        netfilter::push(&mut attributes, kind, &name);
    }
    let answers = netfilter::dump("list refused traffic", INET, GET_ELEMENTS, &attributes).await;
    let answers = match answers {
        Err(NetfilterError::Refused { source, .. })
            if source.raw_os_error() == Some(rustix::io::Errno::NOENT.raw_os_error()) =>
        {
            return Ok(BTreeMap::new());
        }
        answers => answers?,
    };
    Ok(answers.iter().flat_map(|body| elements(body)).collect())
}

/// Decodes one answer, which has any number of elements.
fn elements(body: &[u8]) -> Vec<(RefusedFlow, RefusedPackets)> {
    let attributes = body.get(netfilter::HEADER..).unwrap_or_default();
    let list = attribute(attributes, SET_ELEM_LIST_ELEMENTS).unwrap_or_default();
    let all = netfilter::attributes(&list);
    all.iter().filter_map(|one| element(one)).collect()
}

fn element(attributes: &[u8]) -> Option<(RefusedFlow, RefusedPackets)> {
    let key = attribute(&attribute(attributes, SET_ELEM_KEY)?, DATA_VALUE)?;
    // Each part of a concatenation is padded to four bytes.
    let part =
        |index: usize| -> Option<[u8; 4]> { key.get(index * 4..index * 4 + 4)?.try_into().ok() };
    let [protocol, ..] = part(2)?;
    let [high, low, ..] = part(3)?;
    let flow = RefusedFlow {
        from: part(0)?.into(),
        to: part(1)?.into(),
        protocol,
        port: u16::from_be_bytes([high, low]),
    };
    let number = |bytes: Vec<u8>| Some(u64::from_be_bytes(bytes.try_into().ok()?));
    let counter = || attribute(&attribute(attributes, SET_ELEM_EXPR)?, EXPR_DATA);
    let packets = counter().and_then(|counter| attribute(&counter, COUNTER_PACKETS));
    let left = attribute(attributes, SET_ELEM_EXPIRATION).and_then(number);
    let packets = RefusedPackets {
        packets: packets.and_then(number).unwrap_or(1),
        ago: REFUSED_TIMEOUT.saturating_sub(left.unwrap_or(REFUSED_TIMEOUT)),
    };
    Some((flow, packets))
}

#[cfg(test)]
mod tests;

//! The cluster's names as an immutable snapshot, and the lookup of names.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use hickory_proto::{
    op::Query,
    rr::{
        DNSClass, Name, RData, Record, RecordType,
        rdata::{A, PTR, SOA},
    },
};
use ipnet::Ipv4Net;
use rand::seq::SliceRandom;

use super::DnsError;
use kat_types::{
    machine::network::{DnsRecords, Instances, NodeNetwork},
    top_level_domains,
};

/// Time to live of positive and negative answers, in seconds; short, since instances move and
/// silent machines are left out of answers.
pub(super) const TTL: u32 = 2;

/// The cluster's names from the agent's files at one moment.
#[derive(Debug)]
pub struct Zone {
    domain: Name,
    records: BTreeMap<Name, Vec<Ipv4Addr>>,
    /// Parent names of `records`, including the domain itself: they exist but have no addresses.
    parents: BTreeSet<Name>,
    pointers: BTreeMap<Ipv4Addr, Name>,
    /// `<namespace>.<domain>` of this machine's instances, by their address.
    namespaces: BTreeMap<Ipv4Addr, Name>,
    cluster: Ipv4Net,
    services: Ipv4Net,
    address: Ipv4Addr,
    upstreams: Vec<IpAddr>,
    authority: SOA,
    /// A name without the domain is looked up in the caller's own namespace alone.
    own_namespace_only: bool,
}

/// The result of a lookup.
#[derive(Debug, Clone, PartialEq)]
pub enum Lookup {
    Answer(Vec<Record>),
    /// The name exists without records of that type; the SOA record has the time to live.
    NoData(Box<Record>),
    /// The name does not exist; the SOA record has the time to live.
    NoName(Box<Record>),
    /// The source may not ask, or the kind of question is not answered.
    Refused,
    /// The name is not the cluster's: the question is forwarded.
    Forward,
    /// The name also ends in a top-level domain, since a namespace has the name of one: the
    /// question is forwarded first, and this is the answer if the name does not exist there.
    ForwardFirst(Box<Lookup>),
}

impl Zone {
    /// Makes a snapshot from the files. A record with an invalid name is left out and logged; an
    /// invalid domain is an error.
    pub fn new(
        node: &NodeNetwork,
        instances: &Instances,
        records: &DnsRecords,
    ) -> Result<Self, DnsError> {
        let domain = domain_name(&node.cluster_domain)?;
        let below = |name: &str| {
            Name::from_ascii(name)
                .and_then(|name| name.append_domain(&domain))
                .map(|name| name.to_lowercase())
                .inspect_err(|error| {
                    tracing::warn!(name, "a record of the zone is left out: {error:#}");
                })
                .ok()
        };
        let addresses: BTreeMap<Name, Vec<Ipv4Addr>> = records
            .records
            .iter()
            .filter_map(|(name, addresses)| Some((below(name)?, addresses.clone())))
            .collect();
        let namespaces = instances
            .instances
            .values()
            .filter_map(|instance| Some((instance.address, below(&instance.namespace)?)))
            .collect();
        let serial = u32::try_from(records.revision.rem_euclid(1 << 32)).unwrap_or(0);
        let own = below(&format!("{}.node", node.node)).unwrap_or_else(|| domain.clone());
        let contact = below("hostmaster").unwrap_or_else(|| domain.clone());
        Ok(Self {
            parents: parents_of(&domain, addresses.keys()),
            pointers: pointers_of(&addresses),
            records: addresses,
            namespaces,
            cluster: node.cluster_cidr,
            services: node.service_cidr,
            address: node.address,
            upstreams: node.upstream_dns.clone(),
            authority: SOA::new(own, contact, serial, 3600, 600, 86_400, TTL),
            domain,
            own_namespace_only: false,
        })
    }

    /// Looks up names without the domain in the caller's own namespace alone if `only`: a workload
    /// `github` of a namespace `dev` is no `github.dev` for others.
    pub fn with_own_namespace_only(mut self, only: bool) -> Self {
        self.own_namespace_only = only;
        self
    }

    /// Answers a question from `source`.
    pub fn lookup(&self, source: IpAddr, question: &Query) -> Lookup {
        let kind = question.query_type();
        let refused = matches!(
            kind,
            RecordType::ANY | RecordType::AXFR | RecordType::IXFR | RecordType::OPT
        );
        if !self.serves(source) || refused || question.query_class() != DNSClass::IN {
            return Lookup::Refused;
        }
        let name = question.name();
        if self.domain.zone_of(name) {
            return self.own(name, name, kind).unwrap_or_else(|| {
                Lookup::NoName(Box::new(self.authority_at(self.domain.clone())))
            });
        }
        let short = self.look_up_short_name(source, name, kind);
        let short = short.map(|found| match is_of_the_world(name) {
            true => Lookup::ForwardFirst(Box::new(found)),
            false => found,
        });
        short
            .or_else(|| self.reverse(name, kind))
            .unwrap_or(Lookup::Forward)
    }

    /// Whether the source is a container of the cluster or the machine itself.
    pub fn serves(&self, source: IpAddr) -> bool {
        match source {
            IpAddr::V4(address) => address.is_loopback() || self.cluster.contains(&address),
            IpAddr::V6(address) => address.is_loopback(),
        }
    }

    /// The configured resolvers for other names; empty for the machine's own.
    pub(crate) fn upstreams(&self) -> &[IpAddr] {
        &self.upstreams
    }

    /// Whether a question to this resolver could come back here: the address is the machine's own,
    /// or one of the cluster's networks.
    pub(crate) fn would_loop(&self, upstream: IpAddr) -> bool {
        match upstream {
            IpAddr::V4(address) => {
                address == self.address
                    || address.is_unspecified()
                    || self.cluster.contains(&address)
                    || self.services.contains(&address)
            }
            IpAddr::V6(address) => address.is_unspecified(),
        }
    }

    /// Looks `name` up in the zone; the records bear the name that was `asked`.
    fn own(&self, asked: &Name, name: &Name, kind: RecordType) -> Option<Lookup> {
        if *name == self.domain && kind == RecordType::SOA {
            return Some(Lookup::Answer(vec![self.authority_at(asked.clone())]));
        }
        if let Some(addresses) = self.records.get(name)
            && kind == RecordType::A
            && !addresses.is_empty()
        {
            let mut addresses = addresses.clone();
            addresses.shuffle(&mut rand::rng());
            let record = |address| Record::from_rdata(asked.clone(), TTL, RData::A(A(address)));
            return Some(Lookup::Answer(addresses.into_iter().map(record).collect()));
        }
        let exists = self.records.contains_key(name) || self.parents.contains(name);
        exists.then(|| Lookup::NoData(Box::new(self.authority_at(self.domain.clone()))))
    }

    /// Looks up a short name from a container of this machine: first within its own namespace, then
    /// within the cluster where that is not isolated. Namespaces themselves are not found, as one could be called `com`.
    fn look_up_short_name(&self, source: IpAddr, name: &Name, kind: RecordType) -> Option<Lookup> {
        let IpAddr::V4(source) = source else {
            return None;
        };
        let namespace = self.namespaces.get(&source)?;
        if name.is_root() {
            return None;
        }
        let cluster = (!self.own_namespace_only).then_some(&self.domain);
        [Some(namespace), cluster]
            .into_iter()
            .flatten()
            .find_map(|suffix| {
                let mut relative = name.clone();
                relative.set_fqdn(false);
                let full = relative.append_domain(suffix).ok()?;
                self.records
                    .contains_key(&full)
                    .then(|| self.own(name, &full, kind))?
            })
    }

    /// Looks up reverse names of the cluster's addresses; they are never forwarded.
    fn reverse(&self, name: &Name, kind: RecordType) -> Option<Lookup> {
        let octets = reverse_octets(name)?;
        let length = u8::try_from(octets.len() * 8).ok()?;
        let mut padded = [0; 4];
        padded
            .iter_mut()
            .zip(&octets)
            .for_each(|(place, octet)| *place = *octet);
        let block = Ipv4Net::new(padded.into(), length).ok()?;
        let network = [self.cluster, self.services]
            .into_iter()
            .find(|network| network.contains(&block))?;
        let authority = Box::new(self.authority_at(reverse_apex(network, &octets)?));
        if length < 32 {
            return Some(Lookup::NoData(authority));
        }
        Some(match self.pointers.get(&Ipv4Addr::from(padded)) {
            None => Lookup::NoName(authority),
            Some(target) if kind == RecordType::PTR => Lookup::Answer(vec![Record::from_rdata(
                name.clone(),
                TTL,
                RData::PTR(PTR(target.clone())),
            )]),
            Some(_) => Lookup::NoData(authority),
        })
    }

    fn authority_at(&self, name: Name) -> Record {
        Record::from_rdata(name, TTL, RData::SOA(self.authority.clone()))
    }
}

/// Whether a name of at least two labels ends in a top-level domain.
fn is_of_the_world(name: &Name) -> bool {
    let last = name.iter().next_back();
    let last = last.and_then(|label| std::str::from_utf8(label).ok());
    name.iter().count() > 1 && last.is_some_and(top_level_domains::contains)
}

fn domain_name(domain: &str) -> Result<Name, DnsError> {
    let fail = |reason: String| DnsError::Domain {
        domain: domain.to_owned(),
        reason,
    };
    let mut name = Name::from_ascii(domain).map_err(|error| fail(error.to_string()))?;
    name.set_fqdn(true);
    if name.is_root() {
        return Err(fail("it is empty".to_owned()));
    }
    Ok(name.to_lowercase())
}

fn parents_of<'a>(domain: &Name, names: impl Iterator<Item = &'a Name>) -> BTreeSet<Name> {
    let mut parents = BTreeSet::from([domain.clone()]);
    for name in names {
        let mut parent = name.base_name();
        while domain.zone_of(&parent) && parents.insert(parent.clone()) {
            parent = parent.base_name();
        }
    }
    parents
}

/// One name for each address: the longest, which is the instance's and not the workload's.
fn pointers_of(records: &BTreeMap<Name, Vec<Ipv4Addr>>) -> BTreeMap<Ipv4Addr, Name> {
    let mut pointers: BTreeMap<Ipv4Addr, Name> = BTreeMap::new();
    for (name, addresses) in records {
        for address in addresses {
            let known = pointers.entry(*address).or_insert_with(|| name.clone());
            if known.num_labels() < name.num_labels() {
                *known = name.clone();
            }
        }
    }
    pointers
}

/// The octets of a name below `in-addr.arpa`, in the order of the address.
fn reverse_octets(name: &Name) -> Option<Vec<u8>> {
    let mut labels = name.iter().rev();
    let is = |label: Option<&[u8]>, text: &str| {
        label.is_some_and(|label| label.eq_ignore_ascii_case(text.as_bytes()))
    };
    if !is(labels.next(), "arpa") || !is(labels.next(), "in-addr") {
        return None;
    }
    let octets: Option<Vec<u8>> = labels
        .map(|label| std::str::from_utf8(label).ok()?.parse().ok())
        .collect();
    octets.filter(|octets| (1..=4).contains(&octets.len()))
}

/// The apex of a network's reverse names, at a whole octet.
fn reverse_apex(network: Ipv4Net, octets: &[u8]) -> Option<Name> {
    let kept = usize::from(network.prefix_len() / 8);
    let labels: Vec<String> = octets.iter().take(kept).rev().map(u8::to_string).collect();
    let name = match labels.is_empty() {
        true => "in-addr.arpa.".to_owned(),
        false => format!("{}.in-addr.arpa.", labels.join(".")),
    };
    Name::from_ascii(name).ok()
}

#[cfg(test)]
mod tests;

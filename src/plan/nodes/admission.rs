//! Admission of machines: their name, identity and subnet of the overlay (RFC001-KAT 4.1.2, 7.2).

use std::net::IpAddr;

use ipnet::Ipv4Net;
use jiff::Timestamp;

use super::endpoints::EndpointAddresses;
use crate::{EventLog, Snapshot};
use kat_types::{
    api::{EventKind, MemberKeys, ObjectKind, ObjectReference, Reach},
    assignment::DesiredMeta,
    encoding::json::{self, NotEncoded},
    machine::{network::node_subnet, node_labels::node_labels},
    reason::EventReason,
    store::{
        keys,
        records::NodeRegistration,
        snapshot::NodeEntry,
        transaction::{Compare, WriteOperation},
    },
};

/// What a joining machine says of itself; its form is checked already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applicant {
    /// The requested name.
    pub name: String,
    /// SHA-256 of its public key, which it has proved to own.
    pub identity_key: String,
    /// The keys of its certificates while it holds etcd; empty for a machine of version 0.1.0.
    pub member_keys: MemberKeys,
    /// WireGuard's public key, base64.
    pub public_key: String,
    /// The machine's key has signed all of this; a machine of version 0.1.0 signs its name alone.
    pub signed: bool,
    /// `host:port` of its WireGuard.
    pub endpoints: Vec<String>,
    /// Addresses at which others reach it outside the overlay.
    pub advertise: Vec<IpAddr>,
    /// How it is reached besides `advertise`.
    pub reach: Reach,
    /// `amd64`, `arm64` ...
    pub architecture: String,
    /// It holds etcd.
    pub etcd: bool,
    /// It never is to hold etcd.
    pub no_etcd: bool,
    /// It asks to hold etcd.
    pub etcd_peer: bool,
}

/// Why a machine is not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// Another machine has the name.
    #[error("a machine `{0}` with another identity is in the cluster already")]
    NameTaken(String),
    /// The key is registered under another name.
    #[error("this machine is in the cluster already, as `{0}`")]
    KnownAs(String),
    /// The machine is being deleted.
    #[error("machine `{0}` is being deleted")]
    Leaving(String),
    /// Another machine is registered with one of its addresses.
    #[error("AddressTaken: machine `{node}` is in the cluster with {address}")]
    AddressTaken {
        /// `host:port`.
        address: String,
        /// The machine that has it.
        node: String,
    },
    /// The machine's key did not sign the request, so anybody could have made it from an earlier
    /// one.
    #[error(
        "machine `{0}` is in the cluster with another WireGuard key, and its key did not sign this one"
    )]
    NotSigned(String),
    /// Two machines with one WireGuard key can't be told apart.
    #[error("machine `{0}` has the same WireGuard key; is one of them a copy of the other?")]
    SameWireGuardKey(String),
    /// The overlay has no free subnet.
    #[error("clusterCIDR {cluster} has room for {machines} machines, and all of it is taken")]
    NoSubnet {
        /// The overlay.
        cluster: Ipv4Net,
        /// Number of machines that fit.
        machines: u64,
    },
    /// What would be stored for the machine can't be encoded as JSON.
    #[error(transparent)]
    NotEncoded(#[from] NotEncoded),
}

/// An admitted machine, and the transaction that stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Its identity.
    pub uid: String,
    /// Its subnet of the overlay.
    pub subnet: Ipv4Net,
    /// It was in the cluster already, and keeps identity, name and subnet.
    pub known: bool,
    /// Conditions of the transaction. Two machines that join at once collide on the overlay's key,
    /// so that no subnet is assigned twice.
    pub conditions: Vec<Compare>,
    /// Writes of the transaction.
    pub operations: Vec<WriteOperation>,
}

impl Applicant {
    /// The registration of a new machine.
    pub fn registration(&self, uid: &str, now: Timestamp) -> NodeRegistration {
        NodeRegistration {
            identity_key: self.identity_key.clone(),
            member_keys: self.member_keys.clone(),
            labels: node_labels(&self.name, &self.architecture),
            architecture: self.architecture.clone(),
            etcd: self.etcd,
            no_etcd: self.no_etcd,
            etcd_peer: self.etcd_peer,
            state_stream: true,
            advertise: self.advertise.clone(),
            ..NodeRegistration::new(uid, now)
        }
    }

    /// The writes that create a new machine.
    pub fn first_keys(
        &self,
        uid: &str,
        subnet: Ipv4Net,
        now: Timestamp,
    ) -> Result<Vec<WriteOperation>, NotEncoded> {
        let mut operations = self.network(subnet)?;
        operations.push(put(
            keys::registration(&self.name),
            &self.registration(uid, now),
        )?);
        let empty = DesiredMeta {
            schema: 1,
            revision: 1,
            count: 0,
            changed: None,
        };
        operations.push(put(keys::desired_meta(&self.name), &empty)?);
        Ok(operations)
    }

    fn network(&self, subnet: Ipv4Net) -> Result<Vec<WriteOperation>, NotEncoded> {
        let text = |field, value: &str| {
            WriteOperation::Put(
                keys::network_node(&self.name, field),
                value.as_bytes().to_vec(),
            )
        };
        Ok(vec![
            text("subnet", &subnet.to_string()),
            text("wg_pubkey", &self.public_key),
            put(
                keys::network_node(&self.name, "wg_endpoints"),
                &self.endpoints,
            )?,
            put(keys::network_node(&self.name, "reach"), &self.reach)?,
        ])
    }

    /// Admits the machine: as a new one with the identity `uid`, or, if it is known, as the one
    /// that it was.
    pub fn admit(
        &self,
        snapshot: &Snapshot,
        uid: &str,
        now: Timestamp,
    ) -> Result<Admission, NotAdmitted> {
        for (name, node) in &snapshot.nodes {
            let same_key = node.registration.value.identity_key == self.identity_key;
            match (*name == self.name, same_key) {
                (true, false) => return Err(NotAdmitted::NameTaken(name.clone())),
                (false, true) => return Err(NotAdmitted::KnownAs(name.clone())),
                (false, false) if node.public_key.as_ref() == Some(&self.public_key) => {
                    return Err(NotAdmitted::SameWireGuardKey(name.clone()));
                }
                _ => {}
            }
        }
        self.check_addresses(snapshot)?;
        match snapshot.nodes.get(&self.name) {
            Some(node) => self.admit_again(snapshot, node, now),
            None => self.admit_new(snapshot, uid, now),
        }
    }

    /// Refuses an address that another machine is registered with: a person has to decide which of
    /// the two has it.
    fn check_addresses(&self, snapshot: &Snapshot) -> Result<(), NotAdmitted> {
        let wanted = EndpointAddresses::of(
            &self.advertise,
            &self.reach,
            &self.endpoints,
            snapshot.cluster.spec.api_port,
        );
        for (name, node) in &snapshot.nodes {
            if *name == self.name {
                continue;
            }
            if let Some(address) = wanted.shared_with(&EndpointAddresses::of_node(snapshot, node)) {
                return Err(NotAdmitted::AddressTaken {
                    address,
                    node: name.clone(),
                });
            }
        }
        Ok(())
    }

    fn admit_new(
        &self,
        snapshot: &Snapshot,
        uid: &str,
        now: Timestamp,
    ) -> Result<Admission, NotAdmitted> {
        let subnet = free_subnet(snapshot)?;
        let mut operations = self.first_keys(uid, subnet, now)?;
        let message = format!("machine {} joined, with the subnet {subnet}", self.name);
        operations.extend(self.event(snapshot, uid, message, now));
        operations.push(WriteOperation::Put(
            keys::OVERLAY_CIDR.to_owned(),
            snapshot.cluster.spec.cluster_cidr.to_string().into_bytes(),
        ));
        Ok(Admission {
            uid: uid.to_owned(),
            subnet,
            known: false,
            conditions: vec![
                Compare::ModRevision(keys::registration(&self.name), 0),
                Compare::ModRevision(keys::OVERLAY_CIDR.to_owned(), snapshot.overlay_revision),
                // The machine counts with the `nodeLossTimeoutSeconds` of this snapshot, and a lower
                // one is taken over when every machine of the store has confirmed it.
                Compare::ModRevision(
                    keys::WANTED_CONFIGURATION.to_owned(),
                    snapshot.wanted_revision,
                ),
            ],
            operations,
        })
    }

    fn admit_again(
        &self,
        snapshot: &Snapshot,
        node: &NodeEntry,
        now: Timestamp,
    ) -> Result<Admission, NotAdmitted> {
        let before = &node.registration.value;
        if before.deleting {
            return Err(NotAdmitted::Leaving(self.name.clone()));
        }
        // A certificate request is not secret: a caller with a token and the request of a renewal
        // could otherwise replace that machine's WireGuard key.
        let same_key = node.public_key.as_ref() == Some(&self.public_key);
        if !self.signed && !same_key {
            return Err(NotAdmitted::NotSigned(self.name.clone()));
        }
        let registration = NodeRegistration {
            architecture: self.architecture.clone(),
            advertise: self.advertise.clone(),
            no_etcd: self.no_etcd,
            etcd_peer: self.etcd_peer,
            state_stream: true,
            member_keys: match self.member_keys.is_empty() {
                true => before.member_keys.clone(),
                false => self.member_keys.clone(),
            },
            ..before.clone()
        };
        let subnet = match node.subnet {
            Some(subnet) => subnet,
            None => free_subnet(snapshot)?,
        };
        let mut operations = self.network(subnet)?;
        operations.push(put(keys::registration(&self.name), &registration)?);
        let message = format!("machine {} joined again", self.name);
        operations.extend(self.event(snapshot, &before.uid, message, now));
        Ok(Admission {
            uid: before.uid.clone(),
            subnet,
            known: true,
            conditions: vec![Compare::ModRevision(
                keys::registration(&self.name),
                node.registration.revision,
            )],
            operations,
        })
    }

    fn event(
        &self,
        snapshot: &Snapshot,
        uid: &str,
        message: String,
        now: Timestamp,
    ) -> Vec<WriteOperation> {
        let object = ObjectReference {
            kind: ObjectKind::Node,
            name: self.name.clone(),
            namespace: String::new(),
            uid: uid.to_owned(),
        };
        EventLog::new(&snapshot.events, now).record(
            EventKind::Normal,
            EventReason::NodeJoined,
            object,
            message,
        )
    }
}

fn put<T: serde::Serialize>(key: String, value: &T) -> Result<WriteOperation, NotEncoded> {
    let value = json::bytes(&key, value)?;
    Ok(WriteOperation::Put(key, value))
}

/// The first subnet of the overlay that no machine has and that contains no instance's address.
fn free_subnet(snapshot: &Snapshot) -> Result<Ipv4Net, NotAdmitted> {
    let spec = &snapshot.cluster.spec;
    let taken = |subnet: &Ipv4Net| {
        let machines = snapshot.nodes.values().filter_map(|node| node.subnet);
        let mut instances = snapshot.allocations.values();
        machines
            .into_iter()
            .any(|other| other.contains(subnet) || subnet.contains(&other))
            || instances.any(|stored| subnet.contains(&stored.value.address))
    };
    (0..)
        .map_while(|index| node_subnet(spec.cluster_cidr, spec.node_subnet_bits, index))
        .find(|subnet| !taken(subnet))
        .ok_or_else(|| NotAdmitted::NoSubnet {
            cluster: spec.cluster_cidr,
            machines: 1u64 << spec.node_subnet_bits.min(63),
        })
}

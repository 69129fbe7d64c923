//! The machines of a run, and the stored objects of `init` and of the joins.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::{
    faults::network_faults::Way,
    load::{secrets, user::NAMESPACE},
    machines::{
        disk::Disk,
        joining_machine,
        machine::{Accounts, Pace},
    },
    random::Random,
    world::{LOST_AFTER, Machine, THERE, TICK},
};
use kat_agent::MachineIdentity;
use kat_types::{
    api::MachineEndpoints,
    assignment::DesiredMeta,
    resource::ClusterConfiguration,
    store::{
        keys,
        members::ClusterEndpoints,
        records::{NamespaceRecord, NodeRegistration},
        transaction::WriteOperation,
    },
};

pub(crate) fn machine(
    number: usize,
    name: &str,
    etcd: bool,
    folder: &Path,
    random: &mut Random,
    own_disk: bool,
) -> Machine {
    let root = folder.join(name);
    let disk = own_disk.then(|| Disk::new(&root));
    std::fs::create_dir_all(root.join("net")).unwrap();
    std::fs::create_dir_all(root.join("var/lib/kat")).unwrap();
    let number = u8::try_from(number).unwrap();
    let way = Arc::new(Way::default());
    let latency = random.milliseconds(1, 20);
    way.change(|way| way.latency = latency);
    let slowly = random.chance(30);
    Machine {
        name: name.to_owned(),
        identity: Arc::new(MachineIdentity {
            schema: 1,
            node: name.to_owned(),
            node_uid: format!("uid of {name}"),
            cluster_uid: "cluster".to_owned(),
            cluster: cluster(),
            // Thirteen addresses for instances, so that addresses are soon reused.
            subnet: format!("10.100.0.{}/28", 16 * number).parse().unwrap(),
            advertise: Vec::new(),
            etcd,
            reached: Default::default(),
        }),
        way,
        process: None,
        boot: None,
        joined: number < u8::try_from(THERE).unwrap(),
        accounts: Arc::new(Accounts::new(&root)),
        root,
        disk,
        data_path: None,
        pace: Pace {
            starts: random.milliseconds(20, 2_000),
            stops: random.milliseconds(20, if slowly { 20_000 } else { 2_000 }),
        },
        lingering: BTreeSet::new(),
        processes: 0,
        started: None,
        known_leader: Arc::default(),
        clock_jump: Arc::default(),
        skew: SignedDuration::from_millis(i64::try_from(random.below(4_000)).unwrap() - 2_000),
    }
}

/// Where the machines are reached.
pub(crate) fn endpoints(machines: &[Machine]) -> ClusterEndpoints {
    let one = |machine: &Machine| {
        let endpoints = MachineEndpoints {
            overlay: Some(machine.identity.overlay_address()),
            etcd: machine.identity.etcd,
            ..MachineEndpoints::default()
        };
        (machine.name.clone(), endpoints)
    };
    ClusterEndpoints {
        schema: 1,
        machines: machines.iter().map(one).collect(),
    }
}

/// The settings at the beginning.
pub(crate) fn cluster() -> ClusterConfiguration {
    let mut cluster = ClusterConfiguration::default();
    // Gives each machine a /28, as in the identities above.
    cluster.spec.node_subnet_bits = 12;
    cluster.spec.agent_tick_seconds = TICK;
    cluster.spec.node_loss_timeout_seconds = LOST_AFTER;
    cluster
}

/// What `init` and the joins store.
pub(crate) fn seed_operations(machines: &[Machine]) -> Vec<WriteOperation> {
    fn put<T: serde::Serialize>(key: String, value: &T) -> WriteOperation {
        WriteOperation::Put(key, serde_json::to_vec(value).unwrap())
    }
    let namespace = NamespaceRecord {
        schema: 1,
        uid: "namespace".to_owned(),
        labels: BTreeMap::new(),
        created: Timestamp::UNIX_EPOCH,
        deleting: false,
        quota: Default::default(),
        access: Default::default(),
        ingress_hosts: None,
        defaults: Default::default(),
    };
    let mut operations = vec![
        put(keys::namespace(NAMESPACE), &namespace),
        put(keys::CLUSTER.to_owned(), &cluster()),
        WriteOperation::Put(keys::CLUSTER_UID.to_owned(), b"cluster".to_vec()),
        joining_machine::token(),
        secrets::sealing_key(),
    ];
    for machine in machines {
        let identity = &machine.identity;
        let registration = NodeRegistration {
            architecture: "amd64".to_owned(),
            etcd: identity.etcd,
            identity_key: joining_machine::identity_key(&machine.name),
            ..NodeRegistration::new(&identity.node_uid, Timestamp::UNIX_EPOCH)
        };
        let list = DesiredMeta {
            schema: 1,
            revision: 1,
            count: 0,
            changed: None,
        };
        let subnet = keys::network_node(&machine.name, "subnet");
        let public = secrets::private_key(&machine.name).public().to_string();
        let public_key = keys::network_node(&machine.name, "wg_pubkey");
        operations.extend([
            put(keys::registration(&machine.name), &registration),
            put(keys::desired_meta(&machine.name), &list),
            WriteOperation::Put(subnet, identity.subnet.to_string().into_bytes()),
            WriteOperation::Put(public_key, public.into_bytes()),
        ]);
    }
    operations
}

//! Detects that the store which a machine holds has been replaced.
//!
//! `recover` and `restore` create the store anew on one machine, and increase the store's epoch. A
//! member that was away meanwhile has data of the earlier epoch, and two such members could even
//! form a quorum. So every member requests the epoch from the API ports of the others, and of some
//! machines without the store, before it starts etcd and then periodically; a member that finds a
//! later epoch ends its membership. If a restore began that epoch under the member's own name, the
//! member stays out of the cluster ([`super::replaced`]). An epoch is only accepted if it is proved
//! with the recovery key, so that no other machine or stranger can take members down.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    cluster::{
        cluster_cache::ClusterCache,
        identity::MachineIdentity,
        keys::MachineKeys,
        state_stream::{self, addresses},
    },
    desired_state::kept_position::PositionFile,
    local_api::listeners::is_own,
    service::paths,
};
use kat_client::{Client, ClientError, ClientOptions};
use kat_network::overlay::local_addresses;
use kat_pki::{
    ApiServers, PkiError, RecoveryKeys,
    epoch_proof::{EpochVerifiers, epoch_verifier, is_epoch_sealed, seal_epoch, sign_epoch},
    recovery_key::RecoveryKey,
    state_server_name,
};
use kat_types::{
    api::{EarlierEpoch, HealthView, MachineEndpoints, StoreEpoch, StoreServer},
    encoding::digest::sha256_u64,
};

/// How many earlier epochs are kept with an epoch, and looked at.
const MAX_EARLIER: usize = 8;
/// Longest wait for one machine's response.
const ANSWER_LIMIT: Duration = Duration::from_millis(1500);
/// Longest wait for all responses before etcd starts.
const START_LIMIT: Duration = Duration::from_secs(3);
/// Most machines without the store that are asked before etcd starts.
const OTHERS_PATIENTLY: usize = 8;
/// Those in one periodic check; the next check asks the next ones.
const OTHERS_PERIODICALLY: usize = 2;
/// Pause before a machine that did not respond is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// Makes a statement of an epoch, sealed for the members and signed for the other machines. Those
/// that came `before` it stay with it.
pub fn prove(
    key: &RecoveryKey,
    cluster_uid: &str,
    epoch: u64,
    before: &StoreEpoch,
) -> Result<StoreEpoch, PkiError> {
    let last = EarlierEpoch {
        epoch: before.epoch,
        proof: before.proof.clone(),
        signature: before.signature.clone(),
        restored: before.restored.clone(),
    };
    let earlier = std::iter::once(last).chain(before.earlier.iter().cloned());
    let earlier = earlier.filter(|one| one.epoch < epoch && !one.proof.is_empty());
    let verifiers = match before.verifiers.is_empty() {
        true => vec![epoch_verifier(key)?],
        // The leader brings them up to date, with the endorsements.
        false => before.verifiers.clone(),
    };
    Ok(StoreEpoch {
        schema: 1,
        epoch,
        proof: seal_epoch(key, cluster_uid, epoch)?,
        earlier: earlier.take(MAX_EARLIER).collect(),
        signature: sign_epoch(key, cluster_uid, epoch)?,
        verifiers,
        endorsements: before.endorsements.clone(),
        restored: None,
    })
}

/// Whether a holder of one of the recovery keys, or of one that took the place of one of them, has
/// made a statement of an epoch later than `own`.
fn is_later(stated: &StoreEpoch, own: u64, keys: &RecoveryKeys, cluster_uid: &str) -> bool {
    let earlier = stated.earlier.iter().map(|one| (one.epoch, &one.proof));
    let mut all = std::iter::once((stated.epoch, &stated.proof)).chain(earlier.take(MAX_EARLIER));
    let is_sealed = all.any(|(epoch, proof)| {
        let mut keys = keys.all();
        epoch > own && keys.any(|key| is_epoch_sealed(key, cluster_uid, epoch, proof))
    });
    let verifiers = EpochVerifiers::of_keys(cluster_uid, keys.all());
    is_sealed || verifiers.is_ok_and(|known| known.is_later(stated, own))
}

/// What other machines prove of the store that this machine holds or follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreStanding {
    /// Nobody proves a later epoch than this machine knows.
    Current,
    /// The store was begun anew on another machine.
    Outdated,
    /// It was begun anew by a restore, on a machine that has this one's name, identity and keys now.
    Replaced,
}

/// How the other machines are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EpochQuestion {
    /// Before something is decided: machines that do not respond are asked again for a while.
    Patient,
    /// In a periodic check, the one with this number.
    Periodic(usize),
}

impl EpochQuestion {
    fn limit(self) -> Duration {
        match self {
            Self::Patient => START_LIMIT,
            Self::Periodic(_) => ANSWER_LIMIT,
        }
    }

    /// The machines without the store that are asked.
    fn others<'a, T>(self, all: &'a [T], own: &str) -> Vec<&'a T> {
        let (count, turn) = match self {
            Self::Patient => (OTHERS_PATIENTLY, 0),
            Self::Periodic(turn) => (OTHERS_PERIODICALLY, turn),
        };
        let first = usize::try_from(sha256_u64(own.as_bytes())).unwrap_or_default();
        let first = first.wrapping_add(turn.wrapping_mul(count));
        let first = first.checked_rem(all.len()).unwrap_or_default();
        let count = count.min(all.len());
        all.iter().cycle().skip(first).take(count).collect()
    }
}

/// A machine's statement of its store.
struct StatedStore {
    epoch: StoreEpoch,
    server: Option<StoreServer>,
}

fn position_file(identity: &MachineIdentity) -> PositionFile {
    PositionFile {
        path: paths::POSITION.into(),
        cluster_uid: identity.cluster_uid.clone(),
    }
}

/// By what this machine believes a statement of an epoch.
struct EpochTrust {
    /// `None` on a machine that does not hold etcd.
    recovery: Option<RecoveryKeys>,
    /// Those of the recovery keys, else those that this machine has seen.
    verifiers: EpochVerifiers,
}

impl EpochTrust {
    fn of(identity: &MachineIdentity, keys: &MachineKeys) -> anyhow::Result<Self> {
        let uid = &identity.cluster_uid;
        if let Ok(recovery) = keys.recovery_keys() {
            let verifiers = EpochVerifiers::of_keys(uid, recovery.all())?;
            return Ok(Self {
                recovery: Some(recovery),
                verifiers,
            });
        }
        let recalled = position_file(identity).recall();
        let known = recalled.map_or_else(Vec::new, |recalled| recalled.verifiers);
        Ok(Self {
            recovery: None,
            verifiers: EpochVerifiers::new(uid, known),
        })
    }

    fn standing(
        &self,
        stated: &StatedStore,
        own: u64,
        identity: &MachineIdentity,
    ) -> StoreStanding {
        let StatedStore { epoch, server } = stated;
        let is_later = match &self.recovery {
            Some(keys) => is_later(epoch, own, keys, &identity.cluster_uid),
            None => self.verifiers.is_later(epoch, own),
        };
        if !is_later {
            return StoreStanding::Current;
        }
        // This machine has never held a store of that epoch.
        let is_named = |server: &StoreServer| {
            server.machine == identity.node
                && epoch.epoch > own
                && self.verifiers.is_server(epoch, server)
        };
        let is_replaced = self.verifiers.is_restored_as(epoch, own, &identity.node)
            || server.as_ref().is_some_and(is_named);
        if is_replaced {
            StoreStanding::Replaced
        } else {
            StoreStanding::Outdated
        }
    }
}

/// Asks machines that hold etcd, and some others, whether the store was begun anew since the epoch
/// that this machine knows. The others forward the question to the machine that leads, as they
/// know it: after a restore the only machine with the store may be one that is not known here.
pub(crate) async fn store_standing(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
    question: EpochQuestion,
) -> StoreStanding {
    let locals = local_addresses::addresses();
    let asked = endpoints_to_ask(identity, known, question, |endpoint| {
        is_own(endpoint, &locals)
    });
    if asked.is_empty() {
        return StoreStanding::Current;
    }
    let prepared = EpochTrust::of(identity, keys)
        .and_then(|trust| Ok((trust, clients_of(&asked, identity, keys, known)?)));
    let (trust, others) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => {
            tracing::warn!("the other machines can't be asked about their store: {error:#}");
            return StoreStanding::Current;
        }
    };
    let until = Instant::now() + question.limit();
    let patient = question == EpochQuestion::Patient;
    let own = known.store_epoch.epoch;
    let asked = others.iter().map(|machine| {
        let ask = move || async move {
            let health = machine.healthz().await;
            health.map(|health| {
                let server = health.store_server;
                let epoch = health.store_epoch;
                epoch.map(|epoch| StatedStore { epoch, server })
            })
        };
        answer_in_time(until, patient, ask)
    });
    let heard = join_all(asked).await;
    let judged = heard.into_iter().flatten().map(|stated| {
        let standing = trust.standing(&stated, own, identity);
        (standing, stated.epoch.epoch)
    });
    let (mut standing, later) = judged.max().unwrap_or((StoreStanding::Current, own));
    // A machine that has seen the epoch is none that its restore replaced, although the cache, which
    // could not be written or was put back, does not say so.
    let seen = position_file(identity).recall();
    let has_seen = seen.is_some_and(|seen| seen.position.epoch >= later);
    if standing == StoreStanding::Replaced && has_seen {
        standing = StoreStanding::Outdated;
    }
    if standing != StoreStanding::Current {
        tracing::warn!(
            own,
            later,
            "the cluster's store was begun anew on another machine while this one was away"
        );
    }
    standing
}

/// Whether a machine that held etcd reports that the cluster has a leader. It may have a certificate
/// of an authority that replaced the one which is known here: a backup can be from before that.
///
/// # Errors
/// This machine's keys can't be used.
pub(super) async fn is_led(
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> anyhow::Result<bool> {
    let others = clients_of(&members(identity, known), identity, keys, known)?;
    let until = Instant::now() + START_LIMIT;
    let asked = others.iter().map(|member| {
        let ask = move || async move {
            let health = member.healthz().await;
            health.map(|health| (health.leader && !health.stale).then_some(()))
        };
        answer_in_time(until, true, ask)
    });
    let heard = join_all(asked).await;
    Ok(heard.into_iter().flatten().next().is_some())
}

/// One machine's response; `None` where it does not respond in time.
async fn answer_in_time<T, Asked>(
    until: Instant,
    patient: bool,
    ask: impl Fn() -> Asked,
) -> Option<T>
where
    Asked: Future<Output = Result<Option<T>, ClientError>>,
{
    loop {
        let answer = timeout(ANSWER_LIMIT, ask()).await;
        match answer {
            Ok(Ok(stated)) => return stated,
            // The machine is reachable but has no answer yet.
            Ok(Err(error)) if error.status().is_some() => return None,
            _ if !patient || Instant::now() + AGAIN >= until => return None,
            _ => sleep(AGAIN).await,
        }
    }
}

/// Another machine at one of its addresses.
struct AskedMachine {
    /// By the authorities that this machine trusts.
    known: Client,
    /// By an authority that replaced one of them while this machine was away.
    successor: Client,
}

impl AskedMachine {
    async fn healthz(&self) -> Result<HealthView, ClientError> {
        match self.known.healthz().await {
            Err(error) if error.is_foreign() => self.successor.healthz().await,
            answered => answered,
        }
    }
}

/// An address at which a machine is asked.
#[derive(Debug, PartialEq, Eq)]
enum AskedEndpoint {
    /// That of a machine with the store.
    Store(String),
    /// That of a machine that forwards the connection to one with the store.
    Forwarder(String),
}

/// Each address of the other machines that hold etcd.
fn members(identity: &MachineIdentity, known: &ClusterCache) -> Vec<AskedEndpoint> {
    let port = identity.cluster.spec.api_port;
    let machines = known.endpoints.machines.iter();
    let members = machines.filter(|(name, machine)| **name != identity.node && machine.etcd);
    members
        .flat_map(|(_, machine)| addresses(machine, port))
        .map(AskedEndpoint::Store)
        .collect()
}

/// The members' addresses, those of some other machines, and those at which this machine's own name
/// was last seen and which are not its own now.
fn endpoints_to_ask(
    identity: &MachineIdentity,
    known: &ClusterCache,
    question: EpochQuestion,
    is_own: impl Fn(&str) -> bool,
) -> Vec<AskedEndpoint> {
    let port = identity.cluster.spec.api_port;
    let mut asked = members(identity, known);
    let machines = known.endpoints.machines.iter();
    let others = machines.filter(|(name, machine)| **name != identity.node && !machine.etcd);
    let others: Vec<&MachineEndpoints> = others.map(|(_, machine)| machine).collect();
    let others = question.others(&others, &identity.node).into_iter();
    let others = others.flat_map(|machine| addresses(machine, port));
    asked.extend(others.map(AskedEndpoint::Forwarder));
    let named = known.endpoints.machines.get(&identity.node);
    let named = named.into_iter().flat_map(|machine| &machine.api);
    for endpoint in named.chain(&known.leader) {
        let elsewhere = AskedEndpoint::Store(endpoint.clone());
        if !is_own(endpoint) && !asked.contains(&elsewhere) {
            asked.push(elsewhere);
        }
    }
    asked
}

/// One client for each address: a silent address must not use up the time of the others.
fn clients_of(
    asked: &[AskedEndpoint],
    identity: &MachineIdentity,
    keys: &MachineKeys,
    known: &ClusterCache,
) -> anyhow::Result<Vec<AskedMachine>> {
    let leaf = keys.leaf("node")?;
    let pem = format!("{}{}", leaf.certificate_pem, leaf.key_pem);
    let authority = keys.cluster_authority()?;
    let options = ClientOptions {
        connect_timeout: ANSWER_LIMIT,
        request_timeout: ANSWER_LIMIT,
        retry_for: Duration::ZERO,
        unreachable_for: Duration::ZERO,
        ..ClientOptions::default()
    };
    let uid = &identity.cluster_uid;
    let servers = ApiServers::Known(known.servers());
    let state_server = state_server_name(uid);
    let state_config = state_stream::config(identity, keys, servers.clone())?;
    let mut machines = Vec::new();
    for endpoint in asked {
        let (known, endpoint) = match endpoint {
            AskedEndpoint::Store(endpoint) => {
                let endpoints = [endpoint.clone()];
                let known =
                    Client::of_machine(&endpoints, uid, &authority, Some(&pem), &servers, options)?;
                (known, endpoint)
            }
            // By this name it is forwarded to the members' own addresses first. On the overlay, this
            // machine may have taken the place of the member already.
            AskedEndpoint::Forwarder(endpoint) => {
                let config = state_config.clone();
                let known = Client::of_state_server(endpoint, &state_server, config, options)?;
                (known, endpoint)
            }
        };
        let successor = Client::of_successor(endpoint, &authority, options)?;
        machines.push(AskedMachine { known, successor });
    }
    Ok(machines)
}

/// Interval of the checks by a running member.
pub(crate) const LOOKOUT_INTERVAL: Duration = Duration::from_secs(15);

/// The periodic check of a running member.
pub(crate) struct EpochCheck {
    pub identity: Arc<MachineIdentity>,
    pub keys: MachineKeys,
    /// Checks until now.
    pub turns: AtomicUsize,
}

impl EpochCheck {
    /// See [`store_standing`]. A machine that does not hold etcd follows the store of the members.
    pub(crate) async fn standing(&self, known: &ClusterCache) -> StoreStanding {
        if !self.identity.etcd {
            return StoreStanding::Current;
        }
        let question = EpochQuestion::Periodic(self.turns.fetch_add(1, Ordering::Relaxed));
        store_standing(&self.identity, &self.keys, known, question).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use kat_pki::epoch_proof::sign_server;

    #[test]
    fn only_who_has_a_recovery_key_can_count_an_epoch_up() {
        let [key, other] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let stated = prove(&key, "3f0c", 7, &StoreEpoch::default()).unwrap();
        assert_eq!(stated.earlier, []);
        // While the key is replaced, both prove.
        let both = RecoveryKeys::new(other.clone(), [key.clone()]);
        assert!(is_later(&stated, 6, &both, "3f0c"));
        let (key, other) = (RecoveryKeys::from(key), RecoveryKeys::from(other));
        assert!(is_later(&stated, 6, &key, "3f0c"));
        assert!(!is_later(&stated, 7, &key, "3f0c"));
        assert!(!is_later(&stated, 6, &key, "another cluster"));
        assert!(!is_later(&stated, 6, &other, "3f0c"));
        let higher = StoreEpoch {
            epoch: 8,
            ..stated.clone()
        };
        assert!(!is_later(&higher, 6, &key, "3f0c"));
        let nothing = StoreEpoch {
            epoch: 9,
            ..StoreEpoch::default()
        };
        assert!(!is_later(&nothing, 6, &key, "3f0c"));
        // One of an earlier version is sealed alone.
        let sealed = StoreEpoch {
            signature: String::new(),
            ..stated
        };
        assert!(is_later(&sealed, 6, &key, "3f0c") && !is_later(&sealed, 6, &other, "3f0c"));
    }

    #[test]
    fn a_machine_whose_name_another_one_has_since_a_later_epoch_is_replaced() {
        let [key, other] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let trust = EpochTrust {
            verifiers: EpochVerifiers::of_keys("3f0c", [&key]).unwrap(),
            recovery: Some(RecoveryKeys::from(key.clone())),
        };
        let follower = EpochTrust {
            verifiers: trust.verifiers.clone(),
            recovery: None,
        };
        let server = |key, epoch, name| sign_server(key, "3f0c", epoch, (name, "ab")).unwrap();
        let recovered = prove(&key, "3f0c", 7, &StoreEpoch::default()).unwrap();
        let restored = StoreEpoch {
            restored: Some(server(&key, 7, "n1")),
            ..recovered.clone()
        };
        let recovered_since = prove(&key, "3f0c", 9, &restored).unwrap();
        assert_eq!(recovered_since.earlier[0].restored, restored.restored);
        let foreign = prove(&other, "3f0c", 7, &StoreEpoch::default()).unwrap();
        let by_server = |name| Some(server(&key, 7, name));
        for (name, own, epoch, stated_by, expected) in [
            ("n1", 6, &restored, None, StoreStanding::Replaced),
            ("n1", 6, &recovered_since, None, StoreStanding::Replaced),
            // The restored machine itself, which was away while another one began the next store.
            ("n1", 7, &recovered_since, None, StoreStanding::Outdated),
            ("n1", 7, &restored, None, StoreStanding::Current),
            ("n2", 6, &restored, by_server("n1"), StoreStanding::Outdated),
            ("n2", 6, &recovered, None, StoreStanding::Outdated),
            // A version that does not write who was restored.
            (
                "n1",
                6,
                &recovered,
                by_server("n1"),
                StoreStanding::Replaced,
            ),
            ("n1", 7, &recovered, by_server("n1"), StoreStanding::Current),
            (
                "n1",
                6,
                &recovered,
                Some(server(&other, 7, "n1")),
                StoreStanding::Outdated,
            ),
            ("n1", 6, &foreign, by_server("n1"), StoreStanding::Current),
        ] {
            let identity = MachineIdentity::example(name);
            let stated = StatedStore {
                epoch: epoch.clone(),
                server: stated_by,
            };
            for trust in [&trust, &follower] {
                let found = trust.standing(&stated, own, &identity);
                assert_eq!(found, expected, "{name} {own} {epoch:?}");
            }
        }
    }

    fn machine(api: &str, overlay: [u8; 4], etcd: bool) -> MachineEndpoints {
        MachineEndpoints {
            api: vec![api.to_owned()],
            overlay: Some(overlay.into()),
            etcd,
            ..MachineEndpoints::default()
        }
    }

    #[test]
    fn members_and_other_machines_are_asked_and_this_machines_name_at_addresses_of_others() {
        let identity = MachineIdentity::example("n1");
        let mut known = ClusterCache {
            leader: Some("192.0.2.9:9115".to_owned()),
            ..ClusterCache::default()
        };
        let here = "192.0.2.1:9115";
        let ask = |known: &ClusterCache| {
            endpoints_to_ask(&identity, known, EpochQuestion::Patient, |endpoint| {
                endpoint == here
            })
        };
        let store = |endpoint: &str| AskedEndpoint::Store(endpoint.to_owned());
        let forwarder = |endpoint: &str| AskedEndpoint::Forwarder(endpoint.to_owned());
        let mut own = machine(here, [10, 100, 0, 1], true);
        own.api.push("192.0.2.7:9115".to_owned());
        let machines = &mut known.endpoints.machines;
        machines.insert("n1".to_owned(), own);
        let member = machine("192.0.2.2:9115", [10, 100, 2, 1], true);
        machines.insert("n2".to_owned(), member);
        let worker = machine("192.0.2.3:9115", [10, 100, 4, 1], false);
        machines.insert("n3".to_owned(), worker);
        let expected = [
            store("10.100.2.1:9115"),
            store("192.0.2.2:9115"),
            forwarder("10.100.4.1:9115"),
            forwarder("192.0.2.3:9115"),
            store("192.0.2.7:9115"),
            store("192.0.2.9:9115"),
        ];
        assert_eq!(ask(&known), expected);
        known.leader = Some(here.to_owned());
        assert_eq!(ask(&known), expected[..5]);
        known.leader = Some("192.0.2.2:9115".to_owned());
        assert_eq!(ask(&known), expected[..5]);
        // A machine alone asks nobody.
        known.leader = None;
        known.endpoints.machines = [("n1".to_owned(), machine(here, [10, 100, 0, 1], true))].into();
        assert_eq!(ask(&known), []);
    }

    #[test]
    fn periodic_checks_reach_every_machine_in_turn_and_each_asks_few() {
        let all: Vec<usize> = (0..11).collect();
        let nobody: [usize; 0] = [];
        assert_eq!(EpochQuestion::Patient.others(&all, "n1").len(), 8);
        assert!(EpochQuestion::Patient.others(&nobody, "n1").is_empty());
        let mut reached = BTreeSet::<&usize>::new();
        for turn in 0..6 {
            let asked = EpochQuestion::Periodic(turn).others(&all, "n1");
            assert_eq!(asked.len(), 2);
            reached.extend(asked);
        }
        assert_eq!(reached.len(), all.len());
        assert_eq!(EpochQuestion::Periodic(3).others(&all[..1], "n1").len(), 1);
    }

    /// A member that was taken out in epoch 9, and away while the recovery key was replaced before.
    #[test]
    fn a_machine_with_an_earlier_recovery_key_believes_the_key_that_took_its_place() {
        let [old, new] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let publish = |record: &StoreEpoch, current: &RecoveryKey, other: &[&RecoveryKey]| {
            let replaced = current.fingerprint();
            let next = other.first().map(|key| key.fingerprint());
            let replacement = next
                .as_deref()
                .map(|next| kat_pki::epoch_proof::KeyReplacement {
                    replaced: &replaced,
                    next,
                });
            let others = other.iter().map(|key| (*key).clone());
            let keys = RecoveryKeys::new(current.clone(), others);
            kat_pki::epoch_proof::with_verifiers(record, "3f0c", &keys, replacement).unwrap()
        };
        let record = prove(&old, "3f0c", 5, &StoreEpoch::default()).unwrap();
        let record = publish(&record, &old, &[&new]);
        let record = publish(&record, &new, &[]);
        let stated = prove(&new, "3f0c", 9, &record).unwrap();
        let old = RecoveryKeys::from(old);
        assert!(is_later(&stated, 5, &old, "3f0c") && !is_later(&stated, 9, &old, "3f0c"));
        assert_eq!(stated.earlier[0].signature, record.signature);
        let without = StoreEpoch {
            endorsements: Vec::new(),
            ..stated
        };
        assert!(!is_later(&without, 5, &old, "3f0c"));
    }

    /// A member that was taken out in epoch 5, and away until the recovery key was replaced and the
    /// store created anew once more.
    #[test]
    fn a_machine_with_an_earlier_recovery_key_believes_the_epoch_of_that_time() {
        let [old, new] = [(); 2].map(|()| RecoveryKey::generate().unwrap());
        let first = prove(&old, "3f0c", 5, &StoreEpoch::default()).unwrap();
        let second = prove(&new, "3f0c", 9, &first).unwrap();
        let (old, present) = (RecoveryKeys::from(old), RecoveryKeys::from(new.clone()));
        assert!(is_later(&second, 4, &old, "3f0c") && is_later(&second, 4, &present, "3f0c"));
        // It was there in epoch 5, and nothing later is known to it.
        assert!(!is_later(&second, 5, &old, "3f0c"));
        // The same command once more changes nothing, and the list has an end.
        assert_eq!(
            prove(&new, "3f0c", 9, &second).unwrap().earlier,
            second.earlier
        );
        let mut last = second;
        for epoch in 10..40 {
            last = prove(&new, "3f0c", epoch, &last).unwrap();
        }
        assert_eq!(last.earlier.len(), MAX_EARLIER);
        assert_eq!(last.earlier[0].epoch, 38);
    }
}

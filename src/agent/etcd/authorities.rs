//! This machine's part in the replacement of an authority or of the recovery key (see
//! [`RotationPhase`]): it takes the new authority, restarts its etcd when it is its turn, tries what
//! its etcd accepts, and reports all of it. The leader decides about the phases.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::trial::{Trial, try_certificate};
use crate::{
    cluster::{
        cluster_cache::ClusterCacheReceiver, identity::MachineIdentity, keys::MachineKeys, machine,
    },
    commands::host_files,
};
use kat_daemon::watchdog::LoopPulses;
use kat_leader::{AuthorityMaker, NewAuthority};
use kat_pki as pki;
use kat_pki::{AuthorityEdition, AuthorityKind, tls::trial_client_config};
use kat_plan::{Snapshot, SnapshotSealing};
use kat_systemd::{JobResult, UnitManager};
use kat_types::{
    api::{AuthorityReport, MembershipAnswer},
    store::{
        authorities::{AuthorityRecord, MemberSignature, ReplaceableKey, Rotation, RotationPhase},
        revisions::Stored,
    },
};

/// Time between two looks while an authority is being replaced.
const BUSY: Duration = Duration::from_secs(2);
/// Time between two looks otherwise; a change of the record wakes it.
const IDLE: Duration = Duration::from_secs(60);
/// Shortest time between two restarts of etcd for the same files: one that they do not change must
/// not restart for ever.
const RESTART_PAUSE: Duration = Duration::from_secs(60);
/// Longest restart of etcd.
const RESTART_LIMIT: Duration = Duration::from_secs(90);

/// How this machine uses the authorities, as its reports say. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct AuthorityUses(Arc<watch::Sender<Vec<AuthorityReport>>>);

impl AuthorityUses {
    pub(crate) fn shown(&self) -> Vec<AuthorityReport> {
        self.0.borrow().clone()
    }

    pub(crate) fn show(&self, uses: Vec<AuthorityReport>) {
        self.0.send_if_modified(|shown| {
            let differs = *shown != uses;
            *shown = uses;
            differs
        });
    }

    /// Waits until something else is shown than when this was called.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut changes = self.0.subscribe();
        async move {
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// The authorities with which this machine's API signs, and the recovery keys with which its
/// snapshots open and seal secrets: read anew after each change.
pub(crate) struct SigningAuthorities {
    folder: PathBuf,
    current: watch::Sender<Arc<pki::Authorities>>,
    sealing: watch::Sender<SnapshotSealing>,
}

impl SigningAuthorities {
    pub(crate) fn load(folder: PathBuf) -> Result<Self, pki::PkiError> {
        let current = Arc::new(pki::Authorities::load(&folder)?);
        let sealing = sealing_with(&current);
        Ok(Self {
            folder,
            current: watch::Sender::new(current),
            sealing: watch::Sender::new(sealing),
        })
    }

    /// How secrets are opened and sealed.
    pub(crate) fn sealing(&self) -> watch::Receiver<SnapshotSealing> {
        self.sealing.subscribe()
    }

    /// The recovery keys in use.
    fn recovery_keys(&self) -> Option<pki::RecoveryKeys> {
        self.current.borrow().recovery_keys().cloned()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<pki::Authorities>> {
        self.current.subscribe()
    }

    fn read_again(&self) -> Result<(), pki::PkiError> {
        let current = Arc::new(pki::Authorities::load(&self.folder)?);
        self.sealing.send_replace(sealing_with(&current));
        self.current.send_replace(current);
        Ok(())
    }
}

fn sealing_with(authorities: &pki::Authorities) -> SnapshotSealing {
    match authorities.recovery_keys() {
        Some(keys) => SnapshotSealing::with(keys.clone()),
        None => SnapshotSealing::None,
    }
}

/// Makes the authorities and recovery keys that replace others, on the leading machine.
pub(crate) struct NextAuthorities {
    pub keys: MachineKeys,
    pub cluster_uid: String,
    pub signing: Arc<SigningAuthorities>,
}

#[async_trait]
impl AuthorityMaker for NextAuthorities {
    async fn make_next(&self, replaced: ReplaceableKey) -> Result<NewAuthority, String> {
        let words = |error: &dyn std::fmt::Display| format!("{}: {error}", replaced.name());
        let ReplaceableKey::Authority(kind) = replaced else {
            let made = self.keys.make_next_recovery_key();
            let hash = made.map_err(|error| words(&error))?;
            self.signing.read_again().map_err(|error| words(&error))?;
            return Ok(NewAuthority {
                certificate: String::new(),
                hash,
            });
        };
        let made = self
            .keys
            .make_next(kind, &self.cluster_uid, Timestamp::now())
            .map_err(|error| words(&error))?;
        self.signing.read_again().map_err(|error| words(&error))?;
        let hash = pki::fingerprint_of(&made).map_err(|error| words(&error))?;
        Ok(NewAuthority {
            certificate: made,
            hash,
        })
    }
}

/// The unit of this machine's etcd.
#[async_trait]
pub(crate) trait EtcdUnit: Send + Sync {
    /// Restarts etcd, and returns when it serves.
    async fn restart(&self) -> anyhow::Result<()>;
}

/// The unit that systemd runs.
pub(crate) struct SystemdEtcd(pub Arc<dyn UnitManager>);

#[async_trait]
impl EtcdUnit for SystemdEtcd {
    async fn restart(&self) -> anyhow::Result<()> {
        let restarted = self.0.restart(host_files::ETCD, RESTART_LIMIT).await?;
        if restarted != JobResult::Done {
            anyhow::bail!("etcd did not start again: {restarted:?}");
        }
        Ok(())
    }
}

/// Takes this machine's part. Only on a machine that holds etcd.
pub(crate) struct AuthorityKeeper {
    pub identity: Arc<MachineIdentity>,
    pub keys: MachineKeys,
    pub known: ClusterCacheReceiver,
    /// What the cluster's store holds.
    pub snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    pub etcd: Arc<dyn EtcdUnit>,
    pub signing: Arc<SigningAuthorities>,
    pub uses: AuthorityUses,
    /// The authorities that this machine's servers trust now.
    pub trust: Arc<pki::tls::CurrentTrust>,
    /// When this machine's etcd was last restarted, and for which files.
    pub restarted: Mutex<Option<(RestartReason, Instant)>>,
    /// What the last look has tried.
    pub tried: Mutex<BTreeMap<AuthorityKind, Tried>>,
    /// The hash of the authority for which this machine last signed, with its signature.
    pub signed: Mutex<Option<(String, MemberSignature)>>,
    /// Wakes the renewal of certificates.
    pub changed: Arc<Notify>,
    pub pulses: LoopPulses,
}

/// The authorities whose certificates this machine's etcd accepted and refused.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    accepted: Vec<String>,
    refused: Vec<String>,
}

/// The authority, the phase of its replacement, and the hash of the certificate, for which etcd is
/// restarted.
type RestartReason = (AuthorityKind, Option<RotationPhase>, String);

/// What the store says about the authorities, by name.
type Records = BTreeMap<String, Stored<AuthorityRecord>>;

impl AuthorityKeeper {
    /// Runs until `cancel`.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("authorities of etcd");
        let mut said = String::new();
        let work = async {
            loop {
                let records = self.records();
                let pause = pulse.wait(self.look(&records, &mut said)).await;
                let changed = tokio::time::timeout(pause, self.changed(&records));
                let _ = pulse.wait(changed).await;
            }
        };
        cancel.run_until_cancelled(work).await;
        // The task waits here for the agent's stop: the end of a task would stop the agent.
        cancel.cancelled().await;
    }

    /// This machine's signature for the authority that it has taken, for machines that are off
    /// meanwhile. It stays the same for one replacement.
    fn sign_succession(
        &self,
        record: Option<&AuthorityRecord>,
        report: &AuthorityReport,
    ) -> Option<MemberSignature> {
        let record = record?;
        let rotation = record.rotation.as_ref()?;
        let next = &rotation.next;
        if report.holds_next != *next && report.issues != *next {
            return None;
        }
        let mut signed = self.signed.lock();
        if let Some((hash, signature)) = &*signed
            && hash == next
        {
            return Some(signature.clone());
        }
        let uid = &self.identity.cluster_uid;
        match self.keys.sign_succession(uid, (&record.current, next)) {
            Ok(signature) => {
                *signed = Some((next.clone(), signature.clone()));
                Some(signature)
            }
            Err(error) => {
                tracing::error!("the new authority can't be vouched for: {error}");
                None
            }
        }
    }

    fn records(&mut self) -> Records {
        let snapshot = self.snapshot.borrow_and_update();
        let stored = snapshot.as_ref().map(|snapshot| &snapshot.authorities);
        stored.cloned().unwrap_or_default()
    }

    /// Waits until the records are others than these.
    async fn changed(&mut self, records: &Records) {
        while self.snapshot.changed().await.is_ok() {
            if self.records() != *records {
                return;
            }
        }
        std::future::pending::<()>().await;
    }

    /// Looks at every authority once; returns how long to wait for the next look.
    async fn look(&self, records: &Records, said: &mut String) -> Duration {
        let mut uses = Vec::new();
        let mut pause = IDLE;
        let mut failed = String::new();
        for kind in AuthorityKind::ALL {
            let record = records.get(kind.name()).map(|stored| &stored.value);
            if record.is_some_and(|record| record.rotation.is_some()) {
                pause = BUSY;
            }
            let error = self.converge(kind, record).await.err();
            // Also a machine that can't take its part says how it uses the authority: the leader
            // makes another one where this machine is the leader and lacks the new one.
            match self.keys.authority_report(kind) {
                Ok(mut report) => {
                    let tried = self.tried.lock();
                    if let Some(tried) = tried.get(&kind).filter(|_| error.is_none()) {
                        report.accepted.clone_from(&tried.accepted);
                        report.refused.clone_from(&tried.refused);
                    }
                    if kind == AuthorityKind::Cluster {
                        report.accepted = self.trust.fingerprints();
                        report.successor_signature = self.sign_succession(record, &report);
                    }
                    uses.push(report);
                }
                Err(error) => failed = format!("{}: {error:#}", kind.name()),
            }
            if let Some(error) = error {
                pause = BUSY;
                failed = format!("{}: {error:#}", kind.name());
            }
        }
        let key = ReplaceableKey::Recovery.name();
        let record = records.get(key).map(|stored| &stored.value);
        if record.is_some_and(|record| record.rotation.is_some()) {
            pause = BUSY;
        }
        if let Err(error) = self.converge_recovery_key(record).await {
            pause = BUSY;
            failed = format!("{key}: {error:#}");
        }
        match self.recovery_report() {
            Ok(report) => uses.push(report),
            Err(error) => failed = format!("{key}: {error:#}"),
        }
        if !failed.is_empty() && failed != *said {
            tracing::error!("an authority is not as it should be: {failed}");
        }
        *said = failed;
        self.uses.show(uses);
        pause
    }

    /// Makes the files of an authority what its record says, and tries what etcd accepts.
    async fn converge(
        &self,
        kind: AuthorityKind,
        record: Option<&AuthorityRecord>,
    ) -> anyhow::Result<()> {
        self.tried.lock().remove(&kind);
        let Some(record) = record else {
            return Ok(());
        };
        let Some(rotation) = &record.rotation else {
            return self.settle(kind, record).await;
        };
        self.take_part(kind, rotation).await?;
        if kind == AuthorityKind::Cluster {
            return Ok(());
        }
        let mut tried = self.try_out(kind, (record, rotation)).await?;
        let is_done = match rotation.phase {
            RotationPhase::Trust | RotationPhase::Issue => !tried.accepted.is_empty(),
            RotationPhase::Retire => !tried.refused.is_empty(),
        };
        if rotation.turn.as_ref() == Some(&self.identity.node) && !is_done {
            let reason = (kind, Some(rotation.phase), rotation.next.clone());
            self.restart_etcd(reason).await?;
            tried = self.try_out(kind, (record, rotation)).await?;
        }
        self.tried.lock().insert(kind, tried);
        Ok(())
    }

    /// No replacement is under way. A machine that was away until its end takes the authority now.
    async fn settle(&self, kind: AuthorityKind, record: &AuthorityRecord) -> anyhow::Result<()> {
        if record.due.is_some() {
            // The leader may have made the new authority just now.
            return Ok(());
        }
        let own = self.keys.edition_hash(kind, AuthorityEdition::Current)?;
        if own == record.current || record.current.is_empty() {
            if self.keys.forget_editions(kind)? {
                tracing::info!(
                    authority = kind.name(),
                    "the replaced authority is forgotten"
                );
                self.use_files()?;
            }
            return Ok(());
        }
        if self.keys.edition_hash(kind, AuthorityEdition::Next)? == record.current {
            self.keys.promote_next(kind)?;
        } else {
            let given = self.ask_leader().await?;
            let current = AuthorityEdition::Current;
            self.keys
                .take_edition(kind, current, &record.current, &given)?;
        }
        self.keys.forget_editions(kind)?;
        self.use_files()?;
        match kind {
            AuthorityKind::Cluster => Ok(()),
            AuthorityKind::EtcdClients | AuthorityKind::EtcdPeers => {
                let reason = (kind, None, record.current.clone());
                self.restart_etcd(reason).await
            }
        }
    }

    /// Brings the files to the phase of the replacement.
    async fn take_part(&self, kind: AuthorityKind, rotation: &Rotation) -> anyhow::Result<()> {
        let mut changed = false;
        let hash = |edition| self.keys.edition_hash(kind, edition);
        let issues = hash(AuthorityEdition::Current)? == rotation.next;
        if !issues && hash(AuthorityEdition::Next)? != rotation.next {
            let given = self.ask_leader().await?;
            let next = AuthorityEdition::Next;
            self.keys.take_edition(kind, next, &rotation.next, &given)?;
            tracing::info!(authority = kind.name(), "the new authority is trusted");
            changed = true;
        }
        if rotation.phase >= RotationPhase::Issue && !issues {
            self.keys.promote_next(kind)?;
            tracing::info!(authority = kind.name(), "certificates are issued anew");
            changed = true;
        }
        if rotation.phase >= RotationPhase::Retire && !hash(AuthorityEdition::Old)?.is_empty() {
            self.keys.retire_old(kind)?;
            tracing::info!(
                authority = kind.name(),
                "the old authority is trusted no more"
            );
            changed = true;
        }
        // An agent that ended in between, or the leader's making of the authority, leaves files that
        // are not in use yet.
        let changed = changed || self.keys.copy_for_etcd()?;
        match changed || !self.trust.is_of(&self.keys.cluster_authority()?) {
            true => self.use_files(),
            false => Ok(()),
        }
    }

    /// Issues the certificates that the files ask for, copies what etcd reads, and lets the agent's
    /// own connections and its API use them.
    fn use_files(&self) -> anyhow::Result<()> {
        let known = self.known.borrow().clone();
        self.keys.renew(&self.identity, &known, Timestamp::now())?;
        self.signing.read_again()?;
        self.changed.notify_one();
        Ok(())
    }

    async fn ask_leader(&self) -> anyhow::Result<MembershipAnswer> {
        let known = self.known.borrow().clone();
        machine::membership(&self.identity, &known, &self.keys)
            .await
            .context("the leader does not hand over its authorities")
    }

    async fn restart_etcd(&self, reason: RestartReason) -> anyhow::Result<()> {
        let authority = reason.0.name();
        {
            let mut last = self.restarted.lock();
            let again = last.as_ref().filter(|(before, _)| *before == reason);
            if again.is_some_and(|(_, at)| at.elapsed() < RESTART_PAUSE) {
                anyhow::bail!("etcd was restarted, and does not go by the new files");
            }
            *last = Some((reason, Instant::now()));
        }
        tracing::info!(
            authority,
            "etcd restarts: it reads the authorities that it trusts at its start"
        );
        self.etcd.restart().await
    }

    /// Tries on this machine's etcd what the phase is about.
    async fn try_out(
        &self,
        kind: AuthorityKind,
        (record, rotation): (&AuthorityRecord, &Rotation),
    ) -> anyhow::Result<Tried> {
        let mut tried = Tried::default();
        let current = self.keys.edition_hash(kind, AuthorityEdition::Current)?;
        let next = match current == rotation.next {
            true => AuthorityEdition::Current,
            false => AuthorityEdition::Next,
        };
        match self.trial(kind, next).await? {
            Trial::Accepted => tried.accepted.push(rotation.next.clone()),
            Trial::Refused => return Ok(tried),
            Trial::NoAnswer(reason) => {
                anyhow::bail!("this machine's etcd can't be tried: {reason}")
            }
        }
        if rotation.phase != RotationPhase::Retire {
            return Ok(tried);
        }
        let retired = self.keys.edition_hash(kind, AuthorityEdition::Retired)?;
        if retired.is_empty() {
            // A machine that came in the middle never trusted it.
            tried.refused.push(record.current.clone());
        } else if self.trial(kind, AuthorityEdition::Retired).await? == Trial::Refused {
            tried.refused.push(retired);
        }
        Ok(tried)
    }

    async fn trial(&self, kind: AuthorityKind, edition: AuthorityEdition) -> anyhow::Result<Trial> {
        let now = Timestamp::now();
        let identity = self.keys.trial(kind, edition, &self.identity, now)?;
        let config = trial_client_config(&self.keys.trusted_certificates(kind)?, &identity)?;
        let spec = &self.identity.cluster.spec;
        let address: SocketAddr = match kind {
            AuthorityKind::EtcdPeers => {
                (self.identity.overlay_address(), spec.etcd_peer_port).into()
            }
            AuthorityKind::Cluster | AuthorityKind::EtcdClients => {
                (Ipv4Addr::LOCALHOST, spec.etcd_client_port).into()
            }
        };
        Ok(try_certificate(address, &self.identity.node, config).await)
    }
}

mod recovery_key;

#[cfg(test)]
mod tests;

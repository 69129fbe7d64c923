//! etcd's upkeep: alarms, the history, the members' files. All of it needs etcd's root role.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};

use super::{EtcdStore, error};
use crate::StoreError;

/// An alarm that a member raised. All members keep to it until it is taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdAlarm {
    /// etcd's id of the member.
    pub member: u64,
    /// What it says.
    pub kind: EtcdAlarmKind,
}

/// What an alarm says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdAlarmKind {
    /// The member's file has reached the quota: etcd takes reads and deletions only.
    Full,
    /// The member's data differs from the others'.
    Corrupt,
}

/// The alarms that are raised. Each call is an entry of raft's log, so it is for when a member's
/// status speaks of one ([`speaks_of_alarms`]).
///
/// # Errors
/// What etcd answers.
pub async fn alarms(store: &EtcdStore) -> Result<Vec<EtcdAlarm>, StoreError> {
    let answer = store
        .call(true, |client| async move {
            let mut maintenance = client.maintenance_client();
            maintenance
                .alarm(AlarmAction::Get, AlarmType::None, None)
                .await
        })
        .await?;
    let known = answer.alarms().iter().filter_map(|alarm| {
        let kind = match alarm.alarm() {
            AlarmType::Nospace => EtcdAlarmKind::Full,
            AlarmType::Corrupt => EtcdAlarmKind::Corrupt,
            AlarmType::None => return None,
        };
        Some(EtcdAlarm {
            member: alarm.member_id(),
            kind,
        })
    });
    Ok(known.collect())
}

/// Whether an error in a member's status is an alarm; `memberID:N alarm:NOSPACE`, in words that
/// differ between versions.
pub fn speaks_of_alarms(errors: &[String]) -> bool {
    errors.iter().any(|error| error.contains("alarm"))
}

/// Takes a member's alarm NOSPACE back. Fine if there is none.
///
/// # Errors
/// What etcd answers.
pub async fn disarm(store: &EtcdStore, member: u64) -> Result<(), StoreError> {
    store
        .call(true, |client| async move {
            let mut options = AlarmOptions::new();
            options.with_member(member);
            let mut maintenance = client.maintenance_client();
            maintenance
                .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options))
                .await
                .map(drop)
        })
        .await
}

/// Cuts the history before `revision` and waits until what it freed can be used. Fine if it is cut
/// already.
///
/// # Errors
/// What etcd answers; [`StoreError::Unavailable`] too when it takes longer than the store's calls
/// may. It goes on then.
pub async fn compact(store: &EtcdStore, revision: i64) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            let options = CompactionOptions::new().with_physical();
            match client.kv_client().compact(revision, Some(options)).await {
                Ok(_) => Ok(()),
                Err(failure) if error::message(&failure).contains("has been compacted") => Ok(()),
                Err(failure) => Err(failure),
            }
        })
        .await
}

/// Makes the file of the member that answers smaller. It serves nobody meanwhile.
///
/// # Errors
/// What etcd answers; [`StoreError::Unavailable`] too when it takes longer than the store's calls
/// may. It goes on then.
pub async fn defragment(store: &EtcdStore) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            client.maintenance_client().defragment().await.map(drop)
        })
        .await
}

//! Maintenance of etcd: alarms, compaction, defragmentation. All calls need etcd's root role.

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions};

use super::{EtcdStore, error};
use crate::StoreError;

/// An alarm that a member raised. It applies to all members until it is disarmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EtcdAlarm {
    /// etcd's member id.
    pub member: u64,
    /// Kind of the alarm.
    pub kind: EtcdAlarmKind,
}

/// Kind of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EtcdAlarmKind {
    /// The member's file has reached the quota: etcd takes reads and deletions only.
    Full,
    /// The member's data differs from the others'.
    Corrupt,
}

/// The raised alarms. Each call is an entry of raft's log, so callers use it only if a member's
/// status reports an alarm ([`speaks_of_alarms`]).
///
/// # Errors
/// Errors of etcd.
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

/// Whether an error in a member's status is an alarm, `memberID:N alarm:NOSPACE`; the text differs
/// between versions.
pub fn speaks_of_alarms(errors: &[String]) -> bool {
    errors.iter().any(|error| error.contains("alarm"))
}

/// Disarms a member's alarm NOSPACE. No error if there is none.
///
/// # Errors
/// Errors of etcd.
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

/// Compacts the history before `revision`, and waits until the freed space can be used. No error if
/// it is compacted already.
///
/// # Errors
/// Errors of etcd; also [`StoreError::Unavailable`] if it takes longer than the store's call
/// timeout. The compaction continues then.
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

/// Defragments the file of the member that answers. The member serves no requests meanwhile.
///
/// # Errors
/// Errors of etcd; also [`StoreError::Unavailable`] if it takes longer than the store's call
/// timeout. The defragmentation continues then.
pub async fn defragment(store: &EtcdStore) -> Result<(), StoreError> {
    store
        .call(false, |client| async move {
            client.maintenance_client().defragment().await.map(drop)
        })
        .await
}

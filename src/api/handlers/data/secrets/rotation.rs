//! Rotation of the data key that seals secrets.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::Instant;

use super::sealing;
use crate::{
    access::authentication::Caller,
    apply::put,
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::QueryParameters,
};
use kat_plan::{EventLog, Snapshot};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference, SealingRotation},
    reason::EventReason,
    registry::{LoginPlace, LoginRecord},
    secrets::{SecretKey, SecretRecord},
    store::{
        keys,
        revisions::Stored,
        transaction::{Compare, WriteOperation},
    },
};

/// Maximum number of secrets, and of their stored bytes, that are sealed again in one transaction.
const PIECE: usize = 32;
const PIECE_BYTES: usize = 512 << 10;
/// Time limit of the work of one call; the response says how many secrets are left.
const ROTATION_LIMIT: Duration = Duration::from_secs(5);

/// Query parameters of a rotation.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RotationQuery {
    /// Continue a rotation that was started, and start none.
    go_on: bool,
}

/// Creates a new key, unless a rotation is unfinished, and seals secrets again for up to
/// [`ROTATION_LIMIT`].
pub(crate) async fn rotate(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    QueryParameters(query): QueryParameters<RotationQuery>,
) -> Result<Response, ApiError> {
    let now = api.now();
    let until = Instant::now() + ROTATION_LIMIT;
    if !query.go_on {
        api.write(|snapshot| begin_rotation(snapshot, &caller, now))
            .await?;
    }
    loop {
        let (rotation, revision) = api.write(go_on_with_rotation).await?;
        if revision.is_none() || Instant::now() >= until {
            return Ok(Json(rotation).into_response());
        }
    }
}

/// Secrets that are not sealed with the last key.
fn outdated(snapshot: &Snapshot) -> Vec<(&SecretKey, &Stored<Arc<SecretRecord>>)> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let secrets = snapshot.secrets.iter();
    secrets
        .filter(|(_, stored)| Some(stored.value.key_id) != last)
        .collect()
}

/// Credentials for registries that are not sealed with the last key.
fn outdated_logins(snapshot: &Snapshot) -> Vec<(&String, &LoginPlace, &Stored<LoginRecord>)> {
    let last = snapshot.sealing_keys.keys().next_back().copied();
    let logins = snapshot.logins.iter();
    let logins = logins.flat_map(|(namespace, logins)| {
        let logins = logins.iter();
        logins.map(move |(place, stored)| (namespace, place, stored))
    });
    logins
        .filter(|(.., stored)| Some(stored.value.key_id) != last)
        .collect()
}

fn begin_rotation(
    snapshot: &Snapshot,
    caller: &Caller,
    now: Timestamp,
) -> Result<WriteDecision<()>, ApiError> {
    // An interrupted rotation continues with the key that it created.
    if snapshot.sealing_keys.len() > 1 {
        return Ok(WriteDecision::Done(()));
    }
    let last = snapshot.sealing_keys.last_key_value();
    let number = last.map_or(0, |(number, _)| *number);
    let next = number.saturating_add(1);
    let key = snapshot.sealing.new_key(next, now).map_err(sealing)?;
    let object = ObjectReference {
        kind: ObjectKind::Cluster,
        name: snapshot.cluster.metadata.name.clone(),
        ..ObjectReference::default()
    };
    let message = format!("{caller} had another key made that seals secrets: number {next}");
    let mut operations = EventLog::new(&snapshot.events, now).record(
        EventKind::Normal,
        EventReason::SealingKeyRotated,
        object,
        message,
    );
    operations.push(put(keys::sealing_key(next), &key)?);
    let mut conditions = vec![Compare::ModRevision(keys::sealing_key(next), 0)];
    conditions.extend(
        last.map(|(number, stored)| {
            Compare::ModRevision(keys::sealing_key(*number), stored.revision)
        }),
    );
    Ok(WriteDecision::Write {
        conditions,
        operations,
        outcome: (),
    })
}

/// Seals one batch again; when nothing is left, deletes earlier keys. Any write with an earlier key
/// came before the last key was created, so a snapshot that shows the last key shows that write
/// too.
fn go_on_with_rotation(snapshot: &Snapshot) -> Result<WriteDecision<SealingRotation>, ApiError> {
    let Some((last, sealing_key)) = snapshot.sealing_keys.last_key_value() else {
        return Ok(WriteDecision::Done(SealingRotation::default()));
    };
    let mut conditions = vec![
        Compare::ModRevision(keys::sealing_key(*last), sealing_key.revision),
        Compare::ModRevision(keys::sealing_key(last.saturating_add(1)), 0),
    ];
    let mut operations = Vec::new();
    let (outdated, logins) = (outdated(snapshot), outdated_logins(snapshot));
    let (mut left, mut bytes) = (outdated.len() + logins.len(), 0);
    for (key, stored) in outdated.iter().take(PIECE) {
        let values = snapshot.sealing.open(snapshot, key, &stored.value);
        let record = snapshot
            .sealing
            .seal(
                (*last, &sealing_key.value),
                key,
                &values.map_err(sealing)?,
                SecretRecord::clone(&stored.value),
            )
            .map_err(sealing)?;
        bytes += record.sealed.len();
        let name = keys::secret(&key.to_string());
        conditions.push(Compare::ModRevision(name.clone(), stored.revision));
        operations.push(put(name, &record)?);
        left -= 1;
        if bytes >= PIECE_BYTES {
            break;
        }
    }
    // Credentials come after all secrets, since each transaction takes one batch.
    let logins = logins.iter().filter(|_| outdated.is_empty());
    for (namespace, place, stored) in logins.take(PIECE) {
        let login = (namespace.as_str(), *place);
        let opened = snapshot.sealing.open_login(snapshot, login, &stored.value);
        let record = LoginRecord::clone(&stored.value);
        let key = (*last, &sealing_key.value);
        let record = snapshot
            .sealing
            .seal_login(key, login, &opened.map_err(sealing)?, record)
            .map_err(sealing)?;
        let name = keys::login(namespace, &place.to_string());
        conditions.push(Compare::ModRevision(name.clone(), stored.revision));
        operations.push(put(name, &record)?);
        left -= 1;
    }
    // This version does not know with which key unreadable records are sealed.
    let unread = snapshot.unread_secrets;
    if operations.is_empty() && unread == 0 {
        let earlier = snapshot.sealing_keys.range(..*last).take(PIECE);
        for (number, stored) in earlier {
            let name = keys::sealing_key(*number);
            conditions.push(Compare::ModRevision(name.clone(), stored.revision));
            operations.push(WriteOperation::Delete(name));
        }
    }
    let outcome = SealingRotation {
        key: *last,
        left: (left + unread) as u64,
    };
    match operations.is_empty() {
        true => Ok(WriteDecision::Done(outcome)),
        false => Ok(WriteDecision::Write {
            conditions,
            operations,
            outcome,
        }),
    }
}

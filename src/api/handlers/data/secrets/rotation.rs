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
    context::{Api, WriteDecision},
    errors::ApiError,
    extract::QueryParameters,
};
use kat_plan::{EventLog, ResealingError, Snapshot, another_data_key, reseal_batch};
use kat_types::{
    api::{EventKind, ObjectKind, ObjectReference, SealingRotation},
    reason::EventReason,
};

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

fn begin_rotation(
    snapshot: &Snapshot,
    caller: &Caller,
    now: Timestamp,
) -> Result<WriteDecision<()>, ApiError> {
    // An interrupted rotation continues with the key that it created.
    if snapshot.sealing_keys.len() > 1 {
        return Ok(WriteDecision::Done(()));
    }
    let step = another_data_key(snapshot, now).map_err(not_resealed)?;
    let object = ObjectReference {
        kind: ObjectKind::Cluster,
        name: snapshot.cluster.metadata.name.clone(),
        ..ObjectReference::default()
    };
    let message = format!(
        "{caller} had another key made that seals secrets: number {}",
        step.key
    );
    let mut operations = EventLog::new(&snapshot.events, now).record(
        EventKind::Normal,
        EventReason::SealingKeyRotated,
        object,
        message,
    );
    operations.extend(step.operations);
    Ok(WriteDecision::Write {
        conditions: step.conditions,
        operations,
        outcome: (),
    })
}

/// Seals one batch again; when nothing is left, deletes earlier keys.
fn go_on_with_rotation(snapshot: &Snapshot) -> Result<WriteDecision<SealingRotation>, ApiError> {
    let step = reseal_batch(snapshot).map_err(not_resealed)?;
    let outcome = SealingRotation {
        key: step.key,
        left: step.left as u64,
    };
    match (step.operations.is_empty(), step.failed) {
        (true, Some(error)) => Err(sealing(error)),
        (true, None) => Ok(WriteDecision::Done(outcome)),
        (false, _) => Ok(WriteDecision::Write {
            conditions: step.conditions,
            operations: step.operations,
            outcome,
        }),
    }
}

fn not_resealed(error: ResealingError) -> ApiError {
    match error {
        ResealingError::Sealing(error) => sealing(error),
        ResealingError::NotEncoded(error) => ApiError::Internal(error.to_string()),
    }
}

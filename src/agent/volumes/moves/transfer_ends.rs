//! The two ends of a copy between machines: requesting a volume, and sending one.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::{mpsc, watch};

use super::{BUFFER, CopySource, IncomingPieces, owners_of};
use crate::{
    cluster::peer_agents::{PeerAgents, away},
    service::supervisor::DesiredList,
    volumes::Volumes,
};
use kat_api::{ApiError, CopyStream, VolumeCopies};
use kat_client::{ClientError, CopyPieces};
use kat_host::copy;
use kat_types::{
    assignment::is_assigned,
    volumes::{MoveRecord, VolumeKey},
};

/// Requests of a copy before a refusal counts as a failure, and the pause between them.
const REQUESTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// Requests volumes from other machines' agents, over the overlay.
pub(crate) struct OtherMachines(pub PeerAgents);

#[async_trait]
impl CopySource for OtherMachines {
    async fn open(
        &self,
        volume: &str,
        desired: &MoveRecord,
    ) -> Result<Box<dyn IncomingPieces>, String> {
        let client = self.0.client_of_a_machine(&desired.from).await?;
        let key = VolumeKey::parse(volume).ok_or_else(|| format!("`{volume}` is no volume"))?;
        let workload = &key.workload;
        let request = || {
            client.copy_of_volume(
                &workload.namespace,
                &workload.name,
                &key.volume,
                &desired.id,
            )
        };
        let pieces = repeat_while_refused(request).await;
        let pieces = pieces.map_err(|error| copy_error(&desired.from, &error))?;
        Ok(Box::new(RemotePieces {
            from: desired.from.clone(),
            pieces,
        }))
    }
}

/// The list of the other machine may be older than this machine's for a moment: it then refuses a move that
/// it does not know yet.
async fn repeat_while_refused<T, F>(request: impl Fn() -> F) -> Result<T, ClientError>
where
    F: Future<Output = Result<T, ClientError>>,
{
    let mut further = 1..REQUESTS;
    loop {
        match request().await {
            Err(error) if error.status().is_some() && further.next().is_some() => {
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}

struct RemotePieces {
    from: String,
    pieces: CopyPieces,
}

#[async_trait]
impl IncomingPieces for RemotePieces {
    async fn next(&mut self) -> Result<Option<Bytes>, String> {
        let next = self.pieces.next().await;
        next.map_err(|error| format!("{} has broken it off: {error}", self.from))
    }
}

fn copy_error(from: &str, error: &ClientError) -> String {
    match error.status() {
        Some(_) => format!("{from} does not send it: {error}"),
        None => away(from, error),
    }
}

/// Sends this machine's volumes.
pub struct OwnVolumes {
    /// Name of this machine.
    pub node: String,
    pub lists: watch::Receiver<DesiredList>,
    pub volumes: Arc<Volumes>,
}

impl VolumeCopies for OwnVolumes {
    fn open(&self, machine: &str, volume: &str, id: &str) -> Result<CopyStream, ApiError> {
        let refused = |message: String| ApiError::Forbidden {
            message,
            hint: None,
        };
        let listed = self.lists.borrow().clone();
        if !listed.confirmed || !listed.current {
            let why = "this machine does not follow its list now";
            return Err(ApiError::Unavailable(why.to_owned()));
        }
        let desired = listed.desired.moves.get(volume).filter(|desired| {
            let meant = desired.id == id && desired.to == machine && desired.from == self.node;
            meant && !desired.place
        });
        let Some(desired) = desired else {
            let why = format!("it knows of no move of volume {volume} to {machine} yet");
            return Err(refused(why));
        };
        let mut assignments = listed.desired.assignments.values();
        if let Some(user) = assignments.find(|one| is_assigned(one, volume)) {
            let why = format!("{} may still write to volume {volume}", user.instance);
            return Err(refused(why));
        }
        let (_, owners) = owners_of(desired.index).map_err(|error| refused(error.to_string()))?;
        let (volumes, volume) = (Arc::clone(&self.volumes), volume.to_owned());
        let (sender, receiver) = mpsc::channel::<Bytes>(BUFFER);
        let disks = self.volumes.disks().clone();
        let sending = disks.on_thread(move || {
            let out = |piece: Vec<u8>| sender.blocking_send(piece.into()).is_ok();
            let sent = match volumes.open_volume(&volume) {
                Ok(folder) => copy::send(&folder, &owners, out),
                Err(error) => copy::refuse(&error.to_string(), out),
            };
            match sent {
                Ok(()) => tracing::info!(volume, "a volume was sent"),
                Err(error) => tracing::warn!(volume, "a volume was not sent: {error:#}"),
            }
        });
        sending.map_err(|error| ApiError::Unavailable(error.to_string()))?;
        let pieces = stream::unfold(receiver, |mut receiver| async {
            let piece = receiver.recv().await?;
            Some((piece, receiver))
        });
        Ok(Box::pin(pieces))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use kat_client::ApiRefusal;
    use kat_types::api::ErrorBody;

    use super::*;

    /// The answer after `refusals` refusals, and the number of requests.
    async fn asked(refusals: usize) -> (Result<(), ClientError>, usize) {
        let requests = AtomicUsize::new(0);
        let answer = repeat_while_refused(|| async {
            if requests.fetch_add(1, Relaxed) >= refusals {
                return Ok(());
            }
            Err(ClientError::Refused(Box::new(ApiRefusal {
                status: 403,
                body: ErrorBody::default(),
            })))
        });
        let answer = answer.await;
        (answer, requests.load(Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_learns_of_a_move_a_moment_later_is_no_failure() {
        for refusals in [0, 1, 3] {
            let (answer, requests) = asked(refusals).await;
            assert!(answer.is_ok(), "{answer:?}");
            assert_eq!(requests, refusals + 1);
        }
        let (answer, requests) = asked(9).await;
        assert_eq!(answer.unwrap_err().status(), Some(403));
        assert_eq!(requests, 4);
    }
}

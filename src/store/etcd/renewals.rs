//! The stream on which a lease is renewed. It stays open between renewals: opening one costs etcd
//! more than all else of a renewal.

use std::{sync::Arc, time::Duration};

use etcd_client::{Client, Error as ClientError, LeaseKeepAliveStream, LeaseKeeper};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{connections::Connections, error};

/// Longest wait for an answer on a stream that was open before; then another one is opened, maybe at
/// another endpoint.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// An open stream, and its connections.
struct RenewalStream {
    lease: i64,
    connections: Arc<Connections>,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl RenewalStream {
    /// Whether the lease exists; `None` where the stream does not say it in time.
    async fn renew(&mut self) -> Option<bool> {
        let work = async {
            self.keeper.keep_alive().await?;
            self.answers.message().await
        };
        match timeout(ANSWER_LIMIT, work).await {
            Ok(Ok(Some(answer))) => Some(answer.ttl() > 0),
            Ok(Err(failure)) if error::is_lease_gone(&failure) => Some(false),
            Ok(Ok(None) | Err(_)) | Err(_) => None,
        }
    }
}

/// The stream that no renewal uses at the moment, if there is one.
#[derive(Default)]
pub(super) struct Renewals {
    idle: Mutex<Option<RenewalStream>>,
}

impl Renewals {
    /// Renews a lease on its open stream; `None` where there is none, or where it does not answer.
    ///
    /// A stream is taken out while it is used, so that the answer to a renewal that was given up never
    /// counts for a later one.
    pub(super) async fn renew(&self, lease: i64, connections: &Arc<Connections>) -> Option<bool> {
        let idle = self.idle.lock().take();
        let mut stream =
            idle.filter(|idle| idle.lease == lease && Arc::ptr_eq(&idle.connections, connections))?;
        let exists = stream.renew().await?;
        if exists {
            *self.idle.lock() = Some(stream);
        }
        Some(exists)
    }

    /// Keeps a stream for the next renewal of this lease.
    pub(super) fn keep(
        &self,
        lease: i64,
        connections: &Arc<Connections>,
        (keeper, answers): (LeaseKeeper, LeaseKeepAliveStream),
    ) {
        *self.idle.lock() = Some(RenewalStream {
            lease,
            connections: Arc::clone(connections),
            keeper,
            answers,
        });
    }

    /// Closes the stream.
    pub(super) fn close(&self) {
        self.idle.lock().take();
    }
}

/// Renews a lease on a new stream; `None` if the lease does not exist.
pub(super) async fn open(
    client: Client,
    lease: i64,
) -> Result<Option<(LeaseKeeper, LeaseKeepAliveStream)>, ClientError> {
    match client.lease_client().keep_alive(lease).await {
        Ok(stream) => Ok(Some(stream)),
        // The client's error for an answer with a time to live of 0.
        Err(ClientError::LeaseKeepAliveError(_)) => Ok(None),
        Err(failure) if error::is_lease_gone(&failure) => Ok(None),
        Err(failure) => Err(failure),
    }
}

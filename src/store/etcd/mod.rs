//! The [`StateStore`] on etcd (3.4 or newer), with TLS and authentication by the common name of
//! the client's certificate.
//!
//! Every call ends within [`EtcdOptions::call_timeout`]. A call is only retried internally if that
//! can't change its meaning: reads, refusals because users or roles were just changed ("revision of
//! auth store is old"), and calls that never reached a member that could take them. A write whose
//! outcome is unknown is reported as [`StoreError::Unavailable`].

pub mod admin;
mod connections;
mod error;
pub mod maintenance;
mod read;
mod renewals;
mod snapshot;
mod watch;

use std::{future::Future, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use etcd_client::{Client, CompareOp, DeleteOptions, Error as ClientError, PutOptions, Txn, TxnOp};
use tokio::{
    sync::watch as signal,
    time::{Instant, sleep, timeout_at},
};

use self::{connections::Connections, error::RetryVerdict, renewals::Renewals};
use super::{
    Leadership, Listing, QuorumRead, StateStore, StoreError, TransactionResult, WatchStream,
    election::{self, Lease, Leases},
    limits,
};
use kat_types::{
    backoff::Backoff,
    store::{
        keys,
        transaction::{Compare, KeyValue, WriteOperation},
    },
};

pub use self::snapshot::snapshot;

/// Longest wait of a repeatable call for one of several endpoints.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Settings of the connection to etcd.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// Client URLs, `https://address:port` (or `http://` without TLS, in tests). The first one is
    /// used until it does not answer; a quorum member names its own etcd first.
    pub endpoints: Vec<String>,
    /// Keys and certificates; `None` for connections without TLS.
    pub tls: Option<EtcdTls>,
    /// Time limit of one call, including its retries.
    pub call_timeout: Duration,
    /// The first endpoint is this machine's own: after a failure it is probed in the background, and
    /// used again when it answers.
    pub prefer_first: bool,
}

impl EtcdOptions {
    /// Settings with a time limit of 5 s for a call.
    pub fn new(endpoints: Vec<String>, tls: Option<EtcdTls>) -> Self {
        Self {
            endpoints,
            tls,
            call_timeout: Duration::from_secs(5),
            prefer_first: false,
        }
    }
}

/// Keys and certificates for etcd, as PEM.
#[derive(Clone)]
pub struct EtcdTls {
    /// The authority that signed the servers' certificates.
    pub authority: String,
    /// The client's certificate, with its chain; its common name is the etcd user.
    pub certificate: String,
    /// The certificate's key.
    pub key: String,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EtcdTls")
            .field("authority", &self.authority)
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

/// Result of [`EtcdStore::health`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdHealth {
    /// Revision of the store.
    pub revision: i64,
    /// Time until the answer.
    pub latency: Duration,
}

/// A client of etcd. Clones share the connections.
#[derive(Clone)]
pub struct EtcdStore {
    connections: Arc<ArcSwap<Connections>>,
    call_timeout: Duration,
    /// Number of requests for the progress of watches.
    progress: signal::Sender<u64>,
    /// The newest read of the present state that was answered.
    reads: signal::Sender<Option<QuorumRead>>,
    renewals: Arc<Renewals>,
}

impl EtcdStore {
    /// Prepares the connections. etcd need not answer yet; [`Self::health`] checks whether it does.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for endpoints, keys or certificates that can't be used.
    pub async fn connect(options: &EtcdOptions) -> Result<Self, StoreError> {
        let connections = Connections::open(options).await?;
        Ok(Self {
            connections: Arc::new(ArcSwap::from_pointee(connections)),
            call_timeout: options.call_timeout,
            progress: signal::channel(0).0,
            reads: signal::channel(None).0,
            renewals: Arc::default(),
        })
    }

    /// Uses new connections from now on, for this store and its clones, with other endpoints or a
    /// renewed certificate. Open calls and watches end on the old connections.
    ///
    /// # Errors
    /// As [`Self::connect`]; the old connections stay in use then.
    pub async fn reconnect(&self, options: &EtcdOptions) -> Result<(), StoreError> {
        let connections = Connections::open(options).await?;
        self.connections.store(Arc::new(connections));
        Ok(())
    }

    /// Whether a quorum answers: one linearizable read of a key that every user of KAT may read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] within the call's timeout, or [`StoreError::Denied`].
    pub async fn health(&self) -> Result<EtcdHealth, StoreError> {
        let started = Instant::now();
        let (_, revision) = self.read_one(keys::CLUSTER_UID).await?;
        Ok(EtcdHealth {
            revision,
            latency: started.elapsed(),
        })
    }

    /// Notes that a read was answered which was sent at this time.
    fn note_read(&self, sent: Instant, revision: i64) {
        self.reads.send_if_modified(|last| {
            let is_newer = last.is_none_or(|last| last.sent < sent);
            if is_newer {
                *last = Some(QuorumRead { sent, revision });
            }
            is_newer
        });
    }

    /// Makes one call within its time limit, with retries. A `repeatable` call is also retried on
    /// another endpoint, if there is one, when etcd could not serve it, or not in time.
    async fn call<T, Work>(
        &self,
        repeatable: bool,
        mut operation: impl FnMut(Client) -> Work + Send,
    ) -> Result<T, StoreError>
    where
        Work: Future<Output = Result<T, ClientError>> + Send,
    {
        let connections = self.connections.load_full();
        let deadline = Instant::now() + self.call_timeout;
        let most = 2 * connections.count();
        let mut pauses =
            Backoff::new(Duration::from_millis(20), Duration::from_millis(200)).pauses();
        let mut again = 0;
        loop {
            let (client, attempt) = connections
                .attempt()
                .ok_or_else(|| StoreError::Invalid("no etcd endpoint is named".into()))?;
            let until = if repeatable && connections.count() > 1 {
                deadline.min(Instant::now() + ATTEMPT_TIMEOUT)
            } else {
                deadline
            };
            let Ok(answer) = timeout_at(until, operation(client)).await else {
                attempt.failed();
                if until < deadline {
                    continue;
                }
                return Err(StoreError::Unavailable(format!(
                    "no answer within {:?}",
                    self.call_timeout
                )));
            };
            let failure = match answer {
                Ok(answer) => {
                    attempt.answered();
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            let verdict = error::verdict(&failure);
            let retry = match verdict {
                RetryVerdict::AuthChanged => again < 20,
                RetryVerdict::NeverSent => again < most,
                RetryVerdict::Unavailable => repeatable && again < most,
                RetryVerdict::Final => false,
            };
            match verdict {
                RetryVerdict::NeverSent | RetryVerdict::Unavailable => attempt.failed(),
                RetryVerdict::AuthChanged | RetryVerdict::Final => attempt.answered(),
            }
            let pause = pauses.next_pause();
            if !retry || Instant::now() + pause >= deadline {
                return Err(error::store_error(&failure, 0));
            }
            again += 1;
            sleep(pause).await;
        }
    }
}

impl std::fmt::Debug for EtcdStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EtcdStore")
            .field("call_timeout", &self.call_timeout)
            .finish_non_exhaustive()
    }
}

fn etcd_condition(condition: &Compare) -> etcd_client::Compare {
    match condition {
        Compare::ModRevision(key, revision) => {
            etcd_client::Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision)
        }
        Compare::CreateRevision(key, revision) => {
            etcd_client::Compare::create_revision(key.as_str(), CompareOp::Equal, *revision)
        }
    }
}

fn etcd_operation(operation: &WriteOperation) -> TxnOp {
    match operation {
        WriteOperation::Put(key, value) => TxnOp::put(key.as_str(), value.as_slice(), None),
        WriteOperation::Delete(key) => TxnOp::delete(key.as_str(), None),
        WriteOperation::DeletePrefix(prefix) => {
            let options = DeleteOptions::new().with_prefix();
            TxnOp::delete(prefix.as_str(), Some(options))
        }
    }
}

#[async_trait]
impl StateStore for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        if key.is_empty() {
            return Err(StoreError::Invalid("the key is empty".into()));
        }
        Ok(self.read_one(key).await?.0)
    }

    async fn list(&self, prefix: &str) -> Result<Listing, StoreError> {
        self.read_all(prefix).await
    }

    async fn watch(&self, prefix: &str, from_revision: i64) -> Result<WatchStream, StoreError> {
        watch::open(self, prefix, from_revision).await
    }

    fn request_progress(&self) {
        self.progress.send_modify(|requests| *requests += 1);
    }

    fn quorum_reads(&self) -> Option<signal::Receiver<Option<QuorumRead>>> {
        Some(self.reads.subscribe())
    }

    async fn transact(
        &self,
        conditions: &[Compare],
        operations: &[WriteOperation],
    ) -> Result<TransactionResult, StoreError> {
        limits::check(conditions, operations)?;
        let conditions: Vec<_> = conditions.iter().map(etcd_condition).collect();
        let operations: Vec<_> = operations.iter().map(etcd_operation).collect();
        let answer = self
            .call(false, |client| {
                let txn = Txn::new()
                    .when(conditions.clone())
                    .and_then(operations.clone());
                async move { client.kv_client().txn(txn).await }
            })
            .await?;
        if !answer.succeeded() {
            return Ok(TransactionResult::No);
        }
        Ok(TransactionResult::Yes(error::revision(answer.header())?))
    }

    async fn campaign(&self, candidate: &str, lease: Duration) -> Result<Leadership, StoreError> {
        election::campaign(self, candidate, lease).await
    }

    async fn resign(&self, leadership: &Leadership) -> Result<(), StoreError> {
        election::resign(self, leadership).await
    }

    async fn leader(&self) -> Result<Option<String>, StoreError> {
        election::leader(self).await
    }
}

#[async_trait]
impl Leases for EtcdStore {
    async fn grant(&self, ttl: Duration) -> Result<Lease, StoreError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        // If an answer was lost, the lease may be granted twice; the first one expires by itself.
        let answer = self
            .call(true, |client| async move {
                client.lease_client().grant(seconds, None).await
            })
            .await?;
        let granted = u64::try_from(answer.ttl())
            .ok()
            .filter(|granted| *granted > 0)
            .ok_or_else(|| StoreError::Unavailable("etcd granted a lease of no time".into()))?;
        Ok(Lease {
            id: answer.id(),
            ttl: Duration::from_secs(granted),
        })
    }

    async fn renew(&self, lease: i64) -> Result<bool, StoreError> {
        let connections = self.connections.load_full();
        if let Some(exists) = self.renewals.renew(lease, &connections).await {
            return Ok(exists);
        }
        let opened = self
            .call(true, |client| renewals::open(client, lease))
            .await?;
        let exists = opened.is_some();
        if let Some(stream) = opened {
            self.renewals.keep(lease, &connections, stream);
        }
        Ok(exists)
    }

    async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        self.renewals.close();
        self.call(true, |client| async move {
            match client.lease_client().revoke(lease).await {
                Ok(_) => Ok(()),
                Err(failure) if error::is_lease_gone(&failure) => Ok(()),
                Err(failure) => Err(failure),
            }
        })
        .await
    }

    async fn create_leased(&self, key: &str, value: &str, lease: i64) -> Result<i64, StoreError> {
        // Repeatable: with this condition the second attempt finds the key that the first one
        // wrote.
        let absent = etcd_client::Compare::create_revision(key, CompareOp::Equal, 0);
        let put = TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)));
        let created = self
            .call(true, |client| {
                let txn = Txn::new().when([absent.clone()]).and_then([put.clone()]);
                async move {
                    match client.kv_client().txn(txn).await {
                        Ok(answer) => Ok(Some(answer)),
                        Err(failure) if error::is_lease_gone(&failure) => Ok(None),
                        Err(failure) => Err(failure),
                    }
                }
            })
            .await?
            .ok_or_else(|| StoreError::Unavailable(format!("lease {lease:x} is gone")))?;
        if created.succeeded() {
            return error::revision(created.header());
        }
        let found = self.read_one(key).await?.0;
        found
            .map(|item| item.create_revision)
            .ok_or_else(|| StoreError::Unavailable(format!("the election key {key} is gone")))
    }
}

//! Clients of etcd's members, one for each member's URL.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::{EtcdMembers, EtcdUpkeep};
use kat_store::{
    EtcdOptions, EtcdStore, StoreError,
    election::dismiss_candidates,
    etcd_admin::{self, EtcdMember, EtcdStatus},
    etcd_maintenance::{self, EtcdAlarm},
};

/// Time limit of a call to one member.
const LIMIT: Duration = Duration::from_secs(2);
/// Time limit of a member's work on its own file, which takes some seconds for each GiB.
const WORK_LIMIT: Duration = Duration::from_secs(60);

/// Connection options for the member at a URL, with the present certificate of the leader's user.
pub type MemberOptions = Arc<dyn Fn(&str) -> Result<EtcdOptions, StoreError> + Send + Sync>;

/// Connections to the members as etcd's superuser.
pub struct MemberClients {
    options: MemberOptions,
    /// A connection to any member that answers.
    any: EtcdStore,
    /// By URL; kept while the member answers.
    each: Mutex<BTreeMap<String, EtcdStore>>,
}

impl MemberClients {
    /// Creates the clients without connecting.
    pub fn new(any: &EtcdStore, options: MemberOptions) -> Self {
        Self {
            options,
            any: any.clone(),
            each: Mutex::default(),
        }
    }

    async fn member(&self, url: &str) -> Result<EtcdStore, StoreError> {
        let mut each = self.each.lock().await;
        if let Some(store) = each.get(url) {
            return Ok(store.clone());
        }
        let options = EtcdOptions {
            call_timeout: LIMIT,
            ..(self.options)(url)?
        };
        let store = EtcdStore::connect(&options).await?;
        each.insert(url.to_owned(), store.clone());
        Ok(store)
    }

    /// A new connection for calls that take longer than [`LIMIT`].
    async fn patiently(&self, url: &str) -> Result<EtcdStore, StoreError> {
        let options = EtcdOptions {
            call_timeout: WORK_LIMIT,
            ..(self.options)(url)?
        };
        EtcdStore::connect(&options).await
    }

    /// Drops the connection if the call failed: the next one reads a renewed certificate.
    async fn forget_if_failed<T>(
        &self,
        url: &str,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if answer.is_err() {
            self.each.lock().await.remove(url);
        }
        answer
    }
}

#[async_trait]
impl EtcdMembers for MemberClients {
    async fn list(&self) -> Result<Vec<EtcdMember>, StoreError> {
        etcd_admin::member_list(&self.any).await
    }

    async fn status(&self, url: &str) -> Result<EtcdStatus, StoreError> {
        let member = self.member(url).await?;
        let status = etcd_admin::status(&member).await;
        self.forget_if_failed(url, status).await
    }

    async fn add_user(&self, node: &str) -> Result<(), StoreError> {
        etcd_admin::add_leader_user(&self.any, node).await
    }

    async fn add_voting(&self, peer_url: &str) -> Result<(), StoreError> {
        etcd_admin::add_voting_member(&self.any, peer_url).await
    }

    async fn add(&self, node: &str, peer_url: &str) -> Result<(), StoreError> {
        etcd_admin::add_leader_user(&self.any, node).await?;
        etcd_admin::add_learner(&self.any, peer_url).await
    }

    async fn promote(&self, url: &str, id: u64) -> Result<(), StoreError> {
        etcd_admin::promote_member(&self.member(url).await?, id).await
    }

    async fn remove(&self, id: u64, node: Option<&str>) -> Result<(), StoreError> {
        // The user is removed first, since it has every right. A member without its user is only
        // one step away from being removed, or gets the user back ([`Self::set_users`]).
        if let Some(node) = node {
            etcd_admin::remove_leader_user(&self.any, node).await?;
            dismiss_candidates(&self.any).await?;
        }
        etcd_admin::remove_member(&self.any, id).await
    }

    async fn set_users(&self, nodes: &BTreeSet<String>) -> Result<(), StoreError> {
        etcd_admin::set_leader_users(&self.any, nodes).await
    }

    async fn remove_readers(&self) -> Result<(), StoreError> {
        etcd_admin::remove_node_readers(&self.any).await
    }

    async fn move_raft(&self, url: &str, to: u64) -> Result<(), StoreError> {
        etcd_admin::move_raft_leader(&self.member(url).await?, to).await
    }
}

#[async_trait]
impl EtcdUpkeep for MemberClients {
    async fn alarms(&self) -> Result<Vec<EtcdAlarm>, StoreError> {
        etcd_maintenance::alarms(&self.any).await
    }

    async fn disarm(&self, member: u64) -> Result<(), StoreError> {
        etcd_maintenance::disarm(&self.any, member).await
    }

    async fn compact(&self, url: &str, revision: i64) -> Result<(), StoreError> {
        etcd_maintenance::compact(&self.patiently(url).await?, revision).await
    }

    async fn defragment(&self, url: &str) -> Result<(), StoreError> {
        etcd_maintenance::defragment(&self.patiently(url).await?).await
    }
}

//! One suite for every [`kat_store::StateStore`]: the store in memory and a real etcd.
//!
//! The tests need an etcd (see `support/etcd.rs`) and no privileges.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests fail by panicking, and say which etcd they used"
)]

mod credentials;
mod endpoints;
#[path = "../support/etcd.rs"]
mod etcd;
mod etcd_only;
mod suite;

use std::sync::Arc;

use async_trait::async_trait;

use self::{etcd::EtcdServer, suite::Backend};
use kat_store::StateStore;
use kat_testing::MemoryStore;

struct Memory(MemoryStore);

#[async_trait]
impl Backend for Memory {
    async fn client(&self) -> Arc<dyn StateStore> {
        Arc::new(self.0.client())
    }

    async fn compact(&self, revision: i64) {
        self.0.compact(revision).expect("compacted");
    }
}

struct Etcd(EtcdServer);

#[async_trait]
impl Backend for Etcd {
    async fn client(&self) -> Arc<dyn StateStore> {
        Arc::new(self.0.leader("alpha").await)
    }

    async fn compact(&self, revision: i64) {
        etcd_only::compact(&self.0, revision).await;
    }
}

macro_rules! conformance {
    ($($case:ident),* $(,)?) => {
        mod memory {
            use super::*;
            $(
                #[tokio::test]
                async fn $case() {
                    suite::$case(&Memory(MemoryStore::new())).await;
                }
            )*
        }

        mod real_etcd {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    suite::$case(&Etcd(EtcdServer::start().await)).await;
                }
            )*
        }
    };
}

conformance!(
    gets_what_was_put,
    transacts_under_conditions,
    refuses_what_is_beyond_the_limits,
    lists_in_order_at_one_revision,
    lists_more_than_one_message_holds,
    deletes_prefixes,
    watches_history_and_changes,
    a_watch_says_on_request_how_far_it_is,
    compaction_ends_old_watches,
    elects_one_leader,
    dismissed_candidates_stand_again_and_the_leader_stays,
    a_dropped_candidate_withdraws,
    a_deleted_election_key_ends_leadership,
    fenced_commits,
    mirrors,
);

//! Changes of etcd's members and of the leader, with real etcds. Each etcd has its own loopback
//! address in place of the machine's overlay address.
//!
//! The tests need an etcd (see `support/etcd.rs`) and no privileges.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests fail by panicking, and say how long things took"
)]

mod cluster;
#[path = "../support/etcd.rs"]
mod etcd;
mod pairs;
mod replacement;
mod upkeep;

use std::time::{Duration, Instant};

use cluster::{Cluster, Machine, members, name, number, until};
use kat_store::{StateStore, TransactionResult, etcd_admin};
use kat_types::store::{keys, records::NodeRegistration, transaction::WriteOperation};

/// Cuts the power of the first machine and returns the time until another leader wrote.
async fn take_over(machines: &mut [Machine]) -> Duration {
    assert!(machines[0].leads());
    let old = machines[0].handle().leadership.borrow().clone().unwrap();
    let pulled = Instant::now();
    machines[0].kill();
    let (index, took) = until("another leads and writes", async || {
        let index = (1..3).find(|index| machines[*index].leads())?;
        let leadership = machines[index].handle().leadership.borrow().clone()?;
        let write = [WriteOperation::Put("/kat/test".to_owned(), b"1".to_vec())];
        let store = &machines[index].store;
        match store.transact(&[leadership.fence()], &write).await {
            Ok(TransactionResult::Yes(_)) => Some((index, pulled.elapsed())),
            _ => None,
        }
    })
    .await;
    println!("n{} wrote {took:?} after the plug was pulled", index + 1);
    // A late write of the old leader has no effect.
    let write = [WriteOperation::Put("/kat/test".to_owned(), b"2".to_vec())];
    let late = machines[index].store.transact(&[old.fence()], &write).await;
    assert!(matches!(late, Ok(TransactionResult::No)), "{late:?}");
    until("the old leader knows", async || {
        old.lost.is_cancelled().then_some(())
    })
    .await;
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_come_by_themselves_and_another_leads_when_the_leader_is_gone() {
    let cluster = Cluster::new();
    let mut machines = cluster.three().await;
    let store = machines[0].store.clone();
    let raft = until("raft is led elsewhere than KAT", async || {
        let status = etcd_admin::status(&store).await.ok()?;
        let listed = etcd_admin::member_list(&store).await.ok()?;
        let leads = listed.into_iter().find(|one| one.id == status.leader)?;
        (leads.name != "n1").then_some(leads.name)
    })
    .await;
    println!("{raft} leads raft, n1 leads KAT");
    for number in 1..=3 {
        let key = keys::registration(&name(number));
        let entry = store.get(&key).await.expect("read").expect("there");
        let registration: NodeRegistration = serde_json::from_slice(&entry.value).expect("read");
        assert!(registration.etcd, "{registration:?}");
    }
    let took = take_over(&mut machines).await;
    // The takeover does not wait for the lease of 5 s.
    assert!(took < Duration::from_millis(3500), "{took:?}");
    // The next leader notices that a member does not answer.
    let store = machines[1].store.clone();
    until("the member that is gone is seen", async || {
        let members = members(&store).await?;
        (!members.members.get("n1")?.healthy).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_leads_when_the_machine_is_gone_that_led_raft_too() {
    let cluster = Cluster::new();
    let mut machines = cluster.three().await;
    let store = machines[0].store.clone();
    let own = until("n1 leads raft", async || {
        let listed = etcd_admin::member_list(&store).await.ok()?;
        let own = listed.iter().find(|one| one.name == "n1")?.id;
        let status = etcd_admin::status(&store).await.ok()?;
        if status.leader != own {
            let leads = listed.iter().find(|one| one.id == status.leader)?;
            let at = cluster.at(number(&leads.name)).await;
            etcd_admin::move_raft_leader(&at, own).await.ok()?;
        }
        (etcd_admin::status(&store).await.ok()?.leader == own).then_some(own)
    })
    .await;
    println!("{own:x} leads raft and KAT");
    let took = take_over(&mut machines).await;
    assert!(took < Duration::from_millis(4500), "{took:?}");
}

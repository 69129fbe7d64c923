//! Lost members are replaced, by another machine or by new data on the same one.

use std::time::{Duration, Instant};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::cluster::{Cluster, Machine, members, name, reports, until, well};
use kat_store::{EtcdStore, StateStore, TransactionResult, etcd_admin};
use kat_types::{
    api::{Condition, DATA_LOST_CONDITION, Event, data_lost_reason},
    store::{keys, transaction::WriteOperation},
};

/// The second of three machines has lost its data. Its new member starts and gets a vote.
async fn is_made_anew(cluster: &Cluster, mut machines: Vec<Machine>, old: &str) {
    let store = machines[0].store.clone();
    let begun = Instant::now();
    until(
        "the member without data is taken out, and there is a new one",
        async || {
            let members = members(&store).await?;
            let member = members.members.get("n2")?;
            (member.id != old && !member.voting).then_some(())
        },
    )
    .await;
    println!("a new member is there after {:?}", begun.elapsed());
    let machine = &mut machines[1];
    machine.etcd = cluster.etcd(2, &[1, 2, 3], "existing");
    until("all three vote and are well", async || {
        (well(&store).await? == 3).then_some(())
    })
    .await;
    let events = store.list(keys::EVENTS).await.expect("events").items;
    let told = events.iter().any(|item| {
        let event: Event = serde_json::from_slice(&item.value).expect("an event");
        event.reason == "MemberRemoved" && event.involved_object.name == "n2"
    });
    assert!(told, "{events:?}");
}

async fn id_of(store: &EtcdStore, node: &str) -> String {
    let members = members(store).await.expect("the members");
    members.members.get(node).expect("a member").id.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_silent_on_a_machine_that_is_there_is_made_anew() {
    // A member counts as silent for long after five times this timeout.
    let cluster = Cluster {
        loss_timeout: 2,
        ..Cluster::new()
    };
    let mut machines = vec![cluster.first().await];
    let agents = reports(machines[0].handle(), 3, None);
    cluster.join(&mut machines, 3).await;
    let old = id_of(&machines[0].store, "n2").await;
    machines[1].lose_data(&cluster);
    is_made_anew(&cluster, machines, &old).await;
    agents.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_machine_says_that_its_data_is_gone_is_made_anew_at_once() {
    let cluster = Cluster::new();
    let mut machines = cluster.three().await;
    let old = id_of(&machines[0].store, "n2").await;
    machines[1].lose_data(&cluster);
    let condition = Condition {
        kind: DATA_LOST_CONDITION.to_owned(),
        status: true,
        reason: data_lost_reason(&old),
        ..Condition::default()
    };
    let agents = reports(machines[0].handle(), 3, Some((2, condition)));
    is_made_anew(&cluster, machines, &old).await;
    agents.abort();
}

/// An interrupted step leaves a user without a member, which could do everything, or a member
/// without a user, which could not lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_users_that_may_lead_are_those_of_the_members() {
    let cluster = Cluster {
        machines: 1,
        ..Cluster::new()
    };
    let mut machine = cluster.seeded().await;
    let store = machine.store.clone();
    etcd_admin::add_leader_user(&store, "n9")
        .await
        .expect("made");
    cluster.campaign(&mut machine);
    let users = || async {
        let users = etcd_admin::leader_users(&store).await.ok()?;
        Some(users.into_iter().collect::<Vec<_>>())
    };
    until("only n1's is left", async || {
        (users().await? == ["n1"]).then_some(())
    })
    .await;
}

/// Two machines keep one member, so a second one is removed as well. A machine that leaves may stop as soon as it is told; had
/// the other one been removed before it, the last member would wait for its vote for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_members_the_one_that_leaves_is_removed_first_and_may_stop_at_once() {
    let cluster = Cluster::new();
    let machines = cluster.three().await;
    let store = machines[0].store.clone();
    assert!(machines[0].leads());
    let listed = etcd_admin::member_list(&store).await.expect("the members");
    // Of the two others, the one with the larger id: without a reason the smaller one goes first.
    let others = listed.iter().filter(|one| one.name != "n1");
    let leaves = others.max_by_key(|one| one.id).expect("two others").clone();
    let pid = machines
        .iter()
        .find(|one| name(one.number) == leaves.name)
        .map(|one| Pid::from_raw(one.etcd.id().cast_signed()))
        .expect("its machine");
    let (watched, before) = (store.clone(), leaves.id);
    let stop = tokio::spawn(async move {
        loop {
            if let Ok(listed) = etcd_admin::member_list(&watched).await
                && listed.len() < 3
            {
                let _ = kill(pid, Signal::SIGKILL);
                let still_listed = listed.iter().any(|one| one.id == before);
                return (listed.len(), still_listed);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let key = keys::registration(&leaves.name);
    let entry = store.get(&key).await.expect("read").expect("there");
    let mut registration: serde_json::Value =
        serde_json::from_slice(&entry.value).expect("an object");
    registration["deleting"] = true.into();
    let value = serde_json::to_vec(&registration).expect("plain data");
    let leadership = machines[0].handle().leadership.borrow().clone();
    let fence = leadership.expect("n1 leads").fence();
    let written = store
        .transact(&[fence], &[WriteOperation::Put(key, value)])
        .await;
    assert!(
        matches!(written, Ok(TransactionResult::Yes(_))),
        "{written:?}"
    );
    until("one member is left, and writes", async || {
        let listed = etcd_admin::member_list(&store).await.ok()?;
        let write = [WriteOperation::Put("/kat/test".to_owned(), b"1".to_vec())];
        let leadership = machines[0].handle().leadership.borrow().clone()?;
        match store.transact(&[leadership.fence()], &write).await {
            Ok(TransactionResult::Yes(_)) => (listed.len() == 1).then_some(()),
            _ => None,
        }
    })
    .await;
    let (left, still_listed) = stop.await.expect("the machine stopped");
    assert!(!still_listed, "{leaves:?} was one of {left} members");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_members_two_may_go_at_once() {
    let cluster = Cluster {
        machines: 5,
        ..Cluster::new()
    };
    let mut machines = cluster.grow(5).await;
    let store = machines[0].store.clone();
    let listed = etcd_admin::member_list(&store).await.expect("the members");
    assert_eq!(listed.len(), 5, "{listed:?}");
    assert!(listed.iter().all(|member| !member.is_learner), "{listed:?}");
    // The test kills the leader of KAT and the leader of raft, or n2 if they are the same.
    let status = etcd_admin::status(&store).await.expect("a status");
    let raft = listed.iter().find(|one| one.id == status.leader);
    let raft = raft.map_or("n2", |one| one.name.as_str()).to_owned();
    let other = if raft == "n1" { "n2".to_owned() } else { raft };
    let pulled = Instant::now();
    for machine in &mut machines {
        if machine.number == 1 || name(machine.number) == other {
            machine.kill();
        }
    }
    let took = until("another leads and writes", async || {
        let leads = |machine: &&Machine| machine.number != 1 && name(machine.number) != other;
        let machine = machines.iter().filter(leads).find(|one| one.leads())?;
        let leadership = machine.handle().leadership.borrow().clone()?;
        let write = [WriteOperation::Put("/kat/test".to_owned(), b"1".to_vec())];
        match machine.store.transact(&[leadership.fence()], &write).await {
            Ok(TransactionResult::Yes(_)) => Some(pulled.elapsed()),
            _ => None,
        }
    })
    .await;
    println!("written {took:?} after n1 and {other} were gone");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

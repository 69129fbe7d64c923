//! Scenes of certificates by ACME whose hosts are proved by DNS: records are put late, are not seen, or stay,
//! hooks fail and hang, and leaders are lost in between. Two of the hosts, a domain and its wildcard, have
//! their records at one name.
//!
//! As with [`crate::acme_scenes`], random seeds have none of it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    acme_scenes::{FINE, SEEDS, SLICE, backdated, is_found, whatever_fails},
    faults::disabled_safeguards::Without,
    load::orders::{DOMAIN, OrderLoad, Proofs},
    machine_scenes::holds,
    machines::{acme_servers::record_name, dns_zones::ZoneFault},
    run::{Outcome, Repair, SECOND, Scenario, play},
};

/// Until something that a scene waits for is there.
const AWAITED: Duration = Duration::from_secs(300);
/// How long name servers take for a record that is late.
const LATE: Duration = Duration::from_secs(60);

impl Scenario {
    /// Passes time until `is_so`, with a look each [`FINE`].
    async fn await_zones(&mut self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + AWAITED;
        while !is_so() && !self.is_over() {
            assert!(Instant::now() < end, "{what}");
            self.pass_in(FINE, FINE).await;
        }
    }

    /// The process that leads is lost for a minute, and another one leads.
    async fn lose_leader(&mut self) {
        let leader = self.world.leader().unwrap();
        self.world.monitor.note("the leader is lost");
        self.world.kill(leader);
        self.repair_after(60 * SECOND, Repair::Start(leader));
        let end = Instant::now() + 60 * SECOND;
        while self.world.leader().is_none_or(|now| now == leader) && !self.is_over() {
            assert!(Instant::now() < end, "nobody else leads");
            self.pass_in(SLICE, SECOND).await;
        }
    }

    /// All certificates are there and no record is left, then nothing of the workloads.
    async fn end_orders(&mut self, load: &mut OrderLoad) {
        load.set_zone_fault(ZoneFault::Nothing);
        self.orders_come_to_rest(load).await;
        self.ordered_routes_leave(load).await;
    }

    /// The scene has shown nothing, unless this is so.
    fn has_shown(&self, what: &str, is_so: bool) {
        if !is_so && !self.is_over() {
            let text = format!("{what}: the scene shows nothing");
            self.world.monitor.violated(text);
        }
    }

    /// Name servers have records a minute after they are added, and then not at all, while the leader is lost
    /// and a user has the orders begin anew.
    async fn records_are_not_seen(&mut self, seed: u64) {
        let mut load = self.begin_orders(seed, Proofs::Dns).await;
        load.set_zone_fault(ZoneFault::Late(LATE));
        load.agree(&self.world.store, true);
        self.orders_come_to_rest(&mut load).await;
        load.agree(&self.world.store, false);
        load.set_zone_fault(ZoneFault::Unseen);
        load.change_directory(&self.world.store);
        load.agree(&self.world.store, true);
        let servers = Arc::clone(&load.servers);
        let is_added = || servers.with_zones(|zones| zones.left().is_some());
        self.await_zones("no record is added", is_added).await;
        let before = load.servers.with_zones(|zones| zones.any_text());
        self.lose_leader().await;
        self.pass_in(SLICE, 120 * SECOND).await;
        if before.is_some_and(|text| load.servers.has_issued(&text)) {
            let text = "a record that is not seen has proved a host".to_owned();
            self.world.monitor.violated(text);
        }
        load.agree(&self.world.store, false);
        self.pass_in(SLICE, 20 * SECOND).await;
        if let Some(left) = load.servers.with_zones(|zones| zones.left()) {
            self.world
                .monitor
                .violated(format!("{left}, without any order"));
        }
        load.agree(&self.world.store, true);
        self.pass_in(SLICE, 20 * SECOND).await;
        self.end_orders(&mut load).await;
    }

    /// The hook fails or hangs once it has added a record.
    async fn the_hook_is_broken(&mut self, seed: u64, fault: ZoneFault) {
        let mut load = self.begin_orders(seed, Proofs::Dns).await;
        load.set_zone_fault(ZoneFault::Late(LATE));
        load.agree(&self.world.store, true);
        let servers = Arc::clone(&load.servers);
        let is_added = || servers.with_zones(|zones| zones.left().is_some());
        self.await_zones("no record is added", is_added).await;
        load.set_zone_fault(fault);
        self.pass_in(SLICE, 150 * SECOND).await;
        let hosts = load.proofs.hosts();
        let missing = self.world.orders_missing(&hosts, &load.settings);
        self.has_shown("a broken hook has proved all hosts", missing.is_some());
        self.end_orders(&mut load).await;
    }

    /// The leader is lost right after the first record was added, and the next one ends its order.
    async fn a_leader_is_lost_after_it_added_a_record(&mut self, seed: u64) {
        let mut load = self.begin_orders(seed, Proofs::Dns).await;
        // The record outlasts the time without a leader.
        load.set_zone_fault(ZoneFault::Late(LATE));
        load.agree(&self.world.store, true);
        let servers = Arc::clone(&load.servers);
        let is_added = || servers.with_zones(|zones| zones.left().is_some());
        self.await_zones("no record is added", is_added).await;
        let text = load.servers.with_zones(|zones| zones.any_text());
        self.lose_leader().await;
        self.first_certificates(&load).await;
        let issued = text.is_some_and(|text| load.servers.has_issued(&text));
        self.has_shown("the order of the lost leader was not continued", issued);
        self.end_orders(&mut load).await;
    }

    /// A domain and its wildcard have their records at one name. One order ends, and its record is removed,
    /// while name servers do not have the other record yet.
    async fn two_records_have_one_name(&mut self, seed: u64) {
        let mut load = self.begin_orders(seed, Proofs::Dns).await;
        if self.world.without == Without::OwnRecord {
            load.servers.with_zones(|zones| zones.remove_all());
        }
        load.agree(&self.world.store, true);
        let (servers, name) = (Arc::clone(&load.servers), record_name(DOMAIN));
        let is_added = || servers.with_zones(|zones| zones.count(&name) > 0);
        self.await_zones("no record is added", is_added).await;
        load.set_zone_fault(ZoneFault::Late(LATE));
        let are_two = || servers.with_zones(|zones| zones.count(&name) == 2);
        self.await_zones("no other record is added", are_two).await;
        let is_removed = || servers.with_zones(|zones| zones.count(&name) < 2);
        self.await_zones("no record is removed", is_removed).await;
        self.first_certificates(&load).await;
        self.end_orders(&mut load).await;
    }

    /// The hook removes no record, so that records of orders that have ended stay; then the leader is lost, and
    /// the next one removes them.
    async fn records_stay_behind(&mut self, seed: u64) {
        let mut load = self.begin_orders(seed, Proofs::Dns).await;
        load.set_zone_fault(ZoneFault::Keeps);
        load.agree(&self.world.store, true);
        self.first_certificates(&load).await;
        let left = load.servers.with_zones(|zones| zones.left());
        self.has_shown("no record has stayed", left.is_some());
        self.lose_leader().await;
        self.end_orders(&mut load).await;
    }
}

fn one_name(without: Without) -> Outcome {
    let seed = SEEDS[0];
    play(seed, without, async |scenario| {
        scenario.two_records_have_one_name(seed).await
    })
}

fn stay_behind(without: Without) -> Outcome {
    let seed = SEEDS[0];
    play(seed, without, async |scenario| {
        scenario.records_stay_behind(seed).await
    })
}

fn broken_hook(fault: ZoneFault) -> Outcome {
    let seed = SEEDS[0];
    play(seed, Without::Nothing, async |scenario| {
        scenario.the_hook_is_broken(seed, fault).await
    })
}

#[test]
fn orders_by_dns_lose_no_account_no_certificate_and_no_record_whatever_fails() {
    for seed in [SEEDS[0], SEEDS[2]] {
        holds(whatever_fails(seed, Proofs::Dns));
    }
}

#[test]
fn a_certificate_by_dns_that_is_older_than_the_one_before_is_refused() {
    holds(backdated(Without::Nothing, Proofs::Dns));
}

#[test]
fn no_server_is_told_to_look_for_a_record_that_name_servers_do_not_have() {
    let seed = SEEDS[1];
    holds(play(seed, Without::Nothing, async |scenario| {
        scenario.records_are_not_seen(seed).await
    }));
}

#[test]
fn orders_by_dns_end_after_their_hook_has_failed() {
    holds(broken_hook(ZoneFault::Fails));
}

#[test]
fn orders_by_dns_end_after_their_hook_has_hung() {
    holds(broken_hook(ZoneFault::Hangs));
}

#[test]
fn a_new_leader_continues_the_order_whose_record_the_last_one_added() {
    let seed = SEEDS[0];
    holds(play(seed, Without::Nothing, async |scenario| {
        scenario
            .a_leader_is_lost_after_it_added_a_record(seed)
            .await
    }));
}

#[test]
fn a_domain_and_its_wildcard_keep_their_records_at_one_name() {
    holds(one_name(Without::Nothing));
}

#[test]
fn it_is_found_when_a_removal_takes_the_record_of_another_order() {
    is_found(one_name(Without::OwnRecord), "which its order needs");
}

#[test]
fn a_new_leader_removes_records_that_stayed_behind() {
    holds(stay_behind(Without::Nothing));
}

#[test]
fn it_is_found_when_records_of_no_order_stay() {
    is_found(stay_behind(Without::RecordRemoval), "is left");
}

//! Scenes of certificates by ACME: the loop that orders them runs beside the real leaders, with servers in
//! memory, while leaders are lost, machines are cut off and answers get lost.
//!
//! Random seeds have none of it: keys are made on threads whose time no seed decides, and their bytes are
//! random, so that a second run of a seed need not be the same to the millisecond.
//!
//! [`crate::acme_dns_scenes`] has what is about proofs by DNS alone.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use tokio::time::Instant;

use crate::{
    faults::disabled_safeguards::Without,
    load::orders::{OrderLoad, Proofs},
    machine_scenes::holds,
    machines::{
        acme_servers::{AcmeServers, ServerBehaviour},
        dns_zones::ZoneFault,
    },
    run::{HEALED_WITHIN, Outcome, Repair, SECOND, Scenario, play},
    world::MEMBERS,
};
use kat_types::store::{
    acme::{AcmeOrderRecord, AcmeOrderState},
    ingress::IngressCertificateRecord,
    keys,
};

/// Seeds without forged reports, reports that arrive twice, and small disks.
pub(crate) const SEEDS: [u64; 4] = [1, 5, 6, 11];
/// Time between two checks of a scene.
pub(crate) const SLICE: Duration = Duration::from_millis(500);
/// Time between two checks where a moment counts.
pub(crate) const FINE: Duration = Duration::from_millis(10);
/// Faults of a scene.
const FAULTS: usize = 12;
/// What an order waits for at most before the user agrees to the terms anew, which begins it again.
const PATIENCE: SignedDuration = SignedDuration::from_secs(120);

/// Servers without faults, whose certificates are renewed each minute or two.
const RENEWING: ServerBehaviour = ServerBehaviour {
    faulty: false,
    backdates: false,
    renews: true,
};

impl Scenario {
    /// Every candidate orders certificates, and the workloads are applied. Nobody has agreed to the terms.
    pub(crate) async fn begin_orders(&mut self, seed: u64, proofs: Proofs) -> OrderLoad {
        assert!(self.world.forger.is_none());
        let world = &mut self.world;
        let now = world.true_time();
        let servers = Arc::new(AcmeServers::new(seed, &world.monitor, now));
        world.acme = Some(Arc::clone(&servers));
        for number in 0..MEMBERS {
            world.kill(number);
            world.start(number);
        }
        world.net.heal_streams();
        let load = OrderLoad::new(seed, proofs, servers, &world.net, &world.monitor);
        if proofs == Proofs::Dns {
            load.write_settings(&world.store);
        }
        self.pass_in(SLICE, 8 * SECOND).await;
        let end = Instant::now() + 60 * SECOND;
        while !self.apply_ordered(&load) && !self.is_over() {
            assert!(Instant::now() < end, "nobody takes the workloads");
            self.pass_in(SLICE, 2 * SECOND).await;
        }
        self.pass_in(SLICE, 20 * SECOND).await;
        load
    }

    /// Applies the workloads that are not there; returns whether all are.
    fn apply_ordered(&mut self, load: &OrderLoad) -> bool {
        let to = self.asked();
        let mut are_there = true;
        for (workload, _) in load.proofs.workloads() {
            if !self.world.has_workload(workload) {
                load.apply(&to, workload);
                are_there = false;
            }
        }
        are_there
    }

    /// Every host has its certificate on every machine, and no order is left.
    pub(crate) async fn orders_come_to_rest(&mut self, load: &mut OrderLoad) {
        let (end, hosts) = (Instant::now() + HEALED_WITHIN, load.proofs.hosts());
        while !self.is_over() {
            self.apply_ordered(load);
            self.pass_in(SLICE, SECOND).await;
            let Some(missing) = self.world.orders_missing(&hosts, &load.settings) else {
                return;
            };
            if self.an_order_is_put_off() {
                self.world.monitor.note("the terms are agreed to anew");
                load.agree(&self.world.store, false);
                self.pass_in(SLICE, 10 * SECOND).await;
                load.agree(&self.world.store, true);
            }
            if Instant::now() >= end {
                let text = format!("{HEALED_WITHIN:?} after all was healed: {missing}");
                self.world.monitor.violated(text);
            }
        }
    }

    /// Whether the next attempt of a host's order is not soon.
    fn an_order_is_put_off(&self) -> bool {
        let now = self.world.true_time();
        let is_late = |order: &AcmeOrderRecord| match &order.state {
            AcmeOrderState::Failed { next } => next.duration_since(now) > PATIENCE,
            _ => false,
        };
        self.world.stored_orders().iter().any(is_late)
    }

    /// Every host has some certificate by ACME in the store.
    pub(crate) async fn first_certificates(&mut self, load: &OrderLoad) {
        let hosts = load.proofs.hosts();
        let end = Instant::now() + 300 * SECOND;
        let is_ordered = |scenario: &Self, host: &str| {
            let key = keys::ingress_certificate(host);
            let stored: Option<IngressCertificateRecord> = scenario.world.stored(&key);
            stored.is_some_and(|stored| stored.acme.is_some())
        };
        while !self.is_over() && !hosts.iter().copied().all(|host| is_ordered(self, host)) {
            assert!(Instant::now() < end, "{:?}", self.world.stored_orders());
            self.pass_in(SLICE, SECOND).await;
        }
    }

    /// One fault, and its end; or a step of a user.
    async fn fault_of_the_orders(&mut self, load: &mut OrderLoad) {
        let what = load.random.below(14);
        let lasts = load.random.milliseconds(2_000, 40_000);
        let size = i64::try_from(load.random.below(200_000)).unwrap();
        let is_back = load.random.chance(50);
        let any = load.random.index(self.world.joined().count());
        let workloads = load.proofs.workloads();
        let (workload, _) = workloads[load.random.index(workloads.len())];
        let leader = self.world.leader().unwrap_or_default();
        let to = self.asked();
        let note = format!("fault {what} for {lasts:?}, and {to} leads");
        self.world.monitor.note(&note);
        match what {
            // A leader that hangs, or has an old copy, may add a record after its removal.
            4 | 9 if load.proofs == Proofs::Dns => load.break_zones(),
            0 | 1 => {
                self.world.kill(leader);
                self.repair_after(lasts, Repair::Start(leader));
            }
            2 => self.cut_for(leader, lasts),
            3 => self.cut_for(any, lasts),
            4 => {
                // systemd's watchdog ends an agent that hangs for 30 s.
                self.world.hang(leader);
                self.repair_after(lasts.min(25 * SECOND), Repair::Wake(leader));
            }
            5 => {
                self.world.power_off(any);
                self.repair_after(lasts, Repair::PowerOn(any));
            }
            6 => {
                self.world.store.set_available(false);
                self.repair_after(lasts, Repair::Store);
            }
            7 => {
                let jump = SignedDuration::from_millis(if is_back { -size } else { size });
                self.world.set_clock(leader, jump);
                self.repair_after(lasts, Repair::Clock(leader));
            }
            8 => self.world.change_way(leader, |way| way.lost_answers += 2),
            9 => {
                let lag = 3 * SECOND;
                for number in 0..MEMBERS {
                    self.world.change_way(number, |way| way.copy_lag = lag);
                    self.repair_after(lasts, Repair::Streams(number));
                }
                self.world.kill(leader);
                self.repair_after(lasts, Repair::Start(leader));
            }
            10 => load.change_email(&self.world.store),
            11 => load.change_directory(&self.world.store),
            12 => load.servers.forget_accounts(),
            _ => load.roll_out(&to, workload),
        }
        self.pass_in(SLICE, lasts + 5 * SECOND).await;
        load.set_zone_fault(ZoneFault::Nothing);
    }

    /// The machine reaches nothing for this time.
    fn cut_for(&mut self, number: usize, lasts: Duration) {
        self.world.change_way(number, |way| {
            way.store_cut = true;
            way.machines_cut = true;
            way.opens_no_stream = true;
        });
        self.repair_after(lasts, Repair::Way(number));
        self.repair_after(lasts, Repair::Streams(number));
    }

    async fn orders_whatever_fails(&mut self, seed: u64, proofs: Proofs) {
        let mut load = self.begin_orders(seed, proofs).await;
        load.servers.behave(RENEWING);
        load.agree(&self.world.store, true);
        self.first_certificates(&load).await;
        load.servers.behave(ServerBehaviour {
            faulty: true,
            ..RENEWING
        });
        for _ in 0..FAULTS {
            self.fault_of_the_orders(&mut load).await;
            if self.is_over() {
                return;
            }
        }
        self.world.monitor.note("all is healed");
        load.servers.behave(ServerBehaviour::default());
        for number in 0..self.world.machines.len() {
            self.world.change_way(number, |way| way.lost_answers = 0);
        }
        self.orders_come_to_rest(&mut load).await;
        let orders = load.servers.orders();
        if orders < 2 * load.proofs.hosts().len() && !self.is_over() {
            let text = format!("{orders} orders were made: the scene shows nothing of renewals");
            self.world.monitor.violated(text);
        }
        self.ordered_routes_leave(&load).await;
    }

    /// The workloads are deleted, and nothing of their orders is left.
    pub(crate) async fn ordered_routes_leave(&mut self, load: &OrderLoad) {
        self.world.monitor.let_certificates_go();
        let end = Instant::now() + HEALED_WITHIN;
        while !self.is_over() {
            let live = self.world.live();
            let workloads = load.proofs.workloads().into_iter();
            let mut workloads = workloads.map(|(workload, _)| workload);
            let left = workloads.find(|workload| self.world.is_left(workload, &live));
            let left = left.map(|workload| format!("{workload} is not gone"));
            let Some(left) = left.or_else(|| self.world.orders_left()) else {
                return;
            };
            let to = self.asked();
            for (workload, _) in load.proofs.workloads() {
                if self.world.has_workload(workload) {
                    load.delete(&to, workload);
                }
            }
            if Instant::now() >= end {
                let text = format!("the workloads with orders are deleted, and {left}");
                self.world.monitor.violated(text);
            }
            self.pass_in(SLICE, SECOND).await;
        }
    }

    /// The leader is lost right after it has registered the account, and the next one does not see it for a
    /// while, as in an old copy of the store.
    async fn a_follower_has_an_old_copy(&mut self, seed: u64) {
        let mut load = self.begin_orders(seed, Proofs::Http).await;
        let leader = self.world.leader().unwrap();
        load.agree(&self.world.store, true);
        let end = Instant::now() + 60 * SECOND;
        while !self.world.has_account(load.directory()) && !self.is_over() {
            assert!(Instant::now() < end, "no account is registered");
            self.pass_in(FINE, 10 * FINE).await;
        }
        load.servers.hide_accounts(true);
        self.world.kill(leader);
        self.repair_after(60 * SECOND, Repair::Start(leader));
        let end = Instant::now() + 60 * SECOND;
        while self.world.leader().is_none_or(|now| now == leader) && !self.is_over() {
            assert!(Instant::now() < end, "nobody else leads");
            self.pass_in(SLICE, SECOND).await;
        }
        self.pass_in(SLICE, 30 * SECOND).await;
        load.servers.hide_accounts(false);
        self.orders_come_to_rest(&mut load).await;
    }

    /// A server issues certificates that are older than those before.
    async fn certificates_are_backdated(&mut self, seed: u64, proofs: Proofs) {
        let mut load = self.begin_orders(seed, proofs).await;
        load.servers.behave(RENEWING);
        load.agree(&self.world.store, true);
        self.first_certificates(&load).await;
        load.servers.behave(ServerBehaviour {
            backdates: true,
            ..RENEWING
        });
        let (end, mut refused) = (Instant::now() + 240 * SECOND, false);
        while Instant::now() < end && !self.is_over() {
            self.pass_in(SLICE, SECOND).await;
            let orders = self.world.stored_orders();
            refused |= orders
                .iter()
                .any(|order| order.message.contains("older than the present one"));
        }
        if !refused && !self.is_over() {
            let text = "no older certificate was refused: the scene shows nothing".to_owned();
            self.world.monitor.violated(text);
        }
        load.servers.behave(ServerBehaviour::default());
        self.orders_come_to_rest(&mut load).await;
    }
}

pub(crate) fn whatever_fails(seed: u64, proofs: Proofs) -> Outcome {
    play(seed, Without::Nothing, async |scenario| {
        scenario.orders_whatever_fails(seed, proofs).await
    })
}

fn old_copy(without: Without) -> Outcome {
    let seed = SEEDS[0];
    play(seed, without, async |scenario| {
        scenario.a_follower_has_an_old_copy(seed).await
    })
}

pub(crate) fn backdated(without: Without, proofs: Proofs) -> Outcome {
    let seed = SEEDS[0];
    play(seed, without, async |scenario| {
        scenario.certificates_are_backdated(seed, proofs).await
    })
}

pub(crate) fn is_found(outcome: Outcome, words: &str) {
    let violation = outcome.violation.unwrap_or_default();
    assert!(violation.contains(words), "{violation}");
}

#[test]
fn orders_lose_no_account_and_no_certificate_whatever_fails() {
    for seed in SEEDS {
        holds(whatever_fails(seed, Proofs::Http));
    }
}

#[test]
fn a_leader_with_an_old_copy_makes_no_second_account() {
    holds(old_copy(Without::Nothing));
}

#[test]
fn it_is_found_when_an_account_is_written_without_a_comparison() {
    is_found(old_copy(Without::OrderCompare), "is replaced");
}

#[test]
fn a_certificate_that_is_older_than_the_one_before_is_refused() {
    holds(backdated(Without::Nothing, Proofs::Http));
}

#[test]
fn it_is_found_when_an_older_certificate_is_stored() {
    is_found(
        backdated(Without::LaterCertificate, Proofs::Http),
        "goes back to",
    );
}

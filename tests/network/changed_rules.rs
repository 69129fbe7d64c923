//! Rules that another program removed are back without the periodic check, which is 20 s away, and
//! what callers of a service notice of it.

use std::{
    io::{self, ErrorKind},
    net::Ipv4Addr,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    connected_hosts::{Host, block_on},
    namespaced_machine::{eventually, in_new_namespace, nobody, node, run},
    silent_peers::{LONGEST, WEB, call, calls_at, instance, services},
};
use kat_daemon::watchdog::LoopPulses;
use kat_network::{
    containers::namespaces::NetworkNamespace,
    nftables::{
        firewall::Firewall,
        rule_changes::{RulesetChanges, follow_ruleset_changes},
    },
};
use kat_types::{
    machine::network::{ServiceNetwork, ServicePortBackends, Services, Transport},
    services::BackendState,
};

const TABLES: [&str; 3] = ["kat", "kat-services", "kat-host-ports"];
/// Time until the rules are back, with room for a busy machine.
const DEADLINE: Duration = Duration::from_secs(5);

/// A machine whose `kat-net` has put all rules in place, with one service.
async fn balancing_host() -> (Host, CancellationToken) {
    let host = Host::start(1);
    let port = ServicePortBackends {
        port: 80,
        protocol: Transport::Tcp,
        instances: [(host.address(10), BackendState::Serving)].into(),
    };
    let web = ServiceNetwork {
        address: [10, 91, 0, 5].into(),
        ports: vec![port],
    };
    let services = Services {
        schema: 1,
        services: [("default/web".to_owned(), web)].into(),
    };
    host.write("services.json", &services);
    let (stop, _) = host.serve();
    eventually("the rules are in place", async || {
        let complete = tables(&host);
        complete[0].contains("kat0")
            && complete[1].contains("10.90.1.10")
            && complete[2].contains("lead")
    })
    .await;
    (host, stop)
}

/// KAT's tables as `nft` lists them; empty for a missing one.
fn tables(host: &Host) -> [String; 3] {
    listed(host, "-s")
}

/// The tables with the kernel's numbers of all objects. An object that is made anew has another
/// number.
fn numbered_tables(host: &Host) -> [String; 3] {
    listed(host, "-sa")
}

fn listed(host: &Host, option: &str) -> [String; 3] {
    TABLES.map(|table| {
        let list = || {
            Command::new("nft")
                .args([option, "list", "table", "inet", table])
                .output()
                .unwrap()
        };
        let output = host.namespace.run(list).unwrap();
        String::from_utf8(output.stdout).unwrap()
    })
}

#[test]
fn rules_that_another_program_changes_are_put_back_at_once() {
    block_on(async {
        let (host, stop) = balancing_host().await;
        let before = tables(&host);
        for change in [
            "nft flush ruleset",
            "nft delete table inet kat-services",
            "nft flush chain inet kat-services balance",
            "nft flush chain inet kat egress",
            "nft flush table inet kat-host-ports",
        ] {
            // The rules may be back before they can be listed. Other numbers show that they were away.
            let numbers = numbered_tables(&host);
            host.command(change);
            let changed = Instant::now();
            while tables(&host) != before || numbered_tables(&host) == numbers {
                let waited = changed.elapsed();
                assert!(waited < DEADLINE, "{change}: not back in {waited:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        stop.cancel();
    });
}

/// How long all tries took, and their number; `None` for a connection that was made and then cut.
///
/// Without rules the kernel translates no packet of an open connection: the machine resets an answer that
/// it gets in that moment, and its caller, whose question has been acknowledged, learns of nothing.
type Answered = Option<(Duration, usize)>;

/// A new connection, tried again where it is refused, reset or unreachable.
fn call_until_answered(namespace: &NetworkNamespace, service: Ipv4Addr) -> io::Result<Answered> {
    let began = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let error = match call(namespace, service) {
            Ok(_) => return Ok(Some((began.elapsed(), tries))),
            // The limit of reading; that of connecting is another kind.
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => error,
        };
        let is_passing = matches!(
            error.kind(),
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::HostUnreachable
        );
        if !is_passing || began.elapsed() >= LONGEST {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Without rules a SYN goes into `kat0`: the userspace WireGuard drops it, and TCP sends it again
/// after 1 s; the kernel's WireGuard answers that the host is unreachable.
#[test]
fn callers_of_a_service_wait_less_than_five_seconds_while_all_rules_are_flushed() {
    block_on(async {
        let host = Host::start(1);
        host.set_instances(&[("web-aaaaa", 10)]);
        let behind = [host.address(10)];
        host.write("services.json", &services(&[("default/web", WEB, &behind)]));
        let (stop, _) = host.serve();
        let _instance = instance(&host, "web-aaaaa").await;
        eventually("the instance answers", async || {
            let namespace = host.namespace();
            let called = tokio::task::spawn_blocking(move || call(&namespace, WEB));
            called.await.unwrap().is_ok()
        })
        .await;
        // No SYN that was lost in one flush is sent again in the next.
        let pauses = [1, 2, 2];
        let flushing = async {
            for pause in pauses {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                host.command("nft flush ruleset");
            }
        };
        let interval = Duration::from_millis(20);
        let calling = calls_at(&host, WEB, 300, interval, call_until_answered);
        let (calls, ()) = tokio::join!(calling, flushing);
        let made: Vec<(Duration, usize)> = calls.iter().copied().flatten().collect();
        let cut = calls.len() - made.len();
        assert!(cut <= pauses.len(), "{cut} connections were cut");
        let longest = made.iter().map(|(took, _)| *took).max().unwrap();
        assert!(longest < LONGEST, "{longest:?}");
        let noticed = |(took, tries): &(Duration, usize)| *tries > 1 || took.as_millis() > 500;
        assert!(
            made.iter().any(noticed),
            "no caller met a time without rules"
        );
        stop.cancel();
    });
}

#[test]
fn a_program_that_flushes_in_a_loop_is_answered_at_growing_intervals() {
    block_on(async {
        let (host, stop) = balancing_host().await;
        let before = tables(&host);
        let began = Instant::now();
        let mut put_back = 0;
        // On a busy machine the first repair may come later.
        while began.elapsed() < Duration::from_millis(1500)
            || (put_back < 2 && began.elapsed() < DEADLINE)
        {
            let [_, services, _] = tables(&host);
            put_back += u32::from(!services.is_empty());
            host.command("nft flush ruleset");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // The first time is the table of before the loop.
        assert!((2..=6).contains(&put_back), "put back {put_back} times");
        eventually("the rules are back after the loop", async || {
            tables(&host) == before
        })
        .await;
        stop.cancel();
    });
}

#[test]
fn a_change_names_its_program_and_kats_own_changes_are_none() {
    in_new_namespace(|| async {
        let (sender, mut changes) = watch::channel(RulesetChanges::default());
        let cancel = CancellationToken::new();
        let pulse = LoopPulses::default().watch("changes of rules");
        let following = tokio::spawn(follow_ruleset_changes(sender, pulse, cancel.clone()));
        let limit = Duration::from_secs(10);
        let opened = changes.wait_for(|changes| changes.missed == 1);
        tokio::time::timeout(limit, opened).await.unwrap().unwrap();
        let firewall = Arc::new(Firewall::default());
        let restoring = Arc::clone(&firewall).restore_after_changes(
            changes.clone(),
            LoopPulses::default().watch("firewall"),
            cancel.clone(),
        );
        let restoring = tokio::spawn(restoring);
        assert!(firewall.ensure(&node(), &nobody()).await.unwrap());
        // A program of another name, which first changes a table of its own.
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("some-firewall");
        let nft = run("which nft");
        std::os::unix::fs::symlink(nft.trim(), &program).unwrap();
        let program = program.display();
        run(&format!("{program} add table inet theirs"));
        run(&format!("{program} flush chain inet kat egress"));
        let seen = changes.wait_for(|changes| changes.seen > 0);
        let seen = tokio::time::timeout(limit, seen).await.unwrap().unwrap();
        let by = seen.by.clone().unwrap();
        assert_eq!((seen.seen, by.name.as_str()), (1, "some-firewall"));
        assert!(by.pid > 0);
        drop(seen);
        eventually("the rules are back", async || {
            run("nft list chain inet kat egress").contains("masquerade")
        })
        .await;
        assert!(!firewall.ensure(&node(), &nobody()).await.unwrap());
        cancel.cancel();
        following.await.unwrap();
        restoring.await.unwrap();
    });
}

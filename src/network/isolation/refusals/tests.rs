use super::*;
use crate::isolation::policy::tests::{address, policy, rules};

const DB: &str = "10.90.4.10";
const SHOP: &str = "10.90.6.10";
const NOW: u64 = 1_000_000;

fn two_namespaces() -> IsolationPolicy {
    policy(&rules(&[("data", "db", DB), ("shop", "web", SHOP)]))
}

fn listed(packets: u64) -> BTreeMap<RefusedFlow, RefusedPackets> {
    let flow = RefusedFlow {
        from: address(SHOP),
        to: address(DB),
        protocol: 6,
        port: 5432,
    };
    [(flow, RefusedPackets { packets, ago: 2000 })].into()
}

#[test]
fn packets_of_an_element_are_counted_once() {
    let (policy, mut log) = (two_namespaces(), RefusalLog::default());
    assert_eq!(log.add(&listed(3), &policy, NOW).len(), 1);
    assert_eq!(log.add(&listed(3), &policy, NOW + 3), []);
    assert_eq!(log.add(&listed(5), &policy, NOW + 6), []);
    assert_eq!(log.add(&BTreeMap::new(), &policy, NOW + 60), []);
    assert_eq!(
        log.add(&listed(1), &policy, NOW + 90),
        [],
        "an element made again"
    );
    let report = log.report();
    let [one] = report.as_slice() else {
        panic!("{report:?}")
    };
    assert_eq!((one.packets, one.last, one.passed), (6, NOW + 88, false));
    assert_eq!((one.protocol, one.port), (Some(Transport::Tcp), 5432));
    assert_eq!(one.from.namespace, "shop");
    assert_eq!(one.to.workload, "db");
}

#[test]
fn refused_traffic_is_forgotten_after_an_hour() {
    let (policy, mut log) = (two_namespaces(), RefusalLog::default());
    log.add(&listed(1), &policy, NOW);
    log.tidy(NOW + REPORTED - 3);
    assert_eq!(log.report().len(), 1);
    log.tidy(NOW + REPORTED);
    assert_eq!(log.report(), []);
}

#[test]
fn a_namespace_that_tries_everything_hides_no_other() {
    let policy = two_namespaces();
    let mut log = RefusalLog::default();
    let flows = (1..2000).map(|port| {
        let flow = RefusedFlow {
            from: address(SHOP),
            to: address(DB),
            protocol: 6,
            port,
        };
        (flow, RefusedPackets { packets: 1, ago: 0 })
    });
    log.add(&flows.collect(), &policy, NOW);
    let other = RefusedFlow {
        from: address(DB),
        to: address(SHOP),
        protocol: 17,
        port: 53,
    };
    let early = RefusedPackets {
        packets: 1,
        ago: 50_000,
    };
    log.add(&[(other, early)].into(), &policy, NOW);
    log.tidy(NOW);
    let report = log.report();
    assert_eq!(report.len(), REFUSED_OF_NAMESPACE + 1);
    assert!(report.iter().any(|one| one.from.namespace == "data"));
}

#[test]
fn open_connections_are_listed_as_passing() {
    let open = super::super::enforcement::OpenConnection {
        from: address(SHOP),
        to: address(DB),
        transport: Some(Transport::Tcp),
        port: 5432,
    };
    let enforced = EnforcedIsolation {
        policy: std::sync::Arc::new(two_namespaces()),
        audited: std::sync::Arc::new([open].into()),
        ..EnforcedIsolation::default()
    };
    let mut log = RefusalLog::default();
    let new = log.add_open(&enforced, NOW);
    assert_eq!(
        sentence(&new[0]),
        "isolation would refuse a connection of shop/web (web-0) to data/db (db-0) port 5432/tcp: \
         namespace data does not allow shop"
    );
    assert!(log.report()[0].passed);
}

#[tokio::test(start_paused = true)]
async fn the_journal_has_one_line_for_two_workloads_and_few_in_a_minute() {
    let end = |workload: String| TrafficEnd {
        namespace: "shop".into(),
        instance: format!("{workload}-0"),
        workload,
    };
    let key = |from: usize, port| TrafficKey {
        from: end(format!("a{from}")),
        to: end("b".to_owned()),
        protocol: Some(Transport::Tcp),
        port,
        passed: false,
    };
    let mut lines = RefusalLines::default();
    let now = Instant::now();
    assert!(lines.take(&key(0, 1), now));
    assert!(!lines.take(&key(0, 2), now), "another port of the same two");
    let written = (1..100)
        .filter(|from| lines.take(&key(*from, 1), now))
        .count();
    assert_eq!(written, LINES - 1);
    assert_eq!(lines.held_back, 99 - written);
    assert!(lines.take(&key(99, 1), now + LINES_TIME));
    assert!(lines.take(&key(0, 1), now + SAID), "again after an hour");
}

#[tokio::test(start_paused = true)]
async fn a_problem_that_lasts_is_reported_as_one_short_line() {
    let now = Instant::now();
    let enforced = EnforcedIsolation {
        mode: Some(IsolationMode::Namespaces),
        problem: Some(format!("nft: {}\nmore", "ä".repeat(600))),
        failing_since: Some(now),
        ..EnforcedIsolation::default()
    };
    let reported = |now| state(&enforced, Vec::new(), now).problem;
    assert_eq!(reported(now), None);
    let problem = reported(now + REPORTED_PROBLEM).unwrap();
    assert!(problem.len() <= LONGEST_PROBLEM && !problem.contains('\n'));
}

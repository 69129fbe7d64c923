use super::*;
use crate::isolation::policy::tests::{address, node, own, policy, rules};

const DB: &str = "10.90.4.10";
const SHOP: &str = "10.90.6.10";

fn flow(called: &str, answers: &str) -> Flow {
    let mut flow = Flow::example(address(called), 5432, Transport::Tcp, address(answers));
    flow.from = address(SHOP);
    flow
}

#[test]
fn tracked_connections_are_judged_by_their_real_end() {
    let policy = policy(&rules(&[("data", "db", DB), ("shop", "web", SHOP)]));
    let verdict = |called, answers| judge(&flow(called, answers), &node(), &policy);
    let refused = Some(IsolationVerdict::Refused);
    assert_eq!(verdict(DB, DB), refused);
    assert_eq!(verdict("10.91.0.5", DB), refused, "by a service address");
    assert_eq!(verdict("192.0.2.1", DB), None, "by a host port");
    assert_eq!(verdict("192.0.2.1", "192.0.2.1"), None, "to the outside");
    assert_eq!(verdict("10.90.4.1", "10.90.4.1"), None, "to a machine");
    assert_eq!(verdict(SHOP, SHOP), Some(IsolationVerdict::Allowed));
    let unknown = Some(IsolationVerdict::Unknown);
    assert_eq!(
        verdict("10.90.4.99", "10.90.4.99"),
        unknown,
        "of an instance that is gone"
    );
}

#[test]
fn a_container_is_covered_when_its_link_and_address_are_in_its_namespace() {
    let wanted = rules(&[("shop", "web", SHOP)]);
    let instance = own("data", "db", "10.90.2.10");
    let mut enforced = EnforcedIsolation::default();
    assert!(
        enforced.covers(None, "db-0", &instance),
        "no file: as before"
    );
    let mut open = wanted.clone();
    for mode in [IsolationMode::None, IsolationMode::Audit] {
        open.mode = mode;
        assert!(enforced.covers(Some(&open), "db-0", &instance), "{mode:?}");
    }
    assert!(!enforced.covers(Some(&wanted), "db-0", &instance));
    let instances = Instances {
        schema: 1,
        instances: [("db-0".to_owned(), instance.clone())].into(),
        ..Instances::default()
    };
    enforced.policy = Arc::new(IsolationPolicy::new(&node(), &instances, &wanted));
    assert!(
        !enforced.covers(Some(&wanted), "db-0", &instance),
        "not in force"
    );
    enforced.mode = Some(IsolationMode::Namespaces);
    assert!(enforced.covers(Some(&wanted), "db-0", &instance));
    assert!(!enforced.covers(Some(&wanted), "db-1", &instance));
    let moved = own("shop", "db", "10.90.2.10");
    assert!(!enforced.covers(Some(&wanted), "db-0", &moved));
}

#[tokio::test(start_paused = true)]
async fn names_wait_for_the_table_and_not_for_long() {
    let snapshot = |revision| {
        let mut rules = rules(&[("shop", "web", SHOP)]);
        rules.revision = revision;
        Arc::new(StateFilesSnapshot {
            isolation: Some(Arc::new(rules)),
            ..StateFilesSnapshot::default()
        })
    };
    let without = Arc::new(StateFilesSnapshot::default());
    let snapshots = watch::Sender::new(Arc::clone(&without));
    let enforced = watch::Sender::new(EnforcedIsolation::default());
    let (shown, mut names) = watch::channel(without);
    let cancel = CancellationToken::new();
    let passing = pass_on_known(
        snapshots.subscribe(),
        enforced.subscribe(),
        shown,
        cancel.clone(),
    );
    let task = tokio::spawn(passing);
    let mut shows = async |wanted: &Arc<StateFilesSnapshot>, within| {
        let is_wanted = |shown: &Arc<StateFilesSnapshot>| Arc::ptr_eq(shown, wanted);
        let shown = names.wait_for(is_wanted);
        tokio::time::timeout(within, shown).await.is_ok()
    };
    let nearly = NAMES_WAIT - Duration::from_millis(100);

    let first = snapshot(1);
    snapshots.send_replace(Arc::clone(&first));
    assert!(!shows(&first, nearly).await, "the table does not know it");
    enforced.send_modify(|enforced| enforced.rules.clone_from(&first.isolation));
    assert!(shows(&first, Duration::from_millis(1)).await);

    // What does not concern isolation waits for nothing.
    let other = Arc::new(StateFilesSnapshot::clone(&first));
    snapshots.send_replace(Arc::clone(&other));
    assert!(shows(&other, Duration::from_millis(1)).await);

    // With a problem names follow late.
    snapshots.send_replace(snapshot(2));
    assert!(!shows(&first, nearly).await);
    let last = snapshot(3);
    snapshots.send_replace(Arc::clone(&last));
    assert!(shows(&last, Duration::from_millis(101)).await);
    cancel.cancel();
    task.await.unwrap();
}

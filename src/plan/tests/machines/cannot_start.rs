//! Machines that say that what is placed there does not start.

use super::*;
use kat_types::{
    api::{ApiTime, Condition, DATA_PATH_RUNS, FILES_WRITTEN, STORE_EPOCH_REFUSED},
    reason::Reason,
};

const SAID: [(&str, bool, Reason); 3] = [
    (DATA_PATH_RUNS, false, Reason::DataPathDown),
    (FILES_WRITTEN, false, Reason::FilesNotWritten),
    (STORE_EPOCH_REFUSED, true, Reason::Unconfirmed),
];

fn condition(kind: &str, status: bool, reason: Reason) -> Vec<Condition> {
    vec![Condition {
        kind: kind.to_owned(),
        status,
        reason: reason.into(),
        message: "the words".to_owned(),
        since: ApiTime::UNKNOWN,
    }]
}

/// The machines of three replicas that are placed while n1 says this.
fn places(machines: usize, said: Vec<Condition>) -> BTreeSet<String> {
    let mut world = World::with_machines(machines);
    world.at("n1").conditions = said;
    world.settle();
    world.replicas("web", 3);
    world.settle();
    let wanted = world.wanted("web");
    assert_eq!(wanted.len(), 3, "{wanted:?}");
    wanted.into_iter().map(|(_, node, _)| node).collect()
}

#[test]
fn such_a_machine_gets_instances_only_where_no_other_can_take_them() {
    for (kind, status, reason) in SAID {
        let said = condition(kind, status, reason);
        assert_eq!(places(2, said.clone()), ["n2".to_owned()].into(), "{kind}");
        assert_eq!(places(1, said), ["n1".to_owned()].into(), "{kind}");
    }
}

#[test]
fn a_machine_that_says_the_opposite_is_as_good_as_others() {
    for (kind, status, reason) in SAID {
        let both = ["n1", "n2"].map(str::to_owned).into();
        assert_eq!(places(2, condition(kind, !status, reason)), both, "{kind}");
    }
}

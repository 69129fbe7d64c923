use super::*;
use kat_types::{
    assignment::DesiredMeta,
    store::{
        records::{NodeRegistration, NodeStatusRecord},
        revisions::Stored,
        snapshot::StoredState,
    },
};

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn stored<T>(value: T) -> Stored<T> {
    Stored { revision: 1, value }
}

/// A machine for each phase, the oldest first, with the seconds since it entered the phase.
fn snapshot(phases: &[(NodePhase, i64)]) -> Snapshot {
    let nodes = (1..).zip(phases).map(|(number, (phase, seconds))| {
        let name = format!("n{number}");
        let registration = NodeRegistration {
            identity_key: name.clone(),
            architecture: "amd64".to_owned(),
            ..NodeRegistration::new(&name, at(number.into()))
        };
        let status = NodeStatusRecord {
            phase: *phase,
            since: Some(at(NOW - seconds)),
            ..NodeStatusRecord::default()
        };
        let entry = NodeEntry {
            registration: stored(registration),
            status: Some(stored(status)),
            subnet: Some(format!("10.0.{number}.0/24").parse().unwrap()),
            public_key: None,
            endpoints: Vec::new(),
            reach: Default::default(),
            desired: stored(DesiredMeta::default()),
        };
        (name, entry)
    });
    Snapshot::from(StoredState {
        nodes: nodes.collect(),
        ..StoredState::default()
    })
}

fn ready(count: usize) -> Snapshot {
    snapshot(&vec![(NodePhase::Ready, 0); count])
}

fn member(number: u64, voting: bool, healthy: bool) -> SeenMember {
    SeenMember {
        id: number,
        node: Some(format!("n{number}")),
        voting,
        healthy,
        ..SeenMember::default()
    }
}

fn voters(count: u64) -> Vec<SeenMember> {
    (1..=count).map(|n| member(n, true, true)).collect()
}

fn wanted(snapshot: &Snapshot, seen: &[SeenMember], leading: &str) -> Vec<String> {
    let lost = lost_members(snapshot, seen);
    let wanted = wanted_members(snapshot, seen, (&lost, &none()), leading, at(NOW));
    wanted.into_iter().collect()
}

fn step(snapshot: &Snapshot, seen: &[SeenMember]) -> MemberStep {
    let lost = lost_members(snapshot, seen);
    let wanted = wanted_members(snapshot, seen, (&lost, &none()), "n1", at(NOW));
    next_step(&wanted, seen, &lost, view(&PreparingMachines::default()))
}

fn view(preparing: &PreparingMachines) -> StepView<'_> {
    StepView {
        own: "n1",
        raft_leader: 0,
        preparing,
    }
}

fn remove(id: u64, node: Option<&str>) -> MemberStep {
    MemberStep::Remove {
        member: removed(id, node),
        also: None,
    }
}

fn removed(id: u64, node: Option<&str>) -> RemovedMember {
    RemovedMember {
        id,
        node: node.map(ToOwned::to_owned),
    }
}

fn add(node: &str) -> MemberStep {
    MemberStep::Add {
        node: node.into(),
        voting: false,
    }
}

fn none() -> BTreeSet<String> {
    BTreeSet::new()
}

#[test]
fn one_three_or_five_as_machines_are_there() {
    let sizes: Vec<usize> = (1..=7)
        .map(|count| wanted(&ready(count), &voters(1), "n1").len())
        .collect();
    assert_eq!(sizes, [1, 1, 3, 3, 5, 5, 5]);
    assert_eq!(wanted(&ready(4), &voters(1), "n1"), ["n1", "n2", "n3"]);
    // Existing members stay members, even if there are older machines.
    let seen = [1, 3, 4].map(|n| member(n, true, true));
    assert_eq!(wanted(&ready(4), &seen, "n1"), ["n1", "n3", "n4"]);
    // Of two remaining members, the leading one keeps the store.
    assert_eq!(wanted(&ready(2), &voters(2), "n2"), ["n2"]);
}

/// The simulation's seed 1048: the third member had been replaced and had no vote yet, and all machines but the
/// leading one fell silent for a moment.
#[test]
fn two_voting_members_stay_while_the_third_machine_is_away_for_a_short_time() {
    let (up, down) = (NodePhase::Ready, NodePhase::NotReady);
    let of_three = |seconds| snapshot(&[(up, 0), (up, 0), (down, seconds)]);
    assert_eq!(wanted(&of_three(299), &voters(2), "n1"), ["n1", "n2"]);
    assert_eq!(wanted(&of_three(300), &voters(2), "n1"), ["n1"]);

    let all_others = snapshot(&[(up, 0), (down, 2), (down, 2), (down, 2)]);
    let mut seen = voters(2);
    assert_eq!(wanted(&all_others, &seen, "n1"), ["n1", "n2"]);
    seen.push(member(3, false, true));
    assert_eq!(wanted(&all_others, &seen, "n1"), ["n1", "n2"]);
    // One voting member does not become two.
    assert_eq!(wanted(&of_three(2), &voters(1), "n1"), ["n1"]);

    let mut drained = of_three(2);
    let third = drained.state.nodes.get_mut("n3").unwrap();
    third.registration.value.draining = true;
    assert_eq!(wanted(&drained, &voters(2), "n1"), ["n1"]);
}

#[test]
fn a_machine_with_the_label_becomes_no_member_and_a_member_stays_one() {
    let mut four = ready(4);
    let mut label = |name: &str, value: Option<&str>| {
        let node = four.state.nodes.get_mut(name).unwrap();
        let labels = &mut node.registration.value.labels;
        labels.clear();
        labels.extend(value.map(|value| (ETCD_LABEL.to_owned(), value.to_owned())));
        four.clone()
    };
    let without_second = label("n2", Some(NEVER));
    assert_eq!(
        wanted(&without_second, &voters(1), "n1"),
        ["n1", "n3", "n4"]
    );
    assert_eq!(
        wanted(&without_second, &voters(3), "n1"),
        ["n1", "n2", "n3"]
    );
    // Too few machines are left for three members.
    let without_third = label("n3", Some(NEVER));
    assert_eq!(wanted(&without_third, &voters(1), "n1"), ["n1"]);
    let with_second = label("n2", None);
    assert_eq!(wanted(&with_second, &voters(1), "n1"), ["n1", "n2", "n4"]);
}

/// Right after a restore a machine may be Ready by the backup alone.
#[test]
fn a_machine_that_a_new_store_has_not_heard_becomes_no_member_until_it_reports() {
    let heard = ready(4);
    let mut machines = heard.clone();
    for name in ["n2", "n3", "n4"] {
        let status = machines.nodes.get_mut(name).unwrap().status.as_mut();
        assert!(status.unwrap().value.set_unheard(name));
    }
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1"]);
    assert_eq!(step(&machines, &voters(1)), MemberStep::Nothing);
    for name in ["n2", "n4"] {
        machines.nodes.get_mut(name).unwrap().status = heard.nodes[name].status.clone();
    }
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n2", "n4"]);
    assert_eq!(step(&machines, &voters(1)), add("n2"));
}

/// Callers that have seen the name of the API do not accept a member of version 0.1.0.
#[test]
fn a_machine_without_a_key_of_the_api_becomes_no_member_once_every_member_has_one() {
    let mut machines = ready(4);
    let set = |machines: &mut Snapshot, name: &str, change: fn(&mut NodeRegistration)| {
        change(&mut machines.nodes.get_mut(name).unwrap().registration.value);
    };
    set(&mut machines, "n1", |one| {
        one.etcd = true;
        one.advertise = vec![[192, 0, 2, 1].into()];
    });
    set(&mut machines, "n3", |one| {
        one.member_keys.api = "c".repeat(64)
    });
    set(&mut machines, "n4", |one| {
        one.member_keys.api = "d".repeat(64)
    });
    // The only member has version 0.1.0 itself.
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n2", "n3"]);
    set(&mut machines, "n1", |one| {
        one.member_keys.api = "a".repeat(64)
    });
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n3", "n4"]);
    // A member stays a member.
    assert_eq!(wanted(&machines, &voters(3), "n1"), ["n1", "n2", "n3"]);
}

#[test]
fn machines_that_may_not_are_passed_over() {
    let mut machines = ready(4);
    let set = |machines: &mut Snapshot, name: &str, change: fn(&mut NodeRegistration)| {
        change(&mut machines.nodes.get_mut(name).unwrap().registration.value);
    };
    set(&mut machines, "n2", |one| one.no_etcd = true);
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n3", "n4"]);
    // A machine with `etcd_peer` comes before older machines, but not before existing members, and
    // does not lead to two members.
    set(&mut machines, "n4", |one| one.etcd_peer = true);
    let seen = [1, 3].map(|n| member(n, true, true));
    assert_eq!(wanted(&machines, &seen, "n1"), ["n1", "n3", "n4"]);
    let seen = [1, 2, 3].map(|n| member(n, true, true));
    assert_eq!(wanted(&ready(4), &seen, "n1"), ["n1", "n2", "n3"]);
    let mut two = ready(2);
    set(&mut two, "n2", |one| one.etcd_peer = true);
    assert_eq!(wanted(&two, &voters(1), "n1"), ["n1"]);
    set(&mut machines, "n3", |one| one.draining = true);
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1"]);
    set(&mut machines, "n1", |one| one.deleting = true);
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n4"]);
    let joining = snapshot(&[
        (NodePhase::Ready, 0),
        (NodePhase::Joining, 0),
        (NodePhase::Ready, 0),
    ]);
    assert_eq!(wanted(&joining, &voters(1), "n1"), ["n1"]);
}

#[test]
fn machines_behind_nat_come_last_of_those_that_could() {
    let mut machines = ready(4);
    machines.nodes.get_mut("n2").unwrap().reach.behind_nat = true;
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n3", "n4"]);
    // An existing member stays a member, and `etcd_peer` is a person's request.
    assert_eq!(wanted(&machines, &voters(3), "n1"), ["n1", "n2", "n3"]);
    let two = machines.nodes.get_mut("n2").unwrap();
    two.registration.value.etcd_peer = true;
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n2", "n3"]);
    // Three members, one of them behind NAT, are better than one.
    machines.nodes.remove("n4");
    let two = machines.nodes.get_mut("n2").unwrap();
    two.registration.value.etcd_peer = false;
    assert_eq!(wanted(&machines, &voters(1), "n1"), ["n1", "n2", "n3"]);
}

#[test]
fn a_lost_member_is_replaced_when_there_is_another_machine() {
    let lost = |seconds, others: usize| {
        let mut phases = vec![(NodePhase::Ready, 0), (NodePhase::NotReady, seconds)];
        phases.extend(vec![(NodePhase::Ready, 0); others]);
        snapshot(&phases)
    };
    let seen = [
        member(1, true, true),
        member(2, true, false),
        member(3, true, true),
    ];
    assert_eq!(wanted(&lost(9999, 1), &seen, "n1"), ["n1", "n2", "n3"]);
    assert_eq!(wanted(&lost(200, 2), &seen, "n1"), ["n1", "n2", "n3"]);
    assert_eq!(wanted(&lost(300, 2), &seen, "n1"), ["n1", "n3", "n4"]);
    let more = wanted(&lost(300, 3), &seen, "n1");
    assert_eq!(more, ["n1", "n3", "n4"], "not five with one that is away");
    // The lost member is removed before another one is added.
    assert_eq!(step(&lost(300, 2), &seen), remove(2, Some("n2")));
    // A learner on a machine that is away is an obstacle immediately.
    let seen = [member(1, true, true), member(2, false, false)];
    assert_eq!(wanted(&lost(1, 3), &seen, "n1"), ["n1", "n3", "n4"]);
}

#[test]
fn members_enter_one_by_one_without_a_vote() {
    let three = ready(3);
    let promote = |id| MemberStep::Promote {
        id,
        node: format!("n{id}"),
        with: None,
    };
    assert_eq!(step(&ready(2), &voters(1)), MemberStep::Nothing);
    assert_eq!(step(&three, &voters(1)), add("n2"));
    let mut seen = vec![member(1, true, true), member(2, false, false)];
    assert!(matches!(step(&three, &seen), MemberStep::Wait(_)));
    seen[1].healthy = true;
    assert_eq!(step(&three, &seen), promote(2));
    assert_eq!(step(&three, &voters(2)), add("n3"));
    seen = vec![
        member(1, true, true),
        member(2, true, false),
        member(3, false, true),
    ];
    assert!(matches!(step(&three, &seen), MemberStep::Wait(_)));
    assert_eq!(step(&three, &voters(3)), MemberStep::Nothing);
}

#[test]
fn a_removal_never_costs_the_quorum() {
    let gone = |id, healthy| SeenMember {
        node: None,
        ..member(id, true, healthy)
    };
    let machines = ready(3);
    // Of three members, the one that is away may be removed while both others answer.
    let seen = [member(1, true, true), member(2, true, true), gone(3, false)];
    assert_eq!(step(&machines, &seen), remove(3, None));
    let seen = [member(1, true, true), member(2, true, false), gone(3, true)];
    assert!(matches!(step(&machines, &seen), MemberStep::Wait(_)));
    let seen = [member(1, true, true), gone(2, false)];
    assert!(matches!(step(&machines, &seen), MemberStep::Wait(_)));
    assert!(matches!(
        step(&machines, &[gone(9, true)]),
        MemberStep::Wait(_)
    ));
    // A learner may be removed at any time.
    let learner = SeenMember {
        node: None,
        ..member(3, false, false)
    };
    let seen = [member(1, true, true), member(2, true, false), learner];
    assert_eq!(step(&machines, &seen), remove(3, None));
}

#[test]
fn raft_is_led_elsewhere_from_three_members_on() {
    let names = |count: usize| {
        (1..=count)
            .map(|n| format!("n{n}"))
            .collect::<BTreeSet<_>>()
    };
    let lost = BTreeSet::new();
    let preparing = PreparingMachines::default();
    let next = |seen: &[SeenMember], raft_leader| {
        let view = StepView {
            raft_leader,
            ..view(&preparing)
        };
        next_step(&names(seen.len()), seen, &lost, view)
    };
    assert_eq!(next(&voters(3), 1), MemberStep::MoveRaft { to: 2 });
    assert_eq!(next(&voters(3), 2), MemberStep::Nothing);
    assert_eq!(next(&voters(3), 0), MemberStep::Nothing);
    assert_eq!(next(&voters(1), 1), MemberStep::Nothing);
    let seen = [
        member(1, true, true),
        member(2, true, false),
        member(3, true, true),
    ];
    assert_eq!(next(&seen, 1), MemberStep::MoveRaft { to: 3 });
}

#[test]
fn a_member_may_go_while_the_others_keep_the_quorum() {
    let members = |phases: &[NodePhase]| {
        let phases: Vec<_> = phases.iter().map(|phase| (*phase, 0)).collect();
        let mut snapshot = snapshot(&phases);
        for node in snapshot.nodes.values_mut() {
            node.registration.value.etcd = true;
        }
        snapshot
    };
    let (up, down) = (NodePhase::Ready, NodePhase::NotReady);
    assert!(may_lose_member(&members(&[up, up, up]), "n3"));
    assert!(may_lose_member(&members(&[up, up, down]), "n3"));
    assert!(!may_lose_member(&members(&[up, down, up]), "n3"));
    assert!(!may_lose_member(&members(&[up, up]), "n2"));
    assert!(!may_lose_member(&members(&[up]), "n1"));
    // A machine that is Ready and whose etcd does not answer keeps no quorum.
    let mut seen = voters(3);
    let mut known = members(&[up, up, up]);
    known.members = Some(stored(cluster_members(&seen, None)));
    assert!(may_lose_member(&known, "n3"));
    seen[1].healthy = false;
    known.members = Some(stored(cluster_members(&seen, None)));
    assert!(!may_lose_member(&known, "n3"));
    assert!(may_lose_member(&known, "n2"));
    // What stands in the way is said.
    let answers = "etcd on n2 does not answer";
    assert_eq!(member_troubles(&known, "n3"), [answers]);
    assert!(member_troubles(&known, "n2").is_empty());
    let drains = members(&[NodePhase::Draining, up, down]);
    assert_eq!(member_troubles(&drains, "n3"), ["n1 is Draining"]);
    assert_eq!(
        member_troubles(&drains, "n2"),
        ["n1 is Draining", "n3 is NotReady"]
    );
}

/// Three members on Ready machines, of which the second has not answered for this many seconds.
fn silent(seconds: u64, voting: bool) -> Vec<SeenMember> {
    let mut seen = voters(3);
    seen[1] = SeenMember {
        silent: Duration::from_secs(seconds),
        ..member(2, voting, false)
    };
    seen
}

#[test]
fn a_member_that_is_silent_on_a_machine_that_is_there_is_made_anew() {
    let machines = ready(3);
    let remove = remove(2, Some("n2"));
    assert_eq!(step(&machines, &silent(299, true)), MemberStep::Nothing);
    assert_eq!(step(&machines, &silent(300, true)), remove);
    // The same machine becomes a member again, because there is no other machine.
    let without = [member(1, true, true), member(3, true, true)];
    assert_eq!(step(&machines, &without), add("n2"));
    // Another machine is preferred if there is one, also after the removal of the lost member.
    let four = ready(4);
    assert_eq!(step(&four, &silent(300, true)), remove);
    let given_up = BTreeSet::from(["n2".to_owned()]);
    let lost = BTreeSet::new();
    let wanted = wanted_members(&four, &without, (&lost, &given_up), "n1", at(NOW));
    let preparing = PreparingMachines::default();
    let next = next_step(&wanted, &without, &lost, view(&preparing));
    assert_eq!(next, add("n4"));
}

#[test]
fn a_member_whose_machine_is_away_is_no_less_patient_for_its_silence() {
    let away = snapshot(&[
        (NodePhase::Ready, 0),
        (NodePhase::NotReady, 299),
        (NodePhase::Ready, 0),
        (NodePhase::Ready, 0),
    ]);
    assert_eq!(step(&away, &silent(9999, true)), MemberStep::Nothing);
}

#[test]
fn one_without_a_vote_has_a_minute_to_start() {
    let mut machines = ready(3);
    machines.cluster.spec.node_loss_timeout_seconds = 3;
    let waits = |seconds| {
        matches!(
            step(&machines, &silent(seconds, false)),
            MemberStep::Wait(_)
        )
    };
    assert!(waits(59));
    assert!(!waits(60));
    assert!(matches!(
        step(&machines, &silent(15, true)),
        MemberStep::Remove {
            member: RemovedMember { id: 2, .. },
            ..
        }
    ));
}

#[test]
fn a_member_whose_data_is_gone_is_not_waited_for() {
    let machines = ready(3);
    let mut seen = voters(3);
    seen[1].data_lost = true;
    seen[1].healthy = false;
    assert!(matches!(
        step(&machines, &seen),
        MemberStep::Remove {
            member: RemovedMember { id: 2, .. },
            ..
        }
    ));
    // A drained machine is still available.
    let drained = snapshot(&[
        (NodePhase::Ready, 0),
        (NodePhase::Drained, 0),
        (NodePhase::Ready, 0),
    ]);
    assert!(matches!(
        step(&drained, &seen),
        MemberStep::Remove {
            member: RemovedMember { id: 2, .. },
            ..
        }
    ));
    // A report of lost data from before the member became a learner does not count.
    seen[1].voting = false;
    assert!(matches!(step(&machines, &seen), MemberStep::Wait(_)));
    // The other members must keep the quorum.
    let mut seen = voters(2);
    seen[1].data_lost = true;
    seen[1].healthy = false;
    assert!(matches!(step(&machines, &seen), MemberStep::Wait(_)));
}

#[test]
fn a_removed_member_that_came_back_goes_and_its_machine_stays_a_member() {
    let mut seen = voters(3);
    seen.push(SeenMember {
        node: Some("n2".to_owned()),
        ..member(9, true, false)
    });
    assert_eq!(step(&ready(3), &seen), remove(9, None));
}

#[test]
fn the_leader_hands_over_before_its_own_member_is_removed() {
    let mut seen = voters(3);
    seen[0].data_lost = true;
    seen[0].healthy = false;
    assert_eq!(step(&ready(3), &seen), MemberStep::HandOver);
    // A leader without enough other members keeps leading.
    assert!(matches!(step(&ready(2), &seen[..2]), MemberStep::Wait(_)));
}

#[test]
fn of_two_members_on_one_machine_the_known_id_is_recorded() {
    let seen = |first: u64, second: u64| {
        [first, second].map(|id| SeenMember {
            node: Some("n1".to_owned()),
            ..member(id, true, true)
        })
    };
    let id = |members: &ClusterMembers| members.members["n1"].id.clone();
    let known = cluster_members(&seen(7, 7), None);
    for seen in [seen(7, 9), seen(9, 7), seen(7, 3), seen(3, 7)] {
        assert_eq!(id(&cluster_members(&seen, Some(&known))), "7");
    }
    // If no id is known yet, the member that answers is recorded.
    let [mut silent, other] = seen(9, 3);
    silent.healthy = false;
    assert_eq!(id(&cluster_members(&[silent, other], None)), "3");
}

#[test]
fn a_member_whose_machine_has_left_is_named_until_it_is_removed() {
    let mut seen = voters(3);
    seen[2].node = None;
    let stored = cluster_members(&seen, None);
    assert_eq!(stored.left, ["3"]);
    assert!(stored.members.keys().eq(["n1", "n2"]));
    assert_eq!(cluster_members(&seen[..2], None).left, [""; 0]);
}

/// Reports of these machines: `able` can prepare, `waiting` have.
fn preparing(able: &[&str], waiting: &[&str]) -> PreparingMachines {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    PreparingMachines {
        able: names(able),
        waiting: names(waiting),
    }
}

fn step_with(
    snapshot: &Snapshot,
    seen: &[SeenMember],
    preparing: &PreparingMachines,
) -> (Option<String>, MemberStep) {
    let lost = lost_members(snapshot, seen);
    let wanted = wanted_members(snapshot, seen, (&lost, &none()), "n1", at(NOW));
    let next = preparing_machine(&wanted, seen, preparing);
    (next, next_step(&wanted, seen, &lost, view(preparing)))
}

#[test]
fn from_an_odd_number_two_members_get_their_votes_at_the_same_moment() {
    for (machines, voting) in [(3, 1), (5, 3)] {
        let (first, second) = (voting + 1, format!("n{}", voting + 2));
        let machines = ready(machines);
        let able: Vec<_> = (1..=5).map(|n| format!("n{n}")).collect();
        let able: Vec<_> = able.iter().map(String::as_str).collect();
        let not_yet = preparing(&able, &[]);
        let prepared = preparing(&able, &[&second]);
        // The first one is added without a vote, and the second one prepares meanwhile.
        let mut seen = voters(voting);
        let (next, step) = step_with(&machines, &seen, &not_yet);
        assert_eq!((next, step), (None, add(&format!("n{first}"))));
        seen.push(member(first, false, true));
        let (next, step) = step_with(&machines, &seen, &not_yet);
        assert_eq!(next, Some(second.clone()));
        assert!(matches!(step, MemberStep::Wait(why) if why.contains(&second)));
        // etcd refuses another voting member before the connection is 5 s old.
        let (_, step) = step_with(&machines, &seen, &prepared);
        assert!(matches!(step, MemberStep::Wait(why) if why.contains("6 s")));
        seen.last_mut().unwrap().steady = Duration::from_secs(6);
        let (next, step) = step_with(&machines, &seen, &prepared);
        let promote = MemberStep::Promote {
            id: first,
            node: format!("n{first}"),
            with: Some(second.clone()),
        };
        assert_eq!((next, step), (Some(second.clone()), promote));
        // The leader was lost between the two: the next one adds the second member at once.
        let seen = voters(first);
        let (next, step) = step_with(&machines, &seen, &prepared);
        let rest = MemberStep::Add {
            node: second.clone(),
            voting: true,
        };
        assert_eq!((next, step), (Some(second.clone()), rest));
        // A machine that is lost while it prepares leaves one voting member, and no second place.
        let mut seen = voters(voting);
        seen.push(member(first, false, true));
        let mut without = machines.clone();
        without.nodes.remove(&second);
        let (next, step) = step_with(&without, &seen, &not_yet);
        assert_eq!(
            (next, step),
            (None, remove(first, Some(&format!("n{first}"))))
        );
    }
}

#[test]
fn a_machine_of_an_earlier_version_that_cannot_prepare_does_not_hold_the_first_one_up() {
    let mut seen = voters(1);
    seen.push(member(2, false, true));
    let (next, step) = step_with(&ready(3), &seen, &preparing(&["n2"], &[]));
    let promote = MemberStep::Promote {
        id: 2,
        node: "n2".to_owned(),
        with: None,
    };
    assert_eq!((next, step), (None, promote));
}

#[test]
fn from_three_members_to_one_two_go_in_one_step() {
    // The machine of the third one leaves; two machines keep one member. It goes first, whatever its id: it may stop before a
    // second removal, and one of two members that are left could not go on without it.
    let mut seen = voters(3);
    let mut machines = ready(3);
    let registration = &mut machines.nodes.get_mut("n3").unwrap().registration;
    registration.value.deleting = true;
    seen[2].leaving = true;
    let expected = |third: Option<&str>| MemberStep::Remove {
        member: removed(3, third),
        also: Some(removed(2, Some("n2"))),
    };
    assert_eq!(step(&machines, &seen), expected(Some("n3")));
    // So it does once its machine has left.
    seen[2].node = None;
    assert_eq!(step(&ready(2), &seen), expected(None));
    // And where it does not answer: the others keep the quorum without it.
    seen[2].healthy = false;
    assert_eq!(step(&ready(2), &seen), expected(None));
    // One that stays and does not answer goes before one that leaves.
    let mut seen = voters(3);
    seen[1].healthy = false;
    seen[2].leaving = true;
    let wanted = ["n1".to_owned()].into();
    let step_of_one = next_step(
        &wanted,
        &seen,
        &BTreeSet::new(),
        view(&PreparingMachines::default()),
    );
    let MemberStep::Remove { member, .. } = step_of_one else {
        panic!("{step_of_one:?}");
    };
    assert_eq!(member, removed(2, Some("n2")));
    // Without an answer of the one that stays and of the one that left.
    let mut seen = voters(3);
    seen[2].node = None;
    seen[2].healthy = false;
    // Without an answer from the last one, nothing is left to go on with.
    seen[0].healthy = false;
    assert!(matches!(step(&ready(2), &seen), MemberStep::Wait(_)));
}

#[test]
fn a_member_that_was_added_with_a_vote_counts_as_voting_once_it_has_answered() {
    let before = cluster_members(&voters(2), None);
    let mut seen = voters(3);
    seen[2].healthy = false;
    let begun = cluster_members(&seen, Some(&before));
    assert!(!begun.members["n3"].voting);
    seen[2].healthy = true;
    let answered = cluster_members(&seen, Some(&begun));
    assert!(answered.members["n3"].voting);
    // One that has answered and is silent now keeps its vote.
    seen[2].healthy = false;
    let silent = cluster_members(&seen, Some(&answered));
    assert!(silent.members["n3"].voting);
    // The first list says what etcd says.
    assert!(cluster_members(&seen, None).members["n3"].voting);
}

/// The list that is stored at this second, in a cluster that wants three members.
fn list_at(second: i64, seen: &[SeenMember], before: Option<&ClusterMembers>) -> ClusterMembers {
    let wanted = BTreeSet::from(["n1", "n2", "n3"].map(str::to_owned));
    let mut members = cluster_members(seen, before);
    members.voteless_since = voteless_since(&members, before, &wanted, at(second));
    members
}

/// No machine has a time.
const NOBODY: [(&str, i64); 0] = [];

fn voteless(members: &ClusterMembers) -> Vec<(&str, i64)> {
    let since = members.voteless_since.iter();
    since
        .map(|(name, since)| (name.as_str(), since.as_second()))
        .collect()
}

#[test]
fn an_etcd_that_never_starts_keeps_the_time_of_its_first_addition() {
    let machines = ready(3);
    let alone = voters(1);
    let begun = list_at(100, &alone, None);
    assert_eq!(voteless(&begun), NOBODY);
    // The machine that is to be the third member waits for the second one, and has no time.
    let mut seen = [member(1, true, true), member(2, false, false)];
    let added = list_at(110, &seen, Some(&begun));
    assert_eq!(voteless(&added), [("n2", 110)]);
    seen[1].silent = Duration::from_secs(300);
    let silent = list_at(410, &seen, Some(&added));
    assert_eq!(silent, added);
    // The member is removed, and the same machine becomes one again.
    assert_eq!(step(&machines, &seen), remove(2, Some("n2")));
    let removed = list_at(411, &alone, Some(&silent));
    assert!(!removed.members.contains_key("n2"));
    assert_eq!(voteless(&removed), [("n2", 110)]);
    assert_eq!(step(&machines, &alone), add("n2"));
    let mut seen = [member(1, true, true), member(7, false, false)];
    seen[1].node = Some("n2".to_owned());
    let again = list_at(412, &seen, Some(&removed));
    assert_eq!(again.members["n2"].id, "7");
    assert_eq!(voteless(&again), [("n2", 110)]);
    // It catches up, and gets its vote.
    seen[1].healthy = true;
    let answers = list_at(800, &seen, Some(&again));
    assert_eq!(voteless(&answers), [("n2", 110)]);
    seen[1].voting = true;
    assert_eq!(voteless(&list_at(801, &seen, Some(&answers))), NOBODY);
}

#[test]
fn a_member_that_was_added_with_a_vote_and_never_answers_has_a_time() {
    let before = list_at(100, &voters(2), None);
    let mut seen = voters(3);
    seen[2].healthy = false;
    let added = list_at(110, &seen, Some(&before));
    assert_eq!(voteless(&added), [("n3", 110)]);
    seen[2].healthy = true;
    let answered = list_at(120, &seen, Some(&added));
    assert_eq!(voteless(&answered), NOBODY);
    // One that has answered and is silent now is no new member.
    seen[2].healthy = false;
    assert_eq!(voteless(&list_at(130, &seen, Some(&answered))), NOBODY);
}

#[test]
fn a_machine_that_is_to_be_no_member_any_more_loses_the_time_of_its_member() {
    let fourth = [member(1, true, true), member(4, false, false)];
    let added = list_at(110, &fourth, None);
    assert_eq!(voteless(&added), [("n4", 110)]);
    assert_eq!(voteless(&list_at(120, &voters(1), Some(&added))), NOBODY);
}

#[test]
fn a_time_by_a_clock_that_is_ahead_becomes_the_present_one() {
    let seen = [member(1, true, true), member(2, false, false)];
    let ahead = list_at(5_000, &seen, None);
    let behind = list_at(110, &seen, Some(&ahead));
    assert_eq!(voteless(&behind), [("n2", 110)]);
    assert_eq!(voteless(&list_at(120, &seen, Some(&behind))), [("n2", 110)]);
}

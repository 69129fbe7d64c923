use super::*;

const MIB: u64 = 1 << 20;
const QUOTA: u64 = 2048 * MIB;

fn member(id: u64, file: u64, used: u64) -> SeenMember {
    SeenMember {
        id,
        node: Some(format!("n{id}")),
        voting: true,
        healthy: true,
        store: Some(SeenStore {
            file: file * MIB,
            used: used * MIB,
            quota: 0,
        }),
        ..SeenMember::default()
    }
}

fn full(id: u64) -> StoreAlarms {
    StoreAlarms {
        full: [id].into(),
        ..StoreAlarms::default()
    }
}

fn step(seen: &[SeenMember], alarms: &StoreAlarms, done: &UpkeepDone) -> UpkeepStep {
    let weight = StoreWeight::of(seen, alarms, QUOTA);
    next_upkeep(seen, &weight, alarms, ("n1", 2), done)
}

fn calm(seen: &[SeenMember]) -> UpkeepStep {
    step(seen, &StoreAlarms::default(), &UpkeepDone::default())
}

fn defragment(id: u64) -> UpkeepStep {
    UpkeepStep::Defragment {
        id,
        node: format!("n{id}"),
    }
}

#[test]
fn a_file_is_made_smaller_only_where_that_is_worth_it() {
    let three = |file, used| [1, 2, 3].map(|id| member(id, file, used));
    assert_eq!(calm(&three(100, 1)), UpkeepStep::Nothing, "a small file");
    assert_eq!(calm(&three(400, 300)), UpkeepStep::Nothing, "much in use");
    assert_eq!(calm(&three(400, 200)), defragment(1));
    assert_eq!(calm(&[]), UpkeepStep::Nothing);
}

#[test]
fn members_are_defragmented_one_by_one_and_rafts_leader_last() {
    let mut seen = [1, 2, 3].map(|id| member(id, 400, 100));
    assert_eq!(calm(&seen), defragment(1));
    seen[0] = member(1, 100, 100);
    assert_eq!(calm(&seen), defragment(3));
    seen[2] = member(3, 100, 100);
    // n1 leads KAT, so raft moves to n3.
    assert_eq!(calm(&seen), UpkeepStep::MoveRaft { to: 3 });
    assert_eq!(calm(&[member(2, 400, 100)]), defragment(2), "it is alone");
}

#[test]
fn never_while_another_is_not_well() {
    let mut seen = [1, 2, 3].map(|id| member(id, 400, 100));
    seen[2].healthy = false;
    seen[2].store = None;
    assert!(matches!(calm(&seen), UpkeepStep::Wait(_)));
    // A learner that does not answer blocks the defragmentation too.
    seen[2].voting = false;
    assert!(matches!(calm(&seen), UpkeepStep::Wait(_)));
    // A full store is defragmented all the same, because it would otherwise wait forever.
    let done = UpkeepDone {
        compacted: true,
        ..UpkeepDone::default()
    };
    assert_eq!(step(&seen, &full(1), &done), defragment(1));
}

#[test]
fn a_full_store_loses_its_history_then_its_free_space_then_the_alarm() {
    let mut seen = vec![member(1, 2048, 2040)];
    let mut done = UpkeepDone::default();
    assert_eq!(step(&seen, &full(1), &done), UpkeepStep::Compact);
    done.compacted = true;
    seen[0] = member(1, 2048, 40);
    assert_eq!(step(&seen, &full(1), &done), defragment(1));
    done.defragmented.insert(1);
    seen[0] = member(1, 40, 40);
    assert_eq!(step(&seen, &full(1), &done), UpkeepStep::Disarm);
    // Free space that appeared during the defragmentation is no reason for another one.
    seen[0] = member(1, 60, 40);
    assert_eq!(step(&seen, &full(1), &done), UpkeepStep::Disarm);
    done.disarmed = true;
    assert_eq!(step(&seen, &full(1), &done), UpkeepStep::Nothing);
    assert_eq!(
        step(&seen, &StoreAlarms::default(), &done),
        UpkeepStep::Nothing
    );
}

#[test]
fn it_acts_before_the_store_is_full() {
    let none = StoreAlarms::default();
    let mut done = UpkeepDone::default();
    let seen = [member(1, 1700, 1000)];
    assert_eq!(step(&seen, &none, &done), UpkeepStep::Compact);
    done.compacted = true;
    assert_eq!(step(&seen, &none, &done), defragment(1));
    assert_eq!(
        step(&[member(1, 1700, 1600)], &none, &done),
        UpkeepStep::Nothing
    );
}

#[test]
fn corrupt_data_is_left_to_a_person() {
    let alarms = StoreAlarms {
        corrupt: [1].into(),
        full: [1].into(),
    };
    let seen = [member(1, 2048, 1)];
    assert_eq!(
        step(&seen, &alarms, &UpkeepDone::default()),
        UpkeepStep::Nothing
    );
}

/// While the alarm is raised, etcd takes no writes. Steps that need writes come after `alarm
/// disarm`, and the alarm returns at the next check if the member is still there.
#[test]
fn corrupt_data_is_told_with_an_order_that_works() {
    let told = |id: u64| {
        let alarms = StoreAlarms {
            corrupt: [id].into(),
            ..StoreAlarms::default()
        };
        let seen = [member(0xa1, 100, 10), member(0xb2, 100, 10)];
        let weight = StoreWeight::of(&seen, &alarms, QUOTA);
        store_trouble(&seen, &weight, &alarms, false).unwrap()
    };
    let known = told(0xb2);
    let at = |text: &str| {
        known
            .find(text)
            .unwrap_or_else(|| panic!("{text}: {known}"))
    };
    assert!(known.contains("machine n178 "), "{known}");
    assert!(at("member remove b2`") < at("alarm disarm`"));
    assert!(!known.contains("reset"), "it needs writes: {known}");
    // etcd does not report the member.
    let unknown = told(0);
    assert!(unknown.contains("hashkv --cluster"), "{unknown}");
    assert!(!unknown.contains("gone"), "{unknown}");
}

#[test]
fn people_are_told_what_only_they_can_do() {
    let trouble = |seen: &[SeenMember], alarms: &StoreAlarms, stuck: bool| {
        let weight = StoreWeight::of(seen, alarms, QUOTA);
        store_trouble(seen, &weight, alarms, stuck)
    };
    let none = StoreAlarms::default();
    assert_eq!(trouble(&[member(1, 1700, 100)], &none, false), None);
    let nearly = trouble(&[member(1, 1700, 1650)], &none, false).unwrap();
    assert!(
        nearly.contains("nearly full") && nearly.contains("2.0Gi"),
        "{nearly}"
    );
    let busy = trouble(&[member(1, 2048, 100)], &full(1), false).unwrap();
    assert!(busy.contains("making room"), "{busy}");
    let stuck = trouble(&[member(1, 2048, 2040)], &full(1), true).unwrap();
    assert!(stuck.contains("ETCD_QUOTA_BACKEND_BYTES"), "{stuck}");
    // The file is beyond KAT's quota without an alarm, so the quota was raised by hand.
    assert_eq!(trouble(&[member(1, 3000, 2900)], &none, false), None);
    let mut told = member(1, 3000, 2900);
    told.store.as_mut().unwrap().quota = 3072 * MIB;
    assert!(trouble(&[told], &none, false).is_some());
}

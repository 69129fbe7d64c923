use super::*;
use HolderAction::{Add, Announce, Ask, Remove};

const OTHER: Mac = [2, 0, 0, 0, 0, 9];

fn at(milliseconds: u64) -> BootTime {
    BootTime(1_000_000 + milliseconds * 1000)
}

fn said(kind: StatementKind, claim: Option<u64>) -> HeardStatement {
    HeardStatement {
        address: [192, 0, 2, 9].into(),
        kind,
        mac: OTHER,
        claim,
    }
}

fn granted(number: u64) -> AddressHolder {
    let mut holder = AddressHolder::default();
    holder.set(Some(number), None, true);
    holder
}

/// Does what is due until `end`, and returns it with the times in milliseconds.
fn run(holder: &mut AddressHolder, from: u64, end: u64) -> Vec<(u64, HolderAction)> {
    let mut done = Vec::new();
    for now in from..end {
        for action in holder.advance(at(now)) {
            done.push((now, action));
        }
    }
    done
}

fn holding(number: u64) -> AddressHolder {
    let mut holder = granted(number);
    run(&mut holder, 0, 751);
    assert!(holder.is_held());
    holder
}

#[test]
fn an_address_is_taken_after_three_questions_without_an_answer() {
    let mut holder = granted(7);
    let done = run(&mut holder, 0, 4000);
    let expected = [
        (0, Ask),
        (250, Ask),
        (500, Ask),
        (750, Add),
        (750, Announce),
        (1000, Announce),
        (2500, Announce),
    ];
    assert_eq!(done, expected);
}

#[test]
fn a_question_that_is_not_sent_does_not_count() {
    let mut holder = granted(7);
    for now in 0..5000 {
        let done = holder.advance(at(now));
        assert!(!done.contains(&Add), "{now}");
        if done.contains(&Ask) {
            holder.unasked();
        }
    }
    let done = run(&mut holder, 5000, 6001);
    assert!(done.iter().any(|(_, action)| *action == Add), "{done:?}");
}

#[test]
fn an_address_that_a_foreign_host_answers_for_is_not_taken() {
    let mut holder = granted(7);
    let mut taken = 0;
    for now in 0..20_000 {
        let done = holder.advance(at(now));
        assert!(!done.contains(&Add), "{now}");
        if done.contains(&Ask) {
            holder.hear(&said(StatementKind::Has, None), at(now + 1));
        }
        taken += u64::from(holder.waits_for() == Some(WaitingCause::Taken(OTHER)));
    }
    assert!(taken > 10_000, "{taken} ms");
    // The host is gone.
    let done = run(&mut holder, 20_000, 27_000);
    assert!(done.iter().any(|(_, action)| *action == Add));
}

#[test]
fn a_host_that_asks_for_the_address_to_use_it_is_let_go_first() {
    let mut holder = granted(7);
    run(&mut holder, 0, 700);
    holder.hear(&said(StatementKind::Asks, None), at(700));
    assert!(
        run(&mut holder, 700, 1400)
            .iter()
            .all(|(_, one)| *one == Ask)
    );
    assert!(run(&mut holder, 1400, 1600).contains(&(1500, Add)));
}

#[test]
fn the_holder_of_an_earlier_decision_gives_way_and_takes_the_address_when_the_other_falls_silent() {
    for kind in [StatementKind::Asks, StatementKind::Has] {
        let mut holder = holding(7);
        assert_eq!(holder.hear(&said(kind, Some(8)), at(2000)), [Remove]);
        assert_eq!(holder.waits_for(), Some(WaitingCause::Superseded));
        for now in (2000..10_000).step_by(1500) {
            assert_eq!(run(&mut holder, now, now + 1500), []);
            holder.hear(&said(StatementKind::Has, Some(8)), at(now + 1500));
        }
        let done = run(&mut holder, 11_000, 20_000);
        assert_eq!(done.first(), Some(&(16_000, Ask)));
        assert!(done.contains(&(16_750, Add)), "{done:?}");
    }
}

#[test]
fn the_holder_of_a_later_decision_says_so_and_keeps_the_address() {
    let mut holder = holding(7);
    for kind in [StatementKind::Asks, StatementKind::Has] {
        for now in (2000..30_000).step_by(100) {
            holder.hear(&said(kind, Some(6)), at(now));
            assert!(holder.is_held());
        }
    }
    let mut announced = 0;
    for now in 40_000..41_000 {
        announced += holder
            .hear(&said(StatementKind::Has, Some(6)), at(now))
            .len();
    }
    assert_eq!(
        announced, 4,
        "a flood of claims is answered four times a second"
    );
}

#[test]
fn a_foreign_host_with_the_address_is_answered_once_and_given_way_to_if_it_persists() {
    let mut holder = holding(7);
    let conflict = said(StatementKind::Has, None);
    assert_eq!(holder.hear(&conflict, at(2000)), [Announce]);
    // Packets that were under way.
    assert_eq!(holder.hear(&conflict, at(2100)), []);
    assert_eq!(holder.hear(&conflict, at(3999)), []);
    assert_eq!(holder.hear(&conflict, at(4000)), [Remove]);
    assert_eq!(holder.waits_for(), Some(WaitingCause::Conflict(OTHER)));
    let done = run(&mut holder, 4000, 12_000);
    assert!(done.contains(&(9750, Add)), "{done:?}");
    // One packet in ten seconds moves nothing.
    for now in (20_000..200_000).step_by(10_000) {
        assert_eq!(holder.hear(&conflict, at(now)), [Announce]);
    }
}

#[test]
fn the_own_number_from_another_host_counts_as_that_of_a_foreign_one() {
    let mut holder = holding(7);
    let replayed = said(StatementKind::Has, Some(7));
    assert_eq!(holder.hear(&replayed, at(2000)), [Announce]);
    assert_eq!(holder.hear(&replayed, at(5000)), [Remove]);
}

#[test]
fn an_address_is_given_up_at_once_when_the_leader_says_so_and_when_its_link_is_gone() {
    let mut holder = holding(7);
    holder.set(None, None, true);
    assert_eq!(holder.next(), Some(BootTime(0)));
    assert_eq!(holder.advance(at(2000)), [Remove]);
    assert_eq!(
        (holder.next(), holder.word()),
        (None, AddressStateWord::Ready)
    );
    let mut holder = holding(7);
    holder.set(Some(7), None, false);
    assert_eq!(holder.advance(at(2000)), [Remove]);
    assert_eq!(holder.advance(at(2001)), []);
}

#[test]
fn a_holder_that_is_chosen_again_moves_nothing_and_says_the_new_number() {
    let mut holder = holding(7);
    run(&mut holder, 751, 1100);
    holder.set(Some(9), None, true);
    assert_eq!(holder.advance(at(1100)), [Announce]);
    assert_eq!(holder.claim(), 9);
    assert!(holder.is_held());
}

#[test]
fn an_address_to_release_is_given_up_in_time_and_taken_again_once_a_leader_is_reached() {
    let mut holder = granted(7);
    holder.set(Some(7), Some(at(5000)), true);
    run(&mut holder, 0, 4999);
    assert!(holder.is_held());
    assert!(holder.next() <= Some(at(5000)));
    assert_eq!(holder.advance(at(5000)), [Remove]);
    assert_eq!(holder.word(), AddressStateWord::Released);
    assert_eq!(run(&mut holder, 5000, 9000), []);
    holder.set(Some(7), Some(at(20_000)), true);
    assert!(run(&mut holder, 9000, 10_000).contains(&(9750, Add)));
}

#[test]
fn an_address_that_was_left_on_the_link_is_announced_and_not_asked_for() {
    let mut holder = AddressHolder::default();
    holder.adopt(at(0));
    holder.set(Some(7), None, true);
    assert_eq!(holder.advance(at(0)), [Announce]);
    let mut holder = AddressHolder::default();
    holder.adopt(at(0));
    holder.set(None, None, true);
    assert_eq!(holder.advance(at(0)), [Remove]);
}

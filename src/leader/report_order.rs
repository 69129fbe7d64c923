//! Which of a machine's reports is newer: one that was under way to the leader when its machine was
//! cut off may arrive after later ones.

use std::{collections::VecDeque, mem, time::Duration};

use tokio::time::Instant;

use kat_types::{api::ReportOrder, machine::fence::BootTime};

/// Longest time that a report is under way. TCP gives a connection up after some 16 minutes, and a
/// machine that does not lead forwards a report over a second connection, which takes some 32 minutes
/// in all. A machine whose clock is further behind, or still behind when the newest report has this age,
/// was set back, as a virtual machine to a snapshot, and is believed.
const UNDER_WAY: Duration = Duration::from_secs(35 * 60);
/// Most other boots of a machine that are remembered.
const MOST_OTHERS: usize = 8;

/// The newest report of a machine.
pub(super) struct NewestReport {
    /// What the beginnings of boots are counted from.
    first: Instant,
    boot: Boot,
    /// The machine's other boots, the one that was heard of last at the end.
    others: VecDeque<Boot>,
}

/// What is known of a boot of a machine.
struct Boot {
    id: String,
    /// Of its newest report.
    newest: BootTime,
    /// When its newest report arrived.
    arrived: Instant,
    /// When it began at the latest, in microseconds from [`NewestReport::first`] on: as if the report
    /// that arrived soonest after it was made had taken no time.
    began: i64,
}

impl Boot {
    fn new(order: &ReportOrder, began: i64) -> Self {
        Self {
            id: order.boot_id.clone(),
            newest: order.since_boot,
            arrived: Instant::now(),
            began,
        }
    }

    /// Takes a report of this boot that has just arrived. Returns false if it is not newer than those
    /// before.
    fn follow(&mut self, order: &ReportOrder, began: i64) -> bool {
        let behind = self.newest.since(order.since_boot);
        let may_be_late = behind < UNDER_WAY && self.may_be_followed();
        if order.since_boot <= self.newest && may_be_late {
            return false;
        }
        let set_back = order.since_boot <= self.newest;
        let soonest = if set_back {
            began
        } else {
            began.min(self.began)
        };
        *self = Self::new(order, soonest);
        true
    }

    /// Whether an older report may still arrive.
    fn may_be_followed(&self) -> bool {
        self.arrived.elapsed() < UNDER_WAY
    }
}

impl NewestReport {
    /// The first report of a machine.
    pub(super) fn new(order: &ReportOrder) -> Self {
        Self {
            first: Instant::now(),
            boot: Boot::new(order, micros(order.since_boot.0).saturating_neg()),
            others: VecDeque::new(),
        }
    }

    /// Time since the newest report arrived.
    pub(super) fn age(&self) -> Duration {
        self.boot.arrived.elapsed()
    }

    /// Whether an older report may still arrive.
    pub(super) fn may_be_followed(&self) -> bool {
        self.boot.may_be_followed()
    }

    /// Takes a report that has just arrived for the newest one. Returns false if it is not: it is
    /// the same one, an earlier one of its boot, or one of another boot that began before this one.
    ///
    /// A leader that was not there before does not know which boots a machine has left, and the
    /// first report that it gets of a boot may be late. So another boot that began before is believed
    /// once none of this one has arrived for `quiet`.
    pub(super) fn follow(&mut self, order: &ReportOrder, quiet: Duration) -> bool {
        let now = u64::try_from(self.first.elapsed().as_micros()).unwrap_or(u64::MAX);
        let began = micros(now).saturating_sub(micros(order.since_boot.0));
        if order.boot_id == self.boot.id {
            return self.boot.follow(order, began);
        }
        self.others.retain(Boot::may_be_followed);
        let known = self.others.iter();
        let known = known.enumerate().find(|(_, boot)| boot.id == order.boot_id);
        let known = known.map(|(index, _)| index);
        let other = match known.and_then(|index| self.others.remove(index)) {
            Some(mut other) => {
                let newer = other.follow(order, began);
                if !newer {
                    self.remember(other);
                    return false;
                }
                other
            }
            None => Boot::new(order, began),
        };
        let follows = other.began >= self.boot.began || self.age() >= quiet;
        if follows {
            let left = mem::replace(&mut self.boot, other);
            self.remember(left);
        } else {
            self.remember(other);
        }
        follows
    }

    fn remember(&mut self, boot: Boot) {
        if self.others.len() >= MOST_OTHERS {
            self.others.pop_front();
        }
        self.others.push_back(boot);
    }
}

/// A number of microseconds, at most some 290,000 years.
fn micros(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(6);

    fn order(boot_id: &str, seconds: u64) -> ReportOrder {
        ReportOrder {
            boot_id: boot_id.to_owned(),
            since_boot: BootTime::from(Duration::from_secs(seconds)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_newer_if_it_was_made_later_in_the_same_boot() {
        let mut newest = NewestReport::new(&order("a", 20));
        assert!(!newest.follow(&order("a", 20), QUIET), "it arrived twice");
        assert!(!newest.follow(&order("a", 19), QUIET), "it was under way");
        assert!(newest.follow(&order("a", 21), QUIET));
        assert!(!newest.follow(&order("a", 20), QUIET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_a_boot_that_was_left_is_late() {
        let mut newest = NewestReport::new(&order("a", 2_000));
        assert!(
            newest.follow(&order("b", 10), QUIET),
            "the machine has booted"
        );
        assert!(!newest.follow(&order("a", 2_001), QUIET));
        assert!(newest.follow(&order("c", 5), QUIET));
        for left in ["a", "b"] {
            assert!(!newest.follow(&order(left, 9_000), QUIET), "{left}");
        }
        assert!(newest.follow(&order("c", 6), QUIET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_set_back_to_a_snapshot_is_believed() {
        let mut newest = NewestReport::new(&order("a", 90_000));
        assert!(
            !newest.follow(&order("a", 87_901), QUIET),
            "it may be under way"
        );
        assert!(
            newest.follow(&order("a", 87_900), QUIET),
            "a clock set back"
        );
        assert!(newest.follow(&order("a", 87_901), QUIET));
        let endless = ReportOrder {
            since_boot: BootTime(u64::MAX),
            ..order("a", 0)
        };
        assert!(newest.follow(&endless, QUIET));
        assert!(newest.follow(&order("a", 86_402), QUIET), "a forged clock");

        assert!(newest.follow(&order("b", 10), QUIET));
        tokio::time::advance(UNDER_WAY).await;
        assert!(
            newest.follow(&order("a", 86_403), QUIET),
            "set back over a boot"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_set_back_a_little_is_believed_when_nothing_is_under_way_any_more() {
        let mut newest = NewestReport::new(&order("a", 90_000));
        tokio::time::advance(UNDER_WAY - Duration::from_secs(1)).await;
        assert!(!newest.follow(&order("a", 89_999), QUIET));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(newest.follow(&order("a", 89_999), QUIET));
        assert!(
            !newest.follow(&order("a", 89_998), QUIET),
            "the newer one has just arrived"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_boots_of_a_machine_are_forgotten_from_the_oldest_on() {
        let mut newest = NewestReport::new(&order("first", 1));
        for boot in 0..1_000 {
            assert!(newest.follow(&order(&format!("boot {boot}"), 1), QUIET));
        }
        assert_eq!(newest.others.len(), MOST_OTHERS);
        assert!(!newest.follow(&order("boot 998", 2), QUIET));
        assert!(!newest.follow(&order("first", 2), QUIET));
        assert_eq!(newest.others.len(), MOST_OTHERS);
    }

    /// The simulation's seed 444: the leader, which is the machine itself, booted, and what the boot before
    /// had sent arrived after the first reports of this boot.
    #[tokio::test(start_paused = true)]
    async fn late_reports_of_a_boot_that_a_new_leader_does_not_know_refuse_no_later_ones() {
        let second = Duration::from_secs(1);
        let mut newest = NewestReport::new(&order("new", 1));
        for late in 1..=30 {
            tokio::time::advance(second).await;
            let report = order("left", 100 + late);
            assert!(!newest.follow(&report, QUIET), "{late} of before");
            assert!(newest.follow(&order("new", 1 + late), QUIET), "{late}");
            assert_eq!(newest.age(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_report_of_a_short_boot_delays_those_of_the_next_boot_for_a_short_time() {
        let mut newest = NewestReport::new(&order("left", 10));
        let mut since_boot = 1_000;
        // The boot before took longer to arrive than it lasted, so it seems to be the later one.
        for late in 11..=13 {
            for _ in 0..2 {
                tokio::time::advance(QUIET / 2 - Duration::from_millis(1)).await;
                since_boot += 3;
                assert!(!newest.follow(&order("new", since_boot), QUIET));
            }
            tokio::time::advance(QUIET / 2).await;
            since_boot += 3;
            assert!(newest.follow(&order("new", since_boot), QUIET));
            assert!(newest.follow(&order("left", late), QUIET), "{late}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_boot_that_began_later_is_believed_again_at_its_next_report() {
        let mut newest = NewestReport::new(&order("new", 1));
        tokio::time::advance(QUIET).await;
        assert!(
            newest.follow(&order("left", 500), QUIET),
            "the other is quiet"
        );
        assert!(newest.follow(&order("new", 7), QUIET));
    }
}

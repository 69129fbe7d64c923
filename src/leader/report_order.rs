//! Which of a machine's reports is newer: one that was under way to the leader when its machine was
//! cut off may arrive after later ones.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use kat_types::api::ReportOrder;

/// Longest time that a report is under way. TCP gives a connection up after some 16 minutes, and a
/// machine that does not lead forwards a report over a second connection, which takes some 32 minutes
/// in all. A machine whose clock is further behind, or still behind when the newest report has this age,
/// was set back, as a virtual machine to a snapshot, and is believed.
const UNDER_WAY: Duration = Duration::from_secs(35 * 60);
/// Most boots of a machine that are remembered as left.
const MOST_LEFT: usize = 8;

/// The newest report of a machine.
pub(super) struct NewestReport {
    order: ReportOrder,
    arrived: Instant,
    /// The boots before that of `order`, oldest first.
    left: VecDeque<LeftBoot>,
}

struct LeftBoot {
    boot_id: String,
    /// When the first report of the next boot arrived.
    left: Instant,
}

impl NewestReport {
    /// The first report of a machine.
    pub(super) fn new(order: ReportOrder) -> Self {
        Self {
            order,
            arrived: Instant::now(),
            left: VecDeque::new(),
        }
    }

    /// Time since the newest report arrived.
    pub(super) fn age(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Whether an older report may still arrive.
    pub(super) fn may_be_followed(&self) -> bool {
        self.age() < UNDER_WAY
    }

    /// Takes a report that has just arrived for the newest one. Returns false if it is not: it is
    /// the same one, an earlier one of this boot, or one of a boot that the machine has left.
    pub(super) fn follow(&mut self, order: &ReportOrder) -> bool {
        self.left.retain(|boot| boot.left.elapsed() < UNDER_WAY);
        if order.boot_id == self.order.boot_id {
            let behind = self.order.since_boot.since(order.since_boot);
            let may_be_late = behind < UNDER_WAY && self.may_be_followed();
            if order.since_boot <= self.order.since_boot && may_be_late {
                return false;
            }
        } else if self.left.iter().any(|boot| boot.boot_id == order.boot_id) {
            return false;
        } else {
            if self.left.len() >= MOST_LEFT {
                self.left.pop_front();
            }
            self.left.push_back(LeftBoot {
                boot_id: self.order.boot_id.clone(),
                left: Instant::now(),
            });
        }
        self.order.clone_from(order);
        self.arrived = Instant::now();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::machine::fence::BootTime;

    fn order(boot_id: &str, seconds: u64) -> ReportOrder {
        ReportOrder {
            boot_id: boot_id.to_owned(),
            since_boot: BootTime::from(Duration::from_secs(seconds)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_is_newer_if_it_was_made_later_in_the_same_boot() {
        let mut newest = NewestReport::new(order("a", 20));
        assert!(!newest.follow(&order("a", 20)), "it arrived twice");
        assert!(!newest.follow(&order("a", 19)), "it was under way");
        assert!(newest.follow(&order("a", 21)));
        assert!(!newest.follow(&order("a", 20)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_a_boot_that_was_left_is_late() {
        let mut newest = NewestReport::new(order("a", 2_000));
        assert!(newest.follow(&order("b", 10)), "the machine has booted");
        assert!(!newest.follow(&order("a", 2_001)));
        assert!(newest.follow(&order("c", 5)));
        for left in ["a", "b"] {
            assert!(!newest.follow(&order(left, 9_000)), "{left}");
        }
        assert!(newest.follow(&order("c", 6)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_set_back_to_a_snapshot_is_believed() {
        let mut newest = NewestReport::new(order("a", 90_000));
        assert!(!newest.follow(&order("a", 87_901)), "it may be under way");
        assert!(newest.follow(&order("a", 87_900)), "a clock set back");
        assert!(newest.follow(&order("a", 87_901)));
        let endless = ReportOrder {
            since_boot: BootTime(u64::MAX),
            ..order("a", 0)
        };
        assert!(newest.follow(&endless));
        assert!(newest.follow(&order("a", 86_402)), "a forged clock");

        assert!(newest.follow(&order("b", 10)));
        tokio::time::advance(UNDER_WAY).await;
        assert!(newest.follow(&order("a", 86_403)), "set back over a boot");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_set_back_a_little_is_believed_when_nothing_is_under_way_any_more() {
        let mut newest = NewestReport::new(order("a", 90_000));
        tokio::time::advance(UNDER_WAY - Duration::from_secs(1)).await;
        assert!(!newest.follow(&order("a", 89_999)));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(newest.follow(&order("a", 89_999)));
        assert!(
            !newest.follow(&order("a", 89_998)),
            "the newer one has just arrived"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_boots_of_a_machine_are_forgotten_from_the_oldest_on() {
        let mut newest = NewestReport::new(order("first", 1));
        for boot in 0..1_000 {
            assert!(newest.follow(&order(&format!("boot {boot}"), 1)));
        }
        assert_eq!(newest.left.len(), MOST_LEFT);
        assert!(!newest.follow(&order("boot 998", 2)));
        assert!(newest.follow(&order("first", 2)));
    }
}

//! Limits the journal lines that one user may cause.
//!
//! A user with access to the hook's socket may call it any number of times, and journald drops
//! lines of a service that logs too much, whichever user they are about. So each user has a budget
//! of lines per interval; lines over the budget are counted, and the count is logged with the next
//! line.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines that one user may cause in [`WHILE`].
const LINES: u32 = 50;
/// Length of the interval.
const WHILE: Duration = Duration::from_secs(60);

/// The lines that users have caused recently.
#[derive(Debug, Default)]
pub(crate) struct LineBudget {
    users: Mutex<BTreeMap<u32, SpentJournalLines>>,
}

#[derive(Debug)]
struct SpentJournalLines {
    since: Instant,
    lines: u32,
    held_back: u64,
}

impl LineBudget {
    /// Takes one line from the user's budget; returns the number of lines held back since the last
    /// one, or `None` if the budget is used up. Users without recent lines are forgotten.
    pub(crate) fn take(&self, uid: u32) -> Option<u64> {
        let now = Instant::now();
        let mut users = self.users.lock();
        let over = |spent: &SpentJournalLines| now.duration_since(spent.since) >= WHILE;
        users.retain(|user, spent| *user == uid || !over(spent));
        let spent = users.entry(uid).or_insert(SpentJournalLines {
            since: now,
            lines: 0,
            held_back: 0,
        });
        if over(spent) {
            (spent.since, spent.lines) = (now, 0);
        }
        if spent.lines >= LINES {
            spent.held_back = spent.held_back.saturating_add(1);
            return None;
        }
        spent.lines += 1;
        Some(std::mem::take(&mut spent.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_user_who_says_too_much_is_cut_short_and_others_are_not() {
        let budget = LineBudget::default();
        let shown = (0..1000).filter(|_| budget.take(20_001).is_some()).count();
        assert_eq!(shown, 50);
        assert_eq!(budget.take(20_002), Some(0));
        tokio::time::advance(WHILE).await;
        assert_eq!(budget.take(20_001), Some(950), "those are told of");
        assert_eq!(budget.take(20_001), Some(0));
        assert_eq!(budget.users.lock().len(), 1, "the quiet are forgotten");
    }
}

//! Announcements on the LAN: a machine's present endpoints, for peers that can't find it.
//!
//! When the addresses of all machines change at once, the endpoints that they know of each other
//! are useless. So a machine that can't reach peers announces its addresses on its links. The
//! packet ([`packet`]) contains for each addressed peer an authenticator that only these two
//! machines can make ([`book`]), from the X25519 secret of their WireGuard keys. An announced
//! endpoint is only one more endpoint to try: a session is only made by WireGuard's own handshake.
//! The packet is sent over UDP to the broadcast address of each IPv4 link and to all nodes of each
//! IPv6 link, not over the overlay ([`port`]).

pub mod known_peers;
pub mod packet;
pub(crate) mod sockets;

use std::time::Duration;

use tokio::time::Instant;

/// Pauses in seconds between announcements while peers are missing; the last one repeats.
const PAUSES: [u64; 7] = [2, 3, 5, 10, 15, 30, 60];

/// Decides when to announce.
#[derive(Debug, Default)]
pub(crate) struct AnnouncementSchedule {
    last: Option<Instant>,
    count: usize,
}

impl AnnouncementSchedule {
    /// Whether to announce now. With `moved`, this machine's addresses have changed, and the pauses
    /// start again.
    pub(crate) fn is_due(&mut self, missing: bool, moved: bool, now: Instant) -> bool {
        if moved {
            *self = Self::default();
        } else if !missing {
            self.count = 0;
            return false;
        }
        let pause = self
            .count
            .checked_sub(1)
            .and_then(|done| PAUSES.get(done.min(PAUSES.len() - 1)));
        let due = match (self.last, pause) {
            (Some(last), Some(pause)) => now.duration_since(last) >= Duration::from_secs(*pause),
            // Limits the announcements when a peer is missing only now and then.
            (Some(last), None) => now.duration_since(last) >= Duration::from_secs(1),
            (None, _) => true,
        };
        if due {
            self.last = Some(now);
            self.count += 1;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    async fn announced(
        schedule: &mut AnnouncementSchedule,
        seconds: u64,
        missing: bool,
    ) -> Vec<u64> {
        let mut at = Vec::new();
        for second in 0..seconds {
            if schedule.is_due(missing, false, Instant::now()) {
                at.push(second);
            }
            advance(Duration::from_secs(1)).await;
        }
        at
    }

    #[tokio::test(start_paused = true)]
    async fn announcements_become_rarer_but_continue_while_a_peer_is_missing() {
        let mut schedule = AnnouncementSchedule::default();
        let at = announced(&mut schedule, 250, true).await;
        assert_eq!(at, [0, 2, 5, 10, 20, 35, 65, 125, 185, 245]);
        assert!(announced(&mut schedule, 600, false).await.is_empty());
        assert_eq!(announced(&mut schedule, 4, true).await, [0, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_moved_says_so_at_once_also_where_nobody_is_missing() {
        let mut schedule = AnnouncementSchedule::default();
        announced(&mut schedule, 100, true).await;
        assert!(schedule.is_due(false, true, Instant::now()));
        assert!(!schedule.is_due(false, false, Instant::now()));
        advance(Duration::from_secs(1)).await;
        assert!(schedule.is_due(true, true, Instant::now()));
        assert!(!schedule.is_due(true, false, Instant::now()));
    }
}

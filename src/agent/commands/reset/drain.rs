//! Before a reset: other machines take over what runs on this one, where a leader answers.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{identity::MachineIdentity, machine},
    commands::setup::StepPrinter,
};
use kat_client::{Client, ClientError};
use kat_types::api::NodePhase;

/// Longest wait for the instances of this machine to move.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(120);
/// Time between two looks at the drain.
const LOOK: Duration = Duration::from_millis(500);
/// A leader that gives no answer for this long is not waited for, neither at the request nor later.
const SILENT: Duration = Duration::from_secs(15);

/// What the leader says of a machine that it drains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DrainState {
    /// Nothing is assigned to the machine any more.
    pub drained: bool,
    /// Number of instances that are still assigned to it.
    pub instances: u32,
}

/// The leader, asked by this machine for itself.
#[async_trait]
pub(crate) trait DrainingLeader: Send + Sync {
    /// Asks for the drain.
    async fn begin(&self) -> Result<(), ClientError>;
    /// Reads how far it is.
    async fn state(&self) -> Result<DrainState, ClientError>;
}

/// How the drain ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DrainEnd {
    /// Nothing is left on this machine.
    Empty,
    /// The cluster does not know this machine any more.
    NotMember,
    /// Nobody drains this machine; why, for users.
    Nobody(String),
    /// This many instances did not move in time.
    Left(u32),
}

/// Asks the leader to drain this machine, and waits until it is empty or [`DRAIN_LIMIT`] is over.
pub(crate) async fn drain(leader: &dyn DrainingLeader, say: StepPrinter<'_>) -> DrainEnd {
    let asked = Instant::now();
    while let Err(error) = leader.begin().await {
        // The certificate of a machine that was removed is not accepted any more.
        if error.status() == Some(401) {
            return DrainEnd::NotMember;
        }
        if !error.is_passing() || asked.elapsed() >= SILENT {
            return DrainEnd::Nobody(error.to_string());
        }
        sleep(LOOK).await;
    }
    let begun = Instant::now();
    let mut answered = begun;
    let mut left = None;
    loop {
        match leader.state().await {
            Ok(state) if state.drained => return DrainEnd::Empty,
            Ok(state) => {
                answered = Instant::now();
                if left != Some(state.instances) {
                    say(&format!("instances that have to move: {}", state.instances));
                    left = Some(state.instances);
                }
            }
            Err(error) if answered.elapsed() >= SILENT => {
                return DrainEnd::Nobody(error.to_string());
            }
            Err(_) => {}
        }
        if begun.elapsed() >= DRAIN_LIMIT {
            return DrainEnd::Left(left.unwrap_or_default());
        }
        sleep(LOOK).await;
    }
}

/// The leader of this machine's cluster, over the API with this machine's certificate.
pub(crate) struct ClusterLeader {
    client: Client,
    node: String,
}

impl ClusterLeader {
    pub(crate) fn of(identity: &MachineIdentity) -> anyhow::Result<Self> {
        Ok(Self {
            client: machine::client_of_others(identity, machine::REQUEST_LIMIT)?,
            node: identity.node.clone(),
        })
    }
}

#[async_trait]
impl DrainingLeader for ClusterLeader {
    async fn begin(&self) -> Result<(), ClientError> {
        self.client.drain_node(&self.node, false).await.map(drop)
    }

    async fn state(&self) -> Result<DrainState, ClientError> {
        let node = self.client.node(&self.node).await?;
        Ok(DrainState {
            drained: node.status.phase == NodePhase::Drained,
            instances: node.status.instances,
        })
    }
}

#[cfg(test)]
mod tests {
    use kat_client::ApiRefusal;
    use kat_types::api::ErrorBody;
    use parking_lot::Mutex;

    use super::*;

    /// A leader that moves one instance with each look until `stays` are left, and answers nothing
    /// once `silent` is set.
    struct Scripted {
        left: Mutex<u32>,
        stays: u32,
        /// Calls that begin the drain and fail before one succeeds, and their error.
        fails: Mutex<u32>,
        error: fn() -> ClientError,
        silent: bool,
    }

    fn unreachable() -> ClientError {
        ClientError::Unreachable {
            attempts: vec![("192.0.2.1:9115".to_owned(), "connection refused".to_owned())],
        }
    }

    #[async_trait]
    impl DrainingLeader for Scripted {
        async fn begin(&self) -> Result<(), ClientError> {
            let mut fails = self.fails.lock();
            if *fails == 0 {
                return Ok(());
            }
            *fails -= 1;
            Err((self.error)())
        }

        async fn state(&self) -> Result<DrainState, ClientError> {
            if self.silent {
                return Err(unreachable());
            }
            let mut left = self.left.lock();
            if *left > self.stays {
                *left -= 1;
            }
            Ok(DrainState {
                drained: *left == 0,
                instances: *left,
            })
        }
    }

    async fn drained(leader: Scripted) -> (DrainEnd, Vec<String>, Duration) {
        let said = Mutex::new(Vec::new());
        let begun = Instant::now();
        let end = drain(&leader, &|line: &str| said.lock().push(line.to_owned())).await;
        (end, said.into_inner(), begun.elapsed())
    }

    fn leader(left: u32) -> Scripted {
        Scripted {
            left: Mutex::new(left),
            stays: 0,
            fails: Mutex::new(0),
            error: unreachable,
            silent: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_reset_waits_until_every_instance_has_moved() {
        let (end, said, took) = drained(leader(3)).await;
        assert_eq!(end, DrainEnd::Empty);
        let expected = [2, 1].map(|left| format!("instances that have to move: {left}"));
        assert_eq!(said, expected);
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_no_other_machine_takes_is_waited_for_for_two_minutes_and_counted() {
        let stuck = Scripted {
            stays: 2,
            ..leader(4)
        };
        let (end, _, took) = drained(stuck).await;
        assert_eq!(end, DrainEnd::Left(2));
        assert!(
            (DRAIN_LIMIT..DRAIN_LIMIT + LOOK).contains(&took),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_request_is_repeated_while_a_new_leader_is_found() {
        let late = Scripted {
            fails: Mutex::new(8),
            ..leader(1)
        };
        let (end, _, took) = drained(late).await;
        assert_eq!(end, DrainEnd::Empty);
        assert!(took < SILENT, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_drains_a_machine_whose_leader_is_silent_for_fifteen_seconds_or_refuses() {
        let away = Scripted {
            fails: Mutex::new(u32::MAX),
            ..leader(4)
        };
        // The leader was lost after the request, and nobody follows it.
        let lost = Scripted {
            silent: true,
            ..leader(4)
        };
        for silent in [away, lost] {
            let (end, _, took) = drained(silent).await;
            assert!(matches!(end, DrainEnd::Nobody(why) if why.contains("refused")));
            assert!((SILENT..SILENT + LOOK * 2).contains(&took), "{took:?}");
        }
        // A refusal is the same at each repetition.
        let refused = Scripted {
            fails: Mutex::new(1),
            error: || ClientError::Name {
                what: "a machine",
                name: "n1".to_owned(),
            },
            ..leader(4)
        };
        let (end, _, took) = drained(refused).await;
        assert!(matches!(end, DrainEnd::Nobody(_)));
        assert_eq!(took, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_removed_is_told_so_at_once() {
        let removed = Scripted {
            fails: Mutex::new(1),
            error: || {
                ClientError::Refused(Box::new(ApiRefusal {
                    status: 401,
                    body: ErrorBody::default(),
                }))
            },
            ..leader(4)
        };
        let (end, _, took) = drained(removed).await;
        assert_eq!((&end, took), (&DrainEnd::NotMember, Duration::ZERO));
        let said = Mutex::new(Vec::new());
        let say = |line: &str| said.lock().push(line.to_owned());
        super::super::settle(&end, "n1", &say, |_: &str| Ok(true)).unwrap();
        assert_eq!(
            said.into_inner(),
            ["this machine is no member of the cluster any more; what runs here is stopped"]
        );
    }

    #[test]
    fn a_person_is_asked_before_what_was_not_moved_is_stopped() {
        let nobody = DrainEnd::Nobody("no route to host".to_owned());
        for (end, asks) in [
            (DrainEnd::Empty, false),
            (nobody, true),
            (DrainEnd::Left(2), true),
        ] {
            for answer in [true, false] {
                let asked = Mutex::new(false);
                let go_on = |_: &str| {
                    *asked.lock() = true;
                    Ok(answer)
                };
                let settled = super::super::settle(&end, "n1", &|_: &str| (), go_on);
                assert_eq!(*asked.lock(), asks, "{end:?}");
                assert_eq!(settled.is_ok(), answer || !asks, "{end:?}");
            }
        }
    }
}

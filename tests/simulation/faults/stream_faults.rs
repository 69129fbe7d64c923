//! Faults of the state stream: streams that break or stand still at any frame, slow lines on which
//! beats are held back, machines that open no stream, and members whose copy of the store lags.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    faults::{
        disabled_safeguards::Without,
        network_faults::{Conditions, Way},
    },
    random::Random,
    run::{Repair, Scenario},
};
use kat_store::{StateFrames, StateSourceError, WatchStream};
use kat_types::encoding::state_frames::{StateBeat, StateFrame};

/// Number of frames that a line holds between server and reader, as the buffers of their sockets.
const BUFFERED: usize = 1024;
/// Time after which a server gives up a reader that takes nothing.
const NO_PROGRESS: Duration = Duration::from_secs(10);
/// Pause between two looks at a line that is cut.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What happens to a new stream, drawn from the seed.
pub(crate) struct StreamFates {
    random: Random,
    /// Streams break and stand still.
    pub faulty: bool,
}

/// The faults of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamFate {
    /// The stream breaks after so many frames.
    breaks_after: Option<usize>,
    /// Everything after so many frames stands still for a while.
    stalls_after: Option<(usize, Duration)>,
}

impl StreamFates {
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0x6661_7465),
            faulty: true,
        }
    }

    /// A number of frames: within the first list, between a change and its commit, between a commit
    /// and its beat, or later.
    fn frames(&mut self) -> usize {
        let most = [3, 30, 200];
        let most = most[self.random.index(most.len())];
        self.random.index(most)
    }

    pub(crate) fn next(&mut self) -> StreamFate {
        if !self.faulty {
            return StreamFate::default();
        }
        let breaks = self.random.chance(30);
        let stalls = self.random.chance(20);
        StreamFate {
            breaks_after: breaks.then(|| self.frames()),
            stalls_after: stalls.then(|| (self.frames(), self.random.milliseconds(200, 5_000))),
        }
    }
}

/// The line from a server's feed to a reader on another machine.
pub(crate) struct StreamLine {
    /// The paths of the reader, the server, and a machine between them.
    pub ways: Vec<Arc<Way>>,
    pub fate: StreamFate,
    pub without: Without,
}

impl StreamLine {
    fn latency(&self) -> Duration {
        let ways = self.ways.iter().map(|way| way.now());
        ways.map(|now| now.latency + now.stream_late).sum()
    }

    fn is_cut(&self) -> bool {
        let holds = |now: Conditions| now.machines_cut || now.hung;
        self.ways.iter().any(|way| holds(way.now()))
    }

    /// Shortest time between two frames.
    fn pace(&self) -> Duration {
        let paces = self.ways.iter().map(|way| way.now().stream_pace);
        paces.max().unwrap_or_default()
    }

    fn broken(&self) -> u64 {
        self.ways.iter().map(|way| way.now().streams_broken).sum()
    }

    fn power(&self) -> u64 {
        self.ways.iter().map(|way| way.now().power).sum()
    }

    /// The frames as they arrive. `served` has those of the server, each with the time at which it
    /// was sent.
    pub(crate) fn carry(self, served: mpsc::Receiver<(Instant, StateFrame)>) -> StateFrames {
        let arriving = ArrivingFrames {
            broken: self.broken(),
            power: self.power(),
            line: self,
            served,
            count: 0,
            last: Instant::now(),
        };
        let frames = stream::unfold(arriving, |mut arriving| async move {
            let frames = arriving.next().await?;
            Some((stream::iter(frames.into_iter().map(Ok)), arriving))
        });
        Box::pin(frames.flatten())
    }
}

struct ArrivingFrames {
    line: StreamLine,
    served: mpsc::Receiver<(Instant, StateFrame)>,
    /// [`StreamLine::broken`] and [`StreamLine::power`] when the stream was opened.
    broken: u64,
    power: u64,
    /// Number of frames that have arrived.
    count: usize,
    /// When the last one arrived.
    last: Instant,
}

impl ArrivingFrames {
    async fn next(&mut self) -> Option<Vec<StateFrame>> {
        if self.line.fate.breaks_after == Some(self.count) {
            return None;
        }
        let Some((sent_at, frame)) = self.served.recv().await else {
            if self.line.power() != self.power {
                // Nobody is left who could end the connection.
                std::future::pending::<()>().await;
            }
            return None;
        };
        if let Some((after, stall)) = self.line.fate.stalls_after
            && after == self.count
        {
            sleep(stall).await;
        }
        let latency = self.line.latency();
        let pace = self.line.pace();
        sleep_until((sent_at + latency).max(self.last + pace)).await;
        while self.line.is_cut() {
            sleep(LOOK_AGAIN).await;
        }
        if self.line.broken() != self.broken {
            return None;
        }
        self.count += 1;
        self.last = Instant::now();
        Some(self.line.without.believed(frame))
    }
}

/// Sends what a feed serves into a line, as a server's process does until its end.
pub(crate) async fn serve(
    mut frames: StateFrames,
    line: mpsc::Sender<(Instant, StateFrame)>,
    mut sees: impl FnMut(&StateFrame),
) {
    loop {
        let next = tokio::select! {
            biased;
            () = line.closed() => return,
            next = frames.next() => next,
        };
        let Some(Ok(frame)) = next else { return };
        sees(&frame);
        let sent = timeout(NO_PROGRESS, line.send((Instant::now(), frame))).await;
        if !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

pub(crate) type ServedFrames = mpsc::Receiver<(Instant, StateFrame)>;

pub(crate) fn line() -> (mpsc::Sender<(Instant, StateFrame)>, ServedFrames) {
    mpsc::channel(BUFFERED)
}

impl Without {
    /// What a reader takes a frame for.
    fn believed(self, frame: StateFrame) -> Vec<StateFrame> {
        match (self, frame) {
            (Self::RequestTime, StateFrame::Beat(beat)) => vec![StateFrame::Beat(StateBeat {
                open_for_ms: JUST_SENT,
                ..beat
            })],
            (Self::BeatsAlone, StateFrame::Commit(revision)) => {
                let beat = StateBeat {
                    revision,
                    quorum_age_ms: 0,
                    open_for_ms: JUST_SENT,
                };
                vec![StateFrame::Commit(revision), StateFrame::Beat(beat)]
            }
            (_, frame) => vec![frame],
        }
    }
}

/// A time since the opening of a stream that lets any beat seem to be sent just now.
const JUST_SENT: u64 = u64::MAX / 2000;

/// The changes of a watch as a member's copy of the store gets them: in bursts while the copy lags,
/// and not at all while it is frozen.
pub(crate) fn lagging(changes: WatchStream, way: Arc<Way>, began: Instant) -> WatchStream {
    let changes = stream::unfold((changes, way), move |(mut changes, way)| async move {
        let next = changes.next().await?;
        loop {
            let now = way.now();
            if now.copy_frozen {
                sleep(LOOK_AGAIN).await;
                continue;
            }
            let lag = now.copy_lag.as_millis();
            let over = began.elapsed().as_millis().checked_rem(lag).unwrap_or(0);
            if over == 0 {
                break;
            }
            sleep(Duration::from_millis(u64::try_from(lag - over).unwrap())).await;
        }
        Some((next, (changes, way)))
    });
    Box::pin(changes)
}

/// The steps of a run that concern streams.
pub(crate) struct StreamSteps {
    pub random: Random,
}

impl StreamSteps {
    /// The steps have a generator of their own, so that the other steps of a seed stay as they are.
    pub(crate) fn of_seed(seed: u64) -> Self {
        Self {
            random: Random::new(seed ^ 0x7374_7265_616d),
        }
    }
}

impl Scenario {
    /// Breaks or slows streams, or holds back a member's copy of the store.
    pub(crate) fn step_of_the_streams(&mut self) {
        let joined = self.world.joined().count();
        let random = &mut self.streams.random;
        if !random.chance(40) {
            return;
        }
        // Members read their own feed first, so that most faults are of the others.
        let reader = match random.chance(60) {
            true => 3 + random.index(joined - 3),
            false => random.index(joined),
        };
        let member = random.index(3);
        let what = random.below(100);
        let pace = random.milliseconds(1_200, 3_800);
        let lag = random.milliseconds(100, 4_000);
        let late = random.milliseconds(300, 1_900);
        let repaired_in = random.milliseconds(500, 20_000);
        let name = self.world.machines[reader].name.clone();
        let note = |text: String| self.world.monitor.note(&text);
        match what {
            0..15 => {
                note(format!("the streams of {name} break"));
                self.world.change_way(reader, |way| way.streams_broken += 1);
            }
            15..35 => {
                note(format!("a frame of {name}'s stream takes {pace:?}"));
                self.world.change_way(reader, |way| way.stream_pace = pace);
                self.repair_after(repaired_in, Repair::Streams(reader));
            }
            35..42 => {
                note(format!("the reports of {name} do not arrive"));
                self.world
                    .change_way(reader, |way| way.reports_refused = true);
                self.repair_after(repaired_in, Repair::Streams(reader));
            }
            42..50 => {
                note(format!("{name} opens no stream"));
                self.world
                    .change_way(reader, |way| way.opens_no_stream = true);
                self.repair_after(repaired_in, Repair::Streams(reader));
            }
            50..65 => {
                note(format!("the copy of member {member} lags {lag:?}"));
                self.world.change_way(member, |way| way.copy_lag = lag);
                self.repair_after(repaired_in, Repair::Streams(member));
            }
            65..80 => {
                note(format!("the copy of member {member} stands still"));
                self.world.change_way(member, |way| way.copy_frozen = true);
                self.repair_after(repaired_in, Repair::Streams(member));
            }
            _ => {
                // The machine's last news are of a server that stands still from now on.
                let Some(server) = self.world.net.server_of(&name) else {
                    return;
                };
                let mut machines = self.world.machines.iter();
                let Some(server) = machines.position(|machine| machine.name == server) else {
                    return;
                };
                note(format!("{name} has only a server that stands still"));
                self.world.change_way(reader, |way| {
                    way.opens_no_stream = true;
                    way.stream_late = late;
                });
                self.world.change_way(server, |way| way.copy_frozen = true);
                self.repair_after(repaired_in, Repair::Streams(reader));
                self.repair_after(repaired_in, Repair::Streams(server));
            }
        }
    }
}

/// The error of a stream that is not opened.
pub(crate) fn unreachable(text: &str) -> StateSourceError {
    StateSourceError::Unreachable(text.to_owned())
}

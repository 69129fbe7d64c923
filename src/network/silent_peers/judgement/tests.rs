use proptest::prelude::*;

use super::*;

/// Peers by number: what is sent to them and comes from them, and whether they answer.
struct Scene {
    judge: SilenceJudge<u8>,
    start: Instant,
    now: Instant,
    looks: BTreeMap<u8, PeerLook>,
    answering: BTreeSet<u8>,
    asked: Vec<u8>,
    outside: Option<bool>,
}

impl Scene {
    /// Peers that are in use and answer.
    fn of(peers: &[u8]) -> Self {
        let now = Instant::now();
        let look = PeerLook {
            in_use: true,
            traffic: Some(PeerTraffic::default()),
        };
        let mut scene = Self {
            judge: SilenceJudge::default(),
            start: now,
            now,
            looks: peers.iter().map(|peer| (*peer, look)).collect(),
            answering: peers.iter().copied().collect(),
            asked: Vec::new(),
            outside: None,
        };
        scene.tick(&[]);
        scene
    }

    /// One look: `sent_to` are sent something, and those of them that answer send something back.
    fn tick(&mut self, sent_to: &[u8]) -> BTreeSet<u8> {
        self.now += TICK;
        for peer in sent_to {
            if let Some(traffic) = &mut self.looks.get_mut(peer).unwrap().traffic {
                traffic.sent += 60;
                traffic.received += if self.answering.contains(peer) { 60 } else { 0 };
            }
        }
        let due = self.judge.look(&self.looks, self.now);
        self.asked = due.peers.iter().copied().collect();
        for peer in due.peers {
            if self.answering.contains(&peer) {
                self.judge.answered(&peer, self.now);
            }
        }
        if let Some(reached) = self.outside.filter(|_| due.outside.is_some()) {
            let began = self.now;
            self.judge.tried_outside(OutsideProbe { began, reached });
        }
        self.judge.judge(self.now).clone()
    }

    /// Looks, while these peers are sent to, until this one is excluded; how long it took.
    fn excludes(&mut self, peer: u8, sent_to: &[u8]) -> Duration {
        let began = self.now;
        while !self.tick(sent_to).contains(&peer) {
            assert!(self.now - began < Duration::from_secs(30), "never excluded");
        }
        self.now - began
    }
}

#[test]
fn a_peer_that_falls_silent_is_excluded_before_the_second_syn_is_sent_again() {
    let mut scene = Scene::of(&[2, 3]);
    scene.tick(&[2, 3]);
    scene.answering.remove(&2);
    let took = scene.excludes(2, &[2, 3]);
    assert!(took <= Duration::from_millis(2400), "{took:?}");
    // It stays out, although nothing else is sent to it, and comes back with its first answer.
    for _ in 0..100 {
        assert_eq!(scene.tick(&[3]), BTreeSet::from([2]));
    }
    scene.answering.insert(2);
    assert_eq!(scene.tick(&[3]), BTreeSet::new());
}

#[test]
fn a_peer_that_is_gone_for_long_is_asked_rarely_and_taken_back_all_the_same() {
    let mut scene = Scene::of(&[2, 3]);
    scene.tick(&[2, 3]);
    scene.answering.remove(&2);
    scene.excludes(2, &[2, 3]);
    // The leader has taken its instances out meanwhile.
    scene.looks.get_mut(&2).unwrap().in_use = false;
    let (mut questions, began) = (0, scene.now);
    while scene.now - began < Duration::from_secs(3600) {
        assert_eq!(scene.tick(&[3]), BTreeSet::from([2]));
        questions += scene.asked.len();
    }
    assert!(questions < 60 * 5 + 3600, "{questions}");
    scene.answering.insert(2);
    let back = scene.now;
    while !scene.tick(&[3]).is_empty() {
        assert!(scene.now - back <= RARELY + TICK, "still excluded");
    }
}

#[test]
fn peers_that_answer_or_are_sent_nothing_are_not_asked() {
    let mut scene = Scene::of(&[2, 3, 4]);
    scene.looks.get_mut(&4).unwrap().in_use = false;
    scene.tick(&[2]);
    let mut questions = 0;
    scene.answering.remove(&3);
    scene.answering.remove(&4);
    for _ in 0..250 {
        assert_eq!(scene.tick(&[2, 4]), BTreeSet::new());
        assert!(!scene.asked.contains(&3) && !scene.asked.contains(&4));
        questions += scene.asked.len();
    }
    let ticks = scene.now - scene.start;
    let confirmations = ticks.as_secs() / CONFIRMATION.as_secs() + 1;
    assert!(
        u64::try_from(questions).unwrap() <= confirmations,
        "{questions}"
    );
}

#[test]
fn a_machine_that_is_cut_off_excludes_nobody() {
    let mut scene = Scene::of(&[2, 3, 4]);
    scene.tick(&[2, 3, 4]);
    scene.answering.clear();
    for _ in 0..100 {
        assert_eq!(scene.tick(&[2, 3, 4]), BTreeSet::new());
    }
}

#[test]
fn a_machine_that_is_cut_off_later_takes_its_exclusions_back() {
    let mut scene = Scene::of(&[2, 3]);
    scene.tick(&[2, 3]);
    scene.answering.remove(&2);
    scene.excludes(2, &[2]);
    scene.answering.clear();
    let began = scene.now;
    while !scene.tick(&[2, 3]).is_empty() {
        let limit = WITNESS_OF_EXCLUDED + 2 * TICK;
        assert!(scene.now - began <= limit, "still excluded");
    }
}

#[test]
fn with_two_machines_the_other_is_excluded_only_if_it_is_gone_outside_the_overlay_too() {
    for (outside, is_excluded) in [(Some(true), false), (None, false), (Some(false), true)] {
        let mut scene = Scene::of(&[2]);
        scene.tick(&[2]);
        scene.answering.clear();
        scene.outside = outside;
        for _ in 0..20 {
            scene.tick(&[2]);
        }
        assert_eq!(scene.tick(&[2]).contains(&2), is_excluded, "{outside:?}");
        scene.answering.insert(2);
        scene.now += SHORTEST_HOLD;
        assert_eq!(scene.tick(&[2]), BTreeSet::new());
    }
}

#[test]
fn a_peer_that_answers_soon_stays_excluded_for_ten_seconds_and_longer_each_time() {
    let mut scene = Scene::of(&[2, 3]);
    let mut holds = Vec::new();
    for _ in 0..6 {
        scene.answering.remove(&2);
        scene.excludes(2, &[2, 3]);
        let excluded = scene.now;
        scene.answering.insert(2);
        // Nothing is sent to it, and the other one is asked only where that is needed.
        while scene.tick(&[]).contains(&2) {}
        holds.push((scene.now - excluded).as_secs());
    }
    assert_eq!(holds, [10, 20, 40, 80, 120, 120]);
    // One that was well for long begins anew.
    scene.now += FORGIVEN;
    scene.tick(&[]);
    scene.answering.remove(&2);
    scene.excludes(2, &[2, 3]);
    let excluded = scene.now;
    scene.answering.insert(2);
    while scene.tick(&[]).contains(&2) {}
    assert_eq!((scene.now - excluded).as_secs(), 10);
}

#[test]
fn a_peer_that_answers_is_held_only_while_this_machine_reaches_another() {
    let mut scene = Scene::of(&[2, 3]);
    scene.answering.remove(&2);
    scene.excludes(2, &[2, 3]);
    scene.answering = BTreeSet::from([2]);
    let began = scene.now;
    while !scene.tick(&[3]).is_empty() {
        assert!(scene.now - began <= WITNESS_OF_EXCLUDED + 2 * TICK);
    }
    // The other one is excluded now, and this one is what is left.
    assert_eq!(scene.excludes(3, &[3]).as_secs(), 0);
    assert_eq!(scene.tick(&[3]), BTreeSet::from([3]));
}

#[test]
fn an_exclusion_that_this_machines_own_isolation_interrupts_is_not_a_new_one() {
    let mut scene = Scene::of(&[2, 3]);
    scene.answering.remove(&2);
    scene.excludes(2, &[2, 3]);
    let began = scene.now;
    scene.answering.clear();
    while !scene.tick(&[2, 3]).is_empty() {}
    scene.answering.insert(3);
    scene.excludes(2, &[2, 3]);
    scene.answering.insert(2);
    while scene.tick(&[]).contains(&2) {}
    let took = scene.now - began;
    assert!(took <= SHORTEST_HOLD + 2 * TICK, "{took:?}");
}

#[test]
fn an_attempt_from_before_the_silence_does_not_count() {
    let mut scene = Scene::of(&[2]);
    scene.judge.tried_outside(OutsideProbe {
        began: scene.now,
        reached: false,
    });
    scene.tick(&[2]);
    scene.answering.clear();
    for _ in 0..20 {
        assert_eq!(scene.tick(&[2]), BTreeSet::new());
    }
}

/// A firewall that drops what a peer is sent: what the peer itself sends still arrives.
#[test]
fn a_peer_that_sends_and_hears_nothing_is_found_by_the_confirmation() {
    let mut scene = Scene::of(&[2, 3]);
    for _ in 0..30 {
        scene.tick(&[2, 3]);
    }
    scene.answering.remove(&2);
    let began = scene.now;
    loop {
        scene
            .looks
            .get_mut(&2)
            .unwrap()
            .traffic
            .as_mut()
            .unwrap()
            .received += 148;
        if scene.tick(&[2, 3]).contains(&2) {
            break;
        }
        let limit = CONFIRMATION + PATIENCE + 2 * TICK;
        assert!(scene.now - began <= limit, "not excluded");
    }
}

/// A `kat-net` of an earlier version answers no probes.
#[test]
fn a_peer_that_never_answered_and_sends_is_not_excluded() {
    let mut scene = Scene::of(&[2, 3]);
    for _ in 0..200 {
        scene.answering.remove(&2);
        scene
            .looks
            .get_mut(&2)
            .unwrap()
            .traffic
            .as_mut()
            .unwrap()
            .received += 148;
        assert_eq!(scene.tick(&[2, 3]), BTreeSet::new());
    }
}

/// The first look after a suspension comes before the answers that wait in the socket.
#[test]
fn a_machine_that_was_suspended_judges_nobody_by_its_sleep() {
    let mut scene = Scene::of(&[2, 3]);
    scene.tick(&[2, 3]);
    scene.answering.remove(&2);
    scene.tick(&[2, 3]);
    assert_eq!(scene.asked, [2]);
    scene.now += Duration::from_secs(3600);
    scene.answering.insert(2);
    assert_eq!(scene.tick(&[]), BTreeSet::new());
    assert_eq!(scene.tick(&[2, 3]), BTreeSet::new());
}

#[test]
fn a_peer_behind_a_relay_is_judged_by_its_answers_alone() {
    let mut scene = Scene::of(&[2, 3]);
    scene.looks.get_mut(&2).unwrap().traffic = None;
    for _ in 0..60 {
        assert_eq!(scene.tick(&[3]), BTreeSet::new());
    }
    scene.answering.remove(&2);
    let took = scene.excludes(2, &[3]);
    assert!(took <= CONFIRMATION + PATIENCE + 2 * TICK, "{took:?}");
}

#[test]
fn among_many_machines_one_witness_is_asked_while_it_answers() {
    let all: Vec<u8> = (2..102).collect();
    let mut scene = Scene::of(&all);
    scene.tick(&all);
    for peer in 2..50 {
        scene.answering.remove(&peer);
    }
    let took = scene.excludes(2, &[2]);
    assert!(took <= Duration::from_millis(2400), "{took:?}");
    let mut asked = 0;
    for _ in 0..10 {
        scene.tick(&[2]);
        asked += scene.asked.len();
    }
    assert_eq!(asked, 20, "the silent peer and one witness");
}

fn hearing(start: Instant) -> impl Strategy<Value = PeerHearing> {
    let moment = move |limit: u64| (0..limit).prop_map(move |ms| start + Duration::from_millis(ms));
    let unanswered = proptest::option::of((moment(8000), 0u32..8));
    let answered = proptest::option::of(moment(8000));
    (unanswered, answered).prop_map(|(unanswered, answered)| PeerHearing {
        unanswered,
        // An answer ends the silence, so no peer has one after it began.
        answered: answered.filter(|at| unanswered.is_none_or(|(since, _)| *at <= since)),
        ..PeerHearing::default()
    })
}

proptest! {
    #[test]
    fn only_silent_or_held_peers_are_excluded_and_only_by_a_machine_that_reaches_another(
        (start, peers) in Just(Instant::now()).prop_flat_map(|start| {
            let peers = proptest::collection::btree_map(0u8..6, hearing(start), 1..6);
            (Just(start), peers)
        }),
        before in proptest::collection::btree_map(0u8..6, 0u64..16000, 0..6),
        outside in proptest::option::of((0u64..8000, any::<bool>())),
    ) {
        let now = start + Duration::from_secs(8);
        let outside = outside.map(|(ms, reached)| OutsideProbe {
            began: start + Duration::from_millis(ms),
            reached,
        });
        let until = |ms: &u64| start + Duration::from_millis(*ms);
        let before: BTreeMap<u8, Instant> =
            before.iter().map(|(key, ms)| (*key, until(ms))).collect();
        let found = exclusions(&peers, &before, outside, now);
        for key in found.iter().filter(|key| before.get(key).is_none_or(|until| *until <= now)) {
            let (since, probes) = peers[key].unanswered.expect("asked in vain");
            prop_assert!(probes >= FEWEST_PROBES && now - since >= PATIENCE);
        }
        let reached = |limit| peers.iter().any(|(key, peer)| {
            !found.contains(key) && peer.answered.is_some_and(|at| now - at <= limit)
        });
        let vanished = peers.len() == 1 && outside.is_some_and(|probe| !probe.reached);
        prop_assert!(found.is_empty() || vanished || reached(WITNESS_OF_EXCLUDED));
        let is_old = found.iter().all(|key| before.contains_key(key));
        prop_assert!(is_old || vanished || reached(WITNESS));
        prop_assert!(!vanished || peers.len() == 1);
    }
}

use tokio::time::advance;

use super::*;

const KEY: PublicKey = PublicKey([1; 32]);
/// The start of WireGuard's clock, which advances with tokio's paused clock.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// One peer on tokio's paused clock.
struct World {
    tracker: EndpointTracker,
    endpoints: Vec<String>,
    status: PeerStatus,
    begin: Instant,
    /// By how much the wall clock was set forward.
    set: Duration,
}

impl World {
    fn new(endpoints: &[&str]) -> Self {
        Self {
            tracker: EndpointTracker::default(),
            endpoints: list(endpoints),
            status: PeerStatus::default(),
            begin: Instant::now(),
            set: Duration::ZERO,
        }
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + EPOCH + self.begin.elapsed() + self.set
    }

    fn choice(&mut self) -> EndpointChoice {
        let moment = ClockMoment {
            now: Instant::now(),
            wall: self.wall(),
        };
        let status = Some(&self.status);
        self.tracker.choose(KEY, &self.endpoints, status, moment)
    }

    fn choose(&mut self) -> Option<String> {
        self.choice().attempt.map(|attempt| attempt.endpoint)
    }

    /// Chooses an endpoint before the peer is on the link.
    fn add(&mut self) -> Option<String> {
        let moment = ClockMoment {
            now: Instant::now(),
            wall: self.wall(),
        };
        let choice = self.tracker.choose(KEY, &self.endpoints, None, moment);
        choice.attempt.map(|attempt| attempt.endpoint)
    }

    fn shakes_hands(&mut self) {
        self.status.last_handshake = Some(self.wall());
        self.status.received += 92;
        self.status.sent += 148;
    }

    /// Chooses once a second. Returns the attempted endpoints, each with its second.
    async fn watch(&mut self, seconds: u64, mut each: impl FnMut(&mut Self)) -> Vec<(u64, String)> {
        let mut tried = Vec::new();
        for _ in 0..seconds {
            advance(Duration::from_secs(1)).await;
            each(self);
            if let Some(endpoint) = self.choose() {
                tried.push((self.begin.elapsed().as_secs(), endpoint));
            }
        }
        tried
    }
}

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn asks(world: &mut World) {
    world.status.sent += 148;
}

fn named(tried: &[(u64, String)]) -> Vec<(u64, &str)> {
    tried
        .iter()
        .map(|(at, name)| (*at, name.as_str()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_tried_in_turn_and_ever_more_seldom_while_nothing_answers() {
    let mut world = World::new(&["a:1", "b:1"]);
    assert_eq!(world.add().as_deref(), Some("a:1"));
    assert_eq!(world.tracker.missing().collect::<Vec<_>>(), [KEY]);
    let tried = world.watch(600, asks).await;
    let expected = [
        (10, "b:1"),
        (30, "a:1"),
        (50, "b:1"),
        (90, "a:1"),
        (130, "b:1"),
        (210, "a:1"),
        (290, "b:1"),
        (370, "a:1"),
        (450, "b:1"),
        (530, "a:1"),
    ];
    assert_eq!(named(&tried), expected);
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    assert!(world.tracker.is_settled());
    assert_eq!(world.tracker.missing().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_tried_while_nothing_is_sent() {
    let mut world = World::new(&["a:1", "b:1"]);
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    assert!(world.watch(900, |_| {}).await.is_empty());
    // The session has ended long ago, so WireGuard starts a handshake with the last endpoint.
    asks(&mut world);
    assert_eq!(world.choose().as_deref(), Some("a:1"));
}

/// The search starts minutes before the session ends.
#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_answering_is_looked_for() {
    let mut world = World::new(&["192.0.2.1:1", "192.0.2.2:1"]);
    world.status.endpoint = "192.0.2.1:1".parse().ok();
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    let tried = world.watch(25, asks).await;
    // The first endpoint is skipped, because it just stopped answering.
    assert_eq!(named(&tried), [(21, "192.0.2.2:1")]);
    assert!(!world.tracker.is_settled());
    world.status.received += 32;
    assert_eq!(world.choose(), None);
    assert!(world.tracker.is_settled());
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_is_left_alone_wherever_it_is() {
    let mut world = World::new(&["a:1", "b:1"]);
    world.status.endpoint = "198.51.100.9:40000".parse().ok();
    let tried = world
        .watch(3600, |world| {
            asks(world);
            let second = world.begin.elapsed().as_secs();
            // The peer sends as rarely as WireGuard's passive keepalives.
            if second % 11 == 0 {
                world.status.received += 32;
            }
            if second % 120 == 1 {
                world.shakes_hands();
            }
            if second == 1800 {
                world.endpoints = list(&["c:1"]);
            }
        })
        .await;
    assert!(tried.is_empty(), "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_ends_no_session() {
    let mut world = World::new(&["a:1", "b:1"]);
    assert_eq!(world.add().as_deref(), Some("a:1"));
    world.shakes_hands();
    let tried = world
        .watch(170, |world| {
            let second = world.begin.elapsed().as_secs();
            asks(world);
            if second % 11 == 0 {
                world.status.received += 32;
            }
            if second == 60 {
                world.set = Duration::from_secs(3600);
            }
        })
        .await;
    assert!(tried.is_empty(), "{tried:?}");
}

/// Keepalives through NAT get no answer. After the end of the session, WireGuard starts a
/// handshake.
#[tokio::test(start_paused = true)]
async fn keepalives_do_not_count_as_unanswered_packets() {
    let mut world = World::new(&["a:1", "b:1"]);
    world.status.keepalive = 25;
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    let tried = world
        .watch(3600, |world| match world.begin.elapsed().as_secs() % 200 {
            0 => world.shakes_hands(),
            second if second % 25 == 0 => world.status.sent += 32,
            _ => {}
        })
        .await;
    assert!(tried.is_empty(), "{tried:?}");
    let tried = world
        .watch(245, |world| match world.begin.elapsed().as_secs() - 3600 {
            second if second >= 200 && second % 5 == 0 => asks(world),
            second if second % 25 == 0 => world.status.sent += 32,
            _ => {}
        })
        .await;
    let tried: Vec<_> = named(&tried).iter().map(|(at, _)| at - 3600).collect();
    assert_eq!(tried, [200, 210, 230]);
}

/// A machine behind NAT sends keepalives, and other traffic or a new handshake gets no answer. The
/// silence is noticed long before the old session ends.
#[tokio::test(start_paused = true)]
async fn a_peer_to_which_a_way_is_kept_open_is_looked_for_as_soon_as_any() {
    for (first, at) in [(5, 25), (120, 140)] {
        let mut world = World::new(&["192.0.2.1:1", "192.0.2.2:1"]);
        world.status.endpoint = "192.0.2.1:1".parse().ok();
        world.status.keepalive = 25;
        world.shakes_hands();
        assert_eq!(world.choose(), None);
        let tried = world
            .watch(at, |world| {
                let second = world.begin.elapsed().as_secs();
                if second % 25 == 0 {
                    world.status.sent += 32;
                }
                if second >= first && second % 5 == 0 {
                    asks(world);
                }
            })
            .await;
        assert_eq!(named(&tried), [(at, "192.0.2.2:1")]);
    }
}

/// A peer that received data answers with one or two keepalives, which get no answer.
#[tokio::test(start_paused = true)]
async fn an_answer_is_no_question() {
    let mut world = World::new(&["a:1", "b:1"]);
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    let tried = world
        .watch(170, |world| match world.begin.elapsed().as_secs() {
            3 => world.status.received += 128,
            13 | 23 => world.status.sent += 32,
            _ => {}
        })
        .await;
    assert!(tried.is_empty(), "{tried:?}");
    assert!(world.tracker.is_settled());
}

/// The user-space WireGuard computes the time of the last handshake anew for each read.
#[tokio::test(start_paused = true)]
async fn the_same_handshake_told_a_little_differently_is_no_sign_of_life() {
    let mut world = World::new(&["192.0.2.1:1", "192.0.2.2:1"]);
    world.status.endpoint = "192.0.2.1:1".parse().ok();
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    let mut aside = Duration::from_nanos(700);
    let tried = world
        .watch(25, |world| {
            let told = world.status.last_handshake.unwrap();
            world.status.last_handshake = Some(told + aside);
            aside += Duration::from_nanos(300);
            asks(world);
        })
        .await;
    assert_eq!(named(&tried), [(21, "192.0.2.2:1")]);
}

/// A peer's answer to a question counts in every WireGuard implementation, while a keepalive does
/// not.
#[tokio::test(start_paused = true)]
async fn a_silent_or_moved_peer_is_pinged_before_an_endpoint_is_tried() {
    let mut world = World::new(&["a:1"]);
    world.shakes_hands();
    assert_eq!(world.choice(), EndpointChoice::default());
    asks(&mut world);
    let asked = EndpointChoice {
        attempt: None,
        ask: true,
    };
    assert_eq!(world.choice(), asked);
    world.status.received += 57;
    assert_eq!(world.choice(), EndpointChoice::default());
    world.endpoints = list(&["b:1"]);
    assert_eq!(world.choice(), asked);
    assert_eq!(world.choice(), EndpointChoice::default());
}

/// The user-space WireGuard stops its keepalives after a while, and a machine behind NAT must send
/// first.
#[tokio::test(start_paused = true)]
async fn with_keepalives_every_attempt_sends_a_packet() {
    for keepalive in [0, 25] {
        let mut world = World::new(&["a:1", "b:1"]);
        assert_eq!(world.add().as_deref(), Some("a:1"));
        world.status.keepalive = keepalive;
        let mut asked = Vec::new();
        for _ in 0..600 {
            advance(Duration::from_secs(1)).await;
            if keepalive == 0 {
                asks(&mut world);
            }
            let choice = world.choice();
            asked.extend(choice.attempt.map(|_| choice.ask));
        }
        assert_eq!(asked.len(), 10);
        assert_eq!(
            asked.iter().filter(|asked| **asked).count(),
            if keepalive == 0 { 1 } else { 10 }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_list_is_tried_at_once_where_nothing_answers() {
    let mut world = World::new(&["a:1", "b:1"]);
    assert_eq!(world.add().as_deref(), Some("a:1"));
    asks(&mut world);
    advance(Duration::from_secs(2)).await;
    assert_eq!(world.choose(), None);
    world.endpoints = list(&["c:1", "a:1"]);
    assert_eq!(world.choose().as_deref(), Some("c:1"));
    assert_eq!(world.choose(), None);
    asks(&mut world);
    advance(Duration::from_secs(10)).await;
    assert_eq!(world.choose().as_deref(), Some("a:1"));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_nobody_knows_costs_no_time() {
    let mut world = World::new(&["gone.example:1", "b:1"]);
    assert_eq!(world.add().as_deref(), Some("gone.example:1"));
    world.tracker.not_resolved(&KEY);
    // Nothing can be sent without an endpoint, so the waiting time has not started.
    assert_eq!(world.choose().as_deref(), Some("b:1"));
    assert_eq!(world.choose(), None);
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_endpoints_waits_to_be_called() {
    let mut world = World::new(&[]);
    assert_eq!(world.add(), None);
    assert!(world.watch(300, asks).await.is_empty());
}

#[tokio::test]
async fn addresses_need_no_resolver() {
    let attempt = |text: &str| EndpointAttempt {
        endpoint: text.into(),
        round: 3,
    };
    let six = resolve(&attempt("[2001:db8::1]:51820")).await;
    assert_eq!(six, "[2001:db8::1]:51820".parse().ok());
    assert_eq!(resolve(&attempt("no port")).await, None);
}

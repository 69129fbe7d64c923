use tokio::time::advance;

use super::*;

const KEY: PublicKey = PublicKey([1; 32]);
/// A time of WireGuard's clock; tokio's is paused, and this one goes with it.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// One peer on tokio's paused clock.
struct World {
    tracker: Tracker,
    endpoints: Vec<String>,
    status: PeerStatus,
    begin: Instant,
}

impl World {
    fn new(endpoints: &[&str]) -> Self {
        Self {
            tracker: Tracker::default(),
            endpoints: list(endpoints),
            status: PeerStatus::default(),
            begin: Instant::now(),
        }
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + EPOCH + self.begin.elapsed()
    }

    fn choose(&mut self) -> Option<String> {
        let moment = Moment {
            now: Instant::now(),
            wall: self.wall(),
        };
        let status = Some(&self.status);
        let attempt = self.tracker.choose(KEY, &self.endpoints, status, moment);
        attempt.map(|attempt| attempt.endpoint)
    }

    /// A look before the peer is on the link.
    fn add(&mut self) -> Option<String> {
        let moment = Moment {
            now: Instant::now(),
            wall: self.wall(),
        };
        let attempt = self.tracker.choose(KEY, &self.endpoints, None, moment);
        attempt.map(|attempt| attempt.endpoint)
    }

    fn shakes_hands(&mut self) {
        self.status.last_handshake = Some(self.wall());
        self.status.received += 92;
        self.status.sent += 148;
    }

    /// Looks every second; the endpoints that are tried, each with its second.
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
    // Its session is long over: what is sent now makes WireGuard ask where it was last.
    asks(&mut world);
    assert_eq!(world.choose().as_deref(), Some("a:1"));
}

/// Minutes before its session ends.
#[tokio::test(start_paused = true)]
async fn a_peer_that_stops_answering_is_looked_for() {
    let mut world = World::new(&["192.0.2.1:1", "192.0.2.2:1"]);
    world.status.endpoint = "192.0.2.1:1".parse().ok();
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    let tried = world.watch(25, asks).await;
    // Not where it was lost.
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
            // As seldom as WireGuard's own answers where there is nothing to say.
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

/// What keeps a way through NAT open is not answered.
#[tokio::test(start_paused = true)]
async fn keepalives_are_no_questions() {
    let mut world = World::new(&["a:1"]);
    world.status.keepalive = 25;
    world.shakes_hands();
    assert_eq!(world.choose(), None);
    let tried = world
        .watch(400, |world| {
            if world.begin.elapsed().as_secs() % 25 == 0 {
                world.status.sent += 32;
            }
        })
        .await;
    assert_eq!(tried.first().map(|(at, _)| *at), Some(189), "{tried:?}");
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
    // Nothing can be sent without an endpoint, and so nothing is counted.
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
    let attempt = |text: &str| Attempt {
        endpoint: text.into(),
        round: 3,
    };
    let six = resolve(&attempt("[2001:db8::1]:51820")).await;
    assert_eq!(six, "[2001:db8::1]:51820".parse().ok());
    assert_eq!(resolve(&attempt("no port")).await, None);
}

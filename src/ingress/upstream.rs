//! Instances behind a route: which one gets a request.
//!
//! Of the instances that serve, those on this machine come first. Of two that are picked at random,
//! the one with fewer requests under way gets the request. An instance that fails pauses, for longer
//! each time; if all pause, the pauses do not count.

pub(crate) mod body;
pub(crate) mod pool;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use aws_lc_rs::hmac;
use parking_lot::Mutex;
use rand::Rng;
use tokio::time::Instant;

use kat_types::{
    backoff::{Backoff, Pauses},
    services::BackendState,
};

/// Key of the values of cookies.
pub(crate) type StickyKey = [u8; 32];

/// The value of the cookie that names an instance. It tells nothing to those without the key, who
/// otherwise could try all addresses of a cluster.
pub(crate) fn sticky_cookie(key: &StickyKey, name: &str, address: SocketAddr) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let tag = hmac::sign(&key, format!("{name}\0{address}").as_bytes());
    let tag = tag.as_ref().first_chunk::<16>().copied();
    hex::encode(tag.unwrap_or_default())
}

/// Pauses of an instance that fails.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));

/// What is known of an instance beside the files; it survives their changes.
#[derive(Debug)]
pub struct InstanceState {
    active: AtomicUsize,
    /// Whether the last request failed, so that successes need no lock.
    fails: AtomicBool,
    pause: Mutex<InstancePause>,
}

#[derive(Debug)]
struct InstancePause {
    pauses: Pauses,
    until: Option<Instant>,
}

impl Default for InstanceState {
    fn default() -> Self {
        Self {
            active: AtomicUsize::new(0),
            fails: AtomicBool::new(false),
            pause: Mutex::new(InstancePause {
                pauses: PAUSES.pauses(),
                until: None,
            }),
        }
    }
}

impl InstanceState {
    /// Counts a request until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> ActiveRequest {
        self.active.fetch_add(1, Relaxed);
        ActiveRequest(Arc::clone(self))
    }

    fn pauses(&self) -> bool {
        if !self.fails.load(Relaxed) {
            return false;
        }
        let pause = self.pause.lock();
        pause.until.is_some_and(|until| Instant::now() < until)
    }

    /// No connection, or no answer.
    pub(crate) fn failed(&self) {
        let mut pause = self.pause.lock();
        // Requests that were under way together count once.
        if pause.until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        pause.until = Some(Instant::now() + pause.pauses.next_pause());
        self.fails.store(true, Relaxed);
    }

    /// The head of an answer came.
    pub(crate) fn succeeded(&self) {
        if self.fails.swap(false, Relaxed) {
            let mut pause = self.pause.lock();
            pause.pauses.reset();
            pause.until = None;
        }
    }
}

/// A request under way to an instance.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Arc<InstanceState>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

/// States of instances by their addresses.
#[derive(Debug, Default)]
pub(crate) struct InstanceRegistry {
    states: BTreeMap<SocketAddr, Arc<InstanceState>>,
}

impl InstanceRegistry {
    /// The state for an address, new if there is none.
    pub(crate) fn get(&mut self, address: SocketAddr) -> Arc<InstanceState> {
        Arc::clone(self.states.entry(address).or_default())
    }

    /// Forgets the states of all instances but these.
    pub(crate) fn forget_others<'a>(&mut self, upstreams: impl Iterator<Item = &'a Upstream>) {
        let kept = upstreams.flat_map(|upstream| &upstream.instances);
        let kept: BTreeSet<SocketAddr> = kept.map(|instance| instance.address).collect();
        self.states.retain(|address, _| kept.contains(address));
    }
}

/// An instance as the files describe it now.
#[derive(Debug, Clone)]
pub struct Instance {
    pub name: String,
    pub address: SocketAddr,
    /// Whether it runs on this machine.
    pub is_local: bool,
    /// Whether its machine does not answer.
    pub is_silent: bool,
    pub state: BackendState,
    pub live: Arc<InstanceState>,
    /// Value of the cookie that names it.
    pub cookie: String,
}

impl Instance {
    fn serves(&self) -> bool {
        self.state == BackendState::Serving
    }
}

/// Why no instance gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoInstance {
    /// The service has no instances.
    NoneExists,
    /// None of its instances serves.
    NoneServes,
}

/// The instances behind a route.
#[derive(Debug, Clone, Default)]
pub struct Upstream {
    instances: Vec<Instance>,
}

impl Upstream {
    pub fn new(instances: Vec<Instance>) -> Self {
        Self { instances }
    }

    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Picks an instance. `cookie` names the one that a client had, which is picked if it serves
    /// and does not pause; `tried` had the request already.
    ///
    /// # Errors
    /// None serves, beside the one that was tried.
    pub fn pick(
        &self,
        cookie: Option<&str>,
        tried: Option<SocketAddr>,
    ) -> Result<&Instance, NoInstance> {
        let others = || {
            let instances = self.instances.iter();
            instances.filter(|instance| Some(instance.address) != tried)
        };
        let ready = |instance: &&Instance| {
            instance.serves() && !instance.is_silent && !instance.live.pauses()
        };
        if let Some(cookie) = cookie
            && let Some(instance) = others().filter(ready).find(|one| one.cookie == cookie)
        {
            return Ok(instance);
        }
        let local = |instance: &&Instance| ready(instance) && instance.is_local;
        let answering = |instance: &&Instance| instance.serves() && !instance.is_silent;
        let serving = |instance: &&Instance| instance.serves();
        // The leader's view may be the old one.
        let away = |instance: &&Instance| instance.state == BackendState::Away;
        let tiers: [&dyn Fn(&&Instance) -> bool; 5] = [&local, &ready, &answering, &serving, &away];
        for tier in tiers {
            let candidates: Vec<&Instance> = others().filter(tier).collect();
            if let Some(instance) = less_busy_of_two(&candidates) {
                return Ok(instance);
            }
        }
        Err(match self.instances.is_empty() {
            true => NoInstance::NoneExists,
            false => NoInstance::NoneServes,
        })
    }
}

fn less_busy_of_two<'a>(candidates: &[&'a Instance]) -> Option<&'a Instance> {
    let count = candidates.len();
    if count < 2 {
        return candidates.first().copied();
    }
    let mut random = rand::rng();
    let first = random.random_range(0..count);
    let second = (first + random.random_range(1..count)) % count;
    let pair = [candidates.get(first)?, candidates.get(second)?];
    let busy = |instance: &&&Instance| instance.live.active.load(Relaxed);
    pair.into_iter().min_by_key(busy).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(number: u8, is_local: bool, state: BackendState) -> Instance {
        Instance {
            name: format!("web-{number}"),
            address: SocketAddr::from(([10, 0, 0, number], 80)),
            is_local,
            is_silent: false,
            state,
            live: Arc::default(),
            cookie: format!("cookie-{number}"),
        }
    }

    fn picks(upstream: &Upstream) -> BTreeSet<String> {
        let picked = (0..100).map(|_| upstream.pick(None, None).unwrap().name.clone());
        picked.collect()
    }

    fn names(expected: &[&str]) -> BTreeSet<String> {
        expected.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn instances_of_this_machine_come_first_while_they_serve() {
        use BackendState::{Held, Leaving, Serving};
        let mut upstream = Upstream::new(vec![
            instance(1, true, Serving),
            instance(2, false, Serving),
            instance(3, true, Leaving),
            instance(4, false, Held),
            instance(5, false, Serving),
        ]);
        assert_eq!(picks(&upstream), names(&["web-1"]));
        upstream.instances[0].live.failed();
        assert_eq!(picks(&upstream), names(&["web-2", "web-5"]));
        upstream.instances[1].is_silent = true;
        assert_eq!(picks(&upstream), names(&["web-5"]));
        // A pause ends.
        tokio::time::advance(Duration::from_millis(1001)).await;
        assert_eq!(picks(&upstream), names(&["web-1"]));
        upstream.instances[0].state = Leaving;
        upstream.instances[4].state = Leaving;
        assert_eq!(
            picks(&upstream),
            names(&["web-2"]),
            "silent, but the last one"
        );
        upstream.instances[1].state = Held;
        assert_eq!(
            upstream.pick(None, None).unwrap_err(),
            NoInstance::NoneServes
        );
        upstream.instances[3].state = BackendState::Away;
        assert_eq!(picks(&upstream), names(&["web-4"]));
        let empty = Upstream::default();
        assert_eq!(empty.pick(None, None).unwrap_err(), NoInstance::NoneExists);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_a_success_ends_them() {
        let state = Arc::new(InstanceState::default());
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            state.failed();
            // Those under way at the same time count once.
            state.failed();
            tokio::time::advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
            assert!(state.pauses(), "{seconds}");
            tokio::time::advance(Duration::from_millis(2)).await;
            assert!(!state.pauses(), "{seconds}");
        }
        state.failed();
        state.succeeded();
        assert!(!state.pauses());
        state.failed();
        tokio::time::advance(Duration::from_millis(1001)).await;
        assert!(!state.pauses());
    }

    #[test]
    fn of_two_the_less_busy_one_gets_the_request() {
        let upstream = Upstream::new(vec![
            instance(1, false, BackendState::Serving),
            instance(2, false, BackendState::Serving),
        ]);
        let held = upstream.instances[0].live.begin();
        assert_eq!(picks(&upstream), names(&["web-2"]));
        drop(held);
        assert_eq!(picks(&upstream), names(&["web-1", "web-2"]));
        let tried = upstream.instances[0].address;
        assert_eq!(upstream.pick(None, Some(tried)).unwrap().name, "web-2");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_keeps_its_instance_while_it_serves() {
        let mut upstream = Upstream::new(vec![
            instance(1, true, BackendState::Serving),
            instance(2, false, BackendState::Serving),
        ]);
        let cookie = upstream.instances[1].cookie.clone();
        let pick = |upstream: &Upstream| upstream.pick(Some(&cookie), None).unwrap().name.clone();
        assert_eq!(pick(&upstream), "web-2");
        upstream.instances[1].live.failed();
        assert_eq!(pick(&upstream), "web-1");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(pick(&upstream), "web-2");
        upstream.instances[1].state = BackendState::Leaving;
        assert_eq!(pick(&upstream), "web-1");
    }

    #[test]
    fn a_cookie_needs_its_key() {
        let address = "10.1.2.3:80".parse().unwrap();
        let cookie = sticky_cookie(&[1; 32], "web-1", address);
        assert_eq!(cookie.len(), 32);
        assert_eq!(cookie, sticky_cookie(&[1; 32], "web-1", address));
        assert_ne!(cookie, sticky_cookie(&[2; 32], "web-1", address));
        assert_ne!(cookie, sticky_cookie(&[1; 32], "web-2", address));
        let other = "10.1.2.4:80".parse().unwrap();
        assert_ne!(cookie, sticky_cookie(&[1; 32], "web-1", other));
    }
}

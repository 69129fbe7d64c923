//! Users with passwords, for `basicAuth`.
//!
//! bcrypt takes some hundred milliseconds on purpose. So it runs beside the runtime, few at once,
//! and a password that was right is remembered for some time by a keyed hash. Of one route one
//! password is checked at a time, and of one client few in some seconds, so that guessing on one
//! route takes the turns of no other.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::Instant,
};

use crate::limits::client_block;

/// Highest cost of a hash: about half a second.
const HIGHEST_COST: u32 = 12;
/// Time for which a right password is remembered.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Most remembered passwords.
const MOST_REMEMBERED: usize = 4096;
/// Checks at once, of all routes and of one.
const SLOTS: usize = 2;
const SLOTS_OF_ROUTE: usize = 1;
/// Checks of one client on one route: so many at once, and one more after each of these times.
const CHECKS: NonZeroU32 = NonZeroU32::MIN.saturating_add(4);
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Longest value of the header.
const LONGEST_HEADER: usize = 1024;

/// Users and hashes of one route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasswordList {
    users: BTreeMap<String, String>,
}

impl PasswordList {
    /// Reads lines of htpasswd(1). Also returns the numbers of the lines that can't be used, from 1.
    pub fn parse(lines: &[String]) -> (Self, Vec<usize>) {
        let mut users = BTreeMap::new();
        let mut refused = Vec::new();
        for (position, line) in lines.iter().enumerate() {
            match user(line.trim()) {
                Some((name, hash)) => {
                    users.entry(name).or_insert(hash);
                }
                None => refused.push(position + 1),
            }
        }
        (Self { users }, refused)
    }
}

fn user(line: &str) -> Option<(String, String)> {
    let (name, hash) = line.split_once(':')?;
    let parts: Vec<&str> = hash.split('$').collect();
    let ["", "2a" | "2b" | "2y", cost, rest] = parts.as_slice() else {
        return None;
    };
    let cost: u32 = cost.parse().ok()?;
    let is_valid = !name.is_empty() && (4..=HIGHEST_COST).contains(&cost) && rest.len() == 53;
    is_valid.then(|| (name.to_owned(), hash.to_owned()))
}

/// Outcome of a sign-in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SignIn {
    /// The user's name.
    Allowed(String),
    /// No password, or a wrong one.
    Refused,
    /// Too many are being checked.
    Busy,
}

/// Keyed hash of a name, a password and the hash that it is compared with.
type CheckKey = [u8; 32];

/// Checks passwords.
pub(crate) struct PasswordChecker {
    slots: Arc<Semaphore>,
    /// By name of the route.
    slots_of_routes: Mutex<BTreeMap<String, Arc<Semaphore>>>,
    /// By client and name of the route.
    checks: DefaultKeyedRateLimiter<(IpAddr, String)>,
    /// Key of the remembered hashes, new at each start.
    key: [u8; 32],
    remembered: Mutex<BTreeMap<CheckKey, Instant>>,
    /// Checks under way: requests with the same password wait for one result.
    under_way: Mutex<BTreeMap<CheckKey, CheckUnderWay>>,
}

impl Default for PasswordChecker {
    fn default() -> Self {
        let quota = Quota::with_period(CHECK_INTERVAL);
        let quota = quota.unwrap_or(Quota::per_second(NonZeroU32::MIN));
        Self {
            slots: Arc::new(Semaphore::new(SLOTS)),
            slots_of_routes: Mutex::default(),
            checks: RateLimiter::keyed(quota.allow_burst(CHECKS)),
            key: rand::random(),
            remembered: Mutex::default(),
            under_way: Mutex::default(),
        }
    }
}

/// A check that requests wait for.
#[derive(Default)]
struct CheckUnderWay {
    waiting: usize,
    result: Arc<OnceCell<bool>>,
}

/// One who waits for a check, which is forgotten when nobody does any more.
struct SharedCheck<'a> {
    checker: &'a PasswordChecker,
    key: CheckKey,
    result: Arc<OnceCell<bool>>,
}

impl<'a> SharedCheck<'a> {
    fn join(checker: &'a PasswordChecker, key: CheckKey) -> Self {
        let mut under_way = checker.under_way.lock();
        let check = under_way.entry(key).or_default();
        check.waiting += 1;
        Self {
            checker,
            key,
            result: Arc::clone(&check.result),
        }
    }
}

impl Drop for SharedCheck<'_> {
    fn drop(&mut self) {
        let mut under_way = self.checker.under_way.lock();
        if let Some(check) = under_way.get_mut(&self.key) {
            check.waiting = check.waiting.saturating_sub(1);
            if check.waiting == 0 {
                under_way.remove(&self.key);
            }
        }
    }
}

/// The client has asked too often, or its turn did not come.
struct Busy;

impl PasswordChecker {
    /// Checks the value of `Authorization:` that a client has sent to a route. Waits at most
    /// `patience`.
    pub(crate) async fn check(
        &self,
        list: &PasswordList,
        header: Option<&str>,
        (client, route): (IpAddr, &str),
        patience: Duration,
    ) -> SignIn {
        let Some((name, password)) = header.and_then(credentials) else {
            return SignIn::Refused;
        };
        let known = list.users.get(&name);
        // Another user's hash is compared for an unknown user, so that the answer takes as long.
        let Some(hash) = known.or_else(|| list.users.values().next()).cloned() else {
            return SignIn::Refused;
        };
        let key = self.keyed(&name, &password, &hash);
        if known.is_some() && self.remembers(&key) {
            return SignIn::Allowed(name);
        }
        let shared = SharedCheck::join(self, key);
        let check = || self.compare((client, route), password, hash);
        let checking = shared.result.get_or_try_init(check);
        match tokio::time::timeout(patience, checking).await {
            Ok(Ok(true)) if known.is_some() => {
                self.remember(key);
                SignIn::Allowed(name)
            }
            Ok(Ok(_)) => SignIn::Refused,
            Ok(Err(Busy)) | Err(_) => SignIn::Busy,
        }
    }

    async fn compare(
        &self,
        (client, route): (IpAddr, &str),
        password: String,
        hash: String,
    ) -> Result<bool, Busy> {
        let asker = (client_block(client), route.to_owned());
        self.checks.check_key(&asker).map_err(|_| Busy)?;
        let of_route = self.slots_of_route(route).acquire_owned();
        let of_route = of_route.await.map_err(|_| Busy)?;
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = slot.await.map_err(|_| Busy)?;
        let checked = tokio::task::spawn_blocking(move || {
            let _slots = (of_route, slot);
            bcrypt::verify(password.as_bytes(), &hash).unwrap_or(false)
        });
        Ok(checked.await.unwrap_or(false))
    }

    fn slots_of_route(&self, route: &str) -> Arc<Semaphore> {
        let mut slots = self.slots_of_routes.lock();
        let slots = slots.entry(route.to_owned());
        Arc::clone(slots.or_insert_with(|| Arc::new(Semaphore::new(SLOTS_OF_ROUTE))))
    }

    /// Forgets clients that have been quiet, and routes without a check.
    pub(crate) fn forget_quiet(&self) {
        self.checks.retain_recent();
        self.checks.shrink_to_fit();
        let mut slots = self.slots_of_routes.lock();
        // A permit holds the semaphore, too.
        slots.retain(|_, slots| Arc::strong_count(slots) > 1);
    }

    fn keyed(&self, name: &str, password: &str, hash: &str) -> CheckKey {
        let mut digest = Sha256::new();
        digest.update(self.key);
        for part in [name, password, hash] {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }

    fn remembers(&self, key: &CheckKey) -> bool {
        let remembered = self.remembered.lock();
        remembered
            .get(key)
            .is_some_and(|at| at.elapsed() < REMEMBERED)
    }

    fn remember(&self, key: CheckKey) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= MOST_REMEMBERED {
            remembered.retain(|_, at| at.elapsed() < REMEMBERED);
        }
        if remembered.len() < MOST_REMEMBERED {
            remembered.insert(key, Instant::now());
        }
    }
}

/// Name and password of `Basic BASE64` (RFC 7617).
fn credentials(header: &str) -> Option<(String, String)> {
    if header.len() > LONGEST_HEADER {
        return None;
    }
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = BASE64_STANDARD.decode(encoded.trim()).ok()?;
    let decoded = String::from_utf8(decoded).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, password: &str) -> String {
        format!(
            "Basic {}",
            BASE64_STANDARD.encode(format!("{name}:{password}"))
        )
    }

    const ASKER: (IpAddr, &str) = (IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), "a");

    #[tokio::test]
    async fn the_right_password_signs_in_and_nothing_else_does() {
        let hash = bcrypt::hash("right", 4).unwrap();
        let (list, refused) = PasswordList::parse(&[format!("ann:{hash}")]);
        assert_eq!(refused, Vec::<usize>::new());
        let checker = PasswordChecker::default();
        let patience = Duration::from_secs(10);
        let sign_in =
            async |header: &str| checker.check(&list, Some(header), ASKER, patience).await;
        let allowed = SignIn::Allowed("ann".to_owned());
        assert_eq!(sign_in(&header("ann", "right")).await, allowed);
        // Remembered.
        assert_eq!(sign_in(&header("ann", "right")).await, allowed);
        assert_eq!(sign_in(&header("ann", "wrong")).await, SignIn::Refused);
        assert_eq!(sign_in(&header("bob", "right")).await, SignIn::Refused);
        assert_eq!(sign_in("Bearer x").await, SignIn::Refused);
        assert_eq!(sign_in("Basic ###").await, SignIn::Refused);
        let nothing = checker.check(&list, None, ASKER, patience).await;
        assert_eq!(nothing, SignIn::Refused);
        let (nobody, _) = PasswordList::parse(&[]);
        let right = header("ann", "right");
        let refused = checker.check(&nobody, Some(&right), ASKER, patience).await;
        assert_eq!(refused, SignIn::Refused);
        // The same password under another hash is checked anew.
        let other = bcrypt::hash("other", 4).unwrap();
        let (changed, _) = PasswordList::parse(&[format!("ann:{other}")]);
        let refused = checker.check(&changed, Some(&right), ASKER, patience).await;
        assert_eq!(refused, SignIn::Refused);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_in_does_not_wait_for_ever_for_its_turn() {
        let hash = bcrypt::hash("right", 4).unwrap();
        let (list, _) = PasswordList::parse(&[format!("ann:{hash}")]);
        let checker = PasswordChecker {
            slots: Arc::new(Semaphore::new(0)),
            ..PasswordChecker::default()
        };
        let right = header("ann", "right");
        let busy = checker
            .check(&list, Some(&right), ASKER, Duration::from_secs(5))
            .await;
        assert_eq!(busy, SignIn::Busy);
    }

    #[tokio::test]
    async fn who_guesses_on_one_route_is_held_up_there_and_nobody_else_is() {
        let hash = bcrypt::hash("right", 4).unwrap();
        let (list, _) = PasswordList::parse(&[format!("ann:{hash}")]);
        let checker = PasswordChecker::default();
        let patience = Duration::from_secs(60);
        let sign_in = async |password: &str, asker: (IpAddr, &str)| {
            let header = header("ann", password);
            checker.check(&list, Some(&header), asker, patience).await
        };
        let mut answers = Vec::new();
        for number in 0..20 {
            answers.push(sign_in(&format!("guess {number}"), ASKER).await);
        }
        let count = |wanted: SignIn| answers.iter().filter(|answer| **answer == wanted).count();
        assert!(count(SignIn::Refused) >= 5, "{answers:?}");
        assert!(count(SignIn::Busy) >= 5, "{answers:?}");
        let allowed = SignIn::Allowed("ann".to_owned());
        // Another route, and another client.
        assert_eq!(sign_in("right", (ASKER.0, "b")).await, allowed);
        let other: IpAddr = "192.0.2.7".parse().unwrap();
        // Remembered, so that it needs no turn.
        assert_eq!(sign_in("right", (other, "a")).await, allowed);
        checker.forget_quiet();
        assert_eq!(checker.slots_of_routes.lock().len(), 0);
    }

    #[tokio::test]
    async fn many_requests_with_one_password_need_one_check() {
        let hash = bcrypt::hash("right", 4).unwrap();
        let (list, _) = PasswordList::parse(&[format!("ann:{hash}")]);
        let checker = PasswordChecker::default();
        let right = header("ann", "right");
        let patience = Duration::from_secs(60);
        let checks = (0..30).map(|_| checker.check(&list, Some(&right), ASKER, patience));
        let answers = futures_util::future::join_all(checks).await;
        let allowed = SignIn::Allowed("ann".to_owned());
        assert!(
            answers.iter().all(|answer| *answer == allowed),
            "{answers:?}"
        );
        assert_eq!(checker.under_way.lock().len(), 0);
    }

    #[tokio::test]
    async fn one_route_leaves_a_turn_to_the_others() {
        let hash = bcrypt::hash("right", 4).unwrap();
        let (list, _) = PasswordList::parse(&[format!("ann:{hash}")]);
        let checker = PasswordChecker::default();
        // All turns of route `a` are taken.
        let slots = checker.slots_of_route("a");
        let _taken = slots.acquire().await.unwrap();
        let right = header("ann", "right");
        let check = async |route: &str, patience: Duration| {
            let asker = (ASKER.0, route);
            checker.check(&list, Some(&right), asker, patience).await
        };
        let busy = check("a", Duration::from_millis(50)).await;
        assert_eq!(busy, SignIn::Busy);
        let allowed = check("b", Duration::from_secs(60)).await;
        assert_eq!(allowed, SignIn::Allowed("ann".to_owned()));
    }

    #[test]
    fn lines_that_are_no_bcrypt_or_too_slow_are_named() {
        let long = "x".repeat(53);
        let lines = [
            format!("ann:$2y$05${long}"),
            "bob:$apr1$salt$hash".to_owned(),
            format!("eve:$2y$31${long}"),
            "plain:secret".to_owned(),
            String::new(),
            format!(":$2y$05${long}"),
            format!("cut:$2y$05${}", "x".repeat(20)),
        ];
        let (list, refused) = PasswordList::parse(&lines);
        assert_eq!(refused, [2, 3, 4, 5, 6, 7]);
        assert_eq!(list.users.len(), 1);
    }
}

//! Certificates by ACME: the orders' state machine with a server of the test, which refuses, delays and
//! forgets, and leaders that are lost between any two steps.

mod allowance;
mod dns;

use std::net::{IpAddr, Ipv4Addr};

use jiff::SignedDuration;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
};

use super::*;
use super::{
    routes::{given, issue, route},
    secrets::{machines, set_in},
};
use kat_types::{
    api::{IngressReport, IngressState},
    reason::Reason,
    resource::{AcmeAccount as EabSetting, AcmeSettings, ClusterConfiguration},
    store::acme::{AcmeOrderState, DnsPlace, LETS_ENCRYPT, LETS_ENCRYPT_STAGING, account_id},
};

const HOST: &str = "shop.example.org";
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// A server of ACME, and the network between it and the cluster.
struct Server {
    authority: Issuer<'static, KeyPair>,
    /// Keys of accounts, by the number of the account.
    accounts: Vec<Vec<u8>>,
    orders: Vec<Order>,
    /// Answers to the next questions of this word, instead of those of the server.
    next: Vec<(&'static str, AcmeReply)>,
    /// What the host's addresses answer.
    checked: CheckedName,
    /// How often an order is asked about before it is decided.
    delay: u32,
    life: SignedDuration,
    /// How long before they are issued certificates begin.
    early: SignedDuration,
    renewal: Option<(Timestamp, Timestamp)>,
    /// The records of DNS that are there.
    recorded: BTreeSet<String>,
    /// The address for messages, as it was last changed.
    contact: Option<String>,
    /// Every question, in words.
    asked: Vec<String>,
}

struct Order {
    host: String,
    state: ServedOrder,
    polls: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServedOrder {
    Pending,
    Checked,
    Ready,
}

fn failure(kind: AcmeFailureKind, retry_after: Option<SignedDuration>) -> AcmeReply {
    AcmeReply::Failed(AcmeFailure {
        kind,
        message: "the server says so".to_owned(),
        retry_after,
    })
}

impl Server {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            authority: Issuer::new(params, key),
            accounts: Vec::new(),
            orders: Vec::new(),
            next: Vec::new(),
            checked: CheckedName {
                right: vec![HERE],
                ..CheckedName::default()
            },
            delay: 1,
            life: SignedDuration::from_hours(90 * 24),
            early: SignedDuration::ZERO,
            renewal: None,
            recorded: BTreeSet::new(),
            contact: None,
            asked: Vec::new(),
        }
    }

    fn count(&self, word: &str) -> usize {
        self.asked.iter().filter(|asked| *asked == word).count()
    }

    fn known(&self, account: &AcmeAccount) -> Option<AcmeReply> {
        let number: usize = account.url.rsplit('/').next().unwrap().parse().unwrap();
        let fits = self.accounts.get(number) == Some(&account.key);
        (!fits).then(|| failure(AcmeFailureKind::NoAccount, None))
    }

    fn answer(&mut self, question: &AcmeQuestion, world: &World) -> AcmeReply {
        let word = question.request.word();
        self.asked.push(word.to_owned());
        if let Some(at) = self.next.iter().position(|(of, _)| *of == word) {
            return self.next.remove(at).1;
        }
        let order_of = |url: &str| -> usize { url.rsplit('/').next().unwrap().parse().unwrap() };
        match &question.request {
            AcmeRequest::Register { key, .. } => {
                // The same key is the same account.
                let key = key.clone().unwrap_or_else(|| b"of the server".to_vec());
                let known = self.accounts.iter().position(|one| *one == key);
                let number = known.unwrap_or_else(|| {
                    self.accounts.push(key.clone());
                    self.accounts.len() - 1
                });
                AcmeReply::Registered {
                    url: format!("https://ca.example/account/{number}"),
                    key: (key == b"of the server").then_some(key),
                }
            }
            AcmeRequest::Contact { account, email } => self.known(account).unwrap_or_else(|| {
                self.contact.clone_from(email);
                AcmeReply::ContactChanged
            }),
            AcmeRequest::Check { token, answer, .. } => {
                let key = keys::acme_challenge(token);
                let entry = world.entries.get(key.as_str()).unwrap();
                assert!(String::from_utf8_lossy(&entry.value).contains(answer));
                AcmeReply::Checked(self.checked.clone())
            }
            AcmeRequest::Locate { name, own, .. } => AcmeReply::Located(DnsPlace {
                server: own.server.clone(),
                secret: own.secret.clone(),
                zone: own.zone.clone(),
                name: name.clone(),
                hook: None,
            }),
            AcmeRequest::LocateForHook { name, zone, hook } => AcmeReply::Located(DnsPlace {
                zone: zone.clone(),
                name: name.clone(),
                hook: Some(hook.clone()),
                ..DnsPlace::default()
            }),
            AcmeRequest::Record {
                value, place, key, ..
            } => {
                assert_ne!(key.is_some(), place.hook.is_some());
                self.recorded.insert(value.clone());
                AcmeReply::Recorded(RecordCheck::default())
            }
            AcmeRequest::Remove { value, place, key } => {
                assert_ne!(key.is_some(), place.hook.is_some());
                self.recorded.remove(value);
                AcmeReply::Removed
            }
            AcmeRequest::Order { account, proof, .. } => self.known(account).unwrap_or_else(|| {
                self.orders.push(Order {
                    host: question.host.clone(),
                    state: ServedOrder::Pending,
                    polls: 0,
                });
                let number = self.orders.len() - 1;
                let answer = match proof {
                    ProofKind::Http => format!("token-{number}.thumb"),
                    ProofKind::Dns => dns::value(number),
                };
                AcmeReply::Ordered {
                    url: format!("https://ca.example/order/{number}"),
                    challenge: Some((format!("token-{number}"), answer)),
                }
            }),
            AcmeRequest::Answer {
                account,
                url,
                proof,
            } => self.known(account).unwrap_or_else(|| {
                let number = order_of(url);
                match proof {
                    // Whoever fetches the answer gets it from every machine by now.
                    ProofKind::Http => {
                        let key = keys::acme_challenge(&format!("token-{number}"));
                        assert!(world.entries.contains_key(key.as_str()), "{key}");
                    }
                    ProofKind::Dns => {
                        let value = dns::value(number);
                        let key = keys::acme_dns(&value);
                        assert!(world.entries.contains_key(key.as_str()), "{key}");
                        assert!(self.recorded.contains(&value), "{value}");
                    }
                }
                self.orders[number].state = ServedOrder::Checked;
                AcmeReply::Answered
            }),
            AcmeRequest::Continue {
                account,
                url,
                request,
            } => {
                if let Some(unknown) = self.known(account) {
                    return unknown;
                }
                let order = &mut self.orders[order_of(url)];
                order.polls += 1;
                if order.state == ServedOrder::Checked && order.polls > self.delay {
                    order.state = ServedOrder::Ready;
                }
                match (order.state, request) {
                    (ServedOrder::Pending | ServedOrder::Checked, _) => {
                        AcmeReply::Pending { after: None }
                    }
                    (ServedOrder::Ready, None) => AcmeReply::Ready,
                    (ServedOrder::Ready, Some(request)) => {
                        let der = request.as_slice().into();
                        let mut csr = CertificateSigningRequestParams::from_der(&der).unwrap();
                        let at = |time: Timestamp| {
                            time::OffsetDateTime::from_unix_timestamp(time.as_second()).unwrap()
                        };
                        let begins = world.now.checked_sub(self.early).unwrap();
                        csr.params.not_before = at(begins);
                        csr.params.not_after = at(begins.checked_add(self.life).unwrap());
                        let names = format!("{:?}", csr.params.subject_alt_names);
                        assert!(names.contains(&order.host), "{names}");
                        AcmeReply::Certificate(csr.signed_by(&self.authority).unwrap().pem())
                    }
                }
            }
            AcmeRequest::RenewalTime { .. } => AcmeReply::Renewal {
                at: self.renewal,
                ask_after: None,
            },
        }
    }
}

/// What is checked after every write.
#[derive(Default)]
struct Watched {
    accounts: BTreeMap<String, String>,
    issued: BTreeMap<String, Timestamp>,
}

impl Watched {
    fn check(&mut self, snapshot: &Snapshot) {
        for (id, key) in &self.accounts {
            let stored = snapshot.acme_accounts.get(id);
            let stored = stored.map(|stored| &stored.value.key.uid);
            assert_eq!(
                stored,
                Some(key),
                "the account's key is lost or another one"
            );
        }
        for (id, stored) in &snapshot.acme_accounts {
            self.accounts
                .insert(id.clone(), stored.value.key.uid.clone());
        }
        for (host, issued) in &self.issued {
            let stored = snapshot.ingress_certificates.get(host);
            let stored = stored.filter(|stored| stored.value.acme.is_some());
            let stored = stored.map(|stored| stored.value.issued);
            assert!(stored >= Some(*issued), "{host}: {stored:?} after {issued}");
        }
        for (host, stored) in &snapshot.ingress_certificates {
            if stored.value.acme.is_some() {
                self.issued.insert(host.clone(), stored.value.issued);
            }
        }
        for stored in snapshot.acme_challenges.values() {
            assert!(stored.value.answer.len() >= 5);
        }
    }
}

/// Machines that serve, with this revision of the challenges each.
fn serving(world: &mut World, revision: i64) {
    let names: Vec<String> = world.machines.keys().cloned().collect();
    for name in names {
        serving_on(world, &name, revision);
    }
}

fn serving_on(world: &mut World, node: &str, revision: i64) {
    world.at(node).ingress = Some(IngressReport {
        state: IngressState::Serving,
        challenges: revision,
        ..IngressReport::default()
    });
}

fn configure(world: &mut World, change: impl FnOnce(&mut AcmeSettings)) {
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.acme.agree_to_terms = true;
    change(&mut cluster.spec.acme);
    world.write(keys::CLUSTER.to_owned(), &cluster);
}

/// A world with a route whose certificate has to be ordered.
fn shop(machines_count: usize) -> World {
    let mut world = machines(machines_count);
    let routes = json!([{"host": HOST, "servicePort": 80, "tls": true}]);
    route(&mut world, NAMESPACE, "web", routes);
    configure(&mut world, |_| {});
    issue(&mut world);
    world.settle();
    serving(&mut world, i64::MAX);
    world
}

/// When the leader is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    Never,
    /// Before the step of this number is carried out.
    Before(usize),
    /// The server has answered it, and nobody heard it.
    Unheard(usize),
}

/// Takes steps until there is none within `limit`. Returns the number of steps.
fn run_until(
    world: &mut World,
    server: &mut Server,
    orders: &mut AcmeOrders,
    limit: Timestamp,
    lost: Lost,
) -> usize {
    let mut watched = Watched::default();
    watched.check(&world.snapshot());
    for number in 0..400 {
        let (snapshot, observed) = (world.snapshot(), world.observed());
        let step = orders.next(&snapshot, &observed, world.now).unwrap();
        if lost == Lost::Before(number) {
            *orders = AcmeOrders::default();
            world.new_leader();
            continue;
        }
        let write = match step {
            AcmeStep::Wait(until) if until > limit => return number,
            AcmeStep::Wait(until) => {
                world.now = until.max(
                    world
                        .now
                        .checked_add(SignedDuration::from_millis(1))
                        .unwrap(),
                );
                continue;
            }
            AcmeStep::Write(step) => Some(step),
            AcmeStep::Ask(question) => {
                let reply = server.answer(&question, world);
                if lost == Lost::Unheard(number) {
                    *orders = AcmeOrders::default();
                    world.new_leader();
                    continue;
                }
                orders
                    .answered(&snapshot, &question, reply, world.now)
                    .unwrap()
            }
        };
        let Some(write) = write else { continue };
        for condition in &write.conditions {
            let Compare::ModRevision(key, revision) = condition else {
                panic!("{condition:?}")
            };
            let present = world.entries.get(key.as_str());
            let present = present.map_or(0, |entry| entry.mod_revision);
            assert_eq!(present, *revision, "{key}");
        }
        world.apply(&write.operations);
        watched.check(&world.snapshot());
    }
    panic!("the orders do not come to rest: {:?}", server.asked);
}

/// [`run_until`] within the next minutes.
fn run(world: &mut World, server: &mut Server, orders: &mut AcmeOrders) -> usize {
    let limit = world.now.checked_add(SignedDuration::from_mins(5)).unwrap();
    run_until(world, server, orders, limit, Lost::Never)
}

fn has_certificate(world: &mut World) -> bool {
    let snapshot = world.snapshot();
    let stored = snapshot.ingress_certificates.get(HOST);
    stored.is_some_and(|stored| stored.value.acme.is_some())
}

fn trouble(world: &mut World) -> Option<(Reason, String)> {
    let snapshot = world.snapshot();
    let planned = planned_routes(&snapshot);
    let trouble = planned[0].trouble.as_ref()?;
    Some((trouble.reason, trouble.message.clone()))
}

/// The next attempt of the host's order, in seconds from now.
fn next_attempt(world: &mut World) -> i64 {
    let snapshot = world.snapshot();
    let AcmeOrderState::Failed { next } = &snapshot.acme_orders[HOST].value.state else {
        panic!("{:?}", snapshot.acme_orders[HOST].value)
    };
    next.duration_since(world.now).as_secs()
}

#[test]
fn until_its_certificate_is_there_a_host_has_one_that_stands_in_and_says_what_it_waits_for() {
    let mut world = shop(2);
    let waits = given(&mut world, "n1").unwrap();
    let name = format!("internal:{HOST}");
    assert_eq!(waits.routes[0].certificate.as_deref(), Some(name.as_str()));
    assert!(
        waits.routes[0]
            .awaits
            .contains("going to be ordered from Let's Encrypt")
    );
    let (reason, _) = trouble(&mut world).unwrap();
    assert_eq!(reason, Reason::CertificatePending);

    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
    assert_eq!(trouble(&mut world), None);
    world.settle();
    let has = given(&mut world, "n2").unwrap();
    let name = format!("acme:{HOST}");
    assert_eq!(has.routes[0].certificate.as_deref(), Some(name.as_str()));
    assert_eq!(has.routes[0].awaits, "");
    // Nothing is left of the order, and nothing is in the store that is not sealed.
    let snapshot = world.snapshot();
    assert!(snapshot.acme_orders.is_empty() && snapshot.acme_challenges.is_empty());
    for entry in world.entries.values() {
        let text = String::from_utf8_lossy(&entry.value);
        assert!(!text.contains("PRIVATE KEY"), "{}", entry.key);
    }
    assert_eq!(issue(&mut world), 0);
}

#[test]
fn nothing_is_ordered_before_the_terms_are_agreed_to_or_for_internal_names() {
    let mut world = machines(1);
    let routes = json!([
        {"host": HOST, "servicePort": 80, "tls": true},
        {"host": "a.lan", "servicePort": 80, "tls": true},
        {"host": "b.lan", "servicePort": 80, "tls": {"issuer": "acme"}},
        {"host": "*.example.com", "servicePort": 80, "tls": true},
        {"host": "c.example.com", "servicePort": 80, "tls": {"issuer": "acme"}},
    ]);
    route(&mut world, NAMESPACE, "web", routes);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    serving(&mut world, i64::MAX);
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.asked, Vec::<String>::new());
    let said = |world: &mut World, at: usize| {
        let snapshot = world.snapshot();
        planned_routes(&snapshot)[at]
            .trouble
            .clone()
            .map(|one| one.message)
            .unwrap_or_default()
    };
    assert!(said(&mut world, 4).contains("before the setting acme.agreeToTerms"));

    configure(&mut world, |_| {});
    issue(&mut world);
    run(&mut world, &mut server, &mut orders);
    let snapshot = world.snapshot();
    let by_acme: Vec<_> = snapshot
        .ingress_certificates
        .iter()
        .filter(|(_, stored)| stored.value.acme.is_some())
        .map(|(host, _)| host.as_str())
        .collect();
    assert_eq!(by_acme, ["c.example.com", HOST]);
    assert_eq!(said(&mut world, 0), "");
    assert_eq!(said(&mut world, 1), "");
    assert!(said(&mut world, 2).contains("in one of internalDomains"));
    assert!(said(&mut world, 3).contains("needs a proof by DNS"));
}

#[test]
fn a_challenge_is_answered_after_every_machine_that_serves_has_confirmed_it_or_ten_seconds() {
    let mut world = shop(3);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    for node in ["n1", "n2", "n3"] {
        serving_on(&mut world, node, 0);
    }
    let soon = |world: &World| {
        world
            .now
            .checked_add(SignedDuration::from_millis(200))
            .unwrap()
    };
    let limit = soon(&world);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(server.count("check"), 0, "no machine has confirmed it");
    // A minute without any machine changes nothing.
    world.pass(Duration::from_secs(60));
    for machine in ["n1", "n2"] {
        serving_on(&mut world, machine, i64::MAX);
    }
    let limit = soon(&world);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(
        (
            server.count("check"),
            server.count("order"),
            server.count("answer")
        ),
        (1, 1, 0)
    );
    world.pass(Duration::from_secs(8));
    let limit = soon(&world);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(server.count("answer"), 0, "n3 has not confirmed it");
    world.pass(Duration::from_secs(3));
    let limit = soon(&world);
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(server.count("answer"), 1);
}

#[test]
fn a_name_that_leads_elsewhere_stops_the_order_and_one_without_an_answer_does_not() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server.checked = CheckedName {
        right: vec![HERE],
        wrong: vec!["192.0.2.9".parse().unwrap()],
        ..CheckedName::default()
    };
    let limit = world
        .now
        .checked_add(SignedDuration::from_secs(30))
        .unwrap();
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let (reason, message) = trouble(&mut world).unwrap();
    assert_eq!(reason, Reason::CertificateFailed);
    assert!(
        message.contains("192.0.2.9") && message.contains("must point here"),
        "{message}"
    );
    assert_eq!((server.count("order"), next_attempt(&mut world)), (0, 60));
    // A name without addresses costs no order either.
    server.checked = CheckedName::default();
    world.pass(Duration::from_secs(60));
    let limit = world
        .now
        .checked_add(SignedDuration::from_secs(60))
        .unwrap();
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert!(
        trouble(&mut world)
            .unwrap()
            .1
            .contains("has no address in DNS")
    );
    assert_eq!((server.count("order"), next_attempt(&mut world)), (0, 120));
    // No answer warns; what fails then is tried again after an hour.
    server.checked = CheckedName {
        silent: vec![HERE],
        ..CheckedName::default()
    };
    server
        .next
        .push(("continue", failure(AcmeFailureKind::Refused, None)));
    world.pass(Duration::from_secs(120));
    let limit = world
        .now
        .checked_add(SignedDuration::from_mins(10))
        .unwrap();
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let (_, message) = trouble(&mut world).unwrap();
    assert!(message.contains("did not answer the leader"), "{message}");
    assert!(next_attempt(&mut world) >= 3600);
    assert_eq!(server.count("order"), 1);
    world.pass(Duration::from_secs(5 * 3600));
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
}

#[test]
fn a_rate_limit_is_named_and_retry_after_obeyed() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let hours = SignedDuration::from_hours(26);
    server
        .next
        .push(("order", failure(AcmeFailureKind::RateLimited, Some(hours))));
    run(&mut world, &mut server, &mut orders);
    let (reason, message) = trouble(&mut world).unwrap();
    assert_eq!(reason, Reason::CertificateFailed);
    assert!(
        message.contains("the rate limit of Let's Encrypt is reached"),
        "{message}"
    );
    assert_eq!(next_attempt(&mut world), 26 * 3600);
    world.pass(Duration::from_secs(26 * 3600 - 400));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 1);
    world.pass(Duration::from_secs(400));
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
    assert_eq!(server.accounts.len(), 1);
}

#[test]
fn failures_of_one_host_grow_its_own_pause_and_delay_no_other_host() {
    let mut world = machines(1);
    let routes = json!([
        {"host": HOST, "servicePort": 80, "tls": true, "redirectFrom": ["www.example.org"]},
    ]);
    route(&mut world, NAMESPACE, "web", routes);
    configure(&mut world, |_| {});
    issue(&mut world);
    serving(&mut world, i64::MAX);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    // The hosts begin in their order.
    server
        .next
        .push(("order", failure(AcmeFailureKind::Refused, None)));
    run(&mut world, &mut server, &mut orders);
    assert!(
        world.snapshot().ingress_certificates["www.example.org"]
            .value
            .acme
            .is_some()
    );
    assert!(!has_certificate(&mut world));
    let first = next_attempt(&mut world);
    for expected in [2, 4, 8] {
        let wait = u64::try_from(next_attempt(&mut world)).unwrap();
        world.pass(Duration::from_secs(wait));
        server
            .next
            .push(("order", failure(AcmeFailureKind::Refused, None)));
        let limit = world
            .now
            .checked_add(SignedDuration::from_secs(20))
            .unwrap();
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        let pause = next_attempt(&mut world);
        assert!((pause - 900 * expected).abs() < 20, "{pause} after {first}");
    }
}

#[test]
fn a_server_that_fails_for_a_while_costs_no_new_order() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    for word in ["answer", "continue", "continue", "continue"] {
        // Such as a nonce that was refused again and again, a 503, and a 429 while it is asked about.
        server
            .next
            .push((word, failure(AcmeFailureKind::Unreachable, None)));
    }
    let pause = Some(SignedDuration::from_secs(30));
    server
        .next
        .push(("continue", failure(AcmeFailureKind::RateLimited, pause)));
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
    assert_eq!(server.count("order"), 1);
}

#[test]
fn a_server_that_has_forgotten_the_account_gets_it_again_with_the_same_key() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let key = server.accounts[0].clone();
    server.accounts.clear();
    server.orders.clear();
    world.pass(Duration::from_secs(62 * 24 * 3600));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.accounts, [key]);
    let snapshot = world.snapshot();
    assert!(
        snapshot.ingress_certificates[HOST].value.issued > "2026-03-01T00:00:00Z".parse().unwrap()
    );
    assert_eq!(snapshot.acme_accounts.len(), 1);
}

fn stored_account(world: &mut World) -> kat_types::store::acme::AcmeAccountRecord {
    let snapshot = world.snapshot();
    let stored = snapshot.acme_accounts.values().next().unwrap();
    kat_types::store::acme::AcmeAccountRecord::clone(&stored.value)
}

fn set_address(world: &mut World, address: Option<&str>) {
    configure(world, |settings| {
        settings.email = address.map(str::to_owned);
    });
}

#[test]
fn another_address_of_the_settings_reaches_the_server_once_also_when_its_answer_is_lost() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 0);
    set_address(&mut world, Some("a@example.org"));
    for _ in 0..2 {
        run(&mut world, &mut server, &mut orders);
        assert_eq!(server.count("contact"), 1);
    }
    assert_eq!(server.contact.as_deref(), Some("a@example.org"));
    assert_eq!(stored_account(&mut world).email, "a@example.org");

    // The leader is lost after the answer: the next one asks again.
    set_address(&mut world, None);
    let limit = world.now.checked_add(SignedDuration::from_mins(5)).unwrap();
    let lost = Lost::Unheard(0);
    run_until(&mut world, &mut server, &mut orders, limit, lost);
    assert_eq!(server.count("contact"), 3);
    assert_eq!(server.contact, None);
    assert_eq!(stored_account(&mut world).email, "");
}

#[test]
fn an_address_that_the_server_refuses_is_tried_again_later_and_another_one_at_once() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let refusal = || ("contact", failure(AcmeFailureKind::Refused, None));
    server.next.push(refusal());
    set_address(&mut world, Some("a@example.org"));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 1);
    assert_eq!(stored_account(&mut world).email, "");
    assert!(world.snapshot().acme_orders.is_empty());
    world.pass(Duration::from_secs(16 * 60));
    server.next.push(refusal());
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 2);
    // The pause grows.
    world.pass(Duration::from_secs(16 * 60));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 2);
    set_address(&mut world, Some("b@example.org"));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 3);
    assert_eq!(stored_account(&mut world).email, "b@example.org");
}

#[test]
fn a_server_that_has_forgotten_the_account_gets_the_address_with_the_next_order() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    server.accounts.clear();
    server.orders.clear();
    set_address(&mut world, Some("a@example.org"));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 1);
    assert_eq!(stored_account(&mut world).url, "");
    world.pass(Duration::from_secs(62 * 24 * 3600));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("contact"), 1);
    let account = stored_account(&mut world);
    assert_eq!(account.email, "a@example.org");
    assert!(!account.url.is_empty());
}

#[test]
fn a_certificate_is_renewed_when_the_server_wants_it_else_after_two_thirds_of_its_life() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let first = world.snapshot().ingress_certificates[HOST].value.expires;
    world.pass(Duration::from_secs(59 * 24 * 3600));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(
        world.snapshot().ingress_certificates[HOST].value.expires,
        first
    );
    // The server wants it now, as after a mistake of its own.
    server.renewal = Some((world.now, world.now));
    world.pass(Duration::from_secs(7 * 3600));
    run(&mut world, &mut server, &mut orders);
    let second = world.snapshot().ingress_certificates[HOST].value.expires;
    assert!(second > first);
    server.renewal = None;
    world.pass(Duration::from_secs(61 * 24 * 3600));
    run(&mut world, &mut server, &mut orders);
    let third = world.snapshot().ingress_certificates[HOST].value.expires;
    assert!(third > second);
    assert_eq!(trouble(&mut world), None);
}

#[test]
fn a_failed_renewal_and_terms_that_are_agreed_to_no_more_leave_the_certificate() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let stored = world.snapshot().ingress_certificates[HOST].value.expires;
    world.pass(Duration::from_secs(61 * 24 * 3600));
    server
        .next
        .push(("order", failure(AcmeFailureKind::Refused, None)));
    run(&mut world, &mut server, &mut orders);
    let snapshot = world.snapshot();
    assert_eq!(snapshot.ingress_certificates[HOST].value.expires, stored);
    assert!(
        snapshot.acme_orders[HOST]
            .value
            .message
            .contains("the server says so")
    );
    assert_eq!(trouble(&mut world), None);
    // Terms that are agreed to no more take it from nobody, and order nothing.
    configure(&mut world, |acme| acme.agree_to_terms = false);
    let asked = server.asked.len();
    run(&mut world, &mut server, &mut orders);
    assert_eq!((issue(&mut world), server.asked.len()), (0, asked));
    assert_eq!(trouble(&mut world), None);
    world.settle();
    let has = given(&mut world, "n1").unwrap();
    assert_eq!(has.routes[0].certificate, Some(format!("acme:{HOST}")));
    // Nor does another server until its first certificate is there.
    configure(&mut world, |acme| {
        acme.directory = Some(LETS_ENCRYPT_STAGING.to_owned())
    });
    server
        .next
        .push(("order", failure(AcmeFailureKind::Refused, None)));
    run(&mut world, &mut server, &mut orders);
    assert_eq!(
        world.snapshot().ingress_certificates[HOST].value.expires,
        stored
    );
    assert_eq!(trouble(&mut world), None);
}

#[test]
fn a_later_certificate_that_expires_earlier_replaces_the_present_one_and_an_older_one_does_not() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let first = world.snapshot().ingress_certificates[HOST].value.expires;
    // As with a profile of certificates that last a few days.
    server.life = SignedDuration::from_hours(6 * 24);
    world.pass(Duration::from_secs(61 * 24 * 3600));
    run(&mut world, &mut server, &mut orders);
    let second = world.snapshot().ingress_certificates[HOST].value.expires;
    assert!(second < first);
    assert_eq!(server.count("order"), 2);
    server.life = SignedDuration::from_hours(90 * 24);
    server.early = SignedDuration::from_hours(10 * 24);
    world.pass(Duration::from_secs(5 * 24 * 3600));
    run(&mut world, &mut server, &mut orders);
    let snapshot = world.snapshot();
    assert_eq!(snapshot.ingress_certificates[HOST].value.expires, second);
    assert!(
        snapshot.acme_orders[HOST]
            .value
            .message
            .contains("older than the present one")
    );
}

/// As with a clock of the leader that is far ahead.
#[test]
fn a_certificate_that_is_old_when_it_is_issued_is_not_ordered_again_at_once() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server.early = SignedDuration::from_hours(85 * 24);
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
    assert_eq!(server.count("order"), 1);
}

#[test]
fn a_next_attempt_that_a_clock_far_ahead_has_set_is_not_waited_for() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let right = world.now;
    let ahead = SignedDuration::from_hours(400 * 24);
    world.now = right.checked_add(ahead).unwrap();
    server
        .next
        .push(("order", failure(AcmeFailureKind::Refused, None)));
    run(&mut world, &mut server, &mut orders);
    assert!(next_attempt(&mut world) > 0);
    world.now = right;
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
}

#[test]
fn an_ingress_that_is_off_for_a_while_costs_no_certificate() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let mut cluster = ClusterConfiguration::default();
    cluster.spec.acme.agree_to_terms = true;
    cluster.spec.ingress.enabled = false;
    world.write(keys::CLUSTER.to_owned(), &cluster);
    issue(&mut world);
    assert!(has_certificate(&mut world));
    configure(&mut world, |_| {});
    issue(&mut world);
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 1);
    assert_eq!(trouble(&mut world), None);
}

#[test]
fn a_route_that_comes_back_has_its_certificate_without_another_order() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    run(&mut world, &mut server, &mut orders);
    let other = json!([{"host": "a.lan", "servicePort": 80}]);
    let own = json!([{"host": HOST, "servicePort": 80, "tls": true}]);
    route(&mut world, NAMESPACE, "web", other.clone());
    issue(&mut world);
    assert!(has_certificate(&mut world));
    route(&mut world, NAMESPACE, "web", own);
    issue(&mut world);
    run(&mut world, &mut server, &mut orders);
    assert_eq!(server.count("order"), 1);
    assert_eq!(trouble(&mut world), None);
    // It goes when it would be renewed.
    route(&mut world, NAMESPACE, "web", other);
    world.pass(Duration::from_secs(61 * 24 * 3600));
    issue(&mut world);
    assert!(!has_certificate(&mut world));
}

#[test]
fn answers_of_a_hostile_server_are_refused() {
    let tokens = ["../claims", "a/b", "", "a b"];
    for token in tokens {
        let mut world = shop(1);
        let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
        let ordered = AcmeReply::Ordered {
            url: "https://ca.example/order/0".to_owned(),
            challenge: Some((token.to_owned(), "x.y".to_owned())),
        };
        server.next.push(("order", ordered));
        let limit = world.now.checked_add(SignedDuration::from_mins(2)).unwrap();
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        assert!(
            trouble(&mut world).unwrap().1.contains("no usable token"),
            "{token}"
        );
    }
    let chains = [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        &"x".repeat(1 << 20),
    ];
    for chain in chains {
        let mut world = shop(1);
        let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
        server.delay = 0;
        server.next.push(("continue", AcmeReply::Ready));
        server
            .next
            .push(("continue", AcmeReply::Certificate(chain.to_owned())));
        let limit = world.now.checked_add(SignedDuration::from_mins(2)).unwrap();
        run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
        assert!(!has_certificate(&mut world));
        assert_eq!(trouble(&mut world).unwrap().0, Reason::CertificateFailed);
    }
}

#[test]
fn an_account_of_an_operator_needs_its_secret_and_says_so() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    let secret = "acme-eab".to_owned();
    configure(&mut world, |acme| acme.eab = Some(EabSetting { secret }));
    run(&mut world, &mut server, &mut orders);
    assert!(
        trouble(&mut world)
            .unwrap()
            .1
            .contains("secret kat-core/acme-eab, which does not exist")
    );
    assert_eq!(server.count("register"), 0);
    let values: [(&str, &[u8]); 2] = [("keyId", b"id-1\n"), ("hmacKey", b"AAECAwQ")];
    set_in(&mut world, "kat-core", "acme-eab", &values);
    world.pass(Duration::from_secs(3600));
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
    let account = account_id(LETS_ENCRYPT);
    assert!(
        world.snapshot().acme_accounts[&account]
            .value
            .url
            .ends_with("/account/0")
    );
}

/// Each step of a first order, and of a renewal, is once not taken and once not heard of.
#[test]
fn a_leader_that_is_lost_between_any_two_steps_loses_no_account_and_no_certificate() {
    let steps = {
        let mut world = shop(2);
        let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
        run(&mut world, &mut server, &mut orders)
    };
    assert!(steps > 10, "{steps}");
    for renewal in [false, true] {
        for number in 0..steps {
            for lost in [Lost::Before(number), Lost::Unheard(number)] {
                let mut world = shop(2);
                let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
                if renewal {
                    run(&mut world, &mut server, &mut orders);
                    world.pass(Duration::from_secs(61 * 24 * 3600));
                }
                let before = world.snapshot().ingress_certificates[HOST].value.expires;
                let limit = world.now.checked_add(SignedDuration::from_mins(5)).unwrap();
                run_until(&mut world, &mut server, &mut orders, limit, lost);
                assert!(
                    has_certificate(&mut world),
                    "{lost:?}: {:?}",
                    trouble(&mut world)
                );
                assert_eq!(server.accounts.len(), 1, "{lost:?}: {:?}", server.asked);
                let after = world.snapshot().ingress_certificates[HOST].value.expires;
                assert!(!renewal || after > before, "{lost:?}");
            }
        }
    }
}

#[test]
fn another_data_key_seals_accounts_and_keys_of_orders_too() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    // The certificate is never issued.
    server.next.push(("continue", AcmeReply::Ready));
    for _ in 0..20 {
        server
            .next
            .push(("continue", AcmeReply::Pending { after: None }));
    }
    let limit = world.now.checked_add(SignedDuration::from_secs(3)).unwrap();
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    let snapshot = world.snapshot();
    let is_issuing = matches!(
        snapshot.acme_orders[HOST].value.state,
        AcmeOrderState::Issuing { .. }
    );
    assert!(is_issuing);
    let step = another_data_key(&snapshot, world.now).unwrap();
    // The account, the key of the order, and the certificate that stands in.
    assert_eq!(step.left, 3);
    world.apply(&step.operations);
    for _ in 0..5 {
        let step = reseal_batch(&world.snapshot()).unwrap();
        assert_eq!(step.failed, None);
        world.apply(&step.operations);
    }
    let snapshot = world.snapshot();
    assert_eq!(snapshot.sealing_keys.keys().collect::<Vec<_>>(), [&2]);
    server.next.clear();
    server.orders[0].state = ServedOrder::Ready;
    run(&mut world, &mut server, &mut orders);
    assert!(has_certificate(&mut world));
}

#[test]
fn orders_and_challenges_go_with_their_route() {
    let mut world = shop(1);
    let (mut server, mut orders) = (Server::new(), AcmeOrders::default());
    server.delay = 1000;
    let limit = world.now.checked_add(SignedDuration::from_secs(3)).unwrap();
    run_until(&mut world, &mut server, &mut orders, limit, Lost::Never);
    assert_eq!(world.snapshot().acme_challenges.len(), 1);
    let routes = json!([{"host": "a.lan", "servicePort": 80}]);
    route(&mut world, NAMESPACE, "web", routes);
    run(&mut world, &mut server, &mut orders);
    let snapshot = world.snapshot();
    assert!(snapshot.acme_orders.is_empty() && snapshot.acme_challenges.is_empty());
    assert_eq!(snapshot.acme_accounts.len(), 1);
}

//! Servers of ACME in memory, and the way from a leader to them. They keep accounts and orders, fetch the
//! answers to challenges from what machines serve, and fail as servers do: a nonce that is refused, a rate
//! limit, an order that is invalid or forgotten, an answer that is lost or never comes, a check that takes
//! long, and a certificate that begins before the one that it replaces.
//!
//! Proofs by DNS are looked for in [`DnsZones`], which a leader changes by a hook.

use std::{
    collections::BTreeMap,
    future::pending,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use x509_parser::time::ASN1Time;

use crate::{
    checks::monitor::Monitor,
    faults::network_faults::Way,
    machines::dns_zones::{DnsZones, ZoneFault},
    random::Random,
};
use kat_leader::AcmeServer;
use kat_plan::{
    AcmeAccount, AcmeFailure, AcmeFailureKind, AcmeQuestion, AcmeReply, AcmeRequest, CheckedName,
    ProofKind, RecordCheck,
};
use kat_types::store::acme::{CHALLENGE_LABEL, DnsPlace};

/// One way to a server, besides the latency of the machine that asks.
const LATENCY: Duration = Duration::from_millis(40);
/// Life of certificates while the servers want them to be renewed, and otherwise.
const SHORT_LIFE: SignedDuration = SignedDuration::from_mins(10);
const LONG_LIFE: SignedDuration = SignedDuration::from_hours(90 * 24);
/// How long before it is issued a certificate begins that is older than the one before.
const BACKDATED: SignedDuration = SignedDuration::from_hours(2);
/// Length of the time in which a server wants a certificate to be renewed.
const RENEWAL: SignedDuration = SignedDuration::from_secs(30);
/// Machines that a server asks for an answer to its challenge.
const ASKED: usize = 2;
/// Until name servers have a record at most, while servers and hooks are faulty.
const SEEN_WITHIN: u64 = 20_000;

/// What the servers do.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ServerBehaviour {
    /// Questions fail, answers are lost, orders are invalid.
    pub faulty: bool,
    /// Every certificate is older than the one before.
    pub backdates: bool,
    /// Certificates are short, and should be renewed soon.
    pub renews: bool,
}

/// All servers of a run, each with its own accounts.
pub(crate) struct AcmeServers {
    monitor: Arc<Monitor>,
    /// A moment, and the time that was then.
    clock: (Instant, Timestamp),
    state: Mutex<ServerState>,
    /// What leaders see of their accounts is old: they see none.
    hides_accounts: watch::Sender<bool>,
}

struct ServerState {
    random: Random,
    authority: Issuer<'static, KeyPair>,
    behaviour: ServerBehaviour,
    accounts: Vec<Account>,
    orders: Vec<Order>,
    /// The answers to challenges that each machine serves; `None` for one that is off.
    served: BTreeMap<String, Option<BTreeMap<String, String>>>,
    zones: DnsZones,
}

struct Account {
    directory: String,
    key: Vec<u8>,
    email: Option<String>,
    is_forgotten: bool,
}

struct Order {
    host: String,
    account: usize,
    proof: ProofKind,
    state: OrderState,
}

#[derive(Clone)]
enum OrderState {
    Pending,
    /// The answer is going to be fetched when the order was asked about so often.
    Checked(u64),
    Ready,
    Invalid,
    Gone,
    Issued(String),
}

/// What becomes of a question.
enum QuestionFate {
    Answered,
    /// The server does nothing but refuse it.
    Refused(AcmeFailure),
    /// The server answers, and the answer gets lost.
    Lost,
    /// The server answers so late that nobody waits any more.
    Silent,
}

fn failure(kind: AcmeFailureKind, message: &str) -> AcmeFailure {
    AcmeFailure {
        kind,
        message: message.to_owned(),
        retry_after: None,
    }
}

fn failed(kind: AcmeFailureKind, message: &str) -> AcmeReply {
    AcmeReply::Failed(failure(kind, message))
}

fn token(number: usize) -> String {
    format!("token-{number}")
}

fn proof(number: usize) -> String {
    format!("token-{number}.thumb")
}

/// The text of the record that proves the host of an order.
fn record_text(number: usize) -> String {
    format!("record-{number}")
}

/// The name of the record that proves a host.
pub(crate) fn record_name(host: &str) -> String {
    let host = host.strip_prefix("*.").unwrap_or(host);
    format!("{CHALLENGE_LABEL}.{host}")
}

/// The number at the end of a URL.
fn number_of(url: &str) -> Option<usize> {
    url.rsplit('/').next()?.parse().ok()
}

impl AcmeServers {
    /// Servers whose clock is right now at `now`.
    pub(crate) fn new(seed: u64, monitor: &Arc<Monitor>, now: Timestamp) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let state = ServerState {
            random: Random::new(seed ^ 0x6163_6d65),
            authority: Issuer::new(params, KeyPair::generate().unwrap()),
            behaviour: ServerBehaviour::default(),
            accounts: Vec::new(),
            orders: Vec::new(),
            served: BTreeMap::new(),
            zones: DnsZones::default(),
        };
        Self {
            monitor: Arc::clone(monitor),
            clock: (Instant::now(), now),
            state: Mutex::new(state),
            hides_accounts: watch::channel(false).0,
        }
    }

    /// From now on leaders see no account, or see them again.
    pub(crate) fn hide_accounts(&self, hidden: bool) {
        self.hides_accounts.send_replace(hidden);
    }

    /// Whether leaders see no account.
    pub(crate) fn hidden_accounts(&self) -> watch::Receiver<bool> {
        self.hides_accounts.subscribe()
    }

    fn now(&self) -> Timestamp {
        let (since, at) = self.clock;
        at + SignedDuration::try_from(since.elapsed()).unwrap()
    }

    pub(crate) fn behave(&self, behaviour: ServerBehaviour) {
        self.state.lock().behaviour = behaviour;
    }

    /// What a machine answers to challenges from now on; `None` while it is off.
    pub(crate) fn serve(&self, machine: &str, answers: Option<BTreeMap<String, String>>) {
        let mut state = self.state.lock();
        state.served.insert(machine.to_owned(), answers);
    }

    /// The servers lose their accounts, and know them again when they are registered again.
    pub(crate) fn forget_accounts(&self) {
        for account in &mut self.state.lock().accounts {
            account.is_forgotten = true;
        }
    }

    /// The address for messages of the account at a directory.
    pub(crate) fn email(&self, directory: &str) -> Option<String> {
        let state = self.state.lock();
        let mut accounts = state.accounts.iter();
        let account = accounts.find(|account| account.directory == directory)?;
        account.email.clone()
    }

    /// Number of orders that were ever made.
    pub(crate) fn orders(&self) -> usize {
        self.state.lock().orders.len()
    }

    /// Looks at the zones, or changes them.
    pub(crate) fn with_zones<T>(&self, look: impl FnOnce(&mut DnsZones) -> T) -> T {
        look(&mut self.state.lock().zones)
    }

    /// Whether the order with this record has its certificate.
    pub(crate) fn has_issued(&self, text: &str) -> bool {
        let state = self.state.lock();
        let mut orders = state.orders.iter().enumerate();
        orders.any(|(number, order)| {
            record_text(number) == text && matches!(order.state, OrderState::Issued(_))
        })
    }

    /// The way of a process to the servers.
    pub(crate) fn connection(
        self: &Arc<Self>,
        process: &str,
        way: &Arc<Way>,
    ) -> Arc<dyn AcmeServer> {
        Arc::new(Connection {
            servers: Arc::clone(self),
            process: process.to_owned(),
            way: Arc::clone(way),
        })
    }

    fn fate(&self) -> QuestionFate {
        let mut state = self.state.lock();
        if !state.behaviour.faulty {
            return QuestionFate::Answered;
        }
        let limited = AcmeFailure {
            retry_after: Some(SignedDuration::from_secs(20)),
            ..failure(AcmeFailureKind::RateLimited, "too many requests")
        };
        match state.random.below(100) {
            0..4 => QuestionFate::Refused(failure(AcmeFailureKind::Unreachable, "badNonce")),
            4..6 => QuestionFate::Refused(limited),
            6..13 => QuestionFate::Lost,
            13..15 => QuestionFate::Silent,
            _ => QuestionFate::Answered,
        }
    }

    /// What the addresses of a host answer, which are those of all machines.
    fn checked(&self, token: &str, answer: &str) -> CheckedName {
        let state = self.state.lock();
        let mut checked = CheckedName::default();
        for (number, answers) in state.served.values().enumerate() {
            let last = u8::try_from(number + 1).unwrap();
            let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, last));
            let list = match answers {
                None => &mut checked.silent,
                Some(answers) if answers.get(token).is_some_and(|one| one == answer) => {
                    &mut checked.right
                }
                Some(_) => &mut checked.wrong,
            };
            list.push(address);
        }
        checked
    }

    fn answer(&self, question: &AcmeQuestion) -> AcmeReply {
        let now = self.now();
        self.state.lock().answer(question, now, &self.monitor)
    }
}

impl ServerState {
    fn answer(&mut self, question: &AcmeQuestion, now: Timestamp, monitor: &Monitor) -> AcmeReply {
        let AcmeQuestion {
            directory,
            host,
            request,
        } = question;
        let answered = match request {
            AcmeRequest::Register {
                email,
                key: Some(key),
                ..
            } => Ok(self.register(directory, key, email.as_deref(), monitor)),
            AcmeRequest::Contact { account, email } => {
                self.account(directory, account).map(|number| {
                    self.accounts[number].email.clone_from(email);
                    AcmeReply::ContactChanged
                })
            }
            AcmeRequest::Order { account, proof, .. } => self
                .account(directory, account)
                .map(|number| self.order(host, number, *proof)),
            AcmeRequest::Answer { account, url, .. } => self
                .own_order(directory, account, url)
                .map(|number| self.challenge_is_ready(number, monitor)),
            AcmeRequest::Continue {
                account,
                url,
                request,
            } => self
                .own_order(directory, account, url)
                .map(|number| self.proceed(number, request.as_deref(), now)),
            AcmeRequest::RenewalTime { .. } => Ok(self.renewal(now)),
            AcmeRequest::Register { key: None, .. }
            | AcmeRequest::Check { .. }
            | AcmeRequest::Locate { .. }
            | AcmeRequest::LocateForHook { .. }
            | AcmeRequest::Record { .. }
            | AcmeRequest::Remove { .. } => Err(AcmeFailureKind::Refused),
        };
        answered.unwrap_or_else(|kind| failed(kind, "the server does not know it"))
    }

    /// The same key is the same account.
    fn register(
        &mut self,
        directory: &str,
        key: &[u8],
        email: Option<&str>,
        monitor: &Monitor,
    ) -> AcmeReply {
        let mut accounts = self.accounts.iter();
        let known = accounts.position(|one| one.directory == directory && one.key == key);
        let number = match known {
            Some(number) => number,
            None => {
                let mut others = self.accounts.iter();
                if others.any(|one| one.directory == directory) {
                    monitor.violated(format!("a second account is registered at {directory}"));
                }
                self.accounts.push(Account {
                    directory: directory.to_owned(),
                    key: key.to_vec(),
                    email: None,
                    is_forgotten: false,
                });
                self.accounts.len() - 1
            }
        };
        let account = &mut self.accounts[number];
        account.is_forgotten = false;
        if email.is_some() {
            account.email = email.map(str::to_owned);
        }
        AcmeReply::Registered {
            url: format!("{directory}/account/{number}"),
            key: None,
        }
    }

    /// The number of an account that the server knows.
    fn account(&self, directory: &str, account: &AcmeAccount) -> Result<usize, AcmeFailureKind> {
        let number = number_of(&account.url);
        let known = number.filter(|number| {
            self.accounts.get(*number).is_some_and(|one| {
                one.directory == directory && one.key == account.key && !one.is_forgotten
            })
        });
        known.ok_or(AcmeFailureKind::NoAccount)
    }

    /// The number of an order of this account.
    fn own_order(
        &self,
        directory: &str,
        account: &AcmeAccount,
        url: &str,
    ) -> Result<usize, AcmeFailureKind> {
        let account = self.account(directory, account)?;
        let known = number_of(url).filter(|number| {
            let order = self.orders.get(*number);
            order.is_some_and(|order| order.account == account)
        });
        known.ok_or(AcmeFailureKind::Gone)
    }

    fn order(&mut self, host: &str, account: usize, kind: ProofKind) -> AcmeReply {
        let number = self.orders.len();
        let mut earlier = self.orders.iter();
        let was_proved = earlier.any(|one| {
            one.account == account && one.host == host && matches!(one.state, OrderState::Issued(_))
        });
        let needs_no_proof = self.behaviour.faulty && was_proved && self.random.chance(15);
        self.orders.push(Order {
            host: host.to_owned(),
            account,
            proof: kind,
            state: if needs_no_proof {
                OrderState::Ready
            } else {
                OrderState::Pending
            },
        });
        let answer = match kind {
            ProofKind::Http => proof(number),
            ProofKind::Dns => record_text(number),
        };
        AcmeReply::Ordered {
            url: format!("https://acme.example/order/{number}"),
            challenge: (!needs_no_proof).then(|| (token(number), answer)),
        }
    }

    fn challenge_is_ready(&mut self, number: usize, monitor: &Monitor) -> AcmeReply {
        if matches!(self.orders[number].state, OrderState::Pending) {
            let order = &self.orders[number];
            if order.proof == ProofKind::Dns && !self.sees_record(number) {
                let host = &order.host;
                monitor.violated(format!(
                    "the server is told to look for the record of {host}, which name servers do not have"
                ));
            }
            let looks = self.random.below(4);
            self.orders[number].state = OrderState::Checked(looks);
        }
        AcmeReply::Answered
    }

    fn proceed(&mut self, number: usize, request: Option<&[u8]>, now: Timestamp) -> AcmeReply {
        let faulty = self.behaviour.faulty;
        let is_open = !matches!(self.orders[number].state, OrderState::Issued(_));
        if faulty && is_open && self.random.chance(2) {
            self.orders[number].state = OrderState::Gone;
        }
        match (self.orders[number].state.clone(), request) {
            (OrderState::Pending, _) => AcmeReply::Pending { after: None },
            (OrderState::Checked(0), _) => {
                let is_proved = match self.orders[number].proof {
                    ProofKind::Http => self.fetches(number),
                    ProofKind::Dns => self.sees_record(number),
                };
                let is_right = is_proved && !(faulty && self.random.chance(3));
                self.orders[number].state = if is_right {
                    OrderState::Ready
                } else {
                    OrderState::Invalid
                };
                AcmeReply::Pending { after: None }
            }
            (OrderState::Checked(looks), _) => {
                self.orders[number].state = OrderState::Checked(looks - 1);
                let after = SignedDuration::from_secs(3);
                let after = self.random.chance(30).then_some(after);
                AcmeReply::Pending { after }
            }
            (OrderState::Invalid, _) => {
                let message = "the answer to the challenge is another one";
                failed(AcmeFailureKind::Refused, message)
            }
            (OrderState::Gone, _) => failed(AcmeFailureKind::Gone, "no such order"),
            (OrderState::Ready, None) => AcmeReply::Ready,
            (OrderState::Ready, Some(request)) => {
                let chain = self.issue(number, request, now);
                AcmeReply::Certificate(chain)
            }
            (OrderState::Issued(chain), _) => AcmeReply::Certificate(chain),
        }
    }

    /// Whether name servers answer with the record of an order.
    fn sees_record(&self, number: usize) -> bool {
        let name = record_name(&self.orders[number].host);
        self.zones.is_seen(&name, &record_text(number))
    }

    /// Adds a record by the hook, and asks the name servers for it.
    fn add_record(&mut self, place: &DnsPlace, text: &str) -> RecordCheck {
        let (faulty, mut delay) = (self.behaviour.faulty, Duration::ZERO);
        let fails = self.zones.fault() == ZoneFault::Fails || (faulty && self.random.chance(5));
        if fails {
            return RecordCheck {
                failed: Some("the hook ended with status 1".to_owned()),
                ..RecordCheck::default()
            };
        }
        if faulty {
            delay = self.random.milliseconds(0, SEEN_WITHIN);
        }
        self.zones.add(&place.name, text, delay);
        let is_seen = self.zones.is_seen(&place.name, text);
        let missing = (!is_seen).then(|| "the zone's name server".to_owned());
        RecordCheck {
            missing: missing.into_iter().collect(),
            ..RecordCheck::default()
        }
    }

    /// Removes a record by the hook; returns false if the hook fails.
    fn remove_record(&mut self, place: &DnsPlace, text: &str) -> bool {
        let is_broken = matches!(self.zones.fault(), ZoneFault::Fails | ZoneFault::Keeps);
        if is_broken || (self.behaviour.faulty && self.random.chance(5)) {
            return false;
        }
        self.zones.remove(&place.name, text);
        true
    }

    /// Whether some machine that the server asks gives the answer to the challenge.
    fn fetches(&mut self, number: usize) -> bool {
        let present: Vec<&BTreeMap<String, String>> = self.served.values().flatten().collect();
        if present.is_empty() {
            return false;
        }
        let first = self.random.index(present.len());
        let asked = present.iter().cycle().skip(first).take(ASKED);
        let (token, proof) = (token(number), proof(number));
        let mut answers = asked.filter_map(|answers| answers.get(&token));
        answers.any(|answer| *answer == proof)
    }

    /// Issues the certificate; returns its chain.
    fn issue(&mut self, number: usize, request: &[u8], now: Timestamp) -> String {
        let der = request.into();
        let mut csr = CertificateSigningRequestParams::from_der(&der).unwrap();
        let at = |time: Timestamp| {
            let time = ASN1Time::from_timestamp(time.as_second()).unwrap();
            time.to_datetime()
        };
        let behaviour = self.behaviour;
        let is_old = behaviour.backdates || (behaviour.faulty && self.random.chance(5));
        let early = if is_old {
            BACKDATED
        } else {
            SignedDuration::ZERO
        };
        let life = if behaviour.renews {
            SHORT_LIFE
        } else {
            LONG_LIFE
        };
        csr.params.not_before = at(now.checked_sub(early).unwrap());
        csr.params.not_after = at(now.checked_add(life).unwrap());
        let names = format!("{:?}", csr.params.subject_alt_names);
        let order = &mut self.orders[number];
        assert!(names.contains(&order.host), "{names}");
        let chain = csr.signed_by(&self.authority).unwrap().pem();
        order.state = OrderState::Issued(chain.clone());
        chain
    }

    fn renewal(&self, now: Timestamp) -> AcmeReply {
        let soon = (now, now.checked_add(RENEWAL).unwrap());
        let renews = self.behaviour.renews;
        AcmeReply::Renewal {
            at: renews.then_some(soon),
            ask_after: renews.then_some(SignedDuration::from_mins(1)),
        }
    }
}

struct Connection {
    servers: Arc<AcmeServers>,
    process: String,
    way: Arc<Way>,
}

impl Connection {
    /// Carries a question or its answer; returns false if that is lost.
    async fn carry(&self) -> bool {
        sleep(self.way.now().latency + LATENCY).await;
        !self.way.now().machines_cut
    }

    async fn reply(&self, question: &AcmeQuestion) -> AcmeReply {
        if let AcmeRequest::Check { token, answer, .. } = &question.request {
            sleep(self.way.now().latency).await;
            return AcmeReply::Checked(self.servers.checked(token, answer));
        }
        if let Some(reply) = self.reply_of_hook(&question.request).await {
            return reply;
        }
        let lost = || failed(AcmeFailureKind::Unreachable, "the connection was reset");
        if !self.carry().await {
            return lost();
        }
        let fate = self.servers.fate();
        let reply = match &fate {
            QuestionFate::Refused(failure) => AcmeReply::Failed(failure.clone()),
            QuestionFate::Answered | QuestionFate::Lost | QuestionFate::Silent => {
                self.servers.answer(question)
            }
        };
        if matches!(fate, QuestionFate::Silent) {
            self.note(question, "nothing in time");
            return pending().await;
        }
        let arrives = self.carry().await;
        if arrives && !matches!(fate, QuestionFate::Lost) {
            reply
        } else {
            lost()
        }
    }

    /// What the hook of the process' machine does; `None` for questions to servers.
    async fn reply_of_hook(&self, request: &AcmeRequest) -> Option<AcmeReply> {
        if !matches!(
            request,
            AcmeRequest::LocateForHook { .. }
                | AcmeRequest::Record { .. }
                | AcmeRequest::Remove { .. }
        ) {
            return None;
        }
        let lost = || {
            let message = "the hook has not reached the provider of the zone";
            failed(AcmeFailureKind::NameServer, message)
        };
        if !self.carry().await {
            return Some(lost());
        }
        let hangs = self.servers.with_zones(|zones| zones.fault()) == ZoneFault::Hangs;
        let reply = match request {
            AcmeRequest::Record { place, value, .. } => {
                let check = self.servers.state.lock().add_record(place, value);
                AcmeReply::Recorded(check)
            }
            AcmeRequest::Remove { .. } | AcmeRequest::LocateForHook { .. } if hangs => {
                return pending().await;
            }
            AcmeRequest::Remove { place, value, .. } => {
                let is_removed = self.servers.state.lock().remove_record(place, value);
                match is_removed {
                    true => AcmeReply::Removed,
                    false => lost(),
                }
            }
            AcmeRequest::LocateForHook { name, zone, hook } => self.located(name, zone, hook),
            _ => return None,
        };
        if hangs {
            return pending().await;
        }
        Some(if self.carry().await { reply } else { lost() })
    }

    fn located(&self, name: &str, zone: &str, hook: &str) -> AcmeReply {
        let fault = self.servers.with_zones(|zones| zones.fault());
        if fault == ZoneFault::Fails {
            let message = "the hook ended with status 1";
            return failed(AcmeFailureKind::NameServer, message);
        }
        AcmeReply::Located(DnsPlace {
            zone: zone.to_owned(),
            name: name.to_owned(),
            hook: Some(hook.to_owned()),
            ..DnsPlace::default()
        })
    }

    fn note(&self, question: &AcmeQuestion, reply: &str) {
        let (word, host) = (question.request.word(), &question.host);
        let process = &self.process;
        let text = format!("{process} asks {word} for {host:?}: {reply}");
        self.servers.monitor.note(&text);
    }
}

#[async_trait]
impl AcmeServer for Connection {
    async fn ask(&self, question: &AcmeQuestion) -> AcmeReply {
        let reply = self.reply(question).await;
        self.note(question, &format!("{reply:?}"));
        reply
    }
}

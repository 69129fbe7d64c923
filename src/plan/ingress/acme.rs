//! Certificates by ACME (RFC 8555): what the leader does next for each host, and what follows from an
//! answer.
//!
//! [`AcmeOrders::next`] and [`AcmeOrders::answered`] do no input or output, and read no clock. The
//! caller carries out what [`AcmeStep`] says: it writes, or it asks the server and gives the answer
//! back. All that matters is in the store, so that another leader continues from there at every step;
//! what [`AcmeOrders`] remembers itself saves questions. They make keys and tokens, so they are no part
//! of a plan.
//!
//! What holds whatever is lost:
//! - The key of an account is stored before the server hears of it, and no account is deleted.
//!   Registering it again gives the same account. Only the account of an operator (`eab`) is stored
//!   after the server's answer.
//! - The key of a certificate is stored before it is requested.
//! - A certificate is written under the condition that its order is still the stored one, and replaces
//!   none of the same server that was issued later. It may expire earlier than that: the server's
//!   certificates may last shorter from now on, and a key that is given up has to go.
//! - A record of DNS is written down before it is added, and forgotten after it is removed.
//! - An order that a server has made is counted with the write of its state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{
    certificates::{
        CertificateStep, IssuingError, certificate_place, conditions_of_data_key, data_key_step,
        put, round, sealed, single_value,
    },
    ingress_machines, internal_domains,
    routes::{PlannedRoute, RouteIssuer, hosts, planned_routes},
};
use crate::{Snapshot, SnapshotSealing};
use kat_pki::{
    Validity,
    acme::{account_key, certificate_key, certificate_request, random_token},
    delivery::SealingError,
    ingress::brought_certificate,
};
use kat_types::{
    api::{IngressState, NodePhase},
    resource::AcmeSettings,
    secrets::{SecretKey, SecretRecord},
    store::{
        acme::{
            ACCOUNT_KEY, AcmeAccountRecord, AcmeChallengeRecord, AcmeOrderRecord, AcmeOrderState,
            EAB_HMAC_KEY, EAB_KEY_ID, LETS_ENCRYPT, LONGEST_ANSWER, account_id, is_token,
            server_name,
        },
        ingress::{IngressCertificateRecord, TLS_CERTIFICATE, TLS_KEY, is_within},
        keys,
        revisions::Stored,
        snapshot::ObservedReports,
        transaction::{Compare, WriteOperation},
    },
};

mod allowance;
mod contact;
mod dns;
mod requests;
mod waits;

pub(crate) use allowance::counted_orders;
use allowance::namespaces_of_hosts;
use contact::FailedContact;
pub use dns::{DnsAccess, DnsKey, RecordCheck, TsigHash};
use requests::LONGEST_PAUSE;
pub use requests::{
    AcmeAccount, AcmeFailure, AcmeFailureKind, AcmeQuestion, AcmeReply, AcmeRequest, CheckedName,
    EabAccount, ProofKind,
};
pub use waits::order_in_words;
pub(super) use waits::order_reason;

/// Most orders that are under way at once for each kind of proof, and most hosts that one write is about.
const MOST_ORDERS: usize = 8;
/// Namespace of the secret of `eab`.
const SYSTEM_NAMESPACE: &str = "kat-core";
/// Longest wait for a machine that serves routes and has not confirmed the answer to a challenge, while
/// another one has.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// Pause between two looks at what machines have confirmed.
const LOOK: SignedDuration = SignedDuration::from_millis(250);
/// Longest time of an order in one state at the server.
const LONGEST_STATE: SignedDuration = SignedDuration::from_hours(1);
/// First and longest pause between two questions about an order.
const POLL: SignedDuration = SignedDuration::from_secs(1);
const LONGEST_POLL: SignedDuration = SignedDuration::from_mins(2);
/// How often a server is asked when a certificate should be renewed, unless it says so itself.
const RENEWAL_QUESTION: SignedDuration = SignedDuration::from_hours(6);
/// A certificate is not renewed in its first hour, or the first tenth of its life if that is shorter.
const FIRST_RENEWAL: SignedDuration = SignedDuration::from_hours(1);
/// No certificate is renewed sooner after it was stored.
const SHORTEST_LIFE: SignedDuration = SignedDuration::from_mins(1);
/// Longest chain of a certificate, in bytes.
const LONGEST_CHAIN: usize = 64 << 10;
/// Longest message of a failure that is stored, in characters.
const LONGEST_MESSAGE: usize = 300;
/// How far the server's clock may be ahead of the leader's.
const CLOCKS: SignedDuration = SignedDuration::from_mins(10);

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcmeStep {
    /// Write this, and decide anew.
    Write(CertificateStep),
    /// Ask this, and give the answer to [`AcmeOrders::answered`].
    Ask(AcmeQuestion),
    /// Nothing before this time, unless the store or a report changes.
    Wait(Timestamp),
}

/// What a leader remembers of orders. A new one is no loss but for some questions.
#[derive(Debug, Default)]
pub struct AcmeOrders {
    polls: BTreeMap<String, PollPause>,
    renewals: BTreeMap<String, RenewalTime>,
    /// The host of the last question; empty after the removal of a record. Others have their turn first.
    turn: String,
    /// No account is registered before this time, for whichever host: the last attempt failed.
    register: Option<Timestamp>,
    /// The address of the settings that the server did not take.
    contact: Option<FailedContact>,
}

/// Pause of an order whose server needs time.
#[derive(Debug, Clone)]
struct PollPause {
    /// Since when the order has its state. The next one begins with short pauses again.
    since: Timestamp,
    count: u32,
    next: Timestamp,
}

/// When a server wants a certificate to be renewed (RFC 9773).
#[derive(Debug, Clone)]
struct RenewalTime {
    /// Revision of the certificate's record.
    revision: i64,
    /// `None` if the server does not say it.
    at: Option<Timestamp>,
    /// When to ask again.
    ask: Timestamp,
}

/// The server of the settings.
pub(super) fn directory(settings: &AcmeSettings) -> &str {
    settings.directory.as_deref().unwrap_or(LETS_ENCRYPT)
}

/// The hosts whose certificates are ordered: none before the terms are agreed to.
pub(super) fn ordered_hosts(snapshot: &Snapshot, routes: &[PlannedRoute<'_>]) -> BTreeSet<String> {
    let spec = &snapshot.wanted_cluster().spec;
    if !spec.acme.agree_to_terms {
        return BTreeSet::new();
    }
    let domains = internal_domains(spec);
    let ordered = routes
        .iter()
        .filter(|planned| planned.issuer == RouteIssuer::Acme && planned.is_assigned());
    ordered
        .flat_map(|planned| hosts(planned.route))
        .filter(|host| can_be_ordered(host, &domains, &spec.acme))
        .cloned()
        .collect()
}

/// Whether a certificate for the host can be ordered: a wildcard needs a proof by DNS.
pub(super) fn can_be_ordered(
    host: &str,
    domains: &BTreeSet<String>,
    settings: &AcmeSettings,
) -> bool {
    let is_proved = !host.starts_with("*.") || dns::zone_of(settings, host).is_some();
    !is_within(host, domains) && is_proved
}

/// Whether there may be something to order, or something of earlier orders to tidy up.
pub fn uses_acme(snapshot: &Snapshot) -> bool {
    let spec = &snapshot.wanted_cluster().spec;
    spec.acme.agree_to_terms
        || !snapshot.acme_orders.is_empty()
        || !snapshot.acme_challenges.is_empty()
        || !snapshot.acme_dns.is_empty()
        || !snapshot.acme_new_orders.is_empty()
}

/// One look at the store.
struct OrderView<'a> {
    snapshot: &'a Snapshot,
    observed: &'a ObservedReports,
    settings: &'a AcmeSettings,
    directory: &'a str,
    now: Timestamp,
    /// The namespaces of routes, by host. Empty while an answer is looked at.
    namespaces: BTreeMap<&'a str, &'a str>,
}

/// What one host needs.
enum Need {
    Step(Box<AcmeStep>),
    Until(Timestamp),
    /// The account, before anything else.
    Account,
}

impl AcmeOrders {
    /// The next step.
    ///
    /// # Errors
    /// [`IssuingError`]; what is stored stays.
    pub fn next(
        &mut self,
        snapshot: &Snapshot,
        observed: &ObservedReports,
        now: Timestamp,
    ) -> Result<AcmeStep, IssuingError> {
        let SnapshotSealing::With(_) = snapshot.sealing else {
            return Ok(AcmeStep::Wait(later(now, LONGEST_STATE)));
        };
        let settings = &snapshot.wanted_cluster().spec.acme;
        let routes = planned_routes(snapshot);
        let view = OrderView {
            snapshot,
            observed,
            settings,
            directory: directory(settings),
            now,
            namespaces: namespaces_of_hosts(&routes),
        };
        let wanted = ordered_hosts(snapshot, &routes);
        let outdated = view.outdated(&wanted);
        if let Some(step) = outdated.or_else(|| view.outdated_counts()) {
            return Ok(AcmeStep::Write(step));
        }
        if !wanted.is_empty() && snapshot.sealing_keys.is_empty() {
            return Ok(AcmeStep::Write(data_key_step(snapshot, now)?));
        }
        self.polls.retain(|host, _| wanted.contains(host));
        self.renewals.retain(|host, _| wanted.contains(host));
        let mut wake = later(now, LONGEST_STATE);
        let mut without_account = BTreeSet::new();
        // Each question may take a minute: a host whose name servers hang is not asked about again before
        // all others. `None` is the removal of records.
        let last = self.turn.clone();
        let (before, after): (Vec<_>, Vec<_>) = wanted.iter().partition(|host| **host <= last);
        let after = after.into_iter().map(Some);
        let turns = after.chain([None]).chain(before.into_iter().map(Some));
        for host in turns {
            let need = match host {
                Some(host) => self.need_of(&view, host)?,
                None => view.removal()?,
            };
            match need {
                Need::Step(step) => {
                    if matches!(*step, AcmeStep::Ask(_)) {
                        self.turn = host.cloned().unwrap_or_default();
                    }
                    return Ok(*step);
                }
                Need::Until(at) => wake = wake.min(at),
                Need::Account => without_account.extend(host.cloned()),
            }
        }
        if without_account.is_empty() {
            match self.contact_need(&view)? {
                Some(Need::Step(step)) => return Ok(*step),
                Some(Need::Until(at)) => wake = wake.min(at),
                Some(Need::Account) | None => {}
            }
        }
        match self.register {
            _ if without_account.is_empty() => Ok(AcmeStep::Wait(wake)),
            Some(at) if now < at => Ok(AcmeStep::Wait(wake.min(at))),
            _ => view.register(without_account),
        }
    }

    fn need_of(&mut self, view: &OrderView<'_>, host: &str) -> Result<Need, IssuingError> {
        let snapshot = view.snapshot;
        if snapshot.unread_acme.contains(host)
            || snapshot.unread_acme.contains(&account_id(view.directory))
        {
            return Ok(Need::Until(later(view.now, LONGEST_STATE)));
        }
        let Some(order) = snapshot.acme_orders.get(host) else {
            return self.first_need(view, host, None);
        };
        let record = &order.value;
        let lasts = view.now.duration_since(record.since);
        match &record.state {
            // A time that no pause leads to was written by a clock that was ahead.
            AcmeOrderState::Failed { next }
                if view.now < *next && next.duration_since(view.now) <= LONGEST_PAUSE =>
            {
                Ok(Need::Until(*next))
            }
            AcmeOrderState::Failed { .. } => self.first_need(view, host, Some(record)),
            AcmeOrderState::Checking { token } => view.check(host, record, token),
            AcmeOrderState::Locating {} => view.locate(host),
            // What follows needs the account.
            _ if view.account()?.is_none() => Ok(Need::Account),
            AcmeOrderState::Recording { .. } if lasts > LONGEST_STATE => {
                let failure = OrderView::not_recorded(host);
                view.failed(host, &failure).map(written)
            }
            AcmeOrderState::Proving { .. }
            | AcmeOrderState::Validating { .. }
            | AcmeOrderState::ProvingByDns { .. }
            | AcmeOrderState::ValidatingByDns { .. }
            | AcmeOrderState::Issuing { .. }
                if lasts > LONGEST_STATE =>
            {
                let server = server_name(view.directory);
                let message = format!("{server} did not finish the order within an hour");
                let failure = AcmeFailure::gone(&message);
                view.failed(host, &failure).map(written)
            }
            AcmeOrderState::Ordering {} => view.order(host, ProofKind::Http),
            AcmeOrderState::OrderingByDns { .. } => view.order(host, ProofKind::Dns),
            AcmeOrderState::Recording { url, value } => match self.pause(host, record, view.now) {
                Some(next) => Ok(Need::Until(next)),
                None => view.record(host, value, url),
            },
            AcmeOrderState::ProvingByDns { url, .. } => match self.pause(host, record, view.now) {
                Some(next) => Ok(Need::Until(next)),
                None => view.answer(host, url, ProofKind::Dns),
            },
            AcmeOrderState::Proving { url, token } => {
                let Some(challenge) = snapshot.acme_challenges.get(token) else {
                    return view.lost(host, record);
                };
                if !view.is_confirmed(challenge.revision, record.since) {
                    return Ok(Need::Until(later(view.now, LOOK)));
                }
                match self.pause(host, record, view.now) {
                    Some(next) => Ok(Need::Until(next)),
                    None => view.answer(host, url, ProofKind::Http),
                }
            }
            AcmeOrderState::Validating { url, .. }
            | AcmeOrderState::ValidatingByDns { url, .. } => {
                match self.pause(host, record, view.now) {
                    Some(next) => Ok(Need::Until(next)),
                    None => view.proceed(host, url, None),
                }
            }
            AcmeOrderState::Issuing { url, key } => match self.pause(host, record, view.now) {
                Some(next) => Ok(Need::Until(next)),
                None => view.request_certificate(host, url, key),
            },
        }
    }

    /// The first step of an order, once the host needs one.
    fn first_need(
        &mut self,
        view: &OrderView<'_>,
        host: &str,
        before: Option<&AcmeOrderRecord>,
    ) -> Result<Need, IssuingError> {
        if let Some(stored) = view.snapshot.ingress_certificates.get(host)
            && view.is_of_server(&stored.value)
            // A machine that has left may have kept the keys of an earlier round.
            && stored.value.round >= round(view.snapshot)
        {
            let due = match self.renewals.get(host) {
                Some(known) if known.revision == stored.revision && view.now < known.ask => {
                    renewal_due(&stored.value, known.at)
                }
                _ if view.account()?.is_none() => renewal_due(&stored.value, None),
                _ => {
                    let request = AcmeRequest::RenewalTime {
                        account: view.known_account()?,
                        certificate: stored.value.certificate.clone(),
                    };
                    return Ok(view.ask(host, request));
                }
            };
            if view.now < due {
                let ask = self.renewals.get(host).map_or(due, |known| known.ask);
                return Ok(Need::Until(due.min(ask)));
            }
        }
        // Every host whose certificate is ordered has a route.
        let namespace = view.namespaces.get(host).copied().unwrap_or_default();
        if let Some(until) = view.held_up_until(namespace, host) {
            return Ok(Need::Until(until));
        }
        let by_dns = dns::zone_of(view.settings, host).is_some();
        let orders = view.snapshot.acme_orders.values();
        // Name servers may be waited for for an hour: proofs by HTTP do not wait for these orders.
        let under_way = orders.filter(|one| match one.value.state {
            AcmeOrderState::Failed { .. } => false,
            AcmeOrderState::Issuing { .. } => true,
            AcmeOrderState::Checking { .. }
            | AcmeOrderState::Ordering {}
            | AcmeOrderState::Proving { .. }
            | AcmeOrderState::Validating { .. } => !by_dns,
            AcmeOrderState::Locating {}
            | AcmeOrderState::OrderingByDns { .. }
            | AcmeOrderState::Recording { .. }
            | AcmeOrderState::ProvingByDns { .. }
            | AcmeOrderState::ValidatingByDns { .. } => by_dns,
        });
        if under_way.count() >= MOST_ORDERS {
            return Ok(Need::Until(later(view.now, POLL)));
        }
        if view.account()?.is_none() {
            return Ok(Need::Account);
        }
        let begun = |state: AcmeOrderState| AcmeOrderRecord {
            state,
            since: view.now,
            unchecked: String::new(),
            namespace: namespace.to_owned(),
            ..before.cloned().unwrap_or_else(|| view.new_record())
        };
        let what = format!("the order for {host} begins");
        if by_dns {
            let record = begun(AcmeOrderState::Locating {});
            return view.order_step(host, &record, what).map(written);
        }
        let token = random_token()?;
        let record = begun(AcmeOrderState::Checking {
            token: token.clone(),
        });
        let mut step = view.order_step(host, &record, what)?;
        step.operations
            .push(view.challenge(&token, random_token()?)?);
        Ok(written(step))
    }

    /// When an order may be asked about again; `None` for now.
    fn pause(&self, host: &str, order: &AcmeOrderRecord, now: Timestamp) -> Option<Timestamp> {
        let known = self.polls.get(host);
        let known = known.filter(|known| known.since == order.since)?;
        let is_sane = known.next.duration_since(now) <= LONGEST_STATE;
        (now < known.next && is_sane).then_some(known.next)
    }

    /// Asks about an order later: `after` what the server says, else after a growing pause.
    fn pause_for(
        &mut self,
        host: &str,
        order: &AcmeOrderRecord,
        after: Option<SignedDuration>,
        longest: SignedDuration,
        now: Timestamp,
    ) {
        let before = self.polls.get(host);
        let before = before.filter(|known| known.since == order.since);
        let count = before.map_or(0, |known| known.count.saturating_add(1));
        let pause = doubled(POLL, count, longest);
        let pause = after.unwrap_or(pause).clamp(POLL, LONGEST_STATE);
        let known = PollPause {
            since: order.since,
            count,
            next: later(now, pause),
        };
        self.polls.insert(host.to_owned(), known);
    }

    /// What follows from an answer; `None` if nothing has to be written.
    ///
    /// # Errors
    /// [`IssuingError`]; what is stored stays.
    pub fn answered(
        &mut self,
        snapshot: &Snapshot,
        question: &AcmeQuestion,
        reply: AcmeReply,
        now: Timestamp,
    ) -> Result<Option<CertificateStep>, IssuingError> {
        let settings = &snapshot.wanted_cluster().spec.acme;
        let observed = ObservedReports::default();
        let view = OrderView {
            snapshot,
            observed: &observed,
            settings,
            directory: directory(settings),
            now,
            namespaces: BTreeMap::new(),
        };
        if let Some(done) = view.answered_removal(question, &reply) {
            return done;
        }
        if question.directory != view.directory {
            return Ok(None);
        }
        let host = &question.host;
        if let AcmeRequest::Contact { account, email } = &question.request {
            return self.contact_answered(&view, account, email.as_deref(), &reply);
        }
        if let AcmeReply::Failed(failure) = &reply {
            return self.refused(&view, question, failure);
        }
        if let (AcmeReply::Registered { url, key }, AcmeRequest::Register { email, .. }) =
            (&reply, &question.request)
        {
            let registered = view.registered(url, key.as_deref(), email.as_deref());
            return registered.map(Some);
        }
        if let AcmeReply::Renewal { at, ask_after } = reply {
            self.note_renewal(&view, host, at, ask_after);
            return Ok(None);
        }
        let Some(order) = snapshot.acme_orders.get(host) else {
            return Ok(None);
        };
        let is_made = matches!(reply, AcmeReply::Ordered { .. });
        let mut step = self.order_answered(&view, host, &order.value, reply)?;
        if let Some(step) = step.as_mut().filter(|_| is_made) {
            view.count_order(host, step)?;
        }
        Ok(step)
    }

    /// Remembers when the server wants the certificate to be renewed.
    fn note_renewal(
        &mut self,
        view: &OrderView<'_>,
        host: &str,
        at: Option<(Timestamp, Timestamp)>,
        ask_after: Option<SignedDuration>,
    ) {
        let Some(stored) = view.snapshot.ingress_certificates.get(host) else {
            return;
        };
        let known = RenewalTime {
            revision: stored.revision,
            at: at.map(|(start, end)| within(start, end, host)),
            ask: later(
                view.now,
                ask_after
                    .unwrap_or(RENEWAL_QUESTION)
                    .clamp(SignedDuration::from_mins(1), SignedDuration::from_hours(24)),
            ),
        };
        self.renewals.insert(host.to_owned(), known);
    }

    /// What follows from an answer about an order.
    fn order_answered(
        &mut self,
        view: &OrderView<'_>,
        host: &str,
        record: &AcmeOrderRecord,
        reply: AcmeReply,
    ) -> Result<Option<CertificateStep>, IssuingError> {
        match (&record.state, reply) {
            (AcmeOrderState::Checking { token }, AcmeReply::Checked(checked)) => {
                view.checked(host, token, &checked).map(Some)
            }
            (AcmeOrderState::Locating {}, AcmeReply::Located(place)) => {
                let what = format!("{host} is to be proved at {}, which is", place.name);
                let state = AcmeOrderState::OrderingByDns { place };
                view.state_step(host, state, what).map(Some)
            }
            (AcmeOrderState::OrderingByDns { place }, AcmeReply::Ordered { url, challenge }) => {
                view.ordered_by_dns(host, place, url, challenge).map(Some)
            }
            (AcmeOrderState::Recording { .. }, AcmeReply::Recorded(check)) => {
                let step = view.recorded(host, record, &check)?;
                if let Some(longest) = view.wait_for_record(record, &check) {
                    self.pause_for(host, record, None, longest, view.now);
                }
                Ok(step)
            }
            (AcmeOrderState::ProvingByDns { url, value }, AcmeReply::Answered) => {
                let state = AcmeOrderState::ValidatingByDns {
                    url: url.clone(),
                    value: value.clone(),
                };
                let what = format!("the challenge for {host} is answered");
                view.state_step(host, state, what).map(Some)
            }
            (AcmeOrderState::Ordering {}, AcmeReply::Ordered { url, challenge }) => {
                view.ordered(host, url, challenge).map(Some)
            }
            (AcmeOrderState::Proving { url, token }, AcmeReply::Answered) => {
                let state = AcmeOrderState::Validating {
                    url: url.clone(),
                    token: token.clone(),
                };
                let what = format!("the challenge for {host} is answered");
                view.state_step(host, state, what).map(Some)
            }
            (
                AcmeOrderState::Validating { .. }
                | AcmeOrderState::ValidatingByDns { .. }
                | AcmeOrderState::Issuing { .. },
                AcmeReply::Pending { after },
            ) => {
                self.pause_for(host, record, after, LONGEST_POLL, view.now);
                Ok(None)
            }
            (
                AcmeOrderState::Validating { url, .. }
                | AcmeOrderState::ValidatingByDns { url, .. },
                AcmeReply::Ready,
            ) => view.ready(host, url.clone()).map(Some),
            (AcmeOrderState::Issuing { key, .. }, AcmeReply::Certificate(chain)) => {
                match view.accepted(host, key, &chain)? {
                    Ok(step) => Ok(Some(step)),
                    Err(why) => {
                        let failure = AcmeFailure::refused(&why);
                        view.failed(host, &failure).map(Some)
                    }
                }
            }
            // Such as a certificate of an order that was ready before its key was stored.
            _ => view
                .failed(
                    host,
                    &AcmeFailure::gone("the server's order is in another state"),
                )
                .map(Some),
        }
    }

    fn refused(
        &mut self,
        view: &OrderView<'_>,
        question: &AcmeQuestion,
        failure: &AcmeFailure,
    ) -> Result<Option<CertificateStep>, IssuingError> {
        let host = &question.host;
        match &question.request {
            AcmeRequest::Register { hosts, .. } => {
                self.register = Some(later(view.now, failure.pause(0, false)));
                let failure = AcmeFailure {
                    message: format!("the account could not be registered: {}", failure.message),
                    ..failure.clone()
                };
                let mut step = CertificateStep::default();
                for host in hosts.iter().take(MOST_ORDERS) {
                    let one = view.failed(host, &failure)?;
                    step.what = one.what;
                    step.conditions.extend(one.conditions);
                    step.operations.extend(one.operations);
                }
                Ok(Some(step))
            }
            AcmeRequest::RenewalTime { .. } => {
                if let Some(stored) = view.snapshot.ingress_certificates.get(host) {
                    let known = RenewalTime {
                        revision: stored.revision,
                        at: None,
                        ask: later(view.now, SignedDuration::from_hours(1)),
                    };
                    self.renewals.insert(host.clone(), known);
                }
                Ok(None)
            }
            _ if failure.kind == AcmeFailureKind::NoAccount => {
                // The server has forgotten the account, not KAT its key: it is registered again.
                let mut step = view.failed(host, failure)?;
                if let Some((id, stored)) = view.stored_account() {
                    let record = AcmeAccountRecord {
                        url: String::new(),
                        ..AcmeAccountRecord::clone(&stored.value)
                    };
                    let key = keys::acme_account(&id);
                    step.conditions
                        .push(Compare::ModRevision(key.clone(), stored.revision));
                    step.operations.push(put(key, &record)?);
                }
                Ok(Some(step))
            }
            AcmeRequest::Answer { .. }
            | AcmeRequest::Continue { .. }
            | AcmeRequest::Record { .. }
                if failure.kind.is_passing() =>
            {
                if let Some(order) = view.snapshot.acme_orders.get(host) {
                    let after = failure.retry_after;
                    self.pause_for(host, &order.value, after, LONGEST_POLL, view.now);
                }
                Ok(None)
            }
            _ if view.snapshot.acme_orders.contains_key(host) => {
                view.failed(host, failure).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// The time of renewal: the server's, if it says one, else after two thirds of the certificate's life;
/// before nine tenths of it in any case. A server that always says "now" gets no order after the other,
/// nor does one whose clock is far behind or whose certificates begin long before they are issued: half of
/// what was left when the certificate was stored passes first.
fn renewal_due(record: &IngressCertificateRecord, asked: Option<Timestamp>) -> Timestamp {
    let life = record.expires.duration_since(record.issued);
    let usual = later(record.issued, life * 2 / 3);
    let soonest = later(record.key.updated, FIRST_RENEWAL.min(life / 10));
    let asked = asked.map(|at| at.max(soonest));
    let stored = record.key.updated;
    let half = (record.expires.duration_since(stored) / 2).max(SHORTEST_LIFE);
    let half = later(stored, half);
    let latest = later(record.issued, life * 9 / 10).max(half);
    asked.unwrap_or(usual.max(half)).min(latest)
}

/// A time within a window, the same for each leader and another one for each host.
fn within(start: Timestamp, end: Timestamp, host: &str) -> Timestamp {
    let sum = host.bytes().fold(7_u32, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(byte.into())
    });
    let part = i32::try_from(sum % 1000).unwrap_or(0);
    let length = end.duration_since(start).max(SignedDuration::ZERO);
    later(start, length / 1000 * part)
}

/// `first`, doubled `count` times, at most `longest`.
fn doubled(first: SignedDuration, count: u32, longest: SignedDuration) -> SignedDuration {
    let times = 2_i32.saturating_pow(count.min(20));
    first.checked_mul(times).unwrap_or(longest).min(longest)
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn written(step: CertificateStep) -> Need {
    Need::Step(Box::new(AcmeStep::Write(step)))
}

/// Where an account's key is sealed for.
pub(crate) fn account_place(id: &str) -> SecretKey {
    SecretKey::new(super::certificates::PLACE, &format!("account/{id}"))
}

/// Where the key of a certificate that is being issued is sealed for.
pub(crate) fn order_place(host: &str) -> SecretKey {
    SecretKey::new(super::certificates::PLACE, &format!("order/{host}"))
}

impl<'a> OrderView<'a> {
    /// Whether a certificate is of the present server.
    fn is_of_server(&self, record: &IngressCertificateRecord) -> bool {
        record.acme.as_deref() == Some(self.directory)
    }

    fn stored_account(&self) -> Option<(String, &'a Stored<std::sync::Arc<AcmeAccountRecord>>)> {
        let id = account_id(self.directory);
        let stored = self.snapshot.acme_accounts.get(&id)?;
        Some((id, stored))
    }

    /// The registered account; `None` before.
    fn account(&self) -> Result<Option<AcmeAccount>, IssuingError> {
        let Some((id, stored)) = self.stored_account() else {
            return Ok(None);
        };
        if stored.value.url.is_empty() {
            return Ok(None);
        }
        Ok(Some(AcmeAccount {
            url: stored.value.url.clone(),
            key: self.key_of(&id, &stored.value)?,
        }))
    }

    fn known_account(&self) -> Result<AcmeAccount, IssuingError> {
        let account = self.account()?;
        let missing = || SealingError::Malformed("the account of ACME".to_owned());
        Ok(account.ok_or_else(missing)?)
    }

    fn key_of(&self, id: &str, record: &AcmeAccountRecord) -> Result<Vec<u8>, IssuingError> {
        let place = account_place(id);
        let opened = self
            .snapshot
            .sealing
            .open(self.snapshot, &place, &record.key)?;
        single_value(&opened, ACCOUNT_KEY)
    }

    fn ask(&self, host: &str, request: AcmeRequest) -> Need {
        Need::Step(Box::new(AcmeStep::Ask(AcmeQuestion {
            directory: self.directory.to_owned(),
            host: host.to_owned(),
            request,
        })))
    }

    /// Makes the key of the account, or has the server register it.
    fn register(&self, hosts: BTreeSet<String>) -> Result<AcmeStep, IssuingError> {
        let ask = |key: Option<Vec<u8>>, eab: Option<EabAccount>| {
            AcmeStep::Ask(AcmeQuestion {
                directory: self.directory.to_owned(),
                host: String::new(),
                request: AcmeRequest::Register {
                    hosts: hosts.clone(),
                    email: self.settings.email.clone(),
                    key,
                    eab,
                },
            })
        };
        if let Some(eab) = &self.settings.eab {
            return match self.eab(&eab.secret) {
                Ok(account) => Ok(ask(None, Some(account))),
                Err(why) => {
                    let failure = AcmeFailure::refused(&format!("there is no account: {why}"));
                    let mut step = CertificateStep::default();
                    for host in hosts.iter().take(MOST_ORDERS) {
                        let one = self.failed(host, &failure)?;
                        step.what = one.what;
                        step.conditions.extend(one.conditions);
                        step.operations.extend(one.operations);
                    }
                    Ok(AcmeStep::Write(step))
                }
            };
        }
        if let Some((id, stored)) = self.stored_account() {
            return Ok(ask(Some(self.key_of(&id, &stored.value)?), None));
        }
        let key = account_key()?;
        let email = self.settings.email.as_deref();
        self.account_step(&key, String::new(), email)
            .map(AcmeStep::Write)
    }

    /// The secret of `eab`.
    fn eab(&self, secret: &str) -> Result<EabAccount, String> {
        let place = SecretKey::new(SYSTEM_NAMESPACE, secret);
        let Some(stored) = self.snapshot.secrets.get(&place) else {
            return Err(format!(
                "acme.eab names secret {place}, which does not exist"
            ));
        };
        let sealing = &self.snapshot.sealing;
        let opened = sealing.open(self.snapshot, &place, &stored.value);
        let opened = opened.map_err(|error| error.to_string())?;
        let text = |key: &str| {
            let value = opened.0.get(key);
            let value = value.and_then(|value| std::str::from_utf8(value).ok());
            let value = value.map(str::trim).filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("secret {place} has no text with the key {key}"))
        };
        EabAccount::new(text(EAB_KEY_ID)?, text(EAB_HMAC_KEY)?)
            .ok_or_else(|| format!("{EAB_HMAC_KEY} of secret {place} is no base64url"))
    }

    fn account_step(
        &self,
        key: &[u8],
        url: String,
        email: Option<&str>,
    ) -> Result<CertificateStep, IssuingError> {
        let id = account_id(self.directory);
        let before = self.snapshot.acme_accounts.get(&id);
        let values = [(ACCOUNT_KEY, key)];
        let earlier = before.map(|stored| &stored.value.key);
        let record = AcmeAccountRecord {
            schema: 1,
            directory: self.directory.to_owned(),
            created: before.map_or(self.now, |stored| stored.value.created),
            url,
            email: email.unwrap_or_default().to_owned(),
            key: sealed(
                self.snapshot,
                &account_place(&id),
                &values,
                earlier,
                self.now,
            )?,
        };
        let name = keys::acme_account(&id);
        let revision = before.map_or(0, |stored| stored.revision);
        let mut step = CertificateStep {
            what: format!("the account at {}", server_name(self.directory)),
            conditions: vec![Compare::ModRevision(name.clone(), revision)],
            operations: vec![put(name, &record)?],
        };
        conditions_of_data_key(self.snapshot, &mut step);
        Ok(step)
    }

    fn registered(
        &self,
        url: &str,
        key: Option<&[u8]>,
        email: Option<&str>,
    ) -> Result<CertificateStep, IssuingError> {
        if let Some(key) = key {
            return self.account_step(key, url.to_owned(), email);
        }
        let (id, stored) = self
            .stored_account()
            .ok_or_else(|| SealingError::Malformed("the account of ACME".to_owned()))?;
        let record = AcmeAccountRecord {
            url: url.to_owned(),
            // The settings may have another one by now.
            email: email.unwrap_or_default().to_owned(),
            ..AcmeAccountRecord::clone(&stored.value)
        };
        let name = keys::acme_account(&id);
        Ok(CertificateStep {
            what: format!("the account at {}", server_name(self.directory)),
            conditions: vec![Compare::ModRevision(name.clone(), stored.revision)],
            operations: vec![put(name, &record)?],
        })
    }

    /// Whether every machine that serves routes now answers with what was written at this revision, or
    /// all but those that take longer than [`CONFIRMED_WITHIN`].
    fn is_confirmed(&self, revision: i64, since: Timestamp) -> bool {
        let serving = ingress_machines(self.snapshot)
            .into_iter()
            .filter_map(|node| {
                let entry = self.snapshot.nodes.get(node)?;
                let status = entry.status.as_ref();
                let is_lost =
                    status.is_some_and(|status| status.value.phase == NodePhase::NotReady);
                let report = self.observed.reports.get(node)?.report.ingress.as_ref()?;
                (!is_lost && report.state == IngressState::Serving).then_some(report)
            });
        let (yes, no): (Vec<_>, Vec<_>) = serving.partition(|report| report.challenges >= revision);
        // Another leader's clock may have been ahead.
        let waited = self.now.duration_since(since).abs() >= CONFIRMED_WITHIN;
        !yes.is_empty() && (no.is_empty() || waited)
    }

    fn new_record(&self) -> AcmeOrderRecord {
        AcmeOrderRecord {
            schema: 1,
            directory: self.directory.to_owned(),
            state: AcmeOrderState::Ordering {},
            since: self.now,
            failures: 0,
            message: String::new(),
            unchecked: String::new(),
            namespace: String::new(),
        }
    }

    /// The write of an order, under the condition that it is still as it was. The challenge of the state
    /// before is no longer answered, unless the new one has it.
    fn order_step(
        &self,
        host: &str,
        record: &AcmeOrderRecord,
        what: String,
    ) -> Result<CertificateStep, IssuingError> {
        let before = self.snapshot.acme_orders.get(host);
        let name = keys::acme_order(host);
        let revision = before.map_or(0, |stored| stored.revision);
        let mut step = CertificateStep {
            what,
            conditions: vec![Compare::ModRevision(name.clone(), revision)],
            operations: vec![put(name, record)?],
        };
        let token = before.and_then(|stored| stored.value.state.token());
        if let Some(token) = token.filter(|token| record.state.token() != Some(token)) {
            let name = keys::acme_challenge(token);
            step.operations.push(WriteOperation::Delete(name));
        }
        Ok(step)
    }

    fn state_step(
        &self,
        host: &str,
        state: AcmeOrderState,
        what: String,
    ) -> Result<CertificateStep, IssuingError> {
        let before = self.snapshot.acme_orders.get(host);
        let before = before.map(|stored| AcmeOrderRecord::clone(&stored.value));
        let record = AcmeOrderRecord {
            state,
            since: self.now,
            ..before.unwrap_or_else(|| self.new_record())
        };
        self.order_step(host, &record, what)
    }

    fn challenge(&self, token: &str, answer: String) -> Result<WriteOperation, IssuingError> {
        let record = AcmeChallengeRecord { schema: 1, answer };
        Ok(put(keys::acme_challenge(token), &record)?)
    }

    /// Asks what the addresses of the host answer, once machines have confirmed that they serve it.
    fn check(
        &self,
        host: &str,
        record: &AcmeOrderRecord,
        token: &str,
    ) -> Result<Need, IssuingError> {
        let Some(challenge) = self.snapshot.acme_challenges.get(token) else {
            return self.lost(host, record);
        };
        if !self.is_confirmed(challenge.revision, record.since) {
            return Ok(Need::Until(later(self.now, LOOK)));
        }
        let request = AcmeRequest::Check {
            token: token.to_owned(),
            answer: challenge.value.answer.clone(),
            own: {
                let spec = &self.snapshot.wanted_cluster().spec;
                vec![spec.cluster_cidr, spec.service_cidr]
            },
        };
        Ok(self.ask(host, request))
    }

    /// Makes the order at the server.
    fn order(&self, host: &str, proof: ProofKind) -> Result<Need, IssuingError> {
        let stored = self.snapshot.ingress_certificates.get(host);
        let stored = stored.filter(|one| self.is_of_server(&one.value));
        let request = AcmeRequest::Order {
            account: self.known_account()?,
            profile: self.settings.profile.clone(),
            replaces: stored.map(|one| one.value.certificate.clone()),
            proof,
        };
        Ok(self.ask(host, request))
    }

    /// Tells the server to fetch the answer to its challenge.
    fn answer(&self, host: &str, url: &str, proof: ProofKind) -> Result<Need, IssuingError> {
        let request = AcmeRequest::Answer {
            account: self.known_account()?,
            url: url.to_owned(),
            proof,
        };
        Ok(self.ask(host, request))
    }

    /// Asks about the order, with the `request` for the certificate once the name is proved.
    fn proceed(
        &self,
        host: &str,
        url: &str,
        request: Option<Vec<u8>>,
    ) -> Result<Need, IssuingError> {
        let request = AcmeRequest::Continue {
            account: self.known_account()?,
            url: url.to_owned(),
            request,
        };
        Ok(self.ask(host, request))
    }

    /// Asks about the order with the request for the certificate, made with the order's `key`.
    fn request_certificate(
        &self,
        host: &str,
        url: &str,
        key: &SecretRecord,
    ) -> Result<Need, IssuingError> {
        let snapshot = self.snapshot;
        let opened = match snapshot.sealing.open(snapshot, &order_place(host), key) {
            Ok(opened) => opened,
            // Other hosts do not wait for this one, and another order has another key.
            Err(error) => {
                let message = format!("the key of the order can't be opened: {error}");
                return self.failed(host, &AcmeFailure::gone(&message)).map(written);
            }
        };
        let key = single_value(&opened, TLS_KEY)?;
        let key = String::from_utf8(key)
            .map_err(|_| SealingError::Malformed(format!("the key for {host}")))?;
        self.proceed(host, url, Some(certificate_request(host, &key)?))
    }

    /// An order whose challenge is gone begins anew.
    fn lost(&self, host: &str, record: &AcmeOrderRecord) -> Result<Need, IssuingError> {
        let record = AcmeOrderRecord {
            state: AcmeOrderState::Failed { next: self.now },
            since: self.now,
            ..record.clone()
        };
        let what = format!("the order for {host} begins anew");
        self.order_step(host, &record, what).map(written)
    }

    /// The order is made: the answer to its challenge is stored, for machines to serve.
    fn ordered(
        &self,
        host: &str,
        url: String,
        challenge: Option<(String, String)>,
    ) -> Result<CertificateStep, IssuingError> {
        let Some((token, answer)) = challenge else {
            return self.ready(host, url);
        };
        if !is_token(&token) || answer.len() > LONGEST_ANSWER {
            let failure = AcmeFailure::refused("the challenge has no usable token");
            return self.failed(host, &failure);
        }
        let state = AcmeOrderState::Proving {
            url,
            token: token.clone(),
        };
        let mut step = self.state_step(host, state, format!("the order for {host} is made"))?;
        step.operations.push(self.challenge(&token, answer)?);
        Ok(step)
    }

    fn checked(
        &self,
        host: &str,
        token: &str,
        checked: &CheckedName,
    ) -> Result<CertificateStep, IssuingError> {
        match checked.verdict(host) {
            Err(message) => {
                let failure = AcmeFailure {
                    kind: AcmeFailureKind::Name,
                    message,
                    retry_after: None,
                };
                self.failed(host, &failure)
            }
            Ok(unchecked) => {
                let before = self.snapshot.acme_orders.get(host);
                let before = before.map(|stored| AcmeOrderRecord::clone(&stored.value));
                let record = AcmeOrderRecord {
                    state: AcmeOrderState::Ordering {},
                    since: self.now,
                    unchecked,
                    ..before.unwrap_or_else(|| self.new_record())
                };
                let what = format!("{host} is checked with {}", token.get(..6).unwrap_or(token));
                self.order_step(host, &record, what)
            }
        }
    }

    /// The server has its proof: the key of the certificate is made.
    fn ready(&self, host: &str, url: String) -> Result<CertificateStep, IssuingError> {
        let key = certificate_key()?;
        let values = [(TLS_KEY, key.as_bytes())];
        let key = sealed(self.snapshot, &order_place(host), &values, None, self.now)?;
        let what = format!("the name {host} is proved");
        let mut step = self.state_step(host, AcmeOrderState::Issuing { url, key }, what)?;
        conditions_of_data_key(self.snapshot, &mut step);
        Ok(step)
    }

    /// Stores a certificate; `Err` with the reason if it can't be served.
    fn accepted(
        &self,
        host: &str,
        key: &SecretRecord,
        chain: &str,
    ) -> Result<Result<CertificateStep, String>, IssuingError> {
        let snapshot = self.snapshot;
        if chain.len() > LONGEST_CHAIN {
            return Ok(Err(
                "the certificate's chain is longer than 64 KiB".to_owned()
            ));
        }
        let opened = snapshot.sealing.open(snapshot, &order_place(host), key)?;
        let key = single_value(&opened, TLS_KEY)?;
        let brought = match brought_certificate(chain.as_bytes(), &key) {
            Ok(brought) => brought,
            Err(error) => return Ok(Err(format!("the certificate cannot be used: {error}"))),
        };
        if !brought.is_for(host) {
            return Ok(Err("the certificate is for another name".to_owned()));
        }
        let Validity {
            not_before,
            not_after,
        } = brought.validity;
        if not_after <= self.now || not_before > later(self.now, CLOCKS) {
            return Ok(Err(format!(
                "the certificate is valid from {not_before} to {not_after} alone; compare the leader's clock"
            )));
        }
        let before = snapshot.ingress_certificates.get(host);
        let same = before.filter(|stored| self.is_of_server(&stored.value));
        if same.is_some_and(|stored| stored.value.issued > not_before) {
            return Ok(Err(
                "the certificate is older than the present one".to_owned()
            ));
        }
        let values = [(TLS_CERTIFICATE, chain.as_bytes()), (TLS_KEY, &key[..])];
        let earlier = before.map(|stored| &stored.value.key);
        let record = IngressCertificateRecord {
            schema: 1,
            certificate: chain.to_owned(),
            authority: String::new(),
            acme: Some(self.directory.to_owned()),
            issued: not_before,
            expires: not_after,
            round: round(snapshot),
            key: sealed(
                snapshot,
                &certificate_place(host),
                &values,
                earlier,
                self.now,
            )?,
        };
        let (name, order) = (keys::ingress_certificate(host), keys::acme_order(host));
        let revision = before.map_or(0, |stored| stored.revision);
        let stored = snapshot.acme_orders.get(host);
        let mut step = CertificateStep {
            what: format!("the certificate for {host}, valid until {not_after},"),
            conditions: vec![
                Compare::ModRevision(name.clone(), revision),
                Compare::ModRevision(order.clone(), stored.map_or(0, |stored| stored.revision)),
            ],
            operations: vec![put(name, &record)?, WriteOperation::Delete(order)],
        };
        conditions_of_data_key(snapshot, &mut step);
        Ok(Ok(step))
    }

    /// The write of a failed attempt, with the time of the next one.
    fn failed(&self, host: &str, failure: &AcmeFailure) -> Result<CertificateStep, IssuingError> {
        let before = self.snapshot.acme_orders.get(host);
        let before = before.map(|stored| AcmeOrderRecord::clone(&stored.value));
        let before = before.unwrap_or_else(|| self.new_record());
        let pause = failure.pause(before.failures, !before.unchecked.is_empty());
        let mut message = failure.in_words(self.directory);
        if !before.unchecked.is_empty() {
            message = format!("{message}; {}", before.unchecked);
        }
        let record = AcmeOrderRecord {
            state: AcmeOrderState::Failed {
                next: later(self.now, pause),
            },
            since: self.now,
            failures: before.failures.saturating_add(1),
            message: message
                .chars()
                .filter(|one| !one.is_control())
                .take(LONGEST_MESSAGE)
                .collect(),
            ..before
        };
        let what = format!("the order for {host} has failed: {}", record.message);
        self.order_step(host, &record, what)
    }

    /// Removes orders of hosts that no route has any more, those of another server, and answers to
    /// challenges of no order.
    fn outdated(&self, wanted: &BTreeSet<String>) -> Option<CertificateStep> {
        let snapshot = self.snapshot;
        let mut workloads = snapshot.workloads.values();
        if workloads.any(|entry| entry.parsed.is_err()) || snapshot.unread_outside_routes > 0 {
            // Its routes may need them.
            return None;
        }
        let mut step = CertificateStep {
            what: "orders that are not needed any more are removed, which is".to_owned(),
            ..CertificateStep::default()
        };
        for (host, order) in &snapshot.acme_orders {
            if !(wanted.contains(host) && order.value.directory == self.directory) {
                let name = keys::acme_order(host);
                let condition = Compare::ModRevision(name.clone(), order.revision);
                step.conditions.push(condition);
                step.operations.push(WriteOperation::Delete(name));
            }
        }
        if snapshot.unread_acme.is_empty() {
            let orders = snapshot.acme_orders.iter();
            let kept = orders.filter(|(host, order)| {
                wanted.contains(*host) && order.value.directory == self.directory
            });
            let tokens: BTreeSet<&str> = kept
                .filter_map(|(_, order)| order.value.state.token())
                .collect();
            for (token, stored) in &snapshot.acme_challenges {
                if !tokens.contains(token.as_str()) {
                    let name = keys::acme_challenge(token);
                    let condition = Compare::ModRevision(name.clone(), stored.revision);
                    step.conditions.push(condition);
                    step.operations.push(WriteOperation::Delete(name));
                }
            }
        }
        step.conditions.truncate(MOST_ORDERS);
        step.operations.truncate(MOST_ORDERS);
        (!step.operations.is_empty()).then_some(step)
    }
}

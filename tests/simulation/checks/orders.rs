//! Certificates by ACME: no account is lost or made a second time, a host has one order, and neither the
//! store nor a machine goes back to an earlier certificate or to none.
//!
//! The store is checked at each transaction of a leader. What `kat-ingress` serves is taken from each
//! machine's copy, as for other routes ([`super::routes`]), and reported to the leader from here.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    checks::monitor::Monitor,
    load::secrets::private_key,
    machines::{acme_servers::record_name, agent_process::Process},
    world::World,
};
use kat_agent::{IngressContent, ingress_content, needs_new_files};
use kat_store::MirrorState;
use kat_types::{
    api::{IngressReport, IngressState},
    resource::AcmeSettings,
    store::{
        acme::{AcmeAccountRecord, AcmeOrderRecord, AcmeOrderState},
        ingress::IngressCertificateRecord,
        keys,
        transaction::WriteOperation,
    },
};

/// An agent that starts anew may be shown what is older than its last state, as
/// [`super::routes`] says.
const KEPT: Duration = Duration::from_secs(7);

/// What leaders have written of accounts, orders and certificates.
#[derive(Default)]
pub(crate) struct OrderHistory {
    accounts: BTreeMap<String, AcmeAccountRecord>,
    orders: BTreeMap<String, AcmeOrderRecord>,
    certificates: BTreeMap<String, IngressCertificateRecord>,
    /// Numbers of the chains, in the order in which they were stored.
    numbers: BTreeMap<String, usize>,
    /// Routes are being deleted: leaders may delete what was ordered for their hosts.
    pub routes_leave: bool,
}

/// URL of the order at the server, once it is made.
fn order_url(state: &AcmeOrderState) -> Option<&str> {
    match state {
        AcmeOrderState::Proving { url, .. }
        | AcmeOrderState::Validating { url, .. }
        | AcmeOrderState::Recording { url, .. }
        | AcmeOrderState::ProvingByDns { url, .. }
        | AcmeOrderState::ValidatingByDns { url, .. }
        | AcmeOrderState::Issuing { url, .. } => Some(url),
        AcmeOrderState::Failed { .. }
        | AcmeOrderState::Checking { .. }
        | AcmeOrderState::Ordering {}
        | AcmeOrderState::Locating {}
        | AcmeOrderState::OrderingByDns { .. } => None,
    }
}

impl OrderHistory {
    /// Takes a transaction; returns what is wrong with it.
    pub(crate) fn written(&mut self, operations: &[WriteOperation]) -> Option<String> {
        operations.iter().find_map(|operation| match operation {
            WriteOperation::Put(key, value) => self.put(key, value),
            WriteOperation::Delete(key) => self.deleted(key),
            WriteOperation::DeletePrefix(prefix) => {
                let is_hit = prefix.starts_with(keys::INGRESS);
                is_hit.then(|| format!("everything below {prefix} is deleted"))
            }
        })
    }

    /// The number of a chain that was stored.
    pub(crate) fn number(&self, chain: &str) -> Option<usize> {
        self.numbers.get(chain).copied()
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Option<String> {
        if let Some(id) = key.strip_prefix(keys::ACME_ACCOUNTS) {
            return self.put_account(id, serde_json::from_slice(value).unwrap());
        }
        if let Some(host) = key.strip_prefix(keys::ACME_ORDERS) {
            return self.put_order(host, serde_json::from_slice(value).unwrap());
        }
        let host = key.strip_prefix(keys::INGRESS_CERTIFICATES)?;
        self.put_certificate(host, serde_json::from_slice(value).unwrap())
    }

    fn put_account(&mut self, id: &str, record: AcmeAccountRecord) -> Option<String> {
        let before = self.accounts.insert(id.to_owned(), record.clone())?;
        let directory = &record.directory;
        if before.key.uid != record.key.uid {
            return Some(format!("the account at {directory} is replaced"));
        }
        let (was, is) = (&before.url, &record.url);
        let is_other = !was.is_empty() && !is.is_empty() && was != is;
        is_other.then(|| format!("the account at {directory} was {was}, and is now {is}"))
    }

    fn put_order(&mut self, host: &str, record: AcmeOrderRecord) -> Option<String> {
        let before = self.orders.insert(host.to_owned(), record.clone())?;
        let (was, is) = (order_url(&before.state)?, order_url(&record.state)?);
        (was != is).then(|| format!("{host} has the order {was}, and {is} is made beside it"))
    }

    fn put_certificate(&mut self, host: &str, record: IngressCertificateRecord) -> Option<String> {
        let next = self.numbers.len();
        let chain = record.certificate.clone();
        self.numbers.entry(chain).or_insert(next);
        let before = self.certificates.insert(host.to_owned(), record.clone())?;
        let server = before.acme.as_ref()?;
        match &record.acme {
            None => Some(format!(
                "the certificate for {host} is replaced by one of no server"
            )),
            Some(now) if now == server && record.issued < before.issued => Some(format!(
                "the certificate for {host} goes back to one of {}",
                record.issued
            )),
            Some(_) => None,
        }
    }

    fn deleted(&mut self, key: &str) -> Option<String> {
        if let Some(id) = key.strip_prefix(keys::ACME_ACCOUNTS) {
            return Some(format!("the account {id} is deleted"));
        }
        if let Some(host) = key.strip_prefix(keys::ACME_ORDERS) {
            self.orders.remove(host);
            return None;
        }
        let host = key.strip_prefix(keys::INGRESS_CERTIFICATES)?;
        let before = self.certificates.remove(host)?;
        let is_ordered = before.acme.is_some();
        let is_wanted = is_ordered && !self.routes_leave;
        is_wanted.then(|| format!("the certificate for {host} is deleted"))
    }
}

/// What the checks remember of machines.
#[derive(Default)]
pub(crate) struct OrderChecks {
    machines: BTreeMap<String, ServedCertificates>,
    /// The texts of records of DNS that were there while an order needed them.
    records: BTreeSet<String>,
}

/// The files of `kat-ingress` on a machine.
#[derive(Default)]
struct ServedCertificates {
    /// Number of the process of `kat-agent`.
    process: u32,
    /// When that process was last seen.
    seen: Option<Instant>,
    /// The copy that the process wrote last.
    copy: Option<Arc<MirrorState>>,
    content: IngressContent,
    /// Number of the newest certificate by ACME that was ever written, by host, and when it was.
    newest: BTreeMap<String, (usize, Instant)>,
}

impl ServedCertificates {
    /// Follows the machine's copy; returns what is wrong with what is written of it.
    fn follow(
        &mut self,
        machine: &str,
        number: u32,
        process: &Process,
        monitor: &Monitor,
    ) -> Option<String> {
        if self.process != number {
            let seen = self.seen;
            self.process = number;
            self.copy = None;
            self.newest.retain(|_, (_, since)| {
                seen.is_some_and(|seen| seen.saturating_duration_since(*since) >= KEPT)
            });
        }
        self.seen = Some(Instant::now());
        let copy = process.copy();
        if !needs_new_files(&copy, self.copy.as_deref(), machine) {
            return None;
        }
        self.content = ingress_content(&copy.entries, machine, private_key(machine).bytes());
        self.copy = Some(copy);
        let serves = !self.content.routes.routes.is_empty();
        process.report_ingress(serves.then(|| IngressReport {
            state: IngressState::Serving,
            challenges: self.content.newest_challenge,
            ..IngressReport::default()
        }));
        self.take_certificates(monitor)
    }

    fn take_certificates(&mut self, monitor: &Monitor) -> Option<String> {
        let routes = self.content.routes.routes.values();
        let hosts: BTreeSet<String> = routes.map(|route| route.host.clone()).collect();
        let certificates = &self.content.certificates.certificates;
        for host in hosts {
            let before = self.newest.get(&host).map(|(number, _)| *number);
            let Some(served) = certificates.get(&format!("acme:{host}")) else {
                if before.is_some() {
                    return Some(format!("has no certificate for {host} any more"));
                }
                continue;
            };
            let Some(number) = monitor.certificate_number(&served.chain) else {
                return Some(format!(
                    "has a certificate for {host} that was never stored"
                ));
            };
            if before.is_some_and(|before| number < before) {
                return Some(format!("goes back to an earlier certificate for {host}"));
            }
            if before != Some(number) {
                self.newest.insert(host, (number, Instant::now()));
            }
        }
        None
    }
}

impl World {
    /// Checks what machines serve of certificates by ACME, and has them answer challenges.
    pub(crate) fn check_orders(&mut self) {
        let Some(servers) = &self.acme else {
            return;
        };
        for machine in self.machines.iter().filter(|machine| machine.joined) {
            let name = &machine.name;
            let served = self.order_checks.machines.entry(name.clone()).or_default();
            if machine.boot.is_none() {
                servers.serve(name, None);
                continue;
            }
            let is_hung = machine.way.now().hung;
            if let Some(process) = machine.process.as_ref().filter(|_| !is_hung)
                && let Some(why) = served.follow(name, machine.processes, process, &self.monitor)
            {
                self.monitor.violated(format!("{name} {why}"));
            }
            let answers = served.content.challenges.tokens.clone();
            servers.serve(name, Some(answers));
        }
        self.check_records();
    }

    /// A record of DNS stays for as long as its order needs it, whatever becomes of others of its name.
    fn check_records(&mut self) {
        let Some(servers) = &self.acme else {
            return;
        };
        for item in self.store.peek(keys::ACME_ORDERS).items {
            let order: AcmeOrderRecord = serde_json::from_slice(&item.value).unwrap();
            let host = item.key.strip_prefix(keys::ACME_ORDERS).unwrap_or_default();
            let Some(text) = order.state.record_value() else {
                continue;
            };
            if servers.with_zones(|zones| zones.has(&record_name(host), text)) {
                self.order_checks.records.insert(text.to_owned());
                continue;
            }
            let was_added = self.order_checks.records.contains(text);
            if was_added || !matches!(order.state, AcmeOrderState::Recording { .. }) {
                let why = format!("the record of {host} is gone, which its order needs");
                self.monitor.violated(why);
            }
        }
    }

    /// What of the certificates of these hosts is not as promised once all is healed.
    pub(crate) fn orders_missing(&self, hosts: &[&str], settings: &AcmeSettings) -> Option<String> {
        let servers = self.acme.as_ref()?;
        let directory = settings.directory.as_deref().unwrap_or_default();
        for host in hosts {
            let key = keys::ingress_certificate(host);
            let stored: Option<IngressCertificateRecord> = self.stored(&key);
            let own = stored.filter(|one| one.acme.as_deref() == Some(directory));
            let Some(own) = own else {
                return Some(format!("{host} has no certificate of {directory}"));
            };
            let mut machines = self.joined().map(|machine| &machine.name);
            let behind = machines.find(|name| !self.serves_certificate(name, host, &own));
            if let Some(name) = behind {
                return Some(format!("{name} does not serve the certificate for {host}"));
            }
        }
        let email = servers.email(directory);
        if email != settings.email {
            return Some(format!("{directory} has the address {email:?}"));
        }
        self.orders_left()
    }

    /// Whether a machine serves a host with this certificate.
    fn serves_certificate(
        &self,
        machine: &str,
        host: &str,
        stored: &IngressCertificateRecord,
    ) -> bool {
        let Some(served) = self.order_checks.machines.get(machine) else {
            return false;
        };
        let content = &served.content;
        let certificates = &content.certificates.certificates;
        let served = certificates.get(&format!("acme:{host}"));
        let has_it = served.is_some_and(|one| one.chain == stored.certificate);
        let mut routes = content.routes.routes.values();
        let is_ready = routes.any(|route| {
            let tls = route.tls.as_ref();
            route.host == host && tls.is_some_and(|tls| tls.waits_for.is_none())
        });
        has_it && is_ready
    }

    /// An order or an answer to a challenge that is stored, or a record of DNS.
    pub(crate) fn orders_left(&self) -> Option<String> {
        let servers = self.acme.as_ref();
        if let Some(left) = servers.and_then(|servers| servers.with_zones(|zones| zones.left())) {
            return Some(left);
        }
        let prefixes = [keys::ACME_ORDERS, keys::ACME_CHALLENGES, keys::ACME_DNS];
        let mut left = prefixes
            .into_iter()
            .flat_map(|prefix| self.store.peek(prefix).items);
        let left = left.next()?;
        let value = String::from_utf8_lossy(&left.value);
        Some(format!("{} is left: {value}", left.key))
    }

    /// The orders that are stored.
    pub(crate) fn stored_orders(&self) -> Vec<AcmeOrderRecord> {
        let items = self.store.peek(keys::ACME_ORDERS).items.into_iter();
        let orders = items.map(|item| serde_json::from_slice(&item.value).unwrap());
        orders.collect()
    }

    /// Whether the account at a directory is stored, and known to its server.
    pub(crate) fn has_account(&self, directory: &str) -> bool {
        let items = self.store.peek(keys::ACME_ACCOUNTS).items.into_iter();
        let mut accounts =
            items.map(|item| -> AcmeAccountRecord { serde_json::from_slice(&item.value).unwrap() });
        accounts.any(|account| account.directory == directory && !account.url.is_empty())
    }
}

//! How many orders of new certificates a namespace may make: the server's limits are those of the whole
//! cluster, and of a registered domain that namespaces may share.
//!
//! An order counts when the server has made it, unless the host has a certificate by ACME: renewals are
//! neither counted nor held up. The count is stored with the state of the order that it is for, so that
//! another leader continues from it, and names the namespace of the order's first step: a route that is
//! deleted meanwhile makes no order uncounted.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{
    CLOCKS, CertificateStep, IssuingError, LONGEST_STATE, MOST_ORDERS, OrderView, POLL, later, put,
};
use crate::{
    Snapshot,
    ingress::routes::{PlannedRoute, has_ordered, hosts},
};
use kat_types::{
    resource::QuotaResource,
    store::{
        acme::{AcmeNewOrdersRecord, AcmeOrderState},
        keys,
        transaction::{Compare, WriteOperation},
    },
};

/// Orders of new certificates that count for a namespace now.
pub(crate) fn counted_orders(snapshot: &Snapshot, namespace: &str) -> u64 {
    let stored = snapshot.acme_new_orders.get(namespace);
    stored.map_or(0, |stored| stored.value.orders)
}

/// Most orders of new certificates that may count for a namespace at once.
fn most_orders(snapshot: &Snapshot, namespace: &str) -> u64 {
    let counted = QuotaResource::CertificateOrders;
    let stored = snapshot.namespaces.get(namespace);
    let quota = stored.and_then(|stored| stored.value.quota.get(counted));
    quota
        .or_else(|| counted.default_quota())
        .unwrap_or(u64::MAX)
}

/// The namespaces of routes, by host. The owner of a host is the same for all its routes that are
/// assigned.
pub(super) fn namespaces_of_hosts<'a>(routes: &[PlannedRoute<'a>]) -> BTreeMap<&'a str, &'a str> {
    let assigned = routes.iter().filter(|planned| planned.is_assigned());
    let named = assigned.flat_map(|planned| {
        let namespace = planned.workload.namespace.as_str();
        hosts(planned.route).map(move |host| (host.as_str(), namespace))
    });
    named.collect()
}

/// A namespace that may make no order of a new certificate now.
pub(super) struct UsedUp<'a> {
    namespace: &'a str,
    most: u64,
    /// When it may make one again; `None` with a quota of 0.
    pub(super) until: Option<Timestamp>,
}

impl UsedUp<'_> {
    /// What `waiting` waits for: a sentence without its full stop.
    pub(super) fn in_words(&self, waiting: &str) -> String {
        let Self {
            namespace,
            most,
            until,
        } = self;
        let counted = QuotaResource::CertificateOrders.word();
        match until {
            Some(until) => format!(
                "{waiting} waits until {until:.0}: namespace {namespace} has used its {most} orders of new certificates in 24 hours (quota {counted})"
            ),
            None => format!(
                "{waiting} waits for another quota {counted} of namespace {namespace}, which is 0"
            ),
        }
    }
}

/// Why no order for a host may begin in its namespace; `None` if one may, or renews a certificate.
pub(super) fn used_up<'a>(
    snapshot: &Snapshot,
    namespace: &'a str,
    host: &str,
) -> Option<UsedUp<'a>> {
    if has_ordered(snapshot, host) {
        return None;
    }
    let most = most_orders(snapshot, namespace);
    let stored = snapshot.acme_new_orders.get(namespace);
    let stored = stored.filter(|_| most > 0);
    (counted_orders(snapshot, namespace) >= most).then(|| UsedUp {
        namespace,
        most,
        until: stored.map(|stored| stored.value.until()),
    })
}

/// Whether the server may yet be asked to make the order.
fn is_not_made(state: &AcmeOrderState) -> bool {
    match state {
        AcmeOrderState::Checking { .. }
        | AcmeOrderState::Ordering {}
        | AcmeOrderState::Locating {}
        | AcmeOrderState::OrderingByDns { .. } => true,
        AcmeOrderState::Failed { .. }
        | AcmeOrderState::Proving { .. }
        | AcmeOrderState::Validating { .. }
        | AcmeOrderState::Recording { .. }
        | AcmeOrderState::ProvingByDns { .. }
        | AcmeOrderState::ValidatingByDns { .. }
        | AcmeOrderState::Issuing { .. } => false,
    }
}

impl OrderView<'_> {
    /// When an order for the host may begin that its namespace may not make now.
    pub(super) fn held_up_until(&self, namespace: &str, host: &str) -> Option<Timestamp> {
        let snapshot = self.snapshot;
        if let Some(used_up) = used_up(snapshot, namespace, host) {
            let at_another_quota = later(self.now, LONGEST_STATE);
            return Some(used_up.until.unwrap_or(at_another_quota));
        }
        if has_ordered(snapshot, host) {
            return None;
        }
        // Those that have begun are going to count.
        let begun = snapshot.acme_orders.iter().filter(|(other, order)| {
            order.value.namespace == namespace
                && is_not_made(&order.value.state)
                && !has_ordered(snapshot, other)
        });
        let begun = u64::try_from(begun.count()).unwrap_or(u64::MAX);
        let all = counted_orders(snapshot, namespace).saturating_add(begun);
        (all >= most_orders(snapshot, namespace)).then(|| later(self.now, POLL))
    }

    /// Counts the order that the server has made for a host, with the write of its state.
    pub(super) fn count_order(
        &self,
        host: &str,
        step: &mut CertificateStep,
    ) -> Result<(), IssuingError> {
        let Some(order) = self.snapshot.acme_orders.get(host) else {
            return Ok(());
        };
        let namespace = &order.value.namespace;
        // Earlier versions named none.
        if namespace.is_empty() || has_ordered(self.snapshot, host) {
            return Ok(());
        }
        let stored = self.snapshot.acme_new_orders.get(namespace);
        let present = stored.map(|stored| &stored.value);
        let present = present.filter(|record| self.counts(record));
        let record = AcmeNewOrdersRecord {
            schema: 1,
            since: present.map_or(self.now, |record| record.since),
            orders: present.map_or(0, |record| record.orders).saturating_add(1),
        };
        let name = keys::acme_new_orders(namespace);
        step.operations.push(put(name, &record)?);
        Ok(())
    }

    /// Whether a count still counts; one that a clock far ahead has begun does not.
    fn counts(&self, record: &AcmeNewOrdersRecord) -> bool {
        record.since <= later(self.now, CLOCKS) && self.now < record.until()
    }

    /// Removes what counts no more.
    pub(super) fn outdated_counts(&self) -> Option<CertificateStep> {
        let counts = self.snapshot.acme_new_orders.iter();
        let outdated = counts.filter(|(_, stored)| !self.counts(&stored.value));
        let mut step = CertificateStep {
            what: "numbers of new orders that count no more are removed, which is".to_owned(),
            ..CertificateStep::default()
        };
        for (namespace, stored) in outdated.take(MOST_ORDERS) {
            let name = keys::acme_new_orders(namespace);
            let condition = Compare::ModRevision(name.clone(), stored.revision);
            step.conditions.push(condition);
            step.operations.push(WriteOperation::Delete(name));
        }
        (!step.operations.is_empty()).then_some(step)
    }
}

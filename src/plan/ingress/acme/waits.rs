//! What a host without its certificate waits for, in words.

use super::{
    allowance::{UsedUp, used_up},
    directory,
    dns::challenge_name,
};
use crate::Snapshot;
use kat_types::{
    reason::Reason,
    store::acme::{AcmeOrderState, server_name},
};

/// The reason for what [`order_in_words`] says.
pub(in crate::ingress) fn order_reason(snapshot: &Snapshot, namespace: &str, host: &str) -> Reason {
    let order = snapshot.acme_orders.get(host);
    match order.map(|order| &order.value.state) {
        Some(AcmeOrderState::Failed { .. }) => Reason::CertificateFailed,
        Some(_) => Reason::CertificatePending,
        None if snapshot.unread_acme.contains(host) => Reason::CertificatePending,
        None => match used_up(snapshot, namespace, host) {
            Some(_) => Reason::CertificateLimitReached,
            None => Reason::CertificatePending,
        },
    }
}

/// What the certificate of a host of a namespace waits for: a sentence without its full stop.
pub fn order_in_words(snapshot: &Snapshot, namespace: &str, host: &str) -> String {
    let server = server_name(directory(&snapshot.wanted_cluster().spec.acme));
    if snapshot.unread_acme.contains(host) {
        return format!("the order of the certificate for {host} is one of a newer version of KAT");
    }
    let used_up = used_up(snapshot, namespace, host);
    let Some(order) = snapshot.acme_orders.get(host) else {
        return match used_up {
            Some(used_up) => used_up.in_words(&format!("the certificate for {host}")),
            None => format!("the certificate for {host} is going to be ordered from {server}"),
        };
    };
    let order = &order.value;
    let doubts = match order.unchecked.as_str() {
        "" => String::new(),
        unchecked => format!(" ({unchecked})"),
    };
    match &order.state {
        AcmeOrderState::Failed { next } => {
            let is_later = |used_up: &UsedUp<'_>| used_up.until.is_none_or(|until| until > *next);
            let attempt = match used_up.filter(is_later) {
                Some(used_up) => used_up.in_words("the next attempt"),
                None => format!("the next attempt is at {next:.0}"),
            };
            format!(
                "the certificate for {host} could not be ordered: {}; {attempt}",
                order.message
            )
        }
        AcmeOrderState::Checking { .. } => {
            format!(
                "before its certificate is ordered from {server}, KAT checks that {host} leads here"
            )
        }
        AcmeOrderState::Locating {} => format!(
            "before its certificate is ordered from {server}, KAT checks that the zone of {} can be changed",
            challenge_name(host)
        ),
        AcmeOrderState::Recording { .. } => format!(
            "the certificate for {host} waits until the name servers answer with the record TXT of {}{doubts}",
            challenge_name(host)
        ),
        AcmeOrderState::ProvingByDns { .. } | AcmeOrderState::ValidatingByDns { .. } => format!(
            "{server} looks for the record TXT of {}{doubts}",
            challenge_name(host)
        ),
        AcmeOrderState::Ordering {}
        | AcmeOrderState::OrderingByDns { .. }
        | AcmeOrderState::Proving { .. } => {
            format!("the certificate for {host} is being ordered from {server}{doubts}")
        }
        AcmeOrderState::Validating { .. } => {
            format!("{server} checks that {host} leads here{doubts}")
        }
        AcmeOrderState::Issuing { .. } => format!("{server} issues the certificate for {host}"),
    }
}

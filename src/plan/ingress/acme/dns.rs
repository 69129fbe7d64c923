//! Proofs by DNS (DNS-01, RFC 8555, 8.4): which hosts have them, where their challenges are answered, and
//! the keys of updates (TSIG, RFC 8945).

use std::fmt;

use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::SignedDuration;

use super::{
    AcmeFailure, AcmeFailureKind, AcmeQuestion, AcmeReply, AcmeRequest, CertificateStep,
    IssuingError, LONGEST_MESSAGE, LONGEST_POLL, LONGEST_STATE, Need, OrderView, SYSTEM_NAMESPACE,
    doubled, later, put, written,
};
use kat_types::{
    resource::{AcmeSettings, AcmeZone, DnsUpdate},
    secrets::SecretKey,
    store::{
        acme::{
            AcmeDnsRecord, AcmeOrderRecord, AcmeOrderState, CHALLENGE_LABEL, DnsPlace, TSIG_KEY,
            is_token,
        },
        ingress::is_within,
        keys,
        transaction::{Compare, WriteOperation},
    },
};

/// First and longest pause after a record could not be removed.
const REMOVE_AGAIN: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_REMOVE_AGAIN: SignedDuration = SignedDuration::from_hours(1);
/// How long a record is given before the proof where no name server has answered with it.
const UNCONFIRMED: SignedDuration = SignedDuration::from_secs(60);
/// A record that could not be removed for this long stays: the server or the key is gone.
const GIVE_UP: SignedDuration = SignedDuration::from_hours(3 * 24);

/// Hash function of a key of updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsigHash {
    /// hmac-sha256
    Sha256,
    /// hmac-sha384
    Sha384,
    /// hmac-sha512
    Sha512,
}

/// A key of updates.
#[derive(Clone, PartialEq, Eq)]
pub struct DnsKey {
    /// Its name, which the server knows.
    pub name: String,
    /// Its hash function.
    pub hash: TsigHash,
    /// The secret, in bytes.
    pub secret: Vec<u8>,
}

impl DnsKey {
    /// Reads what `tsig-keygen` prints, or `[ALGORITHM:]NAME:SECRET` as `nsupdate -y` takes it.
    ///
    /// # Errors
    /// What is wrong with the text, as the end of a sentence; it says nothing of the text.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const SHAPE: &str = "is neither what tsig-keygen prints nor ALGORITHM:NAME:SECRET";
        let text = text.trim();
        let (algorithm, name, secret) = match text.contains('{') {
            true => statement(text).ok_or(SHAPE)?,
            false => match text.split(':').collect::<Vec<_>>()[..] {
                [algorithm, name, secret] => (algorithm, name, secret),
                [name, secret] => ("hmac-sha256", name, secret),
                _ => return Err(SHAPE),
            },
        };
        // A secret in the place of the name would be sent, and shown in reasons.
        let is_used = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '.');
        if name.is_empty() || !name.chars().all(is_used) {
            return Err(SHAPE);
        }
        let hash = match algorithm.to_ascii_lowercase().as_str() {
            "hmac-sha256" => TsigHash::Sha256,
            "hmac-sha384" => TsigHash::Sha384,
            "hmac-sha512" => TsigHash::Sha512,
            _ => return Err("has another algorithm than hmac-sha256, hmac-sha384 and hmac-sha512"),
        };
        let secret = BASE64_STANDARD.decode(secret);
        let secret = secret.map_err(|_| "has a secret that is no base64")?;
        match secret.is_empty() {
            true => Err("has an empty secret"),
            false => Ok(Self {
                name: name.trim_end_matches('.').to_ascii_lowercase(),
                hash,
                secret,
            }),
        }
    }
}

/// Algorithm, name and secret of a statement `key NAME { algorithm A; secret S; };`.
fn statement(text: &str) -> Option<(&str, &str, &str)> {
    let is_between = |one: char| one.is_whitespace() || matches!(one, ';' | '{' | '}' | '"');
    let words: Vec<_> = text
        .split(is_between)
        .filter(|one| !one.is_empty())
        .collect();
    match words[..] {
        ["key", name, "algorithm", algorithm, "secret", secret]
        | ["key", name, "secret", secret, "algorithm", algorithm] => {
            Some((algorithm, name, secret))
        }
        _ => None,
    }
}

impl fmt::Debug for DnsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret appears in no log.
        let DnsKey { name, hash, .. } = self;
        f.debug_struct("DnsKey")
            .field("name", name)
            .field("hash", hash)
            .finish_non_exhaustive()
    }
}

/// A server that takes updates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsAccess {
    /// The zone of the settings, whose names it is for.
    pub zone: String,
    /// Host of the server, with or without a port.
    pub server: String,
    /// Name of the secret with the key.
    pub secret: String,
    /// The key.
    pub key: DnsKey,
}

/// Which name servers answer with a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordCheck {
    /// They answer without it.
    pub missing: Vec<String>,
    /// They do not answer, or were not asked.
    pub silent: Vec<String>,
    /// Why the hook has not added the record.
    pub failed: Option<String>,
    /// No name server has answered with it. A hook's provider may need some time for it.
    pub unconfirmed: bool,
}

/// The zone of `acme.dns` that has a name: the one with the longest name.
pub(super) fn zone_of<'a>(settings: &'a AcmeSettings, host: &str) -> Option<&'a AcmeZone> {
    let zones = settings.dns.iter();
    let meant = zones.filter(|zone| is_within(host, [&zone.zone]));
    let usable = meant.filter(|zone| zone.rfc2136.is_some() || zone.hook.is_some());
    usable.max_by_key(|zone| zone.zone.len())
}

/// The name at which a host is proved; the same for `example.org` and `*.example.org`.
pub(super) fn challenge_name(host: &str) -> String {
    let host = host.strip_prefix("*.").unwrap_or(host);
    format!("{CHALLENGE_LABEL}.{host}")
}

/// A failure of the zone's server or of the settings.
fn refused(message: String) -> AcmeFailure {
    AcmeFailure {
        kind: AcmeFailureKind::Name,
        message,
        retry_after: None,
    }
}

impl OrderView<'_> {
    /// The key of a secret, or why there is none.
    fn dns_key(&self, secret: &str) -> Result<DnsKey, String> {
        let place = SecretKey::new(SYSTEM_NAMESPACE, secret);
        let Some(stored) = self.snapshot.secrets.get(&place) else {
            return Err(format!(
                "acme.dns names secret {place}, which does not exist"
            ));
        };
        let sealing = &self.snapshot.sealing;
        let opened = sealing.open(self.snapshot, &place, &stored.value);
        let opened = opened.map_err(|error| error.to_string())?;
        let value = opened.0.get(TSIG_KEY);
        let text = value.and_then(|value| std::str::from_utf8(value).ok());
        let text =
            text.ok_or_else(|| format!("secret {place} has no text with the key {TSIG_KEY}"))?;
        DnsKey::parse(text).map_err(|why| format!("{TSIG_KEY} of secret {place} {why}"))
    }

    /// The key of updates of a place; `None` where a hook makes them.
    fn update_key(&self, place: &DnsPlace) -> Result<Option<DnsKey>, String> {
        match place.hook {
            Some(_) => Ok(None),
            None => self.dns_key(&place.secret).map(Some),
        }
    }

    fn access(&self, zone: &AcmeZone, update: &DnsUpdate) -> Result<DnsAccess, String> {
        Ok(DnsAccess {
            zone: zone.zone.clone(),
            server: update.server.clone(),
            secret: update.tsig.secret.clone(),
            key: self.dns_key(&update.tsig.secret)?,
        })
    }

    fn own_networks(&self) -> Vec<ipnet::Ipv4Net> {
        let spec = &self.snapshot.wanted_cluster().spec;
        vec![spec.cluster_cidr, spec.service_cidr]
    }

    /// Asks where the challenge of a host is answered.
    pub(super) fn locate(&self, host: &str) -> Result<Need, IssuingError> {
        let zone = zone_of(self.settings, host);
        if let Some(zone) = zone
            && let Some(hook) = &zone.hook
        {
            let request = AcmeRequest::LocateForHook {
                name: challenge_name(host),
                zone: zone.zone.clone(),
                hook: hook.clone(),
            };
            return Ok(self.ask(host, request));
        }
        let own = match zone.and_then(|zone| Some((zone, zone.rfc2136.as_ref()?))) {
            Some((zone, update)) => self.access(zone, update),
            None => Err(format!("no zone of acme.dns has {host} any more")),
        };
        let own = match own {
            Ok(own) => own,
            Err(why) => return self.failed(host, &refused(why)).map(written),
        };
        let zones = self
            .settings
            .dns
            .iter()
            .filter(|zone| zone.zone != own.zone);
        let others = zones.filter_map(|zone| self.access(zone, zone.rfc2136.as_ref()?).ok());
        let others = others.collect();
        let name = challenge_name(host);
        Ok(self.ask(host, AcmeRequest::Locate { name, own, others }))
    }

    /// Adds the record of an order and asks the name servers for it.
    pub(super) fn record(&self, host: &str, value: &str, url: &str) -> Result<Need, IssuingError> {
        let Some(stored) = self.snapshot.acme_dns.get(value) else {
            let message = "the record of the order is not known any more";
            return self.failed(host, &AcmeFailure::gone(message)).map(written);
        };
        let place = stored.value.place.clone();
        let key = match self.update_key(&place) {
            Ok(key) => key,
            Err(why) => return self.failed(host, &refused(why)).map(written),
        };
        let request = AcmeRequest::Record {
            url: url.to_owned(),
            place: Box::new(place),
            value: value.to_owned(),
            key,
            own: self.own_networks(),
        };
        Ok(self.ask(host, request))
    }

    /// The order is made: it has to be proved, unless the server needs no proof.
    pub(super) fn ordered_by_dns(
        &self,
        host: &str,
        place: &DnsPlace,
        url: String,
        challenge: Option<(String, String)>,
    ) -> Result<CertificateStep, IssuingError> {
        let Some((_, value)) = challenge else {
            return self.ready(host, url);
        };
        if !is_token(&value) {
            let failure = AcmeFailure::refused("the challenge has no usable token");
            return self.failed(host, &failure);
        }
        self.to_record(host, place, url, value)
    }

    /// The record of the order is written down before it is added.
    fn to_record(
        &self,
        host: &str,
        place: &DnsPlace,
        url: String,
        value: String,
    ) -> Result<CertificateStep, IssuingError> {
        let record = AcmeDnsRecord {
            schema: 1,
            host: host.to_owned(),
            place: place.clone(),
            since: self.now,
            failures: 0,
            next: None,
        };
        let name = keys::acme_dns(&value);
        let what = format!(
            "the order for {host} is made, and its record of {} added, which is",
            place.name
        );
        let mut step = self.state_step(host, AcmeOrderState::Recording { url, value }, what)?;
        step.operations.push(put(name, &record)?);
        Ok(step)
    }

    /// Whether the record of an order is waited for: the longest pause until it is looked at again.
    pub(super) fn wait_for_record(
        &self,
        record: &AcmeOrderRecord,
        check: &RecordCheck,
    ) -> Option<SignedDuration> {
        if !check.missing.is_empty() || check.failed.is_some() {
            return Some(LONGEST_POLL);
        }
        let rest = UNCONFIRMED - self.now.duration_since(record.since);
        (check.unconfirmed && rest.is_positive()).then_some(rest.min(UNCONFIRMED))
    }

    /// What the name servers answered. `None` if nothing has to be written: they are asked again.
    pub(super) fn recorded(
        &self,
        host: &str,
        record: &AcmeOrderRecord,
        check: &RecordCheck,
    ) -> Result<Option<CertificateStep>, IssuingError> {
        let AcmeOrderState::Recording { url, value } = &record.state else {
            return Ok(None);
        };
        let mut notes: Vec<String> = check.failed.iter().cloned().collect();
        if !check.missing.is_empty() {
            notes.push(format!(
                "the record is not yet at {}",
                check.missing.join(", ")
            ));
        }
        if !check.silent.is_empty() {
            let silent = check.silent.join(", ");
            notes.push(format!("no answer about the record from {silent}"));
        }
        let mut unchecked = notes.join("; ");
        unchecked.retain(|one| !one.is_control());
        let unchecked: String = unchecked.chars().take(LONGEST_MESSAGE).collect();
        if self.wait_for_record(record, check).is_none() {
            let record = AcmeOrderRecord {
                state: AcmeOrderState::ProvingByDns {
                    url: url.clone(),
                    value: value.clone(),
                },
                since: self.now,
                unchecked,
                ..record.clone()
            };
            let what = format!("the name servers answer with the record for {host}, which is");
            return self.order_step(host, &record, what).map(Some);
        }
        if unchecked == record.unchecked {
            return Ok(None);
        }
        // `since` stays: it says how long the record is waited for.
        let record = AcmeOrderRecord {
            unchecked,
            ..record.clone()
        };
        let what = format!("for {host} {}, which is", record.unchecked);
        self.order_step(host, &record, what).map(Some)
    }

    /// Why a record that not all name servers have is waited for no longer.
    pub(super) fn not_recorded(host: &str) -> AcmeFailure {
        let name = challenge_name(host);
        refused(format!(
            "not all name servers had the record TXT of {name} within an hour"
        ))
    }

    /// The removal of a record of no order; else when the next one is due. Records are left alone while
    /// there are orders that this version can't read.
    pub(super) fn removal(&self) -> Result<Need, IssuingError> {
        let mut wake = later(self.now, LONGEST_STATE);
        if !self.snapshot.unread_acme.is_empty() {
            return Ok(Need::Until(wake));
        }
        let orders = self.snapshot.acme_orders.values();
        let used: Vec<_> = orders
            .filter_map(|order| order.value.state.record_value())
            .collect();
        for (value, stored) in &self.snapshot.acme_dns {
            if used.contains(&value.as_str()) {
                continue;
            }
            let record = &stored.value;
            if let Some(next) = record.next
                && self.now < next
                // A clock that was ahead has set it.
                && next.duration_since(self.now) <= LONGEST_REMOVE_AGAIN
            {
                wake = wake.min(next);
                continue;
            }
            let host = &record.host;
            return match self.update_key(&record.place) {
                Ok(key) => Ok(self.ask(
                    host,
                    AcmeRequest::Remove {
                        place: record.place.clone(),
                        value: value.clone(),
                        key,
                    },
                )),
                Err(why) => match self.not_removed(value, &why)? {
                    Some(step) => Ok(written(step)),
                    None => continue,
                },
            };
        }
        Ok(Need::Until(wake))
    }

    /// A record is gone.
    pub(super) fn removed(&self, value: &str) -> Option<CertificateStep> {
        let stored = self.snapshot.acme_dns.get(value)?;
        let place = &stored.value.place;
        let name = keys::acme_dns(value);
        Some(CertificateStep {
            what: format!("the record of {} is removed, which is", place.name),
            conditions: vec![Compare::ModRevision(name.clone(), stored.revision)],
            operations: vec![WriteOperation::Delete(name)],
        })
    }

    /// A record could not be removed.
    pub(super) fn not_removed(
        &self,
        value: &str,
        why: &str,
    ) -> Result<Option<CertificateStep>, IssuingError> {
        let Some(stored) = self.snapshot.acme_dns.get(value) else {
            return Ok(None);
        };
        let record = &stored.value;
        let name = keys::acme_dns(value);
        let at = &record.place.name;
        let is_old = self.now.duration_since(record.since) > GIVE_UP;
        let (what, operation) = match is_old {
            true => (
                format!("the record TXT of {at} stays, and is forgotten: {why}; that is"),
                WriteOperation::Delete(name.clone()),
            ),
            false => {
                let pause = doubled(REMOVE_AGAIN, record.failures, LONGEST_REMOVE_AGAIN);
                let next = AcmeDnsRecord {
                    failures: record.failures.saturating_add(1),
                    next: Some(later(self.now, pause)),
                    ..record.clone()
                };
                let what = format!("the record TXT of {at} could not be removed: {why}; that is");
                (what, put(name.clone(), &next)?)
            }
        };
        Ok(Some(CertificateStep {
            what,
            conditions: vec![Compare::ModRevision(name, stored.revision)],
            operations: vec![operation],
        }))
    }

    /// What follows from an answer about a removal.
    pub(super) fn answered_removal(
        &self,
        question: &AcmeQuestion,
        reply: &AcmeReply,
    ) -> Option<Result<Option<CertificateStep>, IssuingError>> {
        let AcmeRequest::Remove { value, .. } = &question.request else {
            return None;
        };
        Some(match reply {
            AcmeReply::Removed => Ok(self.removed(value)),
            AcmeReply::Failed(failure) => self.not_removed(value, &failure.message),
            _ => Ok(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_tsig_keygen_prints_it_and_as_nsupdate_takes_it() {
        let printed = "key \"Kat.\" {\n\talgorithm hmac-sha512;\n\tsecret \"AAECAw==\";\n};\n";
        let key = DnsKey::parse(printed).unwrap();
        assert_eq!((key.name.as_str(), key.hash), ("kat", TsigHash::Sha512));
        assert_eq!(key.secret, [0, 1, 2, 3]);
        assert_eq!(DnsKey::parse("hmac-sha512:kat:AAECAw==\n").unwrap(), key);
        let key = DnsKey::parse("kat:AAECAw==").unwrap();
        assert_eq!(key.hash, TsigHash::Sha256);
        assert!(!format!("{key:?}").contains("[0, 1"), "{key:?}");
        for (text, why) in [
            ("", "is neither"),
            ("kat", "is neither"),
            ("a:b:c:d", "is neither"),
            ("hmac-sha256:AAECAw==:kat0", "is neither"),
            ("key \"a\" { secret \"AAEC\"; };", "is neither"),
            ("hmac-md5:kat:AAEC", "has another algorithm"),
            ("hmac-sha1:kat:AAEC", "has another algorithm"),
            ("kat:%", "no base64"),
            ("kat:", "has an empty secret"),
        ] {
            let found = DnsKey::parse(text).unwrap_err();
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn the_longest_zone_counts_and_a_wildcard_has_the_name_of_its_domain() {
        let zone = |name: &str, server: &str| AcmeZone {
            zone: name.to_owned(),
            rfc2136: Some(DnsUpdate {
                server: server.to_owned(),
                tsig: kat_types::resource::TsigKey {
                    secret: "dns-key".to_owned(),
                },
            }),
            hook: None,
        };
        let settings = AcmeSettings {
            dns: vec![zone("example.org", "ns1"), zone("sub.example.org", "ns2")],
            ..AcmeSettings::default()
        };
        let server = |host: &str| {
            let update = zone_of(&settings, host)?.rfc2136.as_ref();
            update.map(|update| update.server.clone())
        };
        assert_eq!(server("*.example.org").as_deref(), Some("ns1"));
        assert_eq!(server("a.sub.example.org").as_deref(), Some("ns2"));
        assert_eq!(server("*.sub.example.org").as_deref(), Some("ns2"));
        assert_eq!(server("notexample.org"), None);
        assert_eq!(challenge_name("*.a.org"), challenge_name("a.org"));
    }
}

//! Records of DNS that a program of the leader's machine changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use hickory_proto::rr::{Name, RecordType};
use ipnet::Ipv4Net;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    DnsClient, MOST_SERVERS, TRIAL, alias, lasting, name_of, passing, servers, text_of, zone_in,
};
use kat_plan::{AcmeFailure, RecordCheck};
use kat_types::store::acme::DnsPlace;

/// Longest run of a hook.
pub const LONGEST_HOOK: Duration = Duration::from_secs(30);
/// A hook is run again for a record that name servers have not had for this long.
const RUN_AGAIN: Duration = Duration::from_secs(300);
/// A label that no host has: a name with it shows what a wildcard of the zone says.
const NO_HOST: &str = "kat-tries-whether-this-is-a-wildcard";

/// What a hook does with a record TXT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookChange {
    /// Adds it beside others of the same name; if it is there, nothing changes.
    Present,
    /// Removes it and no other; if it is not there, nothing changes.
    Cleanup,
}

impl HookChange {
    /// The first argument of the program.
    pub fn word(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Cleanup => "cleanup",
        }
    }
}

/// Why a hook did not change a record, in words for the owner of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookFailure {
    /// The files of the machine must change.
    NotUsable(String),
    /// It ended without success, or was ended.
    Failed(String),
}

/// The programs of this machine that change records of DNS.
#[async_trait]
pub trait DnsHooks: Send + Sync {
    /// Whether the machine has a hook of this name that can be run.
    async fn check(&self, hook: &str) -> Result<(), HookFailure>;

    /// Runs a hook to its end, for at most [`LONGEST_HOOK`]. `name` is the name of the record without its
    /// last dot, `value` its text.
    async fn run(
        &self,
        hook: &str,
        change: HookChange,
        name: &str,
        value: &str,
    ) -> Result<(), HookFailure>;
}

/// Records that hooks change.
pub(in super::super) struct HookedRecords {
    hooks: Arc<dyn DnsHooks>,
    /// When this process has added texts that it has not removed: a hook is not run again while name
    /// servers are waited for.
    added: Mutex<BTreeMap<String, Instant>>,
}

impl HookedRecords {
    pub(in super::super) fn new(hooks: Arc<dyn DnsHooks>) -> Self {
        Self {
            hooks,
            added: Mutex::default(),
        }
    }

    async fn add(&self, place: &DnsPlace, value: &str) -> Result<(), HookFailure> {
        let added = self.added.lock().get(value).copied();
        if added.is_some_and(|added| added.elapsed() < RUN_AGAIN) {
            return Ok(());
        }
        self.run(place, HookChange::Present, value).await?;
        self.added.lock().insert(value.to_owned(), Instant::now());
        Ok(())
    }

    pub(super) async fn remove(&self, place: &DnsPlace, value: &str) -> Result<(), AcmeFailure> {
        // Whether the record is there is unknown from now on.
        self.added.lock().remove(value);
        let ran = self.run(place, HookChange::Cleanup, value).await;
        ran.map_err(in_failure)
    }

    async fn run(
        &self,
        place: &DnsPlace,
        change: HookChange,
        value: &str,
    ) -> Result<(), HookFailure> {
        let Some(hook) = &place.hook else {
            let message = format!("no hook changes {}", place.name);
            return Err(HookFailure::NotUsable(message));
        };
        self.hooks.run(hook, change, &place.name, value).await
    }
}

fn in_failure(failure: HookFailure) -> AcmeFailure {
    match failure {
        HookFailure::NotUsable(message) => lasting(message),
        HookFailure::Failed(message) => passing(message),
    }
}

impl DnsClient {
    /// The machine must have the hook, which shows by the removal of a text that is not there that it can
    /// change the record before an order is made. The name must not stand for another one, which the ACME
    /// server would ask for. Where the leader's name servers say nothing, the zone of the settings counts.
    pub(super) async fn locate_for_hook(
        &self,
        name: &str,
        zone: &str,
        hook: &str,
    ) -> Result<DnsPlace, AcmeFailure> {
        let checked = self.hooked.hooks.check(hook).await;
        checked.map_err(in_failure)?;
        let zone = match self.zone_by_resolver(&name_of(name)?).await {
            Ok(Enclosing::Zone(found)) => found,
            Ok(Enclosing::Alias(target)) if !self.is_wildcards(name, &target).await => {
                return Err(lasting(format!(
                    "{name} has a CNAME record to {target}: a hook changes the name itself, so remove the record, or name the zone of {target} with rfc2136"
                )));
            }
            Ok(Enclosing::Alias(_)) | Err(_) => zone.to_owned(),
        };
        let place = DnsPlace {
            zone,
            name: name.to_owned(),
            hook: Some(hook.to_owned()),
            ..DnsPlace::default()
        };
        self.hooked.remove(&place, TRIAL).await?;
        Ok(place)
    }

    /// Whether every name beside this one stands for the target: a record of the name itself is in the place
    /// of a wildcard's.
    async fn is_wildcards(&self, name: &str, target: &str) -> bool {
        let Some((_, parent)) = name.split_once('.') else {
            return false;
        };
        let Ok(other) = name_of(&format!("{NO_HOST}.{parent}")) else {
            return false;
        };
        match self.zone_by_resolver(&other).await {
            Ok(Enclosing::Alias(found)) => found == target,
            Ok(Enclosing::Zone(_)) | Err(_) => false,
        }
    }

    /// Has the hook add the record, and asks every name server of the zone for it.
    pub(super) async fn record_by_hook(
        &self,
        place: &DnsPlace,
        value: &str,
        own: &[Ipv4Net],
    ) -> Result<RecordCheck, AcmeFailure> {
        let mut check = RecordCheck::default();
        match self.hooked.add(place, value).await {
            Ok(()) => {}
            Err(HookFailure::NotUsable(why)) => return Err(lasting(why)),
            // The order stays, and the hook is run again.
            Err(HookFailure::Failed(why)) => {
                check.failed = Some(why);
                return Ok(check);
            }
        }
        check.unconfirmed = true;
        let found = match self.servers_by_resolver(&name_of(&place.zone)?).await {
            Ok(found) => found,
            Err(why) => {
                check.silent.push(why);
                return Ok(check);
            }
        };
        let name = name_of(&place.name)?;
        let asked = found.iter().take(MOST_SERVERS);
        let asked = asked.map(|host| self.ask_server(host, &name, value, own));
        for one in join_all(asked).await {
            check.unconfirmed &= !one.missing.is_empty() || !one.silent.is_empty();
            check.missing.extend(one.missing);
            check.silent.extend(one.silent);
        }
        Ok(check)
    }

    /// The zone that has a name, or what the name stands for, as the machine's name servers know it.
    async fn zone_by_resolver(&self, name: &Name) -> Result<Enclosing, String> {
        let answer = self.resolved(name, RecordType::SOA).await?;
        if let Some(target) = alias(&answer.answers, name) {
            return Ok(Enclosing::Alias(text_of(&target)));
        }
        let zone = zone_in(&answer, name);
        let zone = zone.ok_or_else(|| "they name no zone".to_owned())?;
        Ok(Enclosing::Zone(text_of(&zone)))
    }

    async fn servers_by_resolver(&self, zone: &Name) -> Result<Vec<String>, String> {
        let answer = self.resolved(zone, RecordType::NS).await;
        let found = answer.map(|answer| servers(&answer.answers, zone));
        match found {
            Ok(found) if !found.is_empty() => Ok(found),
            Ok(_) => Err(format!(
                "the leader's name servers, which know no name server of {}",
                text_of(zone)
            )),
            Err(why) => Err(format!("the leader's name servers ({why})")),
        }
    }
}

/// What the name servers of the machine say about a name.
enum Enclosing {
    /// It is in this zone.
    Zone(String),
    /// It stands for this name.
    Alias(String),
}

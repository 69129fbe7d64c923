//! Virtual addresses: what `kat-net` has to know of them, and what it says of them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::files::{entries_below, read};
use crate::desired_state::settings::FollowedSettings;
use kat_daemon::watchdog::LoopPulses;
use kat_host::files::{self, FileAccess};
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{ApiTime, Condition, VIRTUAL_ADDRESSES_HELD, VirtualAddressReport},
    machine::fence::{BootTime, kill_after},
    reason::Reason,
    store::keys,
    virtual_addresses::{
        AddressGrant, AddressGrants, AddressStateWord, AddressStates, ReleaseDeadline,
        VirtualAddressRecord,
    },
};

/// Largest file with states, in bytes.
const STATES_LIMIT: u64 = 1 << 20;
/// Pause between two looks at what `kat-net` says.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a deadline that could not be written.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The cluster's virtual addresses from the store's keys, and which of them this machine is to hold.
pub fn grants(entries: &MirrorEntries, own: &str) -> AddressGrants {
    let records = entries_below(entries, keys::VIRTUAL_ADDRESSES)
        .filter_map(|(_, entry)| read::<VirtualAddressRecord>(entry));
    let grants = records.map(|record| {
        let is_own = record.holder.as_deref() == Some(own);
        let grant = AddressGrant {
            prefix: record.prefix,
            interface: record.interface,
            on_leader_loss: record.on_leader_loss,
            number: is_own.then_some(record.number),
        };
        (record.address, grant)
    });
    AddressGrants {
        schema: 1,
        addresses: grants.collect(),
    }
}

/// What `kat-net` last said; nothing where the file can't be read.
pub(crate) fn reports(path: &Path) -> Vec<VirtualAddressReport> {
    let text = files::read_bounded(path, STATES_LIMIT).ok();
    let states = text.and_then(|text| serde_json::from_slice::<AddressStates>(&text).ok());
    let states = states.unwrap_or_default().addresses.into_iter();
    let reports = states.map(|(address, state)| VirtualAddressReport {
        address,
        state: state.word,
        interface: state.interface,
        message: state.message,
    });
    reports.collect()
}

/// Waits until `kat-net` says something else than at this call.
pub(crate) fn state_change(path: &Path) -> impl Future<Output = ()> + Send + 'static {
    let (path, before) = (path.to_owned(), reports(path));
    async move {
        loop {
            sleep(LOOK).await;
            if reports(&path) != before {
                return;
            }
        }
    }
}

/// The condition of a machine that can't hold an address that it is to hold.
pub(crate) fn condition(reports: &[VirtualAddressReport]) -> Option<Condition> {
    let failed = reports.iter().filter_map(|one| {
        let reason = match one.state {
            AddressStateWord::Taken | AddressStateWord::Conflict => Reason::VirtualAddressTaken,
            AddressStateWord::Refused => Reason::VirtualAddressRefused,
            _ => return None,
        };
        Some((reason, format!("{}: {}", one.address, one.message)))
    });
    let failed: Vec<(Reason, String)> = failed.collect();
    let (reason, _) = failed.first()?;
    let messages: Vec<&str> = failed.iter().map(|(_, message)| message.as_str()).collect();
    Some(Condition {
        kind: VIRTUAL_ADDRESSES_HELD.to_owned(),
        status: false,
        reason: (*reason).into(),
        message: messages.join("; "),
        since: ApiTime::UNKNOWN,
    })
}

/// Tells `kat-net` until when addresses with `onLeaderLoss: release` may be held: until shortly before a
/// leader may count this machine as lost and give them to another one.
pub(crate) struct ReleaseDeadlines {
    pub(crate) path: PathBuf,
    /// When this machine last counted as present for every leader.
    pub(crate) reached: watch::Receiver<Option<BootTime>>,
    pub(crate) settings: FollowedSettings,
    pub(crate) pulses: LoopPulses,
}

impl ReleaseDeadlines {
    /// Runs until `cancel`.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let pulse = self.pulses.watch("deadline of virtual addresses");
        let mut settings = self.settings.subscribe();
        loop {
            let timeout = settings.borrow_and_update().loss_timeout;
            let reached = *self.reached.borrow_and_update();
            let until = reached.map(|reached| reached.after(kill_after(timeout)));
            let retry = match until.map(|until| self.write(until)) {
                Some(Err(error)) => {
                    tracing::warn!(
                        "kat-net gives virtual addresses up that it need not: {error:#}"
                    );
                    Some(Instant::now() + AFTER_FAILURE)
                }
                Some(Ok(())) | None => None,
            };
            let next = async {
                let again = async {
                    match retry {
                        Some(at) => tokio::time::sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = cancel.cancelled() => false,
                    changed = self.reached.changed() => changed.is_ok(),
                    changed = settings.changed() => changed.is_ok(),
                    () = again => true,
                }
            };
            if !pulse.wait(next).await {
                return;
            }
        }
    }

    fn write(&self, until: BootTime) -> Result<(), files::FileError> {
        let deadline = ReleaseDeadline { schema: 1, until };
        let text = files::json_of(&self.path, &deadline)?;
        files::write_atomic(&self.path, &text, FileAccess::mode(0o600))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use kat_types::store::transaction::KeyValue;

    #[test]
    fn a_machine_is_told_of_every_address_and_has_a_number_for_its_own() {
        let record = |address: &str, holder: &str, number: u64| {
            let value = serde_json::json!({
                "schema": 1, "address": address, "prefix": 24, "interface": "auto",
                "holder": holder, "number": number,
            });
            let entry = KeyValue {
                key: keys::virtual_address(address.parse().unwrap()),
                value: value.to_string().into_bytes(),
                mod_revision: 1,
                create_revision: 1,
            };
            (Arc::from(entry.key.as_str()), Arc::new(entry))
        };
        let entries = [record("192.0.2.9", "n1", 7), record("2001:db8::9", "n2", 8)];
        let grants = grants(&entries.into_iter().collect(), "n2");
        let numbers: Vec<_> = grants.addresses.iter().collect();
        assert_eq!(numbers.len(), 2);
        assert_eq!(numbers[0].1.number, None);
        assert_eq!(numbers[1].1.number, Some(8));
    }

    #[test]
    fn an_address_of_another_host_is_said_in_a_condition() {
        let said = |state, message: &str| VirtualAddressReport {
            address: [192, 0, 2, 9].into(),
            state,
            interface: "eth0".to_owned(),
            message: message.to_owned(),
        };
        let fine = [
            said(AddressStateWord::Held, ""),
            said(AddressStateWord::NoInterface, "none"),
        ];
        assert_eq!(condition(&fine), None);
        let taken = said(
            AddressStateWord::Taken,
            "the host 02:00:00:00:00:09 answers",
        );
        let condition = condition(&[taken]).unwrap();
        assert_eq!(condition.reason, "VirtualAddressTaken");
        assert_eq!(
            condition.message,
            "192.0.2.9: the host 02:00:00:00:00:09 answers"
        );
    }
}

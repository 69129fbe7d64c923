//! The secret of one workload, which changes from time to time. The newest value must arrive on
//! every machine.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{Arc, LazyLock},
};

use axum::body::Body;
use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{Request, header};
use parking_lot::Mutex;
use serde_json::json;

use crate::{api_calls::Net, checks::monitor::Monitor, load::user::NAMESPACE};
use kat_leader::SnapshotBuilder;
use kat_network::overlay::wireguard::PrivateKey;
use kat_pki::recovery_key::RecoveryKey;
use kat_plan::{Snapshot, SnapshotSealing};
use kat_testing::MemoryStore;
use kat_types::{
    secrets::{SealingKeyRecord, SecretKey},
    store::{keys, transaction::WriteOperation},
};

/// The workload that uses the secret.
pub(crate) const USER: &str = "web";
/// The secret's name, its key, and the environment variable with its value.
const NAME: &str = "login";
const KEY: &str = "PASSWORD";
pub(crate) const VARIABLE: &str = "LOGIN";

/// Keys generated once for each run of the program. Nothing in a simulation depends on their bytes.
static MADE: LazyLock<(RecoveryKey, SealingKeyRecord)> = LazyLock::new(|| {
    let recovery = RecoveryKey::generate().unwrap();
    let sealing = SnapshotSealing::with(recovery.clone());
    let key = sealing.new_key(1, jiff::Timestamp::UNIX_EPOCH).unwrap();
    (recovery, key)
});

pub(crate) fn sealing() -> SnapshotSealing {
    SnapshotSealing::with(MADE.0.clone())
}

/// Stores the sealing key, which otherwise the first secret would create.
pub(crate) fn sealing_key() -> WriteOperation {
    WriteOperation::Put(keys::sealing_key(1), serde_json::to_vec(&MADE.1).unwrap())
}

/// The WireGuard key of a machine such as `n3`.
pub(crate) fn private_key(machine: &str) -> PrivateKey {
    let number: u8 = machine.trim_start_matches('n').parse().unwrap();
    PrivateKey::from_bytes([number; 32])
}

/// The `env` entries of a workload in `workload.kat`.
pub(crate) fn variables(workload: &str) -> serde_json::Value {
    match workload {
        USER => json!([{"name": VARIABLE, "valueFrom": {"secret": {"name": NAME, "key": KEY}}}]),
        _ => json!([]),
    }
}

/// Sets the secret through the API and remembers what was acknowledged.
#[derive(Clone)]
pub(crate) struct Secrets {
    net: Arc<Net>,
    store: MemoryStore,
    monitor: Arc<Monitor>,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    promised: Option<String>,
    /// Values with an unknown outcome.
    perhaps: BTreeSet<String>,
    busy: bool,
}

impl Secrets {
    pub(crate) fn new(net: &Arc<Net>, store: &MemoryStore, monitor: &Arc<Monitor>) -> Self {
        Self {
            net: Arc::clone(net),
            store: store.clone(),
            monitor: Arc::clone(monitor),
            known: Arc::default(),
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.known.lock().promised.is_some()
    }

    /// Asks a machine to set the value, unless the previous request is in flight.
    pub(crate) fn set(&self, to: &str, value: &str) {
        {
            let mut known = self.known.lock();
            if known.busy {
                return;
            }
            known.busy = true;
            known.perhaps.insert(value.to_owned());
        }
        let (secrets, to, value) = (self.clone(), to.to_owned(), value.to_owned());
        tokio::spawn(async move {
            let body = json!({"values": {KEY: BASE64_STANDARD.encode(&value)}});
            let request = Request::put(format!("/v1alpha1/n/{NAMESPACE}/secrets/{NAME}"))
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string()));
            let answer = secrets.net.call(None, &to, request.unwrap(), || ()).await;
            let note = format!("{to} answers secret {value}: {answer:?}");
            secrets.monitor.note(&note);
            let mut known = secrets.known.lock();
            known.busy = false;
            if answer.is_ok_and(|status| status.is_success()) {
                known.perhaps.remove(&value);
                known.promised = Some(value);
            }
        });
    }

    fn snapshot(&self) -> Snapshot {
        let listing = self.store.peek(keys::ROOT);
        let items = listing.items.into_iter();
        let entries = items.map(|item| (Arc::from(item.key.as_str()), Arc::new(item)));
        SnapshotBuilder::with_sealing(sealing()).build(&entries.collect(), listing.revision)
    }

    /// The stored value. A value that was neither acknowledged nor possibly written is a violation.
    pub(crate) fn stored(&self) -> Option<String> {
        let snapshot = self.snapshot();
        let key = SecretKey::new(NAMESPACE, NAME);
        let record = snapshot.secrets.get(&key)?;
        let values = snapshot
            .sealing
            .open(&snapshot, &key, &record.value)
            .unwrap();
        let value = String::from_utf8(values.0[KEY].clone()).unwrap();
        let known = self.known.lock();
        if known.promised.as_ref() != Some(&value) && !known.perhaps.contains(&value) {
            let promised = &known.promised;
            let text = format!("the secret was promised to be {promised:?}, and is {value}");
            self.monitor.violated(text);
        }
        Some(value)
    }

    /// Why an instance of [`USER`] on a machine does not have the value; `None` if all have it.
    pub(crate) fn is_behind(&self, root: &Path, units: &[String], value: &str) -> Option<String> {
        let text = format!("{VARIABLE}={value}\n");
        let folder = root.join("var/lib/kat/units");
        for unit in units {
            let name = format!("{}.env", unit.strip_suffix(".service").unwrap());
            let users = std::fs::read_dir(&folder).unwrap().flatten();
            let mut files = users.map(|user| user.path().join(&name));
            let found = files.find_map(|file| std::fs::read_to_string(file).ok());
            if found.as_ref() != Some(&text) {
                return Some(format!("{unit} has {found:?}, and not {text:?}"));
            }
        }
        None
    }
}

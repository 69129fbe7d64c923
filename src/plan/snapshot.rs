//! The input of the leader's decisions.

use std::ops::{Deref, DerefMut};

use super::secrets::SnapshotSealing;
use kat_types::store::snapshot::StoredState;

/// The stored state at one revision, and what opens and seals its secrets. Dereferences to the
/// [`StoredState`].
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// What is stored.
    pub state: StoredState,
    /// Opens the data keys.
    pub sealing: SnapshotSealing,
}

impl From<StoredState> for Snapshot {
    /// A snapshot that opens no secrets.
    fn from(state: StoredState) -> Self {
        Self {
            state,
            sealing: SnapshotSealing::None,
        }
    }
}

impl Deref for Snapshot {
    type Target = StoredState;

    fn deref(&self) -> &StoredState {
        &self.state
    }
}

impl DerefMut for Snapshot {
    fn deref_mut(&mut self) -> &mut StoredState {
        &mut self.state
    }
}

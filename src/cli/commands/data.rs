//! Commands for secrets, registries and volumes.

pub(crate) mod login;
pub(crate) mod registry;
pub(crate) mod secret;
pub(crate) mod volume_forget;
pub(crate) mod volume_move;

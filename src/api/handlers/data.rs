//! Handlers of secrets, credentials, routes and volumes.

pub(crate) mod logins;
pub(crate) mod routes;
pub(crate) mod secrets;
pub(crate) mod volume_copies;
pub(crate) mod volume_forgets;
pub(crate) mod volume_moves;
pub(crate) mod volumes;

//! What the store holds: its keys, its records and how they are written together.

pub mod acme;
pub mod authorities;
pub mod configuration;
pub mod ingress;
pub mod jobs;
pub mod keys;
pub mod members;
pub mod records;
pub mod revisions;
pub mod snapshot;
pub mod stored_objects;
pub mod transaction;
pub mod visibility;

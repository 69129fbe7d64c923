//! Volumes, files, secrets and credentials of instances.

mod forgotten_volumes;
mod hung_disks;
mod prepared;
mod registry_credentials;
mod secrets;
mod volume_moves;
mod volumes;
mod workload_files;

use super::*;

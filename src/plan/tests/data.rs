//! Volumes and their moves, images, registry credentials and secrets.

mod forgotten_volumes;
mod images;
mod registry_credentials;
mod secrets;
mod volume_moves;
mod volumes;

use super::*;

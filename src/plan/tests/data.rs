//! Volumes and their moves, images, registry credentials and secrets.

mod images;
mod logins;
mod moves;
mod secrets;
mod volumes;

use super::*;

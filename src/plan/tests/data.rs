//! Volumes and their moves, images, registry credentials, routes and secrets.

mod acme;
mod forgotten_volumes;
mod images;
mod ingress_authority;
mod registry_credentials;
mod routes;
mod secrets;
mod volume_moves;
mod volumes;

use super::*;

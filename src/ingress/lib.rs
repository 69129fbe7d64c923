//! The reverse proxy for requests from outside the cluster, and the program `kat-ingress`.
//!
//! Where to begin:
//! - `proxy.rs`: one request from its head to the end of its answer.
//! - `connection.rs`: a client's connection from its first byte to HTTP.
//! - `config/files.rs`: [`config::ConfigFiles`], the agent's files, all that `kat-ingress` knows.
//!   Their types are in `kat_types::ingress`.
//! - `service.rs`: [`service::run`], the program's life from its sockets to the end of the drain.
//! - `main.rs`: the command of the program.
//!
//! Modules:
//! - `config`: routes, upstreams, certificates, passwords, challenges.
//! - `upstream`: which instance gets a request, connections to instances, bodies.
//! - `request_host`, `request_path`, `headers`, `client`: what of a request is believed and passed on.
//! - `proxy_header`: the PROXY protocol. `tunnel`: websockets and passed-through TLS.
//! - `limits`: connections and rates. `control_frames`: pings and settings of HTTP/2.
//! - `pages`: answers of KAT itself.
//! - `metrics`, `access`: counters and the access log.
//!
//! Rules:
//! - The program runs without root and capabilities, and needs the agent's files and no service.
//! - Nothing of a body is collected: it is passed on piece by piece, with backpressure.
//! - Everything that a client sends is bounded in size and time (invariant 8).
//! - An answer names no instance, machine or address of the cluster.
//! - A configuration is replaced whole. What is under way keeps the one that it began with.
//! - A request is sent a second time only if nothing of it has left, or if its method is idempotent
//!   and it has no body.
//! - The crate knows no etcd, no API, no plan, and has no `unsafe`.
//!
//! Tests: unit tests beside the code, `tests` on loopback with real clients and servers, and with HTTP/2's
//! frames made by hand (`tests/http2_frames.rs`); targets `proxy-header` and `request-path` of
//! `contrib/fuzz`.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod access;
pub mod client;
pub mod config;
pub mod connection;
mod control_frames;
pub mod headers;
pub mod limits;
pub mod metrics;
pub mod pages;
mod proxy;
pub mod proxy_header;
pub mod request_host;
pub mod request_path;
pub mod service;
#[cfg(test)]
mod tests;
mod tunnel;
mod upstream;

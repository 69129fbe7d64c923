//! Local exclusion of silent peers: this machine sends no new connection to a machine that does not
//! answer over the overlay.
//!
//! The leader notices a lost machine after `nodeLossTimeoutSeconds`, and not at all where the store
//! has no quorum. `kat-net` needs neither: it asks a peer that is sent to and sends nothing back
//! ([`probes`]), judges the answers ([`judgement`]), and takes the instances of a silent peer out of
//! service addresses and DNS answers of this machine ([`exclusion`]). The last instance behind a
//! name stays, open connections stay, and a peer that answers is taken back, after some time if it
//! falls silent again and again.

pub mod exclusion;
pub mod judgement;
pub mod packet;
pub(crate) mod probes;
pub(crate) mod watcher;

//! Tests of the real proxies: against the XML, between two peers, and on a private bus.

mod bus;
mod contract;
mod peers;
mod served;

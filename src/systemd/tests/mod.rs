//! Tests of the real proxies: against the XML, between two peers, and on a private bus.

mod manager_over_socket_pair;
mod private_bus;
mod served_manager;
mod xml_contract;

//! The simulated machines: their agents, etcd, users and the world around an agent.

pub(crate) mod acme_servers;
pub(crate) mod agent_environment;
pub(crate) mod agent_process;
pub(crate) mod data_path;
pub(crate) mod disk;
pub(crate) mod dns_zones;
pub(crate) mod etcd;
pub(crate) mod joining_machine;
pub(crate) mod lan;
pub(crate) mod machine;
pub(crate) mod state_source;
pub(crate) mod timers;

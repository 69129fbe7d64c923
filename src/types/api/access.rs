//! Access: certificate authorities, joins of machines, membership of etcd, tokens, credentials for registries, sessions.

pub(crate) mod authorities;
pub(crate) mod join;
pub(crate) mod login;
pub(crate) mod membership;
pub(crate) mod session;
pub(crate) mod token;

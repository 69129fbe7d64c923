//! The Linux users of workloads: accounts, limits, groups and credentials.

pub(crate) mod accounts;
pub(crate) mod group_membership;
pub(crate) mod limits;
pub(crate) mod logins;
pub(crate) mod machine_options;
pub(crate) mod user;

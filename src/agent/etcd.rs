//! What runs only on machines that hold the store.

pub(crate) mod member;
pub(crate) mod membership;
pub(crate) mod stores;

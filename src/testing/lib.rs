//! What tests and measurements stand on: fakes, suites that a fake and the real part both pass, and the generators of
//! the documents in `contrib/schema` and `contrib/proto`. No program links it.

pub mod schemas;
pub mod systemd;

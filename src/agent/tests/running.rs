//! Instances while they run: starts, stops, health and restarts.

mod adoption;
mod bound_schedules;
mod draining;
mod early_units;
mod fence;
mod health;
mod restarts;
mod resting;
mod sidecars;
mod starts;
mod stops;
mod unit_verdicts;
mod waiting_reasons;

use super::*;

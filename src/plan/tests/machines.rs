//! Machines that join, are drained, are lost, fill their disks, isolate or send forged reports, and the
//! users on them.

mod assignment_lag;
mod cannot_start;
mod cluster_authority;
mod disk;
mod drain;
mod forged_reports;
mod isolation;
mod joining;
mod long_power_loss;
mod loss_timeout;
pub(crate) mod node_loss;
mod nodes;
mod overlay_down;
mod readers;
mod recovery_key;
mod rotation;
mod user_indexes;
mod users;
mod virtual_addresses;

use kat_types::api::AuthorityReport;

use super::*;

/// What a leader of an hour has heard just now: how each machine uses an authority or a key.
fn observed_authorities(
    reports: impl Iterator<Item = (String, AuthorityReport)>,
) -> ObservedReports {
    let reported = reports.map(|(name, report)| {
        let report = NodeReport {
            authorities: vec![report],
            ..NodeReport::default()
        };
        let reported = ReportedNode {
            age: Duration::ZERO,
            steady: Duration::from_secs(3600),
            report: Arc::new(report),
        };
        (name, reported)
    });
    ObservedReports {
        leading_for: Duration::from_secs(3600),
        reports: reported.collect(),
    }
}

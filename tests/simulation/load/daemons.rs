//! A DaemonService, whose instances follow the machines: those that join, are drained, and are lost.

use serde_json::json;

use crate::load::added::workload_file;
use kat_bundle::SourceFile;

/// The DaemonService.
pub(crate) const DAEMON: &str = "exporter";

/// Its files in a version.
pub(crate) fn daemon_files(version: u64) -> Vec<SourceFile> {
    vec![workload_file(DAEMON, "DaemonService", version, &json!({}))]
}

//! Changes of the cluster's configuration.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::resource::ClusterConfiguration;

/// Number of configurations that are kept besides the present one.
pub const KEPT_CONFIGURATIONS: u64 = 20;

/// A configuration of the cluster, and the change that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// 1 for the configuration of init, and one more for each change.
    pub number: u64,
    /// Generated with the change. Machines report it once they follow the configuration; a number
    /// would not do, because a store that is restored from a backup gives numbers away again.
    pub change: String,
    /// When it was made; `None` for the configuration of init.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_at: Option<Timestamp>,
    /// The caller that made it, for people.
    #[serde(default)]
    pub made_by: String,
    /// All settings.
    pub configuration: ClusterConfiguration,
}

impl ConfigurationRecord {
    /// The configuration of init, which no change has made.
    pub fn of_init(configuration: ClusterConfiguration) -> Self {
        Self {
            schema: 1,
            number: 1,
            change: String::new(),
            made_at: None,
            made_by: "init".to_owned(),
            configuration,
        }
    }
}

//! Outcomes of requests that change something.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::newer;

/// The outcome of a request that changes something; of a dry run, the outcome that it would have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum WriteOutcome {
    /// The item is new.
    Created,
    /// The item has changed.
    #[default]
    Updated,
    /// The item was in the requested state before.
    Unchanged,
    /// The item will be deleted once nothing of it is left on the machines.
    Deleting,
    /// The item is deleted.
    Deleted,
    /// KAT deletes only its own record of the volume; the data stays.
    Forgetting,
    /// The volume's data will move to another machine.
    Moving,
    /// The move of the volume's data is cancelled.
    Cancelled,
}

impl WriteOutcome {
    /// The outcome for an item that existed before.
    pub fn of_change(changed: bool) -> Self {
        if changed {
            Self::Updated
        } else {
            Self::Unchanged
        }
    }

    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
            Self::Deleting => "deleting",
            Self::Deleted => "deleted",
            Self::Forgetting => "forgetting",
            Self::Moving => "moving",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for WriteOutcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// An unknown outcome is a change.
impl newer::ExtensibleEnum for WriteOutcome {
    const NEWER: Self = Self::Updated;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::ApplyResult;

    #[test]
    fn an_outcome_is_written_as_its_word_and_an_unknown_one_is_a_change() {
        let all = [
            WriteOutcome::Created,
            WriteOutcome::Updated,
            WriteOutcome::Unchanged,
            WriteOutcome::Deleting,
            WriteOutcome::Deleted,
            WriteOutcome::Forgetting,
            WriteOutcome::Moving,
            WriteOutcome::Cancelled,
        ];
        for outcome in all {
            assert_eq!(json!(outcome), json!(outcome.word()));
        }
        let read = |word: &str| {
            let result = json!({"outcome": word, "kind": "Workload", "metadata": {}});
            let result: ApplyResult = serde_json::from_value(result).unwrap();
            result.outcome
        };
        assert_eq!(read("forgetting"), WriteOutcome::Forgetting);
        assert_eq!(read("renamed"), WriteOutcome::Updated);
    }
}

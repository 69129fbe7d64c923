//! A Job whose schedule machines keep by themselves: the one with its data, or each for itself.

use serde_json::json;

use crate::load::{
    added::{Requests, workload_file},
    user::NAMESPACE,
};
use kat_bundle::SourceFile;

/// The Job. Its data is deleted with it.
pub(crate) const DUMP: &str = "dump";

/// Most further attempts of a run of [`DUMP`].
pub(crate) const MOST_RETRIES: usize = 2;

/// At least the number of the machines.
const MOST_MACHINES: u32 = 20;

/// The policies of [`DUMP`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptForm {
    /// A run has one attempt, and missed times have no run.
    Once,
    /// A run that failed is tried again, and the newest missed time is made up for. Its times are further
    /// apart than a machine waits until it takes a time for missed.
    Retried,
    /// Each machine has runs of its own without data, and makes up for the newest missed time.
    Each,
}

impl KeptForm {
    pub(crate) fn of_seed(seed: u64) -> Self {
        match seed % 4 == 1 {
            true => Self::Retried,
            false => Self::Once,
        }
    }

    pub(crate) fn of_schedule(schedule: &str) -> Self {
        let mut others = [Self::Retried, Self::Each].into_iter();
        let found = others.find(|form| form.schedule() == schedule);
        found.unwrap_or(Self::Once)
    }

    fn schedule(self) -> &'static str {
        match self {
            Self::Once => "* * * * *",
            Self::Retried => "*/3 * * * *",
            Self::Each => "*/4 * * * *",
        }
    }

    /// Seconds between two times.
    pub(crate) fn seconds(self) -> i64 {
        match self {
            Self::Once => 60,
            Self::Retried => 180,
            Self::Each => 240,
        }
    }
}

/// What its user wants of [`DUMP`].
#[derive(Debug, Clone)]
pub(crate) struct KeptJob {
    form: KeptForm,
    pub version: u64,
    pub suspended: bool,
    /// Only one machine may run at once, so that no machine keeps the schedule for itself.
    pub one_at_once: bool,
}

impl KeptJob {
    pub(crate) fn new(form: KeptForm) -> Self {
        Self {
            form,
            version: 1,
            suspended: false,
            one_at_once: false,
        }
    }

    pub(crate) fn files(&self) -> Vec<SourceFile> {
        let volume = json!({
            "name": "data", "simpleClusterStorage": {}, "perReplica": true, "reclaim": "Delete",
        });
        let workload = match self.form {
            KeptForm::Once | KeptForm::Retried => json!({
                "volumes": [volume],
                "restartPolicy": {"condition": "Never"},
                "container": {
                    "terminationGraceSeconds": 2,
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                },
            }),
            KeptForm::Each => json!({"restartPolicy": {"condition": "Never"}}),
        };
        let (catch_up, retries) = match self.form {
            KeptForm::Once => ("None", 0),
            KeptForm::Retried => ("Last", MOST_RETRIES),
            KeptForm::Each => ("Last", 0),
        };
        let mut definition = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "JobDefinition",
            "spec": {
                "schedule": self.form.schedule(),
                "concurrencyPolicy": "Forbid",
                "catchUp": catch_up,
                "backoffLimit": retries,
                "activeDeadlineSeconds": 90,
                "suspend": self.suspended,
            },
        });
        if self.form == KeptForm::Each {
            let spec = &mut definition["spec"];
            spec["completions"] = json!("PerNode");
            spec["parallelism"] = json!(if self.one_at_once { 1 } else { MOST_MACHINES });
            spec["successfulHistory"] = json!(100);
            spec["failedHistory"] = json!(100);
        }
        let definition = SourceFile {
            name: "job.kat".to_owned(),
            text: definition.to_string(),
        };
        vec![
            workload_file(DUMP, "Job", self.version, &workload),
            definition,
        ]
    }

    pub(crate) fn apply(&self, requests: &Requests, to: &str) {
        requests.apply(to, DUMP, &self.files());
    }
}

/// The volume of [`DUMP`] as calls name it.
pub(crate) fn is_volume_of_dump(volume: &str) -> bool {
    volume.starts_with(&format!("{NAMESPACE}/{DUMP}/"))
}

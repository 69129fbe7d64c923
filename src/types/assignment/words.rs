//! Reading of assignments of a newer version: one assignment that this version does not understand
//! must not hide the others of its list.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error},
};
use serde_json::{Map, Value, json};

use super::{AssignedRun, AssignedVolume, Assignment, DesiredRun};
use crate::{
    resource::{
        Container, HealthCheck, OnPartition, Port, RestartPolicy, WorkloadSpec, WorkloadType,
    },
    secrets::{AssignedSecrets, secrets_of},
};

/// Highest schema of an assignment that this version understands.
pub const ASSIGNMENT_SCHEMA: u32 = 9;

/// Lowest schema of an assignment that is [`DesiredRun::Prepared`]. When the instance starts, its
/// assignment has the lower schema that it runs with.
pub const PREPARED_SCHEMA: u32 = 7;

/// The lowest assignment schema that covers everything the workload needs, so that older agents can
/// still run simpler workloads: 9 for Jobs, 8 with `machineAccess`, 6 with init containers, sidecars or credentials for registries
/// (`plan/logins.rs`), 5 with files of the workload's folder, secrets, the machine's network,
/// devices or groups, or host ports (`plan/scheduling/host_ports.rs`), 4 with volumes or
/// passed-through keys, 3 with a health check, 2 with `onPartition: stop`, else 1.
pub fn needed_schema(spec: &WorkloadSpec, health_check: Option<&HealthCheck>) -> u32 {
    // An earlier version would start a program again that has done its part.
    if spec.kind == WorkloadType::Job {
        return 9;
    }
    if !spec.machine_access.is_empty() {
        return 8;
    }
    if !spec.init_containers.is_empty() || !spec.sidecars.is_empty() {
        return 6;
    }
    let carries = spec.volumes.iter().any(|volume| volume.files.is_some());
    if carries || spec.container.has_machine_things() || !secrets_of(spec).is_empty() {
        return 5;
    }
    if !spec.container.volume_mounts.is_empty() || !spec.container.quadlet.is_empty() {
        return 4;
    }
    match (health_check, spec.on_partition) {
        (Some(_), _) => 3,
        (None, OnPartition::Stop) => 2,
        (None, OnPartition::Keep) => 1,
    }
}

/// Whether an instance needs crun: other runtimes keep no groups of the machine, and KAT runs the
/// commands of health checks with `crun exec`.
pub fn needs_crun(spec: &WorkloadSpec, health_check: Option<&HealthCheck>) -> bool {
    let others = spec.init_containers.iter().chain(&spec.sidecars);
    let mut containers = std::iter::once(&spec.container).chain(others);
    containers.any(|container| !container.groups.is_empty())
        || health_check.is_some_and(|check| check.exec.is_some())
}

impl Serialize for Assignment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Assignment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let mut assignment = match Self::deserialize(&value) {
            Ok(assignment) => assignment,
            Err(error) => {
                let Some(fields) = value.as_object_mut() else {
                    return Err(D::Error::custom(error));
                };
                // Identity, owner and place must be readable; how it runs may be in words of a
                // newer version.
                replace::<WorkloadType>(fields, "workloadType", &json!("Service"));
                replace::<Container>(fields, "container", &json!({}));
                replace::<Vec<Container>>(fields, "initContainers", &json!([]));
                replace::<Vec<Container>>(fields, "sidecars", &json!([]));
                replace::<Vec<Port>>(fields, "ports", &json!([]));
                replace::<RestartPolicy>(fields, "restartPolicy", &json!({"condition": "Always"}));
                replace::<OnPartition>(fields, "onPartition", &json!("keep"));
                replace::<Vec<String>>(fields, "machineAccess", &json!([]));
                replace::<Option<HealthCheck>>(fields, "healthCheck", &Value::Null);
                replace::<Vec<AssignedVolume>>(fields, "volumes", &json!([]));
                replace::<Option<AssignedSecrets>>(fields, "secrets", &Value::Null);
                replace::<Option<AssignedSecrets>>(fields, "logins", &Value::Null);
                replace::<Option<AssignedRun>>(fields, "run", &Value::Null);
                replace::<DesiredRun>(fields, "wanted", &json!("Running"));
                let mut rest = Self::deserialize(&value).map_err(D::Error::custom)?;
                rest.not_understood = Some(error.to_string());
                rest
            }
        };
        let schema = assignment.schema;
        if schema > ASSIGNMENT_SCHEMA && assignment.not_understood.is_none() {
            assignment.not_understood = Some(format!(
                "its schema is {schema}, and this version understands {ASSIGNMENT_SCHEMA} at most"
            ));
        }
        Ok(assignment)
    }
}

fn replace<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str, other: &Value) {
    let readable = fields
        .get(name)
        .is_none_or(|value| T::deserialize(value).is_ok());
    if !readable {
        fields.insert(name.to_owned(), other.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assignment::WorkloadUser;

    fn stored() -> Value {
        json!({
            "schema": 1, "instance": "web-aaaaa", "namespace": "default", "workload": "web",
            "workloadUid": "u", "workloadType": "Service", "slot": 2, "generation": 3,
            "templateHash": "h", "user": WorkloadUser::from_index(1, "default", "web"),
            "address": "10.100.0.2", "image": "example/web:1",
            "container": {"imagePullPolicy": "Always"},
            "ports": [{"name": "web", "containerPort": 80}],
            "restartPolicy": {"condition": "Never"},
            "healthCheck": {"tcp": {"port": "web"}},
            "volumes": [{"definition": {"name": "data", "simpleClusterStorage": {}}}],
        })
    }

    fn read(value: &Value) -> Assignment {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn what_this_version_wrote_it_reads() {
        let read = read(&stored());
        assert_eq!(read.not_understood, None);
        assert!(read.is_run());
        let again: Assignment =
            serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }

    #[test]
    fn a_newer_word_leaves_the_rest_readable() {
        let plain = read(&stored());
        for (pointer, word) in [
            ("/workloadType", json!("Function")),
            ("/container/imagePullPolicy", json!("Monthly")),
            ("/ports/0/protocol", json!("QUIC")),
            ("/restartPolicy/condition", json!("OnTuesdays")),
            ("/wanted", json!("Hibernating")),
            ("/onPartition", json!("ask")),
            ("/healthCheck/periodSeconds", json!("seldom")),
            ("/volumes/0/definition/reclaim", json!("Archive")),
        ] {
            let mut newer = stored();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let parent = newer.pointer_mut(parent).unwrap();
            parent
                .as_object_mut()
                .unwrap()
                .insert(name.to_owned(), word.clone());
            newer["fromLater"] = json!({"a": [1]});
            let read = read(&newer);
            let why = read.not_understood.clone().unwrap();
            assert!(why.contains(word.as_str().unwrap()), "{pointer}: {why}");
            assert!(!read.is_run(), "{pointer}");
            assert_eq!(
                (read.slot, read.address, &read.user, read.unit()),
                (plain.slot, plain.address, &plain.user, plain.unit())
            );
            // The unknown word survives storing on the disk.
            let kept: Assignment =
                serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
            assert_eq!(kept, read, "{pointer}");
        }
    }

    #[test]
    fn a_higher_schema_is_not_run() {
        let mut newer = stored();
        newer["schema"] = json!(ASSIGNMENT_SCHEMA + 1);
        let why = read(&newer).not_understood.unwrap();
        let expected = format!("its schema is {}", ASSIGNMENT_SCHEMA + 1);
        assert!(why.contains(&expected), "{why}");
    }

    #[test]
    fn what_it_is_and_where_must_be_readable() {
        for field in ["instance", "user", "address", "slot", "templateHash"] {
            let mut broken = stored();
            broken.as_object_mut().unwrap().remove(field);
            assert!(
                serde_json::from_value::<Assignment>(broken).is_err(),
                "{field}"
            );
        }
    }
}

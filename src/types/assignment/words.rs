//! Reading of assignments of a newer version: one assignment that this version does not understand
//! must not hide the others of its list.

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error},
};
use serde_json::{Map, Value, json};

use super::{AssignedRun, AssignedVolume, Assignment, BoundSchedule, DesiredRun};
use crate::{
    resource::{
        Container, FieldSchema, HealthCheck, OnPartition, Port, RestartPolicy, WorkloadSpec,
        WorkloadType, highest_schema, lowest_schema,
    },
    secrets::{AssignedSecrets, secrets_of},
};

/// Highest schema of an assignment that this version understands.
pub const ASSIGNMENT_SCHEMA: u32 = if BOUND_PER_NODE_SCHEMA > FIELD_SCHEMA {
    BOUND_PER_NODE_SCHEMA
} else {
    FIELD_SCHEMA
};

const FIELD_SCHEMA: u32 = if SPEC_SCHEMA > Container::HIGHEST_SCHEMA {
    SPEC_SCHEMA
} else {
    Container::HIGHEST_SCHEMA
};

/// Lowest schema of an assignment with [`Assignment::bound`]: an earlier agent would start its program at
/// once, and an earlier leader would begin the runs itself.
pub const BOUND_SCHEMA: u32 = 11;

/// Lowest schema of an assignment whose machine tries failed runs again or makes up for missed times: an
/// earlier agent would do neither, and an earlier leader would not know of it.
pub const BOUND_RETRIES_SCHEMA: u32 = 13;

/// Lowest schema of an assignment with [`BoundSchedule::per_node`]: an earlier agent would start its program
/// unconfirmed after a boot, and an earlier leader would take the schedule of one machine for that of all.
pub const BOUND_PER_NODE_SCHEMA: u32 = 14;

impl BoundSchedule {
    /// Lowest schema of an assignment with this.
    pub fn schema(&self) -> u32 {
        match (self.per_node, self.backoff_limit, self.catch_up) {
            (true, ..) => BOUND_PER_NODE_SCHEMA,
            (false, 0, None) => BOUND_SCHEMA,
            (false, ..) => BOUND_RETRIES_SCHEMA,
        }
    }
}

const SPEC_SCHEMA: u32 = highest_schema(SCHEMAS);

/// What older agents do not know of a workload, apart from the fields of its containers.
const SCHEMAS: &[FieldSchema<WorkloadSpec>] = &[
    (2, |spec| spec.on_partition == OnPartition::Stop),
    (5, |spec| {
        spec.volumes.iter().any(|volume| volume.files.is_some())
    }),
    (5, |spec| !secrets_of(spec).is_empty()),
    (6, |spec| !spec.init_containers.is_empty()),
    (6, |spec| !spec.sidecars.is_empty()),
    (8, |spec| !spec.machine_access.is_empty()),
    // An earlier agent would start a program again that has done its part.
    (9, |spec| spec.kind == WorkloadType::Job),
];

/// Lowest schema of an assignment with a health check.
const HEALTH_SCHEMA: u32 = 3;

/// Lowest schema of an assignment that is [`DesiredRun::Prepared`]. When the instance starts, its
/// assignment has the lower schema that it runs with.
pub const PREPARED_SCHEMA: u32 = 7;

/// The lowest assignment schema that covers everything the workload needs, so that older agents can
/// still run simpler workloads. Host ports have theirs in `plan/scheduling/host_ports.rs`, and
/// credentials for registries in `plan/logins.rs`.
pub fn needed_schema(spec: &WorkloadSpec, health_check: Option<&HealthCheck>) -> u32 {
    let others = spec.init_containers.iter().chain(&spec.sidecars);
    let of_containers = std::iter::once(&spec.container)
        .chain(others)
        .map(Container::needed_schema);
    let of_health = health_check.map(|_| HEALTH_SCHEMA);
    let of_all = of_containers.chain(of_health);
    of_all.fold(lowest_schema(SCHEMAS, spec), u32::max)
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
                replace::<Option<String>>(fields, "gpu", &Value::Null);
                replace::<Option<BoundSchedule>>(fields, "bound", &Value::Null);
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

    /// The schema that a workload needs whose `spec` has these fields as well.
    fn schema_with(fields: &Value) -> u32 {
        let mut spec = json!({
            "type": "Service", "source": {"image": "example/web:1"},
            "restartPolicy": {"condition": "Always"}, "container": {},
        });
        let fields = fields.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(fields);
        let spec: WorkloadSpec = serde_json::from_value(spec).unwrap();
        needed_schema(&spec, None)
    }

    #[test]
    fn a_workload_needs_the_highest_schema_of_its_fields_and_containers() {
        let mounts = json!([{"name": "data", "mountPath": "/data"}]);
        for (schema, fields) in [
            (1, json!({})),
            (2, json!({"onPartition": "stop"})),
            (4, json!({"container": {"quadlet": {"Timezone": "UTC"}}})),
            (
                4,
                json!({"container": {"volumeMounts": mounts}, "onPartition": "stop"}),
            ),
            (5, json!({"container": {"devices": ["/dev/ttyUSB0"]}})),
            (5, json!({"volumes": [{"name": "conf", "files": "conf/"}]})),
            (
                6,
                json!({"sidecars": [{"name": "proxy", "image": "example/proxy:1"}]}),
            ),
            (
                6,
                json!({"initContainers": [{"name": "prepare", "groups": ["audio"]}]}),
            ),
            (8, json!({"machineAccess": ["api"]})),
            (12, json!({"container": {"resources": {"gpu": {}}}})),
            (
                12,
                json!({"sidecars": [{"name": "model", "resources": {"gpu": {}}}]}),
            ),
            (9, json!({"type": "Job", "machineAccess": ["api"]})),
        ] {
            assert_eq!(schema_with(&fields), schema, "{fields}");
            assert!(schema <= ASSIGNMENT_SCHEMA, "{fields}");
        }
    }

    #[test]
    fn a_schedule_needs_the_lowest_schema_that_keeps_it() {
        let plain = BoundSchedule::default();
        let retried = BoundSchedule {
            backoff_limit: 1,
            ..plain.clone()
        };
        let on_each = BoundSchedule {
            per_node: true,
            ..plain.clone()
        };
        let schemas = [&plain, &retried, &on_each].map(BoundSchedule::schema);
        assert_eq!(schemas, [11, 13, 14]);
        assert!(schemas.iter().all(|schema| *schema <= ASSIGNMENT_SCHEMA));
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

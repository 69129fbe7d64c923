//! Writes of stored objects, as `init`, the API and a leader's transaction make them.

use super::*;

impl World {
    pub(crate) fn write<T: Serialize>(&mut self, key: String, value: &T) {
        let value = serde_json::to_vec(value).unwrap();
        self.apply(&[WriteOperation::Put(key, value)]);
    }

    pub(crate) fn namespace(&mut self, name: &str, deleting: bool) {
        let record = NamespaceRecord {
            schema: 1,
            uid: format!("uid of {name}"),
            labels: BTreeMap::new(),
            created: self.now,
            deleting,
            quota: Default::default(),
            access: Default::default(),
            ingress_hosts: None,
            defaults: Default::default(),
        };
        self.write(keys::namespace(name), &record);
    }

    pub(crate) fn machine(&mut self, name: &str, prefix: &str, taints: &[Taint]) {
        let number = self.machines.len() * 2;
        let registration = NodeRegistration {
            labels: BTreeMap::from([("name".to_owned(), name.to_owned())]),
            taints: taints.to_vec(),
            architecture: "amd64".to_owned(),
            etcd: true,
            ..NodeRegistration::new(&format!("uid of {name}"), self.now)
        };
        self.write(keys::registration(name), &registration);
        let subnet = format!("10.100.{number}.0/{prefix}").into_bytes();
        self.apply(&[WriteOperation::Put(
            keys::network_node(name, "subnet"),
            subnet,
        )]);
        let list = DesiredMeta {
            schema: 1,
            revision: 1,
            count: 0,
            changed: None,
        };
        self.write(keys::desired_meta(name), &list);
        let machine = Machine::new(&registration.uid);
        self.machines.insert(name.to_owned(), machine);
    }

    /// Drains a machine, or ends the drain, as the API does.
    pub(crate) fn drain(&mut self, name: &str, draining: bool) {
        let snapshot = self.snapshot();
        let mut registration = snapshot.nodes[name].registration.value.clone();
        (registration.draining, registration.drain_forced) = (draining, false);
        self.write(keys::registration(name), &registration);
    }

    /// Drains a machine with `drain_forced`.
    pub(crate) fn drain_by_force(&mut self, name: &str) {
        let snapshot = self.snapshot();
        let mut registration = snapshot.nodes[name].registration.value.clone();
        (registration.draining, registration.drain_forced) = (true, true);
        self.write(keys::registration(name), &registration);
    }

    /// Marks a machine for removal, as the API does.
    pub(crate) fn mark_machine(&mut self, name: &str) {
        let snapshot = self.snapshot();
        let mut registration = snapshot.nodes[name].registration.value.clone();
        registration.deleting = true;
        self.write(keys::registration(name), &registration);
    }

    /// Removes a machine from the cluster.
    pub(crate) fn remove_machine(&mut self, name: &str) {
        self.mark_machine(name);
        self.plan_out();
        self.machines.remove(name);
    }

    /// Applies a workload as the API does, with `change` made to its file.
    pub(crate) fn apply_workload(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) {
        self.apply_workload_in(NAMESPACE, name, change);
    }

    pub(crate) fn apply_workload_in(
        &mut self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) {
        let mut file = json!({
            "apiVersion": "kat.dws.rip/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "type": "Service",
                "source": {"image": format!("registry.example/{name}:1")},
                "replicas": 1,
                "restartPolicy": {"condition": "Always"},
                "container": {},
            },
        });
        change(&mut file);
        let mut template = file.clone();
        template["spec"]["replicas"] = json!(null);
        template["spec"]["updateStrategy"] = json!(null);
        let snapshot = self.snapshot();
        let key = WorkloadKey::new(namespace, name);
        let before = snapshot
            .workloads
            .get(&key)
            .map(|entry| entry.meta.value.clone());
        let kept = snapshot
            .volumes
            .iter()
            .find(|(volume, _)| volume.workload == key);
        let kept = kept.map(|(_, stored)| stored.value.index);
        let index = before.as_ref().map(|meta| meta.index).or(kept);
        let index = index.unwrap_or_else(|| next_index(&snapshot).unwrap());
        if before.is_none() {
            self.write(keys::LAST_INDEX.to_owned(), &LastIndex { schema: 1, index });
        }
        let meta = WorkloadMeta {
            schema: 1,
            uid: before.as_ref().map_or_else(
                || format!("uid {} of {name}", self.revision),
                |meta| meta.uid.clone(),
            ),
            generation: before.as_ref().map_or(0, |meta| meta.generation) + 1,
            spec_hash: hash_of(&file),
            template_hash: hash_of(&template),
            index,
            created: self.now,
            updated: self.now,
            deleting: false,
            deletes_volumes: false,
            paused: before.as_ref().is_some_and(|meta| meta.paused),
            restarted: None,
            stopped: None,
            image: Default::default(),
        };
        let record = IndexRecord {
            schema: 1,
            namespace: namespace.to_owned(),
            workload: name.to_owned(),
            workload_uid: meta.uid.clone(),
        };
        let generation = GenerationRecord {
            schema: 1,
            applied: self.now,
            by: "a test".to_owned(),
            origin: Origin::Applied,
            of: None,
            why: String::new(),
            spec_hash: meta.spec_hash.clone(),
            template_hash: meta.template_hash.clone(),
            restarted: None,
            image: Default::default(),
        };
        self.write(keys::index(index), &record);
        self.write(keys::manifest(namespace, name, "workload.kat"), &file);
        let copy = keys::archive_file(namespace, name, meta.generation, "workload.kat");
        self.write(copy, &file);
        let archive = keys::archive_meta(namespace, name, meta.generation);
        self.write(archive, &generation);
        self.write(keys::workload_meta(namespace, name), &meta);
    }

    pub(crate) fn replicas(&mut self, name: &str, count: u32) {
        self.apply_workload(name, |file| file["spec"]["replicas"] = json!(count));
    }

    /// Changes a stored object, as another version might have written it.
    pub(crate) fn change(&mut self, key: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut value = serde_json::from_slice(&self.entries[key].value).unwrap();
        change(&mut value);
        self.write(key.to_owned(), &value);
    }

    /// Pauses or resumes a rollout.
    pub(crate) fn pause(&mut self, name: &str, paused: bool) {
        let snapshot = self.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, name)];
        let meta = WorkloadMeta {
            paused,
            ..entry.meta.value.clone()
        };
        self.write(keys::workload_meta(NAMESPACE, name), &meta);
    }

    pub(crate) fn delete_workload(&mut self, name: &str) {
        let snapshot = self.snapshot();
        let entry = &snapshot.workloads[&WorkloadKey::new(NAMESPACE, name)];
        let meta = WorkloadMeta {
            deleting: true,
            ..entry.meta.value.clone()
        };
        self.write(keys::workload_meta(NAMESPACE, name), &meta);
    }

    pub(crate) fn apply(&mut self, operations: &[WriteOperation]) {
        self.revision += 1;
        for operation in operations {
            match operation {
                WriteOperation::Put(key, value) => {
                    let create_revision = self
                        .entries
                        .get(key.as_str())
                        .map_or(self.revision, |entry| entry.create_revision);
                    let entry = KeyValue {
                        key: key.clone(),
                        value: value.clone(),
                        mod_revision: self.revision,
                        create_revision,
                    };
                    self.entries.insert(key.as_str().into(), Arc::new(entry));
                }
                WriteOperation::Delete(key) => {
                    self.entries.remove(key.as_str());
                }
                WriteOperation::DeletePrefix(prefix) => {
                    let kept = std::mem::take(&mut self.entries).into_iter();
                    let kept = kept.filter(|(key, _)| !key.starts_with(prefix));
                    self.entries = kept.collect();
                }
            }
        }
    }
}

/// A hash, so that the stored value is as short as the API's for a file of any length.
fn hash_of(file: &serde_json::Value) -> String {
    kat_types::encoding::digest::sha256_hex(file.to_string().as_bytes())
}

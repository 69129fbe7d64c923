//! Reads the CDI specs of the machine, `*.json` and `*.yaml` in `/etc/cdi` and `/run/cdi`.
//!
//! A spec that cannot be read stops nothing but its own devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use kat_bundle::yaml::foreign_document;
use kat_host::files;
use kat_types::{
    machine::gpu::{CdiName, GPU_CLASS, MOST_GPUS},
    resource::GpuDriver,
};

/// The folders of specs below the root; a device of a later one replaces one of the same name.
const FOLDERS: [&str; 2] = ["etc/cdi", "run/cdi"];
/// Maximum number of specs in one folder.
const MOST_SPECS: usize = 64;
/// Largest spec, in bytes.
const LARGEST_SPEC: u64 = 1 << 20;
/// Maximum devices of one spec, and device nodes of one device.
const MOST_DEVICES: usize = 512;
/// Maximum number of reasons why specs cannot be used.
const MOST_TROUBLES: usize = 32;
/// The device that stands for all others of its kind.
const ALL: &str = "all";

/// A CDI spec, as far as it is needed here.
#[derive(Deserialize)]
struct CdiSpec {
    kind: String,
    #[serde(default)]
    devices: Option<Vec<CdiDevice>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiDevice {
    name: String,
    #[serde(default)]
    container_edits: Option<ContainerEdits>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerEdits {
    #[serde(default)]
    device_nodes: Option<Vec<CdiNode>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CdiNode {
    path: String,
    #[serde(default)]
    host_path: Option<String>,
}

/// A GPU in a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundGpu {
    /// Its CDI name.
    pub(crate) name: String,
    /// Its device nodes on the machine.
    pub(crate) nodes: BTreeSet<PathBuf>,
}

/// What the machine's specs say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MachineGpus {
    /// Each GPU once, by name.
    pub(crate) gpus: Vec<FoundGpu>,
    /// The GPUs by all their names, without that for all of them.
    named: Vec<FoundGpu>,
    /// Why specs, or devices of them, cannot be used; each begins with the path or the name.
    pub(crate) troubles: Vec<String>,
}

/// Device nodes by CDI name.
type NodesByName = BTreeMap<String, BTreeSet<PathBuf>>;

impl MachineGpus {
    /// Reads the specs of a machine whose files lie below `root`.
    pub(crate) fn read(root: &Path) -> Self {
        let mut found = NodesByName::new();
        let mut troubles = Vec::new();
        for folder in FOLDERS {
            read_folder(root, folder, &mut found, &mut troubles);
        }
        let named = found
            .into_iter()
            .map(|(name, nodes)| FoundGpu { name, nodes });
        let named: Vec<FoundGpu> = named.filter(|gpu| device_of(&gpu.name) != ALL).collect();
        let mut gpus = single_devices(&named, &mut troubles);
        if gpus.len() > MOST_GPUS {
            troubles.push(format!(
                "CDI specs of this machine: {} GPUs, of which {MOST_GPUS} are used",
                gpus.len()
            ));
            gpus.truncate(MOST_GPUS);
        }
        troubles.truncate(MOST_TROUBLES);
        Self {
            gpus,
            named,
            troubles,
        }
    }

    /// The GPU of this name. An instance may have a GPU by a name that is not the reported one any more.
    pub(crate) fn find(&self, name: &str) -> Option<&FoundGpu> {
        self.named.iter().find(|gpu| gpu.name == name)
    }
}

/// Adds the devices of a folder's specs.
fn read_folder(root: &Path, folder: &str, found: &mut NodesByName, troubles: &mut Vec<String>) {
    let entries = match std::fs::read_dir(root.join(folder)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => {
            troubles.push(format!("/{folder}: {error}"));
            return;
        }
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".json") || name.ends_with(".yaml"))
        .collect();
    names.sort();
    if names.len() > MOST_SPECS {
        let count = names.len();
        troubles.push(format!(
            "/{folder}: {count} CDI specs, of which the first {MOST_SPECS} are read"
        ));
        names.truncate(MOST_SPECS);
    }
    let mut own = NodesByName::new();
    let mut twice = BTreeSet::new();
    for name in names {
        let shown = format!("/{folder}/{name}");
        match read_spec(&root.join(folder).join(&name)) {
            Ok(devices) => {
                for (device, nodes) in devices {
                    if own.insert(device.clone(), nodes).is_some() {
                        twice.insert(device);
                    }
                }
            }
            Err(why) => troubles.push(format!("{shown}: {why}")),
        }
    }
    // Podman takes such a device from neither.
    for device in twice {
        own.remove(&device);
        found.remove(&device);
        troubles.push(format!("{device}: two CDI specs of /{folder} have it"));
    }
    found.extend(own);
}

/// The GPUs of a spec; none if it is one of other devices.
fn read_spec(path: &Path) -> Result<Vec<(String, BTreeSet<PathBuf>)>, String> {
    let metadata = path.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is no file".to_owned());
    }
    if metadata.len() > LARGEST_SPEC {
        let bytes = metadata.len();
        return Err(format!(
            "it has {bytes} bytes, at most {LARGEST_SPEC} are read"
        ));
    }
    let text = files::read_text(path, LARGEST_SPEC).map_err(|error| error.to_string())?;
    let is_json = path.extension().is_some_and(|end| end == "json");
    let spec: CdiSpec = if is_json {
        serde_json::from_str(&text).map_err(|error| error.to_string())?
    } else {
        let value = foreign_document(&text)?;
        serde_json::from_value(value).map_err(|error| error.to_string())?
    };
    let Some((vendor, class)) = spec.kind.split_once('/') else {
        return Err("its kind is not of the form VENDOR/CLASS".to_owned());
    };
    if class != GPU_CLASS {
        return Ok(Vec::new());
    }
    let devices = spec.devices.unwrap_or_default();
    if devices.len() > MOST_DEVICES {
        return Err(format!(
            "it has {} devices, at most {MOST_DEVICES} are read",
            devices.len()
        ));
    }
    let devices = devices.into_iter().map(|device| {
        let name = format!("{vendor}/{class}={}", device.name);
        if CdiName::of_gpu(&name).is_none() {
            return Err("a device or the vendor has a name that CDI does not allow".to_owned());
        }
        let edits = device.container_edits;
        let nodes = edits.and_then(|edits| edits.device_nodes);
        let nodes = nodes.unwrap_or_default();
        if nodes.len() > MOST_DEVICES {
            return Err(format!(
                "device {} has {} device nodes, at most {MOST_DEVICES} are read",
                device.name,
                nodes.len()
            ));
        }
        let nodes: BTreeSet<PathBuf> = nodes
            .into_iter()
            .map(|node| PathBuf::from(node.host_path.unwrap_or(node.path)))
            .collect();
        Ok((name, nodes))
    });
    devices.collect()
}

/// Vendor and class of a CDI name.
fn kind_of(name: &str) -> &str {
    name.split_once('=').map_or(name, |(kind, _)| kind)
}

/// The device of a CDI name.
fn device_of(name: &str) -> &str {
    name.split_once('=').map_or("", |(_, device)| device)
}

/// Whether the name is of a vendor that a workload can request.
fn is_of_known_vendor(name: &str) -> bool {
    CdiName::of_gpu(name)
        .is_some_and(|name| name.is_by(GpuDriver::Nvidia) || name.is_by(GpuDriver::Amd))
}

/// Each GPU once: without the name for all of them, without devices that contain another one of
/// their kind, and without further names of the same device nodes. Devices of different kinds that
/// share a node are the same GPU; those of one kind that share some nodes are parts of one.
fn single_devices(found: &[FoundGpu], troubles: &mut Vec<String>) -> Vec<FoundGpu> {
    let is_composite = |gpu: &FoundGpu| {
        found.iter().any(|other| {
            let is_inner = !other.nodes.is_empty() && other.nodes.len() < gpu.nodes.len();
            is_inner
                && kind_of(&other.name) == kind_of(&gpu.name)
                && other.nodes.is_subset(&gpu.nodes)
        })
    };
    let (with_nodes, without): (Vec<&FoundGpu>, Vec<&FoundGpu>) =
        found.iter().partition(|gpu| !gpu.nodes.is_empty());
    let mut ordered = with_nodes.clone();
    ordered.sort_by_key(|gpu| !is_of_known_vendor(&gpu.name));
    let mut single: Vec<FoundGpu> = Vec::new();
    for gpu in ordered {
        let is_same = |taken: &FoundGpu| match kind_of(&taken.name) == kind_of(&gpu.name) {
            true => taken.nodes == gpu.nodes,
            false => !taken.nodes.is_disjoint(&gpu.nodes),
        };
        if !is_composite(gpu) && !single.iter().any(is_same) {
            single.push(gpu.clone());
        }
    }
    let mut kinds: BTreeMap<&str, Vec<&FoundGpu>> = BTreeMap::new();
    for gpu in without {
        kinds.entry(kind_of(&gpu.name)).or_default().push(gpu);
    }
    for (kind, gpus) in kinds {
        let is_index = |gpu: &&&FoundGpu| {
            let mut letters = device_of(&gpu.name).chars();
            letters.all(|letter| letter.is_ascii_digit())
        };
        let others_have = with_nodes.iter().any(|gpu| kind_of(&gpu.name) == kind);
        let used = gpus.iter().find(is_index).or(gpus.first());
        let used = used.filter(|_| !others_have);
        if gpus.len() > usize::from(used.is_some()) {
            troubles.push(format!(
                "{kind}: {} devices without device nodes, of which {} is used, since several may be one GPU",
                gpus.len(),
                used.map_or("none", |gpu| device_of(&gpu.name))
            ));
        }
        single.extend(used.map(|gpu| FoundGpu::clone(gpu)));
    }
    single.sort_by(|one, other| one.name.cmp(&other.name));
    single
}

#[cfg(test)]
mod tests {
    use super::*;

    const NVIDIA: &str = "\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
devices:
- name: \"0\"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: \"1\"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
- name: GPU-5b1f7a2e
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
- name: all
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
    - path: /dev/nvidia1
";

    fn machine(specs: &[(&str, &str)]) -> MachineGpus {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in specs {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        MachineGpus::read(root.path())
    }

    fn names(machine: &MachineGpus) -> Vec<&str> {
        machine.gpus.iter().map(|gpu| &*gpu.name).collect()
    }

    /// A spec in JSON whose devices have these nodes.
    fn json(kind: &str, devices: &[(&str, &[&str])]) -> String {
        let devices = devices.iter().map(|(name, nodes)| {
            let nodes = nodes.iter().map(|path| serde_json::json!({"path": path}));
            let nodes: Vec<_> = nodes.collect();
            serde_json::json!({"name": name, "containerEdits": {"deviceNodes": nodes}})
        });
        let devices: Vec<_> = devices.collect();
        serde_json::json!({"cdiVersion": "0.6.0", "kind": kind, "devices": devices}).to_string()
    }

    #[test]
    fn each_gpu_counts_once_and_the_name_for_all_is_none() {
        let found = machine(&[("etc/cdi/nvidia.yaml", NVIDIA)]);
        assert_eq!(names(&found), ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]);
        assert_eq!(found.troubles, Vec::<String>::new());
        let nodes = &found.find("nvidia.com/gpu=1").unwrap().nodes;
        assert!(nodes.contains(Path::new("/dev/nvidia1")) && nodes.len() == 1);
        assert_eq!(found.find("nvidia.com/gpu=all"), None);
    }

    #[test]
    fn a_device_that_contains_others_is_left_out_whatever_its_name() {
        let devices: [(&str, &[&str]); 3] = [
            ("a", &["/dev/dri/card0"]),
            ("b", &["/dev/dri/card1"]),
            ("both", &["/dev/dri/card0", "/dev/dri/card1"]),
        ];
        let found = machine(&[("run/cdi/amd.json", &json("amd.com/gpu", &devices))]);
        assert_eq!(names(&found), ["amd.com/gpu=a", "amd.com/gpu=b"]);
        // Parts of one card share a node, and none of them contains another.
        let parts: [(&str, &[&str]); 2] = [
            ("0:0", &["/dev/nvidia0", "/dev/nvidia-caps/1"]),
            ("0:1", &["/dev/nvidia0", "/dev/nvidia-caps/2"]),
        ];
        let found = machine(&[("etc/cdi/mig.json", &json("nvidia.com/gpu", &parts))]);
        assert_eq!(names(&found), ["nvidia.com/gpu=0:0", "nvidia.com/gpu=0:1"]);
    }

    #[test]
    fn a_gpu_of_two_kinds_counts_once_by_the_kind_that_workloads_request() {
        let plugin: [(&str, &[&str]); 2] = [
            ("0", &["/dev/nvidia0", "/dev/nvidiactl"]),
            ("other", &["/dev/dri/card7"]),
        ];
        let found = machine(&[
            ("etc/cdi/a.json", &json("k8s.nvidia.com/gpu", &plugin)),
            ("etc/cdi/nvidia.yaml", NVIDIA),
        ]);
        assert_eq!(
            names(&found),
            [
                "k8s.nvidia.com/gpu=other",
                "nvidia.com/gpu=0",
                "nvidia.com/gpu=1"
            ]
        );
    }

    #[test]
    fn a_gpu_is_found_by_each_of_its_names() {
        let found = machine(&[("etc/cdi/nvidia.yaml", NVIDIA)]);
        let nodes = &found.find("nvidia.com/gpu=GPU-5b1f7a2e").unwrap().nodes;
        assert!(nodes.contains(Path::new("/dev/nvidia0")) && nodes.len() == 1);
        assert_eq!(found.find("nvidia.com/gpu=2"), None);
    }

    #[test]
    fn of_devices_without_nodes_one_of_a_kind_is_used() {
        let bare: [(&str, &[&str]); 3] = [("GPU-1", &[]), ("0", &[]), ("1", &[])];
        let found = machine(&[("etc/cdi/a.json", &json("a.com/gpu", &bare))]);
        assert_eq!(names(&found), ["a.com/gpu=0"]);
        assert_eq!(
            found.troubles,
            [
                "a.com/gpu: 3 devices without device nodes, of which 0 is used, since several may be one GPU"
            ]
        );
        let one: [(&str, &[&str]); 1] = [("GPU-1", &[])];
        let found = machine(&[("etc/cdi/a.json", &json("a.com/gpu", &one))]);
        assert_eq!(names(&found), ["a.com/gpu=GPU-1"]);
        assert_eq!(found.troubles, Vec::<String>::new());
        let mixed: [(&str, &[&str]); 2] = [("GPU-1", &[]), ("0", &["/dev/dri/card0"])];
        let found = machine(&[("etc/cdi/a.json", &json("a.com/gpu", &mixed))]);
        assert_eq!(names(&found), ["a.com/gpu=0"]);
        assert_eq!(found.troubles.len(), 1);
    }

    #[test]
    fn a_broken_spec_stops_only_itself_and_says_why() {
        let good = json("amd.com/gpu", &[("0", &["/dev/dri/card0"])]);
        let large = " ".repeat(2 << 20);
        let found = machine(&[
            ("etc/cdi/amd.json", &good),
            ("etc/cdi/brackets.json", "{"),
            ("etc/cdi/double.yaml", "kind: a.com/gpu\nkind: b.com/gpu\n"),
            ("etc/cdi/kind.json", "{\"kind\": \"gpu\"}"),
            ("etc/cdi/large.json", &large),
            ("etc/cdi/name.json", &json("a.com/gpu", &[("0 1", &[])])),
            ("etc/cdi/other.json", &json("a.com/nic", &[("0 1", &[])])),
            ("etc/cdi/notes.txt", "no spec"),
        ]);
        assert_eq!(names(&found), ["amd.com/gpu=0"]);
        let broken: Vec<&str> = found
            .troubles
            .iter()
            .map(|trouble| trouble.split(": ").next().unwrap())
            .collect();
        let expected = [
            "brackets.json",
            "double.yaml",
            "kind.json",
            "large.json",
            "name.json",
        ];
        assert_eq!(broken, expected.map(|name| format!("/etc/cdi/{name}")));
        assert!(found.troubles[1].contains("line 2"), "{:?}", found.troubles);
    }

    #[test]
    fn a_later_folder_replaces_a_device_and_two_specs_of_one_folder_have_none() {
        let early = json("amd.com/gpu", &[("0", &["/dev/dri/card0"])]);
        let late = json("amd.com/gpu", &[("0", &["/dev/dri/card7"])]);
        let found = machine(&[("etc/cdi/a.json", &early), ("run/cdi/a.json", &late)]);
        let nodes = &found.find("amd.com/gpu=0").unwrap().nodes;
        assert!(nodes.contains(Path::new("/dev/dri/card7")));
        let found = machine(&[("etc/cdi/a.json", &early), ("etc/cdi/b.json", &late)]);
        assert_eq!(names(&found), Vec::<&str>::new());
        assert_eq!(
            found.troubles,
            ["amd.com/gpu=0: two CDI specs of /etc/cdi have it"]
        );
    }

    #[test]
    fn the_number_of_specs_and_gpus_is_bounded() {
        let texts: Vec<(String, String)> = (0..100)
            .map(|number| {
                let nodes = format!("/dev/dri/card{number}");
                let devices: [(&str, &[&str]); 1] = [("0", &[nodes.as_str()])];
                let kind = format!("vendor{number}.com/gpu");
                (format!("etc/cdi/{number:03}.json"), json(&kind, &devices))
            })
            .collect();
        let specs: Vec<(&str, &str)> = texts
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        let found = machine(&specs);
        assert_eq!(found.gpus.len(), MOST_SPECS);
        assert!(found.troubles[0].contains("100 CDI specs"));
    }
}

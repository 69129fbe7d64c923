//! The containers of an instance: the main container, init containers and sidecars; one by one, and
//! combined into one.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, Container, GpuRequest, ImagePullPolicy, MilliCpu, ResourceList, WorkloadSpec};

/// Maximum number of init containers, and of sidecars, of a workload.
pub const MOST_OTHERS: usize = 8;

/// Kind of a container other than the main one.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ContainerKind")]
pub enum OtherKind {
    /// Runs to completion before the main container starts.
    Init,
    /// Runs beside the main container.
    #[default]
    Sidecar,
}

impl OtherKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Init, Self::Sidecar];

    /// The field of `spec` that lists them.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Init => "initContainers",
            Self::Sidecar => "sidecars",
        }
    }

    /// The word in the names of units.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Sidecar => "side",
        }
    }
}

impl fmt::Display for OtherKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Init => "init container",
            Self::Sidecar => "sidecar",
        })
    }
}

impl Container {
    /// The containers of an instance combined into one: the main container with the mounts,
    /// devices, groups, variables and passed-through keys of all. Its requests are the sum of those
    /// of the main container and the sidecars, or the largest of an init container if that is more.
    /// Its GPU is the one that suffices for all that request one: they share it.
    pub fn together<'c>(main: &'c Self, inits: &[Self], sidecars: &[Self]) -> Cow<'c, Self> {
        if inits.is_empty() && sidecars.is_empty() {
            return Cow::Borrowed(main);
        }
        let mut whole = main.clone();
        for other in inits.iter().chain(sidecars) {
            whole.volume_mounts.extend_from_slice(&other.volume_mounts);
            whole.env.extend_from_slice(&other.env);
            whole.devices.extend_from_slice(&other.devices);
            whole.groups.extend_from_slice(&other.groups);
            for (key, value) in &other.quadlet {
                whole
                    .quadlet
                    .entry(key.clone())
                    .or_insert_with(|| value.clone());
            }
        }
        whole.resources.requests = requests(main, inits, sidecars);
        whole.resources.gpu = gpu(main, inits, sidecars);
        Cow::Owned(whole)
    }
}

/// Requests of an instance. At any time either one init container runs, or the main container and
/// the sidecars.
fn requests(main: &Container, inits: &[Container], sidecars: &[Container]) -> ResourceList {
    let of = |container: &Container| container.resources.effective_requests();
    let amounts = |read: fn(&ResourceList) -> Option<u64>| {
        let beside = std::iter::once(main).chain(sidecars);
        let beside = beside.filter_map(|one| read(&of(one)));
        let beside = beside.reduce(u64::saturating_add);
        let before = inits.iter().filter_map(|one| read(&of(one))).max();
        beside.max(before)
    };
    ResourceList {
        cpu: amounts(|list| list.cpu.map(|cpu| cpu.0)).map(MilliCpu),
        memory: amounts(|list| list.memory.map(|memory| memory.0)).map(Bytes),
        storage: amounts(|list| list.storage.map(|storage| storage.0)).map(Bytes),
    }
}

/// The GPU that suffices for all containers which request one.
fn gpu(main: &Container, inits: &[Container], sidecars: &[Container]) -> Option<GpuRequest> {
    let all = std::iter::once(main).chain(inits).chain(sidecars);
    let requests = all.filter_map(|one| one.resources.gpu.clone());
    requests.reduce(|whole, one| whole.with(&one))
}

/// Maximum seconds from an instance's stop signal to its end: the main container is stopped first,
/// then all sidecars at once.
pub fn stop_seconds(main: &Container, inits: &[Container], sidecars: &[Container]) -> u32 {
    let longest = |some: &[Container]| {
        let graces = some.iter().map(|one| one.termination_grace_seconds);
        graces.max().unwrap_or(0)
    };
    main.termination_grace_seconds
        .saturating_add(longest(sidecars))
        .max(longest(inits))
}

impl WorkloadSpec {
    /// The containers of one kind.
    pub fn of_kind(&self, kind: OtherKind) -> &[Container] {
        match kind {
            OtherKind::Init => &self.init_containers,
            OtherKind::Sidecar => &self.sidecars,
        }
    }

    /// The containers of the workload combined into one: see [`Container::together`].
    pub fn together(&self) -> Cow<'_, Container> {
        Container::together(&self.container, &self.init_containers, &self.sidecars)
    }

    /// Whether an instance may change data that outlives it.
    pub fn writes_data(&self) -> bool {
        let together = self.together();
        let mut volumes = self.volumes.iter();
        volumes.any(|volume| volume.keeps_data() && together.writes_to(&volume.name))
    }

    /// Whether a container has neither a request nor a limit for CPU or for memory.
    pub fn lacks_requests(&self) -> bool {
        let mut all = self.containers();
        all.any(|(_, container)| {
            let requests = container.resources.effective_requests();
            requests.cpu.is_none() || requests.memory.is_none()
        })
    }

    /// The workload as it is in a namespace with these default requests: each container without a
    /// request and a limit of its own has them.
    pub fn with_default_requests(&self, defaults: ResourceList) -> Cow<'_, Self> {
        if defaults.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut filled = self.clone();
        let others = filled.init_containers.iter_mut();
        let others = others.chain(&mut filled.sidecars);
        for container in std::iter::once(&mut filled.container).chain(others) {
            container.resources.set_default_requests(defaults);
        }
        Cow::Owned(filled)
    }

    /// The GPU that an instance requests: see [`Container::together`].
    pub fn gpu(&self) -> Option<GpuRequest> {
        gpu(&self.container, &self.init_containers, &self.sidecars)
    }

    /// Every container with the path of its field, the main container first.
    pub fn containers(&self) -> impl Iterator<Item = (String, &Container)> {
        let main = std::iter::once(("spec.container".to_owned(), &self.container));
        let others = OtherKind::ALL.into_iter().flat_map(|kind| {
            let numbered = self.of_kind(kind).iter().enumerate();
            numbered.map(move |(place, one)| (format!("spec.{}[{place}]", kind.field()), one))
        });
        main.chain(others)
    }

    /// The image of each container as written in the files, the main container's first, with its
    /// pull policy if there is one. Images that are built from git are left out.
    pub fn images(&self) -> impl Iterator<Item = (&str, Option<ImagePullPolicy>)> {
        let own = self.source.image.as_deref();
        let others = self.init_containers.iter().chain(&self.sidecars);
        std::iter::once(&self.container)
            .chain(others)
            .filter_map(move |one| Some((one.image.as_deref().or(own)?, one.image_pull_policy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{GpuDriver, Resources, VolumeMount};

    fn container(cpu: Option<u64>, memory: Option<u64>) -> Container {
        Container {
            resources: Resources {
                requests: ResourceList {
                    cpu: cpu.map(MilliCpu),
                    memory: memory.map(Bytes),
                    storage: None,
                },
                ..Resources::default()
            },
            ..Container::default()
        }
    }

    #[test]
    fn sidecars_add_to_the_requests_and_init_containers_only_raise_them() {
        let (main, side) = (container(Some(100), Some(10)), container(Some(50), None));
        let init = container(Some(120), Some(64));
        let asked = |inits: &[Container], sides: &[Container]| {
            let whole = Container::together(&main, inits, sides);
            let ResourceList { cpu, memory, .. } = whole.resources.effective_requests();
            (cpu.map(|one| one.0), memory.map(|one| one.0))
        };
        assert_eq!(asked(&[], &[]), (Some(100), Some(10)));
        assert_eq!(
            asked(&[], &[side.clone(), side.clone()]),
            (Some(200), Some(10))
        );
        assert_eq!(
            asked(std::slice::from_ref(&init), &[]),
            (Some(120), Some(64))
        );
        assert_eq!(asked(&[init], &[side]), (Some(150), Some(64)));
        let none = container(None, None);
        let whole = Container::together(&none, &[], std::slice::from_ref(&none));
        assert!(whole.resources.requests.is_empty());
    }

    #[test]
    fn default_requests_are_those_of_each_container_without_a_request_and_a_limit() {
        let mut limited = container(None, None);
        limited.resources.limits.memory = Some(Bytes(5));
        let mut spec: WorkloadSpec = serde_json::from_value(serde_json::json!({
            "type": "Service", "source": {"image": "web"}, "container": {},
            "restartPolicy": {"condition": "Always"},
        }))
        .unwrap();
        spec.container = container(Some(10), None);
        spec.init_containers = vec![container(None, None)];
        spec.sidecars = vec![limited];
        let defaults = ResourceList {
            cpu: Some(MilliCpu(100)),
            memory: Some(Bytes(64)),
            storage: None,
        };
        assert!(spec.lacks_requests());
        let filled = spec.with_default_requests(defaults);
        assert!(!filled.lacks_requests());
        let requests = |container: &Container| {
            let ResourceList { cpu, memory, .. } = container.resources.effective_requests();
            (cpu.map(|one| one.0), memory.map(|one| one.0))
        };
        assert_eq!(requests(&filled.container), (Some(10), Some(64)));
        assert_eq!(requests(&filled.init_containers[0]), (Some(100), Some(64)));
        assert_eq!(requests(&filled.sidecars[0]), (Some(100), Some(5)));
        let none = spec.with_default_requests(ResourceList::default());
        assert_eq!(*none, spec);
    }

    #[test]
    fn what_any_of_them_mounts_is_mounted() {
        let mount = |name: &str, read_only| VolumeMount {
            name: name.to_owned(),
            mount_path: "/data".to_owned(),
            sub_path: None,
            read_only,
        };
        let main = Container {
            volume_mounts: vec![mount("data", true)],
            ..Container::default()
        };
        let init = Container {
            volume_mounts: vec![mount("data", false)],
            groups: vec!["audio".to_owned()],
            ..Container::default()
        };
        assert!(!main.writes_to("data"));
        let whole = Container::together(&main, &[init], &[]);
        assert!(whole.writes_to("data") && whole.has_machine_things());
    }

    #[test]
    fn the_containers_of_an_instance_share_one_gpu() {
        let asks = |driver, min_vram_mb| Container {
            resources: Resources {
                gpu: Some(GpuRequest {
                    driver,
                    min_vram_mb,
                }),
                ..Resources::default()
            },
            ..Container::default()
        };
        let main = asks(GpuDriver::Any, Some(4096));
        let side = asks(GpuDriver::Amd, Some(1024));
        let whole = Container::together(&main, &[], std::slice::from_ref(&side));
        assert_eq!(
            whole.resources.gpu,
            asks(GpuDriver::Amd, Some(4096)).resources.gpu
        );
        let none = Container::default();
        let whole = Container::together(&none, &[side], &[]);
        assert!(whole.resources.gpu.is_some() && whole.has_machine_things());
        assert!(!whole.has_common_things(), "each instance has its own");
        let request = |driver| GpuRequest {
            driver,
            min_vram_mb: None,
        };
        let (amd, nvidia) = (request(GpuDriver::Amd), request(GpuDriver::Nvidia));
        assert!(amd.conflicts_with(&nvidia) && !amd.conflicts_with(&amd));
        assert!(!amd.conflicts_with(&request(GpuDriver::Any)));
    }

    #[test]
    fn the_time_of_a_stop_is_that_of_both_steps() {
        let grace = |seconds| Container {
            termination_grace_seconds: seconds,
            ..Container::default()
        };
        assert_eq!(stop_seconds(&grace(10), &[], &[]), 10);
        let sides = [grace(5), grace(7)];
        assert_eq!(stop_seconds(&grace(10), &[grace(3)], &sides), 17);
        assert_eq!(stop_seconds(&grace(10), &[grace(30)], &sides), 30);
    }
}

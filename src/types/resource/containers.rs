//! The containers of an instance: the main container, init containers and sidecars; one by one, and
//! combined into one.

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Bytes, Container, ImagePullPolicy, MilliCpu, ResourceList, WorkloadSpec};

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
    use crate::resource::{Resources, VolumeMount};

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

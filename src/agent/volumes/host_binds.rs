//! Binds host paths for containers: the agent checks the paths and writes a plan, and a unit of the
//! system manager binds them.
//!
//! The plans lie below `/run`, since they identify files by device and inode numbers, which a boot
//! may change: after a boot no instance with a host path starts before the agent has checked it
//! ([`Assignment::asks_first`]).

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use kat_host::{
    bound_paths::{BindPlan, PLANS, PathBind, plan_of},
    files::{self, FileAccess, FileError},
};
use kat_systemd::{JobResult, SystemdError, UnitManager};
use kat_types::{
    assignment::{Assignment, BOUND_FOLDER},
    machine::root::Root,
};

/// Longest bind, including the removal of the previous one.
const LIMIT: Duration = Duration::from_secs(40);
/// Largest plan that is compared, in bytes.
const LARGEST: u64 = 1 << 20;

fn unit_of(id: &str) -> String {
    format!("kat-hostpath@{id}.service")
}

/// Writes the plan of an instance. Returns the unit to start; `None` where nothing is to be bound.
pub(crate) fn write(
    root: &Root,
    assignment: &Assignment,
    binds: Vec<PathBind>,
) -> Result<Option<String>, FileError> {
    if binds.is_empty() {
        return Ok(None);
    }
    let plan = planned(assignment, binds);
    let id = assignment.bound_id();
    let path = path_of(root, &id)?;
    // Other users can list neither the folders in it nor their content.
    let bound = root.below(BOUND_FOLDER);
    make_above(&bound)?;
    files::ensure_folder(&bound, FileAccess::owned(0o711, 0, 0))?;
    let uid = assignment.user.uid;
    let of_user = bound.join(uid.to_string());
    files::ensure_folder(&of_user, FileAccess::owned(0o710, 0, uid))?;
    let plans = root.below(PLANS);
    make_above(&plans)?;
    files::ensure_folder(&plans, FileAccess::owned(0o700, 0, 0))?;
    files::write_json(&path, &plan)?;
    Ok(Some(unit_of(&id)))
}

/// Whether the present binds of an instance differ from these.
pub(crate) fn differs(root: &Root, assignment: &Assignment, binds: &[PathBind]) -> bool {
    let Ok(path) = path_of(root, &assignment.bound_id()) else {
        return false;
    };
    let plan = files::read_bounded(&path, LARGEST);
    let plan = plan
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    plan != Some(planned(assignment, binds.to_vec()))
}

/// Whether anything is bound for an instance.
pub(crate) fn is_bound(root: &Root, assignment: &Assignment) -> bool {
    let of_user = root
        .below(BOUND_FOLDER)
        .join(assignment.user.uid.to_string());
    of_user.join(&assignment.instance).exists()
}

fn planned(assignment: &Assignment, binds: Vec<PathBind>) -> BindPlan {
    BindPlan {
        schema: 1,
        uid: assignment.user.uid,
        instance: assignment.instance.clone(),
        binds,
    }
}

/// Binds the paths of a unit's plan in place of its previous binds.
///
/// # Errors
/// A sentence for users.
pub(crate) async fn bind(system: &dyn UnitManager, unit: &str) -> Result<(), String> {
    match system.restart(unit, LIMIT).await {
        Ok(JobResult::Done) => Ok(()),
        Ok(_) => Err(format!(
            "paths of the machine that it mounts can't be bound; `journalctl -u {unit}` says why"
        )),
        Err(error) => Err(format!(
            "paths of the machine that it mounts can't be bound: {error}"
        )),
    }
}

/// Whether binds of instances of a user are planned that are not in `kept`.
pub(crate) fn has_other(root: &Root, uid: u32, kept: &BTreeSet<String>) -> bool {
    let planned = planned_of(root, uid);
    planned.iter().any(|instance| !kept.contains(instance))
}

/// Removes the binds of a user's instances that are not in `kept`.
///
/// # Errors
/// [`SystemdError`] where a unit can't be stopped.
pub(crate) async fn keep_only(
    system: &dyn UnitManager,
    root: &Root,
    uid: u32,
    kept: &BTreeSet<&str>,
) -> Result<(), SystemdError> {
    for instance in planned_of(root, uid) {
        if kept.contains(instance.as_str()) {
            continue;
        }
        let id = format!("{uid}-{instance}");
        let unit = unit_of(&id);
        match system.stop(&unit, LIMIT).await {
            Ok(_) | Err(SystemdError::NoSuchUnit(_)) => {}
            Err(error) => return Err(error),
        }
        if let Ok(path) = path_of(root, &id)
            && let Err(error) = files::remove(&path)
        {
            tracing::warn!(
                instance,
                "the plan of its host paths can't be removed: {error:#}"
            );
        }
    }
    if kept.is_empty() {
        // The folders stay if they have other content.
        let bound = root.below(BOUND_FOLDER);
        let _ = std::fs::remove_dir(bound.join(uid.to_string()));
        let _ = std::fs::remove_dir(bound);
    }
    Ok(())
}

/// The user's instances with a plan.
fn planned_of(root: &Root, uid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(root.below(PLANS));
    let names = entries.into_iter().flatten().flatten();
    let prefix = format!("{uid}-");
    names
        .filter_map(|entry| {
            let name = entry.file_name();
            let id = name.to_str()?.strip_suffix(".json")?;
            Some(id.strip_prefix(&prefix)?.to_owned())
        })
        .collect()
}

fn path_of(root: &Root, id: &str) -> Result<PathBuf, FileError> {
    plan_of(root, id).map_err(|error| FileError::System {
        verb: "name the plan",
        path: PLANS.into(),
        error: std::io::Error::other(error),
    })
}

/// Makes the parent folders of a folder.
fn make_above(folder: &Path) -> Result<(), FileError> {
    let above = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(above).map_err(|error| FileError::System {
        verb: "make the folder",
        path: above.to_owned(),
        error,
    })
}

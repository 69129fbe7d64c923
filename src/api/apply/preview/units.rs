//! Changes of units' texts, rendered as the machines do it.
//!
//! The new unit is rendered with the name, address and slot of the present one, so that only the
//! effect of the change differs; values of variables are removed before.

use std::collections::{BTreeMap, BTreeSet};

use similar::TextDiff;

use super::instances::{InstanceFates, PreviewedInstance};
use crate::view::{MASK, mask};
use kat_render::{RenderError, RenderSettings, Renderer};
use kat_types::{
    api::UnitChange,
    assignment::Assignment,
    resource::{ClusterConfiguration, Container, EnvVar},
};

/// Lines of context around a change.
const CONTEXT: usize = 3;
/// Replaces a value that differs from the present one.
const CHANGED: &str = "*** (changed)";

type UnitTexts = BTreeMap<String, String>;

/// One change for each unit of each replaced version; for a workload without an instance, the
/// complete units of one instance.
pub(crate) fn changes(
    fates: &InstanceFates<'_>,
    cluster: &ClusterConfiguration,
) -> Vec<UnitChange> {
    let settings = RenderSettings {
        hold_seconds: cluster.spec.node_loss_timeout_seconds,
        ..RenderSettings::default()
    };
    let renderer = match Renderer::installed() {
        Ok(renderer) => renderer,
        Err(error) => return vec![failed("unit-templates", &error)],
    };
    let mut seen: BTreeMap<(&str, &str), (PreviewedInstance<'_>, PreviewedInstance<'_>, u32)> =
        BTreeMap::new();
    for (old, new) in &fates.pairs {
        let (Some(old), Some(new)) = (old, new) else {
            continue;
        };
        let versions = (
            old.assignment.template_hash.as_str(),
            new.assignment.template_hash.as_str(),
        );
        if versions.0 != versions.1 {
            seen.entry(versions).or_insert((*old, *new, 0)).2 += 1;
        }
    }
    let mut changes = Vec::new();
    for (old, new, count) in seen.into_values() {
        let (before, after) = disguised(old.assignment, new.assignment);
        changes.extend(difference(
            texts(&renderer, &settings, &before),
            texts(&renderer, &settings, &after),
            count,
        ));
    }
    if fates.pairs.iter().all(|(old, _)| old.is_none())
        && let Some((_, Some(first))) = fates.pairs.first()
    {
        let mut after = first.assignment.clone();
        hide_all(&mut after);
        let count = u32::try_from(fates.pairs.len()).unwrap_or(u32::MAX);
        let text = texts(&renderer, &settings, &after);
        changes.extend(difference(Ok(UnitTexts::new()), text, count));
    }
    changes
}

/// Both assignments without values, and the new one with the identity and the GPU of the old.
fn disguised(old: &Assignment, new: &Assignment) -> (Assignment, Assignment) {
    let mut before = old.clone();
    let mut after = Assignment {
        instance: old.instance.clone(),
        slot: old.slot,
        address: old.address,
        user: old.user.clone(),
        gpu: old.gpu.clone().or_else(|| new.gpu.clone()),
        ..new.clone()
    };
    hide_all(&mut before);
    hide_all(&mut after);
    mark_all(&mut after.container, &new.container, Some(&old.container));
    for (shown, real, known) in [
        (
            &mut after.init_containers,
            &new.init_containers,
            &old.init_containers,
        ),
        (&mut after.sidecars, &new.sidecars, &old.sidecars),
    ] {
        for (shown, real) in shown.iter_mut().zip(real) {
            let before = known.iter().find(|one| one.name == real.name);
            mark_all(shown, real, before);
        }
    }
    (before, after)
}

/// Removes values from all containers.
fn hide_all(assignment: &mut Assignment) {
    let others = assignment.init_containers.iter_mut();
    std::iter::once(&mut assignment.container)
        .chain(others)
        .chain(&mut assignment.sidecars)
        .for_each(hide);
}

/// Marks the variables of a container that have another value than before.
fn mark_all(shown: &mut Container, real: &Container, before: Option<&Container>) {
    let known = |name: &str| before?.env.iter().rfind(|one| one.name == name);
    for (variable, real) in shown.env.iter_mut().zip(&real.env) {
        mark(variable, real, known(&real.name));
    }
}

/// Removes values, also of variables with a secret's value.
fn hide(container: &mut Container) {
    mask(container);
    for variable in &mut container.env {
        if variable.value_from.take().is_some() {
            variable.value = Some(MASK.to_owned());
        }
    }
}

fn mark(variable: &mut EnvVar, real: &EnvVar, before: Option<&EnvVar>) {
    let changed = before.is_some_and(|before| before.value != real.value);
    if changed && variable.value.as_deref() == Some(MASK) {
        variable.value = Some(CHANGED.to_owned());
    }
}

fn texts(
    renderer: &Renderer,
    settings: &RenderSettings,
    assignment: &Assignment,
) -> Result<UnitTexts, RenderError> {
    let mut files = renderer.instance(assignment, settings)?;
    files.extend(renderer.images(assignment, settings, assignment.logins.is_some())?);
    Ok(files
        .into_iter()
        .map(|file| (file.name, file.text))
        .collect())
}

fn difference(
    before: Result<UnitTexts, RenderError>,
    after: Result<UnitTexts, RenderError>,
    instances: u32,
) -> Vec<UnitChange> {
    // An assignment of a newer version may not be renderable any more: then the complete new text
    // is shown.
    let before = before.unwrap_or_default();
    let after = match after {
        Ok(after) => after,
        Err(error) => return vec![failed("the new unit", &error)],
    };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter_map(|name| {
        let (old, new) = (before.get(name), after.get(name));
        (old != new).then(|| {
            let text = |text: Option<&String>| text.map_or("", String::as_str).to_owned();
            let title = |text: Option<&String>| match text {
                Some(_) => name.clone(),
                None => "/dev/null".to_owned(),
            };
            let (left, right) = (text(old), text(new));
            let diff = TextDiff::from_lines(&left, &right);
            let mut diff = diff.unified_diff();
            diff.context_radius(CONTEXT)
                .header(&title(old), &title(new));
            UnitChange {
                name: name.clone(),
                instances,
                diff: diff.to_string(),
            }
        })
    });
    changed.collect()
}

fn failed(name: &str, error: &RenderError) -> UnitChange {
    UnitChange {
        name: name.to_owned(),
        instances: 0,
        diff: format!("can't be rendered: {error}\n"),
    }
}

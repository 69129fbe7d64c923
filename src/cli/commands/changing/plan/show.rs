//! Prints a plan for people.

use anstyle::{AnsiColor, Style};
use serde_json::Value;

use crate::{
    commands::{changing::quota, reading::get::address_records},
    console::{Console, TextTone, paint, tint},
    output::{one_line, plain, word, wrapped},
};
use kat_types::api::{
    ApplyResult, FieldChange, InstanceAction, InstanceChange, Preview, RouteItem, UnitChange,
    WriteOutcome,
};
use kat_types::assignment::is_machine_slot;

const INDENT: &str = "  ";

/// Lines of one action that are printed, of instances that are treated alike.
const MOST_ALIKE: usize = 3;
/// End of the names of the units of images, whose differences follow from the field `image`.
const IMAGE_UNIT: &str = ".image";

/// Whether the differences of units are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Units {
    /// Only their number, with the option that prints them.
    Counted,
    Shown,
}

/// The changes of one item, followed by an empty line.
pub(crate) fn changes_of_item(
    result: &ApplyResult,
    workload: bool,
    units: Units,
    console: &Console,
) -> String {
    let colour = console.colour;
    let metadata = &result.metadata;
    let kind = result.kind.to_lowercase();
    let name = match &metadata.namespace {
        Some(namespace) => format!("{namespace}/{}", metadata.name),
        None => metadata.name.clone(),
    };
    let title = format!("{kind} {}", plain(&name));
    let generation = metadata.generation;
    let present = result
        .preview
        .as_ref()
        .and_then(|plan| plan.present_generation);
    let fate = match (result.outcome, present) {
        (WriteOutcome::Unchanged, _) => "stays as it is".to_owned(),
        (WriteOutcome::Created, _) => tint("would be created", TextTone::Good, colour),
        (WriteOutcome::Updated, Some(present)) if present == generation => {
            "would be stored anew: its files differ in comments or layout alone".to_owned()
        }
        (WriteOutcome::Updated, Some(present)) => format!(
            "{}, generation {present} -> {generation}",
            tint("would be changed", TextTone::Busy, colour)
        ),
        (other, _) => format!("would be {other}"),
    };
    let mut text = format!("{title} {fate}\n");
    match &result.preview {
        Some(preview) => body(&mut text, preview, units, console),
        None if workload && result.outcome != WriteOutcome::Unchanged => {
            text.push_str(&format!(
                "{INDENT}the cluster's version says no more than that\n"
            ));
        }
        None => {}
    }
    text.push('\n');
    text
}

fn body(text: &mut String, preview: &Preview, units: Units, console: &Console) {
    let Console { colour, width, .. } = *console;
    fields(text, &preview.fields, width);
    for change in &preview.files {
        text.push_str(&format!("\n  {}\n", plain(&change.path)));
        lines(text, &change.diff, colour);
    }
    if !preview.instances.is_empty() {
        let rollout = match preview.rollout.as_str() {
            "" => String::new(),
            rollout => format!(": {}", one_line(rollout)),
        };
        text.push_str(&wrapped(&format!("\n  instances{rollout}\n"), width));
        let mut lines = String::new();
        instances(&mut lines, &preview.instances, colour);
        text.push_str(&wrapped(&lines, width));
    }
    if let Some(requests) = &preview.default_requests {
        let line = format!(
            "\n  requests of containers without their own, from the namespace: {}\n",
            quota::requests_in_words(requests)
        );
        text.push_str(&wrapped(&line, width));
    }
    routes(text, &preview.routes);
    if !preview.complete {
        text.push_str("    there is more to be done than was looked at\n");
    }
    if !preview.blocked.is_empty() {
        let blocked = tint("not all of it would come about", TextTone::Bad, colour);
        let line = format!("\n  {blocked}: {}\n", one_line(&preview.blocked));
        text.push_str(&wrapped(&line, width));
    }
    let of_containers = |change: &&UnitChange| !change.name.ends_with(IMAGE_UNIT);
    let changes = preview.units.iter().filter(of_containers);
    match units {
        Units::Shown => changes.for_each(|change| unit(text, change, colour)),
        Units::Counted => match changes.count() {
            0 => {}
            1 => text.push_str("\n  1 unit differs; `--units` shows how\n"),
            count => text.push_str(&format!("\n  {count} units differ; `--units` shows how\n")),
        },
    }
}

/// The routes with their issuers, and the address records that their hosts need.
fn routes(text: &mut String, routes: &[RouteItem]) {
    if routes.is_empty() {
        return;
    }
    text.push_str("\n  routes\n");
    let mut records: Vec<String> = Vec::new();
    for route in routes {
        let spec = &route.spec;
        let scheme = if spec.issuer == "none" {
            "http"
        } else {
            "https"
        };
        text.push_str(&format!(
            "    {scheme}://{}{} -> {}, certificate: {}\n",
            plain(&spec.host),
            plain(&spec.path),
            plain(&spec.to),
            plain(&spec.issuer)
        ));
        let told = [
            "HostTaken",
            "IngressDisabled",
            "AuthNotReachable",
            "CertificateFailed",
            "CertificateLimitReached",
        ];
        let is_told = told.contains(&route.status.reason.as_str());
        let is_ordered = spec.issuer.starts_with("acme") && !route.status.served;
        if is_told || is_ordered || route.status.message.contains("ACME") {
            text.push_str(&format!("      {}\n", one_line(&route.status.message)));
        }
        for record in address_records(route) {
            if !records.contains(&record) {
                records.push(record);
            }
        }
    }
    if !records.is_empty() {
        text.push_str("    DNS records to set:\n");
        for record in records {
            text.push_str(&format!("      {}\n", plain(&record)));
        }
    }
}

/// The instances in their order; of a run of equal actions the first ones, and the number of the rest.
fn instances(text: &mut String, changes: &[InstanceChange], colour: bool) {
    let alike = |left: &InstanceChange, right: &InstanceChange| {
        left.action == right.action && left.reason == right.reason
    };
    for run in changes.chunk_by(alike) {
        // One more line says no less than "and 1 more".
        let shown = match run.len() {
            count if count <= MOST_ALIKE + 1 => count,
            _ => MOST_ALIKE,
        };
        for change in run.iter().take(shown) {
            text.push_str(&instance(change, colour));
        }
        if run.len() > shown {
            text.push_str(&format!(
                "    ...     and {} more like these\n",
                run.len() - shown
            ));
        }
    }
}

fn fields(text: &mut String, changes: &[FieldChange], columns: Option<usize>) {
    let width = changes
        .iter()
        .map(|change| change.path.chars().count())
        .max();
    let width = width.unwrap_or(0);
    let mut file = "";
    for change in changes {
        if change.file != file {
            file = &change.file;
            text.push_str(&format!("\n  {}\n", plain(file)));
        }
        let values = match (&change.before, &change.after) {
            (Some(before), Some(after)) if before == after => {
                format!("{} (another value)", value(after))
            }
            (Some(before), Some(after)) => format!("{} -> {}", value(before), value(after)),
            (None, Some(after)) => format!("-> {}", value(after)),
            (Some(before), None) => format!("{} -> not said", value(before)),
            (None, None) => "changes".to_owned(),
        };
        let line = format!("    {:width$}   {values}\n", plain(&change.path));
        text.push_str(&wrapped(&line, columns));
    }
}

fn value(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains(char::is_whitespace) => {
            plain(text)
        }
        other => plain(&other.to_string()),
    }
}

fn instance(change: &InstanceChange, colour: bool) -> String {
    let name = |name: &Option<String>| match name {
        Some(name) => plain(name),
        // One of a DaemonService, whose slot follows from its machine.
        None if is_machine_slot(change.slot) => "one".to_owned(),
        None => format!("slot {}", change.slot),
    };
    let node = |node: &Option<String>| {
        node.as_ref()
            .map_or_else(|| "?".to_owned(), |node| plain(node))
    };
    let (here, there) = (node(&change.node), node(&change.successor_node));
    let (tone, what) = match change.action {
        InstanceAction::Keep => (
            TextTone::Plain,
            format!("{} on {here}", name(&change.instance)),
        ),
        InstanceAction::Create => (
            TextTone::Good,
            format!("{} on {there}", name(&change.successor)),
        ),
        InstanceAction::Restart => (
            TextTone::Busy,
            format!(
                "{} on {here} as {}",
                name(&change.instance),
                name(&change.successor)
            ),
        ),
        InstanceAction::Move => (
            TextTone::Busy,
            format!(
                "{} from {here} to {there} as {}",
                name(&change.instance),
                name(&change.successor)
            ),
        ),
        InstanceAction::Stop => (
            TextTone::Bad,
            format!("{} on {here}", name(&change.instance)),
        ),
        InstanceAction::Wait if is_machine_slot(change.slot) => {
            (TextTone::Bad, format!("one on {here}"))
        }
        InstanceAction::Wait => (TextTone::Bad, format!("slot {}", change.slot)),
    };
    let action = format!("{:<7}", word(&change.action).to_lowercase());
    let reason = match change.reason.as_str() {
        "" => String::new(),
        reason => format!(": {}", one_line(reason)),
    };
    format!("    {} {what}{reason}\n", tint(&action, tone, colour))
}

fn unit(text: &mut String, change: &UnitChange, colour: bool) {
    let others = match change.instances {
        0 | 1 => String::new(),
        count => format!(", and {} more in the same way", count - 1),
    };
    text.push_str(&format!("\n  unit {}{others}\n", plain(&change.name)));
    lines(text, &change.diff, colour);
}

/// Adds the lines of a diff.
fn lines(text: &mut String, diff: &str, colour: bool) {
    for line in diff.lines() {
        let style = match line.get(..1) {
            Some("+") => AnsiColor::Green.on_default(),
            Some("-") => AnsiColor::Red.on_default(),
            Some("@") => AnsiColor::Cyan.on_default(),
            _ => Style::new(),
        };
        text.push_str(&format!("    {}\n", paint(&plain(line), style, colour)));
    }
}

/// The text for a workload that is in no folder.
pub(crate) fn surplus(name: &str, colour: bool) -> String {
    let fate = tint("would be deleted", TextTone::Bad, colour);
    format!("workload {name} {fate}: it is in no folder\n\n")
}

/// The number of items by outcome, in one line.
pub(crate) fn summary(results: &[ApplyResult]) -> String {
    let count = |outcome: WriteOutcome| {
        let found = results.iter().filter(|result| result.outcome == outcome);
        found.count()
    };
    let (created, updated) = (count(WriteOutcome::Created), count(WriteOutcome::Updated));
    let (deleted, same) = (count(WriteOutcome::Deleted), count(WriteOutcome::Unchanged));
    if same == results.len() {
        return "nothing would change".to_owned();
    }
    let deleted = match deleted {
        0 => String::new(),
        count => format!("{count} to delete, "),
    };
    format!(
        "{created} to create, {updated} to change, {deleted}{same} as they are; nothing was done"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_route_whose_certificate_waits_for_a_quota_says_so() {
        let shown = |reason: &str| {
            let route: RouteItem = serde_json::from_value(json!({
                "kind": "Route", "metadata": {"name": "a.example"},
                "spec": {"host": "a.example", "path": "/", "to": "web:80", "issuer": "internal"},
                "status": {"reason": reason, "message": "the certificate waits until tomorrow"},
            }))
            .unwrap();
            let mut text = String::new();
            routes(&mut text, &[route]);
            text
        };
        let limited = shown("CertificateLimitReached");
        assert!(limited.contains("waits until tomorrow"), "{limited}");
        assert!(!shown("Served").contains("waits until tomorrow"));
    }
}

//! `katcall wait`: waits until an item has a condition or a phase, or is deleted.

use serde_json::Value;
use tokio::time::Instant;

use crate::{
    CliSession,
    args::WaitArgs,
    commands::reading::get::ListableItem,
    errors::CliError,
    output::{one_line, plain},
    progress::ProgressDisplay,
    references::{self, BareName, CommandKinds, Reference},
    volumes,
    wait::ConnectionNotices,
};
use kat_client::ListChange;
use kat_types::{
    api::{InstanceItem, NamespaceItem, NodeItem, SecretItem, VolumeItem, WorkloadItem},
    encoding::json,
    resource::named_kind::NamedKind,
};

/// What the command waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// A condition of this type is true, or false.
    Condition(String, bool),
    /// The phase has this value.
    Phase(String),
    /// The item is deleted.
    Delete,
}

/// Parses `condition=TYPE`, `condition=TYPE=false`, `phase=PHASE` or `delete`.
pub(crate) fn parse(text: &str) -> Result<WaitCondition, String> {
    let what = match text.split_once('=') {
        None if text == "delete" => WaitCondition::Delete,
        Some(("phase", phase)) if !phase.is_empty() => WaitCondition::Phase(phase.to_owned()),
        Some(("condition", condition)) if !condition.is_empty() => {
            let (kind, wanted) = condition.split_once('=').unwrap_or((condition, "true"));
            match wanted.to_ascii_lowercase().as_str() {
                "true" => WaitCondition::Condition(kind.to_owned(), true),
                "false" => WaitCondition::Condition(kind.to_owned(), false),
                _ => return Err(format!("a condition is true or false, not `{wanted}`")),
            }
        }
        _ => {
            return Err(format!(
                "`{text}` is none of condition=TYPE, condition=TYPE=false, phase=PHASE and delete"
            ));
        }
    };
    Ok(what)
}

impl WaitCondition {
    fn words(&self) -> String {
        match self {
            Self::Condition(kind, true) => format!("has the condition {kind}"),
            Self::Condition(kind, false) => format!("lacks the condition {kind}"),
            Self::Phase(phase) => format!("is {phase}"),
            Self::Delete => "is gone".to_owned(),
        }
    }

    /// Whether the status of an item satisfies this; case is ignored.
    fn holds(&self, status: &Value) -> bool {
        match self {
            Self::Delete => false,
            Self::Phase(wanted) => phase(status).eq_ignore_ascii_case(wanted),
            Self::Condition(kind, wanted) => {
                let conditions = status.get("conditions").and_then(Value::as_array);
                let found = conditions.into_iter().flatten().find(|condition| {
                    let name = condition.get("type").and_then(Value::as_str);
                    name.is_some_and(|name| name.eq_ignore_ascii_case(kind))
                });
                let status = found.and_then(|condition| condition.get("status"));
                status.and_then(Value::as_bool) == Some(*wanted)
            }
        }
    }
}

fn phase(status: &Value) -> &str {
    status.get("phase").and_then(Value::as_str).unwrap_or("-")
}

pub(crate) const AWAITED: CommandKinds = CommandKinds {
    kinds: &[
        NamedKind::Workload,
        NamedKind::Instance,
        NamedKind::Node,
        NamedKind::Namespace,
        NamedKind::Secret,
        NamedKind::Volume,
    ],
    bare: BareName::Refused,
};

/// Waits for one object after the other, with one time limit.
pub(crate) async fn run(session: &CliSession<'_>, arguments: &WaitArgs) -> Result<(), CliError> {
    let deadline = Instant::now() + arguments.timeout;
    let what = &arguments.what;
    let objects = references::objects(&arguments.words, AWAITED, &arguments.namespace)?;
    references::for_each(session.console, &objects, async |object| {
        match object.kind {
            Some(NamedKind::Workload) => {
                until::<WorkloadItem>(session, object, what, deadline).await
            }
            Some(NamedKind::Instance) => {
                until::<InstanceItem>(session, object, what, deadline).await
            }
            Some(NamedKind::Node) => until::<NodeItem>(session, object, what, deadline).await,
            Some(NamedKind::Secret) => until::<SecretItem>(session, object, what, deadline).await,
            Some(NamedKind::Namespace) => {
                until::<NamespaceItem>(session, object, what, deadline).await
            }
            Some(NamedKind::Volume) => {
                volumes::named(session, object).await?;
                until::<VolumeItem>(session, object, what, deadline).await
            }
            Some(
                NamedKind::Route
                | NamedKind::Job
                | NamedKind::Run
                | NamedKind::Event
                | NamedKind::Token
                | NamedKind::Address,
            )
            | None => Err(CliError::usage(format!(
                "`{object}` has no state to wait for"
            ))),
        }
    })
    .await
}

async fn until<T: ListableItem>(
    session: &CliSession<'_>,
    object: &Reference,
    what: &WaitCondition,
    deadline: Instant,
) -> Result<(), CliError> {
    let name = object.name.as_str();
    let namespace = T::NAMESPACED.then_some(object.namespace.as_str());
    let mut follow = session.client.follow::<T>(T::list(namespace)?, true);
    let mut progress = ProgressDisplay::start(session.console);
    let mut connection = ConnectionNotices::default();
    let title = format!("{} {name}", T::SINGULAR);
    let mut last = "nothing is known of it".to_owned();
    loop {
        let change = tokio::select! {
            biased;
            () = tokio::time::sleep_until(deadline) => {
                drop(progress);
                let message = format!("timed out waiting until {title} {}: {last}", what.words());
                let command = match object.kind {
                    Some(NamedKind::Workload | NamedKind::Instance | NamedKind::Node) => "why",
                    _ => "describe",
                };
                let kind = T::SINGULAR;
                let why = format!("katcall {command} {kind} {name}{}", option(namespace));
                return Err(CliError::deadline(message).hinted(format!("`{why}`")));
            }
            change = follow.next() => change?,
        };
        connection.print_connection_change(&change, &progress);
        let (present, listed) = match change {
            ListChange::Listed(items) => (items.into_iter().find(|item| item.is_named(name)), true),
            ListChange::Changed(item) if item.is_named(name) => (Some(item), true),
            ListChange::Deleted(item) if item.is_named(name) => (None, true),
            _ => (None, false),
        };
        if !listed {
            continue;
        }
        let Some(item) = present else {
            drop(progress);
            if *what == WaitCondition::Delete {
                return session.console.line(&format!("{title} is gone"));
            }
            return Err(CliError::not_found(format!("there is no {title}")));
        };
        let item =
            json::tree(&title, &item).map_err(|error| CliError::failed(error.to_string()))?;
        let status = item.get("status").unwrap_or(&Value::Null);
        if what.holds(status) {
            drop(progress);
            return session
                .console
                .line(&format!("{title} {}", plain(&what.words())));
        }
        last = format!(
            "its phase is {}{}",
            one_line(phase(status)),
            condition_in_words(what, status)
        );
        progress.update(&format!("{title}: {last}"));
    }
}

/// Reason and message of the condition.
fn condition_in_words(what: &WaitCondition, status: &Value) -> String {
    let WaitCondition::Condition(kind, _) = what else {
        return String::new();
    };
    let conditions = status.get("conditions").and_then(Value::as_array);
    let text = |condition: &Value, name: &str| {
        let text = condition.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let mut conditions = conditions.into_iter().flatten();
    match conditions.find(|one| text(one, "type").eq_ignore_ascii_case(kind)) {
        Some(found) => {
            let (reason, message) = (text(found, "reason"), text(found, "message"));
            format!(
                ", {kind} says {}: {}",
                one_line(&reason),
                one_line(&message)
            )
        }
        None => {
            let names: Vec<String> = status
                .get("conditions")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|one| text(one, "type"))
                .collect();
            match names.is_empty() {
                true => ", and it has no conditions".to_owned(),
                false => format!(", and its conditions are {}", one_line(&names.join(", "))),
            }
        }
    }
}

fn option(namespace: Option<&str>) -> String {
    namespace.map_or_else(String::new, |namespace| format!(" -n {namespace}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use kat_types::api::AVAILABLE;

    #[test]
    fn what_is_waited_for_is_read_strictly() {
        let condition = |wanted| Ok(WaitCondition::Condition(AVAILABLE.to_owned(), wanted));
        assert_eq!(parse("condition=Available"), condition(true));
        assert_eq!(parse("condition=Available=False"), condition(false));
        assert_eq!(
            parse("phase=Ready"),
            Ok(WaitCondition::Phase("Ready".to_owned()))
        );
        assert_eq!(parse("delete"), Ok(WaitCondition::Delete));
        for wrong in [
            "",
            "deleted",
            "phase=",
            "condition=",
            "condition=A=maybe",
            "x=y",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_condition_that_is_not_there_neither_holds_nor_lacks() {
        let status =
            json!({"phase": "Running", "conditions": [{"type": AVAILABLE, "status": true}]});
        let holds = |text: &str| parse(text).unwrap().holds(&status);
        assert!(holds("phase=running"));
        assert!(!holds("phase=Ready"));
        assert!(holds("condition=available"));
        assert!(!holds("condition=Available=false"));
        assert!(!holds("condition=Other"));
        assert!(!holds("condition=Other=false"));
        assert!(!holds("delete"));
    }
}

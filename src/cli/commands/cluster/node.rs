//! `katcall label`, `katcall taint`, `katcall cordon` and `katcall uncordon`.

use std::{cell::Cell, collections::BTreeMap};

use crate::{
    CliSession,
    args::{CordonArgs, LabelArgs, NamespaceOption, TaintArgs as TaintArguments},
    commands::reading::get,
    errors::CliError,
    references::{self, NODES, Reference},
};
use kat_client::ClientError;
use kat_types::{
    api::{ApplyResult, NodeItem, NodeLabels, NodeTaints, Taint, WriteOutcome},
    resource::TaintEffect,
};

/// Most tries of a change that conflicts with changes of the same machine by others.
const ATTEMPTS: usize = 5;

/// The taint of `katcall cordon`.
fn cordoned() -> Taint {
    Taint {
        key: Taint::CORDON_KEY.to_owned(),
        value: String::new(),
        effect: TaintEffect::NoSchedule,
    }
}

/// A change of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LabelChange {
    Set(String, String),
    Remove(String),
}

/// A change of taints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TaintChange {
    Set(Taint),
    /// A removal of the taint with this effect, or with any.
    Remove(String, Option<TaintEffect>),
}

/// Parses `key=value` or `key-`.
pub(crate) fn parse_label(text: &str) -> Result<LabelChange, String> {
    let wrong = || format!("`{text}` is neither `key=value` nor `key-`");
    if let Some((key, value)) = text.split_once('=') {
        return match key {
            "" => Err(wrong()),
            key => Ok(LabelChange::Set(key.to_owned(), value.to_owned())),
        };
    }
    match text.strip_suffix('-') {
        Some("") | None => Err(wrong()),
        Some(key) => Ok(LabelChange::Remove(key.to_owned())),
    }
}

/// Parses `key=value:Effect`, `key:Effect`, `key:Effect-` or `key-`.
pub(crate) fn parse_taint(text: &str) -> Result<TaintChange, String> {
    let wrong = || {
        format!("`{text}` is none of `key=value:Effect`, `key:Effect`, `key:Effect-` and `key-`")
    };
    let (rest, removed) = match text.strip_suffix('-') {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let (name, effect) = match rest.rsplit_once(':') {
        Some((name, effect)) => (name, Some(parse_effect(effect)?)),
        None => (rest, None),
    };
    let (key, value) = match name.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (name, None),
    };
    match (key, value, effect) {
        ("", ..) => Err(wrong()),
        (key, None, effect) if removed => Ok(TaintChange::Remove(key.to_owned(), effect)),
        (key, value, Some(effect)) if !removed => Ok(TaintChange::Set(Taint {
            key: key.to_owned(),
            value: value.unwrap_or_default().to_owned(),
            effect,
        })),
        _ => Err(wrong()),
    }
}

fn parse_effect(text: &str) -> Result<TaintEffect, String> {
    match text {
        "NoSchedule" => Ok(TaintEffect::NoSchedule),
        "PreferNoSchedule" => Ok(TaintEffect::PreferNoSchedule),
        other => Err(format!(
            "`{other}` is not the effect of a taint: NoSchedule or PreferNoSchedule"
        )),
    }
}

fn labels_after(before: &BTreeMap<String, String>, changes: &[LabelChange]) -> NodeLabels {
    let mut labels = before.clone();
    for change in changes {
        match change {
            LabelChange::Set(key, value) => {
                labels.insert(key.clone(), value.clone());
            }
            LabelChange::Remove(key) => {
                labels.remove(key);
            }
        }
    }
    NodeLabels { labels }
}

fn taints_after(before: &[Taint], changes: &[TaintChange]) -> NodeTaints {
    let mut taints = before.to_vec();
    for change in changes {
        match change {
            TaintChange::Set(new) => {
                let same = |one: &&mut Taint| one.key == new.key && one.effect == new.effect;
                match taints.iter_mut().find(same) {
                    Some(found) => found.clone_from(new),
                    None => taints.push(new.clone()),
                }
            }
            TaintChange::Remove(key, effect) => taints
                .retain(|one| one.key != *key || effect.is_some_and(|effect| one.effect != effect)),
        }
    }
    NodeTaints { taints }
}

/// The machines and the changes in the words of a command. No name of a machine looks like a change.
fn split_words<T>(
    words: &[String],
    is_change: impl Fn(&str) -> bool,
    parse: impl Fn(&str) -> Result<T, String>,
    form: &str,
) -> Result<(Vec<Reference>, Vec<T>), CliError> {
    let first = words.iter().position(|word| is_change(word));
    let (names, changes) = words.split_at(first.unwrap_or(words.len()));
    if changes.is_empty() {
        return Err(CliError::usage("nothing is to be changed").hinted(format!(
            "what is set or removed follows the name of the machine: {form}"
        )));
    }
    let changes = changes
        .iter()
        .map(|word| parse(word).map_err(CliError::usage));
    let changes = changes.collect::<Result<Vec<T>, CliError>>()?;
    let nodes = references::objects(names, NODES, &NamespaceOption::unused())?;
    Ok((nodes, changes))
}

pub(crate) async fn label(session: &CliSession<'_>, arguments: &LabelArgs) -> Result<(), CliError> {
    let is_change = |word: &str| word.contains('=') || word.ends_with('-');
    let form = "KEY=VALUE or KEY-";
    let (nodes, changes) = split_words(&arguments.words, is_change, parse_label, form)?;
    references::for_each(session.console, &nodes, async |node| {
        let name = node.name.as_str();
        change(session, name, async |item: &NodeItem, version: &str| {
            let labels = labels_after(&item.metadata.labels, &changes);
            session.client.set_node_labels(name, &labels, version).await
        })
        .await
    })
    .await
}

pub(crate) async fn taint(
    session: &CliSession<'_>,
    arguments: &TaintArguments,
) -> Result<(), CliError> {
    let is_change = |word: &str| word.contains(['=', ':']) || word.ends_with('-');
    let form = "KEY[=VALUE]:EFFECT or KEY[:EFFECT]-";
    let (nodes, changes) = split_words(&arguments.words, is_change, parse_taint, form)?;
    references::for_each(session.console, &nodes, async |node| {
        let name = node.name.as_str();
        change(session, name, async |item: &NodeItem, version: &str| {
            let taints = taints_after(&item.spec.taints, &changes);
            session.client.set_node_taints(name, &taints, version).await
        })
        .await
    })
    .await
}

/// Changes a machine and prints the outcome.
async fn change(
    session: &CliSession<'_>,
    name: &str,
    send: impl AsyncFn(&NodeItem, &str) -> Result<ApplyResult, ClientError>,
) -> Result<(), CliError> {
    let outcome = written(session, name, send).await?;
    session.console.line(&format!("node/{name} {outcome}"))
}

/// Reads the machine and sends the changed one; retries after a conflict.
async fn written(
    session: &CliSession<'_>,
    name: &str,
    send: impl AsyncFn(&NodeItem, &str) -> Result<ApplyResult, ClientError>,
) -> Result<WriteOutcome, CliError> {
    for _ in 0..ATTEMPTS {
        let item = match session.client.node(name).await {
            Ok(item) => item,
            Err(error) => return Err(get::missing::<NodeItem>(session, error, None, name).await),
        };
        match send(&item, &item.metadata.resource_version).await {
            Ok(result) => return Ok(result.outcome),
            Err(error) if error.status() == Some(412) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CliError::failed(format!(
        "others keep changing node `{name}`; nothing was changed"
    )))
}

/// Taints machines, so that no new instance is placed there; what runs there stays.
pub(crate) async fn cordon(
    session: &CliSession<'_>,
    arguments: &CordonArgs,
) -> Result<(), CliError> {
    let console = session.console;
    let nodes = references::objects(&arguments.words, NODES, &NamespaceOption::unused())?;
    references::for_each(console, &nodes, async |node| {
        let name = node.name.as_str();
        let changes = [TaintChange::Set(cordoned())];
        let outcome = written(session, name, async |item: &NodeItem, version: &str| {
            let taints = taints_after(&item.spec.taints, &changes);
            session.client.set_node_taints(name, &taints, version).await
        })
        .await?;
        if outcome == WriteOutcome::Unchanged {
            return console.line(&format!("node/{name} unchanged"));
        }
        console.line(&format!("node/{name} cordoned"))?;
        console.note(&format!(
            "what runs there stays; `katcall drain {name}` moves it, `katcall uncordon {name}` ends this"
        ));
        Ok(())
    })
    .await
}

/// Removes the taint of a cordon, if the machine has it.
async fn end_cordon(session: &CliSession<'_>, name: &str) -> Result<WriteOutcome, CliError> {
    let taint = cordoned();
    let has_taint = |item: &NodeItem| {
        let mut taints = item.spec.taints.iter();
        taints.any(|one| one.key == taint.key && one.effect == taint.effect)
    };
    if !has_taint(&session.client.node(name).await?) {
        return Ok(WriteOutcome::Unchanged);
    }
    let changes = [TaintChange::Remove(taint.key.clone(), Some(taint.effect))];
    written(session, name, async |item: &NodeItem, version: &str| {
        let taints = taints_after(&item.spec.taints, &changes);
        session.client.set_node_taints(name, &taints, version).await
    })
    .await
}

/// Ends drains and cordons.
pub(crate) async fn uncordon(
    session: &CliSession<'_>,
    arguments: &CordonArgs,
) -> Result<(), CliError> {
    let console = session.console;
    let nodes = references::objects(&arguments.words, NODES, &NamespaceOption::unused())?;
    let ended = Cell::new(false);
    let done = references::for_each(console, &nodes, async |node| {
        let name = node.name.as_str();
        let drain = match session.client.uncordon_node(name).await {
            Ok(result) => result.outcome,
            Err(error) => return Err(get::missing::<NodeItem>(session, error, None, name).await),
        };
        let cordon = end_cordon(session, name).await?;
        if [drain, cordon] == [WriteOutcome::Unchanged; 2] {
            return console.line(&format!("node/{name} unchanged"));
        }
        ended.set(true);
        console.line(&format!("node/{name} uncordoned"))
    })
    .await;
    if ended.get() {
        console.note(
            "instances that moved away stay where they are; `katcall restart NAME` spreads those of a workload again",
        );
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(text: &str) -> Taint {
        match parse_taint(text).unwrap() {
            TaintChange::Set(taint) => taint,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn labels_are_set_and_removed() {
        let before = BTreeMap::from([
            ("disk".to_owned(), "hdd".to_owned()),
            ("zone".to_owned(), "a".to_owned()),
        ]);
        let changes: Vec<_> = ["disk=ssd", "zone-", "rack=", "gone-"]
            .iter()
            .map(|text| parse_label(text).unwrap())
            .collect();
        let after = labels_after(&before, &changes).labels;
        let after: Vec<_> = after
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(after, [("disk", "ssd"), ("rack", "")]);
        for wrong in ["", "-", "=", "=a", "disk"] {
            assert!(parse_label(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_taint_is_one_key_and_one_effect() {
        let before = [
            taint("dedicated=db:NoSchedule"),
            taint("dedicated=db:PreferNoSchedule"),
            taint("slow:PreferNoSchedule"),
        ];
        let after = |texts: &[&str]| {
            let changes: Vec<_> = texts
                .iter()
                .map(|text| parse_taint(text).unwrap())
                .collect();
            taints_after(&before, &changes).taints
        };
        assert_eq!(
            after(&["dedicated=web:NoSchedule", "new:NoSchedule"]),
            [
                taint("dedicated=web:NoSchedule"),
                before[1].clone(),
                before[2].clone(),
                taint("new:NoSchedule"),
            ]
        );
        assert_eq!(after(&["dedicated-", "none-"]), [before[2].clone()]);
        assert_eq!(
            after(&["dedicated:NoSchedule-", "slow:NoSchedule-"]),
            before[1..]
        );
        for wrong in [
            "",
            "-",
            "a",
            "a=b",
            ":NoSchedule",
            "a:Never",
            "a=b:NoSchedule-",
            "a:-",
        ] {
            assert!(parse_taint(wrong).is_err(), "{wrong:?}");
        }
    }
}

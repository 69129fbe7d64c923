//! Instances of a workload that are gone: their machines remember them for a while, since the leader
//! deletes an assignment once its instance has ended.
//!
//! What is shown is of the workload with the present one's uid. A workload that was deleted and
//! created again, perhaps by another owner of the namespace, is another one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{Json, extract::State};
use jiff::Timestamp;

use crate::{
    context::Api,
    errors::ApiError,
    extract::PathParameters,
    handlers::workloads::{
        instances::{LogStream, LoggedWorkload},
        workload_objects::missing,
    },
};
use kat_plan::{Snapshot, is_instance_id_of};
use kat_types::{
    api::{GoneInstance, GoneInstances, LogQuery, MachineAway, NodePhase},
    store::revisions::WorkloadKey,
};

/// Maximum number of instances that are listed, the newest ones.
const MOST: usize = 20;

pub(crate) async fn list(
    State(api): State<Arc<Api>>,
    PathParameters((namespace, name)): PathParameters<(String, String)>,
) -> Result<Json<GoneInstances>, ApiError> {
    let snapshot = api.snapshot()?;
    let workload = present(&snapshot, &namespace, &name)?;
    // A machine that does not report would only hold up the answer.
    let (lost, nodes): (Vec<String>, Vec<String>) = snapshot
        .nodes
        .keys()
        .cloned()
        .partition(|node| *node != api.config.node_name && is_lost(&snapshot, node));
    let asking = api.config.logs.gone(&workload, &nodes);
    let mut found = api.turns.wait(asking).await;
    found.away.extend(lost.into_iter().map(|node| MachineAway {
        message: format!("the machine `{node}` is NotReady, so it was not asked"),
        node,
    }));
    found
        .items
        .retain(|one| !snapshot.instances.contains_key(&one.instance));
    found.items = listed(found.items, &name, api.now());
    Ok(Json(found))
}

fn is_lost(snapshot: &Snapshot, node: &str) -> bool {
    let status = snapshot.nodes.get(node).and_then(|one| one.status.as_ref());
    status.is_some_and(|status| status.value.phase == NodePhase::NotReady)
}

/// The instances that are listed, newest first. What a machine says of them is not trusted: what
/// can't be true is left out or mended, and each machine's newest ones come before any machine's
/// further ones, so that none hides those of others.
fn listed(mut items: Vec<GoneInstance>, workload: &str, now: Timestamp) -> Vec<GoneInstance> {
    let mut seen = BTreeSet::new();
    items.retain(|one| {
        is_instance_id_of(workload, &one.instance)
            && seen.insert((one.node.clone(), one.instance.clone()))
    });
    for one in &mut items {
        one.until = one.until.min(now.into());
    }
    newest_first(&mut items);
    let mut of_node: BTreeMap<String, usize> = BTreeMap::new();
    let mut ranked: Vec<(usize, GoneInstance)> = Vec::new();
    for one in items {
        let rank = of_node.entry(one.node.clone()).or_default();
        *rank += 1;
        ranked.push((*rank, one));
    }
    // Those of one rank stay in their order.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(MOST);
    let mut items: Vec<GoneInstance> = ranked.into_iter().map(|(_, one)| one).collect();
    newest_first(&mut items);
    items
}

fn newest_first(items: &mut [GoneInstance]) {
    items.sort_by_cached_key(|one| Reverse((one.until, one.instance.clone())));
}

/// Opens the log of an instance that was on the machine `node`.
///
/// # Errors
/// Where there is no such workload, machine, or memory of the instance, or where more is wanted than
/// a journal has of what is gone.
pub(super) async fn open(
    api: &Api,
    snapshot: &Snapshot,
    (namespace, name, id): (&str, &str, &str),
    node: &str,
    query: LogQuery,
) -> Result<LogStream, ApiError> {
    let workload = present(snapshot, namespace, name)?;
    if !snapshot.nodes.contains_key(node) {
        return Err(ApiError::not_found("node", node));
    }
    let query = readable(query, id)?;
    let lines = api
        .config
        .logs
        .open_gone(&workload, node, id, query)
        .await?;
    lines.ok_or_else(|| ApiError::not_found("instance", id))
}

/// The query of a log that has ended.
///
/// # Errors
/// [`ApiError::Invalid`] for the run before the last one, which no machine remembers.
pub(crate) fn readable(query: LogQuery, id: &str) -> Result<LogQuery, ApiError> {
    if query.previous {
        return Err(ApiError::invalid(format!(
            "`previous` can't be asked for of `{id}`, which is gone: its log has all of its runs"
        )));
    }
    Ok(LogQuery {
        follow: false,
        node: None,
        gone_of: None,
        ..query
    })
}

fn present(snapshot: &Snapshot, namespace: &str, name: &str) -> Result<LoggedWorkload, ApiError> {
    let key = WorkloadKey::new(namespace, name);
    let Some(entry) = snapshot.workloads.get(&key) else {
        return Err(missing(snapshot, &key));
    };
    Ok(LoggedWorkload {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: entry.meta.value.uid.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(node: &str, instance: &str, until: &str) -> GoneInstance {
        GoneInstance {
            instance: instance.to_owned(),
            node: node.to_owned(),
            until: until.parse::<Timestamp>().unwrap().into(),
            ..GoneInstance::default()
        }
    }

    fn now() -> Timestamp {
        "2026-11-20T10:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_machine_does_not_hide_what_others_had() {
        let suffix = |number: u8| char::from(b'a' + number);
        let mean = (0..25).map(|number| {
            let id = format!("web-mean{}", suffix(number));
            gone("mean", &id, "9999-01-01T00:00:00Z")
        });
        let other = (0..5).map(|number| {
            let id = format!("web-good{}", suffix(number));
            let until = format!("2026-11-20T0{number}:00:00Z");
            gone("n2", &id, &until)
        });
        let items = listed(mean.chain(other).collect(), "web", now());
        assert_eq!(items.len(), MOST);
        let of_other = items.iter().filter(|one| one.node == "n2");
        let of_other: Vec<&str> = of_other.map(|one| one.instance.as_str()).collect();
        assert_eq!(
            of_other,
            [
                "web-goode",
                "web-goodd",
                "web-goodc",
                "web-goodb",
                "web-gooda"
            ]
        );
        assert!(items.iter().all(|one| one.until <= now().into()));
    }

    #[test]
    fn what_is_no_instance_of_the_workload_is_left_out() {
        let until = "2026-11-20T09:00:00Z";
        let ids = [
            "X",
            "web-abcde",
            "",
            "web-abcde",
            "db-abcde",
            "web-../..",
            "web-1\n\n\n\n",
        ];
        let items = ids.map(|id| gone("n1", id, until));
        let items = listed(items.into(), "web", now());
        assert_eq!(items, [gone("n1", "web-abcde", until)]);
    }

    #[test]
    fn one_machine_alone_has_all_places() {
        let items = (0..25).map(|number: u8| {
            let id = format!("web-aaaa{}", char::from(b'a' + number));
            gone("n1", &id, &format!("2026-11-20T09:00:{number:02}Z"))
        });
        let items = listed(items.collect(), "web", now());
        assert_eq!(items.len(), MOST);
        assert_eq!(items[0].instance, "web-aaaay");
        assert_eq!(items[MOST - 1].instance, "web-aaaaf");
    }
}

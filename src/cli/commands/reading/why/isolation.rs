//! `katcall why isolation`: which connections isolation refused, and what allows them; and the same of
//! one workload.

use jiff::Timestamp;
use serde::Serialize;

use crate::{
    CliSession,
    args::{DocumentFormat, NamespaceOption},
    errors::CliError,
    output,
    output::{
        plain,
        table::{Cell, Table},
    },
    time,
};
use kat_client::ClientError;
use kat_types::{
    api::{IsolationView, RefusedConnections},
    resource::Isolation,
};

/// The word that stands for isolation instead of an object.
pub(super) const WORD: &str = "isolation";
/// Most connections that `why` of a workload shows.
const SHOWN: usize = 5;

/// Prints what isolation refused, of all namespaces that the caller may read.
pub(super) async fn run(
    session: &CliSession<'_>,
    namespace: &NamespaceOption,
    format: Option<DocumentFormat>,
) -> Result<(), CliError> {
    let view = read(session, namespace).await?;
    let console = session.console;
    if let Some(format) = format {
        return output::document(console, format, &view);
    }
    let now = Timestamp::now();
    let print = |line: &str| {
        let line = format!("{}\n", plain(line));
        console.print(&output::wrapped(&line, console.width))
    };
    for line in state(&view) {
        print(&line)?;
    }
    if view.refused.is_empty() {
        return Ok(());
    }
    console.line("")?;
    let mut table = Table::new(vec!["FROM", "TO", "PORT", "LAST", "PACKETS", "OUTCOME"]);
    for one in &view.refused {
        table.row(vec![
            Cell::new(format!("{}/{}", one.from.namespace, one.from.workload)),
            Cell::new(format!("{}/{}", one.to.namespace, one.to.workload)),
            Cell::new(port(one)),
            Cell::new(time::age(now, one.last)),
            Cell::new(one.packets.to_string()),
            Cell::new(if one.passed { "passed" } else { "refused" }),
        ]);
    }
    console.print(&table.render(console.colour))?;
    if view.left_out > 0 {
        console.note(&format!("{} more are not shown", view.left_out));
    }
    console.line("")?;
    for line in advice(&view.refused) {
        print(&line)?;
    }
    Ok(())
}

/// What concerns one namespace if it is named, else all; a caller that may not read all gets that of
/// its own namespace.
async fn read(
    session: &CliSession<'_>,
    namespace: &NamespaceOption,
) -> Result<IsolationView, CliError> {
    let own = Some(namespace.namespace.as_str());
    if namespace.written {
        return Ok(session.client.isolation(own).await?);
    }
    match session.client.isolation(None).await {
        Err(error) if error.status() == Some(403) => Ok(session.client.isolation(own).await?),
        read => Ok(read?),
    }
}

/// The setting, and the machines that do not have it in force.
fn state(view: &IsolationView) -> Vec<String> {
    let setting = match view.mode {
        Isolation::None => {
            "isolation is None: workloads of all namespaces reach each other; `katcall config set isolation=Audit` lists what Namespaces would refuse"
        }
        Isolation::Audit => {
            "isolation is Audit: nothing is refused, and what Namespaces would refuse is listed here for an hour"
        }
        Isolation::Namespaces => {
            "isolation is Namespaces: connections to another namespace are refused, unless that one allows them; those of the last hour are listed here"
        }
    };
    let machines = view.machines.iter();
    let machines = machines.map(|one| {
        format!(
            "machine {} does not have it in force: {}",
            one.name, one.message
        )
    });
    let none = view.refused.is_empty() && view.mode != Isolation::None;
    let none = none.then(|| "nothing was refused".to_owned());
    std::iter::once(setting.to_owned())
        .chain(machines)
        .chain(none)
        .collect()
}

fn port(one: &RefusedConnections) -> String {
    match one.protocol {
        Some(protocol) => format!("{}/{}", one.port, protocol.word().to_lowercase()),
        None => "-".to_owned(),
    }
}

/// How the connections would be allowed, one line for each pair of a namespace and a workload.
fn advice(refused: &[RefusedConnections]) -> Vec<String> {
    let mut pairs: Vec<_> = refused
        .iter()
        .map(|one| (&one.to.namespace, &one.to.workload, &one.from.namespace))
        .collect();
    pairs.sort();
    pairs.dedup();
    let more = pairs.len().saturating_sub(SHOWN);
    let mut lines: Vec<_> = pairs
        .iter()
        .take(SHOWN)
        .map(|(to, workload, from)| {
            format!(
                "to allow it: `allowNamespaces: [{from}]` in VirtualLoadBalancer.kat of {to}/{workload}; an administrator opens all of {to} with `katcall namespace set {to} allowNamespaces={from}`"
            )
        })
        .collect();
    if more > 0 {
        lines.push(format!("and {more} more in the same way"));
    }
    lines
}

/// What isolation refused from and to one workload, as `why` of a workload shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct RefusedOfWorkload {
    pub(super) notes: Vec<String>,
    pub(super) next: Vec<String>,
}

/// Reads what isolation refused from and to a workload; nothing where that can't be read, as from a
/// leader of an earlier version.
pub(super) async fn of_workload(
    session: &CliSession<'_>,
    namespace: &str,
    name: &str,
    now: Timestamp,
) -> RefusedOfWorkload {
    let view: Result<_, ClientError> = session.client.isolation(Some(namespace)).await;
    let view = view.unwrap_or_default();
    told(&view.refused, (namespace, name), now)
}

fn told(
    refused: &[RefusedConnections],
    (namespace, name): (&str, &str),
    now: Timestamp,
) -> RefusedOfWorkload {
    let concerns = |one: &&RefusedConnections| {
        let mut ends = [&one.from, &one.to].into_iter();
        ends.any(|end| end.namespace == namespace && end.workload == name)
    };
    let refused: Vec<_> = refused.iter().filter(concerns).cloned().collect();
    let notes = refused.iter().take(SHOWN).map(|one| {
        let did = match one.passed {
            true => "would be refused by isolation of namespaces, and passed",
            false => "was refused by isolation of namespaces",
        };
        format!(
            "a connection from {}/{} to port {} of {}/{} {did}, last {} ago",
            one.from.namespace,
            one.from.workload,
            port(one),
            one.to.namespace,
            one.to.workload,
            time::age(now, one.last)
        )
    });
    let next = (!refused.is_empty()).then(|| "katcall why isolation".to_owned());
    RefusedOfWorkload {
        notes: notes.collect(),
        next: advice(&refused).into_iter().take(1).chain(next).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::{
        api::{ApiTime, ConnectionEnd, UnisolatedMachine},
        resource::Protocol,
    };

    fn refused(from: &str, to: &str, passed: bool) -> RefusedConnections {
        let end = |name: &str| {
            let (namespace, workload) = name.split_once('/').unwrap();
            ConnectionEnd {
                namespace: namespace.to_owned(),
                workload: workload.to_owned(),
                instance: String::new(),
            }
        };
        RefusedConnections {
            from: end(from),
            to: end(to),
            protocol: Some(Protocol::Tcp),
            port: 5432,
            packets: 3,
            last: ApiTime::parse("2026-11-22T03:59:00Z"),
            passed,
            machines: Vec::new(),
        }
    }

    #[test]
    fn a_workload_is_told_what_was_refused_from_it_and_to_it() {
        let now: Timestamp = "2026-11-22T04:00:00Z".parse().unwrap();
        let all = [
            refused("dev/web", "shop/db", false),
            refused("shop/db", "ops/log", true),
            refused("dev/web", "ops/log", false),
        ];
        let told = told(&all, ("shop", "db"), now);
        assert_eq!(
            told.notes,
            [
                "a connection from dev/web to port 5432/tcp of shop/db was refused by isolation of namespaces, last 1m ago",
                "a connection from shop/db to port 5432/tcp of ops/log would be refused by isolation of namespaces, and passed, last 1m ago",
            ]
        );
        assert_eq!(told.next.len(), 2);
        assert_eq!(
            super::told(&all, ("shop", "web"), now),
            RefusedOfWorkload::default()
        );
    }

    #[test]
    fn each_pair_is_advised_once() {
        let twice = [
            refused("dev/web", "shop/db", false),
            refused("dev/api", "shop/db", false),
        ];
        let lines = advice(&twice);
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].contains("`allowNamespaces: [dev]` in VirtualLoadBalancer.kat of shop/db")
        );
        let many: Vec<_> = (0..9)
            .map(|number| refused(&format!("dev{number}/web"), "shop/db", false))
            .collect();
        assert_eq!(
            advice(&many).last().map(String::as_str),
            Some("and 4 more in the same way")
        );
    }

    #[test]
    fn the_state_names_machines_that_do_not_isolate() {
        let view = IsolationView {
            mode: Isolation::Namespaces,
            machines: vec![UnisolatedMachine {
                name: "n2".to_owned(),
                message: "its kat-net isolates nothing: version 0.1.0".to_owned(),
            }],
            ..IsolationView::default()
        };
        let lines = state(&view);
        assert!(lines[0].starts_with("isolation is Namespaces"));
        assert_eq!(
            lines[1..],
            [
                "machine n2 does not have it in force: its kat-net isolates nothing: version 0.1.0",
                "nothing was refused"
            ]
        );
    }
}

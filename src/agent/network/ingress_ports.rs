//! Host ports that this machine has because it serves routes (`hostPortOn: ingress`): what `kat-net` has to
//! know of them, and which of them are not open.

use std::{collections::BTreeMap, net::Ipv4Addr, path::Path};

use ipnet::Ipv4Net;

use super::files::{entries_below, read, transport};
use crate::worker::users::machine_options::MachineOptions;
use kat_host::files as host_files;
use kat_store::mirror::MirrorEntries;
use kat_types::{
    api::{ApiTime, Condition, INGRESS_PORTS_OPEN},
    machine::network::{IngressBackend, IngressHostPort, MachinePorts},
    reason::Reason,
    resource::Protocol,
    services::{BackendState, Backends, IngressPort, ServiceBalance},
    store::keys,
};

/// Largest file with the ports of the machine's programs, in bytes: it may list every port.
const LIMIT: u64 = 1 << 20;

/// A host port that this machine is to have because it serves routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedIngressPort {
    /// Port of the machine.
    pub(crate) port: u16,
    /// Its transport.
    pub(crate) protocol: Protocol,
    /// The workload, as `NAMESPACE/NAME`.
    pub(crate) workload: String,
    /// Why the machine's owner does not allow it.
    pub(crate) forbidden: Option<String>,
}

/// The host ports that this machine is to have because it serves routes, from the keys below
/// `/kat/network/services/`, and those of them that its owner allows, as `kat-net` reads them.
pub(crate) fn of_machine(
    entries: &MirrorEntries,
    (node, subnet): (&str, Ipv4Net),
    options: &MachineOptions,
) -> (Vec<WantedIngressPort>, Vec<IngressHostPort>) {
    let (mut wanted, mut open) = (Vec::new(), Vec::new());
    for (key, entry) in entries_below(entries, keys::SERVICES) {
        let Some(name) = key.strip_suffix("/balance") else {
            continue;
        };
        let (Some((namespace, workload)), Some(balance)) =
            (name.split_once('/'), read::<ServiceBalance>(entry))
        else {
            continue;
        };
        let own = balance.ingress.as_ref();
        let own = own.filter(|ingress| ingress.machines.contains(node));
        for one in own.iter().flat_map(|ingress| &ingress.ports) {
            let forbidden = options.forbidden_port(one.port, one.protocol);
            if forbidden.is_none() {
                let mut sources = balance.sources.iter();
                let sources =
                    sources.find(|list| (list.port, list.protocol) == (one.port, one.protocol));
                open.push(IngressHostPort {
                    port: one.port,
                    protocol: transport(one.protocol),
                    namespace: namespace.to_owned(),
                    workload: workload.to_owned(),
                    instances: backends(&balance, one, subnet),
                    allow_sources: sources.map(|list| list.allow_sources.clone()),
                });
            }
            wanted.push(WantedIngressPort {
                port: one.port,
                protocol: one.protocol,
                workload: name.to_owned(),
                forbidden,
            });
        }
    }
    (wanted, open)
}

/// The instances behind a port, each with its container port. As with its other host ports, a machine that
/// reads that its own instances are away forwards to them.
fn backends(
    balance: &ServiceBalance,
    port: &IngressPort,
    subnet: Ipv4Net,
) -> BTreeMap<Ipv4Addr, IngressBackend> {
    let instances = |number: u16| -> Option<&Backends> {
        let mut ports = balance.ports.iter();
        let found = ports.find(|one| (one.port, one.protocol) == (number, port.protocol));
        found.map(|one| &one.instances)
    };
    let backend = |address: Ipv4Addr, number: u16, state: BackendState| {
        let state = match state {
            BackendState::Away if subnet.contains(&address) => BackendState::Serving,
            BackendState::Serving
            | BackendState::Leaving
            | BackendState::Away
            | BackendState::Held => state,
        };
        let backend = IngressBackend {
            port: number,
            state,
        };
        (address, backend)
    };
    let present = instances(port.container_port).into_iter().flatten();
    let present = present
        .filter(|(address, _)| !port.earlier.contains_key(*address))
        .map(|(address, state)| backend(*address, port.container_port, *state));
    let earlier = port.earlier.iter().filter_map(|(address, number)| {
        let state = instances(*number)?.get(address)?;
        Some(backend(*address, *number, *state))
    });
    present.chain(earlier).collect()
}

/// The ports of the machine's programs, as `kat-net` last wrote them; none where the file can't be read.
pub(crate) fn machine_ports(path: &Path) -> MachinePorts {
    let text = host_files::read_bounded(path, LIMIT).ok();
    let ports = text.and_then(|text| serde_json::from_slice(&text).ok());
    ports.unwrap_or_default()
}

/// The condition of a machine on which a host port is not open that it is to have because it serves routes.
pub(crate) fn condition(
    wanted: &[WantedIngressPort],
    programs: &MachinePorts,
) -> Option<Condition> {
    let closed = wanted.iter().filter_map(|one| {
        let WantedIngressPort {
            port,
            protocol,
            workload,
            forbidden,
        } = one;
        if let Some(message) = forbidden {
            return Some((Reason::HostPortNotAllowed, format!("{workload}: {message}")));
        }
        let programs = match protocol {
            Protocol::Tcp => &programs.tcp,
            Protocol::Udp => &programs.udp,
        };
        programs.contains(port).then(|| {
            let message = format!(
                "host port {port}/{} of {workload} stays with a program of this machine that listens on it, or did in the last ten minutes (`ss -tulpn sport = :{port}` there names it)",
                protocol.word()
            );
            (Reason::HostPortInUse, message)
        })
    });
    let closed: Vec<(Reason, String)> = closed.collect();
    let (reason, _) = closed.first()?;
    let messages: Vec<&str> = closed.iter().map(|(_, message)| message.as_str()).collect();
    Some(Condition {
        kind: INGRESS_PORTS_OPEN.to_owned(),
        status: false,
        reason: (*reason).into(),
        message: messages.join("; "),
        since: ApiTime::UNKNOWN,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use kat_types::{
        machine::{network::Transport, root::Root},
        resource::{AgentConfig, PortRange},
        store::transaction::KeyValue,
    };

    const BALANCE: &str = r#"{"schema":1,"ports":[
        {"port":5432,"protocol":"TCP","instances":
            {"10.100.0.2":"away","10.100.2.2":"serving","10.100.2.3":"away"}},
        {"port":5433,"protocol":"TCP","instances":{"10.100.4.2":"serving"}}],
        "sources":[{"port":15432,"protocol":"TCP","allowSources":["192.0.2.0/24"]}],
        "ingress":{"machines":["n1","n3"],"ports":[
            {"port":15432,"protocol":"TCP","containerPort":5432,
             "earlier":{"10.100.4.2":5433,"10.100.4.9":5433}},
            {"port":53,"protocol":"UDP","containerPort":5353}]}}"#;

    fn entries() -> MirrorEntries {
        let key = "/kat/network/services/default/db/balance";
        let item = KeyValue {
            key: key.to_owned(),
            value: BALANCE.into(),
            mod_revision: 1,
            create_revision: 1,
        };
        [(Arc::from(key), Arc::new(item))].into_iter().collect()
    }

    fn read_on(
        node: &str,
        allowed: Option<Vec<PortRange>>,
    ) -> (Vec<WantedIngressPort>, Vec<IngressHostPort>) {
        let folder = tempfile::tempdir().unwrap();
        let config = AgentConfig {
            host_ports_allow: allowed,
            ..AgentConfig::default()
        };
        let options = MachineOptions::new(&Root::new(folder.path()), &config);
        let subnet = "10.100.0.0/23".parse().unwrap();
        of_machine(&entries(), (node, subnet), &options)
    }

    #[test]
    fn a_machine_that_serves_routes_has_the_port_with_instances_of_all_machines() {
        let all = PortRange {
            first: 1,
            last: 65_535,
        };
        let (wanted, open) = read_on("n1", Some(vec![all]));
        assert_eq!(wanted.len(), 2);
        let ports: Vec<_> = open.iter().map(|one| (one.port, one.protocol)).collect();
        assert_eq!(ports, [(15_432, Transport::Tcp), (53, Transport::Udp)]);
        let backend = |port, state| IngressBackend { port, state };
        let expected = [
            // This machine has returned, and its own instance serves until the leader has decided.
            ([10, 100, 0, 2], backend(5432, BackendState::Serving)),
            ([10, 100, 2, 2], backend(5432, BackendState::Serving)),
            ([10, 100, 2, 3], backend(5432, BackendState::Away)),
            // An instance of an earlier version has another port, and one that is not there has none.
            ([10, 100, 4, 2], backend(5433, BackendState::Serving)),
        ];
        let expected = expected.map(|(address, backend)| (Ipv4Addr::from(address), backend));
        assert_eq!(open[0].instances, BTreeMap::from(expected));
        let sources = vec!["192.0.2.0/24".parse().unwrap()];
        assert_eq!(open[0].allow_sources, Some(sources));
        assert_eq!(open[1].allow_sources, None);
        assert_eq!(open[1].instances, BTreeMap::new());
        assert_eq!(read_on("n2", Some(vec![all])), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_port_that_the_owner_or_a_program_keeps_is_a_condition_of_the_machine() {
        let (wanted, open) = read_on("n3", None);
        let ports: Vec<u16> = open.iter().map(|one| one.port).collect();
        assert_eq!(ports, [15_432], "53 is not among the usual ports");
        let condition_of = |programs: MachinePorts| {
            let found = condition(&wanted, &programs).unwrap();
            assert!(!found.status);
            (found.reason, found.message)
        };
        let (reason, message) = condition_of(MachinePorts::default());
        assert_eq!(reason, "HostPortNotAllowed");
        let expected = "default/db: host port 53/UDP: this machine forwards only ports";
        assert!(message.starts_with(expected), "{message}");
        let programs = MachinePorts {
            tcp: [15_432].into(),
            ..MachinePorts::default()
        };
        let (reason, message) = condition_of(programs.clone());
        assert_eq!(reason, "HostPortInUse");
        let expected = "host port 15432/TCP of default/db stays with a program";
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(condition(&wanted[..1], &MachinePorts::default()), None);
        assert_eq!(condition(&[], &programs), None);
    }
}

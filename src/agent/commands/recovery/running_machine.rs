//! Asks whether the machine that made a backup still runs, before a restore takes its place.
//!
//! A machine stops everything of the cluster on itself as soon as it learns that another one has its
//! place ([`super::replaced`]). It may have the only copy of its data, so a restore elsewhere has to
//! wait until it is off. The port of the API answers with the machine's own certificate whether or
//! not anybody leads ([`machine_server_name`]).

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use futures_util::{StreamExt, stream::FuturesUnordered};
use rustls::pki_types::ServerName;
use tokio::{
    net::{TcpStream, lookup_host},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::archive::BackupFacts;
use crate::{cluster::identity::MachineIdentity, local_api::listeners::is_own};
use kat_network::overlay::local_addresses;
use kat_pki::{AuthorityKind, machine_server_name, tls};

/// Longest wait for all addresses together. A machine that has not answered by then counts as gone.
const LIMIT: Duration = Duration::from_secs(3);

/// Refuses a restore while the machine of the backup answers at an address that it had when it
/// became a part of the cluster.
pub(super) async fn refuse_if_running(facts: &BackupFacts) -> anyhow::Result<()> {
    let endpoints = elsewhere(recorded_endpoints(&facts.identity));
    refuse_if_answering(facts, &endpoints).await
}

/// Like [`refuse_if_running`], for the addresses (`host:port`) in the backup's store, which are
/// newer. Those that were asked already are not asked again.
pub(super) async fn refuse_if_running_at(
    facts: &BackupFacts,
    published: &[String],
) -> anyhow::Result<()> {
    let recorded = recorded_endpoints(&facts.identity);
    let published = published.iter().filter(|one| !recorded.contains(one));
    let endpoints = elsewhere(published.cloned().collect());
    refuse_if_answering(facts, &endpoints).await
}

async fn refuse_if_answering(facts: &BackupFacts, endpoints: &[String]) -> anyhow::Result<()> {
    let identity = &facts.identity;
    let authority = facts.authorities.get(AuthorityKind::Cluster.name());
    let authority = authority.context("the backup has no authority of the cluster")?;
    let authority = &authority.certificate;
    if let Some(endpoint) = answering_endpoint(identity, authority, endpoints).await? {
        bail!(
            "machine {node} still runs: its kat-agent answers at {endpoint}. As soon as another machine has its place it stops all its instances, also those with the only copy of their data. Power it off, or cut this machine off from {endpoint} where it can't be, and run this command again; or restore on that machine itself, after `kat-agent reset` there",
            node = identity.node
        );
    }
    Ok(())
}

/// The names and addresses in a machine's identity, as `host:port` of the API.
fn recorded_endpoints(identity: &MachineIdentity) -> Vec<String> {
    let port = identity.cluster.spec.api_port;
    let names = identity.reached.published_reach().names;
    let names = names.iter().map(|name| format!("{name}:{port}"));
    let addresses = identity.advertise.iter();
    let addresses = addresses.map(|address| SocketAddr::new(*address, port).to_string());
    names.chain(addresses).collect()
}

/// Those endpoints that are not at an address of this machine.
fn elsewhere(mut endpoints: Vec<String>) -> Vec<String> {
    let locals = local_addresses::addresses();
    endpoints.retain(|endpoint| !is_own(endpoint, &locals));
    endpoints
}

/// The first endpoint that proves to be this machine, by the cluster's authority (PEM).
async fn answering_endpoint(
    identity: &MachineIdentity,
    authority: &str,
    endpoints: &[String],
) -> anyhow::Result<Option<String>> {
    let machine = tls::KnownMachine {
        name: identity.node.clone(),
        // The machine may have another key since the backup.
        key_hash: None,
    };
    let config = Arc::new(tls::machine_client_config(authority, machine)?);
    let name = ServerName::try_from(machine_server_name(&identity.cluster_uid))
        .context("the cluster's uid in the backup is no label")?;
    let asking = endpoints.iter().map(|endpoint| {
        let connector = TlsConnector::from(Arc::clone(&config));
        let name = name.clone();
        async move {
            // One of a name's addresses may take all of the time.
            let addresses = lookup_host(endpoint).await.ok()?;
            let proves = async |address: SocketAddr| {
                let stream = TcpStream::connect(address).await.ok()?;
                connector.connect(name.clone(), stream).await.ok()
            };
            let mut proving: FuturesUnordered<_> = addresses.map(proves).collect();
            while let Some(proved) = proving.next().await {
                if proved.is_some() {
                    return Some(endpoint.clone());
                }
            }
            None
        }
    });
    let mut asking: FuturesUnordered<_> = asking.collect();
    let first = async {
        while let Some(answer) = asking.next().await {
            if answer.is_some() {
                return answer;
            }
        }
        None
    };
    Ok(timeout(LIMIT, first).await.ok().flatten())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::cluster::reach::{AdvertisedAddress, ReachSettings};
    use kat_pki::{Authority, LeafKind};

    #[test]
    fn a_machine_is_asked_at_its_names_and_its_addresses() {
        let by = AdvertisedAddress::Name("home.example.org".to_owned());
        let identity = MachineIdentity {
            advertise: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            reached: ReachSettings {
                by: Some(vec![by]),
                ..ReachSettings::default()
            },
            ..MachineIdentity::example("n1")
        };
        let expected = [
            "home.example.org:9115",
            "192.0.2.1:9115",
            "[2001:db8::1]:9115",
        ];
        assert_eq!(recorded_endpoints(&identity), expected);
        let nowhere = MachineIdentity::example("n1");
        assert!(recorded_endpoints(&nowhere).is_empty());
    }

    #[test]
    fn this_machine_itself_is_not_asked() {
        let own = local_addresses::addresses();
        let own = own.iter().map(|own| SocketAddr::new(own.address, 9115));
        let mut endpoints: Vec<String> = own.map(|own| own.to_string()).collect();
        endpoints.push("home.example.org:9115".to_owned());
        assert_eq!(elsewhere(endpoints), ["home.example.org:9115"]);
    }

    fn authority() -> Authority {
        Authority::generate(AuthorityKind::Cluster, "3f0c", Timestamp::now()).unwrap()
    }

    /// A server with the certificate of this machine; returns its `host:port`.
    async fn machine(authority: &Authority, name: &str) -> String {
        let leaf = LeafKind::Node {
            name: name.to_owned(),
            cluster_uid: None,
            addresses: Vec::new(),
        };
        let leaf = authority.issue(&leaf, Timestamp::now()).unwrap();
        let pem = authority.certificate_pem();
        let own = tls::CurrentIdentity::new(&leaf, pem).unwrap();
        let config = tls::server_config(own, tls::CurrentTrust::new(pem).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = TlsAcceptor::from(Arc::clone(&config)).accept(stream).await;
            }
        });
        endpoint
    }

    #[tokio::test]
    async fn only_the_machine_of_the_backup_counts_as_still_running() {
        let identity = MachineIdentity::example("n1");
        let [own, foreign] = [authority(), authority()];
        let pem = own.certificate_pem();
        let there = machine(&own, "n1").await;
        let others = [
            machine(&own, "n2").await,
            machine(&foreign, "n1").await,
            "127.0.0.1:9".to_owned(),
        ];
        let found = answering_endpoint(&identity, pem, &others).await.unwrap();
        assert_eq!(found, None);
        let mut all = others.to_vec();
        all.push(there.clone());
        let found = answering_endpoint(&identity, pem, &all).await.unwrap();
        assert_eq!(found, Some(there));
        let found = answering_endpoint(&identity, pem, &[]).await.unwrap();
        assert_eq!(found, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_takes_connections_and_never_answers_counts_as_gone() {
        let identity = MachineIdentity::example("n1");
        let authority = authority();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = silent.local_addr().unwrap().to_string();
        let begun = tokio::time::Instant::now();
        let pem = authority.certificate_pem();
        let found = answering_endpoint(&identity, pem, &[endpoint.clone(), endpoint]).await;
        assert_eq!(found.unwrap(), None);
        let took = begun.elapsed();
        assert!((LIMIT..LIMIT * 2).contains(&took), "{took:?}");
    }
}

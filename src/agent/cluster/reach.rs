//! Where other machines reach this one outside the overlay: the values of `--advertise-address`,
//! and the addresses that they stand for at present.

use std::net::{IpAddr, SocketAddr};

use anyhow::bail;
use serde::{Deserialize, Serialize};

use super::{identity::MachineIdentity, machine::default_addresses};
use kat_network::overlay::local_addresses::{self as local, LocalAddress};
use kat_types::{api::Reach, resource::AgentConfig};

/// Most addresses that one machine advertises.
const MAX_ADDRESSES: usize = 8;

/// One value of `--advertise-address`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AdvertisedAddress {
    /// This address, whether or not the machine has it.
    Address(IpAddr),
    /// The addresses of this interface.
    Interface(String),
    /// A host name, which the connecting machine resolves.
    Name(String),
}

/// How other machines reach this one, as given at init or join.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReachSettings {
    /// The advertised values in the order to try; an empty list stands for the addresses of the
    /// links with a default route. `None` where an older version joined, which kept only the
    /// resolved addresses.
    pub by: Option<Vec<AdvertisedAddress>>,
    /// Whether this machine is behind NAT.
    pub behind_nat: bool,
    /// Whether this machine relays packets of other machines.
    pub relay: bool,
}

/// Where other machines reach this one at present.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CurrentReach {
    pub addresses: Vec<IpAddr>,
    /// `host:port` of this machine's WireGuard.
    pub endpoints: Vec<String>,
}

impl ReachSettings {
    /// Parses the values of `--advertise-address`.
    ///
    /// # Errors
    /// A value is no address, no interface with an address, and no name that resolves.
    pub async fn new(words: &[String]) -> anyhow::Result<Self> {
        let locals = local::addresses();
        let mut by = Vec::new();
        for word in words {
            let given = match word.parse() {
                Ok(address) => AdvertisedAddress::Address(address),
                Err(_) if locals.iter().any(|one| one.link == *word) => {
                    AdvertisedAddress::Interface(word.clone())
                }
                Err(_) if is_known(word).await => AdvertisedAddress::Name(word.clone()),
                Err(_) => bail!(
                    "`{word}` is neither an address nor an interface with an address, nor a host name that is known"
                ),
            };
            by.push(given);
        }
        Ok(Self {
            by: Some(by),
            ..Self::default()
        })
    }

    /// The reachability settings that this machine publishes, without its addresses.
    pub fn published_reach(&self) -> Reach {
        let name = |given: &AdvertisedAddress| match given {
            AdvertisedAddress::Name(name) => Some(name.clone()),
            _ => None,
        };
        Reach {
            names: self.by.iter().flatten().filter_map(name).collect(),
            behind_nat: self.behind_nat,
            relay: self.relay,
        }
    }

    /// The present addresses; those of the links with a default route where none are advertised.
    ///
    /// # Errors
    /// The machine has no address.
    pub fn addresses_now(&self) -> anyhow::Result<Vec<IpAddr>> {
        let found = self.addresses(&[], &local::addresses(), default_addresses());
        if found.is_empty() {
            bail!("no address of this machine was found; name one with --advertise-address");
        }
        Ok(found)
    }

    /// The advertised addresses, from the machine's present addresses and those that an older
    /// version kept.
    fn addresses(
        &self,
        kept: &[IpAddr],
        locals: &[LocalAddress],
        outward: Vec<IpAddr>,
    ) -> Vec<IpAddr> {
        let on_link = |link: &str| {
            let of_link = locals.iter().filter(|one| one.link == link);
            of_link.map(|one| one.address).collect::<Vec<_>>()
        };
        let mut found: Vec<IpAddr> = match &self.by {
            Some(by) => by
                .iter()
                .flat_map(|given| match given {
                    AdvertisedAddress::Address(address) => vec![*address],
                    AdvertisedAddress::Interface(link) => on_link(link),
                    AdvertisedAddress::Name(_) => Vec::new(),
                })
                .collect(),
            None => {
                let here = |address: &IpAddr| locals.iter().any(|one| one.address == *address);
                let (present, gone): (Vec<_>, Vec<_>) = kept.iter().partition(|one| here(one));
                // An address that the machine does not have may never have been its own, such as a
                // router's.
                present
                    .into_iter()
                    .chain(outward.clone())
                    .chain(gone)
                    .collect()
            }
        };
        if found.is_empty() {
            found = outward;
        }
        let mut seen = std::collections::BTreeSet::new();
        found.retain(|address| seen.insert(*address));
        found.truncate(MAX_ADDRESSES);
        found
    }
}

impl CurrentReach {
    /// Resolves this machine's advertised values.
    pub fn of(identity: &MachineIdentity, config: &AgentConfig) -> Self {
        let reached = &identity.reached;
        let locals = local::addresses();
        let addresses = reached.addresses(&identity.advertise, &locals, default_addresses());
        let default_port = identity.cluster.spec.wireguard_port;
        let endpoints =
            wireguard_endpoints(&reached.published_reach(), &addresses, config, default_port);
        Self {
            addresses,
            endpoints,
        }
    }

    /// `host:port` of the API where one endpoint has to stand for this machine. Behind NAT the
    /// machine is reached only over the overlay.
    pub fn api(&self, identity: &MachineIdentity) -> Option<String> {
        let port = identity.cluster.spec.api_port;
        let at = |address: IpAddr| SocketAddr::new(address, port).to_string();
        if identity.reached.behind_nat {
            return Some(at(identity.overlay_address().into()));
        }
        let names = identity.reached.published_reach().names;
        let name = names.first().map(|name| format!("{name}:{port}"));
        let address = self.addresses.first().or(identity.advertise.first());
        name.or_else(|| address.copied().map(at))
    }
}

/// `host:port` at which others reach this machine's WireGuard, names before addresses;
/// `default_port` where `agent.yaml` sets no port.
pub(crate) fn wireguard_endpoints(
    reach: &Reach,
    addresses: &[IpAddr],
    config: &AgentConfig,
    default_port: u16,
) -> Vec<String> {
    if !config.endpoints.is_empty() {
        return config.endpoints.clone();
    }
    let port = config.wireguard_port.unwrap_or(default_port);
    let names = reach.names.iter().map(|name| format!("{name}:{port}"));
    let addresses = addresses
        .iter()
        .map(|address| SocketAddr::new(*address, port).to_string());
    names.chain(addresses).collect()
}

async fn is_known(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    let known = async { tokio::net::lookup_host((name, 0)).await.is_ok() };
    name.len() <= 253 && name.bytes().all(plain) && known.await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locals() -> Vec<LocalAddress> {
        let local = |link: &str, address: &str| LocalAddress {
            link: link.to_owned(),
            address: address.parse().unwrap(),
            broadcast: None,
        };
        vec![
            local("eth0", "192.0.2.7"),
            local("eth0", "2001:db8::7"),
            local("eth1", "198.51.100.7"),
        ]
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn addresses(by: Option<Vec<AdvertisedAddress>>, kept: &[&str]) -> Vec<IpAddr> {
        let outward = ips(&["192.0.2.7", "2001:db8::7"]);
        let reached = ReachSettings {
            by,
            ..ReachSettings::default()
        };
        reached.addresses(&ips(kept), &locals(), outward)
    }

    #[test]
    fn configured_names_and_interfaces_are_resolved_again() {
        let by = vec![
            AdvertisedAddress::Name("home.example.org".to_owned()),
            AdvertisedAddress::Interface("eth1".to_owned()),
            AdvertisedAddress::Address("203.0.113.9".parse().unwrap()),
        ];
        let found = addresses(Some(by), &["192.0.2.1"]);
        assert_eq!(found, ips(&["198.51.100.7", "203.0.113.9"]));
        // A configured name alone does not replace the addresses, for callers that cannot resolve
        // the name.
        let by = vec![AdvertisedAddress::Name("home.example.org".to_owned())];
        let found = addresses(Some(by), &["192.0.2.1"]);
        assert_eq!(found, ips(&["192.0.2.7", "2001:db8::7"]));
    }

    #[test]
    fn a_machine_of_which_nothing_was_said_goes_by_the_addresses_that_lead_out() {
        let found = addresses(Some(Vec::new()), &["192.0.2.1"]);
        assert_eq!(found, ips(&["192.0.2.7", "2001:db8::7"]));
        // All addresses that an older version stored are kept, but the machine's present address
        // comes first.
        let found = addresses(None, &["203.0.113.9", "198.51.100.7"]);
        let expected = ["198.51.100.7", "192.0.2.7", "2001:db8::7", "203.0.113.9"];
        assert_eq!(found, ips(&expected));
    }

    #[test]
    fn names_are_tried_before_addresses_and_the_machines_own_file_before_both() {
        let reach = Reach {
            names: vec!["home.example.org".to_owned()],
            ..Reach::default()
        };
        let mut config = AgentConfig::default();
        let found = wireguard_endpoints(&reach, &ips(&["2001:db8::7"]), &config, 51820);
        assert_eq!(found, ["home.example.org:51820", "[2001:db8::7]:51820"]);
        config.wireguard_port = Some(4000);
        let found = wireguard_endpoints(&reach, &[], &config, 51820);
        assert_eq!(found, ["home.example.org:4000"]);
        config.endpoints = vec!["192.0.2.1:7".to_owned()];
        let found = wireguard_endpoints(&reach, &[], &config, 51820);
        assert_eq!(found, ["192.0.2.1:7"]);
    }

    #[test]
    fn a_machine_behind_nat_is_named_by_its_place_on_the_overlay() {
        let identity = |behind_nat: bool, by: &[AdvertisedAddress]| MachineIdentity {
            schema: 1,
            node: "n2".to_owned(),
            node_uid: String::new(),
            cluster_uid: String::new(),
            cluster: kat_types::resource::ClusterConfiguration::default(),
            subnet: "10.100.2.0/23".parse().unwrap(),
            advertise: Vec::new(),
            etcd: true,
            reached: ReachSettings {
                by: Some(by.to_vec()),
                behind_nat,
                relay: false,
            },
        };
        let present = CurrentReach {
            addresses: ips(&["192.0.2.7", "198.51.100.7"]),
            endpoints: Vec::new(),
        };
        let named = [AdvertisedAddress::Name("home.example.org".to_owned())];
        for (behind_nat, by, expected) in [
            (false, &named[..], "home.example.org:9115"),
            (false, &[], "192.0.2.7:9115"),
            (true, &[], "10.100.2.1:9115"),
            (true, &named, "10.100.2.1:9115"),
        ] {
            let found = present.api(&identity(behind_nat, by));
            assert_eq!(found.as_deref(), Some(expected));
        }
    }

    #[tokio::test]
    async fn a_word_that_means_nothing_is_refused() {
        for word in ["no such thing", "nosuchlink0.invalid", "a/b", ""] {
            let error = ReachSettings::new(&[word.to_owned()]).await.unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let reached = ReachSettings::new(&["localhost".to_owned(), "::1".to_owned()]).await;
        let expected = [
            AdvertisedAddress::Name("localhost".to_owned()),
            AdvertisedAddress::Address("::1".parse().unwrap()),
        ];
        assert_eq!(reached.unwrap().by.unwrap(), expected);
    }
}

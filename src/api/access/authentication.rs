//! Authentication of callers by token, certificate, or the local socket
//! (docs/internals/identity-and-access.md).

use std::net::SocketAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::http::{HeaderMap, header};
use jiff::Timestamp;

use crate::errors::ApiError;
use kat_pki::{PeerCertificate, PeerIdentity, token::Token};
use kat_plan::Snapshot;
use kat_types::{
    api::{Scope, TRUSTING},
    store::records::{NodeRegistration, TokenRecord},
};

/// What callers on a local socket may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketAccess {
    /// Everything: this machine holds etcd.
    Admin,
    /// Reads of this machine's part, and of the cluster's overview.
    ThisMachine,
}

/// The origin of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionSource {
    /// TLS over TCP.
    Network(SocketAddr),
    /// The local socket.
    Socket {
        /// uid of the peer, if the kernel reports it.
        uid: Option<u32>,
        access: SocketAccess,
    },
}

impl std::fmt::Display for ConnectionSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Network(address) => write!(formatter, "{address}"),
            Self::Socket { uid: Some(uid), .. } => write!(formatter, "socket:{uid}"),
            Self::Socket { uid: None, .. } => formatter.write_str("socket"),
        }
    }
}

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionPeer {
    pub source: ConnectionSource,
    /// Its verified client certificate, if it sent one.
    pub certificate: Option<PeerCertificate>,
}

/// A machine whose certificate is for a key that the cluster knows as that machine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertifiedMachine {
    pub name: String,
    /// SHA-256 of the certificate's public key.
    pub key_hash: String,
}

/// The authenticated caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// An unknown caller.
    Anonymous,
    /// The holder of a token.
    Token {
        /// Id of the token.
        id: String,
        /// Its name for users.
        name: String,
        /// What the token allows.
        scope: Scope,
    },
    /// A machine, by its certificate.
    Node(CertifiedMachine),
    /// The leader, by its certificate.
    Leader(CertifiedMachine),
    /// Root on a machine that holds etcd, by certificate.
    Admin(CertifiedMachine),
    /// A process on this machine, through the local socket.
    Socket {
        /// uid of the peer, if the kernel reports it.
        uid: Option<u32>,
        access: SocketAccess,
    },
}

impl Caller {
    /// Whether the caller sees only this machine's part of the cluster, and the overview.
    pub fn sees_only_this_machine(&self) -> bool {
        matches!(
            self,
            Self::Socket {
                access: SocketAccess::ThisMachine,
                ..
            }
        )
    }

    /// Whether the caller may do everything that a user may.
    pub fn is_admin(&self) -> bool {
        match self {
            Self::Admin(_) => true,
            Self::Token { scope, .. } => *scope == Scope::Admin,
            Self::Socket { access, .. } => *access == SocketAccess::Admin,
            Self::Anonymous | Self::Node(_) | Self::Leader(_) => false,
        }
    }

    /// The caller in messages of events: a token has its name beside its id, as people know it.
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Token { id, name, .. } if !name.is_empty() => format!("token:{id} ({name})"),
            _ => self.to_string(),
        }
    }
}

/// The caller in audit lines and records; never contains a secret.
impl std::fmt::Display for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("anonymous"),
            Self::Token { id, .. } => write!(formatter, "token:{id}"),
            Self::Node(machine) => write!(formatter, "node:{}", machine.name),
            Self::Leader(machine) => write!(formatter, "leader:{}", machine.name),
            Self::Admin(machine) => write!(formatter, "admin:{}", machine.name),
            Self::Socket { uid: Some(uid), .. } => write!(formatter, "uid:{uid}"),
            Self::Socket { uid: None, .. } => formatter.write_str("socket"),
        }
    }
}

/// Identifies the caller. A token in the request counts, whatever else the connection proves.
///
/// # Errors
/// [`ApiError::Unauthorized`] for a header that is no bearer token, for an unknown or expired
/// token, and for a certificate whose key the cluster does not know as that machine's;
/// [`ApiError::Unavailable`] while tokens and keys can't be looked up.
pub fn identify(
    peer: &ConnectionPeer,
    headers: &HeaderMap,
    snapshot: Option<&Snapshot>,
    now: Timestamp,
) -> Result<Caller, ApiError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    if let Some(value) = values.next() {
        if values.next().is_some() {
            return Err(ApiError::Unauthorized(
                "the header `Authorization` is sent more than once".to_owned(),
            ));
        }
        let text = value.to_str().unwrap_or_default();
        let token = match text.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => {
                return Err(ApiError::Unauthorized(
                    "the header `Authorization` is not `Bearer kat1.<id>.<secret>`".to_owned(),
                ));
            }
        };
        let snapshot = snapshot.ok_or_else(not_ready)?;
        return by_token(token, snapshot, now);
    }
    if let Some(certificate) = &peer.certificate {
        let snapshot = snapshot.ok_or_else(not_ready)?;
        let caller = by_certificate(certificate);
        return match is_registered(&caller, snapshot) {
            true => Ok(caller),
            false => Err(unknown_key(&caller)),
        };
    }
    Ok(match &peer.source {
        ConnectionSource::Socket { uid, access } => Caller::Socket {
            uid: *uid,
            access: *access,
        },
        ConnectionSource::Network(_) => Caller::Anonymous,
    })
}

fn by_certificate(certificate: &PeerCertificate) -> Caller {
    let machine = |name: &String| CertifiedMachine {
        name: name.clone(),
        key_hash: certificate.key_hash.clone(),
    };
    match &certificate.identity {
        PeerIdentity::Node(name) => Caller::Node(machine(name)),
        PeerIdentity::Leader(name) => Caller::Leader(machine(name)),
        PeerIdentity::Admin(name) => Caller::Admin(machine(name)),
    }
}

/// Whether the cluster knows a certificate's key as that of its machine. A certificate may outlive
/// its machine's membership, and its name may be another machine's by now, so the key is compared
/// at each call.
///
/// True for callers without a certificate.
pub(crate) fn is_registered(caller: &Caller, snapshot: &Snapshot) -> bool {
    let machine = match caller {
        Caller::Node(machine) | Caller::Leader(machine) | Caller::Admin(machine) => machine,
        Caller::Anonymous | Caller::Token { .. } | Caller::Socket { .. } => return true,
    };
    let registration = snapshot.nodes.get(&machine.name);
    let registration = registration.map(|node| &node.registration.value);
    let Some(registration) = registration.filter(|one| is_in_cluster(one)) else {
        return false;
    };
    let known = match caller {
        Caller::Leader(_) => &registration.member_keys.leader,
        Caller::Admin(_) => &registration.member_keys.admin,
        _ => return registration.identity_key == machine.key_hash,
    };
    // A member without a vote holds the store as well.
    let members = snapshot.members.as_ref();
    let is_member = members.is_some_and(|one| one.value.holds_store(&machine.name));
    // A machine that joined with version 0.1.0 does not report these keys before its first report
    // of a later version: until then the name of a member has to do, or the leader would refuse
    // every leader of that version.
    let is_key = known.is_empty() || *known == machine.key_hash;
    (registration.etcd || is_member) && is_key
}

/// Whether the registration can prove a machine: it is not being deleted, and its key is known.
fn is_in_cluster(registration: &NodeRegistration) -> bool {
    !registration.deleting && !registration.identity_key.is_empty()
}

fn unknown_key(caller: &Caller) -> ApiError {
    ApiError::Unauthorized(format!(
        "the certificate `{caller}` is for a key by which the cluster does not know that machine now"
    ))
}

/// The error of calls before the first complete list has arrived from the store.
pub(crate) fn not_ready() -> ApiError {
    ApiError::Unavailable("the state of the cluster is not read yet".to_owned())
}

/// The caller for a machine that joins without a token, while the network is trusted.
fn trusted(snapshot: &Snapshot, now: Timestamp) -> Result<Caller, ApiError> {
    let mut open = snapshot.tokens.iter().filter(|(_, stored)| {
        let record = &stored.value;
        let open = record.insecure_trust_network && record.scope == Scope::Join;
        open && !expired(record, now)
    });
    // A token without uses left admits no machine, but its error says so; another token may have
    // some left.
    let found = open
        .clone()
        .find(|(_, stored)| stored.value.uses != Some(0));
    let (id, stored) = found.or_else(|| open.next()).ok_or_else(|| {
        ApiError::Unauthorized("this cluster takes no machine without a token now".to_owned())
    })?;
    Ok(Caller::Token {
        id: id.clone(),
        name: stored.value.name.clone(),
        scope: Scope::Join,
    })
}

fn by_token(text: &str, snapshot: &Snapshot, now: Timestamp) -> Result<Caller, ApiError> {
    if text == TRUSTING {
        return trusted(snapshot, now);
    }
    // The authority's hash is for the client and is never sent; neither is the namespace, except by
    // who copies the whole text.
    let token = Token::parse(text)
        .ok()
        .filter(|token| token.authority().is_none());
    let token = token.ok_or_else(|| {
        ApiError::Unauthorized("the token is not of the form `kat1.<id>.<secret>`".to_owned())
    })?;
    let unknown =
        || ApiError::Unauthorized("the token is not known; it may have been revoked".to_owned());
    let record = &snapshot.tokens.get(token.id()).ok_or_else(unknown)?.value;
    let hash = token.hash();
    if verify_slices_are_equal(hash.as_bytes(), record.hash.as_bytes()).is_err() {
        return Err(unknown());
    }
    // Told only to a caller that knows the secret.
    if expired(record, now) {
        let id = token.id();
        return Err(ApiError::Unauthorized(format!(
            "the token `{id}` has expired; `katcall token create` makes another"
        )));
    }
    Ok(Caller::Token {
        id: token.id().to_owned(),
        name: record.name.clone(),
        scope: record.scope.clone(),
    })
}

/// Whether the token has expired.
pub(crate) fn expired(record: &TokenRecord, now: Timestamp) -> bool {
    record.expires.is_some_and(|expires| expires <= now)
}

/// Whether a caller that was admitted at the start of a stream is still valid.
///
/// # Errors
/// [`ApiError::Unauthorized`] if its token was revoked or has expired, or its machine has left.
pub fn still_valid(caller: &Caller, snapshot: &Snapshot, now: Timestamp) -> Result<(), ApiError> {
    let valid = match caller {
        Caller::Token { id, scope, .. } => snapshot
            .tokens
            .get(id)
            .is_some_and(|stored| !expired(&stored.value, now) && stored.value.scope == *scope),
        caller if is_registered(caller, snapshot) => true,
        caller => return Err(unknown_key(caller)),
    };
    if valid {
        Ok(())
    } else {
        let reason = "the token is gone or has expired";
        Err(ApiError::Unauthorized(reason.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use kat_types::store::{members::ClusterMembers, revisions::Stored, snapshot::NodeEntry};

    const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    #[test]
    fn a_token_in_a_message_has_its_name_beside_its_id() {
        let token = |name: &str| Caller::Token {
            id: "qy421jzgw4v8".to_owned(),
            name: name.to_owned(),
            scope: Scope::Admin,
        };
        assert_eq!(token("ci").in_words(), "token:qy421jzgw4v8 (ci)");
        assert_eq!(token("").in_words(), "token:qy421jzgw4v8");
        assert_eq!(token("ci").to_string(), "token:qy421jzgw4v8", "audit lines");
        assert_eq!(Caller::Anonymous.in_words(), "anonymous");
    }

    fn snapshot(expires: Option<&str>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        let token = Token::parse(&format!("kat1.0123456789ab.{SECRET}")).unwrap();
        let record = TokenRecord {
            insecure_trust_network: false,
            schema: 1,
            hash: token.hash(),
            scope: Scope::Read,
            name: "dashboard".to_owned(),
            created: Timestamp::UNIX_EPOCH,
            expires: expires.map(|text| text.parse().unwrap()),
            uses: None,
        };
        let stored = Stored {
            revision: 1,
            value: record,
        };
        snapshot.tokens.insert("0123456789ab".to_owned(), stored);
        snapshot
    }

    /// A caller from the network, with a client certificate of this identity and key hash if any.
    fn peer(certificate: Option<(PeerIdentity, &str)>) -> ConnectionPeer {
        let certificate = certificate.map(|(identity, key)| PeerCertificate {
            identity,
            key_hash: key.to_owned(),
        });
        ConnectionPeer {
            source: ConnectionSource::Network("192.0.2.1:5000".parse().unwrap()),
            certificate,
        }
    }

    /// A cluster with the machine n2, its keys, and a store on n2.
    fn with_machine(change: impl FnOnce(&mut NodeRegistration)) -> Snapshot {
        let mut registration = NodeRegistration::new("uid", Timestamp::UNIX_EPOCH);
        registration.identity_key = "n".to_owned();
        registration.member_keys.leader = "l".to_owned();
        registration.member_keys.admin = "a".to_owned();
        registration.etcd = true;
        change(&mut registration);
        let mut snapshot = snapshot(None);
        let node = NodeEntry {
            registration: Stored {
                revision: 1,
                value: registration,
            },
            status: None,
            subnet: None,
            public_key: None,
            endpoints: Vec::new(),
            reach: Default::default(),
            desired: Stored {
                revision: 1,
                value: Default::default(),
            },
        };
        snapshot.nodes.insert("n2".to_owned(), node);
        snapshot
    }

    /// Whether n2's certificates for the keys n, l and a authenticate their caller.
    fn proved(snapshot: &Snapshot) -> [bool; 3] {
        let name = || "n2".to_owned();
        [
            (PeerIdentity::Node(name()), "n"),
            (PeerIdentity::Leader(name()), "l"),
            (PeerIdentity::Admin(name()), "a"),
        ]
        .map(|certificate| {
            let peer = peer(Some(certificate));
            let caller = identify(&peer, &HeaderMap::new(), Some(snapshot), now());
            if let Ok(caller) = &caller {
                assert!(still_valid(caller, snapshot, now()).is_ok());
            }
            caller.is_ok()
        })
    }

    fn with(header_value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_str(header_value).unwrap(),
        );
        headers
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn knows_a_token_until_it_expires() {
        let caller = |expires| {
            let headers = with(&format!("bearer kat1.0123456789ab.{SECRET}"));
            identify(&peer(None), &headers, Some(&snapshot(expires)), now())
        };
        assert!(matches!(caller(None), Ok(Caller::Token { id, .. }) if id == "0123456789ab"));
        // What follows the secret is for the client, and changes no scope.
        let headers = with(&format!("Bearer kat1.0123456789ab.{SECRET}.shop"));
        let same = identify(&peer(None), &headers, Some(&snapshot(None)), now());
        assert_eq!(same.unwrap(), caller(None).unwrap());
        assert!(caller(Some("2026-01-01T00:00:01Z")).is_ok());
        assert!(matches!(
            caller(Some("2026-01-01T00:00:00Z")),
            Err(ApiError::Unauthorized(_))
        ));
    }

    #[test]
    fn refuses_every_other_authorization() {
        let snapshot = snapshot(None);
        let other = SECRET.replace("AAEC", "AAED");
        let hash = "ab".repeat(32);
        for value in [
            format!("kat1.0123456789ab.{SECRET}"),
            "Basic a2F0".to_owned(),
            "Bearer".to_owned(),
            "Bearer 0123456789ab".to_owned(),
            "Bearer kat1.0123456789ab".to_owned(),
            "Bearer kat1.0123456789ab.".to_owned(),
            format!("Bearer kat1.0123456789ab.{other}"),
            format!("Bearer kat1.0123456789ac.{SECRET}"),
            format!("Bearer kat1.0123456789ab.{SECRET}.{hash}"),
            format!("Bearer kat2.0123456789ab.{SECRET}"),
        ] {
            // A valid admin certificate does not make up for a wrong token.
            let peer = peer(Some((PeerIdentity::Admin("root".to_owned()), "a")));
            let caller = identify(&peer, &with(&value), Some(&snapshot), now());
            assert!(
                matches!(caller, Err(ApiError::Unauthorized(_))),
                "{value}: {caller:?}"
            );
        }
    }

    #[test]
    fn without_a_token_the_connection_decides() {
        let identified =
            |peer: &ConnectionPeer| identify(peer, &HeaderMap::new(), None, now()).unwrap();
        assert_eq!(identified(&peer(None)), Caller::Anonymous);
        let access = SocketAccess::Admin;
        let socket = ConnectionPeer {
            source: ConnectionSource::Socket {
                uid: Some(1000),
                access,
            },
            certificate: None,
        };
        assert!(identified(&socket).is_admin());
        assert_eq!(identified(&socket).to_string(), "uid:1000");
    }

    #[test]
    fn a_certificate_proves_a_machine_only_for_the_key_that_is_registered() {
        assert_eq!(proved(&with_machine(|_| {})), [true; 3]);
        // Another machine was registered later under the same name.
        let other = |one: &mut NodeRegistration| {
            one.identity_key = "other".to_owned();
            one.member_keys.leader = "other".to_owned();
            one.member_keys.admin = "other".to_owned();
        };
        assert_eq!(proved(&with_machine(other)), [false; 3]);
        assert_eq!(proved(&with_machine(|one| one.deleting = true)), [false; 3]);
        assert_eq!(proved(&snapshot(None)), [false; 3], "no such machine");
        let no_key = |one: &mut NodeRegistration| one.identity_key.clear();
        assert_eq!(proved(&with_machine(no_key)), [false; 3]);
    }

    #[test]
    fn a_machine_that_does_not_hold_the_store_has_no_administrator() {
        let mut worker = with_machine(|one| one.etcd = false);
        assert_eq!(proved(&worker), [true, false, false]);
        // n2 is a member of the store that has no vote yet.
        let mut members = ClusterMembers::default();
        members.members.insert("n2".to_owned(), Default::default());
        worker.members = Some(Stored {
            revision: 1,
            value: members,
        });
        assert_eq!(proved(&worker), [true; 3]);
    }

    #[test]
    fn a_member_of_an_earlier_version_is_known_by_its_name_until_it_says_its_keys() {
        let earlier = |one: &mut NodeRegistration| one.member_keys = Default::default();
        assert_eq!(proved(&with_machine(earlier)), [true; 3]);
        let worker = |one: &mut NodeRegistration| {
            one.member_keys = Default::default();
            one.etcd = false;
        };
        assert_eq!(proved(&with_machine(worker)), [true, false, false]);
    }

    #[test]
    fn nobody_is_proved_by_a_certificate_before_the_state_is_read() {
        let peer = peer(Some((PeerIdentity::Node("n2".to_owned()), "n")));
        let caller = identify(&peer, &HeaderMap::new(), None, now());
        assert!(
            matches!(caller, Err(ApiError::Unavailable(_))),
            "{caller:?}"
        );
    }
}

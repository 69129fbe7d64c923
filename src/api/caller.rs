//! Who calls: a token, a certificate, or the local socket (ARCHITECTURE.md, Who may call what).

use std::net::SocketAddr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use axum::http::{HeaderMap, header};
use jiff::Timestamp;

use super::{
    errors::ApiError,
    types::{Scope, TRUSTING},
};
use crate::{
    pki::{PeerIdentity, token::Token},
    plan::{Snapshot, TokenRecord},
};

/// What callers on a local socket may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketAccess {
    /// Everything: this machine holds etcd.
    Admin,
    /// Reads about this machine.
    ThisMachine,
}

/// Where a connection comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// TLS over TCP.
    Network(SocketAddr),
    /// The local socket.
    Socket {
        /// The peer's uid, if the kernel says it.
        uid: Option<u32>,
        /// What the socket allows.
        access: SocketAccess,
    },
}

impl std::fmt::Display for Source {
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
pub struct Peer {
    /// Where it comes from.
    pub source: Source,
    /// Whom its certificate names, if it has one.
    pub identity: Option<PeerIdentity>,
}

/// Who makes a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Nobody that is known.
    Anonymous,
    /// The holder of a token.
    Token {
        /// Id of the token.
        id: String,
        /// Its name for people.
        name: String,
        /// What it may do.
        scope: Scope,
    },
    /// A machine, by its certificate.
    Node(String),
    /// The leader, by its certificate.
    Leader(String),
    /// An administrator, by certificate.
    Admin(String),
    /// Somebody on this machine.
    Socket {
        /// The peer's uid, if the kernel says it.
        uid: Option<u32>,
        /// What the socket allows.
        access: SocketAccess,
    },
}

impl Caller {
    /// Sees this machine alone.
    pub fn sees_only_this_machine(&self) -> bool {
        matches!(
            self,
            Self::Socket {
                access: SocketAccess::ThisMachine,
                ..
            }
        )
    }

    /// May do everything that a person may.
    pub fn is_admin(&self) -> bool {
        match self {
            Self::Admin(_) => true,
            Self::Token { scope, .. } => *scope == Scope::Admin,
            Self::Socket { access, .. } => *access == SocketAccess::Admin,
            Self::Anonymous | Self::Node(_) | Self::Leader(_) => false,
        }
    }
}

/// As audit lines and events name a caller; never a secret.
impl std::fmt::Display for Caller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => formatter.write_str("anonymous"),
            Self::Token { id, .. } => write!(formatter, "token:{id}"),
            Self::Node(name) => write!(formatter, "node:{name}"),
            Self::Leader(name) => write!(formatter, "leader:{name}"),
            Self::Admin(name) => write!(formatter, "admin:{name}"),
            Self::Socket { uid: Some(uid), .. } => write!(formatter, "uid:{uid}"),
            Self::Socket { uid: None, .. } => formatter.write_str("socket"),
        }
    }
}

/// Says who calls. A token that is sent counts, whatever else the connection proves.
///
/// # Errors
/// [`ApiError::Unauthorized`] for a header that is no bearer token or a token that is unknown or
/// expired; [`ApiError::Unavailable`] while no tokens can be looked up.
pub fn identify(
    peer: &Peer,
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
    Ok(match (&peer.identity, &peer.source) {
        (Some(PeerIdentity::Node(name)), _) => Caller::Node(name.clone()),
        (Some(PeerIdentity::Leader(name)), _) => Caller::Leader(name.clone()),
        (Some(PeerIdentity::Admin(name)), _) => Caller::Admin(name.clone()),
        (None, Source::Socket { uid, access }) => Caller::Socket {
            uid: *uid,
            access: *access,
        },
        (None, Source::Network(_)) => Caller::Anonymous,
    })
}

/// What a call gets before the first whole list arrived from the store.
pub(super) fn not_ready() -> ApiError {
    ApiError::Unavailable("the state of the cluster is not read yet".to_owned())
}

/// A machine that joins without a token, while the network is trusted.
fn trusted(snapshot: &Snapshot, now: Timestamp) -> Result<Caller, ApiError> {
    let mut open = snapshot.tokens.iter().filter(|(_, stored)| {
        let record = &stored.value;
        let open = record.insecure_trust_network && record.scope == Scope::Join;
        open && !expired(record, now)
    });
    // One that is used up lets nobody in, but says so; another may have some left.
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
    // A token for joining has one part more, which is for the machine that joins and never sent.
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
    // Only who knows the secret is told this.
    if expired(record, now) {
        let id = token.id();
        return Err(ApiError::Unauthorized(format!(
            "the token `{id}` has expired"
        )));
    }
    Ok(Caller::Token {
        id: token.id().to_owned(),
        name: record.name.clone(),
        scope: record.scope.clone(),
    })
}

/// The token's time is over.
fn expired(record: &TokenRecord, now: Timestamp) -> bool {
    record.expires.is_some_and(|expires| expires <= now)
}

/// Whether a caller that was let in earlier, at the start of a stream, may still stay.
///
/// # Errors
/// [`ApiError::Unauthorized`] when its token was revoked or has run out.
pub fn still_valid(caller: &Caller, snapshot: &Snapshot, now: Timestamp) -> Result<(), ApiError> {
    let valid = match caller {
        Caller::Token { id, scope, .. } => snapshot
            .tokens
            .get(id)
            .is_some_and(|stored| !expired(&stored.value, now) && stored.value.scope == *scope),
        _ => true,
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
    use crate::plan::Stored;

    const SECRET: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

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

    fn peer(identity: Option<PeerIdentity>) -> Peer {
        Peer {
            source: Source::Network("192.0.2.1:5000".parse().unwrap()),
            identity,
        }
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
            // An admin certificate does not make a wrong token right.
            let peer = peer(Some(PeerIdentity::Admin("root".to_owned())));
            let caller = identify(&peer, &with(&value), Some(&snapshot), now());
            assert!(
                matches!(caller, Err(ApiError::Unauthorized(_))),
                "{value}: {caller:?}"
            );
        }
    }

    #[test]
    fn without_a_token_the_connection_decides() {
        let identified = |peer: &Peer| identify(peer, &HeaderMap::new(), None, now()).unwrap();
        assert_eq!(identified(&peer(None)), Caller::Anonymous);
        let node = peer(Some(PeerIdentity::Node("n1".to_owned())));
        assert_eq!(identified(&node), Caller::Node("n1".to_owned()));
        let access = SocketAccess::Admin;
        let socket = Peer {
            source: Source::Socket {
                uid: Some(1000),
                access,
            },
            identity: None,
        };
        assert!(identified(&socket).is_admin());
        assert_eq!(identified(&socket).to_string(), "uid:1000");
    }
}

//! What is asked of a server, and what it may answer.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use base64::{
    Engine,
    prelude::{BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD},
};
use ipnet::Ipv4Net;
use jiff::{SignedDuration, Timestamp};

use super::{
    dns::{DnsAccess, DnsKey, RecordCheck},
    doubled,
};
use kat_types::store::acme::{DnsPlace, server_name};

/// A registered account.
#[derive(Clone, PartialEq, Eq)]
pub struct AcmeAccount {
    /// Its URL at the server.
    pub url: String,
    /// Its private key, PKCS #8 in DER.
    pub key: Vec<u8>,
}

impl fmt::Debug for AcmeAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key appears in no log.
        let AcmeAccount { url, key: _ } = self;
        f.debug_struct("AcmeAccount")
            .field("url", url)
            .finish_non_exhaustive()
    }
}

/// An account of the server's operator (external account binding).
#[derive(Clone, PartialEq, Eq)]
pub struct EabAccount {
    /// Its id.
    pub id: String,
    /// The key that goes with it.
    pub key: Vec<u8>,
}

impl EabAccount {
    /// `None` if the key is no base64url.
    pub fn new(id: &str, key: &str) -> Option<Self> {
        let unpadded = BASE64_URL_SAFE_NO_PAD.decode(key);
        let key = unpadded.or_else(|_| BASE64_URL_SAFE.decode(key)).ok()?;
        Some(Self {
            id: id.to_owned(),
            key,
        })
    }
}

impl fmt::Debug for EabAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EabAccount { id, key: _ } = self;
        f.debug_struct("EabAccount")
            .field("id", id)
            .finish_non_exhaustive()
    }
}

/// How a host is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProofKind {
    /// By an answer on port 80 (HTTP-01).
    Http,
    /// By a record of DNS (DNS-01).
    Dns,
}

/// A question, with the host that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeQuestion {
    /// URL of the server's directory.
    pub directory: String,
    /// Empty for the account.
    pub host: String,
    /// What is asked.
    pub request: AcmeRequest,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq)]
pub enum AcmeRequest {
    /// Register the account. [`AcmeReply::Registered`].
    Register {
        /// Hosts that wait for it.
        hosts: BTreeSet<String>,
        /// Address for messages.
        email: Option<String>,
        /// Its key; `None` with `eab`: the answer has the key then.
        key: Option<Vec<u8>>,
        /// The account that it is bound to.
        eab: Option<EabAccount>,
    },
    /// Give the account another address for messages. [`AcmeReply::ContactChanged`].
    Contact {
        /// The account.
        account: AcmeAccount,
        /// The address; `None` for none.
        email: Option<String>,
    },
    /// Fetch the answer for `token` at every address of the host. This is no question to the server.
    /// [`AcmeReply::Checked`].
    Check {
        /// Name of the answer.
        token: String,
        /// The answer of ingress machines.
        answer: String,
        /// The cluster's own networks, where nothing is asked.
        own: Vec<Ipv4Net>,
    },
    /// Find the zone in which `name` is answered, and whether its server takes updates: CNAME records of
    /// DNS are followed. This is no question to the server, nor are [`AcmeRequest::Record`] and
    /// [`AcmeRequest::Remove`]. [`AcmeReply::Located`].
    Locate {
        /// Name of the challenge.
        name: String,
        /// The server of the zone of the settings that has the host.
        own: DnsAccess,
        /// The servers of the other zones, to which CNAME records may lead.
        others: Vec<DnsAccess>,
    },
    /// Find out whether the leader's machine has the hook, and the zone of `name` for the questions to its
    /// name servers. [`AcmeReply::Located`].
    LocateForHook {
        /// Name of the challenge.
        name: String,
        /// The zone of the settings.
        zone: String,
        /// Name of the hook.
        hook: String,
    },
    /// Add a record, unless it is there, and ask the zone's name servers for it.
    /// [`AcmeReply::Recorded`].
    Record {
        /// URL of the order.
        url: String,
        /// Where the record is.
        place: Box<DnsPlace>,
        /// Its text.
        value: String,
        /// The key of updates; `None` where a hook makes them.
        key: Option<DnsKey>,
        /// The cluster's own networks, where nothing is asked.
        own: Vec<Ipv4Net>,
    },
    /// Remove a record. [`AcmeReply::Removed`].
    Remove {
        /// Where the record is.
        place: DnsPlace,
        /// Its text.
        value: String,
        /// The key of updates; `None` where a hook makes them.
        key: Option<DnsKey>,
    },
    /// Make an order. [`AcmeReply::Ordered`].
    Order {
        /// The account.
        account: AcmeAccount,
        /// Profile of the certificate; empty for the server's default.
        profile: String,
        /// The certificate that is renewed, PEM.
        replaces: Option<String>,
        /// How the host is proved.
        proof: ProofKind,
    },
    /// Have the server fetch the answer. [`AcmeReply::Answered`].
    Answer {
        /// The account.
        account: AcmeAccount,
        /// URL of the order.
        url: String,
        /// How the host is proved.
        proof: ProofKind,
    },
    /// Ask about the order. An order that is ready gets the request for the certificate, if there is
    /// one. [`AcmeReply::Pending`], [`AcmeReply::Ready`] or [`AcmeReply::Certificate`].
    Continue {
        /// The account.
        account: AcmeAccount,
        /// URL of the order.
        url: String,
        /// The request for the certificate, DER.
        request: Option<Vec<u8>>,
    },
    /// Ask when a certificate should be renewed. [`AcmeReply::Renewal`].
    RenewalTime {
        /// The account.
        account: AcmeAccount,
        /// The certificate, PEM.
        certificate: String,
    },
}

impl AcmeRequest {
    /// A word for logs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Register { .. } => "register",
            Self::Contact { .. } => "contact",
            Self::Check { .. } => "check",
            Self::Locate { .. } | Self::LocateForHook { .. } => "locate",
            Self::Record { .. } => "record",
            Self::Remove { .. } => "remove",
            Self::Order { .. } => "order",
            Self::Answer { .. } => "answer",
            Self::Continue { .. } => "continue",
            Self::RenewalTime { .. } => "renewal",
        }
    }
}

impl fmt::Debug for AcmeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys appear in no log.
        f.write_str(self.word())
    }
}

/// An answer.
#[derive(Clone, PartialEq, Eq)]
pub enum AcmeReply {
    /// The account is registered.
    Registered {
        /// Its URL.
        url: String,
        /// Its key, if the question had none.
        key: Option<Vec<u8>>,
    },
    /// The account has the address.
    ContactChanged,
    /// What the addresses of the host answered.
    Checked(CheckedName),
    /// Where the challenge is answered.
    Located(DnsPlace),
    /// The record is added; what the name servers answered.
    Recorded(RecordCheck),
    /// The record is gone.
    Removed,
    /// The order is made.
    Ordered {
        /// Its URL.
        url: String,
        /// Token and answer of the challenge, by DNS the text of the record; `None` if the server needs no
        /// proof.
        challenge: Option<(String, String)>,
    },
    /// The server fetches the answer.
    Answered,
    /// The server needs time.
    Pending {
        /// How long, if it says so (`Retry-After`).
        after: Option<SignedDuration>,
    },
    /// The server has its proof, and waits for the request for the certificate.
    Ready,
    /// The certificate with its chain, PEM.
    Certificate(String),
    /// When the certificate should be renewed.
    Renewal {
        /// From when until when; `None` if the server does not say it.
        at: Option<(Timestamp, Timestamp)>,
        /// When to ask again.
        ask_after: Option<SignedDuration>,
    },
    /// It failed.
    Failed(AcmeFailure),
}

impl fmt::Debug for AcmeReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Keys appear in no log.
        match self {
            Self::Registered { url, key: _ } => write!(f, "registered as {url}"),
            Self::ContactChanged => f.write_str("contact changed"),
            Self::Checked(checked) => write!(f, "checked {checked:?}"),
            Self::Located(place) => write!(f, "located at {place:?}"),
            Self::Recorded(check) => write!(f, "recorded, {check:?}"),
            Self::Removed => f.write_str("removed"),
            Self::Ordered { url, challenge: _ } => write!(f, "ordered as {url}"),
            Self::Answered => f.write_str("answered"),
            Self::Pending { after } => write!(f, "pending for {after:?}"),
            Self::Ready => f.write_str("ready"),
            Self::Certificate(_) => f.write_str("certificate"),
            Self::Renewal { at, ask_after } => write!(f, "renewal {at:?}, ask after {ask_after:?}"),
            Self::Failed(failure) => write!(f, "failed {failure:?}"),
        }
    }
}

/// What the addresses of a host answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckedName {
    /// They lead to an ingress machine of this cluster.
    pub right: Vec<IpAddr>,
    /// They answer with something else, which is not kept: an inner service may answer.
    pub wrong: Vec<IpAddr>,
    /// They do not answer. Many routers do not lead from inside to their own outer address.
    pub silent: Vec<IpAddr>,
    /// They were not asked: no server outside reaches them, or they are the cluster's own.
    pub unasked: Vec<IpAddr>,
}

impl CheckedName {
    /// Whether the order may go on, with what could not be found out.
    pub(super) fn verdict(&self, host: &str) -> Result<String, String> {
        let list = |addresses: &[IpAddr]| {
            let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            texts.join(", ")
        };
        let CheckedName {
            right,
            wrong,
            silent,
            unasked,
        } = self;
        if right.len() + wrong.len() + silent.len() + unasked.len() == 0 {
            return Err(format!("{host} has no address in DNS"));
        }
        if !wrong.is_empty() {
            return Err(format!(
                "port 80 of {} answers for {host}, but no ingress machine of this cluster does; its A and AAAA records must point here",
                list(wrong)
            ));
        }
        let mut unchecked = Vec::new();
        if !silent.is_empty() {
            unchecked.push(format!(
                "port 80 of {} did not answer the leader, as behind a router that does not forward to its own outer address",
                list(silent)
            ));
        }
        if !unasked.is_empty() {
            unchecked.push(format!("{} is no outer address", list(unasked)));
        }
        Ok(unchecked.join("; "))
    }
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeFailure {
    /// What kind of failure it is.
    pub kind: AcmeFailureKind,
    /// What the server, or the connection to it, said.
    pub message: String,
    /// How long to wait, if the server says so (`Retry-After`).
    pub retry_after: Option<SignedDuration>,
}

/// Kinds of failures, by when a next attempt is of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeFailureKind {
    /// The server is not reached, or fails by itself.
    Unreachable,
    /// The server's limit for this account or this name is reached.
    RateLimited,
    /// The server does not know the account.
    NoAccount,
    /// The server does not know the order any more.
    Gone,
    /// The name does not lead here, or its zone can't be changed: the server was not asked.
    Name,
    /// The zone's server is not reached, or fails by itself.
    NameServer,
    /// The server refuses it, or could not verify the name.
    Refused,
}

impl AcmeFailureKind {
    /// Whether the same question may succeed later.
    pub(super) fn is_passing(self) -> bool {
        matches!(
            self,
            Self::Unreachable | Self::RateLimited | Self::NameServer
        )
    }
}

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const HOUR: SignedDuration = SignedDuration::from_hours(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Longest pause that a server can ask for.
pub(super) const LONGEST_PAUSE: SignedDuration = SignedDuration::from_hours(7 * 24);

impl AcmeFailure {
    pub(super) fn refused(message: &str) -> Self {
        Self {
            kind: AcmeFailureKind::Refused,
            message: message.to_owned(),
            retry_after: None,
        }
    }

    pub(super) fn gone(message: &str) -> Self {
        Self {
            kind: AcmeFailureKind::Gone,
            ..Self::refused(message)
        }
    }

    /// The failure in a sentence without its full stop.
    pub(super) fn in_words(&self, directory: &str) -> String {
        let (server, message) = (server_name(directory), &self.message);
        match self.kind {
            AcmeFailureKind::Name | AcmeFailureKind::NameServer => message.clone(),
            AcmeFailureKind::Unreachable => format!("{server} is not reached: {message}"),
            AcmeFailureKind::RateLimited => {
                format!("the rate limit of {server} is reached: {message}")
            }
            AcmeFailureKind::NoAccount => format!("{server} does not know the account: {message}"),
            AcmeFailureKind::Gone | AcmeFailureKind::Refused => format!("{server}: {message}"),
        }
    }

    /// Pause before the next attempt, after this many earlier ones. A name that could not be checked
    /// costs the server's limits more, and has one attempt in an hour.
    pub(super) fn pause(&self, failures: u32, unchecked: bool) -> SignedDuration {
        let own = match self.kind {
            AcmeFailureKind::Name | AcmeFailureKind::NameServer => doubled(MINUTE, failures, HOUR),
            AcmeFailureKind::Unreachable => doubled(MINUTE / 2, failures, HOUR),
            AcmeFailureKind::NoAccount | AcmeFailureKind::Gone => {
                doubled(MINUTE / 6, failures, HOUR)
            }
            AcmeFailureKind::RateLimited if self.retry_after.is_some() => MINUTE,
            AcmeFailureKind::RateLimited => doubled(HOUR, failures, DAY),
            AcmeFailureKind::Refused if unchecked => doubled(HOUR, failures, DAY),
            AcmeFailureKind::Refused => doubled(MINUTE * 15, failures, DAY),
        };
        let asked = self.retry_after.unwrap_or(SignedDuration::ZERO);
        own.max(asked).min(LONGEST_PAUSE)
    }
}

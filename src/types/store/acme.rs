//! Stored objects of certificates by ACME (RFC 8555): the account, orders, and answers to challenges by
//! HTTP and by DNS.
//! The certificates themselves are [`super::ingress::IngressCertificateRecord`]s.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{encoding::digest::sha256_hex, secrets::SecretRecord};

/// Directory of the server where `acme.directory` is not set.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Directory for trials, whose certificates no browser trusts.
pub const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// Key of the sealed values of an account: its private key, PKCS #8 in DER.
pub const ACCOUNT_KEY: &str = "account.key";
/// Keys of the secret of `acme.eab`: the id of the account at the operator, and the key that goes with
/// it, in base64url as operators print it.
pub const EAB_KEY_ID: &str = "keyId";
/// See [`EAB_KEY_ID`].
pub const EAB_HMAC_KEY: &str = "hmacKey";

/// Key of the secret of `acme.dns[].rfc2136.tsig`: the key of updates, as `tsig-keygen` prints it, or in
/// nsupdate's form `ALGORITHM:NAME:SECRET`.
pub const TSIG_KEY: &str = "tsig.key";
/// What a name of DNS has in front of the host that it proves.
pub const CHALLENGE_LABEL: &str = "_acme-challenge";

/// Longest token and longest answer of a challenge, in bytes.
pub const LONGEST_TOKEN: usize = 128;
/// See [`LONGEST_TOKEN`].
pub const LONGEST_ANSWER: usize = 512;

/// Whether a token can be a part of a key and of a path: base64url (RFC 8555, 8.3).
pub fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=LONGEST_TOKEN).contains(&text.len()) && text.bytes().all(fits)
}

/// Name of the account at a server, in its key.
pub fn account_id(directory: &str) -> String {
    let mut id = sha256_hex(directory.as_bytes());
    id.truncate(32);
    id
}

/// The server in words, for people.
pub fn server_name(directory: &str) -> &str {
    match directory {
        LETS_ENCRYPT => "Let's Encrypt",
        LETS_ENCRYPT_STAGING => "Let's Encrypt staging, which browsers do not trust",
        other => {
            let host = other.strip_prefix("https://").unwrap_or(other);
            host.split('/').next().unwrap_or(host)
        }
    }
}

/// `/kat/ingress/accounts/{id}`: the account at a server. It is never deleted: the server counts new
/// accounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcmeAccountRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// URL of the server's directory.
    pub directory: String,
    /// When its key was made.
    pub created: Timestamp,
    /// Its URL; empty until the server knows the key. The server gives the same URL for the same key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// The address for messages that the server has; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub email: String,
    /// Its private key ([`ACCOUNT_KEY`]), sealed with a data key.
    pub key: SecretRecord,
}

/// `/kat/ingress/orders/{host}`: the order of a host's certificate, or why the last one failed. It is
/// deleted when the certificate is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcmeOrderRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// URL of the directory of the server.
    pub directory: String,
    /// Where the order stands.
    pub state: AcmeOrderState,
    /// When it came to that.
    pub since: Timestamp,
    /// Attempts that failed since the last certificate.
    #[serde(default)]
    pub failures: u32,
    /// Why the last attempt failed, in a sentence without its full stop; empty if none did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What the check of the name could not find out: the order goes on.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unchecked: String,
    /// The namespace that the order counts for, also if its route is deleted meanwhile. Earlier versions
    /// do not know it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// `/kat/ingress/new_orders/{namespace}`: how many certificates were ordered for hosts of a namespace that
/// had none by ACME. It is deleted when [`NEW_ORDERS_WINDOW`] is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcmeNewOrdersRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// When the first of them was made.
    pub since: Timestamp,
    /// How many the server has taken since then.
    pub orders: u64,
}

/// For how long a [`AcmeNewOrdersRecord`] counts.
pub const NEW_ORDERS_WINDOW: SignedDuration = SignedDuration::from_hours(24);

impl AcmeNewOrdersRecord {
    /// When it counts no more.
    pub fn until(&self) -> Timestamp {
        let until = self.since.checked_add(NEW_ORDERS_WINDOW);
        until.unwrap_or(Timestamp::MAX)
    }
}

/// Where an order stands. An order in a state of a later version is left alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "is")]
pub enum AcmeOrderState {
    /// The last attempt failed.
    Failed {
        /// When the next one begins.
        next: Timestamp,
    },
    /// The name is checked: each address that it has must answer with what ingress machines have for
    /// this token.
    Checking {
        /// Name of the answer.
        token: String,
    },
    /// The order is made at the server.
    Ordering {},
    /// The server waits until the answer to its challenge can be fetched.
    Proving {
        /// URL of the order.
        url: String,
        /// Of the challenge.
        token: String,
    },
    /// The server was told to fetch the answer.
    Validating {
        /// URL of the order.
        url: String,
        /// Of the challenge.
        token: String,
    },
    /// The name is proved by DNS: the zone of its challenge is looked for, and the key of updates tried.
    Locating {},
    /// The order is made at the server, to be proved at this place.
    OrderingByDns {
        /// Where the challenge is answered.
        place: DnsPlace,
    },
    /// The record with the answer is added, and the zone's name servers must answer with it.
    Recording {
        /// URL of the order.
        url: String,
        /// The text of the record.
        value: String,
    },
    /// The name servers answer with the record.
    ProvingByDns {
        /// URL of the order.
        url: String,
        /// The text of the record.
        value: String,
    },
    /// The server was told to look for the record.
    ValidatingByDns {
        /// URL of the order.
        url: String,
        /// The text of the record.
        value: String,
    },
    /// The request for the certificate is sent, with this key.
    Issuing {
        /// URL of the order.
        url: String,
        /// The key of the certificate, sealed with a data key.
        key: SecretRecord,
    },
}

impl AcmeOrderState {
    /// The challenge that must be answered.
    pub fn token(&self) -> Option<&str> {
        match self {
            Self::Checking { token }
            | Self::Proving { token, .. }
            | Self::Validating { token, .. } => Some(token),
            Self::Failed { .. }
            | Self::Ordering {}
            | Self::Issuing { .. }
            | Self::Locating {}
            | Self::OrderingByDns { .. }
            | Self::Recording { .. }
            | Self::ProvingByDns { .. }
            | Self::ValidatingByDns { .. } => None,
        }
    }

    /// The text of the record that DNS must answer with.
    pub fn record_value(&self) -> Option<&str> {
        match self {
            Self::Recording { value, .. }
            | Self::ProvingByDns { value, .. }
            | Self::ValidatingByDns { value, .. } => Some(value),
            Self::Failed { .. }
            | Self::Checking { .. }
            | Self::Ordering {}
            | Self::Proving { .. }
            | Self::Validating { .. }
            | Self::Locating {}
            | Self::OrderingByDns { .. }
            | Self::Issuing { .. } => None,
        }
    }
}

/// Where a challenge is answered by DNS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsPlace {
    /// Host of the server that takes the updates, with or without a port; empty with a hook.
    pub server: String,
    /// Name of the secret of namespace `kat-core` with the key of updates; empty with a hook.
    pub secret: String,
    /// The zone, in lower case without its last dot.
    pub zone: String,
    /// The name of the record, to which CNAME records may have led.
    pub name: String,
    /// The program of the leader's machine that changes the record, in the place of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
}

/// `/kat/ingress/dns/{value}`: a record TXT that the leader adds, written before it does, so that any
/// leader removes it. It is deleted when the record is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcmeDnsRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The host whose order it is for.
    pub host: String,
    /// Where it is.
    pub place: DnsPlace,
    /// When it was written.
    pub since: Timestamp,
    /// Attempts to remove it that failed.
    #[serde(default)]
    pub failures: u32,
    /// When the next attempt to remove it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
}

/// `/kat/ingress/challenges/{token}`: what port 80 of every ingress machine answers at
/// `/.well-known/acme-challenge/{token}`. It is no secret: every stranger may fetch it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AcmeChallengeRecord {
    /// Version of this object's schema, now 1.
    pub schema: u32,
    /// The body of the answer, at most [`LONGEST_ANSWER`] bytes.
    pub answer: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_part_of_a_key() {
        assert!(is_token("LoqXcYV8q5ONbJQxbmR7SCTNo3tiAXDfowyjxAjEuX0"));
        for text in ["", "a/b", "..", "a b", "a%2fb", &"a".repeat(129)] {
            assert!(!is_token(text), "{text}");
        }
    }

    #[test]
    fn a_server_has_a_name_for_people() {
        assert_eq!(server_name(LETS_ENCRYPT), "Let's Encrypt");
        assert!(server_name(LETS_ENCRYPT_STAGING).contains("staging"));
        assert_eq!(
            server_name("https://ca.example:9000/acme/d"),
            "ca.example:9000"
        );
    }
}

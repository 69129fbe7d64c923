//! Tokens: `kat1.ID.SECRET` gives access to the API within its scope. Two parts may follow, which
//! tell a client what it needs to know before it asks, and which no server believes: `.HASH` is the
//! authority that the client has to trust, as in each token for joining, and `.NAMESPACE` the only
//! one in which the token may do something.
//!
//! ID is 12 characters of Crockford's base32 in lower case, SECRET 32 random bytes in base64url
//! without padding, HASH the SHA-256 of the cluster authority's certificate as 64 hexadecimal
//! digits, more than a namespace has. The store keeps the SHA-256 of the secret, never the secret
//! itself.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;

use kat_types::{encoding::digest::sha256_hex, resource::name::check_namespace};

/// Prefix of every token.
const VERSION: &str = "kat1";
/// Longest text that is parsed, in bytes.
const MOST_BYTES: usize = 256;
/// Characters of an id.
const ID_CHARACTERS: usize = 12;
/// Crockford's base32, in lower case.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Why a token is rejected. The response to a caller should not distinguish these.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is not a token.
    #[error(
        "not a token: expected kat1.ID.SECRET, with .HASH or .NAMESPACE after it where it has them"
    )]
    Malformed,
    /// The secret is wrong.
    #[error("the token {0} is wrong")]
    Wrong(String),
    /// The token has expired.
    #[error("the token {0} has expired")]
    Expired(String),
    /// The token has no uses left.
    #[error("the token {0} is used up")]
    UsedUp(String),
    /// The system's random generator failed.
    #[error("the system has no randomness")]
    Randomness,
}

/// A token with its secret. Neither Debug nor Display show the secret; [`Token::reveal`] does.
#[derive(Clone)]
pub struct Token {
    id: String,
    secret: [u8; 32],
    authority: Option<String>,
    namespace: Option<String>,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Token")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Makes a new token; with `authority`, the fingerprint of the cluster's authority, it is a
    /// join token.
    ///
    /// # Errors
    /// [`TokenError::Randomness`], or [`TokenError::Malformed`] for an invalid fingerprint.
    pub fn generate(authority: Option<&str>) -> Result<Self, TokenError> {
        if authority.is_some_and(|hash| !is_hash(hash)) {
            return Err(TokenError::Malformed);
        }
        let (mut id, mut secret) = ([0_u8; ID_CHARACTERS], [0_u8; 32]);
        super::fill_random(&mut id).map_err(|_| TokenError::Randomness)?;
        super::fill_random(&mut secret).map_err(|_| TokenError::Randomness)?;
        let id = id
            .iter()
            .filter_map(|byte| ALPHABET.get(usize::from(byte & 31)))
            .map(|character| char::from(*character))
            .collect();
        Ok(Self {
            id,
            secret,
            authority: authority.map(ToOwned::to_owned),
            namespace: None,
        })
    }

    /// The token with the only namespace in which it may do something.
    ///
    /// # Errors
    /// [`TokenError::Malformed`] for an invalid name.
    pub fn for_namespace(mut self, namespace: &str) -> Result<Self, TokenError> {
        check_namespace(namespace).map_err(|_| TokenError::Malformed)?;
        self.namespace = Some(namespace.to_owned());
        Ok(self)
    }

    /// Parses a token. White space around it is ignored.
    ///
    /// # Errors
    /// [`TokenError::Malformed`], which does not contain the text.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        Self::parts(text.trim()).ok_or(TokenError::Malformed)
    }

    fn parts(text: &str) -> Option<Self> {
        if text.len() > MOST_BYTES {
            return None;
        }
        let mut parts = text.split('.');
        let (version, id, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let mut rest = parts.next();
        let authority = rest.filter(|part| is_hash(part));
        if authority.is_some() {
            rest = parts.next();
        }
        let known = version == VERSION
            && id.len() == ID_CHARACTERS
            && id.bytes().all(|byte| ALPHABET.contains(&byte))
            && rest.is_none_or(|part| check_namespace(part).is_ok())
            && parts.next().is_none();
        if !known {
            return None;
        }
        Some(Self {
            id: id.to_owned(),
            secret: URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?,
            authority: authority.map(ToOwned::to_owned),
            namespace: rest.map(ToOwned::to_owned),
        })
    }

    /// Its id, which is not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fingerprint of the authority; every token for joining has it.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The only namespace in which it may do something, as its text says. It is a default for a
    /// client; a server reads the scope of the record.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The whole token: only for its owner.
    pub fn reveal(&self) -> String {
        let mut text = self.bearer();
        for part in [&self.authority, &self.namespace].into_iter().flatten() {
            text.push('.');
            text.push_str(part);
        }
        text
    }

    /// The part that is sent with a request: what follows it is for its owner.
    pub fn bearer(&self) -> String {
        let secret = URL_SAFE_NO_PAD.encode(self.secret);
        format!("{VERSION}.{}.{secret}", self.id)
    }

    /// The stored form of its secret: SHA-256, hexadecimal.
    pub fn hash(&self) -> String {
        sha256_hex(&self.secret)
    }
}

fn is_hash(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The part of a stored token that decides whether a token is accepted. Its permissions are in the
/// token record.
#[derive(Debug, Clone, Copy)]
pub struct StoredToken<'a> {
    pub id: &'a str,
    /// [`Token::hash`].
    pub hash: &'a str,
    /// When it expires; `None` for never.
    pub expires: Option<Timestamp>,
    /// Remaining uses; `None` for any number.
    pub uses: Option<u32>,
}

impl StoredToken<'_> {
    /// Checks that this is the token with the stored secret, and that it may be used now. The
    /// secret is compared first, in constant time.
    ///
    /// # Errors
    /// [`TokenError::Wrong`], [`TokenError::Expired`], [`TokenError::UsedUp`].
    pub fn verify(&self, token: &Token, now: Timestamp) -> Result<(), TokenError> {
        let hash = token.hash();
        let same = verify_slices_are_equal(hash.as_bytes(), self.hash.as_bytes()).is_ok();
        if !same || token.id != self.id {
            return Err(TokenError::Wrong(token.id.clone()));
        }
        if self.expires.is_some_and(|expires| expires <= now) {
            return Err(TokenError::Expired(token.id.clone()));
        }
        if self.uses == Some(0) {
            return Err(TokenError::UsedUp(token.id.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use kat_types::resource::name::MAX_NAME;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn stored<'a>(token: &'a Token, hash: &'a str) -> StoredToken<'a> {
        StoredToken {
            id: &token.id,
            hash,
            expires: None,
            uses: None,
        }
    }

    #[test]
    fn a_token_opens_its_record_and_no_other() {
        let token = Token::generate(None).expect("generated");
        let hash = token.hash();
        let record = stored(&token, &hash);
        let again = Token::parse(&format!(" {}\n", token.reveal())).expect("parsed");
        assert_eq!(record.verify(&again, NOW), Ok(()));
        let mut other = Token::generate(None).expect("generated");
        other.id.clone_from(&token.id);
        let wrong = Err(TokenError::Wrong(token.id.clone()));
        assert_eq!(record.verify(&other, NOW), wrong);
        let mut renamed = token.clone();
        renamed.id = "0".repeat(12);
        assert!(record.verify(&renamed, NOW).is_err());
        for hash in ["", "0", &"0".repeat(64), &hash.to_uppercase()] {
            assert_eq!(stored(&token, hash).verify(&token, NOW), wrong, "{hash}");
        }
    }

    #[test]
    fn time_and_uses_end_it() {
        let token = Token::generate(None).expect("generated");
        let hash = token.hash();
        let mut record = stored(&token, &hash);
        record.expires = Some(Timestamp::from_second(10).expect("time"));
        let at = |second| Timestamp::from_second(second).expect("time");
        assert!(record.verify(&token, at(9)).is_ok());
        let expired = Err(TokenError::Expired(token.id.clone()));
        assert_eq!(record.verify(&token, at(10)), expired);
        record.expires = None;
        record.uses = Some(1);
        assert!(record.verify(&token, NOW).is_ok());
        record.uses = Some(0);
        let used_up = Err(TokenError::UsedUp(token.id.clone()));
        assert_eq!(record.verify(&token, NOW), used_up);
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = Token::generate(Some(&"ab".repeat(32))).expect("generated");
        let secret = token.reveal().split('.').nth(2).expect("secret").to_owned();
        assert!(!format!("{token:?}").contains(&secret));
        assert_eq!(
            Token::parse(&token.reveal()).expect("parsed").authority(),
            Some("ab".repeat(32).as_str())
        );
    }

    #[test]
    fn its_namespace_follows_the_hash_and_is_not_sent() {
        let hash = "ab".repeat(32);
        for authority in [None, Some(hash.as_str())] {
            let token = Token::generate(authority).expect("generated");
            let (plain, token) = (token.reveal(), token.for_namespace("shop").expect("a name"));
            assert_eq!(token.reveal(), format!("{plain}.shop"));
            let again = Token::parse(&token.reveal()).expect("parsed");
            assert_eq!(
                (again.authority(), again.namespace()),
                (authority, Some("shop"))
            );
            assert_eq!(again.bearer().split('.').count(), 3);
            assert_eq!(again.hash(), token.hash());
        }
        let plain = Token::generate(None).expect("generated");
        assert_eq!(plain.namespace(), None);
        // The longest namespace is not taken for a hash.
        let longest = "a".repeat(MAX_NAME);
        let token = plain.clone().for_namespace(&longest).expect("a name");
        let again = Token::parse(&token.reveal()).expect("parsed");
        assert_eq!(
            (again.authority(), again.namespace()),
            (None, Some(longest.as_str()))
        );
        for wrong in ["", "Shop", "a b", "-a", &"a".repeat(MAX_NAME + 1)] {
            assert!(plain.clone().for_namespace(wrong).is_err(), "{wrong}");
            let text = format!("{}.{wrong}", plain.reveal());
            assert_eq!(
                Token::parse(&text).err(),
                Some(TokenError::Malformed),
                "{wrong}"
            );
        }
        for more in [
            format!("{hash}.{hash}"),
            format!("shop.{hash}"),
            "shop.b.c".to_owned(),
        ] {
            assert!(
                Token::parse(&format!("{}.{more}", plain.reveal())).is_err(),
                "{more}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,300}") {
            let _ = Token::parse(&text);
        }

        #[test]
        fn what_is_parsed_is_printed_the_same(id in "[0-9a-hjkmnp-tv-z]{12}", secret: [u8; 32]) {
            let text = format!("kat1.{id}.{}", URL_SAFE_NO_PAD.encode(secret));
            prop_assert_eq!(Token::parse(&text).expect("parsed").reveal(), text);
        }

        #[test]
        fn a_changed_character_never_opens(position in 0_usize..43, change in 1_u8..64) {
            let token = Token::generate(None).expect("generated");
            let hash = token.hash();
            let record = stored(&token, &hash);
            let mut text = token.reveal().into_bytes();
            let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            let at = 18 + position;
            let old = alphabet.iter().position(|c| *c == text[at]).expect("base64url");
            text[at] = alphabet[(old + usize::from(change)) % 64];
            let text = String::from_utf8(text).expect("text");
            let opened = Token::parse(&text).is_ok_and(|other| record.verify(&other, NOW).is_ok());
            prop_assert!(!opened);
        }
    }
}

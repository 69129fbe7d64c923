//! Tokens: `kat1.ID.SECRET` gives access to the API within its scope, `kat1.ID.SECRET.HASH` allows
//! a machine to join and names the authority that it has to trust.
//!
//! ID is 12 characters of Crockford's base32 in lower case, SECRET 32 random bytes in base64url
//! without padding, HASH the SHA-256 of the cluster authority's certificate as 64 hexadecimal
//! digits. The store keeps the SHA-256 of the secret, never the secret itself.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;

use kat_types::encoding::digest::sha256_hex;

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
    #[error("not a token: expected kat1.ID.SECRET or kat1.ID.SECRET.HASH")]
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
        })
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
        let authority = parts.next();
        let known = version == VERSION
            && id.len() == ID_CHARACTERS
            && id.bytes().all(|byte| ALPHABET.contains(&byte))
            && authority.is_none_or(is_hash)
            && parts.next().is_none();
        if !known {
            return None;
        }
        Some(Self {
            id: id.to_owned(),
            secret: URL_SAFE_NO_PAD.decode(secret).ok()?.try_into().ok()?,
            authority: authority.map(ToOwned::to_owned),
        })
    }

    /// Its id, which is not secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The fingerprint of the authority; `None` unless it is a join token.
    pub fn authority(&self) -> Option<&str> {
        self.authority.as_deref()
    }

    /// The whole token: only for its owner.
    pub fn reveal(&self) -> String {
        match &self.authority {
            Some(hash) => format!("{}.{hash}", self.bearer()),
            None => self.bearer(),
        }
    }

    /// The part that is sent with a request: without the authority's hash, which its owner checks.
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

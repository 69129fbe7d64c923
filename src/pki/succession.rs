//! Signed statements that the cluster's authority was replaced.
//!
//! A machine without the store that was off for the whole replacement trusts the old authority
//! alone, whose key may be in the wrong hands: that it endorses the new one proves nothing. So each
//! machine with the store signs with the key of its own certificate which authority came after which
//! (ECDSA P-256 with SHA-256), and the machine that comes back takes the new authority from a
//! majority of those that it knew.

use std::collections::BTreeMap;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use x509_parser::{prelude::FromDer, x509::SubjectPublicKeyInfo};

use super::{PkiError, cluster_uid_of_authority, fingerprint_of};
use kat_types::{
    encoding::digest::sha256_hex,
    store::authorities::{AuthoritySuccession, MemberSignature},
};

/// Start of what is signed. A certificate to sign, and a handshake of TLS, begin otherwise.
const CONTEXT: &str = "kat authority succession";
/// The fewest machines with the store that a machine has to have known. With fewer, one of them alone
/// would decide.
const FEWEST_MEMBERS: usize = 3;

/// Why a machine does not take the authority that replaced its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuccessionError {
    /// No machine says what replaced the authority.
    #[error("it is not said which authority replaced the one that this machine trusts")]
    Unknown,
    /// This machine knew too few machines with the store.
    #[error(
        "this machine knew {0} machines that hold the store, and only three or more can vouch for another authority"
    )]
    TooFewMembers(usize),
    /// Fewer than a majority have signed.
    #[error(
        "{signed} of the {known} machines that hold the store as this machine knew them have signed for the new authority: a majority is needed"
    )]
    NoMajority {
        /// Machines whose signature is right.
        signed: usize,
        /// Machines that this machine knew.
        known: usize,
    },
    /// The certificate is not that of the statement, or of another cluster.
    #[error("the certificate of the new authority is not the one that was signed for")]
    OtherCertificate,
}

/// The statement of the machine with this key (PEM) that the authority with the hash `after`
/// replaces the one with the hash `before`.
///
/// # Errors
/// [`PkiError::Key`] if the key can't be used.
pub fn sign_succession(
    key_pem: &str,
    cluster_uid: &str,
    (before, after): (&str, &str),
) -> Result<MemberSignature, PkiError> {
    let unusable = |error: rcgen::Error| PkiError::Key(error.to_string());
    let key = KeyPair::from_pem(key_pem).map_err(unusable)?;
    let signature = key.sign(statement(cluster_uid, before, after).as_bytes());
    Ok(MemberSignature {
        key: BASE64_STANDARD.encode(key.subject_public_key_info()),
        signature: BASE64_STANDARD.encode(signature.map_err(unusable)?),
    })
}

/// The certificate (PEM) of the authority that has replaced the one with the hash `present`, and the
/// ones after it. `members` are the machines with the store as the asking machine knew them: the
/// hash of the key of each by its name.
///
/// # Errors
/// [`SuccessionError`] if the first replacement is not believed; a later one that is not believed
/// ends the search.
pub fn accepted_successor<'a>(
    cluster_uid: &str,
    present: &str,
    successions: &'a [AuthoritySuccession],
    members: &BTreeMap<String, String>,
) -> Result<&'a str, SuccessionError> {
    let mut hash = present;
    let mut found = Err(SuccessionError::Unknown);
    // Each may be used once.
    for _ in successions {
        let Some(next) = successions.iter().find(|one| one.before == hash) else {
            break;
        };
        match check(cluster_uid, next, members) {
            Ok(()) => found = Ok(next.certificate.as_str()),
            Err(error) => return found.or(Err(error)),
        }
        hash = &next.after;
    }
    found
}

fn check(
    cluster_uid: &str,
    succession: &AuthoritySuccession,
    members: &BTreeMap<String, String>,
) -> Result<(), SuccessionError> {
    let known = members.len();
    if known < FEWEST_MEMBERS {
        return Err(SuccessionError::TooFewMembers(known));
    }
    let statement = statement(cluster_uid, &succession.before, &succession.after);
    let signed = members.iter().filter(|(name, hash)| {
        let signature = succession.signatures.get(*name);
        signature.is_some_and(|one| is_signed(one, hash, statement.as_bytes()))
    });
    let signed = signed.count();
    if signed * 2 <= known {
        return Err(SuccessionError::NoMajority { signed, known });
    }
    let certificate = &succession.certificate;
    let is_meant = fingerprint_of(certificate).is_ok_and(|hash| hash == succession.after)
        && cluster_uid_of_authority(certificate)
            .is_ok_and(|uid| uid.eq_ignore_ascii_case(cluster_uid));
    match is_meant {
        true => Ok(()),
        false => Err(SuccessionError::OtherCertificate),
    }
}

fn is_signed(signature: &MemberSignature, key_hash: &str, statement: &[u8]) -> bool {
    let verified = || {
        let key = BASE64_STANDARD.decode(&signature.key).ok()?;
        if sha256_hex(&key) != key_hash {
            return None;
        }
        let (_, parsed) = SubjectPublicKeyInfo::from_der(&key).ok()?;
        let signed = BASE64_STANDARD.decode(&signature.signature).ok()?;
        let point = parsed.subject_public_key.data;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, point);
        key.verify(statement, &signed).ok()
    };
    verified().is_some()
}

fn statement(cluster_uid: &str, before: &str, after: &str) -> String {
    format!("{CONTEXT}\n{cluster_uid}\n{before}\n{after}\n")
}

#[cfg(test)]
mod tests {
    use kat_types::store::authorities::AuthorityKind;

    use super::*;
    use crate::{Authority, create_key, create_request_for_key, tls::public_key_hash};

    const UID: &str = "3f0c";

    /// A machine with the store: its key, and the hash by which others know it.
    struct Member {
        name: String,
        key: String,
        hash: String,
    }

    fn members(count: usize) -> Vec<Member> {
        let now = jiff::Timestamp::now();
        let authority = Authority::generate(AuthorityKind::Cluster, UID, now).unwrap();
        let one = |number| {
            let (name, key) = (format!("n{number}"), create_key().unwrap());
            let request = create_request_for_key(&format!("node:{name}"), &key).unwrap();
            let kind = crate::LeafKind::Node {
                name: name.clone(),
                cluster_uid: None,
                addresses: Vec::new(),
            };
            let certificate = authority.sign_request(&request, &kind, now).unwrap();
            let hash = public_key_hash(&certificate).unwrap();
            Member { name, key, hash }
        };
        (1..=count).map(one).collect()
    }

    fn known(members: &[Member]) -> BTreeMap<String, String> {
        let known = members.iter();
        known
            .map(|one| (one.name.clone(), one.hash.clone()))
            .collect()
    }

    fn signed_by(
        members: &[Member],
        uid: &str,
        before: &Authority,
        after: &Authority,
    ) -> AuthoritySuccession {
        let (before, hash) = (before.fingerprint(), after.fingerprint());
        let sign = |one: &Member| {
            let signature = sign_succession(&one.key, uid, (&before, &hash)).unwrap();
            (one.name.clone(), signature)
        };
        AuthoritySuccession {
            signatures: members.iter().map(sign).collect(),
            certificate: after.certificate_pem().to_owned(),
            before,
            after: hash,
        }
    }

    fn authorities(count: usize) -> Vec<Authority> {
        let now = jiff::Timestamp::now();
        let made = (0..count).map(|_| Authority::generate(AuthorityKind::Cluster, UID, now));
        made.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn a_majority_of_the_known_members_vouches_for_an_authority() {
        let (members, authorities) = (members(5), authorities(3));
        let [first, second, third] = &authorities[..] else {
            panic!("three authorities");
        };
        let known = known(&members);
        let accepted = |successions: &[AuthoritySuccession], present: &Authority| {
            let found = accepted_successor(UID, &present.fingerprint(), successions, &known);
            found.map(|pem| fingerprint_of(pem).unwrap())
        };
        let most = signed_by(&members[..3], UID, first, second);
        assert_eq!(
            accepted(std::slice::from_ref(&most), first),
            Ok(second.fingerprint())
        );
        let few = signed_by(&members[..2], UID, first, second);
        let missing = SuccessionError::NoMajority {
            signed: 2,
            known: 5,
        };
        assert_eq!(accepted(&[few], first), Err(missing));
        assert_eq!(accepted(&[], first), Err(SuccessionError::Unknown));
        // Two replacements; the later one may be signed by too few that this machine knew.
        let later = signed_by(&members[2..], UID, second, third);
        assert_eq!(
            accepted(&[later.clone(), most.clone()], first),
            Ok(third.fingerprint())
        );
        let unknown = signed_by(&members[4..], UID, second, third);
        assert_eq!(
            accepted(&[most.clone(), unknown], first),
            Ok(second.fingerprint())
        );
        // A circle ends.
        let back = signed_by(&members, UID, second, first);
        assert!(accepted(&[most, back], first).is_ok());
    }

    #[test]
    fn no_other_signature_counts() {
        let (members, strangers, authorities) = (members(3), self::members(3), authorities(3));
        let [first, second, other] = &authorities[..] else {
            panic!("three authorities");
        };
        let present = first.fingerprint();
        let known = known(&members);
        let refused = |succession: AuthoritySuccession| {
            accepted_successor(UID, &present, &[succession], &known).unwrap_err()
        };
        let none = SuccessionError::NoMajority {
            signed: 0,
            known: 3,
        };
        assert_eq!(refused(signed_by(&strangers, UID, first, second)), none);
        assert_eq!(refused(signed_by(&members, "other", first, second)), none);
        let genuine = signed_by(&members, UID, first, second);
        // Copied for another authority, and from one machine to the others.
        let copied = AuthoritySuccession {
            after: other.fingerprint(),
            certificate: other.certificate_pem().to_owned(),
            ..genuine.clone()
        };
        assert_eq!(refused(copied), none);
        let one = genuine.signatures["n1"].clone();
        let names = ["n1", "n2", "n3"].map(|name| (name.to_owned(), one.clone()));
        let alone = AuthoritySuccession {
            signatures: names.into(),
            ..genuine.clone()
        };
        let missing = SuccessionError::NoMajority {
            signed: 1,
            known: 3,
        };
        assert_eq!(refused(alone), missing);
        let exchanged = AuthoritySuccession {
            certificate: other.certificate_pem().to_owned(),
            ..genuine.clone()
        };
        assert_eq!(refused(exchanged), SuccessionError::OtherCertificate);
        let two: BTreeMap<_, _> = known.clone().into_iter().take(2).collect();
        assert_eq!(
            accepted_successor(UID, &present, &[genuine], &two),
            Err(SuccessionError::TooFewMembers(2))
        );
    }
}

//! Signatures that prove an epoch of the store to machines without the recovery key.
//!
//! Each recovery key has a signing key (Ed25519), which is derived from it by HKDF-SHA256 with a
//! fixed context. Its public key is the recovery key's *verifier*, and everybody may know it. A
//! machine that knows a verifier believes an epoch that this recovery key signed, and another
//! verifier that this recovery key has endorsed when it was replaced.
//!
//! A signature of an epoch is published and can be repeated by anybody. So it proves that the
//! recovery key's holder began the epoch, and nothing about who shows it: for that a member signs
//! the key of its own server ([`sign_server`]).
//!
//! Members hold the recovery keys, and check a statement that is sealed with one ([`seal_epoch`]),
//! as versions without signatures do.

use std::collections::BTreeSet;

use aws_lc_rs::{
    hkdf,
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    PkiError, RecoveryKeys,
    recovery_key::{self, RecoveryKey, SealError},
};
use kat_types::api::{StoreEpoch, StoreServer, VerifierEndorsement};

/// Context of the derivation.
const DERIVATION: &[u8] = b"kat-recovery-key-epoch-signing-ed25519-v1";
/// The purpose that the sealed proof of an epoch is bound to.
const SEAL_CONTEXT: &[u8] = b"store-epoch";
/// First line of each signed statement, by its purpose.
const EPOCH: &str = "kat store epoch";
const ENDORSEMENT: &str = "kat epoch verifier";
const SERVER: &str = "kat store server";
/// How many earlier epochs are looked at.
const MOST_EARLIER: usize = 8;
/// How many endorsements are kept in a record: one for each replacement of the recovery key.
const MOST_ENDORSEMENTS: usize = 8;
/// How many verifiers and endorsements of a record are looked at. Its writer may be hostile.
const MOST_READ: usize = 16;

fn signing_key(key: &RecoveryKey) -> Result<Ed25519KeyPair, PkiError> {
    let unusable = || PkiError::Key("no signing key can be derived from the recovery key".into());
    let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(key.bytes());
    let mut seed = [0_u8; 32];
    derived
        .expand(&[DERIVATION], hkdf::HKDF_SHA256)
        .and_then(|expanded| expanded.fill(&mut seed))
        .map_err(|_| unusable())?;
    Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| unusable())
}

/// The public key, base64, by which everybody verifies what this recovery key signs.
///
/// # Errors
/// [`PkiError::Key`] if nothing can be derived from the key.
pub fn epoch_verifier(key: &RecoveryKey) -> Result<String, PkiError> {
    Ok(BASE64_STANDARD.encode(signing_key(key)?.public_key()))
}

/// Each part is on a line of its own. None of them has line breaks: names and uids of this program,
/// numbers, base64 and hexadecimal digits.
fn statement<const N: usize>(purpose: &str, parts: [&str; N]) -> String {
    let lines = std::iter::once(purpose).chain(parts);
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn sign(key: &RecoveryKey, statement: &str) -> Result<String, PkiError> {
    let signature = signing_key(key)?.sign(statement.as_bytes());
    Ok(BASE64_STANDARD.encode(signature))
}

fn verify(verifier: &str, statement: &str, signature: &str) -> bool {
    let verified = || {
        let key = BASE64_STANDARD.decode(verifier).ok()?;
        let signature = BASE64_STANDARD.decode(signature).ok()?;
        let key = UnparsedPublicKey::new(&ED25519, key);
        key.verify(statement.as_bytes(), &signature).ok()
    };
    verified().is_some()
}

/// The proof of an epoch for machines that hold a recovery key: a statement that is sealed with it,
/// base64.
///
/// # Errors
/// [`SealError::Randomness`].
pub fn seal_epoch(key: &RecoveryKey, cluster_uid: &str, epoch: u64) -> Result<String, SealError> {
    let plain = format!("{cluster_uid} {epoch}");
    let sealed = recovery_key::seal(key, plain.as_bytes(), SEAL_CONTEXT)?;
    Ok(BASE64_STANDARD.encode(sealed))
}

/// Whether a proof was made by [`seal_epoch`] with this key.
pub fn is_epoch_sealed(key: &RecoveryKey, cluster_uid: &str, epoch: u64, proof: &str) -> bool {
    let plain = format!("{cluster_uid} {epoch}");
    let sealed = BASE64_STANDARD.decode(proof);
    let opened = sealed.map(|sealed| recovery_key::open(key, &sealed, SEAL_CONTEXT));
    opened.is_ok_and(|opened| opened.is_ok_and(|opened| opened == plain.as_bytes()))
}

/// The statement, base64, that the cluster's store has had this epoch.
///
/// # Errors
/// As [`epoch_verifier`].
pub fn sign_epoch(key: &RecoveryKey, cluster_uid: &str, epoch: u64) -> Result<String, PkiError> {
    sign(key, &statement(EPOCH, [cluster_uid, &epoch.to_string()]))
}

/// Whether the recovery key of this verifier has signed the epoch.
pub fn is_epoch_signed(verifier: &str, cluster_uid: &str, epoch: u64, signature: &str) -> bool {
    let signed = statement(EPOCH, [cluster_uid, &epoch.to_string()]);
    verify(verifier, &signed, signature)
}

/// The statement that the recovery key with another verifier takes the place of this recovery key.
///
/// # Errors
/// As [`epoch_verifier`].
pub fn endorse_verifier(
    key: &RecoveryKey,
    cluster_uid: &str,
    verifier: &str,
) -> Result<VerifierEndorsement, PkiError> {
    let signed = statement(ENDORSEMENT, [cluster_uid, verifier]);
    Ok(VerifierEndorsement {
        verifier: verifier.to_owned(),
        by: epoch_verifier(key)?,
        signature: sign(key, &signed)?,
    })
}

/// The statement of a machine with the store that its API has the key with this hash.
///
/// # Errors
/// As [`epoch_verifier`].
pub fn sign_server(
    key: &RecoveryKey,
    cluster_uid: &str,
    epoch: u64,
    (machine, key_hash): (&str, &str),
) -> Result<StoreServer, PkiError> {
    let signed = statement(SERVER, [cluster_uid, &epoch.to_string(), machine, key_hash]);
    Ok(StoreServer {
        machine: machine.to_owned(),
        key_hash: key_hash.to_owned(),
        signature: sign(key, &signed)?,
    })
}

/// Verifiers of recovery keys that a machine knows, of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EpochVerifiers {
    cluster_uid: String,
    /// In the order in which they were learned; empty on a machine that has seen none yet.
    known: Vec<String>,
}

/// What became of the known verifiers by a record that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LearnedVerifiers {
    /// The record says nothing else than what is known, or nothing.
    Same,
    /// They are these now.
    Changed(EpochVerifiers),
    /// The record names verifiers that no known one has endorsed; they are left out.
    NotEndorsed(EpochVerifiers),
}

impl EpochVerifiers {
    /// Those that are known already.
    pub fn new(cluster_uid: &str, known: impl IntoIterator<Item = String>) -> Self {
        Self {
            cluster_uid: cluster_uid.to_owned(),
            known: known.into_iter().take(MOST_READ).collect(),
        }
    }

    /// The verifiers of these recovery keys.
    ///
    /// # Errors
    /// As [`epoch_verifier`].
    pub fn of_keys<'a>(
        cluster_uid: &str,
        keys: impl IntoIterator<Item = &'a RecoveryKey>,
    ) -> Result<Self, PkiError> {
        let known = keys.into_iter().map(epoch_verifier);
        let known: Vec<String> = known.collect::<Result<_, _>>()?;
        Ok(Self::new(cluster_uid, known))
    }

    /// Base64 of each of them.
    pub fn known(&self) -> &[String] {
        &self.known
    }

    /// Whether none is known: then no epoch can be checked.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The known ones, and those that lead back to them over endorsements.
    fn endorsed(&self, endorsements: &[VerifierEndorsement]) -> BTreeSet<String> {
        let mut believed: BTreeSet<String> = self.known.iter().cloned().collect();
        let mut left: Vec<_> = endorsements.iter().take(MOST_READ).collect();
        loop {
            let before = believed.len();
            left.retain(|one| {
                if believed.contains(&one.verifier) {
                    return false;
                }
                if !believed.contains(&one.by) {
                    return true;
                }
                let signed = statement(ENDORSEMENT, [&self.cluster_uid, &one.verifier]);
                if verify(&one.by, &signed, &one.signature) {
                    believed.insert(one.verifier.clone());
                }
                false
            });
            if believed.len() == before {
                return believed;
            }
        }
    }

    /// Whether the record proves an epoch later than `own`: its own, or one of those before it.
    pub fn is_later(&self, stated: &StoreEpoch, own: u64) -> bool {
        let believed = self.endorsed(&stated.endorsements);
        let earlier = stated.earlier.iter().take(MOST_EARLIER);
        let earlier = earlier.map(|one| (one.epoch, &one.signature));
        let mut all = std::iter::once((stated.epoch, &stated.signature)).chain(earlier);
        all.any(|(epoch, signature)| {
            let is_signed = |by: &String| is_epoch_signed(by, &self.cluster_uid, epoch, signature);
            epoch > own && !signature.is_empty() && believed.iter().any(is_signed)
        })
    }

    /// Whether a holder of a recovery key in force has signed that this server has the store of the
    /// record's epoch.
    pub fn is_server(&self, stated: &StoreEpoch, server: &StoreServer) -> bool {
        let believed = self.endorsed(&stated.endorsements);
        self.is_server_of(stated.epoch, server, &believed)
    }

    fn is_server_of(&self, epoch: u64, server: &StoreServer, believed: &BTreeSet<String>) -> bool {
        let epoch = epoch.to_string();
        let parts = [&self.cluster_uid, &epoch, &server.machine, &server.key_hash];
        let signed = statement(SERVER, parts.map(String::as_str));
        believed
            .iter()
            .any(|by| verify(by, &signed, &server.signature))
    }

    /// Whether an epoch later than `own`, the record's or one of those before it, was begun by a
    /// restore of a machine with this name, as a holder of a recovery key has signed.
    pub fn is_restored_as(&self, stated: &StoreEpoch, own: u64, name: &str) -> bool {
        let believed = self.endorsed(&stated.endorsements);
        let earlier = stated.earlier.iter().take(MOST_EARLIER);
        let earlier = earlier.map(|one| (one.epoch, one.restored.as_ref()));
        let mut all = std::iter::once((stated.epoch, stated.restored.as_ref())).chain(earlier);
        all.any(|(epoch, restored)| {
            let later = restored.filter(|one| epoch > own && one.machine == name);
            later.is_some_and(|one| self.is_server_of(epoch, one, &believed))
        })
    }

    /// What a machine knows after it has accepted the state with this record. The first record with
    /// verifiers is believed; from then on a verifier is taken only if a known one endorses it, and
    /// known ones are given up only for others that are.
    pub fn learn(&self, stated: &StoreEpoch) -> LearnedVerifiers {
        let mut named: Vec<String> = Vec::new();
        for one in stated.verifiers.iter().take(MOST_READ) {
            let is_key = BASE64_STANDARD.decode(one).is_ok_and(|key| key.len() == 32);
            if is_key && !named.contains(one) {
                named.push(one.clone());
            }
        }
        let believed = match self.is_empty() {
            true => named.iter().cloned().collect(),
            false => self.endorsed(&stated.endorsements),
        };
        let all = named.len();
        named.retain(|one| believed.contains(one));
        let is_complete = named.len() == all;
        // An earlier version leaves them out.
        let known = match named.is_empty() {
            true => self.clone(),
            false => Self {
                cluster_uid: self.cluster_uid.clone(),
                known: named,
            },
        };
        match is_complete {
            false => LearnedVerifiers::NotEndorsed(known),
            true if known == *self => LearnedVerifiers::Same,
            true => LearnedVerifiers::Changed(known),
        }
    }
}

/// A recovery key that takes the place of another one now.
#[derive(Debug, Clone, Copy)]
pub struct KeyReplacement<'a> {
    /// Fingerprint of the key that is replaced.
    pub replaced: &'a str,
    /// Fingerprint of the key that is to come.
    pub next: &'a str,
}

/// The record of the store's epoch with the verifiers of the recovery keys in force: the leading
/// machine's present one first, then those that it holds of the replacement or of the record.
///
/// The key that is to come is endorsed by the one that it replaces, and no other key by any: a machine
/// may hold keys of replacements that were broken off, and a key that was replaced is never endorsed
/// by its successor. An epoch without a signature, which an earlier version has begun, is signed with
/// the key that its proof is sealed with.
///
/// # Errors
/// As [`epoch_verifier`].
pub fn with_verifiers(
    record: &StoreEpoch,
    cluster_uid: &str,
    keys: &RecoveryKeys,
    replacement: Option<KeyReplacement<'_>>,
) -> Result<StoreEpoch, PkiError> {
    let held = keys.all().map(|key| Ok((epoch_verifier(key)?, key)));
    let held: Vec<(String, &RecoveryKey)> = held.collect::<Result<_, PkiError>>()?;
    let with_fingerprint = |wanted: &str| held.iter().find(|(_, key)| key.fingerprint() == wanted);
    // A record from a backup may name a key that nobody holds: then it is the present one.
    let replaced =
        replacement.and_then(|keys| with_fingerprint(keys.replaced).or_else(|| held.first()));
    let next = replacement.and_then(|keys| with_fingerprint(keys.next));
    let mut changed = record.clone();
    changed.schema = record.schema.max(1);
    if let (Some((old, endorser)), Some((new, _))) = (replaced, next)
        && old != new
        && !record.endorsements.iter().any(|one| one.verifier == *new)
    {
        let endorsement = endorse_verifier(endorser, cluster_uid, new)?;
        changed.endorsements.insert(0, endorsement);
    }
    changed.endorsements.truncate(MOST_ENDORSEMENTS);
    let (epoch, signature) = (record.epoch, &record.signature);
    let is_signed = |(by, _): &(String, _)| is_epoch_signed(by, cluster_uid, epoch, signature);
    if epoch > 0
        && !held.iter().any(is_signed)
        && let Some((_, key)) = held
            .iter()
            .find(|(_, key)| is_epoch_sealed(key, cluster_uid, epoch, &record.proof))
    {
        changed.signature = sign_epoch(key, cluster_uid, epoch)?;
    }
    let in_force = held.iter().enumerate();
    let takes_part = |one: &String| [replaced, next].iter().flatten().any(|(key, _)| key == one);
    let in_force = in_force
        .filter(|(at, (one, _))| *at == 0 || takes_part(one) || record.verifiers.contains(one));
    changed.verifiers = in_force.map(|(_, (one, _))| one.clone()).collect();
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use kat_types::api::EarlierEpoch;

    const UID: &str = "3f0c";

    fn keys<const N: usize>() -> [RecoveryKey; N] {
        std::array::from_fn(|_| RecoveryKey::generate().unwrap())
    }

    fn known(keys: &[&RecoveryKey]) -> EpochVerifiers {
        EpochVerifiers::of_keys(UID, keys.iter().copied()).unwrap()
    }

    fn stated(key: &RecoveryKey, epoch: u64) -> StoreEpoch {
        StoreEpoch {
            schema: 1,
            epoch,
            proof: seal_epoch(key, UID, epoch).unwrap(),
            signature: sign_epoch(key, UID, epoch).unwrap(),
            ..StoreEpoch::default()
        }
    }

    /// What a leader with these keys writes, the present one first. No key is being replaced.
    fn published(record: &StoreEpoch, keys: &[&RecoveryKey]) -> StoreEpoch {
        replacing(record, keys, None)
    }

    /// As [`published`], while the second key of `replacement` takes the place of the first.
    fn replacing(
        record: &StoreEpoch,
        keys: &[&RecoveryKey],
        replacement: Option<[&RecoveryKey; 2]>,
    ) -> StoreEpoch {
        let others = keys[1..].iter().map(|key| (*key).clone());
        let keys = RecoveryKeys::new(keys[0].clone(), others);
        let fingerprints = replacement.map(|pair| pair.map(RecoveryKey::fingerprint));
        let replacement = fingerprints
            .as_ref()
            .map(|[replaced, next]| KeyReplacement { replaced, next });
        let changed = with_verifiers(record, UID, &keys, replacement).unwrap();
        let twice = with_verifiers(&changed, UID, &keys, replacement).unwrap();
        assert_eq!(twice, changed);
        changed
    }

    fn learned(known: &EpochVerifiers, record: &StoreEpoch) -> EpochVerifiers {
        match known.learn(record) {
            LearnedVerifiers::Same => known.clone(),
            LearnedVerifiers::Changed(known) | LearnedVerifiers::NotEndorsed(known) => known,
        }
    }

    #[test]
    fn a_signature_counts_for_its_key_cluster_epoch_and_purpose_alone() {
        let [key, other] = keys();
        let signature = sign_epoch(&key, UID, 7).unwrap();
        let verifier = epoch_verifier(&key).unwrap();
        assert!(is_epoch_signed(&verifier, UID, 7, &signature));
        assert!(!is_epoch_signed(&verifier, UID, 8, &signature));
        assert!(!is_epoch_signed(&verifier, "9a1b", 7, &signature));
        let others = epoch_verifier(&other).unwrap();
        assert!(!is_epoch_signed(&others, UID, 7, &signature));
        // A statement of another purpose with the same parts.
        let endorsed = endorse_verifier(&key, UID, "7").unwrap();
        assert!(!is_epoch_signed(&verifier, UID, 7, &endorsed.signature));
        for garbage in ["", "AAAA", "!", &"A".repeat(88), &others, &"=".repeat(4000)] {
            assert!(!is_epoch_signed(&verifier, UID, 7, garbage));
            assert!(!is_epoch_signed(garbage, UID, 7, &signature));
        }
    }

    /// Other versions and machines derive the same key.
    #[test]
    fn the_derived_key_of_a_recovery_key_never_changes() {
        let key = RecoveryKey::derived_from(b"a fixed authority");
        let verifier = epoch_verifier(&key).unwrap();
        assert_eq!(verifier, "rTU8LZeGv6OP32Ww+fP22lERgd0c9cvgac4YGdOfqo4=");
    }

    #[test]
    fn an_epoch_is_later_by_a_known_verifier_over_endorsements_or_by_an_earlier_epoch() {
        let [first, second, third, stranger] = keys();
        let knows_first = known(&[&first]);
        let direct = stated(&first, 5);
        assert!(knows_first.is_later(&direct, 4) && !knows_first.is_later(&direct, 5));
        assert!(!known(&[&stranger]).is_later(&direct, 4));
        assert!(!known(&[]).is_later(&direct, 4));
        let other = EpochVerifiers::new("9a1b", knows_first.known().to_vec());
        assert!(!other.is_later(&direct, 4), "another cluster");
        let raised = StoreEpoch {
            epoch: 6,
            ..direct.clone()
        };
        assert!(!knows_first.is_later(&raised, 4));

        // Two replacements, one after the other.
        let record = published(&direct, &[&first]);
        let record = replacing(&record, &[&first, &second], Some([&first, &second]));
        let record = published(&record, &[&second]);
        let record = replacing(&record, &[&second, &third], Some([&second, &third]));
        let record = published(&record, &[&third]);
        assert_eq!(record.endorsements.len(), 2);
        let restored = StoreEpoch {
            endorsements: record.endorsements.clone(),
            ..stated(&third, 9)
        };
        assert!(knows_first.is_later(&restored, 5) && known(&[&second]).is_later(&restored, 5));
        assert!(!known(&[&stranger]).is_later(&restored, 5));
        // Without its link, nothing leads to the key.
        let mut broken = restored.clone();
        broken.endorsements.remove(0);
        assert!(!knows_first.is_later(&broken, 5));
        // A stranger's endorsement under a known name.
        let forged = VerifierEndorsement {
            by: epoch_verifier(&first).unwrap(),
            ..endorse_verifier(&stranger, UID, &epoch_verifier(&stranger).unwrap()).unwrap()
        };
        let hostile = StoreEpoch {
            endorsements: vec![forged],
            ..stated(&stranger, 9)
        };
        assert!(!knows_first.is_later(&hostile, 5));

        let earlier = EarlierEpoch {
            epoch: 5,
            signature: direct.signature,
            ..EarlierEpoch::default()
        };
        let over_earlier = StoreEpoch {
            earlier: vec![earlier],
            ..stated(&stranger, 9)
        };
        assert!(knows_first.is_later(&over_earlier, 4));
        assert!(!knows_first.is_later(&over_earlier, 5));
    }

    #[test]
    fn a_restore_under_a_name_counts_in_a_later_epoch_and_with_a_signature_alone() {
        let [first, second, stranger] = keys();
        let restored = |key, epoch| sign_server(key, UID, epoch, ("n1", "ab")).unwrap();
        let record = StoreEpoch {
            restored: Some(restored(&first, 7)),
            ..stated(&first, 7)
        };
        let knows = known(&[&first]);
        assert!(knows.is_restored_as(&record, 6, "n1"));
        assert!(!knows.is_restored_as(&record, 7, "n1"));
        assert!(!knows.is_restored_as(&record, 6, "n2"));
        assert!(!known(&[&stranger]).is_restored_as(&record, 6, "n1"));
        // The statement of another epoch, and one of a stranger.
        for hostile in [restored(&first, 6), restored(&stranger, 7)] {
            let record = StoreEpoch {
                restored: Some(hostile),
                ..record.clone()
            };
            assert!(!knows.is_restored_as(&record, 5, "n1"));
        }
        // The store was created anew once more since, and the recovery key replaced.
        let endorsed = endorse_verifier(&first, UID, &epoch_verifier(&second).unwrap()).unwrap();
        let earlier = EarlierEpoch {
            epoch: 7,
            restored: Some(restored(&second, 7)),
            ..EarlierEpoch::default()
        };
        let later = StoreEpoch {
            earlier: vec![earlier],
            endorsements: vec![endorsed],
            ..stated(&second, 9)
        };
        assert!(knows.is_restored_as(&later, 6, "n1"));
        assert!(!knows.is_restored_as(&later, 7, "n1"));
    }

    #[test]
    fn known_verifiers_are_replaced_by_endorsed_ones_alone() {
        let [first, second, stranger] = keys();
        let nothing = known(&[]);
        let record = published(&StoreEpoch::default(), &[&first]);
        assert_eq!(
            (record.schema, record.epoch, &*record.signature),
            (1, 0, "")
        );
        let knows = learned(&nothing, &record);
        assert_eq!(knows, known(&[&first]));
        assert_eq!(knows.learn(&record), LearnedVerifiers::Same);
        // An earlier version leaves everything out.
        assert_eq!(knows.learn(&StoreEpoch::default()), LearnedVerifiers::Same);
        // A member's key alone does not replace the verifier, nor add one beside it.
        let hostile = published(&StoreEpoch::default(), &[&stranger]);
        assert_eq!(
            knows.learn(&hostile),
            LearnedVerifiers::NotEndorsed(knows.clone())
        );
        let mut beside = hostile;
        beside.verifiers.extend(record.verifiers.clone());
        assert_eq!(
            knows.learn(&beside),
            LearnedVerifiers::NotEndorsed(knows.clone())
        );

        let both = replacing(&record, &[&first, &second], Some([&first, &second]));
        let knows_both = learned(&knows, &both);
        assert_eq!(knows_both, known(&[&first, &second]));
        let last = published(&both, &[&second]);
        assert_eq!(learned(&knows_both, &last), known(&[&second]));
        // As after an absence from the beginning to the end of the replacement.
        assert_eq!(learned(&knows, &last), known(&[&second]));
        // The replaced key takes nothing back.
        let knows = known(&[&second]);
        assert_eq!(
            knows.learn(&record),
            LearnedVerifiers::NotEndorsed(knows.clone())
        );
    }

    /// A leader that has not forgotten the old key yet, after one that has; and one with an old disk.
    #[test]
    fn a_replaced_key_is_never_endorsed_by_its_successor() {
        let [first, second, third] = keys();
        let record = published(&StoreEpoch::default(), &[&first]);
        let record = replacing(&record, &[&first, &second], Some([&first, &second]));
        let record = replacing(&record, &[&second, &first], Some([&first, &second]));
        let last = published(&record, &[&second]);
        assert_eq!(published(&last, &[&second, &first]), last);
        let stale = published(&last, &[&first]);
        assert_eq!(stale.endorsements, last.endorsements);
        let again = published(&stale, &[&second, &first]);
        assert_eq!(again.endorsements, last.endorsements);
        let knows = known(&[&second]);
        for record in [&last, &stale, &again] {
            assert!(!knows.is_later(
                &StoreEpoch {
                    endorsements: record.endorsements.clone(),
                    ..stated(&first, 9)
                },
                0
            ));
            assert_eq!(learned(&knows, record), knows);
        }
        let next = replacing(&last, &[&second, &third], Some([&second, &third]));
        assert_eq!(learned(&knows, &next), known(&[&second, &third]));
    }

    /// An upgrade in the middle of a replacement, under leaders that hold different keys.
    #[test]
    fn a_key_is_endorsed_only_while_it_replaces_another_one() {
        let [first, second, third] = keys();
        let record = published(&StoreEpoch::default(), &[&second]);
        for stale in [
            published(&record, &[&second, &first]),
            replacing(&record, &[&second, &first], Some([&first, &second])),
            replacing(&record, &[&first, &second], Some([&first, &second])),
        ] {
            assert!(
                !stale
                    .endorsements
                    .iter()
                    .any(|one| one.by == epoch_verifier(&second).unwrap()),
                "{stale:?}"
            );
        }
        // The key of a replacement that was broken off is neither endorsed nor in force.
        let record = published(&StoreEpoch::default(), &[&first]);
        let record = replacing(&record, &[&first, &third, &second], Some([&first, &third]));
        assert_eq!(record.endorsements.len(), 1);
        assert_eq!(
            learned(&known(&[&first]), &record),
            known(&[&first, &third])
        );
        // The first record of this version is written in the middle: the old key endorses the new one.
        let record = replacing(
            &StoreEpoch::default(),
            &[&second, &first],
            Some([&first, &second]),
        );
        assert_eq!(
            learned(&known(&[&first]), &record),
            known(&[&second, &first])
        );
    }

    #[test]
    fn endorsements_of_the_last_eight_replacements_are_kept() {
        let all: [RecoveryKey; 12] = keys();
        let mut record = published(&StoreEpoch::default(), &[&all[0]]);
        for pair in all.windows(2) {
            record = replacing(&record, &[&pair[0], &pair[1]], Some([&pair[0], &pair[1]]));
            record = published(&record, &[&pair[1]]);
        }
        assert_eq!(record.endorsements.len(), 8);
        let present = known(&[&all[11]]);
        assert_eq!(learned(&known(&[&all[3]]), &record), present);
        assert_eq!(learned(&known(&[&all[2]]), &record), known(&[&all[2]]));
    }

    #[test]
    fn an_epoch_of_an_earlier_version_is_signed_only_with_the_key_that_proved_it() {
        let [key, other] = keys();
        let unsigned = StoreEpoch {
            signature: String::new(),
            ..stated(&key, 7)
        };
        let signed = published(&unsigned, &[&other, &key]);
        assert!(known(&[&key]).is_later(&signed, 6) && !known(&[&other]).is_later(&signed, 6));
        // Somebody wrote a higher epoch without the recovery key.
        let raised = StoreEpoch {
            epoch: 8,
            ..unsigned
        };
        assert_eq!(published(&raised, &[&key]).signature, "");
        let garbage = StoreEpoch {
            signature: "AAAA".to_owned(),
            ..signed
        };
        assert!(known(&[&key]).is_later(&published(&garbage, &[&key]), 6));
    }

    #[test]
    fn a_server_is_known_by_its_own_key_at_this_epoch_alone() {
        let [key, other] = keys();
        let record = stated(&key, 7);
        let hash = "ab".repeat(32);
        let server = sign_server(&key, UID, 7, ("n1", &hash)).unwrap();
        let knows = known(&[&key]);
        assert!(knows.is_server(&record, &server));
        assert!(!known(&[&other]).is_server(&record, &server));
        let later = StoreEpoch {
            epoch: 8,
            ..record.clone()
        };
        assert!(!knows.is_server(&later, &server));
        for changed in [
            StoreServer {
                machine: "n2".to_owned(),
                ..server.clone()
            },
            StoreServer {
                key_hash: "cd".repeat(32),
                ..server.clone()
            },
            StoreServer {
                signature: record.signature.clone(),
                ..server.clone()
            },
        ] {
            assert!(!knows.is_server(&record, &changed));
        }
    }

    proptest! {
        #[test]
        fn any_record_is_read_or_refused(texts in prop::collection::vec(".{0,60}", 6), epoch: u64) {
            let key = RecoveryKey::derived_from(b"x");
            let endorsement = VerifierEndorsement {
                verifier: texts[0].clone(),
                by: epoch_verifier(&key).unwrap(),
                signature: texts[1].clone(),
            };
            let record = StoreEpoch {
                epoch,
                signature: texts[2].clone(),
                verifiers: vec![texts[3].clone(), texts[4].clone()],
                endorsements: vec![endorsement; 20],
                ..StoreEpoch::default()
            };
            let knows = known(&[&key]);
            prop_assert!(!knows.is_later(&record, 0));
            prop_assert_eq!(learned(&knows, &record), knows);
        }
    }
}

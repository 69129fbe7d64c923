//! The files of the authorities while they are replaced.

use std::{collections::BTreeMap, net::Ipv4Addr};

use jiff::Timestamp;

use super::{KeysError, LEAVES, MachineIdentity, MachineKeys, authority_of};
use kat_pki as pki;
use kat_pki::{
    Authority, AuthorityEdition, AuthorityKind, CertificateKeyPair, LeafKind, PkiError, replacement,
};
use kat_types::{
    api::{ApiTime, AuthorityKeys, AuthorityReport, MembershipAnswer},
    store::authorities::{ClusterAuthority, MemberSignature, ReplaceableKey, RotationPhase},
};

impl MachineKeys {
    /// SHA-256 of the certificate of an edition; empty if there is none.
    pub(crate) fn edition_hash(
        &self,
        kind: AuthorityKind,
        edition: AuthorityEdition,
    ) -> Result<String, KeysError> {
        let pem = replacement::edition_certificate(&self.folder, kind, edition)?;
        Ok(pem.map_or_else(|| Ok(String::new()), |pem| pki::fingerprint_of(&pem))?)
    }

    /// SHA-256 of the certificates of the present authorities.
    pub(crate) fn authority_hashes(&self) -> Result<BTreeMap<AuthorityKind, String>, KeysError> {
        let current = AuthorityEdition::Current;
        let hash = |kind| Ok((kind, self.edition_hash(kind, current)?));
        AuthorityKind::ALL.into_iter().map(hash).collect()
    }

    /// [`Self::authority_hashes`] and the fingerprint of the recovery key.
    pub(crate) fn present_keys(&self) -> Result<BTreeMap<ReplaceableKey, String>, KeysError> {
        let hashes = self.authority_hashes()?.into_iter();
        let mut keys: BTreeMap<ReplaceableKey, String> =
            hashes.map(|(kind, hash)| (kind.into(), hash)).collect();
        let recovery = self.recovery_key()?.fingerprint();
        keys.insert(ReplaceableKey::Recovery, recovery);
        Ok(keys)
    }

    /// On a machine that holds no keys of authorities: makes the certificates of the cluster's
    /// authority that it trusts what the cluster says. Returns whether there was a change.
    pub(crate) fn follow_cluster_authority(
        &self,
        published: &ClusterAuthority,
        cluster_uid: &str,
    ) -> Result<bool, KeysError> {
        let kind = AuthorityKind::Cluster;
        let current = self.edition_hash(kind, AuthorityEdition::Current)?;
        let Some(replacement) = &published.replacement else {
            // Without its present authority a machine trusts what it has until it gets it.
            return match published.current == current {
                true => Ok(replacement::forget_others(&self.folder, kind)?),
                false => Ok(false),
            };
        };
        let next = &replacement.next;
        let mut changed = false;
        if current != *next && self.edition_hash(kind, AuthorityEdition::Next)? != *next {
            let certificate = &replacement.certificate;
            let uid = pki::cluster_uid_of_authority(certificate)?;
            if uid != cluster_uid || pki::fingerprint_of(certificate)? != *next {
                let message = format!("of {}: it is not the one that is announced", kind.name());
                return Err(PkiError::Certificate(message).into());
            }
            replacement::store_next_certificate(&self.folder, kind, certificate)?;
            changed = true;
        }
        let retired = replacement.phase >= RotationPhase::Retire && current == *next;
        if retired && !self.edition_hash(kind, AuthorityEdition::Old)?.is_empty() {
            replacement::forget_old_certificate(&self.folder, kind)?;
            changed = true;
        }
        Ok(changed)
    }

    /// Whether this machine trusts an authority of the cluster that is to sign its certificate.
    pub(crate) fn holds_next(&self) -> Result<bool, KeysError> {
        let next = self.edition_hash(AuthorityKind::Cluster, AuthorityEdition::Next)?;
        Ok(!next.is_empty())
    }

    /// Whether the present authority of the cluster has this hash.
    pub(crate) fn is_present_authority(&self, hash: &str) -> Result<bool, KeysError> {
        Ok(self.edition_hash(AuthorityKind::Cluster, AuthorityEdition::Current)? == hash)
    }

    /// Trusts another authority of the cluster, because a person said so, on a machine that holds no
    /// keys of authorities.
    pub(crate) fn trust_next(&self, certificate_pem: &str) -> Result<(), KeysError> {
        let kind = AuthorityKind::Cluster;
        Ok(replacement::store_next_certificate(
            &self.folder,
            kind,
            certificate_pem,
        )?)
    }

    /// This machine's signature that the second authority replaces the first, by their hashes.
    pub(crate) fn sign_succession(
        &self,
        cluster_uid: &str,
        authorities: (&str, &str),
    ) -> Result<MemberSignature, KeysError> {
        let key = self.key("node")?;
        Ok(pki::sign_succession(&key, cluster_uid, authorities)?)
    }

    /// Trusts the authority (PEM) that is to replace the present one, as the leader said when this
    /// machine joined; nothing where there is none.
    pub(crate) fn trust_announced(
        &self,
        certificate_pem: &str,
        cluster_uid: &str,
    ) -> Result<(), KeysError> {
        if certificate_pem.is_empty()
            || self.is_present_authority(&pki::fingerprint_of(certificate_pem)?)?
        {
            return Ok(());
        }
        if pki::cluster_uid_of_authority(certificate_pem)? != cluster_uid {
            let message = "the announced authority is that of another cluster".to_owned();
            return Err(PkiError::Certificate(message).into());
        }
        self.trust_next(certificate_pem)
    }

    /// Whether this machine, which holds no keys of authorities, is to have a certificate of another
    /// authority, which it trusts already.
    pub(crate) fn is_to_change_issuer(
        &self,
        published: &ClusterAuthority,
    ) -> Result<bool, KeysError> {
        let kind = AuthorityKind::Cluster;
        let (issuer, current) = (published.issuer(), AuthorityEdition::Current);
        if issuer.is_empty() || self.edition_hash(kind, current)? == issuer {
            return Ok(false);
        }
        Ok(self.edition_hash(kind, AuthorityEdition::Next)? == issuer)
    }

    /// The trusted certificates of an authority: more than one while it is being replaced.
    pub(crate) fn trusted_certificates(&self, kind: AuthorityKind) -> Result<String, KeysError> {
        Ok(replacement::trusted_certificates(&self.folder, kind)?)
    }

    /// Makes the authority that will replace the present one, which endorses it; returns its
    /// certificate.
    pub(crate) fn make_next(
        &self,
        kind: AuthorityKind,
        cluster_uid: &str,
        now: Timestamp,
    ) -> Result<String, KeysError> {
        let recovery = self.recovery_keys()?;
        let present = Authority::load(&self.folder, kind, &recovery)?;
        let made = present.generate_successor(cluster_uid, now)?;
        replacement::store_next(&self.folder, &made, recovery.current())?;
        Ok(made.certificate_pem().to_owned())
    }

    /// Stores the authority with this hash that the leader handed over: as the present one if
    /// `edition` is that, else as the next one.
    pub(crate) fn take_edition(
        &self,
        kind: AuthorityKind,
        edition: AuthorityEdition,
        hash: &str,
        given: &MembershipAnswer,
    ) -> Result<(), KeysError> {
        let name = kind.name();
        let both = [given.authorities.get(name), given.next.get(name)];
        let is_meant = |keys: &&AuthorityKeys| {
            pki::fingerprint_of(&keys.certificate).is_ok_and(|found| found == hash)
        };
        let keys = both.into_iter().flatten().find(is_meant).ok_or_else(|| {
            PkiError::Certificate(format!("of {name}: the leader does not have {hash}"))
        })?;
        let authority = Authority::from_pem(kind, &keys.certificate, &keys.key)?;
        // The leader's recovery key may be another one just now, which does not open here.
        let recovery = self.recovery_key()?;
        match edition {
            AuthorityEdition::Next => {
                replacement::store_next(&self.folder, &authority, &recovery)?;
            }
            _ => authority.store(&self.folder, &recovery)?,
        }
        Ok(())
    }

    /// Completes promotions that were interrupted, before any authority is loaded.
    pub(super) fn complete_promotions(&self) -> Result<(), KeysError> {
        if pki::complete_recovery_key_promotion(&self.folder)? {
            tracing::info!("the change to another recovery key is complete on this machine");
        }
        for kind in AuthorityKind::ALL {
            let waits = !self.edition_hash(kind, AuthorityEdition::Next)?.is_empty()
                && !self.edition_hash(kind, AuthorityEdition::Old)?.is_empty();
            if waits {
                replacement::complete_promotion(&self.folder, kind, &self.recovery_keys()?)?;
            }
        }
        Ok(())
    }

    /// Issues by the next authority from now on, and trusts both.
    pub(crate) fn promote_next(&self, kind: AuthorityKind) -> Result<(), KeysError> {
        replacement::promote_next(&self.folder, kind, &self.recovery_keys()?)?;
        Ok(())
    }

    /// Ends the trust in the old authority.
    pub(crate) fn retire_old(&self, kind: AuthorityKind) -> Result<(), KeysError> {
        replacement::retire_old(&self.folder, kind)?;
        Ok(())
    }

    /// Removes every edition but the present one; true if there was another.
    pub(crate) fn forget_editions(&self, kind: AuthorityKind) -> Result<bool, KeysError> {
        Ok(replacement::forget_others(&self.folder, kind)?)
    }

    /// A certificate to try on this machine's etcd: by an edition of an authority, as a client of
    /// etcd's port for clients or peers. It is written nowhere.
    pub(crate) fn trial(
        &self,
        kind: AuthorityKind,
        edition: AuthorityEdition,
        identity: &MachineIdentity,
        now: Timestamp,
    ) -> Result<CertificateKeyPair, KeysError> {
        let recovery = self.recovery_keys()?;
        let authority = Authority::load_edition(&self.folder, kind, edition, &recovery)?;
        let name = identity.node.clone();
        let leaf = match kind {
            AuthorityKind::EtcdPeers => LeafKind::EtcdPeer {
                name,
                // etcd compares them with the address that a peer comes from.
                addresses: vec![
                    identity.overlay_address().into(),
                    Ipv4Addr::LOCALHOST.into(),
                ],
            },
            AuthorityKind::Cluster | AuthorityKind::EtcdClients => LeafKind::Leader { name },
        };
        Ok(authority.issue(&leaf, now)?)
    }

    /// How this machine uses an authority, as far as its files say: what its etcd accepts has to be
    /// tried.
    pub(crate) fn authority_report(
        &self,
        kind: AuthorityKind,
    ) -> Result<AuthorityReport, KeysError> {
        let authority = self.certificate(kind.name())?;
        let mut issued = true;
        let mut expires: Option<Timestamp> = None;
        for name in LEAVES {
            let Ok(pem) = self.certificate(name) else {
                continue;
            };
            if authority_of(name) != kind {
                continue;
            }
            issued &= pki::is_issued_by(&pem, &authority)?;
            // A certificate of the API lives two days only: it says nothing about the others.
            if name != "api" {
                let end = pki::validity_of(&pem)?.not_after;
                expires = Some(expires.map_or(end, |known| known.min(end)));
            }
        }
        Ok(AuthorityReport {
            name: kind.name().to_owned(),
            // With certificates of both, the old one is in use.
            issues: match issued {
                true => pki::fingerprint_of(&authority)?,
                false => self.edition_hash(kind, AuthorityEdition::Old)?,
            },
            holds_next: self.edition_hash(kind, AuthorityEdition::Next)?,
            accepted: Vec::new(),
            refused: Vec::new(),
            expires: expires.map_or(ApiTime::UNKNOWN, ApiTime::from),
            successor_signature: None,
        })
    }
}

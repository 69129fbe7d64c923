//! This machine's keys and certificates: made at init, renewed before they run out.
//!
//! A machine that holds etcd has the authorities and issues its own leaves, before etcd starts
//! (docs/internals/identity-and-access.md).

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{cluster_cache::ClusterCache, identity::MachineIdentity};
use crate::service::paths::PKI;
use kat_host::files::{self, FileAccess, FileError};
use kat_pki as pki;
use kat_pki::{
    ApiNames, Authority, AuthorityEdition, AuthorityKind, LeafKind, PkiError, RecoveryKeys,
    clear_file, recovery_key::RecoveryKey, replacement,
};
use kat_types::api::{AuthorityKeys, Certificates, MemberKeys, MembershipAnswer};

/// etcd's own copies of its keys and certificates; etcd's user can't read the machine's other keys.
pub(crate) const ETCD_PKI: &str = "/var/lib/kat/etcd-pki";
/// Largest certificate or key file in bytes.
const LIMIT: u64 = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum KeysError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    File(#[from] FileError),
}

fn no_key(error: pki::recovery_key::SealError) -> PkiError {
    PkiError::Key(error.to_string())
}

/// File names of a machine's leaf certificates and keys, without the suffix.
const LEAVES: [&str; 7] = [
    "node",
    "api",
    "admin",
    "leader",
    "leader-etcd",
    "etcd-server",
    "etcd-peer",
];

/// Leaf of a machine without etcd as a client of etcd, in a cluster whose leader has no state
/// stream.
const ETCD_CLIENT: &str = "node-etcd";

/// A machine that becomes a member takes the authorities while the renewal of the certificates that
/// it had before may write its own.
static WRITING: Mutex<()> = Mutex::new(());

/// The folder with a machine's keys and certificates.
#[derive(Debug, Clone)]
pub(crate) struct MachineKeys {
    folder: PathBuf,
    etcd_folder: PathBuf,
    etcd_group: Option<u32>,
}

impl MachineKeys {
    /// Uses the real folders; `etcd_group` is the group of etcd's user.
    pub(crate) fn new(etcd_group: Option<u32>) -> Self {
        Self {
            folder: PKI.into(),
            etcd_folder: ETCD_PKI.into(),
            etcd_group,
        }
    }

    /// Uses folders below this one.
    #[cfg(test)]
    pub(crate) fn below(folder: &std::path::Path) -> Self {
        Self {
            folder: folder.join("pki"),
            etcd_folder: folder.join("etcd-pki"),
            etcd_group: Some(0),
        }
    }

    /// Makes the recovery key and the three authorities unless they exist (RFC001-KAT 4.1.1).
    pub(crate) fn ensure_authorities(
        &self,
        cluster_uid: &str,
        now: Timestamp,
    ) -> Result<RecoveryKey, KeysError> {
        let recovery = match pki::load_recovery_key(&self.folder) {
            Err(error) if error.is_not_found() => {
                let made = RecoveryKey::generate().map_err(no_key)?;
                pki::store_recovery_key(&self.folder, &made)?;
                made
            }
            known => known?,
        };
        for kind in AuthorityKind::ALL {
            let sealed = AuthorityEdition::Current.sealed_file(kind);
            if !self.folder.join(sealed).exists() {
                Authority::generate(kind, cluster_uid, now)?.store(&self.folder, &recovery)?;
            }
        }
        Ok(recovery)
    }

    /// The recovery key, with which the authorities' keys are sealed.
    ///
    /// # Errors
    /// The file is missing or its content is not a recovery key.
    pub(crate) fn recovery_key(&self) -> Result<RecoveryKey, KeysError> {
        Ok(pki::load_recovery_key(&self.folder)?)
    }

    /// The recovery keys that open: more than one while the key is being replaced.
    ///
    /// # Errors
    /// As [`Self::recovery_key`].
    pub(crate) fn recovery_keys(&self) -> Result<RecoveryKeys, KeysError> {
        Ok(pki::load_recovery_keys(&self.folder)?)
    }

    /// Whether every leaf has its certificate and its key.
    pub(crate) fn has_all_leaves(&self) -> bool {
        let has = |name: &str, ending: &str| self.folder.join(format!("{name}.{ending}")).exists();
        LEAVES
            .iter()
            .all(|name| has(name, "crt") && has(name, "key"))
    }

    /// The authorities with their keys, by name, for a backup.
    pub(crate) fn authorities(&self) -> Result<BTreeMap<String, AuthorityKeys>, KeysError> {
        let recovery = self.recovery_keys()?;
        let mut found = BTreeMap::new();
        for kind in AuthorityKind::ALL {
            let authority = Authority::load(&self.folder, kind, &recovery)?;
            let keys = AuthorityKeys {
                certificate: authority.certificate_pem().to_owned(),
                key: authority.key_pem(),
            };
            found.insert(kind.name().to_owned(), keys);
        }
        Ok(found)
    }

    /// Seals the authorities' keys that an earlier version left in clear; returns whether there
    /// were any. The file in clear is removed only after the sealed file is completely on the disk.
    pub(crate) fn seal_authorities(&self) -> Result<bool, KeysError> {
        let in_clear = |kind: &AuthorityKind| self.folder.join(clear_file(*kind)).exists();
        let kinds: Vec<_> = AuthorityKind::ALL.into_iter().filter(in_clear).collect();
        if kinds.is_empty() {
            return Ok(false);
        }
        let recovery = match pki::load_recovery_key(&self.folder) {
            Err(error) if error.is_not_found() => {
                let cluster = Authority::load_clear(&self.folder, AuthorityKind::Cluster)?;
                let derived = cluster.derived_recovery_key();
                pki::store_recovery_key(&self.folder, &derived)?;
                derived
            }
            known => known?,
        };
        for kind in kinds {
            Authority::load_clear(&self.folder, kind)?.store(&self.folder, &recovery)?;
        }
        Ok(true)
    }

    /// Stores the authorities that the leader handed over. The cluster's own authority, by which
    /// this machine knows the leader, must be the one that it already trusts.
    ///
    /// # Errors
    /// A key does not belong to its certificate, or an authority differs from the trusted one.
    pub(crate) fn store_authorities(&self, given: &MembershipAnswer) -> Result<(), KeysError> {
        let _writing = WRITING.lock();
        let mut authorities = Vec::new();
        for kind in AuthorityKind::ALL {
            let name = kind.name();
            let keys = given.authorities.get(name).ok_or_else(|| {
                PkiError::Certificate(format!("of {name}: the leader did not send it"))
            })?;
            let known = match kind {
                AuthorityKind::Cluster => self.trusted_certificates(kind).ok(),
                AuthorityKind::EtcdClients | AuthorityKind::EtcdPeers => None,
            };
            if known.is_some_and(|known| !known.contains(keys.certificate.trim())) {
                let message = format!("of {name}: the leader sent another than is known here");
                return Err(PkiError::Certificate(message).into());
            }
            authorities.push(Authority::from_pem(kind, &keys.certificate, &keys.key)?);
        }
        let recovery = match (given.recovery_key.as_str(), authorities.first()) {
            ("", Some(cluster)) => cluster.derived_recovery_key(),
            (text, _) => RecoveryKey::parse(text).map_err(no_key)?,
        };
        let others = given.other_recovery_keys.iter();
        let others: Vec<_> = others
            .map(|text| RecoveryKey::parse(text).map_err(no_key))
            .collect::<Result<_, _>>()?;
        let keys = RecoveryKeys::new(recovery.clone(), others);
        pki::store_recovery_keys(&self.folder, &keys)?;
        for authority in authorities {
            authority.store(&self.folder, &recovery)?;
            replacement::forget_others(&self.folder, authority.kind())?;
        }
        for (name, keys) in &given.next {
            if let Some(kind) = AuthorityKind::from_name(name) {
                let next = Authority::from_pem(kind, &keys.certificate, &keys.key)?;
                replacement::store_next(&self.folder, &next, &recovery)?;
            }
        }
        Ok(())
    }

    /// Removes the authorities' keys and the leaves that only a machine with etcd has.
    pub(crate) fn forget_authorities(&self) -> Result<(), KeysError> {
        for kind in AuthorityKind::ALL {
            files::remove(&self.folder.join(clear_file(kind)))?;
            for edition in AuthorityEdition::ALL {
                files::remove(&self.folder.join(edition.sealed_file(kind)))?;
            }
            // A machine without the store trusts the cluster's own authorities, too.
            if kind != AuthorityKind::Cluster {
                replacement::forget_others(&self.folder, kind)?;
            }
        }
        pki::remove_recovery_keys(&self.folder)?;
        let peers = AuthorityKind::EtcdPeers.name();
        files::remove(&self.folder.join(format!("{peers}.crt")))?;
        for name in LEAVES {
            if name != "node" {
                for ending in ["crt", "key"] {
                    files::remove(&self.folder.join(format!("{name}.{ending}")))?;
                }
            }
        }
        Ok(())
    }

    /// A certificate request for a machine that holds no authority; makes the machine's key if it
    /// is missing. All certificates of the machine use this one key.
    pub(crate) fn machine_request(&self, node: &str) -> Result<String, KeysError> {
        let key_pem = self.key("node")?;
        Ok(pki::create_request_for_key(
            &format!("node:{node}"),
            &key_pem,
        )?)
    }

    /// Like [`Self::machine_request`], with the machine's join statement signed into the request.
    pub(crate) fn joining_request(&self, node: &str, statement: &str) -> Result<String, KeysError> {
        let (name, key_pem) = (format!("node:{node}"), self.key("node")?);
        Ok(pki::create_request_stating(&name, &key_pem, statement)?)
    }

    /// Reads a key; makes it if it is missing.
    fn key(&self, name: &str) -> Result<String, KeysError> {
        let path = self.folder.join(format!("{name}.key"));
        match files::read_text(&path, LIMIT) {
            Err(error) if error.is_not_found() => {
                let made = pki::create_key()?;
                files::ensure_folder(&self.folder, FileAccess::mode(0o700))?;
                pki::write_secret(&path, made.as_bytes())?;
                Ok(made)
            }
            known => Ok(known?),
        }
    }

    /// Writes the machine's identity key, `node.key`.
    pub(crate) fn store_node_key(&self, pem: &str) -> Result<(), KeysError> {
        Ok(pki::write_secret(
            &self.folder.join("node.key"),
            pem.as_bytes(),
        )?)
    }

    /// The key of this machine's certificate of the API; empty until an agent of this version has
    /// run on the machine.
    pub(crate) fn api_key(&self) -> Result<String, KeysError> {
        match files::read_text(&self.folder.join("api.key"), LIMIT) {
            Err(error) if error.is_not_found() => Ok(String::new()),
            known => Ok(known?),
        }
    }

    /// Writes the key of this machine's certificate of the API, `api.key`.
    pub(crate) fn store_api_key(&self, pem: &str) -> Result<(), KeysError> {
        Ok(pki::write_secret(
            &self.folder.join("api.key"),
            pem.as_bytes(),
        )?)
    }

    /// Stores the certificates that the leader issued for [`Self::machine_request`].
    pub(crate) fn store_machine(&self, certificates: &Certificates) -> Result<(), KeysError> {
        let _writing = WRITING.lock();
        let sealed = AuthorityEdition::Current.sealed_file(AuthorityKind::Cluster);
        if self.folder.join(sealed).exists() {
            // The machine has become a member while it asked, and issues its own.
            return Ok(());
        }
        if certificates.etcd.is_empty() {
            self.forget_etcd_client()?;
        } else {
            let key = files::read_text(&self.folder.join("node.key"), LIMIT)?;
            let path = self.folder.join(format!("{ETCD_CLIENT}.key"));
            pki::write_secret(&path, key.as_bytes())?;
            let path = self.folder.join(format!("{ETCD_CLIENT}.crt"));
            pki::write_public(&path, certificates.etcd.as_bytes())?;
        }
        let authority = &certificates.cluster_authority;
        replacement::adopt_certificate(&self.folder, AuthorityKind::Cluster, authority)?;
        for (name, pem) in [
            ("etcd-client-ca", &certificates.etcd_authority),
            ("node", &certificates.node),
        ] {
            pki::write_public(&self.folder.join(format!("{name}.crt")), pem.as_bytes())?;
        }
        Ok(())
    }

    /// Whether this machine has a certificate as a client of etcd without holding etcd.
    pub(crate) fn is_etcd_client(&self) -> bool {
        self.folder.join(format!("{ETCD_CLIENT}.crt")).exists()
    }

    fn forget_etcd_client(&self) -> Result<(), KeysError> {
        for ending in ["crt", "key"] {
            files::remove(&self.folder.join(format!("{ETCD_CLIENT}.{ending}")))?;
        }
        Ok(())
    }

    /// The leaves of a machine that holds no authority.
    fn machine_leaves(&self) -> impl Iterator<Item = &'static str> {
        let etcd = self.is_etcd_client().then_some(ETCD_CLIENT);
        ["node"].into_iter().chain(etcd)
    }

    /// Whether a certificate of a machine that holds no authority is due for renewal.
    pub(crate) fn machine_due(&self, now: Timestamp) -> bool {
        let issued = || {
            let authority = self.certificate(AuthorityKind::Cluster.name()).ok()?;
            pki::is_issued_by(&self.certificate("node").ok()?, &authority).ok()
        };
        // A change of the issuer was interrupted.
        if issued() == Some(false) {
            return true;
        }
        self.machine_leaves().any(|name| {
            let certificate = self.certificate(name).ok();
            certificate.is_none_or(|pem| pki::renew_due(&pem, now).unwrap_or(true))
        })
    }

    /// Whether a certificate of a machine that holds no authority has expired or is missing.
    pub(crate) fn machine_expired(&self, now: Timestamp) -> bool {
        self.machine_leaves().any(|name| {
            let validity = self.certificate(name).ok();
            let validity = validity.and_then(|pem| pki::validity_of(&pem).ok());
            validity.is_none_or(|validity| validity.not_after < now)
        })
    }

    /// Whether this machine's certificate of the API lacks the name that it may have.
    pub(crate) fn lacks_api_name(&self, identity: &MachineIdentity, known: &ClusterCache) -> bool {
        known.may_have_api_name() && !self.has_api_name(identity)
    }

    fn has_api_name(&self, identity: &MachineIdentity) -> bool {
        self.has_server_name("api", &pki::api_server_name(&identity.cluster_uid))
    }

    fn has_server_name(&self, leaf: &str, name: &str) -> bool {
        let certificate = self.certificate(leaf).ok();
        certificate.is_some_and(|pem| pki::has_server_name(&pem, name).unwrap_or(false))
    }

    /// Issues every leaf that is missing, unreadable, due (two thirds of its validity are over),
    /// issued by an authority that has been replaced, or that lacks a name which it is to have.
    /// Returns the names of the issued leaves.
    pub(crate) fn renew(
        &self,
        identity: &MachineIdentity,
        known: &ClusterCache,
        now: Timestamp,
    ) -> Result<Vec<&'static str>, KeysError> {
        // A name that clients have seen stays.
        let names = match known.may_have_api_name() || self.has_api_name(identity) {
            true => ApiNames::Both,
            false => ApiNames::Earlier,
        };
        self.forget_etcd_client()?;
        self.complete_promotions()?;
        let mut renewed = Vec::new();
        for name in LEAVES {
            let lacks_name = match name {
                "api" => self.lacks_api_name(identity, known),
                // It comes from the leader where this machine did not hold the store before.
                "node" => !self.has_server_name("node", &pki::cluster_name(&identity.cluster_uid)),
                _ => false,
            };
            if lacks_name || self.is_due(name, now)? {
                self.issue(name, identity, names, now)?;
                renewed.push(name);
            }
        }
        self.copy_for_etcd()?;
        Ok(renewed)
    }

    fn is_due(&self, name: &str, now: Timestamp) -> Result<bool, KeysError> {
        let Ok(pem) = self.certificate(name) else {
            return Ok(true);
        };
        let authority = self.certificate(authority_of(name).name())?;
        let issued = pki::is_issued_by(&pem, &authority).unwrap_or(false);
        // It lives so short that a clock which was ahead for some hours has renewed it: one that is
        // not valid yet would close the API for as long.
        let early =
            name == "api" && pki::validity_of(&pem).is_ok_and(|validity| now < validity.not_before);
        Ok(!issued || early || pki::renew_due(&pem, now).unwrap_or(true))
    }

    fn issue(
        &self,
        name: &'static str,
        identity: &MachineIdentity,
        names: ApiNames,
        now: Timestamp,
    ) -> Result<(), KeysError> {
        let node = identity.node.clone();
        let overlay = IpAddr::V4(identity.overlay_address());
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let kind = match name {
            "node" | "api" => {
                let mut addresses = identity.advertise.clone();
                addresses.extend([overlay, loopback]);
                let cluster_uid = identity.cluster_uid.clone();
                match name {
                    "api" => LeafKind::Api {
                        name: node,
                        cluster_uid,
                        names,
                        addresses,
                    },
                    // This machine may serve the API by any name: version 0.1.0, to which an
                    // upgrade is taken back, has this certificate alone.
                    _ => LeafKind::Node {
                        name: node,
                        cluster_uid: Some(cluster_uid),
                        addresses,
                    },
                }
            }
            "admin" => LeafKind::Admin { name: node },
            "leader" | "leader-etcd" => LeafKind::Leader { name: node },
            "etcd-server" => LeafKind::EtcdServer {
                name: node,
                addresses: vec![overlay, loopback],
            },
            _ => LeafKind::EtcdPeer {
                name: node,
                addresses: vec![overlay],
            },
        };
        let authority = authority_of(name);
        let authority = Authority::load(&self.folder, authority, &self.recovery_keys()?)?;
        let key_path = self.folder.join(format!("{name}.key"));
        // A renewal keeps the key: the cluster identifies the machine by it.
        let leaf = match files::read_text(&key_path, LIMIT) {
            Ok(key_pem) => {
                let request = pki::create_request_for_key(&kind.common_name(), &key_pem)?;
                pki::CertificateKeyPair {
                    certificate_pem: authority.sign_request(&request, &kind, now)?,
                    key_pem,
                }
            }
            Err(error) if error.is_not_found() => authority.issue(&kind, now)?,
            Err(error) => return Err(error.into()),
        };
        pki::write_secret(&key_path, leaf.key_pem.as_bytes())?;
        pki::write_public(
            &self.folder.join(format!("{name}.crt")),
            leaf.certificate_pem.as_bytes(),
        )?;
        Ok(())
    }

    /// Copies the keys and certificates that etcd needs, and no others, for etcd's user. Returns
    /// whether a copy differed.
    pub(crate) fn copy_for_etcd(&self) -> Result<bool, KeysError> {
        let Some(group) = self.etcd_group else {
            return Ok(false);
        };
        let mut changed = false;
        files::ensure_folder(&self.etcd_folder, FileAccess::owned(0o750, 0, group))?;
        let write = |name: &str, content: &[u8]| {
            let access = FileAccess::owned(0o640, 0, group);
            files::write_if_changed(&self.etcd_folder.join(name), content, access)
        };
        for kind in AuthorityKind::OF_ETCD {
            let trusted = replacement::trusted_certificates(&self.folder, kind)?;
            let name = AuthorityEdition::Current.certificate_file(kind);
            changed |= write(&name, trusted.as_bytes())?;
        }
        for name in [
            "etcd-server.crt",
            "etcd-server.key",
            "etcd-peer.crt",
            "etcd-peer.key",
        ] {
            changed |= write(name, &files::read_bounded(&self.folder.join(name), LIMIT)?)?;
        }
        Ok(changed)
    }

    /// A leaf certificate and its key.
    pub(crate) fn leaf(&self, name: &str) -> Result<pki::CertificateKeyPair, KeysError> {
        Ok(pki::CertificateKeyPair {
            certificate_pem: self.certificate(name)?,
            key_pem: files::read_text(&self.folder.join(format!("{name}.key")), LIMIT)?,
        })
    }

    /// The certificate of a leaf or an authority.
    pub(crate) fn certificate(&self, name: &str) -> Result<String, KeysError> {
        Ok(files::read_text(
            &self.folder.join(format!("{name}.crt")),
            LIMIT,
        )?)
    }

    /// SHA-256 of this machine's public key, hexadecimal; renewals do not change it.
    pub(crate) fn identity_key(&self) -> Result<String, KeysError> {
        Ok(pki::tls::public_key_hash(&self.certificate("node")?)?)
    }

    /// Hashes of the keys of the certificates that this machine has while it holds etcd. Missing
    /// keys are made here, since the machine publishes the hashes when it joins: from then on a
    /// certificate of an earlier machine with the same name is rejected.
    pub(crate) fn member_keys(&self) -> Result<MemberKeys, KeysError> {
        Ok(MemberKeys {
            leader: self.key_hash("leader")?,
            admin: self.key_hash("admin")?,
            api: self.key_hash("api")?,
        })
    }

    fn key_hash(&self, name: &str) -> Result<String, KeysError> {
        Ok(pki::key_hash(&self.key(name)?)?)
    }

    /// The certificates of the cluster's own authority: more than one while it is being replaced.
    pub(crate) fn cluster_authority(&self) -> Result<String, KeysError> {
        self.trusted_certificates(AuthorityKind::Cluster)
    }

    /// The certificates of the authority of etcd's clients and servers: more than one while it is
    /// being replaced.
    pub(crate) fn etcd_authority(&self) -> Result<String, KeysError> {
        self.trusted_certificates(AuthorityKind::EtcdClients)
    }
}

/// The authority that signs a leaf.
fn authority_of(leaf: &str) -> AuthorityKind {
    match leaf {
        "node" | "api" | "admin" | "leader" => AuthorityKind::Cluster,
        "leader-etcd" | "etcd-server" => AuthorityKind::EtcdClients,
        _ => AuthorityKind::EtcdPeers,
    }
}

pub(crate) mod recovery;
mod rotation;

#[cfg(test)]
mod tests;

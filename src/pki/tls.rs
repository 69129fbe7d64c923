//! TLS 1.3 with aws-lc, for the API and its clients. The provider is always given explicitly: with
//! two of them in the program rustls would refuse to choose.

use std::{collections::BTreeSet, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme,
    client::{
        ResolvesClientCert, Resumption, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    server::{
        ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};

use super::{
    CertificateKeyPair, PkiError, authority, check_name, endorsement, request,
    server_identity::{ApiServers, ApiVerifier, NotAServer, ServerIdentity, server_identity},
};
use kat_types::encoding::digest::sha256_hex;

/// The subject of the other end's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerIdentity {
    /// A machine.
    Node(String),
    /// The leader on a machine.
    Leader(String),
    /// An administrator.
    Admin(String),
}

/// The other end's certificate: its subject and its key. A name can be given to another machine;
/// the key can't.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    pub identity: PeerIdentity,
    /// SHA-256 of its public key, as [`public_key_hash`].
    pub key_hash: String,
}

/// Reads a certificate's subject and the hash of its key. The verifier, not this function, checks
/// that it is valid.
///
/// # Errors
/// As [`peer_identity`].
pub fn peer_certificate(certificate: &CertificateDer<'_>) -> Result<PeerCertificate, PkiError> {
    Ok(PeerCertificate {
        identity: peer_identity(certificate)?,
        key_hash: key_hash_of(certificate)?,
    })
}

/// Reads a certificate's subject. The verifier, not this function, checks that it is valid.
///
/// # Errors
/// [`PkiError::Certificate`] for a subject that is not one common name `node:NAME`, `leader:NAME`
/// or `admin:NAME`.
pub fn peer_identity(certificate: &CertificateDer<'_>) -> Result<PeerIdentity, PkiError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    let common_name = request::only_common_name(parsed.subject())
        .ok_or_else(|| PkiError::Certificate("its subject must be one common name".into()))?;
    let (role, name) = common_name.split_once(':').unwrap_or_default();
    check_name(name)?;
    let name = name.to_owned();
    match role {
        "node" => Ok(PeerIdentity::Node(name)),
        "leader" => Ok(PeerIdentity::Leader(name)),
        "admin" => Ok(PeerIdentity::Admin(name)),
        _ => Err(PkiError::Certificate(format!(
            "the common name `{common_name}` is neither a node, a leader nor an administrator"
        ))),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The first certificate of a PEM text.
pub(super) fn first_certificate(pem: &str) -> Result<CertificateDer<'static>, PkiError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| PkiError::Pem {
        expected: "certificate",
        found: error.to_string(),
    })
}

/// SHA-256 of the public key in a certificate, as 64 hexadecimal digits. It stays the same when the
/// certificate is renewed for the same key.
///
/// # Errors
/// [`PkiError`] if the certificate can't be read.
pub fn public_key_hash(certificate_pem: &str) -> Result<String, PkiError> {
    key_hash_of(&first_certificate(certificate_pem)?)
}

pub(super) fn key_hash_of(certificate: &CertificateDer<'_>) -> Result<String, PkiError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    Ok(sha256_hex(parsed.public_key().raw))
}

/// All certificates of a PEM text; there must be one.
pub(super) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let unreadable = |found: String| PkiError::Pem {
        expected: "certificate",
        found,
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(error.to_string()))?;
    match certificates.is_empty() {
        true => Err(unreadable("nothing".to_owned())),
        false => Ok(certificates),
    }
}

fn roots(authorities_pem: &str) -> Result<Arc<RootCertStore>, PkiError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authorities_pem)? {
        roots.add(certificate)?;
    }
    Ok(Arc::new(roots))
}

/// A certificate and key that can be replaced while connections are served: a renewed leaf is used
/// from the next handshake on.
#[derive(Debug)]
pub struct CurrentIdentity {
    key: ArcSwap<CertifiedKey>,
}

impl CurrentIdentity {
    /// Starts with this identity. The certificates of all trusted authorities are sent along: a
    /// joining machine checks one of them against the hash in its token, and clients without a list
    /// of the machines learn from them that an authority is being replaced.
    ///
    /// # Errors
    /// [`PkiError`] if certificate and key are unreadable or don't belong together.
    pub fn new(
        identity: &CertificateKeyPair,
        authorities_pem: &str,
    ) -> Result<Arc<Self>, PkiError> {
        let key = certified(identity, authorities_pem)?;
        Ok(Arc::new(Self {
            key: ArcSwap::from_pointee(key),
        }))
    }

    /// Replaces the identity and the authorities that are sent along.
    ///
    /// # Errors
    /// As [`Self::new`]; the previous identity stays in use then.
    pub fn replace(
        &self,
        identity: &CertificateKeyPair,
        authorities_pem: &str,
    ) -> Result<(), PkiError> {
        let key = certified(identity, authorities_pem)?;
        self.key.store(Arc::new(key));
        Ok(())
    }
}

fn certified(
    identity: &CertificateKeyPair,
    authorities_pem: &str,
) -> Result<CertifiedKey, PkiError> {
    let (leaf, key) = leaf_and_key(identity)?;
    let mut chain = vec![leaf];
    chain.extend(certificates(authorities_pem)?);
    Ok(CertifiedKey::from_der(chain, key, &provider())?)
}

/// The authorities whose certificates a server accepts. They can be replaced while connections are
/// served.
#[derive(Debug)]
pub struct CurrentTrust {
    current: ArcSwap<Trust>,
}

#[derive(Debug)]
struct Trust {
    clients: Arc<dyn ClientCertVerifier>,
    fingerprints: Vec<String>,
}

impl CurrentTrust {
    /// Starts with these authorities.
    ///
    /// # Errors
    /// [`PkiError`] if a certificate can't be used, or there is none.
    pub fn new(authorities_pem: &str) -> Result<Arc<Self>, PkiError> {
        Ok(Arc::new(Self {
            current: ArcSwap::from_pointee(Trust::of(authorities_pem)?),
        }))
    }

    /// Replaces the authorities.
    ///
    /// # Errors
    /// As [`Self::new`]; the previous authorities stay in use then.
    pub fn replace(&self, authorities_pem: &str) -> Result<(), PkiError> {
        self.current.store(Arc::new(Trust::of(authorities_pem)?));
        Ok(())
    }

    /// Whether these authorities are the present ones, in any order.
    pub fn is_of(&self, authorities_pem: &str) -> bool {
        let present: BTreeSet<String> = self.fingerprints().into_iter().collect();
        fingerprints(authorities_pem).is_some_and(|others| others == present)
    }

    /// SHA-256 of the certificate of each authority, as 64 hexadecimal digits.
    pub fn fingerprints(&self) -> Vec<String> {
        self.current.load().fingerprints.clone()
    }
}

impl Trust {
    fn of(authorities_pem: &str) -> Result<Self, PkiError> {
        let roots = roots(authorities_pem)?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider())
            .build()
            .map_err(|error| PkiError::Certificate(error.to_string()))?;
        let certificates = certificates(authorities_pem)?;
        Ok(Self {
            clients,
            fingerprints: certificates.iter().map(authority::fingerprint).collect(),
        })
    }
}

fn leaf_and_key(
    identity: &CertificateKeyPair,
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), PkiError> {
    let leaf = first_certificate(&identity.certificate_pem)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes());
    let key = key.map_err(|error| PkiError::Pem {
        expected: "private key",
        found: error.to_string(),
    })?;
    Ok((leaf, key))
}

impl ResolvesServerCert for CurrentIdentity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load_full())
    }
}

impl ResolvesClientCert for CurrentIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load_full())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Configuration of a server: TLS 1.3, HTTP/2 or HTTP/1.1. A client certificate is optional, but an
/// invalid one is rejected (without one the caller requires a token).
///
/// # Errors
/// [`PkiError`] if TLS 1.3 can't be configured.
pub fn server_config(
    identity: Arc<CurrentIdentity>,
    trust: Arc<CurrentTrust>,
) -> Result<Arc<ServerConfig>, PkiError> {
    server_with(identity, trust, false)
}

/// Configuration of an agent's own port: like [`server_config`], but only for clients with a
/// certificate `leader:NAME` or `node:NAME`.
///
/// # Errors
/// As [`server_config`].
pub fn agent_server_config(
    identity: Arc<CurrentIdentity>,
    trust: Arc<CurrentTrust>,
) -> Result<Arc<ServerConfig>, PkiError> {
    server_with(identity, trust, true)
}

fn server_with(
    identity: Arc<CurrentIdentity>,
    trust: Arc<CurrentTrust>,
    only_machines: bool,
) -> Result<Arc<ServerConfig>, PkiError> {
    let clients = KnownClients {
        trust,
        only_machines,
    };
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(clients))
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Configuration of a client of the cluster's API: the server must be one of `servers`; the dialled
/// address is not compared. reqwest takes the configuration by `tls_backend_preconfigured` and
/// requires ALPN to be set, hyper-rustls requires it to be empty: here it is empty.
///
/// # Errors
/// [`PkiError`] if an authority's certificate or the cluster's uid can't be used.
pub fn client_config(
    authorities_pem: &str,
    cluster_uid: &str,
    identity: Option<Arc<CurrentIdentity>>,
    servers: ApiServers,
) -> Result<ClientConfig, PkiError> {
    let verifier = ApiVerifier::new(authorities_pem, cluster_uid, servers)?;
    client_with(Arc::new(verifier), identity)
}

/// A machine of the cluster, by its name and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownMachine {
    pub name: String,
    /// SHA-256 of its public key, as [`public_key_hash`]; `None` where a leader of an earlier
    /// version did not publish it.
    pub key_hash: Option<String>,
}

/// Configuration of a client of one machine's agent: the server must have a certificate of the
/// authority for `node:NAME` with the machine's key, and its name as a server name.
///
/// # Errors
/// [`PkiError`] if an authority's certificate or the machine's name can't be used.
pub fn agent_client_config(
    authorities_pem: &str,
    identity: Arc<CurrentIdentity>,
    machine: KnownMachine,
) -> Result<ClientConfig, PkiError> {
    let verifier = MachineVerifier::new(authorities_pem, machine)?;
    client_with(Arc::new(verifier), Some(identity))
}

/// Configuration of a client without a certificate that finds out whether a machine is up: like
/// [`agent_client_config`].
///
/// # Errors
/// As [`agent_client_config`].
pub fn machine_client_config(
    authorities_pem: &str,
    machine: KnownMachine,
) -> Result<ClientConfig, PkiError> {
    let verifier = MachineVerifier::new(authorities_pem, machine)?;
    client_with(Arc::new(verifier), None)
}

pub(super) fn chain_verifier(authorities_pem: &str) -> Result<Arc<WebPkiServerVerifier>, PkiError> {
    chain_verifier_of(roots(authorities_pem)?)
}

pub(super) fn chain_verifier_of(
    roots: impl Into<Arc<RootCertStore>>,
) -> Result<Arc<WebPkiServerVerifier>, PkiError> {
    WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
        .build()
        .map_err(|error| PkiError::Certificate(error.to_string()))
}

/// Whether two PEM texts have the same certificates, in any order. Unreadable texts differ.
pub fn same_certificates(one: &str, other: &str) -> bool {
    fingerprints(one).is_some_and(|one| Some(one) == fingerprints(other))
}

fn fingerprints(pem: &str) -> Option<BTreeSet<String>> {
    let certificates = certificates(pem).ok()?;
    Some(certificates.iter().map(authority::fingerprint).collect())
}

/// Configuration of a client that knows only the hash of the authority's certificate, from a join
/// token. The server must send that certificate and a leaf of the API signed by it, which only a
/// machine that holds the store has. Without a hash any authority is accepted: then the server's
/// identity is not verified.
///
/// # Errors
/// [`PkiError::Certificate`] if the hash is not 64 hexadecimal digits.
pub fn pinned_client_config(fingerprint: Option<&str>) -> Result<ClientConfig, PkiError> {
    let fine = fingerprint.is_none_or(|hash| {
        let digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        hash.len() == 64 && hash.bytes().all(digit)
    });
    if !fine {
        return Err(PkiError::Certificate(
            "the authority's hash must be 64 hexadecimal digits".into(),
        ));
    }
    let pin = match fingerprint {
        Some(hash) => AuthorityPin::Hash(hash.to_owned()),
        None => AuthorityPin::Any,
    };
    pinned_config(pin)
}

/// Configuration of a client that looks for servers of an authority which one of `authorities_pem`
/// endorses as the one that replaces it. The server must send that certificate and a leaf of the API
/// signed by it.
///
/// # Errors
/// [`PkiError`] if a certificate can't be read.
pub fn successor_client_config(authorities_pem: &str) -> Result<ClientConfig, PkiError> {
    pinned_config(AuthorityPin::SuccessorOf(certificates(authorities_pem)?))
}

fn pinned_config(pin: AuthorityPin) -> Result<ClientConfig, PkiError> {
    let verifier = PinnedAuthority {
        pin,
        provider: provider(),
    };
    client_with(Arc::new(verifier), None)
}

/// Configuration of a client that tries a certificate on a server: the server must have a
/// certificate of one of `authorities_pem` for the dialled name.
///
/// # Errors
/// [`PkiError`] if a certificate or the key can't be used.
pub fn trial_client_config(
    authorities_pem: &str,
    identity: &CertificateKeyPair,
) -> Result<ClientConfig, PkiError> {
    let roots = roots(authorities_pem)?;
    let (leaf, key) = leaf_and_key(identity)?;
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![leaf], key)?)
}

fn client_with(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: Option<Arc<CurrentIdentity>>,
) -> Result<ClientConfig, PkiError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => builder.with_client_cert_resolver(identity),
        None => builder.with_no_client_auth(),
    };
    // A resumed session is not verified again.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Verifies the chain as usual, and one machine's name and key instead of the dialled name.
#[derive(Debug)]
struct MachineVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
    machine: KnownMachine,
}

impl MachineVerifier {
    fn new(authorities_pem: &str, machine: KnownMachine) -> Result<Self, PkiError> {
        check_name(&machine.name)?;
        let name = ServerName::try_from(machine.name.clone())
            .map_err(|_| PkiError::Certificate(format!("`{}` is not a DNS label", machine.name)))?;
        Ok(Self {
            verifier: chain_verifier(authorities_pem)?,
            name,
            machine,
        })
    }
}

impl ServerCertVerifier for MachineVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.verifier.verify_server_cert(
            end_entity,
            intermediates,
            &self.name,
            ocsp_response,
            now,
        )?;
        let known = &self.machine;
        let is_key = |hash: &str| known.key_hash.as_ref().is_none_or(|known| known == hash);
        match peer_certificate(end_entity) {
            Ok(PeerCertificate {
                identity: PeerIdentity::Node(name),
                key_hash,
            }) if name == known.name && is_key(&key_hash) => Ok(verified),
            _ => Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            )),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// By what a client knows an authority whose certificate it does not have.
#[derive(Debug)]
enum AuthorityPin {
    /// SHA-256 of the certificate.
    Hash(String),
    /// One of these endorses it.
    SuccessorOf(Vec<CertificateDer<'static>>),
    /// By nothing: the server's identity is not verified.
    Any,
}

impl AuthorityPin {
    fn fits(&self, authority: &CertificateDer<'_>) -> bool {
        match self {
            Self::Hash(hash) => authority::fingerprint(authority) == *hash,
            Self::SuccessorOf(endorsers) => endorsers
                .iter()
                .any(|by| endorsement::is_endorsed_by(authority, by)),
            Self::Any => true,
        }
    }
}

/// Finds the authority in the certificates that the server sent, and then trusts only that one.
#[derive(Debug)]
struct PinnedAuthority {
    pin: AuthorityPin,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates
            .iter()
            .find(|certificate| self.pin.fits(certificate))
            .ok_or(rustls::Error::InvalidCertificate(
                rustls::CertificateError::UnknownIssuer,
            ))?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &roots,
            &[],
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        match server_identity(end_entity) {
            Ok(ServerIdentity::Api(_)) => Ok(ServerCertVerified::assertion()),
            _ => NotAServer::NotForApi.refuse(),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Accepts clients of a trusted authority whose common name is one of KAT's.
#[derive(Debug)]
struct KnownClients {
    trust: Arc<CurrentTrust>,
    only_machines: bool,
}

impl KnownClients {
    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.trust.current.load().clients)
    }
}

impl ClientCertVerifier for KnownClients {
    /// No hints: every client has one certificate, and the authorities change.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        self.only_machines
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self
            .verifier()
            .verify_client_cert(end_entity, intermediates, now)?;
        match peer_identity(end_entity) {
            Ok(PeerIdentity::Leader(_) | PeerIdentity::Node(_)) => Ok(verified),
            Ok(_) if !self.only_machines => Ok(verified),
            _ => Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            )),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier()
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier()
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier().supported_verify_schemes()
    }
}

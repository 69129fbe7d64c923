//! Which servers a client of the cluster's API accepts.
//!
//! Certificates of the API ([`crate::LeafKind::Api`]) are issued by machines that hold the store,
//! and for themselves alone. A client of this version accepts nothing else, but for servers of
//! version 0.1.0, whose API has the certificate `node:NAME`, which every machine has. A client with
//! a list of the cluster's machines knows which of them hold the store, and by which keys. A client
//! without a list (katcall) accepts the earlier name until it has seen the new one.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwapOption;
use rustls::{
    CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use x509_parser::extensions::GeneralName;

use super::{
    PkiError, api_server_name, authority, check_name, cluster_name, endorsement, request, tls,
};

thread_local! {
    /// The certificates that a server has just sent, until it has proved its key: rustls verifies
    /// certificate and signature one after the other in one call. Anybody can send a certificate
    /// that others have seen, so nothing is learned before that.
    static UNPROVED: RefCell<Option<Vec<CertificateDer<'static>>>> = const { RefCell::new(None) };
}

/// Authorities that a client remembers at most.
const MOST_AUTHORITIES: usize = 4;

/// What a client without a list of the machines learns from the servers. All its connections share
/// it.
#[derive(Debug, Default)]
pub struct ServerMemory {
    required: AtomicBool,
    learned: ArcSwapOption<LearnedAuthorities>,
}

#[derive(Debug)]
struct LearnedAuthorities {
    certificates: Vec<CertificateDer<'static>>,
    verifier: Arc<WebPkiServerVerifier>,
}

impl ServerMemory {
    /// `required`: a server had the name [`api_server_name`] before.
    pub fn new(required: bool) -> Arc<Self> {
        Arc::new(Self {
            required: AtomicBool::new(required),
            learned: ArcSwapOption::empty(),
        })
    }

    /// Whether every server has to have the name [`api_server_name`]: one had it.
    pub fn is_required(&self) -> bool {
        self.required.load(Ordering::Relaxed)
    }

    /// The authorities that the last accepted server trusts, as certificates in PEM; `None` while no
    /// server said so. While an authority is being replaced there are two, and after that the new
    /// one alone.
    pub fn authorities(&self) -> Option<String> {
        let learned = self.learned.load_full()?;
        let pem = learned.certificates.iter().map(|one| pem_of(one));
        Some(pem.collect())
    }

    /// Remembers what an accepted server with the name [`api_server_name`] has sent, which has proved
    /// its key. `configured` are the authorities that the client trusted at first.
    ///
    /// A new authority is taken only if one that is trusted endorses it, and one that the server does
    /// not send is given up only if the one that issued its certificate was made to replace it. So
    /// who has copied the key of a server can neither add an authority nor take one away.
    fn learn(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        (cluster_uid, configured): (&str, &[CertificateDer<'static>]),
    ) {
        self.required.store(true, Ordering::Relaxed);
        let known = self.learned.load_full();
        let trusted = known
            .as_ref()
            .map_or(configured, |known| &known.certificates);
        let is_meant = |one: &&CertificateDer<'_>| {
            let uid = authority::uid_of_authority(one);
            uid.is_ok_and(|uid| uid.eq_ignore_ascii_case(cluster_uid))
                && (trusted.contains(one)
                    || trusted
                        .iter()
                        .any(|by| endorsement::is_endorsed_by(one, by)))
        };
        let sent = intermediates.iter().filter(is_meant);
        let mut certificates: Vec<CertificateDer<'static>> = Vec::new();
        for one in sent.take(MOST_AUTHORITIES) {
            if !certificates.contains(one) {
                certificates.push(one.clone().into_owned());
            }
        }
        let issuer = certificates
            .iter()
            .find(|one| authority::is_issuer_of(one, leaf))
            .cloned();
        for one in trusted {
            let is_replaced = |issuer: &CertificateDer<'_>| endorsement::supersedes(issuer, one);
            if !certificates.contains(one) && !issuer.as_ref().is_some_and(is_replaced) {
                certificates.push(one.clone());
            }
        }
        certificates.truncate(MOST_AUTHORITIES);
        let is_same = |known: &[CertificateDer<'_>]| {
            known.len() == certificates.len() && known.iter().all(|one| certificates.contains(one))
        };
        if known
            .as_ref()
            .is_some_and(|known| is_same(&known.certificates))
        {
            return;
        }
        let mut roots = RootCertStore::empty();
        certificates.retain(|one| roots.add(one.clone()).is_ok());
        if let Ok(verifier) = tls::chain_verifier_of(roots) {
            self.learned.store(Some(Arc::new(LearnedAuthorities {
                certificates,
                verifier,
            })));
        }
    }

    /// Verifies certificates by the authorities that were learned.
    fn verifier(&self) -> Option<Arc<WebPkiServerVerifier>> {
        let learned = self.learned.load();
        learned
            .as_ref()
            .map(|learned| Arc::clone(&learned.verifier))
    }
}

fn pem_of(certificate: &CertificateDer<'_>) -> String {
    let block = pem::Pem::new("CERTIFICATE", certificate.to_vec());
    pem::encode_config(
        &block,
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

/// A machine as the cluster has published it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownServer {
    /// It holds the store.
    pub is_member: bool,
    /// SHA-256 of the key of `node:NAME`; `None` where a leader of an earlier version did not
    /// publish it.
    pub node_key: Option<String>,
    /// SHA-256 of the key of `api:NAME`; `None` where it is not known yet.
    pub api_key: Option<String>,
}

impl KnownServer {
    fn has_key(&self, hash: &str) -> bool {
        let keys = [&self.node_key, &self.api_key];
        keys.iter().any(|key| key.as_deref() == Some(hash))
    }
}

/// The machines of the cluster, as a machine of it knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownServers {
    /// By name.
    pub machines: BTreeMap<String, KnownServer>,
    /// The cluster has had a time when every machine with the store had a certificate of the API.
    pub api_name_required: bool,
}

/// The servers of the API that a client accepts.
#[derive(Debug, Clone)]
pub enum ApiServers {
    /// Any with the right name, for clients that do not know the machines.
    Named(Arc<ServerMemory>),
    /// Those that hold the store. One that is not known, or has another key than is known, must
    /// have the name [`api_server_name`]: after a restore a machine may know nobody any more.
    Known(KnownServers),
    /// Those that are known to hold the store, by the known keys alone.
    KnownOnly(KnownServers),
}

/// Why a server is refused whose certificate is valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotAServer {
    /// The certificate is one of version 0.1.0, or of a machine without the store.
    #[error(
        "it is not for the API: the machine does not hold the cluster's store, or has KAT 0.1.0"
    )]
    NotForApi,
    /// The machine is not known as one that holds the store.
    #[error("machine `{0}` is not known as one that holds the cluster's store")]
    NoMember(String),
    /// The machine's key is another one.
    #[error("it is for another key than the one by which machine `{0}` is known")]
    OtherKey(String),
}

impl NotAServer {
    pub(super) fn refuse<T>(self) -> Result<T, rustls::Error> {
        let error = OtherError(Arc::new(self));
        Err(CertificateError::Other(error).into())
    }
}

/// The subject of a server's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerIdentity {
    /// A machine, on its agent's port; in version 0.1.0 on the API's too.
    Node(String),
    /// The API on a machine that holds the store.
    Api(String),
}

/// Reads a server certificate's subject; the verifier checks that it is valid.
pub(super) fn server_identity(
    certificate: &CertificateDer<'_>,
) -> Result<ServerIdentity, PkiError> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    let common_name = request::only_common_name(parsed.subject())
        .ok_or_else(|| PkiError::Certificate("its subject must be one common name".into()))?;
    let (role, name) = common_name.split_once(':').unwrap_or_default();
    check_name(name)?;
    match role {
        "node" => Ok(ServerIdentity::Node(name.to_owned())),
        "api" => Ok(ServerIdentity::Api(name.to_owned())),
        _ => Err(PkiError::Certificate(format!(
            "the common name `{common_name}` is that of no server"
        ))),
    }
}

/// Whether a certificate (PEM) has this server name, such as [`api_server_name`].
///
/// # Errors
/// [`PkiError`] if the certificate can't be read.
pub fn has_server_name(certificate_pem: &str, name: &str) -> Result<bool, PkiError> {
    let certificate = tls::first_certificate(certificate_pem)?;
    let unreadable = |error: &dyn fmt::Display| PkiError::Certificate(error.to_string());
    let (_, parsed) =
        x509_parser::parse_x509_certificate(&certificate).map_err(|error| unreadable(&error))?;
    let names = parsed
        .subject_alternative_name()
        .map_err(|error| unreadable(&error))?;
    Ok(names.is_some_and(|names| {
        let mut names = names.value.general_names.iter();
        names.any(|one| matches!(one, GeneralName::DNSName(text) if *text == name))
    }))
}

/// Verifies the chain as usual, the cluster's names instead of the dialled one, and the machine.
#[derive(Debug)]
pub(super) struct ApiVerifier {
    verifier: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
    earlier_name: ServerName<'static>,
    cluster_uid: String,
    /// The authorities that the client was given.
    authorities: Vec<CertificateDer<'static>>,
    servers: ApiServers,
}

impl ApiVerifier {
    pub(super) fn new(
        authorities_pem: &str,
        cluster_uid: &str,
        servers: ApiServers,
    ) -> Result<Self, PkiError> {
        let uid = cluster_uid.to_ascii_lowercase();
        Ok(Self {
            verifier: tls::chain_verifier(authorities_pem)?,
            authorities: tls::certificates(authorities_pem)?,
            name: server_name(api_server_name(&uid))?,
            earlier_name: server_name(cluster_name(&uid))?,
            cluster_uid: uid,
            servers,
        })
    }
}

fn server_name(name: String) -> Result<ServerName<'static>, PkiError> {
    ServerName::try_from(name.clone())
        .map_err(|_| PkiError::Certificate(format!("`{name}` is not a server name")))
}

fn is_other_name(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

/// A certificate that is to be verified.
struct Shown<'a> {
    end_entity: &'a CertificateDer<'a>,
    intermediates: &'a [CertificateDer<'a>],
    ocsp_response: &'a [u8],
    now: UnixTime,
}

impl ApiVerifier {
    fn chain(
        &self,
        shown: &Shown<'_>,
        name: &ServerName<'_>,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |verifier: &WebPkiServerVerifier| {
            verifier.verify_server_cert(
                shown.end_entity,
                shown.intermediates,
                name,
                shown.ocsp_response,
                shown.now,
            )
        };
        let decided = verify(&self.verifier);
        match (&decided, &self.servers) {
            // The authority was replaced while this client runs.
            (Err(_), ApiServers::Named(memory)) => match memory.verifier() {
                Some(learned) => verify(&learned).or(decided),
                None => decided,
            },
            _ => decided,
        }
    }

    /// Verifies the chain, and the new name; the earlier one too where `required` is false.
    fn named(
        &self,
        shown: &Shown<'_>,
        required: bool,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let other = match self.chain(shown, &self.name) {
            Err(error) if is_other_name(&error) => error,
            decided => return decided,
        };
        let earlier = self.chain(shown, &self.earlier_name);
        let is_node = || {
            matches!(
                server_identity(shown.end_entity),
                Ok(ServerIdentity::Node(_))
            )
        };
        match earlier {
            Ok(verified) if !required => Ok(verified),
            Ok(_) => NotAServer::NotForApi.refuse(),
            Err(_) if is_node() => NotAServer::NotForApi.refuse(),
            Err(_) => Err(other),
        }
    }

    fn known(
        &self,
        shown: &Shown<'_>,
        servers: &KnownServers,
        only: bool,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let required = servers.api_name_required;
        let unreadable = |_| rustls::Error::from(CertificateError::BadEncoding);
        let hash = tls::key_hash_of(shown.end_entity).map_err(unreadable)?;
        match server_identity(shown.end_entity) {
            Ok(ServerIdentity::Api(name)) => {
                let machine = servers.machines.get(&name).filter(|one| one.is_member);
                let is_key = machine.is_some_and(|one| one.has_key(&hash));
                let verified = self.named(shown, required && !is_key)?;
                match machine {
                    _ if is_key || !only => Ok(verified),
                    Some(machine) if machine.api_key.is_none() => Ok(verified),
                    Some(_) => NotAServer::OtherKey(name).refuse(),
                    None => NotAServer::NoMember(name).refuse(),
                }
            }
            Ok(ServerIdentity::Node(name)) => {
                let verified = self.chain(shown, &self.earlier_name)?;
                match servers.machines.get(&name) {
                    Some(machine) if machine.is_member => match &machine.node_key {
                        Some(known) if *known == hash => Ok(verified),
                        Some(_) => NotAServer::OtherKey(name).refuse(),
                        None if required => NotAServer::NotForApi.refuse(),
                        None => Ok(verified),
                    },
                    None if !required && !only => Ok(verified),
                    _ => NotAServer::NoMember(name).refuse(),
                }
            }
            Err(_) => {
                self.named(shown, required)?;
                NotAServer::NotForApi.refuse()
            }
        }
    }
}

impl ServerCertVerifier for ApiVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = Shown {
            end_entity,
            intermediates,
            ocsp_response,
            now,
        };
        match &self.servers {
            ApiServers::Named(memory) => {
                UNPROVED.take();
                let verified = self.named(&shown, memory.is_required())?;
                if self.chain(&shown, &self.name).is_ok() {
                    let sent = std::iter::once(end_entity).chain(intermediates);
                    let sent = sent.map(|one| one.clone().into_owned());
                    UNPROVED.set(Some(sent.collect()));
                }
                Ok(verified)
            }
            ApiServers::Known(servers) => self.known(&shown, servers, false),
            ApiServers::KnownOnly(servers) => self.known(&shown, servers, true),
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
        let verified = self
            .verifier
            .verify_tls13_signature(message, certificate, signature)?;
        if let ApiServers::Named(memory) = &self.servers
            && let Some(sent) = UNPROVED.take()
            && let Some((leaf, others)) = sent.split_first()
            && leaf == certificate
        {
            memory.learn(leaf, others, (&self.cluster_uid, &self.authorities));
        }
        Ok(verified)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

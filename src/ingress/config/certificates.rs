//! Certificates by server name.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use arc_swap::ArcSwap;
use rustls::{
    ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
    version::{TLS12, TLS13},
};

use super::Config;
use crate::config::routes::{HostPattern, wildcard_of};
use kat_types::ingress::IngressCertificate;

/// Why a certificate is refused.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("`{0}` is no host name")]
    Host(String),
    #[error("the chain is not PEM: {0}")]
    Chain(String),
    #[error("the chain has no certificate")]
    Empty,
    #[error("the key is not PEM: {0}")]
    Key(String),
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Keys by server name.
#[derive(Default)]
pub struct CertificateTable {
    exact: BTreeMap<String, Arc<CertifiedKey>>,
    /// By the name without `*.`.
    wildcards: BTreeMap<String, Arc<CertifiedKey>>,
    /// By name of the certificate, with its hosts.
    named: BTreeMap<String, (BTreeSet<String>, Arc<CertifiedKey>)>,
}

impl fmt::Debug for CertificateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.exact.keys().chain(self.wildcards.keys());
        f.debug_set().entries(names).finish()
    }
}

impl CertificateTable {
    /// Adds a certificate for those of its hosts that no earlier one has.
    ///
    /// # Errors
    /// It can't be used; the table is unchanged.
    pub fn add(
        &mut self,
        name: &str,
        certificate: &IngressCertificate,
    ) -> Result<(), CertificateError> {
        let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| CertificateError::Chain(error.to_string()))?;
        if chain.is_empty() {
            return Err(CertificateError::Empty);
        }
        let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())
            .map_err(|error| CertificateError::Key(error.to_string()))?;
        let key = Arc::new(CertifiedKey::from_der(chain, key, &provider())?);
        self.insert(name, &certificate.hosts, &key)
    }

    /// Adds what an earlier table had under a name, for those of its hosts that are still `wanted`;
    /// without `wanted` for all of them. False if it had nothing.
    pub(crate) fn keep(
        &mut self,
        name: &str,
        earlier: &Self,
        wanted: Option<&BTreeSet<String>>,
    ) -> bool {
        let Some((hosts, key)) = earlier.named.get(name) else {
            return false;
        };
        let is_wanted = |host: &&String| wanted.is_none_or(|wanted| wanted.contains(*host));
        let hosts = hosts.iter().filter(is_wanted).cloned().collect();
        self.insert(name, &hosts, key).is_ok()
    }

    fn insert(
        &mut self,
        name: &str,
        hosts: &BTreeSet<String>,
        key: &Arc<CertifiedKey>,
    ) -> Result<(), CertificateError> {
        let patterns = hosts.iter().map(|host| {
            HostPattern::parse(host).ok_or_else(|| CertificateError::Host(host.clone()))
        });
        let patterns: Vec<HostPattern> = patterns.collect::<Result<_, _>>()?;
        for pattern in patterns {
            let names = match pattern {
                HostPattern::Exact(host) => self.exact.entry(host),
                HostPattern::Wildcard(host) => self.wildcards.entry(host),
            };
            names.or_insert_with(|| Arc::clone(key));
        }
        let named = (hosts.clone(), Arc::clone(key));
        self.named.insert(name.to_owned(), named);
        Ok(())
    }

    /// The key for a server name in lower case: an exact name before a wildcard of one label.
    pub fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let exact = self.exact.get(name);
        exact.or_else(|| self.wildcards.get(wildcard_of(name)?))
    }
}

/// Finds keys in the present configuration.
struct CurrentCertificates(Arc<ArcSwap<Config>>);

impl fmt::Debug for CurrentCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CurrentCertificates").finish()
    }
}

impl ResolvesServerCert for CurrentCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?.to_ascii_lowercase();
        self.0.load().certificates.find(&name).cloned()
    }
}

/// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1, without early data.
///
/// # Errors
/// The cryptographic library has no randomness.
pub(crate) fn server_config(config: Arc<ArcSwap<Config>>) -> Result<ServerConfig, rustls::Error> {
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(&[&TLS13, &TLS12])?;
    let mut server = builder
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(CurrentCertificates(config)));
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    server.ticketer = aws_lc_rs::Ticketer::new()?;
    // A repeated request of early data would reach a program twice.
    server.max_early_data_size = 0;
    Ok(server)
}

//! KAT's own authority for ingress, its certificates, and the check of certificates that users bring.
//!
//! The authority is constrained to domains (RFC 5280, 4.2.1.10): whoever trusts it trusts it for names
//! of those alone, whatever it signs. Its key is no file: the leader keeps it in the store, sealed with
//! a data key.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, NameConstraints, SanType, string::Ia5String,
};
use rustls::{
    crypto::aws_lc_rs::sign::any_supported_type,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::extensions::GeneralName;

use super::{
    AUTHORITY_LIFETIME, CertificateKeyPair, PkiError, Validity, authority::generate_key,
    fill_random, leaf, tls,
};
use kat_types::{encoding::digest::sha256_hex, store::ingress::covers};

/// Validity of a certificate of the authority.
pub const INGRESS_LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(90 * 24);

/// Most certificates of a chain that a user brings.
const MAX_CHAIN: usize = 10;

/// Longest name of a certificate's subject (RFC 5280, ub-common-name).
const LONGEST_COMMON_NAME: usize = 64;

/// A new authority for a cluster, constrained to `domains` and the names below them.
///
/// # Errors
/// [`PkiError::Certificate`] without domains, or for one that no certificate can have.
pub fn create_ingress_authority<'d>(
    cluster_name: &str,
    domains: impl IntoIterator<Item = &'d String>,
    now: Timestamp,
) -> Result<CertificateKeyPair, PkiError> {
    let key = generate_key()?;
    let validity = Validity::starting(now, AUTHORITY_LIFETIME)?;
    let mut params = leaf::base_params(&format!("KAT ingress of {cluster_name}"), validity)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let permitted: Vec<_> = domains
        .into_iter()
        .map(|domain| GeneralSubtree::DnsName(domain.clone()))
        .collect();
    if permitted.is_empty() {
        // An authority without constraints could sign for every name.
        return Err(PkiError::Certificate(
            "an authority for ingress needs a domain".to_owned(),
        ));
    }
    params.name_constraints = Some(NameConstraints {
        permitted_subtrees: permitted,
        // No name of another kind: constraints count only for the kinds that they have.
        excluded_subtrees: vec![
            GeneralSubtree::IpAddress(rcgen::CidrSubnet::V4([0; 4], [0; 4])),
            GeneralSubtree::IpAddress(rcgen::CidrSubnet::V6([0; 16], [0; 16])),
        ],
    });
    let certificate = params.self_signed(&key)?;
    Ok(CertificateKeyPair {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// A certificate of the authority for a host, which may be a wildcard, with a new key. The caller has
/// checked that the authority's constraints permit it.
///
/// # Errors
/// [`PkiError`] if the authority can't be read, or the host is no name.
pub fn issue_ingress_certificate(
    authority: &CertificateKeyPair,
    host: &str,
    now: Timestamp,
) -> Result<CertificateKeyPair, PkiError> {
    let ca = tls::first_certificate(&authority.certificate_pem)?;
    let ca_key = KeyPair::from_pem(&authority.key_pem)
        .map_err(|error| PkiError::Key(format!("of the authority for ingress: {error}")))?;
    let issuer = Issuer::from_ca_cert_der(&ca, ca_key)?;
    let key = generate_key()?;
    let validity = Validity::starting(now, INGRESS_LEAF_LIFETIME)?;
    let subject = match host.len() <= LONGEST_COMMON_NAME {
        true => host,
        false => "KAT ingress",
    };
    let mut params = leaf::base_params(subject, validity)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names = vec![SanType::DnsName(Ia5String::try_from(host.to_owned())?)];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(CertificateKeyPair {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// A new key for the cookies of sticky routes: 32 random bytes.
///
/// # Errors
/// [`PkiError::Key`] without random bytes.
pub fn create_sticky_key() -> Result<[u8; 32], PkiError> {
    let mut key = [0; 32];
    fill_random(&mut key)
        .map_err(|error| PkiError::Key(format!("of sticky routes: no random bytes: {error}")))?;
    Ok(key)
}

/// A certificate for a host that is signed by itself: port 443 can answer with it until a server has
/// issued one. Nothing trusts it.
///
/// # Errors
/// [`PkiError`] if the host is no name.
pub fn stand_in_certificate(host: &str, now: Timestamp) -> Result<CertificateKeyPair, PkiError> {
    let key = generate_key()?;
    let validity = Validity::starting(now, INGRESS_LEAF_LIFETIME)?;
    let mut params = leaf::base_params("KAT: certificate not issued yet", validity)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.subject_alt_names = vec![SanType::DnsName(Ia5String::try_from(host.to_owned())?)];
    let certificate = params.self_signed(&key)?;
    Ok(CertificateKeyPair {
        certificate_pem: certificate.pem(),
        key_pem: key.serialize_pem(),
    })
}

/// SHA-256 of the first certificate of a PEM text, as 64 hexadecimal digits.
///
/// # Errors
/// [`PkiError::Pem`].
pub fn certificate_hash(certificate_pem: &str) -> Result<String, PkiError> {
    Ok(sha256_hex(&tls::first_certificate(certificate_pem)?))
}

/// What is known of a certificate that a user brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroughtCertificate {
    /// Its validity.
    pub validity: Validity,
    /// DNS names that it is for.
    pub names: Vec<String>,
}

impl BroughtCertificate {
    /// Whether it is for this host. A wildcard host needs the same wildcard.
    pub fn is_for(&self, host: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|name| covers(&name.to_ascii_lowercase(), host))
    }
}

/// Reads a chain and its key, PEM: the key has to fit the first certificate.
///
/// # Errors
/// [`PkiError`] with what is wrong; no message contains the key.
pub fn brought_certificate(
    chain_pem: &[u8],
    key_pem: &[u8],
) -> Result<BroughtCertificate, PkiError> {
    let unreadable = |error: &dyn std::fmt::Display| PkiError::Pem {
        expected: "certificate",
        found: error.to_string(),
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain_pem)
        .take(MAX_CHAIN + 1)
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(&error))?;
    if chain.len() > MAX_CHAIN {
        return Err(PkiError::Certificate(format!(
            "the chain has more than {MAX_CHAIN} certificates"
        )));
    }
    let Some(first) = chain.first() else {
        return Err(unreadable(&"none"));
    };
    let (_, parsed) = x509_parser::parse_x509_certificate(first)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    let alternative = parsed
        .subject_alternative_name()
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    let general = alternative.map(|extension| extension.value.general_names.as_slice());
    let names = general
        .unwrap_or_default()
        .iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        });
    let names = names.collect();
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|_| PkiError::Key("it is no private key in PEM".to_owned()))?;
    let key = any_supported_type(&key)
        .map_err(|_| PkiError::Key("neither RSA, nor ECDSA, nor Ed25519".to_owned()))?;
    let whole = CertifiedKey::new(chain.clone(), key);
    whole
        .keys_match()
        .map_err(|_| PkiError::Key("it does not belong to the certificate".to_owned()))?;
    let text = String::from_utf8_lossy(chain_pem);
    Ok(BroughtCertificate {
        validity: super::validity_of(&text)?,
        names,
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        crypto::aws_lc_rs,
        pki_types::{ServerName, UnixTime},
    };

    use super::*;

    fn now() -> Timestamp {
        "2026-11-29T12:00:00Z".parse().unwrap()
    }

    fn domains(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn authority(names: &[&str]) -> CertificateKeyPair {
        create_ingress_authority("home", &domains(names), now()).unwrap()
    }

    /// As a browser checks it: by webpki, with the authority as the only root.
    fn is_accepted(
        authority: &CertificateKeyPair,
        leaf: &CertificateKeyPair,
        host: &str,
        at: Timestamp,
    ) -> bool {
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(der(&authority.certificate_pem)).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().unwrap();
        let seconds = u64::try_from(at.as_second()).unwrap();
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let leaf = der(&leaf.certificate_pem);
        let verified = verifier.verify_server_cert(&leaf, &[], &name, &[], time);
        verified.is_ok()
    }

    #[test]
    fn a_certificate_of_the_authority_is_accepted_for_its_host_alone() {
        let authority = authority(&["lan", "home.arpa"]);
        let leaf = issue_ingress_certificate(&authority, "shop.lan", now()).unwrap();
        assert!(is_accepted(&authority, &leaf, "shop.lan", now()));
        assert!(!is_accepted(&authority, &leaf, "other.lan", now()));
        let other = self::authority(&["lan"]);
        assert!(!is_accepted(&other, &leaf, "shop.lan", now()));
        let expired = now() + INGRESS_LEAF_LIFETIME + SignedDuration::from_secs(1);
        assert!(!is_accepted(&authority, &leaf, "shop.lan", expired));
        let wild = issue_ingress_certificate(&authority, "*.shop.lan", now()).unwrap();
        assert!(is_accepted(&authority, &wild, "a.shop.lan", now()));
        assert!(!is_accepted(&authority, &wild, "a.b.shop.lan", now()));
    }

    #[test]
    fn what_the_authority_signs_beyond_its_domains_is_not_accepted() {
        let authority = authority(&["lan", "home.arpa"]);
        for host in ["bank.example.org", "xlan", "lan.example.org", "shop.local"] {
            let leaf = issue_ingress_certificate(&authority, host, now()).unwrap();
            assert!(!is_accepted(&authority, &leaf, host, now()), "{host}");
        }
        for host in ["lan", "a.b.home.arpa"] {
            let leaf = issue_ingress_certificate(&authority, host, now()).unwrap();
            assert!(is_accepted(&authority, &leaf, host, now()), "{host}");
        }
        let none = create_ingress_authority("home", &BTreeSet::new(), now());
        assert!(none.is_err());
    }

    #[test]
    fn a_brought_certificate_has_its_key_and_its_names() {
        let authority = authority(&["lan"]);
        let leaf = issue_ingress_certificate(&authority, "*.shop.lan", now()).unwrap();
        let chain = format!("{}{}", leaf.certificate_pem, authority.certificate_pem);
        let found = brought_certificate(chain.as_bytes(), leaf.key_pem.as_bytes()).unwrap();
        assert_eq!(found.names, ["*.shop.lan"]);
        assert!(found.is_for("a.shop.lan") && found.is_for("*.shop.lan"));
        assert!(!found.is_for("shop.lan") && !found.is_for("a.b.shop.lan"));
        assert!(found.validity.holds(now()));

        let other = issue_ingress_certificate(&authority, "a.lan", now()).unwrap();
        let error = |chain: &str, key: &str| {
            let found = brought_certificate(chain.as_bytes(), key.as_bytes());
            found.unwrap_err().to_string()
        };
        let wrong = error(&chain, &other.key_pem);
        assert!(wrong.contains("does not belong"), "{wrong}");
        assert!(error(&chain, "").contains("no private key"));
        assert!(error("", &leaf.key_pem).contains("found none"));
        let long = leaf.certificate_pem.repeat(MAX_CHAIN + 1);
        assert!(error(&long, &leaf.key_pem).contains("more than"));
    }
}

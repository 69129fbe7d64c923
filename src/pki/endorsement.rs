//! What an authority's certificate says about the authority that it replaces.
//!
//! The key of an authority signs the public key of its successor, and the successor's certificate
//! carries that as an alternative name: `urn:kat:endorsement:FINGERPRINT:SIGNATURE`, with the SHA-256
//! of the endorsing authority's certificate and an ECDSA signature (ASN.1), both in hexadecimal. A
//! client that learns of a new authority from a server takes it only with such a signature of an
//! authority that it trusts already: whoever has copied the key of a server has not that of an
//! authority.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rcgen::{KeyPair, SanType, SigningKey, string::Ia5String};
use rustls::pki_types::CertificateDer;
use x509_parser::{certificate::X509Certificate, extensions::GeneralName};

use super::{PkiError, authority, request};

/// Start of the name, up to the fingerprint.
const PREFIX: &str = "urn:kat:endorsement:";
/// Start of what is signed. A certificate to sign begins with another byte.
const CONTEXT: &[u8] = b"kat authority endorsement\0";

/// What an endorsement says.
struct Endorsement {
    /// SHA-256 of the endorsing authority's certificate.
    endorser: String,
    signature: Vec<u8>,
}

/// The alternative name by which the authority with the certificate `by` endorses the one with this
/// common name and public key (DER, RFC 5280 4.1.2.7).
///
/// # Errors
/// [`PkiError::Certificate`] if it can't be signed.
pub(super) fn make(
    by: &CertificateDer<'_>,
    key: &KeyPair,
    common_name: &str,
    subject_key: &[u8],
) -> Result<SanType, PkiError> {
    let signature = key.sign(&statement(common_name, subject_key))?;
    let endorser = authority::fingerprint(by);
    let name = format!("{PREFIX}{endorser}:{}", hex::encode(signature));
    Ok(SanType::URI(Ia5String::try_from(name)?))
}

/// Whether the key of the authority `by` endorses the authority `certificate`.
pub(super) fn is_endorsed_by(certificate: &CertificateDer<'_>, by: &CertificateDer<'_>) -> bool {
    let verified = || {
        let (_, subject) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let (_, endorser) = x509_parser::parse_x509_certificate(by).ok()?;
        let common_name = request::only_common_name(subject.subject())?;
        // Two authorities of one cluster and one kind have the same name.
        if request::only_common_name(endorser.subject())? != common_name {
            return None;
        }
        let stated = stated(&subject).filter(|one| one.endorser == authority::fingerprint(by))?;
        let key = request::public_key_of(endorser.public_key()).ok()?;
        let message = statement(&common_name, subject.public_key().raw);
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
        key.verify(&message, &stated.signature).ok()
    };
    verified().is_some()
}

/// Whether who trusts both authorities may end its trust in `old` once `new` issues certificates:
/// `new` was made to replace `old`, or both were made to replace the same one, of which `old` was
/// given up. What they say about each other was verified when they were taken.
pub(super) fn supersedes(new: &CertificateDer<'_>, old: &CertificateDer<'_>) -> bool {
    let Some(before) = endorser_of(new) else {
        return false;
    };
    before == authority::fingerprint(old) || endorser_of(old) == Some(before)
}

fn endorser_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(stated(&parsed)?.endorser)
}

fn stated(certificate: &X509Certificate<'_>) -> Option<Endorsement> {
    let names = certificate.subject_alternative_name().ok()??;
    let mut names = names.value.general_names.iter();
    let text = names.find_map(|name| match name {
        GeneralName::URI(text) => text.strip_prefix(PREFIX),
        _ => None,
    })?;
    let (endorser, signature) = text.split_once(':')?;
    Some(Endorsement {
        endorser: endorser.to_owned(),
        signature: hex::decode(signature).ok()?,
    })
}

fn statement(common_name: &str, subject_key: &[u8]) -> Vec<u8> {
    [CONTEXT, common_name.as_bytes(), b"\0", subject_key].concat()
}

#[cfg(test)]
mod tests {
    use kat_types::store::authorities::AuthorityKind;

    use super::*;
    use crate::{Authority, tls};

    const UID: &str = "3f0c";

    fn der(authority: &Authority) -> CertificateDer<'static> {
        tls::first_certificate(authority.certificate_pem()).unwrap()
    }

    #[test]
    fn only_the_key_of_an_authority_endorses_its_successor() {
        let now = jiff::Timestamp::now();
        let first = Authority::generate(AuthorityKind::Cluster, UID, now).unwrap();
        let second = first.generate_successor(UID, now).unwrap();
        let twin = first.generate_successor(UID, now).unwrap();
        let third = second.generate_successor(UID, now).unwrap();
        let stranger = Authority::generate(AuthorityKind::Cluster, UID, now).unwrap();
        let all = [&first, &second, &twin, &third, &stranger].map(der);
        let [first, second, twin, third, stranger] = &all;
        let endorsed = [(second, first), (twin, first), (third, second)];
        for one in &all {
            for by in &all {
                let expected = endorsed.contains(&(one, by));
                assert_eq!(is_endorsed_by(one, by), expected);
            }
        }
        assert!(supersedes(second, first) && supersedes(third, second));
        assert!(supersedes(second, twin) && supersedes(twin, second));
        for (new, old) in [(first, second), (second, third), (third, first)] {
            assert!(!supersedes(new, old));
        }
        assert!(!supersedes(stranger, first) && !supersedes(first, stranger));
    }

    #[test]
    fn a_copied_endorsement_holds_for_its_key_and_kind_alone() {
        let now = jiff::Timestamp::now();
        let first = Authority::generate(AuthorityKind::Cluster, UID, now).unwrap();
        let genuine = der(&first.generate_successor(UID, now).unwrap());
        let (_, parsed) = x509_parser::parse_x509_certificate(&genuine).unwrap();
        let stated = stated(&parsed).unwrap();
        let name = format!(
            "{PREFIX}{}:{}",
            stated.endorser,
            hex::encode(stated.signature)
        );
        let forged = |common_name: &str| {
            let key = authority::generate_key().unwrap();
            let mut params = rcgen::CertificateParams::default();
            let mut subject = rcgen::DistinguishedName::new();
            subject.push(rcgen::DnType::CommonName, common_name);
            params.distinguished_name = subject;
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
            let name = Ia5String::try_from(name.clone()).unwrap();
            params.subject_alt_names = vec![SanType::URI(name)];
            params.self_signed(&key).unwrap().der().clone()
        };
        assert!(is_endorsed_by(&genuine, &der(&first)));
        assert!(!is_endorsed_by(
            &forged("kat cluster-ca 3f0c"),
            &der(&first)
        ));
        assert!(!is_endorsed_by(
            &forged("kat cluster-ca other"),
            &der(&first)
        ));
        // An authority of etcd's clients does not endorse one of the cluster.
        let etcd = Authority::generate(AuthorityKind::EtcdClients, UID, now).unwrap();
        let after = etcd.generate_successor(UID, now).unwrap();
        assert!(is_endorsed_by(&der(&after), &der(&etcd)));
        assert!(!is_endorsed_by(&der(&after), &der(&first)));
    }
}

//! Validity periods and renewal times of certificates.

use jiff::{SignedDuration, Timestamp};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;

use super::PkiError;

/// Validity of a leaf: 30 days.
pub const LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Validity of a certificate of the API: two days. Who copied one is a server of the API for so long.
pub const API_LEAF_LIFETIME: SignedDuration = SignedDuration::from_hours(48);
/// Validity of an authority: ten years.
pub const AUTHORITY_LIFETIME: SignedDuration = SignedDuration::from_hours(3653 * 24);
/// How long before its issue a certificate is already valid, for machines with slow clocks.
pub const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// The validity period of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Validity {
    /// From an hour before `now` until `lifetime` after it.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] for a time outside the range of a timestamp.
    pub(super) fn starting(now: Timestamp, lifetime: SignedDuration) -> Result<Self, PkiError> {
        let shift = |by: SignedDuration| {
            now.checked_add(by)
                .map_err(|error| PkiError::Certificate(format!("validity: {error}")))
        };
        Ok(Self {
            not_before: shift(-BACKDATED)?,
            not_after: shift(lifetime)?,
        })
    }

    /// Whether the period includes this time.
    pub fn holds(&self, at: Timestamp) -> bool {
        self.not_before <= at && at <= self.not_after
    }

    /// Whether two thirds of the period are over. A certificate that is not valid yet, because this
    /// machine's clock is slow, is not due.
    pub fn renew_due(&self, now: Timestamp) -> bool {
        let lifetime = self.not_after.duration_since(self.not_before);
        now.duration_since(self.not_before) >= lifetime * 2 / 3
    }
}

/// Converts a time for rcgen, in whole seconds.
pub(super) fn date(at: Timestamp) -> Result<OffsetDateTime, PkiError> {
    OffsetDateTime::from_unix_timestamp(at.as_second())
        .map_err(|error| PkiError::Certificate(format!("validity: {error}")))
}

/// The validity period of a certificate (PEM, the first one of a chain).
///
/// # Errors
/// [`PkiError::Pem`] or [`PkiError::Certificate`].
pub fn validity_of(certificate_pem: &str) -> Result<Validity, PkiError> {
    let der = super::tls::first_certificate(certificate_pem)?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der)
        .map_err(|error| PkiError::Certificate(error.to_string()))?;
    validity_of_parsed(&parsed)
}

fn validity_of_parsed(certificate: &X509Certificate<'_>) -> Result<Validity, PkiError> {
    let second = |value: i64| {
        Timestamp::from_second(value)
            .map_err(|error| PkiError::Certificate(format!("validity: {error}")))
    };
    let validity = certificate.validity();
    Ok(Validity {
        not_before: second(validity.not_before.timestamp())?,
        not_after: second(validity.not_after.timestamp())?,
    })
}

/// Whether a certificate (PEM) is due for renewal: two thirds of its validity are over.
///
/// # Errors
/// As [`validity_of`].
pub fn renew_due(certificate_pem: &str, now: Timestamp) -> Result<bool, PkiError> {
    Ok(validity_of(certificate_pem)?.renew_due(now))
}

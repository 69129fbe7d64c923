//! The files of an authority while it is being replaced. Each step can be interrupted between any
//! two writes, and is completed by repeating it.

use std::path::Path;

use kat_types::store::authorities::AuthorityKind;

use super::{Authority, AuthorityEdition, PkiError, files};
use crate::recovery_key::RecoveryKey;

/// Certificate of an edition; `None` if there is none.
///
/// # Errors
/// [`PkiError::File`].
pub fn edition_certificate(
    folder: &Path,
    kind: AuthorityKind,
    edition: AuthorityEdition,
) -> Result<Option<String>, PkiError> {
    match files::read(&folder.join(edition.certificate_file(kind))) {
        Ok(pem) => Ok(Some(pem)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Certificates of all trusted editions, one after the other.
///
/// # Errors
/// [`PkiError::File`]; there must be a present authority.
pub fn trusted_certificates(folder: &Path, kind: AuthorityKind) -> Result<String, PkiError> {
    let mut all = files::read(&folder.join(AuthorityEdition::Current.certificate_file(kind)))?;
    for edition in [AuthorityEdition::Next, AuthorityEdition::Old] {
        let more = edition_certificate(folder, kind, edition)?;
        if let Some(more) = more.filter(|more| !all.contains(more.trim())) {
            if !all.ends_with('\n') {
                all.push('\n');
            }
            all.push_str(&more);
        }
    }
    Ok(all)
}

/// Stores the authority that will sign. What an earlier replacement left is removed.
///
/// # Errors
/// As [`Authority::store`].
pub fn store_next(
    folder: &Path,
    authority: &Authority,
    recovery: &RecoveryKey,
) -> Result<(), PkiError> {
    let kind = authority.kind();
    for edition in [AuthorityEdition::Retired, AuthorityEdition::Old] {
        remove_edition(folder, kind, edition)?;
    }
    authority.store_edition(folder, AuthorityEdition::Next, recovery)
}

/// Makes the next authority the present one, and the present one the old one. Does nothing if there
/// is no next one.
///
/// # Errors
/// [`PkiError::File`], and as [`Authority::load`].
pub fn promote_next(
    folder: &Path,
    kind: AuthorityKind,
    recovery: &RecoveryKey,
) -> Result<(), PkiError> {
    if edition_certificate(folder, kind, AuthorityEdition::Next)?.is_none() {
        return Ok(());
    }
    // Loaded before anything is changed: a key that does not open or does not fit stays aside.
    let next = Authority::load_edition(folder, kind, AuthorityEdition::Next, recovery)?;
    if edition_certificate(folder, kind, AuthorityEdition::Old)?.is_none() {
        copy_edition(
            folder,
            kind,
            (AuthorityEdition::Current, AuthorityEdition::Old),
        )?;
    }
    next.store(folder, recovery)?;
    remove_edition(folder, kind, AuthorityEdition::Next)
}

/// Completes a promotion that was interrupted: until then the key on the disk may belong to another
/// certificate than the one beside it. Returns whether there was one.
///
/// # Errors
/// As [`promote_next`].
pub fn complete_promotion(
    folder: &Path,
    kind: AuthorityKind,
    recovery: &RecoveryKey,
) -> Result<bool, PkiError> {
    for edition in [AuthorityEdition::Next, AuthorityEdition::Old] {
        if edition_certificate(folder, kind, edition)?.is_none() {
            return Ok(false);
        }
    }
    promote_next(folder, kind, recovery)?;
    Ok(true)
}

/// Ends the trust in the old authority. Its key is kept until the replacement is complete.
///
/// # Errors
/// [`PkiError::File`].
pub fn retire_old(folder: &Path, kind: AuthorityKind) -> Result<(), PkiError> {
    if edition_certificate(folder, kind, AuthorityEdition::Old)?.is_none() {
        return Ok(());
    }
    copy_edition(
        folder,
        kind,
        (AuthorityEdition::Old, AuthorityEdition::Retired),
    )?;
    remove_edition(folder, kind, AuthorityEdition::Old)
}

/// Removes everything but the present authority. Returns whether there was anything.
///
/// # Errors
/// [`PkiError::File`].
pub fn forget_others(folder: &Path, kind: AuthorityKind) -> Result<bool, PkiError> {
    let mut any = false;
    for edition in AuthorityEdition::ALL {
        if edition != AuthorityEdition::Current {
            any |= edition_certificate(folder, kind, edition)?.is_some();
            remove_edition(folder, kind, edition)?;
        }
    }
    Ok(any)
}

/// The key is written first, so that a certificate on the disk always has its key.
fn copy_edition(
    folder: &Path,
    kind: AuthorityKind,
    (from, to): (AuthorityEdition, AuthorityEdition),
) -> Result<(), PkiError> {
    let sealed = files::read_bytes(&folder.join(from.sealed_file(kind)))?;
    let certificate = files::read_bytes(&folder.join(from.certificate_file(kind)))?;
    files::write_secret(&folder.join(to.sealed_file(kind)), &sealed)?;
    files::write_public(&folder.join(to.certificate_file(kind)), &certificate)
}

fn remove_edition(
    folder: &Path,
    kind: AuthorityKind,
    edition: AuthorityEdition,
) -> Result<(), PkiError> {
    files::remove(&folder.join(edition.certificate_file(kind)))?;
    files::remove(&folder.join(edition.sealed_file(kind)))
}

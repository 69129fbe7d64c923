//! The files of an authority while it is being replaced. Each step can be interrupted between any
//! two writes, and is completed by repeating it.

use std::path::Path;

use kat_types::store::authorities::AuthorityKind;

use super::{Authority, AuthorityEdition, PkiError, files, fingerprint_of};
use crate::{recovery_key::RecoveryKey, recovery_keys::RecoveryKeys};

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
    let _change = files::begin_change(folder)?;
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
    recovery: &RecoveryKeys,
) -> Result<(), PkiError> {
    let _change = files::begin_change(folder)?;
    promote(folder, kind, recovery)
}

fn promote(folder: &Path, kind: AuthorityKind, recovery: &RecoveryKeys) -> Result<(), PkiError> {
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
    next.store(folder, recovery.current())?;
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
    recovery: &RecoveryKeys,
) -> Result<bool, PkiError> {
    let _change = files::begin_change(folder)?;
    for edition in [AuthorityEdition::Next, AuthorityEdition::Old] {
        if edition_certificate(folder, kind, edition)?.is_none() {
            return Ok(false);
        }
    }
    promote(folder, kind, recovery)?;
    Ok(true)
}

/// Ends the trust in the old authority. Its key is kept until the replacement is complete.
///
/// # Errors
/// [`PkiError::File`].
pub fn retire_old(folder: &Path, kind: AuthorityKind) -> Result<(), PkiError> {
    let _change = files::begin_change(folder)?;
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
    let _change = files::begin_change(folder)?;
    let mut any = false;
    for edition in AuthorityEdition::ALL {
        if edition != AuthorityEdition::Current {
            any |= edition_certificate(folder, kind, edition)?.is_some();
            remove_edition(folder, kind, edition)?;
        }
    }
    Ok(any)
}

/// Trusts the authority that will sign, on a machine that has no keys of authorities. What an
/// earlier replacement left is removed.
///
/// # Errors
/// [`PkiError::File`].
pub fn store_next_certificate(
    folder: &Path,
    kind: AuthorityKind,
    certificate_pem: &str,
) -> Result<(), PkiError> {
    remove_edition(folder, kind, AuthorityEdition::Old)?;
    let file = folder.join(AuthorityEdition::Next.certificate_file(kind));
    files::write_public(&file, certificate_pem.as_bytes())
}

/// Makes a trusted authority the present one, on a machine that has no keys of authorities. The one
/// of before is trusted until [`forget_old_certificate`].
///
/// # Errors
/// [`PkiError::File`]; [`PkiError::Certificate`] if the authority is not trusted.
pub fn adopt_certificate(
    folder: &Path,
    kind: AuthorityKind,
    certificate_pem: &str,
) -> Result<(), PkiError> {
    let current = AuthorityEdition::Current;
    let hash = fingerprint_of(certificate_pem)?;
    let is = |edition| -> Result<bool, PkiError> {
        let known = edition_certificate(folder, kind, edition)?;
        known.map_or(Ok(false), |known| Ok(fingerprint_of(&known)? == hash))
    };
    let file = folder.join(current.certificate_file(kind));
    let Some(before) = edition_certificate(folder, kind, current)? else {
        return files::write_public(&file, certificate_pem.as_bytes());
    };
    if !is(current)? {
        if !is(AuthorityEdition::Next)? && !is(AuthorityEdition::Old)? {
            return Err(PkiError::Certificate(format!(
                "of {}: the leader sent one that is not trusted here",
                kind.name()
            )));
        }
        let old = folder.join(AuthorityEdition::Old.certificate_file(kind));
        files::write_public(&old, before.as_bytes())?;
        files::write_public(&file, certificate_pem.as_bytes())?;
    }
    if is(AuthorityEdition::Next)? {
        remove_edition(folder, kind, AuthorityEdition::Next)?;
    }
    Ok(())
}

/// Ends the trust in the authority of before, on a machine that has no keys of authorities.
///
/// # Errors
/// [`PkiError::File`].
pub fn forget_old_certificate(folder: &Path, kind: AuthorityKind) -> Result<(), PkiError> {
    remove_edition(folder, kind, AuthorityEdition::Old)
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

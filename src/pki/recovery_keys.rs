//! The recovery keys of a machine that holds etcd, and their files: `recovery.key`, and while the
//! key is replaced `recovery-next.key` and `recovery-old.key`. All are 0600, with one printed key a
//! line.
//!
//! Each step can be interrupted between any two writes, and is completed by repeating it: a key is
//! forgotten only after everything on the disk is sealed with the present one.

use std::path::{Path, PathBuf};

use kat_types::store::authorities::AuthorityKind;

use super::{AuthorityEdition, PkiError, files};
use crate::recovery_key::{RecoveryKey, SealError, open, seal};

/// Which of the files with recovery keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryKeyEdition {
    /// The key that seals.
    Current,
    /// The key that will seal.
    Next,
    /// Keys that sealed before. More than one where a replacement began anew.
    Old,
}

impl RecoveryKeyEdition {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Current, Self::Next, Self::Old];

    /// File name.
    pub fn file(self) -> &'static str {
        match self {
            Self::Current => "recovery.key",
            Self::Next => "recovery-next.key",
            Self::Old => "recovery-old.key",
        }
    }
}

/// The recovery keys that a machine holds: the present one seals, and each of them opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryKeys {
    current: RecoveryKey,
    others: Vec<RecoveryKey>,
}

impl From<RecoveryKey> for RecoveryKeys {
    fn from(current: RecoveryKey) -> Self {
        Self::new(current, [])
    }
}

impl RecoveryKeys {
    /// `others` open only. One that is there twice, or is the present one, counts once.
    pub fn new(current: RecoveryKey, others: impl IntoIterator<Item = RecoveryKey>) -> Self {
        let mut keys = Self {
            current,
            others: Vec::new(),
        };
        for other in others {
            if keys.all().all(|known| *known != other) {
                keys.others.push(other);
            }
        }
        keys
    }

    /// The key that seals.
    pub fn current(&self) -> &RecoveryKey {
        &self.current
    }

    /// The keys that open only.
    pub fn others(&self) -> &[RecoveryKey] {
        &self.others
    }

    /// All of them, the present one first.
    pub fn all(&self) -> impl Iterator<Item = &RecoveryKey> {
        std::iter::once(&self.current).chain(&self.others)
    }

    /// [`RecoveryKey::fingerprint`] of all of them, the present one first.
    pub fn fingerprints(&self) -> Vec<String> {
        self.all().map(RecoveryKey::fingerprint).collect()
    }

    /// The key with this fingerprint.
    pub fn with_fingerprint(&self, fingerprint: &str) -> Option<&RecoveryKey> {
        self.all().find(|key| key.fingerprint() == fingerprint)
    }

    /// Opens bytes that [`seal`] sealed with one of the keys.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self, sealed: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let first = match open(&self.current, sealed, context) {
            Err(error) => error,
            opened => return opened,
        };
        let mut others = self.others.iter();
        let opened = others.find_map(|key| open(key, sealed, context).ok());
        opened.ok_or(first)
    }
}

/// Path of the present key's file in the folder of keys (`/var/lib/kat/pki`).
pub fn recovery_key_file(folder: &Path) -> PathBuf {
    folder.join(RecoveryKeyEdition::Current.file())
}

/// Reads the present recovery key.
///
/// # Errors
/// [`PkiError::File`], also when there is none; [`PkiError::Key`].
pub fn load_recovery_key(folder: &Path) -> Result<RecoveryKey, PkiError> {
    let path = recovery_key_file(folder);
    parse(&path, files::read(&path)?.trim())
}

/// Reads all recovery keys.
///
/// # Errors
/// As [`load_recovery_key`].
pub fn load_recovery_keys(folder: &Path) -> Result<RecoveryKeys, PkiError> {
    // In the order in which a promotion writes them, backwards: a key that is moved from one file
    // to another meanwhile is seen in one of them.
    let next = keys_in(folder, RecoveryKeyEdition::Next)?;
    let current = load_recovery_key(folder)?;
    let old = keys_in(folder, RecoveryKeyEdition::Old)?;
    Ok(RecoveryKeys::new(current, next.into_iter().chain(old)))
}

/// The recovery key that will seal, if there is one.
///
/// # Errors
/// As [`load_recovery_key`].
pub fn next_recovery_key(folder: &Path) -> Result<Option<RecoveryKey>, PkiError> {
    Ok(keys_in(folder, RecoveryKeyEdition::Next)?
        .into_iter()
        .next())
}

/// Writes the present recovery key, into a folder whose mode becomes 0700.
///
/// # Errors
/// [`PkiError::File`].
pub fn store_recovery_key(folder: &Path, key: &RecoveryKey) -> Result<(), PkiError> {
    files::make_folder(folder)?;
    write(
        folder,
        RecoveryKeyEdition::Current,
        std::slice::from_ref(key),
    )
}

/// Writes recovery keys that another machine or a backup had. Keys that are on the disk already go
/// on opening.
///
/// # Errors
/// As [`load_recovery_key`].
pub fn store_recovery_keys(folder: &Path, keys: &RecoveryKeys) -> Result<(), PkiError> {
    files::make_folder(folder)?;
    let _change = files::begin_change(folder)?;
    let known = match load_recovery_keys(folder) {
        Ok(known) => known.all().cloned().collect(),
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(error),
    };
    let others = keys.others.iter().cloned().chain(known);
    let all = RecoveryKeys::new(keys.current.clone(), others);
    write(folder, RecoveryKeyEdition::Old, &all.others)?;
    store_recovery_key(folder, &all.current)?;
    files::remove(&folder.join(RecoveryKeyEdition::Next.file()))
}

/// Stores the key that will seal. It opens already, and one that was there before goes on opening.
///
/// # Errors
/// As [`load_recovery_key`].
pub fn store_next_recovery_key(folder: &Path, next: &RecoveryKey) -> Result<(), PkiError> {
    let _change = files::begin_change(folder)?;
    if let Some(before) = next_recovery_key(folder)?
        && before != *next
    {
        add_old(folder, before)?;
    }
    write(folder, RecoveryKeyEdition::Next, std::slice::from_ref(next))
}

/// Makes the next recovery key the present one, and seals the authorities' keys with it. The one of
/// before goes on opening. Does nothing if there is no next one.
///
/// # Errors
/// As [`load_recovery_key`]; [`PkiError::Key`] if the key of a present authority does not open, in
/// which case nothing is changed.
pub fn promote_recovery_key(folder: &Path) -> Result<(), PkiError> {
    let _change = files::begin_change(folder)?;
    promote(folder)
}

fn promote(folder: &Path) -> Result<(), PkiError> {
    let Some(next) = next_recovery_key(folder)? else {
        return Ok(());
    };
    let keys = load_recovery_keys(folder)?;
    check_authorities(folder, &keys)?;
    if keys.current != next {
        add_old(folder, keys.current)?;
        store_recovery_key(folder, &next)?;
    }
    seal_authorities_anew(folder)?;
    files::remove(&folder.join(RecoveryKeyEdition::Next.file()))
}

/// Completes a promotion that was interrupted. Returns whether there was one.
///
/// # Errors
/// As [`promote_recovery_key`].
pub fn complete_recovery_key_promotion(folder: &Path) -> Result<bool, PkiError> {
    let _change = files::begin_change(folder)?;
    let Some(next) = next_recovery_key(folder)? else {
        return Ok(false);
    };
    if load_recovery_key(folder)? != next {
        return Ok(false);
    }
    promote(folder)?;
    Ok(true)
}

/// Forgets all recovery keys but the present one, with which the authorities' keys are sealed
/// first. The caller has made sure that nothing in the store is sealed with another one. Returns
/// whether there was another key.
///
/// # Errors
/// As [`promote_recovery_key`].
pub fn forget_other_recovery_keys(folder: &Path) -> Result<bool, PkiError> {
    let _change = files::begin_change(folder)?;
    let keys = load_recovery_keys(folder)?;
    check_authorities(folder, &keys)?;
    seal_authorities_anew(folder)?;
    let mut any = false;
    for edition in [RecoveryKeyEdition::Next, RecoveryKeyEdition::Old] {
        let path = folder.join(edition.file());
        any |= path.exists();
        files::remove(&path)?;
    }
    Ok(any)
}

/// Removes all recovery keys, on a machine that does not hold etcd any more.
///
/// # Errors
/// [`PkiError::File`].
pub fn remove_recovery_keys(folder: &Path) -> Result<(), PkiError> {
    for edition in RecoveryKeyEdition::ALL {
        files::remove(&folder.join(edition.file()))?;
    }
    Ok(())
}

/// The sealed keys of authorities on the disk, with their editions.
fn sealed_files(
    folder: &Path,
) -> impl Iterator<Item = (AuthorityKind, AuthorityEdition, PathBuf)> + '_ {
    AuthorityKind::ALL.into_iter().flat_map(move |kind| {
        let editions = AuthorityEdition::ALL.into_iter();
        editions.filter_map(move |edition| {
            let path = folder.join(edition.sealed_file(kind));
            path.exists().then_some((kind, edition, path))
        })
    })
}

/// Refuses keys that do not open the key of a present authority.
fn check_authorities(folder: &Path, keys: &RecoveryKeys) -> Result<(), PkiError> {
    for (kind, edition, path) in sealed_files(folder) {
        let sealed = files::read_bytes(&path)?;
        let opened = keys.open(&sealed, kind.name().as_bytes());
        if let (AuthorityEdition::Current, Err(error)) = (edition, opened) {
            return Err(PkiError::Key(format!("of {}: {error}", kind.name())));
        }
    }
    Ok(())
}

/// Seals the keys of all editions of the authorities with the present recovery key. A file that no
/// held key opens is of no use, and stays as it is.
fn seal_authorities_anew(folder: &Path) -> Result<(), PkiError> {
    let keys = load_recovery_keys(folder)?;
    for (kind, _, path) in sealed_files(folder) {
        let context = kind.name().as_bytes();
        let sealed = files::read_bytes(&path)?;
        if open(&keys.current, &sealed, context).is_ok() {
            continue;
        }
        if let Ok(plain) = keys.open(&sealed, context) {
            let failed = |error| PkiError::Key(format!("of {}: {error}", kind.name()));
            let sealed = seal(&keys.current, &plain, context).map_err(failed)?;
            files::write_secret(&path, &sealed)?;
        }
    }
    Ok(())
}

/// Adds a key to the old ones, as the first of them.
fn add_old(folder: &Path, key: RecoveryKey) -> Result<(), PkiError> {
    let known = keys_in(folder, RecoveryKeyEdition::Old)?;
    let known = known.into_iter().filter(|one| *one != key);
    let all: Vec<_> = std::iter::once(key.clone()).chain(known).collect();
    write(folder, RecoveryKeyEdition::Old, &all)
}

/// The keys in a file; none if there is no such file.
fn keys_in(folder: &Path, edition: RecoveryKeyEdition) -> Result<Vec<RecoveryKey>, PkiError> {
    let path = folder.join(edition.file());
    let text = match files::read(&path) {
        Err(error) if error.is_not_found() => return Ok(Vec::new()),
        read => read?,
    };
    text.lines().map(|line| parse(&path, line)).collect()
}

fn parse(path: &Path, text: &str) -> Result<RecoveryKey, PkiError> {
    RecoveryKey::parse(text).map_err(|error| PkiError::Key(format!("{}: {error}", path.display())))
}

/// Writes the keys of a file; without keys there is no file.
fn write(folder: &Path, edition: RecoveryKeyEdition, keys: &[RecoveryKey]) -> Result<(), PkiError> {
    let path = folder.join(edition.file());
    if keys.is_empty() {
        return files::remove(&path);
    }
    let lines: String = keys
        .iter()
        .map(|key| format!("{}\n", key.reveal()))
        .collect();
    files::write_secret(&path, lines.as_bytes())
}

#[cfg(test)]
mod tests;

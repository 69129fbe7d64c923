//! A digest of the content of a folder, by which both ends of a copy are compared.

use std::fs::File;

use sha2::{Digest, Sha256};

use super::{
    CopyEntry, CopyError, CopyProgress, EntryKind, Owners, Summary,
    frames::encode_entry,
    walk::{WalkVisitor, walk},
};

/// Computes the digest and the summary.
pub(super) struct Digester {
    hash: Sha256,
    summary: Summary,
    buffer: Vec<u8>,
}

impl Default for Digester {
    fn default() -> Self {
        Self {
            hash: Sha256::new(),
            summary: Summary::default(),
            buffer: Vec::new(),
        }
    }
}

impl Digester {
    pub(super) fn entry(&mut self, entry: &CopyEntry) {
        self.buffer.clear();
        encode_entry(entry, &mut self.buffer);
        let length = u64::try_from(self.buffer.len()).unwrap_or(u64::MAX);
        self.hash.update(length.to_be_bytes());
        self.hash.update(&self.buffer);
        self.summary.files += u64::from(entry.kind != EntryKind::Folder);
    }

    pub(super) fn block(&mut self, offset: u64, block: &[u8]) {
        // Marks a block: no entry has this length.
        self.hash.update(u64::MAX.to_be_bytes());
        self.hash.update(offset.to_be_bytes());
        self.hash.update(block);
        self.summary.bytes += u64::try_from(block.len()).unwrap_or(0);
    }

    pub(super) fn end(&mut self) {
        self.hash.update((u64::MAX - 1).to_be_bytes());
    }

    pub(super) fn finish(self, skipped: u64) -> Summary {
        Summary {
            skipped,
            digest: hex::encode(self.hash.finalize()),
            ..self.summary
        }
    }
}

/// The summary and digest of the present content of a folder.
///
/// # Errors
/// [`CopyError`], also where the folder has content that is not copied.
pub fn digest(
    folder: &File,
    owners: &Owners,
    progress: &CopyProgress,
) -> Result<Summary, CopyError> {
    struct DigestVisitor<'p> {
        digester: Digester,
        progress: &'p CopyProgress,
    }
    impl WalkVisitor for DigestVisitor<'_> {
        fn entry(&mut self, entry: &CopyEntry) -> Result<(), CopyError> {
            self.digester.entry(entry);
            self.progress
                .add(u64::from(entry.kind != EntryKind::Folder), 0);
            self.progress.check()
        }

        fn block(&mut self, offset: u64, block: &[u8]) -> Result<(), CopyError> {
            self.digester.block(offset, block);
            self.progress
                .add(0, u64::try_from(block.len()).unwrap_or(0));
            self.progress.check()
        }

        fn end(&mut self) -> Result<(), CopyError> {
            self.digester.end();
            Ok(())
        }
    }
    let mut looking = DigestVisitor {
        digester: Digester::default(),
        progress,
    };
    let skipped = walk(folder, owners, &mut looking)?;
    Ok(looking.digester.finish(skipped))
}

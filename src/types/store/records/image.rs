//! Queries of [`ImageRecord`].

use crate::store::records::ImageRecord;

impl ImageRecord {
    /// Combines the records of several images into one; `None` if there are none.
    pub fn of_all(records: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut records = records.into_iter();
        let first = records.next()?;
        let others = records.collect();
        Some(Self { others, ..first })
    }

    /// The record of every image that was looked up.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        let all = std::iter::once(self).chain(&self.others);
        all.filter(|one| !one.reference.is_empty())
    }

    /// The pinned names of its images: equal if the same images run.
    pub fn pins(&self) -> Vec<&str> {
        self.each().map(|one| one.pinned.as_str()).collect()
    }

    /// Whether no image was looked up.
    pub fn is_empty(&self) -> bool {
        self.reference.is_empty()
    }

    /// The pinned name of this image, or the name itself if it is not pinned.
    pub fn pinned<'a>(&'a self, reference: &'a str) -> &'a str {
        let mut all = self.each();
        let found = all.find(|one| one.reference == reference && !one.pinned.is_empty());
        found.map_or(reference, |one| &one.pinned)
    }

    /// The architectures of this image; empty if unknown.
    pub fn architectures_of(&self, reference: &str) -> &[String] {
        let found = self.each().find(|one| one.reference == reference);
        found.map_or(&[], |one| &one.architectures)
    }
}

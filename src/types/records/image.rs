//! What the images of a version are known to be: asked for by the names that files give them.

use super::ImageRecord;

impl ImageRecord {
    /// One record of what is known of several images; nothing of none.
    pub fn of_all(records: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut records = records.into_iter();
        let first = records.next()?;
        let others = records.collect();
        Some(Self { others, ..first })
    }

    /// Every image that was asked for.
    pub fn each(&self) -> impl Iterator<Item = &Self> {
        let all = std::iter::once(self).chain(&self.others);
        all.filter(|one| !one.reference.is_empty())
    }

    /// What its images were pinned to: the same where the same runs.
    pub fn pins(&self) -> Vec<&str> {
        self.each().map(|one| one.pinned.as_str()).collect()
    }

    /// Nobody was asked.
    pub fn is_empty(&self) -> bool {
        self.reference.is_empty()
    }

    /// What instances run that are to run this image.
    pub fn pinned<'a>(&'a self, reference: &'a str) -> &'a str {
        let mut all = self.each();
        let found = all.find(|one| one.reference == reference && !one.pinned.is_empty());
        found.map_or(reference, |one| &one.pinned)
    }

    /// The architectures of this image.
    pub fn architectures_of(&self, reference: &str) -> &[String] {
        let found = self.each().find(|one| one.reference == reference);
        found.map_or(&[], |one| &one.architectures)
    }
}

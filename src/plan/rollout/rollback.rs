//! `autoRollback`: a stalled generation is replaced by the last one that was wholly healthy.

use super::slot::LiveInstance;
use crate::{older_leaders, service::WorkloadPlanner, status, status::InstanceTrouble};
use kat_types::{
    api::EventKind,
    reason::EventReason,
    store::{
        keys,
        records::{GenerationRecord, Origin, WorkloadMeta},
        revisions::WorkloadKey,
        snapshot::ArchivedGeneration,
        transaction::Compare,
    },
};

/// What became of the rollback of a stalled generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Rollback {
    /// No generation is taken again.
    None,
    /// A good generation is written as a new one, with which the next plan begins.
    Written,
    /// Why the last good generation is not taken again.
    Refused(String),
}

impl WorkloadPlanner<'_, '_, '_> {
    /// Writes the content of the last good generation as a new generation. Does nothing if there is
    /// none, or if the stalled generation was itself made by a rollback: a rollback happens once, and
    /// never in a circle.
    pub(crate) fn go_back(
        &mut self,
        all: &[LiveInstance<'_>],
        prepared: &[LiveInstance<'_>],
    ) -> Rollback {
        let (meta, archive) = (&self.entry.meta.value, &self.entry.archive);
        let origin = |generation| Some(archive.get(&generation)?.record.as_ref()?.origin);
        if matches!(
            origin(meta.generation),
            Some(Origin::RolledBack | Origin::RolledBackItself)
        ) {
            return Rollback::None;
        }
        // Only the newest good generation counts: it has replaced the version of any earlier one.
        let good = self.record.good.iter().rev();
        let found = good.copied().find(|good| *good < meta.generation);
        let found = found.and_then(|good| {
            let archived = archive.get(&good)?;
            let record = archived.record.as_ref()?;
            let differs = record.is_another(meta);
            (differs && !archived.files.is_empty()).then_some((good, archived, record))
        });
        let Some((good, archived, record)) = found else {
            return Rollback::None;
        };
        if let Some(why) = self.is_unread(good, archived) {
            return Rollback::Refused(why);
        }
        let trouble = status::instance_trouble(all.iter().chain(prepared))
            .as_ref()
            .map(InstanceTrouble::sentence);
        let trouble = trouble
            .or_else(|| all.iter().find_map(status::unchecked))
            .or_else(|| status::not_placed_before(&self.record.status));
        let why = format!(
            "generation {} made no progress{}; generation {good} is taken again",
            meta.generation,
            trouble.map_or_else(String::new, |why| format!(" ({why})")),
        );
        let meta = WorkloadMeta {
            generation: meta.generation + 1,
            spec_hash: record.spec_hash.clone(),
            template_hash: record.template_hash.clone(),
            restarted: record.restarted,
            image: record.image.clone(),
            updated: self.draft.now,
            stopped: None,
            ..meta.clone()
        };
        let record = GenerationRecord {
            schema: 1,
            applied: self.draft.now,
            by: String::new(),
            origin: Origin::RolledBackItself,
            of: Some(good),
            why: why.clone(),
            ..record.clone()
        };
        // Each file is written twice: as the manifest and into the archive.
        let files = archived.files.values().map(|file| file.value.len());
        self.make_room(2 * files.sum::<usize>());
        self.workload_event(EventKind::Warning, EventReason::RolledBack, why);
        let mut group = std::mem::take(&mut self.group);
        let WorkloadKey { namespace, name } = self.key;
        for (file, text) in &archived.files {
            group.put_text(keys::manifest(namespace, name, file), &text.value);
            let copy = keys::archive_file(namespace, name, meta.generation, file);
            group.put_text(copy, &text.value);
        }
        let gone = self.entry.files.keys();
        for file in gone.filter(|file| !archived.files.contains_key(*file)) {
            group.delete(keys::manifest(namespace, name, file));
        }
        let outdated = crate::outdated_generations(self.entry, meta.generation).into_iter();
        for generation in outdated.filter(|generation| *generation != good) {
            group.delete_prefix(keys::archive_generation(namespace, name, generation));
        }
        let archive_meta = keys::archive_meta(namespace, name, meta.generation);
        group.put(archive_meta, &record);
        let meta_key = keys::workload_meta(namespace, name);
        group.put(meta_key.clone(), &meta);
        let unchanged = Compare::ModRevision(meta_key, self.entry.meta.revision);
        let reason = format!("workload {} goes back to generation {good}", self.key);
        self.draft.commit(group, reason, vec![unchanged]);
        Rollback::Written
    }

    /// Why the files of a good generation must not be written now: a machine that may lead does not
    /// read them, and would read the present ones. A generation whose need is not known is taken, as
    /// by an earlier version.
    fn is_unread(&self, good: u64, archived: &ArchivedGeneration) -> Option<String> {
        let needed = archived.needed_reader.unwrap_or(1);
        let older = older_leaders(self.draft.snapshot, needed);
        let names: Vec<&str> = older.iter().map(String::as_str).collect();
        let names = names.join(", ");
        (!older.is_empty()).then(|| {
            format!(
                "generation {good} is not taken again, because a machine that may lead does not read its files: {names}; upgrade kat there"
            )
        })
    }
}

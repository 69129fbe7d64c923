//! A model of volume data on the machines. It counts the starts with each volume as rows, so a
//! start with another number of rows than the last one means lost or duplicated data.

use super::*;
use kat_agent::DesiredState;
use kat_types::api::{VolumeMovePhase, VolumeMoveReport};

/// The id of a move, and the folder of its volume.
type Copy = (String, String);

/// The volume data of one machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Carrying {
    /// By folder, how often an instance has started with its data.
    pub(crate) rows: BTreeMap<String, u64>,
    /// Complete copies that are not yet in the place of their volume, with their rows.
    pub(crate) copies: BTreeMap<Copy, u64>,
    placed: BTreeSet<Copy>,
    /// Folders that a move has placed and that no instance has used since.
    pub(crate) unused: BTreeSet<String>,
    /// The agent's reports on moves.
    pub(crate) said: Vec<VolumeMoveReport>,
    /// The copies that other machines currently offer to this one.
    pub(crate) offered: BTreeMap<Copy, u64>,
    /// Whether the disk has no space for a copy.
    pub(crate) full: bool,
    /// Folders in which an instance has started since the last check, with their rows at the start.
    started: Vec<(String, u64)>,
}

impl Carrying {
    pub(crate) fn start(&mut self, folder: &str) {
        self.unused.remove(folder);
        let rows = self.rows.entry(folder.to_owned()).or_default();
        self.started.push((folder.to_owned(), *rows));
        *rows += 1;
    }

    /// Performs the moves of a confirmed list, as the agent does.
    pub(crate) fn act(&mut self, name: &str, list: &DesiredState, data: &mut BTreeSet<String>) {
        self.said.clear();
        let taken = list.moves.iter().filter(|(_, wish)| wish.to == name);
        let taken: BTreeMap<Copy, _> = taken
            .map(|(volume, wish)| ((wish.id.clone(), volume.clone()), wish))
            .collect();
        self.copies.retain(|copy, _| taken.contains_key(copy));
        self.placed.retain(|copy| taken.contains_key(copy));
        for (copy, wish) in taken {
            let (id, volume) = copy.clone();
            let (mut phase, mut message) = (VolumeMovePhase::Copying, "");
            let may_go = wish.replaces || self.unused.contains(&volume);
            if self.placed.contains(&copy) {
                phase = VolumeMovePhase::Placed;
            } else if data.contains(&volume) && !may_go {
                message = "a folder is there already";
            } else if !wish.place {
                let offered = self.offered.get(&copy).copied();
                if let Some(rows) = offered.filter(|_| !self.full) {
                    self.copies.entry(copy.clone()).or_insert(rows);
                }
                match self.copies.contains_key(&copy) {
                    true => phase = VolumeMovePhase::Copied,
                    false if self.full => message = "no space left",
                    false => {}
                }
            } else if let Some(rows) = self.copies.remove(&copy) {
                data.insert(volume.clone());
                self.unused.insert(volume.clone());
                self.rows.insert(volume.clone(), rows);
                self.placed.insert(copy);
                phase = VolumeMovePhase::Placed;
            } else {
                phase = VolumeMovePhase::Lost;
            }
            self.said.push(VolumeMoveReport {
                volume,
                id,
                phase,
                message: message.to_owned(),
                ..VolumeMoveReport::default()
            });
        }
    }
}

impl World {
    /// Tells each machine which copies the others offer to it.
    pub(crate) fn offer(&mut self) {
        let offers: Vec<(String, Copy, u64)> = self
            .machines
            .iter()
            .filter(|(_, machine)| machine.obeys)
            .flat_map(|(name, machine)| machine.offers(name))
            .collect();
        for (name, machine) in &mut self.machines {
            let mine = offers.iter().filter(|(to, ..)| to == name);
            machine.carrying.offered = mine.map(|(_, copy, rows)| (copy.clone(), *rows)).collect();
        }
    }

    /// Checks that each start since the last check had all rows of its volume.
    pub(crate) fn check_rows(&mut self) {
        for (name, machine) in &mut self.machines {
            for (folder, rows) in std::mem::take(&mut machine.carrying.started) {
                if machine.shared {
                    continue;
                }
                let truth = self.rows.entry(folder.clone()).or_default();
                // The volume was removed and created again.
                if rows == 0 {
                    *truth = 0;
                }
                assert_eq!(rows, *truth, "{folder} on {name}");
                *truth += 1;
            }
        }
    }
}

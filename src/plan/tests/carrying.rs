//! What the machines of the world do with the data of volumes: how often something ran with each is counted, and who
//! starts with another count than the data had last has lost or doubled some.

use super::*;
use kat_agent::desired_state::desired::Desired;
use kat_types::api::{VolumeMovePhase, VolumeMoveReport};

/// Identity of a move, and the folder.
type Copy = (String, String);

/// Of one machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Carrying {
    /// How often something has run with what lies in a folder.
    pub(crate) rows: BTreeMap<String, u64>,
    /// Copies beside their places.
    pub(crate) copies: BTreeMap<Copy, u64>,
    placed: BTreeSet<Copy>,
    /// Folders that a move has put there, and nothing has run with.
    pub(crate) unused: BTreeSet<String>,
    /// What its agent says.
    pub(crate) said: Vec<VolumeMoveReport>,
    /// What others would send it now.
    pub(crate) offered: BTreeMap<Copy, u64>,
    /// Its disk takes no copy.
    pub(crate) full: bool,
    /// Folders with which something started, and their rows then.
    started: Vec<(String, u64)>,
}

impl Carrying {
    pub(crate) fn start(&mut self, folder: &str) {
        self.unused.remove(folder);
        let rows = self.rows.entry(folder.to_owned()).or_default();
        self.started.push((folder.to_owned(), *rows));
        *rows += 1;
    }

    /// The agent acts on a confirmed list.
    pub(crate) fn act(&mut self, name: &str, list: &Desired, data: &mut BTreeSet<String>) {
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
    /// Each machine sees what the others would send it.
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

    /// Whoever started since the last look did so with all that there was.
    pub(crate) fn check_rows(&mut self) {
        for (name, machine) in &mut self.machines {
            for (folder, rows) in std::mem::take(&mut machine.carrying.started) {
                if machine.shared {
                    continue;
                }
                let truth = self.rows.entry(folder.clone()).or_default();
                // Made anew, after it was removed.
                if rows == 0 {
                    *truth = 0;
                }
                assert_eq!(rows, *truth, "{folder} on {name}");
                *truth += 1;
            }
        }
    }
}

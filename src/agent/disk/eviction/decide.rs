//! Decides which instance is evicted when a file system is nearly full. Pure.
//!
//! Growth is no criterion: others can make an instance grow by writing to it.

/// The measured size of some folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MeasuredSize {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
    /// The measurement is complete; otherwise the sizes are lower bounds.
    pub whole: bool,
}

impl MeasuredSize {
    /// A complete measurement of nothing.
    pub(super) const NONE: Self = Self {
        bytes: 0,
        files: 0,
        whole: true,
    };

    /// The sum of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
            whole: self.whole && other.whole,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InstanceDiskUse {
    pub instance: String,
    /// Its storage request in bytes.
    pub request: u64,
    /// Data that is removed with its containers: their writable layers and unnamed volumes.
    pub layers: MeasuredSize,
    /// Data that stays after its stop: its volumes, and host paths that were made for it.
    pub data: MeasuredSize,
}

/// What the file system is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShortageKind {
    Bytes,
    Files,
}

/// How much the file system is short of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskShortage {
    pub kind: ShortageKind,
    /// The amount that has to become free.
    pub missing: u64,
    /// Hardly anything is left: where evictions free too little, growth has to be stopped.
    pub urgent: bool,
}

/// The criterion by which the instance was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionBasis {
    /// Stopping the instance frees its container data.
    Layers,
    /// Stopping the instance ends its growth; its data stays.
    Data,
}

/// The instance to evict: the one with the largest use above its request. The use is the container
/// data where that of all instances together is enough. Where it is not enough, instances with an
/// unfinished measurement are candidates, since they may have more. Otherwise, and only if it is
/// urgent, the use is all data of an instance.
pub(super) fn decide(
    uses: &[InstanceDiskUse],
    lack: DiskShortage,
) -> Option<(&InstanceDiskUse, EvictionBasis)> {
    let amount = |taken: MeasuredSize| match lack.kind {
        ShortageKind::Bytes => taken.bytes,
        ShortageKind::Files => taken.files,
    };
    let above = |one: &InstanceDiskUse, taken: MeasuredSize| {
        let request = match lack.kind {
            ShortageKind::Bytes => one.request,
            ShortageKind::Files => 0,
        };
        amount(taken).saturating_sub(request)
    };
    let largest = |taken: fn(&InstanceDiskUse) -> MeasuredSize,
                   only: fn(&InstanceDiskUse) -> bool| {
        let candidates = uses.iter().filter(|one| only(one));
        let candidates = candidates.filter(|one| above(one, taken(one)) > 0);
        candidates.max_by(|left, right| {
            let by_use = above(left, taken(left)).cmp(&above(right, taken(right)));
            by_use.then_with(|| right.instance.cmp(&left.instance))
        })
    };
    let freed = uses.iter().filter(|one| above(one, one.layers) > 0);
    let freed = freed.map(|one| amount(one.layers));
    let by_layers = match freed.fold(0, u64::saturating_add) >= lack.missing {
        true => largest(|one| one.layers, |_| true),
        false => largest(|one| one.layers, |one| !one.layers.whole),
    };
    if let Some(victim) = by_layers {
        return Some((victim, EvictionBasis::Layers));
    }
    let victim = largest(|one| one.layers.and(one.data), |_| true);
    victim
        .filter(|_| lack.urgent)
        .map(|victim| (victim, EvictionBasis::Data))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(bytes: u64) -> MeasuredSize {
        MeasuredSize {
            bytes,
            ..MeasuredSize::NONE
        }
    }

    fn one(instance: &str, request: u64, layers: u64, data: u64) -> InstanceDiskUse {
        InstanceDiskUse {
            instance: instance.to_owned(),
            request,
            layers: taken(layers),
            data: taken(data),
        }
    }

    const LACK: DiskShortage = DiskShortage {
        kind: ShortageKind::Bytes,
        missing: 50,
        urgent: false,
    };
    const URGENT: DiskShortage = DiskShortage {
        urgent: true,
        ..LACK
    };

    fn name(found: Option<(&InstanceDiskUse, EvictionBasis)>) -> Option<(String, EvictionBasis)> {
        found.map(|(one, basis)| (one.instance.clone(), basis))
    }

    #[test]
    fn the_largest_use_above_its_request_is_stopped() {
        let uses = [
            one("db", 1000, 900, 5000),
            one("filler", 0, 400, 0),
            one("web", 0, 30, 0),
        ];
        let filler = Some(("filler".to_owned(), EvictionBasis::Layers));
        assert_eq!(name(decide(&uses, LACK)), filler);
        assert_eq!(name(decide(&uses, URGENT)), filler);
    }

    #[test]
    fn volumes_count_only_where_layers_free_too_little_and_hardly_anything_is_left() {
        let uses = [one("db", 1000, 0, 5000), one("web", 0, 30, 0)];
        assert_eq!(decide(&uses, LACK), None);
        let db = Some(("db".to_owned(), EvictionBasis::Data));
        assert_eq!(name(decide(&uses, URGENT)), db);
        // An instance within its request is never evicted, however full the disk is.
        let within = [one("db", 6000, 0, 5000)];
        assert_eq!(decide(&within, URGENT), None);
    }

    #[test]
    fn an_unfinished_measure_may_have_what_is_missing() {
        let mut hidden = one("hidden", 0, 10, 0);
        hidden.layers.whole = false;
        let uses = [hidden, one("web", 0, 30, 0), one("db", 0, 0, 5000)];
        let found = Some(("hidden".to_owned(), EvictionBasis::Layers));
        assert_eq!(name(decide(&uses, LACK)), found);
    }

    #[test]
    fn inodes_have_no_request() {
        let mut many = one("many", 1 << 30, 10, 0);
        many.layers.files = 100_000;
        let uses = [one("large", 0, 1 << 30, 0), many];
        let lack = DiskShortage {
            kind: ShortageKind::Files,
            ..LACK
        };
        let found = Some(("many".to_owned(), EvictionBasis::Layers));
        assert_eq!(name(decide(&uses, lack)), found);
    }

    prop_compose! {
        fn any_use()(
            request in 0u64..100,
            (layers, data) in (0u64..200, 0u64..200),
            (files, whole) in (0u64..200, any::<bool>()),
        ) -> (u64, MeasuredSize, MeasuredSize) {
            (request, MeasuredSize { bytes: layers, files, whole }, taken(data))
        }
    }

    prop_compose! {
        fn any_uses()(each in prop::collection::vec(any_use(), 0..8)) -> Vec<InstanceDiskUse> {
            let numbered = each.into_iter().enumerate();
            let uses = numbered.map(|(number, (request, layers, data))| InstanceDiskUse {
                instance: format!("i{number}"),
                request,
                layers,
                data,
            });
            uses.collect()
        }
    }

    fn above(one: &InstanceDiskUse, lack: DiskShortage, basis: EvictionBasis) -> u64 {
        let all = match basis {
            EvictionBasis::Layers => one.layers,
            EvictionBasis::Data => one.layers.and(one.data),
        };
        match lack.kind {
            ShortageKind::Bytes => all.bytes.saturating_sub(one.request),
            ShortageKind::Files => all.files,
        }
    }

    proptest! {
        #[test]
        fn a_victim_is_above_its_request_and_nobody_is_further_above(
            uses in any_uses(),
            missing in 0u64..400,
            (urgent, of_files) in any::<(bool, bool)>(),
        ) {
            let kind = if of_files { ShortageKind::Files } else { ShortageKind::Bytes };
            let lack = DiskShortage { kind, missing, urgent };
            if let Some((victim, basis)) = decide(&uses, lack) {
                let most = above(victim, lack, basis);
                prop_assert!(most > 0);
                prop_assert!(basis == EvictionBasis::Layers || urgent);
                for other in &uses {
                    let equal_chance = victim.layers.whole || !other.layers.whole;
                    if basis == EvictionBasis::Data || equal_chance {
                        prop_assert!(above(other, lack, basis) <= most);
                    }
                }
            } else {
                // No instance exceeds its request, or none frees enough and the pressure is not
                // urgent.
                let any = uses.iter().any(|one| above(one, lack, EvictionBasis::Data) > 0);
                prop_assert!(!any || !urgent);
            }
        }

        #[test]
        fn the_order_of_the_instances_does_not_matter(
            uses in any_uses(),
            missing in 0u64..400,
            urgent in any::<bool>(),
        ) {
            let lack = DiskShortage { kind: ShortageKind::Bytes, missing, urgent };
            let mut turned = uses.clone();
            turned.reverse();
            prop_assert_eq!(name(decide(&uses, lack)), name(decide(&turned, lack)));
        }
    }
}

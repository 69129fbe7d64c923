//! Limits concurrent uses by each source address, so that one container leaves capacity for the
//! others.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// The present count of each source address. Sources without any are not stored.
#[derive(Debug)]
pub(crate) struct SourceShares {
    each: usize,
    taken: Mutex<BTreeMap<IpAddr, usize>>,
}

/// One use by a source address, until it is dropped.
#[derive(Debug)]
pub(crate) struct SourceShare {
    shares: Arc<SourceShares>,
    source: IpAddr,
}

impl SourceShares {
    pub(crate) fn new(each: usize) -> Arc<Self> {
        Arc::new(Self {
            each,
            taken: Mutex::default(),
        })
    }

    /// Takes one more for this source; `None` where its limit is reached.
    pub(crate) fn take(self: &Arc<Self>, source: IpAddr) -> Option<SourceShare> {
        let mut taken = self.taken.lock();
        let count = taken.get(&source).copied().unwrap_or_default();
        if count >= self.each {
            return None;
        }
        taken.insert(source, count + 1);
        Some(SourceShare {
            shares: Arc::clone(self),
            source,
        })
    }
}

impl Drop for SourceShare {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        match taken.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_has_all_of_its_own_leaves_others_theirs() {
        let shares = SourceShares::new(2);
        let [one, two] = ["10.100.0.7", "10.100.0.8"].map(|text| text.parse().unwrap());
        let first = shares.take(one).unwrap();
        let second = shares.take(one).unwrap();
        assert!(shares.take(one).is_none());
        let other = shares.take(two).unwrap();
        drop(first);
        let again = shares.take(one).unwrap();
        assert!(shares.take(one).is_none());
        drop((second, other, again));
        assert!(shares.taken.lock().is_empty());
    }
}

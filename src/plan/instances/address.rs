//! Addresses of instances (RFC001-KAT 7.2).

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// The next free address after `last`, wrapping around once; never the network's, the machine's or
/// the broadcast address. `None` if every address is taken.
///
/// Wrapping around keeps a freed address unused for as long as possible, so that a client that
/// still remembers it does not reach another workload.
pub fn next_address(
    subnet: Ipv4Net,
    is_taken: impl Fn(Ipv4Addr) -> bool,
    last: Option<Ipv4Addr>,
) -> Option<Ipv4Addr> {
    let first = u32::from(subnet.network()).checked_add(2)?;
    let end = u32::from(subnet.broadcast()).checked_sub(1)?;
    if first > end {
        return None;
    }
    let start = last
        .map(u32::from)
        .filter(|last| (first..end).contains(last))
        .map_or(first, |last| last + 1);
    (start..=end)
        .chain(first..start)
        .map(Ipv4Addr::from)
        .find(|address| !is_taken(*address))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn goes_round_and_names_exhaustion() {
        let subnet = net("10.0.0.0/29");
        let mut taken = BTreeSet::new();
        let mut last = None;
        for expected in 2..=6 {
            let next = next_address(subnet, |one| taken.contains(&one), last);
            assert_eq!(next, Some(Ipv4Addr::new(10, 0, 0, expected)));
            taken.extend(next);
            last = next;
        }
        assert_eq!(next_address(subnet, |one| taken.contains(&one), last), None);
        taken.remove(&Ipv4Addr::new(10, 0, 0, 3));
        assert_eq!(
            next_address(subnet, |one| taken.contains(&one), last),
            Some(Ipv4Addr::new(10, 0, 0, 3))
        );
    }
}

//! Top-level domains, and names that are used like one in private networks.
//!
//! A container writes WORKLOAD.NAMESPACE for a service of the cluster, so the services of a
//! namespace with such a name would take other hosts' names. New namespaces with these names are
//! refused, and for old ones the names outside take precedence (`network/dns/zone.rs`).

use std::{collections::BTreeSet, sync::LazyLock};

/// Delegated top-level domains, in lower case and in DNS form (RFC 5891), those of RFC 6761, RFC
/// 6762, RFC 7686, RFC 9476 and RFC 8375, and those that routers and offices use.
const LIST: &str = include_str!("../../packaging/top-level-domains");

static NAMES: LazyLock<BTreeSet<&str>> = LazyLock::new(|| LIST.lines().collect());

/// Whether a label is such a name, regardless of case.
pub fn contains(label: &str) -> bool {
    NAMES.contains(label.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_what_is_delegated_and_what_is_used_at_home() {
        for name in [
            "com",
            "de",
            "ck",
            "dev",
            "app",
            "shop",
            "xn--p1ai",
            "lan",
            "home",
            "local",
            "internal",
            "corp",
            "test",
            "localdomain",
            "onion",
            "alt",
            "example",
            "invalid",
            "localhost",
            "arpa",
            "DEV",
        ] {
            assert!(contains(name), "{name}");
        }
        for name in ["default", "production", "team-a", "web", ""] {
            assert!(!contains(name), "{name}");
        }
        let labels = NAMES.iter().all(|name| {
            (2..=63).contains(&name.len())
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        });
        assert!(labels);
    }
}

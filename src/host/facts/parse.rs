//! Parsers for texts of the kernel and of programs. Pure.

use std::{fmt, net::IpAddr};

/// The first three numbers of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramVersion {
    pub major: u32,
    /// Second number, 0 if there is none.
    pub minor: u32,
    /// Third number, 0 if there is none.
    pub patch: u32,
}

impl ProgramVersion {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// The first word of a text that begins with a digit, as in `podman version 5.4.2`.
    pub fn find(text: &str) -> Option<Self> {
        text.split(|character: char| character.is_whitespace() || "(),".contains(character))
            .map(|word| word.strip_prefix('v').unwrap_or(word))
            .find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
            .and_then(Self::parse)
    }

    fn parse(word: &str) -> Option<Self> {
        let mut numbers = word.split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        });
        Some(Self {
            major: numbers.next()??,
            minor: numbers.next().flatten().unwrap_or(0),
            patch: numbers.next().flatten().unwrap_or(0),
        })
    }
}

impl fmt::Display for ProgramVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // systemd's versions have one number.
        match (self.minor, self.patch) {
            (0, 0) => write!(formatter, "{}", self.major),
            (minor, patch) => write!(formatter, "{}.{minor}.{patch}", self.major),
        }
    }
}

/// The architecture's name in image platforms for its name in Rust.
pub fn architecture(name: &str) -> &str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// A field of /proc/meminfo, in bytes (proc_meminfo(5)).
pub fn meminfo(text: &str, field: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// Name servers of a resolv.conf(5), in their order.
pub fn name_servers(text: &str) -> Vec<IpAddr> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with(char::is_whitespace))
        .filter_map(|rest| {
            let word = rest.split_whitespace().next()?;
            // A link-local address may have its link behind a `%`.
            word.split('%').next()?.parse().ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_versions_in_what_programs_say() {
        for (text, expected) in [
            (
                "systemd 257 (257.9-1~deb13u1)\n+PAM",
                ProgramVersion::new(257, 0, 0),
            ),
            ("podman version 5.4.2", ProgramVersion::new(5, 4, 2)),
            (
                "etcd Version: 3.5.16\nGit SHA: x",
                ProgramVersion::new(3, 5, 16),
            ),
            (
                "nftables v1.1.3 (Commodore Bullmoose #4)",
                ProgramVersion::new(1, 1, 3),
            ),
            ("podman version 5.6.0-rc1", ProgramVersion::new(5, 6, 0)),
        ] {
            assert_eq!(ProgramVersion::find(text), Some(expected), "{text}");
        }
        assert_eq!(ProgramVersion::find("no version"), None);
        assert!(ProgramVersion::new(5, 10, 0) > ProgramVersion::new(5, 9, 9));
    }

    #[test]
    fn reads_memory_and_name_servers() {
        let text = "MemTotal:       2000 kB\nMemFree: 1 kB\nMemAvailable:   500 kB\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(512_000));
        assert_eq!(meminfo(text, "Mem"), None);
        let text = "# nameserver 9.9.9.9\nnameserver 192.0.2.1\nnameservers 1.1.1.1\n nameserver fe80::1%eth0\nsearch x\n";
        let expected: Vec<IpAddr> = ["192.0.2.1", "fe80::1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(name_servers(text), expected);
        assert_eq!(architecture("aarch64"), "arm64");
    }
}

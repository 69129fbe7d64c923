//! Versions of other programs, and the versions of etcd with known holes.

use std::fmt;

/// The first three numbers of a version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramVersion {
    /// First number.
    pub major: u32,
    /// Second number, 0 if there is none.
    pub minor: u32,
    /// Third number, 0 if there is none.
    pub patch: u32,
}

impl ProgramVersion {
    /// The version with these numbers.
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

/// The first patch release of each series of etcd without the holes in its users' rights:
/// CVE-2026-33343, CVE-2026-33413 and CVE-2026-73499. Older series have none.
pub const ETCD_MENDED: [ProgramVersion; 3] = [
    ProgramVersion::new(3, 5, 33),
    ProgramVersion::new(3, 6, 14),
    ProgramVersion::new(3, 7, 1),
];

/// Whether the rights of this etcd's users can be passed by.
pub fn etcd_has_known_holes(etcd: ProgramVersion) -> bool {
    let [oldest, ..] = ETCD_MENDED;
    let series = |one: &ProgramVersion| (one.major, one.minor);
    let mut mended = ETCD_MENDED.iter();
    let mended = mended.find(|mended| series(mended) == series(&etcd));
    etcd < mended.copied().unwrap_or(oldest)
}

/// The versions of [`ETCD_MENDED`] for a message: `3.5.33, 3.6.14, 3.7.1`.
pub fn etcd_mended_versions() -> String {
    ETCD_MENDED.map(|version| version.to_string()).join(", ")
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
    fn an_etcd_below_the_mended_release_of_its_series_has_known_holes() {
        for (major, minor, patch) in [(3, 4, 40), (3, 5, 16), (3, 5, 32), (3, 6, 13), (3, 7, 0)] {
            let version = ProgramVersion::new(major, minor, patch);
            assert!(etcd_has_known_holes(version), "{version}");
        }
        for (major, minor, patch) in [(3, 5, 33), (3, 6, 14), (3, 7, 1), (3, 8, 0), (4, 0, 0)] {
            let version = ProgramVersion::new(major, minor, patch);
            assert!(!etcd_has_known_holes(version), "{version}");
        }
        assert_eq!(etcd_mended_versions(), "3.5.33, 3.6.14, 3.7.1");
    }
}

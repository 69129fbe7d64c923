//! The packages of missing programs, by distribution (os-release(5)).

/// Distributions that share package names and a package manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Debian, Ubuntu and related distributions.
    Debian,
    /// Fedora, Red Hat Enterprise Linux and related distributions.
    Fedora,
    /// openSUSE and SUSE Linux Enterprise.
    Suse,
    /// Arch Linux and related distributions.
    Arch,
}

impl Family {
    /// The family of the first known word in `ID=` and then `ID_LIKE=`.
    pub fn of(os_release: &str) -> Option<Self> {
        let value = |key: &str| {
            os_release
                .lines()
                .filter_map(|line| line.trim().split_once('='))
                .filter(|(name, _)| *name == key)
                .map(|(_, value)| value.trim_matches(['"', '\'']))
                .next_back()
                .unwrap_or_default()
        };
        value("ID")
            .split_whitespace()
            .chain(value("ID_LIKE").split_whitespace())
            .find_map(|word| match word {
                "debian" | "ubuntu" => Some(Self::Debian),
                "fedora" | "rhel" | "centos" => Some(Self::Fedora),
                "suse" | "sles" | "opensuse" => Some(Self::Suse),
                "arch" => Some(Self::Arch),
                _ => None,
            })
    }
}

/// A requirement that a package provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Package {
    Podman,
    Etcd,
    /// `etcdutl`
    EtcdTools,
    Nftables,
    /// `newuidmap` and `newgidmap`
    IdMaps,
    /// `useradd`, `usermod` and `userdel`
    Accounts,
    Crun,
    /// `dbus.socket` of user managers
    UserBus,
    /// `pam_systemd.so`
    PamSystemd,
    /// The service that `timedatectl set-ntp` turns on
    TimeServer,
    /// `systemd-resolved.service`
    Resolved,
}

impl Package {
    /// The package's name; where the distribution is not known, the name of the project.
    fn name(self, family: Option<Family>) -> &'static str {
        use Family::{Debian, Fedora, Suse};
        match (self, family) {
            (Self::Podman, _) => "podman",
            (Self::Nftables, _) => "nftables",
            (Self::Crun, _) => "crun",
            (Self::Etcd, Some(Debian)) => "etcd-server",
            (Self::EtcdTools, Some(Debian)) => "etcd-client",
            (Self::EtcdTools, Some(Suse)) => "etcdutl",
            (Self::Etcd | Self::EtcdTools, _) => "etcd",
            (Self::IdMaps, Some(Debian)) => "uidmap",
            (Self::Accounts, Some(Debian)) => "passwd",
            (Self::IdMaps | Self::Accounts, Some(Fedora)) => "shadow-utils",
            (Self::IdMaps | Self::Accounts, _) => "shadow",
            (Self::UserBus, Some(Debian)) => "dbus-user-session",
            (Self::UserBus, Some(Fedora)) => "dbus-broker",
            (Self::UserBus, _) => "dbus",
            (Self::PamSystemd, Some(Debian)) => "libpam-systemd",
            (Self::PamSystemd, Some(Fedora)) => "systemd-pam",
            (Self::PamSystemd, _) => "systemd",
            (Self::TimeServer, Some(Debian)) => "systemd-timesyncd",
            (Self::TimeServer, _) => "chrony",
            (Self::Resolved, _) => "systemd-resolved",
        }
    }

    /// The command that installs the package; where the distribution is not known, a sentence with
    /// its name.
    pub(super) fn install(self, family: Option<Family>) -> String {
        let name = self.name(family);
        let Some(family) = family else {
            return format!("install the package {name}");
        };
        let command = match family {
            Family::Debian => "apt install",
            Family::Fedora => "dnf install",
            Family::Suse => "zypper install",
            Family::Arch => "pacman -S",
        };
        format!("sudo {command} {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_known_by_its_id_or_by_what_it_is_like() {
        for (text, family) in [
            (
                "NAME=\"Debian GNU/Linux\"\nID=debian\n",
                Some(Family::Debian),
            ),
            (
                "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
                Some(Family::Debian),
            ),
            ("ID=fedora\n", Some(Family::Fedora)),
            (
                "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
                Some(Family::Fedora),
            ),
            (
                "ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n",
                Some(Family::Suse),
            ),
            ("ID='sles'\nID_LIKE='suse'\n", Some(Family::Suse)),
            ("ID=manjaro\nID_LIKE=arch\n", Some(Family::Arch)),
            ("ID=alpine\nVERSION_ID=3.22\n", None),
            ("ID_LIKE_NOT=debian\n", None),
            ("", None),
        ] {
            assert_eq!(Family::of(text), family, "{text}");
        }
    }

    #[test]
    fn each_distribution_has_its_own_names_and_command() {
        for (family, etcd, tools, maps, accounts) in [
            (
                Some(Family::Debian),
                "sudo apt install etcd-server",
                "sudo apt install etcd-client",
                "sudo apt install uidmap",
                "sudo apt install passwd",
            ),
            (
                Some(Family::Fedora),
                "sudo dnf install etcd",
                "sudo dnf install etcd",
                "sudo dnf install shadow-utils",
                "sudo dnf install shadow-utils",
            ),
            (
                Some(Family::Suse),
                "sudo zypper install etcd",
                "sudo zypper install etcdutl",
                "sudo zypper install shadow",
                "sudo zypper install shadow",
            ),
            (
                Some(Family::Arch),
                "sudo pacman -S etcd",
                "sudo pacman -S etcd",
                "sudo pacman -S shadow",
                "sudo pacman -S shadow",
            ),
            (
                None,
                "install the package etcd",
                "install the package etcd",
                "install the package shadow",
                "install the package shadow",
            ),
        ] {
            assert_eq!(Package::Etcd.install(family), etcd);
            assert_eq!(Package::EtcdTools.install(family), tools);
            assert_eq!(Package::IdMaps.install(family), maps);
            assert_eq!(Package::Accounts.install(family), accounts);
        }
    }
}

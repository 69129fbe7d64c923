//! What a container needs beyond Podman's default confinement. The machine's owner has to allow it
//! with `securityAllow`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
};

use super::Container;

/// `SeccompProfile: unconfined`.
pub const SECCOMP: &str = "seccomp";
/// Access to paths of `/proc` and `/sys` that Podman masks or makes read-only.
pub const UNMASK: &str = "unmask";
/// Programs that gain privileges by set-id bits or file capabilities.
pub const NEW_PRIVILEGES: &str = "newPrivileges";
/// An SELinux label other than the container's own, or none.
pub const SELINUX: &str = "selinux";
/// Every capability.
pub const CAPABILITIES: &str = "capabilities";
/// Values of `securityAllow` besides names of capabilities.
pub const SECURITY_WORDS: [&str; 5] = [SECCOMP, UNMASK, NEW_PRIVILEGES, SELINUX, CAPABILITIES];
/// Folder of the seccomp profiles that root installed on the machine.
pub const PROFILES: &str = "/usr/share/containers";

/// Capabilities that need no permission: Podman's default set, and those that affect only the
/// container's own processes and network.
const FREE_CAPABILITIES: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_ADMIN",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "SYS_PTRACE",
];

impl Container {
    /// What the container needs that the machine's owner has to allow: values of [`SECURITY_WORDS`]
    /// and names of capabilities.
    pub fn security_wants(&self) -> BTreeSet<String> {
        let capabilities = self.cap_add.iter().map(String::as_str);
        let capabilities = capabilities.filter(|name| !FREE_CAPABILITIES.contains(name));
        let keys = wanted_by_keys(&self.quadlet).map(str::to_owned);
        keys.chain(capabilities.map(str::to_owned)).collect()
    }

    /// The container's seccomp profile, if it is outside [`PROFILES`] and so may not come from
    /// root.
    pub fn foreign_profile(&self) -> Option<&str> {
        let profile = self.quadlet.get("SeccompProfile")?;
        (profile != "unconfined" && !is_profile_of_machine(profile)).then_some(profile)
    }
}

/// The needs of passed-through keys. A value that is not clearly harmless counts as a need, since
/// Podman may interpret it that way.
fn wanted_by_keys(quadlet: &BTreeMap<String, String>) -> impl Iterator<Item = &'static str> {
    quadlet.iter().filter_map(|(key, value)| {
        let word = value.trim().to_ascii_lowercase();
        let is_true = matches!(word.as_str(), "1" | "yes" | "true" | "on");
        let is_false = matches!(word.as_str(), "0" | "no" | "false" | "off");
        match key.as_str() {
            "SeccompProfile" => (!is_profile_of_machine(value)).then_some(SECCOMP),
            "Unmask" => Some(UNMASK),
            "NoNewPrivileges" => (!is_true).then_some(NEW_PRIVILEGES),
            "SecurityLabelDisable" | "SecurityLabelNested" => (!is_false).then_some(SELINUX),
            other => other.starts_with("SecurityLabel").then_some(SELINUX),
        }
    })
}

/// Whether the text is the path of a file below [`PROFILES`], without `..`.
fn is_profile_of_machine(text: &str) -> bool {
    let path = Path::new(text);
    let mut parts = path.components();
    let plain = parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    plain && path.starts_with(PROFILES) && path != Path::new(PROFILES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(capabilities: &[&str], keys: &[(&str, &str)]) -> Vec<String> {
        let container = Container {
            cap_add: capabilities.iter().map(|name| (*name).to_owned()).collect(),
            quadlet: keys
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..Container::default()
        };
        container.security_wants().into_iter().collect()
    }

    #[test]
    fn what_podman_gives_by_itself_needs_no_word_of_the_owner() {
        assert!(wants(&["CHOWN", "NET_RAW", "SYS_PTRACE", "NET_ADMIN"], &[]).is_empty());
        for (key, value) in [
            ("Ulimit", "nofile=65536"),
            ("Mask", "/proc/cpuinfo"),
            ("NoNewPrivileges", "true"),
            ("NoNewPrivileges", "Yes"),
            ("SecurityLabelDisable", "false"),
            ("SeccompProfile", "/usr/share/containers/seccomp.json"),
        ] {
            assert!(wants(&[], &[(key, value)]).is_empty(), "{key}={value}");
        }
    }

    #[test]
    fn what_takes_confinement_away_needs_the_owners_word() {
        for (key, value, word) in [
            ("SeccompProfile", "unconfined", SECCOMP),
            ("SeccompProfile", "/srv/profile.json", SECCOMP),
            ("SeccompProfile", "profile.json", SECCOMP),
            (
                "SeccompProfile",
                "/usr/share/containers/../../../srv/a",
                SECCOMP,
            ),
            ("SeccompProfile", "/usr/share/containers", SECCOMP),
            ("SeccompProfile", "/usr/share/containers-of/a", SECCOMP),
            ("Unmask", "ALL", UNMASK),
            ("Unmask", "/proc/kcore", UNMASK),
            ("NoNewPrivileges", "false", NEW_PRIVILEGES),
            ("NoNewPrivileges", "perhaps", NEW_PRIVILEGES),
            ("SecurityLabelDisable", "TRUE", SELINUX),
            ("SecurityLabelDisable", "perhaps", SELINUX),
            ("SecurityLabelNested", "true", SELINUX),
            ("SecurityLabelType", "spc_t", SELINUX),
            ("SecurityLabelLevel", "s0:c1", SELINUX),
            ("SecurityLabelFileType", "usr_t", SELINUX),
        ] {
            assert_eq!(wants(&[], &[(key, value)]), [word], "{key}={value}");
        }
        assert_eq!(
            wants(&["SYS_ADMIN", "CHOWN", "BPF"], &[]),
            ["BPF", "SYS_ADMIN"]
        );
    }
}

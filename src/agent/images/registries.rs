//! The cluster's registry settings for this machine's Podman (containers-registries.conf(5)).

use kat_host::files::{self, FileAccess, FileError};
use kat_types::{machine::root::Root, registry::RegistrySettings};

/// The file, which Podman reads for every user.
pub(crate) const FILE: &str = "/etc/containers/registries.conf.d/50-kat.conf";

/// Writes the cluster's settings below `root`; removes the file where there are none. True where
/// the file changed.
pub(crate) fn write_registry_file(
    root: &Root,
    settings: &RegistrySettings,
) -> Result<bool, FileError> {
    let path = root.below(FILE);
    if settings.registries.is_empty() {
        let was_there = path.exists();
        files::remove(&path)?;
        return Ok(was_there);
    }
    if let Some(folder) = path.parent() {
        files::ensure_folder(folder, FileAccess::mode(0o755))?;
    }
    let text = rendered(settings);
    files::write_if_changed(&path, text.as_bytes(), FileAccess::mode(0o644))
}

/// Hosts and paths were checked when they were set: they contain no quotes and no control
/// characters.
fn rendered(settings: &RegistrySettings) -> String {
    let insecure = |host: &str| {
        settings
            .registries
            .get(host)
            .is_some_and(|one| one.insecure)
    };
    let mut text =
        "# Written by KAT and written again when it differs: katcall registry list\n".to_owned();
    for (host, setting) in &settings.registries {
        text.push_str(&format!("\n[[registry]]\nlocation = \"{host}\"\n"));
        if setting.insecure {
            text.push_str("insecure = true\n");
        }
        for mirror in &setting.mirrors {
            text.push_str(&format!("\n[[registry.mirror]]\nlocation = \"{mirror}\"\n"));
            let host = mirror
                .split_once('/')
                .map_or(mirror.as_str(), |(host, _)| host);
            if insecure(host) {
                text.push_str("insecure = true\n");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::registry::RegistrySetting;

    #[test]
    fn the_file_follows_what_is_set() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        std::fs::create_dir_all(root.below("/etc/containers")).unwrap();
        let none = RegistrySettings::default();
        assert!(!write_registry_file(&root, &none).unwrap());
        let set = |insecure, mirrors: &[&str]| RegistrySetting {
            insecure,
            mirrors: mirrors.iter().map(|one| (*one).to_owned()).collect(),
        };
        let settings = RegistrySettings {
            schema: 1,
            registries: [
                (
                    "docker.io".to_owned(),
                    set(false, &["mirror.lab:5000/hub", "b.example"]),
                ),
                ("mirror.lab:5000".to_owned(), set(true, &[])),
            ]
            .into(),
        };
        assert!(write_registry_file(&root, &settings).unwrap());
        assert!(
            !write_registry_file(&root, &settings).unwrap(),
            "nothing changed"
        );
        let text = std::fs::read_to_string(root.below(FILE)).unwrap();
        let expected = r#"# Written by KAT and written again when it differs: katcall registry list

[[registry]]
location = "docker.io"

[[registry.mirror]]
location = "mirror.lab:5000/hub"
insecure = true

[[registry.mirror]]
location = "b.example"

[[registry]]
location = "mirror.lab:5000"
insecure = true
"#;
        assert_eq!(text, expected);
        assert!(write_registry_file(&root, &none).unwrap());
        assert!(!root.below(FILE).exists());
    }
}

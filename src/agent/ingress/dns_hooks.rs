//! Programs of this machine that change records of DNS for proofs by DNS (docs/guide/certificates-by-dns.md).
//!
//! The settings name a hook, and root starts it: so its folder, its program and its credential are root's alone,
//! and it runs with the rights of nobody.

use std::{
    fs::Metadata,
    io,
    ops::RangeInclusive,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::runtime::Handle;

use kat_leader::{DnsHooks, HookChange, HookFailure, LONGEST_HOOK};
use kat_systemd::{Confinement, JobResult, TransientUnit, UnitManager};

/// Folder of the hooks.
const FOLDER: &str = "/etc/kat/dns-hooks";
/// Ending of a hook's credential, which no name of a hook has.
const CREDENTIAL: &str = "credential";
/// What a hook does not see: the cluster's keys and its sockets.
const HIDDEN: [&str; 2] = ["/var/lib/kat", "/run/kat"];
/// Most memory of a hook, in bytes, and most processes.
const MEMORY: u64 = 256 << 20;
const TASKS: u64 = 64;
/// How much longer than a hook systemd may take.
const MARGIN: Duration = Duration::from_secs(5);
/// Permissions of group and others to write.
const OTHERS_WRITE: u32 = 0o022;
/// All permissions of group and others.
const OTHERS: u32 = 0o077;
/// What the user of the hook needs: to read and to execute.
const OTHERS_RUN: u32 = 0o005;
/// What the user of the hook needs of the folder.
const OTHERS_ENTER: u32 = 0o001;
/// The exit codes of systemd's own where it could not start a program (systemd.exec(5)).
const SYSTEMDS: RangeInclusive<i32> = 200..=243;
/// Longest stop of a hook that nobody waits for any more.
const STOP: Duration = Duration::from_secs(10);

/// The hooks of this machine.
pub(crate) struct MachineDnsHooks {
    /// The system's manager.
    system: Arc<dyn UnitManager>,
    /// Name of this machine.
    node: String,
    folder: PathBuf,
    /// Who must own the files: root.
    owner: u32,
}

/// A hook that may be run.
#[derive(Debug, PartialEq, Eq)]
struct HookProgram {
    path: PathBuf,
    /// The file with its credential, if it has one.
    credential: Option<PathBuf>,
}

impl MachineDnsHooks {
    pub(crate) fn new(system: Arc<dyn UnitManager>, node: &str) -> Self {
        Self {
            system,
            node: node.to_owned(),
            folder: FOLDER.into(),
            owner: 0,
        }
    }

    /// The program of a hook, if nobody but its owner could have changed it.
    async fn program(&self, hook: &str) -> Result<HookProgram, HookFailure> {
        let (folder, hook, owner) = (self.folder.clone(), hook.to_owned(), self.owner);
        let found = tokio::task::spawn_blocking(move || program(&folder, &hook, owner)).await;
        let found = found.map_err(|error| HookFailure::Failed(error.to_string()))?;
        found.map_err(|why| HookFailure::NotUsable(format!("on {}, which leads, {why}", self.node)))
    }
}

#[async_trait]
impl DnsHooks for MachineDnsHooks {
    async fn check(&self, hook: &str) -> Result<(), HookFailure> {
        self.program(hook).await.map(drop)
    }

    async fn run(
        &self,
        hook: &str,
        change: HookChange,
        name: &str,
        value: &str,
    ) -> Result<(), HookFailure> {
        let HookProgram { path, credential } = self.program(hook).await?;
        let credentials = credential.map(|path| (CREDENTIAL.to_owned(), in_words(&path)));
        let unit = TransientUnit {
            name: format!("kat-dns-hook-{:016x}.service", rand::random::<u64>()),
            description: format!("DNS hook {hook}: {} of {name}", change.word()),
            command: vec![
                in_words(&path),
                change.word().to_owned(),
                // With its last dot, as programs for other ACME clients expect it.
                format!("{name}."),
                value.to_owned(),
            ],
            limit: LONGEST_HOOK,
            confinement: Some(Confinement {
                hidden: HIDDEN.map(str::to_owned).into(),
                credentials: credentials.into_iter().collect(),
                memory: MEMORY,
                tasks: TASKS,
            }),
            ..TransientUnit::default()
        };
        // A leader that is lost stops waiting: what the hook adds after that would be removed by nobody.
        let mut running = RunningHook {
            system: Arc::clone(&self.system),
            unit: Some(unit.name.clone()),
        };
        let limit = LONGEST_HOOK + MARGIN;
        let ended = self.system.run_transient(&unit, limit).await;
        running.unit = None;
        let (node, word) = (&self.node, change.word());
        let failed = |how: String| {
            // The name of the unit differs each time, and the message is stored.
            HookFailure::Failed(format!(
                "the DNS hook {hook} {how} at `{word}`; `journalctl -u 'kat-dns-hook-*'` on {node} has what it wrote"
            ))
        };
        match ended.map(|ended| (ended.result, ended.exit_status)) {
            Ok((JobResult::Done, _)) => Ok(()),
            Ok((_, Some(code))) if SYSTEMDS.contains(&code) => Err(failed(format!(
                "could not be started by systemd (its exit code {code}, see systemd.exec(5))"
            ))),
            Ok((_, Some(code))) => Err(failed(format!("ended with exit code {code}"))),
            Ok((_, None)) => Err(failed(format!(
                "was ended, after {} s at the latest,",
                LONGEST_HOOK.as_secs()
            ))),
            Err(error) => Err(HookFailure::Failed(format!(
                "the DNS hook {hook} does not run on {node}: {error}"
            ))),
        }
    }
}

/// Stops the unit of a hook when it is dropped before the hook has ended.
struct RunningHook {
    system: Arc<dyn UnitManager>,
    unit: Option<String>,
}

impl Drop for RunningHook {
    fn drop(&mut self) {
        let (Some(unit), Ok(runtime)) = (self.unit.take(), Handle::try_current()) else {
            return;
        };
        let system = Arc::clone(&self.system);
        runtime.spawn(async move {
            if let Err(error) = system.stop(&unit, STOP).await {
                tracing::debug!(unit, "a DNS hook ended by itself: {error:#}");
            }
        });
    }
}

fn in_words(path: &Path) -> String {
    path.display().to_string()
}

/// Why a file cannot be used, if `looked` tells so. Nobody but its owner may have changed it.
fn checked(path: &Path, looked: io::Result<Metadata>, owner: u32) -> Result<Metadata, String> {
    let metadata = match looked {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(format!("{} does not exist", path.display()));
        }
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    if metadata.uid() != owner || metadata.mode() & OTHERS_WRITE != 0 {
        return Err(format!(
            "{} must belong to root, and nobody else may write it",
            path.display()
        ));
    }
    Ok(metadata)
}

fn program(folder: &Path, hook: &str, owner: u32) -> Result<HookProgram, String> {
    let is_plain = |one: u8| one.is_ascii_alphanumeric() || one == b'-';
    if hook.is_empty() || !hook.bytes().all(is_plain) {
        return Err(format!("`{hook}` is no name of a DNS hook"));
    }
    // No other user can put another file in the place of one that is checked in such folders.
    if let Some(above) = folder.parent() {
        checked(above, above.symlink_metadata(), owner)?;
    }
    let found = checked(folder, folder.symlink_metadata(), owner)?;
    if !found.is_dir() || found.mode() & OTHERS_ENTER == 0 {
        return Err(format!(
            "{} must be a folder with mode 0755, which the user of the hook can enter",
            folder.display()
        ));
    }
    let path = folder.join(hook);
    let found = checked(&path, path.symlink_metadata(), owner)?;
    if !found.is_file() || found.mode() & OTHERS_RUN != OTHERS_RUN {
        return Err(format!(
            "{} must be a file with mode 0755, which the user of the hook can execute",
            path.display()
        ));
    }
    let credential = folder.join(format!("{hook}.{CREDENTIAL}"));
    let credential = match credential.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        looked => {
            let found = checked(&credential, looked, owner)?;
            if !found.is_file() || found.mode() & OTHERS != 0 {
                return Err(format!(
                    "{} must be a file with mode 0600",
                    credential.display()
                ));
            }
            Some(credential)
        }
    };
    Ok(HookProgram { path, credential })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    fn write(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        set(path, mode);
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_hook_is_a_program_that_nobody_but_its_owner_could_have_changed() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("dns-hooks");
        let owner = rustix::process::geteuid().as_raw();
        let found = |hook: &str| program(&folder, hook, owner);
        let refused = |hook: &str, why: &str| {
            let error = found(hook).unwrap_err();
            assert!(error.contains(why), "{hook}: {error}");
        };
        refused("cloud", "dns-hooks does not exist");
        fs::create_dir(&folder).unwrap();
        set(&folder, 0o755);
        refused("cloud", "cloud does not exist");
        let path = folder.join("cloud");
        write(&path, 0o755);
        let whole = |credential: Option<PathBuf>| HookProgram {
            path: path.clone(),
            credential,
        };
        assert_eq!(found("cloud").unwrap(), whole(None));

        for mode in [0o775, 0o757] {
            set(&path, mode);
            refused("cloud", "must belong to root");
            set(&path, 0o755);
            set(&folder, mode);
            refused("cloud", "must belong to root");
            set(&folder, 0o755);
        }
        assert!(program(&folder, "cloud", owner + 1).is_err());
        set(&folder, 0o700);
        refused("cloud", "can enter");
        set(&folder, 0o755);
        set(root.path(), 0o777);
        refused("cloud", "must belong to root");
        set(root.path(), 0o700);
        for mode in [0o644, 0o700] {
            set(&path, mode);
            refused("cloud", "mode 0755");
        }
        set(&path, 0o755);

        let credential = folder.join("cloud.credential");
        write(&credential, 0o644);
        refused("cloud", "mode 0600");
        set(&credential, 0o600);
        assert_eq!(found("cloud").unwrap(), whole(Some(credential.clone())));
        refused("cloud.credential", "is no name of a DNS hook");

        // Links, and names that lead elsewhere.
        write(&root.path().join("elsewhere"), 0o755);
        symlink("../elsewhere", folder.join("link")).unwrap();
        assert!(found("link").is_err());
        for hook in ["../elsewhere", "", ".", "a/b"] {
            refused(hook, "is no name of a DNS hook");
        }
    }
}

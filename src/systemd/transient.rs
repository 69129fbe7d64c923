//! Transient units, which run one command and leave nothing behind.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use zbus::{Variant, wire::Fd};

use super::{
    CommandStreams, Confinement, JobResult, SystemdError, TransientUnit, UnitStatus, error,
    link::ManagerLink, manager::within, proxies::SystemdManagerProxy, status,
};

/// Properties of all transient units. The command is stopped after the unit's limit, and killed
/// `kill_after` that.
pub(super) fn properties(
    unit: &TransientUnit,
    kill_after: Duration,
) -> Result<Vec<(&'static str, Variant<'static>)>, SystemdError> {
    let command = exactly(&unit.command, vec![]).ok_or_else(|| SystemdError::Refused {
        unit: unit.name.clone(),
        name: "no command".to_owned(),
        message: "a transient unit needs a program to run".to_owned(),
    })?;
    let mut properties = vec![
        ("Description", Variant::new(unit.description.clone())),
        ("Type", Variant::new("oneshot")),
        ("TimeoutStartUSec", microseconds(unit.limit)),
        ("TimeoutStopUSec", microseconds(kill_after)),
        // systemd unloads the unit after its end, whatever the result is, once it is no longer
        // referenced.
        ("CollectMode", Variant::new("inactive-or-failed")),
        ("AddRef", Variant::new(true)),
        ("Environment", Variant::new(unit.environment.clone())),
        ("ExecStartEx", command),
    ];
    let afterwards = exactly(&unit.afterwards, vec!["ignore-failure"]);
    properties.extend(afterwards.map(|command| ("ExecStopPostEx", command)));
    if let Some(confinement) = &unit.confinement {
        properties.extend(confined(confinement));
    }
    Ok(properties)
}

fn confined(confinement: &Confinement) -> Vec<(&'static str, Variant<'static>)> {
    let hidden = confinement.hidden.iter();
    let hidden: Vec<String> = hidden.map(|path| format!("-{path}")).collect();
    vec![
        // This includes a read-only file system, a temporary folder and no new rights.
        ("DynamicUser", Variant::new(true)),
        ("CapabilityBoundingSet", Variant::new(0_u64)),
        ("PrivateDevices", Variant::new(true)),
        ("ProtectHome", Variant::new("yes")),
        ("ProtectProc", Variant::new("invisible")),
        ("ProtectKernelTunables", Variant::new(true)),
        ("ProtectKernelModules", Variant::new(true)),
        ("ProtectControlGroups", Variant::new(true)),
        ("InaccessiblePaths", Variant::new(hidden)),
        (
            "LoadCredential",
            Variant::new(confinement.credentials.clone()),
        ),
        ("MemoryMax", Variant::new(confinement.memory)),
        ("MemorySwapMax", Variant::new(0_u64)),
        ("TasksMax", Variant::new(confinement.tasks)),
        // Otherwise it goes where the standard output goes.
        ("StandardError", Variant::new("journal")),
    ]
}

fn microseconds(time: Duration) -> Variant<'static> {
    Variant::new(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// A command whose words systemd passes unchanged: otherwise it would replace `$NAME`, and `$$` by
/// `$` (systemd.service(5), `ExecStart=:`).
fn exactly(words: &[String], mut flags: Vec<&'static str>) -> Option<Variant<'static>> {
    flags.push("no-env-expand");
    let program = words.first()?.clone();
    Some(Variant::new(vec![(program, words.to_vec(), flags)]))
}

fn descriptor(file: &OwnedFd) -> Variant<'_> {
    Variant::Fd(Fd::Borrowed(file.as_fd()))
}

/// A run of a transient unit.
pub(super) struct TransientRun {
    pub(super) manager: String,
    pub(super) link: Arc<ManagerLink>,
    pub(super) unit: String,
}

impl TransientRun {
    /// Starts the unit, waits for its end, and releases it. Its properties are read if it did not
    /// succeed.
    pub(super) async fn run(
        self,
        properties: Vec<(&'static str, Variant<'static>)>,
        streams: Option<CommandStreams>,
        limit: Duration,
    ) -> Result<(JobResult, UnitStatus), SystemdError> {
        let Self {
            manager,
            link,
            unit,
        } = &self;
        let start = async move |systemd: SystemdManagerProxy<'static>| {
            let mut properties: Vec<(&str, Variant<'_>)> = properties;
            if let Some(streams) = &streams {
                properties.extend([
                    ("StandardOutputFileDescriptor", descriptor(&streams.stdout)),
                    ("StandardErrorFileDescriptor", descriptor(&streams.stderr)),
                ]);
                let stdin = streams.stdin.as_ref().map(descriptor);
                properties.extend(stdin.map(|file| ("StandardInputFileDescriptor", file)));
            }
            // The manager has duplicates of the files when it answers. These are closed then, so
            // that the other ends see the command's end.
            systemd
                .start_transient_unit(unit, "fail", &properties, &[])
                .await
        };
        let ran = async {
            let result = link.job(manager, unit, start).await?;
            let status = match result {
                JobResult::Done => Ok(UnitStatus::default()),
                _ => status::read(link, unit).await,
            };
            let status = status.map_err(|error| error::map(manager, unit, error))?;
            Ok((result, status))
        };
        let ran = within(unit, limit, ran).await;
        if let Err(error) = link.manager().unref_unit(unit).await {
            tracing::debug!(unit, "a transient unit was not held: {error:#}");
        }
        ran
    }
}

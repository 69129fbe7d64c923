//! The quadlets of one instance.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    RenderError, RenderSettings, Renderer, UnitFile, UnitFileKind, environment_files,
    images::image_reference,
    mounts::{MountValues, mounts_of},
    quote,
};
use crate::container_order::ContainerPosition;
use kat_types::{
    assignment::{Assignment, WorkloadUser},
    machine::{fence::START_MARGIN_SECONDS, gpu::CdiName, network::ANNOTATION},
    resource::{
        Container, DeviceMapping, MilliCpu, OnPartition, OtherKind, ResourceList, Resources,
        RestartCondition,
    },
};

/// Suffix of files with the value of one variable.
pub const VALUE_SUFFIX: &str = ".value";
/// Seconds that a stop may take beyond the kill of the container.
const STOP_MARGIN_SECONDS: u32 = 10;
/// Seconds before the first restart.
const RESTART_SECONDS: u32 = 1;
/// Restarts until the delay has grown to [`RESTART_MAX_SECONDS`].
const RESTART_STEPS: u32 = 6;
/// Longest delay before a restart. It is short, because systemd never resets its count of restarts,
/// however long the unit has run since: even one crash a month leads to the longest delay.
const RESTART_MAX_SECONDS: u32 = 60;

/// Values of the template `instance.container`.
#[derive(Debug, Serialize)]
struct InstanceValues<'a> {
    instance: &'a str,
    namespace: &'a str,
    workload: &'a str,
    workload_uid: &'a str,
    slot: u32,
    generation: u64,
    template_hash: &'a str,
    /// The unit's name without `.service`, which is also the container's name.
    unit: &'a str,
    image: String,
    annotation: &'static str,
    hooks_folder: String,
    hook_program: String,
    hook_file: String,
    resolv_file: String,
    /// What begins a run of a schedule that the machine keeps by itself.
    gate: Option<GateValues>,
    labels: Vec<NameValuePair>,
    environment_file: Option<String>,
    /// Variables whose values have files of their own.
    secrets: Vec<SecretVariableValues>,
    entrypoint: &'a [String],
    arguments: Vec<&'a str>,
    argument_variables: Vec<NameValuePair>,
    /// Keys that each have their value from one field.
    plain_keys: Vec<PlainKey>,
    devices: Vec<DeviceValues<'a>>,
    /// CDI name of its GPU.
    gpu: Option<&'a str>,
    host_network: bool,
    /// On the machine's own network the hook is called only to ask whether the instance may start.
    fenced: bool,
    /// The container whose network it shares.
    network: Option<String>,
    /// Kind and name of a container other than the main one: `sidecar proxy`.
    other: Option<String>,
    /// Units that have to run before it.
    requires: Vec<String>,
    /// Units that are started before it; their failure does not stop it.
    wants: Vec<String>,
    #[serde(flatten)]
    lifecycle: LifecycleValues,
    #[serde(flatten)]
    limits: LimitValues,
    mounts: Vec<MountValues>,
}

/// The files of the gate of an instance's runs.
#[derive(Debug, Serialize)]
struct GateValues {
    times: String,
    runs: String,
}

/// When a container is started, restarted and ended.
#[derive(Debug, Serialize)]
struct LifecycleValues {
    /// Whether it ends by itself, once for each start of its instance.
    once: bool,
    /// The unit of a Job stays active when its program has ended with success, so that the end is
    /// known however long nobody looks.
    remains: bool,
    /// Seconds after which the unit of a Job is ended.
    runtime_max: Option<u32>,
    /// The systemd setting that checks for the files it needs.
    condition: &'static str,
    #[serde(flatten)]
    restart: RestartValues,
    start_timeout: String,
    stop_timeout: u32,
    /// Whether it starts at boot without the agent; an instance that has to ask first is started by
    /// the agent.
    starts_at_boot: bool,
}

impl LifecycleValues {
    fn of(place: &ContainerPosition, assignment: &Assignment, settings: &RenderSettings) -> Self {
        let Assignment {
            container,
            on_partition,
            run,
            bound,
            ..
        } = assignment;
        let grace = container.termination_grace_seconds;
        Self {
            once: place.is_init(),
            // One that remains active is started by no timer again.
            remains: place.kind.is_none() && assignment.runs_once() && bound.is_none(),
            runtime_max: run
                .as_ref()
                .and_then(|run| run.seconds_left)
                .or_else(|| bound.as_ref().and_then(|bound| bound.deadline_seconds))
                .filter(|_| place.kind.is_none()),
            condition: match place.kind {
                None => "ExecCondition",
                Some(_) => "ExecStartPre",
            },
            restart: match place.kind {
                // A kill of a Job must not look like success.
                None if assignment.runs_once() => until_it_ends(assignment),
                None => restart_of(assignment),
                Some(OtherKind::Sidecar) => always(),
                Some(OtherKind::Init) => until_it_ends(assignment),
            },
            start_timeout: match place.is_init() {
                true => "infinity".to_owned(),
                false => start_seconds(settings).to_string(),
            },
            stop_timeout: grace.saturating_add(STOP_MARGIN_SECONDS),
            starts_at_boot: place.kind.is_none()
                && *on_partition == OnPartition::Keep
                && !place.asks_first
                // What was begun before a boot is not begun again.
                && !assignment.runs_once(),
        }
    }
}

/// What a container may use of the machine at most.
#[derive(Debug, Serialize)]
struct LimitValues {
    memory_max: Option<u64>,
    cpu_quota: Option<String>,
}

impl LimitValues {
    fn of(limits: &ResourceList) -> Self {
        // Only a request: the agent measures the use (`agent/disk/eviction`).
        let ResourceList {
            cpu,
            memory,
            storage: _,
        } = limits;
        Self {
            memory_max: memory.map(|size| size.0),
            cpu_quota: cpu.map(cpu_quota),
        }
    }
}

/// A device of the machine.
#[derive(Debug, Serialize)]
struct DeviceValues<'a> {
    /// The value of podman's option `--device`.
    entry: &'a str,
    host: &'a str,
    reads: bool,
    writes: bool,
}

impl<'a> DeviceValues<'a> {
    fn of(entry: &'a str) -> Option<Self> {
        let DeviceMapping {
            host,
            reads,
            writes,
            ..
        } = DeviceMapping::parse(entry)?;
        Some(Self {
            entry,
            host,
            reads,
            writes,
        })
    }
}

/// A Podman secret for one variable, which exists as long as its container.
#[derive(Debug, Serialize)]
struct SecretVariableValues {
    name: String,
    variable: String,
    file: String,
}

/// Name of the file with a value that can't be in the common file.
fn value_name(stem: &str, number: usize) -> String {
    format!("{stem}.{number}{VALUE_SUFFIX}")
}

#[derive(Debug, Serialize)]
struct NameValuePair {
    name: String,
    value: String,
}

/// The restart policy as systemd settings (systemd.service(5), systemd.unit(5)).
#[derive(Debug, Serialize)]
pub(crate) struct RestartValues {
    restart: &'static str,
    restart_seconds: Option<u32>,
    restart_steps: Option<u32>,
    restart_max_seconds: Option<u32>,
    /// Whether ends by a stop's signals count as clean.
    signals_are_clean: bool,
    /// Whether these signals nevertheless restart the program, unless it was stopped.
    restart_on_signals: bool,
    start_limit_interval: u32,
    start_limit_burst: Option<u32>,
}

/// Values of the template `instance.timer`.
#[derive(Debug, Serialize)]
struct TimerValues<'a> {
    instance: &'a str,
    namespace: &'a str,
    workload: &'a str,
    unit: String,
    times: Vec<String>,
}

/// Values of the template `user-delegate.conf`.
#[derive(Debug, Serialize)]
struct DelegateValues<'a> {
    namespace: &'a str,
    workload: &'a str,
}

impl Renderer {
    /// The files of an instance for [`RenderSettings::user_folder`]: its `.container` first, then
    /// the files with values of its variables, if any, and the same for its other containers.
    ///
    /// Fails for fields that have no effect yet, and for values that the unit's readers would
    /// change.
    pub fn instance(
        &self,
        assignment: &Assignment,
        settings: &RenderSettings,
    ) -> Result<Vec<UnitFile>, RenderError> {
        let mut files = Vec::new();
        if assignment.network_unit().is_some() {
            files.push(self.network(assignment, settings)?);
        }
        for (place, only) in ContainerPosition::all(assignment) {
            files.extend(self.container(&place, &only, settings)?);
        }
        // The main container's files come first.
        if let Some(main) = files
            .iter()
            .position(|file| file.service().as_deref() == Some(&*assignment.unit()))
        {
            files.rotate_left(main);
        }
        Ok(files)
    }

    /// The files of one container of an instance, which is reduced to that container.
    fn container(
        &self,
        place: &ContainerPosition,
        assignment: &Assignment,
        settings: &RenderSettings,
    ) -> Result<Vec<UnitFile>, RenderError> {
        let stem = place.stem();
        let environment = environment_files(&assignment.container.env).map_err(|source| {
            RenderError::Environment {
                instance: assignment.instance.clone(),
                source,
            }
        })?;
        let values_name = format!("{stem}.env");
        let folder = settings.user_folder(assignment.user.uid);
        let mut values = values_of(place, assignment, settings)?;
        values.environment_file = (!environment.podman.is_empty())
            .then(|| folder.join(&values_name).display().to_string());
        let own = environment.values.iter().enumerate();
        values.secrets = own
            .map(|(number, (variable, _))| SecretVariableValues {
                name: format!("{stem}.{number}"),
                variable: variable.clone(),
                file: folder.join(value_name(stem, number)).display().to_string(),
            })
            .collect();
        let mut files = vec![UnitFile {
            name: format!("{stem}.container"),
            text: self.render("instance.container", &values)?,
            kind: UnitFileKind::Quadlet,
        }];
        let own = environment.values.into_iter().enumerate();
        let own = own.map(|(number, (_, value))| (value_name(stem, number), value));
        let lines = (values_name, environment.podman);
        for (name, text) in std::iter::once(lines).chain(own) {
            if !text.is_empty() {
                files.push(UnitFile {
                    name,
                    text,
                    kind: UnitFileKind::Environment,
                });
            }
        }
        Ok(files)
    }

    /// The timer that starts the unit of an instance at these times, which are in the form of
    /// `OnCalendar=` (systemd.time(7)).
    pub fn timer(
        &self,
        assignment: &Assignment,
        times: Vec<String>,
    ) -> Result<String, RenderError> {
        self.render(
            "instance.timer",
            &TimerValues {
                instance: &assignment.instance,
                namespace: &assignment.namespace,
                workload: &assignment.workload,
                unit: assignment.unit(),
                times,
            },
        )
    }

    /// The drop-in `50-kat.conf` of `user@UID.service` for a workload's user.
    pub fn user_delegation(&self, assignment: &Assignment) -> Result<String, RenderError> {
        let Assignment {
            namespace,
            workload,
            ..
        } = assignment;
        self.render(
            "user-delegate.conf",
            &DelegateValues {
                namespace,
                workload,
            },
        )
    }
}

fn values_of<'a>(
    place: &'a ContainerPosition,
    assignment: &'a Assignment,
    settings: &RenderSettings,
) -> Result<InstanceValues<'a>, RenderError> {
    let Assignment {
        schema: _,
        instance,
        namespace,
        workload,
        workload_uid,
        workload_type: _,
        labels: _,
        slot,
        generation,
        template_hash,
        user: WorkloadUser { .. },
        address: _,
        image: _,
        container,
        init_containers: _,
        sidecars: _,
        ports: _,
        health_check: _,
        restart_policy: _,
        created: _,
        on_partition,
        // `kat-net` has it of the agent.
        machine_access: _,
        volumes: _,
        secrets: _,
        logins: _,
        run: _,
        gpu: _,
        bound: _,
        wanted: _,
        not_understood: _,
        carried: _,
    } = assignment;
    let Container {
        command,
        args,
        entrypoint,
        host_network,
        resources: Resources { limits, .. },
        ..
    } = container;
    let arguments: Vec<&str> = command.iter().chain(args).map(String::as_str).collect();
    Ok(InstanceValues {
        instance,
        namespace,
        workload,
        workload_uid,
        slot: *slot,
        generation: *generation,
        template_hash,
        unit: place.stem(),
        image: image_reference(assignment)?,
        annotation: ANNOTATION,
        hooks_folder: settings.hooks_folder.display().to_string(),
        hook_program: settings.hook_program.display().to_string(),
        hook_file: settings.hook_file().display().to_string(),
        resolv_file: settings.resolv_file(namespace).display().to_string(),
        gate: gate_of(place, assignment, settings),
        labels: labels_of(assignment),
        environment_file: None,
        secrets: Vec::new(),
        entrypoint,
        argument_variables: variables_of(&arguments),
        arguments,
        plain_keys: plain_keys(place, assignment),
        devices: devices_of(container),
        gpu: gpu_of(assignment)?,
        host_network: *host_network,
        fenced: *on_partition == OnPartition::Stop,
        network: place.network.clone(),
        other: place.other(),
        requires: place.requires.clone(),
        wants: place.wants.clone(),
        lifecycle: LifecycleValues::of(place, assignment, settings),
        limits: LimitValues::of(limits),
        mounts: mounts_of(assignment, settings)?,
    })
}

/// The GPU of a container that requests one. Its name is Podman's only argument of this kind that the
/// assignment has from a machine's report.
fn gpu_of(assignment: &Assignment) -> Result<Option<&str>, RenderError> {
    if assignment.container.resources.gpu.is_none() {
        return Ok(None);
    }
    let named = assignment.gpu.as_deref();
    match named.filter(|name| CdiName::of_gpu(name).is_some()) {
        Some(name) => Ok(Some(name)),
        None => Err(RenderError::NoGpu {
            instance: assignment.instance.clone(),
        }),
    }
}

fn gate_of(
    place: &ContainerPosition,
    assignment: &Assignment,
    settings: &RenderSettings,
) -> Option<GateValues> {
    assignment.bound.as_ref()?;
    let uid = assignment.user.uid;
    let times = settings
        .user_folder(uid)
        .join(format!("{}.times", place.stem()));
    let runs = settings.runs_file(uid, &assignment.instance);
    place.kind.is_none().then(|| GateValues {
        times: times.display().to_string(),
        runs: runs.display().to_string(),
    })
}

fn devices_of(container: &Container) -> Vec<DeviceValues<'_>> {
    let devices = container.devices.iter();
    devices
        .filter_map(|entry| DeviceValues::of(entry))
        .collect()
}

/// A key of the quadlet and its value.
#[derive(Debug, Serialize)]
struct PlainKey {
    name: String,
    value: String,
    /// Whether the value is a word that needs no quoting anywhere.
    is_token: bool,
}

/// The keys of a quadlet's `[Container]` that each have their value from one field: a new field of
/// this kind is one line here. A list gives one key for each item.
fn plain_keys(place: &ContainerPosition, assignment: &Assignment) -> Vec<PlainKey> {
    let Assignment {
        instance,
        address,
        container,
        ..
    } = assignment;
    let one = |value: &Option<String>| -> Vec<String> { value.iter().cloned().collect() };
    let flag = |is_set: bool| one(&is_set.then(|| "true".to_owned()));
    let number = |value: u64| vec![value.to_string()];
    let grace = number(container.termination_grace_seconds.into());
    let shm_size = container.shm_size.map(|size| number(size.0));
    let oom_score = container.oom_score_adjust;
    // `OOMScoreAdjust=` of the unit would be that of conmon too, which reports the program's end.
    let oom_score = oom_score.map(|score| format!("--oom-score-adj={score}"));
    // The program keeps its user's supplementary groups on the machine.
    let groups = container.groups.first().map(|_| "keep-groups".to_owned());
    let gains_none = !container.quadlet.contains_key("NoNewPrivileges");
    let host_name = container.hostname.as_ref().unwrap_or(instance);
    // A container that shares another one's network has that one's names of machines.
    let own_names = match place.network {
        None => BTreeSet::from([instance, host_name]),
        Some(_) => BTreeSet::new(),
    };
    let own_names = own_names.iter().map(|name| format!("{name}:{address}"));
    let (token, text) = (true, false);
    let of_fields: [(&str, bool, Vec<String>); 15] = [
        ("HostName", text, vec![host_name.clone()]),
        ("AddHost", text, own_names.collect()),
        ("User", text, one(&container.user)),
        ("WorkingDir", text, one(&container.working_dir)),
        ("StopSignal", token, one(&container.stop_signal)),
        ("StopTimeout", token, grace),
        ("RunInit", token, flag(container.init)),
        ("ReadOnly", token, flag(container.read_only_rootfs)),
        ("Tmpfs", text, container.tmpfs.clone()),
        ("ShmSize", token, shm_size.unwrap_or_default()),
        ("PodmanArgs", text, one(&oom_score)),
        ("DropCapability", token, container.cap_drop.clone()),
        ("AddCapability", token, container.cap_add.clone()),
        ("GroupAdd", token, one(&groups)),
        ("NoNewPrivileges", token, flag(gains_none)),
    ];
    let of_fields = of_fields.into_iter().flat_map(|(name, is_token, values)| {
        values.into_iter().map(move |value| PlainKey {
            name: name.to_owned(),
            value,
            is_token,
        })
    });
    let passed = container.quadlet.iter().filter_map(|(name, value)| {
        Some(PlainKey {
            name: name.clone(),
            value: place.quadlet_value(name, value)?,
            is_token: false,
        })
    });
    of_fields.chain(passed).collect()
}

/// The workload's labels and KAT's own, which take precedence.
fn labels_of(assignment: &Assignment) -> Vec<NameValuePair> {
    let own = [
        ("rip.dws.kat.instance", &assignment.instance),
        ("rip.dws.kat.namespace", &assignment.namespace),
        ("rip.dws.kat.workload", &assignment.workload),
    ];
    let container = assignment.container.name.as_ref();
    let own = own
        .into_iter()
        .chain(container.map(|name| ("rip.dws.kat.container", name)))
        .map(|(name, value)| (name.to_owned(), value.clone()));
    let mut labels = assignment.labels.clone();
    labels.extend(own);
    labels
        .into_iter()
        .map(|(name, value)| NameValuePair { name, value })
        .collect()
}

fn variables_of(arguments: &[&str]) -> Vec<NameValuePair> {
    arguments
        .iter()
        .enumerate()
        .filter(|(_, text)| quote::needs_variable(text))
        .map(|(place, text)| NameValuePair {
            name: quote::argument_variable(place),
            value: (*text).to_owned(),
        })
        .collect()
}

/// The restart policy in systemd's settings. Exit codes 137 and 143 are clean, since a stop causes
/// them. With MaxCount they are restarted explicitly, so that a program that was not stopped
/// restarts after them (Always restarts after clean ends anyway). A program that gave up after one
/// of these has `Result=start-limit-hit`, after any other end `exit-code`. With Never they are
/// failures, since otherwise a kill would look like success.
fn restart_of(assignment: &Assignment) -> RestartValues {
    let policy = &assignment.restart_policy;
    match policy.condition {
        RestartCondition::Never => RestartValues {
            restart: "no",
            restart_seconds: None,
            restart_steps: None,
            restart_max_seconds: None,
            signals_are_clean: false,
            restart_on_signals: false,
            start_limit_interval: 0,
            start_limit_burst: None,
        },
        RestartCondition::Always => always(),
        RestartCondition::MaxCount => RestartValues {
            restart: "on-failure",
            restart_seconds: Some(RESTART_SECONDS),
            restart_steps: None,
            restart_max_seconds: None,
            signals_are_clean: true,
            restart_on_signals: true,
            // 0 would disable the limit.
            start_limit_interval: policy.reset_seconds.max(1),
            start_limit_burst: Some(policy.max_restarts.saturating_add(1)),
        },
    }
}

fn always() -> RestartValues {
    RestartValues {
        restart: "always",
        restart_seconds: Some(RESTART_SECONDS),
        restart_steps: Some(RESTART_STEPS),
        restart_max_seconds: Some(RESTART_MAX_SECONDS),
        signals_are_clean: true,
        restart_on_signals: false,
        start_limit_interval: 0,
        start_limit_burst: None,
    }
}

/// The restart settings of an init container: until it has succeeded once. A killed one has not
/// succeeded.
fn until_it_ends(assignment: &Assignment) -> RestartValues {
    let policy = restart_of(assignment);
    let restart = match assignment.restart_policy.condition {
        RestartCondition::Never => "no",
        RestartCondition::Always | RestartCondition::MaxCount => "on-failure",
    };
    RestartValues {
        restart,
        signals_are_clean: false,
        restart_on_signals: false,
        ..policy
    }
}

/// Longest start in seconds, including the hook's longest hold.
pub(crate) fn start_seconds(settings: &RenderSettings) -> u32 {
    settings.hold_seconds.saturating_add(START_MARGIN_SECONDS)
}

/// Thousandths of a processor as systemd's percentage: 1500 is `150%`, 1 is `0.1%`.
fn cpu_quota(amount: MilliCpu) -> String {
    match amount.0 % 10 {
        0 => format!("{}%", amount.0 / 10),
        rest => format!("{}.{rest}%", amount.0 / 10),
    }
}

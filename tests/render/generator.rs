//! Runs the quadlet generator of a root file system and interprets its units like systemd.

use std::{collections::BTreeMap, iter::once, path::Path, process::Command};

use rand::{Rng, SeedableRng, rngs::StdRng};

use kat_render::{RenderSettings, Renderer, UnitFileKind, environment_files};
use kat_types::{
    assignment::Assignment,
    resource::{OnPartition, OtherKind},
};

/// The unit in the package that starts Podman's pause process.
const PAUSE: &str = "kat-podman-pause.service";
const GENERATOR: &str = "/usr/lib/systemd/system-generators/podman-system-generator";

/// Sections of a generated unit with their keys and values.
type Unit = BTreeMap<String, Vec<(String, String)>>;

/// The generator must accept every case without a warning, and podman's arguments must match the
/// assignment.
pub(crate) fn check_goldens(cases: &BTreeMap<String, Assignment>) {
    for (name, assignment) in cases {
        let units = generate([assignment]);
        let network = assignment.network_unit();
        let each = assignment.each();
        let others = assignment.others();
        let others = others.map(|(kind, one)| assignment.other_unit(kind, one));
        for (one, service) in each.iter().zip(once(assignment.unit()).chain(others)) {
            check_unit(name, one, (&service, network.as_deref()), &units[&service]);
        }
        match assignment.has_others() {
            true => check_order(name, assignment, &units),
            false => check_service_keys(name, &units),
        }
    }
}

/// Arguments with characters from all of Unicode, and mostly characters with a special meaning.
pub(crate) fn check_random_arguments(base: &Assignment) {
    const SEED: u64 = 20_261_121;
    const SPECIAL: &[char] = &[
        '"', '\'', '\\', '%', '$', '{', '}', ';', ' ', '\t', '\n', '\r', '#', '-', '=', '\u{1}',
        '\u{7f}', '\u{80}', '\u{85}', '\u{a0}', 'n', 'x', '0', '\u{2028}', '\u{3000}', '😀',
    ];
    let mut random = StdRng::seed_from_u64(SEED);
    let assignments: Vec<Assignment> = (0..300)
        .map(|number| {
            let mut assignment = base.clone();
            assignment.instance = format!("web-r{number}");
            let mut text = || -> String {
                (0..random.random_range(0..8))
                    .map(|_| match random.random_range(0..5) {
                        0 => random.random_range('\u{1}'..=char::MAX),
                        _ => SPECIAL[random.random_range(0..SPECIAL.len())],
                    })
                    .collect()
            };
            assignment.container.command = (0..4).map(|_| text()).collect();
            assignment.container.entrypoint = vec![format!("/{}", text())];
            assignment
        })
        .collect();
    let units = generate(&assignments);
    for assignment in &assignments {
        check_unit(
            &format!("seed {SEED}"),
            assignment,
            (&assignment.unit(), None),
            &units[&assignment.unit()],
        );
    }
}

/// The units that the generator makes from assignments, by name.
fn generate<'a>(assignments: impl IntoIterator<Item = &'a Assignment>) -> BTreeMap<String, Unit> {
    let root = std::env::var("KAT_RENDER_ROOT").expect("KAT_RENDER_ROOT names a root file system");
    let folder = tempfile::tempdir().unwrap();
    let renderer = Renderer::new(None).unwrap();
    let settings = RenderSettings::default();
    let mut services = Vec::new();
    for assignment in assignments {
        let files = renderer.instance(assignment, &settings).unwrap();
        let images = renderer
            .images(assignment, &settings, assignment.logins.is_some())
            .unwrap();
        for file in files.into_iter().chain(images) {
            if file.kind == UnitFileKind::Quadlet {
                std::fs::write(folder.path().join(&file.name), &file.text).unwrap();
                services.extend(file.service());
            }
        }
    }
    // The folder is mounted on /mnt of the root file system in a separate mount namespace, so that
    // nothing is written there.
    let script = "mount --bind \"$1\" \"$2/mnt\" && exec chroot \"$2\" \
        /usr/bin/env QUADLET_UNIT_DIRS=/mnt \"$3\" -user -dryrun";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .args([folder.path(), Path::new(&root), Path::new(GENERATOR)])
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let unexpected: Vec<&str> = errors
        .lines()
        .filter(|line| !line.contains("Loading source unit file"))
        .collect();
    assert!(
        output.status.success() && unexpected.is_empty(),
        "{}: {unexpected:#?}",
        output.status
    );
    let units = read_units(&String::from_utf8(output.stdout).unwrap());
    for service in services {
        assert!(units.contains_key(&service), "{service} was not made");
    }
    units
}

/// Reads the generator's output: units behind lines such as `---a.service---`.
fn read_units(text: &str) -> BTreeMap<String, Unit> {
    let mut units: BTreeMap<String, Unit> = BTreeMap::new();
    let (mut unit, mut section) = (String::new(), String::new());
    for line in text.split('\n') {
        if let Some(name) = line
            .strip_prefix("---")
            .and_then(|line| line.strip_suffix("---"))
        {
            unit = name.to_owned();
        } else if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            section = name.to_owned();
        } else if let Some((key, value)) = line.split_once('=')
            && !line.starts_with('#')
        {
            let sections = units.entry(unit.clone()).or_default();
            let keys = sections.entry(section.clone()).or_default();
            keys.push((key.to_owned(), value.to_owned()));
        }
    }
    units
}

fn values<'a>(unit: &'a Unit, section: &str, key: &str) -> Vec<&'a str> {
    unit.get(section)
        .into_iter()
        .flatten()
        .filter(|(name, _)| name == key)
        .map(|(_, value)| value.as_str())
        .collect()
}

/// Podman's arguments are exactly those of the assignment.
fn check_unit(
    case: &str,
    assignment: &Assignment,
    (service, network): (&str, Option<&str>),
    unit: &Unit,
) {
    let variables: BTreeMap<String, String> = values(unit, "Service", "Environment")
        .into_iter()
        .flat_map(|line| words(line).into_iter().map(|word| expand(&word, None)))
        .map(|word| {
            let (name, value) = word.split_once('=').unwrap();
            (name.to_owned(), value.to_owned())
        })
        .collect();
    let lines = values(unit, "Service", "ExecStart");
    assert_eq!(lines.len(), 1, "{case}: one command");
    let line = lines[0].replace("%t", "/run/user/1").replace("%N", "unit");
    let arguments: Vec<String> = words(&line)
        .iter()
        .inspect(|word| assert_ne!(word.as_str(), ";", "{case}: systemd would end the command"))
        .map(|word| expand(word, Some(&variables)))
        .collect();

    let container = &assignment.container;
    let wanted: Vec<&String> = container.command.iter().chain(&container.args).collect();
    let tail = arguments.len() - wanted.len();
    assert_eq!(
        arguments[tail..].iter().collect::<Vec<_>>(),
        wanted,
        "{case}: command"
    );
    let image = &arguments[tail - 1];
    assert!(
        image.starts_with(&assignment.image),
        "{case}: image {image}"
    );

    let options = &arguments[..tail - 1];
    assert_eq!(options[0], "/usr/bin/podman");
    let on_host = container.host_network;
    let has_hooks = options[1] == "--hooks-dir=/var/lib/kat/hooks.d";
    let shares = network.map(|unit| unit.strip_suffix(".service").unwrap());
    let own = !on_host && shares.is_none();
    // An instance on the machine's network asks kat-net too where a deadline may forbid its start.
    let fenced = on_host && assignment.on_partition == OnPartition::Stop;
    assert_eq!(has_hooks, own || fenced, "{case}: {}", options[1]);
    let has = |name: &str, value: &str| {
        let pair = options
            .windows(2)
            .any(|pair| pair[0] == name && pair[1] == value);
        assert!(
            pair || options.contains(&format!("{name}={value}")),
            "{case}: {name} {value:?} is missing in {options:#?}"
        );
    };
    let stem = service.strip_suffix(".service").unwrap();
    has("--name", stem);
    has("--pull", "never");
    // Podman uses the last option. If the generator adds one, it has the same value.
    let asked = options.iter().enumerate();
    let files: Vec<&str> = asked
        .filter_map(|(place, option)| match option.strip_prefix("--cidfile") {
            Some("") => options.get(place + 1).map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        })
        .collect();
    assert_eq!(files.last(), Some(&"/run/user/1/unit.cid"), "{case}");
    let wanted_network = match shares {
        Some(holder) => format!("container:{holder}"),
        None if on_host => "host".to_owned(),
        None => "none".to_owned(),
    };
    has("--network", &wanted_network);
    has("--cgroups", "split");
    if has_hooks {
        has(
            "--annotation",
            &format!("rip.dws.kat.instance={}", assignment.instance),
        );
    }
    if own {
        has("--sysctl", "net.ipv4.ip_unprivileged_port_start=0");
    }
    for device in &container.devices {
        has("--device", device);
    }
    if container.resources.gpu.is_some() {
        has("--device", assignment.gpu.as_deref().unwrap());
    }
    if !container.groups.is_empty() {
        has("--group-add", "keep-groups");
    }
    let hostname = container.hostname.as_ref().unwrap_or(&assignment.instance);
    // A container that shares a network also shares the host names of the network's container.
    if shares.is_none() {
        for name in [hostname, &assignment.instance] {
            has("--add-host", &format!("{name}:{}", assignment.address));
        }
    }
    has("--hostname", hostname);
    match container.quadlet.contains_key("NoNewPrivileges") {
        true => assert!(!options.iter().any(|one| one.contains("no-new-privileges"))),
        false => has("--security-opt", "no-new-privileges"),
    }
    for mount in &container.volume_mounts {
        let mut volumes = assignment.volumes.iter();
        let volume = volumes.find(|one| one.definition.name == mount.name);
        let folder = volume.and_then(|volume| volume.folder.as_ref());
        if let (Some(folder), None) = (folder, &mount.sub_path) {
            let target = mount.mount_path.trim_end_matches('/');
            has("-v", &format!("/var/lib/kat/volumes/{folder}:{target}"));
        }
    }
    has(
        "--stop-timeout",
        &container.termination_grace_seconds.to_string(),
    );
    has(
        "-v",
        &format!(
            "/var/lib/kat/resolv/{}.conf:/etc/resolv.conf:ro",
            assignment.namespace
        ),
    );
    for (name, value) in &assignment.labels {
        has("--label", &format!("{name}={value}"));
    }
    if let Some(name) = &container.name {
        has("--label", &format!("rip.dws.kat.container={name}"));
    }
    if !container.entrypoint.is_empty() {
        let written = value_of(options, "--entrypoint").unwrap();
        let read: Vec<String> = serde_json::from_str(&written).unwrap();
        assert_eq!(read, container.entrypoint, "{case}: entrypoint");
    }
    for (name, value) in [
        ("--user", &container.user),
        ("--workdir", &container.working_dir),
        ("--stop-signal", &container.stop_signal),
    ] {
        if let Some(value) = value {
            has(name, value);
        }
    }
    for path in &container.tmpfs {
        has("--tmpfs", path);
    }
    for capability in &container.cap_add {
        has("--cap-add", &capability.to_lowercase());
    }
    for capability in &container.cap_drop {
        has("--cap-drop", &capability.to_lowercase());
    }
    if let Some(size) = container.shm_size {
        has("--shm-size", &size.0.to_string());
    }
    if let Some(score) = container.oom_score_adjust {
        has("--oom-score-adj", &score.to_string());
    }
    assert_eq!(
        container.init,
        options.contains(&"--init".to_owned()),
        "{case}: init"
    );
    let read_only = options.contains(&"--read-only".to_owned());
    assert_eq!(container.read_only_rootfs, read_only, "{case}: read-only");
    assert!(
        !options.iter().any(|option| option == "--env"),
        "{case}: a value is in ps"
    );
    let folder = format!("/var/lib/kat/units/{}", assignment.user.uid);
    let expected = environment_files(&container.env).unwrap();
    let file = format!("{folder}/{stem}.env");
    let environment = value_of(options, "--env-file") == Some(file);
    assert_eq!(
        !expected.podman.is_empty(),
        environment,
        "{case}: file of variables"
    );
    // podman's own environment has none of the container's variables.
    assert!(
        values(unit, "Service", "EnvironmentFile").is_empty(),
        "{case}: podman's own environment"
    );
    let made: Vec<Vec<String>> = values(unit, "Service", "ExecStartPre")
        .into_iter()
        .filter(|line| line.contains("podman secret create"))
        .map(|line| {
            let words = words(line);
            words
                .iter()
                .map(|word| expand(word, Some(&variables)))
                .collect()
        })
        .collect();
    assert_eq!(made.len(), expected.values.len(), "{case}: {made:?}");
    for (number, (variable, _)) in expected.values.iter().enumerate() {
        let name = format!("{stem}.{number}");
        has("--secret", &format!("{name},type=env,target={variable}"));
        let file = format!("{folder}/{name}.value");
        let script = "exec /usr/bin/podman secret create --replace \"$1\" \"$2\" >/dev/null";
        assert_eq!(
            made[number],
            ["/bin/sh", "-c", script, "sh", &name, &file],
            "{case}"
        );
    }
}

/// The containers of an instance wait for each other and for Podman's pause process, and for no
/// other unit.
fn check_order(case: &str, assignment: &Assignment, units: &BTreeMap<String, Unit>) {
    let main = assignment.unit();
    let network = assignment.network_unit();
    let mut before: Vec<String> = network.iter().cloned().collect();
    for (kind, container) in assignment.others() {
        let name = assignment.other_unit(kind, container);
        let unit = &units[&name];
        // Each container requires the network's unit and the previous init container.
        assert_eq!(values(unit, "Unit", "Requires"), before, "{case}: {name}");
        let after: Vec<&str> = once(PAUSE)
            .chain(before.iter().map(String::as_str))
            .collect();
        assert_eq!(values(unit, "Unit", "After"), after, "{case}: {name}");
        assert_eq!(values(unit, "Unit", "Wants"), [PAUSE], "{case}: {name}");
        let types = values(unit, "Service", "Type");
        let is_init = kind == OtherKind::Init;
        assert_eq!(types == ["oneshot"], is_init, "{case}: {name} is {types:?}");
        assert!(!unit.contains_key("Install"), "{case}: {name}");
        if is_init {
            before = network.iter().cloned().chain([name]).collect();
        }
    }
    let unit = &units[&main];
    let sidecars = assignment.sidecars.iter();
    let sidecars = sidecars.map(|one| assignment.other_unit(OtherKind::Sidecar, one));
    let wanted: Vec<String> = once(PAUSE.to_owned()).chain(sidecars).collect();
    assert_eq!(values(unit, "Unit", "Wants"), wanted, "{case}");
    let after = values(unit, "Unit", "After");
    for name in units.keys().filter(|name| name.contains('_')) {
        assert!(after.contains(&name.as_str()), "{case}: before {name}");
        assert!(units[name].contains_key("X-KAT"), "{case}: {name}");
    }
    if let Some(network) = network {
        let line = values(&units[&network], "Service", "ExecStart")[0];
        for part in [
            "--hooks-dir=/var/lib/kat/hooks.d",
            "--network none",
            "--rootfs /var/lib/kat/holder",
            "/usr/bin/sleep infinity",
        ] {
            assert!(line.contains(part), "{case}: {part} is not in {line}");
        }
    }
}

/// Units that systemd reads directly have KAT's mark, wait only for Podman's pause process and
/// start at boot.
fn check_service_keys(case: &str, units: &BTreeMap<String, Unit>) {
    for (name, unit) in units {
        assert!(unit.contains_key("X-KAT"), "{case}: {name} has no mark");
        for (key, units) in [
            ("After", &[PAUSE][..]),
            ("Wants", &[PAUSE]),
            ("Requires", &[]),
        ] {
            assert_eq!(
                values(unit, "Unit", key),
                units,
                "{case}: {name} waits for another unit"
            );
        }
    }
}

/// Splits a command line like systemd (systemd.service(5), "Command lines").
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = line.bytes();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (None, b' ' | b'\t' | b'\n' | b'\r') => words.extend(word.take()),
            (None, b'"' | b'\'') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (Some(open), close) if open == close => quote = None,
            (_, b'\\') => {
                let word = word.get_or_insert_default();
                match bytes.next().expect("an escape at the end") {
                    b'a' => word.push(7),
                    b'b' => word.push(8),
                    b'f' => word.push(12),
                    b'n' => word.push(b'\n'),
                    b'r' => word.push(b'\r'),
                    b't' => word.push(b'\t'),
                    b'v' => word.push(11),
                    b's' => word.push(b' '),
                    b'x' => {
                        let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                        let digits = std::str::from_utf8(&digits).unwrap();
                        word.push(u8::from_str_radix(digits, 16).unwrap());
                    }
                    same @ (b'\\' | b'"' | b'\'') => word.push(same),
                    other => panic!("systemd knows no escape \\{}", char::from(other)),
                }
            }
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    assert_eq!(quote, None, "a quote is open in {line}");
    words.extend(word);
    words
        .into_iter()
        .map(|word| String::from_utf8(word).expect("systemd would pass bytes that are no text"))
        .collect()
}

/// Replaces `%%` by `%` and, in command lines (with `variables`), `$$` by `$` and `${NAME}` by the
/// variable.
fn expand(word: &str, variables: Option<&BTreeMap<String, String>>) -> String {
    let mut result = String::new();
    let mut rest = word;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        if character == '%' {
            rest = rest.strip_prefix('%').unwrap_or_else(|| {
                // The generator itself adds `%n`.
                rest.strip_prefix('n')
                    .unwrap_or_else(|| panic!("{word} has a specifier"))
            });
        } else if character == '$'
            && let Some(variables) = variables
        {
            if let Some(after) = rest.strip_prefix('$') {
                rest = after;
            } else {
                let (name, after) = rest
                    .strip_prefix('{')
                    .and_then(|inner| inner.split_once('}'))
                    .unwrap_or_else(|| panic!("{word} has a variable"));
                result.push_str(&variables[name]);
                rest = after;
                continue;
            }
        }
        result.push(character);
    }
    result
}

/// The value of one of podman's options, in the next word or, as Podman 5.8 writes some, after `=`.
fn value_of(options: &[String], name: &str) -> Option<String> {
    let place = options.iter().position(|option| option == name);
    let after = place.and_then(|place| options.get(place + 1));
    let joined = options
        .iter()
        .find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    after.map(String::as_str).or(joined).map(str::to_owned)
}

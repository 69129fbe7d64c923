//! Unit files, as far as the fake understands them.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use super::UnitBehaviour;

/// A pattern with `*` only.
pub(super) fn matches_pattern(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|skip| {
                rest.get(skip..)
                    .is_some_and(|rest| matches_pattern(rest, tail))
            })
        }),
    }
}

pub(super) fn read_folder(folder: &Path) -> BTreeMap<String, UnitBehaviour> {
    let Ok(entries) = fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.ends_with(".service")
                .then(|| (name, read_unit(&entry.path())))
        })
        .collect()
}

fn read_unit(path: &Path) -> UnitBehaviour {
    if fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null")) {
        return UnitBehaviour {
            masked: true,
            ..UnitBehaviour::default()
        };
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once('='))
            .find(|(found, _)| *found == key)
            .map(|(_, value)| value)
    };
    let program = value("ExecStart")
        .and_then(|command| command.split(' ').next())
        .and_then(|program| program.rsplit('/').next())
        .unwrap_or_default();
    UnitBehaviour {
        masked: false,
        oneshot: value("Type") == Some("oneshot"),
        exits: match program {
            "true" => Some(0),
            "false" => Some(1),
            _ => None,
        },
        start_takes: Duration::ZERO,
        stop_takes: Duration::ZERO,
        stop_hangs: false,
        control_group: String::new(),
        start_hangs: value("ExecStartPre").is_some(),
        remains: value("RemainAfterExit") == Some("yes"),
        rests: false,
        restarts: value("Restart").is_some_and(|policy| policy != "no"),
        start_limit: value("StartLimitBurst")
            .and_then(|number| number.parse().ok())
            .unwrap_or(0),
        text,
    }
}

//! The state of a unit and its properties.
//!
//! `GetAll` is not used. It answers with some 250 properties of a service, and systemd reads files
//! of the control group for many of them. Single properties are cheap: their calls are sent one
//! after the other without a wait, and take one round trip together.

use futures_util::future::{try_join_all, try_join3};
use zbus::{Connection, Message, Variant, fdo};

use super::{
    ActiveState, LoadState, SubState, UnitStatus, UnitUsage,
    link::ManagerLink,
    path::unit_path,
    proxies::{SYSTEMD, SYSTEMD_SERVICE, SYSTEMD_UNIT},
};

/// Properties of `org.freedesktop.systemd1.Unit` that are read, with their signatures.
pub const UNIT_PROPERTIES: &[(&str, &str)] = &[("InvocationID", "ay"), ("NeedDaemonReload", "b")];

/// Properties of `org.freedesktop.systemd1.Service` in a [`UnitStatus`], with their signatures.
pub const SERVICE_PROPERTIES: &[(&str, &str)] = &[
    ("Result", "s"),
    ("MainPID", "u"),
    ("ExecMainStatus", "i"),
    ("ExecMainCode", "i"),
    ("ExecMainStartTimestampMonotonic", "t"),
    ("ExecMainExitTimestampMonotonic", "t"),
    ("NRestarts", "u"),
    ("ControlGroup", "s"),
];

/// Properties of `org.freedesktop.systemd1.Service` in a [`UnitUsage`], with their signatures.
/// systemd reads a file of the control group for each of them.
pub const USAGE_PROPERTIES: &[(&str, &str)] = &[("MemoryCurrent", "t"), ("CPUUsageNSec", "t")];

/// Most reads of a unit whose state changes meanwhile.
const MOST_READS: u32 = 3;

/// systemd's value for a number that is not counted.
const NOT_COUNTED: u64 = u64::MAX;

/// The states of a unit, which systemd answers at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnitStates {
    load: LoadState,
    pub(super) active: ActiveState,
    sub: SubState,
}

/// Reads the states of a unit, and of a service its properties. Each of the calls makes systemd load
/// the unit, so a unit without a file has the load state `not-found`.
///
/// The states are read before and after the properties, and all is read again if they differ: the
/// end of a program never comes with the state before it. If they still differ after
/// [`MOST_READS`], the states are older than the properties. systemd sends a signal after each
/// change, so the caller reads the unit again.
pub(super) async fn read(link: &ManagerLink, unit: &str) -> zbus::Result<UnitStatus> {
    let mut reads = 1;
    loop {
        let (before, answers, after) = if unit.ends_with(".service") {
            let properties = get(link.connection(), unit, SYSTEMD_SERVICE, SERVICE_PROPERTIES);
            let (before, answers, after) =
                try_join3(states(link, unit), properties, states(link, unit)).await?;
            (before, answers, Some(after))
        } else {
            (states(link, unit).await?, Vec::new(), None)
        };
        if reads < MOST_READS && after.is_some_and(|after| after != before) {
            reads += 1;
            continue;
        }
        let mut status = UnitStatus {
            load_state: before.load,
            active_state: before.active,
            sub_state: before.sub,
            ..UnitStatus::default()
        };
        for (name, answer) in &answers {
            let body = answer.body();
            let value: Variant<'_> = body.deserialize()?;
            store_property(&mut status, name, &value);
        }
        return Ok(status);
    }
}

/// Reads the states of a unit alone.
pub(super) async fn states(link: &ManagerLink, unit: &str) -> zbus::Result<UnitStates> {
    let listed = link.manager().list_units_by_names(&[unit]).await?;
    // systemd leaves out names that no unit can have.
    let listed = listed
        .first()
        .ok_or_else(|| zbus::Error::Failure(format!("{unit} is no name of a unit")))?;
    Ok(UnitStates {
        load: listed.load_state.as_str().into(),
        active: ActiveState::from_word(&listed.active_state),
        sub: listed.sub_state.as_str().into(),
    })
}

/// Reads the present resource usage of a service.
pub(super) async fn usage(connection: &Connection, unit: &str) -> zbus::Result<UnitUsage> {
    let mut usage = UnitUsage::default();
    for (name, answer) in get(connection, unit, SYSTEMD_SERVICE, USAGE_PROPERTIES).await? {
        let body = answer.body();
        let value: Variant<'_> = body.deserialize()?;
        match (name, value) {
            ("MemoryCurrent", Variant::U64(bytes)) => usage.memory = counted(bytes),
            ("CPUUsageNSec", Variant::U64(time)) => usage.cpu = counted(time),
            _ => {}
        }
    }
    Ok(usage)
}

/// Reads the id of a unit's present invocation; empty if it has none.
pub(super) async fn invocation_id(connection: &Connection, unit: &str) -> zbus::Result<String> {
    let answer = property(connection, &unit_path(unit), SYSTEMD_UNIT, "InvocationID").await?;
    let Some(answer) = answer else {
        return Ok(String::new());
    };
    let body = answer.body();
    let value: Variant<'_> = body.deserialize()?;
    let Variant::Array(bytes) = &value else {
        return Ok(String::new());
    };
    let bytes = bytes.iter().filter_map(|byte| match byte {
        Variant::U8(byte) => Some(*byte),
        _ => None,
    });
    Ok(hex::encode(bytes.collect::<Vec<u8>>()))
}

/// Reads whether a unit's file is newer than the loaded unit.
pub(super) async fn needs_reload(connection: &Connection, unit: &str) -> zbus::Result<bool> {
    let path = unit_path(unit);
    let answer = property(connection, &path, SYSTEMD_UNIT, "NeedDaemonReload").await?;
    let Some(answer) = answer else {
        return Ok(false);
    };
    let body = answer.body();
    let value: Variant<'_> = body.deserialize()?;
    Ok(matches!(value, Variant::Bool(true)))
}

/// The answers for these properties, by their names.
async fn get(
    connection: &Connection,
    unit: &str,
    interface: &str,
    properties: &'static [(&'static str, &'static str)],
) -> zbus::Result<Vec<(&'static str, Message)>> {
    let path = unit_path(unit);
    let mut calls = Vec::with_capacity(properties.len());
    for (name, _) in properties {
        calls.push(property(connection, &path, interface, name));
    }
    let answers = try_join_all(calls).await?;
    let named = properties.iter().zip(answers);
    Ok(named
        .filter_map(|((name, _), answer)| answer.map(|answer| (*name, answer)))
        .collect())
}

/// The answer for one property; `None` where this systemd does not have it.
async fn property(
    connection: &Connection,
    path: &str,
    interface: &str,
    name: &str,
) -> zbus::Result<Option<Message>> {
    let answer = connection
        .call_method(
            Some(SYSTEMD),
            path,
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &(interface, name),
        )
        .await;
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(zbus::Error::FDO(error)) if matches!(*error, fdo::Error::UnknownProperty(_)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Stores one property. A property that is unknown or of another type is ignored: the field keeps
/// its default.
fn store_property(status: &mut UnitStatus, name: &str, value: &Variant<'_>) {
    match (name, value) {
        ("Result", Variant::Str(text)) => status.result = text.as_str().into(),
        ("ControlGroup", Variant::Str(text)) => status.control_group = text.to_string(),
        ("ExecMainStartTimestampMonotonic", Variant::U64(time)) => {
            status.exec_main_start_monotonic = *time;
        }
        ("ExecMainExitTimestampMonotonic", Variant::U64(time)) => {
            status.exec_main_exit_monotonic = *time;
        }
        ("MainPID", Variant::U32(pid)) => status.main_pid = *pid,
        ("NRestarts", Variant::U32(count)) => status.restarts = *count,
        ("ExecMainStatus", Variant::I32(number)) => status.exec_main_status = *number,
        ("ExecMainCode", Variant::I32(number)) => status.exec_main_code = *number,
        _ => {}
    }
}

fn counted(number: u64) -> Option<u64> {
    (number != NOT_COUNTED).then_some(number)
}

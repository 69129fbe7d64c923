//! The properties of a unit, read with one `GetAll` for each interface.

use std::collections::BTreeMap;

use zbus::{Connection, Variant};

use super::{
    ActiveState, UnitStatus,
    path::unit_path,
    proxies::{SYSTEMD, SYSTEMD_SERVICE, SYSTEMD_UNIT},
};

/// Properties of `org.freedesktop.systemd1.Unit` that are read, with their signatures.
pub const UNIT_PROPERTIES: &[(&str, &str)] = &[
    ("LoadState", "s"),
    ("ActiveState", "s"),
    ("SubState", "s"),
    ("StateChangeTimestamp", "t"),
    ("InvocationID", "ay"),
    ("NeedDaemonReload", "b"),
];

/// Properties of `org.freedesktop.systemd1.Service` that are read, with their signatures.
pub const SERVICE_PROPERTIES: &[(&str, &str)] = &[
    ("Result", "s"),
    ("MainPID", "u"),
    ("ExecMainStatus", "i"),
    ("ExecMainCode", "i"),
    ("ExecMainStartTimestampMonotonic", "t"),
    ("ExecMainExitTimestampMonotonic", "t"),
    ("NRestarts", "u"),
    ("ControlGroup", "s"),
    ("MemoryCurrent", "t"),
    ("CPUUsageNSec", "t"),
];

/// systemd's value for a number that is not counted.
const NOT_COUNTED: u64 = u64::MAX;

/// Reads a unit's properties. Requesting its object makes systemd load it, so a unit without a file
/// has the load state `not-found`. Only services have the second set of properties.
pub(super) async fn read(connection: &Connection, unit: &str) -> zbus::Result<UnitStatus> {
    let path = unit_path(unit);
    let mut status = UnitStatus::default();
    get_all(connection, &path, SYSTEMD_UNIT, &mut status).await?;
    if unit.ends_with(".service") {
        get_all(connection, &path, SYSTEMD_SERVICE, &mut status).await?;
    }
    Ok(status)
}

async fn get_all(
    connection: &Connection,
    path: &str,
    interface: &str,
    status: &mut UnitStatus,
) -> zbus::Result<()> {
    let reply = connection
        .call_method(
            Some(SYSTEMD),
            path,
            Some("org.freedesktop.DBus.Properties"),
            "GetAll",
            &(interface,),
        )
        .await?;
    let body = reply.body();
    let properties: BTreeMap<&str, Variant<'_>> = body.deserialize()?;
    for (name, value) in &properties {
        store_property(status, name, value);
    }
    Ok(())
}

/// Stores one property. A property that is unknown or of another type is ignored: the field keeps
/// its default.
fn store_property(status: &mut UnitStatus, name: &str, value: &Variant<'_>) {
    match (name, value) {
        ("LoadState", Variant::Str(text)) => status.load_state = text.as_str().into(),
        ("ActiveState", Variant::Str(text)) => {
            status.active_state = ActiveState::from_word(text);
        }
        ("SubState", Variant::Str(text)) => status.sub_state = text.as_str().into(),
        ("Result", Variant::Str(text)) => status.result = text.as_str().into(),
        ("ControlGroup", Variant::Str(text)) => status.control_group = text.to_string(),
        ("StateChangeTimestamp", Variant::U64(time)) => status.state_changed = *time,
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
        ("MemoryCurrent", Variant::U64(bytes)) => status.memory_current = counted(*bytes),
        ("CPUUsageNSec", Variant::U64(time)) => status.cpu_usage = counted(*time),
        ("NeedDaemonReload", Variant::Bool(needed)) => status.need_daemon_reload = *needed,
        ("InvocationID", Variant::Array(bytes)) => {
            let bytes = bytes.iter().filter_map(|byte| match byte {
                Variant::U8(byte) => Some(*byte),
                _ => None,
            });
            status.invocation_id = hex::encode(bytes.collect::<Vec<u8>>());
        }
        _ => {}
    }
}

fn counted(number: u64) -> Option<u64> {
    (number != NOT_COUNTED).then_some(number)
}

//! Maps D-Bus errors to [`SystemdError`] by their names.

use std::io;

use zbus::{DBusError, fdo};

use super::SystemdError;

/// Maps an error of a call; `unit` is the unit or the call, for messages.
pub(super) fn map(manager: &str, unit: &str, error: zbus::Error) -> SystemdError {
    match error {
        zbus::Error::MethodError(name, message, _) => {
            named(manager, unit, name.as_str(), message.unwrap_or_default())
        }
        zbus::Error::FDO(error) => match *error {
            fdo::Error::ZBus(inner) => map(manager, unit, inner),
            error => named(
                manager,
                unit,
                error.name().as_str(),
                error.description().unwrap_or_default().to_owned(),
            ),
        },
        zbus::Error::InputOutput(error) if error.kind() == io::ErrorKind::TimedOut => {
            unreachable(manager, &format!("no answer to {unit} in time"))
        }
        zbus::Error::InputOutput(error) => unreachable(manager, &error.to_string()),
        error @ (zbus::Error::Connection(..)
        | zbus::Error::Handshake(_)
        | zbus::Error::Address(_)) => unreachable(manager, &error.to_string()),
        error => SystemdError::Refused {
            unit: unit.to_owned(),
            name: "unexpected answer".to_owned(),
            message: error.to_string(),
        },
    }
}

/// An [`SystemdError::Unreachable`].
pub fn unreachable(manager: &str, reason: &str) -> SystemdError {
    SystemdError::Unreachable {
        manager: manager.to_owned(),
        reason: reason.to_owned(),
    }
}

fn named(manager: &str, unit: &str, name: &str, message: String) -> SystemdError {
    let short = name
        .strip_prefix("org.freedesktop.systemd1.")
        .or_else(|| name.strip_prefix("org.freedesktop.DBus.Error."));
    match short {
        Some("NoSuchUnit") => SystemdError::NoSuchUnit(unit.to_owned()),
        Some("UnitMasked") => SystemdError::Masked(unit.to_owned()),
        // The manager or its bus does not run, not yet or no longer.
        Some(
            "ShuttingDown" | "ServiceUnknown" | "NameHasNoOwner" | "NoReply" | "NoServer"
            | "Disconnected" | "Timeout" | "TimedOut",
        ) => unreachable(manager, &message),
        _ => SystemdError::Refused {
            unit: unit.to_owned(),
            name: name.to_owned(),
            message,
        },
    }
}

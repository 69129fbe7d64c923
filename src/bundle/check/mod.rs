//! Checks of texts: names, paths, references. Each message says what was expected.

mod cron;
mod image;
mod names;
mod values;

use super::diagnostic::{Class, quote};

pub(super) use cron::cron;
pub(super) use image::{image, platform, registry, repository, stage};
pub(super) use names::*;
pub(super) use values::*;

/// Why a text is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckComplaint {
    /// Kind of mistake.
    pub(super) class: Class,
    /// What was found and expected.
    pub(super) message: String,
    /// How to mend it.
    pub(super) hint: Option<String>,
}

/// Result of a check.
pub(super) type CheckResult = Result<(), CheckComplaint>;

fn name_error(message: impl Into<String>) -> CheckComplaint {
    CheckComplaint {
        class: Class::Name,
        message: message.into(),
        hint: None,
    }
}

fn value_error(message: impl Into<String>) -> CheckComplaint {
    CheckComplaint {
        class: Class::Range,
        message: message.into(),
        hint: None,
    }
}

impl CheckComplaint {
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// "`text` is not WHAT".
fn not(text: &str, what: &str) -> CheckComplaint {
    value_error(format!("`{}` is not {what}", quote(text)))
}

#[cfg(test)]
mod tests;

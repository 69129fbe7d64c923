//! Names that the data path shares with what renders units and reads the journal.

/// The program that Podman calls as `kat-net hook` for each container.
pub const HOOK_PROGRAM: &str = "/usr/libexec/kat/kat-net";

/// Annotation that names the instance and makes the hook run.
pub const ANNOTATION: &str = "rip.dws.kat.instance";

/// Message-id field that marks the hook's own journal lines, so that the agent can tell its
/// failures from the program's.
pub const HOOK_JOURNAL_FIELD: &str = "KAT_HOOK_ERROR";

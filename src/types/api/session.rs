//! What begins a session: `exec`, `port-forward`, `cp`.

use serde::{Deserialize, Serialize};

use crate::frames::TerminalSize;

/// Content type of both bodies.
pub const CONTENT_TYPE: &str = "application/x-kat-frames";

/// A command to run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecRequest {
    /// The program as the container finds it, then its arguments.
    pub command: Vec<String>,
    /// The command reads what the caller sends; else it reads nothing.
    pub stdin: bool,
    /// It runs on a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// The terminal's kind, such as `xterm-256color`.
    pub term: String,
    /// Which container; the main one unless named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// For whom the leader calls. One of an earlier version does not say.
pub const CALLER_HEADER: &str = "kat-caller";

/// Bytes of one HTTP/2 stream that wait for who reads it.
pub const STREAM_WINDOW: u32 = 256 * 1024;

/// The same of a connection: enough for all of its streams, so that none holds up another.
pub const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;

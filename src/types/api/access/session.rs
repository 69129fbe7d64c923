//! Requests that start a session: `exec`, `port-forward` and `cp`.

use serde::{Deserialize, Serialize};

use crate::encoding::frames::TerminalSize;

/// Content type of the request's and the response's body.
pub const CONTENT_TYPE: &str = "application/x-kat-frames";

/// Request to run a command in a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecRequest {
    /// The program as the container finds it, then its arguments.
    pub command: Vec<String>,
    /// Whether the caller's input is passed to the command's standard input. Otherwise that is
    /// empty.
    pub stdin: bool,
    /// Size of the terminal on which the command runs; null for no terminal.
    pub terminal: Option<TerminalSize>,
    /// The value of `TERM`, such as `xterm-256color`.
    pub term: String,
    /// Name of the container; the main container if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Header of the leader's request to an agent: the caller who made the request to the leader.
/// Leaders of older versions do not send it.
pub const CALLER_HEADER: &str = "kat-caller";

/// Flow control window of one HTTP/2 stream: maximum bytes that the receiver has not read yet.
pub const STREAM_WINDOW: u32 = 256 * 1024;

/// Flow control window of an HTTP/2 connection: enough for 64 streams, so that a slow reader of one
/// stream does not block the others.
pub const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;

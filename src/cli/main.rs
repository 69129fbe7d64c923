//! katcall: see `katcall --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(kat_cli::run(std::env::args_os()))
}

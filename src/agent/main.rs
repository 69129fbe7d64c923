//! KAT on one machine: see `kat-agent --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kat_agent::program::main()
}

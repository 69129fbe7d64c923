//! kat-net: the data path of KAT on one machine. It is started by systemd and by Podman, never by people.
//!
//! - `kat-net run`: the body of kat-net.service.
//! - `kat-net hook`: connects a container to the overlay; Podman's OCI hook.
//! - `kat-net run-gate begin|end TIMES RUNS`: what a unit with a schedule of its own calls before and after
//!   each run, as its user.
//! - `kat-net wireguard LINK`: WireGuard in a program, the body of kat-wg.service.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
};

use kat_daemon::logging;
use kat_network::{hook, overlay::wireguard::userspace, run_gate, service};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let words: Vec<Option<&str>> = words.iter().map(|word| word.to_str()).collect();
    match words.as_slice() {
        // The hook delays every start of a container, so it uses neither a runtime nor a log.
        [Some("hook")] => hook::main(std::io::stdin().lock()),
        [Some("run-gate"), Some("begin"), Some(times), Some(runs)] => {
            run_gate::begin(Path::new(times), Path::new(runs))
        }
        [Some("run-gate"), Some("end"), Some(_), Some(runs)] => run_gate::end(Path::new(runs)),
        [Some("run")] => ended(run()),
        [Some("wireguard"), Some(link)] => ended(run_wireguard(link)),
        [Some("--version" | "version")] => {
            anstream::println!("kat-net {}", kat_types::VERSION);
            ExitCode::SUCCESS
        }
        _ => {
            anstream::eprintln!(
                "usage: kat-net run | hook | run-gate begin|end TIMES RUNS | wireguard LINK | --version"
            );
            ExitCode::from(2)
        }
    }
}

fn run() -> anyhow::Result<()> {
    logging::start();
    // The passed sockets are taken before any thread runs.
    let config = service::NetworkServiceConfig::from_environment();
    Ok(runtime()?.block_on(service::run(config))?)
}

fn run_wireguard(link: &str) -> anyhow::Result<()> {
    logging::start();
    Ok(runtime()?.block_on(userspace::run(link))?)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

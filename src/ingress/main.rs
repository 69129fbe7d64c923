//! kat-ingress: the reverse proxy of KAT on one machine. It is started by systemd, never by people.
//!
//! - `kat-ingress run INSTANCE`: the body of `kat-ingress@INSTANCE.service`.

use std::{
    ffi::{OsStr, OsString},
    process::ExitCode,
};

use kat_daemon::logging;
use kat_ingress::service::{self, IngressConfig, ServiceError};

/// The service manager passed no socket (EX_CONFIG of sysexits.h): the unit is not started again.
const NO_SOCKET: u8 = 78;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let words: Vec<Option<&str>> = words.iter().map(|word| word.to_str()).collect();
    match words.as_slice() {
        [Some("run"), Some(instance)] => ended(run(instance)),
        [Some("--version" | "version")] => {
            anstream::println!("kat-ingress {}", kat_types::VERSION);
            ExitCode::SUCCESS
        }
        _ => {
            anstream::eprintln!("usage: kat-ingress run INSTANCE | --version");
            ExitCode::from(2)
        }
    }
}

fn run(instance: &str) -> anyhow::Result<()> {
    // The passed sockets are taken before any thread runs.
    let config = IngressConfig::from_environment(instance)?;
    logging::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    Ok(runtime.block_on(service::run(config))?)
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("error: {error:#}");
            match error.downcast_ref() {
                Some(ServiceError::NoSocket) => ExitCode::from(NO_SOCKET),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

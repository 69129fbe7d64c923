//! Any bytes as the state that the container runtime gives the hook: `kat-net` can read the hook's
//! request, and the input cannot inject fields into the hook's journal entry.
#![no_main]
#![allow(
    clippy::disallowed_methods,
    reason = "a value without JSON ends the run"
)]

use kat_fuzz::survive_overflow;
use kat_network::{
    containers::hook_server::parse_request,
    hook::{journal_entry, parse_state},
};
use libfuzzer_sys::fuzz_target;

/// Longest journal entry, which is sent as one datagram.
const ENTRY: usize = 10 * 1024;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    match parse_state(bytes) {
        Ok(request) => {
            let mut line = serde_json::to_vec(&request).expect("a request can be written");
            line.push(b'\n');
            assert_eq!(parse_request(&line).expect("kat-net reads it"), request);
            check_entry("no such thing", Some(&request.instance));
        }
        Err(error) => check_entry(&error.to_string(), None),
    }
    let text = String::from_utf8_lossy(bytes);
    check_entry(&text, Some(&text));
});

fn check_entry(message: &str, instance: Option<&str>) {
    let entry = journal_entry(message, instance, instance);
    assert!(entry.len() <= ENTRY, "{} bytes", entry.len());
    assert!(entry.ends_with('\n') && !entry.contains(['\0', '\r']));
    let names: Vec<&str> = entry
        .lines()
        .map(|line| line.split_once('=').expect("a field is NAME=VALUE").0)
        .collect();
    let expected = [
        "MESSAGE",
        "PRIORITY",
        "SYSLOG_IDENTIFIER",
        "KAT_HOOK_ERROR",
        "KAT_INSTANCE",
        "USER_UNIT",
    ];
    let optional = if instance.is_none() { 2 } else { 0 };
    assert_eq!(names, expected[..expected.len() - optional]);
}

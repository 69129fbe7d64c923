//! Any line on the hook's socket: an accepted request survives serialization, and every refusal
//! fits into the answer that the hook reads.
#![no_main]
#![allow(
    clippy::disallowed_methods,
    reason = "a value without JSON ends the run"
)]

use kat_fuzz::survive_overflow;
use kat_network::containers::hook_server::parse_request;
use kat_types::machine::network::HookAnswer;
use libfuzzer_sys::fuzz_target;

/// Longest answer that the hook reads.
const ANSWER: usize = 16 * 1024;

fuzz_target!(init: survive_overflow(), |line: &[u8]| {
    let outcome = parse_request(line);
    let answer = HookAnswer::of(&outcome);
    match outcome {
        Ok(request) => {
            assert!(request.pid > 1);
            assert!((1..=128).contains(&request.instance.len()));
            let written = serde_json::to_vec(&request).expect("a request can be written");
            assert_eq!(parse_request(&written).expect("it is read again"), request);
        }
        Err(_) => {
            let written = serde_json::to_vec(&answer).expect("an answer can be written");
            assert!(written.len() < ANSWER, "{} bytes", written.len());
            assert!(!written.contains(&b'\n'));
            let read: HookAnswer = serde_json::from_slice(&written).expect("it is read again");
            assert_eq!(read, answer);
        }
    }
});

//! Any packet as the answer of a name server to a question of DNS-01, or to an update. The first byte
//! chooses the question. With its highest bit set, the rest is the whole packet but its id; otherwise it is
//! the response code, the numbers of records and the records. Nothing is believed without the key.
#![no_main]

use kat_fuzz::{peak_of, survive_overflow};
use kat_leader::fuzz::read_dns_answer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let Some((kind, answer)) = bytes.split_first() else { return };
    let ((), memory) = peak_of(|| read_dns_answer(*kind, answer));
    assert!(memory <= 256 * 1024 + 1024 * answer.len(), "{memory} bytes of memory");
});

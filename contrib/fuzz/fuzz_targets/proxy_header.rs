//! Any bytes as the beginning of a connection with a PROXY header: it is found by reading byte for
//! byte what it needs, nothing behind it is taken, and it is bounded.
#![no_main]

use kat_fuzz::survive_overflow;
use kat_ingress::proxy_header::{HeaderProgress, LONGEST, ProxiedPeer, encode, parse};
use kat_types::resource::ProxyProtocol;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: survive_overflow(), |bytes: &[u8]| {
    let mut read = 0;
    let complete = loop {
        let beginning = &bytes[..read];
        match parse(beginning) {
            Ok(HeaderProgress::Needs(more)) => {
                assert!(more > 0 && read + more <= LONGEST, "{read} and {more}");
                read += more;
                if read > bytes.len() {
                    break None;
                }
            }
            Ok(HeaderProgress::Complete(peer, length)) => {
                assert_eq!(length, read, "bytes of the connection were taken");
                break Some(peer);
            }
            Err(error) => {
                // It stays refused, whatever follows.
                assert!(parse(bytes).is_err(), "{error}");
                break None;
            }
        }
    };
    let Some(peer) = complete else { return };
    assert_eq!(parse(bytes), Ok(HeaderProgress::Complete(peer, read)));
    if let ProxiedPeer::Client { source, destination } = peer {
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let written = encode(version, source, destination);
            let Ok(HeaderProgress::Complete(again, length)) = parse(&written) else {
                panic!("what is written is not read: {written:?}");
            };
            assert_eq!((again, length), (peer, written.len()));
        }
    }
});

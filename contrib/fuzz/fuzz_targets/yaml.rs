//! Any text as every kind of file: no panic, every error has a position in the text, and what is
//! accepted from users is accepted from the store.
#![no_main]

use kat_bundle::{
    DecodeMode, SourceFile, not_yet, parse, parse_agent_config, parse_cluster, spec_hash,
    template_hash,
};
use kat_fuzz::{bundle::check_diagnostics, survive_overflow};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: survive_overflow(), |text: &str| {
    let files = [SourceFile {
        name: "workload.kat".to_owned(),
        text: text.to_owned(),
    }];
    match parse(&files, DecodeMode::Strict) {
        Ok(bundle) => {
            let stored = parse(&files, DecodeMode::Stored).expect("what was accepted can be read again");
            assert_eq!(spec_hash(&bundle), spec_hash(&stored));
            assert_eq!(template_hash(&bundle), template_hash(&stored));
            let found = not_yet(&bundle);
            assert!(found.iter().all(|found| found.line > 0));
            if !found.is_empty() {
                check_diagnostics(&found, Some(text));
            }
        }
        Err(found) => check_diagnostics(&found, Some(text)),
    }
    if let Err(found) = parse(&files, DecodeMode::Stored) {
        check_diagnostics(&found, Some(text));
    }
    if let Err(found) = parse_cluster(text, "cluster.kat") {
        check_diagnostics(&found, Some(text));
    }
    if let Err(found) = parse_agent_config(text, "agent.yaml") {
        check_diagnostics(&found, Some(text));
    }
});

//! Any text as every kind of file: no panic, every mistake has a place that can be shown, and what
//! is accepted from users is accepted from the store.
#![no_main]

use kat::bundle::{
    Mode, SourceFile, not_yet, parse, parse_agent_config, parse_cluster, render, spec_hash,
    template_hash,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let files = [SourceFile {
        name: "workload.kat".to_owned(),
        text: text.to_owned(),
    }];
    match parse(&files, Mode::Strict) {
        Ok(bundle) => {
            let stored = parse(&files, Mode::Stored).expect("what was accepted can be read again");
            assert_eq!(spec_hash(&bundle), spec_hash(&stored));
            assert_eq!(template_hash(&bundle), template_hash(&stored));
            for found in not_yet(&bundle) {
                assert!(found.line > 0);
                let _ = render(&found, text, true);
            }
        }
        Err(found) => {
            assert!(!found.is_empty());
            for found in &found {
                let _ = render(found, text, false);
            }
        }
    }
    let _ = parse(&files, Mode::Stored);
    let _ = parse_cluster(text, "cluster.kat");
    let _ = parse_agent_config(text, "agent.yaml");
});

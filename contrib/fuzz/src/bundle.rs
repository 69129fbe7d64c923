//! What every mistake that is shown to a person keeps to.

use kat_bundle::{Diagnostic, MAX_CARRIED_FILES, MAX_FILES, render};

/// Longest sentence about one mistake, in bytes.
const SENTENCE: usize = 2000;
/// Most mistakes: of an archive, one of each entry as an entry and one as a file.
const MISTAKES: usize = 2 * (MAX_FILES + MAX_CARRIED_FILES) + 1;

/// Checks mistakes, in a file of this text where there is one: at places that it has, short, and without
/// what a terminal obeys.
pub fn check_diagnostics(found: &[Diagnostic], text: Option<&str>) {
    assert!(
        (1..=MISTAKES).contains(&found.len()),
        "{} mistakes",
        found.len()
    );
    // As YAML counts them.
    let lines = text
        .unwrap_or_default()
        .replace("\r\n", "\n")
        .split(['\n', '\r'])
        .count();
    for found in found {
        let sentence = found.to_string();
        assert!(
            sentence.len() <= SENTENCE,
            "{} bytes: {sentence}",
            sentence.len()
        );
        assert!(!sentence.contains(char::is_control), "{sentence:?}");
        assert!(usize::try_from(found.line).is_ok_and(|line| text.is_none() || line <= lines));
    }
    // Drawing is slow beside all else.
    for found in found.iter().take(2).chain(found.last()) {
        let shown = render(found, text.unwrap_or_default(), false);
        let obeyed = |letter: char| letter.is_control() && letter != '\n';
        assert!(!shown.contains(obeyed), "{shown:?}");
        let _ = render(found, text.unwrap_or_default(), true);
    }
}

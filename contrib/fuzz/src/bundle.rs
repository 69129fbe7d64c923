//! Checks that hold for every error shown to a user.

use kat_bundle::{Diagnostic, MAX_CARRIED_FILES, MAX_FILES, render};

/// Longest text of one error, in bytes.
const SENTENCE: usize = 2000;
/// Most errors of an archive: one for each entry as an entry and one as a file.
const MISTAKES: usize = 2 * (MAX_FILES + MAX_CARRIED_FILES) + 1;

/// Checks that errors are few, short, without control characters, and at positions that exist in
/// `text`.
pub fn check_diagnostics(found: &[Diagnostic], text: Option<&str>) {
    assert!(
        (1..=MISTAKES).contains(&found.len()),
        "{} mistakes",
        found.len()
    );
    // Lines as YAML counts them.
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
    // Only some are rendered, because rendering is slow.
    for found in found.iter().take(2).chain(found.last()) {
        let shown = render(found, text.unwrap_or_default(), false);
        let obeyed = |letter: char| letter.is_control() && letter != '\n';
        assert!(!shown.contains(obeyed), "{shown:?}");
        let _ = render(found, text.unwrap_or_default(), true);
    }
}

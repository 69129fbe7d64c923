//! Reads any bytes as a registry's answers, for the fuzz targets.

use super::answer::{self, Challenge, Manifest};

/// Reads a body as a manifest of this content type, as an image's configuration and as an error.
///
/// # Panics
/// If something is taken that is no digest or no architecture.
pub fn read_body(kind: &str, body: &[u8]) {
    match Manifest::read(kind, body) {
        Ok(Manifest::Index(found)) => {
            assert!(found.is_sorted());
            assert!(found.iter().all(|one| is_architecture(one)), "{found:?}");
        }
        Ok(Manifest::Image(digest)) => assert!(answer::is_digest(&digest), "{digest}"),
        Err(words) => assert!(words.len() < 100, "{words}"),
    }
    if let Some(found) = answer::architecture(body) {
        assert!(is_architecture(&found), "{found}");
    }
    answer::is_nonexistent(body);
}

/// Reads texts as headers `WWW-Authenticate`.
///
/// # Panics
/// If what is taken is longer than what was sent.
pub fn read_challenges(headers: &[&str]) {
    let sent: usize = headers.iter().map(|header| header.len()).sum();
    if let Some(Challenge::Bearer { realm, questions }) = Challenge::read(headers.iter().copied()) {
        let taken: usize = questions.iter().map(|(_, value)| value.len()).sum();
        assert!(realm.len() + taken <= sent);
    }
}

fn is_architecture(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=20).contains(&text.len()) && text.bytes().all(letter)
}

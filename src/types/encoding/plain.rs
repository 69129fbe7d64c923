//! Untrusted text for a terminal, made safe: it can't move the cursor, change colours or reverse
//! the direction of writing.

/// One line of untrusted text with its control characters escaped.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\t' => shown.push(' '),
            other => push_plain(&mut shown, other),
        }
    }
    shown
}

/// Several lines of untrusted text, each as by [`plain`].
pub fn plain_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    lines.join("\n")
}

/// Adds a character, or its escaped number if it is a control character.
pub fn push_plain(shown: &mut String, character: char) {
    let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if character.is_control() || turns {
        shown.extend(character.escape_default());
    } else {
        shown.push(character);
    }
}

/// Maximum characters of a program's own output in an error.
const WORDS_LIMIT: usize = 600;

/// The end of a text, on one line.
pub fn last_words(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let skip = line.chars().count().saturating_sub(WORDS_LIMIT);
    line.chars().skip(skip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_terminals_cursor_is_written_out() {
        assert_eq!(
            plain("home\u{1b}[2J\r\u{202e}x\ty\n"),
            "home\\u{1b}[2J\\r\\u{202e}x y\\n"
        );
        assert_eq!(
            plain_lines("one\ntwo\u{1b}]0;x\u{7}"),
            "one\ntwo\\u{1b}]0;x\\u{7}"
        );
    }
}

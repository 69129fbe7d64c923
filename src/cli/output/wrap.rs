//! Lines of sentences, broken between words where a terminal would break them inside words.

/// Furthest column in which a second column of text is recognised.
const LATEST_COLUMN: usize = 40;

/// The text with each line broken between words, so that none is wider than `width`; the rest of a
/// line stands below the column that its text begins in. A word that is wider stays whole, and so
/// do commands between backquotes, to be copied, and all text in a pipe.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let mut all = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        push_wrapped(&mut all, line, width);
        all.push_str(end);
    }
    all
}

fn push_wrapped(all: &mut String, line: &str, width: usize) {
    if columns(line) <= width {
        all.push_str(line);
        return;
    }
    let hang = hanging(line, width);
    // Whether the present line has a word after its indentation.
    let mut has_word = false;
    let mut used = 0;
    let mut rest = line;
    while !rest.is_empty() {
        let gap = rest.len() - rest.trim_start_matches(' ').len();
        let (spaces, after) = rest.split_at(gap);
        let (word, next) = after.split_at(word_end(after));
        rest = next;
        let wide = columns(word);
        // What belongs to the first column stays on the line of it.
        let is_text = used + gap > hang;
        if has_word && is_text && used + gap + wide > width {
            all.push('\n');
            all.push_str(&" ".repeat(hang));
            used = hang;
        } else {
            all.push_str(spaces);
            used += gap;
        }
        all.push_str(word);
        used += wide;
        has_word = true;
    }
}

/// Where the first word of a text ends; what stands between backquotes is one.
fn word_end(text: &str) -> usize {
    let mut is_quoted = false;
    for (index, one) in text.char_indices() {
        match one {
            '`' => {
                // Nothing is quoted by a backquote that is the last one.
                let after = text.get(index + 1..).unwrap_or_default();
                is_quoted = !is_quoted && after.contains('`');
            }
            ' ' if !is_quoted => return index,
            _ => {}
        }
    }
    text.len()
}

/// The column of the text that may be broken: after a first column, or below the first word and two
/// spaces more.
fn hanging(line: &str, width: usize) -> usize {
    let mut column = 0;
    let mut spaces = 0;
    let mut begun = false;
    let mut first = 0;
    let mut code = false;
    for one in line.chars() {
        if code || one == '\u{1b}' {
            code = one != 'm';
            continue;
        }
        if one == ' ' {
            spaces += 1;
        } else {
            if begun && spaces >= 2 && column <= LATEST_COLUMN && column < width / 2 {
                return column;
            }
            if !begun {
                begun = true;
                first = column;
            }
            spaces = 0;
        }
        column += 1;
    }
    match first + 2 < width / 2 {
        true => first + 2,
        false => 0,
    }
}

/// Characters that a terminal shows of a text, without the codes of colours.
fn columns(text: &str) -> usize {
    let mut count = 0;
    let mut code = false;
    for one in text.chars() {
        if code || one == '\u{1b}' {
            code = one != 'm';
        } else {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_broken_between_words_below_its_column() {
        let text = "because  web-bbbbb: its image cannot be pulled\n\n  node b is not ready for long\nshort\n";
        assert_eq!(
            wrapped(text, Some(28)),
            "because  web-bbbbb: its\n         image cannot be\n         pulled\n\n  node b is not ready for\n    long\nshort\n"
        );
        assert_eq!(wrapped(text, None), text);
    }

    #[test]
    fn a_word_that_is_too_wide_stays_whole_and_nothing_is_lost() {
        let text = "try      registry.example/a/very/long/name:1 or another one\n";
        for width in 1..70 {
            let shown = wrapped(text, Some(width));
            let words = |text: &str| {
                text.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert_eq!(words(&shown), words(text), "{width}");
            for line in shown.lines() {
                let is_one_word = line.split_whitespace().count() <= 2;
                assert!(columns(line) <= width || is_one_word, "{width}: {line}");
            }
        }
    }

    #[test]
    fn a_command_between_backquotes_is_not_broken() {
        let text = "hint: say (`katcall get nodes -o wide`), or `katcall status` then\n";
        assert_eq!(
            wrapped(text, Some(20)),
            "hint: say\n  (`katcall get nodes -o wide`),\n  or\n  `katcall status`\n  then\n"
        );
        // A backquote without another one quotes nothing.
        assert_eq!(
            wrapped("one `two three four\n", Some(10)),
            "one `two\n  three\n  four\n"
        );
    }

    #[test]
    fn colours_take_no_room() {
        let text = "\u{1b}[1mname\u{1b}[0m      one two\n";
        assert_eq!(wrapped(text, Some(17)), text);
        assert_eq!(
            wrapped(text, Some(16)),
            "\u{1b}[1mname\u{1b}[0m      one\n  two\n"
        );
        assert_eq!(
            wrapped("\u{1b}[1mno\u{1b}[0m  one two\n", Some(10)),
            "\u{1b}[1mno\u{1b}[0m  one\n    two\n"
        );
    }
}

use proptest::prelude::*;

use super::*;

/// Reads words as systemd and the generator do (systemd.syntax(7), "Quoting"), then expands `%%`
/// and, in command lines, `$$`.
fn read_words(line: &str, command_line: bool) -> Vec<String> {
    let mut words = Vec::new();
    let mut characters = line.chars().peekable();
    loop {
        while characters
            .peek()
            .is_some_and(|next| " \t\n\r".contains(*next))
        {
            characters.next();
        }
        if characters.peek().is_none() {
            return words;
        }
        words.push(expand(&read_word(&mut characters), command_line));
    }
}

fn read_word(characters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut text = String::new();
    let mut quote = None;
    while let Some(character) = characters.next() {
        match (quote, character) {
            (None, ' ' | '\t' | '\n' | '\r') => break,
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            (_, '\\') => text.push(match characters.next().unwrap() {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'x' => {
                    let digits: String = characters.by_ref().take(2).collect();
                    char::from(u8::from_str_radix(&digits, 16).unwrap())
                }
                same @ ('\\' | '"' | '\'') => same,
                other => panic!("unknown escape \\{other}"),
            }),
            (_, other) => text.push(other),
        }
    }
    assert_eq!(quote, None, "a quote is left open");
    text
}

fn expand(text: &str, command_line: bool) -> String {
    let mut result = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character == '%' || (command_line && character == '$') {
            assert_eq!(
                characters.next(),
                Some(character),
                "{text:?} would be expanded"
            );
        }
        result.push(character);
    }
    result
}

const AWKWARD: [&str; 19] = [
    "two words",
    "it's",
    "say \"so\"",
    "100%",
    "%n",
    "$HOME",
    "${HOME}",
    "$$",
    "back\\slash",
    "\\",
    "line\nbreak",
    "tab\there",
    "\r",
    "\u{1}\u{7f}",
    "ünïcode",
    "\u{a0}",
    "  ",
    "#",
    "a;b",
];

#[test]
fn awkward_words_come_back() {
    for text in AWKWARD {
        assert_eq!(read_words(&word(text).unwrap(), true), [text]);
        assert_eq!(read_words(&setting(text).unwrap(), false), [text]);
    }
}

#[test]
fn plain_words_stay_readable() {
    assert_eq!(word("--port=8080").unwrap(), "--port=8080");
    assert_eq!(word("/usr/bin/app").unwrap(), "/usr/bin/app");
    assert_eq!(word("100%").unwrap(), "100%%");
    assert_eq!(setting("A=$B").unwrap(), "A=$B");
}

#[test]
fn what_would_be_lost_is_refused() {
    assert_eq!(word(""), Err(QuoteError::Empty));
    assert_eq!(word("a\0b"), Err(QuoteError::Nul));
    assert!(matches!(word("a\u{80}"), Err(QuoteError::Padding(_))));
    for text in [
        " a", "a ", "a\u{a0}", "\"a", "a\"", "a\\", "a\nb", "a\tb", "",
    ] {
        assert!(value(text).is_err(), "{text:?} was taken as it stands");
        assert!(plain(text).is_err(), "{text:?} was taken as it stands");
    }
    for text in ["", "a b", "a\"", "%n", "$x", "a\nb"] {
        assert!(token(text).is_err(), "{text:?} was taken as a token");
    }
}

#[test]
fn arguments_that_get_lost_become_variables() {
    let words = ["a", "", ";", "b c", "\u{80}"].map(str::to_owned);
    assert_eq!(
        arguments(&words).unwrap(),
        "a ${KAT_ARGUMENT_1} ${KAT_ARGUMENT_2} \"b c\" ${KAT_ARGUMENT_4}"
    );
}

#[test]
fn entrypoints_are_json_on_one_line() {
    let words = ["/init", "a \"b\"\n\u{7f}", "100%$"].map(str::to_owned);
    let line = json(&words).unwrap();
    assert!(!line.chars().any(char::is_control), "{line:?}");
    let read: Vec<String> = serde_json::from_str(&expand(&line, true)).unwrap();
    assert_eq!(read, words);
}

proptest! {
    #[test]
    fn every_word_comes_back(text in "[^\u{0}\u{80}]{1,40}") {
        prop_assert_eq!(read_words(&word(&text).unwrap(), true), [text.as_str()]);
        prop_assert_eq!(read_words(&setting(&text).unwrap(), false), [text.as_str()]);
    }

    #[test]
    fn a_word_is_one_line(text in "[^\u{0}\u{80}]{1,40}") {
        let line = word(&text).unwrap();
        prop_assert!(!line.contains(|character: char| character.is_ascii_control()));
        prop_assert_eq!(line.trim(), line.as_str(), "an edge would be trimmed");
        prop_assert!(!line.ends_with('\\'), "the line would go on");
    }

    #[test]
    fn lists_come_back(words in proptest::collection::vec("[a-z \"'\\\\%$\n;#]{1,8}", 0..6)) {
        prop_assume!(words.iter().all(|text| !needs_variable(text)));
        prop_assert_eq!(read_words(&arguments(&words).unwrap(), true), words);
    }

    #[test]
    fn raw_values_are_kept_or_refused(text in ".{0,20}") {
        if let Ok(line) = value(&text) {
            prop_assert_eq!(expand(&line, true), text.clone());
            prop_assert_eq!(line.trim().trim_matches('"'), line.as_str());
        }
    }

    #[test]
    fn entrypoints_come_back(words in proptest::collection::vec("[^\u{0}]{0,8}", 1..4)) {
        let line = json(&words).unwrap();
        let read: Vec<String> = serde_json::from_str(&expand(&line, true)).unwrap();
        prop_assert_eq!(read, words);
    }
}

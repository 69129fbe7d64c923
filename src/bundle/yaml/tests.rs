//! YAML that the reader accepts or refuses, and the positions in its errors.

use super::*;

fn tree(text: &str) -> (Documents, Vec<Diagnostic>) {
    let mut diagnostics = Vec::new();
    let documents = read("a.kat", text, &mut diagnostics);
    (documents, diagnostics)
}

fn only(text: &str) -> Diagnostic {
    let (documents, mut diagnostics) = tree(text);
    assert!(documents.broken, "{text}");
    assert_eq!(diagnostics.len(), 1, "{diagnostics:?}");
    diagnostics.remove(0)
}

#[test]
fn keeps_text_as_written() {
    let (documents, diagnostics) = tree("a: 1.10\nb: on\nc: 'x'\nd:\ne: [yes, {k: ~}]\n");
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let YamlValue::Mapping(entries) = &documents.roots[0].value else {
        panic!("not a mapping");
    };
    let scalar = |index: usize| entries[index].node.value.clone();
    let of = |text: &str, plain| YamlValue::Scalar {
        text: text.to_owned(),
        plain,
    };
    assert_eq!(scalar(0), of("1.10", true));
    assert_eq!(scalar(1), of("on", true));
    assert_eq!(scalar(2), of("x", false));
    assert!(entries[3].node.is_null());
    assert_eq!(entries[2].key_span.start, Position { line: 3, column: 1 });
    assert_eq!(entries[2].node.span.start, Position { line: 3, column: 4 });
    assert_eq!(entries[2].node.span.end, Position { line: 3, column: 7 });
}

#[test]
fn refuses_what_could_expand() {
    for (text, line, column) in [
        ("a: &x 1\nb: 2\n", 1, 4),
        ("a: 1\nb: *x\n", 2, 4),
        ("a: [&x {k: v}, *x]\n", 1, 5),
        ("a:\n  <<: {b: c}\n", 2, 3),
        ("&x a: 1\n", 1, 1),
        ("a: &x\n", 1, 4),
    ] {
        let found = only(text);
        assert_eq!(found.class, Class::Alias, "{text}");
        assert_eq!((found.line, found.column), (line, column), "{text}");
    }
}

#[test]
fn a_bomb_stops_at_its_first_anchor() {
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for letter in 'b'..'z' {
        let before = char::from(letter as u8 - 1);
        bomb.push_str(&format!(
            "{letter}: &{letter} [*{before},*{before},*{before}]\n"
        ));
    }
    let found = only(&bomb);
    assert_eq!(
        (found.class, found.line, found.column),
        (Class::Alias, 1, 4)
    );
}

#[test]
fn names_the_second_of_two_equal_keys() {
    let (documents, diagnostics) = tree("a:\n  - b: 1\n    c: 2\n    b: 3\n");
    assert!(!documents.broken);
    assert_eq!(diagnostics.len(), 1);
    let found = &diagnostics[0];
    assert_eq!(
        (found.class, found.line, found.column),
        (Class::Duplicate, 4, 5)
    );
    assert_eq!(found.path, "a[0].b");
    assert_eq!(found.message, "`b` is written twice, first in line 2");
}

#[test]
fn is_bounded() {
    let deep = "[".repeat(40);
    assert_eq!(only(&deep).class, Class::Oversize);
    let deep: String = (0..40)
        .map(|level| format!("{}a:\n", " ".repeat(level)))
        .collect();
    assert_eq!(only(&deep).class, Class::Oversize);
    let wide = format!("a: [{}]", "x,".repeat(20_001));
    assert_eq!(only(&wide).class, Class::Oversize);
    let many = "---\na: 1\n".repeat(17);
    assert_eq!(only(&many).class, Class::Oversize);
}

#[test]
fn says_where_the_syntax_ends() {
    for text in ["a: 1\n\tb: 2\n", "a:\n\tb: 2\n"] {
        let found = only(text);
        assert_eq!((found.class, found.line), (Class::Shape, 2), "{text:?}");
        assert_eq!(
            found.hint.as_deref(),
            Some("indent with spaces"),
            "{text:?}"
        );
    }
    let found = only("a: 1\nb: c: d\n");
    assert_eq!((found.class, found.line), (Class::Shape, 2));
    let found = only("a: \"open\n");
    assert_eq!(found.class, Class::Shape);
    let found = only("a: !!binary x\n");
    assert_eq!(
        (found.class, found.line, found.column),
        (Class::Shape, 1, 4)
    );
    let found = only("? [a]\n: b\n");
    assert_eq!(found.class, Class::Shape);
    let found = only("a: x\u{0}y\n");
    assert_eq!((found.class, found.column), (Class::Encoding, 5));
}

#[test]
fn reads_several_documents() {
    let (documents, diagnostics) = tree("---\na: 1\n---\nb: 2\n...\n");
    assert!(diagnostics.is_empty());
    assert_eq!(documents.roots.len(), 2);
    assert_eq!(
        documents.roots[1].span.start,
        Position { line: 4, column: 1 }
    );
}

#[test]
fn places_count_every_end_of_a_line() {
    for text in ["a: 1\rb: \u{1b}", "a: 1\r\nb: \u{1b}", "a: 1\nb: \u{1b}"] {
        let found = only(text);
        assert_eq!((found.line, found.column), (2, 4), "{text:?}");
    }
}

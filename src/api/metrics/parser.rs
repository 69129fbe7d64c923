//! A strict reader of Prometheus' text format 0.0.4, for tests.

use std::collections::{BTreeMap, BTreeSet};

type Labels = BTreeMap<String, String>;

/// The samples of a text.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Type by name of the family.
    pub types: BTreeMap<String, String>,
    by_name: BTreeMap<String, BTreeMap<Labels, f64>>,
}

impl Samples {
    /// The value of the sample with exactly these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let labels: Labels = labels.iter().map(owned).collect();
        self.by_name.get(name)?.get(&labels).copied()
    }

    /// Number of samples of this name.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.by_name.get(name).map_or(0, BTreeMap::len)
    }
}

/// Reads a text; panics at the first mistake. Each family has one HELP, then one TYPE, then its
/// samples without other lines between them; no sample is there twice; a name follows Prometheus'
/// conventions.
pub(crate) fn parse(text: &str) -> Samples {
    assert!(
        text.is_empty() || text.ends_with('\n'),
        "the last line has no end"
    );
    let mut samples = Samples::default();
    let mut helped = BTreeSet::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect(line);
            check_name(name);
            assert!(helped.insert(name.to_owned()), "{name} is there twice");
            assert!(help.ends_with('.') && help.len() > 1, "{line}");
            name.clone_into(&mut family);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect(line);
            assert_eq!(name, family, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let before = samples.types.insert(name.to_owned(), kind.to_owned());
            assert_eq!(before, None, "{line}");
        } else {
            let (name, labels, value) = sample(line);
            let kind = samples.types.get(&family).map(String::as_str);
            let suffix = name.strip_prefix(&family).expect(line);
            match kind.expect(line) {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                _ => assert_eq!(suffix, "", "{line}"),
            }
            assert!(kind == Some("gauge") || value >= 0.0, "{line}");
            let before = samples
                .by_name
                .entry(name)
                .or_default()
                .insert(labels, value);
            assert_eq!(before, None, "the sample is there twice: {line}");
        }
    }
    for name in &helped {
        assert!(samples.types.contains_key(name), "{name} has no TYPE");
    }
    samples
}

fn check_name(name: &str) {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    assert!(name.starts_with("kat_") && name.bytes().all(fits), "{name}");
    // Base units.
    for other in [
        "_milliseconds",
        "_ms",
        "_kib",
        "_mib",
        "_percent",
        "_minutes",
    ] {
        assert!(!name.contains(other), "{name}");
    }
}

/// Name, labels and value of one line.
fn sample(line: &str) -> (String, Labels, f64) {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    check_name(name);
    let mut labels = Labels::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, after) = rest.split_once("=\"").expect(line);
            let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(!label.is_empty() && label.bytes().all(fits), "{line}");
            let (value, after) = label_value(after, line);
            assert_eq!(labels.insert(label.to_owned(), value), None, "{line}");
            if let Some(after) = after.strip_prefix(',') {
                rest = after;
                continue;
            }
            rest = after.strip_prefix('}').expect(line);
            break;
        }
    }
    let value = rest.strip_prefix(' ').expect(line);
    assert!(!value.contains(' '), "no sample has a time: {line}");
    let value = match value {
        "+Inf" => f64::INFINITY,
        other => other.parse().expect(line),
    };
    (name.to_owned(), labels, value)
}

/// The value up to the closing quote, and what follows that.
fn label_value<'a>(text: &'a str, line: &str) -> (String, &'a str) {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, text.get(at + 1..).expect(line)),
            '\\' => value.push(match characters.next().map(|(_, next)| next) {
                Some('n') => '\n',
                Some(next @ ('"' | '\\')) => next,
                other => panic!("{other:?} is escaped in {line}"),
            }),
            '\n' => panic!("a line break in {line}"),
            other => value.push(other),
        }
    }
    panic!("a label value without an end: {line}")
}

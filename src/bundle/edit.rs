//! Changes of a written file that keep its comments and layout.

use super::{
    DocumentKind, SourceFile,
    needed_reader::is_service,
    yaml::{self, YamlNode, YamlValue, locate},
};

/// The files with another `spec.replicas` in `workload.kat`. A Service's is written if it was not;
/// for other types `None`.
pub fn with_replicas(files: &[SourceFile], replicas: u32) -> Option<Vec<SourceFile>> {
    with_value(files, "spec.replicas", &replicas.to_string())
        .or_else(|| with_first_field(files, "replicas", replicas))
}

/// The files with a number as the first field of a Service's `spec`; `None` if the field is
/// written.
fn with_first_field(files: &[SourceFile], name: &str, value: u32) -> Option<Vec<SourceFile>> {
    let mut files = files.to_vec();
    let (file, (start, in_braces)) = files.iter().enumerate().find_map(|(index, file)| {
        let roots = yaml::read(&file.name, &file.text, &mut Vec::new()).roots;
        let is_meant = |root: &&YamlNode| is_workload(root) && is_service(root);
        let root = roots.iter().find(is_meant)?;
        let (spec, _) = locate(root, "spec")?;
        let YamlValue::Mapping(entries) = &spec.value else {
            return None;
        };
        if entries.iter().any(|entry| entry.key == name) {
            return None;
        }
        let first = entries.first()?.key_span.start;
        let at = |line, column| offset(&file.text, line, column);
        let start = at(first.line, first.column)?;
        let of_spec = at(spec.span.start.line, spec.span.start.column)?;
        let in_braces = file.text.get(of_spec..)?.starts_with('{');
        Some((index, (start, in_braces)))
    })?;
    let file = files.get_mut(file)?;
    let (before, after) = file.text.split_at_checked(start)?;
    // A field in a line of its own has the indentation of the one that was first.
    let line = before.rsplit('\n').next().unwrap_or_default();
    file.text = match in_braces {
        true => format!("{before}\"{name}\": {value}, {after}"),
        false if line.trim().is_empty() => format!("{before}{name}: {value}\n{line}{after}"),
        false => return None,
    };
    Some(files)
}

/// The files with another `spec.source.image` in `workload.kat`; `None` if the field is not written
/// there. Names of images need no quotes.
pub fn with_image(files: &[SourceFile], image: &str) -> Option<Vec<SourceFile>> {
    with_value(files, "spec.source.image", image)
}

fn with_value(files: &[SourceFile], path: &str, value: &str) -> Option<Vec<SourceFile>> {
    let mut files = files.to_vec();
    let (file, node) = files.iter().enumerate().find_map(|(index, file)| {
        let roots = yaml::read(&file.name, &file.text, &mut Vec::new()).roots;
        let node = roots.iter().find_map(|root| written(root, path))?;
        Some((index, node))
    })?;
    let file = files.get_mut(file)?;
    let start = offset(&file.text, node.span.start.line, node.span.start.column)?;
    let end = offset(&file.text, node.span.end.line, node.span.end.column)?;
    let (before, after) = (file.text.get(..start)?, file.text.get(end..)?);
    file.text = format!("{before}{value}{after}");
    Some(files)
}

/// A field of a document, if the document is a workload.
fn written(root: &YamlNode, path: &str) -> Option<YamlNode> {
    let (node, _) = locate(root, path)?;
    (is_workload(root) && !node.is_null()).then(|| node.clone())
}

fn is_workload(root: &YamlNode) -> bool {
    locate(root, "kind").is_some_and(|(node, _)| match &node.value {
        YamlValue::Scalar { text, .. } => text == DocumentKind::Workload.as_str(),
        YamlValue::Sequence(_) | YamlValue::Mapping(_) => false,
    })
}

/// The byte offset of a line and a column, both from 1.
fn offset(text: &str, line: u32, column: u32) -> Option<usize> {
    let mark = if text.starts_with('\u{feff}') {
        '\u{feff}'.len_utf8()
    } else {
        0
    };
    let (mut at_line, mut at_column) = (1, 1);
    let rest = text.get(mark..)?;
    let mut characters = rest.char_indices().peekable();
    loop {
        let next = characters.next();
        if (at_line, at_column) == (line, column) {
            return Some(mark + next.map_or(rest.len(), |(at, _)| at));
        }
        let (_, character) = next?;
        let ends = character == '\n'
            || (character == '\r' && characters.peek().is_none_or(|(_, next)| *next != '\n'));
        match ends {
            true => (at_line, at_column) = (at_line + 1, 1),
            false => at_column += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(text: &str) -> Option<String> {
        let file = |name: &str, text: &str| SourceFile {
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let other = "kind: VirtualLoadBalancer\nspec: {replicas: 1}\n";
        let files = [
            file("VirtualLoadBalancer.kat", other),
            file("workload.kat", text),
        ];
        let changed = with_replicas(&files, 12)?;
        assert_eq!(changed[0].text, other);
        Some(changed[1].text.clone())
    }

    #[test]
    fn changes_the_number_and_nothing_else() {
        let table = [
            (
                "kind: Workload\nspec:\n  replicas: 3  # three\n  x: 3\n",
                "kind: Workload\nspec:\n  replicas: 12  # three\n  x: 3\n",
            ),
            (
                "\u{feff}# é\r\nkind: Workload\r\nspec: {ä: é, replicas: 3, b: 3}",
                "\u{feff}# é\r\nkind: Workload\r\nspec: {ä: é, replicas: 12, b: 3}",
            ),
            (
                "{\"kind\": \"Workload\", \"spec\": {\"replicas\": 3}}",
                "{\"kind\": \"Workload\", \"spec\": {\"replicas\": 12}}",
            ),
            (
                "kind: Workload\nspec:\n  replicas:\n    3",
                "kind: Workload\nspec:\n  replicas:\n    12",
            ),
        ];
        for (before, after) in table {
            assert_eq!(scaled(before).as_deref(), Some(after));
        }
        let absent = [
            (
                "kind: Workload\nspec:\n  # the image\n  source: {image: a}\n",
                "kind: Workload\nspec:\n  # the image\n  replicas: 12\n  source: {image: a}\n",
            ),
            (
                "kind: Workload\nspec: {source: {image: a}}\n",
                "kind: Workload\nspec: {\"replicas\": 12, source: {image: a}}\n",
            ),
            (
                "{\"kind\": \"Workload\", \"spec\": {\"type\": \"Service\"}}",
                "{\"kind\": \"Workload\", \"spec\": {\"replicas\": 12, \"type\": \"Service\"}}",
            ),
        ];
        for (before, after) in absent {
            assert_eq!(scaled(before).as_deref(), Some(after));
        }
        for none in [
            "kind: Workload\nspec: {}\n",
            "kind: Workload\nspec: {type: DaemonService}\n",
            "kind: Workload\nspec: {type: Job, source: {image: a}}\n",
            "kind: Workload\nspec:\n  replicas:\n",
            "kind: Job\nspec: {replicas: 1}\n",
        ] {
            assert_eq!(scaled(none), None, "{none}");
        }
    }
}

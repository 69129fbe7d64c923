//! `-o jsonpath=TEMPLATE`: a small, strict subset of kubectl's JSONPath templates.
//!
//! Text outside of braces is literal. `{...}` contains a path: `.name`, `['name']`, `[N]` (from the
//! end if negative), `[*]`, and `[?(@.path=="value")]`, which selects the items of a list with that
//! value. `{"\n"}` is a text with escapes. Everything else is rejected. The libraries for RFC 9535
//! implement another language, with `$` and without templates, which existing scripts do not use;
//! this subset covers what scripts use.

use serde_json::Value;

/// The template of `-o jsonpath=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template {
    parts: Vec<JsonPathPart>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum JsonPathPart {
    Text(String),
    Path(Vec<JsonPathStep>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum JsonPathStep {
    Field(String),
    Item(i64),
    All,
    /// Items whose value at the path is that text, or has that textual form.
    Where(Vec<JsonPathStep>, String),
}

impl Template {
    /// # Errors
    /// A sentence about the mistake.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(JsonPathPart::Text(before.to_owned()));
            }
            let end = end_of(after).ok_or("a `{` has no `}`")?;
            let (inside, remaining) = after.split_at(end);
            let inside = inside.trim();
            if inside == "end" || inside.split_whitespace().next() == Some("range") {
                return Err(format!(
                    "`{{{inside}}}` is not supported; `{{.items[*].metadata.name}}` prints a value of each item, and `-o json` with jq prints several"
                ));
            }
            parts.push(if inside.starts_with('"') {
                let text = serde_json::from_str(inside);
                JsonPathPart::Text(text.map_err(|_| format!("`{inside}` is not a text"))?)
            } else {
                JsonPathPart::Path(path(inside)?)
            });
            rest = remaining.strip_prefix('}').unwrap_or_default();
        }
        if !rest.is_empty() {
            parts.push(JsonPathPart::Text(rest.to_owned()));
        }
        if !parts
            .iter()
            .any(|part| matches!(part, JsonPathPart::Path(_)))
        {
            return Err("it has no path in braces, such as {.items[*].metadata.name}".to_owned());
        }
        Ok(Self { parts })
    }

    /// Fills the template from a document: strings unquoted, everything else as JSON, several
    /// values separated by a space.
    pub(crate) fn fill(&self, document: &Value) -> String {
        let parts = self.parts.iter().map(|part| match part {
            JsonPathPart::Text(text) => text.clone(),
            JsonPathPart::Path(steps) => {
                let found = walk(document, steps);
                found.into_iter().map(shown).collect::<Vec<_>>().join(" ")
            }
        });
        parts.collect()
    }
}

/// Position of the closing `}`; braces within quotes are ignored.
fn end_of(text: &str) -> Option<usize> {
    let mut quote = None;
    for (place, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None, '"' | '\'') => quote = Some(character),
            (None, '}') => return Some(place),
            _ => {}
        }
    }
    None
}

fn path(text: &str) -> Result<Vec<JsonPathStep>, String> {
    let mut steps = Vec::new();
    let mut rest = text.strip_prefix('$').unwrap_or(text);
    if rest == "." {
        return Ok(steps);
    }
    let strange = |rest: &str| format!("`{rest}` is not understood in `{text}`");
    while !rest.is_empty() {
        let (step, after) = if let Some(after) = rest.strip_prefix('.') {
            let end = after.find(['.', '[']).unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            let fits = |one: char| one.is_alphanumeric() || matches!(one, '_' | '-' | '/');
            match name {
                "*" => (JsonPathStep::All, after),
                name if !name.is_empty() && name.chars().all(fits) => {
                    (JsonPathStep::Field(name.to_owned()), after)
                }
                _ => return Err(strange(rest)),
            }
        } else if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = bracket(after).ok_or_else(|| strange(rest))?;
            (index(inside).ok_or_else(|| strange(rest))?, after)
        } else {
            return Err(strange(rest));
        };
        steps.push(step);
        rest = after;
    }
    Ok(steps)
}

/// The text before the closing `]`, and the text after it.
fn bracket(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0_usize;
    let mut quote = None;
    for (place, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some((text.get(..place)?, text.get(place + 1..)?)),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn index(inside: &str) -> Option<JsonPathStep> {
    if inside == "*" {
        return Some(JsonPathStep::All);
    }
    if let Some(name) = quoted(inside) {
        return Some(JsonPathStep::Field(name.to_owned()));
    }
    if let Some(filter) = inside
        .strip_prefix("?(@")
        .and_then(|filter| filter.strip_suffix(')'))
    {
        let (steps, value) = filter.split_once("==")?;
        let value = value.trim();
        let value = quoted(value).unwrap_or(value);
        return Some(JsonPathStep::Where(
            path(steps.trim()).ok()?,
            value.to_owned(),
        ));
    }
    inside.parse().ok().map(JsonPathStep::Item)
}

fn quoted(text: &str) -> Option<&str> {
    ['"', '\'']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
}

fn walk<'a>(document: &'a Value, steps: &[JsonPathStep]) -> Vec<&'a Value> {
    let mut here = vec![document];
    for step in steps {
        here = here
            .into_iter()
            .flat_map(|value| apply_step(value, step))
            .collect();
    }
    here
}

fn apply_step<'a>(value: &'a Value, step: &JsonPathStep) -> Vec<&'a Value> {
    match (step, value) {
        (JsonPathStep::Field(name), Value::Object(members)) => {
            members.get(name).into_iter().collect()
        }
        (JsonPathStep::Item(number), Value::Array(items)) => {
            let place = usize::try_from(number.unsigned_abs()).unwrap_or(usize::MAX);
            let place = match number {
                0.. => Some(place),
                _ => items.len().checked_sub(place),
            };
            place
                .and_then(|place| items.get(place))
                .into_iter()
                .collect()
        }
        (JsonPathStep::All, Value::Array(items)) => items.iter().collect(),
        (JsonPathStep::All, Value::Object(members)) => members.values().collect(),
        (JsonPathStep::Where(steps, wanted), Value::Array(items)) => {
            let fits = |item: &&Value| walk(item, steps).into_iter().any(|at| shown(at) == *wanted);
            items.iter().filter(fits).collect()
        }
        _ => Vec::new(),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fill(template: &str) -> String {
        let document = json!({"items": [
            {"metadata": {"name": "web", "labels": {"kat.dws.rip/arch": "amd64"}}, "status": {"ready": 1, "ok": true,
                "conditions": [{"type": "A", "status": false}, {"type": "B", "status": true}]}},
            {"metadata": {"name": "db"}, "status": {"ready": 2, "ok": false, "reason": null}},
        ]});
        Template::parse(template).unwrap().fill(&document)
    }

    #[test]
    fn paths_are_followed() {
        for (template, wanted) in [
            ("{.items[*].metadata.name}", "web db"),
            ("{$.items[0].metadata.name}", "web"),
            ("{.items[-1].metadata.name}", "db"),
            ("{.items[-3].metadata.name}", ""),
            ("{.items[9].metadata.name}", ""),
            ("{.items[0].metadata.labels['kat.dws.rip/arch']}", "amd64"),
            ("{.items[*].status.ready}", "1 2"),
            ("{.items[?(@.metadata.name==\"db\")].status.ready}", "2"),
            ("{.items[?(@.status.ok==true)].metadata.name}", "web"),
            (
                "{.items[0].status.conditions[?(@.type=='B')].status}",
                "true",
            ),
            (
                "{.items[1].status}",
                r#"{"ok":false,"ready":2,"reason":null}"#,
            ),
            ("{.items[1].status.reason}{.items[1].nothing}", ""),
            ("name: {.items[0].metadata.name}{\"\\n\"}x", "name: web\nx"),
            (
                "{.items[0].metadata.*}",
                "{\"kat.dws.rip/arch\":\"amd64\"} web",
            ),
        ] {
            assert_eq!(fill(template), wanted, "{template}");
        }
    }

    #[test]
    fn a_range_is_refused_with_what_to_write_instead() {
        for template in [
            "{range .items[*]}{.metadata.name}{\"\\n\"}{end}",
            "{ range .items[*] }{end}",
            "{.items}{end}",
        ] {
            let error = Template::parse(template).unwrap_err();
            assert!(error.contains("is not supported; `{.items[*]"), "{error}");
        }
        // A field may begin so.
        assert!(Template::parse("{.range}").is_ok());
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for wrong in [
            "",
            "items",
            "{.items",
            "{items}",
            "{..name}",
            "{.items[}",
            "{.items[1:2]}",
            "{.a b}",
            "{range .items[*]}",
            "{.items[?(@.a>1)]}",
            "{\"x}",
            "{.}x{",
        ] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }
}

//! `katcall explain`: describes a field of the `*.kat` files, from the table that the decoder and
//! the JSON Schemas use.

use anstyle::Style;

use crate::{
    args::ExplainArgs,
    console::{Console, paint},
    errors::CliError,
};
use kat_bundle::{
    DocumentKind,
    fields::{self, Field, FieldStatus, FieldType},
    nearest_name,
};

/// A kind by the name of its file, or by its name after `kind:`, in any case.
const FIRST_WORDS: [(&str, DocumentKind); 8] = [
    ("workload", DocumentKind::Workload),
    ("virtualloadbalancer", DocumentKind::VirtualLoadBalancer),
    ("vlb", DocumentKind::VirtualLoadBalancer),
    ("job", DocumentKind::JobDefinition),
    ("build", DocumentKind::BuildDefinition),
    ("namespace", DocumentKind::Namespace),
    ("cluster", DocumentKind::ClusterConfiguration),
    ("agent", DocumentKind::AgentConfig),
];

pub(crate) fn run(console: &Console, arguments: &ExplainArgs) -> Result<(), CliError> {
    let Some(written) = &arguments.path else {
        return console.print(&kinds());
    };
    let (first, path) = written.split_once('.').unwrap_or((written, ""));
    let kind = kind_of(first)?;
    let field = match path {
        "" => None,
        path => Some(find(kind, first, path)?),
    };
    let mut text = match field {
        Some(field) => head(first, path, field, console.colour),
        None => format!("{} ({})\n", kind.file(), kind),
    };
    let below = fields::children(kind, field.map_or("", |field| field.path));
    text.push_str(&table(&below.collect::<Vec<_>>(), console.colour));
    console.print(&text)
}

fn kinds() -> String {
    let mut text = "katcall explain PATH, where the path begins with one of\n\n".to_owned();
    let mut told: Vec<DocumentKind> = Vec::new();
    for (word, kind) in FIRST_WORDS {
        if !told.contains(&kind) {
            told.push(kind);
            text.push_str(&format!("  {word:<20}  {}\n", kind.file()));
        }
    }
    text
}

fn kind_of(word: &str) -> Result<DocumentKind, CliError> {
    let small = word.to_ascii_lowercase();
    let named = |(name, kind): &(&str, DocumentKind)| {
        *name == small || kind.as_str().to_ascii_lowercase() == small
    };
    if let Some((_, kind)) = FIRST_WORDS.iter().find(|one| named(one)) {
        return Ok(*kind);
    }
    let names = FIRST_WORDS.iter().map(|(name, _)| *name);
    let error = CliError::usage(format!("there is no kind of file `{word}`"));
    Err(match nearest_name(&small, names) {
        Some(near) => error.hinted(format!("did you mean `{near}`?")),
        None => error.hinted("`katcall explain` lists them"),
    })
}

/// Finds the field at a path; the `[]` of lists may be left out.
fn find(kind: DocumentKind, first: &str, path: &str) -> Result<&'static Field, CliError> {
    let mut found: Option<&'static Field> = None;
    let mut walked = first.to_owned();
    for part in path.split('.') {
        let name = part.split('[').next().unwrap_or(part);
        let here = found.map_or("", |field| field.path);
        let below: Vec<_> = fields::children(kind, here).collect();
        let Some(field) = below.iter().find(|field| field.name() == name) else {
            let error = CliError::not_found(format!("`{walked}` has no field `{name}`"));
            let names = below.iter().map(|field| field.name());
            return Err(match nearest_name(name, names) {
                Some(near) => error.hinted(format!("did you mean `{walked}.{near}`?")),
                None => error.hinted(format!("`katcall explain {walked}` lists its fields")),
            });
        };
        walked.push_str(&format!(".{name}"));
        found = Some(field);
    }
    found.ok_or_else(|| CliError::usage(format!("`{first}.{path}` names no field")))
}

fn head(first: &str, path: &str, field: &Field, colour: bool) -> String {
    let title = paint(&format!("{first}.{path}"), Style::new().bold(), colour);
    let mut text = format!("{title}\n{}\n\n", field.description);
    let mut row = |name: &str, value: &str| text.push_str(&format!("{name:<10}{value}\n"));
    row("type", &field.value.to_string());
    row(
        "written",
        if field.required {
            "always"
        } else {
            "if wanted"
        },
    );
    if let Some(default) = field.default {
        row("default", default);
    }
    if let Some(remark) = effect(field) {
        row("effect", &remark);
    }
    row("example", &format!("{}: {}", field.name(), field.example));
    text
}

fn effect(field: &Field) -> Option<String> {
    match field.status {
        FieldStatus::Identity | FieldStatus::Effective => None,
        FieldStatus::EffectiveFor(words) => Some(format!(
            "of {} alone; the others are refused",
            words.join(", ")
        )),
        FieldStatus::NotYet => Some("none yet: what is not its default is refused".to_owned()),
    }
}

fn table(below: &[&Field], colour: bool) -> String {
    if below.is_empty() {
        return String::new();
    }
    let mut text = "\nfields\n".to_owned();
    for field in below {
        let mut remarks = vec![field.value.to_string()];
        if field.required {
            remarks.push("must be written".to_owned());
        }
        let structure = matches!(
            field.value,
            FieldType::Mapping | FieldType::List | FieldType::ListOf(_)
        );
        if let Some(default) = field.default.filter(|_| !structure) {
            remarks.push(format!("default {default}"));
        }
        if field.status == FieldStatus::NotYet {
            remarks.push("no effect yet".to_owned());
        }
        let name = paint(field.name(), Style::new().bold(), colour);
        text.push_str(&format!(
            "  {name}  {}\n      {}\n",
            remarks.join(", "),
            field.description
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_the_path_that_people_write() {
        for field in fields::all() {
            let path = field.path.replace("[]", "");
            let found = find(field.kind, "x", &path).unwrap();
            assert_eq!(found.path, field.path);
        }
        let like = find(DocumentKind::Workload, "workload", "spec.sidecars.env.name").unwrap();
        assert_eq!(like.path, "spec.container.env[].name");
    }

    #[test]
    fn every_kind_has_a_word() {
        for kind in DocumentKind::ALL {
            assert!(
                FIRST_WORDS.iter().any(|(_, other)| *other == kind),
                "{kind}"
            );
            assert_eq!(kind_of(kind.as_str()).unwrap(), kind);
        }
    }

    #[test]
    fn a_slip_of_the_pen_is_answered_with_what_was_meant() {
        let error = find(DocumentKind::Workload, "workload", "spec.replcas").unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert_eq!(
            error.hint().as_deref(),
            Some("did you mean `workload.spec.replicas`?")
        );
        assert_eq!(kind_of("wrkload").unwrap_err().exit_code(), 2);
    }
}

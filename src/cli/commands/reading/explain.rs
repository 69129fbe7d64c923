//! `katcall explain`: describes a field of the `*.kat` files, from the table that the decoder and
//! the JSON Schemas use, or the reason of a status, a condition or an event.

mod lines;
mod search;

use std::collections::BTreeSet;

use anstyle::Style;

use super::why::{
    event_reasons::event_explanation,
    reasons::{self, Explanation, PLACEHOLDER_WORDS},
};
use crate::{
    args::ExplainArgs,
    console::{Console, paint},
    errors::CliError,
    output::wrapped,
};
use kat_bundle::{
    DocumentKind,
    fields::{self, Field, FieldStatus, FieldType},
    nearest_name,
};
use kat_types::reason::{EventReason, Reason};

/// Before a reason, to say that the word is one.
const REASON_PREFIX: &str = "reason/";

/// A kind by the name of its file, or by its name after `kind:`, in any case.
const FIRST_WORDS: [(&str, DocumentKind); 9] = [
    ("workload", DocumentKind::Workload),
    ("virtualloadbalancer", DocumentKind::VirtualLoadBalancer),
    ("vlb", DocumentKind::VirtualLoadBalancer),
    ("job", DocumentKind::JobDefinition),
    ("build", DocumentKind::BuildDefinition),
    ("namespace", DocumentKind::Namespace),
    ("route", DocumentKind::Route),
    ("cluster", DocumentKind::ClusterConfiguration),
    ("agent", DocumentKind::AgentConfig),
];

pub(crate) fn run(console: &Console, arguments: &ExplainArgs) -> Result<(), CliError> {
    // Completion proposes the path of a field that has fields with a dot at its end.
    let written = arguments.path.as_deref();
    let written = written.map(|path| path.strip_suffix('.').unwrap_or(path));
    if let Some(text) = &arguments.search {
        return search::run(console, text, written);
    }
    if arguments.recursive {
        return console.print(&lines::tree(written, console.width, console.colour)?);
    }
    let Some(written) = written else {
        return console.print(&wrapped(&kinds(), console.width));
    };
    if let Some(word) = written.strip_prefix(REASON_PREFIX) {
        let text = reason(word, console.colour).ok_or_else(|| unknown_reason(word))?;
        return console.print(&wrapped(&text, console.width));
    }
    // No reason has the name of a kind.
    if let Some(text) = reason(written, console.colour) {
        return console.print(&wrapped(&text, console.width));
    }
    let place = place(written)?;
    let kind = place.kind;
    let mut text = match place.field {
        Some(field) => head(written, field, console.colour),
        None => format!("{} ({})\n", kind.file(), kind),
    };
    let below = fields::children(kind, place.path());
    text.push_str(&table(&below.collect::<Vec<_>>(), console.colour));
    console.print(&wrapped(&text, console.width))
}

/// What a path names: a kind of file, or a field of one.
#[derive(Debug, Clone, Copy)]
struct ExplainedPlace {
    kind: DocumentKind,
    /// `None` for the file as a whole.
    field: Option<&'static Field>,
}

impl ExplainedPlace {
    /// The path of the field in the table; empty for the file as a whole.
    fn path(self) -> &'static str {
        self.field.map_or("", |field| field.path)
    }
}

/// The place of a path such as `workload.spec.replicas`.
fn place(written: &str) -> Result<ExplainedPlace, CliError> {
    let (first, path) = written.split_once('.').unwrap_or((written, ""));
    let kind = kind_of(first)?;
    let field = match path {
        "" => None,
        path => Some(find(kind, first, path)?),
    };
    Ok(ExplainedPlace { kind, field })
}

/// The word with which paths of a kind begin.
fn first_word(kind: DocumentKind) -> &'static str {
    let mut words = FIRST_WORDS.iter();
    let found = words.find(|(_, other)| *other == kind);
    found.map_or_else(|| kind.as_str(), |(word, _)| word)
}

/// The paths that may follow what is written of one, for completion: one step at a time, with a dot
/// at the end where fields lie below. Reasons follow a capital letter or `reason/`.
pub(crate) fn next_paths(written: &str) -> Vec<String> {
    if written.starts_with(REASON_PREFIX) || written.starts_with(|one: char| one.is_uppercase()) {
        let start = match written.starts_with(REASON_PREFIX) {
            true => REASON_PREFIX,
            false => "",
        };
        let words = all_reasons().into_iter();
        return words.map(|(word, _)| format!("{start}{word}")).collect();
    }
    let Some((before, _)) = written.rsplit_once('.') else {
        let mut told: Vec<DocumentKind> = Vec::new();
        let mut words = Vec::new();
        for (word, kind) in FIRST_WORDS {
            if !told.contains(&kind) {
                told.push(kind);
                words.push(format!("{word}."));
            }
        }
        return words;
    };
    let Ok(place) = place(before) else {
        return Vec::new();
    };
    let below = fields::children(place.kind, place.path()).map(|field| {
        let dot = match fields::children(place.kind, field.path).next() {
            Some(_) => ".",
            None => "",
        };
        format!("{before}.{}{dot}", field.name())
    });
    below.collect()
}

/// The paths of the fields with this name, as `katcall explain` takes them.
fn fields_called(name: &str) -> Vec<String> {
    let named = fields::all().filter(|field| field.name().eq_ignore_ascii_case(name));
    named.map(full_path).collect()
}

/// The path of a field with its kind, as `katcall explain` takes it.
fn full_path(field: &Field) -> String {
    format!(
        "{}.{}",
        first_word(field.kind),
        field.path.replace("[]", "")
    )
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
    text.push_str(
        "\nkatcall explain REASON, where the reason is that of a status, a condition or an event\n\
         katcall explain PATH --recursive, for all fields below\n\
         katcall explain --search WORD, for the fields and reasons that have a word\n",
    );
    text
}

/// One meaning of a reason, with capitals for names.
pub(crate) struct ReasonMeaning {
    /// What has the reason, such as `an event`.
    pub(crate) owner: &'static str,
    /// A sentence without its full stop.
    pub(crate) means: String,
    /// What to try; empty where nothing needs to be done.
    pub(crate) next: String,
}

/// Whether a reason is printed by its name; its explanation is printed in any case.
pub(crate) fn is_printed(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::FirstVersionStalled | Reason::UnconfirmedInstance
    )
}

/// Every word that this version prints as a reason, with its meanings, in the order of the words.
pub(crate) fn all_reasons() -> Vec<(&'static str, Vec<ReasonMeaning>)> {
    let reasons = Reason::ALL.iter().filter(|reason| is_printed(**reason));
    let reasons = reasons.map(|reason| reason.word());
    let events = EventReason::ALL.iter().map(|reason| reason.word());
    let words: BTreeSet<&'static str> = reasons.chain(events).collect();
    let meanings_of = |word| {
        let found = meanings(word).into_iter();
        let filled = found.map(|(owner, explanation)| ReasonMeaning {
            owner,
            means: PLACEHOLDER_WORDS.fill(explanation.means),
            next: PLACEHOLDER_WORDS.fill(explanation.next),
        });
        filled.collect()
    };
    let words = words.into_iter();
    words.map(|word| (word, meanings_of(word))).collect()
}

/// Meaning and next step of a reason; `None` if this version does not know the word.
fn reason(word: &str, colour: bool) -> Option<String> {
    let found = meanings(word);
    if found.is_empty() {
        return None;
    }
    let mut text = format!("{}\n", paint(word, Style::new().bold(), colour));
    for (owner, Explanation { means, next }) in found {
        let means = PLACEHOLDER_WORDS.fill(means);
        text.push_str(&format!("\nreason of {owner}\n  means  {means}\n"));
        if !next.is_empty() {
            let next = PLACEHOLDER_WORDS.fill(next);
            text.push_str(&format!("  try    {next}\n"));
        }
    }
    Some(text)
}

/// The explanations of a word, each with what has the reason.
fn meanings(word: &str) -> Vec<(&'static str, Explanation)> {
    let mut found = Vec::new();
    if let Some(reason) = reasons::reason_of(word) {
        found.push(("a status or a condition", reasons::explanation(reason)));
        // `katcall why` shows these two in other words where they mean something else, and never by
        // name.
        let other = match reason {
            Reason::Unconfirmed => Some(("an instance", Reason::UnconfirmedInstance)),
            Reason::ProgressDeadlineExceeded => Some((
                "a workload without an earlier good version",
                Reason::FirstVersionStalled,
            )),
            _ => None,
        };
        found.extend(other.map(|(owner, reason)| (owner, reasons::explanation(reason))));
    }
    if let Some(reason) = EventReason::from_word(word) {
        found.push(("an event", event_explanation(reason)));
    }
    found
}

fn unknown_reason(word: &str) -> CliError {
    let error = CliError::not_found(format!("there is no reason `{word}`"));
    match nearest_reason(word) {
        Some(near) => error.hinted(format!("did you mean `{REASON_PREFIX}{near}`?")),
        None => error.hinted("a newer version of katcall may know it"),
    }
}

fn nearest_reason(word: &str) -> Option<&'static str> {
    let reasons = Reason::ALL.iter().map(|reason| reason.word());
    let events = EventReason::ALL.iter().map(|reason| reason.word());
    nearest_name(word, reasons.chain(events))
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
    let near = nearest_name(&small, names).or_else(|| nearest_reason(word));
    let called = fields_called(word);
    Err(match (called.as_slice(), near) {
        ([only], _) => error.hinted(format!("a field has that name: `katcall explain {only}`")),
        ([_, ..], _) => error.hinted(format!(
            "fields have that name: `katcall explain --search {word}` lists them"
        )),
        ([], Some(near)) => error.hinted(format!("did you mean `{near}`?")),
        ([], None) if is_plain_word(word) => error.hinted(format!(
            "`katcall explain` lists them, `katcall explain --search {word}` searches all fields"
        )),
        ([], None) => error.hinted("`katcall explain` lists them"),
    })
}

/// Whether a hint may repeat a word as part of a command line.
fn is_plain_word(word: &str) -> bool {
    !word.is_empty() && word.len() <= 40 && word.bytes().all(|one| one.is_ascii_alphanumeric())
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

fn head(path: &str, field: &Field, colour: bool) -> String {
    let title = paint(path, Style::new().bold(), colour);
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
        FieldStatus::NotYet => Some("none yet: what is not its default is refused".to_owned()),
    }
}

/// Whether a field consists of others, so that its default says nothing.
fn is_structure(field: &Field) -> bool {
    matches!(
        field.value,
        FieldType::Mapping
            | FieldType::MappingOr(..)
            | FieldType::BooleanOrMapping
            | FieldType::List
            | FieldType::ListOf(_)
    )
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
        if let Some(default) = field.default.filter(|_| !is_structure(field)) {
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
    fn completion_leads_to_every_field_and_every_proposal_is_explained() {
        let mut found = BTreeSet::new();
        let mut open = vec![String::new()];
        while let Some(written) = open.pop() {
            for path in next_paths(&written) {
                let whole = path.strip_suffix('.').unwrap_or(&path);
                let place = place(whole).unwrap();
                // A list of containers has the fields of a container, and would be walked for ever
                // only if one contained itself.
                assert!(path.split('.').count() < 12, "{path}");
                found.insert((place.kind, place.path()));
                if path.ends_with('.') {
                    open.push(path);
                }
            }
        }
        for field in fields::all() {
            assert!(found.contains(&(field.kind, field.path)), "{}", field.path);
        }
        assert!(next_paths("workload.spec.").contains(&"workload.spec.replicas".to_owned()));
        assert!(next_paths("workload.nothing.").is_empty());
        assert!(next_paths("Cra").contains(&"CrashLoop".to_owned()));
        assert!(next_paths("reason/").contains(&"reason/CrashLoop".to_owned()));
    }

    #[test]
    fn a_field_without_its_kind_is_answered_with_its_path() {
        for (word, hint) in [
            ("onNodeLoss", "`katcall explain workload.spec.onNodeLoss`"),
            ("onnodeloss", "`katcall explain workload.spec.onNodeLoss`"),
            ("healthCheck", "`katcall explain"),
            (
                "mountPath",
                "`katcall explain workload.spec.container.volumeMounts.mountPath`",
            ),
            ("firewall", "`katcall explain --search firewall`"),
        ] {
            let error = kind_of(word).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{word}");
            let found = error.hint().unwrap_or_default();
            assert!(found.contains(hint), "{word}: {found}");
        }
        let hint = kind_of("name\u{1b}[2J").unwrap_err().hint();
        assert_eq!(hint.as_deref(), Some("`katcall explain` lists them"));
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

    #[test]
    fn every_reason_is_explained_and_none_has_the_name_of_a_kind() {
        let words = Reason::ALL.iter().map(|reason| reason.word());
        let words = words.chain(EventReason::ALL.iter().map(|reason| reason.word()));
        for word in words {
            let text = reason(word, false).unwrap();
            assert!(text.starts_with(&format!("{word}\n\nreason of ")), "{text}");
            assert!(!text.contains(['{', '}']), "{text}");
            assert!(kind_of(word).is_err(), "{word}");
        }
        assert_eq!(reason("OfANewerVersion", false), None);
        assert_eq!(reason("workload", false), None);
    }

    #[test]
    fn a_word_of_both_enums_is_explained_for_each() {
        let text = reason("Unhealthy", false).unwrap();
        assert!(
            text.contains("reason of a status or a condition\n"),
            "{text}"
        );
        assert!(text.contains("reason of an event\n"), "{text}");
        let event = reason("MemberAdded", false).unwrap();
        assert!(!event.contains("reason of a status"), "{event}");
    }

    #[test]
    fn a_reason_that_an_instance_has_in_another_sense_is_explained_for_both() {
        let text = reason("Unconfirmed", false).unwrap();
        for reason in [Reason::Unconfirmed, Reason::UnconfirmedInstance] {
            let means = PLACEHOLDER_WORDS.fill(reasons::explanation(reason).means);
            assert!(text.contains(&means), "{text}");
        }
    }

    #[test]
    fn a_misspelt_reason_is_answered_with_the_nearest_one() {
        let error = unknown_reason("CrashLop");
        assert_eq!(error.exit_code(), 3);
        assert_eq!(
            error.hint().as_deref(),
            Some("did you mean `reason/CrashLoop`?")
        );
        let error = kind_of("CrashLop").unwrap_err();
        assert_eq!(error.hint().as_deref(), Some("did you mean `CrashLoop`?"));
    }
}

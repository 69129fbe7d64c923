//! References to objects on the command line: `[KIND/][NAMESPACE/]NAME`, in every command that takes
//! an object.
//!
//! - A word for a kind before a slash is the kind ([`NamedKind`]).
//! - The name of a volume is `WORKLOAD/VOLUME`, so `volume/shop/db/data` is in namespace `shop`.
//! - The kind may also be a word of its own before the names: `delete workload web db`.
//! - A namespace in a reference must not contradict `--namespace`.
//!
//! What a name without a kind means is the command's: [`CommandKinds::bare`].

use std::{collections::BTreeMap, fmt};

use super::{args::NamespaceOption, console::Console, errors::CliError, output::plain};
use kat_bundle::{check_label_key, check_label_value, nearest_name};
use kat_types::resource::{name::check_namespace, named_kind::NamedKind};

/// Longest reference: longer than any object's.
const LONGEST: usize = 300;

/// Kinds of other programs, and what KAT has instead.
const ELSEWHERE: [(&[&str], &str); 11] = [
    (
        &["pod", "pods", "po", "container", "containers"],
        "`instances`",
    ),
    (
        &[
            "deployment",
            "deployments",
            "deploy",
            "app",
            "apps",
            "stack",
            "stacks",
        ],
        "`workloads`",
    ),
    (
        &[
            "daemonset",
            "daemonsets",
            "ds",
            "replicaset",
            "replicasets",
            "rs",
            "statefulset",
            "statefulsets",
            "sts",
        ],
        "`workloads`",
    ),
    (&["cronjob", "cronjobs", "cj"], "`jobs`"),
    (
        &["configmap", "configmaps", "cm"],
        "files in the folder of a workload, which `katcall export NAME` prints",
    ),
    (&["ingress", "ingresses", "ing"], "`routes`"),
    (
        &["network", "networks"],
        "one network: `katcall get workloads -o wide` and `katcall get nodes -o wide` show its addresses",
    ),
    (
        &["service", "services", "svc"],
        "`workloads`: each has its service address, which `katcall get workloads -o wide` shows",
    ),
    (&["machine", "machines", "no"], "`nodes`"),
    (&["pvc", "pv", "volumeclaims"], "`volumes`"),
    (
        &["image", "images"],
        "`instances`: `katcall get instances -o wide` shows their images",
    ),
];

/// An object as a command line names it, with the namespace that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// `None` where the name alone is written, and the command has no kind for it.
    pub(super) kind: Option<NamedKind>,
    /// That of the reference, or of the command; empty for kinds without namespaces.
    pub(super) namespace: String,
    /// The reference itself names its namespace.
    pub(super) names_namespace: bool,
    /// For a volume `WORKLOAD/VOLUME`, or one of both where only one is written.
    pub(super) name: String,
}

/// Such as `workload/web`.
impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = plain(&self.name);
        match self.kind {
            Some(kind) => write!(formatter, "{}/{name}", kind.singular()),
            None => formatter.write_str(&name),
        }
    }
}

/// What a command takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommandKinds {
    pub(super) kinds: &'static [NamedKind],
    pub(super) bare: BareName,
}

/// What a name without a kind is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareName {
    /// An object of this kind.
    Is(NamedKind),
    /// The command finds it out.
    Open,
    /// An error: the command needs the kind.
    Refused,
}

impl CommandKinds {
    /// A command for one kind.
    pub(super) const fn only(kinds: &'static [NamedKind; 1]) -> Self {
        let [kind] = kinds;
        Self {
            kinds,
            bare: BareName::Is(*kind),
        }
    }
}

pub(super) const WORKLOADS: CommandKinds = CommandKinds::only(&[NamedKind::Workload]);
pub(super) const NODES: CommandKinds = CommandKinds::only(&[NamedKind::Node]);
pub(super) const VOLUMES: CommandKinds = CommandKinds::only(&[NamedKind::Volume]);
pub(super) const SECRETS: CommandKinds = CommandKinds::only(&[NamedKind::Secret]);
pub(super) const TOKENS: CommandKinds = CommandKinds::only(&[NamedKind::Token]);
/// A Job, all of whose active runs are meant, or a run.
pub(super) const CANCELLED: CommandKinds = CommandKinds {
    kinds: &[NamedKind::Workload, NamedKind::Run],
    bare: BareName::Is(NamedKind::Workload),
};
/// For the log of a workload, an instance or a run: a name is a workload's or
/// an instance's, as no instance is called like a workload.
pub(super) const INSTANCES: CommandKinds = CommandKinds {
    kinds: &[NamedKind::Workload, NamedKind::Instance, NamedKind::Run],
    bare: BareName::Open,
};

/// What the words of a command name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Named {
    /// All objects of a kind, or those that a selector selects: the word of the kind alone.
    AllOf(NamedKind),
    Objects(Vec<Reference>),
}

/// Parses a namespace for clap.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    check_namespace(text)
        .map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

/// Parses one reference.
pub(super) fn one(
    text: &str,
    command: CommandKinds,
    option: &NamespaceOption,
) -> Result<Reference, CliError> {
    let fixed = match command.bare {
        BareName::Is(kind) => Some(kind),
        BareName::Open | BareName::Refused => None,
    };
    parse(text, fixed, command, option)
}

/// Parses the words of a command: references, or a word for a kind and then names of that kind. A
/// word for a kind alone is [`Named::AllOf`], unless the command takes bare names of one kind.
pub(super) fn all(
    words: &[String],
    command: CommandKinds,
    option: &NamespaceOption,
) -> Result<Named, CliError> {
    let (first, rest) = match words {
        [] => return Err(nothing_named(command)),
        [first, rest @ ..] => (first, rest),
    };
    let before = NamedKind::of_word(first).filter(|_| !first.contains('/'));
    let Some(kind) = before else {
        // A word before other words that is no reference may be meant for a kind.
        if command.bare == BareName::Refused && !first.contains('/') {
            return Err(unknown_kind(first, command.kinds, rest.is_empty()));
        }
        let objects = words.iter().map(|word| one(word, command, option));
        return Ok(Named::Objects(objects.collect::<Result<_, _>>()?));
    };
    if rest.is_empty() && matches!(command.bare, BareName::Is(_)) {
        return Ok(Named::Objects(vec![one(first, command, option)?]));
    }
    if !command.kinds.contains(&kind) {
        return Err(not_taken(first, command.kinds));
    }
    if rest.is_empty() {
        return Ok(Named::AllOf(kind));
    }
    let objects = rest
        .iter()
        .map(|word| parse(word, Some(kind), command, option));
    Ok(Named::Objects(objects.collect::<Result<_, _>>()?))
}

/// As [`all`], for commands that need a name.
pub(super) fn objects(
    words: &[String],
    command: CommandKinds,
    option: &NamespaceOption,
) -> Result<Vec<Reference>, CliError> {
    match all(words, command, option)? {
        Named::Objects(objects) => Ok(objects),
        Named::AllOf(kind) => Err(CliError::usage(format!(
            "the name of the {} is missing",
            kind.singular()
        ))
        .hinted(format!("`katcall get {}` lists them", kind.plural()))),
    }
}

/// Parses a reference whose kind is `fixed` by the command or by a word before it.
fn parse(
    text: &str,
    fixed: Option<NamedKind>,
    command: CommandKinds,
    option: &NamespaceOption,
) -> Result<Reference, CliError> {
    let shown = || plain(text);
    if text.len() > LONGEST
        || text
            .chars()
            .any(|one| one.is_control() || one.is_whitespace())
    {
        let start: String = shown().chars().take(60).collect();
        return Err(CliError::usage(format!(
            "`{start}` is not a name: it is too long, or has spaces or control characters"
        )));
    }
    if let Some(route) = route_of(text, fixed) {
        return route_reference(&route, command, option);
    }
    let parts: Vec<&str> = text.split('/').collect();
    if parts.iter().any(|part| part.is_empty()) {
        let message = match text.is_empty() {
            true => "a name is empty".to_owned(),
            false => format!("`{}` has an empty part", shown()),
        };
        return Err(CliError::usage(message).hinted(FORM));
    }
    let (kind, rest) = match parts.as_slice() {
        // A workload may be called like a kind, such as the volume `node/data`.
        [_, _] if fixed == Some(NamedKind::Volume) => (fixed, parts.as_slice()),
        [word, rest @ ..] if !rest.is_empty() => match NamedKind::of_word(word) {
            Some(kind) => (Some(kind), rest),
            None => (fixed, parts.as_slice()),
        },
        _ => (fixed, parts.as_slice()),
    };
    if let (Some(fixed), Some(found)) = (fixed, kind)
        && fixed != found
        && !command_takes(command, found, fixed)
    {
        return Err(CliError::usage(format!(
            "`{}` is the name of {}, and {} is expected",
            shown(),
            with_article(found),
            with_article(fixed)
        ))
        .hinted("a namespace that is called like a kind is named with `--namespace`"));
    }
    if let Some(kind) = kind
        && !command.kinds.contains(&kind)
    {
        return Err(not_taken(text, command.kinds));
    }
    let too_many = |form: &str| {
        CliError::usage(format!("`{}` has too many parts", shown()))
            .hinted(format!("it is written {form}"))
    };
    let (namespace, name) = match (kind, rest) {
        (Some(NamedKind::Volume), [workload, volume]) => (None, format!("{workload}/{volume}")),
        (Some(NamedKind::Volume), [namespace, workload, volume]) => {
            (Some(*namespace), format!("{workload}/{volume}"))
        }
        // `volumes::named` asks the cluster which one is meant.
        (Some(NamedKind::Volume), [half]) => (None, (*half).to_owned()),
        (Some(NamedKind::Volume), _) => {
            return Err(too_many("volume/NAMESPACE/WORKLOAD/VOLUME"));
        }
        (_, [name]) => (None, (*name).to_owned()),
        (Some(kind), _) if !kind.is_namespaced() => {
            return Err(CliError::usage(format!(
                "`{}`: {} is in no namespace",
                shown(),
                with_article(kind)
            ))
            .hinted(format!("it is written {}/NAME", kind.singular())));
        }
        (_, [namespace, name]) => (Some(*namespace), (*name).to_owned()),
        _ => return Err(too_many("KIND/NAMESPACE/NAME")),
    };
    if kind.is_none() && command.bare == BareName::Refused {
        return Err(kind_missing(text, command.kinds));
    }
    let names_namespace = namespace.is_some();
    let namespace = match namespace {
        Some(namespace) => agreed(namespace, text, option)?,
        None if kind.is_some_and(|kind| !kind.is_namespaced()) => String::new(),
        None => option.namespace.clone(),
    };
    Ok(Reference {
        kind,
        namespace,
        names_namespace,
        name,
    })
}

/// The `[NAMESPACE/]HOST[/PATH]` of a reference to a route; `None` for other kinds.
fn route_of(text: &str, fixed: Option<NamedKind>) -> Option<String> {
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    match (NamedKind::of_word(first), fixed) {
        (Some(NamedKind::Route), _) if !rest.is_empty() => Some(rest.to_owned()),
        (None, Some(NamedKind::Route)) => Some(text.to_owned()),
        _ => None,
    }
}

/// A reference to a route: hosts have a dot, which no namespace has.
fn route_reference(
    text: &str,
    command: CommandKinds,
    option: &NamespaceOption,
) -> Result<Reference, CliError> {
    let kind = NamedKind::Route;
    if !command.kinds.contains(&kind) {
        return Err(not_taken(text, command.kinds));
    }
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    let host = rest.split('/').next().unwrap_or_default();
    let (namespace, name) = match !first.contains('.') && host.contains('.') {
        true => (Some(first), rest),
        false => (None, text),
    };
    let names_namespace = namespace.is_some();
    let namespace = match namespace {
        Some(namespace) => agreed(namespace, text, option)?,
        None => option.namespace.clone(),
    };
    Ok(Reference {
        kind: Some(kind),
        namespace,
        names_namespace,
        name: name.to_owned(),
    })
}

const FORM: &str = "an object is written NAME, NAMESPACE/NAME, KIND/NAME or KIND/NAMESPACE/NAME";

/// Whether a kind before the slash may replace the one that a bare name has.
fn command_takes(command: CommandKinds, found: NamedKind, fixed: NamedKind) -> bool {
    command.bare == BareName::Is(fixed) && command.kinds.contains(&found)
}

/// The namespace of a reference, unless the command line names another one.
fn agreed(namespace: &str, text: &str, option: &NamespaceOption) -> Result<String, CliError> {
    let namespace = self::namespace(namespace).map_err(|error| CliError::usage(plain(&error)))?;
    if option.written && option.namespace != namespace {
        return Err(CliError::usage(format!(
            "`{}` and `--namespace {}` contradict each other",
            plain(text),
            option.namespace
        ))
        .hinted("leave out one of the two namespaces"));
    }
    Ok(namespace)
}

fn nothing_named(command: CommandKinds) -> CliError {
    match command.kinds {
        [only] => CliError::usage(format!("the name of {} is missing", with_article(*only))),
        kinds => CliError::usage("no kind and no name is given")
            .hinted(format!("kinds are {}", plurals(kinds))),
    }
}

fn kind_missing(text: &str, kinds: &[NamedKind]) -> CliError {
    CliError::usage(format!("`{}` has no kind", plain(text))).hinted(format!(
        "it is written KIND/NAME or KIND/NAMESPACE/NAME; kinds are {}",
        singulars(kinds)
    ))
}

/// Such as `a workload`.
fn with_article(kind: NamedKind) -> String {
    let word = kind.singular();
    let article = if word.starts_with(['e', 'i']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {word}")
}

/// The error for a kind that the command does not take.
fn not_taken(text: &str, kinds: &[NamedKind]) -> CliError {
    CliError::usage(format!("the command does not take `{}`", plain(text))).hinted(match kinds {
        [only] => format!("the command takes {}", with_article(*only)),
        kinds => format!("the command takes {}", singulars(kinds)),
    })
}

/// The error for a word that is no kind. `alone` if no name follows, so that it may be a name.
pub(super) fn unknown_kind(word: &str, kinds: &[NamedKind], alone: bool) -> CliError {
    let error = CliError::usage(format!("`{}` is not a kind", plain(word)));
    match meant_kind(word, kinds) {
        Some(hint) => error.hinted(hint),
        None if alone => error.hinted(format!(
            "an object is written KIND/NAME; kinds are {}",
            singulars(kinds)
        )),
        None => error.hinted(format!("it is one of {}", plurals(kinds))),
    }
}

/// The hint for a word that may be meant for a kind.
pub(super) fn meant_kind(word: &str, kinds: &[NamedKind]) -> Option<String> {
    let elsewhere = ELSEWHERE.iter().find(|(words, _)| words.contains(&word));
    if let Some((_, instead)) = elsewhere {
        return Some(format!("KAT has {instead}"));
    }
    // Of two words that are equally near the plural is proposed.
    let plurals = kinds.iter().map(|kind| kind.plural());
    let words = plurals.chain(kinds.iter().flat_map(|kind| kind.words()));
    let near = nearest_name(word, words)?;
    Some(format!("did you mean `{near}`?"))
}

/// Such as `workload, node`.
pub(super) fn singulars(kinds: &[NamedKind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.singular()).collect();
    words.join(", ")
}

/// Such as `workloads, nodes`.
pub(super) fn plurals(kinds: &[NamedKind]) -> String {
    let words: Vec<&str> = kinds.iter().map(|kind| kind.plural()).collect();
    words.join(", ")
}

/// Does something with each object. Failures do not stop the others: each is printed with the name
/// of its object, and the exit code is that of the first. The error of a single object is returned
/// as it is.
pub(super) async fn for_each<T: fmt::Display>(
    console: &Console,
    objects: &[T],
    act: impl AsyncFn(&T) -> Result<(), CliError>,
) -> Result<(), CliError> {
    if let [only] = objects {
        return act(only).await;
    }
    let mut failures = Failures::default();
    for object in objects {
        if let Err(error) = act(object).await {
            failures.add(console, &object.to_string(), error)?;
        }
    }
    failures.end(objects.len())
}

/// Failures of a command for several objects.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Exit code of the first.
    exit: u8,
    count: usize,
}

impl Failures {
    /// Prints a failure.
    ///
    /// # Errors
    /// Those that end the command: nobody reads its output.
    pub(super) fn add(
        &mut self,
        console: &Console,
        name: &str,
        error: CliError,
    ) -> Result<(), CliError> {
        if matches!(error, CliError::BrokenPipe) {
            return Err(error);
        }
        if self.count == 0 {
            self.exit = error.exit_code();
        }
        self.count = self.count.saturating_add(1);
        console.error_of(name, &error);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The error of the command, if there were failures.
    pub(super) fn end(&self, of: usize) -> Result<(), CliError> {
        match self.count {
            0 => Ok(()),
            count => Err(CliError::Partly {
                exit: self.exit,
                message: format!("{count} of {of} failed"),
            }),
        }
    }
}

/// One requirement of a label selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LabelRequirement {
    key: String,
    /// `None` accepts any value.
    value: Option<String>,
}

/// Parses `key` or `key=value`.
pub(super) fn label_requirement(text: &str) -> Result<LabelRequirement, String> {
    let (key, value) = match text.split_once('=') {
        Some((key, value)) => (key, Some(value)),
        None => (text, None),
    };
    check_label_key(key)?;
    value.map_or(Ok(()), check_label_value)?;
    Ok(LabelRequirement {
        key: key.to_owned(),
        value: value.map(str::to_owned),
    })
}

impl LabelRequirement {
    pub(super) fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let found = labels.get(&self.key);
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| value == found))
    }
}

/// A label selector: all of its requirements.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub(super) struct LabelSelector {
    /// Only objects with these labels
    #[arg(
        short = 'l',
        long = "label",
        value_name = "KEY[=VALUE]",
        value_delimiter = ',',
        value_parser = label_requirement
    )]
    pub(super) labels: Vec<LabelRequirement>,
}

impl LabelSelector {
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    pub(super) fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.labels.iter().all(|label| label.holds(labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: CommandKinds = CommandKinds {
        kinds: &NamedKind::ALL,
        bare: BareName::Open,
    };
    const REFUSED: CommandKinds = CommandKinds {
        kinds: &[NamedKind::Workload, NamedKind::Volume, NamedKind::Node],
        bare: BareName::Refused,
    };

    fn option(namespace: &str, written: bool) -> NamespaceOption {
        NamespaceOption {
            namespace: namespace.to_owned(),
            written,
        }
    }

    /// `KIND NAMESPACE NAME`, with `-` for what is not there.
    fn said(reference: &Reference) -> String {
        let kind = reference.kind.map_or("-", NamedKind::singular);
        let namespace = match reference.namespace.as_str() {
            "" => "-",
            namespace => namespace,
        };
        format!("{kind} {namespace} {}", reference.name)
    }

    fn parsed(line: &str, command: CommandKinds) -> Result<Vec<String>, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let found = objects(&words, command, &option("default", false));
        found
            .map(|found| found.iter().map(said).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn each_form_of_a_reference_names_its_object() {
        for (line, command, expected) in [
            ("web", WORKLOADS, "workload default web"),
            ("shop/web", WORKLOADS, "workload shop web"),
            ("workload/web", WORKLOADS, "workload default web"),
            ("wl/shop/web", WORKLOADS, "workload shop web"),
            ("workload web", WORKLOADS, "workload default web"),
            ("workloads shop/web", WORKLOADS, "workload shop web"),
            ("workload workload/shop/web", WORKLOADS, "workload shop web"),
            // A workload may be called like a kind.
            ("node", WORKLOADS, "workload default node"),
            ("workload node", WORKLOADS, "workload default node"),
            ("node/data", VOLUMES, "volume default node/data"),
            ("shop/db/data", VOLUMES, "volume shop db/data"),
            ("volume/db/data", VOLUMES, "volume default db/data"),
            ("vol/shop/db/data", VOLUMES, "volume shop db/data"),
            ("volume db/data.1", OPEN, "volume default db/data.1"),
            ("volume/shop/db/data", OPEN, "volume shop db/data"),
            ("data", VOLUMES, "volume default data"),
            ("n1", NODES, "node - n1"),
            ("node/n1", NODES, "node - n1"),
            ("nodes n1", NODES, "node - n1"),
            ("web", OPEN, "- default web"),
            ("shop/web", OPEN, "- shop web"),
            ("secret/shop/db", OPEN, "secret shop db"),
            ("ns/shop", OPEN, "namespace - shop"),
            ("inst/web-x1", INSTANCES, "instance default web-x1"),
            ("shop/web", INSTANCES, "- shop web"),
            ("node/n1", REFUSED, "node - n1"),
            ("workload/shop/web", REFUSED, "workload shop web"),
        ] {
            assert_eq!(
                parsed(line, command),
                Ok(vec![expected.to_owned()]),
                "{line}"
            );
        }
    }

    #[test]
    fn several_words_name_several_objects() {
        let expect = |line: &str, command, expected: &[&str]| {
            let expected = expected.iter().map(|one| (*one).to_owned()).collect();
            assert_eq!(parsed(line, command), Ok(expected), "{line}");
        };
        expect(
            "a shop/b wl/c",
            WORKLOADS,
            &[
                "workload default a",
                "workload shop b",
                "workload default c",
            ],
        );
        expect(
            "workload a b",
            REFUSED,
            &["workload default a", "workload default b"],
        );
        expect(
            "workload/a node/n1",
            REFUSED,
            &["workload default a", "node - n1"],
        );
    }

    #[test]
    fn a_wrong_reference_is_an_error_that_names_it() {
        let long = "a".repeat(301);
        for (line, command, expected) in [
            ("", WORKLOADS, "a name is empty"),
            ("/", WORKLOADS, "`/` has an empty part"),
            ("/web", WORKLOADS, "`/web` has an empty part"),
            ("web/", OPEN, "`web/` has an empty part"),
            ("shop//web", OPEN, "`shop//web` has an empty part"),
            ("workload/", WORKLOADS, "`workload/` has an empty part"),
            ("a/b/c", WORKLOADS, "`a/b/c` has too many parts"),
            (
                "workload/a/b/c",
                OPEN,
                "`workload/a/b/c` has too many parts",
            ),
            (
                "volume/a/b/c/d",
                VOLUMES,
                "`volume/a/b/c/d` has too many parts",
            ),
            (
                "node/shop/n1",
                OPEN,
                "`node/shop/n1`: a node is in no namespace",
            ),
            ("shop/n1", NODES, "`shop/n1`: a node is in no namespace"),
            (
                "node/web",
                WORKLOADS,
                "`node/web` is the name of a node, and a workload is expected",
            ),
            (
                "instance/web-x1",
                WORKLOADS,
                "`instance/web-x1` is the name of an instance, and a workload is expected",
            ),
            (
                "workload node/web",
                OPEN,
                "`node/web` is the name of a node, and a workload is expected",
            ),
            ("node web", WORKLOADS, "the command does not take `node`"),
            (
                "secret/db",
                REFUSED,
                "the command does not take `secret/db`",
            ),
            ("web", REFUSED, "`web` is not a kind"),
            ("shop/web", REFUSED, "`shop/web` has no kind"),
            ("workload", REFUSED, "the name of the workload is missing"),
            (
                "Shop/web",
                WORKLOADS,
                "`Shop` may have only lower-case letters, digits and `-`, and must begin and end with a letter or digit",
            ),
        ] {
            assert_eq!(parsed(line, command), Err(expected.to_owned()), "{line}");
        }
        for hostile in ["web\u{1b}[31m", "web\n", "a b", "we\u{202e}b\u{7}", &long] {
            let error = one(hostile, OPEN, &option("default", false)).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("is not a name"), "{said}");
            assert!(
                !said.contains(char::is_control) && said.len() < 200,
                "{said:?}"
            );
        }
    }

    #[test]
    fn a_namespace_in_a_reference_must_not_contradict_the_option() {
        let written = option("other", true);
        let error = one("shop/web", WORKLOADS, &written).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(
            error.to_string(),
            "`shop/web` and `--namespace other` contradict each other"
        );
        assert!(one("other/web", WORKLOADS, &written).is_ok());
        assert!(one("web", WORKLOADS, &written).is_ok());
        // A namespace that was not written on the command line is only the default.
        assert!(one("shop/web", WORKLOADS, &option("other", false)).is_ok());
    }

    #[test]
    fn kinds_of_other_programs_are_answered_with_those_of_kat() {
        let hint = |word: &str| unknown_kind(word, &NamedKind::ALL, true).hint().unwrap();
        assert_eq!(hint("pods"), "KAT has `instances`");
        assert_eq!(hint("ds"), "KAT has `workloads`");
        assert_eq!(hint("cj"), "KAT has `jobs`");
        assert_eq!(hint("ing"), "KAT has `routes`");
        assert!(hint("services").starts_with("KAT has `workloads`: each has"));
        assert_eq!(hint("workloadz"), "did you mean `workloads`?");
        assert!(hint("zzz").contains("kinds are workload, instance"));
    }

    #[test]
    fn no_word_of_another_program_is_a_kind() {
        for (words, _) in ELSEWHERE {
            for word in words {
                assert!(NamedKind::of_word(word).is_none(), "{word}");
            }
        }
    }

    #[test]
    fn a_label_is_required_by_its_key_or_with_its_value() {
        let labels = [("app".to_owned(), "shop".to_owned())].into();
        let holds = |text: &str| label_requirement(text).unwrap().holds(&labels);
        assert!(holds("app") && holds("app=shop"));
        assert!(!holds("app=other") && !holds("team"));
        assert!(label_requirement("a b").is_err() && label_requirement("").is_err());
    }
}

//! `katcall config`.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    CliSession,
    args::{ConfigArgs, ConfigCommand, DocumentFormat},
    editor,
    errors::CliError,
    output,
    output::table::{Cell, Table},
    time,
};
use kat_bundle::{
    DocumentKind,
    fields::{self, Field, FieldStatus},
    nearest_name,
    settings::{ClusterSetting, SettingRule, fixed_settings},
};
use kat_client::ClientError;
use kat_types::{
    api::{ConfigurationChange, ConfigurationHistory, ConfigurationRevision, SettingChange},
    encoding::json,
    resource::{API_VERSION, ClusterConfiguration},
};

/// Most tries of a change that conflicts with changes by others.
const ATTEMPTS: usize = 5;
/// Name of the file in messages and in the editor.
const FILE: &str = "cluster.kat";
const SPEC: &str = "spec";

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    arguments: &ConfigArgs,
) -> Result<(), CliError> {
    match &arguments.command {
        ConfigCommand::Get { keys, output } => get(&session()?, keys, *output).await,
        ConfigCommand::Set { settings, plan } => {
            let edits = settings.iter().map(|setting| SettingEdit::set(setting));
            let edits = edits.collect::<Result<Vec<_>, _>>()?;
            change(&session()?, &edits, plan.dry_run).await
        }
        ConfigCommand::Unset { keys, plan } => {
            let edits = keys.iter().map(|key| SettingEdit::unset(key));
            let edits = edits.collect::<Result<Vec<_>, _>>()?;
            change(&session()?, &edits, plan.dry_run).await
        }
        ConfigCommand::Edit { plan } => edit(&session()?, plan.dry_run).await,
        ConfigCommand::History { output } => history(&session()?, *output).await,
        ConfigCommand::Rollback { number, plan } => {
            roll_back(&session()?, *number, plan.dry_run).await
        }
    }
}

/// A configuration as a `cluster.kat`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ConfigurationFile<'a> {
    api_version: &'static str,
    kind: DocumentKind,
    #[serde(flatten)]
    configuration: &'a ClusterConfiguration,
}

fn file_of(configuration: &ClusterConfiguration) -> ConfigurationFile<'_> {
    ConfigurationFile {
        api_version: API_VERSION,
        kind: DocumentKind::ClusterConfiguration,
        configuration,
    }
}

async fn get(
    session: &CliSession<'_>,
    keys: &[String],
    format: DocumentFormat,
) -> Result<(), CliError> {
    let fields = keys.iter().map(|key| field(key));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let configuration = session.client.cluster_configuration().await?;
    if fields.is_empty() {
        return output::document(session.console, format, &file_of(&configuration));
    }
    let tree = json::tree("the configuration", &configuration.spec);
    let tree = tree.map_err(|error| CliError::failed(error.to_string()))?;
    for field in fields {
        let value = match tree.get(field.name()) {
            Some(Value::String(text)) => output::plain(text),
            Some(value) => value.to_string(),
            None => "-".to_owned(),
        };
        session.console.line(&value)?;
    }
    Ok(())
}

/// The fields of settings.
fn of_spec() -> impl Iterator<Item = &'static Field> {
    let fields = fields::all().filter(|field| field.kind == DocumentKind::ClusterConfiguration);
    fields.filter(|field| field.parent() == SPEC)
}

/// The names of all settings, or of those that a running cluster can change.
pub(crate) fn setting_names(changeable: bool) -> impl Iterator<Item = &'static str> {
    let is_fixed = |name: &str| {
        ClusterSetting::of(name)
            .is_some_and(|setting| matches!(setting.change, SettingRule::Fixed { .. }))
    };
    of_spec()
        .filter(|field| field.status != FieldStatus::NotYet)
        .map(Field::name)
        .filter(move |name| !changeable || !is_fixed(name))
}

/// The field of a setting, by its name with or without `spec.`.
fn field(key: &str) -> Result<&'static Field, CliError> {
    let name = key.strip_prefix("spec.").unwrap_or(key);
    // A setting within another one is written `ingress.accessLog`.
    let mut all = fields::all().filter(|field| field.kind == DocumentKind::ClusterConfiguration);
    let within = all.find(|field| {
        let path = field.path.strip_prefix(SPEC);
        path.and_then(|path| path.strip_prefix('.')) == Some(name) && !name.contains("[]")
    });
    within.ok_or_else(|| {
        let hint = match nearest_name(name, of_spec().map(Field::name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "`katcall explain cluster.spec` lists them all".to_owned(),
        };
        CliError::usage(format!(
            "`{}` is no setting of the cluster",
            output::plain(key)
        ))
        .hinted(hint)
    })
}

/// A setting with its new value.
struct SettingEdit {
    /// Such as `mtu` or `ingress.accessLog`.
    name: &'static str,
    /// As it is written in `cluster.kat`; `None` for the default.
    value: Option<Value>,
}

impl SettingEdit {
    fn set(text: &str) -> Result<Self, CliError> {
        let Some((key, value)) = text.split_once('=') else {
            return Err(
                CliError::usage(format!("`{}` is not `KEY=VALUE`", output::plain(text)))
                    .hinted("`katcall config unset KEY` sets a default again"),
            );
        };
        // A number, a truth value, a list or a mapping is written like that in `cluster.kat`, and
        // everything else is text.
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        Self::of(key, Some(value))
    }

    fn unset(key: &str) -> Result<Self, CliError> {
        Self::of(key, None)
    }

    fn of(key: &str, value: Option<Value>) -> Result<Self, CliError> {
        let field = field(key)?;
        if let Some(ClusterSetting {
            change: SettingRule::Fixed { why, instead },
            name,
        }) = ClusterSetting::of(field.name()).filter(|_| field.parent() == SPEC)
        {
            return Err(
                CliError::failed(format!("spec.{name} stays as it was at init: {why}"))
                    .hinted(*instead),
            );
        }
        Ok(Self {
            name: field.path.trim_start_matches("spec."),
            value,
        })
    }
}

/// The text of `cluster.kat` with the edits.
fn edited(configuration: &ClusterConfiguration, edits: &[SettingEdit]) -> Result<String, CliError> {
    let tree = json::tree("the configuration", &file_of(configuration));
    let mut tree = tree.map_err(|error| CliError::failed(error.to_string()))?;
    let spec = tree.get_mut(SPEC).and_then(Value::as_object_mut);
    let mut none = Map::new();
    let spec = spec.unwrap_or(&mut none);
    for edit in edits {
        let (parents, name) = edit.name.rsplit_once('.').unwrap_or(("", edit.name));
        let mut within = &mut *spec;
        for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
            let entry = within.entry(parent);
            let entry = entry.or_insert_with(|| Value::Object(Map::new()));
            let Some(inner) = entry.as_object_mut() else {
                return Err(CliError::failed(format!("{parent} is no mapping")));
            };
            within = inner;
        }
        match &edit.value {
            Some(value) => drop(within.insert(name.to_owned(), value.clone())),
            None => drop(within.remove(name)),
        }
    }
    output::yaml::document(&tree)
}

async fn change(
    session: &CliSession<'_>,
    edits: &[SettingEdit],
    dry_run: bool,
) -> Result<(), CliError> {
    for _ in 0..ATTEMPTS {
        let known = read(session).await?;
        let before = present(&known)?;
        let text = edited(&before.configuration, edits)?;
        check(&text, &before.configuration, session.console.colour)?;
        match session
            .client
            .change_configuration(&text, &known.resource_version, dry_run)
            .await
        {
            Ok(changed) => return report(session, &changed),
            Err(error) if error.status() == Some(412) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    Err(CliError::failed(
        "others keep changing the configuration; nothing was changed",
    ))
}

async fn edit(session: &CliSession<'_>, dry_run: bool) -> Result<(), CliError> {
    let known = read(session).await?;
    let before = present(&known)?;
    let original = output::yaml::document(&file_of(&before.configuration))?;
    let mut shown = original.clone();
    let mut written = original.clone();
    loop {
        let text = editor::without_remarks(
            &editor::edit(
                FILE,
                &shown,
                "`katcall config set` changes settings in scripts",
            )
            .await?,
        );
        if text == original {
            return session.console.line("configuration unchanged");
        }
        let is_same = text == written && shown != original;
        let wrong = match check(&text, &before.configuration, false) {
            Ok(()) => {
                let version = &known.resource_version;
                let sent = session.client.change_configuration(&text, version, dry_run);
                match sent.await {
                    Ok(changed) => return report(session, &changed),
                    Err(error) if error.status() == Some(412) => CliError::failed(
                        "somebody else has changed the configuration meanwhile; edit it again",
                    ),
                    Err(error) => refused(error),
                }
            }
            Err(wrong) => wrong,
        };
        // Left as it was, or nothing that another text would mend.
        let can_mend = match &wrong {
            CliError::Diagnostics { .. } => true,
            CliError::Client(error) => matches!(error.status(), Some(400 | 409 | 422)),
            _ => false,
        };
        if is_same || !can_mend {
            return Err(wrong);
        }
        let remark = match &wrong {
            CliError::Diagnostics { text, .. } => text.clone(),
            other => other.to_string(),
        };
        shown = editor::with_remarks(&remark, &text);
        written = text;
    }
}

async fn roll_back(session: &CliSession<'_>, number: u64, dry_run: bool) -> Result<(), CliError> {
    let known = read(session).await?;
    let before = present(&known)?;
    let mut revisions = known.revisions.iter();
    let Some(wanted) = revisions.find(|revision| revision.number == number) else {
        let kept: Vec<_> = known
            .revisions
            .iter()
            .map(|one| one.number.to_string())
            .collect();
        return Err(CliError::not_found(format!(
            "no configuration {number} is kept: kept are {}",
            kept.join(", ")
        ))
        .hinted("`katcall config history` lists them"));
    };
    let text = output::yaml::document(&file_of(&wanted.configuration))?;
    check(&text, &before.configuration, session.console.colour)?;
    let version = &known.resource_version;
    let sent = session.client.change_configuration(&text, version, dry_run);
    let changed = sent.await.map_err(refused)?;
    report(session, &changed)
}

async fn read(session: &CliSession<'_>) -> Result<ConfigurationHistory, CliError> {
    session
        .client
        .configuration_history()
        .await
        .map_err(refused)
}

fn present(known: &ConfigurationHistory) -> Result<&ConfigurationRevision, CliError> {
    let last = known.revisions.last();
    last.ok_or_else(|| CliError::failed("the leader's answer has no configuration"))
}

/// A leader of an earlier version has no such route.
fn refused(error: ClientError) -> CliError {
    match error.status() {
        Some(404 | 405) => CliError::failed(
            "the leader has a version of KAT that cannot change settings; nothing was changed",
        )
        .hinted("`katcall version` shows both versions; upgrade the machines first"),
        _ => error.into(),
    }
}

/// Checks a text as the leader does, for messages with an excerpt.
fn check(text: &str, before: &ClusterConfiguration, colour: bool) -> Result<(), CliError> {
    let found = match kat_bundle::parse_cluster(text, FILE) {
        Ok(after) => {
            let mut found = kat_bundle::not_yet_cluster(text, FILE);
            let fixed = fixed_settings(before, &after, (text, FILE));
            found.extend(fixed.map_err(|error| CliError::failed(error.to_string()))?);
            found
        }
        Err(found) => found,
    };
    if found.is_empty() {
        return Ok(());
    }
    let drawn = found
        .iter()
        .map(|one| kat_bundle::render(one, text, colour));
    Err(CliError::Diagnostics {
        text: drawn.collect::<Vec<_>>().join("\n"),
        message: "the configuration is not valid; nothing was changed".to_owned(),
    })
}

fn report(session: &CliSession<'_>, changed: &ConfigurationChange) -> Result<(), CliError> {
    let console = session.console;
    for change in &changed.changes {
        console.sentence(&words(change))?;
        console.sentence(&format!("  {}", output::one_line(&change.effect)))?;
    }
    let number = changed.number;
    match (changed.changes.is_empty(), changed.dry_run) {
        (true, _) => console.line("configuration unchanged"),
        (false, true) => console.line("nothing was changed (dry run)"),
        (false, false) => console.sentence(&format!(
            "configuration {number}; `katcall config rollback {}` takes it back",
            number.saturating_sub(1)
        )),
    }
}

fn words(change: &SettingChange) -> String {
    let SettingChange {
        setting,
        before,
        after,
        ..
    } = change;
    output::one_line(&format!("{setting}: {before} -> {after}"))
}

async fn history(session: &CliSession<'_>, format: Option<DocumentFormat>) -> Result<(), CliError> {
    let known = read(session).await?;
    let console = session.console;
    if let Some(format) = format {
        return output::document(console, format, &known);
    }
    let mut table = Table::new(vec!["NUMBER", "MADE", "BY", "CHANGES"]);
    let last = known.revisions.last().map(|revision| revision.number);
    for revision in &known.revisions {
        let changes: Vec<_> = revision.changes.iter().map(words).collect();
        table.row(vec![
            Cell::new(match Some(revision.number) == last {
                true => format!("{} (current)", revision.number),
                false => revision.number.to_string(),
            }),
            Cell::new(output::or_dash(
                &revision
                    .made_at
                    .map_or_else(String::new, time::to_the_second),
            )),
            Cell::new(output::or_dash(&revision.made_by)),
            Cell::new(output::or_dash(&changes.join(", "))),
        ]);
    }
    let table = table.within(console.width);
    console.print(&table.render(console.colour))?;
    let Some(waiting) = &known.waiting else {
        return Ok(());
    };
    let names = |what: &str, names: &[String]| {
        let names: Vec<_> = names.iter().map(|name| output::one_line(name)).collect();
        (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
    };
    let for_what = [
        names(
            "machines that have not confirmed the lower value:",
            &waiting.machines,
        ),
        names(
            "workloads whose terminationGraceSeconds is too long for it:",
            &waiting.workloads,
        ),
    ];
    let for_what: Vec<_> = for_what.into_iter().flatten().collect();
    console.note(&format!(
        "leaders still go by nodeLossTimeoutSeconds {}; {}",
        waiting.leaders_seconds,
        for_what.join("; ")
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_that_can_change_are_told_from_the_fixed_ones() {
        let all: Vec<_> = setting_names(false).collect();
        let changeable: Vec<_> = setting_names(true).collect();
        for name in ["mtu", "apiPort"] {
            assert!(all.contains(&name), "{name}");
        }
        assert!(changeable.contains(&"mtu"), "{changeable:?}");
        assert!(!changeable.contains(&"apiPort"), "{changeable:?}");
        for name in changeable {
            assert!(SettingEdit::unset(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn edits_are_made_together_and_only_known_settings_are_taken() {
        let before = ClusterConfiguration::default();
        let edits = [
            SettingEdit::set("nodeLossTimeoutSeconds=90").unwrap(),
            SettingEdit::set("spec.backupPath=/srv/kat").unwrap(),
            SettingEdit::unset("mtu").unwrap(),
            SettingEdit::set("ingress.accessLog=true").unwrap(),
            SettingEdit::set("ingress.internalDomains=[\"corp.lan\"]").unwrap(),
            SettingEdit::unset("ingress.trustedProxies").unwrap(),
        ];
        let text = edited(&before, &edits).unwrap();
        let after = kat_bundle::parse_cluster(&text, FILE).unwrap();
        let mut expected = before.clone();
        expected.spec.node_loss_timeout_seconds = 90;
        expected.spec.backup_path = "/srv/kat".to_owned();
        expected.spec.ingress.access_log = true;
        expected.spec.ingress.internal_domains = Some(vec!["corp.lan".to_owned()]);
        assert_eq!(after, expected);
        assert!(check(&text, &before, false).is_ok());
        for (wrong, part) in [
            ("nodeLossTimeout=90", "is no setting"),
            ("mtu", "is not `KEY=VALUE`"),
            ("ingress.log=true", "is no setting"),
            ("apiPort=9000", "stays as it was at init"),
        ] {
            let error = SettingEdit::set(wrong).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_refused_value_names_its_setting_and_the_expected_value() {
        let before = ClusterConfiguration::default();
        for (setting, part) in [
            (
                "agentTickSeconds=30",
                "at least three ticks of agentTickSeconds: 90",
            ),
            ("mtu=70", "1280"),
            ("backupRetention=many", "many"),
        ] {
            let edits = [SettingEdit::set(setting).unwrap()];
            let text = edited(&before, &edits).unwrap();
            let Err(CliError::Diagnostics { text, .. }) = check(&text, &before, false) else {
                panic!("{setting} is taken");
            };
            let (name, _) = setting.split_once('=').unwrap();
            assert!(text.contains(part) && text.contains(name), "{text}");
        }
    }
}

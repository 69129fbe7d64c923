//! `katcall ca`.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::{
    CliSession,
    args::{AuthorityRotationArgs, CaArgs, CaCommand, DocumentFormat, OutputFormat},
    errors::CliError,
    output,
    output::{
        json::PrintedItems,
        one_line, or_dash, plain,
        table::{Cell, Table},
        word,
    },
    progress::ProgressDisplay,
    time,
};
use kat_client::ClientError;
use kat_types::{
    api::{
        AuthorityPhase, AuthorityRotationRequest, AuthorityStatus, ExposedKind, ExposedValue,
        ExposedValues, IngressAuthorityView, NodeRole, TrustedIngressAuthority,
    },
    store::{
        authorities::{AuthorityKind, ReplaceableKey},
        ingress::INGRESS_AUTHORITY_NAME,
    },
};

/// Interval of the progress requests.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) async fn run(session: &CliSession<'_>, arguments: &CaArgs) -> Result<(), CliError> {
    match &arguments.command {
        CaCommand::List { output } => list(session, *output).await,
        CaCommand::Rotate(arguments) => rotate(session, arguments).await,
        CaCommand::Exposed { output } => exposed(session, *output).await,
        CaCommand::Trust { next } => trust(session, *next).await,
        CaCommand::Migrate { without } => migrate(session, without).await,
    }
}

/// How machines and browsers come to trust a certificate in `kat-ingress.crt`.
const TRUST: &str = "Debian, Ubuntu:
  sudo cp kat-ingress.crt /usr/local/share/ca-certificates/
  sudo update-ca-certificates
Fedora, RHEL:
  sudo cp kat-ingress.crt /etc/pki/ca-trust/source/anchors/
  sudo update-ca-trust
Firefox:
  Settings, Certificates, Authorities, Import: trust it for websites
curl, once:
  curl --cacert kat-ingress.crt https://HOST/";

async fn trust(session: &CliSession<'_>, next_alone: bool) -> Result<(), CliError> {
    let console = session.console;
    let authority = session.client.ingress_authority().await?;
    if authority.certificate.is_empty() {
        return Err(
            CliError::not_found("KAT's own authority for ingress has not been made yet").hinted(
                "it is made for the first route with `tls: true` and a host in internalDomains",
            ),
        );
    }
    let IngressAuthorityView {
        certificate,
        fingerprint,
        domains,
        next,
        previous,
        next_issues,
    } = authority;
    let present = TrustedIngressAuthority {
        certificate,
        fingerprint,
        domains,
    };
    if next_alone {
        let next = next.ok_or_else(|| {
            CliError::not_found("no other authority is to replace KAT's own authority for ingress")
                .hinted("`katcall ca trust` prints the certificate of the present one")
        })?;
        print_authority(session, &next)?;
        console.excerpt(&format!("with it in kat-ingress.crt:\n{TRUST}"));
        return Ok(());
    }
    print_authority(session, &present)?;
    let others = [next.as_ref(), previous.as_ref()];
    for other in others.into_iter().flatten() {
        print_authority(session, other)?;
    }
    if next.is_some() {
        console.note(&format!(
            "ingress-ca is being replaced: clients have to trust both; the second one issues all certificates from {} on",
            time::to_the_second(next_issues)
        ));
        console.note(
            "most clients want a file for each: `katcall ca trust --next > kat-ingress-next.crt` writes the second one",
        );
    }
    if previous.is_some() {
        console.note(
            "ingress-ca is being replaced: the second one issued certificates that are in use until the first one has issued others",
        );
    }
    console.excerpt(&format!("with it in kat-ingress.crt:\n{TRUST}"));
    Ok(())
}

/// Prints the certificate to standard output, and what it is for to standard error.
fn print_authority(
    session: &CliSession<'_>,
    authority: &TrustedIngressAuthority,
) -> Result<(), CliError> {
    let console = session.console;
    console.print(&authority.certificate)?;
    let domains: Vec<String> = authority.domains.iter().map(|one| plain(one)).collect();
    console.note(&format!(
        "it can issue certificates for {} and names below them, and for no others; SHA-256 {}",
        domains.join(", "),
        plain(&authority.fingerprint)
    ));
    Ok(())
}

async fn list(session: &CliSession<'_>, format: OutputFormat) -> Result<(), CliError> {
    let console = session.console;
    let authorities = match session.client.authorities().await {
        Ok(list) => list.items,
        Err(error) => return Err(explained(session, error).await),
    };
    let list = PrintedItems {
        items: &authorities,
    };
    match format {
        OutputFormat::Json => output::document(console, DocumentFormat::Json, &list),
        OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &list),
        OutputFormat::Name => authorities
            .iter()
            .try_for_each(|one| console.line(&format!("authority/{}", plain(&one.name)))),
        OutputFormat::Table | OutputFormat::Wide => {
            let wide = format == OutputFormat::Wide;
            let table = table(&authorities, wide, Timestamp::now());
            let width = console.width.filter(|_| !wide);
            console.print(&table.within(width).render(console.colour))
        }
    }
}

fn table(authorities: &[AuthorityStatus], wide: bool, now: Timestamp) -> Table {
    let mut headers = vec!["NAME", "PHASE", "EXPIRES", "SINCE"];
    if wide {
        headers.extend(["FINGERPRINT", "NEXT"]);
    }
    headers.push("MESSAGE");
    let mut table = Table::new(headers);
    for one in authorities {
        // A replacement has its own beginning.
        let since = one.replacement_since.get().or(one.since.get());
        let mut row = vec![
            Cell::new(&one.name),
            Cell::phase(&word(&one.phase)),
            Cell::new(time::until(now, one.not_after)),
            Cell::new(time::age(now, since.into())),
        ];
        if wide {
            row.push(Cell::new(&one.fingerprint));
            row.push(Cell::new(one.next.as_deref().unwrap_or_default()));
        }
        row.push(Cell::new(&one.message));
        table.row(row);
    }
    table
}

/// Exits with 5 when the replacement is not complete after the timeout.
async fn rotate(
    session: &CliSession<'_>,
    arguments: &AuthorityRotationArgs,
) -> Result<(), CliError> {
    let deadline = Instant::now() + arguments.timeout;
    let (client, console) = (&session.client, session.console);
    let name = &arguments.name;
    let request = AuthorityRotationRequest {
        grace_seconds: arguments
            .grace
            .map(|grace| u32::try_from(grace.as_secs()).unwrap_or(u32::MAX)),
    };
    let of_etcd = AuthorityKind::OF_ETCD
        .iter()
        .any(|kind| kind.name() == name);
    // The machines are read for the note alone.
    if of_etcd && let Ok(nodes) = client.nodes().await {
        let holds = |roles: &[NodeRole]| roles.contains(&NodeRole::Etcd);
        let mut members = nodes.items.iter().filter(|one| holds(&one.status.roles));
        if let (Some(member), None) = (members.next(), members.next()) {
            console.note(&format!(
                "{} alone holds the store: while its etcd restarts, twice, nothing can be changed for some seconds; instances continue to run",
                plain(&member.metadata.name)
            ));
        }
    }
    let asked = match client.rotate_authority(name, &request).await {
        Ok(asked) => asked,
        Err(error) => return Err(explained(session, error).await),
    };
    if name == INGRESS_AUTHORITY_NAME {
        console.note(
            "clients that trust the present authority have to trust the new one before it issues all certificates: `katcall ca trust --next` prints its certificate in phase Trust, and `katcall ca list` shows until when that lasts",
        );
    }
    if !arguments.wait {
        return console.line(&format!(
            "authority/{} is in phase {}",
            plain(name),
            word(&asked.phase)
        ));
    }
    follow(session, &asked, deadline, arguments.timeout).await
}

/// Waits until another authority than before is the only one. While etcd restarts, the API may not
/// answer.
async fn follow(
    session: &CliSession<'_>,
    asked: &AuthorityStatus,
    mut deadline: Instant,
    timeout: Duration,
) -> Result<(), CliError> {
    let console = session.console;
    let name = plain(&asked.name);
    let mut progress = ProgressDisplay::start(console);
    let mut lost = false;
    let mut last = asked.clone();
    loop {
        progress.update(&in_words(&last));
        if last.phase == AuthorityPhase::Settled && last.fingerprint != asked.fingerprint {
            drop(progress);
            for note in afterwards(&asked.name) {
                console.note(note);
            }
            return console.line(&format!("authority/{name} replaced"));
        }
        // The timeout begins when katcall's connections have had their time to learn.
        let grace = last
            .grace_until
            .get()
            .map(|end| end.duration_since(Timestamp::now()));
        if let Some(left) = grace.and_then(|left| Duration::try_from(left).ok()) {
            deadline = deadline.max(Instant::now() + left + timeout);
        }
        let next = Instant::now() + LOOK;
        if next >= deadline {
            drop(progress);
            let spent = time::rounded(timeout.as_secs());
            return Err(CliError::deadline(format!(
                "authority `{name}` is not replaced after {spent}: {}",
                in_words(&last)
            ))
            .hinted("it continues; `katcall ca list` shows how far it is"));
        }
        sleep_until(next).await;
        // Servers tell of a new authority at the beginning of a connection.
        match session.client.anew()?.authorities().await {
            Ok(list) => {
                if lost {
                    progress.note("the cluster answers again");
                }
                lost = false;
                let found = list.items.into_iter().find(|one| one.name == asked.name);
                last = found.ok_or_else(|| {
                    CliError::failed(format!(
                        "the cluster does not show authority `{name}` any more"
                    ))
                })?;
            }
            Err(error) if error.is_passing() => {
                if !lost {
                    progress.note(&format!(
                        "the connection to the cluster is lost, trying again: {error}"
                    ));
                }
                lost = true;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What a person has to do after a replacement.
fn afterwards(name: &str) -> &'static [&'static str] {
    if name == INGRESS_AUTHORITY_NAME {
        return &[
            "clients can forget the earlier authority, and `katcall ca trust` prints the new one",
            "backups and snapshots that were made before keep the old key: `sudo kat-agent backup` makes a new backup",
        ];
    }
    if name != ReplaceableKey::Recovery.name() {
        return &[
            "backups and snapshots that were made before keep the old keys: `sudo kat-agent backup` makes a new backup",
        ];
    }
    &[
        "write the new recovery key down, and keep it away from the machines: `sudo kat-agent recovery-key` on a machine that holds the store shows it",
        "backups that were made before open with the earlier recovery key only: `sudo kat-agent backup` makes a new backup",
        "`katcall ca exposed` lists the secrets, credentials and tokens that could be read before",
    ]
}

async fn exposed(session: &CliSession<'_>, format: OutputFormat) -> Result<(), CliError> {
    let console = session.console;
    let found = match session.client.exposed_values().await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => {
            return Err(CliError::failed(
                "the leader has a version of KAT that does not replace the recovery key",
            )
            .hinted("upgrade KAT on the machines that hold the store"));
        }
        Err(error) => return Err(error.into()),
    };
    match format {
        OutputFormat::Json => output::document(console, DocumentFormat::Json, &found),
        OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &found),
        OutputFormat::Name => found.items.iter().try_for_each(|one| {
            let (namespace, name) = (plain(&one.namespace), plain(&one.name));
            console.line(&match one.kind {
                ExposedKind::Secret => format!("secret/{namespace}/{name}"),
                ExposedKind::RegistryLogin => format!("registrylogin/{namespace}/{name}"),
                ExposedKind::Authority => format!("authority/{name}"),
                ExposedKind::Token => format!("token/{name}"),
            })
        }),
        OutputFormat::Table | OutputFormat::Wide => {
            let now = Timestamp::now();
            if !found.items.is_empty() {
                let width = console.width.filter(|_| format != OutputFormat::Wide);
                let table = exposed_table(&found.items, now);
                console.print(&table.on_page(console.colour, width, 0))?;
            }
            for note in exposed_notes(&found, now) {
                console.note(&note);
            }
            Ok(())
        }
    }
}

fn exposed_table(values: &[ExposedValue], now: Timestamp) -> Table {
    let mut table = Table::new(vec!["KIND", "NAMESPACE", "NAME", "AGE", "TO DO"]);
    for one in values {
        let (namespace, name) = (plain(&one.namespace), plain(&one.name));
        let what = match one.kind {
            ExposedKind::Secret => {
                format!("change it, then: `katcall secret set {name} -n {namespace}`")
            }
            ExposedKind::RegistryLogin => {
                format!("change it, then: `katcall registry login {name} -n {namespace}`")
            }
            ExposedKind::Authority => {
                format!("replace it: `katcall ca rotate {name}`")
            }
            ExposedKind::Token => {
                format!("replace it where it is used, then: `katcall token revoke {name}`")
            }
        };
        table.row(vec![
            Cell::new(word(&one.kind)),
            Cell::new(or_dash(&namespace)),
            Cell::new(&name),
            Cell::new(time::age(now, one.updated)),
            Cell::new(&what),
        ]);
    }
    table
}

fn exposed_notes(found: &ExposedValues, now: Timestamp) -> Vec<String> {
    let Some(since) = found.sealed_since.get() else {
        return vec![
            "the recovery key was never replaced; `katcall ca rotate recovery-key` replaces it"
                .to_owned(),
        ];
    };
    let age = time::age(now, since.into());
    let mut notes = vec![match found.items.is_empty() {
        true => format!(
            "every secret, credential and token was made after the recovery key was replaced, {age} ago"
        ),
        false => format!(
            "these are from before the recovery key was replaced, {age} ago: whoever had root on a machine that held the store, or the earlier key and a backup, may know them"
        ),
    }];
    if found.unread > 0 {
        notes.push(format!(
            "{} more can't be read by the leader's version of KAT",
            found.unread
        ));
    }
    notes
}

/// Such as `etcd-peer-ca is in phase Trust: ...`.
fn in_words(one: &AuthorityStatus) -> String {
    let message = one_line(&one.message);
    let phase = format!("{} is in phase {}", plain(&one.name), word(&one.phase));
    if message.is_empty() {
        return phase;
    }
    format!("{phase}: {message}")
}

async fn migrate(session: &CliSession<'_>, without: &[String]) -> Result<(), CliError> {
    let console = session.console;
    let answer = match session.client.end_migration(without).await {
        Ok(answer) => answer,
        Err(error) => return Err(explained(session, error).await),
    };
    for name in without {
        console.line(&format!("node/{} is not waited for", plain(name)))?;
    }
    console.note("a machine that was given up reads nothing until KAT is upgraded on it");
    if answer.waits_for.is_empty() {
        console.note("no machine is waited for: etcd-client-ca is replaced next, and `katcall ca list` shows how far it is");
    } else {
        let names: Vec<String> = answer.waits_for.iter().map(|name| plain(name)).collect();
        console.note(&format!("still waited for: {}", names.join(", ")));
    }
    Ok(())
}

/// Says where names are found. A leader of an older version has no authorities to show.
async fn explained(session: &CliSession<'_>, error: ClientError) -> CliError {
    if !error.is_not_found() {
        return error.into();
    }
    match session.client.authorities().await {
        Err(listed) if listed.is_not_found() => {
            CliError::failed("the leader has a version of KAT that replaces no authorities")
                .hinted("upgrade KAT on the machines that hold the store")
        }
        _ => CliError::not_found(error.to_string()).hinted(
            "`katcall ca list` shows the authorities, and `katcall get nodes` the machines",
        ),
    }
}

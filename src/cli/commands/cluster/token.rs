//! `katcall token`.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    CliSession,
    args::{DocumentFormat, NamespaceOption, OutputFormat, TokenArgs, TokenCommand, TokenFormat},
    commands::reading::{
        get,
        get::{Columns, ListableItem, rows},
    },
    console::Console,
    errors::CliError,
    output,
    output::json::PrintedItems,
    references::{self, TOKENS},
    time,
};
use kat_types::{
    api::{AuthorityPhase, AuthorityStatus, Scope, TokenRequest, TokenView},
    store::authorities::AuthorityKind,
};

/// Default validity of a join token.
const JOIN_TTL: Duration = Duration::from_secs(3600);

/// Placeholder in the printed command where no reachable machine is known.
const SOMEWHERE: &str = "HOST:PORT";

/// Parses `admin`, `read` or `deploy:NAMESPACE`.
pub(crate) fn parse_scope(text: &str) -> Result<Scope, String> {
    match text.split_once(':') {
        None if text == "admin" => Ok(Scope::Admin),
        None if text == "read" => Ok(Scope::Read),
        Some(("deploy", namespace)) => {
            references::namespace(namespace).map(|namespace| Scope::Deploy { namespace })
        }
        _ => Err(format!(
            "`{text}` is not a scope: `admin`, `read` or `deploy:NAMESPACE`"
        )),
    }
}

pub(crate) async fn run(session: &CliSession<'_>, arguments: &TokenArgs) -> Result<(), CliError> {
    match &arguments.command {
        TokenCommand::Create {
            scope,
            join,
            uses,
            insecure_trust_network,
            name,
            ttl,
            output,
        } => {
            if *join && *output == Some(TokenFormat::Connection) {
                return Err(CliError::usage(
                    "a token for joining is not for katcall: it has no connection",
                ));
            }
            let (scope, ttl, uses) = match scope {
                Some(scope) if !join => (scope.clone(), *ttl, None),
                _ => (
                    Scope::Join,
                    Some(ttl.unwrap_or(JOIN_TTL)),
                    Some(uses.unwrap_or(1)),
                ),
            };
            let request = TokenRequest {
                scope,
                name: name.clone(),
                ttl_seconds: ttl.map(|ttl| ttl.as_secs()),
                uses,
                insecure_trust_network: *insecure_trust_network,
            };
            create(session, &request, *output).await
        }
        TokenCommand::List { output } => list(session, *output).await,
        TokenCommand::Revoke { words } => {
            let tokens = references::objects(words, TOKENS, &NamespaceOption::unused())?;
            references::for_each(session.console, &tokens, async |token| {
                revoke(session, &token.name).await
            })
            .await
        }
    }
}

async fn revoke(session: &CliSession<'_>, id: &str) -> Result<(), CliError> {
    if let Err(error) = session.client.revoke_token(id).await {
        return Err(get::missing::<TokenView>(session, error, None, id).await);
    }
    session.console.line(&format!("token/{id} revoked"))
}

async fn create(
    session: &CliSession<'_>,
    request: &TokenRequest,
    format: Option<TokenFormat>,
) -> Result<(), CliError> {
    let console = session.console;
    let made = session.client.create_token(request).await?;
    let leader = made.leader_api.as_deref().unwrap_or(SOMEWHERE);
    if made.insecure_trust_network && format.is_none() {
        console.line(&format!(
            "sudo kat-agent join --leader-api {leader} --insecure-trust-network"
        ))?;
        return note_joining(session, request, &made).await;
    }
    if let (true, Some(format)) = (made.insecure_trust_network, format) {
        return print(console, format, &made);
    }
    let Some(secret) = &made.token else {
        return Err(CliError::failed(format!(
            "the server made token `{}` but did not show it",
            made.id
        ))
        .hinted(format!("`katcall token revoke {}` ends it", made.id)));
    };
    match (format, &request.scope) {
        (Some(format), _) => print(console, format, &made)?,
        // The token is not an argument, which every user of that machine could read.
        (None, Scope::Join) => console.line(&format!(
            "sudo kat-agent join --leader-api {leader} <<< {secret}"
        ))?,
        (None, _) => console.line(secret)?,
    }
    if made.uses.is_some() {
        return note_joining(session, request, &made).await;
    }
    let end = match &made.expires {
        Some(expires) => format!(
            "; it ends at {}: make another before",
            time::to_the_second(*expires)
        ),
        None => String::new(),
    };
    console.note(&format!(
        "token `{}` with scope {}; it is shown this once{end}",
        made.id,
        rows::scope(&made.scope)
    ));
    Ok(())
}

/// Prints a new token as a whole, or as a connection file.
fn print(console: &Console, format: TokenFormat, made: &TokenView) -> Result<(), CliError> {
    match (format, &made.connection) {
        (TokenFormat::Json, _) => output::document(console, DocumentFormat::Json, made),
        (TokenFormat::Yaml, _) => output::document(console, DocumentFormat::Yaml, made),
        (TokenFormat::Connection, Some(connection)) => {
            output::document(console, DocumentFormat::Json, connection)
        }
        (TokenFormat::Connection, None) => Err(CliError::failed(format!(
            "the server made token `{}` and gave no connection for it",
            made.id
        ))
        .hinted(format!(
            "`katcall token revoke {}` ends it; a server of an older version gives none",
            made.id
        ))),
    }
}

/// Prints who may join with a token, and how to revoke it.
async fn note_joining(
    session: &CliSession<'_>,
    request: &TokenRequest,
    made: &TokenView,
) -> Result<(), CliError> {
    let console = session.console;
    if let (Some(uses), Some(seconds)) = (made.uses, request.ttl_seconds) {
        let machines = match uses {
            1 => "one machine".to_owned(),
            uses => format!("{uses} machines"),
        };
        let until = time::rounded(seconds);
        console.note(&format!(
            "{machines} may join with it; it expires in {until}, and `katcall token revoke {}` ends it earlier",
            made.id
        ));
    }
    if made.leader_api.is_none() {
        console.note(&format!(
            "no Ready machine has an address that others reach; replace {SOMEWHERE} by an address at which the new machine reaches the API of one"
        ));
    }
    if made.insecure_trust_network {
        console.note("anybody who reaches this address joins until then: nothing proves who they are, or to them who answers");
    }
    // For the note alone: the token contains the authority's hash.
    let authorities = session.client.authorities().await.map(|list| list.items);
    let is_leaving = |one: &AuthorityStatus| {
        let early = [AuthorityPhase::Due, AuthorityPhase::Trust].contains(&one.phase);
        one.name == AuthorityKind::Cluster.name() && early
    };
    if !made.insecure_trust_network && authorities.is_ok_and(|all| all.iter().any(is_leaving)) {
        console.note("cluster-ca is being replaced: this token ends when the new authority begins to issue certificates (phase Issue in `katcall ca list`)");
    }
    Ok(())
}

async fn list(session: &CliSession<'_>, format: OutputFormat) -> Result<(), CliError> {
    let console = session.console;
    let mut tokens = session.client.tokens().await?.items;
    tokens.sort_by(TokenView::order);
    let list = PrintedItems { items: &tokens };
    match format {
        OutputFormat::Json => output::document(console, DocumentFormat::Json, &list),
        OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &list),
        _ if tokens.is_empty() => {
            console.note("no tokens");
            Ok(())
        }
        OutputFormat::Name => tokens
            .iter()
            .try_for_each(|token| console.line(&format!("token/{}", token.id))),
        OutputFormat::Table | OutputFormat::Wide => {
            let wide = format == OutputFormat::Wide;
            let columns = Columns {
                wide,
                namespaces: false,
                now: Timestamp::now(),
            };
            let table = get::table(&tokens, columns);
            let width = console.width.filter(|_| !wide);
            console.print(&table.within(width).render(console.colour))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read_and_others_refused() {
        assert_eq!(parse_scope("admin"), Ok(Scope::Admin));
        assert_eq!(parse_scope("read"), Ok(Scope::Read));
        let namespace = "shop".to_owned();
        assert_eq!(parse_scope("deploy:shop"), Ok(Scope::Deploy { namespace }));
        for wrong in [
            "",
            "Admin",
            "deploy",
            "deploy:",
            "deploy:node",
            "deploy:A",
            "read:x",
        ] {
            assert!(parse_scope(wrong).is_err(), "{wrong}");
        }
    }
}

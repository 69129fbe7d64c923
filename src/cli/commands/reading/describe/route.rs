//! `katcall describe route`.

use super::Sheet;
use crate::{
    CliSession,
    commands::reading::get::{self, ListableItem as _},
    errors::CliError,
    output::table::{Cell, Table},
    references::Reference,
    time,
};
use kat_types::{api::RouteItem, resource::CORE_NAMESPACE};

/// Each route of the host, or the one with the path.
pub(super) async fn describe(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    object: &Reference,
) -> Result<(), CliError> {
    for (index, item) in found(session, object).await?.iter().enumerate() {
        if index > 0 {
            sheet.line("");
        }
        one(sheet, item);
    }
    Ok(())
}

/// The routes that a reference names; an error if there is none.
pub(in crate::commands::reading) async fn found(
    session: &CliSession<'_>,
    object: &Reference,
) -> Result<Vec<RouteItem>, CliError> {
    let Reference {
        namespace, name, ..
    } = object;
    let mut items = session.client.routes(Some(namespace)).await?.items;
    items.retain(|item| item.is_named(name));
    if items.is_empty() && namespace != CORE_NAMESPACE {
        // Routes to something outside KAT belong to KAT's own namespace, which not every caller may read.
        if let Ok(list) = session.client.routes(Some(CORE_NAMESPACE)).await {
            let outside = |item: &RouteItem| item.spec.workload.is_empty() && item.is_named(name);
            items = list.items.into_iter().filter(outside).collect();
        }
    }
    if items.is_empty() {
        let error = CliError::not_found(format!(
            "there is no route `{}` in namespace `{namespace}`",
            crate::output::plain(name)
        ));
        return Err(error.hinted("`katcall get routes -A` lists them"));
    }
    items.sort_by(RouteItem::order);
    Ok(items)
}

fn one(sheet: &mut Sheet, item: &RouteItem) {
    let (spec, status) = (&item.spec, &item.status);
    sheet.field("host", &spec.host);
    sheet.field("path", &spec.path);
    sheet.field(
        "namespace",
        item.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let is_outside = spec.workload.is_empty();
    if !is_outside {
        sheet.field("workload", &spec.workload);
    }
    sheet.field("to", &spec.to);
    sheet.phase("status", &status.reason, &status.message);
    sheet.field("tls", &spec.issuer);
    if status.expires.get().is_some() {
        sheet.field("expires", &time::until(sheet.now, status.expires));
    }
    if spec.redirects_plain {
        sheet.field("http", "redirected to https");
    }
    sheet.field("redirected", &spec.redirect_from.join(", "));
    if !is_outside {
        let serving = format!("{} of {} instances", status.serving, status.instances);
        sheet.field("serving", &serving);
    }
    for record in get::address_records(item) {
        sheet.field("record", &record);
    }
    let mut table = Table::new(vec!["MACHINE", "SERVES", "KEY", "MESSAGE"]);
    for machine in &status.machines {
        let yes = |is: bool| if is { "yes" } else { "no" };
        let message = match machine.reason.as_str() {
            "" => machine.message.clone(),
            reason => format!("{reason}: {}", machine.message),
        };
        table.row(vec![
            Cell::new(&machine.node),
            Cell::new(yes(machine.serves)),
            Cell::new(yes(machine.holds_key)),
            Cell::new(message),
        ]);
    }
    if !status.machines.is_empty() {
        sheet.section("machines");
        sheet.table(table);
    }
}

//! `katcall describe address`.

use super::Sheet;
use crate::{
    CliSession,
    commands::reading::get,
    errors::CliError,
    output::{
        plain,
        table::{Cell, Table},
        word,
    },
    time,
};
use kat_types::api::VirtualAddressItem;

/// A virtual address, with what each machine says of it.
pub(super) async fn describe(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    name: &str,
) -> Result<(), CliError> {
    let item = found(session, name).await?;
    let (spec, status) = (&item.spec, &item.status);
    sheet.field("address", &spec.address);
    sheet.field("interface", &spec.interface);
    sheet.field("leader lost", &spec.on_leader_loss);
    sheet.field("holder", status.holder.as_deref().unwrap_or("none"));
    if status.since.get().is_some() {
        sheet.field("since", &time::age(sheet.now, status.since));
    }
    sheet.phase("status", get::rows::address_state(&item), &status.message);
    let mut table = Table::new(vec!["MACHINE", "STATE", "INTERFACE", "MESSAGE"]);
    for machine in &status.machines {
        table.row(vec![
            Cell::new(&machine.node),
            Cell::new(word(&machine.state)),
            Cell::new(&machine.interface),
            Cell::new(&machine.message),
        ]);
    }
    sheet.section("machines");
    sheet.table(table);
    Ok(())
}

/// The virtual address that a reference names, without its prefix.
pub(in crate::commands::reading) async fn found(
    session: &CliSession<'_>,
    name: &str,
) -> Result<VirtualAddressItem, CliError> {
    let items = session.client.virtual_addresses().await?.items;
    let found = items.into_iter().find(|item| item.metadata.name == name);
    found.ok_or_else(|| {
        CliError::not_found(format!("there is no virtual address `{}`", plain(name)))
            .hinted("`katcall get addresses` lists them")
    })
}

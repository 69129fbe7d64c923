//! `katcall get --watch`: prints the list, then every change, without end.

use std::collections::BTreeMap;

use super::{ListRequest, ListableItem, columns, json_line, nothing_found, reference_to, scope};
use crate::{
    CliSession,
    args::OutputFormat,
    errors::CliError,
    output::{
        picked,
        table::{Cell, Table},
        yaml,
    },
};
use kat_client::ListChange;
use kat_types::{api::WatchLine, encoding::json};

/// `deleted` and `changed` have seven letters.
const CHANGE_WIDTH: u16 = 7;

/// A change of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ItemChange {
    /// The item existed at the start.
    Present,
    Added,
    Changed,
    Deleted,
}

impl ItemChange {
    fn word(self) -> &'static str {
        match self {
            Self::Present => "-",
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
        }
    }
}

pub(crate) async fn run<T: ListableItem>(
    session: &CliSession<'_>,
    request: &ListRequest,
) -> Result<(), CliError> {
    let console = session.console;
    let namespace = scope::<T>(request);
    let mut objects = request.objects.iter();
    if objects.any(|object| namespace.is_some_and(|namespace| object.namespace != namespace)) {
        return Err(CliError::usage(
            "`--watch` follows objects of one namespace",
        ));
    }
    let mut follow = session.client.follow::<T>(T::list(namespace)?, false);
    let mut known: BTreeMap<(String, String), T> = BTreeMap::new();
    let mut printer = WatchPrinter {
        session,
        request,
        table: None,
    };
    let mut first = true;
    loop {
        let mut news: Vec<(ItemChange, T)> = Vec::new();
        match follow.next().await? {
            ListChange::Listed(items) => {
                let mut gone = std::mem::take(&mut known);
                let mut items: Vec<T> = items;
                items.retain(T::is_listed);
                items.sort_by(T::order);
                for item in items {
                    let happened = match gone.remove(&item.key()) {
                        _ if first => Some(ItemChange::Present),
                        None => Some(ItemChange::Added),
                        Some(before) if !same(&before, &item) => Some(ItemChange::Changed),
                        Some(_) => None,
                    };
                    known.insert(item.key(), item.clone());
                    news.extend(happened.map(|happened| (happened, item)));
                }
                news.extend(gone.into_values().map(|item| (ItemChange::Deleted, item)));
                if first && news.is_empty() {
                    let name = request.objects.first().map(|object| object.name.as_str());
                    console.note(&nothing_found::<T>(namespace, name));
                }
                first = false;
            }
            ListChange::Changed(item) | ListChange::Deleted(item) if !item.is_listed() => {}
            ListChange::Changed(item) => {
                let happened = if known.insert(item.key(), item.clone()).is_some() {
                    ItemChange::Changed
                } else {
                    ItemChange::Added
                };
                news.push((happened, item));
            }
            ListChange::Deleted(item) => {
                known.remove(&item.key());
                news.push((ItemChange::Deleted, item));
            }
            ListChange::Interrupted(reason) => {
                console.warning(&format!("nothing is seen for now, trying again: {reason}"));
            }
        }
        if !T::GOES {
            news.retain(|(happened, _)| *happened != ItemChange::Deleted);
        }
        news.retain(|(_, item)| request.selector.selects(item.labels()));
        if !request.objects.is_empty() {
            let objects = request.objects.iter();
            news.retain(|(_, item)| objects.clone().any(|object| item.is_meant(object)));
        }
        printer.print(&news)?;
    }
}

fn same<T: ListableItem>(left: &T, right: &T) -> bool {
    match (json::tree("an item", left), json::tree("an item", right)) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}

struct WatchPrinter<'run> {
    session: &'run CliSession<'run>,
    request: &'run ListRequest,
    /// The rows so far, for the widths of columns.
    table: Option<Table>,
}

impl WatchPrinter<'_> {
    fn print<T: ListableItem>(&mut self, news: &[(ItemChange, T)]) -> Result<(), CliError> {
        let console = self.session.console;
        if news.is_empty() {
            return Ok(());
        }
        let output = &self.request.output;
        if let Some(template) = &output.template {
            let mut news = news.iter();
            return news.try_for_each(|(_, item)| picked(console, template, item));
        }
        match output.format {
            OutputFormat::Table | OutputFormat::Wide => self.rows(news),
            OutputFormat::Name => news
                .iter()
                .try_for_each(|(_, item)| console.line(&reference_to(item, self.request))),
            OutputFormat::Json => news.iter().try_for_each(|(happened, item)| {
                console.print(&json_line(&wire(*happened, item))?)
            }),
            OutputFormat::Yaml => news.iter().try_for_each(|(happened, item)| {
                let text = yaml::document(&wire(*happened, item))?;
                console.print(&format!("---\n{text}"))
            }),
        }
    }

    fn rows<T: ListableItem>(&mut self, news: &[(ItemChange, T)]) -> Result<(), CliError> {
        let columns = columns::<T>(self.request);
        let mut table = match &self.table {
            Some(above) => above.continuation(),
            None => {
                let mut headers = vec!["CHANGE"];
                headers.extend(T::headers(columns));
                Table::new(headers)
                    .with_first(CHANGE_WIDTH)
                    .with_texts(T::TEXTS)
                    .with_optional(T::OPTIONAL_IN_WATCH)
            }
        };
        for (happened, item) in news {
            let mut cells = vec![Cell::new(happened.word())];
            cells.extend(item.row(columns));
            table.row(cells);
        }
        let console = self.session.console;
        let table = table.within(console.width.filter(|_| !columns.wide));
        console.print(&table.render(console.colour))?;
        self.table = Some(table);
        Ok(())
    }
}

/// The same JSON objects as the API's watch.
fn wire<T: ListableItem>(happened: ItemChange, item: &T) -> WatchLine<T> {
    let item = item.clone();
    match happened {
        ItemChange::Present | ItemChange::Added => WatchLine::Added(item),
        ItemChange::Changed => WatchLine::Modified(item),
        ItemChange::Deleted => WatchLine::Deleted(item),
    }
}

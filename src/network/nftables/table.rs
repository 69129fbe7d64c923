//! A table of nftables that is changed in one transaction, and only when it says something else: its base chains
//! stay, so that at no moment a packet passes between the old rules and the new.

use std::{borrow::Cow, collections::BTreeSet, io::ErrorKind};

use serde_json::Value;

use super::firewall::{FAMILY, FirewallError, nft};

/// A table whose chains of ports come and go.
#[derive(Debug)]
pub(crate) struct Table {
    name: &'static str,
    /// So the names of chains of ports begin.
    prefix: &'static str,
    /// What was put in place, and how nft lists it.
    applied: Option<(String, String)>,
}

impl Table {
    pub(crate) fn new(name: &'static str, prefix: &'static str) -> Self {
        Self {
            name,
            prefix,
            applied: None,
        }
    }

    /// Puts the rules in place unless they are; `render` makes them, with the chains of before that have to go.
    /// Gives whether something was done.
    ///
    /// # Errors
    /// See [`FirewallError`]; the rules from before hold then.
    pub(crate) async fn set(
        &mut self,
        wanted: &BTreeSet<&str>,
        render: impl Fn(Vec<String>) -> Result<String, tera::Error>,
    ) -> Result<bool, FirewallError> {
        let rules = render(Vec::new())?;
        let present = self.listed().await?;
        let same = self
            .applied
            .as_ref()
            .is_some_and(|(text, listed)| *text == rules && present.as_ref() == Some(listed));
        if same {
            return Ok(false);
        }
        let stale = chains(present.as_deref().unwrap_or_default(), self.prefix)
            .into_iter()
            .filter(|chain| !wanted.contains(chain.as_str()));
        let change = render(stale.collect())?;
        if let Err(FirewallError::Refused(reason)) = nft(&["-f", "-"], &change).await {
            // What is there can't be changed into this: it is another version's, or somebody's.
            tracing::warn!(table = self.name, reason, "the table is made anew");
            let anew = format!("{}{rules}", removal(self.name));
            nft(&["-f", "-"], &anew).await?;
        }
        let listed = self.listed().await?.unwrap_or_default();
        self.applied = Some((rules, listed));
        Ok(true)
    }

    /// The table as nft lists it, without what counts; nothing without a table.
    async fn listed(&self) -> Result<Option<String>, FirewallError> {
        match nft(&["-j", "-s", "list", "table", FAMILY, self.name], "").await {
            Ok(text) => Ok(Some(text)),
            Err(FirewallError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Removes a table, if there is one.
///
/// # Errors
/// See [`FirewallError`].
pub(crate) async fn remove(name: &str) -> Result<(), FirewallError> {
    nft(&["-f", "-"], &removal(name)).await?;
    Ok(())
}

fn removal(name: &str) -> String {
    format!("table {FAMILY} {name}\ndelete table {FAMILY} {name}\n")
}

/// The template of the package if it is there, else the compiled-in one.
pub(crate) fn template(installed: &str, compiled: &'static str) -> Cow<'static, str> {
    match std::fs::read_to_string(installed) {
        Ok(text) => return Cow::Owned(text),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = installed, "the template can't be read: {error:#}"),
    }
    Cow::Borrowed(compiled)
}

/// The chains in what nft lists whose names begin so.
pub(crate) fn chains(listed: &str, prefix: &str) -> Vec<String> {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    let objects = listed.get("nftables").and_then(Value::as_array);
    let names = objects.into_iter().flatten().filter_map(|object| {
        let name = object.pointer("/chain/name")?.as_str()?;
        name.starts_with(prefix).then(|| name.to_owned())
    });
    names.collect()
}

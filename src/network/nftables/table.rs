//! An nftables table that is changed in one transaction, and only when its content differs. Its
//! base chains stay, so that no packet passes between the old rules and the new.

use std::{borrow::Cow, collections::BTreeSet, io::ErrorKind};

use serde_json::Value;

use super::{
    firewall::{FAMILY, FirewallError, nft},
    netfilter,
};

/// What became of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableChange {
    /// It has the rules.
    None,
    /// Other rules are in place of the previous ones.
    Rules,
    /// It was missing, not as it was left, or from an earlier process: connections may have begun
    /// without its rules.
    Restored,
}

/// A table with chains of ports that are added and removed.
#[derive(Debug)]
pub(crate) struct PortChainTable {
    name: &'static str,
    /// Prefix of the names of its chains of ports.
    prefix: &'static str,
    applied: Option<AppliedRules>,
}

#[derive(Debug)]
struct AppliedRules {
    rules: String,
    /// The output of `nft` for them.
    listed: String,
    /// The generation of nftables before they were last listed.
    generation: Option<u32>,
}

impl PortChainTable {
    pub(crate) fn new(name: &'static str, prefix: &'static str) -> Self {
        Self {
            name,
            prefix,
            applied: None,
        }
    }

    /// Applies the rules unless they are in place; `render` makes them, given the earlier chains to
    /// remove.
    ///
    /// # Errors
    /// See [`FirewallError`]; the previous rules stay in force then.
    pub(crate) async fn set(
        &mut self,
        wanted: &BTreeSet<&str>,
        render: impl Fn(Vec<String>) -> Result<String, tera::Error>,
    ) -> Result<TableChange, FirewallError> {
        let rules = render(Vec::new())?;
        let generation = netfilter::generation().await;
        if let Some(applied) = &self.applied
            && applied.rules == rules
            && is_same_generation(applied.generation, generation)
        {
            return Ok(TableChange::None);
        }
        let present = self.listed().await?;
        let change = match &mut self.applied {
            Some(applied) if present.as_ref() == Some(&applied.listed) => {
                if applied.rules == rules {
                    applied.generation = generation;
                    return Ok(TableChange::None);
                }
                TableChange::Rules
            }
            _ => TableChange::Restored,
        };
        let stale = chains(present.as_deref().unwrap_or_default(), self.prefix)
            .into_iter()
            .filter(|chain| !wanted.contains(chain.as_str()));
        let transaction = render(stale.collect())?;
        if let Err(FirewallError::Refused(reason)) = nft(&["-f", "-"], &transaction).await {
            // The present table is another version's or not KAT's, and can't be changed into this
            // one.
            tracing::warn!(table = self.name, reason, "the table is made anew");
            let anew = format!("{}{rules}", removal(self.name));
            nft(&["-f", "-"], &anew).await?;
        }
        let generation = netfilter::generation().await;
        let listed = self.listed().await?.unwrap_or_default();
        self.applied = Some(AppliedRules {
            rules,
            listed,
            generation,
        });
        Ok(change)
    }

    /// Whether no program has changed any nftables rule since the applied ones were last listed:
    /// [`set`](Self::set) with the same rules would change nothing.
    pub(crate) async fn is_untouched(&self) -> bool {
        match &self.applied {
            Some(applied) => is_same_generation(applied.generation, netfilter::generation().await),
            None => false,
        }
    }

    /// Makes the next [`set`](Self::set) apply the rules, also if those that `nft` lists are the same:
    /// another program may have changed them between their transaction and their listing.
    pub(crate) fn forget(&mut self) {
        self.applied = None;
    }

    /// The table as `nft` lists it, without counters; `None` without a table.
    async fn listed(&self) -> Result<Option<String>, FirewallError> {
        match nft(&["-j", "-s", "list", "table", FAMILY, self.name], "").await {
            Ok(text) => Ok(Some(text)),
            Err(FirewallError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether both generations are known and the same, so that no rule has changed between them.
pub(crate) fn is_same_generation(before: Option<u32>, now: Option<u32>) -> bool {
    before.is_some() && before == now
}

/// Removes a table, if it exists.
pub(crate) async fn remove(name: &str) -> Result<(), FirewallError> {
    nft(&["-f", "-"], &removal(name)).await?;
    Ok(())
}

pub(crate) fn removal(name: &str) -> String {
    format!("table {FAMILY} {name}\ndelete table {FAMILY} {name}\n")
}

/// The packaged template if it exists, otherwise the compiled-in one.
pub(crate) fn template(installed: &str, compiled: &'static str) -> Cow<'static, str> {
    match std::fs::read_to_string(installed) {
        Ok(text) => return Cow::Owned(text),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = installed, "the template can't be read: {error:#}"),
    }
    Cow::Borrowed(compiled)
}

/// The chains in the output of `nft` with this name prefix.
pub(crate) fn chains(listed: &str, prefix: &str) -> Vec<String> {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    let objects = listed.get("nftables").and_then(Value::as_array);
    let names = objects.into_iter().flatten().filter_map(|object| {
        let name = object.pointer("/chain/name")?.as_str()?;
        name.starts_with(prefix).then(|| name.to_owned())
    });
    names.collect()
}

//! The settings of a running cluster: what a change does, or why there can be none.

use super::{
    diagnostic::{Class, Diagnostic, Span},
    yaml,
};
use kat_types::{
    encoding::json::{self, NotEncoded},
    resource::ClusterConfiguration,
};

/// A setting in `spec` of `cluster.kat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterSetting {
    /// Its name in `spec`.
    pub name: &'static str,
    pub change: SettingRule,
}

/// Whether a setting of a running cluster can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingRule {
    /// Only the leader goes by it. The text is the effect of a change, in a sentence.
    OfLeader(&'static str),
    /// Every machine follows it. The text is the effect of a change, in a sentence.
    OfMachines(&'static str),
    /// It stays as it was at init.
    Fixed {
        why: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
}

use SettingRule::{Fixed, OfLeader, OfMachines};

const NEW_CLUSTER: &str = "a cluster with another value is made by `kat-agent init --config`";

const fn ports(name: &'static str) -> ClusterSetting {
    ClusterSetting {
        name,
        change: Fixed {
            why: "the machines find each other by it",
            instead: NEW_CLUSTER,
        },
    }
}

const fn setting(name: &'static str, change: SettingRule) -> ClusterSetting {
    ClusterSetting { name, change }
}

/// Every setting that has an effect.
#[rustfmt::skip]
pub const CLUSTER_SETTINGS: &[ClusterSetting] = &[
    setting("clusterCIDR", Fixed { why: "machines and instances have addresses of this range", instead: NEW_CLUSTER }),
    setting("serviceCIDR", Fixed { why: "services have addresses of this range", instead: NEW_CLUSTER }),
    setting("nodeSubnetBits", Fixed { why: "the machines' subnets were made with it", instead: NEW_CLUSTER }),
    setting("clusterDomain", Fixed { why: "the names that running programs use end in it", instead: NEW_CLUSTER }),
    ports("agentPort"),
    ports("apiPort"),
    ports("etcdPeerPort"),
    ports("etcdClientPort"),
    setting("wireguardPort", Fixed {
        why: "the machines find each other by it",
        instead: "`wireguardPort` in /etc/kat/agent.yaml sets the port of one machine",
    }),
    setting("volumeBasePath", Fixed {
        why: "the data of volumes lies there on every machine",
        instead: "mount another disk or file system at that path",
    }),
    setting("backupPath", OfLeader("the next backup is written there; earlier ones stay in the old directory, and KAT removes them no more")),
    setting("backupRetention", OfLeader("surplus backups are removed after the next one")),
    setting("backupIntervalMinutes", OfLeader("the next backup is due this long after the last one; nothing restarts")),
    setting("agentTickSeconds", OfMachines("machines report this often; nothing restarts")),
    setting("nodeLossTimeoutSeconds", OfMachines("a silent machine counts as lost after this time; a lower value counts once every machine has confirmed it; nothing restarts")),
    setting("mtu", OfMachines("the overlay has it at once, and containers that start from now on; running containers keep theirs until they are restarted")),
    setting("isolation", OfMachines("None: workloads reach those of other namespaces; Audit: they do, and `katcall why isolation` lists what Namespaces would refuse; Namespaces: connections to namespaces that do not allow them end and are refused; nothing restarts")),
    setting("ingress", OfMachines("the machines that serve routes go by it; other internalDomains make a new authority, which has to be trusted anew; nothing restarts")),
    setting("acme", OfLeader("the leader orders certificates by it: after agreeToTerms, for hosts outside of internalDomains; another directory orders them anew, and the present ones are served until then")),
    setting("virtualAddresses", OfMachines("one ingress machine at a time has each address, and announces it on its LAN; this does not work in networks whose provider routes addresses to machines; an address that is left out is given up at once; nothing restarts")),
];

impl ClusterSetting {
    /// The setting with this name.
    pub fn of(name: &str) -> Option<&'static Self> {
        CLUSTER_SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The effect of a change; `None` for a setting that stays as it was at init.
    pub fn effect(&self) -> Option<&'static str> {
        match self.change {
            OfLeader(effect) | OfMachines(effect) => Some(effect),
            Fixed { .. } => None,
        }
    }
}

/// A setting with two values, as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedSetting {
    /// Its name in `spec`.
    pub name: String,
    pub before: String,
    pub after: String,
}

/// Whether the text of a `cluster.kat` has this setting of `spec`.
pub fn is_written(text: &str, name: &str) -> bool {
    let read = yaml::read("cluster.kat", text, &mut Vec::new());
    let mut roots = read.roots.iter();
    roots.any(|root| yaml::locate(root, &format!("spec.{name}")).is_some())
}

/// The settings of `spec` that differ, by name.
///
/// # Errors
/// A configuration can't be encoded.
pub fn changed_settings(
    before: &ClusterConfiguration,
    after: &ClusterConfiguration,
) -> Result<Vec<ChangedSetting>, NotEncoded> {
    let tree = |configuration: &ClusterConfiguration| {
        let spec = &configuration.spec;
        let mut tree = json::tree("the cluster's configuration", spec)?;
        if let Some(settings) = tree.as_object_mut() {
            // A configuration that does not have it is stored as before there was isolation.
            let isolation = json::tree("isolation", &spec.isolation)?;
            settings.insert("isolation".to_owned(), isolation);
        }
        Ok::<_, NotEncoded>(tree)
    };
    let (before, after) = (tree(before)?, tree(after)?);
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else {
        return Ok(Vec::new());
    };
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let shown = |value: Option<&serde_json::Value>| match value {
        None => "-".to_owned(),
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let differ = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name));
    let changed = differ.map(|name| ChangedSetting {
        name: name.clone(),
        before: shown(before.get(name)),
        after: shown(after.get(name)),
    });
    Ok(changed.collect())
}

/// The changes that a running cluster can't have, with their places in `text`, from which `after` was
/// read.
///
/// # Errors
/// A configuration can't be encoded.
pub fn fixed_settings(
    before: &ClusterConfiguration,
    after: &ClusterConfiguration,
    (text, file): (&str, &str),
) -> Result<Vec<Diagnostic>, NotEncoded> {
    let root = yaml::read(file, text, &mut Vec::new())
        .roots
        .into_iter()
        .next();
    let at = |path: &str, message: String| {
        let found = root.as_ref().and_then(|root| yaml::locate(root, path));
        let span = found.map(|(node, key)| key.unwrap_or(node.span));
        // A setting that is left out goes back to its default.
        let start = root.as_ref().map(|root| Span::point(root.span.start));
        match span.or(start) {
            Some(span) => Diagnostic::at(Class::Range, file, span, message),
            None => Diagnostic::of_file(Class::Range, file, message),
        }
        .path(path)
    };
    let mut found = Vec::new();
    if before.metadata != after.metadata {
        let (old, new) = (&before.metadata.name, &after.metadata.name);
        found.push(
            at(
                "metadata.name",
                format!("the cluster's name is `{old}` since init and cannot become `{new}`: certificates and backups have it"),
            )
            .hint("a name of your own for the cluster is that of a context: `katcall context add`"),
        );
    }
    for ChangedSetting {
        name,
        before,
        after,
    } in changed_settings(before, after)?
    {
        let Some(ClusterSetting {
            change: Fixed { why, instead },
            ..
        }) = ClusterSetting::of(&name)
        else {
            continue;
        };
        found.push(
            at(
                &format!("spec.{name}"),
                format!("{name} is `{before}` since init and cannot become `{after}`: {why}"),
            )
            .hint(*instead),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DocumentKind,
        fields::{self, FieldStatus},
        parse_cluster,
    };

    const TEXT: &str = "apiVersion: kat.dws.rip/v1alpha1\nkind: ClusterConfiguration\nmetadata: {name: home}\nspec:\n  clusterCIDR: 10.100.0.0/16\n  serviceCIDR: 10.200.0.0/16\n";

    #[test]
    fn every_setting_of_cluster_kat_that_has_an_effect_is_listed_once() {
        let of_spec = fields::all()
            .filter(|field| field.kind == DocumentKind::ClusterConfiguration)
            .filter(|field| field.parent() == "spec" && field.status != FieldStatus::NotYet);
        let expected: Vec<_> = of_spec.map(fields::Field::name).collect();
        let listed: Vec<_> = CLUSTER_SETTINGS.iter().map(|one| one.name).collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn a_change_of_a_fixed_setting_names_its_place_and_what_to_do_instead() {
        let before = parse_cluster(TEXT, "cluster.kat").unwrap();
        let text = TEXT
            .replace("10.200.0.0", "10.201.0.0")
            .replace("home", "work")
            + "  apiPort: 9000\n  mtu: 1400\n";
        let after = parse_cluster(&text, "cluster.kat").unwrap();
        let found = fixed_settings(&before, &after, (&text, "cluster.kat")).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.line, one.path.as_str(), one.hint.is_some()))
            .collect();
        assert_eq!(
            found,
            [
                (3, "metadata.name", true),
                (7, "spec.apiPort", true),
                (6, "spec.serviceCIDR", true),
            ]
        );
        let changed = changed_settings(&before, &after).unwrap();
        let changed: Vec<_> = changed
            .iter()
            .map(|one| format!("{} {} {}", one.name, one.before, one.after))
            .collect();
        assert_eq!(
            changed,
            [
                "apiPort 9115 9000",
                "mtu 1420 1400",
                "serviceCIDR 10.200.0.0/16 10.201.0.0/16"
            ]
        );
    }

    #[test]
    fn a_setting_is_written_also_with_the_value_of_its_default() {
        assert!(is_written(TEXT, "serviceCIDR") && !is_written(TEXT, "isolation"));
        let text = format!("{TEXT}  isolation: None\n");
        assert!(is_written(&text, "isolation") && !is_written(&text, "metadata"));
    }

    #[test]
    fn a_fixed_setting_that_is_left_out_is_refused_too() {
        let text = format!("{TEXT}  apiPort: 9000\n");
        let before = parse_cluster(&text, "cluster.kat").unwrap();
        let after = parse_cluster(TEXT, "cluster.kat").unwrap();
        let found = fixed_settings(&before, &after, (TEXT, "cluster.kat")).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].line, found[0].path.as_str()), (1, "spec.apiPort"));
    }
}

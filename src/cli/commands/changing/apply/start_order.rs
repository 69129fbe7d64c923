//! The order in which folders are applied: a workload comes after those that it starts after, so that
//! a Job that has to run again is applied before the version that waits for it. Else folders stay in the
//! order in which they were named.

use std::collections::BTreeMap;

use super::local::{FolderObject, PreparedFolder};

/// Puts folders into the order of `startAfter`. A folder that makes its namespace stays before the
/// others of that namespace, and a circle is left to the server to refuse.
pub(super) fn in_order(folders: Vec<PreparedFolder>) -> Vec<PreparedFolder> {
    let places: BTreeMap<(&str, &str), usize> = folders
        .iter()
        .enumerate()
        .flat_map(|(place, folder)| {
            let contents = folder.contents.iter();
            contents.filter_map(move |content| match content {
                FolderObject::Workload { namespace, name } => {
                    Some(((namespace.as_str(), name.as_str()), place))
                }
                FolderObject::Namespace(_) | FolderObject::Route(_) => None,
            })
        })
        .collect();
    let makes_namespace = |folder: &PreparedFolder| {
        let mut contents = folder.contents.iter();
        contents.any(|content| matches!(content, FolderObject::Namespace(_)))
    };
    let before: Vec<Vec<usize>> = folders
        .iter()
        .map(|folder| match makes_namespace(folder) {
            true => Vec::new(),
            false => {
                let after = folder.after.iter();
                after
                    .filter_map(|(namespace, name)| {
                        places.get(&(namespace.as_str(), name.as_str()))
                    })
                    .copied()
                    .collect()
            }
        })
        .collect();
    let mut order = Vec::new();
    // A place is left when those before it are in the order; `true` means that it was looked at.
    let mut stack: Vec<(usize, bool)> = (0..folders.len()).rev().map(|one| (one, false)).collect();
    let mut seen = vec![false; folders.len()];
    while let Some((place, is_looked_at)) = stack.pop() {
        if is_looked_at {
            order.push(place);
            continue;
        }
        let Some(seen) = seen.get_mut(place).filter(|seen| !**seen) else {
            continue;
        };
        *seen = true;
        stack.push((place, true));
        let others = before.get(place).into_iter().flatten().rev();
        stack.extend(others.map(|other| (*other, false)));
    }
    let mut folders: Vec<Option<PreparedFolder>> = folders.into_iter().map(Some).collect();
    order
        .into_iter()
        .filter_map(|place| folders.get_mut(place)?.take())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::resource::{Namespace, NamespaceMetadata};

    fn folder(name: &str, after: &[&str]) -> PreparedFolder {
        PreparedFolder {
            path: name.to_owned(),
            contents: vec![FolderObject::Workload {
                namespace: "crew".to_owned(),
                name: name.to_owned(),
            }],
            archive: Default::default(),
            sources: BTreeMap::new(),
            after: after
                .iter()
                .map(|name| ("crew".to_owned(), (*name).to_owned()))
                .collect(),
        }
    }

    fn paths(folders: Vec<PreparedFolder>) -> Vec<String> {
        let folders = in_order(folders).into_iter();
        folders.map(|folder| folder.path).collect()
    }

    #[test]
    fn a_workload_is_applied_after_those_that_it_starts_after() {
        let folders = vec![
            folder("app", &["migrate", "db", "elsewhere"]),
            folder("cache", &[]),
            folder("migrate", &["db"]),
            folder("db", &[]),
        ];
        assert_eq!(paths(folders), ["db", "migrate", "app", "cache"]);
        let unordered = vec![folder("b", &[]), folder("a", &[])];
        assert_eq!(paths(unordered), ["b", "a"]);
    }

    #[test]
    fn no_folder_is_lost_in_a_circle() {
        let folders = vec![
            folder("a", &["b"]),
            folder("b", &["a"]),
            folder("c", &["a"]),
        ];
        assert_eq!(paths(folders), ["b", "a", "c"]);
    }

    #[test]
    fn a_folder_that_makes_the_namespace_comes_first() {
        let mut first = folder("app", &["db"]);
        let namespace = Namespace {
            metadata: NamespaceMetadata {
                name: "crew".to_owned(),
                labels: BTreeMap::new(),
            },
            spec: Default::default(),
        };
        let made = FolderObject::Namespace(Box::new(namespace));
        first.contents.insert(0, made);
        assert_eq!(paths(vec![first, folder("db", &[])]), ["app", "db"]);
    }
}

//! "Did you mean": the nearest known word.

/// The known word nearest to `word`; `None` if none is near.
///
/// Case, `-` and `_` are ignored. A word is near if at most a third of its letters, and at least
/// one, differ (added, removed, changed or two neighbours swapped).
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = plain(word);
    let letters = wanted.chars().count();
    if letters == 0 || letters > 64 {
        return None;
    }
    let most = (letters / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&wanted, &plain(candidate)), candidate))
        .filter(|(away, _)| *away <= most)
        .min_by_key(|(away, _)| *away)
        .map(|(_, candidate)| candidate)
}

/// As [`nearest`], for names that users chose: if none is near, the shortest name that begins with
/// at least three written letters.
pub fn nearest_name<'a>(
    written: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let names: Vec<&str> = names.into_iter().collect();
    let longer = || {
        let longer = names.iter().copied();
        let longer = longer.filter(|name| written.len() > 2 && name.starts_with(written));
        longer.min_by_key(|name| (name.len(), *name))
    };
    nearest(written, names.iter().copied()).or_else(longer)
}

fn plain(word: &str) -> String {
    word.chars()
        .filter(|character| !matches!(character, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let known = ["replicas", "restartPolicy", "source", "type", "args"];
        for (word, meant) in [
            ("replica", Some("replicas")),
            ("Replicas", Some("replicas")),
            ("relpicas", Some("replicas")),
            ("restart_policy", Some("restartPolicy")),
            ("souce", Some("source")),
            ("arg", Some("args")),
            ("typ", Some("type")),
            ("ingress", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word}");
        }
    }

    #[test]
    fn a_name_is_also_found_by_its_beginning() {
        let names = ["web", "database", "web-shop"];
        for (written, meant) in [
            ("wbe", Some("web")),
            ("databse", Some("database")),
            ("data", Some("database")),
            ("web-", Some("web")),
            ("web-sh", Some("web-shop")),
            ("mail", None),
            ("x", None),
            ("da", None),
        ] {
            assert_eq!(nearest_name(written, names), meant, "{written}");
        }
        assert_eq!(nearest("data", names), None);
    }
}

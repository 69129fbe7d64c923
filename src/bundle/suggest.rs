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
}

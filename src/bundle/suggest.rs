//! "Did you mean": the nearest of the known words.

/// The known word nearest to `word`; `None` where nothing is near.
///
/// Case, `-` and `_` do not count. Near is at most a third of the word's letters, and at least one
/// letter, away (added, left out, changed or two neighbours swapped).
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = plain(word);
    if wanted.is_empty() || wanted.len() > 64 {
        return None;
    }
    let most = (wanted.len() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &plain(candidate)), candidate))
        .filter(|(away, _)| *away <= most)
        .min_by_key(|(away, _)| *away)
        .map(|(_, candidate)| candidate)
}

fn plain(word: &str) -> Vec<char> {
    word.chars()
        .filter(|character| !matches!(character, '-' | '_'))
        .flat_map(char::to_lowercase)
        .collect()
}

/// Edits from one word to the other (optimal string alignment).
fn distance(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    let mut previous: Option<char> = None;
    for (line, letter) in left.iter().enumerate() {
        let mut next = vec![line + 1];
        for (column, other) in right.iter().enumerate() {
            let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX);
            let change = at(&row, column) + usize::from(letter != other);
            let mut least = change
                .min(at(&row, column + 1) + 1)
                .min(at(&next, column) + 1);
            let swapped = column
                .checked_sub(1)
                .is_some_and(|index| right.get(index) == Some(letter) && previous == Some(*other));
            if swapped && line > 0 {
                least = least.min(at(&before, column - 1) + 1);
            }
            next.push(least);
        }
        previous = Some(*letter);
        before = std::mem::replace(&mut row, next);
    }
    row.last().copied().unwrap_or(usize::MAX)
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
    fn counts_edits() {
        let letters = |text: &str| text.chars().collect::<Vec<_>>();
        for (left, right, edits) in [
            ("", "", 0),
            ("a", "", 1),
            ("ab", "ba", 1),
            ("abc", "abd", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(
                distance(&letters(left), &letters(right)),
                edits,
                "{left} {right}"
            );
        }
    }
}

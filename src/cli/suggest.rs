//! Did you mean ...?

/// The candidate nearest to what was written, if one is near: at most a third of the letters
/// differ (two swapped neighbours count once), or one begins with the other.
pub(super) fn nearest<'name>(
    written: &str,
    candidates: impl IntoIterator<Item = &'name str>,
) -> Option<&'name str> {
    let allowed = (written.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let distance = distance(written, candidate);
            let begins = written.len() > 2 && candidate.starts_with(written);
            (distance <= allowed || begins).then_some((!begins, distance, candidate))
        })
        .min_by(|left, right| (left.1, left.0, left.2).cmp(&(right.1, right.0, right.2)))
        .map(|(_, _, candidate)| candidate)
}

/// Letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    let mut previous = None;
    for (row, letter) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        let mut last = None;
        for (column, other) in right.iter().enumerate() {
            let at =
                |line: &[usize], index: usize| line.get(index).copied().unwrap_or(usize::MAX / 2);
            let replaced = at(&above, column) + usize::from(letter != *other);
            let deleted = at(&above, column + 1) + 1;
            let inserted = at(&current, column) + 1;
            let mut best = replaced.min(deleted).min(inserted);
            if previous == Some(*other) && last == Some(letter) && column > 0 {
                best = best.min(at(&before, column - 1) + 1);
            }
            current.push(best);
            last = Some(*other);
        }
        before = std::mem::replace(&mut above, current);
        previous = Some(letter);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_differs() {
        for (left, right, wanted) in [
            ("", "", 0),
            ("web", "web", 0),
            ("web", "wbe", 1),
            ("web", "we", 1),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(left, right), wanted, "{left} {right}");
            assert_eq!(distance(right, left), wanted, "{right} {left}");
        }
    }

    #[test]
    fn only_what_is_near_is_proposed() {
        let names = ["web", "database", "web-shop"];
        assert_eq!(nearest("wbe", names), Some("web"));
        assert_eq!(nearest("databse", names), Some("database"));
        assert_eq!(nearest("data", names), Some("database"));
        assert_eq!(nearest("mail", names), None);
        assert_eq!(nearest("x", names), None);
    }
}

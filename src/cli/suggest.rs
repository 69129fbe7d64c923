//! Suggestions for misspelt names.

/// The candidate nearest to the written name, if one is near: at most a third of the letters differ
/// (two swapped neighbours count once), or one begins with the other.
pub(super) fn nearest<'name>(
    written: &str,
    candidates: impl IntoIterator<Item = &'name str>,
) -> Option<&'name str> {
    let allowed = (written.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let distance = strsim::osa_distance(written, candidate);
            let begins = written.len() > 2 && candidate.starts_with(written);
            (distance <= allowed || begins).then_some((!begins, distance, candidate))
        })
        .min_by(|left, right| (left.1, left.0, left.2).cmp(&(right.1, right.0, right.2)))
        .map(|(_, _, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

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

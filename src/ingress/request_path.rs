//! Request paths as routes see them.
//!
//! The program behind a route may read a path differently than its bytes say: it decodes `%61`,
//! merges `//`, follows `..`, takes `%2F` or `\` as a slash, and cuts `;x=1` off. A route of its own
//! for `/admin`, with a password, is then reached through the route of `/`. So a path is compared in
//! the form that such a program would give it, and one that could be read in two ways within the
//! segments that routes of the host distinguish is refused with 400.

/// Why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path does not begin with a slash")]
    NotAbsolute,
    #[error("the path has a dot segment")]
    DotSegment,
    #[error("the path has a control character")]
    Control,
    #[error(
        "the path has an encoded slash, an encoded percent sign or an empty segment where routes are told apart"
    )]
    Ambiguous,
}

/// The leading segments of a path, decoded, without what follows a semicolon in each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestPath {
    segments: Vec<Vec<u8>>,
}

impl RequestPath {
    /// Reads a request's path without its query. `depth` is the number of segments that routes of
    /// the host distinguish: behind them only dot segments and control characters are refused.
    ///
    /// # Errors
    /// The path could be read in two ways.
    pub fn parse(path: &str, depth: usize) -> Result<Self, PathError> {
        let Some(path) = path.strip_prefix('/') else {
            return Err(PathError::NotAbsolute);
        };
        let mut segments = Vec::new();
        let mut raw = path.split('/').enumerate().peekable();
        while let Some((position, text)) = raw.next() {
            let is_last = raw.peek().is_none();
            let decoded = decode(text.as_bytes());
            if decoded.bytes.iter().any(u8::is_ascii_control) {
                return Err(PathError::Control);
            }
            let mut parts = decoded.bytes.split(|byte| matches!(byte, b'/' | b'\\'));
            let is_dots = |part: &[u8]| matches!(before_semicolon(part), b"." | b"..");
            if parts.any(is_dots) {
                return Err(PathError::DotSegment);
            }
            if position >= depth {
                continue;
            }
            let name = before_semicolon(&decoded.bytes);
            let is_ambiguous = decoded.is_malformed
                || decoded
                    .bytes
                    .iter()
                    .any(|byte| matches!(byte, b'/' | b'\\' | b'%'))
                || (name.is_empty() && !is_last);
            if is_ambiguous {
                return Err(PathError::Ambiguous);
            }
            segments.push(name.to_vec());
        }
        // A final slash.
        if segments.last().is_some_and(Vec::is_empty) {
            segments.pop();
        }
        Ok(Self { segments })
    }

    /// Whether the path is the prefix, or continues it after a slash.
    pub fn is_below(&self, prefix: &[String]) -> bool {
        let leading = self.segments.get(..prefix.len());
        leading.is_some_and(|leading| leading.iter().eq(prefix.iter().map(String::as_bytes)))
    }
}

fn before_semicolon(segment: &[u8]) -> &[u8] {
    segment
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
}

struct DecodedSegment {
    bytes: Vec<u8>,
    /// A percent sign without two hexadecimal digits.
    is_malformed: bool,
}

fn decode(text: &[u8]) -> DecodedSegment {
    let mut bytes = Vec::with_capacity(text.len());
    let mut is_malformed = false;
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let digits = match after {
            [high, low, ..] => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match digits.and_then(|(high, low)| u8::try_from(high * 16 + low).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                is_malformed = true;
                bytes.push(b'%');
            }
        }
    }
    DecodedSegment {
        bytes,
        is_malformed,
    }
}

/// The segments of a route's path, which has no encoding; `None` if it is not written as
/// [`kat_types::ingress::IngressRoute::path`] says.
pub fn prefix_segments(path: &str) -> Option<Vec<String>> {
    let inner = path.strip_prefix('/')?;
    if inner.is_empty() {
        return Some(Vec::new());
    }
    let is_plain = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"%?#;\\\"<>^`{|}".contains(&byte))
    };
    let segments: Vec<&str> = inner.split('/').collect();
    let all_plain = segments.iter().all(|segment| is_plain(segment));
    all_plain.then(|| segments.into_iter().map(str::to_owned).collect())
}

/// Removes the first `count` segments of a path that was found below such a prefix; the rest keeps
/// its encoding.
pub fn without_prefix(path: &str, count: usize) -> &str {
    let mut rest = path;
    for _ in 0..count {
        let inner = rest.strip_prefix('/').unwrap_or(rest);
        let end = inner.find('/').unwrap_or(inner.len());
        rest = inner.get(end..).unwrap_or_default();
    }
    if rest.is_empty() { "/" } else { rest }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(path: &str) -> Vec<String> {
        prefix_segments(path).unwrap()
    }

    fn below(path: &str, of: &str) -> bool {
        RequestPath::parse(path, 2).unwrap().is_below(&prefix(of))
    }

    #[test]
    fn a_prefix_matches_whole_segments() {
        assert!(below("/", "/"));
        assert!(below("/shop", "/shop"));
        assert!(below("/shop/", "/shop"));
        assert!(below("/shop/a/b", "/shop"));
        assert!(below("/shop/a", "/shop/a"));
        assert!(!below("/shops", "/shop"));
        assert!(!below("/", "/shop"));
        assert!(!below("/shop", "/shop/a"));
        assert!(!below("/Shop", "/shop"));
    }

    #[test]
    fn an_encoded_name_is_the_name() {
        assert!(below("/%61dmin", "/admin"));
        assert!(below("/admin;v=1/x", "/admin"));
        assert!(below("/%61dmin%3Bx", "/admin"));
        assert!(below("/caf%C3%A9", "/"));
    }

    #[test]
    fn paths_that_could_be_read_in_two_ways_are_refused() {
        let refused = |path: &str| RequestPath::parse(path, 2).unwrap_err();
        for path in [
            "/a/../admin",
            "/a/..",
            "/./admin",
            "/a/%2e%2E/admin",
            "/a/.%2e/b",
            "/x/y/z/../w",
            "/a%2f..%2fadmin",
            "/x/y/z/..%2Fw",
            "/x/y/z/..%5cw",
            "/x/y/..;/w",
            "/a\\..\\admin",
        ] {
            assert_eq!(refused(path), PathError::DotSegment, "{path}");
        }
        for path in [
            "/a%2fb",
            "/a%2Fb",
            "/a%5Cb",
            "//admin",
            "/a//b",
            "/%2561dmin",
            "/a%zz",
            "/a%",
        ] {
            assert_eq!(refused(path), PathError::Ambiguous, "{path}");
        }
        for path in ["/a%00", "/x/y/z%0a", "/x/y/z/%7f"] {
            assert_eq!(refused(path), PathError::Control, "{path}");
        }
        assert_eq!(refused("*"), PathError::NotAbsolute);
        assert_eq!(refused(""), PathError::NotAbsolute);
    }

    #[test]
    fn behind_the_routes_segments_an_encoded_slash_is_the_programs_own() {
        for path in ["/a/b/group%2Fproject", "/a/b//c", "/a/b/100%", "/a/b/%2525"] {
            assert!(RequestPath::parse(path, 2).is_ok(), "{path}");
        }
        assert!(RequestPath::parse("/group%2Fproject", 0).is_ok());
    }

    #[test]
    fn a_removed_prefix_leaves_the_rest_as_it_was() {
        assert_eq!(without_prefix("/shop", 1), "/");
        assert_eq!(without_prefix("/shop/", 1), "/");
        assert_eq!(without_prefix("/%73hop/a%20b/", 1), "/a%20b/");
        assert_eq!(without_prefix("/shop/a/b", 2), "/b");
        assert_eq!(without_prefix("/shop/a", 0), "/shop/a");
    }

    #[test]
    fn a_routes_path_is_plain() {
        for path in [
            "shop", "", "/shop/", "//", "/a/../b", "/a%20b", "/a?b", "/a b", "/a;b", "/ä",
        ] {
            assert_eq!(prefix_segments(path), None, "{path}");
        }
        assert_eq!(prefix("/"), Vec::<String>::new());
        assert_eq!(prefix("/a/b.c"), ["a", "b.c"]);
    }

    proptest! {
        #[test]
        fn a_program_that_decodes_and_normalises_ends_below_the_same_prefix(
            path in "/([a-c./%;\\\\]|%2e|%2f|%61|%25){0,12}",
        ) {
            let Ok(read) = RequestPath::parse(&path, 2) else { return Ok(()) };
            // What a careless program makes of it.
            let decoded = decode(path.as_bytes()).bytes;
            let decoded = String::from_utf8_lossy(&decoded).replace('\\', "/");
            let mut stack: Vec<&str> = Vec::new();
            for segment in decoded.split('/') {
                match segment.split(';').next().unwrap() {
                    "" | "." => {}
                    ".." => { stack.pop(); }
                    segment => stack.push(segment),
                }
            }
            for of in ["/a", "/b", "/a/b"] {
                let of = prefix(of);
                let theirs = stack.get(..of.len()) == Some(&of.iter().map(String::as_str).collect::<Vec<_>>()[..]);
                prop_assert_eq!(read.is_below(&of), theirs, "{} {:?}", path, of);
            }
        }
    }
}

//! D-Bus introspection XML as tables, for comparing code, contract and running services.
//!
//! It reads the tags of the outermost node that the D-Bus specification defines ("Introspection
//! Data Format"). It is not a general XML parser: entities are left as they are.

use std::collections::BTreeMap;

/// Interfaces by name.
pub type Interfaces = BTreeMap<String, Interface>;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    pub methods: BTreeMap<String, Method>,
    /// Signatures of the signals by name.
    pub signals: BTreeMap<String, String>,
    pub properties: BTreeMap<String, Property>,
}

/// Signatures of a method's arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Method {
    /// The input arguments.
    pub takes: String,
    /// The output arguments.
    pub gives: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Property {
    /// The D-Bus signature.
    pub kind: String,
    /// `read`, `write` or `readwrite`.
    pub access: String,
}

/// Why a text is not introspection data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntrospectionError {
    /// A tag or a comment does not end. The value is the byte at which it begins.
    #[error("byte {0}: what begins here does not end")]
    Unfinished(usize),
    /// A tag lacks an attribute.
    #[error("byte {at}: `{tag}` has no `{attribute}`")]
    Missing {
        /// Byte at which the tag begins.
        at: usize,
        tag: String,
        attribute: &'static str,
    },
    /// A tag is not allowed at its position.
    #[error("byte {at}: `{tag}` is out of place")]
    OutOfPlace {
        /// Byte at which the tag begins.
        at: usize,
        tag: String,
    },
}

enum InterfaceMember {
    Method(String),
    Signal(String),
}

/// A tag of the text.
struct Tag<'xml> {
    /// Byte at which it begins.
    at: usize,
    name: &'xml str,
    /// What stands between its brackets, without the slash of an empty element.
    inner: &'xml str,
    /// Whether the element ends with this tag.
    empty: bool,
}

impl Tag<'_> {
    fn need(&self, attribute: &'static str) -> Result<String, IntrospectionError> {
        attribute_of(self.inner, attribute).ok_or_else(|| IntrospectionError::Missing {
            at: self.at,
            tag: self.name.to_owned(),
            attribute,
        })
    }

    fn out_of_place(&self) -> IntrospectionError {
        IntrospectionError::OutOfPlace {
            at: self.at,
            tag: self.name.to_owned(),
        }
    }
}

/// Parses introspection data.
pub fn parse(xml: &str) -> Result<Interfaces, IntrospectionError> {
    let mut interfaces = Interfaces::new();
    let mut depth = 0usize;
    let mut interface: Option<String> = None;
    let mut member: Option<InterfaceMember> = None;
    let mut at = 0;
    while let Some((tag, end)) = next_tag(xml, at)? {
        at = end;
        match tag.name {
            "node" if !tag.empty => depth += 1,
            "/node" => depth = depth.saturating_sub(1),
            _ if depth != 1 => {}
            "interface" => {
                let title = tag.need("name")?;
                interfaces.entry(title.clone()).or_default();
                interface = (!tag.empty).then_some(title);
            }
            "/interface" => interface = None,
            "/method" | "/signal" => member = None,
            "method" | "signal" | "property" | "arg" => {
                let table = interface
                    .as_ref()
                    .and_then(|title| interfaces.get_mut(title))
                    .ok_or_else(|| tag.out_of_place())?;
                add_to_interface(table, &tag, &mut member)?;
            }
            _ => {}
        }
    }
    Ok(interfaces)
}

/// The first tag from the byte `at` on that is neither a comment nor a declaration, and the byte
/// behind it; `None` if there is none.
fn next_tag(xml: &str, mut at: usize) -> Result<Option<(Tag<'_>, usize)>, IntrospectionError> {
    while let Some(rest) = xml.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(begin) = rest.find('<') else { break };
        let here = at + begin;
        let tag = rest.get(begin..).unwrap_or_default();
        if tag.starts_with("<!--") {
            let end = tag
                .find("-->")
                .ok_or(IntrospectionError::Unfinished(here))?;
            at = here + end + 3;
            continue;
        }
        let end = tag.find('>').ok_or(IntrospectionError::Unfinished(here))?;
        at = here + end + 1;
        let inner = tag.get(1..end).unwrap_or_default();
        if inner.starts_with(['?', '!']) {
            continue;
        }
        let (inner, empty) = match inner.strip_suffix('/') {
            Some(inner) => (inner, true),
            None => (inner, false),
        };
        let tag = Tag {
            at: here,
            name: inner.split_whitespace().next().unwrap_or_default(),
            inner,
            empty,
        };
        return Ok(Some((tag, at)));
    }
    Ok(None)
}

/// Adds a method, a signal, a property, or an argument of `member` to an interface.
fn add_to_interface(
    table: &mut Interface,
    tag: &Tag<'_>,
    member: &mut Option<InterfaceMember>,
) -> Result<(), IntrospectionError> {
    match tag.name {
        "method" => {
            let title = tag.need("name")?;
            table.methods.entry(title.clone()).or_default();
            *member = (!tag.empty).then_some(InterfaceMember::Method(title));
        }
        "signal" => {
            let title = tag.need("name")?;
            table.signals.entry(title.clone()).or_default();
            *member = (!tag.empty).then_some(InterfaceMember::Signal(title));
        }
        "property" => {
            let property = Property {
                kind: tag.need("type")?,
                access: tag.need("access")?,
            };
            table.properties.insert(tag.need("name")?, property);
        }
        _ => {
            let kind = tag.need("type")?;
            match member.as_ref().ok_or_else(|| tag.out_of_place())? {
                InterfaceMember::Signal(title) => {
                    table
                        .signals
                        .entry(title.clone())
                        .or_default()
                        .push_str(&kind);
                }
                InterfaceMember::Method(title) => {
                    let method = table.methods.entry(title.clone()).or_default();
                    if attribute_of(tag.inner, "direction").as_deref() == Some("out") {
                        method.gives.push_str(&kind);
                    } else {
                        method.takes.push_str(&kind);
                    }
                }
            }
        }
    }
    Ok(())
}

fn attribute_of(tag: &str, attribute: &str) -> Option<String> {
    let mut rest = tag;
    while let Some(place) = rest.find(attribute) {
        let before = rest.get(..place)?.chars().next_back();
        let after = rest.get(place + attribute.len()..)?;
        if before.is_some_and(char::is_whitespace)
            && let Some(value) = after.trim_start().strip_prefix('=')
        {
            let value = value.trim_start();
            let quote = value.chars().next()?;
            return value
                .get(1..)?
                .split_once(quote)
                .map(|(text, _)| text.to_owned());
        }
        rest = after;
    }
    None
}

/// A sentence for each member of `wanted` that `actual` lacks or has with another signature.
pub fn missing(wanted: &Interfaces, actual: &Interfaces) -> Vec<String> {
    let mut found = Vec::new();
    for (name, interface) in wanted {
        let Some(other) = actual.get(name) else {
            found.push(format!("the interface {name} is missing"));
            continue;
        };
        compare(
            &mut found,
            name,
            "method",
            &interface.methods,
            &other.methods,
        );
        compare(
            &mut found,
            name,
            "signal",
            &interface.signals,
            &other.signals,
        );
        compare(
            &mut found,
            name,
            "property",
            &interface.properties,
            &other.properties,
        );
    }
    found
}

fn compare<T: PartialEq + std::fmt::Debug>(
    found: &mut Vec<String>,
    interface: &str,
    kind: &str,
    wanted: &BTreeMap<String, T>,
    actual: &BTreeMap<String, T>,
) {
    for (name, member) in wanted {
        match actual.get(name) {
            None => found.push(format!("the {kind} {interface}.{name} is missing")),
            Some(other) if other != member => found.push(format!(
                "the {kind} {interface}.{name} is {other:?}, expected {member:?}"
            )),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = r#"<!DOCTYPE node PUBLIC "x" "y">
<!-- <interface name="no"> -->
<node name="/a">
  <interface name="a.B">
    <method name="Do"><arg type="s" name="direction" direction='in'/>
      <arg name="type" type="ao" direction="out"/></method>
    <method name="Nothing"/>
    <signal name="Done"><arg type="u"/><arg type="s"/></signal>
    <property name="P" type="as" access="read"/>
  </interface>
  <node name="child"><interface name="c.D"><method name="X"/></interface></node>
</node>"#;

    #[test]
    fn reads_members_of_the_outermost_node() {
        let found = parse(XML).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.B"]);
        let interface = &found["a.B"];
        assert_eq!(interface.methods["Do"].takes, "s");
        assert_eq!(interface.methods["Do"].gives, "ao");
        assert_eq!(interface.methods["Nothing"], Method::default());
        assert_eq!(interface.signals["Done"], "us");
        assert_eq!(interface.properties["P"].kind, "as");
    }

    #[test]
    fn says_what_differs() {
        let wanted = parse(XML).unwrap();
        let actual = parse(&XML.replace("\"ao\"", "\"o\"").replace("Done", "Ended")).unwrap();
        let differences = missing(&wanted, &actual);
        assert_eq!(differences.len(), 2, "{differences:?}");
        assert!(differences[0].contains("method a.B.Do"));
        assert!(differences[1].contains("signal a.B.Done is missing"));
        assert!(missing(&wanted, &wanted).is_empty());
    }

    #[test]
    fn refuses_what_is_broken() {
        for wrong in [
            "<node><interface",
            "<!-- ",
            "<node><arg type='s'/></node>",
            "<node><interface/></node>",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

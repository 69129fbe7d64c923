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

/// Parses introspection data.
pub fn parse(xml: &str) -> Result<Interfaces, IntrospectionError> {
    let mut interfaces = Interfaces::new();
    let mut depth = 0usize;
    let mut interface: Option<String> = None;
    let mut member: Option<InterfaceMember> = None;
    let mut at = 0;
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
        let name = inner.split_whitespace().next().unwrap_or_default();
        let need = |attribute: &'static str| {
            attribute_of(inner, attribute).ok_or_else(|| IntrospectionError::Missing {
                at: here,
                tag: name.to_owned(),
                attribute,
            })
        };
        let misplaced = || IntrospectionError::OutOfPlace {
            at: here,
            tag: name.to_owned(),
        };
        match name {
            "node" if !empty => depth += 1,
            "/node" => depth = depth.saturating_sub(1),
            _ if depth != 1 => {}
            "interface" => {
                let title = need("name")?;
                interfaces.entry(title.clone()).or_default();
                interface = (!empty).then_some(title);
            }
            "/interface" => interface = None,
            "/method" | "/signal" => member = None,
            "method" | "signal" | "property" | "arg" => {
                let table = interface
                    .as_ref()
                    .and_then(|title| interfaces.get_mut(title))
                    .ok_or_else(misplaced)?;
                match name {
                    "method" => {
                        let title = need("name")?;
                        table.methods.entry(title.clone()).or_default();
                        member = (!empty).then_some(InterfaceMember::Method(title));
                    }
                    "signal" => {
                        let title = need("name")?;
                        table.signals.entry(title.clone()).or_default();
                        member = (!empty).then_some(InterfaceMember::Signal(title));
                    }
                    "property" => {
                        let property = Property {
                            kind: need("type")?,
                            access: need("access")?,
                        };
                        table.properties.insert(need("name")?, property);
                    }
                    _ => {
                        let kind = need("type")?;
                        match member.as_ref().ok_or_else(misplaced)? {
                            InterfaceMember::Signal(title) => {
                                table
                                    .signals
                                    .entry(title.clone())
                                    .or_default()
                                    .push_str(&kind);
                            }
                            InterfaceMember::Method(title) => {
                                let method = table.methods.entry(title.clone()).or_default();
                                if attribute_of(inner, "direction").as_deref() == Some("out") {
                                    method.gives.push_str(&kind);
                                } else {
                                    method.takes.push_str(&kind);
                                }
                            }
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(interfaces)
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

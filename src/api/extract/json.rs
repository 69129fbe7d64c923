//! Parses JSON from callers, where only an object stands for a struct.
//!
//! serde's derived code also reads a struct from an array, field by field. A struct whose fields
//! all have defaults would then be read from `[]`: a `spec` that was meant to close a namespace
//! would open it. Enums that are tagged inside are read from arrays still, but these have to hold
//! the tag. What lies inside such enums, inside untagged ones and in flattened structs is not covered.

use std::fmt;

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde_path_to_error::Track;

/// Why a text is not what was expected, with the path of the field.
pub(crate) type JsonError = serde_path_to_error::Error<serde_json::Error>;

/// Parses a whole text.
///
/// # Errors
/// What is wrong, with its field, line and column. The text quotes the value: it must not be shown
/// where the value is a secret.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = Track::new();
    let tracked = serde_path_to_error::Deserializer::new(ObjectsOnly(&mut json), &mut track);
    let parsed = T::deserialize(tracked).and_then(|value| json.end().map(|()| value));
    parsed.map_err(|error| JsonError::new(track.path(), error))
}

/// A part of serde's interface that passes everything on, and asks for a map where a struct is
/// read.
struct ObjectsOnly<T>(T);

macro_rules! pass_on {
    ($($method:ident($($name:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($name,)* ObjectsOnly(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectsOnly<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(Object(visitor))
    }

    pass_on! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit_values {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for ObjectsOnly<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(formatter)
    }

    visit_values! {
        visit_bool(bool);
        visit_i8(i8);
        visit_i16(i16);
        visit_i32(i32);
        visit_i64(i64);
        visit_i128(i128);
        visit_u8(u8);
        visit_u16(u16);
        visit_u32(u32);
        visit_u64(u64);
        visit_u128(u128);
        visit_f32(f32);
        visit_f64(f64);
        visit_char(char);
        visit_str(&str);
        visit_borrowed_str(&'de str);
        visit_string(String);
        visit_bytes(&[u8]);
        visit_borrowed_bytes(&'de [u8]);
        visit_byte_buf(Vec<u8>);
    }

    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(ObjectsOnly(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(ObjectsOnly(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(ObjectsOnly(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(ObjectsOnly(entries))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(ObjectsOnly(data))
    }
}

/// The visitor of a struct, which takes nothing but an object.
struct Object<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for Object<V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(ObjectsOnly(entries))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for ObjectsOnly<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(ObjectsOnly(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(ObjectsOnly(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(ObjectsOnly(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;
    type Variant = ObjectsOnly<A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (name, content) = self.0.variant_seed(seed)?;
        Ok((name, ObjectsOnly(content)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for ObjectsOnly<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.0.newtype_variant_seed(ObjectsOnly(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(length, ObjectsOnly(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, Object(visitor))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;
    use kat_types::api::NamespaceRequest;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        size: Option<u8>,
        word: String,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Choice {
        Nothing,
        One(Inner),
        Several { inner: Inner },
        Pair(u8, u8),
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Outer {
        inner: Option<Inner>,
        list: Vec<Inner>,
        by_number: BTreeMap<u16, Inner>,
        choices: Vec<Choice>,
        bytes: Vec<u8>,
        pair: (u8, String),
        any: Value,
        share: f64,
    }

    fn refused<T: DeserializeOwned + fmt::Debug>(value: &Value) -> String {
        let parsed: Result<T, _> = parse_json(value.to_string().as_bytes());
        parsed.expect_err(&value.to_string()).to_string()
    }

    #[test]
    fn every_form_of_a_value_is_read_as_without_the_rule() {
        let value = json!({
            "inner": {"size": 7, "word": "a\nb"},
            "list": [{}, {"word": "c"}],
            "by_number": {"80": {"size": null}},
            "choices": ["Nothing", {"One": {"size": 1}}, {"Several": {"inner": {}}}, {"Pair": [1, 2]}],
            "bytes": [1, 2],
            "pair": [3, "d"],
            "any": {"deep": [1, {"e": []}]},
            "share": 0.5,
        });
        let text = value.to_string();
        let read: Outer = parse_json(text.as_bytes()).unwrap();
        let plain: Outer = serde_json::from_str(&text).unwrap();
        assert_eq!(read, plain);
        assert_ne!(read, Outer::default());
        let whole: Value = parse_json(text.as_bytes()).unwrap();
        assert_eq!(whole, value);
    }

    #[test]
    fn a_list_is_no_object_wherever_it_stands_and_its_place_is_named() {
        let found = "invalid type: sequence, expected an object at line 1 column ";
        for (value, place) in [
            (json!([]), ""),
            (json!({"inner": []}), "inner: "),
            (json!({"inner": [7, "a"]}), "inner: "),
            (json!({"list": [{}, []]}), "list[1]: "),
            (json!({"by_number": {"80": []}}), "by_number.80: "),
            (json!({"choices": [{"One": []}]}), "choices[0].One: "),
            (
                json!({"choices": [{"Several": []}]}),
                "choices[0].Several: ",
            ),
            (
                json!({"choices": [{"Several": {"inner": []}}]}),
                "choices[0].Several.inner: ",
            ),
        ] {
            let error = refused::<Outer>(&value);
            assert!(error.starts_with(&format!("{place}{found}")), "{error}");
        }
        // The control: serde itself reads the default.
        let read: Outer = serde_json::from_str(r#"{"inner": []}"#).unwrap();
        assert_eq!(read.inner, Some(Inner::default()));
    }

    #[test]
    fn what_opens_a_namespace_has_to_be_written() {
        let spec = |spec: Value| json!({"metadata": {"name": "shop"}, "spec": spec});
        for value in [json!([]), json!(["Shared"]), json!([null, null, null])] {
            let error = refused::<NamespaceRequest>(&spec(value));
            assert!(
                error.starts_with("spec: invalid type: sequence, "),
                "{error}"
            );
        }
        let error = refused::<NamespaceRequest>(&spec(json!({"isolated": true})));
        assert!(error.contains("unknown field `isolated`"), "{error}");
        let error = refused::<NamespaceRequest>(&spec(json!({"allowNamespaces": "web"})));
        assert!(error.starts_with("spec.allowNamespaces: "), "{error}");
        let error = refused::<NamespaceRequest>(&json!({"metadata": ["shop", {}]}));
        assert!(error.starts_with("metadata: "), "{error}");
    }

    #[test]
    fn what_follows_the_value_and_depth_without_end_are_refused() {
        let error = parse_json::<Inner>(b"{} {}").unwrap_err().to_string();
        assert!(error.contains("trailing characters"), "{error}");
        let error = parse_json::<Inner>(b"{\"word\": ").unwrap_err();
        assert!(error.to_string().contains("EOF"), "{error}");
        let error = parse_json::<Inner>(b"").unwrap_err().to_string();
        assert!(error.starts_with("EOF"), "{error}");
        let deep = "[".repeat(10_000);
        let error = parse_json::<Value>(deep.as_bytes()).unwrap_err();
        assert!(error.to_string().contains("recursion limit"), "{error}");
        let error = parse_json::<Inner>(br#"{"size": 1, "size": 2}"#).unwrap_err();
        assert!(error.to_string().contains("duplicate field"), "{error}");
    }
}

//! Output formats.

use std::ffi::OsStr;

use clap::{
    ValueEnum,
    builder::{EnumValueParser, PossibleValue, TypedValueParser},
    error::{ContextKind, ContextValue},
};

use super::super::output::jsonpath::Template;

/// How items are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Columns
    Table,
    /// More columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// KIND/NAME, one per line
    Name,
}

/// The output format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputOption {
    pub(crate) format: OutputFormat,
    /// The part of the JSON to print; `None` for all.
    pub(crate) template: Option<Template>,
}

/// Parses a [`OutputFormat`] or `jsonpath=TEMPLATE`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputParser;

impl TypedValueParser for OutputParser {
    type Value = OutputOption;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<OutputOption, clap::Error> {
        if let Some(template) = value.to_str().and_then(|text| text.strip_prefix(JSONPATH)) {
            let template = template.to_owned();
            let parse = move |_: &str| Template::parse(&template);
            let template = parse.parse_ref(command, argument, value)?;
            return Ok(OutputOption {
                format: OutputFormat::Json,
                template: Some(template),
            });
        }
        let format = EnumValueParser::<OutputFormat>::new().parse_ref(command, argument, value);
        let format = format.map_err(|mut error| {
            // The parser of the formats does not know of the template.
            let all = self.possible_values().into_iter().flatten();
            let names = all.map(|one| one.get_name().to_owned()).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names));
            error
        })?;
        Ok(OutputOption {
            format,
            template: None,
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let formats = OutputFormat::value_variants().iter();
        let path = PossibleValue::new(JSONPATH).help("Parts of the JSON that a template selects");
        Some(Box::new(
            formats
                .filter_map(ValueEnum::to_possible_value)
                .chain([path]),
        ))
    }
}

const JSONPATH: &str = "jsonpath=";

/// How a new token is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenFormat {
    /// JSON
    Json,
    /// YAML
    Yaml,
    /// A connection file for --connection, KAT_CONNECTION and `katcall context add`
    Connection,
}

/// How one document is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DocumentFormat {
    /// JSON
    Json,
    /// YAML
    Yaml,
}

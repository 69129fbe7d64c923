//! Documents that are made from the types, for editors and for who calls the API. They are kept in `contrib/schema` and
//! `contrib/proto`, where tests compare them; `UPDATE_SCHEMA=1` writes them anew.

mod kat_files;
pub mod openapi;
pub mod proto;

pub use kat_files::json_schema;

//! Lists of assignments, as they are stored and read.

mod assignment_lists;
mod newer_schema;
mod stored_files;

use super::*;

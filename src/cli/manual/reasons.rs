//! kat-reasons(7), from the explanations of `katcall explain`.

use super::{Block, ManualPage, Section};
use crate::commands::reading::explain;

pub(super) fn page() -> ManualPage {
    let mut blocks = vec![
        Block::heading("Description"),
        Block::paragraph(
            "Each state in which an object of KAT can wait has a reason: one word in the status or the conditions of \
             the object, in its events, and in the output of `katcall status`, `katcall describe` and `katcall why`. \
             `katcall explain REASON` prints an entry of this page; `katcall why` prints it for an object, with the \
             names filled in.",
        ),
        Block::paragraph("Words in capitals such as `NAMESPACE` and `NODE` stand for names."),
        Block::heading("Reasons"),
    ];
    blocks.extend(explain::all_reasons().into_iter().map(|(word, meanings)| {
        let mut paragraphs = Vec::new();
        for meaning in meanings {
            paragraphs.push(format!("Of {}: {}.", meaning.owner, meaning.means));
            if !meaning.next.is_empty() {
                paragraphs.push(format!("Try: {}", meaning.next));
            }
        }
        Block::Entry {
            term: word.to_owned(),
            paragraphs,
        }
    }));
    blocks.push(Block::heading("See also"));
    blocks.push(Block::paragraph(
        "katcall(1), katcall-why(1), katcall-explain(1), katcall-status(1)",
    ));
    ManualPage {
        name: "kat-reasons".to_owned(),
        section: Section::Overviews,
        about: "reasons of states and events of KAT".to_owned(),
        blocks,
    }
}

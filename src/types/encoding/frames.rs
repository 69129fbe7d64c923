//! Frames of a session (`exec`, `port-forward`): small messages both ways, in the two bodies of one
//! HTTP request, so that each direction ends and blocks independently.
//!
//! A frame is a kind of one byte, a length of four bytes (big-endian), and that many bytes, at most
//! [`MOST`]. Neither side trusts the other: a frame that is too long, or whose kind does not belong
//! to this direction, ends the session.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::{api::ErrorBody, encoding::json};

/// Replaces an error that can't be encoded as JSON.
const NOT_SAID: &[u8] =
    br#"{"error":"Internal","message":"why it failed cannot be written as JSON"}"#;
/// Maximum bytes of a frame's content.
pub const MOST: usize = 32 * 1024;
/// Bytes before the content.
const HEAD: usize = 5;

/// Rows and columns of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// A signal that the caller received and forwards to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PassedSignal {
    /// SIGHUP.
    Hangup = 1,
    /// SIGINT.
    Interrupt = 2,
    /// SIGQUIT.
    Quit = 3,
    /// SIGTERM.
    Terminate = 15,
}

impl PassedSignal {
    /// All forwarded signals.
    pub const ALL: [Self; 4] = [Self::Hangup, Self::Interrupt, Self::Quit, Self::Terminate];

    /// The signal's number (signal(7)).
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The signal's name without `SIG`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hangup => "HUP",
            Self::Interrupt => "INT",
            Self::Quit => "QUIT",
            Self::Terminate => "TERM",
        }
    }
}

/// A frame from the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputFrame {
    /// Bytes for the program, or for the connection.
    Data(Bytes),
    /// The end of the input.
    End,
    /// The new size of the caller's terminal.
    Resize(TerminalSize),
    /// A signal that the caller received.
    Signal(PassedSignal),
}

/// A frame to the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputFrame {
    /// From standard output, the terminal, or the connection.
    Data(Bytes),
    /// From standard error.
    Error(Bytes),
    /// The last frame: the program's exit code, or 0 at a connection's end.
    Exit(u8),
    /// The last frame of a session that failed, with the error.
    Failed(Box<ErrorBody>),
}

/// Why a session's bytes can't be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A frame with more content than [`MOST`].
    #[error("a frame of {0} bytes is longer than {MOST}")]
    TooLong(usize),
    /// A kind that does not belong to this direction, or a content that does not belong to its
    /// kind.
    #[error("a frame of kind {0} is not understood")]
    Unknown(u8),
    /// The body ended inside a frame.
    #[error("the session broke off inside a frame")]
    CutOff,
}

/// Frames of one direction.
pub trait SessionFrame: Sized {
    /// The kind and the content.
    fn parts(&self) -> (u8, Bytes);

    /// Decodes a kind and a content as given by [`SessionFrame::parts`].
    ///
    /// # Errors
    /// [`FrameError::Unknown`].
    fn of(kind: u8, content: Bytes) -> Result<Self, FrameError>;

    /// The bytes on the wire. Data longer than [`MOST`] becomes several frames.
    fn encode(&self) -> Bytes {
        let (kind, content) = self.parts();
        let mut wire = BytesMut::with_capacity(content.len() + HEAD);
        let mut put = |part: &[u8]| {
            wire.put_u8(kind);
            wire.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
            wire.put_slice(part);
        };
        if content.is_empty() {
            put(&[]);
        }
        content.chunks(MOST).for_each(put);
        wire.freeze()
    }
}

const DATA: u8 = 1;
const END: u8 = 2;
const RESIZE: u8 = 3;
const ERROR: u8 = 4;
const EXIT: u8 = 5;
const FAILED: u8 = 6;
const SIGNAL: u8 = 7;

impl SessionFrame for InputFrame {
    fn parts(&self) -> (u8, Bytes) {
        match self {
            Self::Data(data) => (DATA, data.clone()),
            Self::End => (END, Bytes::new()),
            Self::Resize(size) => {
                let mut content = BytesMut::with_capacity(4);
                content.put_u16(size.rows);
                content.put_u16(size.columns);
                (RESIZE, content.freeze())
            }
            Self::Signal(signal) => (SIGNAL, Bytes::copy_from_slice(&[signal.number()])),
        }
    }

    fn of(kind: u8, mut content: Bytes) -> Result<Self, FrameError> {
        match (kind, content.len()) {
            (DATA, _) => Ok(Self::Data(content)),
            (END, 0) => Ok(Self::End),
            (RESIZE, 4) => Ok(Self::Resize(TerminalSize {
                rows: content.get_u16(),
                columns: content.get_u16(),
            })),
            (SIGNAL, 1) => {
                let number = content.get_u8();
                let mut all = PassedSignal::ALL.into_iter();
                let signal = all.find(|signal| signal.number() == number);
                signal.map(Self::Signal).ok_or(FrameError::Unknown(kind))
            }
            _ => Err(FrameError::Unknown(kind)),
        }
    }
}

impl SessionFrame for OutputFrame {
    fn parts(&self) -> (u8, Bytes) {
        match self {
            Self::Data(data) => (DATA, data.clone()),
            Self::Error(data) => (ERROR, data.clone()),
            Self::Exit(code) => (EXIT, Bytes::copy_from_slice(&[*code])),
            Self::Failed(body) => {
                let mut body = body.as_ref().clone();
                // Shortened texts, which fit into a frame.
                body.details.clear();
                body.error = body.error.chars().take(MOST / 24).collect();
                body.message = body.message.chars().take(MOST / 24).collect();
                body.hint = body.hint.map(|hint| hint.chars().take(MOST / 24).collect());
                let content = json::bytes("the refusal", &body);
                let content = content.unwrap_or_else(|_| NOT_SAID.to_vec());
                (FAILED, content.into())
            }
        }
    }

    fn of(kind: u8, content: Bytes) -> Result<Self, FrameError> {
        match (kind, content.as_ref()) {
            (DATA, _) => Ok(Self::Data(content)),
            (ERROR, _) => Ok(Self::Error(content)),
            (EXIT, [code]) => Ok(Self::Exit(*code)),
            (FAILED, text) => serde_json::from_slice(text)
                .map(Self::Failed)
                .map_err(|_| FrameError::Unknown(kind)),
            _ => Err(FrameError::Unknown(kind)),
        }
    }
}

/// Splits arriving bytes into frames. It holds at most one frame and one piece.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: BytesMut,
}

impl Frames {
    /// Adds a piece of arriving bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next complete frame; `None` until more bytes are pushed.
    ///
    /// # Errors
    /// [`FrameError`]; nothing can be read after it.
    pub fn take<T: SessionFrame>(&mut self) -> Result<Option<T>, FrameError> {
        let mut head = self.buffer.as_ref();
        if head.len() < HEAD {
            return Ok(None);
        }
        let kind = head.get_u8();
        let length = usize::try_from(head.get_u32()).unwrap_or(usize::MAX);
        if length > MOST {
            return Err(FrameError::TooLong(length));
        }
        if head.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        T::of(kind, self.buffer.split_to(length).freeze()).map(Some)
    }

    /// Checks the end of the body.
    ///
    /// # Errors
    /// [`FrameError::CutOff`] if the body ends inside a frame.
    pub fn end(&self) -> Result<(), FrameError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(FrameError::CutOff)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<T: SessionFrame>(wire: &[u8], cut: usize) -> Result<Vec<T>, FrameError> {
        let mut frames = Frames::default();
        let mut found = Vec::new();
        for piece in wire.chunks(cut.max(1)) {
            frames.push(piece);
            while let Some(frame) = frames.take()? {
                found.push(frame);
            }
        }
        frames.end()?;
        Ok(found)
    }

    #[test]
    fn long_data_goes_in_several_frames_and_comes_out_whole() {
        let data = Bytes::from(vec![7; MOST * 2 + 5]);
        let wire = OutputFrame::Data(data.clone()).encode();
        let frames: Vec<OutputFrame> = read(&wire, 1000).unwrap();
        assert_eq!(frames.len(), 3);
        let whole: Vec<u8> = frames
            .into_iter()
            .flat_map(|frame| match frame {
                OutputFrame::Data(part) => part,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(whole, data);
    }

    #[test]
    fn frames_that_do_not_belong_here_are_refused() {
        let exit = OutputFrame::Exit(3).encode();
        assert_eq!(read::<InputFrame>(&exit, 9), Err(FrameError::Unknown(EXIT)));
        let resize = InputFrame::Resize(TerminalSize {
            rows: 1,
            columns: 2,
        })
        .encode();
        assert_eq!(
            read::<OutputFrame>(&resize, 9),
            Err(FrameError::Unknown(RESIZE))
        );
        assert_eq!(read::<InputFrame>(&resize[..7], 9), Err(FrameError::CutOff));
        // A length is refused before the content is read.
        let long = [DATA, 0, 0, 0x80, 1];
        assert_eq!(
            read::<InputFrame>(&long, 9),
            Err(FrameError::TooLong(MOST + 1))
        );
        assert_eq!(
            read::<InputFrame>(&[RESIZE, 0, 0, 0, 1, 0], 9),
            Err(FrameError::Unknown(RESIZE))
        );
        // Only some signals are passed on.
        assert_eq!(
            read::<InputFrame>(&[SIGNAL, 0, 0, 0, 1, 9], 9),
            Err(FrameError::Unknown(SIGNAL))
        );
    }

    #[test]
    fn an_error_fits_into_one_frame() {
        // Characters that take the most bytes as they are, and when escaped.
        for filler in ["\u{1F600}", "\u{1}"] {
            let long = filler.repeat(MOST);
            for word in ["Unavailable", &long] {
                let body = ErrorBody {
                    error: word.to_owned(),
                    message: long.clone(),
                    hint: Some(long.clone()),
                    ..ErrorBody::default()
                };
                let wire = OutputFrame::Failed(Box::new(body)).encode();
                let found: Vec<OutputFrame> = read(&wire, 100).unwrap();
                let [OutputFrame::Failed(body)] = found.as_slice() else {
                    panic!("{found:?}");
                };
                assert!(word.starts_with(&body.error));
            }
        }
    }

    fn any_input() -> impl Strategy<Value = InputFrame> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..50)
                .prop_map(|data| InputFrame::Data(data.into())),
            Just(InputFrame::End),
            prop::sample::select(&PassedSignal::ALL[..]).prop_map(InputFrame::Signal),
            (any::<u16>(), any::<u16>())
                .prop_map(|(rows, columns)| InputFrame::Resize(TerminalSize { rows, columns })),
        ]
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_again_however_it_is_cut(
            inputs in prop::collection::vec(any_input(), 0..20),
            cut in 1_usize..40,
        ) {
            let wire: Vec<u8> = inputs.iter().flat_map(|input| input.encode()).collect();
            prop_assert_eq!(read::<InputFrame>(&wire, cut).unwrap(), inputs);
        }

        #[test]
        fn any_bytes_end_without_a_fault(wire: Vec<u8>, cut in 1_usize..40) {
            let _ = read::<InputFrame>(&wire, cut);
            let _ = read::<OutputFrame>(&wire, cut);
        }
    }
}

//! Frames of the state stream, over which a machine without the store reads the keys that it may
//! see (`store/visibility.rs`).
//!
//! A frame has the form of a session's frame (`frames.rs`). A body that is longer than
//! [`MOST`] is cut: each part but the last is a frame of kind 0, and the last part has the frame's
//! own kind. All changes between two [`StateFrame::Commit`] belong to one revision. A reader skips
//! kinds that it does not know.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::{
    encoding::{
        frames::{FrameError, Frames, MOST, SessionFrame},
        json,
    },
    store::transaction::KeyValue,
};

/// Content type of the stream.
pub const STATE_CONTENT_TYPE: &str = "application/x-kat-state";
/// Largest body of a frame in bytes: a key's value with the key, which etcd's largest request
/// bounds.
pub const MOST_BODY: usize = 2 << 20;
/// Largest list of one machine in bytes, keys and values together.
pub const MOST_LIST: usize = 64 << 20;
/// Version of the stream that this program speaks: which objects a list has. A machine that has a list
/// of a lower version asks for a whole one when it opens its next stream.
///
/// 2: addresses of instances, and which namespaces may reach namespaces and workloads.
pub const STATE_SCHEMA: u32 = 2;

const PART: u8 = 0;
const BEGIN: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;
const COMMIT: u8 = 4;
const BEAT: u8 = 5;
const END: u8 = 6;

/// The start of a whole list: everything up to the next commit replaces what was known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateBegin {
    /// Epoch of the store: the number of times it was created anew.
    pub epoch: u64,
    /// Revision of the list.
    pub revision: i64,
    /// Version of the stream, [`STATE_SCHEMA`].
    pub schema: u32,
    /// Number of keys in the list.
    pub keys: usize,
}

/// A sign of life: everything up to `revision` was sent, and the store had nothing newer
/// `quorum_age_ms` milliseconds ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateBeat {
    /// Revision of the store that the sent frames show.
    pub revision: i64,
    /// Milliseconds since the server last read this revision or a lower one from a quorum.
    pub quorum_age_ms: u64,
    /// Milliseconds from the opening of the stream to this beat, by the server's clock: by it and
    /// the time of its own request the reader bounds how long the beat was on its way.
    pub open_for_ms: u64,
}

/// Why a server ends a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StateEndReason {
    /// The server's copy of the store is behind the reader or the quorum.
    Behind,
    /// The server reaches no quorum of the store.
    NoQuorum,
    /// The same machine has opened another stream.
    Replaced,
    /// Too many machines read their whole list at once.
    Busy,
    /// The machine's list is larger than [`MOST_LIST`].
    TooLarge,
    /// The server stops.
    Stopping,
    /// A reason of a later version.
    #[serde(other)]
    Unknown,
}

/// The last frame of a stream that the server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateEnd {
    /// Why.
    pub reason: StateEndReason,
    /// Milliseconds for which the reader should not ask this server again.
    #[serde(default)]
    pub retry_after_ms: u64,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateFrame {
    /// A whole list follows.
    Begin(StateBegin),
    /// A key was written.
    Put(KeyValue),
    /// A key was deleted.
    Delete(String),
    /// The end of a list, or of the changes of this revision.
    Commit(i64),
    /// A sign of life.
    Beat(StateBeat),
    /// The end of the stream.
    End(StateEnd),
    /// A part of a long frame has arrived; the frame comes with its last part.
    Part,
}

/// Revision of the store within one of its epochs. A reader never goes back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatePosition {
    /// Epoch of the store.
    pub epoch: u64,
    /// Revision within the epoch.
    pub revision: i64,
}

impl StateFrame {
    /// The bytes on the wire.
    ///
    /// # Errors
    /// A body that can't be written as JSON.
    pub fn encode(&self) -> Result<Bytes, json::NotEncoded> {
        let (kind, body) = match self {
            Self::Begin(begin) => (BEGIN, json::bytes("begin", begin)?),
            Self::Put(item) => (PUT, put_body(item)),
            Self::Delete(key) => (DELETE, key.clone().into_bytes()),
            Self::Commit(revision) => (COMMIT, revision.to_be_bytes().to_vec()),
            Self::Beat(beat) => (BEAT, json::bytes("beat", beat)?),
            Self::End(end) => (END, json::bytes("end", end)?),
            Self::Part => (PART, Vec::new()),
        };
        let mut wire = BytesMut::with_capacity(body.len() + 16);
        let mut rest = body.as_slice();
        loop {
            let (part, after) = rest.split_at(rest.len().min(MOST));
            wire.put_u8(if after.is_empty() { kind } else { PART });
            wire.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
            wire.put_slice(part);
            rest = after;
            if rest.is_empty() {
                return Ok(wire.freeze());
            }
        }
    }

    /// Decodes a kind and its whole body; `None` for a kind of a later version.
    fn decode(kind: u8, body: Bytes) -> Result<Option<Self>, FrameError> {
        let wrong = |_| FrameError::Unknown(kind);
        Ok(Some(match kind {
            BEGIN => {
                Self::Begin(serde_json::from_slice(&body).map_err(|_| FrameError::Unknown(kind))?)
            }
            PUT => Self::Put(put_of(body)?),
            DELETE => Self::Delete(text(&body, kind)?),
            COMMIT => Self::Commit(i64::from_be_bytes(body.as_ref().try_into().map_err(wrong)?)),
            BEAT => {
                Self::Beat(serde_json::from_slice(&body).map_err(|_| FrameError::Unknown(kind))?)
            }
            END => Self::End(serde_json::from_slice(&body).map_err(|_| FrameError::Unknown(kind))?),
            _ => return Ok(None),
        }))
    }
}

/// Both revisions, the length of the key in two bytes, the key and the value.
fn put_body(item: &KeyValue) -> Vec<u8> {
    let mut body = BytesMut::with_capacity(18 + item.key.len() + item.value.len());
    body.put_i64(item.mod_revision);
    body.put_i64(item.create_revision);
    body.put_u16(u16::try_from(item.key.len()).unwrap_or(u16::MAX));
    body.put_slice(item.key.as_bytes());
    body.put_slice(&item.value);
    body.to_vec()
}

fn put_of(mut body: Bytes) -> Result<KeyValue, FrameError> {
    let wrong = FrameError::Unknown(PUT);
    if body.len() < 18 {
        return Err(wrong);
    }
    let (mod_revision, create_revision) = (body.get_i64(), body.get_i64());
    let length = usize::from(body.get_u16());
    if body.len() < length {
        return Err(wrong);
    }
    Ok(KeyValue {
        key: text(&body.split_to(length), PUT)?,
        value: body.to_vec(),
        mod_revision,
        create_revision,
    })
}

fn text(bytes: &[u8], kind: u8) -> Result<String, FrameError> {
    let text = std::str::from_utf8(bytes).map_err(|_| FrameError::Unknown(kind))?;
    Ok(text.to_owned())
}

/// A frame before its parts are put together.
struct RawFrame(u8, Bytes);

impl SessionFrame for RawFrame {
    fn parts(&self) -> (u8, Bytes) {
        (self.0, self.1.clone())
    }

    fn of(kind: u8, content: Bytes) -> Result<Self, FrameError> {
        Ok(Self(kind, content))
    }
}

/// Splits arriving bytes into frames. It holds at most [`MOST_BODY`] bytes of one frame and one
/// piece.
#[derive(Debug, Default)]
pub struct StateFrameDecoder {
    frames: Frames,
    body: BytesMut,
}

impl StateFrameDecoder {
    /// Adds a piece of arriving bytes.
    pub fn push(&mut self, piece: &[u8]) {
        self.frames.push(piece);
    }

    /// The next complete frame of a known kind, or that a part of one has arrived; `None` until more
    /// bytes are pushed.
    ///
    /// # Errors
    /// [`FrameError`]; nothing can be read after it.
    pub fn take(&mut self) -> Result<Option<StateFrame>, FrameError> {
        while let Some(RawFrame(kind, part)) = self.frames.take()? {
            let length = self.body.len() + part.len();
            if length > MOST_BODY {
                return Err(FrameError::TooLong(length));
            }
            if kind == PART {
                self.body.extend_from_slice(&part);
                return Ok(Some(StateFrame::Part));
            }
            let body = if self.body.is_empty() {
                part
            } else {
                self.body.extend_from_slice(&part);
                self.body.split().freeze()
            };
            if let Some(frame) = StateFrame::decode(kind, body)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(wire: &[u8], cut: usize) -> Result<Vec<StateFrame>, FrameError> {
        let mut decoder = StateFrameDecoder::default();
        let mut found = Vec::new();
        for piece in wire.chunks(cut.max(1)) {
            decoder.push(piece);
            while let Some(frame) = decoder.take()? {
                found.push(frame);
            }
        }
        Ok(found)
    }

    fn item(key: &str, value: Vec<u8>) -> KeyValue {
        KeyValue {
            key: key.to_owned(),
            value,
            mod_revision: 7,
            create_revision: 3,
        }
    }

    #[test]
    fn a_value_longer_than_a_frame_arrives_whole() {
        let put = StateFrame::Put(item("/kat/dns/long", vec![5; MOST * 3 + 1]));
        let wire = put.encode().unwrap();
        let mut found = read(&wire, 1000).unwrap();
        assert_eq!(found.pop(), Some(put));
        // Each part of it tells that the frame is on its way.
        assert_eq!(found, vec![StateFrame::Part; 3]);
    }

    #[test]
    fn a_body_without_an_end_is_refused() {
        let part = [&[PART][..], &(MOST as u32).to_be_bytes(), &vec![0; MOST]].concat();
        let endless: Vec<u8> = part.repeat(MOST_BODY / MOST + 1);
        let error = read(&endless, MOST).unwrap_err();
        assert!(matches!(error, FrameError::TooLong(_)), "{error}");
    }

    #[test]
    fn frames_of_a_later_version_are_skipped() {
        let commit = StateFrame::Commit(9);
        let mut wire = vec![99, 0, 0, 0, 2, 1, 2];
        wire.extend_from_slice(&commit.encode().unwrap());
        let later = br#"{"epoch":1,"revision":2,"schema":9,"keys":0,"mood":"fine"}"#;
        wire.extend_from_slice(&[BEGIN, 0, 0, 0, u8::try_from(later.len()).unwrap()]);
        wire.extend_from_slice(later);
        let begin = StateFrame::Begin(StateBegin {
            epoch: 1,
            revision: 2,
            schema: 9,
            keys: 0,
        });
        assert_eq!(read(&wire, 3).unwrap(), [commit, begin]);
        let end = br#"{"reason":"tired"}"#;
        let wire = [&[END, 0, 0, 0, u8::try_from(end.len()).unwrap()], &end[..]].concat();
        let unknown = StateEnd {
            reason: StateEndReason::Unknown,
            retry_after_ms: 0,
        };
        assert_eq!(read(&wire, 3).unwrap(), [StateFrame::End(unknown)]);
    }

    #[test]
    fn damaged_frames_are_refused() {
        for wire in [
            &[COMMIT, 0, 0, 0, 1, 0][..],
            &[PUT, 0, 0, 0, 1, 0],
            &[BEGIN, 0, 0, 0, 2, b'{', b'}'],
            &[DELETE, 0, 0, 0, 1, 0xff],
        ] {
            assert!(read(wire, 9).is_err(), "{wire:?}");
        }
        let mut short = vec![0; 18];
        short[17] = 200;
        let wire = [&[PUT, 0, 0, 0, 18][..], &short].concat();
        assert_eq!(read(&wire, 50), Err(FrameError::Unknown(PUT)));
    }

    fn any_frame() -> impl Strategy<Value = StateFrame> {
        prop_oneof![
            (any::<u64>(), any::<i64>(), any::<usize>()).prop_map(|(epoch, revision, keys)| {
                StateFrame::Begin(StateBegin {
                    epoch,
                    revision,
                    schema: STATE_SCHEMA,
                    keys,
                })
            }),
            ("[a-z/]{0,40}", prop::collection::vec(any::<u8>(), 0..200))
                .prop_map(|(key, value)| StateFrame::Put(item(&key, value))),
            "[a-z/]{0,40}".prop_map(StateFrame::Delete),
            any::<i64>().prop_map(StateFrame::Commit),
            (any::<i64>(), any::<u64>(), any::<u64>()).prop_map(
                |(revision, quorum_age_ms, open_for_ms)| {
                    StateFrame::Beat(StateBeat {
                        revision,
                        quorum_age_ms,
                        open_for_ms,
                    })
                }
            ),
            Just(StateFrame::End(StateEnd {
                reason: StateEndReason::Busy,
                retry_after_ms: 500,
            })),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_read_as_they_were_written_however_they_are_cut(
            frames in prop::collection::vec(any_frame(), 0..20),
            cut in 1_usize..40,
        ) {
            let wire: Vec<u8> = frames.iter().flat_map(|one| one.encode().unwrap()).collect();
            prop_assert_eq!(read(&wire, cut).unwrap(), frames);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(wire: Vec<u8>, cut in 1_usize..40) {
            let _ = read(&wire, cut);
        }
    }
}

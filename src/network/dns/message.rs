//! Decoding of questions and encoding of answers (RFC 1035, RFC 6891).

use hickory_proto::{
    op::{Message, MessageType, Metadata, OpCode, Query, ResponseCode, emit_message_parts},
    rr::Record,
    serialize::binary::BinEncoder,
};

/// Largest UDP payload of this server, in bytes: it passes every network unfragmented.
pub(super) const UDP_PAYLOAD: u16 = 1232;
/// Largest UDP payload of a client without EDNS, in bytes.
const PLAIN_PAYLOAD: u16 = 512;
/// Bytes of a header.
const HEADER: usize = 12;
/// Bytes of an OPT record without options.
const OPT: usize = 11;
/// Longest text of an extended error in bytes: it fits into the smallest answer.
const ERROR_TEXT: usize = 200;

/// A valid question.
#[derive(Debug, Clone, PartialEq)]
pub struct DnsRequest {
    pub metadata: Metadata,
    /// The question, with the client's upper and lower case.
    pub question: Query,
    /// The client's EDNS data, if it uses EDNS.
    pub edns: Option<ClientEdns>,
}

/// The content of a client's OPT record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientEdns {
    /// Largest UDP payload that the client accepts, in bytes.
    pub payload: u16,
    /// EDNS version; only 0 exists.
    pub version: u8,
    /// The client wants DNSSEC records.
    pub dnssec_ok: bool,
}

/// Why a packet gets no answer, or only an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The packet is shorter than a header; there is no answer to it.
    #[error("{0} bytes are not a DNS message")]
    Short(usize),
    /// The packet is an answer; answering answers would never end.
    #[error("the message is an answer")]
    Answer,
    /// The operation is not QUERY.
    #[error("operation {0} is not implemented")]
    Operation(u8),
    /// The counts of records are not those of a question.
    #[error("{questions} questions and {records} records are not one question")]
    Counts {
        questions: u16,
        /// Answer and authority records together.
        records: u32,
    },
    /// The packet is malformed after its header.
    #[error("malformed message: {0}")]
    Malformed(String),
}

/// Decodes a packet. Takes time and memory in proportion to its length, whatever its content is.
pub fn parse(packet: &[u8]) -> Result<DnsRequest, ParseError> {
    let Some((header, _)) = packet.split_first_chunk::<HEADER>() else {
        return Err(ParseError::Short(packet.len()));
    };
    let [_, _, flags, _, q0, q1, a0, a1, n0, n1, _, _] = *header;
    if flags & 0x80 != 0 {
        return Err(ParseError::Answer);
    }
    let operation = (flags >> 3) & 0x0f;
    if operation != u8::from(OpCode::Query) {
        return Err(ParseError::Operation(operation));
    }
    let questions = u16::from_be_bytes([q0, q1]);
    let records = u32::from(u16::from_be_bytes([a0, a1])) + u32::from(u16::from_be_bytes([n0, n1]));
    if questions != 1 || records != 0 {
        return Err(ParseError::Counts { questions, records });
    }
    let message =
        Message::from_vec(packet).map_err(|error| ParseError::Malformed(error.to_string()))?;
    let edns = message.edns.as_ref().map(|edns| ClientEdns {
        payload: edns.max_payload(),
        version: edns.version(),
        dnssec_ok: edns.flags().dnssec_ok,
    });
    let metadata = message.metadata;
    let question = message.queries.into_iter().next();
    let question = question.ok_or(ParseError::Counts {
        questions: 0,
        records,
    })?;
    Ok(DnsRequest {
        metadata,
        question,
        edns,
    })
}

/// The reply to a packet that [`parse`] rejected: a bare header, or `None`.
pub(super) fn refusal(packet: &[u8], error: &ParseError) -> Option<Vec<u8>> {
    let code = match error {
        ParseError::Short(_) | ParseError::Answer => return None,
        ParseError::Operation(_) => ResponseCode::NotImp,
        ParseError::Counts { .. } | ParseError::Malformed(_) => ResponseCode::FormErr,
    };
    let [id0, id1, flags, ..] = *packet.first_chunk::<HEADER>()?;
    // Operation and "recursion desired" are copied from the question.
    let mut reply = vec![id0, id1, 0x80 | (flags & 0x79), code.low()];
    reply.resize(HEADER, 0);
    Some(reply)
}

/// An answer before it is encoded.
#[derive(Debug, Clone)]
pub(super) struct DnsReply {
    pub(super) metadata: Metadata,
    pub(super) question: Query,
    pub(super) answers: Vec<Record>,
    pub(super) authorities: Vec<Record>,
    pub(super) additionals: Vec<Record>,
    edns: Option<ClientEdns>,
    extended_code: u8,
    /// Code and text of RFC 8914.
    extended_error: Option<(u16, String)>,
}

impl DnsReply {
    /// An answer with no records.
    pub(super) fn new(request: &DnsRequest, code: ResponseCode) -> Self {
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.message_type = MessageType::Response;
        metadata.recursion_available = true;
        metadata.response_code = ResponseCode::from_low(code.low());
        Self {
            metadata,
            question: request.question.clone(),
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            edns: request.edns,
            extended_code: code.high(),
            extended_error: None,
        }
    }

    /// SERVFAIL with an extended error text ("network error", RFC 8914, 4.24).
    pub(super) fn failure(request: &DnsRequest, reason: &str) -> Self {
        let mut reply = Self::new(request, ResponseCode::ServFail);
        let mut text = reason.to_owned();
        while text.len() > ERROR_TEXT {
            text.pop();
        }
        reply.extended_error = Some((23, text));
        reply
    }

    /// Encodes the answer for UDP; records that do not fit are left out, and the answer is marked
    /// as truncated.
    pub(super) fn to_udp(&self) -> Vec<u8> {
        let payload = self.edns.map_or(PLAIN_PAYLOAD, |edns| {
            edns.payload.clamp(PLAIN_PAYLOAD, UDP_PAYLOAD)
        });
        self.encode(payload)
    }

    /// Encodes the answer for TCP, without the length before it.
    pub(super) fn to_tcp(&self) -> Vec<u8> {
        self.encode(u16::MAX)
    }

    /// Space is reserved for the OPT record, so that truncated answers have it, too.
    fn encode(&self, limit: u16) -> Vec<u8> {
        let opt = self.opt();
        let room = usize::from(limit).saturating_sub(opt.len());
        let mut packet = Vec::with_capacity(PLAIN_PAYLOAD.into());
        let mut encoder = BinEncoder::new(&mut packet);
        encoder.set_max_size(u16::try_from(room).unwrap_or(u16::MAX));
        let emitted = emit_message_parts(
            &self.metadata,
            &mut std::iter::once(&self.question),
            &mut self.answers.iter(),
            &mut self.authorities.iter(),
            &mut self.additionals.iter(),
            None,
            None,
            &mut encoder,
        );
        let Ok(header) = emitted else {
            return self.bare_failure();
        };
        // After a record that did not fit, the encoder resets its offset but leaves the record's
        // bytes in the buffer.
        let end = encoder.offset();
        packet.truncate(end);
        if !opt.is_empty() {
            let count = header.counts.additionals.saturating_add(1).to_be_bytes();
            for (place, byte) in packet.iter_mut().skip(10).zip(count) {
                *place = byte;
            }
            packet.extend_from_slice(&opt);
        }
        packet
    }

    fn opt(&self) -> Vec<u8> {
        let Some(edns) = self.edns else {
            return Vec::new();
        };
        let mut option = Vec::new();
        if let Some((code, text)) = &self.extended_error {
            let length = u16::try_from(text.len() + 2).unwrap_or(2);
            option.extend_from_slice(&15u16.to_be_bytes());
            option.extend_from_slice(&length.to_be_bytes());
            option.extend_from_slice(&code.to_be_bytes());
            option.extend_from_slice(text.as_bytes());
        }
        let mut opt = Vec::with_capacity(OPT + option.len());
        let [size0, size1] = UDP_PAYLOAD.to_be_bytes();
        let flags = if edns.dnssec_ok { 0x80 } else { 0 };
        opt.extend_from_slice(&[0, 0, 41, size0, size1, self.extended_code, 0, flags, 0]);
        opt.extend_from_slice(&u16::try_from(option.len()).unwrap_or(0).to_be_bytes());
        opt.extend_from_slice(&option);
        opt
    }

    /// The reply where encoding fails: a header with the id and SERVFAIL.
    fn bare_failure(&self) -> Vec<u8> {
        let [id0, id1] = self.metadata.id.to_be_bytes();
        let mut packet = vec![id0, id1, 0x80, ResponseCode::ServFail.low()];
        packet.resize(HEADER, 0);
        packet
    }
}

//! Reads any bytes as the answer of a name server, for the fuzz targets.

use hickory_proto::{
    op::{Message, OpCode},
    rr::{Name, RecordType},
};

use super::{
    alias, exchange, is_plain, name_of, query, servers, text_of, texts, tsig, word, zone_in,
};
use kat_plan::{DnsKey, TsigHash};

/// Name of the challenge, and its zone.
const NAME: &str = "_acme-challenge.shop.example";
const ZONE: &str = "shop.example";
/// Id of the question.
const ID: u16 = 0x4b41;
/// When the question is signed, in seconds since 1970.
const NOW: u64 = 1_700_000_000;
/// Bytes of a message's header.
const HEADER: usize = 12;
/// Longest name in text, whose odd bytes are escaped.
const LONGEST_NAME: usize = 1024;

/// A question: for the zone, for the record, for the zone's name servers, or an update.
fn question(kind: u8) -> Option<Message> {
    let name = |text: &str| name_of(text).ok();
    let mut asked = match kind % 4 {
        0 => query(&name(NAME)?, RecordType::SOA),
        1 => query(&name(NAME)?, RecordType::TXT),
        2 => query(&name(ZONE)?, RecordType::NS),
        _ => query(&name(ZONE)?, RecordType::SOA),
    };
    asked.metadata.id = ID;
    if kind % 4 == 3 {
        asked.metadata.op_code = OpCode::Update;
    }
    Some(asked)
}

/// The packet that the bytes stand for. With the highest bit of `kind` they are all but the id; otherwise
/// they are the response code, the numbers of records and the records.
fn packet(kind: u8, asked: &Message, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut packet = ID.to_be_bytes().to_vec();
    if kind & 0x80 != 0 {
        packet.extend(bytes);
        return Some(packet);
    }
    let ([code, answers, authorities, additionals], records) = bytes.split_first_chunk()?;
    let written = asked.to_vec().ok()?;
    // The operation and the flags of a response with authority.
    packet.push(*written.get(2)? | 0x84);
    packet.extend([*code, 0, 1, 0, *answers, 0, *authorities, 0, *additionals]);
    packet.extend(written.get(HEADER..)?);
    packet.extend(records);
    Some(packet)
}

/// Reads bytes as the answer to a signed question.
///
/// # Panics
/// If an answer is believed without the key, or if something is taken that it does not have.
pub fn read_dns_answer(kind: u8, bytes: &[u8]) {
    let Some(asked) = question(kind) else { return };
    let key = DnsKey {
        name: "kat".to_owned(),
        hash: TsigHash::Sha256,
        secret: b"secret that nobody guesses".to_vec(),
    };
    let sent = tsig::sign(asked.clone(), &key, NOW);
    assert!(sent.is_ok(), "a question cannot be signed");
    let (Ok(sent), Some(packet)) = (sent, packet(kind, &asked, bytes)) else {
        return;
    };
    if !exchange::is_meant(&packet, &asked) {
        return;
    }
    let Some(answer) = exchange::read(&packet, &asked) else {
        return;
    };
    assert_eq!(answer.bytes, packet);
    let found = tsig::check(&answer.bytes, &answer.message, &key, &sent.mac, NOW);
    assert!(found.is_err(), "a stranger is believed");
    let name = asked.queries.first().map(|query| query.name().clone());
    if let Some(name) = name {
        read_records(&answer.message, &name);
    }
}

/// What is read of an answer that is believed, or that was asked for without a signature.
fn read_records(message: &Message, name: &Name) {
    assert!(!word(message.metadata.response_code).is_empty());
    if let Some(zone) = zone_in(message, name) {
        assert!(zone.zone_of(name) && !zone.is_root(), "{zone} of {name}");
    }
    if let Some(target) = alias(&message.answers, name) {
        let text = text_of(&target);
        assert!(text.len() <= LONGEST_NAME, "{text}");
        // What is stored and asked for next is the same name.
        if is_plain(&text)
            && let Ok(again) = name_of(&text)
        {
            assert_eq!(again, target.to_lowercase());
        }
    }
    let found = texts(&message.answers, name);
    assert!(found.len() <= message.answers.len());
    let hosts = servers(&message.answers, name);
    assert!(hosts.len() <= message.answers.len());
    assert!(hosts.iter().all(|host| host.len() <= LONGEST_NAME));
}

//! Signatures of messages of DNS with a shared key (TSIG, RFC 8945). hickory-proto encodes the records;
//! the code of the message is made here, so that its features for DNSSEC stay out.

use aws_lc_rs::hmac;
use hickory_proto::{
    op::Message,
    rr::{
        Name, RData,
        rdata::{
            TSIG,
            tsig::{TsigAlgorithm, TsigError, make_tsig_record, message_tbs},
        },
    },
    serialize::binary::BinEncoder,
};

use kat_plan::{DnsKey, TsigHash};

/// How far two clocks may differ, in seconds.
const FUDGE: u16 = 300;
/// Bytes of a message's header, and where the number of its last section's records is.
const HEADER: usize = 12;
const ADDITIONALS: usize = 10;
/// Type of the record.
const TSIG_TYPE: [u8; 2] = [0, 250];

/// A message as it is sent.
pub(super) struct SignedMessage {
    pub(super) bytes: Vec<u8>,
    /// Its code, which the answer's code covers too.
    pub(super) mac: Vec<u8>,
}

/// What is wrong with the signature of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SignatureFault {
    /// There is none.
    Unsigned,
    /// The server does not know the key.
    UnknownKey,
    /// The server found another code: its key has another secret.
    OtherSecret,
    /// The clocks differ by so many seconds, if the server says it.
    Clocks(Option<u64>),
    /// It is not the server's, or of another message.
    Forged,
}

fn algorithm(hash: TsigHash) -> (hmac::Algorithm, TsigAlgorithm) {
    match hash {
        TsigHash::Sha256 => (hmac::HMAC_SHA256, TsigAlgorithm::HmacSha256),
        TsigHash::Sha384 => (hmac::HMAC_SHA384, TsigAlgorithm::HmacSha384),
        TsigHash::Sha512 => (hmac::HMAC_SHA512, TsigAlgorithm::HmacSha512),
    }
}

fn key_name(key: &DnsKey) -> Result<Name, String> {
    let name = Name::from_ascii(&key.name);
    let mut name = name.map_err(|error| format!("the name of the key: {error}"))?;
    name.set_fqdn(true);
    Ok(name)
}

/// Signs a message at `now`, in seconds since 1970.
pub(super) fn sign(mut message: Message, key: &DnsKey, now: u64) -> Result<SignedMessage, String> {
    let (hash, algorithm) = algorithm(key.hash);
    let name = key_name(key)?;
    let id = message.metadata.id;
    let unsigned = TSIG::new(algorithm, now, FUDGE, Vec::new(), id, None, Vec::new());
    let signed = message_tbs(&message, &unsigned, &name).map_err(|error| error.to_string())?;
    let mac = hmac::sign(&hmac::Key::new(hash, &key.secret), &signed);
    let mac = mac.as_ref().to_vec();
    let record = make_tsig_record(name, unsigned.set_mac(mac.clone()));
    message.additionals.push(record.into_record_of_rdata());
    let bytes = message.to_vec().map_err(|error| error.to_string())?;
    Ok(SignedMessage { bytes, mac })
}

/// Checks the signature of a message, which is the answer to one with the code `asked`.
pub(super) fn check(
    bytes: &[u8],
    message: &Message,
    key: &DnsKey,
    asked: &[u8],
    now: u64,
) -> Result<(), SignatureFault> {
    let Some((record, tsig)) = message
        .additionals
        .last()
        .and_then(|last| match &last.data {
            RData::TSIG(tsig) => Some((last, tsig)),
            _ => None,
        })
    else {
        return Err(SignatureFault::Unsigned);
    };
    // These two have no code (RFC 8945, 5.3.2).
    match tsig.error {
        Some(TsigError::BadKey) => return Err(SignatureFault::UnknownKey),
        Some(TsigError::BadSig) => return Err(SignatureFault::OtherSecret),
        _ => {}
    }
    let (hash, algorithm) = algorithm(key.hash);
    let name = key_name(key).map_err(|_| SignatureFault::Forged)?;
    if record.name != name || tsig.algorithm != algorithm {
        return Err(SignatureFault::Forged);
    }
    let signed = signed_part(bytes, tsig, &name, asked).ok_or(SignatureFault::Forged)?;
    let hash = hmac::Key::new(hash, &key.secret);
    hmac::verify(&hash, &signed, &tsig.mac).map_err(|_| SignatureFault::Forged)?;
    match tsig.error {
        Some(TsigError::BadTime) => {
            let there = <[u8; 6]>::try_from(&tsig.other[..]).ok();
            let there =
                there.map(|[a, b, c, d, e, f]| u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
            Err(SignatureFault::Clocks(
                there.map(|there| there.abs_diff(now)),
            ))
        }
        Some(_) => Err(SignatureFault::Forged),
        None if tsig.time.abs_diff(now) > FUDGE.into() => {
            Err(SignatureFault::Clocks(Some(tsig.time.abs_diff(now))))
        }
        None => Ok(()),
    }
}

/// What the code of an answer covers: the request's code, the message without its last record, and the
/// fields of that record.
fn signed_part(bytes: &[u8], tsig: &TSIG, name: &Name, asked: &[u8]) -> Option<Vec<u8>> {
    let end = last_record(bytes)?;
    let additionals = bytes.get(ADDITIONALS..HEADER)?;
    let additionals = u16::from_be_bytes(additionals.try_into().ok()?).checked_sub(1)?;
    let mut signed = Vec::with_capacity(bytes.len() + asked.len());
    signed.extend(u16::try_from(asked.len()).ok()?.to_be_bytes());
    signed.extend(asked);
    // A server that passes a message on has changed its id.
    signed.extend(tsig.oid.to_be_bytes());
    signed.extend(bytes.get(2..ADDITIONALS)?);
    signed.extend(additionals.to_be_bytes());
    signed.extend(bytes.get(HEADER..end)?);
    let mut fields = Vec::new();
    tsig.emit_tsig_for_mac(&mut BinEncoder::new(&mut fields), name)
        .ok()?;
    signed.extend(fields);
    Some(signed)
}

/// Where the last record of a message begins, if it is a signature and nothing follows it.
fn last_record(bytes: &[u8]) -> Option<usize> {
    let count = |at: usize| {
        let count = <[u8; 2]>::try_from(bytes.get(at..at + 2)?).ok()?;
        Some(usize::from(u16::from_be_bytes(count)))
    };
    let mut at = HEADER;
    for _ in 0..count(4)? {
        at = after_name(bytes, at)? + 4;
    }
    let records = count(6)? + count(8)? + count(ADDITIONALS)?;
    let mut last = None;
    for _ in 0..records {
        let head = after_name(bytes, at)?;
        last = Some((at, head));
        at = head + 10 + count(head + 8)?;
    }
    let (begin, head) = last?;
    let is_signature = bytes.get(head..head + 2)? == TSIG_TYPE;
    (is_signature && at == bytes.len()).then_some(begin)
}

/// Where a name ends that begins at `at`.
fn after_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = *bytes.get(at)?;
        match length {
            0 => return Some(at + 1),
            1..=63 => at += 1 + usize::from(length),
            192.. => return Some(at + 2),
            _ => return None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use hickory_proto::{
        op::{OpCode, Query, ResponseCode},
        rr::RecordType,
    };

    use super::*;

    pub(crate) fn key(name: &str, secret: &[u8]) -> DnsKey {
        DnsKey {
            name: name.to_owned(),
            hash: TsigHash::Sha256,
            secret: secret.to_vec(),
        }
    }

    /// A server's view of the code of a request.
    pub(crate) fn is_signed_by(bytes: &[u8], message: &Message, key: &DnsKey) -> Option<Vec<u8>> {
        let RData::TSIG(tsig) = &message.additionals.last()?.data else {
            return None;
        };
        let (hash, _) = algorithm(key.hash);
        let name = key_name(key).unwrap();
        let signed = signed_part(bytes, tsig, &name, &[]).unwrap();
        let hash = hmac::Key::new(hash, &key.secret);
        // A request covers no other code: not even the length of one.
        let valid = hmac::verify(&hash, &signed[2..], &tsig.mac);
        valid.ok().map(|()| tsig.mac.clone())
    }

    /// Signs an answer as a server does.
    pub(crate) fn answered(
        mut message: Message,
        key: &DnsKey,
        asked: &[u8],
        now: u64,
        error: Option<(TsigError, Vec<u8>)>,
    ) -> Vec<u8> {
        let (hash, algorithm) = algorithm(key.hash);
        let name = key_name(key).unwrap();
        let id = message.metadata.id;
        let (error, other) =
            error.map_or((None, Vec::new()), |(error, other)| (Some(error), other));
        let unsigned = TSIG::new(algorithm, now, FUDGE, Vec::new(), id, error, other);
        let mut signed = u16::try_from(asked.len()).unwrap().to_be_bytes().to_vec();
        signed.extend(asked);
        signed.extend(message_tbs(&message, &unsigned, &name).unwrap());
        let mac = match error {
            Some(TsigError::BadKey | TsigError::BadSig) => Vec::new(),
            _ => {
                let hash = hmac::Key::new(hash, &key.secret);
                hmac::sign(&hash, &signed).as_ref().to_vec()
            }
        };
        let record = make_tsig_record(name, unsigned.set_mac(mac));
        message.additionals.push(record.into_record_of_rdata());
        message.to_vec().unwrap()
    }

    fn question() -> Message {
        let mut message = Message::query();
        let name = Name::from_ascii("_acme-challenge.Example.org.").unwrap();
        message.add_query(Query::query(name, RecordType::TXT));
        message
    }

    #[test]
    fn every_hash_signs_what_the_other_side_checks() {
        for hash in [TsigHash::Sha256, TsigHash::Sha384, TsigHash::Sha512] {
            let key = DnsKey {
                hash,
                ..key("kat", b"secret")
            };
            let sent = sign(question(), &key, 1000).unwrap();
            let seen = Message::from_vec(&sent.bytes).unwrap();
            let mac = is_signed_by(&sent.bytes, &seen, &key).unwrap();
            assert_eq!(mac, sent.mac);
            let other = DnsKey {
                secret: b"other".to_vec(),
                ..key.clone()
            };
            assert_eq!(is_signed_by(&sent.bytes, &seen, &other), None);
        }
    }

    /// Made with Python's hmac and struct from RFC 8945, 4.3, so that both sides here cannot agree on
    /// the same mistake.
    #[test]
    fn the_code_is_that_of_the_rfc() {
        let mut message = Message::new(
            0x1234,
            hickory_proto::op::MessageType::Query,
            OpCode::Update,
        );
        let zone = Name::from_ascii("example.org.").unwrap();
        message.add_query(Query::query(zone, RecordType::SOA));
        let sent = sign(message, &key("Kat", b"0123456789abcdef"), 1_700_000_000).unwrap();
        assert_eq!(hex(&sent.mac), EXPECTED);
    }
    const EXPECTED: &str = "b0ed7ca2f358d0f60c0f47bcfbb4d8b82b5c198cb25898e53f5ecaa23c3ee436";

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn an_answer_is_believed_with_the_right_code_key_and_time_alone() {
        let key = key("kat", b"secret");
        let sent = sign(question(), &key, 1000).unwrap();
        let reply = || {
            let mut reply = question();
            reply.metadata.response_code = ResponseCode::NoError;
            reply
        };
        let found = |bytes: &[u8], asked: &[u8], now: u64| {
            let message = Message::from_vec(bytes).unwrap();
            check(bytes, &message, &key, asked, now)
        };
        let good = answered(reply(), &key, &sent.mac, 1000, None);
        assert_eq!(found(&good, &sent.mac, 1200), Ok(()));
        // Another request, a changed byte, a late answer, another key, and none.
        assert_eq!(found(&good, b"other", 1000), Err(SignatureFault::Forged));
        let mut changed = good.clone();
        changed[3] ^= 5;
        assert_eq!(
            found(&changed, &sent.mac, 1000),
            Err(SignatureFault::Forged)
        );
        let late = found(&good, &sent.mac, 1301);
        assert_eq!(late, Err(SignatureFault::Clocks(Some(301))));
        let other = super::tests::key("other", b"secret");
        let other = answered(reply(), &other, &sent.mac, 1000, None);
        assert_eq!(found(&other, &sent.mac, 1000), Err(SignatureFault::Forged));
        let plain = reply().to_vec().unwrap();
        assert_eq!(
            found(&plain, &sent.mac, 1000),
            Err(SignatureFault::Unsigned)
        );
        // Errors of the server.
        let bad = |error: TsigError, other: Vec<u8>| {
            let bytes = answered(reply(), &key, &sent.mac, 1000, Some((error, other)));
            found(&bytes, &sent.mac, 1000)
        };
        assert_eq!(
            bad(TsigError::BadKey, vec![]),
            Err(SignatureFault::UnknownKey)
        );
        assert_eq!(
            bad(TsigError::BadSig, vec![]),
            Err(SignatureFault::OtherSecret)
        );
        let time = vec![0, 0, 0, 0, 0x07, 0xd0];
        let clocks = bad(TsigError::BadTime, time);
        assert_eq!(clocks, Err(SignatureFault::Clocks(Some(1000))));
    }

    #[test]
    fn hostile_bytes_have_no_last_record() {
        let sent = sign(question(), &key("kat", b"secret"), 1000).unwrap();
        assert!(last_record(&sent.bytes).is_some());
        for end in 0..sent.bytes.len() {
            assert_eq!(last_record(&sent.bytes[..end]), None, "{end}");
        }
        let mut more = sent.bytes.clone();
        more.push(0);
        assert_eq!(last_record(&more), None);
        assert_eq!(last_record(&[255; 64]), None);
    }
}

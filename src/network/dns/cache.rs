//! A cache of other resolvers' answers, kept for their time to live.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RData},
};
use tokio::time::Instant;

/// Longest time that a positive answer is kept.
const POSITIVE: Duration = Duration::from_secs(3600);
/// Longest time that a negative answer is kept.
const NEGATIVE: Duration = Duration::from_secs(60);
/// Most records of an answer that is cached.
const RECORDS: usize = 128;

/// Identifies a question.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct QuestionKey {
    name: Name,
    kind: u16,
    pub(super) dnssec_ok: bool,
    pub(super) checking_disabled: bool,
}

impl QuestionKey {
    /// The key of a question of class IN.
    pub(super) fn new(question: &Query, dnssec_ok: bool, checking_disabled: bool) -> Self {
        Self {
            name: question.name().to_lowercase(),
            kind: question.query_type().into(),
            dnssec_ok,
            checking_disabled,
        }
    }
}

/// Answers up to a total weight: 1 for each answer and 1 for each of its records. Answers that
/// expire first are evicted first.
#[derive(Debug)]
pub(super) struct Cache {
    limit: usize,
    weight: usize,
    entries: BTreeMap<QuestionKey, CachedAnswer>,
    ends: BTreeSet<(Instant, QuestionKey)>,
}

#[derive(Debug)]
struct CachedAnswer {
    answer: Arc<Message>,
    since: Instant,
    end: Instant,
}

impl Cache {
    /// An empty cache with this largest weight.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            weight: 0,
            entries: BTreeMap::new(),
            ends: BTreeSet::new(),
        }
    }

    /// An unexpired answer, and its age in seconds.
    pub(super) fn get(&self, key: &QuestionKey, now: Instant) -> Option<(Arc<Message>, u32)> {
        let entry = self.entries.get(key).filter(|entry| now < entry.end)?;
        let age = now.saturating_duration_since(entry.since).as_secs();
        Some((entry.answer.clone(), u32::try_from(age).unwrap_or(u32::MAX)))
    }

    /// Caches an answer, if it may be cached.
    pub(super) fn insert(&mut self, key: QuestionKey, answer: Arc<Message>, now: Instant) {
        let Some(lifetime) = lifetime(&answer) else {
            return;
        };
        let end = now + lifetime;
        let entry = CachedAnswer {
            answer,
            since: now,
            end,
        };
        self.weight += entry.weight();
        if let Some(old) = self.entries.insert(key.clone(), entry) {
            self.weight -= old.weight();
            self.ends.remove(&(old.end, key.clone()));
        }
        self.ends.insert((end, key));
        while self.weight > self.limit {
            let Some((_, first)) = self.ends.pop_first() else {
                return;
            };
            if let Some(entry) = self.entries.remove(&first) {
                self.weight -= entry.weight();
            }
        }
    }
}

impl CachedAnswer {
    fn weight(&self) -> usize {
        1 + records(&self.answer)
    }
}

fn records(answer: &Message) -> usize {
    answer.answers.len() + answer.authorities.len() + answer.additionals.len()
}

/// How long an answer may be cached (RFC 2308, 5, for negative ones); `None` if not at all.
fn lifetime(answer: &Message) -> Option<Duration> {
    let code = answer.metadata.response_code;
    if answer.metadata.truncation || records(answer) > RECORDS {
        return None;
    }
    let (seconds, limit) = match code {
        ResponseCode::NoError if !answer.answers.is_empty() => (
            answer.answers.iter().map(|record| record.ttl).min()?,
            POSITIVE,
        ),
        ResponseCode::NoError | ResponseCode::NXDomain => {
            let authority = answer
                .authorities
                .iter()
                .find_map(|record| match &record.data {
                    RData::SOA(authority) => Some(record.ttl.min(authority.minimum)),
                    _ => None,
                });
            (authority?, NEGATIVE)
        }
        _ => return None,
    };
    let lifetime = Duration::from_secs(seconds.into()).min(limit);
    (!lifetime.is_zero()).then_some(lifetime)
}

#[cfg(test)]
mod tests {
    use hickory_proto::{
        op::OpCode,
        rr::{
            Record, RecordType,
            rdata::{A, SOA},
        },
    };

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn key(text: &str) -> QuestionKey {
        QuestionKey::new(&Query::query(name(text), RecordType::A), false, false)
    }

    fn answer(seconds: u32) -> Arc<Message> {
        let mut message = Message::response(1, OpCode::Query);
        let address = RData::A(A([192, 0, 2, 1].into()));
        message.add_answer(Record::from_rdata(name("a."), seconds, address));
        Arc::new(message)
    }

    fn missing(ttl: u32, minimum: u32) -> Arc<Message> {
        let mut message = Message::response(1, OpCode::Query);
        message.metadata.response_code = ResponseCode::NXDomain;
        let authority = SOA::new(name("a."), name("a."), 1, 1, 1, 1, minimum);
        message.add_authority(Record::from_rdata(name("a."), ttl, RData::SOA(authority)));
        Arc::new(message)
    }

    #[tokio::test(start_paused = true)]
    async fn answers_age_and_end() {
        let mut cache = Cache::new(10);
        cache.insert(key("a."), answer(30), Instant::now());
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(
            cache.get(&key("A."), Instant::now()).map(|(_, age)| age),
            Some(29)
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(cache.get(&key("a."), Instant::now()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_to_end_makes_room() {
        let mut cache = Cache::new(4);
        let now = Instant::now();
        cache.insert(key("long."), answer(300), now);
        cache.insert(key("short."), answer(3), now);
        cache.insert(key("short."), answer(4), now);
        cache.insert(key("middle."), answer(30), now);
        assert!(cache.get(&key("short."), now).is_none());
        assert!(cache.get(&key("long."), now).is_some());
        assert!(cache.get(&key("middle."), now).is_some());
        assert_eq!(
            (cache.entries.len(), cache.ends.len(), cache.weight),
            (2, 2, 4)
        );
    }

    #[test]
    fn lifetimes_are_bounded() {
        assert_eq!(lifetime(&answer(1_000_000)), Some(POSITIVE));
        assert_eq!(lifetime(&answer(0)), None);
        assert_eq!(lifetime(&missing(1_000_000, 1_000_000)), Some(NEGATIVE));
        assert_eq!(lifetime(&missing(30, 7)), Some(Duration::from_secs(7)));
        let mut failure = Message::response(1, OpCode::Query);
        failure.metadata.response_code = ResponseCode::ServFail;
        assert_eq!(lifetime(&failure), None);
        assert_eq!(
            lifetime(&Message::response(1, OpCode::Query)),
            None,
            "no authority"
        );
    }
}

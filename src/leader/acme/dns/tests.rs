//! A name server of the test that checks signatures, and clients that meet it in every mood.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hickory_proto::rr::rdata::{CNAME, NS, SOA, tsig::TsigError};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
};

use super::{tsig::tests::*, *};

const NOW: u64 = 1_700_000_000;
const CHALLENGE: &str = "_acme-challenge.example.org";

/// How a server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Good,
    /// It answers every update with this code.
    Updates(ResponseCode),
    /// It answers every question with this code, without a signature.
    Everything(ResponseCode),
    /// Its clock is 1000 s ahead.
    BadTime,
    Unsigned,
    Silent,
    SilentByUdp,
    /// No answer fits into a datagram.
    Truncated,
    /// Before its answer by UDP come others.
    Flooded,
}

struct Zone {
    mood: Mood,
    name: &'static str,
    key: DnsKey,
    texts: BTreeMap<String, BTreeSet<String>>,
    aliases: BTreeMap<String, String>,
    servers: Vec<String>,
    updates: usize,
}

impl Zone {
    fn answers(&mut self, bytes: &[u8], by_udp: bool) -> Vec<Vec<u8>> {
        let Ok(asked) = Message::from_vec(bytes) else {
            return Vec::new();
        };
        let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
        reply.add_queries(asked.queries.clone());
        match self.mood {
            Mood::Silent => return Vec::new(),
            Mood::SilentByUdp if by_udp => return Vec::new(),
            Mood::Truncated if by_udp => {
                reply.metadata.truncation = true;
                return vec![reply.to_vec().unwrap()];
            }
            Mood::Everything(code) => {
                reply.metadata.response_code = code;
                return vec![reply.to_vec().unwrap()];
            }
            _ => {}
        }
        let mut junk = Vec::new();
        if self.mood == Mood::Flooded && by_udp {
            let mut other = reply.clone();
            other.metadata.id = asked.metadata.id.wrapping_add(1);
            other.metadata.response_code = ResponseCode::Refused;
            junk = vec![b"junk".to_vec(), Vec::new(), other.to_vec().unwrap()];
        }
        let signature = asked.additionals.last().and_then(|last| match &last.data {
            RData::TSIG(_) => Some(last.name.clone()),
            _ => None,
        });
        let mut mac = None;
        if let Some(name) = signature {
            let fault = match is_signed_by(bytes, &asked, &self.key) {
                _ if text_of(&name) != self.key.name => Some(TsigError::BadKey),
                None => Some(TsigError::BadSig),
                Some(found) => {
                    mac = Some(found);
                    (self.mood == Mood::BadTime).then_some(TsigError::BadTime)
                }
            };
            if let Some(fault) = fault {
                reply.metadata.response_code = ResponseCode::NotAuth;
                let other = match fault {
                    TsigError::BadTime => (NOW + 1000).to_be_bytes()[2..].to_vec(),
                    _ => Vec::new(),
                };
                let mac = mac.unwrap_or_default();
                return vec![answered(reply, &self.key, &mac, NOW, Some((fault, other)))];
            }
        }
        let zone = name_of(self.name).unwrap();
        match (asked.metadata.op_code, self.mood) {
            (OpCode::Update, Mood::Updates(code)) => reply.metadata.response_code = code,
            (OpCode::Update, _) => {
                assert!(mac.is_some(), "an update without a signature");
                assert_eq!(asked.queries[0].name, zone);
                for record in &asked.authorities {
                    let RData::TXT(text) = &record.data else {
                        panic!("{record:?}")
                    };
                    let text = String::from_utf8(text.txt_data.concat()).unwrap();
                    let own = self.texts.entry(text_of(&record.name)).or_default();
                    match record.dns_class {
                        DNSClass::NONE => own.remove(&text),
                        _ => own.insert(text),
                    };
                }
                self.updates += 1;
            }
            _ => self.look_up(&asked.queries[0], &zone, &mut reply),
        }
        let bytes = match mac.filter(|_| self.mood != Mood::Unsigned) {
            Some(mac) => answered(reply, &self.key, &mac, NOW, None),
            None => reply.to_vec().unwrap(),
        };
        junk.push(bytes);
        junk
    }

    fn look_up(&self, asked: &Query, zone: &Name, reply: &mut Message) {
        if !zone.zone_of(&asked.name) {
            reply.metadata.response_code = ResponseCode::Refused;
            return;
        }
        reply.metadata.authoritative = true;
        let name = text_of(&asked.name);
        let record = |data: RData| Record::from_rdata(asked.name.clone(), 60, data);
        if let Some(target) = self.aliases.get(&name) {
            let target = RData::CNAME(CNAME(name_of(target).unwrap()));
            reply.add_answer(record(target));
            return;
        }
        match asked.query_type {
            RecordType::TXT => {
                for text in self.texts.get(&name).into_iter().flatten() {
                    reply.add_answer(record(RData::TXT(TXT::new(vec![text.clone()]))));
                }
            }
            RecordType::NS => {
                for server in &self.servers {
                    reply.add_answer(record(RData::NS(NS(name_of(server).unwrap()))));
                }
            }
            _ => {
                let soa = SOA::new(zone.clone(), zone.clone(), 1, 2, 3, 4, 5);
                reply.add_authority(Record::from_rdata(zone.clone(), 60, RData::SOA(soa)));
            }
        }
    }
}

/// A server, which ends with the test.
struct Double {
    at: SocketAddr,
    zone: Arc<Mutex<Zone>>,
}

impl Double {
    async fn new(name: &'static str, mood: Mood) -> Self {
        let zone = Arc::new(Mutex::new(Zone {
            mood,
            name,
            key: key("kat", b"secret"),
            texts: BTreeMap::new(),
            aliases: BTreeMap::new(),
            servers: Vec::new(),
            updates: 0,
        }));
        let (udp, tcp) = loop {
            let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
            // Another program may have the same port of UDP.
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let at = tcp.local_addr().unwrap();
        let served = Arc::clone(&zone);
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, from) = udp.recv_from(&mut buffer).await.unwrap();
                let answers = served.lock().answers(&buffer[..length], true);
                for answer in answers {
                    udp.send_to(&answer, from).await.unwrap();
                }
            }
        });
        let served = Arc::clone(&zone);
        tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let Ok(length) = stream.read_u16().await else {
                    continue;
                };
                let mut asked = vec![0; usize::from(length)];
                if stream.read_exact(&mut asked).await.is_err() {
                    continue;
                }
                let answers = served.lock().answers(&asked, false);
                for answer in answers {
                    let length = u16::try_from(answer.len()).unwrap();
                    let _ = stream.write_u16(length).await;
                    let _ = stream.write_all(&answer).await;
                }
                // A silent server leaves its connections open.
                kept.push(stream);
            }
        });
        Self { at, zone }
    }

    fn access(&self) -> DnsAccess {
        let zone = self.zone.lock();
        DnsAccess {
            zone: zone.name.to_owned(),
            server: self.at.to_string(),
            secret: format!("key-of-{}", zone.name),
            key: zone.key.clone(),
        }
    }

    fn place(&self) -> DnsPlace {
        DnsPlace {
            server: self.at.to_string(),
            secret: "dns-key".to_owned(),
            zone: self.zone.lock().name.to_owned(),
            name: CHALLENGE.to_owned(),
            hook: None,
        }
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let zone = self.zone.lock();
        let own = zone.texts.get(name).into_iter().flatten();
        own.cloned().collect()
    }
}

/// Hooks that change the records of a server.
#[derive(Default)]
struct ZoneHooks {
    zone: Option<Arc<Mutex<Zone>>>,
    /// What every run ends with.
    failure: Mutex<Option<HookFailure>>,
    ran: Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl DnsHooks for ZoneHooks {
    async fn check(&self, hook: &str) -> Result<(), HookFailure> {
        match hook {
            "cloud" => Ok(()),
            _ => Err(HookFailure::NotUsable(format!("{hook} does not exist"))),
        }
    }

    async fn run(
        &self,
        hook: &str,
        change: HookChange,
        name: &str,
        value: &str,
    ) -> Result<(), HookFailure> {
        self.check(hook).await?;
        self.ran.lock().push(format!("{} {name}", change.word()));
        if let Some(failure) = self.failure.lock().clone() {
            return Err(failure);
        }
        let zone = self.zone.as_ref().unwrap();
        let mut zone = zone.lock();
        let texts = zone.texts.entry(name.to_owned()).or_default();
        match change {
            HookChange::Present => texts.insert(value.to_owned()),
            HookChange::Cleanup => texts.remove(value),
        };
        Ok(())
    }
}

fn client(resolvers: Vec<SocketAddr>) -> DnsClient {
    client_with(resolvers, Arc::default())
}

fn client_with(resolvers: Vec<SocketAddr>, hooks: Arc<ZoneHooks>) -> DnsClient {
    DnsClient {
        hooked: Arc::new(HookedRecords::new(hooks)),
        patience: Patience {
            udp: Duration::from_millis(150),
            tcp: Duration::from_secs(1),
        },
        resolvers,
        clock: || NOW,
    }
}

/// Why a name is not located.
async fn refusal(name: &str, access: &DnsAccess) -> AcmeFailure {
    let client = client(Vec::new());
    client.locate(name, access, &[]).await.unwrap_err()
}

fn value(letter: &str) -> String {
    letter.repeat(43)
}

#[tokio::test]
async fn two_records_of_one_name_stand_side_by_side_and_each_goes_alone() {
    let server = Double::new("example.org", Mood::Good).await;
    let client = client(Vec::new());
    let place = client
        .locate(CHALLENGE, &server.access(), &[])
        .await
        .unwrap();
    assert_eq!(place.zone, "example.org");
    assert_eq!(place.name, CHALLENGE);
    assert_eq!(place.secret, "key-of-example.org");
    assert_eq!(server.texts(CHALLENGE), Vec::<String>::new());
    let key = server.access().key;
    for letter in ["a", "b", "a"] {
        let check = client.record(&place, &value(letter), &key, &[]).await;
        assert_eq!(check.unwrap(), RecordCheck::default());
    }
    assert_eq!(server.texts(CHALLENGE), [value("a"), value("b")]);
    // Other orders of the name do not stand in the way.
    let again = client.locate(CHALLENGE, &server.access(), &[]).await;
    assert_eq!(again.unwrap(), place);
    for _ in 0..2 {
        let value = value("a");
        let removed = client.update(&place, &value, &key, Change::Remove).await;
        removed.unwrap();
    }
    assert_eq!(server.texts(CHALLENGE), [value("b")]);
}

#[tokio::test]
async fn cname_records_lead_to_the_zone_that_the_key_may_change() {
    let target = "shop.acme.example.net";
    let own = Double::new("example.org", Mood::Good).await;
    let other = Double::new("acme.example.net", Mood::Good).await;
    let aliases = [
        (CHALLENGE, "middle.example.org"),
        ("middle.example.org", "Shop.ACME.example.net"),
    ];
    for (from, to) in aliases {
        let aliases = &mut own.zone.lock().aliases;
        aliases.insert(from.to_owned(), to.to_owned());
    }
    let place = client(Vec::new())
        .locate(CHALLENGE, &own.access(), &[other.access()])
        .await
        .unwrap();
    let expected = DnsPlace {
        server: other.at.to_string(),
        secret: "key-of-acme.example.net".to_owned(),
        zone: "acme.example.net".to_owned(),
        name: target.to_owned(),
        hook: None,
    };
    assert_eq!(place, expected);

    // The server of the settings has only the zone that the record leads to: the leader's name server
    // knows the record.
    let delegated = DnsAccess {
        zone: "example.org".to_owned(),
        ..other.access()
    };
    let resolving = client(vec![own.at]);
    let both = [other.access()];
    let found = resolving.locate(CHALLENGE, &delegated, &both).await;
    let found = found.unwrap();
    assert_eq!(
        (found.zone.as_str(), found.name.as_str()),
        ("acme.example.net", target)
    );
    // Without such a record the reason says what is missing.
    let failure = client(vec![own.at])
        .locate("_acme-challenge.sub.example.org", &delegated, &[])
        .await
        .unwrap_err();
    let why = "is no name server of the zone of _acme-challenge.sub.example.org (REFUSED)";
    assert!(failure.message.contains(why), "{}", failure.message);
    assert_eq!(failure.kind, AcmeFailureKind::Name);
    // Nor is a circle followed.
    let aliases = [
        ("a.example.org", "b.example.org"),
        ("b.example.org", "a.example.org"),
    ];
    for (from, to) in aliases {
        let aliases = &mut own.zone.lock().aliases;
        aliases.insert(from.to_owned(), to.to_owned());
    }
    let failure = resolving.locate("a.example.org", &own.access(), &[]).await;
    let failure = failure.unwrap_err();
    assert!(
        failure.message.contains("more than 8 CNAME records"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn a_hook_is_run_once_for_a_record_and_the_zones_name_servers_are_asked_for_it() {
    let server = Double::new("example.org", Mood::Good).await;
    let hooks = Arc::new(ZoneHooks {
        zone: Some(Arc::clone(&server.zone)),
        ..ZoneHooks::default()
    });
    let client = client_with(vec![server.at], Arc::clone(&hooks));
    let missing = client.locate_for_hook(CHALLENGE, "org", "other").await;
    assert_eq!(missing.unwrap_err().message, "other does not exist");
    // The zone is that of the name servers.
    let place = client.locate_for_hook(CHALLENGE, "org", "cloud").await;
    let place = place.unwrap();
    assert_eq!(
        (place.zone.as_str(), place.name.as_str()),
        ("example.org", CHALLENGE)
    );
    assert_eq!(place.hook.as_deref(), Some("cloud"));
    for _ in 0..2 {
        let check = client.record_by_hook(&place, &value("a"), &[]).await;
        let check = check.unwrap();
        assert_eq!(check.missing, Vec::<String>::new());
        // The zone of the test names no server.
        assert!(check.unconfirmed);
        assert_eq!(
            check.silent,
            ["the leader's name servers, which know no name server of example.org"]
        );
    }
    assert_eq!(server.texts(CHALLENGE), [value("a")]);
    for letter in ["a", "b"] {
        let removed = client.hooked.remove(&place, &value(letter)).await;
        removed.unwrap();
    }
    assert_eq!(server.texts(CHALLENGE), Vec::<String>::new());
    // The first one shows that the hook can change the record.
    let (present, cleanup) = (
        format!("present {CHALLENGE}"),
        format!("cleanup {CHALLENGE}"),
    );
    let expected = [&cleanup, &present, &cleanup, &cleanup].map(String::clone);
    assert_eq!(*hooks.ran.lock(), expected);
    // A run that failed is no record, and costs no order.
    *hooks.failure.lock() = Some(HookFailure::Failed("it hangs".to_owned()));
    for _ in 0..2 {
        let check = client.record_by_hook(&place, &value("c"), &[]).await;
        assert_eq!(check.unwrap().failed.as_deref(), Some("it hangs"));
    }
    assert_eq!(hooks.ran.lock().len(), 6);
    let failure = client.locate_for_hook(CHALLENGE, "org", "cloud").await;
    assert_eq!(failure.unwrap_err().message, "it hangs");
    *hooks.failure.lock() = Some(HookFailure::NotUsable("no program".to_owned()));
    let failure = client.record_by_hook(&place, &value("c"), &[]).await;
    assert_eq!(failure.unwrap_err().kind, AcmeFailureKind::Name);
}

#[tokio::test]
async fn a_hook_has_no_name_that_stands_for_another_but_may_have_one_that_a_wildcard_covers() {
    let server = Double::new("example.org", Mood::Good).await;
    let hooks = Arc::new(ZoneHooks {
        zone: Some(Arc::clone(&server.zone)),
        ..ZoneHooks::default()
    });
    let client = client_with(vec![server.at], hooks);
    let target = "a.example.net".to_owned();
    let alias = (CHALLENGE.to_owned(), target.clone());
    server.zone.lock().aliases = [alias.clone()].into();
    let failure = client
        .locate_for_hook(CHALLENGE, "example.org", "cloud")
        .await;
    let failure = failure.unwrap_err();
    assert_eq!(failure.kind, AcmeFailureKind::Name);
    let why = "has a CNAME record to a.example.net";
    assert!(failure.message.contains(why), "{}", failure.message);
    // What `*.example.org CNAME a.example.net` answers.
    let every = "kat-tries-whether-this-is-a-wildcard.example.org".to_owned();
    server.zone.lock().aliases = [alias, (every, target)].into();
    let place = client
        .locate_for_hook(CHALLENGE, "example.org", "cloud")
        .await;
    assert_eq!(place.unwrap().zone, "example.org");
    server.zone.lock().mood = Mood::Everything(ResponseCode::ServFail);
    let place = client
        .locate_for_hook(CHALLENGE, "example.org", "cloud")
        .await;
    assert_eq!(place.unwrap().zone, "example.org");
}

/// Whoever has the DNS of a part of the zone decides where its names lead.
#[tokio::test]
async fn cname_records_lead_to_no_zone_that_the_settings_do_not_have_and_to_no_odd_name() {
    let own = Double::new("example.org", Mood::Good).await;
    // A zone of the same server, with the same key, that is not in the settings.
    let inner = Double::new("inner.example", Mood::Good).await;
    let delegated = DnsAccess {
        zone: "example.org".to_owned(),
        ..inner.access()
    };
    let target = "mail.inner.example";
    let alias = BTreeMap::from([(CHALLENGE.to_owned(), target.to_owned())]);
    own.zone.lock().aliases = alias;
    let client = client(vec![own.at]);
    let failure = client.locate(CHALLENGE, &delegated, &[]).await.unwrap_err();
    let why = "stands for mail.inner.example, which is in no zone of acme.dns";
    assert!(failure.message.contains(why), "{}", failure.message);
    assert_eq!(failure.kind, AcmeFailureKind::Name);
    assert_eq!(inner.zone.lock().updates, 0);

    // The second one has `a.example` as one label.
    for target in ["*.example.org", "a\\.example.org"] {
        let alias = BTreeMap::from([(CHALLENGE.to_owned(), target.to_owned())]);
        own.zone.lock().aliases = alias;
        let failure = refusal(CHALLENGE, &own.access()).await;
        let why = "which is no name for a record";
        assert!(failure.message.contains(why), "{}", failure.message);
        assert_eq!(own.zone.lock().updates, 0);
    }
}

#[tokio::test]
async fn records_of_someone_else_are_left_alone() {
    let server = Double::new("example.org", Mood::Good).await;
    let policy = BTreeSet::from(["v=DMARC1; p=reject".to_owned()]);
    let texts = BTreeMap::from([("_dmarc.example.org".to_owned(), policy)]);
    server.zone.lock().texts = texts;
    let alias = ("_acme-challenge.a.example.org", "_dmarc.example.org");
    let aliases = BTreeMap::from([(alias.0.to_owned(), alias.1.to_owned())]);
    server.zone.lock().aliases = aliases;
    let failure = refusal(alias.0, &server.access()).await;
    assert!(
        failure.message.contains("must point to a name of its own"),
        "{}",
        failure.message
    );
    assert_eq!(server.zone.lock().updates, 0);
}

#[tokio::test]
async fn a_failure_names_the_server_the_code_and_the_key() {
    use AcmeFailureKind::{Name as Lasting, NameServer as Passing};
    let cases = [
        (
            Mood::Updates(ResponseCode::Refused),
            Lasting,
            "refuses the update of _acme-challenge.example.org (REFUSED): the zone example.org must allow the key kat",
        ),
        (
            Mood::Updates(ResponseCode::NotAuth),
            Lasting,
            "takes no updates of the zone example.org (NOTAUTH)",
        ),
        (
            Mood::Updates(ResponseCode::NotImp),
            Lasting,
            "takes no updates (NOTIMP)",
        ),
        (
            Mood::Updates(ResponseCode::ServFail),
            Passing,
            "fails to update the zone example.org (SERVFAIL)",
        ),
        (
            Mood::Updates(ResponseCode::YXRRSet),
            Lasting,
            "answers the update of _acme-challenge.example.org with YXRRSET",
        ),
        (
            Mood::Everything(ResponseCode::ServFail),
            Passing,
            "fails (SERVFAIL)",
        ),
        (
            Mood::Everything(ResponseCode::NoError),
            Lasting,
            "answers without a signature",
        ),
        // Without a signature nobody says that there is no such name.
        (
            Mood::Everything(ResponseCode::NXDomain),
            Lasting,
            "answers without a signature",
        ),
        (Mood::BadTime, Lasting, "differ by 1000 s (BADTIME)"),
        (
            Mood::Unsigned,
            Lasting,
            "answers without a signature: it must know the key kat",
        ),
        (
            Mood::Silent,
            Passing,
            "does not answer: no answer in time by UDP and TCP",
        ),
    ];
    for (mood, kind, expected) in cases {
        let server = Double::new("example.org", mood).await;
        let failure = refusal(CHALLENGE, &server.access()).await;
        let AcmeFailure { message, .. } = &failure;
        assert!(message.contains(expected), "{mood:?}: {message}");
        assert!(message.contains(&server.at.to_string()), "{message}");
        assert_eq!(failure.kind, kind, "{mood:?}");
        assert_eq!(server.texts(CHALLENGE), Vec::<String>::new());
    }
    // What the server says of the key.
    let server = Double::new("example.org", Mood::Good).await;
    let keys = [
        (
            key("other", b"secret"),
            "does not know the key other with this algorithm (BADKEY)",
        ),
        (
            key("kat", b"another"),
            "has another secret for the key kat (BADSIG)",
        ),
    ];
    for (key, expected) in keys {
        let access = DnsAccess {
            key,
            ..server.access()
        };
        let failure = refusal(CHALLENGE, &access).await;
        assert!(failure.message.contains(expected), "{}", failure.message);
        assert_eq!(failure.kind, Lasting);
    }
    // A server that is not there.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let access = DnsAccess {
        server: gone.local_addr().unwrap().to_string(),
        ..server.access()
    };
    drop(gone);
    let failure = refusal(CHALLENGE, &access).await;
    assert!(
        failure.message.contains("the connection is refused"),
        "{}",
        failure.message
    );
    assert_eq!(failure.kind, Passing);
}

#[tokio::test]
async fn answers_come_by_tcp_where_udp_brings_none_and_those_to_other_questions_do_not_count() {
    for mood in [Mood::Truncated, Mood::SilentByUdp, Mood::Flooded] {
        let server = Double::new("example.org", mood).await;
        let client = client(Vec::new());
        let place = client.locate(CHALLENGE, &server.access(), &[]).await;
        let place = place.unwrap_or_else(|error| panic!("{mood:?}: {error:?}"));
        let key = server.access().key;
        let check = client.record(&place, &value("a"), &key, &[]).await;
        assert_eq!(check.unwrap(), RecordCheck::default(), "{mood:?}");
        assert_eq!(server.texts(CHALLENGE), [value("a")], "{mood:?}");
    }
}

#[tokio::test]
async fn every_name_server_of_the_zone_has_to_answer_with_the_record() {
    let server = Double::new("example.org", Mood::Good).await;
    server.zone.lock().servers = vec!["localhost".to_owned()];
    let client = client(Vec::new());
    let (place, key) = (server.place(), server.access().key);
    let check = client.record(&place, &value("a"), &key, &[]).await.unwrap();
    assert_eq!(check.missing, Vec::<String>::new());
    // A tenant's CNAME record must not make the leader ask what only the leader reaches.
    assert!(check.silent[0].contains("localhost") && check.silent[0].contains("(not asked)"));

    let name = name_of(CHALLENGE).unwrap();
    let late = Double::new("example.org", Mood::Good).await;
    let refusing = Double::new("example.org", Mood::Everything(ResponseCode::Refused)).await;
    let silent = Double::new("example.org", Mood::Silent).await;
    let mut check = RecordCheck::default();
    let doubles = [
        ("first", &server),
        ("late", &late),
        ("refusing", &refusing),
        ("silent", &silent),
    ];
    let value = value("a");
    for (host, double) in doubles {
        client
            .ask_address(host, double.at, &name, &value, &mut check)
            .await;
    }
    assert_eq!(check.missing, ["late"]);
    assert_eq!(check.silent, ["refusing (REFUSED)", "silent"]);
}

#[tokio::test]
async fn hostile_answers_are_bounded_and_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for answer in [
            vec![0, 3, 1, 2, 3],
            vec![255; 70_000],
            vec![
                0, 12, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
            ],
        ] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut asked = vec![0; usize::from(length)];
            stream.read_exact(&mut asked).await.unwrap();
            let mut answer = answer;
            if answer.len() == 14 {
                answer[2..4].copy_from_slice(&asked[..2]);
            }
            let _ = stream.write_all(&answer).await;
        }
    });
    let client = client(Vec::new());
    let name = name_of(CHALLENGE).unwrap();
    for expected in ["another question", "another question", "cannot be read"] {
        let found = client.plain(at, &query(&name, RecordType::TXT)).await;
        let why = found.err().unwrap();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn the_machines_name_servers_are_read_as_the_c_library_does() {
    let text = "# resolv.conf\nsearch lan\nnameserver 192.0.2.1\nnameserver ::1 # own\noptions edns0\nnameserver bad\nnameserver 192.0.2.2\nnameserver 192.0.2.3\n";
    let found: Vec<String> = resolvers_in(text).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["192.0.2.1:53", "[::1]:53", "192.0.2.2:53"]);
}

#[test]
fn a_server_has_port_53_unless_the_settings_say_another_one() {
    for (server, expected) in [
        ("ns1.example.org", "ns1.example.org:53"),
        ("192.0.2.1:5353", "192.0.2.1:5353"),
        ("[2001:db8::1]", "[2001:db8::1]:53"),
        ("[2001:db8::1]:54", "[2001:db8::1]:54"),
    ] {
        assert_eq!(with_port(server), expected);
    }
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(in_words("ns1", at("192.0.2.1:53")), "ns1 (192.0.2.1)");
    assert_eq!(in_words("192.0.2.1", at("192.0.2.1:53")), "192.0.2.1");
    assert_eq!(in_words("192.0.2.1:54", at("192.0.2.1:54")), "192.0.2.1:54");
}
